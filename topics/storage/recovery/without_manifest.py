"""A topic whose manifest cannot be read begins with its part in the snapshot. What was done to its files since then
only the manifest knew; most of it the files tell.

- A segment has gone cold: its file is in the cold directory and not in the hot one.
- Segments were merged into the first of them: the others have no files, and its `.idx` is as long as all of them.
- A segment was sealed that the part knows as active, and rewritten or moved then. It takes no more records, and is not
  cut to the length that the part knows.

What was deleted by tag out of a file that is gone nobody could tell; of that the log has a mark
(`topic_segments.EMPTIED`). All else is replayed as the log says it (`recovered_state.Columns`).
"""

from __future__ import annotations

from topics.storage.files.datadir import segment_name
from topics.storage.files.file_header import FILE_HEADER_BYTES
from topics.storage.recovery.recovered_state import RecoveredTopic
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.segment_reader import Tiers
from topics.storage.segments.segment_scan import Layout, layout_of
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment


def find_files(tiers: Tiers, topic: RecoveredTopic) -> None:
    """Have the segments of a topic, which has just been loaded from a part, be where their files are. Where the disk or
    the cold store does not answer, the start goes on with what it knows."""
    try:
        for segment in topic.segments:
            cold = tiers.cold
            if segment.tier == "hot" and cold is not None and not _is_there(tiers.hot, segment):
                segment.tier = "cold" if _is_there(cold, segment) else "hot"
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


def _layout(tiers: Tiers, segment: Segment) -> Layout | None:
    """How the segment's `.data` begins; None if it is missing. Raises OSError."""
    try:
        head = tiers.of(segment).read_range(segment.topic_id, segment_name(segment.first, "data"), 0, FILE_HEADER_BYTES)
    except FileNotFoundError:
        return None
    return layout_of(head, segment.first, segment.salt)


def _is_another(layout: Layout | None, segment: Segment) -> bool:
    """Whether `.data` is another file than the part means: a file that is rewritten or merged gets a new salt."""
    return layout is not None and layout.header is not None and layout.salt != segment.salt


def _is_merged(tiers: Tiers, into: Segment, segment: Segment) -> bool:
    """Whether the `.idx` of `into` is about `segment` too."""
    needed = INDEX_ENTRY_BYTES * (segment.end - into.first)
    if into.tier == "cold" and _length(tiers.hot, into, "idx.cold") >= needed:
        return True
    return _length(tiers.of(into), into, "idx") >= needed


def _merged(tiers: Tiers, into: Segment, segment: Segment, layout: Layout | None) -> Segment:
    """The two as one, in the file of `into`, which is laid out like that."""
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
    """Of one of its files; 0 if it is missing."""
    try:
        return store.length(segment.topic_id, segment_name(segment.first, kind))
    except OSError:
        return 0
