"""Live delivery: watchers of topics, over whatever connection (`api.md` section 8).

    feed        one topic of one watcher: where it is, what it wants
    outbox      what waits for one connection, bounded; the only place where a slow client is felt
    transport   the seam to a connection
    delivery    what is due of a topic, made into frames for its feeds, once for all that want the same
    sessions    watch sessions and their cursors, streams without one, take-over, the end of idle ones

In which order topics are served is `topics.sched`'s business, how a frame looks on the wire is `topics.http`'s.
"""
