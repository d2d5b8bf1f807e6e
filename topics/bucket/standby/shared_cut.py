"""The last cut that the directory of a former owner shares with its bucket (`docs/design/standby.md` section 6).

`meta/bucket` may be some rounds behind the bucket: the former owner has put rounds, and was gone before it had noted
them. And the last round that it has put may be the first half of a cut, which nobody has applied. So the rounds from
the noted one on are compared with the log here, byte by byte. The first round that has other bytes is another owner's.
"""

from __future__ import annotations

from typing import NamedTuple

from topics.bucket.local_note import BucketNote
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.round_format import Round
from topics.storage.files.datadir import DataDir, wal_path
from topics.storage.files.fs import Fs


class SharedCut(NamedTuple):
    """The end of a cut: its last round, and how far the log is in it, by shard."""

    round: int
    positions: list[tuple[int, int]]


def shared_cut(fs: Fs, datadir: DataDir, reader: BucketReader, note: BucketNote) -> SharedCut | None:
    """Return the end of the last whole cut that the bucket has of the log in a directory with this note. None if that
    cannot be known: the rounds have gone, or another history has begun. Blocking. Raises StoreError, OSError."""
    if note.positions is None or not note.round:
        return None
    try:
        found = reader.round(note.round)
        if found.hash != note.hash:
            return None
        last = SharedCut(note.round, found.head.positions) if found.head.ends_cut else _end_before(reader, found)
        for listed in reader.rounds(note.round + 1):
            following = reader.round(listed.number)
            if following.head.previous != found.hash or not _has(fs, datadir, following):
                break
            found = following
            if found.head.ends_cut and found.head.runs:  # those that begin an epoch have none
                last = SharedCut(found.head.number, found.head.positions)
    except BucketDamaged:
        return None
    return last


def _end_before(reader: BucketReader, found: Round) -> SharedCut | None:
    """Return the end of the cut before the one that a round is in the middle of; None if its history begins with it.
    Raises BucketDamaged, StoreError."""
    while not found.head.begins_history and found.head.number > 1:
        found = reader.round(found.head.number - 1)
        if found.head.ends_cut:
            return SharedCut(found.head.number, found.head.positions)
    return None


def _has(fs: Fs, datadir: DataDir, found: Round) -> bool:
    """Return True if the log in the directory has the bytes of a round in their places. Raises OSError."""
    if found.head.begins_history:
        return False
    for run, data in found.pieces():
        if run.shard >= found.head.shards:
            return False
        path = wal_path(datadir.shard_dir(run.shard, found.head.shards), run.ordinal)
        try:
            with fs.open(path, read_only=True) as file:
                if file.pread(run.length, run.offset) != data:
                    return False
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True
