"""What a shard writer is given: batches of frames, and what they hear of their writing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from topics.errors import ApiError
from topics.storage.wal.frames import NOTHING, Unsealed
from topics.storage.wal.wal_files import Position, WalFile


class Batch(Protocol):
    """What a shard writer writes: frames that stand or fall together."""

    data: Unsealed
    frames: int
    topic_id: int
    last_seq: int
    """The highest seq of the topic in these frames; 0 when they carry none."""
    wants_sync: bool

    def on_written(self, file: WalFile, offset: int) -> None:
        """write(2) has taken the batch at `offset` of `file`."""
        ...

    def on_synced(self) -> None:
        """A sync has covered it."""
        ...

    def on_failed(self, error: ApiError) -> None:
        """It may or may not be on disk; it will never be confirmed."""
        ...

    def on_delayed(self, error: ApiError) -> None:
        """It waits for room on the disk, nobody knows how long, and stays in the queue. May be repeated."""
        ...


class ControlBatch:
    """A batch of control frames that somebody may wait for. Nothing is published by it."""

    __slots__ = (
        "_apply",
        "_done",
        "data",
        "end",
        "error",
        "file_id",
        "frames",
        "last_seq",
        "offset",
        "topic_id",
        "wants_sync",
    )

    def __init__(
        self,
        data: Unsealed,
        frames_: int,
        *,
        topic_id: int = 0,
        wants_sync: bool = False,
        apply: Callable[[ControlBatch], None] | None = None,
    ) -> None:
        self.data = data
        self.frames = frames_
        self.topic_id = topic_id
        self.last_seq = 0
        self.wants_sync = wants_sync
        self.error: ApiError | None = None
        self.file_id = 0
        self.offset = 0
        self.end: Position | None = None
        self._apply = apply
        """What the batch means for the state in memory. Done in the step in which it is synced, so that nobody ever
        sees a synced position beyond it and the state without it (a snapshot taken then would lose it for ever)."""
        self._done = trio.Event()

    def on_written(self, file: WalFile, offset: int) -> None:
        self.file_id, self.offset = file.file_id, offset
        self.end = Position(file.ordinal, offset + len(self.data))

    def on_synced(self) -> None:
        if self._apply is not None:
            self._apply(self)
        self._done.set()

    def on_failed(self, error: ApiError) -> None:
        self.error = error
        self._done.set()

    def on_delayed(self, error: ApiError) -> None:
        """What waits for it is half way through a change, and goes on waiting."""

    async def wait_synced(self) -> None:
        """Wait until a sync has covered the batch. Raises the shard's `ApiError` if it failed. Cancelling stops only
        the waiting."""
        await self._done.wait()
        if self.error is not None:
            raise self.error


class SyncRequest(ControlBatch):
    """Nothing is written for it; synced when what was queued before it is.

    While nothing can be written for want of room on the disk, it does not wait as other batches do: it is answered if
    nothing before it has to be written, and refused otherwise. A checkpoint that waited would keep the files of its
    topics locked, and nobody would be told.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NOTHING, 0, wants_sync=True)


class Cut(SyncRequest):
    """A place in the queue at which the log goes over to a new file. When it is synced, the file that ends there will
    never be written again. Without room for the new file it is refused."""

    __slots__ = ("ordinal",)

    def __init__(self) -> None:
        super().__init__()
        self.ordinal = 0
        """Of the file that begins here; older ones are finished."""
