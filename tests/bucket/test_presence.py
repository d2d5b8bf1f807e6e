"""What standbys tell of themselves in the bucket: who sees it, and how it goes."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.bucket.archived import archived
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.test_collector import CONFIG, bases_for
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.bucket.object_names import standby_name
from topics.bucket.offline.bucket_figures import SeenStandby, status_of
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.standby.announcer import Announcer
from topics.telemetry.figures import StandbyFigures

pytestmark = pytest.mark.trio


def presence(objects: SimObjects, clock: SimClock, dir_id: str, figures: StandbyFigures) -> Announcer:
    return Announcer(
        objects,
        dir_id=dir_id,
        url=f"http://{dir_id}",
        look=lambda: figures,
        clock=clock,
        offload=InlineOffload(),
    )


def seen(objects: SimObjects) -> list[SeenStandby]:
    return status_of(BucketReader(objects)).standbys


async def test_the_status_of_a_bucket_shows_its_standbys_and_how_far_they_are(autojump_clock: Any) -> None:
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        bases = bases_for(life)
        await life.put("a", durability="fsync")
        await life.append("a", 1)
        assert await bases.try_take()
        assert seen(objects) == []
        last = status_of(BucketReader(objects)).last_round
        assert last is not None
        figures = StandbyFigures(epoch=1, round=last - 1, wall_ms=5, lag_ms=70)
        first, second = presence(objects, clock, "b", figures), presence(objects, clock, "c", figures)
        await first.announce()
        await trio.sleep(90)
        await second.announce()
        told = seen(objects)
        assert [(one.dir, one.url, one.state) for one in told] == [
            ("b", "http://b", "following"),
            ("c", "http://c", "following"),
        ]
        assert [(one.round, one.lag_ms) for one in told] == [(last - 1, 70)] * 2
        assert [one.rounds_behind for one in told] == [status_of(BucketReader(objects)).last_round - last + 1] * 2  # type: ignore[operator]
        assert [one.told_ago_ms for one in told] == [90_000, 0]
        figures.round, figures.state = last, "waiting"
        await first.announce()
        assert [(one.round, one.state) for one in seen(objects)] == [(last, "waiting"), (last - 1, "following")]
        await first.withdraw()
        assert [one.dir for one in seen(objects)] == ["c"]


async def test_a_standby_that_owns_the_bucket_now_and_what_is_malformed_are_not_shown(autojump_clock: Any) -> None:
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        await life.put("a", durability="fsync")
        assert await bases_for(life).try_take()
        owner = BucketReader(objects).owner()
        assert owner is not None
        await presence(objects, clock, owner.dir, StandbyFigures()).announce()
        objects.put_new(standby_name("x"), b"nonsense")
        assert seen(objects) == []
