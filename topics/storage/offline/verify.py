"""`verify`: checks that everything in a data directory is as it was written. Offline; nothing is changed.

Responsible for the directory as a whole: FORMAT, snapshots and manifests, which of two parts of a topic counts, which
files belong to which topic. `verify_wal` checks the logs, `verify_segments` single segments, `verify_routers` the
frames that copies point to, `verify_start` runs recovery, `verify_trees` checks Merkle trees, and
`verify_other_files` the rest.

Theory of operation. Snapshots first: the newest valid one says where replay begins. Then the logs, against the
positions that snapshots and manifests name; they tell which topics have changed since. Then the frames that copies
point to, if by the newest part those copies are in no segment of their own. Then one topic after another, by the newer
of its two parts. In the end recovery itself is run, which changes nothing either: if it would refuse a start, that is
damage; a loss that it would announce as `corrupt` is a note.

A limit: behind the last position that a sync is known to have covered (a killed daemon leaves up to 20 ms of log
there), changed bits look like a torn write. They are a note, because the next start cuts the log there. Bytes that no
checkpoint has counted, unknown files, LOCK, CURRENT and `*.tmp` are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

import cbor2
import xxhash

from topics.evidence.topic_tree import TopicTree
from topics.log.span import Span
from topics.storage.evidence.leaf_files import parse_leaf_name
from topics.storage.evidence.leaf_writer import needed_files
from topics.storage.files.datadir import (
    DataDir,
    DataDirError,
    discover_shards,
    manifest_name,
    parse_segment_file,
    parse_topic_name,
    parse_wal_name,
    read_format,
    segment_name,
    wal_path,
)
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, join
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs, size_of
from topics.storage.offline.findings import Finding
from topics.storage.offline.topic_parts import StoredPart, holes_of, load_part
from topics.storage.offline.verify_other_files import other_files
from topics.storage.offline.verify_pointers import pointed_firsts, pointer_findings
from topics.storage.offline.verify_routers import CopyCheck
from topics.storage.offline.verify_segments import SegmentCheck
from topics.storage.offline.verify_start import verify_start
from topics.storage.offline.verify_sums import SumCount
from topics.storage.offline.verify_trees import KeptCheckpoint, SegmentLeaves, TreeCheck, tree_check, without_topic
from topics.storage.offline.verify_wal import LogCheck, LogFacts, LogReference, PartFacts, ShardLogFacts
from topics.storage.recovery.recovered_state import RecoveredState, RecoveredTopic, shard_of
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DELETED_SUFFIX, DirectorySegmentStore
from topics.storage.snapshots.manifests import newest_generation, read_manifest
from topics.storage.snapshots.snapshot import (
    KEPT,
    ReplayPosition,
    Snapshot,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    decode_part,
    decode_snapshot,
    snapshot_numbers,
)
from topics.storage.wal.wal_files import LogPosition, WalFiles
from topics.storage.wal.wal_head import read_heads, wal_format

MANIFEST: Final = "topic.cbor"
TRIES: Final = 10
"""A daemon at work may replace a segment's files during the check: then it is checked again with the new part, so often
at most."""


class Verification:
    """One run over a directory. `findings` can be iterated once; `progress` tells how far it has got."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        cold: str | None = None,
        *,
        in_use: bool = False,
        against: Sequence[KeptCheckpoint] = (),
    ) -> None:
        """`against` are checkpoints that were kept elsewhere."""
        self._against = against
        self._recovered: Mapping[int, RecoveredTopic] | None = None
        """The topics as the next start will have them; None if it is not known."""
        self.progress = Progress()
        self._fs = ReadOnlyFs(fs, self.progress)
        self._datadir = DataDir(root)
        self._cold_dir = DataDir(cold) if cold is not None and fs.exists(cold) else None
        store = DirectorySegmentStore(self._fs, cold) if self._cold_dir is not None and cold is not None else None
        self._cold_given = cold
        self._tiers = SegmentTiers(DirectorySegmentStore(self._fs, root), store)
        self._in_use = in_use
        self._facts = LogFacts()
        self._snapshot: Snapshot | None = None
        self._parts: dict[int, bytes] = {}
        self._mentions: dict[tuple[int, int], list[LogReference]] = {}
        """The positions that others name, by shard and ordinal of the file."""
        self._known: dict[int, PartFacts] = {}
        """The facts about each topic from the newer of its parts, by id."""
        self._files_of_logs = WalFiles()
        self._wal_format = wal_format(self._fs, self._datadir)
        self._log_directories: dict[int, str] = {}
        self._copied: set[int] = set()
        """Topics with segments that copies point to."""
        self._damaged = False
        self._sums = SumCount()

    def findings(self) -> Iterator[Finding]:
        """Yield every problem, damage and notes, in the order of the directory.

        Raises OSError if the disk does not answer.
        """
        self.progress.total = sum(self._sizes())
        for finding in self._all():
            self._damaged |= finding.severity == "damage"
            yield finding
        self.progress.done = self.progress.total

    def _all(self) -> Iterator[Finding]:
        yield from self._format()
        yield from self._snapshots()
        self._collect_mentions()
        yield from self._logs()
        yield from self._copies()
        yield from self._topics()
        yield from other_files(self._fs, self._datadir, self._cold_dir)
        if not self._in_use:
            yield from self._start()
        yield from self._trees()

    def _sizes(self) -> Iterator[int]:
        """Yield the sizes of all files that are read, once each."""
        datadir, fs = self._datadir, self._fs
        for name in fs.listdir(datadir.meta_dir):
            if name != "witness":
                yield size_of(fs, join(datadir.meta_dir, name))
        for found in discover_shards(fs, datadir):
            for name in fs.listdir(found.path):
                if parse_wal_name(name) is not None:
                    yield size_of(fs, join(found.path, name))
        for place in (datadir, self._cold_dir):
            if place is None:
                continue
            for topic in fs.listdir(place.topics_dir):
                if parse_topic_name(topic) is not None:
                    directory = join(place.topics_dir, topic)
                    for name in fs.listdir(directory):
                        yield size_of(fs, join(directory, name))

    # -- FORMAT and snapshots -----------------------------------------------------------------------------------------

    def _format(self) -> Iterator[Finding]:
        path = self._datadir.format_path
        try:
            read_format(self._fs, self._datadir)
        except FileNotFoundError:
            yield Finding(path, None, "is missing", "damage")
        except DataDirError as error:
            yield Finding(path, None, str(error).removeprefix(f"{path} "), "damage")

    def _snapshots(self) -> Iterator[Finding]:
        numbers = snapshot_numbers(self._fs, self._datadir)
        for i, number in enumerate(numbers):
            path = self._datadir.snapshot_path(number)
            try:
                blob = self._fs.read(path)
                snapshot = decode_snapshot(blob)
                parts = [load_part(path, decode_part(part)).part for part in snapshot.topics]
            except FileNotFoundError:
                yield Finding(path, None, "is gone by now", "note" if self._in_use else "damage")
                continue
            except SnapshotDamaged as error:
                yield Finding(path, None, str(error), "damage")
                continue
            if not _is_canonical(blob, "snapshot"):
                yield Finding(path, None, "the map around it is not what was written", "damage")
            if snapshot.number != number:
                yield Finding(path, None, f"says that it is number {snapshot.number}", "damage")
            self._snapshot = snapshot
            self._parts = {part.id: blob for part, blob in zip(parts, snapshot.topics, strict=True)}
            if len(self._parts) != len(parts):
                yield Finding(path, None, "has a topic twice", "damage")
            if i < len(numbers) - KEPT:
                yield Finding(path, None, "is older than those that are kept", "note")
                continue
            self._mention_positions(path, snapshot)

    def _mention_positions(self, path: str, snapshot: Snapshot) -> None:
        """Note its positions, which must be in the log, so that replay can begin there."""
        for shard, position in snapshot.positions.items():
            begin = ReplayPosition(*position)
            # The first snapshots of a new layout are written before its files are made.
            mention = LogReference(begin.offset, begin.frames, path, f"shard {shard} begins", not snapshot.new_layout)
            self._mentions.setdefault((shard, begin.ordinal), []).append(mention)

    def _collect_mentions(self) -> None:
        """Note the positions of parts, to check the logs against them; parts that do not verify are reported later."""
        for blob in self._parts.values():
            self._mention_part("the snapshot", decode_part(blob))
        for topic_id in self._tiers.hot.topics():
            try:
                path, blob = read_manifest(self._fs, self._datadir, topic_id)
                part = decode_manifest(blob)
            except (SnapshotDamaged, FileNotFoundError):
                continue
            self._mention_part(path, part)

    def _mention_part(self, path: str, part: TopicPart) -> None:
        ordinal, offset = end = LogPosition(*part.end)
        known = self._known.get(part.id)
        if known is None or end >= known.end:
            self._known[part.id] = PartFacts(part.name, end, part.config.get("durability") == "ephemeral")
        if offset and self._shards():
            mention = LogReference(offset, None, path, f"topic {part.name!r} ends", False)
            self._mentions.setdefault((shard_of(part.id, self._shards()), ordinal), []).append(mention)

    def _shards(self) -> int:
        """Return the number of shards of the WAL; 0 if unknown."""
        return self._snapshot.shards if self._snapshot is not None else 0

    # -- the logs -----------------------------------------------------------------------------------------------------

    def _logs(self) -> Iterator[Finding]:
        fs, datadir, snapshot = self._fs, self._datadir, self._snapshot
        first = 0
        if snapshot is not None and snapshot.new_layout:
            first = min(position[0] for position in snapshot.positions.values())
        shards = self._shards()
        found = discover_shards(fs, datadir)
        for shard, directory in found:
            names = fs.listdir(directory)
            ordinals = sorted(ordinal for name in names if (ordinal := parse_wal_name(name)) is not None)
            old = [ordinal for ordinal in ordinals if ordinal < first]
            current = [ordinal for ordinal in ordinals if ordinal >= first]
            is_current = not shards or (shard < shards and directory == datadir.shard_dir(shard, shards))
            if old or not is_current:
                yield from self._old_log(shard, directory, old if is_current else ordinals)
            if not is_current:
                continue
            self._log_directories[shard] = directory
            heads = read_heads(fs, directory, ordinals, version=self._wal_format)
            for ordinal, head in heads.items():
                self._files_of_logs.add(shard, ordinal, wal_path(directory, ordinal), head)
            position = snapshot.positions.get(shard) if snapshot is not None else None
            if snapshot is None and current and current[0]:
                problem = "the log does not reach back to its start, and no snapshot verifies"
                yield Finding(wal_path(directory, current[0]), None, problem, "damage")
            mentions = {
                ordinal: self._mentions.pop((shard, ordinal))
                for of_shard, ordinal in list(self._mentions)
                if of_shard == shard
            }
            begin = LogPosition(*position[:2]) if position is not None else None
            check = LogCheck(
                fs,
                ShardLogFacts(shard, directory, current, heads, shards, begin),
                self._facts,
                mentions=mentions,
                topics=self._known,
                in_use=self._in_use,
            )
            yield from check.findings()
        for (shard, ordinal), left in sorted(self._mentions.items()):
            for mention in left:
                if mention.must_exist:
                    problem = f"{mention.what}: there is no WAL file of {ordinal}"
                    yield Finding(mention.path, None, f"{problem} in shard {shard}", "damage")

    def _old_log(self, shard: int, directory: str, ordinals: Sequence[int]) -> Iterator[Finding]:
        """Report files of a layout that has been replaced: the next start removes them."""
        if not ordinals:
            return
        yield Finding(directory, None, "WAL files of an old layout: the next start removes them", "note")
        heads = read_heads(self._fs, directory, ordinals, version=self._wal_format)
        log = ShardLogFacts(shard, directory, ordinals, heads)
        check = LogCheck(self._fs, log, LogFacts(), mentions={}, topics={}, in_use=self._in_use)
        yield from check.findings()

    # -- copies -------------------------------------------------------------------------------------------------------

    def _copies(self) -> Iterator[Finding]:
        """Check the frames that copies point to which are in no segment of their own yet."""
        roots = [self._datadir] + ([self._cold_dir] if self._cold_dir is not None else [])
        copies = self._facts.copies
        check = CopyCheck(self._fs, self._tiers, roots, self._log_directories, self._files_of_logs, copies)
        for recipe in copies.recipes:
            if not self._is_there(recipe.topic_id):
                continue
            known = self._known.get(recipe.topic_id)
            name = known.name if known is not None else self._facts.created.get(recipe.topic_id, str(recipe.topic_id))
            findings: Iterable[Finding] = check.findings(recipe, name)
            if self._in_use and (findings := self._patiently(findings)):
                newest, _ = self._newest(recipe.topic_id)
                if newest is None or newest.end > recipe.position:
                    continue  # the copies are in segments by now, or gone
            yield from findings
        self._copied = check.needed

    @staticmethod
    def _patiently(findings: Iterable[Finding]) -> list[Finding]:
        """Return all findings; none if a file is removed meanwhile."""
        try:
            return list(findings)
        except FileNotFoundError:
            return []

    def _is_there(self, topic_id: int) -> bool:
        """Return True if a start would find the topic."""
        known = topic_id in self._parts or topic_id in self._facts.created or self._snapshot is None
        return known and topic_id not in self._facts.deleted

    # -- topics -------------------------------------------------------------------------------------------------------

    def _topics(self) -> Iterator[Finding]:
        hot = set(self._tiers.hot.topics())
        cold = set(self._tiers.cold.topics()) if self._tiers.cold is not None else set()
        for topic_id in sorted(hot | cold | set(self._parts)):
            if not self._is_there(topic_id):
                yield from self._leftover_directories(topic_id)
                continue
            yield from self._topic(topic_id)
        yield from self._sums.findings(self._datadir.topics_dir)
        for place in (self._datadir, self._cold_dir):
            for name in self._fs.listdir(place.topics_dir) if place is not None else ():
                if place is not None and parse_topic_name(name) is None:
                    what = "of a deleted topic, to be removed" if name.endswith(DELETED_SUFFIX) else "an unknown name"
                    yield Finding(join(place.topics_dir, name), None, what, "note")

    def _leftover_directories(self, topic_id: int) -> Iterator[Finding]:
        """Report the directories of a topic that no longer exists."""
        for place in (self._datadir, self._cold_dir):
            path = place.topic_dir(topic_id) if place is not None else ""
            until = "it stays as long as copies point to it"
            if topic_id not in self._copied:
                until = "the next start removes it"
            if path and self._fs.exists(path):
                yield Finding(path, None, f"of a deleted topic: {until}", "note")

    def _topic(self, topic_id: int) -> Iterator[Finding]:
        found, problems = self._newest(topic_id)
        yield from problems
        yield from self._files(topic_id, found)
        if found is not None:
            yield from self._segments(topic_id, found)

    def _newest(self, topic_id: int) -> tuple[StoredPart | None, list[Finding]]:
        """Return the newer part of a topic, and the problems of its parts."""
        blob = self._parts.get(topic_id)
        part = load_part("the snapshot", decode_part(blob)) if blob is not None else None
        path, manifest, problem = self._manifest(self._datadir, topic_id)
        if manifest is None:
            # A topic that no checkpoint has completed has no part, and its files do not count.
            needed = (part is not None and bool(part.part.segments)) or self._fs.exists(path)
            return part, [Finding(path, None, str(problem), "damage")] if needed else []
        if part is not None and manifest.end < part.end:
            older = f"is of {tuple(manifest.end)}, older than the snapshot's part, {tuple(part.end)}"
            return part, [Finding(path, None, older, "damage")]
        return manifest, []

    def _manifest(self, place: DataDir, topic_id: int) -> tuple[str, StoredPart | None, str | None]:
        """Return the path of a topic's manifest, and its part, or its problem."""
        path = place.manifest_path(topic_id)
        try:
            path, blob = read_manifest(self._fs, place, topic_id)
            found = load_part(path, decode_manifest(blob))
        except FileNotFoundError:
            return path, None, "is missing"
        except SnapshotDamaged as error:
            return path, None, str(error)
        if not _is_canonical(blob, "manifest"):
            return path, None, "the map around it is not what was written"
        if found.part.id != topic_id:
            return path, None, f"is about topic {found.part.id}"
        return path, found, None

    def _segments(self, topic_id: int, found: StoredPart) -> Iterator[Finding]:
        """Check the segments of a part."""
        spans = found.log.stored.all()
        if len(spans) > len(found.segments):
            yield Finding(found.path, None, f"{len(spans)} spans and {len(found.segments)} segments", "damage")
        pointed = pointed_firsts(self._fs, self._datadir, topic_id, found.segments)
        in_bucket = [segment for segment in found.segments if segment.tier == "cold" and segment.first in pointed]
        yield from pointer_findings(self._fs, self._datadir, in_bucket)
        cold = [segment for segment in found.segments if segment.tier == "cold" and segment.first not in pointed]
        away = cold if self._tiers.cold is None else []
        if away:
            where = "no cold directory is given" if self._cold_given is None else f"{self._cold_given} is missing"
            which = f"{len(away)} segments (seqs {away[0].first} to {away[-1].end - 1})"
            yield Finding(found.path, None, f"{which} are in the cold directory: {where}", "damage")
        self._sums.add(found.segments)
        check = self._check(topic_id, found)
        for i, segment in enumerate(found.segments):
            span = spans[i] if i < len(spans) else None
            if span is not None and not segment.first <= span.first < span.end == segment.end:
                problem = f"segment {i} is about {segment.first} to {segment.end - 1}"
                yield Finding(found.path, None, f"{problem}, its span about {span.first} to {span.end - 1}", "damage")
                continue
            if segment.tier == "gone":
                if span is not None and span.live:
                    yield Finding(found.path, None, f"segment {segment.first} is gone and has live records", "damage")
                continue
            if segment.tier == "cold" and (self._tiers.cold is None or segment.first in pointed):
                continue
            if self._in_use:
                yield from self._replaced(topic_id, found, i)
            else:
                yield from check.findings(segment, span, is_front=i == 0)

    def _check(self, topic_id: int, found: StoredPart) -> SegmentCheck:
        ahead = topic_id in self._facts.since
        leaves, holes = None, holes_of(found.part.log)
        if found.part.evidence is not None:
            leaves = SegmentLeaves(self._fs, self._datadir.topic_dir(topic_id), topic_id, found.part.evidence, holes)
        path_of, name = self._path_of(topic_id), found.part.name
        return SegmentCheck(self._tiers, topic_id, name, path_of, holes, ahead=ahead, leaves=leaves)

    def _replaced(self, topic_id: int, found: StoredPart, i: int) -> Iterator[Finding]:
        """Check a segment again that looks damaged while the daemon works: its files may have been replaced."""
        findings: list[Finding] = []
        for _ in range(TRIES):
            check = self._check(topic_id, found)
            findings = list(check.findings(found.segments[i], _span_of(found, i), is_front=i == 0))
            if all(finding.severity == "note" for finding in findings):
                break
            newer, _ = self._newest(topic_id)
            if newer is None or newer.part == found.part:
                break
            first = found.segments[i].first
            places = [at for at, segment in enumerate(newer.segments) if segment.first == first]
            if not places:
                return  # merged with the one before it, or dropped
            found, i = newer, places[0]
        yield from findings

    def _path_of(self, topic_id: int) -> Callable[[str, str], str]:
        def path_of(tier: str, name: str) -> str:
            place = self._datadir if tier == "hot" or self._cold_dir is None else self._cold_dir
            return join(place.topic_dir(topic_id), name)

        return path_of

    def _files(self, topic_id: int, found: StoredPart | None) -> Iterator[Finding]:
        """Report files that belong to no segment of the part, and check the copy of the manifest in the cold store."""
        newest = newest_generation(self._fs.listdir(self._datadir.topic_dir(topic_id)))
        hot, cold = {manifest_name(newest or 0)}, {MANIFEST}
        for segment in found.segments if found is not None else ():
            if segment.tier == "hot":
                hot.update(segment_name(segment.first, kind) for kind in ("data", "idx", "tags", "del"))
            elif segment.tier == "cold":
                hot.update(segment_name(segment.first, kind) for kind in ("idx.cold", "tags.cold", "object"))
                cold.update(segment_name(segment.first, kind) for kind in ("data", "idx", "tags", "del"))
        if found is not None and found.part.evidence is not None:
            directory = self._datadir.topic_dir(topic_id)
            tree = TopicTree.from_wire(found.part.evidence)
            hot.update(needed_files(self._fs.listdir(directory), tree))
        for place, wanted in ((self._datadir, hot), (self._cold_dir, cold)):
            if place is None:
                continue
            directory = place.topic_dir(topic_id)
            for name in self._fs.listdir(directory):
                if name not in wanted and not name.endswith(TEMPORARY_SUFFIX):
                    what = "a segment that the part does not have" if parse_segment_file(name) else "an unknown name"
                    if parse_leaf_name(name) is not None:
                        what = "leaves that nobody needs"
                    yield Finding(join(directory, name), None, what, "note")
        if self._cold_dir is not None and self._fs.exists(self._cold_dir.manifest_path(topic_id)):
            path, copy, problem = self._manifest(self._cold_dir, topic_id)
            if problem is not None:
                yield Finding(path, None, problem, "damage")
            elif copy is not None and found is not None and copy.end > found.end:
                yield Finding(path, None, "is newer than what it is a copy of", "damage")

    def _start(self) -> Iterator[Finding]:
        """Report what the next start would say."""
        newest, stopped = self._newest, self._facts.stopped

        def note(recovered: RecoveredState) -> None:
            self._recovered = recovered.topics

        yield from verify_start(
            self._fs, self._datadir, self._tiers, lambda topic_id: newest(topic_id)[0], stopped, note
        )

    # -- Merkle trees --------------------------------------------------------------------------------------------------

    def _trees(self) -> Iterator[Finding]:
        """Check the tree of each topic that has one."""
        names: dict[int, str] = {}
        for topic_id in sorted({*self._tiers.hot.topics(), *self._parts, *(self._recovered or {})}):
            part = self._newest(topic_id)[0]
            check = self._tree_check(topic_id, part) if self._is_there(topic_id) else None
            if check is not None:
                names[topic_id] = check.name
                yield from self._tree(check, part)
        yield from without_topic(self._against, names)

    def _tree_check(self, topic_id: int, part: StoredPart | None) -> TreeCheck | None:
        recovered = (self._recovered or {}).get(topic_id)
        directory = self._datadir.topic_dir(topic_id)
        return tree_check(self._fs, self._tiers, directory, topic_id, part, recovered)

    def _tree(self, check: TreeCheck, part: StoredPart | None) -> Iterator[Finding]:
        """Check a tree; one that looks damaged while the daemon works again, since leaves may have gone into other
        files."""
        found: list[Finding] = []
        for _ in range(TRIES):
            found = list(check.findings(((work, work.verified(self._fs)) for work in check.work()), self._against))
            if not self._in_use or all(finding.severity == "note" for finding in found):
                break
            newer = self._newest(check.topic_id)[0]
            again = self._tree_check(check.topic_id, newer)
            if newer is None or again is None or (part is not None and newer.part == part.part):
                break
            check, part = again, newer
        yield from found


def _span_of(found: StoredPart, i: int) -> Span | None:
    """Return the span of a part's segment, None if it has none: the first segments have one each, those behind them
    have still to be removed."""
    spans = found.log.stored.all()
    return spans[i] if i < len(spans) else None


def _is_canonical(blob: bytes, key: str) -> bool:
    """Return True if the map with the checksum is, bit by bit, the one that is written around these bytes."""
    inner = cbor2.loads(blob)[key]
    return bool(cbor2.dumps({key: inner, "xxh3": xxhash.xxh3_64_intdigest(inner)}, canonical=True) == blob)
