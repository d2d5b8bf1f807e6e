"""Lease events: what can happen to jobs, as the projection takes it and as a Lease frame keeps it
(`docs/spec/storage.md` 2).

An event says what was decided about some seqs; it takes effect in `leases.Leases.apply`, at its commit point and again
in replay. Times are pairs: leases run on the monotonic clock, which means nothing after a restart, and the clock of
windows is for the frame. Only the latter is written; reading a frame finds the former again.

A frame's payload is one map. Seqs and lease ids in it are little-endian u64, times ms of the clock of windows:

    {"op": "claimed",       "seqs", "lease_ids", "node", "deadline"}     a lease each, `lease_ids[i]` that of `seqs[i]`
    {"op": "extended",      "seqs", "deadline"}                          whoever holds them
    {"op": "released",      "seqs", "available_at"}                      0: at once; nacked, let go, or parked no more
    {"op": "parked",        "seqs"}                                      due for the dead-letter topic
    {"op": "dead_lettered", "seqs"}                                      they are there; gone from here

An ack has no frame of its own, it is the deletion of the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian
from topics.runtime.instant import Instant


class Claimed(NamedTuple):
    """`node` holds `seqs`, each under its lease id (u64), until `deadline` has passed. One more delivery of each."""

    node: str
    seqs: array[int]
    lease_ids: array[int]
    deadline: Instant

    def to_wire(self) -> dict[str, Any]:
        """The payload of its frame."""
        return {
            "op": "claimed",
            "node": self.node,
            "seqs": little_endian(self.seqs),
            "lease_ids": little_endian(self.lease_ids),
            "deadline": self.deadline.window,
        }


class Extended(NamedTuple):
    """The leases on `seqs` run until `deadline` has passed, which may be earlier than before."""

    seqs: array[int]
    deadline: Instant

    def to_wire(self) -> dict[str, Any]:
        """The payload of its frame."""
        return {"op": "extended", "seqs": little_endian(self.seqs), "deadline": self.deadline.window}


class Released(NamedTuple):
    """Nobody holds `seqs` any more, nor are they parked; to be claimed from `available_at` on, None for at once."""

    seqs: array[int]
    available_at: Instant | None

    def to_wire(self) -> dict[str, Any]:
        """The payload of its frame."""
        at = 0 if self.available_at is None else self.available_at.window
        return {"op": "released", "seqs": little_endian(self.seqs), "available_at": at}


class Parked(NamedTuple):
    """`seqs` have had all their deliveries and are to be moved to the dead-letter topic."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """The payload of its frame."""
        return {"op": "parked", "seqs": little_endian(self.seqs)}


class DeadLettered(NamedTuple):
    """`seqs` have been moved: their copies are synced, and here they are deleted in the same commit."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """The payload of its frame."""
        return {"op": "dead_lettered", "seqs": little_endian(self.seqs)}


class Acked(NamedTuple):
    """The holder is done with `seqs`: their deletion, at its commit point. Replay meets the Delete frame instead."""

    seqs: array[int]


LeaseEvent = Claimed | Extended | Released | Parked | DeadLettered
"""What a Lease frame can hold."""

Event = LeaseEvent | Acked


def event_from_wire(value: Mapping[str, Any], now: Instant) -> LeaseEvent:
    """The inverse of `to_wire`. `now` is the moment of loading, the same for all events of a replay.

    Raises ValueError if `value` is not something `to_wire` returned.
    """
    seqs = from_little_endian("Q", value.get("seqs"))
    if not seqs or 0 in seqs:
        raise ValueError(f"lease event: bad seqs in {value!r}")
    match value:
        case {"op": "claimed", "node": str(node), "lease_ids": ids, "deadline": int(deadline)}:
            lease_ids = from_little_endian("Q", ids)
            if len(lease_ids) != len(seqs):
                raise ValueError(f"lease event: {len(lease_ids)} lease ids for {len(seqs)} seqs")
            return Claimed(node, seqs, lease_ids, now.at_window(deadline))
        case {"op": "extended", "deadline": int(deadline)}:
            return Extended(seqs, now.at_window(deadline))
        case {"op": "released", "available_at": int(at)}:
            return Released(seqs, now.at_window(at) if at else None)
        case {"op": "parked"}:
            return Parked(seqs)
        case {"op": "dead_lettered"}:
            return DeadLettered(seqs)
    raise ValueError(f"lease event: unknown {value.get('op')!r}, or fields missing")
