"""`NotedPlace`: what `meta/bucket` says of a running archive, and which files of the log stay because of it.

The note is behind the bucket by some rounds. Files of the log stay from the place that the note on the *disk* has, so
that a start can compare every later round with the log.
"""

from __future__ import annotations

import secrets
from functools import partial

import trio

from topics.bucket.local_note import BadNote, BucketNote, read_note, write_note
from topics.bucket.ownership.owner_object import BucketRefused
from topics.bucket.place import Place
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.store import Store
from topics.storage.wal.wal_files import LogPosition, WalFile


class NotedPlace:
    """The note of one data directory. Made by the archive, which calls `read` before anything else."""

    def __init__(self, store: Store, fs: Fs, offload: Offload) -> None:
        self.note = BucketNote(bucket="", dir="")
        """The note as it is in memory: as of the last round."""
        self.round = 0
        """The last round that the note on the disk knows."""
        self.written_at = 0.0
        """When it was written last, by the clock of the loop."""
        self.keep_from: list[LogPosition] | None = None
        """Files of the log from here on stay; None if none has to."""
        self._store = store
        self._fs = fs
        self._offload = offload

    async def read(self) -> None:
        """Read the note, or make the first one. Raises BucketRefused, OSError."""
        datadir = self._store.datadir
        try:
            note = await self._offload.run(Pool.FILES, partial(read_note, self._fs, datadir))
            is_stale = await self._offload.run(Pool.FILES, partial(self._fs.exists, datadir.salvaged_path))
        except BadNote as error:
            raise BucketRefused(
                f"{datadir.bucket_path} is damaged: {error}. Remove it, and start once with --take"
            ) from error
        self.note = note or BucketNote(bucket="", dir=secrets.token_hex(16))
        self.round = self.note.round
        if self.note.positions is not None:
            if self._store.salvaged or is_stale or len(self.note.positions) != self._store.shards:
                self.note.positions = None
            else:
                self.keep_from = [LogPosition(*position) for position in self.note.positions]
        if note is None or self.note.positions is None:
            await self.write(None)
        if is_stale:
            await self._offload.run(Pool.FILES, partial(self._fs.unlink, datadir.salvaged_path))

    def follow(self, place: Place) -> None:
        """Note in memory where the archive is."""
        note = self.note
        note.bucket, note.epoch, note.round, note.hash = place.bucket, place.epoch, place.number, place.hash
        note.wall_ms, note.history = place.wall_ms, place.history
        note.positions = None if place.positions is None else [(at.ordinal, at.offset) for at in place.positions]

    async def write(self, place: Place | None) -> None:
        """Write the note, as of `place` if one is given. Files of the log that are before it may go then. Raises
        OSError."""
        if place is not None:
            self.follow(place)
            for shard in range(self._store.shards):
                there = {file.ordinal for file in self._store.files.of_shard(shard)}
                for key in [key for key in place.files if key[0] == shard and key[1] not in there]:
                    del place.files[key]
            self.note.files = [(shard, ordinal, number) for (shard, ordinal), number in sorted(place.files.items())]
        positions, number = self.note.positions, self.note.round
        await self._offload.run(Pool.FILES, partial(write_note, self._fs, self._store.datadir, self.note))
        self.written_at, self.round = trio.current_time(), number
        if positions is not None and self.note.positions is not None:
            self.keep_from = [LogPosition(*position) for position in positions]

    def forget(self) -> None:
        """The place is given up: the files may go, and the next opening begins a history."""
        self.keep_from = None
        self.note.positions = None

    def may_drop(self, file: WalFile) -> bool:
        """Return True if a file of the log is in the bucket, or is not kept for it."""
        keep = self.keep_from
        return keep is None or file.ordinal < keep[file.shard].ordinal
