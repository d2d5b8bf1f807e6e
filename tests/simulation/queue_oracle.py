"""What a recovery may show of queues: which jobs are there, who holds them until when, how often they were delivered,
and where those are that have had all their deliveries. It follows from the first part of a history.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from tests.simulation import lives
from tests.simulation.model import Fate, View
from tests.simulation.queue_clients import DEFAULT_LEASE_MS, MADE, Asked, Began, History, Saw, Told
from tests.simulation.queue_state import Kept, KeptJob, Shown
from topics.model import (
    TopicConfig,
)
from topics.queue.job_pages import DELAYED, FREE, LEASED, PARKED


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
        """Every append to it may make it, and make it again."""
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
        """The leases that hold after a restart of any kind."""
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
