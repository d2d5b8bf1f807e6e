"""Uploads of one base: several at a time, a bounded number of bytes, each object only if there is none of its name.

An object that exists already is ours only if it has the same bytes: names have the epoch of this process. A put whose
answer was lost is decided by reading the object back. What is not decided fails, and with it the base; it is made again
later, under other names, but for segments (`attempted`).
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Final

import trio

from topics.bucket.object_store import ObjectExists, ObjectMissing, ObjectStore, ObjectTooLarge, StoreError
from topics.runtime.offload import Offload, Pool

PARALLEL: Final = 4
"""Puts of one base at a time."""

MAX_BYTES: Final = 128 << 20
"""Of all objects that are being put together. A larger object is put alone."""


class NotOurs(Exception):
    """There is an object with this name and other bytes. `hash` is the SHA-256 of these, None if they are too many."""

    def __init__(self, name: str, hash: bytes | None) -> None:
        super().__init__(f"the object {name} exists, and is another one")
        self.name = name
        self.hash = hash


class Puts:
    """Puts objects, one by one. Made once for a `BaseWriter`; counts what was put."""

    def __init__(self, objects: ObjectStore, offload: Offload) -> None:
        self._objects = objects
        self._offload = offload
        self.objects = 0
        self.bytes = 0
        """Of all objects that were put."""
        self.objects_by_kind: Counter[str] = Counter()
        self.bytes_by_kind: Counter[str] = Counter()
        """The same by kind: what is before the first slash of a name."""

    async def create(self, name: str, data: bytes) -> None:
        """Have an object with these bytes. Raises StoreError if that is not certain, and NotOurs."""
        try:
            await self._offload.run(Pool.BUCKET_CHANGE, partial(self._objects.put_new, name, data))
        except ObjectExists:
            await self._read_back(name, data)
        except StoreError as error:
            try:
                await self._read_back(name, data)
            except (ObjectMissing, StoreError):
                raise error from None
        kind = name.partition("/")[0]
        self.objects += 1
        self.bytes += len(data)
        self.objects_by_kind[kind] += 1
        self.bytes_by_kind[kind] += len(data)

    async def _read_back(self, name: str, data: bytes) -> None:
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, name, len(data)))
        except ObjectTooLarge:
            raise NotOurs(name, None) from None
        if found.data != data:
            raise NotOurs(name, hashlib.sha256(found.data).digest())


class Uploads:
    """Puts that go on in the tasks of `nursery`, which a failed one ends."""

    def __init__(self, puts: Puts, nursery: trio.Nursery) -> None:
        self._puts = puts
        self._nursery = nursery
        self._running = 0
        self._bytes = 0
        self._changed = trio.Event()

    async def put(self, name: str, data: bytes, done: Callable[[], None] | None = None) -> None:
        """Begin to put an object; waits for room. `done` is called when it is there."""
        while self._running and (self._running >= PARALLEL or self._bytes + len(data) > MAX_BYTES):
            await self._changed.wait()
        self._running += 1
        self._bytes += len(data)
        self._nursery.start_soon(self._put, name, data, done)
        await trio.lowlevel.checkpoint()

    async def _put(self, name: str, data: bytes, done: Callable[[], None] | None) -> None:
        try:
            await self._puts.create(name, data)
            if done is not None:
                done()
        finally:
            self._running -= 1
            self._bytes -= len(data)
            self._changed.set()
            self._changed = trio.Event()
