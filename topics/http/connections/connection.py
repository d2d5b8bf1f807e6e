"""One accepted connection: what handlers may do with it beside the protocol that it speaks.

Frames of live delivery are written to the socket directly, not through hypercorn (`topics.http.handlers.transports`
says why). Data of hypercorn must not be sent in the middle of such a frame, so this module knows when a frame has been
sent only in part, and `between_frames` waits for its end.
"""

from __future__ import annotations

import fcntl
import math
import os
import select
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

from topics.errors import ApiError
from topics.http.budgets.byte_shares import OwnedBudget
from topics.http.connections.unsent_bytes import COPIED_BYTES, STREAM_BYTES, UnsentBytes, on_stream

# TCP_USER_TIMEOUT of a connection with a stream. The kernel treats a peer that does not read like one that is gone, so
# this is longer than the time after which the outbox (`topics.engine.delivery.outbox`) tells such a peer and ends it.
STREAM_USER_TIMEOUT_MS: Final = 40_000

# The reader of an answer has a minute, and a second for each 16 KiB that its connection owes: ten minutes for the
# largest page of records. In each minute it must accept `PROGRESS_BYTES`.
ANSWER_S: Final = 60.0
ANSWER_BYTES_PER_S: Final = 16 << 10
PROGRESS_S: Final = 60.0
PROGRESS_BYTES: Final = 16 << 10

# A peer that has not acknowledged sent data or keep-alive probes for this time has vanished.
VANISHED_MS: Final = 22_000

# How many bytes may wait unread in the kernel behind a request that waits, or behind a stream. The kernel itself takes
# about 64 KiB, and the reader has taken up to 64 KiB before it paused.
MAX_UNREAD: Final = 32 << 10

# Fields of the kernel's `struct tcp_info` (Linux 4.1 and later): `tcpi_unacked`, the packets on their way;
# `tcpi_last_ack_recv`, the ms since the last acknowledgement; `tcpi_bytes_acked`.
_TCP_INFO_BYTES: Final = 192
_UNACKED: Final = slice(24, 28)
_LAST_ACK_MS: Final = slice(56, 60)
_BYTES_ACKED: Final = slice(120, 128)

# After how long a connection without a request is closed. Clients and proxies usually close theirs after 60 s, so that
# they close first, and no request is sent on a connection that is being closed.
KEEP_ALIVE_S: Final = 75
# How long input is still read after a connection was closed from this side, so that the peer gets the last answer, and
# how much.
LINGER_S: Final = 1.0
LINGER_READS: Final = 64
LINGER_BYTES: Final = 64 << 10

# The ioctl for the bytes that a socket has not sent yet (linux/sockios.h), and the number from which on no more frames
# are written to it.
_SIOCOUTQNSD: Final = 0x894B
_DIRECT_UNSENT: Final = 16 << 10


def _unwatched(watched: bool) -> None:
    """Watch no input; for connections that `Hangups` does not know."""


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
        "_watched",
        "cancel_scope",
        "goes_back",
        "has_left",
        "idle_until",
        "is_broken",
        "is_ending",
        "is_paused",
        "lock",
        "owed",
        "peer",
        "progress",
        "reading",
        "streams",
        "watch_input",
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
        """Held by the task that sends."""
        self._answering = answering
        """The connections (of all) that are sending a counted answer; `answering` adds and removes this one."""
        self._sending = 0
        """How many counted answers this connection is sending."""
        self._answers: dict[object, float] = {}
        """The deadline of each timed answer (Trio's clock)."""
        self._earliest = math.inf
        """The earliest of these deadlines, or an earlier time."""
        self.owed = 0
        """Bytes of answers that are being made or sent."""
        self._unsent_bytes = unsent
        self._room = trio.lowlevel.ParkingLot()
        self._held_up = 0
        """How many requests wait until fewer bytes are owed."""
        self._open_streams = 0
        """HTTP/2 streams, as counted in `UnsentBytes.open_streams`."""
        self.progress: Callable[[], int] = self.acked
        """Returns how many bytes of answers the peer has accepted."""
        self._progress = self._moved = 0
        self._progress_at = self._moved_at = 0.0
        """When the peer had last accepted `PROGRESS_BYTES` more, and when it had last accepted anything."""
        self._partial: trio.Event | None = None
        """Not None while a directly written frame has been sent only in part; set at its end."""
        self._direct_bytes = 0
        """Bytes written directly since the socket was last asked for its unsent bytes."""
        self._direct_ended = False
        """No more frames may be written directly."""
        self.streams = False
        """True if the connection carries, or has carried, a stream or a WebSocket."""
        self.has_left = False
        """The peer sends nothing any more: it is gone, or has shut down its side."""
        self.is_broken = False
        """Nothing can be sent to the peer any more."""
        self._waits: dict[trio.CancelScope, None] = {}
        """Waits on behalf of the peer, which end when it leaves."""
        self.is_paused = False
        """Nothing is read, because there is a request behind the one that is being answered."""
        self._watched = False
        """`watch_input` was last called with this."""
        self.watch_input: Callable[[bool], None] = _unwatched
        """Called with True for `end_if_flooded` to be called when more input has come, and with False to end that."""
        self.idle_until = math.inf
        """When the connection is closed if no request comes on the lane until then (Trio's clock)."""
        self.reading: trio.CancelScope | None = None
        """The scope in which hypercorn reads from the connection, if a lane serves the connection as well."""
        self.goes_back = False
        """Hypercorn has answered a request, and the lane goes on with the connection."""
        self.is_ending = False
        """No further request is read on the lane."""
        self.cancel_scope = trio.CancelScope()
        self.peer: tuple[str, int] | None = None
        self._budget: OwnedBudget | None = None
        self._budget_wait_s = 0.0
        self._held = 0
        """Bytes of WebSocket messages that are incomplete or wait to be carried out."""

    def allow_slow_reader(self) -> None:
        """The handler itself will deal with a peer that does not read, so give the kernel's timeout more time."""
        self.streams = True
        try:
            self._stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, STREAM_USER_TIMEOUT_MS)
        except OSError:
            pass  # the connection is closed already

    # -- the peer's end ------------------------------------------------------------------------------------------------

    def fileno(self) -> int:
        """The socket's descriptor; -1 once it is closed."""
        return self._stream.socket.fileno()

    def peer_left(self, *, broken: bool) -> None:
        """The peer has shut down its side. `broken`: by a reset, or it was found to be gone. May be repeated.

        Every wait on behalf of the peer ends, because a peer that is gone looks the same as one that only sends no
        more. Requests that do not wait are still answered. A broken connection with a stream or a socket is closed at
        once, because its reader may be paused.
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
        """Put around a wait: `scope` is cancelled when the peer leaves, or at once if it has left."""
        self._waits[scope] = None
        self._look_for_end()
        if self.has_left:
            scope.cancel()
        self._watch()
        self.end_if_flooded()
        try:
            yield
        finally:
            del self._waits[scope]
            self._watch()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Put around a time in which the reader of the connection reads nothing."""
        self.is_paused = True
        self._watch()
        try:
            yield
        finally:
            self.is_paused = False
            self._watch()

    def _look_for_end(self) -> None:
        """Notice the end of the peer's side at once if it has come. `Hangups` may notice it a pass of the loop later,
        and the request may be given something meanwhile."""
        fd = self.fileno()
        if fd >= 0 and not self.has_left:
            ends = select.poll()
            ends.register(fd, select.POLLRDHUP)
            for _, events in ends.poll(0):
                self.peer_left(broken=bool(events & select.POLLERR))

    def _watch(self) -> None:
        """Watch for more input while a request waits and nothing is read."""
        watched = self.is_paused and bool(self._waits)
        if watched != self._watched:
            self._watched = watched
            self.watch_input(watched)

    def go_back(self) -> bool:
        """End the reading of hypercorn, because the lane goes on with the connection. Return False if there is no
        lane."""
        if self.reading is None:
            return False
        self.goes_back = True
        self.reading.cancel()
        return True

    def end_idle(self) -> None:
        """Let the lane see the end of the input, so that it closes the connection behind the requests that have come.
        Call it for an idle connection."""
        self.is_ending = True
        self.idle_until = math.inf
        try:
            self._stream.socket.shutdown(socket.SHUT_RD)
        except OSError:
            pass  # the connection is closed already

    def end_if_flooded(self) -> None:
        """Abort the connection if the peer sends on and on behind a request that waits. When the buffers of the kernel
        are full, the end of the connection could not be seen any more."""
        fd = self.fileno()
        if self.is_paused and self._waits and fd >= 0:
            unread = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
            if unread > MAX_UNREAD:
                self.abort()

    # -- TCP -----------------------------------------------------------------------------------------------------------

    def acked(self) -> int:
        """How many bytes the peer has acknowledged so far; 0 if the socket is closed."""
        return int.from_bytes(self._info()[_BYTES_ACKED], sys.byteorder)

    def has_vanished(self) -> bool:
        """Return True if the peer is gone without having closed the connection. A peer that is there acknowledges data
        or, if it does not read, the probes of its closed window."""
        info = self._info()
        silent_ms = int.from_bytes(info[_LAST_ACK_MS], sys.byteorder)
        return silent_ms >= VANISHED_MS and int.from_bytes(info[_UNACKED], sys.byteorder) > 0

    # -- messages of WebSockets ---------------------------------------------------------------------------------------

    def bound_messages(self, budget: OwnedBudget, wait_s: float) -> None:
        """Count WebSocket messages against `budget` from now on; a message waits for room in it for `wait_s` seconds.
        All WebSockets of a connection use the budget of the first one."""
        if self._budget is None:
            self._budget, self._budget_wait_s = budget, wait_s

    async def hold(self, size: int) -> bool:
        """Count `size` bytes of a message. Return False if there is no room for them."""
        assert self._budget is not None
        if not await self._budget.take(size, self._budget_wait_s):
            return False
        self._held += size
        return True

    def give_back(self, size: int) -> None:
        """Give back `size` bytes that `hold` has counted, at most as many as are left."""
        size = min(size, self._held)
        self._held -= size
        if size:
            assert self._budget is not None
            self._budget.give_back(size)

    def end_messages(self) -> None:
        """Give back all bytes of messages, because the connection is gone."""
        self.give_back(self._held)

    # -- answers -------------------------------------------------------------------------------------------------------

    @contextmanager
    def answering(self, size: int, key: bytes = b"", *, stream: bool = False, timed: bool = True) -> Iterator[None]:
        """Put around sending an answer of `size` bytes to a client with the key of this digest.

        Meanwhile the bytes count as unsent (`topics.http.connections.unsent_bytes`). `stream`: the answer is sent on an
        HTTP/2 stream, whose memory counts as well. `timed`: the connection is aborted if the peer takes too long over
        the answer (`is_too_slow`). The answers of an HTTP/2 connection are sent in turns, so each has the time of all
        answers that are being sent when it begins. Later ones add no time: otherwise an answer that the peer does not
        read could be held for as long as others come.
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
        """Count `size` bytes of an answer that is in memory or is about to be; `give_back_charge` has to follow.

        Never refuses: callers that may be refused ask `why_not` first. If memory is short, stalled readers lose their
        connections.
        """
        if self._unsent_bytes is not None:
            if self._unsent_bytes.is_short_of(size):
                self._unsent_bytes.make_room(self._answering, size, trio.current_time())
            self._unsent_bytes.take(size, key)
        self.owed += size

    def give_back_charge(self, size: int, key: bytes = b"") -> None:
        """Count `size` bytes as sent, dropped, or charged otherwise."""
        self.owed -= size
        if self._unsent_bytes is not None:
            self._unsent_bytes.give_back(size, key)
        if not self.owed:
            self._room.unpark_all()
        else:
            self._room.unpark()

    @property
    def taken(self) -> int:
        """The bytes that the connection is charged with: those that it owes, and those of requests that wait for
        room."""
        return self.owed + self._held_up * STREAM_BYTES

    def has_room(self) -> bool:
        """Return True if the connection owes less than it may owe."""
        return self._unsent_bytes is None or self.owed < self._unsent_bytes.limit_per_connection

    async def until_room(self) -> None:
        """Wait until the connection owes so little that another request may be handled. Cancellation has no other
        effect."""
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
        """Set the number of HTTP/2 streams that are open on the connection."""
        if self._unsent_bytes is not None:
            self._unsent_bytes.open_streams += count - self._open_streams
        self._open_streams = count

    def is_full(self) -> bool:
        """Return True if another HTTP/2 stream must be refused: too many requests wait for room, or the daemon has
        memory for only one stream on each connection."""
        unsent = self._unsent_bytes
        if unsent is None:
            return False
        if self._open_streams and unsent.has_too_many_streams():
            unsent.make_room(self._answering, STREAM_BYTES, trio.current_time())
            return True
        return not self.has_room() and self._held_up * (STREAM_BYTES + COPIED_BYTES) >= unsent.limit_per_connection

    def why_not(self, size: int, key: bytes, charged: int = 0) -> ApiError | None:
        """The 429 for an answer of `size` bytes for which there is no room; None if there is. `charged` of the bytes
        have been charged already. If memory is short, stalled readers lose their connections."""
        if self._unsent_bytes is None:
            return None
        refused = self._unsent_bytes.why_not(self, size, key, charged)
        if refused is not None and self._unsent_bytes.is_short_of(size - charged, charged):
            self._unsent_bytes.make_room(self._answering, size, trio.current_time())
        return refused

    def is_too_slow(self, now: float) -> bool:
        """Return True if an answer has missed its deadline, or the peer has accepted too little in the last minute.
        Called every second; `now` is Trio's clock."""
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
        """For how many seconds the peer has accepted nothing, as far as was observed; `now` is Trio's clock."""
        self._last_progress(now)
        return now - self._moved_at

    def _info(self) -> bytes:
        try:
            return self._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
        except OSError:
            return bytes(_TCP_INFO_BYTES)

    # -- frames written directly ---------------------------------------------------------------------------------------

    def try_send(self, data: bytes) -> int:
        """Write to the socket directly, without waiting. Returns how many bytes it has accepted; if that is a part,
        `send_rest` has to follow.

        Nothing is written while another task sends, or while so many bytes wait in the socket that the kernel would
        call it unwritable (trio sets TCP_NOTSENT_LOWAT). So frames for a slow reader wait in the outbox, where they can
        be dropped.
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
            return 0  # the socket is full, or broken, which the next `send_rest` finds out
        self._direct_bytes += taken
        if taken < len(data):
            self._partial = trio.Event()
        return taken

    @staticmethod
    def _unsent(fd: int) -> int:
        return int.from_bytes(fcntl.ioctl(fd, _SIOCOUTQNSD, bytes(4)), sys.byteorder)

    async def send_rest(self, data: bytes) -> None:
        """Write all of `data` to the socket directly. Nothing else is sent between the pieces of one frame. If the
        connection is broken, it is aborted, which also cancels this call."""
        if self._partial is None:
            if self._direct_ended:
                return
            self._partial = trio.Event()
        async with self.lock:
            try:
                with trio.CancelScope(shield=True):
                    await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                # The caller must not go on as if the data had been sent: cursors would move, and leases would stay.
                self.peer_left(broken=True)
                self.abort()
                await trio.lowlevel.checkpoint()

    def direct_done(self) -> None:
        """Called when the bytes that were written directly end with a whole frame."""
        partial, self._partial = self._partial, None
        if partial is not None:
            partial.set()

    async def between_frames(self) -> None:
        """Wait until no frame is sent only in part, so that hypercorn may send."""
        while self._partial is not None:
            await self._partial.wait()

    def stop_direct(self) -> None:
        """Write no more frames directly, because hypercorn sends the last one."""
        self._direct_ended = True

    def end_direct(self) -> None:
        """Nothing more is written directly. If a frame was sent only in part, the connection is aborted, because it
        cannot be used any more."""
        if self._partial is not None:
            self.abort()
            self.direct_done()

    def abort(self) -> None:
        """Close the socket at once and cancel all tasks of the connection; unsent data is lost. May be repeated."""
        try:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except OSError:
            pass
        self.has_left = self.is_broken = True
        # Closing wakes a shielded send, cancelling wakes everything else.
        self._stream.socket.close()
        self.cancel_scope.cancel()


async def close_gently(stream: trio.SocketStream) -> None:
    """Close a connection behind its last answer. Input is read for a moment more: unread input makes the kernel reset
    the connection, and the reset may overtake the answer, which may be a refusal that the peer has to see."""
    try:
        await stream.send_eof()
        with trio.move_on_after(LINGER_S):
            for _ in range(LINGER_READS):
                if not await stream.receive_some(LINGER_BYTES):
                    break
    except (trio.BrokenResourceError, trio.BusyResourceError, trio.ClosedResourceError):
        pass
    await stream.aclose()


def peer_of(connection: Connection) -> str:
    """The address of the client of a connection, `host:port`; empty if it is not known."""
    if connection.peer is None:
        return ""
    host, port = connection.peer[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
