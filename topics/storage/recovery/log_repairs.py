"""Repairs of the log from the bucket while the daemon starts (`docs/design/bucket.md` section 9).

The rounds of the bucket have the synced bytes of the log as they were. So where recovery finds damage, a file gets all
that they have of it, from the damage on.
"""

from __future__ import annotations

from contextlib import closing
from typing import Final

from topics.storage.files.fs import File, Fs, copy_bytes, write_all
from topics.storage.recovery.damage import BadRange
from topics.storage.recovery.salvage import swap_in
from topics.storage.recovery.start_repairs import StartRepairs
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

_BEYOND: Final = 1 << 62
"""Beyond every file."""


def repair_log(repairs: StartRepairs, fs: Fs, shard: int, where: BadRange) -> bool:
    """Give a damaged file of the log the bytes that the bucket has of it, and keep the damaged one aside. Return True
    if that has changed it: then the log has to be replayed again. Blocking. Raises OSError if the disk does not take
    the file."""
    start = 0 if where.head.problem is not None else where.start
    if repairs.away or (where.path, start) in repairs.tried:
        return False
    repairs.tried.add((where.path, start))
    copy_path = where.path + ".repaired.tmp"
    with fs.open(where.path, read_only=True) as handle, fs.open(copy_path, create=True) as copy:
        copy.truncate(0)
        copy_bytes(handle, 0, handle.size(), copy, 0)
        changed = _overlay(repairs, (shard, where.ordinal, start), handle, copy)
        if changed:
            copy.fdatasync()
    if not changed:
        fs.unlink(copy_path)
        return False
    swap_in(fs, where.path)
    repairs.log_files += 1
    repairs.repaired_bytes += changed
    log.warning("log_repaired", file=where.path, offset=start, bytes=changed)
    return True


def _overlay(repairs: StartRepairs, place: tuple[int, int, int], handle: File, copy: File) -> int:
    """Write what the bucket has from a place on (shard, ordinal of the file, offset) to the copy. Return the bytes of
    the pieces that differ; 0 also if the bucket stops answering."""
    shard, ordinal, start = place
    changed = 0
    pieces = repairs.home.log_bytes(shard, ordinal, start, _BEYOND)
    with closing(pieces):
        while True:
            try:
                piece = next(pieces, None)
            except OSError as error:
                repairs.no_answer(error)
                return 0
            if piece is None:
                return changed
            offset, data = piece
            if handle.pread(len(data), offset) != data:
                write_all(copy, data, offset)
                changed += len(data)
