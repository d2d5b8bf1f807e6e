"""`RestoreCompletion`: the task that completes a restore which has left segments in the bucket that it was made from
(`docs/design/bucket.md` section 8).

While such segments are cold it renews the pin that keeps them there, and copies them home, one at a time and at most
`BYTES_PER_S`, those first that copies of records point to. A segment in a bucket that this daemon has taken over itself
stays there: its bases name it. When nothing needs the pin any more, the pin goes, and then `meta/restore`. Everything
is tried again after a failure, for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

import trio

from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.object_store import ObjectTooLarge, StoreError
from topics.bucket.pins import remove_pin, renew_pin
from topics.bucket.restored.restore_note import RestoreNote, remove_restore_note
from topics.errors import ApiError
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.maintenance.cold_removal import is_away
from topics.storage.maintenance.home_moves import HomeMoves
from topics.storage.maintenance.live_topic import LiveTopic
from topics.storage.segments.segment_pointer import SegmentPointer
from topics.storage.segments.topic_segments import Segment
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

BYTES_PER_S: Final = 32 << 20
"""The most that is copied home (bytes per second), as the reclaimer writes."""

RENEW_S: Final = 6 * 3600.0
"""How often the pin is renewed (s), a fraction of its life, so that days of failures do no harm."""

RETRY_S: Final = 60.0
"""The wait after a renewal that has failed (s)."""

PAUSE_S: Final = 5.0
"""The wait between two passes (s), if there was something left to do."""


class CompletionState(NamedTuple):
    """What a pass has found. `left`: segments that have yet to come home; `own`: those in a bucket that the daemon has
    taken over."""

    left: int
    own: int


class RestoreCompletion:
    """Made by the daemon if there is a `meta/restore`. `run` is a task, `pass_over` makes one pass at once."""

    def __init__(
        self,
        note: RestoreNote,
        topics: Mapping[int, LiveTopic],
        moves: HomeMoves,
        segments: BucketSegments,
        *,
        fs: Fs,
        datadir: DataDir,
        clock: Clock,
        offload: Offload,
        has_base: Callable[[], bool] = lambda: False,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        """`topics` are the live ones by id. `has_base` says whether the daemon has made a base in its own bucket,
        `has_room` whether the disk takes more."""
        self.brought = 0
        """Segments that have come home."""
        self._note = note
        self._topics = topics
        self._moves = moves
        self._segments = segments
        self._fs = fs
        self._datadir = datadir
        self._clock = clock
        self._offload = offload
        self._has_base = has_base
        self._has_room = has_room
        self._is_told = False

    async def run(self) -> None:
        """Complete the restore, or be cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_pin)
            while True:
                state = await self.pass_over()
                if not state.left and (not state.own or self._has_base()):
                    break
                await trio.sleep(PAUSE_S)
            nursery.cancel_scope.cancel()
        while True:
            if await self.finish():
                break
            await trio.sleep(RETRY_S)
        log.info("restore_completed", source=self._note.url, segments=self.brought)

    async def renew(self) -> bool:
        """Renew the pin. Return False, and log it, if that fails."""
        try:
            objects = BoundedObjects(self._segments.store_at(self._note.url), self._offload)
            renew = partial(renew_pin, objects, self._note.pin, self._note.base, self._clock.now_ms())
            await self._offload.run(Pool.BUCKET_CHANGE, renew)
        except (StoreError, ObjectTooLarge, OSError) as error:
            log.error(
                "pin_not_renewed",
                source=self._note.url,
                error=str(error),
                consequence="after 7 days without a renewal the segments that are only there may be removed",
            )
            return False
        return True

    async def finish(self) -> bool:
        """Remove the pin, then the note. Return False, and log it, if that fails."""
        try:
            objects = BoundedObjects(self._segments.store_at(self._note.url), self._offload)
            await self._offload.run(Pool.BUCKET_CHANGE, partial(remove_pin, objects, self._note.pin))
            await self._offload.run(Pool.FILES, partial(remove_restore_note, self._fs, self._datadir))
        except (StoreError, OSError) as error:
            log.warning("pin_not_removed", source=self._note.url, error=str(error))
            return False
        return True

    async def pass_over(self) -> CompletionState:
        """Copy home what can be. A failure is logged; if the store does not answer, the pass ends."""
        left = own = 0
        is_gone = False
        for topic, segment in list(self._cold()):
            if topic.deleted or segment.tier != "cold":
                continue
            left += 1  # also if its pointer is damaged: the pin may be what keeps it
            try:
                pointer = await self._moves.pointer(topic.id, segment.first)
                if pointer.bucket != self._note.bucket:
                    left -= 1
                    continue
                if self._segments.is_own(pointer):
                    left -= 1
                    own += 1
                    continue
                if await self._moves.bring(topic, segment, fetches=not is_gone and self._has_room()):
                    left -= 1
                    self.brought += 1
                    self._is_told = False
                    await trio.sleep(segment.data_bytes / BYTES_PER_S)
            except (OSError, ApiError) as error:
                is_gone = is_gone or is_away(error)
                self._tell(topic, segment, error)
        for topic_id, first in sorted(self._moves.copied()):
            needed = await self._pointer_of_deleted(topic_id, first) if topic_id not in self._topics else None
            if needed is not None:
                left += not self._segments.is_own(needed)
                own += self._segments.is_own(needed)
        return CompletionState(left, own)

    async def _pointer_of_deleted(self, topic_id: int, first: int) -> SegmentPointer | None:
        """Return the pointer to a segment of a deleted topic, if it needs the pin: until checkpoints have stored the
        copies that point to it. None for one that is at home, or elsewhere."""
        try:
            pointer = await self._offload.run(Pool.FILES, partial(self._segments.pointer, topic_id, first))
        except OSError:
            return None
        return pointer if pointer.bucket == self._note.bucket else None

    async def _keep_pin(self) -> None:
        while True:
            renewed = await self.renew()
            await trio.sleep(RENEW_S if renewed else RETRY_S)

    def _cold(self) -> Iterator[tuple[LiveTopic, Segment]]:
        """Yield the cold segments, those first that copies point to."""
        cold = [
            (topic, span.segment)
            for topic in self._topics.values()
            for span in topic.log.stored.all()
            if isinstance(span.segment, Segment) and span.segment.tier == "cold"
        ]
        needed = {topic.id: self._moves.needed(topic.id) for topic, _ in cold}
        return iter(sorted(cold, key=lambda one: one[1].first not in needed[one[0].id]))

    def _tell(self, topic: LiveTopic, segment: Segment, error: Exception) -> None:
        """Log a failure, once until a segment has come home."""
        if not self._is_told:
            self._is_told = True
            log.warning("segment_not_home", topic=topic.name, first=segment.first, error=str(error))
