"""The SHA-256 of sealed segments: it finds what checksums do not, in files that are packed or not, and says nothing
about what the engine does with segments."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache

import pytest

from tests.simulation.disk import SimFs
from tests.simulation.world import Life, World, quiet
from tests.storage.data_file import rows_of
from tests.storage.made import COLD, CONFIG, ROOT, Maker, made
from topics.storage.files.datadir import DataDir
from topics.storage.files.file_header import FILE_HEADER_BYTES, decode_file_header
from topics.storage.files.fs import write_all
from topics.storage.offline.findings import Finding
from topics.storage.offline.verify import Verification
from topics.storage.segments.packed_format import PACK_HEADER_BYTES, decode_pack_header, packed
from topics.storage.segments.packed_reads import unpacked
from topics.storage.segments.segment_format import HEADER_BYTES, TRAILER_BYTES, digests
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import (
    TopicPart,
    decode_manifest,
    decode_part,
    decode_snapshot,
    encode_manifest,
    encode_part,
    encode_snapshot,
)

DIRS = DataDir(ROOT)
LARGER = replace(CONFIG, segment_max_events=400, segment_max_bytes=64 << 10, wal_file_bytes=1 << 20)
"""Segments that are worth packing."""


@cache
def _plain() -> SimFs:
    return made(7).fs


@cache
def _packed() -> SimFs:
    """Segments that were packed after they were sealed, or at once when they were rewritten; with deletions behind."""
    world = World(7, config=replace(LARGER, segment_compression="zstd"))

    async def life(one: Life) -> None:
        make = Maker(one, 7)
        await make.put("tagged")
        await make.append("tagged", 1300, ["red", "green", "blue"], size=100)
        await make.checkpoint()
        await one.reclaimer.pass_over()
        await make.delete("tagged", match="red", before_seq=300)
        await make.checkpoint()
        await make.delete("tagged", match="red")
        await make.delete("tagged", match="green", before_seq=800)
        await make.checkpoint()
        await one.reclaimer.pass_over()
        await make.delete("tagged", match="blue", before_seq=60)
        await make.checkpoint()

    world.live(life)
    return world.fs


def plain() -> SimFs:
    return _plain().after_process_kill()


def verify(fs: SimFs) -> list[Finding]:
    with quiet():
        return list(Verification(fs, ROOT, COLD).findings())


def put(fs: SimFs, path: str, content: bytes) -> None:
    handle = fs.open(path, create=True)
    handle.truncate(0)
    write_all(handle, content, 0)
    handle.close()


def part_of(fs: SimFs, topic_id: int) -> TopicPart:
    return decode_manifest(fs.read(DIRS.manifest_path(topic_id)))


def segments_of(fs: SimFs) -> list[tuple[str, Segment]]:
    """The sealed segments of a directory with the paths of their `.data`, those of the cold directory too."""
    found = []
    for path in sorted(fs.tree()):
        if path.endswith("topic.cbor") and path.startswith(ROOT):
            part = decode_manifest(fs.read(path))
            for segment in (Segment.from_wire(part.id, entry) for entry in part.segments):
                if segment.sealed and segment.tier != "gone":
                    place = DIRS if segment.tier == "hot" else DataDir(COLD)
                    found.append((place.segment_path(part.id, segment.first, "data"), segment))
    return found


def rewritten(content: bytes, chance: random.Random) -> bytes:
    """A `.data` with another byte in the payload of one record, and the checksum of that."""
    header = decode_file_header(content[:FILE_HEADER_BYTES])
    assert header is not None
    rows = rows_of(content)
    assert rows.reason == "end"
    i = chance.randrange(len(rows.seq))
    at, end = rows.offset[i], rows.offset[i] + rows.frame_len[i]
    changed = bytearray(content)
    size = rows.size[i]
    changed[end - TRAILER_BYTES - 1 - chance.randrange(size)] ^= 1 << chance.randrange(8)
    assert size < end - at - HEADER_BYTES
    (checksum,) = digests([bytes(changed[at + 4 : end - TRAILER_BYTES])], header.salt, [at])
    changed[end - TRAILER_BYTES : end - 1] = checksum.to_bytes(8, "little")
    assert rows_of(bytes(changed)).seq == rows.seq, "all checksums hold"
    return bytes(changed)


def test_every_sealed_segment_has_one_whatever_has_become_of_it() -> None:
    """Rewritten, merged, relocated, packed ones, and those with deletions since."""
    for fs in (plain(), _packed()):
        assert verify(fs) == []
        assert len(segments_of(fs)) > 2
        assert all(segment.sha256 is not None for _, segment in segments_of(fs))
    assert {segment.tier for _, segment in segments_of(plain())} == {"hot", "cold"}
    assert any(path.endswith(".del") for path in _packed().tree())


@pytest.mark.parametrize("seed", range(6))
def test_a_record_that_was_rewritten_with_its_checksum_is_found(seed: int) -> None:
    fs, chance = plain(), random.Random(seed)
    path, segment = chance.choice(segments_of(fs))
    put(fs, path, rewritten(fs.read(path), chance))
    (found,) = verify(fs)
    assert (found.path, found.offset, found.severity) == (path, None, "damage")
    name = part_of(fs, segment.topic_id).name
    assert f"its SHA-256 is not the one that topic {name!r} has of it" in found.problem


@pytest.mark.parametrize("seed", range(3))
def test_so_is_one_in_a_packed_file_all_of_whose_checksums_were_made_anew(seed: int) -> None:
    fs, chance = _packed().after_process_kill(), random.Random(seed)
    are_packed = [path for path, segment in segments_of(fs) if segment.packed]
    assert len(are_packed) > 1
    path = chance.choice(are_packed)
    content = fs.read(path)
    header = decode_pack_header(content[:PACK_HEADER_BYTES])
    assert header is not None
    put(fs, path, b"".join(packed([rewritten(unpacked(content, header.length), chance)], header)))
    (found,) = verify(fs)
    assert (found.path, found.offset, found.severity) == (path, None, "damage")
    assert "its SHA-256 is not the one that topic 'tagged' has of it" in found.problem


def without_sums(part: TopicPart) -> TopicPart:
    """The part as an earlier version has written it."""
    for entry in part.segments:
        del entry[9:]
        if entry[8:] == [None]:
            del entry[8:]
    return part


def test_a_directory_of_an_earlier_version_is_open_and_its_segments_are_counted() -> None:
    fs = plain()
    count = len(segments_of(fs))
    for path, content in sorted(fs.tree().items()):
        if path.endswith("topic.cbor"):
            put(fs, path, encode_manifest(encode_part(without_sums(decode_manifest(content or b"")))))
        elif "/snapshot." in path:
            snapshot = decode_snapshot(content or b"")
            snapshot.topics = [encode_part(without_sums(decode_part(part))) for part in snapshot.topics]
            put(fs, path, encode_snapshot(snapshot))
    (note,) = verify(fs)
    assert (note.path, note.severity) == (DIRS.topics_dir, "note")
    assert f"{count} of {count} sealed segments have no SHA-256" in note.problem

    async def life(one: Life) -> None:
        make = Maker(one, 3)
        await make.append("quick", 100, ["a"], size=300)
        await make.checkpoint()
        await make.delete("quick", match="a", before_seq=100)
        await make.checkpoint()
        await one.reclaimer.pass_over()

    world = World(9, config=CONFIG, fs=fs)
    world.live(life)
    (note,) = verify(world.fs)
    without = sum(segment.sha256 is None for _, segment in segments_of(world.fs))
    assert 0 < without < count, "the segments that were rewritten have one"
    assert f"{without} of {len(segments_of(world.fs))} sealed segments" in note.problem


def test_a_segment_that_is_damaged_when_it_is_sealed_has_none() -> None:
    """The damage may be repaired, and the sum of the damaged bytes would not hold then."""
    world = World(5, config=LARGER)

    async def first(one: Life) -> None:
        make = Maker(one, 5)
        await make.put("quick")
        await make.append("quick", 200)
        await make.checkpoint()

    async def second(one: Life) -> None:
        await Maker(one, 6).append("quick", 500)
        await one.compactor.checkpoint()

    world.live(first)
    (path,) = [path for path in world.fs.tree() if path.endswith(".data")]
    world.fs.flip_bit(path, rows_of(world.fs.read(path)).offset[10] + HEADER_BYTES, 3)
    world.live(second)
    (damaged, _), *others = segments_of(world.fs)
    assert damaged == path
    assert [segment.sha256 is None for _, segment in segments_of(world.fs)] == [True, *(False for _ in others)]


@pytest.mark.parametrize("sha256", [b"short", 7, "x" * 32, bytes(33)])
def test_an_entry_with_anything_else_in_its_place_is_malformed(sha256: object) -> None:
    entry = Segment(7, 1, n=3, data_bytes=180, frames=3, sealed=True, salt=5, sha256=bytes(32)).to_wire()
    assert Segment.from_wire(7, entry).sha256 == bytes(32)
    assert entry[8] is None
    with pytest.raises(ValueError, match="SHA-256 of a segment is malformed"):
        Segment.from_wire(7, [*entry[:9], sha256])
