"""`BucketHome`: what the bucket has of this data directory, for repairs of its files (`SecondHome`).

Nothing is cached but the newest base, and nothing is taken over without its hash. What is given out is of this very
directory: the bucket has the id that `meta/bucket` has, this directory owns it, and the base was made of it (inode and
token of the witness, as for the next base). A segment is told by its salt besides. Rounds are those of the history that
`meta/bucket` has, each with the hash of the one before it.
"""

from __future__ import annotations

import errno
import hashlib
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from typing import Final

from topics.bucket.base_format import PAGE_TOPICS, Base, SealedFile, SegmentEntry, lineage
from topics.bucket.local_note import BadNote, BucketNote, read_note
from topics.bucket.object_names import SegmentKind, SegmentName, base_name, segment_name
from topics.bucket.object_store import ObjectStore, StoreError, StoreErrorKind
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.runtime.clock import Clock
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, join
from topics.storage.recovery.restored_copy import MARK, inode_of
from topics.storage.segments.mended_files import SegmentCopy
from topics.storage.segments.packed_reads import unpacked
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

START_S: Final = 10.0
"""How long a start goes on asking a bucket that does not answer (s). A call that hangs has its own limit."""

LIVE_S: Final = 60.0
"""The same of a running daemon, in one attempt. Nobody waits for its end."""


class BucketHome:
    """Reads the bucket of a directory. Methods block for a bounded time, and may be called from several threads."""

    def __init__(
        self,
        objects: ObjectStore,
        fs: Fs,
        datadir: DataDir,
        identity: Callable[[], str],
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`identity` returns that of the open directory (`Store.identity`)."""
        self.patience_s = START_S
        self.has_answered = False
        """True if the bucket has just answered, so that a start may ask it even if nothing is damaged."""
        self._objects = objects
        self._fs = fs
        self._datadir = datadir
        self._identity = identity
        self._clock = clock
        self._sleep = sleep
        self._base: Base | None = None

    # -- segments ----------------------------------------------------------------------------------------------------

    def segment(self, topic_id: int, first: int, salt: int) -> SegmentCopy | None:
        """Return the files of a sealed segment as the newest base names them; None if there is none, or if an object is
        not what it should be. Raises OSError if the bucket does not answer."""
        reader = self._reader()
        try:
            if self._own_note(reader) is None:
                return None
            base = self._newest_base(reader)
            entry = segment_entry(reader, base, topic_id, first) if base is not None else None
            if entry is not None and entry.salt != salt:
                return None
            return self._copy(reader, base, topic_id, entry) if base is not None and entry is not None else None
        except BucketDamaged as error:
            log.error("bucket_object_damaged", object=error.name, problem=error.problem)
            return None
        except StoreError as error:
            raise unanswered(error) from error

    def _newest_base(self, reader: BucketReader) -> Base | None:
        """Return the newest base, if it is of this directory."""
        numbers = [one.number for one in reader.bases()]
        if not numbers:
            return None
        base = self._base
        if base is None or base.head.number != numbers[-1]:
            base = self._base = reader.base(numbers[-1])
        return base if lineage(str(base.body.snapshot.get("identity"))) == lineage(self._identity()) else None

    def entry(self, topic_id: int, first: int) -> tuple[str, SegmentEntry | None]:
        """Return the id of the bucket, and what the newest base says of the segment that begins at a seq, None if it
        has none. Raises OSError if the bucket does not answer."""
        reader = self._reader()
        try:
            base = self._newest_base(reader) if self._own_note(reader) is not None else None
            return reader.bucket_id, segment_entry(reader, base, topic_id, first) if base is not None else None
        except BucketDamaged as error:
            log.error("bucket_object_damaged", object=error.name, problem=error.problem)
            return "", None
        except StoreError as error:
            raise unanswered(error) from error

    def _copy(self, reader: BucketReader, base: Base, topic_id: int, entry: SegmentEntry) -> SegmentCopy | None:
        if entry.data is None or entry.idx is None or entry.tags is None:
            return None
        deleted = b""
        if entry.deleted is not None:
            for _, content in reader.blobs([entry.deleted], base_name(base.head.number)):
                deleted = content
        name = SegmentName(topic_id, entry.first, entry.epoch, entry.salt)
        return SegmentCopy(
            _unpacked(_object(reader, name, "data", entry.data), name, entry.data),
            _object(reader, name, "idx", entry.idx),
            _object(reader, name, "tags", entry.tags),
            deleted,
        )

    # -- the log -----------------------------------------------------------------------------------------------------

    def log_bytes(self, shard: int, ordinal: int, start: int, stop: int) -> Generator[tuple[int, bytes]]:
        """Yield what the rounds of this history have of the bytes `start` to `stop` (exclusive) of a file of the log,
        as offsets and bytes, ascending. Raises OSError if the bucket does not answer."""
        try:
            yield from self._log_bytes(self._reader(), shard, ordinal, start, stop)
        except BucketDamaged as error:
            log.error("bucket_object_damaged", object=error.name, problem=error.problem)
        except StoreError as error:
            raise unanswered(error) from error

    def _log_bytes(
        self, reader: BucketReader, shard: int, ordinal: int, start: int, stop: int
    ) -> Iterator[tuple[int, bytes]]:
        note = self._own_note(reader)
        if note is None or note.positions is None or note.history <= 0:
            return
        numbers = [one.number for one in reader.rounds(note.history)]

        def has_it(number: int) -> bool:
            positions = reader.round_head(number).positions
            return shard < len(positions) and positions[shard] > (ordinal, start)

        at = bisect_left(numbers, True, key=has_it)
        if at == len(numbers):
            return
        for found in reader.chain(numbers[at], numbers[-1]):
            head = found.head
            if head.number == note.round and found.hash != note.hash:
                return  # another directory has written it
            if head.begins_history and head.number != note.history:
                return
            for run, data in found.pieces():
                end = run.offset + run.length
                if (run.shard, run.ordinal) == (shard, ordinal) and end > start and run.offset < stop:
                    lo, hi = max(start, run.offset), min(stop, end)
                    yield lo, bytes(data[lo - run.offset : hi - run.offset])
            if head.positions[shard] >= (ordinal, stop):
                return

    def log_positions(self) -> list[LogPosition]:
        """Return the positions of the last round of this directory that is known: that of the note, or a later one, if
        the bucket `has_answered`. An empty list if the log is not the one that the note is about any more: after
        salvage, and in a copy."""
        datadir = self._datadir
        try:
            note = read_note(self._fs, datadir)
            is_other = self._fs.exists(datadir.salvaged_path) or self._fs.exists(join(datadir.root, MARK))
            if note is None or note.positions is None or is_other:
                return []
            if inode_of(note.identity) != inode_of(self._fs.identity(datadir.root)):
                return []
        except (BadNote, OSError):
            return []
        newest = self._newest_positions(note) if self.has_answered else []
        return newest or [LogPosition(*position) for position in note.positions]

    def _newest_positions(self, note: BucketNote) -> list[LogPosition]:
        """Return the positions of the last round behind the note; an empty list if there is none, or if that is not
        known."""
        reader = self._reader()
        found: list[LogPosition] = []
        try:
            if self._own_note(reader) is None:
                return []
            numbers = [one.number for one in reader.rounds(note.round)]
            for round_ in reader.chain(note.round, numbers[-1]) if numbers[:1] == [note.round] else ():
                if round_.head.begins_history or round_.head.number == note.round:
                    if round_.hash != note.hash:
                        return []
                    continue
                found = [LogPosition(*position) for position in round_.head.positions]
        except (StoreError, BucketDamaged):
            return []
        return found

    # -- whose bucket ------------------------------------------------------------------------------------------------

    def _own_note(self, reader: BucketReader) -> BucketNote | None:
        """Return what the directory knows of its bucket; None if this is not its bucket, or not any more."""
        try:
            note = read_note(self._fs, self._datadir)
        except BadNote:
            return None
        if note is None or reader.bucket_id != note.bucket:
            return None
        owner = reader.owner()
        return note if owner is not None and owner.dir == note.dir else None

    def _reader(self) -> BucketReader:
        until_ms = self._clock.monotonic_ms() + round(1000 * self.patience_s)

        def pause(seconds: float) -> None:
            if self._clock.monotonic_ms() + 1000 * seconds >= until_ms:
                raise StoreError(StoreErrorKind.TIMEOUT, "the bucket does not answer")
            self._sleep(seconds)

        return BucketReader(self._objects, pause)


def segment_entry(reader: BucketReader, base: Base, topic_id: int, first: int) -> SegmentEntry | None:
    """Return what a base says of a segment; None if it has none. Raises BucketDamaged, StoreError."""
    number = topic_id // PAGE_TOPICS
    ref = next((ref for page, ref in base.body.pages if page == number), None)
    if ref is None:
        return None
    topic = next((one for one in reader.page(base.head.number, number, ref) if one.id == topic_id), None)
    return next((one for one in topic.segments if one.first == first), None) if topic is not None else None


def _object(reader: BucketReader, name: SegmentName, kind: SegmentKind, file: SealedFile) -> bytes:
    """Return a file of a segment. Raises BucketDamaged, StoreError."""
    full = segment_name(name, kind)
    data = reader.whole(full, file.size)
    if len(data) != file.size or hashlib.sha256(data).digest() != file.hash:
        raise BucketDamaged(full, "it has another hash than the base says")
    return data


def _unpacked(data: bytes, name: SegmentName, file: SealedFile) -> bytes:
    """Return the unpacked form of a `.data`. Raises BucketDamaged."""
    try:
        return unpacked(data, file.unpacked) if file.unpacked else data
    except ValueError as error:
        raise BucketDamaged(segment_name(name, "data"), str(error)) from None


def unanswered(error: StoreError) -> OSError:
    """Return what a bucket that does not answer is to those who know files only."""
    return OSError(errno.EAGAIN, error.sentence)
