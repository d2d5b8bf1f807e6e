"""`inspect`: the facts about a directory, held against what the engine knows of itself."""

from __future__ import annotations

from functools import cache

import msgspec
import pytest

from tests.simulation.disk import SimFs
from tests.simulation.model import Client
from tests.simulation.test_recovery_rules import lived
from tests.simulation.wal_content import scan_of
from tests.simulation.world import Life, quiet
from tests.storage.made import COLD, ROOT, made
from topics.model import TopicConfigPatch
from topics.storage.files.datadir import DataDir, DataDirError
from topics.storage.offline.directory_facts import DirectoryFacts, TopicFacts
from topics.storage.offline.frame_dump import FrameFacts
from topics.storage.offline.inspect import Inspection


@cache
def _made(end: str) -> SimFs:
    return made(7, end=end).fs


@pytest.fixture
def stopped() -> SimFs:
    return _made("stop").after_process_kill()


@pytest.fixture
def killed() -> SimFs:
    return _made("kill").after_process_kill()


def facts(fs: SimFs, cold: str | None = COLD, *, in_use: bool = False) -> DirectoryFacts:
    with quiet():
        return Inspection(fs, ROOT, cold).facts(in_use=in_use)


def frames(fs: SimFs, topic: str | None = None) -> list[FrameFacts]:
    return list(Inspection(fs, ROOT, COLD).frames(topic))


def topic_of(found: DirectoryFacts, name: str) -> TopicFacts:
    return next(topic for topic in found.topics if topic.name == name)


def test_topics_are_what_a_start_finds(killed: SimFs) -> None:
    found = facts(killed)
    assert found.refused is None
    assert [topic.name for topic in found.topics] == ["capped", "fleeting", "quick", "tagged"]
    for topic in found.topics:
        assert topic.count <= topic.head_seq - topic.earliest_seq + 1
        stored = sum(segment.live or 0 for segment in topic.segments)
        assert topic.count == stored + topic.unstored
        assert all(
            left.last_seq < right.first_seq for left, right in zip(topic.segments, topic.segments[1:], strict=False)
        )
    assert topic_of(found, "capped").evict_floor > 1
    assert topic_of(found, "tagged").earliest_seq > 1
    assert topic_of(found, "quick").unstored > 0
    assert {segment.tier for segment in topic_of(found, "tagged").segments} == {"hot", "cold"}
    assert {segment.sealed for segment in topic_of(found, "tagged").segments} == {True, False}
    assert all(len(segment.sha256 or "") == 64 * segment.sealed for segment in topic_of(found, "tagged").segments)


@pytest.mark.parametrize("in_use", [False, True])
def test_segments_that_were_merged_are_still_to_be_removed(in_use: bool) -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("small", durability="disk", segment_max_events=100)
        for _ in range(3):
            await client.append("small", 2)
            await life.engine.topic_seals.seal("small")
        await life.reclaimer.pass_over()

    found = facts(lived(script, reclaim_ms=3_600_000).fs.after_process_kill(), None, in_use=in_use)
    segments = [(one.first_seq, one.last_seq, one.live) for one in topic_of(found, "small").segments]
    assert sorted(segments) == [(1, 6, 6), (3, 4, None), (5, 6, None)]


def test_holes_are_listed() -> None:
    found = facts(made(7, end="kill").after("drop").fs)
    assert found.refused is None
    assert all(hole.first <= hole.last for topic in found.topics for hole in topic.holes)


def test_wal_files_and_their_frames_are_counted(stopped: SimFs) -> None:
    found = facts(stopped)
    assert [shard.shard for shard in found.shards] == [0, 1]
    for shard in found.shards:
        assert [file.end for file in shard.files][:-1] == ["file end"] * (len(shard.files) - 1)
        assert shard.files[-1].end == "clean stop"
        for file in shard.files:
            content = stopped.tree()[file.path]
            assert content is not None
            scan = scan_of(content)
            assert (file.frames, file.used, file.bytes) == (len(scan.rows), scan.stop, len(content))
            assert sum(file.types.values()) == file.frames
        ordinals = [file.ordinal + file.frames for file in shard.files[:-1]]
        assert ordinals == [file.ordinal for file in shard.files[1:]]


def test_snapshots_are_described_and_a_damaged_one_says_so(stopped: SimFs) -> None:
    older, newer = facts(stopped).snapshots
    assert (older.number + 1, newer.problem, newer.topics) == (newer.number, None, 4)
    assert newer.positions is not None
    assert set(newer.positions) == {0, 1}
    stopped.flip_bit(newer.path, newer.bytes // 2, 0)
    assert "checksum" in str(facts(stopped).snapshots[1].problem)


def test_where_a_start_is_refused_topics_are_as_of_their_parts(killed: SimFs) -> None:
    before = facts(killed)
    positions = before.snapshots[-1].positions
    assert positions is not None
    ordinal, offset, _ = positions[1]
    path = next(file.path for file in before.shards[1].files if file.ordinal == ordinal)
    killed.flip_bit(path, offset + 20, 0)
    after = facts(killed)
    assert "the log is damaged" in str(after.refused)
    assert [topic.name for topic in after.topics] == [topic.name for topic in before.topics]
    assert topic_of(after, "tagged").head_seq <= topic_of(before, "tagged").head_seq
    assert all(topic.unstored == 0 for topic in after.topics)


def test_a_directory_in_use_names_its_holder_and_recovery_is_not_asked(stopped: SimFs) -> None:
    stopped.lock(DataDir(ROOT).lock_path, "pid 7\n")
    found = facts(stopped, in_use=True)
    assert (found.holder, found.refused) == ("pid 7", "the directory is in use")
    assert len(found.topics) == 4


def test_a_directory_that_is_none_of_ours_is_refused() -> None:
    with pytest.raises(DataDirError, match="no data directory"):
        facts(SimFs())


def test_facts_are_json(stopped: SimFs) -> None:
    found = facts(stopped)
    assert msgspec.json.decode(msgspec.json.encode(found), type=DirectoryFacts) == found


# ----------------------------------------------------------------- frames


def test_a_dump_has_every_frame_of_the_log_in_order(stopped: SimFs) -> None:
    found = facts(stopped)
    dumped = [frame for frame in frames(stopped) if frame.path.endswith(".log")]
    assert len(dumped) == sum(file.frames for shard in found.shards for file in shard.files)
    for shard in found.shards:
        numbers = [frame.number for frame in dumped if frame.path.startswith(shard.directory + "/")]
        assert numbers == list(range(shard.files[0].ordinal, shard.files[0].ordinal + len(numbers)))
    kinds = {frame.type for frame in dumped}
    assert {"Append", "Delete", "Synced", "FileEnd", "CleanStop"} <= kinds
    assert any(frame.type == "Delete" and "match=" in frame.payload for frame in dumped)


def test_a_dump_of_a_topic_has_its_records_in_wal_and_segments(stopped: SimFs) -> None:
    dumped = frames(stopped, "tagged")
    assert {frame.topic for frame in dumped} == {"tagged"}
    records = [frame for frame in dumped if frame.type == "Record"]
    topic = topic_of(facts(stopped), "tagged")
    assert len(records) == sum(segment.records for segment in topic.segments)
    live = [frame for frame in records if "deleted" not in frame.flags and frame.seq >= topic.earliest_seq]
    assert len(live) == topic.count
    assert all(frame.tag for frame in records)
    assert {frame.path.split("/")[1] for frame in records} == {"data", "cold"}


def test_a_dump_goes_on_behind_bad_bytes(stopped: SimFs) -> None:
    path = facts(stopped).shards[0].files[0].path
    before = [frame for frame in frames(stopped) if frame.path == path]
    stopped.flip_bit(path, before[4].offset + 30, 0)
    after = [frame for frame in frames(stopped) if frame.path == path]
    assert [frame.type for frame in after[:6]] == [*[frame.type for frame in before[:4]], "BadBytes", before[5].type]
    assert (after[4].offset, after[4].bytes) == (before[4].offset, before[4].bytes)
    assert after[5].number is None


def test_without_the_cold_directory_a_dump_has_what_is_hot(stopped: SimFs) -> None:
    dumped = list(Inspection(stopped, ROOT, None).frames("tagged"))
    assert all(frame.path.startswith(ROOT) for frame in dumped)
    assert any(frame.type == "Record" for frame in dumped)


def test_nothing_is_written(stopped: SimFs) -> None:
    mutations, tree = stopped.mutations, stopped.tree()
    facts(stopped)
    frames(stopped)
    assert (stopped.mutations, stopped.tree(), stopped.open_files) == (mutations, tree, 0)


def test_what_a_shortened_file_does_not_have_is_said_to_be_missing_and_bad_bytes_end_nothing(stopped: SimFs) -> None:
    before = frames(stopped, "tagged")
    records = [frame for frame in before if frame.type == "Record"]
    path = records[0].path
    mine = [frame for frame in records if frame.path == path]
    cut = mine[-2].offset
    length = len(stopped.tree()[path] or b"")
    stopped.flip_bit(path, 8 + mine[1].offset + 31, 0)
    handle = stopped.open(path)
    handle.truncate(cut)
    handle.close()
    found = [frame for frame in frames(stopped, "tagged") if frame.path == path]
    kinds = [(frame.type, frame.offset, frame.bytes) for frame in found if frame.type != "Record"]
    assert kinds == [("BadBytes", mine[1].offset, mine[1].bytes), ("MissingBytes", cut, length - cut)]
    assert [frame.seq for frame in found if frame.type == "Record"] == [frame.seq for frame in [mine[0], *mine[2:-2]]]


def test_the_tree_of_a_topic_with_evidence_is_told() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("plain", durability="fsync")
        await client.create("proved", durability="fsync")
        await client.append("proved", 2)
        await life.engine.topic_lifecycle.put("proved", TopicConfigPatch(evidence=True))
        await client.append("proved", 3)
        await life.compactor.checkpoint()
        await client.append("proved", 1)

    fs = lived(script).fs.after_process_kill()
    for in_use, leaves in ((False, 4), (True, 3)):
        found = facts(fs, None, in_use=in_use)
        assert topic_of(found, "plain").evidence is None
        evidence = topic_of(found, "proved").evidence
        assert evidence is not None
        assert (evidence.start_seq, evidence.leaves, evidence.stored) == (3, leaves, 3)
        assert len(evidence.tree) == 32
