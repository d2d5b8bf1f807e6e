"""One topic in memory: its records, what is gone, and what a reader is told of it. Pure: no tasks, no files, no clock.

topic_log       the records of a topic, its floors and holes, and the runs that a read goes through
record_index    where each record is: columns in spans
tag_index       which records have which tag
tag_match       selecting records by tag
block           the JSON of a run of records, encoded once for all readers
copies          what routers made the copies in a topic of
dedupe_window   the idempotency keys that a topic remembers
stages          whose a stage is, and which commits are remembered
topic_config    a topic's configuration: patches and stored form
names           which names clients may choose
"""
