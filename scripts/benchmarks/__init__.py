"""`scripts/bench`: what the daemon does on this machine, beside what the machine itself does in the same run.

`client` is a client cheap enough to share two cores with what it measures, `figures` what comes out, `machine` and
`references` where it was measured; `append`, `diff`, `recovery` and `memory` are the benchmarks.
"""
