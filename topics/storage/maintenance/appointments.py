"""When the reclaimer has to look at a topic again because time alone causes work on it."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count
from typing import NamedTuple

from topics.storage.maintenance.live_topic import LiveTopic


class _Appointment(NamedTuple):
    at_ms: int
    """Of the retention clock, ms since the epoch."""
    number: int
    """No two have the same, so that topics are never compared."""
    topic: LiveTopic


class Appointments:
    """A heap of times, one for each topic or a few. Pure."""

    def __init__(self) -> None:
        self._later: list[_Appointment] = []
        self._due: dict[LiveTopic, int] = {}
        self._numbers = count()

    def make(self, topic: LiveTopic, times_ms: Sequence[int]) -> None:
        """Note the earliest of these times, unless an earlier one is noted."""
        if not times_ms:
            return
        at_ms = min(times_ms)
        if at_ms < self._due.get(topic, at_ms + 1):
            self._due[topic] = at_ms
            heapq.heappush(self._later, _Appointment(at_ms, next(self._numbers), topic))

    def due(self, now_ms: int) -> list[LiveTopic]:
        """Return the topics whose time has come, and forget these times."""
        found = []
        while self._later and self._later[0].at_ms <= now_ms:
            topic = heapq.heappop(self._later).topic
            self._due.pop(topic, None)
            found.append(topic)
        return found
