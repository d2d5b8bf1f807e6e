"""One request on its way through the gate, and what may come back: the types that the gate and both planes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec
import trio
from msgspec import UNSET

from topics.auth.keys import OPEN, Key
from topics.auth.keys import Scope as KeyScope
from topics.errors import ApiError
from topics.http.answer_types import AppendAnswer
from topics.http.connections.connection import Connection
from topics.http.grants import Grant
from topics.http.routes import Route
from topics.model import AppendResult, Performance
from topics.runtime.withdrawal import interruptible

T = TypeVar("T")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

JSON: Final = b"application/json"

PROMPT_ANSWER: Final = 64 << 10
"""An answer of at most this is out of our hands at once: its request is over before it is sent, so that whoever asks
again on seeing it finds the place free. A longer one keeps its place until its reader has taken it, and is refused if
there is no room for it."""

encode: Final = msgspec.json.Encoder().encode


class ClientGone(Exception):
    """The client went away before it was answered. Nobody is to be told."""


@dataclass(slots=True)
class Response:
    """An answer in full. The gate adds what every response has."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    undelivered: Callable[[], None] | None = None
    """Called if the client is gone before all of it was sent: what it was given goes to others."""


class OpenAnswer(ABC):
    """An answer that is sent while it is made. The gate calls `run` and then, whatever happens, `close`."""

    key: Key
    in_flight = False
    """Whether its request counts as one in progress of its key until the end."""

    @property
    @abstractmethod
    def shows(self) -> tuple[KeyScope, Iterable[str]]:
        """What its key has to be good for: scopes, and the topics that it is about."""

    @abstractmethod
    async def run(self) -> None:
        """Send it, until it ends by itself, the client leaves (`ClientGone`), or it is aborted."""

    @abstractmethod
    def withdraw(self) -> None:
        """Its key is not good for it any more: it ends."""

    @abstractmethod
    def close(self) -> None:
        """It has ended."""


def json_response(value: Any, status: int = 200) -> Response:
    """A response of JSON."""
    return Response(status, encode(value))


def error_response(error: ApiError) -> Response:
    """The error envelope (`docs/spec/api.md` section 1)."""
    body = {"error": {"code": error.code, "message": error.message, "detail": error.detail}}
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    return Response(error.status, encode(body), headers=headers)


def with_line_end(response: Response) -> bytes:
    """The body of an answer as it goes out: JSON ends with a line end, so that a shell's prompt has its own line."""
    return response.body + b"\n" if response.content_type == JSON and response.body else response.body


def append_answer(result: AppendResult, performance: Performance, *, return_seqs: bool) -> bytes:
    """What an append is answered with, over whatever connection (`docs/spec/api.md` section 4)."""
    return encode(
        AppendAnswer(
            topic=result.topic,
            first_seq=result.first_seq,
            last_seq=result.last_seq,
            seqs=list(range(result.first_seq, result.last_seq + 1)) if return_seqs else UNSET,
            head_seq=result.head_seq,
            count=result.count,
            created=result.created,
            deduped=result.deduped,
            performance=performance,
        )
    )


class Call:
    """One request. Made by the gate; `route`, `params` and `body` are set by the time a plane sees it."""

    __slots__ = (
        "answer_charged",
        "answer_headers",
        "audited",
        "body",
        "body_complete",
        "charge",
        "entered",
        "grant",
        "headers",
        "held",
        "key",
        "params",
        "perf",
        "receive",
        "request_id",
        "route",
        "scope",
        "send",
        "started_ns",
        "waits",
    )

    def __init__(self, scope: Scope, receive: Receive, send: Send, started_ns: int) -> None:
        self.scope = scope
        self.receive = receive
        self.send = send
        self.started_ns = started_ns
        # Of repeated fields the last one counts, but for lists (Accept, Accept-Encoding), which are joined.
        self.headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            name = name.lower()
            earlier = self.headers.get(name) if name in _LISTS else None
            self.headers[name] = value if earlier is None else earlier + b", " + value
        self.request_id = ""
        self.answer_headers: list[tuple[bytes, bytes]] = []
        """What every answer to it carries."""
        self.key: Key = OPEN
        self.grant = _OPEN_GRANT
        """What the call needs its key for."""
        self.audited = False
        """Whether the audit log gets a line of it."""
        self.entered = False
        """Whether it counts as a request in progress of its key."""
        self.waits = False
        """Whether it has asked to wait for something."""
        self.route: Route | None = None
        self.params: Mapping[str, str] = {}
        self.body = b""
        self.body_complete = False
        """Everything that the client will send has been received."""
        self.charge: Callable[[int], None] = _uncharged
        """Told how many bytes its key has moved, where neither body nor answer is there as a whole."""
        self.held = 0
        """Bytes of the body that count against the budget of all requests."""
        self.answer_charged = 0
        """Bytes of the answer that are charged to the connection while it is made."""
        self.perf = Performance()

    def gathered(self, size: int) -> None:
        """So many bytes of the answer are there, or will be at once. Raises 429 if it is a large one that there is no
        room for (`topics.http.connections.unsent_bytes`). For calls that change nothing."""
        if size > PROMPT_ANSWER and size > self.answer_charged:
            refused = self.connection.why_not(size, self.key.digest, self.answer_charged)
            if refused is not None:
                try:
                    raise refused
                finally:
                    del refused  # or it and what was gathered would hold each other, until the collector comes
            self.charge_answer(size)

    def charge_answer(self, size: int) -> None:
        """From here on so many bytes of the answer are charged; 0: it is not there, or is charged while it is sent."""
        if self.answer_charged:
            self.connection.give_back_charge(self.answer_charged, self.key.digest)
        self.answer_charged = size
        if size:
            self.connection.charge(size, self.key.digest)

    @property
    def method(self) -> str:
        method: str = self.scope["method"]
        return method

    @property
    def query(self) -> bytes:
        query: bytes = self.scope["query_string"]
        return query

    def performance(self, now_ns: int) -> Performance:
        """The `performance` block, with the time since the request began."""
        self.perf.server_total_ms = round((now_ns - self.started_ns) / 1e6, 3)
        return self.perf

    async def while_connected(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()`, cancelling it and raising `ClientGone` when the client goes away.

        For waits without side effects. Raises 401 or 403 when the key of the call is withdrawn meanwhile. A client that
        has only ended its side of an HTTP/1.1 connection may still be answered (`may_be_answered`), but is not waited
        for.
        """
        self.waits = True
        failure: Exception | None = None
        answered = False

        async def watch(scope: trio.CancelScope) -> None:
            while (await self.receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

        with interruptible():
            async with trio.open_nursery() as nursery:
                # The reader that would tell of the client's end may be paused.
                with self.connection.ends_wait(nursery.cancel_scope):
                    nursery.start_soon(watch, nursery.cancel_scope)
                    try:
                        result = await function()
                        answered = True
                    except Exception as error:
                        failure = error
                    nursery.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # it holds this frame, and what was gathered for the answer
        if not answered:
            raise ClientGone
        return result

    @property
    def connection(self) -> Connection:
        """What it came over."""
        connection: Connection = self.scope["state"]["connection"]
        return connection

    def may_be_answered(self) -> bool:
        """Return True if a client that is gone may only have ended its side, and may still read an answer."""
        connection = self.connection
        return self.scope["http_version"] != "2" and connection.has_left and not connection.is_broken


def _uncharged(size: int) -> None:
    """Nobody counts."""


_OPEN_GRANT: Final = Grant(OPEN)

_LISTS: Final = frozenset({b"accept", b"accept-encoding"})
