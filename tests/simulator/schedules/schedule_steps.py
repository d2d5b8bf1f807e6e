"""What clients do with schedules. Of one schedule one change is asked for at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any

import msgspec

from tests.simulator.caller import Caller
from tests.simulator.known import Instance, Promise, broken
from tests.simulator.schedules.schedule_plans import CALENDAR
from tests.simulator.schedules.schedule_rules import ScheduleFacts, Wanted
from topics.errors import ApiError
from topics.model import Performance, RecordIn, SchedulePatch


class ScheduleSteps(Caller):
    """Makes schedules, pauses, runs and deletes them."""

    def _calendar(self) -> Instance | None:
        instance = self.truth.latest(CALENDAR)
        return instance if instance is not None and instance.created else None

    def _schedule(self, what: Mapping[str, Any]) -> ScheduleFacts | None:
        """A schedule that is there, of which nothing is on its way."""
        facts = self.truth.schedules.known.get(what["schedule"])
        return facts if facts is not None and facts.there == "yes" and not facts.is_changing else None

    async def do_put_schedule(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Make a schedule, or change it."""
        rules, name, calendar = self.truth.schedules, what["schedule"], self._calendar()
        if calendar is None or (name in rules.known and self._schedule(what) is None):
            return
        is_new = name not in rules.known
        if is_new:
            rules.known[name] = ScheduleFacts(name, self.life.clock.now_ms(), paused={False})
        facts = rules.known[name]
        number = self.truth.number()
        data = b'{"n":%d,"x":""}' % number
        wanted = Wanted(number, what.get("every_ms"), what["catch_up"])
        rules.asked(self.truth, facts, RecordIn(data=msgspec.Raw(data)), wanted)
        facts.changes += not is_new
        paused = what["paused"]
        facts.paused = {paused} if paused is not None and is_new else facts.paused | ({paused} - {None})
        if paused is False:
            rules.reopen(facts)
        patch = SchedulePatch(
            topic=CALENDAR,
            record=(b'{"data":' + data + b"}").decode(),
            cron=what.get("cron"),
            every_ms=what.get("every_ms"),
            time_zone="UTC",
            catch_up=what["catch_up"],
            paused=paused,
        )
        answer = await self._change(facts, self.engine.schedules.put(name, patch, Performance()))
        if answer is None:
            return
        state, created = answer
        if created != is_new:
            broken(f"the schedule {name} was made: {created}, and is new: {is_new}")
        facts.there, facts.options = "yes", [wanted]
        self._settle(facts, calendar, paused=state.paused)

    async def _change(self, facts: ScheduleFacts, call: Awaitable[Any]) -> Any:
        """Ask for a change. None if it was refused, so that nobody knows whether it has happened."""
        facts.is_changing = True
        facts.since_ms = min(facts.since_ms, self.life.clock.now_ms())
        try:
            answer = await call
        except ApiError:
            self._alive()
            if facts.there == "yes":
                facts.there = "maybe"
            return None
        finally:
            facts.is_changing = False
        self._alive()
        return answer

    def _settle(self, facts: ScheduleFacts, calendar: Instance, *, paused: bool) -> None:
        """A change was answered: nothing of what was before fires any more, nor anything in a pause."""
        facts.paused = {paused}
        number = 0 if paused else facts.options[0].number
        self.truth.schedules.close(facts, calendar.epoch, self._head(calendar), but=number)

    async def do_pause_schedule(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have it fire nothing."""
        await self._pause_schedule(what, paused=True)

    async def do_resume_schedule(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have it fire again."""
        await self._pause_schedule(what, paused=False)

    async def _pause_schedule(self, what: Mapping[str, Any], *, paused: bool) -> None:
        facts, calendar = self._schedule(what), self._calendar()
        if facts is None or calendar is None:
            return
        facts.changes += 1
        facts.paused = facts.paused | {paused}
        if not paused:
            self.truth.schedules.reopen(facts)
        state = await self._change(facts, self.engine.schedules.pause(facts.name, Performance(), paused=paused))
        if state is not None:
            if state.paused != paused:
                broken(f"the schedule {facts.name} is {state}")
            self._settle(facts, calendar, paused=paused)

    async def do_delete_schedule(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Take a schedule away."""
        facts, calendar = self._schedule(what), self._calendar()
        if facts is None or calendar is None:
            return
        facts.there = "maybe"
        was_there = await self._change(facts, self.engine.schedules.delete(facts.name, Performance()))
        if was_there is not None:
            if not was_there:
                broken(f"the schedule {facts.name} was there, and was not")
            self.truth.schedules.close(facts, calendar.epoch, self._head(calendar))
            del self.truth.schedules.known[facts.name]

    async def do_run_schedule(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have its record appended now."""
        facts, calendar = self._schedule(what), self._calendar()
        if facts is None or calendar is None or len(facts.options) != 1:
            return
        with self._refusable():
            result = await self.engine.schedules.run(facts.name, Performance())
            self._alive()
            calendar.tell(result.first_seq, facts.options[0].number, Promise.ALL, self.truth.tick())
