"""Daemons over one bucket, in a simulation: their clocks run at different rates, they are paused, cut off from the
store and killed, and answers of the store are lost. The `Judge` knows what clients were told and have seen, and says
what of `docs/spec/bucket.md` section 7 does not hold.

A node is what `topics.daemon` makes of these parts: the claim, the engine, the archive, bases. A machine that is lost
comes back with an empty disk.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import trio

from tests.bucket.archived import ArchivedLife, bucket_settings
from tests.bucket.simulated_objects import SimObjects
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.bucket.archive import Archive, ArchiveStopped
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.object_store import ObjectData, ObjectFacts, StoreError, StoreErrorKind
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_object import BucketRefused, LeaseTerms
from topics.bucket.ownership.start_claim import StartClaim
from topics.bucket.settled_puts import PutGivenUp
from topics.errors import ApiError

LEASE_MS: Final = 3000
GRACE_S: Final = 1.0
CLASSES: Final = ("remote", "fsync", "disk", "memory")
CONFIG: Final = bucket_settings(
    bucket_round_ms=700, bucket_takeover=True, bucket_lease_ms=LEASE_MS, admission_ms=500, wal_file_bytes=64 << 10
)


Script = Callable[["History"], Awaitable[None]]


class NodeClock(SimClock):
    """A clock that runs at a rate of its own, and shows another time than those of others."""

    def __init__(self, rate: float, offset_ms: int) -> None:
        super().__init__(up_ms=offset_ms)
        self.step(offset_ms)
        self.rate = rate

    def perf_ns(self) -> int:
        return int(super().perf_ns() * self.rate)


class NodeObjects:
    """The store as one node reaches it."""

    def __init__(self, inner: SimObjects, node: Node) -> None:
        self._inner = inner
        self._node = node

    def _call(self, op: str, *args: Any) -> Any:
        node = self._node
        if node.is_cut_off:
            raise StoreError(StoreErrorKind.UNAVAILABLE, "cut off")
        if node.random.random() < node.lost_answers:
            if node.random.random() < 0.5:
                with suppress(Exception):
                    getattr(self._inner, op)(*args)
            raise StoreError(StoreErrorKind.UNAVAILABLE, "an answer was lost")
        return getattr(self._inner, op)(*args)

    def put_new(self, name: str, data: bytes) -> str:
        return str(self._call("put_new", name, data))

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return str(self._call("put_if", name, data, etag))

    def get(self, name: str, max_bytes: int) -> ObjectData:
        found: ObjectData = self._call("get", name, max_bytes)
        return found

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return bytes(self._call("get_range", name, offset, length))

    def head(self, name: str) -> ObjectFacts:
        found: ObjectFacts = self._call("head", name)
        return found

    def delete(self, names: Any) -> None:
        self._call("delete", names)

    def list(self, prefix: str, after: str = "", limit: int = 1000) -> list[ObjectFacts]:
        return list(self._call("list", prefix, after, limit))


class NodeOffload(InlineOffload):
    """Worker threads that stand still while the node is paused."""

    def __init__(self, seed: int, node: Node) -> None:
        super().__init__(seed)
        self._node = node

    async def perform(self, kind: Any, call: Callable[[], Any]) -> Any:
        await self._node.unpaused()
        result = await super().perform(kind, call)
        await self._node.unpaused()
        return result


class Judge:
    """What clients were told, and what they have seen."""

    def __init__(self) -> None:
        self.acked: dict[tuple[int, int], Any] = {}
        """Data of acked records of the class `remote`, by id of the topic and seq."""
        self.seen: dict[tuple[int, int], Any] = {}
        self.newest_owner = 0
        """The highest epoch of which an owner has answered as ready."""
        self.problems: list[str] = []
        self.takeovers = 0
        self.answers = 0

    def see(self, topic_id: int, seq: int, data: Any) -> None:
        """A client has read a record, or was told its seq."""
        if self.seen.setdefault((topic_id, seq), data) != data:
            self.problems.append(f"seq {seq} of {topic_id} has two contents: {self.seen[topic_id, seq]}, {data}")

    def ready(self, epoch: int) -> None:
        """An owner is ready."""
        self.takeovers += epoch > self.newest_owner
        self.newest_owner = max(self.newest_owner, epoch)

    def answer(self, epoch: int) -> None:
        """An owner has acked a change."""
        self.answers += 1
        if epoch < self.newest_owner:
            self.problems.append(f"epoch {epoch} has acked a change after epoch {self.newest_owner} was ready")

    def end(self, found: dict[tuple[int, int], Any]) -> None:
        """These are all live records of the last owner."""
        for place, data in self.acked.items():
            if found.get(place) != data:
                self.problems.append(f"acked remote record {place} is {found.get(place)!r}, not {data!r}")
        for (topic_id, seq), data in found.items():
            self.see(topic_id, seq, data)


class Node:
    """A daemon that is started again and again."""

    yields = False
    """True if it follows another owner instead of being refused."""

    def __init__(self, name: str, objects: SimObjects, judge: Judge, seed: int, rate: float) -> None:
        self.name = name
        self.random = random.Random(f"{name} {seed}")
        self.clock = NodeClock(rate, self.random.randrange(10**9))
        self.is_cut_off = False
        self.lost_answers = 0.0
        self.life: ArchivedLife | None = None
        """While it serves, and during the grace."""
        self.follows: ArchivedLife | None = None
        """While it follows another one as a standby."""
        self.epoch = 0
        self.refusals: list[str] = []
        self._objects = NodeObjects(objects, self)
        self._judge = judge
        self._seed = seed
        self._fs: SimFs | None = None
        self._resumed = trio.Event()
        self._resumed.set()
        self._scope = trio.CancelScope()

    # -- what happens to it ------------------------------------------------------------------------------------------

    def pause(self) -> None:
        self._resumed = trio.Event()

    def resume(self) -> None:
        self._resumed.set()

    @property
    def is_paused(self) -> bool:
        return not self._resumed.is_set()

    async def unpaused(self) -> None:
        await self._resumed.wait()

    def kill(self, *, loses_disk: bool) -> None:
        """Kill the process, and with `loses_disk` lose the machine."""
        self._scope.cancel()
        self._fs = None if loses_disk or self._fs is None else self._fs.after_process_kill()

    # -- its lives ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Start it again whenever it has ended."""
        while True:
            with trio.CancelScope() as self._scope:
                try:
                    await self._live()
                except* BucketRefused as group:
                    self.refusals.append(str(group.exceptions[0]))
                    self._fs = None  # what section 6 does with a log that has gone another way
                except* (StoreError, PutGivenUp, ApiError, ArchiveStopped, OSError):
                    pass
            self.life = None
            await trio.sleep(0.2 + self.random.random())

    async def _live(self) -> None:
        offload = NodeOffload(self._seed, self)
        is_empty = self._fs is None
        fs = self._fs or SimFs()
        life = ArchivedLife(CONFIG, fs, self.clock, offload)
        engine = life.engine
        async with trio.open_nursery() as nursery:

            def start(keeper: LeaseKeeper) -> None:
                nursery.start_soon(self._renew, keeper)

            terms = LeaseTerms(LEASE_MS, self._objects, self.clock.boottime_ms, start)
            claim = StartClaim(
                self._objects,
                terms,
                fs,
                engine.store.datadir,
                clock=self.clock,
                offload=offload,
                url=f"http://{self.name}",
                bucket_url=CONFIG.bucket,
                take=False,
                show=self._show,
                yields=self.yields,
                copies_all=True,
                workers=1,
            )
            await claim.run(is_empty=is_empty)
            engine.store.lock(self.name)
            try:
                engine.store.right.lease = claim.lease
                self._fs = fs
                archive = life.archive = Archive(
                    CONFIG,
                    engine.store,
                    engine.registry,
                    engine.compactor,
                    self._objects,
                    fs=fs,
                    clock=self.clock,
                    offload=offload,
                    nonce=claim.nonce,
                    dir_id=claim.dir_id,
                    ownership=claim.ownership,
                )
                await nursery.start(engine.run)
                await engine.recover()
                await archive.prepare()
                engine.compactor.keeper = archive
                for writer in engine.store.writers:
                    await nursery.start(writer.run)
                nursery.start_soon(archive.run)
                bases = BaseWriter(archive, engine.compactor, clock=self.clock, offload=offload, interval_ms=4000)
                nursery.start_soon(bases.run)
                nursery.start_soon(self._end_with_lease, claim, nursery)
                with trio.fail_after(60):
                    await archive.vouch_for([writer.synced_position()[0] for writer in engine.store.writers])
                engine.open_for_business()
                self.epoch = archive.epoch
                if claim.lease.is_held:
                    self._judge.ready(self.epoch)
                self.life = life
                await trio.sleep_forever()
            finally:
                self.life = None
                if not fs.dead:
                    engine.store.unlock()

    def _show(self, problem: str, owner: str) -> None:
        """Why it waits for the bucket, and for whom."""

    async def _renew(self, keeper: LeaseKeeper) -> None:
        pause_ms = keeper.lease.renew_every_ms
        while keeper.lease.is_held and not keeper._ending.is_set():
            await trio.sleep(pause_ms / 1000 / self.clock.rate)
            await self.unpaused()
            pause_ms = keeper.step()

    async def _end_with_lease(self, claim: StartClaim, nursery: trio.Nursery) -> None:
        while True:
            await trio.sleep(0.1)
            await self.unpaused()
            if not claim.lease.is_held:
                break
        if self.life is not None:
            self.life.engine.fence(claim.lease.refusal)
        await trio.sleep(GRACE_S)
        nursery.cancel_scope.cancel()


class History:
    """One history: nodes, clients, and what happens to them, from a seed."""

    def __init__(self, seed: int, nodes: int = 2, kind: type[Node] = Node) -> None:
        self.random = random.Random(seed)
        self.objects = SimObjects(seed)
        self.judge = Judge()
        self.nodes = [
            kind(f"n{i}", self.objects, self.judge, seed, self.random.uniform(0.96, 1.04)) for i in range(nodes)
        ]
        self._written = 0

    async def run(self, events: int = 0, script: Script | None = None) -> None:
        """Live through random events, or a script, heal everything, and judge."""
        async with trio.open_nursery() as nursery:
            for node in self.nodes:
                nursery.start_soon(node.run)
            for _ in range(3):
                nursery.start_soon(self._client)
            if script is not None:
                await script(self)
            for _ in range(events):
                await trio.sleep(self.random.uniform(0.2, 4))
                self._happen()
            for node in self.nodes:
                node.is_cut_off, node.lost_answers = False, 0.0
                node.resume()
            self.objects.arrive()
            if not self.judge.problems:
                await self._judge_end()
            nursery.cancel_scope.cancel()

    async def owner(self) -> Node:
        """Return the node that serves, once there is one."""
        while True:
            await trio.sleep(0.1)
            for node in self.nodes:
                if node.life is not None and node.life.engine.store.right.is_held and not node.is_cut_off:
                    return node

    def _happen(self) -> None:
        node = self.random.choice(self.nodes)
        what = self.random.choice(("pause", "resume", "cut", "heal", "lose", "kill", "destroy"))
        if what == "pause":
            node.pause()
        elif what == "resume":
            node.resume()
        elif what == "cut":
            node.is_cut_off = True
        elif what == "heal":
            node.is_cut_off = False
        elif what == "lose":
            node.lost_answers = self.random.choice((0.0, 0.3))
        else:
            node.resume()
            node.kill(loses_disk=what == "destroy")

    async def _client(self) -> None:
        while True:
            await trio.sleep(self.random.uniform(0.01, 0.15))
            node = self.random.choice(self.nodes)
            if node.follows is not None and not node.is_paused:
                with trio.move_on_after(2), suppress(ApiError):
                    await self._read(node.follows, self.random.choice(CLASSES))
                continue
            if node.life is None or node.is_paused:
                continue
            with trio.move_on_after(2), suppress(ApiError):
                if self.random.random() < 0.3:
                    await self._read(node.life, self.random.choice(CLASSES))
                else:
                    await self._append(node, self.random.choice(CLASSES))

    async def _append(self, node: Node, name: str) -> None:
        life, epoch = node.life, node.epoch
        assert life is not None
        self._written += 1
        data = f"{node.name} {epoch} {self._written}"
        if name not in life.engine.registry.topics:
            await life.put(name, durability=name)
        topic = life.engine.registry.topics[name]
        answer = await life.append(name, data)
        life.engine.store.right.check()  # as before every answer
        if node.is_paused:
            return
        self.judge.answer(epoch)
        self.judge.see(topic.id, answer.first_seq, data)
        if name == "remote":
            self.judge.acked[topic.id, answer.first_seq] = data

    async def _read(self, life: ArchivedLife, name: str) -> dict[tuple[int, int], Any]:
        topic = life.engine.registry.topics.get(name)
        if topic is None:
            return {}
        records, _ = await life.all(name)
        for record in records:
            self.judge.see(topic.id, record["$seq"], record["data"])
        return {(topic.id, record["$seq"]): record["data"] for record in records}

    async def _judge_end(self) -> None:
        with trio.move_on_after(60):
            while True:
                await trio.sleep(1)
                owner = next((node for node in self.nodes if node.life and node.life.engine.store.right.is_held), None)
                if owner is None or owner.life is None or owner.epoch < self.judge.newest_owner:
                    continue
                with suppress(ApiError):
                    found: dict[tuple[int, int], Any] = {}
                    for name in CLASSES:
                        found |= await self._read(owner.life, name)
                    self.judge.end(found)
                    return
        refusals = [node.refusals[-1:] for node in self.nodes]
        self.judge.problems.append(f"no daemon can become the owner any more: {refusals}")
