"""A restore: from a bucket to a data directory that is complete, or to none (`docs/design/bucket.md` section 6).

Everything is written to `<directory>.partial`, which is synced and gets its name at the end. A restore that was
interrupted starts over. FORMAT is written last, so that no daemon starts on a directory that is not complete: one at
which a disk is mounted cannot be renamed to, and is filled where it is.

The directory is marked as a copy (`restored_copy`): the first start raises the heads of its topics.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Final, NamedTuple, TypeVar

import msgspec

from topics.bucket.base_format import Base
from topics.bucket.local_note import BucketNote, write_note
from topics.bucket.object_names import base_name
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.left_segments import LeftSegments
from topics.bucket.offline.restore_target import RestoreRefused, RestoreTarget
from topics.bucket.offline.restored_copies import RestoredCopies
from topics.bucket.offline.restored_log import RestoredLog
from topics.bucket.offline.restored_topics import RestoredTopics
from topics.bucket.restored.restore_note import RestoreNote, encode_restore_note
from topics.bucket.restored.topic_selection import TopicSelection, encode_selection
from topics.bucket.round_format import Round
from topics.storage.files.datadir import DIVERGED, FORMAT, DataDir
from topics.storage.files.fs import Fs, LockHeld, join, parent, write_all
from topics.storage.files.progress import Progress
from topics.storage.recovery.restored_copy import MARK, TAKEN_OVER
from topics.storage.snapshots.snapshot import Snapshot, encode_snapshot

T = TypeVar("T")
Item = TypeVar("Item")

WORKERS: Final = 16
"""Reads of the store at a time."""

PARTIAL: Final = ".partial"
UNFINISHED: Final = "RESTORING"
"""A file in the directory while it is not complete: a directory with content and without it is not ours to remove."""

_MOST_NUMBER: Final = 1 << 62
_MOST_IDS: Final = 1 << 57
"""Ids begin at epoch x 2^32, and epochs are below 2^24."""


class RestoreFigures(NamedTuple):
    """What a restore has done."""

    target: RestoreTarget
    bytes: int
    left: int = 0
    """Segments that stay in the bucket."""


class RestoreSource(NamedTuple):
    """The bucket of a restore that leaves segments there, and the pin that keeps them. The restore has made the pin,
    and removes it after a failure."""

    url: str
    pin: str
    leaves: Callable[[str], bool] = lambda _: True
    """Given the name of a topic: True if its segments stay in the bucket."""


class Workers:
    """Makes calls in threads, a bounded number at a time; with one worker in the caller's own thread."""

    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="restore") if count > 1 else None
        self._window = 2 * count

    def map(self, call: Callable[[Item], T], items: Iterable[Item]) -> Iterator[T]:
        """Yield the result of each call, in order. Raises what a call has raised."""
        if self._pool is None:
            yield from map(call, items)
            return
        running: deque[Future[T]] = deque()
        try:
            for item in items:
                running.append(self._pool.submit(call, item))
                if len(running) >= self._window:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()

    def close(self) -> None:
        """Wait for the calls that run, and make no more."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


class BucketRestore:
    """One restore into `root`, which must not exist, or be empty. `progress` counts bytes that were read."""

    def __init__(
        self,
        fs: Fs,
        reader: BucketReader,
        root: str,
        workers: Workers,
        source: RestoreSource | None = None,
        *,
        selection: TopicSelection | None = None,
        in_place: bool = False,
        adopted: BucketNote | None = None,
        follows: bool = False,
    ) -> None:
        """`selection`: the first start is to delete all other topics. `adopted`: the directory takes the place of the
        owner's, and knows its bucket from the beginning. `in_place`: a disk is mounted at `root`, so nothing can be
        renamed to it, and it is filled where it is. `follows`: the directory is that of a standby, which goes on with
        the source's seqs, ids and log; `adopted` becomes the note of the last round (`meta/standby`)."""
        self._follows = follows
        self.progress = Progress()
        self.source = source
        """If it is set before `run`, sealed segments are left in the bucket. Without it everything is copied."""
        self._selection = selection
        self._names: set[str] = set()
        """Of the topics that the first start may find and that are selected."""
        self._left = 0
        self._fs = fs
        self._reader = reader
        self._root = root.rstrip("/") or root
        self._partial = self._root if in_place else self._root + PARTIAL
        self._datadir = DataDir(self._partial)
        self._workers = workers
        self._adopted = adopted

    def check_place(self) -> None:
        """Raises RestoreRefused if the directory cannot be made, because something is there. Changes nothing."""
        if self._root != self._partial and self._fs.exists(self._root) and self._listed(self._root):
            raise RestoreRefused(f"{self._root} exists and is not empty")
        names = self._listed(self._partial)
        if names and self._root == self._partial and UNFINISHED not in names:
            raise RestoreRefused(f"{self._root} is not empty")
        if names and UNFINISHED not in names and MARK not in names:
            raise RestoreRefused(f"{self._partial} exists and is not an unfinished restore: remove it, if you can")

    def _listed(self, path: str) -> list[str]:
        try:
            return [name for name in self._fs.listdir(path) if not self._is_of_disk(name)]
        except NotADirectoryError:
            raise RestoreRefused(f"{path} is not a directory") from None

    def run(self, target: RestoreTarget) -> RestoreFigures:
        """Make the directory. When this returns, it is there, whole and durable. After an exception it is not there.

        Raises BucketDamaged, RestoreRefused, StoreError, OSError.
        """
        self.check_place()
        self._fs.anchor(self._root if self._root == self._partial else parent(self._root))
        with self._unfinished():
            base = self._reader.base(target.base)
            snapshot = snapshot_of(base)
            if not self._follows:
                snapshot.next_topic_id = max(snapshot.next_topic_id, self._first_new_id(base))
            for directory in (self._datadir.meta_dir, self._datadir.wal_dir, self._datadir.topics_dir):
                self._fs.mkdir(directory)
            has_copies = self._write_log(base, target)
            snapshot.topics = self._write_topics(base)
            self._write_selection()
            if has_copies:
                left = LeftSegments(self._fs, self._partial, self._reader) if self._left else None
                copies = RestoredCopies(self._fs, self._datadir, base_name(base.head.number), snapshot, left)
                copies.write_stand_ins()
            self._write(self._datadir.snapshot_path(snapshot.number), encode_snapshot(snapshot))
            if self.source is not None and self._left:
                # The owner removes a base before what it needs: if it is there, the pin came in time.
                self._reader.head(base_name(target.base))
                bucket = self._reader.bucket_id
                note = RestoreNote(url=self.source.url, bucket=bucket, base=target.base, pin=self.source.pin)
                self._write(self._datadir.restore_path, encode_restore_note(note))
            if self._follows:
                assert self._adopted is not None
                write_note(self._fs, self._datadir, self._adopted, self._datadir.standby_path)
            else:
                if self._adopted is not None:
                    write_note(self._fs, self._datadir, self._adopted)
                self._write(join(self._partial, MARK), b"" if self._adopted is None else TAKEN_OVER)
            self._fs.sync_all(self._partial)
            self._write(self._datadir.format_path, msgspec.json.encode(FORMAT) + b"\n")
            self._fs.sync_all(self._partial)
            self._fs.unlink(join(self._partial, UNFINISHED))
            self._fs.sync_dir(self._partial)
            if self._root != self._partial:
                if self._fs.exists(self._root):
                    self._fs.rmdir(self._root)
                self._fs.rename(self._partial, self._root)
        if self._root != self._partial:
            self._fs.sync_dir(parent(self._root))
        return RestoreFigures(target, self.progress.done, self._left)

    @contextmanager
    def _unfinished(self) -> Iterator[None]:
        """Have a directory of our own, which is empty at first, and is removed after an exception."""
        self._fs.mkdir(self._partial)
        try:
            lock = self._fs.lock_dir(self._partial)
        except LockHeld:
            raise RestoreRefused(f"another restore is writing to {self._partial}") from None
        try:
            self._remove_content()
            self._fs.open(join(self._partial, UNFINISHED), create=True).close()
            self._fs.sync_dir(self._partial)  # so that a crash leaves nothing that has not this name beside it
            try:
                yield
            except BaseException:
                self._workers.close()
                with suppress(OSError):
                    self._remove_content()
                    with suppress(FileNotFoundError):  # it has gone already if the rename has failed
                        self._fs.unlink(join(self._partial, UNFINISHED))
                    if self._root != self._partial:
                        self._fs.rmdir(self._partial)
                raise
        finally:
            lock.release()

    def _is_of_disk(self, name: str) -> bool:
        return self._root == self._partial and _is_of_disk(name)

    def _remove_content(self) -> None:
        _remove_content(self._fs, self._partial, lambda name: name == UNFINISHED or self._is_of_disk(name))

    def _first_new_id(self, base: Base) -> int:
        """Return from where on ids of topics are given that the owner of the bucket has not given, nor will."""
        owner = None
        with suppress(BucketDamaged):  # it says nothing that a restore needs
            owner = self._reader.owner()
        return (max(base.head.epoch, owner.epoch if owner is not None else 0) + 1) << 32

    def _write_log(self, base: Base, target: RestoreTarget) -> bool:
        """Write the files of the log. Return True if there are copies in it."""
        first = base.head.first_round
        listed = takewhile(lambda one: one.number <= target.round, self._reader.rounds(first))
        sizes = {one.number: one.facts.size for one in listed}
        self.progress.total += sum(sizes.values())
        log = RestoredLog(self._fs, self._datadir, base)
        log.make_directories()
        rounds = self._workers.map(self._reader.round, range(first, target.round + 1))
        try:
            for found in self._reader.chain(first, target.round, rounds):
                self._note_files(found)
                log.take(found, is_first=found.head.number == first)
                self.progress.done += sizes.get(found.head.number, 0)
            log.finish()
            if self._adopted is not None:
                self._adopted.complete = sorted(log.complete)
        finally:
            log.close()
        self._note_names(log.created)
        return log.has_copies

    def _note_files(self, found: Round) -> None:
        """Note which files of the log begin in a round."""
        note = self._adopted
        if note is None:
            return
        head = found.head
        if head.begins_history or not note.history:  # a history that has begun earlier may count from here as well
            note.history, note.files = head.number, []
        begun = [(run.shard, run.ordinal, head.number) for run in head.runs if not run.offset]
        note.files = [*note.files, *begun]

    def _write_topics(self, base: Base) -> list[bytes]:
        where = (self.source.url, self.source.leaves) if self.source is not None else ()
        topics = RestoredTopics(self._fs, self._datadir, self._reader, base, self.progress, *where)
        parts: list[bytes] = []
        for page in self._workers.map(lambda item: topics.page(*item), base.body.pages):
            parts += page.parts
            self._note_names(page.names)
            self._left += sum(plan.stays for plan in page.sealed)
            for _ in self._workers.map(topics.segments.restore_sealed, page.sealed):
                pass
        return parts

    def _note_names(self, names: Iterable[str]) -> None:
        if self._selection is not None:
            self._names.update(filter(self._selection.matches, names))

    def _write_selection(self) -> None:
        """Have the first start delete the topics that are not selected. Raises RestoreRefused if none is."""
        if self._selection is None:
            return
        if not self._names:
            patterns = ", ".join(self._selection.patterns)
            raise RestoreRefused(f"no topic matches {patterns}: the bucket has none of such a name at that time")
        self._write(self._datadir.selection_path, encode_selection(self._selection))

    def _write(self, path: str, content: bytes) -> None:
        with self._fs.open(path, exclusive=True) as file:
            write_all(file, content, 0)


def remove_unfinished(fs: Fs, root: str) -> None:
    """Empty a directory in which a restore was interrupted; leave any other as it is. Blocking. Raises OSError."""
    if fs.exists(join(root, UNFINISHED)):
        _remove_content(fs, root, lambda name: name == UNFINISHED or _is_of_disk(name))
        fs.unlink(join(root, UNFINISHED))
        fs.sync_dir(root)


def _is_of_disk(name: str) -> bool:
    """Return True if a file system has made this in the directory at which it is mounted, or if it is a directory that
    was set aside (`topics.bucket.standby.handover`)."""
    return name == "lost+found" or name.startswith(DIVERGED)


def _remove_content(fs: Fs, directory: str, stays: Callable[[str], bool]) -> None:
    for name in fs.listdir(directory):
        path = join(directory, name)
        if stays(name):
            continue
        try:
            fs.unlink(path)
        except (IsADirectoryError, PermissionError):
            _remove_content(fs, path, lambda _name: False)
            fs.rmdir(path)


def snapshot_of(base: Base) -> Snapshot:
    """Return the snapshot of a base, without topics. Raises BucketDamaged."""
    name = base_name(base.head.number)
    try:
        snapshot = msgspec.convert({**base.body.snapshot, "topics": []}, Snapshot)
    except (msgspec.ValidationError, TypeError) as error:
        raise BucketDamaged(name, f"its snapshot is malformed: {error}") from error
    if (
        not 0 <= snapshot.number < _MOST_NUMBER
        or not 0 <= snapshot.next_topic_id < _MOST_IDS
        or snapshot.shards != base.head.shards
        or snapshot.positions.keys() != set(range(snapshot.shards))
        or any(len(place) != 3 or min(place) < 0 for place in snapshot.positions.values())
    ):
        raise BucketDamaged(name, "its snapshot contradicts itself")
    return snapshot
