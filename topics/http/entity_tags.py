"""Entity tags: a client that has an answer already gets it again only if it has changed (RFC 9110, 8.8.3 and 13.1.2).

The tag of an answer in JSON leaves out `performance`, which differs in every answer, so it is a weak one.
"""

from __future__ import annotations

from typing import Final

import xxhash

MOST_TAGGED: Final = 64 << 10
"""Larger answers (bytes) have no tag: reading all of one takes longer than a change is worth."""

_PERFORMANCE: Final = b',"performance":{'


def tag_of(body: bytes) -> bytes:
    """Return the entity tag of an answer in JSON, without its `performance`."""
    end = body.rfind(_PERFORMANCE)
    # Only as the last field of the answer: an object of that name in the data of a record is followed by more.
    if end < 0 or body.find(b"}", end) != len(body) - 2:
        end = len(body)
    return b'W/"%b"' % xxhash.xxh3_128_hexdigest(memoryview(body)[:end]).encode()


def matches(if_none_match: bytes | None, tag: bytes) -> bool:
    """Return True if the value of an `If-None-Match` names this tag."""
    if if_none_match is None:
        return False
    opaque = tag.removeprefix(b"W/")
    names = [name.strip().removeprefix(b"W/") for name in if_none_match.split(b",")]
    return opaque in names or names == [b"*"]
