"""Finding frames behind bytes that are none: for telling a torn end from damage, and for going on behind damage.

A frame has no magic number, so candidates are found by what every header has in common (a known type, small ids, times
below 2**48) and believed only when lengths agree and the checksum holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from topics.storage import frames
from topics.storage.frames import Frame, FrameType
from topics.storage.fs import File

SEARCH_BYTES: Final = 8 << 20
"""Bytes searched at a time."""

# type, flags, topic_id below 2**32, seq below 2**48, ts below 2**48: looked for at every byte, hence the lookahead.
_CANDIDATE: Final = re.compile(rb"(?=[\x01-\x13][\x00-\x3f].{4}\x00{4}.{6}\x00\x00.{6}\x00\x00)", re.DOTALL)


def find_frames(
    handle: File, start: int, size: int, *, only: FrameType | None = None
) -> Iterator[tuple[Frame, bytes, int]]:
    """Valid frames at or behind `start`, in order, with the window that holds each and its offset in the file.

    Behind a valid frame the search goes on at its end. `only` skips the others' verification where it can.
    """
    at = start
    while at < size:
        window = handle.pread(min(SEARCH_BYTES, size - at), at)
        resume = None
        position = 0
        for candidate in _CANDIDATE.finditer(window):
            begin = candidate.start() - 4
            if begin < position:
                continue
            if only is not None and window[candidate.start()] != only:
                continue
            frame, cut = _verify(handle, window, begin, at, size)
            if frame is None:
                continue
            if cut:
                whole = handle.pread(frame.end - frame.offset, frame.offset)
                yield frame, whole, frame.offset
                resume = frame.end
                break
            yield frame, window, at
            position = frame.end - at
        if resume is not None:
            at = resume
        elif at + len(window) >= size:
            return
        else:
            at = max(at + position, at + len(window) - frames.HEADER_BYTES)


def _verify(handle: File, window: bytes, begin: int, base: int, size: int) -> tuple[Frame | None, bool]:
    """The frame at index `begin` of the window, if it is one; and whether it reaches beyond the window."""
    length = int.from_bytes(window[begin : begin + 4], "little")
    end = begin + 4 + length
    if length < frames.MIN_FRAME_LEN or base + end > size:
        return None, False
    beyond = end > len(window)
    body = handle.pread(4 + length, base + begin) if beyond else window[begin:end]
    try:
        scan = frames.scan_window(body, base + begin, file_end=base + end)
    except frames.UnknownFrameType:
        return None, False
    return (scan.frames[0] if scan.frames else None), beyond
