"""Section 8: what a socket is told of records, tombstones, deletions and topics that go."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client, fresh_name, until
from tests.conformance.sockets.readers import MIB
from tests.conformance.sse import Covered, stream
from tests.conformance.websocket import WebSocket, all_open, covered, covering, subscribed

# Pushes


def test_pushes_have_the_fields_that_are_promised(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic)
    tombstone, record, caught_up = (ws.next() for _ in range(3))
    assert tombstone.body == {
        "op": "tombstone",
        "topic": topic,
        "reason": "from_seq_too_old",
        "gap_from": 1,
        "gap_to": 2,
        "earliest_seq": 3,
        "head_seq": 5,
    }
    assert record.body == {
        "op": "record",
        "topic": topic,
        "from_seq": 2,
        "to_seq": 5,
        "head_seq": 5,
        "records": client.read(topic, 2)["records"],
    }
    assert caught_up.body == {"op": "caught_up", "topic": topic, "head_seq": 5}
    client.delete_topic(topic)
    assert ws.next().body == {"op": "topic_deleted", "topic": topic, "head_seq": 5, "reason": "deleted"}


def test_records_come_as_they_are_appended(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "a", "b", "c")
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.append(topic, "d")
    found.take(ws.until_seq(topic, 4))
    client.append(topic, "e", "f")
    found.take(ws.until_seq(topic, 6)).check(6)
    ws.quiet()
    assert found.data == list("abcdef")
    assert found.records == client.read(topic)["records"]
    assert (found.tombstones, found.caught_up) == ([], [3])


def test_an_empty_topic_is_caught_up_with_at_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic)
    ws.subscribe(topic)
    ws.expect("caught_up", topic=topic, head_seq=0)
    ws.quiet()
    client.append(topic, 1)
    ws.expect("record", from_seq=0, to_seq=1, head_seq=1)
    ws.quiet()


def test_tail_is_caught_up_at_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic, tail=True)
    ws.expect("caught_up", topic=topic, head_seq=2)
    client.append(topic, 3)
    ws.expect("record", topic=topic, from_seq=2, to_seq=3, head_seq=3)


def test_the_head_is_caught_up_with_after_the_backlog_and_once(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(700))
    ws.subscribe(topic)
    *frames, last = ws.until_caught_up()
    assert (last.topic, last.data["head_seq"]) == (topic, 700)
    assert covered(topic, frames, head=700).caught_up == []
    for number in range(701, 711):
        # What is delivered as it comes is no backlog.
        client.append(topic, number)
        ws.expect("record", topic=topic, from_seq=number - 1, to_seq=number)
    ws.quiet()


def test_thousands_of_records_come_in_order(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    for start in range(0, 9000, 3000):
        client.append(topic, *range(start, start + 3000), return_seqs=False)
    found.take(ws.until_seq(topic, 9000)).check(9000)
    assert found.data == list(range(9000))


def test_records_that_are_appended_meanwhile_come_all(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)

    def publish(other: WebSocket) -> None:
        for number in range(150):
            other.publish(topic, *([number] * (number % 7 + 1)))

    found = covering(topic)
    with WebSocket(client) as other, ThreadPoolExecutor(1) as pool, subscribed(client, topic) as ws:
        done = pool.submit(publish, other)
        found.take(ws.until_caught_up())
        done.result(30)
        head = client.state(topic)["head_seq"]
        while found.at < head:
            found.take([ws.push()])
    found.check(head)
    assert found.tombstones == []
    assert found.data == sorted(found.data)


def test_records_of_the_greatest_size_come_whole(client: Client, ws: WebSocket, topic: str) -> None:
    values = [letter * (MIB - 2) for letter in "abcdefgh"]
    for value in values:
        client.append(topic, value)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    ws.publish(topic, "z" * (MIB - 2))
    found.take(ws.until_seq(topic, 9)).check(9)
    assert found.data == [*values, "z" * (MIB - 2)]


def test_diff_sse_and_websocket_agree(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=500)
    client.append(topic, *range(700))
    client.tagged(topic, *("ab" * 20))
    client.delete_records(topic, match="b")
    client.append(topic, 1, node="n")
    ws.subscribe(topic, node="n", include_tags=True)
    with stream(client, topic, node="n", include_tags="true") as events:
        told = Covered(topic).take(events.until_caught_up())
    found = covering(topic).take(ws.until_caught_up())
    assert (found.records, found.tombstones, found.caught_up) == (told.records, told.tombstones, told.caught_up)
    assert found.records == client.read(topic, node="n", include_tags=True, limit=1000)["records"]


def test_a_queue_can_be_subscribed_to(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, "job", config={"type": "queue"})
    ws.subscribe(topic)
    assert covered(topic, ws.until_caught_up(), head=1).data == ["job"]


def test_what_is_delivered_counts_as_read(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1)
    assert client.state(topic, touch="false")["last_read_ts"] is None
    ws.subscribe(topic)
    ws.until_caught_up()
    until(lambda: client.state(topic, touch="false")["last_read_ts"] is not None)


# Tombstones


@pytest.mark.parametrize(("from_seq", "gap"), [(0, (1, 3)), (1, (2, 3)), (2, (3, 3)), (3, None), (4, None), (5, None)])
def test_what_was_evicted_before_is_too_old(client: Client, ws: WebSocket, topic: str, from_seq: int, gap: Any) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic, from_seq=from_seq)
    found = covered(topic, ws.until_caught_up(), from_seq, head=5)
    assert found.gaps == ([] if gap is None else [gap])
    assert set(found.reasons) <= {"from_seq_too_old"}


def test_what_expired_before_is_too_old(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=60)
    client.append(topic, 1, 2)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    ws.subscribe(topic)
    ws.expect("tombstone", topic=topic, reason="from_seq_too_old", gap_from=1, gap_to=2, earliest_seq=3, head_seq=2)
    ws.expect("caught_up", topic=topic, head_seq=2)
    ws.quiet(0.1)


def test_what_went_for_more_than_one_cause_is_too_old(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    time.sleep(1.05)
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 6)
    client.put_topic(topic, ttl_ms=0)
    assert client.read(topic)["tombstone"]["reason"] == "mixed"
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=6)
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 5)], ["from_seq_too_old"], [6])


def test_what_goes_after_its_delivery_is_not_announced(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    client.put_topic(topic, ttl_ms=1500)
    client.put_topic(other, cap_records=2)
    client.append(topic, 1, 2)
    ws.subscribe(topic, other)
    frames = ws.until_caught_up(topic, other)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    ws.quiet()
    for number in range(1, 6):
        client.append(other, number)
        frames += ws.until_seq(other, number)
    client.append(topic, 3)
    frames += ws.until_seq(topic, 3)
    assert [frame for frame in frames if frame.event == "tombstone"] == []
    covered(topic, frames, head=3)
    covered(other, frames, head=5)


def test_what_is_evicted_before_its_delivery_is_announced_by_its_cause(
    client: Client, ws: WebSocket, topic: str
) -> None:
    client.put_topic(topic, cap_records=3)
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.append(topic, *range(1, 11))
    found.take(ws.until_seq(topic, 10)).check(10)
    # On a subscription that stands it is not too old but evicted.
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 7)], ["cap"], [8, 9, 10])


def test_a_record_that_never_fits_is_announced(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    ws.subscribe(topic)
    ws.until_caught_up()
    ws.publish(topic, "too large to stay")
    ws.expect("tombstone", topic=topic, reason="cap", gap_from=1, gap_to=1, earliest_seq=2, head_seq=1)


def test_a_repeated_subscribe_may_be_too_old(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    ws.subscribe(topic)
    ws.until_caught_up()
    for number in range(1, 6):
        client.append(topic, number)
        ws.until_seq(topic, number)
    assert ws.subscribe(topic, from_seq=1)[topic] == {"from_seq": 1, "head_seq": 5, "earliest_seq": 4}
    found = covered(topic, ws.until_caught_up(), 1, head=5)
    assert (found.gaps, found.reasons, found.seqs) == ([(2, 3)], ["from_seq_too_old"], [4, 5])


@pytest.mark.parametrize("from_seq", [3, 1000, 2**64 - 1])
def test_who_is_beyond_the_head_knows_another_instance(
    client: Client, ws: WebSocket, topic: str, from_seq: int
) -> None:
    client.append(topic, "a", "b")
    answer = ws.subscribe(topic, from_seq=from_seq)[topic]
    assert (answer["head_seq"], answer["earliest_seq"]) == (2, 1)
    frames = ws.until_caught_up()
    values = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
    assert (frames[0].event, frames[0].data) == ("tombstone", {"topic": topic} | values)
    found = covered(topic, frames, from_seq, head=2)
    assert (found.data, found.caught_up, found.reasons) == (["a", "b"], [2], ["recreated"])
    client.append(topic, "c")
    ws.expect("record", from_seq=2, to_seq=3)


def test_who_is_beyond_the_head_of_nothing(client: Client, ws: WebSocket, topic: str) -> None:
    client.put_topic(topic)
    ws.subscribe(topic, from_seq=5)
    ws.expect("tombstone", reason="recreated", gap_from=1, gap_to=0, earliest_seq=1, head_seq=0)
    ws.expect("caught_up", head_seq=0)
    client.append(topic, "a")
    assert ws.expect("record", from_seq=0, to_seq=1).seqs == [1]


def test_recreated_describes_the_new_instance_whatever_it_has_evicted(
    client: Client, ws: WebSocket, topic: str
) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    ws.subscribe(topic, from_seq=77)
    found = covered(topic, ws.until_caught_up(), 77, head=5)
    assert (found.reasons, found.gaps, found.data) == (["recreated"], [(1, 5)], [4, 5])


# Deletions


def test_deletions_before_are_silent(client: Client, ws: WebSocket, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "a", "c", "b")
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=2)
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=5, silent=[1, 2, 5])
    assert (found.seqs, found.tombstones) == ([3, 4], [])


def test_deletions_after_are_silent(client: Client, ws: WebSocket, topic: str) -> None:
    client.tagged(topic, "a", "b", "a")
    ws.subscribe(topic)
    found = covering(topic).take(ws.until_caught_up())
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=10)
    ws.quiet()
    client.append(topic, "after")
    found.take(ws.until_seq(topic, 4)).check(4)
    assert (found.seqs, found.tombstones) == ([1, 2, 3, 4], [])


def test_a_topic_of_deleted_records_is_caught_up_with(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(600))
    client.delete_records(topic, before_seq=601)
    ws.subscribe(topic)
    found = covered(topic, ws.until_caught_up(), head=600, silent=range(1, 601))
    assert (found.seqs, found.tombstones, found.caught_up) == ([], [], [600])
    client.append(topic, "after")
    found.take(ws.until_seq(topic, 601)).check(601, silent=range(1, 601))


# Topics that go


def test_a_deleted_topic_ends_but_the_socket_goes_on(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, 1, 2)
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=2, reason="deleted")
    ws.refused("topic_not_found", "subscribe", topic=topic)
    # One of the same name is another topic.
    client.append(topic, "new", "newer", "newest")
    ws.quiet()
    assert set(ws.unsubscribe(topic=topic)) <= {topic}
    assert ws.subscribe(topic)[topic] == {"from_seq": 0, "head_seq": 3, "earliest_seq": 1}
    found = covered(topic, ws.until_caught_up(), head=3)
    assert (found.data, found.tombstones) == (["new", "newer", "newest"], [])
    ws.publish(topic, "live")
    ws.expect("record", from_seq=3, to_seq=4)
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=4)
    ws.works()


def test_who_comes_back_with_a_cursor_of_the_old_instance_is_told(client: Client, ws: WebSocket, topic: str) -> None:
    client.append(topic, *range(5))
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted", head_seq=5)
    client.append(topic, "new")
    ws.subscribe(topic, from_seq=5)
    found = covered(topic, ws.until_caught_up(), 5, head=1)
    assert (found.reasons, found.data) == (["recreated"], ["new"])


def test_the_other_topics_go_on(client: Client, ws: WebSocket, topic: str) -> None:
    other = fresh_name()
    for name in (topic, other):
        client.append(name, 1)
    ws.subscribe(topic, other)
    ws.until_caught_up(topic, other)
    client.delete_topic(topic)
    ws.expect("topic_deleted", topic=topic, head_seq=1)
    client.append(other, 2)
    ws.expect("record", topic=other, from_seq=1, to_seq=2)
    ws.quiet(0.1)


def test_a_publish_may_create_again_what_was_deleted(client: Client, ws: WebSocket, topic: str) -> None:
    ws.publish(topic, *range(5))
    ws.subscribe(topic)
    ws.until_caught_up()
    client.delete_topic(topic)
    ws.expect("topic_deleted")
    answer = ws.publish(topic, 1)
    assert (answer["created"], answer["seqs"]) == (True, [1])
    ws.quiet(0.1)


def test_a_topic_that_goes_within_its_backlog(client: Client, topic: str) -> None:
    for _ in range(10):
        client.append(topic, *(["x" * 500] * 5000), return_seqs=False)
        with subscribed(client, topic, limit=10) as ws:
            frames = ws.until_seq(topic, 10)
            client.delete_topic(topic)
            *more, last = ws.until(lambda frame: frame.event == "topic_deleted")
            found = covering(topic).take(frames + more)
            assert found.tombstones == []
            assert last.data["head_seq"] == 5000
            ws.quiet(0.05)
            ws.works()


def test_all_hear_that_a_topic_is_deleted(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(subscribed(client, topic) for _ in range(10)) as sockets:
        for ws in sockets:
            ws.until_caught_up()
        client.delete_topic(topic)
        for ws in sockets:
            ws.expect("topic_deleted", topic=topic)
            ws.works()
