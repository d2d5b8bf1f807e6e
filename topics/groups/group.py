"""One group of a log: what it has finished, which node holds which record, and what it has missed
(`docs/spec/consumers.md` section 4). Pure.

Theory of operation
-------------------

A group is a queue whose acks delete nothing. Its *records* are the live records of the log that it has not finished. So
`Leases`, which knows the jobs of a queue, serves it as it is: an acked job is gone for both, because the record is
deleted there and finished here, and fresh jobs come from `fresh`, which leaves out what is finished.

    floor     every seq up to it is finished, or its record is gone          FinishedRuns
    runs      what is finished above it                                      FinishedRuns
    held      what is leased, delayed, parked, or free for another delivery   Leases
    the rest  never given to anybody

*The floor* moves over finished seqs at once, and over records that are gone when the log is asked (`advance`). Of
those, what was lost to caps, ttl or holes is added to `missed`; what clients have deleted is not.

*The filter.* Records that it refuses count as finished once they were looked at. Nothing is logged for that: after a
crash they are looked at again. The caller looks (`looked`), because it may have to read a disk; what matches waits in
`matched`, so that claims find it without a look. Without a filter nothing is looked at.

*In order for each key.* The lines (`topics.queue.key_order`) begin behind the floor, at a start and after a change of
the order or of the filter. They are told of every record that the group has not finished: those that match, and those
that somebody holds. The latter have no key if the filter refuses them now. The filter and the keys are looked at in one
pass; then what matches waits in the lines instead of in `matched`.

*So many of each key at a time.* With a limit (`topics.queue.key_limit`) fresh records that match wait there instead.

*Bounds.* With `max_unfinished` seqs held and runs together `fresh` finds nothing but the record right above the floor:
to finish that adds no run, and without it a group whose runs alone reach the bound would stand still.

What can never happen: a finished seq is given out again; a seq up to the floor is held; the floor passes a live record
that is neither finished nor was refused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any, Final, NamedTuple

from topics.filters.record_filter import Filter, parse_filter
from topics.groups.finished_runs import FinishedRuns
from topics.groups.group_events import PutGroupEvent, check_filter_text, terms_to_wire
from topics.log.dumped_values import whole
from topics.log.topic_config import config_from_wire
from topics.log.topic_log import SeqRun, TopicLog
from topics.queue.job_projection import FrozenLeases
from topics.queue.key_limit import KeyLimit
from topics.queue.key_order import KeyOrder, KeyTerms
from topics.queue.lease_events import AckEvent, DeadLetterEvent, Event
from topics.queue.leases import Leases, NextLive
from topics.queue.limited_claims import FreshRoom
from topics.runtime.instant import Instant

EXACT_RUNS: Final = 256
"""Runs whose live records are counted one run after another; with more of them each counts as its length."""

_VERSIONS: Final = count(1)


class Group:
    """One group as it is published."""

    __slots__ = (
        "filter",
        "finished",
        "held_to",
        "leases",
        "looked_to",
        "matched",
        "max_unfinished",
        "missed",
        "name",
        "terms",
        "version",
        "wanted",
    )

    def __init__(self, name: str, put: PutGroupEvent) -> None:
        self.name = name
        self.terms = put.terms
        self.filter = put.filter
        """The JSON of the records that it is for; None for all."""
        self.wanted: Filter | None = None if put.filter is None else parse_filter(put.filter)
        self.max_unfinished = put.max_unfinished
        self.leases = Leases()
        self.leases.gone_below(put.seq + 1)
        self.finished = FinishedRuns(put.seq)
        self.missed = 0
        """Records that were lost before they were finished."""
        self.looked_to = put.seq
        """With a filter: up to here records were looked at."""
        self.held_to = 0
        """With an order: up to here there may be held records that are not in the lines yet."""
        self.matched: array[int] = array("Q")
        """With a filter: records that were looked at, match, and were given to nobody yet; ascending."""
        self.version = next(_VERSIONS)
        """Another one after every change, so that a dump can be used again. No two groups have the same."""

    def touch(self) -> None:
        """Note that it has changed."""
        self.version = next(_VERSIONS)

    def change(self, put: PutGroupEvent) -> None:
        """Take other settings. What another filter has refused stays finished; what it has let through and nobody has
        got yet is looked at again."""
        self.touch()
        self.terms, self.max_unfinished = put.terms, put.max_unfinished
        if put.filter == self.filter:
            return
        self.filter = put.filter
        self.wanted = None if put.filter is None else parse_filter(put.filter)
        self.begin_keys(self.leases.key_terms)

    def begin_keys(self, terms: KeyTerms | None) -> None:
        """Give out the records of one key by other terms from here on; None: without any. Records that were looked at,
        and that nobody has got yet, are looked at again."""
        self.leases.begin_keys(terms, self.finished.floor)
        self.matched = array("Q")
        rule = self.leases.key_rule
        self.looked_to = max(self.finished.floor, self.leases.cursor) if rule is None else rule.looked_to
        if isinstance(rule, KeyOrder):
            self.held_to = self.leases.last_kept
            rule.reopen(self.leases.kept_between(1, self.finished.floor))

    def reopened(self, seqs: Iterable[int]) -> None:
        """Note records that the group has to finish again, in whatever state they are."""
        if isinstance(self.leases.key_rule, KeyOrder):
            self.leases.key_rule.reopen(seqs)

    # -- as it is ----------------------------------------------------------------------------------------------------

    def lag(self, log: TopicLog) -> int:
        """Return how many seqs are above the floor."""
        return max(log.head_seq - self.finished.floor, 0)

    def count(self, log: TopicLog) -> int:
        """Return how many live records the group has not finished; what was not looked at counts. Never raises: where
        columns are not in memory the answer may be a little high."""
        runs = self.finished
        live = live_in(log, runs.floor + 1, log.head_seq)
        if log.count == log.head_seq - log.earliest_seq + 1 or len(runs) > EXACT_RUNS:
            live -= runs.total
        else:
            live -= sum([live_in(log, first, last) for first, last in runs.runs()])
        return max(live, len(self.leases))

    def ready(self, log: TopicLog) -> int:
        """Return how many records can be claimed, or are about to be."""
        return self.leases.ready(self.count(log))

    @property
    def room(self) -> int:
        """How many fresh records it may have besides; none if it is not above 0. Held records with an event on its way
        count twice meanwhile."""
        return self.max_unfinished - len(self.leases) - self.leases.reserved - len(self.finished)

    def fresh_room(self, log: TopicLog) -> FreshRoom:
        """Return which fresh records a claim may have. The floor has to be where it can be (`advance`)."""
        rule = self.leases.key_rule
        head = log.head_seq if rule is not None and self._may_look(rule.looked_to) else 0
        return FreshRoom(self.room, self.finished.floor + 1, head)

    def fresh(self, log: TopicLog) -> NextLive:
        """Return what a claim asks for fresh records: of all its calls together they are as many as there is room for.
        Calls raise NotLoaded."""
        room, always, _ = self.fresh_room(log)

        def next_live(after: int, limit: int) -> array[int]:
            nonlocal room
            found = self._live_after(log, after, min(limit, max(room, 1)))
            if room <= 0 and found and found[0] != always:
                return array("Q")
            room -= len(found)
            return found

        return next_live

    def _live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first records above `after` that were never given to anybody, at most `limit`, ascending."""
        found: array[int] = array("Q")
        if self.wanted is not None:
            at = bisect_right(self.matched, after)
            live = log.index.only_live(self.matched[at : at + limit])
            return array("Q", [seq for seq in live if seq not in self.finished])
        while len(found) < limit and (seqs := self.live_after(log, after, limit - len(found))):
            found.extend([seq for seq in seqs if not self.leases.is_kept(seq)])
            after = seqs[-1]
        return found

    def live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first `limit` live records above `after` that the group has not finished, ascending. Raises
        NotLoaded."""
        found: array[int] = array("Q")
        after = self.finished.end_of_run(after + 1)
        while len(found) < limit and (step := log.step(after, limit)) is not None:
            if isinstance(step, SeqRun):
                for first, last in self.finished.outside(step.first, step.last):
                    found.extend(range(first, min(last, first + limit - len(found) - 1) + 1))
            after = self.finished.end_of_run(step.last + 1)
        return found

    # -- looking -----------------------------------------------------------------------------------------------------

    def must_look(self, log: TopicLog, most: int) -> bool:
        """Return True if records have to be looked at before `most` of them can be claimed, and there are some."""
        rule = self.leases.key_rule
        if rule is not None:
            if self.leases.must_look_at_kept(most):
                return True
            return rule.must_look(most, log.head_seq) and self._may_look(rule.looked_to)
        if self.wanted is None or self.looked_to >= log.head_seq or not self._may_look(self.looked_to):
            return False
        waiting = len(self.matched) - bisect_right(self.matched, self.leases.cursor)
        return waiting + self.leases.kept_free < most

    def _may_look(self, looked_to: int) -> bool:
        """Return True if there is room for what a look finds, or the next look may find what needs none."""
        held_to = self.held_to if isinstance(self.leases.key_rule, KeyOrder) else 0
        return self.room > 0 or looked_to <= max(self.finished.floor, held_to)

    def looked(self, log: TopicLog, to: int, matches: Sequence[int], keys: Sequence[str | None] = ()) -> None:
        """Note that the records behind `looked_to` up to `to` were looked at, and which of them match, ascending. With
        `key_terms`, `keys` are those of the matches."""
        if to <= self.looked_to:
            return
        self.touch()
        first = self.looked_to + 1
        is_kept = self.leases.is_kept  # after a start: what was held is served as such, and never fresh again
        fresh = [seq for seq in matches if seq >= first and seq not in self.finished and not is_kept(seq)]
        for seq in [*fresh, to + 1]:
            if first < seq:
                self._finish(log, first, seq - 1)
            first = seq + 1
        self.looked_to = to
        if self.leases.key_rule is not None:
            self._add_with_keys(self.leases.key_rule, to, matches, keys)
            return
        del self.matched[: bisect_right(self.matched, self.leases.cursor)]
        self.matched.extend(fresh)

    def _add_with_keys(
        self, rule: KeyOrder | KeyLimit, to: int, matches: Sequence[int], keys: Sequence[str | None]
    ) -> None:
        first, key_of = rule.looked_to + 1, dict[int, str | None]()
        if isinstance(rule, KeyOrder):
            key_of.update(dict.fromkeys(self.leases.kept_between(first, to)))
        for seq, key in zip(matches, keys, strict=True):
            if seq >= first and seq not in self.finished:
                key_of[seq] = key
        seqs = self.leases.to_look_at(array("Q", sorted(key_of)))
        rule.add(seqs, [key_of[seq] for seq in seqs])
        rule.looked_to = to

    def _finish(self, log: TopicLog, first: int, last: int) -> None:
        for a, b in self.finished.outside(first, last):
            for c, d in self._not_held(a, b):
                self.missed += lost_between(log, c, d)
                self.finished.add(c, d)

    def _not_held(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return the parts of a range that nobody holds: after a change of the filter some may be held."""
        parts = []
        for seq in self.leases.kept_between(first, last):
            if first < seq:
                parts.append((first, seq - 1))
            first = seq + 1
        if first <= last:
            parts.append((first, last))
        return parts

    # -- what has happened -------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> array[int]:
        """Carry out an event about leases, at its commit point or in replay. Return the seqs that it changed."""
        self.touch()
        done = self.leases.apply(event)
        if isinstance(event, AckEvent | DeadLetterEvent):
            self.finished.add_seqs(event.seqs)
        return done

    def gone(self, seqs: Iterable[int]) -> array[int]:
        """Forget the records of `seqs`, which were deleted. Return those whose lease has ended by that."""
        self.touch()
        if self.matched:
            dead = set(seqs)
            seqs = sorted(dead)
            if not dead.isdisjoint(self.matched):
                self.matched = array("Q", [seq for seq in self.matched if seq not in dead])
        return self.leases.gone(seqs)

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> array[int]:
        """Forget the records from `first` to `last` that are not live any more, because of damage. Return those whose
        lease has ended by that."""
        self.touch()
        if self.matched:
            self.matched = live_among(self.matched)
        return self.leases.forget_dead(first, last, live_among)

    def advance(self, log: TopicLog) -> None:
        """Move the floor over what is finished or gone, and count what was missed. Raises NotLoaded; the floor has
        moved as far as it could then."""
        runs = self.finished
        if log.earliest_seq > runs.floor + 1:
            self._pass(log, log.earliest_seq - 1)
            self.leases.gone_below(log.earliest_seq)
        while runs.floor < log.head_seq:
            live = log.index.next_live(runs.floor + 1)
            to = log.head_seq if live is None else live - 1
            if to <= runs.floor:
                break
            self._pass(log, to)

    def _pass(self, log: TopicLog, to: int) -> None:
        """Move the floor to `to`, below which nothing is live and unfinished."""
        missed = sum([lost_between(log, first, last) for first, last in self.finished.outside(1, to)])
        self.touch()
        self.missed += missed
        self.finished.add(self.finished.floor + 1, to)
        del self.matched[: bisect_right(self.matched, self.finished.floor)]

    def begin_at(self, head_seq: int) -> None:
        """Forget everything: the records of an `ephemeral` topic are gone after a start."""
        before, self.leases = self.leases, Leases()
        self.leases.dead_lettered, self.leases.paused_until = before.dead_lettered, before.paused_until
        self.leases.gone_below(head_seq + 1)
        self.finished = FinishedRuns(max(head_seq, self.finished.floor))
        self.looked_to = self.finished.floor
        self.matched = array("Q")
        self.touch()

    def move(self, leases: Leases) -> None:
        """Take its leases with other times: those of a start."""
        leases.gone_below(self.finished.floor + 1)
        self.leases = leases
        self.touch()

    def settle(self, log: TopicLog, run: Callable[[Callable[[], Any]], Any]) -> None:
        """Forget what is gone, at the end of a replay. `run` calls something that may need columns."""
        self.leases.gone_below(max(log.earliest_seq, self.finished.floor + 1))
        run(lambda: self.leases.reconcile(log.index.only_live))
        run(lambda: self.advance(log))
        self.looked_to = max(self.finished.floor, self.leases.cursor)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def freeze(self, now: Instant) -> FrozenGroup:
        """Return the applied state, never to change. O(pages + runs)."""
        head = [self.name, terms_to_wire(self.terms), self.filter, self.max_unfinished, self.missed]
        return FrozenGroup(head, self.finished.dump(), self.leases.freeze(now))

    @classmethod
    def load(cls, head: object, finished: object, leases: Leases) -> Group:
        """Rebuild from the parts of a `FrozenGroup`. Raises ValueError if they are none."""
        match head:
            case [str(name), dict(terms), (str() | None) as text, most, missed]:
                check_filter_text(text)
                group = cls(name, PutGroupEvent(0, config_from_wire(terms), text, whole(most)))
                group.missed = whole(missed)
                group.finished = FinishedRuns.load(finished)
                group.leases = leases
                group.leases.gone_below(group.finished.floor + 1)
                group.looked_to = max(group.finished.floor, group.leases.cursor)
                return group
        raise ValueError("group: not a dump")

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        self.finished.check()
        self.leases.check()
        for seq in self.leases.kept_between(0, (1 << 64) - 1):
            assert seq not in self.finished or not self.leases.is_kept(seq), (seq, self.finished.floor)
        assert all(seq not in self.finished for seq in self.matched if seq > self.leases.cursor)
        assert list(self.matched) == sorted(set(self.matched))


class FrozenGroup(NamedTuple):
    """The state that `Group.freeze` returned, for `Group.load`."""

    head: list[Any]
    """Name, terms, filter, max_unfinished, missed."""
    finished: list[object]
    leases: FrozenLeases


def live_in(log: TopicLog, first: int, last: int) -> int:
    """Return how many records from `first` to `last` (inclusive) are live. Costs a step per span on the shorter side;
    where columns are not in memory it may be a little high."""
    first = max(first, log.earliest_seq)
    last = min(last, log.head_seq)
    if last < first:
        return 0
    if log.count == log.head_seq - log.earliest_seq + 1:
        return last - first + 1
    if last == log.head_seq and first - log.earliest_seq < last - first:
        return log.count - (live_in(log, log.earliest_seq, first - 1) if first > log.earliest_seq else 0)
    total = 0
    for span, a, b in log.index.parts(first, last + 1):
        if span.dense:
            total += b - a
        elif b - a >= span.n - span.start:
            total += span.live
        elif span.loaded:
            total += span.dead.count(0, a, b)
        else:
            total += min(span.live, b - a)
    return total


def lost_between(log: TopicLog, first: int, last: int) -> int:
    """Return how many records from `first` to `last` (inclusive), none of which is live, were lost and not deleted.
    Below the front the answer is as good as what is remembered there (`topics.log.losses`). Raises NotLoaded."""
    losses, front, lost = log.losses, log.earliest_seq, 0
    known = min(last, front - 1, losses.evict_floor - 1)
    if first <= known:
        deleted = losses.deleted_below(front, first) - losses.deleted_below(front, known + 1)
        lost = known - first + 1 - deleted
    for a, b in losses.inside_holes(max(first, front), last):
        lost += b - a + 1 - log.index.deleted_in(a, b + 1)
    return lost
