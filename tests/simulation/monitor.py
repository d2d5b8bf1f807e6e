"""`OrderingMonitor`: watches a `SimFs` and fails at the moment an order of operations is unsafe, crash or no crash.

A crash test finds an unsafe order only if the crash falls into it; the monitor finds it in every run. It knows the
rules that hold for any file (what is published under its final name is durable; what is acknowledged is durable); what
must be there before a particular file goes is stated by the test.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from typing import Never

from tests.simulation.disk import Op, SimFs
from topics.storage.files.fs import TEMPORARY_SUFFIX


class OrderingMonitor:
    """Subscribed to `fs` from its creation on. A violation raises AssertionError into the code that commits it.

    As that code may swallow what it gets, `failures` keeps every violation, and `check` raises if there are any.
    """

    def __init__(self, fs: SimFs) -> None:
        self.failures: list[str] = []
        self.acked: dict[str, int] = {}
        """For each path given to `ack` the highest end: what every crash must leave."""
        self._fs = fs
        self._before_unlink: list[Callable[[str], bool]] = []
        fs.subscribe(self._look)

    def expect_before_unlink(self, predicate: Callable[[str], bool]) -> None:
        """Ask `predicate` with the path of each `.log`, `.data` or snapshot that is about to be unlinked.

        It answers whether what replaces the file is durable (see `is_durable`); all predicates must agree.
        """
        self._before_unlink.append(predicate)

    def is_durable(self, path: str) -> bool:
        """Whether a file, with content, size and name, survives any crash. False if there is none."""
        return self._fs.is_file(path) and self._fs.entry_durable(path) and self._fs.content_durable(path)

    def ack(self, path: str, end_offset: int) -> None:
        """A commit of a synced class that ends at `end_offset` of an append-only file is acknowledged now."""
        self.must_be_durable(self._fs, path, 0, end_offset)
        self.acked[path] = max(self.acked.get(path, 0), end_offset)

    def must_be_durable(self, fs: SimFs, path: str, start: int, end: int) -> None:
        """Fail unless bytes [start, end) of `path`, and its name, survive any crash at this moment."""
        if not fs.is_file(path):
            self._fail(f"{path} is acknowledged up to {end} and does not exist")
        if not fs.content_durable(path, start, end):
            self._fail(f"{path} is acknowledged up to {end} and its bytes from {start} are not all durable")
        if not fs.entry_durable(path):
            self._fail(f"{path} is acknowledged up to {end} and its name is not durable")

    def check(self) -> None:
        """Raise AssertionError with all violations so far."""
        assert not self.failures, "\n".join(self.failures)

    def _look(self, op: Op) -> None:
        if op.name == "rename":
            if not self._fs.is_file(op.path):
                return  # a directory, whose files were published by themselves, or nothing at all
            if not op.detail.endswith(TEMPORARY_SUFFIX) and not self._fs.content_durable(op.path):
                self._fail(f"operation {op.index} publishes {op.detail} before the content of {op.path} is durable")
        elif op.name == "unlink" and _is_precious(op.path):
            for predicate in self._before_unlink:
                if not predicate(op.path):
                    self._fail(f"operation {op.index} unlinks {op.path} before what replaces it is durable")

    def _fail(self, message: str) -> Never:
        self.failures.append(message)
        raise AssertionError(message)


def _is_precious(path: str) -> bool:
    """A file with the only copy of something, until its replacement is durable."""
    name = posixpath.basename(path)
    return name.endswith((".log", ".data")) or (name.startswith("snapshot") and not name.endswith(TEMPORARY_SUFFIX))
