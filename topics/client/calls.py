"""The calls of `/v0`, as values (`docs/spec/api.md`).

One function for each call. It checks nothing that the daemon checks and sends nothing: it returns a `Call`, which says
what is sent, what the answer is decoded as, and whether it may be sent again when nobody knows what became of it. The
clients make their methods out of these functions; their parameters and docstrings are those of the methods.

All that can raise in here is TypeError or ValueError, for what cannot be said in JSON.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Literal, TypedDict, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from topics.client import results
from topics.client.results import NewRecord

T = TypeVar("T")

Match = str | Sequence[str]
"""`["tag", "Eq", "x"]`, `["tag", "Glob", "x*"]`, or a bare string, which means Eq (`docs/spec/api.md` section 1)."""

JSON: Final = "application/json"
AUTO: Final = "auto"
"""The idempotency key that stands for a new one for each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One call: what is sent, and what comes back."""

    method: str
    target: str
    """Path and query, as they go over the wire."""
    answer: type[T] | None = None
    """The type of the result, as which the JSON of a success is decoded. `str`: the body as text, not JSON; None: the
    body as bytes."""
    body: bytes | None = field(default=None, repr=False)
    upload: Iterator[bytes] | AsyncIterator[bytes] | None = field(default=None, repr=False)
    """A body that is made while it is sent, instead of `body`: nothing for a call that may be repeated."""
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool
    """Whether it does no harm to send it again when it may have been carried out."""
    probe: bool = False
    """Whether it asks how the daemon is right now: then it is sent once, and its failure is the answer."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    waits: float = 0.0
    """Seconds for which the daemon may wait on purpose before it answers."""


class TopicSettings(TypedDict, total=False):
    """The configuration of a topic (`docs/spec/api.md` section 2). What is absent is the default, or stays as it is."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
    durable: bool
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool


class RouterSettings(TypedDict, total=False):
    """The settings of a router beside source and dest (`docs/spec/api.md` section 7). `from_` is `from` on the wire."""

    preserve_node: bool
    preserve_tag: bool
    create_dest: bool
    filter: Match | None
    allow_cycle: bool
    guarantee: Literal["at_least_once", "exactly_once"]
    from_: Literal["tail", "earliest"]


def topic_path(topic: str, *more: str) -> str:
    """The path of a topic or of something below it. Whatever the name is, it stays one part of the path."""
    return "/".join(("/v0/topics", quote(topic, safe=":"), *more))


def router_path(router: str) -> str:
    return f"/v0/routers/{quote(router, safe=':')}"


def target(path: str, **parameters: object) -> str:
    """A path with a query of what is not None. Booleans are `true` and `false`, sequences repeat their name."""
    pairs: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, bool):
            pairs.append((name, "true" if value else "false"))
        elif isinstance(value, list | tuple):
            pairs.extend((name, str(item)) for item in value)
        elif value is not None:
            pairs.append((name, str(value)))
    return f"{path}?{urlencode(pairs)}" if pairs else path


def encode(value: object) -> bytes:
    """The JSON of a value. Raises TypeError or ValueError for one that has none."""
    return msgspec.json.encode(value)


def _body(**fields: object) -> bytes:
    """The JSON of the fields that are not None."""
    return encode({name: value for name, value in fields.items() if value is not None})


def _names(node: str | Iterable[str]) -> list[str]:
    return [node] if isinstance(node, str) else list(node)


# --- the daemon ------------------------------------------------------------------------------------------------------


def health() -> Call[results.Health]:
    """Whether the process answers at all. Nothing is repeated: where it does not answer, that is raised at once."""
    return Call(method="GET", target="/v0/health", answer=results.Health, repeatable=True, probe=True)


def ready() -> Call[results.Ready]:
    """Whether it serves; raises Unavailable while it does not (after having waited as long as the retries do)."""
    return Call(method="GET", target="/v0/ready", answer=results.Ready, repeatable=True)


def metrics() -> Call[dict[str, results.Metric]]:
    """All metrics (`docs/spec/api.md` section 11) by their names."""
    return Call(method="GET", target="/v0/metrics", answer=dict[str, results.Metric], repeatable=True)


def metrics_text() -> Call[str]:
    """All metrics in Prometheus's text format."""
    return Call(method="GET", target="/v0/metrics", answer=str, accept="text/plain", repeatable=True)


def openapi() -> Call[dict[str, Any]]:
    """The daemon's own description of its interface."""
    return Call(method="GET", target="/v0/openapi.json", answer=dict[str, Any], repeatable=True)


def checkpoint(*, hold_ms: int = 0) -> Call[results.Checkpoint]:
    """Take a checkpoint now, and keep every file that it names for `hold_ms` (`docs/spec/api.md` section 11)."""
    where = target("/v0/admin/checkpoint", hold_ms=hold_ms)
    return Call(method="POST", target=where, answer=results.Checkpoint, repeatable=True, waits=300.0)


# --- topics ----------------------------------------------------------------------------------------------------------


def create(topic: str, **config: Unpack[TopicSettings]) -> Call[results.TopicChanged]:
    """Create a topic, or change the settings named of one that is there (`docs/spec/api.md` section 3)."""
    return Call(
        method="PUT",
        target=topic_path(topic),
        answer=results.TopicChanged,
        body=encode(config),
        repeatable=True,
    )


def update(topic: str, **config: Unpack[TopicSettings]) -> Call[results.TopicChanged]:
    """Change the settings named. Raises NotFound where there is no topic."""
    return Call(
        method="PUT",
        target=target(topic_path(topic), create=False),
        answer=results.TopicChanged,
        body=encode(config),
        repeatable=True,
    )


def state(topic: str, *, touch: bool = True) -> Call[results.TopicState]:
    """What a topic holds and how it is configured. `touch=False`: without counting as a use of it."""
    where = target(topic_path(topic), touch=None if touch else False)
    return Call(method="GET", target=where, answer=results.TopicState, repeatable=True)


def topic_page(*, prefix: str = "", page_size: int = 100, cursor: str | None = None) -> Call[results.TopicPage]:
    """One page of the topics whose names have a prefix, in the order of names."""
    where = target("/v0/topics", prefix=prefix or None, page_size=page_size, cursor=cursor)
    return Call(method="GET", target=where, answer=results.TopicPage, repeatable=True)


def delete_topic(topic: str, *, if_empty: bool = False) -> Call[results.TopicDeletion]:
    """Delete a topic with all it holds and the routers that touch it. `if_empty`: only if no record is live, else
    raises Conflict."""
    where = target(topic_path(topic), if_empty=if_empty or None)
    return Call(method="DELETE", target=where, answer=results.TopicDeletion, repeatable=False)


# --- records ---------------------------------------------------------------------------------------------------------


def encode_record(
    record: object, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
) -> bytes:
    """The JSON of one record of an append. `record` is a NewRecord, or the data of a record; with a tag, a node or meta
    it is the data. Raises TypeError or ValueError for a value that JSON cannot express."""
    data = record
    if tag is None and node is None and meta is None:
        if not isinstance(record, NewRecord):
            return b'{"data":' + encode(record) + b"}"
        data, tag, node, meta = record.data, record.tag, record.node, record.meta
    parts = [b'{"data":', encode(data)]
    if tag is not None:
        parts += (b',"tag":', encode(tag))
    if node is not None:
        parts += (b',"node":', encode(node))
    if meta:
        parts += (b',"meta":', encode(meta))
    parts.append(b"}")
    return b"".join(parts)


def append(
    topic: str,
    records: Iterable[object],
    *,
    node: str | None = None,
    idempotency_key: str | None = AUTO,
    create: bool | None = None,
    config: TopicSettings | None = None,
    disable_backpressure: bool = False,
    return_seqs: bool = True,
) -> Call[results.Appended]:
    """Append records, all or none (`docs/spec/api.md` section 4).

    An item is a NewRecord, or a JSON value, which becomes the data of a record. The idempotency key is a new one
    unless one is given; with None there is none, and an append whose answer was lost is not repeated.
    `create=False` raises NotFound where there is no topic; `config` is for a topic that this call creates.
    """
    if isinstance(records, str | bytes | Mapping | NewRecord):
        raise TypeError(f"records are a list of records, not one {type(records).__name__}")
    key = uuid.uuid4().hex if idempotency_key == AUTO else idempotency_key
    rest = {
        "node": node,
        "idempotency_key": key,
        "create": create,
        "config": config,
        "disable_backpressure": disable_backpressure or None,
    }
    return encoded_append(topic, map(encode_record, records), rest, return_seqs=return_seqs)


def encoded_append(
    topic: str, records: Iterable[bytes], rest: Mapping[str, object], *, return_seqs: bool
) -> Call[results.Appended]:
    """An append of records that are encoded already; `rest` are the other fields of the body, None for absent."""
    said = encode({name: value for name, value in rest.items() if value is not None})
    body = b'{"records":[' + b",".join(records) + b"]" + (b"," + said[1:] if len(said) > 2 else b"}")
    return Call(
        method="POST",
        target=target(topic_path(topic), return_seqs=None if return_seqs else False),
        answer=results.Appended,
        body=body,
        repeatable=rest.get("idempotency_key") is not None,
        waits=300.0 if rest.get("disable_backpressure") else 0.0,
    )


def diff(
    topic: str,
    from_seq: int = 0,
    *,
    epoch: int | None = None,
    limit: int = 256,
    node: str | Iterable[str] = (),
    include_tags: bool = True,
    include_meta: bool = True,
    wait_ms: int = 0,
    max_batch_bytes: int | None = None,
) -> Call[results.Page]:
    """One page of what comes after `from_seq` (`docs/spec/api.md` section 5). `node`: writers whose records are left
    out; `wait_ms`: how long to wait for the first record or tombstone, if there is none."""
    where = target(
        topic_path(topic, "diff"),
        from_seq=from_seq,
        epoch=epoch,
        limit=limit,
        node=_names(node),
        include_tags=include_tags,
        include_meta=None if include_meta else False,
        wait_ms=wait_ms or None,
        max_batch_bytes=max_batch_bytes,
    )
    return Call(method="GET", target=where, answer=results.Page, repeatable=True, waits=wait_ms / 1000)


def delete_records(
    topic: str, *, before_seq: int | None = None, match: Match | None = None
) -> Call[results.RecordsDeletion]:
    """Delete the records that are there now and have smaller seqs, or match, or both (`docs/spec/api.md` section 6)."""
    return Call(
        method="POST",
        target=topic_path(topic, "delete"),
        answer=results.RecordsDeletion,
        body=_body(before_seq=before_seq, match=match),
        repeatable=False,
    )


# --- stages ----------------------------------------------------------------------------------------------------------


def commit(topic: str, stages: Iterable[str], idempotency_key: str) -> Call[results.Committed]:
    """Publish what stages hold, all at once, in the order in which they are named; once for each key
    (`docs/spec/pipeline.md` section 1). Raises NotFound if one of them is not there: then nothing is published."""
    return Call(
        method="POST",
        target=topic_path(topic, "commit"),
        answer=results.Committed,
        body=_body(stages=_names(stages), idempotency_key=idempotency_key),
        repeatable=True,
        waits=300.0,
    )


def delete_stage(topic: str, stage: str) -> Call[results.StageDeletion]:
    """Drop a stage with all it holds."""
    where = topic_path(topic, "stages", quote(stage, safe=":"))
    return Call(method="DELETE", target=where, answer=results.StageDeletion, repeatable=False)


# --- routers ---------------------------------------------------------------------------------------------------------


def create_router(
    router: str, source: str, dest: str, **settings: Unpack[RouterSettings]
) -> Call[results.RouterChanged]:
    """Create a router, or change the settings named of one that is there (`docs/spec/api.md` section 7)."""
    fields = {name.rstrip("_"): value for name, value in settings.items()}
    return Call(
        method="PUT",
        target=router_path(router),
        answer=results.RouterChanged,
        body=encode({"source": source, "dest": dest, **fields}),
        repeatable=True,
    )


def update_router(
    router: str, source: str | None = None, dest: str | None = None, **settings: Unpack[RouterSettings]
) -> Call[results.RouterChanged]:
    """Change the settings named. Raises NotFound where there is no router, and Conflict where its source or dest is
    not the one that is given."""
    fields = {name.rstrip("_"): value for name, value in settings.items()}
    ends = {name: topic for name, topic in (("source", source), ("dest", dest)) if topic is not None}
    return Call(
        method="PUT",
        target=target(router_path(router), create=False),
        answer=results.RouterChanged,
        body=encode(ends | fields),
        repeatable=True,
    )


def router(router: str) -> Call[results.RouterState]:
    """A router, how far it is and what it has copied."""
    return Call(method="GET", target=router_path(router), answer=results.RouterState, repeatable=True)


def router_page(
    *,
    prefix: str = "",
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 100,
    cursor: str | None = None,
) -> Call[results.RouterPage]:
    """One page of the routers whose names have a prefix, of a source, into a dest, in the order of names."""
    where = target("/v0/routers", prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor)
    return Call(method="GET", target=where, answer=results.RouterPage, repeatable=True)


def delete_router(router: str) -> Call[results.RouterDeletion]:
    """Delete a router. Its copies stay."""
    return Call(method="DELETE", target=router_path(router), answer=results.RouterDeletion, repeatable=False)


# --- queues ----------------------------------------------------------------------------------------------------------


def claim(
    topic: str, node: str, *, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0
) -> Call[results.Claimed]:
    """Lease up to `max` jobs, and wait for the first if there is none (`docs/spec/api.md` section 9). Not repeated when
    its answer is lost: the jobs that were leased come back when their leases are over."""
    return Call(
        method="POST",
        target=topic_path(topic, "claim"),
        answer=results.Claimed,
        body=_body(node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms),
        repeatable=False,
        waits=wait_ms / 1000,
    )


def ack(topic: str, node: str, seqs: Sequence[int], *, lease_ids: Sequence[str] | None = None) -> Call[results.Acked]:
    """Delete jobs that are done. With `lease_ids`, one for each seq, only under those very leases. What is `skipped`
    in the result was not held, or was acked by an earlier try whose answer was lost."""
    return Call(
        method="POST",
        target=topic_path(topic, "ack"),
        answer=results.Acked,
        body=_body(node=node, seqs=seqs, lease_ids=lease_ids),
        repeatable=lease_ids is not None,
    )


def nack(
    topic: str, node: str, seqs: Sequence[int], *, delay_ms: int = 0, lease_ids: Sequence[str] | None = None
) -> Call[results.Nacked]:
    """Give jobs back, to be given out again after `delay_ms`."""
    return Call(
        method="POST",
        target=topic_path(topic, "nack"),
        answer=results.Nacked,
        body=_body(node=node, seqs=seqs, delay_ms=delay_ms, lease_ids=lease_ids),
        repeatable=lease_ids is not None,
    )


def extend(
    topic: str, node: str, seqs: Sequence[int], *, lease_ms: int, lease_ids: Sequence[str] | None = None
) -> Call[results.Extended]:
    """Hold jobs for `lease_ms` from now."""
    return Call(
        method="POST",
        target=topic_path(topic, "extend"),
        answer=results.Extended,
        body=_body(node=node, seqs=seqs, lease_ms=lease_ms, lease_ids=lease_ids),
        repeatable=lease_ids is not None,
    )


def open_work(topic: str, node: str, *, max: int = 1, lease_ms: int | None = None) -> Call[bytes]:
    """The stream of jobs that are leased to its connection (`docs/spec/api.md` section 9)."""
    where = target(topic_path(topic, "work"), node=node, max=max, lease_ms=lease_ms)
    return Call(method="GET", target=where, accept="text/event-stream", repeatable=False)


# --- live delivery ---------------------------------------------------------------------------------------------------


def create_watch(
    topics: Mapping[str, Mapping[str, object]],
    *,
    lenient: bool = False,
    node: str | Iterable[str] = (),
    limit: int | None = None,
    max_batch_bytes: int | None = None,
    heartbeat_ms: int | None = None,
    include_data: bool = True,
    include_meta: bool = True,
    include_tags: bool = True,
    consistency: Literal["eventual", "strong"] = "eventual",
    create: bool = False,
) -> Call[results.Watch]:
    """Make a watch session; `topics` maps names to `{"from_seq": n}` or `{"tail": true}` (`docs/spec/api.md` section
    8).
    `create`: wait for topics that are not there yet; else they are 404."""
    return Call(
        method="POST",
        target=target("/v0/watch", lenient=lenient or None),
        answer=results.Watch,
        body=_body(
            topics=topics,
            node=_names(node) or None,
            limit=limit,
            max_batch_bytes=max_batch_bytes,
            heartbeat_ms=heartbeat_ms,
            include_data=include_data,
            include_meta=include_meta,
            include_tags=include_tags,
            consistency=consistency,
            create=create or None,
        ),
        repeatable=True,
    )


def open_watch(stream_url: str, last_event_id: str | None = None) -> Call[bytes]:
    """The stream of a watch session, after the frame with an id."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    return Call(method="GET", target=stream_url, accept="text/event-stream", headers=headers, repeatable=True)


# --- what several calls have in common -------------------------------------------------------------------------------


def values_of(page: results.Page, to_seq: int | None = None) -> Iterator[results.Record | results.Tombstone]:
    """A page as a reader meets it: the gap first, then the records up to `to_seq`, each with its topic."""
    if page.tombstone is not None and (to_seq is None or page.tombstone.gap_from <= to_seq):
        page.tombstone.topic = page.topic
        yield page.tombstone
    for record in page.records:
        if to_seq is not None and record.seq > to_seq:
            return
        record.topic = page.topic
        yield record
