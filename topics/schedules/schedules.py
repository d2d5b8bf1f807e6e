"""The schedules: which record each appends and when, and every decision about them (`docs/spec/consumers.md`
section 5).

A decision is taken on the published state: the caller sees to it that no change of the same schedule is on its way. It
returns the event, which `apply` carries out at its commit point.

*Due times.* `Schedule.look` moves times that have come into the backlog, as `catch_up` says, and the first time of the
backlog is fired next. When a further time comes, `catch_up` decides about the times still in the backlog too. The
backlog is not stored: after a start it is found anew from `last_ts`.

*Replay.* Firings are in the shards of topics, and definitions in shard 0, so a time may be applied before its
definition. It is kept by id; `settle` drops those without a schedule.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from sortedcontainers import SortedDict

from topics.errors import ApiError, invalid
from topics.schedules.schedule_events import (
    CatchUp,
    Definition,
    ScheduleDeleted,
    ScheduleEvent,
    ScheduleFired,
    schedule_event_from_wire,
)
from topics.schedules.timetable import Cron, Every, Timetable, TimetableError

MAX_CATCH_UP: Final = 1000
"""The most missed times that fire late."""

GRACE_MS: Final = 60_000
"""How late (ms) the latest time still fires with `catch_up` `none`: a restart takes some seconds, with very much data a
minute."""


def schedule_not_found(schedule: str) -> ApiError:
    """`404 schedule_not_found`."""
    return ApiError("schedule_not_found", f"there is no schedule {schedule!r}", detail={"schedule": schedule})


def timetable_of(definition: Definition) -> Timetable:
    """Return when a schedule is due. Raises TimetableError."""
    if definition.every_ms is not None:
        return Every(definition.every_ms, definition.anchor_ts)
    assert definition.cron is not None
    return Cron(definition.cron, definition.time_zone)


class Schedule:
    """One schedule as it is published."""

    __slots__ = (
        "_covered",
        "_timetable",
        "backlog",
        "definition",
        "encoded",
        "last_ts",
        "missed",
        "next_ts",
        "problem",
    )

    def __init__(self, definition: Definition) -> None:
        self.definition = definition
        self.last_ts: int | None = None
        """The time of the last firing."""
        self.next_ts: int | None = None
        """The next time after those that `look` has seen."""
        self.backlog: deque[int] = deque()
        """Times that are to be fired, in their order."""
        self.missed = 0
        """Times that `look` has dropped, since it was last asked; of many at once only `MAX_CATCH_UP` are counted."""
        self.problem: str | None = None
        """Why it has no times."""
        self.encoded: bytes | None = None
        """The definition as the last dump has encoded it."""
        self._timetable: Timetable | None = None
        self._covered: int | None = None
        """Up to when `look` has seen all times; None before its first call."""

    @property
    def name(self) -> str:
        return self.definition.schedule

    @property
    def due_ts(self) -> int | None:
        """When it fires next, which may be in the past; None for never."""
        if self.definition.paused:
            return None
        return self.backlog[0] if self.backlog else self.next_ts

    def redefine(self, definition: Definition) -> None:
        """Take over a definition. If the times change, times that were due and not fired are forgotten."""
        kept = self.definition
        self.definition, self.encoded = definition, None
        fields = ("cron", "every_ms", "time_zone", "catch_up", "paused", "anchor_ts", "from_ts")
        if any(getattr(kept, field) != getattr(definition, field) for field in fields):
            self._timetable = None
            self.rewind()

    def rewind(self) -> None:
        """Forget what `look` has seen: the clock was set back, or the times have changed."""
        self._covered, self.next_ts, self.problem = None, None, None
        self.backlog.clear()

    def look(self, now: int) -> None:
        """Bring `backlog` and `next_ts` up to date."""
        if self.definition.paused or (self.next_ts is not None and now < self.next_ts):
            return
        if self._timetable is None:
            try:
                self._timetable = timetable_of(self.definition)
            except TimetableError as error:  # the system has lost the time zone
                self.problem = str(error)
                return
        if self._covered is None:
            self._covered = max(self.definition.from_ts, self.last_ts or 0)
        elif self.next_ts is None:
            return  # there are no more times
        if now > self._covered:
            found = self._timetable.newest(self._covered, now, MAX_CATCH_UP)
            if found:
                self._take(found, now)
                self._covered = found[-1]
        self.next_ts = self._timetable.next_after(max(now, self._covered))

    def _take(self, found: Sequence[int], now: int) -> None:
        waiting = [*self.backlog, *found]
        if self.definition.catch_up == "all":
            kept = waiting[-MAX_CATCH_UP:]
        elif self.definition.catch_up == "one" or now - found[-1] <= GRACE_MS:
            kept = [found[-1]]
        else:
            kept = []
        self.missed += len(waiting) - len(kept)
        self.backlog = deque(kept)

    def fired(self, ts: int) -> None:
        """Note that the record of the time `ts` is published."""
        self.last_ts = max(ts, self.last_ts or 0)
        while self.backlog and self.backlog[0] <= self.last_ts:
            self.backlog.popleft()


class Schedules:
    """All schedules."""

    __slots__ = ("_by_id", "_by_name", "_times", "record_size", "version")

    def __init__(self) -> None:
        self.record_size = 0
        """Characters of the records of all."""
        self.version = 0
        """Grows with every change."""
        self._by_name: SortedDict[str, Schedule] = SortedDict()
        self._by_id: dict[int, Schedule] = {}
        self._times: dict[int, int] = {}
        """Firings of ids without a schedule, while the log is replayed."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Schedule]:
        return iter(self._by_name.values())

    def find(self, name: str) -> Schedule | None:
        """Return the schedule of a name."""
        return self._by_name.get(name)

    def get(self, name: str) -> Schedule:
        """Return the schedule of a name. Raises `404 schedule_not_found`."""
        found = self._by_name.get(name)
        if found is None:
            raise schedule_not_found(name)
        return found

    def names_from(self, prefix: str, after: str | None) -> Iterator[str]:
        """Yield the names that begin with `prefix` and come after `after`, in their order."""
        exclusive = after is not None and after >= prefix
        for name in self._by_name.irange(after if exclusive else prefix, inclusive=(not exclusive, True)):
            if not name.startswith(prefix):
                return
            yield name

    def adopt(self, found: Schedules) -> None:
        """Take over what recovery has found."""
        self._by_name, self._by_id = found._by_name, found._by_id
        self.record_size = found.record_size

    # -- decisions ---------------------------------------------------------------------------------------------------

    def decide_put(
        self,
        name: str,
        *,
        new_id: Callable[[], int],
        topic: str,
        record: str,
        cron: str | None,
        every_ms: int | None,
        time_zone: str,
        catch_up: CatchUp,
        paused: bool | None,
        now: int,
    ) -> Definition | None:
        """Decide that a schedule is defined so; None if it is already. A `paused` of None leaves that as it is.

        Raises 400 for times that cannot be, and for a `cron` that never comes again.
        """
        known = self._by_name.get(name)
        before = known.definition if known is not None else None
        if paused is None:
            paused = before is not None and before.paused
        if before is None:
            wanted = Definition(
                name, 0, topic, record, cron, every_ms, time_zone, catch_up, paused, now, anchor_ts=now, from_ts=now
            )
        else:
            wanted = before._replace(
                topic=topic,
                record=record,
                cron=cron,
                every_ms=every_ms,
                time_zone=time_zone,
                catch_up=catch_up,
                paused=paused,
            )
            if wanted == before:
                return None
            if wanted.every_ms != before.every_ms:
                wanted = wanted._replace(anchor_ts=now)
            when = (wanted.cron, wanted.every_ms, wanted.time_zone, wanted.catch_up, wanted.paused)
            if when != (before.cron, before.every_ms, before.time_zone, before.catch_up, before.paused):
                wanted = wanted._replace(from_ts=now)
        try:
            if timetable_of(wanted).next_after(now) is None:
                raise TimetableError("cron: it never comes again")
        except TimetableError as error:
            field, _, message = str(error).partition(": ")
            raise invalid(field, message) from None
        return wanted if before is not None else wanted._replace(id=new_id())

    def decide_pause(self, name: str, now: int, *, paused: bool) -> Definition | None:
        """Decide that a schedule is paused, or not; None if it is so already. Raises 404."""
        before = self.get(name).definition
        return before._replace(paused=paused, from_ts=now) if before.paused != paused else None

    def decide_delete(self, name: str) -> ScheduleDeleted | None:
        """Decide that a schedule is gone; None if there is none."""
        known = self._by_name.get(name)
        return ScheduleDeleted(name, known.definition.id) if known is not None else None

    # -- events ------------------------------------------------------------------------------------------------------

    def apply(self, event: ScheduleEvent) -> None:
        """Carry out an event. Applying it again changes nothing."""
        self.version += 1
        if isinstance(event, ScheduleFired):
            self._fire(event)
        elif isinstance(event, ScheduleDeleted):
            self._drop(event.schedule)
        else:
            self._define(event)

    def _define(self, event: Definition) -> None:
        known = self._by_name.get(event.schedule)
        if known is not None and known.definition.id == event.id:
            self.record_size += len(event.record) - len(known.definition.record)
            known.redefine(event)
            return
        if known is not None:
            self._drop(event.schedule)
        self._by_name[event.schedule] = self._by_id[event.id] = schedule = Schedule(event)
        schedule.last_ts = self._times.pop(event.id, None)
        self.record_size += len(event.record)

    def _drop(self, name: str) -> None:
        known = self._by_name.pop(name, None)
        if known is not None:
            del self._by_id[known.definition.id]
            self.record_size -= len(known.definition.record)
            if known.last_ts is not None:
                self._times[known.definition.id] = known.last_ts  # in replay its definition may come again

    def _fire(self, event: ScheduleFired) -> None:
        schedule = self._by_id.get(event.id)
        if schedule is not None:
            schedule.fired(event.ts)
        else:
            self._times[event.id] = max(event.ts, self._times.get(event.id, 0))

    def settle(self) -> None:
        """Forget the firings of schedules that are gone: nothing that was decided before can be applied any more."""
        self._times.clear()

    # -- dumps -------------------------------------------------------------------------------------------------------

    def dump(self, encode: Callable[[Any], bytes]) -> tuple[list[bytes], list[int]]:
        """Return the definitions, each encoded by `encode`, and the firings: id and time, one after the other."""
        times: list[int] = []
        definitions: list[bytes] = []
        for schedule in self._by_name.values():
            if schedule.encoded is None:
                schedule.encoded = encode(schedule.definition.to_wire())
            definitions.append(schedule.encoded)
            if schedule.last_ts is not None:
                times += (schedule.definition.id, schedule.last_ts)
        return definitions, times

    def load(self, definitions: Sequence[bytes], times: Sequence[int], decode: Callable[[bytes], Any]) -> None:
        """Take over what `dump` returned. Raises ValueError if it is no such dump."""
        for number, ts in zip(times[::2], times[1::2], strict=True):
            self.apply(schedule_event_from_wire({"op": "fired", "id": number, "ts": ts}))
        for blob in definitions:
            event = schedule_event_from_wire(decode(blob))
            if not isinstance(event, Definition):
                raise ValueError("schedules: a dump has definitions only")
            self.apply(event)
            self.get(event.schedule).encoded = blob
