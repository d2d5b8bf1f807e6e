"""WebSockets over either version: hypercorn's stream, which takes in no more than the budget gives."""

from __future__ import annotations

from typing import Any, Final, cast

import trio
from hypercorn.protocol.events import Body, Data, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.ws_stream import ASGIWebsocketState, WSStream
from wsproto.connection import ConnectionState as ConnectionPhase
from wsproto.events import CloseConnection, Message, Ping
from wsproto.frame_protocol import CloseReason

from topics.http.connections.connection import Connection
from topics.http.connections.message_buffer import MessageBuffer
from topics.http.connections.patience import BODY_BYTES_PER_S, BODY_GRACE_S, BODY_IDLE_S

# Events of a WebSocket between two looks at the others: about 2 ms.
_EVENTS_AT_ONCE: Final = 32


class WebSocketStream(WSStream):
    """Answers what is no WebSocket, or no UTF-8, with a close that says so, where hypercorn hangs up; counts the bytes
    of messages, where hypercorn counts characters; and takes them in against the budget of all requests as they come.

    The application gets a message, text as `utf8`, with its `size`, which it gives back, or in place of one that there
    was no room for one that is `refused`. The next one is not taken in before it asks for it (`take_next_message`):
    what a client sends that reads no answers waits in the client, and not in the memory of all.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._message = MessageBuffer()
        self._size = 0
        """Of the message that has begun."""
        self._held = 0
        """Of that, taken in."""
        self._refused = False
        """There was no room for it."""
        self._may_take = trio.Event()
        self._may_take.set()
        self._began = self._seen = 0.0
        """When the first and the last of it came."""
        self._decided = trio.Event()
        """Whether it is accepted has been said."""

    async def handle(self, event: StreamEvent) -> None:
        if isinstance(event, Body | Data) and not self.closed:
            # Hypercorn would take what comes before the answer for a reason to refuse, behind the application's back.
            await self._decided.wait()
            if self.state is not ASGIWebsocketState.CONNECTED or self.connection.state is ConnectionPhase.CLOSED:
                return
        try:
            await super().handle(event)
        except trio.BrokenResourceError:
            pass  # the application has ended (`stop_receiving`)
        finally:
            if isinstance(event, StreamClosed):
                self._forget()

    def is_late(self, now: float) -> bool:
        """Whether a message has begun whose rest should have come by now."""
        if not self._size:
            return False
        in_all = max(BODY_GRACE_S, self._size / BODY_BYTES_PER_S)
        return now - self._seen > BODY_IDLE_S or now - self._began > in_all

    def take_next(self) -> None:
        """The application has carried out what it was given."""
        self._may_take.set()

    @property
    def _connection(self) -> Connection:
        return cast(Connection, self.scope["state"]["connection"])

    def _forget(self) -> None:
        held, self._held = self._held, 0
        if held:
            self._connection.give_back(held)

    async def _take_in(self, event: Message[Any]) -> None:
        """A message or a part of one that is not too large."""
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
        try:
            # A refusal may have to wait for the client's window, and the reader must not wait for a refusal.
            if message is None or message["type"] != "websocket.accept":
                self._decided.set()
            if message is None:
                self._may_take.set()  # the application has ended
            await super().app_send(message)
        finally:
            self._decided.set()

    async def _handle_events(self) -> None:
        for number, event in enumerate(self.connection.events(), 1):
            # A read may hold ten thousand frames.
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
                    await self._send_wsproto_event(CloseConnection(code=event.code))  # it could not be parsed
                await self.send(StreamClosed(stream_id=self.stream_id))


def _bytes_of(event: Message[Any]) -> int:
    return len(event.data.encode()) if isinstance(event.data, str) else len(event.data)


def take_next_message(send: Any) -> None:
    """The application of a WebSocket wants another message; `send` is what it was given."""
    stream = send.__self__
    assert isinstance(stream, WebSocketStream)
    stream.take_next()


def message_is_late(send: Any) -> bool:
    """Whether the peer of a WebSocket takes too long over a message; `send` is what its application was given."""
    stream = send.__self__
    assert isinstance(stream, WebSocketStream)
    return stream.is_late(trio.current_time())


async def send_ping(send: Any) -> None:
    """Ping the peer of a WebSocket; `send` is what its application was given.

    ASGI has no message for it, and hypercorn's own pings come from a task that outlives the socket by an interval,
    which would hold up a drain.
    """
    stream = send.__self__
    assert isinstance(stream, WSStream)
    await stream._send_wsproto_event(Ping())
