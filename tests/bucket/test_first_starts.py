"""The first starts of a directory that was a standby's, and is an owner's now: what was done to its files while it
followed counts until a checkpoint has it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from tests.bucket.archived import archived, bucket_settings
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import following, live
from tests.engine.life import living
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.world import ROOT
from topics.bucket.local_note import read_note
from topics.bucket.standby.directory import leave_bucket
from topics.bucket.standby.handover import hand_over
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import join
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.verify import Verification
from topics.storage.recovery.restored_copy import MARK

CONFIG = bucket_settings(segment_max_events=32)
DATADIR = DataDir(ROOT)


async def merged(fs: SimFs) -> None:
    """A standby that has merged segments, and removed what they were made of, since its last snapshot."""
    objects, clock = SimObjects(), SimClock(BASE_MS)
    async with archived(objects, CONFIG, clock=clock, bases=True) as owner:
        await owner.put("a", durability="fsync")
        await owner.append("a", 0)
        await owner.archived()
        await trio.sleep(CONFIG.bucket_base_ms / 1000 + 1)
        async with following(fs, objects, CONFIG) as standby:
            for i in range(1, 4):
                await owner.append("a", i)
                await owner.archived()
                await standby.follower.catch_up()
                await standby.compactor.seal(standby.engine.registry.topics["a"])
            assert await standby.engine.reclaimer.hot_pass(), "nothing was merged"


def test_verify_and_inspect_see_the_files_of_a_standby_between_two_checkpoints() -> None:
    async def script() -> None:
        fs = SimFs()
        await merged(fs)
        assert list(Verification(fs, ROOT).findings()) == []
        (topic,) = Inspection(fs, ROOT, None).facts().topics
        assert [(one.first_seq, one.last_seq) for one in topic.segments if one.live] == [(1, 4)]

    live(script)


@pytest.mark.parametrize("takes_over", [True, False])
def test_a_kill_before_the_first_checkpoint_brings_no_older_files_back(takes_over: bool) -> None:
    async def script() -> None:
        fs = SimFs()
        await merged(fs)
        if takes_over:
            note = read_note(fs, DATADIR, DATADIR.standby_path)
            assert note is not None
            hand_over(fs, DATADIR, note, goes_on=True)
        else:
            assert leave_bucket(fs, DATADIR, is_meant=True, salvages=False)
        config = replace(CONFIG, bucket="")
        for _ in range(3):
            async with living(config, fs=fs, clock=SimClock(BASE_MS), clean=False) as life:
                assert await life.seqs("a") == [1, 2, 3, 4]
            assert not fs.exists(join(ROOT, MARK))
        assert [one for one in Verification(fs, ROOT).findings() if one.severity == "damage"] == []

    live(script)
