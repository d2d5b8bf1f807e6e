"""Server-sent events: opening a watch session, showing it, and streams of one topic (`api.md` section 8).

Everything that can be refused is refused before a stream opens, with the error envelope. From then on the task of the
request does nothing but take frames from its outbox and send them, with a heartbeat when there are none; what the
frames hold and who gets which is `topics.watching`'s business.
"""

from __future__ import annotations

from typing import Final

import msgspec
import trio

from topics.errors import ApiError
from topics.http.calls import Call, ClientGone, Engine, Response, encode
from topics.http.server import Connection
from topics.http.sse import EVENTS, HEADERS, OPENING, accepts_events, heartbeat, with_id
from topics.http.watch_requests import decode_stream, decode_watch
from topics.model import Performance, WatchedTopic
from topics.watching.outbox import Outbox
from topics.watching.sessions import Session

PIECE_BYTES: Final = 64 << 10
"""Sent at a time: a client that takes so much has made progress."""


class _WatchAnswer(msgspec.Struct, kw_only=True):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance


class Streams:
    """The handlers."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open_watch(self, call: Call) -> Response:
        """`POST /v0/watch`."""
        engine = self._engine
        request = decode_watch(call.body, call.query, engine.settings)
        session, topics = engine.watching.open(request)
        answer = _WatchAnswer(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=engine.settings.session_ttl_ms,
            topics=topics,
            performance=call.performance(engine.clock.perf_ns()),
        )
        return Response(200, encode(answer))

    async def watch(self, call: Call) -> EventStream:
        """`GET /v0/watch/{wid}`."""
        session = self._engine.watching.session(call.params["wid"])
        return await self._open(call, session, _last_event_id(call))

    async def stream(self, call: Call) -> EventStream:
        """`GET /v0/topics/{topic}/stream`."""
        topic = call.params["topic"]
        request = decode_stream(topic, call.query, self._engine.settings)
        session = self._engine.watching.stream_of(topic, request, _last_event_id(call))
        return await self._open(call, session, None)

    async def _open(self, call: Call, session: Session, last_event_id: str | None) -> EventStream:
        if not accepts_events(call.headers.get(b"accept")):
            raise ApiError("not_acceptable", "this is a stream of text/event-stream")
        watching = self._engine.watching
        watching.admit_connection()
        stream = EventStream(self._engine, session, call)
        watching.sse_connections += 1
        try:
            stream.outbox = await watching.connect(session, EVENTS, with_id, stream.abort, stream.acked, last_event_id)
        except BaseException:
            watching.sse_connections -= 1
            raise
        return stream


def _last_event_id(call: Call) -> str | None:
    """An empty one is what a browser has before the first id: none."""
    value = call.headers.get(b"last-event-id", b"")
    return value.decode("latin-1") or None


class EventStream:
    """One open stream. The gate calls `run` and then, whatever happens, `close`."""

    outbox: Outbox

    def __init__(self, engine: Engine, session: Session, call: Call) -> None:
        self._engine = engine
        self._session = session
        self._call = call
        self._scope = trio.CancelScope()

    def abort(self) -> None:
        """End it at once, whatever of it is unsent."""
        if self._call.scope["http_version"] == "2":
            self._scope.cancel()  # the connection may well carry other streams
        else:
            connection: Connection = self._call.scope["state"]["connection"]
            connection.abort()

    def acked(self) -> int:
        """Bytes that the client has acknowledged; 0 where streams share a connection."""
        if self._call.scope["http_version"] == "2":
            return 0
        connection: Connection = self._call.scope["state"]["connection"]
        return connection.acked()

    def close(self) -> None:
        """The session has no connection any more."""
        watching = self._engine.watching
        watching.sse_connections -= 1
        watching.disconnect(self._session)

    async def run(self) -> None:
        """Send frames until the session ends, the client leaves (`ClientGone`), or the stream is aborted."""
        call = self._call
        connection: Connection = call.scope["state"]["connection"]
        connection.allow_slow_reader()
        with self._scope:
            headers = [*HEADERS, (b"x-request-id", call.request_id.encode())]
            await call.send({"type": "http.response.start", "status": 200, "headers": headers})
            await call.while_connected(self._send)
        if self._scope.cancelled_caught:
            raise ClientGone

    async def _send(self) -> None:
        outbox, send = self.outbox, self._call.send
        pause_s = self._session.heartbeat_ms / 1000
        await send({"type": "http.response.body", "body": OPENING, "more_body": True})
        while True:
            entries = None
            with trio.move_on_after(pause_s):
                entries = await outbox.take()
            if entries is None:
                if not outbox.closing:
                    outbox.put(heartbeat(self._engine.clock.now_ms()))
                continue
            if not entries:
                break
            data = entries[0].data if len(entries) == 1 else b"".join(entry.data for entry in entries)
            for at in range(0, len(data), PIECE_BYTES):
                await send({"type": "http.response.body", "body": data[at : at + PIECE_BYTES], "more_body": True})
                outbox.progressed()
            outbox.sent()
        await send({"type": "http.response.body", "body": b"", "more_body": False})
