"""A substitute for the snapshot, made from manifests, when no snapshot can be read and the log was cut
(`docs/spec/storage.md` 3).

A WAL file is removed only when every topic with a frame in it has been stored behind that frame, and a topic that has
ever had a segment was stored in its manifest. So its manifest and the rest of the log are complete, and replay begins
at the first existing frame: no record of such a topic is lost or invented. Topics that were only in snapshots are lost:
those that never had a segment and were made before the log begins, with their configuration and the routers that lead
into them. Their names are unknown, so no tombstone can announce the loss. If such a topic is created again, it is
another instance, with an id that was never used. A deleted topic whose directory was not removed yet may come back if
the log of its deletion was cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from topics.storage.files.datadir import DataDir, DataDirError, FoundShard, parse_topic_name
from topics.storage.files.fs import Fs
from topics.storage.snapshots.manifests import read_manifest
from topics.storage.snapshots.snapshot import (
    Snapshot,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    encode_part,
    snapshot_numbers,
)
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

DAMAGED_SUFFIX: Final = ".damaged"
"""Suffix of a directory whose manifest could not be read when the others were."""

ID_MARGIN: Final = 1 << 20
"""Ids that are skipped above the highest known one: unknown topics may have had them."""


class NoSnapshot(DataDirError):
    """No snapshot can be read, and the log does not reach back to its start."""


def stand_in(
    fs: Fs, datadir: DataDir, first: Sequence[tuple[FoundShard, int]], damaged: Sequence[str], *, allowed: bool
) -> Snapshot:
    """Return a substitute for the snapshot, if that is allowed. Blocking.

    `first` is each shard with the ordinal of its first file; `damaged` has a sentence about each snapshot that cannot
    be read. Raises NoSnapshot unless `allowed`, DataDirError if something other than a snapshot is missing, and
    OSError.
    """
    if not damaged:  # then a file of the log may be missing, and its content is unknown
        raise DataDirError("the WAL does not reach back to its start, and there is no snapshot")
    found = f"no snapshot can be read ({damaged[0]})"
    numbers = {shard.shard for shard, _ in first}
    if len({shard.path == datadir.wal_dir for shard, _ in first}) > 1 or numbers != set(range(len(numbers))):
        raise DataDirError(f"{found}, and the WAL files of some shards are missing or of another layout")
    if not allowed:
        raise NoSnapshot(
            f"{found}, and the WAL does not reach back to its start. Restore a file of {datadir.meta_dir} from a copy, "
            f"or start with TOPICS_RECOVERY=salvage: topics with segments are rebuilt whole from their manifests and "
            f"the log, others that were made before the log begins are given up"
        )
    return _rebuilt_snapshot(fs, datadir, {shard.shard: ordinal for shard, ordinal in first}, len(numbers))


def _rebuilt_snapshot(fs: Fs, datadir: DataDir, first: Mapping[int, int], shards: int) -> Snapshot:
    """Return a snapshot as if it had been taken where the log begins. `first` is the ordinal of the first file of each
    shard. Blocking."""
    names = fs.listdir(datadir.topics_dir)
    ids = [topic_id for name in names if (topic_id := parse_topic_name(name)) is not None]
    bare = (name.removesuffix(DAMAGED_SUFFIX) for name in names)
    given_out = [topic_id for name in bare if (topic_id := parse_topic_name(name)) is not None]
    parts: dict[str, TopicPart] = {}
    for topic_id in sorted(ids):
        try:
            path, blob = read_manifest(fs, datadir, topic_id)
            part = decode_manifest(blob)
            if part.id != topic_id:
                raise SnapshotDamaged(f"{path} is about topic {part.id}")
        except (FileNotFoundError, SnapshotDamaged) as error:
            log.error("topic_not_rebuilt", topic_id=topic_id, problem=str(error))
            continue
        parts[part.name] = part  # the later one of two instances counts
    log.error(
        "rebuilt_from_manifests",
        topics=len(parts),
        consequence="topics without a segment that were made before the log begins are gone, with their routers",
    )
    return Snapshot(
        number=max(snapshot_numbers(fs, datadir), default=0),
        shards=shards,
        next_topic_id=max(given_out, default=0) + ID_MARGIN,
        clock=max((max(part.last_ts, part.last_write or 0) for part in parts.values()), default=0),
        positions={shard: [ordinal, 0, ordinal] for shard, ordinal in first.items()},
        topics=[encode_part(part) for part in parts.values()],
    )
