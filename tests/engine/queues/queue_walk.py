"""A queue under random interleavings of everything that can happen to it, over several lives of the daemon.

Workers claim, work, ack, give back, hold on, die, vanish and lie; streams open and close; jobs are appended, forwarded,
deleted, evicted; configs change, the wall clock jumps, the daemon stops, is killed, or goes down with the machine.

The truth is what the clients were told. A lease is certain from the answer of a claim until what the client asked for
has passed since it *began* to ask, or until it sends an ack or a nack: the daemon's deadline is not earlier than that.
Nobody else may be told of the job meanwhile. What has become of each job is heard from its log (`TopicLog`), and every
end of a job needs a reason: an ack by its holder, a deletion, an eviction, a record in the dead-letter topic.

A seed decides everything. One that has found something becomes an example.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal, TypeVar

import msgspec
import trio
import trio.testing

from tests.engine import walks
from tests.engine.queues.queue_truth import LEASES_MS, Said, Told, Truth, sure
from tests.engine.walks import Wrong
from tests.simulation.disk import Fault
from tests.simulation.segment_lives import UNEXPECTED
from tests.simulation.world import End, Life, World
from topics.errors import ApiError
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    Job,
    NackTerms,
)
from topics.log.tag_match import parse_match
from topics.model import (
    AppendRequest,
    Performance,
    QueueState,
    RecordIn,
    RouterPatch,
    TopicConfigPatch,
)
from topics.runtime.offload import Pool

T = TypeVar("T")
CONFIG: Final = replace(walks.CONFIG, cache_bytes=2000)
SLOW: Final = dict.fromkeys(Pool, 0.0) | {Pool.HOT_READ: 0.3, Pool.COLD_READ: 0.3, Pool.WAL: 0.2}
WORKERS: Final = 5
STREAMS: Final = 2
HANG_S: Final = 120
"""No call may take so long."""
REFUSALS: Final = {"topic_full", "record_too_large", "topic_not_found", "router_cycle", "invalid_request"}
About = Literal["calls", "kills", "crashes", "failures", "drops"]
"""What a walk is about. With `failures` a shard fails in the middle of each life but the last. With `drops` the queue
itself comes and goes, and only what holds for any queue is judged."""


class Walk(walks.Walk):
    """One life of a random walk."""

    def __init__(
        self, truth: Truth, seed: int, steps: int, about: About, config: dict[str, Any], *, last: bool
    ) -> None:
        super().__init__(seed, steps)
        self.truth = truth
        self.about = about
        self.config = config
        self.last = last
        self.abrupt = False
        self.stopping = False
        self._said = {"drops": {"topic_not_found"}, "failures": {"read_only"}}.get(about, set())
        """What any call may be refused with."""
        self.refusals = frozenset(REFUSALS | self._said)
        self._n = 0
        self._written = seed * 100_000

    def now(self) -> int:
        return self.truth.base_ms + self.life.clock.monotonic_ms()

    async def __call__(self, life: Life) -> None:
        self.life = life
        engine = life.engine
        if "q" not in engine.registry.topics:
            await engine.topic_lifecycle.put("q", TopicConfigPatch(type="queue", **self.config))
            await engine.topic_lifecycle.put("dlq", TopicConfigPatch(durability="fsync"))
            await engine.topic_lifecycle.put("src", TopicConfigPatch(durability=self.config["durability"]))
            if self.random.random() < 0.6:
                await engine.routers.put("in", RouterPatch(source="src", dest="q"))
            if self.random.random() < 0.4:
                await engine.routers.put("out", RouterPatch(source="q", dest="out"))
        async with trio.open_nursery() as nursery:
            for i in range(WORKERS):
                nursery.start_soon(self._client, self.worker, f"w{i}")
            for i in range(STREAMS):
                nursery.start_soon(self._client, self.stream, f"s{i}")
            fails_at = self.random.randrange(self.steps) if self.about == "failures" and not self.last else -1
            for n in range(self.steps):
                if n == fails_at:
                    self.fail()
                work = self.random.choices(
                    (self.append, self.delete, self.configure, self.keep_house, self.look, self.step_clock, self.drop),
                    (50, 4, 8, 8, 20, 2, 4 if self.about == "drops" else 0),
                )[0]
                nursery.start_soon(self.attempt, work)
                await trio.sleep(self.random.choices((0.0, 0.001, 0.02, 0.3, 1.5), (40, 20, 20, 15, 5))[0])
            if self.abrupt:
                nursery.cancel_scope.cancel()
            self.stopping = True
        if self.abrupt:
            return
        if fails_at >= 0:
            await trio.sleep(30)  # all that wait for that shard have been told
        await self.rest()
        if self.last:
            await self.drain()

    def fail(self) -> None:
        """The shard of the queue fails, or the other one."""
        shard = self.random.choice((0, 1))
        name = self.random.choice(("fdatasync", "fdatasync", "pwrite"))
        self.life.fs.inject(Fault(error=errno.EIO, name=name, path=f"*shard-0{shard}/wal*", times=None))

    async def attempt(self, work: walks.Step) -> None:
        try:
            with trio.fail_after(HANG_S):
                await super().attempt(work)
        except trio.TooSlowError as error:
            raise Wrong(f"{work} hangs") from error

    async def _client(self, work: Callable[[str], Awaitable[None]], node: str) -> None:
        while not self.stopping:
            try:
                await work(node)
            except ApiError as error:
                if error.code not in self._said:
                    raise
            except BaseExceptionGroup as errors:
                _, others = errors.split(lambda error: getattr(error, "code", None) in self._said)
                if others is not None:
                    raise others from None
            await trio.sleep(self.random.choices((0.0, 0.001, 0.05, 0.7), (50, 20, 20, 10))[0])

    async def _call(self, call: Awaitable[T]) -> T:
        try:
            with trio.fail_after(HANG_S):
                return await call
        except trio.TooSlowError as error:
            raise Wrong("a call hangs") from error

    # -- clients -----------------------------------------------------------------------------------------------------

    async def worker(self, node: str) -> None:
        dice = self.random
        if dice.random() < 0.12:
            await self.ghost()
            return
        if dice.random() < 0.1:
            await self.lie(node)
        jobs = await self.claim(node)
        if not jobs:
            return
        await trio.sleep(dice.choices((0.0, 0.001, 0.08, 0.5, 4.0), (45, 20, 20, 10, 5))[0])
        for part in self._parts(jobs):
            await self.finish(node, part)

    def _parts(self, jobs: list[Job]) -> list[list[Job]]:
        if self.random.random() < 0.7:
            return [jobs]
        cut = self.random.randint(0, len(jobs))
        return [part for part in (jobs[:cut], jobs[cut:]) if part]

    async def finish(self, node: str, jobs: list[Job]) -> None:
        """What a holder does with its jobs."""
        dice = self.random
        kind = dice.choices(("ack", "nack", "extend", "die", "both"), (55, 15, 15, 10, 5))[0]
        if kind == "extend":
            await self.extend(node, jobs)
            await trio.sleep(dice.choice((0.0, 0.1, 0.6)))
            await self.ack(node, jobs)
        elif kind == "ack":
            await self.ack(node, jobs)
        elif kind == "nack":
            await self.nack(node, jobs)
        elif kind == "both":
            async with trio.open_nursery() as nursery:
                for work in dice.sample((self.ack, self.nack, self.extend, self.ack), 2):
                    nursery.start_soon(work, node, jobs)

    def _request(self, most_wait: int = 3000) -> ClaimRequest:
        dice = self.random
        return ClaimRequest(
            node="",
            most=dice.choice((1, 1, 2, 3, 10, 40)),
            lease_ms=dice.choices((None, 100, 700, 20_000), (40, 20, 20, 20))[0],
            wait_ms=min(dice.choice((0, 0, 50, 400, 3000)), most_wait),
        )

    async def claim(self, node: str) -> list[Job]:
        request = self._request()
        request.node = node
        began = self.now()
        answer = await self._call(self.life.engine.queues.claim("q", request, Performance()))
        sure(len(answer.jobs) <= request.most, "too many")
        sure(answer.ready >= 0, answer.ready)
        if self.about != "drops":
            self.truth.claimed(node, answer.jobs, began, self.now(), request.lease_ms)
            sure(self.now() - began <= request.wait_ms + 1500 or answer.jobs, "it took", self.now() - began, request)
        return answer.jobs

    async def ghost(self) -> None:
        """A claim whose client vanishes."""
        self.truth.ghosts += 1
        self._n += 1
        request = self._request()
        request.node = f"ghost{self._n}"
        began = self.now()
        jobs: list[Job] = []
        with trio.move_on_after(self.random.choice((0.0, 0.0005, 0.01, 0.2))) as scope:
            if self.random.random() < 0.5:
                scope.deadline = float("inf")
                for_ = self.random.randint(0, 30)

                async def cancel() -> None:
                    for _ in range(for_):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                async with trio.open_nursery() as nursery:
                    nursery.start_soon(cancel)
                    jobs = (await self.life.engine.queues.claim("q", request, Performance())).jobs
            else:
                jobs = (await self.life.engine.queues.claim("q", request, Performance())).jobs
        if jobs and self.about != "drops":
            self.truth.claimed(request.node, jobs, began, self.now(), request.lease_ms)

    async def lie(self, node: str) -> None:
        """Say something about jobs of others, or with wrong lease ids."""
        seqs = self.random.sample(sorted(self.truth.known), min(3, len(self.truth.known)))
        seqs.append(10**9)
        ids: list[int] | None = None
        if self.random.random() < 0.5:
            node = "liar"
        else:
            ids = [self.random.getrandbits(62) | 1 << 62 for _ in seqs]
        call = self.random.choice(("ack", "nack", "extend"))
        request = HeldRequest(node=node, seqs=seqs, lease_ids=ids)
        engine, perf = self.life.engine, Performance()
        if call == "ack":
            answer = await self._call(engine.queues.ack("q", request, perf))
        elif call == "nack":
            answer = await self._call(engine.queues.nack("q", request, NackTerms(0), perf))
        else:
            answer = await self._call(engine.queues.extend("q", request, 1000, perf))
        sure(answer.done == [], "a lie was believed", answer)
        sure(sorted(answer.skipped) == sorted(seqs), answer)

    @contextmanager
    def _saying(self, node: str, jobs: list[Job], *, over: bool) -> Iterator[Said]:
        ids = [job.lease_id for job in jobs] if self.random.random() < 0.6 else None
        seqs = [job.seq for job in jobs]
        if self.random.random() < 0.1:
            seqs, ids = [*seqs, seqs[0]], None if ids is None else [*ids, ids[0]]
        theirs: dict[int, Told] = {}
        sent: dict[int, Told] = {}
        for job in jobs:
            # Without a lease id the call is about the present lease of the node.
            lease = self.truth.rightful(node, job.seq, job.lease_id if ids is not None else None)
            if lease is None:
                continue
            theirs[job.seq] = lease
            if not lease.over and not lease.busy:
                sent[job.seq] = lease
            lease.busy += 1
            lease.over |= over
        yield Said(HeldRequest(node=node, seqs=seqs, lease_ids=ids), theirs, sent)
        for lease in theirs.values():
            lease.busy -= 1

    async def ack(self, node: str, jobs: list[Job]) -> None:
        for job in jobs:
            self.truth.acks_sent.setdefault(job.seq, set()).add(node)
        with self._saying(node, jobs, over=True) as said:
            answer = await self._call(self.life.engine.queues.ack("q", said.request, Performance()))
            if self.about != "drops":
                self.truth.judge(said, answer, self.now())
                for seq in answer.done:
                    sure(seq not in self.truth.acked, seq, "was acked twice")
                    sure(seq not in self.truth.live, seq, "was acked and is there")
                self.truth.acked.update(answer.done)

    async def nack(self, node: str, jobs: list[Job]) -> None:
        delay_ms = self.random.choice((0, 0, 100, 3000))
        began = self.now()
        with self._saying(node, jobs, over=True) as said:
            answer = await self._call(
                self.life.engine.queues.nack("q", said.request, NackTerms(delay_ms), Performance())
            )
            if self.about != "drops":
                alone = said.alone()
                self.truth.judge(said, answer, self.now())
                for seq in answer.done:
                    if seq in alone and self.truth.leases[seq] is alone[seq]:
                        self.truth.not_before[seq] = began + delay_ms

    async def extend(self, node: str, jobs: list[Job]) -> None:
        lease_ms = self.random.choice((100, 1000, 8000))
        began = self.now()
        with self._saying(node, jobs, over=False) as said:
            for told in said.theirs.values():
                told.until = min(told.until, began + lease_ms)
                told.at_most = 1 << 62
            answer = await self._call(self.life.engine.queues.extend("q", said.request, lease_ms, Performance()))
            now = self.now()
            if self.about != "drops":
                alone = said.alone()
                self.truth.judge(said, answer, now)
                sure(sorted(map(str, answer.done)) == sorted(answer.deadlines), answer)
                for seq in answer.done:
                    told = self.truth.leases[seq]
                    if seq in alone and told is alone[seq]:
                        told.until = began + lease_ms
                        told.at_most = now + lease_ms

    async def stream(self, node: str) -> None:
        dice = self.random
        self._n += 1
        node = f"{node}.{self._n}"
        lease_ms = dice.choice((None, 500, 100_000))
        most = dice.choice((1, 2, 5))
        engine = self.life.engine
        work = await engine.queues.open_work("q", node, most, lease_ms)
        held: dict[int, Job] = {}
        self.truth.ghosts += most

        async def receive() -> None:
            while True:
                began = self.now()
                jobs = await engine.queues.next_jobs(work)
                sure(0 < len(jobs) <= most, len(jobs))
                if self.about != "drops":
                    # What it waited for it did not hold; a lease begins when it is claimed.
                    lease = lease_ms if lease_ms is not None else min(LEASES_MS)
                    self.truth.claimed(node, jobs, min(began, self.now()), self.now(), lease_ms)
                    for job in jobs:
                        told = self.truth.leases[job.seq]
                        # Reading and syncing take half a second at most.
                        told.until = max(told.until, self.now() - 600 + lease) if lease > 2000 else told.until
                held.update({job.seq: job for job in jobs})

        async def work_on() -> None:
            for _ in range(dice.randint(1, 8)):
                await trio.sleep(dice.choices((0.0, 0.05, 0.6), (30, 50, 20))[0])
                some = [held.pop(seq) for seq in list(held)[: dice.randint(0, 3)]]
                if some:
                    await self.finish(node, some)

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(receive)
                await work_on()
                nursery.cancel_scope.cancel()
        finally:
            for told in self.truth.leases.values():
                if told.node == node:
                    told.over = True
                    told.at_most = self.now()
            engine.queues.close_work(work)

    # -- others ------------------------------------------------------------------------------------------------------

    async def append(self) -> None:
        batch = []
        for _ in range(self.random.choice((1, 1, 2, 4, 15))):
            self._written += 1
            data = b'{"n":%d,"p":"%b"}' % (self._written, b"x" * self.random.choice((0, 0, 40, 600)))
            meta = self.random.choice((None, None, {"k": "v"}))
            batch.append(RecordIn(data=msgspec.Raw(data), tag=self.random.choice((None, "x", "y")), meta=meta))
        name = self.random.choice(("q", "q", "q", "src"))
        config = TopicConfigPatch(type="queue", **self.config) if name == "q" and self.about == "drops" else None
        if (
            name == "q"
            and "q" not in self.life.engine.registry.topics
            and self.about == "drops"
            and self.random.random() < 0.8
        ):
            return
        await self.life.engine.appends.append(name, AppendRequest(records=batch, config=config), Performance())

    async def delete(self) -> None:
        topic = self.life.engine.registry.topics.get("q")
        if topic is None:
            return
        before = self.random.choice((None, topic.log.earliest_seq + self.random.randint(0, 4)))
        match = self.random.choice((None, "x")) if before is not None else "x"
        parsed = None if match is None else parse_match(match)
        deletion = self.truth.begin_deletion(before)
        try:
            await self.life.engine.deletions.delete_records("q", before, parsed, Performance())
        except ApiError as error:
            if error.code != "read_only":  # else it may be found to have happened
                self.truth.deletes.remove(deletion)
            raise
        self.truth.deletes.remove(deletion)

    async def configure(self) -> None:
        dice = self.random
        patch: dict[str, Any] = dice.choice(
            (
                {"lease_ms": dice.choice(LEASES_MS)},
                {"claim_jitter_ms": dice.choice((0, 0, 20, 300))},
                {"max_deliveries": dice.choice((0, 1, 3)), "dead_letter": dice.choice((None, "dlq", "dlq"))},
                {"max_deliveries": dice.choice((2, 3)), "dead_letter": "dlq"},
                {"cap_records": dice.choice((0, 0, 30))},
                {"discard": dice.choice(("old", "old", "reject"))},
                {"ttl_ms": dice.choice((0, 0, 5000))},
                {"priority": dice.choice((None, 500))},
            )
        )
        if dice.random() < 0.2:
            count = self.life.engine.registry.topics["dlq"].log.count
            full: dict[str, Any] = {"cap_records": dice.choice((0, count + 3)), "discard": "reject"}
            await self.life.engine.topic_lifecycle.put("dlq", TopicConfigPatch(**full))
            return
        if "q" in self.life.engine.registry.topics:
            await self.life.engine.topic_lifecycle.put("q", TopicConfigPatch(type="queue", **patch))

    async def look(self) -> None:
        """The counters, and the projection itself."""
        topic = self.life.engine.registry.topics.get("q")
        if topic is None or topic.queue is None:
            return
        topic.queue.leases.check()
        state = await self.life.engine.topic_states.of("q", touch=False)
        queue = state.queue
        assert isinstance(queue, QueueState)
        sure(queue.ready + queue.in_flight + queue.delayed == state.count, queue, state.count)
        sure(min(queue.ready, queue.in_flight, queue.delayed) >= 0, queue)
        if self.about == "drops":
            return
        sure(state.count == len(self.truth.live), state.count, len(self.truth.live))
        now = self.now()
        certain = [
            seq
            for seq, lease in self.truth.leases.items()
            if seq in self.truth.live and not lease.over and not lease.busy and now <= lease.until
        ]
        sure(queue.in_flight >= len(certain), queue, certain)

    def stepped(self, ms: int) -> None:
        self.truth.forward_ms += max(ms, 0)

    async def drop(self) -> None:
        await self.life.engine.topic_lifecycle.delete("q", if_empty=False)
        if self.random.random() < 0.8:
            await self.life.engine.topic_lifecycle.put("q", TopicConfigPatch(type="queue", **self.config))

    # -- the end -----------------------------------------------------------------------------------------------------

    async def rest(self) -> None:
        """Nobody is there any more: nothing is reserved, nobody attends, what is leased was told to somebody."""
        await trio.sleep(0.5)
        await trio.testing.wait_all_tasks_blocked()
        topic = self.life.engine.registry.topics.get("q")
        if topic is None:
            return
        queue = topic.queue
        assert queue is not None
        queue.leases.check()
        sure(not queue.leases._reserved, "reserved:", queue.leases._reserved)
        sure(not queue.line, "somebody is in the line")
        sure(not queue._held, "held by streams:", queue._held)
        sure(not queue.attended, "it is attended")
        if self.about in ("calls", "kills", "crashes"):
            state = await self.life.engine.topic_states.of("q", touch=False)
            assert isinstance(state.queue, QueueState)
            now = self.now()
            possible = [
                s for s, lease in self.truth.leases.items() if s in self.truth.live and now <= lease.at_most + 1
            ]
            if not self._abandoned:
                sure(state.queue.in_flight <= len(possible), state.queue, possible)

    @property
    def _abandoned(self) -> bool:
        """Whether there may be leases of a life before that nobody was told of."""
        return self.truth.claims == 0 or not self.truth.counts_all

    async def drain(self) -> None:
        """Everything is worked off; and what there ever was has come to an end that has a reason."""
        engine = self.life.engine
        if "q" not in engine.registry.topics:
            return
        await engine.topic_lifecycle.put("dlq", TopicConfigPatch(cap_records=0))
        calm = TopicConfigPatch(cap_records=0, ttl_ms=0, max_deliveries=0, dead_letter=None, claim_jitter_ms=0)
        await engine.topic_lifecycle.put("q", calm)
        await trio.sleep(3)
        for _ in range(200):
            state = await engine.topic_states.of("q", touch=False)
            if not state.count:
                break
            began = self.now()
            request = ClaimRequest(node="last", most=1000, lease_ms=60_000, wait_ms=3000)
            answer = await self._call(engine.queues.claim("q", request, Performance()))
            if self.about != "drops":
                self.truth.claimed("last", answer.jobs, began, self.now(), 60_000)
            if answer.jobs:
                await self.ack("last", answer.jobs)
        else:
            raise Wrong("there are jobs that nobody gets", await engine.topic_states.of("q", touch=False))
        await trio.sleep(40)
        topic = engine.registry.topics["q"]
        assert topic.queue is not None
        sure(not topic.queue.moving, "moving")
        sure(len(topic.queue.leases) == 0, "jobs are kept that are gone")
        await self.rest()
        if self.about != "drops":
            await self._judge_dead_letters()

    async def _judge_dead_letters(self) -> None:
        truth = self.truth
        sure(not truth.live, truth.live)
        moved: list[int] = []
        async for _, there in walks.read_all(self.life.engine, "dlq"):
            for record in there:
                meta = record["meta"]
                sure(meta["$dead_letter_from"] == "q", meta)
                moved.append(int(meta["$dead_letter_src_seq"]))
                sure(int(meta["$dead_letter_deliveries"]) >= 1, meta)
        lost = truth.unexplained - set(moved)
        sure(len(lost) <= truth.dead_letters_evicted, "lost:", lost)
        sure(not set(moved) & truth.acked, "dead letters that were acked", set(moved) & truth.acked)
        if truth.counts_all:
            sure(len(moved) == len(set(moved)), "moved twice")
            state = await self.life.engine.topic_states.of("q", touch=False)
            assert isinstance(state.queue, QueueState)
            # What goes while its copy is being synced is not counted.
            copies = len(moved) + truth.dead_letters_evicted
            sure(0 <= copies - state.queue.dead_lettered <= len(truth.taken), state.queue, copies)


async def there_at_first(life: Life) -> set[int]:
    """The jobs at the start of a life, before anybody does anything."""
    if "q" not in life.engine.registry.topics:
        return set()
    return {record["$seq"] async for _, there in walks.read_all(life.engine, "q") for record in there}


def walk(seed: int, lives: int, steps: int, about: About) -> Truth:
    dice = random.Random(seed)
    durability = {
        "calls": dice.choice(("ephemeral", "memory", "disk", "fsync")),
        "kills": dice.choice(("disk", "fsync")),
        "crashes": "fsync",
        "failures": "fsync",
        "drops": dice.choice(("ephemeral", "memory", "disk", "fsync")),
    }[about]
    leases_durable = about in ("crashes", "failures") or dice.random() < 0.5
    config = {"durability": durability, "leases_durable": leases_durable, "lease_ms": LEASES_MS[0]}
    truth = Truth(counts_all=about == "calls")
    events: list[dict[str, Any]] = []
    with walks.slow_disks(SLOW, 0.0005, 0.002, 0.03, 0.12), truth.listening():
        world = World(seed, config=CONFIG)
        clean = True
        for life in range(lives):
            last = life == lives - 1
            step = Walk(truth, seed * 100 + life, steps, about, config, last=last)
            step.abrupt = about in ("kills", "crashes") and not last

            async def scenario(here: Life, step: Walk = step, first: bool = life == 0, clean: bool = clean) -> None:
                if not first:
                    live = await there_at_first(here)
                    if about != "drops":
                        truth.restarted(
                            (live | truth.added) - truth.removed,
                            keeps_leases=(clean or leases_durable) and durability != "ephemeral",
                            keeps_jobs=durability != "ephemeral",
                            exact=clean and durability != "ephemeral",
                        )
                await step(here)

            fails = about == "failures" and not last
            assert world.live(scenario, end="kill" if step.abrupt or fails else "stop")
            events += world.events
            world.events.clear()
            clean = not (step.abrupt or fails)
            if not clean:
                ends: dict[About, tuple[End, ...]] = {
                    "kills": ("kill",),
                    "crashes": ("drop", "keep", "tear", "reorder"),
                    "failures": ("kill", "drop"),
                }
                truth.base_ms += world.clock.monotonic_ms()
                world = world.after(dice.choice(ends[about]), seed * 10 + life)
    said = [event for event in events if event["event"] in UNEXPECTED | {"background_task_failed"}]
    assert not said, said
    return truth
