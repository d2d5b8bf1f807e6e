"""Leaves that are computed from records, for `verify`."""

from __future__ import annotations

from tests.simulation.disk import SimFs
from tests.simulation.world import ROOT
from topics.storage.offline.content_leaves import ContentLeaves
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.topic_segments import Segment


def test_no_memory_is_taken_for_the_slots_that_a_forged_part_says() -> None:
    tiers = SegmentTiers(DirectorySegmentStore(SimFs(), ROOT), None)
    content = ContentLeaves(tiers, 1, [Segment(1, 1, n=1 << 50)], [])
    assert content.leaves(1, 5) == b""
    assert not content.found
