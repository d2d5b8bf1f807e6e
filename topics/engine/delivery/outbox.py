"""The frames that wait for one connection, and how a slow connection is detected (`docs/spec/api.md` section 8).

Theory of operation. Delivery puts frames in. As long as nothing waits, a frame is sent at once, as far as the socket
takes it; the rest, and the frames after it, are taken out and sent by the connection's own task. There is room for
`OUTBOX_BYTES`, or for a number of messages. If there is none, the caller puts its feed among those that `want` room and
goes on, so that only the connection's own task ever waits for it. Frames that were taken out are *in flight* until the
connection has accepted them.

    no progress for LAGGED_MS     queued frames that are not in flight are dropped; their feeds go back to before them
    no progress for TOO_SLOW_MS   everything is dropped but a final frame, which gets
                     GRACE_MS     to be taken; then the connection is cut off

Progress is a piece of the bytes in flight that the connection has accepted, or any byte that the peer has acknowledged.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import trio

from topics.engine.delivery import feed as feeds
from topics.engine.delivery.feed import Feed, FrameFormat, TopicPosition
from topics.engine.delivery.prefix_watches import PrefixWatch
from topics.engine.delivery.transport import Transport

OUTBOX_BYTES: Final = 1 << 20
"""Encoded bytes that wait for one connection at most, including those in flight. It may exceed this by one large
record."""

PIECE_BYTES: Final = 64 << 10
"""Bytes that a connection's task sends at a time; having sent them counts as progress. Small frames are sent
together."""

LAGGED_MS: Final = 5_000
TOO_SLOW_MS: Final = 30_000
GRACE_MS: Final = 5_000


class OutboxEntry(NamedTuple):
    """A frame, and the position of its feed once it is sent. `data` is shared with other connections while it waits."""

    head: bytes
    data: bytes
    tail: bytes
    size: int
    """Bytes of head, data and tail together."""
    feed: Feed | None = None
    mark: TopicPosition | None = None
    ends: bool = False
    """True for the feed's last frame."""


def _wire(entry: OutboxEntry) -> bytes:
    return b"%b%b%b" % (entry.head, entry.data, entry.tail)


class Outbox:
    """The frames of one connection, made by `WatchSessions` for each. `send_all` is run by the connection's task;
    `discard` must be called when the connection has ended.

    `stamp` returns the bytes that go before a frame on this connection alone, as of the moment it is queued.
    """

    def __init__(
        self,
        form: FrameFormat,
        transport: Transport,
        *,
        stamp: Callable[[], bytes],
        on_room: Callable[[list[Feed]], None],
        on_ended: Callable[[Feed], None],
        sending: dict[Outbox, None],
        slots: int | None = None,
    ) -> None:
        self.form = form
        self.transport = transport
        self.feeds: dict[Feed, None] = {}
        self.wanting: dict[Feed, None] = {}
        """Feeds that wait for room."""
        self.prefixes: PrefixWatch | None = None
        """Adds topics whose names begin with a prefix, if the connection watches any."""
        self.cold: deque[Feed] = deque()
        """Feeds that wait for records from disk; each at most once."""
        self.catching_up = False
        self.closing = False
        """True once no more frames are taken; the queue ends with the final one, if any."""
        self.closed = trio.Event()
        """Set when the connection has ended and its feeds are free."""
        self.ended_by: feeds.ConnectionEnd | None = None
        self.ready = False
        """True once the connection takes frames, because its head has been sent."""
        self._stamp = stamp
        self._on_room = on_room
        self._on_ended = on_ended
        self._sending = sending
        """The outboxes of all connections that have something in flight."""
        self._slots = slots
        self._queue: deque[OutboxEntry] = deque()
        self._flight: list[OutboxEntry] = []
        self._rest = b""
        """The bytes in flight that the socket has not taken."""
        self._bytes = 0
        self._wake: trio.Event | None = None
        self._freed = trio.lowlevel.ParkingLot()
        self._stalled_since = 0.0
        self._acked_before = 0
        self._last_sent = trio.current_time()

    # -- putting in --------------------------------------------------------------------------------------------------

    def has_room(self, size: int = 0) -> bool:
        """Return True if a frame of `size` bytes may be put in. An empty outbox takes a frame of any size."""
        if self.closing:
            return False
        if self._slots is not None and len(self._queue) + len(self._flight) >= self._slots:
            return False
        return self._bytes + size <= OUTBOX_BYTES or not (self._queue or self._flight)

    @property
    def waiting_bytes(self) -> int:
        """The bytes that wait to be sent, those in flight included."""
        return self._bytes

    @property
    def lag(self) -> int:
        """How many seqs its topics have behind the records that the connection has taken."""
        return sum(
            max(feed.topic.log.head_seq - feed.sent.position, 0) for feed in self.feeds if feed.topic is not None
        )

    async def room(self, size: int = 0) -> bool:
        """Wait until a frame of `size` bytes may be put in. Return False if no more frames are taken. Cancelling leaves
        nothing behind."""
        while not self.has_room(size):
            if self.closing:
                return False
            await self._freed.park()
        return True

    def want_room(self, feed: Feed) -> None:
        """Have `on_room` called with the feed when there is room."""
        self.wanting[feed] = None

    def put(self, data: bytes, feed: Feed | None = None, *, ends: bool = False) -> None:
        """Send or queue a frame. `feed`, if given, has been moved to its position after this frame."""
        head, tail = self.transport.wrap(self._stamp() if feed is not None else b"", data)
        size = len(head) + len(data) + len(tail)
        entry = OutboxEntry(head, data, tail, size, feed, feed.mark if feed is not None else None, ends)
        if self.ready and not self._queue and not self._flight:
            wire = _wire(entry)
            taken = self.transport.try_send(wire)
            if taken == entry.size:
                self._settle(entry)
                return
            if taken:
                self._bytes += entry.size
                self._begin_flight([entry], wire[taken:])
                self._notify()
                return
        self._queue.append(entry)
        self._bytes += entry.size
        self._notify()

    def finish(self, why: feeds.ConnectionEnd | None) -> None:
        """Send only what is in flight and, if a reason is given, a final frame; then the connection ends."""
        if self.closing:
            return
        self.drop_queued()
        self.wanting.clear()
        self.ended_by = why
        if why is not None:
            self.put(self.form.final(why))
        self.end_after_queued()

    def end_after_queued(self) -> None:
        """Send the queued frames; then the connection ends."""
        self.closing = True
        self._freed.unpark_all()
        self._notify()

    def drop_queued(self) -> None:
        """Drop the frames that are not in flight, except answers to commands. Their feeds go back to before them and
        want room."""
        dropped = {entry.feed: None for entry in self._queue if entry.feed is not None}
        for feed in dropped:
            marks = [entry.mark for entry in self._flight if entry.feed is feed and entry.mark is not None]
            feed.go_back(marks[-1] if marks else feed.sent)
            audience = feed.topic.audience if feed.topic is not None else None
            if audience is not None:
                audience.set_aside(feed)
            self.wanting[feed] = None
        self._queue = deque(entry for entry in self._queue if entry.feed is None)
        self._bytes = sum(entry.size for entry in (*self._flight, *self._queue))

    def discard(self) -> None:
        """Drop all frames, because the connection has ended: other objects may refer to the outbox for much longer."""
        self._queue.clear()
        self._rest = b""

    def _notify(self) -> None:
        if self._wake is not None:
            self._wake.set()
            self._wake = None

    # -- taking out --------------------------------------------------------------------------------------------------

    async def send_all(self, idle_s: float, heartbeat: Callable[[], bytes] | None = None) -> None:
        """Send frames until the outbox is finished, and a heartbeat whenever nothing was sent for `idle_s` seconds.
        This is the connection's task."""
        self.ready = True
        while True:
            if not self._rest and not self._queue:
                if self.closing:
                    return
                await self._wait(idle_s, heartbeat)
                continue
            await self._send_flight()

    async def _wait(self, idle_s: float, heartbeat: Callable[[], bytes] | None) -> None:
        """Wait until there is something to send; put in a heartbeat when it is due."""
        self._wake = trio.Event()
        with trio.move_on_at(self._last_sent + idle_s):
            await self._wake.wait()
            return
        self._wake = None
        if trio.current_time() >= self._last_sent + idle_s and not self.closing:
            self._last_sent = trio.current_time()
            if heartbeat is not None:
                self.put(heartbeat())

    async def _send_flight(self) -> None:
        """Send the rest of what is in flight, or the next queued frames."""
        if not self._rest:
            entries = [self._queue.popleft()]
            size = entries[0].size
            whole = self.transport.whole_frames
            while self._queue and not whole and size + self._queue[0].size <= PIECE_BYTES:
                entries.append(self._queue.popleft())
                size += entries[-1].size
            self._begin_flight(entries, b"".join(map(_wire, entries)))
            del entries
        size = len(self._rest)
        piece = size if self.transport.whole_frames else PIECE_BYTES
        # No local variable: the stack frame of a task that is cancelled here may live for long, with its locals.
        for at in range(0, size, piece):
            await self.transport.send(self._rest[at : at + piece])
            self._stalled_since = trio.current_time()
        self.transport.done()
        flight, self._flight = self._flight, []
        self._rest = b""
        self._sending.pop(self, None)
        for entry in flight:
            self._bytes -= entry.size
            self._settle(entry)
        self._freed.unpark_all()
        if self.wanting and not self.closing and self._bytes <= OUTBOX_BYTES // 2:
            wanting, self.wanting = list(self.wanting), {}
            self._on_room(wanting)
        if self.prefixes is not None:
            self.prefixes.tell_left_out()

    def end_feed(self, feed: Feed) -> None:
        """End a feed without a last frame, because its client does not know it."""
        self._on_ended(feed)

    def _begin_flight(self, entries: list[OutboxEntry], rest: bytes) -> None:
        self._flight = entries
        self._rest = rest
        self._stalled_since = trio.current_time()
        self._sending[self] = None

    def _settle(self, entry: OutboxEntry) -> None:
        """Note that the connection has accepted an entry."""
        self._last_sent = trio.current_time()
        if entry.feed is not None and entry.mark is not None and entry.feed.outbox is self:
            entry.feed.sent = entry.mark
            if entry.ends:
                self._on_ended(entry.feed)

    # -- slow ones ---------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Act if the connection is too slow. Called by the clock while something is in flight."""
        acked = self.transport.acked()
        if acked != self._acked_before:
            self._acked_before = acked
            self._stalled_since = trio.current_time()
        stalled = (trio.current_time() - self._stalled_since) * 1000
        if stalled >= TOO_SLOW_MS + GRACE_MS:
            self.transport.abort()
        elif stalled >= TOO_SLOW_MS:
            self.finish(feeds.TOO_SLOW)
        elif stalled >= LAGGED_MS and not self.closing:
            self.drop_queued()
