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
    {"op": "completed",     "seqs", "node", "results"}                   finished by `node`; the JSON of each result
    {"op": "delivered",     "seqs"}                                      their results are there; deleted here
    {"op": "enqueued",      "seqs", "not_before", "priorities"}          u64 each, epoch ms, or 0; a byte each
    {"op": "nacked",        "seqs", "moment", "delays", "counts", "condemns", "error"}
                                            released `delays` (i64 each, ms) after `moment`; `counts`: the delivery
                                            counts; `condemns`: due for the dead-letter topic; `error` may be missing
    {"op": "retried",       "seqs"}                                      delayed or later; can be claimed at once
    {"op": "keyed",         "seqs", "digests", "windows", "moment", "answer"}
                                            the unique keys of new jobs (16 bytes each), their windows (u32 each, ms),
                                            when they were appended, and for an append with an idempotency key what it
                                            was told of duplicates (`unique_keys.answer_to_wire`), or nothing
    {"op": "paused",        "until"}                                     epoch ms, or 0 for no end
    {"op": "resumed"}

`enqueued` and `keyed` are in the batch of the records that they are about. `keyed` has no seqs if all records of the
append were duplicates. An older version of the daemon does not know `retried` and the ones below it, and refuses them.
That is so for `completed` and `delivered` too.

An ack has no frame of its own, unless its results are delivered: it is the deletion of the record.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

from topics.log.dumped_values import from_little_endian, little_endian
from topics.queue.job_pages import MOST_PRIORITY
from topics.queue.unique_keys import DIGEST_BYTES, FirstAnswer, answer_from_wire, answer_to_wire
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


class CompleteEvent(NamedTuple):
    """`node`, the holder, has finished `seqs`, with a result each (JSON). Their records stay until the results are
    delivered."""

    node: str
    seqs: array[int]
    results: tuple[bytes, ...]

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {
            "op": "completed",
            "seqs": little_endian(self.seqs),
            "node": self.node,
            "results": list(self.results),
        }


class DeliverEvent(NamedTuple):
    """The results of `seqs` are synced where they were to go, and the same commit deletes the jobs that are still
    there."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "delivered", "seqs": little_endian(self.seqs)}


class EnqueueEvent(NamedTuple):
    """The new jobs `seqs` cannot be claimed before a time (`not_before`, epoch ms of the wall clock; 0 for none), and
    have these priorities. Jobs without either are fresh and need no event."""

    seqs: array[int]
    not_before: array[int]
    priorities: bytes

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {
            "op": "enqueued",
            "seqs": little_endian(self.seqs),
            "not_before": little_endian(self.not_before),
            "priorities": self.priorities,
        }


class KeyEvent(NamedTuple):
    """The new jobs `seqs`, appended at `moment` (ms of the window clock), have unique keys with these digests, and
    windows (ms; 0 for none). `answer` is for a repeat of the append under its idempotency key."""

    seqs: array[int]
    digests: bytes
    windows: array[int]
    moment: int
    answer: FirstAnswer | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        payload = {
            "op": "keyed",
            "seqs": little_endian(self.seqs),
            "digests": self.digests,
            "windows": little_endian(self.windows),
            "moment": self.moment,
        }
        return payload if self.answer is None else {**payload, "answer": answer_to_wire(self.answer)}


class NackEvent(NamedTuple):
    """`seqs` are no longer leased, each with a delay of its own (ms from `moment` on), or with more to note than a
    `ReleaseEvent` can: the delivery may not count, and an error may be kept. The jobs may be condemned: they are due
    for the dead-letter topic after any number of deliveries."""

    seqs: array[int]
    moment: Instant
    delays: array[int]
    counts: bool = True
    condemns: bool = False
    error: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        payload = {
            "op": "nacked",
            "seqs": little_endian(self.seqs),
            "moment": self.moment.window,
            "delays": little_endian(self.delays),
            "counts": self.counts,
            "condemns": self.condemns,
        }
        return payload if self.error is None else {**payload, "error": self.error}


class RetryEvent(NamedTuple):
    """`seqs` are not delayed or later any more, and can be claimed at once."""

    seqs: array[int]

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "retried", "seqs": little_endian(self.seqs)}


class PauseEvent(NamedTuple):
    """Claims get nothing until `until` (epoch ms of the wall clock; 0 for no end), or until the queue is resumed."""

    until: int

    @property
    def seqs(self) -> array[int]:
        """It is about no single jobs."""
        return array("Q")

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "paused", "until": self.until}


class ResumeEvent(NamedTuple):
    """The queue is not paused any more."""

    @property
    def seqs(self) -> array[int]:
        """It is about no single jobs."""
        return array("Q")

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Lease frame."""
        return {"op": "resumed"}


class AckEvent(NamedTuple):
    """The holder has finished `seqs`, or they are cancelled: their records are deleted. Has no Lease frame; replay
    meets the Delete frame instead."""

    seqs: array[int]


class ReopenEvent(NamedTuple):
    """A group is to have `seqs` again, which it has finished: they are free, without a delivery. Has no Lease frame,
    but the Group frame of a redrive (`topics.groups.group_events`).

    `floor` and `missed` are those of the group when it was decided: a replay may not have come so far, because the
    floor moves over records that are gone without an event. `front` is the first seq that was live then: `missed` has
    what was lost before it, held records too. An event of an older version has no `front`: it is 0."""

    seqs: array[int]
    floor: int
    missed: int
    front: int = 0


JobEvent = (
    ClaimEvent
    | ExtendEvent
    | ReleaseEvent
    | NackEvent
    | ParkEvent
    | DeadLetterEvent
    | CompleteEvent
    | DeliverEvent
    | EnqueueEvent
    | KeyEvent
)
LeaseEvent = JobEvent | RetryEvent | PauseEvent | ResumeEvent
"""The events that a Lease frame can hold."""

Event = LeaseEvent | AckEvent | ReopenEvent


def event_from_wire(value: Mapping[str, Any], now: Instant) -> LeaseEvent:
    """Return the event that `to_wire` was called on. `now` is the moment of loading, the same for all events of a
    replay.

    Raises ValueError if `value` is not what `to_wire` returns.
    """
    match value:
        case {"op": "paused", "until": int(until)} if until >= 0:
            return PauseEvent(until)
        case {"op": "resumed"}:
            return ResumeEvent()
        case {"op": "keyed"}:
            return _keys_from_wire(value)
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
        case {"op": "retried"}:
            return RetryEvent(seqs)
        case {"op": "parked"}:
            return ParkEvent(seqs)
        case {"op": "dead_lettered"}:
            return DeadLetterEvent(seqs)
        case {"op": "completed", "node": str(node), "results": [*results]}:
            if len(results) == len(seqs) and all(isinstance(data, bytes) for data in results):
                return CompleteEvent(node, seqs, tuple(results))
        case {"op": "delivered"}:
            return DeliverEvent(seqs)
        case {"op": "nacked", "moment": int(moment), "delays": delays_, "counts": bool(counts), "condemns": bool(dead)}:
            delays = from_little_endian("q", delays_)
            error = value.get("error")
            if len(delays) == len(seqs) and (error is None or isinstance(error, str)):
                return NackEvent(seqs, now.at_window(moment), delays, counts, dead, error)
        case {"op": "enqueued", "not_before": times, "priorities": bytes(priorities)}:
            not_before = from_little_endian("Q", times)
            if len(not_before) == len(seqs) == len(priorities) and max(priorities) <= MOST_PRIORITY:
                return EnqueueEvent(seqs, not_before, priorities)
    raise ValueError(f"lease event: unknown {value.get('op')!r}, or fields missing")


def _keys_from_wire(value: Mapping[str, Any]) -> KeyEvent:
    match value:
        case {"seqs": seqs_, "digests": bytes(digests), "windows": windows_, "moment": int(moment)}:
            seqs, windows = from_little_endian("Q", seqs_), from_little_endian("I", windows_)
            answer = answer_from_wire(value["answer"]) if "answer" in value else None
            ascending = all(a < b for a, b in pairwise([0, *seqs]))
            if ascending and len(seqs) == len(windows) == len(digests) / DIGEST_BYTES and 0 <= moment < 1 << 63:
                return KeyEvent(seqs, digests, windows, moment, answer)
    raise ValueError("lease event: bad keys")
