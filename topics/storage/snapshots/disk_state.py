"""The state on disk of one topic of the running daemon, in log and snapshots."""

from __future__ import annotations

from topics.storage.wal.wal_files import LogPosition


class DiskState:
    """The newest part of a topic, and how far the log knows the topic."""

    __slots__ = ("applied_end", "base", "floor_logged", "part", "part_end", "seals_asked", "seals_done")

    def __init__(
        self,
        part: bytes | None = None,
        base: bytes | None = None,
        *,
        applied_end: LogPosition | None = None,
        floor_logged: int = 0,
    ) -> None:
        """`part` and `base` are what recovery has found; `base` is forgotten if there is a part."""
        self.part = part
        """Its part of a snapshot as it was last made durable, encoded."""
        self.base = base if part is None else None
        """The part that recovery began with, where the log had more and no part was made since."""
        self.applied_end = applied_end
        """Where the last published commit ends in the shard's log."""
        self.part_end = applied_end if part is not None else None
        """`applied_end` as its part has it."""
        self.floor_logged = floor_logged
        """The highest watermark in the log: ttl advances `evict_floor` past it without a frame of its own."""
        self.seals_asked = 0
        """How often somebody has asked to have the topic's active segment sealed."""
        self.seals_done = 0
        """How many of these calls a durable part has answered: what there was when they came is sealed."""

    @property
    def newest_part(self) -> bytes | None:
        """The part that the next start would begin with, but for what the log has; None if the log has all of it."""
        return self.part or self.base

    @property
    def seal_to_do(self) -> int:
        """Number of the last call for sealing that no part has answered; 0 if there is none."""
        return self.seals_asked if self.seals_asked > self.seals_done else 0

    @property
    def is_behind_log(self) -> bool:
        """Return True if the log has frames of the topic that its part does not know."""
        return self.applied_end is not None and self.applied_end != self.part_end

    def set_part(self, part: bytes, end: LogPosition) -> None:
        """This part is durable from now on; `end` is where it ends in the shard's log."""
        self.part, self.base, self.part_end = part, None, end

    def replace_newest_part(self, part: bytes | None) -> None:
        """The newest part has been written again, under another generation."""
        if self.part is not None:
            self.part = part
        elif self.base is not None:
            self.base = part
