"""Directories in which a daemon has begun, and nothing has happened: its machine has crashed in its first start
(`docs/design/standby.md` section 3). A standby makes its own in their place.

Only what a first start writes may be there. Everything else, also bytes that cannot be read as a log, is somebody's.
Blocking.
"""

from __future__ import annotations

from posixpath import basename
from typing import Final

from topics.bucket.standby.handover import stays
from topics.storage.files.datadir import DataDir, FoundShard, current_path, discover_shards, parse_wal_name, wal_path
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs
from topics.storage.wal.frames import FrameType, UnknownFrameType
from topics.storage.wal.wal_head import read_heads, scans, wal_format

OF_PLACE: Final = frozenset({FrameType.SHARD_OPEN, FrameType.SYNCED, FrameType.FILE_END, FrameType.CLEAN_STOP})
"""Frames that say nothing of any topic."""

READ_BYTES: Final = 1 << 20


def is_unused(fs: Fs, datadir: DataDir) -> bool:
    """Return True if nobody has ever put anything into a data directory. Raises OSError."""
    below = {basename(path) for path in (datadir.format_path, datadir.meta_dir, datadir.wal_dir, datadir.topics_dir)}
    if any(name not in below and not stays(name) for name in _names(fs, datadir.root)):
        return False
    notes = {basename(path) for path in (datadir.clock_path, datadir.witness_path)}
    if not set(_names(fs, datadir.meta_dir)) <= notes or _names(fs, datadir.topics_dir):
        return False
    if not fs.exists(datadir.wal_dir):
        return True
    shards = discover_shards(fs, datadir)
    known = {basename(shard.path) for shard in shards if shard.path != datadir.wal_dir}
    names = set(_names(fs, datadir.wal_dir)) - known
    has_flat = any(shard.path == datadir.wal_dir for shard in shards)
    return (has_flat or not names) and all(_is_empty(fs, datadir, shard, known) for shard in shards)


def _is_empty(fs: Fs, datadir: DataDir, shard: FoundShard, others: set[str]) -> bool:
    """Return True if the log of a shard has nothing of any topic. `others` are directories of other shards."""
    names = set(_names(fs, shard.path)) - others - {basename(current_path(shard.path))}
    ordinals = {name: ordinal for name in names if (ordinal := parse_wal_name(name)) is not None}
    if len(ordinals) < len(names):
        return False
    heads = read_heads(fs, shard.path, ordinals.values(), version=wal_format(fs, datadir))
    for ordinal, head in heads.items():
        if head.problem:
            return False
        with fs.open(wal_path(shard.path, ordinal), read_only=True) as file:
            size, end = file.size(), head.first
            try:
                for window in scans(file, head, end, size):
                    if any(frame.type not in OF_PLACE for frame in window.scan.frames):
                        return False
                    end = window.scan.stop
            except UnknownFrameType:
                return False
            if any(file.pread(READ_BYTES, at).strip(b"\0") for at in range(end, size, READ_BYTES)):
                return False
    return True


def _names(fs: Fs, directory: str) -> list[str]:
    """Return what is in a directory, without files that were never given their names."""
    if not fs.exists(directory):
        return []
    return [name for name in fs.listdir(directory) if not name.endswith(TEMPORARY_SUFFIX)]
