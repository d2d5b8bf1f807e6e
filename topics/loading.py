"""Records that are not in memory: read back from their frames, verified, put into the cache.

Where a record's frame lies is known to `topics.log`, how one is read to `topics.storage.payloads`; that the topic may
change while the disk is waited for is dealt with here.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from topics.log.block import Block
from topics.logs import get_logger
from topics.offload import Kind, Offload
from topics.registry import Registry
from topics.storage.fs import Fs
from topics.storage.payloads import block_of_records, read_records
from topics.storage.store import Store
from topics.topic import Topic

log = get_logger(__name__)

LOAD_RECORDS: Final = 1000
"""Records one read from disk brings in at most."""


class Loader:
    """See the module."""

    def __init__(self, registry: Registry, store: Store, *, fs: Fs, offload: Offload) -> None:
        self._registry = registry
        self._store = store
        self._fs = fs
        self._offload = offload

    async def load(self, topic: Topic, first: int, last: int) -> Block | None:
        """Read live records from disk into a block that begins at `first`.

        The caller looks at the state again, as it may have changed: then there may be no block (None), and what is live
        now of the block's range is all there.
        Records whose bytes do not verify become `corrupt` holes, never data.
        """
        following = topic.blocks.next_first(first)
        last = min(last, first + LOAD_RECORDS - 1, following - 1 if following is not None else last)
        frame_range = topic.log.locate(first, last)[0]
        path = self._store.files.get(frame_range.file).path
        read = partial(read_records, self._fs, path, frame_range)
        try:
            records, damaged = await self._offload.run(Kind.HOT_READ, read)
        except FileNotFoundError:
            # Dropped while we were about to read it; if the index still points there, the file is missing.
            records, damaged = [], list(frame_range.seqs)
        for seq in damaged:
            if topic.log.is_live(seq) and topic.log.locate(seq, seq)[0].file == frame_range.file:
                log.error("record_damaged", topic=topic.name, seq=seq, file=path)
                topic.log.add_hole(seq, seq, "corrupt")
        if damaged:
            self._registry.account(topic)
        if not records or records[0].seq != first or topic.deleted:
            return None
        block = block_of_records(records)
        if topic.log.is_live(first):
            topic.blocks.insert(block)
        return block
