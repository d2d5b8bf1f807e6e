"""The simulator notices broken outcomes of jobs: each test has a broken build, and seeds that show it."""

from __future__ import annotations

from array import array
from typing import Any

import pytest

from tests.simulator.jobs.test_job_rules import problems
from topics.engine.queues.completions import Completions
from topics.engine.queues.job_lists import JobLists
from topics.log.dumped_values import little_endian
from topics.queue import key_order
from topics.queue.key_limit import KeyLimit


def test_results_that_are_lost_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def forget(self: Completions, *_: Any) -> None:
        return

    monkeypatch.setattr(Completions, "_append", forget)
    assert any("is lost" in problem for problem in problems(range(4)))


def test_results_that_are_delivered_twice_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Completions._append

    async def twice(self: Completions, *args: Any) -> None:
        await original(self, *args)
        await original(self, *args)

    monkeypatch.setattr(Completions, "_append", twice)
    assert any("was delivered 2 times" in problem for problem in problems(range(4)))


def test_a_letter_that_stays_behind_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion of a piece is logged without its first letter."""

    def without_first(seqs: array[int]) -> bytes:
        return little_endian(seqs[1:])

    monkeypatch.setattr("topics.engine.operations.member_commits.little_endian", without_first)
    assert any("places, of at most" in problem for problem in problems(range(12)))


def test_keys_with_too_many_jobs_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KeyLimit, "has_room", lambda self, key: True)
    assert any("of the key" in problem for problem in problems(range(1, 3)))


def test_jobs_out_of_their_order_are_noticed_where_letters_may_go_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "hash_of", lambda key: key_order.KEYLESS)
    assert any("more than 1 of the key" in problem for problem in problems(range(107, 108)))


def test_a_list_with_other_holders_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = JobLists._listed

    def of_another(self: JobLists, *args: Any) -> Any:
        shown = original(self, *args)
        return shown._replace(node="another") if shown.state == "in_flight" else shown

    monkeypatch.setattr(JobLists, "_listed", of_another)
    assert any("holds, and listed is" in problem for problem in problems(range(9, 20)))
