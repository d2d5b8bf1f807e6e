"""The files of the log in the directory of a standby: the bytes are those of its owner's files, in the same places, and
come piece by piece.

Responsible for writing them durably, for reading the whole batches among them, and for cutting the files at a start to
what is known to be whole. What batches mean is said by `topics.storage.recovery`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topics.bucket.local_note import BucketNote
from topics.storage.files.datadir import FORMAT, DataDir, parse_wal_name, wal_path
from topics.storage.files.fs import File, Fs, write_all
from topics.storage.files.progress import Progress
from topics.storage.recovery.frame_batches import FrameBatch, FrameBatches
from topics.storage.recovery.recovered_state import RecoveredShard
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles
from topics.storage.wal.wal_head import TAIL_BYTES, WalHead, read_heads


class LogPiece(NamedTuple):
    """Bytes of one file of the log, from `offset` on."""

    shard: int
    ordinal: int
    offset: int
    data: bytes | memoryview


class NewFile(NamedTuple):
    """A file of the log that is not registered yet."""

    shard: int
    ordinal: int
    path: str
    head: WalHead


class FileBatches(NamedTuple):
    """What one file has got."""

    shard: int
    file: WalFile
    batches: Sequence[FrameBatch]
    end: int
    """Offset behind the last batch."""
    frame_count: int
    """Ordinal of the frame behind it."""
    is_ended: bool
    """True if the file is complete."""


class LogBroken(Exception):
    """Pieces do not follow what there is, or are no whole batches. The message is a phrase."""


class LogLost(OSError):
    """The log of the directory lacks bytes that its note has."""


class FollowedLog:
    """Made from where recovery has ended. `write` and `read` block; `register` is called between them, on the loop."""

    def __init__(self, fs: Fs, datadir: DataDir, files: WalFiles, shards: Mapping[int, RecoveredShard]) -> None:
        self._fs = fs
        self._datadir = datadir
        self._files = files
        self._shards = shards
        self._written: dict[int, LogPosition] = {
            number: LogPosition(shard.file.ordinal, shard.end)
            for number, shard in shards.items()
            if shard.file is not None
        }
        """How far each shard is written."""
        self._unread: list[tuple[int, WalFile | None, int]] = []

    def write(self, pieces: Sequence[LogPiece]) -> list[NewFile]:
        """Write pieces, and sync them. Return the files that begin with them. Raises LogBroken, OSError; the same
        pieces may be written again then."""
        fs, new = self._fs, []
        written = dict(self._written)
        for shard, ordinal, offset, data in pieces:
            at = written.get(shard)
            if at is None or (offset != at.offset if ordinal == at.ordinal else offset or ordinal < at.ordinal):
                raise LogBroken(f"bytes {offset} of file {ordinal} of shard {shard} do not follow what is here")
            directory = self._datadir.shard_dir(shard, len(self._shards))
            path = wal_path(directory, ordinal)
            with fs.open(path, create=not offset) as handle:
                if not offset:
                    handle.truncate(0)
                _keep_room(handle, offset + len(data))
                write_all(handle, data, offset)
                handle.fdatasync()
            if not offset:
                if ordinal != at.ordinal:
                    self._finish(wal_path(directory, at.ordinal), at.offset)
                fs.sync_dir(directory)
                head = read_heads(fs, directory, [ordinal], version=FORMAT["wal"]).get(ordinal)
                if head is None or head.problem is not None:
                    raise LogBroken(f"file {ordinal} of shard {shard} has no header")
                new.append(NewFile(shard, ordinal, path, head))
            written[shard] = LogPosition(ordinal, offset + len(data))
        self._written = written
        return new

    def _finish(self, path: str, end: int) -> None:
        """Cut off the room behind the end of a file that is complete: a replay may begin there."""
        with self._fs.open(path) as handle:
            if handle.size() > end:
                handle.truncate(end)
                handle.fdatasync()

    def register(self, new: Sequence[NewFile]) -> None:
        """Have the files known."""
        for shard, ordinal, path, head in new:
            self._files.add(shard, ordinal, path, head)

    def has(self, shard: int, ordinal: int) -> bool:
        """Return True if this file of the log is here."""
        return bool(self._files.file_of(("wal", shard, ordinal)))

    def read(self) -> list[FileBatches]:
        """Return what was written and not read yet, by shard and in the order of its files. Raises LogBroken if it does
        not end with a whole batch, UnknownFrameType, OSError, and any exception for a malformed payload."""
        found: list[FileBatches] = []
        for number, shard in sorted(self._shards.items()):
            target = self._written.get(number)
            if target is None or shard.file is None:
                continue
            offset, count = shard.end, shard.frame_count
            for file in self._files.of_shard(number):
                if not shard.file.ordinal <= file.ordinal <= target.ordinal or (file is shard.file and shard.ended):
                    continue
                begin = offset if file is shard.file else file.head.first
                if file is not shard.file and file.ordinal != count:
                    raise LogBroken(f"file {file.ordinal} of shard {number} should begin with frame {count}")
                end = target.offset if file.ordinal == target.ordinal else None
                one = self._read_file(number, file, begin, count, end)
                if one is not None:
                    found.append(one)
                    count = one.frame_count
        return found

    def _read_file(self, shard: int, file: WalFile, begin: int, count: int, end: int | None) -> FileBatches | None:
        with self._fs.open(file.path, read_only=True) as handle:
            batches = FrameBatches(file, handle, begin, count, Progress())
            batches.size = min(batches.size, end) if end is not None else batches.size
            if batches.size <= begin:
                return None
            read = list(batches)
            if batches.batch_at != batches.size and not batches.ended:
                raise LogBroken(f"file {file.ordinal} of shard {shard} has no whole batch at {batches.batch_at}")
        return FileBatches(shard, file, read, batches.batch_at, batches.count, batches.ended)


def cut_to(fs: Fs, datadir: DataDir, note: BucketNote) -> None:
    """Cut the files of the log behind the places of a note: what is there is not known to be whole. Blocking. Raises
    LogLost if there is less, OSError."""
    assert note.positions is not None
    for shard, (ordinal, offset) in enumerate(note.positions):
        directory = datadir.shard_dir(shard, len(note.positions))
        try:
            _cut(fs, directory, LogPosition(ordinal, offset), is_complete=shard in note.complete)
        except (FileNotFoundError, NotADirectoryError):
            raise LogLost(errno.EIO, f"file {ordinal} of shard {shard} of the log is missing") from None


def _cut(fs: Fs, directory: str, end: LogPosition, *, is_complete: bool) -> None:
    for name in fs.listdir(directory):
        found = parse_wal_name(name)
        if found is not None and found > end.ordinal:
            fs.unlink(f"{directory}/{name}")
    path = wal_path(directory, end.ordinal)
    with fs.open(path) as handle:
        if handle.size() < end.offset:
            raise LogLost(errno.EIO, f"{path} ends at {handle.size()}, and the log was whole up to {end.offset}")
        handle.truncate(end.offset)
        if not is_complete:
            _keep_room(handle, end.offset)
        handle.fdatasync()
    fs.sync_dir(directory)


def _keep_room(handle: File, end: int) -> None:
    """Have zeros behind the end of a file that is still written to: without them and FileEnd it has lost its end."""
    if handle.size() < end + TAIL_BYTES:
        handle.truncate(end + 2 * TAIL_BYTES)
