"""A deletion costs a group what it holds of it, not what is deleted: a topic may have 1,000 groups."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from tests.groups.test_group import NOW, ODD, PUT, append, claim, take
from topics.groups.group import Group
from topics.log.topic_log import TopicLog


class Unwalked(list[int]):
    """Seqs of which single ones can be looked at, but not all."""

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("it went through all of them")


def test_what_is_held_and_deleted_is_forgotten_without_a_look_at_all_that_is_deleted() -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 1000)
    assert list(claim(group, log, 4, NOW)) == [1, 2, 3, 4]
    dealt = take(group, log, 2, NOW)
    assert list(dealt) == [5, 6]
    dead = [2, 3, *range(6, 1001)]
    log.delete_seqs(dead)
    assert list(group.gone(Unwalked(dead))) == [2, 3]
    group.leases.abort(dealt)
    group.check()
    assert list(take(group, log, 100, NOW)) == [5]
    assert group.count(log) == 3


def test_a_group_that_holds_nothing_of_it_is_not_changed() -> None:
    log, group = TopicLog(), Group("g", PUT)
    append(log, 1000)
    claim(group, log, 1, NOW)
    before = group.version
    log.delete_seqs(range(2, 1001))
    assert list(group.gone(Unwalked(range(2, 1001)))) == []
    assert group.version == before, "its dump can be used again"


def test_records_that_match_and_wait_are_forgotten_too() -> None:
    log, group = TopicLog(), Group("g", PUT._replace(filter=ODD))
    append(log, 10)
    group.looked(log, 10, [1, 3, 5, 7, 9])
    log.delete_seqs([3, 4, 9])
    group.gone(Unwalked([3, 4, 9]))
    assert group.matched == array("Q", [1, 5, 7])
