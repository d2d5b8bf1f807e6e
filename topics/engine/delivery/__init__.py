"""Live delivery: watchers of topics, over any kind of connection (`docs/spec/api.md` section 8).

    feed                one topic of one watcher: its position and its wishes
    outbox              the frames that wait for one connection, bounded; a slow client blocks nothing else
    transport           the interface to a connection
    topic_delivery      makes frames of a topic's news, and shares them among its feeds
    watch_session       one watch session: its feeds, and its position as the id of a frame
    prefix_session      one with prefixes, whose ids name instances of topics
    watch_sessions      all watch sessions, streams without one, take-over, the end of idle ones
    awaited_topics      feeds of topics that do not exist yet
    prefix_wishes       the prefixes of a watcher, and what it wants of the topics that match (pure)
    prefix_watches      makes feeds of topics that a prefix matches, also of those made later
    node_lists          a bound on the memory of the watchers' node lists
    kept_filters        and of their filters
    connection_places   how many streams and sockets may be open at once

`topics.sched` decides the order in which topics are served, `topics.http` the form of frames on the wire.
"""
