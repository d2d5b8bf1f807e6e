"""Which files of the log count, shard by shard (`docs/spec/storage.md` sections 1 and 6).

Responsible for the directories of shards and the names of files in them. After a change of the shard count, files of
the old layout may still exist; they are left out (`docs/spec/crash.md` 14). `shard_replay` reads the files.
"""

from __future__ import annotations

import errno

from topics.storage.files.datadir import DataDir, DataDirError, FoundShard, discover_shards, parse_wal_name, wal_path
from topics.storage.files.fs import Fs
from topics.storage.snapshots.snapshot import Snapshot
from topics.storage.wal.wal_files import WalFiles
from topics.storage.wal.wal_head import read_heads, wal_format


def shards_with_files(fs: Fs, datadir: DataDir) -> list[FoundShard]:
    """Return every shard of every layout that has a file. Blocking. Raises OSError."""
    return [found for found in discover_shards(fs, datadir) if ordinals_in(fs, found.path)]


def ordinals_in(fs: Fs, directory: str, least: int = 0) -> list[int]:
    """Return the ordinals of a shard's files from `least` on, ascending. Blocking. Raises OSError."""
    found = (parse_wal_name(name) for name in fs.listdir(directory))
    return sorted(ordinal for ordinal in found if ordinal is not None and ordinal >= least)


class LogLayout:
    """The shards that count, and their files. Blocking."""

    def __init__(self, fs: Fs, datadir: DataDir, snapshot: Snapshot | None, found: list[FoundShard]) -> None:
        """`found` are the shards of all layouts that have a file. Raises DataDirError if two layouts cannot be told
        apart, and OSError."""
        self.first_ordinal = 0
        """Files with lower ordinals belong to an old layout."""
        self.shards = found
        self._fs = fs
        self._datadir = datadir
        if snapshot is not None and snapshot.new_layout:
            self._leave_out_old(snapshot)
        if len({shard.path == datadir.wal_dir for shard in self.shards}) > 1:
            raise DataDirError(f"{datadir.wal_dir} holds WAL files of two layouts")

    def _leave_out_old(self, snapshot: Snapshot) -> None:
        """Keep the shards of the layout that the snapshot has announced. Old files are removed only when every new file
        exists.

        So while an old file exists, a missing new file was never made. If no old file exists, a missing new file is
        lost, and recovery refuses.
        """
        first = self.first_ordinal = min(position[0] for position in snapshot.positions.values())
        count, datadir = snapshot.shards, self._datadir
        shards = [FoundShard(number, datadir.shard_dir(number, count)) for number in range(count)]
        current = {shard.path for shard in shards}
        old = any(shard.path not in current or ordinals_in(self._fs, shard.path)[0] < first for shard in self.shards)
        self.shards = shards if old else [shard for shard in shards if self.ordinals(shard)]

    def ordinals(self, shard: FoundShard) -> list[int]:
        """Return the ordinals of a shard's files, ascending. Raises OSError."""
        return ordinals_in(self._fs, shard.path, self.first_ordinal)

    def size(self) -> int:
        """Return the bytes of all files. Raises OSError."""
        return sum(self.file_size(shard, ordinal) for shard in self.shards for ordinal in self.ordinals(shard))

    def file_size(self, shard: FoundShard, ordinal: int) -> int:
        """Return the bytes of one file. Raises OSError."""
        with self._fs.open(wal_path(shard.path, ordinal), read_only=True) as handle:
            return handle.size()

    def register(self, files: WalFiles) -> None:
        """Give every file an id, and read its beginning. Raises OSError, also if a file is removed meanwhile."""
        version = wal_format(self._fs, self._datadir)
        for shard in self.shards:
            heads = read_heads(self._fs, shard.path, ordinals_in(self._fs, shard.path), version=version)
            for ordinal in self.ordinals(shard):
                path = wal_path(shard.path, ordinal)
                if ordinal not in heads:
                    raise FileNotFoundError(errno.ENOENT, "removed meanwhile", path)
                files.add(shard.shard, ordinal, path, heads[ordinal])
