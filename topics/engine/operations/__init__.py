"""Calls on topics, one module for each.

append            one append, from admission to its answer
append_attachment what a firing of a schedule adds to an append
transactions      appends to several topics, all or none
member_commits    the commits of the topics of a transaction
schema_checks     judging the records of an append by the schema of their topic
judge             the conditions of appends and commits
tag_search        the newest records with some tags, out of segment files
fence_removal     removing a fence
topic_seals       sealing the active segment of a topic
unique_jobs       which jobs of an append are duplicates, by their unique keys
new_jobs          what an append says about its jobs
large_batches     the frames and blocks of a large batch, encoded in pieces
read              one read, with or without waiting
backward_reads    the newest records below a seq
latest_reads      the newest records of tags
export            all records of a range, slice by slice
delete            deletions by seq and by tag
null_expiry       deleting records whose data is null, after their time
topic_lifecycle   creating, reconfiguring and deleting topics
stage_lifecycle   creating, filling and dropping stages
stage_leaves      the leaves of the records of stages, computed before they have their seqs
stage_commits     publishing the records of stages in their topic
"""
