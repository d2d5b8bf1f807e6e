"""Server-sent events by hand: read strictly, over HTTP/1.1 and HTTP/2, and only as fast as the test wants to."""

from __future__ import annotations

import base64
import json
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self
from urllib.parse import urlencode

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import h2.settings

from tests.conformance.client import Client, body_of, envelope

FIELDS = {
    "record": {"topic", "records", "from_seq", "to_seq", "head_seq"},
    "tombstone": {"topic", "reason", "gap_from", "gap_to", "earliest_seq", "head_seq"},
    "caught-up": {"topic", "head_seq"},
    "topic-deleted": {"topic", "head_seq", "reason"},
    "topic-added": {"topic", "from_seq", "head_seq", "earliest_seq", "epoch"},
}
REASONS = {"cap", "ttl", "mixed", "from_seq_too_old", "recreated", "source_trim", "lost", "corrupt"}
WITHIN_S = 40.0


class Ended(Exception):
    """The stream has ended in order: nothing follows."""


class Cut(Exception):
    """The stream was cut off without its proper end."""


# Frames


@dataclass(frozen=True)
class Frame:
    final: ClassVar = frozenset({408, 409, 410, 503})
    """Codes of errors behind which the stream ends."""

    id: str | None
    event: str
    text: bytes
    """The data as it was sent."""
    data: Any

    @property
    def topic(self) -> str | None:
        topic: str | None = self.data.get("topic")
        return topic

    @property
    def cursors(self) -> dict[str, int]:
        assert self.id is not None
        return decode_id(self.id)

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.data["records"]]

    def check(self) -> None:
        """Assert what holds for every frame of its kind."""
        if self.event == "error":
            assert self.id is None
            if "left_out" in self.data:
                assert set(self.data) == {"code", "error", "max", "left_out", "topics"}
                assert self.data["left_out"] >= len(self.data["topics"]) > 0
            else:
                assert {"code", "error"} <= set(self.data) <= {"code", "error", "retry_after_ms", "topics"}
            assert type(self.data["code"]) is int
            assert self.data["code"] in self.final | {429, 504}
            assert isinstance(self.data["error"], str)
        else:
            self.check_kind()

    @property
    def is_advice(self) -> bool:
        """An error after which the stream goes on."""
        return self.event == "error" and self.data["code"] not in self.final

    def check_kind(self) -> None:
        """The same for what is no error."""
        assert self.id, self
        assert self.event in FIELDS, self
        assert set(self.data) == FIELDS[self.event], self.data
        numbers = [value for name, value in self.data.items() if name.endswith("_seq") or name.startswith("gap_")]
        assert all(type(number) is int and number >= 0 for number in numbers), self.data
        if self.event == "record":
            assert self.data["from_seq"] < self.data["to_seq"] <= self.data["head_seq"], self.data
            assert self.seqs == sorted(set(self.seqs))
            assert all(self.data["from_seq"] < seq <= self.data["to_seq"] for seq in self.seqs), self.data
        elif self.event == "tombstone":
            assert self.data["reason"] in REASONS
            assert self.data["reason"] == "recreated" or self.data["gap_from"] <= self.data["gap_to"], self.data
            assert self.data["gap_to"] <= self.data["head_seq"], self.data
        elif self.event == "topic-deleted":
            assert self.data["reason"] == "deleted"


def decode_id(text: str) -> dict[str, int]:
    assert re.fullmatch(r"[A-Za-z0-9_-]+", text), text
    decoded = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    assert isinstance(decoded, dict)
    assert all(type(seq) is int for seq in decoded.values()), decoded
    return decoded


def encode_id(cursors: object) -> str:
    return encode_bytes(json.dumps(cursors).encode())


def encode_bytes(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


class Parser:
    """Takes the bytes of a stream and gives its frames; asserts that the form is exactly the one that is promised."""

    frame: type[Frame] = Frame
    orders: ClassVar[Sequence[list[bytes]]] = ([b"id", b"event", b"data"], [b"event", b"data"])
    """Of the fields of a frame."""

    def __init__(self) -> None:
        self.heartbeats: list[int] = []
        self.frames: list[Frame] = []
        self._rest = b""
        self._lines: list[bytes] = []
        self._has_retry = False
        self._after_comment = False

    def feed(self, content: bytes) -> None:
        assert b"\r" not in content
        *lines, self._rest = (self._rest + content).split(b"\n") if b"\n" in content else [self._rest + content]
        for line in lines:
            self._take(line)

    @property
    def is_between_frames(self) -> bool:
        return not self._rest and not self._lines

    def _take(self, line: bytes) -> None:
        if line.startswith(b":"):
            assert self._has_retry, "the first is `retry`"
            assert not self._lines, "a comment within a frame"
            found = re.fullmatch(rb": hb ([0-9]+)", line)
            assert found, line
            self.heartbeats.append(int(found[1]))
            self._after_comment = True
        elif line:
            self._lines.append(line)
            self._after_comment = False
        elif self._lines:
            self._end_frame()
        else:
            assert self._after_comment, "a blank line after nothing"
            self._after_comment = False

    def _end_frame(self) -> None:
        lines, self._lines = self._lines, []
        if not self._has_retry:
            assert lines == [b"retry: 2000"], lines[:2]
            self._has_retry = True
            return
        fields = [line.partition(b":")[::2] for line in lines]
        names = [name for name, _ in fields]
        assert names in self.orders, [line[:100] for line in lines]
        values = {name: value.removeprefix(b" ") for name, value in fields}
        text = values[b"data"]
        frame_id = values[b"id"].decode() if b"id" in values else None
        frame = self.frame(frame_id, values[b"event"].decode(), text, json.loads(text.decode()))
        frame.check()
        self.frames.append(frame)


# Transports


class Transport(Protocol):
    status: int
    headers: dict[str, str]

    def receive(self, within_s: float) -> bytes:
        """What has come of the body, as soon as something has; nothing when the time is over."""
        ...

    def close(self) -> None: ...


def connected(client: Client, receive_buffer: int | None) -> socket.socket:
    """A connection that takes little into its buffer, if it is to."""
    opened = socket.socket()
    if receive_buffer is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    opened.settimeout(WITHIN_S)
    opened.connect(("127.0.0.1", client.daemon.port))
    return opened


class Http1:
    """One GET over HTTP/1.1. What is not asked for stays in the socket, and `receive_buffer` makes that small."""

    def __init__(
        self, client: Client, path: str, headers: Iterable[tuple[str, str]], receive_buffer: int | None = None
    ) -> None:
        self._socket = connected(client, receive_buffer)
        lines = [f"GET {path} HTTP/1.1", "host: localhost", *(f"{name}: {value}" for name, value in headers)]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode("latin-1"))
        self._buffer = bytearray()
        self._has_ended = False
        self._read_head()
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        length = self.headers.get("content-length")
        self._left = int(length) if length is not None else 0
        self._until_close = not self._chunked and length is None
        self._first_chunk = True
        # How much is taken from the socket at once.
        self.most = 1 << 18

    def _read_head(self) -> None:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            part = self._socket.recv(1)
            if not part:
                raise Cut
            self._buffer += part
        first, *lines = bytes(self._buffer[:end]).decode("latin-1").split("\r\n")
        del self._buffer[: end + 4]
        assert first.startswith("HTTP/1.1 "), first
        self.status = int(first.split()[1])
        self.headers: dict[str, str] = {}
        for line in lines:
            name, _, value = line.partition(":")
            name = name.strip().lower()
            assert name not in self.headers or name in ("vary", "set-cookie"), f"twice: {name}"
            self.headers[name] = value.strip()

    def receive(self, within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        while True:
            if piece := self._take_body():
                return piece
            if self._has_ended:
                raise Ended
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                part = self._socket.recv(self.most)
            except TimeoutError:
                return b""
            except ConnectionError as error:
                raise Cut from error
            if not part:
                if not self._until_close:
                    raise Cut
                self._has_ended = True
            self._buffer += part

    def _take_body(self) -> bytes:
        if self._chunked:
            return self._take_chunks()
        length = len(self._buffer) if self._until_close else min(self._left, len(self._buffer))
        piece = bytes(self._buffer[:length])
        del self._buffer[:length]
        if not self._until_close:
            self._left -= length
            self._has_ended |= self._left == 0
        return piece

    def _take_chunks(self) -> bytes:
        pieces = []
        while not self._has_ended:
            if self._left:
                piece = bytes(self._buffer[: self._left])
                if not piece:
                    break
                del self._buffer[: len(piece)]
                self._left -= len(piece)
                pieces.append(piece)
                continue
            start = 0 if self._first_chunk else 2
            end = self._buffer.find(b"\r\n", start)
            if end < 0:
                break
            assert self._buffer[:start] == b"\r\n"[:start]
            length = int(bytes(self._buffer[start:end]).split(b";")[0], 16)
            if length == 0:
                if self._buffer.find(b"\r\n", end + 2) < 0:
                    break
                self._has_ended = True
            else:
                del self._buffer[: end + 2]
                self._first_chunk = False
                self._left = length
        return b"".join(pieces)

    def close(self) -> None:
        self._socket.close()


class Http2:
    """HTTP/2 with prior knowledge. The window of a stream opens as its bytes are taken, the connection's at once."""

    def __init__(self, client: Client, receive_buffer: int | None = None) -> None:
        self._socket = connected(client, receive_buffer)
        self.machine = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self.machine.local_settings.update({h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 1 << 20})
        self.machine.initiate_connection()
        self._streams: dict[int, Http2Stream] = {}
        self.is_gone = self.is_ending = False
        self.flush()

    def __enter__(self) -> Http2:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def flush(self) -> None:
        if not self.is_gone:
            self._socket.settimeout(WITHIN_S)
            try:
                self._socket.sendall(self.machine.data_to_send())
            except ConnectionError:
                self.is_gone = True

    def get(self, path: str, headers: Iterable[tuple[str, str]] = ()) -> Http2Stream:
        number = self.machine.get_next_available_stream_id()
        stream = self._streams[number] = Http2Stream(self, number)
        pseudo = [(":method", "GET"), (":path", path), (":scheme", "http"), (":authority", "localhost")]
        self.machine.send_headers(number, [*pseudo, *headers], end_stream=True)
        self.flush()
        return stream

    def pump(self, deadline: float) -> bool:
        """Take from the socket once; whether anything came in time."""
        if self.is_gone:
            raise Cut
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        try:
            part = self._socket.recv(1 << 18)
        except TimeoutError:
            return False
        except ConnectionError:
            part = b""
        if not part:
            self.is_gone = True
            raise Cut
        events = self.machine.receive_data(part)
        self.is_ending |= any(isinstance(event, h2.events.ConnectionTerminated) for event in events)
        for event in events:
            self._handle(event)
        self.flush()
        return True

    def _handle(self, event: h2.events.Event) -> None:
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        if stream is None:
            return
        if isinstance(event, h2.events.ResponseReceived):
            headers: list[Any] = list(event.headers)
            assert len({name for name, _ in headers}) == len(headers), headers
            stream.headers = dict(headers)
            stream.status = int(stream.headers.pop(":status"))
        elif isinstance(event, h2.events.DataReceived):
            stream.pending += event.data
            stream.debt += event.flow_controlled_length
            self.widen(event.flow_controlled_length)
        elif isinstance(event, h2.events.StreamEnded):
            stream.has_ended = True
        elif isinstance(event, h2.events.StreamReset):
            stream.is_cut = True

    def widen(self, length: int, number: int | None = None) -> None:
        """Open the window of the connection, or of one of its streams, for more; not when it has been said to end."""
        if length and not self.is_ending:
            self.machine.increment_flow_control_window(length, number)
            self.flush()

    def close(self) -> None:
        self._socket.close()
        self.is_gone = True


class Http2Stream:
    def __init__(self, connection: Http2, number: int) -> None:
        self.connection = connection
        self.status = 0
        self.headers: dict[str, str] = {}
        self.pending = bytearray()
        self.debt = 0
        self.has_ended = self.is_cut = False
        self._number = number
        self.owns_connection = False

    def wait_for_head(self) -> None:
        deadline = time.monotonic() + WITHIN_S
        while not self.status:
            if self.is_cut:
                raise Cut
            assert self.connection.pump(deadline), "no answer in time"

    def receive(self, within_s: float) -> bytes:
        deadline = time.monotonic() + within_s
        while not self.pending:
            if self.has_ended:
                raise Ended
            if self.is_cut:
                raise Cut
            if not self.connection.pump(deadline):
                return b""
        piece = bytes(self.pending)
        self.pending.clear()
        if not (self.has_ended or self.is_cut):
            self.connection.widen(self.debt, self._number)
        self.debt = 0
        return piece

    def close(self) -> None:
        if self.owns_connection:
            self.connection.close()
        elif not (self.has_ended or self.is_cut or self.connection.is_gone or self.connection.is_ending):
            self.connection.machine.reset_stream(self._number, 8)
            self.connection.flush()


# Streams


class Events:
    """An open stream of events."""

    parser_class = Parser

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.status = transport.status
        self.headers = transport.headers
        self.parser = self.parser_class()
        self.advisories: list[Frame] = []
        self.last_id: str | None = None
        """The `id` of the last frame that was given out."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.transport.close()

    @property
    def heartbeats(self) -> list[int]:
        return self.parser.heartbeats

    def opened(self) -> Self:
        if self.status != 200:
            raise AssertionError((self.status, self._body()[:2000]))
        assert self.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert self.headers["cache-control"] == "no-store"
        assert self.headers["x-accel-buffering"] == "no"
        assert "content-encoding" not in self.headers
        assert "content-length" not in self.headers
        return self

    def refused(self, status: int, *codes: str) -> Any:
        assert self.status == status, (self.status, self.headers)
        assert self.headers["content-type"].split(";")[0] == "application/json"
        return envelope(json.loads(self._body()), *codes)

    def _body(self) -> bytes:
        body = b""
        try:
            while part := self.transport.receive(2):
                body += part
        except Ended:
            pass
        return body

    def wait(self, within_s: float) -> bool:
        """Take what comes next from the connection; whether anything came."""
        part = self.transport.receive(within_s)
        self.parser.feed(part)
        return bool(part)

    def next(self, within_s: float = WITHIN_S) -> Frame:
        """The next frame that is neither a heartbeat nor advice."""
        deadline = time.monotonic() + within_s
        while True:
            while not self.parser.frames:
                left = deadline - time.monotonic()
                assert left > 0, "no frame in time"
                self.wait(left)
            frame = self.parser.frames.pop(0)
            if frame.is_advice:
                self.advisories.append(frame)
                continue
            self.last_id = frame.id or self.last_id
            return frame

    def expect(self, event: str, **values: Any) -> Frame:
        """The next frame, which is this one."""
        frame = self.next()
        found = {name: frame.data.get(name) for name in values}
        assert (frame.event, found) == (event, values), frame
        return frame

    def until(self, condition: Callable[[Frame], bool], within_s: float = WITHIN_S) -> list[Frame]:
        """The frames up to the first that satisfies the condition, with it; each comes in time."""
        frames = [self.next(within_s)]
        while not condition(frames[-1]):
            assert frames[-1].event != "error", frames[-1]
            frames.append(self.next(within_s))
        return frames

    def until_caught_up(self, *topics: str, within_s: float = WITHIN_S) -> list[Frame]:
        """The frames until each of the topics, or one when none is named, has been caught up with."""
        missing: set[str | None] = set(topics) or {None}

        def is_last(frame: Frame) -> bool:
            if frame.event == "caught-up":
                missing.discard(frame.topic if topics else None)
            return not missing

        return self.until(is_last, within_s)

    def until_seq(self, topic: str, seq: int, within_s: float = WITHIN_S) -> list[Frame]:
        """The frames until what they say of a topic goes as far as this seq."""
        return self.until(lambda frame: frame.topic == topic and reach_of(frame) >= seq, within_s)

    def heartbeat(self, within_s: float = WITHIN_S) -> int:
        """Wait for the next heartbeat; no frame comes before it."""
        had = len(self.heartbeats)
        deadline = time.monotonic() + within_s
        while len(self.heartbeats) == had:
            assert not self.parser.frames, self.parser.frames[0]
            assert time.monotonic() < deadline, "no heartbeat in time"
            self.wait(deadline - time.monotonic())
        return self.heartbeats[-1]

    def quiet(self, for_s: float = 0.3) -> None:
        """No frame comes for this time."""
        deadline = time.monotonic() + for_s
        while (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        assert not self.parser.frames, self.parser.frames[0]

    def ended(self, within_s: float = WITHIN_S) -> None:
        """It ends in order, and nothing comes before."""
        deadline = time.monotonic() + within_s
        try:
            while not self.parser.frames and time.monotonic() < deadline:
                self.wait(deadline - time.monotonic())
        except Ended:
            assert self.parser.is_between_frames
            return
        raise AssertionError(self.parser.frames[0] if self.parser.frames else "it has not ended")

    def final(self, code: int, within_s: float = WITHIN_S) -> list[Frame]:
        """Read to the final error, after which the stream ends; the frames before it."""
        *frames, last = self.until(lambda frame: frame.event == "error", within_s)
        assert last.data["code"] == code, last
        self.ended(within_s)
        return frames

    def rest(self, within_s: float = WITHIN_S) -> tuple[list[Frame], Frame | None]:
        """Everything up to an end of any kind: the frames, and the final error if it could still be read."""
        frames: list[Frame] = []
        try:
            while True:
                frame = self.next(within_s)
                if frame.event == "error":
                    return frames, frame
                frames.append(frame)
        except (Cut, Ended):
            return frames, None


def reach_of(frame: Frame) -> int:
    """How far its topic is accounted for when a frame has come."""
    if frame.event == "record":
        return int(frame.data["to_seq"])
    if frame.event == "tombstone":
        return 0 if frame.data["reason"] == "recreated" else int(frame.data["gap_to"])
    return int(frame.data["head_seq"])


def connect(
    client: Client,
    path: str,
    last_id: str | None = None,
    *,
    http2: bool | Http2 = False,
    accept: str | None = "text/event-stream",
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    receive_buffer: int | None = None,
) -> Events:
    """Send the GET and return with its answer, also with a refusal."""
    pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
    if accept is not None:
        pairs.append(("accept", accept))
    if last_id is not None:
        pairs.append(("last-event-id", last_id))
    if http2 is False:
        return Events(Http1(client, path, pairs, receive_buffer))
    stream = (http2 if isinstance(http2, Http2) else Http2(client, receive_buffer)).get(path, pairs)
    stream.owns_connection = http2 is True
    stream.wait_for_head()
    return Events(stream)


def stream_path(topic: str, **query: Any) -> str:
    return f"/v0/topics/{topic}/stream" + (f"?{urlencode(query, doseq=True)}" if query else "")


def stream(client: Client, topic: str, last_id: str | None = None, *, how: Any = None, **query: Any) -> Events:
    """Open the stream of a topic; `how` holds arguments for `connect`."""
    return connect(client, stream_path(topic, **query), last_id, **(how or {})).opened()


class Session:
    """A watch session."""

    def __init__(self, client: Client, *names: str, topics: Any = None, lenient: object = None, **fields: Any) -> None:
        specs = {name: {} for name in names} | (topics or {})
        query = {} if lenient is None else {"lenient": str(lenient)}
        self.client = client
        self.answer = body_of(client.post("/v0/watch", params=query, json={"topics": specs, **fields}))
        self.wid: str = self.answer["wid"]

    def connect(self, last_id: str | None = None, **how: Any) -> Events:
        return connect(self.client, f"/v0/watch/{self.wid}", last_id, **how)

    def open(self, last_id: str | None = None, **how: Any) -> Events:
        return self.connect(last_id, **how).opened()


def watching(client: Client, *names: str, topics: Any = None, **fields: Any) -> Events:
    """A stream of a new session."""
    return Session(client, *names, topics=topics, **fields).open()


@contextmanager
def all_open(streams: Iterable[Events]) -> Iterator[list[Events]]:
    opened: list[Events] = []
    try:
        for one in streams:
            opened.append(one)
        yield opened
    finally:
        for one in opened:
            one.close()


# What frames say


class Covered:
    """What the frames of one topic say of each of its seqs: delivered, once, or announced as lost, or passed over.

    It asserts that the ranges of the frames join without a gap and without an overlap, also from one connection to the
    next when that one resumed where the other had ended; `resume` says where it begins otherwise.
    """

    def __init__(self, topic: str, start: int = 0, *, opaque: bool = False) -> None:
        self.topic = topic
        self.records: list[Any] = []
        self.tombstones: list[Any] = []
        self.caught_up: list[int] = []
        self.head = start
        self._opaque = opaque
        self._delivered: set[int] = set()
        self._lost: set[int] = set()
        self._start = self._told = self._at = start

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.records]

    @property
    def data(self) -> list[Any]:
        return [record["data"] for record in self.records]

    @property
    def reasons(self) -> list[str]:
        return [tombstone["reason"] for tombstone in self.tombstones]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return [(tombstone["gap_from"], tombstone["gap_to"]) for tombstone in self.tombstones]

    @property
    def at(self) -> int:
        """How far the topic is accounted for."""
        return self._at

    def resume(self, start: int) -> None:
        """The next frames begin here, and may tell again what was told before."""
        self._told = self._at = start
        self._delivered -= {seq for seq in self._delivered if seq > start}

    def take(self, frames: Iterable[Frame]) -> Covered:
        for frame in frames:
            if frame.topic == self.topic:
                getattr(self, "_take_" + frame.event.replace("-", "_"))(frame)
        return self

    def _take_record(self, frame: Frame) -> None:
        data = frame.data
        assert self._told <= data["from_seq"] <= self._at, (self._told, self._at, frame)
        assert self._delivered.isdisjoint(frame.seqs), frame
        self._delivered |= set(frame.seqs)
        self.records += data["records"]
        self._go_to(data["to_seq"], frame)

    def _take_tombstone(self, frame: Frame) -> None:
        data = frame.data
        self.tombstones.append(data)
        if data["reason"] == "recreated":
            assert (data["gap_from"], data["gap_to"]) == (1, data["head_seq"]), frame
            self._delivered.clear()
            self._lost.clear()
            # Reading starts at the earliest: what is before that has been told to be gone.
            self._told = 0
            self._start = self._at = data["earliest_seq"] - 1
            self.head = data["head_seq"]
            assert self._opaque or frame.cursors[self.topic] <= self._at, frame
            return
        assert self._told < data["gap_from"] <= self._at + 1, (self._told, self._at, frame)
        self._lost |= set(range(data["gap_from"], data["gap_to"] + 1))
        self._go_to(data["gap_to"], frame)

    def _take_caught_up(self, frame: Frame) -> None:
        self.caught_up.append(frame.data["head_seq"])
        assert frame.data["head_seq"] >= self._at, (self._at, frame)
        told = self._told
        self._go_to(frame.data["head_seq"], frame)
        self._told = told

    def _take_topic_deleted(self, frame: Frame) -> None:
        self.head = max(self.head, frame.data["head_seq"])

    def _go_to(self, seq: int, frame: Frame) -> None:
        self._told = self._at = seq
        assert frame.data["head_seq"] >= self.head, (self.head, frame)
        self.head = frame.data["head_seq"]
        assert self._opaque or frame.cursors[self.topic] == seq, (frame.cursors, frame)

    def check(self, head: int, silent: Iterable[int] = ()) -> None:
        """Every seq up to the head was delivered or announced as lost, or is known to have been passed over in silence.

        What was delivered cannot be lost as well: ranges do not overlap. What is silent may have been delivered before.
        """
        missing = set(range(self._start + 1, head + 1)) - self._delivered - self._lost - set(silent)
        assert not missing, (sorted(missing)[:20], self.gaps)
        assert self._at == head, (self._at, head)
        assert not [seq for seq in self._delivered if seq > head]


def covered(topic: str, frames: Iterable[Frame], start: int = 0, *, head: int, silent: Iterable[int] = ()) -> Covered:
    """What the frames say of a topic, which is everything of it up to its head."""
    accumulated = Covered(topic, start).take(frames)
    accumulated.check(head, silent)
    return accumulated


def gauge(client: Client, name: str) -> float:
    metrics = body_of(client.get("/v0/metrics", headers={"accept": "application/json"}))
    return float(metrics[name])
