"""What the node lists of watchers take in memory, all sessions and sockets together.

A watcher may leave out up to 1,000 nodes for as long as it lives, and there may be 10,000 watchers: their lists would
be more than everything else that the daemon keeps for them. So a list counts from when it is taken until nothing refers
to it any more, however the watcher ends, and beyond the bound new ones are refused.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final

MOST_BYTES: Final = 64 << 20


class NodeLists:
    """Counts `used` bytes; `most` is the bound."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.used = 0

    def keep(self, nodes: frozenset[str]) -> frozenset[str] | None:
        """The same nodes, counted for as long as somebody holds them; None if there is no room for them."""
        if not nodes:
            return nodes
        size = _size_of(nodes)
        if self.used + size > self.most:
            return None
        self.used += size
        return _KeptNodes(nodes, self, size)


class _KeptNodes(frozenset[str]):
    """A list that gives its bytes back when it is freed."""

    __slots__ = ("_lists", "_size")
    _lists: NodeLists
    _size: int

    def __new__(cls, nodes: Iterable[str], lists: NodeLists, size: int) -> _KeptNodes:
        kept = super().__new__(cls, nodes)
        kept._lists = lists
        kept._size = size
        return kept

    def __del__(self) -> None:
        self._lists.used -= self._size


def _size_of(nodes: frozenset[str]) -> int:
    return 2 * sys.getsizeof(nodes) + sum(map(sys.getsizeof, nodes))
