"""Section 8: the stream of one topic, which has no session."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.conformance.client import CLASSES, Client, Daemon, error_of, invalid, running, until
from tests.conformance.sse import (
    Covered,
    Cut,
    Ended,
    Http2,
    all_open,
    connect,
    covered,
    encode_bytes,
    encode_id,
    stream,
    stream_path,
)

MIB = 1 << 20


@pytest.fixture(params=[False, True], ids=["h1", "h2"])
def http2(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# Opening


def test_a_stream_begins_at_the_first_record(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "a", "b")
    with stream(client, topic) as events:
        frame = events.expect("record", topic=topic, from_seq=0, to_seq=2, head_seq=2)
        assert (frame.seqs, frame.cursors) == ([1, 2], {topic: 2})
        assert frame.data["records"] == client.read(topic)["records"]
        assert events.expect("caught-up", topic=topic, head_seq=2).cursors == {topic: 2}
        client.append(topic, "c")
        events.expect("record", from_seq=2, to_seq=3, head_seq=3)
        events.quiet()


def test_a_stream_begins_after_a_seq(client: Client, topic: str) -> None:
    client.append(topic, *range(5))
    for from_seq in (0, 2, 4, 5):
        with stream(client, topic, from_seq=from_seq) as events:
            found = covered(topic, events.until_caught_up(), from_seq, head=5)
            assert found.seqs == list(range(from_seq + 1, 6))


@pytest.mark.parametrize("text", ["true", "1"])
def test_a_stream_begins_at_the_tail(client: Client, topic: str, text: str) -> None:
    client.append(topic, 1, 2)
    with stream(client, topic, tail=text) as events:
        events.expect("caught-up", topic=topic, head_seq=2)
        client.append(topic, 3)
        events.expect("record", from_seq=2, to_seq=3)


@pytest.mark.parametrize("text", ["false", "0"])
def test_no_tail_is_the_first_record(client: Client, topic: str, text: str) -> None:
    client.append(topic, 1, 2)
    with stream(client, topic, tail=text) as events:
        covered(topic, events.until_caught_up(), head=2)


def test_the_tail_of_nothing(client: Client, topic: str) -> None:
    client.put_topic(topic)
    for query in ({}, {"tail": "true"}):
        with stream(client, topic, **query) as events:
            events.expect("caught-up", topic=topic, head_seq=0)
            events.quiet(0.1)


def test_a_stream_of_a_missing_topic_is_404_and_creates_nothing(client: Client, topic: str, http2: bool) -> None:
    for query in ({}, {"tail": "true"}, {"from_seq": 5}):
        with connect(client, stream_path(topic, **query), http2=http2) as events:
            error = events.refused(404, "topic_not_found")
        assert error["detail"]["topic"] == topic
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")
    listed = client.get("/v0/topics", params={"prefix": topic}).json()["topics"]
    assert topic not in [entry["topic"] for entry in listed]


@pytest.mark.parametrize("name", ["-a", "a b", "a>b", "é", "a" * 256, "\n"])
def test_a_bad_name_is_400(client: Client, name: str) -> None:
    with connect(client, f"/v0/topics/{quote(name)}/stream") as events:
        events.refused(400, "invalid_request")


@pytest.mark.parametrize(
    "query",
    [
        "from_seq=x",
        "from_seq=-1",
        "from_seq=1.5",
        "from_seq=18446744073709551616",
        "tail=maybe",
        "tail=",
        "tail=TRUE",
        "limit=x",
        "limit=1.5",
        "include_tags=2",
        "include_tags=yes",
        "include_meta=",
        "include_data=null",
        "heartbeat_ms=x",
        "heartbeat_ms=1s",
    ],
)
def test_a_wrong_value_in_the_query_is_400_and_names_the_field(client: Client, query: str) -> None:
    client.put_topic("queried")
    with connect(client, f"/v0/topics/queried/stream?{query}") as events:
        error = events.refused(400, "invalid_request")
    assert query.split("=", maxsplit=1)[0] in str(error)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_another_method_is_405(client: Client, topic: str, method: str) -> None:
    client.put_topic(topic)
    answer = client.request(method, f"/v0/topics/{topic}/stream")
    error_of(answer, 405, "method_not_allowed")
    assert {"GET"} <= {name.strip() for name in answer.headers["allow"].split(",")} <= {"GET", "HEAD", "OPTIONS"}


@pytest.mark.parametrize(
    "accept",
    [None, "*/*", "text/event-stream", "text/*", "TEXT/EVENT-STREAM;q=0.1", "application/json, */*;q=0.01"],
)
def test_what_accepts_a_stream_gets_it(client: Client, topic: str, http2: bool, accept: str | None) -> None:
    client.append(topic, 1)
    with connect(client, stream_path(topic), accept=accept, http2=http2) as events:
        covered(topic, events.opened().until_caught_up(), head=1)


@pytest.mark.parametrize(
    "accept", ["application/json", "text/html", "application/x-ndjson", "text/event-stream;q=0", "*/*;q=0.0"]
)
def test_what_excludes_a_stream_gets_406(client: Client, topic: str, http2: bool, accept: str) -> None:
    client.put_topic(topic)
    with connect(client, stream_path(topic), accept=accept, http2=http2) as events:
        events.refused(406, "not_acceptable")


def test_a_stream_is_not_compressed(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, *(["z" * 10_000] * 20))
    with stream(client, topic, how={"http2": http2, "headers": {"accept-encoding": "gzip"}}) as events:
        assert covered(topic, events.until_caught_up(), head=20).data == ["z" * 10_000] * 20


# What it delivers


def test_records_of_the_named_nodes_are_dropped(client: Client, topic: str) -> None:
    nodes = ["a", "b", None, "c", "a", None]
    client.append(topic, records=[{"data": 1} if name is None else {"data": 1, "node": name} for name in nodes])
    for node, left in [
        ("a", [2, 3, 4, 6]),
        (["a", "b"], [3, 4, 6]),
        (["a", "b", "c"], [3, 6]),
        ([], [1, 2, 3, 4, 5, 6]),
    ]:
        with stream(client, topic, node=node) as events:
            found = covered(topic, events.until_caught_up(), head=6, silent=range(1, 7))
        assert (found.seqs, found.tombstones) == (left, [])


def test_tags_meta_and_data_come_as_asked_for(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": "x", "tag": "t", "node": "n", "meta": {"k": "v"}}])
    always = {"$seq", "$ts", "$node"}
    for query, keys in [
        ({}, {"data", "meta"}),
        ({"include_tags": "1"}, {"data", "meta", "$tag"}),
        ({"include_tags": "true", "include_meta": "0"}, {"data", "$tag"}),
        ({"include_data": "false"}, {"meta"}),
        ({"include_data": "0", "include_meta": "false", "include_tags": "0"}, set()),
    ]:
        with stream(client, topic, **query) as events:
            (record,) = events.expect("record").data["records"]
            assert set(record) == always | keys


@pytest.mark.parametrize(("limit", "most"), [(None, 256), (0, 256), (1, 1), (300, 300), (10**9, 1000)])
def test_a_frame_has_no_more_records_than_the_limit(client: Client, topic: str, limit: int | None, most: int) -> None:
    client.append(topic, *range(1100))
    query: dict[str, Any] = {} if limit is None else {"limit": limit}
    with stream(client, topic, **query) as events:
        frames = events.until_caught_up()
    assert covered(topic, frames, head=1100).data == list(range(1100))
    sizes = [len(frame.seqs) for frame in frames if frame.event == "record"]
    assert most // 2 < max(sizes) <= most


@pytest.mark.parametrize(
    "data", [b"1.0E+2", b'"\\u00e9\\n"', '"\u2028\u0085"'.encode(), b'{"b" :  [ 1 ,\t2 ] }', b'{"a":1,"a":2}']
)
def test_data_is_byte_for_byte_what_was_written(client: Client, topic: str, http2: bool, data: bytes) -> None:
    assert client.append_raw(topic, data).status_code == 201
    with stream(client, topic, how={"http2": http2}) as events:
        frame = events.expect("record")
        assert re.search(rb'"data"\s*:\s*' + re.escape(data) + rb"\s*[,}]", frame.text)


def test_records_of_the_greatest_size_come_whole(client: Client, topic: str, http2: bool) -> None:
    for letter in "abcdefghijkl":
        client.append(topic, letter * (MIB - 2))
    with stream(client, topic, how={"http2": http2}) as events:
        found = covered(topic, events.until_caught_up(), head=12)
    assert found.data == [letter * (MIB - 2) for letter in "abcdefghijkl"]


def test_a_long_backlog_comes_in_order_and_then_what_is_new(client: Client, topic: str, http2: bool) -> None:
    for start in range(0, 20_000, 5000):
        client.append(topic, *range(start, start + 5000), return_seqs=False)
    with stream(client, topic, limit=1000, how={"http2": http2}) as events:
        found = Covered(topic).take(events.until_caught_up())
        assert found.caught_up == [20_000]
        client.append(topic, "live")
        found.take(events.until_seq(topic, 20_001))
    found.check(20_001)
    assert found.data == [*range(20_000), "live"]


def test_a_frame_is_not_split_by_what_is_in_it(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": "\n\ndata: x\r\n\r\n", "tag": "t", "meta": {"k\n\n": "\r\nid: 1\r"}}])
    with stream(client, topic, include_tags=1) as events:
        (record,) = events.expect("record").data["records"]
    assert (record["data"], record["meta"]) == ("\n\ndata: x\r\n\r\n", {"k\n\n": "\r\nid: 1\r"})


def test_many_streams_of_a_topic_get_the_same(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(stream(client, topic, how={"http2": number % 2 == 1}) for number in range(20)) as streams:
        for number in range(2, 30):
            client.append(topic, number)
        for events in streams:
            found = covered(topic, events.until_seq(topic, 29), head=29)
            assert found.data == list(range(1, 30))


def test_a_hundred_streams_share_a_connection(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with Http2(client) as connection:
        streams = [stream(client, topic, how={"http2": connection}) for _ in range(100)]
        for events in streams:
            events.until_caught_up()
        client.append(topic, 2)
        for events in streams:
            events.expect("record", from_seq=1, to_seq=2)


def test_what_is_delivered_counts_as_read(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert client.state(topic, touch="false")["last_read_ts"] is None
    with stream(client, topic) as events:
        events.until_caught_up()
        until(lambda: client.state(topic, touch="false")["last_read_ts"] is not None)


def test_heartbeats_come_when_nothing_else_does(client: Client, topic: str, http2: bool) -> None:
    client.put_topic(topic)
    with stream(client, topic, heartbeat_ms=1000, how={"http2": http2}) as events:
        events.until_caught_up()
        first = events.heartbeat()
        assert abs(first - time.time() * 1000) < 20_000
        assert events.heartbeat() - first > 700


# Gaps


def test_what_was_evicted_before_is_too_old(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=2)
    client.append(topic, *range(1, 6))
    with stream(client, topic) as events:
        values = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 5}
        events.expect("tombstone", topic=topic, **values)
        assert events.expect("record", from_seq=3, to_seq=5).seqs == [4, 5]
        events.expect("caught-up", head_seq=5)


def test_what_expired_before_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=60)
    client.append(topic, 1, 2, 3)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 4))
    with stream(client, topic, from_seq=1) as events:
        events.expect("tombstone", reason="from_seq_too_old", gap_from=2, gap_to=3, earliest_seq=4, head_seq=3)
        events.expect("caught-up", head_seq=3)


def test_the_tail_has_missed_nothing(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    with stream(client, topic, tail="true") as events:
        events.expect("caught-up", head_seq=5)


def test_what_is_evicted_as_it_comes_is_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    with stream(client, topic) as events:
        found = Covered(topic).take(events.until_caught_up())
        client.append(topic, *range(1, 11))
        found.take(events.until_seq(topic, 10))
    found.check(10)
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 7)], ["cap"], [8, 9, 10])


@pytest.mark.parametrize("from_seq", [3, 2**64 - 1])
def test_who_is_beyond_the_head_knows_another_instance(client: Client, topic: str, from_seq: int) -> None:
    client.append(topic, "a", "b")
    with stream(client, topic, from_seq=from_seq) as events:
        values = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
        tombstone = events.expect("tombstone", topic=topic, **values)
        assert covered(topic, [tombstone, *events.until_caught_up()], from_seq, head=2).data == ["a", "b"]
    # Who knows that it was recreated begins with the new instance.
    with stream(client, topic, tombstone.id, from_seq=from_seq) as events:
        found = covered(topic, events.until_caught_up(), head=2)
        assert (found.tombstones, found.data) == ([], ["a", "b"])


def test_an_id_of_an_older_instance_that_was_longer_is_recreated(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    with stream(client, topic) as events:
        last_id = events.until_caught_up()[-1].id
    client.delete_topic(topic)
    client.append(topic, "new")
    with stream(client, topic, last_id) as events:
        found = covered(topic, events.until_caught_up(), 10, head=1)
        assert (found.reasons, found.data, found.caught_up) == (["recreated"], ["new"], [1])


def test_deletions_are_silent(client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b", "a", "c", "b")
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=2)
    with stream(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=5, silent=[1, 2, 5])
        assert (found.seqs, found.tombstones) == ([3, 4], [])
        client.delete_records(topic, before_seq=6)
        events.quiet()


def test_a_deleted_topic_ends_the_stream(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1, 2)
    with stream(client, topic, how={"http2": http2}) as events:
        last_id = events.until_caught_up()[-1].id
        client.delete_topic(topic)
        events.expect("topic-deleted", topic=topic, head_seq=2, reason="deleted")
        events.ended()
    with connect(client, stream_path(topic), last_id) as events:
        events.refused(404, "topic_not_found")


def test_a_topic_that_is_made_anew_is_another(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with stream(client, topic) as events:
        events.until_caught_up()
        client.delete_topic(topic)
        client.append(topic, "new")
        events.expect("topic-deleted", topic=topic, head_seq=1)
        events.ended()


# Resuming


def test_an_id_is_the_cursor(client: Client, topic: str) -> None:
    client.append(topic, *range(30))
    with stream(client, topic, limit=7) as events:
        frames = events.until_caught_up()
    for frame in frames:
        # A plain EventSource comes back with the query it began with.
        for query in ({}, {"from_seq": 3}, {"from_seq": 29}, {"tail": "true"}):
            with stream(client, topic, frame.id, **query) as events:
                covered(topic, events.until_caught_up(), frame.cursors[topic], head=30)


def test_an_id_may_rewind_and_forward(client: Client, topic: str) -> None:
    client.append(topic, *range(30))
    for seq in (0, 5, 29, 30):
        with stream(client, topic, encode_id({topic: seq}), from_seq=10) as events:
            covered(topic, events.until_caught_up(), seq, head=30)


@pytest.mark.parametrize(
    "last_id",
    [
        "!!!",
        "é",
        "x",
        "AAAA",
        encode_bytes(b"{"),
        encode_bytes(b"[]"),
        encode_bytes(b"null"),
        encode_bytes(b"7"),
        encode_bytes(b'{"resumed":"1"}'),
        encode_bytes(b'{"resumed":-1}'),
        encode_bytes(b'{"resumed":1.5}'),
        encode_bytes(b'{"resumed":18446744073709551616}'),
    ],
)
def test_an_undecodable_id_is_400_before_the_stream_opens(client: Client, http2: bool, last_id: str) -> None:
    client.put_topic("resumed")
    with connect(client, stream_path("resumed"), last_id, http2=http2) as events:
        events.refused(400, "invalid_request")


def test_an_id_that_does_not_name_the_topic_does_no_harm(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    for content in ({}, {"another": 2}):
        with connect(client, stream_path(topic, from_seq=1), encode_id(content)) as events:
            # What such an id means is not said.
            if events.status == 400:
                events.refused(400, "invalid_request")
            else:
                covered(topic, events.opened().until_caught_up(), 1, head=3)


def test_retention_that_passes_an_id_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, 1, 2)
    with stream(client, topic) as events:
        found = Covered(topic).take(events.until_caught_up())
        last_id = events.last_id
    client.append(topic, *range(3, 11))
    with stream(client, topic, last_id) as events:
        found.take(events.until_caught_up())
    found.check(10)
    assert (found.gaps, found.reasons, found.seqs) == ([(3, 7)], ["from_seq_too_old"], [1, 2, 8, 9, 10])


def test_a_connection_that_is_cut_off_again_and_again_loses_nothing(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, *range(3000))
    found = Covered(topic)
    last_id = None
    while not found.caught_up:
        with stream(client, topic, last_id, limit=40, how={"http2": http2}) as events:
            for _ in range(15):
                found.take([events.next()])
                if found.caught_up:
                    break
            last_id = events.last_id
    found.check(3000)
    assert found.data == list(range(3000))


def test_streams_of_a_topic_do_not_take_over_from_one_another(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with stream(client, topic) as first:
        last_id = first.until_caught_up()[-1].id
        with stream(client, topic, last_id) as second:
            second.expect("caught-up", head_seq=1)
            client.append(topic, 2)
            for events in (first, second):
                events.expect("record", from_seq=1, to_seq=2)


# Restarts


class Restarted:
    """A daemon that was ended while streams of every class were open, and how far each had come."""

    def __init__(self, root: Path, ended_by: signal.Signals) -> None:
        self.ended_by = ended_by
        self.daemon = Daemon(root)
        client = self.daemon.start()
        self.found = {durability: Covered(durability) for durability in CLASSES}
        self.ids: dict[str, str | None] = {}
        for durability in CLASSES:
            client.append(durability, *range(300), config={"durability": durability})
        with all_open(stream(client, durability) for durability in CLASSES) as streams:
            for durability, events in zip(CLASSES, streams, strict=True):
                self.found[durability].take(events.until_caught_up())
            client.put_topic("empty")
            self.heads = {durability: client.append(durability, *range(50))["head_seq"] for durability in CLASSES}
            self.daemon.send_signal(ended_by)
            for durability, events in zip(CLASSES, streams, strict=True):
                self.how_it_ended(durability, events)
        self.code = self.daemon.wait()
        self.client = self.daemon.start()

    def how_it_ended(self, durability: str, events: Any) -> None:
        try:
            while True:
                frame = events.next()
                if frame.event == "error":
                    assert self.ended_by == signal.SIGTERM
                    assert frame.data["code"] == 503
                    events.ended()
                    break
                self.found[durability].take([frame])
        except Cut:
            assert self.ended_by == signal.SIGKILL
        except Ended:
            raise AssertionError("no final error") from None
        self.ids[durability] = events.last_id


@pytest.fixture(scope="module", params=[signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def restarted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    restarted = Restarted(tmp_path_factory.mktemp("restarted"), request.param)
    try:
        yield restarted
    finally:
        restarted.daemon.kill()


def test_a_stop_is_clean_with_streams_open(restarted: Restarted) -> None:
    assert restarted.code == (0 if restarted.ended_by == signal.SIGTERM else -signal.SIGKILL)


@pytest.mark.parametrize("durability", CLASSES)
def test_a_stream_survives_a_restart(restarted: Restarted, durability: str) -> None:
    client, found = restarted.client, restarted.found[durability]
    head = client.state(durability)["head_seq"]
    assert head >= restarted.heads[durability]
    begun = found.at
    with stream(client, durability, restarted.ids[durability]) as events:
        found.take(events.until_caught_up())
        found.check(head)
        client.append(durability, "after")
        found.take(events.until_seq(durability, head + 1))
    found.check(head + 1)
    assert found.data[-1] == "after"
    certain = ["disk", "fsync"] + ["memory"] * (restarted.ended_by == signal.SIGTERM)
    if durability in certain:
        assert (found.tombstones, found.data[:-1]) == ([], [*range(300), *range(50)])
    elif durability == "ephemeral":
        # What was not delivered before is lost, if there was such a thing.
        assert set(found.reasons) <= {"lost"}
        assert found.gaps == ([(begun + 1, head)] if begun < head else [])
    else:
        assert set(found.reasons) <= {"lost"}


def test_what_an_ephemeral_topic_lost_is_announced_to_who_begins_anew(restarted: Restarted) -> None:
    client = restarted.client
    client.append("ephemeral", "later")
    head = client.state("ephemeral")["head_seq"]
    with stream(client, "ephemeral") as events:
        found = covered("ephemeral", events.until_caught_up(), head=head)
    assert found.reasons == ["lost"]
    assert found.gaps[0][0] == 1
    assert found.gaps[0][1] >= restarted.heads["ephemeral"]
    assert found.data[-1] == "later"


def test_a_stop_ends_streams_in_time_whatever_they_are_doing(tmp_path: Path) -> None:
    with running(tmp_path, drain_ms=4000) as client:
        client.append("idle", 1)
        for _ in range(16):
            client.append("busy", *(["x" * 100_000] * 10))
        with (
            stream(client, "idle") as idle,
            stream(client, "idle", how={"http2": True}) as idle_h2,
            stream(client, "busy", how={"receive_buffer": 4096}),
            stream(client, "busy", how={"http2": True, "receive_buffer": 4096}),
        ):
            for events in (idle, idle_h2):
                events.until_caught_up()
            client.daemon.send_signal(signal.SIGTERM)
            for events in (idle, idle_h2):
                assert events.final(503) == []
            assert client.daemon.wait() == 0


def test_a_wrong_query_is_told_before_the_id(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with connect(client, stream_path(topic, from_seq="x"), encode_id({topic: 0})) as events:
        events.refused(400, "invalid_request")
    invalid(client.get(stream_path(topic, from_seq="x")), "from_seq")
