"""Schemas of topics: which `data` a topic takes (`docs/spec/consumers.md` section 6); pure.

schema_walk      the subschemas of a schema and how they refer to each other; what a schema may not have
schema_cost      how much work judging a value may be, found out from the schema alone
record_schema    a schema that is ready for use, and the judgement of records
"""
