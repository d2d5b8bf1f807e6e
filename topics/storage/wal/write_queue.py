"""`WriteQueue`: the batches of one shard that wait to be written, and the appends that wait for room among them.

The queue is bounded by batches, by bytes, and by how far checkpoints are behind. At the bound an append waits (`admit`)
and is refused with 429 after `TOPICS_ADMISSION_MS`; frames that must not wait for appends are queued beyond it
(`docs/spec/crash.md` 25). Nothing here writes: `shard_writer` takes groups out.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import Final

import trio

from topics.errors import ApiError, throttled
from topics.runtime.clock import Clock
from topics.storage.wal.batches import LogCut, LogMark, MaintenanceBatch, SyncRequest, WalBatch
from topics.storage.wal.stall import Stall
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.figures import WalFigures

PATIENCE_MS: Final = 5
"""How long a batch without waiters may be delayed so that it can share a write."""

GROUP_BYTES: Final = 8 << 20
"""Bytes of one group at most: a disk takes two of them in a few ms while the next one gathers."""

QUEUE_BYTES: Final = 32 << 20
QUEUE_BATCHES: Final = 4096
"""The bounds of a queue. At either bound appends wait."""

RETRY_AFTER_MS: Final = 500
"""How long a client that found the queue full is told to wait (ms)."""


class WriteQueue:
    """The queue of one shard. Made by its `ShardWriter`; `close` must be called at the end."""

    def __init__(self, clock: Clock, figures: WalFigures, backlog_bytes: int, stall: Stall) -> None:
        self.is_urgent = False
        """Return True if a batch in the queue has waiters, so that a write must not be delayed."""
        self._clock = clock
        self._figures = figures
        self._backlog_bytes = backlog_bytes
        self._stall = stall
        self._closed: ApiError | None = None
        self._batches: deque[WalBatch] = deque()
        self._bytes = 0
        self._patient_from_ms = 0
        """When the oldest patient batch was queued; meaningless while the queue is urgent or empty."""
        self._stored_bytes = 0
        self._waiting = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[WalBatch]:
        return iter(self._batches)

    @property
    def first(self) -> WalBatch:
        """The batch that is written next. The queue must not be empty."""
        return self._batches[0]

    @property
    def is_full(self) -> bool:
        """Return True if an append has to wait for room."""
        return self._bytes >= QUEUE_BYTES or len(self._batches) >= QUEUE_BATCHES or self._is_behind

    @property
    def _is_behind(self) -> bool:
        """Return True if checkpoints do not keep up, so that too many records are in the log only."""
        return self._figures.bytes_written - self._stored_bytes >= self._backlog_bytes

    @property
    def patient_until_ms(self) -> float:
        """When batches without waiters have to be written (ms, monotonic); infinity for an empty queue."""
        return self._patient_from_ms + PATIENCE_MS if self._batches else math.inf

    # -- the way in ------------------------------------------------------------------------------------------------

    async def admit(self, admission_ms: int | None) -> float:
        """Wait for room in the queue, before seqs are assigned. Return how long that took (ms).

        `None` waits without limit (`disable_backpressure`). Raises `429 throttled` at the limit, `503 read_only` on a
        shard that takes no appends. Cancelling leaves nothing behind.
        """
        if self._closed is not None:
            raise self._closed
        if not self.is_full:
            return 0.0
        self._raise_refusal()
        self._figures.submit_full += 1
        started = self._clock.perf_ns()
        with trio.move_on_after(math.inf if admission_ms is None else admission_ms / 1000):
            while self.is_full and self._refusal is None:
                await self._waiting.park()
            self._raise_refusal()
            return (self._clock.perf_ns() - started) / 1e6
        if self._is_behind:
            raise throttled("wal_backlog_bytes", self._backlog_bytes, retry_after_ms=RETRY_AFTER_MS)
        raise throttled("wal_queue", QUEUE_BATCHES, retry_after_ms=RETRY_AFTER_MS)

    def put(self, batch: WalBatch, *, patient: bool) -> bool:
        """Queue a batch. Return True if the writer has to wake up: to write, or to set a timer."""
        self._batches.append(batch)
        self._bytes += len(batch.data)
        depth = len(self._batches)
        self._figures.queue_depth_peak = max(self._figures.queue_depth_peak, depth)
        if not patient or depth > QUEUE_BATCHES // 2:
            self.is_urgent = True
            return True
        if depth == 1:
            self._patient_from_ms = self._clock.monotonic_ms()
            return True
        return False

    def note_stored(self, bytes_written: int) -> None:
        """Note that a checkpoint has covered everything the shard had written by `bytes_written` (its figure of that
        name)."""
        self._stored_bytes = bytes_written
        if not self.is_full:
            self.wake_waiting()

    def wake_waiting(self) -> None:
        """Have all appends that wait for room check again."""
        self._waiting.unpark_all()

    @property
    def _refusal(self) -> ApiError | None:
        """Return the reason why no append may wait, None if it may."""
        return self._closed or self._stall.refusal

    def _raise_refusal(self) -> None:
        if self._refusal is not None:
            raise self._refusal

    # -- the way out -----------------------------------------------------------------------------------------------

    def take_group(self, room: int) -> list[WalBatch]:
        """Take the batches of the next write: at most `GROUP_BYTES`, and `room` bytes but for the first batch. Cuts and
        marks end a group."""
        group: list[WalBatch] = []
        total = 0
        while self._batches and total < GROUP_BYTES:
            size = len(self._batches[0].data)
            if (group and total + size > room) or isinstance(self._batches[0], LogCut | LogMark):
                break
            group.append(self._batches.popleft())
            total += size
        self._bytes -= total
        self.is_urgent = bool(self._batches)
        if not self.is_full:
            self.wake_waiting()
        return group

    def put_back(self, group: list[WalBatch]) -> None:
        """Put a group that was not written in front again."""
        self._batches.extendleft(reversed(group))
        self._bytes += sum(len(batch.data) for batch in group)
        self.is_urgent = bool(self._batches)

    def take_cut(self) -> LogCut:
        """Take the first batch, which is a cut."""
        cut = self._batches.popleft()
        assert isinstance(cut, LogCut)
        self.is_urgent = bool(self._batches)
        return cut

    def take_mark(self) -> LogMark:
        """Take the first batch, which is a mark."""
        mark = self._batches.popleft()
        assert isinstance(mark, LogMark)
        self.is_urgent = bool(self._batches)
        return mark

    def settle_requests(self, refusal: ApiError, synced: LogPosition) -> None:
        """Answer the maintenance batches, while nothing can be written, and everything written is synced up to
        `synced`. Requests for a sync and marks that have nothing to write before them are synced. All others, also
        cuts and frames, are refused."""
        waiting: deque[WalBatch] = deque()
        for batch in self._batches:
            if not isinstance(batch, MaintenanceBatch):
                waiting.append(batch)
                continue
            self._bytes -= len(batch.data)
            if isinstance(batch, LogMark) and not waiting:
                batch.reach(synced)
            elif isinstance(batch, SyncRequest) and not waiting and not isinstance(batch, LogCut):
                batch.on_synced()
            else:
                batch.on_failed(refusal)
        self._batches = waiting
        self.is_urgent = bool(waiting)

    def tell_of_delay(self, refusal: ApiError) -> None:
        """Answer the clients whose batches wait. The batches stay queued, because their seqs are given out."""
        for batch in self._batches:
            batch.on_delayed(refusal)

    def close(self, error: ApiError) -> list[WalBatch]:
        """End the queue for this reason: appends are admitted no more. Return the batches that were queued."""
        self._closed = error
        batches = list(self._batches)
        self._batches.clear()
        self._bytes = 0
        self.wake_waiting()
        return batches
