"""Lives in which workers lease jobs of queues of every class, and the judgement of their wrecks.

A `Client` (`queue_clients`) writes down what it asked for and what it was told; an `Oracle` (`queue_oracle`) takes the
first part of that and says what a recovery may show of it (`queue_state`). A job is known by its number, in a
dead-letter topic too.

Each wreck is recovered up to four times. The first time nobody moves anything, so that what the crash has left can be
judged by itself. The second time it has to be the same, and after a checkpoint and another crash too. Then strangers
claim all jobs that they can get, holders end their leases, time passes, and in the end every queue is empty; the last
time it still is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec
import trio

from tests.simulation import lives
from tests.simulation.disk import Fault, Op
from tests.simulation.lives import Ends, end_steps
from tests.simulation.model import Fate
from tests.simulation.queue_clients import (
    DEFAULT_LEASE_MS,
    Began,
    Client,
    History,
    Script,
)
from tests.simulation.queue_oracle import Oracle
from tests.simulation.queue_state import (
    Kept,
    KeptJob,
    Shown,
    check_first,
    kept_by,
    nobody_moves,
    shown_by,
)
from tests.simulation.router_lives import SMALL, check_said, until_idle
from tests.simulation.segment_lives import check_files
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import Performance, TopicConfigPatch
from topics.queue.job_pages import FREE, LEASED

DAY_MS: Final = 86_400_000
EMPTY_AFTER: Final = 40
"""Rounds of claiming everything after which a queue has to be empty."""


def see(world: World) -> Shown:
    """What a recovery shows before anything is moved; then the process is killed."""
    found: list[Shown] = []

    async def look(life: Life) -> None:
        kept, now = kept_by(life), life.engine.registry.now_ms()
        with nobody_moves(life):
            found.append(await shown_by(life, kept, now))
            end_steps(life)

    assert world.live(look, end="kill")
    check_said(world)
    assert world.fs.open_files == 0
    return found[0]


class QueueSweep(lives.Sweep[History, Client, Oracle]):
    """See `lives.Sweep`: jobs and leases are what they have to be, and every job comes to somebody."""

    def __init__(self, config: Settings = SMALL, seed: int = 0) -> None:
        super().__init__(config, seed, History())
        self.restored = True
        """Deadlines are those of the clock as it is: nobody has set it in these lives."""

    def client(self, life: Life) -> Client:
        return Client(life, self.history)

    def make_oracle(self, known: int) -> Oracle:
        return Oracle(self.history, known)

    async def begin(self, life: Life, fate: Fate) -> None:
        kept, now = kept_by(life), life.engine.registry.now_ms()
        with nobody_moves(life):
            shown = await shown_by(life, kept, now)
        self.history.began.append(Began(self.history.tick(), fate, shown))

    def check_said(self, world: World) -> None:
        check_said(world)

    def recover(self, world: World) -> Shown:
        return see(world)

    def live(self, script: Script, *, step: int = 0, **how: Any) -> None:
        """The same; the next life has its wall clock set by `step`."""
        super().live(script, **how)
        self.world.clock.step(step)
        self.restored = self.restored and not step
        self.history.restarted(clock_moved=not self.restored)

    def live_with(self, script: Script, fault: Fault) -> None:
        """Run a life in which the disk fails; what it may have forgotten is as after a crash of the machine."""

        async def scenario(life: Life) -> None:
            self.world.fs.inject(fault)
            await script(life, Client(life, self.history))
            fault.times = fault.hits  # the disk is well again
            end_steps(life)

        assert self.world.live(scenario, end="kill")
        assert self.world.fs.open_files == 0
        self._fate = "machine"

    def slow_down(self, pause_ms: Callable[[], int]) -> None:
        """From here on every sync of the disk takes so long."""

        def wait(_op: Op) -> None:
            self.world.clock.advance(pause_ms())

        self.world.fs.inject(Fault(hook=wait, name="fdatasync", times=None))

    def judge_end(self, ends: Iterable[End]) -> None:
        """Judge what the last life has left."""
        for end in ends:
            world = self.machine(1).after(end, 7)
            self.judge_world(world, self.oracle_now(), "machine", "drop", tidy=False)

    def judge_world(
        self, world: World, oracle: Oracle, fate: Fate, second: End, *, step: int = 0, tidy: bool = True
    ) -> None:
        """The same for a machine as its next start finds it. Without `tidy` there may be files too many."""
        crashed = world.clock.now_ms()
        shown = self.look_at(world, oracle, fate, step=step)
        following = world.after(second)

        async def go_on(life: Life) -> None:
            begun, kept, now = life.clock.monotonic_ms(), kept_by(life), life.engine.registry.now_ms()
            start = replace(shown, kept=kept, now=now)
            with nobody_moves(life):
                again = await shown_by(life, kept, now)
            assert_same(shown, again, "another recovery shows something else", times=now == shown.now and not step)
            await empty(life, oracle, start, crashed, begun)
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            await life.compactor.checkpoint()
            stored.append(await shown_by(life))
            if tidy:
                check_files(life)
            end_steps(life)

        stored: list[Shown] = []
        assert following.live(go_on, end="kill")
        check_said(following)
        last = see(following.after("drop"))
        assert_same(stored[0], last, "what was stored is not there after a crash", times=False)
        self.judged += 1

    def look_at(self, world: World, oracle: Oracle, fate: Fate, *, step: int = 0) -> Shown:
        """Recover once, and check what that shows."""
        crashed = world.clock.now_ms()
        world.clock.step(step)
        shown = see(world)
        oracle.exact = self.restored
        oracle.judge(shown, fate, crashed, step)
        return shown

    def look_at_all(self, ends: Ends) -> None:
        """Look at every wreck in every given way."""
        for point in self.points:
            for end, seed in ends(point.wreck.point):
                world = point.wreck.world(end, seed, point.config)
                try:
                    self.look_at(world, self.oracle(point.wreck.known), point.fate(end))
                except Exception as error:
                    raise AssertionError(f"{point.wreck}, {end}/{seed}: {type(error).__name__}: {error}") from error

    def judge_stepping(self, ends: Ends, steps: Sequence[int]) -> int:
        """Judge every wreck in every given way, the wall clock set by one of `steps`; how many that were."""
        return self.judge_all(ends, lambda number: {"step": steps[number % len(steps)]})


def assert_same(before: Shown, after: Shown, problem: str, *, times: bool) -> None:
    """Topic by topic, and job by job. What is gone through ttl meanwhile is let alone."""
    for name in before.views.keys() | after.views.keys():
        one, other = before.views.get(name), after.views.get(name)
        if one is not None and one.config.ttl_ms:
            continue
        assert one is not None, f"{name}: {problem}\n  {one}\n  {other}"
        assert other is not None, f"{name}: {problem}\n  {one}\n  {other}"
        if one.config.durability != "ephemeral":
            assert one.records == other.records, f"{name}: {problem}\n  {one}\n  {other}"
            kept, then = before.kept.get(name), after.kept.get(name)
            if kept is not None and then is not None:
                assert without_times(kept, times) == without_times(then, times), (
                    f"{name}: {problem}\n  {kept}\n  {then}"
                )
        elif name in before.kept:
            assert before.kept[name].dead_lettered == after.kept[name].dead_lettered, f"{name}: {problem}"


def without_times(kept: Kept, times: bool) -> dict[str, Any]:
    """What has to be the same after another recovery."""
    jobs = {seq: job if times else job._replace(time=0) for seq, job in kept.jobs.items() if job != KeptJob(FREE, 0)}
    return {"dead_lettered": kept.dead_lettered, "jobs": jobs}


# ----------------------------------------------------------------- to the end


async def empty(life: Life, oracle: Oracle, start: Shown, crashed: int, begun: int) -> None:
    """Strangers claim what they can get, and are given nothing that is held; in the end every job has come, or is in a
    dead-letter topic, and the queues are empty. `start` is what there was at the time `begun`."""
    engine = life.engine
    queues = [name for name, view in start.views.items() if view.config.type == "queue"]
    for name in queues:
        await engine.queues.resume(name, Performance())
    held = {name: oracle.surely_held(name, start, crashed) for name in queues}
    came: dict[str, set[int]] = {name: set() for name in queues}
    left_at_start = {
        name: {seq: kept.time - start.now for seq, kept in start.kept[name].jobs.items() if kept.state == LEASED}
        for name in queues
    }
    for name in queues:
        for seq, told in held[name].items():
            if seq % 2 or name not in engine.registry.topics or seq not in start.views[name].records:
                continue
            state = await engine.topic_states.of(name, touch=False)
            if state.earliest_seq > seq or start.views[name].config.ttl_ms:
                continue
            if life.clock.monotonic_ms() - begun >= left_at_start[name][seq]:
                continue
            request = HeldRequest(node=told.node, seqs=[seq], lease_ids=[told.lease_id])
            result = await engine.queues.ack(name, request, Performance())
            assert result.done == [seq], f"{name}: {told} cannot be acked any more"
            came[name].add(seq)
    for around in range(EMPTY_AFTER):
        for name in queues:
            await claim_all(life, start, name, came[name], left_at_start[name], begun)
        await until_idle(life)
        if not any(engine.registry.topics[name].log.count for name in queues):
            break
        if around == EMPTY_AFTER // 2:
            life.clock.step(DAY_MS)  # jobs for later wait for the wall clock, which may have been set back
            for name in queues:  # what cannot be moved comes back
                if (
                    engine.registry.topics[name].queue is not None
                    and engine.registry.topics[name].config.dead_letter is not None
                ):
                    await engine.topic_lifecycle.put(name, TopicConfigPatch(dead_letter=None))
        await trio.sleep(6)
    for name in queues:
        topic = engine.registry.topics[name]
        assert topic.queue is not None
        stuck = f"{name} does not get empty: {topic.log.count} of {kept_by(life)[name]}"
        assert not topic.log.count, stuck
        leases = topic.queue.leases
        assert (leases.in_flight, leases.delayed, len(leases)) == (0, 0, 0), stuck
    views = (await shown_by(life)).views
    for name in queues:
        view = start.views[name]
        if view.config.ttl_ms or view.config.cap_records or view.config.cap_bytes:
            continue
        target = view.config.dead_letter
        moved = {
            int(meta["$dead_letter_src_seq"])
            for record in (views[target].records.values() if target in views else ())
            if (meta := msgspec.json.decode(record.body).get("meta", {})).get("$dead_letter_from") == name
        }
        target_view = views.get(target) if target is not None else None
        if target_view is not None and (target_view.config.type == "queue" or target_view.gaps):
            continue
        missing = view.records.keys() - came[name] - moved
        assert not missing, f"{name}: {missing} never came"


async def claim_all(life: Life, start: Shown, name: str, came: set[int], left: dict[int, int], begun: int) -> None:
    """Claim all there is of a queue, and ack it."""
    while True:
        request = ClaimRequest(node="stranger", most=1000, lease_ms=DEFAULT_LEASE_MS, wait_ms=0)
        jobs = (await life.engine.queues.claim(name, request, Performance())).jobs
        if not jobs:
            return
        check_first(life.engine.registry.topics[name], [job.seq for job in jobs])
        passed = life.clock.monotonic_ms() - begun
        before = start.kept[name].jobs
        for job in jobs:
            early = job.seq in left and passed <= left[job.seq]
            assert not early, f"{name}: seq {job.seq} is given out after {passed} ms, it is leased for {left[job.seq]}"
            if job.seq in before and job.seq not in came:
                least = before[job.seq].deliveries
                assert job.deliveries > least, (
                    f"{name}: seq {job.seq} was delivered {least} times, now {job.deliveries}"
                )
            came.add(job.seq)
        held = HeldRequest(node="stranger", seqs=[job.seq for job in jobs], lease_ids=[job.lease_id for job in jobs])
        result = await life.engine.queues.ack(name, held, Performance())
        assert len(result.done) == len(jobs) or start.views[name].config.ttl_ms, f"{name}: {result.skipped} not acked"
