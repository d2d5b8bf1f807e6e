"""`check_bucket`: asserts that the newest base of a bucket is complete."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

from topics.bucket.base_format import (
    PAGE_TOPICS,
    Base,
    BlobRef,
    TopicEntry,
    check_pack,
    decode_base,
    decode_page,
    open_blob,
)
from topics.bucket.object_names import (
    BASES,
    PackName,
    SegmentKind,
    SegmentName,
    base_name,
    number_of,
    pack_name,
    segment_name,
)
from topics.bucket.object_store import MAX_PAGE, ObjectStore
from topics.storage.snapshots.snapshot import decode_part

MOST = 1 << 31


class Checked(NamedTuple):
    """A complete base: its topics by id, with the contents of its blobs, and the objects that it names."""

    base: Base
    topics: dict[int, TopicEntry]
    blobs: dict[BlobRef, bytes]
    named: frozenset[str]

    def part(self, topic_id: int) -> bytes:
        """The part of a topic."""
        part = self.topics[topic_id].part
        assert part is not None
        return self.blobs[part] if isinstance(part, BlobRef) else part


def bases_of(objects: ObjectStore) -> list[int]:
    """The numbers of all bases."""
    found: list[int] = []
    after = ""
    while page := objects.list(BASES, after):
        found += [number for one in page if (number := number_of(one.name)) is not None]
        after = page[-1].name
        if len(page) < MAX_PAGE:
            break
    return found


def check_bucket(objects: ObjectStore, number: int | None = None) -> Checked:
    """Assert that the newest base, or the one of this number, is complete: every object that it names exists with the
    right size and hash, every blob opens, every page and part decodes."""
    if number is None:
        numbers = bases_of(objects)
        assert numbers, "there is no base"
        number = numbers[-1]
    base = decode_base(objects.get(base_name(number), MOST).data)
    assert base.head.number == number
    assert base.head.first_round <= number
    packs: dict[PackName, bytes] = {}
    blobs: dict[BlobRef, bytes] = {}
    named = {base_name(number)}
    topics: dict[int, TopicEntry] = {}

    def opened(ref: BlobRef) -> bytes:
        if ref.pack_name not in packs:
            packs[ref.pack_name] = objects.get(pack_name(ref.pack_name), MOST).data
            check_pack(packs[ref.pack_name])
            named.add(pack_name(ref.pack_name))
        if ref not in blobs:
            blobs[ref] = open_blob(ref, packs[ref.pack_name][ref.offset : ref.offset + ref.length])
        return blobs[ref]

    pages = base.body.pages
    assert [page for page, _ in pages] == sorted({page for page, _ in pages})
    for page, ref in pages:
        entries = decode_page(opened(ref))
        assert entries
        assert [entry.id for entry in entries] == sorted({entry.id for entry in entries})
        for entry in entries:
            assert entry.id // PAGE_TOPICS == page
            topics[entry.id] = entry
            if entry.part is not None:
                part = decode_part(opened(entry.part) if isinstance(entry.part, BlobRef) else entry.part)
                assert part.id == entry.id
            for ref_ in _refs(entry):
                opened(ref_)
            named.update(_check_files(objects, entry))
    return Checked(base, topics, blobs, frozenset(named))


def _refs(entry: TopicEntry) -> Iterator[BlobRef]:
    for segment in entry.segments:
        yield from segment.pieces
        if segment.deleted is not None:
            yield segment.deleted


def _check_files(objects: ObjectStore, entry: TopicEntry) -> Iterator[str]:
    kinds: tuple[SegmentKind, ...] = ("data", "idx", "tags")
    for segment in entry.segments:
        assert (segment.data is None) != (not segment.pieces), "it is either sealed or active"
        for kind, file in zip(kinds, (segment.data, segment.idx, segment.tags), strict=True):
            if file is None:
                continue
            name = segment_name(SegmentName(entry.id, segment.first, segment.epoch, segment.salt), kind)
            data = objects.get(name, MOST).data
            assert len(data) == file.size, name
            assert hashlib.sha256(data).digest() == file.hash, name
            yield name
