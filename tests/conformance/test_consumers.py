"""Named consumers over HTTP and through the clients (`docs/spec/consumers.md` section 3)."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, body_of, error_of, invalid, running, seqs_of, until
from tests.conformance.router_client import metric
from tests.conformance.websocket import WebSocket
from topics.client import Client as TopicsClient
from topics.client import Conflict, NotFound, Record


def path(topic: str, consumer: str = "c", *more: str) -> str:
    return "/".join([f"/v0/topics/{topic}/consumers", consumer, *more])


def put(client: Client, topic: str, consumer: str = "c", **fields: Any) -> Any:
    return body_of(client.put(path(topic, consumer), json={"from": "earliest", **fields}), 200, 201)


def commit(client: Client, topic: str, seq: int, **fields: Any) -> httpx.Response:
    return client.post(path(topic, "c", "commit"), json={"seq": seq, **fields})


def acquire(client: Client, topic: str, owner: str, lease_ms: int = 60_000) -> httpx.Response:
    return client.post(path(topic, "c", "acquire"), json={"owner": owner, "lease_ms": lease_ms})


def test_a_consumer_from_its_creation_to_its_deletion(client: Client, topic: str) -> None:
    error_of(client.put(path(topic), json={}), 404, "topic_not_found")
    client.append(topic, 1, 2, 3)
    error_of(client.get(path(topic)), 404, "consumer_not_found")
    response = client.put(path(topic), json={"from": {"seq": 1}, "ttl_ms": 60_000})
    state = body_of(response, 201)
    assert (state["committed_seq"], state["lag"], state["owner"], state["generation"], state["filter"]) == (
        1, 2, None, 0, None,
    )  # fmt: skip
    assert (state["last_commit_ts"], state["ttl_ms"]) == (None, 60_000)
    again = body_of(client.put(path(topic), json={"from": "tail"}), 200)
    assert (again["committed_seq"], again["ttl_ms"]) == (1, 60_000)
    moved = body_of(commit(client, topic, 2))
    assert (moved["committed_seq"], moved["moved"], moved["lag"], moved["epoch"]) == (2, True, 1, state["epoch"])
    assert body_of(commit(client, topic, 1))["moved"] is False
    invalid(commit(client, topic, 4), "seq")
    error_of(commit(client, topic, 3, epoch=state["epoch"] + 1), 409, "fenced")
    assert body_of(client.get(path(topic)))["last_commit_ts"] > 0
    seek = client.post(path(topic, "c", "seek"), json={"to": "earliest"})
    assert body_of(seek)["committed_seq"] == 0
    assert body_of(client.delete(path(topic)))["deleted"] is True
    assert body_of(client.delete(path(topic)))["deleted"] is False
    error_of(commit(client, topic, 1), 404, "consumer_not_found")


def test_without_a_place_a_consumer_begins_at_the_tail(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    assert body_of(client.put(path(topic)), 201)["committed_seq"] == 2


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"from": "middle"}, "from"),
        ({"from": {}}, "from"),
        ({"from": {"seq": 1, "ts": 1}}, "from"),
        ({"from": {"seq": 9}}, "from.seq"),
        ({"from": {"seq": -1}}, "from.seq"),
        ({"from": {"ts": -1}}, "from.ts"),
        ({"ttl_ms": -1}, "ttl_ms"),
        ({"filter": ["tag", "Ne", "x"]}, "filter[1]"),
        ({"filter": ["And", ["tag", "Eq", "x"], ["data", "n", "Eq", 1]]}, "filter[2][1]"),
        ({"filter": "tag"}, "filter"),
        ({"filter": {}}, "filter"),
        ({"filter": ["In", *[["tag", "Eq", "x"]] * 65]}, "filter[0]"),
        ({"position": 1}, "position"),
    ],
)
def test_what_a_put_refuses(client: Client, topic: str, fields: Any, field: str) -> None:
    client.append(topic, 1)
    refused = client.put(path(topic), json=fields)
    invalid(refused, field)
    assert refused.json()["error"]["detail"]["field"] == field
    error_of(client.get(path(topic)), 404, "consumer_not_found")


def test_a_list_has_pages(client: Client, topic: str) -> None:
    client.append(topic, 1)
    for name in ("b", "a", "c1", "c2"):
        put(client, topic, name)
    first = body_of(client.get(f"/v0/topics/{topic}/consumers", params={"page_size": 3}))
    assert [one["consumer"] for one in first["consumers"]] == ["a", "b", "c1"]
    query = {"page_size": 3, "cursor": first["next_cursor"]}
    second = body_of(client.get(f"/v0/topics/{topic}/consumers", params=query))
    assert [one["consumer"] for one in second["consumers"]] == ["c2"]
    assert "next_cursor" not in second
    invalid(client.get(f"/v0/topics/{topic}/consumers", params={"cursor": "x"}), "cursor")
    assert len(list(islice(TopicsClient(str(client.base_url)).all_consumers(topic, prefix="c"), 5))) == 2


def test_ownership(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    put(client, topic)
    got = body_of(acquire(client, topic, "ann"))
    assert got["generation"] == 1
    assert body_of(acquire(client, topic, "ann"))["generation"] == 1
    detail = error_of(acquire(client, topic, "bob"), 409, "consumer_owned")["detail"]
    assert detail["owner"] == "ann"
    assert detail["deadline"] >= got["deadline"]
    error_of(commit(client, topic, 1), 409, "fenced")
    error_of(client.post(path(topic, "c", "seek"), json={"seq": 1}), 409, "fenced")
    for wrong in ({}, {"generation": 2}):
        for how in ({"ack": "before"}, {"commit_seq": 1}):
            body = {"consumer": "c", **how, **wrong}
            error_of(client.post(f"/v0/topics/{topic}/diff", json=body), 409, "fenced")
    assert body_of(commit(client, topic, 1, generation=1))["moved"] is True
    assert body_of(client.post(path(topic, "c", "release"), json={"generation": 2}))["released"] is False
    assert body_of(client.post(path(topic, "c", "release"), json={"generation": 1}))["released"] is True
    assert body_of(commit(client, topic, 2))["moved"] is True
    assert body_of(acquire(client, topic, "bob"))["generation"] == 2


def test_reads_begin_at_the_position(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    put(client, topic)
    where = f"/v0/topics/{topic}/diff"

    def seqs(**fields: Any) -> list[int]:
        by_body = body_of(client.post(where, json={"consumer": "c", **fields}))
        return seqs_of(by_body)

    assert seqs() == seqs() == [1, 2, 3]
    assert seqs(commit_seq=1) == [2, 3]
    assert seqs_of(body_of(client.get(where, params={"consumer": "c", "commit_seq": 2}))) == [3]
    assert seqs(ack="before", limit=1) == [3]
    assert seqs(ack="before") == []
    client.append(topic, 4)
    assert seqs_of(body_of(client.get(where, params={"consumer": "c", "ack": "before"}))) == [4]
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"consumer": "c", "from_seq": 0}, "from_seq"),
        ({"commit_seq": 1}, "commit_seq"),
        ({"ack": "before"}, "ack"),
        ({"consumer": "c", "ack": "after"}, "ack"),
        ({"consumer": "c", "generation": 1}, "generation"),
        ({"consumer": "c", "commit_seq": 99}, "commit_seq"),
        ({"consumer": "/"}, "consumer"),
    ]
    for wrong, field in wrongs:
        for refused in (client.post(where, json=wrong), client.get(where, params=wrong)):
            invalid(refused, field)
            assert refused.json()["error"]["detail"]["field"] == field
    error_of(client.post(where, json={"consumer": "d"}), 404, "consumer_not_found")


def test_streams_and_watches_begin_at_the_position(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    put(client, topic)
    body_of(commit(client, topic, 2))
    session = body_of(client.post("/v0/watch", json={"topics": {topic: {"consumer": "c"}}}))
    assert session["topics"][topic]["from_seq"] == 2
    with client.stream("GET", f"/v0/topics/{topic}/stream", params={"consumer": "c"}) as response:
        found = next(line for line in response.iter_lines() if line.startswith("data:"))
        assert [record["$seq"] for record in json.loads(found[5:])["records"]] == [3]
    queries: list[dict[str, str]] = [{"consumer": "c", "from_seq": "1"}, {"consumer": "c", "tail": "1"}]
    for query in queries:
        error = error_of(client.get(f"/v0/topics/{topic}/stream", params=query), 400, "invalid_request")
        assert error["detail"]["field"] == list(query)[-1]
    error_of(client.get(f"/v0/topics/{topic}/stream", params={"consumer": "d"}), 404, "consumer_not_found")
    wrongs: list[tuple[str, dict[str, Any], str]] = [
        ("topics", {"consumer": "c", "from_seq": 1}, "from_seq"),
        ("topics", {"consumer": "c", "tail": True}, "tail"),
        ("topics", {"consumer": "/"}, "consumer"),
        ("prefixes", {"consumer": "c"}, "consumer"),
        ("prefixes", {"from_seq": -1}, "from_seq"),
    ]
    for where, wrong, field in wrongs:
        error = error_of(client.post("/v0/watch", json={where: {topic: wrong}}), 400, "invalid_request")
        assert error["detail"]["field"] == f"{where}.{topic}.{field}"
    error_of(client.post("/v0/watch", json={"topics": {topic: {"consumer": "d"}}}), 404, "consumer_not_found")


def test_a_subscription_begins_at_the_position(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    put(client, topic)
    body_of(commit(client, topic, 2))
    with WebSocket(client) as socket_:
        assert socket_.subscribe(topic, consumer="c")[topic]["from_seq"] == 2
        assert [record["$seq"] for record in socket_.next_op("record")["records"]] == [3]
        socket_.next_op("caught_up")
        for wrong, field in (
            ({"topic": topic, "consumer": "c", "from_seq": 1}, "from_seq"),
            ({"topic": topic, "from_seq": -1}, "from_seq"),
            ({"topics": {topic: {"consumer": "c", "tail": True}}}, f"topics.{topic}.tail"),
            ({"prefix": topic, "consumer": "c"}, "consumer"),
        ):
            socket_.send("subscribe", **wrong)
            assert socket_.next_op("error")["detail"]["field"] == field


def test_what_is_consumed_is_deleted_and_lag_is_measured(client: Client, topic: str) -> None:
    client.put_topic(topic, retention="consumed")
    invalid(client.put(f"/v0/topics/{topic}-q", json={"type": "queue", "retention": "consumed"}), "retention")
    client.append(topic, *range(10))
    put(client, topic)
    body_of(commit(client, topic, 6))
    until(lambda: client.state(topic)["earliest_seq"] == 7)
    read = client.read(topic)
    assert (seqs_of(read), read["tombstone"]) == ([7, 8, 9, 10], None)
    assert metric(client, "consumer_lag", topic=topic, consumer="c") == 4


# --- the client ------------------------------------------------------------------------------------------------------


def test_consume_goes_on_where_it_was_left_and_takes_over(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    with TopicsClient(str(client.base_url)) as one:
        first = one.consume(topic, "c", from_="earliest", limit=3)
        assert [record.seq for record in islice(first, 5) if isinstance(record, Record)] == [1, 2, 3, 4, 5]
        other = one.consume(topic, "c", limit=3)
        got: list[int] = []

        def take() -> None:
            got.extend(record.seq for record in islice(other, 3) if isinstance(record, Record))

        taking = threading.Thread(target=take)
        taking.start()
        until(lambda: body_of(client.get(path(topic)))["owner"] is not None)
        first.close()  # type: ignore[attr-defined]
        taking.join(30)
        assert got == [5, 6, 7]  # 5 was not finished
        other.close()  # type: ignore[attr-defined]
        state = one.consumer(topic, "c")
        assert (state.committed_seq, state.owner, state.generation) == (6, None, 2)
        with pytest.raises(NotFound):
            next(one.consume("no-such-topic", "c"))
        generation = one.acquire_consumer(topic, "c", "me").generation
        with pytest.raises(Conflict):
            one.commit_consumer(topic, "c", 7)
        assert one.commit_consumer(topic, "c", 7, generation=generation).moved
        assert one.seek_consumer(topic, "c", "tail", generation=generation).committed_seq == 10
        assert one.release_consumer(topic, "c", generation).released


CONSUMER = """
import sys, topics.client as client
url, topic, out = sys.argv[1:]
with client.Client(url, retry=client.Retry(give_up_after=60)) as one, open(out, "a", buffering=1) as log:
    for record in one.consume(topic, "c", from_="earliest", limit=7, lease_ms=300):
        print(record.seq, file=log, flush=True)
"""

TAKER = """
import sys, time, topics.client as client
url, topic, out = sys.argv[1:]
with client.Client(url, retry=None) as one, open(out, "a", buffering=1) as log:
    while True:
        try:
            page = one.read_consumer(topic, "c", ack="before", limit=7, wait_ms=200)
        except client.TopicsError:
            time.sleep(0.02)  # how often to try while the daemon is away
            continue
        print(*[record.seq for record in page.records], sep="\\n", file=log, flush=True)
"""


def handled(out: Path) -> list[int]:
    return [int(line) for line in out.read_text().split()] if out.exists() else []


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("script", [CONSUMER, TAKER], ids=["at-least-once", "before"])
def test_kills_of_the_daemon_and_of_the_consumer(tmp_path: Path, script: str) -> None:
    """At least once loses no record, and `before` repeats none, if the daemon or the consumer is killed."""
    out, topic, sent = tmp_path / "handled", "orders", 0
    with running(tmp_path, port=free_port()) as client:
        daemon = client.daemon
        client.put_topic(topic, durability="fsync")
        put(client, topic)

        def start() -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, "-c", script, daemon.url, topic, str(out)])

        consumer = start()
        try:
            for number in range(6):
                before = len(handled(out))
                client.append(topic, *range(20))
                sent += 20
                until(lambda before=before: len(handled(out)) > before)  # type: ignore[misc]
                if number % 2:
                    client = daemon.restart(signal.SIGKILL)
                else:
                    consumer.kill()
                    consumer.wait()
                    consumer = start()
            # What was handled last is committed when more is asked for.
            until(lambda: body_of(client.get(path(topic)))["lag"] == 0)
            until(lambda: script != CONSUMER or set(handled(out)) == set(range(1, sent + 1)))
        finally:
            consumer.kill()
            consumer.wait()
    assert set(handled(out)) <= set(range(1, sent + 1))
    assert script == CONSUMER or max(Counter(handled(out)).values()) == 1
