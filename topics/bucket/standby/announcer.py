"""`Announcer`: the task of a standby that tells the others of it, in an object of its own in the bucket
(`docs/design/standby.md` section 7).

One put every `ANNOUNCE_S`. Nothing depends on it: a standby that may only read the bucket follows just as well, and is
missing in the list of replicas.
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
    StoreErrorKind,
)
from topics.bucket.standby.announcement import MAX_ANNOUNCEMENT_BYTES, Announcement, encode_announcement
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.telemetry.figures import StandbyFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

ANNOUNCE_S: Final = 30.0
"""How often a standby puts its announcement (s)."""

DENIED_S: Final = 600.0
"""The wait after the store has said that this may not be put (s)."""


class Announcer:
    """Puts the announcement of one standby. `look` returns its present figures."""

    def __init__(
        self,
        objects: ObjectStore,
        *,
        dir_id: str,
        url: str,
        look: Callable[[], StandbyFigures],
        clock: Clock,
        offload: Offload,
    ) -> None:
        self._objects = objects
        self._name = standby_name(dir_id)
        self._url = url
        self._look = look
        self._clock = clock
        self._offload = offload
        self._etag: str | None = None

    async def run(self) -> None:
        """Announce until cancelled. What the store refuses is logged, and tried again."""
        while True:
            pause_s = ANNOUNCE_S
            try:
                await self.announce()
            except StoreError as error:
                log.debug("standby_not_announced", problem=error.sentence)
                if error.kind is StoreErrorKind.DENIED:
                    pause_s = DENIED_S
            except (ObjectExists, ObjectChanged, ObjectMissing, ObjectTooLarge) as error:
                # An earlier put, whose answer was lost; or the collector has just removed it.
                log.debug("standby_not_announced", problem=str(error))
            await trio.sleep(pause_s)

    async def announce(self) -> None:
        """Put the announcement once. Raises StoreError, ObjectExists, ObjectChanged, ObjectMissing, ObjectTooLarge."""
        seen = self._look()
        announcement = Announcement(
            node=socket.gethostname(),
            url=self._url,
            state=seen.state,
            epoch=seen.epoch,
            round=seen.round,
            wall_ms=seen.wall_ms,
            lag_ms=seen.lag_ms,
            at=self._clock.now_ms(),
        )
        data = encode_announcement(announcement)
        etag, self._etag = self._etag, None
        self._etag = await self._offload.run(Pool.BUCKET_CHANGE, partial(self._put, data, etag))

    async def withdraw(self) -> None:
        """Remove the announcement, because this is a standby no more. Does nothing if the store refuses."""
        with suppress(StoreError):
            await self._offload.run(Pool.BUCKET_CHANGE, partial(self._objects.delete, [self._name]))

    def _put(self, data: bytes, etag: str | None) -> str:
        """Blocking: put the object in place of the one that has this ETag, of whichever is there if None."""
        if etag is None:
            try:
                etag = self._objects.get(self._name, MAX_ANNOUNCEMENT_BYTES).etag
            except ObjectMissing:
                return self._objects.put_new(self._name, data)
        return self._objects.put_if(self._name, data, etag)
