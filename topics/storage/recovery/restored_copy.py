"""A data directory that is a copy: recognised at its first start, so that its topics number on above the original.

A copy shows a moment of the past. What was appended behind that moment was read by others, under seqs that the copy
knows nothing of; given out again, they would be two records under one seq (`docs/design/restored-directories.md`). So
every head moves up by `SKIPPED_SEQS`, more than anybody can have appended since, and readers are told of the seqs
between as `lost`.

A copy is recognised by the file `RESTORED` in it, which `scripts/copy` writes and an operator may; or, where it was not
stopped cleanly, by a directory that has another inode than when its log was opened.
"""

from __future__ import annotations

from typing import Final

from topics.storage.files.fs import Fs, join
from topics.storage.recovery.recovered_state import Recovered, RecoveredShard
from topics.storage.snapshots.snapshot import ShardPosition

MARK: Final = "RESTORED"
"""Name of the file in the data directory that says that it is a copy. Its content means nothing."""

SKIPPED_SEQS: Final = 1 << 42
"""At 100,000 records a second a topic takes more than a year for so many; 2,000 restores stay below 2^53, up to which
a JSON number is exact everywhere."""


def is_restored(fs: Fs, root: str, recovered: Recovered, identity: str) -> bool:
    """Blocking: return True if this is the first start of a copy. `identity`: of the directory as it is now."""
    if fs.exists(join(root, MARK)):
        return True
    return any(
        shard.identity is not None
        and not _was_stopped(shard, recovered.starts.get(shard.shard))
        and _inode(shard.identity) != _inode(identity)
        for shard in recovered.shards
    )


def _was_stopped(shard: RecoveredShard, start: ShardPosition | None) -> bool:
    """Return True if a clean stop may have ended the log: its mark does, or the snapshot covers all of it."""
    return shard.clean or (start is not None and shard.frame_count == start.frames)


def forget(fs: Fs, root: str) -> None:
    """Blocking: the heads have been moved, durably. A crash before this moves them once more, which harms nobody."""
    if fs.exists(join(root, MARK)):
        fs.unlink(join(root, MARK))
        fs.sync_dir(root)


def _inode(identity: str) -> str:
    """Of `device:inode` and what may follow it (`witness`); the number of a device may be another one after each
    boot."""
    return identity.partition(" ")[0].rpartition(":")[2]
