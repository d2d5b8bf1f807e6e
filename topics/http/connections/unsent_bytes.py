"""A bound on the bytes of answers that wait to be sent: for the daemon, for each key, and for each connection.

Theory of operation. An answer is made as a whole and then sent at the pace of its reader, so unread answers take
memory. Charged are:

- an answer while it is being sent (`Connection.answering`); over HTTP/2 also the memory of its stream (`on_stream`);
- a large answer while it is read and compressed (`Call.gathered`), so that many answers that are made at the same time
  are counted before they are complete;
- a request over HTTP/2 that waits for room on its connection, with `STREAM_BYTES`.

Open HTTP/2 streams are counted separately, with `STREAM_BYTES` each, from their first frame on. The bounds act in five
places:

- A request over HTTP/2 is not handled while its connection owes as many bytes as it may (`Connection.until_room`).
- A new HTTP/2 stream is refused before anything of it is kept (`Connection.is_full`, REFUSED_STREAM) if the requests
  that wait like that would take as much again. If answers and open streams together use up the bytes of the daemon, it
  is refused on every connection with another open stream: each connection then has one request at a time, as over
  HTTP/1.1.
- A large answer to a read is refused with 429 before it is put together (`UnsentBytes.why_not`).
- Any other large answer is replaced by a 429 if its call has changed nothing, or its change can be taken back.
- If the bytes of the daemon are used up, connections whose readers have accepted nothing for `STALLED_S` are aborted,
  those that owe most first. So clients that do not read cannot keep others from being answered.

The C library keeps freed memory. `is_trim_due` says when enough has been freed to return it to the system.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final

from topics.errors import ApiError, throttled
from topics.telemetry.logs import get_logger

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.http.connections.connection import Connection

log = get_logger(__name__)

STREAM_BYTES: Final = 20 << 10
"""The memory of an open HTTP/2 stream: its task, its queues, the state of the protocol libraries. With the default of
`max_unsent_bytes` 13,000 streams may be open; 10,000 are promised."""

COPIED_BYTES: Final = 64 << 10
"""How much of an answer over HTTP/2 is copied at a time, for the window of the reader."""

STALLED_S: Final = 2.0
"""A reader that has accepted nothing for this time loses its connection if others need the memory."""

LOOK_EVERY_S: Final = 0.1
"""How often stalled readers are looked for at most while memory is short. Each look asks every socket."""

RETRY_AFTER_MS: Final = 1000
"""After how long a refused client may try again."""


def on_stream(size: int) -> int:
    """The memory of an answer of `size` bytes that waits on an HTTP/2 stream, bytes."""
    return size + min(size, COPIED_BYTES) + STREAM_BYTES


class UnsentBytes:
    """The unsent bytes of all connections together: `used`."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_unsent_bytes
        self._limit_per_key = settings.max_unsent_bytes_per_key
        self.limit_per_connection = settings.max_unsent_bytes_per_connection
        self.used = 0
        self.open_streams = 0
        """The number of open HTTP/2 streams of all connections."""
        self._by_key: Counter[bytes] = Counter()
        self._look_at = -math.inf
        """When stalled readers may be looked for again (Trio's clock)."""
        self._most_used = 0
        """The highest `used` since `is_trim_due` last returned True."""

    def take(self, size: int, key: bytes) -> None:
        """Count bytes that begin to wait. Never refuses: callers that may be refused ask `why_not` first."""
        self.used += size
        self._most_used = max(self._most_used, self.used)
        if key:
            self._by_key[key] += size

    def give_back(self, size: int, key: bytes) -> None:
        """Count bytes that have been sent or dropped."""
        self.used -= size
        if key:
            self._by_key[key] -= size
            if not self._by_key[key]:
                del self._by_key[key]

    def why_not(self, connection: Connection, size: int, key: bytes, charged: int = 0) -> ApiError | None:
        """The 429 for an answer of `size` bytes for which there is no room; None if there is. `charged` bytes of the
        answer have been taken already. If no other answer waits, any size is allowed."""
        owed = connection.owed - charged
        # Requests wait once the limit is reached, so requests that were let in before can owe up to twice the limit.
        if owed and owed + size > 2 * self.limit_per_connection:
            return self._refused("max_unsent_bytes_per_connection", self.limit_per_connection)
        of_key = self._by_key[key] - charged if key else 0
        if of_key and of_key + size > self._limit_per_key:
            return self._refused("max_unsent_bytes_per_key", self._limit_per_key)
        if self.is_short_of(size - charged, charged):
            return self._refused("max_unsent_bytes", self._limit)
        return None

    def is_short_of(self, size: int, charged: int = 0) -> bool:
        """Return True if `size` more bytes would exceed the limit of the daemon. `charged` bytes are the caller's own;
        if no others wait, any size is allowed."""
        return self.used > charged and self.used + size > self._limit

    def has_too_many_streams(self) -> bool:
        """Return True if answers and open streams together reach the limit of the daemon."""
        return self.used + self.open_streams * STREAM_BYTES >= self._limit

    def make_room(self, connections: set[Connection], size: int, now: float) -> None:
        """Abort the connections of stalled readers until there is room for `size` bytes and an eighth of the limit.
        Does nothing within `LOOK_EVERY_S` of the last look. `now` is Trio's clock."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            cut_off_stalled(connections, self.used + size - self._limit + self._limit // 8, now)

    def is_trim_due(self) -> bool:
        """Return True if the bytes have fallen by a quarter of the limit, from their highest since the last True."""
        if self._most_used - self.used < self._limit // 4:
            return False
        self._most_used = self.used
        return True

    @staticmethod
    def _refused(limit: str, most: int) -> ApiError:
        return throttled(limit, most, retry_after_ms=RETRY_AFTER_MS)


def cut_off_stalled(connections: set[Connection], size: int, now: float) -> None:
    """Abort the connections of stalled readers, those that owe most first, until `size` bytes are free or no such
    connection is left. `now` is Trio's clock."""
    stalled = [connection for connection in connections if connection.stalled_s(now) >= STALLED_S]
    for connection in sorted(stalled, key=lambda connection: -connection.taken):
        if size <= 0:
            return
        size -= connection.taken
        log.info("reader_stalled", peer=connection.peer, owed=connection.owed)
        connection.abort()
