"""Packed segments in a bucket: read by ranges of blocks, restored, brought home, and damaged
(`docs/spec/evidence.md` section 2, `docs/design/bucket.md`)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.bucket.cold_lives import IN_BUCKET, ColdBucket
from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_bucket_segments import cold, live, seqs_of
from tests.bucket.test_lazy_restore import lazily_restored
from tests.bucket.test_restore import recovered, restored
from tests.simulation.model import Client, History, View, views_of
from tests.simulation.segment_lives import check_files, exactly, fill, maintenance
from tests.simulation.world import ROOT, Life, World
from topics.bucket.bucket_segments import BucketSegments
from topics.model import Performance, ReadRequest
from topics.storage.offline.verify import Verification
from topics.storage.segments.packed_format import PACK_MAGIC, table_of
from topics.storage.segments.topic_segments import Segment

PACKED = replace(IN_BUCKET, segment_compression="zstd", segment_max_bytes=64 << 10, segment_max_events=20)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ColdBucket:
    """A bucket that is the cold store of every machine in the test."""
    made = ColdBucket()
    monkeypatch.setattr(World, "segments", staticmethod(made.of))
    return made


async def packed_and_cold(life: Life, client: Client) -> None:
    """A topic of which all but two segments are in the bucket, all of them packed, of several blocks each."""
    await client.create("t", durability="fsync")
    await fill(client, "t", 50, size=700)
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    await life.compactor.checkpoint()
    await life.relocator.pass_over()
    await life.compactor.checkpoint()
    assert len(cold(life)) >= 3
    assert all(segment.packed for segment in cold(life))


def packed_objects(bucket: ColdBucket) -> list[str]:
    objects = bucket.objects.objects
    return [name for name in objects if name.endswith(".data") and objects[name].startswith(PACK_MAGIC)]


def test_packed_objects_are_read_by_ranges_and_deletions_in_them_stay(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await packed_and_cold(life, client)
        assert len(packed_objects(bucket)) == len(cold(life))
        before = await seqs_of(life)
        assert len(before) == 100
        bucket.objects.calls.clear()
        stored = sum(len(bucket.objects.objects[name]) for name in packed_objects(bucket))
        unpacked = sum(segment.data_bytes for segment in cold(life))
        store = bucket.made[-1]
        store.read_bytes = 0
        assert await seqs_of(life) == before
        assert {op for op, _ in bucket.objects.calls} <= {"get_range"}
        assert store.read_bytes < 2 * stored
        bucket.objects.calls.clear()
        assert await seqs_of(life) == before
        assert len(bucket.objects.calls) <= 5 * len(cold(life)), "the tables are known, and blocks are read together"
        assert stored < unpacked / 2
        await client.delete("t", match=exactly("b"))
        await life.compactor.checkpoint()
        kept.extend(await seqs_of(life))
        assert 0 < len(kept) < 100
        check_files(life)

    kept: list[int] = []
    world = World(config=replace(PACKED, rewrite_live_ratio=0.1))
    live(world, script)
    assert [one for one in Verification(world.fs, ROOT).findings() if one.severity == "damage"] == []

    async def again(life: Life, client: Client) -> None:
        assert await seqs_of(life) == kept

    for end in ("kill", "drop"):
        world = world.after(end)
        live(world, again)
    for path in [path for path in world.fs.tree() if path.endswith(".cold")]:
        world.fs.unlink(path)
    for name in [name for name in bucket.objects.objects if not name.endswith(".data")]:
        bucket.objects.delete([name])
    live(world.after("drop"), again)


def test_they_come_home_as_they_are_and_are_rewritten_there(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await packed_and_cold(life, client)
        segment = cold(life)[0]
        stored = segment.packed
        assert await life.engine.home_moves.bring(life.engine.registry.topics["t"], segment)
        assert (segment.tier, segment.packed) == ("hot", stored)
        path = f"{ROOT}/topics/{1:016x}/seg-{segment.first:020d}.data"
        assert (life.fs.tree()[path] or b"").startswith(PACK_MAGIC)
        assert len(await seqs_of(life)) == 100
        await client.delete("t", match=exactly("a"))
        await client.delete("t", match=exactly("b"))
        before = {one.salt for one in cold(life)}
        for _ in range(3):
            await maintenance(life)
        assert not before & {one.salt for one in cold(life)}
        assert len(await seqs_of(life)) < 60
        check_files(life)

    live(World(config=replace(PACKED, rewrite_live_ratio=0.9)), script)


async def rows_and_corrupt(life: Life) -> tuple[dict[int, Any], set[int]]:
    rows: dict[int, Any] = {}
    corrupt: set[int] = set()
    position = 0
    while True:
        result = await life.engine.reads.read("t", ReadRequest(from_seq=position, limit=9), Performance())
        if (gap := result.tombstone) is not None:
            assert gap.reason == "corrupt"
            corrupt.update(range(gap.gap_from, gap.gap_to + 1))
        for row in msgspec.json.decode(b"[" + result.records + b"]"):
            rows[row["$seq"]] = row["data"]
        position = result.next_from_seq
        if result.caught_up:
            return rows, corrupt


@pytest.mark.parametrize("place", [10, 47, 50, "block 0", "block 2", -60, -100, -1])
def test_a_damaged_object_gives_the_right_records_or_says_that_they_are_corrupt(
    bucket: ColdBucket, place: int | str
) -> None:
    whole: dict[int, Any] = {}

    async def script(life: Life, client: Client) -> None:
        await packed_and_cold(life, client)
        rows, corrupt = await rows_and_corrupt(life)
        assert not corrupt
        whole.update(rows)

    async def look(life: Life, client: Client) -> None:
        rows, corrupt = await rows_and_corrupt(life)
        assert rows.items() <= whole.items()
        assert rows.keys() | corrupt == whole.keys()
        costs.append(len(corrupt))

    costs: list[int] = []
    world = World(config=PACKED)
    live(world, script)
    names = [name for name in packed_objects(bucket) if f"/{1:020d}-" in name]
    assert names
    for name in names:
        data = bytearray(bucket.objects.objects[name])
        table = table_of(lambda at, length, data=bytes(data): data[at : at + length], len(data))  # type: ignore[misc]
        assert table is not None
        data[place if isinstance(place, int) else table.offsets[int(place[-1])] + 20] ^= 0x10
        bucket.objects.delete([name])
        bucket.objects.put_new(name, bytes(data))
    assert world.after("drop").live(lambda life: look(life, Client(life.engine, History())))
    assert costs[0] <= 8, "one block"
    assert bool(costs[0]) == isinstance(place, str), "all else is there twice"


def test_a_restore_of_packed_segments_shows_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    made = SmallBucket()
    shown: list[dict[str, View]] = []

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        made.begin(life)
        await client.create("t", durability="fsync")
        await client.create("u", durability="disk")
        for name in ("t", "u"):
            await fill(client, name, 40, size=300)
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        spans = life.engine.registry.topics["t"].log.stored.all()
        assert sum(isinstance(span.segment, Segment) and bool(span.segment.packed) for span in spans) >= 3
        made.round(life)
        await made.base(life)
        await client.delete("t", match=exactly("a"))
        await life.compactor.checkpoint()
        made.round(life)
        await made.base(life)
        await client.delete("u", match=exactly("b"))
        await fill(client, "t", 2)
        shown.append(await views_of(life.engine))
        made.round(life)

    config = replace(PACKED, hot_retain_segments=1000, rewrite_live_ratio=0.0)
    world = World(config=config)
    assert world.live(script)
    now_ms = world.clock.now_ms()
    fs = restored(made.objects)
    tree = fs.tree()
    packed = [path for path, content in tree.items() if content and content.startswith(PACK_MAGIC)]
    assert len(packed) >= 6
    assert any(path.endswith(".del") for path in tree), "the deletions of the second base"
    assert [one for one in Verification(fs, ROOT).findings() if one.severity == "damage"] == []
    assert _records(recovered(world, fs, now_ms)) == _records(shown[0])

    monkeypatch.setattr(World, "segments", staticmethod(lambda fs: BucketSegments(fs, ROOT, lambda url: made.objects)))
    lazy = lazily_restored(made.objects)
    assert not [path for path, content in lazy.tree().items() if content and content.startswith(PACK_MAGIC)]
    assert _records(recovered(world, lazy, now_ms)) == _records(shown[0])


def _records(views: dict[str, View]) -> dict[str, set[int]]:
    return {name: set(view.records) for name, view in views.items()}
