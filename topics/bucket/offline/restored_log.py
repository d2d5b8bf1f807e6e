"""The files of the log in a restored directory, byte for byte as rounds have them (`docs/design/bucket.md` section 3).

A base lists the files that a replay from it reads. Rounds may have bytes of older files besides, which are left out.
Every byte must be there once: a gap, an overlap, or a position that contradicts the runs is refused.
"""

from __future__ import annotations

from typing import Final

from topics.bucket.base_format import Base
from topics.bucket.object_names import base_name, round_name
from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.bucket.round_format import Round, Run
from topics.storage.files.datadir import FORMAT, DataDir, wal_path
from topics.storage.files.fs import File, Fs, parent, write_all
from topics.storage.recovery.recovered_state import MALFORMED
from topics.storage.wal.frames import Frame, FrameType, control_payload
from topics.storage.wal.wal_head import TAIL_BYTES, WalWindow, read_heads, scans

MOST_SHARDS: Final = 1024
"""Shards that a base may have. The setting allows 64."""

_MOST_ORDINALS: Final = 1 << 63
_FILE_END: Final = int(FrameType.FILE_END)
_FORWARDED: Final = int(FrameType.FORWARDED)
_TOPIC_CREATE: Final = int(FrameType.TOPIC_CREATE)


def check_files(base: Base) -> dict[int, dict[int, int]]:
    """Return the files of the log that a base lists: by shard and ordinal, the round that has the first byte. Raises
    BucketDamaged."""
    name, head = base_name(base.head.number), base.head
    if not 1 <= head.shards <= MOST_SHARDS:
        raise BucketDamaged(name, f"it has {head.shards} shards")
    listed: dict[int, dict[int, int]] = {shard: {} for shard in range(head.shards)}
    for shard, ordinal, begins in base.body.files:
        if shard not in listed or not 0 <= ordinal < _MOST_ORDINALS:
            raise BucketDamaged(name, f"it lists a file that cannot be: shard {shard}, {ordinal}")
        if not head.first_round <= begins <= head.number:
            raise BucketDamaged(name, f"a file that it lists begins in round {begins}")
        listed[shard][ordinal] = begins
    for shard, files in listed.items():
        if not files:
            raise BucketDamaged(name, f"it lists no file of shard {shard}")
    return listed


class RestoredLog:
    """Writes the files, round by round. Methods raise BucketDamaged, and OSError."""

    def __init__(self, fs: Fs, datadir: DataDir, base: Base) -> None:
        self._fs = fs
        self._datadir = datadir
        self._base = base_name(base.head.number)
        self._shards = base.head.shards
        self._files: dict[int, list[int]] = {}
        """The ordinals of the files that were begun, by shard."""
        self._ends: dict[int, int] = {}
        """The length of the last file of each shard."""
        self._open: dict[int, File] = {}
        self.complete: list[int] = []
        """The shards whose last file is complete. Known when it is finished."""
        self.has_copies = False
        """True if a Forwarded frame is in it. Known when it is finished."""
        self.created: set[str] = set()
        """The names of topics that were created in it. Known when it is finished."""
        self._listed = check_files(base)
        """By shard and ordinal: the round that has the first byte of a file that the base lists."""

    def make_directories(self) -> None:
        """Make the directories of all shards."""
        for shard in range(self._shards):
            self._fs.mkdir(self._datadir.shard_dir(shard, self._shards))

    def take(self, found: Round, *, is_first: bool) -> None:
        """Write the bytes of a round. `is_first` if it is the first one that the base needs."""
        head, name = found.head, round_name(found.head.number)
        if head.shards != self._shards:
            raise BucketDamaged(name, f"it has {head.shards} shards, and {self._base} has {self._shards}")
        if head.begins_history and not is_first:
            raise BucketDamaged(name, f"a history begins with it, which {self._base} knows nothing of")
        for run, data in found.pieces():
            if run.shard not in self._listed or not 0 <= run.ordinal < _MOST_ORDINALS or not run.length:
                raise BucketDamaged(name, f"it has a run that cannot be: {tuple(run)}")
            if run.ordinal >= min(self._listed[run.shard]):
                self._begin_or_continue(head.number, run)
                write_all(self._open[run.shard], data, run.offset)
                self._ends[run.shard] = run.offset + run.length
        for shard, files in self._files.items():
            if head.positions[shard] != (files[-1], self._ends[shard]):
                raise BucketDamaged(name, f"its position in shard {shard} is not where its runs end")

    def _begin_or_continue(self, number: int, run: Run) -> None:
        """Check that a run follows what there is, and open its file if it begins one."""
        files, listed = self._files.setdefault(run.shard, []), self._listed[run.shard]
        if files and files[-1] == run.ordinal:
            if run.offset != self._ends[run.shard]:
                raise self._misplaced(number, run)
            return
        expected = min((ordinal for ordinal in listed if not files or ordinal > files[-1]), default=run.ordinal)
        if run.offset or run.ordinal != expected or (files and run.ordinal < files[-1]):
            raise self._misplaced(number, run)
        if run.ordinal in listed and listed[run.ordinal] != number:
            raise BucketDamaged(
                self._base, f"it says that file {run.ordinal} of shard {run.shard} begins in {listed[run.ordinal]}"
            )
        self._close(run.shard)
        files.append(run.ordinal)
        self._open[run.shard] = self._fs.open(self._path(run.shard, run.ordinal), exclusive=True)

    @staticmethod
    def _misplaced(number: int, run: Run) -> BucketDamaged:
        return BucketDamaged(
            round_name(number),
            f"bytes {run.offset} to {run.offset + run.length} of file {run.ordinal} of shard {run.shard} do not follow "
            "the bytes before them",
        )

    def finish(self) -> None:
        """Bring the files to the form in which recovery expects them, and sync them."""
        for shard, listed in self._listed.items():
            missing = listed.keys() - self._files.get(shard, [])
            if missing:
                raise BucketDamaged(self._base, f"no round has the file {min(missing)} of shard {shard}")
        for shard, ordinals in self._files.items():
            self._close(shard)
            directory = self._datadir.shard_dir(shard, self._shards)
            heads = read_heads(self._fs, directory, ordinals, version=FORMAT["wal"])
            for ordinal in ordinals:
                with self._fs.open(self._path(shard, ordinal)) as handle:
                    size, last = handle.size(), 0
                    for window in scans(handle, heads[ordinal], heads[ordinal].first, size):
                        rows = window.scan.rows
                        last = rows[-1][2] if rows else last
                        for i in window.scan.controls:
                            self.has_copies |= rows[i][2] == _FORWARDED
                            if rows[i][2] == _TOPIC_CREATE:
                                self.created.add(_name_in(window, Frame(*rows[i])))
                    if last == _FILE_END:
                        if ordinal == ordinals[-1]:
                            self.complete.append(shard)
                    else:
                        # The end of a file that is still written to has zeros behind it; one that has neither them nor
                        # FileEnd has lost its end.
                        handle.truncate(size + 2 * TAIL_BYTES)

    def close(self) -> None:
        """Close what is open."""
        for shard in list(self._open):
            self._close(shard)

    @property
    def directories(self) -> set[str]:
        """The directories of the shards."""
        paths = {self._datadir.shard_dir(shard, self._shards) for shard in range(self._shards)}
        return paths | {self._datadir.wal_dir} | {parent(path) for path in paths}

    def _close(self, shard: int) -> None:
        handle = self._open.pop(shard, None)
        if handle is not None:
            handle.close()

    def _path(self, shard: int, ordinal: int) -> str:
        return wal_path(self._datadir.shard_dir(shard, self._shards), ordinal)


def _name_in(window: WalWindow, frame: Frame) -> str:
    """Return the name of the topic that a frame creates; empty for a frame that recovery will refuse."""
    try:
        return str(control_payload(window.data, window.base, frame).get("name", ""))
    except MALFORMED:
        return ""
