"""What clients were told, and what follows from it for what a recovery may show (`docs/spec/semantics.md` section 8).

Knows nothing of how the daemon works: clients tell it what they ask for and what they get, restarts tell it what is
there. It keeps three things of each topic: which record is at which seq, as far as anybody was told; how much each of
them is promised (`Promise`); and what may have taken it away. All rules are of the form *must be there*, *must not be
there*, or *may be missing for this reason, and then this is what readers are told*. Where the order of two things
cannot be told from outside, either is allowed.

A record is known by its number, which no other one has, wherever a router, a dead-letter topic or a commit brings it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tests.simulation.model import Record, View
from tests.simulator.consumers import Seen, TopicConsumers
from tests.simulator.groups.group_rules import GroupRules
from tests.simulator.jobs.job_rules import JobRules
from tests.simulator.judging import TopicCase
from tests.simulator.known import (
    DEAD_LETTER_META,
    RETENTION,
    STAMP,
    Batch,
    Commit,
    Deletion,
    Fate,
    Instance,
    Lease,
    Promise,
    RouterFate,
    Stage,
    broken,
    promise_of,
    survives,
)
from tests.simulator.outcomes.outcome_rules import OutcomeRules
from tests.simulator.schedules.schedule_rules import ScheduleRules
from tests.simulator.transactions import Transaction, judge_transactions
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.model import Conditions, QueueState, RecordIn, RouterState, TopicConfig


class Truth:
    """Everything that clients know. One for a whole plan; `restarted` goes from one life to the next."""

    def __init__(self, routers: Mapping[str, Mapping[str, Any]]) -> None:
        self.plans = routers
        self.instances: dict[str, list[Instance]] = {}
        self.batch_of: dict[int, tuple[Batch, int]] = {}
        self.routers: dict[str, RouterFate] = {name: RouterFate() for name in routers}
        self.ever_routed: set[str] = set()
        """Routers that somebody has asked for."""
        self.stages: list[Stage] = []
        self.commits: list[Commit] = []
        self.transactions: list[Transaction] = []
        self.consumers: dict[Instance, TopicConsumers] = {}
        self.jobs = JobRules()
        self.groups = GroupRules()
        self.schedules = ScheduleRules()
        self.outcomes = OutcomeRules()
        self.leases: dict[tuple[int, int], Lease] = {}
        """The newest of each job, by epoch and seq."""
        self.stepped = False
        """Somebody has set the wall clock in this boot of the machine. Nothing but `$ts` and ttl goes by that."""
        self.clock_moved = False
        """The machine was off, and the wall clock was set before or while it was: how long is not known."""
        self.rot = 0
        """How many bits were changed in records' files."""
        self.life = 0
        self.failed = False
        """A disk operation failed in this life."""
        self.checked: Counter[str] = Counter()
        self._now = 0
        self._number = 0

    def tick(self) -> int:
        """The time of the next thing."""
        self._now += 1
        return self._now

    def number(self) -> int:
        """A number that no other record has."""
        self._number += 1
        return self._number

    # -- topics ------------------------------------------------------------------------------------------------------

    def current(self, name: str) -> Instance:
        """The newest instance of a name; a new one where the last was deleted, or there was none."""
        known = self.instances.setdefault(name, [])
        if not known or known[-1].deletion == "done":
            known.append(Instance(name))
        return known[-1]

    def latest(self, name: str) -> Instance | None:
        """The newest instance, if there may be one."""
        known = self.instances.get(name)
        return known[-1] if known and known[-1].deletion != "done" else None

    def consumers_of(self, instance: Instance) -> TopicConsumers:
        """The consumers of a topic."""
        if instance not in self.consumers:
            self.consumers[instance] = TopicConsumers(instance)
        return self.consumers[instance]

    def config_asked(self, instance: Instance, patch: Mapping[str, Any]) -> None:
        """Somebody asks for a topic, or for another config of it."""
        before = instance.current or TopicConfig()
        changes = dict(patch)
        if "durability" in changes:
            changes["durable"] = changes["durability"] == "fsync"
        wanted = msgspec.structs.replace(before, **changes)
        instance.options.append(wanted)
        instance.configs.append(wanted)
        for batch in instance.batches:
            if not batch.first:
                batch.classes.add(wanted.durability)
        for deletion in instance.deletions:
            if deletion.answered is None:
                deletion.classes.add(wanted.durability)
        if wanted.durability == "ephemeral":
            instance.release()

    def config_answered(self, instance: Instance, config: TopicConfig, epoch: int, asked: int) -> None:
        """It is so now. A change of class is a barrier; an answer for which nothing had to be done is none."""
        if config != instance.options[-1]:
            broken(f"{instance.name}: asked for {instance.options[-1]}, and was answered {config}")
        instance.created, instance.epoch = True, epoch
        if config != instance.current and len(instance.classes) > 1 and config.durability != "ephemeral":
            instance.settle(before=asked)
        instance.options = [config]
        instance.current = config

    def config_refused(self, instance: Instance) -> None:
        """It was refused as it stood: nothing of it is done."""
        instance.options.pop()
        instance.configs.pop()

    def topic_deleted(self, instance: Instance) -> None:
        """Its deletion was answered; its routers go with it."""
        instance.deletion = "done"
        for name, plan in self.plans.items():
            known = self.routers[name]
            if instance.name in (plan["source"], plan["dest"]):
                known.there = "maybe" if known.asking else "no"
                known.removals += 1

    def topic_deletion_asked(self, instance: Instance) -> None:
        """Somebody asks for it to go."""
        instance.deletion = "asked"
        for name, plan in self.plans.items():
            if instance.name in (plan["source"], plan["dest"]) and self.routers[name].there == "yes":
                self.routers[name].there = "maybe"

    # -- records -----------------------------------------------------------------------------------------------------

    def append_asked(self, instance: Instance, records: Sequence[RecordIn], numbers: Sequence[int]) -> Batch:
        """Somebody appends records."""
        batch = Batch(instance, tuple(numbers), tuple(records), self.tick(), set(instance.classes))
        instance.batches.append(batch)
        for i, number in enumerate(numbers):
            self.batch_of[number] = batch, i
        return batch

    def append_answered(self, batch: Batch, first: int, count: int, *, deduped: bool) -> None:
        """It was acknowledged, for the first time or again."""
        if count != len(batch.numbers):
            broken(f"{batch.instance.name}: {len(batch.numbers)} records were appended, {count} acknowledged")
        if batch.first and batch.first != first:
            if deduped or not batch.unsure:
                broken(f"{batch.instance.name}: {batch.key} at {batch.first} was acknowledged again, at {first}")
            batch.again = True
        if deduped and batch.dead and not batch.first:
            broken(f"{batch.instance.name}: {batch.key} is said to be a repetition, and was not there")
        batch.dead = batch.unsure = False
        batch.first = first
        is_safe = batch.is_part and batch.classes <= {"disk", "fsync"}
        promise, now = Promise.ALL if is_safe else promise_of(batch.classes), self.tick()
        for i, number in enumerate(batch.numbers):
            batch.instance.tell(first + i, number, promise, now)
            batch.instance.tags[first + i] = batch.records[i].tag

    def condition_held(self, batch: Batch, conditions: Conditions, first: int) -> None:
        """It was appended under conditions."""
        if conditions.head_seq is not None and first != conditions.head_seq + 1:
            broken(f"{batch.instance.name}: the head {conditions.head_seq} was expected, and it was {first - 1}")

    def condition_failed(self, batch: Batch, conditions: Conditions, error: ApiError) -> None:
        """A condition did not hold: it is not there, and never will be unless it is sent again."""
        if conditions.head_seq is not None and error.detail["head_seq"] == conditions.head_seq:
            broken(f"{batch.instance.name}: the head is as expected, and the append was refused")
        if conditions.fence is not None and error.detail["token"] <= conditions.fence.token:
            broken(f"{batch.instance.name}: no token is higher, and the append was refused")
        batch.dead = batch.key is None

    def transaction_asked(self, batches: Sequence[Batch], conditions: Sequence[Conditions | None]) -> Transaction:
        """Somebody asks for all of these together."""
        transaction = Transaction(list(batches), list(conditions))
        for batch in batches:
            batch.is_part = True
        self.transactions.append(transaction)
        return transaction

    def transaction_refused(self, transaction: Transaction, error: ApiError) -> None:
        """It was refused before it had seqs: it is not there, and never will be unless it is sent again."""
        batch = transaction.named(error.detail.get("topic"))
        conditions = transaction.conditions[transaction.batches.index(batch)] if batch is not None else None
        if error.code in ("condition_failed", "fenced"):
            if batch is None or conditions is None:
                broken(f"a condition is said to have failed that nobody has made: {error.detail}")
            self.condition_failed(batch, conditions, error)
        transaction.is_over = True
        for one in transaction.batches:
            one.dead = one.dead or transaction.key is None

    def transaction_repeated(self, transaction: Transaction) -> None:
        """Somebody sends it again."""
        transaction.is_over = False
        for batch in transaction.batches:
            batch.dead = False
            self.repeat_asked(batch)

    def repeat_asked(self, batch: Batch) -> None:
        """Somebody sends it again."""
        batch.classes |= batch.instance.classes
        batch.repeated = True

    def synced(self, instance: Instance, seq: int) -> None:
        """`synced_seq` was shown to be so."""
        if "ephemeral" in instance.classes:
            return
        for known in instance.promised:
            if known <= seq:
                instance.promised[known] = Promise.ALL

    def deletion_asked(
        self, instance: Instance, before: int | None, match: TagMatch | None, after: int | None
    ) -> Deletion:
        """Somebody deletes records."""
        deletion = Deletion(before, match, self.tick(), set(instance.classes), after or 0)
        instance.deletions.append(deletion)
        instance.deleted_more = True
        return deletion

    def deletion_answered(self, instance: Instance, deletion: Deletion, head: int) -> None:
        """It was acknowledged: what was there before it was asked for is away."""
        deletion.answered, deletion.head = self.tick(), head
        taken = [
            seq
            for seq, told in instance.told.items()
            if told < deletion.asked
            and seq in instance.tags
            and deletion.selects(seq, instance.tags[seq], sure_of_tag=True)
        ]
        instance.remove(taken, promise_of(deletion.classes), deletion.answered)

    # -- what readers get --------------------------------------------------------------------------------------------

    def seen(self, instance: Instance, record: Record, since: int, classes: set[str]) -> None:
        """A reader got this record, who had asked at `since`, when the topic had one of these classes or one it has
        now."""
        if record.data not in self.batch_of:
            broken(f"{instance.name}: nobody has appended {record.body}, which is seq {record.seq}")
        if instance.gone_since.get(record.seq, since) < since:
            broken(f"{instance.name}: seq {record.seq} was gone and is back")
        known = instance.times.setdefault(record.seq, record.ts)
        if known != record.ts:
            broken(f"{instance.name}: the time of seq {record.seq} was {known} and is {record.ts}")
        self.check_body(instance, record)
        # What a schedule has made is seen when it is synced.
        fired = record.data in self.schedules.owner
        promise = Promise.ALL if fired else promise_of(instance.classes | classes)
        instance.tell(record.seq, record.data, promise, self.tick())
        instance.tags[record.seq] = msgspec.json.decode(record.body).get("$tag")
        self.checked["records"] += 1

    def check_body(self, instance: Instance, record: Record) -> None:
        """A record is what was appended; a copy may have lost tag and node, and carry where it came from."""
        seq, number = record.seq, record.data
        if number in self.schedules.owner:
            self.schedules.check(self, instance, record)
            return
        batch, i = self.batch_of[number]
        given = batch.records[i]
        row = msgspec.json.decode(record.body)
        meta = dict(row.pop("meta", {}))
        direct = batch.instance is instance
        if batch.staged and not batch.committing:
            broken(f"{instance.name}: seq {seq} is record {number} of a stage that nobody has committed")
        moved = batch.unsure and batch.repeated
        if direct and batch.first and batch.first + i != seq and not moved:
            broken(f"{instance.name}: record {number} was acknowledged as {batch.first + i} and is {seq}")
        if direct and batch.dead:
            broken(f"{instance.name}: record {number} was not there after a restart, and is at {seq}")
        if not direct:
            buried = any(key.startswith(DEAD_LETTER_META) for key in meta)
            if not buried and not self.routers_into(instance.name):
                broken(f"{instance.name}: seq {seq} is record {number} of {batch.instance.name}")
            error = meta.get(DEAD_LETTER_META + "error")
            if error is not None and error not in self.jobs.errors.get(number, ()):
                broken(f"{instance.name}: seq {seq} has the error {error}, which nobody has said of record {number}")
            meta = {key: v for key, v in meta.items() if key != STAMP and not key.startswith(DEAD_LETTER_META)}
        if meta != (given.meta or {}):
            broken(f"{instance.name}: seq {seq} has meta {meta}, it was given {given.meta}")
        if row.pop("data") != msgspec.json.decode(given.data):
            broken(f"{instance.name}: seq {seq} is not the data that record {number} was given")
        for key, value in (("$tag", given.tag), ("$node", given.node)):
            found = row.pop(key, None)
            if found != value and (direct or found is not None):
                broken(f"{instance.name}: seq {seq} has {key} {found}, it was given {value}")
        error = row.pop("last_error", None)
        if error is not None and error not in self.jobs.errors.get(number, ()):
            broken(f"{instance.name}: seq {seq} has the last error {error}, which nobody has said of record {number}")
        if row:
            broken(f"{instance.name}: seq {seq} has {row} besides")

    def routers_into(self, dest: str) -> list[str]:
        """Every router into a topic that somebody has asked for."""
        return [name for name in sorted(self.ever_routed) if self.plans[name]["dest"] == dest]

    def delivered(self, instance: Instance, seq: int, ts: int, number: int) -> None:
        """A watcher got this record; when the daemon sent it, nobody knows."""
        if number not in self.batch_of:
            broken(f"{instance.name}: nobody has appended record {number}, which is seq {seq}")
        if instance.times.setdefault(seq, ts) != ts:
            broken(f"{instance.name}: the time of seq {seq} was {instance.times[seq]} and is {ts}")
        instance.tell(seq, number, Promise.NONE, self.tick())
        self.checked["deliveries"] += 1

    # -- routers -----------------------------------------------------------------------------------------------------

    def router_asked(self, name: str) -> None:
        """Somebody makes a router, or asks for what it is already."""
        known = self.routers[name]
        known.puts += known.there != "yes"
        known.there = "maybe"
        known.asking += 1
        self.ever_routed.add(name)

    def router_answered(self, name: str, state: RouterState, removals: int) -> None:
        """It is there, or was: it may have gone since there were so many `removals`."""
        known = self.routers[name]
        if known.removals != removals:
            known.puts += 1
            return
        if known.start is None:
            known.start, known.since = state.cursor_seq, self.tick()
        ends = (self.instances.get(self.plans[name][end], [])[-1:] for end in ("source", "dest"))
        if not any(instance.deletion == "asked" for found in ends for instance in found):
            known.there = "yes"  # else it goes with the topic, and a machine that dies now may have done that

    # -- stages ------------------------------------------------------------------------------------------------------

    def stage_asked(self, stage: Stage, records: Sequence[RecordIn], numbers: Sequence[int]) -> Batch:
        """Somebody appends to a stage."""
        batch = self.append_asked(stage.instance, records, numbers)
        batch.staged = True
        stage.batches.append(batch)
        return batch

    def stage_answered(self, stage: Stage, batch: Batch, count: int) -> None:
        """It was acknowledged, and the stage said to hold so much."""
        stage.acked.append(batch)
        stage.promise = min(stage.promise, promise_of(batch.classes))
        if not len(stage.least()) <= count <= len(stage.most()):
            broken(f"stage {stage.name}: holds {count}, of {len(stage.least())} to {len(stage.most())}")

    def commit_asked(self, instance: Instance, key: str, stages: Sequence[Stage]) -> Commit:
        """Somebody commits stages."""
        commit = Commit(instance, key, tuple(stages))
        for stage in stages:
            for batch in stage.batches:
                batch.committing = True
        self.commits.append(commit)
        return commit

    def commit_answered(self, commit: Commit, first: int, count: int, *, deduped: bool) -> None:
        """It was acknowledged, for the first time or again."""
        least, most = commit.least(), commit.most()
        if not len(least) <= count <= len(most):
            broken(f"the commit {commit.key} has published {count} records, of {len(least)} to {len(most)}")
        if commit.answer is not None and (not deduped or commit.answer != (first, count)):
            broken(f"the commit {commit.key} was {commit.answer} and is {(first, count)}, deduped: {deduped}")
        commit.answer = first, count
        instance = commit.instance
        if count != len(most) or "ephemeral" in instance.classes:
            return
        now = self.tick()
        for i, number in enumerate(most):
            batch, place = self.batch_of[number]
            instance.tell(first + i, number, Promise.ALL, now)
            instance.tags[first + i] = batch.records[place].tag

    def commit_refused(self, commit: Commit) -> None:
        """There are no such stages, it was said."""
        if commit.answer is not None:
            broken(f"the commit {commit.key} was answered, and is forgotten")
        if not commit.may_fail():
            broken(f"a stage of the commit {commit.key} is gone")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def claimed(self, lease: Lease, now: int) -> None:
        """Somebody was given a job: nobody else holds it."""
        instance, seq = lease.instance, lease.seq
        if instance.gone_since.get(seq, lease.asked) < lease.asked:
            broken(f"{instance.name}: {lease} is of a job that was gone")
        other = self.leases.get((instance.epoch, seq))
        if other is not None and not other.over:
            if now < other.earliest_end:
                broken(f"{instance.name}: seq {seq} was given to {lease.node} at {now}, and {other} holds it")
            if other.life == lease.life and lease.deliveries <= other.deliveries - other.is_uncounted:
                broken(f"{instance.name}: seq {seq} was delivered {other.deliveries} times and is {lease}")
        self.leases[instance.epoch, seq] = lease
        instance.tell(seq, lease.number, promise_of(instance.classes), self.tick())
        self.checked["claims"] += 1

    def held(self, instance: Instance, leases: Iterable[Lease], now: int) -> set[int]:
        """The seqs of those of these leases that may still hold, for all anybody knows."""
        found = set()
        for lease in leases:
            current = self.leases.get((instance.epoch, lease.seq))
            over = now > lease.latest_end and lease.life == self.life
            if current is None:
                continue
            # What of the leases of an earlier life is forgotten may bring an older one back.
            open_ = lease.life < self.life and current.life < self.life and current.over
            if (current.lease_id == lease.lease_id and not over) or open_:
                found.add(lease.seq)
        return found

    def acted(self, instance: Instance, held: set[int], done: Iterable[int]) -> None:
        """Something was done with jobs for somebody who may have `held` these."""
        wrong = set(done) - held
        if wrong:
            broken(f"{instance.name}: something was done with {wrong} for somebody who holds only {held}")

    # -- judging -----------------------------------------------------------------------------------------------------

    def judge(self, views: Mapping[str, View], states: Mapping[str, QueueState], fate: Fate) -> None:
        """What a recovery shows, before anything is moved."""
        for name in views:
            known = self.latest(name)
            if known is None or (not known.created and self.may_be_made(name)):
                self._found(name, views[name])
        for name in self.instances:
            instance = self.instances[name][-1]
            view = views.get(name)
            if view is None:
                if instance.created and instance.deletion == "no":
                    broken(f"{name} was created and is not there")
                continue
            if instance.deletion == "done":
                broken(f"{name} was deleted and is there")
            if instance.epoch and view.epoch != instance.epoch:
                broken(f"{name} is another instance")
            if any(view.epoch == old.epoch for old in self.instances[name][:-1]):
                broken(f"{name} is an instance that was deleted")
            TopicCase(self, instance, view, views, fate).check()
            self.checked["topics"] += 1
        judge_transactions(self, self.transactions, views)
        for name, state in states.items():
            total = state.ready + state.in_flight + state.delayed
            if total != views[name].count:
                broken(f"{name}: {state} for {views[name].count} jobs")

    def may_be_made(self, name: str) -> bool:
        """Whether the daemon makes this topic where there is none: dead letters go to it, or a router reads from it."""
        if any(self.plans[router]["source"] == name for router in self.ever_routed):
            return True
        if name in self.groups.bury_to:
            return True
        known = [instance for instances in self.instances.values() for instance in instances]
        return any(config.dead_letter == name for instance in known for config in instance.configs)

    def _found(self, name: str, view: View) -> None:
        """A topic that no client has made."""
        if not self.may_be_made(name):
            broken(f"{name} is there, and nobody has made it")
        self.current(name).options.append(view.config)
        self.current(name).configs.append(view.config)

    def judge_routers(self, shown: Mapping[str, RouterState], views: Mapping[str, View]) -> None:
        """Routers are there or not, as they were said to be, and no cursor stands above its source's head."""
        for name, state in shown.items():
            if name not in self.ever_routed:
                broken(f"router {name} is there, and nobody has made it")
            if self.routers[name].there == "no":
                broken(f"router {name} was deleted and is there")
            if state.cursor_seq > views[state.source].head:
                broken(f"router {name} stands at {state.cursor_seq}, above {views[state.source].head}")
            plan = self.plans[name]
            if (state.source, state.dest, state.guarantee) != (plan["source"], plan["dest"], plan["guarantee"]):
                broken(f"router {name} is {state}")
        for name, known in self.routers.items():
            if known.there == "yes" and name not in shown:
                broken(f"router {name} was created and is not there")

    def judge_consumers(
        self, shown: Mapping[str, Mapping[str, Seen]], views: Mapping[str, View], fate: Fate, now: int
    ) -> None:
        """The consumers that a recovery shows, and what is gone because they have passed it. Before `judge`, which goes
        by how far that may be."""
        for name, view in views.items():
            instance = self.latest(name)
            if instance is None or instance.epoch not in (0, view.epoch):
                continue
            self.consumers_of(instance).judge(shown[name], view, "machine" if self.failed else fate, now)

    def judge_salvaged_consumers(self, shown: Mapping[str, Mapping[str, Seen]], views: Mapping[str, View]) -> None:
        """The consumers that are left after a salvage."""
        for name, view in views.items():
            known = self.instances.get(name)  # none if the daemon has made it, for dead letters
            if known and known[-1].epoch == view.epoch:
                self.consumers_of(known[-1]).judge_salvaged(shown[name], view.head)

    def consumers_restarted(
        self, shown: Mapping[str, Mapping[str, Seen]], views: Mapping[str, View], fate: Fate, now: int
    ) -> None:
        """A new life begins with these."""
        for name in views:
            instance = self.latest(name)
            if instance is not None:
                worst: Fate = "machine" if self.failed else fate
                self.consumers_of(instance).restarted(shown[name], worst, now, clock_moved=self.clock_moved)

    def restarted(self, views: Mapping[str, View], routers: Mapping[str, RouterState], fate: Fate) -> None:
        """A new life begins with this: it is on disk, and what is not in it never comes back."""
        worst: Fate = "machine" if self.failed else fate
        for stage in self.stages:
            stage.may_be_gone |= not survives(stage.promise, worst) or "ephemeral" in stage.instance.ever
            stage.may_be_gone |= self.rot > 0  # one that has lost a record is dropped
        for transaction in self.transactions:
            transaction.is_over = True
        self.failed = False
        self.life += 1
        for name in self.instances:
            instance, view = self.instances[name][-1], views.get(name)
            if view is None:
                instance.deletion = "done"
            else:
                self._restart(TopicCase(self, instance, view, views, worst))
        for name, known in self.routers.items():
            known.there = "yes" if name in routers else "no"
        for lease in self.leases.values():
            lease.over |= self.clock_moved or not lease.durable or "ephemeral" in lease.instance.ever

    def _restart(self, case: TopicCase) -> None:
        instance, view = case.instance, case.view
        for first, last, reason in view.gaps:
            if reason not in RETENTION:
                instance.lost.update(range(first, last + 1))
            elif reason == "mixed":
                # The other reason may go: a damaged record is found by each start again until a checkpoint has kept its
                # tombstone, and a deletion that covers it before that is all that is left of it.
                instance.lost.update(seq for seq in range(first, last + 1) if case.may_be_lost(seq))
        instance.deletion = "no"
        instance.created, instance.epoch = True, view.epoch
        instance.options, instance.current = [view.config], view.config
        instance.head = max(instance.head, view.head)
        known_gone = instance.gone
        instance.promised, instance.gone, instance.gone_since = {}, {}, {}
        now = self.tick()
        for record in view.records.values():
            self.seen(instance, record, now, instance.classes)
        if view.config.durability != "ephemeral":
            instance.promised = dict.fromkeys(view.records, Promise.ALL)
        expires = any(config.ttl_ms for config in instance.configs)
        absent = [seq for seq in range(1, view.head + 1) if seq not in view.records]
        # What an earlier start did not show any more had its reason then; the deletions of that life are forgotten.
        instance.consumed |= {
            seq
            for seq in absent
            if seq not in known_gone and view.gap_of(seq) is None and not instance.may_be_deleted(seq, consumed=False)
        }
        # What has expired is back where the clock goes back before the floor was written (docs/spec/crash.md 6).
        gone = (seq for seq in absent if not (expires and view.gap_of(seq) in ("ttl", "mixed")))
        instance.remove(gone, Promise.ALL, self.tick())
        found = {record.data: seq for seq, record in view.records.items()}
        for batch in instance.batches:
            if batch.staged:
                continue
            base = next((found[n] - i for i, n in enumerate(batch.numbers) if n in found), 0)
            if base and batch.first != base and batch.unsure and batch.repeated:
                batch.first, batch.again = base, True
            batch.first = batch.first or base
            batch.dead = not batch.first and not expires
            batch.unsure = not base
        if not expires:  # else it stays open which of them it was
            instance.deletions = []
            instance.ended = Counter()
