"""The directory of a standby, before its daemon opens it: it goes on where it was, or is made from the newest base.

`meta/standby` (a `BucketNote`) says up to which round the log in the directory is whole. What is behind that is cut off
here, and read again from the bucket. The directory is made anew if the bucket no longer has the round after that one,
or has begun another history: positions of different histories cannot be compared; and if its log has lost bytes, which
the bucket has. While it is made it has the file
`RESTORING` in it, so a start after a crash makes it again.

A directory that is neither empty nor that of a standby is refused: it may be the only place that has its records.

Everything here blocks.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

from topics.bucket.local_note import BadNote, BucketNote, read_note, write_note
from topics.bucket.object_store import ObjectStore
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import UNFINISHED, WORKERS, BucketRestore, RestoreSource, Workers
from topics.bucket.offline.restore_target import (
    NoBase,
    NothingToRestore,
    RestoreRefused,
    RestoreTarget,
    choose_target,
    may_pass_over,
)
from topics.bucket.pins import drop_pin, pinned
from topics.bucket.standby.followed_log import LogLost, cut_to
from topics.bucket.standby.handover import leave, set_aside, stays
from topics.bucket.standby.unused_directory import is_unused
from topics.runtime.window_clock import ClockMark
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, LockHeld, join
from topics.storage.snapshots.clock_mark import write_mark
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

ATTEMPTS: Final = 3
"""How often a restore is begun if objects go while it reads: the owner may remove a base that nobody has pinned yet."""


class HistoryUnfinished(NothingToRestore):
    """Another history has begun behind what can be restored, and has no base yet: nobody can follow it. With takeover
    nothing has counted in it, since its owner is ready when there is a base."""


class StandbyRefused(Exception):
    """The directory cannot be that of a standby, or the bucket not be followed. The message is for the operator."""


def prepare_directory(
    fs: Fs,
    root: str,
    url: str,
    objects: ObjectStore,
    workers: int = WORKERS,
    *,
    takes: bool = False,
    copies_all: bool = False,
) -> BucketNote | None:
    """Have a directory that can be followed on, and return its note. With `takes` it may have been an owner's: None
    then says that it is the owner's, or that there is nothing to follow: nobody has owned the bucket yet, or the
    present history has no base, and may never get one (`Owner.counts_without_base`). If another directory has taken
    over, it is set aside.
    `copies_all`: a directory that is made has all segments from the beginning, because cold ones are not read from the
    bucket. Raises StandbyRefused, NothingToRestore, BucketDamaged, StoreError, OSError."""
    datadir = DataDir(root)
    reader = BucketReader(objects)
    with _alone(fs, datadir):
        if takes and _is_owner(fs, datadir, reader):
            return None
        note = _going_on(fs, datadir, reader)
    if note is not None:
        return note
    try:
        return _make(fs, root, url, reader, objects, workers, copies_all=copies_all)
    except NothingToRestore as error:
        if not takes or not _may_begin_anew(error, reader):
            raise
        log.warning("standby_waits_for_owner", reason=str(error))
        return None


def _may_begin_anew(error: NothingToRestore, reader: BucketReader) -> bool:
    """Return True if there is nothing to follow, and an empty directory may take the prefix when its lease has
    lapsed."""
    if isinstance(error, NoBase):
        owner = reader.owner()
        return owner is not None and not owner.counts_without_base
    return isinstance(error, HistoryUnfinished)


@contextmanager
def _alone(fs: Fs, datadir: DataDir) -> Iterator[None]:
    """Keep daemons out of a directory. Raises StandbyRefused if one is in it: its log must not be cut, nor be moved
    aside."""
    lock = None
    holder = fs.lock_holder(datadir.lock_path)
    try:
        if holder is None and fs.exists(datadir.root):
            lock = fs.lock_dir(datadir.root)
    except LockHeld as error:
        holder = error.holder
    except OSError as error:
        log.debug("directory_not_locked", problem=str(error))  # of a file system that locks no directories
    if holder is not None:
        raise StandbyRefused(f"the data directory {datadir.root} is in use by {holder.strip() or 'another process'}")
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _going_on(fs: Fs, datadir: DataDir, reader: BucketReader) -> BucketNote | None:
    """Have the log end where the note says, and return the note; None if the directory has to be made (anew)."""
    if fs.exists(join(datadir.root, UNFINISHED)):
        return None
    try:
        note = read_note(fs, datadir, datadir.standby_path)
    except BadNote as error:
        log.warning("standby_note_damaged", problem=str(error))
        mark_unfinished(fs, datadir.root)
        return None
    if note is None:
        return None
    reason = why_anew(reader, note)
    if reason is None:
        try:
            cut_to(fs, datadir, note)
        except LogLost as error:
            reason = error.strerror or str(error)
        else:
            return note
    log.warning("standby_made_anew", reason=reason)
    mark_unfinished(fs, datadir.root)
    return None


def _is_owner(fs: Fs, datadir: DataDir, reader: BucketReader) -> bool:
    """Return True if a directory is the owner's, or may become it at once. Sets that of a former owner aside."""
    if fs.exists(datadir.standby_path) or fs.exists(join(datadir.root, UNFINISHED)):
        return False
    owner = reader.owner()
    try:
        note = read_note(fs, datadir)
    except BadNote as error:
        raise StandbyRefused(f"{datadir.bucket_path} is damaged: {error}") from error
    if note is None:
        return owner is None and not _content(fs, datadir.root) and next(reader.rounds(), None) is None
    if owner is None or owner.dir == note.dir:
        return True
    if note.bucket not in ("", reader.bucket_id):  # empty: it lost the bucket before it had opened it
        raise StandbyRefused(f"the directory is of the bucket {note.bucket}, and this is {reader.bucket_id}")
    set_aside(fs, datadir.root, note, owner, reader)
    return False


def _content(fs: Fs, root: str) -> list[str]:
    """Return what is in a directory and belongs to its data."""
    return [name for name in fs.listdir(root) if not stays(name)] if fs.exists(root) else []


def leave_bucket(fs: Fs, datadir: DataDir, *, is_meant: bool, salvages: bool) -> bool:
    """Have the directory of a standby go on as one of its own, and return True; False if it is no standby's.
    `is_meant`: there is no bucket, or the operator says that this directory counts, whatever the bucket has.
    `salvages`: also if its log has lost bytes. The directory must be locked. Raises StandbyRefused, OSError."""
    if not fs.exists(datadir.standby_path):
        return False
    root = datadir.root
    ways = (
        "with TOPICS_ROLE=standby it follows its bucket, and with TOPICS_BUCKET_TAKEOVER=1 takes it when that is due. "
        "If its bucket is gone, start it once without TOPICS_BUCKET, or with --take on another one: then it goes on "
        "by itself"
    )
    if not is_meant:
        raise StandbyRefused(f"{root} is the directory of a standby: {ways}")
    if fs.exists(join(root, UNFINISHED)):
        raise StandbyRefused(
            f"{root} is the directory of a standby, and was to be made anew from its bucket, because what is in it is "
            f"damaged or not whole ({UNFINISHED}): start it with TOPICS_ROLE=standby. If that bucket is gone, remove "
            f"{UNFINISHED}, and start with TOPICS_RECOVERY=salvage: what can be read is kept"
        )
    try:
        note = read_note(fs, datadir, datadir.standby_path)
    except BadNote as error:
        log.warning("standby_note_damaged", problem=str(error), consequence="the log is taken as it is")
        note = None
    try:
        leave(fs, datadir, note)
    except LogLost as error:
        problem = error.strerror or str(error)
        if not salvages:
            raise StandbyRefused(
                f"the log of the standby in {root} has lost its end: {problem}. With TOPICS_ROLE=standby it is made "
                "anew from its bucket; if that is gone, TOPICS_RECOVERY=salvage goes on with what is left"
            ) from error
        log.error("standby_log_lost", problem=problem, consequence="the log is taken as it is")
        leave(fs, datadir, None)
    log.warning("standby_left_bucket", directory=root, round=note.round if note is not None else None)
    return True


def mark_unfinished(fs: Fs, root: str) -> None:
    """Have the next start make the directory of a standby anew. Blocking. Raises OSError."""
    fs.open(join(root, UNFINISHED), create=True).close()
    fs.sync_dir(root)


def why_anew(reader: BucketReader, note: BucketNote) -> str | None:
    """Return why a directory cannot go on, None if it can."""
    if note.bucket != reader.bucket_id:
        raise StandbyRefused(
            f"the directory follows the bucket {note.bucket}, and this is {reader.bucket_id}: use another directory"
        )
    if note.positions is None:
        return "the note has no place"
    following = next(reader.rounds(note.round), None)
    if following is None:
        return f"the bucket has no round from {note.round} on"
    if following.number > note.round + 1:
        return f"the bucket has no round {note.round + 1} any more"
    with suppress(BucketDamaged):
        if following.number == note.round and reader.round(note.round).hash != note.hash:
            return f"round {note.round} of the bucket is another one"
    return None


def _make(
    fs: Fs, root: str, url: str, reader: BucketReader, objects: ObjectStore, workers: int, *, copies_all: bool
) -> BucketNote:
    if _content(fs, root) and not fs.exists(join(root, UNFINISHED)) and not is_unused(fs, DataDir(root)):
        raise StandbyRefused(
            f"{root} is not empty and not the directory of a standby: a standby makes its directory from the bucket. "
            "Use another directory; or move this one away, if nobody needs what is in it"
        )
    fs.mkdir(root)
    mark_unfinished(fs, root)
    began = time.monotonic()
    damaged: dict[int, BucketDamaged] = {}
    for attempt in range(ATTEMPTS):
        pool, target = Workers(workers), None
        try:
            target = choose_target(reader, map_heads=pool.map, damaged=damaged)
            _check_followed(reader, target)
            last = reader.round(target.round)
            adopted = BucketNote(
                bucket=last.head.bucket,
                dir=secrets.token_hex(16),
                epoch=last.head.epoch,
                round=target.round,
                hash=last.hash,
                wall_ms=last.head.wall_ms,
                window_ms=last.head.window_ms or reader.window_ms(target.round),
                positions=last.head.positions,
            )
            with pinned(objects, target.base, time.time_ns() // 1_000_000) as pin:
                source = None if copies_all else RestoreSource(url, pin)
                work = BucketRestore(fs, reader, root, pool, source, adopted=adopted, in_place=True, follows=True)
                figures = work.run(target)
            if adopted.window_ms:  # time passes with the rounds, from here on
                mark = ClockMark(adopted.window_ms, adopted.wall_ms, 0, "")
                write_mark(fs, DataDir(root), mark)
            if not figures.left:
                drop_pin(objects, pin)
            break
        except NothingToRestore:
            raise
        except RestoreRefused as error:
            raise StandbyRefused(str(error)) from error
        except BucketDamaged as error:
            if attempt == ATTEMPTS - 1 or target is None:
                raise
            if may_pass_over(error):
                damaged[target.base] = error
            log.warning("standby_restore_again", problem=str(error))
        finally:
            pool.close()
    log.info(
        "standby_made",
        base=figures.target.base,
        round=figures.target.round,
        bytes=figures.bytes,
        left=figures.left,
        ms=round((time.monotonic() - began) * 1000),
    )
    return adopted


def _check_followed(reader: BucketReader, target: RestoreTarget) -> None:
    """Check that rounds behind a target belong to its history. Raises HistoryUnfinished if one begins another."""
    for one in reader.rounds(target.round + 1):
        if reader.round_head(one.number).begins_history:
            raise HistoryUnfinished(f"round {one.number} of the bucket begins another history, which has no base yet")


def keep_note(fs: Fs, datadir: DataDir, note: BucketNote) -> None:
    """Note durably up to where the log is whole. Blocking. Raises OSError."""
    write_note(fs, datadir, note, datadir.standby_path)


def has_mark(root: str) -> bool:
    """Return True if the directory has to be made anew at the next start."""
    return os.path.exists(join(root, UNFINISHED))
