"""Consumer events: the changes of named consumers, as the projection applies them and as a Consumer frame stores them
(`docs/spec/consumers.md` section 3).

An event records a decision. `consumers.Consumers.apply` carries it out at the event's commit point, and again in
replay. `at` is the moment of the decision and `deadline` the end of a lease, both in ms of the window clock, which
nobody can set.

A frame's payload is one map:

    {"op": "put",       "consumer", "at", "seq", "ttl_ms", "filter"}    `seq`: the position of a new consumer
    {"op": "committed", "consumer", "at", "seq"}                        the time of the frame is that of the commit
    {"op": "sought",    "consumer", "at", "seq"}
    {"op": "acquired",  "consumer", "at", "owner", "generation", "deadline"}
    {"op": "released",  "consumer", "at"}
    {"op": "deleted",   "consumer", "at"}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.filters.filter_error import FilterError
from topics.filters.record_filter import parse_filter
from topics.model import MAX_U64


class PutEvent(NamedTuple):
    """A consumer was created at position `seq`, or changed: it has this ttl (ms, 0 for none) and this filter (its JSON,
    None for none)."""

    consumer: str
    at: int
    seq: int
    ttl_ms: int
    filter: str | None

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame."""
        return {
            "op": "put",
            "consumer": self.consumer,
            "at": self.at,
            "seq": self.seq,
            "ttl_ms": self.ttl_ms,
            "filter": self.filter,
        }


class CommitEvent(NamedTuple):
    """The consumer has finished all records up to `seq`. `ts` is the time of the commit, epoch ms."""

    consumer: str
    at: int
    seq: int
    ts: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame; `ts` is in the head of the frame."""
        return {"op": "committed", "consumer": self.consumer, "at": self.at, "seq": self.seq}


class SeekEvent(NamedTuple):
    """The consumer was moved to `seq`, forward or back."""

    consumer: str
    at: int
    seq: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame."""
        return {"op": "sought", "consumer": self.consumer, "at": self.at, "seq": self.seq}


class AcquireEvent(NamedTuple):
    """`owner` owns the consumer under `generation`. No other owner may take it before `deadline` has passed."""

    consumer: str
    at: int
    owner: str
    generation: int
    deadline: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame."""
        return {
            "op": "acquired",
            "consumer": self.consumer,
            "at": self.at,
            "owner": self.owner,
            "generation": self.generation,
            "deadline": self.deadline,
        }


class DisownEvent(NamedTuple):
    """The consumer has no owner any more."""

    consumer: str
    at: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame."""
        return {"op": "released", "consumer": self.consumer, "at": self.at}


class DeleteEvent(NamedTuple):
    """The consumer is gone."""

    consumer: str
    at: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Consumer frame."""
        return {"op": "deleted", "consumer": self.consumer, "at": self.at}


ConsumerEvent = PutEvent | CommitEvent | SeekEvent | AcquireEvent | DisownEvent | DeleteEvent


def event_from_wire(value: Mapping[str, Any], ts: int) -> ConsumerEvent:
    """Return the event that `to_wire` was called on. `ts` is the time of its frame, epoch ms.

    Raises ValueError if `value` is not what `to_wire` returns.
    """
    match value:
        case {
            "op": "put",
            "consumer": str(name),
            "at": at,
            "seq": seq,
            "ttl_ms": ttl_ms,
            "filter": (str() | None) as kept,
        }:
            check_filter_text(kept)
            event: ConsumerEvent = PutEvent(name, _u64(at), _u64(seq), _u64(ttl_ms), kept)
        case {"op": "committed", "consumer": str(name), "at": at, "seq": seq}:
            event = CommitEvent(name, _u64(at), _u64(seq), _u64(ts))
        case {"op": "sought", "consumer": str(name), "at": at, "seq": seq}:
            event = SeekEvent(name, _u64(at), _u64(seq))
        case {
            "op": "acquired",
            "consumer": str(name),
            "at": at,
            "owner": str(owner),
            "generation": generation,
            "deadline": deadline,
        }:
            event = AcquireEvent(name, _u64(at), owner, _u64(generation), _u64(deadline))
        case {"op": "released", "consumer": str(name), "at": at}:
            event = DisownEvent(name, _u64(at))
        case {"op": "deleted", "consumer": str(name), "at": at}:
            event = DeleteEvent(name, _u64(at))
        case _:
            raise ValueError(f"consumer event: unknown {value.get('op')!r}, or fields missing")
    return event


def check_filter_text(text: str | None) -> None:
    """Check the stored text of a filter. Raises ValueError if it is not a filter."""
    try:
        if text is not None:
            parse_filter(text)
    except FilterError as error:
        raise ValueError(f"filter of a consumer{error.place}: {error.message}") from None


def _u64(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise ValueError(f"consumer event: {value!r} is not a number from 0 to 2^64 - 1")
    return value
