"""What must not happen with jobs (`docs/spec/consumers.md` section 5), as far as that can be told from outside.

Every rule is about what is certain: a job *is there* if it was told of in this life and nothing that may have ended it
was asked for. Where calls overlap, so that either order is allowed, nothing is judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.simulation.model import View
from tests.simulator.jobs.job_facts import Grant, JobFact, Pause, QueueFacts
from tests.simulator.known import Instance, Lease, broken
from topics.model import QueueState, RetryPolicy
from topics.queue.retry_delay import RetryDelay


class JobRules:
    """The facts of all queues of jobs, and what follows from them."""

    def __init__(self) -> None:
        self.queues: dict[Instance, QueueFacts] = {}
        self.errors: dict[int, set[str]] = {}
        """What was said of a record, by its number."""
        self.checked: Counter[str] = Counter()

    def of(self, instance: Instance) -> QueueFacts:
        """The facts of a queue."""
        if instance not in self.queues:
            self.queues[instance] = QueueFacts(instance)
        return self.queues[instance]

    def clock_was(self, wall_ms: int) -> None:
        """The wall clock is about to be set; it was so far."""
        for facts in self.queues.values():
            facts.clock_was(wall_ms)

    # -- claims ------------------------------------------------------------------------------------------------------

    def claim_asked(self, facts: QueueFacts, since: int, now: int, wall_ms: int) -> Grant:
        """Somebody claims."""
        grant = Grant(since, now, facts.begun, facts.on_the_way == 0, wall_ms)
        facts.begun += 1
        facts.on_the_way += 1
        facts.unanswered += 1
        return grant

    def claim_answered(
        self,
        facts: QueueFacts,
        grant: Grant,
        leases: Sequence[Lease],
        known: Mapping[tuple[int, int], Lease],
        now: int,
        wall_ms: int,
    ) -> None:
        """It was answered with these, at `now`. `known` are the leases before, by epoch and seq."""
        if not leases:
            return
        instance = facts.instance
        grant.answered_ms, grant.count = now, len(leases)
        self._check_pause(facts, grant, wall_ms)
        for lease in leases:
            self._check_time(facts, lease, wall_ms)
            self._check_delay(facts, lease, known.get((instance.epoch, lease.seq)), now)
        self._check_limits(facts, grant, leases, known, now)
        if all(config.order_by for config in facts.configs):
            for lease in leases:
                self._check_order(facts, lease)
        else:
            self._check_priority(facts, grant, leases)
        facts.claimed.update(lease.seq for lease in leases)
        facts.grants.append(grant)
        self.checked["judged claims"] += 1

    def _check_pause(self, facts: QueueFacts, grant: Grant, wall_ms: int) -> None:
        pause = facts.pause
        if pause is None or not facts.pause_known or facts.pausing or grant.since < pause.since:
            return
        if pause.until is None or wall_ms < pause.until:
            broken(f"{facts.instance.name}: jobs were given out in a pause, {pause}, at {wall_ms}")
        self.checked["pauses"] += 1

    def _check_time(self, facts: QueueFacts, lease: Lease, wall_ms: int) -> None:
        fact = facts.jobs.get(lease.number)
        if fact is not None and fact.not_before and not fact.is_due:
            if wall_ms < fact.not_before:
                broken(f"{facts.instance.name}: {lease} was given out at {wall_ms}, and is not for {fact.not_before}")
            self.checked["times"] += 1

    def _check_delay(self, facts: QueueFacts, lease: Lease, other: Lease | None, now: int) -> None:
        if other is None or other.life != lease.life:
            return
        if other.is_condemned and all(config.dead_letter is not None for config in facts.configs):
            broken(f"{lease.instance.name}: {lease} was given out, and was to go to the dead letters after {other}")
        until = other.again_ms
        if not other.over:  # it has run out
            until = other.earliest_end + self.retry_ms(facts, lease.seq, other.deliveries)
        if now < until:
            broken(f"{lease.instance.name}: {lease} was given out at {now}, and was delayed to {until} after {other}")

    @staticmethod
    def retry_ms(facts: QueueFacts, seq: int, deliveries: int) -> int:
        """How long a job that has failed is delayed at least; 0 where the config has changed."""
        policies: list[RetryPolicy | None] = [config.retry for config in facts.configs]
        policy = policies[0] if policies else None
        if policy is None or any(one != policy for one in policies):
            return 0
        kind, first, most, jitter = policy.backoff, policy.delay_ms, policy.max_delay_ms, policy.jitter
        return RetryDelay(kind, first, most, jitter).delay_ms(seq, deliveries)

    def _check_limits(
        self,
        facts: QueueFacts,
        grant: Grant,
        leases: Sequence[Lease],
        known: Mapping[tuple[int, int], Lease],
        now: int,
    ) -> None:
        instance, config = facts.instance, facts.configs[0]
        seqs = {lease.seq for lease in leases}
        if config.max_in_flight and all(one.max_in_flight == config.max_in_flight for one in facts.configs):
            held = [
                other
                for other in known.values()
                if other.instance is instance and other.seq not in seqs and _is_held(other, leases[0].life, now)
            ]
            held = [other for other in held if facts.is_there(other.seq)]
            if len(held) + len(leases) > config.max_in_flight:
                broken(f"{instance.name}: {leases} were given out beside {held}, more than {config.max_in_flight}")
            self.checked["limits"] += 1
        rate = config.rate
        if rate is not None and all(one.rate == rate for one in facts.configs):
            within = [one for one in facts.grants if one.asked_ms > now - rate.per_ms]
            total = sum(one.count for one in within) + (len(leases) if grant.asked_ms > now - rate.per_ms else 0)
            if total > rate.jobs:
                broken(f"{instance.name}: {total} jobs were given out in less than {rate}: {within} and {grant}")
            self.checked["limits"] += 1

    def _check_order(self, facts: QueueFacts, lease: Lease) -> None:
        fact = facts.jobs.get(lease.number)
        if fact is None or fact.key is None:
            return
        for seq in facts.instance.at:
            other = facts.fact_at(seq)
            if seq >= lease.seq or other is None or other.key != fact.key:
                continue
            if facts.instance.told[seq] < lease.asked and facts.is_there(seq):
                broken(f"{facts.instance.name}: {lease} was given out, and {seq} of the same key is unfinished")
        self.checked["orders"] += 1

    def _check_priority(self, facts: QueueFacts, grant: Grant, leases: Sequence[Lease]) -> None:
        """Nothing more urgent was left: judged where no job ages, and nobody else claimed meanwhile."""
        instance = facts.instance
        plain = all(not config.priority_aging_ms and not config.order_by for config in facts.configs)
        if not plain or not grant.alone or facts.begun != grant.began + 1 or facts.on_the_way > 1:
            return
        given = {lease.seq for lease in leases}
        lowest = min((facts.jobs[one.number].priority for one in leases if one.number in facts.jobs), default=9)
        for seq, told in instance.told.items():
            fact = facts.fact_at(seq)
            if fact is None or fact.priority <= lowest or seq in given or told >= grant.since:
                continue
            fresh = seq not in facts.claimed and not facts.unanswered
            if fresh and fact.latest <= grant.wall_ms and facts.is_there(seq):
                broken(f"{instance.name}: {leases} were given out, and {seq} has priority {fact.priority}")
        self.checked["priorities"] += 1

    # -- unique keys -------------------------------------------------------------------------------------------------

    def is_stored(self, fact: JobFact, seq: int, now: int, life: int) -> None:
        """It was appended, and is no duplicate: there is no job with its key."""
        unique, instance = fact.unique, fact.batch.instance
        if unique is None:
            return
        facts = self.of(instance)
        for other_seq, number in list(instance.at.items()):
            other = facts.jobs.get(number)
            if other is None or other is fact or other.unique is None or other.unique.key != unique.key:
                continue
            if other_seq == seq or instance.told[other_seq] >= fact.batch.asked:
                continue
            if self._is_duplicate(facts, fact, other, other_seq, now, life):
                broken(f"{instance.name}: {unique} was stored at {seq}, and {other_seq} is there, {other.unique}")
        self.checked["unique"] += 1

    @staticmethod
    def _is_duplicate(facts: QueueFacts, fact: JobFact, other: JobFact, seq: int, now: int, life: int) -> bool:
        assert fact.unique is not None
        if fact.unique.scope == "unfinished":
            return facts.is_there(seq)
        if fact.unique.scope == "queued":
            return facts.is_there(seq) and seq not in facts.claimed and not facts.unanswered
        if other.life != life or now - other.asked_ms >= (fact.unique.window_ms or 0):
            return False
        return facts.is_there(seq) or now - other.asked_ms < other.window_ms

    def is_duplicate_of(self, fact: JobFact, seq: int, known: Mapping[tuple[int, int], Lease], now: int) -> None:
        """It was not stored, as the job at `seq` has its key. Asked for at `fact.asked_ms`."""
        unique, instance = fact.unique, fact.batch.instance
        facts = self.of(instance)
        if unique is None:
            broken(f"{instance.name}: record {fact.number} has no key, and is said to be like {seq}")
        other = facts.fact_at(seq)
        if other is not None and (other.unique is None or other.unique.key != unique.key):
            broken(f"{instance.name}: {unique} is said to be like {seq}, which is {other.unique}")
        gone = instance.gone_since.get(seq, fact.batch.asked) < fact.batch.asked
        if unique.scope != "window" and gone:
            broken(f"{instance.name}: {unique} is said to be like {seq}, which was gone")
        lease = known.get((instance.epoch, seq))
        is_held = lease is not None and lease.since_ms < fact.asked_ms and _is_held(lease, fact.life, now)
        if unique.scope == "queued" and is_held:
            broken(f"{instance.name}: {unique} is said to wait at {seq}, which is {lease}")
        if unique.scope == "window" and other is not None and other.life == fact.life:
            age_ms = 0 if other.answered_ms is None else fact.asked_ms - other.answered_ms
            if age_ms >= (unique.window_ms or 0):
                broken(f"{instance.name}: {unique} is said to be like {seq}, appended {age_ms} ms before")
        fact.batch.dead = True
        self.checked["duplicates"] += 1

    # -- restarts ----------------------------------------------------------------------------------------------------

    def judge(self, views: Mapping[str, View], states: Mapping[str, QueueState], now_ms: int) -> None:
        """What a recovery shows of queues of jobs, before anything is moved. `now_ms` is the wall clock."""
        for facts in self.queues.values():
            instance = facts.instance
            view = views.get(instance.name)
            if view is None or view.epoch != instance.epoch or instance.deletion == "done":
                continue
            self._check_pairs(facts, view)
            state = states.get(instance.name)
            if state is not None and facts.pause_known and not facts.pausing:
                self._check_paused(facts, state, now_ms)

    def _check_pairs(self, facts: QueueFacts, view: View) -> None:
        """No job is there that was appended beside an unfinished one with its key: the end of the first one is in the
        log before it."""
        if facts.instance.retained or "ephemeral" in facts.instance.ever:
            return
        first: dict[str, int] = {}
        for seq, record in view.records.items():
            fact = facts.jobs.get(record.data)
            if fact is None or fact.unique is None:
                continue
            if fact.unique.key in first and fact.unique.scope == "unfinished":
                broken(f"{view.name}: {seq} and {first[fact.unique.key]} are there, with the key {fact.unique.key}")
            first.setdefault(fact.unique.key, seq)
            self.checked["unique"] += 1

    @staticmethod
    def _check_paused(facts: QueueFacts, state: QueueState, now_ms: int) -> None:
        pause = facts.pause
        expected = pause is not None and (pause.until is None or now_ms < pause.until)
        if state.paused != expected and not facts.is_timed:  # else the clock may have been set back since
            broken(f"{facts.instance.name}: the pause is {pause} and the queue {state}")

    def restarted(self, states: Mapping[str, QueueState], now: int) -> None:
        """A new life begins with these."""
        for facts in self.queues.values():
            for fact in facts.jobs.values():
                fact.is_open = False
            state = states.get(facts.instance.name)
            facts.on_the_way = facts.pausing = 0
            facts.pause_known = state is not None
            if state is not None:
                until = state.paused_until if isinstance(state.paused_until, int) else None
                facts.pause = Pause(now, until) if state.paused else None


def _is_held(lease: Lease, life: int, now: int) -> bool:
    """Whether somebody holds this for certain."""
    return not lease.over and now < lease.earliest_end and (lease.life == life or lease.durable)
