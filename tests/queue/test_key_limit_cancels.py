"""Jobs that wait for their key under a limit (`topics.queue.key_limit`), and are cancelled meanwhile."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import pytest

from topics.queue.job_pages import DEFAULT_PRIORITY
from topics.queue.key_order import KeyTerms
from topics.queue.lease_events import AckEvent, ClaimEvent, EnqueueEvent
from topics.queue.leases import UNBOUNDED, Leases
from topics.runtime.instant import Instant

NOW = Instant(0, 0)
SEQS = (1, 2, 3)


class LimitedQueue:
    """Three jobs of one key, of which one at a time is leased. The first one is."""

    def __init__(self, priority: int) -> None:
        self.leases = Leases()
        self.leases.begin_keys(KeyTerms("tag", 1))
        if priority != DEFAULT_PRIORITY:
            event = EnqueueEvent(array("Q", SEQS), array("Q", [0, 0, 0]), bytes([priority] * 3))
            assert list(self.leases.apply(event)) == [*SEQS]
        rule = self.leases.key_rule
        assert rule is not None
        fresh = self.leases.to_look_at(array("Q", SEQS))
        rule.add(fresh, ["a"] * len(fresh))
        rule.looked_to = SEQS[-1]
        assert self.claim() == [1]
        assert self.claim() == []

    def claim(self) -> list[int]:
        for seq in self.leases.without_key(10):
            self.leases.key_rule.learn(seq, "a")  # type: ignore[union-attr]
        seqs = self.leases.decide_claim(3, NOW, _all_live, 0, None, UNBOUNDED._replace(head=3)).seqs
        if seqs:
            self.leases.apply(ClaimEvent("n", seqs, array("Q", seqs), NOW.after(1000)))
        self.leases.check()
        return list(seqs)

    def cancel(self, *seqs: int) -> array[int]:
        event = self.leases.decide_cancel(seqs, NOW).event
        assert event is not None
        self.leases.check()
        return event.seqs

    def end(self, *seqs: int) -> None:
        self.leases.apply(AckEvent(array("Q", seqs)))
        self.leases.check()


def _all_live(after: int, limit: int) -> Sequence[int]:
    return [seq for seq in SEQS if seq > after][:limit]


@pytest.mark.parametrize("priority", [DEFAULT_PRIORITY, 7])
def test_no_claim_gets_a_waiting_job_whose_cancellation_is_on_its_way(priority: int) -> None:
    queue = LimitedQueue(priority)
    cancelled = queue.cancel(2)
    queue.end(1)
    assert queue.claim() == [3]
    queue.end(*cancelled)
    queue.end(3)
    assert queue.claim() == []


@pytest.mark.parametrize("priority", [DEFAULT_PRIORITY, 7])
def test_a_waiting_job_whose_cancellation_has_failed_is_claimed_in_its_turn(priority: int) -> None:
    queue = LimitedQueue(priority)
    queue.leases.abort(queue.cancel(1, 2))
    queue.leases.check()
    assert queue.claim() == []
    queue.end(1)
    assert queue.claim() == [2]
    queue.end(2)
    assert queue.claim() == [3]
