"""The steps that every request goes through, whichever handler answers it.

Theory of operation. `Gate._answer` takes a request through its steps in order: route, phase of the daemon, key, body,
handler. Each step may refuse it by raising `ApiError`. `Gate.handle` makes the error envelope of that, and of every
unexpected exception. In any case the body is received to its end (`requests.body_reader`), the memory that it held is
given back, and the request is counted once. Nothing is sent before the answer is complete, so there is exactly one
answer. Streams and exports are the exception: they are sent as they are made.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from contextlib import closing, nullcontext
from functools import partial
from typing import Final

import msgspec
import structlog

from topics.auth.keys import ANY_KEY, Key, Keyring
from topics.auth.served_names import ServedNames
from topics.config import is_loopback
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.http.accept import qualities
from topics.http.access.key_access import KeyAccess
from topics.http.access.origins import Origins
from topics.http.answers.load_figures import LoadFigures
from topics.http.answers.request_figures import RequestFigures
from topics.http.calls import (
    JSON,
    NOT_MODIFIED,
    PROMPT_ANSWER,
    Call,
    OpenAnswer,
    Response,
    error_response,
    with_line_end,
)
from topics.http.connections.asgi_messages import Receive, Send, stop_receiving
from topics.http.connections.connection import Connection
from topics.http.connections.exchange import ClientGone, Exchange, Scope
from topics.http.connections.refusals import new_request_id
from topics.http.entity_tags import MOST_TAGGED, matches, tag_of
from topics.http.grants import Grant
from topics.http.handlers.bulk import Bulk
from topics.http.handlers.console import ConsoleHandlers
from topics.http.handlers.control_plane import ControlPlane
from topics.http.handlers.daemon_state import DaemonState
from topics.http.handlers.data_plane import DataPlane
from topics.http.openapi.strict_names import check_body, check_query, is_strict
from topics.http.requests.body_reader import (
    SMALL_BODY,
    SMALL_BODY_S,
    BodyReader,
    carried_by,
    discard_body,
    has_small_rest,
    is_lines,
)
from topics.http.routes import BodyKind, Plane, Route, RouteMatch, RouteTable
from topics.runtime.turns import BULK_BYTES, Turns
from topics.telemetry.audit_log import AuditEntry, AuditLog, make_entry
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

UNMATCHED: Final = "unmatched"
"""The `route` label of requests without a route, so that a scanner cannot create labels."""

CLIENT_GONE: Final = 499
"""The `status` label of a request whose client left before there was an answer (as nginx counts it)."""

GZIP_FROM: Final = 1024
"""Bytes from which on an answer is compressed. Below, gzip saves less than a packet."""

_OWN_LIMITS: Final = frozenset(
    {
        "max_inflight_bytes",
        "max_inflight_per_key",
        "max_unsent_bytes",
        "max_unsent_bytes_per_connection",
        "max_unsent_bytes_per_key",
        "rate_per_key",
    }
)
"""Limits whose refusals are counted here. The engine counts the refusals of the others."""

STANDBY: Final = (b"topics-role", b"standby")
FORMER: Final = (b"topics-role", b"former")
"""The role of a daemon that has lost its lease, and answers reads for a while."""
"""The header of every answer of a standby."""

COUNTED_FROM: Final = 4 << 10
"""Bytes from which on an answer over HTTP/1.1 is counted while it waits to be sent."""

_GZIP_LEVEL: Final = 1

_GZIP_STEP: Final = 128 << 10
"""Bytes that are compressed in one step of the loop, about a millisecond."""

_UNWATCHED: Final = nullcontext()
_REQUEST_ID: Final = re.compile(rb"[\x21-\x7e]{1,128}")


class Gate:
    """The ASGI application: one for the daemon. `keyring` are the valid keys (default: those of the settings); `audit`
    is the audit log, if there is one."""

    def __init__(self, engine: Engine, keyring: Keyring | None = None, audit: AuditLog | None = None) -> None:
        self._engine = engine
        self._audit = audit
        self._slow_ms = engine.settings.slow_request_ms
        self._timeout_ms = engine.settings.request_timeout_ms
        self._logs_requests = engine.settings.log_level == "debug"
        self.access = KeyAccess(engine.settings, engine.clock, keyring or Keyring(engine.settings.api_keys))
        settings = engine.settings
        self._served = ServedNames(settings.names)
        self._origins = Origins(settings.cors_origins, settings.allowed_hosts if is_loopback(settings.host) else None)
        self._routes = RouteTable()
        self._reader = BodyReader(engine.settings, engine.turns, self.access.share)
        self.figures = RequestFigures()
        self._bulk = Bulk(engine, self.figures)
        self.load = LoadFigures(engine, self.figures)
        state, console = DaemonState(engine, self.access, self.load), ConsoleHandlers(engine.settings)
        self._data = {
            **DataPlane(engine, self.refusal).handlers,
            "export": self._bulk.export,
            "key": state.key,
            "filter": state.filter,
            "figures": state.figures,
            "storage": state.storage,
            "connections": state.connections,
            "console": console.page,
            "console_asset": console.asset,
            "console_folder": console.asset,
        }
        self._control = ControlPlane(engine, self.figures)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from topics.http.connections.protocols.asgi_exchange import AsgiExchange  # noqa: PLC0415

        if scope["type"] == "http":
            await self.handle(AsgiExchange(scope, receive, send))
        elif scope["type"] == "websocket":
            await self._open_websocket(scope, receive, send)
        else:
            raise NotImplementedError(scope["type"])

    def refusal(self) -> ApiError | None:
        """The error with which the daemon refuses requests in its present phase; None if it accepts them."""
        status = self._engine.status
        if status.not_owner is not None:
            return status.not_owner
        if status.phase == "ready":
            return None
        if status.phase == "draining":
            return ApiError("shutting_down", "the daemon is stopping", retry_after_s=5)
        progress = {"replay_progress": status.replay_progress}
        if status.phase == "archiving":
            message = "what was recovered has to be in the bucket first, because topics have the class remote"
            return ApiError("not_ready", message, detail=progress, retry_after_s=1)
        return ApiError("not_ready", "the log is being replayed", detail=progress, retry_after_s=1)

    async def handle(self, exchange: Exchange) -> None:
        """Answer one request, also after any error, and count it once."""
        call = Call(exchange, self._engine.clock.perf_ns())
        status, code = CLIENT_GONE, ""
        stream: OpenAnswer | None = None
        try:
            call.request_id = _request_id(call.headers)
            call.answer_headers = [
                (b"x-request-id", call.request_id.encode()),
                *self._origins.headers(call.headers),
            ]
            if self._engine.status.following is not None:
                call.answer_headers.append(STANDBY)
            elif not self._engine.store.right.is_held:
                call.answer_headers.append(FORMER)
            structlog.contextvars.bind_contextvars(request_id=call.request_id)
            try:
                response = await self._answer(call)
            except ClientGone:
                await self._record(call, status)
                return
            except Exception as error:
                code, response = self._failure(call, error)
            except BaseException:  # cancelled, but the call may be carried out all the same
                await self._record(call, status)
                raise
            finally:
                self._reader.release(call)
            if isinstance(response, OpenAnswer):
                stream, status = response, 200
                return
            right = self._engine.store.right
            if call.changes and response.status < 400 and not right.is_held:
                code, response = "not_owner", error_response(right.refusal)  # the change may be undone elsewhere
            status = response.status
            await self._record(call, status, code)
            if len(response.body) <= PROMPT_ANSWER:
                self._leave(call)
            if (refused := self._no_room(call, response)) is not None:
                response = refused
                status = response.status
            try:
                await self._send(call, response)
            finally:
                if response.undelivered is not None and exchange.was_cut_off():
                    response.undelivered()
        except ClientGone:
            pass
        finally:
            call.charge_answer(0)
            if stream is None or not stream.in_flight:
                self._leave(call)
            self._count(call, status, is_stream=stream is not None)
            # A stream counts as answered when it opens; how long it stays is no figure of a request.
            if stream is not None:
                try:
                    await self._show(stream)
                finally:
                    self._leave(call)

    def _failure(self, call: Call, error: Exception) -> tuple[str, Response]:
        """The error code and the answer of a call that has raised `error`; called while it is handled."""
        if isinstance(error, ApiError):
            self._count_refusal(error)
        else:
            log.exception("request_failed", route=_label(call))
            error = ApiError("internal", "the request failed; the daemon goes on")
        return error.code, error_response(error)

    def _count(self, call: Call, status: int, *, is_stream: bool) -> None:
        """Count a request that was answered and log it: as slow, if it took longer than `TOPICS_SLOW_REQUEST_MS` and
        is neither a stream nor a call that waits for records."""
        duration = (self._engine.clock.perf_ns() - call.started_ns) / 1e6
        self.figures.count(_label(call), status, duration)
        if status < 300 and call.route is not None and call.route.name == "append" and call.body_complete:
            self.figures.append_ms.observe(duration)
        if self._logs_requests:
            log.debug("request", method=call.method, route=_label(call), status=status, ms=round(duration, 3))
        if self._slow_ms and duration > self._slow_ms and not call.waits and not is_stream:
            log.warning(
                "slow_request",
                route=_label(call),
                status=status,
                ms=round(duration, 3),
                key=call.key.name,
                body_bytes=len(call.body),
                performance=msgspec.to_builtins(call.perf),
            )

    def _no_room(self, call: Call, response: Response) -> Response | None:
        """The 429 to be sent instead of a large answer for which there is no memory; None if the answer may be sent.
        Only for calls that change nothing or whose change can be taken back."""
        repeatable = call.method == "GET" or response.undelivered is not None or _label(call) == "diff_post"
        if len(response.body) <= PROMPT_ANSWER or not repeatable or call.answer_charged:
            return None
        error = call.connection.why_not(len(response.body), call.key.digest)
        if error is None:
            return None
        if response.undelivered is not None:
            response.undelivered()
        self._count_refusal(error)
        return error_response(error)

    def _leave(self, call: Call) -> None:
        """Count a request of a key as no longer in progress. May be repeated."""
        if call.entered:
            call.entered = False
            self.access.leave(call.key)

    async def _show(self, stream: OpenAnswer) -> None:
        """Send a stream or an export to its end, and close it."""
        with closing(stream):
            try:
                with self.access.showing(stream):
                    await stream.run()
            except ClientGone:
                pass
            except Exception:
                log.exception("stream_failed")

    async def _record(self, call: Call, status: int, code: str = "") -> None:
        """Write the line of an audited call to the audit log. The call is answered only after that."""
        if call.audited:
            await self._write_audit(self._audit_entry(call, status, code))

    async def _write_audit(self, entry: AuditEntry) -> None:
        if self._audit is not None:
            await self._audit.write(entry)
            self.figures.audit_failures = self._audit.failures

    def _audit_entry(self, call: Call, status: int, code: str) -> AuditEntry:
        assert call.route is not None
        clock = self._engine.clock
        return make_entry(
            now_ms=clock.now_ms(),
            request_id=call.request_id,
            key=self.access.name_of(call.key),
            peer=call.connection.peer,
            call=call.route.name,
            topic=call.params.get("topic", ""),
            router=call.params.get("router", ""),
            stage=call.params.get("stage", ""),
            fence=call.params.get("fence", ""),
            schedule=call.params.get("schedule", ""),
            query=call.query,
            body=call.body,
            status=status,
            code=code,
            ms=(clock.perf_ns() - call.started_ns) / 1e6,
        )

    def _count_refusal(self, error: ApiError) -> None:
        """Count a refusal that the engine does not count."""
        if error.code in ("unauthorized", "forbidden"):
            self.figures.unauthorized[error.code] += 1
        limit = error.detail.get("limit")
        if limit in _OWN_LIMITS:
            self.figures.throttled[limit] += 1

    async def _answer(self, call: Call) -> Response | OpenAnswer:
        """Take a request through its steps. Raises ApiError if one of them refuses it, and ClientGone."""
        if call.exchange.is_http2:
            await call.connection.until_room()
        refusal = self.refusal()
        try:
            found = self._routes.find(call.method, call.exchange.raw_path)
        except ApiError as error:
            if refusal is not None:
                raise refusal from None
            allow = error.headers.get("allow")
            if allow is not None and (answer := self._origins.preflight(call.method, call.headers, allow)) is not None:
                await self._reader.skip_body(call)
                return answer
            raise
        call.route = found.route
        call.changes = found.route.changes
        if found.route.audited:
            call.audited, call.params = True, found.unchecked()
        if refusal is not None and not found.route.always_open:
            raise refusal
        if self._engine.status.following is not None and found.route.changes:
            raise self._engine.status.standby_refusal()
        if call.changes:
            self._engine.store.right.check_at_door()
        self._let_in(call, found)
        strict = is_strict(call.headers)
        if strict:
            check_query(found.route, call.query, carried_by(call))
        if not call.key.digest:
            return await self._carry_out(call, found, strict=strict)
        with self.access.granting(call.grant):
            return await self._carry_out(call, found, strict=strict)

    async def _carry_out(self, call: Call, found: RouteMatch, *, strict: bool) -> Response | OpenAnswer:
        """Read the body of a call that was let in, and call its handler. `strict`: unknown keys are refused, which in
        the body of a call without one are all."""
        if found.route.body is BodyKind.NONE and not (strict and call.method != "GET"):
            await self._reader.skip_body(call)
        elif found.route.body is BodyKind.APPEND and is_lines(call):
            return await self._bulk.ingest(call, self._reader.stream(call))
        else:
            call.body = await self._reader.read_body(call, found.route.body)
            if strict and call.body and found.route.body not in (BodyKind.APPEND, BodyKind.RECORDS):
                check_body(found.route, call.body)
        if call.key.digest:
            self.access.charge(call.key, len(call.body))
        # The client's own time, for the body, is bounded by the reader of the body.
        if self._timeout_ms and not (found.route.always_open or found.route.is_unhurried):
            with call.within(self._timeout_ms):
                return await self._handled(call, found)
        return await self._handled(call, found)

    async def _handled(self, call: Call, found: RouteMatch) -> Response | OpenAnswer:
        if found.route.plane is Plane.DATA:
            return await self._data[found.route.name](call)
        return await self._control.handle(call, found.plain_path())

    def _let_in(self, call: Call, found: RouteMatch) -> None:
        """Find the key of a call and check that it allows the call, before the body is read. Raises ApiError (400, 401,
        403, 429)."""
        route = found.route
        key = call.key = self.access.identify(route, call.headers, call.query)
        if not key.digest:
            if not self.access.has_keys:
                self._origins.check(call.method, call.headers, is_page=route.is_page)
            call.params = found.params()
            if self._served:
                call.grant = Grant(key, self._served)
                self._check_names(call)
            return
        grant = call.grant = Grant(key, self._served)
        grant.check_scope(route.needs or ANY_KEY)
        if route.is_about_all and key.prefixes:
            raise ApiError("forbidden", "a key with prefixes may not do what concerns all topics")
        call.params = found.params()
        self._check_names(call)
        self.access.enter(key)
        call.entered = True
        call.charge = partial(self.access.charge, key)

    @staticmethod
    def _check_names(call: Call) -> None:
        """Check the names in the path of a call. Raises `421 not_here`, `403 forbidden`."""
        for kind in ("topic", "router", "schedule"):
            if kind in call.params:
                call.grant.check_name(call.params[kind], kind)

    async def _send(self, call: Call, response: Response) -> None:
        """Send an answer: compress it if the client accepts that, and receive the rest of the body."""
        # A client that waits for 100 Continue may send no body once it has the answer, so its body is not waited for.
        exchange, connection = call.exchange, call.connection
        unasked = exchange.waits_for_continue()
        if not call.body_complete and not unasked and has_small_rest(call):
            await discard_body(call, SMALL_BODY, SMALL_BODY_S)
        if call.method == "GET" and response.status == 200 and response.content_type == JSON:
            response = _tagged(call, response)
        body = with_line_end(response)
        response.body = b""  # else an uncompressed copy would stay in memory while the answer is sent
        headers = [(b"content-type", response.content_type), *response.headers, *call.answer_headers]
        if len(body) >= GZIP_FROM:
            headers.append((b"vary", b"accept-encoding"))
            if accepts_gzip(call.headers.get(b"accept-encoding", b"")):
                if len(body) > PROMPT_ANSWER:
                    call.charge_answer(len(body))  # compressing lets other tasks run, which must see these bytes
                body = await _gzip(body, self._engine.turns)
                headers.append((b"content-encoding", b"gzip"))
        headers.append((b"content-length", b"%d" % len(body)))
        if call.key.digest:
            self.access.charge(call.key, len(body))
        # The client may still be sending its body; then the connection is closed after the answer.
        if not call.body_complete and not exchange.is_http2:
            headers.append((b"connection", b"close"))
        # A small answer over HTTP/1.1 fits into the socket's buffer, so that nothing has to wait for its reader.
        http2 = exchange.is_http2
        timed = len(body) > SMALL_BODY or http2 or not call.body_complete
        counted = timed or len(body) > COUNTED_FROM
        call.charge_answer(0)
        with connection.answering(len(body), call.key.digest, stream=http2, timed=timed) if counted else _UNWATCHED:
            if call.body_complete or unasked:
                await exchange.answer(response.status, headers, body)
                return
            await exchange.begin(response.status, headers)
            await exchange.send(body)
            if await discard_body(call):
                await exchange.end()
            else:
                connection.abort()

    async def _open_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Accept or refuse a WebSocket, serve it to its end, and count it as a request."""
        from topics.http.handlers.websocket import WebSocket  # noqa: PLC0415

        connection: Connection = scope["state"]["connection"]
        await receive()
        began = self._engine.clock.perf_ns()
        label, status = UNMATCHED, 101
        headers = {name.lower(): value for name, value in scope["headers"]}
        request_id = _request_id(headers)
        structlog.contextvars.bind_contextvars(request_id=request_id)
        try:
            found = self._routes.find("GET", scope["raw_path"])
            if found.route.name != "ws":
                raise ApiError("not_found", "there is no WebSocket here")
            label = found.route.label
            if (refusal := self.refusal()) is not None:
                raise refusal
            key = self._let_socket_in(found.route, headers, scope["query_string"])
            strict = is_strict(headers)
            if strict:
                check_query(found.route, scope["query_string"])
            budget = self._reader.shares.of(key.digest)
            connection.bound_messages(budget, self._engine.settings.admission_ms / 1000)
            socket = WebSocket(
                self._engine,
                self.access,
                self._write_audit,
                self._count_refusal,
                key,
                request_id,
                strict,
                scope,
                receive,
                send,
            )
            await socket.run()
        except ApiError as error:
            status = error.status
            with connection.answering(0):
                await self._refuse_websocket(error, request_id, send)
        except Exception:
            log.exception("socket_failed")
        finally:
            connection.give_back(stop_receiving(receive))
            self.figures.count(label, status, (self._engine.clock.perf_ns() - began) / 1e6 if status != 101 else 0.0)

    def _let_socket_in(self, route: Route, headers: dict[bytes, bytes], query: bytes) -> Key:
        """The key of a socket that may be opened. Each of its commands is checked later. Raises ApiError (401, 403,
        429)."""
        key = self.access.identify(route, headers, query)
        if key.digest:
            self.access.check_rate(key)
        else:
            self._origins.check("GET", headers)
        return key

    async def _refuse_websocket(self, error: ApiError, request_id: str, send: Send) -> None:
        self._count_refusal(error)
        response = error_response(error)
        body = with_line_end(response)
        headers = [(b"content-type", response.content_type), (b"content-length", b"%d" % len(body))]
        headers += [*response.headers, (b"x-request-id", request_id.encode())]
        await send({"type": "websocket.http.response.start", "status": response.status, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


def _tagged(call: Call, response: Response) -> Response:
    """Return an answer in JSON with its entity tag, unless it is large; without a body, if the client has named this
    tag."""
    if len(response.body) > MOST_TAGGED:
        return response
    tag = tag_of(response.body)
    headers = [*response.headers, (b"etag", tag)]
    if matches(call.headers.get(b"if-none-match"), tag):
        return Response(NOT_MODIFIED, b"", response.content_type, headers)
    return Response(response.status, response.body, response.content_type, headers, response.undelivered)


def _label(call: Call) -> str:
    return UNMATCHED if call.route is None else call.route.label


def _request_id(headers: Mapping[bytes, bytes]) -> str:
    given = headers.get(b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given) is not None:
        return given.decode()
    return new_request_id()


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Return True if an Accept-Encoding allows gzip and does not prefer `identity` (RFC 9110, 12.5.3)."""
    if not accept_encoding:
        return False
    quality = qualities(accept_encoding)
    gzip = quality.get(b"gzip", quality.get(b"x-gzip", quality.get(b"*", 0.0)))
    return gzip > 0 and gzip >= quality.get(b"identity", 0.0)


async def _gzip(body: bytes, turns: Turns) -> bytes:
    """Compress in steps of about a millisecond. Each takes a turn, if there is more than a little."""
    compressor = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, 31)
    pieces: list[bytes] = []
    for start in range(0, len(body), _GZIP_STEP):
        if len(body) >= BULK_BYTES:
            await turns.take()
        pieces.append(compressor.compress(memoryview(body)[start : start + _GZIP_STEP]))
    pieces.append(compressor.flush())
    return b"".join(pieces)
