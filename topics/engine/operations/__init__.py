"""Calls on topics, one module for each.

append            one append, from admission to its answer
large_batches     the frames and blocks of a large batch, encoded in pieces
read              one read, with or without waiting
export            all records of a range, slice by slice
delete            deletions by seq and by tag
topic_lifecycle   creating, reconfiguring and deleting topics
stage_lifecycle   creating, filling and dropping stages
stage_commits     publishing the records of stages in their topic
"""
