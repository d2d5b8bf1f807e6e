"""Checkpoints of a running engine: what they hold, when they are taken, which WAL files they let go."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.runtime.offload import Pool
from topics.storage.files.datadir import DataDir
from topics.storage.maintenance import compactor, topic_checkpoint
from topics.storage.snapshots.snapshot import decode_manifest, decode_part, encode_part, load_newest, snapshot_numbers
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

SMALL = settings(wal_file_bytes=64 << 10)
WHERE = DataDir("/data")


def logs(fs: SimFs) -> list[str]:
    return sorted(path for path in fs.tree() if path.endswith(".log"))


async def test_a_snapshot_knows_no_more_than_the_log(autojump_clock: Any) -> None:
    """It is written only when everything that it shows is synced, `memory` records on their way included."""
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="memory")
        await life.append("t", 1)
        await trio.sleep(0.1)
        offload.hold()
        await life.append("t", 2, 3)
        await life.delete("t", before_seq=2)
        call = Called(nursery, life.compactor.checkpoint)
        await trio.sleep(5)
        assert not call.done
        assert snapshot_numbers(fs, WHERE) == []
        offload.let_go()
        await settle()
        assert call.result.number == 1
        crashed = fs.after_machine_crash("drop", 1)
        newest, _ = load_newest(crashed, WHERE)
        assert newest is not None
        part = decode_part(newest.topics[0])
        assert (part.name, part.log["head_seq"], part.log["earliest_seq"]) == ("t", 3, 2)
        (segment,) = part.segments
        assert segment[:2] == [2, 2], "from the earliest live record to the head"
        assert crashed.exists(WHERE.segment_path(part.id, 2, "data"))
    async with living(fs=crashed) as life:
        assert [record["data"] for record in (await life.all("t"))[0]][:2] == [2, 3]


async def test_replay_begins_where_the_snapshot_ends(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for i in range(30):
            await life.append(
                f"t{i % 3}", {"data": i, "tag": f"g{i % 2}", "meta": {"i": str(i)}}, idempotency_key=f"k{i}"
            )
        await life.delete("t1", match="g1")
        await life.compactor.checkpoint()
        assert [payload for _, payload in life.frames(FrameType.CHECKPOINT_MARK)] == []
        await life.append("t0", "after")
        await life.delete("t2", before_seq=4)
        await trio.sleep(0.1)
        assert [payload for _, payload in life.frames(FrameType.CHECKPOINT_MARK)] == [{"snapshot": 1}]
        expected = {name: await life.all(name, include_tags=True) for name in ("t0", "t1", "t2")}
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert {name: await life.all(name, include_tags=True) for name in ("t0", "t1", "t2")} == expected
        assert life.engine.keys.count == 30
        assert (await life.append("t0", 9, idempotency_key="k3")).deduped
        life.check()


async def test_parts_that_have_not_changed_are_not_encoded_again(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoded: list[str] = []

    def counted(part: Any) -> bytes:
        encoded.append(part.name)
        return encode_part(part)

    monkeypatch.setattr(topic_checkpoint, "encode_part", counted)
    async with living() as life:
        for i in range(20):
            await life.append(f"t{i}", i)
        await trio.sleep(3)
        await life.compactor.checkpoint()
        assert len(encoded) == 20
        await life.append("t7", 1)
        await trio.sleep(3)
        encoded.clear()
        await life.compactor.checkpoint()
        assert encoded == ["t7"]


async def test_a_file_goes_when_two_snapshots_are_past_it_whatever_records_it_held(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(SMALL, fs=fs) as life:
        await life.put("t", durability="disk")
        for i in range(40):
            await life.append("t", *[f"{i} " + "x" * 1000] * 10)
        before = logs(fs)
        assert len(before) > 5
        await life.compactor.checkpoint()
        assert before[1:] == logs(fs)[-len(before) + 1 :]
        assert logs(fs)[0] == before[0], "without the new snapshot the log is all there is"
        await life.append("t", 1)
        await life.compactor.checkpoint()
        assert logs(fs) == before[-1:]
        assert len(await life.seqs("t")) == 401, "they are in segments"
        await life.delete("t", before_seq=301)
        await trio.sleep(0.1)
        expected = await life.all("t")
        disks = [fs.after_process_kill(), *(fs.after_machine_crash(kind, 1) for kind in ("drop", "keep", "reorder"))]
    for disk in disks:
        async with living(SMALL, fs=disk) as life:
            found, gaps = await life.all("t")
            assert found == expected[0]
            assert all(gap[2] == "lost" and gap[0] > 401 for gap in gaps)


async def test_checkpoints_are_taken_at_intervals_in_which_something_has_changed(autojump_clock: Any) -> None:
    fs = SimFs()
    config = replace(SMALL, checkpoint_ms=10_000)
    async with living(config, fs=fs, housekeeping=False) as life, trio.open_nursery() as nursery:
        nursery.start_soon(life.compactor.run)
        await trio.sleep(100)
        assert snapshot_numbers(fs, WHERE) == []
        await life.put("t", durability="fsync")
        await life.append("t", 1)
        await trio.sleep(9)
        assert snapshot_numbers(fs, WHERE) == []
        await trio.sleep(2)
        assert snapshot_numbers(fs, WHERE) == [1]
        await trio.sleep(100)
        assert snapshot_numbers(fs, WHERE) == [1]
        await life.delete("t", before_seq=2)
        await trio.sleep(11)
        assert snapshot_numbers(fs, WHERE) == [1, 2]
        nursery.cancel_scope.cancel()


async def test_a_full_wal_file_is_followed_by_a_checkpoint(autojump_clock: Any) -> None:
    fs = SimFs()
    config = replace(SMALL, checkpoint_ms=10**9)
    async with living(config, fs=fs) as life, trio.open_nursery() as nursery:
        nursery.start_soon(life.compactor.run)
        for turn in range(4):
            for _ in range(7):
                await life.append("t", *["x" * 1000] * 10)
            await trio.sleep(1)
            assert max(snapshot_numbers(fs, WHERE)) == turn + 1
        assert len(logs(fs)) <= 3
        nursery.cancel_scope.cancel()


async def test_a_checkpoint_that_fails_leaves_the_daemon_as_it_was(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", 1)
        await life.compactor.checkpoint()
        for operation in ("pwrite", "fdatasync", "rename", "sync_dir"):
            path = "/data/meta*"
            fault = fs.inject(Fault(error=errno.ENOSPC, name=operation, path=path))
            assert not await life.compactor.try_checkpoint()
            assert fault.hits == 1
            assert (await life.append("t", 2)).count == 1
            newest, damaged = load_newest(fs, WHERE)
            assert newest is not None
            assert damaged == []
        assert await life.compactor.try_checkpoint()
        assert life.engine.status.read_only is False


async def test_an_append_does_not_wait_for_a_checkpoint(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold(Pool.FILES)
        call = Called(nursery, life.compactor.checkpoint)
        await settle()
        assert not call.done
        for i in range(5):
            assert (await life.append("t", i)).last_seq == i + 1
        offload.let_go(Pool.FILES)
        await settle()
        assert call.done


async def test_floors_of_ttl_are_logged_by_a_checkpoint(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("t", ttl_ms=1000, durability="disk")
        await life.append("t", 1, 2)
        await trio.sleep(2)
        await life.append("t", 3)
        assert await life.seqs("t") == [3]
        await life.compactor.checkpoint()
        assert [payload for _, payload in life.frames(FrameType.EVICT_WATERMARK)] == [{"below": 3, "reason": "ttl"}]
        await life.compactor.checkpoint()
        assert len(life.frames(FrameType.EVICT_WATERMARK)) == 1
        assert newest_clock(fs) >= clock.now_ms() - 1000


def newest_clock(fs: SimFs) -> int:
    newest, _ = load_newest(fs, WHERE)
    assert newest is not None
    return newest.clock


async def test_a_clean_stop_leaves_a_snapshot_of_everything(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for durability in ("ephemeral", "memory", "disk", "fsync"):
            await life.put(durability, durability=durability)
            await life.append(durability, 1, 2)
    for disk in (fs.after_process_kill(), fs.after_machine_crash("drop", 1)):
        async with living(fs=disk) as life:
            newest, _ = load_newest(disk, WHERE)
            assert newest is not None
            assert len(newest.topics) == 4
            for name in ("memory", "disk", "fsync"):
                assert (await life.seqs(name), (await life.all(name))[1]) == ([1, 2], [])
            assert await life.all("ephemeral") == ([], [(1, 2, "lost")])


async def test_a_topic_without_a_segment_costs_no_call_of_the_file_system(autojump_clock: Any) -> None:
    """Neither a checkpoint nor a start, whether or not the snapshot has it yet: there are a hundred thousand such."""

    async def calls(topics: int) -> list[int]:
        fs = SimFs()
        counts = []
        async with living(fs=fs, config=SMALL) as life:
            for i in range(topics):
                await life.put(f"t{i}", ttl_ms=1000 + i)
            killed = fs.after_process_kill()
            before = len(fs.ops)
            await life.compactor.checkpoint()
            counts.append(len(fs.ops) - before)
            assert fs.listdir(WHERE.topics_dir) == []
            stopped = fs.after_process_kill()
        for left in (killed, stopped):
            before = len(left.ops)
            async with living(fs=left, config=SMALL) as life:
                counts.append(len(left.ops) - before)
                assert [life.engine.registry.topic(f"t{i}").config.ttl_ms for i in range(topics)] == [
                    1000 + i for i in range(topics)
                ]
        return counts

    assert await calls(40) == await calls(20)


async def test_a_topic_keeps_its_manifest_when_its_last_segment_has_gone(autojump_clock: Any) -> None:
    """Else the next start would find the manifest of before beside files that are not there any more."""
    fs = SimFs()
    async with living(fs=fs, config=SMALL) as life:
        await life.append("t", 1, 2)
        await life.compactor.checkpoint()
        await life.delete("t", before_seq=3)
        await life.compactor.checkpoint()
        await life.engine.reclaimer.pass_over()
        await life.compactor.checkpoint()
        part = decode_manifest(fs.read(WHERE.manifest_path(life.engine.registry.topic("t").id)))
        assert (part.segments, part.log["earliest_seq"]) == ([], 3)
        killed = fs.after_process_kill()
    async with living(fs=killed, config=SMALL) as life:
        assert (await life.append("t", 3)).first_seq == 3
        life.check()


async def test_unused_memory_is_returned_when_much_was_stored_and_the_log_is_at_rest(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(compactor, "trim_memory", lambda: trimmed.append(1))
    monkeypatch.setattr(compactor, "TRIM_AFTER_BYTES", 10_000)
    async with living() as life:
        await life.append("t", "x" * 1000)
        await life.compactor.checkpoint()
        assert not trimmed, "there is little to return"
        await life.append("t", *["x" * 1000] * 20)
        with monkeypatch.context() as patch:
            write = life.compactor._write_snapshot

            async def write_under_load(*args: Any, **kwargs: Any) -> Any:
                await life.append("t", "x" * 1000)
                return await write(*args, **kwargs)

            patch.setattr(life.compactor, "_write_snapshot", write_under_load)
            await life.compactor.checkpoint()
            assert not trimmed, "others would take it again at once"
        await life.compactor.checkpoint()
        assert len(trimmed) == 1
        await life.append("t", "x" * 1000)
        await life.compactor.checkpoint()
        assert len(trimmed) == 1
