"""`TOPICS_NAMES`: a daemon serves some names, and says 421 to others, with and without keys."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import websocket
from tests.conformance.client import Client, Daemon

KEY = "a-key-0123456789"


@pytest.fixture(scope="module", params=["", KEY], ids=["open", "keys"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = {"api_keys": request.param} if request.param else {}
    daemon = Daemon(tmp_path_factory.mktemp("names"), names="eu.|us.", **settings)
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon) as client:
        client.headers["Authorization"] = f"Bearer {KEY}"
        yield client


RECORDS = {"records": [{"data": 1}]}
JOB = {"record": {"data": 1}, "every_ms": 60_000}
CALLS: dict[str, tuple[str, str, Any]] = {
    "an append": ("POST", "/v0/topics/as.a", RECORDS),
    "a create": ("PUT", "/v0/topics/as.a", {}),
    "a state": ("GET", "/v0/topics/as.a", None),
    "a deletion": ("DELETE", "/v0/topics/as.a", None),
    "a diff": ("GET", "/v0/topics/as.a/diff", None),
    "an export": ("GET", "/v0/topics/as.a/records", None),
    "a stream": ("GET", "/v0/topics/as.a/stream", None),
    "a claim": ("POST", "/v0/topics/as.a/claim", {"node": "n"}),
    "a consumer": ("PUT", "/v0/topics/as.a/consumers/c", {}),
    "a group": ("PUT", "/v0/topics/as.a/groups/g", {}),
    "a router by its name": ("PUT", "/v0/routers/as.r", {"source": "eu.a", "dest": "eu.b"}),
    "a router by its source": ("PUT", "/v0/routers/eu.r", {"source": "as.a", "dest": "eu.b"}),
    "a router by its dest": ("PUT", "/v0/routers/eu.r", {"source": "eu.a", "dest": "as.b"}),
    "a schedule by its topic": (
        "PUT",
        "/v0/schedules/eu.s",
        {"topic": "as.a", **JOB},
    ),
    "a schedule by its name": (
        "PUT",
        "/v0/schedules/as.s",
        {"topic": "eu.a", **JOB},
    ),
    "a dead letter topic": ("PUT", "/v0/topics/eu.q", {"type": "queue", "dead_letter": "as.dead"}),
    "a watch": ("POST", "/v0/watch", {"topics": {"eu.a": {}, "as.a": {}}}),
    "a watch of a prefix": ("POST", "/v0/watch", {"prefixes": {"as.": {}}}),
    "a transaction": (
        "POST",
        "/v0/transactions",
        {"appends": [{"topic": name, "records": RECORDS["records"]} for name in ("eu.a", "as.a")]},
    ),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_name_of_another_daemon_is_421_and_nothing_is_done(client: Client, call: tuple[str, str, Any]) -> None:
    for name in ("eu.a", "eu.b"):
        client.put(f"/v0/topics/{name}", json={}).raise_for_status()
    method, path, body = call
    answer = client.request(method, path, json=body) if body is not None else client.request(method, path)
    assert answer.status_code == 421, answer.text
    error = answer.json()["error"]
    assert error["code"] == "not_here"
    assert next(iter(error["detail"].values())).startswith("as.")
    assert [topic["topic"] for topic in client.get("/v0/topics").json()["topics"]] == ["eu.a", "eu.b"]


def test_names_that_are_here_and_prefixes_that_are_partly_here_work(client: Client) -> None:
    assert client.post("/v0/topics/eu.a", json=RECORDS).status_code in (200, 201)
    for prefix in ("", "e", "eu.", "eu.a"):
        answer = client.post("/v0/watch", json={"prefixes": {prefix: {}}})
        assert answer.status_code == 200, answer.text
        assert "eu.a" in answer.json()["topics"]
    assert client.get("/v0/health").status_code == 200


def test_a_key_is_looked_at_first(daemon: Daemon, client: Client) -> None:
    with Client(daemon) as stranger:
        answer = stranger.get("/v0/topics/as.a")
        keyed = client.get("/v0/topics/as.a")
        has_keys = stranger.get("/v0/topics").status_code == 401
        assert (answer.status_code, keyed.status_code) == (401 if has_keys else 421, 421)


def test_commands_of_a_socket_are_refused_too(client: Client) -> None:
    with websocket.WebSocket(client, headers=[("Authorization", f"Bearer {KEY}")]) as opened:
        opened.refused("not_here", "subscribe", topic="as.a")
        opened.refused("not_here", "subscribe", prefix="as.")
        opened.refused("not_here", "publish", topic="as.a", records=[{"data": 1}])


def test_topics_of_before_stay_and_are_told_of(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        with closing(daemon.start()) as client:
            for name in ("eu.a", "as.a"):
                client.put(f"/v0/topics/{name}", json={}).raise_for_status()
        daemon.end()
        daemon._environ["TOPICS_NAMES"] = "eu."
        with closing(daemon.start()) as client:
            assert client.get("/v0/topics/as.a").status_code == 421
            assert client.get("/v0/topics/eu.a").status_code == 200
        assert "topics_not_here" in (tmp_path / "log").read_text()
    finally:
        daemon.kill()
