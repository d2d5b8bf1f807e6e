"""`topics bucket verify`: whether everything is in a bucket that a restore may need, and is what it should be.

- Each round, base and pack is read, and its hash checked. Each blob that a base names has the hash that the base says.
- Each segment that a base names exists and has the size and the SHA-256 that the base says.
- Rounds have numbers without gaps and hashes that follow one another, from the first one that the oldest base needs.
  Older ones (the first of each epoch is kept) are checked by themselves. Behind a base that only a pin keeps,
  rounds may be gone up to those that the next base needs.
- Each base contains what it must: parts that decode, segments that fit them, files of the log that rounds begin.

What no base names is no damage: it may have been uploaded for a base that is not written yet.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from topics.bucket.base_format import (
    MAX_BLOB_BYTES,
    PACK_BYTES,
    Base,
    BlobRef,
    SealedFile,
    TopicEntry,
    check_pack,
    open_blob,
)
from topics.bucket.container import BadObject
from topics.bucket.object_names import BASES, PINS, PackName, base_name, pack_name, round_name
from topics.bucket.offline.base_pages import KINDS, BasePages
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader, check_blob, check_follows
from topics.bucket.offline.bucket_restore import Workers, snapshot_of
from topics.bucket.offline.restored_log import check_files
from topics.bucket.pin_format import MAX_PIN_BYTES, decode_pin
from topics.bucket.round_format import Round
from topics.storage.files.progress import Progress

CHUNK_BYTES: Final = 8 << 20
"""Segments are read in pieces of this size."""

MAX_PACK_BYTES: Final = PACK_BYTES + MAX_BLOB_BYTES + (1 << 20)


class BucketDefect(NamedTuple):
    """An object that is missing or wrong."""

    name: str
    problem: str


class BucketCheck:
    """One check of a bucket. `findings` may be iterated once; StoreError ends it. `progress` counts the bytes read, and
    `objects` the objects."""

    def __init__(self, reader: BucketReader, workers: Workers, *, quick: bool = False) -> None:
        """`quick`: segments are not read."""
        self.progress = Progress()
        self.objects = 0
        self._reader = reader
        self._workers = workers
        self._quick = quick
        self._segments: dict[str, SealedFile] = {}
        """The files that bases name."""
        self._blobs: dict[PackName, set[BlobRef]] = {}
        """The blobs that bases name, by pack."""
        self._bad_pins: list[BucketDefect] = []
        self._pages: set[tuple[int, BlobRef]] = set()
        """The pages that were looked at."""
        self._begins: dict[int, list[tuple[int, int, int]]] = {}
        """By round, the files of the log whose first byte it has according to a base: shard, ordinal, and the base."""

    def findings(self) -> Iterator[BucketDefect]:
        """Check everything; yield what is wrong."""
        try:
            self._reader.format()
            owner = self._reader.owner()
        except BucketDamaged as error:
            yield BucketDefect(error.name, error.problem)
            if error.name == "FORMAT":
                return  # nothing tells which objects belong to the bucket
            owner = None
        self.objects += 1 + (owner is not None)
        listed = self._reader.bases()
        self.objects += len(listed)
        bases: list[Base] = []
        for one in listed:
            self.progress.total += one.facts.size
            self.progress.done += one.facts.size
            try:
                base = self._reader.base(one.number)
            except BucketDamaged as error:
                yield BucketDefect(error.name, error.problem)
                continue
            bases.append(base)
            yield from self._check_base(base)
        yield from self._check_rounds(bases, owner.round if owner is not None else 0)
        yield from self._check_packs()
        yield from self._check_segments()
        yield from self._bad_pins

    # -- bases ---------------------------------------------------------------------------------------------------------

    def _check_base(self, base: Base) -> Iterator[BucketDefect]:
        name = base_name(base.head.number)
        try:
            snapshot_of(base)
            check_files(base)
            pages = BasePages(self._reader, base)
        except BucketDamaged as error:
            yield BucketDefect(error.name, error.problem)
            return
        for shard, ordinal, begins in base.body.files:
            self._begins.setdefault(begins, []).append((shard, ordinal, base.head.number))
        for number, ref in base.body.pages:
            if (number, ref) in self._pages:
                continue
            self._pages.add((number, ref))
            try:
                self._note_blob(ref, name)
                topics = pages.load(number, ref)
                for topic in topics:
                    self._note_blobs(topic.entry, name)
            except BucketDamaged as error:
                yield BucketDefect(error.name, f"{error.problem} (page {number} of {name})")
                continue
            for topic in topics:
                for plan in topic.plans:
                    for kind in KINDS:
                        file = plan.file(kind)
                        if file is not None and self._segments.setdefault(plan.name(kind), file) != file:
                            yield BucketDefect(plan.name(kind), f"{name} says something else of it than another base")

    def _note_blobs(self, topic: TopicEntry, base: str) -> None:
        refs = [topic.part, *(entry.deleted for entry in topic.segments)]
        refs += [file.content for file in topic.leaves.files] if topic.leaves is not None else []
        for ref in [*refs, *(piece for entry in topic.segments for piece in entry.pieces)]:
            if isinstance(ref, BlobRef):
                self._note_blob(ref, base)

    def _note_blob(self, ref: BlobRef, base: str) -> None:
        check_blob(ref, base)
        self._blobs.setdefault(ref.pack_name, set()).add(ref)

    # -- rounds --------------------------------------------------------------------------------------------------------

    def _check_rounds(self, bases: list[Base], recent: int) -> Iterator[BucketDefect]:
        first = min((base.head.first_round for base in bases), default=None)
        numbers = []
        for one in self._reader.rounds():
            numbers.append(one.number)
            self.progress.total += one.facts.size
        self.objects += len(numbers)
        if first is None:
            first = numbers[0] if numbers else 1
            if numbers:
                yield BucketDefect(BASES, "there is no base that can be read, so nothing can be restored")
        there = set(numbers)
        last = max([recent, *numbers[-1:], *(base.head.number for base in bases)])
        for begin, until in self._needed(bases, first, last):
            yield from _missing(sorted(number for number in there if begin <= number <= until), begin, until)
        before: Round | None = None
        histories: list[int] = []
        ends: dict[int, tuple[int, int]] = {}
        for found in self._workers.map(self._round, numbers):
            if isinstance(found, BucketDefect):
                yield found
                before, ends = None, {}
                continue
            number = found.head.number
            if before is not None and number == before.head.number + 1:
                try:
                    check_follows(before, found)
                except BucketDamaged as error:
                    yield BucketDefect(error.name, error.problem)
            before = found
            if found.head.begins_history:
                histories.append(number)
                ends = {}
            yield from _misplaced(found, ends)
            begun = {(run.shard, run.ordinal) for run in found.head.runs if not run.offset}
            for shard, ordinal, of in self._begins.get(number, ()):
                if (shard, ordinal) not in begun:
                    yield BucketDefect(
                        round_name(number),
                        f"file {ordinal} of shard {shard} does not begin in it, as {base_name(of)} says",
                    )
        for head in (base.head for base in bases):
            if any(head.first_round < number <= head.number for number in histories):
                yield BucketDefect(base_name(head.number), "a history begins among the rounds that it needs")

    def _needed(self, bases: list[Base], first: int, last: int) -> list[tuple[int, int]]:
        """Return the rounds that must be there, as inclusive ranges. Behind a base that only a pin keeps there may be
        none up to those that the next base needs."""
        pinned = self._pinned()
        ranges: list[tuple[int, int]] = []
        begin = first
        for base, following in pairwise(bases):
            if base.head.number in pinned and following.head.first_round > base.head.number:
                ranges.append((begin, base.head.number))
                begin = following.head.first_round
        return [*ranges, (begin, last)]

    def _pinned(self) -> set[int]:
        """Return the bases that pins name. Note the pins that cannot be read: nothing may go while there is one."""
        found: set[int] = set()
        for facts in self._reader.listed(PINS):
            self.objects += 1
            try:
                found.add(decode_pin(self._reader.whole(facts.name, MAX_PIN_BYTES)).base)
            except (BucketDamaged, BadObject) as error:
                if not any(self._reader.listed(facts.name)):
                    continue  # given up meanwhile
                problem = error.problem if isinstance(error, BucketDamaged) else str(error)
                consequence = "nothing is deleted from the bucket until this object is removed"
                self._bad_pins.append(BucketDefect(facts.name, f"{problem}; {consequence}"))
        return found

    def _round(self, number: int) -> Round | BucketDefect:
        try:
            found = self._reader.round(number)
        except BucketDamaged as error:
            return BucketDefect(error.name, error.problem)
        self.progress.done += len(found.body)
        return found

    # -- packs and segments --------------------------------------------------------------------------------------------

    def _check_packs(self) -> Iterator[BucketDefect]:
        self.objects += len(self._blobs)
        for findings in self._workers.map(self._pack, sorted(self._blobs)):
            yield from findings

    def _pack(self, pack: PackName) -> list[BucketDefect]:
        name = pack_name(pack)
        try:
            data = self._reader.whole(name, MAX_PACK_BYTES)
            check_pack(data)
        except BucketDamaged as error:
            return [BucketDefect(error.name, error.problem)]
        except BadObject as error:
            return [BucketDefect(name, str(error))]
        self.progress.done += len(data)
        for ref in sorted(self._blobs[pack]):
            try:
                open_blob(ref, data[ref.offset : ref.offset + ref.length])
            except BadObject as error:
                return [BucketDefect(name, f"{error} (at {ref.offset})")]
        return []

    def _check_segments(self) -> Iterator[BucketDefect]:
        self.objects += len(self._segments)
        if not self._quick:
            self.progress.total += sum(file.size for file in self._segments.values())
        for finding in self._workers.map(self._segment, sorted(self._segments.items())):
            if finding is not None:
                yield finding

    def _segment(self, item: tuple[str, SealedFile]) -> BucketDefect | None:
        name, file = item
        try:
            size = self._reader.head(name).size
            if size != file.size:
                return BucketDefect(name, f"it has {size} bytes, and should have {file.size}")
            digest = hashlib.sha256()
            for at in range(0, 0 if self._quick else size, CHUNK_BYTES):
                chunk = self._reader.range(name, at, min(CHUNK_BYTES, size - at))
                digest.update(chunk)
                self.progress.done += len(chunk)
        except BucketDamaged as error:
            return BucketDefect(error.name, error.problem)
        if not self._quick and digest.digest() != file.hash:
            return BucketDefect(name, "its hash does not match")
        return None


def _misplaced(found: Round, ends: dict[int, tuple[int, int]]) -> Iterator[BucketDefect]:
    """Yield the runs of a round that do not follow those before them. `ends` is where these end, by shard (ordinal and
    offset), and is moved on."""
    for run in found.head.runs:
        ordinal, offset = ends.get(run.shard, (run.ordinal, run.offset))
        follows = run.offset == offset if run.ordinal == ordinal else run.ordinal > ordinal and not run.offset
        if not follows or not run.length or run.shard >= found.head.shards:
            problem = f"bytes {run.offset} to {run.offset + run.length} of file {run.ordinal} of shard {run.shard}"
            yield BucketDefect(round_name(found.head.number), f"{problem} do not follow those before them")
        ends[run.shard] = (run.ordinal, run.offset + run.length)
    for shard, end in ends.items():
        if shard < found.head.shards and found.head.positions[shard] != end:
            problem = f"its position in shard {shard} is not where its runs end"
            yield BucketDefect(round_name(found.head.number), problem)


def _missing(numbers: Sequence[int], first: int, last: int) -> Iterator[BucketDefect]:
    """Yield the rounds between `first` and `last`, or the last number, that are not among `numbers`."""
    expected = first
    for number in [*numbers, max(last, *numbers) + 1] if numbers else [last + 1]:
        if number > expected:
            more = f", and so are all up to {number - 1}" if number - expected > 1 else ""
            yield BucketDefect(round_name(expected), f"it is missing{more}")
        expected = max(expected, number + 1)
