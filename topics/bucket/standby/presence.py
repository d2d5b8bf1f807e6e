"""`Presence`: what a standby tells of itself in the bucket, for `topics bucket status` (`docs/design/standby.md`
section 8).

An object `standbys/<directory>` says who follows and how far. Nothing depends on it: an owner does not know its
standbys, and a standby that cannot write there follows all the same.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from topics.bucket.object_names import standby_name
from topics.bucket.object_store import (
    ObjectChanged,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObjectTooLarge,
    StoreError,
)
from topics.bucket.standby.presence_format import MAX_STANDBY_BYTES, StandbyPresence, encode_presence
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.telemetry.figures import StandbyFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

TELL_MS: Final = 30_000
"""How often a standby tells of itself (ms)."""


class Presence:
    """Tells of one standby. `run` is a task."""

    def __init__(
        self,
        objects: ObjectStore,
        look: Callable[[], StandbyFigures],
        *,
        dir_id: str,
        url: str,
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._objects = objects
        self._look = look
        self._dir = dir_id
        self._url = url
        self._clock = clock
        self._offload = offload
        self._problem = ""

    async def run(self) -> None:
        """Tell of the standby until cancelled. A failure is logged once, and tried again."""
        while True:
            await self.tell()
            await trio.sleep(TELL_MS / 1000)

    async def tell(self) -> None:
        """Put the object. Does nothing if the store refuses."""
        try:
            await self._offload.run(Pool.BUCKET_CHANGE, partial(_put_over, self._objects, self._name, self._content()))
        except (StoreError, ObjectTooLarge) as error:
            if not self._problem:
                log.warning(
                    "standby_not_told", problem=str(error), consequence="`topics bucket status` does not show it"
                )
            self._problem = str(error)
        else:
            self._problem = ""

    async def withdraw(self) -> None:
        """Remove the object, because this is a standby no more."""
        with suppress(StoreError):
            await self._offload.run(Pool.BUCKET_CHANGE, partial(self._objects.delete, [self._name]))

    @property
    def _name(self) -> str:
        return standby_name(self._dir)

    def _content(self) -> bytes:
        figures = self._look()
        return encode_presence(
            StandbyPresence(
                dir=self._dir,
                node=socket.gethostname(),
                url=self._url,
                state=figures.state,
                epoch=figures.epoch,
                round=figures.round,
                wall_ms=figures.wall_ms,
                lag_ms=figures.lag_ms,
                told_ms=self._clock.now_ms(),
            )
        )


def _put_over(objects: ObjectStore, name: str, data: bytes) -> None:
    """Put an object that only this process writes. Raises StoreError, ObjectTooLarge."""
    try:
        found = objects.get(name, MAX_STANDBY_BYTES)
        objects.put_if(name, data, found.etag)
    except ObjectMissing:
        with suppress(ObjectExists):  # an earlier attempt, whose answer was lost
            objects.put_new(name, data)
    except ObjectChanged:
        pass  # the same
