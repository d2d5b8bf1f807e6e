"""Verifies the files that the data directory has of segments in a bucket: pointers, and copies of `.idx`.

The objects are not read: `topics bucket verify` does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import Fs
from topics.storage.offline.findings import Finding
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES, decode_index
from topics.storage.segments.segment_pointer import BadPointer, decode_pointer
from topics.storage.segments.topic_segments import Segment

CHECKED_IN: Final = "topics bucket verify"


def pointed_firsts(fs: Fs, datadir: DataDir, topic_id: int, segments: Iterable[Segment]) -> set[int]:
    """Return the first seqs of the cold segments that have a pointer."""
    cold = [segment.first for segment in segments if segment.tier == "cold"]
    return {first for first in cold if fs.exists(datadir.segment_path(topic_id, first, "object"))}


def pointer_findings(fs: Fs, datadir: DataDir, segments: Iterable[Segment]) -> Iterator[Finding]:
    """Yield all problems of segments that have a pointer, and one note about where they are."""
    urls: set[str] = set()
    count = 0
    for segment in segments:
        count += 1
        path = datadir.segment_path(segment.topic_id, segment.first, "object")
        try:
            pointer = decode_pointer(fs.read(path))
        except BadPointer as error:
            yield Finding(
                path, None, f"{error}: a read makes it anew, if the newest base in the bucket has the segment", "damage"
            )
            continue
        urls.add(pointer.url)
        if pointer.salt != segment.salt:
            yield Finding(path, None, "is about another generation of the segment than the part knows", "damage")
        elif pointer.data.length < segment.data_bytes:
            problem = f"the object has {pointer.data.length} bytes, and {segment.data_bytes} were on disk"
            yield Finding(path, None, problem, "damage")
        yield from _index(fs, datadir, segment)
    if urls:
        where = ", ".join(sorted(urls))
        problem = f"{count} segments are in {where}, and are not read here: `{CHECKED_IN}` does that"
        yield Finding(datadir.topic_dir(segment.topic_id), None, problem, "note")


def _index(fs: Fs, datadir: DataDir, segment: Segment) -> Iterator[Finding]:
    """Check the copy of `.idx`. Without it the index is made anew from the object."""
    path = datadir.segment_path(segment.topic_id, segment.first, "idx.cold")
    if not fs.exists(path):
        yield Finding(path, None, "is missing: it is read in the bucket", "note")
        return
    blob = fs.read(path)
    if len(blob) != INDEX_ENTRY_BYTES * segment.n or decode_index(blob).bad:
        yield Finding(path, None, "does not verify: it is read in the bucket", "damage")
