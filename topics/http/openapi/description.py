"""The description of each call: its purpose, its parameters and its answers.

Parts of many calls are not repeated here, because `document` derives them from the table of routes: the names in paths,
the scopes of a key, and the failures that come with a body, a key, or the phase of the daemon. The types are those that
the code decodes and encodes with. Tests compare the description with real answers. `topics.http.openapi.strict_names`
takes the known query parameters from here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from topics.http import answer_types
from topics.http.openapi.daemon_operations import DAEMON_OPERATIONS
from topics.http.openapi.evidence_operations import EVIDENCE_OPERATIONS
from topics.http.openapi.fact import TOPIC, U64
from topics.http.openapi.job_operations import JOB_OPERATIONS
from topics.http.openapi.operation import (
    ARROW,
    CONSUMERS,
    DAEMON,
    HTML,
    JSON,
    LAST_EVENT_ID,
    LINES,
    LIVE,
    PAGE,
    PREFIX,
    PROMETHEUS,
    RECORDS,
    ROUTERS,
    TOPICS,
    WRITES,
    Answer,
    JsonBody,
    Operation,
    Parameter,
    boolean,
    events,
    ok,
    query_of,
)
from topics.http.requests import (
    append_requests,
    consumer_requests,
    latest_requests,
    raw_appends,
    read_requests,
    topic_requests,
    transaction_requests,
    watch_requests,
)
from topics.http.requests.line_batches import BATCH_RECORDS
from topics.model import DeleteRequest, RouterPatch, TopicConfigPatch, WatchStart
from topics.raw_bytes import RAW_TYPES

# --- the calls -------------------------------------------------------------------------------------------------------

_APPENDED: Final = (answer_types.AppendAnswer, answer_types.IngestAnswer, answer_types.StageAnswer)

_RAW_TYPES: Final = ", ".join(f"`{kind}`" for kind in RAW_TYPES)

_FRAMES: Final = """\
The answer is a stream of server-sent events that does not end by itself. It begins with `retry: 2000`; a comment
`: hb <epoch ms>` is sent after `heartbeat_ms` without an event.

- `record`: `{topic, records, from_seq, to_seq, head_seq}`, the records of `(from_seq, to_seq]`
- `tombstone`: `{topic, reason, gap_from, gap_to, earliest_seq, head_seq}`, these records are gone
- `caught-up`: `{topic, head_seq}`, every record up to the head has been sent
- `topic-deleted`: `{topic, head_seq, reason}`, the topic was deleted
- `error`: `{code, error, retry_after_ms?, topics?}`; after 429 (paced) and 504 (records of `topics` cannot be read
now) the stream goes on, any other code ends it: 408 too slow, 409 taken over, 410 session gone or key withdrawn, 503
shutting down

All events but `error` have an `id`. A client that reconnects with it as `Last-Event-ID` misses nothing."""

_OPERATIONS: dict[str, Operation] = {}

_OPERATIONS |= {
    "put_topic": Operation(
        TOPICS,
        "Create or configure a topic",
        "Creates the topic, with defaults for fields that are not in the body, or changes the fields that are in the "
        "body. Unknown fields are refused. The same request again changes nothing.",
        {
            200: Answer("The topic existed. The answer has its new configuration.", {JSON: answer_types.TopicAnswer}),
            201: Answer("The topic was created.", {JSON: answer_types.TopicAnswer}),
        },
        parameters=(boolean("create", True, "Create the topic if it does not exist; if false, answer 404."),),
        body=JsonBody(TopicConfigPatch, {"ttl_ms": 86_400_000, "durability": "fsync"}, required=False),
        codes=("topic_not_found", "topic_exists_incompatible", *WRITES),
    ),
    "get_topic": Operation(
        TOPICS,
        "State of a topic",
        "The configuration, the seqs and the counters of a topic. Never creates it.",
        ok(answer_types.TopicStateAnswer, "The present state."),
        parameters=(
            boolean("touch", True, "Count this as a use of the topic, which may set its priority."),
            boolean("places", False, "The answer has `places`: how many seqs are gone, and where the live ones are."),
        ),
        codes=("topic_not_found",),
    ),
    "list_topics": Operation(
        TOPICS,
        "List topics",
        "The topics that the key covers, in the order of their names. With `type=queue` the entries have `queue`, the "
        "counters of the queue. With `sort` the answer has the topics with the most records or bytes, or those that "
        "were written to last, and no `next_cursor`; the daemon looks at all topics for that.",
        ok(answer_types.TopicListAnswer, "A page of the list."),
        parameters=(
            PREFIX,
            *PAGE,
            boolean("touch", False, "Count this as a use of the topics."),
            Parameter("type", "Only topics of this type.", {"enum": list(topic_requests.TOPIC_TYPES)}),
            Parameter("sort", "The first ones in this order.", {"enum": list(topic_requests.TOPIC_ORDERS)}),
        ),
    ),
    "delete_topic": Operation(
        TOPICS,
        "Delete a topic",
        "Deletes the topic, its records, and every router from or to it. Deleting a topic that does not exist is no "
        "failure.",
        ok(answer_types.TopicDeletedAnswer),
        parameters=(boolean("if_empty", False, "Refuse if the topic has live records."),),
        codes=("topic_not_empty", *WRITES),
    ),
}

_OPERATIONS |= {
    "append": Operation(
        RECORDS,
        "Append records",
        "Either all records are stored, with contiguous seqs in their order, or none is. A missing topic is created. "
        "`data` is any JSON value and is read back byte for byte. A body with `config` needs the scope admin as well."
        f"\n\nA body of `{LINES}` is an upload of any length, one record a line; empty lines are ignored. It is "
        f"stored in batches, each all or none, of {BATCH_RECORDS} records or 1 MiB, or what the topic's caps allow. "
        "The answer is an `IngestAnswer`. A failure says in `detail` how far the upload has come: `line`, from 1, is "
        "the line that failed, or the first line of the batch that failed; `committed` is the number of records stored "
        "before it, and `last_seq` the seq of the last of them. With an `Idempotency-Key` the key of batch i, from 0, "
        "is `KEY/i`, so that the same upload can be repeated. If the client leaves, an incomplete batch is dropped.\n\n"
        f"A body of {_RAW_TYPES} is one record of raw bytes, also if it is empty. Readers get them as `data`, as the "
        'object `{"$bytes": base64, "$content_type": type}`; a body of JSON with exactly this object, without blanks, '
        "is the same record. Raw bytes must fit into a record as such JSON. A topic with a `schema` refuses them.\n\n"
        "With `stage` the records are appended to a stage of the topic. Nobody can read them until a commit publishes "
        "the stage. The answer is a `StageAnswer`, and a failure has no `last_seq`.\n\n"
        "`expected_head_seq`, `expected_tag_seqs` and `fence` are conditions. They are checked when the records get "
        "their seqs, against everything that got seqs before. They are not for NDJSON, and not for a `stage`. If one "
        "does not hold, nothing is stored, and no topic is made: `409 condition_failed` with `{head_seq}` or `{tag, "
        "expected, actual}` in `detail`, `409 fenced` with `{name, token}`.",
        {
            200: Answer("The records are stored, as durably as `durability` of the topic says.", {JSON: _APPENDED}),
            201: Answer("The records are stored, and the topic was created.", {JSON: _APPENDED}),
        },
        parameters=(
            boolean("return_seqs", True, "The answer has `seqs`."),
            *query_of(raw_appends.RawQuery),
            Parameter(
                "Idempotency-Key",
                "The same as `idempotency_key` in the body, which takes precedence.",
                {"type": "string", "minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
                place="header",
            ),
        ),
        body=JsonBody(
            append_requests.AppendBody,
            {"records": [{"data": {"n": 1}, "tag": "t", "meta": {"k": "v"}}], "node": "writer-1"},
            lines='{"data": {"n": 1}, "tag": "t"}\n{"data": {"n": 2}}\n',
            raw_types=RAW_TYPES,
        ),
        codes=(
            "batch_too_large",
            "record_too_large",
            "topic_not_found",
            "forbidden",
            "stage_closed",
            "condition_failed",
            "fenced",
            "topic_full",
            "schema_violation",
            *WRITES,
        ),
    ),
    "transaction": Operation(
        RECORDS,
        "Append to several topics",
        f"{transaction_requests.MIN_TOPICS} to {transaction_requests.MAX_TOPICS} different topics: all records are "
        "stored, or none. When the call returns, all are synced, in topics of any `durability`, and they "
        "become visible in all topics at the same moment. Topics of class `ephemeral` or `memory` are refused. The key "
        "is remembered by the first topic, for its `idempotency_window_ms`. An error that concerns one topic names it "
        "in `detail.topic`.",
        ok(answer_types.TransactionAnswer, "All is stored."),
        parameters=(
            Parameter(
                "Idempotency-Key",
                "The same as `idempotency_key` in the body, which takes precedence.",
                {"type": "string", "minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
                place="header",
            ),
        ),
        body=JsonBody(
            transaction_requests.TransactionBody,
            {
                "appends": [
                    {"topic": "orders", "records": [{"data": {"order": 7}}]},
                    {"topic": "audit", "records": [{"data": {"did": "order 7"}}]},
                ],
                "idempotency_key": "order-7",
            },
        ),
        codes=(
            "batch_too_large",
            "record_too_large",
            "not_here",
            "topic_not_found",
            "topic_exists_incompatible",
            "topic_full",
            *WRITES,
        ),
    ),
    "commit": Operation(
        RECORDS,
        "Publish stages",
        "The records of the stages become part of the topic, in the order in which the stages are named, with "
        "contiguous seqs. Either all are published or none, and only once for each idempotency key. A published stage "
        "accepts no more records. Conditions hold as in an append, for the topic.",
        ok(answer_types.CommitAnswer, "The stages are published, as durably as `durability` of the topic says."),
        body=JsonBody(topic_requests.CommitBody, {"stages": ["upload-1", "upload-2"], "idempotency_key": "load-7"}),
        codes=(
            "batch_too_large",
            "record_too_large",
            "topic_not_found",
            "stage_not_found",
            "stage_closed",
            "condition_failed",
            "fenced",
            "topic_full",
            *WRITES,
        ),
    ),
    "delete_stage": Operation(
        RECORDS,
        "Drop a stage",
        "Deletes the stage and its records. Dropping a stage that does not exist is no failure.",
        ok(answer_types.StageDeletedAnswer),
        codes=WRITES,
    ),
    "delete_fence": Operation(
        TOPICS,
        "Remove a fence",
        "Forgets the highest token that was seen under this name, so that any token holds again. Removing a fence that "
        "does not exist is no failure.",
        ok(answer_types.FenceDeletedAnswer),
        codes=("topic_not_found", *WRITES),
    ),
    "seal": Operation(
        TOPICS,
        "Seal the active segment",
        "Takes a checkpoint, after which all records that could be read before are in sealed segments; later records "
        "go to a new one. A topic of which nothing is stored has no segments.",
        ok(answer_types.SealedAnswer, "The segments are sealed, and on disk."),
        codes=("topic_not_found", "read_only", "not_owner"),
    ),
    **EVIDENCE_OPERATIONS,
    "diff_post": Operation(
        RECORDS,
        "Read records",
        "The records after a seq, and a tombstone for a gap of records that are gone. Continue with `next_from_seq` "
        "until `caught_up`. With `wait_ms` the call waits at the head for a new record.",
        ok(answer_types.ReadAnswer, "The records up to `next_from_seq`."),
        body=JsonBody(read_requests.ReadBody, {"from_seq": 0, "limit": 100}, required=False),
        codes=("topic_not_found", "consumer_not_found", "forbidden", "fenced", *WRITES),
    ),
    "diff_get": Operation(
        RECORDS,
        "Read records, by query",
        "The same as with POST. `node` may be repeated.",
        ok(answer_types.ReadAnswer, "The records up to `next_from_seq`."),
        parameters=query_of(read_requests.ReadBody),
        codes=("topic_not_found", "consumer_not_found", "forbidden", "fenced", *WRITES),
    ),
    "export": Operation(
        RECORDS,
        "Export records",
        "All records of a range, however large, at the pace of the reader. Each line is a record as in a read, or "
        '`{"$tombstone": {...}}` for a gap. The last line is `{"$end": {next_from_seq, head_seq, '
        "earliest_seq, epoch}}`. A transfer without it was cut off, because the topic was deleted, the daemon stopped "
        "or the client was too slow. Continue with `from_seq` set to the last seq that arrived.\n\n"
        f"With `Accept: {ARROW}`, and if pyarrow is installed, the answer is an Arrow stream of batches of at most "
        "10,000 rows: `seq` int64, `ts` timestamp in microseconds (UTC), `node`, `tag`, `meta` (map of strings) and "
        "`data`, its JSON text. A gap is a batch without rows whose metadata has it as `$tombstone`; the last batch "
        "has `$end`.",
        {200: Answer("The lines, or the stream.", {LINES: None, ARROW: None})},
        parameters=query_of(read_requests.ExportQuery),
        codes=("topic_not_found", "not_acceptable"),
    ),
    "get_record": Operation(
        RECORDS,
        "One record",
        "The record with this seq, with its tag and meta. If it is not there, `detail.reason` of the `404 "
        "record_not_found` says why: `deleted`, `evicted` (by a cap), `expired` (by ttl), `lost`, `corrupt` or "
        "`not_yet` (the seq is above the head).\n\nA record of raw bytes is answered with its bytes, under its content "
        "type, if `Accept` names that type, as such or as `image/*`, `audio/*` or `video/*`, and does not prefer JSON.",
        {200: Answer("The record, or its bytes.", {JSON: answer_types.Record, **dict.fromkeys(RAW_TYPES)})},
        codes=("topic_not_found", "record_not_found", "throttled"),
    ),
    "latest": Operation(
        RECORDS,
        "The newest records of tags",
        "With `tag` the newest record of that tag; with `prefix` the newest record of each tag that begins with it, a "
        "page at a time. Exactly one of them is needed. Records whose `data` is null are left out. `404 "
        "record_not_found` of a tag has `detail.reason` `none` or `null` (its newest record is null).\n\nA client "
        "that has read all pages goes on with a read from the `head_seq` of the first page, and so gets all changes.",
        ok(answer_types.LatestAnswer, "The record, or a page of records."),
        parameters=query_of(latest_requests.LatestQuery),
        codes=("topic_not_found", "record_not_found"),
    ),
    "delete_records": Operation(
        RECORDS,
        "Delete records",
        "Deletes the present records that fulfil all of the given conditions. At least one is required. Readers get no "
        "tombstone for deleted records, and their seqs are never used again.",
        ok(answer_types.RecordsDeletedAnswer),
        body=JsonBody(DeleteRequest, {"before_seq": 2}),
        codes=("topic_not_found", *WRITES),
    ),
}

_OPERATIONS |= {
    "open_watch": Operation(
        LIVE,
        "Open a watch session",
        "A session watches many topics over one stream, and outlives its connection. With `prefixes` it also watches "
        "topics that are made later. Unknown fields are refused.",
        ok(answer_types.WatchAnswer, "The session. Its events are at `stream_url`."),
        parameters=(boolean("lenient", False, "Leave out unknown topics instead of refusing the request."),),
        body=JsonBody(watch_requests.WatchBody, {"topics": {"jobs": {"from_seq": 0}}}),
        codes=("topic_not_found", "consumer_not_found", "not_here", "throttled"),
    ),
    "watch": Operation(
        LIVE,
        "Events of a session",
        "A session has one stream at a time. A newer one takes over and continues where the older one was. Only the "
        f"key that opened the session can read it.\n\n{_FRAMES}",
        events("The stream is open."),
        parameters=(LAST_EVENT_ID,),
        codes=("invalid_request", "not_found", "not_acceptable", "throttled"),
    ),
    "stream": Operation(
        LIVE,
        "Events of one topic",
        f"A stream without a session, for `curl -N` or an `EventSource` of a browser.\n\n{_FRAMES}",
        events("The stream is open."),
        parameters=(
            *query_of(WatchStart, "from_seq", "tail"),
            *query_of(watch_requests.FeedOptions),
            *query_of(watch_requests.WatchBody, "heartbeat_ms"),
            LAST_EVENT_ID,
        ),
        codes=("topic_not_found", "consumer_not_found", "not_acceptable", "throttled"),
    ),
    "ws": Operation(
        LIVE,
        "Open a WebSocket",
        "Any key may open it; the key is checked for each command. Messages are JSON texts, one object each, with "
        "`op`. The commands, each with an optional `request_id`, and their answers:\n\n"
        "- `subscribe` with `topic` or `prefix` and `from_seq` or `tail`, with `topic` and `consumer`, or `topics` "
        "as in a watch session; `node`, `limit`, `max_batch_bytes`, `include_data`, `include_meta`, `include_tags`: "
        "`subscribed` with `topics`\n"
        "- `unsubscribe` with `topic`, `topics` or `prefix`: `unsubscribed` with `topics`\n"
        "- `publish` with `topic`, `return_seqs` and the body of an append: `ack` with the answer of an append\n"
        "- `ping`: `pong`\n\n"
        "A command that fails is answered by `error` with `code`, `message` and `detail`; the socket stays open. The "
        "daemon sends `record`, `tombstone`, `caught_up`, `topic_added` and `topic_deleted` with the fields of the "
        "events of a stream. A client that is too slow gets a last `error` before the socket is closed.",
        {101: Answer("The socket is open.", {})},
        codes=("invalid_request", "forbidden", "throttled"),
    ),
}

_CONSUMER_CODES: Final = ("topic_not_found", "consumer_not_found")

_OPERATIONS |= {
    "put_consumer": Operation(
        CONSUMERS,
        "Create or change a consumer",
        "A consumer is a position in a topic that the daemon keeps under a name. `from` counts at its creation only. A "
        "change keeps the fields that are not in the body. Unknown fields are refused.",
        {
            200: Answer("The consumer existed. The answer has its present state.", {JSON: answer_types.ConsumerAnswer}),
            201: Answer("The consumer was created.", {JSON: answer_types.ConsumerAnswer}),
        },
        body=JsonBody(consumer_requests.PutConsumerBody, {"from": "earliest"}, required=False),
        codes=("topic_not_found", *WRITES),
    ),
    "get_consumer": Operation(
        CONSUMERS,
        "State of a consumer",
        "Its position, and who owns it. Counts as a use of the consumer.",
        ok(answer_types.ConsumerAnswer, "The present state."),
        codes=_CONSUMER_CODES,
    ),
    "all_consumers": Operation(
        CONSUMERS,
        "List the consumers of all topics",
        "The consumers of the topics that the key covers, in the order of topics and consumers. `prefix` is about the "
        "names of topics.",
        ok(answer_types.ConsumerListAnswer, "A page of the list."),
        parameters=(PREFIX, *PAGE),
    ),
    "list_consumers": Operation(
        CONSUMERS,
        "List consumers",
        "The consumers of a topic, in the order of their names.",
        ok(answer_types.ConsumerListAnswer, "A page of the list."),
        parameters=(PREFIX, *PAGE),
        codes=("topic_not_found",),
    ),
    "delete_consumer": Operation(
        CONSUMERS,
        "Delete a consumer",
        "Deleting a consumer that does not exist is no failure.",
        ok(answer_types.ConsumerDeletedAnswer),
        codes=("topic_not_found", *WRITES),
    ),
    "commit_consumer": Operation(
        CONSUMERS,
        "Commit a position",
        "The consumer has finished everything up to `seq`. It only moves forward: a seq at or below its position "
        "changes nothing. While the consumer is owned, the `generation` of its owner is required.",
        ok(answer_types.ConsumerMovedAnswer, "The position, as durable as `durability` of the topic says."),
        body=JsonBody(consumer_requests.CommitConsumerBody, {"seq": 2}),
        codes=(*_CONSUMER_CODES, "fenced", *WRITES),
    ),
    "seek_consumer": Operation(
        CONSUMERS,
        "Move a consumer",
        "To any place of the topic, also back.",
        ok(answer_types.ConsumerMovedAnswer, "The position, as durable as `durability` of the topic says."),
        body=JsonBody(consumer_requests.SeekConsumerBody, {"to": "earliest"}),
        codes=(*_CONSUMER_CODES, "fenced", *WRITES),
    ),
    "acquire_consumer": Operation(
        CONSUMERS,
        "Own a consumer",
        "From now on until a release only the generation in the answer moves the consumer. When the lease is over, "
        "another owner may acquire it. The same owner renews its lease, and keeps its generation.",
        ok(answer_types.AcquiredAnswer, "The consumer is owned, synced."),
        body=JsonBody(consumer_requests.AcquireBody, {"owner": "host-1/4711", "lease_ms": 30_000}),
        codes=(*_CONSUMER_CODES, "consumer_owned", *WRITES),
    ),
    "release_consumer": Operation(
        CONSUMERS,
        "Give up a consumer",
        "Ends the ownership of a generation. A generation that does not own the consumer changes nothing.",
        ok(answer_types.ReleasedAnswer),
        body=JsonBody(consumer_requests.ReleaseBody, {"generation": 1}),
        codes=(*_CONSUMER_CODES, *WRITES),
    ),
}

_OPERATIONS |= {
    "put_router": Operation(
        ROUTERS,
        "Create or change a router",
        "A router copies the records of one topic to another. On creation `source` and `dest` are required, and the "
        "other fields have defaults: `preserve_node`, `preserve_tag` and `create_dest` true, `filter` null, "
        "`allow_cycle` false, `guarantee` `at_least_once`, `from` `tail`. A change keeps the fields that are not in "
        "the body, and the position of the router. The topics cannot be changed. Unknown fields are refused.",
        {
            200: Answer("The router existed. The answer has its new state.", {JSON: answer_types.RouterAnswer}),
            201: Answer("The router was created.", {JSON: answer_types.RouterAnswer}),
        },
        parameters=(boolean("create", True, "Create the router if it does not exist; if false, answer 404."),),
        body=JsonBody(
            RouterPatch, {"source": "jobs", "dest": "archive", "filter": ["tag", "Glob", "done*"]}, required=False
        ),
        codes=("topic_not_found", "router_not_found", "router_cycle", "topic_exists_incompatible", *WRITES),
    ),
    "get_router": Operation(
        ROUTERS,
        "State of a router",
        "The key must also cover both topics of the router.",
        ok(answer_types.RouterAnswer, "The present state."),
        codes=("router_not_found",),
    ),
    "list_routers": Operation(
        ROUTERS,
        "List routers",
        "The routers that the key covers, with both topics, in the order of their names.",
        ok(answer_types.RouterListAnswer, "A page of the list."),
        parameters=(
            PREFIX,
            Parameter("source", "Only routers that read this topic.", {"type": "string", **TOPIC}),
            Parameter("dest", "Only routers that write to this topic.", {"type": "string", **TOPIC}),
            *PAGE,
        ),
    ),
    "delete_router": Operation(
        ROUTERS,
        "Delete a router",
        "The copies that it has made stay. Deleting a router that does not exist is no failure.",
        ok(answer_types.RouterDeletedAnswer),
        codes=WRITES,
    ),
}

_HEALTH: Final = Operation(
    DAEMON, "Health", "Says that the process answers.", ok(answer_types.HealthAnswer, "The process answers.")
)
_READY: Final = Operation(
    DAEMON,
    "Readiness",
    "Says whether the daemon accepts requests.",
    ok(answer_types.ReadyAnswer, "The daemon accepts requests."),
    codes=("not_ready", "shutting_down"),
)

_OPERATIONS |= {
    "root": Operation(
        DAEMON,
        "Where to begin",
        "The paths of the documentation and of the most important calls.",
        ok(answer_types.RootAnswer, "Paths on this daemon."),
    ),
    "health": _HEALTH,
    "healthz": replace(_HEALTH, summary="Health, where probes look for it"),
    "ready": _READY,
    "readyz": replace(_READY, summary="Readiness, where probes look for it"),
    "metrics": Operation(
        DAEMON,
        "Metrics",
        "Prometheus text, or JSON if `Accept` asks for it: `{name: value}`, and `{name: [{labels, value}]}` for those "
        "with labels. Metrics of single topics and routers are left out if the key does not cover them.",
        {200: Answer("The present values.", {PROMETHEUS: None, JSON: answer_types.Metrics})},
    ),
    "checkpoint": Operation(
        DAEMON,
        "Make a checkpoint",
        "Makes a checkpoint, and keeps every file that it names unchanged for `hold_ms`, so that a consistent copy of "
        "the data directory can be made meanwhile.",
        ok(answer_types.CheckpointAnswer, "The checkpoint is on disk."),
        parameters=(
            Parameter("hold_ms", "How long the files stay unchanged.", {"type": "integer", "default": 0, **U64}),
        ),
        codes=("read_only",),
    ),
    "openapi": Operation(
        DAEMON,
        "This description, for programs",
        "OpenAPI 3.1.",
        {200: Answer("The document.", {JSON: dict[str, Any]})},
    ),
    "docs": Operation(
        DAEMON,
        "This description, for people",
        "One page, without scripts and without resources of other hosts.",
        {200: Answer("The page.", {HTML: None})},
    ),
}

_OPERATIONS |= JOB_OPERATIONS
_OPERATIONS |= DAEMON_OPERATIONS

OPERATIONS: Final[Mapping[str, Operation]] = _OPERATIONS
"""By the name of the route."""
