"""Random histories with everything in them: a standby that follows shows at each cut what one shows that is started on
the owner's directory as of this cut."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import StandbyLife, following, live, opened_as_standby
from tests.bucket.test_restore_histories import ArchivedRun, dumped
from tests.everything import EVERYTHING, slow_after
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.queue_state import nobody_moves
from tests.simulation.world import Life
from tests.simulator.plan import make
from tests.simulator.running import Shown, shown_by
from topics.bucket.round_format import decode_round

SEEDS = [*range(200)] if EVERYTHING else [*range(8), 11]


async def seen(life: Life, window: int = 0) -> tuple[Shown, dict[str, Any], int]:
    """What a standby shows, and what it would write down of each topic. The records of an `ephemeral` topic, and what
    is done with them, are in its owner's memory alone. And the clock of windows; jobs are shown as of `window`, if
    that is later: dumps of the owner have later times than its log."""
    registry = life.engine.registry
    now = registry.instant()
    now = now.after(max(window - now.window, 0))
    for topic in registry.by_id.values():  # a start frees what is over; a standby that goes on does not
        for queue in (topic.queue, *(topic.groups.by_name.values() if topic.groups is not None else ())):
            while queue is not None and queue.sweep(now, queue.terms(topic.config)):
                pass
    with nobody_moves(life):
        shown, parts = await shown_by(life), dumped(life)
    topics = life.engine.registry.topics
    gone = {name for name, topic in topics.items() if topic.ephemeral}

    def kept(found: dict[str, Any]) -> dict[str, Any]:
        return {name: one for name, one in found.items() if name not in gone}

    shown = replace(
        shown,
        views=kept(shown.views),
        routers={name: one for name, one in shown.routers.items() if one.source not in gone},
        states=kept(shown.states),
        groups={
            topic: {
                # Which records a filter lets pass is found out when somebody claims, and is in no log.
                name: one if one.filter is None else one._replace(floor=0, finished=frozenset(), missed=0)
                for name, one in groups.items()
            }
            for topic, groups in kept(shown.groups).items()
            if groups
        },
        consumers=kept(shown.consumers),
    )
    return shown, {name: part[2] if name in gone else part for name, part in parts.items()}, now.window


def arriving(run: ArchivedRun, objects: SimObjects) -> Any:
    """Put what a run has put, one object after another. Yields the number of each round that ends a cut."""
    for name, data in run.bucket.objects.objects.items():
        objects.put_new(name, data)
        if name.startswith("rounds/"):
            head = decode_round(data).head
            if head.ends_cut:
                yield head.number


class Comparison:
    """A standby on one disk, which follows what a run has put into its bucket."""

    def __init__(self, run: ArchivedRun) -> None:
        self.run = run
        self.objects = SimObjects()
        self.rounds = arriving(run, self.objects)
        self.fs = SimFs(1)
        self.clock = SimClock(BASE_MS)
        self.compared = 0

    def has_begun(self) -> bool:
        """Have the first base arrive. Return False if there is none."""
        cuts = (one for one in self.rounds if any(name.startswith("bases/") for name in self.objects.objects))
        return next(cuts, None) is not None

    async def follow(self, life: StandbyLife) -> bool:
        """Apply the next cut, and compare. Return False if there is none."""
        number = next(self.rounds, None)
        if number is None:
            return False
        await life.follower.catch_up()
        assert life.follower.place.number == number
        if number in self.run.bucket.at:
            disk = self.run.bucket.at[number].after_process_kill()
            theirs = await opened_as_standby(disk, self.run.world.settings, life.engine.registry.instant(), seen)
            assert await seen(life, theirs[2]) == theirs
            self.compared += 1
        return True


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_a_standby_shows_each_cut_as_the_owner_had_it(seed: int, real: bool) -> None:
    run = ArchivedRun(make(seed), real=real)
    run.run()
    comparison = Comparison(run)
    if not comparison.has_begun():
        return

    async def script() -> None:
        async with following(comparison.fs, comparison.objects, run.world.settings) as life:
            while await comparison.follow(life):
                pass

    live(script)
    assert comparison.compared


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_the_same_with_checkpoints_of_its_own_and_after_kills(seed: int) -> None:
    run = ArchivedRun(make(seed), real=bool(seed % 2))
    run.run()
    comparison = Comparison(run)
    rng = random.Random(seed)
    if not comparison.has_begun():
        return

    async def one_life() -> bool:
        async with following(comparison.fs, comparison.objects, run.world.settings, comparison.clock) as life:
            for _ in range(rng.randint(1, 6)):
                if not await comparison.follow(life):
                    return False
                if rng.random() < 0.5:
                    await life.compactor.checkpoint()
                if rng.random() < 0.3:
                    await life.reclaimer.pass_over()
        return True

    async def script() -> None:
        while await one_life():
            comparison.fs = comparison.fs.after_process_kill()

    live(script)
