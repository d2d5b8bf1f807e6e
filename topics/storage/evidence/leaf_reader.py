"""The leaves and subtrees of one topic, from its `.mrk` files and from memory: what proofs are made of.

Files are found by their names. Where several have a leaf, any will do, since the leaves of one tree never change; one
that does not verify is passed over if another one has its leaves.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Final

from topics.evidence.merkle import Leaves, blank_root, inner_node, perfect_root
from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.evidence.topic_tree import PendingLeaves, TreeIdentity, leaves_from, leaves_up_to
from topics.storage.evidence import leaf_files
from topics.storage.evidence.leaf_files import (
    HEAD_BYTES,
    LeafFile,
    LeavesDamaged,
    decode_leaf_file,
    decode_middle,
    file_bytes,
    middle_at,
    parse_leaf_name,
)
from topics.storage.files.fs import Fs, join

CACHED_ROOTS: Final = 65_536
"""Roots of subtrees of at least 128 leaves that are kept, for all topics: 10 MB. A proof needs one for each doubling of
the tree."""


Content = Callable[[int, int], bytes]
"""Returns one or more leaves of the seqs from the first one on, below the second; b"" if it has none."""

KEPT_FILES: Final = 32
"""Files of which one reader keeps the leaves, and blocks of which it keeps the roots: 16 MiB. Those of one block are in
17 files at most, and neighbouring leaves are asked for one after the other."""


class RootCache:
    """Roots of subtrees of at least 128 leaves, which are the same as long as the tree grows. Used from several
    threads: each step is one operation of a dict."""

    def __init__(self, most: int = CACHED_ROOTS) -> None:
        self._most = most
        self._roots: dict[tuple[str, int, int], bytes] = {}

    def get(self, key: tuple[str, int, int]) -> bytes | None:
        """Return the root of a subtree, by the uuid of the tree, height and first leaf; None if it is not known."""
        return self._roots.get(key)

    def put(self, key: tuple[str, int, int], root: bytes) -> None:
        """Remember a root. When there are too many, all are forgotten."""
        if len(self._roots) >= self._most:
            self._roots = {}
        self._roots[key] = root


class LeafDirectory:
    """The `.mrk` files of one topic. Blocking."""

    def __init__(self, fs: Fs, directory: str) -> None:
        """Raises OSError; a missing directory has no files."""
        self._fs = fs
        self._directory = directory
        try:
            names = fs.listdir(directory)
        except FileNotFoundError:
            names = []
        self.files = sorted(file for name in names if (file := parse_leaf_name(name)) is not None)
        self._blocks = {file.first_seq: file for file in self.files if file.leaves == leaf_files.BLOCK_LEAVES}
        self._pieces = [file for file in self.files if file.leaves < leaf_files.BLOCK_LEAVES]
        self._block_starts = sorted(self._blocks)

    def path(self, file: LeafFile) -> str:
        """Return the path of a file."""
        return join(self._directory, file.name)

    def read(self, file: LeafFile) -> bytes:
        """Return the leaves of a file, of which no more is read than it may have. Raises LeavesDamaged, OSError."""
        try:
            with self._fs.open(self.path(file), read_only=True) as handle:
                return decode_leaf_file(handle.pread(file_bytes(file.leaves) + 1, 0), file)
        except FileNotFoundError as error:
            raise LeavesDamaged(f"{file.name} is missing") from error

    def block(self, first_seq: int) -> LeafFile | None:
        """Return the file of the whole block from this seq on."""
        return self._blocks.get(first_seq)

    def covering(self, seq: int) -> list[LeafFile]:
        """Return the files that have the leaf of this seq, those with the most leaves first."""
        at = bisect_right(self._block_starts, seq) - 1
        found = [self._blocks[self._block_starts[at]]] if at >= 0 else []
        found += sorted(self._pieces, key=lambda file: -file.leaves)
        return [file for file in found if file.first_seq <= seq < file.end_seq]

    def middle(self, file: LeafFile) -> bytes:
        """Return the roots in the file of a whole block. Raises LeavesDamaged, OSError."""
        at, length = middle_at()
        try:
            with self._fs.open(self.path(file), read_only=True) as handle:
                return decode_middle(handle.pread(HEAD_BYTES, 0), handle.pread(length, at), file)
        except FileNotFoundError as error:
            raise LeavesDamaged(f"{file.name} is missing") from error


class TreeReader:
    """The subtrees of one tree, as of one moment. Blocking; for one call, since it keeps some of the bytes that it has
    read."""

    def __init__(
        self,
        directory: LeafDirectory,
        identity: TreeIdentity,
        blank_runs: Iterable[tuple[int, int]],
        pending: PendingLeaves,
        cache: RootCache,
        content: Content | None = None,
    ) -> None:
        """`content` finds leaves that no file has."""
        self._directory = directory
        self._identity = identity
        self._runs = (*blank_runs, *_blank_runs(pending))
        self._run_starts = [first for first, _ in self._runs]
        self._pending = pending
        self._cache = cache
        self._content = content
        self._read: dict[LeafFile, bytes | str] = {}
        self._middles: dict[int, bytes] = {}

    def leaf(self, index: int) -> bytes:
        """Return one leaf. Raises LeavesDamaged, OSError."""
        return self.leaves(index, index + 1)

    def root_of(self, level: int, index: int) -> bytes:
        """Return the root of the 2^`level` leaves from leaf `index` on. Raises LeavesDamaged, OSError."""
        end = index + (1 << level)
        if self._blanks_at(index) >= end - index:
            return blank_root(level)
        if level < leaf_files.MIDDLE_LEVEL:
            return perfect_root(self.leaves(index, end))
        key = (self._identity.tree, level, index)
        root = self._cache.get(key)
        if root is None:
            root = self._joined(level, index) if level > leaf_files.BLOCK_LEVEL else self._root_in_block(level, index)
            self._cache.put(key, root)
        return root

    def _joined(self, level: int, index: int) -> bytes:
        return inner_node(self.root_of(level - 1, index), self.root_of(level - 1, index + (1 << level - 1)))

    def _root_in_block(self, level: int, index: int) -> bytes:
        """Return the root of a subtree of at least `MIDDLE_LEVEL` that lies in one block."""
        start = index - index % leaf_files.BLOCK_LEAVES
        middle = self._middle(start)
        if middle:
            first, count = index - start >> leaf_files.MIDDLE_LEVEL, 1 << level - leaf_files.MIDDLE_LEVEL
            return perfect_root(middle[first * LEAF_BYTES : (first + count) * LEAF_BYTES])
        if level > leaf_files.MIDDLE_LEVEL:
            return self._joined(level, index)
        return perfect_root(self.leaves(index, index + (1 << level)))

    def _middle(self, start: int) -> bytes:
        """Return the roots of the subtrees of `MIDDLE_LEVEL` of a block; b"" if no file has them."""
        if start not in self._middles:
            if len(self._middles) >= KEPT_FILES:
                self._middles.clear()
            self._middles[start] = b""
            file = self._directory.block(self._identity.start_seq + start)
            if file is not None:
                try:
                    self._middles[start] = self._directory.middle(file)
                except LeavesDamaged:
                    pass  # the leaves may still verify
        return self._middles[start]

    def leaves(self, start: int, end: int) -> bytes:
        """Return the leaves `start` (inclusive) to `end` (exclusive), of one block. Raises LeavesDamaged, OSError."""
        out = bytearray()
        at = start
        while at < end:
            some = self._some(at, end)
            assert some
            out += some
            at += len(some) // LEAF_BYTES
        return bytes(out)

    def _some(self, start: int, end: int) -> bytes:
        """Return one or more of these leaves, from the first one on."""
        if start >= self._pending.start:
            return self._pending_leaves(start, end)
        if blank := min(self._blanks_at(start), end - start):
            return BLANK * blank
        seq = self._identity.start_seq + start
        problem = f"there is no .mrk file with the leaf of seq {seq}"
        for file in self._directory.covering(seq):
            leaves = self._leaves_of(file)
            if isinstance(leaves, str):
                problem = leaves
                continue
            last = min(file.end_seq, self._identity.start_seq + min(end, self._pending.start))
            return leaves[(seq - file.first_seq) * LEAF_BYTES : (last - file.first_seq) * LEAF_BYTES]
        end_seq = self._identity.start_seq + min(end, self._pending.start)
        found = self._content(seq, end_seq) if self._content is not None else b""
        if not found:
            raise LeavesDamaged(problem)
        return found

    def _leaves_of(self, file: LeafFile) -> bytes | str:
        """Return the leaves of a file; a sentence if it does not verify. Raises OSError."""
        found = self._read.get(file)
        if found is None:
            if len(self._read) >= KEPT_FILES:
                self._read.clear()
            try:
                found = self._directory.read(file)
            except LeavesDamaged as error:
                found = str(error)
            self._read[file] = found
        return found

    def _pending_leaves(self, start: int, end: int) -> bytes:
        at = self._pending.start
        for part in self._pending.parts:
            if at + part.size > start:
                some = leaves_up_to(leaves_from(part, start - at), end - start)
                return some.hashes or BLANK * some.blanks
            at += part.size
        raise LeavesDamaged(f"the tree has {at} leaves, and leaf {start} was asked for")

    def _blanks_at(self, index: int) -> int:
        """Return how many leaves from this one on belong to a long run of blank ones."""
        at = bisect_right(self._run_starts, index) - 1
        return max(sum(self._runs[at]) - index, 0) if at >= 0 else 0


def _blank_runs(pending: PendingLeaves) -> Iterable[tuple[int, int]]:
    """Yield first leaf and number of each long run of blank leaves in memory."""
    at = pending.start
    for part in pending.parts:
        at += part.size
        if part.blanks:
            yield at - part.blanks, part.blanks


def all_leaves(directory: LeafDirectory, identity: TreeIdentity, start: int, end: int) -> Leaves:
    """Return the leaves `start` to `end` of a tree without blank runs there, from files alone. Raises LeavesDamaged,
    OSError."""
    reader = TreeReader(directory, identity, (), PendingLeaves(end, ()), RootCache())
    return Leaves(reader.leaves(start, end))
