"""`GroupWrites`: whether a group is written in a worker thread or on the loop itself.

Theory of operation
-------------------
A write of a few hundred bytes into the page cache takes 10 us, and the way to a worker thread and back 250. Such a
write seldom waits for the disk, but when it does, the whole daemon waits with it. So a group is written on the loop
only if nothing is known that could hold the write up:

    small        at most `LOOP_BYTES`, and in room that is allocated already
    for a write  somebody waits for the write alone; a group that is only synced would save nothing
    undisturbed  no call is under way in a worker thread that may hold up a write to the same file system: a sync, an
                 allocation, a checkpoint (`Offload.is_disk_free`). Calls begin on the loop, so none begins meanwhile
    not paused   no write on the loop was slow lately

If a sync is due as well, it follows in a thread, as always.

A write on the loop that took longer than `SLOW_NS`, and during which the thread waited, pauses all writes on the loop,
because its cause (a throttled writer, a journal that is full, a slow device) may last. The pause takes
`FIRST_PAUSE_MS`. It takes twice as long as the last pause if fewer than `CALM_WRITES` writes were fast since. From the
`MOST_SLOW`th of such a series on, the file system is of the kind that holds writes up, and its writes stay in threads.
One write an hour is tried on the loop, in case the cause was another one (a thread of the daemon that kept the
interpreter). A thread that has lost its core to others did not wait: on a machine with more work than cores that
happens in any statement, and a worker thread would only have to share the cores with one more.

What this cannot do is foresee: the first write that is held up holds up the loop for as long as that takes, and a write
that never returns holds it for ever (`docs/design/commit_path.md`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import trio

from topics.runtime.clock import Clock
from topics.runtime.offload import Offload, Pool
from topics.storage.wal.frames import UnsealedFrames
from topics.storage.wal.shard_log import ShardLog
from topics.storage.wal.wal_files import WalFile
from topics.telemetry.logs import get_logger

log = get_logger(__name__)

LOOP_BYTES: Final = 64 << 10
"""Bytes of a group that may be written on the loop: with their checksums at most 0.2 ms."""

SLOW_NS: Final = 3_000_000
"""A write on the loop that takes longer (ns) was held up: a few hundred times what it takes otherwise."""

FIRST_PAUSE_MS: Final = 1000
CALM_WRITES: Final = 1000
MOST_SLOW: Final = 8
LONGEST_PAUSE_MS: Final = 3_600_000
"""How long writes stay in threads after a slow one (ms), how many fast writes on the loop end a series of slow ones,
how many of a series are so many that the pauses are of the longest kind, and how long that is. So the loop is held up
in fewer than one of `CALM_WRITES` writes, or `MOST_SLOW` times within two minutes and then once an hour."""


class GroupWrites:
    """Writes the groups of all shards of one data directory, which are on one file system. Made by the store."""

    def __init__(self, clock: Clock, offload: Offload) -> None:
        self._clock = clock
        self._offload = offload
        self._paused_until_ms = 0
        self._slow = 0
        """Slow writes in the current series."""
        self._fast = 0
        """Fast writes on the loop since the last slow one."""

    async def write(
        self,
        shard: ShardLog,
        file: WalFile,
        pieces: Sequence[UnsealedFrames],
        start: int,
        sync: bool,
        written: Callable[[], None] | None,
    ) -> int:
        """Do `ShardLog.write`, and return or raise what it does. `written` is called on the loop between write and
        sync, for those who wait for the write alone; None with a sync: there are none.

        A write on the loop is over without a checkpoint. A write in a thread, and a sync, that have begun are waited
        for even if the task is cancelled, and so is the sync behind a write on the loop."""
        size = sum(map(len, pieces))
        is_small = size <= LOOP_BYTES and shard.has_room(start + size)
        if (sync and written is None) or not is_small or not self._is_loop_allowed():
            after_write = None if written is None else partial(self._offload.post, written)
            call = partial(shard.write, file, pieces, start, sync, after_write)
            return await self._offload.run(Pool.WAL, call, holds_disk=sync)
        self._write_here(shard, file, pieces, start)
        sync_ns = 0
        if sync:
            assert written is not None
            written()
            # The writer has to learn what is in the file.
            with trio.CancelScope(shield=True):
                sync_ns = await self._offload.run(Pool.WAL, shard.sync, holds_disk=True)
        return sync_ns

    def _write_here(self, shard: ShardLog, file: WalFile, pieces: Sequence[UnsealedFrames], start: int) -> None:
        waits, began_ns = self._clock.thread_waits(), self._clock.perf_ns()
        try:
            shard.write(file, pieces, start, False, None)
        finally:
            taken_ns = self._clock.perf_ns() - began_ns
            self._fast += 1
            if taken_ns > SLOW_NS and self._clock.thread_waits() > waits:
                self._pause(taken_ns)

    def _is_loop_allowed(self) -> bool:
        if self._slow and self._clock.monotonic_ms() < self._paused_until_ms:
            return False
        return self._offload.is_disk_free()

    def _pause(self, taken_ns: int) -> None:
        """Keep writes off the loop for a while, because one was slow."""
        if self._fast > CALM_WRITES:
            self._slow = 0
        self._slow += 1
        self._fast = 0
        pause_ms = FIRST_PAUSE_MS << (self._slow - 1) if self._slow < MOST_SLOW else LONGEST_PAUSE_MS
        self._paused_until_ms = self._clock.monotonic_ms() + pause_ms
        log.info(
            "wal_loop_writes_paused",
            took_ms=round(taken_ns / 1e6, 1),
            pause_ms=pause_ms,
            consequence="groups are written in worker threads meanwhile",
        )
