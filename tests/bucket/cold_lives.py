"""Lives on a simulated disk whose cold store is a simulated bucket (`docs/design/bucket.md` section 8)."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import replace

from tests.bucket.simulated_objects import SimObjects
from tests.simulation.disk import SimFs
from tests.simulation.segment_lives import SMALL
from tests.simulation.world import ROOT
from topics.bucket.bucket_segments import BucketSegments, OwnBucket
from topics.bucket.object_names import SegmentKind, SegmentName
from topics.bucket.object_names import segment_name as object_name
from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.segments.packed_format import PACK_MAGIC
from topics.storage.segments.segment_pointer import PointedFile, SegmentPointer
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import DirectorySegmentStore

IN_BUCKET = replace(SMALL, cold_dir=None)
URL = "s3://cold/lives"
KINDS: tuple[SegmentKind, ...] = ("data", "idx", "tags")


class ColdBucket:
    """A bucket that seems to have every sealed segment: its objects are put when somebody asks for it first, as a base
    would have put them. `World.segments` is `of`."""

    def __init__(self) -> None:
        self.objects = SimObjects()
        self.made: list[BucketSegments] = []
        """The cold store of each life."""
        self.has_nothing = False
        """True: no base has been made yet."""
        self._epochs = itertools.count(1)

    def of(self, fs: SimFs) -> BucketSegments:
        """The cold store of a life."""
        segments = BucketSegments(fs, ROOT, lambda url: self.objects)
        own = OwnBucket("b", URL, _Base(self, fs, next(self._epochs)).find)
        segments.own = lambda: own
        self.made.append(segments)
        return segments


class _Base:
    """What the newest base of one life seems to have."""

    def __init__(self, bucket: ColdBucket, fs: SimFs, epoch: int) -> None:
        self._bucket = bucket
        self._hot = DirectorySegmentStore(fs, ROOT)
        self._epoch = epoch
        self._known: dict[tuple[int, int, int], SegmentPointer | None] = {}

    def find(self, topic_id: int, first: int, salt: int) -> SegmentPointer | None:
        if self._bucket.has_nothing:
            return None
        key = (topic_id, first, salt)
        if key not in self._known:
            self._known[key] = self._put(*key)
        return self._known[key]

    def _put(self, topic_id: int, first: int, salt: int) -> SegmentPointer | None:
        files: dict[str, PointedFile] = {}
        for kind in KINDS:
            name = segment_name(first, kind)
            if not self._hot.exists(topic_id, name):
                return None
            blob = self._hot.read_stored(topic_id, name, 0, 1 << 31)
            length = self._hot.length(topic_id, name)
            head = self._hot.read_range(topic_id, name, 0, FILE_HEADER_BYTES)
            if kind == "data" and layout_of(head, first, None).salt != salt:
                return None
            self._bucket.objects.put_new(object_name(SegmentName(topic_id, first, self._epoch, salt), kind), blob)
            files[kind] = PointedFile(
                len(blob), hashlib.sha256(blob).digest(), length if blob.startswith(PACK_MAGIC) else 0
            )
        return SegmentPointer("b", URL, self._epoch, salt, **files)
