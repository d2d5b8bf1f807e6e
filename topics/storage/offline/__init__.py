"""Directories without a daemon. Nothing is changed.

inspect             what is in a directory
directory_facts     what it says of it, as plain values
frame_dump          frames on disk, one after another, for people
verify              whether it is as it was written
verify_wal          the log of one shard
verify_segments     one segment
verify_start        what the next start would say
verify_routers      what routers and commits of stages have left
verify_identities   whether data and cold directory belong together
verify_divided      the same work, divided among processes
finding             one thing that is not as it should be
topic_parts         the part of a topic, taken apart
stored_topics       what the files say of topics, for readers such as Spark
"""
