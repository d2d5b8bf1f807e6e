"""Reading ahead in objects that never change: what is fetched, what is kept, and that the bytes are the right ones."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from topics.storage.cache import read_windows
from topics.storage.cache.read_windows import (
    FIRST_AHEAD_BYTES,
    GAP_BYTES,
    MOST_AHEAD_BYTES,
    MOST_BYTES,
    MOST_STREAMS,
    ReadWindows,
)

KIB = 1 << 10
PAGE = 100 * KIB


class RandomObjects:
    """Objects of random bytes, and the ranges that were asked for."""

    def __init__(self, size: int = 20 << 20) -> None:
        self.size = size
        self.content = random.Random(1).randbytes(size)
        self.asked: list[tuple[int, int]] = []
        self.windows = ReadWindows()

    def read(self, offset: int, length: int, name: str = "a") -> bytes:
        got = self.windows.read(name, self.size, offset, length, self.get(name))
        assert got == self.content[offset : offset + length]
        return got

    def get(self, _name: str) -> Callable[[int, int], bytes]:
        def get(offset: int, length: int) -> bytes:
            assert 0 < length <= self.size - offset
            self.asked.append((offset, length))
            return self.content[offset : offset + length]

        return get


def test_a_reader_from_the_beginning_gets_more_with_each_call() -> None:
    store = RandomObjects()
    for offset in range(16, store.size - PAGE, PAGE):
        store.read(offset, PAGE)
    begins = [begin for begin, _ in store.asked]
    lengths = [length for _, length in store.asked]
    assert lengths[:4] == [FIRST_AHEAD_BYTES, 2 * FIRST_AHEAD_BYTES, MOST_AHEAD_BYTES, MOST_AHEAD_BYTES]
    assert all(begin + length == following for (begin, length), following in zip(store.asked, begins[1:], strict=False))
    assert sum(lengths) == store.size - 16


def test_one_read_somewhere_fetches_what_it_asks_for_and_no_more() -> None:
    store = RandomObjects()
    for offset in (5 << 20, 1 << 20, 9 << 20):
        store.read(offset, PAGE)
    assert store.asked == [(5 << 20, PAGE), (1 << 20, PAGE), (9 << 20, PAGE)]
    assert store.windows.bytes == 0


def test_a_header_alone_is_read_alone_and_the_frames_behind_it_begin_a_stream() -> None:
    store = RandomObjects()
    store.read(0, 16)
    store.read(16, PAGE)
    assert store.asked == [(0, 16), (16, FIRST_AHEAD_BYTES)]


def test_a_reader_that_goes_on_from_somewhere_gets_more_bit_by_bit() -> None:
    store = RandomObjects()
    for number in range(8):
        store.read((5 << 20) + number * PAGE, PAGE)
    assert [length // PAGE for _, length in store.asked] == [1, 2, 4, 8]


def test_deleted_records_between_two_reads_do_not_end_the_stream() -> None:
    store = RandomObjects()
    store.read(16, PAGE)
    store.read(16 + PAGE + GAP_BYTES, PAGE)
    assert len(store.asked) == 1
    end = sum(store.asked[0])
    store.read(end + GAP_BYTES, PAGE)
    assert store.asked[1:] == [(end + GAP_BYTES, 2 * FIRST_AHEAD_BYTES)]
    store.read(end + 3 * FIRST_AHEAD_BYTES + 2 * GAP_BYTES, PAGE)  # this is another place
    assert store.asked[2][1] == PAGE


def test_a_read_across_the_end_of_a_window_fetches_only_what_is_missing() -> None:
    store = RandomObjects()
    store.read(16, PAGE)
    store.read(16 + FIRST_AHEAD_BYTES - 10, 30)
    assert store.asked[1][0] == 16 + FIRST_AHEAD_BYTES


def test_a_window_goes_when_it_was_read_to_its_end() -> None:
    store = RandomObjects(FIRST_AHEAD_BYTES)
    store.read(0, PAGE)
    assert store.windows.bytes == FIRST_AHEAD_BYTES - PAGE
    store.read(PAGE, FIRST_AHEAD_BYTES - PAGE)
    assert store.windows.bytes == 0
    assert len(store.asked) == 1


def test_objects_are_not_mixed_up() -> None:
    store, other = RandomObjects(), RandomObjects()
    other.content = other.content[::-1]
    other.windows = store.windows
    for offset in range(16, 4 << 20, PAGE):
        store.read(offset, PAGE, "a")
        other.read(offset, PAGE, "b")


def test_large_reads_are_made_as_they_are_asked_for() -> None:
    store = RandomObjects()
    store.read(0, MOST_AHEAD_BYTES)
    store.read(MOST_AHEAD_BYTES, MOST_AHEAD_BYTES)
    assert [length for _, length in store.asked] == [MOST_AHEAD_BYTES] * 2
    assert store.windows.bytes == 0


def test_windows_are_bounded_in_bytes_and_the_longest_unused_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RandomObjects()
    kept = FIRST_AHEAD_BYTES - PAGE
    monkeypatch.setattr(read_windows, "MOST_BYTES", 3 * kept)
    for name in "abc":
        store.read(0, PAGE, name)
    store.read(PAGE, PAGE, "a")  # b is the one that was not used for longest now
    store.read(0, PAGE, "d")
    assert store.windows.bytes <= 3 * kept
    store.asked.clear()
    for name in "acd":
        store.read(PAGE if name != "a" else 2 * PAGE, PAGE, name)
    assert store.asked == []
    store.read(PAGE, PAGE, "b")
    assert len(store.asked) == 1
    assert 8 * MOST_AHEAD_BYTES <= MOST_BYTES


def test_streams_are_bounded_in_number() -> None:
    store = RandomObjects()
    for number in range(MOST_STREAMS + 1):
        store.read(5 << 20, 10, str(number))
    store.asked.clear()
    store.read((5 << 20) + 10, 10, str(MOST_STREAMS))
    store.read((5 << 20) + 10, 10, "0")
    assert [length for _, length in store.asked] == [20, 10]


def test_what_was_forgotten_is_asked_for_again_also_if_its_read_was_under_way() -> None:
    store = RandomObjects()
    store.read(0, PAGE)
    store.read(0, PAGE, "b")
    store.windows.forget("a")
    store.asked.clear()
    store.read(PAGE, PAGE, "b")
    assert store.asked == []
    store.read(PAGE, PAGE)
    assert store.asked == [(PAGE, PAGE)]

    def get(offset: int, length: int) -> bytes:
        store.windows.forget("c")
        return bytes(length)

    assert store.windows.read("c", store.size, 0, PAGE, get) == bytes(PAGE)
    store.read(PAGE, PAGE, "c")


def test_nothing_is_kept_of_a_call_that_fails() -> None:
    store = RandomObjects()

    def get(offset: int, length: int) -> bytes:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        store.windows.read("a", store.size, 0, PAGE, get)
    store.read(0, PAGE)
    assert len(store.asked) == 1


def test_any_reads_of_any_readers_get_the_bytes_of_their_objects() -> None:
    randoms = random.Random(3)
    store = RandomObjects(3 << 20)
    at = dict.fromkeys("abcdef", 0)
    for _ in range(3000):
        name = randoms.choice("abcdef")
        if randoms.random() < 0.1:
            at[name] = randoms.randrange(store.size)
        offset = min(at[name] + randoms.choice((0, 0, 0, 7, 100 * KIB)), store.size - 1)
        length = min(randoms.choice((1, 1000, PAGE, 700 * KIB)), store.size - offset)
        store.read(offset, length, name[0])
        at[name] = offset + length if offset + length < store.size else 0
    assert store.windows.bytes == sum(len(stream.window) for stream in store.windows._streams)
