"""`scripts/bench`: what the daemon does on this machine, beside what the machine itself does in the same run.

`client` is a client cheap enough to share two cores with what it measures, `live` one that watches, `figures` what
comes out, `machine` and `references` where it was measured; `append`, `diff`, `recovery`, `memory`, `checkpoint`,
`reclaim`, `cold`, `watch`, `ws` and `pressure` are the benchmarks; `slow_cold`, `echo` and `fanout` are what some of
them start.
"""
