"""The memory of the filters of watchers, of all sessions and sockets together.

A filter of 2.5 KB of text can take 600 KB, for as long as its watcher lives, and there may be 10,000 watchers. So a
filter is counted until nothing refers to it any more, once for all watchers that share it. Beyond the bound, new ones
are refused. Filters whose watchers have gone may still be remembered for the next who sends them; these make room.
"""

from __future__ import annotations

import weakref
from typing import Final

from topics.filters.record_filter import Filter, forget_remembered

MOST_BYTES: Final = 64 << 20
"""Bytes that all filters together may take, by estimate. Beyond that `keep` returns False."""


class KeptFilters:
    """Counts the bytes of the filters in use: `used`, at most `most`."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self.most = most
        self.used = 0
        self._known: set[int] = set()
        """The ids of the filters that are counted."""

    def keep(self, wanted: Filter | None) -> bool:
        """Count a filter for as long as it is referred to. Return False if there is no room for it."""
        if wanted is None or id(wanted) in self._known:
            return True
        if self.used + wanted.memory > self.most:
            forget_remembered()
        if self.used + wanted.memory > self.most:
            return False
        self.used += wanted.memory
        self._known.add(id(wanted))
        weakref.finalize(wanted, self._forget, id(wanted), wanted.memory).atexit = False
        return True

    def _forget(self, known: int, size: int) -> None:
        self._known.discard(known)
        self.used -= size
