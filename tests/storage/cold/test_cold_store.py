"""Calls of the cold store that never return, or return too late: in real threads, which wait for events."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from topics.runtime.bounded_calls import CallTimeout
from topics.runtime.offload import Pool, ThreadOffload
from topics.storage.cold.cold_store import MOST_HANGING, MOST_HANGING_CHANGES, ColdStore, OpenAdmission
from topics.storage.files.fs import OsFs
from topics.storage.segments.segment_store import DirectorySegmentStore

DATA = "seg-00000000000000000001.data"
OTHER = "seg-00000000000000000009.data"
SOON_S = 0.05
LONG_S = 60.0


class Stuck(DirectorySegmentStore):
    """A directory whose calls wait where they are told to."""

    __slots__ = ("entered", "go_on", "stuck")

    def __init__(self, root: Path) -> None:
        super().__init__(OsFs(), str(root))
        self.stuck: set[str] = set()
        self.go_on = threading.Event()
        self.entered = threading.Semaphore(0)

    def _wait(self, name: str) -> None:
        if name in self.stuck:
            self.entered.release()
            self.go_on.wait(LONG_S)

    def read_range(self, topic_id: int, name: str, offset: int, length: int) -> bytes:
        self._wait("read")
        return super().read_range(topic_id, name, offset, length)

    def patch(self, topic_id: int, name: str, patches: Iterable[tuple[int, bytes]]) -> None:
        self._wait("patch")
        super().patch(topic_id, name, list(patches))

    def put(self, topic_id: int, name: str, chunks: Iterable[bytes]) -> int:
        length = super().put(topic_id, name, chunks)
        self._wait("put")
        return length


@pytest.fixture
def inner(tmp_path: Path) -> Iterator[Stuck]:
    stuck = Stuck(tmp_path)
    for topic_id in range(1, 20):
        stuck.put(topic_id, DATA, [b"0123456789"])
        stuck.put(topic_id, OTHER, [b"9876543210"])
    yield stuck
    stuck.go_on.set()


@contextmanager
def given_up(store: ColdStore) -> Iterator[None]:
    """A call that waits for the test to go on: nobody waits long for it. All others are given time."""
    store.time_limit.change(SOON_S)
    with pytest.raises(CallTimeout) as failure:
        yield
    assert failure.value.errno == errno.ETIMEDOUT
    store.time_limit.change(LONG_S)


def store_of(inner: Stuck, timeout_s: float = LONG_S) -> ColdStore:
    store = ColdStore(inner, ThreadOffload(dict.fromkeys(Pool, 1)), timeout_s, OpenAdmission())
    store.take_time()
    return store


def returned(store: ColdStore) -> None:
    """Wait until no call hangs any more."""
    for _ in range(1000):
        if not store.hanging:
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{store.hanging} calls hang")


def test_a_read_that_hangs_is_given_up_and_counted_until_it_returns(inner: Stuck) -> None:
    store = store_of(inner)
    inner.stuck = {"read"}
    with given_up(store):
        store.read_range(1, DATA, 0, 4)
    assert (store.hanging, store.timeouts) == (1, 1)
    inner.stuck = set()
    assert store.read_range(1, DATA, 0, 4) == b"0123"
    inner.go_on.set()
    returned(store)


def test_at_the_bound_of_reads_that_hang_further_ones_fail_at_once_and_changes_do_not(inner: Stuck) -> None:
    store = store_of(inner)
    inner.stuck = {"read"}
    for _ in range(MOST_HANGING):
        with given_up(store):
            store.read_range(1, DATA, 0, 4)
    inner.stuck = set()
    with pytest.raises(OSError, match="no more are made") as refused:
        store.read_range(1, DATA, 0, 4)
    assert not isinstance(refused.value, CallTimeout)
    assert store.put(1, OTHER, [b"x"]) == 1
    inner.go_on.set()
    returned(store)
    assert store.read_range(1, DATA, 0, 4) == b"0123"


def test_there_is_a_bound_of_changes_that_hang_too(inner: Stuck) -> None:
    store = store_of(inner)
    inner.stuck = {"patch"}
    for topic_id in range(1, MOST_HANGING_CHANGES + 1):
        with given_up(store):
            store.patch(topic_id, DATA, [(0, b"x")])
    with pytest.raises(OSError, match="no more are made"):
        store.patch(MOST_HANGING_CHANGES + 1, DATA, [(0, b"x")])
    assert store.read_range(MOST_HANGING_CHANGES + 1, DATA, 0, 1) == b"0"


def test_while_a_change_hangs_nothing_else_is_changed_of_its_topic_and_its_segment_is_not_read(inner: Stuck) -> None:
    """It takes effect when it likes: a later one would be undone by it, and a read in between is of neither."""
    store = store_of(inner)
    inner.stuck = {"patch"}
    with given_up(store):
        store.patch(1, DATA, [(0, b"x")])
    inner.stuck = set()
    for change in (
        lambda: store.put(1, OTHER, [b"new"]),
        lambda: store.delete(1, OTHER),
        lambda: store.delete_topic(1),
        lambda: store.discard_unfinished(1),
        lambda: store.patch(1, DATA, [(1, b"y")]),
    ):
        with pytest.raises(OSError, match="has not returned"):
            change()
    for kind in ("data", "idx"):
        with pytest.raises(OSError, match="has not returned"):
            store.read_range(1, DATA.replace("data", kind), 0, 1)
    assert store.read_range(1, OTHER, 0, 1) == b"9"
    assert store.put(2, DATA, [b"new"]) == 3
    inner.go_on.set()
    returned(store)
    assert store.read_range(1, DATA, 0, 1) == b"x"
    assert store.put(1, OTHER, [b"new"]) == 3


def test_a_put_that_gets_on_is_waited_for_however_long_it_takes(inner: Stuck) -> None:
    store = store_of(inner, timeout_s=2.0)

    def chunks() -> Iterator[bytes]:
        for _ in range(12):
            threading.Event().wait(0.2)
            yield b"x"

    assert store.put(1, OTHER, chunks()) == 12


def test_a_put_that_was_given_up_ends_at_its_next_chunk_without_a_trace(inner: Stuck, tmp_path: Path) -> None:
    store = store_of(inner)
    go_on = threading.Event()

    def chunks() -> Iterator[bytes]:
        yield b"new"
        go_on.wait(LONG_S)
        yield b"and more"

    with given_up(store):
        store.put(1, OTHER, chunks())
    go_on.set()
    returned(store)
    assert store.read_range(1, OTHER, 0, 20) == b"9876543210"
    assert not list(tmp_path.rglob("*.tmp"))


def test_one_that_hangs_behind_its_last_chunk_may_take_effect_later_and_holds_its_segment_until_then(
    inner: Stuck,
) -> None:
    store = store_of(inner)
    inner.stuck = {"put"}
    with given_up(store):
        store.put(1, OTHER, [b"new"])
    with pytest.raises(OSError, match="has not returned"):
        store.read_range(1, OTHER, 0, 20)
    inner.go_on.set()
    returned(store)
    assert store.read_range(1, OTHER, 0, 20) == b"new"


def test_a_start_and_a_stop_wait_for_one_call_and_no_more(inner: Stuck) -> None:
    store = store_of(inner)
    store.hurry(SOON_S)
    inner.stuck = {"read"}
    with pytest.raises(CallTimeout):
        store.read_range(1, DATA, 0, 4)
    inner.stuck = set()
    with pytest.raises(OSError, match="no more are made"):
        store.read_range(1, DATA, 0, 4)


def test_a_stop_ends_the_waits_that_have_begun(inner: Stuck) -> None:
    store = store_of(inner)
    inner.stuck = {"read"}
    failures: list[OSError] = []

    def read() -> None:
        try:
            store.read_range(1, DATA, 0, 4)
        except OSError as error:
            failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    assert inner.entered.acquire(timeout=LONG_S)
    store.hurry(0.0)
    reader.join(LONG_S / 2)
    assert not reader.is_alive()
    assert isinstance(failures[0], CallTimeout)


def test_an_error_of_the_store_is_the_callers(inner: Stuck) -> None:
    store = store_of(inner)
    with pytest.raises(FileNotFoundError):
        store.read_range(1, "seg-00000000000000000777.data", 0, 1)
    assert (store.hanging, store.timeouts) == (0, 0)


def test_whoever_waits_for_the_cold_store_is_no_pressure() -> None:
    offload = ThreadOffload(dict.fromkeys(Pool, 1))
    go_on = threading.Event()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for kind in (Pool.COLD_READ, Pool.COLD_FILES):
                nursery.start_soon(offload.run, kind, lambda: go_on.wait(LONG_S))
            await trio.testing.wait_all_tasks_blocked()
            share = offload.busy_share()
            nursery.start_soon(offload.run, Pool.CPU, lambda: go_on.wait(LONG_S))
            await trio.testing.wait_all_tasks_blocked()
            assert (share, offload.busy_share() > 0) == (0.0, True)
            go_on.set()

    trio.run(main)
