"""The live daemon: the topics in memory, their commits on the way to disk, and what callers may ask of them.

engine             puts the parts below together, and decides what is ready; callers use the parts
topic_states       the state of a topic, and the list of them
engine_metrics     figures for whoever scrapes
restoration        what recovery has found becomes live topics
registry           which topics there are, and what they hold together
topic              a live topic, and `Commit`: a change on its way through its shard
commits            a decided change into its shard's queue
doubts             names whose last change has failed, so that only a restart tells what is there
ceilings           the seqs that a topic may give out before the next synced reserve
idempotency_keys   keys of appends over all topics
record_columns     the records of an append, column by column
loader             records and index columns that are not in memory
record_collector   the deliverable records after a position
job_queue          the jobs of one queue, its claimers and its streams
operations/        append, read, export, delete, topics and stages as a whole
queues/            claim, ack, nack, extend; dead letters
forwarding/        routers at work
delivery/          watch sessions and streams
"""
