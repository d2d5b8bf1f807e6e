"""Ending the waits of a call when its API key is withdrawn. HTTP knows about keys; the code that waits does not.

Theory of operation. A call may wait for its client (a body), for records or jobs (a long poll, a claim) and for room
(admission of an append). During these waits the call has changed nothing, so it may end in any of them. Once a change
has begun, the call runs to its answer, which tells the outcome. So each of these waits is inside `interruptible()`, and
the `Withdrawal` of a call ends its waits: the present ones, and later ones as soon as they begin. The withdrawal of the
current call is a context variable, because admission is far below HTTP. Tasks that a call starts for itself inherit it;
work that outlives its call does not (`topics.runtime.background`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import trio

from topics.errors import ApiError


class Withdrawal:
    """Ends the waits of one call. `end` may be called at any time, by any task of the loop."""

    __slots__ = ("_scopes", "reason")

    def __init__(self) -> None:
        self.reason: ApiError | None = None
        """Why the call may not wait any more; None while it may."""
        self._scopes: set[trio.CancelScope] = set()

    def end(self, reason: ApiError) -> None:
        """End every wait of the call with `reason`. May be repeated; the first reason stays."""
        if self.reason is None:
            self.reason = reason
            for scope in self._scopes:
                scope.cancel()

    @contextmanager
    def waits(self) -> Iterator[None]:
        """Put around a wait. Raises `reason` if there is one already, or as soon as there is one, which ends the
        wait."""
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
"""The withdrawal of the call that the running task works for. None for work of the daemon, and without API keys."""


@contextmanager
def interruptible() -> Iterator[None]:
    """Put around a wait that ends when the key of the current call is withdrawn. Raises the `ApiError` for that."""
    current = CURRENT.get()
    if current is None:
        yield
        return
    with current.waits():
        yield
