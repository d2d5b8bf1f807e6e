"""A watch session with prefixes: its topics come and go, so its ids name instances of topics.

An id is the JSON list of `[epoch, position]`, one for each topic that the client has been told of. An epoch is never
used again, so it says which instance a position belongs to, and what the client has missed:

    the epoch of a topic that is watched    the session goes back to the position
    of a topic that was deleted             the client is told again; the new instance, if any, is added after that
    no epoch for a topic that is watched    the client has not been told that it was added, and is told again
    an epoch that nobody remembers          the session cannot go on: 404, and the client makes a new one
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable
from typing import Final

import msgspec

from topics.engine.delivery.feed import Feed, TopicPosition
from topics.engine.delivery.prefix_wishes import PrefixWishes
from topics.engine.delivery.watch_session import GONE, SessionCursors, WatchSession, no_session, padded
from topics.engine.registry import Registry
from topics.engine.topic import Topic
from topics.errors import invalid
from topics.model import MAX_U64

_pairs: Final = msgspec.json.Decoder(list[tuple[int, int]])


class PrefixSession(WatchSession):
    """A session with prefixes. It has no end of its own: topics may come at any time."""

    prefixes: PrefixWishes

    def __init__(
        self,
        wid: str,
        topics: Iterable[Feed],
        heartbeat_ms: int,
        owner: bytes,
        prefixes: PrefixWishes,
        registry: Registry,
        most: int,
    ) -> None:
        super().__init__(wid, topics, heartbeat_ms, owner)
        self.prefixes = prefixes
        self._registry = registry
        self._most = most
        self._order = []  # ids have epochs
        self._named = {feed.name: feed for feed in self._feeds.values() if feed.prefix is None}
        """The first feeds of the topics that the client has named."""
        self._started = {feed.name: feed.sent for feed in self._feeds.values() if feed.awaits}
        """Where topics begin that did not exist at the call."""

    @property
    def goes_on(self) -> bool:
        """True: a topic may be made at any time."""
        return True

    @property
    def names(self) -> list[str]:
        """Its topics, and the prefixes that topics may come by."""
        return [*self._feeds, *self.prefixes.covered]

    def add(self, feed: Feed) -> None:
        """Add the feed of a topic that a prefix has found."""
        self._feeds[feed.name] = feed

    def prepare(self) -> None:
        """Before a connection: a topic that a prefix has found, and that was deleted or made again, is over."""
        for feed in self._feeds.values():
            if feed.prefix is not None:
                topic = self._registry.topics.get(feed.name)
                feed.over = topic is None or topic.id != feed.sent.epoch

    def cursors(self) -> bytes:
        """Return the id of a frame that is queued now."""
        told = [
            (feed.epoch, feed.position)
            for feed in self._feeds.values()
            if feed.announced and not feed.ended and feed.epoch != GONE
        ]
        return urlsafe_b64encode(msgspec.json.encode(told)).rstrip(b"=")

    def read_id(self, last_event_id: str) -> SessionCursors:
        """Return the positions in an id, by epoch. Raises 400 if it is no such id."""
        try:
            positions = dict(_pairs.decode(urlsafe_b64decode(padded(last_event_id))))
            if not all(0 <= number <= MAX_U64 for pair in positions.items() for number in pair):
                raise ValueError
        except (ValueError, msgspec.DecodeError):
            raise invalid("Last-Event-ID", "is not an id of this stream") from None
        return SessionCursors({}, 0, positions)

    def rewind(self, cursors: SessionCursors) -> None:
        """Go back to what the client knows. Raises 404 if it knows an instance that nobody remembers."""
        missed = dict(cursors.by_epoch)
        for feed in self._feeds.values():
            position = missed.pop(feed.sent.epoch, None)
            if position is None:
                feed.sent = self._untold(feed)
            else:  # told, though the daemon may not know that the frame has arrived
                feed.sent = TopicPosition(min(position, feed.sent.position), feed.sent.epoch)
            feed.go_back(feed.sent)
        for epoch, position in missed.items():
            if epoch not in self._registry.by_id:
                self._missed(TopicPosition(position, epoch))
        for epoch, position in missed.items():
            topic = self._registry.by_id.get(epoch)
            if topic is not None and topic.stage is None:
                self._known(topic, position)

    def _untold(self, feed: Feed) -> TopicPosition:
        """Return where a feed begins of which the client knows nothing, or only another instance."""
        if feed.prefix is not None:
            return TopicPosition(0, feed.sent.epoch, announced=False)
        started = self._started.get(feed.name)
        if started is None:
            return TopicPosition(0, GONE)
        return started if started.position or feed.awaits else TopicPosition(0, feed.sent.epoch)

    def _known(self, topic: Topic, position: int) -> None:
        """Go on with an instance that the client knows, though the session had gone back to before it; without room for
        it, the topic is left out."""
        feed, wish = self._feeds.get(topic.name), self.prefixes.of(topic.name)
        mark = TopicPosition(min(position, topic.log.head_seq), topic.id)
        if feed is not None and feed.prefix is None and not feed.over:
            feed.sent = mark
            feed.go_back(mark)
        elif wish is not None and self._room() > 0:
            self._feeds[topic.name] = Feed(
                topic.name, wish.wish, mark, consistency=wish.consistency, prefix=wish.prefix
            )

    def _room(self) -> int:
        by_id = self._registry.by_id
        return self._most - sum(feed.prefix is None or feed.sent.epoch in by_id for feed in self._feeds.values())

    def _missed(self, mark: TopicPosition) -> None:
        """Have the client told that an instance that it knows is gone. Raises 404 if its name is forgotten."""
        deleted = self._registry.deleted_topic(mark.epoch)
        if deleted is None:
            raise no_session(self.wid)
        name = deleted.name
        feed = self._feeds.get(name)
        if feed is not None and feed.prefix is None:
            feed.sent = TopicPosition(mark.position, GONE)  # the client is told that it was made again
            feed.go_back(feed.sent)
            return
        wish = self.prefixes.of(name)
        before = self._named.get(name)
        if wish is not None:
            feed = Feed(name, wish.wish, mark, consistency=wish.consistency, prefix=wish.prefix)
        elif before is not None:
            feed = Feed(name, before.wish, mark, consistency=before.consistency)
        else:
            return  # no session of this key has told of it
        feed.over = True
        self._feeds[name] = feed
