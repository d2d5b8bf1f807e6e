"""What the table of routes does not say of each call: what it is for, what it takes, how it may be answered.

Everything that holds for many calls is left out here, because it follows from the table (`openapi` adds it): names in
paths, what a key needs, and the failures that come with a body, a key, or the phase of the daemon. Types are those
that the code decodes and encodes with. Tests compare it with real answers; the query parameters are what
`topics.http.openapi.strict_names` knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from msgspec import Struct, json
from msgspec.structs import fields

from topics.http import answer_types
from topics.http.answers.sse import CONTENT_TYPE as EVENTS
from topics.http.openapi.field_facts import TOPIC, U64, fact_of
from topics.http.requests import append_requests, queue_requests, read_requests, topic_requests, watch_requests
from topics.http.requests.body_reader import LINES_TYPE
from topics.http.requests.line_batches import BATCH_RECORDS
from topics.model import AppendRequest, DeleteRequest, RouterPatch, TopicConfigPatch, WatchStart

JSON: Final = "application/json"
LINES: Final = LINES_TYPE.decode()
ARROW: Final = "application/vnd.apache.arrow.stream"
PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
HTML: Final = "text/html; charset=utf-8"

# Groups of calls, in the order of the page.
TOPICS: Final = "Topics"
RECORDS: Final = "Records"
LIVE: Final = "Live delivery"
QUEUES: Final = "Queues"
ROUTERS: Final = "Routers"
DAEMON: Final = "The daemon"
GROUPS: Final = (TOPICS, RECORDS, LIVE, QUEUES, ROUTERS, DAEMON)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One of the query, the headers or the path. `schema` is JSON Schema."""

    name: str
    text: str
    schema: Mapping[str, Any]
    place: str = "query"
    required: bool = False
    example: str | None = None


@dataclass(frozen=True, slots=True)
class Body:
    """A JSON body. Every field of one that is not `required` is optional, so that no body means `{}`. `lines`: an
    example of the NDJSON that does as well."""

    type: Any
    example: Any
    required: bool = True
    lines: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """A success: what it means, and what it holds by content type (a type, one of some types, or None for text)."""

    text: str
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """One call."""

    group: str
    summary: str
    text: str
    answers: Mapping[int, Answer]
    parameters: tuple[Parameter, ...] = ()
    body: Body | None = None
    codes: tuple[str, ...] = ()
    """Failures of its own."""


# --- parameters ------------------------------------------------------------------------------------------------------


def _query_of(kind: type[Struct], *names: str, example: Mapping[str, str] = {}) -> tuple[Parameter, ...]:
    """Fields of a body as query parameters, for calls that take them there."""
    properties = json.schema_components([kind])[1][kind.__name__]["properties"]
    found = []
    for field in fields(kind):
        name = field.encode_name
        if names and name not in names:
            continue
        fact = fact_of(kind, name)
        assert fact is not None
        schema = _plain(properties[name]) | dict(fact.schema)
        found.append(Parameter(name, fact.text, schema, required=field.required, example=example.get(name)))
    return tuple(found)


def _plain(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A query parameter is not null, and one that may be an array is one: it can be repeated."""
    choices = [choice for choice in schema.get("anyOf", ()) if choice != {"type": "null"}]
    plain = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if choices:
        plain |= next((choice for choice in choices if choice.get("type") == "array"), choices[0])
    return plain


def _boolean(name: str, default: bool, text: str) -> Parameter:
    return Parameter(name, f"{text} `1`, `0`, `true` or `false`.", {"type": "boolean", "default": default})


_PREFIX: Final = Parameter("prefix", "Only names that begin with this.", {"type": "string", "default": ""})
_PAGE: Final = (
    Parameter(
        "page_size",
        f"Most entries, clamped to 1..{topic_requests.MAX_PAGE}.",
        {"type": "integer", "default": topic_requests.DEFAULT_PAGE},
    ),
    Parameter("cursor", "`next_cursor` of the page before.", {"type": "string", "default": ""}),
)
_LAST_EVENT_ID: Final = Parameter(
    "Last-Event-ID", "`id` of the last event that was seen, to go on after it.", {"type": "string"}, place="header"
)


def _ok(kind: Any, text: str = "Done.") -> dict[int, Answer]:
    return {200: Answer(text, {JSON: kind})}


def _events(text: str) -> dict[int, Answer]:
    return {200: Answer(text, {EVENTS.decode(): None})}


# --- the calls -------------------------------------------------------------------------------------------------------

_WRITES: Final = ("throttled", "read_only")
_APPENDED: Final = (answer_types.AppendAnswer, answer_types.IngestAnswer, answer_types.StageAnswer)

_FRAMES: Final = """\
The answer is a stream of server-sent events that does not end by itself. It begins with `retry: 2000`; a comment
`: hb <epoch ms>` is sent after `heartbeat_ms` without an event.

- `record`: `{topic, records, from_seq, to_seq, head_seq}`, what there is of `(from_seq, to_seq]`
- `tombstone`: `{topic, reason, gap_from, gap_to, earliest_seq, head_seq}`, records that are gone
- `caught-up`: `{topic, head_seq}`, now live
- `topic-deleted`: `{topic, head_seq, reason}`, the end of that topic
- `error`: `{code, error, retry_after_ms?, topics?}`; 429 (paced) and 504 (records of `topics` cannot be read now)
are advisory, others are the end: 408 too slow, 409 taken over, 410 session gone or key withdrawn, 503 shutting down

All but `error` carry an `id`. Who comes back with it as `Last-Event-ID` misses nothing."""

_OPERATIONS: dict[str, Operation] = {}

_OPERATIONS |= {
    "put_topic": Operation(
        TOPICS,
        "Create or configure a topic",
        "Creates the topic, with defaults for what the body does not say, or changes the fields that are in the body. "
        "Unknown fields are refused. Doing the same again changes nothing.",
        {
            200: Answer("It was there; this is its configuration now.", {JSON: answer_types.TopicAnswer}),
            201: Answer("It was created.", {JSON: answer_types.TopicAnswer}),
        },
        parameters=(_boolean("create", True, "Whether a missing topic is created; if not, it is a 404."),),
        body=Body(TopicConfigPatch, {"ttl_ms": 86_400_000, "durability": "fsync"}, required=False),
        codes=("topic_not_found", "topic_exists_incompatible", *_WRITES),
    ),
    "get_topic": Operation(
        TOPICS,
        "State of a topic",
        "Never creates it.",
        _ok(answer_types.TopicStateAnswer, "Its state as of now."),
        parameters=(_boolean("touch", True, "Whether this counts as use of the topic, which may set its priority."),),
        codes=("topic_not_found",),
    ),
    "list_topics": Operation(
        TOPICS,
        "List topics",
        "In the order of their names, those that the key covers.",
        _ok(answer_types.TopicListAnswer, "A page of them."),
        parameters=(_PREFIX, *_PAGE, _boolean("touch", False, "Whether this counts as use of the topics.")),
    ),
    "delete_topic": Operation(
        TOPICS,
        "Delete a topic",
        "With its records, and every router that touches it. Deleting what is not there is no failure.",
        _ok(answer_types.TopicDeletedAnswer),
        parameters=(_boolean("if_empty", False, "Whether live records are a reason to refuse."),),
        codes=("topic_not_empty", *_WRITES),
    ),
}

_OPERATIONS |= {
    "append": Operation(
        RECORDS,
        "Append records",
        "All records get contiguous seqs in order, or none is stored. A missing topic is created. "
        "`data` is any JSON value and is read back byte for byte. A body with `config` needs the scope admin as well."
        f"\n\nA body of `{LINES}` is an upload of any length, one record a line; empty lines are ignored. It is "
        f"stored in batches, each all or none, of {BATCH_RECORDS} records or 1 MiB, or what the topic's caps allow. "
        "The answer is an `IngestAnswer`. A failure says in `detail` how far it came: `line`, from 1, where it broke, "
        "`committed` records before that batch, the last of them with `last_seq`. With an `Idempotency-Key` batch i, "
        "from 0, has the key `KEY/i`, so that the same upload can be repeated. What is no whole batch when the client "
        "leaves is dropped.\n\n"
        "With `stage` the records go to a stage of the topic, which is private until a commit publishes it. The answer "
        "is a `StageAnswer`, and a failure has no `last_seq`.",
        {
            200: Answer("They are stored, as safely as the topic's `durability` says.", {JSON: _APPENDED}),
            201: Answer("The same, and the topic was created.", {JSON: _APPENDED}),
        },
        parameters=(
            _boolean("return_seqs", True, "Whether the answer has `seqs`."),
            *_query_of(append_requests.IngestQuery),
            Parameter(
                "Idempotency-Key",
                "As `idempotency_key` in the body, which wins.",
                {"type": "string", "minLength": 1, "maxLength": append_requests.MAX_IDEMPOTENCY_KEY},
                place="header",
            ),
        ),
        body=Body(
            AppendRequest,
            {"records": [{"data": {"n": 1}, "tag": "t", "meta": {"k": "v"}}], "node": "writer-1"},
            lines='{"data": {"n": 1}, "tag": "t"}\n{"data": {"n": 2}}\n',
        ),
        codes=(
            "batch_too_large",
            "record_too_large",
            "topic_not_found",
            "forbidden",
            "stage_closed",
            "topic_full",
            *_WRITES,
        ),
    ),
    "commit": Operation(
        RECORDS,
        "Publish stages",
        "What the stages hold becomes part of the topic, in the order in which they are named, with contiguous seqs: "
        "all at once or nothing, and once for each key. A stage that was published takes no more.",
        _ok(answer_types.CommitAnswer, "They are published, as safely as the topic's `durability` says."),
        body=Body(topic_requests.CommitBody, {"stages": ["upload-1", "upload-2"], "idempotency_key": "load-7"}),
        codes=(
            "batch_too_large",
            "record_too_large",
            "topic_not_found",
            "stage_not_found",
            "stage_closed",
            "topic_full",
            *_WRITES,
        ),
    ),
    "delete_stage": Operation(
        RECORDS,
        "Drop a stage",
        "With all it holds. Dropping what is not there is no failure.",
        _ok(answer_types.StageDeletedAnswer),
        codes=_WRITES,
    ),
    "diff_post": Operation(
        RECORDS,
        "Read records",
        "Records after a seq, with an announcement of those that are gone. Read on with `next_from_seq` until "
        "`caught_up`; with `wait_ms` the call waits at the head for something new.",
        _ok(answer_types.ReadAnswer, "What there is, as far as it was looked at."),
        body=Body(read_requests.ReadBody, {"from_seq": 0, "limit": 100}, required=False),
        codes=("topic_not_found",),
    ),
    "diff_get": Operation(
        RECORDS,
        "Read records, by query",
        "The same as with POST; `node` may be repeated.",
        _ok(answer_types.ReadAnswer, "What there is, as far as it was looked at."),
        parameters=_query_of(read_requests.ReadBody),
        codes=("topic_not_found",),
    ),
    "export": Operation(
        RECORDS,
        "Export records",
        "All of a range, however large, at the pace of its reader. A line is a record as in a read, or "
        '`{"$tombstone": {...}}` where records are gone. The last one is `{"$end": {next_from_seq, head_seq, '
        "earliest_seq, epoch}}`. A transfer without it was cut off, because the topic was deleted, the daemon stopped "
        "or the client was too slow; it goes on with `from_seq` after the last seq that arrived.\n\n"
        f"With `Accept: {ARROW}`, and where pyarrow is installed, it is an Arrow stream of batches of at most "
        "10,000 rows: `seq` int64, `ts` timestamp in microseconds (UTC), `node`, `tag`, `meta` (map of strings) and "
        "`data`, its JSON text. A gap is a batch without rows whose metadata has it as `$tombstone`; the last batch "
        "has `$end`.",
        {200: Answer("The lines, or the stream.", {LINES: None, ARROW: None})},
        parameters=_query_of(read_requests.ExportQuery),
        codes=("topic_not_found", "not_acceptable"),
    ),
    "delete_records": Operation(
        RECORDS,
        "Delete records",
        "Those present now whose seq is smaller than `before_seq` and that match; one of the two is required. Readers "
        "are not told.",
        _ok(answer_types.RecordsDeletedAnswer),
        body=Body(DeleteRequest, {"before_seq": 2}),
        codes=("topic_not_found", *_WRITES),
    ),
}

_OPERATIONS |= {
    "open_watch": Operation(
        LIVE,
        "Open a watch session",
        "A session watches many topics over one stream, and outlives its connection. Unknown fields are refused.",
        _ok(answer_types.WatchAnswer, "Get `stream_url` for the events."),
        parameters=(_boolean("lenient", False, "Whether unknown topics are left out instead of refused."),),
        body=Body(watch_requests.WatchBody, {"topics": {"jobs": {"from_seq": 0}}}),
        codes=("topic_not_found", "throttled"),
    ),
    "watch": Operation(
        LIVE,
        "Events of a session",
        "A session has one stream at a time; a newer one takes over, and goes on where the older one was. Only the key "
        f"that opened the session can read it.\n\n{_FRAMES}",
        _events("The stream is open."),
        parameters=(_LAST_EVENT_ID,),
        codes=("invalid_request", "not_found", "not_acceptable", "throttled"),
    ),
    "stream": Operation(
        LIVE,
        "Events of one topic",
        f"Without a session: for `curl -N`, or an `EventSource` of a browser.\n\n{_FRAMES}",
        _events("The stream is open."),
        parameters=(
            *_query_of(WatchStart),
            *_query_of(watch_requests.Wishes),
            *_query_of(watch_requests.WatchBody, "heartbeat_ms"),
            _LAST_EVENT_ID,
        ),
        codes=("topic_not_found", "not_acceptable", "throttled"),
    ),
    "ws": Operation(
        LIVE,
        "Open a WebSocket",
        "Any key opens it; each command is checked by itself. Messages are JSON texts, one object each, with `op`. "
        "Commands, each with a `request_id` if you like, and what they are answered with:\n\n"
        "- `subscribe` with `topic` and `from_seq` or `tail`, or `topics` as in a watch session; `node`, `limit`, "
        "`max_batch_bytes`, `include_data`, `include_meta`, `include_tags`: `subscribed` with `topics`\n"
        "- `unsubscribe` with `topic` or `topics`: `unsubscribed` with `topics`\n"
        "- `publish` with `topic`, `return_seqs` and the body of an append: `ack` with the answer of an append\n"
        "- `ping`: `pong`\n\n"
        "What cannot be carried out is answered by `error` with `code`, `message` and `detail`; the socket stays. "
        "Pushed are `record`, `tombstone`, `caught_up` and `topic_deleted`, with the fields that the events of a "
        "stream have. A client that is too slow gets a last `error` before the socket is closed.",
        {101: Answer("The socket is open.", {})},
        codes=("invalid_request", "forbidden", "throttled"),
    ),
}

_QUEUE_CODES: Final = ("topic_not_found", "not_a_queue", *_WRITES)
_HELD_CODES: Final = ("batch_too_large", *_QUEUE_CODES)
_HELD: Final = {"node": "worker-1", "seqs": [1]}

_OPERATIONS |= {
    "claim": Operation(
        QUEUES,
        "Claim jobs",
        "Leases jobs to `node`. One that is not acked before its lease ends is given to somebody else.",
        _ok(answer_types.ClaimAnswer, "The jobs; fewer than asked for, or none, is normal."),
        body=Body(queue_requests.ClaimBody, {"node": "worker-1", "max": 10, "wait_ms": 1000}),
        codes=_QUEUE_CODES,
    ),
    "ack": Operation(
        QUEUES,
        "Acknowledge jobs",
        "They are done: their records are deleted.",
        _ok(answer_types.AckAnswer),
        body=Body(queue_requests.HeldBody, _HELD),
        codes=_HELD_CODES,
    ),
    "nack": Operation(
        QUEUES,
        "Give jobs back",
        "They can be claimed again, at once or after `delay_ms`.",
        _ok(answer_types.NackAnswer),
        body=Body(queue_requests.NackBody, {**_HELD, "delay_ms": 1000}),
        codes=_HELD_CODES,
    ),
    "extend": Operation(
        QUEUES,
        "Extend leases",
        "They end `lease_ms` from now.",
        _ok(answer_types.ExtendAnswer),
        body=Body(queue_requests.ExtendBody, {**_HELD, "lease_ms": 60_000}),
        codes=_HELD_CODES,
    ),
    "work": Operation(
        QUEUES,
        "Stream of jobs",
        "A stream of server-sent events that leases jobs to this connection, up to `max` at a time, and gives back "
        "what is not acked when it ends. Each job is one event `job` with its seq as `id`; its data is an entry of "
        "`claimed` with the `topic`. A comment is sent after 15 s without an event, and an event `error` is the end.",
        _events("The stream is open."),
        parameters=_query_of(queue_requests.ClaimBody, "node", "max", "lease_ms", example={"node": "worker-1"}),
        codes=("not_acceptable", *_QUEUE_CODES),
    ),
}

_OPERATIONS |= {
    "put_router": Operation(
        ROUTERS,
        "Create or change a router",
        "A router copies the records of one topic to another. On creation `source` and `dest` are required and the "
        "rest has its defaults: `preserve_node`, `preserve_tag` and `create_dest` true, `filter` null, `allow_cycle` "
        "false, `guarantee` `at_least_once`, `from` `tail`. A change keeps what the body does not say, and where the "
        "router is; the topics cannot be changed. Unknown fields are refused.",
        {
            200: Answer("It was there; this is what it is now.", {JSON: answer_types.RouterAnswer}),
            201: Answer("It was created.", {JSON: answer_types.RouterAnswer}),
        },
        parameters=(_boolean("create", True, "Whether a missing router is created; if not, it is a 404."),),
        body=Body(
            RouterPatch, {"source": "jobs", "dest": "archive", "filter": ["tag", "Glob", "done*"]}, required=False
        ),
        codes=("topic_not_found", "router_not_found", "router_cycle", "topic_exists_incompatible", *_WRITES),
    ),
    "get_router": Operation(
        ROUTERS,
        "State of a router",
        "Its key has to cover the topics of the router as well.",
        _ok(answer_types.RouterAnswer, "Its state as of now."),
        codes=("router_not_found",),
    ),
    "list_routers": Operation(
        ROUTERS,
        "List routers",
        "In the order of their names, those that the key covers with both topics.",
        _ok(answer_types.RouterListAnswer, "A page of them."),
        parameters=(
            _PREFIX,
            Parameter("source", "Only those that read this topic.", {"type": "string", **TOPIC}),
            Parameter("dest", "Only those that write to this topic.", {"type": "string", **TOPIC}),
            *_PAGE,
        ),
    ),
    "delete_router": Operation(
        ROUTERS,
        "Delete a router",
        "The copies stay. Deleting what is not there is no failure.",
        _ok(answer_types.RouterDeletedAnswer),
        codes=_WRITES,
    ),
}

_HEALTH: Final = Operation(
    DAEMON, "Health", "Answers as long as the process does.", _ok(answer_types.HealthAnswer, "The process answers.")
)
_READY: Final = Operation(
    DAEMON,
    "Readiness",
    "Whether requests are taken.",
    _ok(answer_types.ReadyAnswer, "They are."),
    codes=("not_ready", "shutting_down"),
)

_OPERATIONS |= {
    "root": Operation(
        DAEMON,
        "Where to go",
        "The paths to begin with.",
        _ok(answer_types.RootAnswer, "Paths on this daemon."),
    ),
    "health": _HEALTH,
    "healthz": replace(_HEALTH, summary="Health, where probes look for it"),
    "ready": _READY,
    "readyz": replace(_READY, summary="Readiness, where probes look for it"),
    "metrics": Operation(
        DAEMON,
        "Metrics",
        "Prometheus text, or JSON if `Accept` asks for it: `{name: value}`, and `{name: [{labels, value}]}` for those "
        "with labels. Figures of single topics and routers are left out where the key does not cover them.",
        {200: Answer("As of now.", {PROMETHEUS: None, JSON: answer_types.Metrics})},
    ),
    "checkpoint": Operation(
        DAEMON,
        "Make a checkpoint",
        "And keep every file that it names as it is for `hold_ms`, so that a consistent copy of the data directory can "
        "be taken meanwhile.",
        _ok(answer_types.CheckpointAnswer, "It is on disk."),
        parameters=(Parameter("hold_ms", "How long the files are kept.", {"type": "integer", "default": 0, **U64}),),
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
        "One page, without scripts and without anything from elsewhere.",
        {200: Answer("The page.", {HTML: None})},
    ),
}

OPERATIONS: Final[Mapping[str, Operation]] = _OPERATIONS
"""By the name of the route."""
