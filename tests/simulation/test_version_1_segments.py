"""Segments that were written before `.data` files had a header: they are read, closed, and become new when they are
rewritten or merged (`docs/spec/storage.md` section 6)."""

from __future__ import annotations

import msgspec
import pytest

from tests.simulation.test_forged_segments import forged
from tests.simulation.test_segment_damage import Written, check
from tests.simulation.world import Life, World, settings
from topics.log.tag_match import TagMatch
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch
from topics.storage.files.file_header import MAGIC
from topics.storage.maintenance import segment_files, segment_growth
from topics.storage.segments.topic_segments import Segment

CONFIG = settings(segment_max_events=8, segment_max_age_ms=0, cache_bytes=0)


async def append(life: Life, topic: Written, count: int) -> None:
    for seq in range(len(topic.records) + 1, len(topic.records) + count + 1):
        tag = "doomed" if seq in (2, 3, 4, 5, 6, 7) else (forged(seq) or "") + (forged(seq + 3) or "")
        topic.records[seq] = (b'{"n":%d}' % seq, tag, None)
        record = RecordIn(data=msgspec.Raw(topic.records[seq][0]), tag=tag)
        await life.engine.appends.append("t", AppendRequest(records=[record]), Performance())


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> tuple[World, Written]:
    """Two sealed segments and one that is appended to, none of which has a header."""
    world, topic = World(config=CONFIG), Written({}, set())

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        await append(life, topic, 20)
        await life.compactor.checkpoint()

    with monkeypatch.context() as before:
        before.setattr(
            segment_files.SegmentFiles, "new_segment", lambda _self, topic_id, first: Segment(topic_id, first)
        )
        before.setattr(segment_files, "header_of", lambda _segment: b"")
        before.setattr(segment_growth, "header_of", lambda _segment: b"")
        assert world.live(scenario)
    assert headers(world) == [False, False, False]
    return world, topic


def headers(world: World) -> list[bool]:
    """Which `.data` files have a header, by first seq."""
    tree = world.fs.tree()
    return [(tree[path] or b"").startswith(MAGIC) for path in sorted(tree) if path.endswith(".data")]


def test_they_are_read_and_the_next_records_go_to_a_file_with_a_header(old: tuple[World, Written]) -> None:
    world, topic = old

    async def go_on(life: Life) -> None:
        assert not any((await check(life, {"t": topic})).values())
        await append(life, topic, 2)
        await life.compactor.checkpoint()
        assert not any((await check(life, {"t": topic})).values())

    async def look(life: Life) -> None:
        assert not any((await check(life, {"t": topic})).values())

    assert world.live(go_on)
    assert headers(world) == [False, False, False, True]
    assert world.live(look)


def test_they_become_new_when_they_are_rewritten(old: tuple[World, Written]) -> None:
    world, topic = old

    async def rewrite(life: Life) -> None:
        await life.engine.deletions.delete_records("t", None, TagMatch("doomed", prefix=False), Performance())
        topic.deleted.update(range(2, 8))
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        assert not any((await check(life, {"t": topic})).values())

    async def look(life: Life) -> None:
        assert not any((await check(life, {"t": topic})).values())

    assert world.live(rewrite)
    assert headers(world)[0]
    assert world.live(look)


@pytest.mark.parametrize("bit", range(0, 29 * 8, 7))
def test_a_changed_bit_costs_the_record_that_it_is_in_as_long_as_the_index_is_there(
    bit: int, old: tuple[World, Written]
) -> None:
    world, topic = old
    path = next(path for path in sorted(world.fs.tree()) if path.endswith(f"{9:020d}.data"))
    content = world.fs.tree()[path]
    assert content is not None
    tag = topic.records[12][1]
    assert tag is not None
    begin = content.index(b'{"n":12}') - 4 - len(tag.encode()) - 29
    world.fs.flip_bit(path, begin + bit // 8, bit % 8)

    async def look(life: Life) -> None:
        assert (await check(life, {"t": topic}))["t"] == {12}

    assert world.live(look)
    assert world.live(look)


@pytest.mark.parametrize("keep", [0, 30, 200])
def test_a_shortened_one_is_announced(keep: int, old: tuple[World, Written]) -> None:
    world, topic = old
    path = next(path for path in sorted(world.fs.tree()) if path.endswith(f"{9:020d}.data"))
    handle = world.fs.open(path)
    handle.truncate(keep)
    handle.fdatasync()
    handle.close()

    async def look(life: Life) -> None:
        found = (await check(life, {"t": topic}))["t"]
        assert found == set(range(min(found), 17))
        assert (await life.engine.topic_states.of("t", touch=False)).count == len(topic.records) - len(found)

    assert world.live(look)
    assert world.live(look)
