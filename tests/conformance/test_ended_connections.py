"""What a client that leaves gives up, also while the daemon does not read from its connection: slots, leases, waits."""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

import httpx
import pytest

from tests.conformance.client import Client, RawConnection, fresh_name, running, until
from tests.conformance.queue_client import new_queue
from tests.conformance.sse import gauge
from tests.conformance.websocket import WebSocket, raw_frame

BOTH_WAYS = True

CAP = 20


@pytest.fixture(scope="module")
def client(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with running(tmp_path_factory.mktemp("ended"), max_sse_connections=CAP) as client:
        yield client


def sockets(client: Client) -> int:
    """How many sockets the daemon has open. Other files come and go by themselves: a disk is slow, a log is cut."""
    process = client.daemon._process
    assert process is not None
    folder = f"/proc/{process.pid}/fd"
    found = 0
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            found += os.readlink(f"{folder}/{name}").startswith("socket:")
    return found


def sockets_at_rest(client: Client) -> int:
    """How many it has open when it does nothing: some are open for a moment, or are still being closed."""
    found = [sockets(client)]
    for _ in range(8):
        time.sleep(0.02)
        found.append(sockets(client))
    return min(found)


def close(connection: socket.socket) -> None:
    connection.close()


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


WAYS = {"close": close, "reset": reset}
BEHIND = {"a byte": b"G", "a request": b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n", "200 KiB": b"G" * (200 << 10)}


def leave(
    client: Client, request: bytes, behind: bytes, way: Callable[[socket.socket], None], *, answers: bool
) -> None:
    """Send a request with something behind it, wait for the head of the answer if there is one, and leave."""
    connection = socket.create_connection(("127.0.0.1", client.daemon.port), timeout=40)
    connection.sendall(request)
    if answers:
        assert connection.recv(12).startswith(b"HTTP/1.1 200")
    connection.setblocking(False)
    try:
        connection.send(behind)
    except OSError:
        pass
    way(connection)
    if not answers:
        # Connections are accepted in their order: when this one has its answer, the daemon has the one before as well.
        httpx.get(f"{client.daemon.url}/v0/health", trust_env=False)


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND.keys())
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_stream_with_something_behind_its_head_ends_with_its_connection(
    client: Client, behind: bytes, way: Callable[[socket.socket], None]
) -> None:
    topic = fresh_name()
    client.put_topic(topic)
    before = sockets_at_rest(client)
    for _ in range(CAP):
        leave(client, f"GET /v0/topics/{topic}/stream HTTP/1.1\r\nhost: x\r\n\r\n".encode(), behind, way, answers=True)
    until(lambda: gauge(client, "topics_sse_connections") == 0)
    until(lambda: sockets(client) <= before)


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_work_stream_with_a_byte_behind_its_head_gives_its_jobs_back(
    client: Client, way: Callable[[socket.socket], None]
) -> None:
    queue = new_queue(client, "job", max_deliveries=50)
    before = sockets_at_rest(client)
    request = f"GET /v0/topics/{queue.topic}/work?node=gone&max=8 HTTP/1.1\r\nhost: x\r\n\r\n".encode()
    for _ in range(3):
        leave(client, request, b"G", way, answers=True)
    until(lambda: sockets(client) <= before)
    until(lambda: (queue.counts().ready, queue.counts().in_flight) == (1, 0))
    queue.append(*range(10))
    counts = queue.counts()
    assert (counts.ready, counts.in_flight) == (11, 0)


@pytest.mark.parametrize("size", [100_000, 200_000, 1 << 20])
def test_a_claim_that_waits_takes_no_job_for_a_client_that_has_sent_too_much_and_left(
    client: Client, size: int
) -> None:
    """The end of such a connection is behind more bytes than the kernel takes."""
    queue = new_queue(client)
    before = sockets_at_rest(client)
    body = b'{"node":"gone","max":10,"wait_ms":30000}'
    for _ in range(3):
        leave(client, post(f"/v0/topics/{queue.topic}/claim", body), b"Z" * size, close, answers=False)
    until(lambda: sockets(client) <= before, within_s=20)
    queue.append("job")
    assert queue.claim_one("here")["deliveries"] == 1


@pytest.mark.parametrize("path", ["work?node=flood&max=8", "stream"])
def test_a_stream_ends_when_too_much_is_sent_behind_its_head(client: Client, path: str) -> None:
    """Although the client is still there: nobody could see any more when it leaves."""
    queue = new_queue(client, "job", max_deliveries=50)
    with RawConnection(client) as connection:
        connection.send(f"GET /v0/topics/{queue.topic}/{path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        assert connection.socket.recv(12).startswith(b"HTTP/1.1 200")
        connection.socket.settimeout(20)
        with pytest.raises(ConnectionError):
            connection.send(b"Z" * (64 << 20))
    until(lambda: (queue.counts().ready, queue.counts().in_flight) == (1, 0))


@pytest.mark.parametrize("behind", [b"", b"G"], ids=["nothing", "a byte"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_a_claim_that_waits_takes_no_job_for_a_client_that_has_left(
    client: Client, behind: bytes, way: Callable[[socket.socket], None]
) -> None:
    queue = new_queue(client)
    before = sockets_at_rest(client)
    body = b'{"node":"gone","max":10,"wait_ms":30000}'
    for _ in range(3):
        leave(client, post(f"/v0/topics/{queue.topic}/claim", body), behind, way, answers=False)
    # Their descriptors are free long before the 30 s are over.
    until(lambda: sockets(client) <= before, within_s=20)
    queue.append("job")
    assert queue.claim_one("here")["deliveries"] == 1


def post(path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


@pytest.mark.parametrize("behind", [b"", b"G"], ids=["nothing", "a byte"])
def test_a_client_that_ends_its_side_of_a_long_poll_is_answered_at_once(client: Client, behind: bytes) -> None:
    topic = fresh_name()
    client.append(topic, "x")
    with RawConnection(client) as connection:
        connection.send(post(f"/v0/topics/{topic}/diff", b'{"from_seq":1,"wait_ms":30000}') + behind)
        connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.settimeout(20)
        status, _, body = connection.receive()
    answer = json.loads(body)
    assert (status, answer["records"], answer["caught_up"], answer["next_from_seq"]) == (200, [], True, 1)


def test_requests_behind_one_that_waits_are_answered_after_it(client: Client) -> None:
    topic = fresh_name()
    client.append(topic, "x")
    head = b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n"
    with RawConnection(client) as connection:
        connection.send(post(f"/v0/topics/{topic}/diff", b'{"from_seq":1,"wait_ms":1000}') + head * 500)
        statuses = b""
        while statuses.count(b"HTTP/1.1 200 ") < 501:
            part = connection.socket.recv(1 << 16)
            assert part
            statuses += part


def test_a_client_that_ends_its_side_of_a_claim_is_given_nothing_at_once(client: Client) -> None:
    queue = new_queue(client)
    with RawConnection(client) as connection:
        connection.send(post(f"/v0/topics/{queue.topic}/claim", b'{"node":"n","wait_ms":30000}'))
        connection.socket.shutdown(socket.SHUT_WR)
        connection.socket.settimeout(20)
        status, _, body = connection.receive()
    assert (status, json.loads(body)["claimed"]) == (200, [])


def test_requests_before_the_end_of_a_side_are_all_answered(client: Client) -> None:
    with RawConnection(client) as connection:
        connection.send(b"GET /v0/health HTTP/1.1\r\nhost: x\r\n\r\n" * 50)
        connection.socket.shutdown(socket.SHUT_WR)
        received = b""
        while part := connection.socket.recv(1 << 16):
            received += part
    assert received.count(b"HTTP/1.1 200 ") == 50


def test_a_claim_whose_answer_is_not_taken_gives_its_jobs_back(client: Client) -> None:
    queue = new_queue(client)
    for _ in range(8):
        queue.append("x" * 900_000)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", client.daemon.port))
    connection.sendall(post(f"/v0/topics/{queue.topic}/claim", b'{"node":"gone","max":8,"lease_ms":3600000}'))
    assert connection.recv(12).startswith(b"HTTP/1.1 200")
    assert queue.counts().in_flight == 8
    reset(connection)
    until(lambda: (queue.counts().ready, queue.counts().in_flight) == (8, 0))


def test_a_websocket_that_is_reset_while_it_is_not_read_is_given_up(client: Client) -> None:
    with ExitStack() as stack:
        for _ in range(CAP):
            opened = stack.enter_context(WebSocket(client))
            opened.works()
            opened.send_bytes(raw_frame(1, b'{"op":"ping"}') * 50)
            opened.hang_up()
    until(lambda: gauge(client, "topics_ws_connections") == 0)


@pytest.fixture(autouse=True)
def undisturbed(client: Client) -> Iterator[None]:
    assert client.get("/v0/health").status_code == 200
    yield
    assert client.get("/v0/health").status_code == 200
    written = (client.daemon.root / "log").read_text(errors="replace")
    assert "Traceback" not in written, written[-5000:]
    assert "_failed" not in written, written[-5000:]
