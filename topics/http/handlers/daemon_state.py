"""Calls about the daemon itself: the caller's key, rates and latencies, the storage, open connections; and filters as
JSON (`docs/spec/api.md` sections 11 and 12)."""

from __future__ import annotations

from itertools import islice

from msgspec import UNSET, Raw

from topics.engine.engine import Engine
from topics.errors import invalid
from topics.filters.filter_error import FilterError
from topics.filters.filter_text import json_of
from topics.filters.record_filter import MAX_TEXT
from topics.http.access.key_access import KeyAccess, SeenConnection
from topics.http.answers.load_figures import LoadFigures
from topics.http.calls import Call, Response, json_response
from topics.http.daemon_answers import (
    ConnectionListAnswer,
    ConnectionState,
    FilterAnswer,
    KeyAnswer,
    KeyLimits,
    KeyUse,
)
from topics.http.requests.query_strings import Query
from topics.http.requests.topic_requests import CONNECTION_CURSORS, page_of
from topics.model import Performance

NAMED_TOPICS = 10
"""Topics of a connection that are named."""


class DaemonState:
    """The handlers of these calls."""

    def __init__(self, engine: Engine, access: KeyAccess, load: LoadFigures) -> None:
        self._engine = engine
        self._access = access
        self._load = load

    async def key(self, call: Call) -> Response:
        """`GET /v0/key`: without keys everybody may do everything."""
        key = call.key
        answer = KeyAnswer(
            key=key.name,
            has_keys=self._access.has_keys,
            scopes=key.scopes.words,
            prefixes=list(key.prefixes),
            performance=self._performance(call),
        )
        return json_response(answer)

    async def filter(self, call: Call) -> Response:
        """`GET /v0/filter`."""
        text = Query(call.query).text("text", "")
        if len(text) > MAX_TEXT:
            raise invalid("text", f"is longer than {MAX_TEXT} characters", max=MAX_TEXT)
        try:
            found = json_of(text)
        except FilterError as error:
            raise invalid("text", f"{error.place}: {error.message}") from None
        return json_response(FilterAnswer(filter=Raw(found.encode()), performance=self._performance(call)))

    async def figures(self, call: Call) -> Response:
        """`GET /v0/figures`."""
        return json_response(self._load.figures(call.key, self._performance(call)))

    async def storage(self, call: Call) -> Response:
        """`GET /v0/storage`."""
        return json_response(await self._load.storage(self._performance(call)))

    async def connections(self, call: Call) -> Response:
        """`GET /v0/connections`: in the order in which they were opened."""
        page = page_of(Query(call.query), CONNECTION_CURSORS)
        after = 0 if page.after is None else int(page.after)
        seen = (one for one in self._access.seen() if one.number > after)
        shown = [self._state_of(one) for one in islice(seen, page.page_size)]
        more = next(seen, None) is not None
        settings = self._engine.settings
        places, sessions = self._engine.watch_sessions.places, self._engine.watch_sessions
        answer = ConnectionListAnswer(
            connections=shown,
            total=self._access.open_connections,
            keys=[
                KeyUse(
                    key=key.name,
                    scopes=key.scopes.words,
                    prefixes=list(key.prefixes),
                    requests=self._access.requests_of(key),
                    connections=places.of(key.digest),
                    sessions=sessions.sessions_of(key.digest),
                )
                for key in self._access.keys
            ],
            limits=KeyLimits(
                requests=settings.max_inflight_per_key,
                connections=places.most_of_key(),
                sessions=sessions.most_of_key(),
                requests_per_s=settings.rate_per_key.requests,
                bytes_per_s=settings.rate_per_key.bytes,
            ),
            next_cursor=CONNECTION_CURSORS.encode(str(shown[-1].id)) if more and shown else UNSET,
            performance=self._performance(call),
        )
        return json_response(answer)

    def _state_of(self, seen: SeenConnection) -> ConnectionState:
        sight = seen.connection.sight
        return ConnectionState(
            id=seen.number,
            kind=sight.kind,
            key=seen.connection.key.name,
            peer=sight.peer,
            since=seen.since_ms,
            topics=list(islice(sight.topics, NAMED_TOPICS)),
            topics_total=len(sight.topics),
            lag=sight.lag,
            waiting_bytes=sight.waiting_bytes,
        )

    def _performance(self, call: Call) -> Performance:
        return call.performance(self._engine.clock.perf_ns())
