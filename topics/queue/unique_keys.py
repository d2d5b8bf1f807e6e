"""The unique keys of the jobs of a queue (`docs/design/unique_jobs.md`): which key belongs to which job, and how long
it is remembered. Pure.

A key is remembered while its job is there. A key with a window of its own is remembered until the window is over, also
if the job is gone. Of a key only a digest is kept. Several jobs may have the same key, because the scope of a new
record decides whether it is a duplicate.
"""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from struct import Struct
from typing import Any, Final, NamedTuple, Self

from topics.log.dumped_values import from_little_endian, little_endian
from topics.queue.shared_pages import PAGE, Frozen, SharedPages

DIGEST_BYTES: Final = 16

MOST_OF_A_KEY: Final = 1000
"""Jobs with one key that a queue remembers at most: a search looks at all of them."""

AT_ONCE: Final = 1000
"""Entries that one step forgets at most: 2 ms."""

_ENTRY: Final = Struct("<16sQI?")
"""Digest, time of the append (ms of the window clock), length of the window (ms), whether the job is gone."""

_MOST_SEQ: Final = (1 << 64) - 1


def digest_of(key: str) -> bytes:
    """Return the digest under which a key is kept. Nobody finds two keys with the same one: that takes 2**64 tries."""
    return blake2b(key.encode(), digest_size=DIGEST_BYTES).digest()


class KeyEntry(NamedTuple):
    """A remembered key. `until` is the end of its own window (ms of the window clock), 0 without one. `gone`: only the
    window is left of it."""

    seq: int
    digest: bytes
    at: int
    until: int
    gone: bool


class FirstAnswer(NamedTuple):
    """The first answer to an append under an idempotency key, as far as it is about duplicates: their places in the
    batch, and the seqs of the jobs that were there. `at`: ms of the window clock. It has stored `stored` records from
    `first_seq` on."""

    key: str
    at: int
    first_seq: int
    stored: int
    records: array[int]
    seqs: array[int]


class KeyTotal:
    """How many keys the queues remember together."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class UniqueKeys:
    """The published keys of one queue, and the answers of appends with an idempotency key that had duplicates, which
    count as one key for each duplicate. The times are of the window clock, which never steps.
    """

    __slots__ = (
        "_answers",
        "_by_key",
        "_duplicates",
        "_entries",
        "_floor",
        "_numbers",
        "_over",
        "_tidied",
        "last_seq",
        "total",
    )

    def __init__(self) -> None:
        self.total = KeyTotal()
        self.last_seq = 0
        """The last seq that ever had a key. A replay that repeats an event adds nothing twice."""
        self._entries: SharedPages[bytes] = SharedPages()
        self._by_key: dict[bytes, int | list[int]] = {}
        """The seqs of a key, ascending."""
        self._over: list[int] = []
        """A heap: when the window of each job that is gone is over, and its seq, as one number."""
        self._floor = 1
        """Jobs below it are gone."""
        self._tidied = 1
        """Those below this one have been seen by `tidy`."""
        self._answers: SharedPages[FirstAnswer] = SharedPages()
        self._numbers: dict[str, int] = {}
        """The numbers of the answers, by idempotency key; numbers ascend with time."""
        self._duplicates = 0
        """In all answers."""

    def __len__(self) -> int:
        return len(self._entries) + self._duplicates

    def join(self, total: KeyTotal) -> None:
        """Count the keys in another total from here on."""
        self.total.count -= len(self)
        self.total = total
        total.count += len(self)

    # -- asking ------------------------------------------------------------------------------------------------------

    def of(self, digest: bytes) -> Iterator[KeyEntry]:
        """Yield the entries under a digest, the newest first."""
        seqs = self._by_key.get(digest)
        if seqs is None:
            return
        for seq in (seqs,) if isinstance(seqs, int) else reversed(seqs):
            packed = self._entries.get(seq)
            assert packed is not None
            _, at, window_ms, gone = _ENTRY.unpack(packed)
            yield KeyEntry(seq, digest, at, at + window_ms if window_ms else 0, gone or seq < self._floor)

    def count_of(self, digest: bytes) -> int:
        """Return how many jobs are remembered under a digest."""
        seqs = self._by_key.get(digest, ())
        return 1 if isinstance(seqs, int) else len(seqs)

    def answer(self, key: str) -> FirstAnswer | None:
        """Return what the append under an idempotency key was told of its duplicates; None if it had none."""
        number = self._numbers.get(key)
        return None if number is None else self._answers.get(number)

    def runs(self, first: int, last: int = _MOST_SEQ) -> Iterator[array[int]]:
        """Yield the jobs with a key from `first` to `last` that are not known to be gone, ascending, some at a
        time."""
        for run in self._entries.runs(first, last):
            seqs = array("Q", [seq for seq in run if seq >= self._floor and not self._is_gone(seq)])
            if seqs:
                yield seqs

    # -- changes -----------------------------------------------------------------------------------------------------

    def add(self, seqs: Iterable[int], digests: bytes, windows: Iterable[int], at: int) -> None:
        """Remember the keys of new jobs, which were appended at `at`."""
        slots = range(0, len(digests), DIGEST_BYTES)
        for seq, slot, window_ms in zip(seqs, slots, windows, strict=True):
            if seq <= self.last_seq:
                continue  # it is a replay
            self.last_seq = seq
            self._put(seq, digests[slot : slot + DIGEST_BYTES], at, window_ms, gone=False)
            if seq < self._floor:
                self.end((seq,))  # evicted by its own batch

    def remember(self, answer: FirstAnswer) -> None:
        """Remember what an append under an idempotency key was told."""
        self._forget_answer(answer.key)
        number = (next(reversed(self._numbers.values())) if self._numbers else 0) + 1
        self._numbers[answer.key] = number
        self._answers.put(number, answer)
        self._duplicates += len(answer.seqs)
        self.total.count += len(answer.seqs)

    def end(self, seqs: Iterable[int]) -> None:
        """Note that jobs are gone: finished, deleted, dead-lettered or lost. Most of them may have no key."""
        for seq in seqs:
            packed = self._entries.get(seq)
            if packed is None:
                continue
            digest, at, window_ms, gone = _ENTRY.unpack(packed)
            if not window_ms:
                self._forget(seq, digest)
            elif not gone:
                self._entries.put(seq, _ENTRY.pack(digest, at, window_ms, True))
                heapq.heappush(self._over, (at + window_ms) << 64 | seq)

    def end_below(self, seq: int) -> None:
        """Note that all jobs below `seq` are gone. `tidy` forgets their keys."""
        self._floor = max(self._floor, seq)

    def tidy(self, now: int, window_ms: int, most: int = AT_ONCE) -> bool:
        """Forget keys and answers that are not needed any more, up to about `most` of them. Answers are older than
        `window_ms` then. Return True if there may be more."""
        left = most
        for run in self._entries.runs(self._tidied, self._floor - 1) if self._tidied < self._floor else ():
            below = run[:left]
            if not below:
                break
            self.end(below)
            left -= len(below)
            self._tidied = below[-1] + 1
        if left:
            self._tidied = self._floor
        while left and self._over and self._over[0] >> 64 <= now:
            seq = heapq.heappop(self._over) & _MOST_SEQ
            packed = self._entries.get(seq)
            assert packed is not None
            self._forget(seq, packed[:DIGEST_BYTES])
            left -= 1
        while left and self._numbers:
            key, number = next(iter(self._numbers.items()))
            first = self._answers.get(number)
            assert first is not None
            if now - first.at <= window_ms:
                break
            self._forget_answer(key)
            left -= 1
        return not left

    # -- keeping -----------------------------------------------------------------------------------------------------

    def freeze(self) -> FrozenKeys:
        """Return the keys as they are now, never to change. O(pages)."""
        return FrozenKeys(self.last_seq, self._floor, self._entries.freeze(), self._answers.freeze())

    @classmethod
    def load(cls, value: object) -> Self:
        """Rebuild the keys from what `FrozenKeys.dump` returned. Raises ValueError if `value` is not that."""
        match value:
            case {"last_seq": int(last_seq), "floor": int(floor), "pages": list(pages), "answers": list(answers)}:
                pass
            case _:
                raise ValueError("unique keys: fields are missing, or not what they should be")
        keys = cls()
        for page in pages:
            match page:
                case [bytes(seqs_), bytes(entries)]:
                    seqs = from_little_endian("Q", seqs_)
                case _:
                    raise ValueError("unique keys: not a page")
            if len(entries) != _ENTRY.size * len(seqs) or len(seqs) > PAGE:
                raise ValueError("unique keys: columns of a page differ")
            for seq, (digest, at, window_ms, gone) in zip(seqs, _ENTRY.iter_unpack(entries), strict=True):
                if not keys.last_seq < seq <= last_seq or at >= 1 << 63 or (gone and not window_ms):
                    raise ValueError("unique keys: an entry out of order, or out of range")
                keys.last_seq = seq
                keys._put(seq, digest, at, window_ms, gone=gone)
                if gone:
                    keys._over.append((at + window_ms) << 64 | seq)
        heapq.heapify(keys._over)
        keys.last_seq = last_seq
        keys._floor = max(floor, 1)
        for answer in answers:
            keys.remember(answer_from_wire(answer))
        return keys

    def check(self) -> None:
        """Assert every invariant. O(n)."""
        known = {seq for run in self._entries.runs(0, _MOST_SEQ) for seq in run}
        assert len(known) == len(self._entries)
        listed: list[int] = []
        for digest, seqs in self._by_key.items():
            found = [seqs] if isinstance(seqs, int) else seqs
            assert found == sorted(set(found))
            assert found
            for seq in found:
                packed = self._entries.get(seq)
                assert packed is not None
                assert packed[:DIGEST_BYTES] == digest
            listed += found
        assert sorted(listed) == sorted(known)
        assert sorted(seq & _MOST_SEQ for seq in self._over) == sorted(seq for seq in known if self._is_gone(seq))
        assert len(self._answers) == len(self._numbers)
        assert max(known, default=0) <= self.last_seq

    # -- within ------------------------------------------------------------------------------------------------------

    def _is_gone(self, seq: int) -> bool:
        packed = self._entries.get(seq)
        return packed is None or packed[-1] != 0

    def _put(self, seq: int, digest: bytes, at: int, window_ms: int, *, gone: bool) -> None:
        seqs = self._by_key.get(digest)
        if seqs is None:
            self._by_key[digest] = seq
        elif isinstance(seqs, int):
            self._by_key[digest] = [seqs, seq]
        else:
            seqs.append(seq)
        self._entries.put(seq, _ENTRY.pack(digest, at, window_ms, gone))
        self.total.count += 1

    def _forget(self, seq: int, digest: bytes) -> None:
        seqs = self._by_key[digest]
        if isinstance(seqs, int):
            del self._by_key[digest]
        else:
            seqs.remove(seq)
            if len(seqs) == 1:
                self._by_key[digest] = seqs[0]
        self._entries.pop(seq)
        self.total.count -= 1

    def _forget_answer(self, key: str) -> None:
        number = self._numbers.pop(key, None)
        if number is not None:
            answer = self._answers.pop(number)
            assert answer is not None
            self._duplicates -= len(answer.seqs)
            self.total.count -= len(answer.seqs)


class FrozenKeys(NamedTuple):
    """The keys that `UniqueKeys.freeze` returned."""

    last_seq: int
    floor: int
    entries: Frozen[bytes]
    answers: Frozen[FirstAnswer]

    def dump(self) -> dict[str, Any]:
        """Return the keys for CBOR, for `UniqueKeys.load`. May run in any thread."""
        return {
            "last_seq": self.last_seq,
            "floor": self.floor,
            "pages": [[little_endian(array("Q", page)), b"".join(page.values())] for page in self.entries.values()],
            "answers": [answer_to_wire(answer) for page in self.answers.values() for answer in page.values()],
        }


def answer_to_wire(answer: FirstAnswer) -> list[Any]:
    """Return an answer for CBOR."""
    return [
        answer.key,
        answer.at,
        answer.first_seq,
        answer.stored,
        little_endian(answer.records),
        little_endian(answer.seqs),
    ]


def answer_from_wire(value: object) -> FirstAnswer:
    """Return the answer that `answer_to_wire` was called on. Raises ValueError if `value` is not what it returns."""
    match value:
        case [str(key), int(at), int(first_seq), int(stored), bytes(records_), bytes(seqs_)]:
            records, seqs = from_little_endian("I", records_), from_little_endian("Q", seqs_)
            if len(records) == len(seqs) and seqs and 0 not in seqs and 0 <= at < 1 << 63:
                return FirstAnswer(key, at, first_seq, stored, records, seqs)
    raise ValueError(f"unique keys: a bad answer {value!r}")
