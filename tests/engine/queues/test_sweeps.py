"""Freeing jobs in steps (`JobQueue.sweep`): decisions wait for it, but not for ever."""

from __future__ import annotations

from array import array
from itertools import count

import pytest

from topics.engine import job_queue
from topics.engine.job_queue import MOST_BEHIND_MS, JobQueue
from topics.model import TopicConfig
from topics.queue.job_pages import PAGE
from topics.queue.lease_events import ClaimEvent, EnqueueEvent
from topics.queue.leases import Leases
from topics.runtime.instant import Instant

CONFIG = TopicConfig(type="queue")
PAGES = 40
STEP = 40
"""Jobs that a step frees at most. Examining a page counts as more, so it examines one."""


def at(ms: int) -> Instant:
    return Instant(ms, ms, ms)


def late(pages: int, every_ms: int, times: int) -> JobQueue:
    """A queue in which each page has a job that becomes due every so many ms."""
    leases = Leases()
    seqs = [page * PAGE + 1 + slot for page in range(pages) for slot in range(times)]
    dues = [10 + page % every_ms + slot * every_ms for page in range(pages) for slot in range(times)]
    leases.apply(EnqueueEvent(array("Q", seqs), array("Q", dues), bytes([5] * len(seqs))))
    return JobQueue(leases)


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_queue, "SWEEP_SLICE", STEP)


def test_a_decision_waits_until_all_that_is_due_was_freed() -> None:
    queue = late(PAGES, 1, 1)
    assert queue.sweep(at(MOST_BEHIND_MS + 100), CONFIG)
    steps = next(n for n in count(1) if not queue.sweep(at(MOST_BEHIND_MS + 100), CONFIG))
    assert steps >= PAGES - 2
    assert queue.leases.delayed == 0
    assert queue.now == at(MOST_BEHIND_MS + 100)


def test_decisions_are_made_where_more_becomes_due_than_can_be_freed() -> None:
    queue = late(PAGES, 20, 200)
    waited = longest = 0
    for now in range(10, 3000):
        waited = waited + 1 if queue.sweep(at(now), CONFIG) else 0
        longest = max(longest, waited)
    assert longest <= 2 * PAGES
    assert queue.leases.behind(2999, 2999)
    assert queue.leases.delayed < PAGES * 200 * 0.35  # 150 of 200 are due


def test_leases_that_end_do_not_keep_late_jobs_from_becoming_free() -> None:
    queue = late(PAGES, 20, 1)
    seqs = array("Q", [(PAGES + page) * PAGE + slot for page in range(PAGES) for slot in range(100)])
    for slot in range(100):
        some = seqs[slot::100]
        queue.apply(ClaimEvent("a", some, some, at(9 + 20 * slot)))
    for now in range(10, 1500):
        queue.sweep(at(now), CONFIG)
    assert queue.leases.delayed == 0


def test_a_decision_frees_nothing_by_itself() -> None:
    queue = late(1, 1, 3)
    assert not queue.sweep(at(10), CONFIG)
    assert not queue.sweep(at(5), CONFIG)
    selection = queue.leases.decide_claim(9, at(12), lambda after, limit: (), 0)
    assert list(selection.seqs) == [1]
