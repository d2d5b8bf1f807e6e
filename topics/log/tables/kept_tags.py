"""The live records of each tag, for a topic that keeps only the newest of them (`keep_per_tag`). Pure.

Theory of operation (`docs/design/latest.md`)
---------------------------------------------

`TopicTags` leaves the tags of sealed segments to their files. A topic with `keep_per_tag` cannot: each append has to
know which older records its tags have, with their sizes, so that a stored record can be deleted without its columns.
So such a topic has a table of its own. It has every live record with a tag:

    tag -> the record              (most tags): one int, `seq << 33 | size << 1 | is null`
    tag -> several records         an array of u64: at which item they begin, then seq and `size << 1 | is null` of each

An append is *decided* when it gets its seqs, and *published* later. In between, `_on_the_way` has the unpublished
records of its tags, and up to which seq the records of a tag are taken away already. Records of a tag are always taken
away from the oldest on, so one seq says it. Decisions see published and unpublished records; readers see published ones
only.

Records also die for other reasons: ttl, caps, deletions, damage. Those below the front are recognized by their seq,
those in a hole by the hole, deleted ones by a set. A look-up of a tag drops its dead records; a sweep drops those of
tags that are not looked up. The sweep begins when a quarter of the entries may be dead, and works in proportion to the
deaths, so the garbage stays below half; below three quarters while a large deletion is carried out.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeAlias

from sortedcontainers import SortedDict

from topics.log.losses import Losses

_SEQ_SHIFT: Final = 33
_INFO: Final = (1 << _SEQ_SHIFT) - 1

# As for `TopicTags`: when a sweep begins, and how much of it each death pays for.
_SWEEP_SHARE: Final = 4
_SWEEP_MIN: Final = 64
_NAMES_PER_DEATH: Final = 4
_FEW_RECORDS: Final = 8
"""So many records of a tag are asked one by one whether they are dead."""

SWEEP_NAMES: Final = 5000
"""Tags that one call of `sweep` visits at most: a few milliseconds."""

TableEntry: TypeAlias = "int | array[int]"


class KeptRecord(NamedTuple):
    """A record of the table: `size` is the bytes of data + meta; `is_null` means that its data is null."""

    seq: int
    size: int
    is_null: bool


class KeptChange:
    """The change of a batch to the records of its tags: it adds its own, and removes older ones."""

    __slots__ = ("_before", "first_seq", "last_seq", "levels", "nulls", "seqs", "sizes")

    def __init__(self, first_seq: int) -> None:
        self.first_seq = first_seq
        self.last_seq = first_seq - 1
        self.seqs: array[int] = array("Q")
        """The records that are taken away, ascending; some may be of the batch itself."""
        self.sizes: array[int] = array("I")
        """The bytes of data + meta of each."""
        self.nulls: array[int] = array("Q")
        """The records of the batch that have a tag and data null."""
        self.levels: dict[str, int] = {}
        """For each tag of the batch, the seq up to which its records are gone at its publication; 0 for none."""
        self._before: dict[str, int] = {}
        """The same before the batch was decided."""

    @property
    def logs_anything(self) -> bool:
        """Return True if replay has to know more than the records of the batch."""
        return bool(self.seqs or self.nulls)

    def note(self, tag: str, level: int) -> None:
        """Note a tag of the batch when it is met for the first time."""
        self.levels[tag] = self._before[tag] = level

    def level_before(self, tag: str) -> int:
        """Return up to which seq the records of a tag were taken away before this batch."""
        return self._before[tag]

    def close(self, taken: list[tuple[int, int]]) -> None:
        """Set the seqs and sizes of the records that are taken away, given in any order."""
        taken.sort()
        self.seqs.extend([seq for seq, _ in taken])
        self.sizes.extend([size for _, size in taken])


class _PendingTag:
    """A tag with unpublished records."""

    __slots__ = ("commits", "gone_to", "records")

    def __init__(self) -> None:
        self.gone_to = 0
        """Records up to this seq are taken away, at the latest by an unpublished batch."""
        self.records: list[int] = []
        """The unpublished records, packed, ascending."""
        self.commits = 0
        """The number of unpublished batches with this tag."""


class KeptTags:
    """The table of one topic. `losses` are the topic's; `front` in every call is its first live seq."""

    __slots__ = ("_aging", "_cursor", "_dead", "_entries", "_losses", "_on_the_way", "_suspects_holes", "garbage")

    def __init__(self, losses: Losses, records: Mapping[str, TableEntry] | None = None) -> None:
        self._losses = losses
        self._entries: SortedDict[str, TableEntry] = SortedDict(records or {})
        self._on_the_way: dict[str, _PendingTag] = {}
        self._dead: set[int] = set()
        """Deleted seqs that may still be in the table."""
        self._aging: set[int] = set()
        """Those that were known when the present round of the sweep began."""
        self._suspects_holes = False
        """True if records have been lost since the last round of the sweep began."""
        self._cursor: str | None = None
        """The last tag that the present round has visited; None between two rounds."""
        self.garbage = 0
        """How many records with a tag have died since then, other than by being taken away."""

    def __len__(self) -> int:
        """The number of tags, those with dead records only among them."""
        return len(self._entries)

    # -- a batch -----------------------------------------------------------------------------------------------------

    def decide(
        self,
        first_seq: int,
        tags: Sequence[str | None],
        sizes: Sequence[int],
        nulls: Collection[int],
        *,
        keep: int,
        front: int,
    ) -> KeptChange:
        """Decide what a batch takes away, so that at most `keep` records of each of its tags are left. `nulls` are the
        indexes of the records with data null. The batch must be published or taken back."""
        change = KeptChange(first_seq)
        taken: list[tuple[int, int]] = []
        self.decide_piece(change, first_seq, tags, sizes, nulls, taken, keep=keep, front=front)
        change.close(taken)
        return change

    def decide_piece(
        self,
        change: KeptChange,
        first_seq: int,
        tags: Sequence[str | None],
        sizes: Sequence[int],
        nulls: Collection[int],
        taken: list[tuple[int, int]],
        *,
        keep: int,
        front: int,
    ) -> None:
        """Decide about the next records of a batch. Adds the records that are taken away to `taken`, with their sizes;
        `KeptChange.close` then gets all of them."""
        levels, on_the_way, entries = change.levels, self._on_the_way, self._entries
        change.last_seq = first_seq + len(tags) - 1
        is_plain = not (self._suspects_holes or self._dead or self._aging)
        for i, tag in enumerate(tags):
            if tag is None:
                continue
            way = on_the_way.get(tag)
            is_first = way is None
            if way is None:
                way = on_the_way[tag] = _PendingTag()
            if tag not in levels:
                change.note(tag, way.gone_to)
                way.commits += 1
            is_null = i in nulls
            most = 1 if is_null else keep
            entry = entries.get(tag) if is_first and is_plain else ()
            if isinstance(entry, int):  # nearly always, in a table; the same as below
                seq = entry >> _SEQ_SHIFT
                if most == 1 and seq >= front:
                    taken.append((seq, (entry & _INFO) >> 1))
                    levels[tag] = way.gone_to = seq
            elif entry is not None:
                self._take_oldest(tag, way, most, taken, front)
                levels[tag] = way.gone_to
            way.records.append((first_seq + i) << _SEQ_SHIFT | sizes[i] << 1 | is_null)
            if is_null:
                change.nulls.append(first_seq + i)

    def _take_oldest(self, tag: str, way: _PendingTag, keep: int, taken: list[tuple[int, int]], front: int) -> None:
        """Take the oldest records of a tag away, so that with one more there are at most `keep`."""
        entry = self._live(tag, front)
        pending = way.records
        begin = bisect_right(pending, way.gone_to << _SEQ_SHIFT | _INFO)
        if isinstance(entry, int):
            published = (entry,) if entry >> _SEQ_SHIFT > way.gone_to else ()
            over = len(published) + len(pending) - begin + 1 - keep
            oldest: Iterable[int] = published
        elif entry is None:
            over, oldest = len(pending) - begin + 1 - keep, ()
        else:
            at = _first_above(entry, way.gone_to)
            over = (len(entry) - at) // 2 + len(pending) - begin + 1 - keep
            oldest = (entry[k] << _SEQ_SHIFT | entry[k + 1] for k in range(at, len(entry), 2))
        if over <= 0:
            return
        last = 0
        for record in islice(_chained(oldest, pending, begin), over):
            last = record >> _SEQ_SHIFT
            taken.append((last, (record & _INFO) >> 1))
        if last:
            way.gone_to = last

    def publish(self, change: KeptChange, tags: Iterable[str], front: int) -> None:
        """Publish a batch that was decided, for some of its tags: readers see its records, and no longer those that it
        takes away. For all of its tags in turn, before another batch is published."""
        entries, end = self._entries, change.last_seq << _SEQ_SHIFT | _INFO
        for tag in tags:
            way, level = self._on_the_way[tag], change.levels[tag]
            way.commits -= 1
            if way.commits:
                at = bisect_right(way.records, end)
                new, way.records = way.records[:at], way.records[at:]
            else:
                new = way.records
                del self._on_the_way[tag]
            entries[tag] = _merged(entries.get(tag), new, max(level, front - 1))

    def take_back(self, change: KeptChange) -> None:
        """Forget a batch that was decided and is not published. No batch behind it was decided since, or none of them
        is published either."""
        first = change.first_seq << _SEQ_SHIFT
        for tag in change.levels:
            way = self._on_the_way.get(tag)
            if way is None:
                continue
            way.records = [record for record in way.records if record < first]
            way.gone_to = min(way.gone_to, change.level_before(tag))
            way.commits -= 1
            if way.commits <= 0 or not way.records:
                del self._on_the_way[tag]

    # -- excess ------------------------------------------------------------------------------------------------------

    def surplus_to(self, tag: str, keep: int, front: int) -> int:
        """Return the seq of the newest record of a tag that is not one of the newest `keep`, or is older than one whose
        data is null; 0 if there is none."""
        entry = self._live(tag, front)
        if entry is None or isinstance(entry, int):
            return 0
        at, end = entry[0], len(entry)
        over = max((end - at) // 2 - keep, 0)
        newest_null = next((k for k in range(end - 2, at, -2) if entry[k + 1] & 1), at)
        over = max(over, (newest_null - at) // 2)
        return entry[at + 2 * (over - 1)] if over else 0

    def oldest(self, tag: str, to: int, most: int, front: int) -> list[tuple[int, int]]:
        """Return the seqs and sizes of the oldest records of a tag up to a seq, at most `most`."""
        return [(one.seq, one.size) for one in islice(self.records(tag, front), most) if one.seq <= to]

    def cut(self, tag: str, to: int) -> None:
        """Drop the records of a tag up to a seq, which were taken away beside any batch. Newer ones are left."""
        entry = self._entries.get(tag)
        if entry is not None:
            self._entries[tag] = _merged(entry, (), to)

    def names(self) -> list[str]:
        """Return all tags in order; some may have dead records only."""
        return list(self._entries)

    # -- finding -----------------------------------------------------------------------------------------------------

    def newest(self, tag: str, front: int) -> KeptRecord | None:
        """Return the newest published live record of a tag, None for none."""
        entry = self._live(tag, front)
        if entry is None:
            return None
        if isinstance(entry, int):
            return _unpacked(entry)
        return KeptRecord(entry[-2], entry[-1] >> 1, bool(entry[-1] & 1))

    def newest_of(self, tag: str, front: int, counts: Callable[[int], bool]) -> int:
        """Return the newest published live seq of a tag for which `counts` is True, 0 for none."""
        newest = self.newest(tag, front)
        if newest is None or counts(newest.seq):
            return newest.seq if newest is not None else 0
        return next((one.seq for one in reversed([*self.records(tag, front)]) if counts(one.seq)), 0)

    def records(self, tag: str, front: int) -> Iterator[KeptRecord]:
        """Yield the published live records of a tag, ascending."""
        entry = self._live(tag, front)
        if entry is None:
            return
        if isinstance(entry, int):
            yield _unpacked(entry)
            return
        for k in range(entry[0], len(entry), 2):
            yield KeptRecord(entry[k], entry[k + 1] >> 1, bool(entry[k + 1] & 1))

    def tags_from(self, prefix: str, after: str | None, most: int) -> list[str]:
        """Return up to `most` tags that begin with `prefix` and come behind `after`, in order. Some may have dead
        records only."""
        behind = after is not None and after >= prefix
        low = after if behind else prefix
        names = islice(self._entries.irange(low, inclusive=(not behind, True)), most)
        found: list[str] = []
        for name in names:
            if not name.startswith(prefix):
                break
            found.append(name)
        return found

    def _live(self, tag: str, front: int) -> TableEntry | None:
        """Return the entry of a tag without dead records, which are dropped; None without live ones."""
        entry: TableEntry | None = self._entries.get(tag)
        if entry is None:
            return None
        suspicious = self._suspects_holes or self._dead or self._aging
        if isinstance(entry, int):
            seq = entry >> _SEQ_SHIFT
            return None if seq < front or (suspicious and self._is_dead(seq)) else entry
        at = _first_above(entry, front - 1)
        if suspicious and (dead := self._dead_among(entry, at)):
            alive = array("Q", (1,))
            for place in sorted(dead):
                alive += entry[at:place]
                at = place + 2
            entry = self._entries[tag] = alive + entry[at:]
        else:
            entry[0] = at
        return entry if len(entry) > entry[0] else None

    def _dead_among(self, entry: array[int], at: int) -> set[int]:
        """Return the items of an entry from `at` on at which dead records begin. An append may ask this of a tag with
        very many records: it costs as much as there are records, or deaths and holes if these are fewer."""
        places = range(at, len(entry), 2)
        if len(places) > _FEW_RECORDS:
            low, high = entry[at], entry[-2]
            holes = self._losses.inside_holes(low, high, most=len(places)) if self._suspects_holes else []
            if len(self._dead) + len(self._aging) + len(holes) < len(places):
                lost = [
                    place for a, b in holes for place in range(_first_above(entry, a - 1), _first_above(entry, b), 2)
                ]
                deleted = [seq for seqs in (self._dead, self._aging) for seq in seqs if low <= seq <= high]
                found = [(_first_above(entry, seq - 1), seq) for seq in deleted]
                return {*lost, *(place for place, seq in found if entry[place] == seq)}
        return {place for place in places if self._is_dead(entry[place])}

    def _is_dead(self, seq: int) -> bool:
        if seq in self._dead or seq in self._aging:
            return True
        return self._suspects_holes and bool(self._losses.inside_holes(seq, seq))

    # -- dead records ------------------------------------------------------------------------------------------------

    def died(self, tagged: int) -> None:
        """Note that so many records with a tag have died below the front."""
        self.garbage += tagged

    def deleted(self, seqs: Iterable[int], tagged: int) -> None:
        """Note that records were deleted; `tagged` of them had a tag."""
        if tagged:
            self._dead.update(seqs)
            self.garbage += tagged

    def lost(self) -> None:
        """Note that records have become part of a hole."""
        self._suspects_holes = True
        self.garbage += _SWEEP_MIN

    def sweep(self, deaths: int, front: int) -> None:
        """Drop a share of the dead records, which grows with the `deaths` of this moment, if there are many. Deaths of
        records without a tag count: the table does not know which of the deleted ones had one."""
        if self._cursor is None:
            if not self.littered:
                return
            self._aging |= self._dead
            self._dead = set()
            self.garbage = 0
        names = min(SWEEP_NAMES, max(_NAMES_PER_DEATH * deaths, _NAMES_PER_DEATH))
        visited = list(islice(self._entries.irange(self._cursor, inclusive=(False, True)), names))
        for name in visited:
            if self._live(name, front) is None:
                del self._entries[name]
        if len(visited) == names:
            self._cursor = visited[-1]
            return
        self._cursor = None
        self._aging = set()
        if not self.garbage:
            self._suspects_holes = False

    @property
    def littered(self) -> bool:
        """Return True if `sweep` has something to do."""
        dead = max(self.garbage, len(self._dead))  # those without a tag take room as well
        return self._cursor is not None or (dead >= _SWEEP_MIN and dead * _SWEEP_SHARE >= len(self._entries))

    def check(self, live: Mapping[str, Sequence[int]], front: int) -> None:
        """Assert that the table has exactly these published records, by tag."""
        known = {name: [one.seq for one in self.records(name, front)] for name in self.names()}
        assert {name: seqs for name, seqs in known.items() if seqs} == {name: list(seqs) for name, seqs in live.items()}


def add_record(records: dict[str, TableEntry], tag: str, record: KeptRecord) -> None:
    """Add a record, newer than all others of its tag, to the records that a `KeptTags` is made of."""
    packed = record.seq << _SEQ_SHIFT | record.size << 1 | record.is_null
    records[tag] = _merged(records.get(tag), (packed,), 0)


def _merged(entry: TableEntry | None, new: Sequence[int], gone_to: int) -> TableEntry:
    """Return an entry with new records behind its own, without those up to a seq. An entry is changed in place."""
    if isinstance(entry, int):
        if not new:
            return entry
        entry = None if entry >> _SEQ_SHIFT <= gone_to else array("Q", (1, entry >> _SEQ_SHIFT, entry & _INFO))
    if entry is None:
        if len(new) == 1:
            return new[0]
        entry = array("Q", (1,))
    for record in new:
        entry.append(record >> _SEQ_SHIFT)
        entry.append(record & _INFO)
    at = _first_above(entry, gone_to)
    if len(entry) - at == 2:
        return entry[at] << _SEQ_SHIFT | entry[at + 1]
    entry[0] = at
    if 2 * at > len(entry):  # so that each item is moved once on average
        entry = array("Q", [1, *entry[at:]])
    return entry


def _first_above(entry: array[int], seq: int) -> int:
    """Return where the first record above a seq is in an entry; the end of the entry if there is none."""
    places = range(entry[0], len(entry), 2)
    at = bisect_right(places, seq, key=entry.__getitem__)
    return places[at] if at < len(places) else len(entry)


def _chained(oldest: Iterable[int], pending: Sequence[int], begin: int) -> Iterator[int]:
    """Yield records, the oldest first. Takes no slice: mostly one of very many is wanted."""
    yield from oldest
    yield from map(pending.__getitem__, range(begin, len(pending)))


def _unpacked(record: int) -> KeptRecord:
    return KeptRecord(record >> _SEQ_SHIFT, (record & _INFO) >> 1, bool(record & 1))
