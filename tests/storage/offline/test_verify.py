"""`verify`: nothing to say about what the engine leaves, a finding for every bit that is not what was written.

Positions at which a flipped bit is *not* damage, and why; the tests here leave them out or expect a note:

- The digit of `FORMAT` where the flip makes it that of another version that can be read: a directory that is older.
- LOCK, CURRENT, `*.tmp` and `meta/witness`: nobody believes them (CURRENT is advisory, a `.tmp` is made anew, a
  witness that cannot be read proves nothing).
- What is kept aside (`.cut`, `.damaged`), what belongs to nobody, and bytes of a segment's files beyond what its part
  counts: the next start removes them or cuts them off.
- Behind the last position of a log that a sync is known to have covered, of a daemon that was killed: at the least the
  last Synced frame itself. Writes that were torn look the same. Recovery cuts the log there; it is a note.
- There too: a single bit in the first 4 bytes behind the end, or in the first byte of a sector, is what a torn write
  can have left. Behind a clean stop there are no such exceptions.
- The deleted bit of an `.idx` entry whose check begins a sector, of a topic with frames since the last snapshot: a torn
  write of the flag looks like it. It is a note; the entry is not believed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Protocol

import msgspec
import pytest

from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.wal_content import scan_of, sealed_for
from tests.simulation.world import World, quiet, wrecks_of
from tests.storage.data_file import rows_of
from tests.storage.made import COLD, CONFIG, ROOT, Maker, made
from topics.log.span import SpanSummary
from topics.storage.files.datadir import READABLE, DataDir
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import join, write_all
from topics.storage.offline.findings import SECTOR, Finding
from topics.storage.offline.verify import Verification
from topics.storage.segments.segment_format import DELETED_FLAG, LIVE_FLAG
from topics.storage.snapshots.snapshot import (
    Snapshot,
    TopicPart,
    decode_manifest,
    decode_snapshot,
    encode_manifest,
    encode_part,
    encode_snapshot,
)
from topics.storage.wal.frames import CHECKSUM_BYTES, FrameType, encode_control

DIRS = DataDir(ROOT)
KINDS = ("FORMAT", ".log", ".data", ".idx", ".tags", ".cold", "topic.cbor", "snapshot")


@cache
def _made(end: str) -> SimFs:
    return made(7, end=end).fs


@pytest.fixture(params=["stop", "kill"])
def fs(request: pytest.FixtureRequest) -> SimFs:
    """A directory with everything in it, stopped cleanly or killed."""
    return _made(request.param).after_process_kill()


@pytest.fixture
def stopped() -> SimFs:
    return _made("stop").after_process_kill()


@pytest.fixture
def killed() -> SimFs:
    return _made("kill").after_process_kill()


def verify(fs: SimFs, cold: str | None = COLD, *, in_use: bool = False) -> list[Finding]:
    with quiet():
        return list(Verification(fs, ROOT, cold, in_use=in_use).findings())


def damage(fs: SimFs, cold: str | None = COLD) -> list[Finding]:
    return [finding for finding in verify(fs, cold) if finding.severity == "damage"]


def finds_damage(fs: SimFs, path: str | None = None) -> bool:
    """Whether there is damage, in this file; what comes behind the first is not looked at."""
    with quiet():
        findings = Verification(fs, ROOT, COLD).findings()
        return any(finding.severity == "damage" and path in (None, finding.path) for finding in findings)


def files(fs: SimFs, *kinds: str) -> dict[str, bytes]:
    """The files that are looked at, by path; those of some kinds only."""
    return {
        path: content
        for path, content in sorted(fs.tree().items())
        if content
        and not path.endswith((".tmp", "/LOCK", "/CURRENT", "/witness"))
        and (not kinds or any(kind in path for kind in kinds))
    }


def put(fs: SimFs, path: str, content: bytes) -> None:
    handle = fs.open(path, create=True)
    handle.truncate(0)
    write_all(handle, content, 0)
    handle.close()


def overwrite(fs: SimFs, path: str, at: int, content: bytes) -> None:
    handle = fs.open(path)
    write_all(handle, content, at)
    handle.close()


def log_end(content: bytes) -> int:
    return scan_of(content).stop


def last_log(fs: SimFs, shard: int) -> str:
    return max(path for path in files(fs, ".log") if f"/shard-{shard:02d}/" in path)


# ----------------------------------------------------------------- what the engine leaves


def test_the_directory_holds_what_these_tests_are_about(stopped: SimFs) -> None:
    found = files(stopped)
    assert all(any(kind in path for path in found) for kind in KINDS)
    assert len(files(stopped, "snapshot")) == 2
    assert len(files(stopped, "shard-01/wal-")) >= 3
    flags = {flag for path, content in files(stopped, ".data").items() for flag in content if path}
    assert {LIVE_FLAG, DELETED_FLAG} <= flags


def test_there_is_nothing_to_say_about_what_the_engine_leaves(fs: SimFs) -> None:
    assert verify(fs) == []


def test_nothing_is_written(fs: SimFs) -> None:
    mutations, tree = fs.mutations, fs.tree()
    damaged = files(fs, ".log")
    fs.flip_bit(next(iter(damaged)), 100, 3)
    verify(fs)
    fs.flip_bit(next(iter(damaged)), 100, 3)
    assert (fs.mutations, fs.tree(), fs.open_files) == (mutations, tree, 0)


def test_progress_is_bytes_read_of_bytes_to_read(stopped: SimFs) -> None:
    verification = Verification(stopped, ROOT, COLD)
    with quiet():
        assert list(verification.findings()) == []
    meant = sum(len(content) for path, content in files(stopped).items() if not path.endswith(("FORMAT", "IDENTITY")))
    assert verification.progress.done == verification.progress.total == meant


class Make(Protocol):
    """What makes a directory in a world."""

    def __call__(self, seed: int, *, world: World) -> World: ...


def crashed_while(make: Make, stride: int, count: int) -> None:
    """A crash of the machine that makes a directory, at any point and with any part of the unsynced bytes lost, is no
    damage. Garbage in place of unsynced bytes is left out: a single byte of garbage may look like one flipped bit."""
    world = World(5, config=CONFIG)
    wrecks = wrecks_of(world, lambda: 0, stride=stride)
    make(5, world=world)
    chance = random.Random(5)
    for _ in range(count):
        wreck = chance.choice(wrecks)
        kind: Any = chance.choice(["kill", "drop", "keep", "tear", "reorder"])
        seed = chance.randrange(100)
        fs = wreck.world(kind, seed, CONFIG).fs
        if fs.exists(DIRS.format_path):
            assert damage(fs) == [], (str(wreck), kind, seed)


@pytest.mark.parametrize(
    ("stride", "count"),
    [(97, 20), pytest.param(11, 250 if EVERYTHING else 60, marks=pytest.mark.slow)],
    ids=["some", "many"],
)
def test_what_a_crash_leaves_is_no_damage(stride: int, count: int) -> None:
    crashed_while(made, stride, count)


# ----------------------------------------------------------------- single bits


def exempt(fs: SimFs, path: str, offset: int, bit: int) -> bool:
    """The positions named above: in `FORMAT`, and in the log of a daemon that was killed."""
    if path == DIRS.format_path:
        content = fs.tree()[path]
        assert content is not None
        number = chr(content[offset] ^ 1 << bit)
        return chr(content[offset]).isdigit() and number.isdigit() and int(number) in READABLE
    if not path.endswith(".log") or path not in {last_log(fs, 0), last_log(fs, 1)}:
        return False
    content = fs.tree()[path]
    assert content is not None
    scan = scan_of(content)
    last = scan.frames[-1]
    if last.type == FrameType.CLEAN_STOP:
        return False
    assert last.type == FrameType.SYNCED
    return last.offset <= offset < scan.stop + 4 or (offset >= scan.stop and offset % SECTOR == 0)


def flips(fs: SimFs, seed: int, count: int) -> Iterator[tuple[str, int, int]]:
    """Random bits, as many of each kind of file."""
    chance = random.Random(seed)
    of_kind = {kind: list(files(fs, kind).items()) for kind in KINDS}
    for i in range(count):
        path, content = chance.choice(of_kind[KINDS[i % len(KINDS)]])
        yield path, chance.randrange(len(content)), chance.randrange(8)


@pytest.mark.parametrize(
    "count", [60, pytest.param(600 if EVERYTHING else 280, marks=pytest.mark.slow)], ids=["some", "many"]
)
def test_every_flipped_bit_is_found(fs: SimFs, count: int) -> None:
    for n, (path, offset, bit) in enumerate(flips(fs, count, count)):
        if exempt(fs, path, offset, bit):
            continue
        fs.flip_bit(path, offset, bit)
        assert finds_damage(fs, path), f"bit {bit} of byte {offset} of {path}"
        goes_on_behind_it(fs, n)
        fs.flip_bit(path, offset, bit)


def goes_on_behind_it(fs: SimFs, n: int) -> None:
    """The rest of a damaged directory is looked at too, and nothing stumbles over the damage. Of a long row of bits
    every seventh is asked, so that each kind of file has its turn."""
    if EVERYTHING or n % 7 == 0:
        assert damage(fs)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_bit_of_every_few_bytes_of_the_smallest_file_of_each_kind_is_found(fs: SimFs, kind: str) -> None:
    path, content = min(files(fs, kind).items(), key=lambda item: len(item[1]))
    chance = random.Random(kind)
    for n, offset in enumerate(range(0, min(len(content), 3000), 5 if EVERYTHING else 11)):
        bit = chance.randrange(8)
        if exempt(fs, path, offset, bit):
            continue
        fs.flip_bit(path, offset, bit)
        assert finds_damage(fs), f"bit {bit} of byte {offset} of {path}"
        goes_on_behind_it(fs, n)
        fs.flip_bit(path, offset, bit)


def test_a_bit_in_the_zeros_behind_the_end_is_found(fs: SimFs) -> None:
    path = last_log(fs, 0)
    content = files(fs)[path]
    for offset in (log_end(content) + 5, len(content) - SECTOR // 2, len(content) - 1):
        fs.flip_bit(path, offset, 6)
        assert [finding.offset for finding in damage(fs)] == [offset]
        fs.flip_bit(path, offset, 6)


def test_a_bit_in_what_no_sync_has_covered_is_a_note(killed: SimFs) -> None:
    path = last_log(killed, 0)
    last = scan_of(files(killed)[path]).frames[-1]
    killed.flip_bit(path, last.offset + 30, 0)
    (note,) = verify(killed)
    assert (note.severity, note.path, note.offset) == ("note", path, last.offset)
    assert "the next start cuts the log here" in note.problem


# ----------------------------------------------------------------- the log


def test_damage_in_the_log_says_where_and_what_a_start_would_say(stopped: SimFs) -> None:
    path = last_log(stopped, 1)
    frame = scan_of(files(stopped)[path]).frames[3]
    stopped.flip_bit(path, frame.offset + 60, 1)
    first, *_ = damage(stopped)
    assert (first.path, first.offset) == (path, frame.offset)
    assert "are no valid frames" in first.problem


def test_all_bad_ranges_of_a_file_are_found(stopped: SimFs) -> None:
    path = min(files(stopped, "shard-01/wal-"))
    frames = scan_of(files(stopped)[path]).frames
    starts = [frame.offset for frame in frames if not frame.flags & 0x18]
    for offset in starts[2], starts[9], starts[-2]:
        stopped.flip_bit(path, offset + 20, 4)
    offsets = [finding.offset for finding in damage(stopped) if finding.path == path]
    assert [starts[2], starts[9], starts[-2]] == [offset for offset in offsets if offset in starts]


def test_a_missing_wal_file_is_damage(stopped: SimFs) -> None:
    middle = sorted(files(stopped, "shard-01/wal-"))[1]
    stopped.unlink(middle)
    assert any("a file is missing" in finding.problem for finding in damage(stopped))


def test_a_log_that_is_shorter_than_the_snapshots_say_is_damage(stopped: SimFs) -> None:
    path = last_log(stopped, 0)
    cut = scan_of(files(stopped)[path]).frames[-3].offset
    overwrite(stopped, path, cut, bytes(len(files(stopped)[path]) - cut))
    assert any(
        finding.path == path and "a sync has covered all up to" in finding.problem for finding in damage(stopped)
    )


def test_a_frame_of_an_unknown_type_is_named(stopped: SimFs) -> None:
    path = last_log(stopped, 0)
    frame = encode_control(max(FrameType) + 1, {})  # type: ignore[arg-type]
    content = files(stopped)[path]
    overwrite(stopped, path, log_end(content), sealed_for(content, frame, log_end(content)))
    assert any(f"unknown type {max(FrameType) + 1}" in finding.problem for finding in damage(stopped))


def test_a_synced_frame_that_vouches_for_nothing_is_damage(killed: SimFs) -> None:
    path = last_log(killed, 0)
    content = files(killed)[path]
    end = log_end(content)
    ordinal = int(path[-24:-4])
    vouching = encode_control(FrameType.SYNCED, {"file": ordinal, "offset": end - CHECKSUM_BYTES})
    overwrite(killed, path, end, sealed_for(content, vouching, end))
    (found,) = damage(killed)
    assert (found.path, found.offset) == (path, end)
    assert "where no frame begins" in found.problem


def test_bytes_behind_a_clean_stop_are_damage_even_if_they_are_a_frame_that_is_torn(stopped: SimFs) -> None:
    path = last_log(stopped, 0)
    end = log_end(files(stopped)[path])
    overwrite(
        stopped, path, end, sealed_for(files(stopped)[path], encode_control(FrameType.CHECKPOINT_MARK, {}), end)[:20]
    )
    assert any("behind a clean stop" in finding.problem for finding in damage(stopped))


def test_a_torn_batch_behind_what_was_synced_is_a_note(killed: SimFs) -> None:
    path = last_log(killed, 0)
    end = log_end(files(killed)[path])
    mark = encode_control(FrameType.CHECKPOINT_MARK, {}, flags=0x08)
    overwrite(killed, path, end, sealed_for(files(killed)[path], mark, end))
    (note,) = verify(killed)
    assert (note.severity, note.offset) == ("note", end)
    assert "a batch that is not whole" in note.problem


# ----------------------------------------------------------------- FORMAT, snapshots, manifests


def test_a_missing_format_is_damage(fs: SimFs) -> None:
    fs.unlink(DIRS.format_path)
    assert any(finding.path == DIRS.format_path for finding in damage(fs))


def test_a_snapshot_with_a_position_that_is_not_in_the_log_is_damage(stopped: SimFs) -> None:
    path = max(files(stopped, "snapshot"))
    snapshot = decode_snapshot(files(stopped)[path])
    for change in ([0, 0, 5], [0, 1, 0], [10_000, 0, 0]):
        shifted = [a + b for a, b in zip(snapshot.positions[0], change, strict=True)]
        put(stopped, path, _snapshot_with(snapshot, positions={**snapshot.positions, 0: shifted}))
        assert any(finding.path == path for finding in damage(stopped)), change


def test_a_snapshot_of_another_number_is_damage(stopped: SimFs) -> None:
    path = max(files(stopped, "snapshot"))
    snapshot = decode_snapshot(files(stopped)[path])
    put(stopped, path, _snapshot_with(snapshot, number=snapshot.number + 1))
    assert f"says that it is number {snapshot.number + 1}" in [finding.problem for finding in damage(stopped)]


def _snapshot_with(snapshot: Snapshot, **changes: Any) -> bytes:
    return encode_snapshot(msgspec.structs.replace(snapshot, **changes))


def test_a_missing_manifest_is_damage(stopped: SimFs) -> None:
    stopped.unlink(DIRS.manifest_path(1))
    assert damage(stopped) == [Finding(DIRS.manifest_path(1), None, "is missing", "damage")]


def test_a_manifest_that_is_older_than_the_snapshot_is_damage(stopped: SimFs) -> None:
    change_part(stopped, 1, lambda part: part.end.__setitem__(1, 0))
    assert any("older than the snapshot's part" in finding.problem for finding in damage(stopped))


def test_a_manifest_of_another_topic_is_damage(stopped: SimFs) -> None:
    put(stopped, DIRS.manifest_path(1), files(stopped)[DIRS.manifest_path(2)])
    assert Finding(DIRS.manifest_path(1), None, "is about topic 2", "damage") in damage(stopped)


def change_part(fs: SimFs, topic_id: int, change: Callable[[TopicPart], object]) -> None:
    """Write a manifest anew, and the copy in the newest snapshot stays what it was."""
    path = DIRS.manifest_path(topic_id)
    part = decode_manifest(files(fs)[path])
    change(part)
    put(fs, path, encode_manifest(encode_part(part)))


# ----------------------------------------------------------------- segments


def segment_of(fs: SimFs, suffix: str, topic_id: int = 1) -> str:
    """The path of one of the topic's files."""
    return next(path for path in files(fs, f"{topic_id:016x}/seg-") if path.endswith(suffix))


def test_a_missing_data_file_is_damage_and_names_its_seqs(stopped: SimFs) -> None:
    path = segment_of(stopped, ".data")
    stopped.unlink(path)
    assert Finding(path, None, "is missing: it should hold seqs 1 to 40", "damage") in damage(stopped)


def test_missing_derived_files_are_notes(stopped: SimFs) -> None:
    for suffix in (".idx", ".tags", ".idx.cold", ".tags.cold"):
        stopped.unlink(segment_of(stopped, suffix))
    found = verify(stopped)
    assert [finding.severity for finding in found] == ["note"] * 4


def test_a_data_file_that_was_cut_is_damage(stopped: SimFs) -> None:
    path = segment_of(stopped, ".data", topic_id=3)
    handle = stopped.open(path)
    length = handle.size()
    handle.truncate(length - 10)
    handle.close()
    found = damage(stopped)
    assert Finding(path, length - 10, f"ends here, and {length} bytes were on disk", "damage") in found


def test_bytes_that_no_checkpoint_has_counted_are_a_note(stopped: SimFs) -> None:
    path = max(path for path in files(stopped, ".data") if "0000000000000003" in path)
    overwrite(stopped, path, len(files(stopped)[path]), b"left over")
    (note,) = verify(stopped)
    assert note == Finding(path, note.offset, "9 bytes that no checkpoint has counted", "note")


def test_a_deleted_record_that_has_come_back_is_damage(stopped: SimFs) -> None:
    path, at = next(
        (path, at)
        for path, content in files(stopped, "topics/0000000000000001").items()
        if path.endswith(".data")
        for at in _flags_at(content)
        if content[at] == DELETED_FLAG
    )
    overwrite(stopped, path, at, bytes((LIVE_FLAG,)))
    problems = [finding.problem for finding in damage(stopped)]
    assert any("deleted ones have come back" in problem for problem in problems)
    assert any("deleted, and the record is not" in problem for problem in problems)


def _flags_at(content: bytes) -> Iterator[int]:
    at = FILE_HEADER_BYTES
    while at < len(content):
        at += 4 + int.from_bytes(content[at : at + 4], "little")
        yield at - 1


def test_a_delete_flag_that_was_never_written_is_damage_however_it_reads(stopped: SimFs) -> None:
    path = segment_of(stopped, ".data")
    at = next(_flags_at(files(stopped)[path]))
    for flag, reads in ((DELETED_FLAG ^ 3, "deleted"), (0x10, "live")):
        overwrite(stopped, path, at, bytes((flag,)))
        assert any(
            finding.offset == at and finding.problem.endswith(f"delete flag {flag:#04x}, read as {reads}")
            for finding in damage(stopped)
        )


def test_the_tags_of_another_segment_are_damage(stopped: SimFs) -> None:
    one, other, *_ = [path for path in files(stopped, ".tags") if path.startswith(f"{COLD}/topics/0000000000000001")]
    put(stopped, one, files(stopped)[other])
    assert any(finding.path == one and "is about" in finding.problem for finding in damage(stopped))


def test_a_summary_that_does_not_fit_is_damage(stopped: SimFs) -> None:
    def more(part: TopicPart) -> None:
        mark, *summary, unflagged = next(span for span in part.log["spans"] if SpanSummary(*span[1:-1]).live)
        changed = SpanSummary(*summary)._replace(bytes=SpanSummary(*summary).bytes + 1)
        spans = part.log["spans"]
        spans[spans.index([mark, *summary, unflagged])] = [mark, *changed, unflagged]

    change_part(stopped, 3, more)
    assert any("and the part says" in finding.problem for finding in damage(stopped))


def test_segments_said_to_be_cold_without_a_cold_directory_are_damage(stopped: SimFs) -> None:
    for cold, why in ((None, "no cold directory is given"), ("/nowhere", "/nowhere is missing")):
        found = damage(stopped, cold)
        assert {finding.path for finding in found} == {DIRS.manifest_path(1), DIRS.manifest_path(2)}
        assert all(finding.problem.endswith(f"are in the cold directory: {why}") for finding in found)


def test_no_cold_directory_is_needed_where_nothing_is_cold() -> None:
    world = World(1, config=CONFIG)

    async def life(life: Any) -> None:
        await Maker(life, 1).append("t", 10)

    world.live(life)
    assert verify(world.fs, None) == []
    assert verify(world.fs, "/nowhere") == []


# ----------------------------------------------------------------- what belongs to nobody


def test_what_belongs_to_nobody_is_a_note(stopped: SimFs) -> None:
    strays = [
        join(DIRS.root, "notes.txt"),
        join(DIRS.meta_dir, "odd"),
        join(DIRS.wal_dir, "shard-00", "wal-00000000000000000001.log.7.cut"),
        join(DIRS.topic_dir(1), "seg-00000000000000009999.data"),
        join(DIRS.topics_dir, "00000000000000ff.deleted"),
        join(DIRS.topics_dir, "00000000000000ff"),
        join(COLD, "topics", "0000000000000001", "odd"),
    ]
    for path in strays:
        if path.endswith(("ff", ".deleted")):
            stopped.mkdir(path)
        else:
            put(stopped, path, b"?")
    found = verify(stopped)
    assert {finding.path for finding in found} == set(strays)
    assert all(finding.severity == "note" for finding in found)


def test_lock_current_and_temporary_files_do_not_matter(stopped: SimFs) -> None:
    for path, content in stopped.tree().items():
        if content and path.endswith((".tmp", "/LOCK", "/CURRENT", "/witness")):
            stopped.flip_bit(path, 0, 0)
    put(stopped, join(DIRS.meta_dir, "snapshot.99.cbor.tmp"), b"half")
    assert verify(stopped) == []


# ----------------------------------------------------------------- while a daemon works


def looked_at_while(make: Make, every: int) -> None:
    """A directory is verified between the writes of the daemon that makes it, and there is never any damage."""
    world = World(3, config=CONFIG)
    found: list[Finding] = []
    looks = 0

    def look(op: Any) -> None:
        nonlocal looks
        if op.mutation is not None and op.mutation % every == 0 and world.fs.exists(DIRS.format_path):
            looks += 1
            found.extend(finding for finding in verify(world.fs, in_use=True) if finding.severity == "damage")

    world.fs.subscribe(look)
    make(3, world=world)
    assert looks > 5
    assert found == []


@pytest.mark.parametrize("every", [97, pytest.param(11 if EVERYTHING else 29, marks=pytest.mark.slow)])
def test_a_working_daemon_is_no_damage(every: int) -> None:
    """Looked at between its writes, not only while it rests."""
    looked_at_while(made, every)


@pytest.mark.parametrize("ends", ["frame", "nothing"])
def test_a_shortened_file_of_a_segment_is_damage_in_whatever_tier_even_if_the_log_has_more_of_its_topic(
    ends: str, fs: SimFs
) -> None:
    sealed = {path.rpartition(".")[0] for path in files(fs, ".tags") if not path.endswith(".cold")}
    victims = [path for path in files(fs, ".data") if path.rpartition(".")[0] in sealed]
    assert {path.startswith(COLD) for path in victims} == {True, False}
    for path in victims:
        whole = fs.tree()[path]
        assert whole is not None
        length = rows_of(whole).offset[-1] if ends == "frame" else 0
        put(fs, path, whole[:length])
        problems = [finding for finding in damage(fs) if finding.path == path]
        assert any(found.offset == length and "bytes were on disk" in found.problem for found in problems), path
        put(fs, path, whole)
    assert damage(fs) == []


def test_a_damaged_header_of_a_segment_is_damage_and_hides_no_other(stopped: SimFs) -> None:
    path = segment_of(stopped, ".data")
    overwrite(stopped, path, 3, bytes(12))
    assert [(found.path, found.offset) for found in damage(stopped)] == [(path, 0)]
    at = rows_of(files(_made("stop"))[path]).offset[1]
    overwrite(stopped, path, at + 35, b"\xff\xfe")
    assert (path, at) in [(found.path, found.offset) for found in damage(stopped)]
