"""The proof, at each start, that a store honours the conditions on which everything in the bucket is built.

A store that takes a put whose condition does not hold would let two daemons own one prefix. So the daemon tries it out,
with probe objects below `probes/`, whose names nobody else uses, and which are removed. What processes that were killed
have left there is removed when it is an hour older than the probe, by the clock of the store.
"""

from __future__ import annotations

import secrets
from typing import Final

from topics.bucket.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectFacts,
    ObjectMissing,
    ObjectStore,
    StoreError,
)

PROBES: Final = "probes/"

LEFT_MS: Final = 3_600_000
"""How much older than the probe a probe is when it is removed as one of a process that was killed (ms)."""

WRONG_ETAG: Final = '"00000000000000000000000000000000"'
WRONG_GENERATION: Final = "1"

MAX_PROBE: Final = 1024

ATTEMPTS: Final = 5
"""How often a store has to refuse a put of which the condition holds before it is found unfit."""


class StoreUnfit(Exception):
    """The store does not do what is needed of it. The message is for an operator."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the object store cannot be used: {what}. Needed are puts with If-None-Match: * and If-Match, as in S3, "
            "GCS, Azure and R2"
        )


class _PutRefused(StoreUnfit):
    """A condition that holds was said not to hold. A fit store may say so now and then."""


def prove_store(store: ObjectStore, nonce: str) -> None:
    """Blocking: try out what is needed of a store. `nonce` is of this process: letters and digits.

    A put whose condition is said not to hold although it does is tried `ATTEMPTS` times: a request that was sent again
    on its way meets its own effect. Raises StoreUnfit, and StoreError if the store fails: then nothing is proved, and
    it can be called again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return _prove_once(store, nonce)
        except _PutRefused:
            continue
    return _prove_once(store, nonce)


def _prove_once(store: ObjectStore, nonce: str) -> None:
    name, other = (f"{PROBES}{nonce}-{secrets.token_hex(8)}" for _ in range(2))
    try:
        _prove_create(store, name)
        _prove_replace(store, name, other)
        probe = _prove_list(store, name)
    except BaseException:
        _clean(store, [name, other])
        raise
    store.delete([name, other])  # if this fails, the next proof removes what is left
    try:
        store.get(name, MAX_PROBE)
    except ObjectMissing:
        pass
    else:
        raise StoreUnfit("an object that was deleted is still there")
    _remove_left(store, probe)


def _prove_create(store: ObjectStore, name: str) -> None:
    try:
        store.put_new(name, b"one")
    except ObjectExists:
        raise _PutRefused("it says that a new object exists already") from None
    try:
        store.put_new(name, b"two")
    except ObjectExists:
        pass
    else:
        raise StoreUnfit("it replaces an object by one that was only to be made if there was none")
    if store.get(name, MAX_PROBE).data != b"one":
        raise StoreUnfit("it has replaced an object although it said that it had not")
    if store.get_range(name, 1, 1) != b"n":
        raise StoreUnfit("it does not give ranges of objects")


def _prove_replace(store: ObjectStore, name: str, other: str) -> None:
    etag = store.get(name, MAX_PROBE).etag
    wrong = WRONG_GENERATION if etag.isdigit() else WRONG_ETAG
    for target, condition in ((name, wrong), (other, etag)):
        try:
            store.put_if(target, b"two", condition)
        except ObjectChanged:
            continue
        raise StoreUnfit("it replaces an object whose ETag is not the one that was given")
    try:
        newer = store.put_if(name, b"three", etag)
    except ObjectChanged:
        raise _PutRefused("it does not replace an object whose ETag is the one that was given") from None
    got = store.get(name, MAX_PROBE)
    if got.data != b"three":
        raise StoreUnfit("it has not replaced an object although it said that it had, or shows an earlier one")
    if got.etag != newer or store.head(name).etag != newer or newer == etag:
        raise StoreUnfit("the ETag of a put is not the one that the object has afterwards")
    try:
        store.put_if(name, b"four", etag)
    except ObjectChanged:
        return
    raise StoreUnfit("it replaces an object whose ETag was the one that was given, and is no longer")


def _prove_list(store: ObjectStore, name: str) -> ObjectFacts:
    found = store.list(name, limit=1)
    if [(facts.name, facts.size) for facts in found] != [(name, len(b"three"))]:
        raise StoreUnfit("it does not list an object that was put")
    if any(facts.name == name for facts in store.list(PROBES, after=name, limit=1)):
        raise StoreUnfit("it does not list from a name on")
    return found[0]


def _clean(store: ObjectStore, names: list[str]) -> None:
    """Remove the probes of a proof that has failed. A failure is not told: the next proof removes what is left."""
    try:
        store.delete(names)
    except StoreError:
        pass


def _remove_left(store: ObjectStore, probe: ObjectFacts) -> None:
    try:
        found = store.list(PROBES)
        left = [facts.name for facts in found if facts.modified_ms < probe.modified_ms - LEFT_MS]
        if left:
            store.delete(left)
    except StoreError:
        pass
