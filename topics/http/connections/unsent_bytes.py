"""How many bytes of answers may wait to be sent: of the daemon, of each key, and of each connection.

Theory of operation. An answer is made as a whole and then sent at the pace of its reader, so what readers leave unread
is memory. `Connection.answering` charges each answer here while it is being sent (over HTTP/2 with `STREAM_BYTES` on
top, which is what an open stream takes beside its bytes). The bounds act in four places:

- A request over HTTP/2 is not handled while its connection owes as much as it may (`Connection.until_room`).
- A new HTTP/2 stream of a connection on which as much again waits for that is refused before anything is kept of it
  (`Connection.is_full`, REFUSED_STREAM).
- A large answer of a call that has changed nothing is dropped for a 429 when there is no room for it
  (`UnsentBytes.why_not`).
- When the daemon's bytes are used up, connections whose readers have taken nothing for `STALLED_S` are cut off, those
  that owe most first. So a crowd that reads nothing cannot keep everybody else from being answered.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from topics.errors import ApiError, throttled
from topics.telemetry.logs import get_logger

if TYPE_CHECKING:
    from topics.config import Settings
    from topics.http.connections.connection import Connection

log = get_logger(__name__)

STREAM_BYTES: Final = 64 << 10
"""What an HTTP/2 stream whose answer waits takes: its task, its queues, the state of the protocol libraries."""

STALLED_S: Final = 2.0
"""A reader that has taken nothing for so long loses its connection when others need the memory."""

RETRY_AFTER_MS: Final = 1000


class UnsentBytes:
    """The bytes of all connections."""

    def __init__(self, settings: Settings) -> None:
        self._limit = settings.max_unsent_bytes
        self._limit_per_key = settings.max_unsent_bytes_per_key
        self.limit_per_connection = settings.max_unsent_bytes_per_connection
        self.used = 0
        self._by_key: Counter[bytes] = Counter()

    def take(self, size: int, key: bytes) -> None:
        """Bytes begin to wait. Never fails: what cannot be dropped any more is counted all the same."""
        self.used += size
        if key:
            self._by_key[key] += size

    def give_back(self, size: int, key: bytes) -> None:
        """They have been sent, or dropped."""
        self.used -= size
        if key:
            self._by_key[key] -= size
            if not self._by_key[key]:
                del self._by_key[key]

    def why_not(self, connection: Connection, size: int, key: bytes) -> ApiError | None:
        """Return the 429 for an answer that there is no room for. One answer is always let through where none waits."""
        owed = connection.owed
        # Requests wait at the limit; what was let in before can be no more than twice that.
        if owed and owed + size > 2 * self.limit_per_connection:
            return self._refused("max_unsent_bytes_per_connection", self.limit_per_connection)
        of_key = self._by_key[key] if key else 0
        if of_key and of_key + size > self._limit_per_key:
            return self._refused("max_unsent_bytes_per_key", self._limit_per_key)
        if self.used and self.used + size > self._limit:
            return self._refused("max_unsent_bytes", self._limit)
        return None

    def is_short_of(self, size: int) -> bool:
        """Return True if so many bytes more would exceed what the daemon may have."""
        return bool(self.used) and self.used + size > self._limit

    @staticmethod
    def _refused(limit: str, most: int) -> ApiError:
        return throttled(limit, most, retry_after_ms=RETRY_AFTER_MS)


def cut_off_stalled(connections: set[Connection], size: int, now: float) -> None:
    """Cut off readers that take nothing, those that owe most first, until `size` bytes are free or none is left."""
    stalled = [connection for connection in connections if connection.stalled_s(now) >= STALLED_S]
    for connection in sorted(stalled, key=lambda connection: -connection.owed):
        if size <= 0:
            return
        size -= connection.owed
        log.info("reader_stalled", peer=connection.peer, owed=connection.owed)
        connection.abort()
