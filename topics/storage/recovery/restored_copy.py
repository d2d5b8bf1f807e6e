"""Recognises a data directory that is a copy of another one, at its first start, so that its topics continue with
higher seqs than the original can have used.

A copy has the state of a past moment. Readers may have read records that were appended to the original after that
moment, under seqs that the copy does not know. If the copy assigned these seqs again, two records would have the same
seq (`docs/design/restored-directories.md`). So every head moves up by `SKIPPED_SEQS`, more than can have been appended
since, and readers get a `lost` tombstone for the seqs between.

A copy is recognised by the file `RESTORED` in it, which `scripts/copy` writes and an operator may; or, if it was not
stopped cleanly, by a directory with another inode than when its log was opened.
"""

from __future__ import annotations

from typing import Final

from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, join
from topics.storage.recovery.recovered_state import RecoveredShard, RecoveredState
from topics.storage.snapshots.snapshot import ReplayPosition

MARK: Final = "RESTORED"
"""Name of the file in the data directory that says that it is a copy. Content other than these two has no meaning."""

TAKEN_OVER: Final = b"taken over from the owner of a bucket\n"
"""Content of the mark if the directory takes the place of the original. The original has told the bucket how far it may
give out seqs: the heads go there (`docs/design/replication.md` section 6), and the note about the bucket stays."""

LEFT_STANDBY: Final = b"was the directory of a standby\n"
"""Content of the mark if the directory was that of a standby, and goes on without its bucket: a copy like others."""

SKIPPED_SEQS: Final = 1 << 42
"""Seqs that every head of a copy skips. At 100,000 records a second a topic takes more than a year for so many; 2,000
restores stay below 2^53, up to which JSON numbers are exact everywhere."""


def is_restored(fs: Fs, root: str, recovered: RecoveredState, identity: str) -> bool:
    """Return True if this is the first start of a copy. `identity` is that of the directory now. Blocking."""
    if fs.exists(join(root, MARK)):
        return True
    return any(
        shard.identity is not None
        and not _was_stopped(shard, recovered.starts.get(shard.shard))
        and inode_of(shard.identity) != inode_of(identity)
        for shard in recovered.shards
    )


def is_taken_over(fs: Fs, root: str) -> bool:
    """Return True if this is the first start of a directory that takes the place of the owner's. Blocking."""
    return _content(fs, root) == TAKEN_OVER


def lacks_marks(fs: Fs, datadir: DataDir) -> bool:
    """Return True if a directory is a standby's, or was one and was not started since. Its log has no marks of the work
    on files that was done there, so all manifests have to be read. Blocking."""
    return fs.exists(datadir.standby_path) or _content(fs, datadir.root) in (TAKEN_OVER, LEFT_STANDBY)


def _content(fs: Fs, root: str) -> bytes | None:
    path = join(root, MARK)
    return fs.read(path) if fs.exists(path) else None


def _was_stopped(shard: RecoveredShard, start: ReplayPosition | None) -> bool:
    """Return True if the log may have ended with a clean stop: it ends with the mark of a clean stop, or the snapshot
    covers all of it."""
    return shard.clean or (start is not None and shard.frame_count == start.frames)


def forget(fs: Fs, datadir: DataDir, *, keeps_note: bool = False) -> None:
    """Remove the mark, and before it, unless it `keeps_note`, what the original knew of its bucket, which is not the
    copy's. Must be called when the heads have been moved durably. If a crash comes before, the next start moves the
    heads once more, which does no harm. Blocking."""
    if not keeps_note and fs.exists(datadir.bucket_path):
        fs.unlink(datadir.bucket_path)
        fs.sync_dir(datadir.meta_dir)
    if fs.exists(join(datadir.root, MARK)):
        fs.unlink(join(datadir.root, MARK))
        fs.sync_dir(datadir.root)


def inode_of(identity: str) -> str:
    """Return the inode of an identity, `device:inode` and what may follow it (`witness`); device numbers may change at
    a boot."""
    return identity.partition(" ")[0].rpartition(":")[2]
