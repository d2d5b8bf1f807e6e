"""Which segments are rewritten because they hold deleted bytes for too long, with any live share (`docs/spec/bucket.md`
2, `docs/design/bucket.md` 7).

With a bucket, what a user has deleted has to go from it, too. Objects of segments never change, so the bytes go when
the segment is rewritten here, a base names the new one, and the old one is needed by nobody. Records below the floor
(caps, ttl) count as deleted ones.

`Segment.dead_since_ms` says since when a segment holds deleted bytes. It is noted when the reclaimer looks at the
topic, soon after the deletion, and is lost with the process. A segment that a start has found counts as if it had held
them since its first record was stored. So a restart prolongs nothing; segments that were old then are rewritten early.
"""

from __future__ import annotations

from typing import Final

from topics.log.span import Span
from topics.storage.maintenance.live_topic import LiveTopic
from topics.storage.segments.topic_segments import Segment

SHORTEST_MS: Final = 60_000
"""No segment is rewritten more often than this because of deletions (ms)."""

AGAIN_MS: Final = 60_000
"""A segment that cannot be rewritten now is tried again so much later (ms): a hold may last, or a copy point to it."""


class Purges:
    """Looks for deleted bytes in segments. `after_ms`: a segment may hold them for so long; None for ever."""

    def __init__(self, after_ms: int | None) -> None:
        self._after_ms = max(after_ms, SHORTEST_MS) if after_ms is not None else None

    @property
    def is_on(self) -> bool:
        """Return True if segments are rewritten for their deleted bytes."""
        return self._after_ms is not None

    def look(self, topic: LiveTopic, now_ms: int) -> list[int]:
        """Note which segments of a topic hold deleted bytes, and have the active one sealed if it has for too long.
        Return when there is something to do (retention clock, ms), always in the future."""
        if self._after_ms is None:
            return []
        times = []
        for span in topic.log.stored.all():
            segment = span.segment
            if not isinstance(segment, Segment):
                continue
            if not _dead_frames(span, segment):
                segment.dead_since_ms = None
                continue
            if segment.dead_since_ms is None:
                segment.dead_since_ms = now_ms
            at = segment.dead_since_ms + self._after_ms
            times.append(max(at, now_ms + AGAIN_MS))
            if at <= now_ms and not segment.sealed and not topic.on_disk.seal_to_do:
                topic.on_disk.seals_asked += 1
                topic.mark_changed()  # so that the next checkpoint seals it
        return times

    def is_due(self, span: Span, segment: Segment, now_ms: int) -> bool:
        """Return True if a sealed segment is to be rewritten now: it has held deleted bytes for too long, and a rewrite
        removes some."""
        if self._after_ms is None or segment.dead_since_ms is None or segment.tier == "gone":
            return False
        if segment.dead_since_ms + self._after_ms > now_ms:
            return False
        return _dead_frames(span, segment) > len(span.unflagged or ())


def _dead_frames(span: Span, segment: Segment) -> int:
    """How many frames of a segment's `.data` are of records that are not live any more."""
    return segment.frames - span.live
