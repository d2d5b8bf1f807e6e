"""Sockets that are not read, and appends to the topics that they read."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conformance.client import Client, error_of
from tests.conformance.websocket import WebSocket

MIB = 1 << 20
TEXT, BINARY, CONTINUATION, CLOSE, PING, PONG = 1, 2, 0, 8, 9, 10
PING_COMMAND = b'{"op":"ping"}'
# More than what the kernel keeps of a connection that is not read, on both of its sides.
CHUNK = "x" * 262_000
CHUNKS = 80
SMALL = 4096


def missing(client: Client, topic: str) -> None:
    error_of(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found")


@contextmanager
def appending(client: Client, topic: str) -> Iterator[None]:
    """Somebody else appends all the while."""
    stop = threading.Event()

    def append(other: Client) -> None:
        while not stop.is_set():
            other.append(topic, *(["x" * 100] * 20))
            time.sleep(0.002)

    with Client(client.daemon) as other, ThreadPoolExecutor(1) as pool:
        done = pool.submit(append, other)
        try:
            yield
        finally:
            stop.set()
            done.result(30)


def anonymous_memory(client: Client) -> int:
    process = client.daemon._process
    assert process is not None
    found = re.search(r"RssAnon:\s*(\d+) kB", Path(f"/proc/{process.pid}/status").read_text())
    assert found
    return int(found[1]) * 1024


def fill(client: Client, topic: str, count: int = CHUNKS) -> int:
    """Append so much that it does not fit in what lies between the daemon and a client; the head after it."""
    head = 0
    for _ in range(0, count, 16):
        head = client.append(topic, *([CHUNK] * 16), return_seqs=False)["head_seq"]
    return head


def stopped(client: Client, *names: str, **fields: Any) -> WebSocket:
    """A socket that takes little from its connection, and nothing by itself."""
    ws = WebSocket(client, receive_buffer=SMALL)
    try:
        for name in names:
            ws.subscribe(name, **fields)
    except BaseException:
        ws.hang_up()
        raise
    return ws
