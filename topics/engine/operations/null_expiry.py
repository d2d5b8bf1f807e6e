"""Takes records with data null away when their time is over (`null_ttl_ms`), in topics with `keep_per_tag`
(`docs/spec/evidence.md` section 3).

They have taken the earlier records of their tags away when they were appended. Readers of changes still need them for a
while, to learn of the deletion. A pass comes every second; its deletions are one commit of each topic, like the
deletion of a client, and as silent. Each topic has a task, because its commit may have to wait for a bucket that is
away, or its columns for a slow disk, which is no reason for others to wait.
"""

from __future__ import annotations

from array import array
from functools import partial
from typing import Final

from topics.engine.commits import Commits, deletion_batch
from topics.engine.foreseen import Foreseen
from topics.engine.operations.delete import Deletions, is_among
from topics.engine.registry import Registry
from topics.engine.topic import Commit, CommitPoint, Topic
from topics.errors import ApiError
from topics.log.dumped_values import little_endian
from topics.log.missing_columns import missing_to_delete
from topics.runtime.background import BackgroundTasks
from topics.runtime.clock import Clock
from topics.storage.wal.frames import NOTHING

MOST: Final = 2_500
"""Records that one pass deletes in a topic."""


class NullExpiry:
    """Made once by the engine."""

    def __init__(
        self,
        clock: Clock,
        registry: Registry,
        *,
        commits: Commits,
        deletions: Deletions,
        background: BackgroundTasks,
    ) -> None:
        self._clock = clock
        self._registry = registry
        self._commits = commits
        self._deletions = deletions
        self._background = background
        self._working: set[Topic] = set()

    def work(self) -> None:
        """Begin a pass. Topics in which the work of an earlier one is under way are left out. Called every second."""
        for topic in self._registry.tables:
            if topic.log.nulls and topic not in self._working and self._due(topic):
                self._working.add(topic)
                self._background.start_soon(self._work_on, topic)

    def _due(self, topic: Topic) -> list[int]:
        """Return the seqs of the records whose time is over, the oldest first."""
        nulls, ttl_ms = topic.log.nulls, topic.config.null_ttl_ms
        if nulls is None or not ttl_ms or topic.log.kept is None:
            return []
        return nulls.before(self._registry.now_ms() - ttl_ms, MOST)

    async def _work_on(self, topic: Topic) -> None:
        try:
            await self._delete(topic)
        except ApiError:  # a failed shard, or a disk that does not answer: the next pass tries again
            pass
        finally:
            self._working.discard(topic)

    async def _delete(self, topic: Topic) -> None:
        if not await self._deletions.is_ready(topic):
            return
        seqs = array("Q", self._due(topic))
        if not seqs or topic.deleted:
            return
        data, count, commit_point = NOTHING, 0, CommitPoint.HANDED
        if not topic.ephemeral:
            selector = {"bound": topic.log.head_seq, "seqs": little_endian(seqs)}
            data, count = deletion_batch(topic, selector, self._registry.now_ms())
            commit_point = topic.commit_point
        commit = Commit(topic, data, count, commit_point, partial(self._publish, seqs), self._clock.perf_ns)
        commit.deletes = True
        commit.foreseen = Foreseen(removes=partial(is_among, seqs))
        commit.needs = partial(missing_to_delete, topic.log.index, seqs)
        self._commits.send(commit)
        await commit.wait()

    def _publish(self, seqs: array[int], commit: Commit) -> None:
        topic = commit.topic
        topic.log.delete_seqs(seqs)
        if topic.log.nulls is not None:
            topic.log.nulls.drop(seqs)  # those that had died already, too
        topic.blocks.free(seqs)
        topic.jobs_gone(seqs)
        self._registry.account(topic)
