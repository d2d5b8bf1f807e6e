"""`UnackedBatches`: the batches that a shard writer has taken from its queue and that were not told of a sync.

At any moment every batch that is not acked is here, in the queue, or waits for a round (`round_waits`), so that a
failure can tell all of them.
"""

from __future__ import annotations

from typing import cast

from topics.storage.wal.batches import WalBatch
from topics.storage.wal.round_waits import ArchivedBatch, RoundWaits
from topics.storage.wal.wal_files import LogPosition, WalFile


class UnackedBatches:
    """Those of one shard. Used on the loop only."""

    def __init__(self, shard: int, round_waits: RoundWaits) -> None:
        self._shard = shard
        self._round_waits = round_waits
        self._group: list[WalBatch] = []
        """Being written."""
        self._is_told = False
        """True if the group was told that it is written."""
        self._unsynced: list[WalBatch] = []

    def __len__(self) -> int:
        return len(self._group) + len(self._unsynced)

    def begin(self, group: list[WalBatch]) -> None:
        """This group is going to be written."""
        self._group, self._is_told = group, False

    def tell_written(self, group: list[WalBatch], file: WalFile, offset: int) -> None:
        """Tell each batch of the group its place, once; nobody if it is not the present group any more."""
        if self._is_told or self._group is not group:
            return
        self._is_told = bool(group)
        for batch in group:
            size = len(batch.data)
            batch.on_written(file, offset)
            offset += size

    def end_group(self) -> None:
        """The group is written."""
        self._unsynced.extend(self._group)
        self._group = []

    def tell_synced(self, before: tuple[LogPosition, int]) -> None:
        """A sync has covered everything written. `before` is where the one before it has ended, and the number of
        frames up to there."""
        done, self._unsynced = self._unsynced, []
        for batch in done:
            if batch.wants_archive:
                self._round_waits.add(self._shard, cast("ArchivedBatch", batch), before)
            else:
                batch.on_synced()

    def take(self) -> list[WalBatch]:
        """Return all of them, which are the caller's from now on."""
        waiting = [*self._group, *self._unsynced]
        self._group, self._unsynced = [], []
        return waiting
