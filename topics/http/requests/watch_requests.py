"""Decoding and checking the requests for live delivery (`docs/spec/api.md` section 8). Without I/O.

Numbers are clamped as in a diff. A number outside of 0 to 2^64 - 1, an unknown field and a bad name are answered with a
400 that names the field. If both are given, `tail` counts and `from_seq` does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.engine.delivery.prefix_wishes import MOST_PREFIXES
from topics.errors import ApiError, invalid
from topics.filters.record_filter import Filter
from topics.http.requests.filter_fields import check_filter, check_query_filter
from topics.http.requests.json_checks import check_depth, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.read_requests import DEFAULT_LIMIT, MAX_BATCH_BYTES, check_nodes
from topics.log.names import TOPIC_NAME, check_consumer_name, check_topic_name
from topics.model import MAX_U64, Consistency, WatchRequest, WatchStart

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
    touch: bool = True
    filter: msgspec.Raw | UnsetType = UNSET


class WatchBody(FeedOptions, kw_only=True, forbid_unknown_fields=True):
    """The body of `POST /v0/watch`, before checks."""

    topics: dict[str, msgspec.Raw] | None = None
    prefixes: dict[str, msgspec.Raw] | None = None
    heartbeat_ms: int = DEFAULT_HEARTBEAT_MS
    consistency: Consistency = "eventual"


class SubscribeBody(FeedOptions, kw_only=True):
    """The fields of a `subscribe` command, before checks."""

    topic: str | None = None
    from_seq: int | UnsetType = UNSET
    tail: bool = False
    consumer: str | None = None
    topics: dict[str, msgspec.Raw] | None = None
    prefix: str | None = None


MAX_FILTER_VALUES: Final = 10_000
"""Commas in the filters of single topics and prefixes of one call: more than one filter can have values. Each value
takes up to 9 us to parse, in one step of the loop."""

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
    if body.topics is None and body.prefixes is None:
        raise invalid("topics", "is required, or prefixes")
    topics, prefixes = body.topics or {}, body.prefixes or {}
    _check_count(len(topics), settings, least=0 if prefixes else 1)
    if len(prefixes) > MOST_PREFIXES:
        raise invalid("prefixes", f"must hold at most {MOST_PREFIXES}, not {len(prefixes)}", max=MOST_PREFIXES)
    return _request(
        body,
        _starts("topics", topics),
        settings,
        prefixes=_starts("prefixes", prefixes),
        heartbeat_ms=body.heartbeat_ms,
        consistency=body.consistency,
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
        touch=values.boolean("touch", True),
    )
    start = WatchStart(
        from_seq=values.integer("from_seq", UNSET),
        tail=values.boolean("tail", False),
        consumer=values.text("consumer", "") if values.all("consumer") else None,
    )
    _check_start("", start)
    heartbeat_ms = values.integer("heartbeat_ms", DEFAULT_HEARTBEAT_MS)
    return _request(wishes, {topic: start}, settings, heartbeat_ms=heartbeat_ms, wanted=check_query_filter(values))


def decode_subscribe(raw: bytes, settings: Settings) -> WatchRequest:
    """A `subscribe` command, with one of `topic`, `topics` and `prefix`. Raises 400."""
    check_depth(raw, "body")
    body = decode_json(_subscribe_body, raw)
    if sum(given is not None for given in (body.topic, body.topics, body.prefix)) != 1:
        raise invalid("topic", "give one of topic, topics and prefix")
    if body.topics is not None:
        if body.consumer is not None:
            raise invalid("consumer", "a consumer is of one topic: give it in topics, to the topic that it is of")
        _check_count(len(body.topics), settings)
        return _request(body, _starts("topics", body.topics), settings)
    start = WatchStart(from_seq=body.from_seq, tail=body.tail, consumer=body.consumer)
    _check_start("", start, many=body.prefix is not None)
    if body.prefix is not None:
        return _request(body, {}, settings, prefixes={body.prefix: start}, field="prefix")
    assert body.topic is not None
    return _request(body, {body.topic: start}, settings)


def _starts(field_of_all: str, topics: Mapping[str, msgspec.Raw]) -> dict[str, WatchStart]:
    """Decode the object of each topic or prefix by itself, so that an error can name it. Raises 400."""
    starts = {}
    for name, raw in topics.items():
        try:
            starts[name] = decode_json(_start, bytes(raw))
        except ApiError as error:
            field = error.detail["field"]
            message = error.message.removeprefix(f"{field}: ")
            place = f"{field_of_all}.{name}"
            raise invalid(place if field == "body" else f"{place}.{field}", message) from None
        _check_start(f"{field_of_all}.{name}.", starts[name], many=field_of_all == "prefixes")
    return starts


def _request(
    body: FeedOptions,
    topics: Mapping[str, WatchStart],
    settings: Settings,
    *,
    prefixes: Mapping[str, WatchStart] = MappingProxyType({}),
    field: str = "prefixes",
    heartbeat_ms: int = DEFAULT_HEARTBEAT_MS,
    consistency: Consistency = "eventual",
    lenient: bool = False,
    wanted: Filter | None = None,
) -> WatchRequest:
    for name in topics:
        try:
            check_topic_name(name)
        except ApiError as error:
            raise invalid("topics", error.message.removeprefix("topic: ")) from None
    for prefix in prefixes:
        check_prefix(prefix, field)
    for number in ("limit", "max_batch_bytes"):
        _check_u64(number, getattr(body, number))
    _check_u64("heartbeat_ms", heartbeat_ms)
    nodes = [body.node] if isinstance(body.node, str) else body.node or []
    check_nodes(nodes, settings)
    _check_filter_values({**topics, **prefixes})
    return WatchRequest(
        topics=dict(topics),
        prefixes=dict(prefixes),
        nodes=frozenset(nodes),
        limit=min(body.limit or DEFAULT_LIMIT, settings.max_limit),
        max_batch_bytes=min(body.max_batch_bytes or DEFAULT_FRAME_BYTES, MAX_BATCH_BYTES),
        heartbeat_ms=max(MIN_HEARTBEAT_MS, min(heartbeat_ms, MAX_HEARTBEAT_MS)),
        include_tags=body.include_tags,
        include_meta=body.include_meta,
        include_data=body.include_data,
        consistency=consistency,
        lenient=lenient,
        create=body.create,
        touch=body.touch,
        filter=wanted or check_filter(body.filter),
        filters=_filters("topics", topics),
        prefix_filters=_filters("prefixes", prefixes),
    )


def check_prefix(prefix: str, field: str = "prefix") -> None:
    """Raise 400 about `field` if no name of a topic can begin with `prefix`. All begin with the empty one."""
    if prefix and TOPIC_NAME.fullmatch(prefix) is None:
        raise invalid(field, f"{prefix!r}: no name of a topic begins so")


def _check_filter_values(starts: Mapping[str, WatchStart]) -> None:
    """Refuse filters of single topics that may have too many values altogether, before they are parsed."""
    if sum(bytes(start.filter).count(b",") for start in starts.values() if start.filter) > MAX_FILTER_VALUES:
        what = f"the filters of all topics and prefixes have more than {MAX_FILTER_VALUES} commas altogether"
        raise invalid("filter", what, max=MAX_FILTER_VALUES)


def _filters(field: str, topics: Mapping[str, WatchStart]) -> dict[str, tuple[Filter, ...]]:
    """Return the filters of single topics or prefixes. Raises a 400 that names the topic or prefix."""
    found = {name: check_filter(start.filter, f"{field}.{name}.filter") for name, start in topics.items()}
    return {name: (wanted,) for name, wanted in found.items() if wanted is not None}


def _check_start(place: str, start: WatchStart, *, many: bool = False) -> None:
    """Raise a 400 about a field whose name begins with `place`. With `many` the start is that of many topics."""
    if start.from_seq is not UNSET:
        _check_u64(f"{place}from_seq", start.from_seq)
    if start.epoch is not UNSET:
        if many:
            raise invalid(f"{place}epoch", "an epoch is of one topic")
        _check_u64(f"{place}epoch", start.epoch)
    if start.consumer is not None:
        if many:
            raise invalid(f"{place}consumer", "a consumer is of one topic")
        check_consumer_name(start.consumer, f"{place}consumer")
        if start.from_seq is not UNSET or start.tail:
            field = "tail" if start.from_seq is UNSET else "from_seq"
            raise invalid(f"{place}{field}", "a consumer has its own position")


def _check_count(count: int, settings: Settings, least: int = 1) -> None:
    maximum = settings.max_watch_topics
    if not least <= count <= maximum:
        raise invalid("topics", f"must hold {least} to {maximum} topics, not {count}", max=maximum)


def _check_u64(field: str, value: int) -> None:
    if not 0 <= value <= MAX_U64:
        raise not_u64(field)
