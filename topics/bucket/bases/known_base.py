"""What the newest base in the bucket has, as far as the next one needs it: where its pages, large parts, segments and
bitmaps are.

Memory: per page some 200 bytes; per topic that has segments or a large part some 100 bytes, and per segment some 200.
The parts themselves are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

import msgspec

from topics.bucket.base_format import (
    MAX_BASE_BYTES,
    Base,
    BlobRef,
    LeavesEntry,
    SegmentEntry,
    TopicEntry,
    decode_base,
    decode_page,
    open_blob,
)
from topics.bucket.container import BadObject
from topics.bucket.object_names import BASES, PackName, number_of, pack_name
from topics.bucket.object_store import MAX_PAGE, ObjectMissing, ObjectStore
from topics.runtime.offload import Offload, Pool
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

UNKNOWN: Final = b""
"""The fingerprint of a page that this process has not made."""

SegmentKey = tuple[int, int, int]
"""Topic id, first seq and salt."""


class SegmentNote(msgspec.Struct, array_like=True):
    """A segment as a base names it, and the state of the deletions that its bitmap is of (`SegmentDeletions.state`)."""

    entry: SegmentEntry
    state: tuple[int, int, int, int] | None = None


class TopicNote(msgspec.Struct, array_like=True):
    """A topic as a base names it."""

    part: BlobRef | None
    segments: list[SegmentNote]
    fingerprint: bytes = UNKNOWN
    """Of its part, if this process has made the note."""
    leaves: LeavesEntry | None = None


class KnownPage(msgspec.Struct):
    """A page. As long as the fingerprint of its topics is the same, it is the same."""

    ref: BlobRef
    fingerprint: bytes = UNKNOWN


class KnownBase:
    """What a base has. Filled by `load`, or while a base is made."""

    def __init__(self, base: Base | None = None) -> None:
        self.base = base
        self.pages: dict[int, KnownPage] = {}
        self._topics: dict[int, bytes] = {}
        self._looked_up: tuple[int, dict[tuple[int, int], SegmentEntry]] = (-1, {})
        """The sealed segments of the topic that was asked for last."""

    def note(self, topic_id: int, note: TopicNote) -> None:
        """Note a topic, if there is something to be noted."""
        if note.segments or note.part is not None or note.leaves is not None:
            self._topics[topic_id] = _ENCODER.encode(note)
            self._looked_up = (-1, {})

    def keep(self, other: KnownBase, topic_ids: Iterable[int]) -> None:
        """Take over what another one knows of these topics."""
        for topic_id in topic_ids:
            if (raw := other._topics.get(topic_id)) is not None:
                self._topics[topic_id] = raw

    def topic(self, topic_id: int) -> TopicNote | None:
        """Return what is noted of a topic."""
        raw = self._topics.get(topic_id)
        return _DECODER.decode(raw) if raw is not None else None

    def sealed(self, key: SegmentKey) -> SegmentEntry | None:
        """Return the entry of a sealed segment that the bucket has."""
        if self._looked_up[0] != key[0]:
            note = self.topic(key[0])
            entries = [one.entry for one in note.segments] if note is not None else []
            self._looked_up = key[0], {(one.first, one.salt): one for one in entries if one.data is not None}
        return self._looked_up[1].get(key[1:])

    def packs(self) -> set[PackName]:
        """Return the packs that the base needs."""
        found = {page.ref.pack_name for page in self.pages.values()}
        for raw in self._topics.values():
            found.update(ref.pack_name for ref in _refs(_DECODER.decode(raw)))
        return found

    def live_bytes(self) -> dict[PackName, int]:
        """Return how many bytes of each pack the base needs. A blob that is named twice may count twice."""
        found: dict[PackName, int] = {}
        refs = {page.ref for page in self.pages.values()}
        for raw in self._topics.values():
            refs.update(_refs(_DECODER.decode(raw)))
        for ref in refs:
            found[ref.pack_name] = found.get(ref.pack_name, 0) + ref.length
        return found


def _refs(note: TopicNote) -> Iterator[BlobRef]:
    if note.part is not None:
        yield note.part
    for file in note.leaves.files if note.leaves is not None else ():
        yield file.content
    for one in note.segments:
        yield from one.entry.pieces
        if one.entry.deleted is not None:
            yield one.entry.deleted


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(TopicNote)


async def base_numbers(objects: ObjectStore, offload: Offload) -> list[int]:
    """Return the numbers of the bases in the bucket, ascending. Raises StoreError."""
    found: list[int] = []
    after = ""
    while True:
        page = await offload.run(Pool.BUCKET_READ, partial(objects.list, BASES, after))
        found += [number for one in page if (number := number_of(one.name)) is not None]
        if len(page) < MAX_PAGE:
            return found
        after = page[-1].name


async def read_base(objects: ObjectStore, offload: Offload, name: str) -> Base:
    """Return a base. Raises StoreError, ObjectMissing, ObjectTooLarge, BadObject."""
    found = await offload.run(Pool.BUCKET_READ, partial(objects.get, name, MAX_BASE_BYTES))
    return await offload.run(Pool.CPU, partial(decode_base, found.data))


async def load(objects: ObjectStore, offload: Offload, base: Base) -> KnownBase:
    """Return what a base has. Raises StoreError, ObjectMissing, BadObject."""
    known = KnownBase(base)
    for number, ref in base.body.pages:
        known.pages[number] = KnownPage(ref)
        for topic in await read_page(objects, offload, ref):
            known.note(topic.id, _note_of(topic))
    return known


async def read_page(objects: ObjectStore, offload: Offload, ref: BlobRef) -> list[TopicEntry]:
    """Return the topics of a page. Raises StoreError, ObjectMissing, BadObject."""
    read = partial(objects.get_range, pack_name(ref.pack_name), ref.offset, ref.length)
    stored = await offload.run(Pool.BUCKET_READ, read)
    return await offload.run(Pool.CPU, lambda: decode_page(open_blob(ref, stored)))


async def load_or_nothing(objects: ObjectStore, offload: Offload, base: Base) -> KnownBase:
    """Do the same, but know nothing of a base that is damaged. Raises StoreError."""
    try:
        return await load(objects, offload, base)
    except (BadObject, ObjectMissing) as error:
        log.error("base_damaged", base=base.head.number, problem=str(error), consequence="the next one is made anew")
        return KnownBase()


def _note_of(topic: TopicEntry) -> TopicNote:
    part = topic.part if isinstance(topic.part, BlobRef) else None
    return TopicNote(part, [SegmentNote(entry) for entry in topic.segments], leaves=topic.leaves)
