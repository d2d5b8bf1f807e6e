"""The calls on schedules (`docs/spec/consumers.md` section 5): put, get, list, delete, run, pause, resume.

A call that changes something waits until nothing else of that schedule is on its way, decides in one step
(`topics.schedules.schedules`), and answers when that is synced (`schedule_commits`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import msgspec

from topics.auth.keys import Key
from topics.config import Settings
from topics.engine.operations.append import Appends
from topics.engine.registry import Registry
from topics.engine.schedules.firings import Firings, request_of
from topics.engine.schedules.running_schedule import RunAttachment, refuse_ephemeral
from topics.engine.schedules.schedule_commits import ScheduleCommits
from topics.model import AppendResult, Performance, ScheduleError, SchedulePatch, ScheduleState
from topics.runtime.clock import Clock
from topics.schedules.schedule_events import Definition
from topics.schedules.schedules import Schedule

MAX_RECORD_TEXT: Final = 16 << 20
"""Characters of the records of all schedules together."""


class ScheduleCalls:
    """The calls on schedules. Made once by the engine."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        registry: Registry,
        *,
        appends: Appends,
        commits: ScheduleCommits,
        firings: Firings,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._schedules = registry.schedules
        self._appends = appends
        self._commits = commits
        self._firings = firings
        self._creating = 0
        """Creations that are on their way."""
        self._growing = 0
        """Characters that records will have besides when the changes on their way are there."""

    # -- looking -----------------------------------------------------------------------------------------------------

    def topic_of(self, name: str) -> str | None:
        """Return the topic of a schedule; None if there is no such schedule."""
        found = self._schedules.find(name)
        return found.definition.topic if found is not None else None

    def state(self, name: str) -> ScheduleState:
        """Return a schedule. Raises 404."""
        return self._state(self._schedules.get(name))

    def page(self, prefix: str, after: str | None, most: int, key: Key) -> tuple[list[ScheduleState], bool]:
        """Return a page of the schedules that `key` covers, in the order of their names, and True if there are
        more."""
        found: list[ScheduleState] = []
        for name in self._schedules.names_from(prefix, after):
            schedule = self._schedules.get(name)
            if key.covers(name) and key.covers(schedule.definition.topic):
                if len(found) == most:
                    return found, True
                found.append(self._state(schedule))
        return found, False

    def _state(self, schedule: Schedule) -> ScheduleState:
        self._firings.look(schedule)
        definition = schedule.definition
        return ScheduleState(
            schedule=definition.schedule,
            topic=definition.topic,
            record=msgspec.Raw(definition.record.encode()),
            cron=definition.cron,
            every_ms=definition.every_ms,
            time_zone=definition.time_zone,
            catch_up=definition.catch_up,
            paused=definition.paused,
            created_ts=definition.created_ts,
            next_ts=schedule.due_ts,
            last_ts=schedule.last_ts,
            last_error=self._error(schedule),
        )

    def _error(self, schedule: Schedule) -> ScheduleError | None:
        running = self._firings.running(schedule.name)
        if running.doubtful:
            text = "the shard has failed while a firing was on its way; the next start finds out whether it is on disk"
            return ScheduleError("read_only", text)
        if running.last_error is not None:
            return ScheduleError(running.last_error.code, running.last_error.message)
        return ScheduleError("invalid_request", schedule.problem) if schedule.problem is not None else None

    # -- changing ----------------------------------------------------------------------------------------------------

    async def put(self, name: str, patch: SchedulePatch, perf: Performance) -> tuple[ScheduleState, bool]:
        """Create or change a schedule, synced. Return it, and True if it was created.

        Raises 400, `409 topic_exists_incompatible`, 429, and 503. Cancelling stops only the waiting, once the change is
        queued.
        """
        await self._current(name)
        topic = self._registry.topics.get(patch.topic)
        if topic is not None:
            refuse_ephemeral(topic)
        known = self._schedules.find(name)
        event = self._schedules.decide_put(
            name,
            new_id=self._new_id,
            topic=patch.topic,
            record=patch.record,
            cron=patch.cron,
            every_ms=patch.every_ms,
            time_zone=patch.time_zone,
            catch_up=patch.catch_up,
            paused=patch.paused,
            now=self._clock.now_ms(),
        )
        if event is None:
            return self.state(name), False
        growth = max(0, len(event.record) - (len(known.definition.record) if known is not None else 0))
        self._check_room(growth, created=known is None)
        self._creating += known is None
        self._growing += growth
        ended = partial(self._put_ended, name, created=known is None, growth=growth)
        return await self._commit(event, perf, ended), known is None

    def _new_id(self) -> int:
        """Return a number that was never given out. Those of topics are counted over restarts."""
        number = self._registry.next_topic_id
        self._registry.next_topic_id += 1
        return number

    def _check_room(self, growth: int, *, created: bool) -> None:
        """Raise 429 if there are too many schedules, or their records are too long."""
        maximum = self._settings.max_schedules
        if created and maximum and len(self._schedules) + self._creating >= maximum:
            raise self._registry.throttle("max_schedules", maximum)
        if growth and self._schedules.record_size + self._growing + growth > MAX_RECORD_TEXT:
            raise self._registry.throttle("max_schedule_records", MAX_RECORD_TEXT)

    def _put_ended(self, name: str, *, created: bool, growth: int) -> None:
        self._creating -= created
        self._growing -= growth
        self._firings.note_change(name)

    async def pause(self, name: str, perf: Performance, *, paused: bool) -> ScheduleState:
        """Pause a schedule or let it go on, synced. Repeats change nothing. Raises 404, 429, and 503."""
        await self._current(name)
        event = self._schedules.decide_pause(name, self._clock.now_ms(), paused=paused)
        if event is None:
            return self.state(name)
        return await self._commit(event, perf, partial(self._firings.note_change, name))

    async def delete(self, name: str, perf: Performance) -> bool:
        """Delete a schedule, synced. Return True if there was one. Raises 429, and 503."""
        await self._current(name)
        event = self._schedules.decide_delete(name)
        if event is None:
            return False
        ended = partial(self._firings.note_change, name)
        await self._commits.commit(event, perf, applied=_nothing, ended=ended)
        return True

    async def _current(self, name: str) -> None:
        await self._commits.current(name, partial(self._firings.decided, name))

    async def _commit(self, event: Definition, perf: Performance, ended: Callable[[], None]) -> ScheduleState:
        """Commit a definition. Return the schedule as it is then: another call may change or delete it at once."""
        found: list[Schedule] = []
        applied = partial(_keep, found, self._schedules.find, event.schedule)
        await self._commits.commit(event, perf, applied=applied, ended=ended)
        return self._state(found[0])

    # -- running -----------------------------------------------------------------------------------------------------

    async def run(self, name: str, perf: Performance) -> AppendResult:
        """Append the record of a schedule now, synced, paused or not; its times stay as they are. Raises 404, and what
        an append raises. Cancelling is as with an append."""
        definition = self._schedules.get(name).definition
        return await self._appends.append(
            definition.topic, request_of(definition, None), perf, attachment=RunAttachment()
        )


def _nothing() -> None:
    """Do nothing."""


def _keep(found: list[Schedule], find: Callable[[str], Schedule | None], name: str) -> None:
    schedule = find(name)
    assert schedule is not None
    found.append(schedule)
