"""Reading ahead in objects that never change: who reads an object from front to back gets more bytes at a time, so that
the next reads need no call of the store.

A *stream* is one reader's way through one object, as far as it can be told from the reads: a read that begins where
another one ended belongs to its stream. With each call a stream fetches more, up to `MOST_AHEAD_BYTES`; bytes that were
not asked for yet are its *window*. A read at any other place fetches only the bytes that it asks for. Windows are
bounded in bytes and streams in number; the least recently used go first, and a window goes when it has been read to its
end.

Only bytes are kept here, of names that stand for the same bytes for ever. Which records of them are live, and whether
they verify, is decided by readers at each read.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

MOST_BYTES: Final = 32 << 20
"""Bytes of all windows together."""

MOST_STREAMS: Final = 64
"""Each read looks through all of them, which takes some microseconds."""

FIRST_AHEAD_BYTES: Final = 1 << 20
"""Bytes that a read from the beginning of an object fetches at least: more reads follow as a rule."""

MOST_AHEAD_BYTES: Final = 4 << 20
"""Bytes that a stream fetches at a time at most: with 100 MB/s and 30 ms for each call, two thirds of the time are
bytes."""

BEGINNING_BYTES: Final = 64
"""A read across this offset has the first frame of a segment, and not the header alone."""

GAP_BYTES: Final = 64 << 10
"""A read that leaves out so many bytes, those of deleted records, still goes on where the one before ended."""


class ReadStream(NamedTuple):
    """How far a reader has come in an object. `window` has the bytes before `end`; it is empty if they were read."""

    name: str
    window: bytes
    end: int
    ahead: int
    """Bytes that its next call fetches at least."""

    @property
    def start(self) -> int:
        return self.end - len(self.window)

    def follows(self, name: str, offset: int) -> bool:
        """Return True if a read from `offset` goes on where this stream is."""
        return self.name == name and self.start <= offset <= self.end + GAP_BYTES


class ReadWindows:
    """The streams of all readers of one store. May be called from several threads; a lock is held for no call of the
    store."""

    def __init__(self) -> None:
        self.bytes = 0
        """Bytes of windows now."""
        self._lock = threading.Lock()
        self._streams: list[ReadStream] = []
        """Least recently used first."""
        self._forgotten = 0

    def read(self, name: str, size: int, offset: int, length: int, get: Callable[[int, int], bytes]) -> bytes:
        """Return `length` bytes from `offset` of an object of `size` bytes, which has them.

        `get` reads bytes of the object by offset and length; its exceptions are passed on, and nothing is kept then.
        """
        if length >= MOST_AHEAD_BYTES:
            return get(offset, length)
        with self._lock:
            stream = self._taken(name, offset)
            forgotten = self._forgotten
            if stream is not None and offset + length <= stream.end:
                at = offset - stream.start
                self._keep(stream if offset + length < stream.end else stream._replace(window=b""))
                return stream.window[at : at + length]
        head, ahead = b"", FIRST_AHEAD_BYTES if offset < BEGINNING_BYTES < offset + length else 0
        if stream is not None:
            head = stream.window[offset - stream.start :] if offset < stream.end else b""
            ahead = max(ahead, stream.ahead)
        begin = offset + len(head)
        missing = length - len(head)
        found = get(begin, min(max(missing, ahead), size - begin))
        end = begin + len(found)
        following = min(2 * max(missing, ahead), MOST_AHEAD_BYTES)
        with self._lock:
            if forgotten == self._forgotten and (end < size or len(found) > missing):
                self._keep(ReadStream(name, found[missing:], end, following))
        return head + found[:missing]

    def forget(self, name: str) -> None:
        """Forget the bytes of an object, and those of reads under way: they did not verify."""
        with self._lock:
            self._forgotten += 1
            for i in reversed(range(len(self._streams))):
                if self._streams[i].name == name:
                    self._drop(i)

    def _taken(self, name: str, offset: int) -> ReadStream | None:
        """Take out and return the stream that a read goes on with."""
        for i in reversed(range(len(self._streams))):
            if self._streams[i].follows(name, offset):
                return self._drop(i)
        return None

    def _drop(self, i: int) -> ReadStream:
        stream = self._streams.pop(i)
        self.bytes -= len(stream.window)
        return stream

    def _keep(self, stream: ReadStream) -> None:
        self._streams.append(stream)
        self.bytes += len(stream.window)
        while self.bytes > MOST_BYTES or len(self._streams) > MOST_STREAMS:
            self._drop(0)
