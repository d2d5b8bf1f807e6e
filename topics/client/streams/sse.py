"""Decodes server-sent events (`docs/spec/api.md` section 8).

Pure: bytes in, events out; the pieces may end anywhere. An event that is not complete is kept here and in
`topics.client.streams.lines`, at most `MAX_EVENT_BYTES` in each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from topics.client.errors import ProtocolError
from topics.client.streams.lines import MAX_LINE_BYTES, LineDecoder

MAX_EVENT_BYTES: Final = MAX_LINE_BYTES
"""The daemon writes the data of an event as one line."""


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event. `id` is None if the event has none."""

    name: str
    data: bytes
    id: str | None = None


class EventDecoder:
    """Takes the pieces of a stream, and yields complete events."""

    __slots__ = ("_data", "_id", "_lines", "_name", "_size")

    def __init__(self) -> None:
        self._lines = LineDecoder()
        self._size = 0
        """Bytes of `_data`."""
        self._name = ""
        self._data: list[bytes] = []
        self._id: str | None = None

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Yield the events that end in this piece. Raises ProtocolError for an event of more than `MAX_EVENT_BYTES`,
        and for one that is not UTF-8."""
        for line in self._lines.feed(piece):
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                yield event

    def _line(self, line: bytes) -> Event | None:
        if not line:
            event = Event(self._name or "message", b"\n".join(self._data), self._id) if self._data else None
            self._name, self._data, self._id, self._size = "", [], None, 0
            return event
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._size += len(value)
            if self._size > MAX_EVENT_BYTES:
                raise ProtocolError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        elif name == b"event":
            self._name = _text(value)
        elif name == b"id":
            self._id = _text(value)
        return None  # a comment, `retry`, or a field that is not known


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ProtocolError("an event that is no UTF-8") from None
