"""The idempotency keys of all topics together: who is first, what a repeat is told, how many there may be.

Which keys a topic remembers, and for how long, is `topics.log.dedupe_window`'s business. Here are the appends that are
still on their way, and the limit: a key counts from the moment its append is decided until it has failed or is
forgotten.
"""

from __future__ import annotations

from functools import partial

import trio

from topics.config import Settings
from topics.engine.registry import Registry
from topics.engine.topic import Commit, Topic
from topics.log.dedupe_window import DedupeWindow


class IdempotencyKeys:
    """See the module."""

    def __init__(self, settings: Settings, registry: Registry) -> None:
        self.count = 0
        self._max = settings.max_idempotency_keys
        self._registry = registry
        self._keyed: dict[int, Topic] = {}
        """Topics that remember idempotency keys."""

    def adopt(self, topic: Topic) -> None:
        """Count what a recovered topic remembers."""
        if topic.keys:
            self._keyed[topic.id] = topic
            self.count += len(topic.keys)

    def forget(self, topic: Topic) -> None:
        """The topic is gone, and its keys."""
        if topic.keys is not None and self._keyed.pop(topic.id, None) is not None:
            self.count -= len(topic.keys)

    def known(self, topic: Topic, key: str) -> tuple[int, int] | None:
        """First seq and count of the append that was published under a key, within the topic's window."""
        if not topic.keys:
            return None
        return topic.keys.lookup(key, self._registry.windows.now_ms(), topic.config.idempotency_window_ms)

    def in_flight(self, topic: Topic, key: str) -> trio.Event | None:
        """The end of the append that is on its way under a key."""
        return topic.keys_in_flight.get(key) if topic.keys_in_flight else None

    def check_room(self) -> None:
        """Raises 429 when another key would be one too many."""
        if self._max and self.count >= self._max:
            raise self._registry.throttle("max_idempotency_keys", self._max)

    def begin(self, commit: Commit, key: str) -> None:
        """An append was decided: repeats of it wait for its end. `remember` at its publication, or it fails."""
        topic = commit.topic
        if topic.keys_in_flight is None:
            topic.keys_in_flight = {}
        topic.keys_in_flight[key] = commit.done
        self.count += 1
        commit.on_fail = partial(self._fail, topic, key)

    def remember(self, topic: Topic, key: str, first_seq: int, count: int, at: int) -> None:
        """The append that was decided at `at` (clock of windows) was published."""
        if topic.keys is None:
            topic.keys = DedupeWindow()
        before = len(topic.keys)
        topic.keys.remember(key, first_seq, count, at)
        self._keyed[topic.id] = topic
        self.count += len(topic.keys) - before - 1
        self._settle(topic, key)

    async def expire(self) -> None:
        """Forget the keys whose window is over, a few thousand at a time. Costs a look at each topic that has keys, and
        what is forgotten. Cancelling leaves the rest for the next call."""
        for topic in list(self._keyed.values()):
            while topic.keys is not None and self._keyed.get(topic.id) is topic and self._forget_some(topic):
                await trio.lowlevel.checkpoint()

    def _forget_some(self, topic: Topic) -> bool:
        """Whether there may be more."""
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
