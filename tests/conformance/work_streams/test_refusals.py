"""Section 9: work streams that are refused before they open, and how many there may be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conformance.client import Client, error_of, running, until
from tests.conformance.sse import Session, connect, gauge, stream
from tests.conformance.work_stream_client import HOUR_MS, ack, claim, come_to, counts, queue, seqs, work_path, working

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
