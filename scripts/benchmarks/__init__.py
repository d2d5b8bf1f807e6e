"""`scripts/bench`: what the daemon does on this machine, beside what the machine itself does in the same run.

- `parts` names what is measured, one module each; `bench` has what all of them share, above all the one way to repeat.
- `harness` runs them, `figures` is what comes out, `results` the file that is left, `compare` two of these,
  `report` docs/performance.md, of them and of the chapters in `prose`, with the bars of `charts`.
- `client` is a client cheap enough to share two cores with what it measures, `live` one that watches.
- `claims` is what parts about queues and groups share; `queue` is made of it and of `many_jobs`, `late_jobs`, `groups`.
- `earlier` is the daemon of an earlier commit.
- `references`, `redis_streams` and `fanout` are what figures are compared with; `machine` is where it was.
- `echo`, `fanout`, `slow_cold` and `spark_session` are started as processes of their own.
"""
