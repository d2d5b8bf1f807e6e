"""Section 8: watch sessions and their streams."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import (
    CLASSES,
    JSON_TYPE,
    Client,
    Daemon,
    body_of,
    error_of,
    fresh_name,
    invalid,
    running,
    until,
)
from tests.conformance.sse import (
    Covered,
    Frame,
    Http2,
    Session,
    all_open,
    connect,
    covered,
    encode_bytes,
    encode_id,
    gauge,
    watching,
)

MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["h1", "h2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


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


@pytest.mark.parametrize("key", ["colour", "limit", "epoch", "node", "From_seq"])
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


@pytest.fixture(scope="module")
def crowd(client: Client) -> list[str]:
    """257 topics with names as long as names can be."""
    names = [f"crowd-{number:03}-".ljust(255, "x") for number in range(257)]
    for name in names:
        client.append(name, "first")
    return names


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


# Records


def test_records_come_in_frames_that_cover_the_log(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "a", "b", "c")
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.append(topic, "d")
        accumulated.take(events.until_seq(topic, 4))
        client.append(topic, "e", "f")
        accumulated.take(events.until_seq(topic, 6))
        events.quiet()
    accumulated.check(6)
    assert accumulated.data == list("abcdef")
    assert accumulated.records == client.read(topic)["records"]
    assert accumulated.tombstones == []


def test_a_frame_says_what_it_covers(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    with watching(client, topics={topic: {"from_seq": 1}}) as events:
        frame = events.expect("record", topic=topic, from_seq=1, to_seq=3, head_seq=3)
        assert (frame.seqs, frame.cursors) == ([2, 3], {topic: 3})
        frame = events.expect("caught-up", topic=topic, head_seq=3)
        assert frame.cursors == {topic: 3}


def test_records_are_the_ones_of_a_read(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": [1], "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    for tags in (None, False, True):
        for meta in (None, False, True):
            asked: dict[str, Any] = {"include_tags": tags, "include_meta": meta}
            asked = {name: value for name, value in asked.items() if value is not None}
            with watching(client, topic, **asked) as events:
                found = covered(topic, events.until_caught_up(), head=2).records
            assert found == client.read(topic, **asked)["records"]
            assert ("$tag" in found[0], "meta" in found[0]) == (tags is True, meta is not False)


def test_data_may_be_left_out(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": "secret", "node": "n", "meta": {"k": "v"}}])
    with watching(client, topic, include_data=False) as events:
        frame = events.expect("record")
    assert b"secret" not in frame.text
    (record,) = frame.data["records"]
    assert set(record) == {"$seq", "$ts", "$node", "meta"}


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b"false",
        b"0",
        b"-0",
        b"1.0E+2",
        b"12345678901234567890123456789.5",
        b'""',
        b'"\\u00e9\\/\\ud83d\\ude00"',
        '"\u2028\u2029\u0085é\U0001f600"'.encode(),
        b'{"a":1,"a":2}',
        b'{"b" :  [ 1 ,\t2 ] , "a":{} }',
        b'"\\n\\r\\ndata: x\\n\\n: hb 1"',
        b'"data: x"',
        b"[" * 400 + b"]" * 400,
    ],
)
def test_data_is_byte_for_byte_what_was_written(client: Client, topic: str, data: bytes) -> None:
    assert client.append_raw(topic, data).status_code == 201
    with watching(client, topic) as events:
        frame = events.expect("record")
        assert re.search(rb'"data"\s*:\s*' + re.escape(data) + rb"\s*[,}]", frame.text)


def test_line_ends_between_tokens_have_become_spaces(client: Client, topic: str) -> None:
    assert client.append_raw(topic, b'{\r\n"a":\n[1,\r2]\n}').status_code == 201
    with watching(client, topic) as events:
        frame = events.expect("record")
        assert re.search(rb'"data"\s*:\s*' + re.escape(b'{  "a": [1, 2] }'), frame.text)


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ("a", [2, 3, 4, 6]),
        (["a"], [2, 3, 4, 6]),
        (["a", "b"], [3, 4, 6]),
        ([], [1, 2, 3, 4, 5, 6]),
        ("A", [1, 2, 3, 4, 5, 6]),
        (["a", "b", "c"], [3, 6]),
    ],
)
def test_records_of_the_named_nodes_are_dropped(client: Client, topic: str, node: Any, left: list[int]) -> None:
    nodes = ["a", "b", None, "c", "a", None]
    client.append(topic, records=[{"data": 1} if name is None else {"data": 1, "node": name} for name in nodes])
    with watching(client, topic, node=node) as events:
        found = covered(topic, events.until_caught_up(), head=6, silent=range(1, 7))
    assert (found.seqs, found.tombstones) == (left, [])


def test_the_node_filter_is_the_topics_to_switch_off(client: Client, topic: str) -> None:
    client.put_topic(topic, dedupe_node=False)
    client.append(topic, 1, 2, node="mine")
    diff = [record["$seq"] for record in client.read(topic, node="mine")["records"]]
    with watching(client, topic, node="mine") as events:
        found = covered(topic, events.until_caught_up(), head=2, silent=[1, 2])
    assert found.seqs == diff == [1, 2]


def test_who_wrote_everything_is_caught_up_in_silence(client: Client, topic: str) -> None:
    client.append(topic, *range(600), node="mine")
    with watching(client, topic, node="mine") as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        assert (accumulated.seqs, accumulated.caught_up) == ([], [600])
        client.append(topic, *range(10), node="mine")
        client.append(topic, "theirs", node="theirs")
        accumulated.take(events.until_seq(topic, 611))
    accumulated.check(611, silent=range(1, 611))
    assert accumulated.seqs == [611]


@pytest.mark.parametrize(
    ("limit", "most"), [(None, 256), (0, 256), (1, 1), (7, 7), (256, 256), (1000, 1000), (10**12, 1000)]
)
def test_a_frame_has_no_more_records_than_the_limit(client: Client, topic: str, limit: int | None, most: int) -> None:
    client.append(topic, *range(1100))
    fields = {} if limit is None else {"limit": limit}
    with watching(client, topic, **fields) as events:
        frames = events.until_caught_up()
    found = covered(topic, frames, head=1100)
    assert found.data == list(range(1100))
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    assert max(sizes) <= most
    # A clamped limit is the greatest, not the default.
    assert max(sizes) > most // 2


@pytest.mark.parametrize(("most", "count"), [(1, 1), (500, 1), (2500, 2), (6000, 5)])
def test_a_frame_is_limited_in_bytes_but_has_a_record(client: Client, topic: str, most: int, count: int) -> None:
    client.append(topic, *(["x" * 998] * 10))
    with watching(client, topic, max_batch_bytes=most) as events:
        frames = events.until_caught_up()
    covered(topic, frames, head=10)
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    # What a record takes beside its data is not said, so that one less may come; but one always comes.
    assert max(1, count - 1) <= max(sizes) <= count
    assert min(sizes) >= 1


def test_the_bytes_of_a_frame_have_a_default(client: Client, topic: str) -> None:
    client.append(topic, *(["x" * 99_998] * 6))
    for fields in ({}, {"max_batch_bytes": 0}):
        with watching(client, topic, **fields) as events:
            frames = events.until_caught_up()
        covered(topic, frames, head=6)
        assert max(len(frame.seqs) for frame in frames if frame.event == "record") <= 10


def test_records_of_the_greatest_size_come_whole(client: Client, topic: str, http2: bool) -> None:
    values = [letter * (MIB - 2) for letter in "abcdefgh"]
    for value in values:
        client.append(topic, value)
    with Session(client, topic).open(http2=http2) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.append(topic, "z" * (MIB - 2))
        accumulated.take(events.until_seq(topic, 9))
    accumulated.check(9)
    assert accumulated.data == [*values, "z" * (MIB - 2)]


def test_thousands_of_records_come_in_order(client: Client, topic: str, durability: str, http2: bool) -> None:
    client.put_topic(topic, durability=durability)
    with Session(client, topic).open(http2=http2) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        for start in range(0, 9000, 3000):
            client.append(topic, *range(start, start + 3000), return_seqs=False)
        accumulated.take(events.until_seq(topic, 9000))
    accumulated.check(9000)
    assert accumulated.data == list(range(9000))


def test_records_that_are_appended_meanwhile_come_all(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)

    def append(other: Client) -> None:
        for number in range(150):
            other.append(topic, *([number] * (number % 7 + 1)))

    accumulated = Covered(topic)
    with Client(client.daemon) as other, ThreadPoolExecutor(1) as pool, watching(client, topic) as events:
        done = pool.submit(append, other)
        accumulated.take(events.until_caught_up())
        done.result(30)
        head = client.state(topic)["head_seq"]
        while accumulated.at < head:
            accumulated.take([events.next()])
    accumulated.check(head)
    assert accumulated.tombstones == []
    assert accumulated.data == sorted(accumulated.data)


# Caught up


def test_an_empty_topic_is_caught_up_with_at_once(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with watching(client, topic) as events:
        assert events.expect("caught-up", topic=topic, head_seq=0).cursors == {topic: 0}
        events.quiet()


def test_tail_is_caught_up_at_once(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    with watching(client, topics={topic: {"tail": True}}) as events:
        events.expect("caught-up", topic=topic, head_seq=2)
        client.append(topic, 3)
        events.expect("record", topic=topic, from_seq=2, to_seq=3, head_seq=3)


def test_a_tail_begins_where_the_session_was_made(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    session = Session(client, topics={topic: {"tail": True}})
    client.append(topic, 3, 4)
    with session.open() as events:
        assert covered(topic, events.until_caught_up(), 2, head=4).seqs == [3, 4]


def test_the_head_is_caught_up_with_after_the_backlog_and_once(client: Client, topic: str) -> None:
    client.append(topic, *range(700))
    with watching(client, topic) as events:
        *frames, last = events.until_caught_up()
        assert (last.topic, last.data["head_seq"]) == (topic, 700)
        assert covered(topic, frames, head=700).caught_up == []
        for number in range(701, 711):
            # What is delivered as it comes is no backlog.
            client.append(topic, number)
            events.expect("record", topic=topic, from_seq=number - 1, to_seq=number)
        events.quiet()


def test_each_connection_is_caught_up_once(client: Client, topic: str) -> None:
    client.append(topic, 1, 2)
    session = Session(client, topic)
    with session.open() as events:
        covered(topic, events.until_caught_up(), head=2)
    for _ in range(2):
        with session.open() as events:
            events.expect("caught-up", topic=topic, head_seq=2)
            events.quiet(0.1)


# Tombstones


def test_what_was_evicted_before_is_too_old(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topic) as events:
        values = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 5}
        assert events.expect("tombstone", topic=topic, **values).cursors == {topic: 3}
        frame = events.expect("record", from_seq=3, to_seq=5, head_seq=5)
        assert frame.seqs == [4, 5]
        events.expect("caught-up", head_seq=5)


@pytest.mark.parametrize(("from_seq", "gap"), [(0, (1, 3)), (1, (2, 3)), (2, (3, 3)), (3, None), (4, None), (5, None)])
def test_a_gap_begins_where_the_reader_is(client: Client, topic: str, from_seq: int, gap: Any) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topics={topic: {"from_seq": from_seq}}) as events:
        found = covered(topic, events.until_caught_up(), from_seq, head=5)
    assert found.gaps == ([] if gap is None else [gap])
    assert set(found.reasons) <= {"from_seq_too_old"}


def test_what_expired_before_is_too_old(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=60)
    client.append(topic, 1, 2)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    with watching(client, topic) as events:
        values = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 2, "earliest_seq": 3, "head_seq": 2}
        events.expect("tombstone", topic=topic, **values)
        events.expect("caught-up", topic=topic, head_seq=2)


def test_what_went_for_more_than_one_cause_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    time.sleep(1.05)
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 6)
    client.put_topic(topic, ttl_ms=0)
    assert client.read(topic)["tombstone"]["reason"] == "mixed"
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=6)
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 5)], ["from_seq_too_old"], [6])


def test_what_expires_after_its_delivery_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=1500)
    client.append(topic, 1, 2)
    with watching(client, topic) as events:
        events.until_caught_up()
        until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
        events.quiet()
        client.append(topic, 3)
        events.expect("record", from_seq=2, to_seq=3)


def test_what_is_evicted_after_its_delivery_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        for number in range(1, 8):
            client.append(topic, number)
            accumulated.take(events.until_seq(topic, number))
    accumulated.check(7)
    assert (accumulated.seqs, accumulated.tombstones) == (list(range(1, 8)), [])


def test_what_is_evicted_as_it_comes_is_announced(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=3)
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.append(topic, *range(1, 11))
        accumulated.take(events.until_seq(topic, 10))
    accumulated.check(10)
    # On a connection that stands it is not too old but evicted.
    assert (accumulated.gaps, accumulated.reasons, accumulated.seqs) == ([(1, 7)], ["cap"], [8, 9, 10])


def test_the_jobs_of_a_queue_are_seen_like_a_log(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.append(topic, 1, 2)
    with watching(client, topic) as events:
        found = Covered(topic).take(events.until_caught_up())
        client.append(topic, 3)
        found.take(events.until_seq(topic, 3))
    found.check(3)
    assert found.data == [1, 2, 3]


def test_a_record_that_never_fits_is_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    with watching(client, topic) as events:
        events.until_caught_up()
        client.append(topic, "too large to stay")
        events.expect("tombstone", topic=topic, reason="cap", gap_from=1, gap_to=1, earliest_seq=2, head_seq=1)


def test_retention_that_passes_a_session_without_a_stream_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, 1, 2)
    session = Session(client, topic)
    with session.open() as events:
        accumulated = Covered(topic).take(events.until_caught_up())
    client.append(topic, *range(3, 11))
    with session.open() as events:
        accumulated.take(events.until_caught_up())
    accumulated.check(10)
    assert (accumulated.gaps, accumulated.reasons) == ([(3, 7)], ["from_seq_too_old"])
    assert accumulated.seqs == [1, 2, 8, 9, 10]


@pytest.mark.parametrize("from_seq", [3, 1000, 2**64 - 1])
def test_who_is_beyond_the_head_knows_another_instance(client: Client, topic: str, from_seq: int) -> None:
    client.append(topic, "a", "b")
    with watching(client, topics={topic: {"from_seq": from_seq}}) as events:
        frames = events.until_caught_up()
        values = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
        assert (frames[0].event, frames[0].data) == ("tombstone", {"topic": topic} | values)
        found = covered(topic, frames, from_seq, head=2)
        assert (found.data, found.caught_up, found.reasons) == (["a", "b"], [2], ["recreated"])
        client.append(topic, "c")
        events.expect("record", from_seq=2, to_seq=3)


def test_who_is_beyond_the_head_of_nothing(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with watching(client, topics={topic: {"from_seq": 5}}) as events:
        events.expect("tombstone", reason="recreated", gap_from=1, gap_to=0, earliest_seq=1, head_seq=0)
        events.expect("caught-up", head_seq=0)
        client.append(topic, "a")
        assert events.expect("record", from_seq=0, to_seq=1).seqs == [1]


def test_recreated_describes_the_new_instance_whatever_it_has_evicted(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topics={topic: {"from_seq": 77}}) as events:
        found = covered(topic, events.until_caught_up(), 77, head=5)
    assert (found.reasons, found.gaps, found.data) == (["recreated"], [(1, 5)], [4, 5])


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("has_id", [False, True])
def test_a_topic_that_was_made_anew_meanwhile_is_recreated(
    client: Client, topic: str, has_id: bool, count: int
) -> None:
    client.append(topic, "old", "older")
    session = Session(client, topic)
    with session.open() as events:
        old_id = events.until_caught_up()[0].id
    client.delete_topic(topic)
    client.put_topic(topic)
    if count:
        client.append(topic, *range(count))
    with session.open(old_id if has_id else None) as events:
        found = covered(topic, events.until_caught_up(), 2, head=count)
        assert (found.reasons, found.data) == (["recreated"], list(range(count)))
        events.quiet(0.1)


def test_a_topic_that_was_made_anew_before_the_first_connection_is_recreated(client: Client, topic: str) -> None:
    client.append(topic, "old", "older", "oldest")
    session = Session(client, topics={topic: {"from_seq": 1}})
    client.delete_topic(topic)
    client.append(topic, *range(6))
    with session.open() as events:
        found = covered(topic, events.until_caught_up(), 1, head=6)
    assert (found.reasons, found.data) == (["recreated"], list(range(6)))


def test_after_recreated_a_session_is_of_the_new_instance(client: Client, topic: str) -> None:
    client.append(topic, "old", "older")
    session = Session(client, topics={topic: {"tail": True}})
    client.delete_topic(topic)
    client.append(topic, "new", "newer", "newest")
    with session.open() as events:
        tombstone = events.expect("tombstone", reason="recreated")
        assert covered(topic, [tombstone, *events.until_caught_up()], 2, head=3).data == ["new", "newer", "newest"]
    with session.open() as events:
        events.expect("caught-up", head_seq=3)
        events.quiet(0.1)
    with session.open(tombstone.id) as events:
        found = covered(topic, events.until_caught_up(), head=3)
        assert (found.tombstones, found.data) == ([], ["new", "newer", "newest"])


# Deletions


def test_deletions_before_are_silent(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "a", "c", "b")
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=2)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=5, silent=[1, 2, 5])
    assert (found.seqs, found.tombstones) == ([3, 4], [])


def test_deletions_after_are_silent(client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b", "a")
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.delete_records(topic, match="b")
        client.delete_records(topic, before_seq=10)
        events.quiet()
        client.append(topic, "after")
        accumulated.take(events.until_seq(topic, 4))
    accumulated.check(4)
    assert (accumulated.seqs, accumulated.tombstones) == ([1, 2, 3, 4], [])


def test_a_topic_of_deleted_records_is_caught_up_with(client: Client, topic: str) -> None:
    client.append(topic, *range(600))
    client.delete_records(topic, before_seq=601)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=600, silent=range(1, 601))
        assert (found.seqs, found.tombstones, found.caught_up) == ([], [], [600])
        client.append(topic, "after")
        found.take(events.until_seq(topic, 601))
        found.check(601, silent=range(1, 601))


def test_a_gap_of_evicted_and_deleted_records_is_the_one_of_a_read(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=4)
    client.append(topic, *range(1, 7))
    client.delete_records(topic, before_seq=5)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=6)
    assert (found.gaps, found.seqs) == ([(1, 4)], [5, 6])
    with watching(client, topics={topic: {"from_seq": 2}}) as events:
        found = covered(topic, events.until_caught_up(), 2, head=6, silent=[3, 4])
    assert (found.gaps, found.seqs) == ([], [5, 6])


# Heartbeats


def test_heartbeats_come_when_nothing_else_does(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1)
    session = Session(client, topic, heartbeat_ms=1000)
    began = time.monotonic()
    with session.open(http2=http2) as events:
        events.until_caught_up()
        first = events.heartbeat()
        assert time.monotonic() - began > 0.9
        assert abs(first - time.time() * 1000) < 20_000
        second = events.heartbeat()
        assert second - first > 700
        began = time.monotonic()
        client.append(topic, 2)
        events.expect("record", from_seq=1, to_seq=2)
        events.heartbeat()
        assert time.monotonic() - began > 0.9


def test_the_time_between_heartbeats_is_clamped(client: Client, topic: str) -> None:
    client.put_topic(topic)
    began = time.monotonic()
    with watching(client, topic, heartbeat_ms=1) as events:
        events.until_caught_up()
        events.heartbeat()
        assert time.monotonic() - began > 0.9


def test_there_is_no_heartbeat_before_its_time(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with watching(client, topic) as events:
        events.until_caught_up()
        events.quiet(1.5)
        assert events.heartbeats == []


# Resuming


def test_a_session_goes_on_where_it_was(client: Client, topic: str) -> None:
    client.put_topic(topic)
    session = Session(client, topic)
    accumulated = Covered(topic)
    head = 0
    for count in (2, 3, 0, 4):
        if count:
            head = client.append(topic, *range(count))["head_seq"]
        with session.open() as events:
            accumulated.take(events.until_caught_up())
        accumulated.check(head)
        # What is sent before the daemon has noticed the end of a connection counts as taken: only an id tells.
        until(lambda: gauge(client, "topics_sse_connections") == 0)
    assert accumulated.seqs == list(range(1, 10))


def test_an_id_rewinds_a_session(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    session = Session(client, topic, limit=3)
    with session.open() as events:
        frames = events.until_caught_up()
    for frame in frames:
        with session.open(frame.id) as events:
            covered(topic, events.until_caught_up(), frame.cursors[topic], head=10)
    with session.open(encode_id({topic: 0})) as events:
        covered(topic, events.until_caught_up(), head=10)


def test_an_id_rewinds_to_before_the_session_began(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    session = Session(client, topics={topic: {"tail": True}})
    with session.open(encode_id({topic: 4})) as events:
        assert covered(topic, events.until_caught_up(), 4, head=10).seqs == [5, 6, 7, 8, 9, 10]


@pytest.mark.parametrize("seq", [3, 10, 11, 2**64 - 1])
def test_an_id_never_forwards_a_session(client: Client, topic: str, seq: int) -> None:
    client.append(topic, *range(10))
    session = Session(client, topics={topic: {"from_seq": 2}})
    with session.open(encode_id({topic: seq})) as events:
        found = covered(topic, events.until_caught_up(), 2, head=10)
        assert found.tombstones == []


def test_an_id_that_is_rewound_to_holds_from_then_on(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    session = Session(client, topic)
    with session.open() as events:
        events.until_caught_up()
    with session.open(encode_id({topic: 1})) as events:
        covered(topic, events.until_caught_up(), 1, head=3)
    with session.open() as events:
        events.expect("caught-up", head_seq=3)


def test_a_topic_that_an_id_does_not_name_goes_on_where_it_was(client: Client, topic: str) -> None:
    other = fresh_name()
    for name in (topic, other):
        client.append(name, 1, 2, 3)
    session = Session(client, topic, other)
    with session.open() as events:
        events.until_caught_up(topic, other)
    for content, start, other_start in [({topic: 1}, 1, 3), ({}, 3, 3), ({topic: 2, other: 0, "unknown": 7}, 2, 0)]:
        with session.open(encode_id(content)) as events:
            frames = events.until_caught_up(topic, other)
        covered(topic, frames, start, head=3)
        covered(other, frames, other_start, head=3)


UNDECODABLE = [
    "!!!",
    "not base64",
    "é",
    "x",
    encode_bytes(b"{"),
    encode_bytes(b"\xff\xff"),
    encode_bytes(b"[]"),
    encode_bytes(b"null"),
    encode_bytes(b"5"),
    encode_bytes(b'"a"'),
    encode_bytes(b'{"watched":"1"}'),
    encode_bytes(b'{"watched":-1}'),
    encode_bytes(b'{"watched":1.5}'),
    encode_bytes(b'{"watched":true}'),
    encode_bytes(b'{"watched":null}'),
    encode_bytes(b'{"watched":18446744073709551616}'),
    encode_bytes(b'{"watched":1}{}'),
    encode_bytes(b'{"watched":1') + "AAAA",
]


@pytest.mark.parametrize("last_id", UNDECODABLE)
def test_an_undecodable_id_is_400_before_the_stream_opens(client: Client, last_id: str) -> None:
    client.append("watched", 1, 2)
    session = Session(client, "watched")
    with session.connect(last_id) as events:
        events.refused(400, "invalid_request")
    with session.open() as events:
        # The session is none the worse for it.
        covered("watched", events.until_caught_up(), head=client.state("watched")["head_seq"])


def test_nothing_is_lost_on_a_connection_that_was_cut_off_if_its_last_id_is_told(client: Client, topic: str) -> None:
    client.append(topic, *range(5000))
    session = Session(client, topic, limit=50)
    accumulated = Covered(topic)
    last_id = None
    while not accumulated.caught_up:
        with session.open(last_id) as events:
            for _ in range(20):
                frame = events.next()
                accumulated.take([frame])
                if frame.event == "caught-up":
                    break
            last_id = events.last_id
    accumulated.check(5000)
    assert accumulated.data == list(range(5000))


def test_a_restart_ends_a_session(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        client.append("a", 1)
        session = Session(client, "a")
        client = daemon.restart(signal.SIGTERM)
        with connect(client, f"/v0/watch/{session.wid}") as events:
            events.refused(404, "not_found")
    finally:
        daemon.kill()


# Many topics


def test_many_topics_share_a_stream(client: Client, topic: str, http2: bool) -> None:
    names = [f"{topic}-{number}" for number in range(10)]
    for number, name in enumerate(names):
        client.append(name, *([name] * (number + 1)), config={"durability": CLASSES[number % 4]})
    with Session(client, *names).open(http2=http2) as events:
        frames = events.until_caught_up(*names)
        for name in reversed(names):
            client.append(name, "live")
            frames += events.until_seq(name, client.state(name)["head_seq"])
        events.quiet(0.1)
    for number, name in enumerate(names):
        found = covered(name, frames, head=number + 2)
        assert found.data == [name] * (number + 1) + ["live"]
        assert found.caught_up == [number + 1]


def test_an_id_holds_every_topic_as_it_is_after_the_frame(client: Client, topic: str) -> None:
    starts = {f"{topic}-{number}": number for number in range(5)}
    for name in starts:
        client.append(name, *range(40))
    at = dict(starts)
    with watching(client, topics={name: {"from_seq": start} for name, start in starts.items()}, limit=7) as events:
        for frame in events.until_caught_up(*starts):
            assert frame.topic is not None
            if frame.event == "record":
                at[frame.topic] = frame.data["to_seq"]
            assert frame.cursors == at
    assert at == dict.fromkeys(starts, 40)


def test_an_id_that_comes_back_resumes_every_topic(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        client.append(name, *range(40))
    session = Session(client, *names, limit=6)
    with session.open() as events:
        frames = events.until_caught_up(*names)
    for frame in frames[::4]:
        with session.open(frame.id) as events:
            rest = events.until_caught_up(*names)
        for name in names:
            covered(name, rest, frame.cursors[name], head=40)


@pytest.mark.parametrize("count", [64, 65, 256])
def test_an_id_of_many_long_names_comes_back(client: Client, crowd: list[str], http2: bool, count: int) -> None:
    names = crowd[:count]
    heads = {name: client.state(name)["head_seq"] for name in names}
    session = Session(client, *names)
    with session.open(http2=http2) as events:
        frames = events.until_caught_up(*names, within_s=30)
    accumulated = {name: Covered(name, opaque=count > 64).take(frames) for name in names}
    for name in names:
        accumulated[name].check(heads[name])
    if count <= 64:
        assert frames[-1].cursors == heads
    middle = frames[len(frames) // 2]
    # Resumed in the middle: what came after it comes again, and nothing else.
    with session.open(middle.id, http2=http2) as events:
        frames_again = events.until_caught_up(*names, within_s=30)
    before = [frame for frame in frames[: len(frames) // 2 + 1] if frame.event == "record"]
    after = [frame for frame in frames_again if frame.event == "record"]
    assert {frame.topic for frame in before}.isdisjoint({frame.topic for frame in after})
    assert {frame.topic for frame in before} | {frame.topic for frame in after} == set(names)
    # Resumed at the end, with more that has come meanwhile.
    client.append(names[7], "more")
    with session.open(frames[-1].id, http2=http2) as events:
        frames = events.until_caught_up(*names, within_s=30)
    records = [frame for frame in frames if frame.event == "record"]
    assert [(frame.topic, frame.data["to_seq"]) for frame in records] == [(names[7], heads[names[7]] + 1)]


def test_an_undecodable_id_is_400_for_many_topics_too(client: Client, crowd: list[str]) -> None:
    session = Session(client, *crowd[:80])
    for last_id in ("!!!", "AAAA", encode_bytes(b"[]")):
        with session.connect(last_id) as events:
            events.refused(400, "invalid_request")


def test_many_watchers_of_a_topic_get_the_same(client: Client, topic: str) -> None:
    client.append(topic, *range(300))
    with all_open(watching(client, topic) for _ in range(25)) as streams:
        for number in range(300, 320):
            client.append(topic, number)
        found = [Covered(topic).take(events.until_seq(topic, 320)) for events in streams]
    for one in found:
        one.check(320)
        assert one.records == found[0].records
    assert found[0].data == list(range(320))


def test_two_sessions_have_cursors_of_their_own(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    first, second = Session(client, topic), Session(client, topics={topic: {"from_seq": 2}})
    with first.open() as events, second.open() as others:
        covered(topic, events.until_caught_up(), head=3)
        covered(topic, others.until_caught_up(), 2, head=3)


# Taking over


@contextmanager
def appending(client: Client, topic: str) -> Iterator[None]:
    """Somebody else appends all the while."""
    stop = threading.Event()

    def append(other: Client) -> None:
        while not stop.is_set():
            other.append(topic, *(["x" * 100] * 20))

    with Client(client.daemon) as other, ThreadPoolExecutor(1) as pool:
        done = pool.submit(append, other)
        try:
            yield
        finally:
            stop.set()
            done.result(30)


def seqs_of_frames(frames: list[Frame]) -> set[int]:
    return {seq for frame in frames if frame.event == "record" for seq in frame.seqs}


def test_a_reconnect_takes_over(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1)
    session = Session(client, topic)
    with session.open(http2=http2) as older:
        older.until_caught_up()
        with session.open(http2=http2) as newer:
            assert older.final(409) == []
            newer.expect("caught-up", topic=topic, head_seq=1)
            client.append(topic, 2)
            newer.expect("record", from_seq=1, to_seq=2)
            newer.quiet()


def test_each_reconnect_takes_over_from_the_one_before(client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = Session(client, topic)
    opened = [session.open()]
    try:
        opened[0].until_caught_up()
        for number in range(2, 6):
            opened.append(session.open())
            assert opened[-2].final(409) == []
            opened[-1].expect("caught-up")
            client.append(topic, number)
            opened[-1].expect("record", from_seq=number - 1, to_seq=number)
        opened[-1].quiet(0.1)
    finally:
        for events in opened:
            events.close()


@pytest.mark.parametrize("has_id", [False, True])
def test_what_the_older_connection_had_not_read_is_not_lost(
    client: Client, topic: str, http2: bool, has_id: bool
) -> None:
    for _ in range(4):
        client.append(topic, *(["x" * 1000] * 5000), return_seqs=False)
    session = Session(client, topic)
    with session.open(http2=http2, receive_buffer=1 << 16) as older:
        frames = older.until_seq(topic, 1)
        with session.open(older.last_id if has_id else None, http2=http2) as newer:
            if has_id:
                covered(topic, frames + newer.until_caught_up(), head=20_000)
            else:
                # Without an id the session's own cursors hold, as far as the older connection was served.
                frames += older.rest()[0] + newer.until_caught_up()
                assert seqs_of_frames(frames) == set(range(1, 20_001))


def test_the_older_connection_hears_why_it_ends_in_the_middle_of_a_backlog(
    client: Client, topic: str, http2: bool
) -> None:
    for _ in range(4):
        client.append(topic, *(["x" * 1000] * 5000), return_seqs=False)
    session = Session(client, topic)
    with session.open(http2=http2, receive_buffer=1 << 16) as older:
        older.until_seq(topic, 1)
        with session.open(older.last_id, http2=http2):
            # It reads on all the while: it is not too slow to be told.
            older.final(409)


def test_both_connections_together_have_everything(client: Client, topic: str) -> None:
    """Without an id the session's own cursors hold: what the older one does not get, the newer one does."""
    client.put_topic(topic)
    session = Session(client, topic)
    delivered: set[int] = set()
    with appending(client, topic), session.open() as first:
        events = first
        for _ in range(8):
            frames = events.until_seq(topic, max(delivered, default=0) + 1)
            newer = session.open()
            frames += events.final(409)
            delivered |= seqs_of_frames(frames)
            events.close()
            events = newer
    with events:
        head = client.state(topic)["head_seq"]
        while max(delivered, default=0) < head:
            delivered |= seqs_of_frames([events.next()])
    assert delivered == set(range(1, head + 1))


def test_a_take_over_may_come_over_another_protocol(client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = Session(client, topic)
    with session.open(http2=False) as older:
        older.until_caught_up()
        with session.open(http2=True) as newer:
            older.final(409)
            newer.expect("caught-up")
            with session.open(http2=False) as newest:
                newer.final(409)
                newest.expect("caught-up")


def test_a_refused_reconnect_takes_nothing_over(client: Client, topic: str) -> None:
    client.put_topic(topic)
    session = Session(client, topic)
    with session.open() as events:
        events.until_caught_up()
        with session.connect("!!!") as other:
            other.refused(400, "invalid_request")
        with session.connect(accept="application/json") as other:
            other.refused(406, "not_acceptable")
        client.append(topic, 1)
        events.expect("record", from_seq=0, to_seq=1)


# Topics that go


def test_a_deleted_topic_ends_the_stream_and_frees_the_session(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1, 2)
    session = Session(client, topic)
    with session.open(http2=http2) as events:
        events.until_caught_up()
        client.delete_topic(topic)
        events.expect("topic-deleted", topic=topic, head_seq=2, reason="deleted")
        events.ended()
    with session.connect() as events:
        events.refused(404, "not_found")


def test_the_other_topics_go_on(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, 1)
    client.append(other, 1)
    session = Session(client, topic, other)
    with session.open() as events:
        old_id = events.until_caught_up(topic, other)[-1].id
        client.delete_topic(topic)
        deleted = events.expect("topic-deleted", topic=topic, head_seq=1)
        assert deleted.cursors[other] == 1
        client.append(other, 2)
        events.expect("record", topic=other, from_seq=1, to_seq=2)
        # One of the same name is another topic.
        client.append(topic, "new")
        events.quiet()
    client.append(other, 3)
    for last_id, ended in ((old_id, [1]), (deleted.id, [])):
        with session.open(last_id) as events:
            frames = events.until_caught_up(other)
            # To an id from before, the end is told again, and nothing of the topic that has the name now.
            assert [frame.data["head_seq"] for frame in frames if frame.topic == topic] == ended
            covered(other, [frame for frame in frames if frame.topic == other], 1, head=3)
    with session.open() as events:
        events.expect("caught-up", topic=other, head_seq=3)
        client.delete_topic(other)
        events.expect("topic-deleted", topic=other)
        events.ended()
    with session.connect() as events:
        events.refused(404, "not_found")


def test_a_topic_that_went_while_nobody_was_connected_is_announced(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, 1)
    client.append(other, 1)
    session = Session(client, topic, other)
    with session.open() as events:
        events.until_caught_up(topic, other)
    client.delete_topic(topic)
    client.append(other, 2)
    with session.open() as events:
        frames = events.until_caught_up(other)
        if not [frame for frame in frames if frame.topic == topic]:
            frames.append(events.next())
        (deleted,) = [frame for frame in frames if frame.topic == topic]
        assert (deleted.event, deleted.data["reason"]) == ("topic-deleted", "deleted")
        covered(other, frames, 1, head=2)


def test_a_session_whose_last_topic_went_while_nobody_was_connected_is_over(client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = Session(client, topic)
    client.delete_topic(topic)
    with session.connect() as events:
        # Whether it is freed at once or when it has been said is open.
        if events.status == 200:
            events.expect("topic-deleted", topic=topic)
            events.ended()
        else:
            events.refused(404, "not_found")
    with session.connect() as events:
        events.refused(404, "not_found")


def test_many_watchers_hear_that_a_topic_is_deleted(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(watching(client, topic) for _ in range(10)) as streams:
        for events in streams:
            events.until_caught_up()
        client.delete_topic(topic)
        for events in streams:
            events.expect("topic-deleted", topic=topic)
            events.ended()


# Consistency


def test_a_strong_stream_delivers_what_is_on_disk(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, *range(100))
    accumulated = Covered(topic)
    with watching(client, topic, consistency="strong") as events:
        for head in (100, 110, 120, 130, 1130):
            if head > 100:
                client.append(topic, *range(head - client.state(topic)["head_seq"]))
            while accumulated.at < head:
                frame = events.next()
                if frame.event == "record" and durability != "ephemeral":
                    assert frame.data["to_seq"] <= client.state(topic)["synced_seq"]
                accumulated.take([frame])
    accumulated.check(1130)
    assert accumulated.tombstones == []


def test_a_strong_stream_is_caught_up_when_all_up_to_the_head_was_delivered(
    client: Client, topic: str, durability: str
) -> None:
    client.put_topic(topic, durability=durability)
    for number in range(1, 6):
        client.append(topic, *range(50))
        with watching(client, topic, consistency="strong") as events:
            covered(topic, events.until_caught_up(), head=50 * number)


def test_a_strong_stream_of_topics_of_every_class(client: Client, topic: str) -> None:
    names = {f"{topic}-{durability}": durability for durability in CLASSES}
    for name, durability in names.items():
        client.append(name, *range(20), config={"durability": durability})
    with watching(client, *names, consistency="strong") as events:
        frames = []
        missing = set(names)
        while missing:
            frame = events.next()
            frames.append(frame)
            if frame.event == "record":
                assert frame.topic is not None
                state = client.state(frame.topic)
                assert names[frame.topic] == "ephemeral" or frame.data["to_seq"] <= state["synced_seq"]
                if frame.data["to_seq"] == 20:
                    missing.discard(frame.topic)
    for name in names:
        assert Covered(name).take(frames).seqs == list(range(1, 21))


def test_a_strong_stream_of_a_topic_becomes_what_its_class_becomes(client: Client, topic: str) -> None:
    client.append(topic, 1, config={"durability": "memory"})
    with watching(client, topic, consistency="strong") as events:
        accumulated = Covered(topic).take(events.until_seq(topic, 1))
        for number, durability in enumerate(["fsync", "ephemeral", "disk", "memory"], 2):
            client.put_topic(topic, durability=durability)
            client.append(topic, number)
            accumulated.take(events.until_seq(topic, number))
    assert accumulated.seqs == [1, 2, 3, 4, 5]


# What else it is seen by


def test_what_is_delivered_counts_as_read(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert client.state(topic, touch="false")["last_read_ts"] is None
    with watching(client, topic) as events:
        events.until_caught_up()
        until(lambda: client.state(topic, touch="false")["last_read_ts"] is not None)


def test_sessions_and_streams_are_counted_and_freed(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.append("a", 1)
        sessions = [Session(client, "a") for _ in range(3)]
        assert gauge(client, "topics_watch_sessions") == 3
        with all_open(session.open() for session in sessions) as streams:
            for events in streams:
                events.until_caught_up()
            assert gauge(client, "topics_sse_connections") == 3
            with sessions[0].open() as events:
                streams[0].final(409)
                events.until_caught_up()
            until(lambda: gauge(client, "topics_sse_connections") == 2)
        until(lambda: gauge(client, "topics_sse_connections") == 0)
        assert gauge(client, "topics_watch_sessions") == 3
        with sessions[1].open() as events:
            events.until_caught_up()
            client.delete_topic("a")
            events.expect("topic-deleted")
            events.ended()
        until(lambda: gauge(client, "topics_sse_connections") == 0)
        with sessions[1].connect() as events:
            events.refused(404, "not_found")


def test_many_streams_share_a_connection_of_http2(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with Http2(client) as connection:
        streams = [Session(client, topic).open(http2=connection) for _ in range(50)]
        for events in streams:
            events.until_caught_up()
        client.append(topic, 2)
        for events in streams:
            events.expect("record", from_seq=1, to_seq=2)
        # One that is closed takes none of the others with it.
        streams[0].close()
        client.append(topic, 3)
        for events in streams[1:]:
            events.expect("record", from_seq=2, to_seq=3)


def test_a_client_library_of_http2_can_stream(client: Client, topic: str) -> None:
    client.append(topic, "x")
    session = Session(client, topic)
    headers = {"accept": "text/event-stream"}
    with (
        Client(client.daemon, http2=True) as other,
        other.stream("GET", session.answer["stream_url"], headers=headers) as answer,
    ):
        assert (answer.status_code, answer.http_version) == (200, "HTTP/2")
        lines = answer.iter_lines()
        assert [next(lines) for _ in range(2)] == ["retry: 2000", ""]
        assert next(lines).startswith("id:")
        assert next(lines).replace(" ", "") == "event:record"
        assert next(lines).startswith("data:")


# The end of the daemon


def test_a_stop_ends_streams_with_503_and_is_clean(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.append("a", 1)
        client.append("b", 1)
        ways: list[Any] = [{"http2": False}, {"http2": True}]
        with all_open(Session(client, "a", "b").open(**how) for how in ways * 3) as streams:
            for events in streams:
                events.until_caught_up("a", "b")
            client.daemon.send_signal(signal.SIGTERM)
            for events in streams:
                assert events.final(503) == []
            assert client.daemon.wait() == 0


def test_a_stop_with_idle_streams_takes_no_longer_than_it_may(tmp_path: Path) -> None:
    with running(tmp_path, drain_ms=2000) as client:
        client.append("a", 1)
        with all_open(Session(client, "a").open(http2=number % 2 == 1) for number in range(4)) as streams:
            for events in streams:
                events.until_caught_up()
            began = time.monotonic()
            assert client.daemon.end() == 0
            assert time.monotonic() - began < 20
            for events in streams:
                assert events.final(503) == []
