"""The batches of frames that a shard writer takes, and the calls by which it reports how far each has got."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import trio

from topics.errors import ApiError
from topics.storage.wal.frames import NOTHING, UnsealedFrames
from topics.storage.wal.wal_files import LogPosition, WalFile


class WalBatch(Protocol):
    """Frames that a shard writer writes together: after a crash all of them are in the log, or none.

    The writer calls each of `on_written`, and then `on_synced` or `on_failed`, at most once, on the loop.
    """

    data: UnsealedFrames
    frames: int
    topic_id: int
    last_seq: int
    """The highest seq of the topic in these frames; 0 when they carry none."""
    wants_sync: bool
    wants_archive: bool
    """True if it counts only when a round in the bucket has it (`topics.storage.wal.round_waits`): then it has a
    place, `offset` and `end`, too."""

    def on_written(self, file: WalFile, offset: int) -> None:
        """write(2) has taken the batch at `offset` of `file`."""
        ...

    def on_synced(self) -> None:
        """A sync has covered the batch."""
        ...

    def on_failed(self, error: ApiError) -> None:
        """The batch may or may not be on disk; it will never be confirmed."""
        ...

    def on_delayed(self, error: ApiError) -> None:
        """The batch waits for room on the disk, for an unknown time, and stays in the queue. May be repeated."""
        ...


class ControlBatch:
    """A batch of control frames, for whose sync a task may wait. Publishes nothing to readers."""

    is_urgent = True
    """Return True if somebody may wait for a round that has it."""

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
        "wants_archive",
        "wants_sync",
    )

    def __init__(
        self,
        data: UnsealedFrames,
        frames_: int,
        *,
        topic_id: int = 0,
        wants_sync: bool = False,
        wants_archive: bool = False,
        apply: Callable[[ControlBatch], None] | None = None,
    ) -> None:
        self.data = data
        self.frames = frames_
        self.topic_id = topic_id
        self.last_seq = 0
        self.wants_sync = wants_sync
        self.wants_archive = wants_archive
        self.error: ApiError | None = None
        self.file_id = 0
        self.offset = 0
        self.end: LogPosition | None = None
        self._apply = apply
        """Applies the batch to the state in memory, in the step in which it is synced. Otherwise a snapshot could be
        taken with a synced position beyond the batch but a state without it, and would lose it for ever."""
        self._done = trio.Event()

    def on_written(self, file: WalFile, offset: int) -> None:
        self.file_id, self.offset = file.file_id, offset
        self.end = LogPosition(file.ordinal, offset + len(self.data))

    def on_synced(self) -> None:
        if self._apply is not None:
            self._apply(self)
        self._done.set()

    def on_failed(self, error: ApiError) -> None:
        self.error = error
        self._done.set()

    def on_delayed(self, error: ApiError) -> None:
        """Do nothing: a caller that waits is halfway through a change, and goes on waiting."""

    async def wait_synced(self) -> None:
        """Wait until a sync has covered the batch. Raises the shard's `ApiError` if it failed. Cancelling stops only
        the waiting."""
        await self._done.wait()
        if self.error is not None:
            raise self.error


class MaintenanceBatch(ControlBatch):
    """Control frames of a checkpoint or of other work on files, which may fail and is tried again.

    While the disk has no room they do not wait like other batches: they are refused, and leave the queue. A checkpoint
    that waited would keep its topics locked without telling anyone.
    """

    __slots__ = ()


class SyncRequest(MaintenanceBatch):
    """A batch without frames, which is synced when everything queued before it is.

    While the disk has no room it is synced at once if nothing before it has to be written, and refused otherwise.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(NOTHING, 0, wants_sync=True)


class LogMark(SyncRequest):
    """A place in the queue that is wanted to be known in the log. Nothing is written for it, and an idle shard is not
    synced for it. Without room for what is queued before it, it is refused."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        super().__init__()
        self.position: LogPosition | None = None
        """Behind everything that was queued before it, once it is synced."""

    def reach(self, position: LogPosition) -> None:
        """A sync has covered everything up to `position`."""
        self.position = position
        self.on_synced()


class LogCut(SyncRequest):
    """A place in the queue at which the log goes over to a new file. Once it is synced, the file that ends there is
    never written again. Without room for the new file it is refused."""

    __slots__ = ("ordinal",)

    def __init__(self) -> None:
        super().__init__()
        self.ordinal = 0
        """Ordinal of the file that begins here; older files are finished."""
