"""Hashing the queued leaves of a tree, in worker threads."""

from __future__ import annotations

from functools import partial

from topics.evidence.merkle import Leaves
from topics.evidence.topic_tree import QueuedWork, TopicTree
from topics.runtime.offload import Offload, Pool
from topics.storage.evidence.frame_leaves import leaves_of_bodies


def hashed(work: QueuedWork) -> list[Leaves]:
    """Return the leaves of the queued records; neighbours are joined. Blocking."""
    out: list[Leaves] = []
    some: list[bytes] = []
    for item in work.items:
        if not isinstance(item, Leaves):
            some.append(leaves_of_bodies(item))
        elif not item.blanks:
            some.append(item.hashes)
        else:
            out.append(Leaves(b"".join([*some, item.hashes]), item.blanks))
            some = []
    if some:
        out.append(Leaves(b"".join(some)))
    return out


async def hash_queued(tree: TopicTree, offload: Offload, size: int = 0) -> None:
    """Hash the records that are queued now, and at least the first `size` leaves of the tree, which are published."""
    while True:
        work = tree.work()
        if work.items:
            tree.done(work, await offload.run(Pool.CPU, partial(hashed, work)))
        if tree.hashed >= size:
            return
