"""`Producer` and `AsyncProducer`: take records one by one, and append them in batches.

Responsible for what `topics.client.producers.producer_buffer` leaves to others: the clock, the loop that sends batches,
and the waiting of threads (`Producer`) and tasks (`AsyncProducer`). `_Sender` is the loop of both. `Producer` runs it
in a thread of its own, on asyncio; its callers put records into the buffer in their own threads.

**Exactly once, in order**, for each topic and each sender: a batch is repeated under the same idempotency key until its
outcome is known, and the next batch of its topic waits for that. This holds across restarts of the daemon, except for
`ephemeral` topics, and for as long as the topic remembers keys (`idempotency_window_ms`, 120 s by default). Therefore
the producer gives a batch up after 60 s: the last attempt may take another 30 s (the client's timeout), which is still
inside the window. A batch that was given up may have been appended or not.

**Backpressure.** While the daemon cannot be reached, throttles or is read-only, batches wait as long as it says. The
buffer fills, and then `send` waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import random
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Generic, Self, TypeVar

import anyio
import anyio.abc
import anyio.lowlevel
import msgspec

from topics.client import calls
from topics.client.concurrent import AsyncClient
from topics.client.errors import ProtocolError, TopicsError
from topics.client.producers.producer_buffer import (
    Buffer,
    BufferFull,
    BufferLimits,
    DeliveryFailed,
    ProducerBatch,
    ProducerClosed,
)
from topics.client.results import NewRecord
from topics.client.retry import Attempts
from topics.client.sync import Client

__all__ = ["AsyncDelivery", "AsyncProducer", "BufferFull", "Delivery", "DeliveryFailed", "Producer", "ProducerClosed"]

BATCH_RECORDS: Final = 5000
BATCH_BYTES: Final = 1 << 20
LINGER_MS: Final = 5.0
MAX_IN_FLIGHT: Final = 8
MAX_BUFFERED_RECORDS: Final = 50_000
MAX_BUFFERED_BYTES: Final = 32 << 20
SEND_TIMEOUT: Final = 60.0
GIVE_UP_AFTER: Final = 60.0
CLOSE_TIMEOUT: Final = 30.0

_SENDS_IN_A_ROW: Final = 256
"""After so many records the asynchronous `send` lets other tasks run."""


_forks = 0
"""How many times this process and its ancestors were forked, since the program began."""


def _count_fork() -> None:
    global _forks  # noqa: PLW0603 - asking for the process's id with each record would cost as much as all else
    _forks += 1


os.register_at_fork(after_in_child=_count_fork)


class _Delivery(msgspec.Struct, eq=False, gc=False):
    """The outcome of one record. It is small, because there is one for each record: all else belongs to its batch."""

    _batch: ProducerBatch
    _index: int

    @property
    def topic(self) -> str:
        """The topic that the record was sent to."""
        return self._batch.topic

    @property
    def done(self) -> bool:
        """Return True if the outcome is known."""
        return self._batch.done

    def __repr__(self) -> str:
        return f"<{type(self).__name__} to {self.topic!r}, {'done' if self.done else 'not done'}>"


class Delivery(_Delivery, eq=False, gc=False):
    """A record that a `Producer` has taken, for callers in any thread."""

    def result(self, timeout: float | None = None) -> int:
        """Wait until the record is appended, and return its seq.

        Raises the TopicsError with which its batch has failed, and TimeoutError after `timeout` seconds (None: never).
        In `on_delivery`, call it only if the delivery is `done`.
        """
        batch = self._batch
        if not batch.done:
            event = threading.Event()
            buffer = batch.buffer
            if buffer.ask(batch, self._index, event.set):
                arrived = False
                try:
                    arrived = event.wait(_wait_time(timeout))
                finally:
                    late = not arrived and buffer.unask(batch, self._index, event.set)
                if late:
                    raise TimeoutError(f"a record to {self.topic} is not delivered after {timeout} s")
        return batch.buffer.outcome(batch, self._index)


class AsyncDelivery(_Delivery, eq=False, gc=False):
    """A record that an `AsyncProducer` has taken, for tasks of the producer's event loop."""

    async def wait(self) -> int:
        """Wait until the record is appended, and return its seq. Raises the TopicsError with which its batch has
        failed. If the call is cancelled, the record is sent all the same."""
        batch = self._batch
        if not batch.done:
            event = anyio.Event()
            buffer = batch.buffer
            if buffer.ask(batch, self._index, event.set):
                try:
                    await event.wait()
                finally:
                    if not event.is_set():
                        buffer.unask(batch, self._index, event.set)
        return batch.buffer.outcome(batch, self._index)

    def result(self) -> int:
        """Return the seq of the record, whose delivery must be `done`. Raises the TopicsError with which its batch has
        failed, and RuntimeError if the delivery is not done."""
        if not self.done:
            raise RuntimeError(f"a record to {self.topic} is not delivered yet")
        return self._batch.buffer.outcome(self._batch, self._index)


C = TypeVar("C")
D = TypeVar("D", bound=_Delivery)


class _Sender(Generic[D]):
    """The loop that sends the batches that are due, in the event loop of `client`. It runs until `stop` is called or
    `run` is cancelled."""

    def __init__(
        self,
        client: AsyncClient,
        buffer: Buffer[D],
        *,
        create: bool,
        give_up_after: float,
        halt_on_failure: bool,
        on_delivery: Callable[[D], object] | None,
    ) -> None:
        retry = client.connection.retry
        self._client = client
        self._buffer = buffer
        self._create = None if create else False
        self._retry = None if retry is None else dataclasses.replace(retry, give_up_after=give_up_after)
        self._halt_on_failure = halt_on_failure
        self._on_delivery = on_delivery
        self._rng = random.Random()
        self._news = anyio.Event()
        self._scope = anyio.CancelScope()
        self.ended = anyio.Event()
        self.callback_error: Exception | None = None
        """The first exception that `on_delivery` has raised since `flush` or `close` raised one."""

    def wake(self) -> None:
        """Have the loop look at the buffer again. In the thread of the event loop."""
        self._news.set()

    def stop(self) -> None:
        """End `run`. Batches that are being sent fail, and may have been appended or not; the others were not."""
        self._scope.cancel()

    async def run(self, *, task_status: anyio.abc.TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Send batches until `stop` or until it is cancelled. At the end all records have an outcome."""
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    task_status.started()
                    while True:
                        self._news = anyio.Event()
                        while (batch := self._buffer.take(time.monotonic())) is not None:
                            tasks.start_soon(self._deliver, batch)
                        pause = self._buffer.next_at() - time.monotonic()
                        with anyio.move_on_after(max(pause, 0.0)):
                            await self._news.wait()
        finally:
            self._abandon("the producer was closed before the record was sent")
            self.ended.set()

    async def _deliver(self, batch: ProducerBatch) -> None:
        first_seq = 0
        error: Exception | None = ProducerClosed("the producer was closed before it was known whether it was appended")
        try:
            first_seq = await self._append(batch)
            error = None
        except Exception as failure:
            error = failure
        finally:
            self._buffer.settle(batch, first_seq=first_seq, error=error)
            self._tell(batch)
            if error is not None and self._halt_on_failure:
                self._abandon("not sent, because records before it have failed")
            self._buffer.finish(batch, time.monotonic())

    async def _append(self, batch: ProducerBatch) -> int:
        """Append a batch, and repeat that until its outcome is known or it is time to give up. Returns the first
        seq."""
        fields = {"idempotency_key": batch.key, "create": self._create}
        call = calls.encoded_append(batch.topic, batch.records, fields, return_seqs=False)
        daemons = len(self._client.connection.urls)
        attempts = Attempts(self._retry, repeatable=True, now=time.monotonic(), rng=self._rng, daemons=daemons)
        while True:
            try:
                appended = await self._client.once(call)
                break
            except TopicsError as error:
                pause = attempts.after(error, time.monotonic())
            await anyio.sleep(pause)
        if appended.count != batch.count:
            raise ProtocolError(f"{batch.count} records were sent to {batch.topic}, {appended.count} were appended")
        assert appended.first_seq is not None  # there are no duplicates: see `_encoded`
        return appended.first_seq

    def _abandon(self, why: str) -> None:
        """Take no more records, and fail the batches that are not being sent."""
        for batch in self._buffer.abandon(ProducerClosed(why)):
            self._tell(batch)
            self._buffer.finish_abandoned(batch)

    def _tell(self, batch: ProducerBatch) -> None:
        if self._on_delivery is None or batch.deliveries is None:
            return
        for delivery in batch.deliveries:
            try:
                self._on_delivery(delivery)
            except Exception as error:
                self.callback_error = self.callback_error or error


class _Producer(Generic[C, D]):
    """The common part of both producers. `client` is the client, or the url to make one for."""

    _delivery: Callable[[ProducerBatch, int], D]

    def __init__(
        self,
        client: C,
        *,
        linger_ms: float = LINGER_MS,
        batch_records: int = BATCH_RECORDS,
        batch_bytes: int = BATCH_BYTES,
        max_in_flight: int = MAX_IN_FLIGHT,
        max_buffered_records: int = MAX_BUFFERED_RECORDS,
        max_buffered_bytes: int = MAX_BUFFERED_BYTES,
        send_timeout: float = SEND_TIMEOUT,
        give_up_after: float = GIVE_UP_AFTER,
        close_timeout: float = CLOSE_TIMEOUT,
        create: bool = True,
        halt_on_failure: bool = False,
        on_delivery: Callable[[D], object] | None = None,
    ) -> None:
        """Raises ValueError for a bound that lets no record through.

        `linger_ms` is how long the first record of a batch waits for others; the batch is sent earlier when it has
        `batch_records` records or `batch_bytes` bytes of encoded records. While the batch before is being sent, a batch
        grows up to these bounds anyway, so a longer linger makes batches larger only where records are rare. The daemon
        has bounds of its own (10,000 records, 64 MiB). It refuses a larger batch as a whole, and a batch with a record
        that it does not accept.

        `max_in_flight` is how many topics may have a batch that is being sent. `max_buffered_records` and
        `max_buffered_bytes` bound the records without an outcome; when a bound is reached, `send` waits for room, for
        at most `send_timeout` seconds. `give_up_after` is how long a batch is repeated, in seconds. Keep it below the
        idempotency window of the topics less the client's timeout, or a batch may be appended twice. `close_timeout` is
        how long `close` waits for outcomes, in seconds. With `create=False` no topic is created, and records for a
        topic that does not exist fail. With `halt_on_failure`, when a batch has failed, no other batch is sent any
        more, so that no topic gets records behind a hole: their deliveries fail, and `send` raises ProducerClosed.

        `on_delivery` is called with each delivery when it is done, in the event loop that sends, and must not block.
        The next `flush` or `close` raises the first exception that it has raised.
        """
        limits = BufferLimits(
            batch_records=batch_records,
            batch_bytes=batch_bytes,
            linger=linger_ms / 1000,
            max_in_flight=max_in_flight,
            max_buffered_records=max_buffered_records,
            max_buffered_bytes=max_buffered_bytes,
        )
        self._send_timeout = send_timeout
        self._close_timeout = close_timeout
        self._give_up_after = give_up_after
        self._create = create
        self._halt_on_failure = halt_on_failure
        self._on_delivery = on_delivery
        self._buffer: Buffer[D] = Buffer(
            limits,
            key_prefix=secrets.token_hex(12),
            delivery=self._delivery,
            news=self._wake,
            keep_deliveries=on_delivery is not None,
        )
        self._start(client)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}, {self.buffered} records buffered>"

    @property
    def buffered(self) -> int:
        """How many records have no outcome yet."""
        return self._buffer.records

    def _start(self, client: C) -> None:
        raise NotImplementedError

    def _wake(self) -> None:
        """Have the sender look at the buffer again. In any thread."""
        raise NotImplementedError

    def _sender_of(self, client: AsyncClient) -> _Sender[D]:
        return _Sender(
            client,
            self._buffer,
            create=self._create,
            give_up_after=self._give_up_after,
            halt_on_failure=self._halt_on_failure,
            on_delivery=self._on_delivery,
        )

    def _report(self, sender: _Sender[D]) -> None:
        """Raise the first exception of `on_delivery`, or else a DeliveryFailed for records whose failure nobody has
        seen."""
        raised, sender.callback_error = sender.callback_error, None
        failure = raised or self._buffer.failures()
        if failure is not None:
            raise failure

    def _full(self) -> BufferFull:
        return BufferFull(f"no room for a record: {self.buffered} wait to be delivered")


class Producer(_Producer[Client | str, Delivery]):
    """Takes records one by one and appends them in batches, in a thread of its own.

        with Producer(Client()) as producer:
            producer.send("orders", {"id": 1})

    `client` is a Client, whose settings (not its connections) the producer uses, or a url. Any number of threads may
    send; a topic gets the records of one thread in their order. Close the producer, or leave its `with` block: a
    program that ends without that loses the records that are not delivered. A producer does not survive a fork: make
    one in each process.
    """

    _delivery = Delivery

    def _start(self, client: Client | str) -> None:
        self._born_after = _forks
        self._asynchronous = client.asynchronous() if isinstance(client, Client) else AsyncClient(client)
        self._sender: _Sender[Delivery]
        self._loop: asyncio.AbstractEventLoop
        running = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(running,), name="topics-producer", daemon=True)
        self._thread.start()
        running.wait()

    def _work(self, running: threading.Event) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            async with self._asynchronous as client:
                self._sender = self._sender_of(client)
                running.set()
                await self._sender.run()

        anyio.run(serve, backend="asyncio")

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._sender.wake)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the producer. If the block ends with an error and closing fails too, that failure is a note of the
        error."""
        try:
            self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the producer: {failure}")

    def send(
        self,
        topic: str,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> Delivery:
        """Take a record, to be appended to `topic` in a batch. `data` is its data, or a NewRecord. It is encoded at
        once: later changes of the object do not matter.

        Waits while the buffer is full. Raises BufferFull after `send_timeout` seconds (in `on_delivery`: at once),
        ProducerClosed after `close`, TypeError or ValueError for data that JSON cannot express, and ValueError for a
        record that is larger than the whole buffer. KeyboardInterrupt while it waits: the record was not taken.
        """
        if _forks != self._born_after:
            raise RuntimeError("a producer does not survive a fork: make one in each process")
        record = _encoded(data, tag, node, meta)
        delivery = self._buffer.put(topic, record, time.monotonic())
        return delivery if delivery is not None else self._send_with_patience(topic, record)

    def _send_with_patience(self, topic: str, record: bytes) -> Delivery:
        if threading.current_thread() is self._thread:
            raise self._full()
        event = threading.Event()
        turn = self._buffer.wait_for_room(record, event.set)
        try:
            if not event.wait(_wait_time(self._send_timeout)) and not turn.granted:
                raise self._full()
            delivery = self._buffer.put(topic, record, time.monotonic(), turn)
        finally:
            self._buffer.leave(turn)
        assert delivery is not None
        return delivery

    def flush(self, timeout: float | None = None) -> None:
        """Send all batches without lingering, and wait until every record that was taken before has an outcome.

        Raises TimeoutError after `timeout` seconds (None: never). Raises the first exception that `on_delivery` has
        raised since the last `flush`, or else DeliveryFailed if records have failed whose `result()` nobody has asked
        for and that no `flush` has reported.
        """
        if not self._wait_for_all(timeout):
            raise TimeoutError(f"{self.buffered} records are not delivered after {timeout} s")
        self._report(self._sender)

    def close(self, timeout: float | None = None) -> None:
        """Take no more records, deliver those that were taken, and end the thread.

        Records that have no outcome after `timeout` seconds (None: `close_timeout`) fail. Raises as `flush`, except for
        TimeoutError. Closing again does nothing.
        """
        if _forks != self._born_after:
            return
        self._buffer.close()
        try:
            self._wait_for_all(self._close_timeout if timeout is None else timeout)
        finally:
            try:
                self._loop.call_soon_threadsafe(self._sender.stop)
            except RuntimeError:
                pass  # the loop has ended: it was closed before
            self._thread.join()
        self._report(self._sender)

    def _wait_for_all(self, timeout: float | None) -> bool:
        """Return True if every record that is in the buffer now has an outcome within `timeout` seconds."""
        if threading.current_thread() is self._thread:
            raise RuntimeError("on_delivery must not wait for deliveries")
        until = math.inf if timeout is None else time.monotonic() + timeout
        for batch in self._buffer.flush():
            event = threading.Event()
            if self._buffer.watch(batch, event.set):
                try:
                    if not event.wait(_wait_time(until - time.monotonic())):
                        return False
                finally:
                    self._buffer.unwatch(batch, event.set)
        return True


class AsyncProducer(_Producer[AsyncClient, AsyncDelivery]):
    """Takes records one by one and appends them in batches; an asynchronous context manager, on trio and asyncio.

        async with AsyncProducer(client) as producer:
            await producer.send("orders", {"id": 1})

    For the tasks of one event loop; a topic gets the records of one task in their order. Leaving the block closes the
    producer, also after an error. If the block is *cancelled*, all records without an outcome fail: those in the buffer
    were not sent, those that are being sent may have been appended or not.
    """

    _delivery = AsyncDelivery

    def _start(self, client: AsyncClient) -> None:
        self._client = client
        self._sender: _Sender[AsyncDelivery] | None = None
        self._sends = 0

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    async def __aenter__(self) -> Self:
        self._sender = self._sender_of(self._client)
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        await self._tasks.start(self._sender.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        """Close the producer. If the block ends with an error and closing fails too, that failure is a note of the
        error."""
        assert self._sender is not None
        try:
            if not isinstance(error, anyio.get_cancelled_exc_class()):
                await self.close()
        except Exception as failure:
            if error is None:
                raise
            error.add_note(f"closing the producer: {failure}")
        finally:
            self._sender.stop()
            # The error of the block is not the task group's: it would wrap it.
            await self._tasks.__aexit__(None, None, None)

    async def send(
        self,
        topic: str,
        data: object,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, str] | None = None,
    ) -> AsyncDelivery:
        """Take a record, to be appended to `topic` in a batch. `data` is its data, or a NewRecord. It is encoded at
        once: later changes of the object do not matter.

        Waits while the buffer is full, and lets other tasks run now and then. Raises BufferFull after `send_timeout`
        seconds, ProducerClosed after `close`, TypeError or ValueError for data that JSON cannot express, and ValueError
        for a record that is larger than the whole buffer. If the call is cancelled, the record was not taken.
        """
        if self._sender is None:
            raise RuntimeError("the producer is not open: use `async with`")
        record = _encoded(data, tag, node, meta)
        self._sends += 1
        if self._sends % _SENDS_IN_A_ROW == 0:
            await anyio.lowlevel.checkpoint()
        delivery = self._buffer.put(topic, record, time.monotonic())
        return delivery if delivery is not None else await self._send_with_patience(topic, record)

    async def _send_with_patience(self, topic: str, record: bytes) -> AsyncDelivery:
        event = anyio.Event()
        turn = self._buffer.wait_for_room(record, event.set)
        try:
            with anyio.move_on_after(self._send_timeout):
                await event.wait()
            if not event.is_set():
                raise self._full()
            delivery = self._buffer.put(topic, record, time.monotonic(), turn)
        finally:
            self._buffer.leave(turn)
        assert delivery is not None
        return delivery

    async def flush(self, timeout: float | None = None) -> None:
        """Send all batches without lingering, and wait until every record that was taken before has an outcome.

        Raises as `Producer.flush`. If the call is cancelled, the records are delivered all the same.
        """
        if self._sender is None:
            raise RuntimeError("the producer is not open: use `async with`")
        with anyio.fail_after(timeout):
            await self._wait_for_all()
        self._report(self._sender)

    async def close(self, timeout: float | None = None) -> None:
        """Take no more records, deliver those that were taken, and end.

        Records that have no outcome after `timeout` seconds (None: `close_timeout`), or when the call is cancelled,
        fail. Raises as `flush`, except for TimeoutError. Closing again does nothing.
        """
        self._buffer.close()
        if self._sender is None:
            return
        try:
            with anyio.move_on_after(self._close_timeout if timeout is None else timeout):
                await self._wait_for_all()
        finally:
            self._sender.stop()
            with anyio.CancelScope(shield=True):
                await self._sender.ended.wait()
        self._report(self._sender)

    async def _wait_for_all(self) -> None:
        for batch in self._buffer.flush():
            event = anyio.Event()
            if self._buffer.watch(batch, event.set):
                try:
                    await event.wait()
                finally:
                    self._buffer.unwatch(batch, event.set)


def _wait_time(seconds: float | None) -> float | None:
    """A timeout as `threading` takes it: None where it is None or too long for `threading`."""
    return None if seconds is None or seconds > threading.TIMEOUT_MAX else max(seconds, 0.0)


def _encoded(data: object, tag: str | None, node: str | None, meta: Mapping[str, str] | None) -> bytes:
    """Return a record as JSON. Raises TypeError or ValueError."""
    if isinstance(data, NewRecord) and data.unique is not None:
        raise ValueError("a producer knows its records by their seqs, and takes none with a unique key: use append")
    return calls.encode_record(data, tag, node, meta)
