"""One topic in memory: its records, what is gone, and what a reader is told of it. Pure: no tasks, no files, no clock.

topic_log         the records of a topic, its front, and the runs that a read goes through: what the parts below share
losses            what a topic lost: holes, floors and their causes, and what is missed in a gap
topic_tags        the tags of live records, as far as memory knows them, and clearing away those of gone ones
stored_spans      which records are in segments, and how raw ones get there
record_index      where each record is: spans, in order
span              slots with contiguous seqs, their columns and their summary
missing_columns   which columns a call is going to need
retention         what caps and ttl let a topic keep
frame_ranges      the reads that fetch a run of records
dumped_spans      the stored spans in a dump, made complete with what is being stored
dumped_values     numbers and arrays as dumps hold them
tag_index         which records have which tag
tag_match         selecting records by tag
block             the JSON of a run of records, encoded once for all readers
copies            what routers made the copies in a topic of
dedupe_window     the idempotency keys that a topic remembers
stages            whose a stage is, and which commits are remembered
topic_config      a topic's configuration: patches and stored form
names             which names clients may choose
"""
