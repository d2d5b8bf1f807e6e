"""Room on the disk, measured twice a second: below a limit of bytes or of inodes appends are refused, so that
deletions, acks, checkpoints and reclaiming have a reserve (`docs/spec/crash.md` 27).

Appends are also refused while the data directory is not at its path, because it was moved, or replaced by another one.
Then no file is replaced or removed by its path either, as it would be another directory's.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import trio

from topics.config import Settings
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

TOLD_EVERY_S: Final = 10.0
"""Changes at the limit are logged at most once in so many seconds."""

LOOK_MS: Final = 500
"""How often the free space is measured (ms); `TOPICS_MIN_FREE_BYTES` is far more than can be written in between."""


DISPLACED: Final = "the data directory was moved, or another one was put in its place"


class FreeRoom(NamedTuple):
    """The free room on a disk."""

    bytes: int
    inodes: int | None
    """None where their number has no limit."""
    place: str
    """The directory that was measured (`Fs.identity`)."""


class FreeSpace:
    """Measures the room for a data directory. Made by the store; `watch` is a task, and `look` is called once before
    it."""

    def __init__(self, settings: Settings, path: str, *, fs: Fs, offload: Offload) -> None:
        self.shortage: str | None = None
        """The reason for refusing appends, as clients are told; None if there is enough room."""
        self.free_bytes: int | None = None
        """The free room at the last look; None if it is not known."""
        self.displaced = False
        """True while the data directory is not at its path."""
        self._place: str | None = None
        self._settings = settings
        self._path = path
        self._fs = fs
        self._offload = offload

    async def look(self) -> None:
        """Measure once before anything is appended. An OSError is left to `watch`."""
        with suppress(OSError):
            room = await self._room()
            self._place = room.place
            self.free_bytes = room.bytes
            self.shortage = self._shortage(room)

    async def watch(self) -> None:
        """Keep `shortage` up to date until cancelled."""
        settings = self._settings
        unknown = told = False
        told_at = -TOLD_EVERY_S
        while True:
            try:
                room = await self._room()
            except FileNotFoundError:
                self._displace(displaced=True)
            except OSError as error:
                if not unknown:
                    log.warning("free_space_unknown", error=str(error), taken_for_low=self.shortage is not None)
                unknown = True
            else:
                figures = {
                    "free_bytes": room.bytes,
                    "min_free_bytes": settings.min_free_bytes,
                    "free_inodes": room.inodes,
                    "min_free_inodes": settings.min_free_inodes,
                }
                if unknown:
                    log.info("free_space_known_again", **figures)
                self.free_bytes = room.bytes
                self._place = self._place or room.place
                self._displace(displaced=room.place != self._place)
                unknown, self.shortage = False, self._shortage(room)
                low = self.shortage is not None
                if not self.displaced and low != told and trio.current_time() - told_at >= TOLD_EVERY_S:
                    told, told_at = low, trio.current_time()
                    if told:
                        refused = "appends are refused (503 read_only) until there is more; reads and deletions go on"
                        log.error("disk_nearly_full", **figures, consequence=refused)
                    else:
                        log.warning("disk_has_room_again", **figures)
            await trio.sleep(LOOK_MS / 1000)

    def _displace(self, *, displaced: bool) -> None:
        if displaced and not self.displaced:
            self.shortage = DISPLACED
            log.error(
                "data_directory_displaced",
                directory=self._path,
                consequence="appends are refused (503 read_only), and no checkpoint is taken, until it is back",
            )
        elif self.displaced and not displaced:
            log.warning("data_directory_back", directory=self._path)
        self.displaced = displaced

    async def check_place(self) -> None:
        """Raise OSError if the data directory is not at its path. Must be called before files are replaced or removed
        by path."""
        try:
            room = await self._room()
        except FileNotFoundError as error:
            raise OSError(errno.ESTALE, DISPLACED, self._path) from error
        if self._place is not None and room.place != self._place:
            raise OSError(errno.ESTALE, DISPLACED, self._path)

    async def _room(self) -> FreeRoom:
        return await self._offload.run(Pool.FILES, partial(_room_at, self._fs, self._path))

    def _shortage(self, room: FreeRoom) -> str | None:
        settings = self._settings
        if self.displaced:
            return DISPLACED
        if room.bytes < settings.min_free_bytes:
            return f"less than {settings.min_free_bytes} bytes are free on the disk"
        if room.inodes is not None and room.inodes < settings.min_free_inodes:
            return f"less than {settings.min_free_inodes} inodes (files) are free on the disk"
        return None


def _room_at(fs: Fs, path: str) -> FreeRoom:
    return FreeRoom(fs.free_bytes(path), fs.free_inodes(path), fs.identity(path))
