"""Work on a bucket without a daemon: reading, checking, and making a data directory of it. Nothing in it is changed.

bucket_reader       reading and checking objects
base_pages          the pages of a base, loaded and checked
topic_look          whether a restore of the newest state would have topics
restore_target      which base and which round a restore uses
restored_log        the files of the log, made from rounds
restored_segments   the files of segments, with the deletions as of the base
restored_topics     parts, manifests and segments of all topics, made from the pages of a base
left_segments       segments that a restore leaves in the bucket, while it is made
restored_copies     copies whose sources are in segments that the base does not have
bucket_restore      a whole restore: a directory that is complete, or none
bucket_check        whether a bucket has all that a restore may need
bucket_figures      what is in a bucket, for people
bucket_removals     what may go from a bucket, and why the rest stays
"""
