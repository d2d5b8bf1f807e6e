"""`InlineOffload`: the `Offload` seam of a simulation. Nothing runs beside the loop, so a seed decides every order."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final, TypeVar

import trio

from tests.simulation.disk import SimHang
from topics.runtime.bounded_calls import BoundedCall, CallTimeLimit, CallTimeout
from topics.runtime.offload import BUCKET, COLD, HOLDS_DISK, Pool

T = TypeVar("T")

WAIT_STEP_S: Final = 0.1
"""How soon a thread that waits notices that it is to wait no longer."""

BUSY: Final = 0.3
"""How often other calls hold the disk where there is a seed, if nothing else is said."""


class InlineOffload:
    """Runs calls on the loop, one at a time, where real ones run in threads.

    With a `seed` it lets a random number of scheduler turns pass before and after a call, as threads do, and says now
    and then that the disk is not free, so that groups are written in both ways (`GroupWrites`); without one it takes
    one turn before a call. As with threads, a call that has started is never abandoned: its result is returned even if
    the task was cancelled meanwhile.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._others = random.Random(f"others {seed}")
        self._holding = 0
        self.busy = 0.0 if seed is None else BUSY
        """How often calls beside those known here hold the disk, 0 to 1."""
        self.calls: list[Pool] = []
        """The kind of every call that was started, in order."""
        self.share = 0.0
        """What `busy_share` answers; a test of the governor sets it."""
        self.hangs = 0
        """Calls that have never returned."""
        self._waits: list[CallTimeLimit] = []

    async def run(self, kind: Pool, call: Callable[[], T], *, holds_disk: bool = True) -> T:
        """Run `call` on the loop after a checkpoint. The only cancellation point is before `call`."""
        holding = holds_disk and kind in HOLDS_DISK
        self._holding += holding
        try:
            return await self.perform(kind, call)
        finally:
            self._holding -= holding

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        """What `run` does while the call is under way. A subclass may have it take longer."""
        await trio.lowlevel.checkpoint()
        await self._turns()
        self.calls.append(kind)
        try:
            result = call()
        finally:
            waits, self._waits = self._waits, []
            assert not waits or kind in COLD | BUCKET or kind is Pool.CPU, f"a call of kind {kind} waits for a store"
            with trio.CancelScope(shield=True):
                for patience in waits:
                    await _wait(patience)
        await self._turns()
        return result

    def is_disk_free(self) -> bool:
        return not self._holding and self._others.random() >= self.busy

    def attempt(self, call: Callable[[BoundedCall[T]], T], patience: CallTimeLimit, late: Callable[[], None]) -> T:
        """Make the call at once. One that hangs (`SimHang` out of the disk) is over for its caller, who is told so when
        its patience is at an end; it never comes back, and neither has what it would have done next any effect."""
        one: BoundedCall[T] = BoundedCall(patience, late)
        try:
            return call(one)
        except SimHang as hang:
            hang.thaw()
            one.give_up()
            self.hangs += 1
            self._waits.append(patience)
            raise CallTimeout(patience.seconds) from None

    def post(self, call: Callable[[], None]) -> None:
        """Run `call` now: this is the loop already, and now is in the order of posting."""
        call()

    def busy_share(self) -> float:
        return self.share

    async def _turns(self) -> None:
        if self._random is not None:
            for _ in range(self._random.randrange(3)):
                await trio.lowlevel.cancel_shielded_checkpoint()


async def _wait(patience: CallTimeLimit) -> None:
    """What a thread that waits for a call costs: time, and nobody else's.

    A patience that ends sooner than it was to ends the wait.
    """
    began = trio.current_time()
    while (left := began + patience.seconds - trio.current_time()) > 0:  # noqa: ASYNC110
        await trio.sleep(min(left, WAIT_STEP_S))
