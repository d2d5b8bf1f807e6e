"""The facts about the fields of the answers about the daemon itself, as in `field_facts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from topics.http import daemon_answers
from topics.http.openapi.fact import Fact, seq
from topics.model import TopicPlaces

_TOTALS: Final[Mapping[str, Fact]] = {
    "records_in": Fact("Records that became visible: appended, published from stages, copied by routers."),
    "bytes_in": Fact("Bytes of their data and meta."),
    "records_out": Fact("Records that were sent: read, delivered, exported, claimed."),
    "bytes_out": Fact("Bytes of their JSON."),
    "requests": Fact("Requests that were answered."),
    "wal_bytes": Fact("Bytes written to the log."),
    "syncs": Fact("Syncs of the log."),
}

FIGURE_FACTS: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    daemon_answers.KeyAnswer: {
        "key": Fact("The name of the key in logs, which does not reveal it; `none` without one."),
        "has_keys": Fact("The daemon has keys. Without, everybody may do everything."),
        "scopes": Fact("What the key may do: `read`, `write`, `delete`, `admin`."),
        "prefixes": Fact("Names that the key covers begin with one of these; empty for every name."),
    },
    TopicPlaces: {
        "evicted": seq("Seqs at the front that were lost to caps, age or a crash."),
        "deleted": seq("Seqs at the front, above those, that were deleted."),
        "between": seq("Seqs that were deleted or lost between live ones, and at the end."),
        "cold": seq("Live records in segments in the cold directory or the bucket."),
        "hot": seq("Live records in segments in the data directory."),
        "log": seq("Live records that are in no segment yet."),
        "memory": seq("Records whose bytes are in memory."),
        "segments": seq("Segments of the topic."),
    },
    daemon_answers.FilterAnswer: {"filter": Fact("The filter, as other calls take it.")},
    daemon_answers.Rates: {"seconds": Fact("Over how many seconds.", {"minimum": 0}), **_TOTALS},
    daemon_answers.TotalFigures: _TOTALS,
    daemon_answers.Latency: {
        "count": seq("How many there were."),
        "p50_ms": Fact("Half of them took no longer (ms)."),
        "p99_ms": Fact("99 % of them took no longer (ms)."),
    },
    daemon_answers.Latencies: {
        "append": Fact("Appends of JSON over HTTP, from the first byte of the request to the answer."),
        "delivery": Fact("How long a topic with news waited before its watchers were served."),
        "commit": Fact(
            "From the decision of a change to its commit point: waiting, writing and, if it needs one, a sync."
        ),
        "sync": Fact("Syncs of the log."),
    },
    daemon_answers.PressureFigures: {
        "value": Fact("How pressed the daemon is, 0 to 1."),
        "coalesce_ms": Fact("How long records of a topic are gathered into one frame (ms)."),
        "commit_window_ms": Fact("How long commits gather before they are written (ms)."),
        "lowest_paused": Fact("Topics of negative priority get nothing."),
        "routers_lowered": Fact("Routers are one band lower."),
        "saturated": Fact("A full queue refuses at once."),
    },
    daemon_answers.ConnectionCounts: {
        "open": seq("Open connections."),
        "streams": seq("Open event streams."),
        "sockets": seq("Open WebSockets."),
        "sessions": seq("Watch sessions, with and without a stream."),
    },
    daemon_answers.MemoryFigures: {
        "resident_bytes": seq("Memory of the process; 0 if the system does not tell."),
        "cache_bytes": seq("Records in memory that are also in files."),
        "pinned_bytes": seq("Records in memory that are in no file, or not yet."),
        "cache_limit_bytes": seq("The most that `cache_bytes` may be."),
    },
    daemon_answers.DiskFigures: {
        "free_bytes": Fact("Free room on the disk of the data directory; null if it is not known."),
        "min_free_bytes": seq("Below that appends are refused."),
        "shortage": Fact("Why appends are refused; null if they are not."),
    },
    daemon_answers.LaggingRouter: {
        "router": Fact("The router."),
        "lag": seq("Records of its source that it has not looked at yet."),
    },
    daemon_answers.BucketFiguresAnswer: {
        "problem": Fact("Why it is not working; empty if it is."),
        "rounds": seq("Rounds written since the start."),
        "round_bytes": seq("Bytes of these rounds as they are stored."),
        "base_is_due": Fact("Something has changed since the newest base."),
        "bases": seq("Bases made since the start."),
        "bases_failed": seq("Bases that have failed since the start."),
        "calls_hanging": seq("Calls of the bucket that do not return."),
        "repairs_waiting": seq("Damaged segments that wait for the bucket."),
    },
    daemon_answers.FiguresAnswer: {
        "ts": seq("When the figures were taken (ms since the epoch)."),
        "version": Fact("The version of the daemon."),
        "uptime_ms": seq("Time since the start of the process."),
        "phase": Fact("`ready` if requests are accepted."),
        "replay_progress": Fact("How much of the log is replayed, 0 to 1."),
        "read_only": Fact("A shard has failed or the disk is nearly full: some or all appends are refused."),
        "topics": seq("Topics."),
        "records": seq("Live records."),
        "bytes": seq("Live payload bytes."),
        "routers": seq("Routers."),
        "consumers": seq("Named consumers."),
        "groups": seq("Groups."),
        "schedules": seq("Schedules."),
        "redrives": seq("Redrives that are running."),
        "results_waiting": seq("Results of jobs that wait to be delivered."),
        "rates": Fact("Per second, over the last seconds; null in the first second."),
        "latencies": Fact("Times of the last seconds; null where nothing happened."),
        "totals": Fact("Counts since the start."),
        "pressure": Fact("How pressed the daemon is."),
        "queue_depth": seq("Commits that wait to be written."),
        "failed_shards": seq("Shards that failed and take no writes."),
        "connections": Fact("Open connections."),
        "memory": Fact("Memory."),
        "disk": Fact("The disk of the data directory."),
        "lagging_routers": Fact("The routers that lag most, of those that the key covers."),
        "salvaged": Fact("The last start found damage, and went on without what is lost."),
        "cold_usable": Fact("The cold directory is this daemon's, or there is none."),
        "bucket": Fact("The archive in the bucket; only with one."),
        "standby": Fact("How far a standby has followed its owner; only on one."),
    },
    daemon_answers.StandbyFiguresAnswer: {
        "problem": Fact("Why it waits; empty if it does not."),
    },
    daemon_answers.ShardState: {
        "shard": seq("Number of the shard."),
        "read_only": Fact("It has failed, and takes no writes."),
        "queue_depth": seq("Commits that wait to be written."),
        "frames": seq("Frames written."),
        "batches": seq("Batches of frames written."),
        "bytes": seq("Bytes written."),
        "syncs": seq("Syncs."),
        "rotations": seq("Files begun."),
        "sync_p99_ms": Fact("99 % of its syncs took no longer (ms); null if there were none."),
    },
    daemon_answers.TierState: {
        "tier": Fact("`hot`: the data directory; `cold`: the cold directory or the bucket."),
        "segments": seq("Segments in it."),
        "seqs": seq("Seqs that they cover."),
        "bytes": seq("Bytes of their records."),
    },
    daemon_answers.CheckpointState: {
        "taken": seq("Checkpoints that succeeded."),
        "failed": seq("Checkpoints that failed."),
        "age_ms": Fact("How long ago the last one ended; null if there was none."),
        "took_ms": Fact("How long it took (ms); null if there was none."),
        "error": Fact("Why the last one has failed; null if it has not."),
        "interval_ms": seq("How often one is taken while there are writes."),
        "changed_topics": seq("Topics that have changed since they were stored."),
    },
    daemon_answers.ReclaimState: {
        "topics_waiting": seq("Topics that the reclaimer has to look at."),
        "interval_ms": seq("How often it looks."),
    },
    daemon_answers.StorageAnswer: {
        "shards": Fact("The log, by shard; counts are since the start."),
        "tiers": Fact("The segments, by tier."),
        "checkpoints": Fact("The checkpoints since the start."),
        "reclaim": Fact("Bytes of deleted records that are to be freed."),
        "cold": Fact("Where old segments go."),
        "cold_usable": Fact("The cold directory is this daemon's, or there is none."),
        "bucket": Fact("The archive in the bucket; only with one."),
        "replicas": Fact(
            "Who has the bucket: its owner, and the standbys that have told of themselves there in the last hour. Only "
            "with a bucket; null until it was read, which a call has done."
        ),
    },
    daemon_answers.ReplicaState: {
        "role": Fact("What the daemon is."),
        "node": Fact("The name of its machine."),
        "url": Fact("Where it answers; may be empty."),
        "is_this": Fact("It is the daemon that answers."),
        "state": Fact(
            "An owner `owns` the bucket, or has `stopped`; a standby is `opening`, `following`, `waiting` for the "
            "bucket or its disk, or `silent` because it was not heard for 30 s."
        ),
        "epoch": seq("Of the owner; of a standby that of the last round which it has applied."),
        "round": Fact("The last round that a standby has applied; null of an owner."),
        "at": Fact("When its cut was taken (ms since the epoch): the time of what a standby shows."),
        "lag_ms": Fact("How old what a standby shows may be, as it has said (ms)."),
        "heard_ms": Fact("How long ago a standby has said so (ms). It does every 30 s."),
    },
    daemon_answers.ConnectionState: {
        "id": seq("Its number, in the order of opening."),
        "kind": Fact(
            "`stream` of one topic, `watch` of a session, `socket` (WebSocket), `work` (stream of jobs), or `export`."
        ),
        "key": Fact("The name of its key in logs; `none` without keys."),
        "peer": Fact("The address of the client."),
        "since": seq("When it was opened (ms since the epoch)."),
        "topics": Fact("Its topics and prefixes, the first ten."),
        "topics_total": seq("How many it has."),
        "lag": seq("Seqs of its topics that it has not got yet; of `work` the jobs that are ready."),
        "waiting_bytes": seq("Bytes that wait to be sent on it."),
    },
    daemon_answers.KeyUse: {
        "key": Fact("The name of the key in logs."),
        "scopes": Fact("What it may do."),
        "prefixes": Fact("Names that it covers begin with one of these; empty for every name."),
        "requests": seq("Requests in progress."),
        "connections": seq("Open streams and sockets."),
        "sessions": seq("Watch sessions."),
    },
    daemon_answers.KeyLimits: {
        "requests": seq("Requests in progress."),
        "connections": seq("Open streams and sockets."),
        "sessions": seq("Watch sessions."),
        "requests_per_s": seq("Requests in a second."),
        "bytes_per_s": seq("Bytes of bodies and answers in a second."),
    },
    daemon_answers.ConnectionListAnswer: {
        "connections": Fact("In the order in which they were opened."),
        "total": seq("How many are open."),
        "keys": Fact("Every key; empty without keys."),
        "limits": Fact("The limits of each key; 0 is off."),
    },
}
