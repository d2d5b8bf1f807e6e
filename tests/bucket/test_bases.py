"""Bases: what a capture has, what a base uploads, and that nothing half counts (`docs/design/bucket.md` section 4)."""

from __future__ import annotations

import itertools
import posixpath
from array import array
from collections.abc import Callable

import pytest
import trio

from tests.bucket.base_lives import PlainArchive, writer_of
from tests.bucket.check_bucket import Checked, check_bucket
from tests.bucket.simulated_objects import SimFault, SimObjects, random_faults
from tests.everything import slow_after
from tests.simulation.evidence_lives import Auditor
from tests.simulation.model import Client, History
from tests.simulation.segment_lives import (
    SMALL,
    STORED,
    exactly,
    fill,
    fill_all,
    maintenance,
    one_of_each,
    reclaim,
    relocate,
)
from tests.simulation.world import COLD, ROOT, Life, World
from topics.bucket.object_names import number_of
from topics.log.span import DELETED, LIVE, SpanSummary
from topics.storage.files.datadir import DataDir, parse_wal_name
from topics.storage.maintenance.base_capture import BaseCapture
from topics.storage.segments.segment_reader import load_columns
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import decode_part


def live(script: Callable[[Life, Client], object], seed: int = 0) -> World:
    world = World(seed, config=SMALL)

    async def scenario(life: Life) -> None:
        await script(life, Client(life.engine, History()))  # type: ignore[misc]

    assert world.live(scenario)
    return world


async def stored(life: Life, client: Client) -> None:
    """Topics of all classes with sealed, active and cold segments; deletions in them, and records in the log."""
    await one_of_each(client)
    await fill_all(client, 14)
    await life.compactor.checkpoint()
    await relocate(life)
    await client.delete("disk", match=exactly("b"))
    await fill_all(client, 2)


# ----------------------------------------------------------------- the capture


@pytest.mark.parametrize("held_before", [False, True])
def test_a_capture_has_what_the_names_of_a_hold_say(held_before: bool) -> None:
    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        if held_before:
            await life.engine.checkpoint(60_000)
            await fill_all(client, 3)
            await life.compactor.checkpoint()
        capture = await life.compactor.capture(10_000)
        names, _ = await life.engine.checkpoint(60_000)
        life.compactor.release()
        relative = DataDir("")
        expected = set()
        for topic in capture.topics:
            if topic.has_manifest:
                generation = decode_part(topic.part).generation
                expected.add(relative.manifest_path(topic.id, generation))
            for one in topic.segments:
                for kind in ("data", "idx", "tags") if one.sealed else ("data", "idx"):
                    path = relative.segment_path(topic.id, one.segment.first, kind)
                    expected.add(f"cold:{path}" if one.tier == "cold" else path)
        found = {name for name in names if "topics/" in name and not name.endswith((".idx.cold", ".tags.cold"))}
        assert expected == found
        assert any(name.startswith("cold:") for name in expected)
        wal = {posixpath.basename(name) for name in names if name.endswith(".log")}
        needed = {ordinal for _, ordinal in capture.wal_files}
        # The second answer has cut the log once more, and names files that only its older snapshot needs.
        assert needed <= {parse_wal_name(name) for name in wal}
        for shard, start in capture.snapshot["positions"].items():
            present = {f.ordinal for f in life.store.files.of_shard(shard)}
            assert {o for o in present if start[0] <= o < capture.cut[shard].ordinal} <= needed
        by_id = life.engine.registry.by_id
        assert {t.id: t.part for t in capture.topics} == {
            i: t.on_disk.newest_part for i, t in by_id.items() if t.on_disk.newest_part is not None
        }
        assert capture.snapshot["next_topic_id"] == life.engine.registry.next_topic_id

    live(script)


def test_files_of_a_capture_stay_as_they_are_until_it_is_released_and_change_afterwards() -> None:
    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        before = life.fs.tree()
        capture = await life.compactor.capture(10_000)
        paths = [
            DataDir(COLD if one.tier == "cold" else ROOT).segment_path(topic.id, one.segment.first, "data")
            for topic in capture.topics
            for one in topic.segments
        ]
        before = {path: life.fs.read(path) for path in paths}
        for turn in range(3):
            await fill_all(client, 2)
            await client.delete("disk", before=4 + turn)
            await client.delete("fsync", match=exactly("a"))
            await life.compactor.checkpoint()
            with trio.move_on_after(1):
                await reclaim(life)
            await life.compactor.prolong(capture, 10_000)
        assert {path: life.fs.read(path) for path in paths} == before
        life.compactor.release()
        assert not life.engine.compactor._file_holds.held
        with pytest.raises(OSError, match="the hold was over"):
            await life.compactor.prolong(capture, 10_000)
        await maintenance(life)
        tree = life.fs.tree()
        assert {path: tree.get(path) for path in paths} != before

    live(script)


def test_a_capture_ends_no_hold_of_an_operator() -> None:
    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        _, taken = await life.engine.checkpoint(60_000)
        await life.compactor.capture(10_000)
        life.compactor.release()
        assert life.compactor._file_holds.held
        assert (await life.engine.checkpoint(0))[1] == taken

    live(script)


# ----------------------------------------------------------------- what a base has


def deleted_now(life: Life) -> dict[tuple[int, int], set[int]]:
    """By topic and segment: the seqs that are deleted as the parts on disk and the files say."""
    found: dict[tuple[int, int], set[int]] = {}
    for topic in life.engine.registry.by_id.values():
        if topic.on_disk.newest_part is None:
            continue
        part = decode_part(topic.on_disk.newest_part)
        for wire, dumped in zip(part.segments, part.log["spans"], strict=False):
            segment, summary = Segment.from_wire(topic.id, wire), SpanSummary(*dumped[1:-1])
            if segment.tier == "gone":
                continue
            columns = load_columns(life.store.tiers, segment, summary.first, summary.n).columns
            unflagged = set(array("Q", dumped[-1]))
            states = list(enumerate(columns.dead, summary.first))
            dead = {seq for seq, state in states if state == DELETED} | unflagged
            alive = {seq for seq, state in states if state == LIVE and seq >= summary.first + summary.start}
            assert len(alive - unflagged) == summary.live
            found[topic.id, segment.first] = {seq for seq in dead if seq >= summary.first + summary.start}
    return {key: seqs for key, seqs in found.items() if seqs}


def deleted_in(checked: Checked) -> dict[tuple[int, int], set[int]]:
    """The same, as the bitmaps of a base say it."""
    found: dict[tuple[int, int], set[int]] = {}
    for topic in checked.topics.values():
        for entry in topic.segments:
            if entry.deleted is None:
                continue
            part = decode_part(checked.part(topic.id))
            starts = {s.first + s.n: s.first + s.start for d in part.log["spans"] for s in [SpanSummary(*d[1:-1])]}
            [end] = [wire[0] + wire[1] for wire in part.segments if wire[0] == entry.first]
            bits = checked.blobs[entry.deleted]
            seqs = {entry.first + i for i in range(8 * len(bits)) if bits[i // 8] >> i % 8 & 1}
            found[topic.id, entry.first] = {seq for seq in seqs if seq >= starts[end]}
    return {key: seqs for key, seqs in found.items() if seqs}


def test_bitmaps_are_the_deleted_slots_whatever_their_flags_say() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await stored(life, client)
        for turn in range(6):
            if turn == 1:
                await life.engine.checkpoint(5_000)  # flags are withheld
            for name in STORED:
                await client.delete(name, match=exactly(("a", "ab", "b")[turn % 3]))
            await fill_all(client, 2)
            await client.delete("fsync", before=2 * turn)
            if turn % 2:
                await life.compactor.checkpoint()
            if turn == 3:
                await trio.sleep(6)
                await maintenance(life)
            await writer.take()
            checked = check_bucket(objects)
            assert deleted_in(checked) == deleted_now(life)
            assert deleted_in(checked)

    live(script)


def test_the_pieces_and_files_are_those_of_the_disk_but_for_flags() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await stored(life, client)
        for _ in range(20):  # more than an active segment may have pieces
            await fill(client, "fsync", 1, each=1, size=1)
            await writer.take()
            checked = check_bucket(objects)
            for topic in checked.topics.values():
                wires = {wire[0]: wire for wire in decode_part(checked.part(topic.id)).segments}
                for entry in topic.segments:
                    assert len(entry.pieces) <= 16
                    size = entry.data.size if entry.data else sum(piece.size for piece in entry.pieces)
                    assert size == wires[entry.first][2]
                    assert entry.salt == wires[entry.first][7]
                    if entry.pieces:
                        data = b"".join(checked.blobs[piece] for piece in entry.pieces)
                        path = DataDir(ROOT).segment_path(topic.id, entry.first, "data")
                        assert data == life.fs.read(path)[: len(data)]

    live(script)


def test_a_base_uploads_only_what_has_changed_since_the_one_before() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        archive = PlainArchive(objects)
        writer = writer_of(life, archive)
        await writer.load()
        await stored(life, client)
        await writer.take()
        before, count = writer.puts.bytes, writer.puts.objects
        await writer.take()
        assert writer.puts.objects - count <= 2, "the base, and a page of parts that only the checkpoint has changed"
        await fill(client, "disk", 1, each=1, size=1)
        await life.compactor.checkpoint()
        before = writer.puts.bytes
        await writer.take()
        assert writer.puts.bytes - before < 6_000
        again = writer_of(life, PlainArchive(objects, epoch=2, number=archive.number))
        await again.load()
        assert again.ready.is_set()
        await again.take()
        assert again.puts.objects <= 2
        check_bucket(objects)

    live(script)


@pytest.mark.slow
def test_with_5000_topics_of_which_3_have_changed_three_pages_are_uploaded() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        for i in range(5000):
            await client.create(f"t{i}", durability="fsync")
        await writer.take()
        assert len(check_bucket(objects).topics) == 5000
        first = writer.puts.bytes
        for i in (3, 2500, 4990):
            await client.configure(f"t{i}", cap_records=9)
        await writer.take()
        assert writer.puts.bytes - first < first / 3
        pages = {ref.pack: number for number, ref in check_bucket(objects).base.body.pages}
        newest = max(ref.pack for _, ref in check_bucket(objects).base.body.pages)
        assert pages
        assert sum(ref.pack == newest for _, ref in check_bucket(objects).base.body.pages) == 3

    live(script)


def test_sources_of_copies_in_deleted_topics_are_in_the_base() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await client.create("source", durability="fsync")
        await fill(client, "source", 6)
        await life.compactor.checkpoint()
        source = life.engine.registry.topics["source"].id
        files = life.store.files
        place = files.file_of(("segment", source, 1))
        life.engine.registry.copied_files = lambda: {place}  # type: ignore[method-assign]
        await client.delete_topic("source")
        await writer.take()
        entry = check_bucket(objects).topics[source]
        assert entry.part is None
        assert [one.first for one in entry.segments] == [1]
        count = writer.puts.objects
        await writer.take()
        assert check_bucket(objects).topics[source] == entry
        assert writer.puts.objects - count <= 2

    live(script)


def test_another_directory_uses_nothing_of_the_base_before() -> None:
    objects = SimObjects()

    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        writer = writer_of(life, PlainArchive(objects, epoch=1 + len(objects.objects)))
        await writer.load()
        assert not writer.ready.is_set()
        await writer.take()
        check_bucket(objects)
        objects.delete([name for name in objects.objects if number_of(name) == 1])

    live(script)
    live(script, seed=1)


# ----------------------------------------------------------------- failures


FAULTS = (SimFault.AFTER, SimFault.BEFORE, SimFault.LATE, SimFault.WRONG)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_put_that_fails_at_any_step_leaves_the_base_before_complete(fault: SimFault) -> None:
    """Each put of the second base fails once; then it is made again."""

    def run(at: int) -> bool:
        failed = False
        objects = SimObjects()

        async def script(life: Life, client: Client) -> None:
            nonlocal failed
            writer = writer_of(life, PlainArchive(objects))
            await writer.load()
            await stored(life, client)
            assert await writer.try_take()
            first = check_bucket(objects)
            await fill_all(client, 5)
            await client.delete("disk", match=exactly("a"))
            puts = itertools.count()

            def faults(op: str, name: str) -> SimFault | None:
                nonlocal failed
                if op == "put_new" and next(puts) == at:
                    failed = True
                    return fault
                return None

            objects.faults = faults
            done = await writer.try_take()
            check_bucket(objects, first.base.head.number)
            check_bucket(objects)
            for name in STORED:
                await client.delete(name, match=exactly("b"))
            await life.compactor.checkpoint()
            assert done or writer.failures == 1
            for _ in range(3):
                if await writer.try_take():
                    break
            assert not writer.failures, writer.problem
            checked = check_bucket(objects)
            assert checked.base.head.number > first.base.head.number
            assert deleted_in(checked) == deleted_now(life)

        live(script)
        return failed

    at = 0
    while run(at):
        at += 1
    assert at > 4


@pytest.mark.parametrize("seed", slow_after(1, range(4)))
def test_bases_are_made_through_random_faults(seed: int) -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects(seed)
        archive = PlainArchive(objects)
        writer = writer_of(life, archive)
        await writer.load()
        await stored(life, client)
        for turn in range(5):
            objects.faults = random_faults(seed * 100 + turn, 0.2, FAULTS)
            made = writer.made
            for _ in range(200):
                if await writer.try_take() and writer.made > made:
                    break
                if turn % 2:
                    await client.delete("disk", before=turn + 1)
                    await maintenance(life)
            objects.faults = lambda op, name: None
            checked = check_bucket(objects)
            assert writer.made > made
            assert checked.base.head.number == archive.bases[-1]
            await fill_all(client, 2)
            await client.delete("fsync", match=exactly("ab"))

    live(script, seed)


def test_a_damaged_local_segment_makes_no_base_that_could_not_be_restored() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await one_of_each(client)
        await fill_all(client, 6)
        await life.compactor.checkpoint()
        path = next(p for p in life.fs.tree() if p.startswith(f"{ROOT}/topics/") and p.endswith(".data"))
        life.fs.open(path).truncate(40)
        assert not await writer.try_take()
        assert not [name for name in objects.objects if name.startswith("bases/")]
        assert not life.compactor._file_holds.held

    live(script)


# ----------------------------------------------------------------- the task


def test_the_task_makes_one_base_at_once_and_then_one_for_each_interval_with_a_change() -> None:
    async def script(life: Life, client: Client) -> None:
        objects = SimObjects()
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await stored(life, client)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(writer.run)
            with trio.fail_after(60):
                await writer.ready.wait()
            assert writer.made == 1
            await trio.sleep(1300)
            made = writer.made
            await trio.sleep(6000)
            assert writer.made == made, "nothing has changed"
            await fill_all(client, 1)
            await trio.sleep(700)
            assert writer.made == made + 1
            await fill_all(client, 1)
            writer.ask()
            await trio.sleep(1)
            assert writer.made == made + 2
            nursery.cancel_scope.cancel()
        check_bucket(objects)

    live(script)


def test_a_base_that_was_asked_for_and_fails_is_tried_again_after_a_wait() -> None:
    """Each attempt takes a checkpoint, and calls the store."""

    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        writer = writer_of(life, PlainArchive(SimObjects()))

        async def fails(hold_ms: int) -> BaseCapture:
            assert writer.failed < 10, "it does not wait"
            await trio.lowlevel.checkpoint()
            raise OSError("no room")

        life.compactor.capture = fails  # type: ignore[method-assign]
        async with trio.open_nursery() as nursery:
            writer.ask()
            nursery.start_soon(writer.run)
            await trio.sleep(60)
            assert writer.failed >= 2
            nursery.cancel_scope.cancel()

    live(script)


def test_what_has_changed_before_the_capture_and_is_stored_after_it_makes_a_base_due() -> None:
    async def script(life: Life, client: Client) -> None:
        await stored(life, client)
        writer = writer_of(life, PlainArchive(SimObjects()))
        await writer.load()
        capture = life.compactor.capture

        async def late(hold_ms: int) -> BaseCapture:
            found = await capture(hold_ms)
            life.engine.registry.topics["disk"].mark_changed()
            return found

        life.compactor.capture = late  # type: ignore[method-assign]
        await writer.take()
        await life.compactor.checkpoint()
        assert writer._is_due()
        life.compactor.capture = capture  # type: ignore[method-assign]
        await writer.take()
        await life.compactor.checkpoint()
        assert not writer._is_due()

    live(script)


def test_a_damaged_file_of_leaves_keeps_no_base_from_the_bucket() -> None:
    """A base that can never be made would keep every other topic from a newer one. The other leaves are in it."""
    world = World(config=SMALL)
    objects = SimObjects()

    async def scenario(life: Life) -> None:
        auditor = Auditor()
        await auditor.create(life, "t")
        for _ in range(3):
            await auditor.append(life, "t", 2)
            await life.compactor.checkpoint()
        damaged = min(path for path in life.fs.tree() if path.endswith(".mrk"))
        life.fs.flip_bit(damaged, 30, 1)
        writer = writer_of(life, PlainArchive(objects))
        await writer.load()
        await writer.take()
        (topic,) = check_bucket(objects).topics.values()
        assert topic.leaves is not None
        assert [(file.first_seq, file.leaves) for file in topic.leaves.files] == [(3, 2), (5, 2)]

    assert world.live(scenario)
    assert "leaves_damaged" in {event["event"] for event in world.events}
