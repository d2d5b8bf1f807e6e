"""`AsyncClient`: the calls of `/v0` for programs on trio or asyncio.

A shell that only does I/O, as `topics.client.sync` is, with the same core: `topics.client.calls`, `bulk`, `pages`,
`transport` and `retry`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Concatenate, Final, ParamSpec, Self, TypeVar

import anyio
import httpx

from topics.client import (
    bulk,
    calls,
    consumer_calls,
    consumption,
    daemon_calls,
    evidence_calls,
    group_calls,
    job_calls,
    latest_calls,
    pages,
    redrive_calls,
    schedule_calls,
)
from topics.client.bulk import ExportDownload
from topics.client.calls import ClientCall
from topics.client.consumption import Consumption
from topics.client.errors import TopicsError
from topics.client.latest_calls import TablePages
from topics.client.pages import Pages
from topics.client.results import CaughtUp, Record, Tombstone
from topics.client.streams import async_tails
from topics.client.streams.follower import Followed
from topics.client.transport import BaseClient, DaemonEndpoint, answered, is_about, refusal, signed, unanswered

CLOSING_S: Final = 2.0
"""How long the end of an iteration of `consume` may take when it is cancelled, in seconds."""

P = ParamSpec("P")
T = TypeVar("T")


# Each of these makes a method of the client out of a function that says what the method does, without I/O.


def _method(make: Callable[P, ClientCall[T]]) -> Callable[Concatenate[AsyncClient, P], Awaitable[T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.run(make(*args, **kwargs))

    signed(method, make)
    return method


def _paged(make: Callable[P, Pages[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        found = make(*args, **kwargs)
        while (call := found.next_call()) is not None:
            for value in found.values(await self.run(call)):
                yield value

    signed(method, make)
    return method


def _exported(
    make: Callable[P, ExportDownload],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Record | Tombstone]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Record | Tombstone]:
        export = make(*args, **kwargs)
        export.begin(await self.run(export.state_call()))
        call = export.call()
        attempts = self.connection.attempts(call, now=anyio.current_time(), rng=self._rng)
        while True:
            wait = 0.0
            try:
                async with self.opened(call) as answer:
                    async for piece in answer.aiter_bytes():
                        for value in export.feed(piece):
                            yield value
                    export.finished()
                if export.done:
                    return
            except TopicsError as error:
                wait = attempts.after(error, anyio.current_time(), position=export.position)
            await anyio.sleep(wait)
            call = export.call()

    signed(method, make)
    return method


def _streamed(
    make: Callable[P, ClientCall[bytes]],
) -> Callable[Concatenate[AsyncClient, P], AbstractAsyncContextManager[AsyncIterator[bytes]]]:
    @asynccontextmanager
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[AsyncIterator[bytes]]:
        async with self.opened(make(*args, **kwargs)) as answer:
            yield answer.aiter_bytes()

    signed(method, make)
    return method


def _consumed(
    make: Callable[P, Consumption],
) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Record | Tombstone]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Record | Tombstone]:
        machine = make(*args, **kwargs)
        try:
            while True:
                while (value := machine.take(anyio.current_time())) is not None:
                    yield value
                try:
                    machine.answered(await self.run(machine.next_call(anyio.current_time())))
                except TopicsError as error:
                    wait = machine.failed(error)
                else:
                    continue
                await anyio.sleep(wait)
        finally:
            with anyio.move_on_after(CLOSING_S, shield=True), suppress(TopicsError):
                for call in machine.closing_calls():
                    await self.once(call)

    signed(method, make)
    return method


def _table(make: Callable[P, TablePages]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[Followed]]:
    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[Followed]:
        found = make(*args, **kwargs)
        while (call := found.next_call()) is not None:
            for record in found.values(await self.run(call)):
                yield record
        assert found.position is not None
        yield CaughtUp(topic=found.topic, head_seq=found.position.seq)
        async with self.tail(found.topic, found.position, filter=found.filter) as changes:
            async for change in changes:
                yield change

    signed(method, make)
    return method


class AsyncClient(BaseClient):
    """A client of one daemon, or of an owner and its standbys, for programs on trio or asyncio.

    Any number of tasks of one event loop may use one client. It keeps its connections open; `aclose` it, or use it in
    an `async with` block. Methods, parameters, results and errors are those of `Client`. The daemon may have carried
    out a call that was cancelled.
    """

    def _set_up(self, connection: DaemonEndpoint) -> None:
        super()._set_up(connection)
        self._http = httpx.AsyncClient(**connection.options())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections. Open streams break; calls that are made later raise RuntimeError."""
        await self._http.aclose()

    # -- I/O ---------------------------------------------------------------------------------------------------------

    async def run(self, call: ClientCall[T]) -> T:
        """Make a call, and repeat it for as long as `retry` allows if it fails and a repeat does no harm
        (`docs/design/clients.md`). Raises the TopicsError of the last attempt."""
        if call.upload is not None and len(self.connection.urls) > 1:
            await self.run(daemon_calls.OWNER_READY)  # because the upload gets one attempt
        attempts = self.connection.attempts(call, now=anyio.current_time(), rng=self._rng)
        while True:
            try:
                return await self.once(call)
            except TopicsError as error:
                wait = attempts.after(error, anyio.current_time())
            await anyio.sleep(wait)

    async def once(self, call: ClientCall[T]) -> T:
        """Make one attempt at a call, at one daemon. Raises a TopicsError if it fails."""
        attempt, began = self._daemons.pick(call), anyio.current_time()
        try:
            answer = await self._http.request(**self.connection.request(call, attempt.url))
        except httpx.HTTPError as error:
            raise unanswered(attempt, error) from None
        except anyio.get_cancelled_exc_class():
            attempt.given_up(anyio.current_time() - began)
            raise
        return answered(call, attempt, answer.status_code, answer.headers, answer.content)

    @asynccontextmanager
    async def opened(self, call: ClientCall[bytes], *, silence: float | None = None) -> AsyncIterator[httpx.Response]:
        """Make one attempt at a call, and give its answer as a stream, which is closed at the end of the block.

        `silence` is how long the stream may bring no byte before it counts as broken, in seconds; None: the client's
        `timeout`. Raises a TopicsError for an answer without success, and ConnectionFailed where the connection fails,
        also in the block.
        """
        attempt = self._daemons.pick(call)
        request, answer = self.connection.request(call, attempt.url, silence), None
        try:
            async with self._http.stream(**request) as answer:
                if answer.status_code != 200:
                    error = refusal(answer.status_code, answer.headers, await answer.aread())
                    attempt.judge(answer.headers, error)
                attempt.judge(answer.headers)
                yield answer
        except httpx.HTTPError as failure:
            if answer is not None and not is_about(failure, answer):
                raise  # of a call that the block has made with httpx itself
            raise unanswered(attempt, failure) from None

    # -- the daemon --------------------------------------------------------------------------------------------------

    health = _method(daemon_calls.health)
    ready = _method(daemon_calls.ready)
    metrics = _method(daemon_calls.metrics)
    metrics_text = _method(daemon_calls.metrics_text)
    openapi = _method(daemon_calls.openapi)
    checkpoint = _method(daemon_calls.checkpoint)
    key = _method(daemon_calls.key)
    figures = _method(daemon_calls.figures)
    storage = _method(daemon_calls.storage)
    connections = _method(daemon_calls.connections)
    parse_filter = _method(daemon_calls.parse_filter)
    consumers_of_all = _method(daemon_calls.consumers_of_all)
    groups_of_all = _method(daemon_calls.groups_of_all)

    # -- topics ------------------------------------------------------------------------------------------------------

    create = _method(calls.create)
    update = _method(calls.update)
    state = _method(calls.state)
    delete_topic = _method(calls.delete_topic)
    list_all = _paged(pages.list_all)

    # -- records -----------------------------------------------------------------------------------------------------

    append = _method(calls.append)
    append_bytes = _method(calls.append_bytes)
    transaction = _method(calls.transaction)
    diff = _method(calls.diff)
    record = _method(calls.record)
    latest = _method(latest_calls.latest)
    latest_page = _method(latest_calls.latest_page)
    all_latest = _paged(latest_calls.all_latest)
    follow_table = _table(latest_calls.follow_table)
    read = _paged(pages.read)
    delete_records = _method(calls.delete_records)
    delete_fence = _method(calls.delete_fence)
    seal = _method(calls.seal)

    # -- evidence ----------------------------------------------------------------------------------------------------

    evidence = _method(evidence_calls.evidence)
    inclusion = _method(evidence_calls.inclusion)
    consistency = _method(evidence_calls.consistency)
    evidence_key = _method(evidence_calls.evidence_key)

    # -- records in bulk ---------------------------------------------------------------------------------------------

    export = _exported(bulk.export)
    export_stream = _streamed(bulk.export_stream)
    ingest = _method(bulk.ingest_async)
    stage = _method(bulk.stage)
    commit = _method(calls.commit)
    delete_stage = _method(calls.delete_stage)

    # -- live delivery -----------------------------------------------------------------------------------------------

    tail = async_tails.tail
    watch = async_tails.watch
    work = async_tails.work

    # -- consumers ---------------------------------------------------------------------------------------------------

    create_consumer = _method(consumer_calls.create_consumer)
    consumer = _method(consumer_calls.consumer)
    consumers = _method(consumer_calls.consumer_page)
    all_consumers = _paged(pages.all_consumers)
    delete_consumer = _method(consumer_calls.delete_consumer)
    commit_consumer = _method(consumer_calls.commit_consumer)
    seek_consumer = _method(consumer_calls.seek_consumer)
    acquire_consumer = _method(consumer_calls.acquire_consumer)
    release_consumer = _method(consumer_calls.release_consumer)
    read_consumer = _method(consumer_calls.read_consumer)

    # -- schedules ---------------------------------------------------------------------------------------------------

    create_schedule = _method(schedule_calls.create_schedule)
    schedule = _method(schedule_calls.schedule)
    schedules = _method(schedule_calls.schedule_page)
    all_schedules = _paged(pages.all_schedules)
    delete_schedule = _method(schedule_calls.delete_schedule)
    run_schedule = _method(schedule_calls.run_schedule)
    pause_schedule = _method(schedule_calls.pause_schedule)
    resume_schedule = _method(schedule_calls.resume_schedule)
    consume = _consumed(consumption.consume)

    # -- groups ------------------------------------------------------------------------------------------------------

    create_group = _method(group_calls.create_group)
    group = _method(group_calls.group)
    groups = _method(group_calls.group_page)
    all_groups = _paged(pages.all_groups)
    delete_group = _method(group_calls.delete_group)

    # -- routers -----------------------------------------------------------------------------------------------------

    create_router = _method(calls.create_router)
    update_router = _method(calls.update_router)
    router = _method(calls.router)
    routers = _method(calls.router_page)
    all_routers = _paged(pages.all_routers)
    delete_router = _method(calls.delete_router)

    # -- queues ------------------------------------------------------------------------------------------------------

    claim = _method(calls.claim)
    ack = _method(calls.ack)
    nack = _method(calls.nack)
    extend = _method(calls.extend)
    pause = _method(job_calls.pause)
    resume = _method(job_calls.resume)
    jobs = _method(job_calls.job_page)
    all_jobs = _paged(pages.all_jobs)
    retry_jobs = _method(job_calls.retry_jobs)
    cancel_jobs = _method(job_calls.cancel_jobs)
    redrive = _method(redrive_calls.redrive)
    redrive_state = _method(redrive_calls.redrive_state)
    stop_redrive = _method(redrive_calls.stop_redrive)

    # -- lists: last, because the name hides the type ----------------------------------------------------------------

    list = _method(calls.topic_page)
