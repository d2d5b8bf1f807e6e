"""Topics that are watched because their names begin with a prefix, also those that are made later.

Theory of operation. A connection whose watcher has prefixes has a `PrefixWatch`, which makes a feed for each topic that
one of the prefixes matches. It looks through the existing topics once, when the connection begins (`fill`); so a
session without a connection costs nothing, and finds what was made meanwhile when it comes back. After that
`PrefixWatches` tells it of each new topic. A new topic costs a dictionary lookup for each length of a prefix that
anybody watches, and nothing for the watchers that do not match.

    made        its feed begins with the first record. `topic-added` is the first frame of the feed
    deleted     its feed ends with `topic-deleted`, or with nothing if the client has not been told of the topic
    made again  another topic: when the feed of the older instance has ended, a feed for it is made

A connection has at most `TOPICS_MAX_WATCH_TOPICS` topics. Others are *left out*: the client is told their names, at
most `MOST_NAMED` at a time. They stay out until they are made again, or the connection is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from topics.engine.delivery.feed import Feed, TopicPosition
from topics.engine.delivery.prefix_wishes import PrefixWishes
from topics.engine.registry import Registry, count_with, names_with
from topics.engine.topic import Topic

if TYPE_CHECKING:
    from topics.engine.delivery.outbox import Outbox

MOST_NAMED: Final = 100
"""Topics that one `error` frame names as left out. The others are counted."""


class PrefixWatches:
    """The watches of all open connections, by prefix."""

    def __init__(self) -> None:
        self._by_prefix: dict[str, dict[PrefixWatch, None]] = {}
        self._lengths: Counter[int] = Counter()
        """How many prefixes of each length there are."""

    def add(self, watch: PrefixWatch) -> None:
        """Tell a watch of new topics with its prefixes, as they are now."""
        for prefix in watch.wishes.covered:
            watches = self._by_prefix.get(prefix)
            if watches is None:
                watches = self._by_prefix[prefix] = {}
                self._lengths[len(prefix)] += 1
            watches[watch] = None

    def discard(self, watch: PrefixWatch) -> None:
        """Tell a watch no longer. Its prefixes must be those with which it was added."""
        for prefix in watch.wishes.covered:
            watches = self._by_prefix.get(prefix)
            if watches is None:
                continue
            watches.pop(watch, None)
            if not watches:
                del self._by_prefix[prefix]
                self._lengths[len(prefix)] -= 1
                if not self._lengths[len(prefix)]:
                    del self._lengths[len(prefix)]

    def of(self, name: str) -> list[PrefixWatch]:
        """Return the watches that have a prefix of this name, each once. The covered prefixes of a watch are disjoint,
        so it is found under one of them."""
        if not self._by_prefix:
            return []
        found: list[PrefixWatch] = []
        for length in self._lengths:
            if length <= len(name):
                found += self._by_prefix.get(name[:length], ())
        return found


class PrefixWatch:
    """The prefixes of one connection. `begin` makes and attaches a feed for a topic and its wish."""

    def __init__(
        self, registry: Registry, outbox: Outbox, wishes: PrefixWishes, most: int, begin: Callable[[Feed], None]
    ) -> None:
        self.wishes = wishes
        self._registry = registry
        self._outbox = outbox
        self._most = most
        self._begin = begin
        self._left_out: list[str] = []
        """Names that are to be told, the first of `_unsaid`."""
        self._unsaid = 0

    def fill(self, prefixes: list[str]) -> None:
        """Make feeds of the existing topics that begin with one of `prefixes` (disjoint) and have none. Looks at no
        more than the topics that have a feed, and `MOST_NAMED`."""
        topics, outbox = self._registry.topics, self._outbox
        fed = {feed.name for feed in outbox.feeds}
        room = self._room()
        left_out: list[str] = []
        added: list[Topic] = []
        for name in names_with(topics, prefixes, None):
            if name in fed:
                continue
            if len(added) < room:
                added.append(topics[name])
            elif len(left_out) < MOST_NAMED:
                left_out.append(name)
            else:
                break
        for topic in added:
            self._add(topic)
        if left_out:
            here = tuple(prefixes)
            has_feed = sum(1 for name in fed if name in topics and name.startswith(here)) + len(added)
            self._leave_out(left_out, count_with(topics, prefixes) - has_feed)

    def topic_made(self, topic: Topic) -> None:
        """Make a feed of a topic that has just been made. If it has one, that is of the older instance, or of a topic
        that the client has named."""
        if self._outbox.closing or any(feed.name == topic.name for feed in self._outbox.feeds):
            return
        if self._room() > 0:
            self._add(topic)
        else:
            self._leave_out([topic.name], 1)

    def feed_ended(self, name: str) -> None:
        """Note that a feed has ended, because its topic was deleted; if that was made again, it is another topic."""
        topic = self._registry.topics.get(name)
        if topic is not None and self.wishes.of(name) is not None:
            self.topic_made(topic)

    def _room(self) -> int:
        """Return for how many more topics there is room. One that is deleted does not count, though the client has
        still to be told; a client that takes nothing is not told of more topics, so there are not many of those."""
        return self._most - sum(not feed.is_over for feed in self._outbox.feeds)

    def _add(self, topic: Topic) -> None:
        wish = self.wishes.of(topic.name)
        assert wish is not None
        if topic.name in self._left_out:  # not told yet: an older instance
            self._left_out.remove(topic.name)
            self._unsaid -= 1
        begin = TopicPosition(0, topic.id, announced=False)
        self._begin(Feed(topic.name, wish.wish, begin, consistency=wish.consistency, prefix=wish.prefix))

    def _leave_out(self, names: list[str], count: int) -> None:
        self._left_out += names[: MOST_NAMED - len(self._left_out)]
        self._unsaid += count
        self._registry.count_throttled("max_watch_topics")
        self.tell_left_out()

    def tell_left_out(self) -> None:
        """Tell the client which topics are left out, if it has not been told and there is room on its connection."""
        if self._unsaid and self._outbox.has_room():
            names, count = self._left_out, self._unsaid
            self._left_out, self._unsaid = [], 0
            self._outbox.put(self._outbox.form.left_out(names, count, self._most))
