"""Damage in segments, manifests and snapshots, and a cold directory that is away (`docs/spec/storage.md` sections 3 and
4).

What is read afterwards is what was written, or announced as `corrupt`; nothing is made up, no live record is missing in
silence, and what is in files that are as they were is all there.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import trio

from tests.simulation.segment_model import Row
from tests.simulation.test_segment_models import seeds
from tests.simulation.world import COLD, ROOT, Life, World, settings
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn, TopicConfigPatch
from topics.storage.files.datadir import DataDirError

CONFIG = settings(
    segment_max_events=10,
    cold_dir=Path(COLD),
    hot_retain_segments=2,
    cache_bytes=0,
    min_free_bytes=0,
    segment_max_age_ms=0,
)
TAGS = ["a", "ab", "b", None]
NAMES = ("t", "u")


@dataclass
class Written:
    """What one topic was given, and what of it was deleted."""

    records: dict[int, tuple[bytes, str | None, str | None]]
    deleted: set[int]


@pytest.fixture(scope="module")
def left() -> tuple[World, dict[str, Written]]:
    """A stopped directory: two topics, cold and hot sealed segments, an active one, deletions in all of them."""
    rng = random.Random(7)
    world = World(config=CONFIG)
    topics = {name: Written({}, set()) for name in NAMES}

    async def scenario(life: Life) -> None:
        for name in NAMES:
            await life.engine.topic_lifecycle.put(name, TopicConfigPatch(durability="fsync"))
        for turn in range(9):
            for name, written in topics.items():
                parts = [
                    (b'{"n": %d ,"x":"%s"}' % (turn * 10 + i, b"y" * rng.randrange(60)), rng.choice(TAGS), f"n{i % 2}")
                    for i in range(7)
                ]
                records = [RecordIn(data=msgspec.Raw(data), tag=tag, node=node) for data, tag, node in parts]
                result = await life.engine.appends.append(name, AppendRequest(records=records), Performance())
                written.records.update({result.first_seq + i: part for i, part in enumerate(parts)})
                if turn in (2, 5, 8):
                    doomed = [seq for seq, part in written.records.items() if part[1] == "ab" and seq % 3]
                    top = max(doomed) + 1
                    await life.engine.deletions.delete_records(name, top, TagMatch("ab", prefix=False), Performance())
                    written.deleted.update(
                        seq for seq, part in written.records.items() if part[1] == "ab" and seq < top
                    )
            await life.compactor.checkpoint()
            if turn == 6:
                await life.relocator.pass_over()
        await life.relocator.pass_over()

    assert world.live(scenario)
    tree = world.fs.tree()
    for root in (ROOT, COLD):
        assert sum(path.startswith(root) and path.endswith(".data") for path in tree) >= 4
    return world, topics


def copy_of(world: World) -> World:
    """The same machine once more."""
    return World(1, config=CONFIG, fs=world.fs.after_process_kill(), now_ms=world.clock.now_ms())


def files(world: World, *kinds: str) -> list[str]:
    """The files of these kinds (ends of names) in both tiers."""
    return [path for path, content in world.fs.tree().items() if content and path.endswith(kinds)]


async def everything(life: Life, name: str) -> tuple[dict[int, Row], set[int]]:
    """All records, and all seqs that are announced as corrupt."""
    rows: dict[int, Row] = {}
    corrupt: set[int] = set()
    position = 0
    while True:
        request = ReadRequest(from_seq=position, limit=9, include_tags=True)
        result = await life.engine.reads.read(name, request, Performance())
        if (gap := result.tombstone) is not None:
            assert gap.reason == "corrupt", gap
            corrupt.update(range(gap.gap_from, gap.gap_to + 1))
        rows.update({row.seq: row for row in msgspec.json.decode(b"[" + result.records + b"]", type=list[Row])})
        position = result.next_from_seq
        if result.caught_up:
            return rows, corrupt


async def check(life: Life, topics: dict[str, Written]) -> dict[str, set[int]]:
    """Every record is as it was, deleted, or announced; which were announced."""
    announced = {}
    for name, written in topics.items():
        rows, corrupt = await everything(life, name)
        for seq, row in rows.items():
            assert seq not in written.deleted, f"{name}: seq {seq} is back"
            assert (bytes(row.data), row.tag, row.node) == written.records[seq], f"{name}: seq {seq} is something else"
        missing = written.records.keys() - rows.keys() - written.deleted - corrupt
        assert not missing, f"{name}: seqs {sorted(missing)} are missing in silence"
        state = await life.engine.topic_states.of(name, touch=False)
        told = (state.count, state.earliest_seq, state.head_seq)
        assert told == (len(rows), min(rows, default=state.head_seq + 1), max(written.records)), f"{name}: {told}"
        size = sum(len(row.data) for row in rows.values())
        assert state.bytes == size, f"{name}: bytes {state.bytes}, not {size}"
        life.engine.registry.topic(name).log.check()
        announced[name] = corrupt - written.deleted
    return announced


def segment_of(path: str) -> tuple[str, int]:
    """The topic directory and first seq of a segment file."""
    directory, name = path.rsplit("/", 1)
    return directory.rsplit("/", 1)[1], int(name[4:24])


@pytest.mark.parametrize(
    "seed", [*seeds(40)[:3], *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds(40)[3:])]
)
def test_flipped_bits_are_announced_or_do_no_harm(seed: int, left: tuple[World, dict[str, Written]]) -> None:
    rng = random.Random(seed)
    original, topics = left
    world = copy_of(original)
    kinds = [(".data",), (".idx", ".idx.cold"), (".tags", ".tags.cold"), ("topic.cbor",), (".data", ".idx", ".tags")]
    chosen = kinds[seed % len(kinds)]
    candidates = files(world, *chosen)
    tree = world.fs.tree()
    hit = []
    for _ in range(rng.choice([1, 1, 3, 12])):
        path = rng.choice(candidates)
        offset, bit = rng.randrange(len(tree[path] or b"")), rng.randrange(8)
        world.fs.flip_bit(path, offset, bit)
        hit.append((path, offset, bit))
    touched = {segment_of(path) for path, _, _ in hit if not path.endswith(".cbor")}
    data = any(path.endswith(".data") for path, _, _ in hit)
    seen: list[dict[str, set[int]]] = []

    async def scenario(life: Life) -> None:
        announced = await check(life, topics)
        seen.append(announced)
        for name, seqs in announced.items():
            directory = f"{life.engine.registry.topic(name).id:016x}"
            mine = [first for of, first in touched if of == directory]
            for seq in seqs:
                assert any(first <= seq < first + 10 for first in mine), (
                    f"{name}: {seq} is in no file that was hit: {hit}"
                )
        if not data:
            assert not any(announced.values()), f"{announced} although no .data was hit: {hit}"
        await life.compactor.checkpoint()
        assert await check(life, topics) == announced

    async def later(life: Life) -> None:
        assert await check(life, topics) == seen[0], "a restart shows something else"
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert await check(life, topics) == seen[0], "after a reclaim"

    try:
        assert world.live(scenario)
        assert world.live(later)
        again = copy_of(world)
        assert again.live(later)
    except BaseException as error:
        error.add_note(f"seed {seed}: {hit}")
        raise


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_in_one_snapshot_lose_nothing(seed: int, left: tuple[World, dict[str, Written]]) -> None:
    rng = random.Random(seed)
    original, topics = left
    world = copy_of(original)
    path = rng.choice([path for path in files(world, ".cbor") if "/snapshot." in path])
    for _ in range(rng.choice([1, 5])):
        world.fs.flip_bit(path, rng.randrange(len(world.fs.tree()[path] or b"")), rng.randrange(8))

    async def scenario(life: Life) -> None:
        assert not any((await check(life, topics)).values())

    assert world.live(scenario)
    assert world.live(scenario)


@pytest.mark.parametrize(
    "kinds",
    [
        (".idx",),
        (".tags",),
        ("topic.cbor",),
        (".idx.cold", ".tags.cold"),
        (".idx", ".tags"),
        (".idx", ".tags", ".idx.cold", ".tags.cold", "topic.cbor"),
    ],
)
def test_missing_derived_files_lose_nothing(kinds: tuple[str, ...], left: tuple[World, dict[str, Written]]) -> None:
    original, topics = left
    world = copy_of(original)
    for path in files(world, *kinds):
        world.fs.unlink(path)
        world.fs.sync_dir(path.rsplit("/", 1)[0])

    async def scenario(life: Life) -> None:
        assert not any((await check(life, topics)).values())
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert not any((await check(life, topics)).values())

    async def matches(life: Life) -> None:
        """Tags are found all the same."""
        for name, written in topics.items():
            doomed = [seq for seq, part in written.records.items() if part[1] == "b"]
            result = await life.engine.deletions.delete_records(name, None, TagMatch("b", prefix=False), Performance())
            assert result.deleted == len(doomed)

    assert world.live(scenario)
    assert copy_of(world).live(matches)
    assert world.live(scenario)


def test_a_start_on_a_cold_directory_that_is_not_mounted_is_refused_and_writes_nothing_there(
    left: tuple[World, dict[str, Written]],
) -> None:
    """It was taken for a new one, and written to below the mount point."""
    original, topics = left
    world = copy_of(original)
    world.fs.rename(COLD, "/elsewhere")
    for point in ("not there", "empty"):
        if point == "empty":
            world.fs.mkdir(COLD)
        with pytest.raises(DataDirError, match="is its volume mounted"):
            world.live(lambda life: _nothing())
        assert not world.fs.listdir(COLD)
    put_back(world)

    async def back(life: Life) -> None:
        assert not any((await check(life, topics)).values())

    assert world.live(back)


def test_without_the_cold_directory_hot_records_are_served_and_cold_ones_come_back(
    left: tuple[World, dict[str, Written]],
) -> None:
    original, topics = left
    world = copy_of(original)
    first_hot: dict[str, int] = {}

    async def away(life: Life) -> None:
        for name, written in topics.items():
            topic = life.engine.registry.topic(name)
            spans = topic.log.stored.all()
            hot = first_hot[name] = next(s.first for s in spans if s.segment.tier == "hot")  # type: ignore[attr-defined]
            state = await life.engine.topic_states.of(name, touch=False)
            assert state.count == len(written.records) - len(written.deleted)
            with pytest.raises(ApiError) as refused:
                await life.engine.reads.read(name, ReadRequest(limit=5), Performance())
            assert (refused.value.code, refused.value.status) == ("not_ready", 503)
            result = await life.engine.reads.read(name, ReadRequest(from_seq=hot - 1, limit=1000), Performance())
            rows = msgspec.json.decode(b"[" + result.records + b"]", type=list[Row])
            assert [row.seq for row in rows] == [
                seq for seq in written.records if seq >= hot and seq not in written.deleted
            ]
            assert all(bytes(row.data) == written.records[row.seq][0] for row in rows)
        # A cold record may be deleted while it is away, and stays so.
        name, written = "t", topics["t"]
        victim = min(seq for seq, part in written.records.items() if seq not in written.deleted)
        await life.engine.deletions.delete_records(name, victim + 1, None, Performance())
        cold_b = [
            seq
            for seq, part in written.records.items()
            if part[1] == "b" and seq < first_hot[name] and seq > victim and seq not in written.deleted
        ]
        gone = await life.engine.deletions.delete_records(
            name, first_hot[name], TagMatch("b", prefix=False), Performance()
        )
        assert gone.deleted == len(cold_b)
        deleted.update({victim, *cold_b})
        await life.compactor.checkpoint()
        for maintenance in (life.reclaimer.pass_over, life.relocator.pass_over):
            try:
                await maintenance()
            except (OSError, ApiError):
                pass

    async def back(life: Life) -> None:
        expected = {**topics, "t": Written(topics["t"].records, topics["t"].deleted | deleted)}
        assert not any((await check(life, expected)).values())
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert not any((await check(life, expected)).values())

    deleted: set[int] = set()
    world.settings = settings(**{**{name: getattr(CONFIG, name) for name in ("segment_max_events",)}, "cache_bytes": 0})
    assert world.live(away)
    assert world.live(lambda life: _nothing())
    world.settings = CONFIG
    assert world.live(back)
    assert world.live(back)


async def _nothing() -> None:
    """A start and a stop."""


def put_back(world: World) -> None:
    """The cold directory as it was, beside what was written to its mount point meanwhile."""
    fs = world.fs
    if fs.exists(COLD):
        fs.rename(COLD, "/below")
    fs.rename("/elsewhere", COLD)


def test_a_record_that_was_found_to_be_damaged_leaves_its_segment_once_and_stays_announced_as_such() -> None:
    """The reclaimer takes its bytes away; it does not rewrite the segment for ever, nor call it lost afterwards."""
    world = World(config=CONFIG)

    async def write(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for n in range(12):
            records = [RecordIn(data=msgspec.Raw(b'{"n":%d,"x":"%b"}' % (n, b"y" * (500 if n == 3 else 5))))]
            await life.engine.appends.append("t", AppendRequest(records=records), Performance())
        await life.compactor.checkpoint()

    assert world.live(write)
    (path,) = (name for name in files(world, ".data") if segment_of(name)[1] == 1)
    content = world.fs.tree()[path]
    assert content is not None
    again = copy_of(world)
    again.fs.flip_bit(path, content.index(b"y" * 500) + 7, 3)
    sizes: list[int] = []

    async def reclaim(life: Life) -> None:
        rows, corrupt = await everything(life, "t")
        assert (sorted(rows), corrupt) == ([1, 2, 3, *range(5, 13)], {4})
        await life.compactor.checkpoint()
        for _ in range(3):
            with trio.fail_after(60):
                await life.reclaimer.pass_over()
            await life.compactor.checkpoint()
        rows, corrupt = await everything(life, "t")
        assert (sorted(rows), corrupt) == ([1, 2, 3, *range(5, 13)], {4})
        sizes.append(len(again.fs.tree()[path] or b""))

    assert again.live(reclaim)
    assert sizes[0] < len(content) - 500
    last = again.after("drop")

    async def look(life: Life) -> None:
        rows, corrupt = await everything(life, "t")
        assert (sorted(rows), corrupt) == ([1, 2, 3, *range(5, 13)], {4})

    assert last.live(look)
