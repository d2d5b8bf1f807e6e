"""The simulator says so when something is wrong with schedules: each test has a broken build and seeds that show it."""

from __future__ import annotations

import pytest

from tests.simulator.jobs.test_job_rules import problems
from topics.engine.schedules.running_schedule import FiringAttachment
from topics.schedules.schedules import Schedule


def test_firings_without_their_times_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = FiringAttachment.__init__

    def init(self: FiringAttachment, *args: object) -> None:
        original(self, *args)  # type: ignore[arg-type]
        self.frames = []

    monkeypatch.setattr(FiringAttachment, "__init__", init)
    assert any("the schedule" in problem for problem in problems(range(5, 7)))


@pytest.mark.slow
def test_times_that_are_left_out_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Schedule._take
    calls: list[int] = []

    def take(self: Schedule, found: list[int], now: int) -> None:
        calls.append(now)
        if len(calls) % 5:
            original(self, found, now)

    monkeypatch.setattr(Schedule, "_take", take)
    assert any("left out a time" in problem for problem in problems(range(5, 20)))
