"""Section 9 and semantics 6: acks, nacks and extensions."""

from __future__ import annotations

import random
import time

import pytest

from tests.conformance.client import Client, body_of, invalid, until
from tests.conformance.queue_client import (
    LONG_MS,
    SHORT_MS,
    Counts,
    check_deadline,
    data_of,
    deliveries_of,
    new_queue,
    now_ms,
    seqs_of,
)
from tests.conformance.queues.calls import skipped

# Acks


def test_an_ack_deletes_the_job(client: Client, durability: str) -> None:
    queue = new_queue(client, 11, 222, 3333, durability=durability)
    queue.claim(most=3)
    answer = queue.ack(2)
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 0, 2)
    assert client.state(queue.topic)["bytes"] == 6
    queue.has_left(1, 3)
    answer = queue.ack(1)
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 0, 1)
    assert client.state(queue.topic)["bytes"] == 4
    queue.has_left(3)
    assert queue.ack(3)["in_flight"] == 0
    queue.has_left()
    state = client.state(queue.topic)
    assert (state["count"], state["bytes"], state["head_seq"], state["earliest_seq"]) == (0, 0, 3, 4)
    assert queue.append(4) == [4]
    assert queue.claim_one()["$seq"] == 4


@pytest.mark.parametrize("leases_durable", [False, True])
def test_the_life_of_jobs(client: Client, durability: str, leases_durable: bool) -> None:
    queue = new_queue(client, durability=durability, leases_durable=leases_durable)
    queue.append(*"abcd")
    assert data_of(queue.claim(most=3)) == ["a", "b", "c"]
    assert queue.extend(1)["extended"] == 1
    assert queue.nack(2)["nacked"] == 1
    assert queue.nack(3, delay_ms=60)["nacked"] == 1
    answer = queue.ack(1)
    assert (answer["acked"], answer["in_flight"]) == (1, 0)
    assert answer["ready"] in (2, 3)
    until(lambda: queue.counts() == Counts(ready=3))
    again = queue.claim("other", most=9)
    assert deliveries_of(again) == {2: 2, 3: 2, 4: 1}
    assert queue.ack(2, 3, 4, node="other")["acked"] == 3
    assert queue.counts() == Counts()
    queue.has_left()


def test_a_thousand_jobs_are_acked_at_once(client: Client, durability: str) -> None:
    queue = new_queue(client, *range(1000), durability=durability)
    jobs = queue.claim(most=1000)
    seqs = seqs_of(jobs)
    random.Random(5).shuffle(seqs)
    answer = queue.ack(*seqs)
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1000, [], 0, 0)
    queue.has_left()


def test_what_the_caller_does_not_hold_is_skipped(client: Client, call_by_seqs: str, durability: str) -> None:
    queue = new_queue(client, *range(6), durability=durability)
    fields = {"lease_ms": LONG_MS} if call_by_seqs == "extend" else {}
    queue.claim("a")
    queue.claim("b")
    queue.claim("a")
    queue.nack(3, node="a")
    queue.claim("a")
    queue.nack(3, node="a", delay_ms=LONG_MS)
    before = queue.counts()
    assert before == Counts(ready=3, in_flight=2, delayed=1)
    # Held by another, delayed, never claimed, and never there.
    strange = [2, 3, 4, 5, 6, 7, 0, 2**64 - 1]
    assert skipped(queue.call(call_by_seqs, node="a", seqs=strange, **fields)) == sorted(strange)
    assert skipped(queue.call(call_by_seqs, node="c", seqs=[1, 2], **fields)) == [1, 2]
    assert skipped(queue.call(call_by_seqs, node="A", seqs=[1], **fields)) == [1]
    assert queue.counts() == before
    queue.has_left(1, 2, 3, 4, 5, 6)
    mixed = queue.call(call_by_seqs, node="a", seqs=[2, 1, 5], **fields)
    assert sorted(mixed["skipped"]) == [2, 5]
    assert queue.ack(2, node="b")["acked"] == 1


def test_what_was_acked_is_skipped(client: Client, call_by_seqs: str) -> None:
    queue = new_queue(client, 1, 2)
    fields = {"lease_ms": LONG_MS} if call_by_seqs == "extend" else {}
    queue.claim(most=2)
    queue.ack(1)
    assert skipped(queue.call(call_by_seqs, node="worker", seqs=[1], **fields)) == [1]
    assert queue.counts() == Counts(in_flight=1)


def test_a_lease_that_is_over_is_skipped(client: Client, call_by_seqs: str, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    fields = {"lease_ms": LONG_MS} if call_by_seqs == "extend" else {}
    job = queue.claim_one(lease_ms=SHORT_MS)
    time.sleep(0.15)
    assert skipped(queue.call(call_by_seqs, node="worker", seqs=[1], **fields)) == [1]
    assert skipped(queue.call(call_by_seqs, node="worker", seqs=[1], lease_ids=[job["lease_id"]], **fields)) == [1]
    assert queue.counts() == Counts(ready=2)
    queue.has_left(1, 2)
    # Also when another has it by now.
    assert queue.claim_one("other")["deliveries"] == 2
    assert skipped(queue.call(call_by_seqs, node="worker", seqs=[1], **fields)) == [1]
    assert queue.ack(1, node="other")["acked"] == 1


def test_lease_ids_fence(client: Client, call_by_seqs: str, durability: str) -> None:
    """The same worker has the job again, and what it sends for its first lease does not touch the second."""
    queue = new_queue(client, 1, 2, durability=durability)
    fields = {"lease_ms": LONG_MS} if call_by_seqs == "extend" else {}
    first = queue.claim_one()
    queue.nack(1)
    second = queue.claim_one()
    assert (first["$seq"], second["$seq"]) == (1, 1)
    other = queue.claim_one("other")
    stale = {"seqs": [1], "lease_ids": [first["lease_id"]], **fields}
    assert skipped(queue.call(call_by_seqs, node="worker", **stale)) == [1]
    # The node is matched always.
    assert skipped(queue.call(call_by_seqs, node="x", **stale | {"lease_ids": [second["lease_id"]]})) == [1]
    crossed = {"seqs": [1, 2], "lease_ids": [other["lease_id"], second["lease_id"]], **fields}
    assert skipped(queue.call(call_by_seqs, node="worker", **crossed)) == [1, 2]
    assert queue.counts() == Counts(in_flight=2)
    answer = queue.call(
        call_by_seqs, node="worker", seqs=[2, 1], lease_ids=[other["lease_id"], second["lease_id"]], **fields
    )
    assert answer["skipped"] == [2]
    assert answer.get("acked", answer.get("nacked", answer.get("extended"))) == 1


@pytest.mark.parametrize(
    "text", ["", "lease_", "lease_zz", "lease", "x", "lease_" + "f" * 100, "LEASE_00", "lease_00 "]
)
def test_what_is_no_lease_id_is_no_current_lease(client: Client, call_by_seqs: str, text: str) -> None:
    """Whether it is refused or skipped is not said; that it is not the lease is."""
    queue = new_queue(client, 1)
    fields = {"lease_ms": SHORT_MS} if call_by_seqs == "extend" else {}
    queue.claim()
    answer = queue.send(call_by_seqs, node="worker", seqs=[1], lease_ids=[text], **fields)
    if answer.status_code == 400:
        invalid(answer, "lease_ids")
    else:
        assert skipped(body_of(answer)) == [1]
    assert queue.counts() == Counts(in_flight=1)


def test_a_repeated_seq_counts_once(client: Client) -> None:
    queue = new_queue(client, *range(3))
    jobs = queue.claim(most=3)
    answer = queue.extend(1, 1, 2, 9, 9)
    assert (answer["extended"], set(answer["deadlines"]), answer["skipped"]) == (2, {"1", "2"}, [9])
    answer = queue.nack(3, 3, 3)
    assert (answer["nacked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 1, 2)
    lease_ids = [job["lease_id"] for job in jobs]
    answer = queue.ack(2, 1, 2, 9, 9, lease_ids=[lease_ids[1], lease_ids[0], lease_ids[1], "lease_0", "lease_0"])
    assert (answer["acked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (2, [9], 1, 0)
    queue.has_left(3)


def test_an_answer_counts_what_has_become_ready_by_itself(client: Client) -> None:
    queue = new_queue(client, *range(6))
    queue.claim("brief", most=2, lease_ms=SHORT_MS)
    queue.claim(most=3)
    queue.nack(3, delay_ms=SHORT_MS)
    time.sleep(0.15)
    answer = queue.ack(4)
    assert (answer["ready"], answer["in_flight"]) == (4, 1)
    assert queue.call("claim", node="other", max=2)["ready"] == 2


# Nacks


def test_a_nack_makes_the_job_ready(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, 3, durability=durability)
    queue.claim(most=2)
    answer = queue.nack(2)
    assert (answer["nacked"], answer["skipped"], answer["ready"], answer["in_flight"]) == (1, [], 2, 1)
    assert queue.counts() == Counts(ready=2, in_flight=1)
    assert skipped(queue.ack(2)) == [2]
    queue.has_left(1, 2, 3)
    assert deliveries_of(queue.claim("other", most=9)) == {2: 2, 3: 1}


def test_a_nack_may_delay_the_job(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    queue.claim(most=2)
    began = now_ms()
    answer = queue.nack(1, delay_ms=400)
    assert (answer["nacked"], answer["ready"], answer["in_flight"]) == (1, 0, 1)
    counts, claimed = queue.counts(), queue.claim("early")
    if now_ms() < began + 390:
        assert (counts, claimed) == (Counts(in_flight=1, delayed=1), [])
    queue.has_left(1, 2)
    until(lambda: queue.counts().delayed == 0)
    assert now_ms() >= began + 390
    if not claimed:
        assert queue.counts() == Counts(ready=1, in_flight=1)
        assert queue.claim_one("late")["deliveries"] == 2


def test_delays_end_one_by_one(client: Client) -> None:
    queue = new_queue(client, *range(4))
    queue.claim(most=3)
    queue.nack(1, delay_ms=LONG_MS)
    queue.nack(2, delay_ms=150)
    queue.nack(3, delay_ms=300)
    until(lambda: queue.counts().delayed == 1)
    assert queue.counts() == Counts(ready=3, delayed=1)
    assert deliveries_of(queue.claim("other", most=9)) == {2: 2, 3: 2, 4: 1}


def test_a_delayed_job_is_nobodys(client: Client, call_by_seqs: str) -> None:
    queue = new_queue(client, 1)
    fields = {"lease_ms": LONG_MS} if call_by_seqs == "extend" else {}
    job = queue.claim_one()
    queue.nack(1, delay_ms=LONG_MS)
    assert skipped(queue.call(call_by_seqs, node="worker", seqs=[1], lease_ids=[job["lease_id"]], **fields)) == [1]
    assert queue.counts() == Counts(delayed=1)


# Extensions


def test_an_extended_lease_is_kept(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    jobs = queue.claim(most=2, lease_ms=1500)
    began = now_ms()
    answer = queue.extend(1, lease_ms=LONG_MS, lease_ids=[jobs[0]["lease_id"]])
    assert (answer["extended"], answer["skipped"], set(answer["deadlines"])) == (1, [], {"1"})
    check_deadline(answer["deadlines"]["1"], LONG_MS, began, now_ms())
    time.sleep(1.55)
    assert queue.counts() == Counts(ready=1, in_flight=1)
    assert deliveries_of(queue.claim("other", most=2)) == {2: 2}
    # It is the same lease still.
    assert queue.ack(1, lease_ids=[jobs[0]["lease_id"]])["acked"] == 1


def test_an_extension_may_shorten_a_lease(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    queue.claim(most=2)
    assert queue.extend(2, lease_ms=SHORT_MS)["extended"] == 1
    time.sleep(0.15)
    assert queue.counts() == Counts(ready=1, in_flight=1)
    assert skipped(queue.extend(2)) == [2]
    assert deliveries_of(queue.claim("other", most=2)) == {2: 2}


def test_a_lease_lives_as_long_as_it_is_extended(client: Client) -> None:
    queue = new_queue(client, 1)
    queue.claim(lease_ms=2000)
    for _ in range(5):
        time.sleep(0.45)
        assert queue.extend(1, lease_ms=2000)["extended"] == 1
        assert queue.claim("other") == []
    assert queue.ack(1)["acked"] == 1
