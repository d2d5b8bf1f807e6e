"""Decoding and checking the conditions of appends and commits (`docs/spec/consumers.md` section 1).

Unknown names are ignored elsewhere, so that a client may be newer than the daemon. A name that looks like a condition
is not: an append whose condition was ignored would do what its client has ruled out.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.conditions.fences import check_fence_name
from topics.config import Settings
from topics.errors import ApiError, invalid
from topics.http.requests.json_checks import check_text, decode_json, not_u64
from topics.model import MAX_U64, Conditions, Fence

MAX_TAGS: Final = 100
"""The most tags of one condition."""

_PREFIXES: Final = ("expected_", "fence")

_CHARACTER_BYTES: Final = 6
"""Bytes of one byte of a text in JSON, at most: `\\u0000`."""
_AROUND_TAG: Final = 64
"""Bytes of an expected seq, with its separators."""

_seqs: Final = msgspec.json.Decoder(dict[str, int])

_members: Final = msgspec.json.Decoder(dict[str, Raw])


class ConditionFields(msgspec.Struct, kw_only=True):
    """The fields of a body that are conditions. `expected_tag_seqs` is not decoded, because it may be large."""

    expected_head_seq: int | None = None
    expected_tag_seqs: Raw | UnsetType = UNSET
    fence: Fence | None = None


CONDITION_FIELDS: Final = frozenset(ConditionFields.__struct_fields__)


def conditions_of(body: ConditionFields, settings: Settings) -> Conditions | None:
    """The conditions of a body, checked; None if it has none. Raises 400."""
    head_seq, seqs, fence = body.expected_head_seq, body.expected_tag_seqs, body.fence
    if head_seq is None and seqs is UNSET and fence is None:
        return None
    if head_seq is not None and not 0 <= head_seq <= MAX_U64:
        raise not_u64("expected_head_seq")
    tag_seqs = _tag_seqs(seqs, settings.max_tag_bytes) if seqs is not UNSET else {}
    if fence is not None:
        check_fence_name(fence.name, "fence.name")
        if not 0 <= fence.token <= MAX_U64:
            raise not_u64("fence.token")
    if head_seq is None and not tag_seqs and fence is None:
        return None
    return Conditions(head_seq, tag_seqs, fence)


def _tag_seqs(raw: Raw, max_tag_bytes: int) -> dict[str, int]:
    text = bytes(raw)
    if text == b"null":
        return {}
    if len(text) > largest_tag_seqs(max_tag_bytes):
        raise _too_many()
    try:
        seqs = _seqs.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise invalid("expected_tag_seqs", "must be an object of seqs, by tag") from None
    if len(seqs) > MAX_TAGS:
        raise _too_many()
    sure = max_tag_bytes // 4  # so many characters always fit, because UTF-8 has at most 4 bytes for each
    for tag, seq in seqs.items():
        if not 0 < len(tag) <= sure:
            check_text("expected_tag_seqs", tag, max_tag_bytes)
        if not 0 <= seq <= MAX_U64:
            raise not_u64("expected_tag_seqs")
    return seqs


def largest_tag_seqs(max_tag_bytes: int) -> int:
    """The most bytes that `expected_tag_seqs` may have."""
    return MAX_TAGS * (_CHARACTER_BYTES * max_tag_bytes + _AROUND_TAG)


def _too_many() -> ApiError:
    return invalid("expected_tag_seqs", f"has more than {MAX_TAGS} tags", max=MAX_TAGS)


def check_members(body: bytes) -> None:
    """Raise 400 for a member of a body that looks like a condition and is none. `body` is a JSON object without its
    large members."""
    if b'"expected_' not in body and b'"fence' not in body and b"\\" not in body:
        return
    members: dict[str, Any] = decode_json(_members, body)
    for name in sorted(members.keys() - CONDITION_FIELDS):
        if name.startswith(_PREFIXES):
            raise invalid(name, "there is no such condition")


def refuse_members(body: bytes) -> None:
    """Raise 400 for a member of a transaction that looks like a condition: each append has its own."""
    if b'"expected_' not in body and b'"fence' not in body and b"\\" not in body:
        return
    for name in decode_json(_members, body):
        if name.startswith(_PREFIXES):
            raise invalid(name, "is no member of a transaction: conditions are fields of its appends")


def check_parameters(names: Iterable[str]) -> None:
    """Raise 400 for a query parameter that looks like a condition and is none."""
    for name in names:
        if name.startswith(_PREFIXES) and name not in CONDITION_FIELDS:
            raise invalid(name, "there is no such condition")


def refuse_parameters(names: Iterable[str]) -> None:
    """Raise 400 for a query parameter that looks like a condition."""
    for name in names:
        if name.startswith(_PREFIXES):
            raise invalid(name, "is no query parameter: conditions are fields of the JSON body of an append")


def refuse_with_stage(conditions: Conditions | None) -> None:
    """Raise 400 for conditions of an append to a stage."""
    if conditions is not None:
        raise invalid("stage", "records of a stage are judged when it is committed: the commit may have conditions")
