"""The bounds of a group: they never keep it from going on, and what is finished costs nothing to pass."""

from __future__ import annotations

from array import array

import pytest

from tests.groups.test_group import NOW, ODD, PUT, again, append, claim, take
from topics.groups.finished_runs import FinishedRuns
from topics.groups.group import EXACT_RUNS, Group
from topics.log.topic_log import TopicLog
from topics.queue.lease_events import AckEvent, ClaimEvent


def test_where_nothing_is_held_runs_leave_room_for_one() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(max_unfinished=1))
    append(log, 6)
    for seq in (2, 4):  # a crash came before the claims of 1 and 3 were logged
        group.apply(ClaimEvent("n", array("Q", [seq]), array("Q", [seq]), NOW.after(1000)))
        group.apply(AckEvent(array("Q", [seq])))
    group = again(group, NOW)
    found = []
    while seqs := list(claim(group, log, 10, NOW)):
        assert list(claim(group, log, 10, NOW)) == [], "one is held"
        group.apply(AckEvent(array("Q", seqs)))
        found += seqs
    assert (found, group.lag(log)) == ([1, 3, 5, 6], 0)


def test_records_that_match_wait_as_far_as_the_refused_ones_between_them_leave_room() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(filter=ODD, max_unfinished=4))
    append(log, 100)
    assert group.most_matches(100) == 2
    group.looked(log, 40, range(1, 41, 2))  # more than that
    assert group.room < 0
    assert not group.must_look(log, 100)
    assert list(claim(group, log, 100, NOW)) == [1], "the one right above the floor"


def test_finished_records_are_passed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 10_000)
    log.delete_seqs([2])
    group.apply(ClaimEvent("n", array("Q", [1]), array("Q", [1]), NOW.after(60_000)))  # it holds the floor
    # A replay leaves the cursor below the deleted record.
    group.apply(ClaimEvent("n", array("Q", range(3, 10_001)), array("Q", range(3, 10_001)), NOW.after(1000)))
    group.apply(AckEvent(array("Q", range(3, 10_001))))
    assert group.leases.cursor < 3
    steps = 0
    step = TopicLog.step

    def counted(*args: int) -> object:
        nonlocal steps
        steps += 1
        return step(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(TopicLog, "step", counted)
    assert list(take(group, log, 1, NOW)) == []
    assert steps <= 3


def test_a_search_that_passes_many_held_records_goes_on_where_it_stopped() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(max_unfinished=100_000))
    append(log, 40_001)
    held = array("Q", range(2, 40_001))
    group.apply(ClaimEvent("n", held, held, NOW.after(60_000)))
    selection = group.leases.decide_claim(1, NOW, group.fresh(log), 0)
    assert list(selection.seqs) == [1]
    tries = 0
    while not (selection := group.leases.decide_claim(1, NOW, group.fresh(log), 0)).seqs:
        assert selection.more
        tries += 1
    assert (list(selection.seqs), tries) == ([40_001], 1)


def test_the_end_of_a_run() -> None:
    runs = FinishedRuns(3)
    runs.add_seqs([5, 6, 9])
    assert [runs.end_of_run(seq) for seq in range(11)] == [3, 3, 3, 3, 6, 6, 6, 7, 9, 9, 10]


def test_with_many_runs_deleted_records_do_not_make_the_rest_look_finished() -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 3010)
    assert len(claim(group, log, 1000, NOW)) == 1000  # all that the bound allows
    group.apply(AckEvent(array("Q", [seq for seq in range(1, 1001) if seq % 3])))
    assert len(group.finished) == 333 > EXACT_RUNS
    dead = [seq for seq in range(3, 1001) if seq % 3]
    log.delete_seqs(dead)
    group.gone(dead)
    group.advance(log)
    assert group.ready(log) >= 2010
