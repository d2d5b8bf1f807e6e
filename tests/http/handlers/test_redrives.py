"""Redrives over HTTP: bodies, answers, and the names that a key must cover."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest
import trio

from tests.engine.life import Life, living, settings
from topics.auth.keys import parse_keys
from topics.http.app import make_app
from topics.http.connections.server import open_listener, port_of, serve
from topics.model import CheckedAppend, Performance, RecordIn

pytestmark = pytest.mark.trio

DEAD = "/v0/topics/a-dead/redrive"


@pytest.fixture
async def keyed() -> AsyncIterator[tuple[Life, httpx.AsyncClient]]:
    """A daemon with a key for everything, and one for topics that begin with `a`."""
    config = settings(api_keys=parse_keys("boss,tenant:rw+d:a"), cache_bytes=64 << 20)
    async with living(config) as life, trio.open_nursery() as nursery:
        gate = make_app(life.engine)
        sockets = open_listener("127.0.0.1", 0)
        await nursery.start(serve, gate, sockets, config, gate.handle)
        url = f"http://127.0.0.1:{port_of(sockets)}"
        async with httpx.AsyncClient(base_url=url, timeout=60, headers={"authorization": "Bearer boss"}) as client:
            for name in ("a-jobs", "b-jobs"):
                await client.put(f"/v0/topics/{name}", json={"type": "queue", "durability": "fsync"})
            await client.put("/v0/topics/a-dead", json={"durability": "fsync"})
            yield life, client
        nursery.cancel_scope.cancel()


async def letter(life: Life, origin: str) -> None:
    """Append a record as the daemon appends letters."""
    meta = msgspec.json.encode({"$dead_letter_from": origin, "$dead_letter_src_seq": "1"})
    request = CheckedAppend(
        records=[RecordIn(data=msgspec.Raw(b"1"))], datas=[b"1"], nodes=None, tags=None, metas=[meta]
    )
    await life.engine.appends.append("a-dead", request, Performance())


async def answer(client: httpx.AsyncClient, method: str, expected: int = 200, **what: Any) -> Any:
    found = await client.request(method, DEAD, **what)
    assert found.status_code == expected, found.text
    return found.json()


async def test_a_key_moves_letters_of_topics_that_it_covers(
    keyed: tuple[Life, httpx.AsyncClient], autojump_clock: Any
) -> None:
    life, client = keyed
    assert (await answer(client, "GET"))["state"] == "idle"
    for origin in ("a-jobs", "b-jobs", "a-jobs"):
        await letter(life, origin)
    tenant = {"authorization": "Bearer tenant"}
    begun = await answer(client, "POST", 202, headers=tenant, json={"rate": {"jobs": 100, "per_ms": 1000}})
    assert (begun["topic"], begun["state"], begun["moved"], begun["left"]) == ("a-dead", "running", 0, 0)
    await life.engine.redrives.ended()
    done = await answer(client, "GET", headers=tenant)
    del done["performance"]
    assert done == {
        "topic": "a-dead",
        "state": "done",
        "moved": 2,
        "left": 1,
        "reasons": {"forbidden": 1},
        "error": None,
    }
    refused = await answer(client, "POST", 403, headers=tenant, json={"to": "b-jobs"})
    assert refused["error"]["detail"] == {"to": "b-jobs"}
    await answer(client, "POST", 202)
    assert (await answer(client, "DELETE"))["state"] == "done"
    assert (await client.get("/v0/topics/b-jobs")).json()["count"] == 1


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"max": 0}, "max"),
        ({"to": ""}, "to"),
        ({"to": "a b"}, "to"),
        ({"to": "a-dead"}, "to"),
        ({"filter": ["tag"]}, "filter"),
        ({"rate": {"jobs": 0, "per_ms": 1}}, "rate.jobs"),
        ({"rate": {"jobs": 1, "per_ms": 86_400_001}}, "rate.per_ms"),
        ({"rate": {"jobs": 1}}, "rate"),
        ({"filters": []}, "filters"),
        ([], ""),
    ],
)
async def test_a_bad_body_is_refused_and_moves_nothing(
    keyed: tuple[Life, httpx.AsyncClient], body: Any, field: str
) -> None:
    _, client = keyed
    refused = await answer(client, "POST", 400, json=body)
    assert field in refused["error"]["message"]
    assert (await answer(client, "GET"))["state"] == "idle"


async def test_a_topic_that_is_missing_or_of_another_class(keyed: tuple[Life, httpx.AsyncClient]) -> None:
    _, client = keyed
    await client.put("/v0/topics/soft", json={"durability": "memory"})
    for path, body, status, code in (
        ("/v0/topics/none/redrive", {}, 404, "topic_not_found"),
        (DEAD, {"to": "none"}, 404, "topic_not_found"),
        (DEAD, {"to": "soft"}, 409, "topic_exists_incompatible"),
        ("/v0/topics/soft/redrive", {}, 409, "topic_exists_incompatible"),
    ):
        refused = await client.post(path, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (status, code)
    for method in ("GET", "DELETE"):
        assert (await client.request(method, "/v0/topics/none/redrive")).status_code == 404


@pytest.mark.parametrize("key", ["$dead_letter_from", "$dead_letter", "$dead_letters"])
async def test_clients_cannot_write_markers(keyed: tuple[Life, httpx.AsyncClient], key: str) -> None:
    _, client = keyed
    record = {"data": 1, "meta": {key: "x"}}
    for path, body in (
        ("/v0/topics/a-dead", {"records": [record]}),
        ("/v0/topics/a-dead?stage=s", {"records": [record]}),
        ("/v0/topics/a-dead", {"records": [*[{"data": "x" * (700 << 10)}] * 2, record]}),
        ("/v0/transactions", {"appends": [{"topic": name, "records": [record]} for name in ("a-dead", "a-jobs")]}),
    ):
        refused = await client.post(path, json=body)
        assert refused.status_code == 400, path
        assert "$dead_letter" in refused.json()["error"]["message"]
    line = msgspec.json.encode(record)
    headers = {"content-type": "application/x-ndjson"}
    refused = await client.post("/v0/topics/a-dead", content=line, headers=headers)
    assert refused.status_code == 400
    assert "$dead_letter" in refused.text
    fine = await client.post("/v0/topics/a-dead", json={"records": [{"data": 1, "meta": {"dead_letter": "$"}}]})
    assert fine.status_code == 200
