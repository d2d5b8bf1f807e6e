"""Loads single records that are far apart from one another. `Loader.load` loads runs.

A record is taken from the payload cache, else from the log, else from its segment, without the columns of its span
(`topics.storage.segments.single_records`). Records that cannot be read like this (cold segments, copies, damage) are
loaded by `Loader.load`, one at a time. Nothing is added to the payload cache.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from topics.engine.loader import Loader
from topics.engine.topic import Topic
from topics.errors import ApiError
from topics.log.block import Block
from topics.log.frame_ranges import FrameRange, locate_raw
from topics.model import Performance
from topics.runtime.offload import Offload, Pool
from topics.runtime.turns import Turns
from topics.storage.cache.payload_cache import block_of_records, read_records
from topics.storage.files.fs import Fs
from topics.storage.segments.segment_format import decode_records
from topics.storage.segments.single_records import FrameWindow, read_frames
from topics.storage.segments.topic_segments import Segment
from topics.storage.store import Store
from topics.storage.wal.frames import StoredRecord

AT_ONCE: Final = 250
"""Records of one call to a worker thread, and of one turn."""


class ScatteredRecords:
    """Made once by the engine."""

    def __init__(self, loader: Loader, store: Store, *, fs: Fs, offload: Offload, turns: Turns) -> None:
        self._loader = loader
        self._store = store
        self._fs = fs
        self._offload = offload
        self._turns = turns

    async def load(self, topic: Topic, seqs: Iterable[int], perf: Performance) -> dict[int, Block]:
        """Return blocks that contain the records at these seqs, by seq. Records that have died, or are damaged, are
        left out. Raises `503 not_ready` if the disk does not answer."""
        found: dict[int, Block] = {}
        missing: list[int] = []
        for seq in sorted(seqs):
            block = topic.blocks.find(seq)
            if block is not None:
                found[seq] = block
            else:
                missing.append(seq)
        for at in range(0, len(missing), AT_ONCE):
            some = missing[at : at + AT_ONCE]
            await self._from_segments(topic, some, found)
            await self._from_log(topic, [seq for seq in some if seq not in found], found)
            for seq in some:
                if seq not in found:
                    blocks = await self._loader.load(topic, seq, seq, perf)
                    if blocks:
                        found[seq] = blocks[0]
        return found

    async def _from_segments(self, topic: Topic, seqs: Sequence[int], found: dict[int, Block]) -> None:
        """Read records of hot segments."""
        wanted: dict[Segment, array[int]] = {}
        for seq in seqs:
            span = topic.log.stored.at(seq)
            if span is not None and isinstance(span.segment, Segment) and span.segment.tier == "hot":
                wanted.setdefault(span.segment, array("Q")).append(seq)
        if not wanted:
            return
        read = partial(read_frames, self._store.tiers.hot, list(wanted.items()))
        try:
            windows = await self._offload.run(Pool.HOT_READ, read)
        except OSError:
            return  # `Loader.load` meets the same error, and says so
        await self._turns.take()
        for window in windows:
            _add(_decoded(window), found)

    async def _from_log(self, topic: Topic, seqs: Sequence[int], found: dict[int, Block]) -> None:
        """Read records that are in no segment yet."""
        wanted = [one for one in locate_raw(topic.log.index, seqs) if not one.derived]
        if not wanted:
            return
        try:
            records = await self._offload.run(Pool.HOT_READ, partial(self._read, wanted))
        except (OSError, ApiError):
            return
        await self._turns.take()
        _add(records, found)

    def _read(self, wanted: Sequence[FrameRange]) -> list[StoredRecord]:
        """In a worker thread."""
        records: list[StoredRecord] = []
        for one in wanted:
            file = self._store.files.get(one.file)
            try:
                some, _ = read_records(self._fs, file.path, one, file.head.salt)
            except FileNotFoundError:
                continue
            records += some
        return records


def _decoded(window: FrameWindow) -> list[StoredRecord]:
    """Return the records of a window that verify."""
    segment, offset = window.segment, window.offset
    records, _ = decode_records(
        window.data, window.starts, window.frame_lens, window.seqs, salt=segment.read_salt, base=offset
    )
    return records


def _add(records: Sequence[StoredRecord], found: dict[int, Block]) -> None:
    for record in records:
        found[record.seq] = block_of_records([record])
