"""The topics of a directory as of their last checkpoint, from its files: for readers without a daemon.

Responsible for finding the topics, by the newer of their two parts, and for the contents of a part about each segment,
as plain values that can be pickled. The log is not read, so everything after the checkpoint is unknown. Others read the
segments. Nothing here changes anything, and the daemon may go on meanwhile: it replaces snapshots and manifests
atomically, and a file that is replaced during a read is read again.

Which part counts. The newest valid snapshot names the topics of the last checkpoint; a manifest that is not older than
a topic's part in it replaces that, as in a recovery. A directory that the snapshot does not know belongs to a topic
that was made later, or to a deleted one whose files are still needed by copies. Ids are never reused, so the snapshot's
`next_topic_id` tells which. A topic with segments whose directory is gone was deleted since; one without a segment has
no directory, so only the next checkpoint tells.

A cold directory has copies of manifests, each as of the time when the topic's last segment was moved there, and neither
a snapshot nor the newest segments. Segments that were merged, rewritten or dropped since have not changed the copy. So
a cold directory alone is read by the names of its files. A segment reaches from its own first seq to that of the next
one. The number of its live records is unknown. The topic ends with its last cold segment.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, Final, NamedTuple

from topics.log.dumped_values import little_endian
from topics.log.span import Span
from topics.log.topic_log import TopicLog
from topics.storage.files.datadir import DataDir, DataDirError, parse_segment_name, parse_topic_name, read_format
from topics.storage.files.fs import Fs, join
from topics.storage.segments.topic_segments import ENTRY_FIELDS
from topics.storage.snapshots.manifests import read_manifest
from topics.storage.snapshots.snapshot import (
    Snapshot,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    decode_part,
    load_newest,
    snapshot_numbers,
)

TRIES: Final = 10
"""How often a directory is read whose files are replaced meanwhile. Each checkpoint of the daemon costs at most one
read, and checkpoints are further apart than reads."""

MAX_TS: Final = 2**64 - 1

PathOf = Callable[[int, str], str | None]
"""Names the `.data` of a segment, given its first seq and its tier; None if there is none that could be read."""


class LostRange(NamedTuple):
    """Lost seqs, both ends inclusive, and the reason."""

    first: int
    last: int
    reason: str


class StoredSegment(NamedTuple):
    """A segment as a part has it: the seqs from `first` to `last` (inclusive), of which those below `start` are gone.

    `live` is how many of the others are live, None if unknown. `data_bytes` is the part of an unsealed `.data` that
    counts. No record is older than `first_ts` or younger than `last_ts` (epoch ms). `unflagged` are deleted seqs whose
    flag is not in the file yet, as little-endian u64; `lost` the holes among its seqs. `path` is that of `.data`; None
    if everything was deleted, and for a cold segment without a cold directory (`tier` tells). `salt` is that of the
    file's checksums, None for version 1, and if only the file's header has it.
    """

    path: str | None
    tier: str
    first: int
    last: int
    start: int
    live: int | None
    data_bytes: int
    sealed: bool
    first_ts: int = 0
    last_ts: int = MAX_TS
    unflagged: bytes = b""
    lost: tuple[LostRange, ...] = ()
    salt: int | None = None

    @property
    def deleted(self) -> array[int]:
        """Return `unflagged` as numbers."""
        found: array[int] = array("Q")
        found.frombytes(self.unflagged)
        return found


class StoredTopic:
    """A topic as of a checkpoint. `id` is its epoch on the wire; `end` tells which of two parts of one topic is
    newer."""

    def __init__(self, part: TopicPart, segments: list[StoredSegment], log: TopicLog, head_seq: int) -> None:
        self.id = part.id
        self.name = part.name
        self.end = (part.end[0], part.end[1])
        self._holes = [LostRange(int(first), int(last), reason) for first, last, reason in part.log["holes"]]
        self.segments = [
            segment._replace(lost=tuple(self._holes_in(segment.start, segment.last))) for segment in segments
        ]
        """The segments, ascending; all that still have records."""
        self.head_seq = head_seq
        self.earliest_seq = log.earliest_seq
        self._log = log

    def losses(self, after: int, last: int) -> list[LostRange]:
        """Return the losses among the seqs above `after` up to `last`, as a reader of that range is told: the gap below
        the front, then the holes; ascending, cut to the range. `last` is at most the head."""
        found: list[LostRange] = []
        if after >= last:
            return found
        front = self._log.start(after, True)[1]
        if front is not None:
            found.append(LostRange(front.gap_from, min(front.gap_to, last), front.reason))
        found += self._holes_in(after + 1, last)
        return found

    def _holes_in(self, first: int, last: int) -> Iterator[LostRange]:
        """Yield the parts of the holes that are in the inclusive range."""
        for hole in islice(self._holes, bisect_left(self._holes, first, key=_last_of), None):
            if hole.first > last:
                return
            yield LostRange(max(hole.first, first), min(hole.last, last), hole.reason)


@dataclass(frozen=True, slots=True)
class TopicDirectory:
    """The place of topics: a data directory, the cold directory that belongs to it, or one of them alone."""

    data: str | None
    cold: str | None

    @classmethod
    def found(cls, fs: Fs, path: str, cold: str | None = None) -> TopicDirectory:
        """Return what is at `path`: a data directory, a copy made by `scripts/copy` (`data` and `cold` below it), or a
        cold directory. A `cold` that does not exist is ignored. Raises DataDirError if it is none of these, or of a
        format that this version does not know."""
        if not fs.exists(path):
            raise DataDirError(f"{path} does not exist")
        if cold is not None and not fs.exists(cold):
            cold = None  # a daemon makes it for the first segment that is moved there
        data = path
        if not fs.exists(DataDir(path).format_path) and fs.exists(DataDir(join(path, "data")).format_path):
            data, beside = join(path, "data"), join(path, "cold")
            cold = beside if cold is None and fs.exists(beside) else cold
        layout = DataDir(data)
        if fs.exists(layout.format_path):
            read_format(fs, layout)
            return cls(data, cold)
        if any(map(fs.exists, (layout.wal_dir, layout.meta_dir))):
            raise DataDirError(f"{path} is a data directory whose FORMAT is missing")
        if not fs.exists(layout.topics_dir):
            raise DataDirError(f"{path} is no data directory, no cold directory and no copy of them")
        if cold is not None:
            raise DataDirError(f"{path} is a cold directory itself, so there is no other one that belongs to it")
        return cls(None, path)

    @property
    def layout(self) -> DataDir:
        """The layout of the directory whose manifests count."""
        root = self.data if self.data is not None else self.cold
        assert root is not None
        return DataDir(root)

    def topics(self, fs: Fs, wanted: Callable[[str], bool]) -> dict[str, StoredTopic]:
        """Return the topics whose name is wanted, by name.

        Raises SnapshotDamaged if a snapshot or manifest does not verify, DataDirError if the files keep changing,
        OSError.
        """
        for _ in range(TRIES):
            try:
                return self._topics(fs, wanted)
            except FileNotFoundError:
                continue  # a snapshot was replaced between its listing and the read
        raise DataDirError(f"{self.layout.root} has changed {TRIES} times while it was looked at")

    def _topics(self, fs: Fs, wanted: Callable[[str], bool]) -> dict[str, StoredTopic]:
        newest: dict[str, StoredTopic] = {}
        for topic_id, of_snapshot in sorted(self._candidates(fs).items()):
            if of_snapshot is not None and not wanted(of_snapshot.name):
                continue
            found = self._newest(fs, topic_id, of_snapshot)
            if found is not None and wanted(found.name):
                newest[found.name] = found  # the later one of two instances counts
        return newest

    def topic(self, fs: Fs, topic_id: int) -> StoredTopic | None:
        """Return one topic as it is now; None if it is gone. Raises SnapshotDamaged, OSError."""
        with suppress(SnapshotDamaged):
            found = self._newest(fs, topic_id, None)
            if found is not None:
                return found
        return self._newest(fs, topic_id, self._candidates(fs).get(topic_id))

    def _candidates(self, fs: Fs) -> dict[int, TopicPart | None]:
        """Return the ids of the topics of the last checkpoint, with their part in the snapshot; None if only their
        manifest has one."""
        names = fs.listdir(self.layout.topics_dir)
        listed = [topic_id for name in names if (topic_id := parse_topic_name(name)) is not None]
        snapshot = self._snapshot(fs)
        if snapshot is None:
            return dict.fromkeys(listed)
        parts = {part.id: part for part in map(decode_part, snapshot.topics)}
        found = {one: parts.get(one) for one in listed if one in parts or one >= snapshot.next_topic_id}
        found.update((part.id, part) for part in parts.values() if not part.segments)  # those have no directory
        return found

    def _snapshot(self, fs: Fs) -> Snapshot | None:
        """Return the newest valid snapshot. Raises SnapshotDamaged if there are some and none is valid."""
        if self.data is None:
            return None
        snapshot, damaged = load_newest(fs, self.layout)
        if snapshot is None and damaged:
            raise SnapshotDamaged(damaged[0])
        if snapshot is None and snapshot_numbers(fs, self.layout):
            raise FileNotFoundError(2, "a snapshot that has just come")
        return snapshot

    def _newest(self, fs: Fs, topic_id: int, of_snapshot: TopicPart | None) -> StoredTopic | None:
        """Return the newer part of a topic; None if its directory has none, or is gone, and for a stage, which is
        private."""
        path = self.layout.manifest_path(topic_id)
        part = of_snapshot
        try:
            path, blob = read_manifest(fs, self.layout, topic_id)
            manifest = decode_manifest(blob)
        except FileNotFoundError:
            if (part is None or part.segments) and not fs.exists(self.layout.topic_dir(topic_id)):
                return None
        except SnapshotDamaged as error:
            if part is None:
                raise SnapshotDamaged(f"{path}: {error}") from None
        else:
            if part is None or manifest.end >= part.end:
                part = manifest
        if part is None or part.stage is not None:
            return None
        if part.id != topic_id:
            raise SnapshotDamaged(f"{path} is about topic {part.id}")
        return self._taken_apart(fs, part)

    def _taken_apart(self, fs: Fs, part: TopicPart) -> StoredTopic:
        if self.data is not None:
            return topic_of_part(part, self._path_of(part))
        with _contradictions(part):
            log = TopicLog.load(part.log)
            segments = list(self._cold_alone(fs, part, log))
            return StoredTopic(part, segments, log, max((segment.last for segment in segments), default=0))

    def _path_of(self, part: TopicPart) -> PathOf:
        def path_of(first: int, tier: str) -> str | None:
            root = {"hot": self.data, "cold": self.cold}.get(tier)
            return DataDir(root).segment_path(part.id, first, "data") if root is not None else None

        return path_of

    def _cold_alone(self, fs: Fs, part: TopicPart, log: TopicLog) -> Iterator[StoredSegment]:
        """Yield the segments by the names of the files, as the module describes."""
        assert self.cold is not None
        layout = DataDir(self.cold)
        entries = [_entry(entry) for entry in part.segments]
        ends = [first + n for first, n, _, _, tier, _ in entries if tier in ("cold", "gone")]
        stayed = min((first for first, _, _, _, tier, _ in entries if tier == "hot"), default=log.head_seq + 1)
        names = fs.listdir(layout.topic_dir(part.id))
        firsts = [first for name in names if (first := parse_segment_name(name)) is not None and first < stayed]
        unflagged = b"".join(map(_unflagged, log.stored.all()))
        for first, behind in pairwise([*sorted(firsts), min(stayed, max(ends, default=0))]):
            if first < behind and behind > log.earliest_seq:
                path = layout.segment_path(part.id, first, "data")
                start = max(first, log.earliest_seq)
                yield StoredSegment(path, "cold", first, behind - 1, start, None, 0, True, unflagged=unflagged)


def topic_of_part(part: TopicPart, path_of: PathOf) -> StoredTopic:
    """Return the topic that a part is about. `path_of` names the `.data` of its segments. Raises SnapshotDamaged."""
    with _contradictions(part):
        log = TopicLog.load(part.log)
        return StoredTopic(part, list(_segments(part, log, path_of)), log, log.head_seq)


@contextmanager
def _contradictions(part: TopicPart) -> Iterator[None]:
    try:
        yield
    except (TypeError, ValueError) as error:
        raise SnapshotDamaged(f"the part of topic {part.name!r} contradicts itself: {error}") from error


def _segments(part: TopicPart, log: TopicLog, path_of: PathOf) -> Iterator[StoredSegment]:
    """Yield the segments that have a span; those behind them have still to be removed."""
    spans = log.stored.all()
    if len(spans) > len(part.segments):
        raise ValueError(f"{len(spans)} spans and {len(part.segments)} segments")
    for span, entry in zip(spans, part.segments, strict=False):
        first, n, data_bytes, sealed, tier, salt = _entry(entry)
        if not first <= span.first < span.end == first + n:
            raise ValueError(f"the segment at {first} is not that of the span at {span.first}")
        yield StoredSegment(
            path_of(first, tier),
            tier,
            first,
            span.end - 1,
            span.first + span.start,
            span.live,
            data_bytes,
            sealed,
            span.first_ts,
            span.last_ts,
            _unflagged(span),
            salt=salt,
        )


def _entry(entry: Sequence[Any]) -> tuple[int, int, int, bool, str, int | None]:
    """Return first seq, slots, bytes of data, True if it is sealed, the tier and the salt of a segment in a part.
    Raises ValueError."""
    if len(entry) not in ENTRY_FIELDS or entry[6] not in ("hot", "cold", "gone"):
        raise ValueError("a segment is not what it should be")
    salt = int(entry[7]) if len(entry) > 7 and entry[7] is not None else None
    return int(entry[0]), int(entry[1]), int(entry[2]), bool(entry[5]), str(entry[6]), salt


def _last_of(hole: LostRange) -> int:
    return hole.last


def _unflagged(span: Span) -> bytes:
    return little_endian(span.unflagged) if span.unflagged is not None else b""
