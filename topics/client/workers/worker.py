"""`AsyncWorker` and `Worker`: run a handler for every job of a queue, and keep its lease meanwhile.

Responsible for the tasks and the clock. One task claims jobs, one acks and nacks them, one extends leases, one ends the
others, and each job has a task of its own for its handler. They share a `held_jobs.HeldJobs`, which decides what the
next ack, nack or extension holds, and wait for its changes. The client repeats no call (`AsyncClient.once`): by the
time of a repeat there are more jobs to ack, and an extension must not wait for long while a short lease runs out.
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

from topics.client import calls, group_calls
from topics.client.calls import ClientCall
from topics.client.errors import ConnectionFailed, TopicsError
from topics.client.results import Job, Nacked
from topics.client.retry import Retry, may_repeat
from topics.client.sync import Client
from topics.client.workers.held_jobs import Backoff, GiveBack, HeldJob, HeldJobBatch, HeldJobs, Nack, Stats, cut

WAIT_MS: Final = 20_000
"""How long a claim waits for a first job. Below the 30 s after which a proxy may cut a silent connection."""

PAUSE_S: Final = 0.05
"""How long to wait after a claim that got no job, in seconds."""

GIVE_BACK_S: Final = 2.0
"""How long the worker tries to ack and nack its last jobs when it ends, in seconds."""

MIN_LEASE_MS: Final = 100
MAX_LEASE_MS: Final = 86_400_000

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class Caller(Protocol):
    """The part of an AsyncClient that a worker uses."""

    async def once(self, call: ClientCall[T]) -> T:
        """Make one attempt at a call. Raises a TopicsError if it fails."""
        ...


class WorkerOptions(TypedDict, total=False):
    """The keyword arguments of an AsyncWorker, for `Worker`."""

    node: str | None
    group: str | None
    concurrency: int
    lease_ms: int | None
    backoff: Callable[[int], int] | None
    on_error: Callable[[Job, Exception], None] | None
    drain_s: float
    max_jobs: int | None


class AsyncWorker:
    """Runs `handler` for every job of the queue `topic`, `concurrency` of them at a time (1 to 1000). With `group`, for
    every record of the log `topic` that this group has not finished; an ack deletes nothing then.

    **Delivery is at least once.** The worker acks a job, which deletes it, after the handler has returned; until then
    the job is leased to this worker alone. The job is given out again if the ack does not reach the daemon before the
    lease ends: because the daemon or the network was away for longer, or because this process was stopped, killed or
    suspended. So a handler must do no harm when it runs a second time for the same job. A long handler may look at
    `job.lost` now and then: it is set when the worker knows that the lease has ended, and another worker may have the
    job. While nothing fails, each job is handled once. With a concurrency of 1, jobs are handled in the order in which
    the daemon gives them out.

    **Handlers.** A handler is an `async def`, or a plain function, which runs in a thread. If it raises an exception,
    the worker nacks the job. The job is given out again after `backoff(job.deliveries)` ms, or with a `backoff` of None
    as `retry` of the topic says. The worker calls `on_error(job, error)` in the thread of the event loop; without
    `on_error` it logs the error. An exception of `on_error` ends the worker. The daemon keeps the type and text of the
    exception as the last error of the job. If the handler raises `Nack(delay_ms)`, the job is given out again after
    that time, and `on_error` is not called. A job that was given out `max_deliveries` times (a setting of the topic)
    goes to the dead-letter topic. A delivery that ended because the worker was stopped does not count; one that ended
    because its process was killed does: leave room for a few.

    **Results.** Where the topic or the group names a topic for results (`completed`), the ack carries the value that
    the handler has returned, as JSON. A value that JSON cannot express, or one that is longer than a record may be, is
    a failure of the job. Elsewhere it does not count what a handler returns.

    **Leases** last `lease_ms` (100 to 86400000; None: as the topic says when the worker starts). The worker extends
    them after a third of that, for as long as the handler runs. `node` is the name under which the daemon leases the
    jobs; workers that run at the same time need different names. No more than `concurrency` jobs are in hand at any
    time, from their claim until the daemon has confirmed their ack or nack; jobs that end during an ack share the next
    one. So with short jobs `concurrency` decides how many are done in a second.

    **Failures.** While the daemon cannot be reached, is starting, throttles or fails, every call is repeated until it
    succeeds or the lease has ended. The waits grow up to 5 s (for acks and extensions up to a sixth of a lease), and
    are never shorter than the daemon asks for. The jobs of a claim whose answer was lost are given out again when their
    leases end.
    """

    def __init__(
        self,
        client: Caller,
        topic: str,
        handler: Callable[[Job], object],
        *,
        node: str | None = None,
        group: str | None = None,
        concurrency: int = 1,
        lease_ms: int | None = None,
        backoff: Callable[[int], int] | None = Backoff(),  # noqa: B008 - immutable
        on_error: Callable[[Job, Exception], None] | None = None,
        drain_s: float = 30.0,
        max_jobs: int | None = None,
    ) -> None:
        """`drain_s` is how long `stop()` lets handlers finish, in seconds; `math.inf`: without end. With `max_jobs` the
        worker ends by itself when it has claimed so many jobs and they are over. Raises ValueError for a value that is
        out of range."""
        if lease_ms is not None and not MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS:
            raise ValueError(f"lease_ms: must be from {MIN_LEASE_MS} to {MAX_LEASE_MS}")
        if not drain_s >= 0:
            raise ValueError("drain_s: must not be negative")
        if max_jobs is not None and max_jobs < 1:
            raise ValueError("max_jobs: must be 1 or more")
        self.topic = topic
        self.node = node or f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"
        self.group = group
        self._client = client
        self._handler = handler
        self._in_thread = not _is_async(handler)
        self._lease_ms = lease_ms
        self._backoff = backoff
        self._on_error = on_error
        self._drain_s = drain_s
        self._max_jobs = math.inf if max_jobs is None else max_jobs
        self._hand = HeldJobs(concurrency)
        self._concurrency = concurrency
        self._patient = Retry()
        self._pressing = Retry()
        self._attempt_s = math.inf
        self._rng = random.Random()
        self._stopping = False
        self._drain_by = math.inf
        self._failure: Exception | None = None
        self._running = False
        self._wants_results = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic!r}, node={self.node!r})"

    @property
    def stats(self) -> Stats:
        """How many jobs the worker has claimed, acked, nacked and lost so far."""
        return self._hand.stats

    def stop(self, drain_s: float | None = None) -> None:
        """Stop the worker: claim no more jobs, let the running handlers finish for up to `drain_s` seconds (None: as
        the constructor was told), then cancel the others and give their jobs back at once. Then `run()` returns.

        Call it in the thread of the event loop. A second call may shorten the time: `stop(0)`. A handler in a thread
        cannot be cancelled: the thread runs on with `job.lost` set, and its result does not count (on asyncio the
        process does not end before the thread). After a `stop()` before `run()`, `run()` does nothing.
        """
        self._stopping = True
        if self._running:
            drain_s = self._drain_s if drain_s is None else drain_s
            self._drain_by = min(self._drain_by, anyio.current_time() + drain_s)
            self._note()

    async def run(self) -> None:
        """Work until `stop()`, or until `max_jobs` are over. A worker runs once: raises RuntimeError on a second call.

        Raises NotFound where the topic does not exist or was deleted, Conflict for a topic that is no queue,
        Unauthorized, Forbidden, any other TopicsError that waiting does not cure, and what `on_error` or `backoff`
        raises. Handlers are cancelled then, and also when `run()` is cancelled. However it ends, it first acks and
        nacks the jobs in hand, for at most 2 s; the others are given out again when their leases end.
        """
        if self._running:
            raise RuntimeError("a worker runs once")
        self._running = True
        self._changed = anyio.Event()
        self._claiming = anyio.CancelScope()
        self._limiter = anyio.CapacityLimiter(self._concurrency)
        self._settling = _FailureStreak(f"{self.topic}: ack")
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
        """Claim jobs while there is room, until it is cancelled (`_end`) or `max_jobs` are claimed."""
        row = _FailureStreak(f"{self.topic}: claim")
        with self._claiming:
            lease_ms = self._lease_ms
            if lease_ms is None:
                lease_ms = await self._configured_lease(row)
            self._hand.lease_s = lease_ms / 1000
            self._pressing = Retry(longest_wait=min(max(self._hand.lease_s / 6, 0.05), self._patient.longest_wait))
            self._attempt_s = max(self._hand.lease_s / 3, 1.0)
            while wanted := self._max_jobs - self.stats.claimed:
                most = int(min(await self._until(lambda: self._hand.free), wanted))
                options = {"lease_ms": lease_ms, "wait_ms": WAIT_MS}
                call = calls.claim(self.topic, self.node, max=most, **options, group=self.group)
                answer = await self._persist(call, row)
                self._wants_results = answer.wants_results
                for held in self._hand.take(answer.claimed, anyio.current_time()):
                    held.job.topic = self.topic
                    self._group.start_soon(self._guard, lambda held=held: self._handle(held))
                self._note()
                if not answer.claimed:
                    await anyio.sleep(PAUSE_S)
            self.stop(math.inf)

    async def _configured_lease(self, row: _FailureStreak) -> int:
        """Return how long the topic or the group leases jobs, in ms."""
        if self.group is not None:
            return (await self._persist(group_calls.group(self.topic, self.group), row)).lease_ms
        return (await self._persist(calls.state(self.topic, touch=False), row)).config.lease_ms

    async def _handle(self, held: HeldJob) -> None:
        """Run the handler of one job. If it is cancelled, the job stays in hand."""
        job = held.job
        try:
            if self._in_thread:
                (result,) = await anyio.to_thread.run_sync(
                    self._boxed, job, abandon_on_cancel=True, limiter=self._limiter
                )
            else:
                result = self._handler(job)
            if inspect.isawaitable(result):
                result = await result
            said = calls.encode(result) if self._wants_results else None
        except Nack as nack:
            self._hand.failed(held, nack.terms)
        except Exception as error:
            self._fail(held, error)
        except anyio.get_cancelled_exc_class():
            if anyio.current_effective_deadline() == -math.inf:
                raise
            # On asyncio: a task or future that the handler awaited was cancelled, not the handler.
            self._fail(held, RuntimeError("the handler was cancelled from within"))
        else:
            self._hand.done(held, said)
        self._note()

    def _boxed(self, job: Job) -> tuple[object]:
        """The result of a handler in a thread, in a tuple: trio does not let a thread return an awaitable."""
        return (self._handler(job),)

    def _fail(self, held: HeldJob, error: Exception) -> None:
        delay_ms = None if self._backoff is None else self._backoff(held.job.deliveries)
        self._hand.failed(held, GiveBack(delay_ms, cut(f"{type(error).__name__}: {error}")))
        self._report(held.job, error, delay_ms)

    def _report(self, job: Job, error: Exception, delay_ms: int | None) -> None:
        if self._on_error is not None:
            self._on_error(job, error)
        else:
            later = "later" if delay_ms is None else f"in {delay_ms} ms"
            again = f"job {job.seq} failed (delivery {job.deliveries}), again {later}"
            _logger.warning("%s: %s", self.topic, again, exc_info=error)

    async def _settle(self) -> None:
        """Ack and nack the jobs whose handlers have ended."""
        while True:
            await self._until(lambda: self._hand.unsettled)
            await self._settle_next()

    async def _settle_next(self) -> None:
        """Make one ack or nack; if it fails, wait until it is to be repeated."""
        batch = self._hand.next_call()
        where = self.topic, self.node, batch.seqs
        ids, found, group = batch.lease_ids, batch.results, self.group
        try:
            answer = await (
                self._attempt(calls.ack(*where, lease_ids=ids, results=found, group=group))
                if batch.terms is None
                else self._attempt(self._nack(batch, batch.terms))
            )
        except TopicsError as error:
            if not self._lowered(error) and not self._results_refused(error, batch):
                await self._settling.pause(error, self._pressing, self._rng)
        else:
            self._settling.ends()
            self._hand.settled(batch, answer.skipped)
            self._note()

    def _nack(self, batch: HeldJobBatch, terms: GiveBack) -> ClientCall[Nacked]:
        delay_ms, error, counts, dead = terms
        return calls.nack(
            self.topic,
            self.node,
            batch.seqs,
            delay_ms=delay_ms,
            lease_ids=batch.lease_ids,
            error=error,
            count=counts,
            dead=dead,
            group=self.group,
        )

    async def _extend(self) -> None:
        """Extend all leases when the oldest of them is due."""
        row = _FailureStreak(f"{self.topic}: extend")
        while True:
            due = await self._until(self._hand.extend_at)
            if due > anyio.current_time():
                await anyio.sleep_until(due)
                continue
            for batch in self._hand.to_extend():
                sent = anyio.current_time()
                where, ids = (self.topic, self.node, batch.seqs), batch.lease_ids
                lease_ms = round(self._hand.lease_s * 1000)
                try:
                    answer = await self._attempt(
                        calls.extend(*where, lease_ms=lease_ms, lease_ids=ids, group=self.group)
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
        """Wait for `stop`, let handlers finish, and cancel all tasks."""
        await self._until(lambda: self._stopping)
        self._claiming.cancel()
        while not self._hand.empty and self._drain_by > anyio.current_time():
            changed = self._changed
            with anyio.CancelScope(deadline=self._drain_by):
                await changed.wait()
        self._group.cancel_scope.cancel()

    async def _give_back(self) -> None:
        """Ack and nack the jobs in hand after all handlers have ended, for at most `GIVE_BACK_S`. Cancellation does not
        end it."""
        self._hand.give_up()
        self._settling = _FailureStreak(f"{self.topic}: last ack")
        self._pressing = Retry(longest_wait=GIVE_BACK_S / 10)
        with anyio.move_on_after(GIVE_BACK_S, shield=True), contextlib.suppress(TopicsError):
            while self._hand.unsettled:
                await self._settle_next()
        if self._hand.unsettled:
            _logger.warning("%s: the last jobs come again when their leases are over", self.topic)

    # -- what they share ---------------------------------------------------------------------------------------------

    async def _guard(self, task: Callable[[], object]) -> None:
        """Run a task. Its exception cancels all other tasks, and `run()` raises it."""
        try:
            await task()  # type: ignore[misc]
        except Exception as error:
            self._failure = self._failure or error
            self._group.cancel_scope.cancel()

    async def _until(self, condition: Callable[[], T | None]) -> T:
        """Wait until a condition about the jobs in hand is true, and return its value."""
        while not (value := condition()):
            await self._changed.wait()
        return value

    def _note(self) -> None:
        """Wake all tasks that wait in `_until`, after a change of the jobs in hand, or to stop."""
        self._changed.set()
        self._changed = anyio.Event()

    async def _persist(self, call: ClientCall[T], row: _FailureStreak) -> T:
        """Make a call, and repeat it until it succeeds. Raises a TopicsError that waiting does not cure."""
        while True:
            try:
                answer = await self._client.once(call)
            except TopicsError as error:
                await row.pause(error, self._patient, self._rng)
            else:
                row.ends()
                return answer

    async def _attempt(self, call: ClientCall[T]) -> T:
        """Make one attempt at a call that must end well before a lease does. Raises a TopicsError if it fails."""
        with anyio.move_on_after(self._attempt_s):
            return await self._client.once(call)
        raise ConnectionFailed(f"no answer within {self._attempt_s:g} s", outcome_unknown=True)

    def _lowered(self, error: TopicsError) -> bool:
        """Return True if the call was refused because it named more jobs than the daemon accepts. Then the next calls
        name fewer."""
        most = error.detail.get("max")
        if error.code != "batch_too_large" or not isinstance(most, int) or not 1 <= most < self._hand.most:
            return False
        self._hand.most = most
        return True

    def _results_refused(self, error: TopicsError, batch: HeldJobBatch) -> bool:
        """Return True if an ack was refused for its results, and another one will not be. Where nobody wants results
        any more the jobs get acks without; a job whose result is too long is given back."""
        field = str(error.detail.get("field"))
        if batch.results is None:
            return False
        if error.code == "invalid_request" and field == "results":
            self._wants_results = False
            self._hand.without_results()
            return True
        if error.code == "payload_too_large" and len(batch.held) > 1:
            self._hand.most_results = sum(len(held.result or b"") for held in batch.held) // 2
            return True
        if error.code == "payload_too_large":
            held = batch.held[0]
        elif error.code == "record_too_large" and field.startswith("results["):
            held = batch.held[int(field[len("results[") : -1])]
        else:
            return False
        delay_ms = None if self._backoff is None else self._backoff(held.job.deliveries)
        self._hand.refused(held, GiveBack(delay_ms, cut(str(error))))
        self._report(held.job, error, delay_ms)
        return True


class _FailureStreak:
    """Counts the failures in a row of one kind of call."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._count = 0

    async def pause(self, error: TopicsError, retry: Retry, rng: random.Random) -> None:
        """Wait until the call is to be repeated. Raises the error if waiting does not cure it."""
        if not may_repeat(error, repeatable=True):
            raise error
        self._count += 1
        wait_s = retry.wait(self._count, error, rng)
        if self._count == 1:
            _logger.warning("%s failed, and is repeated until it works: %s", self._what, error)
        await anyio.sleep(wait_s)

    def ends(self) -> None:
        """Note that the call has succeeded."""
        if self._count:
            _logger.info("%s works again, after %d failures", self._what, self._count)
        self._count = 0


class Worker:
    """An AsyncWorker for programs that block, with the same guarantees and options. A handler is a plain function,
    which runs in a thread of its own, or an `async def`, which runs on trio.

    It uses the settings of `client`, and connections of its own. With `install_signal_handlers`, SIGINT or SIGTERM
    during `run()` means `stop()`, and a second one `stop(0)`; call `run()` in the main thread then. Without it,
    KeyboardInterrupt cancels the handlers, gives their jobs back, and is raised.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        handler: Callable[[Job], object],
        *,
        install_signal_handlers: bool = False,
        **options: Unpack[WorkerOptions],
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
        """The name under which the daemon leases the jobs."""
        return self._worker.node

    @property
    def stats(self) -> Stats:
        """How many jobs the worker has claimed, acked, nacked and lost so far."""
        return self._worker.stats

    def run(self) -> None:
        """Work until `stop()`, or until `max_jobs` are over, in this thread. Raises as `AsyncWorker.run`."""
        with self._signals() if self._heeds_signals else contextlib.nullcontext():
            try:
                # Threads of trio do not hold up the end of the process: a handler that hangs cannot either.
                anyio.run(self._main, backend="trio")
            except BaseExceptionGroup as group:
                if group.subgroup(KeyboardInterrupt) is not None:
                    raise KeyboardInterrupt from None
                raise

    def stop(self, drain_s: float | None = None) -> None:
        """As `AsyncWorker.stop`, but in any thread or signal handler, at any time. Returns at once; wait for the end in
        `run()`."""
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
