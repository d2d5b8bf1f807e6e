"""Mending a segment with a copy that is older than its deletions: every record gets its bytes back, and no deleted one
comes back, with damage at any place."""

from __future__ import annotations

import random
from typing import Any, NamedTuple

import pytest
import trio

from tests.engine.life import living, settings
from tests.simulation.disk import SimCrash, SimFs
from tests.simulation.world import all_ends, disk_after
from topics.log.span import DELETED
from topics.storage.segments.index_format import IDX_DELETED, decode_index
from topics.storage.segments.mended_files import (
    CountedSlots,
    LocalFiles,
    NotMendable,
    SegmentCopy,
    counted_slots,
    mended,
    put_mended,
    read_local,
)
from topics.storage.segments.segment_format import READS_AS_DELETED
from topics.storage.segments.segment_reader import SegmentTiers, load_columns, load_tags, scan_segment
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment

N = 40


class Made(NamedTuple):
    """A sealed segment whose records were deleted bit by bit."""

    fs: SimFs
    segment: Segment
    files: LocalFiles
    counted: CountedSlots
    deleted: set[int]
    """The slots that are deleted."""
    copies: list[SegmentCopy]
    """Copies from before the deletions, in between, and from now; with the bitmaps of their time."""


def bitmap(slots: set[int]) -> bytes:
    bits = bytearray(N // 8)
    for slot in slots:
        bits[slot >> 3] |= 1 << (slot & 7)
    return bytes(bits)


@pytest.fixture(scope="module")
def made() -> Made:
    found: list[Made] = []

    async def make() -> None:
        fs = SimFs()
        config = settings(segment_max_events=N, reclaim_ms=10_000_000, rewrite_live_ratio=0.01)
        async with living(config, fs=fs) as life:
            await life.put("t", durability="fsync")
            records: list[dict[str, Any]] = [
                {"data": {"i": i, "x": "x" * (i * 7 % 50)}, "tag": f"t{i % 5}"} for i in range(2 * N)
            ]
            for at in range(0, 2 * N, 10):
                await life.append("t", *records[at : at + 10])
            await life.compactor.checkpoint()
            topic = life.engine.registry.topics["t"]
            store = life.engine.store.tiers.hot
            span = topic.log.stored.at(1)
            assert span is not None
            assert isinstance(span.segment, Segment)
            segment = span.segment
            copies = [copy_of(read_local(store, segment), set())]
            deleted: set[int] = set()
            for tag in ("t1", "t3"):
                await life.delete("t", match=["tag", "Eq", tag])
                await life.compactor.checkpoint()
                deleted |= {i for i in range(N) if f"t{i % 5}" == tag}
                copies.append(copy_of(read_local(store, segment), deleted))
            assert segment.sealed
            assert segment.n == N
            counted = counted_slots(span)
            assert counted == CountedSlots(0, len(deleted), 0, set())
            found.append(Made(fs, segment, read_local(store, segment), counted, deleted, copies))

    trio.run(make)
    return found[0]


def copy_of(files: LocalFiles, deleted: set[int]) -> SegmentCopy:
    assert files.data is not None
    assert files.idx is not None
    assert files.tags is not None
    return SegmentCopy(files.data, files.idx, files.tags, bitmap(deleted))


def damaged(content: bytes | None, rng: random.Random, kind: str) -> bytes | None:
    assert content is not None
    if kind == "missing":
        return None
    if kind == "cut":
        return content[: rng.randrange(len(content))]
    changed = bytearray(content)
    for _ in range({"intact": 0, "flip": 1, "flips": 12}[kind]):
        changed[rng.randrange(len(changed))] ^= rng.randint(1, 255)
    return bytes(changed)


KINDS = ("intact", "flip", "flips", "cut", "missing")


@pytest.mark.parametrize("age", [0, 1, 2])
@pytest.mark.parametrize("seed", range(40))
def test_what_is_mended_is_as_it_was_and_what_was_deleted_stays_deleted(made: Made, age: int, seed: int) -> None:
    rng = random.Random(seed)
    kinds = rng.choice(KINDS), rng.choice(KINDS), rng.choice(KINDS)
    local = LocalFiles(*(damaged(one, rng, kind) for one, kind in zip(made.files, kinds, strict=True)))
    refused = ""
    try:
        found = mended(local, made.copies[age], made.segment, made.counted)
    except NotMendable as error:
        refused = str(error)
    if refused:
        assert "not known" in refused
        assert age < 2, "the copy knows all deletions"
        assert kinds[0] != "intact"
        assert kinds[1] != "intact"
        return
    data = found.data if found.data is not None else local.data
    idx = found.idx if found.idx is not None else local.idx
    tags = found.tags if found.tags is not None else local.tags
    assert found.damaged == 0
    assert data is not None
    assert idx is not None
    assert made.files.data is not None
    assert without_flags(data, made) == without_flags(made.files.data, made)
    changed = changed_flags(local, made)
    assert flags_in(data, made) - changed == made.deleted - changed
    if kinds[1] == "intact":
        assert flags_in(data, made) >= made.deleted
    assert not decode_index(idx).bad
    assert {i for i, flag in enumerate(decode_index(idx).flags) if flag & IDX_DELETED} == flags_in(data, made)
    assert tags == made.files.tags


def places(made: Made) -> list[int]:
    """Where the flags of the slots are."""
    assert made.files.idx is not None
    index = decode_index(made.files.idx)
    return [at + size - 1 for at, size in zip(index.offset, index.frame_len, strict=True)]


def flags_in(data: bytes, made: Made) -> set[int]:
    """The slots that are flagged as deleted in these bytes."""
    return {i for i, at in enumerate(places(made)) if READS_AS_DELETED[data[at]]}


def without_flags(data: bytes, made: Made) -> bytes:
    content = bytearray(data)
    for at in places(made):
        content[at] = 0
    return bytes(content)


def changed_flags(local: LocalFiles, made: Made) -> set[int]:
    """Slots whose flag itself was changed: with a valid frame before it, nothing tells that."""
    data, before = local.data or b"", made.files.data
    assert before is not None
    return {i for i, at in enumerate(places(made)) if at < len(data) and data[at] != before[at]}


def test_an_older_copy_mends_nothing_if_deletions_since_cannot_be_told(made: Made) -> None:
    lost = LocalFiles(None, None, None)
    with pytest.raises(NotMendable, match="which of its records were deleted"):
        mended(lost, made.copies[1], made.segment, made.counted)
    assert mended(lost, made.copies[2], made.segment, made.counted).data == made.files.data


def test_an_index_that_is_older_than_the_deletions_is_not_believed(made: Made) -> None:
    older = made.copies[1]
    with pytest.raises(NotMendable, match="which of its records were deleted"):
        mended(LocalFiles(None, older.idx, older.tags), older, made.segment, made.counted)


def test_a_lost_record_is_not_taken_for_a_deleted_one(made: Made) -> None:
    lost = LocalFiles(None, None, None)
    counted = made.counted._replace(lost=1, deleted=made.counted.deleted - 1)
    with pytest.raises(NotMendable, match="which of its records were deleted"):
        mended(lost, made.copies[2], made.segment, counted)


def test_deletions_that_are_only_in_memory_count_as_known(made: Made) -> None:
    lost = LocalFiles(None, None, None)
    late = made.deleted - {i for i in range(N) if i % 5 == 1}
    found = mended(lost, made.copies[1], made.segment, made.counted._replace(unflagged=late))
    assert found.data is not None
    assert flags_in(found.data, made) == made.deleted - late, "the checkpoint flags them, as it does anyway"


def test_a_frame_that_only_the_local_file_has_stays(made: Made) -> None:
    data = bytearray(made.copies[2].data)
    index = decode_index(made.copies[2].idx)
    data[index.offset[0] + 40] ^= 1
    copy = made.copies[2]._replace(data=bytes(data))
    assert made.files.data is not None
    broken = bytearray(made.files.data)
    broken[index.offset[2] + 40] ^= 1
    found = mended(made.files._replace(data=bytes(broken)), copy, made.segment, made.counted)
    assert (found.data, found.damaged, found.taken) == (made.files.data, 0, index.frame_len[2])


def test_a_copy_with_the_same_damage_mends_nothing(made: Made) -> None:
    data = bytearray(made.copies[2].data)
    data[decode_index(made.copies[2].idx).offset[0] + 40] ^= 1
    with pytest.raises(NotMendable, match="the same damage"):
        mended(
            made.files._replace(data=bytes(data)),
            made.copies[2]._replace(data=bytes(data)),
            made.segment,
            made.counted,
        )


@pytest.mark.parametrize("kind", ["salt", "length", "index"])
def test_a_copy_of_something_else_is_refused(made: Made, kind: str) -> None:
    copy, segment = made.copies[2], made.segment
    if kind == "salt":
        segment = Segment(segment.topic_id, segment.first, n=N, data_bytes=segment.data_bytes, sealed=True, salt=1)
    elif kind == "length":
        copy = copy._replace(data=copy.data + b"\0")
    else:
        copy = copy._replace(idx=copy.idx[:-1] + b"\0" if copy.idx[-1] else copy.idx[:-1] + b"\1")
    with pytest.raises(NotMendable):
        mended(LocalFiles(None, None, None), copy, segment, made.counted)


def test_a_file_of_another_generation_is_left_alone(made: Made) -> None:
    segment = made.segment
    assert segment.salt is not None
    other = Segment(segment.topic_id, segment.first, n=N, data_bytes=segment.data_bytes, sealed=True, salt=1)
    copy = made.copies[2]
    with pytest.raises(NotMendable):
        mended(made.files, copy, other, made.counted)


def test_a_crash_at_any_operation_leaves_a_segment_that_is_damaged_as_before_or_mended(made: Made) -> None:
    """In every state the files fit each other: what is live is read as it was, or found damaged again."""
    broken = made.fs.after_process_kill()
    for kind in ("idx", "tags", "data"):
        path = f"/data/topics/{made.segment.topic_id:016x}/seg-{made.segment.first:020d}.{kind}"
        with broken.open(path) as file:
            file.truncate(file.size() // 2)
            file.fdatasync()
    broken.settle()
    seen = set()
    for point in range(60):
        fs = broken.after_process_kill()
        fs.crash_at = point
        store = DirectorySegmentStore(fs, "/data")
        try:
            put_mended(
                store,
                made.segment,
                mended(read_local(store, made.segment), made.copies[2], made.segment, made.counted),
            )
        except SimCrash:
            for end, seed in all_ends(point, 2):
                seen.add(check(disk_after(fs, end, seed), made))
        else:
            assert check(fs, made)
            break
    else:
        raise AssertionError("it does not end")
    assert seen == {True, False}


def check(fs: SimFs, made: Made) -> bool:
    """Return True if the segment is mended."""
    tiers = SegmentTiers(DirectorySegmentStore(fs, "/data"), None)
    segment = made.segment
    scanned = scan_segment(tiers, segment, segment.first, segment.n)
    found = load_columns(tiers, segment, segment.first, segment.n)
    load_tags(tiers, segment, segment.n)
    for loaded in (scanned.loaded, found):
        bad = {seq - segment.first for lo, hi in loaded.damaged for seq in range(lo, hi + 1)}
        dead = {i for i, state in enumerate(loaded.columns.dead) if state == DELETED}
        assert dead | bad >= made.deleted
        assert dead <= made.deleted
    return not scanned.loaded.damaged
