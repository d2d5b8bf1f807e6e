"""What the daemon says of itself, compared with what it does: every call, with its example and with what it refuses.

`test_schemathesis` looks for what nobody thought of; here answers may hold nothing that is not described.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, RawConnection, body_of, running
from tests.described import check
from topics.http.routes import ROUTES

SETTINGS = {"max_routers": 3}
KEY = {"authorization": "Bearer secret"}


def document_of(client: Client) -> dict[str, Any]:
    document: dict[str, Any] = body_of(client.get("/v0/openapi.json"))
    return document


def example_of(document: dict[str, Any], path: str, method: str) -> Any:
    return document["paths"][path][method]["requestBody"]["content"]["application/json"]["example"]


def test_every_example_is_carried_out_and_answered_as_described(client: Client) -> None:
    document = document_of(client)
    topic, router = "/v0/topics/{topic}", "/v0/routers/{router}"

    def send(method: str, path: str, status: int = 200, **changes: Any) -> httpx.Response:
        body = {**example_of(document, path, method), **changes}
        path = path.replace("{topic}", "jobs").replace("{router}", "jobs>archive")
        answer = check(client.request(method, path, json=body))
        assert answer.status_code == status, answer.text
        return answer

    send("put", topic, 201)
    send("put", topic)
    client.delete_topic("jobs")
    client.put_topic("jobs", type="queue")
    send("post", topic)
    send("post", topic, idempotency_key="k")
    send("post", topic, idempotency_key="k")
    send("post", topic + "/diff")
    send("put", router, 201)
    assert send("post", topic + "/claim").json()["count"] > 0
    for call in ("extend", "nack"):
        send("post", f"{topic}/{call}")
    send("post", topic + "/claim")
    send("post", topic + "/ack", seqs=[2])
    send("post", "/v0/watch")
    send("post", topic + "/delete")
    for path in [
        "/v0/topics/jobs", "/v0/topics?page_size=1", "/v0/topics/jobs/diff?include_tags=true", "/v0/routers",
        "/v0/routers/jobs%3Earchive", "/v0/metrics", "/v0/health", "/v0/ready", "/v0/docs",
    ]:  # fmt: skip
        assert check(client.get(path)).status_code == 200, path
    check(client.get("/v0/metrics", headers={"accept": "application/json"}))
    check(client.post("/v0/admin/checkpoint"))
    check(client.delete("/v0/topics/jobs"))
    check(client.delete("/v0/routers/jobs%3Earchive"))


def test_what_is_refused_is_refused_as_described(client: Client) -> None:
    client.put_topic("log", cap_records=1, discard="reject")
    client.append("log", 1)
    refused = [
        (client.send_append("log", 2), 422),
        (client.put("/v0/topics/log", json={"type": "queue"}), 409),
        (client.post("/v0/topics/log/claim", json={"node": "w"}), 409),
        (client.delete("/v0/topics/log", params={"if_empty": "true"}), 409),
        (client.put("/v0/routers/r", json={"source": "log", "dest": "log"}), 400),
        (client.put("/v0/routers/r", json={"source": "log", "dest": "none", "create_dest": False}), 404),
        (client.get("/v0/topics/none/diff"), 404),
    ]
    client.put("/v0/routers/there", json={"source": "log", "dest": "more"})
    refused += [
        (client.put("/v0/routers/back", json={"source": "more", "dest": "log"}), 409),
        (client.put("/v0/routers/there", json={"source": "other"}), 409),
    ]
    one_too_many = [client.put(f"/v0/routers/r-{n}", json={"source": "log", "dest": f"d-{n}"}) for n in range(3)][-1]
    refused.append((one_too_many, 429))
    for answer, status in refused:
        assert check(answer).status_code == status, answer.text


def test_streams_open_and_refuse_as_described(client: Client) -> None:
    client.put_topic("log")
    client.put_topic("queue", type="queue")
    wid = body_of(client.post("/v0/watch", json={"topics": {"log": {}}}))["wid"]
    for path in ["/v0/topics/log/stream", "/v0/topics/queue/work?node=w", f"/v0/watch/{wid}"]:
        with client.stream("GET", path) as answer:
            assert check(answer).status_code == 200
        assert check(client.get(path, headers={"accept": "text/html"})).status_code == 406, path
    for path, status in [
        ("/v0/topics/none/stream", 404),
        ("/v0/topics/-/stream", 400),
        ("/v0/topics/log/stream?limit=many", 400),
        ("/v0/topics/none/work?node=w", 404),
        ("/v0/topics/log/work?node=w", 409),
        ("/v0/topics/queue/work", 400),
        ("/v0/watch/wid_none", 404),
        ("/v0/ws", 400),
    ]:
        assert check(client.get(path)).status_code == status, path
    answer = client.get(f"/v0/watch/{wid}", headers={"last-event-id": "!"})
    assert check(answer).status_code == 400
    with RawConnection(client) as connection:
        key = "dGhlIHNhbXBsZSBub25jZQ=="
        head = {
            "connection": "upgrade",
            "upgrade": "websocket",
            "sec_websocket_version": "13",
            "sec_websocket_key": key,
        }
        connection.send_head("GET", "/v0/ws", **head)
        assert connection.socket.recv(12) == b"HTTP/1.1 101"
    assert "101" in document_of(client)["paths"]["/v0/ws"]["get"]["responses"]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A daemon with keys."""
    with running(tmp_path_factory.mktemp("guarded"), api_keys="secret,narrow:read:a") as client:
        yield client


def test_without_a_key_only_probes_are_answered_and_the_document_says_so(guarded: Client) -> None:
    paths = json.loads(guarded.get("/v0/openapi.json", headers=KEY).content)["paths"]
    for route in ROUTES:
        path = route.template.replace("{topic}", "a").replace("{router}", "a").replace("{wid}", "a")
        answer = check(guarded.request(route.method, path))
        is_open = {} in paths[route.template][route.method.lower()]["security"]
        assert is_open == (route.needs is None)
        assert (answer.status_code == 401) != is_open, route.name


def test_the_scopes_of_the_document_are_those_that_the_daemon_asks_for(guarded: Client) -> None:
    paths = json.loads(guarded.get("/v0/openapi.json", headers=KEY).content)["paths"]
    for route in ROUTES:
        path = route.template.replace("{topic}", "a").replace("{router}", "a").replace("{wid}", "a")
        (scopes, *_) = paths[route.template][route.method.lower()]["security"]
        answer = check(guarded.request(route.method, path, headers={"authorization": "Bearer narrow"}))
        missing = set(scopes.get("bearer", ())) - {"read"}
        if missing:
            assert answer.status_code == 403, route.name
            assert set(answer.json()["error"]["detail"]["missing"]) == missing
        else:
            assert answer.status_code != 403, route.name
