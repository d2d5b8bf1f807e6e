"""Broken builds: each of them breaks a promise of `docs/spec/bucket.md` section 7, and the simulation has to find it
out. A build is a function that changes the daemon for as long as `patch` lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import trio
from msgspec.structs import replace

from topics.bucket.archive import Archive
from topics.bucket.local_note import write_note
from topics.bucket.log_reader import read_pieces
from topics.bucket.object_names import OWNER, round_name
from topics.bucket.object_store import ObjectMissing
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.lease_keeper import LeaseKeeper
from topics.bucket.ownership.owner_watch import OwnerWatch
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.place import Place, first_head
from topics.bucket.round_format import RoundHead, decode_round, encode_round
from topics.bucket.settled_puts import SettledPuts, TakenByOther
from topics.bucket.standby import directory, handover
from topics.bucket.standby.followed_log import FollowedLog
from topics.bucket.standby.round_follower import RoundFollower
from topics.engine.ceilings import Ceilings
from topics.engine.standby.live_replay import LiveReplay
from topics.engine.topic import Commit, CommitPoint
from topics.storage.files.datadir import DIVERGED
from topics.storage.files.fs import join

Build = Callable[[pytest.MonkeyPatch], None]


# -- taking and fencing ------------------------------------------------------------------------------------------------


def no_fencing(patch: pytest.MonkeyPatch) -> None:
    """There is no fencing round, rounds go wherever there is room, and owners never stop."""

    async def unfenced(self: Takeover, place: Place, follow: Any) -> Place:
        return place

    async def careless(self: Archive, place: Place, head: RoundHead, pieces: Any) -> None:
        while True:
            blob = encode_round(head, read_pieces(self._fs, pieces))
            try:
                await self._puts.create(round_name(head.number), blob, self._keep_on)
            except TakenByOther as other:
                head = replace(head, number=head.number + 1, previous=decode_round(other.data).hash)
                continue
            place.begin(head, blob[-32:])
            self._noted.follow(place)
            return

    patch.setattr(Takeover, "fence", unfenced)
    patch.setattr(Archive, "_write_round", careless)
    patch.setattr(Lease, "is_held", True)


def late_fencing(patch: pytest.MonkeyPatch) -> None:
    """The owner stops only when it learns that another one has taken the prefix."""
    patch.setattr(Lease, "is_held", property(lambda self: not self.reason))


def seven_sixths(patch: pytest.MonkeyPatch) -> None:
    """The owner stops later than others may take."""
    patch.setattr("topics.bucket.ownership.lease.FENCED_AFTER", (7, 6))


def early_taker(patch: pytest.MonkeyPatch) -> None:
    """The time without a renewal counts from the first look at this owner."""

    def note(self: OwnerWatch, seen: Any, answered_ms: int) -> None:
        before = self.owner
        if not self.has_looked or before is None or seen is None or seen.owner.epoch != before.epoch:
            self._unchanged_since_ms = answered_ms
        self.seen, self.has_looked = seen, True

    patch.setattr(OwnerWatch, "note", note)


def unconditional_take(patch: pytest.MonkeyPatch) -> None:
    """`owner` is put over any present object."""
    put = SettledPuts.replace

    async def careless(self: SettledPuts, name: str, data: bytes, etag: str, *args: Any) -> str:
        if name == OWNER:
            etag = self._store.get(name, 1 << 20).etag
        return await put(self, name, data, etag, *args)

    patch.setattr(SettledPuts, "replace", careless)


def replaced_owner_goes_on(patch: pytest.MonkeyPatch) -> None:
    """A renewal that finds another owner puts its own again, in its place."""

    def read_back(self: LeaseKeeper, renewal: Any) -> str:
        try:
            found = self._objects.get(OWNER, 1 << 20)
        except ObjectMissing:
            return ""
        except Exception:
            return ""
        self._held = self._held._replace(etag=found.etag)
        return found.etag if found.data == renewal.data else ""

    patch.setattr(LeaseKeeper, "_read_back", read_back)
    patch.setattr(Lease, "is_held", property(lambda self: not self.reason))


def lease_from_the_answer(patch: pytest.MonkeyPatch) -> None:
    """A renewal counts from its answer."""
    patch.setattr(Lease, "renewed", lambda self, sent_ms: setattr(self, "_sent_ms", self._boottime_ms()))


def rounds_passed_over(patch: pytest.MonkeyPatch) -> None:
    """The taker does not apply the rounds that it finds where its fencing round would go."""

    async def fence(self: Takeover, place: Place, follow: Any) -> Place:
        owner = self.ownership.held
        assert owner is not None
        place.epoch = owner.epoch
        while True:
            head = first_head(place, None, self._nonce, self._clock.now_ms())
            blob = encode_round(head, [])
            try:
                await self._puts.create(round_name(head.number), blob, self._keep_on)
            except TakenByOther:
                place.follow(await self._read(place))
                continue
            place.begin(head, blob[-32:])
            return place

    async def no_look(self: RoundFollower) -> None:
        return

    patch.setattr(Takeover, "fence", fence)
    patch.setattr(RoundFollower, "_go_on", no_look_when_taking(RoundFollower._go_on, no_look))


def no_look_when_taking(look: Any, no_look: Any) -> Any:
    """What a follower does that does not follow to the end before the fencing round."""

    async def go_on(self: RoundFollower) -> None:
        await (look if self._takeover.ownership.held is None else no_look)(self)

    return go_on


# -- what counts -------------------------------------------------------------------------------------------------------


def no_ceilings(patch: pytest.MonkeyPatch) -> None:
    """Seqs are given out of which the bucket does not know."""
    patch.setattr(Ceilings, "_bucket_point", lambda self, topic, last_seq, ts: CommitPoint.HANDED)
    patch.setattr(Ceilings, "first_bucket_ceiling", lambda self, config: 0)


def ceilings_not_archived(patch: pytest.MonkeyPatch) -> None:
    """A ceiling counts when it is queued."""
    point = Ceilings._bucket_point

    def early(self: Ceilings, topic: Any, last_seq: int, ts: int) -> CommitPoint:
        point(self, topic, last_seq, ts)
        return CommitPoint.HANDED

    patch.setattr(Ceilings, "_bucket_point", early)


def acked_when_synced(patch: pytest.MonkeyPatch) -> None:
    """A commit of a `remote` topic counts when it is on the disk."""
    init = Commit.__init__

    def early(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.wants_archive = False

    patch.setattr(Commit, "__init__", early)


def heads_stay(patch: pytest.MonkeyPatch) -> None:
    """The new owner goes on at the last seq that it knows, and not above the ceilings."""
    patch.setattr("topics.storage.store.restored_copy.is_taken_over", lambda *args: False)
    patch.setattr("topics.storage.store.restored_copy.is_restored", lambda *args: False)


# -- following ---------------------------------------------------------------------------------------------------------


def half_a_cut(patch: pytest.MonkeyPatch) -> None:
    """A follower applies each round as it comes."""
    follow = RoundFollower.follow

    async def careless(self: RoundFollower, found: Any) -> None:
        found = found._replace(head=replace(found.head, ends_cut=True))
        await follow(self, found)

    patch.setattr(RoundFollower, "follow", careless)


def half_a_step(patch: pytest.MonkeyPatch) -> None:
    """A follower applies one shard after another, and lets readers come between."""
    apply = RoundFollower._apply

    async def slow(self: RoundFollower, found: Any) -> None:
        followed = self._followed
        first: list[Any] = []

        class Parts:
            prepare = followed.prepare

            def apply(self, cut: Any, *times: int) -> None:
                first.append((cut, times))

        self._followed = Parts()
        try:
            await apply(self, found)
        finally:
            self._followed = followed
        for cut, times in first:
            for part in cut:
                followed.apply([part], *times)
                await trio.sleep(0.01)

    patch.setattr(RoundFollower, "_apply", slow)


def batches_passed_over(patch: pytest.MonkeyPatch) -> None:
    """A follower passes over every fifth batch."""
    apply = LiveReplay.apply

    def careless(self: LiveReplay, cut: Any, *times: int) -> None:
        short = [part._replace(batches=[one for i, one in enumerate(part.batches) if i % 5 != 4]) for part in cut]
        apply(self, short, *times)

    patch.setattr(LiveReplay, "apply", careless)


# -- files: found by crashes -------------------------------------------------------------------------------------------


def note_after_apply(patch: pytest.MonkeyPatch) -> None:
    """A follower notes a cut when it is applied, and the next one comes."""
    held: dict[int, Any] = {}

    def late(fs: Any, datadir: Any, note: Any) -> None:
        before = held.get(id(fs))
        held[id(fs)] = note
        if before is not None:
            write_note(fs, datadir, before, datadir.standby_path)

    patch.setattr("topics.bucket.standby.round_follower.keep_note", late)


def log_not_synced(patch: pytest.MonkeyPatch) -> None:
    """A follower notes what is not on the disk."""
    write = FollowedLog.write

    class Unsynced:
        def __init__(self, fs: Any) -> None:
            self._fs = fs

        def __getattr__(self, name: str) -> Any:
            return getattr(self._fs, name)

        def open(self, *args: Any, **kwargs: Any) -> Any:
            handle = self._fs.open(*args, **kwargs)
            handle.fdatasync = lambda: None
            return handle

    def careless(self: FollowedLog, pieces: Any) -> Any:
        fs, self._fs = self._fs, Unsynced(self._fs)
        try:
            return write(self, pieces)
        finally:
            self._fs = fs

    patch.setattr(FollowedLog, "write", careless)


def log_uncut(patch: pytest.MonkeyPatch) -> None:
    """The log is not cut when the directory becomes the owner's, or a standby starts."""
    patch.setattr(handover, "cut_to", lambda *args: None)
    patch.setattr(directory, "cut_to", lambda *args: None)


def standby_note_goes_first(patch: pytest.MonkeyPatch) -> None:
    """The directory is nobody's for a moment while it becomes the owner's."""
    hand_over = handover.hand_over

    def careless(fs: Any, datadir: Any, note: Any, *, goes_on: bool) -> None:
        if fs.exists(datadir.standby_path):
            fs.unlink(datadir.standby_path)
            fs.sync_dir(datadir.meta_dir)
        hand_over(fs, datadir, note, goes_on=goes_on)

    patch.setattr("topics.standby.hand_over", careless)


def meta_goes_first(patch: pytest.MonkeyPatch) -> None:
    """`meta` is moved aside before the rest of the directory of a former owner."""

    def careless(fs: Any, root: str, note: Any, owner: Any, reader: Any) -> str:
        path = join(root, f"{DIVERGED}{note.epoch}")
        fs.mkdir(path)
        names = [name for name in fs.listdir(root) if not handover.stays(name) and name != "meta"]
        for name in ["meta", *sorted(names)]:
            fs.rename(join(root, name), join(path, name))
            fs.sync_dir(root)
        return path

    patch.setattr(directory, "set_aside", careless)


BUILDS: Final[tuple[Build, ...]] = (
    no_fencing,
    late_fencing,
    seven_sixths,
    early_taker,
    replaced_owner_goes_on,
    no_ceilings,
    ceilings_not_archived,
    acked_when_synced,
    heads_stay,
    half_a_cut,
    half_a_step,
    batches_passed_over,
    note_after_apply,
    log_not_synced,
    log_uncut,
)
"""Found by seeds."""
CRASH_BUILDS: Final[tuple[Build, ...]] = (standby_note_goes_first, meta_goes_first)
"""Found by crashes at each step."""
