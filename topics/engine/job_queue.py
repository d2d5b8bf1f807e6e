"""The jobs of one queue topic as the daemon keeps them: who holds what, who waits, which streams they went to.

Every change of the projection (`topics.queue.leases`) passes here, so that a stream hears of jobs that are not its any
more, whatever has become of them. Nothing here waits or is logged: that is `topics.engine.queues.queue_calls`'s
business.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import trio

from topics.errors import ApiError
from topics.queue.lease_events import Claimed, Event, Extended
from topics.queue.leases import Leases
from topics.runtime.instant import Instant
from topics.storage.snapshots.queue_dump import FrozenQueue

SWEEP_SLICE: Final = 2000
"""Leases and delays that end in one step: what has ended together with many others takes several."""


class Claimer:
    """Somebody who wants up to `most` jobs, and stands in line until there are some.

    `hand` has the jobs it was dealt. They are reserved for it, and it has to claim or to abort them.
    """

    __slots__ = ("asks_again", "ended", "hand", "most", "node", "passed", "woken")

    def __init__(self, node: str, most: int, *, asks_again: bool = False) -> None:
        self.asks_again = asks_again
        """It wants to hear when the disk does not answer, and comes back. Others wait for the disk in line."""
        self.node = node
        self.most = most
        self.hand: array[int] = array("Q")
        self.woken = trio.Event()
        """It was dealt something, or there will be nothing any more (`ended`)."""
        self.passed = trio.Event()
        """Its window is over, whatever it was dealt."""
        self.ended: ApiError | None = None

    def deal(self, seqs: array[int]) -> None:
        """Give it some jobs."""
        self.hand = seqs
        self.woken.set()
        self.passed.set()

    def end(self, why: ApiError) -> None:
        """There is nothing to be had any more."""
        self.ended = why
        self.woken.set()
        self.passed.set()


class Holder:
    """The jobs that a stream holds: their lease ids, by seq. `changed` is set when it holds fewer of them than before,
    when they may end at another time, and when its topic is gone."""

    __slots__ = ("changed", "leases")

    def __init__(self) -> None:
        self.leases: dict[int, int] = {}
        self.changed = trio.Event()


class JobQueue:
    """See the module."""

    __slots__ = ("_held", "attended", "bell", "leases", "line", "moving", "newcomers", "now", "parked_more")

    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self.line: dict[Claimer, None] = {}
        """Who wants jobs, in the order of their arrival."""
        self.newcomers: dict[Claimer, None] = {}
        """Those of them that no pass has come to yet."""
        self.attended = False
        """There is a task that serves the line."""
        self.moving = False
        """There is a task that moves what is parked to the dead-letter topic."""
        self.parked_more = trio.Event()
        """Set when there may be more for it to move, or another place to move it to."""
        self.now = Instant(0, 0)
        """When it was last swept. Decisions are as of then, so that no lease ends by one without its stream hearing."""
        self.bell = trio.Event()
        """Set when no window is to be waited for any more."""
        self._held: dict[int, Holder] = {}
        """Which stream has a job."""

    def freeze(self, now: Instant, *, keeps_jobs: bool = True) -> FrozenQueue:
        """What a part of a snapshot has of it. An `ephemeral` queue keeps no jobs, but counts over its life."""
        leases = self.leases
        if not keeps_jobs:
            leases = Leases()
            leases.dead_lettered = self.leases.dead_lettered
        return FrozenQueue(now.window, leases.freeze(now))

    # -- the line ----------------------------------------------------------------------------------------------------

    def join(self, claimer: Claimer) -> None:
        """Stand in line, behind all others."""
        self.line[claimer] = self.newcomers[claimer] = None

    def leave(self, claimer: Claimer) -> bool:
        """Not any more; whether it was there."""
        self.newcomers.pop(claimer, None)
        return self.line.pop(claimer, self) is None

    def passed(self) -> None:
        """A pass has come to all who stand in line."""
        for claimer in self.newcomers:
            claimer.passed.set()
        self.newcomers.clear()

    # -- streams -----------------------------------------------------------------------------------------------------

    def give(self, holder: Holder, seq: int, lease_id: int) -> None:
        """A stream holds `seq` from here on."""
        self._freed((seq,))
        self._held[seq] = holder
        holder.leases[seq] = lease_id

    def give_up(self, holder: Holder) -> dict[int, int]:
        """A stream has ended: what it held."""
        for seq in holder.leases:
            del self._held[seq]
        leases, holder.leases = holder.leases, {}
        return leases

    def ring(self) -> None:
        """Windows end at once: the topic is gone, has another config, or the daemon stops."""
        self.bell.set()
        self.bell = trio.Event()

    def end(self) -> None:
        """The topic is gone: everybody is to look."""
        self.ring()
        for holder in self._held.values():
            holder.changed.set()

    def _freed(self, seqs: Sequence[int]) -> None:
        if not self._held:
            return
        for seq in seqs:
            holder = self._held.pop(seq, None)
            if holder is not None:
                holder.leases.pop(seq, None)
                holder.changed.set()

    # -- changes -----------------------------------------------------------------------------------------------------

    def apply(self, event: Event) -> array[int]:
        """Let an event happen, at its commit point; the seqs that it happened to."""
        done = self.leases.apply(event)
        if isinstance(event, Extended):
            self._look_again(done)
        elif not isinstance(event, Claimed):
            self._freed(done)
        return done

    def abort(self, seqs: Sequence[int]) -> None:
        """Nothing comes of what was decided about `seqs`."""
        self.leases.abort(seqs)
        self._look_again(seqs)

    def _look_again(self, seqs: Sequence[int]) -> None:
        """Leases may end at another time than before."""
        if self._held:
            for seq in seqs:
                if seq in self._held:
                    self._held[seq].changed.set()

    def sweep(self, now: Instant) -> bool:
        """Free what time has freed, as much as fits into a step; whether there is more."""
        self.now = now
        self._freed(self.leases.sweep(now.mono, SWEEP_SLICE))
        return self.leases.behind(now.mono)

    def due_in_ms(self, now: Instant) -> float:
        """How long it is until a sweep may have something to do; infinity if nothing ends by time alone."""
        due_ms = self.leases.next_due_ms()
        return float("inf") if due_ms is None else max(due_ms - now.mono, 0)

    def gone(self, seqs: Sequence[int]) -> None:
        """Records are gone: deleted, or lost."""
        self._freed(self.leases.gone(seqs))

    def gone_below(self, seq: int) -> None:
        """All records below `seq` are."""
        before = self.leases.in_flight
        self.leases.gone_below(seq)
        if self._held and self.leases.in_flight < before:
            self._freed([held for held in self._held if held < seq])

    def lost(self, first: int, last: int, live_among: Callable[[array[int]], array[int]]) -> None:
        """Some records from `first` to `last` were found damaged: those that are not live are gone."""
        self._freed(self.leases.forget_dead(first, last, live_among))
