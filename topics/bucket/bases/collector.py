"""The collector: removes from the bucket what nobody needs any more (`docs/design/bucket.md` section 7).

A *pass* reads `owner`, pins and all bases with their pages, each page once, lists the objects, and finds what nobody
needs. What all passes of at least an hour have found goes, after owner and pins were read again. Only the owner does
this.

Memory: the names of all segments and packs that are kept (some 150 bytes each), and the place of each page (some 100).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from topics.bucket.archive import ArchiveStopped
from topics.bucket.base_format import Base, BlobRef
from topics.bucket.bases.base_writer import ArchivePlace, BaseWriter
from topics.bucket.bases.known_base import base_numbers, read_base, read_page
from topics.bucket.bases.retention import (
    CANDIDATE_MS,
    BaseFacts,
    Candidates,
    Kept,
    epoch_beginnings,
    kept_of,
    needed_anew,
    objects_named,
    stale_packs,
)
from topics.bucket.container import BadObject
from topics.bucket.object_names import (
    OWNER,
    PACKS,
    PINS,
    ROUNDS,
    SEGMENTS,
    STANDBYS,
    base_name,
    number_of,
    pack_name,
    parse_pack,
    parse_segment,
    round_name,
)
from topics.bucket.object_store import MAX_PAGE, ObjectFacts, ObjectMissing, ObjectTooLarge, StoreError
from topics.bucket.ownership.owner_format import MAX_OWNER_BYTES, decode_owner
from topics.bucket.pin_format import MAX_PIN_BYTES, Pin, decode_pin
from topics.bucket.round_format import MAX_OBJECT_BYTES, decode_round
from topics.bucket.standby.announcement import FORGET_MS
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

MOST_PER_PASS: Final = 100_000
"""Objects of a kind that one pass deletes at most; the next one goes on."""

DELETED_AT_ONCE: Final = 1000
"""Objects that are deleted in one call."""

LONGEST_MS: Final = 6 * 3_600_000
"""The longest time between two passes (ms)."""

PASS_SHARE: Final = 16
"""There are at least so many passes in the time of retention, if an hour is shorter. Two of them decide about an
object, and deleted bytes have to go within a sixth of that time after their base has become old."""


STEP_MS: Final = 3_600_000
"""A clock that was set forward by more than this while the daemon runs does not decide what is old (ms)."""


class NotOwner(Exception):
    """`owner` names another process, or cannot be read as one: nothing is deleted."""


class BucketCollector:
    """Removes what nobody needs. Made once for an archive; `run` is a task, `pass_over` does one pass at once."""

    def __init__(
        self,
        archive: ArchivePlace,
        bases: BaseWriter,
        *,
        clock: Clock,
        offload: Offload,
        retain_ms: int,
        wait_ms: int = CANDIDATE_MS,
    ) -> None:
        self.deleted = 0
        """Objects that were deleted."""
        self._archive = archive
        self._bases = bases
        self._clock = clock
        self._offload = offload
        self._retain_ms = retain_ms
        self._interval_ms = max(wait_ms, min(retain_ms // PASS_SHARE, LONGEST_MS))
        self._candidates = Candidates(wait_ms)
        self._listed: set[str] = set()
        """The packs and segments that were there in the last pass."""
        self._began_ms: int | None = None
        """What the wall clock showed when the machine was booted, by what it showed at the first pass (epoch ms)."""
        self._seen: dict[str, int] = {}
        """When a pack of the newest base was seen first (`Clock.monotonic_ms`): it is at least as old. By the store's
        clock it is as old as the newest object is newer, whichever process has put it."""

    async def run(self) -> None:
        """Make a pass now and then, until cancelled. A failure is logged, and the next pass tries again."""
        while True:
            await trio.sleep(self._interval_ms / 1000)
            if not self._bases.ready.is_set():
                continue
            try:
                await self.pass_over()
            except (StoreError, ObjectMissing, ObjectTooLarge, BadObject, NotOwner, ArchiveStopped) as error:
                log.warning("bucket_not_collected", error=str(error), consequence="old objects stay; it is tried again")

    async def pass_over(self) -> int:
        """Find what nobody needs, and delete what has been so for long enough. Return the number of objects. Raises
        StoreError, ObjectMissing, ObjectTooLarge and BadObject if something cannot be read: then nothing is deleted
        that was not decided before; NotOwner, ArchiveStopped."""
        epoch = self._archive.epoch
        await self._check_owner(epoch)
        pins = await self._pins()
        bases = [await self._read(number) for number in await self._numbers()]
        facts = [BaseFacts(one.head.number, one.head.first_round, one.head.wall_ms) for one in bases]
        now = self._now_ms()
        kept = kept_of(facts, pins.values(), now_ms=now, retain_ms=self._retain_ms)
        unneeded: list[str] = []
        if kept is not None:
            unneeded += [base_name(one.number) for one in facts if one.number not in kept.bases]
            unneeded += await self._old_rounds(kept)
        # Objects of bases that failed are needed by nobody, either, however young everything is.
        there = await self._objects(epoch)
        listed = self._listed
        try:
            needed = await self._needed([one for one in bases if kept is None or one.head.number in kept.bases])
        except ObjectMissing as error:
            self._tell_lost({error.name})
            raise
        unneeded += [name for name in there if name not in needed]
        self._tell_lost(needed - listed)
        unneeded += [name for name, pin in pins.items() if pin.expires + self._retain_ms <= now]
        unneeded += await self._old_announcements(there)
        ripe = self._candidates.ripe(unneeded, self._clock.monotonic_ms())
        if ripe:
            await self._check_owner(epoch)
            if needed_anew(await self._pins(), set(unneeded), now):
                return 0  # somebody has come, or is back: the next pass sees what is needed
            for at in range(0, len(ripe), DELETED_AT_ONCE):
                names = ripe[at : at + DELETED_AT_ONCE]
                await self._offload.run(Pool.BUCKET_CHANGE, partial(self._archive.objects.delete, names))
                self.deleted += len(names)
            log.info("bucket_collected", objects=len(ripe), candidates=len(self._candidates) - len(ripe))
        await self._look_at_packs(there)
        return len(ripe)

    def _now_ms(self) -> int:
        """The wall clock; but if it was set forward since the first pass, no more than `STEP_MS` of that. Otherwise a
        clock that is wrong for some hours would make all bases but the newest old, and end all pins."""
        wall_ms, up_ms = self._clock.now_ms(), self._clock.boottime_ms()
        if self._began_ms is None:
            self._began_ms = wall_ms - up_ms
        most_ms = self._began_ms + up_ms + STEP_MS
        if wall_ms > most_ms:
            log.error(
                "clock_set_forward",
                by_ms=wall_ms - self._began_ms - up_ms,
                consequence="old objects of the bucket stay. If the clock is right now, start the daemon again",
            )
        return min(wall_ms, most_ms)

    def _tell_lost(self, lost: set[str]) -> None:
        """Have the next base put anew what the bucket should have and has not."""
        if lost:
            log.error(
                "bucket_objects_missing",
                objects=len(lost),
                names=sorted(lost)[:3],
                consequence="no restore from the bases that need them; the next base puts anew what this directory has",
            )
            self._bases.replace(frozenset(lost))

    # -- what is there -----------------------------------------------------------------------------------------------

    async def _check_owner(self, epoch: int) -> None:
        found = await self._offload.run(Pool.BUCKET_READ, partial(self._archive.objects.get, OWNER, MAX_OWNER_BYTES))
        owner = decode_owner(found.data)
        if owner.epoch != epoch or owner.state != "held" or self._archive.epoch != epoch:
            raise NotOwner(f"the bucket is in epoch {owner.epoch}, and this process wrote in {epoch}")

    async def _pins(self) -> dict[str, Pin]:
        """The pins by name. Raises BadObject: a pin that is not understood may need anything."""
        found: dict[str, Pin] = {}
        for one in await self._list(PINS):
            try:
                data = await self._offload.run(
                    Pool.BUCKET_READ, partial(self._archive.objects.get, one.name, MAX_PIN_BYTES)
                )
            except ObjectMissing:
                continue  # given up meanwhile
            try:
                found[one.name] = decode_pin(data.data)
            except BadObject as error:
                raise BadObject(f"{one.name}: {error}") from error
        return found

    async def _old_announcements(self, there: dict[str, ObjectFacts]) -> list[str]:
        """The announcements of standbys that have gone: older than the newest object by `FORGET_MS`."""
        found = await self._list(STANDBYS)
        newest_ms = max((one.modified_ms for one in (*there.values(), *found)), default=0)
        return [one.name for one in found if one.modified_ms + FORGET_MS <= newest_ms]

    async def _numbers(self) -> list[int]:
        return await base_numbers(self._archive.objects, self._offload)

    async def _read(self, number: int) -> Base:
        return await read_base(self._archive.objects, self._offload, base_name(number))

    async def _list(self, prefix: str) -> list[ObjectFacts]:
        found: list[ObjectFacts] = []
        while True:
            after = found[-1].name if found else ""
            page = await self._offload.run(Pool.BUCKET_READ, partial(self._archive.objects.list, prefix, after))
            found += page
            if len(page) < MAX_PAGE:
                return found

    async def _objects(self, epoch: int) -> dict[str, ObjectFacts]:
        """Packs and segments, but for those of this epoch that the next base may need: what has been put since the
        newest base began."""
        newest = self._bases.newest_pack
        found: dict[str, ObjectFacts] = {}
        packs, segments = await self._list(PACKS), await self._list(SEGMENTS)
        self._listed = {one.name for one in (*packs, *segments)}
        for one in packs:
            pack = parse_pack(one.name)
            if pack is not None and (pack.epoch < epoch or pack.number <= newest):
                found[one.name] = one
        for one in segments:
            parsed = parse_segment(one.name)
            if parsed is not None and not self._bases.is_unfinished(one.name, parsed[0]):
                found[one.name] = one
        return found

    async def _needed(self, bases: list[Base]) -> set[str]:
        """The packs and segments that these bases name."""
        needed: set[str] = set()
        pages: set[BlobRef] = set()
        for base in bases:
            for _, ref in base.body.pages:
                if ref in pages:
                    continue
                pages.add(ref)
                needed.add(pack_name(ref.pack_name))
                for topic in await read_page(self._archive.objects, self._offload, ref):
                    needed |= objects_named(topic)
        return needed

    async def _old_rounds(self, kept: Kept) -> list[str]:
        """The rounds that nobody needs, without the first one of each epoch: the oldest, about `MOST_PER_PASS`. Those
        from the one on that the note of this directory has stay: its next start reads them."""
        below = min(kept.rounds_from, self._archive.noted_round)
        numbers: list[int] = []
        free: list[int] = []
        after, last = "", False
        while not last and len(free) < MOST_PER_PASS:
            page = await self._offload.run(Pool.BUCKET_READ, partial(self._archive.objects.list, ROUNDS, after))
            found = [number for one in page if (number := number_of(one.name)) is not None]
            old = [number for number in found if number < below]
            numbers += old
            free += [number for number in old if not kept.has_round(number)]
            last = len(page) < MAX_PAGE or len(old) < len(found)
            after = page[-1].name if page else ""
        if not free:
            return []
        first = await self._epoch_beginnings(numbers)
        return [round_name(number) for number in free if number not in first]

    async def _epoch_beginnings(self, numbers: list[int]) -> set[int]:
        """Those of these rounds that are the first of their epoch. Reads a few rounds for each epoch."""
        known: dict[int, int] = {}
        while True:
            try:
                return epoch_beginnings(numbers, known.__getitem__, None)
            except KeyError as error:
                number = error.args[0]
            data = await self._offload.run(
                Pool.BUCKET_READ, partial(self._archive.objects.get, round_name(number), MAX_OBJECT_BYTES)
            )
            known[number] = (await self._offload.run(Pool.CPU, partial(decode_round, data.data))).head.epoch

    # -- deletions of users ------------------------------------------------------------------------------------------

    async def _look_at_packs(self, there: dict[str, ObjectFacts]) -> None:
        """Have the next base pack again what shares an old pack with something that nobody needs."""
        now = self._clock.monotonic_ms()
        newest = max((one.modified_ms for one in there.values()), default=0)
        found = await self._offload.run(Pool.CPU, self._bases.known.live_bytes)
        live = {pack_name(pack): size for pack, size in found.items()}
        self._seen = {name: self._seen.get(name, now) for name in live}
        ages = {
            name: (facts.size, max(now - seen, newest - facts.modified_ms))
            for name, seen in self._seen.items()
            if (facts := there.get(name)) is not None
        }
        stale = stale_packs(list(live.items()), ages, retain_ms=self._retain_ms)
        if stale:
            self._bases.rewrite(frozenset(pack for name in stale if (pack := parse_pack(name)) is not None))
