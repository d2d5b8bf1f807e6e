"""One group of a log: which records it has finished and missed, and which node holds which record
(`docs/spec/consumers.md` section 4). Pure.

Theory of operation
-------------------

A group is a queue whose acks delete nothing. Its *records* are the live records of the log that it has not finished. So
`Leases`, which knows the jobs of a queue, serves it as it is. An acked job is gone in a queue because its record is
deleted, in a group because the group has finished it: `fresh`, which finds fresh jobs, leaves out finished records.

    floor     every seq up to it is finished, or its record is gone          FinishedRuns
    runs      finished seqs above the floor                                  FinishedRuns
    held      leased, delayed, parked, completing, or free for more deliveries  Leases
    the rest  never given out

*The floor* moves over finished seqs at once, and over records that are gone when the log is asked (`advance`). Of
the latter, records lost to caps, ttl or holes are added to `missed`; records that clients have deleted are not.

*The filter.* Records that it refuses count as finished once they were looked at. Nothing is logged for that: after a
crash they are looked at again. The caller looks (`looked`), because it may have to read a disk; records that match wait
in `matched`, so that claims find them without a look. Without a filter nothing is looked at.

*Reopened records.* A redrive gives back a record that the group has finished (`ReopenEvent`): it is free, and held.
Above the floor it leaves its run, and the floor waits for it. Up to the floor it is an exception: all records that are
held there were reopened, and the floor does not go back.

*Results.* A record whose holder has finished it, and whose result is not delivered yet, is held. If it is lost
meanwhile, it counts as finished, and its result is delivered all the same.

*In order for each key.* The lines (`topics.queue.key_order`) begin behind the floor, at a start and after a change of
the order or of the filter. They are told of every record that the group has not finished: those that match, and those
that somebody holds. The latter have no key if the filter refuses them now. The filter and the keys are looked at in one
pass; then what matches waits in the lines instead of in `matched`.

*So many of each key at a time.* With a limit (`topics.queue.key_limit`) fresh records that match wait there instead.

*Bounds.* With `max_unfinished` seqs held and runs together `fresh` finds nothing but the record right above the floor.
Finishing that record adds no run; without it a group whose runs alone reach the bound would stand still. Matches that
wait leave runs of refused records between them, so they are at most half as many as there is room for.

What can never happen: a finished seq is given out again without having been reopened; the floor passes a live record
that is neither finished nor was refused.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
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
from topics.queue.lease_events import AckEvent, DeadLetterEvent, DeliverEvent, Event, ReopenEvent
from topics.queue.leases import Leases, NextLive
from topics.queue.limited_claims import FreshRoom
from topics.runtime.instant import Instant

EXACT_RUNS: Final = 256
"""Runs whose live records are counted one run after another; with more of them all that is dead above the floor is
taken for finished."""

_VERSIONS: Final = count(1)


class Group:
    """One group as it is published."""

    __slots__ = (
        "_may_have_exceptions",
        "filter",
        "finished",
        "held_to",
        "leases",
        "looked_to",
        "matched",
        "max_unfinished",
        "missed",
        "name",
        "reopening",
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
        self.leases.pass_to(put.seq)
        self.finished = FinishedRuns(put.seq)
        self.missed = 0
        """Records that were lost before they were finished."""
        self.looked_to = put.seq
        """With a filter: up to here records were looked at."""
        self.held_to = 0
        """With an order: up to here there may be held records that are not in the lines yet."""
        self.matched: array[int] = array("Q")
        """With a filter: records that were looked at, match, and were not given out yet; ascending."""
        self.reopening = 0
        """The most that records which are about to be reopened count in `max_unfinished` (`cost_of_reopening`)."""
        self._may_have_exceptions = False
        """False if nothing up to the floor is held. Looking costs a step for each page of held records."""
        self.version = next(_VERSIONS)
        """Another one after every change, so that a dump can be used again. No two groups have the same."""

    def touch(self) -> None:
        """Note that it has changed."""
        self.version = next(_VERSIONS)

    def change(self, put: PutGroupEvent) -> None:
        """Take other settings. Records that the old filter has refused stay finished; records that it has let through
        and that were not given out yet are looked at again."""
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
            self.held_to = self.leases.last_held
            rule.reopen(self.leases.kept_between(1, self.finished.floor))

    # -- as it is ----------------------------------------------------------------------------------------------------

    def lag(self, log: TopicLog) -> int:
        """Return how many seqs are above the floor."""
        return max(log.head_seq - self.finished.floor, 0)

    def count(self, log: TopicLog) -> int:
        """Return how many live records the group has not finished; records that were not looked at count.

        Never raises: where columns are not in memory, or there are many runs, the answer may be a little high. It is
        never too low, because claims look for nothing where nothing is ready.
        """
        runs = self.finished
        live = live_in(log, runs.floor + 1, log.head_seq)
        if len(runs) > EXACT_RUNS:
            dead = self.lag(log) - live
            live -= max(runs.total - dead, 0)
        else:
            live -= sum([live_in(log, first, last, at_least=True) for first, last in runs.runs()])
        return max(live + len(self.reopened_up_to(runs.floor)), len(self.leases))

    def ready(self, log: TopicLog) -> int:
        """Return how many records can be claimed, or are about to be."""
        return self.leases.ready(self.count(log))

    def reopened_up_to(self, seq: int) -> list[int]:
        """Return the records up to `seq`, or up to the floor, that were reopened below the floor and are not finished
        again, ascending."""
        if not self._may_have_exceptions:
            return []
        exceptions = self.leases.kept_up_to(self.finished.floor)
        self._may_have_exceptions = bool(exceptions)
        return exceptions[: bisect_right(exceptions, seq)]

    def is_finished(self, seq: int) -> bool:
        """Return True if the group is done with this seq, unless it was reopened."""
        return seq in self.finished and not self.leases.is_kept(seq)

    @property
    def passed_to(self) -> int:
        """Up to this seq it needs no records: the floor, or the seq before the first reopened record below it."""
        return min(self.reopened_up_to(self.finished.floor), default=self.finished.floor + 1) - 1

    @property
    def room(self) -> int:
        """How many fresh records it may have besides; none if it is not above 0. Held records with an event on its way
        count twice meanwhile."""
        held = len(self.leases) + self.leases.reserved + self.reopening
        return self.max_unfinished - held - len(self.finished)

    def cost_of_reopening(self, seq: int) -> int:
        """Return what `max_unfinished` counts more at most when it has a finished record again: above the floor its run
        may become two."""
        return 1 if seq <= self.finished.floor else 2

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
            found = self._live_after(log, after, limit)
            # Those that are kept take no room. They are in the answer, so that the cursor passes them for good.
            fresh = [i for i, seq in enumerate(found) if not self.leases.is_kept(seq)]
            most = max(room, 0)
            if most == 0 and fresh and found[fresh[0]] == always:
                most = 1
            if len(fresh) > most:
                del found[fresh[most] :]
            room -= len(fresh)
            return found

        return next_live

    def _live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first records above `after` that are not finished, at most `limit`, ascending."""
        if self.wanted is not None:
            at = bisect_right(self.matched, after)
            live = log.index.only_live(self.matched[at : at + limit])
            return array("Q", [seq for seq in live if seq not in self.finished])
        return self.live_after(log, after, limit)

    def live_after(self, log: TopicLog, after: int, limit: int) -> array[int]:
        """Return the first `limit` live records above `after` that the group has not finished, ascending. A step for
        each run that it passes. Raises NotLoaded."""
        found: array[int] = array("Q")
        after = self.finished.end_of_run(after)
        while len(found) < limit and (step := log.step(after, limit)) is not None:
            if isinstance(step, SeqRun):
                for first, last in self.finished.outside(step.first, step.last):
                    found.extend(range(first, min(last, first + limit - len(found) - 1) + 1))
            after = self.finished.end_of_run(step.last)
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
        return waiting + self.leases.kept_free < max(self.most_matches(most), 1)

    def most_matches(self, most: int) -> int:
        """Return how many records that match may wait, if `most` are wanted: there may be a run before each."""
        return min(most, (self.room + 1) // 2)

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
        is_kept = self.leases.is_kept  # after a start: jobs that were held are served as such, and never fresh again
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
        """Return the parts of a range that are not held: after a change of the filter some may be held."""
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
        if isinstance(event, ReopenEvent):
            return self._reopen(event)
        done = self.leases.apply(event)
        if isinstance(event, AckEvent | DeadLetterEvent | DeliverEvent):
            self.finished.add_seqs(event.seqs)
            self._unmatch(event.seqs)
        return done

    def _unmatch(self, seqs: Sequence[int]) -> None:
        """Forget that records match that were cancelled before they were given to anybody."""
        ended = {seq for seq in seqs if seq > self.leases.cursor}
        if ended and self.matched:
            self.matched = array("Q", [seq for seq in self.matched if seq not in ended])

    def _reopen(self, event: ReopenEvent) -> array[int]:
        self.leases.gone_below(event.front)  # in a replay: otherwise they would look like reopened ones, lost later
        self.finished.add(1, event.floor)
        self.missed = max(self.missed, event.missed)
        seqs = array("Q", [seq for seq in event.seqs if self.is_finished(seq)])
        for seq in seqs:
            self.finished.remove(seq)
        self._may_have_exceptions = True
        rule = self.leases.key_rule
        if isinstance(rule, KeyOrder) and self.wanted is None:
            # A look goes on behind the floor, and would pass over the reopened records below it.
            rule.looked_to = max(rule.looked_to, self.finished.floor)
        return self.leases.apply(event._replace(seqs=seqs))

    def gone(self, seqs: Sequence[int]) -> array[int]:
        """Forget the records of `seqs` (ascending), which were deleted. Return those whose lease has ended by that.

        Costs little if the group holds few of them: a topic may have 1,000 groups.
        """
        if not seqs:
            return array("Q")
        if any(_are_among(seqs, self.matched)):
            self.touch()
            dead = _are_among(seqs, self.matched)
            self.matched = array("Q", [seq for seq, is_dead in zip(self.matched, dead, strict=True) if not is_dead])
        leases = self.leases
        rule = leases.key_rule
        if len(leases) + leases.reserved + (rule.known if rule is not None else 0) < len(seqs):
            known = rule.known_between(seqs[0], seqs[-1]) if rule is not None else ()
            held = sorted({*leases.kept_between(seqs[0], seqs[-1]), *known})
            seqs = [seq for seq, is_dead in zip(held, _are_among(seqs, held), strict=True) if is_dead]
            if not seqs:
                return array("Q")
        self.touch()
        return leases.gone(seqs)

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> array[int]:
        """Forget the records from `first` to `last` that are not live any more, because of damage. Return those whose
        lease has ended by that."""
        self.touch()
        if self.matched:
            self.matched = live_among(self.matched)
        known = [seq for seq in self.reopened_up_to(last) if seq >= first]
        ended = self.leases.forget_dead(first, last, live_among)
        results, is_kept = self.leases.results, self.leases.is_kept
        self.missed += sum([seq not in results and not is_kept(seq) for seq in known])
        return ended

    def advance(self, log: TopicLog) -> None:
        """Move the floor over records that are finished or gone, and count those that were missed. Raises NotLoaded;
        the floor has then moved as far as it could."""
        runs = self.finished
        lost = self.reopened_up_to(log.earliest_seq - 1)
        if lost or log.earliest_seq > runs.floor + 1:
            missed = sum([lost_between(log, seq, seq) for seq in lost if seq not in self.leases.results])
            self._pass(log, log.earliest_seq - 1)
            self.missed += missed
            self.leases.gone_below(log.earliest_seq)
        while runs.floor < log.head_seq:
            live = log.index.next_live(runs.floor + 1)
            to = log.head_seq if live is None else live - 1
            if to <= runs.floor:
                break
            self._pass(log, to)

    def _pass(self, log: TopicLog, to: int) -> None:
        """Move the floor to `to`, below which nothing is live and unfinished."""
        if self.leases.results:
            self.finished.add_seqs([seq for seq in self.leases.results if self.finished.floor < seq <= to])
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
        leases.pass_to(self.finished.floor)
        self.leases = leases
        self._may_have_exceptions = True
        self.touch()

    def settle(self, log: TopicLog, run: Callable[[Callable[[], Any]], Any]) -> None:
        """Forget records that are gone, at the end of a replay. `run` calls something that may need columns."""
        self.leases.pass_to(self.finished.floor)
        run(lambda: self._forget_lost(log))
        run(lambda: self.leases.reconcile(log.index.only_live))
        run(lambda: self.advance(log))
        self.looked_to = max(self.finished.floor, self.leases.cursor)

    def _forget_lost(self, log: TopicLog) -> None:
        """Count and forget reopened records below the floor that are lost. Raises NotLoaded, and has done nothing."""
        known = self.reopened_up_to(self.finished.floor)
        live = set(log.index.only_live(array("Q", known)))
        dead = [seq for seq in known if seq not in live]
        self.missed += sum([lost_between(log, seq, seq) for seq in dead if seq not in self.leases.results])
        self.leases.gone(dead)

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
                group._may_have_exceptions = True
                group.leases.pass_to(group.finished.floor)
                group.looked_to = max(group.finished.floor, group.leases.cursor)
                return group
        raise ValueError("group: not a dump")

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        self.finished.check()
        self.leases.check()
        for seq in self.leases.kept_between(0, (1 << 64) - 1):
            reopened = seq <= self.finished.floor
            assert reopened or seq not in self.finished or not self.leases.is_kept(seq), (seq, self.finished.floor)
        assert all(seq not in self.finished for seq in self.matched if seq > self.leases.cursor)
        assert list(self.matched) == sorted(set(self.matched))


class FrozenGroup(NamedTuple):
    """The state that `Group.freeze` returned, for `Group.load`."""

    head: list[Any]
    """Name, terms, filter, max_unfinished, missed."""
    finished: list[object]
    leases: FrozenLeases


def _are_among(seqs: Sequence[int], asked: Sequence[int]) -> Iterator[bool]:
    """Yield for each of `asked` whether it is one of `seqs`, which ascend."""
    for seq in asked:
        at = bisect_left(seqs, seq)
        yield at < len(seqs) and seqs[at] == seq


def live_in(log: TopicLog, first: int, last: int, *, at_least: bool = False) -> int:
    """Return how many records from `first` to `last` (inclusive) are live. Costs a step per span on the shorter side;
    where columns are not in memory it may be a little high, or with `at_least` a little low."""
    first = max(first, log.earliest_seq)
    last = min(last, log.head_seq)
    if last < first:
        return 0
    if log.count == log.head_seq - log.earliest_seq + 1:
        return last - first + 1
    if last == log.head_seq and first - log.earliest_seq < last - first:
        below = live_in(log, log.earliest_seq, first - 1, at_least=not at_least) if first > log.earliest_seq else 0
        return log.count - below
    total = 0
    for span, a, b in log.index.parts(first, last + 1):
        if span.dense:
            total += b - a
        elif b - a >= span.n - span.start:
            total += span.live
        elif span.loaded:
            total += span.dead.count(0, a, b)
        elif at_least:
            total += max(span.live - (span.n - span.start - (b - a)), 0)
        else:
            total += min(span.live, b - a)
    return total


def lost_between(log: TopicLog, first: int, last: int) -> int:
    """Return how many records from `first` to `last` (inclusive), none of which is live, were lost and not deleted.
    Below the front the answer is as good as the topic's memory of lost seqs (`topics.log.losses`). Raises NotLoaded."""
    losses, front, lost = log.losses, log.earliest_seq, 0
    known = min(last, front - 1, losses.evict_floor - 1)
    if first <= known:
        deleted = losses.deleted_below(front, first) - losses.deleted_below(front, known + 1)
        lost = known - first + 1 - deleted
    for a, b in losses.inside_holes(max(first, front), last):
        lost += b - a + 1 - log.index.deleted_in(a, b + 1)
    return lost
