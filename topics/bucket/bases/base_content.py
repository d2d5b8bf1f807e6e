"""One base being made of a capture: which of its topics, segments and deletions the bucket has, and what is new of them
(`docs/design/bucket.md` section 4).

Works while the hold of the capture lasts. Files are read in worker threads, one at a time, and what is read is given to
`Uploads` and `Packs`, which put it while this goes on. So the hold lasts as long as reading what is new, unless the
store is slower than `uploads.MAX_BYTES` allow.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from topics.bucket.base_format import (
    PAGE_TOPICS,
    BlobRef,
    LeafFileEntry,
    LeavesEntry,
    SealedFile,
    SegmentEntry,
    TopicEntry,
    blob_hash,
    encode_page,
)
from topics.bucket.bases.known_base import UNKNOWN, KnownBase, KnownPage, SegmentKey, SegmentNote, TopicNote
from topics.bucket.bases.packs import Packs
from topics.bucket.bases.segment_reads import (
    SealedBytes,
    SegmentDeletions,
    deleted_bits,
    deletions_of,
    foreign_salt,
    lack_of,
    pointed_entry,
    pointed_foreign,
    read_active,
    read_foreign,
    read_sealed,
)
from topics.bucket.bases.uploads import Uploads
from topics.bucket.object_names import PackName, SegmentKind, SegmentName, segment_name
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.leaf_files import LeavesDamaged, decode_leaf_file, file_bytes
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.maintenance.base_capture import BaseCapture, CapturedSegment, CapturedTopic
from topics.storage.segments.segment_reader import NO_COLD, ColdNeeded, SegmentTiers
from topics.storage.segments.segment_scan import layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.snapshots.snapshot import decode_part
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LARGE_PART: Final = 4096
"""A part of more bytes is a blob of its own."""

KINDS: Final[Sequence[SegmentKind]] = ("data", "idx", "tags")

MOST_PIECES: Final = 16
"""An active segment with so many pieces is put together anew."""


class SealedUploads:
    """The sealed segments that this process has put, or has tried to. Lives as long as the process does."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.done: dict[SegmentKey, SegmentEntry] = {}
        """Those that are in the bucket, and in no base yet."""
        self.attempted: dict[str, dict[bytes, SealedFile]] = {}
        """Files of segments that have not been put completely, by name and hash: an object like this is ours, with the
        flags of that time."""

    def entry(self, topic_id: int, first: int, files: SealedBytes) -> tuple[SegmentEntry, dict[SegmentKind, bytes]]:
        """Return the entry of a segment with these files, and the files by kind. Computes hashes: for a worker
        thread."""
        contents: dict[SegmentKind, bytes] = {}
        if files.data is not None:
            contents["data"] = files.data
        if files.idx is not None:
            contents["idx"] = files.idx
        if files.tags is not None:
            contents["tags"] = files.tags
        hashed = {
            kind: SealedFile(len(data), hashlib.sha256(data).digest(), files.unpacked if kind == "data" else 0)
            for kind, data in contents.items()
        }
        entry = SegmentEntry(first, files.salt, self.epoch, hashed.get("data"), hashed.get("idx"), hashed.get("tags"))
        return entry, contents

    def attempt(self, name: str, file: SealedFile) -> None:
        """This file is being put."""
        self.attempted.setdefault(name, {})[file.hash] = file

    def finish(self, topic_id: int, entry: SegmentEntry) -> None:
        """All files of a segment are in the bucket."""
        self.done[topic_id, entry.first, entry.salt] = entry
        for kind in KINDS:
            self.attempted.pop(self.name(topic_id, entry, kind), None)

    def name(self, topic_id: int, entry: SegmentEntry, kind: SegmentKind) -> str:
        """Return the name of one file of a segment."""
        return segment_name(SegmentName(topic_id, entry.first, entry.epoch, entry.salt), kind)


class _Examined(NamedTuple):
    fingerprint: bytes
    deletions: Mapping[int, SegmentDeletions]


class BaseContent:
    """Makes the pages of one base. `result` is what the base has when it counts."""

    def __init__(
        self,
        capture: BaseCapture,
        known: KnownBase,
        sealed: SealedUploads,
        *,
        tiers: SegmentTiers,
        packs: Packs,
        uploads: Uploads,
        offload: Offload,
        unwanted: frozenset[PackName] = frozenset(),
        lost: frozenset[str] = frozenset(),
    ) -> None:
        """Nothing is to be in `unwanted` packs any more: what the base before has there is packed again. Segments that
        have one of the `lost` objects are put again."""
        self.result = KnownBase()
        self._capture = capture
        self._known = known
        self._sealed = sealed
        self._tiers = tiers
        self._packs = packs
        self._uploads = uploads
        self._offload = offload
        self._unwanted = unwanted
        self._lost = lost

    async def make(self) -> list[tuple[int, BlobRef]]:
        """Return the pages; they and all that they name have been given to the uploads. Raises OSError, also if a local
        file is damaged so that a base with it could not be restored, and what the uploads raise."""
        topics: dict[int, list[CapturedTopic]] = {}
        for topic in self._capture.topics:
            topics.setdefault(topic.id // PAGE_TOPICS, []).append(topic)
        foreign: dict[int, list[tuple[int, int]]] = {}
        for place in self._capture.foreign:
            foreign.setdefault(place[0] // PAGE_TOPICS, []).append(place)
        numbers = sorted(topics.keys() | foreign.keys())
        pages = [(n, await self._page(n, topics.get(n, []), foreign.get(n, []))) for n in numbers]
        await self._packs.finish()
        return pages

    def _is_wanted(self, ref: BlobRef | None) -> bool:
        return ref is not None and ref.pack_name not in self._unwanted

    async def _page(self, number: int, topics: list[CapturedTopic], foreign: list[tuple[int, int]]) -> BlobRef:
        old = self._known.pages.get(number)
        fingerprint = await self._offload.run(Pool.CPU, partial(_fingerprint, topics, foreign))
        if old is not None and old.fingerprint == fingerprint and not (self._unwanted or self._lost):
            self.result.pages[number] = old
            self.result.keep(self._known, [topic.id for topic in topics] + [owner for owner, _ in foreign])
            return old.ref
        known = {
            topic.id: note.fingerprint
            for topic in topics
            if (topic.segments or topic.leaves)
            and (note := self._known.topic(topic.id)) is not None
            and self._is_same(topic, note, note.fingerprint)
        }
        examined = await self._offload.run(Pool.CPU, partial(_examined, topics, known))
        entries = [await self._topic(topic, examined[topic.id]) for topic in topics]
        for owner in sorted({owner for owner, _ in foreign}):
            entries.append(await self._foreign(owner, [first for one, first in foreign if one == owner]))
        entries.sort(key=lambda entry: entry.id)
        content = await self._offload.run(Pool.CPU, partial(encode_page, entries))
        if old is not None and self._is_wanted(old.ref) and old.ref.hash == blob_hash(content):
            ref = old.ref
        else:
            ref = await self._packs.add(content)
        self.result.pages[number] = KnownPage(ref, fingerprint)
        return ref

    # -- topics ------------------------------------------------------------------------------------------------------

    async def _topic(self, topic: CapturedTopic, examined: _Examined) -> TopicEntry:
        is_large = len(topic.part) > LARGE_PART
        if not topic.segments and not is_large and not topic.leaves:
            return TopicEntry(topic.id, topic.part, [], topic.has_manifest)
        note = self._known.topic(topic.id)
        if note is None or not self._is_same(topic, note, examined.fingerprint):
            part = None
            if is_large:
                part = note.part if note is not None else None
                if part is None or not self._is_wanted(part) or part.hash != await self._hash(topic.part):
                    part = await self._packs.add(topic.part)
            old = {(one.entry.first, one.entry.salt): one for one in note.segments} if note is not None else {}
            segments = [
                await self._segment(one, old.get((one.segment.first, one.salt or 0)), examined.deletions)
                for one in topic.segments
            ]
            leaves = await self._leaves(topic, note.leaves if note is not None else None)
            note = TopicNote(part, segments, examined.fingerprint, leaves)
        self.result.note(topic.id, note)
        part_or_blob = note.part if note.part is not None else topic.part
        entries = [one.entry for one in note.segments]
        return TopicEntry(topic.id, part_or_blob, entries, topic.has_manifest, note.leaves)

    async def _leaves(self, topic: CapturedTopic, old: LeavesEntry | None) -> LeavesEntry | None:
        """The entry of the leaves of a topic: leaves of one tree never change, so files that the base before has are
        not read. A damaged file is left out: it must not keep everything else from the bucket."""
        if not topic.leaves:
            return None
        known: dict[tuple[int, int], LeafFileEntry] = {}
        if old is not None and old.tree == topic.tree:
            known = {(file.first_seq, file.leaves): file for file in old.files if self._is_wanted(file.content)}
        files = []
        for file in topic.leaves:
            entry = known.get((file.first_seq, file.leaves))
            if entry is None:
                read = partial(self._tiers.hot.read_range, topic.id, file.name, 0, file_bytes(file.leaves))
                content = await self._offload.run(Pool.HOT_READ, read)
                try:
                    decode_leaf_file(content, file)
                except LeavesDamaged as error:
                    log.error("leaves_damaged", topic_id=topic.id, problem=str(error))
                    continue
                entry = LeafFileEntry(file.first_seq, file.leaves, await self._packs.add(content))
            files.append(entry)
        return LeavesEntry(topic.tree, files)

    def _is_same(self, topic: CapturedTopic, note: TopicNote, fingerprint: bytes) -> bool:
        """Return True if the base before says of a topic what this one has to say."""
        if note.fingerprint == UNKNOWN or note.fingerprint != fingerprint or self._unwanted or self._lost:
            return False
        return [(one.entry.first, one.entry.salt) for one in note.segments] == [
            (one.segment.first, one.salt or 0) for one in topic.segments
        ]

    async def _hash(self, content: bytes) -> bytes:
        return await self._offload.run(Pool.CPU, partial(blob_hash, content))

    # -- segments ----------------------------------------------------------------------------------------------------

    async def _segment(
        self, captured: CapturedSegment, old: SegmentNote | None, deletions: Mapping[int, SegmentDeletions]
    ) -> SegmentNote:
        if captured.sealed:
            entry = await self._sealed_entry(captured, old)
        else:
            entry = await self._active_entry(captured, old)
        found = deletions.get(captured.segment.first)
        if found is None or not (found.deleted or found.unflagged):
            return SegmentNote(entry)
        before = old.entry.deleted if old is not None else None
        if old is not None and old.state == found.state and (before is None or self._is_wanted(before)):
            entry.deleted = before
            return SegmentNote(entry, found.state)
        bits = await self._read_bits(captured, found)
        if bits is not None:
            is_known = before is not None and self._is_wanted(before) and before.hash == blob_hash(bits)
            entry.deleted = before if is_known else await self._packs.add(bits)
        return SegmentNote(entry, found.state)

    async def _read_bits(self, captured: CapturedSegment, found: SegmentDeletions) -> bytes | None:
        """The bitmap of a segment, read without the cold store if possible."""
        try:
            hot = SegmentTiers(self._tiers.hot, NO_COLD)
            return await self._offload.run(Pool.HOT_READ, partial(deleted_bits, hot, captured, found))
        except ColdNeeded:
            return await self._offload.run(Pool.COLD_READ, partial(deleted_bits, self._tiers, captured, found))

    async def _sealed_entry(self, captured: CapturedSegment, old: SegmentNote | None) -> SegmentEntry:
        segment = captured.segment
        key = (segment.topic_id, segment.first, captured.salt or 0)
        entry = self._sealed.done.get(key)
        if entry is None and old is not None and old.entry.data is not None:
            entry = old.entry
            if captured.tier == "hot" and is_lost(segment.topic_id, entry, self._lost):
                entry = None
        if entry is None and captured.tier == "cold":
            entry = await self._offload.run(Pool.HOT_READ, partial(pointed_entry, self._tiers, captured))
        if entry is not None:
            return msgspec.structs.replace(entry, deleted=None)
        pool = Pool.COLD_READ if captured.tier == "cold" else Pool.HOT_READ
        files = await self._offload.run(pool, partial(read_sealed, self._tiers, captured))
        problem = lack_of(captured, files.salt, files.length)
        if problem is not None:
            raise OSError(errno.EIO, problem)
        return await self._upload(segment.topic_id, segment.first, files)

    async def _upload(self, topic_id: int, first: int, files: SealedBytes) -> SegmentEntry:
        entry, contents = await self._offload.run(Pool.CPU, partial(self._sealed.entry, topic_id, first, files))
        left = len(contents)

        def done() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._sealed.finish(topic_id, entry)

        for kind, data in contents.items():
            name = self._sealed.name(topic_id, entry, kind)
            self._sealed.attempt(name, file_of(entry, kind))
            await self._uploads.put(name, data, done)
        return msgspec.structs.replace(entry)

    async def _active_entry(self, captured: CapturedSegment, old: SegmentNote | None) -> SegmentEntry:
        """The entry of an active segment: the pieces of the base before, and one with what is new; one with everything
        if the file is another one, or there are too many pieces."""
        salt = captured.salt or 0
        pieces = list(old.entry.pieces) if old is not None else []
        have = sum(piece.size for piece in pieces)
        if have > captured.data_bytes or not all(map(self._is_wanted, pieces)):
            pieces, have = [], 0
        if have < captured.data_bytes and len(pieces) >= MOST_PIECES:
            pieces, have = [], 0
        if have < captured.data_bytes:
            head, data = await self._offload.run(Pool.HOT_READ, partial(self._read_active, captured, have))
            found = layout_of(head, captured.segment.first, captured.salt).salt or 0
            problem = lack_of(captured, found, have + len(data))
            if problem is not None:
                raise OSError(errno.EIO, problem)
            pieces.append(await self._packs.add(data))
        return SegmentEntry(captured.segment.first, salt, pieces=pieces)

    def _read_active(self, captured: CapturedSegment, have: int) -> tuple[bytes, bytes]:
        """In a worker thread: the header, and what is new."""
        data = read_active(self._tiers, captured, have)
        head = data if not have else read_active(self._tiers, captured._replace(data_bytes=FILE_HEADER_BYTES), 0)
        return head[:FILE_HEADER_BYTES], data

    async def _foreign(self, owner: int, firsts: Iterable[int]) -> TopicEntry:
        """The entry of a deleted topic: `.data` of the segments that copies point to. One that is missing is left
        out."""
        notes: list[SegmentNote] = []
        for first in sorted(firsts):
            entry = await self._foreign_entry(owner, first, self._tiers.hot, Pool.HOT_READ)
            if entry is None and self._tiers.cold is not None:
                entry = await self._offload.run(Pool.HOT_READ, partial(pointed_foreign, self._tiers, owner, first))
                if entry is None:
                    entry = await self._foreign_entry(owner, first, self._tiers.cold, Pool.COLD_READ)
            if entry is not None:
                notes.append(SegmentNote(msgspec.structs.replace(entry, deleted=None)))
        self.result.note(owner, TopicNote(None, notes))
        return TopicEntry(owner, None, [one.entry for one in notes])

    async def _foreign_entry(self, owner: int, first: int, store: SegmentStore, pool: Pool) -> SegmentEntry | None:
        """The entry of one of these segments; None if it is not in this store."""
        salt = await self._offload.run(pool, partial(foreign_salt, store, owner, first))
        entry = self._sealed.done.get((owner, first, salt)) or self._known.sealed((owner, first, salt))
        if entry is None:
            files = await self._offload.run(pool, partial(read_foreign, store, owner, first))
            if files.data is not None:
                entry = await self._upload(owner, first, files)
        return entry


def is_lost(topic_id: int, entry: SegmentEntry, lost: Collection[str]) -> bool:
    """Return True if one of the objects of a sealed segment is among these."""
    name = SegmentName(topic_id, entry.first, entry.epoch, entry.salt)
    return bool(lost) and any(segment_name(name, kind) in lost for kind in KINDS)


def file_of(entry: SegmentEntry, kind: SegmentKind) -> SealedFile:
    file = {"data": entry.data, "idx": entry.idx, "tags": entry.tags}[kind]
    assert file is not None
    return file


def _fingerprint(topics: Sequence[CapturedTopic], foreign: Sequence[tuple[int, int]]) -> bytes:
    """What a page depends on, as a hash. In a worker thread."""
    digest = hashlib.blake2b(repr(foreign).encode(), digest_size=20)
    for topic in topics:
        shape = [(one.segment.first, one.salt, one.sealed) for one in topic.segments]
        digest.update(f"{topic.id} {topic.has_manifest} {len(topic.part)} {shape}".encode())
        digest.update(topic.part)
    return digest.digest()


def _examined(topics: Sequence[CapturedTopic], known: Mapping[int, bytes]) -> dict[int, _Examined]:
    """What the parts say, but for those of which the fingerprint is known. In a worker thread."""
    found: dict[int, _Examined] = {}
    for topic in topics:
        noted = topic.segments or topic.leaves or len(topic.part) > LARGE_PART
        fingerprint = hashlib.blake2b(topic.part, digest_size=20).digest() if noted else UNKNOWN
        deletions: Mapping[int, SegmentDeletions] = {}
        if topic.segments and known.get(topic.id) != fingerprint:
            deletions = deletions_of(decode_part(topic.part))
        found[topic.id] = _Examined(fingerprint, deletions)
    return found
