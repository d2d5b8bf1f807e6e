"""One accepted connection: what streams and sockets may do with it beside their protocol.

Frames of live delivery go to the socket past hypercorn (`topics.http.handlers.transports` says why). So that what
hypercorn sends never stands in the middle of one, a frame that is partly out is known here, and `between_frames` waits
for its end.
"""

from __future__ import annotations

import fcntl
import math
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from topics.errors import ApiError
from topics.http.budgets.byte_shares import OwnedBudget
from topics.http.connections.unsent_bytes import COPIED_BYTES, STREAM_BYTES, UnsentBytes, on_stream

# On a stream, one that is connected and does not read is dealt with by the stream (`topics.engine.delivery.outbox`),
# which wants to tell it so; the kernel counts a closed window like a peer that vanished.
STREAM_USER_TIMEOUT_MS: Final = 40_000

# A reader of an answer has a minute, and a second for each 16 KiB of it and of what else is on its way: ten minutes for
# a maximal page. And of what it is owed it has to take some KiB in each minute.
ANSWER_S: Final = 60.0
ANSWER_BYTES_PER_S: Final = 16 << 10
PROGRESS_S: Final = 60.0
PROGRESS_BYTES: Final = 16 << 10

# A peer that has acknowledged nothing for so long, something sent to it and keep-alive probes included, has vanished.
VANISHED_MS: Final = 22_000

# In the kernel's `struct tcp_info` (Linux 4.1 and later): `tcpi_unacked`, packets that are on their way;
# `tcpi_last_ack_recv`, ms since the peer was last heard of; `tcpi_bytes_acked`.
_TCP_INFO_BYTES: Final = 192
_UNACKED: Final = slice(24, 28)
_LAST_ACK_MS: Final = slice(56, 60)
_BYTES_ACKED: Final = slice(120, 128)

# How many bytes a socket has not sent yet (Linux's linux/sockios.h), and up to how many it is given more.
_SIOCOUTQNSD: Final = 0x894B
_DIRECT_UNSENT: Final = 16 << 10


class Connection:
    """One accepted connection, in the ASGI scope as `scope["state"]["connection"]`."""

    __slots__ = (
        "_answering",
        "_answers",
        "_budget",
        "_budget_wait_s",
        "_direct_bytes",
        "_direct_ended",
        "_earliest",
        "_held",
        "_held_up",
        "_moved",
        "_moved_at",
        "_open_streams",
        "_partial",
        "_progress",
        "_progress_at",
        "_room",
        "_sending",
        "_stream",
        "_unsent_bytes",
        "_waits",
        "cancel_scope",
        "has_left",
        "is_broken",
        "lock",
        "owed",
        "peer",
        "progress",
        "streams",
    )

    def __init__(
        self,
        stream: trio.SocketStream,
        lock: trio.Lock,
        answering: set[Connection],
        unsent: UnsentBytes | None = None,
    ) -> None:
        self._stream = stream
        self.lock = lock
        """Held by whoever sends."""
        self._answering = answering
        """Those of all connections that are sending an answer that counts, this one among them while it does."""
        self._sending = 0
        """How many those are of this one."""
        self._answers: dict[object, float] = {}
        """Until when each of the answers that are timed has to be out."""
        self._earliest = math.inf
        """Of those times the first, or one before it."""
        self.owed = 0
        """Bytes of answers that are gathered or sent."""
        self._unsent_bytes = unsent
        self._room = trio.lowlevel.ParkingLot()
        self._held_up = 0
        """Requests that wait until less is owed."""
        self._open_streams = 0
        """HTTP/2 streams, as counted in `UnsentBytes.open_streams`."""
        self.progress: Callable[[], int] = self.acked
        """Counts bytes of answers that the peer has taken."""
        self._progress = self._moved = 0
        self._progress_at = self._moved_at = 0.0
        """When it had last taken `PROGRESS_BYTES` more, and when anything at all."""
        self._partial: trio.Event | None = None
        """Set while a frame is partly sent past hypercorn."""
        self._direct_bytes = 0
        """Sent past hypercorn since the socket was asked how much of it has left."""
        self._direct_ended = False
        self.streams = False
        """Whether it carries a stream or a socket, or did."""
        self.has_left = False
        """The peer sends nothing any more: it has gone, or has shut down its side."""
        self.is_broken = False
        """The peer cannot be sent anything any more."""
        self._waits: dict[trio.CancelScope, None] = {}
        """What waits on behalf of the peer, and ends when it leaves."""
        self.cancel_scope = trio.CancelScope()
        self.peer: tuple[str, int] | None = None
        self._budget: OwnedBudget | None = None
        self._budget_wait_s = 0.0
        self._held = 0
        """Bytes of messages of its WebSockets, in part or waiting to be carried out."""

    def allow_slow_reader(self) -> None:
        """From here on a peer that is there and does not read is the application's business."""
        self.streams = True
        try:
            self._stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STREAM_USER_TIMEOUT_MS)
        except OSError:
            pass  # it is gone already

    # -- the peer's end ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        return self._stream.socket.fileno()

    def peer_left(self, *, broken: bool) -> None:
        """The peer has ended its side; `broken`: by a reset, or it was found to be gone. May be repeated.

        Whatever waits for something on the peer's behalf ends: there is no telling a peer that has gone from one that
        only sends no more. Requests that do not wait are answered. A broken connection with a stream or a socket is
        closed at once, as its reader may be paused.
        """
        self.has_left = True
        if broken and not self.is_broken:
            self.is_broken = True
            if self.streams:
                self.abort()
        for scope in list(self._waits):
            scope.cancel()

    @contextmanager
    def ends_wait(self, scope: trio.CancelScope) -> Iterator[None]:
        """Meanwhile `scope` is cancelled when the peer leaves, or at once if it has left."""
        self._waits[scope] = None
        if self.has_left:
            scope.cancel()
        try:
            yield
        finally:
            del self._waits[scope]

    # -- TCP -----------------------------------------------------------------------------------------------------------

    def acked(self) -> int:
        """Bytes that the peer's side has acknowledged so far: what grows while it takes anything at all."""
        return int.from_bytes(self._info()[_BYTES_ACKED], sys.byteorder)

    def has_vanished(self) -> bool:
        """Whether the peer has gone without a word. One that is there acknowledges what is sent to it, or at least, if
        it does not read, that it was asked to."""
        info = self._info()
        silent_ms = int.from_bytes(info[_LAST_ACK_MS], sys.byteorder)
        return silent_ms >= VANISHED_MS and int.from_bytes(info[_UNACKED], sys.byteorder) > 0

    # -- messages of WebSockets ---------------------------------------------------------------------------------------

    def bound_messages(self, budget: OwnedBudget, wait_s: float) -> None:
        """From here on messages count against `budget`, for whose room is waited so long. That of the first WebSocket
        of a connection is that of all of them."""
        if self._budget is None:
            self._budget, self._budget_wait_s = budget, wait_s

    async def hold(self, size: int) -> bool:
        """Take in so many bytes of a message; False if there is no room for them."""
        assert self._budget is not None
        if not await self._budget.take(size, self._budget_wait_s):
            return False
        self._held += size
        return True

    def give_back(self, size: int) -> None:
        """They are not needed any more. After `end_messages` nothing is left to be given back."""
        size = min(size, self._held)
        self._held -= size
        if size:
            assert self._budget is not None
            self._budget.give_back(size)

    def end_messages(self) -> None:
        """The connection is gone, with all that was taken in for it."""
        self.give_back(self._held)

    # -- answers -------------------------------------------------------------------------------------------------------

    @contextmanager
    def answering(self, size: int, key: bytes = b"", *, stream: bool = False, timed: bool = True) -> Iterator[None]:
        """Around sending an answer of `size` bytes to a client of this key; `stream`: on an HTTP/2 stream of its own.

        They count as unsent meanwhile (`topics.http.connections.unsent_bytes`), and if the answer is `timed` a peer
        that takes too long over it is cut off (`is_too_slow`). Answers of one HTTP/2 connection are sent by turns, so
        each has the time of all that are on their way when it begins. Those that begin later give it none: otherwise an
        answer that nobody takes would be held for as long as others are.
        """
        answer = object()
        charged = on_stream(size) if stream else size
        self.charge(charged, key)
        now = trio.current_time()
        if not self._sending:
            self._moved, self._moved_at = self.progress(), now
        if timed:
            if not self._answers:
                self._progress, self._progress_at = self.progress(), now
            deadline = now + ANSWER_S + self.owed / ANSWER_BYTES_PER_S
            self._answers[answer] = deadline
            self._earliest = min(self._earliest, deadline)
        self._sending += 1
        self._answering.add(self)
        try:
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self._answering.discard(self)
            if timed:
                del self._answers[answer]
                if not self._answers:
                    self._earliest = math.inf
            self._progress_at = self._moved_at = trio.current_time()
            self.give_back_charge(charged, key)

    def charge(self, size: int, key: bytes = b"") -> None:
        """So many bytes of an answer are in memory, or will be at once. Never fails: who may be refused asks `why_not`.
        Stalled readers are cut off for it if memory is short. Has to be given back."""
        if self._unsent_bytes is not None:
            if self._unsent_bytes.is_short_of(size):
                self._unsent_bytes.make_room(self._answering, size, trio.current_time())
            self._unsent_bytes.take(size, key)
        self.owed += size

    def give_back_charge(self, size: int, key: bytes = b"") -> None:
        """They have been sent or dropped, or are charged in another way."""
        self.owed -= size
        if self._unsent_bytes is not None:
            self._unsent_bytes.give_back(size, key)
        if not self.owed:
            self._room.unpark_all()
        else:
            self._room.unpark()

    @property
    def taken(self) -> int:
        """Bytes that the connection is charged with: what it owes, and requests that wait for room."""
        return self.owed + self._held_up * STREAM_BYTES

    def has_room(self) -> bool:
        """Return True if less is owed than a connection may owe."""
        return self._unsent_bytes is None or self.owed < self._unsent_bytes.limit_per_connection

    async def until_room(self) -> None:
        """Wait until a request may be handled although other answers are on their way."""
        while not self.has_room():
            self._hold_up(1)
            try:
                await self._room.park()
            finally:
                self._hold_up(-1)
            if self.has_room():
                self._room.unpark()

    def _hold_up(self, requests: int) -> None:
        self._held_up += requests
        if self._unsent_bytes is not None:
            if requests > 0:
                self._unsent_bytes.take(STREAM_BYTES, b"")
            else:
                self._unsent_bytes.give_back(STREAM_BYTES, b"")

    def has_streams(self, count: int) -> None:
        """So many HTTP/2 streams are open on it."""
        if self._unsent_bytes is not None:
            self._unsent_bytes.open_streams += count - self._open_streams
        self._open_streams = count

    def is_full(self) -> bool:
        """Return True if another HTTP/2 stream is to be refused: so many requests wait for room, or the daemon has no
        memory for more than one on each connection."""
        unsent = self._unsent_bytes
        if unsent is None:
            return False
        if self._open_streams and unsent.has_too_many_streams():
            unsent.make_room(self._answering, STREAM_BYTES, trio.current_time())
            return True
        return not self.has_room() and self._held_up * (STREAM_BYTES + COPIED_BYTES) >= unsent.limit_per_connection

    def why_not(self, size: int, key: bytes, charged: int = 0) -> ApiError | None:
        """Return the 429 for an answer of `size` bytes that there is no room for; `charged` of them are charged."""
        if self._unsent_bytes is None:
            return None
        refused = self._unsent_bytes.why_not(self, size, key, charged)
        if refused is not None and self._unsent_bytes.is_short_of(size - charged, charged):
            self._unsent_bytes.make_room(self._answering, size, trio.current_time())
        return refused

    def is_too_slow(self, now: float) -> bool:
        """Whether an answer should have been read by now (Trio's clock), or too little was taken in the last minute.
        To be called every second."""
        if now >= self._earliest:
            self._earliest = min(self._answers.values(), default=math.inf)
        return now >= self._earliest or (bool(self._answers) and now - self._last_progress(now) >= PROGRESS_S)

    def _last_progress(self, now: float) -> float:
        taken = self.progress()
        if taken != self._moved:
            self._moved, self._moved_at = taken, now
        if taken - self._progress >= PROGRESS_BYTES:
            self._progress, self._progress_at = taken, now
        return self._progress_at

    def stalled_s(self, now: float) -> float:
        """How long the peer has taken nothing of what it is owed, as far as that was looked at."""
        self._last_progress(now)
        return now - self._moved_at

    def _info(self) -> bytes:
        try:
            return self._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return bytes(_TCP_INFO_BYTES)

    # -- frames past the protocols -------------------------------------------------------------------------------------

    def try_send(self, data: bytes) -> int:
        """Give the socket what it takes now, past hypercorn; how many bytes that was. `send_rest` has to follow a part.

        Nothing while something else is being sent, or while as much waits in the socket as the kernel would call
        unwritable (trio sets TCP_NOTSENT_LOWAT): what waits for a slow reader is not to wait there.
        """
        fd = self._stream.socket.fileno()
        if fd < 0 or self._direct_ended or self.lock.locked():
            return 0
        if self._direct_bytes >= _DIRECT_UNSENT:
            self._direct_bytes = self._unsent(fd)
            if self._direct_bytes >= _DIRECT_UNSENT:
                return 0
        try:
            taken = os.write(fd, data)
        except OSError:
            return 0  # full, or broken, which whoever waits for the socket finds out
        self._direct_bytes += taken
        if taken < len(data):
            self._partial = trio.Event()
        return taken

    @staticmethod
    def _unsent(fd: int) -> int:
        return int.from_bytes(fcntl.ioctl(fd, _SIOCOUTQNSD, bytes(4)), sys.byteorder)

    async def send_rest(self, data: bytes) -> None:
        """Send, past hypercorn, all of `data`; pieces of one frame without anything else between them. Where the
        connection is broken it is aborted, and this is cancelled with everything else that runs for it."""
        if self._partial is None:
            if self._direct_ended:
                return
            self._partial = trio.Event()
        async with self.lock:
            try:
                with trio.CancelScope(shield=True):
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # What was not sent must not be taken for sent: cursors would move, and leases would stay.
                self.peer_left(broken=True)
                self.abort()
                await trio.lowlevel.checkpoint()

    def direct_done(self) -> None:
        """What was sent past hypercorn ends with a whole frame."""
        partial, self._partial = self._partial, None
        if partial is not None:
            partial.set()

    async def between_frames(self) -> None:
        """Wait until whatever hypercorn sends would not stand in the middle of a frame."""
        while self._partial is not None:
            await self._partial.wait()

    def stop_direct(self) -> None:
        """No frame begins any more: the connection's last one is on its way."""
        self._direct_ended = True

    def end_direct(self) -> None:
        """Nothing more is sent past hypercorn. With half a frame out the connection is of no use to anybody."""
        if self._partial is not None:
            self.abort()
            self.direct_done()

    def abort(self) -> None:
        """Close the socket at once and cancel everything that runs for it; unsent data is dropped. May be repeated."""
        try:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.has_left = self.is_broken = True
        # Closing wakes a shielded send, cancelling wakes everything else.
        self._stream.socket.close()
        self.cancel_scope.cancel()
