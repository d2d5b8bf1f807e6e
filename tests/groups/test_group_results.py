"""Results of records that a group has again, and that are lost while the results wait."""

from __future__ import annotations

from array import array

import pytest

from tests.groups.test_group import NOW, PUT, append, claim
from topics.groups.group import Group
from topics.log.topic_log import TopicLog
from topics.queue.lease_events import AckEvent, CompleteEvent, DeliverEvent, ReopenEvent


@pytest.mark.parametrize("floor", [2, 0])
def test_a_record_that_came_back_and_whose_result_waits_is_not_missed(floor: int) -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 4)
    assert list(claim(group, log, 2, NOW)) == [1, 2]
    # With a floor of 2 the records 1 and 2 are exceptions below it.
    group.apply(AckEvent(array("Q", [1, 2] if floor else [2])))
    assert group.finished.floor == floor
    if floor:
        group.apply(ReopenEvent(array("Q", [1, 2]), 2, 0))
        assert list(claim(group, log, 2, NOW)) == [1, 2]
    group.apply(CompleteEvent("n", array("Q", [1]), (b"7",)))
    group.check()
    log.evict_below(3, "cap")
    group.advance(log)
    group.check()
    # Of the exceptions 2 had no result.
    assert group.missed == (1 if floor else 0)
    assert list(group.leases.results) == [1]
    group.apply(DeliverEvent(array("Q", [1])))
    assert not len(group.leases.results)
    assert group.finished.floor == 2
    group.check()
