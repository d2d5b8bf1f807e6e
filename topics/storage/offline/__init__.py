"""Commands on a directory without a daemon. They change nothing.

inspect             the content of a directory
directory_facts     the results of `inspect`, as plain values
frame_dump          frames on disk, one after another, for people
log_tail            what the log has behind some places, and the records there
tail_batches        the batches of that part of the log, whatever bytes are there
tail_facts          the results of `log_tail`, as plain values
verify              checks that a directory is as it was written
verify_wal          checks the log of one shard
verify_segments     checks one segment
verify_sums         checks the SHA-256 of sealed segments
verify_pointers     checks what the directory has of segments in a bucket
verify_start        what the next start would say
verify_routers      checks what routers and commits of stages have left
verify_trees        checks Merkle trees
content_leaves      leaves that are in no file any more, from the records
verify_other_files  checks what is neither a log nor of a topic
verify_identities   checks that data and cold directory belong together
verify_divided      the same work, divided among processes
finding             one problem that `verify` has found
topic_parts         the part of a topic, decoded
stored_topics       what the files say of topics, for readers such as Spark
"""
