"""The dedupe window: which repeats are recognised, and what is forgotten when."""

from __future__ import annotations

import cbor2
import pytest

from topics.log.dedupe_window import PAGE_KEYS, DedupeWindow


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


def many(count: int, *, per_ms: int = 100) -> DedupeWindow:
    return window(*((f"key-{i}", i + 1, 1 + i % 3, i // per_ms) for i in range(count)))


def test_pages_come_back_with_keys_order_and_times() -> None:
    count = 3 * PAGE_KEYS + 17
    it = DedupeWindow.load(cbor2.loads(cbor2.dumps(many(count).dump())))
    assert len(it) == count
    assert it.last_at == (count - 1) // 100
    assert all(it.lookup(f"key-{i}", i // 100, 1) == (i + 1, 1 + i % 3) for i in range(count))
    it.remember("more", 9, 1, 10**6)
    assert it.lookup("more", 10**6, 1) == (9, 1)
    assert it.lookup(f"key-{count - 1}", 0, 1) == (count, 1 + (count - 1) % 3)


def test_a_full_page_is_encoded_once() -> None:
    it = many(2 * PAGE_KEYS + 1)
    before = it.dump()
    it.remember("more", 1, 1, 10**6)
    after = it.dump()
    assert [a is b for a, b in zip(before, after, strict=True)] == [True, True, False]
    assert it.expire(10, 9) == 100, "a part of the first page"
    assert [a is b for a, b in zip(after, it.dump(), strict=True)] == [False, True, False]


def test_what_is_forgotten_is_not_in_a_dump() -> None:
    it = many(PAGE_KEYS + 500)
    it.expire(12, 1)
    left = DedupeWindow.load(it.dump())
    assert len(left) == len(it) == PAGE_KEYS + 500 - 1100
    assert left.lookup("key-1099", 0, 10**6) is None
    assert left.lookup("key-1100", 11, 10**6) == (1101, 3)


def test_forgetting_is_bounded_and_goes_on_where_it_was() -> None:
    it = many(5000)
    assert it.expire(10**6, 1, most=1500) == 1500
    assert it.expire(10**6, 1, most=1500) == 1500
    assert len(it) == 2000
    assert it.lookup("key-2999", 0, 10**9) is None
    assert it.lookup("key-3000", 0, 10**9) is not None


def test_a_key_in_two_pages_is_forgotten_with_the_newer_entry() -> None:
    it = many(PAGE_KEYS)
    it.remember("key-0", 7777, 2, 500)
    assert it.expire(400, 1) == PAGE_KEYS - 1
    assert it.lookup("key-0", 500, 1) == (7777, 2)
    again = DedupeWindow.load(it.dump())
    assert (len(again), again.lookup("key-0", 500, 1)) == (1, (7777, 2))


def test_the_form_of_version_1_is_read() -> None:
    it = DedupeWindow.load([["a", 1, 2, 10], ["b", 3, 1, 11]])
    assert (it.lookup("a", 10, 5), it.lookup("b", 11, 5), len(it)) == ((1, 2), (3, 1), 2)
    assert DedupeWindow.load(it.dump()).lookup("a", 10, 5) == (1, 2)


PAGE = window(("k", 1, 1, 5), ("l", 2, 1, 6)).dump()[0]


@pytest.mark.parametrize("at", range(0, len(PAGE), 4))
def test_a_page_with_values_that_cannot_be_does_not_load(at: int) -> None:
    page = PAGE[:at] + b"\xff" * 12 + PAGE[at + 12 :]
    with pytest.raises(ValueError):  # noqa: PT011
        DedupeWindow.load([page])


@pytest.mark.parametrize("page", [None, 1, "page", *(PAGE[:length] for length in range(len(PAGE))), PAGE + b"x"])
def test_what_is_no_page_does_not_load(page: object) -> None:
    with pytest.raises(ValueError, match="dedupe"):
        DedupeWindow.load([page])


def test_pages_out_of_order_do_not_load() -> None:
    early, late = window(("k", 1, 1, 5)).dump()[0], window(("l", 1, 1, 9)).dump()[0]
    with pytest.raises(ValueError, match="dedupe"):
        DedupeWindow.load([late, early])
