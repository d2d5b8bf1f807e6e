"""A `.data` that is shorter than it was: the start finds it, and announces the missing records; they are not taken for
deleted. Damaged records stay announced, also after later deletions (`docs/spec/crash.md` 10)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import trio

from tests.simulation.disk import SimFs
from tests.simulation.test_segment_damage import Written, check, copy_of, everything
from tests.simulation.world import COLD, End, Life, World, settings
from tests.storage.data_file import rows_of
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch
from topics.storage.recovery.length_check import AT_START
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal.wal_files import LogPosition

RECORDS = 30
PER_SEGMENT = 10
VICTIM = 11
"""The first seq of the segment that is damaged."""


@pytest.fixture(scope="module")
def whole() -> tuple[World, Written]:
    """Three segments, sealed but for the last one; some records of the second one are deleted."""
    world = World(config=settings(segment_max_events=PER_SEGMENT, segment_max_age_ms=0, cache_bytes=0))
    records: dict[int, tuple[bytes, str | None, str | None]] = {
        seq: (b'{"n":%d}' % seq, "tag" if seq == 13 else None, None) for seq in range(1, RECORDS - 4)
    }
    topic = Written(records, set())

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for data, tag, _ in topic.records.values():
            record = RecordIn(data=msgspec.Raw(data), tag=tag)
            await life.engine.appends.append("t", AppendRequest(records=[record]), Performance())
        await life.compactor.checkpoint()
        await life.engine.deletions.delete_records("t", None, TagMatch("tag", prefix=False), Performance())
        topic.deleted.add(13)
        await life.compactor.checkpoint()

    assert world.live(scenario)
    return world, topic


def path_of(fs: SimFs, kind: str, first: int = VICTIM) -> str:
    (path,) = (name for name in fs.tree() if name.endswith(f"{first:020d}{kind}"))
    return path


def cut(fs: SimFs, path: str, length: int) -> None:
    handle = fs.open(path)
    handle.truncate(length)
    handle.fdatasync()
    handle.close()


def remove(fs: SimFs, path: str) -> None:
    fs.unlink(path)
    fs.sync_dir(path.rpartition("/")[0])


def lengths(content: bytes) -> dict[str, tuple[int, set[int]]]:
    """Where a file may end: at a frame, inside of one, inside its header, nowhere; and which seqs that costs."""
    rows = rows_of(content)
    seqs = list(rows.seq)
    at = rows.offset
    return {
        "a frame": (at[4], set(seqs[4:])),
        "inside a frame": (at[4] + 17, set(seqs[4:])),
        "its last byte": (len(content) - 1, set(seqs[-1:])),
        "the first frame": (at[0], set(seqs)),
        "its header": (20, set(seqs)),
        "nothing": (0, set(seqs)),
    }


@pytest.mark.parametrize("index", ["kept", "shortened", "missing"])
@pytest.mark.parametrize(
    "end", ["a frame", "inside a frame", "its last byte", "the first frame", "its header", "nothing"]
)
@pytest.mark.parametrize("first", [VICTIM, 21])
def test_what_a_shortened_file_does_not_have_is_announced_at_the_start(
    first: int, end: End, index: str, whole: tuple[World, Written]
) -> None:
    original, topic = whole
    world = copy_of(original)
    path = path_of(world.fs, ".data", first)
    content = world.fs.tree()[path]
    assert content is not None
    length, gone = lengths(content)[end]
    cut(world.fs, path, length)
    if index == "missing":
        remove(world.fs, path_of(world.fs, ".idx", first))
    elif index == "shortened":
        cut(world.fs, path_of(world.fs, ".idx", first), 3 * 20)
    lost = gone - topic.deleted
    counts = []

    async def look(life: Life) -> None:
        state = await life.engine.topic_states.of("t", touch=False)
        counts.append(state.count)  # before anybody has read anything
        assert (await check(life, {"t": topic}))["t"] == lost

    async def later(life: Life) -> None:
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await look(life)

    assert world.live(look)
    assert copy_of(world).live(look)
    assert world.live(later)
    assert world.live(look)
    assert set(counts) == {len(topic.records) - len(topic.deleted) - len(lost)}


@pytest.mark.parametrize("index", ["kept", "missing"])
@pytest.mark.parametrize("end", ["a frame", "inside a frame", "its last byte"])
def test_a_shortened_file_goes_to_the_cold_store_as_it_is(end: str, index: str, whole: tuple[World, Written]) -> None:
    """It has records that are whole, and segments behind it that are to go as well."""
    original, topic = whole
    world = copy_of(original)
    world.settings = replace(world.settings, cold_dir=Path(COLD), hot_retain_segments=0)
    path = path_of(world.fs, ".data", 1)
    content = world.fs.tree()[path]
    assert content is not None
    length, lost = lengths(content)[end]
    cut(world.fs, path, length)
    if index == "missing":
        remove(world.fs, path_of(world.fs, ".idx", 1))

    async def move(life: Life) -> None:
        assert (await check(life, {"t": topic}))["t"] == lost
        await life.compactor.checkpoint()
        assert await life.relocator.pass_over() == 2
        segments = [span.segment for span in life.engine.registry.topics["t"].log.stored.all()]
        assert [one.tier for one in segments if isinstance(one, Segment)] == ["cold", "cold", "hot"]
        assert (await check(life, {"t": topic}))["t"] == lost

    async def later(life: Life) -> None:
        assert (await check(life, {"t": topic}))["t"] == lost
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert (await check(life, {"t": topic}))["t"] == lost

    assert world.live(move)
    for scenario in (later, later):
        world = world.after("drop")
        assert world.live(scenario)


def test_a_file_that_is_missing_is_announced_at_the_start(whole: tuple[World, Written]) -> None:
    original, topic = whole
    world = copy_of(original)
    remove(world.fs, path_of(world.fs, ".data"))

    async def look(life: Life) -> None:
        lost = set(range(VICTIM, VICTIM + PER_SEGMENT)) - topic.deleted
        assert (await life.engine.topic_states.of("t", touch=False)).count == len(topic.records) - 1 - len(lost)
        assert (await check(life, {"t": topic}))["t"] == lost

    assert world.live(look)
    assert world.live(look)


def test_what_the_start_leaves_is_looked_at_when_the_daemon_is_ready(
    whole: tuple[World, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, topic = whole
    world = copy_of(original)
    path = path_of(world.fs, ".data")
    content = world.fs.tree()[path]
    assert content is not None
    length, gone = lengths(content)["a frame"]
    cut(world.fs, path, length)
    monkeypatch.setattr("topics.storage.recovery.length_check.check_at_start.__defaults__", (1,))
    expected = len(topic.records) - len(topic.deleted)

    async def look(life: Life) -> None:
        assert (await life.engine.topic_states.of("t", touch=False)).count == expected
        assert life.engine.length_check.pending
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.engine.length_check.run)
            with trio.fail_after(60):
                while life.engine.registry.topic("t").log.count == expected:  # noqa: ASYNC110 (bounded polling)
                    await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        assert (await life.engine.topic_states.of("t", touch=False)).count == expected - len(gone)
        assert not life.engine.length_check.pending
        assert (await check(life, {"t": topic}))["t"] == gone

    assert AT_START > 1
    assert world.live(look)


@pytest.mark.parametrize("end", ["kill", "drop"])
@pytest.mark.parametrize("found", ["by a read", "by a start"])
def test_a_deletion_does_not_hide_what_was_found_to_be_damaged_before_it(
    found: str, end: End, whole: tuple[World, Written]
) -> None:
    original, _ = whole
    world = copy_of(original)
    path = path_of(world.fs, ".data")
    content = world.fs.tree()[path]
    assert content is not None
    if found == "by a start":
        cut(world.fs, path, lengths(content)["a frame"][0])
    else:
        world.fs.flip_bit(path, rows_of(content).offset[4] + 35, 3)
    told = []

    async def hide(life: Life) -> None:
        if found == "by a read":
            await everything(life, "t")
        await life.engine.deletions.delete_records("t", 23, None, Performance())
        told.append(await everything(life, "t"))

    async def look(life: Life) -> None:
        told.append(await everything(life, "t"))

    assert world.live(hide, end="kill")
    world = world.after(end)
    assert world.live(look, end="kill")
    world = world.after(end)
    assert world.live(look)
    assert told[0][1], "readers are told of what was lost below the front"
    assert told[0] == told[1] == told[2]


def test_a_damaged_record_is_noted_once(whole: tuple[World, Written]) -> None:
    original, _ = whole
    world = copy_of(original)
    path = path_of(world.fs, ".data")
    content = world.fs.tree()[path]
    assert content is not None
    world.fs.flip_bit(path, rows_of(content).offset[4] + 35, 3)

    async def look(life: Life) -> None:
        writer = life.engine.store.writers[life.engine.registry.topic("t").shard]
        ends: list[LogPosition] = []
        for _ in range(3):
            await everything(life, "t")
            await trio.sleep(1)
            ends.append(writer.synced_position()[0])
        assert ends[0] == ends[1] == ends[2]

    assert world.live(look)
