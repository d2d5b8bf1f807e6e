"""Snapshots and manifests: their contents, and reading and writing their files (`docs/spec/storage.md` section 1,
`docs/spec/crash.md` 8 to 10).

A snapshot file is one CBOR map `{"snapshot": bytes, "xxh3": u64}`; the bytes are a CBOR map themselves (`Snapshot`,
listed in `docs/storage.md`) and the checksum is over them. Topic parts are byte strings in it, each encoded on its own,
so that a part that has not changed is not encoded again. A manifest (`topic.cbor`) is the map `{"manifest": bytes,
"xxh3": u64}` around one part.

`compactor` takes snapshots of the running daemon; `recovery` makes topics from them.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, NamedTuple

import cbor2
import msgspec
import xxhash

from topics.storage.files.datadir import DataDir, parse_snapshot_name
from topics.storage.files.fs import Fs, write_atomic

KEPT: Final = 2
"""Snapshots that are kept, because the newest may turn out to be damaged."""

LARGE_BYTES: Final = 4 << 20
"""From so many bytes on, the CBOR library is not given all of them in one call, which would hold the interpreter."""

MANY_TOPICS: Final = 5000
"""The same for the number of parts in a snapshot: so many are encoded in 0.4 ms."""

_BYTES: Final = 0x40
_ARRAY: Final = 0x80


class ReplayPosition(NamedTuple):
    """Where the replay of a shard begins: file ordinal, offset in it, and the ordinal of the first frame there."""

    ordinal: int
    offset: int
    frames: int


class Snapshot(msgspec.Struct, kw_only=True):
    """A consistent picture of everything but record bytes."""

    number: int
    shards: int
    """Number of WAL shards."""
    next_topic_id: int
    clock: int
    """The retention clock (epoch ms)."""
    positions: dict[int, list[int]]
    """Shard to `ReplayPosition`. Everything before it is synced, and in this snapshot."""
    topics: list[bytes]
    """`TopicPart`s."""
    schedules: list[bytes] = []
    """Definitions of schedules (`Schedules.dump`)."""
    firings: list[int] = []
    """The last firings of schedules: id and time (epoch ms), one after the other."""
    new_layout: bool = False
    """True in the first snapshots of another shard count: files of the old layout may still exist."""
    boot_id: str = ""
    """Boot id of the process that took it. The ShardOpen frames with it may be before the positions, unread."""
    identity: str = ""
    """Identity of the data directory at that time, for the same reason."""


class TopicPart(msgspec.Struct, kw_only=True):
    """One topic as of its own position in its shard's log; frames of the topic before it are not replayed."""

    id: int
    name: str
    config: dict[str, Any]
    end: list[int]
    """`[file ordinal, offset]` behind the last frame that is in this part."""
    generation: int = 0
    """Generation of the manifest that it was written for (`manifests`)."""
    ceiling: int = 0
    bucket_ceiling: int = 0
    """The seq above which a daemon that takes over may begin; 0 if none was logged."""
    last_ts: int = 0
    last_write: int | None = None
    last_read: int | None = None
    log: dict[str, Any]
    """Head, floors, holes, and a summary per segment (`TopicLog.dump`)."""
    segments: list[list[Any]] = []
    """Its segments (`Segment.to_wire`). One without a summary has still to be removed."""
    keys: list[Any] = []
    """Idempotency keys."""
    routers: list[list[Any]] = []
    """The routers that lead into it: name, source id, cursor, copies made, config."""
    origins: list[Any] | None = None
    """The origins it has taken, if a router into it is `exactly_once` (`OriginSet.dump`)."""
    queue: list[Any] | None = None
    """The jobs of a queue: the time of the dump, and `Leases.dump`."""
    stage: list[Any] | None = None
    """For a stage: the id of its target, and its name there."""
    commits: list[list[Any]] = []
    """The remembered commits of stages (`CommitKeys.dump`)."""
    fences: dict[str, int] = {}
    """Its fences: the highest token by name."""
    consumers: list[Any] | None = None
    """Its named consumers (`Consumers.dump`)."""
    groups: list[Any] | None = None
    """Its groups (`FrozenGroups.dump`)."""
    transactions: list[list[Any]] = []
    """The remembered transactions (`TransactionKeys.dump`)."""
    evidence: list[Any] | None = None
    """Its Merkle tree (`TopicTree.to_wire`)."""


USUAL_PART: Final[Sequence[tuple[str, Any]]] = (
    ("generation", 0),
    ("ceiling", 0),
    ("bucket_ceiling", 0),
    ("last_ts", 0),
    ("last_write", None),
    ("last_read", None),
    ("segments", []),
    ("keys", []),
    ("routers", []),
    ("origins", None),
    ("queue", None),
    ("stage", None),
    ("commits", []),
    ("fences", {}),
    ("consumers", None),
    ("groups", None),
    ("transactions", []),
    ("evidence", None),
)
USUAL_CONFIG: Final[dict[str, Any]] = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
    "retention": "limits",
}
USUAL_LOG: Final[dict[str, Any]] = {
    "head_seq": 0,
    "earliest_seq": 1,
    "evict_floor": 1,
    "last_ts": 0,
    "spans": [],
    "tags": None,
    "tags_from": None,
    "holes": [],
    "causes": {},
    "deleted": b"",
}
"""Fields that have these values are left out of a part. Bytes on disk depend on these tables: no value in them may ever
change, even if the defaults of a configuration do."""


class SnapshotDamaged(Exception):
    """A snapshot file that does not verify."""


def encode_part(part: TopicPart) -> bytes:
    """Return the bytes of a part in `Snapshot.topics`. Fields with their default are left out."""
    fields: dict[str, Any] = {"id": part.id, "name": part.name, "end": part.end}
    for name, usual in USUAL_PART:
        value = getattr(part, name)
        if value != usual:
            fields[name] = value
    if part.config != USUAL_CONFIG:
        fields["config"] = _unusual(part.config, USUAL_CONFIG)
    if part.log != USUAL_LOG:
        fields["log"] = _unusual(part.log, USUAL_LOG)
    if is_large(part):
        return with_large_field(fields, "keys", fields.pop("keys"))
    return cbor2.dumps(fields, canonical=True)


def is_large(part: TopicPart) -> bool:
    """Return True if encoding a part takes longer than a step of the loop may: it has many pages of keys."""
    return sum(len(page) for page in part.keys if isinstance(page, bytes)) >= LARGE_BYTES


def with_large_field(fields: Mapping[str, Any], name: str, value: bytes | Sequence[bytes]) -> bytes:
    """Return a CBOR map of these fields (at most 22) and of one more, a byte string or an array of such, which comes
    last. Its bytes are copied by a join, which lets other threads run meanwhile; cbor2 does not."""
    head = bytearray(cbor2.dumps(fields, canonical=True))
    assert len(fields) < 23, "the first byte of a small map is 0xa0 and the number of its fields"
    head[0] += 1
    pieces = [bytes(head), cbor2.dumps(name)]
    if isinstance(value, bytes):
        pieces += [_head(_BYTES, len(value)), value]
    else:
        pieces.append(_head(_ARRAY, len(value)))
        for one in value:
            pieces += [_head(_BYTES, len(one)), one]
    return b"".join(pieces)


def _head(kind: int, length: int) -> bytes:
    """Return the bytes in front of a byte string or an array (RFC 8949, section 3)."""
    if length < 24:
        return bytes((kind | length,))
    size = 1 if length < 1 << 8 else 2 if length < 1 << 16 else 4 if length < 1 << 32 else 8
    return bytes((kind | 23 + size.bit_length(),)) + length.to_bytes(size, "big")


def _unusual(fields: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key not in usual or value != usual[key]}


def decode_part(blob: bytes) -> TopicPart:
    """Return the part that `encode_part` was given. Raises SnapshotDamaged."""
    try:
        fields = cbor2.loads(blob)
        config, log = fields.get("config"), fields.get("log")
        fields["config"] = {**USUAL_CONFIG, **config} if config is not None else USUAL_CONFIG.copy()
        # New lists and maps, because the caller may change them.
        fields["log"] = {**USUAL_LOG, "spans": [], "holes": [], "causes": {}, **(log or {})}
        return msgspec.convert(fields, TopicPart)
    except Exception as error:  # malformed CBOR may raise anything
        raise SnapshotDamaged(f"a topic part does not decode: {error}") from error


def dump_rows(rows: Any) -> bytes:
    """Return some rows of a part as CBOR of their own, so that they need not be encoded again with the part."""
    return cbor2.dumps(rows)


def load_rows(blob: Any) -> Any:
    """Return what `dump_rows` was given. Raises ValueError."""
    try:
        return cbor2.loads(blob)
    except Exception as error:  # malformed CBOR may raise anything
        raise ValueError(f"rows of a part: {error!r}") from error


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the bytes of a snapshot file."""
    fields = msgspec.structs.asdict(snapshot)
    if len(snapshot.topics) < MANY_TOPICS and sum(map(len, snapshot.topics)) < LARGE_BYTES:
        body = cbor2.dumps(fields, canonical=True)
    else:
        body = with_large_field(fields, "topics", fields.pop("topics"))
    return with_large_field({"xxh3": xxhash.xxh3_64_intdigest(body)}, "snapshot", body)


def encode_manifest(part: bytes) -> bytes:
    """Return the bytes of a `topic.cbor`."""
    return with_large_field({"xxh3": xxhash.xxh3_64_intdigest(part)}, "manifest", part)


def decode_manifest(blob: bytes) -> TopicPart:
    """Return the part in a `topic.cbor`. Raises SnapshotDamaged for any other bytes."""
    return decode_part(_checked(blob, "manifest"))


def decode_snapshot(blob: bytes) -> Snapshot:
    """Return the content of a snapshot file. Raises SnapshotDamaged for any other bytes."""
    body = _checked(blob, "snapshot")
    try:
        return msgspec.convert(cbor2.loads(body), Snapshot)
    except Exception as error:  # malformed CBOR may raise anything
        raise SnapshotDamaged(f"it does not decode: {error}") from error


def _checked(blob: bytes, key: str) -> bytes:
    """Return the bytes under `key` in a map with a checksum."""
    try:
        outer = cbor2.loads(blob)
    except Exception as error:  # as above
        raise SnapshotDamaged(f"it does not decode: {error}") from error
    if not isinstance(outer, dict) or not isinstance(outer.get(key), bytes):
        raise SnapshotDamaged(f"not a {key}")
    body: bytes = outer[key]
    if xxhash.xxh3_64_intdigest(body) != outer.get("xxh3"):
        raise SnapshotDamaged("the checksum does not match")
    return body


def write_snapshot(fs: Fs, datadir: DataDir, snapshot: Snapshot, named: Collection[int] = ()) -> int:
    """Write a snapshot atomically, and keep the newest `KEPT` and those that a hold has `named`. Return the size in
    bytes. Blocking."""
    blob = encode_snapshot(snapshot)
    write_atomic(fs, datadir.snapshot_path(snapshot.number), blob)
    numbers = snapshot_numbers(fs, datadir)
    for number in numbers[:-KEPT]:
        if number not in named:
            fs.unlink(datadir.snapshot_path(number))
    return len(blob)


def snapshot_numbers(fs: Fs, datadir: DataDir) -> list[int]:
    """Return the numbers of the snapshots on disk, ascending."""
    found = (parse_snapshot_name(name) for name in fs.listdir(datadir.meta_dir))
    return sorted(number for number in found if number is not None)


def load_newest(fs: Fs, datadir: DataDir) -> tuple[Snapshot | None, list[str]]:
    """Return the newest valid snapshot, the reserve if no other is valid, and a sentence about each newer one that is
    not. Blocking."""
    damaged: list[str] = []
    paths = [datadir.snapshot_path(number) for number in reversed(snapshot_numbers(fs, datadir))]
    if fs.exists(datadir.reserve_path):
        paths.append(datadir.reserve_path)
    for path in paths:
        try:
            return decode_snapshot(fs.read(path)), damaged
        except SnapshotDamaged as error:
            damaged.append(f"{path}: {error}")
    return None, damaged


def write_reserve(fs: Fs, datadir: DataDir, number: int) -> None:
    """Keep a copy of snapshot `number`, atomically, for the case that the last two cannot be read. Must be called
    before the log is cut. Raises OSError, also if the snapshot does not verify. Blocking."""
    path = datadir.snapshot_path(number)
    blob = fs.read(path)
    try:
        _checked(blob, "snapshot")
    except SnapshotDamaged as error:
        raise OSError(errno.EIO, f"it cannot be kept in reserve: {error}", path) from error
    write_atomic(fs, datadir.reserve_path, blob)


def set_damaged_aside(fs: Fs, datadir: DataDir) -> None:
    """Rename the snapshots that do not verify, so that they do not count among those that are kept. The caller syncs
    `meta/`. Blocking."""
    paths = [datadir.snapshot_path(number) for number in snapshot_numbers(fs, datadir)]
    if fs.exists(datadir.reserve_path):
        paths.append(datadir.reserve_path)
    for path in paths:
        try:
            decode_snapshot(fs.read(path))
        except SnapshotDamaged:
            fs.rename(path, path + ".damaged")
