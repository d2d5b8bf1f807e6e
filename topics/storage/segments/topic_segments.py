"""A topic's segments as the running daemon knows them, and how raw records are divided among them
(`docs/spec/storage.md` section 4).

A `Segment` names the files of a run of seqs; the span of `topics.log` that points to it counts its live records. A
`SegmentSet` has all segments of a topic, including those that no span points to any more, whose files must still be
removed. All work on the files of a topic is serialised by its two locks, one for each tier (`docs/spec/crash.md` 12).
Pure except for the locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

import trio

from topics.config import Settings
from topics.log.dumped_values import whole
from topics.log.record_index import RawRun
from topics.model import TopicConfig
from topics.storage.files.file_header import FILE_HEADER_BYTES

Tier = Literal["hot", "cold", "gone"]
"""Where the files of a segment are. "gone": all its records were deleted, and its files removed."""

ENTRY_FIELDS: Final = (7, 8, 9, 10)
"""How many fields an entry may have: without a salt, as version 1 wrote it, and without those at the end that are
None."""

SUM_BYTES: Final = 32

EMPTIED: Final = "emptied"
"""In a CheckpointMark of a topic: `[first, n]` of each segment that has no record left, and that has lost some of them
by deletion instead of eviction. The mark is in the log before the segment's files are removed, because the files have
the tags by which the records were deleted."""


class Segment:
    """One segment. A rewritten or merged segment is another object: readers compare by identity."""

    __slots__ = (
        "data_bytes",
        "dead_since_ms",
        "first",
        "flagged_meanwhile",
        "frames",
        "measured",
        "n",
        "opened_ms",
        "packed",
        "read_salt",
        "salt",
        "sealed",
        "sha256",
        "tags_dropped",
        "tier",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        first: int,
        *,
        n: int = 0,
        data_bytes: int = 0,
        frames: int = 0,
        opened_ms: int = 0,
        sealed: bool = False,
        tier: Tier = "hot",
        salt: int | None = None,
        packed: int | None = None,
        sha256: bytes | None = None,
    ) -> None:
        self.topic_id = topic_id
        self.first = first
        self.n = n
        """Number of slots: the segment covers seqs `first` to `first + n - 1`."""
        self.data_bytes = data_bytes
        """The synced length of `.data`, of a packed one that of its unpacked form; bytes beyond it do not count."""
        self.frames = frames
        """How many frames are in `.data`, of live and deleted records."""
        self.measured: tuple[int, int] | None = None
        """The number of live records, and their bytes in `.data`, when the reclaimer last looked."""
        self.dead_since_ms: int | None = None
        """Since when it has held frames of deleted records, or earlier (epoch ms); None if the reclaimer has not seen
        any. Kept only with a bucket."""
        self.opened_ms = opened_ms
        """When its first record was stored (epoch ms)."""
        self.sealed = sealed
        self.tier: Tier = tier
        self.tags_dropped = False
        """True if its tags were dropped from memory at some time because there was no room for them."""
        self.flagged_meanwhile: set[int] | None = None
        """While the segment is copied to the cold store: the seqs that were flagged in its hot `.data` since the copy
        began. None at other times, and if the files were replaced during the copy."""
        self.salt = salt
        """The salt in the header of `.data`; None for version 1, which has no header."""
        self.read_salt = salt
        """The salt for reading `.data`. It differs from `salt` only if a crash has left a part that is older than its
        `.data`: then a scan has found this salt in the file, and `salt` and `data_bytes` are still those of the older
        file."""

        self.packed = packed
        """The bytes of `.data` on disk if it was packed; 0 if that was tried and is of no use; None if it was not
        tried. A figure only: the file says itself what it is, and this may be older."""

        self.sha256 = sha256
        """The SHA-256 of the sealed file with this `salt` (`segment_sum`). None while it is active, of version 1, and
        if an earlier version has sealed it, or it was damaged then."""

    def __hash__(self) -> int:
        return hash((self.topic_id, self.first))  # not the address, so that sets have the same order in every run

    def __eq__(self, other: object) -> bool:
        return self is other

    @property
    def end(self) -> int:
        """One past the last seq."""
        return self.first + self.n

    @property
    def header_bytes(self) -> int:
        """Length of the header of `.data`; 0 without one."""
        return 0 if self.salt is None else FILE_HEADER_BYTES

    @property
    def stored_bytes(self) -> int:
        """The bytes of `.data` on disk."""
        return self.packed or self.data_bytes

    def to_wire(self) -> list[Any]:
        """Return `[first, n, data bytes, frames, opened ms, sealed, tier, salt, packed, sha256]`, without the last ones
        that are None."""
        entry: list[Any] = [
            self.first,
            self.n,
            self.data_bytes,
            self.frames,
            self.opened_ms,
            int(self.sealed),
            self.tier,
            self.salt,
        ]
        if self.sha256 is not None:
            return [*entry, self.packed, self.sha256]
        return entry if self.packed is None else [*entry, self.packed]

    @classmethod
    def from_wire(cls, topic_id: int, value: Sequence[Any]) -> Segment:
        """Return the segment that `to_wire` was called on. Raises ValueError."""
        if len(value) not in ENTRY_FIELDS or value[6] not in ("hot", "cold", "gone"):
            raise ValueError("the entry of a segment is malformed")
        salt = value[7] if len(value) > 7 else None
        packed = value[8] if len(value) > 8 else None
        sha256 = value[9] if len(value) > 9 else None
        if sha256 is not None and not (isinstance(sha256, bytes) and len(sha256) == SUM_BYTES):
            raise ValueError("the SHA-256 of a segment is malformed")
        first, n, data_bytes, frames, opened_ms = map(whole, value[:5])
        segment = cls(
            topic_id,
            first,
            n=n,
            data_bytes=data_bytes,
            frames=frames,
            opened_ms=opened_ms,
            sealed=bool(value[5]),
            tier=value[6],
            salt=whole(salt) if salt is not None else None,
            packed=whole(packed) if packed is not None else None,
            sha256=sha256,
        )
        segment.dead_since_ms = opened_ms  # nobody knows since when; not before this
        return segment


class TopicFileLock:
    """Serialises the work on the files of one topic.

    It is not a `trio.Lock`, because a checkpoint holds tens of thousands of locks, and releasing a `trio.Lock` costs a
    search among all locks of its task. The queue of waiting tasks is made only when a task waits. Tasks get the lock in
    the order in which they ask.
    """

    __slots__ = ("_holder", "_taken", "_waiting")

    def __init__(self) -> None:
        self._taken = False
        """True if a task holds the lock, or while the lock is passed on to a task that has waited and does not hold it
        yet."""
        self._holder: object = None
        self._waiting: trio.lowlevel.ParkingLot | None = None

    @property
    def mine(self) -> bool:
        """Return True if the calling task holds the lock."""
        return self._holder is trio.lowlevel.current_task()

    def locked(self) -> bool:
        """Return True if any task holds the lock."""
        return self._taken

    async def acquire(self) -> None:
        """Wait for the lock. Cancelling leaves nothing behind."""
        assert not self.mine, "the holder of a lock may not wait for it"
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._taken:
            if self._waiting is None:
                self._waiting = trio.lowlevel.ParkingLot()
            await self._waiting.park()  # the releasing task leaves the lock taken for this one
        else:
            self._taken = True
            await trio.lowlevel.cancel_shielded_checkpoint()
        self._holder = trio.lowlevel.current_task()

    def acquire_nowait(self) -> None:
        """Take the lock, or raise `trio.WouldBlock`."""
        if self._taken:
            raise trio.WouldBlock
        self._taken = True
        self._holder = trio.lowlevel.current_task()

    def release(self) -> None:
        """Release the lock."""
        assert self._holder is not None
        self._holder = None
        if self._waiting:
            self._waiting.unpark()
        else:
            self._waiting, self._taken = None, False

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.release()


class SegmentSet:
    """The segments of one topic, the locks of their files, and fields of the part on disk. Made when the topic's files
    are first worked on."""

    __slots__ = ("cold_lock", "earliest_stored", "gone", "hot_lock", "segments")

    def __init__(self) -> None:
        self.segments: set[Segment] = set()
        """All segments that may have files."""
        self.gone: list[Segment] = []
        """Segments that the part on disk does not name any more: their files may be removed."""
        self.earliest_stored = 0
        """`earliest_seq` of the part on disk."""
        self.hot_lock = TopicFileLock()
        """The lock of its hot files, its manifest and its index. Its holder never waits for the cold store."""
        self.cold_lock = TopicFileLock()
        """The lock of its cold files. Its holder may wait for `hot_lock`, never the other way round."""


MANY_SEGMENTS: Final = 1000
"""If a topic has at least so many segments, its own limits do not count where they are lower than the daemon's. A part
names every segment, and is captured in one step of the loop, about 2 us for each segment. Without this bound, a topic
with one record in each segment would delay all other topics."""


class SegmentLimits(NamedTuple):
    """When a segment is full."""

    events: int
    bytes: int


class TopicLimits(NamedTuple):
    """When the segments of a topic are full or too old (`limits_of`)."""

    own: SegmentLimits
    if_many: SegmentLimits
    """The limits from `MANY_SEGMENTS` on."""
    age_ms: int
    """0: segments are not sealed for their age."""
    segments: int
    """How many segments the topic has."""

    def after(self, more: int = 0) -> SegmentLimits:
        """Return the limits of the next segment when the topic has got `more` segments."""
        return self.own if self.segments + more < MANY_SEGMENTS else self.if_many


def limits_of(config: TopicConfig, settings: Settings, segments: int) -> TopicLimits:
    """Return the limits for a topic that has so many segments: its own, and the daemon's where it has none."""
    of_daemon = SegmentLimits(settings.segment_max_events, settings.segment_max_bytes)
    own = SegmentLimits(
        of_daemon.events if config.segment_max_events is None else config.segment_max_events,
        of_daemon.bytes if config.segment_max_bytes is None else config.segment_max_bytes,
    )
    if_many = SegmentLimits(max(own.events, of_daemon.events), max(own.bytes, of_daemon.bytes))
    age_ms = config.segment_max_age_ms
    return TopicLimits(own, if_many, settings.segment_max_age_ms if age_ms is None else age_ms, segments)


class SegmentPiece(NamedTuple):
    """Slots `a` to `b` (exclusive) of a captured run, which go to one segment. `seals`: the segment is full, or ends
    here."""

    run: int
    a: int
    b: int
    first: int
    """First seq of the segment; equal to the first seq of the piece if that begins a new segment."""
    seals: bool


def divide(runs: Sequence[RawRun], active: Segment | None, limits: TopicLimits) -> tuple[list[SegmentPiece], bool]:
    """Return which slots go to which segment, in order, and True if `active` is sealed without taking any of them.

    Sizes are those of WAL frames, a few bytes more than a segment's, so segments stay below the bound. A segment always
    takes at least one record.
    """
    pieces: list[SegmentPiece] = []
    first, n, size, end = (
        (active.first, active.n, active.data_bytes, active.end) if active is not None else (0, 0, 0, 0)
    )
    seals_active = False
    most = limits.after()
    begun = 0
    for number, run in enumerate(runs):
        if n and run.first != end:
            # A segment never spans a long hole.
            if pieces:
                pieces[-1] = pieces[-1]._replace(seals=True)
            else:
                seals_active = True
            n = size = 0
        at, count = 0, len(run.flags)
        while at < count:
            if n and n >= most.events:
                if not pieces:
                    seals_active = True
                n = size = 0
            if not n:
                first = run.first + at
                most = limits.after(begun)
                begun += 1
            take, taken = _fill(run, at, min(count - at, most.events - n), most.bytes - size, n == 0)
            if take == 0:
                if pieces:
                    pieces[-1] = pieces[-1]._replace(seals=True)
                else:
                    seals_active = True
                n = size = 0
                continue
            n, size, at = n + take, size + taken, at + take
            full = n >= most.events or size >= most.bytes
            pieces.append(SegmentPiece(number, at - take, at, first, full))
            if full:
                n = size = 0
        end = run.first + count
    return pieces, seals_active


def _fill(run: RawRun, at: int, most: int, room: int, at_least_one: bool) -> tuple[int, int]:
    """Return how many slots from `at` on fit into `room` bytes, and the bytes they take."""
    lens, dead = run.frame_len, run.dead
    total = sum(lens[at : at + most])
    if total <= room:
        return most, total
    total = taken = 0
    for i in range(at, at + most):
        size = 0 if dead[i] else lens[i]
        if total + size > room and not (at_least_one and taken == 0):
            break
        total += size
        taken += 1
    return taken, total
