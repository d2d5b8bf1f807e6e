"""The simulator says so when something is wrong with groups: each test has a broken build, and seeds that show it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.simulator.jobs.test_job_rules import problems
from topics.groups.group import Group
from topics.queue.lease_events import AckEvent


def test_acks_that_a_recovery_forgets_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Group.apply

    def forget(self: Group, event: Any) -> Any:
        if isinstance(event, AckEvent):
            return self.leases.apply(event)
        return original(self, event)

    monkeypatch.setattr(Group, "apply", forget)
    assert any("were finished and come again" in problem for problem in problems(range(5)))


def test_records_that_are_skipped_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Group.apply

    def skip(self: Group, event: Any) -> Any:
        done = original(self, event)
        after = event.seqs[-1] + 1 if isinstance(event, AckEvent) else 0
        if after and not self.leases.is_kept(after):
            self.finished.add(after, after)
        return done

    monkeypatch.setattr(Group, "apply", skip)
    assert problems(range(20))
