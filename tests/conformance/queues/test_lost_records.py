"""Semantics 6: records that go while they are leased."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.conformance.client import Client, error_of
from tests.conformance.client import seqs_of as seqs_read
from tests.conformance.queue_client import LONG_MS, Counts, Queue, deliveries_of, new_queue, seqs_of
from tests.conformance.queues.calls import BY_SEQS, skipped


@pytest.fixture(params=["ready", "leased", "delayed"])
def hold(request: pytest.FixtureRequest) -> Callable[[Queue], None]:
    """What becomes of the first two jobs before they go."""

    def ready(queue: Queue) -> None:
        pass

    def leased(queue: Queue) -> None:
        assert seqs_of(queue.claim(most=2)) == [1, 2]

    def delayed(queue: Queue) -> None:
        leased(queue)
        queue.nack(1, 2, delay_ms=150)

    return {"ready": ready, "leased": leased, "delayed": delayed}[str(request.param)]


def are_gone(queue: Queue, *left: int) -> None:
    """Of the first two jobs nothing is left: no lease, no delay, nothing to claim."""
    for call in BY_SEQS:
        fields = {"lease_ms": LONG_MS} if call == "extend" else {}
        assert skipped(queue.call(call, node="worker", seqs=[1, 2], **fields)) == [1, 2]
    assert queue.counts() == Counts(ready=len(left))
    assert seqs_of(queue.claim("other", most=9)) == list(left)
    # Nor does anything come back when the delay is over.
    time.sleep(0.15)
    assert queue.counts() == Counts(in_flight=len(left))


def test_deleted_jobs_end_their_leases(client: Client, durability: str, hold: Callable[[Queue], None]) -> None:
    queue = new_queue(client, durability=durability)
    client.tagged(queue.topic, "a", "b", "c", "d")
    hold(queue)
    client.delete_records(queue.topic, before_seq=2)
    client.delete_records(queue.topic, match="b")
    queue.has_left(3, 4)
    are_gone(queue, 3, 4)


def test_evicted_jobs_end_their_leases_and_are_announced(
    client: Client, durability: str, hold: Callable[[Queue], None]
) -> None:
    queue = new_queue(client, 1, 2, 3, durability=durability, cap_records=3)
    hold(queue)
    queue.append(4, 5)
    gap = client.read(queue.topic)["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 2, "cap", 2)
    are_gone(queue, 3, 4, 5)


def test_a_tighter_cap_ends_leases(client: Client, hold: Callable[[Queue], None]) -> None:
    queue = new_queue(client, 1, 2, 3, 4)
    hold(queue)
    client.put_topic(queue.topic, cap_records=2)
    are_gone(queue, 3, 4)


def test_expired_jobs_end_their_leases_and_are_announced(client: Client, hold: Callable[[Queue], None]) -> None:
    queue = new_queue(client, 1, 2, ttl_ms=1500)
    hold(queue)
    time.sleep(1.6)
    client.put_topic(queue.topic, ttl_ms=10**9)
    queue.append(3)
    gap = client.read(queue.topic)["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 2, "ttl", 2)
    are_gone(queue, 3)


def test_what_has_expired_is_counted_no_more_by_the_first_look(client: Client) -> None:
    queue = new_queue(client, 1, 2, 3, ttl_ms=200)
    queue.claim(most=2)
    queue.nack(2, delay_ms=LONG_MS)
    time.sleep(0.3)
    assert queue.counts() == Counts()
    assert queue.claim("other", most=5) == []


def test_jobs_that_were_acked_are_not_missed(client: Client) -> None:
    queue = new_queue(client, *range(4), cap_records=4)
    queue.claim(most=2)
    queue.ack(2)
    queue.append(4, 5)
    answer = client.read(queue.topic)
    assert (answer["tombstone"]["reason"], answer["tombstone"]["missed_estimate"]) == ("cap", 1)
    assert seqs_read(answer) == [3, 4, 5, 6]
    assert queue.counts() == Counts(ready=4)


def test_an_ack_makes_room(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability, discard="reject", cap_records=2)
    queue.claim(most=2)
    error_of(client.send_append(queue.topic, 3), 422, "topic_full")
    queue.nack(2)
    error_of(client.send_append(queue.topic, 3), 422, "topic_full")
    queue.ack(1)
    assert queue.append(3) == [3]
    error_of(client.send_append(queue.topic, 4), 422, "topic_full")
    assert deliveries_of(queue.claim(most=9)) == {2: 2, 3: 1}


def test_a_change_of_class_keeps_leases(client: Client) -> None:
    queue = new_queue(client, *range(4), durability="disk")
    jobs = queue.claim(most=3)
    for durability in ("fsync", "memory", "ephemeral", "disk"):
        client.put_topic(queue.topic, durability=durability)
        assert queue.counts() == Counts(ready=1, in_flight=3)
    answer = queue.ack(*seqs_of(jobs), lease_ids=[job["lease_id"] for job in jobs])
    assert (answer["acked"], answer["ready"], answer["in_flight"]) == (3, 1, 0)
