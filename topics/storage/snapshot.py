"""Snapshots: what they hold, and reading and writing their files (`storage.md` section 1, `crash.md` 8 and 9).

A file is one CBOR map `{"snapshot": bytes, "xxh3": u64}`; the bytes are a CBOR map themselves (`Snapshot`, listed in
`docs/storage.md`) and the checksum is over them. Topic parts are byte strings within, each encoded on its own, so that
a part that has not changed is not encoded again.

Taking a snapshot of the running daemon is `compactor`'s business, making topics of one is `recovery`'s.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import cbor2
import msgspec
import xxhash

from topics.storage.datadir import DataDir, parse_snapshot_name
from topics.storage.fs import Fs, write_atomic

KEPT: Final = 2
"""Snapshots kept: the newest may turn out to be damaged."""


class ShardPosition(NamedTuple):
    """Where the replay of a shard begins: file ordinal, offset in it, and the ordinal of the first frame there."""

    ordinal: int
    offset: int
    frames: int


class Snapshot(msgspec.Struct, kw_only=True):
    """One consistent picture of everything but record bytes."""

    number: int
    shards: int
    """Number of WAL shards."""
    next_topic_id: int
    clock: int
    """The retention clock, ms since the epoch."""
    positions: dict[int, list[int]]
    """Shard to `ShardPosition`. What lies before is synced, and in here."""
    files: list[list[int]]
    """WAL files still needed: `[file id, shard, ordinal]`."""
    topics: list[bytes]
    """`TopicPart`s."""
    boot_id: str = ""
    """Of the life that took it: the ShardOpen frames that say so may lie before the positions, where nobody looks."""
    identity: str = ""
    """The data directory's, likewise."""


class TopicPart(msgspec.Struct, kw_only=True):
    """One topic as of its own position in its shard's log; frames of the topic before it are not replayed."""

    id: int
    name: str
    config: dict[str, Any]
    end: list[int]
    """`[file ordinal, offset]` behind the last frame that is in here."""
    ceiling: int
    last_ts: int
    last_write: int | None = None
    last_read: int | None = None
    log: dict[str, Any]
    """The index, floors and holes (`TopicLog.dump`)."""
    placed: list[list[Any]] = []
    """Records that got their place after `log` was captured: `[first seq, file id, offset, frame lengths u32]`."""
    keys: list[list[Any]] = []
    """Idempotency keys."""


class SnapshotDamaged(Exception):
    """A snapshot file that does not verify."""


def encode_part(part: TopicPart) -> bytes:
    """The bytes that stand in `Snapshot.topics`."""
    return cbor2.dumps(msgspec.structs.asdict(part), canonical=True)


def decode_part(blob: bytes) -> TopicPart:
    """The inverse. Raises SnapshotDamaged."""
    try:
        return msgspec.convert(cbor2.loads(blob), TopicPart)
    except (msgspec.ValidationError, cbor2.CBORDecodeError, ValueError, TypeError) as error:
        raise SnapshotDamaged(f"a topic part does not decode: {error}") from error


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The bytes of a snapshot file."""
    body = cbor2.dumps(msgspec.structs.asdict(snapshot), canonical=True)
    return cbor2.dumps({"snapshot": body, "xxh3": xxhash.xxh3_64_intdigest(body)}, canonical=True)


def decode_snapshot(blob: bytes) -> Snapshot:
    """The inverse. Raises SnapshotDamaged, whatever the bytes are."""
    try:
        outer = cbor2.loads(blob)
        if not isinstance(outer, dict) or not isinstance(outer.get("snapshot"), bytes):
            raise SnapshotDamaged("not a snapshot")
        body = outer["snapshot"]
        if xxhash.xxh3_64_intdigest(body) != outer.get("xxh3"):
            raise SnapshotDamaged("the checksum does not match")
        return msgspec.convert(cbor2.loads(body), Snapshot)
    except SnapshotDamaged:
        raise
    except Exception as error:  # any malformed CBOR ends here: what it raises depends on the bytes
        raise SnapshotDamaged(f"it does not decode: {error}") from error


def write_snapshot(fs: Fs, datadir: DataDir, snapshot: Snapshot) -> int:
    """Blocking: write atomically, keep the newest `KEPT`; the size in bytes."""
    blob = encode_snapshot(snapshot)
    write_atomic(fs, datadir.snapshot_path(snapshot.number), blob)
    numbers = snapshot_numbers(fs, datadir)
    for number in numbers[:-KEPT]:
        fs.unlink(datadir.snapshot_path(number))
    return len(blob)


def snapshot_numbers(fs: Fs, datadir: DataDir) -> list[int]:
    """The numbers of the snapshots on disk, ascending."""
    found = (parse_snapshot_name(name) for name in fs.listdir(datadir.meta_dir))
    return sorted(number for number in found if number is not None)


def load_newest(fs: Fs, datadir: DataDir) -> tuple[Snapshot | None, list[str]]:
    """Blocking: the newest snapshot that verifies, and a sentence about each newer one that does not."""
    damaged: list[str] = []
    for number in reversed(snapshot_numbers(fs, datadir)):
        path = datadir.snapshot_path(number)
        try:
            return decode_snapshot(fs.read(path)), damaged
        except SnapshotDamaged as error:
            damaged.append(f"{path}: {error}")
    return None, damaged
