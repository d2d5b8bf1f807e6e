"""The witness: proves to the next start that the page cache has kept everything that this daemon has written
(`docs/spec/crash.md` 3).

A record that is acked by write(2) alone is safe while the machine stays up. The same boot alone is no proof that the
next start finds it. The file system must not have been unmounted, because its page cache goes with that. And no write
may have failed, because the kernel calls the bytes clean then and may forget them. All of it has to be proved; no proof
means a hole. Every daemon writes an *identity* into its log (ShardOpen, snapshot) that names

- the data directory, by device and inode: another one is a copy;
- the mount (`Fs.mount`), if the kernel can tell;
- a token of 64 random bits, which is also in `meta/witness`.

The next start trusts the log only if it comes to the same identity, in the same boot. It makes a new token if the
kernel knows of a write that failed there (`Fs.anchor`).

`meta/witness` is one sector, written when there is room. A shard that fails is noted by writing the sector again in
place, which needs no room on a full disk; if that fails too, the file is removed, and nothing is proved.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

import msgspec
import xxhash

from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import File, Fs, write_all
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SECTOR: Final = 512
"""Bytes of the file: a disk writes so many whole, or leaves them as they were."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    failed: list[int]


class Witness:
    """The witness of one data directory. Made by the store: `prepare` before the log says the identity, `begin` after
    it. Blocking; any thread may note a failure."""

    def __init__(self, fs: Fs, datadir: DataDir) -> None:
        """Reads the file that the last daemon has left. Raises OSError."""
        self._fs = fs
        self._directory = datadir.meta_dir
        self._path = datadir.witness_path
        self._mutex = threading.Lock()
        self._file: File | None = None
        record = self._read()
        self._fresh = record is None or fs.anchor(datadir.root)
        if record is None or self._fresh:
            record = _Record(f"{fs.salt():016x}", [])
        self._token = record.token
        self.failed: set[int] = set(record.failed)
        """Shards that have failed: until `begin` those of the last daemon, from then on those of this one."""
        mount = fs.mount(datadir.root) or f"unknown:{fs.salt():016x}"
        self._place = f"{fs.identity(datadir.root)} {mount}"

    @property
    def identity(self) -> str:
        """The identity of directory, mount and token: before `prepare` as the last daemon left it, from then on this
        daemon's."""
        return f"{self._place} {self._token}"

    def prepare(self) -> None:
        """Write the file, before the log says the identity. Without room for it nothing will be proved, which is
        logged."""
        try:
            self._file = self._fs.open(self._path, create=True)
            if self._fresh:
                self._write()
                self._fs.sync_dir(self._directory)
        except OSError as error:
            self._token = f"{self._fs.salt():016x}"  # one that is in no log
            log.warning(
                "witness_not_written",
                file=self._path,
                error=str(error),
                consequence="after a kill of the process the next start announces reserved seqs as lost",
            )

    def begin(self) -> None:
        """Forget the failures of the last daemon, which are in the log now. Raises OSError."""
        if self.failed:
            self.failed.clear()
            if self._file is not None:
                self._write()

    def note(self, shard: int) -> None:
        """Note that a shard has failed. Raises OSError if neither that can be written nor the proof be removed."""
        with self._mutex:
            self.failed.add(shard)
            try:
                self._write()
            except OSError as error:
                log.warning("witness_removed", file=self._path, error=str(error))
                self._fs.unlink(self._path)
                self._fs.sync_dir(self._directory)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _read(self) -> _Record | None:
        try:
            raw = self._fs.read(self._path)
        except FileNotFoundError:
            return None
        return decode_witness(raw)

    def _write(self) -> None:
        if self._file is None:
            return
        write_all(self._file, encode_witness(self._token, self.failed), 0)
        self._file.fdatasync()


def encode_witness(token: str, failed: Collection[int]) -> bytes:
    """Return the sector: a checksum, the token, and the shards that have failed."""
    body = msgspec.json.encode(_Record(token, sorted(failed)))
    line = f"{xxhash.xxh3_64_intdigest(body):016x} ".encode() + body
    assert len(line) < SECTOR, "64 shards fit"
    return line.ljust(SECTOR - 1) + b"\n"


def decode_witness(raw: bytes) -> _Record | None:
    """Return the content of the sector; None if it is malformed, which proves nothing."""
    checksum, _, body = raw.strip().partition(b" ")
    if checksum != f"{xxhash.xxh3_64_intdigest(body):016x}".encode():
        return None
    try:
        return msgspec.json.decode(body, type=_Record)
    except msgspec.DecodeError:
        return None
