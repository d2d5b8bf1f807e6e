"""The cold store as the daemon uses it: a `SegmentStore` whose calls end, even if the store behind it hangs
(`docs/design/cold_store.md`).

Each call runs in a thread of its own and is waited for with a bound (`TOPICS_COLD_TIMEOUT_MS` without progress). A call
that has not returned by then *hangs*: its caller gets an OSError, and the call goes on, because nothing can end it. So

- there are at most `MOST_HANGING` hanging reads and `MOST_HANGING_CHANGES` hanging changes; at the bound every further
  one fails at once, until one of them returns;
- while a change hangs, nothing else of its topic is changed, and nothing is read of the segment it is about: it may
  take effect at any time;
- a `put` that was given up ends at its next chunk, without a trace.

`admission` decides which calls may reach the store at all: nothing is read, and above all nothing is changed, in a
directory that is not known to be ours (`identity`).
"""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol, TypeVar

from topics.runtime.bounded_calls import BoundedCall, CallTimeLimit, CallTimeout
from topics.runtime.offload import Offload
from topics.storage.segments.segment_store import SegmentStore
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

T = TypeVar("T")

MOST_HANGING: Final = 8
MOST_HANGING_CHANGES: Final = 4
"""Bounds of hanging calls, for reads and for changes. At a bound further calls fail at once."""

START_S: Final = 2.0
"""How long a start waits for the cold store (s)."""

STOP_S: Final = 0.5
"""How long a stop waits for the cold store (s), including calls made meanwhile."""


class Admission(Protocol):
    """Decides whether a store may be used. Both methods are called in the thread of a call, and raise OSError to refuse
    it."""

    def may_read(self) -> None:
        """Raise OSError unless objects may be read."""
        ...

    def may_change(self) -> None:
        """Raise OSError unless objects may be made, changed and removed."""
        ...


class OpenAdmission:
    """The admission of a store that is certainly ours."""

    def may_read(self) -> None:
        """Always allowed."""

    def may_change(self) -> None:
        """Always allowed."""


class ColdStore:
    """A `SegmentStore` around `inner`. Its methods block for a bounded time, raise OSError after that, and may be
    called from any thread but the loop's."""

    def __init__(self, inner: SegmentStore, offload: Offload, timeout_s: float, admission: Admission) -> None:
        self.timeouts = 0
        """How many calls have not returned in time since the start."""
        self._inner = inner
        self._offload = offload
        self._timeout_s = timeout_s
        self._admission = admission
        self.time_limit = CallTimeLimit(timeout_s)
        self._lock = threading.Lock()
        self._most = 1
        self._hanging: Counter[tuple[int, str] | None] = Counter()
        """How many calls hang: by topic and segment for changes, under None for reads."""
        self.hurry(START_S)

    def __repr__(self) -> str:
        return f"<ColdStore {self._inner!r}>"

    # -- patience ----------------------------------------------------------------------------------------------------

    @property
    def hanging(self) -> int:
        """How many calls hang now."""
        with self._lock:
            return self._hanging.total()

    def take_time(self) -> None:
        """Wait for calls as long as the settings say, from now on: the daemon is ready."""
        self._most = MOST_HANGING
        self.time_limit.change(self._timeout_s)

    def hurry(self, seconds: float = STOP_S) -> None:
        """At the start and at the stop: let no call be waited for longer than this, including calls being waited for
        already; and once a call hangs, wait for none."""
        self._most = 1
        self.time_limit.change(min(seconds, self._timeout_s))

    # -- the store ---------------------------------------------------------------------------------------------------

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        def call(attempt: BoundedCall[int]) -> int:
            return self._inner.put(topic_id, name, _pulled(chunks, attempt))

        return self._change(topic_id, name, call)

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        return self._read(topic_id, name, partial(self._inner.read_range, topic_id, name, offset, length))

    def read_stored(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        return self._read(topic_id, name, partial(self._inner.read_stored, topic_id, name, offset, length))

    def patch(self, topic_id: int, name: str, patches: Sequence[tuple[int, bytes]]) -> None:
        self._change(topic_id, name, lambda _: self._inner.patch(topic_id, name, patches))

    def delete(self, topic_id: int, name: str) -> None:
        self._change(topic_id, name, lambda _: self._inner.delete(topic_id, name))

    def exists(self, topic_id: int, name: str) -> bool:
        return self._read(topic_id, name, partial(self._inner.exists, topic_id, name))

    def length(self, topic_id: int, name: str) -> int:
        return self._read(topic_id, name, partial(self._inner.length, topic_id, name))

    def stored_length(self, topic_id: int, name: str) -> int:
        return self._read(topic_id, name, partial(self._inner.stored_length, topic_id, name))

    def topics(self) -> list[int]:
        return self._read(0, "", self._inner.topics)

    def delete_topic(self, topic_id: int) -> None:
        self._change(topic_id, "", lambda _: self._inner.delete_topic(topic_id))

    def finish_deletions(self) -> None:
        self._change(0, "", lambda _: self._inner.finish_deletions())

    def discard_unfinished(self, topic_id: int) -> None:
        self._change(topic_id, "", lambda _: self._inner.discard_unfinished(topic_id))

    def list(self, topic_id: int) -> list[str]:
        return self._read(topic_id, "", partial(self._inner.list, topic_id))

    # -- calls -------------------------------------------------------------------------------------------------------

    def look(self, call: Callable[[], T]) -> T:
        """Make a read that is admitted always: the one by which admission is decided."""
        return self._attempt(lambda _: call(), None)

    def _read(self, topic_id: int, name: str, call: Callable[[], T]) -> T:
        def admitted(_attempt: BoundedCall[T]) -> T:
            self._admission.may_read()
            return call()

        with self._lock:
            if name and self._hanging[topic_id, _segment(name)] > 0:
                raise OSError(errno.EBUSY, "a change of the cold segment has not returned")
        return self._attempt(admitted, None)

    def _change(self, topic_id: int, name: str, call: Callable[[BoundedCall[T]], T]) -> T:
        def admitted(attempt: BoundedCall[T]) -> T:
            self._admission.may_change()
            return call(attempt)

        key = (topic_id, _segment(name))
        with self._lock:
            if any(count > 0 for about, count in self._hanging.items() if about is not None and about[0] == topic_id):
                raise OSError(errno.EBUSY, "an earlier change of the topic's cold files has not returned")
        return self._attempt(admitted, key)

    def _attempt(self, call: Callable[[BoundedCall[T]], T], key: tuple[int, str] | None) -> T:
        """Make a call. `key` is the object that it changes, None for a read."""
        with self._lock:
            full = self._count(key) >= (self._most if key is None else min(self._most, MOST_HANGING_CHANGES))
        if full:
            raise OSError(errno.EAGAIN, "the cold store does not answer: calls hang, and no more are made meanwhile")
        try:
            return self._offload.attempt(call, self.time_limit, partial(self._returned, key))
        except CallTimeout:
            with self._lock:
                self.timeouts += 1
                self._hanging[key] += 1  # if it has returned at this very moment, the sum is right all the same
                hanging = self._hanging.total()
            log.error(
                "cold_call_hangs",
                store=repr(self._inner),
                hanging=hanging,
                consequence="what is cold cannot be read or moved until the store answers; all else goes on",
            )
            raise

    def _returned(self, key: tuple[int, str] | None) -> None:
        with self._lock:
            self._hanging[key] -= 1
        log.info("cold_call_returned", store=repr(self._inner))

    def _count(self, key: tuple[int, str] | None) -> int:
        """Return how many reads hang, or how many changes."""
        reads = self._hanging[None]
        return reads if key is None else self._hanging.total() - reads


def _segment(name: str) -> str:
    """Return the common part of the names of one segment's objects."""
    return name.split(".", maxsplit=1)[0]


def _pulled(chunks: Iterable[bytes], attempt: BoundedCall[int]) -> Iterator[bytes]:
    """Yield the chunks, counting each as progress; none after the call was given up."""
    for chunk in chunks:
        attempt.gets_on()
        yield chunk
    attempt.gets_on()
