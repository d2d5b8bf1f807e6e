"""Fillers without a verdict: for damaged ranges that were too short for one (`salvage`, `docs/storage.md` 7).

A filler is exactly as long as the range that it replaces. If the verdict (a hole for each topic) does not fit into it,
the filler is *bare*: it only says that it is a filler, and every replay comes to the same verdict by itself:

- If a topic has a later record, or the file a later FileEnd, this tells how many seqs are missing.
- For any other topic of the shard, replay assumes that the range held as many records as it has room for. They become a
  hole at the end of the replay.
- An `ephemeral` topic has no seqs in the log. The range may have held its reserve of seqs.

So salvage writes nothing besides the filler, and the file changes from damaged to repaired in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topics.storage.recovery.recovered_state import BareFiller, RecoveredTopic
from topics.storage.wal import frames
from topics.storage.wal.frame_search import MIN_COPY_BYTES

MIN_APPEND_BYTES: Final = frames.HEADER_BYTES + 4 + 1 + frames.CHECKSUM_BYTES
"""The length of the shortest Append: it bounds how many records a range can have held."""


def most_seqs(size: int, *, routed: bool) -> int:
    """Return how many seqs of one topic a range of `size` bytes can have held, at least 1. `routed`: copies may be
    among them, of which one frame holds many."""
    return max(size // (MIN_COPY_BYTES if routed else MIN_APPEND_BYTES), 1)


def outstanding(fillers: Iterable[BareFiller], topics: Mapping[int, RecoveredTopic]) -> dict[int, int]:
    """Return, by topic id, how many seqs behind the topic's head may have been in these ranges. A topic whose head has
    moved since is left out: its later frames have shown how many seqs were missing."""
    counts: dict[int, int] = {}
    for filler in fillers:
        size = filler.end.offset - filler.place.offset
        for topic_id, head in filler.heads.items():
            topic = topics.get(topic_id)
            if topic is not None and topic.log.head_seq == head:
                counts[topic_id] = counts.get(topic_id, 0) + most_seqs(size, routed=topic.stage is None)
    return counts
