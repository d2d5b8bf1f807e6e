"""`Standby`: what the daemon does instead of owning a log, while it follows that of another daemon
(`docs/design/standby.md`).

    prepare    before anything is opened: the directory goes on, or is made from the newest base
    recover    the topics as of the last cut, and the follower that goes on from there
    run        the follower, until the daemon stops, cannot go on, or gets the prefix

When it gets the prefix, the process begins again with the same directory, as after a kill of the owner: everything is
here already (section 6 of that page).

The parts are `topics.bucket.standby` (rounds and files) and `topics.engine.standby` (topics).
"""

from __future__ import annotations

import os
import secrets
from functools import partial
from typing import Final

import msgspec
import trio

from topics.bucket.archive import lease_terms, make_objects
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.local_note import BucketNote
from topics.bucket.object_store import StoreError
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.restore_target import NothingToRestore
from topics.bucket.ownership.owner_object import BucketRefused, Ownership
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.settled_puts import PutGivenUp, SettledPuts
from topics.bucket.standby.announcer import Announcer
from topics.bucket.standby.directory import StandbyRefused, mark_unfinished, prepare_directory, why_anew
from topics.bucket.standby.followed_log import FollowedLog
from topics.bucket.standby.handover import hand_over
from topics.bucket.standby.replica_look import ReplicaLook
from topics.bucket.standby.round_follower import RoundFollower, Unfollowable
from topics.config import Settings
from topics.engine.engine import Engine
from topics.engine.standby.copy_sources import CopySources
from topics.engine.standby.key_expiry import KeyExpiry
from topics.engine.standby.live_replay import LiveReplay
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import OsFs
from topics.storage.recovery.damage import Damage
from topics.storage.wal.followed_shard import FollowedShard
from topics.telemetry.figures import StandbyFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 10.0
"""The first and the longest wait before the bucket is asked again for a directory (s)."""

OWNER_S: Final = 1.0
"""How often the present owner is looked for, at least (s)."""

OPENING: Final = StandbyFigures(state="opening")


async def prepare(settings: Settings, offload: Offload) -> BucketNote | None:
    """Have a directory that can be followed on; None if it is the owner's, and takeover is on. Waits for a bucket that
    does not answer, or has no base yet. Raises StandbyRefused, BucketRefused, OSError."""
    if not settings.bucket:
        raise StandbyRefused("a standby follows a bucket: set TOPICS_BUCKET to that of its owner")
    objects = make_objects(settings, os.environ, offload)
    root, takes = str(settings.data_dir), settings.bucket_takeover
    copies_all = settings.cold_dir is not None
    call = partial(prepare_directory, OsFs(), root, settings.bucket, objects, takes=takes, copies_all=copies_all)
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await offload.run(Pool.CPU, call)
        except (StoreError, BucketDamaged, NothingToRestore) as error:
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
        on_changed=engine.adopt_replayed,
        offload=engine.offload,
    )


def key_expiry(engine: Engine) -> KeyExpiry:
    """Return what forgets, on a standby, the keys whose window is over."""
    return KeyExpiry(
        [engine.keys.take_stock, engine.unique_jobs.take_stock],
        [engine.stage_commits.expire, engine.transactions.expire],
    )


class Standby:
    """Made by the daemon for one run, from the note of its directory."""

    def __init__(self, settings: Settings, engine: Engine, note: BucketNote, url: str) -> None:
        """`url` is where clients reach this daemon. Raises BucketRefused."""
        self.has_taken = False
        """True if this daemon has got the prefix: the process begins again as its owner."""
        self._settings = settings
        self._engine = engine
        self._note = note
        self._follower: RoundFollower | None = None
        self._replay: LiveReplay | None = None
        self.objects: BoundedObjects = make_objects(settings, os.environ, engine.offload)
        nonce = secrets.token_hex(8)
        puts = SettledPuts(self.objects, engine.offload)
        terms = lease_terms(settings, os.environ, engine.offload, engine.clock) if settings.bucket_takeover else None
        self._ownership = Ownership(self.objects, puts, engine.offload, nonce, lambda: True, terms)
        self._takeover = Takeover(
            self.objects,
            puts,
            self._ownership,
            dir_id=note.dir,
            url=url,
            nonce=nonce,
            clock=engine.clock,
            offload=engine.offload,
            keep_on=self._keep_on,
        )
        self._takeover.watch.absent_ms = settings.bucket_lease_ms
        self._problem = ""
        """Why nobody can be seen as the owner; empty if somebody can."""
        self.announcer = Announcer(
            self.objects, dir_id=note.dir, url=url, look=self.look, clock=engine.clock, offload=engine.offload
        )
        self.replicas = ReplicaLook(self.objects, dir_id=note.dir, clock=engine.clock, offload=engine.offload)
        """Tasks that the daemon runs besides: this standby tells of itself, and looks who else has the bucket."""
        engine.metrics.replicas = self.replicas.look
        engine.time.hold(note.wall_ms)
        engine.status.following = self.look

    def _keep_on(self) -> bool:
        lease = self._ownership.lease
        return lease is None or lease.is_held

    def look(self) -> StandbyFigures:
        """What it follows, and how far."""
        return self._follower.look() if self._follower is not None else OPENING

    async def recover(self) -> bool:
        """Rebuild the topics as of the last cut that is here. Return False if the log here is damaged: then the next
        start makes the directory anew, since the bucket has everything. Raises like `Engine.recover`, but for
        Damage."""
        engine = self._engine
        datadir = engine.store.datadir
        try:
            replay = self._replay = await follow(engine)
            problem = self._damage_in(replay)
        except Damage as error:
            problem = str(error)
        if problem:
            await engine.offload.run(Pool.FILES, partial(mark_unfinished, engine.fs, datadir.root))
            log.warning("standby_begins_anew", reason=problem)
            return False
        self._follower = RoundFollower(
            self._note,
            self._takeover,
            replay,
            FollowedLog(engine.fs, datadir, engine.store.files, replay.shards),
            fs=engine.fs,
            datadir=datadir,
            clock=engine.clock,
            offload=engine.offload,
            poll_ms=self._settings.bucket_poll_ms,
        )
        return True

    def _damage_in(self, replay: LiveReplay) -> str:
        """Return in which shard damage has ended the replay before the place of the note; empty if in none. Recovery
        takes such an end for a torn one, and no reader may see half of a round."""
        for shard, (ordinal, offset) in enumerate(self._note.positions or ()):
            found = replay.shards.get(shard)
            if offset and (found is None or found.file is None or (found.file.ordinal, found.end) < (ordinal, offset)):
                return f"shard {shard} of the log is damaged: it was whole up to {offset} of file {ordinal}"
        if replay.damaged:
            return f"records of topic {replay.damaged[0]!r} are damaged"
        return ""

    async def _watch_damage(self, follower: RoundFollower) -> None:
        """Look if something of this directory was found damaged: readers are refused it, and the directory is made
        anew, since the bucket has it. Raises Unfollowable, OSError."""
        while True:
            await trio.sleep(OWNER_S)
            if self._damage:
                raise await follower.give_up(self._damage)

    @property
    def _damage(self) -> str:
        """What was found damaged; empty if nothing was."""
        writers = self._engine.store.writers
        return next((one.damage for one in writers if isinstance(one, FollowedShard) and one.damage), "")

    async def run(self) -> None:
        """Follow. Returns when the process has to begin again: as the owner (`has_taken`), or with another
        directory."""
        assert self._follower is not None
        reasons: list[str] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(key_expiry(self._engine).run)
                nursery.start_soon(self._watch_damage, self._follower)
                nursery.start_soon(self._watch_owner, self._follower, nursery.cancel_scope)
                await self._follower.run()
            if self.has_taken:
                await self._become_owner(self._follower)
        except* Unfollowable as group:
            reasons += [str(error) for error in group.exceptions]
        if reasons:
            # Nobody could take over while a process that cannot be the owner renews the lease.
            self.has_taken = False
            self._ownership.abandon()
            log.warning("standby_begins_anew", reason="; ".join(reasons))

    async def _watch_owner(self, follower: RoundFollower, following: trio.CancelScope) -> None:
        """Look who the owner is, and take the prefix when that is due. Then `following` ends."""
        while True:
            try:
                reason = await self._takeover.look()
                owner = self._takeover.watch.owner
                if (
                    self._settings.bucket_takeover
                    and reason is not None
                    and follower.is_current
                    and (owner.round if owner is not None else 0) <= follower.place.number
                    and not self._damage
                ):
                    if owner is None:
                        await self._check_bucket(follower)
                    self.has_taken = await self._takeover.take(follower.place.number, follower.place.epoch)
            except StoreError as error:
                log.debug("owner_not_seen", problem=error.sentence)
            except (BucketRefused, BucketDamaged, PutGivenUp) as error:
                self._tell(str(error))
            else:
                self._tell("" if owner is not None or self.has_taken else "the object owner of the bucket is gone")
            if self.has_taken:
                following.cancel()
                return
            await trio.sleep(min(self._takeover.pause_s, OWNER_S))

    def _tell(self, problem: str) -> None:
        """Log why the owner cannot be seen, once for each reason: nobody takes over meanwhile."""
        if problem and problem != self._problem:
            log.warning("owner_not_read", problem=problem)
        self._problem = problem

    async def _check_bucket(self, follower: RoundFollower) -> None:
        """Look if a bucket without `owner` is still the one that is followed, up to the last round: if all
        of it has gone, this directory must stay as it is. Raises BucketRefused, BucketDamaged, StoreError."""
        place = follower.place
        note = msgspec.structs.replace(follower.note, round=place.number, hash=place.hash)
        work = partial(why_anew, BucketReader(self.objects), note)
        try:
            problem = await self._engine.offload.run(Pool.BUCKET_READ, work)
        except StandbyRefused as error:
            problem = str(error)
        if problem:
            raise BucketRefused(f"the object owner of the bucket is gone, and {problem}")

    async def _become_owner(self, follower: RoundFollower) -> None:
        """Follow to the end, put the fencing round, and make the directory the owner's. A failure leaves it a
        standby's: the next start is named in `owner`, and goes on from there. Raises Unfollowable."""
        engine = self._engine
        assert self._replay is not None
        place = await follower.fence()
        note = msgspec.structs.replace(
            follower.note, epoch=place.epoch, round=place.number, hash=place.hash, wall_ms=place.wall_ms
        )
        work = partial(hand_over, engine.fs, engine.store.datadir, note, goes_on=place.ends_cut)
        try:
            # The clock of windows goes on from where that of the former owner was at the last cut.
            self._replay.settle_windows()
            await engine.offload.run(Pool.FILES, engine.store.write_clock_mark)
            await engine.offload.run(Pool.FILES, work)
        except OSError as error:
            raise Unfollowable(f"the directory cannot be made the owner's now: {error}") from error
        await self.announcer.withdraw()
        self._ownership.abandon()  # the lease runs on, and the start of the owner takes it again
        log.warning("standby_takes_over", round=place.number, epoch=place.epoch, goes_on=place.ends_cut)


__all__ = ["BucketRefused", "Standby", "StandbyRefused", "prepare"]
