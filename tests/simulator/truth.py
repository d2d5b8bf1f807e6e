"""What clients were told, and what follows from it for what a recovery may show (`semantics.md` section 8).

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
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, Literal, NoReturn

import msgspec

from tests.simulation.model import Record, View
from topics.log.match import Match, parse_match
from topics.model import QueueState, RecordIn, RouterState, TopicConfig

Fate = Literal["stop", "kill", "machine"]


class Promise(IntEnum):
    """How much of an end a record, or its being gone, survives for certain."""

    NONE = 0
    KILL = 1
    """The death of the process, if the disk did not fail it."""
    ALL = 2


PROMISES: Final = {"ephemeral": Promise.NONE, "memory": Promise.NONE, "disk": Promise.KILL, "fsync": Promise.ALL}
RETENTION: Final = frozenset({"cap", "ttl", "mixed"})
DEAD_LETTER_META: Final = "$dead_letter_"
STAMP: Final = "_topics_router"


class Broken(AssertionError):
    """A promise is broken."""


@dataclass(slots=True, eq=False)
class Batch:
    """Records that somebody has asked to have appended, or committed, together."""

    instance: Instance
    numbers: tuple[int, ...]
    records: tuple[RecordIn, ...]
    asked: int
    classes: set[str]
    first: int = 0
    """The seq of the first one; 0 if nobody was told."""
    key: str | None = None
    sent_ms: int = 0
    unsure: bool = False
    """A restart may have taken it, and its key."""
    again: bool = False
    """It was appended once more, after it had been lost."""
    dead: bool = False
    """A restart has shown that it is not there: it never will be."""
    staged: bool = False
    """It went to a stage: it is in the topic once that was committed, and where is known of the commit."""
    committing: bool = False
    """Somebody has asked to commit that stage."""

    def seqs(self) -> range:
        """Where it is, once that is known."""
        return range(self.first, self.first + len(self.numbers)) if self.first else range(0)


@dataclass(slots=True, eq=False)
class Deletion:
    """A deletion that was asked for."""

    before: int | None
    match: Match | None
    asked: int
    classes: set[str]
    answered: int | None = None
    head: int | None = None
    """The head when it was answered: it is about nothing behind that."""

    def selects(self, seq: int, tag: str | None, *, sure_of_tag: bool) -> bool:
        """Whether it is about this record; about one whose tag nobody knows if it may be."""
        if self.before is not None and seq >= self.before:
            return False
        if self.head is not None and seq > self.head:
            return False
        return self.match is None or not sure_of_tag or self.match.matches(tag)


class Instance:
    """One topic from its creation to its deletion."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = 0
        self.created = False
        self.deletion: Literal["no", "asked", "done"] = "no"
        self.configs: list[TopicConfig] = []
        """All that it may ever have had."""
        self.options: list[TopicConfig] = []
        """What it may have now."""
        self.current: TopicConfig | None = None
        """What it was said to have."""
        self.at: dict[int, int] = {}
        """The number at each seq that anybody was told of."""
        self.times: dict[int, int] = {}
        self.tags: dict[int, str | None] = {}
        self.promised: dict[int, Promise] = {}
        self.told: dict[int, int] = {}
        """When somebody was first told of a seq."""
        self.gone: dict[int, Promise] = {}
        """Seqs that are away for certain, and what that survives."""
        self.gone_since: dict[int, int] = {}
        self.lost: set[int] = set()
        """Seqs that a tombstone has been about, other than for retention."""
        self.deletions: list[Deletion] = []
        self.ended: Counter[int] = Counter()
        """Seqs of jobs that somebody may have acked."""
        self.batches: list[Batch] = []
        self.deleted_more = False
        """A deletion may have taken what nobody was told of."""
        self.head = 0

    # -- what it is --------------------------------------------------------------------------------------------------

    @property
    def classes(self) -> set[str]:
        """Every class that it may have now."""
        return {config.durability for config in self.options}

    @property
    def ever(self) -> set[str]:
        """Every class that it may ever have had."""
        return {config.durability for config in self.configs}

    @property
    def retained(self) -> bool:
        """Whether caps or ttl may ever have taken something."""
        return any(config.cap_records or config.cap_bytes or config.ttl_ms for config in self.configs)

    @property
    def buries(self) -> bool:
        """Whether jobs may go from it to a dead-letter topic."""
        return any(config.max_deliveries and config.dead_letter for config in self.configs)

    # -- what becomes known ------------------------------------------------------------------------------------------

    def tell(self, seq: int, number: int, promise: Promise, now: int) -> None:
        """Somebody was told that this record is there."""
        self.told.setdefault(seq, now)
        known = self.at.setdefault(seq, number)
        if known != number:
            broken(f"{self.name}: seq {seq} was record {known} and is {number}")
        self.promised[seq] = max(promise, self.promised.get(seq, Promise.NONE))
        self.head = max(self.head, seq)

    def settle(self, before: int) -> None:
        """All that was known when something was asked at `before` is on disk now, and so is what was taken away."""
        for seq in self.promised:
            if self.told[seq] < before:
                self.promised[seq] = Promise.ALL
        for seq, since in self.gone_since.items():
            if since < before:
                self.gone[seq] = Promise.ALL

    def release(self) -> None:
        """It may be ephemeral: a restart may take everything."""
        for seq in self.promised:
            self.promised[seq] = Promise.NONE

    def remove(self, seqs: Iterable[int], promise: Promise, now: int) -> None:
        """These are away for certain."""
        for seq in seqs:
            self.gone_since.setdefault(seq, now)
            self.gone[seq] = max(promise, self.gone.get(seq, Promise.NONE))

    def may_be_deleted(self, seq: int) -> bool:
        """Whether somebody may have asked for this to go."""
        if seq in self.gone or self.ended[seq] > 0:
            return True
        sure = seq in self.tags
        return any(deletion.selects(seq, self.tags.get(seq), sure_of_tag=sure) for deletion in self.deletions)


@dataclass(slots=True, eq=False)
class Stage:
    """A stage, as far as the one who fills it knows."""

    instance: Instance
    name: str
    batches: list[Batch] = field(default_factory=list)
    acked: list[Batch] = field(default_factory=list)
    promise: Promise = Promise.ALL
    may_be_gone: bool = False
    """It was dropped, or an end came that it was not promised to survive."""

    def most(self) -> list[int]:
        """The numbers that may be in it, in order."""
        return [number for batch in self.batches for number in batch.numbers]

    def least(self) -> list[int]:
        """The numbers that have to be."""
        return [number for batch in self.acked for number in batch.numbers]


@dataclass(slots=True, eq=False)
class Commit:
    """A commit that was asked for."""

    instance: Instance
    key: str
    stages: tuple[Stage, ...]
    answer: tuple[int, int] | None = None
    """First seq and count."""

    def most(self) -> list[int]:
        """The numbers that it may have published, in order."""
        return [number for stage in self.stages for number in stage.most()]

    def least(self) -> list[int]:
        """The numbers that it has published if it has published any."""
        return [number for stage in self.stages for number in stage.least()]

    def may_fail(self) -> bool:
        """Whether there may be no such stages."""
        return any(stage.may_be_gone or not stage.acked for stage in self.stages)


@dataclass(slots=True, eq=False)
class Lease:
    """A job that somebody was given. Times are those of a clock that no step moves, ms."""

    instance: Instance
    seq: int
    number: int
    node: str
    lease_id: int
    earliest_end: int
    latest_end: int
    deliveries: int
    durable: bool
    asked: int
    life: int
    over: bool = False
    """Somebody has said something that may have ended it, or it may be forgotten."""


@dataclass(slots=True)
class RouterFate:
    """What is known of a router."""

    there: Literal["no", "maybe", "yes"] = "no"
    puts: int = 0
    """How often it may have been made."""
    start: int | None = None
    """Its cursor when it was first answered for."""
    asking: int = 0
    """Requests for it that are not answered."""
    removals: int = 0
    """How often it may have gone with a topic."""


def promise_of(classes: set[str]) -> Promise:
    """What an answer promises that came while the topic had one of these classes."""
    return min((PROMISES[durability] for durability in classes), default=Promise.NONE)


def survives(promise: Promise, fate: Fate) -> bool:
    """Whether something that was promised so much is there after such an end."""
    return promise == Promise.ALL or fate == "stop" or (fate == "kill" and promise == Promise.KILL)


def broken(problem: str) -> NoReturn:
    """Say so."""
    raise Broken(problem)


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
        self.leases: dict[tuple[int, int], Lease] = {}
        """The newest of each job, by epoch and seq."""
        self.clock_moved = False
        """Somebody has set the wall clock: deadlines in epoch time say nothing any more."""
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
        """It is so now. A change of class is a barrier."""
        if config != instance.options[-1]:
            broken(f"{instance.name}: asked for {instance.options[-1]}, and was answered {config}")
        instance.created, instance.epoch = True, epoch
        if config == instance.current:
            instance.options.pop()  # nothing was done: what a change that failed has left may be found yet
            return
        if len(instance.classes) > 1 and config.durability != "ephemeral":
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
        promise, now = promise_of(batch.classes), self.tick()
        for i, number in enumerate(batch.numbers):
            batch.instance.tell(first + i, number, promise, now)
            batch.instance.tags[first + i] = batch.records[i].tag

    def repeat_asked(self, batch: Batch) -> None:
        """Somebody sends it again."""
        batch.classes |= batch.instance.classes

    def synced(self, instance: Instance, seq: int) -> None:
        """`synced_seq` was shown to be so."""
        if "ephemeral" in instance.classes:
            return
        for known in instance.promised:
            if known <= seq:
                instance.promised[known] = Promise.ALL

    def deletion_asked(self, instance: Instance, before: int | None, match: Match | None) -> Deletion:
        """Somebody deletes records."""
        deletion = Deletion(before, match, self.tick(), set(instance.classes))
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
        instance.tell(record.seq, record.data, promise_of(instance.classes | classes), self.tick())
        instance.tags[record.seq] = msgspec.json.decode(record.body).get("$tag")
        self.checked["records"] += 1

    def check_body(self, instance: Instance, record: Record) -> None:
        """A record is what was appended; a copy may have lost tag and node, and carry where it came from."""
        seq, number = record.seq, record.data
        batch, i = self.batch_of[number]
        given = batch.records[i]
        row = msgspec.json.decode(record.body)
        meta = dict(row.pop("meta", {}))
        direct = batch.instance is instance
        if batch.staged and not batch.committing:
            broken(f"{instance.name}: seq {seq} is record {number} of a stage that nobody has committed")
        if direct and batch.first and batch.first + i != seq:
            broken(f"{instance.name}: record {number} was acknowledged as {batch.first + i} and is {seq}")
        if direct and batch.dead:
            broken(f"{instance.name}: record {number} was not there after a restart, and is at {seq}")
        if not direct:
            buried = any(key.startswith(DEAD_LETTER_META) for key in meta)
            if not buried and not self.routers_into(instance.name):
                broken(f"{instance.name}: seq {seq} is record {number} of {batch.instance.name}")
            meta = {key: v for key, v in meta.items() if key != STAMP and not key.startswith(DEAD_LETTER_META)}
        if meta != (given.meta or {}):
            broken(f"{instance.name}: seq {seq} has meta {meta}, it was given {given.meta}")
        if row.pop("data") != msgspec.json.decode(given.data):
            broken(f"{instance.name}: seq {seq} is not the data that record {number} was given")
        for key, value in (("$tag", given.tag), ("$node", given.node)):
            found = row.pop(key, None)
            if found != value and (direct or found is not None):
                broken(f"{instance.name}: seq {seq} has {key} {found}, it was given {value}")
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
            known.start = state.cursor_seq
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
            if other.life == lease.life and lease.deliveries <= other.deliveries:
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
            if known is None or (not known.created and self._may_be_made(name)):
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
            _Case(self, instance, view, views, fate).check()
            self.checked["topics"] += 1
        for name, state in states.items():
            total = state.ready + state.in_flight + state.delayed
            if total != views[name].count:
                broken(f"{name}: {state} for {views[name].count} jobs")

    def _may_be_made(self, name: str) -> bool:
        """Whether the daemon makes this topic where there is none: dead letters go to it, or a router reads from it."""
        if any(self.plans[router]["source"] == name for router in self.ever_routed):
            return True
        known = [instance for instances in self.instances.values() for instance in instances]
        return any(config.dead_letter == name for instance in known for config in instance.configs)

    def _found(self, name: str, view: View) -> None:
        """A topic that no client has made."""
        if not self._may_be_made(name):
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

    def restarted(self, views: Mapping[str, View], routers: Mapping[str, RouterState], fate: Fate) -> None:
        """A new life begins with this: it is on disk, and what is not in it never comes back."""
        worst: Fate = "machine" if self.failed else fate
        for stage in self.stages:
            stage.may_be_gone |= not survives(stage.promise, worst) or "ephemeral" in stage.instance.ever
        self.failed = False
        self.life += 1
        for name in self.instances:
            instance, view = self.instances[name][-1], views.get(name)
            if view is None:
                instance.deletion = "done"
            else:
                self._restart(_Case(self, instance, view, views, worst))
        for name, known in self.routers.items():
            known.there = "yes" if name in routers else "no"
        for lease in self.leases.values():
            lease.over |= self.clock_moved or not lease.durable or "ephemeral" in lease.instance.ever

    def _restart(self, case: _Case) -> None:
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
        instance.promised, instance.gone, instance.gone_since = {}, {}, {}
        now = self.tick()
        for record in view.records.values():
            self.seen(instance, record, now, instance.classes)
        if view.config.durability != "ephemeral":
            instance.promised = dict.fromkeys(view.records, Promise.ALL)
        expires = any(config.ttl_ms for config in instance.configs)
        absent = (seq for seq in range(1, view.head + 1) if seq not in view.records)
        # What has expired is back where the clock goes back before the floor was written (crash.md 6).
        gone = (seq for seq in absent if not (expires and view.gap_of(seq) in ("ttl", "mixed")))
        instance.remove(gone, Promise.ALL, self.tick())
        found = {record.data: seq for seq, record in view.records.items()}
        for batch in instance.batches:
            if batch.staged:
                continue
            base = next((found[n] - i for i, n in enumerate(batch.numbers) if n in found), 0)
            batch.first = batch.first or base
            batch.dead = not batch.first and not expires
            batch.unsure = not base
        if not expires:  # else it stays open which of them it was
            instance.deletions = []
            instance.ended = Counter()


class _Case:
    """One topic after one recovery."""

    def __init__(self, truth: Truth, instance: Instance, view: View, views: Mapping[str, View], fate: Fate) -> None:
        self.truth = truth
        self.instance = instance
        self.view = view
        self.views = views
        self.fate: Fate = "machine" if truth.failed else fate
        self.buried = self._buried()

    def _maybe_made_by_a_stage(self) -> bool:
        """Whether an append to a stage may have made the topic again, with the config that is everybody's, after it was
        deleted and before anybody else did."""
        name = self.instance.name
        known = self.instance.created and self.instance.deletion == "no"
        deleted = self.instance.deletion != "no" or len(self.truth.instances[name]) > 1
        return not known and deleted and any(stage.instance.name == name for stage in self.truth.stages)

    def check(self) -> None:
        """All of it, the plainest things first."""
        if self._maybe_made_by_a_stage():
            self.instance.options.append(TopicConfig())
            self.instance.configs.append(TopicConfig())
        if self.view.config not in self.instance.options:
            self.fail(f"its config {self.view.config} was never asked for")
        self.check_figures()
        self.check_order()
        self.check_promises()
        self.check_absences()
        self.check_tombstones()
        self.check_batches()
        self.check_commits()
        self.check_retention()

    def fail(self, problem: str) -> NoReturn:
        """With what is needed to understand it."""
        view = self.view
        there = {seq: record.data for seq, record in view.records.items()}
        broken(
            f"{view.name} after {self.fate} ({'/'.join(sorted(self.instance.ever))}): {problem}\n"
            f"  head {view.head} earliest {view.earliest} count {view.count} gaps {view.gaps}\n  records {there}"
        )

    def survives(self, promise: Promise) -> bool:
        """Whether something that was promised so much survives this end."""
        if "ephemeral" in self.instance.classes:
            return False
        return survives(promise, self.fate)

    def check_figures(self) -> None:
        """`count`, `bytes`, `earliest_seq` and `head_seq` are what a full read shows."""
        view = self.view
        size = 0
        for record in view.records.values():
            if record.data not in self.truth.batch_of:
                self.fail(f"nobody has appended {record.body}")
            batch, i = self.truth.batch_of[record.data]
            meta = msgspec.json.decode(record.body).get("meta")
            size += len(batch.records[i].data) + (len(msgspec.json.encode(meta)) if meta else 0)
        if view.count != len(view.records):
            self.fail("count is not what a read shows")
        if view.bytes != size:
            self.fail(f"bytes is {view.bytes}, a read shows {size}")
        if view.earliest != min(view.records, default=view.head + 1):
            self.fail("earliest_seq is not the first record")
        if view.head < self.instance.head:
            self.fail(f"seqs up to {self.instance.head} were seen, they would be given out again")
        if view.records and "ephemeral" in self.instance.classes and len(self.instance.classes) == 1:
            self.fail("records of an ephemeral topic are there after a restart")

    def check_order(self) -> None:
        """Content, times, and how often each record is there."""
        last = 0
        for seq, record in self.view.records.items():
            if record.ts < last:
                self.fail(f"time goes back at seq {seq}")
            last = record.ts
            known = self.instance.at.get(seq)
            if known not in (None, record.data):
                self.fail(f"seq {seq} was record {known}")
            time = self.instance.times.get(seq)
            if time not in (None, record.ts):
                self.fail(f"the time of seq {seq} was {time} and is {record.ts}")
            self.truth.check_body(self.instance, record)
        self.check_repeats()

    def check_repeats(self) -> None:
        """A record that was appended here is here once; a copy is, where nothing brings it twice."""
        counts = Counter(record.data for record in self.view.records.values())
        into = self.truth.routers_into(self.view.name)
        # One that is made again begins again, and remembers nothing of the first one.
        once = bool(into) and all(
            self.truth.plans[name]["guarantee"] == "exactly_once" and self.truth.routers[name].puts == 1
            for name in into
        )
        once = once or (len(into) == 1 and self.truth.routers[into[0]].puts == 1 and self._has_one_source(into[0]))
        for number, count in counts.items():
            if count == 1 or self._is_burial(number) or self.truth.batch_of[number][0].again:
                continue
            if self.truth.batch_of[number][0].instance is self.instance:
                self.fail(f"record {number} is there {count} times")
            if once:
                self.fail(f"record {number} was copied {count} times by {into}")

    def _has_one_source(self, router: str) -> bool:
        source = self.truth.plans[router]["source"]
        return len(self.truth.instances.get(source, ())) == 1 and not self.truth.routers_into(source)

    def _is_burial(self, number: int) -> bool:
        """Whether a record comes from a queue whose dead letters go here: a crash may leave it twice."""
        return self.truth.batch_of[number][0].instance.buries

    def _buried(self) -> Counter[int]:
        """The numbers that are in this topic's dead-letter topics."""
        targets = {config.dead_letter for config in self.instance.configs if config.dead_letter}
        found: Counter[int] = Counter()
        for target in targets:
            if target in self.views:
                found.update(record.data for record in self.views[target].records.values())
        return found

    def _grave_leaks(self) -> bool:
        """Whether a dead letter may be missing where it went."""
        if self.truth.rot:
            return True
        for config in self.instance.configs:
            for grave in self.truth.instances.get(config.dead_letter or "", ()):
                if grave.retained or grave.deletions or grave.gone or grave.deletion != "no" or grave.lost:
                    return True
        return False

    def excused(self, seq: int) -> bool:
        """Whether a record may be away without a word."""
        instance = self.instance
        if instance.may_be_deleted(seq):
            return True
        if not instance.buries:
            return False
        number = instance.at.get(seq)
        return number is None or number in self.buried or self._grave_leaks()

    def check_promises(self) -> None:
        """What was promised is there, what was removed for certain is not."""
        for seq, promise in self.instance.gone.items():
            if seq in self.view.records and self.survives(promise):
                self.fail(f"seq {seq} was gone and is back")
        for seq, promise in self.instance.promised.items():
            if seq in self.view.records or not self.survives(promise) or self.excused(seq):
                continue
            reason = self.view.gap_of(seq)
            legal = reason in RETENTION and (self.instance.retained or not self.instance.lost.isdisjoint([seq]))
            if not legal and not self.is_rotten(reason):
                self.fail(f"seq {seq} was promised and is {reason or 'gone silently'}")

    def is_rotten(self, reason: str | None) -> bool:
        """Whether damage that was done explains this."""
        return self.truth.rot > 0 and reason in ("corrupt", "mixed")

    def check_absences(self) -> None:
        """Nothing is away silently that nobody has asked to go; nothing is there and announced to be away."""
        for seq in range(1, self.view.head + 1):
            reason = self.view.gap_of(seq)
            if seq in self.view.records:
                if reason is not None:
                    self.fail(f"seq {seq} is there and {reason}")
            elif reason is None and not self.excused(seq):
                self.fail(f"seq {seq} is gone silently, and nobody has asked for that")

    def check_tombstones(self) -> None:
        """No tombstone without a loss that is possible, of the kind that it says."""
        instance = self.instance
        for first, last, reason in self.view.gaps:
            where = f"the gap {first} to {last}"
            if reason in ("cap", "ttl"):
                legal = instance.retained
            elif reason == "source_trim":
                legal = bool(self.truth.routers_into(self.view.name))
            elif reason == "corrupt":
                legal = self.truth.rot > 0
            elif reason in ("lost", "mixed"):
                legal = any(self.may_be_lost(seq) for seq in range(first, last + 1))
                legal = legal or (reason == "mixed" and (instance.retained or self.truth.rot > 0))
                legal = legal or (reason == "mixed" and bool(self.truth.routers_into(self.view.name)))
            else:
                legal = False
            if not legal:
                self.fail(f"{where} is {reason}, and cannot be")

    def may_be_lost(self, seq: int) -> bool:
        """Whether an end like this, or one before, can have taken this seq."""
        instance = self.instance
        if seq in instance.lost or "ephemeral" in instance.classes:
            return True
        if seq in instance.gone or self.fate == "stop":
            return False
        if self.survives(instance.promised.get(seq, Promise.NONE)):
            return False
        if self.fate == "kill":
            return not instance.classes <= {"disk", "fsync"}
        return instance.classes != {"fsync"}

    def check_batches(self) -> None:
        """A batch is there whole or not at all, but for what was taken out of it."""
        found = {record.data: seq for seq, record in self.view.records.items()}
        for batch in self.instance.batches:
            if batch.staged:
                continue
            base = next((found[n] - i for i, n in enumerate(batch.numbers) if n in found), None)
            if base is None:
                continue
            for i, number in enumerate(batch.numbers):
                seq = base + i
                if found.get(number) == seq:
                    continue
                if number in found:
                    self.fail(f"the batch at {base} is out of order")
                reason = self.view.gap_of(seq)
                taken = (reason in RETENTION and self.instance.retained) or self.is_rotten(reason)
                if not taken and not self.excused(seq):
                    self.fail(f"of the batch at {base} record {number} is missing")

    def check_commits(self) -> None:
        """A commit is there whole or not at all; one that was answered is there."""
        found = {record.data for record in self.view.records.values()}
        for commit in self.truth.commits:
            if commit.instance is not self.instance or "ephemeral" in self.instance.ever:
                continue
            if commit.answer is None and found.isdisjoint(commit.most()):
                continue
            loose = self.instance.retained or self.instance.deletions or self.instance.gone or self.truth.rot
            missing = [number for number in commit.least() if number not in found]
            if missing and not loose:
                self.fail(f"the commit {commit.key} is there without {missing}")

    def check_retention(self) -> None:
        """Caps hold after a restart as before."""
        if len(self.instance.options) != 1:
            return
        config = self.instance.options[0]
        if config.cap_records and config.discard == "old" and self.view.count > config.cap_records:
            self.fail(f"there are more than {config.cap_records} records")
        if config.cap_bytes and config.discard == "old" and self.view.bytes > config.cap_bytes:
            self.fail(f"there are more than {config.cap_bytes} bytes")


# ----------------------------------------------------------------- what must have arrived


def judge_arrivals(truth: Truth, views: Mapping[str, View], routers: Mapping[str, RouterState]) -> None:
    """Forwarders are idle: what is in a source and passes the filter is in the dest, unless that has got rid of it."""
    for name, state in routers.items():
        known = truth.routers[name]
        source, dest = truth.latest(state.source), truth.latest(state.dest)
        if source is None or dest is None or known.puts != 1 or known.start is None:
            continue
        if len(truth.instances[state.source]) > 1 or len(truth.instances[state.dest]) > 1:
            continue
        if state.lag:
            rejects = any(config.discard == "reject" for config in dest.configs)
            if not rejects:
                broken(f"router {name} does not get on: {state}")
            continue
        if dest.retained or "ephemeral" in dest.ever or truth.rot or dest.buries:
            continue
        start = 0 if state.start == "earliest" else known.start
        _judge_router(truth, state, start, views[state.source], views[state.dest], dest)


def _judge_router(truth: Truth, state: RouterState, start: int, source: View, dest: View, instance: Instance) -> None:
    wanted = truth.plans[state.router]["filter"]
    passes = parse_match(wanted, "filter") if wanted is not None else None
    there = {record.data for record in dest.records.values()}
    went = {number for seq, number in instance.at.items() if instance.may_be_deleted(seq)}
    for seq, record in source.records.items():
        tag = msgspec.json.decode(record.body).get("$tag")
        if seq <= start or record.data in there or record.data in went:
            continue
        if (passes is not None and not passes.matches(tag)) or truth.batch_of[record.data][0].instance is instance:
            continue
        if instance.deleted_more or any(reason != "source_trim" for _, _, reason in dest.gaps):
            continue
        broken(f"router {state.router}: record {record.data}, seq {seq} of {state.source}, is not in {state.dest}")
    truth.checked["arrivals"] += len(source.records)


def judge_salvaged(truth: Truth, views: Mapping[str, View]) -> None:
    """A log was damaged and salvaged: what is left is what was, in its place, and no seq will be given out again."""
    for name, view in views.items():
        if name not in truth.instances:
            broken(f"{name} is there, and nobody has made it")
        instance = truth.instances[name][-1]
        for seq, record in view.records.items():
            if record.data not in truth.batch_of:
                broken(f"{name}: nobody has appended {record.body}")
            known = instance.at.get(seq, record.data)
            if view.epoch == instance.epoch and known != record.data:
                broken(f"{name}: seq {seq} was record {known} and is {record.data}")
        if view.epoch == instance.epoch and view.head < instance.head:
            broken(f"{name}: seqs up to {instance.head} were seen, and the head is {view.head}")
