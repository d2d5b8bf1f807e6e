"""Servers that pass on what is appended and do nothing else: `python -m benchmarks.fanout PORT_FILE epoll|hypercorn`.

`epoll` writes one frame to every watcher in a loop: what the client, the kernel and the cores allow. `hypercorn` does
it with an unmodified hypercorn on Trio and a task and a channel for each watcher: what the framework allows. Both
speak just enough of `/v0`: any POST is an append of one record, any GET a stream, or a WebSocket if it asks for one.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from benchmarks.bench import Bench
from benchmarks.references import wait_for_port

_ACK = b'{"topic":"t","first_seq":1,"last_seq":1,"head_seq":1,"count":1,"created":false,"deduped":false}'
_DATA = b'{"data":'
_EVENT = (
    b"id: eyJ0IjowfQ\nevent: record\n"
    b'data: {"topic":"t","records":[{"$seq":%d,"$ts":1795248856728,"data":%b}],"from_seq":0,"to_seq":1,'
    b'"head_seq":1}\n\n'
)
_MESSAGE = (
    b'{"op":"record","topic":"t","from_seq":0,"to_seq":1,"head_seq":1,'
    b'"records":[{"$seq":%d,"$ts":1795248856728,"data":%b}]}'
)
_LIVE_EVENT = b'retry: 2000\n\nevent: caught-up\ndata: {"topic":"t","head_seq":0}\n\n'
_LIVE_MESSAGE = b'{"op":"caught_up","topic":"t","head_seq":0}'


def _data_of(body: bytes) -> bytes:
    begin = body.index(_DATA) + len(_DATA)
    return body[begin : body.rindex(b"}]}")]


# --- by hand ---------------------------------------------------------------------------------------------------------


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _message(data: bytes) -> bytes:
    size = len(data)
    return (bytes((0x81, size)) if size < 126 else b"\x81\x7e" + size.to_bytes(2, "big")) + data


def serve_by_hand(listener: socket.socket) -> None:
    """Until killed. A request comes in one piece, or ends with the last one read; a watcher takes what it is sent."""
    epoll = select.epoll()
    epoll.register(listener.fileno(), select.EPOLLIN)
    connections: dict[int, socket.socket] = {}
    streams: dict[int, socket.socket] = {}
    sockets: dict[int, socket.socket] = {}
    seq = 0
    while True:
        for fd, _ in epoll.poll():
            if fd == listener.fileno():
                accepted, _ = listener.accept()
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connections[accepted.fileno()] = accepted
                epoll.register(accepted.fileno(), select.EPOLLIN)
                continue
            peer = connections[fd]
            try:
                data = peer.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                for group in (connections, streams, sockets):
                    group.pop(fd, None)
                epoll.unregister(fd)
                peer.close()
            elif fd in sockets:
                peer.sendall(_message(_LIVE_MESSAGE))  # it has subscribed
            elif data.startswith(b"POST"):
                while not data.endswith(b"]}"):
                    data += peer.recv(1 << 16)
                for request in data.split(b"POST ")[1:]:
                    seq += 1
                    record = _data_of(request)
                    event, message = _chunk(_EVENT % (seq, record)), _message(_MESSAGE % (seq, record))
                    for watcher in streams.values():
                        watcher.send(event)
                    for watcher in sockets.values():
                        watcher.send(message)
                    head = b"HTTP/1.1 200 \r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                    peer.sendall(head % len(_ACK) + _ACK)
            elif b"upgrade: websocket" in data.lower():
                peer.sendall(b"HTTP/1.1 101 \r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n")
                sockets[fd] = peer
            else:
                head = b"HTTP/1.1 200 \r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
                peer.sendall(head + _chunk(_LIVE_EVENT))
                streams[fd] = peer


# --- with hypercorn --------------------------------------------------------------------------------------------------

Numbered = tuple[int, bytes]


class App:
    """A channel for each watcher, unbounded: nobody is slow here."""

    def __init__(self) -> None:
        self._seq = 0
        self._channels: set[trio.MemorySendChannel[Numbered]] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self._socket(receive, send)
        elif scope["type"] != "http":
            raise NotImplementedError(scope["type"])
        elif scope["method"] == "POST":
            await self._append(receive, send)
        else:
            await self._stream(send)

    async def _append(self, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self._seq += 1
        numbered = self._seq, _data_of(body)
        for channel in self._channels:
            channel.send_nowait(numbered)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_ACK))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": _ACK})

    async def _stream(self, send: Any) -> None:
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        records = self._channel()
        await send({"type": "http.response.body", "body": _LIVE_EVENT, "more_body": True})
        async for numbered in records:
            await send({"type": "http.response.body", "body": _EVENT % numbered, "more_body": True})

    async def _socket(self, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await receive()
        records = self._channel()
        await send({"type": "websocket.send", "text": _LIVE_MESSAGE.decode()})
        async for numbered in records:
            await send({"type": "websocket.send", "text": (_MESSAGE % numbered).decode()})

    def _channel(self) -> trio.MemoryReceiveChannel[Numbered]:
        ours, theirs = trio.open_memory_channel[Numbered](float("inf"))
        self._channels.add(ours)
        return theirs


def serve_with_hypercorn(listener: socket.socket) -> None:
    """Until killed."""
    config = Config()
    config.bind = [f"fd://{listener.fileno()}"]
    config.accesslog = config.errorlog = None
    config.keep_alive_max_requests = 1 << 31
    trio.run(serve, App(), config)


@contextmanager
def fan_out_server(bench: Bench, kind: str) -> Iterator[tuple[int, int]]:
    """One of them, as a process; its id and its port. Killed at the end."""
    with bench.scratch() as scratch:
        port_file = scratch / "port"
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.fanout", str(port_file), kind])
        try:
            yield process.pid, wait_for_port(port_file, process)
        finally:
            process.kill()
            process.wait()


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
    port_file = Path(sys.argv[1])
    part = port_file.with_suffix(".part")
    part.write_text(str(listener.getsockname()[1]))
    os.replace(part, port_file)
    {"epoll": serve_by_hand, "hypercorn": serve_with_hypercorn}[sys.argv[2]](listener)


if __name__ == "__main__":
    main()
