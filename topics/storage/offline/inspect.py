"""`inspect`: the content of a data directory. Offline; nothing is changed and nothing is judged (that is `verify`).

Responsible for gathering facts as plain values; the command formats them for a terminal. Topics are as a start would
find them, replayed by recovery itself; if recovery refuses, as their parts say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import msgspec

from topics.evidence.topic_tree import TopicTree
from topics.groups.group import Group
from topics.log.span import FLAG_DERIVED
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router import router_to_wire
from topics.routing.router_state import Router
from topics.storage.files.datadir import DataDir, DataDirError, discover_shards, parse_wal_name, wal_path
from topics.storage.files.fs import Fs
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs, size_of
from topics.storage.offline.directory_facts import (
    DirectoryFacts,
    EvidenceFacts,
    GroupFacts,
    QueueFacts,
    RouterFacts,
    SegmentFacts,
    ShardFacts,
    SnapshotFacts,
    TopicFacts,
    WalFileFacts,
)
from topics.storage.offline.frame_dump import FrameDump, FrameFacts, type_name, verified_scans
from topics.storage.offline.topic_parts import StoredPart, holes_of, load_part
from topics.storage.recovery import replay
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.recovered_state import RecoveredTopic, shard_of
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.manifests import read_manifest
from topics.storage.snapshots.snapshot import (
    Snapshot,
    SnapshotDamaged,
    decode_manifest,
    decode_part,
    decode_snapshot,
    snapshot_numbers,
)
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_head import WalHead, read_heads, wal_format


class _LogFile(NamedTuple):
    """A file of the log, and how it begins."""

    path: str
    ordinal: int
    head: WalHead


class Inspection:
    """One inspection of a directory. `progress` tells how far it is. Methods raise DataDirError if it is not a data
    directory."""

    def __init__(self, fs: Fs, root: str, cold: str | None = None) -> None:
        self.progress = Progress()
        self._fs = ReadOnlyFs(fs, self.progress)
        self._datadir = DataDir(root)
        self._cold = cold if cold is not None and fs.exists(cold) else None
        store = DirectorySegmentStore(self._fs, self._cold) if self._cold is not None else None
        self._tiers = SegmentTiers(DirectorySegmentStore(self._fs, root), store)

    # -- facts --------------------------------------------------------------------------------------------------------

    def facts(self, *, in_use: bool = False) -> DirectoryFacts:
        """Return everything but frames. `in_use`: a daemon works on the directory, so recovery is not run."""
        found = self.check_format()
        self.progress.total = 2 * sum(size_of(self._fs, file.path) for file in self._wal_files())
        snapshots, newest = self._snapshots()
        shards = self._shards()
        topics, refused = ([], "the directory is in use") if in_use else self._recovered()
        if refused is not None:
            parts = self._parts(newest)
            names = {part.part.id: part.part.name for part in parts}
            topics = [self._of_part(part, names, newest) for part in parts]
        self.progress.done = self.progress.total
        return DirectoryFacts(
            root=self._datadir.root,
            cold=self._cold,
            format=found,
            holder=self._fs.lock_holder(self._datadir.lock_path),
            refused=refused,
            snapshots=snapshots,
            shards=shards,
            topics=sorted(topics, key=lambda topic: topic.name),
        )

    def check_format(self) -> dict[str, int]:
        """Return what `FORMAT` says. Raises DataDirError if it is missing, or no JSON."""
        path = self._datadir.format_path
        try:
            return msgspec.json.decode(self._fs.read(path), type=dict[str, int])
        except FileNotFoundError:
            raise DataDirError(f"{self._datadir.root} is no data directory: there is no FORMAT") from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise DataDirError(f"{path} is not what it should be: {error}") from None

    def _wal_files(self) -> Iterator[_LogFile]:
        """Yield every WAL file."""
        for found in discover_shards(self._fs, self._datadir):
            for ordinal, head in self._heads(found.path).items():
                yield _LogFile(wal_path(found.path, ordinal), ordinal, head)

    def _heads(self, directory: str) -> dict[int, WalHead]:
        ordinals = self._ordinals(directory)
        return read_heads(self._fs, directory, ordinals, version=wal_format(self._fs, self._datadir))

    def _ordinals(self, directory: str) -> list[int]:
        names = self._fs.listdir(directory)
        return sorted(ordinal for name in names if (ordinal := parse_wal_name(name)) is not None)

    def _snapshots(self) -> tuple[list[SnapshotFacts], Snapshot | None]:
        facts = []
        newest = None
        for number in snapshot_numbers(self._fs, self._datadir):
            path = self._datadir.snapshot_path(number)
            try:
                blob = self._fs.read(path)
                snapshot = newest = decode_snapshot(blob)
            except FileNotFoundError:
                continue
            except SnapshotDamaged as error:
                facts.append(SnapshotFacts(path, number, len(blob), str(error)))
                continue
            facts.append(
                SnapshotFacts(
                    path,
                    number,
                    len(blob),
                    None,
                    topics=len(snapshot.topics),
                    shards=snapshot.shards,
                    clock=snapshot.clock,
                    positions=snapshot.positions,
                )
            )
        return facts, newest

    def _shards(self) -> list[ShardFacts]:
        return [
            ShardFacts(
                found.shard,
                found.path,
                [
                    facts
                    for ordinal, head in self._heads(found.path).items()
                    if (facts := self._wal_file(_LogFile(wal_path(found.path, ordinal), ordinal, head))) is not None
                ],
            )
            for found in discover_shards(self._fs, self._datadir)
        ]

    def _wal_file(self, file: _LogFile) -> WalFileFacts | None:
        """Return the facts of a WAL file; None if it was removed meanwhile."""
        path, ordinal, head = file
        types: Counter[int] = Counter()
        count = used = last_type = first_ts = last_ts = 0
        reason = "zeros"
        try:
            handle = self._fs.open(path, read_only=True)
        except FileNotFoundError:
            return None
        with handle:
            size = handle.size()
            used = head.first
            for scan, _, _ in verified_scans(handle, head, head.first, size):
                if scan.rows:
                    types.update([row[2] for row in scan.rows])
                    times = [row[6] for row in scan.rows if row[6]]
                    if times:
                        first_ts, last_ts = first_ts or times[0], times[-1]
                    last_type = scan.rows[-1][2]
                    count += len(scan.rows)
                used, reason = scan.stop, scan.reason
        end = {FrameType.FILE_END: "file end", FrameType.CLEAN_STOP: "clean stop"}.get(
            FrameType(last_type or 1), "open"
        )
        return WalFileFacts(
            path,
            ordinal,
            size,
            used,
            count,
            {type_name(kind): n for kind, n in sorted(types.items())},
            first_ts,
            last_ts,
            "bad bytes" if reason == "bad" or head.problem is not None else end,
        )

    # -- topics -------------------------------------------------------------------------------------------------------

    def _recovered(self) -> tuple[list[TopicFacts], str | None]:
        """Return the topics as a start finds them, and the reason if a start would be refused."""
        try:
            found = replay.recover(self._fs, self._datadir, self._tiers, Progress())
        except (Damage, DataDirError, frames.UnknownFrameType, SnapshotDamaged, OSError, ValueError) as error:
            return [], str(error)
        shards = max((shard.shards for shard in found.shards), default=0) or len(found.shards)
        names = {topic.id: topic.name for topic in found.topics.values()}
        return [_topic(_known_at_start(topic), names, shards) for topic in found.topics.values()], None

    def stored_parts(self) -> dict[int, StoredPart]:
        """Return the newer of the two parts of every topic, by id; those that do not verify are left out."""
        return {part.part.id: part for part in self._parts(self._snapshots()[1])}

    def _parts(self, snapshot: Snapshot | None) -> list[StoredPart]:
        """Return the newer of the two parts of every topic; those that do not verify are left out."""
        newest: dict[int, StoredPart] = {}
        for part in self._all_parts(snapshot):
            known = newest.get(part.part.id)
            if known is None or part.end >= known.end:
                newest[part.part.id] = part
        return list(newest.values())

    def _all_parts(self, snapshot: Snapshot | None) -> Iterator[StoredPart]:
        for blob in snapshot.topics if snapshot is not None else ():
            with suppress(SnapshotDamaged):
                yield load_part("the snapshot", decode_part(blob))
        for topic_id in self._tiers.hot.topics():
            with suppress(SnapshotDamaged, FileNotFoundError):
                path, blob = read_manifest(self._fs, self._datadir, topic_id)
                yield load_part(path, decode_manifest(blob))

    def _of_part(self, part: StoredPart, names: dict[int, str], snapshot: Snapshot | None) -> TopicFacts:
        shards = snapshot.shards if snapshot is not None else len(discover_shards(self._fs, self._datadir))
        return _topic(_known_of_part(part), names, shards)

    # -- frames -------------------------------------------------------------------------------------------------------

    def frames(self, topic: str | None = None) -> Iterator[FrameFacts]:
        """Yield every frame: first the logs, shard by shard, then the segments, topic by topic. With `topic` only those
        of that topic, without frames about the shard."""
        self.check_format()
        parts = self._parts(self._snapshots()[1])
        names = {part.part.id: part.part.name for part in parts}
        dump = FrameDump(self._fs, self._tiers, self._datadir, self._cold, names)
        self.progress.total = sum(size_of(self._fs, file.path) for file in self._wal_files())
        self.progress.total += sum(
            segment.data_bytes for part in parts if topic in (None, part.part.name) for segment in part.segments
        )
        for file in self._wal_files():
            for line in dump.of_log(*file):
                if topic is None or line.topic == topic:
                    yield line
        for part in parts:
            if topic in (None, part.part.name):
                for segment in part.segments:
                    yield from dump.of_segment(part, segment)


class _KnownTopic(NamedTuple):
    """The known facts about a topic, from recovery or from a part."""

    id: int
    name: str
    config: TopicConfig
    ceiling: int
    log: TopicLog
    segments: list[Segment]
    routers: list[Router]
    origins: OriginSet | None
    queue: Leases | None
    groups: dict[str, Group]
    fences: dict[str, int]
    tree: TopicTree | None


def _known_at_start(topic: RecoveredTopic) -> _KnownTopic:
    return _KnownTopic(
        topic.id,
        topic.name,
        topic.config,
        topic.ceiling,
        topic.log,
        topic.segments,
        [*topic.incoming.values()],
        topic.origins,
        topic.queue,
        topic.groups,
        topic.fences,
        topic.tree,
    )


def _known_of_part(part: StoredPart) -> _KnownTopic:
    found = part.part
    return _KnownTopic(
        found.id,
        found.name,
        part.config,
        found.ceiling,
        part.log,
        part.segments,
        part.routers,
        part.origins,
        part.queue,
        part.groups,
        found.fences,
        TopicTree.from_wire(found.evidence) if found.evidence is not None else None,
    )


def _topic(known: _KnownTopic, names: Mapping[int, str], shards: int) -> TopicFacts:
    """Return the facts of a topic. `names` are those of all topics by id."""
    config, log = known.config, known.log
    spans = log.stored.all()
    stored = sum(span.live for span in spans)
    return TopicFacts(
        id=known.id,
        name=known.name,
        shard=shard_of(known.id, max(shards, 1)),
        type=config.type,
        durability=config.durability,
        head_seq=log.head_seq,
        earliest_seq=log.earliest_seq,
        evict_floor=log.losses.evict_floor,
        ceiling=known.ceiling,
        count=log.count,
        bytes=log.bytes,
        last_ts=log.last_ts,
        unstored=log.count - stored,
        derived=sum(
            flag >= FLAG_DERIVED and not dead
            for run in log.index.capture_raw(log.head_seq)
            for flag, dead in zip(run.flags, run.dead, strict=True)
        ),
        routers=[
            RouterFacts(
                router.name,
                router.source_id,
                names.get(router.source_id),
                router.cursor,
                router.forwarded,
                router_to_wire(router.config),
            )
            for router in sorted(known.routers, key=lambda router: router.name)
        ],
        keeps_origins=known.origins is not None,
        queue=_queue(known.queue, log.count) if known.queue is not None else None,
        groups=[_group(group, log) for _, group in sorted(known.groups.items())],
        fences=known.fences,
        evidence=_evidence(known.tree, log) if known.tree is not None else None,
        holes=holes_of(log.dump(raw=False)),
        segments=[_segment(segment, log) for segment in known.segments],
    )


def _evidence(tree: TopicTree, log: TopicLog) -> EvidenceFacts:
    identity = tree.identity
    leaves = max(log.head_seq + 1 - identity.start_seq, tree.published)
    return EvidenceFacts(identity.tree, identity.start_seq, leaves, tree.stored.size, identity.key)


def _queue(queue: Leases, count: int) -> QueueFacts:
    parked = len(queue.parked())
    return QueueFacts(queue.ready(count), queue.in_flight, queue.delayed - parked, parked, queue.dead_lettered)


def _group(group: Group, log: TopicLog) -> GroupFacts:
    jobs = _queue(group.leases, group.count(log))
    return GroupFacts(group.name, group.finished.floor, len(group.finished), group.missed, jobs)


def _segment(segment: Segment, log: TopicLog) -> SegmentFacts:
    span = log.stored.at(segment.end - 1)
    is_merged = span is not None and not segment.first <= span.first < span.end == segment.end
    return SegmentFacts(
        segment.first,
        segment.end - 1,
        segment.tier,
        segment.sealed,
        segment.data_bytes,
        segment.frames,
        None if span is None or is_merged else span.live,
        segment.opened_ms,
        segment.stored_bytes,
        segment.sha256.hex() if segment.sha256 is not None else None,
    )
