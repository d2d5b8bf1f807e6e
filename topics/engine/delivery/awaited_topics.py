"""Feeds of topics that are not there yet: their watchers have said `create`, and wait (`docs/api.md`, watching).

Nothing is made for them, and nothing is sent to them. When somebody makes the topic, delivery takes them from here.
Each is one of its connection's feeds, so their number has the bounds of those.
"""

from __future__ import annotations

from topics.engine.delivery.feed import Feed


class Awaited:
    """Those that are shown on a connection, by the name of the topic."""

    def __init__(self) -> None:
        self._feeds: dict[str, dict[Feed, None]] = {}

    def add(self, feed: Feed) -> None:
        """It waits from here on."""
        self._feeds.setdefault(feed.name, {})[feed] = None

    def discard(self, feed: Feed) -> None:
        """It does not wait any more, if it did."""
        waiting = self._feeds.get(feed.name)
        if waiting is not None:
            waiting.pop(feed, None)
            if not waiting:
                del self._feeds[feed.name]

    def take(self, name: str) -> list[Feed]:
        """Those that waited for this topic, which is there now."""
        return list(self._feeds.pop(name, ()))
