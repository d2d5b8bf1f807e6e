"""Salvage: giving up a damaged range of a WAL file so that the rest can be used (`docs/spec/storage.md` section 3,
`docs/spec/crash.md` 15).

The bad range is replaced by one *filler*: a ShardOpen frame of exactly its length, whose payload says what was lost. No
other byte of the file moves, so every position in snapshots, Synced frames and the index stays valid. The filler is the
durable record of the decision: replay turns it into `corrupt` holes, and the next strict start finds no damage. If the
range is too short for a verdict, the filler is bare, and every replay comes to the same holes by itself
(`bare_fillers`). So salvage works for a range of any length. It keeps the original file under another name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.storage.files.datadir import DataDirError
from topics.storage.files.file_header import encode_file_header
from topics.storage.files.fs import File, Fs, copy_bytes, write_all
from topics.storage.files.swapped_files import swap_in
from topics.storage.recovery.bare_fillers import most_seqs
from topics.storage.recovery.damage import Damage, DamagedContent
from topics.storage.wal import frames
from topics.storage.wal.frame_search import only_zeros
from topics.storage.wal.frames import FrameType, UnsealedFrames
from topics.storage.wal.wal_head import TAIL_BYTES
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MOST_BEYOND: Final = 1 << 30
"""How many bytes beyond the end of a file a damaged range may reach: a file that has lost its end was at most this much
longer."""


def repair(fs: Fs, damage: Damage) -> None:
    """Replace the damaged range by a filler. Atomic: the file is either the old or the repaired one. Blocking.

    The repaired copy is made under a temporary name, the original is renamed aside, then the copy takes its name. A
    crash between the two renames leaves the copy under `.repaired`; `finish_swaps` completes it.
    """
    where = damage.where
    copy_path = where.path + ".repaired"
    with fs.open(where.path, read_only=True) as handle:
        if where.stop > handle.size() + MOST_BEYOND:
            raise DataDirError(f"{where.path} should reach to {where.stop}, which is far behind its end: restore it")
        _write_copy(fs, damage, handle, copy_path + ".tmp")
    swap_in(fs, where.path)
    for topic_id, (first, last) in sorted(damage.affected.losses.items()):
        log.error(
            "salvaged",
            file=where.path,
            topic=damage.affected.names.get(topic_id, topic_id),
            first_seq=first,
            last_seq=last if last is not None else "unknown",
        )
    log.error(
        "salvaged_control_frames_may_be_missing",
        file=where.path,
        offset=where.start,
        until=where.stop,
        kinds="topic and router creations and deletions, config changes, record deletions, evictions, "
        "idempotency keys, leases, times and priorities of jobs, pauses of queues, schedules and their last firings",
    )


def _write_copy(fs: Fs, damage: Damage, handle: File, path: str) -> None:
    """Write the repaired copy of the open file to `path`, durably."""
    where = damage.where
    size = handle.size()
    is_last = damage.frames.next_ordinal is None
    ends_file = where.stop >= size or (is_last and only_zeros(handle, where.stop, size))
    filler = _filler(damage, at_least=where.stop - where.start, ends_file=ends_file)
    end = where.start + len(filler)
    with fs.open(path, create=True) as copy:
        copy.truncate(0)
        salt = where.head.salt
        if where.head.problem is not None:
            salt = fs.salt()
            write_all(copy, _new_beginning(damage, salt), 0)
        elif salt is None and size < where.start:
            # A file that began with half a frame would not be recognised as one of version 1.
            write_all(copy, _before(damage, 0).sealed(None, 0), 0)
        else:
            copy_bytes(handle, 0, where.start, copy, 0)  # missing bytes of the file read as zeros
        write_all(copy, filler.sealed(salt, where.start), where.start)
        if not ends_file:
            copy_bytes(handle, where.stop, size, copy, where.stop)
        if is_last:
            copy.preallocate(max(size, end + 2 * TAIL_BYTES))
        copy.fdatasync()


def _new_beginning(damage: Damage, salt: int) -> bytes:
    """Return the header of a file that has lost it, and a filler up to the place where replay begins: the snapshot has
    the content before it."""
    header = encode_file_header(salt, damage.where.ordinal)
    if damage.where.start == len(header):
        return header
    return header + _before(damage, len(header)).sealed(salt, len(header))


def _before(damage: Damage, at: int) -> UnsealedFrames:
    """Return a filler from `at` up to the place where replay begins."""
    where = damage.where
    before = bare_filler(damage.frames.first - where.ordinal, where.start - at)
    if before is None:
        raise DataDirError(f"the part of {where.path} that lies before {where.start} is too short for a filler")
    return before


def _filler(damage: Damage, *, at_least: int, ends_file: bool) -> UnsealedFrames:
    """Return a ShardOpen frame as long as the range (longer only where it ends the file) that contains the verdict."""
    where, affected, lost = damage.where, damage.affected, damage.frames
    holes = {
        topic_id: [first, last if last is not None else first - 1 + _most_lost(affected, topic_id)]
        for topic_id, (first, last) in affected.losses.items()
    }
    payload: dict[str, object] = {"holes": holes, "salvaged": True}
    last_file = lost.next_ordinal is None
    if not last_file and (ends_file or lost.replaces != 1):
        payload["replaces"] = lost.replaces
    if ends_file and not last_file:
        payload["ends_file"] = True
    data = _sized(payload, at_least)
    if data is None and ends_file:
        return frames.encode_control(FrameType.SHARD_OPEN, payload)
    if data is None:
        data = bare_filler(1 if last_file else lost.replaces, at_least)
    if data is None:  # impossible for a log that a daemon has written
        raise DataDirError(f"the damaged range at {where.start} of {where.path} has no room for a frame: restore it")
    return data


def _most_lost(affected: DamagedContent, topic_id: int) -> int:
    """Return how many seqs of a topic the range, and earlier ranges not given up yet, may have held."""
    held = most_seqs(affected.room, routed=topic_id in affected.routed)
    return held + affected.outstanding.get(topic_id, 0)


def bare_filler(replaces: int, length: int) -> UnsealedFrames | None:
    """Return a bare filler of exactly `length` bytes that replaces so many frames; None if `length` is too short. A
    range that has held these frames is never too short."""
    data = _sized({"replaces": replaces} if replaces != 1 else {}, length)
    if data is None and replaces == 1:
        # One byte more than the shortest filler: an empty map whose length is encoded in an extra byte.
        data = frames.seal_payloads([(FrameType.SHARD_OPEN, b"\xb8\x00", 0)], topic_id=0, ts=0)
    return data if data is not None and len(data) == length else None


def _sized(payload: Mapping[str, object], length: int) -> UnsealedFrames | None:
    """Return the frame with a pad that makes it exactly `length` bytes; None if it is too long, or too close for a
    pad."""
    bare = frames.encode_control(FrameType.SHARD_OPEN, payload)
    if len(bare) == length:
        return bare
    # The length prefixes of CBOR grow by a byte at certain lengths: a key of another length compensates for it.
    for key in ("", "-", "--"):
        for prefixes in (2, 3, 4, 6):
            pad = length - len(bare) - len(key) - prefixes
            if pad >= 0:
                data = frames.encode_control(FrameType.SHARD_OPEN, {**payload, key: bytes(pad)})
                if len(data) == length:
                    return data
    return None
