"""`inspect`: what is in a data directory. Offline, nothing is changed, nothing is judged (that is `verify`).

Responsible for gathering facts as plain values; how they look on a terminal is the command's business. What is said
about topics is what a start would find, replayed by recovery itself; where recovery refuses, what their parts say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from topics.log.copies import Origin
from topics.log.dumped_values import from_little_endian
from topics.log.span import FLAG_DERIVED
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router import router_to_wire
from topics.routing.router_state import Router
from topics.storage.files.datadir import DataDir, DataDirError, discover_shards, parse_wal_name, segment_name, wal_path
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import File, Fs, join
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs, size_of
from topics.storage.offline.topic_parts import Hole, Part, holes_of, load_part
from topics.storage.recovery import replay
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.recovered_state import shard_of, understood
from topics.storage.segments.segment_format import decode_records, open_records, reads_as_deleted
from topics.storage.segments.segment_reader import Tiers
from topics.storage.segments.segment_scan import BadBytes, frames_of, layout_of
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.manifests import read_manifest
from topics.storage.snapshots.snapshot import (
    Snapshot,
    SnapshotDamaged,
    decode_manifest,
    decode_part,
    decode_snapshot,
    snapshot_numbers,
)
from topics.storage.wal import frames
from topics.storage.wal.frame_search import FrameSearch, LogFile
from topics.storage.wal.frames import Frame, FrameType, decode_append
from topics.storage.wal.wal_head import WalHead, read_heads, scans, wal_format

SHOWN: Final = 80
ROUTER_SHOWN: Final = 240
"""Characters of a payload that a dump shows; of one about a router, which has much to say."""

SEQS_SHOWN: Final = 4
"""Seqs of jobs that a dump shows of each frame about them."""

_FLAGS: Final = (
    (frames.HAS_TAG, "tag"),
    (frames.HAS_NODE, "node"),
    (frames.DURABLE, "durable"),
    (frames.MORE, "more"),
    (frames.CONTINUES, "continues"),
    (frames.HAS_ORIGIN, "origin"),
)


@dataclass(frozen=True, slots=True)
class SnapshotFacts:
    """One snapshot file. With a `problem` nothing else of it is known."""

    path: str
    number: int
    bytes: int
    problem: str | None
    topics: int = 0
    shards: int = 0
    clock: int = 0
    positions: dict[int, list[int]] | None = None
    """By shard: ordinal of the file, offset, ordinal of the frame there."""


@dataclass(frozen=True, slots=True)
class WalFileFacts:
    """One WAL file. `used` is where its frames end; `end` says how: "file end", "clean stop", "open" or "bad bytes"."""

    path: str
    ordinal: int
    bytes: int
    used: int
    frames: int
    types: dict[str, int]
    first_ts: int
    last_ts: int
    end: str


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """The log of one shard."""

    shard: int
    directory: str
    files: list[WalFileFacts]


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment. `live` is None if no span points to it any more: its files have yet to go."""

    first_seq: int
    last_seq: int
    tier: str
    sealed: bool
    bytes: int
    records: int
    live: int | None
    opened_ms: int


@dataclass(frozen=True, slots=True)
class RouterFacts:
    """A router that feeds a topic. `cursor` is the last seq of the source that it has dealt with; `source` is None if
    nobody knows the source's name."""

    name: str
    source_id: int
    source: str | None
    cursor: int
    copies: int
    config: dict[str, Any]


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The jobs of a queue; a lease or a delay counts until somebody looks, whatever the time is."""

    ready: int
    leased: int
    delayed: int
    parked: int
    dead_lettered: int


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """One topic. `unstored` are records that are in the WAL only; `derived` are those of them that are copies of frames
    of other topics. `keeps_origins`: it knows which records it has taken, as a router brings each only once."""

    id: int
    name: str
    shard: int
    type: str
    durability: str
    head_seq: int
    earliest_seq: int
    evict_floor: int
    ceiling: int
    count: int
    bytes: int
    last_ts: int
    unstored: int
    derived: int
    routers: list[RouterFacts]
    keeps_origins: bool
    queue: QueueFacts | None
    holes: list[Hole]
    segments: list[SegmentFacts]


@dataclass(frozen=True, slots=True)
class DirectoryFacts:
    """A data directory. `refused` is why a start is refused; the topics are then as of their parts."""

    root: str
    cold: str | None
    format: dict[str, int]
    holder: str | None
    refused: str | None
    snapshots: list[SnapshotFacts]
    shards: list[ShardFacts]
    topics: list[TopicFacts]


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """One frame, of the WAL or of a segment. `number` is its ordinal in its shard, None where that cannot be told.

    `type` is "Record" in a segment, "BadBytes" for bytes that are no frame, and "MissingBytes" for those that a `.data`
    does not have any more: `bytes` says how many.
    """

    path: str
    offset: int
    number: int | None
    type: str
    topic_id: int
    topic: str | None
    seq: int
    ts: int
    bytes: int
    flags: list[str]
    node: str
    tag: str
    payload: str


class Inspection:
    """One look at a directory. `progress` tells how far it is. Methods raise DataDirError if it is not one of ours."""

    def __init__(self, fs: Fs, root: str, cold: str | None = None) -> None:
        self.progress = Progress()
        self._fs = ReadOnlyFs(fs, self.progress)
        self._datadir = DataDir(root)
        self._cold = cold if cold is not None and fs.exists(cold) else None
        store = DirectorySegmentStore(self._fs, self._cold) if self._cold is not None else None
        self._tiers = Tiers(DirectorySegmentStore(self._fs, root), store)

    # -- facts --------------------------------------------------------------------------------------------------------

    def facts(self, *, in_use: bool = False) -> DirectoryFacts:
        """Everything there is to say in a few pages. Recovery is not asked while somebody writes there."""
        found = self._format()
        self.progress.total = 2 * sum(size_of(self._fs, path) for _, path, _ in self._wal_files())
        snapshots, newest = self._snapshots()
        shards = self._shards()
        topics, refused = ([], "the directory is in use") if in_use else self._recovered()
        if refused is not None:
            parts = self._parts(newest)
            names = {part.part.id: part.part.name for part in parts}
            topics = [self._of_part(part, names, newest) for part in parts]
        self.progress.done = self.progress.total
        return DirectoryFacts(
            root=self._datadir.root,
            cold=self._cold,
            format=found,
            holder=self._fs.lock_holder(self._datadir.lock_path),
            refused=refused,
            snapshots=snapshots,
            shards=shards,
            topics=sorted(topics, key=lambda topic: topic.name),
        )

    def _format(self) -> dict[str, int]:
        path = self._datadir.format_path
        try:
            return msgspec.json.decode(self._fs.read(path), type=dict[str, int])
        except FileNotFoundError:
            raise DataDirError(f"{self._datadir.root} is no data directory: there is no FORMAT") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataDirError(f"{path} is not what it should be: {error}") from None

    def _wal_files(self) -> Iterator[tuple[int, str, WalHead]]:
        """Ordinal, path and beginning of every WAL file."""
        for found in discover_shards(self._fs, self._datadir):
            for ordinal, head in self._heads(found.path).items():
                yield ordinal, wal_path(found.path, ordinal), head

    def _heads(self, directory: str) -> dict[int, WalHead]:
        ordinals = self._ordinals(directory)
        return read_heads(self._fs, directory, ordinals, version=wal_format(self._fs, self._datadir))

    def _ordinals(self, directory: str) -> list[int]:
        names = self._fs.listdir(directory)
        return sorted(ordinal for name in names if (ordinal := parse_wal_name(name)) is not None)

    def _snapshots(self) -> tuple[list[SnapshotFacts], Snapshot | None]:
        facts = []
        newest = None
        for number in snapshot_numbers(self._fs, self._datadir):
            path = self._datadir.snapshot_path(number)
            try:
                blob = self._fs.read(path)
                snapshot = newest = decode_snapshot(blob)
            except FileNotFoundError:
                continue
            except SnapshotDamaged as error:
                facts.append(SnapshotFacts(path, number, len(blob), str(error)))
                continue
            facts.append(
                SnapshotFacts(
                    path,
                    number,
                    len(blob),
                    None,
                    topics=len(snapshot.topics),
                    shards=snapshot.shards,
                    clock=snapshot.clock,
                    positions=snapshot.positions,
                )
            )
        return facts, newest

    def _shards(self) -> list[ShardFacts]:
        return [
            ShardFacts(
                found.shard,
                found.path,
                [
                    facts
                    for ordinal, head in self._heads(found.path).items()
                    if (facts := self._wal_file(wal_path(found.path, ordinal), ordinal, head)) is not None
                ],
            )
            for found in discover_shards(self._fs, self._datadir)
        ]

    def _wal_file(self, path: str, ordinal: int, head: WalHead) -> WalFileFacts | None:
        types: Counter[int] = Counter()
        count = used = last_type = first_ts = last_ts = 0
        reason = "zeros"
        try:
            handle = self._fs.open(path, read_only=True)
        except FileNotFoundError:
            return None
        try:
            size = handle.size()
            used = head.first
            for scan, _, _ in _scans(handle, head, head.first, size):
                if scan.rows:
                    types.update([row[2] for row in scan.rows])
                    times = [row[6] for row in scan.rows if row[6]]
                    if times:
                        first_ts, last_ts = first_ts or times[0], times[-1]
                    last_type = scan.rows[-1][2]
                    count += len(scan.rows)
                used, reason = scan.stop, scan.reason
        finally:
            handle.close()
        end = {FrameType.FILE_END: "file end", FrameType.CLEAN_STOP: "clean stop"}.get(
            FrameType(last_type or 1), "open"
        )
        return WalFileFacts(
            path,
            ordinal,
            size,
            used,
            count,
            {type_name(kind): n for kind, n in sorted(types.items())},
            first_ts,
            last_ts,
            "bad bytes" if reason == "bad" or head.problem is not None else end,
        )

    # -- topics -------------------------------------------------------------------------------------------------------

    def _recovered(self) -> tuple[list[TopicFacts], str | None]:
        """The topics as a start finds them, or why it would not."""
        try:
            found = replay.recover(self._fs, self._datadir, self._tiers, Progress())
        except (Damage, DataDirError, frames.UnknownFrameType, SnapshotDamaged, OSError, ValueError) as error:
            return [], str(error)
        shards = max((shard.shards for shard in found.shards), default=0) or len(found.shards)
        return [
            _topic(
                topic.id,
                topic.name,
                topic.config,
                topic.ceiling,
                topic.log,
                topic.segments,
                [*topic.incoming.values()],
                topic.origins,
                topic.queue,
                {source.id: source.name for source in found.topics.values()},
                shards,
            )
            for topic in found.topics.values()
        ], None

    def _parts(self, snapshot: Snapshot | None) -> list[Part]:
        """The newer of the two parts of every topic; those that do not verify are left out."""
        newest: dict[int, Part] = {}
        for part in self._all_parts(snapshot):
            known = newest.get(part.part.id)
            if known is None or part.end >= known.end:
                newest[part.part.id] = part
        return list(newest.values())

    def _all_parts(self, snapshot: Snapshot | None) -> Iterator[Part]:
        for blob in snapshot.topics if snapshot is not None else ():
            with suppress(SnapshotDamaged):
                yield load_part("the snapshot", decode_part(blob))
        for topic_id in self._tiers.hot.topics():
            with suppress(SnapshotDamaged, FileNotFoundError):
                path, blob = read_manifest(self._fs, self._datadir, topic_id)
                yield load_part(path, decode_manifest(blob))

    def _of_part(self, part: Part, names: dict[int, str], snapshot: Snapshot | None) -> TopicFacts:
        shards = snapshot.shards if snapshot is not None else len(discover_shards(self._fs, self._datadir))
        found, log = part.part, part.log
        return _topic(
            found.id,
            found.name,
            part.config,
            found.ceiling,
            log,
            part.segments,
            part.routers,
            part.origins,
            part.queue,
            names,
            shards,
        )

    # -- frames -------------------------------------------------------------------------------------------------------

    def frames(self, topic: str | None = None) -> Iterator[FrameFacts]:
        """Every frame: first the logs, shard by shard, then the segments, topic by topic; those of one topic only, if
        it is named (what a log says about no topic is then left out)."""
        self._format()
        parts = self._parts(self._snapshots()[1])
        names = {part.part.id: part.part.name for part in parts}
        self.progress.total = sum(size_of(self._fs, path) for _, path, _ in self._wal_files())
        self.progress.total += sum(
            segment.data_bytes for part in parts if topic in (None, part.part.name) for segment in part.segments
        )
        for ordinal, path, head in self._wal_files():
            for line in self._wal_frames(path, ordinal, head, names):
                if topic is None or line.topic == topic:
                    yield line
        for part in parts:
            if topic in (None, part.part.name):
                for segment in part.segments:
                    yield from self._segment_frames(part, segment)

    def _wal_frames(self, path: str, ordinal: int, head: WalHead, names: dict[int, str]) -> Iterator[FrameFacts]:
        handle = self._fs.open(path, read_only=True)
        try:
            size, at = handle.size(), head.first
            if head.problem is not None:
                yield FrameFacts(path, 0, None, "BadBytes", 0, None, 0, 0, size, [], "", "", head.problem)
                return
            log = LogFile(handle, size, ordinal, head.salt)
            number: int | None = ordinal
            while True:
                reason = "zeros"
                for scan, window, base in _scans(handle, head, at, size):
                    for frame in scan.frames:
                        with understood(f"the frame at offset {frame.offset} of {path}"):
                            facts = _wal_frame(path, frame, number, window, frames.Seeds(head.salt, base), names)
                        yield facts
                        number = number + 1 if number is not None else None
                    at, reason = scan.stop, scan.reason
                if reason != "bad":
                    return
                found = next((one.frame.offset for one in FrameSearch(log, at).found()), size)
                yield FrameFacts(path, at, None, "BadBytes", 0, None, 0, 0, found - at, [], "", "", "")
                at, number = found, None
        finally:
            handle.close()

    def _segment_frames(self, part: Part, segment: Segment) -> Iterator[FrameFacts]:
        if segment.tier == "gone" or (segment.tier == "cold" and self._tiers.cold is None):
            return
        store, name = self._tiers.of(segment), segment_name(segment.first, "data")
        root = self._datadir if segment.tier == "hot" else DataDir(self._cold or "")
        path = join(root.topic_dir(part.part.id), name)
        try:
            length = store.length(part.part.id, name)
        except FileNotFoundError:
            length = 0
        read = partial(store.read_range, part.part.id, name)
        layout = layout_of(read(0, FILE_HEADER_BYTES) if length else b"", segment.first, segment.salt)
        replaced = layout.header is not None and layout.salt != segment.salt
        end = length if segment.sealed else min(length, segment.data_bytes)
        for rows in frames_of(read, layout, end, range(segment.first, segment.end)):
            if isinstance(rows, BadBytes):
                yield _bad_bytes(path, part, "BadBytes", rows.start, rows.stop)
                continue
            base = rows.offset[0]
            window = read(base, rows.stop - base)
            places = [offset - base for offset in rows.offset]
            salt = layout.salt
            records, _ = decode_records(window, places, rows.frame_len, rows.seq, salt=salt, base=base)
            for i, record in enumerate(records):
                flags = [text for bit, text in _FLAGS if rows.flags[i] & bit]
                if reads_as_deleted(rows.delete_flag[i]):
                    flags.append("deleted")
                origin = None
                if rows.flags[i] & frames.HAS_ORIGIN:
                    sizes = (rows.frame_len[i],)
                    (opened,) = open_records(window, (places[i],), sizes, part.part.id, salt=salt, base=base)
                    origin = opened.origin if opened is not None else None
                yield FrameFacts(
                    path,
                    rows.offset[i],
                    None,
                    "Record",
                    part.part.id,
                    part.part.name,
                    record.seq,
                    record.ts,
                    rows.frame_len[i],
                    flags,
                    record.node.decode(),
                    record.tag.decode(),
                    _shown(record.meta, record.data, origin),
                )
        if length < segment.data_bytes and not replaced:
            yield _bad_bytes(path, part, "MissingBytes", length, segment.data_bytes)


def _bad_bytes(path: str, part: Part, kind: str, start: int, stop: int) -> FrameFacts:
    """A range of a `.data` file that holds no valid frames, or is not there any more."""
    of = part.part
    return FrameFacts(path, start, None, kind, of.id, of.name, 0, 0, stop - start, [], "", "", "")


def type_name(kind: int) -> str:
    """A frame type as the documents spell it."""
    return "".join(word.capitalize() for word in FrameType(kind).name.split("_"))


def _topic(
    topic_id: int,
    name: str,
    config: TopicConfig,
    ceiling: int,
    log: TopicLog,
    segments: list[Segment],
    routers: list[Router],
    origins: OriginSet | None,
    queue: Leases | None,
    names: dict[int, str],
    shards: int,
) -> TopicFacts:
    spans = log.stored.all()
    stored = sum(span.live for span in spans)
    return TopicFacts(
        id=topic_id,
        name=name,
        shard=shard_of(topic_id, max(shards, 1)),
        type=config.type,
        durability=config.durability,
        head_seq=log.head_seq,
        earliest_seq=log.earliest_seq,
        evict_floor=log.losses.evict_floor,
        ceiling=ceiling,
        count=log.count,
        bytes=log.bytes,
        last_ts=log.last_ts,
        unstored=log.count - stored,
        derived=sum(
            flag >= FLAG_DERIVED and not dead
            for run in log.index.capture_raw(log.head_seq)
            for flag, dead in zip(run.flags, run.dead, strict=True)
        ),
        routers=[
            RouterFacts(
                router.name,
                router.source_id,
                names.get(router.source_id),
                router.cursor,
                router.forwarded,
                router_to_wire(router.config),
            )
            for router in sorted(routers, key=lambda router: router.name)
        ],
        keeps_origins=origins is not None,
        queue=_queue(queue, log.count) if queue is not None else None,
        holes=holes_of(log.dump(raw=False)),
        segments=[_segment(segment, log) for segment in segments],
    )


def _queue(queue: Leases, count: int) -> QueueFacts:
    parked = len(queue.parked())
    return QueueFacts(queue.ready(count), queue.in_flight, queue.delayed - parked, parked, queue.dead_lettered)


def _segment(segment: Segment, log: TopicLog) -> SegmentFacts:
    span = log.stored.at(segment.end - 1)
    return SegmentFacts(
        segment.first,
        segment.end - 1,
        segment.tier,
        segment.sealed,
        segment.data_bytes,
        segment.frames,
        span.live if span is not None else None,
        segment.opened_ms,
    )


def _scans(handle: File, head: WalHead, at: int, size: int) -> Iterator[tuple[frames.Scan, bytes, int]]:
    """`scans`; a frame of a type that this version does not know is a DataDirError."""
    try:
        yield from scans(handle, head, at, size)
    except frames.UnknownFrameType as error:
        raise DataDirError(f"a newer version has written this: {error}") from error


def _wal_frame(
    path: str, frame: Frame, number: int | None, window: bytes, seeds: frames.Seeds, names: dict[int, str]
) -> FrameFacts:
    base = seeds.base
    node = tag = b""
    if frame.type == FrameType.APPEND:
        record = decode_append(window, frame.offset - base, frame.end - frame.offset, seeds)
        origin = frames.origin_at(window, base, frame) if frame.flags & frames.HAS_ORIGIN else None
        payload = _shown(record.meta, record.data, origin) if record is not None else "(malformed)"
        if record is not None:
            node, tag = record.node, record.tag
    else:
        fields = frames.control_payload(window, base, frame)
        if frame.type == FrameType.TOPIC_CREATE or (frame.type == FrameType.STAGE and "target" in fields):
            names[frame.topic_id] = fields["name"]
        with suppress(LookupError, TypeError, ValueError):  # else it is shown as it is
            fields = _readable(frame.type, fields, names)
        room = ROUTER_SHOWN if frame.type in (FrameType.ROUTER_CREATE, FrameType.FORWARDED) else SHOWN
        payload = _cut(" ".join(f"{key}={_value(value)}" for key, value in fields.items()), room)
    return FrameFacts(
        path,
        frame.offset,
        number,
        type_name(frame.type),
        frame.topic_id,
        names.get(frame.topic_id),
        frame.seq,
        frame.ts,
        frame.end - frame.offset,
        [text for bit, text in _FLAGS if frame.flags & bit],
        node.decode(),
        tag.decode(),
        payload,
    )


def _readable(kind: int, fields: dict[str, Any], names: dict[int, str]) -> dict[str, Any]:
    """The fields of a frame about a router, about stages or about jobs, in an order and a form for people."""
    if kind == FrameType.LEASE:
        return {
            "op": fields["op"],
            "seqs": _Text(_few(fields["seqs"])),
            **{name: fields[name] for name in ("node", "deadline", "available_at") if name in fields},
        }
    if kind == FrameType.DELETE and "seqs" in fields:
        return {**fields, "seqs": _Text(_few(fields["seqs"]))}
    if kind == FrameType.ROUTER_CREATE:
        name, source_id, cursor, copies, config = fields["router"]
        source = names.get(source_id, source_id)
        return {"router": name, "source": source, "cursor": cursor, "copies": copies, "config": config}
    if kind == FrameType.STAGE and "key" in fields:
        return {**fields, "stages": _Text(_cut(", ".join(fields["stages"])))}
    if kind != FrameType.FORWARDED:
        return fields
    told = ("router", "source", "from", "to", "count", "total")
    shown: dict[str, Any] = {name: fields[name] for name in told if name in fields}
    shown["source"] = names.get(shown["source"], shown["source"])
    if fields.get("trim"):
        shown["trim"] = True
    if "files" in fields:
        offsets = {extent[0]: extent[3] for extent in reversed(fields["extents"])}
        places = [f"{kind}/{owner}/{first}+{offsets[i]}" for i, (kind, owner, first) in enumerate(fields["files"])]
        shown["frames"] = _Text(", ".join(places))
    return shown


def _few(packed: bytes) -> str:
    """The first of some seqs, and how many there are."""
    seqs = from_little_endian("Q", packed)
    shown = ", ".join(map(str, seqs[:SEQS_SHOWN]))
    return shown if len(seqs) <= SEQS_SHOWN else f"{shown}, ... ({len(seqs)})"


class _Text(str):
    """Shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _value(value: Any) -> str:
    return f"<{len(value)} bytes>" if isinstance(value, bytes) else repr(value)


def _shown(meta: bytes, data: bytes, origin: Origin | None = None) -> str:
    text = data[: 4 * SHOWN].decode("utf-8", "replace")
    if origin is not None:
        text = f"origin={origin.topic_id}/{origin.seq} hops={origin.hops} {text}"
    return _cut(f"{text} meta={meta[: 4 * SHOWN].decode('utf-8', 'replace')}" if meta else text)


def _cut(text: str, room: int = SHOWN) -> str:
    return text if len(text) <= room else text[: room - 1] + "…"
