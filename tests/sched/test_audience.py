"""Who waits for news of a topic, and in which of the three places."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import settle
from topics.sched.audience import Audience


@pytest.fixture
def audience() -> Audience[str]:
    one: Audience[str] = Audience()
    for consumer in "abc":
        one.consumers[consumer] = None
    return one


def places(audience: Audience[str]) -> tuple[str, str]:
    """Who is live, and who is due, in order."""
    return "".join(audience.live), "".join(audience.due)


def test_news_makes_due_who_has_everything(audience: Audience[str]) -> None:
    audience.set_live("a")
    audience.set_live("b")
    assert audience.news()
    assert places(audience) == ("", "ab")


def test_news_is_nothing_to_who_waits_for_something_else(audience: Audience[str]) -> None:
    audience.set_live("a")
    audience.set_aside("a")
    assert not audience.news()
    assert places(audience) == ("", "")


def test_a_consumer_is_in_one_place_at_a_time(audience: Audience[str]) -> None:
    for _ in range(2):
        audience.set_due("a")
        assert places(audience) == ("", "a")
        audience.set_live("a")
        assert places(audience) == ("a", "")
    audience.set_due("a")
    assert audience.next_due() == "a"
    assert places(audience) == ("", "")


def test_who_has_been_due_longest_is_first(audience: Audience[str]) -> None:
    for consumer in "cab":
        audience.set_due(consumer)
    audience.set_due("c")
    assert [audience.next_due() for _ in range(3)] == ["c", "a", "b"]


def test_more_news_does_not_change_the_order(audience: Audience[str]) -> None:
    audience.set_due("b")
    audience.set_live("a")
    audience.news()
    audience.set_live("c")
    audience.news()
    assert places(audience) == ("", "bac")


def test_it_is_empty_when_nobody_is_left(audience: Audience[str]) -> None:
    assert not audience.empty
    audience.consumers.clear()
    assert audience.empty


@pytest.mark.trio
async def test_all_polls_are_woken_at_once_and_once(nursery: trio.Nursery, autojump_clock: Any) -> None:
    audience: Audience[str] = Audience()
    woken: list[int] = []

    async def poll(number: int) -> None:
        await audience.poll()
        woken.append(number)

    for number in range(3):
        nursery.start_soon(poll, number)
    await settle()
    assert audience.waiting
    assert audience.news()
    assert not audience.empty
    assert woken == []
    audience.wake_polls()
    audience.wake_polls()
    await settle()
    assert sorted(woken) == [0, 1, 2]
    assert audience.empty
    assert not audience.news()


@pytest.mark.trio
async def test_a_cancelled_poll_costs_a_needless_turn_at_most(nursery: trio.Nursery, autojump_clock: Any) -> None:
    audience: Audience[str] = Audience()
    with trio.move_on_after(1):
        await audience.poll()
    assert audience.news()
    audience.wake_polls()
    assert audience.empty
