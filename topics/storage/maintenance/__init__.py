"""Work on the files of a running daemon.

compactor          checkpoints: new records go into segments, and the log is cut
topic_checkpoint   the part of a checkpoint that is about single topics
named_files        the files that a hold has named, which must not change while it lasts
reclaimer          gives back the space of deleted, evicted and expired records
segment_rewrite    the new files of segments that the reclaimer rewrites
relocator          moves old segments to the cold directory
cold_removal       removes files that no part names from the cold directory
file_holds         locks and holds: which task may change the files of a topic, and when
"""
