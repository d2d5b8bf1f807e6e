"""Frames on disk, one after another, for people: `inspect --frames`.

Responsible for reading the frames of a file of the log or of a segment, and for showing each in a line. Nothing is
judged: bytes that are no frame are shown as such, and the next frame is searched for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from topics.log.copies import Origin
from topics.log.dumped_values import from_little_endian
from topics.storage.files.datadir import DataDir, DataDirError, segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import File, Fs, join
from topics.storage.offline.topic_parts import StoredPart
from topics.storage.recovery.recovered_state import understood
from topics.storage.segments.segment_format import decode_records, open_records, reads_as_deleted
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import BadBytes, frames_of, layout_of
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal import frames
from topics.storage.wal.frame_search import FrameSearch, LogFile
from topics.storage.wal.frames import Frame, FrameType, decode_append
from topics.storage.wal.wal_head import WalHead, WalWindow, scans

SHOWN: Final = 80
ROUTER_SHOWN: Final = 240
"""Characters of a payload that a dump shows, and of the longer ones about routers."""

SEQS_SHOWN: Final = 4
"""Seqs of jobs that a dump shows of a frame about jobs."""

_FLAGS: Final = (
    (frames.HAS_TAG, "tag"),
    (frames.HAS_NODE, "node"),
    (frames.DURABLE, "durable"),
    (frames.MORE, "more"),
    (frames.CONTINUES, "continues"),
    (frames.HAS_ORIGIN, "origin"),
)


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """One frame, of the WAL or of a segment. `number` is its ordinal in its shard, None if unknown.

    `type` is "Record" in a segment, "BadBytes" for bytes that are no frame, and "MissingBytes" for `bytes` bytes that a
    `.data` does not have any more.
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


class FrameDump:
    """Reads the frames of one file after another."""

    def __init__(self, fs: Fs, tiers: SegmentTiers, datadir: DataDir, cold: str | None, names: dict[int, str]) -> None:
        """`names` are those of topics by id; topics whose creation is met are added. `cold` is the directory of the
        cold tier."""
        self._fs = fs
        self._tiers = tiers
        self._datadir = datadir
        self._cold = cold
        self._names = names

    def of_log(self, path: str, ordinal: int, head: WalHead) -> Iterator[FrameFacts]:
        """Yield the frames of a file of the log, and the ranges that have none. Raises DataDirError, OSError."""
        with self._fs.open(path, read_only=True) as handle:
            size, at = handle.size(), head.first
            if head.problem is not None:
                yield FrameFacts(path, 0, None, "BadBytes", 0, None, 0, 0, size, [], "", "", head.problem)
                return
            log = LogFile(handle, size, ordinal, head.salt)
            number: int | None = ordinal
            while True:
                reason = "zeros"
                for scan, window, base in verified_scans(handle, head, at, size):
                    for frame in scan.frames:
                        with understood(f"the frame at offset {frame.offset} of {path}"):
                            facts = _wal_frame(
                                path, frame, number, window, frames.FrameSeeds(head.salt, base), self._names
                            )
                        yield facts
                        number = number + 1 if number is not None else None
                    at, reason = scan.stop, scan.reason
                if reason != "bad":
                    return
                found = next((one.frame.offset for one in FrameSearch(log, at).found()), size)
                yield FrameFacts(path, at, None, "BadBytes", 0, None, 0, 0, found - at, [], "", "", "")
                at, number = found, None

    def of_segment(self, part: StoredPart, segment: Segment) -> Iterator[FrameFacts]:
        """Yield the frames of a segment, and the ranges that have none; nothing if its tier is not given. Raises
        OSError."""
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


def _bad_bytes(path: str, part: StoredPart, kind: str, start: int, stop: int) -> FrameFacts:
    """Return a range of a `.data` file that has no valid frames, or is missing."""
    of = part.part
    return FrameFacts(path, start, None, kind, of.id, of.name, 0, 0, stop - start, [], "", "", "")


def type_name(kind: int) -> str:
    """Return the name of a frame type as the documents spell it."""
    return "".join(word.capitalize() for word in FrameType(kind).name.split("_"))


def verified_scans(handle: File, head: WalHead, at: int, size: int) -> Iterator[WalWindow]:
    """Like `scans`, but a frame of an unknown type is a DataDirError."""
    try:
        yield from scans(handle, head, at, size)
    except frames.UnknownFrameType as error:
        raise DataDirError(f"a newer version has written this: {error}") from error


def _wal_frame(
    path: str, frame: Frame, number: int | None, window: bytes, seeds: frames.FrameSeeds, names: dict[int, str]
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
            names[frame.topic_id] = str(fields.get("name"))
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
    """Return the fields of a frame about a router, stages or jobs, in an order and a form for people."""
    if kind == FrameType.LEASE:
        return {
            "op": fields["op"],
            "seqs": _PlainText(_few(fields["seqs"])),
            **{name: fields[name] for name in ("node", "deadline", "available_at") if name in fields},
        }
    if kind == FrameType.GROUP and "seqs" in fields:
        return {
            "group": fields["group"],
            "op": fields["op"],
            "seqs": _PlainText(_few(fields["seqs"])),
            **{name: fields[name] for name in ("node", "deadline", "available_at") if name in fields},
        }
    if kind == FrameType.DELETE and "seqs" in fields:
        return {**fields, "seqs": _PlainText(_few(fields["seqs"]))}
    if kind == FrameType.KEEP:
        return {name: _PlainText(_few(fields[name])) for name in ("seqs", "nulls") if name in fields}
    if kind == FrameType.ROUTER_CREATE:
        name, source_id, cursor, copies, config = fields["router"]
        source = names.get(source_id, source_id)
        return {"router": name, "source": source, "cursor": cursor, "copies": copies, "config": config}
    if kind == FrameType.STAGE and "key" in fields:
        return {**fields, "stages": _PlainText(_cut(", ".join(fields["stages"])))}
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
        shown["frames"] = _PlainText(", ".join(places))
    return shown


def _few(packed: bytes) -> str:
    """Return the first of some seqs, and their number."""
    seqs = from_little_endian("Q", packed)
    shown = ", ".join(map(str, seqs[:SEQS_SHOWN]))
    return shown if len(seqs) <= SEQS_SHOWN else f"{shown}, ... ({len(seqs)})"


class _PlainText(str):
    """A text that is shown without quotes."""

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
