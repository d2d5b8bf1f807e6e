"""The copies in a topic: which record each was made from, and how it differs from that record (`docs/spec/semantics.md`
section 5, `docs/spec/crash.md` 16 to 19).

A copy is a record like any other, with two additions. It has an *origin*, the topic instance and seq under which it was
first appended, and a count of the routers it has come through. And until it is in a segment of its own topic it is
*derived*: its bytes are in the frame of another topic's record. A router may leave out node and tag and may add a stamp
(the copy's *look*). The index says where the frame is and flags the slot as derived (`FLAG_DERIVED`). This module keeps
the rest: for each copy the seq of its origin, and its *kind*, which is everything else about it.

They are kept in runs, 5 bytes a copy. A run covers slots: a record that was appended directly between two copies is
inside it and has no kind. So there is no object per copy, in any order of copies of different kinds and directly
appended records.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final, NamedTuple

MAX_HOPS: Final = 15
"""Routers that a copy may come through. A router skips a record that has come through so many."""

STAMP_KEY: Final = "_topics_router"
_STAMP_FIRST: Final = b'{"_topics_router":'
_STAMP_LAST: Final = b',"_topics_router":'

_MAX_SPREAD: Final = 2**32 - 1
_MAX_PADDING: Final = 64
_MAX_KINDS: Final = 255


class Origin(NamedTuple):
    """Where a record was first appended, and through how many routers it has come since."""

    topic_id: int
    seq: int
    hops: int


class CopyChanges(NamedTuple):
    """How a copy differs from the frame it is made from. `stamp` is the router to be named in its meta, None for no
    stamp."""

    drop_node: bool = False
    drop_tag: bool = False
    stamp: str | None = None


PLAIN: Final = CopyChanges()


class CopyKind(NamedTuple):
    """The common facts of many copies."""

    topic_id: int
    """The topic instance of the origin."""
    hops: int
    changes: CopyChanges


class CopyRun:
    """Copies of a few kinds in the slots from `first` on. Slots of other records in between have no kind."""

    __slots__ = ("_bases", "_kinds", "_seqs", "_which", "first")

    def __init__(self, first: int) -> None:
        self.first = first
        self._kinds: list[CopyKind] = []
        self._bases: list[int] = []
        """For each kind, the least seq of its origins: the base."""
        self._which = bytearray()
        """For each slot, the number of its kind from 1 on; 0 if it is no copy."""
        self._seqs: array[int] = array("I")
        """For each slot, the seq of the origin minus the base."""

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + len(self._which)

    def extend(self, first: int, kind: CopyKind, origin_seqs: Sequence[int]) -> bool:
        """Add copies of one kind with seqs from `first` on. Return False, and add nothing, if they do not fit into this
        run."""
        padding = first - self.end
        least = min(origin_seqs)
        if not 0 <= padding <= _MAX_PADDING:
            return False
        if kind in self._kinds:
            number = self._kinds.index(kind)
            base = self._bases[number]
        elif len(self._kinds) < _MAX_KINDS:
            number, base = len(self._kinds), least
        else:
            return False
        if least < base or max(origin_seqs) - base > _MAX_SPREAD:
            return False
        if number == len(self._kinds):
            self._kinds.append(kind)
            self._bases.append(base)
        self._which.extend(bytes(padding))
        self._seqs.extend(bytes(padding))
        self._which.extend(bytes((number + 1,)) * len(origin_seqs))
        self._seqs.extend([seq - base for seq in origin_seqs])
        return True

    def kind(self, seq: int) -> CopyKind:
        """Return the kind of a copy. Raises KeyError if `seq` is no copy."""
        number = self._which[seq - self.first]
        if not number:
            raise KeyError(seq)
        return self._kinds[number - 1]

    def alike(self, seqs: Sequence[int]) -> tuple[CopyKind, list[int]] | None:
        """Return the kind of these copies and the seqs of their origins if all are of one kind; else None."""
        first, last = seqs[0], seqs[-1]
        if first < self.first or last >= self.end:
            return None
        a, b = first - self.first, last + 1 - self.first
        number = self._which[a]
        if len(seqs) != b - a or not number or self._which.count(number, a, b) != b - a:
            return None
        base = self._bases[number - 1]
        return self._kinds[number - 1], [base + seq for seq in self._seqs[a:b]]

    def origin(self, seq: int) -> Origin:
        """Return the origin of a copy. Raises KeyError if `seq` is no copy."""
        kind = self.kind(seq)
        i = seq - self.first
        return Origin(kind.topic_id, self._bases[self._which[i] - 1] + self._seqs[i], kind.hops)


class CopyTable:
    """The copies of a topic that are not in its segments yet, and the files that hold their frames. Pure.

    The files are needed until `forget_files`, the runs until `forget_to`.
    """

    __slots__ = ("_files", "_sealed", "runs")

    def __init__(self) -> None:
        self.runs: list[CopyRun] = []
        self._files: dict[int, int] = {}
        """The last seq that needs each file; the keys are ids of the files that hold the frames."""
        self._sealed = False

    def add(self, first: int, kinds: Sequence[tuple[int, CopyKind]], origin_seqs: Sequence[int]) -> None:
        """Add copies with seqs from `first` on. `kinds` are counts with kinds, in the order of the seqs."""
        at = 0
        for count, kind in kinds:
            seqs = origin_seqs[at : at + count]
            last = self.runs[-1] if self.runs and not self._sealed else None
            if last is None or not last.extend(first + at, kind, seqs):
                self._begin(first + at, kind, seqs)
            at += count

    def _begin(self, first: int, kind: CopyKind, seqs: Sequence[int]) -> None:
        run = CopyRun(first)
        if run.extend(first, kind, seqs):
            self.runs.append(run)
        else:  # origins from two ends of a very long topic in one batch
            half = len(seqs) // 2
            self._begin(first, kind, seqs[:half])
            self._begin(first + half, kind, seqs[half:])
        self._sealed = False

    def adopt(self, runs: Sequence[CopyRun]) -> None:
        """Add runs that were made elsewhere, ascending and past all known ones."""
        self.runs += runs
        self._sealed = False

    def need(self, files: Iterable[int], last: int) -> None:
        """Note that the copies up to `last` are made from frames in these files."""
        for file in files:
            self._files[file] = max(last, self._files.get(file, 0))

    @property
    def files(self) -> Iterable[int]:
        """Return the ids of the files that must stay."""
        return self._files.keys()

    @property
    def empty(self) -> bool:
        """Return True if no run is known and no file is needed."""
        return not self.runs and not self._files

    def seal(self) -> list[CopyRun]:
        """Return the runs known so far. Copies added later go into new runs."""
        self._sealed = True
        return list(self.runs)

    @property
    def needs_files(self) -> bool:
        """Return True if there are files that must stay."""
        return bool(self._files)

    def forget_files(self, seq: int) -> None:
        """Release the files that only copies up to `seq` need: on disk, those are in segments or no longer live."""
        self._files = {file: last for file, last in self._files.items() if last > seq}

    def forget_to(self, seq: int) -> None:
        """Forget the origins of the copies up to `seq`."""
        keep = 0
        while keep < len(self.runs) and self.runs[keep].end <= seq + 1:
            keep += 1
        del self.runs[:keep]

    def run_of(self, seq: int) -> CopyRun:
        """Return the run that contains `seq`. Raises KeyError."""
        return run_of(self.runs, seq)


def run_of(runs: Sequence[CopyRun], seq: int) -> CopyRun:
    """Return the one of `runs` (ascending) that contains `seq`. Raises KeyError."""
    at = bisect_right(runs, seq, key=_first) - 1
    if at < 0 or seq >= runs[at].end:
        raise KeyError(seq)
    return runs[at]


def _first(run: CopyRun) -> int:
    return run.first


def kinds_of(origins: Iterable[tuple[CopyKind, int]]) -> tuple[list[tuple[int, CopyKind]], list[int]]:
    """Split origins into counts with kinds, and seqs, as `CopyTable.add` takes them."""
    seqs: list[int] = []
    kinds: list[tuple[int, CopyKind]] = []
    for kind, group in groupby(origins, key=_kind):
        before = len(seqs)
        seqs += [seq for _, seq in group]
        kinds.append((len(seqs) - before, kind))
    return kinds, seqs


def _kind(origin: tuple[CopyKind, int]) -> CopyKind:
    return origin[0]


def each_kind(kinds: Iterable[tuple[int, CopyKind]]) -> Iterator[CopyKind]:
    """Yield the kind of each single copy."""
    for count, kind in kinds:
        for _ in range(count):
            yield kind


def stamped(meta: bytes, topic_id: int, seq: int, router: str | None) -> bytes:
    """Return the meta of a copy, with a stamp that names its origin and the router in place of an older stamp.

    With `router` None the meta is returned unchanged. The key of the stamp is reserved and always the last one, so it
    is found without parsing: quotes inside other values are escaped.
    """
    if router is None:
        return meta
    if meta.startswith(_STAMP_FIRST):
        meta = b""
    elif (at := meta.rfind(_STAMP_LAST)) >= 0:
        meta = meta[:at] + b"}"
    stamp = b'%b"%d:%d:%b"}' % (_STAMP_FIRST if len(meta) <= 2 else _STAMP_LAST, topic_id, seq, router.encode())
    return stamp if len(meta) <= 2 else meta[:-1] + stamp
