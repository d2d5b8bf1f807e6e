"""Removes what an interrupted checkpoint, rewrite, merge, relocation or removal has left behind (`docs/spec/crash.md`
10 and 12): a topic's part says which files belong to it, all others are removed.

Blocking. Hot files are removed before the daemon is ready, cold ones after that, because the cold store may not answer
(`cold_removal`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from topics.evidence.topic_tree import TopicTree
from topics.storage.evidence.leaf_writer import cut_files
from topics.storage.files.datadir import DataDir, manifest_name, parse_topic_name, segment_name
from topics.storage.files.fs import Fs, join
from topics.storage.recovery.substitute_snapshot import DAMAGED_SUFFIX
from topics.storage.segments.index_format import INDEX_ENTRY_BYTES
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.manifests import newest_generation
from topics.telemetry.logs import get_logger

log = get_logger(__name__)


def tidy_topic(
    fs: Fs, datadir: DataDir, topic_id: int, segments: Sequence[Segment], tree: TopicTree | None = None
) -> None:
    """Remove hot files that belong to no segment of the topic's part, nor have leaves of its `tree` that no other file
    has, and cut files to the length that the part counts.

    Does not ask the cold store: the hot `.data` of a segment that is cold stays until its cold copy has been seen
    (`tidy_cold`).
    """
    directory = datadir.topic_dir(topic_id)
    names = fs.listdir(directory)
    wanted = {manifest_name(newest_generation(names) or 0)}
    for segment in segments:
        if segment.tier == "gone":
            continue
        kinds = ("data", "idx", "tags", "del") if segment.tier == "hot" else ("data", "idx.cold", "tags.cold", "object")
        wanted.update(segment_name(segment.first, kind) for kind in kinds)
    if tree is not None:
        wanted.update(cut_files(fs, directory, names, tree))
    removed = False
    for name in names:
        if name not in wanted:
            fs.unlink(join(directory, name))
            removed = True
    if removed:
        fs.sync_dir(directory)
    for segment in segments:
        if not segment.sealed:
            _cut(fs, datadir.segment_path(topic_id, segment.first, "data"), segment.data_bytes)
            _cut(fs, datadir.segment_path(topic_id, segment.first, "idx"), INDEX_ENTRY_BYTES * segment.n)


def _cut(fs: Fs, path: str, length: int) -> None:
    if not fs.exists(path):
        return
    with fs.open(path) as handle:
        if handle.size() > length:
            handle.truncate(length)
            handle.fdatasync()


def tidy_cold(tiers: SegmentTiers, topic_id: int, segments: Sequence[Segment]) -> list[str]:
    """Remove cold files that belong to no segment of the topic's part. Return hot `.data` files that may be removed,
    because their cold copies, which count, exist. Raises OSError."""
    assert tiers.cold is not None
    wanted = {"topic.cbor"}
    for segment in segments:
        if segment.tier == "cold":
            wanted.update(segment_name(segment.first, kind) for kind in ("data", "idx", "tags", "del"))
    tiers.cold.discard_unfinished(topic_id)
    there = tiers.cold.list(topic_id)
    for name in there:
        if name not in wanted:
            tiers.cold.delete(topic_id, name)
    copied = {segment_name(segment.first, "data") for segment in segments if segment.tier == "cold"} & set(there)
    return [
        name
        for name in sorted(copied)
        if tiers.hot.exists(topic_id, name) and tiers.hot.length(topic_id, name) == tiers.cold.length(topic_id, name)
    ]


def remove_unknown_topics(store: SegmentStore, known: Collection[int]) -> None:
    """Remove the directories of topics that do not exist any more. Failures are logged."""
    try:
        store.finish_deletions()
        for topic_id in store.topics():
            if topic_id not in known:
                store.delete_topic(topic_id)
    except OSError as error:
        log.warning("removal_incomplete", error=str(error))


def set_unknown_aside(fs: Fs, datadir: DataDir, known: Collection[int]) -> None:
    """Rename the directories of unknown topics instead of removing them: their manifests may be damaged."""
    for name in fs.listdir(datadir.topics_dir):
        topic_id = parse_topic_name(name)
        if topic_id is not None and topic_id not in known:
            fs.rename(join(datadir.topics_dir, name), join(datadir.topics_dir, name + DAMAGED_SUFFIX))
            log.error("directory_kept_aside", topic_id=topic_id, directory=name + DAMAGED_SUFFIX)
    fs.sync_dir(datadir.topics_dir)
