from __future__ import annotations

import pytest

from topics.queue import last_errors
from topics.queue.last_errors import LastErrors


def test_the_last_error_of_a_job_counts_until_the_job_is_gone() -> None:
    errors = LastErrors()
    errors.note(3, "a")
    errors.note(3, "b")
    errors.note(9, "c")
    assert (errors.of(3), errors.of(9), errors.of(4), len(errors)) == ("b", "c", None, 2)
    errors.forget_below(4)
    assert (errors.of(3), errors.of(9)) == (None, "c")
    errors.forget([9, 10])
    assert (len(errors), errors._bytes) == (0, 0)


def test_the_oldest_errors_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_errors, "MAX_ERRORS_BYTES", 1000)
    errors = LastErrors()
    for seq in range(1, 11):
        errors.note(seq, "x" * 50)
    assert sorted(errors.copy()) == [6, 7, 8, 9, 10]
    errors.note(6, "again")
    errors.note(11, "x" * 50)
    assert errors.of(6) == "again"
    assert errors.of(7) is None


def test_errors_are_loaded_as_they_were_dumped() -> None:
    errors = LastErrors()
    errors.note(2, "é")
    errors.note(1, "b")
    again = LastErrors.load([[seq, text] for seq, text in errors.copy().items()])
    assert list(again.copy().items()) == [(2, "é"), (1, "b")]
    for bad in (None, 1, [1], [[1, 2]], [["1", "x"]], [[0, "x"]], [[1, "x", 2]]):
        with pytest.raises(ValueError, match="errors"):
            LastErrors.load(bad)
