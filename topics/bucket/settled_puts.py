"""Puts whose outcome is known in the end, whatever answers are lost.

A put that was answered with an error, or not at all, may have been carried out; one that was answered with "exists" or
"changed" may have been carried out by an earlier attempt of the same put. All of these are decided by reading the
object back:

| what is there | what it means |
|---|---|
| the bytes that were put | the put is done: it is ours |
| other bytes | `TakenByOther`, with these bytes. For `replace`: unless it is still the object that is to be replaced |
| nothing | nothing is decided |
| no answer | nothing is decided |

While nothing is decided the same bytes are put again, after a wait, for as long as it takes. They must differ from the
bytes of every other process (by a nonce in them), and from those of every put of the same name before, since an
earlier attempt may arrive late: bytes that are there a second time have the ETag of the first time.

Waits begin at `FIRST_S` and double up to `LONGEST_S`; each is multiplied by a random number from 0.5 to 1, so that
processes that wait for the same store do not come back together.

These are tasks of the loop; the calls run in worker threads. Cancelling ends a wait at once; a call that is under way
is waited for first, as long as its deadline says (`BoundedObjects`). After Cancelled or `PutGivenUp` nobody knows
whether the put has been or will be carried out.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

import trio

from topics.bucket.object_store import (
    ObjectChanged,
    ObjectData,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoreError,
    StoreErrorKind,
)
from topics.runtime.offload import Offload, Pool
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

FIRST_S: Final = 0.1
LONGEST_S: Final = 30.0
"""The first and the longest wait before a put is repeated (s)."""

MAX_READ_BACK: Final = 64 << 20
"""Bytes of another's object that are read, several times those of the largest object that is put by condition."""


class TakenByOther(Exception):
    """There is an object of this name with other bytes: another process has put it. It is not ours, and never will be
    by this put. `data` and `etag` are the other's, for `replace` next."""

    def __init__(self, name: str, data: bytes, etag: str) -> None:
        super().__init__(f"the object {name} is another process's")
        self.name = name
        self.data = data
        self.etag = etag


class PutGivenUp(Exception):
    """`keep_on` said that the put is not to be repeated. It may have been carried out, or may yet be."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the put of {name} was given up; nobody knows if it has been carried out")
        self.name = name


class StoreState(NamedTuple):
    """Whether puts wait for the store, and why. It is for a log line, readiness and figures."""

    is_waiting: bool
    kind: StoreErrorKind | None
    """None if no put waits."""
    sentence: str
    """For an operator; empty if no put waits."""


GOOD: Final = StoreState(False, None, "")

FOREVER: Final[Callable[[], bool]] = lambda: True  # noqa: E731


def log_state(state: StoreState) -> None:
    """One line for a change of state."""
    if state.is_waiting:
        assert state.kind is not None
        log.error("bucket_waits", kind=state.kind.value, problem=state.sentence)
    else:
        log.info("bucket_answers")


class SettledPuts:
    """Puts in one store. `changed` is called in the loop with each new state: when the first put begins to wait, when
    the kind of error changes meanwhile, and when none waits any more."""

    def __init__(
        self,
        store: ObjectStore,
        offload: Offload,
        changed: Callable[[StoreState], None] = log_state,
        jitter: random.Random | None = None,
    ) -> None:
        self.state = GOOD
        self.attempts = 0
        """Puts that were sent, repetitions included."""
        self.failures: Counter[StoreErrorKind] = Counter()
        """Calls of puts that have failed, by kind."""
        self._store = store
        self._offload = offload
        self._changed = changed
        self._random = jitter or random.Random()
        self._waiting = 0

    @property
    def waiting(self) -> int:
        """How many puts have failed at least once and are not decided."""
        return self._waiting

    async def create(self, name: str, data: bytes, keep_on: Callable[[], bool] = FOREVER) -> str:
        """Have an object `name` with these bytes, and return its ETag; it may have been made by an earlier call with
        the same bytes. Raises TakenByOther, PutGivenUp, and ObjectTooLarge if there is another's object of more than
        `MAX_READ_BACK` bytes."""
        return await self._settle(_Put(name, data, None), keep_on)

    async def replace(self, name: str, data: bytes, etag: str, keep_on: Callable[[], bool] = FOREVER) -> str:
        """Replace the object that has this ETag, and return the new one. Raises TakenByOther, PutGivenUp and
        ObjectTooLarge as `create` does, and ObjectMissing if there is no object: somebody has deleted it.

        TakenByOther says whose object it is now. The put may have been carried out all the same, and its object been
        replaced by the other, who has seen it then.
        """
        return await self._settle(_Put(name, data, etag), keep_on)

    async def _settle(self, put: _Put, keep_on: Callable[[], bool]) -> str:
        failed, is_answered = 0, False
        try:
            while True:
                try:
                    result = await self._attempt(put)
                except (TakenByOther, ObjectMissing, ObjectTooLarge):
                    is_answered = True
                    raise
                if isinstance(result, str):
                    is_answered = True
                    return result
                failed += 1
                if failed == 1:
                    self._waiting += 1
                self.failures[result.kind] += 1
                self._show(StoreState(True, result.kind, result.sentence))
                if not keep_on():
                    raise PutGivenUp(put.name)
                await trio.sleep(self._pause(failed))
                if not keep_on():
                    raise PutGivenUp(put.name)
        finally:
            if failed:
                self._waiting -= 1
            if is_answered and not self._waiting:
                self._show(GOOD)

    async def _attempt(self, put: _Put) -> str | StoreError:
        """Put once, and read back if that is not clear. Returns the ETag, or why nothing is decided."""
        self.attempts += 1
        try:
            return await self._offload.run(Pool.BUCKET_CHANGE, partial(put.send, self._store))
        except (ObjectExists, ObjectChanged):
            problem = None
        except StoreError as error:
            problem = error
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._store.get, put.name, MAX_READ_BACK))
        except ObjectMissing:
            if put.etag is not None:
                raise
            return problem or StoreError(StoreErrorKind.CONFLICT, f"the object {put.name} is there and is not")
        except StoreError as error:
            return problem or error
        return put.judged(found, problem)

    def _pause(self, failed: int) -> float:
        longest = min(LONGEST_S, FIRST_S * 2.0 ** min(failed - 1, 30))
        return longest * self._random.uniform(0.5, 1)

    def _show(self, state: StoreState) -> None:
        is_news = (state.is_waiting, state.kind) != (self.state.is_waiting, self.state.kind)
        self.state = state
        if is_news:
            self._changed(state)


class _Put(NamedTuple):
    """What is put. `etag` is that of the object to be replaced, None if there must be none."""

    name: str
    data: bytes
    etag: str | None

    def send(self, store: ObjectStore) -> str:
        if self.etag is None:
            return store.put_new(self.name, self.data)
        return store.put_if(self.name, self.data, self.etag)

    def judged(self, found: ObjectData, problem: StoreError | None) -> str | StoreError:
        """What the object that is there says about the put."""
        if found.data == self.data:
            return found.etag
        if self.etag is None or found.etag != self.etag:
            raise TakenByOther(self.name, found.data, found.etag)
        return problem or StoreError(
            StoreErrorKind.CONFLICT, f"the object {self.name} has the ETag that was given, and is not replaced"
        )
