"""Section 8: `subscribe` and `unsubscribe`."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, fresh_name
from tests.conformance.sockets.readers import MIB, appending, missing
from tests.conformance.websocket import WebSocket, covered, covering

# subscribe


def test_the_answer_says_where_the_topics_begin(client: Client, ws: WebSocket, topic: str) -> None:
    other, empty = fresh_name(), fresh_name()
    client.append(topic, 1, 2, 3)
    client.append(other, *range(5), config={"cap_records": 2})
    client.put_topic(empty)
    answer = ws.ask("subscribe", topics={topic: {"from_seq": 2}, other: {}, empty: {"tail": True}}, request_id=1)
    assert answer == {
        "op": "subscribed",
        "request_id": 1,
        "topics": {
            topic: {"from_seq": 2, "head_seq": 3, "earliest_seq": 1},
            other: {"from_seq": 0, "head_seq": 5, "earliest_seq": 4},
            empty: {"from_seq": 0, "head_seq": 0, "earliest_seq": 1},
        },
    }
    frames = ws.until_caught_up(topic, other, empty)
    assert covered(topic, frames, 2, head=3).seqs == [3]
    assert covered(other, frames, head=5).seqs == [4, 5]


@pytest.mark.parametrize(
    ("fields", "from_seq"),
    [
        ({}, 0),
        ({"from_seq": 0}, 0),
        ({"from_seq": 2}, 2),
        ({"from_seq": 3}, 3),
        ({"tail": True}, 3),
        ({"tail": False}, 0),
        ({"tail": False, "from_seq": 1}, 1),
        ({"tail": True, "from_seq": 0}, 3),
    ],
)
@pytest.mark.parametrize("in_map", [False, True])
def test_a_topic_begins_where_it_is_asked_to(
    client: Client, ws: WebSocket, topic: str, fields: Any, from_seq: int, in_map: bool
) -> None:
    client.append(topic, 1, 2, 3)
    answer = ws.subscribe(topics={topic: fields}) if in_map else ws.subscribe(topic, **fields)
    assert answer == {topic: {"from_seq": from_seq, "head_seq": 3, "earliest_seq": 1}}
    assert covered(topic, ws.until_caught_up(), from_seq, head=3).seqs == [*range(from_seq + 1, 4)]


def test_a_map_of_one_is_as_good(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, "a")
    assert set(ws.subscribe(topics={topic: {}})) == {topic}
    assert covered(topic, ws.until_caught_up(), head=1).data == ["a"]


def test_the_answer_comes_before_any_record(client: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for name in names:
        client.append(name, *range(300))
    with appending(client, names[0]):
        for _ in range(20):
            with WebSocket(client) as ws:
                ws.send("subscribe", topics={name: {} for name in names})
                ws.next_op("subscribed")
                ws.until_caught_up(*names[1:])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"from_seq": "1"}, "from_seq"),
        ({"from_seq": -1}, "from_seq"),
        ({"from_seq": 1.5}, "from_seq"),
        ({"from_seq": True}, "from_seq"),
        ({"from_seq": 2**64}, "from_seq"),
        ({"tail": 1}, "tail"),
        ({"tail": "true"}, "tail"),
        ({"node": 1}, "node"),
        ({"node": [1]}, "node"),
        ({"node": {}}, "node"),
        ({"limit": "1"}, "limit"),
        ({"limit": 1.5}, "limit"),
        ({"limit": True}, "limit"),
        ({"limit": []}, "limit"),
        ({"max_batch_bytes": "1"}, "max_batch_bytes"),
        ({"max_batch_bytes": {}}, "max_batch_bytes"),
        ({"include_meta": 1}, "include_meta"),
        ({"include_meta": "true"}, "include_meta"),
        ({"include_tags": 0}, "include_tags"),
        ({"include_tags": "x"}, "include_tags"),
        ({"include_data": 1}, "include_data"),
        ({"include_data": []}, "include_data"),
    ],
)
def test_a_wrong_type_or_range_is_refused_and_names_the_field(
    client: Client, ws: WebSocket, topic: str, fields: Any, field: str
) -> None:
    client.append(topic, 1)
    ws.refused("invalid_request", "subscribe", field, topic=topic, **fields)
    of_topic = {name: value for name, value in fields.items() if name in ("from_seq", "tail")}
    of_all = {name: value for name, value in fields.items() if name not in of_topic}
    ws.refused("invalid_request", "subscribe", field, topics={topic: of_topic}, **of_all)
    ws.quiet(0.1)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({}, "topic"),
        ({"from_seq": 1}, "topic"),
        ({"topic": 1}, "topic"),
        ({"topic": ["subject"]}, "topic"),
        ({"topic": {"subject": {}}}, "topic"),
        ({"topics": {}}, "topics"),
        ({"topics": "subject"}, "topics"),
        ({"topics": ["subject"]}, "topics"),
        ({"topics": 1}, "topics"),
        ({"topics": {"subject": 1}}, "subject"),
        ({"topics": {"subject": []}}, "subject"),
        ({"topics": {"subject": True}}, "subject"),
        ({"topics": {"subject": "tail"}}, "subject"),
        ({"topic": "subject", "topics": {"subject": {}}}, "topic"),
        ({"topics": {f"t{number}": {} for number in range(257)}}, "topics"),
        ({"topics": {"subject": {}}, "consumer": "c"}, "consumer"),  # it would be ignored, with its filter
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_subscribe_has_a_topic_or_some(client: Client, ws: WebSocket, fields: Any, field: str) -> None:
    client.put_topic("subject")
    ws.refused("invalid_request", "subscribe", field, **fields)
    ws.quiet(0.1)
    ws.works()


@pytest.mark.parametrize(
    "fields", [{"consistency": "strong"}, {"heartbeat_ms": 1000}, {"colour": 1}, {"lenient": True}]
)
def test_a_field_that_is_not_known_does_no_harm(client: Client, ws: WebSocket, topic: str, fields: Any) -> None:
    client.append(topic, 1)
    answer = ws.ask("subscribe", topic=topic, **fields)
    # Whether it is ignored or refused is not said.
    if answer["op"] == "subscribed":
        covered(topic, ws.until_caught_up(), head=1)
    else:
        assert answer["code"] == "invalid_request"
        assert next(iter(fields)) in json.dumps(answer)
    ws.quiet(0.1)
    ws.works()


BAD_NAMES = ["", "-a", "a b", "a>b", "a\n", "é", "a" * 256, "a/b", "."]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_bad_name_is_refused_wherever_it_is(client: Client, ws: WebSocket, topic: str, name: str) -> None:
    client.append(topic, 1)
    ws.refused("invalid_request", "subscribe", topic=name)
    ws.refused("invalid_request", "subscribe", topics={topic: {}, name: {}})
    ws.refused("invalid_request", "unsubscribe", topic=name)
    ws.refused("invalid_request", "unsubscribe", topics=[topic, name])
    ws.refused("invalid_request", "publish", topic=name, records=[{"data": 1}])
    ws.quiet(0.1)


def test_an_unknown_topic_is_refused_and_not_created(client: Client, ws: WebSocket, topic: str) -> None:
    ways: list[Any] = [{"topic": topic}, {"topics": {topic: {}}}, {"topic": topic, "tail": True}]
    for fields in ways:
        error = ws.refused("topic_not_found", "subscribe", request_id="x", **fields)
        assert set(error) <= {"op", "request_id", "code", "message", "detail"}
        assert error["request_id"] == "x"
        assert error["detail"]["topic"] == topic
    missing(client, topic)
    # When it is there, it can be subscribed to.
    client.append(topic, "a")
    ws.quiet(0.1)
    ws.subscribe(topic)
    assert covered(topic, ws.until_caught_up(), head=1).data == ["a"]


def test_a_subscribe_is_all_or_nothing(client: Client, ws: WebSocket, topic: str) -> None:
    absent = fresh_name("absent")
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        client.append(name, 1)
    for at in range(5):
        topics: dict[str, Any] = {name: {} for name in [*names[:at], absent, *names[at:]]}
        assert ws.refused("topic_not_found", "subscribe", topics=topics)["detail"]["topic"] == absent
    ws.refused("invalid_request", "subscribe", topics={names[0]: {}, names[1]: {"from_seq": -1}})
    for name in names:
        client.append(name, 2)
    ws.quiet()
    missing(client, absent)


def test_a_refused_subscribe_leaves_what_there_was(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    ws.refused("topic_not_found", "subscribe", topics={topic: {}, fresh_name("absent"): {}})
    ws.refused("invalid_request", "subscribe", topic=topic, limit="x")
    ws.quiet(0.1)
    client.append(topic, 3)
    found.take(ws.until_seq(topic, 3)).check(3)
    assert found.data == [1, 2, 3]


@pytest.mark.parametrize("start", [{"from_seq": 0}, {"from_seq": 150}, {"from_seq": 700}, {"tail": True}])
def test_repeating_a_subscribe_replaces_the_cursor(client: Client, ws: WebSocket, topic: str, start: Any) -> None:
    client.append(topic, *range(700))
    ws.subscribe(topic)
    ws.until_caught_up()
    from_seq = 700 if "tail" in start else start["from_seq"]
    assert ws.subscribe(topic, **start)[topic]["from_seq"] == from_seq
    found = covering(topic, from_seq).take(ws.until_caught_up())
    client.append(topic, "live")
    found.take(ws.until_seq(topic, 701)).check(701)
    assert found.data == [*range(from_seq, 700), "live"]
    # It is not there twice.
    ws.quiet()


def test_a_cursor_is_replaced_in_the_middle_of_a_backlog(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(9000))
    for from_seq in (0, 4000, 100, 8999, 0):
        ws.send("subscribe", topic=topic, from_seq=from_seq, limit=10, request_id=from_seq)
        ws.send("subscribe", topic=topic, from_seq=from_seq // 2, limit=1000, request_id="again")
        before = covering(topic, from_seq)
        while (message := ws.next()).op != "subscribed":
            pass
        while (message := ws.next()).op != "subscribed":
            before.take([message.frame])
        assert message.body["request_id"] == "again"
        found = covered(topic, ws.until_caught_up(), from_seq // 2, head=9000)
        assert found.data == [*range(from_seq // 2, 9000)]
        ws.quiet(0.05)


def test_a_repeated_subscribe_has_its_own_options(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "t", "meta": {"k": "v"}}])
    ws.subscribe(topic, include_data=False, include_tags=True, include_meta=False)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "$tag"}
    ws.expect("caught_up")
    ws.subscribe(topic)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "data", "meta"}
    ws.expect("caught_up")
    client.append(topic, 2)
    assert set(ws.expect("record").data["records"][0]) == {"$seq", "$ts", "data"}


def test_each_subscribe_has_its_own_options(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    for name in (topic, other):
        client.append(name, records=[{"data": number, "node": "n"} for number in range(5)])
    ws.subscribe(topic, limit=2)
    ws.until_caught_up(topic)
    ws.subscribe(other, include_data=False, node="n", limit=1000)
    assert covered(other, ws.until_caught_up(other), head=5, silent=range(1, 6)).seqs == []
    client.append(topic, 5, 6, 7, node="n")
    frames = [frame for frame in ws.until_seq(topic, 8) if frame.event == "record"]
    assert [frame.seqs for frame in frames] == [[6, 7], [8]]
    assert covering(topic, 5).take(frames).data == [5, 6, 7]
    client.append(other, "theirs")
    *_, frame = ws.until_seq(other, 6)
    assert set(frame.data["records"][0]) == {"$seq", "$ts"}


def test_topics_add_up(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(5)]
    for number, name in enumerate(names):
        client.append(name, *([name] * (number + 1)))
        assert set(ws.subscribe(name)) == {name}
    frames = ws.until_caught_up(*names)
    for number, name in enumerate(names):
        client.append(name, "live")
        frames += ws.until_seq(name, number + 2)
    for number, name in enumerate(names):
        assert covered(name, frames, head=number + 2).data == [name] * (number + 1) + ["live"]


@pytest.mark.parametrize(
    "durability", [pytest.param(one, marks=[pytest.mark.more] * (one in {"memory", "ephemeral"})) for one in CLASSES]
)
def test_a_socket_watches_200_topics(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    names = [f"{topic}-{number}" for number in range(200)]
    for name in names:
        client.append(name, name, config={"durability": durability})
    assert set(ws.subscribe(*names)) == set(names)
    frames = ws.until_caught_up(*names)
    for name in names:
        client.append(name, "live")
    reached: set[str | None] = set()
    while len(reached) < 200:
        frames.append(ws.push())
        if frames[-1].data.get("to_seq") == 2:
            reached.add(frames[-1].topic)
    for name in names:
        assert covered(name, frames, head=2).data == [name, "live"]
    assert set(ws.unsubscribe(topics=names)) == set(names)
    client.append(names[0], "after")
    ws.quiet(0.1)


def test_a_subscribe_holds_up_to_256_topics(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}".ljust(255, "x") for number in range(256)]
    for name in names:
        client.put_topic(name)
    assert set(ws.subscribe(*names)) == set(names)
    ws.until_caught_up(*names)


@pytest.mark.parametrize(
    ("limit", "most"), [(None, 256), (0, 256), (1, 1), (7, 7), (256, 256), (1000, 1000), (10**12, 1000)]
)
def test_a_message_has_no_more_records_than_the_limit(
    client: Client, ws: WebSocket, topic: str, limit: int | None, most: int
) -> None:
    client.append(topic, *range(1100))
    ws.subscribe(topic, **({} if limit is None else {"limit": limit}))
    frames = ws.until_caught_up()
    assert covered(topic, frames, head=1100).data == list(range(1100))
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    assert max(sizes) <= most
    # A clamped limit is the greatest, not the default.
    assert max(sizes) > most // 2


@pytest.mark.parametrize(("most", "count"), [(1, 1), (500, 1), (2500, 2), (6000, 5)])
def test_a_message_is_limited_in_bytes_but_has_a_record(
    client: Client, ws: WebSocket, topic: str, most: int, count: int
) -> None:
    client.append(topic, *(["x" * 998] * 10))
    ws.subscribe(topic, max_batch_bytes=most)
    frames = ws.until_caught_up()
    covered(topic, frames, head=10)
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    # What a record takes beside its data is not said, so that one less may come; but one always comes.
    assert max(1, count - 1) <= max(sizes) <= count
    assert min(sizes) >= 1


@pytest.mark.parametrize(
    ("fields", "least", "most"),
    [
        ({}, 2, 3),
        ({"max_batch_bytes": 0}, 2, 3),
        ({"max_batch_bytes": 10**12}, 70, 84),
        ({"max_batch_bytes": 8 * MIB}, 70, 84),
    ],
)
def test_the_bytes_of_a_message_have_a_default_and_are_clamped(
    client: Client, ws: WebSocket, topic: str, fields: Any, least: int, most: int
) -> None:
    for _ in range(2):
        client.append(topic, *(["x" * 99_998] * 50))
    ws.subscribe(topic, **fields)
    frames = ws.until_caught_up()
    covered(topic, frames, head=100)
    count = max(len(frame.seqs) for frame in frames if frame.event == "record")
    # 0 is the default of diff or of watch; a batch may be smaller than what is asked for.
    assert 1 <= count <= (10 if fields.get("max_batch_bytes") == 0 else most)


def test_records_are_the_ones_of_a_read(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": [1], "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": None}])
    for tags, meta in itertools.product((None, False, True), (None, False, True)):
        asked: dict[str, Any] = {"include_tags": tags, "include_meta": meta}
        asked = {name: value for name, value in asked.items() if value is not None}
        ws.subscribe(topic, **asked)
        found = covered(topic, ws.until_caught_up(), head=2).records
        assert found == client.read(topic, **asked)["records"]
        assert ("$tag" in found[0], "meta" in found[0]) == (tags is True, meta is not False)


def test_data_may_be_left_out(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, records=[{"data": "secret", "node": "n", "meta": {"k": "v"}}])
    ws.subscribe(topic, include_data=False)
    frame = ws.expect("record")
    assert b"secret" not in frame.text
    assert set(frame.data["records"][0]) == {"$seq", "$ts", "$node", "meta"}


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
def test_records_of_the_named_nodes_are_dropped(
    client: Client, ws: WebSocket, topic: str, node: Any, left: list[int]
) -> None:
    nodes = ["a", "b", None, "c", "a", None]
    client.append(topic, records=[{"data": 1} if name is None else {"data": 1, "node": name} for name in nodes])
    ws.subscribe(topic, node=node)
    found = covered(topic, ws.until_caught_up(), head=6, silent=range(1, 7))
    assert (found.seqs, found.tombstones) == (left, [])


def test_the_node_filter_is_the_topics_to_switch_off(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, dedupe_node=False)
    client.append(topic, 1, 2, node="mine")
    ws.subscribe(topic, node="mine")
    assert covered(topic, ws.until_caught_up(), head=2).seqs == [1, 2]


def test_who_does_not_want_its_own_gets_those_of_others(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, *range(600), node="mine")
    ws.subscribe(topic, node="mine")
    found = covering(topic).take(ws.until_caught_up())
    assert (found.seqs, found.caught_up) == ([], [600])
    ws.publish(topic, *range(10), node="mine")
    client.append(topic, "theirs", node="theirs")
    found.take(ws.until_seq(topic, 611)).check(611, silent=range(1, 611))
    assert found.data == ["theirs"]


# unsubscribe


def test_after_an_unsubscribe_nothing_comes(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    ws.subscribe(topic)
    ws.until_caught_up()
    assert ws.ask("unsubscribe", topic=topic, request_id=7) == {
        "op": "unsubscribed",
        "request_id": 7,
        "topics": [topic],
    }
    client.append(topic, 2)
    client.put_topic(topic, cap_records=1)
    client.delete_topic(topic)
    ws.quiet()


def test_some_are_left(client: Client, ws: WebSocket, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(4)]
    for name in names:
        client.append(name, 1)
    ws.subscribe(*names)
    frames = ws.until_caught_up(*names)
    answer = ws.unsubscribe(topics=names[:2])
    assert (sorted(answer), type(answer)) == (names[:2], list)
    for name in names:
        client.append(name, 2)
    frames += ws.until_seq(names[3], 2)
    if frames[-2].topic != names[2]:
        frames += ws.until_seq(names[2], 2)
    ws.quiet()
    for name in names:
        covered(name, frames, head=2 if name in names[2:] else 1)


def test_nothing_comes_after_the_answer_whatever_was_under_way(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, *range(3000))
    client.put_topic(other)
    with appending(client, topic), WebSocket(client) as ws:
        for number in range(20):
            ws.subscribe(topic, other, limit=7)
            for _ in range(number):
                ws.next()
            ws.send("unsubscribe", topic=topic)
            while ws.next().op != "unsubscribed":
                pass
            head = client.append(other, 1)["head_seq"]
            frames = ws.until_seq(other, head)
            assert {frame.topic for frame in frames} == {other}
        ws.quiet()


def test_it_can_be_subscribed_to_again(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    found = covering(topic)
    for head in range(2, 6):
        ws.subscribe(topic, from_seq=found.at)
        found.take(ws.until_caught_up()).check(head)
        ws.unsubscribe(topic=topic)
        client.append(topic, head + 1)
    assert found.seqs == [1, 2, 3, 4, 5]


def test_what_is_not_subscribed_to_is_unsubscribed_from_in_peace(client: Client, ws: WebSocket, topic: str) -> None:
    absent = fresh_name("absent")
    client.append(topic, 1)
    for name in (topic, absent):
        # Whether one that was not subscribed to is listed is not said.
        assert set(ws.unsubscribe(topic=name)) <= {name}
        assert set(ws.unsubscribe(topics=[name])) <= {name}
    ws.subscribe(topic, tail=True)
    ws.expect("caught_up")
    answer = ws.unsubscribe(topics=[absent, topic])
    assert {topic} <= set(answer) <= {absent, topic}
    missing(client, absent)
    client.append(topic, 2)
    ws.quiet(0.1)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": 1},
        {"topic": ["a"]},
        {"topic": {}},
        {"topics": "a"},
        {"topics": {"a": {}}},
        {"topics": [1]},
        {"topics": [["a"]]},
        {"topic": "a", "topics": ["a"]},
    ],
    ids=str,
)
def test_an_unsubscribe_has_a_topic_or_some(client: Client, ws: WebSocket, fields: Any) -> None:
    client.append("a", 1)
    ws.subscribe("a", tail=True)
    ws.expect("caught_up")
    ws.refused("invalid_request", "unsubscribe", "topic", **fields)
    head = client.append("a", 2)["head_seq"]
    ws.expect("record", topic="a", to_seq=head)
