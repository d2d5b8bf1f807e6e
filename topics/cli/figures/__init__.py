"""Commands that show figures of a daemon: metrics, top and bench.

metrics_command   metrics
top               top; `snapshots` computes what it shows
snapshots         rates and lags from two looks at a daemon
bench             bench; `measurements` does the work
measurements      what a daemon does for a client on this machine
"""
