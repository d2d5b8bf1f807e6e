"""Section 12: what pages of other origins may do, with `TOPICS_CORS_ORIGINS` and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, RawConnection, body_of, error_of, running
from tests.conformance.keys import bearer
from tests.conformance.sse import connect, stream_path
from tests.conformance.websocket import shake_hands

BOTH_WAYS = True

APP, OTHER = "http://app.example", "https://other.example:8443"
SETTINGS = {"cors_origins": f"{APP},{OTHER}", "api_keys": "boss,reader:r:a", "max_inflight_per_key": 100}

STRANGERS = [
    "http://evil.example", "https://app.example", "http://app.example:81", "http://app.example.evil.example",
    "http://evilapp.example", "http://app.exampl", "null", "app.example", "http://app.example/", "*",
    f"{APP},{OTHER}", f"{APP} {OTHER}", "https://other.example", "http://other.example:8443", "", "http://",
]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["h1", "h2"])
def browser(client: Client, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(client.daemon, http2=request.param) as browser:
        browser.put("/v0/topics/a", json={}, headers=bearer("boss"))
        yield browser


def preflight(browser: Client, path: str, origin: str, method: str, *names: str) -> httpx.Response:
    headers = {"origin": origin, "access-control-request-method": method}
    if names:
        headers["access-control-request-headers"] = ",".join(names)
    return browser.options(path, headers=headers)


def words(header: str) -> set[str]:
    return {word.strip().lower() for word in header.split(",")}


def is_for(answer: Any, origin: str | None) -> None:
    """The page of this origin may read the answer, or none may; and caches are told on what it depends."""
    assert answer.headers.get("access-control-allow-origin") == origin
    assert "origin" in words(answer.headers.get("vary", ""))
    if origin is None:
        assert not [name for name in answer.headers if name.lower().startswith("access-control-allow-")]


CALLS = [
    ("/v0/topics", "GET"), ("/v0/topics/a", "GET"), ("/v0/topics/a", "PUT"), ("/v0/topics/a", "POST"),
    ("/v0/topics/a", "DELETE"), ("/v0/topics/a/diff", "POST"), ("/v0/topics/a/stream", "GET"), ("/v0/watch", "POST"),
    ("/v0/watch/wid_x", "GET"), ("/v0/routers/r", "PUT"), ("/v0/topics/a/work", "GET"), ("/v0/metrics", "GET"),
]  # fmt: skip


@pytest.mark.parametrize("origin", [APP, OTHER])
def test_a_browser_that_asks_beforehand_is_told_yes(browser: Client, origin: str) -> None:
    for path, method in CALLS:
        names = ["authorization", "content-type", "idempotency-key", "last-event-id", "x-request-id"]
        answer = preflight(browser, path, origin, method, *names)
        assert answer.status_code in (200, 204), answer.text
        is_for(answer, origin)
        assert method.lower() in words(answer.headers["access-control-allow-methods"])
        assert set(names) <= words(answer.headers["access-control-allow-headers"])


@pytest.mark.parametrize("origin", STRANGERS)
def test_a_page_of_another_origin_is_told_no(browser: Client, origin: str) -> None:
    for path, method in CALLS[:4]:
        is_for(preflight(browser, path, origin, method, "authorization"), None)
    answer = browser.get("/v0/topics", headers={"origin": origin, **bearer("boss")})
    body_of(answer)
    is_for(answer, None)


def test_answers_of_every_kind_are_for_the_page(browser: Client) -> None:
    big = {"records": [{"data": "x" * 5000}]}
    for method, path, headers, body, status in [
        ("GET", "/v0/topics", bearer("boss"), None, 200), ("GET", "/v0/topics/a", bearer("reader"), None, 200),
        ("POST", "/v0/topics/a", bearer("boss"), big, 200), ("GET", "/v0/topics/a/diff", bearer("boss"), None, 200),
        ("GET", "/v0/health", {}, None, 200), ("GET", "/v0/metrics", bearer("boss"), None, 200),
        ("GET", "/v0/topics", {}, None, 401), ("GET", "/v0/topics", bearer("nobody"), None, 401),
        ("PUT", "/v0/topics/a", bearer("reader"), {}, 403), ("GET", "/v0/topics/b", bearer("reader"), None, 403),
        ("GET", "/v0/topics/-bad", bearer("boss"), None, 400), ("GET", "/v0/topics/none", bearer("boss"), None, 404),
        ("GET", "/v0/nothing", {}, None, 404), ("PATCH", "/v0/topics/a", {}, None, 405),
        ("PUT", "/v0/topics/a", bearer("boss"), {"x": 1}, 400),
    ]:  # fmt: skip
        for origin in (APP, OTHER):
            answer = browser.request(method, path, json=body, headers={"origin": origin, **headers})
            assert answer.status_code == status, (path, answer.text)
            is_for(answer, origin)
            if status >= 400:
                error_of(answer, status)
        # Who says no origin, or another, gets the same answer, which is for nobody's page.
        for others in ({}, {"origin": "http://evil.example"}):
            answer = browser.request(method, path, json=body, headers={**others, **headers})
            assert answer.status_code == status
            is_for(answer, None)


def test_a_compressed_answer_depends_on_both(browser: Client) -> None:
    browser.post("/v0/topics/a", json={"records": [{"data": "x" * 5000}]}, headers=bearer("boss"))
    for encoding in ("gzip", "identity"):
        headers = {"origin": APP, "accept-encoding": encoding, **bearer("boss")}
        answer = browser.get("/v0/topics/a/diff", headers=headers)
        is_for(answer, APP)
        assert words(", ".join(answer.headers.get_list("vary"))) >= {"origin", "accept-encoding"}


@pytest.mark.parametrize("http2", [False, True])
def test_streams_are_for_the_page(client: Client, http2: bool) -> None:
    body_of(client.post("/v0/topics/a", json={"records": [{"data": 1}]}, headers=bearer("boss")), 200, 201)
    for origin, expected in [(APP, APP), ("http://evil.example", None)]:
        headers = {"origin": origin, **bearer("reader")}
        with connect(client, stream_path("a"), headers=headers, http2=http2) as events:
            is_for(events.opened(), expected)
            events.next()
        with connect(client, stream_path("a", token="nobody"), headers={"origin": origin}, http2=http2) as events:
            is_for(events, expected)
            events.refused(401)
        with connect(client, stream_path("none"), headers=headers, http2=http2) as events:
            is_for(events, expected)
            events.refused(403)


def test_what_is_no_preflight_is_405(browser: Client) -> None:
    for headers in ({}, {"origin": APP}, {"access-control-request-method": "GET"}):
        answer = browser.options("/v0/topics", headers=headers)
        error_of(answer, 405, "method_not_allowed")
        assert "GET" in answer.headers["allow"]


def test_a_preflight_does_nothing(client: Client, browser: Client) -> None:
    preflight(browser, "/v0/topics/fresh", APP, "PUT")
    preflight(browser, "/v0/topics/a", APP, "DELETE")
    assert [topic["topic"] for topic in client.get("/v0/topics", headers=bearer("boss")).json()["topics"]] == ["a"]


def test_with_keys_a_socket_is_opened_by_its_token_whatever_the_page(client: Client) -> None:
    for origin in (APP, "http://evil.example", "null"):
        assert shake_hands(client, "/v0/ws?token=reader", origin=origin)[0] == 101
        assert shake_hands(client, "/v0/ws", origin=origin)[0] == 401


# Without keys, and without origins


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("bare")) as client:
        yield client


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("keyless"), cors_origins=APP) as client:
        yield client


def test_no_page_may_do_anything_unless_it_is_listed(bare: Client) -> None:
    for origin in [APP, bare.daemon.url, "null"]:
        for answer in (
            bare.get("/v0/topics", headers={"origin": origin}),
            bare.get("/v0/topics/none", headers={"origin": origin}),
            preflight(bare, "/v0/topics", origin, "GET"),
        ):
            assert not [name for name in answer.headers if name.startswith("access-control-")]
        error_of(preflight(bare, "/v0/topics", origin, "GET"), 405, "method_not_allowed")


def own_origins(client: Client) -> list[tuple[str, str]]:
    """The `Host` and the `Origin` of pages that the daemon itself would have served."""
    port = client.daemon.port
    return [
        (host, f"http://{host}") for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "localhost")
    ]


def opens(client: Client, origin: str | None, host: str | None = None) -> int:
    """The status of an upgrade, after a look at the refusal if it is one."""
    answer = upgrade(client, origin, host or f"127.0.0.1:{client.daemon.port}")
    if answer[0] != 101:
        assert json.loads(answer[2])["error"]["code"] == "forbidden"
    return int(answer[0])


def upgrade(client: Client, origin: str | None, host: str) -> Any:
    """The answer to a handshake of a page of this origin: status, headers and body."""
    lines = ["GET /v0/ws HTTP/1.1", f"host: {host}", "connection: Upgrade", "upgrade: websocket"]
    lines += ["sec-websocket-version: 13", "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ=="]
    lines += [f"origin: {origin}"] if origin is not None else []
    with RawConnection(client) as connection:
        connection.send("\r\n".join([*lines, "", ""]).encode())
        return connection.receive()


def test_without_keys_a_socket_is_for_its_own_page_and_for_none(bare: Client) -> None:
    assert opens(bare, None) == 101
    for host, origin in own_origins(bare):
        assert opens(bare, origin, host) == 101, (host, origin)
    port = bare.daemon.port
    for origin in (
        *STRANGERS[:10], APP, f"http://evil.example:{port}", f"http://127.0.0.1:{port + 1}", "http://127.0.0.1",
        f"http://127.0.0.1:{port}.evil.example", f"http://evil.example/127.0.0.1:{port}",
        f"http://127.0.0.1:{port}@evil.example", "file://", "",
    ):  # fmt: skip
        assert opens(bare, origin) == 403, origin
    # The daemon goes on.
    assert opens(bare, None) == 101
    assert bare.get("/v0/metrics", headers={"accept": "application/json"}).json()["topics_ws_connections"] <= 5


def test_without_keys_a_socket_is_for_pages_that_are_listed(keyless: Client) -> None:
    for origin in (APP, None, keyless.daemon.url):
        assert opens(keyless, origin) == 101, origin
    for origin in (OTHER, "null", "http://app.example.evil.example"):
        assert opens(keyless, origin) == 403, origin


def test_without_keys_pages_that_are_listed_may_read(keyless: Client) -> None:
    answer = keyless.get("/v0/topics", headers={"origin": APP})
    is_for(answer, APP)
    is_for(preflight(keyless, "/v0/topics/a", APP, "PUT", "content-type"), APP)
    is_for(keyless.get("/v0/topics", headers={"origin": OTHER}), None)


def hold(client: Client, origin: str | None) -> int:
    """The status of what a page could have any browser send, a form without fields being enough."""
    headers = {"origin": origin} if origin is not None else {}
    return client.post("/v0/admin/checkpoint?hold_ms=1", headers=headers).status_code


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
def test_without_keys_pages_of_strangers_have_no_browser_change_anything(
    bare: Client, keyless: Client, http2: bool
) -> None:
    with Client(bare.daemon, http2=http2) as alone, Client(keyless.daemon, http2=http2) as listed:
        assert [hold(alone, origin) for origin in (None, alone.daemon.url)] == [200, 200]
        assert [hold(alone, origin) for origin in (APP, "null")] == [403, 403]
        assert [hold(listed, origin) for origin in (APP, None, OTHER)] == [200, 200, 403]
        alone.put_topic("jobs", type="queue")
        alone.append("jobs", 1)
        refused = alone.get("/v0/topics/jobs/work?node=page", headers={"origin": APP})
        error_of(refused, 403, "forbidden")
        assert alone.state("jobs")["queue"]["ready"] == 1
        alone.delete_topic("jobs")


# What a browser says of a request that a page of a stranger has made it send


VISIT = {"sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

EVERY_ROUTE = [
    ("POST", "/v0/topics/jobs"), ("POST", "/v0/topics/jobs/commit"), ("DELETE", "/v0/topics/jobs/stages/s"),
    ("POST", "/v0/topics/jobs/diff"), ("GET", "/v0/topics/jobs/diff"), ("GET", "/v0/topics/jobs/records"),
    ("GET", "/v0/topics/jobs/stream"), ("POST", "/v0/topics/jobs/claim"), ("POST", "/v0/topics/jobs/ack"),
    ("POST", "/v0/topics/jobs/nack"), ("POST", "/v0/topics/jobs/extend"), ("GET", "/v0/topics/jobs/work?node=page"),
    ("POST", "/v0/watch"), ("GET", "/v0/watch/wid_x"), ("GET", "/v0/ws"), ("GET", "/v0/topics"),
    ("PUT", "/v0/topics/jobs"), ("GET", "/v0/topics/jobs"), ("DELETE", "/v0/topics/jobs"),
    ("POST", "/v0/topics/jobs/delete"), ("GET", "/v0/routers"), ("PUT", "/v0/routers/r"), ("GET", "/v0/routers/r"),
    ("DELETE", "/v0/routers/r"), ("POST", "/v0/admin/checkpoint"), ("GET", "/v0/health"), ("GET", "/healthz"),
    ("GET", "/v0/ready"), ("GET", "/readyz"), ("GET", "/v0/metrics"), ("GET", "/v0/openapi.json"), ("GET", "/v0/docs"),
    ("GET", "/"), ("POST", "/v0/transactions"), ("DELETE", "/v0/topics/jobs/fences/f"),
    ("GET", "/v0/topics/jobs/records/1"), ("GET", "/v0/topics/jobs/consumers"),
    ("PUT", "/v0/topics/jobs/consumers/c"), ("GET", "/v0/topics/jobs/consumers/c"),
    ("DELETE", "/v0/topics/jobs/consumers/c"), ("POST", "/v0/topics/jobs/consumers/c/commit"),
    ("POST", "/v0/topics/jobs/consumers/c/seek"), ("POST", "/v0/topics/jobs/consumers/c/acquire"),
    ("POST", "/v0/topics/jobs/consumers/c/release"), ("POST", "/v0/topics/jobs/seal"),
    ("POST", "/v0/topics/jobs/pause"), ("POST", "/v0/topics/jobs/resume"), ("GET", "/v0/topics/jobs/groups"),
    ("PUT", "/v0/topics/jobs/groups/g"), ("GET", "/v0/topics/jobs/groups/g"), ("DELETE", "/v0/topics/jobs/groups/g"),
    ("POST", "/v0/topics/jobs/groups/g/claim"), ("POST", "/v0/topics/jobs/groups/g/ack"),
    ("POST", "/v0/topics/jobs/groups/g/nack"), ("POST", "/v0/topics/jobs/groups/g/extend"),
    ("POST", "/v0/topics/jobs/groups/g/pause"), ("POST", "/v0/topics/jobs/groups/g/resume"),
    ("GET", "/v0/topics/jobs/groups/g/work?node=page"), ("GET", "/v0/schedules"), ("PUT", "/v0/schedules/s"),
    ("GET", "/v0/schedules/s"), ("DELETE", "/v0/schedules/s"), ("POST", "/v0/schedules/s/run"),
    ("POST", "/v0/schedules/s/pause"), ("POST", "/v0/schedules/s/resume"), ("GET", "/v0/topics/jobs/jobs"),
    ("POST", "/v0/topics/jobs/jobs/retry"), ("POST", "/v0/topics/jobs/jobs/cancel"),
    ("GET", "/v0/topics/jobs/groups/g/jobs"), ("POST", "/v0/topics/jobs/groups/g/jobs/retry"),
    ("POST", "/v0/topics/jobs/groups/g/jobs/cancel"),
    ("POST", "/v0/topics/jobs/redrive"),
    ("GET", "/v0/topics/jobs/redrive"), ("DELETE", "/v0/topics/jobs/redrive"),
    ("GET", "/v0/topics/jobs/evidence"), ("GET", "/v0/topics/jobs/evidence/inclusion"),
    ("GET", "/v0/topics/jobs/evidence/consistency"), ("GET", "/v0/evidence/key"),
    ("GET", "/v0/topics/jobs/latest"), ("GET", "/v0/groups"), ("GET", "/v0/consumers"), ("GET", "/console"),
    ("GET", "/console/app.js"), ("GET", "/console/views/topic.js"), ("GET", "/v0/key"), ("GET", "/v0/figures"),
    ("GET", "/v0/storage"), ("GET", "/v0/connections"), ("GET", "/v0/filter"),
]  # fmt: skip


@pytest.fixture(scope="module")
def homely(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A daemon without keys that is called `Home.example`, too."""
    with running(tmp_path_factory.mktemp("homely"), allowed_hosts="Home.example", cors_origins=APP) as client:
        client.put_topic("jobs", type="queue")
        client.append("jobs", 1)
        yield client


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
@pytest.mark.parametrize(
    "says",
    [
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "image"},
        {"sec-fetch-site": "cross-site", "origin": OTHER},
        {"origin": OTHER},
        {"origin": "null"},
        {"host": "evil.example"},
        {"host": "evil.example:4000", "sec-fetch-site": "same-origin"},
        {"host": "localhost.evil.example"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "evil.example", "origin": APP},
        {"host": "x" * 4000},
    ],
    ids=lambda says: "-".join(f"{name}={value}"[:40] for name, value in says.items()),
)
def test_without_keys_a_page_of_a_stranger_reaches_no_route(homely: Client, says: dict[str, str], http2: bool) -> None:
    before = homely.state("jobs", touch=False)
    with Client(homely.daemon, http2=http2) as page:
        for method, path in EVERY_ROUTE:
            error = error_of(page.request(method, path, headers=says), 403, "forbidden")
            assert len(str(error)) < 500
    after = homely.state("jobs", touch=False)
    for state in (before, after):
        del state["performance"], state["synced_seq"]
    assert before == after


def test_without_keys_the_host_of_a_target_counts_and_not_the_one_beside_it(homely: Client) -> None:
    def asked(target: str, host: str, *fields: str) -> int:
        with RawConnection(homely) as connection:
            connection.send("\r\n".join([f"GET {target} HTTP/1.1", f"host: {host}", *fields, "", ""]).encode())
            return int(connection.receive()[0])

    for scheme in ("http", "HTTPS"):
        for host, status in (("evil.example", 403), ("localhost", 200), ("127.0.0.1:1", 200), ("home.example", 200)):
            for beside in ("localhost", "evil.example"):
                assert asked(f"{scheme}://{host}/v0/topics", beside) == status, (host, beside)
    assert asked("http://localhost/v0/topics", "evil.example", "origin: http://localhost") == 200
    assert asked("http://localhost/v0/topics", "evil.example", "origin: http://evil.example") == 403


def test_the_list_of_routes_is_complete(homely: Client) -> None:
    paths = homely.get("/v0/openapi.json").json()["paths"]
    described = sorted((method.upper(), path.count("/")) for path, methods in paths.items() for method in methods)
    assert described == sorted((method, path.count("/")) for method, path in EVERY_ROUTE)


@pytest.mark.parametrize("http2", [False, True], ids=["h1", "h2"])
@pytest.mark.parametrize(
    "says",
    [
        {"sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", **VISIT},
        {"sec-fetch-site": "cross-site", "origin": APP},
        {"host": "localhost"},
        {"host": "LOCALHOST:1"},
        {"host": "localhost."},
        {"host": "[::1]:4000"},
        {"host": "192.168.1.7:4000"},
        {"host": "home.EXAMPLE:80"},
    ],
    ids=str,
)
def test_without_keys_everybody_else_is_answered(homely: Client, says: dict[str, str], http2: bool) -> None:
    with Client(homely.daemon, http2=http2) as page:
        for path in ("/v0/topics", "/v0/health", "/v0/docs"):
            assert page.get(path, headers=says).status_code == 200, path


def test_a_link_from_anywhere_may_lead_to_a_page_for_people_and_to_nothing_else(homely: Client) -> None:
    says = {"sec-fetch-site": "cross-site", **VISIT}
    pages = {"/", "/console", "/v0/docs"}
    assert {homely.get(path, headers=says).status_code for path in pages} == {200}
    for method, path in (route for route in EVERY_ROUTE if route[1] not in pages):
        error_of(homely.request(method, path, headers=says), 403, "forbidden")
    # In a frame the page would be around it.
    error_of(homely.get("/v0/docs", headers={**says, "sec-fetch-dest": "iframe"}), 403, "forbidden")
    error_of(homely.get("/v0/docs", headers={**says, "sec-fetch-mode": "no-cors"}), 403, "forbidden")
    error_of(homely.get("/v0/docs", headers={**says, "host": "evil.example"}), 403, "forbidden")


def test_without_keys_a_socket_opens_for_the_names_of_the_machine_only(homely: Client) -> None:
    for host, status in [("localhost", 101), ("home.example", 101), ("evil.example", 403)]:
        assert opens(homely, f"http://{host}", host) == status
        assert opens(homely, None, host) == status


def test_with_keys_the_token_decides_whatever_the_browser_says(client: Client) -> None:
    for says in (
        {"sec-fetch-site": "cross-site", "origin": "http://evil.example"}, {"host": "evil.example"},
        {"sec-fetch-site": "same-site"},
    ):  # fmt: skip
        body_of(client.get("/v0/topics", headers={**says, **bearer("boss")}))
        error_of(client.get("/v0/topics", headers=says), 401, "unauthorized")
        body_of(client.get("/v0/health", headers=says))
