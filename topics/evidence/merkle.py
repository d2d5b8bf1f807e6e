"""Merkle trees as in RFC 6962, section 2.1: an inner node is SHA-256 of `0x01 | left | right`.

Responsible for hashing, and for trees that grow at their right edge in bounded memory: a `GrowingTree` keeps the roots
of the complete subtrees of which it consists, at most one for each bit of its size. A long run of blank leaves (a
restored directory skips 2^42 seqs) costs as much as a few: blank subtrees of one height are equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from topics.evidence.record_leaf import BLANK, LEAF_BYTES

EMPTY_ROOT: Final = sha256(b"").digest()
"""The root of a tree without leaves."""

MAX_LEVEL: Final = 64
"""A tree has fewer than 2^64 leaves, as there are fewer seqs."""

_BLANKS: Final = [BLANK]


class Leaves(NamedTuple):
    """Neighbouring leaves: their hashes one after the other, and behind them so many blank ones."""

    hashes: bytes
    blanks: int = 0

    @property
    def size(self) -> int:
        """The number of leaves."""
        return len(self.hashes) // LEAF_BYTES + self.blanks


def inner_node(left: bytes, right: bytes) -> bytes:
    """Return the hash of an inner node."""
    return sha256(b"\x01" + left + right).digest()


def blank_root(level: int) -> bytes:
    """Return the root of 2^`level` blank leaves."""
    while len(_BLANKS) <= level:
        _BLANKS.append(inner_node(_BLANKS[-1], _BLANKS[-1]))
    return _BLANKS[level]


def level_above(nodes: bytes) -> bytes:
    """Return the nodes above an even number of neighbouring nodes."""
    return b"".join([sha256(b"\x01" + nodes[at : at + 64]).digest() for at in range(0, len(nodes), 64)])


def perfect_root(leaves: bytes) -> bytes:
    """Return the root of 2^k leaves."""
    while len(leaves) > LEAF_BYTES:
        leaves = level_above(leaves)
    return leaves


def joined_root(roots: Sequence[bytes]) -> bytes:
    """Return the root of a tree that consists of complete subtrees with these roots, the largest first."""
    if not roots:
        return EMPTY_ROOT
    root = roots[-1]
    for left in reversed(roots[:-1]):
        root = inner_node(left, root)
    return root


def subtree_sizes(size: int) -> list[int]:
    """Return the sizes of the complete subtrees of a tree of `size` leaves, the largest first."""
    return [1 << bit for bit in range(size.bit_length() - 1, -1, -1) if size >> bit & 1]


class GrowingTree:
    """A tree to which leaves are added at the right. A value: `copy` before it is changed by somebody else."""

    __slots__ = ("_levels", "_roots", "size")

    def __init__(self) -> None:
        self.size = 0
        self._levels: list[int] = []
        self._roots: list[bytes] = []
        """The roots of the complete subtrees, the largest first, and their heights."""

    @classmethod
    def of(cls, size: int, edge: bytes) -> GrowingTree:
        """Return the tree of which `edge` was called. Raises ValueError."""
        tree = cls()
        tree.size = size
        tree._levels = [one.bit_length() - 1 for one in subtree_sizes(size)]
        tree._roots = [edge[at : at + LEAF_BYTES] for at in range(0, len(edge), LEAF_BYTES)]
        if not isinstance(edge, bytes) or len(tree._roots) != len(tree._levels) or len(edge) % LEAF_BYTES:
            raise ValueError("the right edge of a Merkle tree does not fit its size")
        return tree

    @property
    def edge(self) -> bytes:
        """The roots of its complete subtrees, one after the other."""
        return b"".join(self._roots)

    @property
    def root(self) -> bytes:
        """The root of the whole tree."""
        return joined_root(self._roots)

    def copy(self) -> GrowingTree:
        """Return a tree that grows by itself."""
        return GrowingTree.of(self.size, self.edge)

    def add(self, some: Leaves) -> None:
        """Add leaves. Takes a hash for each leaf that is not blank."""
        hashes, at = some.hashes, 0
        count = len(hashes) // LEAF_BYTES
        while at < count:
            level = self._largest(count - at)
            end = at + (1 << level)
            self._push(level, perfect_root(hashes[at * LEAF_BYTES : end * LEAF_BYTES]))
            at = end
        left = some.blanks
        while left:
            level = self._largest(left)
            self._push(level, blank_root(level))
            left -= 1 << level

    def add_all(self, parts: Iterable[Leaves]) -> None:
        """Add several runs of leaves, in order."""
        for some in parts:
            self.add(some)

    def add_subtree(self, level: int, root: bytes) -> None:
        """Add a complete subtree of 2^`level` leaves. The size must be a multiple of that."""
        assert not self.size & ((1 << level) - 1)
        self._push(level, root)

    def _largest(self, left: int) -> int:
        """Return the height of the largest complete subtree that may come next, of `left` leaves at most."""
        level = left.bit_length() - 1
        if self.size:
            level = min(level, (self.size & -self.size).bit_length() - 1)
        return level

    def _push(self, level: int, root: bytes) -> None:
        self.size += 1 << level
        while self._levels and self._levels[-1] == level:
            root = inner_node(self._roots.pop(), root)
            self._levels.pop()
            level += 1
        self._levels.append(level)
        self._roots.append(root)
