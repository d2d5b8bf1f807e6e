"""Bytes to lines, for what comes in lines: events and exports.

Pure. A line ends at LF only, as the daemon writes them: what ends lines elsewhere may stand in the data.
"""

from __future__ import annotations

from typing import Final

from topics.client.errors import ProtocolError

MAX_LINE_BYTES: Final = 256 << 20
"""More than any line of a daemon: batches of records are bounded there, and one record may be as large as a body."""


class Lines:
    """Takes pieces of a stream and gives the lines that are complete, without their ends. What is not waits here."""

    __slots__ = ("_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """The lines that end in this piece. Raises ProtocolError for one that does not end within `MAX_LINE_BYTES`."""
        *lines, rest = piece.split(b"\n")
        if lines:
            lines[0] = b"".join((*self._rest, lines[0]))
            self._rest.clear()
            self._size = 0
        if rest:
            self._rest.append(rest)
            self._size += len(rest)
            if self._size > MAX_LINE_BYTES:
                raise ProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
        return lines

    def clear(self) -> None:
        """Forget what is not finished."""
        self._rest.clear()
        self._size = 0
