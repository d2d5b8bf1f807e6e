"""`StartClaim`: a daemon with takeover gets the prefix before it recovers anything (`docs/design/replication.md`
section 5).

    this directory is the owner's      the prefix is taken at once. Rounds behind `meta/bucket` are this directory's
                                       own: its log has their bytes, or gets them (`repair`)
    the prefix is new                  it is taken; the archive begins the first history
    the directory is empty             waits until the prefix may be taken, takes it, puts the fencing round, and makes
                                       the directory from the bucket. The history goes on. If there is no base, and so
                                       nothing to make it from, another history begins, but only if nobody can have been
                                       told of what the owner before had (`Owner.counts_without_base`)
    another directory owned the bucket since this one did
                                       refused: the log of this one has gone another way

If `owner` is absent and there are rounds, somebody has removed it. The rounds count: who wrote last is seen in their
epochs, and who begins without a note waits for a lease, because the owner may not know yet.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from functools import partial

import trio

from topics.bucket.local_note import BadNote, BucketNote, read_note
from topics.bucket.object_store import ObjectStore, StoreError, StoreErrorKind
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import (
    UNFINISHED,
    WORKERS,
    BucketRestore,
    RestoreSource,
    Workers,
    remove_unfinished,
)
from topics.bucket.offline.restore_target import (
    NoBase,
    RestoreRefused,
    RestoreTarget,
    choose_target,
    with_whole_base,
)
from topics.bucket.ownership.bucket_access import BucketAccess
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_format import Owner
from topics.bucket.ownership.owner_object import BucketRefused, LeaseTerms, Ownership
from topics.bucket.ownership.owner_watch import TakeReason
from topics.bucket.ownership.takeover import LONGEST_LOOK_S, Takeover
from topics.bucket.pins import drop_pin, pinned
from topics.bucket.place import Place
from topics.bucket.round_format import Round
from topics.bucket.settled_puts import SettledPuts
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.runtime.window_clock import ClockMark
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs, join
from topics.storage.snapshots.clock_mark import write_mark
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class StartClaim:
    """One start. Made by the daemon, if takeover is on."""

    def __init__(
        self,
        objects: ObjectStore,
        terms: LeaseTerms,
        fs: Fs,
        datadir: DataDir,
        *,
        clock: Clock,
        offload: Offload,
        url: str,
        bucket_url: str,
        take: bool,
        show: Callable[[str, str], None],
        copies_all: bool = False,
        in_place: bool = False,
        yields: bool = False,
        workers: int = WORKERS,
    ) -> None:
        """`url` is where this daemon answers. `take`: the operator says that the owner is gone for good. `show` is told
        why the daemon waits, and the URL of the owner. `copies_all`: a directory from the bucket has all segments from
        the beginning, because cold ones are not read from there. `in_place`: a disk is mounted at the directory.
        `yields`: if another directory has owned the bucket since this one did, `show` is told its URL, and the caller
        ends the wait; otherwise the start is refused. With an empty directory it is told when the owner has renewed its
        lease: there may be nothing to follow, and nobody but this daemon to take over."""
        self.nonce = secrets.token_hex(8)
        self.dir_id = secrets.token_hex(16)
        self._objects = objects
        self._fs = fs
        self._datadir = datadir
        self._clock = clock
        self._offload = offload
        self._url = url
        self._bucket_url = bucket_url
        self._take = take
        self._show = show
        self._workers = workers
        self._copies_all = copies_all
        self._in_place = in_place
        self._yields = yields
        self._lease_ms = terms.lease_ms
        self._puts = SettledPuts(objects, offload)
        self.ownership = Ownership(objects, self._puts, offload, self.nonce, self._keep_on, terms)

    @property
    def lease(self) -> Lease:
        """The lease that `run` has got."""
        assert self.ownership.lease is not None
        return self.ownership.lease

    def _keep_on(self) -> bool:
        lease = self.ownership.lease
        return lease is None or lease.is_held

    async def run(self, *, is_empty: bool) -> None:
        """Get the prefix; with `is_empty` also the directory, if the bucket has anything. Waits as long as that takes.
        Raises BucketRefused, BucketDamaged, StoreError, OSError, PutGivenUp."""
        note = None if is_empty else await self._offload.run(Pool.FILES, self._note)
        if note is not None:
            self.dir_id = note.dir
        access = BucketAccess(self._objects, self._puts, self._offload, self.nonce, self._keep_on)
        await self._answered(partial(access.check, note or BucketNote(bucket="", dir=self.dir_id), take=self._take))
        takeover = Takeover(
            self._objects,
            self._puts,
            self.ownership,
            dir_id=self.dir_id,
            url=self._url,
            nonce=self.nonce,
            clock=self._clock,
            offload=self._offload,
            keep_on=self._keep_on,
            has_log=not is_empty,
        )
        while not await self._waited_and_taken(takeover, note, is_empty=is_empty):
            pass
        owner = takeover.watch.owner
        if is_empty:
            await self._restore(takeover)
        elif note is not None and note.positions is not None and owner is not None and owner.dir == note.dir:
            await self._fence(takeover)

    async def _waited_and_taken(self, takeover: Takeover, note: BucketNote | None, *, is_empty: bool) -> bool:
        """Wait until the prefix may be taken, and take it. Return False if it has to be looked at again. Raises as
        `run`."""
        reason = await self._wait(takeover, note, is_empty=is_empty)
        owner = takeover.watch.owner
        try:
            behind = await self._last_place(takeover) if owner is None else None
        except StoreError as error:
            self._show(f"the bucket does not answer: {error.sentence}", "")
            await trio.sleep(LONGEST_LOOK_S)
            return False
        if behind is not None and not self._take and not self._may_follow(takeover, note, behind):
            return False
        is_new = owner is None and behind is None
        if is_empty and not is_new and not self._take and not await self._is_restorable(owner):
            await trio.sleep(LONGEST_LOOK_S)
            return False
        known = max(
            owner.round if owner is not None else 0,
            note.round if note is not None else 0,
            behind.number if behind is not None else 0,
        )
        least = max(note.epoch if note is not None else 0, behind.round_epoch if behind is not None else 0)
        if not await takeover.take(known, least):
            return False
        log.info(
            "bucket_claimed", reason=reason.value if reason is not None else "--take", lease_ms=self.lease.lease_ms
        )
        return True

    def _may_follow(self, takeover: Takeover, note: BucketNote | None, behind: Place) -> bool:
        """Return True if a prefix without `owner` may be taken behind its rounds now, False if `owner` has to be absent
        for a lease before. Raises BucketRefused."""
        if note is not None:
            if behind.round_epoch > note.epoch and note.positions is not None:
                raise BucketRefused(
                    f"the object owner of the bucket is gone, and another data directory has written round "
                    f"{behind.number} (epoch {behind.round_epoch}) since this one did (epoch {note.epoch}). Start that "
                    "one; or move this one aside and start with an empty one"
                )
            return True
        waits = not takeover.watch.absent_ms
        takeover.watch.absent_ms = takeover.watch.absent_ms or self._lease_ms
        return not waits

    async def _answered(self, call: Callable[[], Awaitable[object]]) -> None:
        """Make a call until the store answers it."""
        while True:
            try:
                await call()
            except StoreError as error:
                if error.kind in (StoreErrorKind.DENIED, StoreErrorKind.NO_BUCKET):
                    raise BucketRefused(error.sentence) from error
                self._show(f"the bucket does not answer: {error.sentence}", "")
                await trio.sleep(LONGEST_LOOK_S)
            else:
                return

    def _note(self) -> BucketNote | None:
        try:
            return read_note(self._fs, self._datadir)
        except BadNote as error:
            raise BucketRefused(
                f"{self._datadir.bucket_path} is damaged: {error}. Remove it, and start once with --take"
            ) from error

    async def _wait(self, takeover: Takeover, note: BucketNote | None, *, is_empty: bool) -> TakeReason | None:
        """Wait until the prefix may be taken. Return why; None if the operator says so."""
        first: tuple[int, str, int] | None = None
        while True:
            try:
                reason = await takeover.look()
            except StoreError as error:
                self._show(f"the bucket does not answer: {error.sentence}", "")
                await trio.sleep(takeover.pause_s)
                continue
            owner = takeover.watch.owner
            if self._take:
                return reason
            # Also of a directory that has lost the bucket before it had opened it: its log is not behind the rounds.
            is_others = owner is not None and note is not None and owner.dir != note.dir
            if owner is not None and is_others and not self._yields:
                raise BucketRefused(
                    f"another data directory (node {owner.node}, directory {owner.dir}, epoch {owner.epoch}) has owned "
                    "the bucket since this one did, and this one may have what the bucket has not. Move it aside and "
                    "start with an empty one, or start once with --take to begin anew behind the rounds of the bucket"
                )
            if reason is not None and not is_others:
                return reason
            if owner is None:
                self._show("the bucket has rounds, and its object owner is gone", "")
                await trio.sleep(takeover.pause_s)
                continue
            seen = (owner.epoch, owner.nonce, owner.renewals)
            first = first or seen
            waits = self._yields and is_empty and seen == first
            self._show(f"node {owner.node} owns the bucket (epoch {owner.epoch})", "" if waits else owner.url)
            await trio.sleep(takeover.pause_s)

    async def _is_restorable(self, owner: Owner | None) -> bool:
        """Return True if this directory could be made from the bucket, or may begin anew. If the bucket has no base,
        what the owner had counts only in its directory, which must not be refused when it is back. Raises
        BucketDamaged."""
        try:
            return await self._offload.run(Pool.BUCKET_READ, partial(self._may_be_restored, owner))
        except RestoreRefused as error:
            who = f"node {owner.node}" if owner is not None else "the directory that has written its rounds"
            self._show(f"{error}, and only {who} can go on", owner.url if owner is not None else "")
        except StoreError as error:
            self._show(f"the bucket does not answer: {error.sentence}", "")
        return False

    # -- the log of this directory -----------------------------------------------------------------------------------

    async def _fence(self, takeover: Takeover) -> None:
        """Put the first round of the epoch behind the rounds of this directory. What these have is compared with the
        log, and missing bytes are fetched, by recovery and by the archive."""
        place = await self._last_place(takeover)
        if place is not None:
            await takeover.fence(place, _nothing)

    # -- a directory from the bucket ---------------------------------------------------------------------------------

    async def _restore(self, takeover: Takeover) -> None:
        """Make the directory from what the bucket has, behind a fencing round. If it has no base, the archive begins
        another history, also behind rounds that the former owner has put until now."""
        place = await self._last_place(takeover)
        if place is None or not await self._offload.run(Pool.BUCKET_READ, partial(_has_base, self._objects)):
            await self._offload.run(Pool.FILES, partial(remove_unfinished, self._fs, self._datadir.root))
            return
        await takeover.fence(place, _nothing)
        self._show("the directory is made from the bucket", "")
        await self._offload.run(Pool.FILES, partial(self._restore_blocking, place))

    async def _last_place(self, takeover: Takeover) -> Place | None:
        """Return the place behind the last round of the bucket; None if it has none. Raises StoreError,
        BucketDamaged."""
        reader = BucketReader(self._objects)
        last = await self._offload.run(Pool.BUCKET_READ, partial(_last_round, reader, takeover.watch.owner))
        if last is None:
            return None
        place = Place(bucket=last.head.bucket, epoch=0, number=0, hash=b"", wall_ms=0, positions=None)
        place.follow(last)
        return place

    def _restore_blocking(self, place: Place) -> None:
        reader = BucketReader(self._objects)
        try:
            with_whole_base(partial(self._target, reader), partial(self._restore_to, place, reader))
        except (RestoreRefused, BucketDamaged) as error:
            raise BucketRefused(f"the directory cannot be made from the bucket: {error}") from error

    def _may_be_restored(self, owner: Owner | None) -> bool:
        """Return True if the bucket has something to restore, or nothing that counts. Blocking. Raises
        RestoreRefused."""
        try:
            self._target(BucketReader(self._objects), {})
        except NoBase:
            if owner is None or owner.counts_without_base:
                raise
        return True

    def _target(self, reader: BucketReader, damaged: Mapping[int, BucketDamaged]) -> RestoreTarget:
        """Return what a restore would make, without these bases. Blocking: reads the headers of all rounds since the
        newest base."""
        with closing(Workers(self._workers)) as workers:
            return choose_target(reader, map_heads=workers.map, damaged=damaged)

    def _restore_to(self, place: Place, reader: BucketReader, target: RestoreTarget) -> None:
        workers = Workers(self._workers)
        try:
            goes_on = target.round == place.number
            assert place.positions is not None
            adopted = BucketNote(
                bucket=place.bucket,
                dir=self.dir_id,
                epoch=place.epoch,
                round=place.number,
                hash=place.hash,
                wall_ms=place.wall_ms,
                positions=[(at.ordinal, at.offset) for at in place.positions] if goes_on else None,
            )
            with pinned(self._objects, target.base, self._clock.now_ms()) as pin:
                source = None if self._copies_all else RestoreSource(self._bucket_url, pin)
                work = BucketRestore(
                    self._fs,
                    reader,
                    self._datadir.root,
                    workers,
                    source,
                    in_place=self._in_place or self._fs.exists(join(self._datadir.root, UNFINISHED)),
                    adopted=adopted,
                )
                figures = work.run(target)
            window_ms = place.window_ms or reader.window_ms(target.round)
            if window_ms:  # no lease ends earlier than it would have at the former owner
                mark = ClockMark(window_ms, place.wall_ms, self._clock.boottime_ms(), self._fs.boot_id())
                write_mark(self._fs, self._datadir, mark)
            if not figures.left:
                drop_pin(self._objects, pin)
        finally:
            workers.close()
        log.warning(
            "bucket_taken_over",
            base=target.base,
            round=target.round,
            bytes=figures.bytes,
            segments_left=figures.left,
            begins_history=not goes_on,
        )


async def _nothing(_round: Round) -> None:
    """Do nothing: recovery reads what the round has."""


def _has_base(objects: ObjectStore) -> bool:
    """Return True if the bucket has a base. Blocking. Raises StoreError."""
    return bool(BucketReader(objects).bases())


def _last_round(reader: BucketReader, owner: Owner | None) -> Round | None:
    """Return the last round of the bucket; None if it has none. Blocking."""
    known = owner.round if owner is not None else 0
    last = 0
    for one in reader.rounds(max(known, 1)):
        last = one.number
    if not last and known:
        for one in reader.rounds(1):
            last = one.number
    return reader.round(last) if last else None
