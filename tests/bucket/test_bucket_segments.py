"""Segments in a bucket: what is read from there, what is deleted in them, and that no crash breaks a promise
(`docs/design/bucket.md` section 8)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.bucket.base_lives import PlainArchive, writer_of
from tests.bucket.check_bucket import check_bucket
from tests.bucket.cold_lives import IN_BUCKET, URL, ColdBucket
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.model import Client, History, view_of
from tests.simulation.segment_lives import (
    Script,
    SegmentSweep,
    check_files,
    exactly,
    fill,
    looked_at,
    maintenance,
    see,
    unexpected,
)
from tests.simulation.test_segment_crashes import SCENARIOS
from tests.simulation.world import ROOT, Life, World, all_ends, some_ends
from topics.bucket.bases.base_content import SealedUploads
from topics.bucket.bases.own_segments import OwnSegments
from topics.bucket.bases.packs import PackNumbers
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.object_names import parse_segment
from topics.errors import ApiError
from topics.model import Performance, ReadRequest
from topics.storage.files.datadir import parse_segment_file, segment_name
from topics.storage.offline.verify import Verification
from topics.storage.segments.segment_pointer import PointedFile, SegmentPointer, decode_pointer
from topics.storage.segments.segment_reader import scan_segment
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> ColdBucket:
    """A bucket that is the cold store of every machine in the test."""
    made = ColdBucket()
    monkeypatch.setattr(World, "segments", staticmethod(made.of))
    return made


def live(world: World, script: Script, *, end: Any = "stop") -> None:
    async def scenario(life: Life) -> None:
        await script(life, Client(life.engine, History()))

    assert world.live(scenario, end=end)
    unexpected(world)


def cold(life: Life, name: str = "t") -> list[Segment]:
    """The segments of a topic that are cold."""
    topic = life.engine.registry.topics[name]
    return [span.segment for span in topic.log.stored.all() if getattr(span.segment, "tier", "") == "cold"]  # type: ignore[misc]


async def seqs_of(life: Life, name: str = "t") -> list[int]:
    """The seqs of the live records, all of which are read."""
    views = await looked_at(life)
    return sorted(views[name].records)


async def with_cold(life: Life, client: Client, name: str = "t") -> None:
    """A topic of which all but two segments are in the bucket."""
    await client.create(name, durability="fsync")
    await fill(client, name, 20)
    await life.compactor.checkpoint()
    await life.relocator.pass_over()
    await life.compactor.checkpoint()
    assert len(cold(life, name)) >= 3


def hot_names(life: Life) -> list[str]:
    """The names of the files of segments in the data directory."""
    found = (path.rpartition("/")[2] for path in life.fs.tree() if path.startswith(f"{ROOT}/topics/"))
    return [name for name in found if parse_segment_file(name)]


# ----------------------------------------------------------------- moving


def test_a_segment_that_a_base_has_is_moved_by_a_pointer_and_read_from_its_object(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        before = await seqs_of(life)
        first = cold(life)[0].first
        names = hot_names(life)
        assert {segment_name(first, kind) for kind in ("object", "idx.cold", "tags.cold")} <= set(names)
        assert segment_name(first, "data") not in names
        bucket.objects.calls.clear()
        assert await seqs_of(life) == before
        assert {op for op, _ in bucket.objects.calls} <= {"get_range"}
        check_files(life)

    world = World(config=IN_BUCKET)
    live(world, script)

    async def again(life: Life, client: Client) -> None:
        assert len(await seqs_of(life)) == 40

    bucket.objects.calls.clear()
    live(world.after("drop"), again)


def test_nothing_is_moved_before_a_base_has_it(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("t", durability="fsync")
        await fill(client, "t", 20)
        await life.compactor.checkpoint()
        bucket.has_nothing = True
        assert await life.relocator.pass_over() == 0
        bucket.has_nothing = False
        assert await life.relocator.pass_over() > 0

    live(World(config=IN_BUCKET), script)


@pytest.mark.parametrize("defect", ["missing", "cut short", "longer", "away"])
def test_a_segment_that_the_bucket_has_lost_since_the_base_stays_on_the_disk(bucket: ColdBucket, defect: str) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("t", durability="fsync")
        await fill(client, "t", 20)
        await life.compactor.checkpoint()
        put_new = bucket.objects.put_new

        def damaged(name: str, data: bytes) -> str:
            if not name.endswith(".data"):
                return put_new(name, data)
            if defect == "missing":
                return ""
            return put_new(name, {"cut short": data[:-1], "longer": data + b"x"}.get(defect, data))

        bucket.objects.put_new = damaged  # type: ignore[method-assign]
        if defect == "away":
            bucket.objects.faults = lambda op, name: SimFault.BEFORE if op == "get_range" else None
        with pytest.raises(OSError, match=r"missing|does not have|fault"):
            await life.relocator.pass_over()
        assert not cold(life)
        bucket.objects.faults = lambda op, name: None
        assert len(await seqs_of(life)) == 40
        check_files(life)

    world = World(config=IN_BUCKET)
    live(world, script)

    async def again(life: Life, client: Client) -> None:
        assert len(await seqs_of(life)) == 40

    live(world.after("drop"), again)


def test_a_pointer_that_is_replaced_while_it_is_read_is_not_remembered() -> None:
    segments = BucketSegments(SimFs(), ROOT, lambda url: SimObjects())
    old, new = (SegmentPointer("b", URL, 1, salt, PointedFile(100, bytes(32))) for salt in (1, 2))
    segments.point(7, 1, old)
    read_range = segments._hot.read_range

    def replaced(topic_id: int, name: str, offset: int, length: int) -> bytes:
        found = read_range(topic_id, name, offset, length)
        segments.point(7, 1, new)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DirectorySegmentStore, "read_range", lambda _, *about: replaced(*about))
        assert segments.pointer(7, 1) == old
    assert segments.pointer(7, 1) == new
    segments.forget(7, 1)
    with pytest.raises(FileNotFoundError):
        segments.pointer(7, 1)


def test_the_list_of_a_hold_has_the_pointers(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        names, _ = await life.engine.checkpoint(1000)
        assert not [name for name in names if name.startswith("cold:")]
        pointers = {name.rpartition("/")[2] for name in names if name.endswith(".object")}
        assert pointers == {segment_name(segment.first, "object") for segment in cold(life)}
        assert all(life.fs.exists(f"{ROOT}/{name}") for name in names)

    live(World(config=IN_BUCKET), script)


def test_verify_checks_pointers_and_says_where_the_segments_are(bucket: ColdBucket) -> None:
    world = World(config=IN_BUCKET)
    firsts: list[int] = []

    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        firsts.extend(segment.first for segment in cold(life))

    live(world, script)

    def problems() -> list[tuple[str, str]]:
        found = Verification(world.fs, ROOT).findings()
        return [(one.severity, one.problem) for one in found if "/topics/" in one.path]

    assert [severity for severity, _ in problems()] == ["note"]
    assert f"{len(firsts)} segments are in {URL}" in problems()[0][1]
    path = f"{ROOT}/topics/{1:016x}/{segment_name(firsts[0], 'object')}"
    world.fs.flip_bit(path, 20, 1)
    assert any(severity == "damage" and "a read makes it anew" in problem for severity, problem in problems())
    world.fs.unlink(path)
    assert any(severity == "damage" and "in the cold directory" in problem for severity, problem in problems())


@pytest.mark.parametrize("damage", ["flip", "cut", "unlink"])
def test_a_pointer_that_is_damaged_or_missing_is_made_anew_when_it_is_needed(bucket: ColdBucket, damage: str) -> None:
    world = World(config=IN_BUCKET)

    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        segment = cold(life)[0]
        path = f"{ROOT}/topics/{segment.topic_id:016x}/{segment_name(segment.first, 'object')}"
        before = life.fs.read(path)
        if damage == "flip":
            life.fs.flip_bit(path, 20, 1)
        elif damage == "cut":
            with life.fs.open(path) as file:
                file.truncate(7)
        else:
            life.fs.unlink(path)
        store = bucket.of(life.fs)
        asked: list[tuple[int, int]] = []
        name = segment_name(segment.first, "data")

        def remade(topic_id: int, first: int) -> SegmentPointer | None:
            asked.append((topic_id, first))
            return decode_pointer(before) if len(asked) > 1 else None

        store.remake = remade
        for _ in range(2):  # nobody is asked again at once
            with pytest.raises(OSError, match=r"no file|damaged"):
                store.read_range(segment.topic_id, name, 0, 10)
        assert len(asked) == 1
        store._not_remade.clear()
        assert len(store.read_range(segment.topic_id, name, 0, 10)) == 10
        assert (life.fs.read(path), store.remade, asked) == (before, 1, [(segment.topic_id, segment.first)] * 2)
        assert len(store.read_range(segment.topic_id, name, 10, 10)) == 10
        assert len(asked) == 2

    live(world, script)


def test_a_pointer_whose_segment_goes_meanwhile_is_not_made_anew(bucket: ColdBucket) -> None:
    world = World(config=IN_BUCKET)

    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        segment = cold(life)[0]
        path = f"{ROOT}/topics/{segment.topic_id:016x}/{segment_name(segment.first, 'object')}"
        pointer = decode_pointer(life.fs.read(path))
        life.fs.flip_bit(path, 20, 1)
        store = bucket.of(life.fs)

        def remade(topic_id: int, first: int) -> SegmentPointer | None:
            store.forget(topic_id, first)
            return pointer

        store.remake = remade
        with pytest.raises(FileNotFoundError):
            store.read_range(segment.topic_id, segment_name(segment.first, "data"), 0, 10)
        assert not life.fs.exists(path)

    live(world, script)


# ----------------------------------------------------------------- deletions


@pytest.mark.parametrize("moment", ["before the upload", "before the move", "after the move"])
@pytest.mark.parametrize("loses_index", [False, True])
def test_a_deletion_in_a_segment_in_the_bucket_stays(bucket: ColdBucket, moment: str, loses_index: bool) -> None:
    kept: list[int] = []

    async def script(life: Life, client: Client) -> None:
        await client.create("t", durability="fsync")
        await fill(client, "t", 20)
        await life.compactor.checkpoint()
        if moment == "before the move":  # the base has the records
            topic = life.engine.registry.topics["t"]
            for span in topic.log.stored.all():
                assert isinstance(span.segment, Segment)
                assert life.store.tiers.objects is not None
                life.store.tiers.objects.find(topic.id, span.segment.first, span.segment.salt or 0)
        if moment != "after the move":
            await client.delete("t", match=exactly("b"))
            await life.compactor.checkpoint()
        await life.relocator.pass_over()
        if moment == "after the move":
            await client.delete("t", match=exactly("b"))
        await life.compactor.checkpoint()
        assert len(cold(life)) >= 3
        kept.extend(await seqs_of(life))
        assert 0 < len(kept) < 40

    world = World(config=replace(IN_BUCKET, rewrite_live_ratio=0.1))
    live(world, script)
    world = world.after("drop")
    if loses_index:
        for path in [path for path in world.fs.tree() if path.endswith(".cold")]:
            world.fs.unlink(path)
        # Of the objects only `.data` tells.
        for name in [name for name in bucket.objects.objects if not name.endswith(".data")]:
            bucket.objects.delete([name])

    async def again(life: Life, client: Client) -> None:
        assert await seqs_of(life) == kept
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert await seqs_of(life) == kept

    if not loses_index:
        live(world, again)
        world = world.after("kill")
    world.settings = replace(IN_BUCKET, rewrite_live_ratio=0.9)

    async def rewritten(life: Life, client: Client) -> None:
        before = {segment.salt for segment in cold(life)}
        await client.append("t", 1)  # topics of which nothing changes are not looked at
        kept.append(41)
        for _ in range(3):
            await maintenance(life)
        assert await seqs_of(life) == kept
        assert not before & {segment.salt for segment in cold(life)}
        check_files(life)

    if not loses_index:
        live(world, rewritten)

        async def last(life: Life, client: Client) -> None:
            assert await seqs_of(life) == kept

        live(world.after("drop"), last)
    else:
        assert sorted(see(world)["t"].records) == kept


def test_a_segment_in_which_everything_is_deleted_goes_without_a_read_of_the_bucket(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("t", durability="fsync")
        await fill(client, "t", 4)
        for _ in range(8):
            await client.append("t", 2, tag="doomed")
        await fill(client, "t", 10)
        await life.compactor.checkpoint()
        await life.relocator.pass_over()
        segment = cold(life)[1]
        gone = range(segment.first, segment.end)
        await client.delete("t", match=exactly("doomed"))
        await life.compactor.checkpoint()
        bucket.objects.calls.clear()
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        assert bucket.objects.calls == []
        assert segment_name(segment.first, "object") not in hot_names(life)
        assert not set(gone) & set(await seqs_of(life))
        check_files(life)

    live(World(config=IN_BUCKET), script)


# ----------------------------------------------------------------- bases


def segment_puts(objects: SimObjects) -> list[str]:
    """The objects of segments that were put since the calls were forgotten."""
    return [name for op, name in objects.calls if op == "put_new" and name.startswith("segments/")]


@pytest.mark.parametrize("knows", [True, False])
def test_a_base_names_the_objects_that_cold_segments_point_to(bucket: ColdBucket, knows: bool) -> None:
    """Also if it does not know the base before: else those objects would go by age, and the segments with them."""

    async def script(life: Life, client: Client) -> None:
        await client.create("t", durability="fsync")
        await fill(client, "t", 20)
        await life.compactor.checkpoint()
        archive = PlainArchive(bucket.objects)
        writer = writer_of(life, archive)
        segments = bucket.made[-1]
        segments.own = OwnSegments(archive, writer, URL).bucket
        assert await life.relocator.pass_over() == 0  # no base has anything
        await writer.load()
        await writer.take()
        await client.delete("t", match=exactly("b"))
        assert await life.relocator.pass_over() > 2
        await life.compactor.checkpoint()
        kept = await seqs_of(life)
        if not knows:
            archive = PlainArchive(bucket.objects, epoch=2, number=archive.number)
            writer = writer_of(life, archive)
            segments.own = OwnSegments(archive, writer, URL).bucket
            writer._epoch = 2  # so that it does not look for a base before
            writer._numbers, writer._sealed = PackNumbers(2), SealedUploads(2)
        bucket.objects.calls.clear()
        await writer.take()
        checked = check_bucket(bucket.objects)
        topic = life.engine.registry.topics["t"]
        assert life.store.tiers.objects is not None
        pointers = {one.first: life.store.tiers.objects.pointer(topic.id, one.first) for one in cold(life)}
        entries = {entry.first: entry for entry in checked.topics[topic.id].segments}
        for first, pointer in pointers.items():
            data = entries[first].data
            assert data is not None
            assert (entries[first].epoch, entries[first].salt, data.hash) == (1, pointer.salt, pointer.data.hash)
        put = {parse_segment(name)[0].first for name in segment_puts(bucket.objects)}  # type: ignore[index]
        assert not put & pointers.keys()
        assert await seqs_of(life) == kept

    live(World(config=replace(IN_BUCKET, rewrite_live_ratio=0.1)), script)


# ----------------------------------------------------------------- a store that fails


@pytest.mark.parametrize("fault", [SimFault.BEFORE, SimFault.DENIED, SimFault.HANG])
def test_a_bucket_that_does_not_answer_is_felt_by_cold_reads_alone(bucket: ColdBucket, fault: SimFault) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        bucket.objects.faults = lambda op, name: fault
        with pytest.raises(ApiError) as error:
            await view_of(life.engine, "t")
        assert error.value.code == "not_ready"
        await client.append("t", 3)
        await client.delete("t", match=exactly("a"))
        await life.compactor.checkpoint()
        await life.reclaimer.hot_pass()
        await life.compactor.checkpoint()
        bucket.objects.faults = lambda op, name: None

    live(World(config=replace(IN_BUCKET, cold_timeout_ms=100)), script, end="kill")


def test_an_object_that_is_not_what_the_pointer_says_is_not_taken_home(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        topic, segment = life.engine.registry.topics["t"], cold(life)[0]
        assert life.store.tiers.objects is not None
        pointer = life.store.tiers.objects.pointer(topic.id, segment.first)
        name = next(name for name in bucket.objects.objects if f"{pointer.salt:016x}.data" in name)
        whole = bucket.objects.objects[name]
        bucket.objects.delete([name])
        bucket.objects.put_new(name, whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(OSError, match="hash"):
            await life.engine.home_moves.bring(topic, segment)
        assert segment.tier == "cold"
        bucket.objects.delete([name])
        bucket.objects.put_new(name, whole)
        assert await life.engine.home_moves.bring(topic, segment)
        assert not [one for one in cold(life) if one is segment]
        assert len(await seqs_of(life)) == 40

    live(World(config=IN_BUCKET), script)


# ----------------------------------------------------------------- reading ahead


async def read_one(life: Life, after: int) -> list[int]:
    """The seqs of the first record after `after`, as a reader gets it who has nothing in memory but what was read
    ahead."""
    life.engine.registry.topics["t"].blocks.clear()
    request = ReadRequest(from_seq=after, limit=1)
    found = await life.engine.reads.read("t", request, Performance())
    return [record["$seq"] for record in msgspec.json.decode(b"[%b]" % found.records)]


def test_who_reads_on_gets_what_was_read_ahead_without_what_was_deleted_since(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        segment = cold(life)[0]
        assert await read_one(life, segment.first - 1) == [segment.first]
        before = set(await seqs_of(life))
        assert await read_one(life, segment.first - 1) == [segment.first]
        await client.delete("t", match=exactly("b"))
        log = life.engine.registry.topics["t"].log
        left = [seq for seq in range(segment.first, segment.end) if log.is_live(seq)]
        assert 2 < len(left) < segment.n <= len(before)
        bucket.objects.calls.clear()
        after = left[0]
        for seq in left[1:]:
            assert await read_one(life, after) == [seq]
            after = seq
        assert bucket.objects.calls == []

    live(World(config=replace(IN_BUCKET, rewrite_live_ratio=0.1)), script)


def test_a_damaged_record_that_was_read_ahead_is_asked_for_again(bucket: ColdBucket) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        segment = cold(life)[0]
        name = next(name for name in bucket.objects.objects if f"{segment.salt:016x}.data" in name)
        whole = bucket.objects.objects[name]
        last = life.engine.registry.topics["t"].log.stored.at(segment.end - 1)
        assert last is not None
        at = last.offset[-1] + 20
        bucket.objects.delete([name])
        bucket.objects.put_new(name, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert await read_one(life, segment.first - 1) == [segment.first]  # and all others, changed on the way
        bucket.objects.delete([name])
        bucket.objects.put_new(name, whole)
        assert await read_one(life, segment.end - 2) == [segment.end - 1]
        assert len(await seqs_of(life)) == 40

    live(World(config=IN_BUCKET), script)


@pytest.mark.parametrize("work", ["scan", "home"])
def test_what_looks_at_all_bytes_of_a_segment_uses_none_that_were_read_before(bucket: ColdBucket, work: str) -> None:
    async def script(life: Life, client: Client) -> None:
        await with_cold(life, client)
        topic, segment = life.engine.registry.topics["t"], cold(life)[0]
        assert await read_one(life, segment.first - 1) == [segment.first]
        windows = bucket.made[-1].windows
        assert windows.bytes > 0
        if work == "scan":
            assert not scan_segment(life.store.tiers, segment, segment.first, segment.n).loaded.damaged
        else:
            assert await life.engine.home_moves.bring(topic, segment)
        assert windows.bytes == 0

    live(World(config=IN_BUCKET), script)


# ----------------------------------------------------------------- crashes


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_no_work_on_segments_in_a_bucket_breaks_a_promise_at_any_operation(bucket: ColdBucket, name: str) -> None:
    script, config = SCENARIOS[name]
    sweep = SegmentSweep(replace(config, cold_dir=None))
    sweep.live(script, stride=1 if EVERYTHING else 97)
    sweep.judge_all(lambda point: all_ends(point, 1) if EVERYTHING else some_ends(point, 2))
    if name in ("rewriting", "moving"):
        assert any(segments.reads for segments in bucket.made)
