"""`verify`, divided: one process checks everything but the segments and the blocks of Merkle trees, and lists them;
others check those, each by itself, anywhere the files can be read. The roots of the blocks go back to the first one,
which joins them.

Responsible for the division only. `verify` and `verify_segments` do the checks, so that both ways have the same
results.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from topics.log.span import Span
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, join
from topics.storage.files.progress import Progress
from topics.storage.files.read_only_fs import ReadOnlyFs
from topics.storage.offline.findings import Finding
from topics.storage.offline.topic_parts import StoredHole, StoredPart, holes_of
from topics.storage.offline.verify import Verification
from topics.storage.offline.verify_segments import SegmentCheck
from topics.storage.offline.verify_trees import KeptCheckpoint, LeafResult, LeafWork, SegmentLeaves, TreeCheck
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment


class SegmentWork(NamedTuple):
    """One segment that is to be verified, with all that it takes, as plain values. `span` is what the part says of its
    records, None if they are all gone."""

    root: str
    cold: str | None
    topic_id: int
    topic: str
    segment: list[Any]
    span: list[Any] | None
    holes: list[StoredHole]
    ahead: bool
    is_front: bool
    tree: list[Any] | None = None
    """The Merkle tree that the part has, if the topic has evidence."""

    def loaded(self) -> Segment:
        """Return the segment."""
        return Segment.from_wire(self.topic_id, self.segment)

    def path(self) -> str:
        """The path of its `.data`."""
        segment = self.loaded()
        root = self.root if segment.tier == "hot" or self.cold is None else self.cold
        return DataDir(root).segment_path(self.topic_id, segment.first, "data")

    def findings(self, fs: Fs) -> list[Finding]:
        """Return all its problems. Raises OSError if a store does not answer."""
        reading = ReadOnlyFs(fs, Progress())
        cold = DirectorySegmentStore(reading, self.cold) if self.cold is not None else None
        tiers = SegmentTiers(DirectorySegmentStore(reading, self.root), cold)
        leaves = None
        if self.tree is not None:
            directory = DataDir(self.root).topic_dir(self.topic_id)
            leaves = SegmentLeaves(reading, directory, self.topic_id, self.tree, self.holes)
        check = SegmentCheck(
            tiers, self.topic_id, self.topic, self._path_of, self.holes, ahead=self.ahead, leaves=leaves
        )
        span = Span.load(self.span) if self.span is not None else None
        return list(check.findings(self.loaded(), span, is_front=self.is_front))

    def _path_of(self, tier: str, name: str) -> str:
        root = self.root if tier == "hot" or self.cold is None else self.cold
        return join(DataDir(root).topic_dir(self.topic_id), name)


class DividedVerification(Verification):
    """Verifies everything but segments and trees. When `findings` has been iterated, `work` lists the segments, and
    `leaves` the files of the trees."""

    def __init__(
        self,
        fs: Fs,
        root: str,
        cold: str | None = None,
        *,
        in_use: bool = False,
        against: Sequence[KeptCheckpoint] = (),
    ) -> None:
        super().__init__(fs, root, cold, in_use=in_use, against=against)
        self.work: list[SegmentWork] = []
        self.leaves: list[LeafWork] = []
        self._checks: list[tuple[TreeCheck, StoredPart | None, list[LeafWork]]] = []
        """The trees, and which of the `leaves` are theirs, in the same order."""
        self._root = root
        self._divides = True

    def again(self, work: SegmentWork) -> list[Finding]:
        """Check a segment again that was found damaged while a daemon works on the directory: its files, and its part,
        may have been replaced. Raises OSError."""
        found, problems = self._newest(work.topic_id)
        firsts = [segment.first for segment in found.segments] if found is not None else []
        if found is None or work.loaded().first not in firsts:
            return problems
        self._divides = False
        return list(self._replaced(work.topic_id, found, firsts.index(work.loaded().first)))

    def tree_findings(self, results: Sequence[LeafResult]) -> Iterator[Finding]:
        """Yield the problems of the trees, given what was found in each of the `leaves`. Raises OSError."""
        assert len(results) == len(self.leaves)
        rest = iter(results)
        for check, part, leaves in self._checks:
            verified = list(zip(leaves, rest, strict=False))  # the next ones are those of the next tree
            found = list(check.findings(verified, self._against))
            yield from super()._tree(check, part) if self._in_use and damaged(found) else found

    def _tree(self, check: TreeCheck, part: StoredPart | None) -> Iterator[Finding]:
        """Leave the tree for later."""
        leaves = check.work()
        self._checks.append((check, part, leaves))
        self.leaves += leaves
        return iter(())

    def _check(self, topic_id: int, found: StoredPart) -> SegmentCheck:
        if not self._divides:
            return super()._check(topic_id, found)
        cold = self._cold_dir.root if self._cold_dir is not None else None
        holes = holes_of(found.part.log)
        ahead = topic_id in self._facts.since
        name, tree = found.part.name, found.part.evidence
        work = SegmentWork(self._root, cold, topic_id, name, [], None, holes, ahead, is_front=False, tree=tree)
        return _SegmentNotes(self.work, work)


class _SegmentNotes(SegmentCheck):
    """Verifies nothing, but notes the segments that it would verify."""

    def __init__(self, work: list[SegmentWork], about: SegmentWork) -> None:
        self._work = work
        self._about = about

    def findings(self, segment: Segment, span: Span | None, *, is_front: bool) -> Iterator[Finding]:
        dumped = span.dump() if span is not None else None
        self._work.append(self._about._replace(segment=segment.to_wire(), span=dumped, is_front=is_front))
        return iter(())


def damaged(findings: Sequence[Finding]) -> bool:
    """Return True if any of the findings is damage."""
    return any(finding.severity == "damage" for finding in findings)
