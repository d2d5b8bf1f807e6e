"""From a data directory to topics in memory.

replay                reading snapshot, manifests and log; what a torn end is, and what damage
recovered_state       the result: topics, shards and damage
log_end               where a shard's log ends
verdicts              what recovery decides, and how the decision becomes durable
bare_fillers          fillers without a verdict, in ranges that are too short for one
salvage               giving up a damaged range
substitute_snapshot   manifests in the place of snapshots that cannot be read
restored_copy         a directory that is a copy of another
length_check          segment files that were cut short
leftovers             clearing away what an interrupted life has left
"""
