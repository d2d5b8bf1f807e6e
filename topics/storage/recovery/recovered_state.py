"""The result of recovery: topics and shards, as replay finds them and `verdicts` judges them (`docs/spec/storage.md`
section 3).

Responsible for the state alone, and for the columns of stored records that replay needs. `replay` and the modules it
names build the state; `damage` reports a log that cannot be read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

import cbor2

from topics.consumers.consumers import Consumers
from topics.errors import ApiError
from topics.evidence.topic_tree import TopicTree
from topics.groups.group import Group
from topics.log.copies import CopyTable, Origin
from topics.log.dedupe_window import DedupeWindow
from topics.log.losses import LossReason
from topics.log.span import DELETED, LIVE, NotLoaded, Span, SpanColumns
from topics.log.stages import CommitKeys, StageTarget
from topics.log.topic_log import TopicLog
from topics.log.transaction_keys import TransactionKeys
from topics.model import TopicConfig
from topics.queue.leases import Leases
from topics.routing.origin_set import OriginSet
from topics.routing.router_state import Router
from topics.runtime.instant import Instant
from topics.schedules.schedules import Schedules
from topics.storage.files.datadir import DataDir, DataDirError, discover_shards, segment_name
from topics.storage.files.fs import Fs
from topics.storage.recovery.start_repairs import StartRepairs
from topics.storage.segments.mended_files import has_places
from topics.storage.segments.segment_reader import SegmentTiers, load_columns, nothing_of
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import ReplayPosition
from topics.storage.wal import frames
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles
from topics.telemetry.logs import get_logger

if TYPE_CHECKING:
    from topics.storage.recovery.transaction_replay import TransactionReplay

log = get_logger(__name__)

NO_LEASES_RUN: Final = Instant(0, 0)
"""The time of a start at which all leases are over. For callers that only inspect a directory."""

T = TypeVar("T")


class LostRun(NamedTuple):
    """Neighbouring seqs of one topic, both ends inclusive, that are lost for one reason."""

    first: int
    last: int
    reason: LossReason


class TransactionDecision(NamedTuple):
    """The decision about a transaction in one topic whose Decision frame is missing."""

    topic_id: int
    first: int
    last: int
    undone: bool


class StashedRecords(NamedTuple):
    """Neighbouring records of an `ephemeral` topic in the log that count only with the ConfigUpdate behind them
    (`docs/spec/crash.md` 24)."""

    first_seq: int
    file_id: int
    """Id of the WAL file in `WalFiles`."""
    offsets: list[int]
    """Offset of each frame in the file."""
    totals: list[int]
    """The bytes of each frame, its length field included."""
    origins: list[Origin | None]


class FilledRange(NamedTuple):
    """Bytes of the log that salvage has given up: offsets `start` (inclusive) to `stop` (exclusive) of a file."""

    ordinal: int
    """Ordinal of the file's first frame."""
    start: int
    stop: int


class BareFiller(NamedTuple):
    """A filler without a verdict that replay has met (`bare_fillers`)."""

    place: LogPosition
    end: LogPosition
    heads: Mapping[int, int]
    """The heads, at that place, of the topics that the range may have held records of, by id."""


class RecoveredTopic:
    """A topic as recovery knows it. Times are epoch ms of the retention clock, unless stated otherwise."""

    __slots__ = (
        "base",
        "bucket_ceiling",
        "ceiling",
        "commit_keys",
        "config",
        "consumers",
        "copies",
        "doomed",
        "emptied",
        "end",
        "fences",
        "forwarded_to",
        "groups",
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
        "proved_from",
        "queue",
        "rewritten",
        "segments",
        "stage",
        "stash",
        "transactions",
        "tree",
        "used_at",
    )

    def __init__(self, topic_id: int, name: str, config: TopicConfig, log: TopicLog | None = None) -> None:
        self.id = topic_id
        self.name = name
        self.config = config
        self.log = log if log is not None else TopicLog()
        self.ceiling = 0
        """The highest seq that may have been assigned (`docs/spec/crash.md` 1)."""
        self.bucket_ceiling = 0
        """The highest seq that the owner may have assigned whose bucket this is; of meaning to a takeover only."""
        self.end = LogPosition(-1, 0)
        """End of the last frame that is in this state; earlier frames are skipped (`docs/spec/crash.md` 8)."""
        self.keys: DedupeWindow | None = None
        """Idempotency keys."""
        self.last_write: int | None = None
        self.last_read: int | None = None
        self.part: bytes | None = None
        """Its part in the snapshot, until a newer part is found."""
        self.base: bytes | None = None
        """The part that replay began with; None if the whole topic is in the log."""
        self.segments: list[Segment] = []
        self.rewritten: set[Segment] = set()
        """If the manifest cannot be read: segments whose `.data` is another file than the part means."""
        self.emptied: set[Segment] = set()
        """If the manifest cannot be read: segments that have no file any more."""
        self.queue = Leases() if config.type == "queue" else None
        self.copies: CopyTable | None = None
        self.incoming: dict[str, Router] = {}
        """The routers that lead into it, by name."""
        self.origins: OriginSet | None = None
        """The origins it has taken, if a router into it is `exactly_once` (`docs/spec/crash.md` 19)."""
        self.missing: dict[int, None] = {}
        """Copies whose bytes were not found in their place; some may die for other reasons before the log ends."""
        self.stage: StageTarget | None = None
        self.used_at: int | None = None
        """When a stage was last used (window clock), if its part says so."""
        self.commit_keys: CommitKeys | None = None
        self.fences: dict[str, int] = {}
        """The highest token of each fence, by name."""
        self.consumers: Consumers | None = None
        """Its named consumers."""
        self.groups: dict[str, Group] = {}
        """Its groups, by name."""
        self.transactions: TransactionKeys | None = None
        """The keys of transactions whose first topic it is."""
        self.tree: TopicTree | None = None
        """Its Merkle tree, if it has evidence."""
        self.proved_from = LogPosition(-1, 0)
        """Where its Merkle tree got its present uuid, or a place behind it."""
        self.forwarded_to = 0
        """The highest seq that a router has copied or skipped, or that a consumer or group has finished or held. So it
        existed, even if the log does not have it any more."""
        self.stash: list[StashedRecords] = []
        """Records that an `ephemeral` topic is writing out; they count when its ConfigUpdate follows."""
        self.doomed = False
        """True if its files are missing, so that its frames cannot be applied. Then a later frame of the log must say
        that the topic was deleted."""

    def jobs_gone(self, seqs: Sequence[int]) -> None:
        """Forget the jobs of records that were deleted: those of a queue, or of groups."""
        if self.queue is not None:
            self.queue.gone(seqs)
        for group in self.groups.values():
            group.gone(seqs)


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
        "last_frame",
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
        """Offset in that file behind the last whole batch."""
        self.ended = False
        """True if the last file is complete (FileEnd) and the next file does not exist."""
        self.frame_count = 0
        """Ordinal of the frame at `end`."""
        self.last_frame = 0
        """Offset of the last frame before `end`; 0 if none was read. If the file is complete, this is FileEnd."""
        self.last_seqs: dict[int, int] = {}
        """The last seq of each topic in the last file, by topic id."""
        self.fillers: list[FilledRange] = []
        """Ranges that salvage has given up (`docs/spec/crash.md` 15)."""
        self.bare_fillers: list[BareFiller] = []
        """The ranges without a verdict, until replay knows their content (`bare_fillers`)."""
        self.vouched = LogPosition(0, 0)
        """The position up to which a sync is known to have covered the log (`docs/spec/crash.md` 4 and 5)."""
        self.boot_id: str | None = None
        """Id of the machine's boot in which the log was last written; None if unknown."""
        self.identity: str | None = None
        """Identity of the data directory at that time; None if unknown."""
        self.shards = 0
        """How many shards the directory had at that time; 0 if unknown."""
        self.failed_shards: set[int] = set()
        """Other shards whose failure is noted in this one (`docs/spec/crash.md` 3)."""
        self.clean = False
        """True if the last frame is a clean-stop mark."""
        self.truncated: LogPosition | None = None
        """Where the torn end begins, which has to be cut off; None without one."""


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
"""The exceptions that decoding a malformed value may raise although its checksum is valid. The type depends on the
value."""


@contextmanager
def understood(what: str) -> Iterator[None]:
    """Run a body; turn the exceptions of malformed content into DataDirError, whose message names `what`."""
    try:
        yield
    except (*MALFORMED, cbor2.CBORDecodeError) as error:
        raise DataDirError(f"{what} has content that no version writes: {type(error).__name__}: {error}") from error


class _ShortSpan(NamedTuple):
    """A span whose part counts more live records than its files have."""

    topic: RecoveredTopic
    live: int
    """How many records the part counts as live. It may be unknown which records these are."""
    unflagged: int
    """How many deletions still had to be flagged in the files when replay began."""
    dropped: bool
    """True if the span has no files at all. Then deletions by tag find no records in it, and other deletions are of
    live records."""

    def is_over(self, span: Span) -> bool:
        """Return True if replay has deleted as many records as the part counts as live. Then the other records had been
        deleted before."""
        return self.dropped and len(span.unflagged or ()) - self.unflagged >= self.live


class ColumnLoader:
    """Loads columns that replay needs; keeps only the last few spans in memory.

    Files may be newer than the part that replay begins with: the manifest that knew them is damaged, or a crash came
    before it was written. Records that such a file no longer has, or flags as deleted, are live in the part. Replay
    treats them as live until a frame deletes or evicts them, because an eviction moves the floor only if it evicts a
    live record, and because a deleted record is not a damaged one. When replay is over, the files are read again
    (`settle`).
    """

    KEPT: Final = 16

    def __init__(self, tiers: SegmentTiers, repairs: StartRepairs | None = None) -> None:
        self.tiers = tiers
        self._repairs = repairs
        self.damaged: dict[int, list[tuple[int, int]]] = {}
        """Records that replay found damaged, and that the log does not report as lost, by topic id."""
        self._loaded: deque[Span] = deque()
        self._replaying = True
        self._ahead: dict[Span, _ShortSpan] = {}

    def run(self, topic: RecoveredTopic, operation: Callable[[], T]) -> T:
        """Call `operation`, load the columns that it raises NotLoaded for, and repeat until it succeeds. Raises OSError
        if the disk does not answer."""
        while True:
            try:
                return operation()
            except NotLoaded as missing:
                while len(self._loaded) > self.KEPT:
                    self._forget()
                for span in missing.spans:
                    self._load(topic, span)

    def look_at(self, topic: RecoveredTopic, span: Span) -> None:
        """Load a span to find its damage. Raises OSError if the disk does not answer."""
        while len(self._loaded) > self.KEPT:
            self._forget()
        if not span.loaded:
            self._load(topic, span)

    def repair(self, topic: RecoveredTopic, span: Span) -> bool | None:
        """Repair the files of a span that look damaged. Return True if they were, False if they cannot be, None if it
        is not known, because the bucket does not answer."""
        return self._repairs.repair(topic.name, span) if self._repairs is not None else False

    def add_hole(self, topic: RecoveredTopic, first: int, last: int, reason: LossReason) -> None:
        """Make these seqs of the topic lost (`TopicLog.add_hole`). Raises OSError if the disk does not answer."""
        self.run(topic, partial(topic.log.add_hole, first, last, reason))

    def _load(self, topic: RecoveredTopic, span: Span) -> None:
        segment = span.segment
        assert isinstance(segment, Segment)
        if self._replaying and segment in topic.emptied:
            found = nothing_of(span.first, span.n)  # the log says why
        else:
            found = load_columns(self.tiers, segment, span.first, span.n)
        topic.part = None
        later = self._replaying and segment.tier != "gone"
        if found.damaged and not later:
            repaired = self.repair(topic, span)
            if repaired:
                found = load_columns(self.tiers, segment, span.first, span.n)
            elif repaired is None and has_places(found.damaged, span.first, found.columns.frame_len):
                found = found._replace(damaged=[])  # a read of the records asks the bucket again
        columns, damaged, live = found.columns, found.damaged, span.live
        if later:
            columns, damaged = self._as_of_part(span, columns), []
        if self.run(topic, partial(topic.log.attach, span, columns)) and topic.log.stored.holds(span):
            # A crash interrupted the flagging of deletions that are newer than the part. A flag may be in only one of
            # .data and .idx, and the next read may use either.
            span.unflag()
        if later and (found.damaged or columns is not found.columns) and span not in self._ahead:
            self._ahead[span] = _ShortSpan(topic, live, len(span.unflagged or ()), self._was_dropped(segment))
        for first, last in damaged:
            log.error("records_damaged", topic=topic.name, first=first, last=last)
            count = topic.log.count
            self.add_hole(topic, first, last, "corrupt")
            if topic.log.count != count:
                self.damaged.setdefault(topic.id, []).append((first, last))
        self._loaded.append(span)

    def _was_dropped(self, segment: Segment) -> bool:
        """Return True if a hot segment has no file left."""
        names = [segment_name(segment.first, kind) for kind in ("data", "idx", "tags")]
        return segment.tier == "hot" and not any(self.tiers.hot.exists(segment.topic_id, name) for name in names)

    @staticmethod
    def _as_of_part(span: Span, columns: SpanColumns) -> SpanColumns:
        """Return the columns with every record live that the part may count as live; unchanged if the part counts no
        more live records than the files."""
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
        """Take over the state of the files at the end of replay: records that the files do not have are deleted or
        damaged. Raises OSError if the disk does not answer."""
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
        """Take over from the files which records were deleted by tag, if the files have lost the tags together with the
        records."""
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
        """Drop all columns: from now on the daemon's cache counts the columns in memory."""
        while self._loaded:
            self._forget()


class RecoveredState(NamedTuple):
    """The result of recovery, with which the daemon starts."""

    topics: dict[int, RecoveredTopic]
    shards: list[RecoveredShard]
    files: WalFiles
    next_topic_id: int
    clock: int
    """The retention clock (epoch ms)."""
    now: Instant
    """The moment from which leases and windows continue."""
    snapshot_number: int
    snapshots_damaged: bool
    """True if some snapshots cannot be read or are missing."""
    failed: set[int]
    """Shards whose failure is noted in other shards."""
    starts: dict[int, ReplayPosition]
    """Where replay has begun, by shard."""
    new_layout: bool
    """True if the snapshot is from a change of the shard count; files of the old layout may still exist."""
    replayed: set[int]
    """Ids of topics with frames in the replayed range. A crash may have interrupted work on their files."""
    directories: set[int]
    """Ids of topics, deleted ones among them, that have a directory."""
    generations: dict[int, int]
    """Generations of the manifests that count, by topic id, if not 0."""
    columns: ColumnLoader
    copied_topics: set[int]
    """Ids of topics, deleted ones among them, with segments that copies point to."""
    missing: dict[int, list[LostRun]]
    """Copies whose bytes are missing, by topic id. Replay has made holes of them already."""
    schedules: Schedules
    transactions: TransactionReplay
    """The state of the replay of transactions, for a standby that reads on."""
    decisions: Sequence[TransactionDecision] = ()
    """The decisions about transactions that were in doubt."""


def shard_of(topic_id: int, shards: int) -> int:
    """Return a topic's shard (`docs/spec/storage.md` section 2)."""
    return frames.digest(topic_id.to_bytes(8, "little")) % shards


def shard_count(fs: Fs, datadir: DataDir) -> int:
    """Return how many shards the directory has; 0 for an empty one."""
    return len(discover_shards(fs, datadir))
