"""The task that appends the records of schedules at their times (`docs/design/schedules.md`).

One heap says when each schedule is looked at next, by the wall clock. The task waits for its top, but never longer than
`LONGEST_WAIT_S`, so that it sees steps of the wall clock. Of one schedule one firing is tried at a time, and
`MOST_AT_ONCE` of all.
"""

from __future__ import annotations

import heapq
from collections import deque
from functools import partial
from typing import Final

import msgspec
import trio

from topics.engine.operations.append import Appends
from topics.engine.registry import Registry
from topics.engine.schedules.running_schedule import FiringAttachment, FiringOvertaken, RunningSchedule
from topics.engine.schedules.schedule_commits import ScheduleCommits
from topics.errors import ApiError
from topics.model import AppendRequest, Performance, RecordIn
from topics.runtime.clock import Clock
from topics.schedules.schedule_events import Definition, ScheduleFired
from topics.schedules.schedules import Schedule
from topics.telemetry.figures import ScheduleFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LONGEST_WAIT_S: Final = 1.0
"""How long the task waits at most before it reads the wall clock again."""

MOST_AT_ONCE: Final = 64
"""Firings that are tried at the same time: enough to share the syncs of a disk."""

SLICE: Final = 32
"""Schedules that are looked at in one step of the loop: some ms after a long stop, otherwise less than one."""

FIRST_RETRY_MS: Final = 100
LONGEST_RETRY_MS: Final = 10_000
"""The pauses before a firing that was refused is tried again double from the first to the second."""

NAME_KEY: Final = "_topics_schedule"
TIME_KEY: Final = "_topics_schedule_ts"
"""Members of the meta of a fired record: the name of the schedule, and when it was due (epoch ms)."""

_record: Final = msgspec.json.Decoder(RecordIn)


def request_of(definition: Definition, ts: int | None) -> AppendRequest:
    """Return the append of a schedule's record; `ts` is when it was due, None for a run."""
    record = _record.decode(definition.record)
    own = {NAME_KEY: definition.schedule} | ({} if ts is None else {TIME_KEY: str(ts)})
    record.meta = {**(record.meta or {}), **own}
    return AppendRequest(records=[record])


class Firings:
    """Fires schedules whose time has come. Made once by the engine; `run` is a task, which may be started again."""

    def __init__(self, clock: Clock, registry: Registry, appends: Appends, commits: ScheduleCommits) -> None:
        self._clock = clock
        self._registry = registry
        self._appends = appends
        self._commits = commits
        self._running: dict[str, RunningSchedule] = {}
        self._heap: list[tuple[int, str]] = []
        self._ready: deque[str] = deque()
        """Schedules whose time has come, while too many firings are tried."""
        self._trying: set[str] = set()
        self._wake = trio.Event()
        self._seen_ms = 0
        """The wall clock when it was last read."""
        self._figures = ScheduleFigures()

    def figures(self) -> ScheduleFigures:
        """Return the figures for the metrics."""
        figures = self._figures
        figures.schedules = len(self._registry.schedules)
        figures.failing = sum(running.last_error is not None or running.doubtful for running in self._running.values())
        return figures

    def running(self, name: str) -> RunningSchedule:
        """Return the state of firings of a schedule."""
        return self._running.setdefault(name, RunningSchedule())

    def decided(self, name: str) -> trio.Event | None:
        """Return the event that ends the time in which a firing is decided and not published; None if there is none."""
        running = self._running.get(name)
        return running.decided if running is not None else None

    def look(self, schedule: Schedule) -> None:
        """Bring the due times of a schedule up to date, for an answer."""
        schedule.look(self._clock.now_ms())
        self._count_missed(schedule)

    def note_change(self, name: str) -> None:
        """A schedule was changed, or a change of it has failed."""
        schedule = self._registry.schedules.find(name)
        running = self._running.get(name)
        if schedule is None:
            self._running.pop(name, None)
            return
        if running is not None and not running.doubtful:
            running.last_error, running.retry_ms = None, 0
        self._push(schedule, self._clock.now_ms())
        self._wake.set()

    def _push(self, schedule: Schedule, when: int) -> None:
        self.running(schedule.name).wake_at = when
        heapq.heappush(self._heap, (when, schedule.name))
        if len(self._heap) > 2 * len(self._registry.schedules) + SLICE:  # most of them do not count any more
            self._heap = [entry for entry in self._heap if self._counts(entry)]
            heapq.heapify(self._heap)

    def _counts(self, entry: tuple[int, str]) -> bool:
        running = self._running.get(entry[1])
        return running is not None and running.wake_at == entry[0]

    # -- the task ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Fire until cancelled. A firing that has its seq then is committed all the same."""
        self._trying.clear()
        self._ready.clear()
        self._seen_ms = self._clock.now_ms()
        await self._look_at_all()
        async with trio.open_nursery() as nursery:
            while True:
                self._wake = trio.Event()
                now = self._clock.now_ms()
                if now < self._seen_ms:
                    log.warning("clock_set_back", ms=self._seen_ms - now, consequence="no schedule fires twice")
                    await self._look_at_all(rewind=True)
                self._seen_ms = now
                self._begin_due(nursery, now)
                top = self._heap[0][0] if self._heap else None
                if top is not None and top <= now:
                    await trio.lowlevel.checkpoint()
                    continue
                wait_s = LONGEST_WAIT_S if top is None else (top - now) / 1000
                with trio.move_on_after(min(wait_s, LONGEST_WAIT_S)):
                    await self._wake.wait()

    async def _look_at_all(self, *, rewind: bool = False) -> None:
        for i, name in enumerate(list(self._registry.schedules.names_from("", None)), 1):
            schedule = self._registry.schedules.find(name)
            if schedule is not None and name not in self._trying:
                if rewind:
                    schedule.rewind()
                self._look(schedule, self._clock.now_ms())
            if i % SLICE == 0:
                await trio.lowlevel.checkpoint()

    def _begin_due(self, nursery: trio.Nursery, now: int) -> None:
        """Begin the firings that are due, at most `SLICE` of them."""
        for _ in range(SLICE):
            if not self._heap or self._heap[0][0] > now:
                return
            entry = heapq.heappop(self._heap)
            if self._counts(entry):
                self._running[entry[1]].wake_at = None
                self._begin(nursery, entry[1])

    def _begin(self, nursery: trio.Nursery, name: str) -> None:
        if name in self._trying:
            return  # it looks again when it ends
        if len(self._trying) >= MOST_AT_ONCE:
            self._ready.append(name)
            return
        schedule = self._registry.schedules.find(name)
        if schedule is None:
            self._running.pop(name, None)
            return
        self._look(schedule, self._clock.now_ms())
        if self._is_due(schedule):
            self.running(name).wake_at = None
            self._trying.add(name)
            nursery.start_soon(self._fire, nursery, name)

    def _look(self, schedule: Schedule, now: int) -> None:
        """Bring the due times up to date, and note when to look again."""
        schedule.look(now)
        self._count_missed(schedule)
        if self._is_due(schedule):
            self._push(schedule, now)
        elif schedule.next_ts is not None and not schedule.definition.paused:
            self._push(schedule, schedule.next_ts)

    def _count_missed(self, schedule: Schedule) -> None:
        self._figures.missed += schedule.missed
        schedule.missed = 0

    def _is_due(self, schedule: Schedule) -> bool:
        """Return True if a firing may be tried now. A change that is on its way looks again when it ends."""
        running = self.running(schedule.name)
        if running.doubtful or running.decided is not None or self._commits.is_changing(schedule.name):
            return False
        return bool(schedule.backlog) and not schedule.definition.paused

    # -- one schedule ------------------------------------------------------------------------------------------------

    async def _fire(self, nursery: trio.Nursery, name: str) -> None:
        """Append all that is due of a schedule, until nothing is, or an append is refused."""
        try:
            await self._fire_all(name)
        finally:
            self._trying.discard(name)
        while self._ready and len(self._trying) < MOST_AT_ONCE:
            self._begin(nursery, self._ready.popleft())

    async def _fire_all(self, name: str) -> None:
        while True:
            await trio.lowlevel.checkpoint()
            schedule = self._registry.schedules.find(name)
            if schedule is None:
                return
            schedule.look(self._clock.now_ms())
            self._count_missed(schedule)
            running = self.running(name)
            if not self._is_due(schedule):
                if schedule.next_ts is not None and not schedule.definition.paused:
                    self._push(schedule, schedule.next_ts)
                    self._wake.set()
                return
            ts, definition = schedule.backlog[0], schedule.definition
            attachment = FiringAttachment(
                definition,
                ts,
                running,
                partial(self._is_wanted, name, definition, ts),
                partial(self._ended, name, running),
            )
            try:
                await self._appends.append(
                    definition.topic, request_of(definition, ts), Performance(), attachment=attachment
                )
            except FiringOvertaken:
                continue
            except ApiError as error:
                if running.decided is not None:  # it waits for room on the disk, and may still be written
                    running.last_error = error
                    await running.decided.wait()
                    continue
                self._refuse(schedule, running, error)
                return
            running.last_error, running.retry_ms = None, 0

    def _is_wanted(self, name: str, definition: Definition, ts: int) -> bool:
        """Return True if this firing may be decided: nothing about the schedule has changed since it was begun."""
        schedule = self._registry.schedules.find(name)
        if schedule is None or schedule.definition is not definition or self._commits.is_changing(name):
            return False
        schedule.look(self._clock.now_ms())
        self._count_missed(schedule)
        return bool(schedule.backlog) and schedule.backlog[0] == ts

    def _ended(self, name: str, running: RunningSchedule, event: ScheduleFired | None) -> None:
        """A firing is published, or (None) its shard has failed."""
        if event is not None:
            self._registry.schedules.apply(event)
            self._figures.fired += 1
            return
        running.doubtful = True
        log.error("firing_in_doubt", schedule=name, consequence="it fires nothing until the next start, which decides")

    def _refuse(self, schedule: Schedule, running: RunningSchedule, error: ApiError) -> None:
        if running.last_error is None:
            log.warning("firing_refused", schedule=schedule.name, code=error.code, reason=error.message)
        running.last_error = error
        self._figures.refused += 1
        running.retry_ms = min(running.retry_ms * 2 or FIRST_RETRY_MS, LONGEST_RETRY_MS)
        when = self._clock.now_ms() + running.retry_ms
        self._push(schedule, when if schedule.next_ts is None else min(when, schedule.next_ts))
        self._wake.set()
