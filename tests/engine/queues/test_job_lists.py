"""Lists of jobs at the level of the engine: the same as a naive model after random histories, over restarts and with
cold segments; what a page costs; what it shows while jobs change."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import ack, at_rest, claim, seqs_of, the_queue
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.engine.queues.job_lists import ShownJobs
from topics.filters.record_filter import parse_filter
from topics.job_model import (
    HeldRequest,
    JobPageRequest,
    JobSelection,
    JobStateName,
    NackTerms,
    ShownJob,
)
from topics.model import (
    ConsumerStart,
    GroupPatch,
    KeyLimitConfig,
    Performance,
    RetryPolicy,
    TopicConfigPatch,
)
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio

STATES: tuple[JobStateName | None, ...] = (None, "ready", "in_flight", "delayed")


async def page(
    life: Life,
    state: JobStateName | None = None,
    *,
    after: int = 0,
    size: int = 100,
    wanted: str | None = None,
    name: str = "q",
    group: str | None = None,
    perf: Performance | None = None,
) -> ShownJobs:
    found = None if wanted is None else parse_filter(wanted)
    request = JobPageRequest(state, found, after, size)
    return await life.engine.job_lists.page(name, request, perf or Performance(), group)


def record(job: ShownJob) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(b"{" + job.record)
    return decoded


def seq_of(job: ShownJob) -> int:
    seq = record(job)["$seq"]
    assert isinstance(seq, int)
    return seq


async def all_pages(life: Life, state: JobStateName | None = None, **options: Any) -> list[ShownJob]:
    found: list[ShownJob] = []
    after: int | None = 0
    while after is not None:
        one = await page(life, state, after=after, **options)
        assert len(one.jobs) <= options.get("size", 100)
        assert one.next_after is None or one.next_after > after
        found += one.jobs
        after = one.next_after
    return found


async def listed(life: Life, state: JobStateName | None = None, **options: Any) -> list[int]:
    return [seq_of(job) for job in await all_pages(life, state, **options)]


async def nack(life: Life, seqs: list[int], node: str = "a", name: str = "q", group: str | None = None, **terms: Any):  # type: ignore[no-untyped-def]
    request = HeldRequest(node=node, seqs=seqs, lease_ids=None)
    return await life.engine.queues.nack(name, request, NackTerms(**terms), Performance(), group)


# ----------------------------------------------------------------- what a page shows


async def test_each_job_is_shown_as_it_is(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", lease_ms=20_000, dead_letter="d", max_deliveries=3)
        now = life.clock.now_ms()
        await life.append(
            "q", {"data": 1, "tag": "x", "meta": {"m": "1"}}, {"data": 2, "not_before": now + 5000}, {"data": 3}, 4
        )
        await life.append("q", {"data": 5, "priority": 9}, {"data": 6, "priority": 0, "delay_ms": 9000})
        assert seqs_of(await claim(life, most=2)) == [5, 1]
        before = life.clock.now_ms()
        await nack(life, [1], delay_ms=3000, error="bad: ü")
        one, two, three, _, five, six = await all_pages(life)
        assert record(one) == {"$seq": 1, "$ts": now, "$tag": "x", "data": 1, "meta": {"m": "1"}}
        assert one[:5] == ("delayed", 1, 5, None, None)
        assert one.not_before is not None
        assert before + 3000 - 2 <= one.not_before <= life.clock.now_ms() + 3000
        assert one.last_error == "bad: ü"
        assert two[:-1] == ("delayed", 0, 5, None, None, now + 5000, None)
        assert three[:-1] == ("ready", 0, 5, None, None, None, None)
        assert five[:4] == ("in_flight", 1, 9, "a")
        assert five.deadline is not None
        assert before + 20_000 - 2000 <= five.deadline <= life.clock.now_ms() + 20_000
        assert six[:3] == ("delayed", 0, 0)
        await trio.sleep(30)
        assert [job.state for job in await all_pages(life)] == ["ready"] * 6
        assert (await all_pages(life))[0].last_error == "bad: ü"
        jobs = (await claim(life, most=6)).jobs
        assert [json.loads(b"{" + job.record).get("last_error") for job in jobs if job.seq == 1] == ["bad: ü"]


async def test_pages_go_on_where_the_one_before_ended(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", *range(1, 601))
        await claim(life, most=300)
        for size in (1, 7, 299, 300, 301, 1000):
            assert await listed(life, "in_flight", size=size) == list(range(1, 301)), size
            assert await listed(life, "ready", size=size) == list(range(301, 601)), size
        assert await listed(life, "delayed") == []
        assert (await page(life, after=(1 << 64) - 1)) == ShownJobs([], None)
        assert (await page(life, after=600)).next_after is None


async def test_a_list_of_a_log_and_of_a_missing_topic_is_refused(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        assert (await refusal(page(life, name="t"))).code == "not_a_queue"
        assert (await refusal(page(life, name="none"))).code == "topic_not_found"
        assert (await refusal(page(life, name="t", group="g"))).code == "group_not_found"


async def test_a_page_looks_at_no_more_records_than_a_call_may(autojump_clock: Any) -> None:
    async with living(settings(max_scan=100)) as life:
        await life.put("q", type="queue")
        await life.append("q", *({"data": i, "tag": "x" if i % 250 == 0 else "y"} for i in range(1, 501)))
        perf = Performance()
        first = await page(life, wanted='["tag","Eq","x"]', perf=perf)
        assert first.jobs == []
        assert 90 <= (perf.records_scanned or 0) <= 100
        assert await listed(life, wanted='["tag","Eq","x"]') == [250, 500]
        perf = Performance()
        await page(life, "ready", perf=perf, size=1000)
        assert not perf.records_scanned, "nothing is asked without a filter"


@pytest.mark.parametrize("wanted", [None, '["tag","Eq","x"]'])
async def test_each_page_gets_on_also_where_a_call_may_look_at_one_record(
    wanted: str | None, autojump_clock: Any
) -> None:
    async with living(settings(max_scan=1)) as life:
        await life.put("q", type="queue")
        await life.append("q", *({"data": i, "tag": "x" if i % 2 else "y"} for i in range(1, 6)))
        after: int | None = 0
        seqs: list[int] = []
        for _ in range(20):
            if after is None:
                break
            found = await page(life, wanted=wanted, after=after)
            seqs += [json.loads(b"{" + job.record)["$seq"] for job in found.jobs]
            after = found.next_after
        assert (seqs, after) == ([1, 2, 3, 4, 5] if wanted is None else [1, 3, 5], None)


async def test_jobs_that_are_not_in_the_state_are_not_looked_at(autojump_clock: Any) -> None:
    """A list of the leased jobs goes over the table, not over the log; one of the ready jobs passes over the others."""
    async with living(settings(max_scan=10)) as life:
        await life.put("q", type="queue")
        for _ in range(10):
            await life.append("q", *({"data": i, "delay_ms": 3_600_000} for i in range(1000)))
        await life.append("q", "ready")
        first = await page(life, "in_flight")
        assert first == ShownJobs([], None)
        assert await listed(life, "ready") == [10_001]


async def test_a_job_that_changes_while_its_record_is_fetched_is_not_shown_as_it_was(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(settings(cache_bytes=0), offload=disk) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append("q", 1, 2, 3, 4)
        await claim(life, most=3)
        await trio.sleep(0.1)
        disk.hold(Pool.HOT_READ)
        leased = Called(nursery, lambda: page(life, "in_flight"))
        everything = Called(nursery, lambda: page(life))
        await settle()
        assert not leased.done
        assert not everything.done
        await ack(life, [1])
        await nack(life, [2])
        disk.let_go(Pool.HOT_READ)
        await settle()
        await trio.sleep(1)
        assert [seq_of(job) for job in leased.result.jobs] == [3]
        assert [(seq_of(job), job.state) for job in everything.result.jobs] == [
            (2, "ready"),
            (3, "in_flight"),
            (4, "ready"),
        ]


async def test_a_job_with_an_event_in_flight_is_shown_as_it_is_published(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", leases_durable=True)
        await life.append("q", 1, 2, 3)
        await claim(life, most=1)
        disk.hold()
        calls = [Called(nursery, lambda: claim(life, "b", most=1)), Called(nursery, lambda: ack(life, [1]))]
        await settle()
        assert [job.state for job in await all_pages(life)] == ["in_flight", "ready", "ready"]
        assert await listed(life, "ready") == [2, 3]
        disk.let_go()
        await settle()
        assert all(call.done for call in calls)
        assert [(seq_of(job), job.state) for job in await all_pages(life)] == [(2, "in_flight"), (3, "ready")]


# ----------------------------------------------------------------- groups


async def put_group(life: Life, name: str = "g", **fields: Any) -> None:
    own = {key: fields.pop(key) for key in ("filter", "max_unfinished") if key in fields}
    patch = GroupPatch(start=ConsumerStart(place="earliest", value=0), terms=TopicConfigPatch(**fields), **own)
    await life.engine.groups.put("t", name, patch, Performance())


async def test_a_group_lists_what_its_filter_lets_through_and_it_has_not_finished(autojump_clock: Any) -> None:
    async with living(settings(max_scan=40)) as life:
        await life.put("t")
        await life.append("t", *({"data": i, "tag": "odd" if i % 2 else "even"} for i in range(1, 101)))
        await put_group(life, filter=parse_filter('["tag","Eq","odd"]'))
        await put_group(life, "all")
        odd = list(range(1, 101, 2))
        assert await listed(life, "ready", name="t", group="g") == odd
        assert await listed(life, "ready", name="t", group="all", size=9) == list(range(1, 101))
        assert seqs_of(await take(life, 10)) == odd[:10]
        assert await listed(life, "in_flight", name="t", group="g") == odd[:10]
        assert await listed(life, "ready", name="t", group="g") == odd[10:]
        await life.engine.queues.ack("t", HeldRequest(node="a", seqs=odd[2:6], lease_ids=None), Performance(), "g")
        assert await listed(life, name="t", group="g") == odd[:2] + odd[6:]
        wanted = '["data","","Gt",90]'
        assert await listed(life, name="t", group="g", wanted=wanted) == [91, 93, 95, 97, 99]


async def take(life: Life, most: int, group: str = "g") -> Any:
    from topics.job_model import ClaimRequest  # noqa: PLC0415

    request = ClaimRequest(node="a", most=most, lease_ms=None, wait_ms=0)
    return await life.engine.queues.claim("t", request, Performance(), group)


# ----------------------------------------------------------------- the same as a model


@dataclass
class Job:
    tag: str
    priority: int = 5
    state: str = "ready"
    deliveries: int = 0
    until: float = 0
    """When the lease or the delay ends, roughly (ms by the wall clock)."""
    node: str | None = None
    error: str | None = None


class Model:
    """The jobs as a client would write them down."""

    def __init__(self, life: Life, rng: random.Random) -> None:
        self.jobs: dict[int, Job] = {}
        self.rng = rng
        self.life = life

    def now(self) -> float:
        return self.life.clock.now_ms()

    def pass_time(self) -> None:
        for job in self.jobs.values():
            if job.state != "ready" and job.until < self.now():
                job.state, job.node = "ready", None

    def is_unsure(self) -> bool:
        """Return True if a time is so near that nobody knows whether it has come."""
        return any(job.state != "ready" and abs(job.until - self.now()) < 200 for job in self.jobs.values())

    async def act(self) -> None:
        rng, life = self.rng, self.life
        self.pass_time()
        leased = [seq for seq, job in self.jobs.items() if job.state == "in_flight"]
        what = rng.choice(("append", "append", "claim", "claim", "ack", "nack", "wait", "delete", "retry", "cancel"))
        if what == "append":
            await self.append()
        elif what == "claim":
            node = rng.choice("ab")
            for job in (await claim(life, node, most=rng.randrange(1, 12), lease_ms=20_000)).jobs:
                own = self.jobs[job.seq]
                assert own.state == "ready"
                own.state, own.node, own.until = "in_flight", node, job.deadline
                own.deliveries += 1
        elif what == "ack" and leased:
            some = rng.sample(leased, min(len(leased), 4))
            for node in "ab":
                mine = [seq for seq in some if self.jobs[seq].node == node]
                if mine:
                    assert (await ack(life, mine, node)).done == sorted(mine)
            for seq in some:
                del self.jobs[seq]
        elif what == "nack" and leased:
            await self.nack(rng.sample(leased, min(len(leased), 4)))
        elif what == "wait":
            await trio.sleep(rng.choice((1, 7, 23, 61)))
        elif what == "delete" and self.jobs and rng.random() < 0.3:
            bound = rng.choice(sorted(self.jobs))
            await life.delete("q", bound)
            self.jobs = {seq: job for seq, job in self.jobs.items() if seq >= bound}
        elif what in ("retry", "cancel"):
            await self.change(what)

    async def append(self) -> None:
        rng = self.rng
        new: list[tuple[dict[str, Any], Job]] = []
        for _ in range(rng.choice((1, 5, 40))):
            fields: dict[str, Any] = {"data": rng.randrange(4), "tag": rng.choice("xyz")}
            job = Job(fields["tag"])
            if rng.random() < 0.3:
                fields["priority"] = job.priority = rng.randrange(10)
            if rng.random() < 0.3:
                fields["delay_ms"] = rng.choice((10_000, 90_000))
                job.state, job.until = "delayed", self.now() + fields["delay_ms"]
            new.append((fields, job))
        answer = await self.life.append("q", *(fields for fields, _ in new))
        for i, (_, job) in enumerate(new):
            self.jobs[answer.first_seq + i] = job

    async def nack(self, some: list[int]) -> None:
        delay_ms, error = self.rng.choice((0, 15_000)), self.rng.choice((None, "e1", "e2"))
        for node in "ab":
            mine = [seq for seq in some if self.jobs[seq].node == node]
            if mine:
                await nack(self.life, mine, node, delay_ms=delay_ms, error=error)
        for seq in some:
            job = self.jobs[seq]
            job.state, job.node, job.until = ("delayed" if delay_ms else "ready"), None, self.now() + delay_ms
            job.error = error or job.error

    async def change(self, what: str) -> None:
        if self.is_unsure():
            return
        rng, changes = self.rng, self.life.engine.job_changes
        state: Any = "delayed" if what == "retry" else rng.choice(STATES)
        there = {seq for seq, job in self.jobs.items() if state in (None, job.state)}
        if rng.random() < 0.6:
            seqs = sorted({rng.randrange(1, 300) for _ in range(5)})
            selection, matched, asked = JobSelection(seqs, None, state), there & set(seqs), len(seqs)
        else:
            tag = rng.choice("xyz")
            matched = {seq for seq in there if self.jobs[seq].tag == tag}
            selection, asked = JobSelection(None, parse_filter(json.dumps(["tag", "Eq", tag])), state), len(matched)
        call = changes.retry if what == "retry" else changes.cancel
        assert await call("q", selection, Performance()) == (len(matched), len(matched), asked - len(matched))
        for seq in matched:
            if what == "cancel":
                del self.jobs[seq]
            else:
                self.jobs[seq].state = "ready"

    async def compare(self) -> None:
        self.pass_time()
        if self.is_unsure():
            await trio.sleep(1)
            self.pass_time()
        size = self.rng.choice((3, 50, 1000))
        for state in STATES:
            tag = self.rng.choice(("x", None))
            wanted = None if tag is None else json.dumps(["tag", "Eq", tag])
            expected = [
                (seq, job.state, job.deliveries, job.priority, job.node, job.error)
                for seq, job in sorted(self.jobs.items())
                if state in (None, job.state) and tag in (None, job.tag)
            ]
            assert expected == [
                (seq_of(job), job.state, job.deliveries, job.priority, job.node, job.last_error)
                for job in await all_pages(self.life, state, size=size, wanted=wanted)
            ], state
        the_queue(self.life)[1].leases.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(16))
async def test_lists_are_those_of_a_model_over_restarts_and_kills(seed: int, autojump_clock: Any) -> None:
    rng = random.Random(seed)
    fs, clock = SimFs(), SimClock()
    config = settings(max_scan=rng.choice((20, 10_000)), cache_bytes=rng.choice((1000, 1 << 20)))
    keys: dict[str, Any] = rng.choice(
        ({}, {}, {"order_by": "tag"}, {"max_in_flight_per_key": KeyLimitConfig(by="tag", max=2)})
    )
    durability = rng.choice(("disk", "fsync"))
    jobs: dict[int, Job] = {}
    for life_number in range(3):
        clean = durability == "disk" or rng.random() < 0.5
        async with living(config, fs=fs, clock=clock, clean=clean) as life:
            if not life_number:
                await life.put(
                    "q", type="queue", durability=durability, leases_durable=True, segment_max_events=20, **keys
                )
            model = Model(life, rng)
            model.jobs = jobs
            await model.compare()
            for _ in range(40):
                await model.act()
                if rng.random() < 0.15:
                    await life.engine.compactor.try_checkpoint()
                if rng.random() < 0.3:
                    await model.compare()
            await model.compare()
            jobs = model.jobs
            await at_rest(life)


async def test_backoff_is_shown_and_retried(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put(
            "q",
            type="queue",
            lease_ms=1000,
            retry=RetryPolicy(backoff="fixed", delay_ms=60_000, max_delay_ms=60_000, jitter=0),
        )
        await life.append("q", 1)
        await claim(life)
        await trio.sleep(2)
        (job,) = await all_pages(life, "delayed")
        assert job.not_before is not None
        assert 57_000 < job.not_before - life.clock.now_ms() < 60_000
        assert await life.engine.job_changes.retry("q", JobSelection([1], None, "delayed"), Performance()) == (1, 1, 0)
        assert seqs_of(await claim(life)) == [1]
