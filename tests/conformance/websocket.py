"""A WebSocket by hand: its frames are read strictly, and only as fast as the test wants to."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol, Opcode, XorMaskerSimple

from tests.conformance.client import Client, RawConnection
from tests.conformance.sse import Covered, Cut, Frame, reach_of

WITHIN_S = 40.0
PUSHES = {"record", "caught_up", "tombstone", "topic_added", "topic_deleted"}
ACK = {"topic", "first_seq", "last_seq", "seqs", "head_seq", "count", "created", "deduped", "performance"}
ANSWERS = {"subscribed": {"topics"}, "unsubscribed": {"topics"}, "pong": set(), "ack": ACK}

_request_ids = (f"request-{number}" for number in itertools.count(1))


class Closed(Exception):
    """The server has closed the socket, and said so."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code


@dataclass(frozen=True)
class Message:
    text: str
    """As it was sent."""
    body: Any

    @property
    def op(self) -> str:
        op: str = self.body["op"]
        return op

    @property
    def is_push(self) -> bool:
        return self.op in PUSHES

    @property
    def frame(self) -> Frame:
        """What SSE would have sent."""
        data = {name: value for name, value in self.body.items() if name != "op"}
        return Frame(None, self.op, self.text.encode(), data)

    def check(self) -> None:
        """Assert what holds for every message of its kind."""
        assert isinstance(self.body, dict), self.text[:200]
        if self.is_push:
            # The same rules as those of SSE, where only the names have a hyphen.
            replace(self.frame, id="-", event=self.op.replace("_", "-")).check()
            return
        names = set(self.body) - {"op", "request_id"}
        if self.op == "error":
            assert {"code", "message"} <= names <= {"code", "message", "detail"}, self.body
            assert isinstance(self.body["code"], str)
            assert isinstance(self.body["message"], str)
            assert self.body["message"]
            assert isinstance(self.body.get("detail", {}), dict)
            return
        assert self.op in ANSWERS, self.body
        names |= {"seqs"} if self.op == "ack" else set()
        if self.op in ("subscribed", "unsubscribed"):
            names -= {"prefix"}
        assert names == ANSWERS[self.op], self.body


def key() -> str:
    return base64.b64encode(os.urandom(16)).decode()


def raw_frame(opcode: int, payload: bytes, *, fin: bool = True, reserved: int = 0, mask: bool = True) -> bytes:
    """A frame as a client sends it, or as it must not."""
    length = len(payload)
    flag = 0x80 if mask else 0
    head = bytes([(0x80 if fin else 0) | reserved << 4 | opcode])
    if length < 126:
        head += bytes([flag | length])
    elif length < 1 << 16:
        head += bytes([flag | 126]) + length.to_bytes(2, "big")
    else:
        head += bytes([flag | 127]) + length.to_bytes(8, "big")
    if not mask:
        return head + payload
    masking_key = os.urandom(4)
    return head + masking_key + bytes(XorMaskerSimple(masking_key).process(bytearray(payload)))


class WebSocket:
    """An open socket. What is not asked for stays in it, and `receive_buffer` makes that small."""

    def __init__(
        self,
        client: Client,
        path: str = "/v0/ws",
        *,
        headers: Iterable[tuple[str, str]] = (),
        connection: str = "Upgrade",
        upgrade: str = "websocket",
        extensions: str | None = None,
        receive_buffer: int | None = None,
    ) -> None:
        self.socket = socket.socket()
        if receive_buffer is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.settimeout(WITHIN_S)
        # How much is taken from the socket at once.
        self.most = 1 << 18
        self.pings: list[float] = []
        """When the server has sent one."""
        self.pongs: list[bytes] = []
        self.messages: list[Message] = []
        self.closed: Closed | None = None
        self._is_gone = False
        self.answers_close = True
        self._pieces: list[str] = []
        self.headers: dict[str, str] = {}
        self._deflate = PerMessageDeflate()
        self._extensions = extensions
        try:
            self.socket.connect(("127.0.0.1", client.daemon.port))
            self._open(path, connection, upgrade, headers)
        except BaseException:
            self.socket.close()
            raise

    def _open(self, path: str, connection: str, upgrade: str, headers: Iterable[tuple[str, str]]) -> None:
        nonce = key()
        pairs = [("host", "localhost"), ("connection", connection), ("upgrade", upgrade)]
        pairs += [("sec-websocket-version", "13"), ("sec-websocket-key", nonce), *headers]
        if self._extensions is not None:
            pairs.append(("sec-websocket-extensions", self._extensions))
        lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in pairs)]
        self.socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        buffer = b""
        while (end := buffer.find(b"\r\n\r\n")) < 0:
            part = self.socket.recv(1 << 16)
            if not part:
                raise Cut(buffer)
            buffer += part
        first, *lines = buffer[:end].decode("latin-1").split("\r\n")
        assert first.startswith("HTTP/1.1 101"), buffer[:2000]
        self.headers = {name.strip().lower(): value.strip() for name, _, value in (one.partition(":") for one in lines)}
        assert self.headers["upgrade"].lower() == "websocket"
        assert "upgrade" in self.headers["connection"].lower()
        digest = hashlib.sha1(nonce.encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11").digest()
        assert self.headers["sec-websocket-accept"] == base64.b64encode(digest).decode()
        accepted = self.headers.get("sec-websocket-extensions")
        if accepted is not None:
            assert self._extensions is not None
            assert accepted.split(";")[0].strip() == "permessage-deflate", accepted
            self._deflate.finalize(accepted)
        self._protocol = FrameProtocol(True, [self._deflate])
        self._take(buffer[end + 4 :])

    @property
    def is_deflated(self) -> bool:
        return self._deflate.enabled()

    def __enter__(self) -> WebSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        self.socket.close()

    # Sending

    def send_bytes(self, content: bytes | bytearray) -> None:
        """Send these bytes, which may be several frames or a part of one."""
        self.socket.settimeout(WITHIN_S)
        self.socket.sendall(content)

    def send_text(self, text: str) -> None:
        self.send_bytes(self._protocol.send_data(text))

    def send(self, op: str, **fields: Any) -> None:
        self.send_text(json.dumps({"op": op, **fields}))

    def send_close(self, code: int | None = 1000, reason: str | None = None) -> None:
        self.answers_close = False
        self.send_bytes(self._protocol.close(code, reason))

    def send_pings(self, *payloads: bytes) -> None:
        for payload in payloads:
            self.send_bytes(self._protocol.ping(payload))

    # Receiving

    def wait(self, within_s: float) -> bool:
        """Take what comes next from the connection; whether anything came in time."""
        if self.closed is not None:
            raise self.closed
        if self._is_gone:
            raise Cut
        self.socket.settimeout(max(0.001, within_s))
        try:
            part = self.socket.recv(self.most)
        except TimeoutError:
            return False
        except ConnectionError:
            part = b""
        if not part:
            self._is_gone = True
            raise Cut
        self._take(part)
        return True

    def _take(self, part: bytes) -> None:
        self._protocol.receive_bytes(part)
        for frame in self._protocol.received_frames():
            assert self.closed is None, "a frame after the close"
            payload: Any = frame.payload
            if frame.opcode is Opcode.PING:
                self.pings.append(time.monotonic())
                self._reply(self._protocol.pong(bytes(payload)))
            elif frame.opcode is Opcode.PONG:
                self.pongs.append(bytes(payload))
            elif frame.opcode is Opcode.CLOSE:
                assert not self._pieces, "a close within a message"
                self.closed = Closed(int(payload[0]), payload[1])
                if self.answers_close:
                    self._reply(self._protocol.close(1000))
            else:
                assert isinstance(payload, str), "a binary message"
                self._pieces.append(payload)
                if frame.message_finished:
                    text = "".join(self._pieces)
                    self._pieces.clear()
                    message = Message(text, json.loads(text))
                    message.check()
                    self.messages.append(message)

    def _reply(self, content: bytes | bytearray) -> None:
        try:
            self.send_bytes(content)
        except OSError:
            pass

    def next(self, within_s: float = WITHIN_S) -> Message:
        """The next message."""
        deadline = time.monotonic() + within_s
        while not self.messages:
            left = deadline - time.monotonic()
            assert left > 0, "no message in time"
            self.wait(left)
        return self.messages.pop(0)

    def next_op(self, op: str) -> Any:
        """The body of the next message, which is one of these."""
        message = self.next()
        assert message.op == op, message.text[:1000]
        return message.body

    def answer(self, request_id: Any, within_s: float = WITHIN_S) -> Any:
        """The body of the next message with this id; those before it are left for later."""
        deadline = time.monotonic() + within_s
        seen = 0
        while True:
            for place in range(seen, len(self.messages)):
                if self.messages[place].body.get("request_id") == request_id:
                    return self.messages.pop(place).body
            seen = len(self.messages)
            left = deadline - time.monotonic()
            assert left > 0, ("no answer in time", [message.text[:300] for message in self.messages[-3:]])
            self.wait(left)

    def ask(self, op: str, **fields: Any) -> Any:
        """The body of the answer to a command; what comes before it is left for later."""
        fields.setdefault("request_id", next(_request_ids))
        self.send(op, **fields)
        return self.answer(fields["request_id"])

    def subscribe(self, *names: str, topics: Any = None, **fields: Any) -> Any:
        """Subscribe to one topic, or to a map of them; what the answer says of them."""
        if topics is not None or len(names) != 1:
            fields["topics"] = {name: {} for name in names} | (topics or {})
        else:
            fields["topic"] = names[0]
        answer = self.ask("subscribe", **fields)
        assert answer["op"] == "subscribed", answer
        return answer["topics"]

    def unsubscribe(self, **fields: Any) -> Any:
        answer = self.ask("unsubscribe", **fields)
        assert answer["op"] == "unsubscribed", answer
        return answer["topics"]

    def publish(self, topic: str, *data: Any, **fields: Any) -> Any:
        fields.setdefault("records", [{"data": value} for value in data])
        answer = self.ask("publish", topic=topic, **fields)
        assert answer["op"] == "ack", answer
        return answer

    def refused(self, code: str, op: Any, field: str = "", **fields: Any) -> Any:
        """A command is answered with this error, which names the field."""
        answer = self.ask(op, **fields)
        assert (answer["op"], answer["code"]) == ("error", code), answer
        assert field in json.dumps(answer, ensure_ascii=False), answer
        return answer

    def works(self) -> None:
        """It still answers."""
        assert self.ask("ping")["op"] == "pong"

    def push(self, within_s: float = WITHIN_S) -> Frame:
        """The next message, which was not asked for."""
        message = self.next(within_s)
        assert message.is_push, message.text[:1000]
        return message.frame

    def expect(self, op: str, **values: Any) -> Frame:
        """The next push, which is this one."""
        frame = self.push()
        found = {name: frame.data.get(name) for name in values}
        assert (frame.event, found) == (op, values), frame
        return frame

    def until(self, condition: Callable[[Frame], bool], within_s: float = WITHIN_S) -> list[Frame]:
        """The pushes up to the first that satisfies the condition, with it; each comes in time."""
        frames = [self.push(within_s)]
        while not condition(frames[-1]):
            frames.append(self.push(within_s))
        return frames

    def until_caught_up(self, *topics: str, within_s: float = WITHIN_S) -> list[Frame]:
        """The pushes until each of the topics, or one when none is named, has been caught up with."""
        missing: set[str | None] = set(topics) or {None}

        def is_last(frame: Frame) -> bool:
            if frame.event == "caught_up":
                missing.discard(frame.topic if topics else None)
            return not missing

        return self.until(is_last, within_s)

    def until_seq(self, topic: str, seq: int, within_s: float = WITHIN_S) -> list[Frame]:
        """The pushes until what they say of a topic goes as far as this seq."""
        return self.until(lambda frame: frame.topic == topic and reach_of(frame) >= seq, within_s)

    def quiet(self, for_s: float = 0.3) -> None:
        """No message comes for this time."""
        deadline = time.monotonic() + for_s
        while not self.messages and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        assert not self.messages, self.messages[0].text[:1000]

    def rest(self, within_s: float = WITHIN_S) -> tuple[list[Message], int | None]:
        """Everything up to an end of any kind, and the code with which it was closed, if it was."""
        messages: list[Message] = []
        try:
            while True:
                messages.append(self.next(within_s))
        except Closed as closed:
            return messages, closed.code
        except Cut:
            return messages, None

    def final(self, within_s: float = WITHIN_S) -> tuple[list[Message], Any, int]:
        """Read to the close: the messages before the final error, that error, and the code."""
        messages, code = self.rest(within_s)
        assert code is not None, "it was cut off"
        assert messages, code
        assert messages[-1].op == "error", messages[-1].text[:1000]
        return messages[:-1], messages[-1].body, code

    def ends_within(self, within_s: float = WITHIN_S) -> None:
        """After the close the server hangs up, and sends nothing before that."""
        self.socket.settimeout(within_s)
        try:
            assert self.socket.recv(1) == b""
        except ConnectionError:
            pass


def subscribed(client: Client, *names: str, topics: Any = None, **fields: Any) -> WebSocket:
    """A new socket that has subscribed."""
    opened = WebSocket(client)
    try:
        opened.subscribe(*names, topics=topics, **fields)
    except BaseException:
        opened.hang_up()
        raise
    return opened


@contextmanager
def all_open(sockets: Iterable[WebSocket]) -> Iterator[list[WebSocket]]:
    opened: list[WebSocket] = []
    try:
        for one in sockets:
            opened.append(one)
        yield opened
    finally:
        for one in opened:
            one.hang_up()


def covering(topic: str, start: int = 0) -> Covered:
    """Pushes carry no `id` that their cursors could be compared with."""
    return Covered(topic, start, opaque=True)


def covered(topic: str, frames: Iterable[Frame], start: int = 0, *, head: int, silent: Iterable[int] = ()) -> Covered:
    """What the pushes say of a topic, which is everything of it up to its head."""
    accumulated = covering(topic, start).take(frames)
    accumulated.check(head, silent)
    return accumulated


def shake_hands(client: Client, path: str = "/v0/ws", method: str = "GET", **headers: str | None) -> Any:
    """The answer to a handshake in which some of the headers are others, or None; status, headers and body."""
    asked: dict[str, str | None] = {"connection": "Upgrade", "upgrade": "websocket"}
    asked |= {"sec_websocket_version": "13", "sec_websocket_key": key()} | headers
    with RawConnection(client) as connection:
        connection.send_head(method, path, **{name: value for name, value in asked.items() if value is not None})
        return connection.receive()
