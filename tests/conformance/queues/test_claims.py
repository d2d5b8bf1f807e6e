"""Section 9 and semantics 6: claims."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.client import Client, body_of, has_data, running
from tests.conformance.queue_client import (
    LONG_MS,
    SHORT_MS,
    Counts,
    Queue,
    check_deadline,
    data_of,
    deliveries_of,
    new_queue,
    now_ms,
    seqs_of,
)
from tests.conformance.queues.calls import CALLS
from tests.conformance.test_data import AS_WRITTEN


def test_a_job_is_claimed_with_all_that_was_written(client: Client, durability: str) -> None:
    queue = new_queue(client, durability=durability)
    before = now_ms()
    queue.append(
        records=[{"data": {"x": 1.0}, "tag": "t", "node": "writer", "meta": {"k": "v"}}, {"data": None}, {"data": ""}]
    )
    after = now_ms()
    answer = queue.call("claim", node="worker", max=2)
    assert (answer["count"], answer["ready"]) == (2, 1)
    full, bare = answer["claimed"]
    assert before - 5 <= full.pop("$ts") <= bare.pop("$ts") <= after + 5
    for job in (full, bare):
        del job["lease_id"], job["deadline"]
    assert full == {
        "$seq": 1, "$tag": "t", "$node": "writer", "meta": {"k": "v"}, "data": {"x": 1.0}, "deliveries": 1,
    }  # fmt: skip
    assert bare == {"$seq": 2, "data": None, "deliveries": 1}


def test_data_is_claimed_byte_for_byte_as_it_was_written(client: Client, queue: Queue) -> None:
    for data in AS_WRITTEN:
        body_of(client.append_raw(queue.topic, data))
    for data in AS_WRITTEN:
        answer = queue.send("claim", node="n")
        assert has_data(answer, data), data


def test_a_worker_may_claim_what_it_wrote_itself(queue: Queue) -> None:
    queue.append(1, node="worker")
    assert queue.claim_one("worker")["$node"] == "worker"


def test_there_may_be_nothing_to_claim(client: Client, queue: Queue) -> None:
    answer = queue.call("claim", node="n", max=5)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)
    queue.append(1)
    queue.claim()
    answer = queue.call("claim", node="n", max=5)
    assert (answer["claimed"], answer["count"], answer["ready"]) == ([], 0, 0)
    assert client.state(queue.topic)["head_seq"] == 1


@pytest.mark.parametrize(
    ("most", "count"),
    [(None, 1), (0, 1), (-5, 1), (1, 1), (999, 999), (1000, 1000), (1001, 1000), (10**6, 1000), (10**30, 1000)],
)
def test_the_most_to_claim_is_clamped(client: Client, most: int | None, count: int) -> None:
    queue = new_queue(client, *range(1002))
    answer = queue.call("claim", node="n", **({} if most is None else {"max": most}))
    assert seqs_of(answer["claimed"]) == list(range(1, count + 1))
    assert (answer["count"], answer["ready"]) == (count, 1002 - count)
    assert queue.counts() == Counts(ready=1002 - count, in_flight=count)


@pytest.mark.parametrize(
    ("asked", "lease_ms"),
    [(1, 100), (0, 100), (-5, 100), (100, 100), (2500, 2500), (86_400_000, 86_400_000), (10**12, 86_400_000)],
)
def test_a_lease_is_as_long_as_asked_for_within_bounds(client: Client, asked: int, lease_ms: int) -> None:
    queue = new_queue(client, 1, 2)
    began = now_ms()
    job = queue.claim_one(lease_ms=asked)
    check_deadline(job["deadline"], lease_ms, began, now_ms())
    other = queue.claim_one()
    began = now_ms()
    deadlines = queue.extend(other["$seq"], lease_ms=asked)["deadlines"]
    check_deadline(deadlines[str(other["$seq"])], lease_ms, began, now_ms())


def test_a_lease_is_as_long_as_configured_if_nothing_is_asked_for(client: Client) -> None:
    queue = new_queue(client, *range(4))
    for config, lease_ms in (({}, 30_000), ({"lease_ms": 7000}, 7000), ({"lease_ms": 1}, 100)):
        client.put_topic(queue.topic, **config)
        began = now_ms()
        (job,) = queue.call("claim", node="n")["claimed"]
        check_deadline(job["deadline"], lease_ms, began, now_ms())


def test_a_configured_lease_is_for_claims_that_come_after_it(client: Client) -> None:
    queue = new_queue(client, 1, lease_ms=LONG_MS)
    queue.call("claim", node="worker")
    client.put_topic(queue.topic, lease_ms=SHORT_MS)
    time.sleep(0.2)
    assert queue.counts() == Counts(in_flight=1)
    assert queue.ack(1)["acked"] == 1


@pytest.mark.parametrize(
    ("call", "extremes"), [("claim", {"wait_ms": -5}), ("claim", {"wait_ms": 10**12}), ("nack", {"delay_ms": -5})]
)
def test_waits_and_delays_are_clamped(client: Client, call: str, extremes: dict[str, int]) -> None:
    queue = new_queue(client, 1, 2)
    queue.claim("n")
    queue.call(call, **CALLS[call], **extremes)
    assert queue.counts() == (Counts(in_flight=2) if call == "claim" else Counts(ready=2))


def test_a_delay_is_at_most_a_day(client: Client) -> None:
    queue = new_queue(client, 1)
    queue.claim()
    assert queue.nack(1, delay_ms=10**30)["nacked"] == 1
    assert queue.counts() == Counts(delayed=1)


def test_what_was_given_back_comes_before_what_is_fresh_smallest_first(client: Client, durability: str) -> None:
    queue = new_queue(client, *range(1, 8), durability=durability)
    assert seqs_of(queue.claim(most=5)) == [1, 2, 3, 4, 5]
    queue.nack(4)
    queue.nack(2)
    queue.nack(3)
    assert seqs_of(queue.claim("a")) == [2]
    jobs = queue.claim("b", most=3)
    assert deliveries_of(jobs) == {3: 2, 4: 2, 6: 1}
    assert deliveries_of(queue.claim("c", most=3)) == {7: 1}


def test_deliveries_count_up(client: Client) -> None:
    queue = new_queue(client, 1, max_deliveries=2)
    lease_ids = set()
    for deliveries in range(1, 7):
        job = queue.claim_one(f"worker-{deliveries}")
        assert job["deliveries"] == deliveries
        lease_ids.add(job["lease_id"])
        queue.nack(1, node=f"worker-{deliveries}")
    assert len(lease_ids) == 6
    assert queue.counts() == Counts(ready=1)


def test_a_lease_that_is_over_comes_again(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, 3, durability=durability)
    first = queue.claim(most=2, lease_ms=2000)
    assert queue.counts() == Counts(ready=1, in_flight=2)
    assert seqs_of(queue.claim("other", most=2)) == [3]
    time.sleep(2.05)
    assert queue.counts() == Counts(ready=2, in_flight=1)
    again = queue.claim("other", most=2)
    assert deliveries_of(again) == {1: 2, 2: 2}
    assert not {job["lease_id"] for job in first} & {job["lease_id"] for job in again}
    assert queue.counts() == Counts(in_flight=3)


def test_a_claim_finds_what_is_over_by_itself(client: Client) -> None:
    queue = new_queue(client, 1)
    queue.claim(lease_ms=SHORT_MS)
    time.sleep(0.15)
    assert queue.claim_one("other")["deliveries"] == 2


def test_a_claim_is_given_at_most_8_mib_and_the_rest_stays_ready(client: Client, durability: str) -> None:
    queue = new_queue(client, durability=durability)
    text = "x" * ((1 << 20) - 2)
    queue.append(*[text] * 5)
    queue.append(*[text] * 5)
    answer = queue.call("claim", node="a", max=10)
    jobs = answer["claimed"]
    # What a job takes beside its data is not said.
    assert 7 <= len(jobs) <= 8
    assert set(data_of(jobs)) == {text}
    assert answer["ready"] == 10 - len(jobs)
    assert queue.counts() == Counts(ready=10 - len(jobs), in_flight=len(jobs))
    rest = queue.claim("b", most=10)
    assert seqs_of(jobs) + seqs_of(rest) == list(range(1, 11))
    assert set(deliveries_of(jobs + rest).values()) == {1}


def test_a_claim_is_given_at_least_one_job_however_large(tmp_path: Path) -> None:
    with running(tmp_path, max_record_bytes=10 << 20) as client:
        queue = new_queue(client)
        for number in (1, 2):
            queue.append(str(number) * (9 << 20))
        for number in (1, 2):
            (job,) = queue.claim(most=5)
            assert job["data"] == str(number) * (9 << 20)


def test_concurrent_claims_never_share_a_job(client: Client, durability: str) -> None:
    queue = new_queue(client, *range(200), durability=durability)

    def claim(number: int) -> list[int]:
        return seqs_of(queue.claim(f"worker-{number % 3}", most=7))

    with ThreadPoolExecutor(8) as pool:
        taken = [seq for seqs in pool.map(claim, range(40)) for seq in seqs]
    assert sorted(taken) == list(range(1, 201))
    assert queue.counts() == Counts(in_flight=200)
