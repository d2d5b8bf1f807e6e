"""The frames of one WAL file, as whole batches (`docs/spec/storage.md` section 2).

Responsible for reading: windows of verified frames become whole batches, with the parts of their bodies that replay
needs. A batch that is cut off by the end of the file is left out. `shard_replay` and `topic_replay` interpret batches;
`log_end` decides whether the file may end where it does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from topics.storage.evidence.frame_leaves import leaves_of_bodies
from topics.storage.files.fs import File
from topics.storage.files.progress import Progress
from topics.storage.wal import frames
from topics.storage.wal.frames import Frame, FrameType, LogScan, Row
from topics.storage.wal.wal_files import WalFile
from topics.storage.wal.wal_head import scans

Extras = dict[int, Any]
"""The parts of bodies that replay needs. By frame offset: the tag of an Append, the payload of any other frame. By the
bitwise inverse of the offset: the origin of an Append."""

_APPEND = int(FrameType.APPEND)
_FILE_END = int(FrameType.FILE_END)
_SHARD_OPEN = int(FrameType.SHARD_OPEN)


class Window(NamedTuple):
    """Bytes of a file, from an offset on."""

    base: int
    window: bytes


class FrameBatch:
    """One or more whole batches of one topic, or one batch about the shard."""

    __slots__ = ("_hashed", "controls", "extras", "file", "leaves", "rows", "windows")

    def __init__(
        self, file: WalFile, rows: list[Row], controls: int, extras: Extras, windows: Sequence[Window] = ()
    ) -> None:
        self.file = file
        """The file it was read from."""
        self.rows = rows
        """Its frames, at least one, with the fields of `Frame`."""
        self.controls = controls
        """How many rows are not Appends."""
        self.extras = extras
        """The parts of bodies of these frames, and of others."""
        self.windows = windows
        """The bytes that have these frames, until `take_leaves` or `forget_bytes`."""
        self.leaves = b""
        """The leaves of its Appends, if `take_leaves` was called."""
        self._hashed: list[Row] | None = None
        """The frames that `leaves` are of."""

    def hash_records(self) -> None:
        """Hash the records of its Appends ahead of `take_leaves`. May be called in a worker thread."""
        self.leaves = leaves_of_bodies(self._body(row) for row in self.rows if row[2] == _APPEND)
        self._hashed = self.rows

    def take_leaves(self) -> None:
        """Have the leaves of its Appends, for the Merkle tree of their topic, unless they are known; and forget the
        bytes."""
        if self._hashed is not self.rows:
            self.hash_records()
        self.forget_bytes()

    def _body(self, row: Row) -> bytes:
        at, end = row[0] + 4, row[0] + 4 + row[1] - frames.CHECKSUM_BYTES
        base, window = next(one for one in self.windows if one.base <= at and end <= one.base + len(one.window))
        return window[at - base : end - base]

    def forget_bytes(self) -> None:
        """Forget the bytes of the frames. A batch that is kept back would keep whole windows of the log in memory."""
        self.windows = ()

    def has_control(self, kind: FrameType) -> bool:
        """Return True if one of its control frames is of this type."""
        return bool(self.controls) and any(row[2] == kind for row in self.rows)

    @property
    def first(self) -> Frame:
        """The first frame."""
        return Frame._make(self.rows[0])

    @property
    def end(self) -> int:
        """The offset behind the last frame."""
        row = self.rows[-1]
        return row[0] + 4 + row[1]

    @property
    def weight(self) -> int:
        """Return how many frames it counts as: a filler of salvage counts as the frames that it replaces. Raises any
        exception for a malformed filler."""
        if len(self.rows) == 1 and self.rows[0][2] == _SHARD_OPEN:
            return int(self.extras[self.rows[0][0]].get("replaces", 1))
        return len(self.rows)

    @property
    def ends_file(self) -> bool:
        """Return True if the file is complete with this batch: FileEnd, or the filler that salvage has put in its
        place."""
        row = self.rows[-1]
        if row[2] == _FILE_END:
            return True
        return row[2] == _SHARD_OPEN and bool(self.extras[row[0]].get("ends_file"))


class FrameBatches:
    """The whole batches of an open file, to be iterated once. Its attributes tell how far the iteration has come."""

    def __init__(self, file: WalFile, handle: File, begin: int, count: int, progress: Progress) -> None:
        """`begin` is the offset of the first frame to be read, `count` its ordinal. `progress` counts the bytes read.
        Raises OSError."""
        self.at = begin
        """Offset behind the last window of frames; after the iteration, the offset of the first bytes that are not a
        frame."""
        self.reason = "window"
        """Why these bytes are not a frame (`LogScan.reason`)."""
        self.batch_at = begin
        """Offset behind the last whole batch."""
        self.count = count
        """Ordinal of the next frame."""
        self.ended = False
        """True if the last batch completes the file."""
        self.size = handle.size()
        self._file = file
        self._handle = handle
        self._progress = progress

    def __iter__(self) -> Iterator[FrameBatch]:
        """Yield the batches. Raises UnknownFrameType, OSError, and any exception for a malformed payload."""
        extras: Extras = {}
        begun = FrameBatch(self._file, [], 0, extras)
        windows: list[Window] = []
        for scan, window, base in scans(self._handle, self._file.head, self.at, self.size):
            extras.update(_extras(scan, window, base))
            windows.append(Window(base, window))
            for batch in self._whole(scan, begun, extras, windows):
                self.count += batch.weight
                self.batch_at = batch.end
                self.ended = batch.ends_file
                yield batch
            begun = _begun(scan, begun)
            windows = [one for one in windows if begun.rows and one.base + len(one.window) > begun.rows[0][0]]
            extras = begun.extras = {at: extras[at] for row in begun.rows for at in (row[0], ~row[0]) if at in extras}
            self._progress.done += scan.stop - self.at
            self.at, self.reason = scan.stop, scan.reason
            if self.ended:
                return

    def _whole(
        self, scan: LogScan, begun: FrameBatch, extras: Extras, windows: Sequence[Window]
    ) -> Iterator[FrameBatch]:
        """Yield the batches that end in a window; `begun` has the frames of the first one from earlier windows.

        Neighbouring batches of one topic's Appends are joined: replaying them together costs a fraction. The first one
        stays alone if it began in an earlier window.
        """
        file, rows, ends, controls = self._file, scan.rows, scan.ends, scan.controls
        begin = i = k = 0
        if begun.rows and ends:
            while k < len(controls) and controls[k] < ends[0]:
                k += 1
            begin, i = ends[0], 1
            yield FrameBatch(file, begun.rows + rows[:begin], begun.controls + k, extras, windows)
        while i < len(ends):
            end = ends[i]
            k_begin = k
            while k < len(controls) and controls[k] < end:
                k += 1
            if k == k_begin:
                limit = controls[k] if k < len(controls) else len(rows)
                topic_id = rows[begin][4]
                while i + 1 < len(ends) and ends[i + 1] <= limit and rows[end][4] == topic_id:
                    i += 1
                    end = ends[i]
            yield FrameBatch(file, rows[begin:end], k - k_begin, extras, windows)
            begin = end
            i += 1


def _begun(scan: LogScan, begun: FrameBatch) -> FrameBatch:
    """Return the frames of the batch that continues behind the window."""
    taken = scan.ends[-1] if scan.ends else 0
    rows, controls = scan.rows[taken:], sum(i >= taken for i in scan.controls)
    if not taken:
        rows, controls = begun.rows + rows, begun.controls + controls
    return FrameBatch(begun.file, rows, controls, begun.extras)


def _extras(scan: LogScan, window: bytes, base: int) -> Extras:
    """Return tags and origins of Appends, and payloads of control frames."""
    extras: Extras = {}
    for i in scan.tagged:
        row = scan.rows[i]
        tag_at = row[0] - base + frames.HEADER_BYTES + row[7]
        extras[row[0]] = window[tag_at : tag_at + row[8]].decode()
    for i in scan.copied:
        frame = Frame._make(scan.rows[i])
        extras[~frame.offset] = frames.origin_at(window, base, frame)
    for i in scan.controls:
        frame = Frame._make(scan.rows[i])
        extras[frame.offset] = frames.control_payload(window, base, frame)
    return extras
