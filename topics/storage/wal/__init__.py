"""The log: one for each shard.

frames         the byte layout of frames, and the only functions that write and read them
wal_head       how a log file begins
wal_files      the files of all shards, and positions in them
keep_frames    what a batch takes away from a topic with `keep_per_tag`
members        how a transaction names its members
batches        the batches that a writer takes, and the calls by which it reports on them
write_queue    the batches that wait to be written, and the appends that wait for room among them
shard_log      the files of one shard: room, headers, names, writes and syncs
group_writes   whether a group is written in a worker thread or on the loop
unacked_batches  what a writer has taken and that was not told of a sync
shard_writer   the task of one shard: group commit, rotation, failure
followed_shard  what stands in the place of a writer where the log comes from another daemon
round_waits    batches that are synced and wait until the bucket has them
write_right    whether this process may change anything
stall          a shard that waits for room on the disk
frame_search   the search for valid frames behind bytes that are not frames
damage_notes   notes in the log about damaged records
"""
