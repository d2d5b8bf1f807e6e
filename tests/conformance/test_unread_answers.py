"""Answers that nobody reads: they are bounded for each connection and for all together."""

from __future__ import annotations

import json
import re
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import h2.config
import h2.connection
import h2.errors
import h2.events
import pytest

from tests.conformance.client import Client, RawConnection, error_of, running, until
from tests.conformance.test_hostile_connections import OPEN, SET, frame, get

MIB = 1 << 20
SETTINGS = {
    "max_unsent_bytes": 24 * MIB,
    "max_unsent_bytes_per_key": 8 * MIB,
    "max_unsent_bytes_per_connection": 4 * MIB,
    "api_keys": "one,two",
    "log_level": "info",
}
PAGE = "/v0/topics/large/diff?limit=1000"
CLOSED_WINDOW = OPEN + frame(SET, 0, 0, struct.pack(">HI", 4, 0))
KEY = ("authorization", "Bearer one")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("unread"), **SETTINGS) as client:
        client.headers["authorization"] = "Bearer two"
        client.append("large", *["x" * 1000] * 1000)
        yield client


def peak_bytes(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found is not None
    return int(found[1]) << 10


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


def test_all_answers_arrive_when_the_window_opens(client: Client) -> None:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding=None))
    connection.initiate_connection()
    with RawConnection(client) as raw:
        streams = range(1, 41, 2)
        for stream in streams:
            fields = [(":method", "GET"), (":path", PAGE), (":scheme", "http"), (":authority", "x"), KEY]
            connection.send_headers(stream, fields, end_stream=True)
        raw.send(connection.data_to_send())
        bodies: dict[int, bytes] = dict.fromkeys(streams, b"")
        statuses: dict[int, int] = {}
        ended: set[int] = set()
        while len(ended) < len(streams):
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
        for _ in range(3):
            connection = stack.enter_context(RawConnection(client))
            connection.send(CLOSED_WINDOW + b"".join(get(2 * number + 1, PAGE, KEY) for number in range(4)))

        def is_refused() -> bool:
            answer = client.get(PAGE, headers={KEY[0]: KEY[1]})
            if answer.status_code == 200:
                return False
            assert error_of(answer, 429, "throttled")["detail"]["limit"] == "max_unsent_bytes_per_key"
            return True

        until(is_refused)
        assert client.get(PAGE).status_code == 200
    until(lambda: client.get(PAGE, headers={KEY[0]: KEY[1]}).status_code == 200)
