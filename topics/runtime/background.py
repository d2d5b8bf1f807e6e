"""Tasks that complete a change even if the client that asked for it hangs up.

A change that is in the queue of a shard cannot be taken back. The steps that follow it (lifting a barrier, registering
a topic) must therefore not run in the task of the request, which ends with its connection. This module owns the tasks;
the modules that start them decide what they do.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from topics.errors import ApiError
from topics.runtime.withdrawal import CURRENT

T = TypeVar("T")


class BackgroundTasks:
    """The nursery in which the parts of the engine start such tasks. `run` must be running before one is started."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None
        self._is_ending = False

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the nursery open. Runs until cancelled, which cancels every task in it."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._is_ending = True

    @property
    def running(self) -> bool:
        """Return True if tasks can be started."""
        return self._nursery is not None and not self._is_ending

    def start_soon(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start `work(*args)` as a task that nobody waits for. An exception in it stops the daemon.

        Its log lines have no `request_id`: it may run long after the request that caused it. While the nursery is being
        cancelled, so is the task.
        """
        assert self._nursery is not None
        contextvars.Context().run(self._nursery.start_soon, work, *args)

    async def finish(
        self, work: Callable[[], Awaitable[T]], wait: Callable[[trio.Event], Awaitable[None]] = trio.Event.wait
    ) -> T:
        """Run `work` to its end, and return its result or raise its exception.

        If the caller is cancelled, the call raises Cancelled at once and `work` still runs to its end; likewise if
        `wait`, with which the caller waits for that end, raises an exception. The withdrawal of the caller's key does
        not end the waits of `work`. Raises `503 shutting_down` if the daemon stops first.
        """
        done = trio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def run() -> None:
            CURRENT.set(None)  # the withdrawal of the caller's key must not end it
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        assert self._nursery is not None
        self._nursery.start_soon(run)  # in the context of the request: its log lines have the request's id
        await wait(done)
        if errors:
            raise errors[0]
        if not results:
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        return results[0]
