"""`Stall`: a shard whose log cannot continue for now, because the disk refuses what is needed before the log is
written: the next file, its name, or room in the current one.

Nothing is uncertain then, so the shard does not fail but tries again, at growing intervals. Meanwhile appends are
refused; deletions, acks and config changes go on as long as the current file has room, or can get some. When there is
none left for the batch that is next, the shard is *blocked*: changes of topics, stages and routers are refused too. A
client that waits for a change which was queued before is told after `TELL_AFTER_MS` (`topics.engine.commits`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from topics.errors import ApiError, read_only
from topics.runtime.clock import Clock
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

FIRST_RETRY_MS: Final = 100
LONGEST_RETRY_MS: Final = 2000
"""The intervals between attempts (ms) double from the first to the longest."""

TELL_AFTER_MS: Final = 5000
"""After so long a stall (ms), clients are told whose batches were queued before it and still wait. Who waits for a
change of a topic is told after having waited so long."""


class NoRoom(Exception):
    """The disk refuses something, and nothing of the log has been written. `error` is the disk's error."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def refused_outright() -> Iterator[None]:
    """Run a body in which waiting is impossible, as at the start: it raises the OSError behind a NoRoom."""
    try:
        yield
    except NoRoom as problem:
        raise problem.error from None


class Stall:
    """The stall of one shard, if any. Made by its `ShardWriter`, which calls `begin` and `end`."""

    def __init__(self, shard: int, clock: Clock) -> None:
        self.refusal: ApiError | None = None
        """The answer to appends during a stall; None without one."""
        self.retry_at_ms = 0
        """When to try again (ms, monotonic); meaningless without a stall."""
        self.is_blocked = False
        """Return True if what is queued does not fit on the disk, so that nothing that is queued now can be written."""
        self._since_ms = 0
        self._shard = shard
        self._clock = clock
        self._interval_ms = FIRST_RETRY_MS

    @property
    def due(self) -> bool:
        """Return True if it is time to try again."""
        return self.refusal is not None and self._clock.monotonic_ms() >= self.retry_at_ms

    @property
    def lasts(self) -> bool:
        """Return True if the stall has lasted so long that waiting clients are to be told."""
        return self.refusal is not None and self._clock.monotonic_ms() - self._since_ms >= TELL_AFTER_MS

    @property
    def blockage(self) -> ApiError | None:
        """Return the answer to calls that would have to be queued behind what does not fit; None if they may be."""
        return self.refusal if self.is_blocked else None

    def begin(self, error: OSError) -> None:
        """Note that the disk has refused, for the first time or again."""
        if self.refusal is None:
            self._since_ms = self._clock.monotonic_ms()
            self._interval_ms = FIRST_RETRY_MS
            log.error(
                "wal_shard_stalled",
                shard=self._shard,
                error=str(error),
                consequence="its appends are refused (503 read_only) until the disk has room; it is tried again",
            )
        else:
            self._interval_ms = min(2 * self._interval_ms, LONGEST_RETRY_MS)
        self.refusal = read_only(
            f"WAL shard {self._shard} has no room for its next file ({error.strerror or error}); it goes on by itself "
            "when there is some"
        )
        self.retry_at_ms = self._clock.monotonic_ms() + self._interval_ms

    def delay(self, error: OSError) -> ApiError:
        """Return the answer to clients whose batches wait."""
        return read_only(
            f"WAL shard {self._shard} waits for room on the disk ({error.strerror or error}). What was sent is not "
            "stored; it is kept in memory, and may still be written when there is room"
        )

    def end(self) -> None:
        """Note that the disk has given what was needed."""
        self.is_blocked = False
        if self.refusal is not None:
            self.refusal = None
            log.warning("wal_shard_goes_on", shard=self._shard)
