"""The idempotency keys of all topics together: which append came first, what a repeat is told, how many keys there may
be.

`topics.log.dedupe_window` decides which keys a topic remembers, and for how long. This module keeps the appends that
are still in flight, and the limit: a key counts from the moment its append is decided until that has failed or the key
is forgotten.
"""

from __future__ import annotations

from functools import partial

import trio

from topics.config import Settings
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.log.dedupe_window import DedupeWindow


class IdempotencyKeys:
    """The keys in flight and the number of keys of all topics. Made once by the engine; `expire` must be called
    regularly."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.count = 0
        """Keys of appends, and topics of transactions with a key, those in flight included."""
        self._max = settings.max_idempotency_keys
        self._registry = registry
        self._keyed: dict[int, Topic] = {}
        """Topics that remember idempotency keys."""

    def adopt(self, topic: Topic) -> None:
        """Count the keys of a recovered topic."""
        if topic.keys:
            self._keyed[topic.id] = topic
            self.count += len(topic.keys)
        if topic.transactions is not None:
            self.count += topic.transactions.members

    def forget(self, topic: Topic) -> None:
        """Forget the keys of a deleted topic."""
        if topic.keys is not None and self._keyed.pop(topic.id, None) is not None:
            self.count -= len(topic.keys)
        if topic.transactions is not None:
            self.count -= topic.transactions.members

    def known(self, topic: Topic, key: str) -> tuple[int, int] | None:
        """Return first seq and count of the append that was published under a key within the topic's window, else
        None."""
        if not topic.keys:
            return None
        return topic.keys.lookup(key, self._registry.windows.now_ms(), topic.config.idempotency_window_ms)

    def in_flight(self, topic: Topic, key: str) -> trio.Event | None:
        """Return the event that the append in flight under a key will set at its end, None if there is none."""
        return topic.keys_in_flight.get(key) if topic.keys_in_flight else None

    def check_room(self) -> None:
        """Raise 429 if there are as many keys as are allowed."""
        if self._max and self.count >= self._max:
            raise self._registry.throttle("max_idempotency_keys", self._max)

    def begin(self, commit: Commit, key: str) -> None:
        """Note that an append was decided: repeats of it wait for its end, which is `remember` at its publication, or
        its failure."""
        topic = commit.topic
        if topic.keys_in_flight is None:
            topic.keys_in_flight = {}
        topic.keys_in_flight[key] = commit.done
        self.count += 1
        commit.on_fail = partial(self._fail, topic, key)

    def remember(self, topic: Topic, key: str, first_seq: int, count: int, at: int) -> None:
        """Note that the append decided at `at` (ms of the window clock) was published."""
        if topic.keys is None:
            topic.keys = DedupeWindow()
        before = len(topic.keys)
        topic.keys.remember(key, first_seq, count, at)
        self._keyed[topic.id] = topic
        self.count += len(topic.keys) - before - 1
        self._settle(topic, key)

    async def take_stock(self) -> None:
        """On a standby, where replay adds keys and nobody is told: count them anew, and forget those whose window is
        over. Costs a look at each topic. Cancelling leaves the rest for the next call."""
        topics = self._registry.by_id.values()
        self._keyed = {topic.id: topic for topic in topics if topic.keys}
        self.count = sum(len(topic.keys) for topic in self._keyed.values() if topic.keys is not None)
        self.count += sum(topic.transactions.members for topic in topics if topic.transactions is not None)
        await self.expire()

    async def expire(self) -> None:
        """Forget the keys whose window is over, a few thousand at a time. Costs a look at each topic that has keys, and
        the keys forgotten. Cancelling leaves the rest for the next call."""
        for topic in list(self._keyed.values()):
            while topic.keys is not None and self._keyed.get(topic.id) is topic and self._forget_some(topic):
                await trio.lowlevel.checkpoint()

    def _forget_some(self, topic: Topic) -> bool:
        """Forget a slice of a topic's expired keys. Return True if there may be more."""
        assert topic.keys is not None
        forgotten = topic.keys.expire(self._registry.windows.now_ms(), topic.config.idempotency_window_ms)
        self.count -= forgotten
        if not len(topic.keys):
            topic.keys = None
            self._keyed.pop(topic.id, None)
        return forgotten > 0

    def _fail(self, topic: Topic, key: str) -> None:
        self.count -= 1
        self._settle(topic, key)

    def _settle(self, topic: Topic, key: str) -> None:
        if topic.keys_in_flight is not None:
            topic.keys_in_flight.pop(key, None)
            if not topic.keys_in_flight:
                topic.keys_in_flight = None
