"""Splits a stream of bytes into lines, for server-sent events and exports.

Pure. Only LF ends a line, as the daemon writes them: other characters that end lines elsewhere may stand in the data.
"""

from __future__ import annotations

from typing import Final

from topics.client.errors import ProtocolError

MAX_LINE_BYTES: Final = 256 << 20
"""A bound for memory. The daemon writes no line so long: it bounds its batches, and a record by the size of a body."""


class LineDecoder:
    """Takes the pieces of a stream, and returns complete lines. Keeps the beginning of a line that is not complete."""

    __slots__ = ("_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the lines that end in this piece, without LF. Raises ProtocolError for a line of more than
        `MAX_LINE_BYTES`."""
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
        """Forget the beginning of a line that is not complete."""
        self._rest.clear()
        self._size = 0
