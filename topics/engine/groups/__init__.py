"""Groups of a log (`docs/spec/consumers.md` section 4). What they hold and finish is in `topics.groups`, their claims
and acks are those of queues (`topics.engine.queues`).

group_calls   making, changing, listing and deleting groups
"""
