"""A standby shows whole cuts, also if one goes over several rounds: half of it has topics at different moments."""

from __future__ import annotations

from typing import Any

import pytest

from tests.bucket.archived import archived, bucket_settings, rounds_in
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import URL, following
from tests.bucket.test_collector import bases_for
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.world import ROOT
from topics.bucket.log_reader import divided
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.restore_target import NothingToRestore
from topics.bucket.standby.directory import prepare_directory
from topics.storage.files.file_header import FILE_HEADER_BYTES

pytestmark = pytest.mark.trio
CONFIG = bucket_settings(segment_max_events=100, bucket_base_ms=30_000)


async def test_a_standby_applies_a_cut_of_several_rounds_at_once(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        for name in ("a", "b", "c"):
            await life.put(name, durability="fsync")
        assert await bases_for(life).try_take()
        begun = await life.archived()
        async with following(SimFs(), objects, CONFIG, SimClock(clock.now_ms())) as standby:
            await standby.follower.catch_up()
            for name in ("a", "b", "c"):
                await life.append(name, *("x" * 100 for _ in range(10)))
            monkeypatch.setattr(divided, "__defaults__", (700,))
            last = await life.archived()
            heads = [BucketReader(objects).round_head(number) for number in range(begun + 1, last + 1)]
            assert sum(not head.ends_cut for head in heads) >= 2, "one cut has several rounds"
            follower, shown = standby.follower, []
            apply = standby.replay.apply

            def looked(*args: Any) -> None:
                apply(*args)
                shown.append([standby.engine.registry.topics[name].log.head_seq for name in ("a", "b", "c")])

            monkeypatch.setattr(standby.replay, "apply", looked)
            await follower.catch_up()
            assert shown
            assert all(counts in ([0, 0, 0], [10, 10, 10]) for counts in shown), shown
            assert shown[-1] == [10, 10, 10]
            assert follower.figures.round == last


@pytest.mark.parametrize("most", [110, 125])
async def test_a_round_that_would_end_in_the_header_of_a_file_ends_before_it(
    most: int, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby could not read such a file, and would make its directory anew."""
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    config = bucket_settings(wal_file_bytes=4096, bucket_base_ms=30_000)
    async with archived(objects, config, fs=SimFs(), clock=clock) as life:
        await life.put("a", durability="fsync")
        assert await bases_for(life).try_take()
        await life.archived()
        async with following(SimFs(), objects, config, SimClock(clock.now_ms())) as standby:
            await standby.follower.catch_up()
            monkeypatch.setattr(divided, "__defaults__", (most,))
            for _ in range(12):
                await life.append("a", *("x" * 100 for _ in range(8)))
            last = await life.archived()
            begun = [run for found in rounds_in(objects) for run in found.head.runs if not run.offset]
            assert len(begun) > 2, "the log has several files"
            assert all(run.length >= FILE_HEADER_BYTES for run in begun)
            await standby.follower.catch_up()
            assert standby.follower.figures.round == last


async def test_a_standby_waits_for_the_first_base_and_is_not_refused(autojump_clock: Any) -> None:
    """All daemons of a pair may be started at once: the owner has no base yet then."""
    objects, clock, fs = SimObjects(), SimClock(), SimFs()
    async with archived(objects, CONFIG, fs=SimFs(), clock=clock) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        for _ in range(2):
            with pytest.raises(NothingToRestore):
                prepare_directory(fs, ROOT, URL, objects, 1)
        assert await bases_for(life).try_take()
        await life.archived()
        note = prepare_directory(fs, ROOT, URL, objects, 1)
        assert note is not None
        assert note.bucket == BucketReader(objects).bucket_id
