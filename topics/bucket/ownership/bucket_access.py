"""`BucketAccess`: is this the bucket that was meant, and is it fit."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.bucket.container import BadObject
from topics.bucket.local_note import BucketNote
from topics.bucket.object_names import FORMAT
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge
from topics.bucket.ownership.owner_format import BucketFormat, decode_format, encode_format
from topics.bucket.ownership.owner_object import BucketRefused
from topics.bucket.proof import StoreUnfit, prove_store
from topics.bucket.settled_puts import SettledPuts, TakenByOther
from topics.runtime.offload import Offload, Pool

MAX_FORMAT_BYTES: Final = 4096


class BucketAccess:
    """One daemon's first calls of a bucket."""

    def __init__(
        self, objects: ObjectStore, puts: SettledPuts, offload: Offload, nonce: str, keep_on: Callable[[], bool]
    ) -> None:
        self._objects = objects
        self._puts = puts
        self._offload = offload
        self._nonce = nonce
        self._keep_on = keep_on

    async def check(self, note: BucketNote, *, take: bool) -> str:
        """Prove that the store is fit, and return the id of the bucket, which is given to it if it is new. `take`: it
        may be another one than that of the note. Raises BucketRefused, PutGivenUp, StoreError."""
        if note.bucket and not take and await self._format() is None:
            raise BucketRefused(
                f"there is no bucket (no object {FORMAT}), and this directory was archived in one ({note.bucket}): is "
                "the URL right, and the disk of a file URL mounted? Start once with --take to begin a new one"
            )
        try:
            await self._offload.run(Pool.BUCKET_CHANGE, partial(prove_store, self._objects, self._nonce))
        except StoreUnfit as error:
            raise BucketRefused(str(error)) from error
        bucket = await self._bucket_id()
        if note.bucket not in ("", bucket) and not take:
            raise BucketRefused(
                f"the bucket is another one ({bucket}) than that in which this directory was archived ({note.bucket}); "
                "start once with --take to begin in this one"
            )
        return bucket

    async def _bucket_id(self) -> str:
        """Return the id of the bucket, which is given to it if it is new."""
        data = await self._format()
        if data is None:
            data = encode_format(BucketFormat(bucket=1, id=uuid.uuid4().hex))
            try:
                await self._puts.create(FORMAT, data, self._keep_on)
            except TakenByOther as other:
                data = other.data
        try:
            return decode_format(data).id
        except BadObject as error:
            raise BucketRefused(f"the object {FORMAT} of the bucket cannot be used: {error}") from error

    async def _format(self) -> bytes | None:
        """Return the object FORMAT; None if there is none."""
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, FORMAT, MAX_FORMAT_BYTES))
        except ObjectMissing:
            return None
        except ObjectTooLarge as error:
            raise BucketRefused(f"the object {FORMAT} of the bucket is damaged: {error}") from error
        return found.data
