"""The tree of a live topic: what is queued counts with what it takes, two may hash the same, no part is believed."""

from __future__ import annotations

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.evidence import tree_growth
from topics.engine.evidence.tree_growth import MOST_QUEUED_BYTES, TreeGrowth
from topics.evidence.merkle import GrowingTree, Leaves
from topics.evidence.record_leaf import BLANK
from topics.evidence.topic_tree import RECORD_BYTES, PendingLeaves, TopicTree, TreeIdentity, identity_of
from topics.runtime.background import BackgroundTasks
from topics.storage.evidence.leaf_hashes import hashed
from topics.storage.wal.frames import encode_appends

IDENTITY: Final = TreeIdentity("0" * 32, 1, "key")


def bodies(first_seq: int, count: int) -> list[bytes]:
    made = encode_appends(
        5, first_seq, 9, [b"1"] * count, nodes=None, tags=None, metas=None, durable=True, closes_batch=True
    )
    return list(made.data.bodies)


def flat(pending: PendingLeaves) -> list[bytes]:
    """The pending leaves, one by one."""
    found: list[bytes] = []
    for part in pending.parts:
        found += [part.hashes[at : at + 32] for at in range(0, len(part.hashes), 32)] + [BLANK] * part.blanks
    return found


class _Topic:
    def __init__(self, tree: TopicTree) -> None:
        self.tree = tree


def test_small_records_fill_the_queue_and_the_loop_hashes_no_more_than_is_added() -> None:
    """A queue that counted the content of records alone would hold millions of records of a byte."""
    tree, most = TopicTree(IDENTITY), MOST_QUEUED_BYTES // RECORD_BYTES
    topic: Any = _Topic(tree)
    growth = TreeGrowth(BackgroundTasks(), offload=None)  # type: ignore[arg-type]  # no task is running
    same = bodies(1, 1000)
    for _ in range(most // 1000 + 5):
        before = tree.hashed
        tree.publish(tree.next_seq, same, 1000)
        growth.hash_soon(topic)
        assert tree.queued_bytes < MOST_QUEUED_BYTES
        assert tree.queued_records <= most
        assert tree.hashed - before <= 1000, "a step of the loop has hashed more than it had to"
    assert tree.hashed, "nothing was hashed"


def test_a_large_commit_holds_the_loop_for_a_few_pieces_only() -> None:
    tree = TopicTree(IDENTITY)
    growth = TreeGrowth(BackgroundTasks(), offload=None)  # type: ignore[arg-type]  # no task is running
    tree.publish(1, bodies(1, 100) * 400, 40 << 20)
    topic: Any = _Topic(tree)
    growth.hash_soon(topic)
    assert 0 < tree.hashed <= 4000
    tree.done(tree.work(), hashed(tree.work()))
    assert (tree.hashed, tree.queued_records, tree.queued_bytes) == (40_000, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 2)), min_size=1, max_size=6), st.integers(0, 6))
def test_leaves_that_were_hashed_by_another_one_meanwhile_are_taken_once(
    commits: list[tuple[int, int]], early: int
) -> None:
    """The loop hashes the first commits while a worker thread hashes all of them."""
    tree, plain = TopicTree(IDENTITY), TopicTree(IDENTITY)
    for count, holes in commits:
        for one in (tree, plain):
            one.publish(one.next_seq + holes, bodies(one.next_seq + holes, count), count)
    work = tree.work()
    made = hashed(work)
    for _ in range(min(early, len(work.items))):
        first = tree.first_work()
        tree.done(first, hashed(first))
    tree.publish(tree.next_seq, bodies(tree.next_seq, 1), 1)
    plain.publish(plain.next_seq, bodies(plain.next_seq, 1), 1)
    tree.done(work, made)
    assert tree.queued_records == 1
    for one in (tree, plain):
        one.done(one.work(), hashed(one.work()))
        assert (one.queued_records, one.queued_bytes, one.hashed) == (0, 0, one.published)
    assert flat(tree.pending()) == flat(plain.pending())


def wire(**changes: Any) -> list[Any]:
    grown = GrowingTree()
    grown.add(Leaves(BLANK * 3, 2))
    fields = {"tree": "0" * 32, "start": 4, "key": "k", "size": 5, "edge": grown.edge, "runs": [[0, 2], [3, 2]]}
    return list({**fields, **changes}.values())


@pytest.mark.parametrize(
    "changes",
    [
        {"size": -5},
        {"size": 1 << 64},
        {"size": True},
        {"size": 4},
        {"edge": "x" * 64},
        {"runs": [[0, 6]]},
        {"runs": [[-1, 2]]},
        {"runs": [[3, 2], [0, 2]]},
        {"runs": [[0, 2], [1, 2]]},
        {"runs": [[0, 0]]},
        {"runs": [[0, 1 << 70]]},
        {"start": 0},
        {"start": -1},
        {"start": 1 << 64},
        {"tree": 7},
    ],
)
def test_a_part_with_numbers_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    assert TopicTree.from_wire(wire()).stored.size == 5
    with pytest.raises(ValueError, match="Merkle tree"):
        TopicTree.from_wire(wire(**changes))


def test_a_frame_with_a_first_seq_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="identity"):
        identity_of("0" * 32, 0, "k")


def test_the_bound_of_the_queue_is_the_documented_one() -> None:
    assert tree_growth.MOST_QUEUED_BYTES == 16 << 20
