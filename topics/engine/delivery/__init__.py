"""Live delivery: watchers of topics, over whatever connection (`docs/spec/api.md` section 8).

    feed                one topic of one watcher: where it is, what it wants
    outbox              what waits for one connection, bounded; the only place where a slow client is felt
    transport           the seam to a connection
    topic_delivery      what is due of a topic, made into frames for its feeds, once for all that want the same
    watch_sessions      watch sessions and their cursors, streams without one, take-over, the end of idle ones
    awaited_topics      watchers of topics that are not there yet
    node_lists          the memory that lists of left-out nodes take
    connection_places   how many streams and sockets there may be at once

In which order topics are served is `topics.sched`'s business, how a frame looks on the wire is `topics.http`'s.
"""
