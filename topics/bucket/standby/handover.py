"""From the directory of a standby to that of the owner, when it has got the prefix, or to one of its own, when there is
no bucket; and setting aside the directory of an owner that was away while another one has taken over
(`docs/design/standby.md` section 6).

All are a few changes of names and small files, in an order in which each state between is one that a start
understands. Blocking.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from topics.bucket.local_note import BadNote, BucketNote, write_note
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.ownership.owner_format import Owner
from topics.bucket.standby.diverged_note import DivergedNote, read_diverged, write_diverged
from topics.bucket.standby.followed_log import cut_to
from topics.bucket.standby.shared_cut import shared_cut
from topics.storage.files.datadir import DIVERGED, DataDir
from topics.storage.files.fs import Fs, join, write_atomic
from topics.storage.recovery.restored_copy import LEFT_STANDBY, MARK, TAKEN_OVER
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def hand_over(fs: Fs, datadir: DataDir, note: BucketNote, *, goes_on: bool) -> None:
    """Make the directory that of the owner. `note` says up to where the log is whole; unless it `goes_on`, the bucket
    has part of a cut behind that, and another history begins. Raises OSError; may be called again then."""
    cut_to(fs, datadir, note)
    write_atomic(fs, join(datadir.root, MARK), TAKEN_OVER)
    owned = msgspec.structs.replace(note, positions=note.positions if goes_on else None)
    write_note(fs, datadir, owned)
    with suppress(FileNotFoundError):
        fs.unlink(datadir.standby_path)
    fs.sync_dir(datadir.meta_dir)


def leave(fs: Fs, datadir: DataDir, note: BucketNote | None) -> None:
    """Make the directory of a standby one that goes on without its bucket, with the seqs of a copy. `note` says up to
    where the log is whole; without one it is taken as it is. Raises OSError; may be called again then."""
    if note is not None and note.positions is not None:
        cut_to(fs, datadir, note)
    write_atomic(fs, join(datadir.root, MARK), LEFT_STANDBY)
    fs.unlink(datadir.standby_path)
    fs.sync_dir(datadir.meta_dir)


def set_aside(fs: Fs, root: str, note: BucketNote, owner: Owner, reader: BucketReader) -> str:
    """Move everything in the directory of a former owner to `diverged-<epoch>/` in it. Return the path. Raises
    StoreError, OSError; may be called again then."""
    path = join(root, f"{DIVERGED}{note.epoch}")
    fs.mkdir(path)
    if not _is_noted(fs, path):  # the log may have been moved already
        cut = shared_cut(fs, DataDir(root), reader, note)
        left = DivergedNote(
            bucket=note.bucket,
            epoch=note.epoch,
            round=cut.round if cut is not None else note.round,
            positions=cut.positions if cut is not None else note.positions,
            by=owner.node,
            by_epoch=owner.epoch,
            exact=cut is not None,
        )
        write_diverged(fs, path, left)
    # `meta` goes last, also for a crash of the machine: with the note in it, a start goes on with this.
    names = [name for name in fs.listdir(root) if not stays(name) and name != "meta"]
    for some in (sorted(names), ["meta"]):
        for name in some:
            fs.rename(join(root, name), join(path, name))
        fs.sync_dir(path)
        fs.sync_dir(root)
    log.warning(
        "directory_set_aside",
        directory=path,
        epoch=note.epoch,
        by=owner.node,
        by_epoch=owner.epoch,
        look=f"topics inspect --diverged {path}",
    )
    return path


def _is_noted(fs: Fs, path: str) -> bool:
    """Return True if an earlier call has said how far the bucket has the log."""
    try:
        read_diverged(fs, path)
    except (FileNotFoundError, BadNote):
        return False
    return True


def stays(name: str) -> bool:
    """Return True if something in the root of a directory is none of the data."""
    return name.startswith(DIVERGED) or name in ("LOCK", "lost+found")
