"""One request on its way through the gate, and its answer: the types that the gate and the handlers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import trio
from msgspec import UNSET, UnsetType

from topics.auth.keys import OPEN, Key
from topics.auth.keys import Scope as KeyScope
from topics.errors import ApiError, invalid, timed_out
from topics.http.answer_types import AppendAnswer
from topics.http.connections.connection import Connection
from topics.http.connections.exchange import ClientGone, Exchange
from topics.http.grants import Grant
from topics.http.routes import Route
from topics.model import AppendResult, Performance
from topics.runtime.withdrawal import interruptible

T = TypeVar("T")

JSON: Final = b"application/json"

PROMPT_ANSWER: Final = 64 << 10
"""Bytes of an answer that fits into the buffers of the system, so that sending it does not wait. Its request is over
before it is sent: a client that sends its next request on seeing the answer finds its place free. A longer answer keeps
its place until it has been sent, and is refused if there is no memory for it."""

NOT_MODIFIED: Final = 304
"""The status of an answer without a body: the client has it already (`topics.http.entity_tags`)."""

encode: Final = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Response:
    """A complete answer. The gate adds the headers that every answer has."""

    status: int
    body: bytes
    content_type: bytes = JSON
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    undelivered: Callable[[], None] | None = None
    """Called if the client is gone before all of the answer was sent, to give back what the answer gives the client
    (leased jobs)."""


class ConnectionSight(NamedTuple):
    """The figures that operators see of an open stream, socket or export: the names of its topics, how many of their
    records were not sent yet, and the bytes of frames that wait to be sent."""

    kind: Literal["stream", "watch", "socket", "work", "export"]
    peer: str
    topics: Sequence[str]
    lag: int
    waiting_bytes: int


class OpenAnswer(ABC):
    """An answer that is sent while it is made: a stream or an export. The gate calls `run` and then `close`, also after
    an error."""

    key: Key
    in_flight = False
    """True if its request counts as one in progress of its key until the end of the answer."""

    @property
    @abstractmethod
    def shows(self) -> tuple[KeyScope, Iterable[str]]:
        """The scopes that its key must have, and the topics that the key must cover."""

    @property
    @abstractmethod
    def sight(self) -> ConnectionSight:
        """Return the figures that operators see of it."""

    @abstractmethod
    async def run(self) -> None:
        """Send the answer until it ends. Raises ClientGone if the client has left or the connection was aborted."""

    @abstractmethod
    def withdraw(self) -> None:
        """End the answer, because its key no longer allows it."""

    @abstractmethod
    def close(self) -> None:
        """Give back what the answer has taken, after it has ended."""


def idempotency_header(call: Call) -> str | None:
    """The header `Idempotency-Key`; None if there is none. Raises `400 invalid_request`."""
    value = call.headers.get(b"idempotency-key")
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise invalid("Idempotency-Key", "is not valid UTF-8") from None


def json_response(value: Any, status: int = 200) -> Response:
    """An answer with `value` as JSON."""
    return Response(status, encode(value))


def error_response(error: ApiError) -> Response:
    """The answer for an error: the error envelope (`docs/spec/api.md` section 1)."""
    body = {"error": {"code": error.code, "message": error.message, "detail": error.detail}}
    headers = [(name.lower().encode(), value.encode()) for name, value in error.headers.items()]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    return Response(error.status, encode(body), headers=headers)


def with_line_end(response: Response) -> bytes:
    """The body of an answer as it is sent. JSON gets a line end, so that the prompt of a shell is on a line of its
    own."""
    return response.body + b"\n" if response.content_type == JSON and response.body else response.body


def append_answer(result: AppendResult, performance: Performance, *, return_seqs: bool) -> bytes:
    """The JSON answer to an append, for HTTP and for WebSockets (`docs/spec/api.md` section 4)."""
    first_seq, last_seq, duplicates = result.first_seq, result.last_seq, result.duplicates
    seqs: list[int] | UnsetType = UNSET
    if return_seqs:
        seqs = list(range(first_seq, first_seq + result.count))
        if duplicates:
            new = iter(seqs)
            seqs = [duplicates[i] if i in duplicates else next(new) for i in range(len(seqs) + len(duplicates))]
    return encode(
        AppendAnswer(
            topic=result.topic,
            first_seq=first_seq or None,
            last_seq=last_seq or None,
            seqs=seqs,
            duplicates=sorted(duplicates) if duplicates else UNSET,
            head_seq=result.head_seq,
            count=result.count,
            created=result.created,
            deduped=result.deduped,
            performance=performance,
        )
    )


class Call:
    """One request. The gate makes it, and sets `route`, `params`, `key` and `body` before a handler gets it."""

    __slots__ = (
        "answer_charged",
        "answer_headers",
        "audited",
        "body",
        "changes",
        "charge",
        "entered",
        "exchange",
        "grant",
        "headers",
        "held",
        "key",
        "params",
        "perf",
        "request_id",
        "route",
        "started_ns",
        "time_limit",
        "waits",
    )

    def __init__(self, exchange: Exchange, started_ns: int) -> None:
        self.exchange = exchange
        self.started_ns = started_ns
        self.headers = exchange.headers
        self.request_id = ""
        self.answer_headers: list[tuple[bytes, bytes]] = []
        """Headers of every answer to this request."""
        self.key: Key = OPEN
        self.grant = _OPEN_GRANT
        """The scopes and names for which the call needs its key."""
        self.audited = False
        """True if the call gets a line in the audit log."""
        self.entered = False
        """True while it counts as a request in progress of its key."""
        self.waits = False
        """True if the request has asked to wait, so that it may take long."""
        self.changes = False
        """True if the call may change something."""
        self.time_limit: trio.CancelScope | None = None
        """The scope of `within`; None if the call has no time limit."""
        self.route: Route | None = None
        self.params: Mapping[str, str] = {}
        self.body = b""
        self.charge: Callable[[int], None] = _uncharged
        """Called with the bytes that were received or sent, to count them for the key. The gate itself counts bodies
        and answers that are in memory as a whole."""
        self.held = 0
        """Bytes of the body that count against the budget of all requests."""
        self.answer_charged = 0
        """Bytes of the answer that are charged to the connection while the answer is made."""
        self.perf = Performance()

    def gathered(self, size: int) -> None:
        """Charge the connection with `size` bytes of the answer, which are in memory or are about to be. For calls that
        change nothing.

        Raises `429 throttled` if the answer is large and there is no room for it (`connections.unsent_bytes`).
        """
        if size > PROMPT_ANSWER and size > self.answer_charged:
            refused = self.connection.why_not(size, self.key.digest, self.answer_charged)
            if refused is not None:
                try:
                    raise refused
                finally:
                    del refused  # else the error and this frame would refer to each other until a collection
            self.charge_answer(size)

    def charge_answer(self, size: int) -> None:
        """Set the bytes of the answer that are charged to the connection while the answer is made. 0 when it is
        dropped, or when sending begins, which charges by itself."""
        if self.answer_charged:
            self.connection.give_back_charge(self.answer_charged, self.key.digest)
        self.answer_charged = size
        if size:
            self.connection.charge(size, self.key.digest)

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.exchange.method

    @property
    def query(self) -> bytes:
        """The query as it was sent, still percent-encoded."""
        return self.exchange.query

    @property
    def body_complete(self) -> bool:
        """Return True if the whole body has been received."""
        return self.exchange.body_complete

    def performance(self, now_ns: int) -> Performance:
        """The `performance` object of the answer, with the time from the beginning of the request to `now_ns`."""
        self.perf.server_total_ms = round((now_ns - self.started_ns) / 1e6, 3)
        return self.perf

    @contextmanager
    def within(self, timeout_ms: int) -> Iterator[None]:
        """Put around the work of the call. If it takes more than `timeout_ms` (0: it may), and the time that `allow`
        adds, it is cancelled and 503 is raised (`topics.errors.timed_out`)."""
        if not timeout_ms:
            yield
            return
        with trio.move_on_after(timeout_ms / 1000) as self.time_limit:
            yield
        if self.time_limit.cancelled_caught:
            raise timed_out(timeout_ms, changes=self.changes)

    def allow(self, wait_ms: int) -> None:
        """Give the call `wait_ms` more time, because it was asked to wait for so long."""
        if self.time_limit is not None:
            self.time_limit.deadline += wait_ms / 1000

    async def while_connected(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await `function()`, and return its result or raise its exception. If the client goes away, `function` is
        cancelled and ClientGone is raised.

        For waits without side effects. Raises `401 unauthorized` or `403 forbidden` if the key of the call is withdrawn
        meanwhile. A client that has only shut down its side of an HTTP/1.1 connection counts as gone, but may still be
        answered (`may_be_answered`).
        """
        self.waits = True
        failure: Exception | None = None
        answered = False

        async def watch(scope: trio.CancelScope) -> None:
            await self.exchange.until_hangup()
            scope.cancel()

        with interruptible():
            async with trio.open_nursery() as nursery:
                # The connection's reader may be paused and would not see the client leave.
                with self.connection.ends_wait(nursery.cancel_scope):
                    nursery.start_soon(watch, nursery.cancel_scope)
                    try:
                        await trio.lowlevel.checkpoint_if_cancelled()  # the client may have left already
                        result = await function()
                        answered = True
                    except Exception as error:
                        failure = error
                    nursery.cancel_scope.cancel()
        if failure is not None:
            try:
                raise failure
            finally:
                del failure  # else it and this frame would refer to each other, and keep the answer's data
        if not answered:
            raise ClientGone
        return result

    @property
    def connection(self) -> Connection:
        """The connection on which the request came."""
        return self.exchange.connection

    def may_be_answered(self) -> bool:
        """Return True if a client that seems to be gone may only have shut down its side, and may read an answer."""
        connection = self.connection
        return not self.exchange.is_http2 and connection.has_left and not connection.is_broken


def _uncharged(size: int) -> None:
    """Count nothing; for calls without a key."""


_OPEN_GRANT: Final = Grant(OPEN)
