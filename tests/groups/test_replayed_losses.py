"""What a group has missed, after a replay of its events: evictions are told to it only at the end."""

from __future__ import annotations

from array import array

import pytest

from tests.groups.test_group import NOW, PUT, append, claim
from topics.groups.group import Group
from topics.log.topic_log import TopicLog
from topics.queue.lease_events import AckEvent, ClaimEvent, Event, ReopenEvent


class Lived:
    """A group that lives, and the events that a replay of it would find."""

    def __init__(self) -> None:
        self.log, self.group = TopicLog(), Group("g", PUT)
        append(self.log, 10)
        self.events: list[Event] = []

    def commit(self, event: Event) -> None:
        self.events.append(event)
        self.group.apply(event)

    def claim(self, most: int) -> None:
        seqs = claim(self.group, self.log, most, NOW)
        self.events.append(ClaimEvent("n", seqs, array("Q", range(1, len(seqs) + 1)), NOW.after(1000)))

    def reopen(self, *seqs: int) -> None:
        group = self.group
        self.commit(ReopenEvent(array("Q", seqs), group.finished.floor, group.missed, self.log.earliest_seq))

    def evict_below(self, seq: int) -> None:
        self.log.evict_below(seq, "cap")
        self.group.advance(self.log)

    def replayed(self) -> Group:
        group = Group("g", PUT)
        for event in self.events:
            group.apply(event)
        group.settle(self.log, lambda call: call())
        group.check()
        return group


@pytest.mark.parametrize("is_claimed_again", [False, True])
def test_a_reopened_record_that_was_evicted_is_missed(is_claimed_again: bool) -> None:
    lived = Lived()
    lived.claim(4)
    lived.commit(AckEvent(array("Q", [1, 2, 3, 4])))
    lived.reopen(2, 3)
    if is_claimed_again:
        lived.claim(1)
    lived.evict_below(4)
    assert (lived.group.missed, lived.replayed().missed) == (2, 2)


def test_what_was_missed_before_a_record_was_reopened_is_missed_once() -> None:
    lived = Lived()
    lived.claim(5)
    lived.commit(AckEvent(array("Q", [4, 5])))
    lived.evict_below(4)  # 1 to 3 were leased
    lived.reopen(4)
    lived.evict_below(5)
    lived.reopen(5)
    assert (lived.group.missed, lived.replayed().missed) == (4, 4)
    lived.evict_below(6)
    again = lived.replayed()
    assert (lived.group.missed, again.missed, again.finished.floor) == (5, 5, lived.group.finished.floor)
