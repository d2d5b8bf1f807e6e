"""`Archive`: the task that writes the log to the bucket, round after round (`docs/design/bucket.md` sections 3 and 5).

Theory of operation
-------------------
One task does everything, so at most one round is being made and at most one put is under way:

    opening    the prefix is taken (`place_search`). It is tried again until it succeeds; the daemon works meanwhile
    working    an empty round, the first one of the epoch; then a cut, when `TOPICS_BUCKET_ROUND_MS` is over, when there
               are `ROUND_BYTES`, or when `archived_to` asks; its rounds, one after another, each settled before the
               next is made; then the note in `meta/bucket`
    refused    the bucket has answered, and must not be used. It is tried again now and then

The first round of an epoch is never removed from the bucket, so it has nothing that anybody may want to be gone.

Files of the log stay from the place that the note on disk has. So a round whose note was lost by a crash can be
compared with the log. If they become too many (`Backlog`), or the disk is nearly full, the place is given up: the files
may go, and the next opening begins a history with a new epoch. A round that exists with other bytes leads to a new
opening, too, which finds out whose it is.

Appends never wait for anything here: marks are not waited for by writers, files are read and bytes are compressed in
worker threads.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, Protocol

import trio

from topics.bucket.backlog import Backlog
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.bucket_location import BucketLocationError, open_objects, parse_location
from topics.bucket.local_note import NotedPlace
from topics.bucket.log_cuts import LogCuts, LogSource
from topics.bucket.log_reader import ROUND_BYTES, LogGone, Piece, divided, measured, read_pieces, stretches
from topics.bucket.object_names import round_name
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge, StoreError, StoreErrorKind
from topics.bucket.ownership.lease import Lease
from topics.bucket.ownership.owner_object import BucketRefused, LeaseTerms, Ownership
from topics.bucket.place import Place, first_head, next_head
from topics.bucket.place_search import PlaceSearch
from topics.bucket.round_format import RoundHead, encode_round
from topics.bucket.settled_puts import PutGivenUp, SettledPuts, StoreState, TakenByOther, log_state
from topics.config import Settings
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.store import ReplayStart, Store
from topics.storage.wal.wal_files import LogPosition, WalFile
from topics.telemetry.figures import BucketFigures
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOOK_S: Final = 0.25
"""How often the archive looks if there is something to do (s)."""

DECIDE_S: Final = 5.0
"""How long a start waits to hear if it is refused (s)."""

FIRST_S: Final = 1.0
LONGEST_S: Final = 30.0
"""The first and the longest wait before the bucket is opened again (s)."""

NOTE_S: Final = 10.0
"""The note on disk is behind by at most so much (s), while rounds are written."""

LEASE_CALLS: Final = 4
"""So many calls of the store fit into a lease."""

OWNER_ROUNDS: Final = 500
"""After so many rounds `owner` names a new one, if no base has done so."""


class Starts(Protocol):
    """Where a replay begins (the compactor)."""

    def replay_starts(self) -> list[ReplayStart]:
        """Return where the replay of the newest snapshot begins, by shard."""
        ...


class PlaceGivenUp(Exception):
    """The place is given up, or was lost to somebody else: the bucket has to be opened again."""


class ArchiveStopped(Exception):
    """The archive has ended before what was asked for was in the bucket."""


def make_objects(settings: Settings, environ: Mapping[str, str], offload: Offload) -> BoundedObjects:
    """Return the store that `TOPICS_BUCKET` names. Raises BucketRefused."""
    timeout_s = settings.bucket_timeout_ms / 1000
    try:
        location = parse_location(settings.bucket, environ)
        return BoundedObjects(open_objects(location, timeout_s), offload, timeout_s)
    except (BucketLocationError, StoreError) as error:
        raise BucketRefused(str(error)) from error


def lease_terms(settings: Settings, environ: Mapping[str, str], offload: Offload, clock: Clock) -> LeaseTerms:
    """Return how this daemon holds a lease: its calls of the store have a limit of their own, so that several fit into
    a lease. Raises BucketRefused."""
    timeout_s = min(settings.bucket_timeout_ms, settings.bucket_lease_ms // LEASE_CALLS) / 1000
    try:
        location = parse_location(settings.bucket, environ)
        objects = BoundedObjects(open_objects(location, timeout_s), offload, timeout_s)
    except (BucketLocationError, StoreError) as error:
        raise BucketRefused(str(error)) from error
    return LeaseTerms(settings.bucket_lease_ms, objects, clock.boottime_ms)


class Archive:
    """The archive of one data directory. Made by the daemon if there is a bucket. `prepare` after recovery, before the
    writers run; then `run` is a task, and `finish` ends it."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        source: LogSource,
        starts: Starts,
        objects: ObjectStore,
        *,
        fs: Fs,
        clock: Clock,
        offload: Offload,
        url: str = "",
        nonce: str | None = None,
        dir_id: str | None = None,
        ownership: Ownership | None = None,
        place: Place | None = None,
    ) -> None:
        """`ownership` and `place` are those of a prefix that was taken already (`topics.bucket.ownership.takeover`).
        `dir_id` is the id of a directory that has no note yet."""
        self.objects = objects
        self.decided = trio.Event()
        """Set when the bucket has been opened for the first time, or was refused."""
        self.state: Literal["opening", "working", "waiting", "refused"] = "opening"
        self.problem = ""
        """Why it is not working; for an operator."""
        self._settings = settings
        self._store = store
        self._source = source
        self._starts = starts
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._url = url
        self._nonce = nonce or secrets.token_hex(8)
        self._take = settings.bucket_take
        self._puts = SettledPuts(objects, offload, self._show)
        self._ownership = ownership or Ownership(objects, self._puts, offload, self._nonce, self._keep_on)
        self._taken = place
        self._noted = NotedPlace(store, fs, offload, dir_id)
        self._place: Place | None = None
        self._backlog = Backlog(settings, store, fs, offload)
        self._given_up = self._asked = False
        self._wake = trio.Event()
        self._news = trio.Event()
        """Set, and replaced, when a cut is in the bucket, and when the state has changed."""
        self._stopping = False
        self._decides_start = False  # True while the start waits to hear if it is refused
        self._ended = trio.Event()
        self._archived_at_ms = clock.monotonic_ms()
        """When everything that was synced by then was in the bucket, as far as is known."""
        self._cut_number = 0
        self._owner_round, self._owner_due = 0, False
        self._base = 0
        """The newest base that is known; 0 before."""
        self._cuts = LogCuts(store, source, lambda: self._wake.set())  # noqa: PLW0108 (the event is replaced)
        self.figures = BucketFigures()

    # -- for others ------------------------------------------------------------------------------------------------

    @property
    def puts(self) -> SettledPuts:
        """The puts of this process in the bucket."""
        return self._puts

    @property
    def is_open(self) -> bool:
        """Return True if the prefix is this directory's, and a history has begun."""
        return self._place is not None and self._place.positions is not None

    @property
    def place(self) -> Place:
        """Where the archive is. Raises ArchiveStopped if the bucket is not open."""
        if self._place is None:
            raise ArchiveStopped(self.problem or "the bucket is not open")
        return self._place

    @property
    def epoch(self) -> int:
        """The epoch in which this process writes."""
        return self.place.epoch

    @property
    def bucket_id(self) -> str:
        """The id of the bucket."""
        return self.place.bucket

    @property
    def last_round(self) -> int:
        """The last round that is written."""
        return self.place.number

    @property
    def history_begun_at(self) -> int:
        """The first round of the history."""
        return self.place.history

    def round_of_file(self, shard: int, ordinal: int) -> int:
        """Return the round of this history that has the first byte of a file of the log. Raises KeyError if there is
        none."""
        return self.place.files[shard, ordinal]

    async def archived_to(self, positions: Sequence[LogPosition]) -> int:
        """Wait until everything before these places is in the bucket. Return the number of a round that ends a cut and
        has it, or is behind it. Raises ArchiveStopped if the archive ends before, or a shard has failed before its
        place."""
        pause_s = 0.0
        while True:
            place = self._place
            if place is not None and place.positions is not None and self._cut_number == place.number:
                late = [
                    shard
                    for shard, (has, wants) in enumerate(zip(place.positions, positions, strict=True))
                    if has < wants
                ]
                if not late:
                    return place.number
                for shard in late:
                    writer = self._store.writers[shard]
                    if writer.failed is not None and writer.synced_position()[0] < positions[shard]:
                        raise ArchiveStopped(f"shard {shard} of the log has failed")
            if self._ended.is_set():
                raise ArchiveStopped("the archive has ended")
            news = self._news
            self._asked = True
            self._wake.set()
            await news.wait()
            await trio.sleep(pause_s)
            pause_s = LOOK_S  # a shard without room has its place where it is

    async def vouch_for(self, positions: Sequence[LogPosition]) -> None:
        """Wait until everything before these places can be restored from the bucket. Raises ArchiveStopped."""
        await self.archived_to(positions)
        while not self.is_restorable:
            if self._ended.is_set():
                raise ArchiveStopped("the archive has ended")
            await self._news.wait()

    @property
    def is_restorable(self) -> bool:
        """Return True if there is a base of the present history: what is in its rounds can be restored."""
        place = self._place
        return place is not None and 0 < place.history <= self._base

    async def note_base(self, number: int) -> None:
        """There is a base for round `number`: with the next cut, `owner` names a recent round. If it is the first of
        the history, what waits for a round counts now."""
        self._base = max(self._base, number)
        if number > self._owner_round:
            self._owner_due = True
        self._release()
        self._tell()
        self._wake.set()

    def may_drop(self, file: WalFile) -> bool:
        """Return True if a file of the log is in the bucket, or is not kept for it."""
        return self._noted.may_drop(file)

    @property
    def noted_round(self) -> int:
        """The last round that the note on the disk knows. A start reads those that follow, so none of them may go."""
        return self._noted.round

    # -- life ------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Read the note of the directory, before anything is appended. Raises BucketRefused, OSError."""
        await self._noted.read()
        self._cuts.begin()

    async def run(self) -> None:
        """Write rounds until `finish`. Raises what nobody expects, and may be called again then."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_backlog)
                pause = FIRST_S
                while not self._stopping:
                    if self._lease is not None and not self._lease.is_held:
                        self._enter("refused", self._lease.reason)
                        await self._rest(LONGEST_S)
                        continue
                    try:
                        if self._place is None:
                            await self._open()
                        pause = FIRST_S
                        await self._work()
                    except (PlaceGivenUp, PutGivenUp):
                        self._place = None
                        if self._lease is not None and not self._stopping:
                            self._ownership.lose("its rounds cannot be continued")
                    except BucketRefused as error:
                        self._place = None
                        self._enter("refused", str(error))
                        await self._rest(LONGEST_S)
                    except StoreError as error:
                        self._place = None
                        refused = error.kind in (StoreErrorKind.DENIED, StoreErrorKind.NO_BUCKET)
                        self._enter("refused" if refused else "waiting", error.sentence)
                        await self._rest(pause)
                        pause = min(2 * pause, LONGEST_S)
                    except (OSError, LogGone) as error:
                        self._enter("waiting", f"the data directory cannot be read or written for the bucket: {error}")
                        if isinstance(error, LogGone):
                            await self.begin_anew("the log lacks bytes that the bucket should have")
                        await self._rest(pause)
                        pause = min(2 * pause, LONGEST_S)
                nursery.cancel_scope.cancel()
        finally:
            if self._stopping:
                self._ended.set()
                self._tell()

    async def settle_start(self) -> None:
        """Wait for the first answer of the bucket, but not for long. Raises BucketRefused."""
        self._decides_start = True
        with trio.move_on_after(DECIDE_S):
            await self.decided.wait()
        self._decides_start = False
        if self.state == "refused":
            raise BucketRefused(self.problem)

    async def finish(self) -> None:
        """At a clean stop, when nothing is written any more: archive what is left, and give the prefix up. Returns when
        that is done, or when the bucket does not answer. `run` must be running."""
        self._stopping = True
        self._wake.set()
        await self._ended.wait()
        if self.is_open and not self._behind:
            log.info("bucket_left", round=self.place.number)
        else:
            log.warning("bucket_incomplete", problem=self.problem, consequence="the next start goes on")

    # -- opening ---------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        given_up = self._given_up
        place, self._taken = self._taken, None
        if place is None:
            place = await self._search()
        if given_up != self._given_up:
            raise PlaceGivenUp
        self._take = self._given_up = False
        self._source.next_topic_id = max(self._source.next_topic_id, place.epoch << 32)
        begins = place.positions is None
        if begins:
            # Until a round is written, the note says that a history is to begin.
            self._noted.keep_from = first_places(self._store, self._source, self._starts)
        self._cut_number = 0
        self._place = place
        self._owner_round = place.number
        await self._note_place()
        self._asked = True
        self._enter("working")
        log.info("bucket_opened", bucket=place.bucket, epoch=place.epoch, round=place.number, begins_history=begins)

    async def _search(self) -> Place:
        """Take the prefix, and return where to go on."""
        ends = [writer.synced_position()[0] for writer in self._store.writers]
        search = PlaceSearch(
            self.objects,
            self._puts,
            self._ownership,
            fs=self._fs,
            offload=self._offload,
            files=self._store.files,
            ends=ends,
            nonce=self._nonce,
            keep_on=self._keep_on,
            is_blank=self._cuts.is_blank,
        )
        held = self._ownership.held
        if self._ownership.lease is not None and held is not None:
            return await search.resume(self._noted.note, held, take=self._take)
        return await search.open(self._noted.note, take=self._take, url=self._url)

    # -- working ---------------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        """Cut and archive until the stop. Raises PlaceGivenUp, PutGivenUp, OSError, LogGone."""
        while True:
            await self._wait_for_reason()
            last = self._stopping
            self._check_place()
            await self._archive_cut()
            if self._owner_due or self.place.number - self._owner_round >= OWNER_ROUNDS:
                await self._tell_owner()
            if last:
                await self._note_place()
                await self._tell_owner(free=True)
                return

    async def _wait_for_reason(self) -> None:
        due = trio.current_time() + self._settings.bucket_round_ms / 1000
        while not (self._stopping or self._given_up):
            now = trio.current_time()
            look_at = min(due, now + LOOK_S) if now < due else now + LOOK_S
            if self._cuts.is_wanted and self.is_restorable:
                look_at = min(look_at, self._cuts.gathered_at)
            if self._asked or look_at <= now or (self._behind and (now >= due or self._cuts.new_bytes >= ROUND_BYTES)):
                break
            if not self._behind:
                self._archived_at_ms = self._clock.monotonic_ms()
            with trio.move_on_at(look_at):
                await self._wake.wait()
            self._wake = trio.Event()
        self._asked = False

    @property
    def _behind(self) -> bool:
        """Return True if something is synced and not in the bucket."""
        place = self._place
        if place is None or place.positions is None:
            return True
        return any(writer.synced_position()[0] > place.positions[writer.shard] for writer in self._store.writers)

    def _check_place(self) -> None:
        if self._given_up:
            raise PlaceGivenUp

    async def _archive_cut(self) -> None:
        """Take a cut, and write its rounds, if there is anything new."""
        place = self.place
        if not place.is_begun:
            first = first_head(place, self._noted.keep_from, self._nonce, self._clock.now_ms())
            await self._write_round(place, first, [])
        began_ms = self._clock.monotonic_ms()
        wall_ms, window_ms = max(self._clock.now_ms(), place.wall_ms), self._store.windows.now_ms()
        ends = await self._cuts.take()
        self._check_place()
        starts = place.positions
        assert starts is not None
        parts = stretches(self._store.files, starts, ends)
        if any(part.end is None for part in parts):
            parts = await self._offload.run(Pool.FILES, partial(measured, self._fs, parts), holds_disk=False)
        reached = list(starts)
        rounds = divided(parts)
        pieces = next(rounds, None)
        while pieces is not None:
            following = next(rounds, None)
            for run, _ in pieces:
                reached[run.shard] = LogPosition(run.ordinal, run.offset + run.length)
            await self._write_round(
                place,
                next_head(
                    place,
                    [piece.run for piece in pieces],
                    self._nonce,
                    wall_ms,
                    reached if following else ends,
                    bool(following),
                    window_ms,
                ),
                pieces,
            )
            pieces = following
        self._archived_at_ms = began_ms
        self._cut_number = place.number
        self._cuts.is_archived = True
        self._release()
        if self.state != "working":
            self._enter("working")
        if trio.current_time() - self._noted.written_at >= NOTE_S:
            await self._note_place()
        self._tell()

    def _release(self) -> None:
        """Tell what waits for the last cut, if the bucket has it and it can be restored."""
        place = self._place
        if place is not None and place.positions is not None and self.is_restorable:
            self._cuts.release(place.positions)

    async def _write_round(self, place: Place, head: RoundHead, pieces: Sequence[Piece]) -> None:
        """Have a round in the bucket, and go on behind it. Raises PlaceGivenUp, PutGivenUp."""
        # A pool of its own kind: a disk that is slow to read holds up nothing else.
        blob = await self._offload.run(Pool.BUCKET_CHANGE, partial(_make_round, self._fs, head, list(pieces)))
        self._check_place()
        try:
            await self._puts.create(round_name(head.number), blob, self._keep_on)
        except (TakenByOther, ObjectTooLarge):
            log.warning("bucket_round_taken", round=head.number, epoch=head.epoch)
            self._ownership.lose(f"round {head.number} of the bucket is another's")
            raise PlaceGivenUp from None
        self._check_place()
        place.begin(head, blob[-32:])
        self._noted.follow(place)
        self.figures.rounds += 1
        self.figures.round_bytes += len(blob)
        if head.begins_history:
            await self._note_place()

    def _keep_on(self) -> bool:
        """Return False if a put that has failed is not to be repeated."""
        if self._lease is not None and not self._lease.is_held:
            return False
        return not (self._stopping or (self._given_up and self._place is not None))

    @property
    def _lease(self) -> Lease | None:
        """The lease under which this process owns the prefix; None without takeover."""
        return self._ownership.lease

    async def _tell_owner(self, *, free: bool = False) -> None:
        try:
            await self._ownership.tell(self.place.number, free=free)
        except (TakenByOther, ObjectMissing, ObjectTooLarge) as error:
            log.warning("bucket_owner_changed", problem=str(error))
            raise PlaceGivenUp from None
        self._owner_round, self._owner_due = self.place.number, False

    async def _note_place(self) -> None:
        """Write where the archive is. Files of the log that are before that may go."""
        assert self._place is not None
        self._check_place()
        await self._noted.write(self._place)

    # -- the backlog -----------------------------------------------------------------------------------------------

    async def _watch_backlog(self) -> None:
        """Give the place up if the log that is kept for the bucket becomes too long. Tell clients that wait for it."""
        while True:
            await trio.sleep(1)
            self._store.round_waits.tell_of_delay()
            keep = self._noted.keep_from
            if keep is None or self._given_up or self._lease is not None:
                continue  # with a lease appends end before the backlog is long
            with suppress(OSError):
                reason = await self._backlog.exceeded(keep, is_working=self.state == "working")
                if reason and self._noted.keep_from is keep:
                    await self.begin_anew(reason)

    async def begin_anew(self, reason: str) -> None:
        """Let the files of the log go. The next opening begins a history."""
        self._ownership.lose(reason)
        self._given_up = True
        self._noted.forget()
        log.error(
            "bucket_backlog_given_up",
            reason=reason,
            round=self._noted.note.round,
            consequence="the archive begins anew when the bucket is back; what was not archived is on this disk only",
        )
        self._wake.set()
        try:
            await self._noted.write(None)
        except OSError as error:
            log.warning("bucket_note_not_written", error=str(error), consequence="it is written with the next round")

    # -- state -----------------------------------------------------------------------------------------------------

    def look(self) -> BucketFigures:
        """Return the figures as of now."""
        figures = self.figures
        figures.state, figures.problem = self.state, self.problem
        figures.epoch, figures.round = self._noted.note.epoch, self._noted.note.round
        figures.lease_left_ms = self._lease.left_ms if self._lease is not None else None
        keep = self._place.positions if self.is_open and self._place is not None else self._noted.keep_from
        figures.lag_bytes = self._backlog.bytes_from(keep) if keep is not None else 0
        figures.backlog_limit_bytes = self._backlog.limit
        figures.lag_ms = self._clock.monotonic_ms() - self._archived_at_ms if self._behind else 0
        return figures

    def _show(self, state: StoreState) -> None:
        """Puts wait for the store, or do not any more."""
        log_state(state)
        if state.is_waiting:
            self.state, self.problem = "waiting", state.sentence
        elif self._place is not None:
            self.state, self.problem = "working", ""
        self._tell()

    def _enter(self, state: Literal["working", "waiting", "refused"], problem: str = "") -> None:
        if (state, problem) != (self.state, self.problem) and state != "working":
            event = "bucket_refused" if state == "refused" else "bucket_waits"
            refuses_start = state == "refused" and self._decides_start
            log.error(event, problem=problem, consequence=_consequence(self._lease, refuses_start=refuses_start))
        self.state, self.problem = state, problem
        if state in ("working", "refused"):
            self.decided.set()
        self._tell()

    def _tell(self) -> None:
        problem = None
        if self.state != "working":
            problem = self.problem or "it is not open"
        elif not self.is_restorable:
            problem = "it has no base of the present history yet"
        self._store.round_waits.set_away(problem)
        self._news.set()
        self._news = trio.Event()

    async def _rest(self, seconds: float) -> None:
        """Wait, but not beyond the beginning of a stop."""
        with trio.move_on_after(seconds):
            while not self._stopping:
                await self._wake.wait()
                if not self._stopping:
                    self._wake = trio.Event()


def first_places(store: Store, source: LogSource, starts: Starts) -> list[LogPosition]:
    """Return the beginnings of the oldest files of the log that the newest snapshot needs, by shard."""
    copied = source.copied_files()
    places = []
    for shard, start in enumerate(starts.replay_starts()):
        files = store.files.of_shard(shard)
        needed = [file.ordinal for file in files if file.file_id in copied]
        before = [file.ordinal for file in files if file.ordinal <= start.position.ordinal]
        needed.append(before[-1] if before else files[0].ordinal)
        places.append(LogPosition(min(needed), 0))
    return places


def _consequence(lease: Lease | None, *, refuses_start: bool) -> str:
    """Return what it means for the daemon that nothing is archived; for an operator."""
    if lease is not None and not lease.is_held:
        return "nothing is archived any more: the daemon changes nothing, answers reads for a while, and ends"
    return "the start is refused" if refuses_start else "the daemon works on; nothing is archived meanwhile"


def _make_round(fs: Fs, head: RoundHead, pieces: list[Piece]) -> bytes:
    return encode_round(head, read_pieces(fs, pieces))
