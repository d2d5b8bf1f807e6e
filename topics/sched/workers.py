"""The delivery workers: they serve topics that have news, in the order of the ready set (`docs/spec/runtime.md` section
4).

Theory of operation. A topic with news is *marked* ready, once. It waits in the ready set of its shard, one of `S`, each
with a worker. The worker takes the next topic, calls `serve` for a bounded piece of work, and marks the topic again if
there is more. This module does not know how a topic is served: `serve` returns the cost.

Under pressure a topic that was served a moment ago is *held* until its coalescing window is over, so that the news of
that time makes one frame; the first news of a quiet topic is never held. The lowest band may be paused: its topics stay
where they are, and do not age.

At the bound: a topic is in one ready set at most once, so the sets hold at most all topics.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import trio

from topics.runtime.turns import Turns
from topics.sched.ready_set import ReadySet
from topics.telemetry.figures import SCHEDULING_BOUNDS_MS, Histogram

TURN_MS: Final = 1.0
"""After so long (ms) a worker lets other tasks run, and takes a turn for the next such piece of work."""


def _now_ms() -> float:
    return trio.current_time() * 1000


class Item(Protocol):
    """A thing that is scheduled: anything hashable with an id, here a topic."""

    id: int


T = TypeVar("T", bound=Item)


class ServiceResult(NamedTuple):
    """The outcome of serving an item: its cost in units (at least 1), whether there is more to do, and how long (ms)
    that may wait."""

    cost: int
    more: bool
    rest_ms: float = 0.0


class Scheduler(Generic[T]):
    """The ready sets and their workers. The engine makes one and runs `run`; items that are marked while it does not
    run wait.

    `priority_of` returns the effective priority of an item without waiting time. `serve` does one bounded piece of work
    and never waits.
    """

    def __init__(
        self, shards: int, priority_of: Callable[[T], int], serve: Callable[[T], ServiceResult], turns: Turns
    ) -> None:
        self._priority_of = priority_of
        self._turns = turns
        self._serve = serve
        self._shards = [_Shard[T]() for _ in range(shards)]
        self.coalesce_ms = 0.0
        """How long a topic is held after it was served (ms); set by the governor."""
        self.waits_ms = Histogram(SCHEDULING_BOUNDS_MS)
        self.lowest_paused = False
        self._waited_sum = 0.0
        self._waited_count = 0

    @property
    def shards(self) -> int:
        """The number of workers."""
        return len(self._shards)

    @property
    def depth(self) -> int:
        """The number of waiting topics."""
        return sum(len(shard.ready) for shard in self._shards)

    @property
    def servable_depth(self) -> int:
        """The number of waiting topics that are not paused: paused ones must not keep up the pressure that pauses
        them."""
        return self.depth - sum(shard.ready.paused for shard in self._shards)

    def mark(self, item: T) -> None:
        """Note that a topic has news: it will be served. Does nothing if it waits already."""
        shard = self._shards[item.id % len(self._shards)]
        if item in shard.ready or item in shard.held:
            return
        if self.coalesce_ms:
            until = shard.served_ms.get(item, float("-inf")) + self.coalesce_ms
            if until > _now_ms():
                shard.hold(item, until)
                return
        self._make_ready(shard, item)

    def _make_ready(self, shard: _Shard[T], item: T) -> None:
        shard.ready.add(item, self._priority_of(item), _now_ms())
        shard.wake.set()

    async def run(self) -> None:
        """Run all workers until cancelled."""
        async with trio.open_nursery() as nursery:
            for shard in self._shards:
                nursery.start_soon(self._work, shard)

    async def _work(self, shard: _Shard[T]) -> None:
        while True:
            began = _now_ms()
            while self._serve_next(shard):
                if _now_ms() - began >= TURN_MS:
                    break
            else:
                await shard.wait_for_work()
                continue
            await self._turns.take()

    def _serve_next(self, shard: _Shard[T]) -> bool:
        now = _now_ms()
        for item in shard.released(now):
            self._make_ready(shard, item)
        popped = shard.ready.pop(now)
        if popped is None:
            return False
        item, waited, band = popped
        self.waits_ms.observe(waited)
        self._waited_sum += waited
        self._waited_count += 1
        served = self._serve(item)
        shard.ready.charge(band, served.cost)
        if self.coalesce_ms:
            shard.served_ms[item] = now
        if served.more and served.rest_ms:
            shard.hold(item, _now_ms() + served.rest_ms)
        elif served.more:
            self._make_ready(shard, item)  # the rest of the same news is not held
        return True

    def take_mean_wait(self) -> float:
        """Return how long topics have waited on average (ms) since the last call; 0 if none had to."""
        mean = self._waited_sum / self._waited_count if self._waited_count else 0.0
        self._waited_sum, self._waited_count = 0.0, 0
        return mean

    def pace(self, coalesce_ms: float) -> None:
        """Set the coalescing window (ms). At 0 no topic is held any more."""
        self.coalesce_ms = coalesce_ms
        if not coalesce_ms:
            for shard in self._shards:
                shard.served_ms.clear()
                for item in shard.released(float("inf")):
                    self._make_ready(shard, item)
            return
        horizon = _now_ms() - coalesce_ms
        for shard in self._shards:
            shard.served_ms = {item: at for item, at in shard.served_ms.items() if at > horizon}

    # -- the lowest band ---------------------------------------------------------------------------------------------

    def pause_lowest(self) -> None:
        """Stop serving topics of negative priority. They do not age either."""
        if not self.lowest_paused:
            self.lowest_paused = True
            for shard in self._shards:
                shard.ready.pause_lowest(_now_ms())

    def resume_lowest(self) -> None:
        """Serve topics of negative priority again."""
        if self.lowest_paused:
            self.lowest_paused = False
            for shard in self._shards:
                shard.ready.resume_lowest(_now_ms())
                shard.wake.set()

    def is_paused(self, item: T) -> bool:
        """Return True if the topic is not served now because it is paused."""
        return self.lowest_paused and self._priority_of(item) < 0


class _Shard(Generic[T]):
    """The waiting topics of one worker."""

    def __init__(self) -> None:
        self.ready: ReadySet[T] = ReadySet()
        self.wake = trio.Event()
        self.served_ms: dict[T, float] = {}
        """When topics were last served; kept only while there is a coalescing window, and for no longer than it."""
        self.held: dict[T, None] = {}
        self._releases: list[tuple[float, int, T]] = []

    def hold(self, item: T, until_ms: float) -> None:
        self.held[item] = None
        heapq.heappush(self._releases, (until_ms, item.id, item))
        self.wake.set()

    def released(self, now_ms: float) -> list[T]:
        """Return the held topics whose window is over."""
        items = []
        while self._releases and self._releases[0][0] <= now_ms:
            item = heapq.heappop(self._releases)[2]
            del self.held[item]
            items.append(item)
        return items

    async def wait_for_work(self) -> None:
        """Wait until a topic is ready, or the next held one is due."""
        if self.wake.is_set():
            self.wake = trio.Event()
        if self.ready.servable:
            await trio.lowlevel.checkpoint()
            return
        left = (self._releases[0][0] - _now_ms()) / 1000 if self._releases else float("inf")
        with trio.move_on_after(max(left, 0)):
            await self.wake.wait()
