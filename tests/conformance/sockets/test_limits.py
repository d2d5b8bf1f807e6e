"""Section 8: limits that are small enough to be met, clients that do not read, and the end of the daemon."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.conformance.client import CLASSES, Client, Daemon, fresh_name, running, seqs_of, until
from tests.conformance.sockets.readers import BINARY, CHUNKS, CONTINUATION, MIB, TEXT, anonymous_memory, fill, stopped
from tests.conformance.sse import Cut, Frame, gauge
from tests.conformance.websocket import Closed, WebSocket, all_open, covered, covering, raw_frame, subscribed

# Limits that are small enough to be met


BODY = 65_536


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    settings = {
        "max_batch_records": 3,
        "max_record_bytes": 2000,
        "max_body_bytes": BODY,
        "max_meta_bytes": 100,
        "max_tag_bytes": 5,
        "max_node_bytes": 4,
        "max_limit": 4,
        "max_watch_topics": 2,
    }
    with running(tmp_path_factory.mktemp("small"), **settings) as client:
        yield client


def padded(length: int, filler: str = "x") -> bytes:
    """A ping in a message of this many bytes."""
    start, end = b'{"op":"ping","padding":"', b'"}'
    left = length - len(start) - len(end)
    size = len(filler.encode())
    return start + b" " * (left % size) + filler.encode() * (left // size) + end


@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_a_message_of_the_limit_is_taken_and_a_larger_one_closes_the_socket(small: Client, filler: str) -> None:
    with WebSocket(small) as ws, WebSocket(small) as other:
        ws.send_bytes(raw_frame(TEXT, padded(BODY, filler)))
        ws.next_op("pong")
        content = padded(BODY, filler)
        parts = [content[place : place + 999] for place in range(0, BODY, 999)]
        ws.send_bytes(raw_frame(TEXT, parts[0], fin=False))
        for part in parts[1:]:
            ws.send_bytes(raw_frame(CONTINUATION, part, fin=False))
        ws.send_bytes(raw_frame(CONTINUATION, b""))
        ws.next_op("pong")
        ws.send_bytes(raw_frame(TEXT, padded(BODY + 1, filler)))
        messages, code = ws.rest()
        assert code == 1009
        assert [message for message in messages if message.op != "error"] == []
        other.works()


def test_bytes_are_counted_and_not_characters(small: Client) -> None:
    content = padded(BODY * 2, "é")
    assert len(content.decode()) < BODY + 100
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(TEXT, content[:BODY], fin=False) + raw_frame(CONTINUATION, content[BODY:]))
        messages, code = ws.rest()
        assert code in (None, 1009)
        assert [message for message in messages if message.op != "error"] == []


def test_fragments_are_counted_together(small: Client) -> None:
    content = padded(BODY + 1)
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(TEXT, content[:BODY], fin=False))
        ws.quiet(0.1)
        ws.send_bytes(raw_frame(CONTINUATION, content[BODY:]))
        assert ws.rest()[1] == 1009


def test_a_binary_message_is_limited_too(small: Client) -> None:
    with WebSocket(small) as ws:
        ws.send_bytes(raw_frame(BINARY, b"x" * BODY))
        assert ws.next_op("error")["code"] == "invalid_request"
        ws.send_bytes(raw_frame(BINARY, b"x" * (BODY + 1)))
        assert ws.rest()[1] == 1009


@pytest.mark.parametrize("in_fragments", [False, True])
def test_a_message_that_never_ends_closes_the_socket(small: Client, in_fragments: bool) -> None:
    """As soon as it is too large, and without keeping what comes."""
    start, more = b"\x01\xff" + (1 << 40).to_bytes(8, "big") + bytes(4), b" " * BODY
    if in_fragments:
        start, more = raw_frame(TEXT, b"{", fin=False), raw_frame(CONTINUATION, b" " * 1000, fin=False) * 60
    before = anonymous_memory(small)
    with WebSocket(small) as ws:
        ws.send_bytes(start)
        sent = 0
        code = None
        try:
            while sent < 64 * MIB:
                ws.send_bytes(more)
                sent += len(more)
                ws.wait(0.001)
        except Closed as closed:
            code = closed.code
        except (Cut, ConnectionError):
            pass
        assert code in (None, 1009)
        assert sent < 64 * MIB
        # What is sent in spite of that is not kept.
        try:
            for _ in range(200):
                ws.send_bytes(more)
        except ConnectionError:
            pass
        assert anonymous_memory(small) - before < 32 * MIB
        with WebSocket(small) as other:
            other.works()


@pytest.mark.slow
def test_a_socket_that_was_closed_is_freed_though_the_client_does_not_answer(tmp_path: Path) -> None:
    with running(tmp_path, max_body_bytes=BODY) as client, WebSocket(client) as ws, WebSocket(client) as endless:
        ws.send_bytes(raw_frame(TEXT, padded(BODY + 1)))
        endless.send_bytes(raw_frame(TEXT, b"{" * BODY, fin=False) + raw_frame(CONTINUATION, b"{", fin=False))
        for one in (ws, endless):
            one.answers_close = False
            assert one.rest() == ([], 1009)
        # However long it may wait for that answer, it is not for ever.
        until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=40)
        for one in (ws, endless):
            one.ends_within()


def test_a_message_that_is_small_only_when_compressed_closes_the_socket(small: Client) -> None:
    with WebSocket(small, extensions="permessage-deflate; client_max_window_bits") as ws:
        ws.send_text(padded(BODY).decode())
        ws.next_op("pong")
        try:
            # Nothing needs to be compressed: then it is large in any case.
            ws.send_text(padded(16 * MIB).decode())
        except ConnectionError:
            pass
        messages, code = ws.rest()
        assert code in (None, 1009)
        assert [message for message in messages if message.op != "error"] == []


@pytest.mark.parametrize("filler", ["x", "é", "😀"])
def test_a_message_that_is_too_large_harms_nobody_else(small: Client, topic: str, filler: str) -> None:
    for _ in range(3):
        with WebSocket(small) as ws:
            ws.send_bytes(raw_frame(TEXT, padded(BODY + 1000, filler)))
            ws.rest(1)
    small.put_topic(topic)
    with WebSocket(small) as ws:
        ws.publish(topic, 1)
    assert seqs_of(small.read(topic)) == [1]


def test_a_publish_has_the_limits_of_an_append(small: Client, topic: str) -> None:
    with WebSocket(small) as ws:
        ws.refused("batch_too_large", "publish", topic=topic, records=[{"data": 1}] * 4)
        ws.refused("record_too_large", "publish", topic=topic, records=[{"data": "x" * 1999}])
        ws.refused("invalid_request", "publish", "meta", topic=topic, records=[{"data": 1, "meta": {"k": "v" * 100}}])
        ws.refused("invalid_request", "publish", "tag", topic=topic, records=[{"data": 1, "tag": "123456"}])
        ws.refused("invalid_request", "publish", "node", topic=topic, records=[{"data": 1, "node": "12345"}])
        ws.publish(topic, records=[{"data": "x" * 1998}, {"data": 1, "tag": "12345", "node": "1234"}, {"data": 1}])
        ws.publish(topic, 4, 5)
        ws.subscribe(topic, limit=1000)
        frames = ws.until_caught_up()
        covered(topic, frames, head=5)
        assert max(len(frame.seqs) for frame in frames if frame.event == "record") == 4


def test_how_many_topics_a_subscribe_holds_is_a_setting(small: Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    for name in names:
        small.put_topic(name)
    with WebSocket(small) as ws:
        ws.refused("invalid_request", "subscribe", "topics", topics={name: {} for name in names})
        ws.quiet(0.1)
        ws.subscribe(*names[:2])
        ws.until_caught_up(*names[:2])


# Who does not read


def test_who_reads_is_not_held_up_by_who_does_not(client: Client, topic: str) -> None:
    other = fresh_name()
    client.put_topic(topic)
    client.append(other, 0)
    with (
        all_open(stopped(client, topic) for _ in range(5)),
        subscribed(client, topic) as ws,
        subscribed(client, other) as watch,
    ):
        found = covering(topic).take(ws.until_caught_up())
        beside = covering(other).take(watch.until_caught_up())
        for number in range(1, 6):
            # All of it comes while the others take nothing.
            head = fill(client, topic, 16)
            found.take(ws.until_seq(topic, head))
            watch.publish(other, number)
            beside.take(watch.until_seq(other, number + 1))
        found.check(CHUNKS)
        beside.check(6)
        assert found.tombstones == []


@pytest.mark.parametrize("has_backlog", [False, True])
def test_who_goes_on_reading_gets_everything(client: Client, topic: str, has_backlog: bool) -> None:
    client.put_topic(topic)
    if has_backlog:
        fill(client, topic)
    with stopped(client, topic) as ws:
        found = covering(topic)
        if not has_backlog:
            found.take(ws.until_caught_up())
            fill(client, topic)
        client.append(topic, *range(1000))
        time.sleep(1)
        found.take(ws.until_seq(topic, CHUNKS + 1000))
        ws.works()
        while found.at < CHUNKS + 1000 or not found.caught_up:
            found.take([ws.push()])
        client.append(topic, "live")
        found.take(ws.until_seq(topic, CHUNKS + 1001)).check(CHUNKS + 1001)
    assert found.tombstones == []
    assert found.data[CHUNKS:] == [*range(1000), "live"]


def test_commands_are_answered_when_it_is_read_again(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(other, 1)
    fill(client, topic)
    with stopped(client, topic) as ws:
        time.sleep(0.5)
        ws.send("ping", request_id="ping")
        ws.send("publish", topic=other, records=[{"data": 2}], request_id="publish")
        ws.send("unsubscribe", topic=topic, request_id="unsubscribe")
        ws.send("subscribe", topic=other, request_id="subscribe")
        assert ws.answer("ping")["op"] == "pong"
        assert ws.answer("publish")["op"] == "ack"
        assert ws.answer("unsubscribe")["op"] == "unsubscribed"
        assert ws.answer("subscribe")["op"] == "subscribed"
        frames: list[Frame] = []
        while not frames or frames[-1].event != "caught_up" or frames[-1].topic != other:
            frames.append(ws.push())
        covered(other, frames, head=2)
        assert covering(topic).take(frames).tombstones == []
        ws.quiet(0.1)


def test_what_retention_took_meanwhile_is_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=20)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        head = fill(client, topic, 160)
        client.append(topic, "last")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1)
    # What lies in between holds far less than what was evicted.
    assert found.tombstones
    assert set(found.reasons) <= {"cap", "from_seq_too_old"}
    assert set(range(head + 1 - 19, head + 2)) <= set(found.seqs)


def test_what_was_deleted_meanwhile_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        head = fill(client, topic)
        client.delete_records(topic, before_seq=head + 1)
        client.append(topic, "last")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1, silent=range(1, head + 1))
    assert (found.tombstones, found.data[-1]) == ([], "last")
    assert len(found.seqs) < head


def test_a_topic_that_is_deleted_meanwhile_is_told(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        fill(client, topic)
        client.delete_topic(topic)
        *frames, last = ws.until(lambda frame: frame.event == "topic_deleted")
        found.take(frames)
        assert (last.data["head_seq"], found.tombstones) == (CHUNKS, [])
        assert found.seqs == list(range(1, found.at + 1))
        ws.works()


def test_who_hangs_up_without_reading_leaves_nothing_behind(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        fill(client, "a")
        for _ in range(5):
            with all_open(stopped(client, "a") for _ in range(8)):
                pass
        until(lambda: gauge(client, "topics_ws_connections") == 0)
        with subscribed(client, "a") as ws:
            covered("a", ws.until_caught_up(), head=CHUNKS)


def test_what_waits_is_not_copied_for_each(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for name in ("first", "second"):
            client.put_topic(name)
        with all_open(stopped(client, "first", "second") for _ in range(50)):
            for name in ("first", "second"):
                fill(client, name)
            with subscribed(client, "first") as ws:
                covered("first", ws.until_caught_up(), head=CHUNKS)
            before = anonymous_memory(client)
            for name in ("first", "second"):
                fill(client, name, 2 * CHUNKS)
            with subscribed(client, "first", tail=True) as ws:
                ws.until_caught_up()
            # 50 copies of what came would be 4 GB; what a connection may hold it held before.
            assert anonymous_memory(client) - before < 300 * MIB


# The end of the daemon


def test_a_stop_ends_sockets_in_order_and_is_clean(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        for name in "ab":
            client.append(name, 1)
        with (
            all_open(subscribed(client, "a", "b") for _ in range(5)) as sockets,
            WebSocket(client) as idle,
            WebSocket(client, extensions="permessage-deflate") as deflated,
        ):
            for ws in sockets:
                ws.until_caught_up("a", "b")
            client.daemon.send_signal(signal.SIGTERM)
            for ws in [*sockets, idle, deflated]:
                before, error, code = ws.final()
                assert before == []
                assert error["code"] == "shutting_down"
                assert code in (1000, 1001, 1012), code
                ws.ends_within()
            assert client.daemon.wait() == 0


def test_a_stop_is_in_time_whoever_does_not_read(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("a")
        with all_open(stopped(client, "a") for _ in range(5)) as sockets:
            fill(client, "a")
            client.daemon.send_signal(signal.SIGTERM)
            assert client.daemon.wait() == 0
            for ws in sockets:
                messages, code = ws.rest()
                if messages and messages[-1].op == "error":
                    assert messages.pop().body["code"] == "shutting_down"
                else:
                    assert code is None
                found = covering("a").take(message.frame for message in messages)
                assert found.seqs == list(range(1, found.at + 1))


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_stop_is_in_order_in_the_middle_of_commands(tmp_path: Path, durability: str) -> None:
    daemon = Daemon(tmp_path, drain_ms=50_000)
    try:
        client = daemon.start()
        client.put_topic("a", durability=durability)
        with WebSocket(client) as ws, ThreadPoolExecutor(1) as pool:
            for number in range(300):
                ws.send("publish", topic="a", records=[{"data": number}])
            began = time.monotonic()
            stop = pool.submit(daemon.end)
            messages, _ = ws.rest()
            acked = [seq for message in messages if message.op == "ack" for seq in message.body["seqs"]]
            assert stop.result(90) == 0
            took = time.monotonic() - began
        client = daemon.start()
        head = client.state("a")["head_seq"]
        assert acked == list(range(1, len(acked) + 1))
        assert head >= len(acked)
        with subscribed(client, "a") as ws:
            found = covered("a", ws.until_caught_up(), head=head)
            assert (found.data, found.tombstones) == (list(range(head)), [])
        assert took < 40, "what was not carried out was waited for"
    finally:
        daemon.kill()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_who_comes_back_after_a_restart_goes_on(tmp_path: Path, how: signal.Signals) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        found = {}
        for durability in CLASSES:
            client.append(durability, 1, 2, 3, config={"durability": durability})
        with subscribed(client, *CLASSES) as ws:
            frames = ws.until_caught_up(*CLASSES)
            found = {name: covering(name).take(frames) for name in CLASSES}
            client = daemon.restart(how)
            messages, _ = ws.rest()
            for name in CLASSES:
                found[name].take(message.frame for message in messages if message.is_push)
        heads = {name: client.append(name, "new")["first_seq"] for name in CLASSES}
        with subscribed(client, topics={name: {"from_seq": found[name].at} for name in CLASSES}) as ws:
            frames = ws.until_caught_up(*CLASSES)
            for name in CLASSES:
                found[name].take(frames).check(heads[name])
                assert set(found[name].reasons) <= {"lost"}
            assert found["fsync"].data == [1, 2, 3, "new"]
            assert found["disk"].data == [1, 2, 3, "new"]
        # Records that are gone with the daemon are called lost, for readers that begin before them.
        with subscribed(client, "ephemeral") as ws:
            told = covered("ephemeral", ws.until_caught_up(), head=heads["ephemeral"])
            assert (told.reasons[0], told.data) == ("lost", ["new"])
    finally:
        daemon.kill()
