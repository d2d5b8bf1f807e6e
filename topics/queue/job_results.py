"""The results of jobs whose holders have finished them, until they are delivered (`docs/design/completions.md`). Pure.

A result outlives its job: when the record of a job is deleted or expires, what somebody was told is kept is delivered
all the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

MAX_RESULTS_BYTES: Final = 16 << 20
"""Bytes of the results of one queue together, at most. Beyond it acks are refused."""

RESULT_BYTES: Final = 512
"""Bytes that a result counts besides its own: its entry, the name of its node, and a bound of 32,000 entries, so that a
snapshot copies them in a step of 1 ms."""


class JobResult(NamedTuple):
    """The result of a job: the node that has finished it, and the JSON."""

    node: str
    data: bytes


class JobResults:
    """The results of one queue that wait, in the order of their acks. Used in the order of the queue's events, in
    replay too."""

    __slots__ = ("_by_seq", "size")

    def __init__(self) -> None:
        self._by_seq: dict[int, JobResult] = {}
        self.size = 0
        """The bytes that they count."""

    def __len__(self) -> int:
        return len(self._by_seq)

    def __iter__(self) -> Iterator[int]:
        return iter(self._by_seq)

    def __contains__(self, seq: object) -> bool:
        return seq in self._by_seq

    def of(self, seq: int) -> JobResult | None:
        """Return the result of a job, None if none waits."""
        return self._by_seq.get(seq)

    def note(self, seq: int, result: JobResult) -> None:
        """Keep the result of a job, which has none yet."""
        assert seq not in self._by_seq, seq
        self._by_seq[seq] = result
        self.size += len(result.data) + RESULT_BYTES

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget results that were delivered."""
        if self._by_seq:
            for seq in seqs:
                result = self._by_seq.pop(seq, None)
                if result is not None:
                    self.size -= len(result.data) + RESULT_BYTES

    def copy(self) -> Mapping[int, JobResult]:
        """Return the results by seq, the oldest ack first."""
        return self._by_seq.copy()

    @classmethod
    def load(cls, value: object) -> JobResults:
        """Return the results that were dumped: a seq, a node and JSON each. Raises ValueError."""
        results = cls()
        for row in value if isinstance(value, list | tuple) else (None,):
            match row:
                case [int(seq), str(node), bytes(data)] if seq > 0 and seq not in results:
                    results.note(seq, JobResult(node, data))
                case _:
                    raise ValueError("lease dump: bad results")
        return results


def size_of(results: Iterable[bytes]) -> int:
    """Return what results count together."""
    return sum([len(data) + RESULT_BYTES for data in results])
