"""The table of a queue's jobs: its pages, which of them have free jobs, and when each has to be examined for due jobs.

Every change of a page goes through `each`. It yields pages that may be changed, and when it leaves a page it updates
the totals, the lists of pages with free jobs and the page's due times, and drops the page if it is empty. There is a
list for each *lane*, which stands for a priority (`job_pages`).

A snapshot freezes the table: the dict of pages is copied, and the *generation* goes up. Pages of an earlier generation
are shared with the frozen copy; before such a page is changed it is replaced by a copy. So the answer of `freeze` can
be read at any time, also in another thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from typing import Final

from sortedcontainers import SortedSet

from topics.queue import job_pages
from topics.queue.due_pages import DuePages
from topics.queue.job_pages import ABSENT, DELAYED, FREE, LATER, LEASED, OTHER_LANES, PLAIN, RESERVED, STATES, JobPage
from topics.queue.retry_delay import RetryDelay

# Pages whose memory one call of `let_go` gives back: 0.3 ms.
_LET_GO: Final = 256

# Later jobs of a page that are put in order at a time: 20 us, where finding the next one alone takes 15 us.
_SOON: Final = 16
# A look for the jobs in some states ends after so many pages, or so many numbers of pages that may not be kept: 0.3 ms.
_LOOK_PAGES: Final = 64
_LOOK_NUMBERS: Final = 2048


class JobTable:
    """The kept jobs of one queue. `totals` has the number of jobs in each state; its first item, for `ABSENT`, is
    meaningless."""

    __slots__ = ("_dropped", "_due", "_empty", "_free", "_generation", "_lanes", "_later", "_pages", "_soon", "totals")

    def __init__(self) -> None:
        self.totals = [0] * STATES
        self._generation = 0
        self._pages: dict[int, JobPage] = {}
        # The pages with a free job of the default priority that is not reserved, and those of other lanes.
        self._free: SortedSet[int] = SortedSet()
        self._lanes: dict[int, SortedSet[int]] = {}
        self._due = DuePages()
        # When pages have jobs whose time comes by the wall clock (epoch ms).
        self._later = DuePages()
        # Of pages that were examined for later jobs, and have not changed since: the slots of the next ones, in the
        # order of their times.
        self._soon: dict[int, bytes] = {}
        # Pages that `drop_below` dropped, kept until `let_go` frees their memory.
        self._dropped: list[JobPage] = []
        # An empty page: read, and copied, in place of every page that is not kept.
        self._empty = JobPage(0)

    def __len__(self) -> int:
        """Return how many jobs are kept."""
        return sum(self.totals[FREE:])

    @property
    def has_pages(self) -> bool:
        """Return True if a job is kept."""
        return bool(self._pages)

    # -- as it is ----------------------------------------------------------------------------------------------------

    def at(self, seq: int) -> tuple[JobPage, int]:
        """Return the page and slot of `seq`, only to be read. O(1)."""
        number, slot = divmod(seq, job_pages.PAGE)
        return self._pages.get(number, self._empty), slot

    def state(self, seq: int) -> int:
        """Return the state of `seq`, without the flag `RESERVED`."""
        number, slot = divmod(seq, job_pages.PAGE)
        return self._pages.get(number, self._empty).states[slot] & PLAIN

    def seqs_in(self, state: int) -> array[int]:
        """Return the jobs in `state`, ascending. O(pages + jobs found)."""
        out: array[int] = array("Q")
        if self.totals[state]:
            for number in sorted(number for number, page in self._pages.items() if page.counts[state]):
                out += self._pages[number].seqs_in(number, state)
        return out

    def last(self) -> int:
        """Return the highest seq that is kept; 0 if there is none. O(pages)."""
        number = max(self._pages, default=-1)
        return self._pages[number].seqs(number)[-1] if number >= 0 else 0

    def free(self, lane: int = 0) -> Iterator[tuple[JobPage, int, int]]:
        """Yield page, slot and seq of the free jobs of a lane that are not reserved, smallest seq first. Only to be
        read."""
        code = lane | FREE
        for number in self._lanes[lane] if lane else self._free:
            page = self._pages[number]
            slot = page.states.find(code)
            while slot >= 0:
                yield page, slot, number * job_pages.PAGE + slot
                slot = page.states.find(code, slot + 1)

    def other_lanes(self) -> list[int]:
        """Return the lanes with free jobs, but for that of the default priority."""
        return [lane for lane, pages in self._lanes.items() if pages] if self._lanes else []

    def runs(self, first: int, last: int, size: int) -> Iterator[array[int]]:
        """Yield the kept jobs from `first` to `last`, ascending, in arrays of about `size` or less."""
        run: array[int] = array("Q")
        for number in self._numbers(first // job_pages.PAGE, last // job_pages.PAGE + 1):
            seqs = self._pages[number].seqs(number)
            if not first <= seqs[0] <= seqs[-1] <= last:
                seqs = array("Q", [seq for seq in seqs if first <= seq <= last])
            run += seqs
            if len(run) >= size:
                yield run
                run = array("Q")
        if run:
            yield run

    def after(self, after: int, to: int, mask: bytes, most: int) -> tuple[array[int], int]:
        """Return kept jobs above `after` and up to `to` whose states `mask` has, ascending, and the seq up to which
        there are no others. It looks at as many pages as fit into a step, until it has about `most` jobs."""
        size = job_pages.PAGE
        found: array[int] = array("Q")
        if not self._pages or to <= after:
            return found, to
        first, end = (after + 1) // size, to // size + 1
        numbers: Sequence[int] = range(first, min(end, first + _LOOK_NUMBERS))
        if end - first > 4 * len(self._pages):
            numbers = nsmallest(_LOOK_PAGES, (number for number in self._pages if first <= number < end))
            end = end if len(numbers) < _LOOK_PAGES else numbers[-1] + 1
        else:
            end = numbers[-1] + 1
        pages = 0
        for number in numbers:
            page = self._pages.get(number)
            if page is None:
                continue
            found += page.seqs_among(number, mask, after + 1, to)
            pages += 1
            if pages == _LOOK_PAGES or len(found) >= most:
                end = number + 1
                break
        return found, min(to, end * size - 1)

    def among(self, first: int, last: int, mask: bytes) -> array[int]:
        """Return the seqs from `first` to `last` whose states `mask` has; those that are not kept have `ABSENT`."""
        size = job_pages.PAGE
        found: array[int] = array("Q")
        for number in range(first // size, last // size + 1):
            found += self._pages.get(number, self._empty).seqs_among(number, mask, first, last)
        return found

    def end_of_run(self, seq: int) -> int:
        """Return the first seq from `seq` on that is not kept. O(pages)."""
        number, slot = divmod(seq, job_pages.PAGE)
        while (page := self._pages.get(number)) is not None:
            end = page.states.find(ABSENT, slot)
            if end >= 0:
                return number * job_pages.PAGE + end
            number, slot = number + 1, 0
        return number * job_pages.PAGE + slot

    # -- changes -----------------------------------------------------------------------------------------------------

    def each(
        self, seqs: Iterable[int], *, add: bool = False, due_ms: int | None = None, later_ms: int | None = None
    ) -> Iterator[tuple[JobPage, int, int]]:
        """Yield page, slot and seq for each of `seqs`. The caller may change the slot, and must iterate to the end.
        Where no page is kept it gets an empty one, which it may change only with `add`.

        `due_ms` is when the changed jobs are due at the earliest, if given, and `later_ms` (epoch ms) the same of jobs
        that become later. Fast if neighbouring seqs are on the same page.
        """
        size = job_pages.PAGE
        number, page = -1, self._empty
        for seq in seqs:
            if seq // size != number:
                self._put_back(number, page, due_ms, later_ms)
                number = seq // size
                page = self._take(number, add)
            yield page, seq - number * size, seq
        self._put_back(number, page, due_ms, later_ms)

    def drop_below(self, start: int, end: int) -> None:
        """Drop all jobs below `end`, given that none is kept below `start`. O(pages between), or O(pages kept) if
        fewer."""
        last, slot = divmod(end, job_pages.PAGE)
        numbers = self._numbers(start // job_pages.PAGE, last)
        dropped = [self._pages.pop(number) for number in numbers]
        for number in numbers if self._soon else ():
            self._soon.pop(number, None)
        if dropped:
            gone = [sum(column) for column in zip(*(page.counts for page in dropped), strict=True)]
            self.totals = [total - n for total, n in zip(self.totals, gone, strict=True)]
        self._dropped += dropped
        for free in (self._free, *self._lanes.values()):
            del free[: free.bisect_left(last)]
        self._due.remove_all(numbers)
        self._later.remove_all(numbers)
        if slot and last in self._pages:
            for page, at, _ in self.each(range(max(start, last * job_pages.PAGE), end)):
                page.forget(at)

    def show_all(self, reserved: Iterable[int]) -> None:
        """Take the flag from all jobs but those of `reserved`. O(pages)."""
        for number, page in list(self._pages.items()):
            states = page.states.translate(job_pages.WITHOUT_FLAG)
            if states != page.states:
                page = self._take(number)
                page.states = states
                self._put_back(number, page, None)
        for page, slot, _ in self.each([seq for seq in sorted(reserved) if self.state(seq) != ABSENT]):
            page.reserve(slot)

    def let_go(self) -> None:
        """Free some of the memory of the pages that `drop_below` dropped, which takes longer than dropping them."""
        if self._dropped:
            del self._dropped[-_LET_GO:]

    # -- time --------------------------------------------------------------------------------------------------------

    def is_due(self, now_ms: int, wall_ms: int) -> bool:
        """Return True if a page has to be examined for due jobs. There may turn out to be none."""
        first = self._due.first()
        if first is not None and first[0] <= now_ms:
            return True
        first = self._later.first()
        return first is not None and first[0] <= wall_ms

    def next_due(self, looks: int) -> int | None:
        """Return when the next job is due (monotonic ms), None for none; an earlier time if that takes examining more
        than `looks` pages."""
        return _next(self._due, self._pages, JobPage.next_due, looks)

    def next_later(self, looks: int) -> int | None:
        """Return the time of the next job that is later (epoch ms), like `next_due`."""
        return _next(self._later, self._pages, JobPage.next_later, looks)

    def free_due(self, now_ms: int, wall_ms: int, most: int, backoff: RetryDelay | None) -> array[int]:
        """Examine the first page of those for which the table `is_due`, free up to `most` jobs that are due there, and
        return them. With a `backoff`, jobs whose leases are over are delayed instead, unless that is over too."""
        first = self._due.first()
        if first is None or first[0] > now_ms:
            return self._free_later(wall_ms, most)
        number = first[1]
        over, due_ms = self._pages[number].over(now_ms)
        if not over:
            self._due.put(number, due_ms)
            return array("Q")
        page = self._take(number)
        freed = over[:most]
        if backoff is None:
            page.free(freed)
        else:
            _back_off(page, number, freed, now_ms, backoff)
        self._put_back(number, page, None)
        if len(over) <= most:
            self._due.put(number, due_ms if backoff is None else page.next_due())
        return array("Q", [number * job_pages.PAGE + slot for slot in freed])

    def _free_later(self, wall_ms: int, most: int) -> array[int]:
        first = self._later.first()
        assert first is not None
        number = first[1]
        page, times = self._pages[number], self._pages[number].due_ms
        slots = self._soon.pop(number, b"")
        if not slots or times[slots[-1]] <= wall_ms:
            slots = page.later_slots()
        n = bisect_right(slots, wall_ms, key=times.__getitem__)
        if n > most:
            left, freed = slots[most:], slots[:most]
        else:
            left, freed = slots[n:], slots[:n]
            self._later.put(number, times[left[0]] if left else None)
        if left:
            self._soon[number] = left[:_SOON]
        if freed:
            page = self._own(number)
            page.free_later(freed)
            self.totals[FREE] += len(freed)
            self.totals[LATER] -= len(freed)
            self._list(number, page)
        return array("Q", [number * job_pages.PAGE + slot for slot in freed])

    def due_at(self, seq: int, due_ms: int) -> None:
        """Note that `seq` is due at `due_ms`, because it is no longer reserved although nothing else has changed."""
        self._due.lower(seq // job_pages.PAGE, due_ms)

    def later_at(self, seq: int, later_ms: int) -> None:
        """The same for the time (epoch ms) of a job that is later."""
        self._later.lower(seq // job_pages.PAGE, later_ms)

    # -- keeping -----------------------------------------------------------------------------------------------------

    def freeze(self) -> Mapping[int, JobPage]:
        """Return the current pages, never to change. O(pages), and each page is copied once before its next change."""
        self._generation += 1
        return self._pages.copy()

    @classmethod
    def load(cls, values: Sequence[object], shift_ms: int, latest_ms: int) -> JobTable:
        """Rebuild a table from dumped pages; see `JobPage.load`. Raises ValueError."""
        table = cls()
        last = -1
        for value in values:
            number, page, due_ms = JobPage.load(value, shift_ms, latest_ms)
            if number <= last:
                raise ValueError("lease dump: pages out of order")
            last = number
            table._pages[number] = page
            table._count(page, 1)
            table._due.put(number, due_ms)
            table._later.put(number, page.next_later())
            if page.counts[FREE]:
                table._list(number, page)
        return table

    def check(self, reserved: Mapping[int, object]) -> None:
        """Assert every invariant. `reserved` are the seqs that must have the flag if they are kept. O(n)."""
        totals = [0] * STATES
        bounds, later = self._due.bounds(), self._later.bounds()
        flagged = set()
        for number, soon in self._soon.items():
            assert soon
            assert soon == self._pages[number].later_slots()[: len(soon)], number
        for number, page in self._pages.items():
            page.check()
            assert not page.is_empty, number
            assert page.born <= self._generation, number
            totals = [a + b for a, b in zip(totals, page.counts, strict=True)]
            assert (FREE in page.states) == (number in self._free), number
            for lane in OTHER_LANES:
                assert (lane | FREE in page.states) == (number in self._lanes.get(lane, ())), (number, lane)
            due_ms = page.next_due()
            assert due_ms is None or bounds[number] <= due_ms, (number, bounds, due_ms)
            later_ms = page.next_later()
            assert later_ms is None or later[number] <= later_ms, (number, later, later_ms)
            flagged |= {number * job_pages.PAGE + i for i, state in enumerate(page.states) if state & RESERVED}
        assert totals[FREE:] == self.totals[FREE:], (totals, self.totals)
        assert flagged == {seq for seq in reserved if self.state(seq) != ABSENT}
        assert bounds.keys() | later.keys() <= self._pages.keys()
        assert self._pages.keys() >= set(self._free).union(*self._lanes.values())
        assert self._empty.is_empty
        assert not any(self._empty.states)

    # -- within ------------------------------------------------------------------------------------------------------

    def _numbers(self, first: int, end: int) -> list[int]:
        """Return the numbers of the kept pages from `first` to before `end`, ascending."""
        if end - first <= len(self._pages):
            return [number for number in range(first, end) if number in self._pages]
        return sorted(number for number in self._pages if first <= number < end)

    def _take(self, number: int, add: bool = False) -> JobPage:
        """Return a page to be changed and then given to `_put_back`. Until then it is not counted in the totals."""
        if self._soon:
            self._soon.pop(number, None)
        if number in self._pages:
            page = self._own(number)
        elif add:
            page = self._pages[number] = self._empty.copy(self._generation)
        else:
            return self._empty
        self._count(page, -1)
        return page

    def _own(self, number: int) -> JobPage:
        """Return a kept page that may be changed: no frozen copy of the table shares it."""
        page = self._pages[number]
        if page.born != self._generation:
            page = self._pages[number] = page.copy(self._generation)
        return page

    def _put_back(self, number: int, page: JobPage, due_ms: int | None, later_ms: int | None = None) -> None:
        if page is self._empty:
            return
        if page.is_empty:
            del self._pages[number]
            self._free.discard(number)
            for free in self._lanes.values() if page.mixed else ():
                free.discard(number)
            self._due.remove(number)
            self._later.remove(number)
            return
        self._count(page, 1)
        self._list(number, page)
        if due_ms is not None:
            self._due.lower(number, due_ms)
        if later_ms is not None:
            self._later.lower(number, later_ms)

    def _list(self, number: int, page: JobPage) -> None:
        """Note which lanes have free jobs on a page."""
        if FREE in page.states:
            self._free.add(number)
        else:
            self._free.discard(number)
        if not page.mixed:
            return
        for lane in OTHER_LANES:
            if lane | FREE in page.states:
                self._lanes.setdefault(lane, SortedSet()).add(number)
            elif lane in self._lanes:
                self._lanes[lane].discard(number)

    def _count(self, page: JobPage, sign: int) -> None:
        totals = self.totals
        for state, n in enumerate(page.counts):
            if n:
                totals[state] += sign * n


def _next(
    bounds: DuePages, pages: Mapping[int, JobPage], exact_of: Callable[[JobPage], int | None], looks: int
) -> int | None:
    """Return the lowest bound, corrected by examining up to `looks` pages."""
    while (first := bounds.first()) is not None and looks > 0:
        due_ms, number = first
        exact = exact_of(pages[number])
        if exact == due_ms:
            break
        bounds.put(number, exact)
        looks -= 1
    return None if first is None else first[0]


def _back_off(page: JobPage, number: int, slots: Sequence[int], now_ms: int, backoff: RetryDelay) -> None:
    """Free jobs that are due at `now_ms`; delay those whose leases have ended and whose delay has not."""
    over = []
    for slot in slots:
        until = now_ms
        if page.states[slot] & PLAIN == LEASED:
            delay_ms = backoff.delay_ms(number * job_pages.PAGE + slot, page.deliveries[slot])
            until = page.due_ms[slot] - 1 + delay_ms
        if until > now_ms:
            page.move(slot, DELAYED, until)
        else:
            over.append(slot)
    page.free(over)
