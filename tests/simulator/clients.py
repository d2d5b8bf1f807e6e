"""Clients of one life: what each step of a plan does, and what of it the truth is told.

They talk to the engine as HTTP does, several at a time. A refusal (`ApiError`) leaves a request that may have had any
effect; which refusals there may be depends on what the disk does, so none is judged except where a client was promised
something. Once the machine is dead nobody is told anything any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import msgspec
import trio

from tests.simulation import forgery
from tests.simulation.evidence_lives import checkpoint_of
from tests.simulation.model import numbered, view_of
from tests.simulation.world import Life
from tests.simulator.actors import Actor
from tests.simulator.caller import Memory, exported
from tests.simulator.consumer_steps import ConsumerSteps
from tests.simulator.groups.group_steps import GroupSteps
from tests.simulator.jobs.job_facts import Grant, typed
from tests.simulator.jobs.job_steps import nack_terms
from tests.simulator.known import Batch, Commit, Instance, Lease, Stage, promise_of
from tests.simulator.outcomes.change_steps import ChangeSteps
from tests.simulator.schedules.schedule_steps import ScheduleSteps
from tests.simulator.transactions import Transaction
from tests.simulator.truth import Truth
from topics.errors import ApiError
from topics.job_model import (
    ClaimRequest,
    HeldRequest,
    HeldResult,
    Job,
    NackTerms,
)
from topics.log.tag_match import TagMatch
from topics.model import (
    AppendRequest,
    CheckedAppend,
    Conditions,
    Fence,
    Performance,
    RecordIn,
    RouterPatch,
    TopicConfigPatch,
    TransactionRequest,
)

WINDOW_MS: Final = 100_000
"""For how long keys are remembered at the least; the default is a little more."""

REPEATS: Final = 6
"""Keys that an owner remembers, and leases that a worker does."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """A claim on its way: by whom, and for how long."""

    instance: Instance
    node: str
    lease_ms: int | None
    grant: Grant

    @property
    def durable(self) -> bool:
        """Whether the queue may promise now that leases survive."""
        return all(config.leases_durable for config in self.instance.options)


@cache
def _forged(number: int) -> str:
    """A tag that holds frames, one sort of them or all, of a file without a salt or with another one."""
    every = forgery.frames(number % 2)
    chosen = every[number // 2 : number // 2 + 1] or every
    text = "".join(chosen)
    return (text + "." * 7) * (1200 // len(text.encode()) + 1)


class Clients(ChangeSteps, ConsumerSteps, GroupSteps, ScheduleSteps):
    """The actors of one life."""

    def __init__(self, life: Life, truth: Truth, memory: Memory, offset_ms: int) -> None:
        super().__init__(life, truth, memory, offset_ms)
        self._file_holds = trio.Lock()
        self._cold_removal = trio.Lock()
        """What waits for the cold store is a task of its own, as in the daemon."""

    async def run(self, actors: list[Actor]) -> None:
        """All of them, until they are done."""
        async with trio.open_nursery() as nursery:
            for actor in actors:
                nursery.start_soon(self._act, actor)

    async def _act(self, actor: Actor) -> None:
        for step in actor.steps:
            await trio.sleep(step.after / 1000)
            do: Callable[[str, Any], Awaitable[None]] = getattr(self, f"do_{step.do}")
            await do(actor.name, step.what)

    # -- topics ------------------------------------------------------------------------------------------------------

    async def do_topic(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Make a topic, or change its config."""
        name, patch = what["topic"], typed(what["config"])
        if (
            name not in self.engine.registry.topics
            and self.truth.latest(name) is not None
            and self.truth.current(name).created
        ):
            return  # it was deleted, and nobody knows
        await self._put(name, patch)

    async def _put(self, name: str, patch: Mapping[str, Any]) -> None:
        instance, asked = self.truth.current(name), self.truth.tick()
        self.truth.config_asked(instance, patch)
        self.truth.consumers_of(instance).note(self._head(instance))
        try:
            config, _ = await self.engine.topic_lifecycle.put(name, TopicConfigPatch(**patch))
        except ApiError as error:
            self._alive()
            if error.status == 400:
                self.truth.config_refused(instance)
            return
        self._alive()
        self.truth.consumers_of(instance).note(self._head(instance))
        self.truth.config_answered(instance, config, self.engine.registry.topics[name].id, asked)
        await self._synced(instance)

    async def do_again(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Delete a topic and make it again."""
        instance = self.truth.latest(what["topic"])
        if instance is not None and instance.options:
            self.truth.topic_deletion_asked(instance)
            try:
                await self.engine.topic_lifecycle.delete(instance.name, if_empty=False)
            except ApiError:
                self._alive()
                return
            self._alive()
            self.truth.topic_deleted(instance)
        await self._put(what["topic"], typed(what["config"]))

    async def _synced(self, instance: Instance) -> None:
        """Look how far the disk is known to hold."""
        with self._refusable():
            state = await self.engine.topic_states.of(instance.name, touch=False)
            self._alive()
            if state.epoch == instance.epoch and self._is(instance):
                self.truth.synced(instance, state.synced_seq)

    # -- records -----------------------------------------------------------------------------------------------------

    def _records(self, what: Mapping[str, Any]) -> tuple[list[int], tuple[RecordIn, ...]]:
        numbers = [self.truth.number() for _ in range(what.get("count", 1))]
        meta = what.get("meta")
        tag = _forged(what["forged"]) if "forged" in what else what.get("tag")
        return numbers, numbered(
            numbers, what.get("size", 30), tag=tag, node=what.get("node"), meta=meta and dict(meta)
        )

    async def do_append(self, actor: str, what: Mapping[str, Any]) -> None:
        """Append a batch; with a key, so that it can be repeated."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        numbers, records = self._records(what)
        batch = self.truth.append_asked(instance, records, numbers)
        if what.get("key"):
            batch.key, batch.sent_ms = f"key-{numbers[0]}", self.now()
            keyed = self.memory.keyed.setdefault(instance.name, [])
            keyed.append((batch, batch.key))
            del keyed[:-REPEATS]
        await self._append(batch, self._conditions(instance, what))
        await self._synced(instance)

    def _conditions(self, instance: Instance, what: Mapping[str, Any]) -> Conditions | None:
        """What the append expects: the head as it is now, which others may move meanwhile, or a fence."""
        topic = self.engine.registry.topics.get(instance.name)
        if topic is not None and what.get("expects") == "head":
            return Conditions(topic.assigned)
        return Conditions(fence=Fence("f", what["token"])) if "token" in what else None

    async def _append(self, batch: Batch, conditions: Conditions | None = None) -> None:
        request = AppendRequest(
            records=list(batch.records), idempotency_key=batch.key, create=False, conditions=conditions
        )
        with self._refusable():
            try:
                result = await self.engine.appends.append(batch.instance.name, request, Performance())
            except ApiError as error:
                self._alive()
                if conditions is not None and error.code in ("condition_failed", "fenced"):
                    self.truth.condition_failed(batch, conditions, error)
                raise
            self._alive()
            if self._is(batch.instance):
                if conditions is not None and not result.deduped:
                    self.truth.condition_held(batch, conditions, result.first_seq)
                self.truth.append_answered(batch, result.first_seq, result.count, deduped=result.deduped)

    async def do_burst(self, actor: str, what: Mapping[str, Any]) -> None:
        """Several appends at the same time."""
        async with trio.open_nursery() as nursery:
            for _ in range(what["writers"]):
                nursery.start_soon(self.do_append, actor, {"topic": what["topic"], "count": 2})

    async def do_repeat(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Send a batch again under its key."""
        for batch, _key in self.memory.keyed.get(what["topic"], ())[-2:]:
            if self._is(batch.instance) and self.now() - batch.sent_ms < WINDOW_MS and not self.truth.clock_moved:
                self.truth.repeat_asked(batch)
                await self._append(batch)

    async def do_transaction(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Append to several topics, all or none; with a key, so that it can be repeated."""
        appends = [(one, self.truth.latest(one["topic"])) for one in what["appends"]]
        wanted = [(one, instance) for one, instance in appends if instance is not None and instance.options]
        if len(wanted) < 2:
            return
        batches = []
        for one, instance in wanted:
            numbers, records = self._records(one)
            batches.append(self.truth.append_asked(instance, records, numbers))
        conditions = [self._conditions(instance, one) for one, instance in wanted]
        transaction = self.truth.transaction_asked(batches, conditions)
        if what["key"]:
            transaction.key, transaction.sent_ms = f"transaction-{batches[0].numbers[0]}", self.now()
            self.memory.transactions.append(transaction)
            del self.memory.transactions[:-REPEATS]
        await self._transact(transaction)
        for batch in batches:
            await self._synced(batch.instance)

    async def do_repeat_transaction(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """Send a transaction again under its key."""
        for transaction in self.memory.transactions[-2:]:
            instances = [batch.instance for batch in transaction.batches]
            forgets = any("ephemeral" in instance.ever for instance in instances) or self.truth.clock_moved
            if all(map(self._is, instances)) and self.now() - transaction.sent_ms < WINDOW_MS and not forgets:
                self.truth.transaction_repeated(transaction)
                await self._transact(transaction)

    async def _transact(self, transaction: Transaction) -> None:
        batches = transaction.batches
        request = TransactionRequest(
            topics=[batch.instance.name for batch in batches],
            appends=[
                AppendRequest(records=list(batch.records), create=False, conditions=conditions)
                for batch, conditions in zip(batches, transaction.conditions, strict=True)
            ],
            idempotency_key=transaction.key,
        )
        with self._refusable():
            try:
                result = await self.engine.transactions.append(request, Performance())
            except ApiError as error:
                self._alive()
                if error.status < 500 and all(self._is(batch.instance) for batch in batches):
                    self.truth.transaction_refused(transaction, error)
                raise
            self._alive()
            for batch, conditions, one in zip(batches, transaction.conditions, result.appends, strict=True):
                if not self._is(batch.instance):
                    continue
                if conditions is not None and not result.deduped:
                    self.truth.condition_held(batch, conditions, one.first_seq)
                self.truth.append_answered(batch, one.first_seq, one.count, deduped=result.deduped)

    async def do_delete(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Delete what is before some place, or what has some tag; what is behind another place, or all of it."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options or instance.name not in self.engine.registry.topics:
            return
        before = int(what["share"] * instance.head) + 1 if "share" in what else None
        after = int(what["above"] * instance.head) if "above" in what else None
        match = TagMatch(what["tag"], prefix=what["prefix"]) if "tag" in what else None
        deletion = self.truth.deletion_asked(instance, before, match, after)
        with self._refusable():
            await self.engine.deletions.delete_records(instance.name, before, match, Performance(), after_seq=after)
            self._alive()
            topic = self.engine.registry.topics.get(instance.name)
            if topic is not None and self._is(instance):
                self.truth.deletion_answered(instance, deletion, topic.log.head_seq)

    async def do_audit(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Get a checkpoint of a topic with evidence, and keep it."""
        with self._refusable():
            head = await checkpoint_of(self.life, what["topic"])
            self._alive()
            self.memory.checkpoints.append(head)

    async def do_look(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Read all of a topic."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        since, classes = self.truth.tick(), set(instance.classes)
        with self._refusable():
            view = await view_of(self.engine, instance.name)
            self._alive()
            if view.epoch == instance.epoch and self._is(instance):
                for record in view.records.values():
                    self.truth.seen(instance, record, since, classes)

    async def do_export(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Read all of a topic in one export."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        since, classes = self.truth.tick(), set(instance.classes)
        with self._refusable():
            records, _, end = await exported(self.life, instance.name)
            self._alive()
            if end.epoch == instance.epoch and self._is(instance):
                for record in records.values():
                    self.truth.seen(instance, record, since, classes)

    # -- routers -----------------------------------------------------------------------------------------------------

    async def do_router(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Make a router, or ask again for what it is."""
        name = what["router"]
        if name not in self.truth.plans:
            return
        options = self.truth.plans[name]
        if not all(end in self.engine.registry.topics for end in (options["source"], options["dest"])):
            return
        known = self.truth.routers[name]
        removals = known.removals
        self.truth.router_asked(name)
        with self._refusable():
            try:
                state, _ = await self.engine.routers.put(name, RouterPatch(**options))
            finally:
                known.asking -= 1
            self._alive()
            self.truth.router_answered(name, state, removals)

    async def do_delete_router(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Take a router away."""
        known = self.truth.routers.get(what["router"])
        if known is None or known.there == "no":
            return
        known.there = "maybe"
        with self._refusable():
            await self.engine.routers.delete(what["router"])
            self._alive()
            known.there = "no"

    # -- jobs --------------------------------------------------------------------------------------------------------

    async def do_claim(self, actor: str, what: Mapping[str, Any]) -> None:
        """Claim jobs."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        claim = self._claiming(instance, actor, what["lease_ms"])
        request = ClaimRequest(node=actor, most=what["most"], lease_ms=what["lease_ms"], wait_ms=what.get("wait_ms", 0))
        with self._refusable():
            try:
                result = await self.engine.queues.claim(instance.name, request, Performance())
                self._alive()
                self._claimed(claim, result.jobs)
            finally:
                self.truth.jobs.of(instance).on_the_way -= 1

    def _claiming(self, instance: Instance, node: str, lease_ms: int | None) -> _Claim:
        grant = self.truth.jobs.claim_asked(self.truth.jobs.of(instance), self.truth.tick(), self.now(), self._wall())
        return _Claim(instance, node, lease_ms, grant)

    async def do_work(self, actor: str, what: Mapping[str, Any]) -> None:
        """Follow a stream of jobs for some time; what it holds in the end is released."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.options:
            return
        taken: list[Lease] = []
        with self._refusable():
            work = await self.engine.queues.open_work(instance.name, actor, what["most"], what["lease_ms"])
            try:
                with trio.move_on_after(what["ms"] / 1000):
                    while True:
                        claim = self._claiming(instance, actor, what["lease_ms"])
                        try:
                            jobs = await self.engine.queues.next_jobs(work)
                            self._alive()
                            taken += self._claimed(claim, jobs)
                        finally:
                            self.truth.jobs.of(instance).on_the_way -= 1
            finally:
                for lease in taken:
                    lease.over = True
                self.engine.queues.close_work(work)

    def _claimed(self, claim: _Claim, jobs: Sequence[Job]) -> list[Lease]:
        """Jobs were given out."""
        instance, grant = claim.instance, claim.grant
        facts = self.truth.jobs.of(instance)
        facts.unanswered -= 1
        if not self._is(instance) or self.engine.registry.topics[instance.name].id != instance.epoch:
            return []
        lengths = [config.lease_ms for config in instance.configs]
        durable = claim.durable and all(config.leases_durable for config in instance.options)
        durable = durable and "ephemeral" not in instance.classes
        leases = []
        for job in jobs:
            lease = Lease(
                instance,
                job.seq,
                msgspec.json.decode(b"{" + job.record)["data"]["n"],
                claim.node,
                job.lease_id,
                grant.asked_ms + (claim.lease_ms or min(lengths)),
                self.now() + max(claim.lease_ms or 0, *lengths),
                deliveries=job.deliveries,
                durable=durable,
                asked=grant.since,
                life=self.truth.life,
                since_ms=self.now(),
            )
            leases.append(lease)
        self.truth.jobs.claim_answered(facts, grant, leases, self.truth.leases, self.now(), self._wall())
        for lease in leases:
            self.truth.claimed(lease, self.now())
        held = self.memory.leases.setdefault(claim.node, [])
        held += leases
        del held[:-REPEATS]
        return leases

    async def do_ack(self, actor: str, what: Mapping[str, Any]) -> None:
        """Done with some of what was claimed."""
        await self._say(actor, what, "ack")

    async def do_nack(self, actor: str, what: Mapping[str, Any]) -> None:
        """Give some of it back."""
        await self._say(actor, what, "nack")

    async def do_extend(self, actor: str, what: Mapping[str, Any]) -> None:
        """Hold some of it for longer, or for less."""
        await self._say(actor, what, "extend")

    async def do_stale(self, actor: str, what: Mapping[str, Any]) -> None:
        """Ack jobs that were claimed long ago, and that others may hold now."""
        await self._say(actor, {**what, "which": 0.0, "count": 1}, "ack")

    async def _say(self, actor: str, what: Mapping[str, Any], kind: str) -> None:
        mine = self.memory.leases.get(actor, [])
        start = int(what["which"] * len(mine))
        leases = [lease for lease in mine[start : start + what["count"]] if self._is(lease.instance)]
        leases = list({lease.seq: lease for lease in leases}.values())
        if not leases or leases[0].instance.name not in self.engine.registry.topics:
            return
        instance, ms = leases[0].instance, what.get("ms", 0)
        asked, classes, terms = self.now(), set(instance.classes), nack_terms(what)
        held, facts = self.truth.held(instance, leases, asked), self.truth.jobs.of(instance)
        for lease in leases:
            if kind == "ack":
                instance.ended[lease.seq] += 1
            if kind == "extend":
                lease.earliest_end = min(lease.earliest_end, asked + ms)
                lease.latest_end = max(lease.latest_end, asked + ms)
            else:
                lease.over = True
            if kind == "nack":
                self._gives_back(facts, lease, terms)
        request = HeldRequest(
            node=actor, seqs=[lease.seq for lease in leases], lease_ids=[lease.lease_id for lease in leases]
        )
        with self._refusable():
            result = await self._send(kind, instance.name, request, ms, terms)
            self._alive()
            if not self._is(instance) or self.engine.registry.topics[instance.name].id != instance.epoch:
                return
            self.truth.acted(instance, held, result.done)
            if kind == "ack":
                instance.remove(result.done, promise_of(classes | instance.classes), self.truth.tick())
                instance.ended.subtract(result.skipped)
            for lease in leases:
                if kind == "extend" and lease.seq in result.done:
                    lease.earliest_end, lease.latest_end = asked + ms, self.now() + ms
                if kind == "nack" and lease.seq in result.done:
                    self._gave_back(facts, lease, terms, asked)

    async def _send(self, kind: str, name: str, request: HeldRequest, ms: int, terms: NackTerms) -> HeldResult:
        if kind == "ack":
            return await self.engine.queues.ack(name, request, Performance())
        if kind == "nack":
            return await self.engine.queues.nack(name, request, terms, Performance())
        return await self.engine.queues.extend(name, request, ms, Performance())

    # -- stages ------------------------------------------------------------------------------------------------------

    async def do_stage(self, actor: str, what: Mapping[str, Any]) -> None:
        """Append to a stage, which is made where there is none."""
        instance = self.truth.latest(what["topic"])
        if instance is None or not instance.created:
            return
        filling = self.memory.filling.setdefault(actor, {})
        stage = filling.get(what["stage"])
        if stage is None or stage.instance is not instance or stage.may_be_gone:
            self.memory.names += 1
            stage = filling[what["stage"]] = Stage(instance, f"{actor}-{what['stage']}-{self.memory.names}")
            self.truth.stages.append(stage)
        numbers, records = self._records(what)
        batch = self.truth.stage_asked(stage, records, numbers)
        request = CheckedAppend(
            records=list(records), datas=[bytes(one.data) for one in records], tags=None, nodes=None, metas=None
        )
        with self._refusable():
            result = await self.engine.stages.append(instance.name, stage.name, request, Performance())
            self._alive()
            if self._is(instance):  # else it may have gone to a stage of the topic that was made again
                self.truth.stage_answered(stage, batch, result.count)

    async def do_commit(self, actor: str, what: Mapping[str, Any]) -> None:
        """Publish stages."""
        instance = self.truth.latest(what["topic"])
        filling = self.memory.filling.get(actor, {})
        stages = [stage for stage in filling.values() if stage.instance is instance and stage.batches]
        stages = stages if what["both"] else stages[:1]
        if instance is None or not stages:
            return
        for stage in stages:
            filling.pop(next(name for name, one in filling.items() if one is stage))
        self.memory.names += 1
        commit = self.truth.commit_asked(instance, f"{actor}/{self.memory.names}", stages)
        self.memory.commits.setdefault(actor, []).append(commit)
        await self._commit(commit)

    async def do_recommit(self, actor: str, _what: Mapping[str, Any]) -> None:
        """Say it again: it is done once."""
        for commit in self.memory.commits.get(actor, ())[-2:]:
            if self._is(commit.instance):
                await self._commit(commit)

    async def _commit(self, commit: Commit) -> None:
        names = [stage.name for stage in commit.stages]
        try:
            result = await self.engine.stage_commits.commit(commit.instance.name, names, commit.key, Performance())
        except ApiError as error:
            self._alive()
            if self._is(commit.instance) and error.code == "stage_not_found":
                self.truth.commit_refused(commit)
            return
        self._alive()
        if self._is(commit.instance):
            self.truth.commit_answered(commit, result.first_seq, result.count, deduped=result.deduped)

    async def do_delete_stage(self, actor: str, what: Mapping[str, Any]) -> None:
        """Drop a stage."""
        stage = self.memory.filling.get(actor, {}).pop(what["stage"], None)
        if stage is not None and self._is(stage.instance):
            stage.may_be_gone = True
            with self._refusable():
                await self.engine.stages.delete(stage.instance.name, stage.name)

    # -- the daemon's own work ---------------------------------------------------------------------------------------

    async def do_checkpoint(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """As the compactor does by the clock."""
        async with self._file_holds:
            with suppress(ApiError, OSError):
                await self.life.compactor.checkpoint()

    async def do_reclaim(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """As the reclaimer does."""
        async with self._file_holds:
            with suppress(ApiError, OSError):
                await self.life.reclaimer.hot_pass()
        async with self._cold_removal:
            with suppress(ApiError, OSError):
                await self.life.reclaimer.cold_pass()

    async def do_relocate(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """As the relocator does, where there is a cold directory."""
        if self.engine.settings.cold_dir is not None:
            async with self._cold_removal:
                with suppress(ApiError, OSError):
                    await self.life.relocator.pass_over()

    async def do_expire(self, _actor: str, _what: Mapping[str, Any]) -> None:
        """As housekeeping does."""
        for name, topic in self.engine.registry.topics.items():
            instance = self.truth.latest(name)
            if instance is not None and instance.epoch == topic.id:
                self.truth.consumers_of(instance).note(topic.log.head_seq)
        self.engine.expire_unused()

    async def do_clock(self, _actor: str, what: Mapping[str, Any]) -> None:
        """Set the wall clock."""
        self.truth.stepped = True
        self.truth.jobs.clock_was(self._wall())
        self.truth.groups.clock_was(self._wall())
        self.truth.schedules.clock_was(self._wall())
        self.life.clock.step(what["ms"])
