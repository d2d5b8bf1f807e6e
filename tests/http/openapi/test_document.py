"""The description of the daemon: it is complete, it is true, and its page is harmless."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import httpx
import jsonschema_rs
import pytest

from tests.described import check, resolve
from tests.http.conftest import SMALL, Served, serving
from topics.auth.keys import parse_keys
from topics.errors import STATUS_OF_CODE, ApiError
from topics.http.openapi.description import OPERATIONS
from topics.http.openapi.docs_page import CONTENT_POLICY, page_bytes, render
from topics.http.openapi.document import document, document_bytes
from topics.http.routes import ROUTES, BodyKind, Route
from topics.log.names import check_router_name, check_topic_name
from topics.telemetry.figures import BucketFigures

API = document()
BY_NAME = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)


def operation_of(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = API["paths"][route.template][route.method.lower()]
    return operation


def path_of(route: Route) -> str:
    """A path that fits the route."""
    in_path = [parameter for parameter in operation_of(route).get("parameters", []) if parameter["in"] == "path"]
    return route.template.format(**{parameter["name"]: parameter["example"] for parameter in in_path})


def values_in(value: Any) -> Iterator[Any]:
    """The value, and every value in it."""
    yield value
    if isinstance(value, dict):
        for inner in value.values():
            yield from values_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from values_in(inner)


# --- complete --------------------------------------------------------------------------------------------------------


def test_every_call_is_described_and_nothing_else() -> None:
    described = [
        (operation["operationId"], method.upper(), path)
        for path, operations in API["paths"].items()
        for method, operation in operations.items()
    ]
    assert sorted(described) == sorted((route.name, route.method, route.template) for route in ROUTES)
    assert set(OPERATIONS) == {route.name for route in ROUTES}
    assert {operation.group for operation in OPERATIONS.values()} == {tag["name"] for tag in API["tags"]}


@BY_NAME
def test_names_in_a_path_a_body_and_scopes_are_those_of_the_route(route: Route) -> None:
    operation = operation_of(route)
    parameters = operation.get("parameters", [])
    names = [parameter["name"] for parameter in parameters]
    assert len(set(names)) == len(names)
    in_path = {parameter["name"] for parameter in parameters if parameter["in"] == "path"}
    assert in_path == set(re.findall(r"{(\w+)}", route.template))
    assert ("requestBody" in operation) == (route.body is not BodyKind.NONE)
    first, *others = operation["security"]
    assert first == ({} if route.needs is None else {"bearer": route.needs.words})
    assert any("token" in other for other in others) == route.token_in_query


def test_every_reference_leads_somewhere() -> None:
    references = [value["$ref"] for value in values_in(API) if isinstance(value, dict) and "$ref" in value]
    assert references
    for reference in references:
        assert resolve(API, {"$ref": reference}), reference
    used = {reference.rpartition("/")[2] for reference in references}
    assert used >= set(API["components"]["schemas"]) | set(API["components"]["responses"])


def test_every_schema_is_one() -> None:
    for schema in API["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)
        assert all(field["description"] for field in schema["properties"].values())
    schemas = [value["schema"] for value in values_in(API["paths"]) if isinstance(value, dict) and "schema" in value]
    assert schemas
    for schema in schemas:
        jsonschema_rs.meta.validate(schema)


@BY_NAME
def test_the_example_of_a_body_and_every_default_are_valid(route: Route) -> None:
    operation = operation_of(route)
    for parameter in operation.get("parameters", []):
        schema = parameter["schema"]
        assert "example" in parameter or not parameter.get("required"), "commands of the page would be refused"
        for value in [schema[key] for key in ("default",) if key in schema] + [
            parameter[key] for key in ("example",) if key in parameter
        ]:
            assert jsonschema_rs.is_valid(schema, value), parameter["name"]
    for content in operation.get("requestBody", {"content": {}})["content"].values():
        schema = {**content["schema"], "components": API["components"]}
        assert jsonschema_rs.is_valid(schema, content["example"])
        assert not jsonschema_rs.is_valid(schema, [])


@pytest.mark.parametrize("name", ["a", "A.b_c:d-9", "a>b", "", "-a", "a b", "ä", "a" * 255, "a" * 256])
def test_patterns_of_names_are_what_names_are_checked_with(name: str) -> None:
    for check_name, template in [(check_topic_name, "/v0/topics/{topic}"), (check_router_name, "/v0/routers/{router}")]:
        schema = API["paths"][template]["get"]["parameters"][0]["schema"]
        try:
            check_name(name)
        except ApiError:
            assert not jsonschema_rs.is_valid(schema, name)
        else:
            assert jsonschema_rs.is_valid(schema, name)


# --- true ------------------------------------------------------------------------------------------------------------

RECORDS = {"records": [{"data": [1], "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}]}

CALLS: list[tuple[str, str, Any, int]] = [
    ("GET", "/v0/health", None, 200),
    ("GET", "/healthz", None, 200),
    ("GET", "/v0/ready", None, 200),
    ("GET", "/readyz", None, 200),
    ("GET", "/v0/metrics", None, 200),
    ("GET", "/v0/openapi.json", None, 200),
    ("GET", "/v0/docs", None, 200),
    ("POST", "/v0/admin/checkpoint", None, 200),
    ("PUT", "/v0/topics/a", {}, 201),
    ("PUT", "/v0/topics/a", {"ttl_ms": 1, "priority": None}, 200),
    ("PUT", "/v0/topics/a", {"type": "queue"}, 409),
    ("PUT", "/v0/topics/a", {"no": 1}, 400),
    ("POST", "/v0/topics/a", RECORDS, 200),
    ("POST", "/v0/topics/b?return_seqs=0", RECORDS, 201),
    ("POST", "/v0/topics/a", {"records": []}, 400),
    ("POST", "/v0/topics/a", {"records": [{"data": 1}] * 101}, 400),
    ("POST", "/v0/topics/a", {"records": [{"data": "x" * (300 << 10)}]}, 400),
    ("POST", "/v0/topics/a", {"records": [{"data": "x" * (2 << 20)}]}, 413),
    ("POST", "/v0/topics/none", {**RECORDS, "create": False}, 404),
    ("POST", "/v0/topics/a?stage=s", RECORDS, 200),
    ("POST", "/v0/topics/c?stage=s", RECORDS, 201),
    ("POST", "/v0/topics/c?stage=-", RECORDS, 400),
    ("POST", "/v0/topics/a/commit", {"stages": ["s"], "idempotency_key": "k"}, 200),
    ("POST", "/v0/topics/a/commit", {"stages": ["s", "s"], "idempotency_key": "k"}, 400),
    ("POST", "/v0/topics/a/commit", {"stages": ["none"], "idempotency_key": "k"}, 404),
    ("DELETE", "/v0/topics/c/stages/s", None, 200),
    ("DELETE", "/v0/topics/c/stages/-", None, 400),
    ("GET", "/v0/topics/a", None, 200),
    ("GET", "/v0/topics/none", None, 404),
    ("GET", "/v0/topics/-", None, 400),
    ("GET", "/v0/topics?page_size=1", None, 200),
    ("GET", "/v0/topics?cursor=no", None, 400),
    ("POST", "/v0/topics/a/diff", {}, 200),
    ("GET", "/v0/topics/a/diff?include_tags=1", None, 200),
    ("GET", "/v0/topics/a/diff?limit=x", None, 400),
    ("GET", "/v0/topics/none/diff", None, 404),
    ("GET", "/v0/topics/a/records/1", None, 200),
    ("GET", "/v0/topics/a/records/99", None, 404),
    ("GET", "/v0/topics/a/records/0", None, 400),
    ("GET", "/v0/topics/none/records/1", None, 404),
    ("POST", "/v0/topics/a/claim", {"node": "w"}, 200),
    ("POST", "/v0/topics/a/ack", {"node": "w", "seqs": [1, 2]}, 200),
    ("POST", "/v0/topics/a/nack", {"node": "w", "seqs": [1]}, 200),
    ("POST", "/v0/topics/a/extend", {"node": "w", "seqs": [1], "lease_ms": 100}, 200),
    ("POST", "/v0/topics/a/ack", {"node": "w", "seqs": list(range(2000))}, 400),
    ("POST", "/v0/topics/a/delete", {"before_seq": 2}, 200),
    ("PUT", "/v0/routers/r", {"source": "a", "dest": "b", "filter": "t"}, 201),
    ("PUT", "/v0/routers/r", {}, 200),
    ("PUT", "/v0/routers/s", {}, 400),
    ("GET", "/v0/routers/r", None, 200),
    ("GET", "/v0/routers/none", None, 404),
    ("GET", "/v0/routers", None, 200),
    ("DELETE", "/v0/routers/r", None, 200),
    ("GET", "/v0/ws", None, 400),
    ("DELETE", "/v0/topics/a?if_empty=1", None, 409),
    ("DELETE", "/v0/topics/a", None, 200),
]


@pytest.mark.slow
@pytest.mark.trio
async def test_answers_are_as_described(served: Served) -> None:
    async with served.client() as client:
        for method, path, body, status in CALLS:
            response = await client.request(method, path, json=body)
            assert response.status_code == status, (method, path, response.text[:500])
            check(response)
        check(await client.get("/v0/metrics", headers={"accept": "application/json"}))
        for kind in ("image/png", "application/cbor"):
            check(await client.post("/v0/topics/a", content=b"x", headers={"content-type": kind}))
        plain = {"content-type": "text/plain"}
        for route in ROUTES:
            if route.body is not BodyKind.NONE:
                refused = await client.request(route.method, path_of(route), content=b"{}", headers=plain)
                assert check(refused).status_code == 415, route.name


@pytest.mark.trio
@pytest.mark.parametrize("code", ["topic_full", "throttled", "read_only", "internal", "shutting_down"])
async def test_what_an_engine_refuses_an_append_with_is_as_described(served: Served, code: str) -> None:
    async def fail() -> None:
        raise ApiError(code, "as it happens", retry_after_s=1)

    served.engine.before = fail
    async with served.client() as client:
        assert check(await client.post("/v0/topics/a", json=RECORDS)).json()["error"]["code"] == code


@pytest.mark.slow
@pytest.mark.trio
async def test_whoever_may_not_is_told_so_as_described() -> None:
    keys = parse_keys("good,poor:read:other")
    settings = replace(SMALL, api_keys=keys, probe_auth=True)
    async with serving(settings) as served, served.client() as client:
        for route in ROUTES:
            body: dict[str, Any] | None = {} if route.body is not BodyKind.NONE else None
            path = path_of(route)
            if route.is_public:
                continue
            assert check(await client.request(route.method, path, json=body)).status_code == 401, route.name
            poor = {"authorization": "Bearer poor"}
            answer = await client.request(route.method, path, json=body, headers=poor)
            check(answer)
            if "{topic}" in route.template or "{router}" in route.template:
                assert answer.status_code == 403, route.name


@pytest.mark.slow
@pytest.mark.trio
@pytest.mark.parametrize("phase", ["replaying", "draining"])
async def test_a_daemon_that_is_not_ready_says_so_as_described(served: Served, phase: str) -> None:
    served.engine.status.phase = phase
    async with served.client() as client:
        for route in ROUTES:
            answer = check(await client.request(route.method, path_of(route)))
            refuses = not route.always_open or "ready" in route.name
            assert (answer.status_code == 503) == refuses, route.name


@pytest.mark.trio
async def test_readiness_with_a_bucket_is_as_described(served: Served) -> None:
    seen = BucketFigures(state="working", epoch=2, round=9, lag_bytes=1, lag_ms=3, has_base=True, base=7, base_age_ms=5)
    served.engine.metrics.bucket = lambda: seen
    async with served.client() as client:
        answer = check(await client.get("/v0/ready")).json()
    assert answer["bucket"] == {
        **{"state": "working", "epoch": 2, "round": 9, "lag_bytes": 1, "lag_ms": 3},
        **{"has_base": True, "base": 7, "base_age_ms": 5},
    }


def test_no_status_is_described_that_no_code_has() -> None:
    for operations in API["paths"].values():
        for operation in operations.values():
            assert {int(status) for status in operation["responses"]} <= {101, 200, 201, 202, *STATUS_OF_CODE.values()}


# --- harmless --------------------------------------------------------------------------------------------------------

VOID = {"meta"}


class Page(HTMLParser):
    """What a browser would make of it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.data: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.data.append(data)


def test_the_page_leads_nowhere_but_to_itself_and_the_document() -> None:
    html = page_bytes().decode()
    assert html.startswith("<!DOCTYPE html>")
    page = Page(html)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe", "form", "base", "object"})
    assert {name for name, _ in page.attributes} <= {
        "lang",
        "charset",
        "name",
        "content",
        "aria-label",
        "href",
        "id",
        "class",
    }
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(set(ids)) == len(ids)
    assert {route.name for route in ROUTES} <= set(ids)
    links = {value for name, value in page.attributes if name == "href"}
    assert links - {"openapi.json"} <= {f"#{name}" for name in ids}
    assert not re.search(r"@import|url\(", html)


def test_the_policy_lets_through_the_style_of_the_page_and_nothing_else() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", page_bytes().decode(), re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = dict(part.split(" ", 1) for part in CONTENT_POLICY.decode().split("; "))
    assert policy.pop("style-src") == f"'sha256-{digest}'"
    assert set(policy.values()) == {"'none'"}
    assert "default-src" in policy


HOSTILE = "</code></pre></style><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{ 7 * 7 }}{% raw %}&amp;"


def hostile(value: Any) -> Any:
    """The value with every text that people wrote replaced."""
    if isinstance(value, dict):
        return {
            name: HOSTILE if name in ("description", "summary", "title", "version") and isinstance(inner, str)
            else hostile(inner)
            for name, inner in value.items()
        }  # fmt: skip
    return [hostile(inner) for inner in value] if isinstance(value, list) else value


def test_text_of_the_document_stays_text() -> None:
    api = hostile(copy.deepcopy(API))
    operation = api["paths"].pop("/v0/topics")["get"]
    operation["parameters"] = [{"name": HOSTILE, "in": HOSTILE, "description": HOSTILE, "schema": {"default": HOSTILE}}]
    operation["operationId"] = HOSTILE
    operation["security"] = [{"bearer": [HOSTILE]}]
    operation["requestBody"] = {
        "required": True,
        "content": {HOSTILE: {"schema": {"enum": [HOSTILE]}, "example": HOSTILE}},
    }
    api["paths"][f"/{HOSTILE}"] = {HOSTILE: operation}
    api["components"]["schemas"][HOSTILE] = {"properties": {HOSTILE: {"type": HOSTILE, "description": HOSTILE}}}
    page = Page(render(api))
    assert page.tags == Page(page_bytes().decode()).tags
    assert {name for name, _ in page.attributes} == {name for name, _ in Page(page_bytes().decode()).attributes}
    assert "{{ 7 * 7 }}" in "".join(page.data)


@pytest.mark.trio
async def test_both_are_served_and_made_once(served: Served) -> None:
    assert document_bytes() is document_bytes()
    assert page_bytes() is page_bytes()
    async with served.client() as client:
        page = check(await client.get("/v0/docs"))
        assert page.content == page_bytes()
        assert page.headers["content-security-policy"] == CONTENT_POLICY.decode()
        assert page.headers["content-encoding"] == "gzip"
        described: httpx.Response = check(await client.get("/v0/openapi.json"))
        assert described.content == document_bytes() + b"\n"
        assert described.json()["openapi"].startswith("3.1.")
