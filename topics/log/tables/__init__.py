"""The table of a topic with `keep_per_tag`: the newest records of each tag. Pure.

kept_tags      the live records of each tag, and what an append takes away
bare_spans     gives back the memory of deleted slots that are in no file: overwritten records of `ephemeral` tables
null_records   the records whose data is null, and when they were appended
"""
