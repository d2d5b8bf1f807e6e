"""`BaseWriter`: the task that makes bases (`docs/design/bucket.md` section 4).

Steps of one base: sealed segments that the bucket does not have are put, without a hold; a capture of the daemon's
state, with a hold; what is new in it is read and put (`base_content`); the hold ends; the rounds up to the cut are
awaited; the base is put. Only the last put makes anything count, so a failure anywhere leaves the base before complete,
and costs that what was put is put again, or goes by age. Sealed segments that were put are remembered.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol

import trio

from topics.bucket.archive import ArchiveStopped, PlaceGivenUp
from topics.bucket.base_format import BaseBody, BaseHead, BlobRef, encode_base, lineage
from topics.bucket.bases.base_content import BaseContent, SealedUploads, file_of, is_lost
from topics.bucket.bases.known_base import KnownBase, base_numbers, load_or_nothing, read_base
from topics.bucket.bases.lost_objects import missing_round
from topics.bucket.bases.packs import PackNumbers, Packs
from topics.bucket.bases.segment_reads import is_coherent, pointed_entry, read_sealed
from topics.bucket.bases.uploads import PARALLEL, NotOurs, Puts, Uploads
from topics.bucket.container import BadObject
from topics.bucket.object_names import PackName, SegmentName, base_name, parse_pack, round_name
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge, StoreError
from topics.bucket.settled_puts import PutGivenUp
from topics.errors import ApiError
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.maintenance.base_capture import BaseCapture, CapturedSegment
from topics.storage.maintenance.compactor import Compactor
from topics.storage.segments.topic_segments import Segment
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.figures import BucketFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

HOLD_MS: Final = 10_000
"""The hold lasts so long after it was prolonged last (ms)."""

MAX_HOLD_S: Final = 600.0
"""A base that has to hold the files for longer is given up (s)."""

BATCH_SEGMENTS: Final = 256
"""Sealed segments that are looked for at a time."""

BACKOFF_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Waits after a failed base (s); the last one repeats."""

MOST_ROUNDS: Final = 1000
"""After so many rounds a base is due, however little time has passed."""

LOOK_S: Final = 10.0
"""How often it is looked if there are so many (s)."""

FAILURES: Final = (
    OSError,
    ApiError,
    StoreError,
    NotOurs,
    ObjectMissing,
    ObjectTooLarge,
    BadObject,
    ArchiveStopped,
    PlaceGivenUp,
    PutGivenUp,
)
"""What a base may fail with and be tried again."""


class ArchivePlace(Protocol):
    """What a base needs of the archive."""

    @property
    def epoch(self) -> int:
        """The epoch in which this process writes. Raises ArchiveStopped while the bucket is not open."""
        ...

    @property
    def history_begun_at(self) -> int:
        """The first round of the history."""
        ...

    @property
    def last_round(self) -> int:
        """The last round that is written. Raises like `epoch`."""
        ...

    @property
    def noted_round(self) -> int:
        """The last round that the note on the disk knows: the next start reads the rounds after it."""
        ...

    @property
    def bucket_id(self) -> str:
        """The id of the bucket."""
        ...

    @property
    def objects(self) -> ObjectStore:
        """The store."""
        ...

    async def archived_to(self, positions: Sequence[LogPosition]) -> int:
        """Wait until rounds have everything before these positions, by shard. Return the number of a round that has it
        and ends a cut."""
        ...

    def round_of_file(self, shard: int, ordinal: int) -> int:
        """Return the round that has the first byte of a file of the log. Raises KeyError if there is none."""
        ...

    async def begin_anew(self, reason: str) -> None:
        """Give up the history, and begin another one with all that the data directory has."""
        ...

    async def note_base(self, number: int) -> None:
        """There is a base for the end of this round. Raises PlaceGivenUp, PutGivenUp."""
        ...


class BaseWriter:
    """Makes bases, one at a time. Made once for an archive; `run` is a task, `take` makes one at once."""

    def __init__(
        self,
        archive: ArchivePlace,
        compactor: Compactor,
        *,
        clock: Clock,
        offload: Offload,
        interval_ms: int,
        records: Callable[[], int] = lambda: 0,
    ) -> None:
        """`records` says how many live records there are."""
        self.ready = trio.Event()
        """Set when there is a base of this directory's history. Replaced when another history begins."""
        self.puts = Puts(archive.objects, offload)
        self.known = KnownBase()
        """What the newest base has."""
        self.made = 0
        """How many bases this process has made."""
        self.failures = 0
        """How many have failed since the last success."""
        self.failed = 0
        """How many have failed since the start."""
        self.problem = ""
        """Why the last one has failed; empty if it has not."""
        self.rewritten: frozenset[PackName] = frozenset()
        """Packs in which the next base is to have nothing any more."""
        self.lost: frozenset[str] = frozenset()
        """Packs and segments that the bucket should have and has not: the next base is to have others."""
        self._replaced: frozenset[str] = frozenset()
        """What was lost when it was looked at last."""
        self._archive = archive
        self._compactor = compactor
        self._clock = clock
        self._offload = offload
        self._interval_ms = interval_ms
        self._records = records
        self._epoch = 0
        """The epoch for which `known` was loaded; 0 before. Another one means that the bucket was opened again."""
        self._numbers = PackNumbers(0)
        self._sealed = SealedUploads(0)
        self._packs_before = 0
        self._newest = 0
        """The number of the newest base of this history; 0 if there is none."""
        self._newest_ms = 0
        """When it was captured (epoch ms)."""
        self._version = -1
        self._wake = trio.Event()

    async def run(self) -> None:
        """Make one base at once if there is none of this history, then one at every interval in which something has
        changed, and whenever one is asked for, until cancelled. A failure is logged and tried again after a wait."""
        while True:
            if (self._is_due() or self._is_reopened) and not await self.try_take():
                self._wake = trio.Event()  # what was asked for before is tried again after the wait
                with trio.move_on_after(BACKOFF_S[min(self.failures, len(BACKOFF_S)) - 1]):
                    await self._wake.wait()
                continue
            await self._wait_for_reason()

    async def _wait_for_reason(self) -> None:
        until = trio.current_time() + self._interval_ms / 1000
        while not self._wake.is_set() and (left := until - trio.current_time()) > 0:
            with trio.move_on_after(min(left, LOOK_S)):
                await self._wake.wait()
            if self._is_reopened:
                break
            with suppress(ArchiveStopped):
                if self._archive.last_round - self._newest >= MOST_ROUNDS:
                    break  # a replay becomes long
        self._wake = trio.Event()

    def ask(self) -> None:
        """Have a base made now, if anything has changed."""
        self._wake.set()

    def rewrite(self, packs: frozenset[PackName]) -> None:
        """Have the next base name nothing in these packs, and make it soon."""
        self.rewritten |= packs
        self._wake.set()

    def replace(self, lost: frozenset[str]) -> None:
        """Have the next base put anew what is in these packs and segments, as far as it is in the data directory. Once:
        bases before it may lack them for as long as they are kept."""
        news = lost - self._replaced
        self._replaced = lost
        if news:
            self.lost |= news
            self.rewrite(frozenset(pack for name in news if (pack := parse_pack(name)) is not None))

    @property
    def newest_pack(self) -> int:
        """The highest number of a pack of this epoch that was taken before the newest base was complete. Packs above it
        may be for the next one."""
        return self._packs_before

    @property
    def has_base(self) -> bool:
        """Return True if there is a base of the present history. False while the bucket is not open: it may be opened
        with another history."""
        try:
            return self.ready.is_set() and self._archive.epoch == self._epoch
        except ArchiveStopped:
            return False

    def look(self, figures: BucketFigures) -> None:
        """Add the figures of bases."""
        figures.has_base = self.has_base
        figures.base_is_due = not figures.has_base or self._is_due()
        figures.bases, figures.bases_failed = self.made, self.failed
        figures.objects_put = dict(self.puts.objects_by_kind)
        figures.bytes_put = dict(self.puts.bytes_by_kind)
        figures.base = self._newest if figures.has_base else 0
        figures.base_age_ms = max(self._clock.now_ms() - self._newest_ms, 0) if figures.has_base else 0

    def is_unfinished(self, name: str, segment: SegmentName) -> bool:
        """Return True if a file of a segment has been put, or is being put, for the next base."""
        return name in self._sealed.attempted or (segment.topic_id, segment.first, segment.salt) in self._sealed.done

    @property
    def _is_reopened(self) -> bool:
        """Return True if the bucket was opened again: another history may have begun."""
        try:
            return self._archive.epoch != self._epoch
        except ArchiveStopped:
            return False

    def _is_due(self) -> bool:
        return not self.ready.is_set() or self._compactor.version != self._version or bool(self.rewritten or self.lost)

    async def try_take(self) -> bool:
        """Make a base if there is something for it. A failure is only logged. Return True if there was none."""
        failure: BaseException | None = None
        try:
            await self.load()
            if self._is_due():
                await self.take()
        except* FAILURES as group:
            failure = _first(group)
        if failure is None:
            self.failures, self.problem = 0, ""
            return True
        self.failures += 1
        self.failed += 1
        self.problem = str(failure)
        log.warning(
            "base_failed",
            error=self.problem,
            failures=self.failures,
            consequence="a restore begins at the base before and reads more rounds; it is tried again",
        )
        return False

    async def load(self) -> None:
        """Find out, once for each epoch, what the newest base in the bucket has. Raises StoreError, ArchiveStopped."""
        epoch = self._archive.epoch
        if epoch == self._epoch:
            return
        if self.ready.is_set():
            self.ready = trio.Event()
        objects = self._archive.objects
        self.known = KnownBase()
        numbers = await base_numbers(objects, self._offload)
        if numbers:
            try:
                base = await read_base(objects, self._offload, base_name(numbers[-1]))
            except (BadObject, ObjectMissing, ObjectTooLarge) as error:
                log.error("base_damaged", base=numbers[-1], problem=str(error), consequence="another one is made now")
            else:
                # Another directory may have other records in a segment of the same name.
                if lineage(str(base.body.snapshot.get("identity"))) == lineage(self._compactor.identity):
                    self.known = await load_or_nothing(objects, self._offload, base)
        self._numbers, self._sealed = PackNumbers(epoch), SealedUploads(epoch)
        self._epoch, self._packs_before = epoch, 0
        self._newest = self._newest_ms = 0
        begun = self._archive.history_begun_at
        if numbers and 0 < begun <= numbers[-1]:
            await self._archive.note_base(numbers[-1])  # also if another daemon has made it: its rounds can be restored
        if self.known.base is not None and 0 < begun <= self.known.base.head.number:
            self._newest, self._newest_ms = self.known.base.head.number, self.known.base.head.wall_ms
            self.ready.set()

    # -- one base ----------------------------------------------------------------------------------------------------

    async def take(self) -> int:
        """Make a base and return its number. `load` comes before. Raises an exception group of `FAILURES`; then the
        base before counts."""
        began = self._clock.monotonic_ms()
        objects, size = self.puts.objects, self.puts.bytes
        await self._put_sealed()
        sealed_ms = self._clock.monotonic_ms() - began
        unwanted, lost = self.rewritten, self.lost
        async with trio.open_nursery() as nursery:
            uploads = Uploads(self.puts, nursery)
            packs = Packs(self._numbers, uploads, self._offload)
            capture = await self._compactor.capture(HOLD_MS)
            captured_ms = self._clock.monotonic_ms() - began - sealed_ms
            version = self._compactor.stored_version  # what has changed since the checkpoint is not in the capture
            wall_ms, records = self._clock.now_ms(), self._records()
            content = BaseContent(
                capture,
                self.known,
                self._sealed,
                tiers=self._compactor.files.tiers,
                packs=packs,
                uploads=uploads,
                offload=self._offload,
                unwanted=unwanted,
                lost=lost,
            )
            async with self._held(capture):
                pages = await content.make()
            held_ms = self._clock.monotonic_ms() - began - sealed_ms - captured_ms
        number = await self._archive.archived_to(capture.cut)
        await self._check_rounds(min((self._round_of(*place) for place in capture.wal_files), default=number), number)
        if await self._put_base(number, capture, pages, content.result, wall_ms=wall_ms, records=records):
            self._sealed.done.clear()
            self._packs_before = self._numbers.last
            self._version = version
            self.rewritten -= unwanted
            self.lost -= lost
        self.made += 1
        self._newest, self._newest_ms = number, wall_ms
        self.ready.set()
        await self._archive.note_base(number)
        log.info(
            "base_made",
            base=number,
            topics=len(capture.topics),
            objects=self.puts.objects - objects,
            bytes=self.puts.bytes - size,
            sealed_ms=sealed_ms,
            captured_ms=captured_ms,
            held_ms=held_ms,
            ms=self._clock.monotonic_ms() - began,
        )
        return number

    @asynccontextmanager
    async def _held(self, capture: BaseCapture) -> AsyncIterator[None]:
        """Prolong the hold of a capture meanwhile, and end it. Raises OSError if it has not lasted."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._prolong, capture)
                yield
                await self._compactor.prolong(capture, HOLD_MS)
                nursery.cancel_scope.cancel()
        finally:
            self._compactor.release()

    async def _prolong(self, capture: BaseCapture) -> None:
        until = trio.current_time() + MAX_HOLD_S
        while trio.current_time() < until:
            await trio.sleep(HOLD_MS / 3000)
            await self._compactor.prolong(capture, HOLD_MS)
        raise TimeoutError(f"reading what is new took longer than {MAX_HOLD_S:.0f} s")

    async def _put_base(
        self,
        number: int,
        capture: BaseCapture,
        pages: list[tuple[int, BlobRef]],
        result: KnownBase,
        *,
        wall_ms: int,
        records: int,
    ) -> bool:
        """Put the base. Return False if it turns out that an earlier attempt has put one for the same round."""
        if self._archive.epoch != self._epoch:
            raise PlaceGivenUp
        files = [(*place, self._round_of(*place)) for place in capture.wal_files]
        body = BaseBody(snapshot=capture.snapshot, files=files, pages=pages, records=records)
        head = BaseHead(
            bucket=self._archive.bucket_id,
            epoch=self._epoch,
            number=number,
            first_round=min((first for _, _, first in files), default=number),
            wall_ms=wall_ms,
            shards=len(capture.cut),
            body_bytes=0,
        )
        data = await self._offload.run(Pool.CPU, partial(encode_base, head, body))
        name = base_name(number)
        try:
            await self.puts.create(name, data)
        except NotOurs:
            # The put of an earlier attempt, whose answer was lost, was carried out after all: it is complete, too.
            base = await read_base(self._archive.objects, self._offload, name)
            if base.head.epoch != self._epoch:
                raise
            self.known = await load_or_nothing(self._archive.objects, self._offload, base)
            return False
        self.known = result
        return True

    async def _check_rounds(self, first: int, last: int) -> None:
        """Begin another history if one of the rounds is missing that the base needs. Raises PlaceGivenUp then."""
        missing = await missing_round(self._archive.objects, self._offload, first, last)
        if missing is None:
            return
        log.error(
            "bucket_round_missing",
            round=missing,
            consequence="another history is begun, with a base; no restore goes beyond the missing round before it",
        )
        await self._archive.begin_anew(f"the bucket lacks {round_name(missing)}, which it had taken")
        raise PlaceGivenUp

    def _round_of(self, shard: int, ordinal: int) -> int:
        try:
            return self._archive.round_of_file(shard, ordinal)
        except KeyError:
            raise OSError(errno.EAGAIN, f"no round has file {ordinal} of shard {shard} of the log") from None

    # -- sealed segments, without a hold -------------------------------------------------------------------------------

    async def _put_sealed(self) -> None:
        """Put the sealed segments that the bucket does not have, as far as they can be read coherently now. Raises an
        exception group of StoreError and NotOurs."""
        tried: set[Segment] = set()

        def wanted(segment: Segment) -> bool:
            key = (segment.topic_id, segment.first, segment.salt or 0)
            if segment in tried or key in self._sealed.done:
                return False
            entry = self.known.sealed(key)
            return entry is None or is_lost(segment.topic_id, entry, self.lost)

        while found := await self._compactor.files.sealed(wanted, BATCH_SEGMENTS):
            tried.update(captured.segment for captured in found)
            waiting = iter(found)
            async with trio.open_nursery() as nursery:
                for _ in range(PARALLEL):
                    nursery.start_soon(self._put_some, waiting)

    async def _put_some(self, waiting: Any) -> None:
        for captured in waiting:
            await self._put_one(captured)
            await trio.lowlevel.checkpoint()

    async def _put_one(self, captured: CapturedSegment) -> None:
        segment, sealed = captured.segment, self._sealed
        pool = Pool.COLD_READ if captured.tier == "cold" else Pool.HOT_READ
        try:
            if captured.tier == "cold":
                pointed = partial(pointed_entry, self._compactor.files.tiers, captured)
                if await self._offload.run(Pool.HOT_READ, pointed) is not None:
                    return  # the bucket has it
            files = await self._offload.run(pool, partial(read_sealed, self._compactor.files.tiers, captured))
        except OSError:
            return  # it is tried again with the hold, if it is needed then
        coherent = await self._offload.run(Pool.CPU, partial(is_coherent, captured, files))
        if not coherent or not self._compactor.files.is_current(segment):
            return
        entry, contents = await self._offload.run(
            Pool.CPU, partial(sealed.entry, segment.topic_id, segment.first, files)
        )
        for kind, data in contents.items():
            name = sealed.name(segment.topic_id, entry, kind)
            sealed.attempt(name, file_of(entry, kind))
            try:
                await self.puts.create(name, data)
            except NotOurs as error:
                before = sealed.attempted[name].get(error.hash or b"")
                if before is None:
                    raise
                setattr(entry, kind, before)  # an earlier put of ours, with fewer flags
        sealed.finish(segment.topic_id, entry)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
