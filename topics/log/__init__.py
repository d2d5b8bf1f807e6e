"""One topic in memory: its records, which are deleted or lost, and what a reader is told of them. Pure: no tasks, no
files, no clock.

topic_log         the records of a topic, its head and floors, and the steps of a read; uses all of the parts below
topic_log_checks  the invariants of the whole
losses            what a topic lost: holes, floors, reasons, and what a reader has missed
topic_tags        the tags of live records, as far as memory knows them, and the removal of stale postings
stored_spans      which records are in segments, and how raw spans become stored ones
record_index      where each record is: spans, in order
span              slots with contiguous seqs, their columns and their summary
missing_columns   which columns must be loaded before a call
seq_ceiling       seqs that are reserved on disk ahead of the head
bucket_ceiling    seqs that are reserved in the bucket, for a daemon that takes over
retention         what caps and ttl let a topic keep
frame_ranges      the disk reads that fetch a run of records
shared_reads      reading many small ranges of bytes: neighbours share a read
dumped_spans      changes to the stored spans in a dump, while a checkpoint stores raw records
dumped_values     numbers and arrays as dumps hold them
tag_index         tag to seqs, ordered by name
tag_match         conditions on tags
tables/           the newest records of each tag, where a topic keeps only these
block             the JSON of a run of records, encoded once for all readers
copies            which record each copy of a router was made from
dedupe_window     the idempotency keys that a topic remembers
transaction_keys  the transactions that a topic remembers by their keys
stages            the target of a stage, and the commits of stages that a topic remembers
topic_config      a topic's configuration: patches and stored form
names             which names clients may choose
"""
