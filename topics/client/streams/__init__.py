"""Streams of the Python client: tails, watches, and streams of jobs. They survive failures of the connection.

    lines, sse           bytes to lines, lines to server-sent events
    reconnection         which failures a stream survives, and how long it waits
    follower             the state of a tail or watch: positions, session, decoded values
    job_stream           the state of a stream of jobs
    tails, async_tails   the I/O of both

Only `tails` and `async_tails` do I/O. The sending side, `producer`, and the workers are in `topics.client`.
"""
