"""`BoundedObjects`: an `ObjectStore` whose calls end, even if the store behind it hangs.

Each call has a deadline: `timeout_s`, and the time that its bytes take at `SLOWEST` bytes a second. A call that has not
returned by then is given up: its caller gets a StoreError of the kind TIMEOUT, and the call goes on in its own thread,
because nothing can end it. It *hangs* until it returns, and may take effect until then. There are at most `MOST_READS`
hanging reads and `MOST_CHANGES` hanging changes; at a bound every further one fails at once (BUSY), until one of them
returns. Reads and changes are counted separately, so that neither stops the other.

How many calls run at once is the callers' business: they make them in worker threads of `Pool.BUCKET_READ` and
`Pool.BUCKET_CHANGE`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, TypeVar

from topics.bucket.object_store import (
    MAX_PAGE,
    ObjectData,
    ObjectFacts,
    ObjectStore,
    StoreError,
    StoreErrorKind,
)
from topics.runtime.bounded_calls import BoundedCall, CallTimeLimit, CallTimeout
from topics.runtime.offload import Offload
from topics.telemetry.figures import BucketFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

TIMEOUT_S: Final = 30.0
"""The deadline of a call, without the time for its bytes, if nothing else is said (s)."""

SLOWEST: Final = 512 * 1024
"""Bytes a second that a store must take or give."""

MOST_READS: Final = 16
MOST_CHANGES: Final = 8
"""Bounds of hanging calls."""

STOP_S: Final = 2.0
"""How long a stop waits for the store, in a call (s)."""


class HangingCalls:
    """The calls of one kind that have not returned in time. `what` is for log lines and errors: "reads", "changes"."""

    def __init__(self, what: str, most: int) -> None:
        self.what = what
        self._most = most
        self._lock = threading.Lock()
        self._count = 0

    @property
    def count(self) -> int:
        with self._lock:
            return self._count

    @property
    def is_full(self) -> bool:
        return self.count >= self._most

    def add(self, by: int) -> int:
        """Count a call, or one that has returned (-1). One that returns while it is being given up is counted down
        before it is counted, so the sum is right in the end."""
        with self._lock:
            self._count += by
            return self._count


class BoundedObjects:
    """An `ObjectStore` around `inner`. Its methods block for a bounded time, and are called in worker threads."""

    def __init__(
        self,
        inner: ObjectStore,
        offload: Offload,
        timeout_s: float = TIMEOUT_S,
        *,
        most_reads: int = MOST_READS,
        most_changes: int = MOST_CHANGES,
    ) -> None:
        self.timeouts = 0
        """How many calls have not returned in time since the start."""
        self._failures: Counter[StoreErrorKind] = Counter()
        self._inner = inner
        self._offload = offload
        self._timeout_s = timeout_s
        self._most_s: float | None = None
        self._lock = threading.Lock()
        self._waited_for: set[CallTimeLimit] = set()
        self.hanging_reads = HangingCalls("reads", most_reads)
        self.hanging_changes = HangingCalls("changes", most_changes)

    def __repr__(self) -> str:
        return f"<BoundedObjects {self._inner!r}>"

    def hurry(self, seconds: float = STOP_S) -> None:
        """At the stop: let no call be waited for longer than this, including those that are waited for already."""
        with self._lock:
            self._most_s = seconds
            waited_for = list(self._waited_for)
        for limit in waited_for:
            limit.change(min(seconds, limit.seconds))

    def look(self, figures: BucketFigures) -> None:
        """Add the figures of calls."""
        figures.calls_hanging = self.hanging_reads.count + self.hanging_changes.count
        with self._lock:
            figures.calls_timed_out = self.timeouts
            figures.calls_failed = {kind.value: self._failures[kind] for kind in StoreErrorKind}

    def put_new(self, name: str, data: bytes) -> str:
        return self._change(partial(self._inner.put_new, name, data), len(data))

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return self._change(partial(self._inner.put_if, name, data, etag), len(data))

    def get(self, name: str, max_bytes: int) -> ObjectData:
        return self._read(partial(self._inner.get, name, max_bytes), max_bytes)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self._read(partial(self._inner.get_range, name, offset, length), length)

    def head(self, name: str) -> ObjectFacts:
        return self._read(partial(self._inner.head, name), 0)

    def delete(self, names: Sequence[str]) -> None:
        self._change(partial(self._inner.delete, names), 0)

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        return self._read(partial(self._inner.list, prefix, after, limit), 0)

    def _read(self, call: Callable[[], T], size: int) -> T:
        return self._attempt(call, size, self.hanging_reads)

    def _change(self, call: Callable[[], T], size: int) -> T:
        return self._attempt(call, size, self.hanging_changes)

    def _attempt(self, call: Callable[[], T], size: int, hanging: HangingCalls) -> T:
        try:
            return self._attempt_bounded(call, size, hanging)
        except StoreError as error:
            with self._lock:
                self._failures[error.kind] += 1
            raise

    def _attempt_bounded(self, call: Callable[[], T], size: int, hanging: HangingCalls) -> T:
        if hanging.is_full:
            raise StoreError(
                StoreErrorKind.BUSY, f"the store does not answer: {hanging.count} {hanging.what} have not returned"
            )
        seconds = self._timeout_s + size / SLOWEST
        with self._lock:
            limit = CallTimeLimit(seconds if self._most_s is None else min(seconds, self._most_s))
            self._waited_for.add(limit)

        def made(_attempt: BoundedCall[T]) -> T:
            return call()

        try:
            return self._offload.attempt(made, limit, partial(self._returned, hanging))
        except CallTimeout:
            pass
        finally:
            with self._lock:
                self._waited_for.discard(limit)
        with self._lock:
            self.timeouts += 1
        count = hanging.add(1)
        log.error("bucket_call_hangs", store=repr(self._inner), kind=hanging.what, hanging=count)
        raise StoreError(StoreErrorKind.TIMEOUT, f"the store did not answer within {limit.seconds:g} s")

    def _returned(self, hanging: HangingCalls) -> None:
        count = hanging.add(-1)
        log.info("bucket_call_returned", store=repr(self._inner), kind=hanging.what, hanging=count)
