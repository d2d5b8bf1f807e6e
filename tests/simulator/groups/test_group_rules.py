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


def test_a_group_that_stands_still_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Group, "must_look", lambda *_: False)
    assert any("does not finish" in problem for problem in problems(range(12, 17)))


def test_records_that_go_nowhere_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups with dead letters too: what may have gone there is none of them."""
    original = Group.looked

    def refuse(self: Group, log: Any, to: int, *_: Any) -> None:
        original(self, log, to, (), ())

    monkeypatch.setattr(Group, "looked", refuse)
    assert any("came, of" in problem for problem in problems(range(15, 20)))
