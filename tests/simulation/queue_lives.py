"""Lives in which workers lease jobs of queues of every class, and the judgement of their wrecks.

A `Client` writes down what it asked for and what it was told; an `Oracle` takes the first part of that and says what a
recovery may show of it: which jobs are there, who holds them until when, how often they were delivered, and where those
are that have had all their deliveries. A job is known by its number, in a dead-letter topic too.

Each wreck is recovered up to four times. The first time nobody moves anything, so that what the crash has left can be
judged by itself. The second time it has to be the same, and after a checkpoint and another crash too. Then strangers
claim whatever they can get, holders end what they hold, time passes, and in the end every queue is empty; the last time
it still is.
"""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import msgspec
import trio

from tests.simulation import lives
from tests.simulation.disk import Fault, Op
from tests.simulation.lives import Ends, end_steps
from tests.simulation.model import Fate, View, numbered, view_of
from tests.simulation.router_lives import SMALL, check_said, nobody_forwards, until_idle
from tests.simulation.segment_lives import check_files, check_logs
from tests.simulation.world import End, Life, World
from topics.config import Settings
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.queue_calls import JobSubscription
from topics.engine.record_columns import columns_of
from topics.errors import ApiError
from topics.log.span import NotLoaded
from topics.log.tag_match import TagMatch
from topics.log.topic_log import SeqRun
from topics.model import (
    AppendRequest,
    CheckedAppend,
    ClaimRequest,
    HeldRequest,
    HeldResult,
    Job,
    JobFields,
    JobSelection,
    NackTerms,
    Performance,
    QueueState,
    RouterPatch,
    TopicConfig,
    TopicConfigPatch,
    UniqueJob,
)
from topics.queue.job_pages import DEFAULT_PRIORITY, DELAYED, FREE, LEASED, PARKED, PLAIN, priority_of
from topics.queue.unique_keys import DIGEST_BYTES, digest_of
from topics.runtime.instant import Instant

MADE: Final = "made"
"""A topic that a router makes."""

DAY_MS: Final = 86_400_000
EMPTY_AFTER: Final = 40
"""Rounds of claiming everything after which a queue has to be empty."""

DEFAULT_LEASE_MS: Final = 30_000

Kind = Literal["topic", "delete_topic", "append", "delete", "claim", "ack", "nack", "extend", "release"]


# ----------------------------------------------------------------- what clients write down


class Told(NamedTuple):
    """A lease as its holder was told of it."""

    seq: int
    number: int
    node: str
    lease_id: int
    deadline: int
    deliveries: int


@dataclass(slots=True)
class Asked(lives.Asked):
    """A request and its answer, a refusal too."""

    now: int = 0
    """The epoch's time when it was asked, as the daemon has it."""
    node: str = ""
    leases: tuple[Told, ...] = ()
    """What it is about: an ack, a nack, an extension, a release."""
    ms: int = 0
    """Of a claim and an extension the length of the lease, of a nack the delay."""
    refused: bool = False
    told: tuple[Told, ...] = ()
    """What a claim was answered with."""
    done: frozenset[int] = frozenset()
    deadlines: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class Saw:
    """A full read, and the counters."""

    at: int
    view: View
    state: QueueState | None


@dataclass(slots=True)
class Began:
    """A life has begun after another one, and showed this."""

    at: int
    fate: Fate
    shown: Shown


@dataclass(slots=True)
class Held:
    """A lease that holds, as far as anybody knows."""

    told: Told
    deadline: int
    durable: bool
    ended: bool = False
    """Its holder has said something that may have ended it."""


class History(lives.History[Asked, Saw, Began]):
    """What all clients have written down, and who holds what at present."""

    def __init__(self) -> None:
        super().__init__()
        self.book: dict[tuple[int, int], Held] = {}
        """By topic id and seq."""
        self.with_priorities: set[str] = set()
        """The queues whose jobs do not all have the same priority."""
        self.orders: dict[int, bool] = {}
        """By topic id, whether a queue has had the same order of keys from its beginning."""
        self.clock_moved = False
        """The wall clock was set: it may stand still for the daemon, and what it says is no measure of leases."""

    def restarted(self, *, clock_moved: bool) -> None:
        """What holds on: durable leases, as long as deadlines mean what they did."""
        self.clock_moved = clock_moved
        self.book = {key: held for key, held in self.book.items() if held.durable and not clock_moved}


class Client:
    """Makes requests and writes them down. Fails at once where two hold a job, or one ends what it does not hold."""

    def __init__(self, life: Life, history: History) -> None:
        self.life = life
        self.engine = life.engine
        self.history = history
        self._one_at_a_time: dict[str, trio.Lock] = {}
        self.terms: NackTerms | None = None
        """What the nacks say that are made now, if that is not only a delay."""
        self.cancels = False
        """True while acks are made as cancellations."""

    def _ask(self, kind: Kind, name: str, **fields: Any) -> Asked:
        asked = Asked(kind, name, self.history.tick(), now=self.engine.registry.now_ms(), **fields)
        self.history.asked.append(asked)
        return asked

    @contextmanager
    def _asking(self, kind: Kind, name: str, **fields: Any) -> Iterator[Asked]:
        """The body makes the request; it is answered when that ends, or refused."""
        asked = self._ask(kind, name, **fields)
        try:
            yield asked
        except ApiError:
            asked.refused = True
        asked.answered = self.history.tick()
        check_queues(self.life)

    # -- topics and records ------------------------------------------------------------------------------------------

    async def topic(self, name: str, **config: Any) -> None:
        """Create or configure a topic."""
        async with self._alone(name):
            there = self.engine.registry.topics.get(name)
            if there is not None and "order_by" in config:
                self.history.orders[there.id] = False
            with self._asking("topic", name, patch=config) as asked:
                asked.config, _ = await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))
                asked.epoch = self.engine.registry.topics[name].id
                self.history.orders.setdefault(asked.epoch, "order_by" in config)

    def _alone(self, name: str) -> trio.Lock:
        """Of two changes of a config side by side nobody could tell which comes last."""
        return self._one_at_a_time.setdefault(name, trio.Lock())

    async def queue(self, name: str, **config: Any) -> None:
        """Create a queue."""
        await self.topic(name, type="queue", **config)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic."""
        async with self._alone(name):
            with self._asking("delete_topic", name):
                await self.engine.topic_lifecycle.delete(name, if_empty=False)

    async def append(
        self, name: str, count: int = 1, *, size: int = 30, tag: str | None = None, delay_ms: int = 0, priority: int = 5
    ) -> list[int]:
        """Append jobs that nobody else has appended; their seqs."""
        numbers = tuple(self.history.number() for _ in range(count))
        records = numbered(numbers, size, tag=tag)
        with self._asking("append", name, records=records, numbers=numbers) as asked:
            request = AppendRequest(records=list(records), create=False)
            if delay_ms or priority != DEFAULT_PRIORITY or has_keys(name):
                if delay_ms or priority != DEFAULT_PRIORITY:
                    self.history.with_priorities.add(name)
                unique: list[UniqueJob | None] | None = list(map(unique_job, numbers)) if has_keys(name) else None
                fields = JobFields("", [delay_ms] * count, [0] * count, bytes([priority] * count), unique)
                columns = columns_of(request)
                request = CheckedAppend(
                    records=list(records),
                    create=False,
                    datas=columns.datas,
                    nodes=columns.nodes,
                    tags=columns.tags,
                    metas=columns.metas,
                    jobs=fields,
                )
            asked.first = (await self.engine.appends.append(name, request, Performance())).first_seq
            asked.epoch = self.engine.registry.topics[name].id if name in self.engine.registry.topics else 0
        return list(range(asked.first, asked.first + count)) if asked.first else []

    async def repeat(self, name: str, told: Sequence[Told], key: str | None = None) -> None:
        """Append jobs again that are there, with their unique keys: nothing is stored."""
        unique = self.engine.registry.topics[name].queue.leases.unique  # type: ignore[union-attr]
        assert unique is not None
        digests = {
            seq: packed[:DIGEST_BYTES] for page in unique.freeze().entries.values() for seq, packed in page.items()
        }
        seqs = [one.seq for one in told]
        request = AppendRequest(records=list(numbered([0] * len(seqs), 5)), create=False, idempotency_key=key)
        columns = columns_of(request)
        keys = [UniqueJob(digests[seq], "unfinished", 0) for seq in seqs]
        jobs = JobFields("", [0] * len(seqs), [0] * len(seqs), bytes([DEFAULT_PRIORITY] * len(seqs)), list(keys))
        fields = {name: getattr(request, name) for name in AppendRequest.__struct_fields__}
        checked = CheckedAppend(**fields, datas=columns.datas, nodes=None, tags=None, metas=None, jobs=jobs)
        for _ in range(2 if key is not None else 1):
            answer = await self.engine.appends.append(name, checked, Performance())
            assert (answer.count, answer.duplicates) == (0, dict(enumerate(seqs)))

    async def delete(self, name: str, *, before: int | None = None, match: TagMatch | None = None) -> None:
        """Delete records."""
        with self._asking("delete", name, before=before, match=match):
            await self.engine.deletions.delete_records(name, before, match, Performance())

    async def router(self, name: str, source: str, dest: str, **fields: Any) -> None:
        """Create or update a router."""
        with suppress(ApiError):
            await self.engine.routers.put(name, RouterPatch(source=source, dest=dest, **fields))

    async def look(self, *names: str) -> None:
        """Read all of these topics, or of all there are."""
        for name in names or tuple(self.engine.registry.topics):
            with suppress(ApiError):
                view = await view_of(self.engine, name)
                state = await self.engine.topic_states.of(name, touch=False)
                if view.epoch == state.epoch:
                    counters = state.queue if isinstance(state.queue, QueueState) else None
                    self.history.saw.append(Saw(self.history.tick(), view, counters))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def _durable(self, name: str) -> bool:
        topic = self.engine.registry.topics.get(name)
        return topic is not None and topic.config.leases_durable and not topic.ephemeral

    def _note(self, name: str, asked: Asked, jobs: Sequence[Job], *, durable: bool) -> tuple[Told, ...]:
        """Jobs were given to a node."""
        told = tuple(told_of(asked.node, job) for job in jobs)
        topic = self.engine.registry.topics.get(name)
        if topic is not None:
            now = self.engine.registry.now_ms()
            for one in told:
                other = self.history.book.get((topic.id, one.seq))
                over = other is None or other.ended or now > other.deadline or self.history.clock_moved
                assert over, f"{name}: {one} was given out at {now}, and {other} holds"
                self.history.book[topic.id, one.seq] = Held(one, one.deadline, durable and self._durable(name))
        return told

    async def claim(
        self, name: str, node: str, most: int = 1, *, lease_ms: int = DEFAULT_LEASE_MS, wait_ms: int = 0
    ) -> tuple[Told, ...]:
        """Claim jobs."""
        durable = self._durable(name)
        with self._asking("claim", name, node=node, ms=lease_ms) as asked:
            result = await self.engine.queues.claim(
                name, ClaimRequest(node=node, most=most, lease_ms=lease_ms, wait_ms=wait_ms), Performance()
            )
            seqs = [job.seq for job in result.jobs]
            assert len(seqs) == len(set(seqs))
            assert seqs == sorted(seqs) or asked.name in self.history.with_priorities
            asked.told = self._note(name, asked, result.jobs, durable=durable)
            topic = self.engine.registry.topics.get(name)
            if topic is not None and self.history.orders.get(topic.id):
                check_first(topic, seqs)
        return asked.told

    def _holds(self, name: str, told: Told) -> bool:
        topic = self.engine.registry.topics.get(name)
        held = self.history.book.get((topic.id, told.seq)) if topic is not None else None
        return held is not None and held.told.lease_id == told.lease_id

    async def _say(
        self, kind: Literal["ack", "nack", "extend"], name: str, leases: Iterable[Told], *, ms: int = 0
    ) -> Asked:
        """Say something about leases, fenced."""
        leases = tuple(leases)
        node = leases[0].node if leases else "nobody"
        with self._asking(kind, name, node=node, leases=leases, ms=ms) as asked:
            if not leases:
                return asked
            topic = self.engine.registry.topic(name)
            right = {told.seq for told in leases if self._holds(name, told)}
            for seq in right:
                held = self.history.book[topic.id, seq]
                held.ended = held.ended or kind != "extend"
                held.deadline = min(held.deadline, asked.now + ms) if kind == "extend" else held.deadline
            request = HeldRequest(
                node=node, seqs=[told.seq for told in leases], lease_ids=[told.lease_id for told in leases]
            )
            result = await self._send(kind, name, request, ms)
            asked.done = frozenset(result.done)
            asked.deadlines = {int(seq): deadline for seq, deadline in result.deadlines.items()}
            assert asked.done | set(result.skipped) == {told.seq for told in leases}
            assert asked.done <= right, f"{name}: {kind} of {leases} was done to {asked.done}, held is {right}"
            for seq, deadline in asked.deadlines.items():
                if (topic.id, seq) in self.history.book:
                    self.history.book[topic.id, seq].deadline = deadline
        return asked

    async def _send(self, kind: str, name: str, request: HeldRequest, ms: int) -> HeldResult:
        if kind == "ack" and self.cancels:
            selection = JobSelection(sorted(request.seqs), None, None)
            changed = await self.engine.job_changes.cancel(name, selection, Performance())
            assert changed.done == len(request.seqs), changed
            return HeldResult(done=sorted(request.seqs), skipped=[], ready=0, in_flight=0)
        if kind == "ack":
            return await self.engine.queues.ack(name, request, Performance())
        if kind == "nack":
            return await self.engine.queues.nack(name, request, self.terms or NackTerms(ms), Performance())
        return await self.engine.queues.extend(name, request, ms, Performance())

    async def ack(self, name: str, leases: Iterable[Told]) -> frozenset[int]:
        """Done with these; what of them it was done to."""
        return (await self._say("ack", name, leases)).done

    async def cancel(self, name: str, leases: Iterable[Told]) -> None:
        """Have leased jobs deleted, by somebody who does not hold them."""
        self.cancels = True
        try:
            await self._say("ack", name, leases)
        finally:
            self.cancels = False

    async def retry(self, name: str, leases: Iterable[Told]) -> None:
        """Make jobs ready that were given back for later. The history does not know of it."""
        selection = JobSelection(sorted(told.seq for told in leases), None, "delayed")
        with suppress(ApiError):
            await self.engine.job_changes.retry(name, selection, Performance())

    async def pause(self, name: str) -> None:
        """Give out no jobs until `resume`."""
        with suppress(ApiError):
            await self.engine.queues.pause(name, None, Performance())

    async def resume(self, name: str) -> None:
        """Give out jobs again."""
        with suppress(ApiError):
            await self.engine.queues.resume(name, Performance())

    async def condemn(self, name: str, leases: Iterable[Told], error: str) -> frozenset[int]:
        """Have jobs moved to the dead-letter topic."""
        self.terms = NackTerms(None, error, dead=True)
        try:
            return (await self._say("nack", name, leases)).done
        finally:
            self.terms = None

    async def nack(self, name: str, leases: Iterable[Told], *, delay_ms: int = 0) -> frozenset[int]:
        """Give these back; likewise."""
        return (await self._say("nack", name, leases, ms=delay_ms)).done

    async def extend(self, name: str, leases: Iterable[Told], *, lease_ms: int = DEFAULT_LEASE_MS) -> frozenset[int]:
        """Hold these for longer, or shorter; likewise."""
        return (await self._say("extend", name, leases, ms=lease_ms)).done

    @asynccontextmanager
    async def stream(
        self, name: str, node: str, most: int = 2, *, lease_ms: int = DEFAULT_LEASE_MS
    ) -> AsyncIterator[Callable[[], Awaitable[tuple[Told, ...]]]]:
        """A stream of jobs: what it yields is called for the next ones. Its end releases what it holds."""
        work: JobSubscription | None = None
        held: list[Told] = []

        async def following() -> tuple[Told, ...]:
            if work is None:
                return ()
            durable = self._durable(name)
            with self._asking("claim", name, node=node, ms=lease_ms) as asked:
                asked.told = self._note(name, asked, await self.engine.queues.next_jobs(work), durable=durable)
                held.extend(asked.told)
            return asked.told

        with suppress(ApiError):
            work = await self.engine.queues.open_work(name, node, most, lease_ms)
        try:
            yield following
        finally:
            asked = self._let_go(name, node, held)
            if work is not None:
                self.engine.queues.close_work(work)
            asked.answered = self.history.tick()

    def hang_up(self, name: str, told: Sequence[Told]) -> None:
        """The client of a claim has gone before it had its answer: the daemon gives the jobs to others."""
        asked = self._let_go(name, told[0].node, told)
        self.engine.queues.give_back(
            name, [Job(one.seq, one.lease_id, one.deadline, one.deliveries, b"") for one in told]
        )
        asked.answered = self.history.tick()

    def _let_go(self, name: str, node: str, held: Sequence[Told]) -> Asked:
        asked = self._ask("release", name, node=node, leases=tuple(held))
        topic = self.engine.registry.topics.get(name)
        for told in held:
            if topic is not None and self._holds(name, told):
                self.history.book[topic.id, told.seq].ended = True
        return asked


Script = Callable[[Life, Client], Awaitable[None]]


def told_of(node: str, job: Job) -> Told:
    """A job as its holder gets it."""
    number = msgspec.json.decode(b"{" + job.record)["data"]["n"]
    return Told(job.seq, number, node, job.lease_id, job.deadline, job.deliveries)


# ----------------------------------------------------------------- what there is


class KeptJob(NamedTuple):
    """What is kept of a job that is not fresh. `time` is in epoch ms, 0 where there is none."""

    state: int
    deliveries: int
    time: int = 0
    lease_id: int = 0
    node: str = ""
    priority: int = DEFAULT_PRIORITY


@dataclass(frozen=True, slots=True)
class Kept:
    """The projection of a queue."""

    cursor: int
    dead_lettered: int
    jobs: dict[int, KeptJob]

    @classmethod
    def of(cls, dump: dict[str, Any]) -> Kept:
        """Out of its dump (see `topics.queue.job_pages`)."""
        jobs = {}
        for number, states, *columns, nodes in dump["pages"]:
            slots = [slot for slot, state in enumerate(states) if state]
            rows = [_unpacked(code, column, len(slots)) for code, column in zip("IqQH", columns, strict=True)]
            for slot, deliveries, due_ms, lease_id, holder in zip(slots, *rows, strict=True):
                state = states[slot] & PLAIN
                time = due_ms + dump["to_epoch_ms"] - (state == LEASED) if state in (LEASED, DELAYED) else 0
                node = nodes[holder] if state == LEASED else ""
                jobs[number * dump["page"] + slot] = KeptJob(
                    state, deliveries, time, lease_id, node, priority_of(states[slot])
                )
        return cls(dump["cursor"], dump["dead_lettered"], jobs)


def _unpacked(code: str, column: bytes, n: int) -> array[int]:
    """A column of a page: nothing for nothing but zeros."""
    values = array(code)
    values.frombytes(column or bytes(n * values.itemsize))
    return values


@dataclass(frozen=True, slots=True)
class Shown:
    """Everything that can be found out about a daemon. `kept` and `now` are from the moment of its start."""

    views: dict[str, View]
    states: dict[str, QueueState]
    kept: dict[str, Kept]
    now: int


def kept_by(life: Life) -> dict[str, Kept]:
    """The projection of each queue, now."""
    engine = life.engine
    now = Instant(life.clock.monotonic_ms(), engine.registry.now_ms())
    return {
        topic.name: Kept.of(topic.queue.leases.dump(now))
        for topic in engine.registry.by_id.values()
        if topic.queue is not None
    }


async def shown_by(life: Life, kept: dict[str, Kept] | None = None, now: int | None = None) -> Shown:
    """Every topic, with all invariants checked before and after."""
    kept = kept_by(life) if kept is None else kept
    now = life.engine.registry.now_ms() if now is None else now
    check_logs(life)
    check_queues(life)
    views, states = {}, {}
    for name in list(life.engine.registry.topics):
        views[name] = await view_of(life.engine, name)
        state = await life.engine.topic_states.of(name, touch=False)
        if isinstance(state.queue, QueueState):
            states[name] = state.queue
            counted = state.queue.ready + state.queue.in_flight + state.queue.delayed
            assert counted == state.count, f"{name}: {state.queue}, and count is {state.count}"
    check_logs(life)
    check_queues(life)
    return Shown(views, states, kept, now)


def check_queues(life: Life) -> None:
    """Every projection is consistent with itself, and with its log: what it keeps is live, and what is live is kept or
    will be come across."""
    for topic in life.engine.registry.by_id.values():
        if topic.queue is None:
            continue
        leases, log = topic.queue.leases, topic.log
        leases.check()
        assert leases.ready(log.count) + leases.in_flight + leases.delayed == log.count
        if topic.working is not None or topic.config.ttl_ms:
            continue
        kept = Kept.of(leases.dump(Instant(0, 0)))
        with suppress(NotLoaded):
            live = live_of(topic)
            keyed = {seq for run in leases.unique.runs(1) for seq in run} if leases.unique is not None else set()
            assert keyed <= live, f"{topic.name}: {keyed - live} have keys, and are not there"
            assert keyed == live or not has_keys(topic.name), f"{topic.name}: {live - keyed} have lost their keys"
            assert kept.jobs.keys() <= live, f"{topic.name}: {kept.jobs.keys() - live} are kept, and are not there"
            missed = {seq for seq in live if seq <= kept.cursor} - kept.jobs.keys()
            assert not missed, f"{topic.name}: {missed} will never be claimed, the cursor is {kept.cursor}"


def has_keys(name: str) -> bool:
    """Return True for queues whose jobs all have unique keys."""
    return name.startswith("unique")


def unique_job(number: int) -> UniqueJob:
    """Return the key of a job; every second one has a window too."""
    return UniqueJob(digest_of(str(number)), "window" if number % 2 else "unfinished", 5000 if number % 2 else 0)


def check_first(topic: Any, seqs: Iterable[int]) -> None:
    """Of jobs that were just claimed, none has a live one before it with the same key, as far as that is in memory."""
    if topic.config.order_by != "tag":
        return
    with suppress(NotLoaded):
        live = sorted(live_of(topic))
        blocks = {seq: topic.blocks.find(seq) for seq in live}
        tags = {seq: block.tag_of(seq) for seq, block in blocks.items() if block is not None}
        for seq in seqs:
            before = [one for one, tag in tags.items() if one < seq and tag is not None and tag == tags.get(seq)]
            assert not before, f"{topic.name}: {seq} was given out before {before}"


def live_of(topic: Any) -> set[int]:
    """The live seqs of a topic. Raises NotLoaded."""
    found: set[int] = set()
    after = 0
    while (step := topic.log.step(after, 1000)) is not None:
        if isinstance(step, SeqRun):
            found.update(range(step.first, step.last + 1))
        after = step.last
    return found


@contextmanager
def nobody_moves(life: Life) -> Iterator[None]:
    """Nothing goes to a dead-letter topic, nor back from being parked, and routers forward nothing."""
    with nobody_buries(), nobody_forwards(life):
        yield


@contextmanager
def nobody_buries() -> Iterator[None]:
    """Nothing goes to a dead-letter topic, nor back from being parked, of what has not been begun."""
    movers: Any = DeadLetters
    original = movers._try
    go_on = trio.Event()

    async def held(*args: Any) -> None:
        await go_on.wait()
        await original(*args)

    movers._try = held
    try:
        yield
    finally:
        movers._try = original
        go_on.set()


# ----------------------------------------------------------------- what must be there


@dataclass(slots=True)
class Known:
    """What is known of one job of one instance."""

    number: int = 0
    tag: str | None = None
    appended: Asked | None = None
    appended_at: int | None = None
    """When its append was answered."""
    acks: list[Asked] = field(default_factory=list)
    """Those that may have ended it, since the newest start at which it was there."""
    ended: Literal["no", "kill", "hard"] = "no"
    """An ack was answered: no crash brings it back, or no death of the process."""
    lease: Told | None = None
    """The newest lease that anybody was told of."""
    deadlines: list[int] = field(default_factory=list)
    """Until when that may be."""
    claimed_at: int = 0
    told_at: int = 0
    """When that was asked for, and answered."""
    sure: bool = False
    """It survives."""
    over: bool = False
    """Somebody may have ended it before its deadline."""
    answers: int = 0
    undone: int = 0
    """By how much there were more answers than deliveries at the newest start."""
    deliveries: int = 0
    """What survives for certain."""
    nacked: tuple[int, int] | None = None
    """The lease that was given up for certain, and the time before which the job is not available."""


class Instance(lives.Instance[Asked]):
    """The same, with what is known of its jobs."""

    def __init__(self, name: str, created: Asked, *, by_daemon: bool = False) -> None:
        super().__init__(name, created)
        self.by_daemon = by_daemon
        """It may be made, and made again, by whoever appends to it."""
        self.since = 0
        """When the newest life began that showed it."""
        self.jobs: dict[int, Known] = {}
        self.waiting = 0
        """Claims that nobody has been answered."""
        self.longest = DEFAULT_LEASE_MS
        self.longest_delay = 0
        self.dead_lettered: dict[Fate, int] = {"kill": 0, "machine": 0}
        """What was seen, and must be there after such an end."""

    @property
    def leases_durable(self) -> bool:
        """Whether a claim is synced before it is answered, for certain."""
        return all(config.leases_durable and config.durability != "ephemeral" for config in self.options)

    @property
    def limit(self) -> int:
        """The fewest deliveries after which a job may have been moved; 0 if none ever is."""
        limits = [c.max_deliveries for c in self.configs if c.dead_letter is not None and c.max_deliveries]
        return min(limits, default=0)

    @property
    def leaks(self) -> bool:
        """Whether what is in it may go by itself or by somebody's will."""
        gone = self.retained or bool(self.deletes) or self.limit > 0
        return gone or "ephemeral" in self.classes or self.deletion is not None

    @property
    def recent_deletes(self) -> list[Asked]:
        """The deletions of the newest life. Those before it say nothing of what its start has shown."""
        return [asked for asked in self.deletes if asked.at > self.since]

    def job(self, seq: int) -> Known:
        """What is known of a job."""
        return self.jobs.setdefault(seq, Known())

    def release(self) -> None:
        super().release()
        for job in self.jobs.values():
            job.sure, job.deliveries, job.nacked = False, 0, None
            job.ended = "no" if job.ended == "kill" else job.ended
        self.dead_lettered = {"kill": 0, "machine": self.dead_lettered["machine"]}

    def configured(self, asked: Asked) -> bool:
        barrier = super().configured(asked)
        if barrier:
            assert asked.config is not None
            self.hard.update(seq for seq in self.seen if seq not in self.gone)
            for job in self.jobs.values():
                if job.told_at < asked.at and asked.config.leases_durable:
                    job.sure, job.deliveries = True, job.answers - job.undone
                if any(ack.answered is not None and ack.answered < asked.at for ack in job.acks):
                    job.ended = "hard"
        return barrier

    def appended(self, asked: Asked) -> None:
        super().appended(asked)
        for i, number in enumerate(asked.numbers):
            job = self.job(asked.first + i)
            job.number, job.appended, job.appended_at = number, asked, asked.answered
            job.tag = asked.records[i].tag

    def note(self, view: View) -> None:
        super().note(view)
        for seq, record in view.records.items():
            self.job(seq).number = record.data


class Oracle(lives.Oracle[Asked, Saw, Began, Instance]):
    """What may have become of jobs and leases."""

    def __init__(self, history: History, known: int) -> None:
        self.exact = True
        """What the wall clock says is a measure of leases: nobody has set it before this crash."""
        self._told_to: dict[int, Instance] = {}
        self._durable: dict[int, bool] = {}
        super().__init__(history, known)

    # -- folding ------------------------------------------------------------------------------------------------------

    def _sent(self, asked: Asked) -> None:
        if asked.kind == "topic":
            instances = self.instances.setdefault(asked.name, [])
            if not instances or instances[-1].deleted:
                instances.append(Instance(asked.name, asked))
            instances[-1].reconfigure(asked.patch)
            target = asked.patch.get("dead_letter")
            if target is not None and target not in self.instances:
                self.instances[target] = [Instance(target, asked, by_daemon=True)]
                self.instances[target][-1].options.append(TopicConfig())
                self.instances[target][-1].configs.append(TopicConfig())
        if asked.name not in self.instances:
            return
        instance = self.instance(asked.name)
        self._told_to[asked.at] = instance
        self._durable[asked.at] = instance.leases_durable
        if asked.kind == "delete_topic":
            instance.deletion = asked
        elif asked.kind == "append":
            for i, number in enumerate(asked.numbers):
                self.of_number[number] = asked, i
        elif asked.kind == "delete":
            instance.deletes.append(asked)
        elif asked.kind == "claim":
            instance.waiting += 1
            instance.longest = max(instance.longest, asked.ms)
        elif asked.kind in ("ack", "nack", "extend", "release"):
            self._said(instance, asked)

    @staticmethod
    def _said(instance: Instance, asked: Asked) -> None:
        if asked.kind == "extend":
            instance.longest = max(instance.longest, asked.ms)
        if asked.kind == "nack":
            instance.longest_delay = max(instance.longest_delay, asked.ms)
        for told in asked.leases:
            job = instance.jobs.get(told.seq)
            if job is None:
                continue  # it is of an older instance
            if asked.kind == "ack":
                job.acks.append(asked)
            if job.lease is None or job.lease.lease_id != told.lease_id:
                continue
            if asked.kind == "extend":
                job.deadlines.append(asked.now + asked.ms)
            else:
                job.over = True

    def _answered(self, asked: Asked) -> None:
        instance = self._told_to[asked.at]
        if asked.refused:
            return  # it may have happened all the same, or may be found after the next restart
        if asked.kind == "claim":
            instance.waiting -= 1
        durable = self._durable[asked.at] and instance.leases_durable
        if asked.kind == "topic":
            instance.configured(asked)
        elif asked.kind == "delete_topic":
            instance.deleted = True
        elif asked.kind == "append":
            instance.appended(asked)
        elif asked.kind == "claim":
            self._claimed(instance, asked, durable=durable)
        elif asked.kind in ("ack", "nack", "extend"):
            for told in asked.leases:
                if told.seq in asked.done:
                    self._done(instance, asked, told, durable=durable)
                elif asked.kind == "ack" and told.seq in instance.jobs:
                    instance.jobs[told.seq].acks.remove(asked)

    @staticmethod
    def _claimed(instance: Instance, asked: Asked, *, durable: bool) -> None:
        for told in asked.told:
            job = instance.job(told.seq)
            assert job.number in (0, told.number), f"{told} was {job.number}"
            assert told.seq not in instance.gone, f"{instance.name}: {told} was gone"
            assert job.ended == "no" or not durable, f"{instance.name}: {told} was acked"
            job.number = told.number
            job.lease, job.deadlines, job.sure, job.over = told, [told.deadline], durable, False
            job.claimed_at, job.told_at = asked.at, asked.answered or 0
            job.nacked = None
            job.answers += 1
            if durable:
                job.deliveries = max(job.deliveries, told.deliveries)
                if job.appended is not None:
                    instance.hard.add(told.seq)  # its append is before the claim in the same log

    @staticmethod
    def _done(instance: Instance, asked: Asked, told: Told, *, durable: bool) -> None:
        job = instance.job(told.seq)
        if asked.kind == "ack":
            if instance.now_classes == {"fsync"}:
                job.ended = "hard"
            elif instance.now_classes <= {"disk", "fsync"}:
                job.ended = "kill"
        elif asked.kind == "nack":
            if durable:
                job.nacked = told.lease_id, asked.now + asked.ms if asked.ms else 0
        elif job.lease is not None and job.lease.lease_id == told.lease_id:
            deadline = asked.deadlines[told.seq]
            if durable:
                job.deadlines = [deadline]
            else:
                job.deadlines[-1] = deadline

    def _saw(self, saw: Saw) -> None:
        instances = [one for one in self.instances.get(saw.view.name, ()) if one.epoch == saw.view.epoch]
        if not instances:
            return
        instance = instances[-1]
        instance.note(saw.view)
        if instance.classes == {"fsync"}:
            instance.hard.update(saw.view.records)
        if saw.state is not None:
            if instance.now_classes <= {"disk", "fsync"}:
                instance.dead_lettered["kill"] = saw.state.dead_lettered
            if instance.now_classes == {"fsync"} and instance.classes == {"fsync"}:
                instance.dead_lettered["machine"] = saw.state.dead_lettered

    def _began(self, began: Began) -> None:
        """A start decides for good what has happened. A crash may undo an answered ack, claim or deletion whose class
        did not promise to keep it: a job that the start shows was not acked or deleted, and was delivered as often as
        the start shows. A barrier in the new life syncs that, and not what the crash has undone. The oracle once went
        on to count older answers: it held that a change to `fsync` had synced a `memory` ack of the life before, which
        the crash of the machine had undone.
        """
        for name, instances in self.instances.items():
            instance, view = instances[-1], began.shown.views.get(name)
            if view is None:
                instance.deleted = not instance.by_daemon
                continue
            if not instance.restarted(view):
                continue
            instance.since = began.at
            kept = began.shown.kept.get(name)
            if kept is None:
                continue
            instance.dead_lettered = {"kill": kept.dead_lettered, "machine": kept.dead_lettered}
            for seq, job in instance.jobs.items():
                there = kept.jobs.get(seq)
                delivered = there.deliveries if there is not None else 0
                job.deliveries, job.undone = 0 if instance.volatile else delivered, job.answers - delivered
                job.ended, job.nacked = "no", None
                if seq in view.records:
                    job.acks.clear()
                holds = there is not None and job.lease is not None and there.lease_id == job.lease.lease_id
                job.sure = holds and not instance.volatile
                job.over = not holds
                if holds and there is not None:
                    job.deadlines = [there.time]

    # -- judging ------------------------------------------------------------------------------------------------------

    def judge(self, shown: Shown, fate: Fate, crashed: int, step: int) -> None:
        """What a recovery shows, after a crash at the time `crashed`; the wall clock was set by `step` then."""
        for name in shown.views:
            assert name in self.instances or name == MADE, f"{name} was never created"
        for name, instances in self.instances.items():
            instance, view = instances[-1], shown.views.get(name)
            if instance.by_daemon and (view is None or instance.deletion is not None or instance.deleted):
                continue
            if self.judge_existence(instance, view):
                assert view is not None
                Case(self, instance, view, shown, fate, crashed, step).check()

    def surely_held(self, name: str, shown: Shown, crashed: int) -> dict[int, Told]:
        """The leases that hold after a restart, whatever has happened."""
        if name not in self.instances or not self.exact:
            return {}
        instance, view = self.instance(name), shown.views[name]
        if "ephemeral" in instance.now_classes or instance.deletion is not None:
            return {}
        return {
            seq: job.lease
            for seq, job in instance.jobs.items()
            if job.lease is not None
            and job.sure
            and not job.over
            and seq in view.records
            and min(job.deadlines) >= max(crashed, shown.now)
        }


class Case(lives.Case[Asked, Instance]):
    """One topic after one recovery."""

    def __init__(
        self, oracle: Oracle, instance: Instance, view: View, shown: Shown, fate: Fate, crashed: int, step: int
    ) -> None:
        super().__init__(oracle.of_number, instance, view, fate)
        self.oracle = oracle
        self.shown = shown
        self.crashed = crashed
        self.step = step
        self.kept = shown.kept.get(view.name, Kept(0, 0, {}))

    def says(self, problem: str, seq: int = 0) -> str:
        state = self.shown.states.get(self.view.name)
        return self.describe(
            problem,
            [
                f"kept {self.kept}",
                f"state {state} now {self.shown.now} crashed {self.crashed}",
                f"known {self.instance.jobs.get(seq)}",
            ],
        )

    def check(self) -> None:
        """All of it."""
        assert self.view.config in self.instance.options, self.says(f"config {self.view.config} was never asked for")
        self.check_figures()
        self.check_content()
        self.check_jobs()
        self.check_leases()
        self.check_dead_letters()

    def check_content(self) -> None:
        """Nothing is made up, changed, moved or brought back."""
        for seq, record in self.view.records.items():
            job = self.instance.jobs.get(seq)
            if job is not None and job.number:
                assert job.number == record.data, self.says(f"seq {seq} was {job.number}", seq)
            assert seq not in self.instance.gone, self.says(f"seq {seq} was gone and is back", seq)
            if job is not None:
                ended = job.ended == "hard" or (job.ended == "kill" and self.fate == "kill")
                assert not ended, self.says(f"seq {seq} was acked and is back", seq)
            for asked in self.instance.recent_deletes if job is not None and job.appended is not None else ():
                assert job is not None
                assert job.appended_at is not None
                done = asked.answered is not None and asked.answered < self.oracle.known and not asked.refused
                if done and self.instance.survives(self.fate) and job.appended_at < asked.at:
                    assert not asked.selects(seq, job.tag), self.says(f"seq {seq} was deleted and is back", seq)

    def is_required(self, seq: int) -> bool:
        """Whether a job that somebody knows of must be there."""
        job = self.instance.jobs[seq]
        known = seq in self.instance.seen or job.appended is not None or job.lease is not None
        return self.required(seq, known=known)

    def maybe_deleted(self, seq: int) -> bool:
        """Whether somebody may have deleted it, or acked it."""
        job = self.instance.jobs.get(seq)
        if job is None:
            return bool(self.instance.deletes) or self.instance.waiting > 0 or self.instance.limit > 0
        if job.acks:
            return True
        for asked in self.instance.recent_deletes:
            before = asked.answered is not None and job.claimed_at > asked.answered
            if asked.selects(seq, job.tag) and not before:
                return True
        return False

    def spans(self) -> Iterator[range]:
        """The inside of holes: nobody has ever been told of a seq in there."""
        for first, end, _ in self.view.gaps:
            yield range(first + 1, end)

    def check_jobs(self) -> None:
        """Every job is there, or somebody has ended it, or it was moved, or its loss is announced."""
        view, instance = self.view, self.instance
        if instance.now_classes == {"ephemeral"}:
            assert not view.records, self.says("records of an ephemeral topic are there again")
        last = max([0, *instance.jobs, *view.records])
        for seq in sorted(instance.jobs.keys() | set(range(1, last + 1)).difference(*self.spans())):
            if seq in view.records or seq in instance.gone or self.maybe_deleted(seq):
                continue
            reason = view.gap_of(seq)
            if reason is None:
                assert self.was_moved(seq), self.says(f"seq {seq} is gone silently", seq)
            elif reason == "lost":
                passed = seq < view.earliest and bool(instance.gone or self.moved())
                assert passed or seq not in instance.jobs or not self.is_required(seq) or self.was_moved(seq), (
                    self.says(f"seq {seq} was promised and is lost", seq)
                )
            elif reason in ("cap", "ttl"):
                assert instance.retained, self.says(f"seq {seq} is {reason} without retention", seq)
            else:
                assert reason in ("mixed", "source_trim"), self.says(f"seq {seq} is {reason}", seq)

    # -- leases -------------------------------------------------------------------------------------------------------

    def check_leases(self) -> None:
        """Who holds what, until when; how often jobs were delivered."""
        instance, now = self.instance, self.shown.now
        live = set(self.view.records)
        if not instance.retained:
            assert self.kept.jobs.keys() <= live, self.says(f"{self.kept.jobs.keys() - live} are kept and gone")
        missed = {seq for seq in live if seq <= self.kept.cursor} - self.kept.jobs.keys()
        if self.view.config.type == "queue":
            assert not missed, self.says(f"{missed} will never be claimed")
        held = self.oracle.surely_held(self.view.name, self.shown, self.crashed)
        for seq in live & instance.jobs.keys():
            job, kept = instance.jobs[seq], self.kept.jobs.get(seq, KeptJob(FREE, 0))
            if seq in held:
                told = held[seq]
                assert (kept.state, kept.lease_id, kept.node) == (LEASED, told.lease_id, told.node), self.says(
                    f"seq {seq} is not leased to {told.node} any more", seq
                )
                if not self.step:
                    assert kept.time in job.deadlines, self.says(f"seq {seq} is leased until {kept.time}", seq)
                else:
                    left = min(job.deadlines) - max(self.crashed, now)
                    assert kept.time - now >= left, self.says(f"seq {seq} is leased for {kept.time - now} only", seq)
            if kept.state == LEASED:
                known = job.lease is not None and job.lease.lease_id == kept.lease_id
                told_before = known or instance.waiting or not job.sure or job.over or now > max(job.deadlines)
                assert told_before, self.says(f"seq {seq} is leased as {kept.lease_id:x}", seq)
                assert kept.time - now <= instance.longest, self.says(f"seq {seq} is leased for too long", seq)
            if kept.state == DELAYED:
                assert kept.time - now <= instance.longest_delay, self.says(f"seq {seq} is delayed for too long", seq)
            if job.nacked is not None and not instance.waiting:
                lease_id, until = job.nacked
                assert kept.lease_id != lease_id, self.says(f"seq {seq} was given up and is leased", seq)
                if self.oracle.exact and until >= max(now, self.crashed):
                    assert kept.state == DELAYED, self.says(f"seq {seq} was delayed until {until}", seq)
            if not instance.volatile:
                least = job.deliveries
                assert kept.deliveries >= least, self.says(f"seq {seq} was delivered {least} times for certain", seq)
            most = job.answers + instance.waiting
            assert kept.deliveries <= most, self.says(f"seq {seq} was delivered {most} times at most", seq)
            if kept.state == PARKED:
                assert 0 < instance.limit <= kept.deliveries, self.says(f"seq {seq} is parked", seq)

    # -- dead letters -------------------------------------------------------------------------------------------------

    def moved(self) -> dict[int, int]:
        """The jobs that are in dead-letter topics: by seq, their numbers."""
        found: dict[int, int] = {}
        for target in {config.dead_letter for config in self.instance.configs} - {None}:
            view = self.shown.views.get(str(target))
            for record in view.records.values() if view is not None else ():
                meta = msgspec.json.decode(record.body).get("meta", {})
                if meta.get("$dead_letter_from") == self.view.name:
                    found[int(meta["$dead_letter_src_seq"])] = record.data
        return found

    def leaks(self) -> bool:
        """Whether what is in a dead-letter topic may be gone from there."""
        targets = {config.dead_letter for config in self.instance.configs} - {None}
        instances = [one for target in targets for one in self.oracle.instances.get(str(target), ())]
        return any(one.leaks or any(job.acks for job in one.jobs.values()) for one in instances)

    def was_moved(self, seq: int) -> bool:
        """Whether a job is in a dead-letter topic, or was and has gone from there."""
        if not self.instance.limit:
            return False
        job = self.instance.jobs.get(seq)
        found = self.moved().get(seq)
        if found is not None and job is not None and job.number:
            assert found == job.number, self.says(f"{found} was moved as seq {seq}", seq)
        return found is not None or self.leaks()

    def check_dead_letters(self) -> None:
        """What was moved had had its deliveries; the counter counts what was moved."""
        instance = self.instance
        moved = self.moved()
        for seq in moved:
            job = instance.jobs.get(seq)
            answers = job.answers if job is not None else 0
            if len(self.oracle.instances[self.view.name]) == 1:
                assert answers + instance.waiting >= instance.limit, self.says(f"seq {seq} was moved too early", seq)
        if self.view.config.type != "queue":
            return
        counted = self.kept.dead_lettered
        if self.fate in ("kill", "machine"):
            least = instance.dead_lettered[self.fate]
            assert counted >= least, self.says(f"{least} were dead-lettered, now {counted}")
        if not self.leaks():
            assert counted <= len(moved), self.says(f"{counted} dead-lettered, {len(moved)} are there")


# ----------------------------------------------------------------- the sweep


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
