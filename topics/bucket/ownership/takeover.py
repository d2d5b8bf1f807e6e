"""`Takeover`: how a daemon that does not own the prefix gets it (`docs/spec/bucket.md` section 3,
`docs/design/replication.md` section 4).

    watching    `look` reads `owner` again and again; `OwnerWatch` says when the prefix may be taken
    taking      `take` puts `owner` with the next epoch, on condition of what was seen; the lease is renewed
                from here on
    fencing     `fence` puts the next round, empty, with the new epoch. A round that is there with other bytes is one
                that the owner before has put, perhaps this very moment: it is applied, and the next number is tried
    owning      from the fencing round on no round of an earlier epoch can be added, because each number is taken once
                and each round has the hash of the one before

What rounds mean to the caller is its own business: `follow` is called with each round that was not known yet, in order.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import trio

from topics.bucket.container import BadObject
from topics.bucket.object_names import MAX_EPOCH, round_name
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge, StoreError
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_object import BucketRefused, Ownership
from topics.bucket.ownership.owner_watch import OwnerWatch, TakeReason
from topics.bucket.place import Place, first_head
from topics.bucket.round_format import MAX_OBJECT_BYTES, Round, decode_round, encode_round
from topics.bucket.settled_puts import SettledPuts, TakenByOther
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOOKS: Final = 5
"""`owner` is read so often in the time of a lease."""

LONGEST_LOOK_S: Final = 2.0
"""The longest time between two looks (s)."""

Follow = Callable[[Round], Awaitable[None]]


class Takeover:
    """One daemon's way to the prefix. `watch` says what it has seen; `ownership` is handed on to its archive."""

    def __init__(
        self,
        objects: ObjectStore,
        puts: SettledPuts,
        ownership: Ownership,
        *,
        dir_id: str,
        url: str,
        nonce: str,
        clock: Clock,
        offload: Offload,
        keep_on: Callable[[], bool] = lambda: True,
        has_log: bool = True,
    ) -> None:
        """`dir_id` is the id of this directory, `url` where this daemon answers, `nonce` is of this process.
        `keep_on` returns False if puts are not to be repeated any more. `has_log` is False if the directory is
        empty."""
        self.watch = OwnerWatch(dir_id)
        self.ownership = ownership
        self._objects = objects
        self._puts = puts
        self._dir = dir_id
        self._url = url
        self._nonce = nonce
        self._clock = clock
        self._offload = offload
        self._keep_on = keep_on
        self._has_log = has_log

    @property
    def lease(self) -> Lease:
        """The lease that `take` has got."""
        assert self.ownership.lease is not None
        return self.ownership.lease

    async def look(self) -> TakeReason | None:
        """Read `owner`. Return why the prefix may be taken now, None if it may not. Raises StoreError,
        BucketRefused."""
        seen = await self.ownership.read()
        now_ms = self._clock.boottime_ms()
        self.watch.note(seen, now_ms)
        return self.watch.claim(now_ms)

    async def wait(self) -> TakeReason:
        """Look until the prefix may be taken. Store errors are waited out: a daemon that cannot read `owner` takes
        nothing. Raises BucketRefused."""
        while True:
            try:
                claim = await self.look()
            except StoreError as error:
                log.warning("owner_not_read", problem=error.sentence)
            else:
                if claim is not None:
                    return claim
            await trio.sleep(self.pause_s)

    @property
    def pause_s(self) -> float:
        """How long to wait before the next look (s): part of the lease, and not beyond the moment at which it lapses. A
        daemon that may not take what has lapsed goes on looking as often as before."""
        left_ms = self.watch.left_ms(self._clock.boottime_ms())
        owner = self.watch.owner
        if left_ms is None or owner is None:
            return LONGEST_LOOK_S
        look_s = min(LONGEST_LOOK_S, owner.lease_ms / LOOKS / 1000)
        return min(look_s, left_ms / 1000 + 0.001) if left_ms else look_s

    async def take(self, last_round: int, least_epoch: int = 0) -> bool:
        """Become the owner in place of what was seen, and begin to renew. Return False if somebody else was faster, or
        the owner has renewed: look again then. `last_round` is a recent round, `least_epoch` the highest epoch that is
        known besides that of `owner`. Raises PutGivenUp, BucketRefused."""
        seen = self.watch.seen
        epoch = max(seen.owner.epoch if seen is not None else 0, least_epoch) + 1
        if epoch > MAX_EPOCH:
            raise BucketRefused(f"the prefix was taken {MAX_EPOCH} times, and cannot be taken again: use another one")
        is_taken = await self.ownership.take(
            seen, dir_id=self._dir, epoch=epoch, last=last_round, url=self._url, has_log=self._has_log
        )
        if is_taken:
            log.warning("bucket_taken", epoch=epoch, before=seen.owner.node if seen is not None else None)
        return is_taken

    async def fence(self, place: Place, follow: Follow) -> Place:
        """Put the first round of this epoch behind `place`, and return the place behind it. `place` is changed: it goes
        on behind each round that `follow` is called with. Raises BucketRefused if a round cannot be used, PutGivenUp,
        and what `follow` raises."""
        owner = self.ownership.held
        assert owner is not None
        place.epoch = owner.epoch
        if place.round_epoch > owner.epoch:  # this process stood still behind `take`
            self.lease.lose(f"epoch {place.round_epoch} has written round {place.number}")
            raise self.lease.refusal
        while True:
            head = first_head(place, None, self._nonce, self._clock.now_ms())
            blob = encode_round(head, [])
            try:
                await self._puts.create(round_name(head.number), blob, self._keep_on)
            except (TakenByOther, ObjectTooLarge):
                found = await self._read(place)
                if found.head.epoch > owner.epoch:
                    self.lease.lose(f"epoch {found.head.epoch} has written round {found.head.number}")
                    raise self.lease.refusal from None
                await follow(found)
                place.follow(found)
                continue
            place.begin(head, blob[-32:])
            log.info("fencing_round", round=place.number, epoch=place.epoch)
            return place

    async def catch_up(self, place: Place, follow: Follow) -> None:
        """Follow the rounds that are there behind `place`. Raises StoreError, BucketRefused."""
        while True:
            try:
                found = await self._read(place)
            except ObjectMissing:
                return
            await follow(found)
            place.follow(found)

    async def _read(self, place: Place) -> Round:
        """Read the round behind `place`. Raises ObjectMissing, StoreError, BucketRefused."""
        number = place.number + 1
        name = round_name(number)
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, name, MAX_OBJECT_BYTES))
            decoded = await self._offload.run(Pool.CPU, partial(decode_round, found.data))
        except (BadObject, ObjectTooLarge) as error:
            raise BucketRefused(f"the object {name} of the bucket is damaged: {error}") from error
        head = decoded.head
        if head.bucket != place.bucket or head.number != number or head.previous != place.hash:
            raise BucketRefused(f"round {number} of the bucket does not follow round {place.number}")
        return decoded
