"""The live daemon: the topics in memory, their commits on the way to disk, and the calls that read or change them.

engine             puts the parts below together, and orders start and stop; callers use the parts
topic_states       the state of a topic, and the list of them
engine_metrics     figures for a scrape of the metrics
restoration        makes live topics of what recovery has found
restored_topics    deletes what a restore of some topics leaves out
registry           the live topics by name and id, their totals, and the clocks that they are judged by
topic_totals       what topics and commits keep over all topics
topic              a live topic, and `Commit`: a change on its way through its shard
foreseen           what a pending commit will do to the tags of its topic
transaction        a transaction until its end: its commits are published or undone together
commits            queues a decided change at its shard if that can take it, and bounds the waits of clients for changes
reach              whether a standby has got as far as a reader has
doubts             names whose last change has failed, so that only a restart tells its outcome
ceilings           the seqs that a topic may give out before the next synced reserve
idempotency_keys   keys of appends over all topics
record_columns     the records of an append, column by column
loader             loads records and index columns that are not in memory
cold_pace          how much of the loop readers of cold records get
record_collector   the deliverable records after a position
filtered_records   records as filters ask about them, and where the tag index says that they may be
job_queue          the jobs of one queue, its claimers and its streams
group_queue        the groups of one topic, each of them such a queue
operations/        append, read, export, delete, topics and stages as a whole
job_parts          puts the parts about jobs together, for the engine
queues/            claim, ack, nack, extend; dead letters
redrives/          dead letters back to the queues and groups that they came from
groups/            groups of a log: making, changing, listing, deleting them
consumers/         named consumers: their calls, and reads at their positions
tables/            topics that keep the newest records of each tag
schedules/         records that are appended by the clock
evidence/          Merkle trees: checkpoints and proofs
forwarding/        routers at work
standby/           the topics of a standby, which follow the log of another daemon
delivery/          watch sessions and streams
"""
