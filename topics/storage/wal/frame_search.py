"""The search for valid frames behind bytes that are not frames: to tell a torn end from damage, and to continue behind
damage (`docs/spec/storage.md` section 3).

Theory of operation
-------------------
A frame has no magic number, so candidates are found by what every header has in common (a known type, small ids, times
below 2**48). A candidate is valid only if its lengths agree and its checksum holds.

Bytes that a client chose may be among those searched: a record whose frame was torn is no frame any more, and its data
may look like a frame. In a file of version 2 such data is never valid, because clients do not know the seed of the
checksums. A file of version 1 has no seed, so a frame found there must also fit what replay knows.

A valid frame is believed by these rules, the first two in files of both versions:

- A Synced frame says nothing about bytes behind itself. (In version 1 it must be exactly at the offset that it vouches
  for, as every Synced frame is that a writer has made.)
- A topic's seqs never go back. (In version 2 a frame that breaks this rule is a frame all the same, and counted: a
  topic that is `ephemeral` no more logs the records that it has again, and the bad bytes may hide that change of class.
  It says nothing about the seqs that are missing.)
- Version 1: the topic is known, and its seqs are no further ahead than the bytes in between have room for. A frame
  other than an Append has neither node nor tag. (So its payload begins behind a zero byte, with a byte that UTF-8 does
  not have there, and all bytes that a client chooses are UTF-8.)

The search continues at the end of a valid frame, never inside it. Its work is bounded: each candidate costs, and so
does each byte that is hashed for it, because a header that claims 16 MiB could be at every 38th byte. At the bound the
search ends and says so (`exhausted`), and its caller must assume the worse. Synced frames of version 2 are found
without a bound: they are short, and their headers cannot overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from topics.log.dumped_values import whole
from topics.storage.files.fs import WINDOW_BYTES, File
from topics.storage.wal import frames
from topics.storage.wal.frames import CONTINUES, Frame, FrameType

SEARCH_BYTES: Final = 8 << 20
"""Bytes searched at a time."""

CANDIDATE_WORK: Final = 128
"""The cost of a candidate, besides the bytes hashed for it."""
WORK_FACTOR: Final = 4
WORK_BASE: Final = 64 << 20
"""A search costs at most `WORK_FACTOR` times the bytes searched, plus `WORK_BASE`: under a second for a file of 64 MiB.
Every frame that a daemon writes is found within that."""

SYNCED_PAYLOAD: Final = 48
"""The longest payload of a Synced frame."""

MIN_COPY_BYTES: Final = 9
"""The least bytes that a copy takes in the recipe of a Forwarded frame: its lengths and flags. No frame takes less of a
file for a seq."""
MOST_RESERVED: Final = 1 << 20
"""The most that a recovery may move a head on for a reserve: four times the largest block of seqs."""

# type, flags, topic_id below 2**56 (with a bucket they begin at epoch x 2**32), seq below 2**48, ts below 2**48: looked
# for at every byte, hence the lookahead.
_CANDIDATE: Final = re.compile(rb"(?=[\x01-%c][\x00-\x3f].{7}\x00.{6}\x00\x00.{6}\x00\x00)" % max(FrameType), re.DOTALL)
# frame_len below 256, type, no flags, ids, seq, ts, node and tag, data_len below 256.
_SYNCED: Final = re.compile(rb"(?=.\x00{3}\x0e\x00{29}.\x00{3})", re.DOTALL)


class LogFile(NamedTuple):
    """An open WAL file of one shard, as a search needs it."""

    handle: File
    size: int
    ordinal: int
    salt: int | None


class FoundFrame(NamedTuple):
    """A valid frame, and the window of bytes that holds it."""

    frame: Frame
    window: bytes
    base: int

    def payload(self) -> dict[str, Any]:
        """Return the payload of a control frame. A malformed payload may raise any exception, depending on its
        bytes."""
        return frames.control_payload(self.window, self.base, self.frame)


class FrameSearch:
    """One search through a file. `exhausted` is True if it has ended at its bound, before the end of the file."""

    def __init__(self, file: LogFile, start: int) -> None:
        self.exhausted = False
        self._file = file
        self._start = start
        self._work = WORK_BASE + WORK_FACTOR * max(file.size - start, 0)

    def found(self) -> Iterator[FoundFrame]:
        """Yield valid frames from the start on, in order. The caller decides which of them to believe."""
        handle, size, at = self._file.handle, self._file.size, self._start
        while at < size:
            window = handle.pread(min(SEARCH_BYTES, size - at), at)
            resume = None
            position = 0
            for candidate in _CANDIDATE.finditer(window):
                begin = candidate.start() - 4
                if begin < position:
                    continue
                if self._work <= 0:
                    self.exhausted = True
                    return
                found = self._verified(window, begin, at)
                if found is None:
                    continue
                yield found
                if found.window is not window:
                    resume = found.frame.end
                    break
                position = found.frame.end - at
            if resume is not None:
                at = resume
            elif at + len(window) >= size:
                return
            else:
                at = max(at + position, at + len(window) - frames.HEADER_BYTES)

    def _verified(self, window: bytes, begin: int, base: int) -> FoundFrame | None:
        """Return the frame at index `begin` of the window if it is valid, with a window of its own if it reaches
        beyond."""
        self._work -= CANDIDATE_WORK
        length = int.from_bytes(window[begin : begin + 4], "little")
        end = begin + 4 + length
        if length < frames.MIN_FRAME_LEN or base + end > self._file.size:
            return None
        if not _lengths_agree(window[begin : begin + frames.HEADER_BYTES]):
            return None
        self._work -= length
        beyond = end > len(window)
        body = self._file.handle.pread(4 + length, base + begin) if beyond else window[begin:end]
        try:
            scan = frames.scan_window(body, base + begin, file_end=base + end, salt=self._file.salt)
        except frames.UnknownFrameType:
            return None
        if not scan.rows:
            return None
        return FoundFrame(scan.frames[0], body, base + begin) if beyond else FoundFrame(scan.frames[0], window, base)


def _lengths_agree(header: bytes) -> bool:
    """Return True if the lengths in a header add up, or if it is cut short (then the frame itself is checked)."""
    if len(header) < frames.HEADER_BYTES:
        return True
    inner = int.from_bytes(header[30:32], "little") + int.from_bytes(header[32:34], "little")
    inner += int.from_bytes(header[34:38], "little")
    return int.from_bytes(header[:4], "little") == frames.MIN_FRAME_LEN + inner


# ----------------------------------------------------------------- synced bytes


class SyncedExtent(NamedTuple):
    """The highest offset of a file up to which Synced frames say that it was on disk; 0 if there are none. `known` is
    False if the search has ended at its bound, so that there may be others."""

    offset: int
    known: bool


def vouched_behind(file: LogFile, start: int) -> SyncedExtent:
    """Return the offset for which the Synced frames at or behind `start` vouch."""
    if file.salt is not None:
        return SyncedExtent(max((_vouches(file, found) for found in _synced(file, start)), default=0), True)
    search = FrameSearch(file, start)
    offset = max((_vouches(file, found) for found in search.found() if found.frame.type == FrameType.SYNCED), default=0)
    return SyncedExtent(offset, not search.exhausted)


def _vouches(file: LogFile, found: FoundFrame) -> int:
    """Return the offset up to which a Synced frame is believed; 0 if it is not."""
    try:
        payload = found.payload()
        offset = whole(payload["offset"])
        ours = payload["file"] == file.ordinal
    except Exception:  # malformed CBOR may raise anything; it vouches for nothing
        return 0
    at = found.frame.offset
    if file.salt is None and (found.frame.node_len or found.frame.tag_len):
        return 0
    if not ours or offset > at or (file.salt is None and offset != at):
        return 0
    return offset


def _synced(file: LogFile, start: int) -> Iterator[FoundFrame]:
    """Yield the Synced frames at or behind `start` of a file of version 2. Linear: the bytes hashed for a candidate are
    fewer than three headers, and no header begins inside another."""
    most = frames.MIN_FRAME_LEN + SYNCED_PAYLOAD
    at = start
    while at < file.size:
        window = file.handle.pread(min(SEARCH_BYTES, file.size - at) + most + 4, at)
        for candidate in _SYNCED.finditer(window):
            begin = candidate.start()
            length = window[begin]
            body = window[begin : begin + 4 + length]
            if begin >= SEARCH_BYTES or not frames.MIN_FRAME_LEN < length <= most or len(body) < 4 + length:
                continue
            scan = frames.scan_window(body, at + begin, file_end=at + begin + len(body), salt=file.salt)
            if scan.rows:
                yield FoundFrame(scan.frames[0], window, at)
        at += SEARCH_BYTES


# ----------------------------------------------------------------- the log behind bad bytes


class ReplayedTopic(NamedTuple):
    """The facts that replay knows of a topic when it meets bytes that are not a frame."""

    head: int
    end: tuple[int, int]
    """Ordinal and offset where the topic's part ends: earlier frames are in the part already."""
    counts: bool
    """True if all its seqs are in the log. (Those of an `ephemeral` topic are not.)"""


class LaterSeq(NamedTuple):
    """Tells how many seqs of a topic are missing: the first seq behind the damage (`exact`), or the last seq according
    to FileEnd."""

    seq: int
    exact: bool


class LogContinuation(NamedTuple):
    """Where the log continues behind a bad frame: a batch boundary, or the file's end. `later` is by topic id, `frames`
    is the number of frames found behind it."""

    stop: int
    later: dict[int, LaterSeq]
    frames: int


class _FrameCheck:
    """Decides whether valid frames fit what was replayed, and the frames found before them."""

    def __init__(self, file: LogFile, start: int, topics: Mapping[int, ReplayedTopic]) -> None:
        self._file = file
        self._start = start
        self._topics = topics
        self._last: dict[int, int] = {}
        self._made: set[int] = set()

    def fits(self, found: FoundFrame) -> bool:
        """Return True if the frame is to be believed; later frames must then fit it too."""
        frame = found.frame
        known = self._topics.get(frame.topic_id)
        unsalted = self._file.salt is None
        if unsalted and frame.type != FrameType.APPEND and (frame.node_len or frame.tag_len):
            return False
        if frame.type == FrameType.SYNCED:
            return bool(_vouches(self._file, found))
        if frame.type == FrameType.FILE_END and unsalted:
            return self._ends(found)
        if unsalted and frame.topic_id and known is None and frame.topic_id not in self._made:
            if frame.type != FrameType.TOPIC_CREATE:
                return False
            self._made.add(frame.topic_id)
        if not frame.seq or frame.type not in (FrameType.APPEND, FrameType.FORWARDED):
            return True
        if known is None or (known.counts and (self._file.ordinal, frame.offset) >= known.end):
            last = self._last.get(frame.topic_id, known.head if known is not None else 0)
            if frame.seq <= last or (unsalted and frame.seq > self._room(last, frame.offset)):
                return False
            self._last[frame.topic_id] = frame.seq
        return True

    def _ends(self, found: FoundFrame) -> bool:
        try:
            lasts = {int(topic_id): whole(last) for topic_id, last in found.payload()["last"].items()}
        except Exception:  # malformed CBOR may raise anything
            return False
        heads = {topic_id: known.head for topic_id, known in self._topics.items()}
        return all(
            topic_id in heads and last <= self._room(heads[topic_id], found.frame.offset)
            for topic_id, last in lasts.items()
            if topic_id not in self._made
        )

    def _room(self, last: int, offset: int) -> int:
        """Return the highest seq that a topic can have reached at `offset`."""
        return last + (offset - self._start) // MIN_COPY_BYTES + MOST_RESERVED


def believed(file: LogFile, start: int, topics: Mapping[int, ReplayedTopic]) -> Iterator[FoundFrame]:
    """Yield the frames behind `start` that fit what was replayed. Ends early if the search comes to its bound."""
    belief = _FrameCheck(file, start, topics)
    return (found for found in FrameSearch(file, start).found() if belief.fits(found))


def behind(file: LogFile, start: int, topics: Mapping[int, ReplayedTopic]) -> LogContinuation:
    """Return where the log continues behind the bad frame at `start`. At the bound of the search the rest of the file
    is bad."""
    stop, count = file.size, 0
    later: dict[int, LaterSeq] = {}
    belief = _FrameCheck(file, start, topics)
    for found in FrameSearch(file, start).found():
        frame = found.frame
        fits = belief.fits(found)
        if not fits and file.salt is None:
            continue
        if not count:
            if frame.flags & CONTINUES or frame.offset - start < frames.SHORTEST_BYTES:
                continue  # no frame is so short that it would fit in front of this one
            stop = frame.offset
        count += 1
        if not fits:
            continue
        if frame.seq and frame.type in (FrameType.APPEND, FrameType.FORWARDED):
            later.setdefault(frame.topic_id, LaterSeq(frame.seq, True))
        elif frame.type == FrameType.FILE_END:
            for topic_id, last in found.payload()["last"].items():
                later.setdefault(topic_id, LaterSeq(last, False))
    return LogContinuation(stop, later, count)


def end_of_bytes(handle: File, at: int, size: int) -> int:
    """Return the offset behind the last byte from `at` on that is not zero; `at` if there is none."""
    while size > at:
        start = max(at, size - WINDOW_BYTES)
        rest = handle.pread(size - start, start).rstrip(b"\0")
        if rest:
            return start + len(rest)
        size = start
    return at


def first_nonzero(handle: File, at: int, size: int) -> int | None:
    """Return the offset of the first byte from `at` on that is not zero; None if there is none."""
    while at < size:
        window = handle.pread(min(WINDOW_BYTES, size - at), at)
        if not window:
            return None
        if window != bytes(len(window)):
            return at + len(window) - len(window.lstrip(b"\0"))
        at += len(window)
    return None


def only_zeros(handle: File, at: int, size: int) -> bool:
    """Return True if every byte from `at` on is zero."""
    return first_nonzero(handle, at, size) is None
