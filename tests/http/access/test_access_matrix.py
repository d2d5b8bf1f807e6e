"""Who may call what: every route, for every set of scopes, within the prefix of the key and outside of it.

The table is written down from `docs/spec/api.md` section 12 and knows nothing of the one in `topics.http.routes`: a
route that is not in it fails, and so does one that lets in whom it should not, or refuses whom it should let in.
"""

from __future__ import annotations

import itertools
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from tests.http.fake_engine import FakeEngine
from topics.config import load_settings
from topics.http.app import make_app
from topics.http.gate import Gate
from topics.http.routes import ROUTES, Route

pytestmark = pytest.mark.trio

READ, WRITE, DELETE, ADMIN = frozenset({"read"}), frozenset({"write"}), frozenset({"delete"}), frozenset({"admin"})
ANY: frozenset[str] = frozenset()
OPEN = None
"""Nobody is asked who they are."""

NEEDS: dict[tuple[str, str], frozenset[str] | None] = {
    ("GET", "/v0/topics"): READ,
    ("GET", "/v0/topics/{topic}"): READ,
    ("GET", "/v0/topics/{topic}/diff"): READ,
    ("POST", "/v0/topics/{topic}/diff"): READ,
    ("GET", "/v0/topics/{topic}/records"): READ,
    ("GET", "/v0/topics/{topic}/records/{seq}"): READ,
    ("GET", "/v0/topics/{topic}/stream"): READ,
    ("GET", "/v0/routers"): READ,
    ("GET", "/v0/routers/{router}"): READ,
    ("POST", "/v0/watch"): READ,
    ("GET", "/v0/watch/{wid}"): READ,
    ("GET", "/v0/metrics"): READ,
    ("POST", "/v0/topics/{topic}"): WRITE,
    ("POST", "/v0/transactions"): WRITE,
    ("POST", "/v0/topics/{topic}/commit"): WRITE,
    ("POST", "/v0/topics/{topic}/ack"): WRITE,
    ("POST", "/v0/topics/{topic}/nack"): WRITE,
    ("POST", "/v0/topics/{topic}/extend"): WRITE,
    ("POST", "/v0/topics/{topic}/claim"): READ | WRITE,
    ("GET", "/v0/topics/{topic}/work"): READ | WRITE,
    ("POST", "/v0/topics/{topic}/pause"): ADMIN,
    ("POST", "/v0/topics/{topic}/resume"): ADMIN,
    ("GET", "/v0/topics/{topic}/jobs"): READ,
    ("POST", "/v0/topics/{topic}/jobs/retry"): READ | WRITE | DELETE,
    ("POST", "/v0/topics/{topic}/jobs/cancel"): DELETE,
    ("GET", "/v0/topics/{topic}/groups/{group}/jobs"): READ,
    ("POST", "/v0/topics/{topic}/groups/{group}/jobs/retry"): READ | WRITE | DELETE,
    ("POST", "/v0/topics/{topic}/groups/{group}/jobs/cancel"): DELETE,
    ("DELETE", "/v0/topics/{topic}"): DELETE,
    ("DELETE", "/v0/routers/{router}"): DELETE,
    ("POST", "/v0/topics/{topic}/delete"): DELETE,
    ("DELETE", "/v0/topics/{topic}/stages/{stage}"): DELETE,
    ("DELETE", "/v0/topics/{topic}/fences/{fence}"): ADMIN,
    ("POST", "/v0/topics/{topic}/seal"): ADMIN,
    ("GET", "/v0/topics/{topic}/evidence"): READ,
    ("GET", "/v0/topics/{topic}/evidence/inclusion"): READ,
    ("GET", "/v0/topics/{topic}/evidence/consistency"): READ,
    ("GET", "/v0/evidence/key"): READ,
    ("POST", "/v0/topics/{topic}/redrive"): READ | WRITE | DELETE,
    ("GET", "/v0/topics/{topic}/redrive"): READ,
    ("DELETE", "/v0/topics/{topic}/redrive"): READ | WRITE | DELETE,
    ("PUT", "/v0/topics/{topic}"): ADMIN,
    ("PUT", "/v0/routers/{router}"): ADMIN,
    ("POST", "/v0/admin/checkpoint"): ADMIN,
    ("GET", "/v0/topics/{topic}/consumers"): READ,
    ("GET", "/v0/topics/{topic}/consumers/{consumer}"): READ,
    ("PUT", "/v0/topics/{topic}/consumers/{consumer}"): WRITE,
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/commit"): WRITE,
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/seek"): WRITE,
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/acquire"): WRITE,
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/release"): WRITE,
    ("DELETE", "/v0/topics/{topic}/consumers/{consumer}"): DELETE,
    ("GET", "/v0/topics/{topic}/latest"): READ,
    ("GET", "/v0/schedules"): READ,
    ("GET", "/v0/schedules/{schedule}"): READ,
    ("PUT", "/v0/schedules/{schedule}"): ADMIN,
    ("POST", "/v0/schedules/{schedule}/run"): ADMIN,
    ("POST", "/v0/schedules/{schedule}/pause"): ADMIN,
    ("POST", "/v0/schedules/{schedule}/resume"): ADMIN,
    ("DELETE", "/v0/schedules/{schedule}"): DELETE,
    ("GET", "/v0/topics/{topic}/groups"): READ,
    ("GET", "/v0/topics/{topic}/groups/{group}"): READ,
    ("PUT", "/v0/topics/{topic}/groups/{group}"): ADMIN,
    ("POST", "/v0/topics/{topic}/groups/{group}/claim"): READ | WRITE,
    ("POST", "/v0/topics/{topic}/groups/{group}/ack"): WRITE,
    ("POST", "/v0/topics/{topic}/groups/{group}/nack"): WRITE,
    ("POST", "/v0/topics/{topic}/groups/{group}/extend"): WRITE,
    ("POST", "/v0/topics/{topic}/groups/{group}/pause"): ADMIN,
    ("POST", "/v0/topics/{topic}/groups/{group}/resume"): ADMIN,
    ("GET", "/v0/topics/{topic}/groups/{group}/work"): READ | WRITE,
    ("DELETE", "/v0/topics/{topic}/groups/{group}"): DELETE,
    ("GET", "/v0/openapi.json"): ANY,
    ("GET", "/v0/docs"): ANY,
    ("GET", "/v0/ws"): ANY,
    ("GET", "/v0/groups"): READ,
    ("GET", "/v0/consumers"): READ,
    ("GET", "/v0/figures"): READ,
    ("GET", "/v0/storage"): READ,
    ("GET", "/v0/connections"): ADMIN,
    ("GET", "/v0/key"): ANY,
    ("GET", "/v0/filter"): ANY,
    ("GET", "/console"): OPEN,
    ("GET", "/console/{asset}"): OPEN,
    ("GET", "/console/{folder}/{asset}"): OPEN,
    ("GET", "/"): OPEN,
    ("GET", "/v0/health"): OPEN,
    ("GET", "/healthz"): OPEN,
    ("GET", "/v0/ready"): OPEN,
    ("GET", "/readyz"): OPEN,
}

TAKES_TOKEN = {
    "/v0/topics/{topic}/stream",
    "/v0/topics/{topic}/work",
    "/v0/topics/{topic}/groups/{group}/work",
    "/v0/watch/{wid}",
    "/v0/ws",
}
"""Where `?token=` counts: the event streams and the WebSocket."""

ABOUT_ALL = {"/v0/admin/checkpoint", "/v0/connections"}
"""Not for keys with prefixes."""

NEVER_ASKED = {"/console", "/console/{asset}", "/console/{folder}/{asset}"}
"""Nobody is asked for these, also where probes are."""

SCOPES = ("read", "write", "delete", "admin")
COMBINATIONS = [frozenset(some) for count in range(1, 5) for some in itertools.combinations(SCOPES, count)]

BODIES: dict[tuple[str, str], Any] = {
    ("POST", "/v0/topics/{topic}"): {"records": [{"data": 1}]},
    ("POST", "/v0/transactions"): {
        "appends": [{"topic": f"in-{name}", "records": [{"data": 1}]} for name in ("topic", "other")]
    },
    ("POST", "/v0/topics/{topic}/commit"): {"stages": ["s"], "idempotency_key": "k"},
    ("POST", "/v0/topics/{topic}/claim"): {"node": "n"},
    ("POST", "/v0/topics/{topic}/ack"): {"node": "n", "seqs": [1]},
    ("POST", "/v0/topics/{topic}/nack"): {"node": "n", "seqs": [1]},
    ("POST", "/v0/topics/{topic}/extend"): {"node": "n", "seqs": [1], "lease_ms": 1000},
    ("POST", "/v0/topics/{topic}/delete"): {"before_seq": 1},
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/commit"): {"seq": 0},
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/seek"): {"to": "tail"},
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/acquire"): {"owner": "o", "lease_ms": 1000},
    ("POST", "/v0/topics/{topic}/consumers/{consumer}/release"): {"generation": 1},
    ("PUT", "/v0/schedules/{schedule}"): {"topic": "in-topic", "record": {"data": 1}, "every_ms": 1000},
    ("POST", "/v0/topics/{topic}/groups/{group}/claim"): {"node": "n"},
    ("POST", "/v0/topics/{topic}/groups/{group}/ack"): {"node": "n", "seqs": [1]},
    ("POST", "/v0/topics/{topic}/groups/{group}/nack"): {"node": "n", "seqs": [1]},
    ("POST", "/v0/topics/{topic}/groups/{group}/extend"): {"node": "n", "seqs": [1], "lease_ms": 1000},
    ("POST", "/v0/watch"): {"topics": {"in-topic": {}}},
    ("PUT", "/v0/routers/{router}"): {"source": "in-source", "dest": "in-dest"},
}


def key_of(scopes: frozenset[str], prefix: str) -> str:
    return "-".join(["key", *sorted(scopes), prefix or "any-"]) + "x"


ENTRIES = ",".join(
    f"{key_of(scopes, prefix)}:{'+'.join(sorted(scopes))}:{prefix}" for scopes in COMBINATIONS for prefix in ("", "in-")
)
SETTINGS = load_settings({"TOPICS_API_KEYS": ENTRIES, "TOPICS_WAL_SHARDS": "1"})


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


class _Connection:
    """What a request comes on."""

    peer = ("127.0.0.1", 1)
    is_broken = False

    def why_not(self, _size: int, _key: bytes) -> None:
        return None

    def ends_wait(self, _scope: object) -> AbstractContextManager[None]:
        return nullcontext()

    def answering(self, _size: int, _key: bytes = b"", **_: object) -> AbstractContextManager[None]:
        return nullcontext()


async def ask(gate: Gate, method: str, target: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
    """Send a request straight to the application."""
    path, _, query = target.partition("?")
    content = b"" if body is None else json.dumps(body).encode()
    fields = {"host": "localhost", **({"content-type": "application/json"} if content else {}), **(headers or {})}
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "scheme": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in fields.items()],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 4000),
        "state": {"connection": _Connection()},
        "extensions": {},
    }
    answer = Answer()
    sent = False

    async def receive() -> dict[str, Any]:
        nonlocal sent
        if sent:
            await trio.sleep_forever()
        sent = True
        return {"type": "http.request", "body": content, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            answer.headers = {name.decode().lower(): value.decode() for name, value in message["headers"]}
        else:
            answer.body += message.get("body", b"")

    with trio.fail_after(60):
        await gate(scope, receive, send)
    assert answer.status, "there was an answer"
    return answer


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def make_gate(settings: Any = SETTINGS) -> Gate:
    return make_app(FakeEngine(settings).as_engine())


def target_of(route: Route, side: str) -> str:
    """The path of a call on something whose name begins like this."""
    query = "?node=n" if route.template.endswith("/work") else ""
    names = {"topic": f"{side}-topic", "router": f"{side}-router", "wid": "wid_x", "stage": "s", "seq": 1}
    names |= {"schedule": f"{side}-schedule", "asset": "app.js", "folder": "views"}
    return route.template.format(**names, fence="f", consumer="c", group="g") + query


def body_for(route: Route) -> Any:
    return BODIES.get((route.method, route.template))


async def refusal_of(gate: Gate, route: Route, side: str, headers: dict[str, str] | None, query: str = "") -> int:
    """401 or 403, or 0 for a caller that is let in. Later errors do not count, because the parts that streams need are
    not here."""
    target = target_of(route, side)
    if query:
        target += ("&" if "?" in target else "?") + query
    with capture_logs():
        answer = await ask(gate, route.method, target, body_for(route), headers)
    if answer.status == 401:
        assert answer.error["code"] == "unauthorized"
        assert answer.headers["www-authenticate"].lower().startswith("bearer")
    elif answer.status == 403:
        assert answer.error["code"] == "forbidden"
    return answer.status if answer.status in (401, 403) else 0


def named(route: Route) -> str:
    return f"{route.method} {route.template}"


async def test_every_route_is_in_the_table() -> None:
    assert {(route.method, route.template) for route in ROUTES} == set(NEEDS)


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_who_is_nobody_is_401_but_for_probes(route: Route) -> None:
    gate = make_gate()
    expected = 0 if NEEDS[route.method, route.template] is OPEN else 401
    known = key_of(frozenset(SCOPES), "")
    for headers in (
        None, bearer("unknown"), bearer(""), bearer(known + "x"), bearer(known[:-1]), bearer(known.upper()),
        {"authorization": known}, {"authorization": f"Basic {known}"}, {"authorization": "Bearer"},
        bearer(ENTRIES.split(",")[0]), {"x-authorization": f"Bearer {known}"}, {"cookie": f"token={known}"},
    ):  # fmt: skip
        for side in ("in", "out"):
            assert await refusal_of(gate, route, side, headers) == expected, (headers, side)


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_who_has_the_scopes_is_let_in_and_nobody_else(route: Route) -> None:
    gate = make_gate()
    needs = NEEDS[route.method, route.template] or frozenset()
    named_by_path = any(name in route.template for name in ("{topic}", "{router}", "{schedule}"))
    wrong = []
    for scopes, prefix, side in itertools.product(COMBINATIONS, ("", "in-"), ("in", "out")):
        about_all = route.template in ABOUT_ALL
        covered = not prefix or (not about_all and (side == "in" or not named_by_path))
        expected = 0 if needs <= scopes and covered else 403
        got = await refusal_of(gate, route, side, bearer(key_of(scopes, prefix)))
        if got != expected:
            wrong.append((sorted(scopes), prefix, side, got))
    assert wrong == []


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_a_token_in_the_query_counts_for_streams_alone(route: Route) -> None:
    gate = make_gate()
    needs = NEEDS[route.method, route.template]
    counts = needs is OPEN or (route.template in TAKES_TOKEN and route.method == "GET")
    everything, unknown = key_of(frozenset(SCOPES), ""), "unknown"
    assert await refusal_of(gate, route, "in", None, f"token={everything}") == (0 if counts else 401)
    assert await refusal_of(gate, route, "in", None, f"token={unknown}") == (0 if needs is OPEN else 401)
    # The header is what counts where there is one.
    assert await refusal_of(gate, route, "in", bearer(everything), f"token={unknown}") == 0
    assert await refusal_of(gate, route, "in", bearer(unknown), f"token={everything}") == (0 if needs is OPEN else 401)


@pytest.mark.parametrize("route", ROUTES, ids=named)
async def test_without_keys_nobody_is_asked(route: Route) -> None:
    gate = make_gate(load_settings({"TOPICS_WAL_SHARDS": "1"}))
    for headers in (None, bearer("x"), {"authorization": "Basic x"}, bearer("")):
        for side in ("in", "out"):
            assert await refusal_of(gate, route, side, headers) == 0


@pytest.mark.parametrize("route", [route for route in ROUTES if NEEDS[route.method, route.template] is OPEN], ids=named)
async def test_probes_may_be_made_to_ask(route: Route) -> None:
    environ = {"TOPICS_API_KEYS": ENTRIES, "TOPICS_PROBE_AUTH": "1", "TOPICS_WAL_SHARDS": "1"}
    gate = make_gate(load_settings(environ))
    for headers in (None, bearer("unknown")):
        expected = 0 if route.template in NEVER_ASKED else 401
        assert await refusal_of(gate, route, "in", headers) == expected
    for scopes in COMBINATIONS:
        assert await refusal_of(gate, route, "in", bearer(key_of(scopes, "in-"))) == 0


@pytest.mark.parametrize("phase", ["starting", "replaying", "draining"])
async def test_before_it_is_ready_and_while_it_stops_the_same_are_asked(phase: str) -> None:
    engine = FakeEngine(SETTINGS)
    gate = make_app(engine.as_engine())
    engine.status.phase = phase
    for route in ROUTES:
        needs = NEEDS[route.method, route.template]
        if needs is OPEN:
            assert await refusal_of(gate, route, "in", None) == 0
        elif not route.always_open:
            # The phase goes before the question who it is.
            for headers in (None, bearer("unknown"), bearer(key_of(frozenset(SCOPES), ""))):
                assert (await ask(gate, route.method, target_of(route, "in"), headers=headers)).status == 503
        else:
            assert await refusal_of(gate, route, "in", None) == 401
            for scopes in COMBINATIONS:
                expected = 0 if needs <= scopes else 403
                assert await refusal_of(gate, route, "in", bearer(key_of(scopes, ""))) == expected


REFUSED_BEFORE = [
    # (method, target, headers, status): what of several things that are wrong is said.
    ("GET", "/v0/nothing", None, 404),
    ("PATCH", "/v0/topics/in-topic", None, 405),
    ("PUT", "/v0/topics/-bad", None, 401),
    ("PUT", "/v0/topics/-bad", bearer(key_of(READ, "in-")), 403),
    ("PUT", "/v0/topics/-bad", bearer(key_of(ADMIN, "in-")), 400),
    ("PUT", "/v0/topics/out-topic", bearer(key_of(ADMIN, "in-")), 403),
    ("POST", "/v0/topics/out-topic", bearer(key_of(WRITE, "in-")), 403),
    ("POST", "/v0/topics/in-topic", bearer(key_of(WRITE, "in-")), 415),
]


@pytest.mark.parametrize(("method", "target", "headers", "status"), REFUSED_BEFORE)
async def test_the_order_of_refusals(method: str, target: str, headers: dict[str, str] | None, status: int) -> None:
    body = {"x": 1}
    answer = await ask(make_gate(), method, target, body, {**(headers or {}), "content-type": "text/plain"})
    assert answer.status == status, answer.body


async def test_a_refusal_names_what_is_missing() -> None:
    gate = make_gate()
    for route in ROUTES:
        needs = NEEDS[route.method, route.template] or frozenset()
        for missing in sorted(needs):
            scopes = frozenset(SCOPES) - {missing}
            answer = await ask(gate, route.method, target_of(route, "in"), body_for(route), bearer(key_of(scopes, "")))
            assert answer.status == 403
            assert missing in json.dumps(answer.error["detail"]), answer.error
    for route in ROUTES:
        for name in ("topic", "router"):
            if f"{{{name}}}" not in route.template:
                continue
            headers = bearer(key_of(frozenset(SCOPES), "in-"))
            answer = await ask(gate, route.method, target_of(route, "out"), body_for(route), headers)
            assert answer.status == 403
            assert f"out-{name}" in json.dumps(answer.error["detail"]), answer.error


async def test_what_is_refused_never_reaches_the_engine() -> None:
    engine = FakeEngine(SETTINGS)
    gate = make_app(engine.as_engine())
    everything = bearer(key_of(frozenset(SCOPES), ""))
    for path in ("/v0/topics/in-topic", "/v0/topics/out-topic"):
        assert (await ask(gate, "PUT", path, {}, everything)).status == 201
    entered = engine.entered
    for route in ROUTES:
        needs = NEEDS[route.method, route.template]
        if not needs:
            continue
        for headers in (None, *(bearer(key_of(frozenset(SCOPES) - {missing}, "")) for missing in needs)):
            assert await refusal_of(gate, route, "in", headers) in (401, 403)
        if "{topic}" in route.template or "{router}" in route.template:
            assert await refusal_of(gate, route, "out", bearer(key_of(frozenset(SCOPES), "in-"))) == 403
    assert engine.entered == entered
