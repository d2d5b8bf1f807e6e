"""Which jobs of a queue may be claimed where those of one key are claimed one at a time, in the order of their seqs
(`docs/design/key_order.md`). Pure.

The jobs that are known here are the unfinished ones up to `looked_to`. Those of one key are a line, of which only the
first may be claimed. It keeps its place in every state: leased, delayed or parked. Jobs without a key are in no line. A
heap has every job that may be claimed, the smallest seq first. It may also have others: `next` tells them apart when it
comes to them, so that a change of a job costs O(log) at most.

Keys are kept as their hashes, 64 bits of them. Two keys with one hash would be in one line, which holds one of them up
needlessly and never breaks the order.

A claim that may have nothing fresh puts the fresh jobs that it meets into a second heap (`set_aside`), where claims of
the same kind do not meet them again.

Nothing of this is stored. It is made again from the live records, of which `looked_to` is told in the order of their
seqs. Jobs that are held when that begins (`unsure`) may be out of order, because there was another order before, or
none. They are told first (`add_held`), and hold up their keys until they are not held any more.

Memory: 16 bytes for a job among neighbours, about 200 more for each key; at most `MOST_KNOWN` jobs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, Literal, NamedTuple

KeyField = Literal["tag", "node"]


class KeyTerms(NamedTuple):
    """The bound of the jobs of one key: one at a time in the order of their seqs (`most` is 0), or at most `most` of
    them at a time (`key_limit`). `by` is the field that is the key of a record."""

    by: KeyField
    most: int = 0


MOST_KNOWN: Final = 1_000_000
"""Unfinished jobs that are looked at. Beyond, claims get nothing that was never claimed until some are finished. With
so many known jobs of 10,000 keys the order takes 20 MB."""

_PAGE: Final = 256
UNKNOWN: Final = 0
KEYLESS: Final = 1

# A line gives back the room of finished jobs at its front once there are so many, and no fewer than of the others.
_FINISHED: Final = 1024


class _HashPage:
    """The keys of `_PAGE` neighbouring seqs, as hashes, and how many of them are known."""

    __slots__ = ("keys", "known")

    def __init__(self) -> None:
        self.keys = array("q", bytes(8 * _PAGE))
        self.known = 0

    def put(self, slot: int, key: int) -> None:
        """Note the key of a job that was not known."""
        self.keys[slot] = key
        self.known += 1


class _Line:
    """The unfinished jobs of one key from `start` on, ascending. `dead` of them have been finished out of order."""

    __slots__ = ("dead", "seqs", "start")

    def __init__(self, seqs: array[int]) -> None:
        self.seqs = seqs
        self.start = 0
        self.dead = 0


class KeyOrder:
    """The lines of one queue. `by` is the field that is the key of a record; `held` are the seqs that are held when the
    order begins."""

    __slots__ = (
        "_aside",
        "_floor",
        "_holders",
        "_keys_of_held",
        "_lines",
        "_pages",
        "_ready",
        "by",
        "known",
        "looked_to",
        "unsure",
    )

    def __init__(self, by: KeyField, held: Iterable[int] = ()) -> None:
        self.by = by
        self.looked_to = 0
        self.known = 0
        self.unsure = array("Q", sorted(held))
        self._floor = 1
        self._pages: dict[int, _HashPage] = {}
        # By key. A line of one job is only its seq.
        self._lines: dict[int, int | _Line] = {}
        self._ready: list[int] = []
        self._aside: list[int] = []
        # The jobs of `unsure` that are still held: by key, and their keys.
        self._holders: dict[int, set[int]] = {}
        self._keys_of_held: dict[int, int] = {}

    @property
    def terms(self) -> KeyTerms:
        """The terms that it was made for."""
        return KeyTerms(self.by)

    # -- looking -----------------------------------------------------------------------------------------------------

    def must_look(self, most: int, head: int) -> bool:
        """Return True if records up to `head` have to be told of before `most` jobs can be claimed."""
        if self.unsure:
            return True
        waiting = len(self._ready) + (len(self._aside) if self.first_aside is not None else 0)
        return self.looked_to < head and waiting < most and self.known < MOST_KNOWN

    def add(self, seqs: Sequence[int], keys: Iterable[str | None]) -> None:
        """Note the next live records, ascending, and their keys; None or an empty one for a record without a key."""
        pages, lines = self._pages, self._lines
        for seq, key in zip(seqs, keys, strict=True):
            number, slot = divmod(seq, _PAGE)
            page = pages.get(number)
            if page is None:
                page = pages[number] = _HashPage()
            hashed = hash_of(key)
            page.put(slot, hashed)
            if hashed == KEYLESS:
                heappush(self._ready, seq)
                continue
            line = lines.get(hashed)
            if line is None:
                lines[hashed] = seq
                heappush(self._ready, seq)
            elif isinstance(line, int):
                lines[hashed] = _Line(array("Q", (line, seq)))
            else:
                line.seqs.append(seq)
        if seqs:
            self.known += len(seqs)
            self.looked_to = seqs[-1]

    def add_held(self, seq: int, key: str | None) -> None:
        """Note the key of a job of `unsure`, which is still held."""
        hashed = hash_of(key)
        if hashed != KEYLESS:
            self._holders.setdefault(hashed, set()).add(seq)
            self._keys_of_held[seq] = hashed

    def reopen(self, seqs: Iterable[int]) -> None:
        """Note jobs that are unfinished again, after they had ended. They are in no line: those behind them may have
        ended too. Those above `looked_to` are told of later, like others (`add`)."""
        for seq in seqs:
            if seq > self.looked_to:
                continue
            if not self._key(seq):
                self.known += 1
                self._pages.setdefault(seq // _PAGE, _HashPage()).put(seq % _PAGE, KEYLESS)
            heappush(self._ready, seq)

    # -- claiming ----------------------------------------------------------------------------------------------------

    @property
    def first_aside(self) -> int | None:
        """The smallest seq that was set aside and may still be claimed. Those before it are forgotten: they have ended
        since, or will be told of when they are free (`freed`)."""
        aside = self._aside
        while aside and not self._is_first(aside[0], self._key(aside[0])):
            heappop(aside)
        return aside[0] if aside else None

    def set_aside(self, seq: int) -> None:
        """Put back a job that `next` has returned: it is fresh, and there is no room for it."""
        heappush(self._aside, seq)

    def next(self, *, with_aside: bool = True) -> int | None:
        """Take out the smallest seq that may be claimed as far as the order goes; None if none is known. Without
        `with_aside` those that were set aside stay there.

        The caller claims it, sets it aside, or drops it because it is not free; then `freed` tells when it is free.
        """
        heaps = (self._ready, self._aside) if with_aside else (self._ready,)
        while any(heaps):
            seq = min(heap[0] for heap in heaps if heap)
            for heap in heaps:
                while heap and heap[0] == seq:
                    heappop(heap)
            if self._is_first(seq, key := self._key(seq)):
                holders = self._holders.get(key)
                if not holders or holders == {seq}:
                    return seq
        return None

    # -- what happens to jobs ----------------------------------------------------------------------------------------

    def freed(self, seqs: Iterable[int]) -> None:
        """Note jobs that are not held any more, and may be free."""
        for seq in seqs:
            if seq in self._keys_of_held:
                self._let_go(seq)
            if self._is_first(seq, self._key(seq)):
                heappush(self._ready, seq)

    def ended(self, seqs: Iterable[int]) -> None:
        """Forget jobs that are finished, or whose records are gone."""
        for seq in seqs:
            if seq in self._keys_of_held:
                self._let_go(seq)
            key = self._forget(seq)
            if key in (UNKNOWN, KEYLESS):
                continue
            line = self._lines[key]
            if isinstance(line, int):
                del self._lines[key]
            elif line.seqs[line.start] == seq:
                line.start += 1
                self._tidy(key, line)
            else:
                line.dead += 1
                if 2 * line.dead > len(line.seqs) - line.start:
                    line.seqs = array("Q", [one for one in line.seqs[line.start :] if self._key(one)])
                    line.start = line.dead = 0
                    self._tidy(key, line, is_new=False)

    def ended_below(self, floor: int) -> None:
        """Forget all jobs below `floor`. O(known jobs below it)."""
        gone: Counter[int] = Counter()
        begin, self._floor = self._floor, max(floor, self._floor)
        first, last = begin // _PAGE, floor // _PAGE
        numbers: Iterable[int] = range(first, last)
        if last - first > len(self._pages):
            numbers = [number for number in self._pages if number < last]
        for number in numbers:
            page = self._pages.pop(number, None)
            if page is not None:
                gone.update(page.keys)
                self.known -= page.known
        begin = max(begin, last * _PAGE)
        if last in self._pages and any(self._pages[last].keys[begin - last * _PAGE : floor - last * _PAGE]):
            gone.update([self._forget(seq) for seq in range(begin, floor)])
        for seq in [seq for seq in self._keys_of_held if seq < floor]:
            self._let_go(seq)
        if not gone:
            return
        del gone[UNKNOWN], gone[KEYLESS]
        for key, count in gone.items():
            line = self._lines[key]
            if isinstance(line, int):
                del self._lines[key]
                continue
            start = bisect_left(line.seqs, floor, line.start)
            line.dead -= start - line.start - count
            line.start = start
            self._tidy(key, line)

    def known_between(self, first: int, last: int) -> list[int]:
        """Return the known jobs from `first` to `last`."""
        numbers = range(first // _PAGE, last // _PAGE + 1)
        among = [n for n in self._pages if n in numbers] if len(numbers) > len(self._pages) else numbers
        seqs = [number * _PAGE + slot for number in among if number in self._pages for slot in range(_PAGE)]
        return [seq for seq in seqs if first <= seq <= last and self._key(seq)]

    # -- checks ------------------------------------------------------------------------------------------------------

    def check(self, is_free: Callable[[int], bool]) -> None:
        """Assert every invariant. `is_free` is true of a job that nothing but the order could keep from being claimed.
        O(n)."""
        lines: dict[int, list[int]] = {}
        ready = {*self._ready, *self._aside}
        known = 0
        for number, page in sorted(self._pages.items()):
            seqs = [number * _PAGE + slot for slot in range(_PAGE) if page.keys[slot]]
            assert page.known == len(seqs) > 0, number
            known += len(seqs)
            for seq in seqs:
                assert self._floor <= seq <= self.looked_to, (self._floor, seq, self.looked_to)
                if self._key(seq) != KEYLESS:
                    lines.setdefault(self._key(seq), []).append(seq)
                elif is_free(seq):
                    assert seq in ready, seq
        assert known == self.known
        assert lines.keys() == self._lines.keys()
        for key, seqs in lines.items():
            line = self._lines[key]
            if isinstance(line, int):
                assert [line] == seqs
            else:
                assert [seq for seq in line.seqs[line.start :] if self._key(seq)] == seqs
                assert len(seqs) + line.dead == len(line.seqs) - line.start
                assert line.seqs[line.start] == seqs[0]
            others = self._holders.get(key, set()) - {seqs[0]}
            assert seqs[0] in ready or others or not is_free(seqs[0]), seqs[0]
        assert self._keys_of_held == {seq: key for key, held in self._holders.items() for seq in held}

    # -- within ------------------------------------------------------------------------------------------------------

    def _key(self, seq: int) -> int:
        page = self._pages.get(seq // _PAGE)
        return UNKNOWN if page is None else page.keys[seq % _PAGE]

    def _is_first(self, seq: int, key: int) -> bool:
        if key in (UNKNOWN, KEYLESS):
            return key == KEYLESS
        return self._first(key) == seq

    def _first(self, key: int) -> int | None:
        line = self._lines.get(key)
        return line.seqs[line.start] if isinstance(line, _Line) else line

    def _forget(self, seq: int) -> int:
        """Forget the key of a job. Return it."""
        number, slot = divmod(seq, _PAGE)
        page = self._pages.get(number)
        if page is None or not (key := page.keys[slot]):
            return UNKNOWN
        page.keys[slot] = UNKNOWN
        page.known -= 1
        self.known -= 1
        if not page.known:
            del self._pages[number]
        return key

    def _tidy(self, key: int, line: _Line, *, is_new: bool = True) -> None:
        """Put a line in order whose first jobs are finished. `is_new`: it has another first one."""
        seqs, start = line.seqs, line.start
        while start < len(seqs) and not self._key(seqs[start]):
            start += 1
            line.dead -= 1
        line.start = start
        if start == len(seqs):
            del self._lines[key]
            return
        if is_new:
            heappush(self._ready, seqs[start])
        if start == len(seqs) - 1:
            self._lines[key] = seqs[start]
        elif start >= _FINISHED and 2 * start >= len(seqs):
            del seqs[:start]
            line.start = 0

    def _let_go(self, seq: int) -> None:
        """Note that a job that was held when the order began is not held any more."""
        key = self._keys_of_held.pop(seq)
        holders = self._holders[key]
        holders.remove(seq)
        if not holders:
            del self._holders[key]
        first = self._first(key)
        if first is not None:
            heappush(self._ready, first)


def hash_of(key: str | None) -> int:
    """Return the hash of a key, `KEYLESS` for None or an empty one."""
    if not key:
        return KEYLESS
    hashed = hash(key)
    return hashed if hashed not in (UNKNOWN, KEYLESS) else 2
