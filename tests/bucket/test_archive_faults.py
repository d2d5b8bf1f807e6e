"""The archive when the disk or a shard fails, when the machine crashes, when the daemon stops without the bucket; and
what the writer of bases asks of it."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from tests.bucket.archived import archived, bucket_settings, check_log, owner_of, rounds_in
from tests.bucket.simulated_objects import SimFault, SimObjects, random_faults
from tests.engine.life import settle
from tests.everything import slow_after
from tests.simulation.disk import Fault, SimFs
from tests.simulation.disk_state import CRASH_KINDS, CrashKind
from topics.bucket.archive import ArchiveStopped
from topics.bucket.ownership.owner_object import BucketRefused
from topics.errors import ApiError
from topics.storage.wal.wal_files import LogPosition

pytestmark = pytest.mark.trio


@pytest.mark.parametrize("kind", CRASH_KINDS)
@pytest.mark.parametrize("seed", slow_after(1, range(3)))
async def test_after_a_crash_of_the_machine_the_log_has_all_that_is_in_the_bucket(
    kind: CrashKind, seed: int, autojump_clock: Any
) -> None:
    objects, fs = SimObjects(seed), SimFs()
    for number in range(5):
        async with archived(objects, fs=fs, clean=False, settle=False) as life:
            await life.put("a", durability="disk")
            objects.faults = random_faults(seed * 10 + number, 0.2, [SimFault.AFTER, SimFault.LATE, SimFault.BEFORE])
            for i in range(6):
                await life.append("a", i)
                await trio.sleep(0.05 + 0.4 * ((seed + number + i) % 4))
        objects.faults = lambda op, name: None
        fs = fs.after_machine_crash(kind, seed * 10 + number)
    objects.arrive()
    async with archived(objects, fs=fs):
        pass
    check_log(objects, fs)
    assert [found.head.begins_history for found in rounds_in(objects)].count(True) == 1


async def test_a_failed_shard_stays_where_it_was_synced_and_the_others_go_on(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs, clean=False) as life:
        for name in "abcdef":
            await life.put(name, durability="fsync")
        shards = {topic.shard: name for name, topic in life.engine.registry.topics.items()}
        await life.archived()
        failed = 1
        place = life.archive.place.positions
        assert place is not None
        before = place[failed]
        fs.inject(Fault(name="fdatasync", path=f"*shard-{failed:02d}*.log", error=errno.EIO, times=None))
        with pytest.raises(ApiError):
            await life.append(shards[failed], 1)
        await life.append(shards[0], 1)
        await trio.sleep(5)
        ends = rounds_in(objects)[-1].head.positions
        assert ends[failed] == tuple(before)
        assert LogPosition(*ends[1 - failed]) == life.engine.store.writers[1 - failed].synced_position()[0]
        wanted = [LogPosition(*end) for end in ends]
        assert await life.archive.archived_to(wanted) == life.archive.place.number
        wanted[failed] = LogPosition(wanted[failed].ordinal, wanted[failed].offset + 1)
        with pytest.raises(ArchiveStopped):
            await life.archive.archived_to(wanted)
    check_log(objects, fs, whole=False)


async def test_what_is_asked_for_is_archived_at_once_and_owner_names_a_round_after_a_base(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, bucket_settings(bucket_round_ms=3_600_000), fs=fs) as life:
        await life.put("a")
        began = trio.current_time()
        number = await life.archived()
        assert trio.current_time() - began < 1
        assert rounds_in(objects)[-1].head.number == number
        assert rounds_in(objects)[-1].head.ends_cut
        assert await life.archive.archived_to(life.archive.place.positions or []) == number
        assert owner_of(objects).round == 0
        await life.archive.note_base(number)
        await life.append("a", 1)
        latest = await life.archived()
        await trio.sleep(1)
        assert owner_of(objects).round == latest
        first = life.engine.store.files.of_shard(0)[0]
        assert life.archive.round_of_file(0, first.ordinal) == 2
        with pytest.raises(KeyError):
            life.archive.round_of_file(0, 10**6)


async def test_a_wait_for_the_bucket_ends_with_the_archive(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, clean=False) as life:
        await life.put("a")
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE
        await life.append("a", 1)
        outcome = []

        async def wait() -> None:
            try:
                await life.archived()
            except ArchiveStopped as error:
                outcome.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await trio.sleep(3)
            assert not outcome
            await life.stop()
            await life.archive.finish()
        assert len(outcome) == 1


async def test_a_stop_does_not_wait_for_a_bucket_that_is_away(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.archived()
        objects.faults = lambda op, name: SimFault.BEFORE
        await life.append("a", 1)
        await trio.sleep(100)
        began = trio.current_time()
    assert trio.current_time() - began < 40
    assert owner_of(objects).state == "held"
    objects.faults = lambda op, name: None
    async with archived(objects, fs=fs):
        pass
    check_log(objects, fs)


@pytest.mark.parametrize("fault", [SimFault.AFTER, SimFault.BEFORE, SimFault.LATE, SimFault.CONFLICT])
async def test_a_lost_answer_about_owner_is_decided(fault: SimFault, autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    for epoch in range(1, 4):
        left = iter([fault])
        objects.faults = lambda op, name, left=left: (  # type: ignore[misc]
            next(left, None) if name == "owner" and op.startswith("put") else None
        )
        async with archived(objects, fs=fs, settle=False) as life:
            await life.put("a")
            await life.archived()
            objects.arrive()
            assert (owner_of(objects).epoch, life.archive.epoch) == (epoch, epoch)
        assert owner_of(objects).state == "free"
    check_log(objects, fs)


async def test_reading_the_log_may_fail_and_is_tried_again(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.archived()
        fs.inject(Fault(name="pread", path="*.log", error=errno.EIO, times=3))
        await life.append("a", 1)
        await trio.sleep(30)
        assert life.archive.look().state == "working"
        check_log(objects, fs)
    check_log(objects, fs)


async def test_a_note_that_cannot_be_written_keeps_the_log(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
        await life.archived()
        fs.inject(Fault(name="open", path="*/meta/bucket.tmp", error=errno.ENOSPC, times=4))
        for i in range(6):
            await life.append("a", i)
            await trio.sleep(15)
        assert life.archive.look().state == "working"
    check_log(objects, fs)


async def test_a_damaged_note_refuses_the_start(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
    fs.flip_bit("/data/meta/bucket", 20, 3)
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="meta/bucket is damaged")):
        async with archived(objects, fs=fs):
            raise AssertionError("it has started")


@pytest.mark.parametrize("name", ["owner", "FORMAT"])
async def test_damaged_objects_refuse_the_start(name: str, autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, fs=fs) as life:
        await life.put("a")
    objects.delete([name])
    objects.put_new(name, b"{}")
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match=f"the object {name} of the bucket")):
        async with archived(objects, fs=fs):
            raise AssertionError("it has started")


async def test_salvage_begins_a_history_also_when_a_crash_follows_it(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    config = bucket_settings(wal_shards=1, recovery="salvage")
    async with archived(objects, config, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.append("a", *["x" * 300] * 20)
        await life.archived()
        await life.append("a", 1)
        await trio.sleep(5)
    fs = fs.after_process_kill()
    log = next(path for path in fs.tree() if path.endswith(".log"))
    fs.flip_bit(log, 1500, 2)
    fs = fs.after_process_kill()
    async with archived(objects, config, fs=fs) as life:
        assert life.engine.store.salvaged
        await life.archived()
    assert [found.head.begins_history for found in rounds_in(objects)].count(True) == 2
    assert "/data/meta/bucket-salvaged" not in fs.tree()
    with fs.open("/data/meta/bucket-salvaged", create=True):
        pass
    async with archived(objects, config, fs=fs) as life:
        await life.archived()
    assert [found.head.begins_history for found in rounds_in(objects)].count(True) == 3


async def test_no_append_waits_for_a_store_that_hangs(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects) as life:
        await life.put("a", durability="fsync")
        await life.archived()
        objects.faults = lambda op, name: SimFault.HANG
        for i in range(20):
            began = trio.current_time()
            await life.append("a", i)
            await settle()
            assert trio.current_time() == began
            await trio.sleep(10)
        objects.faults = lambda op, name: None
