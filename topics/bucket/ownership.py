"""Who may write to the prefix: the object `owner`, which is changed only by conditional puts (`docs/spec/bucket.md`
section 3, without leases)."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from topics.bucket.container import BadObject
from topics.bucket.object_names import OWNER
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge
from topics.bucket.owner_format import MAX_OWNER_BYTES, Owner, decode_owner, encode_owner
from topics.bucket.settled_puts import SettledPuts, TakenByOther
from topics.runtime.offload import Offload, Pool


class BucketRefused(Exception):
    """The bucket must not be used by this directory as things are. The message is for the operator."""


class SeenOwner(NamedTuple):
    """`owner` as it was read."""

    owner: Owner
    etag: str


class Ownership:
    """The right to write to a prefix. Made by the archive for each attempt to open it."""

    def __init__(
        self, objects: ObjectStore, puts: SettledPuts, offload: Offload, nonce: str, keep_on: Callable[[], bool]
    ) -> None:
        self._objects = objects
        self._puts = puts
        self._offload = offload
        self._nonce = nonce
        self._keep_on = keep_on
        """Returns False if a put that has failed is not to be repeated."""
        self._held: SeenOwner | None = None

    async def read(self) -> SeenOwner | None:
        """Return the present owner, None if there was never one. Raises StoreError, BucketRefused."""
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, OWNER, MAX_OWNER_BYTES))
            return SeenOwner(decode_owner(found.data), found.etag)
        except ObjectMissing:
            return None
        except (BadObject, ObjectTooLarge) as error:
            raise BucketRefused(f"the object {OWNER} of the bucket is damaged: {error}") from error

    async def take(self, seen: SeenOwner | None, *, dir_id: str, epoch: int, last: int, url: str) -> bool:
        """Become the owner in place of `seen`. Return False if somebody else was faster. Raises PutGivenUp."""
        owner = Owner(
            epoch=epoch, node=socket.gethostname(), dir=dir_id, state="held", nonce=self._nonce, url=url, round=last
        )
        try:
            if seen is None:
                etag = await self._puts.create(OWNER, encode_owner(owner), self._keep_on)
            else:
                etag = await self._puts.replace(OWNER, encode_owner(owner), seen.etag, self._keep_on)
        except (TakenByOther, ObjectMissing):
            return False
        self._held = SeenOwner(owner, etag)
        return True

    async def tell(self, last: int, *, free: bool = False) -> None:
        """Name a recent round, and with `free` give the prefix up. Raises TakenByOther, ObjectMissing,
        PutGivenUp."""
        assert self._held is not None
        owner = replace(
            self._held.owner,
            round=last,
            state="free" if free else "held",
            renewals=self._held.owner.renewals + 1,
        )
        etag = await self._puts.replace(OWNER, encode_owner(owner), self._held.etag, self._keep_on)
        self._held = SeenOwner(owner, etag)
