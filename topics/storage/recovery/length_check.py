"""Checks that every hot `.data` is as long as the part of its topic says. So the daemon finds a sealed file that was
cut short, or is missing, at the start, and not when it is read years later (`docs/spec/crash.md` 10,
`docs/spec/semantics.md` 8.4).

The start checks `AT_START` files, those of topics with frames in the log first: one call each, a few microseconds if
the directory is cached. The rest follows when the daemon is ready. Missing bytes are treated like any other damage:
their records become `corrupt` holes. The cold store is not asked, because no start may wait for it; a cold file that is
too short is found when it is read, and by `topics verify`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from topics.runtime.offload import Offload, Pool
from topics.storage.cache.span_loader import SpanLoader
from topics.storage.recovery.recovered_state import RecoveredState
from topics.storage.segments.segment_reader import SegmentTiers, shortened_to
from topics.storage.segments.topic_segments import Segment
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

AT_START: Final = 20_000
"""Files that are checked before the daemon is ready."""

SLICE: Final = 256
"""Files that are checked in one thread call."""


def check_at_start(recovered: RecoveredState, tiers: SegmentTiers, most: int = AT_START) -> list[int]:
    """Check the files of the first topics, and load those that are too short. Return the ids of the topics left for
    later. Blocking."""
    replayed_first = sorted(recovered.topics.values(), key=lambda topic: topic.id not in recovered.replayed)
    later: list[int] = []
    for topic in replayed_first:
        spans = [span for span in topic.log.stored.all() if span.live and isinstance(span.segment, Segment)]
        if len(spans) > most:
            later.append(topic.id)
            continue
        most -= len(spans)
        for span in spans:
            try:
                assert isinstance(span.segment, Segment)
                if shortened_to(tiers, span.segment) is None or not topic.log.stored.holds(span):
                    continue
                if recovered.columns.repair(topic, span) is not None:
                    recovered.columns.look_at(topic, span)
            except OSError as error:
                log.warning("length_unknown", topic=topic.name, first=span.first, error=str(error))
    return later


class LengthCheck:
    """Checks the files that were not checked at the start. Made by the engine; `run` is a background task."""

    def __init__(
        self, loader: SpanLoader, topics: Mapping[int, Any], account: Callable[[Any], None], offload: Offload
    ) -> None:
        """`topics` are the live topics by id, each a `SpanOwner`; `account` updates the totals of a topic that has lost
        records."""
        self.pending: list[int] = []
        """Ids of topics whose files have not been checked since the start."""
        self._loader = loader
        self._topics = topics
        self._account = account
        self._offload = offload

    async def run(self) -> None:
        """Check all files once. If a topic has an error, its files are checked only when they are read. May be
        cancelled at any time."""
        while self.pending:
            topic = self._topics.get(self.pending.pop())
            if topic is None or topic.segment_set is None:
                continue
            try:
                await self._check(topic)
            except OSError as error:
                log.warning("length_unknown", topic=topic.name, error=str(error))
        await trio.sleep_forever()

    async def _check(self, topic: Any) -> None:
        spans = [span for span in topic.log.stored.all() if span.live and isinstance(span.segment, Segment)]
        for at in range(0, len(spans), SLICE):
            segments = [span.segment for span in spans[at : at + SLICE] if isinstance(span.segment, Segment)]
            short = await self._offload.run(Pool.FILES, partial(_short_ones, self._loader.tiers, segments))
            if not short:
                continue
            seqs = [segments[i].end - 1 for i in short if await self._is_settled(topic, segments[i])]
            # Under the lock, because a file that is being replaced may look too short.
            async with topic.segment_set.hot_lock:
                await self._loader.reload(topic, seqs)
                if not topic.deleted:
                    self._account(topic)

    async def _is_settled(self, topic: Any, segment: Segment) -> bool:
        """Have a file that is too short repaired. Return False if it is not known yet whether it can be: then reads of
        its records find out."""
        span = topic.log.stored.at(segment.end - 1)
        try:
            if span is not None:
                await self._loader.repairs.repair(topic, span)
        except OSError:
            return False
        return True


def _short_ones(tiers: SegmentTiers, segments: Sequence[Segment]) -> list[int]:
    """Return the indexes of the segments whose `.data` is too short. Blocking."""
    return [i for i, segment in enumerate(segments) if shortened_to(tiers, segment) is not None]
