"""`RoundWaits`: the batches that are synced here and wait until a round in the bucket has them (`docs/spec/bucket.md`
section 4).

To a batch that `wants_archive` it makes no difference that it waits: it is told of its sync later, when a written round
has it. Steps that depend on a sync, such as publication, the decision of a transaction, or a change of a topic's
config, depend on the round then. So nobody sees what is not in the bucket, and memory passes through the same states as
ever.

The shard writers add batches, in the order of the log. The archive says how far the rounds have each shard (`reach`),
and whether it works at all (`is_away`). A replay must begin at or before the oldest batch that waits (`starts`),
because the state does not have it yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol

import trio

from topics.errors import ApiError, not_archived, read_only
from topics.runtime.clock import Clock
from topics.storage.wal.wal_files import LogPosition

MOST_BATCHES: Final = 4096
MOST_BYTES: Final = 64 << 20
"""At either bound appends wait: several rounds of what the log takes."""

TELL_AFTER_MS: Final = 5000
"""Clients are told so long after their batch was synced that it waits for the bucket (ms)."""


class ArchivedBatch(Protocol):
    """A batch that is to be in a round before it counts. Its place is known: it has been written."""

    offset: int
    end: LogPosition | None
    is_urgent: bool
    """False if the next round that is made anyway is soon enough."""

    def on_synced(self) -> None:
        """It counts."""
        ...

    def on_failed(self, error: ApiError) -> None:
        """It is in the log, and will never be confirmed."""
        ...

    def on_delayed(self, error: ApiError) -> None:
        """It waits for an unknown time. May be repeated."""
        ...


class _WaitingBatch(NamedTuple):
    batch: ArchivedBatch
    end: LogPosition
    size: int
    start: tuple[LogPosition, int]
    """Where a replay may begin that is to see it: a place in the log, and the number of frames before it."""
    since_ms: int


class RoundWaits:
    """The waiting batches of all shards. Made by the store. Used in the loop only."""

    def __init__(self, clock: Clock) -> None:
        self.wanted: Callable[[], None] = lambda: None
        """Called when a round is wanted at once. Set by the archive."""
        self.count = 0
        self.bytes = 0
        self._clock = clock
        self._shards: dict[int, deque[_WaitingBatch]] = {}
        self._away: str | None = "the bucket has not been opened yet"
        self._away_since_ms = clock.monotonic_ms()
        self._closed: ApiError | None = None
        self._failed_starts: dict[int, tuple[LogPosition, int]] = {}
        self._room = trio.lowlevel.ParkingLot()

    # -- the shard writers -------------------------------------------------------------------------------------------

    def add(self, shard: int, batch: ArchivedBatch, start: tuple[LogPosition, int]) -> None:
        """Have a batch wait that a sync has covered. `start` is a synced place of the shard from before the batch."""
        end = batch.end
        assert end is not None
        if self._closed is not None:
            self._failed_starts.setdefault(shard, start)
            batch.on_failed(self._closed)
            return
        size = end.offset - batch.offset
        self._shards.setdefault(shard, deque()).append(
            _WaitingBatch(batch, end, size, start, self._clock.monotonic_ms())
        )
        self.count += 1
        self.bytes += size
        if batch.is_urgent:
            self.wanted()

    # -- the archive -------------------------------------------------------------------------------------------------

    def reach(self, positions: Sequence[LogPosition]) -> int:
        """Tell the batches before these places, by shard, that a round has them. Return how many they are."""
        reached = 0
        for shard, waiting in self._shards.items():
            while waiting and waiting[0].end <= positions[shard]:
                self._take(waiting).batch.on_synced()
                reached += 1
        if not self.is_full:
            self._room.unpark_all()
        return reached

    def set_away(self, problem: str | None) -> None:
        """Note why nothing gets into the bucket now; None if it does."""
        if problem is not None and self._away is None:
            self._away_since_ms = self._clock.monotonic_ms()
        self._away = problem
        if problem is None:
            self._room.unpark_all()

    def tell_of_delay(self) -> None:
        """Answer the clients whose batches have waited for `TELL_AFTER_MS`. The batches go on waiting."""
        late = self._clock.monotonic_ms() - TELL_AFTER_MS
        for waiting in self._shards.values():
            for one in list(waiting):
                if one.since_ms > late:
                    break
                one.batch.on_delayed(self.delay)

    def fail(self, error: ApiError) -> None:
        """Nothing that waits will be confirmed by this process, nor anything that is still added."""
        self._closed = error
        for shard, waiting in self._shards.items():
            if waiting:
                self._failed_starts.setdefault(shard, waiting[0].start)
            while waiting:
                self._take(waiting).batch.on_failed(error)
        self._room.unpark_all()

    def _take(self, waiting: deque[_WaitingBatch]) -> _WaitingBatch:
        one = waiting.popleft()
        self.count -= 1
        self.bytes -= one.size
        return one

    # -- others ------------------------------------------------------------------------------------------------------

    @property
    def is_away(self) -> bool:
        """Return True if nothing gets into the bucket now."""
        return self._away is not None

    @property
    def delay(self) -> ApiError:
        """The answer to clients whose changes wait for the bucket."""
        why = self._away or "it is slow"
        return read_only(f"the bucket has not taken the change ({why}). It waits, and may still be carried out then")

    @property
    def is_full(self) -> bool:
        """Return True if so much waits that an append has to wait first."""
        return self.count >= MOST_BATCHES or self.bytes >= MOST_BYTES

    def starts(self) -> dict[int, tuple[LogPosition, int]]:
        """Return, by shard, the place behind which no replay may begin, because the state lacks what is there."""
        starts = {shard: waiting[0].start for shard, waiting in self._shards.items() if waiting}
        for shard, start in self._failed_starts.items():
            starts[shard] = min(starts.get(shard, start), start)
        return starts

    def check(self, patience_ms: int) -> None:
        """Refuse a change of a `remote` topic. Raises `503 not_ready` if the bucket has been away for
        `patience_ms`."""
        if self._closed is not None:
            raise self._closed
        if self._away is not None and self._clock.monotonic_ms() - self._away_since_ms >= patience_ms:
            raise not_archived(self._away, remote=True)

    async def admit(self, patience_ms: float, *, remote: bool) -> None:
        """Wait until a change can be archived, before anything of it exists. `remote`: the class asks for that.
        Raises `503 not_ready` if the bucket is away, or too much waits for it, after `patience_ms`. Cancelling leaves
        nothing behind."""
        with trio.move_on_after(patience_ms / 1000):
            while (self._away is not None or self.is_full) and self._closed is None:
                await self._room.park()
        if self._closed is not None:
            raise self._closed
        if self._away is not None:
            raise not_archived(self._away, remote=remote)
        if self.is_full:
            raise not_archived("too much waits for a round", remote=remote)
