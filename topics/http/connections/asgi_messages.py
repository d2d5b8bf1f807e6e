"""The messages that an ASGI application receives and sends, and the bytes that it has not received."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import trio

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def receive_nowait(receive: Any) -> Any | None:
    """The next message for an ASGI application, if it is there already; else None."""
    channel = getattr(receive, "__self__", None)
    if isinstance(channel, trio.MemoryReceiveChannel):
        with suppress(trio.WouldBlock, trio.EndOfChannel):
            return channel.receive_nowait()
    return None


def stop_receiving(receive: Any) -> int:
    """Drop the messages of a WebSocket whose handler has ended. Returns the bytes of those that were waiting for it.

    Without this the reader of the connection would wait for ever for room in the queue of the handler.
    """
    left = 0
    while (message := receive_nowait(receive)) is not None:
        left += message.get("size", 0)
    receive.__self__.close()
    return left
