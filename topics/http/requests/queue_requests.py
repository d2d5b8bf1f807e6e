"""Decoding and checking the calls about queues (`docs/spec/api.md` section 9). Without I/O.

Numbers that the specification clamps are clamped at both ends. A lease id is opaque to clients: a text that is no lease
id is not refused, but belongs to no lease, so that its seq is skipped.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import ApiError, invalid
from topics.http.requests.json_checks import check_depth, check_text, check_utf8, decode_json, not_u64
from topics.http.requests.query_strings import Query
from topics.http.requests.read_requests import MAX_WAIT_MS
from topics.job_model import ClaimRequest, HeldRequest, NackTerms
from topics.log.topic_config import MAX_LEASE_MS, MIN_LEASE_MS
from topics.model import MAX_U64
from topics.queue.last_errors import MAX_ERROR_BYTES
from topics.runtime.instant import MAX_AHEAD_MS

NO_LEASE: Final = -1
"""Stands for a text that is no lease id."""

REPEATS: Final = 4
"""There may be so many times more pairs of a seq and a lease id than seqs: a seq may come with several lease ids."""

MAX_UNTIL: Final = 253_402_300_799_999
"""The latest end of a pause: the end of the year 9999."""

_LEASE_ID: Final = re.compile(r"lease_([0-9a-f]{16})")


class ClaimBody(msgspec.Struct, kw_only=True):
    """The body of a claim, before checks."""

    node: str
    max: int = 1
    lease_ms: int | None = None
    wait_ms: int = 0


class HeldBody(msgspec.Struct, kw_only=True):
    """The body of an ack, and the fields that nacks and extensions share with it; before checks."""

    node: str
    seqs: list[int]
    lease_ids: list[str] | None = None


class AckBody(HeldBody, kw_only=True):
    """The body of an ack, before checks."""

    results: list[msgspec.Raw] | None = None


class NackBody(HeldBody, kw_only=True):
    """The body of a nack, before checks."""

    delay_ms: int | UnsetType = UNSET
    error: str | None = None
    count: bool = True
    dead: bool = False


class PauseBody(msgspec.Struct, kw_only=True):
    """The body of a pause, before checks."""

    until: int | None = None


class ExtendBody(HeldBody, kw_only=True):
    """The body of an extension, before checks."""

    lease_ms: int


_claim_body: Final = msgspec.json.Decoder(ClaimBody)
_ack_body: Final = msgspec.json.Decoder(AckBody)
_nack_body: Final = msgspec.json.Decoder(NackBody)
_pause_body: Final = msgspec.json.Decoder(PauseBody)
_extend_body: Final = msgspec.json.Decoder(ExtendBody)

B = TypeVar("B", ClaimBody, AckBody, NackBody, ExtendBody)


class WorkRequest(NamedTuple):
    """The parameters of a `/work` stream: at most `most` jobs are leased at a time, each for `lease_ms` (None: the
    topic's configured lease)."""

    node: str
    most: int
    lease_ms: int | None


def decode_claim(raw: bytes, settings: Settings) -> ClaimRequest:
    """The body of a claim. Raises 400."""
    body = _decode(_claim_body, raw)
    check_text("node", body.node, settings.max_node_bytes)
    return ClaimRequest(
        node=body.node,
        most=_clamp(body.max, 1, settings.max_claim),
        lease_ms=_clamp_lease(body.lease_ms),
        wait_ms=_clamp(body.wait_ms, 0, MAX_WAIT_MS),
    )


def decode_work(query: bytes, settings: Settings) -> WorkRequest:
    """The query of a `/work` stream. Raises 400."""
    values = Query(query)
    node = values.text("node", "")
    if not values.all("node"):
        raise invalid("node", "is required")
    check_text("node", node, settings.max_node_bytes)
    most = values.integer("max", 1, signed=True)
    lease_ms = values.integer("lease_ms", None, signed=True)
    return WorkRequest(node, _clamp(most, 1, settings.max_claim), _clamp_lease(lease_ms))


def decode_ack(raw: bytes, settings: Settings) -> HeldRequest:
    """The body of an ack. Raises 400."""
    body = _decode(_ack_body, raw)
    request = _held(body, settings)
    if body.results is not None:
        request.results = _results(body.seqs, body.results, settings)
    return request


def _results(seqs: list[int], results: list[msgspec.Raw], settings: Settings) -> dict[int, bytes]:
    """Return the results of an ack by seq; of one that is named again, the first."""
    if len(results) != len(seqs):
        raise invalid("results", f"has {len(results)} results for {len(seqs)} seqs")
    by_seq: dict[int, bytes] = {}
    for i, (seq, result) in enumerate(zip(seqs, results, strict=True)):
        data = bytes(result)
        if len(data) > settings.max_record_bytes:
            raise ApiError(
                "record_too_large",
                f"results[{i}]: {len(data)} bytes, at most {settings.max_record_bytes} are allowed",
                detail={"field": f"results[{i}]", "size": len(data), "max": settings.max_record_bytes},
            )
        by_seq.setdefault(seq, data)
    return by_seq


def decode_nack(raw: bytes, settings: Settings) -> tuple[HeldRequest, NackTerms]:
    """The body of a nack: which jobs, and how they are given back. Raises 400."""
    body = _decode(_nack_body, raw)
    delay_ms = None if body.delay_ms is UNSET else _clamp(body.delay_ms, 0, MAX_AHEAD_MS)
    if body.error is not None and len(body.error.encode()) > MAX_ERROR_BYTES:
        raise invalid("error", f"must be at most {MAX_ERROR_BYTES} bytes long", max=MAX_ERROR_BYTES)
    return _held(body, settings), NackTerms(delay_ms, body.error or None, body.count, body.dead)


def decode_pause(raw: bytes) -> int | None:
    """The body of a pause: until when (epoch ms), None for no end. Raises 400."""
    if not raw:
        return None
    check_utf8(raw)
    until = decode_json(_pause_body, raw).until
    check_depth(raw, "body")
    if until is not None and not 1 <= until <= MAX_UNTIL:
        raise invalid("until", "must be a time in ms since the Unix epoch", max=MAX_UNTIL)
    return until


def decode_extend(raw: bytes, settings: Settings) -> tuple[HeldRequest, int]:
    """The body of an extension, and its `lease_ms`. Raises 400."""
    body = _decode(_extend_body, raw)
    return _held(body, settings), _clamp(body.lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)


def _decode(decoder: msgspec.json.Decoder[B], raw: bytes) -> B:
    if not raw:
        raise invalid("node", "is required")
    check_utf8(raw)
    body = decode_json(decoder, raw)
    check_depth(raw, "body")
    return body


def _held(body: HeldBody, settings: Settings) -> HeldRequest:
    check_text("node", body.node, settings.max_node_bytes)
    if not body.seqs:
        raise invalid("seqs", "must not be empty")
    distinct = len(set(body.seqs))
    if distinct > settings.max_claim:
        raise _too_many(distinct, settings)
    if min(body.seqs) < 0 or max(body.seqs) > MAX_U64:
        raise not_u64(f"seqs[{next(i for i, seq in enumerate(body.seqs) if not 0 <= seq <= MAX_U64)}]")
    if body.lease_ids is None:
        return HeldRequest(node=body.node, seqs=list(dict.fromkeys(body.seqs)), lease_ids=None)
    if len(body.lease_ids) != len(body.seqs):
        raise invalid("lease_ids", f"has {len(body.lease_ids)} ids for {len(body.seqs)} seqs")
    # A seq may be there again with another lease id. Equal pairs are counted once.
    pairs = dict.fromkeys(zip(body.seqs, body.lease_ids, strict=True))
    if len(pairs) > REPEATS * settings.max_claim:
        raise _too_many(len(pairs), settings)
    return HeldRequest(node=body.node, seqs=[seq for seq, _ in pairs], lease_ids=[_lease_id(text) for _, text in pairs])


def _too_many(count: int, settings: Settings) -> ApiError:
    return ApiError(
        "batch_too_large",
        f"seqs: {count} seqs, at most {settings.max_claim} are allowed",
        detail={"field": "seqs", "max": settings.max_claim},
    )


def _lease_id(text: str) -> int:
    found = _LEASE_ID.fullmatch(text)
    return int(found[1], 16) if found is not None else NO_LEASE


def _clamp(value: int, low: int, high: int) -> int:
    return max(low, min(high, value))


def _clamp_lease(lease_ms: int | None) -> int | None:
    return None if lease_ms is None else _clamp(lease_ms, MIN_LEASE_MS, MAX_LEASE_MS)
