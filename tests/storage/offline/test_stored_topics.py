"""What files alone say of topics: which there are, and by which of their parts; also when the machine has died."""

from __future__ import annotations

import random
from functools import cache
from typing import Any

import pytest

from tests.simulation.disk import SimFs
from tests.simulation.world import World, wrecks_of
from tests.storage.data_file import rows_of
from tests.storage.made import COLD, CONFIG, ROOT, made
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.files.fs import Fs, write_all
from topics.storage.offline.stored_topics import LostRange, StoredTopic, TopicDirectory
from topics.storage.segments.segment_format import READS_AS_DELETED
from topics.storage.snapshots.snapshot import SnapshotDamaged, decode_manifest, encode_manifest, encode_part

DIRS = DataDir(ROOT)
TAGGED = 1
NAMES = {"tagged", "capped", "quick", "fleeting"}


@cache
def _made() -> SimFs:
    return made(7).fs


@pytest.fixture
def fs() -> SimFs:
    return _made().after_process_kill()


def put(fs: Fs, path: str, content: bytes) -> None:
    handle = fs.open(path, create=True)
    handle.truncate(0)
    write_all(handle, content, 0)
    handle.close()


def topics_of(fs: Fs, path: str = ROOT, cold: str | None = COLD) -> dict[str, StoredTopic]:
    return TopicDirectory.found(fs, path, cold).topics(fs, lambda _: True)


def rewritten(fs: Fs, topic_id: int, as_id: int | None = None, **changes: Any) -> None:
    """Change what a manifest says."""
    part = decode_manifest(fs.read(DIRS.manifest_path(topic_id)))
    for name, value in changes.items():
        setattr(part, name, value)
    part.id = topic_id if as_id is None else as_id
    fs.mkdir(DIRS.topic_dir(part.id))
    put(fs, DIRS.manifest_path(part.id), encode_manifest(encode_part(part)))


def test_the_topics_of_the_last_checkpoint_are_there_and_deleted_ones_are_not(fs: SimFs) -> None:
    found = topics_of(fs)
    assert found.keys() == NAMES
    assert all(segment.path is not None for topic in found.values() for segment in topic.segments)
    assert {segment.tier for segment in found["tagged"].segments} == {"hot", "cold"}


def test_segments_say_what_is_live_in_their_files(fs: SimFs) -> None:
    for topic in topics_of(fs).values():
        for segment in topic.segments:
            assert segment.path is not None
            content = fs.read(segment.path)
            rows = rows_of(content)
            dead = set(segment.deleted) | {s for hole in segment.lost for s in range(hole.first, hole.last + 1)}
            seen = zip(rows.seq, rows.delete_flag, strict=True)
            live = [seq for seq, flag in seen if not READS_AS_DELETED[flag] and segment.start <= seq <= segment.last]
            assert len([seq for seq in live if seq not in dead]) == segment.live


def test_losses_are_cut_to_the_range_that_is_asked_for(fs: SimFs) -> None:
    capped = topics_of(fs)["capped"]
    assert (capped.earliest_seq, capped.head_seq) == (151, 300)
    assert capped.losses(0, 300) == [LostRange(1, 150, "cap")]
    assert capped.losses(20, 30) == [LostRange(21, 30, "cap")]
    assert capped.losses(150, 300) == capped.losses(30, 30) == []


def test_holes_are_told_in_order_whatever_segments_they_are_in(fs: SimFs) -> None:
    part = decode_manifest(fs.read(DIRS.manifest_path(TAGGED)))
    log = part.log | {"holes": [[319, 322, "lost"], [323, 330, "source_trim"]], "head_seq": 330}
    *others, last = part.log["spans"]
    log["spans"] = [*others, [*last[:4], 38, 2, last[6], 38, *last[8:]]]
    rewritten(fs, TAGGED, log=log)
    topic = topics_of(fs)["tagged"]
    assert topic.losses(315, 325) == [LostRange(319, 322, "lost"), LostRange(323, 325, "source_trim")]
    assert topic.segments[-1].lost == (LostRange(319, 320, "lost"),)


def test_a_manifest_counts_unless_the_snapshot_has_a_newer_part(fs: SimFs) -> None:
    newer = decode_manifest(fs.read(DIRS.manifest_path(TAGGED))).end
    rewritten(fs, TAGGED, segments=[], log=topics_log_of_nothing())
    assert topics_of(fs)["tagged"].segments == []
    rewritten(fs, TAGGED, end=[newer[0], newer[1] - 1])
    assert len(topics_of(fs)["tagged"].segments) > 5


def topics_log_of_nothing() -> dict[str, Any]:
    return {
        "head_seq": 0,
        "earliest_seq": 1,
        "evict_floor": 1,
        "last_ts": 0,
        "spans": [],
        "tags": None,
        "tags_from": None,
        "holes": [],
        "causes": {},
        "deleted": b"",
    }


def test_a_manifest_that_does_not_verify_is_replaced_by_the_snapshots_part(fs: SimFs) -> None:
    expected = topics_of(fs)["tagged"].segments
    fs.flip_bit(DIRS.manifest_path(TAGGED), 50, 1)
    assert topics_of(fs)["tagged"].segments == expected
    found = TopicDirectory.found(fs, ROOT, COLD).topic(fs, TAGGED)
    assert found is not None
    assert found.segments == expected


def test_directories_that_the_snapshot_does_not_know_are_new_topics_or_deleted_ones(fs: SimFs) -> None:
    """Ids are never reused; files of a deleted topic may stay for the copies that are made of them."""
    rewritten(fs, TAGGED, as_id=4, name="gone")
    assert topics_of(fs).keys() == NAMES
    rewritten(fs, TAGGED, as_id=99, name="new")
    assert topics_of(fs).keys() == NAMES | {"new"}
    rewritten(fs, TAGGED, as_id=98, name="quick")
    assert topics_of(fs)["quick"].id == 98  # of two instances of a name the later one counts


def test_a_stage_is_nobodys_to_read(fs: SimFs) -> None:
    rewritten(fs, TAGGED, as_id=99, name="quick?stage=s", stage=[3, "s"])
    assert topics_of(fs).keys() == NAMES


def test_a_topic_whose_directory_is_gone_was_deleted_since(fs: SimFs) -> None:
    fs.rename(DIRS.topic_dir(TAGGED), DIRS.topic_dir(TAGGED) + ".deleted")
    assert topics_of(fs).keys() == NAMES - {"tagged"}
    assert TopicDirectory.found(fs, ROOT, COLD).topic(fs, TAGGED) is None


def test_an_older_snapshot_will_do_and_none_that_verifies_will_not(fs: SimFs) -> None:
    paths = [path for path in fs.tree() if "/meta/snapshot." in path]
    fs.flip_bit(max(paths), 100, 1)
    assert topics_of(fs).keys() == NAMES
    fs.flip_bit(min(paths), 100, 1)
    if fs.exists(DIRS.reserve_path):
        assert topics_of(fs).keys() == NAMES
        fs.flip_bit(DIRS.reserve_path, 100, 1)
    with pytest.raises(SnapshotDamaged, match="snapshot"):
        topics_of(fs)


def test_a_directory_says_itself_what_it_is(fs: SimFs) -> None:
    assert TopicDirectory.found(fs, ROOT, COLD) == TopicDirectory(ROOT, COLD)
    assert TopicDirectory.found(fs, "/") == TopicDirectory(ROOT, COLD)  # `data` and `cold`: a copy
    assert TopicDirectory.found(fs, COLD) == TopicDirectory(None, COLD)
    assert TopicDirectory.found(fs, ROOT, "/nowhere") == TopicDirectory(ROOT, None)  # nothing has gone there yet
    for path, cold, problem in ((COLD, ROOT, "itself"), ("/nowhere", None, "does not exist")):
        with pytest.raises(DataDirError, match=problem):
            TopicDirectory.found(fs, path, cold)
    put(fs, DIRS.format_path, b'{"wal":1,"segment":4,"snapshot":1}')
    with pytest.raises(DataDirError, match="formats this version does not know"):
        TopicDirectory.found(fs, ROOT)
    fs.unlink(DIRS.format_path)
    with pytest.raises(DataDirError, match="FORMAT is missing"):
        TopicDirectory.found(fs, ROOT)


def test_a_cold_directory_alone_ends_where_segments_have_stayed_hot(fs: SimFs) -> None:
    found = topics_of(fs, COLD, None)
    assert found.keys() == {"tagged", "capped"}
    tagged = found["tagged"]
    assert tagged.head_seq == 160
    assert [(one.first, one.last, one.live) for one in tagged.segments] == [
        (first, first + 39, None) for first in (1, 41, 81, 121)
    ]
    # Merged since: the file before it reaches as far as both did.
    fs.unlink(DataDir(COLD).segment_path(TAGGED, 81, "data"))
    tagged = topics_of(fs, COLD, None)["tagged"]
    assert [(one.first, one.last) for one in tagged.segments] == [(1, 40), (41, 120), (121, 160)]


@pytest.mark.parametrize("count", [10, pytest.param(150, marks=pytest.mark.slow)])
def test_whatever_a_crash_leaves_can_be_read(count: int) -> None:
    """All live records of the last checkpoint are in its files after a crash at any point, with any part of the
    unsynced bytes lost: bytes that a part counts are on disk before the part."""
    world = World(5, config=CONFIG)
    wrecks = wrecks_of(world, lambda: 0, stride=11)
    made(5, world=world)
    chance = random.Random(5)
    for _ in range(count):
        wreck = chance.choice(wrecks)
        kind: Any = chance.choice(["kill", "drop", "keep", "tear", "reorder"])
        fs = wreck.world(kind, chance.randrange(100), CONFIG).fs
        if not fs.exists(DIRS.format_path):
            continue
        for topic in topics_of(fs, cold=COLD if fs.exists(COLD) else None).values():
            for segment in topic.segments:
                if not segment.live:
                    continue
                assert segment.path is not None
                content = fs.read(segment.path)
                if not segment.sealed:
                    content = content[: segment.data_bytes]
                rows = rows_of(content)
                there = [seq for seq in rows.seq if segment.start <= seq <= segment.last]
                assert len(there) >= segment.live, (str(wreck), kind, topic.name)
