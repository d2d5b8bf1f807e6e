"""Routers over HTTP: what their bodies and queries may hold, and what a client is answered."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from msgspec import UNSET

from tests.http.conftest import SMALL, Served
from tests.http.fake_engine import FakeEngine
from tests.http.requests.test_bodies import nested, refused
from tests.http.test_gate import error_of
from topics.http.requests import topic_requests
from topics.model import RouterPatch
from topics.telemetry.figures import EngineFigures

NAMES = ["a", "a.b:c-d_e", "a>b", "a>b>c", "Z" * 255]
BAD_NAMES = ["-a", ">a", "", "a b", "a/b", "\u00e9", "a" * 256, "a\n"]
DEFAULTS = {
    "preserve_node": True, "preserve_tag": True, "create_dest": True, "filter": None, "allow_cycle": False,
    "guarantee": "at_least_once", "from": "tail",
}  # fmt: skip
FIGURES = {"forwarded_total": 7, "cursor_seq": 5, "lag": 2}
ENDS = {"source": "in", "dest": "out"}


# --- bodies ----------------------------------------------------------------------------------------------------------


def patch(body: Any) -> RouterPatch:
    return topic_requests.decode_router_patch(body if isinstance(body, bytes) else json.dumps(body).encode(), SMALL)


def test_a_router_body_with_everything_comes_through() -> None:
    glob = ["tag", "Glob", "x*"]
    given = {**ENDS, **DEFAULTS, "filter": glob, "guarantee": "exactly_once", "from": "earliest", "allow_cycle": True}
    taken = patch(given)
    assert (taken.source, taken.dest, taken.filter) == ("in", "out", glob)
    assert (taken.guarantee, taken.start, taken.allow_cycle) == ("exactly_once", "earliest", True)
    assert (taken.preserve_node, taken.preserve_tag, taken.create_dest) == (True, True, True)


def test_a_router_body_has_what_was_given() -> None:
    assert patch(b"") == patch({}) == RouterPatch()
    assert patch({}).filter is UNSET
    assert patch({"filter": None}).filter is None
    assert patch({"filter": "x*"}).filter == "x*"
    assert patch({"preserve_tag": False}) == RouterPatch(preserve_tag=False)


BAD_VALUES: dict[str, list[Any]] = {
    **{name: [None, 1, 0, "true", []] for name in ("preserve_node", "preserve_tag", "create_dest", "allow_cycle")},
    **{name: [None, 1, ["a"], "a>b", *BAD_NAMES] for name in ("source", "dest")},
    "guarantee": [None, "exactly", "At_least_once", 1],
    "from": [None, "head", 0],
}
BAD_BODIES: list[tuple[Any, str]] = [
    ({"colour": 1}, "colour"), ({"start": "tail"}, "start"), ({"router": "a"}, "router"),
    ({"cursor_seq": 1}, "cursor_seq"),
    *(({name: value}, name) for name, values in BAD_VALUES.items() for value in values),
    ([], "body"), ("x", "body"), (b"null", "body"), (b"{", "body"), (b"{} {}", "body"), (b'{"source":"\xff"}', "body"),
    (b'{"filter":' + nested(512) + b"}", "body"), (b'{"filter":' + nested(100_000) + b"}", "body"),
    (b'{"filter":"\\ud800"}', "body"),
]  # fmt: skip


@pytest.mark.parametrize(("body", "field"), BAD_BODIES)
def test_a_bad_router_names_its_field(body: Any, field: str) -> None:
    assert refused(patch, body) == field


# --- queries ---------------------------------------------------------------------------------------------------------


def test_a_list_of_routers_is_asked_for_by_prefix_and_by_either_end() -> None:
    everything = topic_requests.RouterSelection(topic_requests.ListPage("", None, 100), None, None)
    assert topic_requests.decode_router_list_query(b"") == everything
    assert topic_requests.decode_router_list_query(b"touch=maybe&colour=red") == everything
    selection = topic_requests.decode_router_list_query(b"prefix=a%3Eb>&source=in&dest=out&page_size=7")
    assert selection == topic_requests.RouterSelection(topic_requests.ListPage("a>b>", None, 7), "in", "out")
    for given, taken in ((0, 1), (-5, 1), (1001, 1000)):
        assert topic_requests.decode_router_list_query(f"page_size={given}".encode()).page.page_size == taken


@pytest.mark.parametrize("name", NAMES)
def test_a_cursor_means_routers_after_one(name: str) -> None:
    cursor = topic_requests.ROUTER_CURSORS.encode(name)
    assert cursor.replace("-", "").replace("_", "").isalnum()
    assert topic_requests.decode_router_list_query(b"cursor=" + cursor.encode()).page.after == name


def test_a_cursor_of_another_list_is_refused() -> None:
    topics, routers = topic_requests.TOPIC_CURSORS.encode("a"), topic_requests.ROUTER_CURSORS.encode("a")
    assert refused(topic_requests.decode_router_list_query, f"cursor={topics}".encode()) == "cursor"
    assert refused(topic_requests.decode_list_query, f"cursor={routers}".encode()) == "cursor"


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_cursor_of_no_router_is_refused(name: str) -> None:
    cursor = base64.urlsafe_b64encode(b"r:" + name.encode()).rstrip(b"=")
    assert refused(topic_requests.decode_router_list_query, b"cursor=" + cursor) == "cursor"


BAD_QUERIES = [
    ("source=", "source"), ("source=-a", "source"), ("source=a%3Eb", "source"), ("dest=a%20b", "dest"),
    ("dest=" + "a" * 256, "dest"), ("source=a&source=a", "source"), ("page_size=x", "page_size"),
    ("page_size=", "page_size"), ("cursor=x", "cursor"), ("cursor=!!!!", "cursor"), ("prefix=a&prefix=b", "prefix"),
]  # fmt: skip


@pytest.mark.parametrize(("query", "field"), BAD_QUERIES)
def test_a_bad_list_of_routers_names_its_parameter(query: str, field: str) -> None:
    assert refused(topic_requests.decode_router_list_query, query.encode()) == field


# --- answers ---------------------------------------------------------------------------------------------------------


def without_performance(body: dict[str, Any]) -> dict[str, Any]:
    assert body.pop("performance")["server_total_ms"] > 0
    return body


@pytest.mark.trio
@pytest.mark.parametrize("http2", [False, True])
async def test_a_router_is_put_shown_and_deleted(served: Served, http2: bool) -> None:
    whole: dict[str, Any] = {"router": "in>out", **ENDS, **DEFAULTS, **FIGURES}
    async with served.client(http2=http2) as client:
        put = await client.put("/v0/routers/in>out", json=ENDS)
        assert put.status_code == 201
        assert without_performance(put.json()) == {**whole, "created": True}

        whole["filter"] = ["tag", "Eq", "x*"]
        again = await client.put("/v0/routers/in%3Eout", json={"filter": "x*"})
        assert again.status_code == 200
        assert without_performance(again.json()) == {**whole, "created": False}
        unchanged = await client.put("/v0/routers/in>out")
        assert without_performance(unchanged.json()) == {**whole, "created": False}
        assert without_performance((await client.get("/v0/routers/in>out")).json()) == whole

        cleared = await client.put("/v0/routers/in>out", json={"filter": None, "from": "earliest"})
        assert (cleared.json()["filter"], cleared.json()["from"]) == (None, "earliest")

        for deleted in (True, False):
            answer = await client.delete("/v0/routers/in>out")
            assert answer.status_code == 200
            assert without_performance(answer.json()) == {"router": "in>out", "deleted": deleted}
        detail = error_of(await client.get("/v0/routers/in>out"), 404, "router_not_found")
        assert detail == {"router": "in>out"}


@pytest.mark.trio
async def test_a_router_is_found_by_its_raw_name_and_by_its_encoded_one(served: Served) -> None:
    async with served.client() as client:
        assert (await client.put("/v0/routers/a>b", json=ENDS)).status_code == 201
    for target in (b"/v0/routers/a>b", b"/v0/routers/a%3Eb", b"/v0/routers/%61%3eb"):
        answer = await served.exchange(b"GET " + target + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 "), target
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["router"] == "a>b"


@pytest.mark.trio
async def test_what_the_engine_refuses_is_answered(served: Served) -> None:
    bad: Any
    async with served.client() as client:
        assert error_of(await client.put("/v0/routers/r"), 400, "invalid_request")["field"] == "source"
        places = (["tag", "Like", "x"], "filter[1]"), (["tag", "Eq"], "filter"), ({"tag": "x"}, "filter"), (1, "filter")
        for bad, place in places:
            response = await client.put("/v0/routers/r", json={**ENDS, "filter": bad})
            assert error_of(response, 400, "invalid_request")["field"] == place
    assert not served.engine.routers


@pytest.mark.trio
async def test_a_body_of_a_router_is_json(served: Served) -> None:
    async with served.client() as client:
        for headers in ({}, {"content-type": "text/plain"}):
            response = await client.put("/v0/routers/r", content=b'{"source":"in","dest":"out"}', headers=headers)
            error_of(response, 415, "unsupported_media_type")
        detail = error_of(await client.put("/v0/routers/r", json={**ENDS, "colour": 1}), 400, "invalid_request")
        assert detail["field"] == "colour"
    assert not served.engine.routers


@pytest.mark.trio
async def test_lists_of_routers_go_on_after_the_cursor(served: Served) -> None:
    async with served.client() as client:
        states = {}
        for name, source, dest in (("a>b", "a", "b"), ("a>c", "a", "c"), ("a>d", "a", "d"), ("b", "b", "c")):
            await client.put(f"/v0/routers/{name}", json={"source": source, "dest": dest})
            states[name] = without_performance((await client.get(f"/v0/routers/{name}")).json())

        first = without_performance((await client.get("/v0/routers?page_size=2")).json())
        assert first["routers"] == [states["a>b"], states["a>c"]]
        await client.delete("/v0/routers/a>c")
        last = (await client.get(f"/v0/routers?page_size=2&cursor={first['next_cursor']}")).json()
        assert without_performance(last) == {"routers": [states["a>d"], states["b"]]}
        await client.put("/v0/routers/a>c", json={"source": "a", "dest": "c"})

        for query, names in (
            ("prefix=a>", ["a>b", "a>c", "a>d"]), ("prefix=a%3Ec", ["a>c"]), ("source=b", ["b"]),
            ("dest=c", ["a>c", "b"]), ("source=a&dest=c", ["a>c"]), ("source=none", []),
        ):  # fmt: skip
            listed = without_performance((await client.get(f"/v0/routers?{query}")).json())
            assert listed == {"routers": [states[name] for name in names]}, query
        for query, field in BAD_QUERIES:
            assert error_of(await client.get(f"/v0/routers?{query}"), 400, "invalid_request")["field"] == field


# --- routes ----------------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("name", ["-a", "%3Ea", "a%2Fb", "a%20b", "%ff", "a%00", "%C3%A9", "a" * 256, "a%0A", "a<b"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_bad_router_name_is_refused(served: Served, method: str, name: str) -> None:
    request = f"{method} /v0/routers/{name} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
    head, _, body = (await served.exchange(request)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 400 ")
    assert json.loads(body)["error"]["detail"]["field"] == "router"


@pytest.mark.trio
async def test_routes_and_methods_of_routers(served: Served) -> None:
    async with served.client() as client:
        for path in ("/v0/routers/", "/v0/routers/a/", "/v0/routers/a/b", "/v0/router/a"):
            error_of(await client.get(path), 404, "not_found")
        for method, path, allow in (
            ("POST", "/v0/routers", "GET"), ("DELETE", "/v0/routers", "GET"),
            ("POST", "/v0/routers/a", "DELETE, GET, PUT"), ("PATCH", "/v0/routers/a>b", "DELETE, GET, PUT"),
        ):  # fmt: skip
            response = await client.request(method, path)
            error_of(response, 405, "method_not_allowed")
            assert response.headers["allow"] == allow
        served.engine.status.phase = "replaying"
        for method, path in (("GET", "/v0/routers"), ("PUT", "/v0/routers/a"), ("GET", "/v0/routers/-bad")):
            error_of(await client.request(method, path), 503, "not_ready")


# --- metrics ---------------------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_routers_have_metrics(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served.client() as client:
        await client.put("/v0/routers/a>b", json=ENDS)
        lines = (await client.get("/v0/metrics")).text.splitlines()
        for line in (
            "# TYPE topics_routers gauge", "topics_routers 1.0",
            "# TYPE topics_router_lag gauge", 'topics_router_lag{router="a>b"} 2.0',
            "# TYPE topics_router_forwarded_total counter", 'topics_router_forwarded_total{router="a>b"} 7.0',
            "# TYPE topics_router_failures_total counter", "topics_router_failures_total 0.0",
            "topics_router_metrics_truncated 0.0",
            'topics_requests_total{route="PUT /v0/routers/{router}",status="201"} 1.0',
        ):  # fmt: skip
            assert line in lines, line

        async def figures(*_: object) -> EngineFigures:
            return EngineFigures(routers_truncated=True, router_failures=3)

        monkeypatch.setattr(FakeEngine, "figures", figures)
        values = (await client.get("/v0/metrics", headers={"accept": "application/json"})).json()
        assert (values["topics_routers"], values["topics_router_failures_total"]) == (0, 3)
        assert values["topics_router_metrics_truncated"] == 1
        assert values["topics_router_lag"] == values["topics_router_forwarded_total"] == []
