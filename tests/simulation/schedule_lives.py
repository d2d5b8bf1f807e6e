"""Lives of schedules, crashed everywhere: what a recovery shows has every definition that was answered, and each time
that has fired has one record, of the topic that the schedule had then (`docs/spec/consumers.md` section 5).

A firing is a record with the time that it was due at, so the records alone tell whether one was lost or repeated:
`catch_up` is `all`, and the times of each schedule follow each other without a gap.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import msgspec
import trio

from tests.simulation import lives, router_lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.model import Performance, ReadRequest, SchedulePatch, TopicConfigPatch

EVERY_MS: Final = 100
KEYS: Final = ("_topics_schedule", "_topics_schedule_ts")


class Change(NamedTuple):
    """Something was asked of a schedule, or answered."""

    schedule: str
    topic: str | None
    """Its topic when it has happened; None if it is gone."""
    told: bool


@dataclass
class Changes:
    """What was asked and answered, in order, and what a start has shown to have fired."""

    entries: list[Change] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.entries)


class Client:
    """Asks for one thing of a schedule at a time, and lets them fire."""

    def __init__(self, life: Life, history: Changes) -> None:
        self.life = life
        self.history = history

    async def topic(self, name: str, durability: Any) -> None:
        await self.life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability=durability))

    async def drop(self, topic: str) -> None:
        """Delete a topic; its schedules make it again."""
        await self.life.engine.topic_lifecycle.delete(topic, if_empty=False)

    async def _ask(self, schedule: str, topic: str | None, call: Awaitable[Any]) -> None:
        self.history.entries.append(Change(schedule, topic, told=False))
        await call
        self.history.entries.append(Change(schedule, topic, told=True))

    async def put(self, schedule: str, topic: str) -> None:
        patch = SchedulePatch(
            topic=topic,
            record='{"data":1}',
            cron=None,
            every_ms=EVERY_MS,
            time_zone="UTC",
            catch_up="all",
            paused=False,
        )
        await self._ask(schedule, topic, self.life.engine.schedules.put(schedule, patch, Performance()))

    async def pause(self, schedule: str, topic: str, *, paused: bool) -> None:
        await self._ask(schedule, topic, self.life.engine.schedules.pause(schedule, Performance(), paused=paused))

    async def run(self, schedule: str) -> None:
        await self.life.engine.schedules.run(schedule, Performance())

    async def delete(self, schedule: str) -> None:
        await self._ask(schedule, None, self.life.engine.schedules.delete(schedule, Performance()))

    async def fire(self, ms: int) -> None:
        """Let what is due fire for so long."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.life.engine.firings.run)
            await trio.sleep(ms / 1000)
            nursery.cancel_scope.cancel()


class Fired(NamedTuple):
    """What a start shows."""

    topics: dict[str, str]
    """The topic of each schedule."""
    last: dict[str, int | None]
    """`last_ts` of each."""
    times: dict[str, list[int]]
    """The times that have a record, ascending, by schedule, over all topics."""


async def shown(life: Life) -> Fired:
    times: dict[str, list[int]] = {}
    for name in list(life.engine.registry.topics):
        at = 0
        while True:
            page = await life.engine.reads.read(name, ReadRequest(from_seq=at, limit=1000), Performance())
            for record in msgspec.json.decode(b"[%b]" % page.records):
                schedule, ts = (record["meta"].get(key) for key in KEYS)
                if ts is not None:  # else it is a run
                    times.setdefault(schedule, []).append(int(ts))
            at = page.next_from_seq
            if page.caught_up:
                break
    schedules = list(life.engine.registry.schedules)
    return Fired(
        {one.name: one.definition.topic for one in schedules},
        {one.name: one.last_ts for one in schedules},
        {schedule: sorted(found) for schedule, found in times.items()},
    )


class ScheduleSweep(lives.Sweep[Changes, Client, Sequence[Change]]):
    """Schedules that fire into topics of several classes. Topics that are deleted take their records with them."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, Changes())

    def client(self, life: Life) -> Client:
        return Client(life, self.history)

    def make_oracle(self, known: int) -> Sequence[Change]:
        return self.history.entries[:known]

    async def begin(self, life: Life, fate: Fate) -> None:
        for schedule, topic in (await shown(life)).topics.items():
            self.history.entries.append(Change(schedule, topic, told=True))

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World, *, goes_on: bool = False) -> Fired:
        found: list[Fired] = []

        async def look(life: Life) -> None:
            if goes_on:  # what fires now must neither repeat a time nor leave one out
                await Client(life, Changes()).fire(3 * EVERY_MS)
            found.append(await shown(life))
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found[0]

    def judge_world(
        self, world: World, oracle: Sequence[Change], fate: Fate, second: End, *args: Any, **kwargs: Any
    ) -> None:
        first = self.recover(world)
        for schedule in {entry.schedule for entry in oracle} | first.topics.keys():
            entries = [entry for entry in oracle if entry.schedule == schedule]
            told = max((i for i, entry in enumerate(entries) if entry.told), default=-1)
            possible = {entry.topic for entry in entries[max(told, 0) :]} | ({None} if told < 0 else set())
            assert first.topics.get(schedule) in possible, f"{schedule}: {first.topics.get(schedule)}, not {possible}"
        self.check_times(first)
        again = self.recover(world.after(second), goes_on=True)
        assert again.topics == first.topics, "the second recovery shows other schedules"
        self.check_times(again)
        for schedule, found in first.times.items():
            assert again.times[schedule][: len(found)] == found, f"{schedule}: times that had fired"
        self.judged += 1

    def check_times(self, fired: Fired) -> None:
        """Each time has one record, none is left out, and the last is `last_ts`."""
        for schedule, found in fired.times.items():
            assert max(Counter(found).values()) == 1, f"{schedule} has fired twice for a time"
            if schedule in fired.topics:
                assert found[-1] == fired.last[schedule], f"{schedule}: a record without its time, or the reverse"
                assert all(b - a == EVERY_MS for a, b in pairwise(found)), f"{schedule} has left out a time"
        for schedule, last in fired.last.items():
            assert last is None or schedule in fired.times, f"{schedule}: a time without its record"
