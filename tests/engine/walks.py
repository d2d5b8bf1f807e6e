"""Random walks of everything that can happen to topics, over several lives of the daemon: what those with queues and
those with routers have in common.

A walk is one life: steps are drawn, taken side by side, and judged by a truth that is kept beside the engine. A seed
decides everything.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
import trio

import tests.simulation.world as simulation
from tests.engine.life import records
from tests.simulation.offload import InlineOffload
from tests.simulation.world import COLD, Life, settings
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.model import Performance, ReadRequest, ReadResult
from topics.runtime.offload import Pool

T = TypeVar("T")

CONFIG: Final = settings(
    wal_shards=2,
    segment_max_events=8,
    segment_max_bytes=4096,
    segment_max_age_ms=0,
    hot_retain_segments=1,
    cold_dir=Path(COLD),
    min_free_bytes=0,
    delivery_workers=2,
)
"""With a cache of a few records hardly anything stays in memory: most is soon in the cold store."""

Step = Callable[[], Awaitable[None]]


class Wrong(BaseException):
    """The truth is another one. Nobody in the daemon takes it for a failure of theirs."""


class SlowOffload(InlineOffload):
    """A disk some of whose calls take their time: of each kind this share, one of these pauses."""

    def __init__(self, shares: Mapping[Pool, float], pauses: tuple[float, ...], seed: int | None = None) -> None:
        super().__init__(seed)
        self._shares = shares
        self._pauses = pauses
        self._chance = random.Random(seed)

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        if kind in self._shares and self._chance.random() < self._shares[kind]:
            with trio.CancelScope(shield=True):
                await trio.sleep(self._chance.choice(self._pauses))
        return await super().perform(kind, call)


@contextmanager
def slow_disks(shares: Mapping[Pool, float], *pauses: float) -> Iterator[None]:
    """Worlds have such disks."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "InlineOffload", partial(SlowOffload, shares, pauses))
        yield


class Walk:
    """One life of a random walk."""

    refusals: frozenset[str] = frozenset()
    """What a step may be answered with."""

    def __init__(self, seed: int, steps: int) -> None:
        self.random = random.Random(seed)
        self.steps = steps
        self.life: Life
        self._house = trio.Lock()

    async def attempt(self, work: Step) -> None:
        """Take a step, which may be refused."""
        try:
            await work()
        except ApiError as error:
            if error.code not in self.refusals:
                raise

    async def keep_house(self) -> None:
        async with self._house:  # one at a time, as the daemon does it
            kind = self.random.random()
            if kind < 0.6:
                await self.life.compactor.checkpoint()
            if kind > 0.4:
                await self.life.reclaimer.pass_over()
                await self.life.relocator.pass_over()

    async def step_clock(self) -> None:
        ms = self.random.choice((-5000, 300, 2000))
        self.stepped(ms)
        self.life.clock.step(ms)

    def stepped(self, ms: int) -> None:
        """The wall clock is about to be set by so much."""


async def read_all(engine: Engine, name: str, **options: Any) -> AsyncIterator[tuple[ReadResult, list[dict[str, Any]]]]:
    """A topic from its start to its end: each answer, with its records decoded."""
    position = 0
    while True:
        request = ReadRequest(from_seq=position, limit=1000, max_batch_bytes=8 << 20, **options)
        answer = await engine.reads.read(name, request, Performance())
        yield answer, records(answer)
        position = answer.next_from_seq
        if answer.caught_up:
            return
