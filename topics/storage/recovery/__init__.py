"""From a data directory to topics in memory.

replay                one reading of everything: snapshot, manifests and log; the theory of operation
recovered_state       the result: topics, shards, and the columns that replay loads
stored_parts          topics as snapshots and manifests have them
log_layout            which files of the log count, shard by shard
shard_replay          one shard, file by file, the frames about it, and one batch about a topic
frame_batches         the frames of one file, as whole batches
topic_catalog         which topics exist, and which one a batch is about
topic_replay          what frames do to their topic
transaction_replay    transactions: which count, and what is kept back until that is known
schedule_replay       definitions and firings of schedules
copy_replay           copies, origins and routers
replay_clock          the two clocks, and leases as of one moment
log_end               where a shard's log ends: a torn end, or damage
damage                a report of damage: its place, the seqs and the frames that were there
lost_copies           copies whose bytes are missing
verdicts              what recovery decides, and how the decision becomes durable
bare_fillers          fillers without a verdict, in ranges that are too short for one
salvage               giving up a damaged range
substitute_snapshot   manifests in the place of snapshots that cannot be read
without_manifest      finding the files of a topic whose manifest cannot be read
restored_copy         a directory that is a copy of another
length_check          segment files that were cut short
leftovers             removing the files that an interrupted daemon has left
start_repairs         repairs from the bucket while the daemon starts
"""
