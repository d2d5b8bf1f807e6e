"""The calls that are not made so often that Quart's cost matters: the views of the Quart-Trio application.

The gate has found the route, read the body and checked the names before Quart gets a request. Quart's answer goes back
to the gate, which adds the headers of every answer. Exceptions are carried out of Quart unchanged, and the gate answers
them. Quart is imported when the daemon is ready (`load_late`), or by the first call before that.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final

import trio
from msgspec import UNSET
from msgspec.structs import asdict

from topics import __version__
from topics.engine.engine import Engine
from topics.errors import ApiError
from topics.http.accept import prefers_html
from topics.http.answer_types import (
    CheckpointAnswer,
    RecordsDeletedAnswer,
    RootAnswer,
    RouterAnswer,
    RouterDeletedAnswer,
    RouterListAnswer,
    SealedAnswer,
    ShardPosition,
    TopicAnswer,
    TopicDeletedAnswer,
    TopicListAnswer,
)
from topics.http.answers.request_figures import RequestFigures
from topics.http.calls import JSON, Call, Response, json_response
from topics.http.openapi.document import document_bytes
from topics.http.requests import query_strings, topic_requests
from topics.log.names import check_topic_name
from topics.model import Performance, RouterPatch

if TYPE_CHECKING:
    from topics.http.handlers.quart_app import QuartApp, View

_current: Final[ContextVar[Call]] = ContextVar("call")
"""The call that is answered."""


def load_late() -> None:
    """Blocking: import what the first connections of hypercorn and the first calls of the control plane would wait for.
    A start does not need it, so the daemon calls this in a worker thread when it is ready."""
    for name in (
        "topics.http.connections.protocols.handed_over",
        "topics.http.connections.protocols.asgi_exchange",
        "topics.http.handlers.websocket",
        "topics.http.handlers.quart_app",
        "topics.http.answers.metrics",
        "topics.http.openapi.docs_page",
    ):
        importlib.import_module(name)


class ControlPlane:
    """Answers calls through Quart."""

    def __init__(self, engine: Engine, figures: RequestFigures) -> None:
        self._engine = engine
        self._figures = figures
        self._app: QuartApp | None = None
        self._views: Mapping[str, View] = {
            "put_topic": self.put_topic,
            "delete_topic": self.delete_topic,
            "list_topics": self.list_topics,
            "delete_records": self.delete_records,
            "seal": self.seal,
            "put_router": self.put_router,
            "get_router": self.get_router,
            "list_routers": self.list_routers,
            "delete_router": self.delete_router,
            "checkpoint": self.checkpoint,
            "root": self.root,
            "metrics": self.metrics,
            "openapi": self.openapi,
            "docs": self.docs,
        }

    async def handle(self, call: Call, path: str) -> Response:
        """Answer a call whose route is known. `path` is the decoded path. Raises what the view raises."""
        if self._app is None:
            # Quart, Flask, Werkzeug and Jinja: a seventh of a start, if it imported them.
            from topics.http.handlers.quart_app import QuartApp  # noqa: PLC0415

            self._app = QuartApp(self._views)
        scope = {**call.exchange.asgi_scope(), "path": path, "raw_path": path.encode(), "root_path": ""}
        # Without the fields about framing and encoding, because the body is here decoded. With another Host, because
        # Quart makes a URL of it and fails on some valid ones.
        kept = [(name, value) for name, value in scope["headers"] if name.lower() not in _FRAMING]
        scope["headers"] = [(b"host", b"localhost"), *(field for field in kept if field[0].lower() != b"host")]
        sent = False

        async def receive() -> dict[str, Any]:
            nonlocal sent
            if sent:
                # Never a disconnect: a call that has begun is finished, even if the client has left.
                await trio.sleep_forever()
            sent = True
            return {"type": "http.request", "body": call.body, "more_body": False}

        started: dict[str, Any] = {}
        chunks: list[bytes] = []

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            elif message["type"] == "http.response.body":
                chunks.append(message.get("body", b""))

        token = _current.set(call)
        try:
            await self._app(scope, receive, send)
        finally:
            _current.reset(token)
        assert started, "Quart has answered"
        headers = {name.lower(): value for name, value in started["headers"]}
        kind = headers.pop(b"content-type")
        del headers[b"content-length"]
        return Response(started["status"], b"".join(chunks), kind, list(headers.items()))

    def _performance(self) -> Performance:
        return _call().performance(self._engine.clock.perf_ns())

    # --- topics (`docs/spec/api.md` section 3)
    # ---------------------------------------------------------------------------------

    async def put_topic(self, topic: str) -> Response:
        """`PUT /v0/topics/{topic}`."""
        patch = topic_requests.decode_config_patch(_call().body)
        _call().grant.check_targets(patch)
        config, created = await self._engine.topic_lifecycle.put(
            topic, patch, create=query_strings.decode_create(_query())
        )
        answer = TopicAnswer(topic=topic, created=created, config=config, performance=self._performance())
        return json_response(answer, 201 if created else 200)

    async def list_topics(self) -> Response:
        """`GET /v0/topics`. With `touch` the topics are touched after their state was read for the answer."""
        page = topic_requests.decode_list_query(_query())
        states, key = self._engine.topic_states, _call().key
        if page.sort is not None:
            topics, more = await states.ranked(page.prefix, page.sort, page.page_size, key, kind=page.kind), False
        elif page.kind is not None:
            topics, more = await states.of_type(page.kind, page.prefix, page.after, page.page_size, key)
        else:
            topics, more = await states.page(page.prefix, page.after, page.page_size, key)
        if page.touch:
            for entry in topics:
                with suppress(ApiError):  # the topic may have been deleted meanwhile
                    await self._engine.topic_states.of(entry.topic, touch=True)
        cursor = topic_requests.TOPIC_CURSORS.encode(topics[-1].topic) if more and topics else UNSET
        return json_response(TopicListAnswer(topics=topics, next_cursor=cursor, performance=self._performance()))

    async def delete_topic(self, topic: str) -> Response:
        """`DELETE /v0/topics/{topic}`."""
        if_empty = query_strings.decode_if_empty(_query())
        visible = await self._visible_routers(topic)
        deleted, routers = await self._engine.topic_lifecycle.delete(topic, if_empty=if_empty)
        shown = [name for name in routers if visible is None or name in visible]
        answer = TopicDeletedAnswer(
            topic=topic, deleted=deleted, routers_removed=shown, performance=self._performance()
        )
        return json_response(answer)

    async def delete_records(self, topic: str) -> Response:
        """`POST /v0/topics/{topic}/delete` (`docs/spec/api.md` section 6)."""
        selection = topic_requests.decode_delete(_call().body, self._engine.settings)
        deletions = self._engine.deletions
        before_seq, match = selection.before_seq, selection.match
        after_seq, before_ts = selection.after_seq, selection.before_ts
        if selection.dry_run:
            result = await deletions.count_records(topic, before_seq, match, after_seq=after_seq, before_ts=before_ts)
        else:
            result = await deletions.delete_records(
                topic, before_seq, match, _call().perf, after_seq=after_seq, before_ts=before_ts
            )
        answer = RecordsDeletedAnswer(
            topic=result.topic,
            deleted=result.deleted,
            earliest_seq=result.earliest_seq,
            head_seq=result.head_seq,
            count=result.count,
            bytes=result.bytes,
            dry_run=True if selection.dry_run else UNSET,
            performance=self._performance(),
        )
        return json_response(answer)

    # --- routers (`docs/spec/api.md` section 7)
    # --------------------------------------------------------------------------------

    async def put_router(self, router: str) -> Response:
        """`PUT /v0/routers/{router}`."""
        patch = topic_requests.decode_router_patch(_call().body, self._engine.settings)
        create = query_strings.decode_create(_query())
        self._check_ends(router, patch)
        try:
            state, created = await self._engine.routers.put(router, patch, create=create)
        except ApiError as error:
            self._hide_names(error.detail)
            raise
        answer = RouterAnswer(**asdict(state), created=created, performance=self._performance())
        return json_response(answer, 201 if created else 200)

    async def get_router(self, router: str) -> Response:
        """`GET /v0/routers/{router}`."""
        self._check_ends(router)
        state = self._engine.routers.state(router)
        return json_response(RouterAnswer(**asdict(state), performance=self._performance()))

    async def list_routers(self) -> Response:
        """`GET /v0/routers`."""
        page, source, dest = topic_requests.decode_router_list_query(_query())
        routers, more = self._engine.routers.page(page.prefix, source, dest, page.after, page.page_size, _call().key)
        cursor = topic_requests.ROUTER_CURSORS.encode(routers[-1].router) if more and routers else UNSET
        return json_response(RouterListAnswer(routers=routers, next_cursor=cursor, performance=self._performance()))

    async def delete_router(self, router: str) -> Response:
        """`DELETE /v0/routers/{router}`."""
        self._check_ends(router)
        deleted = await self._engine.routers.delete(router)
        return json_response(RouterDeletedAnswer(router=router, deleted=deleted, performance=self._performance()))

    def _check_ends(self, router: str, patch: RouterPatch | None = None) -> None:
        """Check that the key covers the source and the target of a router, the present ones and those of `patch`.
        Raises `403 forbidden`, which names only what the request names."""
        grant = _call().grant
        if patch is not None:
            for field, name in (("source", patch.source), ("dest", patch.dest)):
                if isinstance(name, str):
                    grant.check_name(check_topic_name(name, field), field)
        if not self._is_visible(router):
            message = f"router: the source or the dest of {router!r} has none of the key's prefixes"
            raise ApiError("forbidden", message, detail={"router": router})
        for field, name in zip(("source", "dest"), self._engine.routers.ends(router) or (), strict=False):
            grant.check_name(name, field)  # the key must cover them as long as the call lasts

    def _hide_names(self, detail: dict[str, Any]) -> None:
        """Remove names from the `detail` of an error that the key of the call does not cover."""
        if not all(_call().key.covers(topic) for topic in detail.get("cycle", ())):
            del detail["cycle"]
        if not all(self._is_visible(router) for router in detail.get("routers", ())):
            del detail["routers"]

    def _is_visible(self, router: str) -> bool:
        """Return True if the key covers a router, its source and its target."""
        return all(_call().key.covers(name) for name in (router, *(self._engine.routers.ends(router) or ())))

    async def _visible_routers(self, topic: str) -> set[str] | None:
        """The routers of a topic that the key covers; None if it covers every name."""
        key = _call().key
        if not key.prefixes:
            return None
        found: set[str] = set()
        for source, dest in ((topic, None), (None, topic)):
            after, more = None, True
            while more:
                page, more = self._engine.routers.page("", source, dest, after, topic_requests.MAX_PAGE, key)
                found.update(state.router for state in page)
                after = page[-1].router if page else None
        return found

    # --- the daemon (`docs/spec/api.md` section 11)
    # ----------------------------------------------------------------------------

    async def root(self) -> Response:
        """`GET /`: the addresses of the documentation and of the most important calls; for a browser, the console."""
        has_console = self._engine.settings.console
        if has_console and prefers_html(_call().headers.get(b"accept", b"")):
            return Response(302, b"{}", JSON, [(b"location", b"/console"), (b"vary", b"accept")])
        answer = RootAnswer(
            service="topics",
            version=__version__,
            docs="/v0/docs",
            openapi="/v0/openapi.json",
            topics="/v0/topics",
            ready="/v0/ready",
            metrics="/v0/metrics",
            console="/console" if has_console else UNSET,
        )
        response = json_response(answer)
        response.headers.append((b"vary", b"accept"))
        return response

    async def seal(self, topic: str) -> Response:
        """`POST /v0/topics/{topic}/seal` (`docs/spec/consumers.md` section 7)."""
        segments = await self._engine.topic_seals.seal(topic)
        return json_response(SealedAnswer(topic=topic, segments=segments, performance=self._performance()))

    async def checkpoint(self) -> Response:
        """`POST /v0/admin/checkpoint`."""
        files, positions = await self._engine.checkpoint(query_strings.decode_hold_ms(_query()))
        position = [
            ShardPosition(shard=shard, file=ordinal, offset=offset) for shard, (ordinal, offset) in positions.items()
        ]
        return json_response(CheckpointAnswer(files=files, position=position, performance=self._performance()))

    async def metrics(self) -> Response:
        """`GET /v0/metrics`."""
        # prometheus-client is not needed before the first scrape.
        from topics.http.answers.metrics import Exposition  # noqa: PLC0415

        exposition = Exposition(self._engine, self._figures)
        return await exposition.respond(_call().headers.get(b"accept", b"").decode("latin-1"), _call().key)

    async def openapi(self) -> Response:
        """`GET /v0/openapi.json`."""
        return Response(200, await trio.to_thread.run_sync(document_bytes))

    async def docs(self) -> Response:
        """`GET /v0/docs`."""
        # Jinja is not needed before somebody reads the page.
        from topics.http.openapi.docs_page import CONTENT_POLICY, page_bytes  # noqa: PLC0415

        page = await trio.to_thread.run_sync(page_bytes)
        return Response(200, page, b"text/html; charset=utf-8", [(b"content-security-policy", CONTENT_POLICY)])


_FRAMING: Final = frozenset({b"content-encoding", b"content-length", b"transfer-encoding", b"expect"})


def _call() -> Call:
    return _current.get()


def _query() -> bytes:
    return _call().query
