"""Messages on WebSockets count against the memory of all requests while they come, and give it back in the end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.conformance.client import Client, running, until
from tests.conformance.websocket import WebSocket, raw_frame

pytestmark = pytest.mark.slow

LIMIT = 256 << 10
TEXT, CONTINUATION = 1, 0


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("small"), max_inflight_bytes=LIMIT, admission_ms=100) as client:
        yield client


def message(topic: str, size: int) -> bytes:
    return json.dumps({"op": "publish", "topic": topic, "records": [{"data": "x" * size}]}).encode()


def all_is_free(client: Client) -> bool:
    """Whether a request that needs nearly all of the memory gets it."""
    body = {"records": [{"data": "x" * (LIMIT - 1000)}]}
    return client.post("/v0/topics/large", json=body).status_code in (200, 201)


def send_in_part(socket: WebSocket, text: bytes) -> None:
    """Send a message that goes on; all of this has been read when it returns."""
    socket.send_bytes(raw_frame(TEXT, text, fin=False))
    socket.send_pings(b"read")
    while b"read" not in socket.pongs:
        assert socket.wait(10)


def test_what_has_come_of_a_message_leaves_no_room_for_others_until_it_is_whole(client: Client) -> None:
    text = message("whole", 200 << 10)
    with WebSocket(client) as first, WebSocket(client) as second:
        send_in_part(first, text[:-1])
        assert not all_is_free(client)
        second.send_bytes(raw_frame(TEXT, message("other", 200 << 10)))
        error = second.next_op("error")
        assert (error["code"], error["detail"]) == ("throttled", {"limit": "max_inflight_bytes", "max": LIMIT})
        second.works()
        first.send_bytes(raw_frame(CONTINUATION, text[-1:]))
        assert first.next_op("ack")["count"] == 1
        assert second.publish("other", "x" * (200 << 10))["count"] == 1
    until(lambda: all_is_free(client))


@pytest.mark.parametrize("ends", ["hangs up", "closes", "sends too much"])
def test_whatever_becomes_of_a_socket_its_memory_is_given_back(client: Client, ends: str) -> None:
    with ExitStack() as stack:
        socket = stack.enter_context(WebSocket(client))
        send_in_part(socket, message("gone", 200 << 10)[:-1])
        assert not all_is_free(client)
        if ends == "hangs up":
            socket.hang_up()
        elif ends == "closes":
            socket.send_close()
        else:
            for _ in range(4):
                socket.send_bytes(raw_frame(CONTINUATION, b"y" * (100 << 10), fin=False))
            socket.hang_up()
    until(lambda: all_is_free(client))


def test_messages_that_wait_for_a_socket_that_ends_are_given_back(client: Client) -> None:
    for _ in range(5):
        with WebSocket(client) as socket:
            socket.send_bytes(raw_frame(TEXT, message("queue", 30 << 10)) * 6)
            socket.hang_up()
    until(lambda: all_is_free(client))
