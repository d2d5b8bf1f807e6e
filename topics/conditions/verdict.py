"""Whether the conditions of an append hold (`docs/spec/consumers.md` section 1). Without side effects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from topics.conditions.fences import MAX_FENCES
from topics.errors import ApiError, throttled
from topics.model import Conditions, Fence

NO_FENCES: Final[Mapping[str, int]] = {}


def refusal(
    conditions: Conditions, *, head_seq: int, newest: Callable[[str], int], fences: Mapping[str, int]
) -> ApiError | None:
    """Return the error with which conditions refuse an append, None if all of them hold.

    `head_seq` is the last assigned seq (0 for none), `newest` returns the seq of the newest live record with a tag (0
    for none), `fences` are the highest tokens by name. Exceptions of `newest` are passed on.
    """
    expected = conditions.head_seq
    if expected is not None and expected != head_seq:
        return ApiError(
            "condition_failed",
            f"expected_head_seq: expected {expected}, the last assigned seq is {head_seq}",
            detail={"head_seq": head_seq},
        )
    for tag, expected in conditions.tag_seqs.items():
        actual = newest(tag)
        if actual != expected:
            return ApiError(
                "condition_failed",
                f"expected_tag_seqs: expected {expected} for tag {tag!r}, the newest live record has seq {actual}",
                detail={"tag": tag, "expected": expected, "actual": actual},
            )
    return _fenced(conditions.fence, fences) if conditions.fence is not None else None


def _fenced(fence: Fence, fences: Mapping[str, int]) -> ApiError | None:
    highest = fences.get(fence.name)
    if highest is None:
        return throttled("max_fences", MAX_FENCES) if len(fences) >= MAX_FENCES else None
    if fence.token >= highest:
        return None
    return ApiError(
        "fenced",
        f"fence: token {fence.token} of {fence.name!r} is below {highest}, the highest that was seen",
        detail={"name": fence.name, "token": highest},
    )


def raised(conditions: Conditions, fences: Mapping[str, int]) -> Fence | None:
    """Return the fence that an append with these conditions raises; None if it raises none. The conditions must
    hold."""
    fence = conditions.fence
    if fence is None:
        return None
    highest = fences.get(fence.name)
    return fence if highest is None or fence.token > highest else None
