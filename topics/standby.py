"""`Standby`: what the daemon does instead of owning a log, while it follows that of another daemon
(`docs/design/standby.md`).

    prepare    before anything is opened: the directory goes on, or is made from the newest base
    recover    the topics as of the last cut, and the follower that goes on from there
    run        the follower, until the daemon stops or cannot go on

The parts are `topics.bucket.standby` (rounds and files) and `topics.engine.standby` (topics).
"""

from __future__ import annotations

import os
import secrets
from functools import partial
from typing import Final

import trio

from topics.bucket.archive import make_objects
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.local_note import BucketNote
from topics.bucket.object_store import StoreError
from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.bucket.ownership.owner_object import BucketRefused, Ownership
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.settled_puts import SettledPuts
from topics.bucket.standby.directory import StandbyRefused, prepare_directory
from topics.bucket.standby.followed_log import FollowedLog
from topics.bucket.standby.round_follower import RoundFollower, Unfollowable
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.standby.copy_sources import CopySources
from topics.engine.standby.live_replay import LiveReplay
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import OsFs
from topics.telemetry.figures import StandbyFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 10.0
"""The first and the longest wait before the bucket is asked again for a directory (s)."""

OPENING: Final = StandbyFigures(state="opening")


async def prepare(settings: Settings, offload: Offload) -> BucketNote:
    """Have a directory that can be followed on. Waits for a bucket that does not answer, or has no base yet. Raises
    StandbyRefused, BucketRefused, OSError."""
    if not settings.bucket:
        raise StandbyRefused("a standby follows a bucket: set TOPICS_BUCKET to that of its owner")
    objects = make_objects(settings, os.environ, offload)
    call = partial(prepare_directory, OsFs(), str(settings.data_dir), settings.bucket, objects)
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await offload.run(Pool.CPU, call)
        except (StoreError, BucketDamaged) as error:
            sentence = error.sentence if isinstance(error, StoreError) else str(error)
            log.warning("standby_not_begun", problem=sentence, consequence="it is tried again")
        await trio.sleep(wait_s)
        wait_s = min(2 * wait_s, LONGEST_WAIT_S)


async def follow(engine: Engine) -> LiveReplay:
    """Rebuild everything from the disk of a standby, and return what goes on from there. From here on the engine
    refuses changes, and nothing is expired, evicted or forwarded. Raises like `Engine.recover`."""
    engine.registry.follows = True
    engine.forwarders.at_rest = True
    recovered = await engine.store.open_following(engine.status.standby_refusal)
    await engine.restore(recovered)
    sources = CopySources(
        engine.registry,
        engine.store,
        engine.loader,
        engine.reclaimer,
        engine.file_holds,
        engine.compactor.replay_starts,
        fs=engine.fs,
        offload=engine.offload,
    )
    return LiveReplay(
        recovered,
        engine.registry,
        engine.store,
        engine.indexes,
        sources,
        topic_lifecycle=engine.topic_lifecycle,
        routers=engine.routers,
        time=engine.time,
        status=engine.status,
        fs=engine.fs,
    )


class Standby:
    """Made by the daemon for one run, from the note of its directory."""

    def __init__(self, settings: Settings, engine: Engine, note: BucketNote, port: int) -> None:
        """Raises BucketRefused."""
        self._settings = settings
        self._engine = engine
        self._note = note
        self._url = f"http://{settings.host}:{port}"
        self._follower: RoundFollower | None = None
        self.objects: BoundedObjects = make_objects(settings, os.environ, engine.offload)
        engine.time.hold(note.wall_ms)
        engine.status.following = self.look

    def look(self) -> StandbyFigures:
        """What it follows, and how far."""
        return self._follower.look() if self._follower is not None else OPENING

    async def recover(self) -> None:
        """Rebuild the topics as of the last cut that is here. Raises like `Engine.recover`."""
        engine, settings = self._engine, self._settings
        replay = await follow(engine)
        nonce = secrets.token_hex(8)
        puts = SettledPuts(self.objects, engine.offload, lambda state: None)
        ownership = Ownership(self.objects, puts, engine.offload, nonce, lambda: True)
        takeover = Takeover(
            self.objects,
            puts,
            ownership,
            dir_id=self._note.dir,
            url=self._url,
            nonce=nonce,
            clock=engine.clock,
            offload=engine.offload,
        )
        datadir = engine.store.datadir
        self._follower = RoundFollower(
            self._note,
            takeover,
            replay,
            FollowedLog(engine.fs, datadir, engine.store.files, replay.shards),
            fs=engine.fs,
            datadir=datadir,
            clock=engine.clock,
            offload=engine.offload,
            poll_ms=settings.bucket_poll_ms,
        )

    async def run(self) -> None:
        """Follow. Returns if this process cannot go on, and the next one can."""
        assert self._follower is not None
        try:
            await self._follower.run()
        except* Unfollowable as group:
            reasons = [str(error) for error in group.exceptions]
            log.warning("standby_begins_anew", reason="; ".join(reasons))


__all__ = ["BucketRefused", "Standby", "StandbyRefused", "prepare"]
