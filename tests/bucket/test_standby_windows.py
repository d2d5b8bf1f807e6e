"""The clock of windows of a standby is that of its owner, which may be far from its wall clock: after a takeover
windows have stood still. Else leases would end early at the next owner, and a job have two holders."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.bucket.archived import archived, bucket_settings
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import following
from tests.bucket.test_collector import bases_for
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.bucket.offline.bucket_reader import BucketReader
from topics.engine.standby.live_replay import WINDOWS_MS
from topics.runtime.instant import Instant
from topics.storage.files.datadir import DataDir
from topics.storage.snapshots.clock_mark import read_mark

pytestmark = pytest.mark.trio
CONFIG = bucket_settings(segment_max_events=8, bucket_base_ms=30_000)


@pytest.mark.parametrize("later_ms", [0, 15_000, -15_000], ids=["on", "back", "forward"])
@pytest.mark.parametrize("behind_ms", [0, 60_000, -60_000], ids=["together", "behind", "ahead"])
async def test_windows_of_a_standby_go_with_those_of_the_owner(
    autojump_clock: Any, behind_ms: int, later_ms: int
) -> None:
    """Also where the owner changes, so that they step while it follows."""
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        windows = life.engine.store.windows
        windows.start(Instant(clock.monotonic_ms(), windows.now_ms() - behind_ms))
        await life.put("a", durability="fsync")
        await life.append("a", 1, idempotency_key="k")
        assert await bases_for(life).try_take()
        at_cut = BucketReader(objects).window_ms(await life.archived())
        assert 0 <= windows.now_ms() - at_cut < 5000
        fs = SimFs()
        async with following(fs, objects, CONFIG, SimClock(clock.now_ms())) as standby:
            await standby.follower.catch_up()
            for turn in range(3):
                await trio.sleep(20)
                if turn == 1:
                    windows.start(Instant(clock.monotonic_ms(), windows.now_ms() - later_ms))
                await life.append("a", turn, idempotency_key=f"k{turn}")
                number = await life.archived()
                at_cut = BucketReader(objects).window_ms(number)
                assert 0 <= windows.now_ms() - at_cut < 5000
                await standby.follower.catch_up()
                shown = standby.engine.registry.windows.now_ms()
                assert at_cut - WINDOWS_MS <= shown <= windows.now_ms() + WINDOWS_MS
            standby.replay.settle_windows()
            assert at_cut <= standby.engine.registry.windows.now_ms() <= windows.now_ms()
            assert standby.follower.note.window_ms == at_cut
            standby.engine.store.write_clock_mark()
        mark = read_mark(fs, DataDir(standby.engine.store.datadir.root))
        assert mark is not None
        assert at_cut <= mark.window <= windows.now_ms()
