"""The idempotency keys that a topic remembers, and the append that each stands for (`docs/spec/api.md` section 1,
"Idempotency").

Only published appends are in here. The engine takes care of a repeat that arrives while the first call is still
committing, and of the limit on the number of keys in all topics together.

Theory of operation
-------------------
Keys are in pages of `PAGE_KEYS`, in the order of their commits; a dict says where each key is. A full page never
changes and is encoded once, so a checkpoint of a million keys takes about a thousand references and one encoding, and
not a million entries. Keys are forgotten from the front. A key that is used again after its window is in two places;
the dict has the newer one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, Final

from topics.log.dumped_values import from_little_endian, little_endian

PAGE_KEYS: Final = 1024
"""Keys of a full page."""

FORGOTTEN_AT_ONCE: Final = 2048
"""Keys that one call of `expire` forgets at most: less than a millisecond. The caller calls again for the rest."""

_NO_VALUE: Final = 1 << 63


class _KeyPage:
    """Up to `PAGE_KEYS` keys in the order of their times, each with its append."""

    __slots__ = ("ats", "counts", "encoded", "firsts", "keys")

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.firsts = array("Q")
        self.counts = array("Q")
        self.ats = array("Q")
        self.encoded = b""
        """The encoding of a full page, once `dump` has made it."""

    def add(self, key: str, first_seq: int, count: int, at: int) -> None:
        self.keys.append(key)
        self.firsts.append(first_seq)
        self.counts.append(count)
        self.ats.append(at)

    def encode(self, start: int = 0) -> bytes:
        """Return the entries from slot `start` on: their number (u32), the length of each key (u32), first seqs, counts
        and times (u64), the keys."""
        keys = [key.encode() for key in self.keys[start:]]
        columns = [array("I", [len(keys), *map(len, keys)])]
        columns += (column[start:] for column in (self.firsts, self.counts, self.ats))
        return b"".join([*map(little_endian, columns), *keys])

    @classmethod
    def decode(cls, value: bytes) -> _KeyPage:
        """Return the page that `encode` made `value` from. Raises ValueError if it did not."""
        count = int.from_bytes(value[:4], "little")
        first = 4 + 4 * count
        begin = first + 3 * 8 * count
        if not 0 < count <= PAGE_KEYS or len(value) < begin:
            raise ValueError("dedupe window: not a page")
        page = cls()
        page.firsts, page.counts, page.ats = (
            from_little_endian("Q", value[at : at + 8 * count]) for at in range(first, begin, 8 * count)
        )
        ends = list(accumulate(from_little_endian("I", value[4:first]), initial=begin))
        if ends[-1] != len(value):
            raise ValueError("dedupe window: a page whose keys do not fit")
        page.keys = [value[a:b].decode() for a, b in pairwise(ends)]
        if max(*page.firsts, *page.counts, *page.ats) >= _NO_VALUE:
            raise ValueError("dedupe window: a page with values out of range")
        if not all(page.firsts) or any(a > b for a, b in pairwise(page.ats)):
            raise ValueError("dedupe window: a malformed page")
        return page


class DedupeWindow:
    """Idempotency keys in the order of their commits. Times are ms of the window clock (`topics.runtime.window_clock`),
    which never steps.

    The length of the window is an argument of each call, because a config change applies at once to the keys already
    remembered.
    """

    __slots__ = ("_forgotten", "_next_page", "_pages", "_places")

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        """The place of each key: the number of its page times `PAGE_KEYS`, plus its slot."""
        self._pages: dict[int, _KeyPage] = {}
        """The pages by number, ascending; none is empty."""
        self._next_page = 0
        self._forgotten = 0
        """How many slots of the first page are forgotten."""

    def __len__(self) -> int:
        return len(self._places)

    @property
    def last_at(self) -> int:
        """When the newest key was remembered (ms of the window clock); 0 if there is none."""
        return self._pages[self._next_page - 1].ats[-1] if self._pages else 0

    def remember(self, key: str, first_seq: int, count: int, at: int) -> None:
        """Remember that the append under `key` was committed at `at` with seqs `first_seq` to `first_seq + count - 1`,
        or, with a count of 0, stored nothing.

        A key that is known already (its window is over, or replay repeats a frame) stands for this append from now on.
        """
        at = max(at, self.last_at)
        page = self._pages.get(self._next_page - 1)
        if page is None or len(page.keys) >= PAGE_KEYS:
            page = self._pages[self._next_page] = _KeyPage()
            self._next_page += 1
        self._places[key] = (self._next_page - 1) * PAGE_KEYS + len(page.keys)
        page.add(key, first_seq, count, at)
        if len(page.keys) == PAGE_KEYS:
            page.encoded = page.encode()

    def lookup(self, key: str, now: int, window_ms: int) -> tuple[int, int] | None:
        """Return first seq and count of the append under `key`, or None if there was none within the last `window_ms`.

        An age of exactly `window_ms` is still within the window; a window of 0 remembers nothing.
        """
        place = self._places.get(key)
        if place is None:
            return None
        number, slot = divmod(place, PAGE_KEYS)
        page = self._pages[number]
        if _is_over(page.ats[slot], now, window_ms):
            return None
        return page.firsts[slot], page.counts[slot]

    def expire(self, now: int, window_ms: int, most: int = FORGOTTEN_AT_ONCE) -> int:
        """Forget keys older than `window_ms`, oldest first, and return how many. At most `most` slots are looked at:
        call again until the answer is 0."""
        before, removed = len(self._places), 0
        while self._pages and removed < most:
            number = next(iter(self._pages))
            page = self._pages[number]
            start = self._forgotten
            # Times ascend within a page: the slots before `end` have expired.
            end = len(page.ats) if window_ms <= 0 else bisect_left(page.ats, now - window_ms, start)
            end = min(end, start + most - removed)
            base = number * PAGE_KEYS
            for slot in range(start, end):
                if self._places.get(page.keys[slot]) == base + slot:
                    del self._places[page.keys[slot]]
            removed += end - start
            self._forgotten = end
            if end < len(page.keys):
                break
            del self._pages[number]
            self._forgotten = 0
        return before - len(self._places)

    def dump(self) -> list[bytes]:
        """Return the pages, oldest first, for `load`. Full pages are encoded already; the first and the last are
        encoded here."""
        return list(self._encoded())

    def _encoded(self) -> Iterator[bytes]:
        forgotten = self._forgotten
        for page in self._pages.values():
            yield page.encode(forgotten) if forgotten or not page.encoded else page.encoded
            forgotten = 0

    @classmethod
    def load(cls, value: object) -> DedupeWindow:
        """Rebuild the window from what `dump` returned, or from version 1 of the snapshot: `[key, first_seq, count,
        ts]` for each key. Raises ValueError if `value` is neither."""
        if not isinstance(value, list):
            raise ValueError("dedupe window: not a list")
        window = cls()
        if value and isinstance(value[0], list):
            window._load_entries(value)
            return window
        for page in value:
            if not isinstance(page, bytes):
                raise ValueError("dedupe window: not a page")
            window._adopt(_KeyPage.decode(page), page)
        return window

    def _adopt(self, page: _KeyPage, encoded: bytes) -> None:
        if page.ats[0] < self.last_at:
            raise ValueError("dedupe window: pages out of order")
        if len(page.keys) == PAGE_KEYS:
            page.encoded = encoded
        base = self._next_page * PAGE_KEYS
        self._places.update(zip(page.keys, range(base, base + len(page.keys)), strict=True))
        self._pages[self._next_page] = page
        self._next_page += 1

    def _load_entries(self, entries: list[Any]) -> None:
        last_ts = 0
        for entry in entries:
            match entry:
                case [str(key), int(first_seq), int(count), int(ts)] if first_seq > 0 and count > 0 and ts >= last_ts:
                    self.remember(key, first_seq, count, ts)
                    last_ts = ts
                case _:
                    raise ValueError(f"dedupe window: bad entry {entry!r}")


def _is_over(at: int, now: int, window_ms: int) -> bool:
    return window_ms <= 0 or now - at > window_ms
