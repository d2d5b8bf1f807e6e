"""`GET /v0/ws`: commands and pushes as JSON text messages (`docs/spec/api.md` section 8).

Theory of operation. A socket has three tasks. The first reads. It carries out one command at a time, in the order in
which they come. It stops reading while there is no room for an answer, so that TCP slows down a client that only
writes. The second sends the messages in the outbox, which holds `SLOTS` of them: an answer waits for a slot, and a
message with records is not made before there is one. The third sends pings. `topics.engine.delivery` makes the messages
with records, as it does for event streams.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import closing
from typing import Any, Final

import msgspec
import trio
from msgspec import UNSET, UnsetType

from topics.auth.keys import ANY_KEY, Key
from topics.auth.keys import Scope as KeyScope
from topics.auth.served_names import ServedNames
from topics.engine.delivery import feed as feeds
from topics.engine.delivery.feed import Feed
from topics.engine.delivery.outbox import Outbox
from topics.engine.engine import Engine
from topics.engine.reach import KnownPlace, known_places
from topics.errors import ApiError, invalid, throttled
from topics.http.access.key_access import KeyAccess
from topics.http.answers.websocket_messages import MESSAGES
from topics.http.calls import ConnectionSight, append_answer, encode
from topics.http.connections.asgi_messages import Receive, Send
from topics.http.connections.connection import Connection, peer_of
from topics.http.connections.exchange import Scope
from topics.http.connections.protocols.websocket_stream import message_is_late, send_ping, take_next_message
from topics.http.grants import Grant
from topics.http.handlers.data_plane import check_config_access
from topics.http.handlers.transports import message_transport
from topics.http.openapi.strict_names import check_keys, explained, names_of
from topics.http.requests import append_requests, json_checks
from topics.http.requests.record_slices import outline_of_append
from topics.http.requests.watch_requests import SubscribeBody, check_prefix, decode_subscribe
from topics.log.names import check_topic_name
from topics.model import AppendResult, CheckedAppend, Performance, WatchedTopic, WatchRequest
from topics.runtime.turns import BULK_BYTES
from topics.telemetry.audit_log import AuditEntry, make_entry
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

SLOTS: Final = 4
"""How many messages may wait to be sent, including the one that is being sent."""

MAX_REQUEST_ID: Final = 128 << 10
"""The longest `request_id` of a command, bytes. The answer repeats it."""

PING_S: Final = 15.0
"""How often the peer is pinged, seconds."""

CLOSE_CODES: Final = {feeds.TOO_SLOW: 1008, feeds.WITHDRAWN: 1008, feeds.SHUTTING_DOWN: 1001, feeds.NOT_OWNER: 1001}
"""The close code (RFC 6455, 7.4.1) of a socket that the daemon ends."""


class _Command(msgspec.Struct):
    op: msgspec.Raw | UnsetType = UNSET
    request_id: msgspec.Raw | UnsetType = UNSET


class _Unsubscribe(msgspec.Struct):
    topic: str | None = None
    topics: list[str] | None = None
    prefix: str | None = None


class _Publish(msgspec.Struct):
    topic: str
    return_seqs: bool = True


class _Answer(msgspec.Struct, kw_only=True):
    op: str
    request_id: msgspec.Raw | UnsetType = UNSET


class _SubscribeAnswer(_Answer, kw_only=True):
    prefix: str | UnsetType = UNSET
    topics: dict[str, dict[str, int]]


class _UnsubscribeAnswer(_Answer, kw_only=True):
    prefix: str | UnsetType = UNSET
    topics: list[str]


class _ErrorAnswer(_Answer, kw_only=True):
    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


_command: Final = msgspec.json.Decoder(_Command)
_unsubscribe: Final = msgspec.json.Decoder(_Unsubscribe)
_publish: Final = msgspec.json.Decoder(_Publish)

# The keys that a command may have on a strict socket; `publish` also has those of an append.
_COMMAND_KEYS: Final = names_of(_Command)
_SUBSCRIBE_KEYS: Final = names_of(_Command, SubscribeBody)
_UNSUBSCRIBE_KEYS: Final = names_of(_Command, _Unsubscribe)
_PUBLISH_KEYS: Final = names_of(_Command, _Publish)

RequestId = msgspec.Raw | UnsetType


class WebSocket:
    """One WebSocket, from its acceptance to its end.

    `audit` writes a line to the audit log. `on_refused` is called with every error that a command is answered with, to
    count it. `request_id` is that of the opening request. `strict`: unknown keys of commands are refused.
    """

    def __init__(
        self,
        engine: Engine,
        access: KeyAccess,
        audit: Callable[[AuditEntry], Awaitable[None]],
        on_refused: Callable[[ApiError], None],
        key: Key,
        request_id: str,
        strict: bool,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> None:
        self.key = key
        self._engine = engine
        self._access = access
        self._audit = audit
        self._on_refused = on_refused
        self._request_id = request_id
        self._strict = strict
        self._scope = scope
        self._receive = receive
        self._send = send
        self._cancel = trio.CancelScope()
        self.outbox: Outbox
        self._served = ServedNames(engine.settings.names)
        self._grant = Grant(key, self._served)
        """The scopes and names for which the current command needs its key."""
        self._outer = b""
        """A large command without its records; empty for a small one."""
        self._held = 0
        """Bytes of the current command that count against the budget of all requests."""
        self._commands: dict[str, Callable[[bytes, RequestId], Awaitable[None]]] = {
            "subscribe": self._subscribe,
            "unsubscribe": self._unsubscribe,
            "publish": self._publish,
            "ping": self._ping,
        }

    async def run(self) -> None:
        """Accept the socket and serve it until either side ends it. Raises ApiError if it is not accepted."""
        watch_sessions = self._engine.watch_sessions
        connection = self._connection
        with closing(watch_sessions.places.take("ws", self.key.digest)):
            connection.allow_slow_reader()
            headers = [(b"x-request-id", self._request_id.encode())]
            await self._send({"type": "websocket.accept", "headers": headers})
            transport = message_transport(self._scope, self._send, self._cancel)
            self.outbox = watch_sessions.open_socket(MESSAGES, transport, SLOTS)
            try:
                with self._cancel, self._access.showing(self):
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(self._read_all, nursery.cancel_scope)
                        nursery.start_soon(self._send_all, nursery.cancel_scope)
                        nursery.start_soon(self._ping_all)
            finally:
                connection.end_direct()
                watch_sessions.close_socket(self.outbox)

    @property
    def _connection(self) -> Connection:
        connection: Connection = self._scope["state"]["connection"]
        return connection

    def withdraw(self) -> None:
        """Send a last message that says that the key was withdrawn, and close the socket."""
        self.outbox.finish(feeds.WITHDRAWN)

    @property
    def shows(self) -> tuple[KeyScope, Iterable[str]]:
        """The scope that the subscriptions of the socket need, and their topics and prefixes."""
        prefixes = self.outbox.prefixes
        names = [feed.name for feed in self.outbox.feeds]
        names += prefixes.wishes.covered if prefixes is not None else []
        return (KeyScope.READ if names else ANY_KEY), names

    @property
    def sight(self) -> ConnectionSight:
        """Return the figures that operators see of the socket."""
        _, names = self.shows
        return ConnectionSight(
            "socket", peer_of(self._connection), list(names), self.outbox.lag, self.outbox.waiting_bytes
        )

    # -- the tasks ---------------------------------------------------------------------------------------------------

    async def _send_all(self, scope: trio.CancelScope) -> None:
        outbox = self.outbox
        await outbox.send_all(PING_S)
        code = CLOSE_CODES[outbox.ended_by] if outbox.ended_by is not None else 1000
        await self._send({"type": "websocket.close", "code": code})
        scope.cancel()

    async def _ping_all(self) -> None:
        while True:
            await trio.sleep(PING_S)
            if message_is_late(self._send):
                log.info("message_too_slow", peer=self._connection.peer)
                self.outbox.transport.abort()
            await send_ping(self._send)

    async def _read_all(self, scope: trio.CancelScope) -> None:
        while (message := await self._receive())["type"] != "websocket.disconnect":
            if message["type"] == "websocket.receive":
                self._held = message.get("size", 0)
                await self._handle(message.get("utf8"), refused=message.get("refused", False))
                take_next_message(self._send)
        scope.cancel()

    async def _handle(self, raw: bytes | None, *, refused: bool) -> None:
        """Carry out one command. An error is answered, and the socket stays open."""
        request_id: RequestId = UNSET
        try:
            if refused:
                raise throttled("max_inflight_bytes", self._engine.settings.max_inflight_bytes)
            if raw is None:
                raise invalid("message", "must be a text message")
            await self._take_turn(raw)
            command = await self._command_of(raw)
            if command.request_id is not UNSET and len(command.request_id) > MAX_REQUEST_ID:
                raise invalid("request_id", f"is longer than {MAX_REQUEST_ID} bytes", max=MAX_REQUEST_ID)
            request_id = command.request_id
            self.key = self._access.current(self.key)
            self._access.check_rate(self.key)
            self._access.charge(self.key, len(raw))
            carry_out = self._command(command.op)
            if carry_out != self._publish and len(raw) > (most := self._engine.settings.max_call_bytes):
                raise _too_large(most)
            self._grant = Grant(self.key, self._served)
            with self._access.granting(self._grant):
                await carry_out(raw, request_id)
        except ApiError as error:
            self._on_refused(error)
            await self._refuse(error, request_id)
        except Exception:
            log.exception("command_failed")
            await self._refuse(ApiError("internal", "the command failed; the socket stays open"), request_id)
        finally:
            self._outer = b""
            self._release()

    async def _take_turn(self, raw: bytes) -> None:
        """Take a turn for a step that goes through a whole command, if it is large."""
        if len(raw) >= BULK_BYTES:
            await self._engine.turns.take(len(raw))

    async def _command_of(self, raw: bytes) -> _Command:
        """The members that every command has. Raises ApiError."""
        if len(raw) < append_requests.LARGE_APPEND:
            return json_checks.decode_json(_command, raw)
        turns, settings = self._engine.turns, self._engine.settings
        try:
            outline = await turns.each(outline_of_append(raw, append_requests.bounds_of(settings)))
        except ApiError:
            if raw.find(b'"publish"') < 0:
                raise _too_large(settings.max_call_bytes) from None
            raise
        command = await turns.each(outline.decode(_command))
        if command.request_id is not UNSET:
            command.request_id = msgspec.Raw(outline.text_of(command.request_id))
        self._outer = outline.skeleton
        return command

    def _command(self, op: msgspec.Raw | UnsetType) -> Callable[[bytes, RequestId], Awaitable[None]]:
        for name, carry_out in self._commands.items():
            if op is not UNSET and bytes(op) == b'"%b"' % name.encode():
                return carry_out
        raise invalid("op", f"must be one of {', '.join(self._commands)}")

    def _release(self) -> None:
        held, self._held = self._held, 0
        self._connection.give_back(held)

    async def _room(self) -> bool:
        """Wait for room for an answer; the bytes of the command are given back before, so that others can use them.
        Return False if nothing can be sent any more."""
        self._release()
        return await self.outbox.room()

    async def _answer(self, answer: bytes) -> None:
        if await self._room():
            self.outbox.put(answer)

    async def _refuse(self, error: ApiError, request_id: RequestId) -> None:
        await self._answer(
            encode(
                _ErrorAnswer(
                    op="error",
                    request_id=request_id,
                    code=error.code,
                    message=error.message,
                    detail=error.detail or UNSET,
                )
            )
        )

    # -- the commands ------------------------------------------------------------------------------------------------

    def _check_keys(self, raw: bytes, known: tuple[str, ...]) -> None:
        """Raise 400 for an unknown key of a command, if the socket was opened with `Topics-Strict`."""
        if self._strict:
            check_keys(raw, known)

    async def _subscribe(self, raw: bytes, request_id: RequestId) -> None:
        self._grant.check_scope(KeyScope.READ)
        self._check_keys(raw, _SUBSCRIBE_KEYS)
        request = decode_subscribe(raw, self._engine.settings)
        for name in request.topics:
            self._grant.check_name(name)
        if request.prefixes:
            await self._subscribe_prefix(request, request_id)
            return
        watch_sessions, outbox = self._engine.watch_sessions, self.outbox
        await self._engine.reach.wait(known_places(request), trio.current_time())
        await self._engine.routers.catch_up(request.topics)
        if not await self._room():
            return
        found = watch_sessions.resolve(outbox, self._engine.consumers.placed(request))
        places = [KnownPlace(feed.name, feed.position) for feed, _ in found]
        await self._engine.reach.wait(places, trio.current_time())
        outbox.put(encode(_SubscribeAnswer(op="subscribed", request_id=request_id, topics=_starts(found))))
        for feed, _ in found:
            watch_sessions.subscribe(outbox, feed)

    async def _subscribe_prefix(self, request: WatchRequest, request_id: RequestId) -> None:
        (prefix,) = request.prefixes
        covered = self.key.covered
        for part in covered(prefix):
            self._grant.check_prefix(part)
        watch_sessions, outbox = self._engine.watch_sessions, self.outbox
        await self._engine.routers.catch_up(watch_sessions.names_of(request, covered))
        if not await self._room():
            return
        wish, found = watch_sessions.resolve_prefix(outbox, request, covered)
        answer = _SubscribeAnswer(op="subscribed", request_id=request_id, prefix=prefix, topics=_starts(found))
        outbox.put(encode(answer))
        watch_sessions.subscribe_prefix(outbox, wish, [feed for feed, _ in found])

    async def _unsubscribe(self, raw: bytes, request_id: RequestId) -> None:
        json_checks.check_depth(raw, "message")
        self._check_keys(raw, _UNSUBSCRIBE_KEYS)
        body = json_checks.decode_json(_unsubscribe, raw)
        if sum(given is not None for given in (body.topic, body.topics, body.prefix)) != 1:
            raise invalid("topic", "give one of topic, topics and prefix")
        if body.prefix is not None:
            await self._unsubscribe_prefix(body.prefix, request_id)
            return
        names = [body.topic] if body.topic is not None else body.topics or []
        maximum = self._engine.settings.max_watch_topics
        if len(names) > maximum:
            raise invalid("topics", f"has {len(names)} names, a socket has at most {maximum}", max=maximum)
        for name in names:
            check_topic_name(name)
        if await self._room():
            left = [name for name in dict.fromkeys(names) if self._engine.watch_sessions.unsubscribe(self.outbox, name)]
            self.outbox.put(encode(_UnsubscribeAnswer(op="unsubscribed", request_id=request_id, topics=left)))

    async def _unsubscribe_prefix(self, prefix: str, request_id: RequestId) -> None:
        check_prefix(prefix)
        if await self._room():
            left = self._engine.watch_sessions.unsubscribe_prefix(self.outbox, prefix)
            answer = _UnsubscribeAnswer(op="unsubscribed", request_id=request_id, prefix=prefix, topics=left)
            self.outbox.put(encode(answer))

    async def _publish(self, raw: bytes, request_id: RequestId) -> None:
        engine = self._engine
        self._grant.check_scope(KeyScope.WRITE)
        if engine.status.following is not None:
            raise engine.status.standby_refusal()
        engine.store.right.check_at_door()
        publish = json_checks.decode_json(_publish, self._outer or raw)
        topic = check_topic_name(publish.topic)
        try:
            if len(raw) < append_requests.LARGE_APPEND:
                await self._take_turn(raw)
                request = append_requests.decode_append(raw, engine.settings, strict=self._strict, carrier="publish")
            else:
                steps = append_requests.decode_append_in_steps(
                    raw, engine.settings, strict=self._strict, carrier="publish"
                )
                request = await engine.turns.each(steps)
        except ApiError as error:
            raise (explained(error, also=_PUBLISH_KEYS) if self._strict else error) from None
        self._grant.check_name(topic)
        began = engine.clock.perf_ns()
        perf = Performance()
        if request.config is None:
            result = await engine.appends.append(topic, request, perf)
        else:
            result = await self._append_with_config(topic, request, raw, perf)
        perf.server_total_ms = round((engine.clock.perf_ns() - began) / 1e6, 3)
        engine.store.right.check()
        ack = append_answer(result, perf, return_seqs=publish.return_seqs)
        head = b'{"op":"ack",' if request_id is UNSET else b'{"op":"ack","request_id":%b,' % bytes(request_id)
        await self._answer(head + ack[1:])

    async def _append_with_config(
        self, topic: str, request: CheckedAppend, raw: bytes, perf: Performance
    ) -> AppendResult:
        """Append with a config, which may create the topic and is therefore audited. Raises ApiError."""
        config = request.config
        assert config is not None
        began = self._engine.clock.perf_ns()
        status, code = 499, ""  # for a call that is cancelled
        try:
            append_requests.check_inline_config(topic, config)
            check_config_access(self._grant, config)
            result = await self._engine.appends.append(topic, request, perf)
            status = 201 if result.created else 200
        except ApiError as error:
            status, code = error.status, error.code
            raise
        except Exception:
            status, code = 500, "internal"
            raise
        finally:
            entry = make_entry(
                now_ms=self._engine.clock.now_ms(),
                request_id=self._request_id,
                key=self.key.name,
                peer=self._connection.peer,
                call="publish",
                topic=topic,
                body=raw,
                status=status,
                code=code,
                ms=(self._engine.clock.perf_ns() - began) / 1e6,
            )
            await self._audit(entry)
        return result

    async def _ping(self, raw: bytes, request_id: RequestId) -> None:
        json_checks.check_depth(raw, "message")
        self._check_keys(raw, _COMMAND_KEYS)
        await self._answer(encode(_Answer(op="pong", request_id=request_id)))


def _too_large(most: int) -> ApiError:
    detail = {"limit": "max_call_bytes", "max": most}
    return ApiError("payload_too_large", f"the message is larger than {most} bytes", detail=detail)


def _starts(found: Iterable[tuple[Feed, WatchedTopic]]) -> dict[str, dict[str, int]]:
    """Return the members of each topic in a `subscribed` message."""
    return {
        feed.name: {"from_seq": at.from_seq, "head_seq": at.head_seq, "earliest_seq": at.earliest_seq}
        for feed, at in found
    }
