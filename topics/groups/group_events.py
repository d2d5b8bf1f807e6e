"""Group events: the changes of groups, as the projection applies them and as a Group frame stores them
(`docs/spec/consumers.md` section 4).

A frame's payload is one map with `group` and `at` (ms of the window clock), and either

    {"op": "put", "seq", "terms", "filter", "max_unfinished"}    `seq` counts only if there is no such group
    {"op": "deleted"}
    {"op": "acked", "seqs"}                                      the group has finished them
    {"op": "reopened", "seqs", "floor", "missed", "front"}       it is to have them again, in the batch of a transaction

or what a Lease frame has (`topics.queue.lease_events`): who holds what in this group.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import Any, NamedTuple

from topics.filters.filter_error import FilterError
from topics.filters.record_filter import parse_filter
from topics.log.dumped_values import from_little_endian, little_endian, whole
from topics.log.topic_config import config_from_wire, config_to_wire
from topics.model import TopicConfig
from topics.queue.lease_events import AckEvent, Event, ReopenEvent, event_from_wire
from topics.runtime.instant import Instant

MAX_UNFINISHED = 100_000
"""The most seqs that a group holds, and runs that it has finished above its floor, together; beyond that its claims get
nothing fresh. 100,000 scattered seqs are some 20 MB."""

TERMS = (
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
    "dead_letter",
    "completed",
    "leases_durable",
    "retry",
    "max_in_flight",
    "rate",
    "order_by",
    "max_in_flight_per_key",
)
"""The settings that a group has in common with a queue."""


class PutGroupEvent(NamedTuple):
    """The group exists, with these settings. A new one has finished everything up to `seq`."""

    seq: int
    terms: TopicConfig
    """How it leases: only the fields of `TERMS` count."""
    filter: str | None
    max_unfinished: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Group frame, without the name."""
        return {
            "op": "put",
            "seq": self.seq,
            "terms": terms_to_wire(self.terms),
            "filter": self.filter,
            "max_unfinished": self.max_unfinished,
        }


class DeleteGroupEvent(NamedTuple):
    """The group is gone."""

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Group frame, without the name."""
        return {"op": "deleted"}


GroupEvent = PutGroupEvent | DeleteGroupEvent | Event


def group_event_to_wire(group: str, at: int, event: GroupEvent) -> dict[str, Any]:
    """Return the payload of a Group frame."""
    if isinstance(event, AckEvent):
        payload: dict[str, Any] = {"op": "acked", "seqs": little_endian(event.seqs)}
    elif isinstance(event, ReopenEvent):
        payload = {"op": "reopened", **event._asdict(), "seqs": little_endian(event.seqs)}
    else:
        payload = event.to_wire()
    return {**payload, "group": group, "at": at}


def group_event_from_wire(value: Mapping[str, Any], now: Instant) -> tuple[str, int, GroupEvent]:
    """Return the group, the time and the event of a payload. `now` is the moment of loading.

    Raises ValueError if `value` is not what `group_event_to_wire` returns.
    """
    group, at = value.get("group"), whole(value.get("at"))
    if not isinstance(group, str) or not group:
        raise ValueError("group event: no group")
    event: GroupEvent
    match value:
        case {"op": "put", "seq": seq, "terms": dict(terms), "filter": (str() | None) as text, "max_unfinished": most}:
            check_filter_text(text)
            event = PutGroupEvent(whole(seq), config_from_wire(terms), text, whole(most))
        case {"op": "deleted"}:
            event = DeleteGroupEvent()
        case {"op": "acked", "seqs": seqs}:
            event = AckEvent(_named(seqs))
        case {"op": "reopened", "seqs": seqs, "floor": floor, "missed": missed}:
            event = ReopenEvent(_named(seqs), whole(floor), whole(missed), whole(value.get("front", 0)))
        case _:
            event = event_from_wire(value, now)
    return group, at, event


def _named(seqs: object) -> array[int]:
    named = from_little_endian("Q", seqs)
    if not named or 0 in named:
        raise ValueError("group event: bad seqs")
    return named


def terms_to_wire(terms: TopicConfig) -> dict[str, Any]:
    """Return the settings of a group that it has in common with a queue."""
    fields = config_to_wire(terms)
    return {name: fields[name] for name in TERMS if name in fields}


def check_filter_text(text: str | None) -> None:
    """Check the stored text of a filter. Raises ValueError if it is none."""
    try:
        if text is not None:
            parse_filter(text)
    except FilterError as error:
        raise ValueError(f"filter of a group{error.place}: {error.message}") from None
