"""`Client`: the calls of `/v0` for programs that block.

A shell that only does I/O: it sends, receives and sleeps. Requests are built by `topics.client.calls`, `bulk` and
`pages`, answers are judged by `topics.client.transport`, repeats are decided by `topics.client.retry`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

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
from topics.client.streams import tails
from topics.client.streams.follower import Followed
from topics.client.transport import BaseClient, DaemonEndpoint, answered, is_about, refusal, signed, unanswered

if TYPE_CHECKING:
    from topics.client.concurrent import AsyncClient

P = ParamSpec("P")
T = TypeVar("T")


# Each of these makes a method of the client out of a function that says what the method does, without I/O.


def _method(make: Callable[P, ClientCall[T]]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.run(make(*args, **kwargs))

    signed(method, make)
    return method


def _paged(make: Callable[P, Pages[T]]) -> Callable[Concatenate[Client, P], Iterator[T]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        found = make(*args, **kwargs)
        while (call := found.next_call()) is not None:
            yield from found.values(self.run(call))

    signed(method, make)
    return method


def _exported(make: Callable[P, ExportDownload]) -> Callable[Concatenate[Client, P], Iterator[Record | Tombstone]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Record | Tombstone]:
        export = make(*args, **kwargs)
        export.begin(self.run(export.state_call()))
        call = export.call()
        attempts = self.connection.attempts(call, now=time.monotonic(), rng=self._rng)
        while True:
            wait = 0.0
            try:
                with self.opened(call) as answer:
                    for piece in answer.iter_bytes():
                        yield from export.feed(piece)
                    export.finished()
                if export.done:
                    return
            except TopicsError as error:
                wait = attempts.after(error, time.monotonic(), position=export.position)
            time.sleep(wait)
            call = export.call()

    signed(method, make)
    return method


def _streamed(
    make: Callable[P, ClientCall[bytes]],
) -> Callable[Concatenate[Client, P], AbstractContextManager[Iterator[bytes]]]:
    @contextmanager
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Iterator[bytes]]:
        with self.opened(make(*args, **kwargs)) as answer:
            yield answer.iter_bytes()

    signed(method, make)
    return method


def _consumed(make: Callable[P, Consumption]) -> Callable[Concatenate[Client, P], Iterator[Record | Tombstone]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Record | Tombstone]:
        machine = make(*args, **kwargs)
        try:
            while True:
                while (value := machine.take(time.monotonic())) is not None:
                    yield value
                try:
                    machine.answered(self.run(machine.next_call(time.monotonic())))
                except TopicsError as error:
                    time.sleep(machine.failed(error))
        finally:
            with suppress(TopicsError):
                for call in machine.closing_calls():
                    self.once(call)

    signed(method, make)
    return method


def _table(make: Callable[P, TablePages]) -> Callable[Concatenate[Client, P], Iterator[Followed]]:
    def method(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Followed]:
        found = make(*args, **kwargs)
        while (call := found.next_call()) is not None:
            yield from found.values(self.run(call))
        assert found.position is not None
        yield CaughtUp(topic=found.topic, head_seq=found.position.seq)
        with self.tail(found.topic, found.position, filter=found.filter) as changes:
            yield from changes

    signed(method, make)
    return method


class Client(BaseClient):
    """A client of one daemon, or of an owner and its standbys, for programs that block.

    Any number of threads may use one client. It keeps its connections open; `close` it, or use it in a `with` block.

    Every call raises a TopicsError (`topics.client.errors`) if it fails, TypeError or ValueError for arguments that
    JSON cannot express, and RuntimeError after `close`. A failed call is repeated for as long as `retry` allows, where
    a repeat does no harm. KeyboardInterrupt ends a call at once; the daemon may have carried it out.
    """

    def _set_up(self, connection: DaemonEndpoint) -> None:
        super()._set_up(connection)
        self._http = httpx.Client(**connection.options())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Open streams break; calls that are made later raise RuntimeError."""
        self._http.close()

    def asynchronous(self) -> AsyncClient:
        """A new AsyncClient with the settings of this client, and connections of its own."""
        from topics.client.concurrent import AsyncClient  # noqa: PLC0415 - anyio is not needed for blocking calls

        return AsyncClient.over(self.connection)

    # -- I/O ---------------------------------------------------------------------------------------------------------

    def run(self, call: ClientCall[T]) -> T:
        """Make a call, and repeat it for as long as `retry` allows if it fails and a repeat does no harm
        (`docs/design/clients.md`). Raises the TopicsError of the last attempt."""
        if call.upload is not None and len(self.connection.urls) > 1:
            self.run(daemon_calls.OWNER_READY)  # because the upload gets one attempt
        attempts = self.connection.attempts(call, now=time.monotonic(), rng=self._rng)
        while True:
            try:
                return self.once(call)
            except TopicsError as error:
                time.sleep(attempts.after(error, time.monotonic()))

    def once(self, call: ClientCall[T]) -> T:
        """Make one attempt at a call, at one daemon. Raises a TopicsError if it fails."""
        attempt = self._daemons.pick(call)
        try:
            answer = self._http.request(**self.connection.request(call, attempt.url))
        except httpx.HTTPError as error:
            raise unanswered(attempt, error) from None
        return answered(call, attempt, answer.status_code, answer.headers, answer.content)

    @contextmanager
    def opened(self, call: ClientCall[bytes], *, silence: float | None = None) -> Iterator[httpx.Response]:
        """Make one attempt at a call, and give its answer as a stream, which is closed at the end of the block.

        `silence` is how long the stream may bring no byte before it counts as broken, in seconds; None: the client's
        `timeout`. Raises a TopicsError for an answer without success, and ConnectionFailed where the connection fails,
        also in the block.
        """
        attempt = self._daemons.pick(call)
        request, answer = self.connection.request(call, attempt.url, silence), None
        try:
            with self._http.stream(**request) as answer:
                if answer.status_code != 200:
                    error = refusal(answer.status_code, answer.headers, answer.read())
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
    ingest = _method(bulk.ingest)
    stage = _method(bulk.stage)
    commit = _method(calls.commit)
    delete_stage = _method(calls.delete_stage)

    # -- live delivery -----------------------------------------------------------------------------------------------

    tail = tails.tail
    watch = tails.watch
    work = tails.work

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
