"""The layout of the data directory, its FORMAT and its LOCK (`docs/spec/storage.md` section 1).

Responsible for the names of everything below `TOPICS_DATA_DIR`, for creating the directories durably, for refusing a
directory that this version cannot read, and for keeping a second daemon out. `frames`, `snapshot` and the segment
modules know the contents of the files.

`raise_format` raises a directory of an older format to ours, after recovery has understood all of it and before the
first byte of the newer form is written. So an older version never meets a newer file, and as long as FORMAT is old, all
files are. The older files stay as they are.

The order at a start is `lock_data_dir`, then `open_data_dir`: two daemons that start in an empty directory then compete
for the lock, not for the writing of FORMAT. FORMAT is written after the directories above it are durable and before the
first byte of anything else, so that a directory with content and without FORMAT is never an unfinished one of ours.
"""

from __future__ import annotations

import errno
import posixpath
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from topics.storage.files.fs import Fs, LockHandle, LockHeld, join, parent, write_atomic

FORMAT: Final = {"wal": 3, "segment": 3, "snapshot": 3}
"""The formats that this version writes. Any change of bytes bumps one of them (`docs/spec/storage.md` section 6)."""

READABLE: Final = (1, 2, 3)
"""The formats that this version reads, of each part. A directory of an older one contains files of both once it was
opened."""

SHOWN_BYTES: Final = 80
"""Bytes of a damaged file that a message shows."""

_WAL_NAME = re.compile(r"wal-([0-9]{20})\.log")
_SNAPSHOT_NAME = re.compile(r"snapshot\.(0|[1-9][0-9]*)\.cbor")
_SHARD_NAME = re.compile(r"shard-([0-9]{2,})")
_TOPIC_NAME = re.compile(r"[0-9a-f]{16}")
_MANIFEST_NAME = re.compile(r"topic(?:\.([1-9][0-9]{0,8}))?\.cbor")
_SEGMENT_NAME = re.compile(r"seg-([0-9]{20})\.(data|idx|tags|del|idx\.cold|tags\.cold|object)")
_SEGMENT_KINDS: Final = ("data", "idx", "tags", "del", "idx.cold", "tags.cold", "object")


class DataDirError(Exception):
    """The data directory cannot be used. The message is one sentence for the operator; no file in it was changed."""


DIVERGED: Final = "diverged-"
"""How the directory begins in which a former owner's is set aside, in the data directory; the epoch follows
(`docs/design/standby.md` section 6)."""


class FoundShard(NamedTuple):
    """A shard of some layout, as found on disk."""

    shard: int
    path: str


@dataclass(frozen=True, slots=True)
class DataDir:
    """The paths below a data directory. Pure: no method touches the file system."""

    root: str

    @property
    def format_path(self) -> str:
        """The formats with which the directory was written."""
        return join(self.root, "FORMAT")

    @property
    def lock_path(self) -> str:
        """The file that the running daemon locks, with its pid."""
        return join(self.root, "LOCK")

    @property
    def clock_path(self) -> str:
        """The saved state of the window clock (`clock_mark`)."""
        return join(self.meta_dir, "clock")

    @property
    def bucket_path(self) -> str:
        """The note about the directory's bucket (`topics.bucket.local_note`)."""
        return join(self.meta_dir, "bucket")

    @property
    def standby_path(self) -> str:
        """Up to which round of the bucket the log of a standby is whole (`topics.bucket.standby`)."""
        return join(self.meta_dir, "standby")

    @property
    def restore_path(self) -> str:
        """From which bucket the directory was restored, while segments of it are still there."""
        return join(self.meta_dir, "restore")

    @property
    def selection_path(self) -> str:
        """Which topics a restored directory is to keep, until the first start has deleted the others."""
        return join(self.meta_dir, "restore-topics")

    @property
    def salvaged_path(self) -> str:
        """Says that the log was salvaged since `bucket_path` was written: it is not what the bucket has."""
        return join(self.meta_dir, "bucket-salvaged")

    @property
    def meta_dir(self) -> str:
        """Snapshots, and notes about failures."""
        return join(self.root, "meta")

    @property
    def witness_path(self) -> str:
        """The proof that the page cache has kept all written bytes (`witness`)."""
        return join(self.meta_dir, "witness")

    def snapshot_path(self, number: int) -> str:
        """Snapshot `number`; a higher one is newer."""
        return join(self.meta_dir, f"snapshot.{number}.cbor")

    @property
    def reserve_path(self) -> str:
        """A copy of the snapshot that was the newest when the log was last cut."""
        return join(self.meta_dir, "reserve.cbor")

    @property
    def evidence_key_path(self) -> str:
        """The key that signs checkpoints of Merkle trees, unless a setting names another file."""
        return join(self.meta_dir, "evidence-key.pem")

    @property
    def wal_dir(self) -> str:
        """The WAL of all shards."""
        return join(self.root, "wal")

    def shard_dir(self, shard: int, shards: int) -> str:
        """Return the directory of the WAL files of shard `shard` of `shards`: `wal/` itself if it is the only one."""
        assert 0 <= shard < shards, (shard, shards)
        return self.wal_dir if shards == 1 else join(self.wal_dir, f"shard-{shard:02d}")

    def relative(self, path: str) -> str:
        """Return a path below the root relative to the root."""
        return posixpath.relpath(path, self.root)

    @property
    def topics_dir(self) -> str:
        """One directory per topic."""
        return join(self.root, "topics")

    def topic_dir(self, topic_id: int) -> str:
        """Manifest and segments of a topic."""
        return join(self.topics_dir, f"{topic_id:016x}")

    def manifest_path(self, topic_id: int, generation: int = 0) -> str:
        """Return the path of a topic's manifest. Of several, the one of the highest generation counts."""
        return join(self.topic_dir(topic_id), manifest_name(generation))

    def segment_path(self, topic_id: int, first_seq: int, kind: str) -> str:
        """A file of the segment that starts at `first_seq`; `kind` as in `segment_name`."""
        return join(self.topic_dir(topic_id), segment_name(first_seq, kind))


def wal_name(ordinal: int) -> str:
    """The name of the WAL file whose first frame is number `ordinal` of its shard."""
    return f"wal-{ordinal:020d}.log"


def wal_path(shard_dir: str, ordinal: int) -> str:
    """The WAL file of `ordinal` in the directory of its shard."""
    return join(shard_dir, wal_name(ordinal))


def current_path(shard_dir: str) -> str:
    """The advisory name of a shard's active file; the listing decides."""
    return join(shard_dir, "CURRENT")


def parse_wal_name(name: str) -> int | None:
    """The ordinal in a WAL file's name; None for any other name (temporary, kept aside, foreign)."""
    found = _WAL_NAME.fullmatch(name)
    return int(found[1]) if found else None


def parse_snapshot_name(name: str) -> int | None:
    """The number in a snapshot's name; None for any other name."""
    found = _SNAPSHOT_NAME.fullmatch(name)
    return int(found[1]) if found else None


def parse_topic_name(name: str) -> int | None:
    """The id in the name of a topic's directory; None for any other name (one that is being removed)."""
    return int(name, 16) if _TOPIC_NAME.fullmatch(name) else None


def segment_name(first_seq: int, kind: str) -> str:
    """The name of a file of the segment that starts at `first_seq`.

    `kind` is "data", "idx" or "tags", or "del" for the deletions in a packed `.data`; "idx.cold" or "tags.cold" is the
    hot copy of a cold segment's file, "object" the pointer to one that is in a bucket (`segment_pointer`).
    """
    assert kind in _SEGMENT_KINDS, kind
    return f"seg-{first_seq:020d}.{kind}"


def manifest_name(generation: int) -> str:
    """The name of a manifest: `topic.cbor`, of later generations `topic.<n>.cbor`."""
    return f"topic.{generation}.cbor" if generation else "topic.cbor"


def parse_manifest_name(name: str) -> int | None:
    """The generation in a manifest's name; None for any other name."""
    found = _MANIFEST_NAME.fullmatch(name)
    return int(found[1] or 0) if found else None


def parse_segment_name(name: str) -> int | None:
    """The first seq in the name of a segment's `.data` file; None for any other name."""
    found = parse_segment_file(name)
    return found[0] if found and found[1] == "data" else None


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """First seq and kind in the name of any file of a segment; None for any other name (temporary, foreign)."""
    found = _SEGMENT_NAME.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def lock_data_dir(fs: Fs, datadir: DataDir, pid_text: str) -> LockHandle:
    """Lock the directory against other daemons, until the handle is released or the process ends. Makes the root if it
    is missing.

    `pid_text` tells a later daemon who holds the lock. Raises DataDirError, naming the holder, if the lock is held;
    also if it cannot be taken at all (permissions, not a directory).
    """
    try:
        _anchor(fs, datadir)
        return fs.lock(datadir.lock_path, pid_text)
    except LockHeld as held:
        holder = held.holder.strip() or "another process"
        raise DataDirError(f"the data directory {datadir.root} is in use by {holder} (lock {held.path})") from held
    except OSError as error:
        raise DataDirError(f"the data directory {datadir.root} cannot be locked: {error}") from error


def open_data_dir(fs: Fs, root: str) -> DataDir:
    """Create the missing directories, durably, and check FORMAT or write the first one.

    Raises DataDirError if FORMAT is unreadable, names formats that this version does not read, or is missing beside
    content; and if a directory cannot be made or synced.
    """
    datadir = DataDir(root)
    try:
        _anchor(fs, datadir)
        if fs.exists(datadir.format_path):
            read_format(fs, datadir)
            _make_directories(fs, datadir)
        else:
            _check_empty(fs, datadir)
            _make_directories(fs, datadir)
            _sync_ancestors(fs, root)
            write_atomic(fs, datadir.format_path, _encoded(FORMAT))
    except OSError as error:
        raise DataDirError(f"the data directory {root} cannot be opened: {error}") from error
    return datadir


def raise_format(fs: Fs, datadir: DataDir) -> None:
    """Replace a FORMAT that is older than ours, durably. Before anything of a newer form is written.

    Raises DataDirError like `read_format`, and OSError.
    """
    if read_format(fs, datadir) != FORMAT:
        write_atomic(fs, datadir.format_path, _encoded(FORMAT))


def _anchor(fs: Fs, datadir: DataDir) -> None:
    """Start being told of failed writes, before the first one of this process. Makes the root if it is missing."""
    with suppress(PermissionError):  # we may have no access above the root
        fs.anchor(datadir.root)
    fs.mkdir(datadir.root)
    fs.anchor(datadir.root)
    if fs.exists(datadir.topics_dir):  # it may be a file system of its own
        fs.anchor(datadir.topics_dir)


def discover_shards(fs: Fs, datadir: DataDir) -> list[FoundShard]:
    """Return every shard of every layout on disk, the flat one first, then by number.

    `wal/` itself counts as shard 0 of the flat layout if it has a WAL file; a `shard-NN` directory counts even if it is
    empty, so that a layout that is no longer used can be removed. Both layouts are found after an unfinished change of
    `TOPICS_WAL_SHARDS`.
    """
    names = fs.listdir(datadir.wal_dir)
    flat = any(parse_wal_name(name) is not None for name in names)
    found = [FoundShard(0, datadir.wal_dir)] if flat else []
    numbered = [(int(match[1]), name) for name in names if (match := _SHARD_NAME.fullmatch(name))]
    return found + [FoundShard(shard, join(datadir.wal_dir, name)) for shard, name in sorted(numbered)]


def _encoded(numbers: Mapping[str, int]) -> bytes:
    return msgspec.json.encode(numbers) + b"\n"


def read_format(fs: Fs, datadir: DataDir) -> dict[str, int]:
    """Return the number of each part. Raises FileNotFoundError without FORMAT.

    Raises DataDirError for anything but numbers that this version reads: the file is damaged, or a newer version wrote
    it.
    """
    path = datadir.format_path
    raw = fs.read(path)
    ours = msgspec.json.encode(FORMAT).decode()
    try:
        found = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        found = None
    numbers = found if isinstance(found, dict) else {}
    if not numbers.keys() >= FORMAT.keys() or not all(type(n) is int and n > 0 for n in numbers.values()):
        raise DataDirError(
            f"{path} is damaged: it should hold the line {ours}, or numbers of an older or newer version, and "
            f"{shown_bytes(raw)} was found. Restore it from a copy of the directory; without one, if this version was "
            f"the last to start on the directory, write that line into it"
        )
    if numbers.keys() != FORMAT.keys() or not all(number in READABLE for number in numbers.values()):
        raise DataDirError(
            f"{path} names formats this version does not know: found {shown_bytes(raw)}, supported {ours} and older "
            f"ones: start the version that wrote it; if no newer one ever did, restore the file from a copy of the "
            f"directory"
        )
    return numbers


def shown_bytes(raw: bytes) -> str:
    """Return the content of a small file for a message: one line, however damaged it is."""
    return repr(raw[:SHOWN_BYTES])[1:] + (f" (of {len(raw)} bytes)" if len(raw) > SHOWN_BYTES else "")


def _check_empty(fs: Fs, datadir: DataDir) -> None:
    """Refuse content without FORMAT, because its meaning is unknown: ours is durable before any content is written."""
    for directory in (datadir.wal_dir, datadir.meta_dir, datadir.topics_dir):
        names = fs.listdir(directory)
        if names:
            raise DataDirError(
                f"{datadir.format_path} is missing, but {directory} has content ({names[0]}): the data directory is "
                f"damaged, or is not one of topics; supported {msgspec.json.encode(FORMAT).decode()}"
            )


def _make_directories(fs: Fs, datadir: DataDir) -> None:
    """Make the directories. They are synced even if all existed: a killed start may have made them without the sync."""
    for directory in (datadir.root, datadir.meta_dir, datadir.wal_dir, datadir.topics_dir):
        fs.mkdir(directory)
    fs.sync_dir(datadir.root)


def _sync_ancestors(fs: Fs, root: str) -> None:
    """Make the names of the root and of every directory above it durable: any of them may be new.

    A directory that cannot be opened, or has no sync, cannot be synced by itself; then the whole file system of the
    root is.
    """
    path = posixpath.normpath(root)
    try:
        while posixpath.basename(path) not in ("", ".", ".."):
            path = parent(path)
            fs.sync_dir(path)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL, errno.ENOTSUP):
            raise
        fs.sync_all(root)
