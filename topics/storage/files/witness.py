"""The witness: what proves to the next life that the page cache has kept all that this one has written
(`docs/spec/crash.md` 3).

A record that is acked by write(2) alone is safe while the machine stays up. That the next life finds it there takes
more than the same boot: the file system must not have been unmounted, as its page cache goes with that, and no write
may have failed, as the kernel calls the bytes clean then and forgets them when it likes. All of it has to be proved; no
proof means a hole. Every life writes an *identity* into its log (ShardOpen, snapshot) that names

- the data directory, by device and inode: another one is a copy;
- the mount (`Fs.mount`), where the kernel tells them apart;
- a token of 64 random bits, which also stands in `meta/witness`.

The next life takes the log's word only if it comes to the same identity, and the boot is the same. It does not use the
token again, but makes another one, if the kernel knows of a write that failed there (`Fs.anchor`).

`meta/witness` is one sector, written when there is room. A shard that fails is noted in it by writing the sector again
in its place, which takes no room on a full disk; if that fails too, the file is removed, and nothing is proved.
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
"""Bytes of the file. A disk writes so many whole, or leaves them as they were."""


class _Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    token: str
    failed: list[int]


class Witness:
    """See the module. Blocking; any thread may note a failure."""

    def __init__(self, fs: Fs, datadir: DataDir) -> None:
        """Reads what the last life has left. Raises OSError."""
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
        """Shards that have failed, in the last life until `begin`, in this one from then on."""
        mount = fs.mount(datadir.root) or f"unknown:{fs.salt():016x}"
        self._place = f"{fs.identity(datadir.root)} {mount}"

    @property
    def identity(self) -> str:
        """Of the directory, its mount and its proof: before `prepare` as the last life has left it, from then on as the
        log of this life says it."""
        return f"{self._place} {self._token}"

    def prepare(self) -> None:
        """Before the log says the identity. Without room for the file nothing will be proved, which is logged."""
        try:
            self._file = self._fs.open(self._path, create=True)
            if self._fresh:
                self._write()
                self._fs.sync_dir(self._directory)
        except OSError as error:
            self._token = f"{self._fs.salt():016x}"  # of no log
            log.warning(
                "witness_not_written",
                file=self._path,
                error=str(error),
                consequence="after a kill of the process the next start announces reserved seqs as lost",
            )

    def begin(self) -> None:
        """The failures of the last life are in the log: the next ones are of this life. Raises OSError."""
        if self.failed:
            self.failed.clear()
            if self._file is not None:
                self._write()

    def note(self, shard: int) -> None:
        """A shard has failed. Raises OSError if that can neither be written nor the proof be removed."""
        with self._mutex:
            self.failed.add(shard)
            try:
                self._write()
            except OSError as error:
                log.warning("witness_removed", file=self._path, error=str(error))
                self._fs.unlink(self._path)
                self._fs.sync_dir(self._directory)

    def close(self) -> None:
        """Let go of the file."""
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
    """The sector: a checksum, and who has failed."""
    body = msgspec.json.encode(_Record(token, sorted(failed)))
    line = f"{xxhash.xxh3_64_intdigest(body):016x} ".encode() + body
    assert len(line) < SECTOR, "64 shards fit"
    return line.ljust(SECTOR - 1) + b"\n"


def decode_witness(raw: bytes) -> _Record | None:
    """The inverse; None for anything else: it proves nothing."""
    checksum, _, body = raw.strip().partition(b" ")
    if checksum != f"{xxhash.xxh3_64_intdigest(body):016x}".encode():
        return None
    try:
        return msgspec.json.decode(body, type=_Record)
    except msgspec.DecodeError:
        return None
