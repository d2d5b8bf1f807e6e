"""Section 6: records in a stream, and when it is caught up."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client
from tests.conformance.sse import Covered, Session, covered, watching

MIB = 1 << 20


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
