"""Section 9: `GET .../work`, the stream of jobs that are leased to a connection."""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import json
import random
import re
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlencode

import pytest

from tests.conformance.client import Client, Daemon, body_of, error_of, fresh_name, running, until
from tests.conformance.sse import (
    WITHIN_S,
    Cut,
    Events,
    Frame,
    Http1,
    Http2,
    Parser,
    Session,
    Transport,
    connect,
    gauge,
    stream,
)

MIB = 1 << 20
SMALL = 4096
HOUR_MS = 3_600_000
ALWAYS = {"topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}


# Jobs as frames


@dataclass(frozen=True)
class JobFrame(Frame):
    """A frame of a work stream."""

    final: ClassVar = frozenset({404, 408, 503})

    def check_kind(self) -> None:
        assert self.event == "job", self
        assert set(self.data) - {"$tag", "$node", "meta"} == ALWAYS, self.data
        assert self.id == str(self.data["$seq"])
        assert re.fullmatch(r"lease_[0-9a-f]+", self.data["lease_id"]), self.data["lease_id"]
        assert all(type(self.data[name]) is int for name in ("$seq", "deadline", "$ts", "deliveries")), self.data
        assert self.data["deliveries"] >= 1


class JobParser(Parser):
    """As strict as its base, for the frames of a work stream."""

    frame = JobFrame
    # Section 8 names the id before the event, section 9 after it.
    orders: ClassVar = [
        list(names)
        for fields in ((b"id", b"event", b"data"), (b"event", b"data"))
        for names in itertools.permutations(fields)
    ]


class Work(Events):
    """An open work stream."""

    parser_class = JobParser

    def job(self, within_s: float = WITHIN_S) -> Any:
        """The next job."""
        frame = self.next(within_s)
        assert frame.event == "job", frame
        return frame.data

    def jobs(self, count: int) -> list[Any]:
        return [self.job() for _ in range(count)]

    def job_if_any(self, within_s: float) -> Any:
        """The next job, or None if none comes in this time."""
        deadline = time.monotonic() + within_s
        while not self.parser.frames:
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self.wait(left)
        return self.job()


def work_path(topic: str, node: str | None = "w", **query: Any) -> str:
    pairs = query if node is None else {"node": node, **query}
    return f"/v0/topics/{topic}/work" + (f"?{urlencode(pairs)}" if pairs else "")


def working(client: Client, topic: str, node: str = "w", *, how: Any = None, **query: Any) -> Work:
    """Open a work stream; `how` holds arguments for `connect`."""
    return Work(connect(client, work_path(topic, node, **query), **(how or {})).transport).opened()


@contextmanager
def all_at_work(streams: Iterable[Work]) -> Iterator[list[Work]]:
    with ExitStack() as stack:
        yield [stack.enter_context(one) for one in streams]


# The calls


def queue(client: Client, topic: str, *data: Any, **config: Any) -> None:
    """Create a queue and append these jobs."""
    client.put_topic(topic, type="queue", **config)
    if data:
        client.append(topic, *data)


def call(client: Client, topic: str, verb: str, node: str = "w", **fields: Any) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}/{verb}", json={"node": node, **fields}))


def claim(client: Client, topic: str, node: str = "w", **fields: Any) -> list[Any]:
    claimed: list[Any] = call(client, topic, "claim", node, **fields)["claimed"]
    return claimed


def ack(client: Client, topic: str, *jobs: Any, node: str = "w", fenced: bool = True) -> Any:
    """Ack what was claimed, with its lease ids or without."""
    fields = {"lease_ids": [job["lease_id"] for job in jobs]} if fenced else {}
    return call(client, topic, "ack", node, seqs=[job["$seq"] for job in jobs], **fields)


def nack(client: Client, topic: str, *jobs: Any, node: str = "w", **fields: Any) -> Any:
    return call(client, topic, "nack", node, seqs=[job["$seq"] for job in jobs], **fields)


def counts(client: Client, topic: str) -> tuple[int, int, int]:
    """What is ready, in flight and delayed, which is all there is."""
    state = client.state(topic)
    figures = state["queue"]
    assert set(figures) == {"ready", "in_flight", "delayed", "dead_lettered", "paused"}
    assert figures["ready"] + figures["in_flight"] + figures["delayed"] == state["count"]
    return figures["ready"], figures["in_flight"], figures["delayed"]


def seqs(jobs: list[Any]) -> list[int]:
    return [job["$seq"] for job in jobs]


def come_to(client: Client, topic: str, *expected: int, within_s: float = 40) -> None:
    """Wait until this is ready, in flight and delayed."""
    until(lambda: counts(client, topic) == expected, within_s=within_s)


@pytest.fixture(params=[False, True], ids=["h1", "h2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# Refused before it opens


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "node"),
        ("?max=1", "node"),
        ("?node=", "node"),
        ("?node=" + "n" * 129, "node"),
        ("?node=" + "%C3%A9" * 65, "node"),
        ("?node=w&max=x", "max"),
        ("?node=w&max=1.5", "max"),
        ("?node=w&max=", "max"),
        ("?node=w&max=true", "max"),
        ("?node=w&lease_ms=x", "lease_ms"),
        ("?node=w&lease_ms=1s", "lease_ms"),
        ("?node=w&lease_ms=1.5", "lease_ms"),
    ],
)
def test_a_wrong_query_is_400_and_names_the_field(client: Client, http2: bool, query: str, field: str) -> None:
    client.put_topic("queried", type="queue")
    with connect(client, f"/v0/topics/queried/work{query}", http2=http2) as events:
        error = events.refused(400, "invalid_request")
    assert field in json.dumps(error)


def test_a_node_may_have_128_bytes(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    node = "é" * 64
    with working(client, topic, node) as events:
        assert ack(client, topic, events.job(), node=node)["acked"] == 1


def test_a_missing_topic_is_404_and_is_not_created(client: Client, topic: str, http2: bool) -> None:
    with connect(client, work_path(topic), http2=http2) as events:
        error = events.refused(404, "topic_not_found")
    assert error["detail"]["topic"] == topic
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


def test_a_log_is_no_queue(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1)
    with connect(client, work_path(topic), http2=http2) as events:
        events.refused(409, "not_a_queue")


def test_a_bad_name_is_400(client: Client) -> None:
    for name in ("-a", "a%20b", "a%3Eb", "a" * 256):
        with connect(client, work_path(name)) as events:
            events.refused(400, "invalid_request")


@pytest.mark.parametrize("accept", ["application/json", "text/html", "text/event-stream;q=0", "*/*;q=0.0"])
def test_what_excludes_a_stream_gets_406_and_no_job(client: Client, topic: str, http2: bool, accept: str) -> None:
    queue(client, topic, 1)
    with connect(client, work_path(topic), accept=accept, http2=http2) as events:
        events.refused(406, "not_acceptable")
    assert counts(client, topic) == (1, 0, 0)


@pytest.mark.parametrize("accept", [None, "*/*", "text/event-stream", "text/*"])
def test_what_accepts_a_stream_gets_it(client: Client, topic: str, http2: bool, accept: str | None) -> None:
    queue(client, topic, 1)
    with working(client, topic, how={"accept": accept, "http2": http2}) as events:
        assert events.job()["$seq"] == 1


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_another_method_is_405(client: Client, topic: str, method: str) -> None:
    client.put_topic(topic, type="queue")
    answer = client.request(method, f"/v0/topics/{topic}/work?node=w")
    error_of(answer, 405, "method_not_allowed")
    assert {"GET"} <= {name.strip() for name in answer.headers["allow"].split(",")} <= {"GET", "HEAD", "OPTIONS"}


def test_who_may_both_read_and_write_may_work(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,both:rw,reads:r,writes:w,mine:rw:mine") as client:
        client.headers["authorization"] = "Bearer boss"
        queue(client, "jobs", 1, 2)
        for headers, status in [
            ({}, 401),
            ({"authorization": "Bearer nobody"}, 401),
            ({"authorization": "Bearer reads"}, 403),
            ({"authorization": "Bearer writes"}, 403),
            ({"authorization": "Bearer mine"}, 403),
        ]:
            with connect(client, work_path("jobs"), headers=headers) as events:
                events.refused(status)
        with working(client, "jobs", how={"headers": {"authorization": "Bearer both"}}) as events:
            assert events.job()["$seq"] == 1
            with working(client, "jobs", token="both") as other:
                assert other.job()["$seq"] == 2


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
    """An EventSource sends the id of the last frame, whatever the stream makes of it."""
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


# Its end


def close_in_order(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2)
    events.jobs(2)
    return events.close


def reset(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2)
    events.jobs(2)
    assert isinstance(events.transport, Http1)
    events.transport._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return events.close


def cancel_stream(client: Client, topic: str) -> Callable[[], None]:
    connection = Http2(client)
    events = working(client, topic, max=2, how={"http2": connection})
    events.jobs(2)
    return events.close


def close_connection(client: Client, topic: str) -> Callable[[], None]:
    events = working(client, topic, max=2, how={"http2": True})
    events.jobs(2)
    return events.close


def leave_unread(client: Client, topic: str) -> Callable[[], None]:
    """Nothing of what was sent has been taken from the socket."""
    events = working(client, topic, max=2)
    come_to(client, topic, 1, 2, 0)
    return events.close


@pytest.mark.parametrize("leave", [close_in_order, reset, cancel_stream, close_connection, leave_unread])
def test_what_a_connection_held_is_released_when_it_ends(
    client: Client, topic: str, leave: Callable[[Client, str], Callable[[], None]]
) -> None:
    queue(client, topic, 1, 2, 3, lease_ms=HOUR_MS)
    close = leave(client, topic)
    assert counts(client, topic) == (1, 2, 0)
    close()
    come_to(client, topic, 3, 0, 0)
    jobs = claim(client, topic, "another", max=10)
    assert [(job["$seq"], job["deliveries"]) for job in jobs] == [(1, 2), (2, 2), (3, 1)]
    assert ack(client, topic, *jobs, node="another")["acked"] == 3


def test_who_waits_gets_what_is_released(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, 1, lease_ms=HOUR_MS)
    with working(client, topic, "another", how={"http2": http2}) as next_one, ThreadPoolExecutor(1) as pool:
        job = next_one.job()
        poll = pool.submit(claim, client, topic, "third", wait_ms=30_000)
        time.sleep(0.3)
        assert not poll.done()
        next_one.close()
        (again,) = poll.result(40)
    assert (again["$seq"], again["deliveries"]) == (1, 2)
    assert again["lease_id"] != job["lease_id"]


def test_what_was_released_is_held_no_more(client: Client, topic: str) -> None:
    queue(client, topic, 1, lease_ms=HOUR_MS)
    with working(client, topic) as events:
        job = events.job()
    come_to(client, topic, 1, 0, 0)
    for fenced in (True, False):
        answer = ack(client, topic, job, fenced=fenced)
        assert (answer["acked"], answer["skipped"]) == (0, [1])
    answer = call(client, topic, "extend", seqs=[1], lease_ms=1000)
    assert (answer["extended"], answer["skipped"], answer["deadlines"]) == (0, [1], {})


def test_what_was_acked_does_not_come_back(client: Client, topic: str) -> None:
    queue(client, topic, 1, 2)
    with working(client, topic, max=2) as events:
        first, _ = events.jobs(2)
        ack(client, topic, first)
    come_to(client, topic, 1, 0, 0)
    assert seqs(claim(client, topic, max=10)) == [2]


def test_what_its_node_claimed_otherwise_stays_leased(client: Client, topic: str) -> None:
    queue(client, topic, *range(1, 5), lease_ms=HOUR_MS)
    before = claim(client, topic)
    with working(client, topic) as events, working(client, topic) as other:
        mine, theirs = events.job(), other.job()
        after = claim(client, topic)
        assert sorted(seqs([*before, mine, theirs, *after])) == [1, 2, 3, 4]
        events.close()
        come_to(client, topic, 1, 3, 0)
        assert seqs(claim(client, topic, "x", max=10)) == [mine["$seq"]]
        answer = ack(client, topic, *before, theirs, *after)
        assert (answer["acked"], answer["skipped"]) == (3, [])


def test_what_its_node_took_over_by_a_claim_stays_leased(client: Client, topic: str) -> None:
    """The stream held the job once, but what is released at its end is what it holds then."""
    queue(client, topic, 1, 2, lease_ms=HOUR_MS)
    with working(client, topic) as events:
        nack(client, topic, events.job(), delay_ms=300)
        assert events.job()["$seq"] == 2
        (taken,) = claim(client, topic, wait_ms=10_000)
        assert (taken["$seq"], taken["deliveries"]) == (1, 2)
    come_to(client, topic, 1, 1, 0)
    assert ack(client, topic, taken)["acked"] == 1


def test_a_topic_that_is_deleted_ends_its_streams(client: Client, topic: str) -> None:
    queue(client, topic, 1)
    with (
        working(client, topic) as first,
        working(client, topic) as second,
        working(client, topic, how={"http2": True}) as third,
    ):
        come_to(client, topic, 0, 1, 0)
        client.delete_topic(topic)
        for events in (first, second, third):
            frames = events.final(404)
            assert all(frame.event == "job" for frame in frames)
    with connect(client, work_path(topic)) as refused:
        refused.refused(404, "topic_not_found")


def test_a_topic_that_is_made_anew_is_another(client: Client, topic: str) -> None:
    queue(client, topic)
    with working(client, topic) as events:
        client.delete_topic(topic)
        queue(client, topic, "new")
        assert events.final(404) == []
    with working(client, topic) as events:
        job = events.job()
        assert (job["$seq"], job["data"], job["deliveries"]) == (1, "new", 1)


def test_a_stop_ends_streams_with_503_and_releases_what_they_held(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, drain_ms=5000)
    try:
        client = daemon.start()
        names = ["plain", "durable"]
        for name in names:
            queue(client, name, 1, 2, 3, lease_ms=HOUR_MS, leases_durable=name == "durable", durability="fsync")
        with (
            working(client, "plain") as first,
            working(client, "plain", how={"http2": True}) as second,
            working(client, "durable", max=2) as third,
        ):
            held = {"plain": [first.job(), second.job()], "durable": third.jobs(2)}
            daemon.send_signal(signal.SIGTERM)
            for events in (first, second, third):
                assert events.final(503) == []
            assert daemon.wait() == 0
        client = daemon.start()
        for name in names:
            assert counts(client, name) == (3, 0, 0)
            jobs = claim(client, name, "x", max=10)
            assert seqs(jobs) == [1, 2, 3]
            if name == "durable":
                assert [job["deliveries"] for job in jobs] == [2, 2, 1]
            assert ack(client, name, *held[name])["acked"] == 0
            assert ack(client, name, *jobs, node="x")["acked"] == 3
    finally:
        daemon.kill()


def test_a_kill_cuts_streams_off_and_what_they_held_comes_again(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        names = ["plain", "durable"]
        for name in names:
            queue(client, name, 1, 2, leases_durable=name == "durable", durability="fsync")
        with working(client, "plain", lease_ms=2000) as first, working(client, "durable", lease_ms=2000) as second:
            held = {"plain": first.job(), "durable": second.job()}
            daemon.end(signal.SIGKILL)
            for events in (first, second):
                with pytest.raises(Cut):
                    events.next()
        client = daemon.start()
        for name in names:
            found = claim(client, name, "x", max=10)
            while len(found) < 2:
                found += claim(client, name, "x", max=10, wait_ms=10_000)
            assert sorted(seqs(found)) == [1, 2]
            assert ack(client, name, held[name])["skipped"] == [1]
    finally:
        daemon.kill()


# Several


def test_several_streams_share_the_work(client: Client, topic: str) -> None:
    queue(client, topic, *range(200), lease_ms=HOUR_MS)

    def do(http2: bool) -> list[int]:
        done = []
        with Client(client.daemon) as own, working(own, topic, max=3, how={"http2": http2}) as events:
            while (job := events.job_if_any(1.5)) is not None:
                assert ack(own, topic, job)["acked"] == 1
                done.append(job["$seq"])
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [future.result() for future in [pool.submit(do, number % 2 == 1) for number in range(4)]]
    assert sorted(seq for each in done for seq in each) == list(range(1, 201))
    assert counts(client, topic) == (0, 0, 0)


def test_each_stream_that_has_a_place_gets_its_job(client: Client, topic: str) -> None:
    queue(client, topic)
    with all_at_work(working(client, topic, f"n{n}", how={"http2": n % 2 == 1}) for n in range(6)) as streams:
        client.append(topic, *range(6))
        found = [events.next().data for events in streams]
        assert sorted(seqs(found)) == [1, 2, 3, 4, 5, 6]
        assert counts(client, topic) == (0, 6, 0)


def test_a_hundred_streams_share_a_connection(client: Client, topic: str) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    with Http2(client) as connection:
        streams = [working(client, topic, f"n{n}", how={"http2": connection}) for n in range(100)]
        client.append(topic, *range(100))
        found = [events.job() for events in streams]
        assert sorted(seqs(found)) == list(range(1, 101))
        streams[7].close()
        come_to(client, topic, 1, 99, 0)
        (job,) = claim(client, topic, "x", max=10)
        assert (job["$seq"], job["deliveries"]) == (found[7]["$seq"], 2)
    come_to(client, topic, 99, 1, 0)


def test_one_job_goes_to_one_of_many(client: Client, topic: str) -> None:
    queue(client, topic)
    with all_at_work(working(client, topic, f"n{n}") for n in range(8)) as streams:
        for number in range(1, 4):
            client.append(topic, number)
            come_to(client, topic, 0, 1, 0)
            for events in streams:
                events.wait(0.2)
            holders = [n for n, events in enumerate(streams) if events.parser.frames]
            assert len(holders) == 1
            job = streams[holders[0]].next().data
            assert ack(client, topic, job, node=f"n{holders[0]}")["acked"] == 1


def test_streams_and_claimers_never_hold_the_same(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), lease_ms=HOUR_MS)
    with working(client, topic, max=5) as events:
        found = claim(client, topic, "x", max=7) + events.jobs(5) + claim(client, topic, "y", max=20)
    assert sorted(seqs(found)) == list(range(1, 21))


def test_streams_of_a_connection_go_on_while_one_of_them_is_not_read(client: Client, topic: str) -> None:
    other = fresh_name()
    queue(client, topic, *(["x" * 500_000] * 10))
    queue(client, other, *range(20))
    with Http2(client) as connection:
        stopped = working(client, topic, max=10, how={"http2": connection})
        events = working(client, other, how={"http2": connection})
        for number in range(20):
            job = events.job()
            assert job["data"] == number
            ack(client, other, job)
        assert seqs(stopped.jobs(10)) == list(range(1, 11))


@dataclass
class Held:
    """A job as one connection had it."""

    deliveries: int
    came: float
    until: float
    """When it was given up, or else its deadline."""
    is_acked: bool = False


def work_as_it_comes(client: Client, topic: str, node: str, seed: int, ledger: dict[int, list[Held]]) -> None:
    """Open streams and claim, ack, give back, come too late and hang up, as the seed says."""
    rng = random.Random(seed)
    deadline = time.monotonic() + 90
    with Client(client.daemon) as own:
        while time.monotonic() < deadline and own.state(topic)["count"]:
            most, lease_ms = rng.randint(1, 6), rng.choice([150, 1000, 5000])
            if rng.random() < 0.3:
                jobs = claim(own, topic, node, max=most, lease_ms=lease_ms, wait_ms=100)
                treat(own, topic, node, rng, ledger, jobs)
                continue
            with working(own, topic, node, max=most, lease_ms=lease_ms, how={"http2": rng.random() < 0.5}) as events:
                held = []
                for _ in range(rng.randint(1, 12)):
                    if (job := events.job_if_any(0.2)) is not None:
                        held += treat(own, topic, node, rng, ledger, [job])
                for one in held:
                    one.until = min(one.until, time.time())


def treat(
    client: Client, topic: str, node: str, rng: random.Random, ledger: dict[int, list[Held]], jobs: list[Any]
) -> list[Held]:
    """Do one thing or another with each job; how long it was held at most."""
    held = []
    for job in jobs:
        one = Held(job["deliveries"], time.time(), job["deadline"] / 1000)
        ledger[job["$seq"]].append(one)
        held.append(one)
        match rng.choice(["ack", "ack", "ack", "nack", "extend", "late", "keep"]):
            case "ack":
                one.is_acked = ack(client, topic, job, node=node)["acked"] == 1
            case "nack":
                asked = time.time()
                # Another lease of the same node may have followed already.
                fields = {"lease_ids": [job["lease_id"]], "delay_ms": rng.choice([0, 50])}
                if nack(client, topic, job, node=node, **fields)["nacked"]:
                    one.until = min(one.until, asked)
            case "extend":
                fields = {"seqs": [job["$seq"]], "lease_ids": [job["lease_id"]], "lease_ms": 300}
                for deadline in call(client, topic, "extend", node, **fields)["deadlines"].values():
                    one.until = deadline / 1000
            case "late":
                time.sleep(0.2)
    return held


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.more)])
def test_a_job_never_has_two_holders_whatever_comes_and_goes(client: Client, topic: str, seed: int) -> None:
    queue(client, topic, *range(250))
    ledger: dict[int, list[Held]] = {seq: [] for seq in range(1, 251)}
    with ThreadPoolExecutor(5) as pool:
        works = [pool.submit(work_as_it_comes, client, topic, f"n{n}", 10 * seed + n, ledger) for n in range(5)]
        for work in works:
            work.result(120)
    come_to(client, topic, 0, 0, 0)
    for seq, holders in ledger.items():
        holders.sort(key=lambda held: held.deliveries)
        assert [held.is_acked for held in holders] == [False] * (len(holders) - 1) + [True], (seq, holders)
        for first, second in itertools.pairwise(holders):
            assert first.deliveries < second.deliveries, (seq, holders)
            assert second.came >= first.until - 0.02, (seq, first, second)


# The coalescing window


def taken_by(events: Work) -> list[int]:
    """Everything that comes until nothing has come for a while."""
    found = []
    while (job := events.job_if_any(1.5)) is not None:
        found.append(job["$seq"])
    return found


def test_streams_and_claimers_of_a_window_divide_evenly(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), claim_jitter_ms=3000, lease_ms=HOUR_MS)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(claim, client, topic, node, max=10) for node in ("a", "b")]
        with working(client, topic, "c", max=10) as first, working(client, topic, "d", max=10) as second:
            shares = [seqs(poll.result(40)) for poll in polls]
            shares += [taken_by(first), taken_by(second)]
    assert [len(share) for share in shares] == [5, 5, 5, 5]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))


def test_a_share_is_bounded_by_max(client: Client, topic: str) -> None:
    queue(client, topic, *range(20), claim_jitter_ms=3000, lease_ms=HOUR_MS)
    with ThreadPoolExecutor(2) as pool:
        polls = [pool.submit(claim, client, topic, node, max=most) for node, most in (("a", 100), ("b", 1))]
        with working(client, topic, "c", max=2) as first, working(client, topic, "d", max=100) as second:
            shares = [seqs(poll.result(40)) for poll in polls]
            shares += [taken_by(first), taken_by(second)]
    lengths = [len(share) for share in shares]
    assert (lengths[1], lengths[2]) == (1, 2)
    assert sorted((lengths[0], lengths[3])) == [8, 9]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))


def test_those_who_wait_together_divide_what_comes_evenly(client: Client, topic: str) -> None:
    queue(client, topic, claim_jitter_ms=1000, lease_ms=HOUR_MS)
    with (
        ThreadPoolExecutor(2) as pool,
        working(client, topic, "c", max=10) as first,
        working(client, topic, "d", max=10) as second,
    ):
        polls = [pool.submit(claim, client, topic, node, max=10, wait_ms=30_000) for node in ("a", "b")]
        time.sleep(1.5)
        client.append(topic, *range(20))
        shares = [seqs(poll.result(40)) for poll in polls]
        shares += [taken_by(first), taken_by(second)]
    assert [len(share) for share in shares] == [5, 5, 5, 5]
    assert sorted(seq for share in shares for seq in share) == list(range(1, 21))


# Who does not read, and who is not there any more


def test_who_does_not_read_holds_up_nobody(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    total = 64
    with working(client, topic, "stopped", max=1000, how={"http2": http2, "receive_buffer": SMALL}):
        for start in range(0, total, 16):
            client.append(topic, *(["x" * 1_000_000] * 16))
            assert client.state(topic)["head_seq"] == start + 16
        with working(client, topic, "reads", max=4) as events:
            found = events.jobs(4)
            ack(client, topic, *found, node="reads")
            found += events.jobs(4)
        (other,) = claim(client, topic, "claims", wait_ms=30_000)
        assert other["$seq"] <= total
        # It holds what lies between the daemon and it, and not all there is.
        assert counts(client, topic)[1] < total - 8
    ack(client, topic, other, node="claims")
    come_to(client, topic, total - 5, 0, 0)


def test_who_reads_late_gets_everything(client: Client, topic: str, http2: bool) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    for _ in range(3):
        client.append(topic, *(["x" * 1_000_000] * 10))
    with working(client, topic, max=1000, how={"http2": http2, "receive_buffer": SMALL}) as events:
        time.sleep(1)
        found = events.jobs(30)
        assert seqs(found) == list(range(1, 31))
        assert ack(client, topic, *found)["acked"] == 30


def test_who_takes_nothing_for_30_s_loses_what_it_held(client: Client, topic: str) -> None:
    queue(client, topic, lease_ms=HOUR_MS)
    for _ in range(3):
        client.append(topic, *(["x" * 1_000_000] * 10))
    how = {"receive_buffer": SMALL}
    with working(client, topic, max=1000, how=how) as first, working(client, topic, how=how | {"http2": True}, max=5):
        until(lambda: counts(client, topic)[1] > 0)
        come_to(client, topic, 30, 0, 0, within_s=90)
        frames, last = first.rest()
        assert all(frame.event == "job" for frame in frames)
        assert last is None or last.data["code"] == 408


def vanish(transport: Transport) -> None:
    """From now on the kernel drops whatever comes for this connection: it neither answers nor ends it.

    What it has sent before has arrived by then, or it would be sent again and again, which is a sign of life.
    """

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))

    return_0 = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0))
    program = Program(1, ctypes.addressof(return_0))
    connection = transport.connection if not isinstance(transport, Http1) else transport  # type: ignore[attr-defined]
    attach_filter = 26
    until(lambda: fcntl.ioctl(connection._socket, termios.TIOCOUTQ, bytes(4)) == bytes(4))
    connection._socket.setsockopt(socket.SOL_SOCKET, attach_filter, bytes(program))


def test_who_vanished_is_noticed_and_loses_what_it_held(client: Client, topic: str) -> None:
    """Nothing ends these connections. One is idle, and the other ones are sent to when they are gone already."""
    busy, busy_h2 = fresh_name(), fresh_name()
    held = {topic: 1, busy: 2, busy_h2: 2}
    for name in held:
        queue(client, name, 1, lease_ms=HOUR_MS)
    with (
        working(client, topic) as first,
        working(client, busy, max=3) as second,
        working(client, busy_h2, max=3, how={"http2": True}) as third,
    ):
        for events in (first, second, third):
            events.job()
            vanish(events.transport)
        for name in (busy, busy_h2):
            client.append(name, 2)
        began = time.monotonic()
        released: dict[str, float] = {}
        while len(released) < len(held) and time.monotonic() < began + 90:
            for name, number in held.items():
                if name not in released and counts(client, name) == (number, 0, 0):
                    released[name] = time.monotonic() - began
            time.sleep(0.1)
        assert released.keys() == held.keys(), released


# Connections are counted


def test_work_streams_are_counted_and_limited(tmp_path: Path) -> None:
    with running(tmp_path, max_sse_connections=4) as client:
        queue(client, "jobs", 1, 2)
        assert gauge(client, "topics_sse_connections") == 0
        with working(client, "jobs") as first, working(client, "jobs", how={"http2": True}) as second:
            assert gauge(client, "topics_sse_connections") == 2
            with stream(client, "jobs"), Session(client, "jobs").open():
                assert gauge(client, "topics_sse_connections") == 4
                for http2 in (False, True):
                    with connect(client, work_path("jobs"), http2=http2) as refused:
                        error = refused.refused(429, "throttled")
                        assert (error["detail"]["limit"], error["detail"]["max"]) == ("max_sse_connections", 4)
                        assert int(refused.headers["retry-after"]) >= 0
            until(lambda: gauge(client, "topics_sse_connections") == 2)
            assert sorted([first.job()["$seq"], second.job()["$seq"]]) == [1, 2]
            with stream(client, "jobs"), working(client, "jobs"):
                assert gauge(client, "topics_sse_connections") == 4
        until(lambda: gauge(client, "topics_sse_connections") == 0)
        # A refused one holds no place, nor does one that was ended by the daemon.
        for _ in range(6):
            with connect(client, work_path("missing")) as refused:
                refused.refused(404)
            queue(client, "short")
            with working(client, "short") as events:
                client.delete_topic("short")
                events.final(404)
        until(lambda: gauge(client, "topics_sse_connections") == 0)


def test_work_streams_of_a_key_are_limited(tmp_path: Path) -> None:
    with running(tmp_path, api_keys="boss,worker:rw", max_sse_connections_per_key=1) as client:
        client.headers["authorization"] = "Bearer boss"
        queue(client, "jobs", 1, 2)
        how = {"headers": {"authorization": "Bearer worker"}}
        with working(client, "jobs", how=how) as events:
            events.job()
            with connect(client, work_path("jobs"), headers=how["headers"]) as refused:
                error = refused.refused(429, "throttled")
                assert error["detail"]["limit"] == "max_sse_connections_per_key"
            with working(client, "jobs", how={"headers": {"authorization": "Bearer boss"}}) as other:
                other.job()


def test_who_comes_and_goes_leaves_nothing_behind(client: Client, topic: str) -> None:
    queue(client, topic, *range(5), lease_ms=HOUR_MS)
    for number in range(20):
        with working(client, topic, max=5, how={"http2": number % 2 == 1}) as events:
            if number % 3 == 0:
                events.job()
    come_to(client, topic, 5, 0, 0)
    jobs = claim(client, topic, "x", max=10)
    assert seqs(jobs) == [1, 2, 3, 4, 5]
    assert all(job["deliveries"] <= 21 for job in jobs)
