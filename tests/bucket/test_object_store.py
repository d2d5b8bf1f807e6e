"""The contract of every object store: the simulated one, a directory, and servers that speak S3."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from topics.bucket.object_store import (
    MAX_NAME,
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
)
from topics.bucket.proof import prove_store

NAME = "rounds/00000000000000000001"
SIZE = 1 << 20
MALFORMED = ("", "/a", "a/", "a//b", ".a", "a/.b", "../a", "a/..", "a b", "a\0", "a\n", "ä", "a%2f", "-a")
BAD_NAMES = [*MALFORMED, "a" * (MAX_NAME + 1)]


def at_once(count: int, call: Callable[[int], str]) -> list[str | Exception]:
    """What as many threads get that make a call at the same moment."""
    results: list[str | Exception] = []
    barrier = threading.Barrier(count)

    def run(number: int) -> None:
        barrier.wait()
        try:
            results.append(call(number))
        except Exception as error:
            results.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


class TestPuts:
    def test_a_new_object_is_read_as_it_was_put(self, store: ObjectStore) -> None:
        etag = store.put_new(NAME, b"content")
        assert etag
        assert store.get(NAME, 100) == (b"content", etag)

    def test_there_is_only_one_new_object(self, store: ObjectStore) -> None:
        store.put_new(NAME, b"first")
        for data in (b"second", b"first"):
            with pytest.raises(ObjectExists, match=f"the object {NAME} exists already"):
                store.put_new(NAME, data)
        assert store.get(NAME, 100).data == b"first"

    def test_of_many_at_once_one_makes_the_object(self, store: ObjectStore) -> None:
        results = at_once(8, lambda number: store.put_new(NAME, b"%d" % number))
        assert sum(isinstance(result, str) for result in results) == 1
        etags = [result for result in results if isinstance(result, str)]
        assert store.get(NAME, 100).etag == etags[0]

    def test_an_object_is_replaced_if_it_is_still_the_same(self, store: ObjectStore) -> None:
        first = store.put_new(NAME, b"first")
        second = store.put_if(NAME, b"second", first)
        assert second != first
        assert store.get(NAME, 100) == (b"second", second)
        for etag in (first, '"00000000000000000000000000000000"'):
            with pytest.raises(ObjectChanged, match=f"the object {NAME} is not the one"):
                store.put_if(NAME, b"third", etag)
        assert store.get(NAME, 100) == (b"second", second)

    def test_what_is_absent_is_not_replaced(self, store: ObjectStore) -> None:
        etag = store.put_new(NAME, b"first")
        store.delete([NAME])
        with pytest.raises(ObjectChanged):
            store.put_if(NAME, b"second", etag)
        with pytest.raises(ObjectMissing):
            store.get(NAME, 100)

    @pytest.mark.parametrize("length", [0, 1, SIZE * 16])
    def test_objects_of_every_length(self, store: ObjectStore, length: int) -> None:
        data = bytes(range(256)) * (length // 256) + bytes(length % 256)
        etag = store.put_new(NAME, data)
        assert store.get(NAME, length).data == data
        assert store.head(NAME).size == length
        store.put_if(NAME, data + b"x", etag)
        assert store.get(NAME, length + 1).data == data + b"x"


class TestReads:
    def test_an_object_that_is_too_large_is_not_read(self, store: ObjectStore) -> None:
        store.put_new(NAME, b"content")
        assert store.get(NAME, 7).data == b"content"
        with pytest.raises(ObjectTooLarge, match=f"the object {NAME} has 7 bytes; at most 6 were expected"):
            store.get(NAME, 6)

    def test_ranges(self, store: ObjectStore) -> None:
        store.put_new(NAME, b"0123456789")
        assert store.get_range(NAME, 0, 3) == b"012"
        assert store.get_range(NAME, 7, 3) == b"789"
        assert store.get_range(NAME, 7, 100) == b"789"
        assert store.get_range(NAME, 10, 1) == b""
        assert store.get_range(NAME, 99, 1) == b""
        for offset, length in ((-1, 1), (0, 0), (0, -1)):
            with pytest.raises(ValueError, match="are no range"):
                store.get_range(NAME, offset, length)

    def test_facts(self, store: ObjectStore) -> None:
        etag = store.put_new(NAME, b"content")
        facts = store.head(NAME)
        assert (facts.name, facts.size, facts.etag) == (NAME, 7, etag)
        (listed,) = store.list("")
        assert (listed.name, listed.size) == (NAME, 7)
        assert abs(listed.modified_ms - facts.modified_ms) < 1000, "some have whole seconds in one of both"

    def test_what_is_absent_is_missing(self, store: ObjectStore) -> None:
        store.put_new("rounds/2", b"")
        for name in (NAME, "rounds", "rounds/2/3", "other/1"):
            with pytest.raises(ObjectMissing, match=f"there is no object {name}"):
                store.get(name, 100)
            with pytest.raises(ObjectMissing):
                store.get_range(name, 0, 1)
            with pytest.raises(ObjectMissing):
                store.head(name)


class TestDeletions:
    def test_deleting_is_idempotent(self, store: ObjectStore) -> None:
        for name in ("a/1", "a/2", "b"):
            store.put_new(name, b"x")
        store.delete(["a/1", "a/none", "b"])
        store.delete(["a/1", "b"])
        store.delete([])
        assert [facts.name for facts in store.list("")] == ["a/2"]

    def test_a_name_can_be_used_again(self, store: ObjectStore) -> None:
        store.put_new("a/b/c", b"first")
        store.delete(["a/b/c"])
        store.put_new("a/b/c", b"second")
        assert store.get("a/b/c", 100).data == b"second"

    def test_more_than_a_page_of_objects(self, store: ObjectStore) -> None:
        store.put_new(NAME, b"x")
        store.delete([NAME, *(f"none/{number}" for number in range(1500))])
        assert store.list("") == []


class TestListing:
    NAMES = ("a", "a-b", "a/b", "a/b-c", "a/b/c", "a/b0", "a0", "b/00", "b/01", "b/010", "b/02", "b/1", "c")

    @pytest.fixture
    def full(self, store: ObjectStore, request: pytest.FixtureRequest) -> ObjectStore:
        for name in self.names(request):
            store.put_new(name, b"x")
        return store

    def names(self, request: pytest.FixtureRequest) -> list[str]:
        """In a directory a name cannot be the beginning of another's path."""
        kind = request.node.callspec.params["store"]
        plain = ("a", "a/b", "a/b/c") if kind in ("file", "versitygw") else ()
        return [name for name in self.NAMES if name not in plain[:-1]]

    def test_in_order_by_prefix_from_a_name_on(self, full: ObjectStore, request: pytest.FixtureRequest) -> None:
        for prefix in ("", "a", "a/", "a/b", "a/b/", "b/0", "b/00", "b/01", "b/", "c", "d", "a/b0x"):
            for after in ("", "a", "a/b", "a/b/c", "b/0", "b/01", "z"):
                expected = sorted(name for name in self.names(request) if name.startswith(prefix) and name > after)
                assert [facts.name for facts in full.list(prefix, after)] == expected, (prefix, after)
                assert [facts.name for facts in full.list(prefix, after, 2)] == expected[:2], (prefix, after)

    def test_pages(self, store: ObjectStore) -> None:
        names = [f"rounds/{number:020}" for number in range(25)]
        for name in names:
            store.put_new(name, b"x")
        found: list[str] = []
        while page := [facts.name for facts in store.list("rounds/", found[-1] if found else "", 10)]:
            assert len(page) <= 10
            found += page
        assert found == names

    def test_what_is_beside_the_prefix_of_the_store_is_not_listed(self, store: ObjectStore) -> None:
        assert store.list("") == []


class TestArguments:
    def test_names_are_checked(self, store: ObjectStore) -> None:
        for name in BAD_NAMES:
            self.check_refusals(store, name)

    def check_refusals(self, store: ObjectStore, name: str) -> None:
        calls: tuple[Callable[[], object], ...] = (
            lambda: store.put_new(name, b""),
            lambda: store.put_if(name, b"", "x"),
            lambda: store.get(name, 1),
            lambda: store.get_range(name, 0, 1),
            lambda: store.head(name),
            lambda: store.delete([name]),
        )
        for call in calls:
            with pytest.raises(ValueError, match="is no name of an object"):
                call()

    def test_pages_are_checked(self, store: ObjectStore) -> None:
        for limit in (0, 1001):
            with pytest.raises(ValueError, match="limit: "):
                store.list("", limit=limit)
        for text in ("/a", "a//b", "ä", "a" * (MAX_NAME + 1)):
            with pytest.raises(ValueError, match="is no beginning of a name"):
                store.list(text)
            with pytest.raises(ValueError, match="is no beginning of a name"):
                store.list("", text)


def test_the_store_is_proved(store: ObjectStore) -> None:
    prove_store(store, "nonce")
    assert store.list("") == []
