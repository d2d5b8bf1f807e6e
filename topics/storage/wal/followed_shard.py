"""`FollowedShard`: a shard whose log comes from another daemon. It stands where a `ShardWriter` does, for callers that
ask how far the log is, and takes nothing to be written.

Marks of checkpoints and of work on files are for a recovery that reads manifests only where the log says so. The
recovery of a standby reads all of them, so such frames count as written at once, and are not. Everything else is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from topics.errors import ApiError
from topics.storage.wal.batches import LogCut, LogMark, MaintenanceBatch, WalBatch
from topics.storage.wal.frames import NOTHING
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.wal_files import WalFile


class FollowedShard(ShardWriter):
    """Made by the store of a standby; `follow` says where the log begins, and then how far it has got. Never run."""

    refusal: Callable[[], ApiError]
    """Makes the error with which writes are refused."""
    damage = ""
    """The first damage that was found in files of its topics; empty if there was none."""

    def note_damage(self, what: str) -> None:
        """Note what is damaged. The bucket has it: the standby makes its directory anew."""
        self.damage = self.damage or what

    def follow(
        self, file: WalFile, end: int, frame_count: int, last_seqs: Mapping[int, int], file_end: int | None = None
    ) -> None:
        """The log is here, and applied, up to `end` of `file`; `frame_count` frames are before that. `file_end` is the
        offset of FileEnd if the file is complete: then a replay begins there, because the next file is not here yet."""
        self.figures.bytes_written += max(end - self._data_end if file is self._file else end, 0)
        rotates = self._file is not None and file is not self._file
        self._file = file
        file.end = self._data_end = self._synced_end = self._vouched = end
        self._frame_count = self._synced_frames = frame_count
        if file_end is not None:
            self._synced_end, self._synced_frames = file_end, frame_count - 1
        self._last_seqs = dict(last_seqs)
        if rotates:
            rotated, self.rotated = self.rotated, type(self.rotated)()
            rotated.set()

    def submit(self, batch: WalBatch, *, patient: bool = False) -> None:
        """Take what would only mark work on files; refuse the rest."""
        if not isinstance(batch, MaintenanceBatch) or isinstance(batch, LogCut):
            raise self.refusal()
        position, _ = self.synced_position()
        if isinstance(batch, LogMark):
            batch.reach(position)
            return
        batch.data = NOTHING
        batch.on_written(self.file, position.offset)
        batch.on_synced()

    async def stop(self) -> None:
        """There is nothing to be stopped."""
