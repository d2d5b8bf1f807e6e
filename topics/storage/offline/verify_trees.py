"""Verifying Merkle trees: that the leaves of a topic are those of its records, and lead to the roots that its part and
kept checkpoints have (`docs/design/evidence.md` section 7).

Two halves, each of which can be divided. `SegmentLeaves` compares the records of one segment with the leaves in `.mrk`.
`TreeCheck` computes the tree from those leaves, block by block (`LeafWork`), and from the records that are in the log
alone, which recovery has hashed. A block can be verified anywhere: only its root is needed for the rest. So a record
that was changed does not fit its leaf; and if the leaf was changed too, the root is another one. Only a checkpoint that
was kept elsewhere shows that somebody has changed the roots as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from topics.evidence.checkpoint_note import LogOrigin, TreeHead
from topics.evidence.merkle import perfect_root, subtree_sizes
from topics.evidence.proofs import root_of_range
from topics.evidence.record_leaf import BLANK, LEAF_BYTES
from topics.evidence.signed_note import BadSignedNote
from topics.evidence.topic_tree import PendingLeaves, TopicTree
from topics.storage.evidence import leaf_files
from topics.storage.evidence.frame_leaves import leaves_of_frames
from topics.storage.evidence.leaf_files import LeafFile, LeavesDamaged
from topics.storage.evidence.leaf_reader import LeafDirectory, RootCache, TreeReader
from topics.storage.evidence.leaf_writer import obsolete
from topics.storage.files.fs import Fs, join
from topics.storage.offline.content_leaves import ContentLeaves
from topics.storage.offline.findings import Finding, bounded
from topics.storage.offline.topic_parts import StoredHole, StoredPart, holes_of
from topics.storage.recovery.recovered_state import RecoveredTopic
from topics.storage.segments.segment_format import DataScan
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import Read

_ALL: Final = 1 << 62


class KeptCheckpoint(NamedTuple):
    """A checkpoint that was kept elsewhere. `path` is its file."""

    path: str
    checkpoint: TreeHead


class SegmentLeaves:
    """Compares the records of one segment with their leaves. Blocking."""

    def __init__(self, fs: Fs, directory: str, topic_id: int, tree: Sequence[Any], holes: Sequence[StoredHole]) -> None:
        """`directory` has the `.mrk` files; `tree` and `holes` are those of the part."""
        self._topic_id = topic_id
        self._holes = holes
        self._path = directory
        self._tree = TopicTree.from_wire(tree)
        self._leaves = LeafDirectory(fs, directory)
        stored = PendingLeaves(self._tree.stored.size, ())
        self._reader = TreeReader(self._leaves, self._tree.identity, self._tree.blank_runs, stored, RootCache())
        self._bad: list[tuple[int | None, str]] = []
        self._damaged: set[int] = set()
        """The numbers of blocks with leaves that cannot be read."""

    def compare(self, read: Read, rows: DataScan) -> None:
        """Compare the records of some valid frames. `read` reads the `.data`."""
        start = self._tree.identity.start_seq
        kept = [i for i, seq in enumerate(rows.seq) if 0 <= seq - start < self._tree.stored.size]
        if not kept:
            return
        base = rows.offset[kept[0]]
        window = read(base, rows.offset[kept[-1]] + rows.frame_len[kept[-1]] - base)
        starts, sizes = [rows.offset[i] - base for i in kept], [rows.frame_len[i] for i in kept]
        found = leaves_of_frames(self._topic_id, window, starts, sizes)
        for n, i in enumerate(kept):
            seq = rows.seq[i]
            leaf = found[n * LEAF_BYTES : (n + 1) * LEAF_BYTES]
            block = (seq - start) // leaf_files.BLOCK_LEAVES
            if block in self._damaged:
                continue
            try:
                known = self._reader.leaf(seq - start)
            except (LeavesDamaged, OSError):
                self._damaged.add(block)  # `TreeCheck` reports the file, and compares the root
                continue
            if known != leaf and not (known == BLANK and self._is_lost(seq)):
                self._bad.append((rows.offset[i], f"seq {seq}: the record was rewritten: its leaf is another one"))

    def _is_lost(self, seq: int) -> bool:
        """Return True if a salvage has given a seq up. Its frame may still be in a file, and nobody is shown it."""
        return any(hole.first <= seq <= hole.last for hole in self._holes)

    def findings(self, path: str) -> Iterator[Finding]:
        """Yield what was found since the last call. `path` is that of the `.data`."""
        bad, self._bad = self._bad, []
        yield from bounded(path, bad, "damage")


class LeafResult(NamedTuple):
    """The result of reading one `.mrk` file: the root of a whole block, None for a smaller file or a damaged one; and
    the problems of the file."""

    root: bytes | None
    problems: list[Finding]


class LeafWork(NamedTuple):
    """One `.mrk` file that is to be verified, as plain values."""

    directory: str
    first_seq: int
    leaves: int

    def verified(self, fs: Fs) -> LeafResult:
        """Verify it. Blocking. Raises OSError."""
        file = LeafFile(self.first_seq, self.leaves)
        directory = LeafDirectory(fs, self.directory)
        try:
            leaves = directory.read(file)
            if file.leaves < leaf_files.BLOCK_LEAVES:
                return LeafResult(None, [])
            root = perfect_root(leaves)
            if perfect_root(directory.middle(file)) != root:
                problem = "the roots of its subtrees are not those of its leaves"
                return LeafResult(root, [Finding(directory.path(file), None, problem, "damage")])
            return LeafResult(root, [])
        except LeavesDamaged as error:
            return LeafResult(None, [Finding(join(self.directory, file.name), None, str(error), "damage")])


class TreeCheck:
    """Verifies the tree of one topic, from the leaves in files and those that recovery has found in the log."""

    def __init__(
        self,
        fs: Fs,
        directory: str,
        part_path: str,
        topic: tuple[int, str],
        tree: TopicTree,
        content: ContentLeaves | None,
        *,
        is_complete: bool,
    ) -> None:
        """`topic` are its id and name. `content` has leaves that no file has. With `is_complete`, `tree` has all
        leaves, not only those that the part counts. Raises OSError."""
        self._fs = fs
        self._path = directory
        self._part_path = part_path
        self.topic_id, self.name = topic
        self._tree = tree
        self._content = content
        self._is_complete = is_complete
        self._leaves = LeafDirectory(fs, directory)

    def work(self) -> list[LeafWork]:
        """Return the files that are to be verified, the order of which is that of their leaves."""
        end_seq = self._tree.identity.start_seq + self._tree.stored.size
        counted = [file for file in self._leaves.files if file.end_seq <= end_seq]
        unneeded = set(obsolete(counted, end_seq))
        return [LeafWork(self._path, *file) for file in counted if file not in unneeded]

    def findings(
        self, verified: Iterable[tuple[LeafWork, LeafResult]], kept: Iterable[KeptCheckpoint]
    ) -> Iterator[Finding]:
        """Yield the problems of the files, which are given with what was found in them, and of the tree as a whole.
        Those of the checkpoints `kept` that are about this topic are compared. Raises OSError."""
        roots: dict[int, bytes] = {}
        for work, (root, problems) in verified:
            yield from problems
            if root is not None:
                roots[work.first_seq] = root
        yield from self._joined(roots, checkpoints_of(self.topic_id, self.name, kept))

    def _joined(self, roots: Mapping[int, bytes], kept: Iterable[KeptCheckpoint]) -> Iterator[Finding]:
        """Yield the problems of the tree, given the roots of whole blocks by first seq."""
        identity, stored = self._tree.identity, self._tree.stored
        cache = RootCache(_ALL)
        for first_seq, root in roots.items():
            cache.put((identity.tree, leaf_files.BLOCK_LEVEL, first_seq - identity.start_seq), root)
        content = self._content.leaves if self._content is not None else None
        reader = TreeReader(self._leaves, identity, self._tree.blank_runs, self._tree.pending(), cache, content)
        try:
            at, edge = 0, bytearray()
            for size in subtree_sizes(stored.size):
                edge += reader.root_of(size.bit_length() - 1, at)
                at += size
            if edge != stored.edge:
                problem = f"the leaves of topic {self.name!r} do not lead to the root that its part has"
                yield Finding(self._part_path, None, problem, "damage")
            yield from self._from_content()
            for one in kept:
                yield from self._against(one, reader)
        except LeavesDamaged as error:
            problem = f"the Merkle tree of topic {self.name!r} cannot be computed: {error}"
            yield Finding(self._path, None, problem, "damage")

    def _from_content(self) -> Iterator[Finding]:
        """Yield a finding if leaves had to be computed from records."""
        if self._content is not None and self._content.found:
            problem = (
                f"leaves of topic {self.name!r} from seq {self._content.first_seq} on are in no .mrk file, or in a "
                f"damaged one. They were computed from its records; proofs that need them are refused"
            )
            yield Finding(self._path, None, problem, "damage")

    def _against(self, kept: KeptCheckpoint, reader: TreeReader) -> Iterator[Finding]:
        """Compare the tree with a kept checkpoint."""
        path, (text, size, root) = kept
        origin = LogOrigin.parse(text)
        is_same = origin.tree == self._tree.identity.tree
        if size > self._tree.hashed and not self._is_complete:
            problem = f"topic {self.name!r} is in use, and what is not in its segments is not compared"
            yield Finding(path, None, problem, "note")
        elif size > self._tree.hashed:
            problem = f"the checkpoint is of {size} leaves, and topic {self.name!r} has {self._tree.hashed}"
            yield Finding(path, None, problem, "damage")
        elif root_of_range(reader, 0, size) != root:
            problem = f"the first {size} leaves of topic {self.name!r} have another root than the checkpoint"
            what = "records were rewritten" if is_same else "its tree was begun anew, or records were rewritten"
            yield Finding(path, None, f"{problem}: {what}", "damage")
        elif not is_same:
            problem = f"the tree of topic {self.name!r} was begun anew since the checkpoint, with the same leaves"
            yield Finding(path, None, problem, "note")


def tree_check(
    fs: Fs, tiers: SegmentTiers, directory: str, topic_id: int, found: StoredPart | None, topic: RecoveredTopic | None
) -> TreeCheck | None:
    """Return what checks the tree of a topic: as the next start will have it, which is `topic`, or else as its part has
    it. None if it has no tree. Raises OSError."""
    if topic is not None:
        tree, name = topic.tree, topic.name
        if tree is not None:
            tree.fill(topic.log.head_seq)
    elif found is not None and found.part.evidence is not None:
        tree, name = TopicTree.from_wire(found.part.evidence), found.part.name
    else:
        return None
    if tree is None:
        return None
    path = found.path if found is not None else "the log"
    content = ContentLeaves(tiers, topic_id, found.segments, holes_of(found.part.log)) if found is not None else None
    return TreeCheck(fs, directory, path, (topic_id, name), tree, content, is_complete=topic is not None)


def checkpoints_of(topic_id: int, name: str, kept: Iterable[KeptCheckpoint]) -> list[KeptCheckpoint]:
    """Return the checkpoints about a topic instance."""
    found = []
    for one in kept:
        origin = LogOrigin.parse(one.checkpoint.origin)
        if (origin.epoch, origin.topic) == (topic_id, name):
            found.append(one)
    return found


def without_topic(kept: Iterable[KeptCheckpoint], topics: Mapping[int, str]) -> Iterator[Finding]:
    """Yield a finding for each checkpoint about a topic that is not among those with a tree, whose names are given by
    id."""
    for one in kept:
        origin = LogOrigin.parse(one.checkpoint.origin)
        if topics.get(origin.epoch) != origin.topic:
            problem = f"there is no topic {origin.topic!r} with epoch {origin.epoch} and evidence"
            yield Finding(one.path, None, problem, "damage")


def is_about_topic(checkpoint: TreeHead) -> bool:
    """Return True if the origin of a checkpoint is one of ours."""
    try:
        LogOrigin.parse(checkpoint.origin)
    except BadSignedNote:
        return False
    return True
