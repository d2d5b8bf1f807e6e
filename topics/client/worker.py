"""`AsyncWorker` and `Worker`: run a handler for every job of a queue, and keep its lease meanwhile.

Responsible for the tasks and the clock: one task claims, one says what became of jobs, one extends leases, one ends it
all, and each job has one of its own for its handler. They share a `leasing.Hand`, which knows what is to be said next,
and wait for its changes. Nothing is repeated by the client underneath (`AsyncClient.once`): by the time of a repeat
there are other jobs to ack, and an extension must not sit out a long wait while a short lease runs out.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import math
import os
import random
import secrets
import signal
import socket
from collections.abc import Callable, Iterator
from typing import Final, Protocol, TypedDict, TypeVar, Unpack

import anyio
import anyio.abc
import anyio.to_thread
import trio

from topics.client import calls
from topics.client.calls import Call
from topics.client.errors import ConnectionFailed, TopicsError
from topics.client.leasing import Backoff, Hand, Held, Nack, Stats
from topics.client.results import Job
from topics.client.retry import Retry, may_repeat
from topics.client.sync import Client

WAIT_MS: Final = 20_000
"""How long a claim waits for a first job: below the 30 s after which what is in between may cut a silent connection."""

PAUSE_S: Final = 0.05
"""Between a claim that was given nothing and the next."""

GIVE_BACK_S: Final = 2.0
"""How long the end may take to tell the daemon what became of the last jobs."""

MIN_LEASE_MS: Final = 100
MAX_LEASE_MS: Final = 86_400_000

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Caller(Protocol):
    """What a worker needs of an AsyncClient."""

    async def once(self, call: Call[T]) -> T:
        """Make a call, and repeat nothing."""
        ...


class Options(TypedDict, total=False):
    """The options of a worker (`AsyncWorker`)."""

    node: str | None
    concurrency: int
    lease_ms: int | None
    backoff: Callable[[int], int]
    on_error: Callable[[Job, Exception], None] | None
    drain_s: float
    max_jobs: int | None


class AsyncWorker:
    """Runs `handler` for every job of the queue `topic`, `concurrency` of them at a time (1 to 1000).

    **What a handler must expect: at least once.** A job is acked, which deletes it, after its handler has returned;
    until then it is leased to this worker alone. It is handled again if the ack does not get through before the lease
    is over: because the daemon or the network was away for longer, because this process was stopped, killed or
    suspended. So a handler should do no harm when it is run a second time for the same job, and one that takes long
    may look at `job.lost` now and then: it is set when the lease is known to be over, and somebody else may have the
    job. While nothing fails, each job is handled once. With a concurrency of 1, they are handled in the order in which
    the daemon gives them out.

    A handler is an `async def`, or a plain function, which runs in a thread. When it raises, the job is nacked and
    comes again after `backoff(job.deliveries)` ms; `on_error(job, error)` is called in the thread of the event loop
    (without it, the error is logged), and what that raises ends the worker. After `max_deliveries` of the topic the
    job goes to its dead-letter topic. A handler that raises `Nack(delay_ms)` has the job given out again after that
    time, and nobody is told of an error. Every delivery counts, also one that was no handler's fault: `max_deliveries`
    should leave room for a restart or two.

    Leases are of `lease_ms` (100 to 86400000; None: what the topic says when the worker starts) and are extended after
    a third of that, as long as a handler takes. `node` is who the daemon says holds the jobs; two workers at the same
    time need two names. No more than `concurrency` jobs are in hand at any time, from their claim until the daemon has
    confirmed what became of them; what is over while an ack is under way goes into the next one. So with short jobs
    it is `concurrency` that makes it fast.

    While the daemon is away, starting, throttling or failing, every call is repeated until it works or the lease is
    over, after waits that grow up to 5 s (where leases are at stake, up to a sixth of one) and are never shorter than
    the daemon asks for. The jobs of a claim whose answer was lost come again when their leases are over.
    """

    def __init__(
        self,
        client: Caller,
        topic: str,
        handler: Callable[[Job], object],
        *,
        node: str | None = None,
        concurrency: int = 1,
        lease_ms: int | None = None,
        backoff: Callable[[int], int] = Backoff(),  # noqa: B008 - immutable
        on_error: Callable[[Job, Exception], None] | None = None,
        drain_s: float = 30.0,
        max_jobs: int | None = None,
    ) -> None:
        """`drain_s` is how long `stop()` lets handlers finish, `math.inf` for ever. With `max_jobs` the worker ends by
        itself when it has claimed so many and they are over. Raises ValueError for what is out of its range."""
        if lease_ms is not None and not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise ValueError(f"lease_ms: must be from {MIN_LEASE_MS} to {MAX_LEASE_MS}")
        if not drain_s >= 0:
            raise ValueError("drain_s: must not be negative")
        if max_jobs is not None and max_jobs < 1:
            raise ValueError("max_jobs: must be 1 or more")
        self.topic = topic
        self.node = node or f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self._client = client
        self._handler = handler
        self._in_thread = not _is_async(handler)
        self._lease_ms = lease_ms
        self._backoff = backoff
        self._on_error = on_error
        self._drain_s = drain_s
        self._max_jobs = math.inf if max_jobs is None else max_jobs
        self._hand = Hand(concurrency)
        self._concurrency = concurrency
        self._patient = Retry()
        self._pressing = Retry()
        self._attempt_s = math.inf
        self._rng = random.Random()
        self._stopping = False
        self._drain_by = math.inf
        self._failure: Exception | None = None
        self._running = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, node={self.node!r})"

    @property
    def stats(self) -> Stats:
        """What it has claimed, acked, nacked and lost so far."""
        return self._hand.stats

    def stop(self, drain_s: float | None = None) -> None:
        """Claim nothing more, let the handlers that run finish within `drain_s` (None: as the constructor said), cancel
        the others and give their jobs back at once; then `run()` returns. Another call may make it shorter:
        `stop(0)`. A handler in a thread cannot be cancelled: its thread runs on, with `job.lost` set, and how it ends
        makes no difference any more (but on asyncio the process does not end before it). From the thread of the event
        loop; before `run()` too, which then does nothing.
        """
        self._stopping = True
        if self._running:
            drain_s = self._drain_s if drain_s is None else drain_s
            self._drain_by = min(self._drain_by, anyio.current_time() + drain_s)
            self._note()

    async def run(self) -> None:
        """Work until `stop()`, or until `max_jobs` are over. Once in the life of a worker.

        Raises NotFound when the topic is gone, Conflict if it is no queue, Unauthorized, Forbidden, and whatever else
        waiting does not cure. Handlers are cancelled then, as they are when `run()` is cancelled. However it ends, the
        jobs in hand are given back, in 2 s at most; of those that cannot be, the leases run out.
        """
        if self._running:
            raise RuntimeError("a worker runs once")
        self._running = True
        self._changed = anyio.Event()
        self._claiming = anyio.CancelScope()
        self._limiter = anyio.CapacityLimiter(self._concurrency)
        self._settling = _Row(f"{self.topic}: ack")
        try:
            async with anyio.create_task_group() as self._group:
                for task in (self._claim, self._settle, self._extend, self._end):
                    self._group.start_soon(self._guard, task)
        finally:
            await self._give_back()
        if self._failure is not None:
            raise self._failure

    # -- the tasks ---------------------------------------------------------------------------------------------------

    async def _claim(self) -> None:
        """Claim what there is room for, until it is cancelled (`_end`) or there were `max_jobs`."""
        row = _Row(f"{self.topic}: claim")
        with self._claiming:
            lease_ms = self._lease_ms
            if lease_ms is None:
                state = await self._persist(calls.state(self.topic, touch=False), row)
                lease_ms = state.config.lease_ms
            self._hand.lease_s = lease_ms / 1000
            self._pressing = Retry(longest_wait=min(max(self._hand.lease_s / 6, 0.05), self._patient.longest_wait))
            self._attempt_s = max(self._hand.lease_s / 3, 1.0)
            while wanted := self._max_jobs - self.stats.claimed:
                most = int(min(await self._until(lambda: self._hand.free), wanted))
                call = calls.claim(self.topic, self.node, max=most, lease_ms=lease_ms, wait_ms=WAIT_MS)
                answer = await self._persist(call, row)
                for held in self._hand.take(answer.claimed, anyio.current_time()):
                    held.job.topic = self.topic
                    self._group.start_soon(self._guard, lambda held=held: self._handle(held))
                self._note()
                if not answer.claimed:
                    await anyio.sleep(PAUSE_S)
            self.stop(math.inf)

    async def _handle(self, held: Held) -> None:
        """One job, from its claim to the end of its handler. Cancelled, it leaves the job in hand."""
        job = held.job
        try:
            if self._in_thread:
                (result,) = await anyio.to_thread.run_sync(
                    self._boxed, job, abandon_on_cancel=True, limiter=self._limiter
                )
            else:
                result = self._handler(job)
            if inspect.isawaitable(result):
                await result
        except Nack as nack:
            self._hand.failed(held, nack.delay_ms)
        except Exception as error:
            self._fail(held, error)
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # Something that it waited for was cancelled, on asyncio; the handler was not.
            self._fail(held, RuntimeError("the handler was cancelled from within"))
        else:
            self._hand.done(held)
        self._note()

    def _boxed(self, job: Job) -> tuple[object]:
        """What a handler in a thread returns, in a box: trio does not let out what is to be awaited."""
        return (self._handler(job),)

    def _fail(self, held: Held, error: Exception) -> None:
        delay_ms = self._backoff(held.job.deliveries)
        self._hand.failed(held, delay_ms)
        self._report(held.job, error, delay_ms)

    def _report(self, job: Job, error: Exception, delay_ms: int) -> None:
        if self._on_error is not None:
            self._on_error(job, error)
        else:
            again = f"job {job.seq} failed (delivery {job.deliveries}), again in {delay_ms} ms"
            _logger.warning("%s: %s", self.topic, again, exc_info=error)

    async def _settle(self) -> None:
        """Ack and nack what is over."""
        while True:
            await self._until(lambda: self._hand.unsettled)
            await self._settle_next()

    async def _settle_next(self) -> None:
        """One ack or nack, or a wait after it has failed."""
        batch = self._hand.next_call()
        where = self.topic, self.node, batch.seqs
        try:
            answer = await (
                self._attempt(calls.ack(*where, lease_ids=batch.lease_ids))
                if batch.delay_ms is None
                else self._attempt(calls.nack(*where, delay_ms=batch.delay_ms, lease_ids=batch.lease_ids))
            )
        except TopicsError as error:
            if not self._lowered(error):
                await self._settling.pause(error, self._pressing, self._rng)
        else:
            self._settling.ends()
            self._hand.settled(batch, answer.skipped)
            self._note()

    async def _extend(self) -> None:
        """Extend all leases whenever the oldest is due."""
        row = _Row(f"{self.topic}: extend")
        while True:
            due = await self._until(self._hand.extend_at)
            if due > anyio.current_time():
                await anyio.sleep_until(due)
                continue
            for batch in self._hand.to_extend():
                sent = anyio.current_time()
                lease_ms = round(self._hand.lease_s * 1000)
                try:
                    answer = await self._attempt(
                        calls.extend(self.topic, self.node, batch.seqs, lease_ms=lease_ms, lease_ids=batch.lease_ids)
                    )
                except TopicsError as error:
                    if self._lowered(error):
                        break
                    if not may_repeat(error, repeatable=False):
                        self._hand.maybe_extended(batch, anyio.current_time())
                    self._hand.expire(anyio.current_time())
                    self._note()
                    await row.pause(error, self._pressing, self._rng)
                    break
                row.ends()
                self._hand.extended(batch, answer.skipped, answer.deadlines, sent, anyio.current_time())
            self._note()

    async def _end(self) -> None:
        """Let handlers finish when it is to stop, and end all tasks."""
        await self._until(lambda: self._stopping)
        self._claiming.cancel()
        while not self._hand.empty and self._drain_by > anyio.current_time():
            changed = self._changed
            with anyio.CancelScope(deadline=self._drain_by):
                await changed.wait()
        self._group.cancel_scope.cancel()

    async def _give_back(self) -> None:
        """Nobody works any more: tell the daemon what became of what is in hand, if that can be done soon.
        Cancellation does not end it."""
        self._hand.give_up()
        self._settling = _Row(f"{self.topic}: last ack")
        self._pressing = Retry(longest_wait=GIVE_BACK_S / 10)
        with anyio.move_on_after(GIVE_BACK_S, shield=True), contextlib.suppress(TopicsError):
            while self._hand.unsettled:
                await self._settle_next()
        if self._hand.unsettled:
            _logger.warning("%s: the last jobs come again when their leases are over", self.topic)

    # -- what they share ---------------------------------------------------------------------------------------------

    async def _guard(self, task: Callable[[], object]) -> None:
        """Run a task whose failure ends all others, and is what `run()` raises."""
        try:
            await task()  # type: ignore[misc]
        except Exception as error:
            self._failure = self._failure or error
            self._group.cancel_scope.cancel()

    async def _until(self, condition: Callable[[], T | None]) -> T:
        """Wait until it is true of what is in hand."""
        while not (value := condition()):
            await self._changed.wait()
        return value

    def _note(self) -> None:
        """What is in hand has changed, or it is to stop: let all look who wait."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _persist(self, call: Call[T], row: _Row) -> T:
        """The answer to a call, repeated until there is one."""
        while True:
            try:
                answer = await self._client.once(call)
            except TopicsError as error:
                await row.pause(error, self._patient, self._rng)
            else:
                row.ends()
                return answer

    async def _attempt(self, call: Call[T]) -> T:
        """One try of a call that has to be over well before a lease is. Raises a TopicsError."""
        with anyio.move_on_after(self._attempt_s):
            return await self._client.once(call)
        raise ConnectionFailed(f"no answer within {self._attempt_s:g} s", outcome_unknown=True)

    def _lowered(self, error: TopicsError) -> bool:
        """Whether the call was refused because it names more than this daemon allows: the next ones name fewer."""
        most = error.detail.get("max")
        if error.code != "batch_too_large" or not isinstance(most, int) or not 1 <= most < self._hand.most:
            return False
        self._hand.most = most
        return True


class _Row:
    """Failures in a row of one kind of call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    async def pause(self, error: TopicsError, retry: Retry, rng: random.Random) -> None:
        """Wait until the call is to be made again. Raises the error if waiting does not cure it."""
        if not may_repeat(error, repeatable=True):
            raise error
        self._count += 1
        wait_s = retry.wait(self._count, error, rng)
        if self._count == 1:
            _logger.warning("%s failed, and is repeated until it works: %s", self._what, error)
        await anyio.sleep(wait_s)

    def ends(self) -> None:
        """It has worked."""
        if self._count:
            _logger.info("%s works again, after %d failures", self._what, self._count)
        self._count = 0


class Worker:
    """An AsyncWorker for programs that block: the same promises and options. Handlers are plain functions, each in a
    thread of its own, or `async def` on trio.

    It makes connections of its own, to where `client` goes. With `install_signal_handlers`, `run()` takes SIGINT and
    SIGTERM for a `stop()`, and a second one for `stop(0)`; it has to be called in the main thread then. Without it,
    KeyboardInterrupt cancels the handlers, gives their jobs back and is raised.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        handler: Callable[[Job], object],
        *,
        install_signal_handlers: bool = False,
        **options: Unpack[Options],
    ) -> None:
        self._client = client.asynchronous()
        self._worker = AsyncWorker(self._client, topic, handler, **options)
        self._heeds_signals = install_signal_handlers
        self._asked: list[float | None] = []
        self._token: trio.lowlevel.TrioToken | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._worker.topic!r}, node={self.node!r})"

    @property
    def node(self) -> str:
        """Who the daemon says holds the jobs."""
        return self._worker.node

    @property
    def stats(self) -> Stats:
        """What it has claimed, acked, nacked and lost so far."""
        return self._worker.stats

    def run(self) -> None:
        """`AsyncWorker.run`, in this thread."""
        with self._signals() if self._heeds_signals else contextlib.nullcontext():
            try:
                # Threads of trio do not hold up the end of the process: a handler that hangs cannot either.
                anyio.run(self._main, backend="trio")
            except BaseExceptionGroup as group:
                if group.subgroup(KeyboardInterrupt) is not None:
                    raise KeyboardInterrupt from None
                raise

    def stop(self, drain_s: float | None = None) -> None:
        """`AsyncWorker.stop`, from any thread or signal handler, at any time. Returns at once."""
        self._asked.append(drain_s)
        if self._token is not None:
            with contextlib.suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._pass_on)

    def _pass_on(self) -> None:
        while self._asked:
            self._worker.stop(self._asked.pop(0))

    async def _main(self) -> None:
        async with self._client:
            self._token = trio.lowlevel.current_trio_token()
            self._pass_on()
            await self._worker.run()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        asked: list[int] = []

        def heed(number: int, _: object) -> None:
            self.stop(0 if asked else None)
            asked.append(number)

        numbers = (signal.SIGINT, signal.SIGTERM)
        before = [(number, signal.signal(number, heed) or signal.SIG_DFL) for number in numbers]
        try:
            yield
        finally:
            for number, handler in before:
                signal.signal(number, handler)


def _is_async(handler: Callable[[Job], object]) -> bool:
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None))  # noqa: B004
