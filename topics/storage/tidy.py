"""What an interrupted checkpoint, rewrite, merge, relocation or removal has left behind is cleared away before the
daemon is ready (`crash.md` 10 and 12): the part decides what belongs to a topic, everything else goes.

Blocking; for the start alone, when nobody else touches the files.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from topics.logs import get_logger
from topics.storage.datadir import DataDir, segment_name
from topics.storage.fs import Fs, join
from topics.storage.segment_reader import Tiers
from topics.storage.segments import INDEX_ENTRY_BYTES
from topics.storage.shelf import Segment

log = get_logger(__name__)


def tidy_topic(fs: Fs, datadir: DataDir, tiers: Tiers, topic_id: int, segments: Sequence[Segment]) -> None:
    """Remove files that no segment of the topic's part has, and cut off what the part does not count.

    A cold store that does not answer is left as it is.
    """
    directory = datadir.topic_dir(topic_id)
    wanted = {"topic.cbor"}
    for segment in segments:
        if segment.tier == "gone":
            continue
        kinds = ("data", "idx", "tags") if segment.tier == "hot" else ("idx.cold", "tags.cold")
        wanted.update(segment_name(segment.first, kind) for kind in kinds)
    removed = False
    for name in fs.listdir(directory):
        if name in wanted or (name.endswith(".data") and not _is_elsewhere(tiers, topic_id, name, segments)):
            continue
        fs.unlink(join(directory, name))
        removed = True
    if removed:
        fs.sync_dir(directory)
    for segment in segments:
        if not segment.sealed:
            _cut(fs, datadir.segment_path(topic_id, segment.first, "data"), segment.data_bytes)
            _cut(fs, datadir.segment_path(topic_id, segment.first, "idx"), INDEX_ENTRY_BYTES * segment.n)
    _tidy_cold(tiers, topic_id, segments)


def _is_elsewhere(tiers: Tiers, topic_id: int, name: str, segments: Sequence[Segment]) -> bool:
    """Whether a hot `.data` may go: nobody needs it, or the cold copy that counts is there."""
    for segment in segments:
        if segment_name(segment.first, "data") == name:
            try:
                return tiers.cold is not None and tiers.cold.exists(topic_id, name)
            except OSError:
                return False
    return True


def _cut(fs: Fs, path: str, length: int) -> None:
    if not fs.exists(path):
        return
    handle = fs.open(path)
    try:
        if handle.size() > length:
            handle.truncate(length)
            handle.fdatasync()
    finally:
        handle.close()


def _tidy_cold(tiers: Tiers, topic_id: int, segments: Sequence[Segment]) -> None:
    if tiers.cold is None:
        return
    wanted = {"topic.cbor"}
    for segment in segments:
        if segment.tier == "cold":
            wanted.update(segment_name(segment.first, kind) for kind in ("data", "idx", "tags"))
    try:
        tiers.cold.discard_unfinished(topic_id)
        for name in tiers.cold.list(topic_id):
            if name not in wanted:
                tiers.cold.delete(topic_id, name)
    except OSError as error:
        log.warning("cold_store_unavailable", topic_id=topic_id, error=str(error))


def remove_unknown_topics(tiers: Tiers, known: Collection[int]) -> None:
    """Remove the directories of topics that are gone."""
    for store in (tiers.hot, tiers.cold):
        if store is None:
            continue
        try:
            store.finish_deletions()
            for topic_id in store.topics():
                if topic_id not in known:
                    store.delete_topic(topic_id)
        except OSError as error:
            log.warning("removal_incomplete", error=str(error))
