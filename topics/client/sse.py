"""Server-sent events out of bytes (`api.md` section 8).

Pure: bytes in, events out, whatever the pieces are that the bytes come in. A line ends at LF only, as the daemon writes
them: other characters that end lines elsewhere may stand in the data. What is not finished waits here, at most
`MAX_EVENT_BYTES`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from topics.client.errors import ProtocolError

MAX_EVENT_BYTES: Final = 256 << 20
"""More than any frame of a daemon: the largest batch of records is bounded there, and one record may be as large as a
body."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. `id` is None where the frame has none."""

    name: str
    data: bytes
    id: str | None = None


class EventDecoder:
    """Takes pieces of a stream and yields the events that are complete."""

    __slots__ = ("_data", "_id", "_name", "_rest", "_size")

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._size = 0
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> Iterator[Event]:
        """The events that end in this piece. Raises ProtocolError for one that does not end."""
        if b"\n" not in piece:
            self._keep(piece)
            return
        *lines, rest = piece.split(b"\n")
        lines[0] = b"".join((*self._rest, lines[0]))
        self._rest.clear()
        self._size = sum(map(len, self._data))
        self._keep(rest)
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def _keep(self, piece: bytes) -> None:
        if piece:
            self._rest.append(piece)
            self._size += len(piece)
            if self._size > MAX_EVENT_BYTES:
                raise ProtocolError(f"an event of more than {MAX_EVENT_BYTES} bytes")

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name or "message", b"\n".join(self._data), self._id) if self._data else None
            self._name, self._data, self._id = "", [], None
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"event":
            self._name = _text(value)
        elif name == b"id":
            self._id = _text(value)
        return None  # comments, `retry`, and what is not known


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProtocolError("an event that is no UTF-8") from None
