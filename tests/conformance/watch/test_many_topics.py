"""Section 6: many topics in a session, heartbeats, and what else a session is seen by."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import CLASSES, Client, running, until
from tests.conformance.sse import Covered, Http2, Session, all_open, covered, encode_bytes, gauge, watching

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
