"""A pointer: the file `seg-<first seq>.object`, which says in which objects of which bucket a cold segment is
(`docs/design/bucket.md` section 8). Pure.

The file is one CBOR map `{"pointer": bytes, "xxh3": u64}`; the bytes are a CBOR list, the checksum is over them. The
name of an object is made from topic, first seq, epoch and salt by the package `topics.bucket`.
"""

from __future__ import annotations

from typing import Any

import cbor2
import msgspec
import xxhash


class BadPointer(ValueError):
    """The file is damaged. The message is a phrase."""


class PointedFile(msgspec.Struct, array_like=True, frozen=True):
    """An object with a file of the segment."""

    size: int
    hash: bytes
    """SHA-256."""
    unpacked: int = 0
    """The length of the unpacked form if the object is a packed `.data`, else 0."""

    @property
    def length(self) -> int:
        """The length of the unpacked form."""
        return self.unpacked or self.size


class SegmentPointer(msgspec.Struct, array_like=True, frozen=True):
    """Where the objects of a cold segment are."""

    bucket: str
    """The id of the bucket."""
    url: str
    """Where the bucket was when this was written."""
    epoch: int
    salt: int
    data: PointedFile
    idx: PointedFile | None = None
    tags: PointedFile | None = None


def files_of(pointer: SegmentPointer) -> tuple[PointedFile, PointedFile | None, PointedFile | None]:
    """Return `.data`, `.idx` and `.tags` of a pointer."""
    return pointer.data, pointer.idx, pointer.tags


def encode_pointer(pointer: SegmentPointer) -> bytes:
    """Return the bytes of a pointer."""
    body = cbor2.dumps(msgspec.to_builtins(pointer, builtin_types=(bytes,)))
    return cbor2.dumps({"pointer": body, "xxh3": xxhash.xxh3_64_intdigest(body)})


def decode_pointer(blob: bytes) -> SegmentPointer:
    """Return the pointer of these bytes. Raises BadPointer."""
    try:
        outer: Any = cbor2.loads(blob)
        body = outer["pointer"]
        if outer["xxh3"] != xxhash.xxh3_64_intdigest(body):
            raise BadPointer("its checksum does not match")
        pointer = msgspec.convert(cbor2.loads(body), SegmentPointer)
    except BadPointer:
        raise
    except Exception as error:  # malformed CBOR may raise anything
        raise BadPointer(f"it does not decode: {error}") from error
    files = [file for file in files_of(pointer) if file is not None]
    if (
        pointer.epoch < 0
        or not 0 <= pointer.salt < 1 << 64
        or any(not 0 <= size < 1 << 32 for file in files for size in (file.size, file.unpacked))
    ):
        raise BadPointer("a number in it cannot be")
    return pointer
