"""The change or the firing of one schedule that is on its way. No firing is decided during a change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.schedules.schedule_events import Definition, ScheduleFired
from topics.storage.wal.frames import FrameType


class RunningSchedule:
    """The state of firings of the schedule of one name."""

    __slots__ = ("decided", "doubtful", "last_error", "retry_ms", "wake_at")

    def __init__(self) -> None:
        self.decided: trio.Event | None = None
        """Set when a firing that has its seq is published or has failed."""
        self.doubtful = False
        """True if it is not known whether the last firing is on disk, because the shard has failed. The schedule then
        fires nothing."""
        self.last_error: ApiError | None = None
        """Why the last attempt was refused; None if it was not."""
        self.retry_ms = 0
        """The pause after the last refusal."""
        self.wake_at: int | None = None
        """When it is looked at next (wall clock); entries of the heap with another time do not count."""


class FiringAttachment:
    """The frame that a firing adds to its append: the time that it was due at, in the same batch, synced."""

    __slots__ = ("_allowed", "_ended", "_event", "_running", "frames")

    def __init__(
        self,
        definition: Definition,
        ts: int,
        running: RunningSchedule,
        allowed: Callable[[], bool],
        ended: Callable[[ScheduleFired | None], None],
    ) -> None:
        """`allowed` tells whether it may still be decided. `ended` is called when it is published, and with None when
        it has failed."""
        event = ScheduleFired(definition.id, ts)
        self.frames: list[tuple[FrameType, dict[str, Any]]] = [(FrameType.SCHEDULE, event.to_wire())]
        self._running = running
        self._allowed = allowed
        self._event = event
        self._ended = ended

    def decide(self, topic: Topic) -> None:
        """The append gets its seq in this step. Raises `409 topic_exists_incompatible`, and `FiringOvertaken`."""
        refuse_ephemeral(topic)
        if not self._allowed():
            raise FiringOvertaken
        self._running.decided = trio.Event()

    def publish(self) -> None:
        """The record is published."""
        self._end(published=True)

    def fail(self) -> None:
        """Nobody knows whether the record is on disk."""
        self._end(published=False)

    def _end(self, *, published: bool) -> None:
        decided, self._running.decided = self._running.decided, None
        self._ended(self._event if published else None)
        assert decided is not None
        decided.set()


class RunAttachment:
    """The attachment that makes an append by `run` durable."""

    __slots__ = ()

    frames: tuple[tuple[FrameType, dict[str, Any]], ...] = ()

    def decide(self, topic: Topic) -> None:
        """Raises `409 topic_exists_incompatible`."""
        refuse_ephemeral(topic)

    def publish(self) -> None:
        """Do nothing."""

    def fail(self) -> None:
        """Do nothing."""


class FiringOvertaken(Exception):
    """The schedule was changed before the firing was decided."""


def refuse_ephemeral(topic: Topic) -> None:
    """Raise `409 topic_exists_incompatible` for a topic that stores no records."""
    if topic.ephemeral:
        raise ApiError(
            "topic_exists_incompatible",
            f"topic {topic.name!r} is ephemeral; what a schedule appends is on disk",
            detail={"topic": topic.name, "durability": "ephemeral"},
        )
