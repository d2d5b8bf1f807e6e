"""`Client`: the calls of `/v0` for programs that block.

A thin shell: what is said is `topics.client.calls`, what is repeated `topics.client.retry`. One client may be used from
many threads; it keeps its connections open and has to be closed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import httpx

from topics.client import bulk, calls, results, tailing
from topics.client.calls import Call
from topics.client.errors import TopicsError
from topics.client.results import Record, Tombstone
from topics.client.retry import Attempts, Retry
from topics.client.transport import Connection, refusal, result, signed

if TYPE_CHECKING:
    from topics.client.concurrent import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")


def _method(make: Callable[P, Call[T]]) -> Callable[Concatenate[Client, P], T]:
    """A method out of a function that makes a call."""

    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(make(*args, **kwargs))

    signed(method, make)
    return method


class Client:
    """A client of one daemon.

    `url` is TOPICS_URL or `http://127.0.0.1:4000` if it is not given, `token` (an API key) TOPICS_TOKEN or none.
    `timeout` is how long to wait for a connection or for the next byte, in seconds; `retry=None` repeats nothing.
    `gzip` asks for compressed answers: for networks that are slower than the daemon's processor.

    Every method raises a TopicsError of `topics.client.errors`. KeyboardInterrupt ends a call at once; what was sent
    may have been carried out.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout: float = 30.0,
        retry: Retry | None = Retry(),  # noqa: B008 - immutable
        gzip: bool = False,
    ) -> None:
        self.connection = Connection.made(url, token, timeout=timeout, retry=retry, gzip=gzip)
        self._http = httpx.Client(**self.connection.options())
        self._rng = random.Random()

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    @property
    def url(self) -> str:
        """Where the daemon is."""
        return self.connection.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Streams that are open end."""
        self._http.close()

    def asynchronous(self) -> AsyncClient:
        """An AsyncClient that goes the same way."""
        from topics.client.concurrent import AsyncClient  # noqa: PLC0415 - anyio is not needed for blocking calls

        return AsyncClient.over(self.connection)

    # -- how a call is made ------------------------------------------------------------------------------------------

    def run(self, call: Call[T]) -> T:
        """Make a call and repeat it where that is safe and allowed (`docs/design/clients.md`)."""
        attempts = self.connection.attempts(call, now=time.monotonic(), rng=self._rng)
        while True:
            try:
                return self.once(call)
            except TopicsError as error:
                time.sleep(attempts.after(error, time.monotonic()))

    def once(self, call: Call[T]) -> T:
        """Make a call, and repeat nothing."""
        try:
            answer = self._http.request(**self.connection.request(call))
        except httpx.HTTPError as error:
            raise self.connection.failure(error) from None
        return result(call, answer.status_code, answer.headers, answer.content)

    @contextmanager
    def opened(self, call: Call[bytes], *, silence: float | None = None) -> Iterator[httpx.Response]:
        """The answer to a call as a stream, which is closed at the end; its status was looked at. `silence`: seconds
        without a byte after which it counts as broken. Nothing is repeated, and what breaks while it is open is
        raised as a ConnectionFailed too."""
        request = self.connection.request(call, silence)
        try:
            with self._http.stream(**request) as answer:
                if answer.status_code != 200:
                    raise refusal(answer.status_code, answer.headers, answer.read())
                yield answer
        except httpx.HTTPError as error:
            raise self.connection.failure(error) from None

    def _attempts(self) -> Attempts:
        return Attempts(self.connection.retry, repeatable=True, now=time.monotonic(), rng=self._rng)

    # -- the daemon --------------------------------------------------------------------------------------------------

    health = _method(calls.health)
    ready = _method(calls.ready)
    metrics = _method(calls.metrics)
    openapi = _method(calls.openapi)
    checkpoint = _method(calls.checkpoint)

    def metrics_text(self) -> str:
        """All metrics in Prometheus's text format."""
        return self.run(calls.metrics_text()).decode()

    # -- topics ------------------------------------------------------------------------------------------------------

    create = _method(calls.create)
    update = _method(calls.update)
    state = _method(calls.state)
    delete_topic = _method(calls.delete_topic)

    # -- records -----------------------------------------------------------------------------------------------------

    append = _method(calls.append)
    stage = _method(bulk.stage)
    commit = _method(calls.commit)
    delete_stage = _method(calls.delete_stage)
    diff = _method(calls.diff)
    delete_records = _method(calls.delete_records)

    def read(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        limit: int = 1000,
        node: str | Iterable[str] = (),
        include_tags: bool = True,
        include_meta: bool = True,
    ) -> Iterator[Record | Tombstone]:
        """What comes after `from_seq`, up to `to_seq` or until there is no more, in pages of `limit`."""
        position, epoch = from_seq, None
        nodes = (node,) if isinstance(node, str) else tuple(node)
        while True:
            page = self.diff(
                topic,
                position,
                epoch=epoch,
                limit=limit,
                node=nodes,
                include_tags=include_tags,
                include_meta=include_meta,
            )
            yield from calls.values_of(page, to_seq)
            position, epoch = page.next_from_seq, page.epoch
            if page.caught_up or (to_seq is not None and position >= to_seq):
                return

    def export(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        from_ts: int | None = None,
        to_ts: int | None = None,
        match: str | None = None,
        node: str | Iterable[str] = (),
        include_tags: bool = True,
        include_meta: bool = True,
        include_data: bool = True,
        epoch: int | None = None,
    ) -> Iterator[Record | Tombstone]:
        """What lies in `(from_seq, to_seq]` (by default up to the head as of now) and between two times (ms), in one
        stream. `match` is a tag, or with a final `*` a prefix of tags; with `epoch`, another instance of the topic is
        met with a tombstone. A stream that is cut off is asked for again from where it ended; the pauses are those of
        the retries, and begin anew with each record."""
        state = self.state(topic, touch=False)
        export = bulk.Export(
            topic,
            from_seq,
            state.head_seq if to_seq is None else to_seq,
            epoch=state.epoch if epoch is None else epoch,
            ts=(from_ts, to_ts),
            match=match,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
        )
        attempts, before = self._attempts(), -1
        while True:
            try:
                with self.opened(export.call()) as answer:
                    for piece in answer.iter_bytes():
                        yield from export.feed(piece)
                    export.finished()
                return
            except TopicsError as error:
                if export.position != before:
                    attempts, before = self._attempts(), export.position
                wait = attempts.after(error, time.monotonic())
            time.sleep(wait)

    @contextmanager
    def export_stream(
        self,
        topic: str,
        from_seq: int = 0,
        *,
        to_seq: int | None = None,
        from_ts: int | None = None,
        to_ts: int | None = None,
        match: str | None = None,
        node: str | Iterable[str] = (),
        include_tags: bool = True,
        include_meta: bool = True,
        include_data: bool = True,
        epoch: int | None = None,
        accept: str = bulk.LINES,
    ) -> Iterator[Iterator[bytes]]:
        """The bytes of an export as they come, in the format `accept`: NDJSON, or an Arrow stream
        (`application/vnd.apache.arrow.stream`; raises an ApiError of status 406 where the daemon has none). The stream
        is closed at the end of the block. Nothing is repeated; one that was cut off has no `$end`."""
        call = bulk.export(
            topic,
            from_seq,
            to_seq=to_seq,
            from_ts=from_ts,
            to_ts=to_ts,
            match=match,
            node=node,
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
            epoch=epoch,
            accept=accept,
        )
        with self.opened(call) as answer:
            yield answer.iter_bytes()

    def ingest(
        self,
        topic: str,
        records: Iterable[object],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool | None = None,
        disable_backpressure: bool = False,
    ) -> results.Ingested:
        """Upload any number of records in one stream: NewRecords, or JSON values which become data. They are stored in
        atomic batches as they come; a failure says in its `detail` how much is (`committed`, `last_seq`, `line`).

        Nothing is repeated, since `records` may be an iterator. With an `idempotency_key` the same upload may be
        repeated, and stores what is missing."""

        def pieces() -> Iterator[bytes]:
            gathered = bulk.Pieces()
            for record in records:
                if (piece := gathered.add(record)) is not None:
                    yield piece
            if (piece := gathered.rest()) is not None:
                yield piece

        call = bulk.ingest(
            topic,
            pieces(),
            node=node,
            idempotency_key=idempotency_key,
            create=create,
            disable_backpressure=disable_backpressure,
        )
        return self.once(call)

    # -- live delivery -----------------------------------------------------------------------------------------------

    tail = tailing.tail
    watch = tailing.watch
    work = tailing.work

    # -- routers -----------------------------------------------------------------------------------------------------

    create_router = _method(calls.create_router)
    update_router = _method(calls.update_router)
    router = _method(calls.router)
    routers = _method(calls.router_page)
    delete_router = _method(calls.delete_router)

    def all_routers(
        self, *, prefix: str = "", source: str | None = None, dest: str | None = None
    ) -> Iterator[results.RouterState]:
        """Every router, in the order of names, fetched page by page."""
        cursor: str | None = None
        while True:
            page = self.routers(prefix=prefix, source=source, dest=dest, page_size=1000, cursor=cursor)
            yield from page.routers
            if (cursor := page.next_cursor) is None:
                return

    # -- queues ------------------------------------------------------------------------------------------------------

    claim = _method(calls.claim)
    ack = _method(calls.ack)
    nack = _method(calls.nack)
    extend = _method(calls.extend)

    # -- lists: last, because the name hides the type ----------------------------------------------------------------

    def list_all(self, *, prefix: str = "") -> Iterator[results.TopicSummary]:
        """Every topic, in the order of names, fetched page by page."""
        cursor: str | None = None
        while True:
            page = self.list(prefix=prefix, page_size=1000, cursor=cursor)
            yield from page.topics
            if (cursor := page.next_cursor) is None:
                return

    list = _method(calls.topic_page)
