"""A daemon of the simulation: what `topics.daemon` and `topics.standby` make of their parts, without HTTP, started
again whenever it has ended."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from tests.bucket.archived import ArchivedLife
from tests.bucket.standby_lives import URL
from tests.simulation.disk import SimCrash
from tests.simulation.world import ROOT
from tests.simulator.hang import leaves_of
from tests.simulator.replicas.judge import Judge
from tests.simulator.replicas.machine import Machine, MachineOffload
from topics.bucket.archive import Archive, ArchiveStopped
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.collector import BucketCollector
from topics.bucket.object_store import StoreError
from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.bucket.offline.bucket_restore import UNFINISHED
from topics.bucket.offline.restore_target import NothingToRestore
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_object import BucketRefused, LeaseTerms
from topics.bucket.ownership.start_claim import StartClaim
from topics.bucket.settled_puts import PutGivenUp
from topics.bucket.standby.directory import prepare_directory
from topics.config import Settings
from topics.engine.registry import Registry
from topics.errors import ApiError
from topics.standby import Standby
from topics.storage.files.datadir import DataDirError

GRACE_S: Final = 1.0
"""How long a daemon that has lost its lease answers reads (s)."""

TOPICS: Final = ("r", "o", "q")
"""The topics that readers of a standby watch."""

STOP_S: Final = 5.0
"""How long a clean stop may take before it is a kill (s)."""

AT_START: Final = (StoreError, PutGivenUp, ApiError, ArchiveStopped, NothingToRestore, BucketDamaged, DataDirError)
"""Why a process may end by itself: the next one goes on."""


class CutSource:
    """The topics as the archive sees them; each cut is noted by the machine."""

    def __init__(self, registry: Registry, machine: Machine) -> None:
        self._registry = registry
        self._machine = machine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._registry, name)

    @property
    def next_topic_id(self) -> int:
        return self._registry.next_topic_id

    @next_topic_id.setter
    def next_topic_id(self, value: int) -> None:
        self._registry.next_topic_id = value

    def begin_cut(self) -> None:
        self._registry.begin_cut()
        self._machine.heads = {
            topic.id: topic.assigned for topic in self._registry.topics.values() if not topic.ephemeral
        }


class Node:
    """One daemon, which is the owner or waits to become it."""

    yields = False
    """True if it follows another owner instead of being refused."""

    def __init__(self, machine: Machine, judge: Judge, settings: Settings, *, collects: bool) -> None:
        self.machine = machine
        self.name = machine.name
        self.life: ArchivedLife | None = None
        """While it serves, and during the grace."""
        self.follows: ArchivedLife | None = None
        """While it follows another one as a standby."""
        self.standby: Standby | None = None
        self.peers: list[Node] = []
        """All daemons."""
        self.epoch = 0
        self.taken = 0
        """How often it has taken over as a standby."""
        self.refusals: list[str] = []
        self._judge = judge
        self._settings = settings
        self._collects = collects
        self._stop = trio.Event()
        self._offload: MachineOffload | None = None
        self._threads: trio.Nursery | None = None
        """Of the present process: what renews its leases."""

    @property
    def is_owner(self) -> bool:
        """Return True if it serves, and holds the lease."""
        return self.life is not None and not self._stop.is_set() and self.life.engine.store.right.is_held

    def stop(self) -> None:
        """Have the process stop in order."""
        self._stop.set()

    async def run(self) -> None:
        """Start it again whenever it has ended."""
        machine = self.machine
        while True:
            with trio.CancelScope() as scope:
                await machine.started(scope)
                process = machine.process
                self._stop = trio.Event()
                self._offload = MachineOffload(machine, self.terms)
                try:
                    async with trio.open_nursery() as self._threads:
                        await self._live(self._offload)
                        self._threads.cancel_scope.cancel()
                except* SimCrash:
                    pass
                except* BucketRefused as group:
                    self._note_refusal(group)
                    machine.forget_disk()
                except* AT_START:
                    pass
                except* RuntimeError as group:
                    # At its end a process takes in no tasks any more; what was under way may still ask for one.
                    if any("Nursery is closed" not in str(error) for error in leaves_of(group)):
                        raise
            self.life = self.follows = self.standby = None
            if machine.process == process:
                machine.end_process()
            await trio.sleep(0.2 + 2 * machine.random.random())

    def _note_refusal(self, group: BaseExceptionGroup[BucketRefused]) -> None:
        """The operator reads why the start is refused, and moves the directory aside."""
        self.refusals += [str(error) for error in leaves_of(group)]

    # -- the owner ---------------------------------------------------------------------------------------------------

    async def _live(self, offload: MachineOffload) -> None:
        machine = self.machine
        fs, config = machine.disk(), self._settings
        life = ArchivedLife(config, fs, machine.clock, offload)
        engine, objects = life.engine, offload.objects
        async with trio.open_nursery() as nursery:
            claim = StartClaim(
                objects,
                self.terms(),
                fs,
                engine.store.datadir,
                clock=machine.clock,
                offload=offload,
                url=f"http://{self.name}",
                bucket_url=config.bucket,
                take=False,
                show=self._show,
                yields=self.yields,
                copies_all=True,
                workers=1,
            )
            await claim.run(is_empty=not fs.exists(ROOT) or bool({*fs.listdir(ROOT)} & {UNFINISHED}))
            engine.store.lock(self.name)
            try:
                engine.store.right.lease = claim.lease
                archive = life.archive = Archive(
                    config,
                    engine.store,
                    CutSource(engine.registry, machine),
                    engine.compactor,
                    objects,
                    fs=fs,
                    clock=machine.clock,
                    offload=offload,
                    nonce=claim.nonce,
                    dir_id=claim.dir_id,
                    ownership=claim.ownership,
                )
                machine.is_cut_whole = lambda: not archive._cuts._missing
                await nursery.start(engine.run)
                await engine.recover()
                await archive.prepare()
                engine.compactor.keeper = archive
                for writer in engine.store.writers:
                    await nursery.start(writer.run)
                nursery.start_soon(archive.run)
                nursery.start_soon(self._end_with_lease, claim, nursery)
                await self._serve(life, nursery, claim)
            finally:
                self.life = None
                if not fs.dead:
                    engine.store.unlock()

    async def _serve(self, life: ArchivedLife, nursery: trio.Nursery, claim: StartClaim) -> None:
        machine, engine, archive = self.machine, life.engine, life.archive
        offload = engine.offload
        bases = BaseWriter(
            archive,
            engine.compactor,
            clock=machine.clock,
            offload=offload,
            interval_ms=self._settings.bucket_base_ms,
        )
        tasks = [bases.run, engine.compactor.run]
        if self._collects:
            retain_ms = self._settings.bucket_retain_ms
            collector = BucketCollector(
                archive, bases, clock=machine.clock, offload=offload, retain_ms=retain_ms, wait_ms=2000
            )
            tasks += [collector.run, engine.reclaimer.run]
        for task in tasks:
            nursery.start_soon(task)
        await archive.vouch_for([writer.synced_position()[0] for writer in engine.store.writers])
        engine.open_for_business()
        self.epoch = archive.epoch
        if claim.lease.is_held:
            self._judge.ready(self.epoch, [node.name for node in self.peers if node is not self and node.is_owner])
            self._judge.look_at_owner(engine, f"{self.name}, ready in epoch {self.epoch},")
        self.life = life
        await self._stop.wait()
        with trio.move_on_after(STOP_S):
            await _drain(life)
        nursery.cancel_scope.cancel()

    def terms(self) -> LeaseTerms:
        """How it holds a lease."""
        assert self._offload is not None
        return LeaseTerms(
            self._settings.bucket_lease_ms, self._offload.objects, self.machine.clock.boottime_ms, self._start_keeper
        )

    def _start_keeper(self, keeper: LeaseKeeper) -> None:
        assert self._threads is not None
        with suppress(RuntimeError):  # the process is at its end, and takes nobody in
            self._threads.start_soon(self._renew, keeper)

    def _show(self, problem: str, owner: str) -> None:
        """Why it waits for the bucket, and for whom."""

    async def _renew(self, keeper: LeaseKeeper) -> None:
        pause_ms = keeper.lease.renew_every_ms
        while keeper.lease.is_held and not keeper._ending.is_set():
            await trio.sleep(pause_ms / 1000 / self.machine.clock.rate)
            await self.machine.unpaused()
            pause_ms = keeper.step()

    async def _end_with_lease(self, claim: StartClaim, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(0.2)
            await self.machine.unpaused()
            if not claim.lease.is_held:
                break
        if self.life is not None:
            self.life.engine.fence(claim.lease.refusal)
        await trio.sleep(GRACE_S)
        nursery.cancel_scope.cancel()


async def _drain(life: ArchivedLife) -> None:
    """As `Daemon._drain`, behind HTTP."""
    engine = life.engine
    engine.start_draining()
    await engine.quiesce()
    engine.ceilings.lower_all()
    engine.ceilings.lower_bucket_ceilings()
    await engine.announce_last_checkpoint()
    for writer in engine.store.writers:
        await writer.stop()
    if not any(writer.failed for writer in engine.store.writers):
        await engine.compactor.try_checkpoint(marks=False)
    await life.archive.finish()


class StandbyNode(Node):
    """A daemon with `TOPICS_ROLE=standby` and takeover: if it does not own the bucket, it follows the one that does.
    Its directory stays when it is killed."""

    yields = True

    def _note_refusal(self, group: BaseExceptionGroup[BucketRefused]) -> None:
        super()._note_refusal(group)
        self._judge.problems.append(f"{self.name}, which may be a standby, is refused: {self.refusals}")

    def _show(self, problem: str, owner: str) -> None:
        if owner:
            self.machine._scope.cancel()  # the next start follows that one

    async def _live(self, offload: MachineOffload) -> None:
        machine = self.machine
        await machine.unpaused()
        call = partial(prepare_directory, machine.disk(), ROOT, URL, offload.objects, 1, takes=True, copies_all=True)
        note = call()
        if note is None:
            await super()._live(offload)
        elif await self._follow(note, offload):
            await self._live(offload)

    async def _follow(self, note: Any, offload: MachineOffload) -> bool:
        """Follow. Return True if it has taken over."""
        fs = self.machine.disk()
        life = ArchivedLife(self._settings, fs, self.machine.clock, offload)
        engine = life.engine
        engine.store.lock(self.name)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(engine.run)
                standby = Standby(self._settings, engine, note, f"http://{self.name}")
                if not await standby.recover():
                    self._judge.problems.append(f"the log of {self.name} is damaged")
                    nursery.cancel_scope.cancel()
                    return False
                nursery.start_soon(engine.compactor.run)
                nursery.start_soon(engine.delivery.scheduler.run)
                engine.open_for_business()
                self.follows, self.standby = life, standby
                self.look()
                for name in TOPICS:
                    nursery.start_soon(self._watch, life, name)
                await standby.run()
                nursery.cancel_scope.cancel()
        finally:
            self.follows = self.standby = None
            if not fs.dead:
                engine.store.unlock()
        self.taken += standby.has_taken
        return standby.has_taken

    async def _watch(self, life: ArchivedLife, name: str) -> None:
        """A reader who looks whenever a topic has changed."""
        assert self.standby is not None
        follower = self.standby._follower
        assert follower is not None
        while True:
            topic = life.engine.registry.topics.get(name)
            await (follower.wait() if topic is None else topic.next_change().wait())
            if self.follows is life and not self.machine.is_paused:
                self.look(at_heads=True)

    def look(self, *, at_heads: bool = False) -> None:
        """Have the judge look at what it shows, or only at the heads."""
        assert self.standby is not None
        assert self.follows is not None
        follower = self.standby._follower
        assert follower is not None
        who = f"{self.name}, a standby,"
        self._judge.look_at_standby(
            self.follows.engine, follower.note.round, follower.note.hash, who, at_heads=at_heads
        )
