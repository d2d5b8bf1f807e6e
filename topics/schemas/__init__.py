"""Schemas of topics: which `data` a topic accepts (`docs/spec/consumers.md` section 6). Pure.

schema_walk      the subschemas of a schema and their references; refuses keywords that are not supported
schema_cost      an upper bound for the work of judging a value, computed from the schema alone
record_schema    a schema that is ready for use, and judging records by it
"""
