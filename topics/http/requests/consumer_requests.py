"""Decoding and checking the calls about named consumers (`docs/spec/consumers.md` section 3). Without I/O."""

from __future__ import annotations

from typing import Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import invalid
from topics.http.requests.filter_fields import check_filter
from topics.http.requests.json_checks import check_depth, check_text, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.topic_requests import ListCursors, ListPage, check_pair, page_of
from topics.log.names import check_consumer_name
from topics.log.topic_config import MAX_LEASE_MS, MIN_LEASE_MS
from topics.model import MAX_U64, ConsumerMove, ConsumerPatch, ConsumerStart

CONSUMER_CURSORS: Final = ListCursors(b"c:", check_consumer_name)

Place = Literal["earliest", "tail"]


class SeqPlace(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A place behind a seq, or at a time; exactly one of the two."""

    seq: int | UnsetType = UNSET
    ts: int | UnsetType = UNSET


class PutConsumerBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of the PUT of a consumer, before checks."""

    start: Place | SeqPlace = msgspec.field(default="tail", name="from")
    filter: msgspec.Raw | UnsetType = UNSET
    ttl_ms: int | UnsetType = UNSET


class CommitConsumerBody(msgspec.Struct, kw_only=True):
    """The body of a commit, before checks."""

    seq: int
    generation: int | None = None
    epoch: int | None = None


class SeekConsumerBody(msgspec.Struct, kw_only=True):
    """The body of a seek, before checks: exactly one of `to`, `seq` and `ts`."""

    to: Place | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    ts: int | UnsetType = UNSET
    generation: int | None = None
    epoch: int | None = None


class AcquireBody(msgspec.Struct, kw_only=True):
    """The body of an acquire, before checks."""

    owner: str
    lease_ms: int


class ReleaseBody(msgspec.Struct, kw_only=True):
    """The body of a release, before checks."""

    generation: int


_put: Final = msgspec.json.Decoder(PutConsumerBody)
_commit: Final = msgspec.json.Decoder(CommitConsumerBody)
_seek: Final = msgspec.json.Decoder(SeekConsumerBody)
_acquire: Final = msgspec.json.Decoder(AcquireBody)
_release: Final = msgspec.json.Decoder(ReleaseBody)

B = TypeVar("B", CommitConsumerBody, SeekConsumerBody, AcquireBody, ReleaseBody)


def decode_put_consumer(raw: bytes) -> ConsumerPatch:
    """The body of the PUT of a consumer. Raises 400."""
    body = PutConsumerBody()
    if raw:
        check_utf8(raw)
        body = decode_json(_put, raw)
        check_depth(raw, "body")
    place = place_of(body.start)
    if body.ttl_ms is not UNSET:
        _check_u64("ttl_ms", body.ttl_ms)
    return ConsumerPatch(
        start=place,
        ttl_ms=None if body.ttl_ms is UNSET else body.ttl_ms,
        filter=UNSET if body.filter is UNSET else check_filter(body.filter),
    )


def place_of(start: Place | SeqPlace) -> ConsumerStart:
    """The place that a `from` names. Raises 400."""
    if isinstance(start, SeqPlace):
        return _place(start.seq, start.ts, UNSET, "from", within="from.")
    return ConsumerStart(place=start)


def decode_commit_consumer(raw: bytes) -> tuple[int, ConsumerMove]:
    """The body of a commit: its seq, and who moves the consumer. Raises 400."""
    body = _decode(_commit, raw, "seq")
    _check_u64("seq", body.seq)
    return body.seq, _move(body)


def decode_seek_consumer(raw: bytes) -> tuple[ConsumerStart, ConsumerMove]:
    """The body of a seek: the place, and who moves the consumer. Raises 400."""
    body = _decode(_seek, raw, "seq")
    return _place(body.seq, body.ts, body.to, "seq"), _move(body)


def decode_acquire(raw: bytes, settings: Settings) -> tuple[str, int]:
    """The body of an acquire: the owner, and how long the lease runs. Raises 400."""
    body = _decode(_acquire, raw, "owner")
    check_text("owner", body.owner, settings.max_node_bytes)
    return body.owner, max(MIN_LEASE_MS, min(MAX_LEASE_MS, body.lease_ms))


def decode_release(raw: bytes) -> int:
    """The body of a release: its generation. Raises 400."""
    body = _decode(_release, raw, "generation")
    _check_u64("generation", body.generation)
    return body.generation


def decode_consumer_list(query: bytes) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list of consumers. Raises 400."""
    return page_of(Query(query), CONSUMER_CURSORS)


ALL_CONSUMER_CURSORS: Final = ListCursors(b"C:", check_pair)


def decode_all_consumers(query: bytes) -> ListPage:
    """`prefix`, `cursor` and `page_size` of a list of the consumers of all topics. Raises 400."""
    return page_of(Query(query), ALL_CONSUMER_CURSORS)


def _decode(decoder: msgspec.json.Decoder[B], raw: bytes, required: str) -> B:
    if not raw:
        raise invalid(required, "is required")
    check_utf8(raw)
    body = decode_json(decoder, raw)
    check_depth(raw, "body")
    return body


def _move(body: CommitConsumerBody | SeekConsumerBody) -> ConsumerMove:
    for name, value in (("generation", body.generation), ("epoch", body.epoch)):
        if value is not None:
            _check_u64(name, value)
    return ConsumerMove(generation=body.generation, epoch=body.epoch)


def _place(
    seq: int | UnsetType, ts: int | UnsetType, to: Place | UnsetType, field: str, *, within: str = ""
) -> ConsumerStart:
    """Return the place that is given. Raises a 400 about `field`, or about one of the three, which are `within` it."""
    if sum(value is not UNSET for value in (seq, ts, to)) != 1:
        raise invalid(field, "give exactly one place")
    if to is not UNSET:
        return ConsumerStart(place=to)
    if seq is not UNSET:
        _check_u64(f"{within}seq", seq)
        return ConsumerStart(place="seq", value=seq)
    assert ts is not UNSET
    _check_u64(f"{within}ts", ts)
    return ConsumerStart(place="ts", value=ts)


def _check_u64(field: str, value: int) -> None:
    if not 0 <= value <= MAX_U64:
        raise not_u64(field)
