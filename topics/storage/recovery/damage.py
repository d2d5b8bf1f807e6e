"""Damage: bytes of the log that were synced and are not there any more (`docs/spec/semantics.md` 8.10).

Responsible for saying so: where the bytes are, which seqs of which topics they held, and how many frames a filler has
to stand for if salvage gives them up. That it is damage, and no torn end, is decided by `log_end`; giving it up is
`salvage`'s business.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from topics.storage.wal.wal_head import WalHead


class BadRange(NamedTuple):
    """Where damage is: offsets `start` (inclusive) to `stop` (exclusive) of one file of the log. `stop` may lie behind
    the end of a file that was cut short."""

    path: str
    ordinal: int
    """Of the file's first frame, which its name says."""
    head: WalHead
    """How the file begins. Where that is damaged, all of it is."""
    start: int
    stop: int


class LostSeqs(NamedTuple):
    """The seqs of one topic that a bad range held, both ends inclusive; `last` is None where nothing behind the range
    tells how many they were."""

    first: int
    last: int | None


class Affected(NamedTuple):
    """What a bad range held, as far as the rest of the log tells."""

    losses: Mapping[int, LostSeqs]
    """By topic id."""
    names: Mapping[int, str]
    """Of the topics that are known, by id."""
    routed: Collection[int]
    """Ids of topics that routers or commits of stages may feed: a frame may stand for many of their seqs."""
    outstanding: Mapping[int, int]
    """By topic id, how many seqs earlier ranges may have held, in front of those of this one (`bare_fillers`)."""
    room: int
    """How many bytes of frames the range may have held: more than it is long where the file has lost its end."""


class LostFrames(NamedTuple):
    """The frames that a bad range held, for the filler that would stand for them (`docs/spec/crash.md` 15)."""

    first: int
    """Ordinal of the first of them in their shard."""
    replaces: int
    """How many they were, as far as the ordinal of the next file tells; 1 in the last file."""
    next_ordinal: int | None
    """Ordinal of the next file, None for the last one."""


class Damage(Exception):
    """Bytes that were synced are not there any more. Strict recovery refuses to start; salvage gives `where` up."""

    def __init__(self, where: BadRange, affected: Affected, frames: LostFrames) -> None:
        self.where = where
        self.affected = affected
        self.frames = frames
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """What the operator has to know."""
        where, parts = self.where, []
        for topic_id, (first, last) in sorted(self.affected.losses.items()):
            name = self.affected.names.get(topic_id, f"id {topic_id}")
            parts.append(f"{name} seqs {first} to {last if last is not None else 'an unknown one'}")
        affected = "; ".join(parts) or "no records of a known topic"
        what = f"at offset {where.start} (bad up to {where.stop}), below what was synced"
        if where.head.problem is not None:
            what = f"at offset 0 (bad up to {where.stop}): {where.head.problem}, so nothing in the file can be verified"
        return (
            f"the log is damaged: {where.path} {what}; "
            f"affected: {affected}. "
            f"Restore the file from a copy, or start with TOPICS_RECOVERY=salvage to give the range up"
        )
