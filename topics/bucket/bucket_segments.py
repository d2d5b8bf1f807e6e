"""`BucketSegments`: the cold store of a daemon without a cold directory: segments in objects of a bucket
(`docs/design/bucket.md` section 8).

The objects are those of bases, and nothing is written to the bucket here. A segment is in this store if there is a
*pointer* to it in the data directory (`segment_pointer`), which says where its objects are: in the bucket that the
daemon writes to, or in one that the directory was restored from. So a listing, a length or a removal is a look at the
data directory, and only `read_range` asks a bucket. A pointer names the bucket by id and URL. The URL counts, unless
the id is that of the daemon's own bucket (`own`), which may have been moved.

Callers have put neighbouring records together; who reads `.data` from front to back gets more at a time
(`read_windows`), which is safe because objects never change. `ColdStore` bounds how long a read may take, and how many
may hang. So the stores here are not `BoundedObjects`.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from topics.bucket.bucket_location import BucketLocationError, open_objects, parse_location
from topics.bucket.object_names import SegmentKind, SegmentName
from topics.bucket.object_names import segment_name as object_name
from topics.bucket.object_store import ObjectMissing, ObjectStore, StoreError, StoreErrorKind
from topics.storage.cache.read_windows import ReadWindows
from topics.storage.files.datadir import parse_segment_file, segment_name
from topics.storage.files.fs import Fs
from topics.storage.segments.packed_reads import PackedReads
from topics.storage.segments.segment_pointer import (
    BadPointer,
    PointedFile,
    SegmentPointer,
    decode_pointer,
    encode_pointer,
)
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MOST_KNOWN: Final = 10_000
"""Pointers that are kept in memory. At the bound all are forgotten."""

MOST_STORES: Final = 16
"""Buckets that pointers of one directory may be in: those that it was ever restored from, or has used."""

MAX_POINTER_BYTES: Final = 16 << 10

REMAKE_S: Final = 30.0
"""After so long it is tried again to make a pointer anew (s)."""

_NUMBERS: Final = {
    StoreErrorKind.TIMEOUT: errno.ETIMEDOUT,
    StoreErrorKind.BUSY: errno.EAGAIN,
    StoreErrorKind.THROTTLED: errno.EAGAIN,
    StoreErrorKind.UNAVAILABLE: errno.EAGAIN,
    StoreErrorKind.CONFLICT: errno.EAGAIN,
    StoreErrorKind.DENIED: errno.EACCES,
}
"""What the errors of a store are to those who know files only."""


class OwnBucket:
    """The bucket that the daemon writes to, as far as it is open. `find` returns the pointer to a segment that the
    newest base has, by topic id, first seq and salt; it is called in the loop. `objects` is the store, whose calls end;
    None for that at `url`."""

    def __init__(
        self,
        id: str,
        url: str,
        find: Callable[[int, int, int], SegmentPointer | None],
        objects: ObjectStore | None = None,
    ) -> None:
        self.id = id
        self.url = url
        self.find = find
        self.objects = objects


def opener(environ: Mapping[str, str], timeout_s: float) -> Callable[[str], ObjectStore]:
    """Return what opens the bucket at a URL, with the credentials of these variables. It raises OSError."""

    def open_at(url: str) -> ObjectStore:
        try:
            return open_objects(parse_location(url, environ, f"the bucket {url}"), timeout_s)
        except BucketLocationError as error:
            raise OSError(errno.EINVAL, str(error)) from error
        except StoreError as error:
            raise OSError(_NUMBERS.get(error.kind, errno.EIO), error.sentence) from error

    return open_at


class BucketSegments:
    """A `SegmentStore`, and an `ObjectSegments`. May be called from several threads."""

    def __init__(self, fs: Fs, root: str, open_at: Callable[[str], ObjectStore]) -> None:
        """`root` is the data directory; `open_at` opens the bucket at a URL, or raises OSError."""
        self.own: Callable[[], OwnBucket | None] = lambda: None
        """Returns the daemon's own bucket, while it is open."""
        self.remake: Callable[[int, int], SegmentPointer | None] = lambda topic_id, first: None
        """Returns what a pointer that cannot be read has said, by topic id and first seq; None if nobody knows."""
        self.remade = 0
        """Pointers that were made anew."""
        self.reads = 0
        """Ranges that the buckets were asked for."""
        self.read_bytes = 0
        self.windows = ReadWindows()
        """What was read ahead of `.data`."""
        self._hot = DirectorySegmentStore(fs, root)
        self._packed = PackedReads()
        self._open_at = open_at
        self._lock = threading.Lock()
        self._stores: dict[str, ObjectStore] = {}
        self._known: dict[tuple[int, int], SegmentPointer] = {}
        self._not_remade: dict[tuple[int, int], float] = {}
        """When it was tried last to make a pointer anew (`time.monotonic`)."""
        self._unchanged: set[tuple[int, int]] = set()
        """Pointers that are being made anew, and were neither written nor removed meanwhile."""
        self._changes = 0
        """How many pointers were written or removed."""

    def __repr__(self) -> str:
        return "<BucketSegments>"

    # -- pointers ----------------------------------------------------------------------------------------------------

    def find(self, topic_id: int, first: int, salt: int) -> SegmentPointer | None:
        """Return the pointer to a segment that the daemon's own bucket has for as long as the segment exists; None if
        it has none yet. Asks nobody: for the loop."""
        own = self.own()
        return own.find(topic_id, first, salt) if own is not None else None

    def verify(self, topic_id: int, first: int, pointer: SegmentPointer) -> None:
        """Raise OSError unless the daemon's own bucket has the `.data` of a pointer that `find` has returned, of the
        length that it says. The last byte is read. Blocking, as long as calls of the store last."""
        own = self.own()
        if own is None or own.id != pointer.bucket:
            raise OSError(errno.EAGAIN, "the bucket is not open")
        wanted = object_name(SegmentName(topic_id, first, pointer.epoch, pointer.salt), "data")
        objects = own.objects or self.store_at(own.url)
        try:
            found = objects.get_range(wanted, max(pointer.data.size - 1, 0), 2)
        except ObjectMissing:
            raise OSError(errno.EIO, f"the newest base in {own.url} names {wanted}, which is missing") from None
        except StoreError as error:
            raise OSError(_NUMBERS.get(error.kind, errno.EIO), f"{own.url}: {error.sentence}") from error
        if len(found) != min(pointer.data.size, 1):
            raise OSError(errno.EIO, f"{wanted} in {own.url} does not have {pointer.data.size} bytes")

    def point(self, topic_id: int, first: int, pointer: SegmentPointer) -> None:
        """Have a segment in this store, durably. Raises OSError. Blocking."""
        try:
            self._hot.put(topic_id, segment_name(first, "object"), [encode_pointer(pointer)])
        finally:
            self._changed(topic_id, first)

    def pointer(self, topic_id: int, first: int) -> SegmentPointer:
        """Return the pointer to a segment. Raises FileNotFoundError without one, OSError for a damaged one.
        Blocking."""
        with self._lock:
            known, changes = self._known.get((topic_id, first)), self._changes
        if known is not None:
            return known
        name = segment_name(first, "object")
        try:
            blob = self._hot.read_range(topic_id, name, 0, MAX_POINTER_BYTES)
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT,
                f"no file {name} of topic {topic_id:016x} says in which bucket the segment is; if it is in a cold "
                "directory, start with TOPICS_COLD_DIR",
            ) from None
        try:
            found = decode_pointer(blob)
        except BadPointer as error:
            raise OSError(errno.EIO, f"the file {name} of topic {topic_id:016x} is damaged: {error}") from error
        with self._lock:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            if changes == self._changes:  # otherwise it may be the one before
                self._known[topic_id, first] = found
        return found

    def _changed(self, topic_id: int, first: int) -> None:
        with self._lock:
            self._known.pop((topic_id, first), None)
            self._unchanged.discard((topic_id, first))
            self._changes += 1

    def forget(self, topic_id: int, first: int) -> None:
        """Remove a segment from this store, durably. The objects stay. Raises OSError. Blocking."""
        try:
            self._hot.delete(topic_id, segment_name(first, "object"))
        finally:
            self._changed(topic_id, first)

    def read_anew(self, topic_id: int, first: int) -> None:
        """Forget the bytes that were read of a segment, which may not verify: the next reads ask the bucket. Raises
        FileNotFoundError, OSError. Blocking."""
        pointer = self.pointer(topic_id, first)
        wanted = object_name(SegmentName(topic_id, first, pointer.epoch, pointer.salt), "data")
        self.windows.forget(wanted)
        self._packed.forget(f"{pointer.bucket} {wanted}")

    def is_own(self, pointer: SegmentPointer) -> bool:
        """Return True if a pointer is into the bucket that the daemon writes to."""
        own = self.own()
        return own is not None and own.id == pointer.bucket

    # -- the store ---------------------------------------------------------------------------------------------------

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        raise OSError(errno.EROFS, "the objects of a bucket do not change: segments get there by bases")

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        raise OSError(errno.EROFS, "the objects of a bucket do not change: deletions stay in the part")

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        self._mend(topic_id, name)
        first, pointer, kind, file = self._file(topic_id, name)
        if not file.unpacked:
            return self.read_stored(topic_id, name, offset, length)
        read = partial(self.read_stored, topic_id, name)
        wanted = object_name(SegmentName(topic_id, first, pointer.epoch, pointer.salt), kind)
        table = self._packed.object_table(f"{pointer.bucket} {wanted}", read, file.size)
        if table is None or table.header.length != file.unpacked:
            raise OSError(errno.EIO, f"the object of {name} of topic {topic_id:016x} is not packed as its pointer says")
        return self._packed.read(table, read, offset, length)

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        first, pointer, kind, file = self._file(topic_id, name)
        length = min(length, file.size - offset)
        if length <= 0:
            return b""
        own = self.own()
        url = own.url if own is not None and own.id == pointer.bucket else pointer.url
        objects = self.store_at(url)
        wanted = object_name(SegmentName(topic_id, first, pointer.epoch, pointer.salt), kind)
        get = partial(self._get, objects, url, kind, wanted)
        if kind != "data":
            return get(offset, length)
        return self.windows.read(wanted, file.size, offset, length, get)

    def _mend(self, topic_id: int, name: str) -> None:
        """Make a pointer anew that is missing or damaged, if a base has its content. Only here: a task that reads the
        bucket may wait for it. Raises OSError if the bucket does not answer."""
        found = parse_segment_file(name)
        if found is None or (topic_id, first := found[0]) in self._known:
            return
        try:
            self.pointer(topic_id, first)
            return
        except OSError as error:
            problem = str(error)
        now = time.monotonic()
        with self._lock:
            if now - self._not_remade.get((topic_id, first), -math.inf) < REMAKE_S:
                return
            if len(self._not_remade) >= MOST_KNOWN:
                self._not_remade.clear()
            self._not_remade[topic_id, first] = now
            self._unchanged.add((topic_id, first))
        try:
            pointer = self.remake(topic_id, first)
        except OSError:
            with self._lock:
                self._not_remade.pop((topic_id, first), None)  # it has not said that it has none
            raise
        if pointer is None or (topic_id, first) not in self._unchanged:  # the segment has come home, or has gone
            return
        self.point(topic_id, first, pointer)
        with self._lock:
            self._not_remade.pop((topic_id, first), None)
            self.remade += 1
        log.warning("pointer_remade", topic_id=topic_id, first=first, url=pointer.url, problem=problem)

    def _get(self, objects: ObjectStore, url: str, kind: SegmentKind, wanted: str, offset: int, length: int) -> bytes:
        """Return bytes of an object. Raises OSError."""
        try:
            found = objects.get_range(wanted, offset, length)
        except ObjectMissing:
            if kind != "data":  # it is made anew from `.data`
                raise FileNotFoundError(errno.ENOENT, f"the bucket {url} has no {wanted}") from None
            raise OSError(errno.EIO, f"the bucket {url} has no {wanted}") from None
        except StoreError as error:
            raise OSError(_NUMBERS.get(error.kind, errno.EIO), f"{url}: {error.sentence}") from error
        if len(found) != length:
            raise OSError(errno.EIO, f"{wanted} in {url} is shorter than {offset + length} bytes")
        with self._lock:
            self.reads += 1
            self.read_bytes += length
        return found

    def delete(self, topic_id: int, name: str) -> None:
        """As everywhere; of a `.data` the pointer goes, of other files nothing."""
        found = parse_segment_file(name)
        if found is not None and found[1] == "data":
            self.forget(topic_id, found[0])

    def exists(self, topic_id: int, name: str) -> bool:
        found = parse_segment_file(name)
        if found is None or not self._hot.exists(topic_id, segment_name(found[0], "object")):
            return False
        try:
            self._file(topic_id, name)
        except FileNotFoundError:
            return False
        return True

    def length(self, topic_id: int, name: str) -> int:
        return self._file(topic_id, name)[3].length

    def stored_length(self, topic_id: int, name: str) -> int:
        return self._file(topic_id, name)[3].size

    def topics(self) -> list[int]:
        return self._hot.topics()

    def delete_topic(self, topic_id: int) -> None:
        for first in self._firsts(topic_id):
            self.forget(topic_id, first)

    def finish_deletions(self) -> None:
        """Nothing is ever unfinished here."""

    def discard_unfinished(self, topic_id: int) -> None:
        """Nothing is ever unfinished here."""

    def _firsts(self, topic_id: int) -> list[int]:
        found = map(parse_segment_file, self._hot.list(topic_id))
        return [one[0] for one in found if one is not None and one[1] == "object"]

    def _file(self, topic_id: int, name: str) -> tuple[int, SegmentPointer, SegmentKind, PointedFile]:
        """Return what a pointer says of a file. Raises FileNotFoundError if there is none, OSError."""
        found = parse_segment_file(name)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, f"{name} is not in a bucket")
        first, kind = found
        pointer = self.pointer(topic_id, first)
        if kind == "data":
            return first, pointer, "data", pointer.data
        if kind == "idx" and pointer.idx is not None:
            return first, pointer, "idx", pointer.idx
        if kind == "tags" and pointer.tags is not None:
            return first, pointer, "tags", pointer.tags
        raise FileNotFoundError(errno.ENOENT, f"the bucket has no {name} of topic {topic_id:016x}")

    def store_at(self, url: str) -> ObjectStore:
        """Return the bucket at a URL. Raises OSError."""
        with self._lock:
            known = self._stores.get(url)
            is_full = len(self._stores) >= MOST_STORES
        if known is not None:
            return known
        if is_full:
            raise OSError(errno.EMFILE, f"the data directory points to more than {MOST_STORES} buckets")
        opened = self._open_at(url)
        with self._lock:
            return self._stores.setdefault(url, opened)

    def list(self, topic_id: int) -> list[str]:
        """The `.data` of each segment: nothing else can be removed."""
        return [segment_name(first, "data") for first in self._firsts(topic_id)]
