"""Live delivery: watchers of topics, over any kind of connection (`docs/spec/api.md` section 8).

    feed                one topic of one watcher: its position and its wishes
    outbox              the frames that wait for one connection, bounded; a slow client blocks nothing else
    transport           the interface to a connection
    topic_delivery      makes frames of a topic's news, and shares them among its feeds
    watch_sessions      watch sessions and their cursors, streams without one, take-over, the end of idle ones
    awaited_topics      feeds of topics that do not exist yet
    node_lists          a bound on the memory of the watchers' node lists
    connection_places   how many streams and sockets may be open at once

`topics.sched` decides the order in which topics are served, `topics.http` the form of frames on the wire.
"""
