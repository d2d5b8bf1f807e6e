"""Finds the files of a topic whose manifest cannot be read. Such a topic begins with its part in the snapshot. Only the
manifest had the later changes of its files. Most of these changes can be recognised from the files:

- A segment has gone cold: its file is in the cold directory and not in the hot one, or a pointer to the bucket is.
- A segment has come home from the bucket: its file is in the hot directory, and there is no pointer.
- Segments were merged into the first of them: the others have no files, and its `.idx` is as long as all of them.
- A segment that is active in the part was sealed, then rewritten or moved. It takes no more records, and is not cut to
  the length that the part knows.

Files that no longer exist do not show which of their records were deleted by tag; the log has a mark for these records
(`topic_segments.EMPTIED`). All other changes are replayed from the log (`recovered_state.ColumnLoader`).
"""

from __future__ import annotations

from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES, encode_file_header
from topics.storage.recovery.recovered_state import RecoveredTopic
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_scan import DataLayout, layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment


def find_files(tiers: SegmentTiers, topic: RecoveredTopic) -> None:
    """Find the files of a topic that was just loaded from a part, and correct its segments. If the disk or the cold
    store does not answer, the start continues with the segments of the part."""
    try:
        for segment in topic.segments:
            cold = tiers.cold
            if segment.tier == "hot" and cold is not None and not _is_there(tiers.hot, segment):
                segment.tier = "cold" if _is_there(cold, segment) else "hot"
            elif segment.tier == "cold" and cold is not None and tiers.objects is not None:
                has_come_home = not _is_there(cold, segment) and _is_there(tiers.hot, segment)
                segment.tier = "hot" if has_come_home else "cold"
        layouts = {segment: _layout(tiers, segment) for segment in topic.segments if segment.tier != "gone"}
    except OSError:
        return
    for segment, layout in layouts.items():
        if layout is None and (segment.tier == "hot" or tiers.cold is not None):
            topic.emptied.add(segment)
        elif layout is not None and _is_another(layout, segment):
            topic.rewritten.add(segment)
        else:
            segment.sealed = segment.sealed or segment.tier == "cold"
            continue
        segment.sealed = True
    into = None
    for span in topic.log.stored.all():
        own = span.segment
        assert isinstance(own, Segment)
        if own in topic.rewritten:
            into = own
        elif own not in topic.emptied or into is None or into.end != own.first or not _is_merged(tiers, into, own):
            into = None
        else:
            merged = _merged(tiers, into, own, layouts[into])
            layouts[merged] = layouts[into]
            topic.log.stored.replace(into.first, own.end - 1, merged)
            topic.segments = [merged if one is into else one for one in topic.segments if one is not own]
            topic.rewritten.add(merged)
            into = merged


def _is_there(store: SegmentStore, segment: Segment) -> bool:
    return store.exists(segment.topic_id, segment_name(segment.first, "data"))


def _layout(tiers: SegmentTiers, segment: Segment) -> DataLayout | None:
    """Return how the segment's `.data` begins; None if it is missing. Raises OSError."""
    try:
        if segment.tier == "cold" and tiers.objects is not None:  # no start waits for a bucket
            head = encode_file_header(tiers.objects.pointer(segment.topic_id, segment.first).salt, segment.first)
        else:
            name = segment_name(segment.first, "data")
            head = tiers.of(segment).read_range(segment.topic_id, name, 0, FILE_HEADER_BYTES)
    except FileNotFoundError:
        return None
    return layout_of(head, segment.first, segment.salt)


def _is_another(layout: DataLayout | None, segment: Segment) -> bool:
    """Return True if `.data` is not the file that the part names: a rewritten or merged file gets a new salt."""
    return layout is not None and layout.header is not None and layout.salt != segment.salt


def _is_merged(tiers: SegmentTiers, into: Segment, segment: Segment) -> bool:
    """Return True if the `.idx` of `into` covers `segment` too."""
    needed = INDEX_ENTRY_BYTES * (segment.end - into.first)
    if into.tier == "cold" and _length(tiers.hot, into, "idx.cold") >= needed:
        return True
    return _length(tiers.of(into), into, "idx") >= needed


def _merged(tiers: SegmentTiers, into: Segment, segment: Segment, layout: DataLayout | None) -> Segment:
    """Return the two segments as one, in the file of `into`, which has this layout."""
    return Segment(
        into.topic_id,
        into.first,
        n=segment.end - into.first,
        data_bytes=_length(tiers.of(into), into, "data"),
        frames=into.frames + segment.frames,
        opened_ms=into.opened_ms,
        sealed=True,
        tier=into.tier,
        salt=layout.salt if layout is not None else None,
    )


def _length(store: SegmentStore, segment: Segment, kind: str) -> int:
    """Return the length of one of its files; 0 if it is missing."""
    try:
        return store.length(segment.topic_id, segment_name(segment.first, kind))
    except OSError:
        return 0
