"""Segments: the records of one topic in files of their own.

segment_format   the byte layout of `.data`
index_format     the byte layout of `.idx`
tags_format      the byte layout of `.tags`
topic_segments   the segments of one topic, and how records are divided among them
segment_scan     reading a `.data` file from front to back
segment_reader   columns and bytes of a span, from hot or cold files
segment_store    where sealed segments live, as a seam
copy_frames      copies on disk: what a copy is made of
"""
