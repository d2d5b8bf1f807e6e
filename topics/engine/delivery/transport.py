"""The seam between an outbox and a connection: how the bytes of a frame get to the peer.

A connection that can, sends at once: delivery calls `try_send` in the step in which a frame was made, which spares the
wake-up of a task for every watcher. What the socket does not take at once is left to the connection's own task, which
waits for it (`send`).
"""

from __future__ import annotations

from typing import Protocol


class Transport(Protocol):
    """One connection, as its outbox sees it."""

    @property
    def whole_frames(self) -> bool:
        """Whether `send` takes a frame at a time, and not any piece of several."""
        ...

    def wrap(self, stamp: bytes, data: bytes) -> tuple[bytes, bytes]:
        """What goes before and behind the data of a frame when it is sent, the stamp included."""
        ...

    def try_send(self, wire: bytes) -> int:
        """Send what the socket takes now; how many bytes that was. Never waits. After a part, `send` the rest next."""
        ...

    async def send(self, wire: bytes) -> None:
        """Send all of it, or the rest of it. A peer that is gone is noticed elsewhere: nothing is raised."""
        ...

    def done(self) -> None:
        """What was sent so far ends with a whole frame."""
        ...

    def acked(self) -> int:
        """Bytes that the peer has acknowledged so far; always 0 where nobody can tell."""
        ...

    def abort(self) -> None:
        """End the connection at once, whatever is unsent."""
        ...
