"""`meta/bucket`: what a data directory knows of its bucket (`docs/design/bucket.md` sections 3 and 5).

The file is one CBOR map `{"note": bytes, "xxh3": u64}`; the bytes are a CBOR map, the checksum is over them. It may be
behind the bucket by some rounds: the archive reads those at a start. Files of the log stay as far as the note needs
them.
"""

from __future__ import annotations

import secrets
from functools import partial

import cbor2
import msgspec
import trio
import xxhash

from topics.bucket.ownership.owner_object import BucketRefused
from topics.bucket.place import Place
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, write_atomic
from topics.storage.store import Store
from topics.storage.wal.wal_files import LogPosition, WalFile


class BadNote(ValueError):
    """The note is damaged."""


class BucketNote(msgspec.Struct, kw_only=True):
    """The content of `meta/bucket`."""

    bucket: str
    """The id of the bucket; empty if none has been taken yet."""
    dir: str
    """The id of this directory, which `owner` has."""
    epoch: int = 0
    round: int = 0
    """The last round that is known to be in the bucket."""
    hash: bytes = b""
    """Of that round."""
    wall_ms: int = 0
    """Its wall time."""
    window_ms: int = 0
    """Of a standby: what the owner's clock of windows read then; 0 if that is not known."""
    positions: list[tuple[int, int]] | None = None
    """How far the rounds have the log, by shard; None if a history is to begin."""
    history: int = 0
    """The first round of the history."""
    identity: str = ""
    """Of the directory when this was written (`Store.identity`); empty if it was not written by a daemon."""
    files: list[tuple[int, int, int]] = []
    """Shard and ordinal of files of the log, and the round that has their first byte."""
    complete: list[int] = []
    """Of a standby: the shards whose last file is complete (FileEnd)."""


def read_note(fs: Fs, datadir: DataDir, path: str | None = None) -> BucketNote | None:
    """Return the note, None if there is none. `path` is that of another file of this form: `meta/standby`. Raises
    BadNote, OSError. Blocking."""
    try:
        blob = fs.read(path or datadir.bucket_path)
    except FileNotFoundError:
        return None
    try:
        outer = cbor2.loads(blob)
        body = outer["note"]
        if outer["xxh3"] != xxhash.xxh3_64_intdigest(body):
            raise BadNote("its checksum does not match")
        return msgspec.convert(cbor2.loads(body), BucketNote)
    except BadNote:
        raise
    except Exception as error:  # malformed CBOR may raise anything
        raise BadNote(f"it does not decode: {error}") from error


def write_note(fs: Fs, datadir: DataDir, note: BucketNote, path: str | None = None) -> None:
    """Replace the note, durably. Raises OSError. Blocking."""
    body = cbor2.dumps(msgspec.to_builtins(note, builtin_types=(bytes,)), canonical=True)
    blob = cbor2.dumps({"note": body, "xxh3": xxhash.xxh3_64_intdigest(body)}, canonical=True)
    write_atomic(fs, path or datadir.bucket_path, blob)


class NotedPlace:
    """The note of one data directory. Made by the archive, which calls `read` before anything else."""

    def __init__(self, store: Store, fs: Fs, offload: Offload, dir_id: str | None = None) -> None:
        """`dir_id` is the id of a directory that has no note yet; a new one by default."""
        self.note = BucketNote(bucket="", dir="")
        """The note as it is in memory: as of the last round."""
        self.round = 0
        """The last round that the note on the disk knows."""
        self.written_at = 0.0
        """When it was written last, by the clock of the loop."""
        self.keep_from: list[LogPosition] | None = None
        """Files of the log from here on stay; None if none has to."""
        self._dir_id = dir_id or secrets.token_hex(16)
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
        self.note = note or BucketNote(bucket="", dir=self._dir_id)
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
        self.note.identity = self._store.identity
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
