"""From a bucket to a data directory.

restore_target      which base and which round a restore uses
base_pages          the pages of a base, loaded and checked
restored_log        the files of the log, made from rounds
restored_segments   the files of segments, with the deletions as of the base
restored_topics     parts, manifests and segments of all topics, made from the pages of a base
bucket_restore      a whole restore: a directory that is complete, or none
"""
