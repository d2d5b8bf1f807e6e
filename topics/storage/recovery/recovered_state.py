"""What recovery comes to: topics and shards, as replay finds them and `verdicts` judges them (`docs/spec/storage.md`
section 3).

Responsible for the state alone, and for the columns of stored records that replay asks for on its way. How the state
comes about is the business of `replay` and of the modules that it names; a log that cannot be read is `damage`'s.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Final, NamedTuple, TypeVar

import cbor2

from topics.errors import ApiError
from topics.log.copies import CopyTable, Origin
from topics.log.dedupe_window import DedupeWindow
from topics.log.losses import LossReason
from topics.log.span import DELETED, LIVE, NotLoaded, Span, SpanColumns
from topics.log.stages import CommitKeys, StageOf
from topics.log.topic_log import TopicLog
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router
from topics.runtime.instant import Instant
from topics.storage.files.datadir import DataDir, DataDirError, discover_shards, segment_name
from topics.storage.files.fs import Fs
from topics.storage.segments.segment_reader import Tiers, load_columns, nothing_of
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import ShardPosition
from topics.storage.wal import frames
from topics.storage.wal.wal_files import Position, WalFile, WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

NO_LEASES_RUN: Final = Instant(0, 0)
"""For those who only look at a directory: when leases end is not asked."""

T = TypeVar("T")


class LostRun(NamedTuple):
    """Neighbouring seqs of one topic, both ends inclusive, that are gone for one reason."""

    first: int
    last: int
    reason: LossReason


class StashedRecords(NamedTuple):
    """Neighbouring records of an `ephemeral` topic that stand in the log before the ConfigUpdate that makes them
    count (`docs/spec/crash.md` 24)."""

    first_seq: int
    file_id: int
    """Of the WAL file, as `WalFiles` counts."""
    offsets: list[int]
    """Where each frame begins in the file."""
    totals: list[int]
    """The bytes of each frame, its length field included."""
    origins: list[Origin | None]


class FilledRange(NamedTuple):
    """Bytes of the log that salvage has given up: offsets `start` (inclusive) to `stop` (exclusive) of a file."""

    ordinal: int
    """Of the file's first frame."""
    start: int
    stop: int


class BareFiller(NamedTuple):
    """A filler without a verdict that replay has met (`bare_fillers`)."""

    place: Position
    end: Position
    heads: Mapping[int, int]
    """By topic id, the head there, of each topic that the range may have held records of."""


class RecoveredTopic:
    """A topic as recovery knows it. Times are ms since the epoch, by the retention clock where nothing else is said."""

    __slots__ = (
        "base",
        "ceiling",
        "commit_keys",
        "config",
        "copies",
        "doomed",
        "emptied",
        "end",
        "forwarded_to",
        "id",
        "incoming",
        "keys",
        "last_read",
        "last_write",
        "log",
        "missing",
        "name",
        "origins",
        "part",
        "queue",
        "rewritten",
        "segments",
        "stage",
        "stash",
        "used_at",
    )

    def __init__(self, topic_id: int, name: str, config: TopicConfig, log: TopicLog | None = None) -> None:
        self.id = topic_id
        self.name = name
        self.config = config
        self.log = log if log is not None else TopicLog()
        self.ceiling = 0
        """The highest seq that may have been given out (`docs/spec/crash.md` 1)."""
        self.end = Position(-1, 0)
        """Behind the last frame of the topic that is in here; frames before it are skipped (`docs/spec/crash.md` 8)."""
        self.keys: DedupeWindow | None = None
        """Idempotency keys."""
        self.last_write: int | None = None
        self.last_read: int | None = None
        self.part: bytes | None = None
        """Its part of the snapshot, as long as nothing has been found that is newer."""
        self.base: bytes | None = None
        """The part that replay began with, which the log leads on from; None if the log has all of it."""
        self.segments: list[Segment] = []
        self.rewritten: set[Segment] = set()
        """Where the manifest cannot be read: segments whose `.data` is another file than the part means."""
        self.emptied: set[Segment] = set()
        """Likewise those that have no file any more."""
        self.queue = Leases() if config.type == "queue" else None
        self.copies: CopyTable | None = None
        self.incoming: dict[str, Router] = {}
        """The routers that feed it, by name."""
        self.origins: OriginSet | None = None
        """Which records it has taken, if a router may bring each only once (`docs/spec/crash.md` 19)."""
        self.missing: dict[int, None] = {}
        """Copies whose bytes were not found where they should be; some may be gone for other reasons by the end."""
        self.stage: StageOf | None = None
        self.used_at: int | None = None
        """When a stage was last used, by the clock of windows, if its part says so."""
        self.commit_keys: CommitKeys | None = None
        self.forwarded_to = 0
        """The highest seq of it that a router has dealt with: there was one, whatever has become of it."""
        self.stash: list[StashedRecords] = []
        """Records that an `ephemeral` topic is writing out; they count when its ConfigUpdate follows."""
        self.doomed = False
        """Its files are gone, so what the log says of it cannot be worked out any more: the log must come to say that
        it was deleted."""


class RecoveredShard:
    """Where a shard's log ends, for its writer, and what its frames say about the shard."""

    __slots__ = (
        "bare_fillers",
        "boot_id",
        "clean",
        "directory",
        "end",
        "ended",
        "failed_shards",
        "file",
        "fillers",
        "frame_count",
        "identity",
        "last_seqs",
        "shard",
        "shards",
        "truncated",
        "vouched",
    )

    def __init__(self, shard: int, directory: str) -> None:
        self.shard = shard
        self.directory = directory
        self.file: WalFile | None = None
        """The last file that was read."""
        self.end = 0
        """Offset in it, behind the last whole batch."""
        self.ended = False
        """The last file is complete (FileEnd): its successor was never named."""
        self.frame_count = 0
        """Ordinal of the frame at `end`."""
        self.last_seqs: dict[int, int] = {}
        """By topic id, the last seq in the last file."""
        self.fillers: list[FilledRange] = []
        """Ranges that salvage has given up (`docs/spec/crash.md` 15)."""
        self.bare_fillers: list[BareFiller] = []
        """Those of them without a verdict, as long as it is not known what they held (`bare_fillers`)."""
        self.vouched = Position(0, 0)
        """Up to where a sync is known to have covered the log (`docs/spec/crash.md` 4 and 5)."""
        self.boot_id: str | None = None
        """Of the machine's boot in which the log was written last; None if nothing says."""
        self.identity: str | None = None
        """Of the data directory at that time; None if nothing says."""
        self.shards = 0
        """How many shards the directory had at that time; 0 if nothing says."""
        self.failed_shards: set[int] = set()
        """Other shards of which this one has noted that they failed (`docs/spec/crash.md` 3)."""
        self.clean = False
        """The last frame is a clean-stop mark."""
        self.truncated: Position | None = None
        """Where the torn end begins that has to be cut off; None if there is none."""


MALFORMED: Final = (
    ApiError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What comes of values whose checksum holds and that nobody has written: which of them depends on the value."""


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Raises DataDirError where something cannot be made sense of, although its checksum holds."""
    try:
        yield
    except (*MALFORMED, cbor2.CBORDecodeError) as error:
        raise DataDirError(f"{what} holds what no version has written: {type(error).__name__}: {error}") from error


class _Ahead(NamedTuple):
    """A span of which the files say less than its part."""

    topic: RecoveredTopic
    live: int
    """How many records the part counts as live; which ones may be known to nobody."""
    unflagged: int
    """How many deletions are to be written to the files, before replay has added any."""
    dropped: bool
    """There are no files at all. So no deletion by tag finds anything there, and the others are about live records."""

    def is_over(self, span: Span) -> bool:
        """Whether replay has deleted as many as were live, one by one: the others had been deleted before."""
        return self.dropped and len(span.unflagged or ()) - self.unflagged >= self.live


class Columns:
    """Loads columns that replay asks for; keeps only the last few in memory.

    Files may be newer than the part that replay begins with: the manifest that knew of them was damaged, or a crash
    came before it. Records that a file does not have any more, or flags as deleted, are live for replay as they are for
    the part, until a frame says what has become of them: an eviction moves the floor only where it takes something, and
    what was deleted is not damaged. What the files say is looked at again when replay is over (`settle`).
    """

    KEPT: Final = 16

    def __init__(self, tiers: Tiers) -> None:
        self.tiers = tiers
        self.damaged: dict[int, list[tuple[int, int]]] = {}
        """By topic id, the records that were found to be damaged and were not known to be lost."""
        self._loaded: deque[Span] = deque()
        self._replaying = True
        self._ahead: dict[Span, _Ahead] = {}

    def run(self, topic: RecoveredTopic, operation: Callable[[], T]) -> T:
        """Call `operation`, as often as it asks for columns. Raises OSError if the disk does not answer."""
        while True:
            try:
                return operation()
            except NotLoaded as missing:
                while len(self._loaded) > self.KEPT:
                    self._forget()
                for span in missing.spans:
                    self._load(topic, span)

    def look_at(self, topic: RecoveredTopic, span: Span) -> None:
        """Load a span, to find out what is wrong with it. Raises OSError if the disk does not answer."""
        while len(self._loaded) > self.KEPT:
            self._forget()
        if not span.loaded:
            self._load(topic, span)

    def add_hole(self, topic: RecoveredTopic, first: int, last: int, reason: LossReason) -> None:
        """Note in the topic's log that these seqs are gone (`TopicLog.add_hole`). Raises OSError if the disk does not
        answer."""
        self.run(topic, partial(topic.log.add_hole, first, last, reason))

    def _load(self, topic: RecoveredTopic, span: Span) -> None:
        segment = span.segment
        assert isinstance(segment, Segment)
        if self._replaying and segment in topic.emptied:
            found = nothing_of(span.first, span.n)  # the log says why
        else:
            found = load_columns(self.tiers, segment, span.first, span.n)
        topic.part = None
        columns, damaged, live = found.columns, found.damaged, span.live
        later = self._replaying and segment.tier != "gone"
        if later:
            columns, damaged = self._as_of_part(span, columns), []
        if self.run(topic, partial(topic.log.attach, span, columns)) and topic.log.stored.holds(span):
            # Somebody was flagging deletions that are newer than the part. One of .data and .idx may have a flag that
            # the other has not, and which of them is read is another question each time.
            span.unflag()
        if later and (found.damaged or columns is not found.columns) and span not in self._ahead:
            self._ahead[span] = _Ahead(topic, live, len(span.unflagged or ()), self._was_dropped(segment))
        for first, last in damaged:
            log.error("records_damaged", topic=topic.name, first=first, last=last)
            count = topic.log.count
            self.add_hole(topic, first, last, "corrupt")
            if topic.log.count != count:
                self.damaged.setdefault(topic.id, []).append((first, last))
        self._loaded.append(span)

    def _was_dropped(self, segment: Segment) -> bool:
        """Whether a hot segment has no file left."""
        names = [segment_name(segment.first, kind) for kind in ("data", "idx", "tags")]
        return segment.tier == "hot" and not any(self.tiers.hot.exists(segment.topic_id, name) for name in names)

    @staticmethod
    def _as_of_part(span: Span, columns: SpanColumns) -> SpanColumns:
        """The columns with every record live that the part may count as such; the same ones if it counts no more of
        them than the files."""
        known = {seq - span.first for seq in span.unflagged or ()}
        newer = [i for i in range(span.start, span.n) if columns.dead[i] == DELETED and i not in known]
        by_part = span.n - span.start - span.live - span.lost - sum(i >= span.start for i in known)
        if len(newer) <= by_part:
            return columns
        dead = bytearray(columns.dead)
        for i in newer:
            dead[i] = LIVE
        return columns._replace(dead=bytes(dead))

    def settle(self, topics: Mapping[int, RecoveredTopic]) -> None:
        """Replay is over, and `topics` are there: what is left of records that the files do not have is as the files
        say, deleted or damaged. Raises OSError if the disk does not answer."""
        self._replaying = False
        for span, ahead in self._ahead.items():
            topic = ahead.topic
            if topics.get(topic.id) is not topic or not span.live or not topic.log.stored.holds(span):
                continue
            if ahead.is_over(span):
                self.run(topic, partial(topic.log.delete_seqs, range(span.first, span.end)))
            else:
                span.detach()
                self._load(topic, span)
        self._ahead.clear()
        for topic in topics.values():
            if topic.rewritten or topic.emptied:
                self._settle_files(topic)

    def _settle_files(self, topic: RecoveredTopic) -> None:
        """What the log says of records whose tags have left the files with them replay cannot tell: the files do."""
        for span in topic.log.stored.all():
            segment = span.segment
            if not topic.log.stored.holds(span) or not isinstance(segment, Segment):
                continue
            if span.live and (segment in topic.rewritten or segment in topic.emptied):
                self.look_at(topic, span)
            if segment in topic.emptied and not span.live and not span.lost and topic.log.stored.holds(span):
                gone = Segment(topic.id, span.first, n=span.n, opened_ms=span.last_ts, sealed=True, tier="gone")
                again = topic.log.stored.replace(span.first, span.end - 1, gone)
                again.unflagged = None
                topic.segments = [gone if one is segment else one for one in topic.segments]

    def _forget(self) -> None:
        self._loaded.popleft().detach()

    def forget_all(self) -> None:
        """Replay is over: the daemon counts what is in memory from here on."""
        while self._loaded:
            self._forget()


class Recovered(NamedTuple):
    """The result: what the daemon starts with."""

    topics: dict[int, RecoveredTopic]
    shards: list[RecoveredShard]
    files: WalFiles
    next_topic_id: int
    clock: int
    """The retention clock, ms since the epoch."""
    now: Instant
    """The moment from which leases and windows run on."""
    snapshot_number: int
    snapshots_damaged: bool
    """Whether there are some that cannot be read, or that are missing."""
    failed: set[int]
    """Shards of which others have noted that they failed."""
    starts: dict[int, ShardPosition]
    """By shard, where replay has begun."""
    new_layout: bool
    """The snapshot is from a change of the shard count; files of the old layout may still be there."""
    replayed: set[int]
    """Ids of topics with frames in the range that was replayed: work on their files may have been cut short."""
    directories: set[int]
    """Ids of topics, gone ones among them, that have a directory."""
    generations: dict[int, int]
    """By topic id, of the manifests that count, where it is not 0."""
    columns: Columns
    copied_topics: set[int]
    """Topics, gone ones among them, with segments that copies are made of."""
    missing: dict[int, list[LostRun]]
    """By topic id, copies whose bytes are gone. They are holes by now."""


def shard_of(topic_id: int, shards: int) -> int:
    """A topic's shard (`docs/spec/storage.md` section 2)."""
    return frames.digest(topic_id.to_bytes(8, "little")) % shards


def shard_count(fs: Fs, datadir: DataDir) -> int:
    """How many shards the directory holds; 0 for an empty one."""
    return len(discover_shards(fs, datadir))
