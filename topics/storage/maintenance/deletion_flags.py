"""Flagging deleted records in hot segments: in `.data`, and in `.idx` once `.data` is durable. A packed `.data` stays
as it is: it gets a new `.del`, which is named once it is durable.

What the flags of a segment are is `flag_patches`' business; those of cold segments are written by the reclaimer.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial

from topics.runtime.offload import Offload, Pool
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import TEMPORARY_SUFFIX, Fs, write_all
from topics.storage.files.unsynced_files import UnsyncedFiles
from topics.storage.maintenance.live_topic import LiveTopic
from topics.storage.maintenance.topic_capture import TopicCapture
from topics.storage.segments.data_files import DataFiles, NotFlaggable, deletions_path
from topics.storage.segments.flag_patches import FlagPatch, flag_patches
from topics.storage.segments.segment_format import DELETED_FLAG
from topics.storage.segments.topic_segments import Segment
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


class DeletionFlags:
    """Writes the flags of captured deletions, and remembers the topics whose flags have to wait for the end of a
    hold."""

    def __init__(self, datadir: DataDir, fs: Fs, offload: Offload) -> None:
        self._datadir = datadir
        self._fs = fs
        self._offload = offload
        self._data_files = DataFiles(fs)
        self._withheld: set[LiveTopic] = set()
        """Topics with deletions in segments that a hold names: their part says so, the flags have yet to be written."""

    def take_up_withheld(self) -> None:
        """No hold lasts: the next checkpoint flags the deletions that were not flagged because of one."""
        for topic in self._withheld:
            if not topic.deleted:
                topic.mark_changed()
        self._withheld.clear()

    async def write(self, capture: TopicCapture, files: UnsyncedFiles) -> None:
        """Flag deleted records of hot segments in `.data`. Their Delete frames are synced by now (`docs/spec/crash.md`
        11).

        Those of cold segments stay in the part until the reclaimer has written them; those of segments that a hold
        names, until it is over. Raises OSError.
        """
        for span, seqs in capture.unflagged:
            segment = span.segment
            if not isinstance(segment, Segment) or segment.tier != "hot":
                continue
            if segment in capture.named.segments:
                self._withheld.add(capture.topic)
                continue
            path, index_path = self._path(segment, "data"), self._path(segment, "idx")
            flag = partial(self._flag, files, path, index_path, segment.first, sorted(seqs))
            patches, listed = await self._offload.run(Pool.FILES, flag)
            if listed is not None:
                capture.new_lists.append((listed, deletions_path(path)))
            if patches:
                capture.flagged.append((span, array("Q", [seq for patch in patches for seq in patch.seqs])))
                capture.index_patches.append((index_path, patches))

    def _flag(
        self, files: UnsyncedFiles, path: str, index_path: str, first: int, seqs: Sequence[int]
    ) -> tuple[list[FlagPatch], str | None]:
        """In a worker thread: flag in `.data`, or in a new `.del` of a packed one. Returns what to write into `.idx`
        once that is synced, as `.data` is the witness. Where a file is missing, or damaged so that it cannot get flags,
        or an entry does not verify, the part keeps its list of deletions. And the path of the new `.del`, which has no
        name yet that counts."""
        try:
            with self._fs.open(index_path, read_only=True) as index:
                patches = list(flag_patches(index.pread, first, seqs))
            flags_at = [at for patch in patches for at in patch.flags_at]
            listed = self._data_files.deletions_with(path, flags_at)
            if listed is None:
                with files.writing(path) as data:
                    for at in flags_at:
                        write_all(data, bytes((DELETED_FLAG,)), at)
        except FileNotFoundError:
            return [], None
        except NotFlaggable as error:  # one damaged segment must not keep all topics from being stored
            log.error("segment_not_flagged", path=path, problem=error.strerror)
            return [], None
        if listed is None or not patches:
            return patches, None
        temporary = deletions_path(path) + TEMPORARY_SUFFIX
        with files.writing(temporary, create=True) as target:
            target.truncate(0)
            write_all(target, listed, 0)
        return patches, temporary

    def _path(self, segment: Segment, kind: str) -> str:
        return self._datadir.segment_path(segment.topic_id, segment.first, kind)

    async def write_indexes(self, captures: Sequence[TopicCapture], files: UnsyncedFiles) -> None:
        """Flag in `.idx` the records that are flagged in `.data`, which is durable by now. Raises OSError."""
        lists = [names for capture in captures for names in capture.new_lists]
        todo = [patch for capture in captures for patch in capture.index_patches]
        if todo:
            await self._offload.run(Pool.FILES, partial(_patch_indexes, self._fs, lists, todo, files))


def _patch_indexes(
    fs: Fs, lists: Sequence[tuple[str, str]], todo: Sequence[tuple[str, list[FlagPatch]]], files: UnsyncedFiles
) -> None:
    """In a worker thread. The names of lists are synced with those of the indexes: until the part counts the flags, it
    names the deletions itself."""
    for temporary, path in lists:
        fs.rename(temporary, path)
    for path, patches in todo:
        with files.writing(path) as index:
            for patch in patches:
                write_all(index, patch.entries, patch.entries_at)
