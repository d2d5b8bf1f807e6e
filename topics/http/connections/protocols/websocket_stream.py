"""WebSockets over HTTP/1.1 and HTTP/2: hypercorn's stream with a bound on the memory of messages."""

from __future__ import annotations

from typing import Any, Final, cast

import trio
from hypercorn.protocol.events import Body, Data, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from wsproto.connection import ConnectionState as ConnectionPhase
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from topics.http.connections.body_timeouts import BODY_BYTES_PER_S, BODY_GRACE_S, BODY_IDLE_S
from topics.http.connections.connection import Connection
from topics.http.connections.message_buffer import MessageBuffer

# Events that are handled before other tasks have a turn: about 2 ms.
_EVENTS_AT_ONCE: Final = 32


class WebSocketStream(WSStream):
    """Closes a socket with invalid frames or invalid UTF-8 with the right close code, where hypercorn just hangs up.
    Counts the bytes of messages, where hypercorn counts characters, against the budget of all requests, as they come.

    The handler gets a message, text as `utf8`, with its `size`, which the handler gives back. If there is no room for a
    message, the handler gets one with `refused` in its place. The next message is received only when the handler asks
    for it (`take_next_message`): if a client does not read its answers, its further messages wait on its own side.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._message = MessageBuffer()
        self._size = 0
        """Bytes of the present message that have come."""
        self._held = 0
        """Bytes of it that count against the budget."""
        self._refused = False
        """There was no room for the present message."""
        self._may_take = trio.Event()
        self._may_take.set()
        self._began = self._seen = 0.0
        """When the first and the last bytes of the present message came (Trio's clock)."""
        self._decided = trio.Event()
        """Set when the handler has accepted or refused the socket."""

    async def handle(self, event: StreamEvent) -> None:
        """Take an event of the stream."""
        if isinstance(event, Body | Data) and not self.closed:
            # Hypercorn would refuse the socket by itself if data came before the handler has accepted it.
            await self._decided.wait()
            if self.state is not ASGIWebsocketState.CONNECTED or self.connection.state is ConnectionPhase.CLOSED:
                return
        try:
            await super().handle(event)
        except trio.BrokenResourceError:
            pass  # the handler has ended (`stop_receiving`)
        finally:
            if isinstance(event, StreamClosed):
                self._forget()

    def is_late(self, now: float) -> bool:
        """Return True if the rest of a message that has begun should have come by `now` (Trio's clock)."""
        if not self._size:
            return False
        in_all = max(BODY_GRACE_S, self._size / BODY_BYTES_PER_S)
        return now - self._seen > BODY_IDLE_S or now - self._began > in_all

    def take_next(self) -> None:
        """Let the next message in: the handler has carried out the present one."""
        self._may_take.set()

    @property
    def _connection(self) -> Connection:
        return cast(Connection, self.scope["state"]["connection"])

    def _forget(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._connection.give_back(held)

    async def _take_in(self, event: Message[Any]) -> None:
        """Take in a message, or a fragment of one."""
        size = _bytes_of(event)
        if not self._size:
            await self._may_take.wait()
            self._began = trio.current_time()
        self._seen = trio.current_time()
        self._size += size
        if self._refused or (size and not await self._connection.hold(size)):
            self._refused = True
            self._message.clear()
            self._forget()
        else:
            self._held += size
            self._message.extend(event)
        if not event.message_finished:
            return
        message: Any = {"type": "websocket.receive", "refused": True}
        if not self._refused:
            content, is_text = self._message.take()
            message = {"type": "websocket.receive", "utf8" if is_text else "bytes": content, "size": self._held}
        self._message.clear()
        held, self._size, self._held, self._refused = self._held, 0, 0, False
        self._may_take = trio.Event()
        assert self.app_put is not None
        try:
            await self.app_put(message)
        except BaseException:
            self._connection.give_back(held)
            raise

    async def app_send(self, message: Any) -> None:
        """Take a message that the handler sends; None when the handler has ended."""
        try:
            # Before sending: a refusal may have to wait for the client's window, and the reader must not wait for that.
            if message is None or message["type"] != "websocket.accept":
                self._decided.set()
            if message is None:
                self._may_take.set()  # the handler has ended
            await super().app_send(message)
        finally:
            self._decided.set()

    async def _handle_events(self) -> None:
        for number, event in enumerate(self.connection.events(), 1):
            # One read may hold ten thousand frames.
            if number % _EVENTS_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
                if self.closed:
                    return
            if isinstance(event, Message):
                if self._size + _bytes_of(event) > self.config.websocket_max_message_size:
                    await self._send_wsproto_event(CloseConnection(code=CloseReason.MESSAGE_TOO_BIG))
                    await self.send(StreamClosed(stream_id=self.stream_id))
                    return
                await self._take_in(event)
            elif isinstance(event, Ping):
                await self._send_wsproto_event(event.response())
            elif isinstance(event, CloseConnection):
                if self.connection.state is ConnectionPhase.REMOTE_CLOSING:
                    await self._send_wsproto_event(event.response())
                elif self.connection.state is ConnectionPhase.OPEN:
                    await self._send_wsproto_event(CloseConnection(code=event.code))  # a frame could not be parsed
                await self.send(StreamClosed(stream_id=self.stream_id))


def _bytes_of(event: Message[Any]) -> int:
    return len(event.data.encode()) if isinstance(event.data, str) else len(event.data)


def take_next_message(send: Any) -> None:
    """Let the next message of a WebSocket in. `send` is what its handler was given."""
    stream = send.__self__
    assert isinstance(stream, WebSocketStream)
    stream.take_next()


def message_is_late(send: Any) -> bool:
    """Return True if the peer of a WebSocket takes too long over a message. `send` is what its handler was given."""
    stream = send.__self__
    assert isinstance(stream, WebSocketStream)
    return stream.is_late(trio.current_time())


async def send_ping(send: Any) -> None:
    """Ping the peer of a WebSocket. `send` is what its handler was given.

    ASGI has no message for it. Hypercorn's own pings come from a task that outlives the socket by an interval, which
    would delay a drain.
    """
    stream = send.__self__
    assert isinstance(stream, WSStream)
    await stream._send_wsproto_event(Ping())
