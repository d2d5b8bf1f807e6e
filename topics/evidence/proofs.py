"""Proofs of inclusion and of consistency, as in RFC 6962 sections 2.1.1 and 2.1.2.

Making a proof means to name the subtrees whose roots it consists of; where their hashes are is the business of a
`Subtrees`. Checking follows RFC 9162, sections 2.1.3.2 and 2.1.4.2, and needs nothing but hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from topics.evidence.merkle import EMPTY_ROOT, inner_node, joined_root, subtree_sizes


class BadProof(ValueError):
    """A proof does not prove what it says. The message is a sentence for people."""


class Subtrees(Protocol):
    """The roots of complete subtrees."""

    def root_of(self, level: int, index: int) -> bytes:
        """Return the root of the 2^`level` leaves from leaf `index` on, which is a multiple of 2^`level`."""
        ...


def root_of_range(subtrees: Subtrees, start: int, end: int) -> bytes:
    """Return the root of the leaves `start` (inclusive) to `end` (exclusive), which are a subtree of a larger tree."""
    roots = []
    at = start
    for size in subtree_sizes(end - start):
        roots.append(subtrees.root_of(size.bit_length() - 1, at))
        at += size
    return joined_root(roots)


def _split(size: int) -> int:
    """Return the largest power of two below `size`, which is at least 2."""
    return 1 << (size - 1).bit_length() - 1


def inclusion_ranges(index: int, size: int) -> list[tuple[int, int]]:
    """Return the subtrees whose roots prove that leaf `index` is in the tree of the first `size` leaves."""
    ranges = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    ranges.reverse()
    return ranges


def consistency_ranges(first: int, second: int) -> list[tuple[int, int]]:
    """Return the subtrees whose roots prove that the tree of the first `first` leaves, at least one, is the beginning
    of the tree of the first `second` leaves."""
    ranges = []
    start, end, is_whole = 0, second, True
    while end > first:
        middle = start + _split(end - start)
        if first <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start, is_whole = middle, False
    if not is_whole:
        ranges.append((start, end))
    ranges.reverse()
    return ranges


def prove_inclusion(subtrees: Subtrees, index: int, size: int) -> list[bytes]:
    """Return the audit path of leaf `index` in the tree of the first `size` leaves."""
    return [root_of_range(subtrees, *part) for part in inclusion_ranges(index, size)]


def prove_consistency(subtrees: Subtrees, first: int, second: int) -> list[bytes]:
    """Return the proof of consistency between two sizes, 0 < first <= second."""
    return [root_of_range(subtrees, *part) for part in consistency_ranges(first, second)]


def check_inclusion(leaf: bytes, index: int, size: int, hashes: Sequence[bytes], root: bytes) -> None:
    """Raise BadProof unless `hashes` prove that `leaf` is number `index` of the tree of this size and root."""
    if not 0 <= index < size:
        raise BadProof(f"leaf {index} is not in a tree of {size} leaves")
    position, last, node = index, size - 1, leaf
    for one in hashes:
        if not last:
            raise BadProof("the proof has more hashes than it may have")
        if position & 1 or position == last:
            node = inner_node(one, node)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            node = inner_node(node, one)
        position >>= 1
        last >>= 1
    if last:
        raise BadProof("the proof has fewer hashes than it must have")
    if node != root:
        raise BadProof("the leaf and the proof do not lead to the root of the checkpoint")


def check_consistency(first: int, first_root: bytes, second: int, second_root: bytes, hashes: Sequence[bytes]) -> None:
    """Raise BadProof unless `hashes` prove that the tree of the first size is the beginning of that of the second."""
    if not 0 <= first <= second:
        raise BadProof(f"a tree of {first} leaves cannot be the beginning of one of {second} leaves")
    if first in (0, second):
        if hashes:
            raise BadProof("the proof has more hashes than it may have")
        if first_root != (EMPTY_ROOT if not first else second_root):
            raise BadProof("two trees of the same size have different roots")
        return
    path = list(hashes)
    if not first & (first - 1):
        path.insert(0, first_root)
    if not path:
        raise BadProof("the proof has fewer hashes than it must have")
    position, last = first - 1, second - 1
    while position & 1:
        position >>= 1
        last >>= 1
    old = new = path[0]
    for one in path[1:]:
        if not last:
            raise BadProof("the proof has more hashes than it may have")
        if position & 1 or position == last:
            old, new = inner_node(one, old), inner_node(one, new)
            while not position & 1 and position:
                position >>= 1
                last >>= 1
        else:
            new = inner_node(new, one)
        position >>= 1
        last >>= 1
    if last:
        raise BadProof("the proof has fewer hashes than it must have")
    if old != first_root:
        raise BadProof("the proof does not lead to the root of the first checkpoint")
    if new != second_root:
        raise BadProof("the proof does not lead to the root of the second checkpoint")
