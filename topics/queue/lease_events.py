"""Lease events: the changes of jobs, as the projection applies them and as a Lease frame stores them
(`docs/spec/storage.md` 2).

An event is a decision about some seqs. `leases.Leases.apply` carries it out, at its commit point and again in replay.
Times are pairs: leases run on the monotonic clock, which is meaningless after a restart, and frames hold times of the
window clock. Only the latter is written; reading a frame computes the former again.

A frame's payload is one map. Seqs and lease ids in it are little-endian u64, times ms of the window clock:

    {"op": "claimed",       "seqs", "lease_ids", "node", "deadline"}     `lease_ids[i]` is the lease of `seqs[i]`
    {"op": "extended",      "seqs", "deadline"}                          for whichever node holds them
    {"op": "released",      "seqs", "available_at"}                      0: at once; nacked, let go, or unparked
    {"op": "parked",        "seqs"}                                      due for the dead-letter topic
    {"op": "dead_lettered", "seqs"}                                      moved there; deleted here

An ack has no frame of its own: it is the deletion of the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian
from topics.runtime.instant import Instant


class ClaimEvent(NamedTuple):
    """`node` gets a lease on each of `seqs`, under its lease id (u64), until `deadline` has passed. Counts a delivery
    of each."""

    node: str
    seqs: array[int]
    lease_ids: array[int]
    deadline: Instant

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {
            "op": "claimed",
            "node": self.node,
            "seqs": little_endian(self.seqs),
            "lease_ids": little_endian(self.lease_ids),
            "deadline": self.deadline.window,
        }


class ExtendEvent(NamedTuple):
    """The leases on `seqs` run until `deadline` has passed, which may be earlier than before."""

    seqs: array[int]
    deadline: Instant

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "extended", "seqs": little_endian(self.seqs), "deadline": self.deadline.window}


class ReleaseEvent(NamedTuple):
    """`seqs` are no longer leased, delayed or parked. They can be claimed from `available_at` on, None for at once."""

    seqs: array[int]
    available_at: Instant | None

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        at = 0 if self.available_at is None else self.available_at.window
        return {"op": "released", "seqs": little_endian(self.seqs), "available_at": at}


class ParkEvent(NamedTuple):
    """`seqs` have had all their deliveries and are to be moved to the dead-letter topic."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "parked", "seqs": little_endian(self.seqs)}


class DeadLetterEvent(NamedTuple):
    """`seqs` have been moved to the dead-letter topic: the copies there are synced, and the same commit deletes them
    here."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "dead_lettered", "seqs": little_endian(self.seqs)}


class AckEvent(NamedTuple):
    """The holder has finished `seqs`: their records are deleted. Has no Lease frame; replay meets the Delete frame
    instead."""

    seqs: array[int]


LeaseEvent = ClaimEvent | ExtendEvent | ReleaseEvent | ParkEvent | DeadLetterEvent
"""The events that a Lease frame can hold."""

Event = LeaseEvent | AckEvent


def event_from_wire(value: Mapping[str, Any], now: Instant) -> LeaseEvent:
    """Return the event that `to_wire` was called on. `now` is the moment of loading, the same for all events of a
    replay.

    Raises ValueError if `value` is not what `to_wire` returns.
    """
    seqs = from_little_endian("Q", value.get("seqs"))
    if not seqs or 0 in seqs:
        raise ValueError(f"lease event: bad seqs in {value!r}")
    match value:
        case {"op": "claimed", "node": str(node), "lease_ids": ids, "deadline": int(deadline)}:
            lease_ids = from_little_endian("Q", ids)
            if len(lease_ids) != len(seqs):
                raise ValueError(f"lease event: {len(lease_ids)} lease ids for {len(seqs)} seqs")
            return ClaimEvent(node, seqs, lease_ids, now.at_window(deadline))
        case {"op": "extended", "deadline": int(deadline)}:
            return ExtendEvent(seqs, now.at_window(deadline))
        case {"op": "released", "available_at": int(at)}:
            return ReleaseEvent(seqs, now.at_window(at) if at else None)
        case {"op": "parked"}:
            return ParkEvent(seqs)
        case {"op": "dead_lettered"}:
            return DeadLetterEvent(seqs)
    raise ValueError(f"lease event: unknown {value.get('op')!r}, or fields missing")
