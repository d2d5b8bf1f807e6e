"""The clients of lives in which workers lease jobs: what they ask for and what they are told, written down.

A `Client` fails at once where two hold a job, or one ends what it does not hold.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import msgspec
import trio

from tests.simulation import lives
from tests.simulation.model import Fate, View, numbered, view_of
from tests.simulation.queue_state import (
    Shown,
    check_first,
    check_queues,
    has_keys,
    unique_job,
)
from tests.simulation.world import Life
from topics.engine.queues.queue_calls import JobSubscription
from topics.engine.record_columns import columns_of
from topics.errors import ApiError
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    HeldResult,
    Job,
    JobSelection,
    NackTerms,
)
from topics.log.tag_match import TagMatch
from topics.model import (
    AppendRequest,
    CheckedAppend,
    JobFields,
    Performance,
    QueueState,
    RouterPatch,
    TopicConfigPatch,
    UniqueJob,
)
from topics.queue.job_pages import DEFAULT_PRIORITY
from topics.queue.unique_keys import DIGEST_BYTES

MADE: Final = "made"
"""A topic that a router makes."""

DEFAULT_LEASE_MS: Final = 30_000

Kind = Literal["topic", "delete_topic", "append", "delete", "claim", "ack", "nack", "extend", "release"]


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
