"""Calls of a store that never return, or return too late: in real threads, which wait for events."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import trio

from tests.bucket.simulated_objects import SimFault, SimObjects
from topics.bucket.bounded_objects import SLOWEST, BoundedObjects
from topics.bucket.object_store import ObjectExists, StoreError, StoreErrorKind
from topics.bucket.settled_puts import SettledPuts
from topics.runtime.bounded_calls import BoundedCall, CallTimeLimit
from topics.runtime.offload import Pool, ThreadOffload
from topics.telemetry.figures import BucketFigures

SOON_S = 0.4
"""Long enough that a call that does not hang returns, on a busy machine too."""
LONG_S = 60.0


@pytest.fixture
def inner() -> Iterator[SimObjects]:
    store = SimObjects(blocks=True)
    yield store
    store.release()


def bounded(inner: SimObjects, timeout_s: float, **bounds: int) -> BoundedObjects:
    return BoundedObjects(inner, ThreadOffload(dict.fromkeys(Pool, 4)), timeout_s, **bounds)


def hangs(store: SimObjects, *ops: str) -> None:
    store.faults = lambda op, name: SimFault.HANG if op in ops else None


def given_up(call: Callable[[], object]) -> None:
    with pytest.raises(StoreError, match=f"^the store did not answer within {SOON_S}") as failure:
        call()
    assert failure.value.kind is StoreErrorKind.TIMEOUT
    assert failure.value.is_transient
    assert failure.value.__context__ is None, "nothing of the machinery is shown"


def refused(call: Callable[[], object], what: str) -> None:
    with pytest.raises(StoreError, match=f"^the store does not answer: 2 {what} have not returned") as failure:
        call()
    assert failure.value.kind is StoreErrorKind.BUSY


def test_calls_that_return_are_as_those_of_the_store(inner: SimObjects) -> None:
    store = bounded(inner, LONG_S)
    etag = store.put_new("a", b"content")
    with pytest.raises(ObjectExists):
        store.put_new("a", b"other")
    assert store.get("a", 100) == (b"content", etag)
    assert store.get_range("a", 1, 2) == b"on"
    assert store.head("a").size == 7
    store.put_if("a", b"other", etag)
    assert [facts.name for facts in store.list("", limit=1)] == ["a"]
    store.delete(["a"])
    assert store.timeouts == 0


def test_a_call_that_hangs_is_given_up_and_takes_effect_when_it_returns(inner: SimObjects) -> None:
    hangs(inner, "put_new")
    store = bounded(inner, SOON_S)
    given_up(lambda: store.put_new("a", b"x"))
    assert (store.timeouts, store.hanging_changes.count, inner.objects) == (1, 1, {})
    figures = BucketFigures()
    store.look(figures)
    assert (figures.calls_hanging, figures.calls_timed_out) == (1, 1)
    assert {kind: count for kind, count in figures.calls_failed.items() if count} == {"timeout": 1}
    inner.release()
    until(lambda: store.hanging_changes.count == 0)
    assert inner.objects == {"a": b"x"}


def test_reads_and_changes_that_hang_have_places_of_their_own(inner: SimObjects) -> None:
    hangs(inner, "put_new", "get")
    store = bounded(inner, SOON_S, most_reads=2, most_changes=2)
    for _ in range(2):
        given_up(lambda: store.put_new("a", b""))
    calls = len(inner.calls)
    refused(lambda: store.put_if("a", b"", "x"), "changes")
    refused(lambda: store.delete(["a"]), "changes")
    assert len(inner.calls) == calls, "the store is not asked"
    assert store.list("") == []
    for _ in range(2):
        given_up(lambda: store.get("a", 0))
    refused(lambda: store.head("a"), "reads")
    assert (store.hanging_reads.count, store.hanging_changes.count, store.timeouts) == (2, 2, 4)
    inner.release()
    until(lambda: store.hanging_reads.count == store.hanging_changes.count == 0)
    inner.faults = lambda op, name: None
    store.delete(["a"])


class ImmediateOffload(ThreadOffload):
    """Notes how long each call may take."""

    def __init__(self) -> None:
        super().__init__(dict.fromkeys(Pool, 1))
        self.seconds: list[float] = []

    def attempt(self, call, time_limit, late):  # type: ignore[no-untyped-def]
        self.seconds.append(time_limit.seconds)
        return call(BoundedCall(CallTimeLimit(LONG_S), late))


def test_the_time_of_a_call_grows_with_its_bytes(inner: SimObjects) -> None:
    offload = ImmediateOffload()
    store = BoundedObjects(inner, offload, 30.0)
    store.put_new("a", bytes(SLOWEST))
    store.get("a", 4 * SLOWEST)
    store.head("a")
    assert offload.seconds == [31.0, 34.0, 30.0]


def test_at_the_stop_calls_that_are_waited_for_end_soon(inner: SimObjects) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def wait(op: str, name: str) -> None:
        entered.set()
        go_on.wait(LONG_S)

    inner.entered = wait
    store = bounded(inner, LONG_S)
    errors: list[StoreError] = []

    def put() -> None:
        try:
            store.put_new("a", b"x")
        except StoreError as error:
            errors.append(error)

    thread = threading.Thread(target=put)
    thread.start()
    assert entered.wait(LONG_S)
    store.hurry(SOON_S)
    thread.join(LONG_S)
    assert [error.kind for error in errors] == [StoreErrorKind.TIMEOUT]
    given_up(lambda: store.head("a"))
    go_on.set()
    until(lambda: store.hanging_changes.count == 0)


def test_a_put_is_settled_although_its_first_call_never_returns(inner: SimObjects) -> None:
    """In threads, as in a daemon: the call that hangs takes effect after the one that follows it, to no avail."""
    inner.faults = lambda op, name: SimFault.HANG if len(inner.calls) == 1 else None

    async def work() -> str:
        offload = ThreadOffload(dict.fromkeys(Pool, 4))
        puts = SettledPuts(BoundedObjects(inner, offload, SOON_S), offload, lambda state: None)
        return await puts.create("owner", b"ours")

    etag = trio.run(work)
    inner.release()
    assert inner.get("owner", 100) == (b"ours", etag)


def until(is_so: Callable[[], bool]) -> None:
    deadline = threading.Event()
    for _ in range(6000):
        if is_so():
            return
        deadline.wait(0.01)
    raise AssertionError("never")
