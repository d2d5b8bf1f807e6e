"""Bases: what the bucket has besides rounds, and what may go from it (`docs/design/bucket.md` sections 4 and 7).

base_writer     the task that makes bases
base_content     one base being made of a capture: what is new in it
known_base      what the newest base has, as far as the next one needs it
segment_reads   reading segments for a base, and which of their records are deleted
uploads         uploads of one base: several at a time, a bounded number of bytes
packs           the packs of the base that is being made
own_segments    which segments the newest base has, for the cold store
lost_objects    what the bucket should have and has not
retention       what may go from the bucket
collector       the task that removes it
bucket_look     what metrics and readiness say of the bucket
"""
