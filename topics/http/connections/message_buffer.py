"""A message of a WebSocket as it comes, in fragments: kept as the bytes that were sent.

Hypercorn keeps text as text, four bytes for each character, and copies it twice on the way to the application: 60 MB
with one emoji among them were 575 MB. Nothing here looks at text, so it stays UTF-8, which wsproto has checked.
"""

from __future__ import annotations

from typing import Any

from wsproto.events import Message


class MessageBuffer:
    """Collects the fragments of one message."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._is_text = False

    def extend(self, event: Message[Any]) -> None:
        """The next fragment."""
        self._is_text = isinstance(event.data, str)
        self._bytes += event.data.encode() if isinstance(event.data, str) else event.data

    def clear(self) -> None:
        """What was collected is not needed any more."""
        self._bytes = bytearray()

    def take(self) -> tuple[bytes, bool]:
        """The message, and whether it is text. Nothing of it is kept here."""
        collected, self._bytes = self._bytes, bytearray()
        return bytes(collected), self._is_text
