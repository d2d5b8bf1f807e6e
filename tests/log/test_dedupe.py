"""The dedupe window: which repeats are recognised, and what is forgotten when."""

from __future__ import annotations

import cbor2
import pytest

from topics.log.dedupe import DedupeWindow


def window(*calls: tuple[str, int, int, int]) -> DedupeWindow:
    it = DedupeWindow()
    for call in calls:
        it.remember(*call)
    return it


def test_a_key_is_known_to_the_end_of_its_window_and_not_after_it() -> None:
    it = window(("k", 5, 3, 1000))
    assert it.lookup("k", 1000, 100) == (5, 3)
    assert it.lookup("k", 1100, 100) == (5, 3)
    assert it.lookup("k", 1101, 100) is None
    assert it.lookup("other", 1000, 100) is None


def test_a_window_of_zero_knows_nothing() -> None:
    assert window(("k", 5, 3, 1000)).lookup("k", 1000, 0) is None


def test_a_wider_window_applies_to_what_is_remembered() -> None:
    assert window(("k", 5, 3, 1000)).lookup("k", 1500, 1000) == (5, 3)


def test_expiry_takes_the_oldest_and_says_how_many() -> None:
    it = window(("a", 1, 1, 1000), ("b", 2, 1, 1050), ("c", 3, 1, 1100))
    assert it.expire(1150, 100) == 1
    assert (len(it), it.lookup("a", 1000, 100), it.lookup("b", 1150, 100)) == (2, None, (2, 1))
    assert it.expire(9999, 100) == 2
    assert len(it) == 0
    assert it.expire(9999, 100) == 0


def test_a_key_used_again_after_its_window_stands_for_the_new_append() -> None:
    it = window(("a", 1, 1, 1000), ("b", 2, 1, 1050), ("a", 9, 2, 2000))
    assert it.lookup("a", 2000, 100) == (9, 2)
    assert it.expire(2000, 100) == 1
    assert len(it) == 1


def test_a_dump_brings_back_keys_and_their_order() -> None:
    it = DedupeWindow.load(cbor2.loads(cbor2.dumps(window(("b", 1, 1, 1000), ("a", 2, 5, 1050)).dump())))
    assert it.lookup("a", 1050, 100) == (2, 5)
    assert it.expire(1101, 100) == 1
    assert it.lookup("b", 1000, 100) is None
    assert len(DedupeWindow.load([])) == 0


@pytest.mark.parametrize(
    "value", [None, {}, [["k"]], [["k", 0, 1, 5]], [["k", 1, 1, 5], ["l", 2, 1, 4]], [[1, 1, 1, 1]]]
)
def test_nonsense_does_not_load(value: object) -> None:
    with pytest.raises(ValueError, match="dedupe"):
        DedupeWindow.load(value)
