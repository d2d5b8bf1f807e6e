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
from topics.bucket.local_note import BadNote, BucketNote, read_note, write_note
from topics.bucket.log_reader import ROUND_BYTES, LogGone, Piece, divided, measured, read_pieces, stretches
from topics.bucket.object_names import round_name
from topics.bucket.object_store import ObjectMissing, ObjectStore, ObjectTooLarge, StoreError, StoreErrorKind
from topics.bucket.ownership import BucketRefused, Ownership
from topics.bucket.place_search import Place, PlaceSearch
from topics.bucket.round_format import RoundHead, encode_round
from topics.bucket.settled_puts import PutGivenUp, SettledPuts, StoreState, TakenByOther, log_state
from topics.config import Settings
from topics.errors import ApiError
from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.files.fs import Fs
from topics.storage.store import ReplayStart, Store
from topics.storage.wal.batches import LogMark
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

OWNER_ROUNDS: Final = 500
"""After so many rounds `owner` names a new one, if no base has done so."""


class LogSource(Protocol):
    """What the archive has to know of the topics (the registry)."""

    next_topic_id: int

    def copied_files(self) -> set[int]:
        """Ids of the files that copies in other topics are made of."""
        ...


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
    ) -> None:
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
        self._ownership = Ownership(objects, self._puts, offload, self._nonce, self._keep_on)
        self._note = BucketNote(bucket="", dir="")
        self._noted_at = 0.0
        self.noted_round = 0
        """The last round that the note on the disk knows. A start reads those that follow, so none of them may go."""
        self._place: Place | None = None
        self._keep_from: list[LogPosition] | None = None
        """Files of the log from here on stay; None if none has to."""
        self._backlog = Backlog(settings, store, fs, offload)
        self._given_up = False
        self._asked = False
        self._wake = trio.Event()
        self._news = trio.Event()
        """Set, and replaced, when a cut is in the bucket, and when the state has changed."""
        self._stopping = False
        self._ended = trio.Event()
        self._bytes_at_cut = 0
        self._archived_at_ms = clock.monotonic_ms()
        """When everything that was synced by then was in the bucket, as far as is known."""
        self._cut_number = 0
        self._last_cut: list[LogPosition] | None = None
        """Where the last cut ends that is in the bucket as a whole, as far as this process knows."""
        self._owner_round = 0
        self._owner_due = False
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

    def has(self, shard: int, position: LogPosition) -> bool:
        """Return True if everything of a shard before a position is in the bucket, with all that it refers to."""
        cut = self._last_cut
        return cut is not None and shard < len(cut) and cut[shard] >= position

    async def note_base(self, number: int) -> None:
        """There is a base for round `number`: with the next cut, `owner` names a recent round."""
        if number > self._owner_round:
            self._owner_due = True

    def may_drop(self, file: WalFile) -> bool:
        """Return True if a file of the log is in the bucket, or is not kept for it."""
        keep = self._keep_from
        return keep is None or file.ordinal < keep[file.shard].ordinal

    # -- life ------------------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Read the note of the directory, before anything is appended. Raises BucketRefused, OSError."""
        datadir = self._store.datadir
        try:
            note = await self._offload.run(Pool.FILES, partial(read_note, self._fs, datadir))
            is_stale = await self._offload.run(Pool.FILES, partial(self._fs.exists, datadir.salvaged_path))
        except BadNote as error:
            raise BucketRefused(
                f"{datadir.bucket_path} is damaged: {error}. Remove it, and start once with --take"
            ) from error
        self._note = note or BucketNote(bucket="", dir=secrets.token_hex(16))
        self.noted_round = self._note.round
        if self._note.positions is not None:
            if self._store.salvaged or is_stale or len(self._note.positions) != self._store.shards:
                self._note.positions = None
            else:
                self._keep_from = [LogPosition(*position) for position in self._note.positions]
        if note is None or self._note.positions is None:
            await self._write_note()
        if is_stale:
            await self._offload.run(Pool.FILES, partial(self._fs.unlink, datadir.salvaged_path))

    async def run(self) -> None:
        """Write rounds until `finish`. Raises what nobody expects, and may be called again then."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch_backlog)
                pause = FIRST_S
                while not self._stopping:
                    try:
                        if self._place is None:
                            await self._open()
                        pause = FIRST_S
                        await self._work()
                    except (PlaceGivenUp, PutGivenUp):
                        self._place = None
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
                            await self._give_up("the log lacks bytes that the bucket should have")
                        await self._rest(pause)
                        pause = min(2 * pause, LONGEST_S)
                nursery.cancel_scope.cancel()
        finally:
            if self._stopping:
                self._ended.set()
                self._tell()

    async def settle_start(self) -> None:
        """Wait for the first answer of the bucket, but not for long. Raises BucketRefused."""
        with trio.move_on_after(DECIDE_S):
            await self.decided.wait()
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
        )
        given_up = self._given_up
        place = await search.open(self._note, take=self._take, url=self._url)
        if given_up != self._given_up:
            raise PlaceGivenUp
        self._take = self._given_up = False
        self._source.next_topic_id = max(self._source.next_topic_id, place.epoch << 32)
        begins = place.positions is None
        if begins:
            # Until a round is written, the note says that a history is to begin.
            self._keep_from = first_places(self._store, self._source, self._starts)
        self._cut_number = 0
        self._place = place
        self._owner_round = place.number
        await self._note_place()
        self._asked = True
        self._enter("working")
        log.info("bucket_opened", bucket=place.bucket, epoch=place.epoch, round=place.number, begins_history=begins)

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
                await self._write_note()
                await self._tell_owner(free=True)
                return

    async def _wait_for_reason(self) -> None:
        due = trio.current_time() + self._settings.bucket_round_ms / 1000
        while not (self._stopping or self._given_up):
            now = trio.current_time()
            if self._asked or (self._behind and (now >= due or self._new_bytes >= ROUND_BYTES)):
                break
            if not self._behind:
                self._archived_at_ms = self._clock.monotonic_ms()
            with trio.move_on_after(min(due - now, LOOK_S) if now < due else LOOK_S):
                await self._wake.wait()
            self._wake = trio.Event()
        self._asked = False

    @property
    def _new_bytes(self) -> int:
        """Bytes that were written since the last cut, about."""
        return sum(writer.figures.bytes_written for writer in self._store.writers) - self._bytes_at_cut

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
            first = _first_head(place, self._keep_from, self._nonce, self._clock.now_ms())
            await self._write_round(place, first, [])
        began_ms = self._clock.monotonic_ms()
        self._bytes_at_cut = sum(writer.figures.bytes_written for writer in self._store.writers)
        wall_ms = max(self._clock.now_ms(), place.wall_ms)
        ends = await self._cut()
        self._check_place()
        starts = place.positions
        assert starts is not None
        parts = await self._offload.run(
            Pool.FILES, partial(measured, self._fs, stretches(self._store.files, starts, ends)), holds_disk=False
        )
        reached = list(starts)
        rounds = divided(parts)
        pieces = next(rounds, None)
        while pieces is not None:
            following = next(rounds, None)
            for run, _ in pieces:
                reached[run.shard] = LogPosition(run.ordinal, run.offset + run.length)
            await self._write_round(
                place,
                _head_of(place, pieces, self._nonce, wall_ms, reached if following else ends, bool(following)),
                pieces,
            )
            pieces = following
        self._archived_at_ms = began_ms
        self._cut_number = place.number
        self._last_cut = list(ends)
        if self.state != "working":
            self._enter("working")
        if trio.current_time() - self._noted_at >= NOTE_S:
            await self._note_place()
        self._tell()

    async def _cut(self) -> list[LogPosition]:
        """Return a place in each shard behind everything queued by now, when it is synced. A failed shard, and one that
        waits for room, stays where it is synced now."""
        writers = self._store.writers
        marks: list[LogMark | None] = []
        ends = [writer.synced_position()[0] for writer in writers]
        for writer in writers:
            try:
                marks.append(writer.mark())
            except ApiError:  # failed, or stopped
                marks.append(None)
        for shard, mark in enumerate(marks):
            if mark is not None:
                try:
                    await mark.wait_synced()
                except ApiError:
                    continue
                assert mark.position is not None
                ends[shard] = mark.position
        return ends

    async def _write_round(self, place: Place, head: RoundHead, pieces: Sequence[Piece]) -> None:
        """Have a round in the bucket, and go on behind it. Raises PlaceGivenUp, PutGivenUp."""
        # A pool of its own kind: a disk that is slow to read holds up nothing else.
        blob = await self._offload.run(Pool.BUCKET_CHANGE, partial(_make_round, self._fs, head, list(pieces)))
        self._check_place()
        try:
            await self._puts.create(round_name(head.number), blob, self._keep_on)
        except (TakenByOther, ObjectTooLarge):
            log.warning("bucket_round_taken", round=head.number, epoch=head.epoch)
            raise PlaceGivenUp from None
        self._check_place()
        place.number, place.hash, place.wall_ms = head.number, blob[-32:], head.wall_ms
        place.is_begun, place.ends_cut = True, head.ends_cut
        place.positions = [LogPosition(*position) for position in head.positions]
        if head.begins_history:
            place.history = head.number
            place.files.clear()
        for run in head.runs:
            if run.offset == 0:
                place.files[run.shard, run.ordinal] = head.number
        self._copy_to_note(place)
        self.figures.rounds += 1
        self.figures.round_bytes += len(blob)
        if head.begins_history:
            await self._note_place()

    def _keep_on(self) -> bool:
        """Return False if a put that has failed is not to be repeated."""
        return not (self._stopping or (self._given_up and self._place is not None))

    async def _tell_owner(self, *, free: bool = False) -> None:
        try:
            await self._ownership.tell(self.place.number, free=free)
        except (TakenByOther, ObjectMissing, ObjectTooLarge) as error:
            log.warning("bucket_owner_changed", problem=str(error))
            raise PlaceGivenUp from None
        self._owner_round, self._owner_due = self.place.number, False

    # -- the note --------------------------------------------------------------------------------------------------

    def _copy_to_note(self, place: Place) -> None:
        note = self._note
        note.bucket, note.epoch, note.round, note.hash = place.bucket, place.epoch, place.number, place.hash
        note.wall_ms, note.history = place.wall_ms, place.history
        note.positions = None if place.positions is None else [(at.ordinal, at.offset) for at in place.positions]

    async def _note_place(self) -> None:
        """Write where the archive is. Files of the log that are before that may go."""
        assert self._place is not None
        self._check_place()
        self._copy_to_note(self._place)
        files = self._place.files
        for shard in range(self._store.shards):
            there = {file.ordinal for file in self._store.files.of_shard(shard)}
            for key in [key for key in files if key[0] == shard and key[1] not in there]:
                del files[key]
        await self._write_note()

    async def _write_note(self) -> None:
        place = self._place
        if place is not None:
            self._note.files = [(shard, ordinal, number) for (shard, ordinal), number in sorted(place.files.items())]
        positions = None if self._note.positions is None else list(self._note.positions)
        number = self._note.round
        await self._offload.run(Pool.FILES, partial(write_note, self._fs, self._store.datadir, self._note))
        self._noted_at, self.noted_round = trio.current_time(), number
        if positions is not None and not self._given_up:
            self._keep_from = [LogPosition(*position) for position in positions]

    # -- the backlog -----------------------------------------------------------------------------------------------

    async def _watch_backlog(self) -> None:
        """Give the place up if the log that is kept for the bucket becomes too long."""
        while True:
            await trio.sleep(1)
            keep = self._keep_from
            if keep is None or self._given_up:
                continue
            with suppress(OSError):
                reason = await self._backlog.exceeded(keep, is_working=self.state == "working")
                if reason and self._keep_from is keep:
                    await self._give_up(reason)

    async def _give_up(self, reason: str) -> None:
        """Let the files of the log go. The next opening begins a history."""
        self._given_up = True
        self._keep_from = None
        self._note.positions = None
        log.error(
            "bucket_backlog_given_up",
            reason=reason,
            round=self._note.round,
            consequence="the archive begins anew when the bucket is back; what was not archived is on this disk only",
        )
        self._wake.set()
        try:
            await self._write_note()
        except OSError as error:
            log.warning("bucket_note_not_written", error=str(error), consequence="it is written with the next round")

    # -- state -----------------------------------------------------------------------------------------------------

    def look(self) -> BucketFigures:
        """Return the figures as of now."""
        figures = self.figures
        figures.state, figures.problem = self.state, self.problem
        figures.epoch, figures.round = self._note.epoch, self._note.round
        keep = self._place.positions if self.is_open and self._place is not None else self._keep_from
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
            log.error(event, problem=problem, consequence="the daemon works on; nothing is archived meanwhile")
        self.state, self.problem = state, problem
        if state in ("working", "refused"):
            self.decided.set()
        self._tell()

    def _tell(self) -> None:
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


def _first_head(place: Place, begins: Sequence[LogPosition] | None, nonce: str, now_ms: int) -> RoundHead:
    """Return the header of the first round of an epoch, which is an empty one. Within a history it is the same moment
    of the log as the round before; a history begins at `begins`."""
    if place.positions is not None:
        return _head_of(place, [], nonce, place.wall_ms, place.positions, not place.ends_cut)
    assert begins is not None
    return _head_of(place, [], nonce, max(now_ms, place.wall_ms), begins, True)


def _head_of(
    place: Place, pieces: Sequence[Piece], nonce: str, wall_ms: int, reached: Sequence[LogPosition], goes_on: bool
) -> RoundHead:
    """Return the header of the round behind `place`. `goes_on`: nobody stops behind it."""
    return RoundHead(
        bucket=place.bucket,
        epoch=place.epoch,
        number=place.number + 1,
        previous=place.hash,
        nonce=nonce,
        wall_ms=wall_ms,
        shards=len(reached),
        positions=[(position.ordinal, position.offset) for position in reached],
        runs=[piece.run for piece in pieces],
        ends_cut=not goes_on,
        begins_history=place.positions is None,
        body_bytes=sum(piece.run.length for piece in pieces),
    )


def _make_round(fs: Fs, head: RoundHead, pieces: list[Piece]) -> bytes:
    return encode_round(head, read_pieces(fs, pieces))
