"""Dead letters: where they came from, and the records that they were (`topics.engine.queues.dead_letters`). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from topics.log.block import RecordParts

MARKERS: Final = "$dead_letter"
"""Keys of a meta that begin so say where a letter came from. Clients cannot write them."""


class LetterOrigin(NamedTuple):
    """Where a letter came from."""

    topic: str
    group: str | None
    """The group of a log that gave it up; None for a queue."""
    seq: int
    """Its seq in that topic; 0 if the letter does not say."""


class Letter(NamedTuple):
    """One record of a dead-letter topic."""

    seq: int
    ts: int
    """When it came into its topic (epoch ms)."""
    data: bytes
    tag: str | None
    meta: bytes
    """Its meta without the markers."""
    origin: LetterOrigin | None
    """None if it has no markers: then it is no letter."""

    @property
    def size(self) -> int:
        """Its bytes where it goes to."""
        return len(self.data) + len(self.meta)


def letter_of(seq: int, ts: int, parts: RecordParts) -> Letter:
    """Return the letter that is in a record."""
    fields: Mapping[str, Any] = msgspec.json.decode(parts.meta) if parts.meta else {}
    kept = {key: value for key, value in fields.items() if not key.startswith(MARKERS)}
    meta = msgspec.json.encode(kept) if kept else b""
    return Letter(seq, ts, parts.data, parts.tag.decode() or None, meta, _origin_of(fields))


def _origin_of(fields: Mapping[str, Any]) -> LetterOrigin | None:
    topic = fields.get(f"{MARKERS}_from")
    if not topic:
        return None
    group = fields.get(f"{MARKERS}_group")
    return LetterOrigin(topic, group, _number(fields, "src_seq"))


def _number(fields: Mapping[str, Any], name: str) -> int:
    text = str(fields.get(f"{MARKERS}_{name}", ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else 0
