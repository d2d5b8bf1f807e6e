"""What clients do with queues of jobs besides claims and acks, which are those of any queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from tests.simulation.world import Life
from tests.simulator.caller import Caller
from tests.simulator.jobs.job_facts import NEVER, JobFact, Pause, QueueFacts
from tests.simulator.known import Batch, Instance, Lease, broken
from topics.job_model import NackTerms
from topics.model import (
    AppendRequest,
    AppendResult,
    Performance,
    RecordIn,
    TopicConfigPatch,
    UniqueIn,
)
from topics.queue.job_pages import DEFAULT_PRIORITY

KEPT: Final = 4
"""Appends that a producer remembers."""
WINDOW_MS: Final = 100_000


@dataclass(slots=True, eq=False)
class SentJobs:
    """An append of jobs that was answered under a key."""

    instance: Instance
    request: AppendRequest
    answer: tuple[int, int, dict[int, int]]
    sent_ms: int
    life: int


def told(result: AppendResult) -> tuple[int, int, dict[int, int]]:
    """First seq, how many were stored, and the duplicates."""
    return result.first_seq, result.count, dict(result.duplicates or {})


def nack_terms(what: Mapping[str, Any]) -> NackTerms:
    """How a step gives jobs back."""
    return NackTerms(**what["terms"]) if "terms" in what else NackTerms(what.get("ms", 0))


class JobSteps(Caller):
    """Appends of jobs, and pauses."""

    def _wall(self) -> int:
        return self.life.clock.now_ms()

    async def do_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Append jobs. Those of which some may be duplicates are a batch each: which of them are stored is known of
        their answer only."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        numbers = [self.truth.number() for _ in what["records"]]
        records = [self._record(n, what["size"], one) for n, one in zip(numbers, what["records"], strict=True)]
        alone = any(one.unique is not None for one in records)
        if alone:
            pairs = zip(numbers, records, strict=True)
            batches = [self.truth.append_asked(instance, [one], [number]) for number, one in pairs]
        else:
            batches = [self.truth.append_asked(instance, records, numbers)]
        facts = self.truth.jobs.of(instance)
        found = [self._fact(facts, number) for number in numbers]
        key = f"jobs-{numbers[0]}" if what["key"] else None
        request = AppendRequest(records=records, idempotency_key=key, create=False)
        asked = self.now()
        with self._refusable():
            result = await self.engine.appends.append(instance.name, request, Performance())
            self._alive()
            if not self._is(instance):
                return
            if key is not None:
                kept = self.memory.jobs.setdefault(instance.name, [])
                kept.append(SentJobs(instance, request, told(result), asked, self.truth.life))
                del kept[:-KEPT]
            if alone:
                self._judge_one_by_one(batches, found, result)
            else:
                self.truth.append_answered(batches[0], result.first_seq, result.count, deduped=result.deduped)
            for fact in found:
                self._close(fact)

    def _record(self, number: int, size: int, one: Mapping[str, Any]) -> RecordIn:
        data = msgspec.Raw(b'{"n":%d,"x":"%b"}' % (number, b"x" * size))
        fields = {name: one[name] for name in ("tag", "node", "delay_ms", "priority") if name in one}
        if "not_before" in one:
            fields["not_before"] = self._wall() + one["not_before"]
        if "unique" in one:
            fields["unique"] = UniqueIn(**one["unique"])
        return RecordIn(data=data, **fields)

    def _fact(self, facts: QueueFacts, number: int) -> JobFact:
        batch, i = self.truth.batch_of[number]
        record = batch.records[i]
        by = facts.instance.configs[-1].order_by
        fact = facts.jobs[number] = JobFact(
            batch, number, self.now(), self.truth.life, record.node if by == "node" else record.tag
        )
        fact.priority = DEFAULT_PRIORITY if record.priority is None else record.priority
        fact.unique = record.unique
        if record.delay_ms:
            fact.not_before, fact.latest = self._wall() + record.delay_ms, NEVER
        elif record.not_before is not None:
            fact.not_before = fact.latest = record.not_before
        return fact

    def _close(self, fact: JobFact) -> None:
        """It was answered: what its time is at the latest is known."""
        record = fact.batch.records[fact.batch.numbers.index(fact.number)]
        if record.delay_ms and not fact.is_due:
            fact.latest = self._wall() + record.delay_ms
        fact.is_open, fact.answered_ms = False, self.now()

    def _judge_one_by_one(self, batches: Sequence[Batch], facts: Sequence[JobFact], result: AppendResult) -> None:
        first, count, duplicates = told(result)
        seq = first
        for i, (batch, fact) in enumerate(zip(batches, facts, strict=True)):
            if i in duplicates:
                self.truth.jobs.is_duplicate_of(fact, duplicates[i], self.truth.leases, self.now())
                continue
            self.truth.jobs.is_stored(fact, seq, self.now(), self.truth.life)
            self.truth.append_answered(batch, seq, 1, deduped=result.deduped)
            seq += 1
        if seq != first + count or (count == 0) != (first == 0):
            broken(f"{result.topic}: of {len(batches)} jobs {result.count} were stored, from {first} on: {duplicates}")

    async def do_repeat_jobs(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Send jobs again under their key: the answer is the first one."""
        for sent in self.memory.jobs.get(what["topic"], ())[-2:]:
            if not self._is(sent.instance) or sent.life != self.truth.life or self.truth.clock_moved:
                continue
            if self.now() - sent.sent_ms >= WINDOW_MS:
                continue
            with self._refusable():
                result = await self.engine.appends.append(sent.instance.name, sent.request, Performance())
                self._alive()
                if self._is(sent.instance) and (told(result) != sent.answer or not result.deduped):
                    broken(f"{sent.instance.name}: an append was answered {sent.answer}, and again {result}")

    # -- pauses ------------------------------------------------------------------------------------------------------

    async def do_pause(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have no jobs given out, for some time or until somebody ends it."""
        until = None if what["ms"] is None else self._wall() + what["ms"]
        await self._pause(what["topic"], until, paused=True)

    async def do_resume(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have jobs given out again."""
        await self._pause(what["topic"], None, paused=False)

    async def _pause(self, name: str, until: int | None, *, paused: bool) -> None:
        instance = self.truth.latest(name)
        if instance is None or not instance.options:
            return
        facts = self.truth.jobs.of(instance)
        alone = facts.pausing == 0
        facts.pausing += 1
        facts.pause_known = False
        facts.is_timed |= until is not None
        with self._refusable():
            try:
                if paused:
                    await self.engine.queues.pause(name, until, Performance())
                else:
                    await self.engine.queues.resume(name, Performance())
            finally:
                facts.pausing -= 1
            self._alive()
            if alone and facts.pausing == 0 and self._is(instance):
                facts.pause = Pause(self.truth.tick(), until) if paused else None
                facts.pause_known = True

    # -- failures ----------------------------------------------------------------------------------------------------

    def _gives_back(self, facts: QueueFacts, lease: Lease, terms: NackTerms) -> None:
        """A job is about to be given back."""
        lease.is_uncounted |= not terms.counts
        if terms.error is not None:
            self.truth.jobs.errors.setdefault(lease.number, set()).add(terms.error)
        if terms.dead:
            facts.instance.condemns = True
            facts.condemned.add(lease.seq)

    def _gave_back(self, facts: QueueFacts, lease: Lease, terms: NackTerms, asked: int) -> None:
        """A job was given back."""
        delay_ms = terms.delay_ms
        if delay_ms is None:
            retry_ms = self.truth.jobs.retry_ms(facts, lease.seq, lease.deliveries)
            delay_ms = retry_ms if terms.counts else 0
        lease.again_ms, lease.is_condemned = asked + delay_ms, terms.dead


async def let_go(life: Life, name: str) -> None:
    """End what keeps jobs of a queue from being claimed all at once."""
    queue = life.engine.registry.topics[name].queue
    assert queue is not None
    if queue.leases.paused_until is not None:
        await life.engine.queues.resume(name, Performance())
    if life.engine.registry.topics[name].config.rate is not None:
        await life.engine.topic_lifecycle.put(name, TopicConfigPatch(rate=None))
