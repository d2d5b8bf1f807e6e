"""How much log is kept because it is not in the bucket yet, and how much that may be."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from topics.config import GIB, MIB, Settings
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.store import Store
from topics.storage.wal.wal_files import LogPosition

MOST: Final = 16 * GIB
SHARE: Final = 3
"""The bound, if nothing else is set: so many bytes, or that part (a third) of the free space if less."""

SMALL: Final = 64 * MIB
"""Less than this is no backlog."""


class Backlog:
    """The log that the bucket lacks. Made by the archive."""

    def __init__(self, settings: Settings, store: Store, fs: Fs, offload: Offload) -> None:
        self._most = settings.bucket_backlog_bytes
        self.limit = self._most
        """Beyond so many bytes no more is kept; 0 while that is not known, as long as there is no backlog."""
        self._file_bytes = settings.wal_file_bytes
        self._store = store
        self._fs = fs
        self._offload = offload

    def bytes_from(self, places: Sequence[LogPosition]) -> int:
        """Return the bytes of the log behind these places, about. Never waits."""
        total = 0
        for writer in self._store.writers:
            place, active = places[writer.shard], writer.file.ordinal
            for file in self._store.files.of_shard(writer.shard):
                if file.ordinal >= place.ordinal:
                    # Files that recovery has found have no end here.
                    end = file.end or self._file_bytes
                    if file.ordinal == active:
                        end = writer.synced_position()[0].offset
                    total += max(end - (place.offset if file.ordinal == place.ordinal else 0), 0)
        return total

    async def exceeded(self, places: Sequence[LogPosition], *, is_working: bool) -> str:
        """Return why no more log may be kept from these places on, empty if it may. `is_working` is False while the
        bucket is away: then a disk that is nearly full is a reason, too. Raises OSError."""
        kept = self.bytes_from(places)
        if self._most and kept > self._most:
            return f"the bucket lacks {kept} bytes of the log"
        if kept < SMALL:
            self.limit = self._most
            return ""
        if self._store.refuses_appends and not is_working:
            return f"the disk is nearly full, and {kept} bytes of the log are kept for the bucket"
        if self._most:
            return ""
        free = await self._offload.run(
            Pool.FILES, partial(self._fs.free_bytes, self._store.datadir.root), holds_disk=False
        )
        self.limit = min(MOST, (free + kept) // SHARE)
        return f"the bucket lacks {kept} bytes of the log" if kept > self.limit else ""
