"""Tasks that finish what a request has begun, whether or not somebody still waits for the answer.

A change that has been queued cannot be taken back, so what follows from it (lifting the barrier, registering the topic)
must not depend on a client that may hang up. What such work is, is its owner's business.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import trio

from topics.errors import ApiError
from topics.runtime.withdrawal import CURRENT

T = TypeVar("T")


class Background:
    """A nursery in the daemon's tree that the parts of the engine start work in. `run` must be running."""

    def __init__(self) -> None:
        self._nursery: trio.Nursery | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Own the tasks; until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            await trio.sleep_forever()

    @property
    def running(self) -> bool:
        """Whether there is somebody to own a task."""
        return self._nursery is not None

    def start_soon(self, work: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Start a task that nobody waits for. An exception in it brings the daemon down.

        What it logs has no request's id: it may go on long after the request that has caused it.
        """
        assert self._nursery is not None
        contextvars.Context().run(self._nursery.start_soon, work, *args)

    async def finish(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work` to its end whatever becomes of the caller; its result or its exception."""
        done = trio.Event()
        results: list[T] = []
        errors: list[Exception] = []

        async def run() -> None:
            CURRENT.set(None)  # it ends by itself, whatever becomes of the caller's key
            try:
                results.append(await work())
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        assert self._nursery is not None
        self._nursery.start_soon(run)  # for this request: its lines carry the id
        await done.wait()
        if errors:
            raise errors[0]
        if not results:
            raise ApiError("shutting_down", "the daemon is shutting down", retry_after_s=1)
        return results[0]
