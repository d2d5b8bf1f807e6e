"""Fillers without a verdict: what a damaged range held that was too short for one (`salvage`, `docs/storage.md` 7).

A filler is exactly as long as the range that it stands for, and the verdict (a hole for each topic) may be longer than
that. Such a filler says nothing but that it is one, and every replay comes to the same verdict by itself:

- A topic with a later record, or a later FileEnd of the same file, is told by that how many seqs are missing.
- Of any other topic of the shard the range may have held as many records as there is room for. They are a hole at the
  end of the replay.
- An `ephemeral` topic has no seqs in the log. What the range may have held is the reserve that they are taken from.

So nothing beside the filler has to be written, and the file changes from damaged to repaired in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from topics.storage.recovery.recovered_state import BareFiller, RecoveredTopic
from topics.storage.wal import frames
from topics.storage.wal.frame_search import MIN_COPY_BYTES

MIN_APPEND_BYTES: Final = frames.HEADER_BYTES + 4 + 1 + frames.CHECKSUM_BYTES
"""The smallest Append there is: it bounds how many records a range can have held."""


def most_seqs(size: int, *, routed: bool) -> int:
    """How many seqs of one topic a range of `size` bytes can have held, at least 1. `routed`: copies may be among them,
    of which one frame holds many."""
    return max(size // (MIN_COPY_BYTES if routed else MIN_APPEND_BYTES), 1)


def outstanding(fillers: Iterable[BareFiller], topics: Mapping[int, RecoveredTopic]) -> dict[int, int]:
    """By topic id, how many seqs behind its head were in these ranges for all that is known. A topic whose head has
    moved since is left out: what has moved it has told how many were missing."""
    counts: dict[int, int] = {}
    for filler in fillers:
        size = filler.end.offset - filler.place.offset
        for topic_id, head in filler.heads.items():
            topic = topics.get(topic_id)
            if topic is not None and topic.log.head_seq == head:
                counts[topic_id] = counts.get(topic_id, 0) + most_seqs(size, routed=topic.stage is None)
    return counts
