"""WAL frames: the byte layout, and the only functions that write and read it (`docs/spec/storage.md` section 2).

    off  size  field
      0     4  frame_len   bytes after this field; 0 is preallocated space, the clean end of a log
      4     1  type        see `FrameType`
      5     1  flags       see `HAS_TAG` ... `HAS_ORIGIN`
      6     8  topic_id    0 for frames about the shard itself
     14     8  seq         0 for frames that carry none
     22     8  ts          commit time, ms since the epoch
     30     2  node_len
     32     2  tag_len
     34     4  data_len    bytes of payload
     38        node | tag | payload
      .     8  xxh3_64     over everything between frame_len and here, seeded with `salt ^ offset of the frame`

All integers are little-endian. An Append's payload is `meta_len u32 | meta JSON | data JSON`, behind `origin topic id
u64 | origin seq u64 | hops u8` if it has HAS_ORIGIN. The payload of every other type is one canonical CBOR map. An
atomic batch is a run of frames: all but the last carry MORE, all but the first CONTINUES.

The salt is that of the file (`file_header`); a file of version 1 has none, and its seed is 0. So a frame is encoded in
two steps: its *body* (everything between frame_len and the checksum) when its contents are decided, and the checksum
when its place is known (`seal`). Frames without a place are `UnsealedFrames`.

This module knows bytes only. `recovery` interprets frames, `shard_writer` places them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import accumulate, repeat
from operator import add
from typing import Any, Final, NamedTuple

import cbor2
import xxhash

from topics.log.copies import Origin
from topics.storage.files.file_header import frame_seed


class FrameType(IntEnum):
    """Frame types of version 1. The numbers are on disk."""

    APPEND = 1
    TOPIC_CREATE = 2
    TOPIC_DELETE = 3
    ROUTER_CREATE = 4
    ROUTER_DELETE = 5
    DELETE = 6
    EVICT_WATERMARK = 7
    CHECKPOINT_MARK = 8
    CONFIG_UPDATE = 9
    LEASE = 10
    HEAD_WATERMARK = 11
    IDEMPOTENCY = 12
    FORWARDED = 13
    SYNCED = 14
    FILE_END = 15
    HOLE = 16
    SHARD_OPEN = 17
    CLEAN_STOP = 18
    STAGE = 19
    FENCE = 20
    CONSUMER = 21
    TRANSACTION = 22
    TRANSACTION_DECISION = 23
    GROUP = 24
    SCHEDULE = 25
    EVIDENCE = 26
    KEEP = 27
    BUCKET_CEILING = 28


_KNOWN: Final = frozenset(map(int, FrameType))

HAS_TAG: Final = 0x01
HAS_NODE: Final = 0x02
DURABLE: Final = 0x04
MORE: Final = 0x08
CONTINUES: Final = 0x10
HAS_ORIGIN: Final = 0x20

HEADER_BYTES: Final = 38
CHECKSUM_BYTES: Final = 8
MIN_FRAME_LEN: Final = HEADER_BYTES - 4 + CHECKSUM_BYTES
"""`frame_len` of a frame without node, tag and payload."""
SHORTEST_BYTES: Final = 4 + MIN_FRAME_LEN + 1
"""Bytes of the shortest frame that is ever written: its payload is an empty map."""
AROUND_BODY: Final = 4 + CHECKSUM_BYTES
"""Bytes of a frame besides its body."""

_LEN: Final = struct.Struct("<I")
_SUM: Final = struct.Struct("<Q")
ORIGIN: Final = struct.Struct("<QQB")
"""Topic id, seq and hops in front of a payload with HAS_ORIGIN."""
ORIGIN_BYTES: Final = ORIGIN.size
_SUM_AND_LEN: Final = struct.Struct("<QI")
_BODY: Final = struct.Struct("<BBQQQHHI")
_HEADER: Final = struct.Struct("<IBBQQQHHI")
# Header of an Append and the meta length behind it, for a plain record, which has neither node, tag nor meta.
_PLAIN: Final = struct.Struct("<10sQQIIxxxx")
_xxh3 = xxhash.xxh3_64_intdigest


class UnknownFrameType(Exception):
    """A frame with a valid checksum but an unknown type: a newer version has written it."""


class Frame(NamedTuple):
    """The header of a verified frame, and its place. `offset` counts from the start of its file."""

    offset: int
    frame_len: int
    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node_len: int
    tag_len: int
    data_len: int

    @property
    def end(self) -> int:
        """The offset behind the frame."""
        return self.offset + 4 + self.frame_len


class UnsealedFrames:
    """Frames without a place in a file, in order: their bodies, and the bytes that they will take on disk.
    Immutable."""

    __slots__ = ("bodies", "size")

    def __init__(self, bodies: Sequence[bytes], size: int) -> None:
        self.bodies = bodies
        self.size = size

    def __add__(self, other: UnsealedFrames) -> UnsealedFrames:
        return UnsealedFrames([*self.bodies, *other.bodies], self.size + other.size)

    def __len__(self) -> int:
        """Bytes on disk."""
        return self.size

    def sealed(self, salt: int | None, offset: int) -> bytes:
        """Return the bytes of the frames. The first goes to `offset` of a file with this salt."""
        return seal(self.bodies, salt, offset)


NOTHING: Final = UnsealedFrames((), 0)
"""No frames."""


def joined(parts: Iterable[UnsealedFrames]) -> UnsealedFrames:
    """Return the frames of all parts, in order."""
    kept = list(parts)
    return UnsealedFrames([body for part in kept for body in part.bodies], sum(part.size for part in kept))


class FrameSeeds(NamedTuple):
    """The seeds of the checksums of frames in a window of a file: the file's salt (None in version 1), and the offset
    of the window in the file."""

    salt: int | None
    base: int

    def at(self, index: int) -> int:
        """Return the seed of the frame that begins at `index` of the window."""
        return 0 if self.salt is None else self.salt ^ (self.base + index)

    def each(self, starts: Iterable[int]) -> Iterable[int]:
        """Return the seeds of the frames that begin at these indices."""
        salt, base = self.salt, self.base
        if salt is None:
            return repeat(0)
        return [salt ^ (base + at) for at in starts]  # costs half as much as `map` with bound methods


UNSEEDED: Final = FrameSeeds(None, 0)
"""For any window of a file of version 1."""


class AppendFrames(NamedTuple):
    """The encoded Append frames of one batch. `frame_lens` are their bytes on disk, `sizes` the bytes of data + meta of
    each, `flags` those kept in the index."""

    data: UnsealedFrames
    frame_lens: array[int]
    sizes: array[int]
    flags: bytes


def encode_control(
    kind: FrameType,
    payload: Mapping[str, Any],
    *,
    topic_id: int = 0,
    seq: int = 0,
    ts: int = 0,
    flags: int = 0,
) -> UnsealedFrames:
    """Return one frame with a CBOR payload."""
    blob = dump_payload(payload)
    body = _BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob
    return UnsealedFrames((body,), len(body) + AROUND_BODY)


def dump_payload(payload: Mapping[str, Any]) -> bytes:
    """Return a payload as CBOR, for `seal_payloads`."""
    return cbor2.dumps(payload, canonical=True)


def encode_appends(
    topic_id: int,
    first_seq: int,
    ts: int,
    datas: Sequence[bytes],
    *,
    nodes: Sequence[bytes] | None,
    tags: Sequence[bytes] | None,
    metas: Sequence[bytes] | None,
    durable: bool,
    closes_batch: bool,
    opens_batch: bool = True,
    origins: Sequence[Origin | None] | None = None,
) -> AppendFrames:
    """Return the frames of records with contiguous seqs from `first_seq`.

    `nodes`, `tags`, `metas` and `origins` are None when no record has one; an empty item means that this record has
    none. `closes_batch` is False if frames of the same batch follow, `opens_batch` if there are some before them.
    """
    if len(datas) == 1:
        return _encode_one(
            topic_id,
            first_seq,
            ts,
            datas[0],
            node=nodes[0] if nodes else b"",
            tag=tags[0] if tags else b"",
            meta=metas[0] if metas else b"",
            origin=origins[0] if origins else None,
            durable=durable,
            place=_PlaceInBatch(opens_batch, closes_batch),
        )
    if nodes is None and tags is None and metas is None and origins is None:
        place = _PlaceInBatch(opens_batch, closes_batch)
        return _encode_plain(topic_id, first_seq, ts, datas, durable=durable, place=place)
    count = len(datas)
    none = (b"",) * count
    nodes, tags, metas = nodes or none, tags or none, metas or none
    base = DURABLE if durable else 0
    kept = bytes([(HAS_TAG if tag else 0) | (HAS_NODE if node else 0) for node, tag in zip(nodes, tags, strict=True)])
    sizes = array("I", [len(meta) + len(data) for meta, data in zip(metas, datas, strict=True)])
    payloads = [size + 4 for size in sizes]
    prefixes: Sequence[bytes] = none
    if origins is not None:
        prefixes = [ORIGIN.pack(*origin) if origin else b"" for origin in origins]
        kept = bytes([own | (HAS_ORIGIN if prefix else 0) for own, prefix in zip(kept, prefixes, strict=True)])
        payloads = list(map(add, payloads, map(len, prefixes)))
    # Columns through `map`: no Python code runs per record, which is a quarter less than a loop.
    heads = map(
        _BODY.pack,
        repeat(1),
        _batch_flags(count, base, kept, _PlaceInBatch(opens_batch, closes_batch)),
        repeat(topic_id),
        range(first_seq, first_seq + count),
        repeat(ts),
        map(len, nodes),
        map(len, tags),
        payloads,
    )
    meta_lens = map(_LEN.pack, map(len, metas))
    bodies = list(map(b"".join, zip(heads, nodes, tags, prefixes, meta_lens, metas, datas, strict=True)))
    frame_lens = array("I", [len(body) + AROUND_BODY for body in bodies])
    return AppendFrames(UnsealedFrames(bodies, sum(frame_lens)), frame_lens, sizes, kept)


def seal(bodies: Sequence[bytes], salt: int | None, offset: int) -> bytes:
    """Return the frames with these bodies. The first goes to `offset` of a file with this salt.

    One pass for all frames of a write: no Python code runs per frame. A checksum and the length behind it are packed
    together, which saves a third of the pieces.
    """
    count = len(bodies)
    if count == 1:
        body = bodies[0]
        return _LEN.pack(len(body) + CHECKSUM_BYTES) + body + _SUM.pack(_xxh3(body, frame_seed(salt, offset)))
    if not count:
        return b""
    lens = [len(body) + CHECKSUM_BYTES for body in bodies]
    if salt is None:
        sums = list(map(_xxh3, bodies))
    else:
        offsets = accumulate(map((4).__add__, lens), initial=offset)
        sums = list(map(_xxh3, bodies, map(salt.__xor__, offsets)))
    parts: list[bytes] = [b""] * (2 * count + 1)
    parts[0] = _LEN.pack(lens[0])
    parts[1::2] = bodies
    parts[2:-1:2] = map(_SUM_AND_LEN.pack, sums, lens[1:])
    parts[-1] = _SUM.pack(sums[-1])
    return b"".join(parts)


class _PlaceInBatch(NamedTuple):
    """Whether frames are the first and the last ones of their batch."""

    opens: bool
    closes: bool


def _batch_flags(count: int, base: int, kept: bytes, place: _PlaceInBatch) -> list[int]:
    """Return each frame's flags: its own, the common ones, and those for its place in the batch."""
    flags = [base | own | MORE | CONTINUES for own in kept]
    if place.opens:
        flags[0] &= ~CONTINUES
    if place.closes:
        flags[-1] &= ~MORE
    return flags


def _encode_one(
    topic_id: int,
    seq: int,
    ts: int,
    data: bytes,
    *,
    node: bytes,
    tag: bytes,
    meta: bytes,
    origin: Origin | None,
    durable: bool,
    place: _PlaceInBatch,
) -> AppendFrames:
    """Encode one record by itself, at a third of the cost by columns."""
    prefix = ORIGIN.pack(*origin) if origin else b""
    own = (HAS_TAG if tag else 0) | (HAS_NODE if node else 0) | (HAS_ORIGIN if prefix else 0)
    flags = own | (DURABLE if durable else 0) | (0 if place.closes else MORE) | (0 if place.opens else CONTINUES)
    size = len(meta) + len(data)
    head = _BODY.pack(1, flags, topic_id, seq, ts, len(node), len(tag), len(prefix) + 4 + size)
    body = b"".join((head, node, tag, prefix, _LEN.pack(len(meta)), meta, data))
    length = len(body) + AROUND_BODY
    return AppendFrames(UnsealedFrames((body,), length), array("I", (length,)), array("I", (size,)), bytes((own,)))


def _encode_plain(
    topic_id: int, first_seq: int, ts: int, datas: Sequence[bytes], *, durable: bool, place: _PlaceInBatch
) -> AppendFrames:
    """Encode records that have data only. The hot loop."""
    count = len(datas)
    base = DURABLE if durable else 0
    middle = struct.pack("<BBQ", 1, base | MORE | CONTINUES, topic_id)
    sizes = array("I", map(len, datas))
    payload_lens = [size + 4 for size in sizes]
    seqs = range(first_seq, first_seq + count)
    bodies = list(map(add, map(_PLAIN.pack, repeat(middle), seqs, repeat(ts), repeat(0), payload_lens), datas))
    flags = _batch_flags(count, base, bytes(count), place)
    for i in {0, count - 1}:
        bodies[i] = bodies[i][:1] + bytes((flags[i],)) + bodies[i][2:]
    frame_lens = array("I", [size + MIN_FRAME_LEN + 8 for size in sizes])
    return AppendFrames(UnsealedFrames(bodies, sum(frame_lens)), frame_lens, sizes, bytes(count))


def seal_batch(
    frames: Sequence[tuple[FrameType, Mapping[str, Any]]], *, topic_id: int, ts: int, opened: bool, first_seq: int = 0
) -> UnsealedFrames:
    """Return control frames that are one batch, or (`opened`) end the batch that Append frames began. `first_seq` is
    the seq of the first of them."""
    out = []
    last = len(frames) - 1
    for i, (kind, payload) in enumerate(frames):
        flags = (CONTINUES if opened or i else 0) | (MORE if i < last else 0)
        seq = 0 if i else first_seq
        out.append(encode_control(kind, payload, topic_id=topic_id, seq=seq, ts=ts, flags=flags))
    return joined(out)


def seal_payloads(payloads: Sequence[tuple[FrameType, bytes, int]], *, topic_id: int, ts: int) -> UnsealedFrames:
    """Return control frames that are one batch, from encoded payloads, each with its seq.

    For payloads of megabytes: they are copied only once.
    """
    bodies = []
    last = len(payloads) - 1
    for i, (kind, blob, seq) in enumerate(payloads):
        flags = (CONTINUES if i else 0) | (MORE if i < last else 0)
        bodies.append(_BODY.pack(kind, flags, topic_id, seq, ts, 0, 0, len(blob)) + blob)
    return UnsealedFrames(bodies, sum(map(len, bodies)) + AROUND_BODY * len(bodies))


Row = tuple[int, int, int, int, int, int, int, int, int, int]
"""The fields of a `Frame` as a plain tuple, because replay makes millions of them."""


class LogScan(NamedTuple):
    """The verified frames of a window of a log, and why the scan ended.

    `ends` are the indices behind the last frame of each batch that ends here, `controls` those of frames other than
    Appends, `tagged` those of Appends with a tag, `copied` those with an origin. `stop` is the offset (in the file) of
    the first byte not consumed. `reason` is "window" if the window ended inside a frame that may be whole in the file,
    "zeros" at a frame_len of 0, "bad" at bytes that are not a valid frame.
    """

    rows: list[Row]
    ends: list[int]
    controls: list[int]
    tagged: list[int]
    copied: list[int]
    stop: int
    reason: str

    @property
    def frames(self) -> list[Frame]:
        """Return the rows as `Frame`s."""
        return [Frame._make(row) for row in self.rows]


def scan_window(window: bytes, base: int, *, file_end: int, salt: int | None) -> LogScan:
    """Verify frames from the start of `window`, which is at offset `base` of a file of `file_end` bytes with this salt.

    Raises `UnknownFrameType` for a frame of an unknown type with a valid checksum.
    """
    view = memoryview(window)
    unpack, unpack_sum, xxh3 = _HEADER.unpack_from, _SUM.unpack_from, _xxh3
    rows: list[Row] = []
    ends: list[int] = []
    controls: list[int] = []
    tagged: list[int] = []
    copied: list[int] = []
    add = rows.append
    size = len(window)
    at = 0
    reason = ""
    while not reason:
        if size - at < HEADER_BYTES:
            reason = "window" if base + size < file_end else "bad" if window[at:].strip(b"\x00") else "zeros"
            break
        frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len = unpack(window, at)
        end = at + 4 + frame_len
        if frame_len < MIN_FRAME_LEN:
            reason = "bad" if frame_len else "zeros"
        elif frame_len != MIN_FRAME_LEN + node_len + tag_len + data_len or base + end > file_end:
            reason = "bad"
        elif end > size:
            reason = "window"
        elif xxh3(view[at + 4 : end - 8], 0 if salt is None else salt ^ (base + at)) != unpack_sum(window, end - 8)[0]:
            reason = "bad"
        else:
            if kind != 1:
                if kind not in _KNOWN:
                    raise UnknownFrameType(f"frame of unknown type {kind} at offset {base + at}")
                controls.append(len(rows))
            else:
                if tag_len:
                    tagged.append(len(rows))
                if flags & HAS_ORIGIN:
                    copied.append(len(rows))
            add((base + at, frame_len, kind, flags, topic_id, seq, ts, node_len, tag_len, data_len))
            if not flags & MORE:
                ends.append(len(rows))
            at = end
    return LogScan(rows, ends, controls, tagged, copied, base + at, reason)


def origin_at(window: bytes, base: int, frame: Frame) -> Origin:
    """Return the origin that an Append carries. Raises ValueError if there is no room for one."""
    if frame.data_len < ORIGIN_BYTES:
        raise ValueError(f"the frame at offset {frame.offset} is too short for an origin")
    return Origin(*ORIGIN.unpack_from(window, frame.offset - base + HEADER_BYTES + frame.node_len + frame.tag_len))


def control_payload(window: bytes, base: int, frame: Frame) -> dict[str, Any]:
    """Return the CBOR map of a control frame in `window` (at offset `base` of the file). Raises ValueError, or a CBOR
    error."""
    end = frame.end - CHECKSUM_BYTES - base
    payload = cbor2.loads(window[end - frame.data_len : end])
    if not isinstance(payload, dict):
        raise ValueError(f"the payload at offset {frame.offset} is not a map")
    return payload


class StoredRecord(NamedTuple):
    """A decoded Append frame. Empty bytes mean that the record has no such part."""

    seq: int
    ts: int
    node: bytes
    tag: bytes
    meta: bytes
    data: bytes


def decode_append(window: bytes, at: int, size: int, seeds: FrameSeeds) -> StoredRecord | None:
    """Return the record of the Append frame of `size` bytes at index `at` of `window`; None if the bytes are no such
    frame."""
    end = at + size
    frame_len = size - 4
    if frame_len < MIN_FRAME_LEN + 4 or end > len(window):
        return None
    length, kind, flags, _topic, seq, ts, node_len, tag_len, data_len = _HEADER.unpack_from(window, at)
    if length != frame_len or kind != FrameType.APPEND or frame_len != MIN_FRAME_LEN + node_len + tag_len + data_len:
        return None
    if data_len < (ORIGIN_BYTES + 4 if flags & HAS_ORIGIN else 4):
        return None
    if _xxh3(memoryview(window)[at + 4 : end - 8], seeds.at(at)) != _SUM.unpack_from(window, end - 8)[0]:
        return None
    node_at = at + HEADER_BYTES
    tag_at = node_at + node_len
    payload_at = tag_at + tag_len + (ORIGIN_BYTES if flags & HAS_ORIGIN else 0)
    meta_at = payload_at + 4
    data_at = meta_at + _LEN.unpack_from(window, payload_at)[0]
    if data_at > end - 8:
        return None
    return StoredRecord(
        seq,
        ts,
        window[node_at:tag_at],
        window[tag_at : tag_at + tag_len],
        window[meta_at:data_at],
        window[data_at : end - 8],
    )


def are_appends(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    topic_id: int,
    seqs: Sequence[int],
    seeds: FrameSeeds,
) -> bool:
    """Return True if there are verified Append frames of this topic and these seqs at these indices of `window`, all
    without an origin. A third of a microsecond each, where `open_append` takes five."""
    view = memoryview(window)
    size_of_window = len(window)
    count = len(starts)
    if len(frame_lens) != count or len(seqs) != count:
        raise ValueError("the columns of the frames differ in length")
    for at, size, seq, seed in zip(starts, frame_lens, seqs, seeds.each(starts), strict=False):
        end = at + size
        if end > size_of_window or size < HEADER_BYTES + 4 + CHECKSUM_BYTES:
            return False
        length, kind, flags, owner, number, _, node_len, tag_len, data_len = _HEADER.unpack_from(window, at)
        if kind != 1 or flags & HAS_ORIGIN or owner != topic_id or number != seq or length != size - 4:
            return False
        if length != MIN_FRAME_LEN + node_len + tag_len + data_len or data_len < 4:
            return False
        if _xxh3(view[at + 4 : end - 8], seed) != _SUM.unpack_from(window, end - 8)[0]:
            return False
    return True


class OpenedRecord(NamedTuple):
    """A decoded frame with what a copy needs of it: its origin, which is the frame's own topic and seq if it carries
    none."""

    origin: Origin
    node: bytes
    tag: bytes
    meta: bytes
    data: bytes


def open_append(window: bytes, at: int, size: int, seeds: FrameSeeds) -> OpenedRecord | None:
    """Return the record of the Append frame of `size` bytes at index `at` of `window`, with its origin; None if the
    bytes are no such frame."""
    record = decode_append(window, at, size, seeds)
    if record is None:
        return None
    _, _, flags, topic_id, seq, _, node_len, tag_len, _ = _HEADER.unpack_from(window, at)
    origin = Origin(topic_id, seq, 0)
    if flags & HAS_ORIGIN:
        origin = Origin(*ORIGIN.unpack_from(window, at + HEADER_BYTES + node_len + tag_len))
    return OpenedRecord(origin, record.node, record.tag, record.meta, record.data)


def offsets_of(start: int, frame_lens: Iterable[int]) -> list[int]:
    """Return the offset of each frame of a run that begins at `start`, from their bytes on disk."""
    out = list(accumulate(frame_lens, initial=start))
    out.pop()
    return out


def digest(data: bytes) -> int:
    """XXH3-64, the checksum of every frame and the hash that maps a topic to its shard."""
    return _xxh3(data)
