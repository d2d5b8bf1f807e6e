"""Decoding and checking the body of a transaction (`docs/spec/consumers.md` section 1).

Each of its appends is decoded like the body of an append (`append_requests`). An error names the append in its field
and, as far as it is known, the topic in `detail.topic`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from operator import add
from typing import Final, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from topics.config import Settings
from topics.errors import ApiError, invalid, placed
from topics.http.requests import append_requests
from topics.http.requests.body_outline import TooManyItems, TooMuchBesideItems, moved, outline_in_steps
from topics.http.requests.condition_requests import ConditionFields, refuse_members
from topics.http.requests.json_checks import (
    MALFORMED,
    MAX_DEPTH,
    check_utf8_in_steps,
    decode_json,
    depth_in_steps,
    too_deep,
)
from topics.http.requests.record_slices import outline_of_append
from topics.log.names import check_topic_name
from topics.model import AppendRequest, RecordIn, TopicConfigPatch, TransactionRequest

MIN_TOPICS: Final = 2
MAX_TOPICS: Final = 32
"""How many topics a transaction has."""

MOST_BESIDE: Final = 256 << 10
"""Bytes of a body that are not in its appends."""

_MOST_ITEMS: Final = 1_000
"""The most objects and arrays in the members of a body: its appends, and those of members that nobody knows."""

LARGE: Final = 256 << 10
"""Bytes from which on a body, or one of its appends, is not decoded in one step, which may take 2 ms below this."""

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


class _AppendText(NamedTuple):
    """The text of an append, and where it begins in a large body."""

    text: bytes
    start: int = 0


_body: Final = msgspec.json.Decoder(_Body)
_topic: Final = msgspec.json.Decoder(_Topic)


def decode_transaction(
    raw: bytes,
    settings: Settings,
    header_key: str | None = None,
    *,
    explained: Callable[[ApiError], ApiError] | None = None,
    check_keys: Callable[[bytes], None] | None = None,
) -> Generator[None, None, TransactionRequest]:
    """The body of a transaction, checked. Yields after each step of some milliseconds, so that the loop can do
    something else.

    `header_key` is the `Idempotency-Key` header, which counts if the body has no key. With `explained`, unknown keys
    in the appends and their records are refused; it is given the error about one. `check_keys` is given the body,
    perhaps with its appends left out, and raises an error about unknown keys beside them. Raises 400.
    """
    if not raw:
        raise invalid("appends", "is required")
    yield from check_utf8_in_steps(raw)
    yield
    body, members = yield from _members_of(raw, check_keys)
    count = len(members)
    topics = []
    for i, member in enumerate(members):
        topics.append((yield from _topic_of(member, i, settings)))
        yield
    if len(set(topics)) < count:
        raise invalid("appends", "names a topic twice")
    appends: list[AppendRequest] = []
    for i, (topic, member) in enumerate(zip(topics, members, strict=True)):
        try:
            appends.append((yield from _decode_member(member.text, settings, strict=explained is not None)))
        except ApiError as error:
            of_text = _of_text(error, member)
            if of_text is not None:
                raise of_text from None
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


def _members_of(
    raw: bytes, check_keys: Callable[[bytes], None] | None
) -> Generator[None, None, tuple[_Body, list[_AppendText]]]:
    """The body, and the text of each of its appends. Yields after each step. Raises 400."""
    if len(raw) < LARGE:
        if check_keys is not None:
            check_keys(raw)
        body = decode_json(_body, raw)
        refuse_members(raw)
        yield
        deepest = yield from depth_in_steps(raw)
        members = [_AppendText(bytes(member)) for member in body.appends]
    else:
        try:
            outline = yield from outline_in_steps(raw, _MOST_ITEMS, MOST_BESIDE)
        except (TooManyItems, TooMuchBesideItems):
            raise _too_much_beside(raw) from None
        yield
        if check_keys is not None:
            check_keys(outline.skeleton)
        body = yield from outline.decode(_body)
        items = [outline.item_of(member) for member in body.appends]
        claimed = [item for item in items if item is not None]
        if outline.size_beside(claimed) > MOST_BESIDE:
            raise _too_much_beside(raw)
        yield from outline.unclaimed(claimed)
        refuse_members(outline.skeleton)
        deepest = outline.depth
        members = []
        for member, item in zip(body.appends, items, strict=True):
            start = outline.items[item][0] if item is not None else 0
            members.append(_AppendText(outline.item(item) if item is not None else bytes(member), start))
            yield
    if deepest > MAX_DEPTH + _AROUND_DATA:
        raise too_deep("body")
    count = len(members)
    if not MIN_TOPICS <= count <= MAX_TOPICS:
        raise invalid("appends", f"{count} topics, a transaction has {MIN_TOPICS} to {MAX_TOPICS}", max=MAX_TOPICS)
    return body, members


def _too_much_beside(raw: bytes) -> ApiError:
    what = f"a body of {len(raw)} bytes has 2 to {MAX_TOPICS} appends and at most {MOST_BESIDE} bytes beside them"
    return invalid("appends", what, max=MAX_TOPICS)


def _topic_of(member: _AppendText, i: int, settings: Settings) -> Generator[None, None, str]:
    """The topic of an append. Yields after each step. Raises 400."""
    try:
        if len(member.text) < LARGE:
            named = decode_json(_topic, member.text)
        else:
            outline = yield from outline_of_append(member.text, append_requests.bounds_of(settings))
            named = yield from outline.decode(_topic)
        return check_topic_name(named.topic, "topic")
    except ApiError as error:
        raise _of_text(error, member) or placed(error, f"appends[{i}].") from None


def _of_text(error: ApiError, member: _AppendText) -> ApiError | None:
    """An error about malformed JSON in an append, as one about the body; None if the error is about anything else."""
    if error.detail.get("field") != "body" or MALFORMED not in error.message:
        return None
    return ApiError(error.code, moved(error.message, partial(add, member.start)), detail=error.detail)


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
