"""The log: one for each shard.

frames          the byte layout of frames, and the only functions that write and read them
wal_head        how a log file begins
shard_writer    group commit, rotation, preallocation and failure of one shard
stall           a shard that waits for room on the disk
frame_search    frames behind bytes that are none
damage_notes    notes in the log about damaged records
"""
