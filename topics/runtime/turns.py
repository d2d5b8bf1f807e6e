"""Turns: the order in which bulk work holds the loop (`docs/spec/speed.md` section 3, `docs/design/turns.md`).

Work that keeps the loop busy for longer than a small request needs (decoding a large body, the frames and blocks of a
large batch, compressing an answer) is done in *pieces* of at most some milliseconds. Before each piece a task takes a
turn. A request below `BULK_BYTES` takes none.

Theory of operation. A pass of Trio's loop looks at the sockets, and then runs every task that is ready. Without turns,
the pieces of all bulk clients run in the same pass, and a small request, which needs about four passes (read, decide,
write, answer), waits for all of them four times. So tasks get their turns one after the other, in the order in which
they asked. The task that is next lets some passes go by before its piece: until two passes in a row had next to nothing
to do, but no longer than a piece may take. So a small request that came during the piece before is answered first, and
many small requests do not keep a bulk client from its share.

A turn is not held: it is the right to one piece in the step of the loop in which `take` returns, and it is over with
the next `await` that suspends. So nobody waits for anything else while others wait for their turn, and nothing has to
be given back.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

import trio

BULK_BYTES: Final = 32 << 10
"""Bytes of a body, a batch or an answer from which on work on it takes turns: a batch of records of so many bytes is
decoded and committed in about 0.4 ms."""

TURN_BYTES: Final = 128 << 10
"""Bytes that are worked on in one turn, half a millisecond to one. Smaller pieces share a turn; a larger one has it for
itself."""

QUIET_S: Final = 0.00006
"""A pass of the loop that takes less time (s) has next to nothing to do."""

REST_S: Final = 0.002
"""For how long (s) a task that is next lets small requests run, if the loop does not become quiet."""

MOST_PASSES: Final = 12
"""How many passes the next task lets go by at most, even if `REST_S` is not over."""

T = TypeVar("T")


class Turns:
    """The turns of one loop. Made once by the engine."""

    __slots__ = ("_large", "_queue", "_spent")

    def __init__(self) -> None:
        self._queue = trio.Lock()
        """Held by the task that is next, while it lets others run. Trio's locks are fair."""
        self._large = trio.Lock()
        self._spent = 0
        """Bytes worked on since others were let run."""

    async def take(self, size: int = TURN_BYTES) -> None:
        """Wait for the turn to do one piece of work on `size` bytes (default: a piece that fills a turn). The piece is
        what the caller does until it suspends next.

        Does not suspend if nobody waits and the piece fits into the turn that goes on. Cancelling gives the turn to the
        next task.
        """
        if self._spent + size <= TURN_BYTES and not self._queue.locked():
            self._spent += size
            return
        async with self._queue:
            if self._spent + size > TURN_BYTES:
                await _others_run()
                self._spent = 0
            self._spent += size

    async def each(self, steps: Generator[None, None, T]) -> T:
        """Take a turn for each step of a generator, and return its result.

        Only one generator at a time is worked on, because of the memory that one takes. Passes its exceptions on. After
        cancelling, the other steps are not taken.
        """
        async with self._large:
            while True:
                await self.take()
                try:
                    next(steps)
                except StopIteration as done:
                    result: T = done.value
                    return result


async def _others_run() -> None:
    """Let other tasks run until the loop has been quiet for two passes in a row.

    One quiet pass is not enough. Trio reverses the order of the tasks of a pass at random. So a task that runs in every
    pass may run behind this one in one pass and before it in the next, and would not be noticed.
    """
    now = trio.current_time()
    end = now + REST_S
    quiet = 0
    for _ in range(MOST_PASSES):
        await trio.lowlevel.checkpoint()
        before, now = now, trio.current_time()
        quiet = quiet + 1 if now - before < QUIET_S else 0
        if quiet == 2 or now > end:
            return
