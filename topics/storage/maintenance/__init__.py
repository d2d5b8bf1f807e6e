"""The files of a running daemon are kept in order.

compactor          checkpoints: what is new goes into segments, and the log is cut
topic_checkpoint   the part of a checkpoint that is about single topics
named_files        the files that a hold has named, which are let alone while it lasts
reclaimer          giving back the space of what is gone
segment_rewrite    the new files of what the reclaimer rewrites
relocator          moving old segments to the cold directory
cold_removal       removing what nothing names from the cold directory
file_holds         who may change the files of a topic, and when
"""
