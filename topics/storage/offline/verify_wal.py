"""Verifying the WAL of one shard: every frame of every file, and how the files join (`docs/spec/storage.md` section 2,
`docs/spec/crash.md` 4 and 5).

Theory of operation. Each file is read once, from its first byte to its last, in windows. Frames are checked one by one;
references between frames (batches, ordinals, Synced, FileEnd) are checked against what has been read of the file. Where
bytes are no frame, they are the torn end of unsynced writes, or damage. That is decided as recovery decides it, with
one addition: a single bit set among the zeros behind the end cannot come from a write, so it is damage too. Behind
damage the search for frames continues, so that all damage is found.

The seqs of a topic must continue from frame to frame, those of copies included (`verify_routers`). The seqs of an
`ephemeral` topic are not logged, so nothing is checked there.

Only offsets are kept in memory, 8 bytes per frame of the file that is read.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from topics.conditions.fences import check_fence_name, fences_of
from topics.consumers import consumer_events
from topics.groups.group_events import group_event_from_wire
from topics.log.dumped_values import text, whole
from topics.log.stages import CommitKeys
from topics.queue.lease_events import event_from_wire
from topics.routing.router_state import Router
from topics.schedules.schedule_events import schedule_event_from_wire
from topics.storage.files.datadir import wal_path
from topics.storage.files.fs import WINDOW_BYTES, File, Fs
from topics.storage.offline.findings import MAX_PER_FILE, SECTOR, Finding
from topics.storage.offline.verify_routers import CopyFacts, RecipePlace, RouterCursors, contradiction, copies_in
from topics.storage.recovery.log_end import was_cut_short
from topics.storage.recovery.recovered_state import NO_LEASES_RUN, shard_of
from topics.storage.recovery.transaction_replay import members_of
from topics.storage.wal import frames
from topics.storage.wal.frame_search import FrameSearch, LogFile, first_nonzero, vouched_behind
from topics.storage.wal.frames import CONTINUES, MORE, Frame, FrameType, LogScan, Row
from topics.storage.wal.keep_frames import keep_from_wire
from topics.storage.wal.wal_files import LogPosition
from topics.storage.wal.wal_head import HEADLESS, WalHead, scans

_MORE: Final = bytes(bool(flags & MORE) for flags in range(256))
_CONTINUES: Final = bytes(bool(flags & CONTINUES) for flags in range(256))


class LogReference(NamedTuple):
    """A place in the log that another file names. `frames` is the ordinal of the frame there, if that is named too.

    `must_exist` is False if the file may have been removed.
    """

    offset: int
    frames: int | None
    path: str
    what: str
    must_exist: bool


class LogFacts:
    """The facts from the logs of all shards about topics."""

    def __init__(self) -> None:
        self.since: set[int] = set()
        """Ids of topics with frames at or behind where replay begins: their files may be newer than their part."""
        self.created: dict[int, str] = {}
        """The names of topics by id."""
        self.deleted: set[int] = set()
        self.copies = CopyFacts()
        self.stopped: set[int] = set()
        """Shards whose log ends in a clean stop."""


class PartFacts(NamedTuple):
    """The facts about a topic from its newest part."""

    name: str
    end: LogPosition
    """Frames before it are in the part."""
    ephemeral: bool


class _Gap(NamedTuple):
    """A place where the seqs of a topic do not continue, and the problem."""

    path: str
    offset: int
    problem: str


class _SeqSequences:
    """Checks that the seqs of each topic continue."""

    def __init__(self) -> None:
        self._next: dict[int, int] = {}
        self._gaps: dict[int, _Gap] = {}
        """The first gap of each topic. It does not count for a topic that was `ephemeral`."""
        self._ephemeral: dict[int, bool] = {}

    def forget(self) -> None:
        """Forget the seqs, because frames are missing: the next ones may continue anywhere."""
        self._next.clear()

    def take(self, path: str, offset: int, topic_id: int, first: int, last: int) -> None:
        """Note that a frame takes these seqs."""
        expected = self._next.get(topic_id, first)
        if first != expected and not self._ephemeral.get(topic_id):
            again = "once more, after" if first < expected else "directly behind"
            problem = f"topic {topic_id}: seq {first} comes {again} seq {expected - 1}"
            self._gaps.setdefault(topic_id, _Gap(path, offset, problem))
        self._next[topic_id] = last + 1

    def run(self, path: str, rows: Sequence[Row]) -> None:
        """Note Append frames that follow one another."""
        if rows and rows[-1][5] - rows[0][5] == len(rows) - 1 and len({row[4] for row in rows}) == 1:
            seqs = [row[5] for row in rows]
            if seqs == list(range(seqs[0], seqs[0] + len(seqs))):
                self.take(path, rows[0][0], rows[0][4], seqs[0], seqs[-1])
                return
        for row in rows:
            self.take(path, row[0], row[4], row[5], row[5])

    def skip(self, topic_id: int, last: int) -> None:
        """Note a hole that takes all seqs up to `last`."""
        if topic_id in self._next:
            self._next[topic_id] = max(self._next[topic_id], last + 1)

    def configure(self, topic_id: int, payload: Mapping[str, Any], *, created: bool) -> None:
        """Note the class of a topic from here on. On leaving `ephemeral` its log says where the seqs continue."""
        self._ephemeral[topic_id] = payload["config"].get("durability") == "ephemeral"
        if created:
            self._next[topic_id] = 1
        if "log" in payload:
            self._gaps.pop(topic_id, None)
            self._next[topic_id] = payload["log"]["head_seq"] + 1

    def gaps(self, known: Mapping[int, PartFacts]) -> Iterator[_Gap]:
        """Yield the problems, when everything has been read."""
        for topic_id, gap in self._gaps.items():
            facts = known.get(topic_id)
            if not self._ephemeral.get(topic_id, facts is not None and facts.ephemeral):
                yield gap


class _FileState:
    """One file while it is read."""

    def __init__(self, path: str, ordinal: int, size: int, head: WalHead) -> None:
        self.path = path
        self.head = head
        self.ordinal = ordinal
        self.size = size
        self.offsets = array("Q")
        """The offset of every frame."""
        self.batch_at = head.first
        """Offset behind the last whole batch."""
        self.more = False
        """True if the batch of the last frame continues."""
        self.whole = True
        """True while there are no bad bytes, so that ordinals are known."""
        self.extra: list[tuple[int, int]] = []
        """How many frames a salvage filler stands for besides itself, by its index."""
        self.fillers: list[tuple[int, int]] = []
        """Ranges that salvage has given up: positions in them were valid once."""
        self.synced: list[tuple[int, int]] = []
        """The position that each Synced frame vouches for, and its own offset."""
        self.last_seqs: dict[int, int] = {}
        self.ended_at: int | None = None
        self.next: int | None = None
        self.clean_stop_at = -1
        self.recipes: list[RecipePlace] = []
        self.appends = 0
        """How many Appends are in the batch that continues behind the window."""
        self.findings = 0

    def searched(self, handle: File) -> LogFile:
        """Return the file as a search needs it."""
        return LogFile(handle, self.size, self.ordinal, self.head.salt)

    @property
    def ended(self) -> bool:
        """Return True if the file is complete: it has FileEnd, or the filler that salvage has put in its place."""
        return self.ended_at is not None

    def frame_at(self, offset: int) -> int | None:
        """Return the ordinal of the frame at `offset`, or behind the last one; None if no frame begins there."""
        index = bisect_left(self.offsets, offset)
        inside = index < len(self.offsets) and self.offsets[index] == offset
        if not inside and offset != self.batch_at and offset:
            return None
        return self.ordinal + index + sum(more for at, more in self.extra if at < index)

    def given_up(self, offset: int) -> bool:
        """Return True if `offset` is in a range that salvage has given up."""
        return any(start <= offset < stop for start, stop in self.fillers)


class ShardLogFacts(NamedTuple):
    """The log of one shard, as its directory and the snapshot tell."""

    shard: int
    directory: str
    ordinals: Sequence[int]
    """The ordinals of its files, ascending."""
    heads: Mapping[int, WalHead]
    """The beginnings of its files by ordinal, without those that were removed meanwhile."""
    shards: int = 0
    """The number of shards; 0 for a shard of an old layout, for which it is unknown which topics belong to it."""
    begin: LogPosition | None = None
    """Where replay from the snapshot begins, None without a snapshot."""


class LogCheck:
    """Verifies the log of one shard; `findings` reads all of its files."""

    def __init__(
        self,
        fs: Fs,
        log: ShardLogFacts,
        facts: LogFacts,
        *,
        mentions: dict[int, list[LogReference]],
        topics: Mapping[int, PartFacts],
        in_use: bool,
    ) -> None:
        """Results are added to `facts`. `mentions` are the places in this log that other files name, by ordinal of the
        file; those that were checked are removed. `in_use`: a daemon works on the directory."""
        self._fs = fs
        self._shard = log.shard
        self._directory = log.directory
        self._ordinals = log.ordinals
        self._shards = log.shards
        self._begin = log.begin
        self._heads = log.heads
        self._mentions = mentions
        self._facts = facts
        self._topics = topics
        self._in_use = in_use
        self._ours: set[int] = {0}
        self._seqs = _SeqSequences()
        self._cursors = RouterCursors()

    def findings(self) -> Iterator[Finding]:
        """Yield all problems, in the order of the log."""
        for i, ordinal in enumerate(self._ordinals):
            following = self._ordinals[i + 1] if i + 1 < len(self._ordinals) else None
            path = wal_path(self._directory, ordinal)
            try:
                handle = self._fs.open(path, read_only=True)
            except FileNotFoundError:
                yield Finding(path, None, "is gone by now", "note" if self._in_use else "damage")
                continue
            with handle:
                file = _FileState(path, ordinal, handle.size(), self._heads.get(ordinal, HEADLESS))
                yield from self._file(handle, file, following)
            self._note_end(file)
        for gap in self._seqs.gaps(self._topics):
            yield Finding(gap.path, gap.offset, gap.problem, "damage")
        for ordinal, mentions in sorted(self._mentions.items()):
            for mention in mentions:
                if mention.must_exist or (self._ordinals and ordinal > self._ordinals[0]):
                    yield Finding(mention.path, None, f"{mention.what}: there is no WAL file of {ordinal}", "damage")

    def _note_end(self, file: _FileState) -> None:
        """Note what other checks need to know of a file."""
        copies = self._facts.copies
        copies.recipes += [recipe for recipe in file.recipes if recipe.position.offset < file.batch_at]
        copies.ends[self._shard] = LogPosition(file.ordinal, file.batch_at)
        if not file.whole:
            copies.damaged.add((self._shard, file.ordinal))
        self._facts.stopped.discard(self._shard)
        if file.clean_stop_at == file.batch_at:
            self._facts.stopped.add(self._shard)

    # -- one file -----------------------------------------------------------------------------------------------------

    def _file(self, handle: File, file: _FileState, following: int | None) -> Iterator[Finding]:
        at = file.head.first
        if file.head.problem is not None:
            self._facts.since.update(self._topics)
            yield self._damage(file, 0, f"{file.head.problem}: nothing in the file can be verified")
            return
        if file.head.corrected:
            yield Finding(file.path, 0, "one bit of the header is not as it was written", "damage")
        while not file.ended:
            at, reason = yield from self._frames(handle, file, at)
            if file.ended:
                break
            if reason == "unknown" or file.findings > MAX_PER_FILE:
                return
            nonzero = first_nonzero(handle, at, file.size)
            clean = reason == "zeros" and nonzero is None
            vouched = self._vouched(handle, file, at, clean)
            if self._in_use and following is None and self._goes_on(handle, file, at):
                continue
            if following is None and file.batch_at >= vouched:
                yield from self._end(handle, file, at, clean)
                break
            resume = next(_batches_behind(file.searched(handle), at), None)
            stop = file.size if resume is None else resume
            why = "in a file that was complete" if following is not None else f"a sync has covered all up to {vouched}"
            if clean and resume is None and following is not None:
                yield self._damage(file, at, "the file ends without FileEnd")
            else:
                yield self._damage(file, at, f"the bytes up to {stop} are no valid frames, and {why}")
            if resume is None:
                break
            at, file.more, file.appends = resume, False, 0
        if file.ended:
            yield from self._after_end(handle, file, following)
        yield from self._positions(file)

    def _frames(self, handle: File, file: _FileState, at: int) -> Generator[Finding, None, tuple[int, str]]:
        """Check frames from `at` on, up to FileEnd or the first bytes that are no frame. Return that offset, and the
        reason."""
        try:
            for scan, window, base in scans(handle, file.head, at, file.size):
                yield from self._take(scan, window, base, file)
                at = scan.stop
                if file.ended:
                    break
        except frames.UnknownFrameType as error:
            yield self._damage(file, at, f"{error}: written by a newer version? The file is not read any further")
            return at, "unknown"
        return at, scan.reason if window or file.ended else "zeros"

    def _take(self, scan: LogScan, window: bytes, base: int, file: _FileState) -> Iterator[Finding]:
        """Check the frames of one window. Per frame there are only comprehensions over columns."""
        rows = scan.rows
        if not rows:
            return
        flags = bytes([row[3] for row in rows])
        more, continues = flags.translate(_MORE), flags.translate(_CONTINUES)
        expected = bytes((file.more,)) + more[:-1]
        if continues != expected:
            i = next(i for i, (a, b) in enumerate(zip(continues, expected, strict=True)) if a != b)
            what = "the batch before it is not whole" if expected[i] else "it goes on with a batch that has not begun"
            yield self._damage(file, rows[i][0], what)
        file.more = bool(more[-1])
        index = len(file.offsets)
        file.offsets.extend([row[0] for row in rows])
        if scan.ends:
            file.batch_at = Frame._make(rows[scan.ends[-1] - 1]).end
        ids = {row[4] for row in rows}
        for topic_id in sorted(ids - self._ours):
            if self._shards and shard_of(topic_id, self._shards) != self._shard:
                first = next(row[0] for row in rows if row[4] == topic_id)
                yield self._damage(file, first, f"a frame of topic {topic_id}, which belongs to another shard")
        self._ours |= ids
        if self._begin is None or self._begin <= (file.ordinal, rows[0][0]):
            self._facts.since |= ids
        elif self._begin <= (file.ordinal, rows[-1][0]):
            self._facts.since.update(row[4] for row in rows if row[0] >= self._begin.offset)
        behind = 0
        for i in scan.controls:
            frame = Frame._make(rows[i])
            self._appends(file, rows[behind:i])
            behind = i + 1
            try:
                payload = frames.control_payload(window, base, frame)
                if frame.type == FrameType.FORWARDED:
                    yield from self._forwarded(file, frame, payload, self._appends_before(scan, i, file))
                else:
                    yield from self._control(file, frame, index + i, payload)
            except Exception as error:  # malformed CBOR may raise anything
                yield self._damage(file, frame.offset, f"the payload does not decode: {error!r}")
            if file.ended:
                if i + 1 < len(rows):
                    yield self._damage(file, frame.end, "a frame behind FileEnd")
                return
        self._appends(file, rows[behind:])
        file.appends = self._appends_before(scan, len(rows), file)

    def _appends(self, file: _FileState, rows: Sequence[Row]) -> None:
        file.last_seqs.update({row[4]: row[5] for row in rows})
        self._seqs.run(file.path, rows)

    @staticmethod
    def _appends_before(scan: LogScan, i: int, file: _FileState) -> int:
        """Return how many Appends are in the batch of row `i` before it."""
        at = bisect_right(scan.ends, i)
        begin = scan.ends[at - 1] if at else 0
        count = sum(row[2] == FrameType.APPEND for row in scan.rows[begin:i])
        return count if at else count + file.appends

    def _forwarded(self, file: _FileState, frame: Frame, payload: dict[str, Any], appends: int) -> Iterator[Finding]:
        """Check a Forwarded frame."""
        topic_id, offset = frame.topic_id, frame.offset
        problem = contradiction(frame, payload) or self._cursors.forward(topic_id, payload)
        if problem is None and appends and appends != payload["count"]:
            problem = f"{payload['count']} copies, and {appends} records in its batch"
        if problem is not None:
            yield Finding(file.path, offset, f"a Forwarded frame of topic {topic_id}: {problem}", "damage")
            self._seqs.forget()
            return
        if frame.seq:
            last = frame.seq + copies_in(payload) - 1
            self._seqs.take(file.path, offset, topic_id, frame.seq, last)
            file.last_seqs[topic_id] = last
        elif not appends:
            file.last_seqs.pop(topic_id, None)  # FileEnd may know more seqs of an `ephemeral` topic
        position = LogPosition(file.ordinal, offset)
        known = self._topics.get(topic_id)
        begins = max(self._begin or LogPosition(0, 0), known.end if known is not None else LogPosition(0, 0))
        if "kinds" in payload and position >= begins:
            size = frame.end - offset
            file.recipes.append(RecipePlace(file.path, position, size, topic_id, frame.seq, file.head.salt))

    def _control(self, file: _FileState, frame: Frame, index: int, payload: dict[str, Any]) -> Iterator[Finding]:
        kind = frame.type
        if kind == FrameType.SYNCED:
            offset = whole(payload["offset"])
            if payload["file"] != file.ordinal or offset > frame.offset:
                place = f"{offset} of file {payload['file']}"
                yield self._damage(file, frame.offset, f"a Synced frame vouches for {place}, which is not before it")
            else:
                file.synced.append((offset, frame.offset))
        elif kind == FrameType.FILE_END:
            file.ended_at, file.next = frame.end, whole(payload["next"])
            for topic_id, last in payload["last"].items():
                seen = file.last_seqs.get(topic_id)
                if seen is not None and seen != last and not file.fillers and file.whole:
                    yield self._damage(file, frame.offset, f"FileEnd: topic {topic_id} ends at {last}, not at {seen}")
        elif kind == FrameType.SHARD_OPEN:
            weight = payload.get("replaces", 1)
            if weight != 1:
                file.extra.append((index, weight - 1))
            if "boot" not in payload and "failed" not in payload:
                file.fillers.append((frame.offset, frame.end))
                self._forget()
            if "boot" in payload:
                self._facts.copies.opened.setdefault((self._shard, file.ordinal), frame.offset)
            if payload.get("ends_file"):
                file.ended_at = frame.end
        elif kind == FrameType.CLEAN_STOP:
            file.clean_stop_at = frame.end
        elif kind == FrameType.TOPIC_CREATE:
            self._facts.created[frame.topic_id] = text(payload["name"])
            self._seqs.configure(frame.topic_id, payload, created=True)
        elif kind == FrameType.CONFIG_UPDATE:
            self._seqs.configure(frame.topic_id, payload, created=False)
            if "log" in payload:
                file.last_seqs.pop(frame.topic_id, None)  # FileEnd does not count records that were written out
        elif kind == FrameType.HOLE:
            self._hole(frame.topic_id, payload)
        elif kind == FrameType.ROUTER_CREATE:
            Router.load(payload["router"])
            self._cursors.create(frame.topic_id, payload["router"])
        elif kind == FrameType.LEASE:
            event_from_wire(payload, NO_LEASES_RUN)
        elif kind == FrameType.CONSUMER:
            consumer_events.event_from_wire(payload, frame.ts)
        elif kind == FrameType.SCHEDULE:
            schedule_event_from_wire(payload)
        elif kind == FrameType.GROUP:
            group_event_from_wire(payload, NO_LEASES_RUN)
        elif kind == FrameType.ROUTER_DELETE:
            self._cursors.delete(frame.topic_id, payload["name"])
        elif kind == FrameType.STAGE:
            self._stage(file, frame, payload)
        elif kind == FrameType.TRANSACTION:
            if frame.topic_id not in {topic_id for topic_id, _, _ in members_of(payload["members"])}:
                yield self._damage(file, frame.offset, f"a transaction of which topic {frame.topic_id} is no part")
        elif kind == FrameType.TRANSACTION_DECISION:
            assert 0 < payload["first"] <= payload["last"]
            assert isinstance(payload["undone"], bool)
        elif kind == FrameType.FENCE:
            check_fence_name(payload["name"])
            fences_of({payload["name"]: payload.get("token", 0)})
        elif kind == FrameType.KEEP:
            keep_from_wire(payload, frame.ts)
        elif kind == FrameType.TOPIC_DELETE:
            self._facts.deleted.add(frame.topic_id)

    def _stage(self, file: _FileState, frame: Frame, payload: Mapping[str, Any]) -> None:
        """Check a Stage frame, of a creation or a commit. May raise any exception if a field is missing."""
        if "target" in payload:
            assert isinstance(payload["stage"], str)
            assert payload["target"] > 0
            self._facts.created[frame.topic_id] = text(payload["name"])
            self._seqs.configure(frame.topic_id, payload, created=True)
            return
        CommitKeys.load([[payload["key"], payload["first"], payload["count"], frame.ts, payload["stages"]]])
        known = self._topics.get(frame.topic_id)
        if known is not None and known.ephemeral:
            file.last_seqs.pop(frame.topic_id, None)  # FileEnd may know more seqs than the log

    def _hole(self, topic_id: int, payload: Mapping[str, Any]) -> None:
        if payload.get("within"):
            self._facts.copies.holes.setdefault(topic_id, []).append((payload["first"], payload["last"]))
        else:
            self._seqs.skip(topic_id, payload["last"])

    @staticmethod
    def _goes_on(handle: File, file: _FileState, at: int) -> bool:
        """Return True if the daemon has written more since the end of the log was found at `at`."""
        window = handle.pread(min(WINDOW_BYTES, file.size - at), at)
        return bool(frames.scan_window(window, at, file_end=file.size, salt=file.head.salt).rows)

    # -- where it ends ------------------------------------------------------------------------------------------------

    def _vouched(self, handle: File, file: _FileState, at: int, clean: bool) -> int:
        """Return the offset up to which the file is known to have been on disk, by the snapshot and by its Synced
        frames."""
        vouched = max((offset for offset, _ in file.synced), default=0)
        if self._begin is not None and self._begin.ordinal == file.ordinal:
            vouched = max(vouched, self._begin.offset)
        if not clean:
            found = vouched_behind(file.searched(handle), at)
            vouched = max(vouched, found.offset if found.known else file.size)
        return vouched

    def _end(self, handle: File, file: _FileState, at: int, clean: bool) -> Iterator[Finding]:
        """Report the end of the log: zeros, or the rest of unsynced writes."""
        if not self._in_use and was_cut_short(file.searched(handle), file.head, at):
            yield self._damage(file, file.size, "the file has lost its end: zeros were behind the last frame")
            return
        if clean and file.batch_at == at:
            return
        if file.clean_stop_at == at == file.batch_at:
            nonzero = first_nonzero(handle, at, file.size)
            yield self._damage(file, nonzero, "not zero, behind a clean stop")
            return
        stray = lone_bit(handle, at, file.size)
        if stray is not None:
            yield self._damage(file, stray, "a bit is set among the zeros behind the end, which no write can have left")
            return
        torn = "a batch that is not whole" if clean else "bytes that are no frame, or zeros in front of others"
        state = "the daemon writes here" if self._in_use else "the next start cuts the log here"
        yield Finding(file.path, file.batch_at, f"{torn}, behind all that a sync has covered: {state}", "note")

    def _after_end(self, handle: File, file: _FileState, following: int | None) -> Iterator[Finding]:
        assert file.ended_at is not None
        nonzero = first_nonzero(handle, file.ended_at, file.size)
        if nonzero is not None:
            yield self._damage(file, nonzero, "not zero, behind FileEnd")
        elif file.ended_at < file.size and following is not None:
            yield Finding(file.path, file.ended_at, "zeros behind FileEnd: the cut behind it was not synced", "note")
        if file.more:
            yield self._damage(file, file.ended_at, "the last batch is not whole")
        if following is None:
            return
        count = file.ordinal + len(file.offsets) + sum(more for _, more in file.extra)
        if file.next is not None and file.next != following:
            problem = f"frame {file.next} should begin the next file, which begins with frame {following}"
            yield self._damage(file, file.ended_at, f"{problem}: a file is missing")
        elif file.whole and count != following:
            problem = f"it holds {count - file.ordinal} frames, and the next file begins with frame {following}"
            yield self._damage(file, file.ended_at, problem)

    # -- what points into it ------------------------------------------------------------------------------------------

    def _positions(self, file: _FileState) -> Iterator[Finding]:
        if not file.whole:
            self._mentions.pop(file.ordinal, None)
            return
        for offset, at in file.synced:
            if file.frame_at(offset) is None and not file.given_up(offset):
                yield self._damage(file, at, f"a Synced frame vouches for {offset}, where no frame begins")
        for mention in self._mentions.pop(file.ordinal, ()):
            found = file.frame_at(mention.offset)
            place = f"{mention.what}: offset {mention.offset} of {file.path}"
            if found is None and not file.given_up(mention.offset):
                where = "is behind the end of the log" if mention.offset > file.batch_at else "is inside a frame"
                yield Finding(mention.path, None, f"{place} {where}", "damage")
            elif found is not None and mention.frames is not None and mention.frames != found:
                yield Finding(mention.path, None, f"{place} is frame {found}, not {mention.frames}", "damage")

    def _damage(self, file: _FileState, offset: int | None, problem: str) -> Finding:
        file.whole = False
        file.findings += 1
        self._forget()
        return Finding(file.path, offset, problem, "damage")

    def _forget(self) -> None:
        """Forget state across frames, because frames are missing here."""
        self._seqs.forget()
        self._cursors.forget()


def _batches_behind(file: LogFile, at: int) -> Iterator[int]:
    """Yield the offsets behind `at` where valid frames begin a batch."""
    return (found.frame.offset for found in FrameSearch(file, at).found() if not found.frame.flags & CONTINUES)


def lone_bit(handle: File, at: int, size: int) -> int | None:
    """Return the offset of the only byte from `at` on that is not zero, if it has a single bit and cannot come from a
    torn write. A torn write leaves its first bytes at `at`, or those of a sector. Else None."""
    first = first_nonzero(handle, at, size)
    if first is None or first_nonzero(handle, first + 1, size) is not None:
        return None
    value = handle.pread(1, first)[0]
    torn = first < at + 4 or first % SECTOR == 0
    return first if value.bit_count() == 1 and not torn else None
