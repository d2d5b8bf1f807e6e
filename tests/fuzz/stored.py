"""Targets on disk: everything that a start, a read, an offline command or a Spark job makes of files.

What the product's own checksums cannot tell from what it has written is refused, or started from, as documented: by
`Damage`, `DataDirError`, `UnknownFrameType`, `SnapshotDamaged`, `SegmentDamaged`. Nothing else comes out of here.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import trio

from tests.fuzz import machines, mutations
from tests.fuzz.framing import header_of, mend_index, mend_log, mend_sealed, mend_segment, vary_log
from tests.fuzz.machines import DIRECTORY, contents, directory_around, put
from tests.fuzz.target import Target
from tests.simulation.disk import SimFs
from tests.simulation.lives import end_steps
from tests.simulation.world import ROOT, End, Life, World, quiet
from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.model import Performance, ReadRequest, TopicState
from topics.storage.files.datadir import DataDirError, open_data_dir, parse_segment_file, parse_wal_name, segment_name
from topics.storage.files.file_header import first_frame
from topics.storage.offline.inspect import Inspection
from topics.storage.offline.stored_topics import TopicDirectory
from topics.storage.offline.topic_parts import load_part
from topics.storage.offline.verify import Verification
from topics.storage.recovery.damage import Damage
from topics.storage.segments.index_format import decode_index
from topics.storage.segments.segment_format import (
    SegmentDamaged,
    convert_appends,
    decode_records,
    open_records,
    scan_data,
)
from topics.storage.segments.segment_reader import SegmentTiers, load_columns, load_tags
from topics.storage.segments.segment_scan import BadBytes, frames_of, layout_of
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.tags_format import decode_tags
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import Snapshot, SnapshotDamaged, decode_manifest, decode_part, decode_snapshot
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameSeeds, FrameType, UnknownFrameType

REFUSALS: Final = (Damage, DataDirError, UnknownFrameType, OSError)
"""How a start says no (`Engine.recover`)."""

STORAGE: Final = ("topics.storage", "topics.log", "topics.queue", "topics.routing")
LOG_BYTES: Final = 20 << 10
SETTLED_S: Final = 2.0
"""On the simulated clock: routers have forwarded by then, and jobs were moved."""
MOST_PAGES: Final = 20
ENDS: Final[tuple[End, ...]] = ("kill", "drop")
START_BYTES: Final = 16 << 20
"""Memory of a start on any disk: an engine, and the bytes that the simulated disk keeps of it."""


# ----------------------------------------------------------------- frames of a log


def _scan_log(data: bytes) -> None:
    """All frames of a window: each taken apart in every way there is."""
    header = header_of(data)
    begin, salt = first_frame(header), header.salt if header is not None else None
    seeds = FrameSeeds(salt, 0)
    with suppress(UnknownFrameType):
        scan = frames.scan_window(data[begin:], begin, file_end=len(data), salt=salt)
        for frame in scan.frames:
            size = frame.end - frame.offset
            if frame.type == FrameType.APPEND:
                _open_append(data, frame, size, seeds)
        appends = [frame for frame in scan.frames if frame.type == FrameType.APPEND]
        starts, sizes = [frame.offset for frame in appends], [frame.end - frame.offset for frame in appends]
        seqs = [frame.seq for frame in appends]
        frames.are_appends(data, starts, sizes, 1, seqs, seeds)
        convert_appends(data, starts, sizes, seqs, seeds)
    half = len(data) // 2
    with suppress(UnknownFrameType):
        frames.scan_window(data[begin:half], begin, file_end=max(len(data), begin), salt=salt)


def _open_append(data: bytes, frame: frames.Frame, size: int, seeds: FrameSeeds) -> None:
    record = frames.decode_append(data, frame.offset, size, seeds)
    opened = frames.open_append(data, frame.offset, size, seeds)
    assert (record is None) is (opened is None)
    if record is not None:
        assert len(record.data) + len(record.meta) + len(record.node) + len(record.tag) <= size


# ----------------------------------------------------------------- starts


class _Shown(NamedTuple):
    """A topic as its readers see it: what its state says, and every page from the first record to the last."""

    state: TopicState
    pages: list[object]


async def _shown(engine: Engine) -> dict[str, _Shown]:
    """All topics. What is no record that was ever appended may be shown in any form, or be refused."""
    shown = {}
    for name in sorted(engine.registry.topics):
        pages: list[object] = []
        position = 0
        for _ in range(MOST_PAGES):
            try:
                page = await engine.reads.read(name, ReadRequest(from_seq=position, include_tags=True), Performance())
            except ApiError as error:
                pages.append(error.code)
                break
            pages.append((page.records, page.tombstone, page.next_from_seq))
            position = page.next_from_seq
            if page.caught_up:
                break
        shown[name] = _Shown(await engine.topic_states.of(name, touch=False), pages)
    return shown


def _start(fs: SimFs, config: Settings) -> tuple[World, dict[str, _Shown]] | None:
    """Start from a disk, and look when everything has settled; None if the start is refused, as documented."""
    world = World(config=config, fs=fs)
    shown: dict[str, _Shown] = {}

    async def look(life: Life) -> None:
        await trio.sleep(SETTLED_S)
        shown.update(await _shown(life.engine))
        end_steps(life)

    try:
        assert world.live(look, end="kill")
    except REFUSALS:
        return None
    return world, shown


def _log_of_a_directory(mode: Literal["strict", "salvage"], data: bytes) -> None:
    fs = directory_around(data)
    before = fs.tree()
    started = _start(fs, replace(machines.LOGGED, recovery=mode))
    if started is None:
        if mode == "strict":
            assert _but_for_the_lock(fs.tree()) == _but_for_the_lock(before), "a refused start has changed a file"
        return
    world, shown = started
    for end in ENDS:
        _same_again(world, end, shown)


def _but_for_the_lock(tree: dict[str, bytes | None]) -> dict[str, bytes | None]:
    return {path: content for path, content in tree.items() if path != DIRECTORY.lock_path}


def _same_again(world: World, end: End, shown: dict[str, _Shown]) -> None:
    """A second start makes the same of the log as the first one."""
    again = _start(world.after(end).fs, machines.LOGGED)
    assert again is not None, f"a start after a start that was let in and a {end} is refused"
    for name, topic in again[1].items():
        if topic.state.config.durability != "ephemeral" and not topic.state.config.ttl_ms:
            assert topic.pages == shown[name].pages, f"{name} is another after a second start"


def _file_of_a_start(path: str, of: Callable[[], SimFs], data: bytes) -> None:
    """A start of a machine that is well but for one file, and another one."""
    fs = of().after_process_kill()
    put(fs, path, data)
    started = _start(fs, machines.STORED)
    if started is not None:
        assert _start(started[0].after("kill").fs, machines.STORED) is not None, "the second start is refused"


def _offline(data: bytes) -> None:
    """The commands that look at a directory without a daemon."""
    fs = directory_around(data)
    with quiet():
        with suppress(DataDirError):
            Inspection(fs, ROOT).facts()
        with suppress(DataDirError):
            for _ in Inspection(fs, ROOT).frames():
                pass
        for _ in Verification(fs, ROOT).findings():
            pass


# ----------------------------------------------------------------- parts, snapshots, FORMAT


def _part(part: bytes) -> None:
    load_part("", decode_part(part))


def _snapshot(data: bytes) -> None:
    with suppress(SnapshotDamaged):
        snapshot = decode_snapshot(data)
        assert isinstance(snapshot, Snapshot)
        for part in snapshot.topics:
            with suppress(SnapshotDamaged):
                _part(part)


def _manifest(data: bytes) -> None:
    with suppress(SnapshotDamaged):
        load_part("", decode_manifest(data))


def _bare_part(data: bytes) -> None:
    with suppress(SnapshotDamaged):
        _part(data)


def _format(data: bytes) -> None:
    fs = SimFs()
    fs.mkdir(ROOT)
    put(fs, DIRECTORY.format_path, data)
    for look in (
        lambda: open_data_dir(fs, ROOT),
        lambda: TopicDirectory.found(fs, ROOT),
        lambda: Inspection(fs, ROOT).facts(),
    ):
        with suppress(DataDirError):
            look()
    for _ in Verification(fs, ROOT).findings():
        pass


def _checkpointed(data: bytes) -> None:
    """What a Spark job learns from a manifest about where a topic's records are."""
    fs = machines.stopped().after_process_kill()
    topic_id = 3
    put(fs, DIRECTORY.manifest_path(topic_id), data)
    with suppress(SnapshotDamaged, DataDirError):
        directory = TopicDirectory.found(fs, ROOT)
        directory.topics(fs, lambda _name: True)
        directory.topic(fs, topic_id)


def _names(data: bytes) -> None:
    """Names of files, as a stranger who fills a directory chooses them."""
    name = data.decode("utf-8", "surrogateescape")
    parse_wal_name(name)
    parse_segment_file(name)


# ----------------------------------------------------------------- segments


def _scan_segment(data: bytes) -> None:
    scan = scan_data(data, 0, end=len(data))
    rows = len(scan.seq)
    assert rows == len(scan.offset) == len(scan.frame_len) == len(scan.ts) == len(scan.flags) == len(scan.size)
    assert rows == len(scan.tag) == len(scan.delete_flag)
    assert 0 <= scan.stop <= len(data)
    records, bad = decode_records(data, scan.offset, scan.frame_len, scan.seq)
    assert len(records) + len(bad) == rows
    open_records(data, scan.offset, scan.frame_len, 1)
    for salt in (None, 7):
        layout = layout_of(data[:32], 1, salt)
        at = 0
        for part in frames_of(lambda offset, length: data[offset : offset + length], layout, len(data), range(1, 99)):
            start, stop = part[:2] if isinstance(part, BadBytes) else (part.offset[0], part.stop)
            assert at <= start < stop <= len(data) or (start, stop) == (0, len(data))
            at = stop
    scan_data(data[: len(data) // 2], 0, end=len(data))


def _segment_file(kind: str, data: bytes) -> None:
    """One of the files of a segment that is well otherwise, sealed or not: its span is loaded all the same, slot by
    slot."""
    segment = _a_segment()
    fs = machines.stopped().after_process_kill()
    put(fs, DIRECTORY.segment_path(segment.topic_id, segment.first, kind), data)
    tiers = SegmentTiers(DirectorySegmentStore(fs, ROOT), None)
    with quiet():
        for sealed in (True, False):
            segment.sealed = sealed
            loaded = load_columns(tiers, segment, segment.first, segment.n)
            assert {len(column) for column in loaded.columns} == {segment.n}
            tags = load_tags(tiers, segment, segment.n).tags
            for _tag, positions in tags.items():
                assert all(position < segment.n for position in positions)


def _a_segment() -> Segment:
    """A sealed segment with tags, nodes and metas, in the hot directory."""
    part = decode_manifest(machines.stopped().read(DIRECTORY.manifest_path(3)))
    return Segment.from_wire(part.id, part.segments[0])


def _index(data: bytes) -> None:
    columns = decode_index(data)
    count = len(data) // 20
    assert len(columns.offset) == len(columns.frame_len) == len(columns.ts) == len(columns.flags) == count
    assert all(0 <= i < count for i in columns.bad)


def _tags(data: bytes) -> None:
    segment = _a_segment()
    with suppress(SegmentDamaged):
        tags = decode_tags(data, segment.first, segment.n)
        for pattern in ("", "tag", "tag1", "\uffff"):
            tags.find(TagMatch(pattern, prefix=True))
            tags.find(TagMatch(pattern, prefix=False))
        for _tag, positions in tags.items():
            assert all(position < segment.n for position in positions)


def _spark_segment(data: bytes) -> None:
    from topics.spark.segment_columns import TYPES, NotDecodable, decode  # noqa: PLC0415 (takes pyarrow)

    with suppress(NotDecodable):
        decoded = decode(data, TYPES, seqs=range(1, 1 << 40))
        for column in decoded.columns.values():
            assert len(column) == len(decoded.seq)
            column.validate(full=True)


# ----------------------------------------------------------------- seeds


def _parts_of_snapshots() -> list[bytes]:
    snapshots = contents(machines.stopped(), ".cbor", within="/meta/")
    return [part for blob in snapshots for part in decode_snapshot(blob).topics]


def _whole_logs() -> list[bytes]:
    """Those that a start takes without a snapshot."""
    return [log for log in machines.logs()[:2] if log]


def _files(kind: str) -> list[bytes]:
    return contents(machines.stopped(), f".{kind}")


def _own_file(kind: str) -> list[bytes]:
    segment = _a_segment()
    return contents(machines.stopped(), segment_name(segment.first, kind), within=f"{segment.topic_id:016x}")


def _names_on_disk() -> list[bytes]:
    return [path.rpartition("/")[2].encode() for path, content in machines.stopped().tree().items() if content]


def _own_manifest() -> list[bytes]:
    return [machines.stopped().read(DIRECTORY.manifest_path(3))]


_mend_snapshot: Final = partial(mend_sealed, "snapshot")
_mend_manifest: Final = partial(mend_sealed, "manifest")
_mend_tags: Final = partial(mend_sealed, "tags")


def _stored(name: str, about: str, take: Callable[[bytes], None], make_seeds: Any, **more: Any) -> Target:
    return Target(name, about, take, make_seeds, **{"modules": STORAGE, **more})


TARGETS: Final[tuple[Target, ...]] = (
    _stored(
        "log-window",
        "the frames of a window of a log, and the payloads of its Appends",
        _scan_log,
        machines.logs,
        mend=mend_log,
        vary=vary_log,
        most_bytes=LOG_BYTES,
        examples=50,
    ),
    _stored(
        "start-strict",
        "a strict start from a directory with one file of the log, and another one",
        partial(_log_of_a_directory, "strict"),
        _whole_logs,
        mend=mend_log,
        vary=vary_log,
        most_bytes=LOG_BYTES,
        base_bytes=START_BYTES,
        examples=15,
        slow=True,
    ),
    _stored(
        "start-salvage",
        "the same with salvage",
        partial(_log_of_a_directory, "salvage"),
        _whole_logs,
        mend=mend_log,
        vary=vary_log,
        most_bytes=LOG_BYTES,
        base_bytes=START_BYTES,
        examples=10,
        slow=True,
    ),
    _stored(
        "start-snapshot",
        "a start from a snapshot",
        partial(_file_of_a_start, DIRECTORY.snapshot_path(1000), machines.stored),
        lambda: contents(machines.stored(), ".cbor", within="/meta/"),
        mend=_mend_snapshot,
        vary=mutations.vary_cbor,
        most_bytes=16 << 10,
        base_bytes=START_BYTES,
        examples=6,
        slow=True,
    ),
    _stored(
        "start-manifest",
        "a start with the manifest of one topic",
        partial(_file_of_a_start, DIRECTORY.manifest_path(3), machines.stored),
        lambda: [machines.stored().read(DIRECTORY.manifest_path(3))],
        mend=_mend_manifest,
        vary=mutations.vary_cbor,
        base_bytes=START_BYTES,
        examples=6,
        slow=True,
    ),
    _stored(
        "offline",
        "topics inspect, dump and verify of a directory with one file of the log",
        _offline,
        machines.logs,
        mend=mend_log,
        vary=vary_log,
        most_bytes=LOG_BYTES,
        base_bytes=START_BYTES,
        factor=400,
        examples=20,
        slow=True,
    ),
    _stored(
        "snapshot",
        "a snapshot file",
        _snapshot,
        lambda: contents(machines.stopped(), ".cbor", within="/meta/"),
        mend=_mend_snapshot,
        vary=mutations.vary_cbor,
        most_bytes=16 << 10,
    ),
    _stored(
        "manifest",
        "a topic.cbor",
        _manifest,
        lambda: contents(machines.stopped(), "topic.cbor"),
        mend=_mend_manifest,
        vary=mutations.vary_cbor,
    ),
    _stored("part", "the part of a topic in a snapshot", _bare_part, _parts_of_snapshots, vary=mutations.vary_cbor),
    _stored(
        "checkpointed",
        "a manifest as Spark jobs look at it",
        _checkpointed,
        _own_manifest,
        mend=_mend_manifest,
        vary=mutations.vary_cbor,
        base_bytes=START_BYTES,
        examples=20,
    ),
    _stored(
        "format",
        "FORMAT",
        _format,
        lambda: [machines.stopped().read(DIRECTORY.format_path)],
        vary=mutations.vary_json,
        base_bytes=1 << 20,
        examples=60,
    ),
    _stored("file-names", "names of files in the directories", _names, _names_on_disk, most_bytes=255),
    _stored("segment-data", "a .data file", _scan_segment, lambda: _files("data"), mend=mend_segment),
    _stored("segment-idx", "an .idx file", _index, lambda: _files("idx"), mend=mend_index),
    _stored(
        "segment-tags",
        "a .tags file",
        _tags,
        lambda: [*_own_file("tags"), *_files("tags")],
        mend=_mend_tags,
        vary=mutations.vary_cbor,
    ),
    *(
        _stored(
            f"loaded-{kind}",
            f"a span of a segment whose .{kind} may be anything",
            partial(_segment_file, kind),
            partial(_own_file, kind),
            mend=mend,
            vary=vary,
            base_bytes=2 << 20,
            examples=25,
        )
        for kind, mend, vary in (
            ("data", mend_segment, None),
            ("idx", mend_index, None),
            ("tags", _mend_tags, mutations.vary_cbor),
        )
    ),
    _stored(
        "spark-segment",
        "a .data file as Spark reads it",
        _spark_segment,
        lambda: _files("data"),
        mend=mend_segment,
        base_bytes=1 << 20,
        modules=("topics.spark.segment_columns", "topics.storage.segments.segment_format"),
        examples=60,
    ),
)
