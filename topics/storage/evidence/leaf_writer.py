"""The files of leaves that a checkpoint writes for one topic: whole blocks, and the leaves of the block that is not
whole.

Nothing that is written here counts before a part says how many leaves are on disk. Every file that is made has a leaf
beyond those that are on disk by now, so no file that a hold has named is written to: it names those on disk. The leaves
do not depend on the attempt. A failed attempt may have left a file of the same name, with the same bytes. The file is
replaced all the same, because its name may not be on disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from topics.evidence.merkle import GrowingTree, Leaves
from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.evidence.topic_tree import TopicTree, TreeIdentity
from topics.storage.evidence import leaf_files
from topics.storage.evidence.leaf_files import (
    LeafFile,
    LeavesDamaged,
    decode_leaf_file,
    encode_leaf_file,
    parse_leaf_name,
)
from topics.storage.evidence.leaf_reader import LeafDirectory, all_leaves
from topics.storage.files.fs import Fs, join, write_all, write_atomic
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class StoredLeaves(NamedTuple):
    """The leaves of a topic that are on disk."""

    tree: GrowingTree
    blank_runs: tuple[tuple[int, int], ...]
    """First leaf and number of each long run of blank leaves, for which there is no file."""


class LeafWriter:
    """Writes the leaves behind those that are on disk. Blocking; for one call. Raises OSError."""

    def __init__(
        self, fs: Fs, directory: str, identity: TreeIdentity, stored: StoredLeaves, files: UnsyncedFiles
    ) -> None:
        self._fs = fs
        self._identity = identity
        self._stored = stored.tree.size
        self._files = files
        self._tree = stored.tree.copy()
        self._runs = list(stored.blank_runs)
        self._path = directory
        fs.mkdir(directory)
        self._directory = LeafDirectory(fs, directory)
        self._at = self._stored
        self._new = bytearray()
        """The new leaves of the present block."""

    def write(self, parts: Iterable[Leaves]) -> StoredLeaves:
        """Write these leaves."""
        for some in parts:
            self._tree.add(some)
            self._add(some.hashes)
            self._add_blanks(some.blanks)
        if self._new:
            self._write_piece()
        return StoredLeaves(self._tree, tuple(self._runs))

    def _add(self, hashes: bytes) -> None:
        view = memoryview(hashes)
        at = 0
        while at < len(hashes):
            room = (leaf_files.BLOCK_LEAVES - self._at % leaf_files.BLOCK_LEAVES) * LEAF_BYTES
            some = view[at : at + room]
            self._new += some
            at += len(some)
            self._at += len(some) // LEAF_BYTES
            if self._at % leaf_files.BLOCK_LEAVES == 0:
                self._write_block()

    def _add_blanks(self, count: int) -> None:
        while count:
            whole = count - count % leaf_files.BLOCK_LEAVES
            if whole and self._at % leaf_files.BLOCK_LEAVES == 0:
                self._skip(whole)
                count -= whole
                continue
            some = min(count, leaf_files.BLOCK_LEAVES - self._at % leaf_files.BLOCK_LEAVES)
            self._add(BLANK * some)
            count -= some

    def _skip(self, count: int) -> None:
        """Add whole blocks of blank leaves, which have no files."""
        if self._runs and sum(self._runs[-1]) == self._at:
            first, before = self._runs.pop()
            self._runs.append((first, before + count))
        else:
            self._runs.append((self._at, count))
        self._at += count

    def _write_block(self) -> None:
        self._write_with_those_before(self._at - leaf_files.BLOCK_LEAVES)
        self._new.clear()

    def _write_piece(self) -> None:
        """Write the leaves of the block that is not whole, together with those before them if there are many files."""
        start = self._at - self._at % leaf_files.BLOCK_LEAVES
        if len(self._pieces(start)) >= leaf_files.MAX_PIECES:
            self._write_with_those_before(start)
        else:
            self._write(max(self._stored, start), bytes(self._new))

    def _pieces(self, start: int) -> list[LeafFile]:
        """Return the files with leaves on disk of the block that begins at `start`."""
        first_seq = self._identity.start_seq + start
        end_seq = self._identity.start_seq + self._stored
        return [file for file in self._directory.files if file.first_seq >= first_seq and file.end_seq <= end_seq]

    def _write_with_those_before(self, start: int) -> None:
        """Write the new leaves in one file with those on disk of the block that begins at `start`.

        If some of these cannot be read, the file begins behind them: the new leaves must get on disk even if older ones
        are damaged. Damaged files stay, so that `verify` names them.
        """
        if start >= self._stored:
            self._write(start, bytes(self._new))
            return
        index, leaves = start, b""
        try:
            leaves = all_leaves(self._directory, self._identity, start, self._stored).hashes
        except (LeavesDamaged, OSError) as error:
            log.error("leaves_damaged", directory=self._path, problem=str(error))
            index, leaves = self._readable_end(start)
        self._write(index, leaves + bytes(self._new))

    def _readable_end(self, start: int) -> tuple[int, bytes]:
        """Return the last leaves on disk, of the block that begins at `start`, that can be read without a gap, and the
        number of leaves before them."""
        at, found = self._stored, b""
        for file in sorted(self._pieces(start), key=lambda file: (-file.end_seq, -file.leaves)):
            index = file.first_seq - self._identity.start_seq
            if not index < at <= index + file.leaves:
                continue
            try:
                leaves = self._directory.read(file)
            except (LeavesDamaged, OSError):
                continue
            found = leaves[: (at - index) * LEAF_BYTES] + found
            at = index
        return at, found

    def _write(self, index: int, leaves: bytes) -> None:
        file = LeafFile(self._identity.start_seq + index, len(leaves) // LEAF_BYTES)
        path = self._directory.path(file)
        blob = encode_leaf_file(file.first_seq, leaves)
        if self._fs.exists(path):  # it may be the only one that has leaves of a part from before
            write_atomic(self._fs, path, blob)
            return
        with self._files.writing(path, create=True) as handle:
            write_all(handle, blob, 0)


def remove_obsolete(fs: Fs, directory: str, identity: TreeIdentity, stored: int) -> None:
    """Remove the files of a topic whose leaves are among the first `stored` ones, and in another file, too. Blocking.
    Raises OSError."""
    leaves = LeafDirectory(fs, directory)
    for file in obsolete(leaves.files, identity.start_seq + stored):
        fs.unlink(leaves.path(file))


def needed_files(names: Iterable[str], tree: TopicTree) -> set[str]:
    """Return which of these names are those of files with leaves of a tree, as its part counts them, that no other file
    has.

    A file that reaches beyond these leaves is needed if it alone has some of them: the part may be older than the file,
    because a newer one could not be read.
    """
    end_seq = tree.identity.start_seq + tree.stored.size
    leaves = [file for name in names if (file := parse_leaf_name(name)) is not None]
    counted = [file for file in leaves if file.end_seq <= end_seq]
    needed = sorted(set(counted).difference(obsolete(counted, end_seq)))
    beyond = [file for file in leaves if file.first_seq < end_seq < file.end_seq]
    return {file.name for file in (*needed, *_only_ones(beyond, needed, end_seq))}


def cut_files(fs: Fs, directory: str, names: Iterable[str], tree: TopicTree) -> set[str]:
    """Have each leaf of a tree, as its part counts them, in a file without others. Return the names of these files: all
    others may go. Blocking. Raises OSError.

    A part that is older than its files may be that of a topic which has lost leaves since (salvage, a copy). Then the
    leaves beyond are not those that the tree will have there.
    """
    end_seq = tree.identity.start_seq + tree.stored.size
    wanted: set[str] = set()
    for name in needed_files(names, tree):
        file = parse_leaf_name(name)
        assert file is not None
        if file.end_seq > end_seq:
            try:
                with fs.open(join(directory, name), read_only=True) as handle:
                    leaves = decode_leaf_file(handle.pread(leaf_files.file_bytes(file.leaves) + 1, 0), file)
            except LeavesDamaged as error:  # nobody reads it; `verify` names it
                log.error("leaves_damaged", directory=directory, problem=str(error))
            else:
                file = LeafFile(file.first_seq, end_seq - file.first_seq)
                blob = encode_leaf_file(file.first_seq, leaves[: file.leaves * LEAF_BYTES])
                write_atomic(fs, join(directory, file.name), blob)
        wanted.add(file.name)
    return wanted


def _only_ones(beyond: Iterable[LeafFile], needed: Sequence[LeafFile], end_seq: int) -> list[LeafFile]:
    """Return those files with leaves of seqs below `end_seq` that neither `needed` files have nor those before them in
    the result."""
    found: list[LeafFile] = []
    for file in sorted(beyond):
        at = file.first_seq
        for other in sorted((*needed, *found)):
            if other.first_seq <= at < other.end_seq:
                at = other.end_seq
        if at < end_seq:
            found.append(file)
    return found


def obsolete(files: Sequence[LeafFile], end_seq: int) -> list[LeafFile]:
    """Return the files whose leaves are all in another file, which has none from `end_seq` on."""
    gone = []
    covered_to = 0
    for file in sorted(files, key=lambda file: (file.first_seq, -file.leaves)):
        if file.end_seq <= covered_to:
            gone.append(file)
        elif file.end_seq <= end_seq:
            covered_to = file.end_seq
    return gone
