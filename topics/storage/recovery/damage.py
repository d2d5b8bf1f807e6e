"""Damage: bytes of the log that were synced and are missing or changed (`docs/spec/semantics.md` 8.10).

Responsible for reporting damage: where the bytes are, which seqs of which topics they held, and how many frames a
filler has to replace if salvage gives the bytes up. `log_end` decides between damage and a torn end; `salvage` gives
the range up.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from topics.storage.wal.wal_head import WalHead


class BadRange(NamedTuple):
    """The place of damage: offsets `start` (inclusive) to `stop` (exclusive) of one file of the log. `stop` may be
    beyond the end of a file that was cut short."""

    path: str
    ordinal: int
    """Ordinal of the file's first frame, from its name."""
    head: WalHead
    """The beginning of the file. If it is damaged, the whole file counts as damaged."""
    start: int
    stop: int


class LostSeqs(NamedTuple):
    """The seqs of one topic that a bad range held, both ends inclusive; `last` is None if the rest of the log does not
    show it."""

    first: int
    last: int | None


class DamagedContent(NamedTuple):
    """The content of a bad range, as far as the rest of the log shows it."""

    losses: Mapping[int, LostSeqs]
    """The lost seqs by topic id."""
    names: Mapping[int, str]
    """The names of known topics by id."""
    routed: Collection[int]
    """Ids of topics that routers or commits of stages may feed: a frame may stand for many of their seqs."""
    outstanding: Mapping[int, int]
    """By topic id, how many seqs earlier bad ranges may have held (`bare_fillers`)."""
    room: int
    """How many bytes of frames the range may have held: more than its length if the file has lost its end."""


class LostFrames(NamedTuple):
    """The frames that a bad range held, for the filler that would replace them (`docs/spec/crash.md` 15)."""

    first: int
    """Ordinal of the first lost frame in its shard."""
    replaces: int
    """How many frames were lost, according to the ordinal of the next file; 1 in the last file."""
    next_ordinal: int | None
    """Ordinal of the next file, None for the last one."""


class Damage(Exception):
    """Synced bytes of the log are missing or changed. Strict recovery refuses to start; salvage gives the range `where`
    up."""

    def __init__(self, where: BadRange, affected: DamagedContent, frames: LostFrames) -> None:
        self.where = where
        self.affected = affected
        self.frames = frames
        super().__init__(self.sentence())

    def sentence(self) -> str:
        """Return the message for the operator, one sentence."""
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
