"""`RoundFollower`: the task that follows the rounds of a bucket (`docs/design/standby.md` section 3).

Theory of operation
-------------------
One task does everything, one round after another:

    round     the next round is read; its hash, number and bucket are checked
    write     its bytes go to the same places of the same files as on the owner, synced
    prepare   what applying would have to wait for (`Followed.prepare`)
    note      `meta/standby` says that the log is whole up to here
    apply     in one step of the loop (`Followed.apply`)

Rounds are applied when their cut has ended, all of it at once. The note comes before `apply`, because a checkpoint of
what was applied may not know more than the note: a start cuts the log back to it.

A failure before `apply` changes nothing that counts, and the round is tried again. After a failure in `apply` the
topics in memory are useless; the directory is not, unless the log has something that cannot be followed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, Literal, Protocol

import trio

from topics.bucket.local_note import BucketNote
from topics.bucket.object_store import StoreError
from topics.bucket.ownership.owner_object import BucketRefused
from topics.bucket.ownership.takeover import Takeover
from topics.bucket.place import Place
from topics.bucket.round_format import Round, RoundHead
from topics.bucket.settled_puts import PutGivenUp
from topics.bucket.standby.directory import keep_note, mark_unfinished
from topics.bucket.standby.followed_log import FileBatches, FollowedLog, LogBroken, LogPiece
from topics.errors import ApiError
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.wal.wal_files import LogPosition
from topics.telemetry.figures import StandbyFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

RETRY_S: Final = 1.0
"""The wait after a failure (s)."""


class Followed(Protocol):
    """The topics that rounds are applied to (`topics.engine.standby`)."""

    async def prepare(self, cut: Sequence[FileBatches]) -> None:
        """Do what a cut needs of the disk before it is applied. Raises OSError, ApiError."""
        ...

    def apply(self, cut: Sequence[FileBatches], wall_ms: int, window_ms: int) -> None:
        """Apply a cut in one step. `window_ms` is what the owner's clock of windows read; 0 if that is not known."""
        ...


class Unfollowable(Exception):
    """This process cannot go on; the next start can. The message is a phrase."""


class RoundFollower:
    """Follows a bucket from the round in a note. `run` is a task."""

    def __init__(
        self,
        note: BucketNote,
        takeover: Takeover,
        followed: Followed,
        files: FollowedLog,
        *,
        fs: Fs,
        datadir: DataDir,
        clock: Clock,
        offload: Offload,
        poll_ms: int,
    ) -> None:
        assert note.positions is not None
        self.place = Place(
            bucket=note.bucket,
            epoch=note.epoch,
            number=note.round,
            hash=note.hash,
            wall_ms=note.wall_ms,
            window_ms=note.window_ms,
            positions=[LogPosition(*position) for position in note.positions],
            history=note.history,
            files={(shard, ordinal): number for shard, ordinal, number in note.files},
        )
        self.figures = StandbyFigures(round=note.round, epoch=note.epoch, wall_ms=note.wall_ms)
        self.note = note
        """Up to where the log is whole, and applied."""
        self._takeover = takeover
        self._followed = followed
        self._files = files
        self._fs = fs
        self._datadir = datadir
        self._clock = clock
        self._offload = offload
        self._poll_s = poll_ms / 1000
        self._shards = len(note.positions)
        self._dir = note.dir
        self._written = note.round
        """The last round whose bytes are written."""
        self._caught_up_ms = clock.now_ms()
        self._applied = trio.Event()
        """Set, and replaced, when a cut is applied."""

    # -- for others ------------------------------------------------------------------------------------------------

    @property
    def owner_url(self) -> str:
        """Where the owner answers, as far as is known."""
        owner = self._takeover.watch.owner
        return owner.url if owner is not None and owner.state == "held" else ""

    @property
    def lag_ms(self) -> int:
        """How old what is shown may be: since when there may be rounds that are not applied (ms)."""
        return max(self._clock.now_ms() - max(self._caught_up_ms, self.figures.wall_ms), 0)

    def look(self) -> StandbyFigures:
        """Return the present figures."""
        self.figures.lag_ms, self.figures.owner = self.lag_ms, self.owner_url
        return self.figures

    async def wait(self) -> None:
        """Wait until the next cut is applied."""
        await self._applied.wait()

    # -- the task --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Follow until cancelled. Raises Unfollowable if this process cannot go on."""
        while True:
            await self.catch_up()
            await trio.sleep(self._poll_s)

    @property
    def is_current(self) -> bool:
        """Return True if the last look has found no round that is not written here."""
        return self.figures.state == "following"

    async def catch_up(self) -> None:
        """Apply what is there. Waits out what may pass. Raises Unfollowable."""
        while True:
            began_ms = self._clock.now_ms()
            try:
                await self._go_on()
            except StoreError as error:
                self._enter("waiting", error.sentence)
            except (OSError, ApiError) as error:
                self._enter("waiting", f"a round cannot be written or read here: {error}")
            except (BucketRefused, LogBroken) as error:
                raise await self.give_up(str(error)) from error
            else:
                if self.place.ends_cut:
                    self._caught_up_ms = began_ms
                self._enter("following")
                return
            await trio.sleep(RETRY_S)

    async def fence(self) -> Place:
        """When this daemon has taken the prefix: follow to the end, and put the fencing round. Return the place behind
        that. Waits out what may pass, for as long as the lease is held. Raises Unfollowable; also if it is lost."""
        lease = self._takeover.lease
        while lease.is_held:
            try:
                await self._go_on()
                place = await self._takeover.fence(self.place, self.follow)
            except StoreError as error:
                self._enter("waiting", error.sentence)
            except (OSError, ApiError, PutGivenUp) as error:
                self._enter("waiting", f"the bucket cannot be taken over now: {error}")
            except (BucketRefused, LogBroken) as error:
                raise await self.give_up(str(error)) from error
            else:
                if lease.is_held:  # else another daemon may have taken the prefix, and this one follows it
                    return place
            await trio.sleep(RETRY_S)
        raise Unfollowable(f"this daemon had taken the bucket, and does not own it any more: {lease.reason}")

    async def _go_on(self) -> None:
        """Follow the rounds that are there. Raises Unfollowable if the next one has gone: a standby that was away for
        longer than the bucket keeps rounds would take its own state for the newest, and put its fencing round into the
        gap. Raises as `follow` does, StoreError, BucketRefused."""
        owner = self._takeover.watch.owner
        await self._takeover.catch_up(self.place, self.follow)
        if owner is not None and self.place.number < owner.round:
            raise await self.give_up(
                f"the bucket has no round {self.place.number + 1} any more, and its owner has written {owner.round}"
            )

    async def follow(self, found: Round) -> None:
        """Take the next round. Raises Unfollowable, LogBroken, OSError, ApiError; may be called again then."""
        head = found.head
        if head.begins_history or head.shards != self._shards:
            raise await self.give_up(f"round {head.number} begins another history")
        if self._written < head.number:
            pieces = [LogPiece(run.shard, run.ordinal, run.offset, data) for run, data in found.pieces()]
            new = await self._offload.run(Pool.FILES, partial(self._files.write, pieces))
            self._files.register(new)
            self._written = head.number
        if head.ends_cut:
            await self._apply(found)

    async def _apply(self, found: Round) -> None:
        head = found.head
        cut = await self._offload.run(Pool.CPU, self._files.read)
        await self._followed.prepare(cut)
        begun = [((run.shard, run.ordinal), head.number) for run in head.runs if run.offset == 0]
        files = {key: number for key, number in (*self.place.files.items(), *begun) if self._files.has(*key)}
        self.place.files = dict(files)
        note = BucketNote(
            bucket=head.bucket,
            dir=self._dir,
            epoch=head.epoch,
            round=head.number,
            hash=found.hash,
            wall_ms=head.wall_ms,
            window_ms=head.window_ms or self.place.window_ms,
            positions=head.positions,
            history=self.place.history,
            files=[(shard, ordinal, number) for (shard, ordinal), number in sorted(files.items())],
            complete=self._complete(head, cut),
        )
        await self._offload.run(Pool.FILES, partial(keep_note, self._fs, self._datadir, note))
        self.note = note
        began_ns = self._clock.perf_ns()
        try:
            self._followed.apply(cut, head.wall_ms, note.window_ms)
        except Exception as error:
            log.exception("round_not_applied", round=head.number)
            raise await self.give_up(f"round {head.number} cannot be applied: {error}") from error
        figures = self.figures
        figures.epoch, figures.round, figures.wall_ms = head.epoch, head.number, head.wall_ms
        figures.rounds += 1
        figures.frames += sum(len(batch.rows) for part in cut for batch in part.batches)
        figures.apply_ms += (self._clock.perf_ns() - began_ns) / 1e6
        applied, self._applied = self._applied, trio.Event()
        applied.set()

    def _complete(self, head: RoundHead, cut: Sequence[FileBatches]) -> list[int]:
        """Return the shards whose files end with FileEnd at the places of this round."""
        before = self.note.positions or []
        ended = {(part.shard, part.file.ordinal) for part in cut if part.is_ended}
        return [
            shard
            for shard, place in enumerate(head.positions)
            if (shard, place[0]) in ended or (shard in self.note.complete and tuple(before[shard]) == tuple(place))
        ]

    async def give_up(self, reason: str) -> Unfollowable:
        """Have the next start make the directory anew. Raises OSError."""
        await self._offload.run(Pool.FILES, partial(mark_unfinished, self._fs, self._datadir.root))
        return Unfollowable(reason)

    def _enter(self, state: Literal["following", "waiting"], problem: str = "") -> None:
        figures = self.figures
        if (figures.state, figures.problem) != (state, problem):
            if state == "waiting":
                log.warning("standby_waits", problem=problem)
            elif figures.state == "waiting":
                log.info("standby_follows", round=figures.round)
            figures.state, figures.problem = state, problem


Follow = Callable[[Round], Awaitable[None]]
