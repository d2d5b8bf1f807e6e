"""Removing a fence of a topic (`docs/spec/consumers.md` section 1): one commit, synced before its answer."""

from __future__ import annotations

from functools import partial

from topics.config import Settings
from topics.engine.commits import Commits, time_commit
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.model import Performance
from topics.runtime.clock import Clock
from topics.storage.wal.frames import FrameType, encode_control


class FenceRemovals:
    """The call that removes a fence. Made once by the engine."""

    def __init__(self, settings: Settings, clock: Clock, registry: Registry, *, commits: Commits) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._commits = commits

    async def remove(self, name: str, fence: str, perf: Performance) -> bool:
        """Remove a fence of a topic, synced in every class of topics. After that any token may raise a fence of this
        name. Returns False if there is no such fence.

        Raises 404, 429 if the shard's queue stays full, and 503. Cancelling before the commit is queued leaves nothing;
        after that the fence is removed all the same.
        """
        while True:
            topic = self._registry.topic(name)
            if not await self._commits.settled(topic):
                continue
            self._commits.check_changeable(topic)
            if self._commits.is_full(topic):
                await self._commits.admit(topic, self._settings.admission_ms)
                continue
            if topic.undecided:  # whether this transaction raises the fence is open
                await self._commits.wait_for(topic.next_change())
                continue
            if topic.fences is None:
                return False
            if fence not in topic.fences.decided:
                if fence not in topic.fences.published:
                    return False
                await self._commits.wait_for(topic.next_change())  # another removal of the fence is pending
                continue
            break
        topic.fences.decide(fence, None)
        data = encode_control(FrameType.FENCE, {"name": fence}, topic_id=topic.id, ts=self._registry.now_ms())
        publish = partial(_publish, topic, fence)
        commit = Commit(topic, data, 1, CommitPoint.SYNCED, publish, self._clock.perf_ns)
        self._commits.send(commit)
        await commit.answer()
        time_commit(commit, perf)
        return True


def _publish(topic: Topic, fence: str, commit: Commit) -> None:
    """The commit point: states do not show the fence any more."""
    assert topic.fences is not None
    topic.fences.publish(fence, None)
