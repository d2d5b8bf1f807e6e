"""Decoding and checking the body of a transaction (`docs/spec/consumers.md` section 1).

Each of its appends is decoded like the body of an append (`append_requests`). An error names the append in its field
and, as far as it is known, the topic in `detail.topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Final

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import ApiError, invalid, placed
from topics.http.requests import append_requests
from topics.http.requests.condition_requests import ConditionFields, refuse_members
from topics.http.requests.json_checks import MAX_DEPTH, check_utf8_in_steps, decode_json, depth_in_steps, too_deep
from topics.log.names import check_topic_name
from topics.model import AppendRequest, RecordIn, TopicConfigPatch, TransactionRequest

MIN_TOPICS: Final = 2
MAX_TOPICS: Final = 32
"""How many topics a transaction has."""

_AROUND_DATA: Final = 5
"""Levels of a body around `data`."""


class TransactionAppend(ConditionFields, kw_only=True):
    """One append of a transaction."""

    topic: str
    records: list[RecordIn]
    node: str | None = None
    create: bool | UnsetType = UNSET
    config: TopicConfigPatch | None = None


class TransactionBody(msgspec.Struct, kw_only=True):
    """The body of a transaction."""

    appends: list[TransactionAppend]
    idempotency_key: str | None = None


class _Body(msgspec.Struct, kw_only=True):
    appends: list[msgspec.Raw]
    idempotency_key: str | None = None


class _Topic(msgspec.Struct):
    topic: str


_body: Final = msgspec.json.Decoder(_Body)
_topic: Final = msgspec.json.Decoder(_Topic)


def decode_transaction(
    raw: bytes,
    settings: Settings,
    header_key: str | None = None,
    *,
    explained: Callable[[ApiError], ApiError] | None = None,
) -> Generator[None, None, TransactionRequest]:
    """The body of a transaction, checked. Yields after each step of some milliseconds, so that the loop can do
    something else.

    `header_key` is the `Idempotency-Key` header, which counts if the body has no key. With `explained`, unknown keys
    in the appends and their records are refused; it is given the error about one. Raises 400.
    """
    if not raw:
        raise invalid("appends", "is required")
    yield from check_utf8_in_steps(raw)
    yield
    body = decode_json(_body, raw)
    yield
    refuse_members(raw)
    yield
    if (yield from depth_in_steps(raw)) > MAX_DEPTH + _AROUND_DATA:
        raise too_deep("body")
    count = len(body.appends)
    if not MIN_TOPICS <= count <= MAX_TOPICS:
        raise invalid("appends", f"{count} topics, a transaction has {MIN_TOPICS} to {MAX_TOPICS}", max=MAX_TOPICS)
    topics = []
    for i, member in enumerate(body.appends):
        topics.append(_topic_of(bytes(member), i))
        yield
    if len(set(topics)) < count:
        raise invalid("appends", "names a topic twice")
    appends: list[AppendRequest] = []
    for i, (topic, member) in enumerate(zip(topics, body.appends, strict=True)):
        try:
            appends.append((yield from _decode_member(bytes(member), settings, strict=explained is not None)))
        except ApiError as error:
            raise of_member(explained(error) if explained is not None else error, i, topic) from None
        yield
    records = sum(len(append.records) for append in appends)
    if records > settings.max_batch_records:
        raise ApiError(
            "batch_too_large",
            f"appends: {records} records, at most {settings.max_batch_records} are allowed in one transaction",
            detail={"field": "appends", "count": records, "max": settings.max_batch_records},
        )
    key = header_key if body.idempotency_key is None else body.idempotency_key
    append_requests.check_key(key, "idempotency_key" if body.idempotency_key is not None else "Idempotency-Key")
    return TransactionRequest(topics=topics, appends=appends, idempotency_key=key)


def _topic_of(member: bytes, i: int) -> str:
    try:
        return check_topic_name(decode_json(_topic, member).topic, "topic")
    except ApiError as error:
        raise placed(error, f"appends[{i}].") from None


def _decode_member(member: bytes, settings: Settings, *, strict: bool) -> Generator[None, None, AppendRequest]:
    if len(member) < append_requests.LARGE_APPEND:
        request = append_requests.decode_append(member, settings, strict=strict, carrier="member")
    else:
        request = yield from append_requests.decode_append_in_steps(member, settings, strict=strict, carrier="member")
    if request.idempotency_key is not None:
        raise invalid("idempotency_key", "belongs to the transaction, not to one of its appends")
    if request.disable_backpressure:
        raise invalid("disable_backpressure", "is not for the appends of a transaction")
    return request


def of_member(error: ApiError, i: int, topic: str) -> ApiError:
    """Return an error about the append to `topic`, which is number `i`, with its place."""
    return placed(error, f"appends[{i}].", topic=topic)
