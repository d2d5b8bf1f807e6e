"""A command on a pseudo-terminal, as somebody who sits in front of it sees it and types.

What the process prints is read all the time, by a thread, so that it never waits for the test.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
"""Colours, cursor movements, titles."""
TAKE_TERMINAL = """
import fcntl, os, sys, termios
terminal = int(sys.argv[1])
fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
os.set_inheritable(terminal, False)
os.execvp(sys.argv[2], sys.argv[2:])
"""
WITHIN_S = 30.0
MAX_SCREEN = 16 << 20


class Terminal:
    """A process whose standard streams are a terminal, but for those that `streams` name (`stdin=PIPE`, ...). The
    terminal is the controlling one: Ctrl-C (`press("\\x03")`) is a SIGINT. A context manager; at its end the process is
    killed if it still runs.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        environ: Mapping[str, str],
        *,
        rows: int = 30,
        columns: int = 120,
        **streams: Any,
    ) -> None:
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._bytes = bytearray()

        try:
            self.process = subprocess.Popen(
                [sys.executable, "-ISc", TAKE_TERMINAL, str(slave), *arguments],
                env={"TERM": "xterm-256color", **environ},
                start_new_session=True,
                pass_fds=(slave,),
                **({"stdin": slave, "stdout": slave, "stderr": slave} | streams),
            )
        except BaseException:
            os.close(self._master)
            raise
        finally:
            os.close(slave)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while len(self._bytes) < MAX_SCREEN:
            try:
                piece = os.read(self._master, 1 << 16)
            except OSError:  # nobody has the other end any more
                return
            if not piece:
                return
            self._bytes += piece

    # -- what is on it -------------------------------------------------------------------------------------------------

    @property
    def raw(self) -> str:
        """Everything that was printed so far, escape sequences included."""
        return bytes(self._bytes).decode(errors="replace")

    @property
    def text(self) -> str:
        """Everything that was printed so far, without escape sequences."""
        return ESCAPES.sub("", self.raw).replace("\r\n", "\n")

    def until(self, condition: str | Callable[[str], bool], *, within_s: float = WITHIN_S) -> str:
        """Wait until something is in the text, or a condition on it holds. Returns the text."""
        deadline = time.monotonic() + within_s
        while True:
            text = self.text
            if condition in text if isinstance(condition, str) else condition(text):
                return text
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {within_s} s: {condition!r}; the terminal says:\n{text[-3000:]}")
            time.sleep(0.01)

    # -- what is done --------------------------------------------------------------------------------------------------

    def press(self, text: str) -> None:
        """Type. `\\x03` is Ctrl-C, `\\x04` at the beginning of a line Ctrl-D."""
        os.write(self._master, text.encode())

    def resize(self, rows: int, columns: int) -> None:
        """The process gets a SIGWINCH."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def echoes(self) -> bool:
        """Whether the terminal is as it was at the beginning: it shows what is typed, and takes it line by line."""
        flags = termios.tcgetattr(self._master)[3]
        return bool(flags & termios.ECHO and flags & termios.ICANON)

    def wait(self, within_s: float = WITHIN_S) -> int:
        """Wait for the end of the process, and for all that it has printed. Returns its exit code."""
        code = self.process.wait(within_s)
        self._reader.join(within_s)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WITHIN_S)
        self._reader.join(1.0)
        os.close(self._master)
