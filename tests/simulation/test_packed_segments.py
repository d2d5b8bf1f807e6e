"""Packed segments behind the engine: they read as plain ones do, after every operation, and damage is announced
(`docs/spec/evidence.md` section 2, `docs/spec/crash.md` 29)."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import Fault, SimFs
from tests.simulation.model import Client, History
from tests.simulation.segment_lives import UNEXPECTED, check_files, exactly
from tests.simulation.test_segment_damage import Written, check
from tests.simulation.world import COLD, ROOT, End, Life, World, settings
from topics.engine.operations.export import ExportRequest
from topics.filters.record_filter import parse_filter
from topics.log.tag_match import TagMatch
from topics.model import (
    AppendRequest,
    Performance,
    ReadRequest,
    RecordIn,
    RouterPatch,
    TopicConfigPatch,
)
from topics.storage.files.fs import write_all
from topics.storage.maintenance import packer
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.verify import Verification
from topics.storage.segments.deletion_file import encode_deletions
from topics.storage.segments.packed_format import MIN_BLOCK_BYTES, PACK_MAGIC, packed_bytes, table_of
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment

PLAIN = settings(
    segment_max_events=10,
    segment_max_age_ms=0,
    cold_dir=Path(COLD),
    hot_retain_segments=2,
    cache_bytes=0,
    min_free_bytes=0,
)
PACKED = replace(PLAIN, segment_compression="zstd")
TAGS = ["a", "ab", "b", None]


def data_files(fs: SimFs) -> dict[str, bytes]:
    return {path: content for path, content in fs.tree().items() if content and path.endswith(".data")}


def packed_files(fs: SimFs) -> list[str]:
    return [path for path, content in data_files(fs).items() if content.startswith(PACK_MAGIC)]


def lists(fs: SimFs) -> list[str]:
    return [path for path, content in fs.tree().items() if content and path.endswith(".del")]


def change(fs: SimFs, path: str, content: bytes) -> None:
    with fs.open(path) as file:
        file.truncate(len(content))
        write_all(file, content, 0)
        file.fdatasync()


async def append(life: Life, name: str, *datas: bytes, tag: str | None = None) -> int:
    records = [RecordIn(data=msgspec.Raw(data), tag=tag, node=f"n{i % 2}") for i, data in enumerate(datas)]
    return (await life.engine.appends.append(name, AppendRequest(records=records), Performance())).first_seq


async def everything_packed(life: Life) -> None:
    """Have all sealed segments packed, and the part say so."""
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    await life.compactor.checkpoint()


async def delete(life: Life, name: str, seq: int) -> None:
    calls = life.engine.deletions
    await calls.delete_records(name, seq + 1, None, Performance(), after_seq=seq - 1)


async def seqs_of(life: Life, name: str = "t") -> list[int]:
    result = await life.engine.reads.read(name, ReadRequest(limit=100), Performance())
    return [row["$seq"] for row in json.loads(b"[" + result.records + b"]")]


def segments_of(life: Life, name: str = "t") -> list[Segment]:
    spans = life.engine.registry.topics[name].log.stored.all()
    return [span.segment for span in spans if isinstance(span.segment, Segment)]


def copy_of(world: World, config: Any = PACKED) -> World:
    return World(1, config=config, fs=world.fs.after_process_kill(), now_ms=world.clock.now_ms())


def unexpected(world: World) -> list[dict[str, Any]]:
    return [event for event in world.events if event["event"] in UNEXPECTED]


# ----------------------------------------------------------------- as plain ones


async def shown(life: Life, name: str) -> list[Any]:
    """What readers of all kinds are shown of a topic, without times."""

    def rows(blob: bytes) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key != "$ts"} for row in json.loads(b"[" + blob + b"]")]

    found: list[Any] = []
    for options in (
        {},
        {"filter": parse_filter(b'["tag", "Eq", "ab"]')},
        {"filter": parse_filter(b'["data", "/n", "Ge", 30]')},
        {"filter": parse_filter(b'["tag", "Glob", "a*"]'), "nodes": frozenset({"n1"})},
    ):
        position = 0
        while True:
            request = ReadRequest(from_seq=position, limit=7, include_tags=True, **options)
            result = await life.engine.reads.read(name, request, Performance())
            gap = result.tombstone
            found.append((rows(result.records), gap and (gap.gap_from, gap.gap_to, gap.reason)))
            position = result.next_from_seq
            if result.caught_up:
                break
    export = await life.engine.exports.open(name, ExportRequest())
    while (piece := await export.next_slice()) is not None:
        found.append(rows(b",".join(filter(None, piece.lines.split(b"\n")))))
    state = await life.engine.topic_states.of(name, touch=False)
    found.append((state.count, state.earliest_seq, state.head_seq, state.bytes))
    return found


def lived(seed: int, config: Any) -> tuple[list[list[Any]], World]:
    """A life of two topics, a router between them among other things, and what readers see of it again and again."""
    rng = random.Random(seed)
    world = World(seed, config=config)
    seen: list[list[Any]] = []

    async def look(life: Life) -> None:
        for name in ("t", "copies"):
            seen.append(await shown(life, name))

    async def first(life: Life) -> None:
        for name in ("t", "copies"):
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
        for turn in range(8):
            datas = [b'{"n": %d, "x": "%s"}' % (turn * 9 + i, b"y" * rng.randrange(900)) for i in range(9)]
            first = await append(life, "t", *datas, tag=rng.choice(TAGS))
            if rng.random() < 0.6:
                doomed = TagMatch(rng.choice(("a", "ab", "b")), prefix=False)
                await life.engine.deletions.delete_records("t", first, doomed, Performance())
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            if turn % 2:
                await life.relocator.pass_over()
            if turn == 4:  # it copies from sealed segments, hot and cold
                await life.engine.routers.put("r", RouterPatch(source="t", dest="copies", start="earliest"))
            await trio.sleep(1)
        await look(life)

    async def again(life: Life) -> None:
        await look(life)
        await life.engine.deletions.delete_records("t", 60, TagMatch("b", prefix=False), Performance())
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await look(life)

    assert world.live(first)
    ends: list[End] = ["kill", "drop"]
    for end in ends:
        world = world.after(end)
        assert world.live(again, end="kill")
        assert not unexpected(world)
    return seen, world


@pytest.mark.parametrize("seed", [0, *(pytest.param(i, marks=pytest.mark.slow) for i in range(1, 20))])
def test_a_packed_directory_reads_as_a_plain_one(seed: int) -> None:
    plain, one = lived(seed, PLAIN)
    packed, other = lived(seed, PACKED)
    assert not packed_files(one.fs)
    assert len(packed_files(other.fs)) >= 3
    assert packed == plain


# ----------------------------------------------------------------- how it gets there


def test_a_segment_is_packed_once_and_what_is_of_no_use_is_not_tried_again_even_after_a_start() -> None:
    async def fill(life: Life) -> None:
        for name in ("t", "noise"):
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
        rng = random.Random(1)
        for _ in range(3):
            await append(life, "t", *(b'{"text": "%s"}' % (b"word " * 1000) for _ in range(10)))
            await append(life, "noise", *(b'"%s"' % rng.randbytes(3000).hex().encode() for _ in range(10)))
        await everything_packed(life)

    async def look(life: Life) -> None:
        assert [segment.packed is not None for segment in segments_of(life)] == [True, True, True]
        assert all(0 < (segment.packed or 0) < segment.data_bytes / 4 for segment in segments_of(life))
        assert [segment.packed for segment in segments_of(life, "noise")] == [0, 0, 0]
        before = life.fs.mutations
        opened = life.fs.inject(Fault(name="pread", path=f"{ROOT}/topics/*/*.data", hook=lambda op: None, times=None))
        assert await life.reclaimer.packer.pass_over() == 0
        assert not opened.hits, "nothing is read"
        assert life.fs.mutations == before

    world = World(config=settings(segment_max_events=10, segment_compression="zstd"))
    with half_worth():
        assert world.live(fill)
        assert world.live(look)
        assert world.after("kill").live(look)


@contextmanager
def half_worth() -> Iterator[None]:
    """Have packing be worth something only if it saves more than half."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.simulation.packing.WORTH", 0.4)
        yield


def test_topics_say_themselves_and_what_is_rewritten_is_as_it_is_wanted_then() -> None:
    async def fill(life: Life) -> None:
        for name, compression in (("t", None), ("off", "off"), ("on", "zstd")):
            patch = TopicConfigPatch(durability="fsync", compression=compression)  # type: ignore[arg-type]
            await life.engine.topic_lifecycle.put(name, patch)
            for turn in range(20):
                await append(life, name, b'{"text": "%s"}' % (b"word " * 100), tag=("a", "b")[turn % 2])
        await everything_packed(life)

    async def rewrite(life: Life) -> None:
        await life.engine.topic_lifecycle.put("on", TopicConfigPatch(compression="off"))
        await life.engine.topic_lifecycle.put("off", TopicConfigPatch(compression="zstd"))
        for name in ("on", "off"):
            await life.engine.deletions.delete_records(name, None, TagMatch("a", prefix=False), Performance())
        await everything_packed(life)
        await life.reclaimer.pass_over()
        for name in ("on", "off"):
            assert len(await seqs_of(life, name)) == 10

    def kinds(life: Life) -> dict[str, bool]:
        return {name: bool(segments_of(life, name)[0].packed) for name in ("t", "off", "on")}

    found: list[dict[str, bool]] = []

    async def both(life: Life) -> None:
        await fill(life)
        found.append(kinds(life))
        await rewrite(life)
        found.append(kinds(life))

    world = World(config=settings(segment_max_events=10, segment_compression="zstd", rewrite_live_ratio=0.9))
    assert world.live(both)
    assert found == [{"t": True, "off": False, "on": True}, {"t": True, "off": True, "on": False}]
    assert not lists(world.fs), "the lists of rewritten segments are gone"


def test_flags_of_a_packed_segment_are_in_a_list_and_its_file_is_never_written_again() -> None:
    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("t", durability="fsync")
        for turn in range(10):
            await append(life, "t", b'"x"', b'"y"', tag="abc"[turn % 3])
        await everything_packed(life)
        before = data_files(life.fs)
        assert len(packed_files(life.fs)) == 2
        for tag in "ab":
            await client.delete("t", match=exactly(tag))
            await life.compactor.checkpoint()
            assert data_files(life.fs) == before
            assert len(lists(life.fs)) == 2
            assert not segments_of(life)[0].flagged_meanwhile
        check_files(life)
        spans = life.engine.registry.topics["t"].log.stored.all()
        assert not any(span.unflagged for span in spans), "the part does not name them any more"

    world = World(config=replace(PACKED, cold_dir=None, rewrite_live_ratio=0.0))
    assert world.live(scenario)

    async def look(life: Life) -> None:
        assert await seqs_of(life) == [5, 6, 11, 12, 17, 18]

    for hurt in ((), (".idx",), (".idx", ".tags")):
        after = copy_of(world, world.settings)
        for path in list(after.fs.tree()):
            if hurt and path.endswith(hurt):
                after.fs.unlink(path)
        assert after.live(look)


def test_what_is_flagged_while_it_is_packed_is_packed_by_the_next_pass() -> None:
    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("t", durability="fsync")
        for turn in range(6):
            await append(life, "t", b'"x"', b'"y"', tag="ab"[turn % 2])
        await life.compactor.checkpoint()
        read = trio.Event()
        fault = Fault(name="pread", path=f"{ROOT}/topics/*.data", hook=lambda op: read.set(), times=1)
        life.fs.inject(fault)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(packer, "BYTES_PER_S", 100)  # the pause behind the slice
            async with trio.open_nursery() as nursery:
                nursery.start_soon(life.reclaimer.packer.pass_over)
                await read.wait()
                await client.delete("t", match=exactly("a"))
                await life.compactor.checkpoint()
        assert not packed_files(life.fs)
        assert segments_of(life)[0].packed is None
        assert await life.reclaimer.packer.pass_over() == 1
        assert len(packed_files(life.fs)) == 1
        assert not lists(life.fs), "they are flags of the file"
        await life.compactor.checkpoint()

    world = World(config=replace(PACKED, cold_dir=None, rewrite_live_ratio=0.0))
    assert world.live(scenario)
    assert not unexpected(world)


def test_a_segment_that_is_sealed_while_the_reclaimer_looks_is_packed_by_its_next_look() -> None:
    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        await append(life, "t", b'"x"')
        await everything_packed(life)
        for _ in range(10):
            await append(life, "t", b'"x"')
        seen: list[bool] = []

        def look(op: object) -> None:
            seen.append(life.engine.registry.topics["t"] in life.engine.registry.changed)
            life.engine.registry.attention.clear()

        life.fs.inject(Fault(name="pwrite", path=f"{ROOT}/topics/*.data", hook=look, times=1))
        await life.compactor.checkpoint()
        assert seen == [False]
        await life.reclaimer.hot_pass()
        assert await life.reclaimer.packer.pass_over() == 1

    assert World(config=replace(PACKED, cold_dir=None)).live(scenario)


def test_a_failure_of_one_file_delays_no_other_and_is_not_tried_for_ever() -> None:
    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for _ in range(31):
            await append(life, "t", b'"x"')
        await life.compactor.checkpoint()
        bad = life.fs.inject(Fault(error=5, name="create", path=f"{ROOT}/topics/*{11:020d}.data.tmp", times=None))
        with pytest.raises(OSError, match="error"):
            await life.reclaimer.packer.pass_over()
        assert [bool(segment.packed) for segment in segments_of(life)[:3]] == [True, False, True]
        hits = bad.hits
        life.engine.registry.topics["t"].mark_changed()
        await everything_packed(life)
        assert bad.hits == hits
        assert len(await seqs_of(life)) == 31

    assert World(config=replace(PACKED, cold_dir=None)).live(scenario)


def test_a_full_disk_delays_packing_and_is_not_taken_for_a_file_that_fails() -> None:
    async def scenario(life: Life) -> None:
        for name in ("t", "u"):
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
            for _ in range(31):
                await append(life, name, b'"x"')
        await life.compactor.checkpoint()
        full = life.fs.inject(Fault(error=28, name="pwrite", path="*.data.tmp", times=None))
        before = {path for path in life.fs.tree() if "/topics/" in path}
        with pytest.raises(OSError, match="space"):
            await life.reclaimer.packer.pass_over()
        assert full.hits == 1
        assert {path for path in life.fs.tree() if "/topics/" in path} == before, "nothing is left of the attempt"
        assert await life.reclaimer.packer.pass_over() == 0
        assert full.hits == 1
        life.fs.faults.remove(full)
        await trio.sleep(61)
        assert await life.reclaimer.packer.pass_over() == 6

    assert World(config=replace(PACKED, cold_dir=None)).live(scenario)


@pytest.mark.parametrize("tier", ["hot", "cold"])
@pytest.mark.parametrize("damage", ["another file", "its list and its index"])
def test_a_damaged_segment_that_cannot_be_flagged_keeps_no_topic_from_being_stored(damage: str, tier: str) -> None:
    config = replace(PACKED, cold_dir=Path(COLD) if tier == "cold" else None, hot_retain_segments=1)
    config = replace(config, rewrite_live_ratio=0.0)

    async def scenario(life: Life) -> None:
        for name, data in (("t", b'"%b"' % (b"x" * 400)), ("other", b'"y"')):
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
            for _ in range(31):
                await append(life, name, data)
        await everything_packed(life)
        if tier == "cold":
            await life.relocator.pass_over()
        mine, others = (
            next(path for path in packed_files(life.fs) if f"{topic_id:016x}" in path and f"{1:020d}" in path)
            for topic_id in (1, 2)
        )
        assert (COLD in mine) is (tier == "cold")
        if damage == "another file":
            change(life.fs, mine, data_files(life.fs)[others])
        else:
            await delete(life, "t", 3)
            await everything_packed(life)
            change(life.fs, mine.replace(".data", ".del"), b"garbage")
            index = mine.replace(".data", ".idx")
            blob = life.fs.tree()[index]
            assert blob is not None
            change(life.fs, index, bytes([blob[0] ^ 1]) + blob[1:])
        for name in ("t", "other"):
            await delete(life, name, 9)
        await everything_packed(life)
        assert not life.engine.registry.common.changed
        topics = life.engine.registry.topics
        (span, *_), (healthy, *_) = (topics[name].log.stored.all() for name in ("t", "other"))
        if (damage, tier) != ("another file", "cold"):  # flags beyond the end of a cold file are not needed
            assert list(span.unflagged or ()) == [9], "the part goes on naming it"
        assert not healthy.unflagged

    assert World(config=config).live(scenario)


def test_a_hold_is_waited_for_and_names_lists_which_do_not_change_while_it_lasts() -> None:
    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("t", durability="fsync")
        for turn in range(15):
            await append(life, "t", b'"x"', b'"y"', tag="abc"[turn % 3])
        await everything_packed(life)
        await life.relocator.pass_over()
        await client.delete("t", match=exactly("a"))
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        for _ in range(10):
            await append(life, "t", b'"z"', tag="b")
        await life.compactor.checkpoint()
        files, _ = await life.engine.checkpoint(1000)
        tree = life.fs.tree()
        named = {f"{COLD}/{name[5:]}" if name.startswith("cold:") else f"{ROOT}/{name}" for name in files}
        assert set(lists(life.fs)) <= named
        assert any(path.startswith(COLD) for path in lists(life.fs))
        assert len(lists(life.fs)) >= 3
        await client.delete("t", match=exactly("b"))
        await life.compactor.checkpoint()
        with trio.move_on_after(0.9):
            await life.reclaimer.packer.pass_over()
        assert {path: life.fs.tree()[path] for path in named} == {path: tree[path] for path in named}
        plain = len(data_files(life.fs)) - len(packed_files(life.fs))
        await trio.sleep(0.2)
        await everything_packed(life)
        assert len(data_files(life.fs)) - len(packed_files(life.fs)) < plain
        await life.compactor.checkpoint()
        assert {path: life.fs.tree().get(path) for path in named} != {path: tree[path] for path in named}

    assert World(config=replace(PACKED, rewrite_live_ratio=0.0)).live(scenario)


def test_a_copy_has_the_list_of_a_packed_file_that_no_part_calls_packed() -> None:
    """A crash behind the rename of a packed file; then packing is switched off."""

    async def packing(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for _ in range(31):
            await append(life, "t", b'"x"')
        await life.compactor.checkpoint()
        await life.relocator.pass_over()
        assert await life.reclaimer.packer.pass_over() == 3

    async def deleting(life: Life) -> None:
        assert [segment.packed for segment in segments_of(life)] == [None] * 4
        assert len(packed_files(life.fs)) == 3
        for seq in (3, 13, 23):
            await delete(life, "t", seq)
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        files, _ = await life.engine.checkpoint(1000)
        named = {f"{COLD}/{name[5:]}" if name.startswith("cold:") else f"{ROOT}/{name}" for name in files}
        assert len(lists(life.fs)) == 3
        assert set(lists(life.fs)) <= named

    world = World(config=replace(PACKED, rewrite_live_ratio=0.0))
    assert world.live(packing, end="kill")
    off = World(1, config=replace(PLAIN, rewrite_live_ratio=0.0), fs=world.fs.after_process_kill())
    assert off.live(deleting)


def test_copies_that_point_into_a_segment_outlive_its_packing() -> None:
    """The recipe in the log names offsets in the unpacked form; after a kill the copies are made from it."""

    async def scenario(life: Life) -> None:
        for name in ("t", "copies"):
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
        for i in range(25):
            await append(life, "t", b'{"n": %d}' % i, tag="ab"[i % 2])
        await life.compactor.checkpoint()
        await life.engine.routers.put("r", RouterPatch(source="t", dest="copies", start="earliest"))
        await trio.sleep(1)
        topic = life.engine.registry.topics["copies"]
        assert topic.log.head_seq == 25
        assert life.engine.compactor is not None
        assert await life.reclaimer.packer.pass_over() == 2
        assert len(packed_files(life.fs)) == 2
        rows.append(await shown(life, "copies"))
        await trio.sleep(0.1)

    async def look(life: Life) -> None:
        rows.append(await shown(life, "copies"))

    rows: list[Any] = []
    world = World(config=replace(PACKED, cold_dir=None))
    assert world.live(scenario, end="kill")
    assert world.after("drop").live(look)
    assert rows[0] == rows[1]
    assert len(rows[0]) > 3


def test_a_plain_file_under_a_part_that_says_packed_and_the_other_way_round_are_read() -> None:
    """A crash, or a repair, may leave a part that is older than the file; the file counts."""

    async def fill(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for i in range(25):
            await append(life, "t", b'{"n": %d}' % i, tag="ab"[i % 2])
        await life.compactor.checkpoint()
        plain.update(data_files(life.fs))
        await everything_packed(life)
        packed.update(data_files(life.fs))
        rows.append(await shown(life, "t"))

    async def look(life: Life) -> None:
        rows.append(await shown(life, "t"))

    plain: dict[str, bytes] = {}
    packed: dict[str, bytes] = {}
    rows: list[Any] = []
    world = World(config=replace(PACKED, cold_dir=None))
    assert world.live(fill)
    other = copy_of(world, replace(PLAIN, cold_dir=None))
    for path, content in plain.items():
        if packed[path].startswith(PACK_MAGIC):
            change(other.fs, path, content)
    assert other.live(look)
    assert rows[0] == rows[1]
    assert not unexpected(other)


# ----------------------------------------------------------------- damage


@pytest.fixture(scope="module")
def left() -> tuple[World, dict[str, Written]]:
    """A stopped directory: a topic with cold and hot packed segments of several blocks, with lists of deletions."""
    rng = random.Random(7)
    world = World(config=PACKED)
    written = Written({}, set())

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for turn in range(5):
            for i in range(10):
                tag, n = rng.choice(TAGS), turn * 10 + i
                data = b'{"n": %d, "x": "%s"}' % (n, rng.randbytes(rng.randrange(700)).hex().encode())
                records = [RecordIn(data=msgspec.Raw(data), tag=tag, node=f"n{i % 2}")]
                result = await life.engine.appends.append("t", AppendRequest(records=records), Performance())
                written.records[result.first_seq] = (data, tag, f"n{i % 2}")
            await everything_packed(life)
            if turn in (2, 4):
                await life.relocator.pass_over()
                doomed = {seq for seq, part in written.records.items() if part[1] == "ab"}
                await life.engine.deletions.delete_records("t", None, TagMatch("ab", prefix=False), Performance())
                written.deleted |= doomed
                await everything_packed(life)

    assert world.live(scenario)
    assert not unexpected(world)
    for root in (ROOT, COLD):
        assert sum(path.startswith(root) for path in packed_files(world.fs)) >= 2
        assert sum(path.startswith(root) for path in lists(world.fs)) >= 1
    return world, {"t": written}


def blocks_of(content: bytes) -> int:
    table = table_of(lambda offset, length: content[offset : offset + length], len(content))
    assert table is not None
    return table.header.blocks


def damaged_places(world: World, count: int) -> Iterator[tuple[str, int]]:
    """Some bytes of every packed file and of every list: those at its ends, and others by chance."""
    rng = random.Random(count)
    for path in [*packed_files(world.fs), *lists(world.fs)]:
        size = len(world.fs.tree()[path] or b"")
        chosen = {
            *((0, 9, size - 1, size - 50) if count else (size - 50,)),
            *(rng.randrange(size) for _ in range(count)),
        }
        chosen.add(rng.randrange(size))
        yield from ((path, at) for at in sorted(chosen))


@pytest.mark.parametrize("count", [0, pytest.param(100 if EVERYTHING else 12, marks=pytest.mark.slow)])
def test_every_changed_byte_is_announced_or_does_no_harm_and_is_found(
    count: int, left: tuple[World, dict[str, Written]]
) -> None:
    world, topics = left
    assert all(blocks_of(data_files(world.fs)[path]) >= 2 for path in packed_files(world.fs))
    whole = world.fs.after_process_kill()
    assert [f for f in Verification(whole, ROOT, COLD).findings() if f.severity == "damage"] == []
    harmed = 0
    for path, at in damaged_places(world, count):
        machine = copy_of(world)
        content = bytearray(machine.fs.tree()[path] or b"")
        content[at] ^= 0x41
        change(machine.fs, path, bytes(content))
        findings = [f for f in Verification(machine.fs, ROOT, COLD).findings() if f.severity == "damage"]
        assert path in {finding.path for finding in findings}, f"{path} at {at}: {findings}"
        if path.endswith(".del"):
            for derived in (path.replace(".del", ".idx"), path.replace(".del", ".idx.cold").replace(COLD, ROOT)):
                if machine.fs.exists(derived):
                    machine.fs.unlink(derived)
        announced: dict[str, set[int]] = {}

        async def look(life: Life, announced: dict[str, set[int]] = announced) -> None:
            announced.update(await check(life, topics))

        assert machine.live(look), f"{path} at {at}"
        block = 0 if path.endswith(".del") else MIN_BLOCK_BYTES
        lost = [topics["t"].records[seq] for seq in announced["t"]]
        assert sum(len(data) for data, _, _ in lost[1:-1]) <= block, f"{path} at {at} has cost {len(lost)} records"
        harmed += bool(lost)
    assert harmed or not count


@pytest.mark.parametrize("count", [0, pytest.param(10, marks=pytest.mark.slow)])
def test_files_that_were_cut_short_lose_what_was_behind_and_say_so(
    count: int, left: tuple[World, dict[str, Written]]
) -> None:
    world, topics = left
    rng = random.Random(count)
    for path in packed_files(world.fs):
        size = len(data_files(world.fs)[path])
        for length in {
            size // 2,
            size - 1,
            *((0, 30, 48, size - 56) if count else ()),
            *(rng.randrange(size) for _ in range(count)),
        }:
            machine = copy_of(world)
            change(machine.fs, path, data_files(world.fs)[path][:length])
            assert [f for f in Verification(machine.fs, ROOT, COLD).findings() if f.path == path], (path, length)
            announced: dict[str, set[int]] = {}

            async def look(life: Life, announced: dict[str, set[int]] = announced) -> None:
                announced.update(await check(life, topics))

            assert machine.live(look), f"{path} cut to {length}"
            if length >= size - 56:
                assert not announced["t"], "the end has nothing but what the rest has"


def test_verify_beside_a_daemon_does_not_take_a_file_that_is_replaced_for_a_damaged_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The part says nothing of it before the next checkpoint."""
    world = World(config=replace(PLAIN, cold_dir=None))

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for _ in range(21):
            await append(life, "t", b'"%b"' % (b"x" * 500))
        await life.compactor.checkpoint()

    assert world.live(scenario)
    fs = world.fs.after_process_kill()
    path = min(data_files(fs))
    plain = data_files(fs)[path]
    first, second = packed_bytes(plain, 5, 1), packed_bytes(plain, 6, 1)
    stored_length = DirectorySegmentStore.stored_length
    to_come = [first, second]

    def replaced(self: DirectorySegmentStore, topic_id: int, name: str) -> int:
        size = stored_length(self, topic_id, name)
        if path.endswith(name) and to_come:
            change(fs, path, to_come.pop(0))
        return size

    monkeypatch.setattr(DirectorySegmentStore, "stored_length", replaced)
    assert [f for f in Verification(fs, ROOT, in_use=True).findings() if f.severity == "damage"] == []
    assert not to_come
    assert data_files(fs)[path] == second

    listed, longer = encode_deletions(6, [90]), encode_deletions(6, range(90, 110))
    with fs.open(path.replace(".data", ".del"), create=True) as file:
        write_all(file, listed, 0)

    def grows(self: DirectorySegmentStore, topic_id: int, name: str) -> int:
        size = stored_length(self, topic_id, name)
        if name.endswith(".del"):
            change(fs, path.replace(".data", ".del"), longer)
        return size

    monkeypatch.setattr(DirectorySegmentStore, "stored_length", grows)
    findings = [f for f in Verification(fs, ROOT, in_use=True).findings() if f.path.endswith(".del")]
    assert findings == []


def test_inspect_and_verify_know_packed_segments(left: tuple[World, dict[str, Written]]) -> None:
    world, topics = left
    fs = world.fs.after_process_kill()
    inspection = Inspection(fs, ROOT, COLD)
    (topic,) = [one for one in inspection.facts().topics if one.name == "t"]
    assert all(segment.stored_bytes < segment.bytes for segment in topic.segments)
    records = {line.seq: line for line in Inspection(fs, ROOT, COLD).frames("t") if line.type == "Record"}
    assert {seq for seq, line in records.items() if "deleted" in line.flags} == topics["t"].deleted
    assert records.keys() == topics["t"].records.keys()
    for seq, (data, tag, node) in topics["t"].records.items():
        assert (records[seq].tag, records[seq].node) == (tag or "", node)
        assert data.decode()[:20] in records[seq].payload
