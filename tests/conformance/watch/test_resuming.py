"""Section 6: resuming a stream, and taking it over."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conformance.client import Client, Daemon, fresh_name, until
from tests.conformance.sse import Covered, Frame, Session, connect, covered, encode_bytes, encode_id, gauge

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
