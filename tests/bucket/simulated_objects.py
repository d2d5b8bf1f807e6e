"""`SimObjects`: an object store in memory whose faults are determined by a seed, or by the test.

It is strongly consistent, as real stores are. What goes wrong is what goes wrong on the way: answers that are lost,
requests that arrive late, calls that never return. In an `InlineOffload` a call that never returns raises `StoreHang`;
in threads (`blocks`) it waits until `release`.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Final, TypeVar

from tests.simulation.disk import SimHang
from topics.bucket.object_store import (
    MAX_PAGE,
    ObjectChanged,
    ObjectData,
    ObjectExists,
    ObjectFacts,
    ObjectMissing,
    ObjectTooLarge,
    StoreError,
    StoreErrorKind,
    check_name,
    check_page,
    check_range,
)

T = TypeVar("T")

MOST_S: Final = 60.0
"""How long a call that never returns blocks a thread at most (s): a test that forgets it ends all the same."""


class SimFault(Enum):
    """What goes wrong with one call."""

    BEFORE = "before"
    """The request is lost: an error, and no effect."""
    AFTER = "after"
    """The answer is lost: an error, and the effect."""
    LATE = "late"
    """An error, and the effect comes at some time after it: before one of the next calls, or at `arrive`."""
    THROTTLED = "throttled"
    DENIED = "denied"
    CONFLICT = "conflict"
    """Two changes met: neither has an effect."""
    WRONG = "wrong"
    """The condition of a put is said not to hold, and there is no effect. Of other calls: an error."""
    HANG = "hang"
    """The call never returns. The effect comes late, or at `release`."""
    HANG_AFTER = "hang_after"
    """The call never returns. It has had its effect."""


SIM_FAULTS: Final = tuple(SimFault)

_KINDS: Final = {
    SimFault.BEFORE: StoreErrorKind.UNAVAILABLE,
    SimFault.AFTER: StoreErrorKind.UNAVAILABLE,
    SimFault.LATE: StoreErrorKind.TIMEOUT,
    SimFault.THROTTLED: StoreErrorKind.THROTTLED,
    SimFault.DENIED: StoreErrorKind.DENIED,
    SimFault.CONFLICT: StoreErrorKind.CONFLICT,
    SimFault.WRONG: StoreErrorKind.CONFLICT,
}


class StoreHang(SimHang):
    """A call of the store that never returns."""

    def __init__(self, op: str) -> None:
        BaseException.__init__(self, f"{op} never returns, and nobody gives it up")

    def thaw(self) -> None:
        """Nothing else hangs."""


class SimObjects:
    """An `ObjectStore` in memory. `faults` is asked at each call what goes wrong with it, with the name of the method
    and that of the object; the default is nothing. `entered` is called at the beginning of each call: it may block."""

    def __init__(
        self,
        seed: int = 0,
        *,
        faults: Callable[[str, str], SimFault | None] = lambda op, name: None,
        entered: Callable[[str, str], None] = lambda op, name: None,
        now_ms: Callable[[], int] = lambda: 0,
        blocks: bool = False,
    ) -> None:
        self.faults = faults
        self.entered = entered
        self.calls: list[tuple[str, str]] = []
        """The method and the name of every call, in order."""
        self._random = random.Random(seed)
        self._now_ms = now_ms
        self._blocks = blocks
        self._lock = threading.RLock()
        self._released = threading.Event()
        self._objects: dict[str, tuple[bytes, str, int]] = {}
        self._version = 0
        self._late: list[Callable[[], object]] = []

    @property
    def objects(self) -> dict[str, bytes]:
        """The content of every object."""
        with self._lock:
            return {name: data for name, (data, _, _) in self._objects.items()}

    def copied(self) -> SimObjects:
        """A store with the same objects, and without faults. What is late here never arrives there."""
        with self._lock:
            copy = SimObjects(now_ms=self._now_ms)
            copy._objects, copy._version = dict(self._objects), self._version
        return copy

    def arrive(self) -> None:
        """Have everything that is late take effect, in an order that the seed determines."""
        with self._lock:
            while self._late:
                self._arrive_one()

    def release(self) -> None:
        """Let the calls that hang return, and everything arrive."""
        self._released.set()
        self.arrive()

    def put_new(self, name: str, data: bytes) -> str:
        def effect() -> str:
            if name in self._objects:
                raise ObjectExists(name)
            return self._set(name, data)

        return self._call("put_new", check_name(name), effect, ObjectExists(name))

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        def effect() -> str:
            if name not in self._objects or self._objects[name][1] != etag:
                raise ObjectChanged(name)
            return self._set(name, data)

        return self._call("put_if", check_name(name), effect, ObjectChanged(name))

    def get(self, name: str, max_bytes: int) -> ObjectData:
        def effect() -> ObjectData:
            data, etag, _ = self._found(name)
            if len(data) > max_bytes:
                raise ObjectTooLarge(name, len(data), max_bytes)
            return ObjectData(data, etag)

        return self._call("get", check_name(name), effect)

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        check_range(offset, length)
        return self._call("get_range", check_name(name), lambda: self._found(name)[0][offset : offset + length])

    def head(self, name: str) -> ObjectFacts:
        return self._call("head", check_name(name), lambda: self._facts(name))

    def delete(self, names: Sequence[str]) -> None:
        def effect() -> None:
            for name in names:
                self._objects.pop(name, None)

        self._call("delete", ",".join(check_name(name) for name in names), effect)

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        check_page(prefix, after, limit)

        def effect() -> Sequence[ObjectFacts]:
            names = sorted(name for name in self._objects if name.startswith(prefix) and name > after)
            return [self._facts(name) for name in names[:limit]]

        return [*self._call("list", prefix, effect)]

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, op: str, name: str, effect: Callable[[], T], wrong: Exception | None = None) -> T:
        self.entered(op, name)
        with self._lock:
            self.calls.append((op, name))
            while self._late and self._random.random() < 0.5:
                self._arrive_one()
            fault = self.faults(op, name)
            if fault is None:
                return effect()
            if fault in (SimFault.AFTER, SimFault.HANG_AFTER):
                _quietly(effect)
            elif fault is SimFault.LATE or (fault is SimFault.HANG and not self._blocks):
                self._late.append(effect)
        if fault in (SimFault.HANG, SimFault.HANG_AFTER):
            if not self._blocks:
                raise StoreHang(op)
            self._released.wait(MOST_S)
            if fault is SimFault.HANG:
                with self._lock:
                    return effect()
            raise StoreError(StoreErrorKind.UNAVAILABLE, f"the answer to a {op} came late, and is broken")
        if fault is SimFault.WRONG and wrong is not None:
            raise wrong
        raise StoreError(_KINDS[fault], f"the simulated store has the fault {fault.value} in a {op}")

    def _arrive_one(self) -> None:
        _quietly(self._late.pop(self._random.randrange(len(self._late))))

    def _set(self, name: str, data: bytes) -> str:
        self._version += 1
        etag = f'"{self._version}"'
        self._objects[name] = (data, etag, self._now_ms())
        return etag

    def _found(self, name: str) -> tuple[bytes, str, int]:
        if name not in self._objects:
            raise ObjectMissing(name)
        return self._objects[name]

    def _facts(self, name: str) -> ObjectFacts:
        data, etag, modified_ms = self._found(name)
        return ObjectFacts(name, len(data), etag, modified_ms)


def _quietly(effect: Callable[[], object]) -> None:
    """An effect that nobody is told of, if it does not come to nothing."""
    try:
        effect()
    except (ObjectExists, ObjectChanged, ObjectMissing, ObjectTooLarge):
        pass


def given_faults(faults: Iterable[SimFault | None]) -> Callable[[str, str], SimFault | None]:
    """These faults, one for each call, and none after them."""
    left = iter(faults)
    return lambda op, name: next(left, None)


def random_faults(
    seed: int, share: float, kinds: Sequence[SimFault] = SIM_FAULTS
) -> Callable[[str, str], SimFault | None]:
    """A fault of these kinds in a share of the calls."""
    rng = random.Random(seed)
    return lambda op, name: rng.choice(kinds) if rng.random() < share else None
