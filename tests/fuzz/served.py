"""Targets of the whole server: the bytes of a connection, as a socket brings them, and what is answered.

A real engine with topics, jobs and a router stands behind it, on a simulated disk and clock. The daemon never says that
something has failed that nobody thought of, and no answer of HTTP/1.1 has another status than 1xx, 2xx, 4xx or 503.
Afterwards a request that is right is answered as ever.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from random import Random
from typing import Any, Final
from unittest.mock import patch

import msgspec
import trio

from tests.conformance.websocket import raw_frame
from tests.fuzz import machines, mutations
from tests.fuzz.connection_bytes import drawn_request
from tests.fuzz.machines import Hand
from tests.fuzz.target import Target
from tests.simulation.disk import SimFs
from tests.simulation.lives import end_steps
from tests.simulation.world import Life, World
from topics.auth.keys import parse_keys
from topics.http.app import make_app
from topics.http.connections.server import open_listener, port_of, serve
from topics.http.handlers.bulk import Arrow

SERVED: Final = replace(
    machines.LOGGED,
    max_body_bytes=16 << 10,
    max_record_bytes=4096,
    max_topics=30,
    allowed_hosts=("a",),
    max_watch_sessions=10,
    wal_file_bytes=64 << 10,
)
GUARDED: Final = replace(SERVED, api_keys=parse_keys("secret:rw:orders|jobs,other:a"))

FAILED: Final = frozenset(
    {
        "request_failed",
        "stream_failed",
        "socket_failed",
        "command_failed",
        "connection_failed",
        "vital_task_failed",
        "background_task_failed",
    }
)
"""What the daemon says of an exception that nobody thought of."""

ANSWER_BYTES: Final = 4 << 20
PATIENCE_S: Final = 600.0
"""On the simulated clock: every timeout of the server is over by then."""

QUIET_S: Final = 3.0
"""On the same clock: what was going to come has come."""

_STATUS: Final = re.compile(rb"HTTP/1\.1 (\d\d\d) ")
_MASKED: Final = re.compile(
    rb"(?mi)^(?:date: [^\r]*|x-request-id: [0-9a-f]{16}|transfer-encoding: chunked)\r\n"
    rb"|\"[a-z_]+_(?:ms|ts)\":[0-9.e+-]+|(?:lease|wid)_[A-Za-z0-9_-]+"
)
"""What differs between two answers: dates, ids, times, and the place of one field among the others."""
_ASK: Final = b"GET /v0/health HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"


class _Heard(list[dict[str, Any]]):
    """What the daemon says, with what had been raised."""

    def append(self, event: dict[str, Any]) -> None:
        if event.get("exc_info"):
            event["raised"] = traceback.format_exc()
        super().append(event)


@cache
def _machine() -> SimFs:
    """A daemon that has served for a while, and was stopped."""
    world = World(config=SERVED)

    async def fill(life: Life) -> None:
        hand = Hand(life)
        await hand.put("orders", durability="fsync")
        await hand.some("orders", 5)
        await hand.put("jobs", type="queue", lease_ms=60_000)
        await hand.some("jobs", 3)
        await hand.router("copying", "orders", "copies", start="earliest")
        await trio.sleep(1)

    assert world.live(fill)
    return world.fs.after_machine_crash("keep", 0)


def _talk(config: Any, data: bytes) -> bytes:
    """One connection that sends these bytes, and no more; then another one with a request that is right. Returns what
    was answered to the first."""
    world = World(config=config, fs=_machine().after_process_kill())
    world.events = _Heard()
    answers: list[bytes] = []

    async def scenario(life: Life) -> None:
        gate = make_app(life.engine)
        sockets = open_listener("127.0.0.1", 0)
        async with trio.open_nursery() as nursery:
            lane = gate.handle if config.http_lane else None
            await nursery.start(serve, gate, sockets, life.engine.settings, lane)
            for request in (data, _ASK):
                answers.append(await _exchange(port_of(sockets), request))
            nursery.cancel_scope.cancel()
        end_steps(life)

    assert world.live(scenario, end="kill")
    for event in world.events:
        assert event["event"] not in FAILED, f"{event['event']}: {event.get('raised') or event}"
    for answer in answers:
        for status in map(int, _STATUS.findall(answer)):
            assert status < 500 or status == 503, f"an answer with {status}"
    assert answers[1].startswith(b"HTTP/1.1 200 "), "the next request is not answered"
    return answers[0]


def _take(config: Any, data: bytes) -> None:
    _talk(config, data)


async def _arrow_at_once(arrow: Arrow) -> bool:
    """Load Arrow as an export does, but not in a thread: on the simulated clock no time passes for one."""
    with suppress(ImportError):
        arrow._module = import_module("topics.http.answers.arrow_stream")
        arrow._module.load()
        return True
    return False


def _both_ways(data: bytes) -> None:
    """The same with the lane and without it, which has the same answers, up to the close. Here are streams and exports,
    which the fake engine of `lane_differences` does not have."""
    with patch.object(Arrow, "is_there", _arrow_at_once):
        ours, theirs = (_MASKED.sub(b"", _talk(replace(SERVED, http_lane=lane), data)) for lane in (True, False))
    # Ids and figures in compressed heads or in frames; what a router has copied by then, which is done beside requests.
    if any(word in data.lower() for word in (b"http/2", b"upgrade", b"copies", b"metrics")):
        return
    assert ours == theirs, f"the lane answers\n{ours!r}\nand hypercorn\n{theirs!r}"


async def _exchange(port: int, request: bytes) -> bytes:
    """Send a request, and when nothing more comes say that there is no more; all that was received."""
    answer = b""
    async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
        with trio.move_on_after(PATIENCE_S), suppress(trio.BrokenResourceError):
            await stream.send_all(request)
            answer = await _received(stream)
            await stream.send_eof()
            answer += await _received(stream)
    return answer


async def _received(stream: trio.SocketStream) -> bytes:
    """What comes until nothing has come for `QUIET_S`, or to the end."""
    answer = bytearray()
    while len(answer) < ANSWER_BYTES:
        part = b""
        with trio.move_on_after(QUIET_S):
            part = await stream.receive_some(1 << 16)
        if not part:
            break
        answer += part
    return bytes(answer)


# ----------------------------------------------------------------- messages of a WebSocket

_UPGRADE: Final = (
    b"GET /v0/ws HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


def _messages(data: bytes) -> None:
    """Every line is a message: text, or binary where it is no UTF-8."""
    sent = [_UPGRADE]
    for line in data.split(b"\n")[:20]:
        try:
            line.decode()
            sent.append(raw_frame(1, line))
        except UnicodeDecodeError:
            sent.append(raw_frame(2, line))
    _talk(SERVED, b"".join(sent) + raw_frame(8, b"\x03\xe8"))


def _vary_message(data: bytes, where: int, what: int) -> bytes:
    """One value of one message changed."""
    lines = data.split(b"\n")
    i = where % len(lines)
    lines[i] = mutations.vary_json(lines[i], where // len(lines), what)
    return b"\n".join(lines)


def _add_request(data: bytes, where: int, what: int) -> bytes:
    """Another request behind these bytes."""
    return data + drawn_request(Random(where << 16 | what), 0.03)


# ----------------------------------------------------------------- ids of events


def _last_event_id(data: bytes) -> None:
    """An id that a client comes back with, for a stream and for a watch, each as a header can hold it."""
    value = bytes(byte if 0x20 < byte < 0x7F else 0x2E for byte in data)
    _talk(SERVED, b"GET /v0/topics/orders/stream HTTP/1.1\r\nhost: a\r\nlast-event-id: %b\r\n\r\n" % value)
    world = World(config=SERVED, fs=_machine().after_process_kill())

    async def scenario(life: Life) -> None:
        _watch_ids(life, value.decode())
        end_steps(life)

    assert world.live(scenario, end="kill")


def _watch_ids(life: Life, value: str) -> None:
    """The same of a session of several topics, which writes its ids in another form."""
    from tests.fuzz.asked import checked  # noqa: PLC0415 (a name of the same kind as ours)
    from topics.model import WatchRequest, WatchStart  # noqa: PLC0415

    names = ("orders", "jobs", "copies")
    session, _ = life.engine.watch_sessions.open(WatchRequest(topics={name: WatchStart() for name in names}))
    cursors = checked(partial(session.read_id, value))
    if cursors is not None:
        session.rewind(cursors)


# ----------------------------------------------------------------- seeds


def _request(line: bytes, body: bytes = b"", *headers: bytes) -> bytes:
    fields = [b"host: a", *headers]
    if body:
        fields += [b"content-type: application/json", b"content-length: %d" % len(body)]
    return line + b" HTTP/1.1\r\n" + b"\r\n".join(fields) + b"\r\n\r\n" + body


def _requests() -> list[bytes]:
    encode = msgspec.json.encode
    append = encode({"records": [{"data": {"a": 1}, "tag": "t"}], "config": {"durability": "fsync"}})
    watch = encode({"topics": {"orders": {"from_seq": 1}, "copies": {"tail": True}}})
    claim = encode({"node": "n", "max": 2})
    lines = b'{"data":1}\n{"data":2,"tag":"t"}\n'
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(lines), lines)
    return [
        _request(b"POST /v0/topics/orders", append, b"idempotency-key: k") + _request(b"GET /v0/topics/orders/diff"),
        _request(b"PUT /v0/topics/new", encode({"ttl_ms": 5, "cap_records": 3}), b"authorization: Bearer secret"),
        _request(b"POST /v0/topics/orders/diff", encode({"from_seq": 1, "wait_ms": 5, "node": ["n"]})),
        _request(b"POST /v0/topics/orders/delete", encode({"match": ["tag", "Glob", "t*"], "before_seq": 3})),
        _request(b"POST /v0/topics/jobs/claim", claim) + _request(b"GET /v0/topics/jobs/work?node=m&max=1"),
        _request(b"POST /v0/topics/jobs/ack", encode({"node": "n", "seqs": [1], "lease_ids": ["lease_1"]})),
        _request(b"PUT /v0/routers/more", encode({"source": "orders", "dest": "rest", "filter": ["tag", "Eq", "t"]})),
        _request(b"POST /v0/watch", watch) + _request(b"GET /v0/watch/wid_x", b"", b"last-event-id: e30"),
        _request(b"GET /v0/topics/orders/stream?from_seq=1&token=secret", b"", b"accept: text/event-stream"),
        _request(b"GET /v0/topics/orders/records?match=t%2A&to_ts=9", b"", b"accept-encoding: gzip;q=0.5"),
        b"POST /v0/topics/orders?stage=s1 HTTP/1.1\r\nhost: a\r\ncontent-type: application/x-ndjson\r\n"
        b"transfer-encoding: chunked\r\n\r\n" + chunked,
        b"POST /v0/topics/orders?tag=t&meta=%7B%22k%22%3A%22v%22%7D&fence=null HTTP/1.1\r\nhost: a\r\n"
        b'content-type: Image/Png; a="b c"\r\ncontent-length: 3\r\n\r\n\x00\xff\n'
        + _request(b"GET /v0/topics/orders/records/1", b"", b"accept: image/*, */*;q=0.5"),
        _request(b"POST /v0/topics/orders/commit", encode({"stages": ["s1"], "idempotency_key": "q/1"})),
        _request(b"GET /v0/topics?prefix=o&page_size=1&cursor=dDphYQ", b"", b"x-request-id: one", b"origin: http://b"),
        _request(b"OPTIONS /v0/topics/orders") + _request(b"DELETE /v0/topics/copies?if_empty=1"),
        _UPGRADE + raw_frame(1, b'{"op":"ping"}') + raw_frame(9, b"x") + raw_frame(8, b"\x03\xe8"),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _HTTP2,
    ]


# SETTINGS, and HEADERS of `GET /v0/health`: of the static table but for the path.
_HTTP2: Final = (
    bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
    + bytes((0, 0, 17, 1, 5, 0, 0, 0, 1))
    + b"\x82\x86\x04\x0a/v0/health\x41\x01a"
    + bytes((0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 0, 0, 9))
)


def _socket_messages() -> list[bytes]:
    encode = msgspec.json.encode
    return [
        b"\n".join(map(encode, messages))
        for messages in (
            [{"op": "ping", "request_id": "one"}, {"op": "subscribe", "topic": "orders", "from_seq": 1}],
            [
                {"op": "subscribe", "topics": {"orders": {"tail": True}, "copies": {}}, "include_data": False},
                {"op": "publish", "topic": "orders", "records": [{"data": 1, "tag": "t"}], "idempotency_key": "k"},
                {"op": "unsubscribe", "topics": ["orders"]},
            ],
            [{"op": "publish", "topic": "new", "records": [{"data": 1}], "config": {"cap_records": 3}}],
        )
    ]


_IDS: Final = (
    b"eyJvcmRlcnMiOjF9",  # {"orders":1}
    b"WzEsbnVsbCwyXQ",  # [1,null,2]
    b"eyJvcmRlcnMiOjEsImpvYnMiOjJ9CSA",  # with white space behind it
)


def _served(
    name: str, about: str, take: Callable[[bytes], None], seeds: Callable[[], Sequence[bytes]], **more: Any
) -> Target:
    return Target(
        name,
        about,
        take,
        seeds,
        base_bytes=16 << 20,
        factor=1000,
        examples=12,
        slow=True,
        modules=("topics.http",),
        **more,
    )


TARGETS: Final[tuple[Target, ...]] = (
    _served("connection", "the bytes of a connection", partial(_take, SERVED), _requests),
    _served("guarded", "the same where keys are needed", partial(_take, GUARDED), _requests),
    _served("both-ways", "the same with the lane and without it", _both_ways, _requests, vary=_add_request),
    _served("messages", "messages of a WebSocket", _messages, _socket_messages, vary=_vary_message),
    _served(
        "last-event-id",
        "the id that a client of a stream comes back with",
        _last_event_id,
        lambda: _IDS,
        most_bytes=512,
    ),
)
