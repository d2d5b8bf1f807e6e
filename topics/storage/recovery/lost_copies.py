"""Copies whose bytes are missing, found when the ends of all shards are known (`docs/spec/crash.md` 16).

Responsible for two losses that replay does not see when it meets a record: bytes beyond the end of another shard's log,
and bytes in a range that salvage has given up and that replay has not read. Lost records become a hole in memory, and a
verdict (`verdicts`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from topics.log.losses import LossReason
from topics.log.span import FLAG_DERIVED
from topics.storage.recovery.recovered_state import ColumnLoader, LostRun, RecoveredShard, RecoveredTopic
from topics.storage.wal.wal_files import WalFiles
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class LostCopies:
    """Looks for records without bytes. Blocking; methods raise OSError if the disk does not answer."""

    def __init__(self, files: WalFiles, shards: Mapping[int, RecoveredShard], columns: ColumnLoader) -> None:
        self._files = files
        self._shards = shards
        self._columns = columns
        self._filled = any(shard.fillers for shard in shards.values())

    def find(self, topics: Collection[RecoveredTopic]) -> dict[int, list[LostRun]]:
        """Make holes of the copies whose bytes are missing. Return the lost copies by topic id."""
        if self._filled:
            for topic in topics:
                self._give_up_filled(topic)
        found: dict[int, list[LostRun]] = {}
        for topic in topics:
            lost = self._of_topic(topic) if topic.copies is not None else []
            for seq, _, reason in lost:
                log.error("copy_without_bytes", topic=topic.name, seq=seq, reason=reason)
                self._columns.add_hole(topic, seq, seq, reason)
                topic.part = None
            if lost:
                found[topic.id] = _joined(lost)
        return found

    def _of_topic(self, topic: RecoveredTopic) -> list[LostRun]:
        """Return the live copies without bytes, one by one, with the reason: lost or damaged."""
        lost: list[LostRun] = []
        for run in topic.log.index.capture_raw(topic.log.head_seq):
            for i, flag in enumerate(run.flags):
                if flag < FLAG_DERIVED or run.dead[i]:
                    continue
                seq = run.first + i
                file, offset = run.file[i], run.offset[i]
                beyond = self._is_beyond(file, offset + run.frame_len[i]) or self._is_filled(file, offset)
                if beyond or seq in topic.missing:
                    reason: LossReason = "corrupt" if self._is_given_up(file, offset) else "lost"
                    lost.append(LostRun(seq, seq, reason))
        return lost

    def _give_up_filled(self, topic: RecoveredTopic) -> None:
        """Make holes of records of a part whose bytes salvage has given up: replay has not read them."""
        for run in topic.log.index.capture_raw(topic.log.head_seq):
            for i, flag in enumerate(run.flags):
                if flag >= FLAG_DERIVED or run.dead[i] or not self._is_filled(run.file[i], run.offset[i]):
                    continue
                seq = run.first + i
                log.error("record_damaged", topic=topic.name, seq=seq)
                self._columns.add_hole(topic, seq, seq, "corrupt")
                topic.part = None

    def _is_given_up(self, file: int, offset: int) -> bool:
        """Return True if salvage has given up the bytes at this place, or if the place is in a segment: then the bytes
        were on disk once."""
        kind = self._files.place_of(file)[0] if file else ""
        return kind == "segment" or self._is_filled(file, offset)

    def _is_filled(self, file: int, offset: int) -> bool:
        """Return True if salvage has given up the bytes at this place."""
        if not self._filled:
            return False
        kind, shard, ordinal = self._files.place_of(file) if file else ("", 0, 0)
        return kind == "wal" and any(
            ordinal == filled.ordinal and filled.start <= offset < filled.stop for filled in self._shards[shard].fillers
        )

    def _is_beyond(self, file: int, end: int) -> bool:
        """Return True if a frame that ends there is not in the recovered log."""
        if not file:
            return True
        kind, shard, ordinal = self._files.place_of(file)
        if kind != "wal":
            return False
        found = self._shards[shard]
        return found.file is None or (ordinal, end) > (found.file.ordinal, found.end)


def copied_topics(topics: Iterable[RecoveredTopic], files: WalFiles) -> set[int]:
    """Return the ids of topics, deleted ones among them, with segments that copies point to."""
    needed = (file for topic in topics if topic.copies is not None for file in topic.copies.files)
    return {owner for kind, owner, _ in map(files.place_of, filter(None, needed)) if kind == "segment"}


def _joined(lost: Sequence[LostRun]) -> list[LostRun]:
    """Return the runs with neighbours of one reason joined."""
    joined: list[LostRun] = []
    for run in lost:
        if joined and joined[-1].last + 1 == run.first and joined[-1].reason == run.reason:
            joined[-1] = joined[-1]._replace(last=run.last)
        else:
            joined.append(run)
    return joined
