"""Commands on a directory without a daemon. They change nothing.

inspect             the content of a directory
directory_facts     the results of `inspect`, as plain values
frame_dump          frames on disk, one after another, for people
log_tail            the part of the log behind given places, and its records
tail_batches        the batches of that part of the log, even if bytes there are damaged
tail_facts          the results of `log_tail`, as plain values
verify              checks that a directory is as it was written
verify_wal          checks the log of one shard
verify_segments     checks one segment
verify_sums         checks the SHA-256 of sealed segments
verify_pointers     checks pointers to segments in a bucket
verify_start        the findings that the next start would report
verify_routers      checks the marks of routers and of commits of stages
verify_trees        checks Merkle trees
content_leaves      leaves that are in no file any more, from the records
verify_other_files  checks files that belong neither to a log nor to a topic
verify_identities   checks that data and cold directory belong together
verify_division     the work of `verify`, divided among processes
findings            the problems that `verify` has found
topic_parts         the part of a topic, decoded
stored_topics       what the files say of topics, for readers such as Spark
"""
