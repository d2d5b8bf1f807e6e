"""`World`: the real engine, store and compactor on a simulated disk and clock, for one life after another.

A *life* is what the daemon does between two starts, wired as `topics.daemon` wires it, without HTTP. It ends in a clean
stop, in a kill of the process, or with the machine (`SimCrash` out of the disk). Nothing runs beside the loop and
Trio's own scheduling is seeded, and sets of topics and segments are in the order of their ids, so a seed decides a run.
A disk state taken anywhere (`wrecks_of`) can be given to a new world, which then recovers from it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import structlog
import trio
import trio.testing

from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import Op, SimCrash, SimFs
from tests.simulation.disk_state import CRASH_KINDS
from tests.simulation.offload import InlineOffload
from tests.simulation.packing import tiny_packing
from topics.bucket.bucket_segments import BucketSegments
from topics.config import Settings
from topics.engine.engine import Engine
from topics.storage.maintenance.compactor import Compactor
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.maintenance.relocator import Relocator
from topics.storage.store import Store

ROOT: Final = "/data"
COLD: Final = "/cold"
"""A second tier on the same disk: `settings(cold_dir=Path(COLD))`."""
End = Literal["kill", "drop", "keep", "tear", "reorder", "garble", "remount"]
"""How a life ends that does not stop cleanly: the process alone, the machine, or the process and then the mount of a
disk that refuses some writes."""

SETTINGS: Final = Settings(
    data_dir=Path(ROOT), wal_shards=1, wal_file_bytes=16 << 10, cache_bytes=4 << 10, segment_compression="off"
)
"""Small enough that a few dozen records rotate files and do not fit into the cache. With `segment_compression="zstd"`
everything that is sealed is packed (`tiny_packing`)."""


def settings(**changes: Any) -> Settings:
    """`SETTINGS` with some of them changed."""
    return replace(SETTINGS, **changes)


@dataclass(slots=True)
class Life:
    """What a scenario acts on while the daemon is up."""

    engine: Engine
    fs: SimFs
    clock: SimClock

    @property
    def store(self) -> Store:
        """The engine's store."""
        return self.engine.store

    @property
    def compactor(self) -> Compactor:
        """The engine's compactor; a scenario calls it, nothing else does."""
        return self.engine.compactor

    @property
    def reclaimer(self) -> Reclaimer:
        """The engine's reclaimer, likewise."""
        return self.engine.reclaimer

    @property
    def relocator(self) -> Relocator:
        """The engine's relocator, likewise."""
        return self.engine.relocator


Scenario = Callable[[Life], Awaitable[None]]


class World:
    """One machine. `live` runs lives on it; `after` is another machine with what this one leaves behind."""

    def __init__(
        self,
        seed: int = 0,
        *,
        config: Settings = SETTINGS,
        fs: SimFs | None = None,
        now_ms: int = BASE_MS,
        up_ms: int = 0,
    ) -> None:
        self.seed = seed
        self.settings = config
        self.fs = SimFs(seed) if fs is None else fs
        self.clock = SimClock(now_ms, up_ms=up_ms)
        self.offload: Callable[[int], InlineOffload] | None = None
        """What makes the `Offload` of a life, given the seed; None for `InlineOffload`."""
        self.events: list[dict[str, Any]] = []
        """What the daemon has logged, in all lives here."""
        self.drain_s = 0.0
        """How long the last clean stop has taken, in the world's time."""

    segments: Callable[[SimFs], BucketSegments] | None = None
    """What makes the cold store of a life, if that is a bucket. A test sets it for all machines."""

    def live(self, scenario: Scenario, *, end: Literal["stop", "kill"] = "stop") -> bool:
        """Start, run `scenario`, end. False if the machine died before; any other exception is raised as it was."""
        died = False
        _seed_trio(self.seed)
        with quiet(self.events), tiny_packing(self.settings):
            try:
                trio.run(
                    self._life,
                    scenario,
                    end,
                    clock=trio.testing.MockClock(autojump_threshold=0),
                    strict_exception_groups=True,
                )
            except BaseExceptionGroup as group:
                crashes, rest = group.split(SimCrash)
                if rest is not None:
                    raise _only(rest) from rest
                died = crashes is not None
            except SimCrash:
                died = True
        return not died

    def after(self, end: End, seed: int = 0) -> World:
        """The machine as its next start finds it, after a kill of the process or a crash of the machine now."""
        fs = disk_after(self.fs, end, seed)
        up_ms = self.clock.boottime_ms() if end in ("kill", "remount") else 0
        return World(self.seed + 1, config=self.settings, fs=fs, now_ms=self.clock.now_ms(), up_ms=up_ms)

    async def _life(self, scenario: Scenario, end: Literal["stop", "kill"]) -> None:
        fs, clock, offload = self.fs, self.clock, (self.offload or InlineOffload)(self.seed)
        segments = World.segments(fs) if World.segments is not None else None
        engine = Engine(self.settings, fs=fs, clock=clock, offload=offload, cold=segments, objects=segments)
        engine.store.lock("pid 1")
        try:
            async with trio.open_nursery() as daemon:
                await daemon.start(engine.run)
                await engine.recover()
                for writer in engine.store.writers:
                    await daemon.start(writer.run)
                daemon.start_soon(engine.delivery.scheduler.run)
                background = trio.CancelScope()
                daemon.start_soon(_housekeeping, engine, background)
                engine.open_for_business()
                await scenario(Life(engine, fs, clock))
                if end == "stop":
                    background.cancel()
                    began = trio.current_time()
                    await _drain(engine)
                    self.drain_s = trio.current_time() - began
                daemon.cancel_scope.cancel()
        finally:
            engine.store.unlock()


async def _housekeeping(engine: Engine, scope: trio.CancelScope) -> None:
    with scope:
        while True:
            await trio.sleep(0.5)
            engine.ceilings.lower_idle()
            await engine.keys.expire()


async def _drain(engine: Engine) -> None:
    """As `Daemon._drain`, behind HTTP."""
    engine.start_draining()
    await engine.quiesce()
    engine.ceilings.lower_all()
    await engine.announce_last_checkpoint()
    for writer in engine.store.writers:
        await writer.stop()
    if not any(writer.failed for writer in engine.store.writers):
        await engine.compactor.try_checkpoint(marks=False)


def disk_after(fs: SimFs, end: End, seed: int) -> SimFs:
    """The disk as the next process finds it."""
    if end == "kill":
        return fs.after_process_kill()
    if end == "remount":
        return fs.after_remount(CRASH_KINDS[seed % len(CRASH_KINDS)], seed)
    return fs.after_machine_crash(end, seed)


def _seed_trio(seed: int) -> None:
    """Have the order in which Trio runs what is ready depend on `seed` alone."""
    core: Any = trio._core._run
    core._ALLOW_DETERMINISTIC_SCHEDULING = True
    core._r.seed(seed)


def _only(group: BaseException) -> BaseException:
    """The exception of a group of one, so that tests can expect it by its type."""
    while isinstance(group, BaseExceptionGroup) and len(group.exceptions) == 1:
        group = group.exceptions[0]
    return group


@contextmanager
def quiet(events: list[dict[str, Any]] | None = None) -> Iterator[None]:
    """No log lines: thousands of recoveries would write them. What they would have said goes to `events`."""

    def keep(_logger: Any, _method: str, event: Any) -> Any:
        if events is not None:
            events.append(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[keep])
    try:
        yield
    finally:
        structlog.configure(**before)


# ----------------------------------------------------------------- the states that a crash can leave


@dataclass(frozen=True, slots=True)
class Wreck:
    """One moment of a life: the disk with what is pending on it, and what was known then."""

    point: int
    op: Op
    fs: SimFs
    known: int
    """How many entries the history had."""
    now_ms: int
    up_ms: int
    """How long the machine had been up."""

    def world(self, end: End, seed: int, config: Settings) -> World:
        """The machine after this way to end at this moment; asked as often as one likes."""
        fs = disk_after(self.fs, end, seed)
        up_ms = self.up_ms if end in ("kill", "remount") else 0
        return World(seed, config=config, fs=fs, now_ms=self.now_ms, up_ms=up_ms)

    def __str__(self) -> str:
        op = self.op
        return f"point {self.point}, before mutation {op.mutation}: {op.name} {op.path} {op.detail}"


def wrecks_of(world: World, known: Callable[[], int], *, stride: int = 1, first: int = 0) -> list[Wreck]:
    """A list that fills, while the world lives, with a wreck before every mutating operation (or every `stride`-th).

    A crash before operation n leaves the disk that a crash after operation n - 1 does, and all that was acked in
    between is known by then; so "before each" covers "after each".
    """
    wrecks: list[Wreck] = []

    def look(op: Op) -> None:
        if op.mutation is not None and op.mutation % stride == first % stride:
            clock = world.clock
            left = world.fs.after_process_kill()
            wrecks.append(Wreck(op.mutation, op, left, known(), clock.now_ms(), clock.boottime_ms()))

    world.fs.subscribe(look)
    return wrecks


def all_ends(point: int, seeds: int) -> list[tuple[End, int]]:
    """Every way to end at a point: those that are random with several seeds."""
    fixed: list[tuple[End, int]] = [("kill", 0), ("drop", 0), ("keep", 0)]
    chance: tuple[End, ...] = ("tear", "reorder", "garble")
    return fixed + [(kind, point * 100 + seed) for kind in chance for seed in range(seeds)]


def some_ends(point: int, count: int) -> list[tuple[End, int]]:
    """A sample of `all_ends`, another one at each point."""
    return random.Random(point).sample(all_ends(point, 1), count)
