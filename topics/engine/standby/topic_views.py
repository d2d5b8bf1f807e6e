"""The live topics as replay sees and changes them, for one cut of the log (`topics.engine.restoration.replayed_view`).

A view is made when the first frame of its topic comes, and shares with the live topic its log, leases, groups and keys.
So what replay does to these, it does to the live topic; the rest is brought back by `publish`, topic by topic, and
readers are told. All of it, from the first frame to the last wake, is one step of the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping

from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.registry import Registry
from topics.engine.restoration import make_topic, replayed_view, take_over
from topics.engine.topic import Topic
from topics.storage.recovery.recovered_state import RecoveredTopic, StashedRecords
from topics.storage.store import Store
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class TopicViews(MutableMapping[int, RecoveredTopic]):
    """The views by topic id, made as they are asked for."""

    def __init__(self, registry: Registry, stashes: dict[int, list[StashedRecords]]) -> None:
        """`stashes`: what topics that cease to be `ephemeral` have written out so far."""
        self.touched: dict[int, RecoveredTopic] = {}
        """Views of topics that there are, in the order in which they were asked for."""
        self.created: set[int] = set()
        self.deleted: dict[int, None] = {}
        self._registry = registry
        self._stashes = stashes

    def __getitem__(self, topic_id: int) -> RecoveredTopic:
        found = self.touched.get(topic_id)
        if found is None:
            if topic_id in self.deleted:
                raise KeyError(topic_id)
            found = self.touched[topic_id] = replayed_view(self._registry.by_id[topic_id])
            found.stash = self._stashes.get(topic_id, [])
        return found

    def __setitem__(self, topic_id: int, topic: RecoveredTopic) -> None:
        self.touched[topic_id] = topic
        self.created.add(topic_id)

    def __delitem__(self, topic_id: int) -> None:
        self.touched.pop(topic_id, None)
        self.created.discard(topic_id)
        self.deleted[topic_id] = None

    def __iter__(self) -> Iterator[int]:
        yield from self.touched
        yield from (i for i in self._registry.by_id if i not in self.touched and i not in self.deleted)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def publish(self, store: Store, topic_lifecycle: TopicLifecycle, routers: RouterLifecycle) -> list[Topic]:
        """Bring everything back to the live topics. Return those that have changed, whose readers have yet to be
        told."""
        registry = self._registry
        for topic_id in self.deleted:
            topic = registry.by_id.get(topic_id)
            if topic is not None:
                _forget(topic, topic_lifecycle, routers)
        changed: list[Topic] = []
        views = sorted(self.touched.values(), key=lambda found: (found.stage is not None, found.id))
        for found in views:
            topic = registry.by_id.get(found.id)
            if topic is None:
                topic = self._make(found, store, topic_lifecycle, routers)
            else:
                routers.drop_replayed(topic, found.incoming)
                if found.config is not topic.config:
                    topic_lifecycle.replace_config(topic, found.config)
                take_over(topic, found, registry)
            if topic is not None:
                self._keep_stash(found)
                changed.append(topic)
        for topic in changed:
            found = self.touched[topic.id]
            if not topic.deleted and found.incoming:
                routers.adopt_replayed(topic, found.incoming)
        return [topic for topic in changed if not topic.deleted]

    def _make(
        self, found: RecoveredTopic, store: Store, topic_lifecycle: TopicLifecycle, routers: RouterLifecycle
    ) -> Topic | None:
        """Make a topic that has been created; None if there is nothing to be made. Of two topics with one name the
        newer one counts (`TopicCatalog.drop_superseded`)."""
        registry = self._registry
        if found.id not in self.created:
            return None  # a stage that has gone with its target
        if found.stage is not None:
            if found.stage.target_id not in registry.by_id:
                return None
        else:
            older = registry.topics.get(found.name)
            if older is not None:
                if older.id > found.id:
                    return None
                log.info("topic_superseded", topic=older.name, id=older.id, by=found.id)
                _forget(older, topic_lifecycle, routers)
        incoming, found.incoming = found.incoming, {}
        topic = make_topic(found, store, registry, topic_lifecycle)
        found.incoming = incoming
        return topic

    def _keep_stash(self, found: RecoveredTopic) -> None:
        if found.stash:
            self._stashes[found.id] = found.stash
        else:
            self._stashes.pop(found.id, None)


def _forget(topic: Topic, topic_lifecycle: TopicLifecycle, routers: RouterLifecycle) -> None:
    routers.forget_topic(topic)
    topic_lifecycle.forget(topic)
