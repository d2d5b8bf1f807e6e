"""`Stall`: a shard whose log cannot go on for now, because the disk refuses what is needed before anything of the log
is written: the next file, its name, room in the current one.

Nothing is uncertain then, so the shard does not fail: it tries again, at growing intervals. Meanwhile appends are
refused; deletions, acks and config go on for as long as the current file has room, or can get some.
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
"""The intervals double from the one to the other."""

TELL_AFTER_MS: Final = 5000
"""When clients are told whose batches were taken before the stall and wait in it."""


class NoRoom(Exception):
    """The disk refuses something, and nothing of the log has been written. `error` is what it said."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.error = error


@contextmanager
def refused_outright() -> Iterator[None]:
    """Where nobody can wait, as at the start: what raises NoRoom raises the OSError that is behind it."""
    try:
        yield
    except NoRoom as problem:
        raise problem.error from None


class Stall:
    """See the module. Of one shard."""

    def __init__(self, shard: int, clock: Clock) -> None:
        self.refusal: ApiError | None = None
        """What an append is told; None while all is well."""
        self.retry_at_ms = 0
        """When to try again, by the monotonic clock; meaningless while all is well."""
        self._since_ms = 0
        self._shard = shard
        self._clock = clock
        self._interval_ms = FIRST_RETRY_MS

    @property
    def due(self) -> bool:
        """Whether it is time to try again."""
        return self.refusal is not None and self._clock.monotonic_ms() >= self.retry_at_ms

    @property
    def lasts(self) -> bool:
        """Whether nobody should be kept waiting for the end of it any longer."""
        return self.refusal is not None and self._clock.monotonic_ms() - self._since_ms >= TELL_AFTER_MS

    def begin(self, error: OSError) -> None:
        """The disk has refused, for the first time or again."""
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

    def end(self) -> None:
        """The disk has given what was asked for."""
        if self.refusal is not None:
            self.refusal = None
            log.warning("wal_shard_goes_on", shard=self._shard)
