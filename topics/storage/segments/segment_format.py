"""`.data` files of segments: the byte layout, and the only functions that write and read it (`docs/spec/storage.md`
section 4).

A `.data` of version 2 begins with a header (`file_header`). Its salt and the offset of each frame are the seed of that
frame's checksum. One of version 1 has no header, its frames begin at offset 0 and their checksums have no seed (`salt`
is None throughout). `segment_scan` deals with damaged headers.

A frame of `.data`; `delete_flag` is the only byte that is ever written again:

    off  size  field
      0     4  frame_len    bytes after this field, `delete_flag` included
      4     1  flags        HAS_TAG, HAS_NODE and HAS_ORIGIN of the WAL, nothing else
      5     8  seq
     13     8  ts           commit time, ms since the epoch
     21     2  node_len
     23     2  tag_len
     25     4  data_len     bytes of payload
     29        node | tag | payload
      .     8  xxh3_64      over everything between frame_len and here
      .     1  delete_flag  0x00 live, 0xD5 deleted

The payload is that of a WAL Append: `[origin topic u64 | origin seq u64 | hops u8, with HAS_ORIGIN] meta_len u32 | meta
JSON | data JSON`. So a segment frame is its WAL frame less type and topic, with fewer flags and a flag more.

All integers are little-endian. Nothing here does I/O. The writers and loaders of segments decide which frames make a
segment, and which bytes to believe if files disagree.

No Python code runs per record: columns are cut out of joined headers by strided slices and compared as a whole. Only
when a comparison fails is the run halved until the bad frames are found.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, repeat
from operator import add, itemgetter, le, sub, xor
from typing import Final, NamedTuple

import xxhash

from topics.log.copies import Origin
from topics.log.dumped_values import from_little_endian, little_endian
from topics.storage.files.file_header import frame_seed
from topics.storage.wal import frames
from topics.storage.wal.frames import (
    HAS_NODE,
    HAS_ORIGIN,
    HAS_TAG,
    ORIGIN,
    ORIGIN_BYTES,
    UNSEEDED,
    FrameSeeds,
    FrameType,
    OpenedRecord,
    StoredRecord,
)

KEPT_FLAGS: Final = HAS_TAG | HAS_NODE | HAS_ORIGIN
"""The flags of a WAL frame that are kept in the segment."""


HEADER_BYTES: Final = 29


TRAILER_BYTES: Final = 9
"""Checksum and delete flag."""


_AROUND: Final = HEADER_BYTES + TRAILER_BYTES


MIN_FRAME_BYTES: Final = _AROUND + 4
"""Bytes on disk of a frame without node, tag, meta and data: the payload has at least its `meta_len`."""


LIVE_FLAG: Final = 0x00


DELETED_FLAG: Final = 0xD5


# Lengths on disk of a WAL Append: segment frames lack type and topic_id (9) and have a delete flag (1).
_WAL_MIN: Final = frames.HEADER_BYTES + 4 + frames.CHECKSUM_BYTES


_SHORTER: Final = 8


_LEN: Final = struct.Struct("<I")


_SUM: Final = struct.Struct("<Q")


_HEADER: Final = struct.Struct("<IBQQHHI")


_WAL_LENGTHS: Final = struct.Struct("<B24xHHI")  # flags and lengths, from the flags on


_COPY_HEAD: Final = struct.Struct("<BQQHHI")


_TRAILER: Final = struct.Struct("<Qx")  # the padding is LIVE_FLAG


_TRAILER_AND_LEN: Final = struct.Struct("<QxI")


xxh3 = xxhash.xxh3_64_intdigest


_KEPT: Final = bytes(flags & KEPT_FLAGS for flags in range(256))


_TAGGED: Final = bytes(flags & HAS_TAG for flags in range(256))


_BYTES: Final = [bytes((value,)) for value in range(256)]


_WAL_HEAD_BYTES: Final = 22  # up to and with seq


_WAL_HEAD: Final = itemgetter(slice(0, _WAL_HEAD_BYTES))


_WAL_BODY: Final = itemgetter(slice(4, -8))


_WAL_KEPT: Final = itemgetter(slice(14, -8))


_WAL_SUM: Final = itemgetter(slice(-8, None))


_HEAD_BYTES: Final = HEADER_BYTES + 4  # with the `meta_len` of a record that has neither node, tag nor origin


_HEAD: Final = itemgetter(slice(0, _HEAD_BYTES))


_BODY: Final = itemgetter(slice(4, -9))


_PLAIN_DATA: Final = itemgetter(slice(_HEAD_BYTES, -9))


_FRAME_SUM: Final = itemgetter(slice(-9, -1))


_BEFORE_SUM: Final = itemgetter(slice(0, -9))


_FLAG: Final = itemgetter(slice(-1, None))


_LAST: Final = itemgetter(-1)


_FAST_BYTES: Final = 1 << 12
"""A smaller window is scanned frame by frame, because it may be a candidate that is no frame."""


_record: Final = partial(tuple.__new__, StoredRecord)  # `StoredRecord._make` without its Python frame


class SegmentDamaged(Exception):
    """A derived file was changed or belongs to another segment. It must be rebuilt from `.data`."""


def reads_as_deleted(flag: int) -> bool:
    """Return True if a delete flag hides its record. Two changed bits do not bring a deleted record back."""
    return (flag ^ DELETED_FLAG).bit_count() <= 2


def flag_is_valid(flag: int) -> bool:
    """Return True if a delete flag has one of the two values that are written; any other is damage."""
    return flag in (LIVE_FLAG, DELETED_FLAG)


READS_AS_DELETED: Final = bytes(map(reads_as_deleted, range(256)))
"""`flags.translate(READS_AS_DELETED)` has 1 for deleted, 0 for live."""


def delete_flag_offset(offset: int, frame_len: int) -> int:
    """Return the offset of a frame's delete flag in `.data`, from its offset and its bytes on disk."""
    return offset + frame_len - 1


class ConvertedFrames(NamedTuple):
    """Segment frames made from WAL frames: joined in order, their bytes on disk, and the positions of those that were
    bad.

    Bad ones have a length of 0 and no bytes in `data`.
    """

    data: bytes
    frame_lens: array[int]
    bad: list[int]


def convert_appends(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    seqs: Sequence[int],
    seeds: FrameSeeds = UNSEEDED,
    *,
    salt: int | None = None,
    offset: int = 0,
) -> ConvertedFrames:
    """Return segment frames of the WAL Append frames at these indices of `window`, all of them live. `seeds` are those
    of the WAL file.

    `frame_lens` are bytes on disk. The new frames are for a `.data` with this `salt`, from `offset` on. A frame that is
    not an Append of its seq with a valid checksum is bad. Under a microsecond per record of 100 bytes.
    """
    count = len(starts)
    if not count:
        return ConvertedFrames(b"", array("I"), [])
    converted = _convert(window, starts, frame_lens, seqs, seeds, salt, offset)
    if converted is not None:
        return converted
    if count == 1:
        return ConvertedFrames(b"", array("I", (0,)), [0])
    half = count // 2
    left = convert_appends(window, starts[:half], frame_lens[:half], seqs[:half], seeds, salt=salt, offset=offset)
    offset += len(left.data)
    right = convert_appends(window, starts[half:], frame_lens[half:], seqs[half:], seeds, salt=salt, offset=offset)
    bad = left.bad + [half + i for i in right.bad]
    return ConvertedFrames(left.data + right.data, left.frame_lens + right.frame_lens, bad)


def _convert(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    seqs: Sequence[int],
    seeds: FrameSeeds,
    salt: int | None,
    offset: int,
) -> ConvertedFrames | None:
    """Convert all frames, or return None if any of them is bad. The hot loop.

    Lengths inside a frame are not checked: bytes with a valid checksum are those that an append wrote.
    """
    if min(frame_lens) < _WAL_MIN:
        return None
    whole = _cut(window, starts, frame_lens)
    heads = b"".join(map(_WAL_HEAD, whole))
    count = len(whole)
    if len(heads) != count * _WAL_HEAD_BYTES or heads[4::_WAL_HEAD_BYTES].count(FrameType.APPEND) != count:
        return None
    if not _heads_hold(heads, _WAL_HEAD_BYTES, 14, frame_lens, seqs):
        return None
    sums = array("Q", map(xxh3, map(_WAL_BODY, whole), seeds.each(starts)))
    if b"".join(map(_WAL_SUM, whole)) != little_endian(sums):
        return None
    flags = heads[5::_WAL_HEAD_BYTES].translate(_KEPT)
    same = flags.count(flags[0]) == count
    first_bytes = repeat(_BYTES[flags[0]]) if same else map(_BYTES.__getitem__, flags)
    bodies = list(map(add, first_bytes, map(_WAL_KEPT, whole)))
    lens = _each_less(frame_lens, _SHORTER)
    return ConvertedFrames(_join(bodies, lens, salt, offset), lens, [])


def convert_derived(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    seqs: Sequence[int],
    times: Sequence[int],
    topic_id: int,
    origin_seqs: Sequence[int],
    hops: int | None,
    seeds: FrameSeeds = UNSEEDED,
    *,
    salt: int | None = None,
    offset: int = 0,
) -> ConvertedFrames | None:
    """Return segment frames of copies that look like the WAL Appends that they were made from, which are those of
    `topic_id` and `origin_seqs`. None if any of them is not, does not verify, or carries an origin of its own. A
    microsecond each.

    `hops` is None for committed stage records, which have no origin. `salt` and `offset` as in `convert_appends`.
    """
    if not frames.are_appends(window, starts, frame_lens, topic_id, origin_seqs, seeds):
        return None
    bodies = []
    for at, size, seq, ts, origin_seq in zip(starts, frame_lens, seqs, times, origin_seqs, strict=True):
        flags, node_len, tag_len, data_len = _WAL_LENGTHS.unpack_from(window, at + 5)
        begin = at + frames.HEADER_BYTES
        if hops is None:
            head = _COPY_HEAD.pack(flags & KEPT_FLAGS, seq, ts, node_len, tag_len, data_len)
            bodies.append(head + window[begin : at + size - 8])
            continue
        payload_at = begin + node_len + tag_len
        head = _COPY_HEAD.pack(flags & KEPT_FLAGS | HAS_ORIGIN, seq, ts, node_len, tag_len, data_len + ORIGIN_BYTES)
        origin = ORIGIN.pack(topic_id, origin_seq, hops)
        bodies.append(head + window[begin:payload_at] + origin + window[payload_at : at + size - 8])
    lens = array("I", [len(body) + 4 + TRAILER_BYTES for body in bodies])
    return ConvertedFrames(_join(bodies, lens, salt, offset), lens, [])


def encode_copies(
    records: Sequence[StoredRecord], origins: Sequence[Origin | None], *, salt: int | None = None, offset: int = 0
) -> ConvertedFrames:
    """Return segment frames of copies, from the records as their readers see them; committed stage records have no
    origin. `salt` and `offset` as in `convert_appends`."""
    bodies = []
    for record, origin in zip(records, origins, strict=True):
        prefix = ORIGIN.pack(*origin) if origin is not None else b""
        flags = (HAS_ORIGIN if prefix else 0) | (HAS_TAG if record.tag else 0) | (HAS_NODE if record.node else 0)
        size = len(prefix) + 4 + len(record.meta) + len(record.data)
        head = _COPY_HEAD.pack(flags, record.seq, record.ts, len(record.node), len(record.tag), size)
        payload = prefix, _LEN.pack(len(record.meta)), record.meta, record.data
        bodies.append(b"".join((head, record.node, record.tag, *payload)))
    lens = array("I", [len(body) + 4 + TRAILER_BYTES for body in bodies])
    return ConvertedFrames(_join(bodies, lens, salt, offset), lens, []) if bodies else ConvertedFrames(b"", lens, [])


def _cut(window: bytes, starts: Sequence[int], frame_lens: Sequence[int]) -> list[bytes]:
    """Return the bytes of each frame; one that reaches beyond the window is too short, so that its checksum is
    wrong."""
    return list(map(window.__getitem__, map(slice, starts, map(add, starts, frame_lens))))


def _heads_hold(heads: bytes, stride: int, seq_at: int, frame_lens: Sequence[int], seqs: Sequence[int]) -> bool:
    """Return True if these joined heads are of frames with these lengths and seqs."""
    return strided_column(heads, 0, "I", stride) == _each_less(frame_lens, 4) and (
        strided_column(heads, seq_at, "Q", stride) == array("Q", seqs)
    )


def _each_less(values: Sequence[int], by: int) -> array[int]:
    """Return each of these values below 2**32 less `by`. None is less than `by`, so one subtraction of long integers
    does it without a borrow between values."""
    given = little_endian(values if isinstance(values, array) and values.typecode == "I" else array("I", values))
    less = int.from_bytes(given, "little") - int.from_bytes(_LEN.pack(by) * len(values), "little")
    return from_little_endian("I", less.to_bytes(len(given), "little"))


def strided_column(heads: bytes, at: int, typecode: str, stride: int) -> array[int]:
    """Return the field at `at` of each of the joined heads, which are `stride` bytes each."""
    width = 8 if typecode == "Q" else 4
    out = bytearray(len(heads) // stride * width)
    for i in range(width):
        out[i::width] = heads[at + i :: stride]
    return from_little_endian(typecode, bytes(out))


def digests(bodies: Iterable[bytes], salt: int | None, starts: Iterable[int], base: int = 0) -> Iterator[int]:
    """Yield the checksums of frames with these bodies, which begin `starts` behind offset `base` of their file. Like
    `frame_seed` for each, without a Python call per frame."""
    if salt is None:
        return map(xxh3, bodies)
    return map(xxh3, bodies, [salt ^ (base + at) for at in starts])


def _join(bodies: Sequence[bytes], lens: array[int], salt: int | None, offset: int) -> bytes:
    """Return the frames around these bodies. The bytes between two bodies are packed as one piece, as in the WAL."""
    sums = list(digests(bodies, salt, accumulate(lens, initial=offset)))
    parts: list[bytes] = [b""] * (2 * len(bodies) + 1)
    parts[0] = _LEN.pack(lens[0] - 4)
    parts[1::2] = bodies
    parts[2:-1:2] = map(_TRAILER_AND_LEN.pack, sums, _each_less(lens[1:], 4))
    parts[-1] = _TRAILER.pack(sums[-1])
    return b"".join(parts)


def flags_of_data(data: bytes, frame_lens: Sequence[int]) -> bytes:
    """Return the flags of converted frames, from `ConvertedFrames.data` and `.frame_lens`; 0 for a bad one."""
    starts = frames.offsets_of(0, frame_lens)
    return bytes([data[at + 4] if size else 0 for at, size in zip(starts, frame_lens, strict=True)])


def tags_of_data(data: bytes, frame_lens: Sequence[int]) -> list[str | None]:
    """Return the tags of converted frames, from `ConvertedFrames.data` and `.frame_lens`; None for a bad one.

    Verifies nothing.
    """
    tags: list[str | None] = [None] * len(frame_lens)
    flags = flags_of_data(data, frame_lens)
    if not any(flags.translate(_TAGGED)):
        return tags
    starts = frames.offsets_of(0, frame_lens)
    unpack = _HEADER.unpack_from
    for i, flag in enumerate(flags):
        if flag & HAS_TAG:
            at = starts[i]
            _len, _flags, _seq, _ts, node_len, tag_len, _data_len = unpack(data, at)
            tag_at = at + HEADER_BYTES + node_len
            tags[i] = data[tag_at : tag_at + tag_len].decode()
    return tags


class DataScan(NamedTuple):
    """The verified frames of a window of `.data` as columns, and why the scan ended.

    `size` is bytes of meta and data, `frame_len` bytes on disk, `delete_flag` as found. `stop` is the offset (in the
    file) of the first byte not consumed; `reason` is "end" at the file's end, "window" if the window ended inside a
    frame that may be whole in the file, "bad" at bytes that are no valid frame.
    """

    seq: array[int]
    offset: array[int]
    frame_len: array[int]
    ts: array[int]
    flags: bytes
    size: array[int]
    tag: list[str | None]
    delete_flag: bytearray
    stop: int
    reason: str


def scan_data(window: bytes, base: int, *, end: int, salt: int | None = None) -> DataScan:
    """Verify frames from the start of `window`, which is at offset `base` of a file with this `salt` and `end` valid
    bytes.

    Bytes of the window beyond `end` are ignored.
    """
    if len(window) >= _FAST_BYTES:
        scanned = _scan_valid(window, base, end, salt)
        if scanned is not None:
            return scanned
    unpack, unpack_sum, unpack_len, checksum = _HEADER.unpack_from, _SUM.unpack_from, _LEN.unpack_from, xxh3
    view = memoryview(window)
    found: list[tuple[int, int, int, int, int]] = []
    tags: list[str | None] = []
    flags = bytearray()
    delete_flags = bytearray()
    size = max(0, min(len(window), end - base))
    at = 0
    reason = "end"
    while at < size:
        if size - at < HEADER_BYTES:
            reason = "window" if base + size < end else "bad"
            break
        frame_len, flag, seq, ts, node_len, tag_len, data_len = unpack(window, at)
        behind = at + 4 + frame_len
        fixed = 21 if flag & HAS_ORIGIN else 4
        payload_at = at + HEADER_BYTES + node_len + tag_len
        if behind != payload_at + data_len + TRAILER_BYTES or data_len < fixed or base + behind > end:
            reason = "bad"
            break
        if behind > size:
            reason = "window"
            break
        body_end = behind - TRAILER_BYTES
        if (
            checksum(view[at + 4 : body_end], frame_seed(salt, base + at)) != unpack_sum(window, body_end)[0]
            or unpack_len(window, payload_at + fixed - 4)[0] > data_len - fixed
        ):
            reason = "bad"
            break
        try:
            tags.append(str(view[payload_at - tag_len : payload_at], "utf-8") if tag_len else None)
        except UnicodeDecodeError:
            reason = "bad"
            break
        found.append((seq, base + at, 4 + frame_len, ts, data_len - fixed))
        flags.append(flag)
        delete_flags.append(window[behind - 1])
        at = behind
    if reason == "end" and base + at < end:
        reason = "window"
    columns: list[tuple[int, ...]] = list(zip(*found, strict=True)) or [()] * 5
    return DataScan(
        seq=array("Q", columns[0]),
        offset=array("I", columns[1]),
        frame_len=array("I", columns[2]),
        ts=array("Q", columns[3]),
        flags=bytes(flags),
        size=array("I", columns[4]),
        tag=tags,
        delete_flag=delete_flags,
        stop=base + at,
        reason=reason,
    )


def _scan_valid(window: bytes, base: int, end: int, salt: int | None) -> DataScan | None:
    """Scan a window that has only valid frames without origins, in half the time; None if it is another."""
    size = max(0, min(len(window), end - base))
    starts: list[int] = []
    add_start, unpack_len = starts.append, _LEN.unpack_from
    at = 0
    while at + MIN_FRAME_BYTES <= size:
        add_start(at)
        at += 4 + unpack_len(window, at)[0]
    if at > size:
        at = starts.pop()
        if base + at + 4 + unpack_len(window, at)[0] > end:
            return None
    if not starts or (at < size and base + size == end):
        return None
    lens = list(map(sub, [*starts[1:], at], starts))
    if min(lens) < MIN_FRAME_BYTES:
        return None
    whole = _cut(window, starts, lens)
    if b"".join(map(_FRAME_SUM, whole)) != little_endian(array("Q", digests(map(_BODY, whole), salt, starts, base))):
        return None
    heads = b"".join(map(_HEAD, whole))
    flags = heads[4::_HEAD_BYTES]
    if any(flag & HAS_ORIGIN for flag in set(flags)):
        return None
    payload = _each_less(lens, _AROUND).tolist()
    tags: list[str | None] = [None] * len(lens)
    names = strided_column(heads, 21, "I", _HEAD_BYTES)
    metas = strided_column(heads, 29, "I", _HEAD_BYTES)
    if any(names):
        for i, name in enumerate(names):
            if name:
                node_len, tag_len = name & 0xFFFF, name >> 16
                payload[i] -= node_len + tag_len
                meta_at = HEADER_BYTES + node_len + tag_len
                if payload[i] < 4:
                    return None
                metas[i] = unpack_len(whole[i], meta_at)[0]
                try:
                    tags[i] = str(whole[i][meta_at - tag_len : meta_at], "utf-8") if tag_len else None
                except UnicodeDecodeError:
                    return None
    lengths_hold = min(payload) >= 4 and strided_column(heads, 25, "I", _HEAD_BYTES) == array("I", payload)
    if not lengths_hold or not all(map(le, map(add, metas, repeat(4)), payload)):
        return None
    return DataScan(
        seq=strided_column(heads, 5, "Q", _HEAD_BYTES),
        offset=array("I", map(add, starts, repeat(base))),
        frame_len=array("I", lens),
        ts=strided_column(heads, 13, "Q", _HEAD_BYTES),
        flags=flags,
        size=_each_less(payload, 4),
        tag=tags,
        delete_flag=bytearray(map(_LAST, whole)),
        stop=base + at,
        # The rest of the window is the beginning of a frame, or not a frame.
        reason=scan_data(window[at:], base + at, end=end, salt=salt).reason
        if at < size
        else "end"
        if base + at == end
        else "window",
    )


def moved_frames(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    *,
    salt: int | None,
    base: int,
    to: int,
    offset: int,
) -> bytes:
    """Return the frames at these indices of `window`, joined, as they are in a file with the salt `to` from `offset`
    on.

    `window` is at offset `base` of a file with the salt `salt`. A frame that does not verify does not verify in the new
    place either; bytes of a frame that are not in the window become zeros.
    """
    whole = _cut(window, starts, frame_lens)
    if sum(map(len, whole)) != sum(frame_lens):
        whole = [frame.ljust(size, b"\0") for frame, size in zip(whole, frame_lens, strict=True)]
    bodies = list(map(_BODY, whole))
    found = from_little_endian("Q", b"".join(map(_FRAME_SUM, whole)))
    before = digests(bodies, salt, starts, base)
    behind = digests(bodies, to, accumulate(frame_lens, initial=offset))
    sums = map(xor, map(xor, found, before), behind)  # a wrong checksum stays wrong by the same difference
    parts: list[bytes] = [b""] * (3 * len(whole))
    parts[0::3] = map(_BEFORE_SUM, whole)
    parts[1::3] = map(_SUM.pack, sums)
    parts[2::3] = map(_FLAG, whole)
    return b"".join(parts)


def decode_records(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    seqs: Sequence[int],
    *,
    salt: int | None = None,
    base: int = 0,
) -> tuple[list[StoredRecord], list[int]]:
    """Return the records of the frames at these indices of `window`, and the seqs of those that do not verify. `window`
    is at offset `base` of a file with this `salt`.

    `frame_lens` are bytes on disk. Delete flags are ignored: the index says which records may be read. Under a
    microsecond per record with data only, one and a half if the run has tags, nodes or meta.
    """
    count = len(starts)
    if not count:
        return [], []
    records = _decode(window, starts, frame_lens, seqs, salt, base)
    if records is not None:
        return records, []
    if count == 1:
        return [], [seqs[0]]
    half = count // 2
    records, bad = decode_records(window, starts[:half], frame_lens[:half], seqs[:half], salt=salt, base=base)
    more, worse = decode_records(window, starts[half:], frame_lens[half:], seqs[half:], salt=salt, base=base)
    return records + more, bad + worse


def open_records(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    topic_id: int,
    *,
    salt: int | None = None,
    base: int = 0,
) -> list[OpenedRecord | None]:
    """Return the records of the frames at these indices of `window`, with their origins, which are this topic and their
    own seqs unless they carry others; None for each that does not verify. `salt` and `base` as in `decode_records`."""
    whole = [i for i, at in enumerate(starts) if at + HEADER_BYTES <= len(window)]
    seqs = [_HEADER.unpack_from(window, starts[i])[2] for i in whole]
    places, sizes = [starts[i] for i in whole], [frame_lens[i] for i in whole]
    decoded, _ = decode_records(window, places, sizes, seqs, salt=salt, base=base)
    records = iter(decoded)
    record = next(records, None)
    opened: list[OpenedRecord | None] = [None] * len(starts)
    for i, seq in zip(whole, seqs, strict=True):
        if record is None or record.seq != seq:
            continue
        at = starts[i]
        origin = Origin(topic_id, seq, 0)
        if window[at + 4] & HAS_ORIGIN:
            origin = Origin(*ORIGIN.unpack_from(window, at + HEADER_BYTES + len(record.node) + len(record.tag)))
        opened[i] = OpenedRecord(origin, record.node, record.tag, record.meta, record.data)
        record = next(records, None)
    return opened


def _decode(
    window: bytes,
    starts: Sequence[int],
    frame_lens: Sequence[int],
    seqs: Sequence[int],
    salt: int | None,
    base: int,
) -> list[StoredRecord] | None:
    """Decode all frames, or return None if any of them is bad. The hot loop."""
    if min(frame_lens) < MIN_FRAME_BYTES:
        return None
    whole = _cut(window, starts, frame_lens)
    heads = b"".join(map(_HEAD, whole))
    if len(heads) != len(whole) * _HEAD_BYTES or not _heads_hold(heads, _HEAD_BYTES, 5, frame_lens, seqs):
        return None
    if b"".join(map(_FRAME_SUM, whole)) != little_endian(array("Q", digests(map(_BODY, whole), salt, starts, base))):
        return None
    names = strided_column(heads, 21, "I", _HEAD_BYTES)
    metas = strided_column(heads, 29, "I", _HEAD_BYTES)
    if any(names) or any(metas) or any(heads[4::_HEAD_BYTES]):
        return _decode_full(whole)
    payloads = strided_column(heads, 25, "I", _HEAD_BYTES)
    if payloads != _each_less(frame_lens, _AROUND):
        return None
    none = repeat(b"")
    times = strided_column(heads, 13, "Q", _HEAD_BYTES)
    return list(map(_record, zip(seqs, times, none, none, none, map(_PLAIN_DATA, whole))))  # noqa: B905 (repeat)


def _decode_full(whole: Sequence[bytes]) -> list[StoredRecord] | None:
    """Return records of verified frames of which any has more than data; None if lengths do not add up."""
    unpack, unpack_len = _HEADER.unpack_from, _LEN.unpack_from
    records = []
    for frame in whole:
        _frame_len, flags, seq, ts, node_len, tag_len, data_len = unpack(frame)
        tag_at = HEADER_BYTES + node_len
        origin_at = tag_at + tag_len
        end = origin_at + data_len
        meta_at = origin_at + (ORIGIN_BYTES + 4 if flags & HAS_ORIGIN else 4)
        if end != len(frame) - TRAILER_BYTES or meta_at > end:
            return None
        data_at = meta_at + unpack_len(frame, meta_at - 4)[0]
        if data_at > end:
            return None
        records.append(
            _record(
                (
                    seq,
                    ts,
                    frame[HEADER_BYTES:tag_at],
                    frame[tag_at:origin_at],
                    frame[meta_at:data_at],
                    frame[data_at:end],
                )
            )
        )
    return records
