"""The reader of files (`path`): what a directory holds of its topics as of their last checkpoint, without a daemon.

Responsible for the partitions, which are whole segments, and for which records of a segment are shown: the topic's part
goes before the file. `topics.storage.offline.stored_topics` reads parts, `topics.spark.segment_columns` reads frames.

Theory of operation. The range of every topic is fixed when it is planned, by the parts of that moment: for each segment
the run of seqs of one instance that it holds, and the losses that begin in it. A task has one segment or, where they
are small, several, and goes from one to the next. It reads all of a segment's `.data` before it returns a row of it. It
shows the records that are neither below the front, nor deleted, nor in a hole. It counts them: if a segment has not as
many live records as its part says, something is wrong.

A daemon may work on the directory meanwhile. It never changes bytes but delete flags, and it replaces and removes files
only when the part on disk needs them no more. So if a task finds something wrong (a file that is gone, records that are
not there), it looks for the topic's part again. If there is a newer one, its range is planned anew by that, some times
over; the newer part decides about records that have gone since. If there is none, the files are right: fewer live
records are deletions that a checkpoint has written and not yet counted, and bytes that do not verify are lost. A range
is always that of one checkpoint, the planned one or a later one; two ranges may be of two.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import lt
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from topics.filters.record_filter import parse_filter
from topics.spark import pushdown
from topics.spark.column_filter import columns_asked, matching
from topics.spark.errors import DataLoss, FilesError
from topics.spark.options import ReadOptions
from topics.spark.partition_fetch import BATCH_ROWS, FetchRequest, gap_batch
from topics.spark.plan import KnownTopic, SeqGap, beginning
from topics.spark.pushdown import EVERYTHING, QueryScope
from topics.spark.schema import arrow_schema
from topics.spark.segment_columns import TYPES, BadFrames, DecodedColumns, NotDecodable, decode
from topics.storage.files.datadir import DataDirError
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.files.fs import Fs, OsFs
from topics.storage.offline.stored_topics import LostRange, StoredSegment, StoredTopic, TopicDirectory
from topics.storage.segments.data_files import DataFiles
from topics.storage.segments.segment_scan import layout_of
from topics.storage.snapshots.snapshot import SnapshotDamaged

log = logging.getLogger(__name__)

LOOKS: Final = 20
"""Parts that a task tries before it gives up: a daemon writes one every few seconds, and a look takes much less."""
MAX_SEGMENT_BYTES: Final = (1 << 30) + (64 << 20)
"""The most that a `.data` has, unpacked: `TOPICS_SEGMENT_MAX_BYTES` and a single record are at most 1 GiB; the rest is
for the origins of a million copies. A packed file that says more is not read."""
SHOWN: Final = 5
"""Ranges of bad bytes that an error lists."""
CORRUPT: Final = "corrupt"


@dataclass(frozen=True)
class FilePart:
    """The seqs `(after, last]` of one instance of a topic, the segment that they are in, and the losses that begin in
    there; these may reach further. A part without a segment is about losses only."""

    topic: str
    epoch: int
    after: int
    last: int
    segment: StoredSegment | None
    lost: tuple[LostRange, ...] = ()


# ----------------------------------------------------------------- planning


def bounds(topic: StoredTopic, options: ReadOptions, scope: QueryScope = EVERYTHING) -> tuple[int, int]:
    """After which seq a query's range of a topic begins, and its last seq.

    Times never decrease, so segments that are too old or too young are left out at the ends. A gap between them and the
    rest may hold what was asked for, so it stays.
    """
    known = KnownTopic(topic.id, topic.head_seq, topic.earliest_seq)
    after = max(beginning(options.starting.of(topic.name), known), scope.first - 1)
    end = options.ending.of(topic.name)
    last = min(topic.head_seq if end == "latest" else int(end), topic.head_seq, scope.last)
    if scope.from_ts is not None:
        too_old = [segment.last for segment in topic.segments if segment.last_ts < scope.from_ts]
        after = max(after, *too_old, 0)
    if scope.to_ts is not None:
        too_young = [segment.start - 1 for segment in topic.segments if segment.first_ts > scope.to_ts]
        last = min(last, *too_young, topic.head_seq)
    return after, last


def plan(topic: StoredTopic, after: int, last: int) -> list[FilePart]:
    """The partitions of a range, ascending. Raises FilesError if some of it is in a cold directory that was not
    given."""
    losses = topic.losses(after, last)
    parts: list[FilePart] = []
    for segment in topic.segments:
        first, end = max(after + 1, segment.start), min(last, segment.last)
        if first > end or segment.live == 0:
            continue
        if segment.path is None:
            which = f"seqs {segment.first} to {segment.last} of topic {topic.name!r}"
            raise FilesError(f"{which} are in the cold directory; `coldPath` has to say where that is")
        here = [lost for lost in losses if lost.first <= end]
        losses = losses[len(here) :]
        parts.append(FilePart(topic.name, topic.id, first - 1, end, segment, tuple(here)))
    if losses:
        parts.append(FilePart(topic.name, topic.id, last, last, None, tuple(losses)))
    return parts


def parts_of(found: Mapping[str, StoredTopic], options: ReadOptions, scope: QueryScope, moment: str) -> list[FilePart]:
    """The partitions of a query over these topics, which are as of `moment`. Raises LookupError for a topic that is
    named in the options and not there, FilesError."""
    for name in options.topics or ():
        if scope.reads(name) and name not in found:
            raise LookupError(f"there is no topic {name!r} in {options.path} as of {moment}")
    order = found if options.topics is None else [name for name in options.topics if name in found]
    parts: list[FilePart] = []
    for name in order:
        parts += plan(found[name], *bounds(found[name], options, scope))
    return parts


@dataclass(frozen=True)
class FileTask(InputPartition):
    """One task: parts of one topic that follow each other."""

    parts: tuple[FilePart, ...]


def tasks(parts: Iterable[FilePart], size: int) -> Iterator[FileTask]:
    """The parts, as many in a task as have at most `size` seqs together, and one at least.

    Spark takes some 70 ms of processor time for a task of Python that does nothing, in which 40,000 records are read.
    """
    waiting: list[FilePart] = []
    count = 0
    for part in parts:
        n = part.last - part.after
        if waiting and (count + n > size or part.topic != waiting[0].topic):
            yield FileTask(tuple(waiting))
            waiting, count = [], 0
        waiting.append(part)
        count += n
    if waiting:
        yield FileTask(tuple(waiting))


# ----------------------------------------------------------------- one segment


class FileContent(NamedTuple):
    """The content of a range in a file: its frames, those of them that are to be seen (1 for each), and the losses in
    the range beyond the known holes.

    `doubt` names the difference from the part, None if there is none.
    """

    rows: DecodedColumns
    mask: bytes
    lost: list[LostRange]
    doubt: str | None


def look(rows: DecodedColumns, segment: StoredSegment, after: int, last: int) -> FileContent:
    """Lay what the part says over what the file says. Raises NotDecodable if frames are not in order."""
    seqs = rows.seq
    if not all(map(lt, seqs, seqs[1:])):
        raise NotDecodable("seqs that do not ascend")
    begin, end = bisect_left(seqs, segment.start), bisect_left(seqs, segment.last + 1)
    live = bytearray(rows.deleted.translate(_LIVE))
    live[:begin] = bytes(begin)
    live[end:] = bytes(len(live) - end)
    for seq in segment.deleted:
        at = bisect_left(seqs, seq)
        if at < len(seqs) and seqs[at] == seq:
            live[at] = 0
    for hole in segment.lost:
        a, b = bisect_left(seqs, hole.first), bisect_left(seqs, hole.last + 1)
        live[a:b] = bytes(b - a)
    alive = live.count(1)
    doubt, lost = None, []
    if alive != (alive if segment.live is None else segment.live) or (segment.live is None and rows.bad):
        doubt = f"{alive} live records, and the checkpoint says {segment.live}"
        if segment.live is not None and alive > segment.live:
            raise NotDecodable(f"{doubt}: deleted ones have come back")
        lost = _lost_bytes(rows, segment, after, last)
    a, b = bisect_left(seqs, after + 1), bisect_left(seqs, last + 1)
    live[:a] = bytes(a)
    live[b:] = bytes(len(live) - b)
    return FileContent(rows, bytes(live), lost, doubt)


def _lost_bytes(rows: DecodedColumns, segment: StoredSegment, after: int, last: int) -> list[LostRange]:
    """The seqs of a range that bad bytes stand for: those between the frames around them, less known holes.

    Raises NotDecodable if more frames are missing than records have died, and no bad bytes explain it.
    """
    seqs, found = rows.seq, []
    if not rows.bad and segment.live is not None:
        there = bisect_left(seqs, segment.last + 1) - bisect_left(seqs, segment.start)
        if there < segment.live:
            raise NotDecodable(f"{there} records, and the checkpoint says that {segment.live} are live")
    for bad in rows.bad:
        begin = seqs[bad.row - 1] + 1 if bad.row else segment.first
        end = seqs[bad.row] - 1 if bad.row < len(seqs) else segment.last
        begin, end = max(begin, segment.start, after + 1), min(end, segment.last, last)
        if begin <= end:
            found.append(LostRange(begin, end, CORRUPT))
    return without(found, segment.lost)


def without(losses: Sequence[LostRange], known: Sequence[LostRange]) -> list[LostRange]:
    """Return the parts of `losses` that are in none of the known ones. Both ascend, each without overlaps."""
    rest: list[LostRange] = []
    for lost in losses:
        first = lost.first
        for other in known:
            if other.last < first or other.first > lost.last:
                continue
            if other.first > first:
                rest.append(LostRange(first, other.first - 1, lost.reason))
            first = other.last + 1
        if first <= lost.last:
            rest.append(LostRange(first, lost.last, lost.reason))
    return rest


_LIVE: Final = bytes([1, 0]) + bytes(254)
"""Of what `DecodedColumns.deleted` holds."""


# ----------------------------------------------------------------- one task


class PartitionContent(NamedTuple):
    """The content of a partition: frames and which of them are to be seen, None for no frames at all; losses that the
    plan did not know of; and the damage of the file, if it is their cause."""

    rows: DecodedColumns | None
    mask: bytes
    lost: list[LostRange]
    damage: str | None = None


def fetch(fs: Fs, directory: TopicDirectory, part: FilePart, wanted: Collection[str]) -> PartitionContent:
    """Read a partition with a segment; see the module. Holds the whole file, and its columns.

    Raises FilesError, and OSError if the disk does not answer.
    """
    segment = part.segment
    assert segment is not None
    extra: list[LostRange] = []
    for _ in range(LOOKS):
        content, trouble = _attempt(fs, segment, part, wanted)
        if trouble is None and content is not None:
            return content._replace(lost=_merged(content.lost, extra))
        newer = _look_again(fs, directory, part)
        found = [one for one in newer.segments if one.last > part.after and max(one.start, one.first) <= part.last]
        if segment in found:
            if content is None:
                raise FilesError(trouble)
            return content._replace(lost=_merged(content.lost, extra))
        planned = [*part.lost, *(part.segment.lost if part.segment is not None else ())]
        extra = without(newer.losses(part.after, min(part.last, newer.head_seq)), sorted(planned))
        live = [one for one in found if one.live != 0]
        if not live:
            return PartitionContent(None, b"", extra)
        if len(live) > 1:
            raise FilesError(f"the segments of topic {part.topic!r} were divided anew: what no daemon does")
        segment = live[0]
    raise FilesError(f"{segment.path} was replaced {LOOKS} times while it was read")


def _look_again(fs: Fs, directory: TopicDirectory, part: FilePart) -> StoredTopic:
    try:
        newer = directory.topic(fs, part.epoch)
    except SnapshotDamaged as error:
        raise FilesError(str(error)) from None
    if newer is None:
        raise FilesError(f"topic {part.topic!r} (epoch {part.epoch}) was deleted while it was read")
    return newer


def _attempt(
    fs: Fs, segment: StoredSegment, part: FilePart, wanted: Collection[str]
) -> tuple[PartitionContent | None, str | None]:
    """Return the content of a segment's file, and a reason to doubt it; None if it cannot be shown at all."""
    if segment.path is None:
        which = f"seqs {part.after + 1} to {part.last} of topic {part.topic!r}"
        return None, f"{which} have gone to the cold directory; `coldPath` has to say where that is"
    files = DataFiles(fs)
    try:
        data = files.read(segment.path, 0, _bytes_of(files, segment.path, segment))
    except NotDecodable as error:
        return None, f"{segment.path}: {error}"
    except FileNotFoundError:
        missing = f"{segment.path} is missing"
        if segment.tier == "cold":
            return None, missing  # the store is away, or somebody has emptied it: no reason to give the records up
        lost = without([LostRange(max(part.after + 1, segment.start), part.last, CORRUPT)], segment.lost)
        return PartitionContent(None, b"", lost, missing), missing
    try:
        rows = decode(data, wanted, seqs=range(segment.first, segment.last + 1), salt=segment.salt)
        if _is_shortened(data, segment):
            rows.bad.append(BadFrames(len(data), segment.data_bytes, len(rows.seq)))
        shown = look(rows, segment, part.after, part.last)
    except NotDecodable as error:
        return None, f"{segment.path}: {error}"
    damage = None
    if shown.lost:
        places = ", ".join(f"{bad.start} to {bad.stop - 1}" for bad in rows.bad[:SHOWN])
        damage = f"{segment.path}: no valid frames at bytes {places}{' and more' if len(rows.bad) > SHOWN else ''}"
    return PartitionContent(rows, shown.mask, shown.lost, damage), shown.doubt


def _bytes_of(files: DataFiles, path: str, segment: StoredSegment) -> int:
    """Return how many bytes of a segment's file are read: those that the part counts; all if another file has replaced
    it since, or may have. No more is unpacked, even if a packed file says that it holds more. Raises NotDecodable if
    that is more than a segment has; FileNotFoundError, OSError."""
    may_be_another = segment.salt is None or _is_another(files.read(path, 0, FILE_HEADER_BYTES), segment)
    length = files.length(path) if segment.sealed and may_be_another else segment.data_bytes
    if length > MAX_SEGMENT_BYTES:
        raise NotDecodable(f"it says that it has {length} bytes, and no segment has more than {MAX_SEGMENT_BYTES}")
    return length


def _is_another(data: bytes, segment: StoredSegment) -> bool:
    """Return True if a file that begins with `data` is not the one that the part knows."""
    layout = layout_of(data[:FILE_HEADER_BYTES], segment.first, segment.salt)
    return layout.header is not None and layout.salt != segment.salt


def _is_shortened(data: bytes, segment: StoredSegment) -> bool:
    """Return True if a file is shorter than its part says, and is not another one that has replaced it since."""
    return len(data) < segment.data_bytes and not _is_another(data, segment)


def _merged(one: Sequence[LostRange], other: Sequence[LostRange]) -> list[LostRange]:
    return sorted([*without(one, other), *other])


def rows(content: PartitionContent, part: FilePart, wanted: FetchRequest) -> Iterator[pa.RecordBatch]:
    """The rows of a partition in the order of their seqs, gaps among them. Raises DataLoss."""
    table, seqs = _selected(content, part, wanted)
    at = 0
    for lost in sorted([*part.lost, *content.lost]):
        if wanted.fail_on_data_loss:
            cause = FilesError(content.damage) if lost in content.lost and content.damage is not None else None
            raise DataLoss(part.topic, *lost) from cause
        why = f": {content.damage}" if lost in content.lost and content.damage is not None else ""
        log.warning("topic %s: the records %s to %s are gone (%s)%s", part.topic, *lost, why)
        if wanted.tombstones:
            behind = bisect_left(seqs, lost.first)
            if table is not None:
                yield from table.slice(at, behind - at).to_batches(BATCH_ROWS)
            at = behind
            yield gap_batch(part.topic, SeqGap(*lost), wanted.columns)
    if table is not None:
        yield from table.slice(at).to_batches(BATCH_ROWS)


def _selected(content: PartitionContent, part: FilePart, wanted: FetchRequest) -> tuple[pa.Table | None, Sequence[int]]:
    """The rows that are to be seen, in the shape of the schema, and their seqs; None for none."""
    count = content.mask.count(1)
    if content.rows is None or not count:
        return None, ()
    found, seqs = content.rows, content.rows.seq
    table = pa.table(dict(found.columns))
    if count < len(content.mask):
        first, behind = content.mask.index(1), content.mask.rindex(1) + 1
        if behind - first == count:
            table, seqs = table.slice(first, count), seqs[first:behind]
        else:
            table, seqs = table.filter(_booleans(content.mask)), seqs.__class__("Q", compress(seqs, content.mask))
    asked = _asked_for(table, wanted)
    if asked is not None:
        table = table.filter(asked)
        seqs = table.column("seq").to_pylist()
    schema = arrow_schema(wanted.columns)
    arrays = [_column(table, field, part.topic) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema), seqs


def _asked_for(table: pa.Table, wanted: FetchRequest) -> pa.ChunkedArray | None:
    """Which rows the options and the filters leave; None for all."""
    scope = wanted.scope
    conditions: list[pa.Array | pa.ChunkedArray] = []
    if wanted.nodes:
        conditions.append(pc.invert(pc.is_in(table.column("node"), value_set=pa.array(wanted.nodes, pa.string()))))
    if scope.filter is not None:
        conditions.append(matching(parse_filter(scope.filter), table))
    for bound, holds in ((scope.from_ts, pc.greater_equal), (scope.to_ts, pc.less_equal)):
        if bound is not None:
            conditions.append(holds(table.column("ts"), pa.scalar(bound * 1000, TYPES["ts"])))
    asked = None
    for condition in conditions:
        asked = condition if asked is None else pc.and_(asked, condition)
    return asked


def _column(table: pa.Table, field: pa.Field, topic: str) -> pa.Array | pa.ChunkedArray:
    if field.name == "topic":
        return pa.repeat(pa.scalar(topic, pa.string()), table.num_rows)
    return table.column(field.name) if field.name in TYPES else pa.nulls(table.num_rows, field.type)


def _booleans(mask: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.uint8(), len(mask), [None, pa.py_buffer(mask)]).cast(pa.bool_())


# ----------------------------------------------------------------- for Spark


def segment_reader(options: ReadOptions) -> SegmentReader:
    """The reader for these options. Raises OptionError."""
    options.check_batch()
    return PushingSegmentReader(options) if options.pushdown else SegmentReader(options)


class SegmentReader(DataSourceReader):
    """Without push-down: Spark refuses a reader that has `pushFilters` unless its own setting is on."""

    def __init__(self, options: ReadOptions) -> None:
        assert options.path is not None
        self._options = options
        self._scope = QueryScope.of(options)

    def partitions(self) -> Sequence[InputPartition]:
        """The plan, as of the last checkpoint. Raises FilesError, and LookupError for a topic that is named and not
        there."""
        options, scope = self._options, self._scope
        if scope.is_nothing:
            return []
        parts = parts_of(self._topics(), options, scope, "its last checkpoint")
        return list(tasks(parts, options.records_per_partition))

    def _topics(self) -> dict[str, StoredTopic]:
        try:
            return self._directory().topics(OsFs(), self._is_wanted)
        except (DataDirError, SnapshotDamaged) as error:
            raise FilesError(f"path: {error}") from None

    def _is_wanted(self, topic: str) -> bool:
        options = self._options
        named = topic in options.topics if options.topics is not None else topic.startswith(options.prefix or "")
        return named and self._scope.reads(topic)

    def _directory(self) -> TopicDirectory:
        assert self._options.path is not None
        return TopicDirectory.found(OsFs(), self._options.path, self._options.cold_path)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Raises DataLoss, FilesError and OSError."""
        if not isinstance(partition, FileTask):
            return  # Spark's own, where there is none
        wanted = FetchRequest.by(self._options, self._scope)
        directory = self._directory()
        for part in partition.parts:
            content = PartitionContent(None, b"", [])
            if part.segment is not None:
                content = fetch(OsFs(), directory, part, columns_needed(wanted))
            yield from rows(content, part, wanted)


class PushingSegmentReader(SegmentReader):
    """With push-down (`pushdown=true`)."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take the filters that the reader can apply, and return those that Spark has to apply."""
        self._scope, rest = pushdown.narrowed(self._scope, filters, exact=not self._options.tombstones)
        return rest


def columns_needed(wanted: FetchRequest) -> set[str]:
    """The columns that have to be decoded; `seq` always is."""
    scope = wanted.scope
    needed = {"seq", *wanted.columns} & TYPES.keys()
    if wanted.nodes:
        needed.add("node")
    if scope.filter is not None:
        needed |= columns_asked(parse_filter(scope.filter))
    if scope.from_ts is not None or scope.to_ts is not None:
        needed.add("ts")
    return needed
