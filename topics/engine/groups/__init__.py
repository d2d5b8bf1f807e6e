"""Groups of a log (`docs/spec/consumers.md` section 4). `topics.groups` has their state. Their claims and acks are
those of queues (`topics.engine.queues`).

group_calls   making, changing, listing and deleting groups
"""
