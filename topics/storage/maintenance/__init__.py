"""Work on the files of a running daemon.

compactor          checkpoints: new records go into segments, and the log is cut
topic_checkpoint   the part of a checkpoint that is about single topics: its steps and their syncs
topic_capture      what a checkpoint captures of a topic, and the part that is made of it
small_topics       writes the new records of many topics with a few each
segment_growth     writes the new records of one topic, chunk by chunk, and seals segments
frame_reads        which reads fetch the frames of captured records
frame_conversion   makes the frames of a segment from frames of the log
segment_files      makes and extends the files of a segment
deletion_flags     flags deleted records in hot segments
work_slice         how long a checkpoint keeps the loop before others run
live_topic         what a checkpoint asks of the running daemon and its topics
checkpoint_files   the files of a checkpoint, for a copy and for a base in the bucket
base_capture       what a base in the bucket is made of, as of one moment
named_files        the files that a hold has named, which must not change while it lasts
reclaimer          gives back the space of deleted, evicted and expired records
appointments       when the reclaimer has to look at a topic again
purges             which segments are rewritten because they hold deleted bytes for too long
segment_rewrite    the new files of segments that the reclaimer rewrites
packer             compresses sealed segments
relocator          moves old segments to the cold directory
cold_flags         flags deleted records in the segments of a cold directory
home_moves         copies segments from a bucket back into the data directory
cold_removal       removes files that no part names from the cold directory
file_holds         locks and holds: which task may change the files of a topic, and when
"""
