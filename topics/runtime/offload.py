"""Blocking calls in worker threads, behind the protocol `Offload`.

Each kind of call has its own limit on threads, so that slow calls of one kind do not hold up those of another. In a
simulation the calls run in the task itself (`tests/simulation/offload.py`), so that the seed determines everything.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, Protocol, TypeVar

import trio

from topics.runtime.bounded_calls import BoundedCall, CallTimeLimit, attempt

T = TypeVar("T")


class Pool(Enum):
    """The kinds of blocking calls. Each kind has its own limit on threads (`docs/spec/runtime.md` section 2)."""

    WAL = "wal"
    HOT_READ = "hot_read"
    COLD_READ = "cold_read"
    COLD_FILES = "cold_files"
    CPU = "cpu"
    FILES = "files"
    BUCKET_READ = "bucket_read"
    BUCKET_CHANGE = "bucket_change"


HOLDS_DISK: Final = frozenset({Pool.WAL, Pool.FILES, Pool.COLD_FILES})
"""The kinds that sync, allocate or remove files, which may hold up a write to the same file system."""

COLD: Final = frozenset({Pool.COLD_READ, Pool.COLD_FILES})
"""The kinds whose calls may use the cold store. Once the daemon is ready, no call of another kind does."""

BUCKET: Final = frozenset({Pool.BUCKET_READ, Pool.BUCKET_CHANGE})
"""The kinds whose calls use the object store, and nothing else does."""


class Offload(Protocol):
    """Runs blocking calls. `run` is for tasks of the loop; `post` and `attempt` are for code that `run` has started."""

    async def run(self, kind: Pool, call: Callable[[], T], *, holds_disk: bool = True) -> T:
        """Run `call` in a worker thread, and return its result or raise its exception.

        A call that has started is waited for even if the task is cancelled; Cancelled is raised after it. A write must
        not go on unobserved. `holds_disk` is False for a call of a kind in `HOLDS_DISK` that only writes.
        """
        ...

    def is_disk_free(self) -> bool:
        """Return True if no call of a kind in `HOLDS_DISK` has begun and not ended, those that only write excepted."""
        ...

    def post(self, call: Callable[[], None]) -> None:
        """Have the loop run `call` soon, without waiting for it. The loop runs posted calls in the order of posting."""
        ...

    def attempt(self, call: Callable[[BoundedCall[T]], T], time_limit: CallTimeLimit, late: Callable[[], None]) -> T:
        """Blocking: run `call`, which may never return, and give it up when `time_limit` ends
        (`topics.runtime.bounded_calls.attempt`)."""
        ...

    def busy_share(self) -> float:
        """The share of worker threads that are busy, 0 to 1, not counting those for the cold store and the object
        store. The governor uses it as a signal of pressure."""
        ...


class ThreadOffload:
    """Trio's worker threads, with the limits that are given for each kind."""

    def __init__(self, limits: dict[Pool, int]) -> None:
        self._limiters = {kind: trio.CapacityLimiter(limits[kind]) for kind in Pool}
        self._token: trio.lowlevel.TrioToken | None = None
        self._holding = 0
        """Calls under way that may hold up a write."""

    async def run(self, kind: Pool, call: Callable[[], T], *, holds_disk: bool = True) -> T:
        if self._token is None:
            self._token = trio.lowlevel.current_trio_token()
        holding = holds_disk and kind in HOLDS_DISK
        self._holding += holding
        try:
            return await trio.to_thread.run_sync(call, limiter=self._limiters[kind])
        finally:
            self._holding -= holding

    def is_disk_free(self) -> bool:
        return not self._holding

    def post(self, call: Callable[[], None]) -> None:
        assert self._token is not None, "post() is for code that run() has started"
        self._token.run_sync_soon(call)

    def attempt(self, call: Callable[[BoundedCall[T]], T], time_limit: CallTimeLimit, late: Callable[[], None]) -> T:
        return attempt(call, time_limit, late)

    def busy_share(self) -> float:
        # A slow store holds up only the calls that use it, and is no sign of pressure.
        limiters = [limiter for kind, limiter in self._limiters.items() if kind not in COLD | BUCKET]
        return sum(limiter.borrowed_tokens for limiter in limiters) / sum(limiter.total_tokens for limiter in limiters)
