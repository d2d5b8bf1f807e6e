"""The whole batches of a log behind given places, also where bytes are damaged: for `inspect --diverged`.

Recovery refuses a log that is damaged before its end. Here the log is read as far as it goes: bytes that are no frame
are noted, and reading goes on at the next valid frame behind them. Of a batch that such bytes tear, the frames in front
of them are left out, and those behind them count. A batch that the end of the log tears is left out, because nothing of
it counts.

In memory is a window of the log (4 MiB), and the batch that goes beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from topics.storage.files.datadir import DataDir, DataDirError, FoundShard, wal_path
from topics.storage.files.fs import File, Fs
from topics.storage.files.progress import Progress
from topics.storage.offline.findings import DAMAGE, MAX_PER_FILE, NOTE, Finding, Severity
from topics.storage.recovery.frame_batches import FrameBatch, FrameBatches
from topics.storage.recovery.log_layout import ordinals_in, shards_with_files
from topics.storage.recovery.recovered_state import understood
from topics.storage.wal.frame_search import FrameSearch, LogFile
from topics.storage.wal.frames import FrameType, UnknownFrameType
from topics.storage.wal.wal_files import LogPosition, WalFile, WalFiles
from topics.storage.wal.wal_head import TAIL_BYTES, read_heads, wal_format

BEGINNING: Final = LogPosition(0, 0)

_FILE_END: Final = int(FrameType.FILE_END)


class TailBatch(NamedTuple):
    """A batch, or several of one topic that follow each other. `is_synced`: a later file says that the disk had it."""

    shard: int
    batch: FrameBatch
    is_synced: bool


class TailBatches:
    """The end of the log of a directory. May be read several times."""

    def __init__(self, fs: Fs, datadir: DataDir, positions: Sequence[tuple[int, int]] | None) -> None:
        """`positions` is where the end begins, by shard; None for the whole log. Raises DataDirError if the log has
        other shards, OSError."""
        self.progress = Progress()
        self.files = WalFiles()
        self._fs = fs
        self._datadir = datadir
        self._findings: list[Finding] = []
        self._counts: Counter[tuple[str, str]] = Counter()
        try:
            found = shards_with_files(fs, datadir)
        except FileNotFoundError:
            raise DataDirError(f"{datadir.root} has no log") from None
        count = len(positions) if positions is not None else max((shard.shard + 1 for shard in found), default=0)
        for shard in found:
            if shard.shard >= count or shard.path != datadir.shard_dir(shard.shard, count):
                raise DataDirError(f"there should be the log of {count} shards, and {shard.path} is none of them")
            self._register(shard)
        places = positions if positions is not None else [BEGINNING] * count
        self.begins = [LogPosition(*place) for place in places]
        """Where the end of each shard begins."""

    def _register(self, shard: FoundShard) -> None:
        ordinals = ordinals_in(self._fs, shard.path)
        heads = read_heads(self._fs, shard.path, ordinals, version=wal_format(self._fs, self._datadir))
        for ordinal, head in heads.items():
            self.files.add(shard.shard, ordinal, wal_path(shard.path, ordinal), head)

    @property
    def findings(self) -> list[Finding]:
        """The findings of the last reading, as far as it has come: damage, and notes about frames that do not count."""
        more = [
            Finding(path, None, f"and {count - MAX_PER_FILE} more like these", DAMAGE if kind == DAMAGE else NOTE)
            for (path, kind), count in self._counts.items()
            if count > MAX_PER_FILE
        ]
        return self._findings + more

    def read(self, *, whole: bool = False) -> Iterator[TailBatch]:
        """Yield the batches, shard by shard. `whole`: from the beginning of the log on. Raises DataDirError for content
        with valid checksums that this version does not know, OSError."""
        self._findings, self._counts = [], Counter()
        for shard, place in enumerate(self.begins):
            begin = BEGINNING if whole else place
            files = [file for file in self.files.of_shard(shard) if file.ordinal >= begin.ordinal]
            if begin != BEGINNING and (not files or files[0].ordinal != begin.ordinal):
                path = wal_path(self._datadir.shard_dir(shard, len(self.begins)), begin.ordinal)
                self._find(path, None, "the file is missing, and the bucket has the log up to this file", DAMAGE)
            for file, following in pairwise([*files, None]):
                assert file is not None
                offset = begin.offset if file.ordinal == begin.ordinal else 0
                yield from self._of_file(file, max(offset, file.head.first), following)

    def _of_file(self, file: WalFile, begin: int, following: WalFile | None) -> Iterator[TailBatch]:
        if file.head.problem is not None:
            self._find(file.path, 0, f"nothing of it can be read: {file.head.problem}", DAMAGE)
            return
        try:
            handle = self._fs.open(file.path, read_only=True)
        except FileNotFoundError:
            self._find(file.path, None, "the file is missing", DAMAGE)
            return
        with handle:
            size = handle.size()
            if size < begin:
                self._find(file.path, size, f"the file ends here, and the bucket has it up to {begin}", DAMAGE)
                return
            yield from self._of_handle(file, handle, size, begin, following)

    def _of_handle(
        self, file: WalFile, handle: File, size: int, begin: int, following: WalFile | None
    ) -> Iterator[TailBatch]:
        """Yield the batches of an open file, also those behind bytes that are no frame."""
        at = begin
        while True:
            batches = FrameBatches(file, handle, at, 0, self.progress)
            with understood(file.path):
                try:
                    for batch in batches:
                        yield TailBatch(file.shard, batch, following is not None)
                        self._check_next(file, batch, following)
                except UnknownFrameType as error:
                    raise DataDirError(f"a newer version has written {file.path}: {error}") from error
            if batches.ended:
                return
            search = FrameSearch(LogFile(handle, size, file.ordinal, file.head.salt), batches.at + 1)
            found = next(search.found(), None)
            if found is None:
                self._end(file, batches, following, is_known=not search.exhausted)
                return
            at = found.frame.offset
            problem = f"{at - batches.batch_at} bytes are no whole batch; reading goes on behind them"
            self._find(file.path, batches.batch_at, problem, DAMAGE)

    def _end(self, file: WalFile, batches: FrameBatches, following: WalFile | None, *, is_known: bool) -> None:
        """Say how a file ends that is not complete."""
        severity: Severity = DAMAGE
        if not is_known:
            problem = "the bytes from here on are no frames, as far as was looked"
        elif following is not None:
            problem = "the file ends here, and another one follows"
        elif file.head.salt is not None and batches.size - batches.at < TAIL_BYTES:
            problem = "the file was cut short here"
        elif batches.reason == "bad" or batches.at > batches.batch_at:
            problem, severity = "the log ends here with an unfinished write, which counts as none", NOTE
        else:
            return
        self._find(file.path, batches.batch_at, problem, severity)

    def _check_next(self, file: WalFile, batch: FrameBatch, following: WalFile | None) -> None:
        row = batch.rows[-1]
        ordinal = batch.extras[row[0]].get("next") if row[2] == _FILE_END else None
        if ordinal is None or (following is not None and following.ordinal == ordinal):
            return
        if following is not None:
            self._find(file.path, row[0], f"the file {ordinal} should follow, and {following.ordinal} does", DAMAGE)

    def _find(self, path: str, offset: int | None, problem: str, severity: Severity) -> None:
        """Note a finding; of many in one file the first ones."""
        self._counts[path, severity] += 1
        if self._counts[path, severity] <= MAX_PER_FILE:
            self._findings.append(Finding(path, offset, problem, severity))
