"""Checksums and lengths made right again, and one value changed within a frame: what gets a mutation past the first
check of a file. Pure.
"""

from __future__ import annotations

import struct
from typing import Final

import cbor2
import xxhash

from tests.fuzz import mutations
from topics.storage.files.file_header import BadFileHeader, FileHeader, decode_file_header, first_frame, frame_seed
from topics.storage.segments import index_format
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameType

_WAL_HEADER: Final = struct.Struct("<IBBQQQHHI")
_SEGMENT_HEADER: Final = struct.Struct("<IBQQHHI")
_LEN: Final = struct.Struct("<I")
_SUM: Final = struct.Struct("<Q")
_INDEX_CHECKED: Final = index_format.INDEX_ENTRY_BYTES - 3


def _digest(body: bytes, seed: int = 0) -> bytes:
    return _SUM.pack(xxhash.xxh3_64_intdigest(body, seed))


def header_of(data: bytes) -> FileHeader | None:
    """The header of a WAL file; None if there is none, or it does not hold."""
    try:
        return decode_file_header(data)
    except BadFileHeader:
        return None


def mend_log(data: bytes) -> bytes:
    """Frames of a log with lengths that agree and checksums that hold, as far as they lie within the file."""
    header = header_of(data)
    begin, salt = first_frame(header), header.salt if header is not None else None
    return _mend_frames(data, _WAL_HEADER, trailer=frames.CHECKSUM_BYTES, behind=0, begin=begin, salt=salt)


def mend_segment(data: bytes) -> bytes:
    """The same of a `.data` file; the delete flags stay what they are."""
    return _mend_frames(data, _SEGMENT_HEADER, trailer=frames.CHECKSUM_BYTES, behind=1)


def _mend_frames(
    data: bytes, header: struct.Struct, *, trailer: int, behind: int, begin: int = 0, salt: int | None = None
) -> bytes:
    out = bytearray(data)
    at = begin
    while at + header.size + trailer + behind <= len(out):
        fields = header.unpack_from(out, at)
        *_, node_len, tag_len, _ = fields
        end = at + 4 + fields[0]
        room = end - at - header.size - trailer - behind
        if room < 0 or end > len(out):
            # What follows is one frame up to the end of the file.
            end = len(out)
            room = end - at - header.size - trailer - behind
        names = (node_len, tag_len) if node_len + tag_len <= room else (min(node_len, room), 0)
        header.pack_into(out, at, end - at - 4, *fields[1:-3], *names, room - sum(names))
        sum_at = end - trailer - behind
        out[sum_at : sum_at + trailer] = _digest(bytes(out[at + 4 : sum_at]), frame_seed(salt, at))
        at = end
    return bytes(out)


def mend_index(data: bytes) -> bytes:
    """Entries of an `.idx` whose checks hold."""
    out = bytearray(data)
    for at in range(0, len(out) - index_format.INDEX_ENTRY_BYTES + 1, index_format.INDEX_ENTRY_BYTES):
        check = _digest(bytes(out[at : at + _INDEX_CHECKED]))[:3]
        out[at + _INDEX_CHECKED : at + index_format.INDEX_ENTRY_BYTES] = check
    return bytes(out)


def mend_sealed(key: str, data: bytes) -> bytes:
    """A CBOR map with a checksum, which holds: around what stands under `key`, or around the bytes as they are."""
    body = data
    try:
        outer = cbor2.loads(data)
        if isinstance(outer, dict) and isinstance(outer.get(key), bytes):
            body = outer[key]
    except Exception:  # no CBOR: then it is what should have been in it
        pass
    return cbor2.dumps({key: body, "xxh3": xxhash.xxh3_64_intdigest(body)}, canonical=True)


def vary_log(data: bytes, where: int, what: int) -> bytes:
    """One value in the payload of one control frame changed, all else as it was."""
    found = [frame for frame in _controls(data) if frame.data_len]
    if not found:
        return data
    frame = found[where % len(found)]
    end = frame.end - frames.CHECKSUM_BYTES
    payload = mutations.vary_cbor(data[end - frame.data_len : end], where // len(found), what)
    header = header_of(data)
    seed = frame_seed(header.salt if header is not None else None, frame.offset)
    return data[: frame.offset] + frame_around(frame, payload, seed) + data[frame.end :]


def _controls(data: bytes) -> list[frames.Frame]:
    header = header_of(data)
    begin, salt = first_frame(header), header.salt if header is not None else None
    try:
        found = frames.scan_window(data[begin:], begin, file_end=len(data), salt=salt).frames
    except frames.UnknownFrameType:
        return []
    return [frame for frame in found if frame.type != FrameType.APPEND]


def frame_around(frame: frames.Frame, payload: bytes, seed: int = 0) -> bytes:
    """A control frame with all fields of this one but for the payload."""
    body = _WAL_HEADER.pack(0, *frame[2:7], 0, 0, len(payload))[4:] + payload
    return _LEN.pack(len(body) + frames.CHECKSUM_BYTES) + body + _digest(body, seed)
