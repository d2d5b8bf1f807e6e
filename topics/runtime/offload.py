"""The `Offload` seam: blocking calls in worker threads, one limiter per kind so that a slow kind starves no other.

In a simulation the calls run inline (`tests/simulation/offload.py`), which makes a seed decide everything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeVar

import trio

from topics.runtime.bounded_calls import Attempt, Patience, attempt

T = TypeVar("T")


class Kind(Enum):
    """What a blocking call is for; each kind has threads of its own (`docs/spec/runtime.md` section 2)."""

    WAL = "wal"
    HOT_READ = "hot_read"
    COLD_READ = "cold_read"
    COLD_FILES = "cold_files"
    CPU = "cpu"
    FILES = "files"


COLD: Final = frozenset({Kind.COLD_READ, Kind.COLD_FILES})
"""The kinds whose calls may touch the cold store. No other one ever does once the daemon is ready."""


class Offload(Protocol):
    """Where blocking calls run."""

    async def run(self, kind: Kind, call: Callable[[], T]) -> T:
        """Run `call` off the loop and return what it returns.

        Not abandoned on cancellation: a started call is waited for, because half a write with nobody looking is worse
        than a late cancellation.
        """
        ...

    def post(self, call: Callable[[], None]) -> None:
        """From inside an offloaded call: run `call` on the loop soon, in the order of posting, without waiting for
        it."""
        ...

    def attempt(self, call: Callable[[Attempt[T]], T], patience: Patience, late: Callable[[], None]) -> T:
        """From inside an offloaded call: run `call`, which may never return (`bounded_calls.attempt`)."""
        ...

    def busy_share(self) -> float:
        """Busy threads over all threads but those for the cold store, 0..1 (a signal of the governor)."""
        ...


class ThreadOffload:
    """Trio's worker threads, limited per kind."""

    def __init__(self, limits: dict[Kind, int]) -> None:
        self._limiters = {kind: trio.CapacityLimiter(limits[kind]) for kind in Kind}
        self._token: trio.lowlevel.TrioToken | None = None

    async def run(self, kind: Kind, call: Callable[[], T]) -> T:
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        return await trio.to_thread.run_sync(call, limiter=self._limiters[kind])

    def post(self, call: Callable[[], None]) -> None:
        assert self._token is not None, "post() is for code that run() has started"
        self._token.run_sync_soon(call)

    def attempt(self, call: Callable[[Attempt[T]], T], patience: Patience, late: Callable[[], None]) -> T:
        return attempt(call, patience, late)

    def busy_share(self) -> float:
        # Whoever waits for a cold store that is slow, or hangs, takes nothing from others.
        limiters = [limiter for kind, limiter in self._limiters.items() if kind not in COLD]
        return sum(limiter.borrowed_tokens for limiter in limiters) / sum(limiter.total_tokens for limiter in limiters)
