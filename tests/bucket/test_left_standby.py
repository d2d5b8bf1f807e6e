"""The directory of a standby is an owner's (`docs/spec/bucket.md` section 6): it verifies clean, and goes on by itself
when there is no bucket any more."""

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
from topics.bucket.local_note import BucketNote, read_note
from topics.bucket.offline.bucket_restore import UNFINISHED
from topics.bucket.standby.directory import StandbyRefused, leave_bucket
from topics.http.answers.load_figures import LoadFigures
from topics.http.answers.request_figures import RequestFigures
from topics.model import Performance
from topics.storage.files.datadir import DataDir, parse_wal_name, wal_path
from topics.storage.files.fs import join
from topics.storage.offline.verify import Verification
from topics.storage.recovery.restored_copy import MARK, SKIPPED_SEQS

CONFIG = bucket_settings(segment_max_events=2, wal_file_bytes=4096)
DATADIR = DataDir(ROOT)


async def followed(fs: SimFs, *, until_checkpoint: bool = True) -> list[int]:
    """A standby that has followed its owner into later files of the log. Return the seqs of its topic."""
    objects, clock = SimObjects(), SimClock(BASE_MS)
    async with archived(objects, CONFIG, clock=clock, bases=True) as owner:
        await owner.put("a", durability="fsync")
        await owner.append("a", 0)
        await owner.archived()
        await trio.sleep(CONFIG.bucket_base_ms / 1000 + 1)
        async with following(fs, objects, CONFIG) as standby:
            for i in range(10):
                await owner.append("a", *(f"{i}" * 300 for _ in range(3)))
                if i == 5 and until_checkpoint:
                    await owner.archived()
                    await standby.follower.catch_up()
                    await standby.compactor.checkpoint()
            await owner.archived()
            await standby.follower.catch_up()
            assert standby.engine.registry.topics["a"].log.head_seq == 31
        return await owner.seqs("a")


def ends(fs: SimFs, note: BucketNote) -> list[str]:
    """The path of the last file of each shard."""
    assert note.positions is not None
    shards = len(note.positions)
    return [wal_path(DATADIR.shard_dir(shard, shards), at[0]) for shard, at in enumerate(note.positions)]


def begun(path: str) -> int:
    ordinal = parse_wal_name(path.rpartition("/")[2])
    assert ordinal is not None
    return ordinal


def test_the_directory_of_a_standby_verifies_clean() -> None:
    async def script() -> None:
        fs = SimFs()
        await followed(fs)
        note = read_note(fs, DATADIR, DATADIR.standby_path)
        assert note is not None
        assert any(begun(path) for path in ends(fs, note)), "no file was begun while it followed"
        assert list(Verification(fs, ROOT).findings()) == []

    live(script)


@pytest.mark.parametrize("until_checkpoint", [True, False])
def test_without_its_bucket_the_directory_of_a_standby_goes_on_as_a_copy(until_checkpoint: bool) -> None:
    async def script() -> None:
        fs = SimFs()
        seqs = await followed(fs, until_checkpoint=until_checkpoint)
        assert leave_bucket(fs, DATADIR, is_meant=True, salvages=False)
        assert not fs.exists(DATADIR.standby_path)
        config = replace(CONFIG, bucket="")
        for head in (31 + SKIPPED_SEQS, 32 + SKIPPED_SEQS):
            async with living(config, fs=fs, clock=SimClock(BASE_MS)) as life:
                assert life.engine.registry.topics["a"].log.head_seq == head
                found, _ = await life.all("a")
                assert [record["$seq"] for record in found][:31] == seqs
                if head == 31 + SKIPPED_SEQS:
                    await life.append("a", "more")
            assert not fs.exists(join(ROOT, MARK))
        assert [one for one in Verification(fs, ROOT).findings() if one.severity == "damage"] == []

    live(script)


def test_the_directory_of_a_standby_is_left_as_it_is_unless_that_is_meant() -> None:
    async def script() -> None:
        fs = SimFs()
        assert not leave_bucket(fs, DATADIR, is_meant=False, salvages=False), "it is no standby's"
        await followed(fs)
        before = fs.tree()
        with pytest.raises(StandbyRefused, match="TOPICS_ROLE=standby"):
            leave_bucket(fs, DATADIR, is_meant=False, salvages=False)
        fs.open(join(ROOT, UNFINISHED), create=True).close()
        with pytest.raises(StandbyRefused, match=UNFINISHED):
            leave_bucket(fs, DATADIR, is_meant=True, salvages=False)
        fs.unlink(join(ROOT, UNFINISHED))
        assert fs.tree() == before

    live(script)


def test_a_log_of_a_standby_that_has_lost_its_end_is_not_taken_for_whole() -> None:
    async def script() -> None:
        fs = SimFs()
        await followed(fs)
        note = read_note(fs, DATADIR, DATADIR.standby_path)
        assert note is not None
        assert note.positions is not None
        path, at = max(zip(ends(fs, note), note.positions, strict=True), key=lambda one: one[1][1])
        with fs.open(path) as handle:
            handle.truncate(at[1] - 1)
        with pytest.raises(StandbyRefused, match="salvage"):
            leave_bucket(fs, DATADIR, is_meant=True, salvages=False)
        assert fs.exists(DATADIR.standby_path)
        assert leave_bucket(fs, DATADIR, is_meant=True, salvages=True)
        salvages = replace(CONFIG, bucket="", recovery="salvage")
        async with living(salvages, fs=fs, clock=SimClock(BASE_MS)) as life:
            assert (await life.seqs("a"))[0] == 1

    live(script)


def test_a_standby_knows_how_long_ago_its_last_checkpoint_was() -> None:
    """Its clocks stand still between two rounds."""

    async def script() -> None:
        objects, clock = SimObjects(), SimClock(BASE_MS)
        async with archived(objects, CONFIG, clock=clock, bases=True) as owner:
            await owner.append("a", 0)
            await owner.archived()
            await trio.sleep(CONFIG.bucket_base_ms / 1000 + 1)
            async with following(SimFs(), objects, CONFIG) as standby:
                await standby.compactor.checkpoint()
                await trio.sleep(42)
                figures = LoadFigures(standby.engine, RequestFigures())
                assert (await figures.storage(Performance())).checkpoints.age_ms == 42_000

    live(script)
