"""Keep frames: the records that a batch takes away from a topic with `keep_per_tag`, and which records are null.

seqs     u64 each, ascending: the records that are deleted; of the batch itself, or live before it
sizes    u32 each: the bytes of data + meta of each of them, so that replay needs no file to count them
nulls    u64 each, ascending: records with a tag and data null; of the batch, or of others if there are `times`
times    u64 each: when these were appended (epoch ms); the time of the frame if absent
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian


class KeepPayload(NamedTuple):
    """The content of a Keep frame."""

    seqs: array[int]
    sizes: array[int]
    nulls: array[int]
    times: array[int]


def keep_to_wire(
    seqs: array[int], sizes: array[int], nulls: array[int], times: array[int] | None = None
) -> dict[str, Any]:
    """Return the payload of a Keep frame."""
    payload: dict[str, Any] = {}
    if seqs:
        payload |= {"seqs": little_endian(seqs), "sizes": little_endian(sizes)}
    if nulls:
        payload["nulls"] = little_endian(nulls)
    if nulls and times is not None:
        payload["times"] = little_endian(times)
    return payload


def keep_from_wire(payload: Mapping[str, Any], ts: int) -> KeepPayload:
    """Return the content of a Keep frame whose time is `ts`. Raises ValueError if it is malformed."""
    seqs, sizes = (from_little_endian(code, payload.get(name, b"")) for code, name in (("Q", "seqs"), ("I", "sizes")))
    nulls = from_little_endian("Q", payload.get("nulls", b""))
    times = from_little_endian("Q", payload["times"]) if "times" in payload else array("Q", (ts,)) * len(nulls)
    if len(seqs) != len(sizes) or len(nulls) != len(times):
        raise ValueError("a Keep frame whose columns differ in length")
    if any(a >= b for column in (seqs, nulls) for a, b in pairwise(column)):
        raise ValueError("a Keep frame whose seqs do not ascend")
    return KeepPayload(seqs, sizes, nulls, times)
