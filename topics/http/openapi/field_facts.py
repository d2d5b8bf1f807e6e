"""The meaning, the range and the unit of each field of bodies and answers.

Names, types, defaults, and which fields are required follow from the types (`topics.model`, `answer_types` and the
modules of `topics.http.requests`). A test fails for a field without a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields

from topics.conditions.fences import MAX_FENCES, MAX_NAME_BYTES
from topics.engine.delivery.prefix_wishes import MOST_PREFIXES
from topics.groups.group_events import MAX_UNFINISHED
from topics.http import answer_types
from topics.http.openapi.daemon_facts import DAEMON_FACTS
from topics.http.openapi.evidence_facts import EVIDENCE_FACTS
from topics.http.openapi.fact import FILTER, NOT_EMPTY, ROUTER, TOPIC, U64, Fact, clamped, seq, setting
from topics.http.openapi.figure_facts import FIGURE_FACTS
from topics.http.openapi.job_facts import JOB_FACTS, OF_DERIVED_JOBS
from topics.http.openapi.latest_facts import LATEST_FACTS
from topics.http.requests import (
    append_requests,
    condition_requests,
    consumer_requests,
    group_requests,
    job_fields,
    queue_requests,
    raw_appends,
    read_requests,
    schedule_requests,
    topic_requests,
    transaction_requests,
    watch_requests,
)
from topics.log.topic_config import MAX_IDEMPOTENCY_WINDOW_MS, MAX_LEASE_MS, MIN_LEASE_MS, RANGES, SEGMENT_LIMITS
from topics.model import (
    ClaimRate,
    ConsumerState,
    DeleteRequest,
    Fence,
    GroupState,
    KeyLimitConfig,
    MovedConsumer,
    Performance,
    QueueState,
    RecordIn,
    RetryPolicy,
    RouterPatch,
    RouterState,
    ScheduleError,
    ScheduleState,
    Tombstone,
    TopicConfig,
    TopicConfigPatch,
    TopicState,
    TopicSummary,
    UniqueIn,
    WatchedTopic,
    WatchStart,
)
from topics.queue.job_pages import DEFAULT_PRIORITY, MOST_PRIORITY
from topics.queue.last_errors import MAX_ERROR_BYTES
from topics.runtime.instant import MAX_AHEAD_MS
from topics.schedules.timetable import MAX_CRON

_SEQS: Final[Mapping[str, Any]] = {"items": {"type": "integer", **U64}}

_MATCH_TEXT: Final = (
    '`["tag","Eq","x"]`, `["tag","Glob","x*"]` (a literal prefix and one final `*`), or a bare string, which means '
    "`Eq`. Records without a tag never match."
)

_MATCH: Final[Mapping[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Eq"}, {"type": "string"}],
            "minItems": 3,
            "maxItems": 3,
        },
        {
            "type": "array",
            "prefixItems": [{"const": "tag"}, {"const": "Glob"}, {"type": "string", "pattern": r"\*$"}],
            "minItems": 3,
            "maxItems": 3,
        },
    ]
}


def _from_config(text: str) -> str:
    return f"{text} Absent: as the topic is configured."


# --- by name, in any type --------------------------------------------------------------------------------------------

_ANYWHERE: Final[Mapping[str, Fact]] = {
    "topic": Fact("Name of the topic.", TOPIC),
    "router": Fact("Name of the router.", ROUTER),
    "stage": Fact("Name of the stage.", TOPIC),
    "fence": Fact("Name of the fence.", NOT_EMPTY),
    "consumer": Fact("Name of the consumer.", TOPIC),
    "schedule": Fact("Name of the schedule.", TOPIC),
    "group": Fact("Name of the group.", TOPIC),
    "missed": seq("Records that were lost (caps, ttl, holes) before the group had finished them."),
    "committed_seq": seq("The consumer has finished everything up to this seq."),
    "epoch": seq("Identifies this instance of the topic, as opposed to earlier ones of the same name."),
    "head_seq": seq("The last seq that was assigned; 0 if nothing was ever written."),
    "earliest_seq": seq("The first live seq; `head_seq + 1` if nothing is live."),
    "next_seq": seq("The seq of the next record: `head_seq + 1`."),
    "count": seq("Live records."),
    "bytes": seq("Live payload bytes: `data` and `meta` as stored."),
    "effective_priority": Fact("The present priority in delivery."),
    "created": Fact("True if this call created it."),
    "performance": Fact("The cost of the call."),
    "next_cursor": Fact("Present if another page exists: `cursor` of the next call."),
    "skipped": Fact("Seqs that are not leased to this node, or under another lease.", _SEQS),
    "ready": seq("Jobs that can be claimed, after the call."),
    "in_flight": seq("Leased jobs, after the call."),
    "node": Fact("The name of the caller.", NOT_EMPTY),
    "lag": seq("How many seqs it is behind the head."),
}

# --- by type ---------------------------------------------------------------------------------------------------------


def _between(text: str, field: str, part: str) -> Fact:
    low, high = RANGES[field][part]
    return Fact(text, {"minimum": low, "maximum": high})


def _limit(name: str, text: str) -> Fact:
    """A limit of segments, for which null takes the setting of the daemon."""
    low, high = SEGMENT_LIMITS[name]
    null = f"null for `TOPICS_{name.upper()}`."
    return Fact(f"{text}; {null}", {"anyOf": [{"type": "integer", "minimum": low, "maximum": high}, {"type": "null"}]})


_CONFIG: Final[Mapping[str, Fact]] = {
    "type": Fact("A log, or a queue whose records are jobs. It cannot be changed later."),
    "ttl_ms": seq("Older records expire; 0 is off."),
    "cap_records": seq("Most live records; 0 is off."),
    "cap_bytes": seq("Most live payload bytes; 0 is off."),
    "discard": Fact("On overflow evict the oldest (`old`), or refuse with `422 topic_full` (`reject`)."),
    "durable": Fact("Short for `durability`: true is `fsync`, false is `disk`. `durability` takes precedence."),
    "durability": Fact(
        "When an append is answered: at once, and the records are never written (`ephemeral`); before they are written "
        "(`memory`); when they are written (`disk`); when they are synced (`fsync`); when they are in the bucket, too "
        "(`remote`, which needs one)."
    ),
    "priority": clamped("Manual priority in delivery; null for none.", -1000, 1000),
    "auto_priority": Fact("Recent use sets the priority while `priority` is null."),
    "auto_create": Fact("False in the `config` of an append: a missing topic is 404 unless the body says `create`."),
    "idempotency_window_ms": Fact(
        "How long an idempotency key is remembered, at most 7 days.",
        {"minimum": 0, "maximum": MAX_IDEMPOTENCY_WINDOW_MS},
    ),
    "dedupe_node": Fact("Reads can leave out the records of a node."),
    "lease_ms": clamped("Queues: how long a claimed job is leased.", MIN_LEASE_MS, MAX_LEASE_MS),
    "claim_jitter_ms": clamped("Queues: how long claims are gathered before jobs are given out.", 0, 5000),
    "max_deliveries": seq("Queues: deliveries after which a job is moved to `dead_letter`; 0 is unlimited."),
    "dead_letter": Fact("Queues: the topic that gets such jobs. Not this topic, and not `ephemeral`.", TOPIC),
    "completed": Fact(
        "Queues: the topic to which the results of acked jobs are delivered, `{topic, job_seq, node, result}` each. "
        "Not this topic, and not `ephemeral`. Null: acks have no results.",
        TOPIC,
    ),
    "leases_durable": Fact("Queues: lease events are synced before anybody sees them."),
    "retry": Fact("Queues: how long jobs are delayed that were given back or whose leases have ended; null for not."),
    "priority_aging_ms": seq("Queues: a job counts as one priority higher for each such time it could be claimed."),
    "max_in_flight": seq("Queues: most jobs that are leased at a time; 0 is unlimited."),
    "rate": Fact("Queues: most jobs that are claimed in any `per_ms`; null is unlimited."),
    "order_by": Fact(
        "Queues: of the jobs with one tag (or node) one is leased at a time, and none before those with a smaller seq "
        "are done or dead. Jobs without one are free; priorities are ignored. Null for no such order."
    ),
    "max_in_flight_per_key": Fact(
        "Queues: most jobs with one tag (or node) that are leased at a time; jobs without one are not counted. Null is "
        "unlimited; not together with `order_by`."
    ),
    "schema": Fact(
        "A JSON Schema (2020-12) for `data`, at most 64 KiB, or null. A record that breaks it is refused with `422 "
        "schema_violation`. It refers to nothing outside of itself.",
        {"type": ["object", "null"]},
    ),
    "segment_max_events": _limit("segment_max_events", "Records of a segment"),
    "segment_max_bytes": _limit("segment_max_bytes", "Bytes of a segment's records"),
    "evidence": Fact(
        "Keep a Merkle tree, which proves that nothing was rewritten. Only `fsync` and `remote`; never switched off."
    ),
    "segment_max_age_ms": _limit("segment_max_age_ms", "Age at which a segment is sealed; 0 is off"),
    "compression": Fact("How sealed segments are compressed; null for the daemon's setting."),
    "keep_per_tag": seq("Logs: only the newest so many records of each tag are kept; 0 is off."),
    "null_ttl_ms": seq("With `keep_per_tag`: how long a record with a tag and `data: null` is kept; 0 is for ever."),
    "retention": Fact(
        "Logs: with `consumed`, records that all consumers, groups and routers of the topic have passed are deleted, "
        "once there is a consumer or a group."
    ),
}

_ROUTER_FIELDS: Final[Mapping[str, Fact]] = {
    "source": Fact("The topic that is read. It is created if it is missing.", TOPIC),
    "dest": Fact("The topic that gets the copies.", TOPIC),
    "preserve_node": Fact("Copies keep the node."),
    "preserve_tag": Fact("Copies keep the tag."),
    "create_dest": Fact("A missing `dest` is created."),
    "allow_cycle": Fact("The router may close a cycle, or share its `dest` with routers of other sources."),
    "guarantee": Fact(
        "`exactly_once`: if several routers lead to `dest`, it gets each record once. A single router never copies a "
        "record twice, with either value."
    ),
    "from": Fact("Where it begins when it is created: at the head of the source, or at the first live record."),
    "forwarded_total": seq("How many copies it has made."),
    "cursor_seq": seq("The last seq of the source that it has examined."),
    "lag": seq("How many seqs of the source it has not examined yet."),
}

_RECORD: Final[Mapping[str, Fact]] = {
    "$seq": seq("The number of the record in the topic."),
    "$ts": seq("When the record was stored, in ms since the epoch."),
    "$tag": Fact("The tag of the record, if it has one."),
    "$node": Fact("The node that wrote the record, if the append named one."),
    "data": Fact("The payload, byte for byte as it was written."),
    "meta": Fact("The meta of the record, if it has any."),
}

_WISHES: Final[Mapping[str, Fact]] = {
    "node": Fact("Leave out records that these nodes wrote: a name or an array of names."),
    "limit": Fact(f"Most records of one event; 0 means the default, clamped to {setting('max_limit')}.", U64),
    "max_batch_bytes": Fact(
        "Most bytes of one event, but at least one record; 0 means the default, clamped to "
        f"{read_requests.MAX_BATCH_BYTES}.",
        U64,
    ),
    "include_meta": Fact("Records have their `meta`."),
    "include_tags": Fact("Records have their `$tag`."),
    "include_data": Fact("Records have their `data`."),
    "filter": FILTER,
    "create": Fact("Wait for a topic that does not exist yet, instead of a 404. This does not create it."),
    "touch": Fact("Delivery counts as a use of the topics, which may set their priority."),
}

_START: Final[Mapping[str, Fact]] = {
    "from_seq": seq("Records after this seq."),
    "epoch": seq(
        "The instance of the topic that `from_seq` is of. A standby that does not know it yet waits for it, and then "
        "answers 503 `behind`; an owner does not look at it."
    ),
    "tail": Fact("Begin at the head; `from_seq` does not count then."),
    "filter": Fact("Only records of this topic that match this filter as well; null for all.", FILTER.schema),
}

_HELD: Final[Mapping[str, Fact]] = {
    "node": Fact("The node that has leased the jobs.", NOT_EMPTY),
    "seqs": Fact(
        f"The jobs, at most {setting('max_claim')}; one that is repeated counts once.", {**_SEQS, "minItems": 1}
    ),
    "lease_ids": Fact("The lease id for each seq. A job with another lease is skipped."),
    "results": Fact(
        f"What became of the jobs, any JSON for each seq, at most {setting('max_record_bytes')} bytes each. Only "
        "where the config names a topic for them (`completed`); absent, each result is null."
    ),
    "delay_ms": clamped(
        "When the jobs can be claimed again. Absent: as `retry` in the config of the topic says.", 0, MAX_AHEAD_MS
    ),
    "error": Fact(f"What went wrong, at most {MAX_ERROR_BYTES} bytes. It is kept as the last error of the jobs."),
    "count": Fact("False: this delivery does not count, and without `delay_ms` the jobs can be claimed at once."),
    "dead": Fact("The jobs are moved to `dead_letter` now, which the topic must have."),
    "lease_ms": clamped("The leases end this long after the call.", MIN_LEASE_MS, MAX_LEASE_MS),
}

_GROUP: Final[Mapping[str, Fact]] = {
    "filter": Fact(
        "The group is for records that match this filter (as in a diff); the others count as finished once they were "
        "looked at. Null for all.",
        FILTER.schema,
    ),
    "lease_ms": clamped("How long a claimed record is leased.", MIN_LEASE_MS, MAX_LEASE_MS),
    "claim_jitter_ms": clamped("How long claims are gathered before records are given out.", 0, 5000),
    "max_deliveries": seq("Deliveries after which a record is copied to `dead_letter` and finished; 0 is unlimited."),
    "dead_letter": Fact("The topic that gets such records. Not this topic, and not `ephemeral`.", TOPIC),
    "completed": Fact(
        "The topic to which the results of acks are delivered, `{topic, group, job_seq, node, result}` each. Not this "
        "topic, and not `ephemeral`. Null: acks have no results.",
        TOPIC,
    ),
    "leases_durable": Fact("Claims, nacks and extensions are synced before they are answered."),
    "retry": Fact("How long records are delayed that were given back or whose leases have ended; null for not."),
    "max_in_flight": seq("Most records that are leased at a time; 0 is unlimited."),
    "rate": Fact("Most records that are claimed in any `per_ms`; null is unlimited."),
    "order_by": Fact(
        "Of the records with one tag (or node) one is leased at a time, and none before those with a smaller seq are "
        "acked, dead or deleted. Records without one are free. Null for no such order."
    ),
    "max_in_flight_per_key": Fact(
        "Most records with one tag (or node) that are leased at a time; records without one are not counted. Null is "
        "unlimited; not together with `order_by`."
    ),
    "max_unfinished": Fact(
        "With so many records held and runs of finished ones above the floor, claims get nothing fresh. Default on "
        f"creation: `{MAX_UNFINISHED}`.",
        {"minimum": 1, "maximum": MAX_UNFINISHED},
    ),
}

_BY_TYPE: Final[Mapping[type[Struct], Mapping[str, Fact]]] = {
    TopicConfig: _CONFIG,
    TopicConfigPatch: _CONFIG,
    Performance: {
        "server_total_ms": Fact("From the first byte of the request to the answer."),
        "wal_append_ms": Fact("Writing to the log."),
        "fsync_ms": Fact("Waiting for a sync."),
        "throttle_wait_ms": Fact("Waiting under pressure."),
        "records_scanned": Fact("Records that were examined."),
        "cold_segments_read": Fact("Segments that were read from the cold directory."),
    },
    TopicState: {
        "places": Fact("Where its seqs are; only with `places=true`."),
        "type": Fact("A log or a queue."),
        "synced_seq": seq("The highest seq known to be on disk; 0 for `ephemeral`."),
        "bucket_seq": seq("The highest seq that is in the bucket; 0 for `ephemeral`. Absent without a bucket."),
        "config": Fact("The full configuration."),
        "last_write_ts": seq("In ms since the epoch; null if never."),
        "last_read_ts": seq("In ms since the epoch; null if never."),
        "queue": Fact("Queues: the counters as of now."),
        "fences": Fact(
            "If it has any: the highest token that was seen under each name.",
            {"additionalProperties": {"type": "integer", **U64}},
        ),
    },
    TopicSummary: {
        "queue": Fact("The counters of a queue, in a list with `type=queue`; otherwise absent."),
        "type": Fact("A log or a queue."),
        "durable": Fact("True if appends wait for a sync."),
        "durability": Fact("The commit class."),
    },
    QueueState: {
        "ready": seq("Jobs that can be claimed."),
        "in_flight": seq("Leased jobs."),
        "delayed": seq("Jobs that cannot be claimed yet."),
        "dead_lettered": seq("Jobs that were moved to `dead_letter` over the life of the topic."),
        "paused": Fact("True while claims get no jobs because the queue is paused."),
        "paused_until": seq("When the pause ends by itself, in ms since the epoch. Absent: it does not."),
    },
    RetryPolicy: {
        "backoff": Fact("The same delay each time (`fixed`), or twice as long each time (`exponential`)."),
        "delay_ms": _between("The delay after the first delivery.", "retry", "delay_ms"),
        "max_delay_ms": _between("The longest delay.", "retry", "max_delay_ms"),
        "jitter": _between("Each delay is shortened by up to this part of it, at random.", "retry", "jitter"),
    },
    ClaimRate: {
        "jobs": _between("Most jobs that are claimed in any `per_ms`.", "rate", "jobs"),
        "per_ms": _between("The time in which they are counted.", "rate", "per_ms"),
    },
    KeyLimitConfig: {
        "by": Fact("What is the key of a record."),
        "max": _between("Most jobs of one key that are leased at a time.", "max_in_flight_per_key", "max"),
    },
    Tombstone: {
        "gap_from": seq("First seq of the gap."),
        "gap_to": seq("Last seq of the gap."),
        "reason": Fact("Why the records are gone. `recreated`: the topic was deleted and created again."),
        "missed_estimate": seq("About how many records were in the gap."),
    },
    RecordIn: {
        "delay_ms": Fact("Queues: the job cannot be claimed before so long after the append, at most 10 years."),
        "not_before": Fact("Queues: the job cannot be claimed before (ms since the epoch, at most 10 years ahead)."),
        "priority": Fact(
            f"Queues: 0 to {MOST_PRIORITY}; jobs of a higher one are claimed first. Default {DEFAULT_PRIORITY}.",
            {"minimum": 0, "maximum": MOST_PRIORITY},
        ),
        "unique": Fact("Queues: nothing is stored if a job with this key is there."),
        "data": Fact("Any JSON value. It is never parsed, and read back byte for byte."),
        "tag": Fact(f"At most {setting('max_tag_bytes')} bytes.", NOT_EMPTY),
        "node": Fact(f"The name of the writer; at most {setting('max_node_bytes')} bytes.", NOT_EMPTY),
        "meta": Fact(
            f"Strings by key; at most {append_requests.MAX_META_KEYS} keys and {setting('max_meta_bytes')}. "
            "Keys that start "
            f"with `{append_requests.RESERVED_META_PREFIX}` are reserved.",
            {"maxProperties": append_requests.MAX_META_KEYS},
        ),
    },
    UniqueIn: {
        "key": Fact(
            f"1 to {job_fields.MAX_UNIQUE_KEY_BYTES} bytes.",
            {"minLength": 1, "maxLength": job_fields.MAX_UNIQUE_KEY_BYTES},
        ),
        "scope": Fact(
            "Which other job counts: one that waits to be claimed (`queued`), one that is neither acked nor dead "
            "(`unfinished`), or one that was appended within the last `window_ms`, even if it is gone (`window`)."
        ),
        "window_ms": Fact(
            "For `window`, and only for that: 1 ms to 7 days.",
            {"anyOf": [{"type": "integer", "minimum": 1, "maximum": job_fields.MAX_WINDOW_MS}, {"type": "null"}]},
        ),
    },
    condition_requests.ConditionFields: {
        "expected_head_seq": Fact(
            "The last assigned seq of the topic must be this; 0: nothing was ever written, or there is no topic.", U64
        ),
        "expected_tag_seqs": Fact(
            "The newest live record with each of these tags must have this seq; 0: there is none. At most "
            f"{condition_requests.MAX_TAGS} tags.",
            {
                "type": ["object", "null"],
                "additionalProperties": {"type": "integer", **U64},
                "maxProperties": condition_requests.MAX_TAGS,
            },
        ),
        "fence": Fact(
            "The token must be at least the highest that was seen under this name in the topic; a higher one becomes "
            f"it, as durably as the records. Not on `ephemeral`. At most {MAX_FENCES} names a topic."
        ),
    },
    Fence: {
        "name": Fact(f"At most {MAX_NAME_BYTES} bytes.", NOT_EMPTY),
        "token": seq("Larger for each new holder of what the fence protects."),
    },
    append_requests.AppendBody: {
        "records": Fact(f"At most {setting('max_batch_records')}; all are stored, or none.", {"minItems": 1}),
        "node": Fact("The node of records without one.", NOT_EMPTY),
        "idempotency_key": Fact(
            "A repeat within the topic's window appends nothing and gets the first call's seqs.",
            {"minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
        ),
        "create": Fact("Create the topic if it does not exist; if false, answer 404."),
        "config": Fact("Configuration of the topic if this call creates it. Needs the scope admin as well."),
        "disable_backpressure": Fact("Wait under pressure instead of being refused with 429."),
    },
    read_requests.ReadBody: {
        "before_seq": seq("Read backwards: the newest records below this seq, the newest first; a tombstone follows."),
        "touch": Fact("Count this as a use of the topic, which may set its priority."),
        "from_seq": Fact("Records after this seq. Not together with `consumer`.", {**U64, "default": 0}),
        "epoch": seq("The instance that the reader knows. If the topic is another one, there is a tombstone."),
        "limit": Fact(f"Most records; 0 means the default, clamped to {setting('max_limit')}.", U64),
        "node": Fact("Leave out records that these nodes wrote: a name or an array of names."),
        "filter": FILTER,
        "include_tags": Fact("Records have their `$tag`."),
        "include_meta": Fact("Records have their `meta`."),
        "wait_ms": Fact(f"Wait for a record this long if there is none. At most {read_requests.MAX_WAIT_MS}.", U64),
        "max_batch_bytes": Fact(
            "Most bytes, but at least one record; 0 means the default, clamped to "
            f"{read_requests.MAX_BATCH_BYTES}.",
            U64
        ),
        "consumer": Fact("Begin at the position of this consumer. `epoch` must then be that of the topic.", TOPIC),
        "commit_seq": seq("First note that everything up to this seq is finished; needs the scope write."),
        "generation": seq("The generation under which the caller owns the consumer."),
        "ack": Fact(
            "`before`: what is returned counts as finished before it is sent (at most once); needs the scope write."
        ),
    },
    append_requests.IngestQuery: {
        "node": Fact("NDJSON and raw bytes: the node of records without one.", NOT_EMPTY),
        "create": Fact("NDJSON and raw bytes: create the topic if it does not exist; if false, answer 404."),
        "disable_backpressure": Fact("NDJSON and raw bytes: wait under pressure instead of being refused with 429."),
        "stage": Fact("The stage that gets the records, until a commit publishes them.", TOPIC),
    },
    raw_appends.RawQuery: {
        "tag": Fact("Raw bytes: the tag of the record.", NOT_EMPTY),
        "meta": Fact("Raw bytes: the `meta` of the record, as JSON.", NOT_EMPTY),
        "idempotency_key": Fact(
            "Raw bytes: as in a body of JSON.", {"minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY}
        ),
        "expected_head_seq": Fact("Raw bytes: as in a body of JSON.", U64),
        "expected_tag_seqs": Fact("Raw bytes: as in a body of JSON, as JSON.", NOT_EMPTY),
        "fence": Fact("Raw bytes: as in a body of JSON, as JSON.", NOT_EMPTY),
    },
    transaction_requests.TransactionBody: {
        "appends": Fact(
            f"One for each topic, {transaction_requests.MIN_TOPICS} to {transaction_requests.MAX_TOPICS} of them; "
            "together within the limits of one append.",
            {"minItems": transaction_requests.MIN_TOPICS, "maxItems": transaction_requests.MAX_TOPICS},
        ),
        "idempotency_key": Fact(
            "A repeat within the window of the first topic appends nothing and gets the first call's seqs. Apart from "
            "the keys of appends.",
            {"minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
        ),
    },
    transaction_requests.TransactionAppend: {
        "records": Fact("All are stored, or none.", {"minItems": 1}),
        "node": Fact("The node of records without one.", NOT_EMPTY),
        "create": Fact("Create the topic if it does not exist; if false, answer 404."),
        "config": Fact("Configuration of the topic if this call creates it. Needs the scope admin as well."),
    },
    topic_requests.CommitBody: {
        "stages": Fact(
            f"The stages, in the order of publishing; at most {topic_requests.MAX_STAGES}, each once.",
            {"items": {"type": "string", **TOPIC}, "minItems": 1, "maxItems": topic_requests.MAX_STAGES},
        ),
        "idempotency_key": Fact(
            "A repeat within 7 days publishes nothing and gets the first call's seqs.",
            {"minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
        ),
    },
    read_requests.ExportQuery: {
        "from_seq": seq("Records after this seq."),
        "to_seq": seq("Up to this seq, inclusive. Absent: the head when the call is made."),
        "from_ts": seq("Records of this time (ms since the epoch) or later."),
        "to_ts": seq("Records of this time or earlier."),
        "match": Fact("Records with this tag; with a final `*`, with a tag that begins so.", NOT_EMPTY),
        "filter": FILTER,
        "node": Fact("Leave out records that these nodes wrote: a name or an array of names."),
        "include_tags": Fact("Records have their `$tag`. `1`, `0`, `true` or `false`."),
        "include_meta": Fact("Records have their `meta`. `1`, `0`, `true` or `false`."),
        "include_data": Fact("Records have their `data`. `1`, `0`, `true` or `false`."),
        "epoch": seq("The instance that the reader knows. Another one is exported whole, after a tombstone."),
    },
    ConsumerState: {
        "last_commit_ts": Fact("When it was committed last, in ms since the epoch; null if never."),
        "owner": Fact("Who has acquired it; null if nobody has."),
        "generation": seq("Of the present owner, or of the last one; 0 if there was none."),
        "deadline": Fact("When others may acquire it, in ms since the epoch; null without an owner."),
        "ttl_ms": seq("It is deleted when it was unused for so long; 0 is off."),
        "filter": Fact("Which records its reads return; null for all."),
    },
    MovedConsumer: {"moved": Fact("False if it was there, or further, already.")},
    consumer_requests.PutConsumerBody: {
        "from": Fact("Where a new consumer begins: `earliest`, `tail`, `{\"seq\": n}` behind n, or `{\"ts\": ms}`."),
        "filter": Fact(
            "Its reads return only records that match this filter (as in a diff); null for all. Reads that have begun "
            "keep the filter they have begun with.",
            FILTER.schema,
        ),
        "ttl_ms": seq("Delete it when it was unused for so long; 0 is off. Default on creation: `0`."),
    },
    consumer_requests.SeqPlace: {
        "seq": seq("Behind this seq."),
        "ts": seq("Before the first record of this time (ms since the epoch) or later."),
    },
    consumer_requests.CommitConsumerBody: {
        "seq": seq("Everything up to this seq is finished. At most the head."),
        "generation": seq("The generation under which the caller owns the consumer."),
        "epoch": seq("The instance of the topic that is meant. Another one is `409 fenced`."),
    },
    consumer_requests.SeekConsumerBody: {
        "to": Fact("`earliest` or `tail`. Exactly one of `to`, `seq` and `ts` is given."),
        "seq": seq("Behind this seq. At most the head."),
        "ts": seq("Before the first record of this time (ms since the epoch) or later."),
        "generation": seq("The generation under which the caller owns the consumer."),
        "epoch": seq("The instance of the topic that is meant. Another one is `409 fenced`."),
    },
    consumer_requests.AcquireBody: {
        "owner": Fact(f"Who acquires it, at most {setting('max_node_bytes')} bytes.", NOT_EMPTY),
        "lease_ms": clamped("How long nobody else may acquire it.", MIN_LEASE_MS, MAX_LEASE_MS),
    },
    consumer_requests.ReleaseBody: {"generation": seq("The generation that ends.")},
    ScheduleState: {
        "topic": Fact("Where it appends.", TOPIC),
        "record": Fact("What it appends, as in an append."),
        "cron": Fact("Minute, hour, day of month, month, day of week; null with `every_ms`."),
        "every_ms": Fact("Milliseconds between two firings; null with `cron`."),
        "time_zone": Fact("In which `cron` counts."),
        "catch_up": Fact("Which missed times fire late: `none`, `one` (the latest), or `all` (at most 1000)."),
        "paused": Fact("True if it fires nothing."),
        "created_ts": seq("When it was created, in ms since the epoch."),
        "next_ts": Fact("When it fires next, in ms since the epoch; in the past if that is late; null for never."),
        "last_ts": Fact("The time that it has fired for last, in ms since the epoch; null if none."),
        "last_error": Fact("Why the last firing was refused, since the last start; null if it was not."),
    },
    ScheduleError: {
        "code": Fact("As an append is refused."),
        "message": Fact("The reason."),
    },
    schedule_requests.PutScheduleBody: {
        "topic": Fact("Where to append. Not `ephemeral`.", TOPIC),
        "record": Fact("What to append, as in an append."),
        "cron": Fact(
            "Minute, hour, day of month, month, day of week. Exactly one of `cron` and `every_ms` is given.",
            {"maxLength": MAX_CRON},
        ),
        "every_ms": Fact(
            "Milliseconds between two firings, from the creation.",
            {"minimum": schedule_requests.MIN_EVERY_MS, "maximum": schedule_requests.MAX_EVERY_MS},
        ),
        "time_zone": Fact("In which `cron` counts: a name such as `Europe/Berlin`."),
        "catch_up": Fact(
            "Which missed times fire late: `none`; `one`, the latest; `all`, at most 1000."
        ),
        "paused": Fact("Fire nothing. Absent: as it is, and false on creation."),
    },
    answer_types.ScheduleListAnswer: {"schedules": Fact("In the order of their names.")},
    answer_types.ScheduleDeletedAnswer: {"deleted": Fact("False if there was no such schedule.")},
    answer_types.ScheduleRunAnswer: {"seq": seq("Of the record.")},
    GroupState: {
        **_GROUP,
        "floor": seq("Everything up to this seq is finished, or gone."),
        "lag": seq("`head_seq` minus `floor`."),
        "unfinished": seq("Records that it holds, and runs of finished ones above its floor: see `max_unfinished`."),
        "queue": Fact("The counters as of now. Records that were not looked at count as ready."),
        "filter": Fact("Which records it is for; null for all."),
    },
    group_requests.PutGroupBody: {
        **_GROUP,
        "from": Fact("Where a new group begins: `earliest`, `tail`, `{\"seq\": n}` behind n, or `{\"ts\": ms}`."),
    },
    answer_types.GroupListAnswer: {"groups": Fact("In the order of their names.")},
    answer_types.GroupDeletedAnswer: {"deleted": Fact("False if there was no such group.")},
    answer_types.ConsumerListAnswer: {"consumers": Fact("In the order of their names.")},
    answer_types.ConsumerDeletedAnswer: {"deleted": Fact("False if there was no such consumer.")},
    answer_types.AcquiredAnswer: {
        "generation": seq("What commits, seeks and committing reads must have from now on."),
        "deadline": seq("When others may acquire it, in ms since the epoch."),
    },
    answer_types.ReleasedAnswer: {"released": Fact("False if this generation did not own it.")},
    DeleteRequest: {
        "dry_run": Fact("Count the records, and delete none."),
        "after_seq": seq("Records with larger seqs."),
        "before_seq": seq("Records with smaller seqs."),
        "before_ts": seq("Records whose `$ts` is smaller (ms since the Unix epoch)."),
        "match": Fact(f"Records whose tag matches: {_MATCH_TEXT}", _MATCH),
    },
    RouterPatch: {
        **_ROUTER_FIELDS,
        "filter": Fact(
            f"Which records are copied: null for all, a filter (as in a diff), or a match: {_MATCH_TEXT}",
            {"anyOf": [{"type": "string"}, *FILTER.schema["anyOf"]]},
        ),
    },
    RouterState: {
        **_ROUTER_FIELDS,
        "filter": Fact("Which records are copied: a match with three elements, a filter, or null for all."),
    },
    queue_requests.ClaimBody: {
        "node": Fact("The node that claims. The jobs are leased to it.", NOT_EMPTY),
        "max": Fact(f"Most jobs, clamped to 1..{setting('max_claim')}."),
        "lease_ms": Fact(
            f"How long the jobs are leased, clamped to {MIN_LEASE_MS}..{MAX_LEASE_MS}. Absent: as the topic says."
        ),
        "wait_ms": clamped("Wait for a job this long if there is none.", 0, read_requests.MAX_WAIT_MS),
    },
    queue_requests.HeldBody: _HELD,
    watch_requests.FeedOptions: _WISHES,
    watch_requests.WatchBody: {
        "topics": Fact(
            f"Where to begin, by topic: 1 to {setting('max_watch_topics')} of them; none are needed with `prefixes`.",
            {
                "propertyNames": TOPIC,
                "additionalProperties": {"$ref": "#/components/schemas/WatchStart"},
            },
        ),
        "prefixes": Fact(
            f"Also the topics whose names begin so, at most {MOST_PREFIXES} prefixes; the empty one is that of all "
            "topics. The start is that of the topics that exist; those made later are added with all their records.",
            {
                "maxProperties": MOST_PREFIXES,
                "additionalProperties": {"$ref": "#/components/schemas/WatchStart"},
            },
        ),
        "heartbeat_ms": Fact(
            "A comment is sent after so long without an event. "
            f"Clamped to {watch_requests.MIN_HEARTBEAT_MS}..{watch_requests.MAX_HEARTBEAT_MS}.",
            U64,
        ),
        "consistency": Fact(
            "`strong`: a record is delivered once it is synced. `remote`: once it is in the bucket; 400 without one."
        ),
    },
    WatchStart: _START,
    WatchedTopic: {"from_seq": seq("Records after this seq will be delivered.")},
    answer_types.ErrorAnswer: {"error": Fact("What went wrong.")},
    answer_types.ErrorFacts: {
        "code": Fact("For programs; each has one status."),
        "message": Fact("For people; its wording may change."),
        "detail": Fact("Facts about it, by name."),
    },
    answer_types.TopicAnswer: {"config": Fact("The full configuration.")},
    answer_types.TopicListAnswer: {"topics": Fact("In the order of their names.")},
    answer_types.TopicDeletedAnswer: {
        "deleted": Fact("False if there was no such topic."),
        "routers_removed": Fact("Routers that were deleted with it."),
    },
    answer_types.Record: _RECORD,
    answer_types.AppendAnswer: {
        "first_seq": Fact("Seq of the first record that was stored; null if none was."),
        "last_seq": Fact("Seq of the last record that was stored; null if none was."),
        "seqs": Fact(
            "The seqs of all records, unless `return_seqs` is false; of a duplicate, that of the job that is there.",
            _SEQS,
        ),
        "duplicates": Fact(
            "The places (from 0) of the records that were not stored, because a job with their unique key is there. "
            "Absent if there are none."
        ),
        "count": seq("Records that this call stored; the first call's number if `deduped`."),
        "created": Fact("True if this call created the topic."),
        "deduped": Fact("True if this was a repeat, and nothing was stored."),
    },
    answer_types.IngestAnswer: {
        "first_seq": seq("Seq of the first record."),
        "last_seq": seq("Seq of the last record. Records of other writers may be in between."),
        "count": seq("Records of the upload that are stored, including those of repeated batches."),
        "batches": seq("Batches of the upload."),
        "deduped_batches": seq("Batches that were repeats, and stored nothing."),
    },
    answer_types.TransactionMember: {
        "first_seq": seq("Seq of the first record."),
        "last_seq": seq("Seq of the last record."),
        "seqs": Fact("The seqs of all records.", _SEQS),
        "count": seq("Records that were stored in this topic."),
        "created": Fact("True if this call created the topic."),
    },
    answer_types.TransactionAnswer: {
        "appends": Fact("What was stored in each topic, in the order of the request."),
        "deduped": Fact("True if this was a repeat, and nothing was stored."),
    },
    answer_types.StageAnswer: {"count": seq("Records in the stage after the call.")},
    answer_types.CommitAnswer: {
        "first_seq": seq("Seq of the first record."),
        "last_seq": seq("Seq of the last record."),
        "count": seq("Records that were published."),
        "deduped": Fact("True if this was a repeat, and nothing was published."),
    },
    answer_types.FenceDeletedAnswer: {"deleted": Fact("False if there was no such fence.")},
    answer_types.StageDeletedAnswer: {"deleted": Fact("False if there was no such stage.")},
    answer_types.ReadAnswer: {
        "records": Fact("In the order of their seqs."),
        "next_from_seq": seq("The last seq that was examined: `from_seq` of the next read."),
        "next_before_seq": seq("With `before_seq`: the `before_seq` of the next read."),
        "caught_up": Fact("True if there are no more records. `records` may be empty although there are more."),
        "tombstone": Fact("A gap before these records, or null."),
    },
    answer_types.RecordsDeletedAnswer: {
        "deleted": seq("Records that were deleted; with `dry_run` those that would be."),
        "dry_run": Fact("True if nothing was deleted; otherwise absent."),
    },
    answer_types.ClaimedJob: {
        "lease_id": Fact("Opaque. Identifies the lease in an ack, nack or extend.", {"pattern": "^lease_[0-9a-f]+$"}),
        "deadline": seq("When the lease ends, in ms since the epoch."),
        "deliveries": seq("How often the job was leased, including this time."),
        "last_error": Fact("The `error` of its last nack that had one."),
    },
    answer_types.ClaimAnswer: {
        "claimed": Fact("The jobs, by their seqs, or in the order of their priorities if these differ."),
        "count": seq("Jobs in `claimed`."),
        "paused": Fact("True if there are none because the queue is paused; otherwise absent."),
        "wants_results": Fact("True if the results of acks are delivered (`completed`); otherwise absent."),
    },
    answer_types.PauseAnswer: {"queue": Fact("The counters after the call.")},
    queue_requests.PauseBody: {"until": seq("When the pause ends (ms since the epoch). Absent: with `resume`.")},
    answer_types.AckAnswer: {"acked": seq("Jobs that are done, and deleted.")},
    answer_types.NackAnswer: {"nacked": seq("Jobs that were given back.")},
    answer_types.ExtendAnswer: {
        "extended": seq("Leases that were extended."),
        "deadlines": Fact("When the extended leases end, in ms since the epoch, by seq."),
    },
    answer_types.WatchAnswer: {
        "wid": Fact("Name of the session. A client needs it, and the same key, to read the session."),
        "stream_url": Fact("Path of the session's stream."),
        "session_ttl_ms": seq("How long the session lives without a stream."),
        "topics": Fact("The state of each topic, and where its events begin."),
    },
    answer_types.RouterListAnswer: {"routers": Fact("In the order of their names.")},
    answer_types.RouterDeletedAnswer: {"deleted": Fact("False if there was no such router.")},
    **EVIDENCE_FACTS,
    answer_types.SealedAnswer: {"segments": seq("The number of segments that the topic has now.")},
    answer_types.ShardPosition: {
        "shard": seq("Number of the shard."),
        "file": seq("Number of the WAL file."),
        "offset": seq("Byte offset in that file."),
    },
    **JOB_FACTS,
    **LATEST_FACTS,
    **DAEMON_FACTS,
    **FIGURE_FACTS,
    answer_types.Sample: {"labels": Fact("Values of the labels, by name."), "value": Fact("The present value.")},
}  # fmt: skip

_OF_DERIVED: Final[tuple[type[Struct], ...]] = (
    *OF_DERIVED_JOBS,
    answer_types.TopicStateAnswer,
    answer_types.RouterAnswer,
    answer_types.ConsumerAnswer,
    answer_types.ConsumerMovedAnswer,
    answer_types.ScheduleAnswer,
    answer_types.GroupAnswer,
)
DESCRIBED: Final[Mapping[str, type[Struct]]] = {kind.__name__: kind for kind in (*_BY_TYPE, *_OF_DERIVED)}
"""The types by their names in the description."""


def fact_of(kind: type[Struct], name: str) -> Fact | None:
    """The fact about a field: of its type, or of a type from which that derives, or of the name in any type. None if
    there is none."""
    for base in kind.__mro__:
        found = _BY_TYPE.get(base, {}).get(name)
        if found is not None:
            return found
    return _ANYWHERE.get(name)


def default_on_creation(name: str) -> Any:
    """The default of a field in the configuration of a new topic."""
    return next(field.default for field in fields(TopicConfig) if field.encode_name == name)
