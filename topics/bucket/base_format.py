"""A base: what is needed, besides rounds, to have the state as of the end of a round (`docs/design/bucket.md`
section 4). Pure.

A *blob* is some content, compressed by itself, at a place in a pack. It is known by the SHA-256 of the content, so what
has not changed is not uploaded again. A *page* is a blob about the topics of 256 neighbouring ids. The base itself
has the fields of a snapshot that are not about single topics, and names the pages.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, NamedTuple, TypeVar

import cbor2
import msgspec

from topics.bucket.container import (
    HASH_BYTES,
    MAGIC_BYTES,
    BadObject,
    decoded,
    deflated,
    inflated,
    open_container,
    seal,
)
from topics.bucket.object_names import MAX_EPOCH, MAX_NUMBER, PackName, pack_name, parse_pack

BASE_MAGIC: Final = b"TOPICSB1"
PACK_MAGIC: Final = b"TOPICSP1"

PAGE_TOPICS: Final = 256
"""Ids of one page: page k is about the topics `256 k` to `256 k + 255`."""

PACK_BYTES: Final = 16 << 20
"""A pack is full when it has so many bytes; the last blob may exceed it."""

MAX_BLOB_BYTES: Final = 1 << 30
"""Of the content of a blob. The parts of large queues have hundreds of megabytes."""

MAX_STORED_BYTES: Final = MAX_BLOB_BYTES + (16 << 20)
"""Of a blob as it is stored."""

_MOST: Final = 1 << 64

MAX_BASE_BYTES: Final = 256 << 20
"""Of a base as it is stored, and inflated."""

MOST_LEAVES: Final = 1 << 20
"""Leaves of one file at most; the daemon writes fewer."""

BASE_FORMAT: Final = 2
"""Of the bases that this version writes, as `ROUND_FORMAT` is of rounds: 1 has snapshots and segments of FORMAT 2 at
most, 2 of FORMAT 3."""

READABLE: Final = (1, 2)
"""The formats of bases that this version reads."""


T = TypeVar("T")


class BlobRef(NamedTuple):
    """Where a blob is. `length` is that of the stored bytes, `size` that of the content, `hash` the content's."""

    epoch: int
    pack: int
    offset: int
    length: int
    size: int
    hash: bytes

    @property
    def pack_name(self) -> PackName:
        """The pack that it is in."""
        return PackName(self.epoch, self.pack)


class SealedFile(NamedTuple):
    """A file of a sealed segment, an object of its own."""

    size: int
    hash: bytes
    """SHA-256."""
    unpacked: int = 0
    """The length of the unpacked form if it is a packed `.data`, else 0."""

    @property
    def length(self) -> int:
        """The length of the unpacked form."""
        return self.unpacked or self.size


class SegmentEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One segment in a page. Its other fields are in the topic's part (`TopicPart.segments`).

    Of a sealed one, `data`, `idx` and `tags` are objects (`object_names.segment_name`, with `epoch` and `salt`); flags
    in them may be older than the base. Of an active one `pieces` are the bytes of `.data`, one blob after another; its
    `.idx` is made from them. `deleted` is a blob with a bit for each slot (slot 0 is bit 0 of byte 0): what is deleted
    as of the base, whether the files show it or not; None if nothing is.
    """

    first: int
    salt: int
    epoch: int = 0
    data: SealedFile | None = None
    idx: SealedFile | None = None
    tags: SealedFile | None = None
    pieces: list[BlobRef] = []
    deleted: BlobRef | None = None


class LeafFileEntry(NamedTuple):
    """A `.mrk` file of a topic: the seq of its first leaf, how many leaves it has, and the file as a blob."""

    first_seq: int
    leaves: int
    content: BlobRef


class LeavesEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """The leaves of the Merkle tree of a topic. `tree` is its uuid."""

    tree: str
    files: list[LeafFileEntry]


class TopicEntry(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """One topic in a page. `part` is its `TopicPart`, encoded, or the blob with it; None for a deleted topic of which
    copies elsewhere still need segments."""

    id: int
    part: bytes | BlobRef | None
    segments: list[SegmentEntry] = []
    has_manifest: bool = False
    """True if the part is a file of its own, too (`topic.cbor`)."""
    leaves: LeavesEntry | None = None
    """Its leaves, if it has evidence and some are on disk."""


class BaseHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a base says of itself."""

    format: int = BASE_FORMAT
    bucket: str
    epoch: int
    number: int
    """It is for the end of this round."""
    first_round: int
    """The first round that a replay from it needs."""
    wall_ms: int
    """When it was captured (epoch ms)."""
    shards: int
    body_bytes: int
    """Length of the body, inflated."""


class BaseBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of a base."""

    snapshot: dict[str, Any]
    """The fields of `Snapshot` without `topics`."""
    files: list[tuple[int, int, int]]
    """The files of the log that a replay reads: shard, ordinal, and the round that has its first byte."""
    pages: list[tuple[int, BlobRef]]
    """Page number and page, ascending."""
    records: int = 0
    """Live records as of the capture, for people."""


for _kind in (BaseHead, BaseBody, list[TopicEntry]):
    msgspec.msgpack.Decoder(_kind)  # for its types: finding them at the first use is not safe in several threads


class Base(NamedTuple):
    """A base that was read."""

    head: BaseHead
    body: BaseBody


def encode_base(head: BaseHead, body: BaseBody) -> bytes:
    """Return the bytes of a base. Sets `head.body_bytes`."""
    content = _dumped(body)
    head.body_bytes = len(content)
    return seal(BASE_MAGIC, msgspec.to_builtins(head, builtin_types=(bytes,)), deflated([content]))


def decode_base(blob: bytes) -> Base:
    """Return the base of these bytes. Raises BadObject, whatever they are."""
    opened = open_container(BASE_MAGIC, blob)
    head = _converted(opened.header, BaseHead, "header")
    if head.format not in READABLE:
        raise BadObject(f"it has format {head.format}, which this version does not know")
    if not 0 <= head.body_bytes <= MAX_BASE_BYTES or head.first_round > head.number:
        raise BadObject("its header contradicts itself")
    if not 0 <= head.epoch <= MAX_EPOCH or not 0 <= head.number <= MAX_NUMBER:
        raise BadObject("a number in its header cannot be")
    body = _converted(decoded(inflated(opened.body, head.body_bytes)), BaseBody, "body")
    for _, ref in body.pages:
        check_ref(ref)
    return Base(head, body)


def encode_page(topics: list[TopicEntry]) -> bytes:
    """Return the content of a page: topics by id, ascending. The same topics give the same bytes."""
    return _dumped(topics)


def decode_page(content: bytes) -> list[TopicEntry]:
    """Return the topics of a page, in which every number can be. Raises BadObject."""
    topics = _converted(decoded(content), list[TopicEntry], "page")
    for topic in topics:
        if not 0 <= topic.id < _MOST:
            raise BadObject("it has a topic whose id cannot be")
        if isinstance(topic.part, BlobRef):
            check_ref(topic.part)
        for entry in topic.segments:
            _check_segment(entry)
        for file in topic.leaves.files if topic.leaves is not None else ():
            check_ref(file.content)
            if not 0 < file.first_seq < _MOST or not 0 < file.leaves <= MOST_LEAVES:
                raise BadObject("it has a file of leaves that cannot be")
    return topics


def check_ref(ref: BlobRef) -> None:
    """Raises BadObject if there can be no such blob."""
    if (
        parse_pack(pack_name(ref.pack_name)) is None
        or not 0 <= ref.offset < _MOST
        or not 0 < ref.length <= MAX_STORED_BYTES
        or not 0 <= ref.size <= MAX_BLOB_BYTES
    ):
        raise BadObject(f"it names a blob that cannot be: {tuple(ref[:-1])}")


def _check_segment(entry: SegmentEntry) -> None:
    files = [file for file in (entry.data, entry.idx, entry.tags) if file is not None]
    numbers = (entry.first, entry.salt, *(size for file in files for size in (file.size, file.unpacked)))
    if not 0 <= entry.epoch <= MAX_EPOCH or any(not 0 <= number < _MOST for number in numbers):
        raise BadObject("it has a segment that cannot be")
    for ref in entry.pieces:
        check_ref(ref)
    if entry.deleted is not None:
        check_ref(entry.deleted)


class PackBuilder:
    """The blobs of a pack that is being filled."""

    def __init__(self, name: PackName) -> None:
        self.name = name
        self._stored: list[bytes] = []
        self._at = 0

    @property
    def is_full(self) -> bool:
        """Return True if no further blob should go in."""
        return self._at >= PACK_BYTES

    @property
    def is_empty(self) -> bool:
        """Return True if nothing is in it."""
        return not self._stored

    def add(self, content: bytes) -> BlobRef:
        """Take a blob in. Return where it is going to be."""
        stored = deflated([content])
        at = self._at
        self._stored.append(stored)
        self._at += len(stored)
        return BlobRef(
            self.name.epoch, self.name.number, _PACK_FRONT + at, len(stored), len(content), blob_hash(content)
        )

    def finished(self) -> bytes:
        """Return the bytes of the pack."""
        return seal(PACK_MAGIC, None, b"".join(self._stored))


def blob_hash(content: bytes) -> bytes:
    """Return by what a blob is known."""
    return hashlib.sha256(content).digest()


def open_blob(ref: BlobRef, stored: bytes) -> bytes:
    """Return the content of a blob. `stored` is what the pack has at its place. Raises BadObject."""
    if not 0 <= ref.size <= MAX_BLOB_BYTES:
        raise BadObject(f"a blob of {ref.size} bytes is larger than blobs are")
    content = inflated(stored, ref.size)
    if blob_hash(content) != ref.hash:
        raise BadObject("the hash of a blob does not match its content")
    return content


def check_pack(blob: bytes) -> None:
    """Raises BadObject if these bytes are not a whole pack."""
    open_container(PACK_MAGIC, blob)


def lineage(identity: str) -> str:
    """Return what of a directory's identity is the same in every mount and boot, and other in a copy: inode and
    token."""
    place, _, token = identity.rpartition(" ")
    return f"{place.partition(' ')[0].rpartition(':')[2]} {token}"


_PACK_FRONT: Final = len(seal(PACK_MAGIC, None, b"")) - HASH_BYTES
assert _PACK_FRONT == MAGIC_BYTES + 4 + 1


def _dumped(value: Any) -> bytes:
    return cbor2.dumps(msgspec.to_builtins(value, builtin_types=(bytes,)), canonical=True)


def _converted(value: Any, kind: type[T], what: str) -> T:
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise BadObject(f"its {what} is malformed: {error}") from error
