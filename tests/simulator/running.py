"""Runs a plan: the real engine, store, routers, queues, stages, delivery and governor, one life after another, on a
simulated disk and clock, and judges each recovery.

After every end the machine is recovered once and looked at before anybody moves anything, so that what the end has
left is judged by itself; then a second time from there, which has to show the same; the life after it goes on from
that. When the last life is over, forwarders run until they are idle, every job is claimed and acked, everything is
stored, the daemon stops cleanly, and what the next start shows has to be what was there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from tests.engine.walks import SlowOffload
from tests.simulation.disk import UNLIMITED, Fault, Op, SimFs
from tests.simulation.evidence_lives import Heads, proved, tiny_blocks
from tests.simulation.model import View, view_of
from tests.simulation.offload import InlineOffload
from tests.simulation.queue_state import nobody_buries, nobody_moves
from tests.simulation.router_lives import until_idle
from tests.simulation.segment_lives import check_logs
from tests.simulation.test_damage import overwrite
from tests.simulation.world import COLD, ROOT, End, Life, World, settings
from tests.simulator.caller import Memory, exported
from tests.simulator.clients import Clients
from tests.simulator.consumers import Seen, seen
from tests.simulator.filter_matches import lets_through, written
from tests.simulator.groups.group_facts import GroupSeen, groups_shown_by
from tests.simulator.groups.group_steps import finish_group
from tests.simulator.jobs.job_plans import HOUR_MS
from tests.simulator.jobs.job_steps import let_go
from tests.simulator.judging import judge_arrivals, judge_salvaged
from tests.simulator.known import Broken, Fate, broken
from tests.simulator.outcomes.outcome_lists import check_lists
from tests.simulator.outcomes.outcome_plans import PLACES
from tests.simulator.outcomes.outcome_seen import OutcomesSeen, outcomes_shown_by
from tests.simulator.outcomes.outcome_steps import finish_outcomes
from tests.simulator.passages import filtered_view
from tests.simulator.plan import FILTERS, TOLD, Hang, LifePlan, Plan, Rot, Trouble
from tests.simulator.schedules.schedule_rules import ScheduleSeen, schedules_shown_by
from tests.simulator.truth import Truth
from tests.storage.data_file import rows_of
from topics.config import Settings
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import Performance, QueueState, RouterState, TopicConfigPatch
from topics.runtime.offload import Pool
from topics.storage.files.datadir import DataDir, DataDirError, lock_data_dir
from topics.storage.files.file_header import BadFileHeader
from topics.storage.recovery.damage import Damage
from topics.storage.segments.segment_format import encode_copies
from topics.storage.wal.frames import StoredRecord

DAMAGES_RECORDS: Final = ".data"
"""The kind of file in which a bit that changes costs a record; of all others there is a second witness."""

DERIVED: Final = (".idx", ".tags")
"""The files of which a cold segment has a copy in the hot directory."""

SNAPSHOT: Final = "snapshot"
LOG: Final = ".log"

NEVER_SAID: Final = frozenset({"forwarder_failed", "seqs_repeated", "background_task_failed"})
STRANGER: Final = "stranger"
CLAIM_ROUNDS: Final = 60
LONGEST_S: Final = 1000
"""Of a life, in its own time."""
COLD_TIMEOUT_MS: Final = 3000
ROOM_FOR_STOP_MS: Final = 5000
"""How long a stop may wait for room on a full disk until somebody makes it. The daemon's gives up after
`TOPICS_DRAIN_MS`, and is a kill then."""
SOON_S: Final = 10.0
"""How long a checkpoint and a stop may take while the cold store hangs; `TOPICS_DRAIN_MS` by default."""


@dataclass(slots=True)
class Figures:
    """What a run was."""

    lives: int = 0
    recoveries: int = 0
    operations: int = 0
    """Changes of the disk."""
    faults: int = 0
    rot: int = 0
    hangs: int = 0
    """Calls that have never returned."""
    ends: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that can be found out about a daemon that has just started."""

    views: dict[str, View]
    states: dict[str, QueueState]
    routers: dict[str, RouterState]
    stages: dict[str, tuple[int, int]]
    """By name, how many records a stage was given, and how many of them are there."""
    consumers: dict[str, dict[str, Seen]]
    """By topic and name."""
    groups: dict[str, dict[str, GroupSeen]]
    """Likewise."""
    schedules: dict[str, ScheduleSeen]
    outcomes: OutcomesSeen


def run(plan: Plan) -> Figures:
    """Run a plan. Raises `Broken`, or the exception that the daemon should not have raised."""
    with tiny_blocks():
        return _Run(plan).run()


class _Run:
    """One run of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.truth = Truth(plan.routers)
        self.memory = Memory()
        self.figures = Figures()
        self.offset_ms = 0
        self.heads: list[Heads] = []
        """The checkpoints of topics with evidence that each recovery has shown."""
        self.decayed: Counter[str] = Counter()
        self.decayed_logs: set[str] = set()
        """Files of the log that were damaged, in any life."""
        steps = (step for life in plan.lives for actor in life.actors for step in actor.steps)
        self.has_schedules = any(step.do == "put_schedule" for step in steps)
        self.world = World(plan.seed, config=self._settings(plan.lives[0] if plan.lives else None), fs=SimFs(plan.seed))

    def run(self) -> Figures:
        """All of it."""
        for number, life in enumerate(self.plan.lives):
            self.world.settings = self._settings(life)
            if number:
                before = self.plan.lives[number - 1]
                if not self._restart(before, life):
                    return self._done()
            self._live(life)
        if self.plan.lives and self._restart(self.plan.lives[-1], None):
            self._finish()
        return self._done()

    def _done(self) -> Figures:
        truth = self.truth
        rules = (truth, truth.jobs, truth.groups, truth.schedules, truth.outcomes)
        self.figures.checked = sum((one.checked for one in rules), Counter())
        return self.figures

    def _settings(self, life: LifePlan | None) -> Settings:
        changes: dict[str, Any] = dict(self.plan.settings)
        changes |= {"cold_timeout_ms": COLD_TIMEOUT_MS}
        changes |= {"segment_max_age_ms": 0, "rewrite_live_ratio": 0.8, "min_free_bytes": 0, "stage_ttl_ms": 86_400_000}
        changes["segment_compression"] = "zstd" if changes.pop("packs", 0) else "off"
        changes["max_tag_bytes"] = 4096
        changes["cold_dir"] = Path(COLD) if self.plan.cold else None
        changes["wal_shards"] = life.shards if life is not None else 2
        return settings(**changes)

    # -- a life ------------------------------------------------------------------------------------------------------

    def _live(self, life: LifePlan) -> None:
        world, fs = self.world, self.world.fs
        faults = [_fault(trouble, world) for trouble in life.troubles]
        hang = _hang(life.hang) if life.hang is not None and self._may_hang(life.hang) else None
        world.offload = partial(_offload, life)
        clients: list[Clients] = []
        self.truth.outcomes.starts += 1

        async def scenario(running: Life) -> None:
            for fault in [hang, *faults] if hang is not None else faults:
                fs.inject(fault)
            if life.intruder:
                _intrude(fs)
            if life.room:
                fs.capacity = UNLIMITED - fs.free_bytes("/") + life.room
            if life.inodes:
                fs.inodes = len(fs.tree()) + life.inodes
            if life.crash_at is not None:
                fs.crash_at = fs.mutations + life.crash_at
            clients.append(Clients(running, self.truth, self.memory, self.offset_ms))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(running.engine.governor.run)
                if self.has_schedules:
                    nursery.start_soon(running.engine.firings.run)
                if (life.room or life.inodes) and life.room_after:
                    nursery.start_soon(_make_room, fs, life.room_after)
                await _in_time(clients[0].run(life.actors))
                if life.rot:
                    await trio.sleep(1)  # what is on the disk is vouched for, and the log silent
                nursery.cancel_scope.cancel()
            if hang is not None and hang.hits and not fs.dead:
                await _checkpoint_soon(running)
            if life.end == "stop":
                check_logs(running)
                if life.room or life.inodes:  # else a batch that waits for room has the stop wait for ever
                    trio.lowlevel.spawn_system_task(_make_room, fs, ROOM_FOR_STOP_MS)
            elif not fs.dead:
                fs.crash()

        stopped = self._run_life(world, scenario, end="stop" if life.end == "stop" else "kill")
        fs.capacity = fs.inodes = None
        if hang is not None:
            self.figures.hangs += hang.hits
            if stopped and life.end == "stop" and hang.hits and world.drain_s > SOON_S:
                broken(f"a stop has taken {world.drain_s} s while the cold store hung")
        failed = bool(life.room or life.inodes) or any(
            trouble.error and fault.hits for trouble, fault in zip(life.troubles, faults, strict=True)
        )
        self.truth.failed = self.truth.failed or failed
        for follower in clients[0].followers if clients else ():
            follower.judge()
        self.figures.lives += 1
        self.figures.operations += fs.mutations
        self.figures.faults += sum(fault.hits for fault in faults)
        self.figures.ends[life.end if stopped or life.end != "stop" else "kill"] += 1

    def _run_life(self, world: World, scenario: Callable[[Life], Any], *, end: Any) -> bool:
        try:
            stopped = world.live(scenario, end=end)
        except (RuntimeError, ExceptionGroup) as error:
            if not world.fs.dead or not _is_unwinding(error):
                raise
            stopped = False
        for event in world.events:
            if event["event"] in NEVER_SAID:
                broken(f"the daemon says {event}")
        world.events.clear()
        return stopped

    # -- between two lives -------------------------------------------------------------------------------------------

    def _restart(self, before: LifePlan, following: LifePlan | None) -> bool:
        """End a life as planned, recover twice, judge. False if the log was damaged: the plan ends with that."""
        end: End = "kill" if before.end == "stop" else before.end  # type: ignore[assignment]
        fate: Fate = "stop" if before.end == "stop" else "kill" if end == "kill" else "machine"
        self._go_on(self.world.after(end, before.end_seed), before.down_ms, before.clock_step)
        fate = self._crash_in_recovery(before, fate)
        if before.hang is not None and before.hang.start and not before.rot and self._may_hang(before.hang, start=True):
            self._start_hanging()
        for rot in before.rot:
            self._decay(rot)
        if following is not None:
            self.world.settings = self._settings(following)
        try:
            shown = self._see(self.world)
        except Damage as damage:
            # A start does not read what is older than its snapshot. So damage of the log may be found by a later start,
            # which has lost its snapshot and goes back to an older one: both witnesses of the same records are bad.
            may_find = any(rot.kind in (LOG, SNAPSHOT) for rot in before.rot)
            if not may_find or damage.where.path not in self.decayed_logs:
                raise
            self._salvage()
            return False
        self.truth.judge_consumers(shown.consumers, shown.views, fate, self.offset_ms)
        self.truth.groups.judge(self.truth, shown.groups, shown.views, fate)
        failed, damaged = self.truth.failed, self.truth.rot > 0
        self.truth.outcomes.judge(shown.outcomes, fate, failed=failed, rot=damaged)
        self.truth.judge(shown.views, shown.states, fate)
        self.truth.judge_routers(shown.routers, shown.views)
        self.truth.schedules.judge(self.truth, shown.schedules, shown.views)
        self.truth.jobs.judge(shown.views, shown.states, self.world.clock.now_ms())
        self._go_on(self.world.after("kill" if before.end_seed % 2 else "drop"), 0, 0)
        again = self._see(self.world)
        _assert_same(shown, again, "a second recovery shows something else")
        if self.heads[-1] != self.heads[-2]:
            broken(f"a second recovery has come to other trees: {self.heads[-2]}, {self.heads[-1]}")
        self.truth.consumers_restarted(shown.consumers, shown.views, fate, self.offset_ms)
        self.truth.restarted(shown.views, shown.routers, fate)
        self.truth.jobs.restarted(shown.states, self.truth.tick())
        self.truth.groups.restarted(self.truth, shown.groups)
        self.truth.schedules.restarted(shown.schedules)
        self.truth.outcomes.restarted(shown.outcomes, clock_moved=self.truth.clock_moved)
        self._go_on(self.world.after("drop" if before.end_seed % 2 else "kill"), 0, 0)
        return True

    def _go_on(self, world: World, down_ms: int, step: int) -> None:
        """The next machine, after some time in which nothing ran and the clock may have been set."""
        self.offset_ms += self.world.clock.monotonic_ms() + down_ms
        self.truth.jobs.clock_was(self.world.clock.now_ms() + down_ms)
        self.truth.groups.clock_was(self.world.clock.now_ms() + down_ms)
        self.truth.schedules.clock_was(self.world.clock.now_ms() + down_ms)
        self.truth.stepped |= step != 0
        self.truth.clock_moved |= self.truth.stepped and world.fs.boots != self.world.fs.boots
        world.settings = self.world.settings
        up_ms = world.clock.boottime_ms() + (down_ms if world.fs.boots == self.world.fs.boots else 0)
        now_ms = world.clock.now_ms() + down_ms + step
        self.world = World(world.seed, config=world.settings, fs=world.fs, now_ms=now_ms, up_ms=up_ms)

    def _crash_in_recovery(self, before: LifePlan, fate: Fate) -> Fate:
        """Have a recovery end early, and the machine with it."""
        if before.crash_in_recovery is None or before.rot:
            return fate
        fs = self.world.fs
        self.truth.outcomes.starts += 1
        fs.crash_at = fs.mutations + before.crash_in_recovery

        async def nothing(_life: Life) -> None:
            fs.crash()

        self._run_life(self.world, nothing, end="kill")
        kind: End = "reorder" if before.end_seed % 3 else "kill"
        self._go_on(self.world.after(kind, before.end_seed + 1), 0, 0)
        self.figures.recoveries += 1
        return fate if kind == "kill" else "machine"

    def _may_hang(self, hang: Hang, *, start: bool = False) -> bool:
        """Whether calls of the cold store may hang so. Where all do, and a hot copy was damaged, a deletion that needs
        it waits for as long as they do, and so does a start (`docs/design/cold_store.md` section 4)."""
        for_ever = start or not hang.times
        return self.plan.cold and not (for_ever and any(self.decayed[kind] for kind in DERIVED))

    def _start_hanging(self) -> None:
        """A start gets ready though no call of the cold store returns; then the process is killed. A start that has to
        read the tags of copies there may fail (`docs/design/cold_store.md` section 4)."""
        fs = self.world.fs
        hang = fs.inject(Fault(hangs=True, path=f"{COLD}*", times=None))
        took: list[float] = []

        async def ready(_life: Life) -> None:
            took.append(trio.current_time())
            fs.crash()

        self.world.offload = None
        try:
            self._run_life(self.world, ready, end="kill")
        except BlockingIOError:
            if not self.truth.ever_routed:
                raise
        if took and took[0] > SOON_S:  # the clock of a life begins at 0
            broken(f"a start has taken {took[0]} s while the cold store hung, in {hang.hits} calls")
        self.figures.hangs += hang.hits
        self.figures.recoveries += 1
        self._go_on(self.world.after("kill"), 0, 0)

    def _see(self, world: World) -> Shown:
        """What a recovery shows before anything is moved; then the process is killed."""
        found: list[Shown] = []

        async def look(life: Life) -> None:
            with nobody_moves(life):
                found.append(await shown_by(life))
                self.heads.append(await self._audited(life))
                self.truth.outcomes.checked["lists"] += await check_lists(life)
                life.engine.status.phase = "draining"

        world.offload = None
        if not self._run_life(world, look, end="kill"):
            raise AssertionError("the machine has died, and nobody has killed it")
        if world.fs.open_files:
            broken(f"{world.fs.open_files} files are left open")
        self.figures.recoveries += 1
        return found[0]

    async def _audited(self, life: Life) -> Heads:
        """Prove every record of topics with evidence, and that nothing contradicts a checkpoint that somebody has
        kept. Return the checkpoints."""
        renewed = self.world.settings.recovery == "salvage"
        heads = await proved(life, self.memory.checkpoints, renewed=renewed)
        if renewed:
            self.memory.checkpoints.clear()
        self.memory.checkpoints += heads.values()
        self.truth.checked["trees"] += len(heads)
        return heads

    # -- damage ------------------------------------------------------------------------------------------------------

    def _decay(self, rot: Rot) -> None:
        """Damage a file of this kind, if there is one; of one snapshot only, there are two."""
        fs = self.world.fs
        if rot.kind == SNAPSHOT and self.decayed[SNAPSHOT]:
            return
        if rot.kind == LOG and self.truth.failed:
            return  # nobody has vouched for what the shard wrote last: that looks like a torn end
        paths = sorted(
            path for path, content in fs.tree().items() if content and rot.kind in path and not path.endswith(".tmp")
        )
        if not paths:
            return
        path = paths[min(int(rot.file * len(paths)), len(paths) - 1)]
        content = fs.tree()[path]
        assert content
        length = len(content.rstrip(b"\0")) if rot.kind == LOG else len(content)
        if length:
            _damage(fs, path, content, min(int(rot.place * length), length - 1), rot)
            self.figures.rot += 1
            self.decayed[rot.kind] += 1
            if rot.kind == LOG:
                self.decayed_logs.add(path)
            self.truth.rot += rot.kind == DAMAGES_RECORDS

    def _salvage(self) -> None:
        """A damaged log was refused: salvage takes what there is, once, and nothing of it is made up."""
        self.world.settings = replace(self.world.settings, recovery="salvage")
        shown = self._see(self.world)
        judge_salvaged(self.truth, shown.views)
        self.truth.judge_salvaged_consumers(shown.consumers, shown.views)
        self.world = self.world.after("drop")
        self.world.settings = replace(self.world.settings, recovery="strict")
        again = self._see(self.world)
        _assert_same(shown, again, "a start after a salvage shows something else")

    # -- the end -----------------------------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Everything comes to rest, and is there after a clean stop."""
        shown: list[Shown] = []
        self.truth.outcomes.starts += 1

        async def rest(life: Life) -> None:
            with nobody_buries():  # else jobs go while they are looked at
                await _in_time(until_idle(life))
                before = await shown_by(life)
            judge_arrivals(self.truth, before.views, before.routers)
            await self._empty(life, before)
            await self._finish_groups(life, before)
            await self._consume(life, before.views)
            self.truth.outcomes.judge_end(*await finish_outcomes(life, self.truth.outcomes), rot=self.truth.rot > 0)
            for _ in range(3):
                await life.compactor.checkpoint()
                await life.reclaimer.pass_over()
            if life.engine.settings.cold_dir is not None:
                await life.relocator.pass_over()
            shown.append(await shown_by(life))
            with nobody_moves(life):
                await self._audited(life)

        assert self._run_life(self.world, rest, end="stop")
        self.world = self.world.after("drop")
        last = self._see(self.world)
        _assert_same(shown[0], last, "after a clean stop something else is there", stopped=True)

    async def _empty(self, life: Life, before: Shown) -> None:
        """Every job comes, or is buried: then the queues are empty."""
        queues = [name for name, view in before.views.items() if view.config.type == "queue"]
        came: dict[str, set[int]] = {name: set() for name in queues}
        for name in queues:
            await let_go(life, name)
        for around in range(CLAIM_ROUNDS):
            for name in queues:
                await _claim_all(life.engine, name, came[name])
            if around == CLAIM_ROUNDS // 2:
                life.clock.step(24 * HOUR_MS)  # some jobs are for later, and the clock may have been set back
                for name in queues:  # what cannot be buried comes back
                    if life.engine.registry.topics[name].config.dead_letter is not None:
                        await life.engine.topic_lifecycle.put(name, TopicConfigPatch(dead_letter=None))
            if not any(life.engine.registry.topics[name].log.count for name in queues):
                break
            await trio.sleep(4)
        left = {
            name: life.engine.registry.topics[name].log.count
            for name in queues
            if life.engine.registry.topics[name].log.count
        }
        if left:
            broken(f"queues do not get empty: {left}")
        await until_idle(life)
        for name in queues:
            self._check_came(name, before.views[name], came[name], (await shown_by(life)).views)

    async def _finish_groups(self, life: Life, before: Shown) -> None:
        """Every record comes to every group that has not finished it, and nothing else."""
        for name, groups in before.groups.items():
            view = before.views[name]
            for group, one in groups.items():
                came = await finish_group(life.engine, name, group)
                passes = (one.filter,) if one.filter is not None else ()
                wanted = [seq for seq, record in view.records.items() if lets_through(passes, written(record))]
                wanted = [seq for seq in wanted if seq > one.floor and seq not in one.finished]
                wanted = await self._not_buried(life, name, group, wanted, came)
                # What was given out before the filter was another one comes again.
                more = set(came) - set(wanted) if self.truth.groups.is_steady(self.truth, name, group) else set()
                if not view.config.ttl_ms and (not set(came) >= set(wanted) or len(set(came)) < len(came) or more):
                    broken(f"{name}/{group}: {came} came, of {wanted}: {one}")
                self.truth.groups.checked["came"] += len(came)

    async def _not_buried(
        self, life: Life, name: str, group: str, wanted: Sequence[int], came: Sequence[int]
    ) -> list[int]:
        """Those of the records that have to come: those on their way to the dead letters have gone there meanwhile."""
        instance = self.truth.latest(name)
        assert instance is not None
        facts, state = self.truth.groups.of(instance)[group], await life.engine.groups.state(name, group)
        buried = {seq for seq in wanted if seq not in came and facts.may_be_buried(seq)}
        return [seq for seq in wanted if seq not in buried or len(buried) > state.queue.dead_lettered]

    async def _consume(self, life: Life, before: Mapping[str, View]) -> None:
        """What all consumers and routers have finished is deleted, and nothing else."""
        topics = [one for one in life.engine.registry.topics.values() if one.config.retention == "consumed"]
        counts = {topic.name: len(topic.consumers or ()) for topic in topics}
        for topic in topics:
            instance = self.truth.latest(topic.name)
            assert instance is not None
            self.truth.consumers_of(instance).note(topic.log.head_seq)
        for _ in range(3):
            life.engine.expire_unused()
            await trio.sleep(1)
        await until_idle(life)
        for topic in topics:
            finished = {one.name: one.seq for one in topic.consumers or ()}
            for one in topic.groups.by_name.values() if topic.groups is not None else ():
                finished[f"group {one.group}"] = one.state.finished.floor
            routers, _ = life.engine.routers.page("", topic.name, None, None, 1000)
            finished |= {state.router: state.cursor_seq for state in routers if finished}
            floor, earliest = min(finished.values(), default=0), topic.log.earliest_seq
            if earliest <= min(floor, topic.log.head_seq):
                broken(f"{topic.name}: {finished} have finished, and seq {earliest} is there")
            gone = [seq for seq in before[topic.name].records if floor < seq < earliest]
            expired = counts[topic.name] != len(topic.consumers or ())  # after they had finished, maybe
            if gone and not topic.config.ttl_ms and not topic.config.keep_per_tag and not expired:
                broken(f"{topic.name}: {gone} are gone, and {finished} have yet to finish them")
            self.truth.checked["finished"] += bool(finished)

    def _check_came(self, name: str, view: View, came: set[int], after: Mapping[str, View]) -> None:
        instance = self.truth.latest(name)
        if instance is None or instance.retained or instance.buries:
            return
        missing = view.records.keys() - came
        if missing:
            broken(f"{name}: the jobs {missing} never came")
        self.truth.checked["jobs"] += len(came)


def _is_unwinding(error: Exception) -> bool:
    """Whether this is only what is left of a dead daemon, which wants to begin something."""
    if isinstance(error, ExceptionGroup):
        return all(_is_unwinding(one) for one in error.exceptions)
    return isinstance(error, RuntimeError) and "Nursery is closed" in str(error)


async def _in_time(work: Awaitable[None]) -> None:
    """Somebody who waits for ever waits for what never comes."""
    with trio.move_on_after(LONGEST_S) as limit:
        await work
    if limit.cancelled_caught:
        broken(f"something is not over after {LONGEST_S} s")


async def _claim_all(engine: Engine, name: str, came: set[int]) -> None:
    """Claim all there is of a queue, and ack it."""
    while True:
        jobs = (
            await engine.queues.claim(
                name, ClaimRequest(node=STRANGER, most=1000, lease_ms=30_000, wait_ms=0), Performance()
            )
        ).jobs
        if not jobs:
            return
        came.update(job.seq for job in jobs)
        held = HeldRequest(node=STRANGER, seqs=[job.seq for job in jobs], lease_ids=[job.lease_id for job in jobs])
        await engine.queues.ack(name, held, Performance())


async def shown_by(life: Life) -> Shown:
    """Every topic by diff and by export, which have to agree, its counters, and every router."""
    check_logs(life)
    views: dict[str, View] = {}
    states: dict[str, QueueState] = {}
    for name in [one for one in life.engine.registry.topics if one not in PLACES]:
        view = views[name] = await _settled_view(life, name)
        if not view.config.ttl_ms:
            records, gaps, _ = await exported(life, name)
            if records != view.records or gaps != view.gaps:
                broken(f"{name}: a diff shows {view.records} {view.gaps}, an export {records} {gaps}")
            await _check_filter(life, view)
        state = await life.engine.topic_states.of(name, touch=False)
        if isinstance(state.queue, QueueState) and not view.config.ttl_ms:
            states[name] = state.queue
    routers, more = life.engine.routers.page("", None, None, None, 1000)
    assert not more
    check_logs(life)
    stages = {stage.name: (stage.log.head_seq, stage.log.count) for stage in life.engine.registry.stages.values()}
    topics, outcomes = life.engine.registry.topics, await outcomes_shown_by(life)
    named = {name: {one.name: seen(one) for one in topics[name].consumers or ()} for name in views}
    routed = {state.router: state for state in routers}
    return Shown(views, states, routed, stages, named, await groups_shown_by(life), schedules_shown_by(life), outcomes)


async def _settled_view(life: Life, name: str) -> View:
    """A topic, when all of its damage is known.

    Damage is found by reading, one segment after another. Who finds it at the end of one segment and the beginning of
    the next is told of two gaps; who comes later, after another start too, of one.
    """
    first = await view_of(life.engine, name)
    if not first.gaps or first.config.ttl_ms:
        return first
    view = await view_of(life.engine, name)
    if view.records != first.records or _seqs(view.gaps) != _seqs(first.gaps):
        broken(f"{name}: a diff shows {first.records} {first.gaps}, the next one {view.records} {view.gaps}")
    return view


async def _check_filter(life: Life, view: View) -> None:
    """A reader with a filter gets what matches of everything that is shown, and every gap."""
    text = FILTERS[(view.epoch + view.head) % len(FILTERS)]
    matching = {seq: one for seq, one in view.records.items() if lets_through((text,), written(one))}
    found = await filtered_view(life.engine, view.name, text)
    if found != (matching, view.gaps):
        broken(f"{view.name}: of {view.records} {view.gaps} the filter {text} gives {found}")


def _seqs(gaps: list[tuple[int, int, str]]) -> set[int]:
    return {seq for first, last, _ in gaps for seq in range(first, last + 1)}


def _assert_same(before: Shown, after: Shown, problem: str, *, stopped: bool = False) -> None:
    """Topic by topic; what is gone through ttl meanwhile is let alone, and after a stop what is ephemeral."""
    for name in before.views.keys() | after.views.keys():
        one, other = before.views.get(name), after.views.get(name)
        if one is None or other is None:
            broken(f"{name}: {problem}\n  {one}\n  {other}")
        if one.config.ttl_ms or (stopped and one.config.durability == "ephemeral"):
            continue
        if one != other:
            broken(f"{name}: {problem}\n  {one}\n  {other}")
        if before.consumers[name] != after.consumers[name]:
            broken(f"{name}: {problem}: consumers\n  {before.consumers[name]}\n  {after.consumers[name]}")
        if before.groups.get(name, {}) != after.groups.get(name, {}):
            broken(f"{name}: {problem}: groups\n  {before.groups.get(name)}\n  {after.groups.get(name)}")
    if before.schedules != after.schedules:
        broken(f"{problem}: schedules {before.schedules} and {after.schedules}")
    if before.outcomes != after.outcomes:
        broken(f"{problem}: outcomes {before.outcomes} and {after.outcomes}")
    if before.routers.keys() != after.routers.keys():
        broken(f"{problem}: routers {before.routers} and {after.routers}")
    if not stopped and before.stages != after.stages:
        broken(f"{problem}: stages {before.stages} and {after.stages}")


async def _make_room(fs: SimFs, after_ms: int) -> None:
    """Somebody makes room on the disk."""
    await trio.sleep(after_ms / 1000)
    fs.capacity = fs.inodes = None


def _intrude(fs: SimFs) -> None:
    """Another process removes LOCK, and wants to be the daemon."""
    fs.unlink(f"{ROOT}/LOCK")
    try:
        lock_data_dir(fs, DataDir(ROOT), "pid 2").release()
    except DataDirError:
        return
    broken("a second daemon may begin")


async def _checkpoint_soon(life: Life) -> None:
    """Checkpoints go on while the cold store hangs."""
    with trio.move_on_after(SOON_S) as limit, suppress(ApiError, OSError):
        await life.compactor.checkpoint()
    if limit.cancelled_caught:
        broken(f"a checkpoint waits for the cold store, more than {SOON_S} s")


def _hang(hang: Hang) -> Fault:
    """Calls of the cold store that never return, as they are planned."""
    return Fault(hangs=True, path=f"{COLD}*", nth=hang.nth, times=hang.times or None)


def _offload(life: LifePlan, seed: int) -> InlineOffload:
    """The threads of a life, as slow as it is planned."""
    kinds = {Pool(kind): 0.2 for kind in life.slow}
    offload = SlowOffload(kinds, (life.slow_ms / 1000, 0.001), seed) if life.slow else InlineOffload(seed)
    offload.busy = life.busy
    return offload


def _fault(trouble: Trouble, world: World) -> Fault:
    """A fault of the disk as it is planned, from now on."""
    if trouble.op == TOLD:

        def lose(_op: Op) -> None:
            world.fs.fail_writeback(told=True)

        return Fault(hook=lose, when=lambda op: op.name in ("fdatasync", "sync_all"), nth=trouble.nth)
    if trouble.error:
        return Fault(
            error=trouble.error, keep_some=trouble.keep_some, name=trouble.op, nth=trouble.nth, times=trouble.times
        )

    def wait(_op: Op) -> None:
        world.clock.advance(trouble.ms)

    return Fault(hook=wait, name=trouble.op, nth=trouble.nth, times=trouble.times)


__all__ = ["Broken", "Figures", "run"]


def _damage(fs: SimFs, path: str, content: bytes, at: int, rot: Rot) -> None:
    """Do what `rot` says to a file, at or near this offset."""
    if rot.way == "bit":
        fs.flip_bit(path, at, rot.bit)
        return
    try:
        rows = rows_of(content) if rot.way in ("forged", "boundary") else None
    except BadFileHeader:  # damaged before
        rows = None
    if rot.way == "forged":
        seqs = [seq + rot.bit for seq in rows.seq] if rows is not None and rows.seq else [1]
        records = [StoredRecord(seqs[at % len(seqs)], 1, b"", b"", b"", b'"forged"')]
        for salt in (None, 0):
            frame = encode_copies(records, [None], salt=salt, offset=at).data
            overwrite(fs, path, at, frame[: len(content) - at])
            at = min(at + len(frame), len(content))
        return
    starts = [offset for offset in rows.offset if offset <= at] if rows is not None else []
    handle = fs.open(path)
    handle.truncate({"cut": at, "boundary": max(starts, default=at), "emptied": 0}[rot.way])
    handle.fdatasync()
    handle.close()
