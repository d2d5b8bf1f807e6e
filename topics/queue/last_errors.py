"""The last error of each job of a queue, as its workers have told it (`docs/design/jobs.md` 3). Pure.

Bounded: the errors that were noted longest ago are forgotten first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

MAX_ERROR_BYTES: Final = 4096
"""The longest error, UTF-8."""

MAX_ERRORS_BYTES: Final = 4 << 20
"""Bytes of the errors of one queue together, at most: 1,000 of the longest ones."""

_ENTRY_BYTES: Final = 150
"""Bytes that an error counts besides its text."""


class LastErrors:
    """The last error of each job that has one. Methods are called in the order of events, in a replay too."""

    __slots__ = ("_bytes", "_texts")

    def __init__(self) -> None:
        self._texts: dict[int, str] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._texts)

    def of(self, seq: int) -> str | None:
        """Return the error of a job, None if none is known."""
        return self._texts.get(seq)

    def note(self, seq: int, text: str) -> None:
        """Note the error of a job, in place of an earlier one."""
        self.forget((seq,))
        self._texts[seq] = text
        self._bytes += _size(text)
        while self._bytes > MAX_ERRORS_BYTES:
            self.forget((next(iter(self._texts)),))

    def forget(self, seqs: Iterable[int]) -> None:
        """Forget the errors of jobs that are gone."""
        if self._texts:
            for seq in seqs:
                text = self._texts.pop(seq, None)
                if text is not None:
                    self._bytes -= _size(text)

    def forget_below(self, seq: int) -> None:
        """Forget the errors of all jobs below `seq`."""
        self.forget([known for known in self._texts if known < seq])

    def copy(self) -> Mapping[int, str]:
        """Return the errors by seq, those that were noted first at the beginning."""
        return self._texts.copy()

    @classmethod
    def load(cls, value: object) -> LastErrors:
        """Return the errors that were dumped: pairs of a seq and a text. Raises ValueError."""
        errors = cls()
        for pair in value if isinstance(value, list | tuple) else (None,):
            match pair:
                case [int(seq), str(text)] if seq > 0:
                    errors.note(seq, text)
                case _:
                    raise ValueError("lease dump: bad errors")
        return errors


def _size(text: str) -> int:
    return len(text) + _ENTRY_BYTES  # of the text, characters: at most a quarter of its bytes
