"""Cuts of the log for the bucket (`docs/design/bucket.md` section 3), and what counts when the bucket has one: seqs of
topics of every class (`bucket_seq`), and batches that wait for a round (`RoundWaits`).

In one step of the loop a mark is put into the queue of every shard, and the topics are asked how far their seqs go.
When all marks are synced, their places are the cut.

Group commit: clients that were answered by one cut send their next appends at nearly the same time. A cut for the first
of these would leave the others to the next cut, so each of them would wait for two rounds. So a cut waits until as many
batches wait as the last one has released, but at most `GATHER_SHARE` of the time that the last one took. A lone client
waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, Protocol

import trio

from topics.errors import ApiError
from topics.storage.store import Store
from topics.storage.wal.batches import LogMark
from topics.storage.wal.wal_files import LogPosition

GATHER_SHARE: Final = 0.5
LONGEST_GATHER_S: Final = 0.02
"""How long a cut waits for further batches at most: this share of the time that the last cut took, and this (s)."""


class LogSource(Protocol):
    """What the archive has to know of the topics (the registry)."""

    next_topic_id: int

    @property
    def topics(self) -> Mapping[str, Any]:
        """The topics, by name."""
        ...

    def copied_files(self) -> set[int]:
        """Ids of the files that copies in other topics are made of."""
        ...

    def begin_cuts(self) -> None:
        """From here on note which topics have seqs that are not in the bucket."""
        ...

    def begin_cut(self) -> None:
        """Note up to which seqs what is queued by now goes. Called in the step of a cut."""
        ...

    def cut_archived(self, missing: Collection[int]) -> None:
        """The bucket has everything that `begin_cut` has noted, but for these shards."""
        ...


class LogCuts:
    """The cuts of one archive: one at a time. `wake` is called when a round is wanted at once."""

    def __init__(self, store: Store, source: LogSource, wake: Callable[[], None]) -> None:
        self.is_wanted = False
        """True if something waits for a round, since the last cut was taken."""
        self.is_archived = True
        """False from when a cut is taken until the bucket has it: the archive sets it to True."""
        self.is_blank = False
        """True if there was no topic at the start."""
        self._store = store
        self._source = source
        self._wake = wake
        self._bytes_at_cut = 0
        self._missing: set[int] = set()
        """Shards of which the last cut does not have all that was queued."""
        self._wanted_at = self._taken_at = 0.0
        """When a round was wanted first since the last cut, and when that was taken, by the clock of the loop."""
        self._took_s = 0.0
        """How long the last cut took, until the bucket had it (s)."""
        self._released = 0
        """How many batches waited for the last cut."""

    def begin(self) -> None:
        """Note from here on what the bucket lacks."""
        self.is_blank = not self._source.topics
        self._source.begin_cuts()
        self._store.round_waits.wanted = self._want

    @property
    def new_bytes(self) -> int:
        """Bytes that were written since the last cut, about."""
        return sum(writer.figures.bytes_written for writer in self._store.writers) - self._bytes_at_cut

    @property
    def gathered_at(self) -> float:
        """When a cut that is wanted may be taken, by the clock of the loop."""
        if self._store.round_waits.count >= self._released:
            return self._wanted_at
        return self._wanted_at + min(GATHER_SHARE * self._took_s, LONGEST_GATHER_S)

    def _want(self) -> None:
        if not self.is_wanted:
            self._wanted_at = trio.current_time()
        self.is_wanted = True
        self._wake()

    def release(self, positions: Sequence[LogPosition]) -> None:
        """Tell what waits for the last cut, if the bucket has that. `positions` are where it ends."""
        if self.is_archived:
            self._source.cut_archived(self._missing)
            self._released = self._store.round_waits.reach(positions)
            self._took_s = trio.current_time() - self._taken_at

    async def take(self) -> list[LogPosition]:
        """Return a place in each shard behind everything queued by now, when it is synced. A failed shard, and one that
        waits for room, stays where it is synced now."""
        self.is_wanted = self.is_archived = False
        self._taken_at = trio.current_time()
        writers = self._store.writers
        self._bytes_at_cut = sum(writer.figures.bytes_written for writer in writers)
        marks: list[LogMark | None] = []
        ends = [writer.synced_position()[0] for writer in writers]
        self._missing = set(range(len(writers)))
        self._source.begin_cut()
        for writer in writers:
            try:
                marks.append(writer.mark())
            except ApiError:  # failed, or stopped
                marks.append(None)
        for shard, mark in enumerate(marks):
            if mark is not None:
                try:
                    await mark.wait_synced()
                except ApiError:
                    continue
                assert mark.position is not None
                ends[shard] = mark.position
                self._missing.discard(shard)
        return ends
