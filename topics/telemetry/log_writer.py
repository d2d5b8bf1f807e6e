"""Writing log lines to stderr from a thread, so that code that logs never waits (`topics.telemetry.logs`).

Lines wait in memory, at most `MAX_WAITING` bytes. If nobody reads stderr, further lines are dropped and counted.
"""

from __future__ import annotations

import json
import logging
import os
import select
import threading
import time
from collections import deque
from typing import Any, Final, TextIO

import structlog

MAX_WAITING: Final = 4 << 20
"""Bytes of lines that wait to be written; lines beyond that are dropped and counted."""

FLUSH_S: Final = 2.0
"""The longest that `flush` waits, seconds."""

_BATCH_BYTES: Final = 64 << 10
"""Bytes of lines that are written at a time."""


class LineHandler(logging.Handler):
    """Writes lines to the file descriptor of a stream, from a thread of its own. A stream without a file descriptor
    (one in memory) is written to at once, in the caller's thread."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._fd = _descriptor_of(stream)
        # Reentrant: the garbage collector may run at any point, and a finalizer may log.
        self._changed = threading.Condition(threading.RLock())
        self._lines: deque[bytes] = deque()
        self._bytes = 0
        self._writing = False
        self._dropped = 0
        self._closed = False
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue the line of a record. Never raises for a record that cannot be formatted: that is logged instead."""
        try:
            line = self.format(record)
        except Exception as error:
            line = self._own_line("log_line_failed", logger=record.name, error=type(error).__name__)
        if self._fd is None:
            self._stream.write(line + "\n")
            self._stream.flush()
        else:
            self._put(line.encode("utf-8", "backslashreplace") + b"\n")

    def flush(self) -> None:
        """Blocking: wait until everything logged so far is written, at most `FLUSH_S` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: not self._lines and not self._writing and not self._dropped, FLUSH_S)

    def close(self) -> None:
        """Accept no more lines. The thread still writes those that wait; `flush` waits for that."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        super().close()

    def _put(self, line: bytes) -> None:
        with self._changed:
            if self._closed:
                return
            if self._dropped or self._bytes + len(line) > MAX_WAITING:
                self._dropped += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            if self._thread is None:
                self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _write_all(self) -> None:
        """The thread's function. It is a daemon thread: the process may end while it waits for a reader of stderr."""
        assert self._fd is not None
        while True:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._lines or self._dropped or self._closed)
                if self._lines:
                    batch = self._take()
                elif self._dropped:
                    # This line is in the place of the missing ones: while `_dropped` is set, no line is queued.
                    dropped, self._dropped = self._dropped, 0
                    batch = self._own_line("log_lines_dropped", count=dropped).encode() + b"\n"
                else:
                    return
                self._writing = True
            try:
                _write(self._fd, batch)
            except OSError:
                pass  # stderr itself fails, so there is no way to report it

    def _take(self) -> bytes:
        taken = [self._lines.popleft()]
        size = len(taken[0])
        while self._lines and size + len(self._lines[0]) <= _BATCH_BYTES:
            taken.append(self._lines.popleft())
            size += len(taken[-1])
        self._bytes -= size
        return b"".join(taken)

    def _own_line(self, event: str, **fields: Any) -> str:
        message = {"event": event, "level": "error", "logger": __name__} | fields
        message["timestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        formatter = self.formatter
        if isinstance(formatter, structlog.stdlib.ProcessorFormatter):
            return str(formatter.processors[-1](None, "error", message))
        return json.dumps(message)


def _descriptor_of(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError, ValueError):
        return None


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:  # another process that shares the terminal has set O_NONBLOCK
            select.select([], [fd], [], 1.0)
