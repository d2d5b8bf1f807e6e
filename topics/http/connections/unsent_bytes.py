"""How many bytes of answers may wait to be sent: of the daemon, of each key, and of each connection.

Theory of operation. An answer is made as a whole and then sent at the pace of its reader, so what readers leave unread
is memory. What is charged here:

- an answer while it is being sent (`Connection.answering`), over HTTP/2 with what its stream takes beside its bytes
  (`on_stream`);
- a large answer while it is gathered and compressed (`Call.gathered`), so that many that are made at once are counted
  before they are there;
- a request over HTTP/2 that waits for room on its connection, with `STREAM_BYTES`.

Open HTTP/2 streams are counted beside that, with `STREAM_BYTES` each, from their first frame on, whatever they wait
for. The bounds act in five places:

- A request over HTTP/2 is not handled while its connection owes as much as it may (`Connection.until_room`).
- A new HTTP/2 stream is refused before anything is kept of it (`Connection.is_full`, REFUSED_STREAM) where as much
  again waits for that; and, when the daemon's bytes are used up by answers and open streams, on every connection that
  has another stream open: each has one request at a time then, as over HTTP/1.1.
- A large answer of a read is refused with a 429 before it is put together (`UnsentBytes.why_not`).
- Any other large answer of a call that has changed nothing, or can be taken back, is dropped for a 429.
- When the daemon's bytes are used up, connections whose readers have taken nothing for `STALLED_S` are cut off, those
  that owe most first. So a crowd that reads nothing cannot keep everybody else from being answered.

The C library keeps what is freed. `is_trim_due` says when so much has been sent or dropped that it is to be given back
to the system.
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
"""What an open HTTP/2 stream takes: its task, its queues, the state of the protocol libraries. With the default of
`max_unsent_bytes`, 13,000 may be open: 10,000 are promised."""

COPIED_BYTES: Final = 64 << 10
"""How much of an answer over HTTP/2 is copied at a time, for the reader's window."""

STALLED_S: Final = 2.0
"""A reader that has taken nothing for so long loses its connection when others need the memory."""

LOOK_EVERY_S: Final = 0.1
"""How often readers that take nothing are looked for while memory is short: it means asking each socket."""

RETRY_AFTER_MS: Final = 1000


def on_stream(size: int) -> int:
    """What an answer of `size` bytes takes that waits on an HTTP/2 stream."""
    return size + min(size, COPIED_BYTES) + STREAM_BYTES


class UnsentBytes:
    """The bytes of all connections."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_unsent_bytes
        self._limit_per_key = settings.max_unsent_bytes_per_key
        self.limit_per_connection = settings.max_unsent_bytes_per_connection
        self.used = 0
        self.open_streams = 0
        """HTTP/2 streams of all connections."""
        self._by_key: Counter[bytes] = Counter()
        self._look_at = -math.inf
        """When stalled readers may be looked for again."""
        self._most_used = 0
        """The highest `used` since `is_trim_due` said yes."""

    def take(self, size: int, key: bytes) -> None:
        """Bytes begin to wait. Never fails: what cannot be dropped any more is counted all the same."""
        self.used += size
        self._most_used = max(self._most_used, self.used)
        if key:
            self._by_key[key] += size

    def give_back(self, size: int, key: bytes) -> None:
        """They have been sent, or dropped."""
        self.used -= size
        if key:
            self._by_key[key] -= size
            if not self._by_key[key]:
                del self._by_key[key]

    def why_not(self, connection: Connection, size: int, key: bytes, charged: int = 0) -> ApiError | None:
        """Return the 429 for an answer that there is no room for; `charged` bytes of it have been taken already. One
        answer is always let through where no other waits."""
        owed = connection.owed - charged
        # Requests wait at the limit; what was let in before can be no more than twice that.
        if owed and owed + size > 2 * self.limit_per_connection:
            return self._refused("max_unsent_bytes_per_connection", self.limit_per_connection)
        of_key = self._by_key[key] - charged if key else 0
        if of_key and of_key + size > self._limit_per_key:
            return self._refused("max_unsent_bytes_per_key", self._limit_per_key)
        if self.is_short_of(size - charged, charged):
            return self._refused("max_unsent_bytes", self._limit)
        return None

    def is_short_of(self, size: int, charged: int = 0) -> bool:
        """Return True if so many bytes more would exceed what the daemon may have. `charged` are the asker's own."""
        return self.used > charged and self.used + size > self._limit

    def has_too_many_streams(self) -> bool:
        """Return True if answers and open streams together take what the daemon may have."""
        return self.used + self.open_streams * STREAM_BYTES >= self._limit

    def make_room(self, connections: set[Connection], size: int, now: float) -> None:
        """Cut off stalled readers until there is room for `size` bytes, and an eighth of the whole to spare. Looks no
        more often than every `LOOK_EVERY_S`."""
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            cut_off_stalled(connections, self.used + size - self._limit + self._limit // 8, now)

    def is_trim_due(self) -> bool:
        """Return True if a quarter of what may wait has gone since this last said so, or since the most there was."""
        if self._most_used - self.used < self._limit // 4:
            return False
        self._most_used = self.used
        return True

    @staticmethod
    def _refused(limit: str, most: int) -> ApiError:
        return throttled(limit, most, retry_after_ms=RETRY_AFTER_MS)


def cut_off_stalled(connections: set[Connection], size: int, now: float) -> None:
    """Cut off readers that take nothing, those that owe most first, until `size` bytes are free or none is left."""
    stalled = [connection for connection in connections if connection.stalled_s(now) >= STALLED_S]
    for connection in sorted(stalled, key=lambda connection: -connection.taken):
        if size <= 0:
            return
        size -= connection.taken
        log.info("reader_stalled", peer=connection.peer, owed=connection.owed)
        connection.abort()
