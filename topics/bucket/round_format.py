"""A round: the bytes that the log has got since the round before (`docs/design/bucket.md` section 3). Pure.

It is a container (`container`) whose header is a `RoundHead`, and whose body is the bytes of its runs, one run after
another, compressed together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import msgspec

from topics.bucket.container import BadObject, deflated, inflated, open_container, seal
from topics.bucket.object_names import MAX_EPOCH, MAX_NUMBER

MAGIC: Final = b"TOPICSR1"
MAX_ROUND_BYTES: Final = 96 << 20
"""Bytes of a round's runs that a reader takes. A round is cut at 16 MiB, and may exceed it by one batch."""

MAX_OBJECT_BYTES: Final = MAX_ROUND_BYTES + (16 << 20)
"""Of a round as it is stored."""

ROUND_FORMAT: Final = 3
"""Of the rounds that this version writes. 1: the log in it is of FORMAT 2 at most; 2: of FORMAT 3 at most; 3: with
`window_ms`. An older version refuses what it does not know here, before it meets such bytes."""

READABLE: Final = (1, 2, 3)
"""The formats of rounds that this version reads."""

_MOST: Final = 1 << 63

NO_HASH: Final = b""
"""`previous` of the first round of a prefix."""


class Run(NamedTuple):
    """Bytes of one file of the log: `length` from `offset` on. `ordinal` names the file in its shard."""

    shard: int
    ordinal: int
    offset: int
    length: int


class RoundHead(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a round says of itself."""

    format: int = ROUND_FORMAT
    bucket: str
    """The id of the bucket."""
    epoch: int
    number: int
    previous: bytes
    """The hash of the round before; empty in the first one of a prefix."""
    nonce: str
    """Of the process that has made it."""
    wall_ms: int
    """When its cut was taken (epoch ms); never less than that of the round before."""
    window_ms: int = 0
    """What the owner's clock of windows read then; 0 if that is not known. Leases and delays in the log are by it."""
    shards: int
    positions: list[tuple[int, int]]
    """By shard: file ordinal and offset behind the last byte that the rounds up to this one have."""
    runs: list[Run]
    """Ascending by shard and place. Each begins where the one before it in its shard has ended, in this round or an
    earlier one, or at the beginning of a file."""
    ends_cut: bool = True
    """False: the cut needs the next round, too. Nobody stops behind this one."""
    begins_history: bool = False
    """True: positions of earlier rounds mean nothing here; runs begin where files begin."""
    body_bytes: int
    """Length of all runs together."""


msgspec.msgpack.Decoder(RoundHead)  # for its types: finding them at the first use is not safe in several threads


class Round(NamedTuple):
    """A round that was read. `hash` is what the next one has as `previous`."""

    head: RoundHead
    body: bytes
    hash: bytes

    def pieces(self) -> Iterator[tuple[Run, memoryview]]:
        """Yield the runs with their bytes."""
        at, view = 0, memoryview(self.body)
        for run in self.head.runs:
            yield run, view[at : at + run.length]
            at += run.length


def encode_round(head: RoundHead, runs: Sequence[bytes]) -> bytes:
    """Return the bytes of a round. `runs` are the bytes of `head.runs`."""
    assert [len(run) for run in runs] == [run.length for run in head.runs]
    assert sum(map(len, runs)) == head.body_bytes
    return seal(MAGIC, msgspec.to_builtins(head, builtin_types=(bytes,)), deflated(runs))


def decode_round(blob: bytes) -> Round:
    """Return the round of these bytes. Raises BadObject, whatever they are."""
    opened = open_container(MAGIC, blob)
    try:
        head = msgspec.convert(opened.header, RoundHead)
    except msgspec.ValidationError as error:
        raise BadObject(f"its header is malformed: {error}") from error
    if head.format not in READABLE:
        raise BadObject(f"it has format {head.format}, which this version does not know")
    if any(value < 0 for run in head.runs for value in run) or sum(run.length for run in head.runs) != head.body_bytes:
        raise BadObject("its runs do not fit its body")
    if not 0 <= head.body_bytes <= MAX_ROUND_BYTES or len(head.positions) != head.shards:
        raise BadObject("its header contradicts itself")
    places = [value for position in head.positions for value in position]
    if (
        not 0 <= head.epoch <= MAX_EPOCH
        or not 0 <= head.number <= MAX_NUMBER
        or not 0 <= head.wall_ms < _MOST
        or not 0 <= head.window_ms < _MOST
        or any(not 0 <= value < _MOST for value in places)
        or any(value >= _MOST for run in head.runs for value in run)
    ):
        raise BadObject("a number in its header cannot be")
    return Round(head, inflated(opened.body, head.body_bytes), opened.hash)
