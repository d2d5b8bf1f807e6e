"""The store: one data directory held open by the daemon, with its shard writers, its WAL files and its free space.

Responsible for the order of opening (lock, FORMAT, recovery, verdict, writers) and of closing. What is in the files is
decided elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import msgspec
import trio

from topics.clock import Clock
from topics.config import Settings
from topics.errors import ApiError
from topics.figures import WalFigures
from topics.logs import get_logger
from topics.offload import Kind, Offload
from topics.storage import frames, recovery
from topics.storage.datadir import DataDir, DataDirError, lock_data_dir, open_data_dir
from topics.storage.frames import FrameType
from topics.storage.fs import TEMPORARY_SUFFIX, Fs, LockHandle, write_atomic
from topics.storage.recovery import Damage, Progress, Recovered, RecoveredShard, Verdict
from topics.storage.salvage import finish_repairs, repair
from topics.storage.wal import ControlBatch, ShardWriter, WalFiles

log = get_logger(__name__)

SPACE_LOOK_MS: Final = 500
"""How often the free space is looked at; `TOPICS_MIN_FREE_BYTES` is far more than can be written in between."""

MAX_REPAIRS: Final = 10_000
"""Damaged ranges that one salvage gives up before it stops: a log with more is not worth the name."""


class Store:
    """See the module. `files` and `writers` are filled by `open`."""

    def __init__(
        self, settings: Settings, *, fs: Fs, clock: Clock, offload: Offload, on_failure: Callable[[int], None]
    ) -> None:
        self.files = WalFiles()
        self.writers: list[ShardWriter] = []
        self.datadir = DataDir(str(settings.data_dir))
        self.progress = Progress()
        self.space_low = False
        self.snapshot_number = 0
        self.salvaged = False
        self._settings = settings
        self._fs = fs
        self._clock = clock
        self._offload = offload
        self._on_failure = on_failure
        self._lock: LockHandle | None = None
        self.boot_id = ""
        self.identity = ""
        """Of the data directory; with the boot id it tells a later recovery whether the page cache is still ours."""

    # -- opening ------------------------------------------------------------------------------------------------------

    def lock(self, holder: str) -> None:
        """Blocking: take the directory. Raises DataDirError, naming the holder."""
        self._lock = lock_data_dir(self._fs, self.datadir, holder)
        open_data_dir(self._fs, self.datadir.root)

    def unlock(self) -> None:
        """Give the directory up."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    async def open(self) -> Recovered:
        """Recover, log the verdict, make the writers ready (not running yet). The recovered topics.

        Raises `Damage` in strict mode, DataDirError, OSError, `UnknownFrameType`.
        """
        return await self._offload.run(Kind.CPU, self._open_blocking)

    def _open_blocking(self) -> Recovered:
        fs = self._fs
        self.boot_id, self.identity = fs.boot_id(), fs.identity(self.datadir.root)
        recovered = self._recover()
        shards = max((shard.shards for shard in recovered.shards), default=0) or self._settings.wal_shards
        if recovered.shards and shards != self._settings.wal_shards:
            log.warning("wal_shards_kept", configured=self._settings.wal_shards, used=shards)
        self.files = recovered.files
        self.snapshot_number = recovered.snapshot_number
        verdicts = recovery.decide(
            recovered,
            boot_id=self.boot_id,
            identity=self.identity,
            failed=self._failure_noted,
            shards=shards,
        )
        by_number = {shard.shard: shard for shard in recovered.shards}
        # What recovery relied on is made durable first: names may have been visible that no crash would have left.
        fs.sync_dir(self.datadir.meta_dir)
        openings = [
            self._open_shard(number, shards, by_number.get(number), verdicts.get(number, []))
            for number in range(shards)
        ]
        # Only when every shard has its file, so that a shard without one is known to be missing; and the note that a
        # shard has failed may stand in the others alone, so it comes first.
        for number in sorted(range(shards), key=lambda number: number not in recovered.failed):
            self.writers[number].write_opening(*openings[number])
        for number in range(shards):
            if self._failure_noted(number):
                fs.unlink(self._failure_path(number))
        return recovered

    def _recover(self) -> Recovered:
        for directory in self._shard_directories():
            finish_repairs(self._fs, directory)
        for _ in range(MAX_REPAIRS):
            try:
                return recovery.recover(self._fs, self.datadir, self.progress)
            except Damage as damage:
                if self._settings.recovery != "salvage":
                    raise
                repair(self._fs, damage)
                self.salvaged = True
                self.progress.done = self.progress.total = 0
        raise DataDirError(f"the WAL has more than {MAX_REPAIRS} damaged ranges")

    def _shard_directories(self) -> list[str]:
        wal = self.datadir.wal_dir
        nested = [f"{wal}/{name}" for name in self._fs.listdir(wal) if name.startswith("shard-")]
        return [wal, *nested]

    def _open_shard(
        self, number: int, shards: int, found: RecoveredShard | None, verdicts: list[Verdict]
    ) -> tuple[bytes, int]:
        """Cut the torn end and make a writer. Returns the frames of the verdict, and how many they are.

        Once they are synced a second crash decides the same (`crash.md` 2).
        """
        fs = self._fs
        directory = self.datadir.shard_dir(number, shards)
        fs.mkdir(directory)
        fs.sync_dir(self.datadir.wal_dir)
        fs.sync_dir(directory)
        for name in fs.listdir(directory):
            if name.endswith(".log" + TEMPORARY_SUFFIX):
                fs.unlink(f"{directory}/{name}")  # of a recovery that was cut short
        writer = ShardWriter(
            shard=number,
            directory=directory,
            fs=fs,
            clock=self._clock,
            offload=self._offload,
            files=self.files,
            file_bytes=self._settings.wal_file_bytes,
            figures=WalFigures(),
            on_failure=self._shard_failed,
        )
        if found is not None and found.file is not None:
            recovery.secure_end(fs, found, boot_id=self.boot_id)
        opening = self._opening_frames(found, verdicts, shards)
        if found is None or found.file is None:
            writer.create()
        elif found.ended:
            writer.create(found.frame_count)
        else:
            writer.resume(found.file, end=found.end, frame_count=found.frame_count, last_seqs=found.last_seqs)
        self.writers.append(writer)
        return opening, len(verdicts_frames(verdicts)) + 1

    def _opening_frames(self, found: RecoveredShard | None, verdicts: list[Verdict], shards: int) -> bytes:
        now = self._clock.now_ms()
        pieces = [
            frames.encode_control(kind, payload, topic_id=topic_id, ts=now)
            for kind, topic_id, payload in verdicts_frames(verdicts)
        ]
        truncated = list(found.truncated) if found is not None and found.truncated is not None else None
        payload: dict[str, Any] = {
            "boot": self.boot_id,
            "identity": self.identity,
            "shards": shards,
            "truncated": truncated,
            "heads": {verdict.topic_id: verdict.ceiling for verdict in verdicts},
        }
        pieces.append(frames.encode_control(FrameType.SHARD_OPEN, payload, ts=now))
        return b"".join(pieces)

    # -- running ------------------------------------------------------------------------------------------------------

    @property
    def shards(self) -> int:
        """How many WAL shards there are."""
        return len(self.writers)

    def shard_of(self, topic_id: int) -> int:
        """The shard of a topic."""
        return recovery.shard_of(topic_id, self.shards)

    def failed(self, shard: int) -> bool:
        """Whether a shard is read-only."""
        return self.writers[shard].failed is not None

    async def watch_space(self) -> None:
        """Keep `space_low` true to the disk; until cancelled."""
        root = self.datadir.root
        while True:
            try:
                free = await self._offload.run(Kind.FILES, partial(self._fs.free_bytes, root))
            except OSError as error:
                log.warning("free_space_unknown", error=str(error))
            else:
                low = free < self._settings.min_free_bytes
                if low != self.space_low:
                    self.space_low = low
                    log.warning("disk_nearly_full" if low else "disk_has_room_again", free_bytes=free)
            await trio.sleep(SPACE_LOOK_MS / 1000)

    def _shard_failed(self, shard: int) -> None:
        """Note the failure where the next recovery sees it: "the machine stayed up" is no excuse then (`crash.md`
        3)."""
        for other in self.writers:
            if other.failed is None:
                note = frames.encode_control(FrameType.SHARD_OPEN, {"failed": [shard]}, ts=self._clock.now_ms())
                try:
                    other.submit(ControlBatch(note, 1, wants_sync=True))
                except ApiError:
                    continue
        self._on_failure(shard)

    def note_failure_blocking(self, shard: int) -> None:
        """Blocking: leave the note in `meta/`."""
        note = msgspec.json.encode({"shard": shard, "boot": self.boot_id})
        write_atomic(self._fs, self._failure_path(shard), note)

    def _failure_path(self, shard: int) -> str:
        return f"{self.datadir.meta_dir}/failed-shard-{shard:02d}"

    def _failure_noted(self, shard: int) -> bool:
        return self._fs.exists(self._failure_path(shard))

    def next_snapshot_number(self) -> int:
        """A number for a new snapshot."""
        self.snapshot_number += 1
        return self.snapshot_number


def verdicts_frames(verdicts: list[Verdict]) -> list[tuple[FrameType, int, dict[str, Any]]]:
    """The frames that make verdicts durable: the hole, then the ceiling that is left."""
    out: list[tuple[FrameType, int, dict[str, Any]]] = []
    for verdict in verdicts:
        if verdict.hole is not None:
            first, last = verdict.hole
            out.append((FrameType.HOLE, verdict.topic_id, {"first": first, "last": last, "reason": "lost"}))
        out.append((FrameType.HEAD_WATERMARK, verdict.topic_id, {"ceiling": verdict.ceiling}))
    return out
