"""PlaceSearch the bucket: is it fit, is it ours, and behind which round does the archive go on (`docs/design/bucket.md`
sections 3 and 5).

A directory that has written to the bucket goes on behind its last round, if everything that the bucket has is in its
log. `meta/bucket` may be behind by some rounds, which are read and compared with the log byte by byte. In every other
case a history begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from topics.bucket.container import BadObject
from topics.bucket.local_note import BucketNote
from topics.bucket.object_names import MAX_EPOCH, ROUNDS, number_of, round_name
from topics.bucket.object_store import MAX_PAGE, ObjectMissing, ObjectStore, ObjectTooLarge
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.topic_look import has_topics
from topics.bucket.ownership.bucket_access import BucketAccess
from topics.bucket.ownership.owner_format import Owner, SeenOwner
from topics.bucket.ownership.owner_object import BucketRefused, Ownership
from topics.bucket.place import Place
from topics.bucket.round_format import MAX_OBJECT_BYTES, NO_HASH, Round, decode_round
from topics.bucket.settled_puts import SettledPuts
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.wal.wal_files import LogPosition, WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class PlaceSearch:
    """One attempt to open the bucket. Made by the archive."""

    def __init__(
        self,
        objects: ObjectStore,
        puts: SettledPuts,
        ownership: Ownership,
        *,
        fs: Fs,
        offload: Offload,
        files: WalFiles,
        ends: Sequence[LogPosition],
        nonce: str,
        keep_on: Callable[[], bool],
        is_blank: bool = False,
    ) -> None:
        """`is_blank`: this directory had no topic when the daemon was started."""
        self._objects = objects
        self._puts = puts
        self._ownership = ownership
        self._fs = fs
        self._offload = offload
        self._files = files
        self._ends = ends
        """How far this directory has its log on disk, by shard."""
        self._access = BucketAccess(objects, puts, offload, nonce, keep_on)
        self._is_blank = is_blank

    async def open(self, note: BucketNote, *, take: bool, url: str) -> Place:
        """Take the prefix, and return where to go on. Raises BucketRefused, PutGivenUp, and StoreError if
        the store does not answer."""
        bucket = await self._access.check(note, take=take)
        while True:
            seen = await self._ownership.read()
            is_known = note.bucket == bucket
            self._check_owner(seen, note, is_known=is_known, take=take)
            if self._is_blank and not is_known and not take:
                await self._check_blank(seen.owner if seen is not None else None)
            place = await self._find(bucket, note if is_known else None, seen, take=take)
            self._check_epoch(place)
            if take and is_known and seen is not None and seen.owner.dir == note.dir and place.positions is not None:
                log.warning(
                    "bucket_take_unneeded",
                    bucket=bucket,
                    consequence="this directory owned the bucket already. Remove TOPICS_BUCKET_TAKE (--take): while it "
                    "is set, no start asks whether another directory has taken the bucket",
                )
            if await self._ownership.take(seen, dir_id=note.dir, epoch=place.epoch, last=place.number, url=url):
                return place

    async def resume(self, note: BucketNote, held: Owner, *, take: bool) -> Place:
        """Return where to go on in a prefix that this process has taken already. The lease is lost if a later epoch has
        written rounds since: this process stood still. Raises like `open`."""
        bucket = await self._access.check(note, take=take)
        is_known = note.bucket == bucket
        seen = SeenOwner(held, "")
        if self._is_blank and not is_known and not take:
            await self._check_blank(None)  # `held` names this directory
        place = await self._find(bucket, note if is_known else None, seen, take=take)
        if place.epoch > held.epoch + 1:
            reason = f"epoch {place.epoch - 1} has written round {place.number}"
            self._ownership.lose(reason)
            raise BucketRefused(f"the bucket was taken from this daemon: {reason}")
        place.epoch = held.epoch
        place.is_begun = place.positions is not None and place.round_epoch == held.epoch
        return place

    def _check_owner(self, seen: SeenOwner | None, note: BucketNote, *, is_known: bool, take: bool) -> None:
        if seen is None or seen.owner.dir == note.dir or take:
            return
        owner = seen.owner
        if owner.state == "held":
            raise BucketRefused(
                f"the bucket is owned by another data directory (node {owner.node}, directory {owner.dir}, epoch "
                f"{owner.epoch}). If that one is gone for good, start once with --take"
            )
        if is_known:
            raise BucketRefused(
                f"another data directory (node {owner.node}, directory {owner.dir}) has written to the bucket since "
                "this one did; start once with --take to begin anew behind its rounds"
            )

    async def _check_blank(self, owner: Owner | None) -> None:
        """Refuse a directory without topics if the bucket has some: most likely its disk is not mounted, or new, and
        what is in the bucket would go with time."""
        try:
            look = partial(has_topics, BucketReader(self._objects))
            if not await self._offload.run(Pool.BUCKET_READ, look):
                return
        except BucketDamaged as error:
            log.warning("bucket_not_looked_through", problem=str(error))
        whose = f"another data directory (node {owner.node}, directory {owner.dir})" if owner else "a data directory"
        raise BucketRefused(
            f"the bucket has topics of {whose}, and this one has none: is its disk mounted? To go on with what the "
            "bucket has, `topics restore` it into this directory; to begin anew, start once with --take: what is in "
            "the bucket goes with time then"
        )

    async def _find(self, bucket: str, note: BucketNote | None, seen: SeenOwner | None, *, take: bool) -> Place:
        """Return where to go on, if `owner` can be taken."""
        known = max(seen.owner.round if seen is not None else 0, note.round if note is not None else 0)
        last = await self._last_round(known)
        epoch = max(seen.owner.epoch if seen is not None else 0, note.epoch if note is not None else 0) + 1
        if note is not None and note.positions is not None and seen is not None:
            place = Place(
                bucket=bucket,
                epoch=epoch,
                number=note.round,
                hash=note.hash,
                wall_ms=note.wall_ms,
                positions=[LogPosition(*position) for position in note.positions],
                history=note.history,
                files={(shard, ordinal): number for shard, ordinal, number in note.files},
            )
            problem = await self._catch_up(place, last)
            if not problem:
                return place
            if not take:
                raise BucketRefused(
                    f"the bucket and this data directory have diverged: {problem}. Start once with --take to begin "
                    "anew behind the rounds of the bucket"
                )
        place = Place(bucket=bucket, epoch=epoch, number=last, hash=NO_HASH, wall_ms=0, positions=None)
        if last:
            newest = await self._round(last)
            place.hash, place.wall_ms = newest.hash, newest.head.wall_ms
            place.epoch = max(epoch, newest.head.epoch + 1)
        return place

    @staticmethod
    def _check_epoch(place: Place) -> None:
        if place.epoch > MAX_EPOCH:
            raise BucketRefused(f"the prefix was taken {MAX_EPOCH} times, and cannot be taken again: use another one")

    async def _last_round(self, known: int) -> int:
        """Return the number of the last round, looked for from a known one on; 0 if there is none."""
        last, after = 0, round_name(known - 1) if known else ROUNDS
        while True:
            page = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.list, ROUNDS, after))
            numbers = [number for facts in page if (number := number_of(facts.name)) is not None]
            last = max([last, *numbers])
            if len(page) < MAX_PAGE:
                break
            after = page[-1].name
        if not last and known:
            return await self._last_round(0)
        return last

    async def _round(self, number: int) -> Round:
        """Read a round. Raises BucketRefused if it cannot be used."""
        name = round_name(number)
        try:
            found = await self._offload.run(Pool.BUCKET_READ, partial(self._objects.get, name, MAX_OBJECT_BYTES))
            return await self._offload.run(Pool.CPU, partial(decode_round, found.data))
        except ObjectMissing as error:
            raise BucketRefused(f"the bucket lacks the object {name}, and has later ones") from error
        except (BadObject, ObjectTooLarge) as error:
            raise BucketRefused(f"the object {name} of the bucket is damaged: {error}") from error

    async def _catch_up(self, place: Place, last: int) -> str:
        """Follow the rounds that are behind the note. Return why they are not this directory's, empty if they are."""
        assert place.positions is not None
        if last < place.number:
            return f"the bucket ends with round {last}, and this directory has written round {place.number}"
        if place.number == last and last:
            newest = await self._round(last)
            if newest.hash != place.hash:
                return f"round {last} is not the one that this directory has written"
            place.ends_cut, place.round_epoch = newest.head.ends_cut, newest.head.epoch
        for shard, (position, end) in enumerate(zip(place.positions, self._ends, strict=True)):
            if position > end:
                return f"shard {shard} of the log ends at {tuple(end)}, and the bucket has it up to {tuple(position)}"
        for number in range(place.number + 1, last + 1):
            found = await self._round(number)
            head = found.head
            if head.bucket != place.bucket or head.number != number or head.previous != place.hash:
                return f"round {number} does not follow round {place.number}"
            if head.begins_history or head.shards != len(self._ends):
                return f"round {number} begins another history"
            problem = await self._offload.run(Pool.CPU, partial(self._compare, found, place.positions))
            if problem:
                return problem
            place.follow(found)
            place.epoch = max(place.epoch, head.epoch + 1)
        return ""

    def _compare(self, found: Round, positions: Sequence[LogPosition]) -> str:
        """Return how the bytes of a round differ from those of the log, empty if they do not. Blocking."""
        number = found.head.number
        at = list(positions)
        for run, data in found.pieces():
            if run.shard >= len(at):
                return f"round {number} has bytes of shard {run.shard}, which there is not"
            here = LogPosition(run.ordinal, run.offset)
            if here != at[run.shard] and not (run.offset == 0 and run.ordinal > at[run.shard].ordinal):
                return f"round {number} does not go on where the round before has ended"
            end = LogPosition(run.ordinal, run.offset + run.length)
            if end > self._ends[run.shard] or not self._has(run.shard, run.ordinal, run.offset, bytes(data)):
                return f"round {number} has bytes that the log of this directory has not"
            at[run.shard] = end
        if [tuple(position) for position in at] != found.head.positions:
            return f"round {number} does not end where its bytes end"
        return ""

    def _has(self, shard: int, ordinal: int, offset: int, data: bytes) -> bool:
        """Return True if the log has these bytes at this place. Blocking."""
        for file in self._files.of_shard(shard):
            if file.ordinal == ordinal:
                with self._fs.open(file.path, read_only=True) as handle:
                    return handle.pread(len(data), offset) == data
        return False
