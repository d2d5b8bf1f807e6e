"""Where a shard's log ends, or is damaged (`docs/spec/storage.md` section 3, `docs/spec/crash.md` 4 and 5).

Replay stops at bytes that are not a frame. This module decides whether these bytes are the torn end of writes that no
sync has covered, or damage: bytes that were on disk and have changed. Bytes below a vouched position (up to which a
sync has covered the log) are damage. The frames behind the bytes (`frame_search`) show the vouched position, where the
log continues, and how many seqs are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from topics.storage.files.fs import File, Fs
from topics.storage.recovery.bare_fillers import outstanding
from topics.storage.recovery.damage import BadRange, Damage, DamagedContent, LostFrames, LostSeqs
from topics.storage.recovery.recovered_state import RecoveredShard, RecoveredTopic
from topics.storage.wal.frame_search import (
    MOST_RESERVED,
    LaterSeq,
    LogContinuation,
    LogFile,
    ReplayedTopic,
    behind,
    end_of_bytes,
    only_zeros,
    vouched_behind,
)
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles, most_bytes
from topics.storage.wal.wal_head import TAIL_BYTES, WalHead, scans
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


WAL_FILE_BYTES: Final = 64 << 20
"""Default length of a file of the log (`TOPICS_WAL_FILE_BYTES`)."""
MOST_FILE_BYTES: Final = 1 << 30
"""Recovery assumes that a file has lost at most so many bytes with its end."""


class OpenEnd(NamedTuple):
    """A file of the log that does not end in FileEnd, and where replay has stopped in it."""

    shard: RecoveredShard
    file: WalFile
    following: int | None
    """Ordinal of the next file, None if this is the last one."""
    at: int
    """Offset of the first bytes that are not a frame."""
    reason: str
    """Why these bytes are not a frame (`LogScan.reason`)."""
    batch_at: int
    """Offset behind the last whole batch."""
    batch_count: int
    """Ordinal of the next frame."""


def was_cut_short(file: LogFile, head: WalHead, at: int) -> bool:
    """Return True if a file that has no FileEnd has lost its end. `at` is where its frames stop, or where replay would
    have begun.

    For a file of version 1 this is known only if it ends before replay begins.
    """
    if file.size < at:
        return True
    if head.salt is None:
        return False
    tail = file.handle.pread(TAIL_BYTES, max(file.size - TAIL_BYTES, 0))
    # A single byte that is not zero is a flipped bit.
    return at > file.size - TAIL_BYTES or len(tail) - tail.count(0) > 1


class LogEnds:
    """Judges the ends of logs, with what replay knows at that moment. Blocking."""

    def __init__(
        self,
        fs: Fs,
        files: WalFiles,
        topics: Mapping[int, RecoveredTopic],
        shard_of: Callable[[int], int],
        file_bytes: int,
    ) -> None:
        self._fs = fs
        self._files = files
        self._topics = topics
        self._shard_of = shard_of
        self._file_bytes = file_bytes

    def judge(self, end: OpenEnd, handle: File) -> None:
        """Note in `end.shard` that its log ends there, at a torn end or at zeros (`docs/spec/crash.md` 4).

        Raises Damage if the log does not end there, and OSError.
        """
        shard, file, following = end.shard, end.file, end.following
        search = LogFile(handle, handle.size(), file.ordinal, file.head.salt)
        vouched = shard.vouched.offset if shard.vouched.ordinal == file.ordinal else 0
        clean = end.reason == "zeros" and only_zeros(handle, end.at, search.size)
        known = True
        if not clean:
            found = vouched_behind(search, end.at)
            vouched, known = max(vouched, found.offset), found.known
        cut = following is None and was_cut_short(search, file.head, end.at)
        if following is None and not cut and known and end.batch_at >= vouched:
            shard.end, shard.ended, shard.frame_count = end.batch_at, False, end.batch_count
            if not clean or end.batch_at != end.at:
                shard.truncated = LogPosition(file.ordinal, end.batch_at)
                log.warning("wal_torn_end", file=file.path, offset=end.batch_at, shard=shard.shard)
            return
        if not known:
            log.error("frame_search_ended_at_its_bound", file=file.path, offset=end.at, shard=shard.shard)
        on = behind(search, end.at, self._replayed())
        stop = on.stop
        lost_end = cut or (following is not None and stop == search.size)
        if cut:
            stop = self._most(search.size)
        elif following is None and stop == search.size and known:
            # No frame follows. Zeros at the end of the file that nothing vouches for are not part of the damage.
            stop = max(end.at if clean else end_of_bytes(handle, end.at, search.size), vouched)
        raise self._damage(end, on._replace(stop=stop), lost_end=lost_end)

    def without_header(self, end: OpenEnd, size: int) -> Damage:
        """Return the damage of a file of `size` bytes without a valid beginning, so that none of it can be verified.
        `end` is where replay would have begun. Raises OSError."""
        stop = self._most(size) if end.following is None else size
        return self._damage(end, LogContinuation(stop, {}, 0), lost_end=True)

    def _damage(self, end: OpenEnd, on: LogContinuation, *, lost_end: bool) -> Damage:
        """Return the damage from `end` up to where the log continues. `lost_end`: the original length of the file is
        unknown."""
        shard, file, following = end.shard, end.file, end.following
        topics = self._topics.values()
        replaces = 1 if following is None else max(following - end.batch_count - on.frames, 0)
        stop = max(on.stop, end.batch_at)  # the position in a snapshot may be beyond the remaining end of the file
        longest = stop
        if lost_end and (following is None or replaces != 1):  # a single frame is FileEnd, which holds no seqs
            longest = max(stop, most_bytes(self._file_bytes))
        return Damage(
            BadRange(file.path, file.ordinal, file.head, end.batch_at, stop),
            DamagedContent(
                losses=self._losses(shard, on.later, file.ordinal),
                names={topic.id: topic.name for topic in topics},
                routed={topic.id for topic in topics if topic.stage is None},
                outstanding=outstanding(shard.bare_fillers, self._topics),
                room=longest - end.batch_at,
            ),
            LostFrames(end.batch_count, replaces, following),
        )

    def _most(self, size: int) -> int:
        """Return how long a file that has lost its end and has `size` bytes now may have been."""
        return max(size, min(self._file_bytes, MOST_FILE_BYTES))

    def _replayed(self) -> dict[int, ReplayedTopic]:
        return {
            topic.id: ReplayedTopic(topic.log.head_seq, topic.end, topic.config.durability != "ephemeral")
            for topic in self._topics.values()
        }

    def _losses(self, shard: RecoveredShard, later: Mapping[int, LaterSeq], ordinal: int) -> dict[int, LostSeqs]:
        """Return the seqs that the bad range held, by topic id."""
        losses: dict[int, LostSeqs] = {}
        told = any(not one.exact for one in later.values())
        known = {**self._first_seqs_of_later_files(shard, ordinal), **later}
        for topic_id in sorted({*self._topics, *known}):
            topic = self._topics.get(topic_id)
            head = topic.log.head_seq if topic is not None else 0
            if topic is not None and topic_id not in known:
                ours = self._shard_of(topic.id) == shard.shard
                if ours and topic.config.durability == "ephemeral":
                    # Its records have no frames; the range may have held the reserve of its seqs.
                    losses[topic_id] = LostSeqs(head + 1, max(head, topic.ceiling) + MOST_RESERVED)
                elif not told and ours:
                    losses[topic_id] = LostSeqs(head + 1, None)
                continue
            seq, exact = known[topic_id]
            last = seq - 1 if exact else seq
            if last > head:
                losses[topic_id] = LostSeqs(head + 1, last)
        return losses

    def _first_seqs_of_later_files(self, shard: RecoveredShard, ordinal: int) -> dict[int, LaterSeq]:
        """Return the first Append of each topic in the files behind `ordinal`."""
        firsts: dict[int, LaterSeq] = {}
        for file in self._files.of_shard(shard.shard):
            if file.ordinal <= ordinal or file.head.problem is not None:
                continue
            with self._fs.open(file.path, read_only=True) as handle:
                for scan, _, _ in scans(handle, file.head, file.head.first, handle.size()):
                    for frame in scan.frames:
                        if frame.seq and frame.type in (FrameType.APPEND, FrameType.FORWARDED):
                            firsts.setdefault(frame.topic_id, LaterSeq(frame.seq, True))
        return firsts
