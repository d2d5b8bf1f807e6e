"""The simulator says so when something is wrong with jobs: each test has a broken build, and seeds that show it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from msgspec import UNSET

from tests.simulator.attempt import problem_of
from tests.simulator.jobs.job_facts import typed
from tests.simulator.plan import make
from topics.engine.job_queue import JobQueue
from topics.engine.operations import new_jobs, unique_jobs
from topics.model import ClaimRate, RetryPolicy
from topics.queue import key_order
from topics.queue.claim_limits import ClaimLimits


def problems(seeds: range) -> list[str]:
    """What is wrong with these seeds, until one fails."""
    for seed in seeds:
        problem = problem_of(make(seed))[0]
        if problem is not None:
            return [problem]
    return []


def test_a_config_of_a_plan_gets_the_types_that_a_config_has() -> None:
    patch = typed({"retry": {"delay_ms": 5}, "rate": {"jobs": 1, "per_ms": 100}, "dead_letter": None})
    assert patch == {
        "retry": RetryPolicy(delay_ms=5),
        "rate": ClaimRate(jobs=1, per_ms=100),
        "dead_letter": None,
    }
    assert UNSET not in patch.values()


def test_jobs_that_come_in_a_pause_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JobQueue, "paused", property(lambda self: False))
    assert any("given out in a pause" in problem for problem in problems(range(3)))


def test_claims_beyond_the_limits_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClaimLimits, "room", lambda self, *_: sys.maxsize)
    assert any("were given out" in problem for problem in problems(range(4)))


def test_a_job_that_comes_early_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = new_jobs.enqueue_event

    def without_delays(jobs: Any, *args: Any) -> Any:
        return original(jobs._replace(delays=[0] * len(jobs.delays)), *args)

    monkeypatch.setattr("topics.engine.operations.append.enqueue_event", without_delays)
    assert any("is not for" in problem for problem in problems(range(3)))


def test_a_job_that_is_stored_twice_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_jobs, "_find", lambda *_: 0)
    assert any("was stored at" in problem for problem in problems(range(4)))


def test_jobs_that_come_out_of_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_order, "hash_of", lambda key: key_order.KEYLESS)
    assert any("of the same key is unfinished" in problem for problem in problems(range(2)))


def test_a_job_that_comes_again_at_once_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.job_queue.RetryDelay", lambda *args: None)
    assert any("was delayed to" in problem for problem in problems(range(29, 30)))
