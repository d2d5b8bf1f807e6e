from __future__ import annotations

from array import array

from topics.queue.claim_order import Ages
from topics.queue.lease_events import EnqueueEvent
from topics.queue.leases import Leases
from topics.runtime.instant import Instant


def test_a_job_ages_from_its_record_or_from_its_time_if_that_is_later() -> None:
    ages = Ages({7: 1000}.__getitem__, 5000, 1000)
    assert ages.urgency(2, 7, 0) == 6
    assert ages.urgency(2, 7, 3500) == 3
    assert ages.urgency(2, 7, 500) == 6
    assert ages.urgency(6, 7, 0) == 9
    assert ages.urgency(2, 7, 9000) == 2
    assert ages._replace(aging_ms=0).urgency(2, 7, 0) == 2


def queue(*priorities: int, not_before: int = 0) -> Leases:
    leases = Leases()
    seqs = array("Q", range(1, len(priorities) + 1))
    leases.apply(EnqueueEvent(seqs, array("Q", [not_before] * len(seqs)), bytes(priorities)))
    return leases


def claimed(leases: Leases, limit: int, now: int, ts: int = 0) -> list[int]:
    ages = Ages(lambda seq: ts, now, 1000)
    return list(leases.decide_claim(limit, Instant(0, 0, now), lambda after, most: [], 0, ages).seqs)


def test_the_time_of_a_job_that_was_later_is_the_beginning_of_its_age() -> None:
    leases = queue(1, not_before=5000)
    leases.apply(EnqueueEvent(array("Q", [2]), array("Q", [0]), bytes([4])))
    assert claimed(leases, 1, 6000) == [2], "both have aged from the same record, and the first was later"


def test_as_many_jobs_are_looked_at_as_are_taken() -> None:
    looked: list[int] = []
    leases = queue(*[1, 9] * 500)

    def ts_of(seq: int) -> int:
        looked.append(seq)
        return 0

    found = leases.decide_claim(10, Instant(0, 0), lambda after, most: [], 0, Ages(ts_of, 0, 1000))
    assert list(found.seqs) == list(range(2, 22, 2))
    assert len(looked) <= 1, "nothing rises above 9"
