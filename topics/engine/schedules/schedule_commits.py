"""Definitions of schedules as frames of shard 0, one after another (`docs/design/schedules.md`).

A definition belongs to no topic, so it is no commit of one: it is applied in the step in which it is synced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from topics.config import Settings
from topics.engine.commits import Commits
from topics.engine.registry import Registry
from topics.errors import ApiError, read_only
from topics.model import Performance
from topics.runtime.clock import Clock
from topics.schedules.schedule_events import Definition, ScheduleDeleted
from topics.storage.snapshots.snapshot import dump_rows
from topics.storage.store import Store
from topics.storage.wal.batches import ControlBatch
from topics.storage.wal.frames import FrameType, UnsealedFrames, encode_control
from topics.storage.wal.shard_writer import ShardWriter
from topics.storage.wal.stall import LONGEST_RETRY_MS, TELL_AFTER_MS

HOME: Final = 0
"""The shard of the definitions. There is always one, however many there are."""


class ScheduleCommits:
    """Writes definitions. Made once by the engine."""

    def __init__(self, settings: Settings, clock: Clock, registry: Registry, store: Store, commits: Commits) -> None:
        self._settings = settings
        self._clock = clock
        self._registry = registry
        self._store = store
        self._commits = commits
        self._changing: dict[str, trio.Event] = {}
        """Changes on their way, by the name of their schedule."""

    def is_changing(self, name: str) -> bool:
        """Return True if a change of this schedule is on its way."""
        return name in self._changing

    async def current(self, name: str, decided: Callable[[], trio.Event | None]) -> None:
        """Return when a decision about a schedule can be made: there is room in the queue, and neither a change nor a
        firing that `decided` returns is on its way. There is no await between that and the return.

        Raises 429 if the queue stays full, and 503. Cancelling leaves nothing behind.
        """
        while True:
            writer = self._writer()
            if writer.queue.is_full:
                await self._commits.admit_to(writer, self._settings.admission_ms)
                continue
            in_the_way = self._changing.get(name) or decided()
            if in_the_way is None:
                return
            await self._commits.wait_for(in_the_way)

    def _writer(self) -> ShardWriter:
        writer = self._store.writers[HOME]
        if writer.failed is not None:
            raise writer.failed
        self._commits.check_unblocked(writer)
        return writer

    async def commit(
        self,
        event: Definition | ScheduleDeleted,
        perf: Performance,
        *,
        applied: Callable[[], None],
        ended: Callable[[], None],
    ) -> None:
        """Log an event and apply it. Returns when it is synced. `applied` is called in that step, and `ended` in any
        case, behind it. Raises 503. Cancelling stops only the waiting."""
        writer = self._writer()
        done = self._changing[event.schedule] = trio.Event()
        began = self._clock.perf_ns()

        def apply(_batch: ControlBatch) -> None:
            self._registry.schedules.apply(event)
            self._registry.schedules.settle()
            if isinstance(event, Definition):  # so that no checkpoint has to encode many of them in one step
                self._registry.schedules.get(event.schedule).encoded = dump_rows(event.to_wire())
            applied()

        def end() -> None:
            if self._changing.get(event.schedule) is done:
                del self._changing[event.schedule]
            done.set()
            ended()

        data = encode_control(FrameType.SCHEDULE, event.to_wire(), ts=self._registry.now_ms())
        target = self._registry.topics.get(event.topic) if isinstance(event, Definition) else None
        batch = _DefinitionBatch(data, apply, end, wants_archive=target is not None and target.is_remote)
        try:
            writer.submit(batch)
        except ApiError:
            end()
            raise
        await self._synced(batch, writer)
        perf.wal_append_ms = (self._clock.perf_ns() - began) / 1e6

    async def _synced(self, batch: ControlBatch, writer: ShardWriter) -> None:
        patience_ms = TELL_AFTER_MS
        while True:
            with trio.move_on_after(patience_ms / 1000):
                await batch.wait_synced()
                return
            try:
                self._commits.check_unblocked(writer)
            except ApiError as error:
                raise read_only(f"{error.message}. The change waits, and may still be carried out then") from error
            patience_ms = LONGEST_RETRY_MS


class _DefinitionBatch(ControlBatch):
    """A batch that tells of its end."""

    __slots__ = ("_end",)

    def __init__(
        self,
        data: UnsealedFrames,
        apply: Callable[[ControlBatch], None],
        end: Callable[[], None],
        *,
        wants_archive: bool,
    ) -> None:
        super().__init__(data, 1, wants_sync=True, wants_archive=wants_archive, apply=apply)
        self._end = end

    def on_synced(self) -> None:
        super().on_synced()
        self._end()

    def on_failed(self, error: ApiError) -> None:
        super().on_failed(error)
        self._end()
