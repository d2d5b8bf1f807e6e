"""Schedule events: the changes of schedules, as they are applied in memory and as a Schedule frame stores them
(`docs/design/schedules.md`).

An event is a decision that was taken already. `schedules.Schedules.apply` carries it out, at its commit point and again
in replay; applied twice it changes nothing. Times are epoch ms of the wall clock.

A frame's payload is one map:

    {"op": "put",     ...}                      all fields of `Definition`; a frame of shard 0, of no topic
    {"op": "deleted", "schedule", "id"}         the same
    {"op": "fired",   "id", "ts"}               in the batch of the record, a frame of its topic
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, get_args

from topics.model import MAX_U64

CatchUp = Literal["none", "one", "all"]
"""Which missed times fire late."""


class Definition(NamedTuple):
    """A schedule as it was put. Exactly one of `cron` and `every_ms` is given."""

    schedule: str
    id: int
    """Never given out again, so that a firing is never taken for one of a later schedule with the same name."""
    topic: str
    record: str
    """The JSON of the record."""
    cron: str | None
    every_ms: int | None
    time_zone: str
    catch_up: CatchUp
    paused: bool
    created_ts: int
    anchor_ts: int
    """From when `every_ms` counts."""
    from_ts: int
    """No time at or before it is due."""

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Schedule frame."""
        return {"op": "put", **self._asdict()}


class ScheduleDeleted(NamedTuple):
    """A schedule is gone."""

    schedule: str
    id: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Schedule frame."""
        return {"op": "deleted", **self._asdict()}


class ScheduleFired(NamedTuple):
    """The record of the time `ts` is published."""

    id: int
    ts: int

    def to_wire(self) -> dict[str, Any]:
        """Return the payload of the Schedule frame."""
        return {"op": "fired", **self._asdict()}


ScheduleEvent = Definition | ScheduleDeleted | ScheduleFired


def schedule_event_from_wire(value: Mapping[str, Any]) -> ScheduleEvent:
    """Return the event that `to_wire` was called on. Raises ValueError if `value` is not what that returns."""
    match value:
        case {
            "op": "put",
            "schedule": str(name),
            "id": number,
            "topic": str(topic),
            "record": str(record),
            "cron": (str() | None) as cron,
            "every_ms": every_ms,
            "time_zone": str(zone),
            "catch_up": catch_up,
            "paused": bool(paused),
            "created_ts": created,
            "anchor_ts": anchor,
            "from_ts": begin,
        } if catch_up in get_args(CatchUp) and (cron is None) != (every_ms is None):
            every = None if every_ms is None else max(_whole(every_ms), 1)
            times = _whole(created), _whole(anchor), _whole(begin)
            return Definition(name, _whole(number), topic, record, cron, every, zone, catch_up, paused, *times)
        case {"op": "deleted", "schedule": str(name), "id": number}:
            return ScheduleDeleted(name, _whole(number))
        case {"op": "fired", "id": number, "ts": ts}:
            return ScheduleFired(_whole(number), _whole(ts))
    raise ValueError(f"schedule event: unknown {value.get('op')!r}, or fields missing")


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= MAX_U64:
        raise ValueError(f"schedule event: {value!r} is not a number from 0 to 2^64 - 1")
    return value
