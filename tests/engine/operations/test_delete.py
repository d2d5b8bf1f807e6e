"""Deletion of records (`docs/spec/api.md` section 6)."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, records, refusal, settings, settle
from tests.simulation.disk import SimFs
from topics.engine.operations import delete
from topics.engine.operations.delete import DELETE_SLICE
from topics.runtime.offload import Pool
from topics.storage.files.datadir import DataDir
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


async def fill(life: Any, name: str, n: int, **config: Any) -> None:
    """`n` records whose tags are t0, t1, t2, t0, ...; every tenth has none."""
    await life.put(name, **config)
    for at in range(0, n, 5000):
        batch = [{"data": i, "tag": f"t{i % 3}" if i % 10 else None} for i in range(at, min(at + 5000, n))]
        await life.append(name, *batch)


@pytest.mark.parametrize("durability", CLASSES)
@pytest.mark.parametrize(
    ("before", "match", "gone"),
    [
        (4, None, lambda i: i < 3),
        (100, None, lambda i: True),
        (1, None, lambda i: False),
        (None, "t1", lambda i: i % 10 and i % 3 == 1),
        (None, ["tag", "Glob", "t*"], lambda i: i % 10),
        (None, ["tag", "Glob", "*"], lambda i: i % 10),
        (None, ["tag", "Eq", "t"], lambda i: False),
        (9, ["tag", "Eq", "t2"], lambda i: i < 8 and i % 10 and i % 3 == 2),
    ],
)
async def test_which_records_a_deletion_removes(
    durability: Any, before: Any, match: Any, gone: Any, autojump_clock: Any
) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await fill(life, "t", 23, durability=durability)
        done = await life.delete("t", before, match)
        kept = [i for i in range(23) if not gone(i)]
        assert done.deleted == 23 - len(kept)
        assert (done.count, done.head_seq) == (len(kept), 23)
        assert done.earliest_seq == (kept[0] + 1 if kept else 24)
        found, gaps = await life.all("t")
        assert [record["data"] for record in found] == kept
        assert gaps == []
        assert done.bytes == sum(len(str(i)) for i in kept)
        again = await life.delete("t", before, match)
        assert again.deleted == 0
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed) as life:
        found, gaps = await life.all("t")
        if durability == "fsync":
            assert ([record["data"] for record in found], gaps) == (kept, [])


async def test_only_what_is_present_at_the_call(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        await life.append("t", {"data": 1, "tag": "a"})
        offload.hold()
        early = Called(nursery, lambda: life.append("t", {"data": 2, "tag": "a"}))
        await settle()
        gone = Called(nursery, lambda: life.delete("t", match="a"))
        await settle()
        late = Called(nursery, lambda: life.append("t", {"data": 3, "tag": "a"}))
        await settle()
        offload.let_go()
        await settle()
        assert (early.done, late.done, gone.result.deleted) == (True, True, 1)
        assert await life.seqs("t") == [2, 3]


async def test_readers_never_see_half_of_a_large_deletion_and_other_topics_do_not_wait(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = SimFs()
    n = 8000
    monkeypatch.setattr(delete, "DELETE_SLICE", n // 4)
    async with living(fs=fs) as life, trio.open_nursery() as nursery:
        await fill(life, "t", n, durability="disk")
        await life.append("other", 1)
        tagged = sum(1 for i in range(n) if i % 10)
        gone = Called(nursery, lambda: life.delete("t", match=["tag", "Glob", "t*"]))
        topic = life.engine.registry.topics["t"]
        while topic.working is None:
            await trio.lowlevel.checkpoint()
        assert not gone.done
        served = 0
        readers = [Called(nursery, lambda: life.all("t", max_batch_bytes=8 << 20)) for _ in range(2)]
        polls = [Called(nursery, lambda: life.read("t", n, wait_ms=30_000))]
        append = Called(nursery, lambda: life.append("t", "after"))
        second = Called(nursery, lambda: life.delete("t", before_seq=2))
        checkpoint = Called(nursery, life.compactor.checkpoint)
        while topic.working is not None:
            assert not any(call.done for call in [gone, append, second])
            await life.append("other", 2)
            assert (await life.read("other", served)).count
            served += 1
        await settle()
        assert served > 1
        assert gone.result.deleted == tagged
        assert second.result.deleted == 1
        assert append.result.last_seq == n + 1
        assert checkpoint.done
        kept = [i for i in range(n) if not i % 10]
        for reader in readers:
            found = [record["data"] for record in reader.result[0]]
            assert found in (kept, kept[1:], [*kept, "after"], [*kept[1:], "after"])
            assert reader.result[1] == []
        assert [record["data"] for record in records(polls[0].result)] == ["after"]
        assert await life.all("t") == (
            [record for record in (await life.all("t"))[0] if record["data"] in {*kept[1:], "after"}],
            [],
        )
        await trio.sleep(0.1)
        expected = await life.all("t")
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await life.all("t") == expected
        assert life.engine.registry.topics["t"].log.count == len(kept)


async def test_a_read_that_waits_for_the_disk_does_not_see_half_of_a_large_deletion(autojump_clock: Any) -> None:
    offload = HeldOffload()
    n = 3 * DELETE_SLICE
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="disk")
        for at in range(0, n, DELETE_SLICE):
            await life.append("t", *[{"data": i, "tag": "a" if i else None} for i in range(at, at + DELETE_SLICE)])
        offload.hold(Pool.HOT_READ)
        reader = Called(nursery, lambda: life.read("t", 0, limit=n))
        await settle()
        gone = Called(nursery, lambda: life.delete("t", match="a"))
        topic = life.engine.registry.topics["t"]
        while topic.working is None:
            await trio.lowlevel.checkpoint()
        offload.let_go(Pool.HOT_READ)
        await settle()
        assert gone.result.deleted == n - 1
        assert [record["data"] for record in records(reader.result)] == [0]


async def test_deleting_a_topic_waits_for_a_deletion_in_slices(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await fill(life, "t", 3 * DELETE_SLICE)
        gone = Called(nursery, lambda: life.delete("t", match=["tag", "Glob", "t*"]))
        while life.engine.registry.topics["t"].working is None:
            await trio.lowlevel.checkpoint()
        assert await life.engine.topic_lifecycle.delete("t", if_empty=False) == (True, [])
        await settle()
        assert gone.result.deleted == 27 * DELETE_SLICE // 10
        assert (await refusal(life.read("t"))).code == "topic_not_found"
        assert life.engine.registry.total_records == 0


async def test_the_frame_of_a_deletion(autojump_clock: Any) -> None:
    async with living() as life:
        await fill(life, "t", 12)
        await life.delete("t", before_seq=3)
        await life.delete("t", 5, ["tag", "Glob", "t*"])
        await life.delete("t", match="t1")
        assert [payload for _, payload in life.frames(FrameType.DELETE)] == [
            {"bound": 12, "before_seq": 3},
            {"bound": 12, "before_seq": 5, "match": ["tag", "Glob", "t*"]},
            {"bound": 12, "match": ["tag", "Eq", "t1"]},
        ]


@pytest.mark.parametrize(("durability", "waits"), [("memory", False), ("disk", True), ("fsync", True)])
async def test_a_deletion_takes_effect_at_the_commit_point_of_its_class(
    durability: Any, waits: bool, autojump_clock: Any
) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability=durability)
        await life.append("t", 1, 2)
        offload.hold()
        gone = Called(nursery, lambda: life.delete("t", before_seq=2))
        await settle()
        assert gone.done is not waits
        assert await life.seqs("t") == ([1, 2] if waits else [2])
        offload.let_go()
        await settle()
        assert await life.seqs("t") == [2]


async def test_deleted_ephemeral_bytes_are_freed(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability="ephemeral")
        await life.append("t", *[{"data": "x" * 1000, "tag": f"t{i % 2}"} for i in range(100)])
        assert life.engine.cache.pinned_bytes > 100_000
        await life.delete("t", match="t0")
        assert life.engine.cache.pinned_bytes < 60_000
        assert [record["$tag"] for record in (await life.all("t", include_tags=True))[0]] == ["t1"] * 50
        await life.delete("t", before_seq=101)
        assert life.engine.cache.pinned_bytes == 0
        assert (await life.append("t", 1)).last_seq == 101
        assert await life.seqs("t") == [101]


async def test_a_deletion_that_finds_damage_beside_a_checkpoint_ends(autojump_clock: Any) -> None:
    """The checkpoint used to hold the lock of the topic's files and wait for the deletion, while the deletion waited
    for this lock to read records again that looked damaged.
    """
    fs, offload = SimFs(), HeldOffload()
    config = settings(segment_max_events=10)
    async with living(config, fs=fs) as life:
        await life.put("t", durability="fsync")
        await life.append("t", *({"data": i, "tag": "even" if i % 2 == 0 else "odd"} for i in range(10)))
    for kind in ("idx", "data"):
        fs.flip_bit(DataDir("/data").segment_path(1, 1, kind), 100, 0)
    async with living(config, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.delete("t", match="nothing")  # the tags are in memory now, the columns are not
        offload.hold(Pool.HOT_READ)
        deletion = Called(nursery, lambda: life.delete("t", match="even"))
        await settle()
        assert life.engine.registry.topics["t"].working is not None
        checkpoint = Called(nursery, life.compactor.try_checkpoint)
        await settle()
        offload.let_go(Pool.HOT_READ)
        await trio.sleep(60)
        assert deletion.done
        assert checkpoint.done
        assert await life.compactor.try_checkpoint()
        found = [record["data"] for record in (await life.all("t"))[0]]
        assert len(found) in (4, 5)
        assert set(found) <= {1, 3, 5, 7, 9}
