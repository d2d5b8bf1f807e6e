"""Schedules, while the log is replayed (`docs/design/schedules.md`).

Definitions are frames of shard 0, about no topic. A firing is a frame in the batch of its record; it counts even if the
topic is gone, or has the batch already, so it is read here and not where topics are replayed. The shards may be read in
any order: only the latest firing of an id counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from topics.schedules.schedule_events import Definition, schedule_event_from_wire
from topics.schedules.schedules import Schedules
from topics.storage.recovery.frame_batches import FrameBatch
from topics.storage.recovery.topic_catalog import TopicCatalog
from topics.storage.snapshots.snapshot import dump_rows, load_rows
from topics.storage.wal.frames import FrameType

_SCHEDULE: Final = int(FrameType.SCHEDULE)


class ScheduleReplay:
    """Applies what the log says about schedules. `topics` learns which ids were given out."""

    def __init__(self, topics: TopicCatalog, schedules: Schedules | None = None) -> None:
        """`schedules` are those that there are already."""
        self.schedules = Schedules() if schedules is None else schedules
        self._topics = topics

    def load(self, definitions: Sequence[bytes], times: Sequence[int]) -> None:
        """Take over the schedules of a snapshot. Raises ValueError."""
        self.schedules.load(definitions, times, load_rows)

    def note(self, batch: FrameBatch) -> None:
        """Apply the firings of a batch about a topic. Raises any exception for a malformed payload."""
        for row in batch.rows[-batch.controls :] if batch.controls else ():
            if row[2] == _SCHEDULE:
                self.apply(batch.extras[row[0]])

    def apply(self, payload: dict[str, Any]) -> None:
        """Apply the payload of a Schedule frame. Raises ValueError if it is none."""
        event = schedule_event_from_wire(payload)
        if isinstance(event, Definition):
            self._topics.next_id = max(self._topics.next_id, event.id + 1)
        self.schedules.apply(event)
        if isinstance(event, Definition):  # here and not in the first checkpoint, which is on the loop
            self.schedules.get(event.schedule).encoded = dump_rows(event.to_wire())
