"""Ending what a call waits for when its key is withdrawn: the seam between HTTP, which knows about keys, and whatever
waits for a caller.

Theory of operation. A call may wait for its client (a body), for records or jobs (a long poll, a claim) and for room
(an admission). In these waits no change is undecided, so a call may end in any of them; once a change is decided, the
call runs to its answer, which says what was done. So every such wait is inside `interruptible()`, and a `Withdrawal`
ends the waits of one call: those that are going on and those that would begin later. The current one is a context
variable, because admission is far below HTTP. Tasks that a call starts for itself inherit it; work that outlives its
call does not (`topics.runtime.background`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from topics.errors import ApiError


class Withdrawal:
    """Of one call; `end` may come at any time, from any task of the loop."""

    __slots__ = ("_scopes", "reason")

    def __init__(self) -> None:
        self.reason: ApiError | None = None
        """Why the call may wait for nothing any more; None while it may."""
        self._scopes: set[trio.CancelScope] = set()

    def end(self, reason: ApiError) -> None:
        """End every wait of the call with `reason`. May be repeated; the first reason stays."""
        if self.reason is None:
            self.reason = reason
            for scope in self._scopes:
                scope.cancel()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Around a wait: raises `reason` once there is one, before the wait or out of the middle of it."""
        if self.reason is not None:
            raise self.reason
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            assert self.reason is not None
            raise self.reason


CURRENT: ContextVar[Withdrawal | None] = ContextVar("withdrawal", default=None)
"""That of the call which the running task works for; None for work of the daemon, and where there are no keys."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Around a wait that may end when the key of the call is withdrawn. Raises the `ApiError` that says so."""
    current = CURRENT.get()
    if current is None:
        yield
        return
    with current.waits():
        yield
