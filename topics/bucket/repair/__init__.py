"""Repairing local damage from the bucket (`docs/design/bucket.md` section 9).

bucket_home    the segments of this directory as the newest base has them, and its log as rounds have it
pointer_home   what damaged pointers to segments in a bucket have said
"""
