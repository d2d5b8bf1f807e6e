"""`ReplicaLook`: who has a prefix, its owner and the standbys that follow it, for people (`docs/design/standby.md`
section 7).

The bucket is asked only while somebody looks: `look` returns what is known, and has the task read again. A reader that
asks again after `LOOK_S` sees what has changed.

**When a standby was heard last.** Clocks of machines are not compared where that can be avoided: a standby whose
announcement has changed between two looks was heard just then. Only when an announcement is seen for the first time is
its time compared with the clock of this machine.
"""

from __future__ import annotations

from functools import partial
from typing import Final, NamedTuple

import trio

from topics.bucket.container import BadObject
from topics.bucket.object_names import OWNER, STANDBYS
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge, StoreError
from topics.bucket.ownership.owner_format import MAX_OWNER_BYTES, Owner, decode_owner
from topics.bucket.standby.announcement import MAX_ANNOUNCEMENT_BYTES, Announcement, decode_announcement
from topics.bucket.standby.announcer import ANNOUNCE_S
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.telemetry.figures import ReplicaFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOOK_S: Final = 5.0
"""The least time between two looks into the bucket (s)."""

SILENT_MS: Final = int(3 * ANNOUNCE_S * 1000)
"""A standby that was not heard for so long counts as silent (ms)."""

FORGOTTEN_MS: Final = 3_600_000
"""A standby that was not heard for so long is not listed any more (ms)."""

MOST_STANDBYS: Final = 50
"""Standbys that are read at most."""


class _Heard(NamedTuple):
    """An announcement, when it was seen first, and how old it was then (ms)."""

    announcement: Announcement
    seen_ms: int
    age_ms: int


class _Found(NamedTuple):
    """The objects as they were read."""

    owner: Owner | None
    announcements: dict[str, Announcement]
    """By the id of the directory."""


class ReplicaLook:
    """The replicas of one prefix. Made by an owner and by a standby; `run` is a task."""

    def __init__(self, objects: ObjectStore, *, dir_id: str | None, clock: Clock, offload: Offload) -> None:
        """`dir_id` is the id of the directory of this standby, None on the owner."""
        self._objects = objects
        self._dir = dir_id
        self._clock = clock
        self._offload = offload
        self._wanted = trio.Event()
        self._owner: Owner | None = None
        self._heard: dict[str, _Heard] = {}
        self._is_read = False

    def look(self) -> list[ReplicaFigures] | None:
        """Return the replicas as far as they are known, the owner first; None before the first look into the bucket.
        They are read again soon."""
        self._wanted.set()
        if not self._is_read:
            return None
        found = [] if self._owner is None else [self._owner_figures(self._owner)]
        owner_dir = self._owner.dir if self._owner is not None and self._owner.state == "held" else None
        # The announcement of a standby that has become the owner stays for a while.
        standbys = [self._figures(name, one) for name, one in self._heard.items() if name != owner_dir]
        shown = [one for one in standbys if one.heard_ms is not None and one.heard_ms <= FORGOTTEN_MS]
        return found + sorted(shown, key=lambda one: (one.url, one.node))

    async def run(self) -> None:
        """Read the bucket when somebody has looked, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            try:
                self._note(await self._offload.run(Pool.BUCKET_READ, partial(_read, self._objects)))
            except StoreError as error:
                log.debug("replicas_not_read", problem=error.sentence)
            await trio.sleep(LOOK_S)

    def _note(self, found: _Found) -> None:
        now_ms, wall_ms = self._clock.monotonic_ms(), self._clock.now_ms()
        self._owner = found.owner
        heard: dict[str, _Heard] = {}
        for name, announcement in found.announcements.items():
            known = self._heard.get(name)
            if known is None:
                heard[name] = _Heard(announcement, now_ms, max(wall_ms - announcement.at, 0))
            elif known.announcement.at == announcement.at:
                heard[name] = known
            else:
                heard[name] = _Heard(announcement, now_ms, 0)
        self._heard = heard
        self._is_read = True

    def _owner_figures(self, owner: Owner) -> ReplicaFigures:
        return ReplicaFigures(
            role="owner",
            node=owner.node,
            url=owner.url,
            is_this=self._dir is None and owner.state == "held",
            state="owns" if owner.state == "held" else "stopped",
            epoch=owner.epoch,
        )

    def _figures(self, name: str, heard: _Heard) -> ReplicaFigures:
        said = heard.announcement
        heard_ms = self._clock.monotonic_ms() - heard.seen_ms + heard.age_ms
        return ReplicaFigures(
            role="standby",
            node=said.node,
            url=said.url,
            is_this=name == self._dir,
            state="silent" if heard_ms > SILENT_MS else said.state,
            epoch=said.epoch,
            round=said.round,
            at=said.wall_ms,
            lag_ms=said.lag_ms,
            heard_ms=heard_ms,
        )


def _read(objects: ObjectStore) -> _Found:
    """Blocking: read `owner` and the announcements. What is damaged is left out. Raises StoreError."""
    owner: Owner | None = None
    try:
        owner = decode_owner(objects.get(OWNER, MAX_OWNER_BYTES).data)
    except (ObjectMissing, ObjectTooLarge, BadObject) as error:
        log.debug("owner_not_read", problem=str(error))
    announcements: dict[str, Announcement] = {}
    for facts in objects.list(STANDBYS, limit=MOST_STANDBYS):
        try:
            found = decode_announcement(objects.get(facts.name, MAX_ANNOUNCEMENT_BYTES).data)
        except (ObjectMissing, ObjectTooLarge, BadObject) as error:
            log.debug("announcement_not_read", name=facts.name, problem=str(error))
        else:
            announcements[facts.name.removeprefix(STANDBYS)] = found
    return _Found(owner, announcements)
