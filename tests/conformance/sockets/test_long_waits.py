"""Section 8: tests each of which takes longer than one of the time limits of the contract."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conformance.client import Client, fresh_name, running, seqs_of, until
from tests.conformance.sockets.readers import CHUNKS, MIB, SMALL, TEXT, anonymous_memory, fill, stopped
from tests.conformance.sse import Covered, Cut, gauge
from tests.conformance.websocket import Closed, Message, WebSocket, all_open, covering, raw_frame, subscribed


@pytest.mark.slow
def test_a_socket_is_pinged_every_15_s_and_has_no_time_limit(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with WebSocket(client) as idle, subscribed(client, topic) as quiet, subscribed(client, topic) as busy:
        quiet.unsubscribe(topic=topic)
        quiet.messages.clear()
        quiet.subscribe(topic, tail=True)
        busy.until_caught_up()
        began = time.monotonic()
        other = fresh_name()
        busy.publish(other, 0)
        busy.subscribe(other, tail=True)
        busy.until_caught_up()
        head = 1
        while time.monotonic() < began + 48:
            head = busy.publish(other, 1)["head_seq"]
            busy.until_seq(other, head)
            for ws in (idle, quiet):
                ws.wait(0.02)
            time.sleep(0.1)
        for ws in (idle, quiet, busy):
            times = [began, *ws.pings]
            assert 2 <= len(ws.pings) <= 4, [at - began for at in times]
            gaps = [after - before for before, after in itertools.pairwise(times)]
            assert all(12 < gap < 22 for gap in gaps[1:]), gaps
            assert gaps[0] < 22
        client.append(topic, 2)
        quiet.until_seq(topic, 2)
        busy.until_seq(topic, 2)
        idle.works()


@pytest.mark.slow
@pytest.mark.parametrize("has_retention", [False, True])
def test_who_was_lagged_goes_on_from_its_cursor(client: Client, topic: str, has_retention: bool) -> None:
    client.put_topic(topic, cap_records=20 if has_retention else 0)
    with stopped(client, topic) as ws:
        found = covering(topic).take(ws.until_caught_up())
        fill(client, topic)
        time.sleep(7)
        head = fill(client, topic)
        found.take(ws.until_seq(topic, head))
        while not found.caught_up or found.caught_up[-1] != head:
            # From backlog to live.
            found.take([ws.push()])
        client.append(topic, "live")
        found.take(ws.until_seq(topic, head + 1)).check(head + 1)
        ws.works()
    assert found.data[-1] == "live"
    assert set(found.reasons) == ({"cap"} & set(found.reasons) if has_retention else set())
    assert bool(found.tombstones) == has_retention


@dataclass
class TooSlow:
    """Sockets that were not read for so long that the daemon closed them, and what became of others meanwhile."""

    client: Client
    sockets: dict[str, WebSocket]
    found: dict[str, Covered]
    closed_after: float
    delays: list[float]
    slow: tuple[list[Message], str]


@pytest.fixture(scope="module")
def too_slow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TooSlow]:
    """All at once, since it takes over 30 s."""
    stop = threading.Event()
    delays: list[float] = []

    def read_slowly(client: Client) -> tuple[list[Message], str]:
        """Read with pauses, for longer than who takes nothing is left open, and then to the end of the backlog."""
        messages: list[Message] = []
        with WebSocket(client, receive_buffer=1 << 16) as ws:
            ws.subscribe("slow")
            deadline = time.monotonic() + 45
            try:
                while time.monotonic() < deadline:
                    # About 2 MiB: the buffers of the kernel are so large that less of it might not be seen.
                    messages += [ws.next() for _ in range(8)]
                    time.sleep(1)
                while messages[-1].op != "caught_up":
                    messages.append(ws.next())
                ws.works()
            except (Closed, Cut, AssertionError) as error:
                return messages, repr(error)[:500]
            stop.wait(60)
        return messages, ""

    def follow(client: Client) -> None:
        """See how long others wait for what they are sent."""
        with subscribed(client, "other", tail=True) as ws:
            ws.until_caught_up()
            while not stop.wait(0.1):
                began = time.monotonic()
                head = ws.publish("other", 1)["head_seq"]
                ws.until_seq("other", head)
                delays.append(time.monotonic() - began)

    with running(tmp_path_factory.mktemp("slow")) as client, ThreadPoolExecutor(2) as pool:
        for name in ("live", "other", "slow"):
            client.put_topic(name)
        fill(client, "slow", 6 * CHUNKS)
        fill(client, "backlog")
        names = ["live", "backlog"]
        with all_open(stopped(client, name) for name in names) as opened:
            sockets = dict(zip(names, opened, strict=True))
            found = {name: covering(name) for name in names}
            found["live"].take(sockets["live"].until_caught_up())
            began = time.monotonic()
            fill(client, "live")
            reader, follower = pool.submit(read_slowly, client), pool.submit(follow, client)
            try:
                until(lambda: gauge(client, "topics_ws_connections") == 4)
                # The slow one and the other one are left.
                until(lambda: gauge(client, "topics_ws_connections") <= 2, within_s=60)
                closed_after = time.monotonic() - began
                time.sleep(max(0.0, began + 50 - time.monotonic()))
                stop.set()
                slow = reader.result(120)
                follower.result(30)
                yield TooSlow(client, sockets, found, closed_after, delays, slow)
            finally:
                stop.set()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["live", "backlog"])
def test_who_takes_nothing_for_30_s_is_closed_and_resumes_without_loss(too_slow: TooSlow, name: str) -> None:
    assert too_slow.closed_after > 27
    messages, code = too_slow.sockets[name].rest()
    # The final error and the close are there if they could still be read: not if what was before them did not fit.
    assert code in (None, 1008)
    if messages and messages[-1].op == "error":
        assert isinstance(messages.pop().body["code"], str)
    else:
        assert code is None
    found = too_slow.found[name].take(message.frame for message in messages)
    assert found.at < CHUNKS
    with subscribed(too_slow.client, name, from_seq=found.at) as ws:
        found.take(ws.until_caught_up()).check(CHUNKS)
    assert (found.tombstones, found.seqs) == ([], list(range(1, CHUNKS + 1)))


@pytest.mark.slow
def test_nobody_else_is_held_up_by_who_takes_nothing(too_slow: TooSlow) -> None:
    assert len(too_slow.delays) > 20
    assert max(too_slow.delays) < 15, sorted(too_slow.delays)[-5:]


@pytest.mark.slow
def test_a_socket_that_makes_progress_has_no_time_limit(too_slow: TooSlow) -> None:
    messages, error = too_slow.slow
    assert not error
    found = covering("slow").take(message.frame for message in messages)
    found.check(6 * CHUNKS)
    assert found.tombstones == []


@pytest.mark.slow
def test_who_was_closed_and_lost_some_to_retention_is_told(tmp_path: Path) -> None:
    with running(tmp_path) as client:
        client.put_topic("a", cap_records=20)
        with stopped(client, "a") as ws:
            found = covering("a").take(ws.until_caught_up())
            fill(client, "a")
            until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=60)
            head = fill(client, "a")
            messages, _ = ws.rest()
            found.take(message.frame for message in messages if message.is_push)
        with subscribed(client, "a", from_seq=found.at) as ws:
            found.take(ws.until_caught_up()).check(head)
        assert found.reasons[-1] == "from_seq_too_old"
        assert set(seqs_of(client.read("a", head - 20))) <= set(found.seqs)


@pytest.mark.slow
def test_who_does_not_read_the_answers_is_too_slow_as_well(tmp_path: Path) -> None:
    with running(tmp_path) as client, WebSocket(client, receive_buffer=SMALL) as ws:
        command = raw_frame(TEXT, json.dumps({"op": "ping", "request_id": "x" * 50_000}).encode())
        ws.socket.settimeout(3)
        # Until it does not take any more: what goes out is limited, and so is what comes in.
        sent = 0
        try:
            while sent < 256 * MIB:
                ws.socket.sendall(command)
                sent += len(command)
        except TimeoutError:
            pass
        assert sent < 256 * MIB
        assert anonymous_memory(client) < 300 * MIB
        client.append("a", 1)
        until(lambda: gauge(client, "topics_ws_connections") == 0, within_s=60)
        messages, code = ws.rest()
        assert code in (None, 1008)
        assert {message.op for message in messages[:-1]} <= {"pong"}


def test_answers_that_nobody_reads_leave_the_memory_of_requests_to_others(tmp_path: Path) -> None:
    with running(tmp_path, max_inflight_bytes=256 << 10, max_body_bytes=224 << 10, admission_ms=200) as client:
        command = json.dumps({"op": "nothing", "request_id": "x" * (100 << 10)}).encode()
        with WebSocket(client, receive_buffer=8 << 10) as ws:
            ws.socket.settimeout(1)
            with pytest.raises(TimeoutError):
                ws.socket.sendall(raw_frame(TEXT, command) * 500)
            for _ in range(5):
                client.append("a", "y" * (200 << 10))


def test_a_command_that_appends_nothing_is_small(client: Client, topic: str) -> None:
    with WebSocket(client) as ws:
        for op, fields in [("ping", {}), ("subscribe", {"topic": topic}), ("unsubscribe", {"topic": topic})]:
            error = ws.refused("payload_too_large", op, x="y" * (256 << 10), **fields)
            assert error["detail"] == {"limit": "max_call_bytes", "max": 256 << 10}
        ws.publish(topic, "y" * (300 << 10))
        ws.refused("invalid_request", "unsubscribe", topics=[f"t{i}" for i in range(257)])


def test_what_a_command_is_called_has_a_limit(client: Client) -> None:
    most = 128 << 10
    with WebSocket(client) as ws:
        ws.send("ping", request_id="r" * (most - 2))
        assert ws.next().body["request_id"] == "r" * (most - 2)
        ws.send("ping", request_id="r" * (most - 1))
        answer = ws.next().body
        assert (answer["op"], answer["code"]) == ("error", "invalid_request")
        assert "request_id" not in answer
