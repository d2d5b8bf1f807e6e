"""One HTTP request as the gate sees it, whichever protocol it came by: its head, the rest of its body, and the way of
the answer to the client.

`topics.http.connections.lane` makes the exchanges of plain HTTP/1.1,
`topics.http.connections.protocols.asgi_exchange` those of everything that hypercorn serves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import Any, Final

from topics.http.connections.connection import Connection

Scope = MutableMapping[str, Any]
Headers = list[tuple[bytes, bytes]]

LISTS: Final = frozenset({b"accept", b"accept-encoding"})
"""Fields that are lists: repeated ones are joined. Of any other repeated field the last one counts."""


class ClientGone(Exception):
    """The client went away before it was answered, so there is nobody to answer."""


class Exchange(ABC):
    """One request, and the sending of its answer."""

    __slots__ = ("body_complete", "connection", "headers", "method", "query", "raw_path")

    http_version: str = "1.1"

    def __init__(
        self, connection: Connection, method: str, raw_path: bytes, query: bytes, headers: Mapping[bytes, bytes]
    ) -> None:
        self.connection = connection
        self.method = method
        self.raw_path = raw_path
        """The path, still percent-encoded."""
        self.query = query
        """The query, still percent-encoded."""
        self.headers = headers
        """The fields by their names in lower case."""
        self.body_complete = False
        """True if the whole body has been received."""

    @property
    def is_http2(self) -> bool:
        """Return True if the request shares its connection with others."""
        return self.http_version == "2"

    # -- the body ------------------------------------------------------------------------------------------------------

    def whole_body(self, most: int) -> bytes | None:
        """The whole body, which is received with this, if it is there already and has 1 to `most` bytes; else None."""
        return None

    @abstractmethod
    def receive_nowait(self) -> bytes | None:
        """The next piece of the body if it is there already, which spares a timer; else None. Raises ClientGone."""

    @abstractmethod
    async def receive(self) -> bytes:
        """Wait for the next piece of the body, which may be empty. Raises ClientGone. If this is cancelled, no piece is
        lost."""

    @abstractmethod
    async def until_hangup(self) -> None:
        """Wait until the client is seen to leave. May wait for ever: `Connection.ends_wait` has to be around it."""

    @abstractmethod
    def waits_for_continue(self) -> bool:
        """Return True if the client waits for `100 Continue` before it sends its body."""

    @abstractmethod
    async def ask_for_body(self) -> None:
        """Send `100 Continue` to a client that waits for it."""

    def bytes_of_unfinished_frame(self) -> int:
        """How many bytes of the body have come that `receive` does not return yet."""
        return 0

    # -- the answer ----------------------------------------------------------------------------------------------------

    @abstractmethod
    async def begin(self, status: int, headers: Headers) -> None:
        """Begin an answer: its head is sent with its first piece at the latest."""

    @abstractmethod
    async def send_head(self) -> None:
        """Send the head of an answer that has begun, if that has not been done, because the first piece may be long in
        coming."""

    @abstractmethod
    async def send(self, piece: bytes) -> None:
        """Send a piece of the body of the answer. If nothing can be sent any more, nothing happens."""

    @abstractmethod
    async def end(self) -> None:
        """End the answer after its last piece. An answer that is not ended is cut off."""

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a complete answer."""
        await self.begin(status, headers)
        await self.send(body)
        await self.end()

    def was_cut_off(self) -> bool:
        """Return True if the answer is known not to have been sent completely."""
        return self.connection.is_broken

    async def cut_off(self) -> None:
        """Give up the request, because its client is too slow."""
        self.connection.abort()

    # -- Quart ---------------------------------------------------------------------------------------------------------

    @abstractmethod
    def asgi_scope(self) -> Scope:
        """The scope of the request for an ASGI application."""
