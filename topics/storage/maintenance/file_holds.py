"""Which task may change the files of a topic, and when: shared by compactor, reclaimer and relocator
(`docs/spec/crash.md` 12, 13).

A *hold* keeps files as they are while the directory is copied: no reclaim, relocation or removal begins during one, and
checkpoints do not change the files that it names (`compactor`). Work that replaces files outside a checkpoint first
leaves a CheckpointMark with the topic's id in the log. It keeps the topic in `busy`, so that no snapshot's position
passes the mark before the work is done. A recovery that sees the mark reads the manifest and the directory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from topics.runtime.clock import Clock
from topics.storage.files.free_space import LOOK_MS
from topics.storage.maintenance.live_topic import LiveTopic, TopicSource
from topics.storage.segments.topic_segments import Segment, SegmentSet
from topics.storage.store import Store
from topics.storage.wal.batches import MaintenanceBatch
from topics.storage.wal.frames import FrameType, encode_control

MAX_HOLD_MS: Final = 600_000
"""The longest hold (ms). Longer requests are cut to it (`docs/spec/crash.md` 13)."""

OPERATOR: Final = "operator"
BASE: Final = "base"
"""Who wants a hold: an operator who copies the directory, or the archive, which makes a base of it."""

COLD_WAIT_S: Final = 5.0
"""How long a hold waits for work on cold files (s). Work that a hanging store delays beyond that leaves the files at
every moment as a crash might."""


class FileHolds:
    """The hold, and the topics whose files are being replaced. Made once by the engine, and shared by all
    maintenance."""

    def __init__(self, store: Store, source: TopicSource, clock: Clock) -> None:
        self._store = store
        self._source = source
        self._clock = clock
        self._one = trio.Lock()
        """Taken by each piece of work except checkpoints, so that a hold can wait for the present one."""
        self._held_until_ms: dict[str, int] = {}
        """Who wants the files to be held, and how long (`Clock.monotonic_ms`)."""
        self._calls = 0
        """How many calls have named files."""
        self._ended = trio.Event()
        """Set, and replaced, when somebody gives up a hold before its time."""
        self.busy: set[LiveTopic] = set()
        """Topics whose files are being replaced."""
        self._moving: dict[LiveTopic, Segment] = {}
        """Topics of which only one segment is being replaced."""
        self.littered: dict[LiveTopic, None] = {}
        """Topics with failed work: there may be files that no part names, which the reclaimer removes."""
        self.littered_cold: dict[LiveTopic, None] = {}
        """Topics with failed work on their files in the cold store."""
        self._cold_works = 0
        self._no_cold_work = trio.Event()
        self._no_cold_work.set()

    def needed_segments(self, topic_id: int) -> set[int]:
        """Return the first seqs of those segments of a topic that copies in other topics point to. They stay as they
        are until the copies are in segments of their own (`docs/spec/crash.md` 18)."""
        return {first for owner, first in self.copied_segments() if owner == topic_id}

    def copied_segments(self) -> set[tuple[int, int]]:
        """Return topic id and first seq of all segments that copies in other topics point to."""
        places = map(self._store.files.place_of, self._source.copied_files())
        return {(owner, first) for kind, owner, first in places if kind == "segment"}

    @property
    def held(self) -> bool:
        """Return True during a hold."""
        return self._left_ms > 0

    @property
    def _left_ms(self) -> int:
        return max(self._held_until_ms.values(), default=0) - self._clock.monotonic_ms()

    async def hold(self, ms: int, who: str = OPERATOR) -> None:
        """Keep all files for `ms` from now on, except for checkpoints. Returns when no other work on them is going
        on."""
        self.prolong(ms, who)
        async with self._one:
            pass
        with trio.move_on_after(COLD_WAIT_S):
            await self._no_cold_work.wait()

    def prolong(self, ms: int, who: str = OPERATOR) -> None:
        """Have a hold last `ms` from now on. Does not wait for work that is going on."""
        until = self._clock.monotonic_ms() + min(ms, MAX_HOLD_MS)
        self._held_until_ms[who] = max(self._held_until_ms.get(who, 0), until)

    @contextmanager
    def naming(self) -> Iterator[None]:
        """Keep all files during the body, which names them for an answer. Does not wait for work that is going on."""
        self._calls += 1
        call = f"call {self._calls}"
        self._held_until_ms[call] = self._clock.monotonic_ms() + MAX_HOLD_MS
        try:
            yield
        finally:
            self.end(call)

    def end(self, who: str) -> None:
        """Give up the rest of a hold. The files do not change while another hold has them."""
        if self._held_until_ms.pop(who, None) is not None:
            self._ended.set()
            self._ended = trio.Event()

    async def hold_over(self) -> None:
        """Wait until there is no hold, and the data directory is at its path. Cancelling leaves nothing behind."""
        # A hold may be prolonged while it lasts.
        while (left := self._left_ms) > 0:
            with trio.move_on_after(left / 1000):
                await self._ended.wait()
        while self._store.space.displaced:  # noqa: ASYNC110 - `FreeSpace.watch` measures twice a second
            await trio.sleep(LOOK_MS / 1000)

    @asynccontextmanager
    async def files_of(self, segment_set: SegmentSet | None) -> AsyncIterator[None]:
        """Lock a topic's files, to remove some that are no longer needed. The body is finished even if cancelled."""
        await self.hold_over()
        async with self._one:
            if segment_set is None:
                with trio.CancelScope(shield=True):
                    yield
                return
            async with segment_set.hot_lock:
                with trio.CancelScope(shield=True):
                    yield

    @asynccontextmanager
    async def cold_files_of(self, segment_set: SegmentSet) -> AsyncIterator[None]:
        """Lock a topic's cold files. Delays no work on hot files: those are locked by `files_of`, which may be entered
        within. May be cancelled at any time."""
        await self.hold_over()
        async with segment_set.cold_lock:
            if not self._cold_works:
                self._no_cold_work = trio.Event()
            self._cold_works += 1
            try:
                yield
            finally:
                self._cold_works -= 1
                if not self._cold_works:
                    self._no_cold_work.set()

    def is_replacing(self, topic: LiveTopic, segment: Segment) -> bool:
        """Return True if the files of this segment may be about to change."""
        return topic in self.busy and self._moving.get(topic, segment) is segment

    @asynccontextmanager
    async def replacing(self, topic: LiveTopic, segment: Segment | None = None) -> AsyncIterator[bool]:
        """Lock a topic's files, to replace some of them; with `segment`, only those of one segment. Yields False if the
        topic is deleted and nothing is to be done.

        Raises ApiError if the mark cannot be logged. The body is finished: a cancellation comes after it.
        """
        assert topic.segment_set is not None
        async with self.files_of(topic.segment_set):
            if topic.deleted:
                yield False
                return
            self.busy.add(topic)
            if segment is not None:
                self._moving[topic] = segment
            try:
                await self.mark(topic, {})
                yield True
            except BaseException:
                self.littered[topic] = None
                raise
            finally:
                self.busy.discard(topic)
                self._moving.pop(topic, None)

    async def mark(self, topic: LiveTopic, payload: dict[str, Any]) -> None:
        """Log a mark of a topic, and wait until it is on disk: the next start reads the topic's files. Raises ApiError
        if it cannot be logged, for want of room too: the caller has the topic's files locked."""
        mark = encode_control(FrameType.CHECKPOINT_MARK, payload, topic_id=topic.id, ts=self._source.now_ms())
        batch = MaintenanceBatch(mark, 1, topic_id=topic.id, wants_sync=True)
        self._store.writers[topic.shard].submit(batch)
        await batch.wait_synced()
