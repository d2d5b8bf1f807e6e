"""The jobs: each module has `run`, for programs that have a session, and `command`, for `python -m topics.spark`."""
