"""Every call of the clients, against the contract's tables and the daemon's own description."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl

import jsonschema_rs
import msgspec
import pytest

from tests.client.call_cases import CASES, Query, Said
from tests.described import closed_document, resolve
from topics.client import (
    calls,
    consumer_calls,
    daemon_calls,
    evidence_calls,
    group_calls,
    job_calls,
    latest_calls,
    redrive_calls,
    schedule_calls,
)
from topics.client.calls import ClientCall
from topics.client.results import NewRecord, Page, Record, Tombstone
from topics.http.openapi.document import document
from topics.http.routes import ROUTES, RouteMatch, RouteTable

TABLE = RouteTable()
every_call = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def makers() -> dict[str, Callable[..., Any]]:
    """The functions that make a call."""
    modules = (
        calls,
        consumer_calls,
        daemon_calls,
        evidence_calls,
        group_calls,
        job_calls,
        latest_calls,
        redrive_calls,
        schedule_calls,
    )
    found = [pair for module in modules for pair in inspect.getmembers(module, inspect.isfunction)]
    return {
        name: function
        for name, function in found
        if function.__module__ in {module.__name__ for module in modules}
        and not name.startswith("_")
        and str(inspect.signature(function).return_annotation).startswith("ClientCall[")
    }


def split(call: ClientCall[Any]) -> tuple[str, Query]:
    path, _, query = call.target.partition("?")
    return path, parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))


def route_of(call: ClientCall[Any]) -> RouteMatch:
    """The route that the daemon takes it for."""
    return TABLE.find(call.method, call.target.partition("?")[0].encode())


def test_no_call_is_forgotten_here() -> None:
    assert {name.partition(",")[0] for name in CASES} == set(makers())


def test_no_route_is_without_a_call() -> None:
    called = {route_of(case.call).route.name for case in CASES.values()}
    others = {
        "diff_post": "the same as diff_get",
        "stream": "a watch of one topic tells more",
        "ws": "a stream and appends do the same",
        "docs": "a page for people",
        "root": "where to go, for people",
        "console": "a page for people",
        "console_asset": "a part of that page",
        "console_folder": "a part of that page",
        "healthz": "the same as health",
        "readyz": "the same as ready",
        "export": "of bulk transfer: test_bulk.py",
    }
    assert called.isdisjoint(others)
    assert {route.name for route in ROUTES} <= called | others.keys()


@every_call
def test_what_is_sent_is_what_the_contract_says(case: Said) -> None:
    path, query = split(case.call)
    found = route_of(case.call)
    assert f"{case.call.method} {found.plain_path()}" == case.line
    assert found.params().keys() == {part[1:-1] for part in found.route.template.split("/") if part.startswith("{")}
    assert query == case.query
    assert (case.call.body is None) == (case.body is None)
    if isinstance(case.body, bytes):
        assert (case.call.body, case.call.content_type != calls.JSON) == (case.body, True)
    elif case.call.body is not None:
        assert json.loads(case.call.body) == case.body
    assert path.isascii()


@every_call
def test_what_may_be_sent_twice_is_what_does_no_harm_twice(case: Said) -> None:
    assert case.call.repeatable == case.repeatable


# ----------------------------------------------------------------- against the daemon's own description


@cache
def operation(template: str, method: str) -> Any:
    return document()["paths"][template][method.lower()]


def validate(schema: Any, value: Any, where: object) -> None:
    """Raise for a value that the description does not know; objects hold only what it names."""
    validator = jsonschema_rs.Draft202012Validator({**schema, "components": closed_document()["components"]})
    for error in validator.iter_errors(value):
        raise AssertionError((where, value, str(error)))


def plain(schema: Any, text: str) -> Any:
    """The value that a parameter's text stands for."""
    kinds = schema.get("type", schema.get("oneOf", schema.get("anyOf")))
    if kinds in ("boolean", "integer"):
        return json.loads(text)
    return text


@every_call
def test_the_daemon_describes_what_is_sent(case: Said) -> None:
    found = route_of(case.call)
    described = operation(found.route.template, case.call.method)
    parameters = [resolve(document(), parameter) for parameter in described.get("parameters", [])]
    known = {parameter["name"]: parameter for parameter in parameters if parameter["in"] == "query"}
    headers = {parameter["name"] for parameter in parameters if parameter["in"] == "header"}
    query = split(case.call)[1]
    assert {name for name, parameter in known.items() if parameter.get("required")} <= {name for name, _ in query}
    for name in {name for name, _ in query}:
        texts = [text for other, text in query if other == name]
        schema = known[name]["schema"]
        if schema.get("type") == "array":
            validate(schema, texts, name)
        else:
            (text,) = texts
            validate(schema, plain(schema, text), name)
    assert set(case.call.headers) <= headers
    if case.call.body is None:
        assert not described.get("requestBody", {}).get("required", False)
    else:
        content = described["requestBody"]["content"]
        kind = case.call.content_type
        schema = content[kind if kind in content else f"{kind.partition('/')[0]}/*"]["schema"]
        if isinstance(case.body, bytes):
            assert schema == {"type": "string", "format": "binary"}
        else:
            validate(schema, json.loads(case.call.body), found.route.label)


@every_call
def test_the_daemon_describes_what_is_asked_for(case: Said) -> None:
    described = operation(route_of(case.call).route.template, case.call.method)
    answers = described["responses"]
    success = resolve(document(), answers.get("200") or answers["202"])
    assert any(content.startswith(case.call.accept) for content in success["content"])


# ----------------------------------------------------------------- what tables do not show


def test_each_append_has_a_key_of_its_own() -> None:
    keys = {json.loads(calls.append("a", [1]).body or b"")["idempotency_key"] for _ in range(50)}
    assert len(keys) == 50
    assert all(isinstance(key, str) and 1 <= len(key) <= 256 for key in keys)


def test_raw_data_is_sent_byte_for_byte() -> None:
    raw = b'{"a" :  1.50, "b":"\\u0041\xc3\xa4", "a": -0}'
    call = calls.append("a", [NewRecord(msgspec.Raw(raw), tag="t")])
    assert b'{"data":' + raw + b',"tag":"t"}' in (call.body or b"")


def test_what_was_read_can_be_appended_as_it_is() -> None:
    raw = b'{"n": 1.0}'
    record = msgspec.json.decode(b'{"$seq":1,"$ts":2,"data":' + raw + b"}", type=Record)
    assert b'{"data":' + raw + b"}" in (calls.append("a", [NewRecord(record.raw)]).body or b"")


@pytest.mark.parametrize("kind", ["application/json", "Application/X-NDJSON; charset=utf-8", "image/png\r\nx: y"])
def test_bytes_have_no_type_that_means_something_else(kind: str) -> None:
    with pytest.raises(ValueError, match="content_type"):
        calls.append_bytes("a", b"{}", kind)


def test_a_record_gives_its_bytes_back() -> None:
    raw = b'{"$bytes":"AP8=","$content_type":"image/png"}'
    record = msgspec.json.decode(b'{"$seq":1,"$ts":2,"data":' + raw + b"}", type=Record)
    assert (record.content, record.content_type) == (b"\0\xff", "image/png")
    assert record.data == {"$bytes": "AP8=", "$content_type": "image/png"}
    made = calls.encode_record({"$bytes": "AP8=", "$content_type": "image/png"})
    assert made == b'{"data":' + raw + b"}"


@pytest.mark.parametrize(
    "raw", [b'{"$bytes": "AP8=","$content_type":"image/png"}', b'"x"', b"{}", b'{"$bytes":"AP8="}']
)
def test_a_record_of_other_json_has_no_bytes(raw: bytes) -> None:
    record = msgspec.json.decode(b'{"$seq":1,"$ts":2,"data":' + raw + b"}", type=Record)
    assert record.content_type is None
    with pytest.raises(ValueError, match="record 1 has no raw bytes"):
        _ = record.content


def test_a_record_without_its_data_has_no_bytes() -> None:
    assert msgspec.json.decode(b'{"$seq":1,"$ts":2}', type=Record).content_type is None


@pytest.mark.parametrize("records", ["text", b"bytes", {"data": 1}, NewRecord(1)], ids=repr)
def test_one_record_in_place_of_a_list_is_a_mistake(records: Any) -> None:
    with pytest.raises(TypeError):
        calls.append("a", records)


@pytest.mark.parametrize("data", [object(), {1j}, "\ud800"], ids=["object", "set", "surrogate"])
def test_what_json_cannot_say_fails_before_anything_is_sent(data: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        calls.append("a", [data])


@pytest.mark.parametrize("name", ["a/b", "a?b=c", "a#b", "a%2Fb", "ä", "a b", "../routers", "a\r\nb", "a//b"])
def test_a_name_is_one_part_of_the_path_whatever_it_is(name: str) -> None:
    for call in (calls.state(name), calls.diff(name), calls.router(name)):
        path, _ = split(call)
        plain_parts = {"v0", "topics", "routers", "diff"}
        (quoted,) = [part for part in path.strip("/").split("/") if part not in plain_parts]
        assert quoted.isascii()
        assert not set(quoted) & set("/?# \r\n")


def test_a_call_does_not_show_what_it_carries() -> None:
    call = calls.append("a", ["a secret"], idempotency_key="k")
    assert "secret" not in repr(call)
    assert "/v0/topics/a" in repr(call)


def test_the_time_that_the_daemon_waits_on_purpose_is_not_silence() -> None:
    assert calls.diff("a", wait_ms=30_000).waits == 30
    assert calls.claim("a", "n", wait_ms=2500).waits == 2.5
    assert calls.diff("a").waits == 0


def test_a_page_is_read_gap_first_and_up_to_the_last_seq_asked_for() -> None:
    gap = Tombstone(gap_from=1, gap_to=3, reason="cap", missed_estimate=3, earliest_seq=4, head_seq=6)
    records = [Record(seq=seq, ts=1) for seq in (4, 5, 6)]
    page = Page(
        topic="a",
        epoch=1,
        records=records,
        next_from_seq=6,
        head_seq=6,
        earliest_seq=4,
        caught_up=True,
        tombstone=gap,
        lag=0,
    )
    assert list(calls.values_of(page)) == [gap, *records]
    assert list(calls.values_of(page, 5)) == [gap, *records[:2]]
    assert {item.topic for item in calls.values_of(page)} == {"a"}
