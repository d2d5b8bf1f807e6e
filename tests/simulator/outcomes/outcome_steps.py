"""What clients do with jobs whose outcomes are judged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import trio

from tests.simulation.model import numbered
from tests.simulation.world import Life
from tests.simulator.caller import Caller
from tests.simulator.jobs.job_facts import typed
from tests.simulator.known import broken
from tests.simulator.outcomes.outcome_facts import JobSource, OutcomeJob, OutcomeLease
from tests.simulator.outcomes.outcome_plans import GROUP, LETTERS, LOG, QUEUE, RESULTS
from tests.simulator.outcomes.outcome_rules import OutcomeRules
from tests.simulator.outcomes.outcome_seen import OutcomesSeen, outcomes_shown_by, queue_in
from topics.engine.job_queue import JobQueue
from topics.engine.redrives.redrives import RedriveWish
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    HeldResult,
    Job,
    JobSelection,
    NackTerms,
)
from topics.model import (
    AppendRequest,
    ConsumerStart,
    GroupPatch,
    Performance,
    TopicConfigPatch,
)

STRANGER: Final = "stranger"
REPEATS: Final = 8
"""Leases that a worker remembers."""
ROUNDS: Final = 100


class OutcomeSteps(Caller):
    """Appends, claims and ends jobs, and moves dead letters."""

    def _source(self, what: Mapping[str, Any]) -> JobSource | None:
        """The source that a step is about, if somebody was told that it is there."""
        source = self.truth.outcomes.sources.get(what["source"])
        return source if source is not None and source.created else None

    async def do_set_up_outcomes(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Make the topics and the group that are not there yet."""
        topics = self.engine.registry.topics
        with self._refusable():
            if LETTERS not in topics:
                await self._make(LETTERS, durability=what["letters"])
            if RESULTS not in topics and what["results"] is not None:
                await self._make(RESULTS, durability=what["results"])
        for name, plan in what["sources"].items():
            source = self.truth.outcomes.source(name, plan)
            terms = typed(source.terms)
            with self._refusable():
                if name not in topics:
                    config = {"type": "queue", **terms} if name == QUEUE else {}
                    await self._make(name, durability=source.durability, **config)
                if name == LOG and queue_in(topics[LOG]) is None:
                    start = ConsumerStart(place="earliest")
                    patch = GroupPatch(start=start, terms=TopicConfigPatch(**terms), max_unfinished=1000)
                    await self.engine.groups.put(LOG, GROUP, patch, Performance())
                    self._alive()
                source.created = True

    async def _make(self, name: str, **config: Any) -> None:
        await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**config))
        self._alive()

    async def do_outcome_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Append jobs."""
        source = self._source(what)
        if source is None:
            return
        rules, numbers = self.truth.outcomes, [self.truth.number() for _ in what["tags"]]
        records = [numbered([n], what["size"], tag=tag)[0] for n, tag in zip(numbers, what["tags"], strict=True)]
        jobs = [OutcomeJob(n, r.tag, bytes(r.data)) for n, r in zip(numbers, records, strict=True)]
        rules.jobs |= {job.number: job for job in jobs}
        with self._refusable():
            result = await self.engine.appends.append(
                source.name, AppendRequest(records=records, create=False), Performance()
            )
            self._alive()
            for i, job in enumerate(jobs):
                rules.tell(source, result.first_seq + i, job.number)
                job.must_be = result.first_seq + i not in source.maybe_ended and job.tag not in rules.ending
                job.promise = source.promise

    async def do_want_results(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have results delivered from now on, or dropped."""
        source = self._source(what)
        if source is None or "completed" not in source.terms:
            return
        if not what["wants"]:
            self.truth.outcomes.results_unwanted(source)
        source.wants.add(what["wants"])
        patch = TopicConfigPatch(completed=RESULTS if what["wants"] else None)
        with self._refusable():
            if source.group is None:
                await self.engine.topic_lifecycle.put(source.name, patch)
            else:
                change = GroupPatch(start=ConsumerStart(place="tail"), terms=patch)
                await self.engine.groups.put(source.name, source.group, change, Performance())
            self._alive()
            source.wants = {what["wants"]}

    # -- workers -----------------------------------------------------------------------------------------------------

    async def do_outcome_claim(self, actor: str, what: Mapping[str, Any]) -> None:
        """Claim jobs."""
        source = self._source(what)
        if source is None:
            return
        since, asked = self.truth.tick(), self.now()
        source.begun += 1
        source.unanswered += 1
        request = ClaimRequest(node=actor, most=what["most"], lease_ms=what["lease_ms"], wait_ms=what["wait_ms"])
        with self._refusable():
            result = await self.engine.queues.claim(source.name, request, Performance(), source.group)
            self._alive()
            source.unanswered -= 1
            leases = [self._lease(source, actor, job, what["lease_ms"], since, asked) for job in result.jobs]
            self.truth.outcomes.claimed(source, leases, self.now())
            held = self.memory.outcomes.setdefault(actor, [])
            held += [(source, lease) for lease in leases]
            del held[:-REPEATS]

    def _lease(
        self, source: JobSource, node: str, job: Job, lease_ms: int | None, since: int, asked: int
    ) -> OutcomeLease:
        row = msgspec.json.decode(b"{" + job.record)
        length = lease_ms or source.terms["lease_ms"]
        ends = asked + length, self.now() + length
        durable = source.terms["leases_durable"]
        number = row["data"]["n"]
        return OutcomeLease(job.seq, number, node, job.lease_id, job.deliveries, since, *ends, durable, self.truth.life)

    async def do_outcome_say(self, actor: str, what: Mapping[str, Any]) -> None:
        """Ack, nack or extend some of what was claimed last."""
        mine = [lease for source, lease in self.memory.outcomes.get(actor, ()) if source.name == what["source"]]
        start = int(what["which"] * len(mine))
        leases = list({lease.seq: lease for lease in mine[start : start + what["count"]]}.values())
        source = self._source(what)
        if source is None or not leases:
            return
        rules, asked, kind = self.truth.outcomes, self.now(), what["say"]
        seqs = [lease.seq for lease in leases]
        request = HeldRequest(node=actor, seqs=seqs, lease_ids=[lease.lease_id for lease in leases])
        results = {}
        if kind == "ack":
            rules.ends(source, seqs)
            if True in source.wants:
                has_results = what["results"] and source.wants == {True}
                values = {seq: b'{"r":%d}' % self.truth.number() if has_results else b"null" for seq in seqs}
                request.results = values if has_results else None
                results = {seq: rules.result_asked(source, seq, value, actor) for seq, value in values.items()}
        for lease in leases:
            if kind == "extend":
                lease.earliest_end = min(lease.earliest_end, asked + what["ms"])
            else:
                lease.over = True
        with self._refusable():
            done = (await self._say_of(source, kind, request, what)).done
            self._alive()
            for seq in done if kind == "ack" else ():
                if seq in results:
                    results[seq].promise = max(source.promise, results[seq].promise or source.promise)
            if kind == "ack":
                rules.ended(source, done, self.truth.tick())
            self._took_effect(kind, [lease for lease in leases if lease.seq in done], what, asked)

    def _took_effect(self, kind: str, leases: Sequence[OutcomeLease], what: Mapping[str, Any], asked: int) -> None:
        for lease in leases:
            if kind == "extend" and not lease.over:
                lease.earliest_end, lease.latest_end = asked + what["ms"], self.now() + what["ms"]
            if kind == "nack":
                # A dead job may be given back at once.
                delay_ms = 0 if "dead" in what["terms"] else what["terms"].get("delay_ms") or 0
                lease.again_ms = asked + delay_ms

    async def _say_of(self, source: JobSource, kind: str, request: HeldRequest, what: Mapping[str, Any]) -> HeldResult:
        name, group, queues = source.name, source.group, self.engine.queues
        if kind == "ack":
            return await queues.ack(name, request, Performance(), group)
        if kind == "nack":
            fields = {key: value for key, value in what["terms"].items() if key != "dead" or source.buries}
            return await queues.nack(name, request, NackTerms(**fields), Performance(), group)
        return await queues.extend(name, request, what["ms"], Performance(), group)

    # -- dead letters ------------------------------------------------------------------------------------------------

    async def do_redrive(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Begin to move dead letters back to where they came from, or to one topic."""
        if LETTERS not in self.engine.registry.topics:
            return
        wish = RedriveWish(what["to"], None, what["most"], tuple(what["rate"]) if what["rate"] else None)
        self.truth.outcomes.is_scattered |= what["to"] is not None
        self.truth.outcomes.redriven()
        with self._refusable():
            self.engine.redrives.start(LETTERS, wish, _may)
            self.truth.outcomes.checked["redrives"] += 1

    async def do_stop_redrive(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """Stop it."""
        if LETTERS in self.engine.registry.topics:
            with self._refusable():
                await self.engine.redrives.stop(LETTERS)

    async def do_retry_dead(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have the dead jobs of one source come again: all of them, or one by the seq of its letter."""
        source, letters = self._source(what), self.engine.registry.topics.get(LETTERS)
        if source is None or not source.buries or letters is None:
            return
        seqs = [int(what["share"] * letters.log.head_seq) + 1] if what["by"] == "seqs" else None
        selection = JobSelection(seqs, None)
        self.truth.outcomes.redriven()
        with self._refusable():
            changed = await self.engine.dead_jobs.retry(
                source.name, LETTERS, selection, Performance(), source.group, _may
            )
            self._alive()
            self.truth.outcomes.checked["dead jobs retried"] += changed.done


def _may(_name: str) -> bool:
    return True


# ----------------------------------------------------------------- the end


async def finish_outcomes(life: Life, rules: OutcomeRules) -> tuple[OutcomesSeen, Counter[int]]:
    """Every job comes and is acked, and every result is delivered. Return what is left, and how often each came."""
    came: Counter[int] = Counter()
    queues = {name: queue for name in (QUEUE, LOG) if (queue := _queue(life, name)) is not None}
    for name in queues:
        await _change(life, name, TopicConfigPatch(max_deliveries=0, retry=None))
    for around in range(ROUNDS):
        if LETTERS in life.engine.registry.topics:
            life.engine.redrives.start(LETTERS, RedriveWish(), _may)
            await life.engine.redrives.ended()
        for name in queues:
            await _claim_all(life, name, rules, came)
        if not await _unfinished(life, queues, rules):
            break
        if around == ROUNDS // 2:
            for name in queues:  # what cannot be buried comes back
                await _change(life, name, TopicConfigPatch(dead_letter=None))
        await trio.sleep(4)
    return await outcomes_shown_by(life), came


def _queue(life: Life, name: str) -> JobQueue | None:
    topic = life.engine.registry.topics.get(name)
    return queue_in(topic) if topic is not None else None


async def _change(life: Life, name: str, patch: TopicConfigPatch) -> None:
    if name == QUEUE:
        await life.engine.topic_lifecycle.put(name, patch)
    else:
        await life.engine.groups.put(
            name, GROUP, GroupPatch(start=ConsumerStart(place="tail"), terms=patch), Performance()
        )


async def _unfinished(life: Life, queues: Mapping[str, JobQueue], rules: OutcomeRules) -> bool:
    """Whether there is anything left to do."""
    seen = await outcomes_shown_by(life)
    if any(rules.sources[one.topic].durability != "memory" for one in seen.letters.values()):
        return True
    return any(seen.jobs[name] or seen.waiting[name] for name in queues)


async def _claim_all(life: Life, name: str, rules: OutcomeRules, came: Counter[int]) -> None:
    group = GROUP if name == LOG else None
    while True:
        request = ClaimRequest(node=STRANGER, most=1000, lease_ms=30_000, wait_ms=0)
        jobs = (await life.engine.queues.claim(name, request, Performance(), group)).jobs
        if not jobs:
            return
        source = rules.sources[name]
        for job in jobs:
            number = msgspec.json.decode(b"{" + job.record)["data"]["n"]
            rules.tell(source, job.seq, number)
            came[number] += 1
            if True in source.wants:
                rules.result_asked(source, job.seq, b"null", STRANGER).promise = source.promise
        held = HeldRequest(node=STRANGER, seqs=[job.seq for job in jobs], lease_ids=[job.lease_id for job in jobs])
        done = (await life.engine.queues.ack(name, held, Performance(), group)).done
        if set(done) != {job.seq for job in jobs}:
            broken(f"{name}: {jobs} were claimed, and only {done} acked")
