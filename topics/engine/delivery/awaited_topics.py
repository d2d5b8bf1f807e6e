"""Feeds of topics that do not exist yet: their watchers have said `create`, and wait (`docs/api.md`, watching).

No topic is made for them, and nothing is sent to them. When the topic is made, delivery takes its feeds from here. Each
is one of its connection's feeds, so their number is bounded as that of all feeds.
"""

from __future__ import annotations

from topics.engine.delivery.feed import Feed


class AwaitedTopics:
    """The waiting feeds that are attached to a connection, by the name of the topic."""

    def __init__(self) -> None:
        self._feeds: dict[str, dict[Feed, None]] = {}

    def add(self, feed: Feed) -> None:
        """Add a waiting feed."""
        self._feeds.setdefault(feed.name, {})[feed] = None

    def discard(self, feed: Feed) -> None:
        """Remove a feed, if it waits."""
        waiting = self._feeds.get(feed.name)
        if waiting is not None:
            waiting.pop(feed, None)
            if not waiting:
                del self._feeds[feed.name]

    def take(self, name: str) -> list[Feed]:
        """Remove and return the feeds that wait for this topic, which exists now."""
        return list(self._feeds.pop(name, ()))
