"""Stores that ignore conditions are refused; nothing is left behind."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.bucket.simulated_objects import SimFault, SimObjects, given_faults
from topics.bucket.object_store import MAX_PAGE, ObjectData, ObjectFacts, ObjectMissing, StoreError
from topics.bucket.proof import LEFT_MS, PROBES, StoreUnfit, prove_store


class CreatesAlways(SimObjects):
    """Ignores If-None-Match."""

    def put_new(self, name: str, data: bytes) -> str:
        self.delete([name])
        return super().put_new(name, data)


class ReplacesSilently(SimObjects):
    """Ignores If-None-Match, and answers as if it had not."""

    def put_new(self, name: str, data: bytes) -> str:
        exists = name in self.objects
        if exists:
            self.delete([name])
        etag = super().put_new(name, data)
        return super().put_new(name, data) if exists else etag


class CreatesNever(SimObjects):
    """Says of everything that it exists."""

    def put_new(self, name: str, data: bytes) -> str:
        if name not in self.objects:
            super().put_new(name, data)
        return super().put_new(name, data)


class ReplacesAlways(SimObjects):
    """Ignores If-Match where there is an object."""

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return super().put_if(name, data, self.get(name, MAX_PAGE).etag if name in self.objects else etag)


class ReplacesNothing(SimObjects):
    """Ignores If-Match where there is no object."""

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return super().put_if(name, data, etag) if name in self.objects else super().put_new(name, data)


class ReplacesNever(SimObjects):
    """Compares another ETag than it gives."""

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        return super().put_if(name, data, f"{etag}?")


class ShowsEarlier(SimObjects):
    """Is not consistent: reads show what was there before the last change."""

    def __init__(self) -> None:
        super().__init__()
        self.before: ObjectData | None = None

    def put_if(self, name: str, data: bytes, etag: str) -> str:
        before = self.get(name, MAX_PAGE) if name in self.objects else None
        etag = super().put_if(name, data, etag)
        self.before = before
        return etag

    def get(self, name: str, max_bytes: int) -> ObjectData:
        return self.before or super().get(name, max_bytes)


class OneEtag(SimObjects):
    """All objects have one ETag."""

    def get(self, name: str, max_bytes: int) -> ObjectData:
        return super().get(name, max_bytes)._replace(etag='"1"')


class ListsLater(SimObjects):
    """What was put is listed later."""

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        return []


class ListsAll(SimObjects):
    """Ignores where a listing is to begin."""

    def list(self, prefix: str, after: str = "", limit: int = MAX_PAGE) -> list[ObjectFacts]:
        return super().list(prefix, "", limit)


class DeletesNothing(SimObjects):
    """As with rights that do not include it, if that is not told."""

    def delete(self, names: Sequence[str]) -> None:
        pass


class GivesAll(SimObjects):
    """Ignores ranges."""

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        return self.get(name, 1000).data


@pytest.mark.parametrize(
    ("store", "message"),
    [
        (CreatesAlways(), "it replaces an object by one that was only to be made if there was none"),
        (ReplacesSilently(), "it has replaced an object although it said that it had not"),
        (CreatesNever(), "it says that a new object exists already"),
        (ReplacesAlways(), "it replaces an object whose ETag is not the one that was given"),
        (ReplacesNothing(), "it replaces an object whose ETag is not the one that was given"),
        (ReplacesNever(), "it does not replace an object whose ETag is the one that was given"),
        (ShowsEarlier(), "or shows an earlier one"),
        (OneEtag(), "the ETag of a put is not the one that the object has afterwards"),
        (ListsLater(), "it does not list an object that was put"),
        (ListsAll(), "it does not list from a name on"),
        (DeletesNothing(), "an object that was deleted is still there"),
        (GivesAll(), "it does not give ranges of objects"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, SimObjects) else "",
)
def test_a_store_that_does_not_do_what_is_needed_is_refused(store: SimObjects, message: str) -> None:
    with pytest.raises(StoreUnfit, match=rf"^the object store cannot be used: .*{message}.*\. Needed are puts with"):
        prove_store(store, "nonce")
    assert store.objects == {} or isinstance(store, DeletesNothing)


def test_a_store_that_fails_proves_nothing_and_may_be_asked_again() -> None:
    store = SimObjects()
    prove_store(store, "nonce")
    calls = list(store.calls)
    for number in range(len(calls) - 1):  # the last one is the look for what others have left
        for fault in (SimFault.BEFORE, SimFault.AFTER, SimFault.LATE):
            store.faults = given_faults([None] * number + [fault])
            with pytest.raises(StoreError):
                prove_store(store, "nonce")
            prove_store(store, "nonce")
            store.arrive()


def test_a_condition_that_is_once_said_not_to_hold_is_tried_again() -> None:
    """A request that was sent twice on its way meets its own effect."""
    store = SimObjects()
    prove_store(store, "nonce")
    for number, (op, _) in enumerate(list(store.calls)):
        if op.startswith("put"):
            store.faults = given_faults([None] * number + [SimFault.WRONG])
            prove_store(store, "nonce")
    assert store.objects == {}


def test_what_killed_processes_have_left_goes_when_it_is_an_hour_old() -> None:
    now = 1_000_000_000
    store = SimObjects(now_ms=lambda: now)
    store.put_new(f"{PROBES}old", b"one")
    store.put_new("rounds/1", b"")
    now += LEFT_MS
    store.put_new(f"{PROBES}new", b"one")
    prove_store(store, "nonce")
    assert set(store.objects) == {f"{PROBES}old", f"{PROBES}new", "rounds/1"}
    now += 1
    prove_store(store, "nonce")
    assert set(store.objects) == {f"{PROBES}new", "rounds/1"}


def test_probes_have_names_of_their_own() -> None:
    store = SimObjects()
    for _ in range(2):
        prove_store(store, "nonce")
    names = {name for op, name in store.calls if op == "put_new"}
    assert len(names) == 2
    assert all(name.startswith(f"{PROBES}nonce-") for name in names)
    with pytest.raises(ObjectMissing):
        store.head(names.pop())
