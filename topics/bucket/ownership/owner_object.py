"""Who may write to the prefix: the object `owner`, which is changed only by conditional puts (`docs/spec/bucket.md`
section 3).

Without `LeaseTerms` nobody takes the prefix by time, and this process changes `owner` only when it takes it, names
another round, or gives it up. With them a thread renews the lease, and all changes but the first and the last are its
renewals.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from msgspec.structs import replace

from topics.bucket.container import BadObject
from topics.bucket.object_names import OWNER
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_format import MAX_OWNER_BYTES, Owner, SeenOwner, decode_owner, encode_owner
from topics.bucket.settled_puts import PutGivenUp, SettledPuts, TakenByOther
from topics.runtime.offload import Offload, Pool


class BucketRefused(Exception):
    """The bucket must not be used by this directory as things are. The message is for the operator."""


class LeaseTerms(NamedTuple):
    """How an owner holds its lease."""

    lease_ms: int
    objects: ObjectStore
    """The store, for renewals only: its calls end well within a lease."""
    boottime_ms: Callable[[], int]
    start: Callable[[LeaseKeeper], None] = LeaseKeeper.start
    """Begins to renew."""


JOIN_S: Final = 5.0
"""How long a clean stop waits for a renewal that is under way (s)."""


class Ownership:
    """The right to write to a prefix. Made by the archive for each attempt to open it."""

    def __init__(
        self,
        objects: ObjectStore,
        puts: SettledPuts,
        offload: Offload,
        nonce: str,
        keep_on: Callable[[], bool],
        terms: LeaseTerms | None = None,
    ) -> None:
        self.lease: Lease | None = None
        """The lease of the present epoch; None before it is taken, and without `terms`."""
        self._objects = objects
        self._puts = puts
        self._offload = offload
        self._nonce = nonce
        self._keep_on = keep_on
        """Returns False if a put that has failed is not to be repeated."""
        self._leasing = terms
        self._keeper: LeaseKeeper | None = None
        self._held: SeenOwner | None = None

    @property
    def held(self) -> Owner | None:
        """`owner` as this process has taken it; None if it has not."""
        return self._held.owner if self._held is not None else None

    async def read(self) -> SeenOwner | None:
        """Return the present owner, None if there was never one. Raises StoreError, BucketRefused."""
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, OWNER, MAX_OWNER_BYTES))
            return SeenOwner(decode_owner(found.data), found.etag)
        except ObjectMissing:
            return None
        except (BadObject, ObjectTooLarge) as error:
            raise BucketRefused(f"the object {OWNER} of the bucket is damaged: {error}") from error

    async def take(
        self, seen: SeenOwner | None, *, dir_id: str, epoch: int, last: int, url: str, has_log: bool = True
    ) -> bool:
        """Become the owner in place of `seen`, and begin to renew the lease. Return False if somebody else was faster.
        `has_log` is False if the directory is empty. Raises PutGivenUp."""
        terms = self._leasing
        self.abandon()
        owner = Owner(
            epoch=epoch,
            node=socket.gethostname(),
            dir=dir_id,
            state="held",
            nonce=self._nonce,
            url=url,
            lease_ms=terms.lease_ms if terms is not None else 0,
            round=last,
            has_log=has_log,
        )
        sent_ms = terms.boottime_ms() if terms is not None else 0
        try:
            if seen is None:
                etag = await self._puts.create(OWNER, encode_owner(owner), self._keep_on)
            else:
                etag = await self._puts.replace(OWNER, encode_owner(owner), seen.etag, self._keep_on)
        except (TakenByOther, ObjectMissing):
            return False
        self._held = SeenOwner(owner, etag)
        if terms is not None:
            self.lease = Lease(terms.lease_ms, sent_ms, terms.boottime_ms)
            self._keeper = LeaseKeeper(terms.objects, self.lease, self._held, terms.boottime_ms)
            terms.start(self._keeper)
        return True

    def abandon(self) -> None:
        """Renew the lease no more, as after it was lost. Others may take the prefix when it has lapsed."""
        if self._keeper is not None:
            self._keeper.end()

    def lose(self, reason: str) -> None:
        """With a lease: give it up, because the prefix is another's, or this process cannot go on with it."""
        if self.lease is not None:
            self.lease.lose(reason)
            self.abandon()

    async def tell(self, last: int, *, free: bool = False) -> None:
        """Name a recent round, and with `free` give the prefix up. Raises TakenByOther, ObjectMissing,
        PutGivenUp. With a lease a round is named by the next renewal."""
        assert self._held is not None
        if self._keeper is not None:
            self._keeper.round = last
            if not free:
                return
            self._keeper.end()
            held = await self._offload.run(Pool.BUCKET_CHANGE, partial(self._keeper.join, JOIN_S))
            if held is None:
                raise PutGivenUp(OWNER)
            self._held = held
        owner = replace(
            self._held.owner,
            round=last,
            state="free" if free else "held",
            renewals=self._held.owner.renewals + 1,
        )
        etag = await self._puts.replace(OWNER, encode_owner(owner), self._held.etag, self._keep_on)
        self._held = SeenOwner(owner, etag)
