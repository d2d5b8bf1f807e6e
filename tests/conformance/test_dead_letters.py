"""Section 9: what has been delivered too often moves to the dead-letter topic."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import (
    CLASSES,
    Client,
    Daemon,
    body_of,
    error_of,
    fresh_name,
    has_data,
    invalid,
    running,
    until,
)
from tests.conformance.work_stream_client import ack, call, claim, come_to, counts, nack, queue, seqs, working

MIB = 1 << 20
HOUR_MS = 3_600_000
PATIENCE_S = 90.0
"""How long a move that has failed may take until it is tried again."""
STAMPS = {"$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq"}


@pytest.fixture
def dead() -> str:
    """The name of a dead-letter topic that does not exist yet."""
    return fresh_name("dead")


def records_of(client: Client, topic: str) -> list[Any]:
    """All there is in a topic, which is nothing as long as it is missing."""
    answer = client.post(f"/v0/topics/{topic}/diff", json={"include_tags": True, "limit": 1000})
    if answer.status_code == 404:
        return []
    records: list[Any] = body_of(answer)["records"]
    return records


def fail(client: Client, topic: str, times: int, number: int = 1) -> None:
    """Claim as many jobs as this and give them back, so many times."""
    for _ in range(times):
        jobs = claim(client, topic, max=number)
        assert len(jobs) == number
        assert nack(client, topic, *jobs)["nacked"] == number


def buried(client: Client, topic: str, dead: str, number: int = 1) -> list[Any]:
    """Wait until so many jobs have moved, while nobody gets them; the records there."""

    def have_moved() -> bool:
        assert claim(client, topic, max=100) == []
        return len(records_of(client, dead)) >= number and client.state(topic)["count"] == 0

    until(have_moved, within_s=PATIENCE_S)
    records = records_of(client, dead)
    assert len(records) == number
    return records


def parked(client: Client, topic: str, number: int = 1) -> None:
    """Ask for jobs once, get none, and see that these wait to be moved."""
    assert claim(client, topic, max=100) == []
    come_to(client, topic, 0, 0, number)


def dead_lettered(client: Client, topic: str) -> int:
    number: int = client.state(topic)["queue"]["dead_lettered"]
    return number


def source_seqs(records: list[Any]) -> list[int]:
    return [int(record["meta"]["$dead_letter_src_seq"]) for record in records]


def full(client: Client, dead: str) -> None:
    """Create a dead-letter topic that has no room."""
    client.put_topic(dead, cap_records=1, discard="reject")
    client.append(dead, "in the way")


def make_room(client: Client, dead: str) -> None:
    client.delete_records(dead, before_seq=client.state(dead)["head_seq"] + 1)


# The move


def test_a_job_that_was_given_back_too_often_moves(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, max_deliveries=3, dead_letter=dead)
    client.append(topic, "fine")
    client.append(topic, records=[{"data": {"k": 1}, "tag": "t", "node": "n", "meta": {"a": "b"}}])
    (fine,) = claim(client, topic)
    ack(client, topic, fine)
    for number in (1, 2, 3):
        (job,) = claim(client, topic)
        assert (job["$seq"], job["deliveries"]) == (2, number)
        nack(client, topic, job)
    (record,) = buried(client, topic, dead)
    assert (record["data"], record["$tag"], record["$seq"]) == ({"k": 1}, "t", 1)
    assert record["meta"] == {
        "a": "b",
        "$dead_letter_from": topic,
        "$dead_letter_deliveries": "3",
        "$dead_letter_src_seq": "2",
    }
    state = client.state(topic)
    assert state["queue"] == {"ready": 0, "in_flight": 0, "delayed": 0, "dead_lettered": 1, "paused": False}
    assert (state["head_seq"], state["earliest_seq"], state["bytes"]) == (2, 3, 0)
    # It arrives once.
    time.sleep(0.5)
    assert records_of(client, dead) == [record]


def test_a_job_whose_leases_ran_out_too_often_moves(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, "poison", max_deliveries=3, dead_letter=dead, lease_ms=100)
    for number in (1, 2, 3):
        (job,) = claim(client, topic, wait_ms=10_000)
        assert job["deliveries"] == number
        until(lambda: counts(client, topic)[1] == 0)
    (record,) = buried(client, topic, dead)
    assert (record["data"], record["meta"]["$dead_letter_deliveries"]) == ("poison", "3")
    assert dead_lettered(client, topic) == 1


def test_a_job_that_work_streams_left_too_often_moves(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, "poison", max_deliveries=2, dead_letter=dead, lease_ms=HOUR_MS)
    for number in (1, 2):
        with working(client, topic, how={"http2": number == 2}) as events:
            assert events.job()["deliveries"] == number
        come_to(client, topic, 1, 0, 0) if number == 1 else until(lambda: counts(client, topic)[1] == 0)
    assert buried(client, topic, dead)[0]["meta"]["$dead_letter_deliveries"] == "2"


def test_a_work_stream_goes_on_with_the_next_job(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, "poison", "fine", max_deliveries=3, dead_letter=dead)
    with working(client, topic) as events:
        for number in (1, 2, 3):
            job = events.job()
            assert (job["data"], job["deliveries"]) == ("poison", number)
            nack(client, topic, job)
        assert events.job()["data"] == "fine"
        until(lambda: [record["data"] for record in records_of(client, dead)] == ["poison"], within_s=PATIENCE_S)
        until(lambda: counts(client, topic) == (0, 1, 0))
        assert dead_lettered(client, topic) == 1


def test_it_is_gone_in_silence(client: Client, topic: str, dead: str, durability: str) -> None:
    queue(client, topic, "a", "poison", "b", max_deliveries=1, dead_letter=dead, durability=durability)
    jobs = claim(client, topic, max=3)
    nack(client, topic, jobs[1])
    until(lambda: claim(client, topic, max=10) == [] and len(records_of(client, dead)) == 1, within_s=PATIENCE_S)
    until(lambda: client.state(topic)["count"] == 2)
    for from_seq in (0, 1, 2):
        answer = client.read(topic, from_seq)
        assert answer["tombstone"] is None
        assert seqs(answer["records"]) == [seq for seq in (1, 3) if seq > from_seq]
    state = client.state(topic)
    assert (state["head_seq"], state["earliest_seq"]) == (3, 1)
    # The former holder has lost its lease.
    assert ack(client, topic, jobs[1])["skipped"] == [2]
    assert ack(client, topic, jobs[0], jobs[2])["acked"] == 2


@pytest.mark.parametrize(
    "data",
    ['{"b":  1.50e+3, "a":"é\\u00e9\\n" , "b":[ 1 ,-0.0,12345678901234567890]}', "null", "[[]]"],
)
def test_its_data_is_byte_for_byte(client: Client, topic: str, dead: str, data: str) -> None:
    queue(client, topic, max_deliveries=1, dead_letter=dead)
    assert client.append_raw(topic, data.encode()).status_code == 200
    fail(client, topic, 1)
    buried(client, topic, dead)
    assert has_data(client.post(f"/v0/topics/{dead}/diff", json={}), data.encode())


def test_a_job_with_neither_tag_nor_meta(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, None, max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    (record,) = buried(client, topic, dead)
    assert set(record) - {"$node"} == {"$seq", "$ts", "data", "meta"}
    assert set(record["meta"]) == STAMPS


def test_meta_at_its_limit_arrives(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, max_deliveries=1, dead_letter=dead)
    many = {f"k{number:02}": "v" * 240 for number in range(64)}
    length = len(json.dumps(many, separators=(",", ":")))
    many["k63"] += "v" * (16_384 - length)
    large = {"k": "v" * (16_384 - len('{"k":""}'))}
    client.append(topic, records=[{"data": 1, "meta": many}, {"data": 2, "meta": large}])
    fail(client, topic, 1, 2)
    for record in buried(client, topic, dead, 2):
        meta = record["meta"]
        assert {name: text for name, text in meta.items() if name not in STAMPS} == (many, large)[record["data"] - 1]
        assert meta.keys() >= STAMPS


def test_a_record_at_its_limit_arrives(client: Client, topic: str, dead: str) -> None:
    """The stamps are the daemon's: a job that could be appended can be moved."""
    value = "x" * (MIB - 2)
    queue(client, topic, value, max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    (record,) = buried(client, topic, dead)
    assert record["data"] == value


def test_the_topic_is_created_with_defaults(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1, max_deliveries=1, dead_letter=dead, durability="fsync", lease_ms=5000)
    error_of(client.get(f"/v0/topics/{dead}"), 404, "topic_not_found")
    fail(client, topic, 1)
    buried(client, topic, dead)
    plain = fresh_name()
    client.put_topic(plain)
    assert client.state(dead)["config"] == client.state(plain)["config"]


def test_a_topic_that_was_deleted_is_created_again(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1, max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    buried(client, topic, dead)
    client.delete_topic(dead)
    client.append(topic, 2)
    fail(client, topic, 1)
    (record,) = buried(client, topic, dead)
    assert (record["$seq"], record["data"]) == (1, 2)


@pytest.mark.parametrize("dead_class", ["memory", "disk", "fsync"])
def test_every_class_but_ephemeral_takes_and_gives(client: Client, durability: str, dead_class: str) -> None:
    topic, dead = fresh_name(), fresh_name("dead")
    client.put_topic(dead, durability=dead_class)
    queue(client, topic, *range(5), max_deliveries=2, dead_letter=dead, durability=durability)
    fail(client, topic, 2, 5)
    records = buried(client, topic, dead, 5)
    assert sorted(record["data"] for record in records) == list(range(5))
    assert all(int(record["meta"]["$dead_letter_src_seq"]) == record["data"] + 1 for record in records)
    assert client.state(dead)["config"]["durability"] == dead_class
    assert dead_lettered(client, topic) == 5
    # It waits until that is synced, and deletes then.
    state = client.state(dead)
    assert state["synced_seq"] == state["head_seq"] == 5


def test_many_at_once(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, *range(300), max_deliveries=3, dead_letter=dead)
    fail(client, topic, 3, 300)
    records = buried(client, topic, dead, 300)
    assert sorted(source_seqs(records)) == list(range(1, 301))
    assert all(record["data"] + 1 == int(record["meta"]["$dead_letter_src_seq"]) for record in records)
    assert dead_lettered(client, topic) == 300


def test_good_jobs_are_done_among_poisoned_ones(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, *range(100), max_deliveries=3, dead_letter=dead)
    done = []
    deadline = time.monotonic() + PATIENCE_S
    while client.state(topic)["count"]:
        assert time.monotonic() < deadline
        for job in claim(client, topic, max=7, wait_ms=50):
            assert job["deliveries"] <= (3 if job["data"] % 10 == 0 else 1)
            if job["data"] % 10 == 0:
                nack(client, topic, job)
            else:
                ack(client, topic, job)
                done.append(job["data"])
    assert sorted(done) == [number for number in range(100) if number % 10]
    assert sorted(record["data"] for record in records_of(client, dead)) == list(range(0, 100, 10))
    assert dead_lettered(client, topic) == 10


def test_the_last_delivery_may_succeed(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1, max_deliveries=3, dead_letter=dead)
    fail(client, topic, 2)
    (job,) = claim(client, topic)
    assert job["deliveries"] == 3
    assert call(client, topic, "extend", seqs=[1], lease_ms=60_000)["extended"] == 1
    assert counts(client, topic) == (0, 1, 0)
    assert ack(client, topic, job)["acked"] == 1
    assert claim(client, topic) == []
    time.sleep(0.3)
    assert records_of(client, dead) == []
    assert dead_lettered(client, topic) == 0


def test_who_waits_for_a_job_does_not_get_a_dead_one(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    (job,) = claim(client, topic)
    nack(client, topic, job, delay_ms=400)
    assert claim(client, topic, wait_ms=1500) == []
    buried(client, topic, dead)


def test_a_reader_of_the_dead_letter_topic_sees_it_come(client: Client, topic: str, dead: str) -> None:
    client.put_topic(dead)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    found: list[Any] = []

    def read() -> None:
        with Client(client.daemon) as own:
            found.extend(own.read(dead, wait_ms=30_000)["records"])

    reader = threading.Thread(target=read)
    reader.start()
    fail(client, topic, 1)
    buried(client, topic, dead)
    reader.join(40)
    assert [record["data"] for record in found] == ["poison"]


# For ever


@pytest.mark.parametrize("config", [{"max_deliveries": 0, "dead_letter": "for-ever"}, {"max_deliveries": 3}, {}])
def test_without_a_limit_or_a_topic_it_comes_for_ever(client: Client, topic: str, config: dict[str, Any]) -> None:
    queue(client, topic, 1, **config)
    for number in range(1, 11):
        (job,) = claim(client, topic)
        assert job["deliveries"] == number
        nack(client, topic, job)
    assert counts(client, topic) == (1, 0, 0)
    assert dead_lettered(client, topic) == 0
    error_of(client.get("/v0/topics/for-ever"), 404)


def test_it_moves_once_there_is_a_limit(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1)
    fail(client, topic, 5)
    client.put_topic(topic, max_deliveries=3)
    fail(client, topic, 1)
    client.put_topic(topic, dead_letter=dead)
    (record,) = buried(client, topic, dead)
    assert record["meta"]["$dead_letter_deliveries"] == "6"


# What cannot be moved


def test_while_there_is_no_room_it_is_delayed(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    queue(client, topic, "poison", *range(10), max_deliveries=3, dead_letter=dead)
    fail(client, topic, 3)
    (job,) = claim(client, topic)
    assert (job["data"], job["deliveries"]) == (0, 1)
    come_to(client, topic, 9, 1, 1)
    # It is there, but in nobody's hands.
    assert client.read(topic)["records"][0]["data"] == "poison"
    for verb in ("ack", "nack", "extend"):
        assert call(client, topic, verb, seqs=[1], lease_ms=5000)["skipped"] == [1]
    ack(client, topic, job)
    for number in range(1, 10):
        (job,) = claim(client, topic)
        assert job["data"] == number
        ack(client, topic, job)
    assert claim(client, topic, wait_ms=500) == []
    assert counts(client, topic) == (0, 0, 1)
    assert dead_lettered(client, topic) == 0
    assert [record["data"] for record in records_of(client, dead)] == ["in the way"]
    make_room(client, dead)
    (record,) = buried(client, topic, dead)
    assert (record["data"], record["meta"]["$dead_letter_deliveries"]) == ("poison", "3")
    assert dead_lettered(client, topic) == 1


def test_those_that_wait_arrive_one_by_one(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    queue(client, topic, *range(3), max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1, 3)
    parked(client, topic, 3)
    found = []
    for _ in range(3):
        make_room(client, dead)
        until(lambda: bool(records_of(client, dead)), within_s=PATIENCE_S)
        (record,) = records_of(client, dead)
        found.append(record["data"])
    make_room(client, dead)
    come_to(client, topic, 0, 0, 0)
    assert sorted(found) == [0, 1, 2]
    assert records_of(client, dead) == []


def test_a_topic_that_cannot_be_created_yet(tmp_path: Path) -> None:
    with running(tmp_path, max_topics=2) as client:
        client.put_topic("other")
        queue(client, "jobs", "poison", max_deliveries=1, dead_letter="dead")
        fail(client, "jobs", 1)
        parked(client, "jobs")
        client.append("other", 1)
        client.delete_topic("other")
        assert buried(client, "jobs", "dead")[0]["data"] == "poison"


@pytest.mark.parametrize("change", [{"dead_letter": None}, {"max_deliveries": 0}], ids=str)
def test_one_that_waits_comes_back_when_it_may_come_for_ever(
    client: Client, topic: str, dead: str, change: dict[str, Any]
) -> None:
    full(client, dead)
    queue(client, topic, "poison", max_deliveries=3, dead_letter=dead)
    fail(client, topic, 3)
    parked(client, topic)
    client.put_topic(topic, **change)
    until(lambda: counts(client, topic) == (1, 0, 0), within_s=PATIENCE_S)
    found = claim(client, topic)
    assert (found[0]["data"], found[0]["deliveries"]) == ("poison", 4)
    make_room(client, dead)
    assert ack(client, topic, *found)["acked"] == 1
    assert counts(client, topic) == (0, 0, 0)
    assert records_of(client, dead) == []


def test_one_that_does_not_fit_waits_until_it_does(client: Client, topic: str, dead: str) -> None:
    """What an append would refuse for ever, since it could never fit, is kept as well."""
    client.put_topic(dead, cap_bytes=300, discard="reject")
    queue(client, topic, "x" * 1000, "small", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1, 2)
    assert claim(client, topic, max=10) == []
    until(lambda: [record["data"] for record in records_of(client, dead)] == ["small"], within_s=PATIENCE_S)
    come_to(client, topic, 0, 0, 1)
    client.put_topic(dead, cap_bytes=5000)
    assert [record["data"] for record in buried(client, topic, dead, 2)] == ["small", "x" * 1000]


def test_one_that_expires_while_it_waits_does_not_move(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    parked(client, topic)
    client.put_topic(topic, ttl_ms=1)
    come_to(client, topic, 0, 0, 0)
    client.put_topic(topic, ttl_ms=0)
    assert client.read(topic)["tombstone"]["reason"] == "ttl"
    client.append(topic, "another")
    fail(client, topic, 1)
    make_room(client, dead)
    assert [record["data"] for record in buried(client, topic, dead)] == ["another"]
    assert dead_lettered(client, topic) == 1


def test_one_that_waits_goes_to_the_topic_that_is_named_now(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    other = fresh_name("dead")
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    parked(client, topic)
    client.put_topic(topic, dead_letter=other)
    assert buried(client, topic, other)[0]["data"] == "poison"
    make_room(client, dead)
    time.sleep(0.5)
    assert records_of(client, dead) == []


def test_one_that_waits_may_be_deleted(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    parked(client, topic)
    client.delete_records(topic, before_seq=2)
    assert counts(client, topic) == (0, 0, 0)
    client.append(topic, "another")
    fail(client, topic, 1)
    make_room(client, dead)
    assert [record["data"] for record in buried(client, topic, dead)] == ["another"]
    assert dead_lettered(client, topic) == 1


def test_a_queue_may_be_deleted_while_one_waits(client: Client, topic: str, dead: str) -> None:
    full(client, dead)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    parked(client, topic)
    client.delete_topic(topic)
    make_room(client, dead)
    queue(client, topic, "new", max_deliveries=1, dead_letter=dead)
    assert dead_lettered(client, topic) == 0
    fail(client, topic, 1)
    (record,) = buried(client, topic, dead)
    assert (record["data"], record["meta"]["$dead_letter_src_seq"]) == ("new", "1")


# What is refused


def test_a_topic_is_not_its_own_dead_letter_topic(client: Client, topic: str) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": topic}), "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404)
    refused = client.send_append(topic, 1, config={"type": "queue", "dead_letter": topic})
    invalid(refused, "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404)
    queue(client, topic)
    invalid(client.put(f"/v0/topics/{topic}", json={"dead_letter": topic}), "dead_letter")
    assert client.state(topic)["config"]["dead_letter"] is None
    # An append's config is validated where it is not applied, too.
    invalid(client.send_append(topic, 1, config={"type": "queue", "dead_letter": topic}), "dead_letter")
    assert client.state(topic)["count"] == 0


@pytest.mark.parametrize("value", ["-a", "", "a b", "a>b", "a" * 256, 7, ["a"], True])
def test_a_bad_name_is_400(client: Client, topic: str, value: object) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": value}), "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404)


def test_an_ephemeral_topic_is_refused(client: Client, topic: str, dead: str) -> None:
    client.put_topic(dead, durability="ephemeral")
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "dead_letter": dead}), "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404)
    invalid(client.send_append(topic, 1, config={"type": "queue", "dead_letter": dead}), "dead_letter")
    error_of(client.get(f"/v0/topics/{topic}"), 404)
    queue(client, topic, max_deliveries=3)
    invalid(client.put(f"/v0/topics/{topic}", json={"dead_letter": dead}), "dead_letter")
    assert client.state(topic)["config"]["dead_letter"] is None
    client.put_topic(dead, durability="disk")
    client.put_topic(topic, dead_letter=dead)
    assert client.state(topic)["config"]["dead_letter"] == dead


def test_a_topic_that_is_named_does_not_become_ephemeral(client: Client, topic: str, dead: str) -> None:
    client.put_topic(dead, ttl_ms=HOUR_MS)
    other = fresh_name()
    for name in (topic, other):
        queue(client, name, 1, max_deliveries=1, dead_letter=dead)
    change = {"durability": "ephemeral", "ttl_ms": 5}
    invalid(client.put(f"/v0/topics/{dead}", json=change), "durability")
    config = client.state(dead)["config"]
    assert (config["durability"], config["ttl_ms"]) == ("disk", HOUR_MS)
    # It may change otherwise, and become ephemeral when nobody names it any more.
    client.put_topic(dead, durability="fsync")
    client.put_topic(topic, dead_letter=None)
    invalid(client.put(f"/v0/topics/{dead}", json=change), "durability")
    client.delete_topic(other)
    client.put_topic(dead, **change)
    assert client.state(dead)["config"]["durability"] == "ephemeral"


def test_a_missing_topic_that_is_named_is_not_created_as_ephemeral(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1, max_deliveries=1, dead_letter=dead)
    invalid(client.put(f"/v0/topics/{dead}", json={"durability": "ephemeral"}), "durability")
    invalid(client.send_append(dead, 1, config={"durability": "ephemeral"}), "durability")
    error_of(client.get(f"/v0/topics/{dead}"), 404, "topic_not_found")
    fail(client, topic, 1)
    buried(client, topic, dead)


def test_a_key_names_only_what_is_its_own(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,mine::mine-") as client:
        client.headers["authorization"] = "Bearer mine"
        config = {"type": "queue", "max_deliveries": 1}
        error_of(client.put("/v0/topics/mine-a", json=config | {"dead_letter": "theirs"}), 403, "forbidden")
        refused = client.send_append("mine-a", 1, config=config | {"dead_letter": "theirs"})
        error_of(refused, 403, "forbidden")
        body_of(client.put("/v0/topics/mine-a", json=config | {"dead_letter": "mine-b"}), 201)
        client.append("mine-a", "poison")
        fail(client, "mine-a", 1)
        assert buried(client, "mine-a", "mine-b")[0]["data"] == "poison"


# What becomes of it


def test_a_dead_letter_topic_may_be_a_queue(client: Client, topic: str, dead: str) -> None:
    last = fresh_name("dead")
    queue(client, dead, max_deliveries=2, dead_letter=last)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    assert claim(client, topic) == []
    (job,) = claim(client, dead, wait_ms=20_000)
    assert (job["$seq"], job["deliveries"], job["data"]) == (1, 1, "poison")
    assert job["meta"]["$dead_letter_from"] == topic
    until(lambda: client.state(topic)["count"] == 0)
    nack(client, dead, job)
    fail(client, dead, 1)
    (record,) = buried(client, dead, last)
    assert record["meta"] == {
        "$dead_letter_from": dead,
        "$dead_letter_deliveries": "2",
        "$dead_letter_src_seq": "1",
    }


def test_a_work_stream_of_the_dead_letter_topic_gets_it(client: Client, topic: str, dead: str) -> None:
    queue(client, dead)
    queue(client, topic, "poison", max_deliveries=1, dead_letter=dead)
    with working(client, dead) as events:
        fail(client, topic, 1)
        assert claim(client, topic) == []
        assert events.job(PATIENCE_S)["data"] == "poison"


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def test_it_can_be_driven_again(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, max_deliveries=2, dead_letter=dead)
    client.append(topic, records=[{"data": "poison", "tag": "t", "meta": {"a": "b"}}])
    fail(client, topic, 2)
    (record,) = buried(client, topic, dead)
    # By hand only without its stamps, which are the daemon's.
    again = {"data": record["data"], "tag": record["$tag"], "meta": record["meta"]}
    refused = client.post(f"/v0/topics/{topic}", json={"records": [again]})
    assert refused.status_code == 400
    again["meta"] = {"a": "b"}
    assert client.append(topic, records=[again])["seqs"] == [2]
    client.delete_records(dead, before_seq=2)
    (job,) = claim(client, topic)
    assert (job["deliveries"], job["meta"]) == (1, {"a": "b"})
    nack(client, topic, job)
    fail(client, topic, 1)
    (second,) = buried(client, topic, dead)
    stamps = {"$dead_letter_from": topic, "$dead_letter_deliveries": "2", "$dead_letter_src_seq": "2"}
    assert second["meta"] == {"a": "b"} | stamps
    json.loads(client.post(f"/v0/topics/{dead}/diff", json={}).text, object_pairs_hook=unique_keys)
    client.append(topic, records=[{"data": "mended"}])
    (job,) = claim(client, topic)
    assert ack(client, topic, job)["acked"] == 1
    assert dead_lettered(client, topic) == 2


def test_a_new_instance_has_moved_nothing(client: Client, topic: str, dead: str) -> None:
    queue(client, topic, 1, max_deliveries=1, dead_letter=dead)
    fail(client, topic, 1)
    buried(client, topic, dead)
    assert dead_lettered(client, topic) == 1
    client.delete_topic(topic)
    queue(client, topic)
    assert dead_lettered(client, topic) == 0


# Restarts


class Life:
    """A daemon that has lived once and lives again, and what its queues were before."""

    def __init__(self, root: Path, ended_by: signal.Signals, has_checkpoint: bool) -> None:
        self.ended_by = ended_by
        self.daemon = Daemon(root)
        client = self.daemon.start()
        client.put_topic("dead", durability="fsync")
        for durability in CLASSES:
            queue(client, durability, 1, 2, 3, max_deliveries=1, dead_letter="dead", durability=durability)
            first, second, _ = claim(client, durability, max=3)
            nack(client, durability, first, second)
            assert claim(client, durability, max=10) == []
            until(lambda durability=durability: dead_lettered(client, durability) == 2, within_s=PATIENCE_S)  # type: ignore[misc]
        full(client, "full")
        config = {"max_deliveries": 2, "dead_letter": "full", "durability": "fsync", "leases_durable": True}
        queue(client, "waiting", "poison", **config)
        fail(client, "waiting", 2)
        parked(client, "waiting")
        if has_checkpoint:
            body_of(client.post("/v0/admin/checkpoint"))
        client.close()
        self.daemon.end(ended_by)
        self.client = self.daemon.start()


LIVES = {
    "SIGTERM": (signal.SIGTERM, False),
    "SIGKILL": (signal.SIGKILL, False),
    "checkpoint, SIGKILL": (signal.SIGKILL, True),
}


@pytest.fixture(scope="module", params=LIVES)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    life = Life(tmp_path_factory.mktemp("life"), *LIVES[request.param])
    try:
        yield life
    finally:
        life.daemon.kill()


def test_what_was_moved_stays_counted(life: Life, durability: str) -> None:
    # What a queue of class `memory` knew may be lost with the daemon; nothing is ever counted twice.
    may_be_lost = durability == "memory" and life.ended_by == signal.SIGKILL
    assert dead_lettered(life.client, durability) in (range(3) if may_be_lost else (2,))


def test_what_was_moved_is_there_and_not_here(life: Life) -> None:
    records = [record for record in records_of(life.client, "dead") if record["data"] != "later"]
    found = [(record["meta"]["$dead_letter_from"], record["data"]) for record in records]
    assert sorted(found) == sorted((durability, number) for durability in CLASSES for number in (1, 2))
    for durability in ("disk", "fsync"):
        answer = life.client.read(durability)
        assert (answer["tombstone"], seqs(answer["records"])) == (None, [3])


def test_what_waited_waits_still(life: Life) -> None:
    client = life.client
    assert claim(client, "waiting", max=10) == []
    come_to(client, "waiting", 0, 0, 1)
    make_room(client, "full")
    (record,) = buried(client, "waiting", "full")
    assert (record["data"], record["meta"]["$dead_letter_deliveries"]) == ("poison", "2")
    assert dead_lettered(client, "waiting") == 1


def test_a_kill_in_the_middle_loses_nothing(tmp_path: Path) -> None:
    """A crash in between may leave a job in both places, never in neither."""
    daemon = Daemon(tmp_path)
    rng = random.Random(5)
    total = 60
    try:
        client = daemon.start()
        config = {"max_deliveries": 1, "dead_letter": "dead", "lease_ms": 2000}
        for name in ("disk", "fsync"):
            config["dead_letter"] = f"dead-{name}"
            queue(client, name, *range(total), durability=name, leases_durable=name == "fsync", **config)
        for _ in range(3):
            timer = threading.Timer(rng.uniform(0.02, 0.25), lambda: daemon.send_signal(signal.SIGKILL))
            timer.start()
            give_back_until_it_is_gone(client)
            timer.join()
            daemon.wait()
            client = daemon.start()
            for name in ("disk", "fsync"):
                here = {record["data"] for record in client.read(name, limit=1000)["records"]}
                there = {record["data"] for record in records_of(client, f"dead-{name}")}
                assert here | there == set(range(total))
        for name in ("disk", "fsync"):
            deadline = time.monotonic() + PATIENCE_S
            while client.state(name)["count"]:
                assert time.monotonic() < deadline
                if jobs := claim(client, name, max=20, wait_ms=100):
                    nack(client, name, *jobs)
            records = records_of(client, f"dead-{name}")
            assert {record["data"] for record in records} == set(range(total))
            assert all(record["data"] + 1 == int(record["meta"]["$dead_letter_src_seq"]) for record in records)
            assert client.read(name)["tombstone"] is None
            # A job that is there twice was here, and was moved, until it was gone: once.
            assert dead_lettered(client, name) == total
    finally:
        daemon.kill()


def give_back_until_it_is_gone(client: Client) -> None:
    try:
        while True:
            for name in ("disk", "fsync"):
                if jobs := claim(client, name, max=10):
                    nack(client, name, *jobs)
    except httpx.TransportError:
        return
