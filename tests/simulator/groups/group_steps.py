"""What clients do with groups. Of one group one change is asked for at a time; its members overlap with everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import trio
from msgspec import UNSET

from tests.simulator.filter_matches import written
from tests.simulator.groups.group_facts import ANY, GroupFacts, terms_of
from tests.simulator.jobs.job_facts import Grant, Pause, typed
from tests.simulator.jobs.job_steps import JobSteps, nack_terms
from tests.simulator.known import Instance, Lease, broken, promise_of
from tests.simulator.passages import records_of
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    HeldResult,
    Job,
    NackTerms,
)
from topics.model import (
    ConsumerStart,
    GroupPatch,
    Performance,
    TopicConfig,
    TopicConfigPatch,
)

STRANGER = "stranger"
REPEATS = 6
"""Leases that a member remembers."""
ROUNDS = 60
"""Claims in a row that a group may answer with nothing, without getting on, before it is stuck."""


class GroupSteps(JobSteps):
    """Makes groups, and is a member of them."""

    def _group(self, what: Mapping[str, Any]) -> GroupFacts | None:
        """The group that a step is about, if there may be one."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return None
        self.truth.groups.note(instance, self._head(instance))
        return self.truth.groups.of(instance).get(what["group"])

    def _is_still(self, facts: GroupFacts) -> bool:
        """Whether a group is still this one."""
        return self._is(facts.instance) and self.truth.groups.of(facts.instance).get(facts.name) is facts

    # -- groups ------------------------------------------------------------------------------------------------------

    async def do_put_group(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Make a group, or change it."""
        facts, instance = self._group(what), self.truth.latest(what["topic"])
        if instance is None or not instance.created or instance.name not in self.engine.registry.topics:
            return
        if facts is not None and (facts.is_changing or facts.there != "yes"):
            return
        is_new = facts is None
        start = self._start(instance, what)
        if facts is None:
            low = {"earliest": 0, "tail": self._head(instance), "seq": start.value}[start.place]
            facts = GroupFacts(instance, name=what["group"], start=(low, ANY if start.place == "tail" else low))
            self.truth.groups.of(instance)[what["group"]] = facts
        text = what["filter"] if "filter" in what else (facts.wishes[-1] if facts.wishes else None)
        terms = typed(what["terms"])
        wanted = msgspec.structs.replace(facts.options[-1] if facts.options else TopicConfig(), **terms)
        for known, value in ((facts.terms, wanted), (facts.options, wanted)):
            known.append(value)
        for wishes in (facts.filters, facts.wishes):
            wishes.append(text)
        if wanted.dead_letter is not None:
            self.truth.groups.bury_to.add(wanted.dead_letter)
            instance.is_copied = True
        kept = UNSET if "filter" not in what else None if text is None else parse_filter(text)
        most = what.get("max_unfinished", UNSET)
        patch = GroupPatch(start=start, terms=TopicConfigPatch(**terms), filter=kept, max_unfinished=most)
        await self._put_group(facts, patch, is_new=is_new)

    async def _put_group(self, facts: GroupFacts, patch: GroupPatch, *, is_new: bool) -> None:
        instance, facts.is_changing = facts.instance, True
        try:
            state, created = await self.engine.groups.put(instance.name, facts.name, patch, Performance())
        except ApiError as error:
            self._alive()
            if is_new and error.status < 500 and self._is_still(facts):
                del self.truth.groups.of(instance)[facts.name]
            return
        finally:
            facts.is_changing = False
        self._alive()
        if not self._is_still(facts):
            return
        if created != is_new:
            broken(f"{instance.name}/{facts.name}: it was made: {created}, and is new: {is_new}")
        if is_new and facts.start[1] == ANY:
            facts.start = facts.start[0], self._head(instance)
        facts.there = "yes"
        facts.options, facts.wishes = facts.options[-1:], facts.wishes[-1:]
        shown = tuple(getattr(state, name) for name in ("lease_ms", "max_deliveries", "dead_letter"))
        if shown != tuple(getattr(facts.options[0], name) for name in ("lease_ms", "max_deliveries", "dead_letter")):
            broken(f"{instance.name}/{facts.name}: {terms_of(facts.options[0])} was asked for, and it is {state}")

    def _start(self, instance: Instance, what: Mapping[str, Any]) -> ConsumerStart:
        place = what["from"]
        return ConsumerStart(place=place, value=int(what["share"] * self._head(instance)) if place == "seq" else 0)

    async def do_delete_group(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Take a group away."""
        facts = self._group(what)
        if facts is None or facts.there != "yes" or facts.is_changing:
            return
        facts.there, facts.is_changing = "maybe", True
        with self._refusable():
            try:
                was_there = await self.engine.groups.delete(facts.instance.name, facts.name, Performance())
            finally:
                facts.is_changing = False
            self._alive()
            if self._is_still(facts):
                if not was_there:
                    broken(f"{facts.instance.name}/{facts.name} was there, and was not")
                facts.there = "no"
                del self.truth.groups.of(facts.instance)[facts.name]

    async def do_pause_group(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have nothing given out for some time, or until somebody ends it."""
        await self._pause_group(what, None if what["ms"] is None else self._wall() + what["ms"], paused=True)

    async def do_resume_group(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Have records given out again."""
        await self._pause_group(what, None, paused=False)

    async def _pause_group(self, what: Mapping[str, Any], until: int | None, *, paused: bool) -> None:
        facts = self._group(what)
        if facts is None:
            return
        name, group = facts.instance.name, facts.name
        facts.pausing += 1
        facts.pause_known = False
        facts.is_timed |= until is not None
        with self._refusable():
            try:
                if paused:
                    await self.engine.queues.pause(name, until, Performance(), group)
                else:
                    await self.engine.queues.resume(name, Performance(), group)
            finally:
                facts.pausing -= 1
            self._alive()
            if facts.pausing == 0:
                facts.pause = Pause(self.truth.tick(), until) if paused else None
                facts.pause_known = True

    # -- members -----------------------------------------------------------------------------------------------------

    async def do_claim_of_group(self, actor: str, what: Mapping[str, Any]) -> None:
        """Claim records."""
        facts = self._group(what)
        if facts is None:
            return
        grant = self.truth.jobs.claim_asked(facts, self.truth.tick(), self.now(), self._wall())
        request = ClaimRequest(node=actor, most=what["most"], lease_ms=what["lease_ms"], wait_ms=what["wait_ms"])
        with self._refusable():
            try:
                result = await self.engine.queues.claim(facts.instance.name, request, Performance(), facts.name)
                self._alive()
                if self._is_still(facts):
                    facts.unanswered -= 1
                    self._was_given(facts, grant, actor, what["lease_ms"], result.jobs)
            finally:
                facts.on_the_way -= 1

    def _was_given(
        self, facts: GroupFacts, grant: Grant, actor: str, lease_ms: int | None, jobs: Sequence[Job]
    ) -> None:
        instance, lengths = facts.instance, [config.lease_ms for config in facts.configs]
        if self.engine.registry.topics[instance.name].id != instance.epoch:
            return
        durable = all(config.leases_durable for config in facts.configs) and "ephemeral" not in instance.classes
        leases = []
        for job in jobs:
            row = b"{" + job.record
            (record,) = records_of(row).values()
            self.truth.check_body(instance, record)
            self.truth.groups.check_filter(facts, job.seq, written(record))
            leases.append(
                Lease(
                    instance,
                    job.seq,
                    record.data,
                    actor,
                    job.lease_id,
                    grant.asked_ms + (lease_ms or min(lengths)),
                    self.now() + max(lease_ms or 0, *lengths),
                    deliveries=job.deliveries,
                    durable=durable,
                    asked=grant.since,
                    life=self.truth.life,
                    since_ms=self.now(),
                )
            )
        self.truth.jobs.claim_answered(facts, grant, leases, facts.leases, self.now(), self._wall())
        for lease in leases:
            self.truth.groups.claimed(facts, lease, self.now())
            instance.tell(lease.seq, lease.number, promise_of(instance.classes), self.truth.tick())
        held = self.memory.members.setdefault(actor, [])
        held += [(facts, lease) for lease in leases]
        del held[:-REPEATS]

    async def do_say_to_group(self, actor: str, what: Mapping[str, Any]) -> None:
        """Ack, nack or extend some of what was claimed last."""
        mine = [pair for pair in self.memory.members.get(actor, ()) if self._is_still(pair[0])]
        start = int(what["which"] * len(mine))
        chosen = mine[start : start + what["count"]]
        if not chosen:
            return
        facts = chosen[0][0]
        leases = list({lease.seq: lease for known, lease in chosen if known is facts}.values())
        instance, ms, kind, terms = facts.instance, what.get("ms", 0), what["say"], nack_terms(what)
        asked, classes = self.now(), set(instance.classes)
        held = self.truth.groups.held(facts, leases, asked, self.truth.life)
        for lease in leases:
            if kind == "extend":
                lease.earliest_end = min(lease.earliest_end, asked + ms)
                lease.latest_end = max(lease.latest_end, asked + ms)
                continue
            lease.over = True
            if kind == "ack":
                facts.maybe_finished.add(lease.seq)
            else:
                self._gives_back(facts, lease, terms)
        self.truth.groups.note(instance, self._head(instance))
        seqs, ids = [lease.seq for lease in leases], [lease.lease_id for lease in leases]
        request = HeldRequest(node=actor, seqs=seqs, lease_ids=ids)
        with self._refusable():
            result = await self._say_to(facts, kind, request, ms, terms)
            self._alive()
            if not self._is_still(facts):
                return
            self.truth.acted(instance, held, result.done)
            if kind == "ack":
                promise = promise_of(classes | instance.classes)
                self.truth.groups.finishes(facts, result.done, promise, self.truth.tick())
            for lease in leases:
                if kind == "extend" and lease.seq in result.done:
                    lease.earliest_end, lease.latest_end = asked + ms, self.now() + ms
                if kind == "nack" and lease.seq in result.done:
                    self._gave_back(facts, lease, terms, asked)

    async def _say_to(
        self, facts: GroupFacts, kind: str, request: HeldRequest, ms: int, terms: NackTerms
    ) -> HeldResult:
        name, group, queues = facts.instance.name, facts.name, self.engine.queues
        if kind == "ack":
            return await queues.ack(name, request, Performance(), group)
        if kind == "nack":
            return await queues.nack(name, request, terms, Performance(), group)
        return await queues.extend(name, request, ms, Performance(), group)


async def finish_group(engine: Engine, topic: str, group: str) -> list[int]:
    """Claim and ack all that a group has not finished. Return the seqs."""
    terms = TopicConfigPatch(rate=None, dead_letter=None, max_in_flight=0)
    patch = GroupPatch(start=ConsumerStart(place="tail"), terms=terms, max_unfinished=1000)
    await engine.groups.put(topic, group, patch, Performance())
    await engine.queues.resume(topic, Performance(), group)
    came: list[int] = []
    rounds = floor = 0
    while (state := await engine.groups.state(topic, group)).lag:
        if state.floor > floor:  # a claim looks at as little as one record, which the filter may refuse
            rounds, floor = 0, state.floor
        request = ClaimRequest(node=STRANGER, most=1000, lease_ms=30_000, wait_ms=0)
        jobs = (await engine.queues.claim(topic, request, Performance(), group)).jobs
        came += [job.seq for job in jobs]
        if jobs:
            held = HeldRequest(node=STRANGER, seqs=[job.seq for job in jobs], lease_ids=None)
            await engine.queues.ack(topic, held, Performance(), group)
            continue
        rounds += 1
        if rounds > ROUNDS:
            broken(f"{topic}/{group} does not finish: {state}")
        await trio.sleep(4)
    return came
