"""Section 9: what a work stream delivers, and what frees a place."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, fresh_name, running, until
from tests.conformance.work_stream_client import (
    ALWAYS,
    HOUR_MS,
    ack,
    call,
    claim,
    come_to,
    counts,
    nack,
    queue,
    seqs,
    working,
)

MIB = 1 << 20


# What it delivers


def test_a_job_is_a_claimed_entry_and_its_topic(client: Client, topic: str, durability: str, http2: bool) -> None:
    queue(client, topic, durability=durability)
    with working(client, topic, lease_ms=60_000, max=2, how={"http2": http2}) as events:
        events.quiet(0.1)
        before = time.time() * 1000
        records = [{"data": {"k": [1, None]}, "tag": "t", "node": "writer", "meta": {"a": "b"}}, {"data": None}]
        client.append(topic, records=records)
        first, second = events.jobs(2)
        after = time.time() * 1000
    assert first["topic"] == topic
    assert (first["$seq"], first["$tag"], first["$node"]) == (1, "t", "writer")
    assert (first["data"], first["meta"], first["deliveries"]) == ({"k": [1, None]}, {"a": "b"}, 1)
    assert before - 50 <= first["deadline"] - 60_000 <= after + 50
    assert set(second) == ALWAYS
    assert (second["$seq"], second["data"]) == (2, None)
    assert first["lease_id"] != second["lease_id"]
    assert [record["$ts"] for record in client.read(topic)["records"]] == [first["$ts"], second["$ts"]]


def test_data_is_byte_for_byte(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic)
    data = '{"b":  1.50e+3,\t"a":"é\\u00e9\\n", "b":[ 1 ,-0.0,12345678901234567890]}'.encode()
    assert client.append_raw(topic, data).status_code == 200
    with working(client, topic, how={"http2": http2}) as events:
        frame = events.next()
    assert re.search(rb'"data"\s*:\s*' + re.escape(data) + rb"\s*[,}]", frame.text), frame.text


def test_a_big_job_comes_whole(client: Client, topic: str, http2: bool) -> None:
    value = "x" * (MIB - 2)
    queue(client, topic, value, value, value)
    with working(client, topic, max=2, how={"http2": http2}) as events:
        found = events.jobs(2)
        assert [job["data"] == value for job in found] == [True, True]
        ack(client, topic, *found)
        assert events.job()["data"] == value


def test_jobs_come_in_order_and_no_more_than_max(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, *range(10))
    with working(client, topic, max=3, how={"http2": http2}) as events:
        assert seqs(events.jobs(3)) == [1, 2, 3]
        events.quiet()
        assert counts(client, topic) == (7, 3, 0)


def test_one_job_is_the_default(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic) as events:
        events.job()
        events.quiet()
        assert counts(client, topic) == (1, 1, 0)


def test_max_is_clamped(tmp_path: Path) -> None:
    with running(tmp_path, max_claim=5) as client:
        queue(client, "jobs", *range(12))
        for most, number in [(0, 1), (-3, 1), (5, 5), (6, 5), (10**9, 5)]:
            with working(client, "jobs", max=most) as events:
                assert seqs(events.jobs(number)) == list(range(1, number + 1))
                events.quiet()
            come_to(client, "jobs", 12, 0, 0)


@pytest.mark.parametrize(("asked", "given"), [(None, 77_000), (50_000, 50_000), (10**12, 86_400_000)])
def test_the_lease_is_as_long_as_asked_for(client: Client, topic: str, asked: int | None, given: int) -> None:
    queue(client, topic, 1, lease_ms=77_000)
    query: dict[str, Any] = {} if asked is None else {"lease_ms": asked}
    before = time.time() * 1000
    with working(client, topic, **query) as events:
        deadline = events.job()["deadline"]
    assert before - 50 <= deadline - given <= time.time() * 1000 + 50


def test_a_lease_is_no_shorter_than_100_ms(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    before = time.time() * 1000
    with working(client, topic, lease_ms=1) as events:
        assert events.job()["deadline"] >= before + 90


def test_who_comes_back_with_the_last_id_goes_on(client: Client, topic: str) -> None:
    """An EventSource sends the id of the last frame, whether the stream uses it or not."""
    queue(client, topic, 1, 2, 3)
    with working(client, topic) as events:
        ack(client, topic, events.job())
        events.job()
    with working(client, topic, how={"last_id": "2"}) as events:
        job = events.job()
        assert job["$seq"] in (2, 3)
        ack(client, topic, job)
        assert {job["$seq"], events.job()["$seq"]} == {2, 3}


def test_what_a_router_brings_is_work(client: Client, topic: str) -> None:
    source = fresh_name()
    queue(client, topic)
    body_of(client.put(f"/v0/routers/{fresh_name()}", json={"source": source, "dest": topic}), 201)
    with working(client, topic, max=2) as events:
        client.append(source, "a", "b")
        assert [job["data"] for job in events.jobs(2)] == ["a", "b"]


def test_a_stream_is_not_compressed(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, "z" * 10_000)
    with working(client, topic, how={"http2": http2, "headers": {"accept-encoding": "gzip"}}) as events:
        assert events.job()["data"] == "z" * 10_000


def test_heartbeats_come_when_nothing_else_does(client: Client, topic: str) -> None:
    queue(client, topic)
    other = fresh_name()
    queue(client, other, 1)
    with working(client, topic) as idle, working(client, other, how={"http2": True}) as full:
        full.job()
        first = idle.heartbeat(20)
        assert abs(first - time.time() * 1000) < 2000
        full.heartbeat(20)


# What frees a place


@pytest.mark.parametrize("fenced", [True, False], ids=["lease_ids", "node"])
def test_an_ack_frees_a_place(client: Client, topic: str, http2: bool, fenced: bool) -> None:
    queue(client, topic, *range(5))
    with working(client, topic, max=2, how={"http2": http2}) as events:
        first, second = events.jobs(2)
        answer = ack(client, topic, second, fenced=fenced)
        assert (answer["acked"], answer["skipped"]) == (1, [])
        third = events.job()
        assert third["$seq"] == 3
        ack(client, topic, first, third, fenced=fenced)
        assert seqs(events.jobs(2)) == [4, 5]
        ack(client, topic, *claimed_as(4, 5), fenced=False)
        events.quiet(0.1)
    assert counts(client, topic) == (0, 0, 0)


def claimed_as(*numbers: int) -> list[Any]:
    return [{"$seq": number} for number in numbers]


@pytest.mark.parametrize("reason", ["another node", "another lease"])
def test_what_does_not_end_a_lease_frees_nothing(client: Client, topic: str, reason: str) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic) as events:
        job = events.job()
        if reason == "another node":
            answer = ack(client, topic, job, node="x")
        else:
            answer = ack(client, topic, job | {"lease_id": "lease_" + "0" * 16})
        assert (answer["acked"], answer["skipped"]) == (0, [1])
        events.quiet()
        assert counts(client, topic) == (1, 1, 0)


def test_a_nack_frees_a_place(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic, how={"http2": http2}) as events:
        first = events.job()
        assert nack(client, topic, first, delay_ms=HOUR_MS)["nacked"] == 1
        second = events.job()
        assert (second["$seq"], second["deliveries"]) == (2, 1)
        # What was given back comes before what was never leased, and counts as delivered once more.
        nack(client, topic, second)
        again = events.job()
        assert (again["$seq"], again["deliveries"]) == (2, 2)
        assert again["lease_id"] != second["lease_id"]
        assert counts(client, topic) == (0, 1, 1)


def test_a_job_that_was_delayed_comes_by_itself(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    with working(client, topic) as events:
        job = events.job()
        given_back = time.monotonic()
        nack(client, topic, job, delay_ms=400)
        assert events.job()["deliveries"] == 2
        assert time.monotonic() - given_back > 0.38


def test_a_lease_that_is_over_frees_a_place(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, 1)
    with working(client, topic, lease_ms=300, how={"http2": http2}) as events:
        first = events.job()
        again = events.job()
        assert (again["$seq"], again["deliveries"]) == (1, 2)
        assert again["lease_id"] != first["lease_id"]
        assert time.time() * 1000 > first["deadline"] - 5
        # Neither the lease that is over nor a copy of it ends the new one.
        assert ack(client, topic, first)["skipped"] == [1]


def test_a_lease_that_is_over_makes_room_for_another_job(client: Client, topic: str) -> None:
    """What was given back late comes first, but other jobs are not kept from the stream by it."""
    queue(client, topic, 1, 2)
    with working(client, topic, lease_ms=400) as events:
        found = events.jobs(3)
        assert seqs(found) == [1, 1, 1]
        nack(client, topic, found[-1], delay_ms=HOUR_MS)
        while (job := events.job())["$seq"] == 1:
            nack(client, topic, job, delay_ms=HOUR_MS)
        assert job["$seq"] == 2


def test_the_lease_of_somebody_else_that_is_over_is_work(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    (held,) = claim(client, topic, "x", lease_ms=500)
    with working(client, topic) as events:
        job = events.job()
        assert time.time() * 1000 > held["deadline"] - 5
        assert (job["$seq"], job["deliveries"]) == (1, 2)


def test_a_deletion_frees_a_place(client: Client, topic: str, durability: str) -> None:
    queue(client, topic, 1, 2, durability=durability)
    with working(client, topic) as events:
        first = events.job()
        client.delete_records(topic, before_seq=2)
        assert events.job()["$seq"] == 2
        assert ack(client, topic, first)["skipped"] == [1]


def test_an_eviction_frees_a_place(client: Client, topic: str) -> None:
    queue(client, topic, 1, cap_records=1)
    with working(client, topic) as events:
        events.job()
        client.append(topic, 2)
        assert events.job()["$seq"] == 2


def test_a_record_that_expires_frees_a_place(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    with working(client, topic) as events:
        events.job()
        client.put_topic(topic, ttl_ms=1)
        until(lambda: bool(client.state(topic)["earliest_seq"] == 2))
        client.put_topic(topic, ttl_ms=0)
        client.append(topic, 2)
        assert events.job()["$seq"] == 2


def test_a_lease_that_is_extended_keeps_its_place(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic, lease_ms=1500) as events:
        first = events.job()
        answer = call(client, topic, "extend", seqs=[1], lease_ms=60_000, lease_ids=[first["lease_id"]])
        assert (answer["extended"], answer["skipped"]) == (1, [])
        while time.time() * 1000 < first["deadline"] + 300:
            events.quiet()
        assert counts(client, topic) == (1, 1, 0)
        assert ack(client, topic, first)["acked"] == 1
        assert events.job()["$seq"] == 2


def test_a_lease_that_is_cut_short_frees_a_place(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    with working(client, topic, lease_ms=HOUR_MS) as events:
        events.job()
        call(client, topic, "extend", seqs=[1], lease_ms=200)
        assert events.job()["deliveries"] == 2
