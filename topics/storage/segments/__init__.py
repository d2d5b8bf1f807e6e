"""Segments: the records of one topic in files of their own.

segment_format   the byte layout of `.data`
index_format     the byte layout of `.idx`
tag_summary        a Bloom filter of the tags of a segment
tag_directory    in which parts of `.tags` the tags are, and the checksums of those parts
tags_format      the byte layout of `.tags`
flag_patches     what flagging deleted records means for `.data` and `.idx`
packed_format    the byte layout of packed `.data` files
packed_reads     reading the unpacked form of packed files
deletion_file    the byte layout of `.del`, the deletions in a packed `.data`
data_files       `.data` files as readers see them, packed or not, with their deletions
topic_segments   the segments of one topic, and how records are divided among them
segment_scan     reading a `.data` file from front to back
segment_sum      the SHA-256 of a sealed segment
segment_reader   columns and bytes of a span, from hot or cold files
single_records   bytes of single records, without the columns of their span
set_aside_files  segments out of the directory of a former owner
segment_pointer  the file that says in which objects of a bucket a segment is
segment_store    the interface to the place of sealed segments, and a directory that implements it
copy_chains      the copies of one frame, and how they follow from the records that they were taken from
copy_frames      copies on disk: the Forwarded frame, and reading the frames that copies point to
stand_ins        the bytes of copies whose sources a restored directory has elsewhere, or not in a file of their own
mended_files     making damaged files of a segment whole with a copy from a second home
segment_repairs  the repairs of a running daemon
"""
