"""Judges for two kinds of rows that no sweep of the simulation has: stages and their commits, and salvage.

`StageSweep` puts what `test_staging_crashes` asks of a recovery into the form of a `Sweep`. `SalvageSweep` runs a life
that salvages a damaged log, and asks of every crash in it that the next salvage comes to the same, and that a strict
start after that finds nothing wrong.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from tests.simulation import lives, router_lives
from tests.simulation.lives import end_steps
from tests.simulation.model import Fate
from tests.simulation.queue_lives import QueueSweep
from tests.simulation.router_lives import Shown, nobody_forwards, shown_by
from tests.simulation.test_queue_crashes import STEPS
from tests.simulation.test_staging_crashes import TOPIC, Known, Script, clear_away, everything, numbers_of
from tests.simulation.test_staging_crashes import judge as judge_stages
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.model import TopicConfigPatch
from topics.queue import job_pages
from topics.storage.snapshots import queue_dump

# ----------------------------------------------------------------- queues


@contextmanager
def tiny_pages() -> Iterator[None]:
    """A few jobs are many pages of a queue's projection, dumped while the loop goes on."""
    with mock.patch.object(job_pages, "PAGE", 4), mock.patch.object(queue_dump, "LARGE_PAGES", 1):
        yield


class PagedQueueSweep(QueueSweep):
    """See `QueueSweep`; every queue has many pages."""

    def live(self, script: Any, **how: Any) -> None:
        with tiny_pages():
            super().live(script, **how)

    def judge_world(self, world: World, oracle: Any, fate: Fate, second: End, **how: Any) -> None:
        # On a machine with an odd number the sweep takes a checkpoint in between, and finds another projection behind
        # it: of a lease that is over the one says that it was held, and the other that the job is free.
        world.seed *= 2
        with tiny_pages():
            super().judge_world(world, oracle, fate, second, **how)


def stepping(number: int) -> dict[str, Any]:
    """The wall clock is set while the machine is down, or not."""
    return {"step": STEPS[number % len(STEPS)]}


# ----------------------------------------------------------------- stages


class StageSweep(lives.Sweep[Script, Script, Known]):
    """One topic with stages. Its client is the `Script` that writes down what was asked and answered."""

    def __init__(self, config: Settings, seed: int, durability: str) -> None:
        super().__init__(config, seed, Script())
        self.durability = durability

    def client(self, life: Life) -> Script:
        return self.history

    def make_oracle(self, known: int) -> Known:
        return Known(self.history.history[:known])

    def live(self, script: Any, **how: Any) -> None:
        """The same, with the topic there."""

        async def with_topic(life: Life, client: Script) -> None:
            if TOPIC not in life.engine.registry.topics:
                await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(durability=self.durability))  # type: ignore[arg-type]
            await script(life, client)

        super().live(with_topic, **how)

    async def begin(self, life: Life, fate: Fate) -> None:
        """Nothing is written down: what was known holds on, and lives of one row have one fate."""

    def check_said(self, world: World) -> None:
        router_lives.check_said(world)

    def recover(self, world: World) -> list[Any]:
        """What the topic and its stages hold."""
        found: list[Any] = []

        async def look(life: Life) -> None:
            if TOPIC in life.engine.registry.topics:
                stages = life.engine.registry.topics[TOPIC].stages or {}
                found.append(numbers_of(await everything(life)))
                found.append({name: stage.log.count for name, stage in stages.items()})
            end_steps(life)

        assert world.live(look, end="kill")
        self.check_said(world)
        return found

    def judge_world(self, world: World, oracle: Known, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """Twice the same; then every commit is repeated, and what is left of stages committed; then once more."""
        first = self.recover(world)
        again = world.after(second)
        if self.durability != "ephemeral":
            assert self.recover(again.after("kill")) == first, "the second recovery shows something else"
        shown: list[list[tuple[str, int]]] = []

        async def look(life: Life) -> None:
            shown.append(await judge_stages(life, oracle, "kill" if fate == "kill" else "drop", self.durability))
            if shown[0]:
                await clear_away(life)
            end_steps(life)

        assert again.live(look, end="kill")
        last = self.recover(again.after("drop"))
        if shown[0] and self.durability != "ephemeral":
            assert last[0] == shown[0], "what was stored is not there after a crash"
        self.judged += 1


# ----------------------------------------------------------------- salvage


class SalvageSweep(lives.Sweep[Any, router_lives.Client, None]):
    """A log that is damaged, and a start that salvages it. What that shows if nobody disturbs it, is the measure."""

    def __init__(self, config: Settings, seed: int) -> None:
        super().__init__(config, seed, lives.History())
        self.whole: Shown | None = None
        """What the salvage has come to."""

    def client(self, life: Life) -> router_lives.Client:
        return router_lives.Client(life, self.history)

    def make_oracle(self, known: int) -> None:
        """What is known is `whole`, at every point."""

    async def begin(self, life: Life, fate: Fate) -> None:
        with nobody_forwards(life):
            self.whole = await shown_by(life)
        corrupt = [view.name for view in self.whole.views.values() if any(gap[2] == "corrupt" for gap in view.gaps)]
        assert corrupt, "nothing was given up, so there was nothing to salvage"

    def check_said(self, world: World) -> None:
        """Of damage it has to speak."""

    def recover(self, world: World) -> Shown:
        """What a start shows before anybody forwards; then the process is killed."""
        found: list[Shown] = []

        async def look(life: Life) -> None:
            with nobody_forwards(life):
                found.append(await shown_by(life))
                end_steps(life)

        assert world.live(look, end="kill")
        assert world.fs.open_files == 0
        return found[0]

    def judge_world(self, world: World, oracle: None, fate: Fate, second: End, *args: Any, **kwargs: Any) -> None:
        """The salvage is begun anew, and comes to the same; then a strict start does, and records can be added."""
        shown = self.recover(world)
        self._compare(shown)
        for end in (second, "drop" if second == "kill" else "kill"):
            strict = world.after(end)
            strict.settings = replace(world.settings, recovery="strict")
            assert self.recover(strict) == shown, f"a strict start after the salvage and a {end} shows something else"

        async def go_on(life: Life) -> None:
            client = router_lives.Client(life, lives.History())
            with nobody_forwards(life):
                for name, view in shown.views.items():
                    await client.append(name, 2)
                    assert client.history.asked[-1].first == view.head + 1, f"{name}: a seq is used again"
                await life.compactor.checkpoint()
                end_steps(life)

        assert strict.live(go_on, end="kill")
        self.judged += 1

    def _compare(self, shown: Shown) -> None:
        assert self.whole is not None
        assert shown.views.keys() == self.whole.views.keys()
        for name, view in shown.views.items():
            whole = self.whole.views[name]
            if view.config.durability == "fsync":
                assert view == whole, f"{name}: another salvage has come to something else\n  {view}\n  {whole}"
            assert view.records == whole.records, f"{name}: another salvage has come to other records"
            for first, last, _ in whole.gaps:
                told = all(view.gap_of(seq) for seq in range(first, last + 1))
                assert told, f"{name}: gaps were {whole.gaps} and are {view.gaps}"
        for router, state in shown.routers.items():
            assert state.cursor_seq <= shown.views[state.source].head, f"{router} stands above its source's head"
        assert shown.routers.keys() == self.whole.routers.keys()
