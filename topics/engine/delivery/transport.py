"""The interface between an outbox and a connection: how the bytes of a frame get to the peer.

A connection that can, sends at once: delivery calls `try_send` in the step in which a frame was made, which saves
waking a task for every watcher. The connection's own task sends the rest, and waits for the socket (`send`).
"""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """One connection, as its outbox sees it."""

    @property
    def whole_frames(self) -> bool:
        """Return True if `send` takes whole frames only, one at a time."""
        ...

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        """Return the bytes that go before and behind the data of a frame, including the stamp."""
        ...

    def try_send(self, wire: bytes) -> int:
        """Send as many bytes as the socket takes now, and return their number. Never waits. After a part, `send` the
        rest next."""
        ...

    async def send(self, wire: bytes) -> None:
        """Send all of it, or the rest of it. Raises nothing if the peer is gone, which is detected elsewhere."""
        ...

    def done(self) -> None:
        """Note that the bytes sent so far end with a whole frame."""
        ...

    def acked(self) -> int:
        """Return the number of bytes that the peer has acknowledged so far; always 0 if that is unknown."""
        ...

    def abort(self) -> None:
        """End the connection at once, without sending the rest."""
        ...
