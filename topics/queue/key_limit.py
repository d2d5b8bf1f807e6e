"""Which jobs of a queue may be claimed where a number of one key are leased at a time
(`docs/design/key_order.md` section 7). Pure.

A job counts from the moment in which a claim chooses it until its lease has ended, or until it turns out that the claim
will not happen. A key with as many of these as the limit allows is full. A claim takes jobs in the order that they have
without the limit, and passes over those of full keys. It passes over each of them once: it sets it aside, into a *line*
of its key, where later claims do not meet it. There is a line for each class of jobs: those of one lane that were
claimed before, or have a priority (`job_pages`), and the fresh ones (`FRESH`). As soon as a key has room, the first job
of each of its lines is *shown*: put on a heap of its class, on which claims look first. So of the jobs of a class that
may be claimed the first is either shown, or was not come to yet. A change of a job costs O(log) for each class that its
key has.

Jobs are known here in one of four roles:

    AHEAD    fresh, and looked at; no claim has come to it yet
    LOOKED   kept and free, and looked at; it is found in the table of jobs
    ASIDE    waits in a line of its key; where it is kept, the table hides it (`JobPage.reserve`)
    HELD     counts for its key

Jobs without a key are never aside and count for nothing. Keys are kept as hashes, like those of `key_order`: two keys
with one hash share a limit.

Nothing of this is stored. Jobs that are held when it begins (`unsure`) are told first (`add_held`).

Memory: 9 bytes for a known job among neighbours, 40 more for one that waits in a line, about 400 for each key that has
jobs that wait; at most `MOST_KNOWN` known jobs.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from topics.queue.key_order import KEYLESS, UNKNOWN, KeyField, KeyTerms, hash_of

MOST_KNOWN: Final = 1_000_000
"""Known jobs: those that wait for their keys, with those that are leased. Beyond, claims get only jobs that are known,
until some of these are finished. With so many jobs of 10,000 keys the limit takes 60 MB."""

FRESH: Final = -1
"""The class of fresh jobs. That of the others is their lane."""

_PAGE: Final = 256

# A heap may have so many entries besides those that it needs before it is made anew.
_STALE: Final = 64

AHEAD: Final = 1
LOOKED: Final = 2
ASIDE: Final = 3
HELD: Final = 4


class _RolePage:
    """The roles and keys of `_PAGE` neighbouring seqs."""

    __slots__ = ("keys", "known", "roles")

    def __init__(self) -> None:
        self.keys = array("q", bytes(8 * _PAGE))
        self.roles = bytearray(_PAGE)
        self.known = 0


class _AsideLine:
    """The jobs of one key and class that are aside: a heap, in which there may be others. `shown` is the one that was
    shown last, 0 for none."""

    __slots__ = ("heap", "shown")

    def __init__(self) -> None:
        self.heap: list[int] = []
        self.shown = 0


class _KeyLines:
    """The lines of one key, by class, and how many jobs are in them."""

    __slots__ = ("jobs", "lines")

    def __init__(self) -> None:
        self.jobs = 0
        self.lines: dict[int, _AsideLine] = {}


class KeyLimit:
    """The limit of one queue: `most` jobs of each key. `by` is the field that is the key of a record; `held` are the
    seqs that are held when it begins."""

    __slots__ = (
        "_ahead",
        "_begun",
        "_floor",
        "_held",
        "_pages",
        "_ready",
        "_waiting",
        "by",
        "known",
        "looked_to",
        "most",
        "unsure",
    )

    def __init__(self, by: KeyField, most: int, held: Iterable[int] = ()) -> None:
        self.by = by
        self.most = most
        self.looked_to = 0
        """Fresh jobs up to here are known."""
        self.known = 0
        self.unsure = array("Q", sorted(held))
        self._floor = 1
        self._pages: dict[int, _RolePage] = {}
        self._held: dict[int, int] = {}
        self._waiting: dict[int, _KeyLines] = {}
        self._ready: dict[int, list[int]] = {}
        # The fresh jobs that no claim has come to: those from `_begun` on.
        self._ahead: array[int] = array("Q")
        self._begun = 0

    @property
    def terms(self) -> KeyTerms:
        """The terms that it was made for."""
        return KeyTerms(self.by, self.most)

    @property
    def is_full(self) -> bool:
        """Return True if no more jobs can be known."""
        return self.known >= MOST_KNOWN

    # -- looking -----------------------------------------------------------------------------------------------------

    def must_look(self, most: int, head: int) -> bool:
        """Return True if records up to `head` have to be told of before `most` fresh jobs can be claimed."""
        if self.unsure:
            return True
        waiting = len(self._ready.get(FRESH, ())) + len(self._ahead) - self._begun
        return self.looked_to < head and waiting < most and not self.is_full

    def add(self, seqs: Sequence[int], keys: Iterable[str | None]) -> None:
        """Note the next fresh jobs, ascending, and their keys; None or an empty one for a record without a key."""
        del self._ahead[: self._begun]
        self._begun = 0
        for seq, key in zip(seqs, keys, strict=True):
            self._put(seq, hash_of(key), AHEAD)
        self._ahead.extend(seqs)
        if seqs:
            self.looked_to = seqs[-1]

    def learn(self, seq: int, key: str | None) -> None:
        """Note the key of a job that is kept and free."""
        if not self.role_of(seq):
            self._put(seq, hash_of(key), LOOKED)

    def add_held(self, seq: int, key: str | None) -> None:
        """Note the key of a job of `unsure`, which is still held."""
        hashed = hash_of(key)
        if hashed != KEYLESS and not self.role_of(seq):
            self._put(seq, hashed, HELD)
            self._held[hashed] = self._held.get(hashed, 0) + 1

    # -- as it is ----------------------------------------------------------------------------------------------------

    def role_of(self, seq: int) -> int:
        """Return what a job is here; 0 if it is not known."""
        page = self._pages.get(seq // _PAGE)
        return 0 if page is None else page.roles[seq % _PAGE]

    def key_of(self, seq: int) -> int:
        """Return the key of a known job, as a hash."""
        page = self._pages.get(seq // _PAGE)
        return UNKNOWN if page is None else page.keys[seq % _PAGE]

    def has_room(self, key: int) -> bool:
        """Return True if one more job of a key may be claimed."""
        return key == KEYLESS or self._held.get(key, 0) < self.most

    def classes(self) -> list[int]:
        """Return the classes of which jobs are shown."""
        return [one for one, ready in self._ready.items() if ready]

    def known_between(self, first: int, last: int) -> list[int]:
        """Return the known jobs from `first` to `last`."""
        numbers = range(first // _PAGE, last // _PAGE + 1)
        among = [n for n in self._pages if n in numbers] if len(numbers) > len(self._pages) else numbers
        seqs = [number * _PAGE + slot for number in among if number in self._pages for slot in range(_PAGE)]
        return [seq for seq in seqs if first <= seq <= last and self.role_of(seq)]

    # -- claiming ----------------------------------------------------------------------------------------------------

    def first_shown(self, kind: int) -> int | None:
        """Return the first job of a class that is aside and may be claimed; None if there is none."""
        ready = self._ready.get(kind)
        while ready:
            seq = ready[0]
            key = self.key_of(seq)
            is_aside = self.role_of(seq) == ASIDE
            if is_aside and self.has_room(key):
                return seq
            heappop(ready)
            line = self._waiting[key].lines.get(kind) if is_aside else None
            if line is not None and line.shown == seq:
                line.shown = 0
        return None

    def first_ahead(self) -> int | None:
        """Return the next fresh job that no claim has come to; None if there is none."""
        while self._begun < len(self._ahead):
            seq = self._ahead[self._begun]
            if self.role_of(seq) == AHEAD:
                return seq
            self._begun += 1
        return None

    def take(self, seq: int, kind: int) -> None:
        """Count a job that may be claimed: it is about to be."""
        key = self.key_of(seq)
        if self.role_of(seq) == ASIDE:
            self._leave(seq, key, kind)
        if key == KEYLESS:
            self.forget(seq)
            return
        self._pages[seq // _PAGE].roles[seq % _PAGE] = HELD
        self._held[key] = self._held.get(key, 0) + 1
        self._show(key)

    def set_aside(self, seq: int, key: int, kind: int) -> None:
        """Let a job wait for its key. It is ahead, looked at, held or unknown."""
        if self.role_of(seq) == HELD:
            self._uncount(key)
        page = self._pages.get(seq // _PAGE)
        if page is None or not page.roles[seq % _PAGE]:
            self._put(seq, key, ASIDE)
        else:
            page.roles[seq % _PAGE] = ASIDE
        waiting = self._waiting.setdefault(key, _KeyLines())
        heappush(waiting.lines.setdefault(kind, _AsideLine()).heap, seq)
        waiting.jobs += 1
        self._show(key)

    def unlist(self, seq: int, kind: int) -> None:
        """Take a job that is shown out of a line in which it is no more."""
        line = self._waiting[self.key_of(seq)].lines[kind]
        line.shown = 0
        for heap in (line.heap, self._ready[kind]):
            while heap and heap[0] == seq:
                heappop(heap)
        self._show(self.key_of(seq))

    def drop(self, seq: int, kind: int) -> None:
        """Forget a job that is aside, and that claims have nothing to do with any more."""
        self._leave(seq, self.key_of(seq), kind)
        self.forget(seq)

    def forget(self, seq: int) -> None:
        """Forget a job that is ahead, looked at or held."""
        number, slot = divmod(seq, _PAGE)
        page = self._pages.get(number)
        if page is None or not page.roles[slot]:
            return
        page.roles[slot] = page.keys[slot] = 0
        page.known -= 1
        self.known -= 1
        if not page.known:
            del self._pages[number]

    # -- what happens to jobs ----------------------------------------------------------------------------------------

    def cancelled(self, seqs: Iterable[int]) -> None:
        """Forget those jobs that wait, because they are about to end: claims must not come to them meanwhile. Others
        count until they end."""
        self.ended([seq for seq in seqs if self.role_of(seq) != HELD])

    def freed(self, seqs: Iterable[int]) -> None:
        """Note jobs that are not held any more."""
        for seq in seqs:
            role = self.role_of(seq)
            if role in (HELD, LOOKED):
                key = self.key_of(seq)
                self.forget(seq)
                if role == HELD:
                    self._uncount(key)
                    self._show(key)

    def ended(self, seqs: Iterable[int]) -> None:
        """Forget jobs that are finished, or whose records are gone."""
        for seq in seqs:
            role, key = self.role_of(seq), self.key_of(seq)
            self.forget(seq)
            if role == HELD:
                self._uncount(key)
                self._show(key)
            elif role == ASIDE:
                self._gone(key, 1)

    def ended_below(self, floor: int) -> None:
        """Forget all jobs below `floor`. O(pages below it), and a step for each job there that does not wait."""
        gone: Counter[int] = Counter()
        begin, self._floor = self._floor, max(floor, self._floor)
        last, rest = divmod(floor, _PAGE)
        numbers: Iterable[int] = range(begin // _PAGE, last + 1)
        if len(numbers) > len(self._pages):  # type: ignore[arg-type]
            numbers = [number for number in self._pages if number <= last]
        for number in numbers:
            page = self._pages.get(number)
            if page is None:
                continue
            slots = rest if number == last else _PAGE
            self.ended([number * _PAGE + slot for slot in range(slots) if page.roles[slot] not in (0, ASIDE)])
            if number not in self._pages:
                continue
            if number < last:
                gone.update(page.keys)
                self.known -= page.known
                del self._pages[number]
            else:
                self.ended([number * _PAGE + slot for slot in range(slots) if page.roles[slot]])
        del gone[UNKNOWN]
        for key, jobs in gone.items():
            self._gone(key, jobs)

    # -- checks ------------------------------------------------------------------------------------------------------

    def aside(self) -> Iterator[int]:
        """Yield the jobs that are aside. For checks. O(n)."""
        for number, page in self._pages.items():
            yield from (number * _PAGE + slot for slot in range(_PAGE) if page.roles[slot] == ASIDE)

    def check(self, is_free: Callable[[int], bool]) -> None:
        """Assert every invariant. `is_free` is true of a job that nothing but the limit could keep from being claimed.
        O(n)."""
        assert all(is_free(seq) for seq in self.aside())
        held: Counter[int] = Counter()
        aside: dict[int, set[int]] = {}
        for number, page in self._pages.items():
            assert page.known == sum(map(bool, page.roles)) > 0, number
            for slot, role in enumerate(page.roles):
                assert bool(role) == bool(page.keys[slot]), (number, slot)
                if role == HELD:
                    held[page.keys[slot]] += 1
                elif role == ASIDE:
                    aside.setdefault(page.keys[slot], set()).add(number * _PAGE + slot)
                elif role == AHEAD:
                    assert number * _PAGE + slot in self._ahead[self._begun :], (number, slot)
        assert self.known == sum(page.known for page in self._pages.values())
        assert held == self._held
        assert aside.keys() == self._waiting.keys()
        for key, seqs in aside.items():
            waiting = self._waiting[key]
            assert waiting.jobs == len(seqs)
            assert seqs <= {seq for line in waiting.lines.values() for seq in line.heap}
            for kind, line in waiting.lines.items():
                live = [seq for seq in line.heap if seq in seqs]
                if live and self.has_room(key):
                    assert line.shown == min(live), (line.shown, live)
                    assert line.shown in self._ready[kind]

    # -- within ------------------------------------------------------------------------------------------------------

    def _put(self, seq: int, key: int, role: int) -> None:
        number, slot = divmod(seq, _PAGE)
        page = self._pages.get(number)
        if page is None:
            page = self._pages[number] = _RolePage()
        page.keys[slot], page.roles[slot] = key, role
        page.known += 1
        self.known += 1

    def _uncount(self, key: int) -> None:
        left = self._held[key] - 1
        if left:
            self._held[key] = left
        else:
            del self._held[key]

    def _leave(self, seq: int, key: int, kind: int) -> None:
        """Take a job out of its line: the first one."""
        heap = self._waiting[key].lines[kind].heap
        while self.role_of(heap[0]) != ASIDE:
            heappop(heap)
        assert heap[0] == seq, (heap[0], seq)
        self._pages[seq // _PAGE].roles[seq % _PAGE] = LOOKED
        while heap and heap[0] == seq:
            heappop(heap)
        self._gone(key, 1)

    def _gone(self, key: int, jobs: int) -> None:
        """Note that so many jobs of a key do not wait any more. They may still be in its lines."""
        waiting = self._waiting[key]
        waiting.jobs -= jobs
        if not waiting.jobs:
            del self._waiting[key]
            return
        if sum(len(line.heap) for line in waiting.lines.values()) > 2 * waiting.jobs + _STALE:
            for line in waiting.lines.values():
                line.heap = [seq for seq in line.heap if self.role_of(seq) == ASIDE]
                heapify(line.heap)
        self._show(key)

    def _show(self, key: int) -> None:
        """Show the first job of each line of a key that has room."""
        waiting = self._waiting.get(key)
        if waiting is None or not self.has_room(key):
            return
        for kind, line in list(waiting.lines.items()):
            heap = line.heap
            while heap and self.role_of(heap[0]) != ASIDE:
                heappop(heap)
            if not heap:
                del waiting.lines[kind]
            elif line.shown != heap[0]:
                line.shown = heap[0]
                ready = self._ready.setdefault(kind, [])
                heappush(ready, line.shown)
                if len(ready) > 2 * len(self._waiting) + _STALE:
                    lines = [one.lines[kind] for one in self._waiting.values() if kind in one.lines]
                    self._ready[kind] = [one.shown for one in lines if one.shown]
                    heapify(self._ready[kind])
