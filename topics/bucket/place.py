"""`Place`: behind which round an owner goes on, and the headers of the rounds that follow
(`docs/design/bucket.md` section 3). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from topics.bucket.round_format import Round, RoundHead, Run
from topics.storage.wal.wal_files import LogPosition


@dataclass(slots=True)
class Place:
    """Where the archive is: behind a round."""

    bucket: str
    """The id of the bucket."""
    epoch: int
    number: int
    hash: bytes
    wall_ms: int
    positions: list[LogPosition] | None
    """How far the rounds have the log, by shard; None if a history is to begin."""
    window_ms: int = 0
    """What the owner's clock of windows read when the last cut was taken; 0 if that is not known."""
    ends_cut: bool = True
    """Whether the round ends a cut."""
    round_epoch: int = 0
    """The epoch of the round."""
    is_begun: bool = False
    """Whether there is a round of this epoch."""
    history: int = 0
    """The first round of the history."""
    files: dict[tuple[int, int], int] = field(default_factory=dict)
    """By shard and ordinal of a file of the log, the round that has its first byte."""

    def begin(self, head: RoundHead, hash_: bytes) -> None:
        """Go on behind a round that this process has put."""
        self.is_begun = True
        self._go_on(head, hash_)

    def follow(self, found: Round) -> None:
        """Go on behind the next round, which somebody has put and whose bytes this directory has."""
        self._go_on(found.head, found.hash)

    def _go_on(self, head: RoundHead, hash_: bytes) -> None:
        self.number, self.hash, self.wall_ms = head.number, hash_, head.wall_ms
        self.window_ms = head.window_ms or self.window_ms
        self.ends_cut, self.round_epoch = head.ends_cut, head.epoch
        self.positions = [LogPosition(*position) for position in head.positions]
        if head.begins_history:
            self.history = head.number
            self.files.clear()
        for run in head.runs:
            if run.offset == 0:
                self.files[run.shard, run.ordinal] = head.number


def first_head(place: Place, begins: Sequence[LogPosition] | None, nonce: str, now_ms: int) -> RoundHead:
    """Return the header of the first round of an epoch, which is an empty one. Within a history it is the same moment
    of the log as the round before; a history begins at `begins`."""
    if place.positions is not None:
        return next_head(place, [], nonce, place.wall_ms, place.positions, not place.ends_cut)
    assert begins is not None
    return next_head(place, [], nonce, max(now_ms, place.wall_ms), begins, True)


def next_head(
    place: Place,
    runs: Sequence[Run],
    nonce: str,
    wall_ms: int,
    reached: Sequence[LogPosition],
    goes_on: bool,
    window_ms: int = 0,
) -> RoundHead:
    """Return the header of the round behind `place`. `goes_on`: nobody stops behind it. Without `window_ms` it says
    what the round before has said."""
    return RoundHead(
        bucket=place.bucket,
        epoch=place.epoch,
        number=place.number + 1,
        previous=place.hash,
        nonce=nonce,
        wall_ms=wall_ms,
        window_ms=window_ms or place.window_ms,
        shards=len(reached),
        positions=[(position.ordinal, position.offset) for position in reached],
        runs=list(runs),
        ends_cut=not goes_on,
        begins_history=place.positions is None,
        body_bytes=sum(run.length for run in runs),
    )
