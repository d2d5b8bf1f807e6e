"""Hashing the leaves of records that were published, beside everything else."""

from __future__ import annotations

from typing import Final

from topics.engine.topic import Topic
from topics.evidence.topic_tree import TopicTree
from topics.runtime.background import BackgroundTasks
from topics.runtime.offload import Offload
from topics.storage.evidence.leaf_hashes import hash_queued, hashed

MOST_QUEUED_BYTES: Final = 16 << 20
"""When so many bytes of records of one topic wait to be hashed, worker threads do not keep up: then the loop hashes,
which slows the appends down."""

STEP_PIECES: Final = 4
"""How many pieces of the queue (`topic_tree.PIECE_BYTES`) the loop hashes with each commit then. What a larger commit
adds is left to worker threads: the loop would stand still for a second."""


class TreeGrowth:
    """Hashes when much is queued. Made once by the engine. A short queue is hashed by the checkpoint or the call that
    needs the hashes."""

    def __init__(self, background: BackgroundTasks, offload: Offload) -> None:
        self._background = background
        self._offload = offload
        self._at_work: set[Topic] = set()

    def hash_soon(self, topic: Topic) -> None:
        """Hash the queued records of a topic soon, unless that is being done."""
        tree = topic.tree
        assert tree is not None
        for _ in range(STEP_PIECES):
            if tree.queued_bytes < MOST_QUEUED_BYTES:
                break
            work = tree.first_work()
            tree.done(work, hashed(work))
        if topic not in self._at_work and self._background.running:
            self._at_work.add(topic)
            self._background.start_soon(self._hash, topic, tree)

    async def _hash(self, topic: Topic, tree: TopicTree) -> None:
        try:
            while tree.is_due:
                await hash_queued(tree, self._offload)
        finally:
            self._at_work.discard(topic)
