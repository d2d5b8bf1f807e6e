"""Section 9 and semantics 6: what the calls of a queue take, answer and leave behind."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import JSON_TYPE, Client, body_of, error_of, has_data, invalid, running, until
from tests.conformance.client import seqs_of as seqs_read
from tests.conformance.queue_client import (
    LONG_MS,
    SHORT_MS,
    Counts,
    Queue,
    check_answer,
    check_deadline,
    data_of,
    deliveries_of,
    new_queue,
    now_ms,
    seqs_of,
)
from tests.conformance.sse import Covered, watching
from tests.conformance.test_data import AS_WRITTEN
from tests.conformance.test_forwarding import at_once, check_figures, has, paired, settle
from tests.conformance.test_routers import connect_topics, metric

CALLS: dict[str, dict[str, Any]] = {
    "claim": {"node": "n"},
    "ack": {"node": "n", "seqs": [1]},
    "nack": {"node": "n", "seqs": [1]},
    "extend": {"node": "n", "seqs": [1], "lease_ms": 1000},
}
BY_SEQS = ["ack", "nack", "extend"]
MISSING = object()


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=BY_SEQS)
def call_by_seqs(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def queue(client: Client) -> Queue:
    return new_queue(client)


@pytest.fixture(scope="module")
def guarded(client: Client) -> Queue:
    """A queue of three jobs of which the first is held by `n`; what is refused must leave it so."""
    queue = new_queue(client, "a", "b", "c")
    queue.claim("n")
    return queue


def is_untouched(guarded: Queue) -> None:
    assert guarded.counts() == Counts(ready=2, in_flight=1)
    guarded.has_left(1, 2, 3)


# What is refused


def test_a_missing_topic_is_404_and_stays_missing(client: Client, topic: str, call: str) -> None:
    error_of(Queue(client, topic).send(call, **CALLS[call]), 404, "topic_not_found")
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_log_is_409(client: Client, topic: str, call: str) -> None:
    client.append(topic, 1)
    error_of(Queue(client, topic).send(call, **CALLS[call]), 409, "not_a_queue")
    assert seqs_read(client.read(topic)) == [1]


@pytest.mark.parametrize("name", ["-bad", "a>b", "a" * 256])
def test_a_bad_name_is_400(client: Client, call: str, name: str) -> None:
    error_of(Queue(client, name).send(call, **CALLS[call]), 400, "invalid_request")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
def test_the_calls_are_posts(client: Client, guarded: Queue, call: str, method: str) -> None:
    answer = client.request(method, f"/v0/topics/{guarded.topic}/{call}")
    error_of(answer, 405, "method_not_allowed")
    assert {name.strip() for name in answer.headers["allow"].split(",")} - {"OPTIONS"} == {"POST"}


WRONG_OF_FIELDS: list[tuple[list[str], str, list[Any]]] = [
    (list(CALLS), "node", [MISSING, "", "x" * 129, "é" * 65, "😀" * 33, 1, True, None, [], ["n"], {}]),
    (BY_SEQS, "seqs", [MISSING, [], None, 1, "1", {}, True]),
    (BY_SEQS, "seqs", [["1"], [1.5], [True], [None], [-1], [2**64], [[1]], [{}], [2, "1"], [2, -1]]),
    (BY_SEQS, "lease_ids", [[], ["lease_0", "lease_1"], "lease_0", 1, True, {}, [1], [None], [True], [["lease_0"]]]),
    (["claim"], "max", ["1", 1.5, True, [], {}]),
    (["claim", "extend"], "lease_ms", ["1000", 1000.5, True, [], {}]),
    (["extend"], "lease_ms", [MISSING, None]),
    (["claim"], "wait_ms", ["1", 1.5, True, [], {}]),
    (["nack"], "delay_ms", ["1", 1.5, True, [], {}]),
]
WRONG = [
    pytest.param(name, field, value, id=f"{name}-{field}-{'missing' if value is MISSING else str(value)[:24]}")
    for names, field, values in WRONG_OF_FIELDS
    for name in names
    for value in values
]


@pytest.mark.parametrize(("name", "field", "value"), WRONG)
def test_a_wrong_field_is_400_and_does_nothing(guarded: Queue, name: str, field: str, value: Any) -> None:
    fields = CALLS[name] | {field: value}
    invalid(guarded.send(name, **{key: given for key, given in fields.items() if given is not MISSING}), field)
    is_untouched(guarded)


@pytest.mark.parametrize("content", [b"{", b"[]", b"null", b"{}{}", b'{"node":"\xff"}', b'{"node":"n",}', b"\x00"])
def test_malformed_json_is_400(client: Client, guarded: Queue, call: str, content: bytes) -> None:
    url = f"/v0/topics/{guarded.topic}/{call}"
    error_of(client.post(url, content=content, headers={"content-type": JSON_TYPE}), 400, "invalid_request")
    is_untouched(guarded)


def test_no_body_is_400(client: Client, guarded: Queue, call: str) -> None:
    error_of(client.post(f"/v0/topics/{guarded.topic}/{call}"), 400, "invalid_request")
    is_untouched(guarded)


@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-ndjson"])
def test_a_body_of_no_or_another_type_is_415(client: Client, guarded: Queue, call: str, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    answer = client.post(f"/v0/topics/{guarded.topic}/{call}", content=b'{"node":"n"}', headers=headers)
    error_of(answer, 415, "unsupported_media_type")
    is_untouched(guarded)


def test_unknown_keys_are_ignored(client: Client) -> None:
    queue = new_queue(client, 1)
    for call in ("claim", "extend", "nack", "claim", "ack"):
        answer = queue.call(call, **CALLS[call], colour={"deep": [1]}, Node=7)
        assert answer.get("skipped", []) == []
    assert queue.counts() == Counts()


@pytest.mark.parametrize("node", ["x" * 128, "é" * 64, "😀" * 32, " ", "\u0000", '"'])
def test_a_node_is_any_text_of_up_to_128_bytes(client: Client, node: str) -> None:
    queue = new_queue(client, 1, 2)
    assert seqs_of(queue.claim(node, 2)) == [1, 2]
    assert queue.extend(1, node=node)["extended"] == 1
    assert queue.nack(2, node=node)["nacked"] == 1
    assert queue.ack(1, node=node)["acked"] == 1


def test_a_thousand_seqs_are_taken_and_no_more(client: Client, guarded: Queue, call_by_seqs: str) -> None:
    fields = {**CALLS[call_by_seqs], "node": "other"}
    for seqs in (range(1, 1001), range(2**64 - 1000, 2**64)):
        answer = guarded.call(call_by_seqs, **fields | {"seqs": list(seqs)})
        assert sorted(answer["skipped"]) == list(seqs)
    answer = guarded.send(call_by_seqs, **fields | {"seqs": list(range(1, 1002))})
    error_of(answer, 400, "batch_too_large")
    is_untouched(guarded)


def test_a_repeated_seq_counts_once_towards_the_limit(guarded: Queue, call_by_seqs: str) -> None:
    fields = {**CALLS[call_by_seqs], "node": "other", "seqs": [*range(1, 1001), 1, 1000]}
    assert sorted(guarded.call(call_by_seqs, **fields)["skipped"]) == list(range(1, 1001))
    is_untouched(guarded)


def test_smaller_limits(tmp_path: Path) -> None:
    with running(tmp_path, max_claim=3, max_node_bytes=4) as client:
        queue = new_queue(client, *range(6))
        invalid(queue.send("claim", node="12345"), "node")
        invalid(queue.send("claim", node="éé1"), "node")
        assert seqs_of(queue.claim("éé", 99)) == [1, 2, 3]
        for call in BY_SEQS:
            for seqs in ([1, 2, 3, 4], [4, 5, 6, 7]):
                refused = queue.send(call, node="éé", seqs=seqs, lease_ms=1000)
                error_of(refused, 400, "batch_too_large")
        assert queue.counts() == Counts(ready=3, in_flight=3)
        assert queue.ack(1, 2, 2, 3, 1, node="éé")["acked"] == 3


# Claims


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


def skipped(answer: Any) -> list[int]:
    """The seqs that a call skipped, which has done nothing else."""
    done = {name: answer[name] for name in ("acked", "nacked", "extended") if name in answer}
    assert list(done.values()) == [0], done
    assert answer.get("deadlines", {}) == {}
    return sorted(answer["skipped"])


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


# State, lists and metrics


def test_the_state_of_a_queue_has_its_counters_and_that_of_a_log_has_none(client: Client, topic: str) -> None:
    queue = new_queue(client, *range(5))
    queue.claim(most=3)
    queue.nack(1, delay_ms=LONG_MS)
    expected = {"ready": 2, "in_flight": 2, "delayed": 1, "dead_lettered": 0, "paused": False}
    state = client.state(queue.topic)
    assert (state["type"], state["queue"], state["count"]) == ("queue", expected, 5)
    assert client.state(queue.topic, touch="false")["queue"] == expected
    client.append(topic, 1)
    assert "queue" not in client.state(topic)
    body = body_of(client.get("/v0/topics", params={"prefix": queue.topic}))
    (entry,) = [entry for entry in body["topics"] if entry["topic"] == queue.topic]
    assert (entry["type"], entry["count"]) == ("queue", 5)


def test_the_config_of_a_queue_is_echoed(client: Client, topic: str) -> None:
    given = {
        "lease_ms": 5,
        "claim_jitter_ms": 10**6,
        "max_deliveries": 3,
        "dead_letter": "dead",
        "leases_durable": True,
    }
    kept = given | {"type": "queue", "lease_ms": 100, "claim_jitter_ms": 5000}
    assert client.put_topic(topic, type="queue", **given)["config"].items() >= kept.items()
    assert client.state(topic)["config"].items() >= kept.items()


@pytest.mark.parametrize(("made", "other"), [("queue", "log"), ("log", "queue")])
def test_a_topic_keeps_its_type_and_its_jobs(client: Client, topic: str, made: str, other: str) -> None:
    client.put_topic(topic, type=made)
    client.append(topic, 1, 2)
    if made == "queue":
        Queue(client, topic).claim()
    error_of(client.put(f"/v0/topics/{topic}", json={"type": other}), 409, "topic_exists_incompatible")
    assert seqs_read(client.read(topic)) == [1, 2]
    if made == "queue":
        assert Queue(client, topic).counts() == Counts(ready=1, in_flight=1)


def test_an_append_may_create_a_queue(client: Client, topic: str) -> None:
    client.append(topic, 1, config={"type": "queue"})
    assert Queue(client, topic).claim_one()["data"] == 1


def test_the_figures_of_queues(client: Client) -> None:
    def figures(queue: Queue | None = None) -> list[float]:
        names = ["queue_topics", "queue_leases_in_flight"]
        found = [metric(client, name) or 0 for name in names]
        if queue is not None:
            per_topic = ["topic_queue_ready", "topic_queue_in_flight"]
            found += [metric(client, name, topic=queue.topic) or 0 for name in per_topic]
        return found

    topics, leases = figures()
    queue = new_queue(client, *range(5))
    queue.claim(most=3)
    queue.nack(3, delay_ms=LONG_MS)
    # Leases of other tests may have come to their end.
    found = figures(queue)
    assert found[0] == topics + 1
    assert found[1] <= leases + 2
    assert found[2:] == [2, 2]
    queue.ack(1, 2)
    assert figures(queue)[2:] == [2, 0]
    client.delete_topic(queue.topic)
    assert metric(client, "topic_queue_ready", topic=queue.topic) is None
    assert figures()[0] == topics


def test_the_figures_of_leases(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("log")
        first, second = new_queue(client, *range(4)), new_queue(client, *range(4))
        first.claim(most=3)
        second.claim(most=2, lease_ms=SHORT_MS)
        assert metric(client, "queue_topics") == 2
        assert metric(client, "topic_queue_ready", topic="log") in (None, 0)
        time.sleep(0.15)
        assert second.counts() == Counts(ready=4)
        assert metric(client, "queue_leases_in_flight") == 3
        client.delete_topic(first.topic)
        assert (metric(client, "queue_topics"), metric(client, "queue_leases_in_flight")) == (1, 0)


# Records that go while they are leased


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


# Readers, writers and routers


def test_readers_see_the_jobs_and_take_none(client: Client) -> None:
    queue = new_queue(client, *range(4))
    with watching(client, queue.topic) as events:
        found = Covered(queue.topic).take(events.until_caught_up())
        queue.claim(most=3)
        queue.nack(2, delay_ms=LONG_MS)
        before = queue.counts()
        queue.has_left(1, 2, 3, 4)
        assert body_of(client.get(f"/v0/topics/{queue.topic}/diff?from_seq=1"))["caught_up"] is True
        assert queue.counts() == before == Counts(ready=1, in_flight=2, delayed=1)
        queue.ack(1)
        queue.append(4)
        found.take(events.until_seq(queue.topic, 5))
    assert found.data == [0, 1, 2, 3, 4]
    with watching(client, queue.topic) as events:
        later = Covered(queue.topic).take(events.until_caught_up())
    assert (later.data, later.reasons) == ([1, 2, 3, 4], [])
    queue.has_left(2, 3, 4, 5)


def test_a_repeated_append_is_one_job(client: Client, queue: Queue) -> None:
    queue.append("a", idempotency_key="k")
    queue.append("a", idempotency_key="k")
    assert data_of(queue.claim(most=5)) == ["a"]
    queue.ack(1)
    assert client.append(queue.topic, "a", idempotency_key="k")["deduped"] is True
    assert queue.claim(most=5) == []
    assert queue.counts() == Counts()


def test_what_was_acked_on_a_source_is_claimed_at_once(client: Client, durability: str) -> None:
    pair = paired(client, {"durability": durability}, {"type": "queue", "durability": durability})
    queue = Queue(client, pair.dest)
    for number in range(5):
        pair.append(number)
        at_once(lambda: data_of(queue.claim()), [number])
    assert queue.ack(*range(1, 6))["acked"] == 5
    settle(client, pair.router)
    assert queue.counts() == Counts()
    assert client.state(pair.source)["count"] == 5


def test_the_state_of_a_queue_counts_what_was_acked_on_its_source(client: Client) -> None:
    pair = paired(client, dest={"type": "queue"})
    for number in range(1, 4):
        pair.append("x")
        at_once(lambda: Queue(client, pair.dest).counts(), Counts(ready=number))


def test_jobs_pass_through_a_chain_of_queues(client: Client) -> None:
    queues = [new_queue(client) for _ in range(3)]
    routers = connect_topics(client, *[queue.topic for queue in queues])
    queues[0].append(*range(5))
    at_once(lambda: data_of(queues[2].claim("last", most=3)), [0, 1, 2])
    settle(client, *routers)
    # What a queue has passed on goes its own way.
    queues[0].claim("first", most=5)
    queues[0].ack(*range(1, 6), node="first")
    assert [queue.counts() for queue in queues] == [Counts(), Counts(ready=5), Counts(ready=2, in_flight=3)]
    has(client, queues[1].topic, *range(5))


def test_an_ack_makes_room_for_what_a_router_brings(client: Client) -> None:
    pair = paired(client, dest={"type": "queue", "discard": "reject", "cap_records": 2})
    queue = Queue(client, pair.dest)
    pair.append(*range(5))
    taken: list[int] = []

    def drain() -> bool:
        jobs = queue.claim(most=2)
        taken.extend(data_of(jobs))
        if jobs:
            queue.ack(*seqs_of(jobs))
        return len(taken) == 5

    until(drain)
    assert taken == list(range(5))


def test_a_queue_is_empty_when_everything_is_acked(client: Client) -> None:
    queue = new_queue(client, 1, 2)
    queue.claim(most=2)
    queue.ack(1)
    error_of(client.delete(f"/v0/topics/{queue.topic}?if_empty=true"), 409, "topic_not_empty")
    queue.ack(2)
    assert client.delete_topic(queue.topic, if_empty="true")["deleted"] is True


def test_jobs_are_worked_off_when_the_disk_is_nearly_full(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        topic = new_queue(client, *range(5)).topic
        client.daemon.end()
    with running(tmp_path, min_free_bytes="1000TiB") as client:
        queue = Queue(client, topic)
        error_of(client.send_append(topic, 5), 503, "read_only")
        assert seqs_of(queue.claim(most=3)) == [1, 2, 3]
        assert queue.extend(1)["extended"] == 1
        assert queue.nack(2)["nacked"] == 1
        assert queue.ack(1, 3)["acked"] == 2
        assert queue.counts() == Counts(ready=3)


def test_a_new_instance_knows_nothing_of_the_old_leases(client: Client, durability: str) -> None:
    queue = new_queue(client, 1, 2, durability=durability)
    old = queue.claim(most=2)
    queue.nack(2, delay_ms=200)
    client.delete_topic(queue.topic)
    client.put_topic(queue.topic, type="queue", durability=durability)
    assert queue.counts() == Counts()
    queue.append("new", "newer", "newest")
    assert skipped(queue.ack(1, 2)) == [1, 2]
    jobs = queue.claim(most=2)
    assert deliveries_of(jobs) == {1: 1, 2: 1}
    assert data_of(jobs) == ["new", "newer"]
    assert skipped(queue.ack(1, 2, lease_ids=[job["lease_id"] for job in old])) == [1, 2]
    time.sleep(0.25)
    assert queue.counts() == Counts(ready=1, in_flight=2)


# Many at once


@dataclass
class Held:
    """One job in the hands of one worker, between the answer to its claim and what it sent to give it away."""

    seq: int
    deliveries: int
    began: float
    ended: float


@dataclass
class Record:
    """What workers of a queue have seen."""

    held: list[Held] = field(default_factory=list)
    acked: Counter[int] = field(default_factory=Counter)

    def by_seq(self) -> Iterator[list[Held]]:
        """The times that a job was held, in order, for each job."""
        found: dict[int, list[Held]] = defaultdict(list)
        for held in self.held:
            found[held.seq].append(held)
        for one in found.values():
            yield sorted(one, key=lambda held: held.began)

    def check(self, jobs: int) -> None:
        """Every job was acked exactly once, and had never two holders."""
        assert self.acked == Counter(range(1, jobs + 1))
        for times in self.by_seq():
            for before, after in itertools.pairwise(times):
                assert before.ended <= after.began, (before, after)
                assert before.deliveries < after.deliveries, (before, after)


@dataclass
class Sampling:
    """A look at the counters of a queue, again and again while others use it."""

    queue: Queue
    stopped: threading.Event = field(default_factory=threading.Event)
    looks: int = 0

    def run(self) -> None:
        with Client(self.queue.client.daemon) as client:
            before = client.state(self.queue.topic)["count"]
            while not self.stopped.is_set():
                self.queue.seen_by(client).counts()
                count = client.state(self.queue.topic)["count"]
                assert count <= before
                before = count
                self.looks += 1


def work(queue: Queue, record: Record, one: Callable[[Queue, random.Random, str], Record], number: int) -> None:
    """Claim and give away as `one` does until the queue is empty."""
    rng = random.Random(number)
    end = time.monotonic() + 120
    with Client(queue.client.daemon) as client:
        mine = queue.seen_by(client)
        while mine.counts() != Counts():
            assert time.monotonic() < end
            # Two workers each go by the same name.
            seen = one(mine, rng, f"worker-{number // 2}")
            record.held += seen.held
            record.acked.update(seen.acked)
            if not seen.held:
                time.sleep(0.01)


def all_work(queue: Queue, one: Callable[[Queue, random.Random, str], Record], workers: int) -> Record:
    sampling = Sampling(queue)
    records = [Record() for _ in range(workers)]
    with ThreadPoolExecutor(workers + 1) as pool:
        sampled = pool.submit(sampling.run)
        try:
            done = [pool.submit(work, queue, record, one, number) for number, record in enumerate(records)]
            for future in done:
                future.result()
        finally:
            sampling.stopped.set()
        sampled.result()
    assert sampling.looks > 3
    total = Record()
    for record in records:
        total.held += record.held
        total.acked.update(record.acked)
    return total


def handle_carefully(queue: Queue, rng: random.Random, node: str) -> Record:
    """Claim for long; extend some, give some back, ack the rest."""
    jobs = queue.claim(node, rng.randint(1, 25))
    began = time.monotonic()
    if not jobs:
        return Record()
    assert len({job["$seq"] for job in jobs}) == len(jobs)
    back = [job for job in jobs if rng.random() < 0.15]
    done = [job for job in jobs if job not in back]
    record = Record()
    if rng.random() < 0.3:
        assert queue.extend(*seqs_of(jobs), node=node)["extended"] == len(jobs)
    if back:
        record.held += [Held(job["$seq"], job["deliveries"], began, time.monotonic()) for job in back]
        answer = queue.nack(*seqs_of(back), node=node, delay_ms=rng.choice([0, 0, 30]))
        assert (answer["nacked"], answer["skipped"]) == (len(back), [])
    if done:
        record.held += [Held(job["$seq"], job["deliveries"], began, time.monotonic()) for job in done]
        lease_ids = {"lease_ids": [job["lease_id"] for job in done]} if rng.random() < 0.5 else {}
        answer = queue.ack(*seqs_of(done), node=node, **lease_ids)
        assert (answer["acked"], answer["skipped"]) == (len(done), [])
        record.acked.update(seqs_of(done))
    return record


@pytest.mark.parametrize(
    "config", [{}, {"durability": "fsync", "leases_durable": True}, {"claim_jitter_ms": 20}], ids=str
)
def test_of_many_workers_each_job_is_acked_by_one(client: Client, config: dict[str, Any]) -> None:
    count = 2000 if not config else 600
    queue = new_queue(client, *range(count), **config)
    record = all_work(queue, handle_carefully, 8)
    record.check(count)
    # Every delivery was to somebody: none is missing in the count.
    for times in record.by_seq():
        assert [held.deliveries for held in times] == list(range(1, len(times) + 1))
    queue.has_left()


def handle_carelessly(queue: Queue, rng: random.Random, node: str) -> Record:
    """Claim for a moment, and be too late with some of it."""
    jobs = queue.claim(node, rng.randint(1, 10), lease_ms=SHORT_MS)
    began = time.time() * 1000
    time.sleep(rng.choice([0, 0, 0.03, 0.09, 0.11, 0.15]))
    record = Record()
    if not jobs:
        return record
    sent = time.time() * 1000
    answer = queue.ack(*seqs_of(jobs), node=node, lease_ids=[job["lease_id"] for job in jobs])
    acked = set(seqs_of(jobs)) - set(answer["skipped"])
    assert answer["acked"] == len(acked)
    record.acked.update(acked)
    for job in jobs:
        # The lease is on another clock than the deadline: a few milliseconds between them are no second holder.
        ended = min(sent, job["deadline"] - 10)
        if began < ended:
            record.held.append(Held(job["$seq"], job["deliveries"], began, ended))
    return record


def test_of_many_slow_workers_each_job_is_acked_by_one(client: Client) -> None:
    queue = new_queue(client, *range(200))
    all_work(queue, handle_carelessly, 6).check(200)
    queue.has_left()


@dataclass
class Storm:
    """Everything that can become of jobs, at once, by as many as call `rage`."""

    queue: Queue
    until: float

    def rage(self, number: int) -> None:
        rng = random.Random(number)
        with Client(self.queue.client.daemon) as client:
            queue = self.queue.seen_by(client)
            while time.monotonic() < self.until:
                rng.choice([self.append, self.handle, self.handle, self.delete])(queue, rng, f"worker-{number}")

    def append(self, queue: Queue, rng: random.Random, node: str) -> None:
        queue.client.tagged(queue.topic, *[rng.choice("abc") for _ in range(rng.randint(1, 12))])

    def delete(self, queue: Queue, rng: random.Random, node: str) -> None:
        state = queue.client.state(queue.topic)
        if rng.random() < 0.5:
            queue.client.delete_records(queue.topic, before_seq=state["earliest_seq"] + rng.randint(0, 3))
        else:
            queue.client.delete_records(queue.topic, match=rng.choice("abc"))

    def handle(self, queue: Queue, rng: random.Random, node: str) -> None:
        jobs = queue.claim(node, rng.randint(1, 9), lease_ms=rng.choice([SHORT_MS, LONG_MS]), wait_ms=20)
        time.sleep(rng.choice([0, 0, 0.01, 0.12]))
        if jobs:
            some = rng.sample(seqs_of(jobs), rng.randint(1, len(jobs)))
            queue.extend(*some, node=node, lease_ms=rng.choice([SHORT_MS, LONG_MS]))
            queue.nack(*some[:2], node=node, delay_ms=rng.choice([0, 40, LONG_MS]))
            queue.ack(*some[1:] or some, node=node)


@pytest.mark.parametrize(
    "config",
    [
        {"durability": "disk"},
        {"durability": "fsync", "cap_records": 20},
        {"durability": "memory", "ttl_ms": 150},
        {"durability": "ephemeral", "cap_bytes": 90, "ttl_ms": 250},
        {"leases_durable": True, "cap_bytes": 60},
    ],
    ids=str,
)
def test_counters_add_up_whatever_happens(client: Client, config: dict[str, Any]) -> None:
    queue = new_queue(client, **config)
    storm = Storm(queue, time.monotonic() + 0.8)
    with ThreadPoolExecutor(5) as pool, Client(client.daemon) as own:
        done = [pool.submit(storm.rage, number) for number in range(5)]
        while not all(future.done() for future in done):
            queue.seen_by(own).counts()
        for future in done:
            future.result()
    client.put_topic(queue.topic, ttl_ms=0)
    reading = check_figures(client, queue.topic)
    jobs = queue.claim("last", 1000)
    assert set(seqs_of(jobs)) <= set(reading.seqs)
    assert queue.counts().in_flight >= len(jobs)
    client.delete_records(queue.topic, before_seq=10**9)
    assert queue.counts() == Counts()
    assert queue.claim("last", 1000) == []


def test_a_queue_may_go_and_come_while_it_is_used(client: Client, durability: str) -> None:
    """Whatever comes too late finds no topic or nothing that it holds; nothing else goes wrong."""
    queue = new_queue(client, durability=durability)
    end = time.monotonic() + 0.6

    def use(number: int) -> None:
        rng = random.Random(number)
        node = f"worker-{number}"
        with Client(client.daemon) as own:
            mine = queue.seen_by(own)
            while time.monotonic() < end:
                own.post(f"/v0/topics/{queue.topic}", json={"records": [{"data": 1}] * 3, "create": False})
                answer = mine.send("claim", node=node, max=3, wait_ms=rng.choice([0, 30]))
                if answer.status_code != 200:
                    error_of(answer, 404, "topic_not_found")
                    continue
                jobs = check_answer(queue.topic, "claim", answer.json())["claimed"]
                if jobs:
                    seqs, lease_ids = seqs_of(jobs), [job["lease_id"] for job in jobs]
                    answer = mine.send("ack", node=node, seqs=seqs, lease_ids=lease_ids)
                    assert answer.status_code in (200, 404), answer.text

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(use, number) for number in range(4)]
        while time.monotonic() < end:
            client.delete_topic(queue.topic)
            client.put_topic(queue.topic, type="queue", durability=durability)
            for _ in range(5):
                queue.counts()
        for future in done:
            future.result()
    left = client.state(queue.topic)["count"]
    queue.append("last")
    time.sleep(0.1)
    assert queue.counts().ready >= 1
    assert client.state(queue.topic)["count"] == left + 1
