"""The form that rounds, bases and packs have in common: a magic, a header, a body, and the hash of all of it. Pure.

    magic 8 bytes | length of the header u32, little-endian | header (CBOR) | body | SHA-256 of everything before

The hash finds every changed bit and every cut. It is no signature: anybody who may write to the bucket can make an
object that verifies. So headers and bodies are taken as bytes that an adversary may have chosen: nothing is inflated
beyond the size that its reader expects, and every value is checked before anything computes with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cbor2
from backports import zstd

HASH_BYTES: Final = 32
MAGIC_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 8 << 20
LEVEL: Final = 3
FAST_LEVEL: Final = 1
"""Of zstd. The fast one takes a third to a half of the time: it leaves less of short records of JSON, and a fifth more
of long text."""

MANY_BYTES: Final = 4 << 20
"""From so many bytes on, the fast level is used: a round of so many is one of a daemon that is busy with appends."""

_FRONT: Final = MAGIC_BYTES + 4


class BadObject(ValueError):
    """The bytes of an object are not what its name says. The message is a phrase: "its hash does not match"."""


class Opened(NamedTuple):
    """What `open_container` has found. `hash` is the last field of the object."""

    header: Any
    body: bytes
    hash: bytes


def seal(magic: bytes, header: Any, body: bytes) -> bytes:
    """Return the bytes of an object. `header` is what CBOR can hold, and the same for every call with the same one."""
    assert len(magic) == MAGIC_BYTES
    encoded = cbor2.dumps(header, canonical=True)
    assert len(encoded) <= MAX_HEADER_BYTES, len(encoded)
    front = b"".join((magic, len(encoded).to_bytes(4, "little"), encoded, body))
    return front + hashlib.sha256(front).digest()


def open_container(magic: bytes, blob: bytes) -> Opened:
    """Return what `seal` was given. Raises BadObject, whatever the bytes are."""
    if len(blob) < _FRONT + HASH_BYTES or blob[:MAGIC_BYTES] != magic:
        raise BadObject(f"it does not begin as a {magic.decode('ascii').rstrip('0123456789')}")
    view = memoryview(blob)
    digest = bytes(view[-HASH_BYTES:])
    if hashlib.sha256(view[:-HASH_BYTES]).digest() != digest:
        raise BadObject("its hash does not match its content")
    end = _FRONT + int.from_bytes(view[MAGIC_BYTES:_FRONT], "little")
    if end > min(len(blob) - HASH_BYTES, _FRONT + MAX_HEADER_BYTES):
        raise BadObject("its header is longer than it")
    return Opened(decoded(bytes(view[_FRONT:end])), bytes(view[end:-HASH_BYTES]), digest)


def decoded(blob: bytes) -> Any:
    """Return the value of some CBOR. Raises BadObject."""
    try:
        return cbor2.loads(blob)
    except Exception as error:  # malformed CBOR may raise anything
        raise BadObject(f"it does not decode: {error}") from error


def deflated(parts: Sequence[bytes]) -> bytes:
    """Return the bytes of `parts`, one after another, compressed together. They are not joined before, which would hold
    the interpreter."""
    writer = zstd.ZstdCompressor(FAST_LEVEL if sum(map(len, parts)) >= MANY_BYTES else LEVEL)
    found = [writer.compress(part) for part in parts]
    return b"".join((*found, writer.flush()))


def inflated(data: bytes, size: int) -> bytes:
    """Return what `deflated` was given, of which `size` is the length. Raises BadObject if it has another length, or is
    not compressed."""
    reader = zstd.ZstdDecompressor()
    try:
        found = reader.decompress(data, max_length=size + 1)
    except (zstd.ZstdError, EOFError, MemoryError) as error:
        raise BadObject(f"it cannot be inflated: {error}") from error
    if len(found) != size or not (reader.eof or not data):
        raise BadObject(f"inflated it does not have {size} bytes")
    return found
