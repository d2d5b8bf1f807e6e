"""Conditions of appends and commits, and the fences of a topic (`docs/spec/consumers.md` section 1). Pure.

fences    the highest token seen under each name
verdict   whether conditions hold, from what a topic has assigned

What a topic has assigned, published or not, is found by `topics.engine.operations.judge`.
"""
