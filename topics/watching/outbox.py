"""What waits for one connection, and how a slow one is told from a fast one (`api.md` section 8).

Theory of operation. Delivery puts frames in, the connection's own task takes them out and sends them. There is room for
`OUTBOX_BYTES`, or for a number of messages; whoever finds none puts its feed among those that `want_room` and goes on,
so that nobody ever waits for a connection but its own task. What was taken is *in flight* until the connection has it.

    no progress for LAGGED_MS     what is queued and not in flight is dropped, its feeds go back, and are ranges again
    no progress for TOO_SLOW_MS   everything is dropped but a final frame, which gets
                     GRACE_MS     to be taken; then the connection is cut off

Progress is a piece of what is in flight that the connection has accepted, or any byte that the peer has acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from topics.watching import feed as feeds
from topics.watching.feed import Feed, Format, Mark

OUTBOX_BYTES: Final = 1 << 20
"""Encoded bytes that wait for one connection, those in flight included. A single frame may be larger by one record."""

TAKE_BYTES: Final = 256 << 10
"""Frames that are small are sent together, up to so much."""

LAGGED_MS: Final = 5_000
TOO_SLOW_MS: Final = 30_000
GRACE_MS: Final = 2_000


class Entry(NamedTuple):
    """A frame, and where its feed is once it is sent."""

    data: bytes
    feed: Feed | None = None
    mark: Mark | None = None
    ends: bool = False
    """It is the feed's last one."""


class Outbox:
    """See the module. `stamp` makes what precedes a frame on this connection alone, as of when it is queued."""

    def __init__(
        self,
        form: Format,
        *,
        stamp: Callable[[], bytes],
        abort: Callable[[], None],
        on_room: Callable[[list[Feed]], None],
        on_ended: Callable[[Feed], None],
        acked: Callable[[], int],
        sending: dict[Outbox, None],
        slots: int | None = None,
    ) -> None:
        self.form = form
        self.feeds: dict[Feed, None] = {}
        self.wanting: dict[Feed, None] = {}
        """Feeds that wait for room."""
        self.cold: deque[Feed] = deque()
        """Feeds that wait for records from the disk; each at most once."""
        self.catching_up = False
        self.closing = False
        """No frame is taken any more; the queue holds the final one, if any."""
        self.closed = trio.Event()
        """The connection is gone, and its feeds are free."""
        self.abort = abort
        self.ended_by: feeds.Final | None = None
        self._stamp = stamp
        self._on_room = on_room
        self._on_ended = on_ended
        self._acked = acked
        """Bytes that the peer has acknowledged; 0 where nobody knows."""
        self._acked_before = 0
        self._sending = sending
        """Of all connections, those with something in flight."""
        self._slots = slots
        self._queue: deque[Entry] = deque()
        self._flight: list[Entry] = []
        self._bytes = 0
        self._wake: trio.Event | None = None
        self._freed = trio.lowlevel.ParkingLot()
        self._stalled_since: float | None = None

    # -- putting in --------------------------------------------------------------------------------------------------

    def has_room(self, size: int = 0) -> bool:
        """Whether a frame of `size` bytes may be put in. One may always that nothing else waits with."""
        if self.closing:
            return False
        if self._slots is not None and len(self._queue) + len(self._flight) >= self._slots:
            return False
        return self._bytes + size <= OUTBOX_BYTES or not (self._queue or self._flight)

    async def room(self) -> bool:
        """Wait until something may be put in. False: nothing will be any more. Cancelling leaves nothing behind."""
        while not self.has_room():
            if self.closing:
                return False
            await self._freed.park()
        return True

    def want_room(self, feed: Feed) -> None:
        """The feed is told (`on_room`) when there is some."""
        self.wanting[feed] = None

    def put(self, data: bytes, feed: Feed | None = None, *, ends: bool = False) -> None:
        """Queue a frame, after `feed` was moved to where it is with it."""
        if feed is not None:
            data = self._stamp() + data
        self._put(Entry(data, feed, feed.mark if feed is not None else None, ends))

    def _put(self, entry: Entry) -> None:
        self._queue.append(entry)
        self._bytes += len(entry.data)
        self._notify()

    def finish(self, why: feeds.Final | None) -> None:
        """Send nothing any more but what is in flight and, with a reason, a final frame; then the connection ends."""
        if self.closing:
            return
        self.drop_queued()
        self.wanting.clear()
        self.closing = True
        self._freed.unpark_all()
        self.ended_by = why
        if why is not None:
            self._put(Entry(self.form.final(why)))
        self._notify()

    def end_after_queued(self) -> None:
        """Send what is queued; then the connection ends."""
        self.closing = True
        self._notify()

    def drop_queued(self) -> None:
        """Forget what is not in flight; its feeds go back to before it, and want room."""
        dropped = {entry.feed: None for entry in self._queue if entry.feed is not None}
        for feed in dropped:
            marks = [entry.mark for entry in self._flight if entry.feed is feed and entry.mark is not None]
            feed.go_back(marks[-1] if marks else feed.sent)
            audience = feed.topic.audience if feed.topic is not None else None
            if audience is not None:
                audience.set_aside(feed)
            self.wanting[feed] = None
        self._queue.clear()
        self._bytes = sum(len(entry.data) for entry in self._flight)

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    # -- taking out --------------------------------------------------------------------------------------------------

    async def take(self) -> list[Entry]:
        """What is to be sent next, at least one entry; none when the connection is to end. Cancelling takes nothing."""
        while not self._queue:
            if self.closing:
                return []
            self._wake = trio.Event()
            await self._wake.wait()
        size = 0
        while self._queue and (not size or size + len(self._queue[0].data) <= TAKE_BYTES):
            entry = self._queue.popleft()
            size += len(entry.data)
            self._flight.append(entry)
        self._stalled_since = trio.current_time()
        self._sending[self] = None
        return list(self._flight)

    def progressed(self) -> None:
        """The connection has accepted a piece of what is in flight."""
        self._stalled_since = trio.current_time()

    def sent(self) -> None:
        """The connection has accepted all that is in flight."""
        flight, self._flight = self._flight, []
        self._stalled_since = None
        self._sending.pop(self, None)
        for entry in flight:
            self._bytes -= len(entry.data)
            if entry.feed is not None and entry.mark is not None:
                entry.feed.sent = entry.mark
                if entry.ends:
                    self._on_ended(entry.feed)
        self._freed.unpark_all()
        if self.wanting and not self.closing and self._bytes <= OUTBOX_BYTES // 2:
            wanting, self.wanting = list(self.wanting), {}
            self._on_room(wanting)

    def stalled_ms(self) -> float:
        """For how long the connection has taken nothing of what is in flight; 0 while nothing is."""
        return 0.0 if self._stalled_since is None else (trio.current_time() - self._stalled_since) * 1000

    def check(self) -> None:
        """Called by the clock: see whether the connection is too slow."""
        acked = self._acked()
        if acked != self._acked_before:
            self._acked_before = acked
            self.progressed()
        stalled = self.stalled_ms()
        if stalled >= TOO_SLOW_MS + GRACE_MS:
            self.abort()
        elif stalled >= TOO_SLOW_MS:
            self.finish(feeds.TOO_SLOW)
        elif stalled >= LAGGED_MS and not self.closing:
            self.drop_queued()
