"""The memory of the node lists of watchers, of all sessions and sockets together.

A watcher may leave out up to 1,000 nodes for as long as it lives, and there may be 10,000 watchers: their lists would
take more memory than everything else about them. So a list is counted until nothing refers to it any more, however the
watcher ends, and beyond the bound new lists are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

MOST_BYTES: Final = 64 << 20
"""Bytes that all lists together may take. Beyond that `keep` returns None."""


class NodeLists:
    """Counts the bytes of the lists in use: `used`, at most `most`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.used = 0

    def keep(self, nodes: frozenset[str]) -> frozenset[str] | None:
        """Return an equal set that is counted for as long as it is referred to; None if there is no room for it."""
        if not nodes:
            return nodes
        size = _size_of(nodes)
        if self.used + size > self.most:
            return None
        self.used += size
        return _CountedNodes(nodes, self, size)


class _CountedNodes(frozenset[str]):
    """A list that gives its bytes back when it is freed."""

    __slots__ = ("_lists", "_size")
    _lists: NodeLists
    _size: int

    def __new__(cls, nodes: Iterable[str], lists: NodeLists, size: int) -> _CountedNodes:
        kept = super().__new__(cls, nodes)
        kept._lists = lists
        kept._size = size
        return kept

    def __del__(self) -> None:
        self._lists.used -= self._size


def _size_of(nodes: frozenset[str]) -> int:
    return 2 * sys.getsizeof(nodes) + sum(map(sys.getsizeof, nodes))
