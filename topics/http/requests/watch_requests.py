"""Decoding and checking the requests for live delivery (`docs/spec/api.md` section 8). Without I/O.

Numbers are clamped as in a diff. A number outside of 0 to 2^64 - 1, an unknown field and a bad name are answered with a
400 that names the field. If both are given, `tail` counts and `from_seq` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from topics.config import Settings
from topics.errors import ApiError, invalid
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.read_requests import DEFAULT_LIMIT, MAX_BATCH_BYTES, check_nodes
from topics.log.names import check_topic_name
from topics.model import MAX_U64, WatchRequest, WatchStart

DEFAULT_FRAME_BYTES: Final = 256 << 10
DEFAULT_HEARTBEAT_MS: Final = 15_000
MIN_HEARTBEAT_MS: Final = 1_000
MAX_HEARTBEAT_MS: Final = 60_000


class FeedOptions(msgspec.Struct, kw_only=True):
    """The fields that watches, streams and subscriptions have in common."""

    node: str | list[str] | None = None
    limit: int = DEFAULT_LIMIT
    max_batch_bytes: int = DEFAULT_FRAME_BYTES
    include_meta: bool = True
    include_tags: bool = False
    include_data: bool = True
    create: bool = False


class WatchBody(FeedOptions, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/watch`, before checks."""

    topics: dict[str, msgspec.Raw]
    heartbeat_ms: int = DEFAULT_HEARTBEAT_MS
    consistency: Literal["eventual", "strong"] = "eventual"


class SubscribeBody(FeedOptions, kw_only=True):
    """The fields of a `subscribe` command, before checks."""

    topic: str | None = None
    from_seq: int = 0
    tail: bool = False
    topics: dict[str, msgspec.Raw] | None = None


_start: Final = msgspec.json.Decoder(WatchStart)
_watch_body: Final = msgspec.json.Decoder(WatchBody)
_subscribe_body: Final = msgspec.json.Decoder(SubscribeBody)


def decode_watch(raw: bytes, query: bytes, settings: Settings) -> WatchRequest:
    """The body of `POST /v0/watch`, and the query parameter `lenient`. Raises 400."""
    lenient = Query(query).boolean("lenient", False)
    if not raw:
        raise invalid("topics", "is required")
    check_utf8(raw)
    body = decode_json(_watch_body, raw)
    return _request(
        body,
        _starts(body.topics, settings),
        settings,
        heartbeat_ms=body.heartbeat_ms,
        strong=body.consistency == "strong",
        lenient=lenient,
    )


def decode_stream(topic: str, query: bytes, settings: Settings) -> WatchRequest:
    """The query of `GET /v0/topics/{topic}/stream`. Raises 400."""
    values = Query(query)
    wishes = FeedOptions(
        node=values.all("node"),
        limit=values.integer("limit", DEFAULT_LIMIT),
        max_batch_bytes=values.integer("max_batch_bytes", DEFAULT_FRAME_BYTES),
        include_meta=values.boolean("include_meta", True),
        include_tags=values.boolean("include_tags", False),
        include_data=values.boolean("include_data", True),
        create=values.boolean("create", False),
    )
    start = WatchStart(from_seq=values.integer("from_seq", 0), tail=values.boolean("tail", False))
    heartbeat_ms = values.integer("heartbeat_ms", DEFAULT_HEARTBEAT_MS)
    return _request(wishes, {topic: start}, settings, heartbeat_ms=heartbeat_ms)


def decode_subscribe(raw: bytes, settings: Settings) -> WatchRequest:
    """A `subscribe` command, with either `topic` or `topics`. Raises 400."""
    check_depth(raw, "body")
    body = decode_json(_subscribe_body, raw)
    if (body.topic is None) == (body.topics is None):
        raise invalid("topic", "give either topic or topics")
    if body.topics is not None:
        return _request(body, _starts(body.topics, settings), settings)
    assert body.topic is not None
    _check_u64("from_seq", body.from_seq)
    return _request(body, {body.topic: WatchStart(from_seq=body.from_seq, tail=body.tail)}, settings)


def _starts(topics: Mapping[str, msgspec.Raw], settings: Settings) -> dict[str, WatchStart]:
    """Decode the object of each topic by itself, so that an error can name the topic. Raises 400."""
    _check_count(len(topics), settings)
    starts = {}
    for name, raw in topics.items():
        try:
            starts[name] = decode_json(_start, bytes(raw))
        except ApiError as error:
            field = error.detail["field"]
            message = error.message.removeprefix(f"{field}: ")
            raise invalid(f"topics.{name}" if field == "body" else f"topics.{name}.{field}", message) from None
    return starts


def _request(
    body: FeedOptions,
    topics: Mapping[str, WatchStart],
    settings: Settings,
    *,
    heartbeat_ms: int = DEFAULT_HEARTBEAT_MS,
    strong: bool = False,
    lenient: bool = False,
) -> WatchRequest:
    for name, start in topics.items():
        try:
            check_topic_name(name)
        except ApiError as error:
            raise invalid("topics", error.message.removeprefix("topic: ")) from None
        _check_u64(f"topics.{name}.from_seq", start.from_seq)
    for field in ("limit", "max_batch_bytes"):
        _check_u64(field, getattr(body, field))
    _check_u64("heartbeat_ms", heartbeat_ms)
    nodes = [body.node] if isinstance(body.node, str) else body.node or []
    check_nodes(nodes, settings)
    return WatchRequest(
        topics=dict(topics),
        nodes=frozenset(nodes),
        limit=min(body.limit or DEFAULT_LIMIT, settings.max_limit),
        max_batch_bytes=min(body.max_batch_bytes or DEFAULT_FRAME_BYTES, MAX_BATCH_BYTES),
        heartbeat_ms=max(MIN_HEARTBEAT_MS, min(heartbeat_ms, MAX_HEARTBEAT_MS)),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        include_data=body.include_data,
        strong=strong,
        lenient=lenient,
        create=body.create,
    )


def _check_count(count: int, settings: Settings) -> None:
    maximum = settings.max_watch_topics
    if not 1 <= count <= maximum:
        raise invalid("topics", f"must hold 1 to {maximum} topics, not {count}", max=maximum)


def _check_u64(field: str, value: int) -> None:
    if not 0 <= value <= MAX_U64:
        raise not_u64(field)
