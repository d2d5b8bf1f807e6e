"""The packs of the base that is being made: blobs gather in one, and a full one is put."""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from topics.bucket.base_format import BlobRef, PackBuilder
from topics.bucket.bases.uploads import Uploads
from topics.bucket.object_names import PackName, pack_name
from topics.runtime.offload import Offload, Pool

SMALL: Final = 8 << 10
"""A blob of at most so many bytes is compressed on the loop, in less than 0.1 ms."""


class PackNumbers:
    """Gives every pack of a process a number of its own, also after a base that failed."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._next = 1

    @property
    def last(self) -> int:
        """The number that was given last; 0 if none was."""
        return self._next - 1

    def take(self) -> PackName:
        """Return the name of the next pack."""
        name = PackName(self._epoch, self._next)
        self._next += 1
        return name


class Packs:
    """Takes blobs for one base. Used by one task."""

    def __init__(self, numbers: PackNumbers, uploads: Uploads, offload: Offload) -> None:
        self._numbers = numbers
        self._uploads = uploads
        self._offload = offload
        self._builder: PackBuilder | None = None

    async def add(self, content: bytes) -> BlobRef:
        """Take a blob in, and return where it is going to be."""
        if self._builder is None:
            self._builder = PackBuilder(self._numbers.take())
        builder = self._builder
        if len(content) <= SMALL:
            ref = builder.add(content)
            await trio.lowlevel.checkpoint()
        else:
            ref = await self._offload.run(Pool.CPU, partial(builder.add, content))
        if builder.is_full:
            await self.finish()
        return ref

    async def finish(self) -> None:
        """Put what has gathered."""
        builder, self._builder = self._builder, None
        if builder is not None:
            data = await self._offload.run(Pool.CPU, builder.finished)
            await self._uploads.put(pack_name(builder.name), data)
