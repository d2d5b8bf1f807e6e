"""The reader of buckets (`path=s3://...`): what a base holds of topics, without a daemon and without its disk.

Responsible for the segments of a base as partitions, and for their bytes. How a partition's rows come out of the bytes
of a segment, and out of what the topic's part says of it, is that of files (`topics.spark.segments`). Rounds are not
read, so everything after the base's checkpoint is unknown.

Theory of operation. The driver chooses a base, pins it, and reads its pages: the parts of the topics, and for each
segment the names, sizes and hashes of its objects. A task gets these names, and fetches the bytes itself. Objects never
change and the pin keeps them, so there is one state only, and nothing is looked at twice. Fetched bytes must have the
hash that the base names, so a missing or changed object is an error that names it. Damage that the owner's file had
when it was uploaded is an error too, unless the base knows of the holes.

A record is deleted if the bitmap of the base says so, or the flag in its frame: the segment may have been uploaded
before the deletion or after it. With both, as many records are live as the part says, or fewer: deletions since.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import InputPartition

from topics.bucket.base_format import BlobRef
from topics.bucket.bucket_location import parse_location
from topics.bucket.object_names import base_name
from topics.bucket.offline.base_pages import BasePages, LoadedTopic, SegmentPlan
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.spark.bucket_access import OpenBucket, PlannedBase, opened
from topics.spark.errors import FilesError
from topics.spark.options import ReadOptions
from topics.spark.partition_fetch import FetchRequest
from topics.spark.segment_columns import NotDecodable, decode
from topics.spark.segments import (
    MAX_SEGMENT_BYTES,
    SHOWN,
    FilePart,
    FileTask,
    PartitionContent,
    PushingSegmentReader,
    SegmentReader,
    columns_needed,
    look,
    parts_of,
    rows,
    segment_reader,
    tasks,
)
from topics.storage.offline.stored_topics import StoredTopic, topic_of_part
from topics.storage.segments.packed_reads import unpacked
from topics.storage.snapshots.snapshot import SnapshotDamaged, decode_part

CHUNK_BYTES: Final = 8 << 20
"""A segment is fetched in pieces of this size."""

FETCHES: Final = 4
"""Pieces of a segment, or pages of a base, that are fetched at a time: one connection to S3 gives some 80 MB/s."""

MAX_FORMAT_BYTES: Final = 64 << 10


# ----------------------------------------------------------------- planning


class SegmentObjects(NamedTuple):
    """Where the bytes of a segment are. `name` is the object with them, and of an active segment, whose bytes are
    `pieces`, what messages call it. `deleted` is the bitmap of deletions."""

    name: str
    size: int
    hash: bytes
    pieces: tuple[BlobRef, ...]
    deleted: BlobRef | None
    unpacked: int = 0
    """The length of the unpacked form of a packed object; 0 for another one."""


@dataclass(frozen=True)
class BucketPart(FilePart):
    """A partition of one segment of a base."""

    objects: SegmentObjects | None = None


@dataclass(frozen=True)
class BucketTask(FileTask):
    """One task: parts of one topic that follow each other, in one base."""

    base: PlannedBase


class BaseTopics(NamedTuple):
    """Topics of a base by name, and the objects of their segments by topic id and first seq."""

    topics: dict[str, StoredTopic]
    objects: dict[tuple[int, int], SegmentObjects]


def topics_of(bucket: OpenBucket, number: int, wanted: Callable[[str], bool]) -> BaseTopics:
    """Return those topics of a base whose name is wanted. Raises FilesError."""
    base = bucket.base(number)
    found = BaseTopics({}, {})
    with bucket.errors(), ThreadPoolExecutor(FETCHES) as pool:
        pages = BasePages(bucket.reader, base)

        def load(page: tuple[int, BlobRef]) -> list[tuple[StoredTopic, list[SegmentPlan]]]:
            loaded = (_stored(topic, base_name(number), wanted) for topic in pages.load(*page))
            return [one for one in loaded if one is not None]

        for page in pool.map(load, base.body.pages):
            for topic, plans in page:
                found.topics[topic.name] = topic  # the later one of two instances counts
                for plan in plans:
                    found.objects[topic.id, plan.entry.first] = _objects_of(plan, base_name(number))
    return found


def _stored(
    loaded: LoadedTopic, base: str, wanted: Callable[[str], bool]
) -> tuple[StoredTopic, list[SegmentPlan]] | None:
    """The topic of an entry of a page; None for a deleted one, for a stage, and for one that is not wanted."""
    if loaded.part is None:
        return None
    names = {plan.entry.first: plan.name("data") for plan in loaded.plans}
    try:
        part = decode_part(loaded.part)
        if part.stage is not None or not wanted(part.name):
            return None
        return topic_of_part(part, lambda first, _tier: names.get(first)), loaded.plans
    except (SnapshotDamaged, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise BucketDamaged(base, f"the part of topic {loaded.entry.id} is malformed: {error}") from error


def _objects_of(plan: SegmentPlan, base: str) -> SegmentObjects:
    entry = plan.entry
    if entry.data is not None:
        name, size, digest, packed_from = plan.name("data"), entry.data.size, entry.data.hash, entry.data.unpacked
    else:
        name = f"{base}: the active segment from seq {entry.first} of topic id {plan.topic_id}"
        size, digest, packed_from = plan.size, b"", 0
    if max(size, packed_from) > MAX_SEGMENT_BYTES:
        what = f"segment {entry.first} of topic {plan.topic_id}"
        raise BucketDamaged(
            base, f"{what} has {max(size, packed_from)} bytes, and none has more than {MAX_SEGMENT_BYTES}"
        )
    return SegmentObjects(name, size, digest, tuple(entry.pieces), entry.deleted, packed_from)


# ----------------------------------------------------------------- one segment


def content_of(reader: BucketReader, objects: SegmentObjects, base: str, pool: ThreadPoolExecutor) -> bytes:
    """Fetch the `.data` of a segment, verify it, and return its unpacked form. Raises BucketDamaged, StoreError."""
    if objects.pieces:
        pieces = dict(reader.blobs(objects.pieces, base))
        return b"".join(pieces[ref] for ref in objects.pieces)

    def fetch(at: int) -> bytes:
        wanted = min(CHUNK_BYTES, objects.size - at)
        chunk = reader.range(objects.name, at, wanted)
        if len(chunk) != wanted:
            raise BucketDamaged(objects.name, f"it has {at + len(chunk)} bytes, and should have {objects.size}")
        return chunk

    data = b"".join(pool.map(fetch, range(0, objects.size, CHUNK_BYTES)))
    if hashlib.sha256(data).digest() != objects.hash:
        raise BucketDamaged(objects.name, "its hash does not match")
    return opened_data(data, objects)


def opened_data(data: bytes, objects: SegmentObjects) -> bytes:
    """Return the unpacked form of an object. Raises BucketDamaged."""
    try:
        return unpacked(data, objects.unpacked) if objects.unpacked else data
    except ValueError as error:
        raise BucketDamaged(objects.name, str(error)) from None


def deleted_seqs(bitmap: bytes, first: int) -> bytes:
    """The seqs whose bits are set, ascending, as `StoredSegment.unflagged`."""
    bits = pa.Array.from_buffers(pa.bool_(), 8 * len(bitmap), [None, pa.py_buffer(bitmap)])
    found = array("Q", (first + place for place in pc.indices_nonzero(bits).to_pylist()))
    return found.tobytes()


class ArrivedSegment(NamedTuple):
    """The verified bytes of a segment, and the bitmap of its deletions, empty for none."""

    data: bytes
    deleted: bytes


def arrived(bucket: OpenBucket, objects: SegmentObjects, base: str, pool: ThreadPoolExecutor) -> ArrivedSegment:
    """Fetch a segment: all of its bytes, at once. Raises FilesError."""
    with bucket.errors():
        data = content_of(bucket.reader, objects, base, pool)
        deleted = [objects.deleted] if objects.deleted is not None else []
        return ArrivedSegment(data, b"".join(bitmap for _, bitmap in bucket.reader.blobs(deleted, base)))


def shown(part: BucketPart, found: ArrivedSegment, wanted: Collection[str], url: str) -> PartitionContent:
    """Return the part of a partition that the bytes of its segment have. Raises FilesError."""
    segment, objects, data = part.segment, part.objects, found.data
    assert segment is not None
    assert objects is not None
    if found.deleted:
        segment = segment._replace(unflagged=_merged(segment.deleted, deleted_seqs(found.deleted, segment.first)))
    if not segment.sealed and len(data) > segment.data_bytes:
        data = data[: segment.data_bytes]
    try:
        decoded = decode(data, wanted, seqs=range(segment.first, segment.last + 1), salt=segment.salt)
        content = look(decoded, segment, part.after, part.last)
    except NotDecodable as error:
        raise FilesError(f"{url}/{objects.name}: {error}") from None
    if content.lost:
        places = ", ".join(f"{bad.start} to {bad.stop - 1}" for bad in decoded.bad[:SHOWN])
        more = " and more" if len(decoded.bad) > SHOWN else ""
        raise FilesError(f"{url}/{objects.name}: no valid frames at bytes {places}{more}")
    return PartitionContent(decoded, content.mask, [])


def _merged(some: Sequence[int], others: bytes) -> bytes:
    if not some:
        return others
    more: array[int] = array("Q")
    more.frombytes(others)
    return array("Q", sorted({*some, *more})).tobytes()


def _arriving(bucket: OpenBucket, task: BucketTask) -> Iterator[tuple[FilePart, ArrivedSegment | None]]:
    """The parts of a task with the bytes of their segments. The bytes of a part arrive while the one before it is
    worked on. Raises FilesError."""
    planned = task.base
    base = base_name(planned.number)
    with ThreadPoolExecutor(FETCHES) as pool, ThreadPoolExecutor(1) as ahead:

        def begun(part: FilePart | None) -> Future[ArrivedSegment] | None:
            nonlocal planned
            if not isinstance(part, BucketPart) or part.objects is None:
                return None
            planned = bucket.renewed(planned)
            return ahead.submit(arrived, bucket, part.objects, base, pool)

        coming = begun(task.parts[0])
        for part, following in zip_longest(task.parts, task.parts[1:]):
            found = coming.result() if coming is not None else None
            coming = begun(following)
            yield part, found


# ----------------------------------------------------------------- for Spark


def reader_of_path(options: ReadOptions) -> SegmentReader:
    """Return the reader of `path`: a bucket or a directory of files, as its `FORMAT` says. Raises OptionError."""
    options.check_batch()
    options = resolved(options)
    assert options.path is not None
    if "://" not in options.path:
        options.check_directory()
        return segment_reader(options)
    options.check_bucket()
    return PushingBucketSegmentReader(options) if options.pushdown else BucketSegmentReader(options)


def resolved(options: ReadOptions) -> ReadOptions:
    """The same options, where `path` is a URL if a bucket is there, and a path of the file system if it is none."""
    path = options.path
    assert path is not None
    if path.startswith("file://"):
        directory = parse_location(path, {}, "path").prefix
        return options if _is_bucket(directory, otherwise=True) else replace(options, path=directory)
    if "://" not in path and _is_bucket(path, otherwise=False):
        return replace(options, path=f"file://{quote(str(Path(path).absolute()))}")
    return options


def _is_bucket(directory: str, *, otherwise: bool) -> bool:
    """Return True if the `FORMAT` in a directory is that of a bucket; `otherwise` if there is none that can be read."""
    with suppress(OSError, ValueError), Path(directory, "FORMAT").open("rb") as file:
        found = json.loads(file.read(MAX_FORMAT_BYTES))
        return isinstance(found, dict) and "bucket" in found
    return otherwise


class BucketSegmentReader(SegmentReader):
    """Without push-down."""

    def partitions(self) -> Sequence[InputPartition]:
        """The plan, as of a base, which is pinned. Raises FilesError, and LookupError for a topic that is named and not
        there."""
        options, scope = self._options, self._scope
        if scope.is_nothing:
            return []
        bucket = self._bucket()
        number = bucket.choose(options.as_of)
        planned = bucket.pinned(number)
        parts: list[FilePart] = []
        try:
            found = topics_of(bucket, number, self._is_wanted)
            parts = [
                BucketPart(**vars(part), objects=found.objects[part.epoch, part.segment.first])
                if part.segment is not None
                else part
                for part in parts_of(found.topics, options, scope, base_name(number))
            ]
        finally:
            if not parts:
                bucket.unpin(planned)
        return [BucketTask(task.parts, planned) for task in tasks(parts, options.records_per_partition)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one partition. Raises DataLoss and FilesError."""
        if not isinstance(partition, BucketTask):
            return  # Spark's own, where there is none
        wanted = FetchRequest.by(self._options, self._scope)
        bucket = self._bucket()
        for part, found in _arriving(bucket, partition):
            content = PartitionContent(None, b"", [])
            if isinstance(part, BucketPart) and found is not None:
                content = shown(part, found, columns_needed(wanted), bucket.url)
            yield from rows(content, part, wanted)

    def _bucket(self) -> OpenBucket:
        assert self._options.path is not None
        return opened(self._options.path, self._options.pin_ms)


class PushingBucketSegmentReader(BucketSegmentReader, PushingSegmentReader):
    """With push-down (`pushdown=true`)."""
