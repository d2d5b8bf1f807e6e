"""What groups must not do, and what a start must show of them (`docs/spec/consumers.md` section 4).

Each record that a group's filter lets through is given out until the group has finished it. What it has finished is
never given out again, if the ack survives, and nothing is finished that no member has acked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from tests.filters.oracle import Written
from tests.simulation.model import View
from tests.simulator.filter_matches import lets_through, written
from tests.simulator.groups.group_facts import GroupFacts, GroupSeen, terms_of
from tests.simulator.known import Fate, Instance, Lease, Promise, broken, survives

if TYPE_CHECKING:
    from tests.simulator.truth import Truth

Shown = Mapping[str, Mapping[str, GroupSeen]]


class GroupRules:
    """The facts of all groups, and what follows from them."""

    def __init__(self) -> None:
        self.groups: dict[Instance, dict[str, GroupFacts]] = {}
        self.bury_to: set[str] = set()
        """Topics that dead letters of groups may go to."""
        self.checked: Counter[str] = Counter()

    def of(self, instance: Instance) -> dict[str, GroupFacts]:
        """The groups of a topic that may be there."""
        return self.groups.setdefault(instance, {})

    def clock_was(self, wall_ms: int) -> None:
        """The wall clock is about to be set; it was so far."""
        for groups in self.groups.values():
            for facts in groups.values():
                facts.clock_was(wall_ms)

    def is_steady(self, truth: Truth, topic: str, group: str) -> bool:
        """Whether a group has always had the same filter."""
        instance = truth.latest(topic)
        return instance is not None and self.of(instance)[group].is_steady

    def note(self, instance: Instance, head: int) -> None:
        """Something is asked, or was answered: with `retention: "consumed"` what every group may have finished may be
        deleted."""
        if not any(config.retention == "consumed" for config in instance.options):
            return
        floors = [self._highest_floor(one, head) for one in self.of(instance).values() if one.there == "yes"]
        if not floors:
            floors = [self._highest_floor(one, head) for one in self.of(instance).values()]
        instance.consumed_to = max(instance.consumed_to, min([head, *floors]) if floors else 0)

    @staticmethod
    def _highest_floor(facts: GroupFacts, head: int) -> int:
        if any(text is not None for text in facts.filters):
            return head
        return min((seq for seq in facts.instance.at if facts.is_there(seq)), default=head + 1) - 1

    # -- what members get --------------------------------------------------------------------------------------------

    def claimed(self, facts: GroupFacts, lease: Lease, now: int) -> None:
        """A member was given a record: nobody else holds it, and it is not finished."""
        instance, seq = facts.instance, lease.seq
        where = f"{instance.name}/{facts.name}"
        if seq <= facts.start[0]:
            broken(f"{where}: {lease} was given out, and the group begins behind {facts.start}")
        if facts.finished_since.get(seq, lease.asked) < lease.asked:
            broken(f"{where}: {lease} was given out, and is finished")
        if instance.gone_since.get(seq, lease.asked) < lease.asked:
            broken(f"{where}: {lease} is of a record that was gone")
        other = facts.leases.get((instance.epoch, seq))
        if other is not None and not other.over:
            if now < other.earliest_end:
                broken(f"{where}: seq {seq} was given to {lease.node} at {now}, and {other} holds it")
            if other.life == lease.life and lease.deliveries <= other.deliveries - other.is_uncounted:
                broken(f"{where}: seq {seq} was delivered {other.deliveries} times and is {lease}")
        facts.leases[instance.epoch, seq] = lease
        self.checked["group claims"] += 1

    def check_filter(self, facts: GroupFacts, seq: int, row: Written) -> None:
        """It is what the group wants."""
        if facts.is_steady and not lets_through((facts.filter,) if facts.filter is not None else (), row):
            broken(f"{facts.instance.name}/{facts.name}: seq {seq} was given out, and {facts.filter} refuses {row}")

    def held(self, facts: GroupFacts, leases: Iterable[Lease], now: int, life: int) -> set[int]:
        """The seqs of those of these leases that may still hold."""
        found = set()
        for lease in leases:
            current = facts.leases.get((facts.instance.epoch, lease.seq))
            if current is None:
                continue
            over = now > lease.latest_end and lease.life == life
            open_ = lease.life < life and current.life < life and current.over
            if (current.lease_id == lease.lease_id and not over) or open_:
                found.add(lease.seq)
        return found

    def finishes(self, facts: GroupFacts, seqs: Sequence[int], promise: Promise, now: int) -> None:
        """A member's acks were answered."""
        for seq in seqs:
            facts.finished[seq] = max(promise, facts.finished.get(seq, Promise.NONE))
            facts.finished_since.setdefault(seq, now)

    # -- restarts ----------------------------------------------------------------------------------------------------

    def judge(self, truth: Truth, shown: Shown, views: Mapping[str, View], fate: Fate) -> None:
        """What a recovery shows of groups. Before the topics are judged, which goes by what may have been consumed."""
        worst: Fate = "machine" if truth.failed else fate
        for name, view in views.items():
            instance = truth.latest(name)
            if instance is None or instance.epoch not in (0, view.epoch):
                continue
            known, found = self.of(instance), shown.get(name, {})
            for group in found.keys() - known.keys():
                broken(f"{name}/{group} is there, and nobody has made it")
            for group, facts in known.items():
                one = found.get(group)
                if one is None:
                    if facts.there == "yes":
                        broken(f"{name}/{group} was made and is not there")
                    continue
                self._judge_one(truth, facts, one, view, worst)
            self.note(instance, view.head)

    def _judge_one(self, truth: Truth, facts: GroupFacts, one: GroupSeen, view: View, fate: Fate) -> None:
        instance, where = facts.instance, f"{view.name}/{facts.name} after {fate}"
        if one.floor > max(view.head, facts.start[0]):
            broken(f"{where}: the floor {one.floor} is above the head {view.head}")
        if one.terms not in [terms_of(config) for config in facts.options] or one.filter not in facts.wishes:
            broken(f"{where}: {one} has never been asked for: {facts.options}, {facts.wishes}")
        if "ephemeral" in instance.ever or instance.deletion != "no":
            return
        back = [seq for seq, promise in facts.finished.items() if survives(promise, fate)]
        back = [seq for seq in back if seq in view.records and seq not in one.finished]
        if back:
            broken(f"{where}: {back} were finished and come again: {one}")
        passes = (facts.filter,) if facts.filter is not None else ()
        for seq, record in view.records.items():
            if seq <= facts.start[1] or seq in facts.maybe_finished or seq not in one.finished:
                continue
            if facts.is_steady and lets_through(passes, written(record)) and not facts.buries:
                broken(f"{where}: seq {seq} is finished, and nobody has acked it: {one}")
        self._judge_missed(truth, facts, one, view)
        self.checked["groups"] += 1

    def _judge_missed(self, truth: Truth, facts: GroupFacts, one: GroupSeen, view: View) -> None:
        instance = facts.instance
        absent = [seq for seq in range(facts.start[0] + 1, view.head + 1) if seq not in view.records]
        gapless = not view.gaps and not instance.retained and not instance.lost and not truth.rot
        most = 0 if gapless else len(absent)
        if one.missed > most:
            broken(f"{view.name}/{facts.name}: {one.missed} are missed, of {absent}; gaps {view.gaps}")

    def restarted(self, truth: Truth, shown: Shown) -> None:
        """A new life begins with these."""
        for instance, groups in self.groups.items():
            found = shown.get(instance.name, {}) if truth.latest(instance.name) is instance else {}
            for name in [name for name in groups if name not in found]:
                groups.pop(name).there = "no"
            for name, facts in groups.items():
                self._restart(truth, facts, found[name])

    @staticmethod
    def _restart(truth: Truth, facts: GroupFacts, one: GroupSeen) -> None:
        facts.there, facts.is_changing = "yes", False
        facts.on_the_way = facts.pausing = 0
        facts.pause, facts.pause_known = None, not one.paused and not facts.is_timed
        facts.options = [config for config in facts.options if terms_of(config) == one.terms][:1]
        facts.wishes = [one.filter]
        if "ephemeral" in facts.instance.ever:
            facts.start = (0, max(one.floor, facts.start[1]))
            facts.finished, facts.finished_since = {}, {}
        else:
            low, high = facts.start
            facts.start = (low, min(high, max(one.floor, low)))
        facts.finished = {seq: Promise.ALL for seq in facts.finished if seq in one.finished}
        facts.finished_since = {seq: at for seq, at in facts.finished_since.items() if seq in facts.finished}
        facts.maybe_finished = set(one.finished) | set(facts.finished)
        for lease in facts.leases.values():
            lease.over |= truth.clock_moved or not lease.durable or "ephemeral" in lease.instance.ever
