"""Server-sent events: opening watch sessions, streams of a session, and streams of one topic (`docs/spec/api.md`
section 8).

Every refusal is answered with the error envelope, before the stream opens. After that the task of the request only
sends the frames in its outbox, and a heartbeat when there are none. `topics.engine.delivery` makes the frames.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import Literal

import trio

from topics.auth.keys import Scope
from topics.engine.delivery.feed import WITHDRAWN
from topics.engine.delivery.outbox import Outbox
from topics.engine.delivery.watch_session import WatchSession
from topics.engine.engine import Engine
from topics.engine.reach import STREAM_WAIT_S, KnownPlace, known_places
from topics.errors import ApiError, unauthorized
from topics.http.answer_types import WatchAnswer
from topics.http.answers.sse import EVENTS, HEADERS, OPENING, accepts_events, heartbeat, with_id
from topics.http.calls import Call, ConnectionSight, OpenAnswer, Response, encode
from topics.http.connections.connection import peer_of
from topics.http.connections.exchange import ClientGone
from topics.http.handlers.transports import event_transport
from topics.http.requests.watch_requests import decode_stream, decode_watch


class Streams:
    """The handlers of watch sessions and streams."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def open_watch(self, call: Call) -> Response:
        """`POST /v0/watch`."""
        engine = self._engine
        request = decode_watch(call.body, call.query, engine.settings)
        for name in request.topics:
            call.grant.check_name(name)
        covered = call.key.covered
        for prefix in request.prefixes:
            for part in covered(prefix):
                call.grant.check_prefix(part)
        # Before the session is made, because its answer says how far the topics are.
        await engine.reach.wait(known_places(request), trio.current_time() + STREAM_WAIT_S)
        await engine.routers.catch_up(engine.watch_sessions.names_of(request, covered))
        session, topics = engine.watch_sessions.open(engine.consumers.placed(request), call.key.digest, covered)
        await self._reach(session)
        answer = WatchAnswer(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=engine.settings.session_ttl_ms,
            topics=topics,
            performance=call.performance(engine.clock.perf_ns()),
        )
        return Response(200, encode(answer))

    async def watch(self, call: Call) -> EventStream:
        """`GET /v0/watch/{wid}`."""
        session = self._engine.watch_sessions.session(call.params["wid"])
        if session.owner != call.key.digest:
            raise unauthorized("this watch session was made with another key", token_shown=True)
        for name in session.names:
            call.grant.check_name(name)
        await self._engine.routers.catch_up([feed.name for feed in session.feeds])
        await self._reach(session)
        return await self._open(call, session, _last_event_id(call))

    async def stream(self, call: Call) -> EventStream:
        """`GET /v0/topics/{topic}/stream`."""
        topic = call.params["topic"]
        request = decode_stream(topic, call.query, self._engine.settings)
        await self._engine.routers.catch_up((topic,))
        request = self._engine.consumers.placed(request)
        session = self._engine.watch_sessions.stream_of(topic, request, _last_event_id(call))
        await self._reach(session)
        return await self._open(call, session, None)

    async def _reach(self, session: WatchSession) -> None:
        """On a standby, wait until it has got as far as the client has. Raises `503 behind`."""
        places = [KnownPlace(feed.name, feed.position) for feed in session.feeds]
        await self._engine.reach.wait(places, trio.current_time() + STREAM_WAIT_S)

    async def _open(self, call: Call, session: WatchSession, last_event_id: str | None) -> EventStream:
        if not accepts_events(call.headers.get(b"accept")):
            raise ApiError("not_acceptable", "this is a stream of text/event-stream")
        watch_sessions = self._engine.watch_sessions
        stream = EventStream(self._engine, session, call)
        transport = event_transport(call.exchange, stream.scope)
        try:
            stream.outbox = await watch_sessions.connect(session, EVENTS, with_id, transport, last_event_id)
        except BaseException:
            stream.place.close()
            raise
        return stream


def _last_event_id(call: Call) -> str | None:
    """The event id that the client has got last; None if there is none. A browser sends an empty one before the first
    id."""
    value = call.headers.get(b"last-event-id", b"")
    return value.decode("latin-1") or None


class OpenStream(OpenAnswer):
    """One open stream of events. Making it raises `429 throttled` if too many streams and sockets are open."""

    outbox: Outbox

    def __init__(self, engine: Engine, call: Call) -> None:
        self.place = engine.watch_sessions.places.take("sse", call.key.digest)
        self.key = call.key
        self.scope = trio.CancelScope()
        self._engine = engine
        self._call = call

    def close(self) -> None:
        """Give the stream's place back. A connection on which half a frame was sent is aborted."""
        self._call.connection.end_direct()
        self.place.close()

    @property
    def peer(self) -> str:
        """The address of the client."""
        return peer_of(self._call.connection)

    def withdraw(self) -> None:
        """Send a last frame that says that the key was withdrawn, and end the stream."""
        self.outbox.finish(WITHDRAWN)

    async def run(self) -> None:
        """Send the head and then frames until the stream ends. Raises ClientGone if the client has left or the stream
        was aborted."""
        call, exchange = self._call, self._call.exchange
        call.connection.allow_slow_reader()
        with self.scope:
            await exchange.begin(200, [*HEADERS, *call.answer_headers])
            await exchange.send(OPENING)
            await call.while_connected(self.send)
            await exchange.end()
        if self.scope.cancelled_caught:
            raise ClientGone

    @abstractmethod
    async def send(self) -> None:
        """Send frames until there will be no more of them."""

    def heartbeat(self) -> bytes:
        """The frame that is sent when nothing else was sent for a while."""
        return heartbeat(self._engine.clock.now_ms())


class EventStream(OpenStream):
    """The stream of a watch session."""

    def __init__(self, engine: Engine, session: WatchSession, call: Call) -> None:
        super().__init__(engine, call)
        self._session = session

    def close(self) -> None:
        """Close the stream and detach the session from it."""
        super().close()
        self._engine.watch_sessions.disconnect(self._session, self.outbox)

    @property
    def shows(self) -> tuple[Scope, Iterable[str]]:
        """The scope READ, and the topics and prefixes of the session."""
        return Scope.READ, self._session.names

    @property
    def sight(self) -> ConnectionSight:
        """Return the figures that operators see of the stream."""
        kind: Literal["stream", "watch"] = "watch" if self._session.wid else "stream"
        return ConnectionSight(kind, self.peer, self._session.names, self.outbox.lag, self.outbox.waiting_bytes)

    async def send(self) -> None:
        """Send the frames of the session until its outbox is finished."""
        await self.outbox.send_all(self._session.heartbeat_ms / 1000, self.heartbeat)
