"""A black-box client of the daemon, written against the wire contract (`docs/spec/api.md`, sections 1 to 6 and 11)
alone.

The daemon runs in a process of its own, on the real clock. Tests wait for a state with `client.until`. They sleep for a
fixed time only for three reasons: a time of the daemon must pass (a TTL, a lease, a delay, a window), a request must
arrive that no state of the daemon shows (a long poll, a claim that waits), or something must not come.
"""
