"""Answers that nobody reads: they are bounded for each connection and for all together."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

from tests.conformance.client import Client, RawConnection, error_of, running, until
from tests.conformance.test_hostile_connections import OPEN, SET, frame, get, pid_of

BOTH_WAYS = True

MIB = 1 << 20
SETTINGS: dict[str, Any] = {
    "max_unsent_bytes": 24 * MIB,
    "max_unsent_bytes_per_key": 8 * MIB,
    "max_unsent_bytes_per_connection": 4 * MIB,
    "api_keys": "one,two",
    "max_inflight_per_key": 0,
    "log_level": "info",
}
PAGE = "/v0/topics/large/diff?limit=1000"
HUGE = "/v0/topics/huge/diff?limit=1000&max_batch_bytes=8388608"
HEADERS, RST, PING, WINDOW_UPDATE = 1, 3, 6, 8
CLOSED_WINDOW = OPEN + frame(SET, 0, 0, struct.pack(">HI", 4, 0))
KEY = ("authorization", "Bearer one")


@pytest.fixture(scope="module")
def client(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("unread"), **SETTINGS) as client:
        client.headers["authorization"] = "Bearer two"
        client.append("large", *["x" * 1000] * 1000)
        for _ in range(4):
            client.append("huge", *["x" * 8000] * 250)
        yield client


def memory_bytes(client: Client, what: str) -> int:
    """VmRSS, what is resident now, or VmHWM, the most that was."""
    found = re.search(what + r":\s+(\d+) kB", Path(f"/proc/{pid_of(client)}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


def peak_bytes(client: Client) -> int:
    return memory_bytes(client, "VmHWM")


def forget_peak(client: Client) -> int:
    """The peak begins again at what is resident now, which is returned."""
    Path(f"/proc/{pid_of(client)}/clear_refs").write_text("5")
    return memory_bytes(client, "VmRSS")


def until_answered(connection: RawConnection, streams: int) -> None:
    """Wait until the daemon has answered or reset so many streams, as far as a closed window lets it."""
    seen: set[int] = set()
    data = b""
    while len(seen) < streams:
        part = connection.socket.recv(1 << 16)
        assert part
        data += part
        while len(data) >= 9 and len(data) >= (size := 9 + int.from_bytes(data[:3], "big")):
            if data[3] in (HEADERS, RST):
                seen.add(int.from_bytes(data[5:9], "big"))
            data = data[size:]


def resets_of(connection: RawConnection, wanted: int) -> list[int]:
    """The codes of the streams that the daemon has reset, once there are so many."""
    parser = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    parser.initiate_connection()
    codes: list[int] = []
    data = b""
    while len(codes) < wanted:
        part = connection.socket.recv(1 << 16)
        assert part
        data += part
        while len(data) >= 9 and len(data) >= (size := 9 + int.from_bytes(data[:3], "big")):
            if data[3] == 3:
                codes.append(int.from_bytes(data[9:13], "big"))
            data = data[size:]
    return codes


def test_large_answers_on_a_closed_window_are_bounded(client: Client) -> None:
    before = peak_bytes(client)
    with RawConnection(client) as connection:
        connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, PAGE, KEY) for number in range(1000)))
        assert set(resets_of(connection, 500)) == {h2.errors.ErrorCodes.REFUSED_STREAM}
        assert client.get("/v0/health").status_code == 200
        assert client.get(PAGE).status_code == 200
    assert peak_bytes(client) - before < 64 * MIB


def test_refusals_on_a_closed_window_are_bounded(client: Client) -> None:
    before = peak_bytes(client)
    with ExitStack() as stack:
        for _ in range(4):
            connection = stack.enter_context(RawConnection(client))
            connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, "/v0/topics") for number in range(3000)))
            assert set(resets_of(connection, 2500)) == {h2.errors.ErrorCodes.REFUSED_STREAM}
        assert client.get(PAGE).status_code == 200
    assert peak_bytes(client) - before < 96 * MIB


def test_what_reads_of_8_mib_take_is_bounded_and_comes_back(client: Client) -> None:
    """Each connection may be let one, or what is answered instead; those that are refused hold nothing."""
    before = forget_peak(client)
    with ExitStack() as stack:
        connections = [stack.enter_context(RawConnection(client)) for _ in range(8)]
        for connection in connections:
            connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, HUGE, KEY) for number in range(30)))
            until_answered(connection, 1)  # the others wait until it has been read, if they did not come before it
        assert client.get("/v0/health").status_code == 200
    until(lambda: client.get(PAGE).status_code == 200)
    assert peak_bytes(client) - before < SETTINGS["max_unsent_bytes"] * 5 // 2 + 24 * MIB
    until(lambda: memory_bytes(client, "VmRSS") - before < 16 * MIB)


def test_a_closed_window_holds_up_who_sends(tmp_path: Path) -> None:
    """What is sent is held once; and what is made while it is sent is made when the reader takes it."""
    with running(tmp_path, max_unsent_bytes=64 * MIB) as client:
        for _ in range(4):
            client.append("huge", *["x" * 8000] * 250)
        for path, most in [("/v0/topics/huge/export", 16 * MIB), (HUGE, 56 * MIB)]:
            before = forget_peak(client)
            with RawConnection(client) as connection:
                connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, path) for number in range(4)))
                until_answered(connection, 4)
                for _ in range(300):  # turns for those who send
                    connection.send(frame(PING, 0, 0, bytes(8)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1)))
                    assert connection.socket.recv(1 << 16)
                assert peak_bytes(client) - before < most


def test_a_daemon_that_is_short_of_memory_takes_one_request_at_a_time(client: Client) -> None:
    """Open streams count, idle ones too; a connection that has none may have one in any case."""
    poll = "/v0/topics/large/diff?from_seq=1000&wait_ms=30000"
    with ExitStack() as stack:
        first = stack.enter_context(RawConnection(client))
        first.send(OPEN + b"".join(get(2 * number + 1, poll, KEY) for number in range(1400)))
        assert set(resets_of(first, 100)) == {h2.errors.ErrorCodes.REFUSED_STREAM}
        second = stack.enter_context(RawConnection(client))
        second.send(OPEN + get(1, poll, KEY) + get(3, "/v0/topics", KEY))
        assert resets_of(second, 1) == [h2.errors.ErrorCodes.REFUSED_STREAM]
        third = stack.enter_context(RawConnection(client))
        third.send(OPEN + get(1, "/v0/topics", KEY))
        until_answered(third, 1)
        assert client.get(PAGE).status_code == 200


def test_all_answers_arrive_when_the_window_opens(client: Client) -> None:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    connection.initiate_connection()
    with RawConnection(client) as raw:
        bodies: dict[int, bytes] = {}
        statuses: dict[int, int] = {}
        ended: set[int] = set()

        def ask() -> None:
            stream = connection.get_next_available_stream_id()
            fields = [(":method", "GET"), (":path", PAGE), (":scheme", "http"), (":authority", "x"), KEY]
            connection.send_headers(stream, fields, end_stream=True)
            bodies[stream] = b""

        for _ in range(20):
            ask()
        raw.send(connection.data_to_send())
        while len(ended) < 20:
            part = raw.socket.recv(1 << 16)
            assert part
            for event in connection.receive_data(part):
                if isinstance(event, h2.events.ResponseReceived):
                    statuses[event.stream_id] = int(dict(event.headers)[b":status"])
                elif isinstance(event, h2.events.DataReceived):
                    bodies[event.stream_id] += event.data
                    connection.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, h2.events.StreamEnded):
                    ended.add(event.stream_id)
                elif isinstance(event, h2.events.StreamReset):
                    assert event.error_code == h2.errors.ErrorCodes.REFUSED_STREAM  # what the last test took is there
                    del bodies[event.stream_id]
                    ask()
            raw.send(connection.data_to_send())
    assert set(statuses.values()) == {200}
    assert all(len(json.loads(body)["records"]) == 1000 for body in bodies.values())


def test_readers_that_take_nothing_make_way_for_others(client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(40):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", client.daemon.port))
            connection.sendall(f"GET {PAGE} HTTP/1.1\r\nhost: x\r\n{KEY[0]}: {KEY[1]}\r\n\r\n".encode() * 5)
        assert client.get("/v0/health").status_code == 200
        until(lambda: client.get(PAGE).status_code == 200)


def test_a_key_has_a_bound_of_its_own_and_others_are_answered(client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(12):  # each leaves a megabyte or more unread; what is made at once may be refused already
            connection = stack.enter_context(RawConnection(client))
            connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, PAGE, KEY) for number in range(4)))
            until_answered(connection, 4)
            answer = client.get(PAGE, headers={KEY[0]: KEY[1]})
            if answer.status_code != 200:
                break
        assert error_of(answer, 429, "throttled")["detail"]["limit"] == "max_unsent_bytes_per_key"
        assert client.get(PAGE).status_code == 200
    until(lambda: client.get(PAGE, headers={KEY[0]: KEY[1]}).status_code == 200)
