"""From the frames of captured records to those of a segment.

Responsible for reading the bytes that records and copies are made of, and for the frames and index entries that stand
for them in a segment. Which records those are, and where the result is written, is left to the callers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final, NamedTuple

from topics.log.copies import PLAIN, run_of
from topics.log.record_index import RawRun
from topics.log.span import FLAG_ORIGIN, LOST, NOT_DERIVED
from topics.storage.files.fs import File, Fs
from topics.storage.maintenance.frame_reads import FrameRead
from topics.storage.maintenance.topic_capture import TopicCapture
from topics.storage.segments.copy_frames import open_frames, read_window, record_of_copy
from topics.storage.segments.index_format import (
    HOLE_CORRUPT,
    HOLE_LOST,
    HOLE_SOURCE_TRIM,
    IDX_DELETED,
    IDX_HOLE,
    encode_index,
)
from topics.storage.segments.segment_format import ConvertedFrames, convert_appends, convert_derived, encode_copies
from topics.storage.store import Store
from topics.storage.wal.frames import FrameSeeds

_REASON_CODES: Final = {"lost": HOLE_LOST, "corrupt": HOLE_CORRUPT, "source_trim": HOLE_SOURCE_TRIM}


class FrameTarget(NamedTuple):
    """Where frames are going to be: in a `.data` with this salt, at this offset."""

    salt: int | None
    offset: int


class FrameConversion:
    """Reads the frames of records and makes those of a segment of them."""

    def __init__(self, store: Store, fs: Fs) -> None:
        self._store = store
        self._fs = fs

    def paths(self, files: Iterable[int]) -> dict[int, str]:
        """The paths of those of these files that are the WAL's."""
        wal = self._store.files
        return {file: wal.get(file).path for file in files if wal.place_of(file)[0] == "wal"}

    @contextmanager
    def opened(self, paths: Mapping[int, str]) -> Iterator[dict[int, File]]:
        """In a worker thread: these files by their ids, open. Raises OSError."""
        with ExitStack() as files:
            yield {file: files.enter_context(self._fs.open(path, read_only=True)) for file, path in paths.items()}

    def read_all(self, reads: Sequence[FrameRead], paths: Mapping[int, str]) -> list[bytes]:
        """In a worker thread: the bytes of each read. Raises OSError."""
        with self.opened(paths) as handles:
            return [self.window(read, handles) for read in reads]

    def window(self, read: FrameRead, handles: Mapping[int, File]) -> bytes:
        """In a worker thread: the bytes of a read. Raises OSError."""
        handle = handles.get(read.file)
        if handle is not None:
            return handle.pread(read.length, read.offset)
        return read_window(self._fs, self._store.tiers, self._store.files, read.file, read.offset, read.length)

    def convert(
        self, capture: TopicCapture, run: RawRun, read: FrameRead, window: bytes, target: FrameTarget
    ) -> ConvertedFrames:
        """The segment frames of the slots of a read whose bytes are `window`."""
        if read.derived:
            return self._convert_copies(capture, run, read, window, target)
        sizes = [run.frame_len[i] for i in read.slots]
        seqs = [run.first + i for i in read.slots]
        seeds = self._seeds(read)
        return convert_appends(window, read.starts, sizes, seqs, seeds, salt=target.salt, offset=target.offset)

    def _convert_copies(
        self, capture: TopicCapture, run: RawRun, read: FrameRead, window: bytes, target: FrameTarget
    ) -> ConvertedFrames:
        """The same of copies, which are made of other topics' frames."""
        salt, offset = target
        slots, starts, files = read.slots, read.starts, self._store.files
        sizes = [run.frame_len[i] for i in slots]
        seqs = [run.first + i for i in slots]
        alike = run_of(capture.copies, seqs[0]).alike(seqs)
        if alike is not None and alike[0].changes == PLAIN and files.place_of(read.file)[0] == "wal":
            (topic_id, hops, _), origin_seqs = alike
            times = [run.ts[i] for i in slots]
            passed_on = hops if run.flags[slots[0]] & FLAG_ORIGIN else None
            seeds = self._seeds(read)
            converted = convert_derived(
                window, starts, sizes, seqs, times, topic_id, origin_seqs, passed_on, seeds, salt=salt, offset=offset
            )
            if converted is not None:
                return converted
        opened = open_frames(files, read.file, read.offset, window, starts, sizes)
        runs = [run_of(capture.copies, seq) for seq in seqs]
        copies = [
            record_of_copy(one, made, seq, run.ts[i])
            for one, made, seq, i in zip(opened, runs, seqs, slots, strict=True)
        ]
        bad = [i for i, copy in enumerate(copies) if copy is None]
        if bad:
            return ConvertedFrames(b"", array("I", bytes(4 * len(slots))), bad)
        return encode_copies(
            [copy for copy in copies if copy is not None],
            [
                made.origin(seq) if run.flags[i] & FLAG_ORIGIN else None
                for made, seq, i in zip(runs, seqs, slots, strict=True)
            ],
            salt=salt,
            offset=offset,
        )

    def _seeds(self, read: FrameRead) -> FrameSeeds:
        """The seeds of the checksums of frames that were read from the WAL."""
        return FrameSeeds(self._store.files.get(read.file).head.salt, read.offset)


def index_entries(capture: TopicCapture, run: RawRun, a: int, b: int, places: array[int], lens: array[int]) -> bytes:
    """The `.idx` entries of slots `a` to `b`, whose frames have these offsets and lengths in `.data`."""
    flags = run.flags[a:b].translate(NOT_DERIVED)
    if 0 not in lens:
        return encode_index(places, lens, run.ts[a:b], flags)
    offsets, marked = places[:], bytearray(flags)
    for i, size in enumerate(lens):
        if size:
            continue
        if run.dead[a + i] == LOST:
            marked[i] |= IDX_HOLE
            offsets[i] = _reason_of(capture.part.log["holes"], run.first + a + i)
        else:
            marked[i] |= IDX_DELETED
    return encode_index(offsets, lens, run.ts[a:b], bytes(marked))


def _reason_of(holes: Sequence[Sequence[Any]], seq: int) -> int:
    """Why a slot is lost, as `.idx` says it."""
    for first, last, reason in holes:
        if first <= seq <= last:
            return _REASON_CODES.get(reason, HOLE_LOST)
    return HOLE_LOST
