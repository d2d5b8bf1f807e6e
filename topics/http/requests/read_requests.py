"""Decoding and checking reads (`docs/spec/api.md` section 5) and exports (`docs/spec/pipeline.md` section 1)."""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.engine.operations.backward_reads import BackwardRead
from topics.engine.operations.export import ExportRequest
from topics.errors import invalid
from topics.filters.record_filter import Filter
from topics.http.requests.filter_fields import check_filter, check_query_filter
from topics.http.requests.json_checks import check_depth, check_text, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.log.names import check_consumer_name
from topics.log.tag_match import TagMatch, parse_match
from topics.model import (
    MAX_U64,
    ConsumerRead,
    ReadRequest,
)

MAX_NODES: Final = 1000
"""The most nodes (writers) whose records one read or watch may leave out."""

DEFAULT_LIMIT: Final = 256

MAX_WAIT_MS: Final = 30_000

DEFAULT_BATCH_BYTES: Final = 1 << 20

MAX_BATCH_BYTES: Final = 8 << 20


class ExportQuery(msgspec.Struct, kw_only=True):
    """The query parameters of an export, for the description of the interface."""

    from_seq: int = 0
    to_seq: int | None = None
    from_ts: int | None = None
    to_ts: int | None = None
    match: str | None = None
    filter: str | None = None
    node: str | list[str] | None = None
    include_tags: bool = True
    include_meta: bool = True
    include_data: bool = True
    epoch: int | None = None


def decode_export(query: bytes, settings: Settings) -> ExportRequest:
    """The query of an export (`docs/spec/pipeline.md` section 1). `node` may be repeated. Raises 400."""
    values = Query(query)
    nodes = values.all("node")
    check_nodes(nodes, settings)
    match = None
    if values.all("match"):
        text = values.text("match", "")
        if not text:
            raise invalid("match", "must not be empty")
        match = check_match(parse_match(["tag", "Glob" if text.endswith("*") else "Eq", text]), "match", settings)
    return ExportRequest(
        from_seq=values.integer("from_seq", 0),
        to_seq=values.integer("to_seq", None),
        from_ts=values.integer("from_ts", None),
        to_ts=values.integer("to_ts", None),
        match=match,
        filter=check_query_filter(values),
        nodes=frozenset(nodes),
        include_tags=values.boolean("include_tags", True),
        include_meta=values.boolean("include_meta", True),
        include_data=values.boolean("include_data", True),
        epoch=values.integer("epoch", None),
    )


class ReadBody(msgspec.Struct, kw_only=True):
    """The fields of a diff, before checks."""

    from_seq: int | UnsetType = UNSET
    epoch: int | None = None
    limit: int = DEFAULT_LIMIT
    node: str | list[str] | None = None
    include_tags: bool = False
    include_meta: bool = True
    wait_ms: int = 0
    max_batch_bytes: int = DEFAULT_BATCH_BYTES
    filter: msgspec.Raw | UnsetType = UNSET
    consumer: str | None = None
    commit_seq: int | None = None
    generation: int | None = None
    ack: Literal["before"] | None = None
    before_seq: int | None = None
    touch: bool = True


_read_body: Final = msgspec.json.Decoder(ReadBody)


def decode_read(raw: bytes, settings: Settings) -> ReadRequest | BackwardRead:
    """The body of a diff, with its numbers clamped (`docs/spec/api.md` section 5). Raises 400."""
    body = ReadBody()
    if raw:
        check_utf8(raw)
        body = decode_json(_read_body, raw)
        check_depth(raw, "body")
    nodes = [body.node] if isinstance(body.node, str) else body.node or []
    return _read_request(body, nodes, check_filter(body.filter), settings)


def decode_read_query(query: bytes, settings: Settings) -> ReadRequest | BackwardRead:
    """The query of a diff, with its numbers clamped (`docs/spec/api.md` section 5). `node` may be repeated. Raises
    400."""
    values = Query(query)
    body = ReadBody(
        from_seq=values.integer("from_seq", UNSET),
        epoch=values.integer("epoch", None),
        limit=values.integer("limit", DEFAULT_LIMIT),
        include_tags=values.boolean("include_tags", False),
        include_meta=values.boolean("include_meta", True),
        wait_ms=values.integer("wait_ms", 0),
        max_batch_bytes=values.integer("max_batch_bytes", DEFAULT_BATCH_BYTES),
        consumer=values.text("consumer", "") if values.all("consumer") else None,
        commit_seq=values.integer("commit_seq", None),
        generation=values.integer("generation", None),
        ack=_ack(values),
        before_seq=values.integer("before_seq", None),
        touch=values.boolean("touch", True),
    )
    return _read_request(body, values.all("node"), check_query_filter(values), settings)


def _ack(values: Query) -> Literal["before"] | None:
    if not values.all("ack"):
        return None
    if values.text("ack", "") != "before":
        raise invalid("ack", "must be before")
    return "before"


def _read_request(
    body: ReadBody, nodes: list[str], wanted: Filter | None, settings: Settings
) -> ReadRequest | BackwardRead:
    for name in ("from_seq", "epoch", "limit", "wait_ms", "max_batch_bytes", "commit_seq", "generation", "before_seq"):
        value = getattr(body, name)
        if value is not None and value is not UNSET and not 0 <= value <= MAX_U64:
            raise not_u64(name)
    check_nodes(nodes, settings)
    if body.before_seq is not None:
        return _backward_read(body, nodes, wanted, settings)
    return ReadRequest(
        from_seq=0 if body.from_seq is UNSET else body.from_seq,
        epoch=body.epoch,
        limit=min(body.limit or DEFAULT_LIMIT, settings.max_limit),
        nodes=frozenset(nodes),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        wait_ms=min(body.wait_ms, MAX_WAIT_MS),
        max_batch_bytes=min(body.max_batch_bytes or DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
        filter=wanted,
        consumer=_consumer_read(body),
        touch=body.touch,
    )


def _backward_read(body: ReadBody, nodes: list[str], wanted: Filter | None, settings: Settings) -> BackwardRead:
    """A read of the newest records below `before_seq`. Raises 400 for what only a read forwards has."""
    assert body.before_seq is not None
    if body.wait_ms:
        raise invalid("wait_ms", "a read with before_seq does not wait")
    for name in ("consumer", "commit_seq", "generation", "ack"):
        if getattr(body, name) is not None:
            raise invalid(name, "a read with before_seq is not that of a consumer")
    return BackwardRead(
        before_seq=body.before_seq,
        from_seq=0 if body.from_seq is UNSET else body.from_seq,
        epoch=body.epoch,
        limit=min(body.limit or DEFAULT_LIMIT, settings.max_limit),
        nodes=frozenset(nodes),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        max_batch_bytes=min(body.max_batch_bytes or DEFAULT_BATCH_BYTES, MAX_BATCH_BYTES),
        filter=wanted,
        touch=body.touch,
    )


def _consumer_read(body: ReadBody) -> ConsumerRead | None:
    """Return the consumer part of a diff; None if it has none. Raises 400."""
    if body.consumer is None:
        for name in ("commit_seq", "generation", "ack"):
            if getattr(body, name) is not None:
                raise invalid(name, "needs a consumer")
        return None
    check_consumer_name(body.consumer)
    if body.from_seq is not UNSET:
        raise invalid("from_seq", "the read begins at the position of its consumer")
    if body.generation is not None and body.commit_seq is None and body.ack is None:
        raise invalid("generation", "needs commit_seq or ack")
    return ConsumerRead(
        consumer=body.consumer,
        commit_seq=body.commit_seq,
        generation=body.generation,
        before=body.ack is not None,
    )


def check_nodes(nodes: list[str], settings: Settings) -> None:
    """Check the names and the number of the nodes that a reader leaves out. Raises 400."""
    if len(nodes) > MAX_NODES:
        raise invalid("node", f"{len(nodes)} nodes, at most {MAX_NODES} can be left out", max=MAX_NODES)
    for node in nodes:
        check_text("node", node, settings.max_node_bytes)


def check_match(match: TagMatch, field: str, settings: Settings) -> TagMatch:
    """Check the length of a pattern, and return the match. No tag is longer than `TOPICS_MAX_TAG_BYTES`, so a longer
    pattern is a mistake. Raises 400."""
    size = len(match.pattern.encode())
    if size > settings.max_tag_bytes:
        raise invalid(field, f"is {size} bytes long, a tag has at most {settings.max_tag_bytes}")
    return match
