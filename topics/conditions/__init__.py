"""Conditions of appends and commits, and the fences of a topic (`docs/spec/consumers.md` section 1). Pure.

fences    the highest token seen under each name
verdict   whether conditions hold, given a topic's head, tags and fences

`topics.engine.operations.judge` finds out which seqs, tags and fences a topic has, published or not.
"""
