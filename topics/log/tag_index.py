"""Which records have which tag: the ordered index that deletions by match use (`docs/spec/semantics.md` section 4).

Theory of operation
-------------------
The *postings* of a tag are the seqs of its records, ascending: a plain int while there is one, an array of u64 from the
second on. So a topic costs an object per distinct tag and none per record. Beside the postings, names are kept in order
in *runs*: sorted lists of some thousand each. The newest names wait unsorted until there are enough for a run. Finding
a prefix is a binary search in each run; adding a tag costs an append and its share of a short sort, with any number of
tags. (A sorted container with one insertion per name costs five times as much; one sorted on demand would block the
loop.)

Postings of dead records stay until `sweep` removes them, so callers of `find` filter its answer. The same goes for
postings below the seq from which tags are found in segment files. The owner counts stale postings (`garbage`) and calls
`sweep` a little at a time.

The sweep asks the owner which records are dead. The owner cannot always tell: where columns are not loaded, it keeps
everything. So a whole round of the sweep may remove nothing, and the next would not either. That garbage is `stuck`
until a round succeeds or the owner has loaded more columns.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, Protocol

from topics.log.dumped_values import from_little_endian, little_endian
from topics.log.tag_match import TagMatch

# Names of a run. Sorting so many takes about a millisecond; ten million tags make 2,500 runs, which are searched in a
# few milliseconds.
RUN_NAMES = 4096

# Postings of one tag that a sweep examines at a time, and how many of them cost as much as visiting a name.
_CHUNK: Final = 4096
_POSTINGS_PER_UNIT: Final = 8


class Postings(NamedTuple):
    """The postings of a tag: items `start` to `end` (exclusive) of `seqs`, ascending."""

    seqs: array[int]
    start: int
    end: int


class PostingsSource(Protocol):
    """An index that finds the postings of tags."""

    def postings_of(self, match: TagMatch, most: int) -> list[Postings] | None:
        """Return the postings of each matching tag, None if more than `most` match."""
        ...


def postings_of(source: PostingsSource, matches: Iterable[TagMatch], most: int) -> list[Postings] | None:
    """Return the postings of each tag that matches one of `matches`, some perhaps more than once. None if more than
    `most` tags match."""
    found: list[Postings] = []
    for match in matches:
        more = source.postings_of(match, most - len(found))
        if more is None:
            return None
        found += more
    return found


def merged_from(parts: Sequence[Postings], first: int, most: int) -> tuple[array[int], int | None]:
    """Merge postings from `first` on: about `most` of them, but some of each part. Return them, ascending, and the seq
    up to which they are all of them; None if no more follow."""
    per_part = max(16, most // max(1, len(parts)))
    found: list[int] = []
    known_to: int | None = None
    for seqs, start, end in parts:
        at = bisect_left(seqs, first, start, end)
        to = min(end, at + per_part)
        found += seqs[at:to]
        if to < end and (known_to is None or seqs[to - 1] < known_to):
            known_to = seqs[to - 1]
    found = sorted(set(found)) if len(parts) > 1 else found
    return array("Q", found if known_to is None else found[: bisect_right(found, known_to)]), known_to


class TagIndex:
    """Tag to ascending seqs. `postings` counts all of them, `garbage` those that the owner reported as stale, `stuck`
    the part of the garbage that sweeping cannot find for now."""

    __slots__ = (
        "_fresh",
        "_name_at",
        "_posting_at",
        "_run_at",
        "_runs",
        "_seqs",
        "_swept",
        "garbage",
        "postings",
        "stuck",
    )

    def __init__(self) -> None:
        self._seqs: dict[str, int | array[int]] = {}
        # Every name of `_seqs` is in `_fresh` or in exactly one run, and nothing else is.
        self._fresh: list[str] = []
        self._runs: list[list[str]] = []
        # Where the next call of `sweep` continues.
        self._run_at = self._name_at = self._posting_at = 0
        # True if this round of the sweep has removed anything.
        self._swept = False
        self.postings = 0
        self.garbage = 0
        self.stuck = 0

    def __len__(self) -> int:
        """The number of distinct tags."""
        return len(self._seqs)

    def add_batch(self, first_seq: int, tags: Sequence[str | None]) -> None:
        """Add the tags of the records from `first_seq` on (None = no tag). All seqs in the index are below
        `first_seq`."""
        seqs, fresh = self._seqs, self._fresh
        n = len(tags)
        if n > 1 and tags[0] is not None and tags.count(tags[0]) == n:
            self._add_range(tags[0], first_seq, n)
        else:
            for seq, tag in enumerate(tags, first_seq):
                if tag is not None:
                    known = seqs.get(tag)
                    if known is None:
                        seqs[tag] = seq
                        fresh.append(tag)
                    elif isinstance(known, int):
                        seqs[tag] = array("Q", (known, seq))
                    else:
                        known.append(seq)
            n -= tags.count(None)
        self.postings += n
        if len(fresh) >= RUN_NAMES:
            fresh.sort()
            self._runs += [fresh[i : i + RUN_NAMES] for i in range(0, len(fresh), RUN_NAMES)]
            self._fresh = []

    def _add_range(self, tag: str, first_seq: int, n: int) -> None:
        new = array("Q", range(first_seq, first_seq + n))
        known = self._seqs.get(tag)
        if known is None:
            self._seqs[tag] = new
            self._fresh.append(tag)
        elif isinstance(known, int):
            new.insert(0, known)
            self._seqs[tag] = new
        else:
            known.extend(new)

    def items(self) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield every tag with its postings, in no order."""
        for name, known in self._seqs.items():
            yield name, (known,) if isinstance(known, int) else known

    def names(self) -> list[str]:
        """Return all tags, in no order."""
        return list(self._seqs)

    def find(self, match: TagMatch, lo: int, hi: int) -> array[int]:
        """Return the postings from `lo` to `hi` (inclusive) of matching tags, ascending. Stale ones may be among
        them."""
        if not match.prefix:
            return self._between(match.pattern, lo, hi)
        parts = [part for name in self._names(match) if (part := self._between(name, lo, hi))]
        if len(parts) == 1:
            return parts[0]
        merged = [seq for part in parts for seq in part]
        merged.sort()
        return array("Q", merged)

    def postings_of(self, match: TagMatch, most: int) -> list[Postings] | None:
        """Return the postings of each matching tag, None if more than `most` match. Stale ones may be among them."""
        if match.prefix and sum(to - at for run in self._runs for at, to in [_range_of(run, match.pattern)]) > most:
            return None
        names = self._names(match) if match.prefix else [match.pattern]
        if len(names) > most:
            return None
        found = []
        for name in names:
            known = self._seqs.get(name)
            if known is not None:
                seqs = array("Q", (known,)) if isinstance(known, int) else known
                found.append(Postings(seqs, 0, len(seqs)))
        return found

    def _names(self, match: TagMatch) -> list[str]:
        prefix = match.pattern
        names = [name for name in self._fresh if name.startswith(prefix)]
        for run in self._runs:
            at, to = _range_of(run, prefix)
            names += run[at:to]
        return names

    def _between(self, name: str, lo: int, hi: int) -> array[int]:
        known = self._seqs.get(name)
        if known is None:
            return array("Q")
        if isinstance(known, int):
            return array("Q", (known,) if lo <= known <= hi else ())
        return known[bisect_left(known, lo) : bisect_right(known, hi)]

    def last(self, name: str) -> int:
        """Return the last posting of a tag, 0 if it has none. It may be stale."""
        known = self._seqs.get(name, 0)
        return known if isinstance(known, int) else known[-1]

    def before(self, name: str, lo: int, hi: int, most: int) -> array[int]:
        """Return the last postings of a tag from `lo` to below `hi`, at most `most`, ascending. Stale ones may be among
        them."""
        known = self._seqs.get(name)
        if known is None or isinstance(known, int):
            return self._between(name, lo, hi - 1)
        end = bisect_left(known, hi)
        return known[max(bisect_left(known, lo, 0, end), end - most) : end]

    def sweep(self, units: int, front: int, only_live: Callable[[array[int]], array[int]] | None) -> None:
        """Drop stale postings, continuing where the last call stopped.

        The cost is bounded by `units` (about a microsecond each) and one chunk or run. Every posting below `front` is
        stale. `only_live` filters ascending seqs and keeps those that it cannot judge; None if every seq from `front`
        on is live.
        """
        if self._run_at >= len(self._runs):
            self._run_at = self._name_at = self._posting_at = 0
            self._absorb_fresh()
        while units > 0 and self._run_at < len(self._runs):
            run = self._runs[self._run_at]
            if self._name_at >= len(run):
                self._next_run()
                continue
            if only_live is None and self._name_at == self._posting_at == 0:
                units -= self._sweep_run(run, front)
            else:
                units -= self._sweep_name(run, front, only_live)
        if self._run_at >= len(self._runs):
            self.stuck = 0 if self._swept else self.garbage
            self._swept = False

    def _sweep_run(self, run: list[str], front: int) -> int:
        """Drop the postings below `front` of a whole run, whose other postings are all live. Return the units it cost.

        Ten times as fast per name as one by one, because nothing is deleted from the middle of a list.
        """
        seqs = self._seqs
        kept = []
        removed, cost = 0, 1 + len(run) // 4
        for name in run:
            known = seqs[name]
            if isinstance(known, int):
                if known >= front:
                    kept.append(name)
                else:
                    del seqs[name]
                    removed += 1
                continue
            stale = bisect_left(known, front)
            cost += 1 + len(known) // _CHUNK
            removed += stale
            if stale == len(known):
                del seqs[name]
                continue
            kept.append(name)
            if stale:
                seqs[name] = known[stale:]
        if removed:
            self._removed(removed)
        run[:] = kept
        self._name_at = len(kept)
        return cost

    def _sweep_name(self, run: list[str], front: int, only_live: Callable[[array[int]], array[int]] | None) -> int:
        """Sweep one name, or one chunk of its postings. Return the units it cost."""
        name = run[self._name_at]
        known = self._seqs[name]
        if isinstance(known, int):
            if known >= front and (only_live is None or only_live(array("Q", (known,)))):
                self._name_at += 1
            else:
                self._removed(1)
                self._drop_name(run)
            return 1
        if self._posting_at == 0:
            stale = bisect_left(known, front)
            if stale:
                # A slice, because deleting in place would leave the array allocated at its old length.
                known = self._seqs[name] = known[stale:]
                self._removed(stale)
        cost = 1
        if only_live is None:
            self._posting_at = len(known)
        else:
            chunk = known[self._posting_at : self._posting_at + _CHUNK]
            kept = only_live(chunk)
            if len(kept) != len(chunk):
                known[self._posting_at : self._posting_at + _CHUNK] = kept
                self._removed(len(chunk) - len(kept))
            self._posting_at += len(kept)
            cost += len(chunk) // _POSTINGS_PER_UNIT
        if not known:
            self._drop_name(run)
        elif self._posting_at >= len(known):
            self._posting_at = 0
            self._name_at += 1
        return cost

    def _removed(self, n: int) -> None:
        self.postings -= n
        self.garbage -= n
        self.stuck = 0
        self._swept = True

    def _drop_name(self, run: list[str]) -> None:
        # From both at once: a name that is added again between two calls of `sweep` must not be in two runs.
        del self._seqs[run[self._name_at]]
        del run[self._name_at]
        self._posting_at = 0

    def _next_run(self) -> None:
        """Finish a run: join it to the one before while both are small, so that runs stay few."""
        at = self._run_at
        run = self._runs[at]
        if not run:
            del self._runs[at]
        elif at and len(self._runs[at - 1]) + len(run) <= RUN_NAMES:
            self._runs[at - 1] += run
            self._runs[at - 1].sort()
            del self._runs[at]
        else:
            self._run_at += 1
        self._name_at = 0

    def _absorb_fresh(self) -> None:
        if self._fresh:
            self._fresh.sort()
            self._runs.append(self._fresh)
            self._fresh = []

    def dump(self) -> dict[str, Any]:
        """Return names, postings per name (u32) and all postings in that order (u64), for `load`."""
        counts: array[int] = array("I")
        seqs: array[int] = array("Q")
        for known in self._seqs.values():
            if isinstance(known, int):
                counts.append(1)
                seqs.append(known)
            else:
                counts.append(len(known))
                seqs.extend(known)
        return {"names": list(self._seqs), "counts": little_endian(counts), "seqs": little_endian(seqs)}

    @classmethod
    def load(cls, value: object) -> TagIndex:
        """Rebuild the index, without `garbage`, from what `dump` returned. Raises ValueError if `value` is no such
        dump."""
        if not isinstance(value, Mapping):
            raise ValueError("tag index: not a map")
        names = value.get("names")
        counts = from_little_endian("I", value.get("counts"))
        seqs = from_little_endian("Q", value.get("seqs"))
        if not isinstance(names, list | tuple) or len(names) != len(counts) or sum(counts) != len(seqs):
            raise ValueError("tag index: names, counts and seqs do not fit")
        index = cls()
        at = 0
        for name, count in zip(names, counts, strict=True):
            if not isinstance(name, str) or name in index._seqs or count == 0:
                raise ValueError(f"tag index: bad name {name!r}")
            index._seqs[name] = seqs[at] if count == 1 else seqs[at : at + count]
            at += count
        ordered = sorted(index._seqs)
        index._runs = [ordered[i : i + RUN_NAMES] for i in range(0, len(ordered), RUN_NAMES)]
        index.postings = len(seqs)
        return index

    def check(self) -> None:
        """Assert that names and postings are ordered, unique and counted."""
        names = [name for run in self._runs for name in run]
        assert all(run == sorted(run) for run in self._runs)
        assert len(names) + len(self._fresh) == len(self._seqs) == len({*names, *self._fresh})
        total = 0
        for name in self._seqs:
            known = self._between(name, 0, 2**64)
            assert known, name
            assert all(a < b for a, b in pairwise(known)), name
            total += len(known)
        assert total == self.postings
        assert 0 <= self.stuck <= self.garbage <= self.postings


def _range_of(run: list[str], prefix: str) -> tuple[int, int]:
    """Return where the names with this prefix are in a sorted list: the first, and the one behind the last."""
    at = bisect_left(run, prefix)
    # They are together, and begin at the first name that is not below the prefix.
    return at, bisect_left(run, True, at, key=lambda name: not name.startswith(prefix))
