"""Each call of `/v0` as a value (`docs/spec/api.md`).

One function for each call. It sends nothing, and leaves validation to the daemon: it returns a `ClientCall`, which
holds the request, the type of the answer, and whether the call may be repeated when its outcome is unknown. The
functions are the methods of both clients, with their parameters and docstrings.

The functions raise only TypeError or ValueError, for values that JSON cannot express. As methods of a client they raise
a TopicsError as well. They raise NotFound if a topic or router does not exist, Conflict if its state forbids the call,
BadRequest for a parameter that the daemon refuses, and the errors that every call can raise (`topics.client.errors`).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Literal, TypeVar, Unpack
from urllib.parse import quote, urlencode

import msgspec

from topics.client import results
from topics.client.given_settings import Match, RouterSettings, TopicSettings
from topics.client.results import Acked, NewAppend, NewRecord

T = TypeVar("T")

JSON: Final = "application/json"
LINES: Final = "application/x-ndjson"
AUTO: Final = "auto"
"""As an `idempotency_key`: make a new, random key for each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCall(Generic[T]):
    """One request to the daemon, and the type `T` of its result. `Client.run` makes it."""

    method: str
    target: str
    """Path and query, percent-encoded."""
    answer: type[T] | None = None
    """The type of the result, as which the JSON of a success is decoded. `str`: the body as text, not JSON; None: the
    body as bytes."""
    body: bytes | None = field(default=None, repr=False)
    upload: Iterator[bytes] | AsyncIterator[bytes] | None = field(default=None, repr=False)
    """A body that is made while it is sent, instead of `body`. Such a call is never repeated."""
    content_type: str = JSON
    accept: str = JSON
    repeatable: bool
    """The call does no harm when the daemon carries it out twice. So it may be repeated when its outcome is unknown."""
    probe: bool = False
    """The call asks for the daemon's state right now. So it is never repeated, and its failure is the answer."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    waits: float = 0.0
    """How long the daemon may wait on purpose before it answers, in seconds. The client's timeout begins after it."""
    reads: bool | None = None
    """The call changes nothing, so a standby may answer it. None: this is so for a GET that may be repeated."""

    @property
    def only_reads(self) -> bool:
        """Return True if a standby may answer the call."""
        return self.reads if self.reads is not None else self.method == "GET" and self.repeatable


def topic_path(topic: str, *more: str) -> str:
    """The path of a topic, or of a resource below it. A name with slashes stays one segment of the path."""
    return "/".join(("/v0/topics", quote(topic, safe=":"), *more))


def router_path(router: str) -> str:
    """The path of a router. A name with slashes stays one segment of the path."""
    return f"/v0/routers/{quote(router, safe=':')}"


Filter = Sequence[object] | str
"""The condition that records must match: a list as the interface takes it, such as `["tag", "Eq", "eu"]`, or its
JSON."""


def target(path: str, **parameters: object) -> str:
    """A path with a query of the parameters that are not None. Booleans become `true` and `false`; the name of a
    sequence is repeated for each item."""
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
    """The JSON of a value. Raises TypeError or ValueError for a value that JSON cannot express."""
    return msgspec.json.encode(value)


def _body(**fields: object) -> bytes:
    """The JSON of the fields that are not None."""
    return encode({name: value for name, value in fields.items() if value is not None})


def filter_text(filter: Filter) -> str:
    """The JSON of a filter."""
    return filter if isinstance(filter, str) else encode(filter).decode()


def filter_json(filter: Filter | None) -> msgspec.Raw | None:
    """A filter as a field of a body; None for none."""
    return None if filter is None else msgspec.Raw(filter_text(filter).encode())


def _names(node: str | Iterable[str]) -> list[str]:
    return [node] if isinstance(node, str) else list(node)


# --- topics ----------------------------------------------------------------------------------------------------------


def create(topic: str, **config: Unpack[TopicSettings]) -> ClientCall[results.TopicChanged]:
    """Create a topic. If it exists, change the settings that are given (`docs/spec/api.md` section 3).

    Raises Conflict for a `type` other than that of the existing topic.
    """
    return ClientCall(
        method="PUT",
        target=topic_path(topic),
        answer=results.TopicChanged,
        body=encode(config),
        repeatable=True,
    )


def update(topic: str, **config: Unpack[TopicSettings]) -> ClientCall[results.TopicChanged]:
    """Change the settings of a topic that are given. Raises NotFound where there is no such topic."""
    return ClientCall(
        method="PUT",
        target=target(topic_path(topic), create=False),
        answer=results.TopicChanged,
        body=encode(config),
        repeatable=True,
    )


def state(topic: str, *, touch: bool = True, places: bool = False) -> ClientCall[results.TopicState]:
    """The settings of a topic, its head and floor, and what it holds; with `places` also where that is. With
    `touch=False` the call does not count as a use of the topic, which raises its automatic priority."""
    where = target(topic_path(topic), touch=None if touch else False, places=places or None)
    return ClientCall(method="GET", target=where, answer=results.TopicState, repeatable=True)


def topic_page(
    *,
    prefix: str = "",
    page_size: int = 100,
    cursor: str | None = None,
    type: Literal["log", "queue"] | None = None,
    sort: Literal["records", "bytes", "written"] | None = None,
) -> ClientCall[results.TopicPage]:
    """One page of the topics whose names begin with `prefix`, in the order of names. `cursor` is `next_cursor` of the
    page before; None: the first page. With `type` only topics of this type, queues with their counters. With `sort` the
    topics with the most records or bytes, or those that were written to last; such a list has one page."""
    where = target("/v0/topics", prefix=prefix or None, page_size=page_size, cursor=cursor, type=type, sort=sort)
    return ClientCall(method="GET", target=where, answer=results.TopicPage, repeatable=True)


def delete_topic(topic: str, *, if_empty: bool = False) -> ClientCall[results.TopicDeletion]:
    """Delete a topic with all its records, and the routers from and to it. With `if_empty` a topic that holds records
    is not deleted: raises Conflict."""
    where = target(topic_path(topic), if_empty=if_empty or None)
    return ClientCall(method="DELETE", target=where, answer=results.TopicDeletion, repeatable=False)


# --- records ---------------------------------------------------------------------------------------------------------


def encode_record(
    record: object, tag: str | None = None, node: str | None = None, meta: Mapping[str, str] | None = None
) -> bytes:
    """The JSON of one record of an append. `record` is a NewRecord, or the data of a record; with a tag, a node or meta
    it is the data. Raises TypeError or ValueError for a value that JSON cannot express."""
    data = record
    job: dict[str, object] = {}
    if tag is None and node is None and meta is None:
        if not isinstance(record, NewRecord):
            return b'{"data":' + encode(record) + b"}"
        data, tag, node, meta = record.data, record.tag, record.node, record.meta
        fields: dict[str, object] = {"delay_ms": record.delay_ms, "not_before": record.not_before}
        fields["priority"] = record.priority
        if record.unique is not None:
            said = msgspec.structs.asdict(record.unique)
            fields["unique"] = {name: value for name, value in said.items() if value is not None}
        job = {name: value for name, value in fields.items() if value is not None}
    parts = [b'{"data":', encode(data)]
    if tag is not None:
        parts += (b',"tag":', encode(tag))
    if node is not None:
        parts += (b',"node":', encode(node))
    if meta:
        parts += (b',"meta":', encode(meta))
    if job:
        parts += (b",", encode(job)[1:-1])
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
    expected_head_seq: int | None = None,
    expected_tag_seqs: Mapping[str, int] | None = None,
    fence: tuple[str, int] | None = None,
) -> ClientCall[results.Appended]:
    """Append records, all or none (`docs/spec/api.md` section 4). Returns when they are as safe as the `durability` of
    the topic says.

    An item is a NewRecord, or a JSON value, which becomes the data of a record. `node` is the writer of all records
    that name none themselves. The topic remembers an `idempotency_key` for `idempotency_window_ms`, and appends nothing
    for a key that it remembers; by default each call has a new key. With None there is no key, and an append whose
    outcome is unknown is not repeated.

    A topic that does not exist is created with the settings `config`, or with `create=False` raises NotFound. With
    `disable_backpressure` the daemon lets the append wait under pressure where it would refuse it (Throttled); the
    client waits up to 300 s for the answer. `return_seqs=False` leaves `seqs` of the result empty. Raises TopicFull
    where the topic rejects records beyond its caps, and TooLarge for a body that is larger than the daemon takes.

    The last three are conditions (`docs/spec/consumers.md` section 1). Raises ConditionFailed if the last seq of the
    topic is not `expected_head_seq` (0: nothing was ever written, or there is no topic), or if the newest live record
    with a tag does not have its seq in `expected_tag_seqs` (0: there is none). Raises Fenced if the token of `fence`, a
    name and a token, is below the highest that the topic has seen under this name; a higher one becomes that. An append
    with a key that was done already returns its first result without being judged.
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
        **_conditions(expected_head_seq, expected_tag_seqs, fence),
    }
    return encoded_append(topic, map(encode_record, records), rest, return_seqs=return_seqs)


def _conditions(
    head_seq: int | None, tag_seqs: Mapping[str, int] | None, fence: tuple[str, int] | None
) -> dict[str, object]:
    """The fields of a body for these conditions."""
    return {
        "expected_head_seq": head_seq,
        "expected_tag_seqs": dict(tag_seqs) if tag_seqs is not None else None,
        "fence": {"name": fence[0], "token": fence[1]} if fence is not None else None,
    }


def encoded_append(
    topic: str, records: Iterable[bytes], rest: Mapping[str, object], *, return_seqs: bool
) -> ClientCall[results.Appended]:
    """An append of records that are encoded already (`encode_record`). `rest` are the other fields of the body; a field
    that is None is left out."""
    said = encode({name: value for name, value in rest.items() if value is not None})
    body = b'{"records":[' + b",".join(records) + b"]" + (b"," + said[1:] if len(said) > 2 else b"}")
    return ClientCall(
        method="POST",
        target=target(topic_path(topic), return_seqs=None if return_seqs else False),
        answer=results.Appended,
        body=body,
        repeatable=rest.get("idempotency_key") is not None,
        waits=300.0 if rest.get("disable_backpressure") else 0.0,
    )


def append_bytes(
    topic: str,
    content: bytes | bytearray | memoryview,
    content_type: str = "application/octet-stream",
    *,
    tag: str | None = None,
    node: str | None = None,
    meta: Mapping[str, str] | None = None,
    idempotency_key: str | None = AUTO,
    create: bool | None = None,
    disable_backpressure: bool = False,
    expected_head_seq: int | None = None,
    expected_tag_seqs: Mapping[str, int] | None = None,
    fence: tuple[str, int] | None = None,
) -> ClientCall[results.Appended]:
    """Append one record of raw bytes (`docs/spec/consumers.md` section 7). `content_type` is
    `application/octet-stream`, `application/cbor`, `application/protobuf`, or any type of images, audio or video.

    The other arguments are as in `append`, and so is what is raised. Raises BadRequest (`record_too_large`) for bytes
    that do not fit into a record as base64, and ApiError (415) for another type. Readers find the bytes in
    `Record.content`.
    """
    if content_type.partition(";")[0].strip().lower() in (JSON, LINES) or not content_type.isprintable():
        raise ValueError(f"content_type: {content_type!r} is no type of raw bytes")
    key = uuid.uuid4().hex if idempotency_key == AUTO else idempotency_key
    objects = {"meta": meta or None, **_conditions(expected_head_seq, expected_tag_seqs, fence)}
    where = target(
        topic_path(topic),
        tag=tag,
        node=node,
        idempotency_key=key,
        create=create,
        disable_backpressure=disable_backpressure or None,
        **{name: None if value is None else encode(value).decode() for name, value in objects.items()},
    )
    return ClientCall(
        method="POST",
        target=where,
        answer=results.Appended,
        body=bytes(content),
        content_type=content_type,
        repeatable=key is not None,
        waits=300.0 if disable_backpressure else 0.0,
    )


def transaction(
    appends: Iterable[NewAppend], *, idempotency_key: str | None = AUTO
) -> ClientCall[results.TransactionCommitted]:
    """Append to 2 to 32 different topics: all records are stored, or none (`docs/spec/consumers.md` section 1). Returns
    when all are synced, in topics of any `durability`; readers see all of them from the same moment on.

    The first topic remembers the `idempotency_key` for its `idempotency_window_ms`, apart from the keys of appends; by
    default each call has a new key. With None there is no key, and a transaction whose outcome is unknown is not
    repeated. Raises what an append would raise, with the topic in `error.detail["topic"]`, and Conflict for a topic of
    class `ephemeral` or `memory`; nothing is stored then, also if the condition of one append does not hold.
    """
    key = uuid.uuid4().hex if idempotency_key == AUTO else idempotency_key
    members = []
    for append in appends:
        rest = {
            **{"topic": append.topic, "node": append.node, "create": append.create, "config": append.config},
            **_conditions(append.expected_head_seq, append.expected_tag_seqs, append.fence),
        }
        said = encode({name: value for name, value in rest.items() if value is not None})
        members.append(said[:-1] + b',"records":[' + b",".join(map(encode_record, append.records)) + b"]}")
    body = b'{"appends":[' + b",".join(members) + b"]"
    if key is not None:
        body += b',"idempotency_key":' + encode(key)
    return ClientCall(
        method="POST",
        target="/v0/transactions",
        answer=results.TransactionCommitted,
        body=body + b"}",
        repeatable=key is not None,
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
    filter: Filter | None = None,
    before_seq: int | None = None,
    touch: bool = True,
) -> ClientCall[results.Page]:
    """One page of at most `limit` records after `from_seq` (`docs/spec/api.md` section 5).

    `epoch` is the instance of the topic that `from_seq` belongs to; where the topic was made again since, the page has
    a Tombstone whose reason is `recreated`, and begins at the start of the new instance. `node` leaves out the records
    of these writers. `wait_ms` is how long the daemon waits for the first record or tombstone where there is none.
    `max_batch_bytes` bounds the size of the page. `filter` keeps only the records that match; a page with a filter may
    be empty although there is more (`caught_up` is false then).

    With `before_seq` the page has the newest records below this seq and above `from_seq`, the newest first, and its
    Tombstone, if any, is about what comes after the last of them; `next_before_seq` leads to the next page. With
    `touch=False` the call does not count as a use of the topic, which raises its automatic priority.
    """
    if filter is not None:  # it may be too long for the head of a request
        return ClientCall(
            method="POST",
            reads=True,
            target=topic_path(topic, "diff"),
            answer=results.Page,
            body=_body(
                from_seq=from_seq,
                epoch=epoch,
                limit=limit,
                node=_names(node) or None,
                include_tags=include_tags,
                include_meta=include_meta,
                wait_ms=wait_ms,
                max_batch_bytes=max_batch_bytes,
                filter=filter_json(filter),
                before_seq=before_seq,
                touch=None if touch else False,
            ),
            repeatable=True,
            waits=wait_ms / 1000,
        )
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
        before_seq=before_seq,
        touch=None if touch else False,
    )
    return ClientCall(method="GET", target=where, answer=results.Page, repeatable=True, waits=wait_ms / 1000)


def record(topic: str, seq: int) -> ClientCall[results.Record]:
    """The record with this seq (`docs/spec/consumers.md` section 7).

    Raises NotFound if it is not there; the `reason` in `detail` of the error is `deleted`, `evicted`, `expired`,
    `lost`, `corrupt` or `not_yet`.
    """
    where = topic_path(topic, "records", str(seq))
    return ClientCall(method="GET", target=where, answer=results.Record, repeatable=True)


def delete_records(
    topic: str,
    *,
    after_seq: int | None = None,
    before_seq: int | None = None,
    before_ts: int | None = None,
    match: Match | None = None,
    dry_run: bool = False,
) -> ClientCall[results.RecordsDeletion]:
    """Delete the records whose seqs are above `after_seq` and below `before_seq`, which were appended before
    `before_ts` (ms since the epoch), and whose tags match (`docs/spec/api.md` section 6).

    At least one of the conditions is needed, and all that are given have to be fulfilled. Records that are appended
    while the call runs stay. The deletion leaves no tombstone, and the seqs of the records are not used again. With
    `dry_run` the records are counted, and none is deleted.
    """
    body = _body(after_seq=after_seq, before_seq=before_seq, before_ts=before_ts, match=match, dry_run=dry_run or None)
    return ClientCall(
        method="POST",
        target=topic_path(topic, "delete"),
        answer=results.RecordsDeletion,
        body=body,
        repeatable=dry_run,
    )


# --- stages ----------------------------------------------------------------------------------------------------------


def commit(
    topic: str,
    stages: Iterable[str],
    idempotency_key: str,
    *,
    expected_head_seq: int | None = None,
    expected_tag_seqs: Mapping[str, int] | None = None,
    fence: tuple[str, int] | None = None,
) -> ClientCall[results.Committed]:
    """Append the records of stages to their topic, all at once, in the order in which the stages are named
    (`docs/spec/pipeline.md` section 1).

    It happens once for each `idempotency_key`: a repeat returns the result of the first call, with `deduped` set.
    Raises NotFound if a stage does not exist, and publishes nothing then. The conditions are those of `append`.
    """
    conditions = _conditions(expected_head_seq, expected_tag_seqs, fence)
    return ClientCall(
        method="POST",
        target=topic_path(topic, "commit"),
        answer=results.Committed,
        body=_body(stages=_names(stages), idempotency_key=idempotency_key, **conditions),
        repeatable=True,
        waits=300.0,
    )


def delete_fence(topic: str, fence: str) -> ClientCall[results.FenceDeletion]:
    """Forget the highest token that a topic has seen under a name, so that any token holds again. A fence that does not
    exist is no error."""
    where = topic_path(topic, "fences", quote(fence, safe=":"))
    return ClientCall(method="DELETE", target=where, answer=results.FenceDeletion, repeatable=False)


def seal(topic: str) -> ClientCall[results.Sealed]:
    """Seal the active segment of a topic with all records that could be read before; the daemon takes a checkpoint. An
    empty or `ephemeral` topic usually has no segments, which is no error."""
    return ClientCall(
        method="POST", target=topic_path(topic, "seal"), answer=results.Sealed, repeatable=True, waits=300.0
    )


def delete_stage(topic: str, stage: str) -> ClientCall[results.StageDeletion]:
    """Drop a stage with all its records. A stage that does not exist is no error."""
    where = topic_path(topic, "stages", quote(stage, safe=":"))
    return ClientCall(method="DELETE", target=where, answer=results.StageDeletion, repeatable=False)


# --- routers ---------------------------------------------------------------------------------------------------------


def create_router(
    router: str, source: str, dest: str, **settings: Unpack[RouterSettings]
) -> ClientCall[results.RouterChanged]:
    """Create a router that copies records from the topic `source` to the topic `dest`. If it exists, change the
    settings that are given (`docs/spec/api.md` section 7).

    Raises Conflict for an existing router with another source or dest, and for one that would close a cycle.
    """
    fields = {name.rstrip("_"): value for name, value in settings.items()}
    return ClientCall(
        method="PUT",
        target=router_path(router),
        answer=results.RouterChanged,
        body=encode({"source": source, "dest": dest, **fields}),
        repeatable=True,
    )


def update_router(
    router: str, source: str | None = None, dest: str | None = None, **settings: Unpack[RouterSettings]
) -> ClientCall[results.RouterChanged]:
    """Change the settings of a router that are given. Raises NotFound where there is no such router, and Conflict where
    its source or dest is not the given one."""
    fields = {name.rstrip("_"): value for name, value in settings.items()}
    ends = {name: topic for name, topic in (("source", source), ("dest", dest)) if topic is not None}
    return ClientCall(
        method="PUT",
        target=target(router_path(router), create=False),
        answer=results.RouterChanged,
        body=encode(ends | fields),
        repeatable=True,
    )


def router(router: str) -> ClientCall[results.RouterState]:
    """The settings of a router, its cursor, its lag, and how many records it has copied."""
    return ClientCall(method="GET", target=router_path(router), answer=results.RouterState, repeatable=True)


def router_page(
    *,
    prefix: str = "",
    source: str | None = None,
    dest: str | None = None,
    page_size: int = 100,
    cursor: str | None = None,
) -> ClientCall[results.RouterPage]:
    """One page of the routers whose names begin with `prefix`, in the order of names; with `source` or `dest` only the
    routers from or to that topic. `cursor` is `next_cursor` of the page before; None: the first page."""
    where = target("/v0/routers", prefix=prefix or None, source=source, dest=dest, page_size=page_size, cursor=cursor)
    return ClientCall(method="GET", target=where, answer=results.RouterPage, repeatable=True)


def delete_router(router: str) -> ClientCall[results.RouterDeletion]:
    """Delete a router. The records that it has copied stay."""
    return ClientCall(method="DELETE", target=router_path(router), answer=results.RouterDeletion, repeatable=False)


# --- queues ----------------------------------------------------------------------------------------------------------


def jobs_path(topic: str, group: str | None, verb: str) -> str:
    """The path of a call about the jobs of a queue, or of a group of a log."""
    return topic_path(topic, verb) if group is None else topic_path(topic, "groups", group, verb)


def claim(
    topic: str, node: str, *, max: int = 1, lease_ms: int | None = None, wait_ms: int = 0, group: str | None = None
) -> ClientCall[results.Claimed]:
    """Lease up to `max` jobs to `node` for `lease_ms`; None: as the topic says (`docs/spec/api.md` section 9).

    `wait_ms` is how long the daemon waits for a first job where none is ready; the result may be empty. A claim whose
    answer was lost is not repeated: the jobs that it has leased become ready again when their leases end. With `group`
    the jobs are the records of a log, for a group of it. Raises Conflict for a topic that is no queue, or with `group`
    for one that is.
    """
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "claim"),
        answer=results.Claimed,
        body=_body(node=node, max=max, lease_ms=lease_ms, wait_ms=wait_ms),
        repeatable=False,
        waits=wait_ms / 1000,
    )


def ack(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    lease_ids: Sequence[str] | None = None,
    results: Sequence[object] | None = None,
    group: str | None = None,
) -> ClientCall[Acked]:
    """Delete jobs that are done; with `group`, note that the group has finished them, and delete nothing. `results`,
    one for each seq, are what became of them: any JSON, for the topic that `completed` names (else BadRequest).

    With `lease_ids`, one for each seq, a job is deleted only under that lease, and the call may be repeated. `skipped`
    of the result are the seqs that `node` does not hold; a repeat skips those that an earlier attempt has acked.
    """
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "ack"),
        answer=Acked,
        body=_body(node=node, seqs=seqs, lease_ids=lease_ids, results=results),
        repeatable=lease_ids is not None,
    )


def nack(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    delay_ms: int | None = None,
    lease_ids: Sequence[str] | None = None,
    error: str | None = None,
    count: bool = True,
    dead: bool = False,
    group: str | None = None,
) -> ClientCall[results.Nacked]:
    """Give jobs back. They become ready again after `delay_ms`, by default as `retry` of the topic says. Jobs that have
    been given out `max_deliveries` times go to the dead-letter topic instead, if there is one. With `dead` all of them
    go there now. `error`, at most 4 KiB, is kept as their last one. With `count=False` it is as if they had not been
    given out this time. `lease_ids` and `skipped` are as in `ack`."""
    said = {"delay_ms": delay_ms, "error": error, "count": None if count else False, "dead": dead or None}
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "nack"),
        answer=results.Nacked,
        body=_body(node=node, seqs=seqs, lease_ids=lease_ids, **said),
        repeatable=lease_ids is not None,
    )


def extend(
    topic: str,
    node: str,
    seqs: Sequence[int],
    *,
    lease_ms: int,
    lease_ids: Sequence[str] | None = None,
    group: str | None = None,
) -> ClientCall[results.Extended]:
    """Extend the leases of jobs to `lease_ms` from now. `lease_ids` and `skipped` are as in `ack`."""
    return ClientCall(
        method="POST",
        target=jobs_path(topic, group, "extend"),
        answer=results.Extended,
        body=_body(node=node, seqs=seqs, lease_ms=lease_ms, lease_ids=lease_ids),
        repeatable=lease_ids is not None,
    )


def open_work(
    topic: str, node: str, *, max: int = 1, lease_ms: int | None = None, group: str | None = None
) -> ClientCall[bytes]:
    """The stream of the jobs that are leased to it, at most `max` at a time (`docs/spec/api.md` section 9)."""
    where = target(jobs_path(topic, group, "work"), node=node, max=max, lease_ms=lease_ms)
    return ClientCall(method="GET", target=where, accept="text/event-stream", repeatable=False)


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
    consistency: Literal["eventual", "strong", "remote"] = "eventual",
    create: bool = False,
    prefixes: Mapping[str, Mapping[str, object]] | None = None,
    filter: Filter | None = None,
    touch: bool = True,
) -> ClientCall[results.Watch]:
    """Make a watch session (`docs/spec/api.md` section 8).

    `topics` maps names to `{"from_seq": n}` or `{"tail": true}`, each perhaps with a `filter` and the `epoch` of its
    seq. A topic that does not exist raises NotFound; with `lenient` it is left out, with `create` the session
    waits for it. `prefixes` maps beginnings of names to the same, which counts for topics that exist; those made later
    are added from their first record. With `touch=False` delivery does not count as a use of the topics.
    """
    return ClientCall(
        method="POST",
        reads=True,
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
            prefixes=prefixes or None,
            filter=filter_json(filter),
            touch=None if touch else False,
        ),
        repeatable=True,
    )


def open_watch(stream_url: str, last_event_id: str | None = None) -> ClientCall[bytes]:
    """The stream of a watch session, after the frame with the id `last_event_id`; None: from the session's start."""
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    return ClientCall(method="GET", target=stream_url, accept="text/event-stream", headers=headers, repeatable=True)


# --- what several calls have in common -------------------------------------------------------------------------------


def values_of(page: results.Page, to_seq: int | None = None) -> Iterator[results.Record | results.Tombstone]:
    """Yield what a page holds up to `to_seq`, with `topic` set: its tombstone, then its records, by seq."""
    if page.tombstone is not None and (to_seq is None or page.tombstone.gap_from <= to_seq):
        page.tombstone.topic = page.topic
        yield page.tombstone
    for record in page.records:
        if to_seq is not None and record.seq > to_seq:
            return
        record.topic = page.topic
        yield record
