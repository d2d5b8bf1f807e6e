"""A standby on a simulated disk, which follows a simulated bucket (`topics.bucket.standby`), wired as the daemon does
it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

import trio
import trio.testing

from tests.bucket.simulated_objects import SimObjects
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.world import ROOT, Life, quiet
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.ownership.owner_object import Ownership
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.settled_puts import SettledPuts
from topics.bucket.standby.directory import prepare_directory
from topics.bucket.standby.followed_log import FollowedLog
from topics.bucket.standby.round_follower import RoundFollower
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.standby.live_replay import LiveReplay
from topics.runtime.instant import Instant
from topics.runtime.window_clock import ClockMark
from topics.standby import follow
from topics.storage.files.datadir import DataDir
from topics.storage.snapshots.clock_mark import write_mark

URL = "s3://bucket/prefix"
POLL_MS = 500


@dataclass(slots=True)
class StandbyLife(Life):
    """A standby while it is up."""

    follower: RoundFollower
    replay: LiveReplay


@asynccontextmanager
async def following(
    fs: SimFs, objects: SimObjects, config: Settings, clock: SimClock | None = None, *, runs: bool = False
) -> AsyncIterator[StandbyLife]:
    """A standby from its start to a kill. `runs`: it polls, and works on its files; otherwise the test calls
    `catch_up`."""
    clock, offload = clock or SimClock(BASE_MS), InlineOffload()
    note = prepare_directory(fs, ROOT, URL, objects, 1)
    assert note is not None
    segments = BucketSegments(fs, ROOT, lambda url: objects)
    engine = Engine(
        replace(config, cold_dir=None), fs=fs, clock=clock, offload=offload, cold=segments, objects=segments
    )
    engine.time.hold(note.wall_ms)
    engine.store.lock("a standby")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            replay = await follow(engine)
            puts = SettledPuts(objects, offload, lambda state: None)
            ownership = Ownership(objects, puts, offload, "standby", lambda: False)
            takeover = Takeover(
                objects, puts, ownership, dir_id="standby", url="", nonce="standby", clock=clock, offload=offload
            )
            follower = RoundFollower(
                note,
                takeover,
                replay,
                FollowedLog(fs, engine.store.datadir, engine.store.files, replay.shards),
                fs=fs,
                datadir=engine.store.datadir,
                clock=clock,
                offload=offload,
                poll_ms=POLL_MS,
            )
            nursery.start_soon(engine.delivery.scheduler.run)
            engine.open_for_business()
            if runs:
                for task in (follower.run, engine.compactor.run, engine.reclaimer.run):
                    nursery.start_soon(task)
            yield StandbyLife(engine, fs, clock, follower, replay)
            nursery.cancel_scope.cancel()
    finally:
        if not fs.dead:
            engine.store.unlock()


def live(script: Callable[[], Awaitable[Any]]) -> None:
    """Run a script of standbys."""
    with quiet():
        trio.run(script, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


async def opened_as_standby(fs: SimFs, config: Settings, now: Instant, look: Callable[[Life], Awaitable[Any]]) -> Any:
    """What a standby shows that is started on a disk, as of the time of a round."""
    wall_ms = now.wall
    write_mark(fs, DataDir(ROOT), ClockMark(now.window, wall_ms, 0, ""))
    clock, offload = SimClock(BASE_MS), InlineOffload()
    engine = Engine(config, fs=fs, clock=clock, offload=offload)
    engine.time.hold(wall_ms)
    engine.store.lock("a look")
    async with trio.open_nursery() as nursery:
        await nursery.start(engine.run)
        await follow(engine)
        nursery.start_soon(engine.delivery.scheduler.run)
        engine.open_for_business()
        found = await look(Life(engine, fs, clock))
        nursery.cancel_scope.cancel()
    engine.store.unlock()
    return found
