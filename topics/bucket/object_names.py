"""The names of the objects below the prefix (`docs/design/bucket.md` section 2). Pure."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

FORMAT: Final = "FORMAT"
OWNER: Final = "owner"
ROUNDS: Final = "rounds/"
BASES: Final = "bases/"
PACKS: Final = "packs/"
SEGMENTS: Final = "segments/"
PINS: Final = "pins/"
STANDBYS: Final = "standbys/"

MAX_EPOCH: Final = (1 << 24) - 1
"""Topics get ids from epoch x 2^32 on, which have to be below 2^56."""

MAX_NUMBER: Final = (1 << 62) - 1
"""Of rounds and bases."""

SegmentKind = Literal["data", "idx", "tags"]

_NUMBERED: Final = re.compile(r"(?:rounds|bases)/([0-9]{20})")
_PACK: Final = re.compile(r"packs/([0-9]{10})-([0-9]{10})")
_SEGMENT: Final = re.compile(r"segments/([0-9a-f]{16})/([0-9]{20})-([0-9]{10})-([0-9a-f]{16})\.(data|idx|tags)")


class PackName(NamedTuple):
    """A pack: the `number`-th of an epoch."""

    epoch: int
    number: int


class SegmentName(NamedTuple):
    """The files of one generation of a segment. `salt` is that of its `.data`, which every generation has of its own; 0
    without one. `epoch` is that in which it was uploaded."""

    topic_id: int
    first: int
    epoch: int
    salt: int


def round_name(number: int) -> str:
    """The name of round `number`."""
    return f"{ROUNDS}{number:020d}"


def base_name(number: int) -> str:
    """The name of the base for the end of round `number`."""
    return f"{BASES}{number:020d}"


def number_of(name: str) -> int | None:
    """The number of a round or a base; None for other names."""
    found = _NUMBERED.fullmatch(name)
    return int(found[1]) if found else None


def pack_name(pack: PackName) -> str:
    """The name of a pack."""
    return f"{PACKS}{pack.epoch:010d}-{pack.number:010d}"


def parse_pack(name: str) -> PackName | None:
    """The pack of this name; None for other names."""
    found = _PACK.fullmatch(name)
    return PackName(int(found[1]), int(found[2])) if found else None


def segment_name(segment: SegmentName, kind: SegmentKind) -> str:
    """The name of one file of a segment."""
    topic_id, first, epoch, salt = segment
    return f"{SEGMENTS}{topic_id:016x}/{first:020d}-{epoch:010d}-{salt:016x}.{kind}"


def parse_segment(name: str) -> tuple[SegmentName, str] | None:
    """The segment whose file has this name, and the kind of the file; None for other names."""
    found = _SEGMENT.fullmatch(name)
    if found is None:
        return None
    return SegmentName(int(found[1], 16), int(found[2]), int(found[3]), int(found[4], 16)), found[5]


def pin_name(uuid: str) -> str:
    """The name of a pin."""
    return f"{PINS}{uuid}"


def standby_name(dir_id: str) -> str:
    """The name of the announcement of the standby with this directory."""
    return f"{STANDBYS}{dir_id}"
