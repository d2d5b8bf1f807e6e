"""One `.data` file of a segment as Arrow columns, decoded in bulk (`docs/spec/storage.md` section 4).

Responsible for verifying every frame and for taking frames apart; their layout is in
`topics.storage.segments.segment_format`. Which of the records are to be shown, and what is announced where bytes are
bad, is `topics.spark.segments`' business. Pure: bytes in, columns out.

Theory of operation. Where frames begin is found by following `frame_len`, and each checksum is computed: two short
loops per record, all of it but the first in C. From there on a run of frames *is* an Arrow array of binaries, the
file's bytes being its values and the places its offsets. Fields at fixed places are slices of that array. Fields behind
node and tag are found by arithmetic on whole columns. They are cut out as a second array of the same bytes, in which
every other value is the bytes between two fields. So a column costs a handful of calls for any number of records.

Bytes that do not verify end a run. The next one begins at the next valid frame; the range between is reported as bad.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection
from functools import partial
from operator import itemgetter
from struct import Struct
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.segments.segment_format import (
    HEADER_BYTES,
    MIN_FRAME_BYTES,
    READS_AS_DELETED,
    TRAILER_BYTES,
    digests,
)
from topics.storage.segments.segment_scan import SegmentFrameSearch, layout_of
from topics.storage.wal.frames import HAS_NODE, HAS_ORIGIN, HAS_TAG, ORIGIN_BYTES

RUN_FRAMES: Final = 16_384
"""Frames verified and decoded at a time: more than a segment has by default."""

TYPES: Final[dict[str, pa.DataType]] = {
    "seq": pa.int64(),
    "ts": pa.timestamp("us", "UTC"),
    "node": pa.string(),
    "tag": pa.string(),
    "meta": pa.map_(pa.string(), pa.string()),
    "data": pa.string(),
}
"""The columns that a file can be asked for."""

_LEN: Final = Struct("<I")
_SUM_AT: Final = -TRAILER_BYTES
_LEN_BYTES: Final = 4
_BODY: Final = itemgetter(slice(_LEN_BYTES, _SUM_AT))
_ORIGIN: Final = bytes(ORIGIN_BYTES if flags & HAS_ORIGIN else 0 for flags in range(256))
_meta_of: Final = msgspec.json.Decoder(dict[str, str])


class NotDecodable(Exception):
    """Frames whose checksums hold and whose content contradicts itself: nothing that was ever written."""


class BadFrames(NamedTuple):
    """Bytes `start` to `stop` (exclusive) of a file are no frames; `row` is the number of valid ones before them."""

    start: int
    stop: int
    row: int


class DecodedColumns(NamedTuple):
    """The valid frames of a file, in its order, as columns of equal length.

    `seq` is there always, `deleted` has 1 for a record whose delete flag hides it and 0 for the others; `columns` has
    what was asked for.
    """

    seq: array[int]
    deleted: bytes
    columns: dict[str, pa.ChunkedArray]
    bad: list[BadFrames]


def decode(data: bytes, wanted: Collection[str], *, seqs: range, salt: int | None = None) -> DecodedColumns:
    """Verify and take apart all frames of a file, given its valid bytes (below 2 GiB). `seqs` is what the segment may
    hold, `salt` what its entry in the part has. Raises NotDecodable."""
    seq: array[int] = array("Q")
    deleted: list[bytes] = []
    chunks: dict[str, list[pa.Array]] = {name: [] for name in TYPES if name in wanted}
    bad: list[BadFrames] = []
    buffer = pa.py_buffer(data)
    layout = layout_of(data[:FILE_HEADER_BYTES], seqs.start, salt)
    salt, at, end = layout.salt, layout.start, len(data)
    if salt is None and layout.damage is not None and data:
        bad.append(BadFrames(0, end, 0))
        at = end
    search = SegmentFrameSearch(partial(_slice, data), end, seqs, salt=salt)
    while at < end:
        places = _follow(data, at)
        valid = _verified(data, places, salt) if len(places) > 1 else 0
        if valid:
            run = _FrameRun(buffer, places[: valid + 1])
            seq.frombytes(run.fixed(5, 8))
            deleted.append(run.fixed(-1, 1).translate(READS_AS_DELETED))
            for name, arrays in chunks.items():
                arrays.append(run.column(name))
            at = places[valid]
        if valid < len(places) - 1 or len(places) == 1:
            bad.append(
                BadFrames(at, search.find(at, max(seq[-1], seqs.start - 1) if seq else seqs.start - 1), len(seq))
            )
            at = bad[-1].stop
    columns = {name: pa.chunked_array(arrays, TYPES[name]) for name, arrays in chunks.items()}
    return DecodedColumns(seq, b"".join(deleted), columns, bad)


def _follow(data: bytes, at: int) -> array[int]:
    """Where the next frames begin by their lengths, the end of the last one included."""
    places: array[int] = array("i", (at,))
    put, length_at, last = places.append, _LEN.unpack_from, len(data) - MIN_FRAME_BYTES
    end = len(data)
    for _ in range(RUN_FRAMES):
        if at > last:
            break
        behind = at + _LEN_BYTES + length_at(data, at)[0]
        if behind > end or behind < at + MIN_FRAME_BYTES:
            break
        put(behind)
        at = behind
    return places


def _slice(data: bytes, offset: int, length: int) -> bytes:
    return data[offset : offset + length]


def _verified(data: bytes, places: array[int], salt: int | None) -> int:
    """How many frames from the first on have a checksum that holds."""
    bodies = map(_BODY, map(data.__getitem__, map(slice, places, places[1:])))
    sums = array("Q", digests(bodies, salt, places)).tobytes()
    found = _values(pc.binary_slice(_frames(pa.py_buffer(data), places), _SUM_AT, -1))
    if sums == found:
        return len(places) - 1
    return next(i for i in range(len(places) - 1) if sums[8 * i : 8 * i + 8] != found[8 * i : 8 * i + 8])


def _frames(buffer: pa.Buffer, places: array[int]) -> pa.Array:
    """Return the bytes between each place and the next one."""
    return pa.Array.from_buffers(pa.binary(), len(places) - 1, [None, pa.py_buffer(places), buffer])


class _FrameRun:
    """Verified frames that follow one another; `places` are where they begin, and where the last one ends. Raises
    NotDecodable where lengths inside of them do not add up."""

    def __init__(self, buffer: pa.Buffer, places: array[int]) -> None:
        self._buffer = buffer
        self._count = len(places) - 1
        self._frames = _frames(buffer, places)
        bounds = pa.Array.from_buffers(pa.int32(), len(places), [None, pa.py_buffer(places)])
        self._starts, ends = bounds[:-1], bounds[1:]
        self._flags = self.fixed(4, 1)
        self._labelled = any(self.fixed(21, 4))
        """At least one frame has a node or a tag."""
        self._tag_at = self._payload_at = _plus(self._starts, HEADER_BYTES)
        if self._labelled:
            self._tag_at = pc.add(self._tag_at, self._integers(21, pa.uint16()))
            self._payload_at = pc.add(self._tag_at, self._integers(23, pa.uint16()))
        self._end = _plus(ends, -TRAILER_BYTES)
        if pc.add(self._payload_at, self._integers(25, pa.uint32())) != self._end:
            raise NotDecodable("lengths of node, tag and payload that are not the frame's")
        self._find_meta()

    def _find_meta(self) -> None:
        """Where meta and data are: behind the origin, where a record has one, and the length of meta."""
        length_at = self._payload_at
        originals = self._flags.translate(_ORIGIN)
        if any(originals):
            origins = pa.Array.from_buffers(pa.uint8(), self._count, [None, pa.py_buffer(originals)])
            length_at = pc.add(length_at, origins.cast(pa.int32()))
        meta_at = _plus(length_at, _LEN_BYTES)
        if pc.any(pc.greater(meta_at, self._end)).as_py():
            raise NotDecodable("a payload that is too short")
        if self._labelled or any(originals):
            lengths = _values(self._between(length_at, meta_at))
        else:
            lengths = self.fixed(HEADER_BYTES, _LEN_BYTES)
        self._has_meta = any(lengths)
        self._meta_at = self._data_at = meta_at
        if self._has_meta:
            count = pa.Array.from_buffers(pa.uint32(), self._count, [None, pa.py_buffer(lengths)])
            self._data_at = pc.add(meta_at, count.cast(pa.int32(), safe=False))
            if pc.any(pc.or_(pc.greater(self._data_at, self._end), pc.less(self._data_at, meta_at))).as_py():
                raise NotDecodable("a length of meta that is more than the payload's")

    def fixed(self, at: int, size: int) -> bytes:
        """The bytes at the same place of every frame, joined; `at` counts from the end if it is negative."""
        return _values(pc.binary_slice(self._frames, at, at + size if at + size else None))

    def _integers(self, at: int, kind: pa.DataType) -> pa.Array:
        """An unsigned field of every frame's head; signed, as nothing in there is so large."""
        values = self.fixed(at, kind.bit_width // 8)
        found = pa.Array.from_buffers(kind, self._count, [None, pa.py_buffer(values)])
        return found.cast(pa.int64() if kind == pa.uint64() else pa.int32(), safe=False)

    def column(self, name: str) -> pa.Array:
        """One of `TYPES`. Fields that a record does not have are null; `data` is the JSON text as it was stored."""
        match name:
            case "seq":
                return self._integers(5, pa.uint64())
            case "ts":
                return pc.multiply(self._integers(13, pa.uint64()), 1000).cast(TYPES["ts"])
            case "node":
                return self._label(HAS_NODE, _plus(self._starts, HEADER_BYTES), self._tag_at)
            case "tag":
                return self._label(HAS_TAG, self._tag_at, self._payload_at)
            case "meta":
                return self._meta()
            case _:
                return _text(self._data())

    def _label(self, flag: int, begins: pa.Array, ends: pa.Array) -> pa.Array:
        """A text that only the records with this flag have."""
        has = self._flags.translate(bytes(bool(flags & flag) for flags in range(256)))
        if not any(has):
            return pa.nulls(self._count, pa.string())
        texts = _text(self._between(begins, ends))
        return texts if all(has) else pc.if_else(_as_booleans(has), texts, pa.scalar(None, pa.string()))

    def _data(self) -> pa.Array:
        if self._labelled or self._has_meta or any(self._flags):
            return self._between(self._data_at, self._end)
        return pc.binary_slice(self._frames, HEADER_BYTES + _LEN_BYTES, -TRAILER_BYTES)

    def _meta(self) -> pa.Array:
        """Objects of strings. Writers mostly repeat themselves, so each distinct text is decoded once."""
        if not self._has_meta:
            return pa.nulls(self._count, TYPES["meta"])
        encoded = self._between(self._meta_at, self._data_at).dictionary_encode()
        try:
            found = [list(_meta_of.decode(text).items()) if text else None for text in encoded.dictionary.to_pylist()]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise NotDecodable(f"meta that is no object of strings: {error}") from None
        return pa.array(found, TYPES["meta"]).take(encoded.indices)

    def _between(self, begins: pa.Array, ends: pa.Array) -> pa.Array:
        """Return the bytes between two places of every frame.

        As an array, the file's bytes with all those places as offsets have what is wanted at every other position.
        """
        offsets = array("i", bytes(8 * self._count))
        offsets[0::2] = _int32s(begins)
        offsets[1::2] = _int32s(ends)
        pieces = pa.Array.from_buffers(pa.binary(), 2 * self._count - 1, [None, pa.py_buffer(offsets), self._buffer])
        return pieces.take(pa.array(range(0, 2 * self._count - 1, 2), pa.int32()))


def _values(pieces: pa.Array) -> bytes:
    """The values of an array of binaries that a kernel has just made, joined."""
    _, offsets, values = pieces.buffers()
    if values is None:
        return b""
    places = memoryview(offsets).cast("i")
    return bytes(memoryview(values)[places[pieces.offset] : places[pieces.offset + len(pieces)]])


def _plus(places: pa.Array, distance: int) -> pa.Array:
    """The sum as int32: a plain number would make it int64."""
    return pc.add(places, pa.scalar(distance, pa.int32()))


def _int32s(values: pa.Array) -> array[int]:
    found: array[int] = array("i")
    found.frombytes(memoryview(values.buffers()[1])[4 * values.offset : 4 * (values.offset + len(values))])
    return found


def _as_booleans(mask: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(mask)]).cast(pa.bool_())


def _text(pieces: pa.Array) -> pa.Array:
    try:
        return pieces.cast(pa.string())
    except pa.ArrowInvalid as error:
        raise NotDecodable(f"a text that is no UTF-8: {error}") from None
