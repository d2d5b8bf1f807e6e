"""The meaning, the range and the unit of each field of bodies and answers.

Names, types, defaults, and which fields are required follow from the types (`topics.model`, `answer_types` and the
modules of `topics.http.requests`). A test fails for a field without a fact.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import fields

from topics.conditions.fences import MAX_FENCES, MAX_NAME_BYTES
from topics.config import SETTINGS
from topics.engine.delivery.prefix_wishes import MOST_PREFIXES
from topics.http import answer_types
from topics.http.requests import (
    append_requests,
    condition_requests,
    consumer_requests,
    queue_requests,
    raw_appends,
    read_requests,
    topic_requests,
    transaction_requests,
    watch_requests,
)
from topics.log.names import ROUTER_NAME, TOPIC_NAME
from topics.log.topic_config import MAX_IDEMPOTENCY_WINDOW_MS, MAX_LEASE_MS, MIN_LEASE_MS, RANGES, SEGMENT_LIMITS
from topics.model import (
    MAX_U64,
    ClaimRate,
    ConsumerState,
    DeleteRequest,
    Fence,
    MovedConsumer,
    Performance,
    QueueState,
    RecordIn,
    RetryPolicy,
    RouterPatch,
    RouterState,
    Tombstone,
    TopicConfig,
    TopicConfigPatch,
    TopicState,
    TopicSummary,
    WatchedTopic,
    WatchStart,
)
from topics.queue.job_pages import DEFAULT_PRIORITY, MOST_PRIORITY
from topics.queue.last_errors import MAX_ERROR_BYTES
from topics.runtime.instant import MAX_AHEAD_MS


class Fact(NamedTuple):
    """The meaning of a field, and additions to its schema."""

    text: str
    schema: Mapping[str, Any] = {}


U64: Final[Mapping[str, Any]] = {"minimum": 0, "maximum": MAX_U64}
NOT_EMPTY: Final[Mapping[str, Any]] = {"minLength": 1}
TOPIC: Final[Mapping[str, Any]] = {"pattern": f"^{TOPIC_NAME.pattern}$"}
ROUTER: Final[Mapping[str, Any]] = {"pattern": f"^{ROUTER_NAME.pattern}$"}
_SEQS: Final[Mapping[str, Any]] = {"items": {"type": "integer", **U64}}

_MATCH_TEXT: Final = (
    '`["tag","Eq","x"]`, `["tag","Glob","x*"]` (a literal prefix and one final `*`), or a bare string, which means '
    "`Eq`. Records without a tag never match."
)
FILTER: Final = Fact(
    "Only records that match this filter, such as "
    '`["And",["tag","Glob","eu:*"],["data","/total","Ge",10]]` (docs, filters); null for all.',
    {
        "anyOf": [
            {
                "type": "array",
                "prefixItems": [{"enum": ["tag", "node", "meta", "data", "And", "Or", "Not"]}],
                "minItems": 2,
            },
            {"type": "null"},
        ]
    },
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


def setting(name: str) -> str:
    """A setting and its default, as a sentence names them."""
    known = SETTINGS[name]
    return f"`{known.variable}` ({known.default})"


def _seq(text: str) -> Fact:
    return Fact(text, U64)


def _clamped(text: str, low: int, high: int) -> Fact:
    return Fact(f"{text} Clamped to {low}..{high}.")


def _from_config(text: str) -> str:
    return f"{text} Absent: as the topic is configured."


# --- by name, in any type --------------------------------------------------------------------------------------------

_ANYWHERE: Final[Mapping[str, Fact]] = {
    "topic": Fact("Name of the topic.", TOPIC),
    "router": Fact("Name of the router.", ROUTER),
    "stage": Fact("Name of the stage.", TOPIC),
    "fence": Fact("Name of the fence.", NOT_EMPTY),
    "consumer": Fact("Name of the consumer.", TOPIC),
    "committed_seq": _seq("The consumer has finished everything up to this seq."),
    "epoch": _seq("Identifies this instance of the topic, as opposed to earlier ones of the same name."),
    "head_seq": _seq("The last seq that was assigned; 0 if nothing was ever written."),
    "earliest_seq": _seq("The first live seq; `head_seq + 1` if nothing is live."),
    "next_seq": _seq("The seq of the next record: `head_seq + 1`."),
    "count": _seq("Live records."),
    "bytes": _seq("Live payload bytes: `data` and `meta` as stored."),
    "effective_priority": Fact("The present priority in delivery."),
    "created": Fact("True if this call created it."),
    "performance": Fact("The cost of the call."),
    "next_cursor": Fact("Present if another page exists: `cursor` of the next call."),
    "skipped": Fact("Seqs that are not leased to this node, or under another lease.", _SEQS),
    "ready": _seq("Jobs that can be claimed, after the call."),
    "in_flight": _seq("Leased jobs, after the call."),
    "node": Fact("The name of the caller.", NOT_EMPTY),
    "lag": _seq("How many seqs it is behind the head."),
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
    "ttl_ms": _seq("Older records expire; 0 is off."),
    "cap_records": _seq("Most live records; 0 is off."),
    "cap_bytes": _seq("Most live payload bytes; 0 is off."),
    "discard": Fact("On overflow evict the oldest (`old`), or refuse with `422 topic_full` (`reject`)."),
    "durable": Fact("Short for `durability`: true is `fsync`, false is `disk`. `durability` takes precedence."),
    "durability": Fact(
        "When an append is answered: at once, and the records are never written (`ephemeral`); before they are written "
        "(`memory`); when they are written (`disk`); when they are synced (`fsync`)."
    ),
    "priority": _clamped("Manual priority in delivery; null for none.", -1000, 1000),
    "auto_priority": Fact("Recent use sets the priority while `priority` is null."),
    "auto_create": Fact("False in the `config` of an append: a missing topic is 404 unless the body says `create`."),
    "idempotency_window_ms": Fact(
        "How long an idempotency key is remembered, at most 7 days.",
        {"minimum": 0, "maximum": MAX_IDEMPOTENCY_WINDOW_MS},
    ),
    "dedupe_node": Fact("Reads can leave out the records of a node."),
    "lease_ms": _clamped("Queues: how long a claimed job is leased.", MIN_LEASE_MS, MAX_LEASE_MS),
    "claim_jitter_ms": _clamped("Queues: how long claims are gathered before jobs are given out.", 0, 5000),
    "max_deliveries": _seq("Queues: deliveries after which a job is moved to `dead_letter`; 0 is unlimited."),
    "dead_letter": Fact("Queues: the topic that gets such jobs. Not this topic, and not `ephemeral`.", TOPIC),
    "leases_durable": Fact("Queues: lease events are synced before anybody sees them."),
    "retry": Fact("Queues: how long jobs are delayed that were given back or whose leases have ended; null for not."),
    "priority_aging_ms": _seq("Queues: a job counts as one priority higher for each such time it could be claimed."),
    "max_in_flight": _seq("Queues: most jobs that are leased at a time; 0 is unlimited."),
    "rate": Fact("Queues: most jobs that are claimed in any `per_ms`; null is unlimited."),
    "order_by": Fact(
        "Queues: of the jobs with one tag (or node) one is leased at a time, and none before those with a smaller seq "
        "are done or dead. Jobs without one are free; priorities are ignored. Null for no such order."
    ),
    "schema": Fact(
        "A JSON Schema (2020-12) for `data`, at most 64 KiB, or null. A record that breaks it is refused with `422 "
        "schema_violation`. It refers to nothing outside of itself.",
        {"type": ["object", "null"]},
    ),
    "segment_max_events": _limit("segment_max_events", "Records of a segment"),
    "segment_max_bytes": _limit("segment_max_bytes", "Bytes of a segment's records"),
    "segment_max_age_ms": _limit("segment_max_age_ms", "Age at which a segment is sealed; 0 is off"),
    "retention": Fact(
        "Logs: with `consumed`, records that all consumers and routers of the topic have passed are deleted, once "
        "there is a consumer."
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
    "forwarded_total": _seq("How many copies it has made."),
    "cursor_seq": _seq("The last seq of the source that it has examined."),
    "lag": _seq("How many seqs of the source it has not examined yet."),
}

_RECORD: Final[Mapping[str, Fact]] = {
    "$seq": _seq("The number of the record in the topic."),
    "$ts": _seq("When the record was stored, in ms since the epoch."),
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
}

_START: Final[Mapping[str, Fact]] = {
    "from_seq": _seq("Records after this seq."),
    "tail": Fact("Begin at the head; `from_seq` does not count then."),
    "filter": Fact("Only records of this topic that match this filter as well; null for all.", FILTER.schema),
}

_HELD: Final[Mapping[str, Fact]] = {
    "node": Fact("The node that has leased the jobs.", NOT_EMPTY),
    "seqs": Fact(
        f"The jobs, at most {setting('max_claim')}; one that is repeated counts once.", {**_SEQS, "minItems": 1}
    ),
    "lease_ids": Fact("The lease id for each seq. A job with another lease is skipped."),
    "delay_ms": _clamped(
        "When the jobs can be claimed again. Absent: as `retry` in the config of the topic says.", 0, MAX_AHEAD_MS
    ),
    "error": Fact(f"What went wrong, at most {MAX_ERROR_BYTES} bytes. It is kept as the last error of the jobs."),
    "count": Fact("False: this delivery does not count, and without `delay_ms` the jobs can be claimed at once."),
    "dead": Fact("The jobs are moved to `dead_letter` now, which the topic must have."),
    "lease_ms": _clamped("The leases end this long after the call.", MIN_LEASE_MS, MAX_LEASE_MS),
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
        "type": Fact("A log or a queue."),
        "synced_seq": _seq("The highest seq known to be on disk; 0 for `ephemeral`."),
        "config": Fact("The full configuration."),
        "last_write_ts": _seq("In ms since the epoch; null if never."),
        "last_read_ts": _seq("In ms since the epoch; null if never."),
        "queue": Fact("Queues: the counters as of now."),
        "fences": Fact(
            "If it has any: the highest token that was seen under each name.",
            {"additionalProperties": {"type": "integer", **U64}},
        ),
    },
    TopicSummary: {
        "type": Fact("A log or a queue."),
        "durable": Fact("True if appends wait for a sync."),
        "durability": Fact("The commit class."),
    },
    QueueState: {
        "ready": _seq("Jobs that can be claimed."),
        "in_flight": _seq("Leased jobs."),
        "delayed": _seq("Jobs that cannot be claimed yet."),
        "dead_lettered": _seq("Jobs that were moved to `dead_letter` over the life of the topic."),
        "paused": Fact("True while claims get no jobs because the queue is paused."),
        "paused_until": _seq("When the pause ends by itself, in ms since the epoch. Absent: it does not."),
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
    Tombstone: {
        "gap_from": _seq("First seq of the gap."),
        "gap_to": _seq("Last seq of the gap."),
        "reason": Fact("Why the records are gone. `recreated`: the topic was deleted and created again."),
        "missed_estimate": _seq("About how many records were in the gap."),
    },
    RecordIn: {
        "delay_ms": Fact("Queues: the job cannot be claimed before so long after the append, at most 10 years."),
        "not_before": Fact("Queues: the job cannot be claimed before (ms since the epoch, at most 10 years ahead)."),
        "priority": Fact(
            f"Queues: 0 to {MOST_PRIORITY}; jobs of a higher one are claimed first. Default {DEFAULT_PRIORITY}.",
            {"minimum": 0, "maximum": MOST_PRIORITY},
        ),
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
        "token": _seq("Larger for each new holder of what the fence protects."),
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
        "from_seq": Fact("Records after this seq. Not together with `consumer`.", {**U64, "default": 0}),
        "epoch": _seq("The instance that the reader knows. If the topic is another one, there is a tombstone."),
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
        "commit_seq": _seq("First note that everything up to this seq is finished; needs the scope write."),
        "generation": _seq("The generation under which the caller owns the consumer."),
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
        "from_seq": _seq("Records after this seq."),
        "to_seq": _seq("Up to this seq, inclusive. Absent: the head when the call is made."),
        "from_ts": _seq("Records of this time (ms since the epoch) or later."),
        "to_ts": _seq("Records of this time or earlier."),
        "match": Fact("Records with this tag; with a final `*`, with a tag that begins so.", NOT_EMPTY),
        "filter": FILTER,
        "node": Fact("Leave out records that these nodes wrote: a name or an array of names."),
        "include_tags": Fact("Records have their `$tag`. `1`, `0`, `true` or `false`."),
        "include_meta": Fact("Records have their `meta`. `1`, `0`, `true` or `false`."),
        "include_data": Fact("Records have their `data`. `1`, `0`, `true` or `false`."),
        "epoch": _seq("The instance that the reader knows. Another one is exported whole, after a tombstone."),
    },
    ConsumerState: {
        "last_commit_ts": Fact("When it was committed last, in ms since the epoch; null if never."),
        "owner": Fact("Who has acquired it; null if nobody has."),
        "generation": _seq("Of the present owner, or of the last one; 0 if there was none."),
        "deadline": Fact("When others may acquire it, in ms since the epoch; null without an owner."),
        "ttl_ms": _seq("It is deleted when it was unused for so long; 0 is off."),
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
        "ttl_ms": _seq("Delete it when it was unused for so long; 0 is off. Default on creation: `0`."),
    },
    consumer_requests.SeqPlace: {
        "seq": _seq("Behind this seq."),
        "ts": _seq("Before the first record of this time (ms since the epoch) or later."),
    },
    consumer_requests.CommitConsumerBody: {
        "seq": _seq("Everything up to this seq is finished. At most the head."),
        "generation": _seq("The generation under which the caller owns the consumer."),
        "epoch": _seq("The instance of the topic that is meant. Another one is `409 fenced`."),
    },
    consumer_requests.SeekConsumerBody: {
        "to": Fact("`earliest` or `tail`. Exactly one of `to`, `seq` and `ts` is given."),
        "seq": _seq("Behind this seq. At most the head."),
        "ts": _seq("Before the first record of this time (ms since the epoch) or later."),
        "generation": _seq("The generation under which the caller owns the consumer."),
        "epoch": _seq("The instance of the topic that is meant. Another one is `409 fenced`."),
    },
    consumer_requests.AcquireBody: {
        "owner": Fact(f"Who acquires it, at most {setting('max_node_bytes')} bytes.", NOT_EMPTY),
        "lease_ms": _clamped("How long nobody else may acquire it.", MIN_LEASE_MS, MAX_LEASE_MS),
    },
    consumer_requests.ReleaseBody: {"generation": _seq("The generation that ends.")},
    answer_types.ConsumerListAnswer: {"consumers": Fact("In the order of their names.")},
    answer_types.ConsumerDeletedAnswer: {"deleted": Fact("False if there was no such consumer.")},
    answer_types.AcquiredAnswer: {
        "generation": _seq("What commits, seeks and committing reads must have from now on."),
        "deadline": _seq("When others may acquire it, in ms since the epoch."),
    },
    answer_types.ReleasedAnswer: {"released": Fact("False if this generation did not own it.")},
    DeleteRequest: {
        "after_seq": _seq("Records with larger seqs."),
        "before_seq": _seq("Records with smaller seqs."),
        "before_ts": _seq("Records whose `$ts` is smaller (ms since the Unix epoch)."),
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
        "wait_ms": _clamped("Wait for a job this long if there is none.", 0, read_requests.MAX_WAIT_MS),
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
        "consistency": Fact("`strong`: a record is delivered once it is synced."),
    },
    WatchStart: _START,
    WatchedTopic: {"from_seq": _seq("Records after this seq will be delivered.")},
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
        "first_seq": _seq("Seq of the first record."),
        "last_seq": _seq("Seq of the last record."),
        "seqs": Fact("The seqs of all records, unless `return_seqs` is false.", _SEQS),
        "count": _seq("Records that this call stored; the first call's number if `deduped`."),
        "created": Fact("True if this call created the topic."),
        "deduped": Fact("True if this was a repeat, and nothing was stored."),
    },
    answer_types.IngestAnswer: {
        "first_seq": _seq("Seq of the first record."),
        "last_seq": _seq("Seq of the last record. Records of other writers may be in between."),
        "count": _seq("Records of the upload that are stored, including those of repeated batches."),
        "batches": _seq("Batches of the upload."),
        "deduped_batches": _seq("Batches that were repeats, and stored nothing."),
    },
    answer_types.TransactionMember: {
        "first_seq": _seq("Seq of the first record."),
        "last_seq": _seq("Seq of the last record."),
        "seqs": Fact("The seqs of all records.", _SEQS),
        "count": _seq("Records that were stored in this topic."),
        "created": Fact("True if this call created the topic."),
    },
    answer_types.TransactionAnswer: {
        "appends": Fact("What was stored in each topic, in the order of the request."),
        "deduped": Fact("True if this was a repeat, and nothing was stored."),
    },
    answer_types.StageAnswer: {"count": _seq("Records in the stage after the call.")},
    answer_types.CommitAnswer: {
        "first_seq": _seq("Seq of the first record."),
        "last_seq": _seq("Seq of the last record."),
        "count": _seq("Records that were published."),
        "deduped": Fact("True if this was a repeat, and nothing was published."),
    },
    answer_types.FenceDeletedAnswer: {"deleted": Fact("False if there was no such fence.")},
    answer_types.StageDeletedAnswer: {"deleted": Fact("False if there was no such stage.")},
    answer_types.ReadAnswer: {
        "records": Fact("In the order of their seqs."),
        "next_from_seq": _seq("The last seq that was examined: `from_seq` of the next read."),
        "caught_up": Fact("True if there are no more records. `records` may be empty although there are more."),
        "tombstone": Fact("A gap before these records, or null."),
    },
    answer_types.RecordsDeletedAnswer: {"deleted": _seq("Records that were deleted.")},
    answer_types.ClaimedJob: {
        "lease_id": Fact("Opaque. Identifies the lease in an ack, nack or extend.", {"pattern": "^lease_[0-9a-f]+$"}),
        "deadline": _seq("When the lease ends, in ms since the epoch."),
        "deliveries": _seq("How often the job was leased, including this time."),
    },
    answer_types.ClaimAnswer: {
        "claimed": Fact("The jobs, by their seqs, or in the order of their priorities if these differ."),
        "count": _seq("Jobs in `claimed`."),
        "paused": Fact("True if there are none because the queue is paused; otherwise absent."),
    },
    answer_types.PauseAnswer: {"queue": Fact("The counters after the call.")},
    queue_requests.PauseBody: {"until": _seq("When the pause ends (ms since the epoch). Absent: with `resume`.")},
    answer_types.AckAnswer: {"acked": _seq("Jobs that are done, and deleted.")},
    answer_types.NackAnswer: {"nacked": _seq("Jobs that were given back.")},
    answer_types.ExtendAnswer: {
        "extended": _seq("Leases that were extended."),
        "deadlines": Fact("When the extended leases end, in ms since the epoch, by seq."),
    },
    answer_types.WatchAnswer: {
        "wid": Fact("Name of the session. A client needs it, and the same key, to read the session."),
        "stream_url": Fact("Path of the session's stream."),
        "session_ttl_ms": _seq("How long the session lives without a stream."),
        "topics": Fact("The state of each topic, and where its events begin."),
    },
    answer_types.RouterListAnswer: {"routers": Fact("In the order of their names.")},
    answer_types.RouterDeletedAnswer: {"deleted": Fact("False if there was no such router.")},
    answer_types.RootAnswer: {
        "service": Fact("The name of the service."),
        "version": Fact("The version of the daemon."),
        "docs": Fact("Path of the description for people."),
        "openapi": Fact("Path of the description for programs."),
        "topics": Fact("Path of the list of topics."),
        "ready": Fact("Path of the readiness check."),
        "metrics": Fact("Path of the metrics."),
    },
    answer_types.HealthAnswer: {
        "status": Fact("The process answers."),
        "version": Fact("The version of the daemon."),
        "uptime_ms": _seq("Time since the start of the process."),
    },
    answer_types.ReadyAnswer: {
        "status": Fact("Requests are accepted."),
        "wal_replay_complete": Fact("Always true in this answer."),
        "topics": _seq("The number of topics."),
    },
    answer_types.CheckpointAnswer: {
        "files": Fact("Every file that the checkpoint names, relative to the data directory."),
        "position": Fact("Where replay begins, for each shard."),
    },
    answer_types.SealedAnswer: {"segments": _seq("The number of segments that the topic has now.")},
    answer_types.ShardPosition: {
        "shard": _seq("Number of the shard."),
        "file": _seq("Number of the WAL file."),
        "offset": _seq("Byte offset in that file."),
    },
    answer_types.Sample: {"labels": Fact("Values of the labels, by name."), "value": Fact("The present value.")},
}  # fmt: skip

_OF_DERIVED: Final[tuple[type[Struct], ...]] = (
    queue_requests.NackBody,
    queue_requests.ExtendBody,
    answer_types.TopicStateAnswer,
    answer_types.RouterAnswer,
    answer_types.ConsumerAnswer,
    answer_types.ConsumerMovedAnswer,
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
