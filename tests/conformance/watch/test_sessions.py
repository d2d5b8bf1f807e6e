"""Section 6: making a session, and opening its stream."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import JSON_TYPE, Client, body_of, error_of, fresh_name, invalid, running
from tests.conformance.sse import Session, connect, covered, watching


def post_watch(client: Client, body: Any, **query: str) -> httpx.Response:
    return client.post("/v0/watch", params=query, json=body)


# The session


def test_a_session_says_where_its_topics_begin(client: Client, topic: str) -> None:
    other, empty = fresh_name(), fresh_name()
    client.append(topic, 1, 2, 3)
    client.append(other, *range(5), config={"cap_records": 2})
    client.put_topic(empty)
    answer = body_of(post_watch(client, {"topics": {topic: {"from_seq": 2}, other: {}, empty: {"tail": True}}}))
    assert set(answer) == {"wid", "stream_url", "session_ttl_ms", "topics", "performance"}
    assert answer["session_ttl_ms"] == 300_000
    assert answer["performance"]["server_total_ms"] >= 0
    epoch = {name: client.state(name)["epoch"] for name in (topic, other, empty)}
    assert answer["topics"] == {
        topic: {"from_seq": 2, "head_seq": 3, "earliest_seq": 1, "epoch": epoch[topic]},
        other: {"from_seq": 0, "head_seq": 5, "earliest_seq": 4, "epoch": epoch[other]},
        empty: {"from_seq": 0, "head_seq": 0, "earliest_seq": 1, "epoch": epoch[empty]},
    }


def test_tail_begins_at_the_head(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    answer = body_of(post_watch(client, {"topics": {topic: {"tail": True}}}))
    assert answer["topics"][topic]["from_seq"] == 3
    answer = body_of(post_watch(client, {"topics": {topic: {"tail": False}}}))
    assert answer["topics"][topic]["from_seq"] == 0


def test_a_wid_is_random_and_its_url_is_a_path(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answers = [body_of(post_watch(client, {"topics": {topic: {}}})) for _ in range(50)]
    wids = [answer["wid"] for answer in answers]
    # 128 bits are 22 characters of base64url.
    assert all(re.fullmatch(r"wid_[A-Za-z0-9_-]{22,}", wid) for wid in wids), wids[0]
    assert len(set(wids)) == 50
    # No place is the same in all of them, as it would be if they were counted.
    assert all(len({wid[place] for wid in wids}) > 1 for place in range(4, 4 + 20))
    assert all(answer["stream_url"] == f"/v0/watch/{answer['wid']}" for answer in answers)


def test_a_content_type_may_have_parameters_and_has_to_be_there(client: Client, topic: str) -> None:
    client.put_topic(topic)
    content = json.dumps({"topics": {topic: {}}}).encode()
    for kind in ("application/json", "application/json; charset=utf-8"):
        body_of(client.post("/v0/watch", content=content, headers={"content-type": kind}))
    for headers in ({}, {"content-type": "text/plain"}, {"content-type": "application/x-ndjson"}):
        error_of(client.post("/v0/watch", content=content, headers=headers), 415, "unsupported_media_type")


def test_a_body_is_required(client: Client) -> None:
    error_of(client.post("/v0/watch"), 400, "invalid_request")
    invalid(client.post("/v0/watch", json={}), "topics")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b"null", b"1", b'"x"', b'{"topics":{}}{}', b'{"topics":{"a":{},}}', b'{"topics":"\xff"}']
)
def test_malformed_bodies_are_400(client: Client, content: bytes) -> None:
    answer = client.post("/v0/watch", content=content, headers={"content-type": JSON_TYPE})
    error_of(answer, 400, "invalid_request")


@pytest.mark.parametrize("key", ["colour", "topic", "from_seq", "tail", "wait_ms", "lenient", "epoch", "Topics"])
def test_an_unknown_key_is_400(client: Client, key: str) -> None:
    client.put_topic("watched")
    invalid(post_watch(client, {"topics": {"watched": {}}, key: 1}), key)


@pytest.mark.parametrize("key", ["colour", "limit", "node", "From_seq"])
def test_an_unknown_key_of_a_topic_is_400(client: Client, key: str) -> None:
    client.put_topic("watched")
    invalid(post_watch(client, {"topics": {"watched": {key: 1}}}), key)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"topics": None}, "topics"),
        ({"topics": ["watched"]}, "topics"),
        ({"topics": "watched"}, "topics"),
        ({"topics": {}}, "topics"),
        ({"topics": {"watched": 1}}, "watched"),
        ({"topics": {"watched": []}}, "watched"),
        ({"topics": {"watched": True}}, "watched"),
        ({"topics": {"watched": {"from_seq": "1"}}}, "from_seq"),
        ({"topics": {"watched": {"from_seq": -1}}}, "from_seq"),
        ({"topics": {"watched": {"from_seq": 1.5}}}, "from_seq"),
        ({"topics": {"watched": {"from_seq": True}}}, "from_seq"),
        ({"topics": {"watched": {"from_seq": 2**64}}}, "from_seq"),
        ({"topics": {"watched": {"tail": 1}}}, "tail"),
        ({"topics": {"watched": {"tail": "true"}}}, "tail"),
        ({"node": 1}, "node"),
        ({"node": [1]}, "node"),
        ({"node": {}}, "node"),
        ({"limit": "1"}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": []}, "limit"),
        ({"max_batch_bytes": "1"}, "max_batch_bytes"),
        ({"max_batch_bytes": {}}, "max_batch_bytes"),
        ({"heartbeat_ms": "1000"}, "heartbeat_ms"),
        ({"heartbeat_ms": 1000.5}, "heartbeat_ms"),
        ({"heartbeat_ms": []}, "heartbeat_ms"),
        ({"include_meta": 1}, "include_meta"),
        ({"include_meta": "true"}, "include_meta"),
        ({"include_tags": 0}, "include_tags"),
        ({"include_tags": "x"}, "include_tags"),
        ({"include_data": 1}, "include_data"),
        ({"include_data": []}, "include_data"),
        ({"consistency": "weak"}, "consistency"),
        ({"consistency": "Strong"}, "consistency"),
        ({"consistency": ""}, "consistency"),
        ({"consistency": 1}, "consistency"),
        ({"consistency": True}, "consistency"),
    ],
)
def test_a_wrong_type_or_range_is_400_and_names_the_field(client: Client, fields: Any, field: str) -> None:
    client.put_topic("watched")
    invalid(post_watch(client, {"topics": {"watched": {}}} | fields), field)


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0},
        {"limit": 1},
        {"limit": 10**12},
        {"max_batch_bytes": 0},
        {"max_batch_bytes": 1},
        {"max_batch_bytes": 10**12},
        {"heartbeat_ms": 0},
        {"heartbeat_ms": 1},
        {"heartbeat_ms": 60_000},
        {"heartbeat_ms": 10**12},
        {"node": "n"},
        {"node": ["n", "m"]},
        {"node": []},
        {"consistency": "eventual"},
        {"consistency": "strong"},
        {"include_meta": False, "include_tags": True, "include_data": False},
    ],
)
def test_every_field_is_optional_and_numbers_are_clamped(client: Client, topic: str, fields: Any) -> None:
    client.append(topic, 1, config={"durability": "fsync"})
    with watching(client, topic, **fields) as events:
        covered(topic, events.until_caught_up(), head=1)


@pytest.mark.parametrize("name", ["", "-a", "a b", "a>b", "a\n", "é", "a" * 256, "a/b"])
@pytest.mark.parametrize("lenient", [None, "true"])
def test_a_bad_name_is_400(client: Client, name: str, lenient: str | None) -> None:
    client.put_topic("watched")
    query = {} if lenient is None else {"lenient": lenient}
    error_of(post_watch(client, {"topics": {"watched": {}, name: {}}}, **query), 400, "invalid_request")


def test_an_unknown_topic_is_404_and_is_not_created(client: Client, topic: str) -> None:
    client.put_topic(topic)
    missing = fresh_name("missing")
    for lenient in ({}, {"lenient": "false"}, {"lenient": "0"}):
        error = error_of(post_watch(client, {"topics": {topic: {}, missing: {}}}, **lenient), 404, "topic_not_found")
        assert error["detail"]["topic"] == missing
    error_of(client.get(f"/v0/topics/{missing}"), 404, "topic_not_found")


@pytest.mark.parametrize("lenient", ["1", "true"])
def test_a_lenient_session_drops_what_is_unknown(client: Client, topic: str, lenient: str) -> None:
    client.append(topic, "x")
    missing = fresh_name("missing")
    session = Session(client, missing, topic, lenient=lenient)
    assert set(session.answer["topics"]) == {topic}
    error_of(client.get(f"/v0/topics/{missing}"), 404, "topic_not_found")
    with session.open() as events:
        frames = events.until_caught_up()
        assert all(set(frame.cursors) == {topic} for frame in frames)
        assert covered(topic, frames, head=1).data == ["x"]
        # A topic that comes later is none of the session's.
        client.append(missing, 1)
        events.quiet()


def test_a_lenient_session_of_nothing_is_400(client: Client) -> None:
    error_of(post_watch(client, {"topics": {fresh_name("missing"): {}}}, lenient="1"), 400, "invalid_request")
    error_of(post_watch(client, {"topics": {}}, lenient="1"), 400, "invalid_request")


@pytest.mark.parametrize("text", ["yes", "2", "", "TRUE"])
def test_anything_else_for_lenient_is_400(client: Client, topic: str, text: str) -> None:
    client.put_topic(topic)
    invalid(post_watch(client, {"topics": {topic: {}}}, lenient=text), "lenient")


def test_a_session_holds_up_to_256_topics(client: Client, crowd: list[str]) -> None:
    answer = body_of(post_watch(client, {"topics": {name: {} for name in crowd[:256]}}))
    assert set(answer["topics"]) == set(crowd[:256])
    error_of(post_watch(client, {"topics": {name: {} for name in crowd}}), 400, "invalid_request")


def test_how_many_topics_a_session_holds_is_a_setting(tmp_path: Path) -> None:
    with running(tmp_path, max_watch_topics=2) as client:
        for name in "abc":
            client.put_topic(name)
        body_of(post_watch(client, {"topics": {"a": {}, "b": {}}}))
        error_of(post_watch(client, {"topics": {"a": {}, "b": {}, "c": {}}}), 400, "invalid_request")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v0/watch", {"POST"}),
        ("DELETE", "/v0/watch", {"POST"}),
        ("POST", "/v0/watch/wid_x", {"GET"}),
        ("PUT", "/v0/watch/wid_x", {"GET"}),
        ("DELETE", "/v0/watch/wid_x", {"GET"}),
    ],
)
def test_another_method_is_405(client: Client, method: str, path: str, allowed: set[str]) -> None:
    answer = client.request(method, path)
    error_of(answer, 405, "method_not_allowed")
    listed = {name.strip() for name in answer.headers["allow"].split(",")}
    assert allowed <= listed <= allowed | {"HEAD", "OPTIONS"}


# Opening its stream


@pytest.mark.parametrize("wid", ["wid_" + "A" * 22, "wid_" + "A" * 43, "wid_", "x", "wid_%00", "wid_" + "A" * 5000])
def test_an_unknown_wid_is_404(client: Client, http2: bool, wid: str) -> None:
    with connect(client, f"/v0/watch/{wid}", http2=http2) as events:
        events.refused(404, "not_found")


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "*/*",
        "text/event-stream",
        "text/*",
        "Text/Event-Stream",
        "text/event-stream; charset=utf-8",
        "text/event-stream;q=0.5",
        "text/event-stream;q=0.001",
        "text/html, text/event-stream",
        "application/json, */*;q=0.1",
        "application/json;q=1.0,text/*;q=0.3",
        "*/*;q=0, text/event-stream",
        "text/*;q=0, text/event-stream;q=1",
    ],
)
def test_what_accepts_a_stream_gets_it(client: Client, topic: str, http2: bool, accept: str | None) -> None:
    client.put_topic(topic)
    with Session(client, topic).open(accept=accept, http2=http2) as events:
        events.expect("caught-up", topic=topic, head_seq=0)


@pytest.mark.parametrize(
    "accept",
    [
        "application/json",
        "text/html",
        "text/html, application/xhtml+xml",
        "text/event-streams",
        "application/*",
        "text/event-stream;q=0",
        "text/event-stream;q=0.0, application/json",
        "text/event-stream;q=0, */*",
        "text/*;q=0, */*;q=1",
        "*/*;q=0",
    ],
)
def test_what_excludes_a_stream_gets_406_and_keeps_the_session(client: Client, topic: str, accept: str) -> None:
    client.put_topic(topic)
    session = Session(client, topic)
    with session.connect(accept=accept) as events:
        events.refused(406, "not_acceptable")
    with session.open() as events:
        events.expect("caught-up")


def test_accept_may_come_in_several_lines(client: Client, topic: str) -> None:
    client.put_topic(topic)
    headers = [("accept", "application/json"), ("accept", "text/event-stream;q=0.9")]
    with Session(client, topic).open(accept=None, headers=headers) as events:
        events.expect("caught-up")


def test_a_stream_is_not_compressed(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, "z" * 100_000)
    headers = {"accept-encoding": "gzip, deflate, br"}
    # That there is no encoding is checked with the other headers.
    with Session(client, topic).open(headers=headers, http2=http2) as events:
        assert covered(topic, events.until_caught_up(), head=1).data == ["z" * 100_000]
