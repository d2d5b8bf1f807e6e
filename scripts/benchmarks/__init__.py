"""`scripts/bench`: what the daemon does on this machine, beside what the machine itself does in the same run.

`client` is a client cheap enough to share two cores with what it measures, `figures` what comes out, `machine` and
`references` where it was measured; `append`, `diff`, `recovery`, `memory`, `checkpoint`, `reclaim` and `cold` are
the benchmarks; `slow_cold` and `echo` are what two of them start.
"""
