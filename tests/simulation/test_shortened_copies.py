"""Files of cold segments that were cut short: deletions of the other records are flagged all the same, and readers find
the damage."""

from __future__ import annotations

import pytest

from tests.simulation.test_segment_damage import Written, check, copy_of, files, left
from tests.simulation.world import COLD, Life, World
from topics.log.tag_match import TagMatch
from topics.model import Performance

__all__ = ["left"]


def cut(world: World, path: str, length: int) -> None:
    handle = world.fs.open(path)
    handle.truncate(length)
    handle.fdatasync()
    handle.close()


@pytest.mark.parametrize("length", [0, 45, 80])
def test_deletions_are_flagged_although_a_copy_is_too_short(
    length: int, left: tuple[World, dict[str, Written]]
) -> None:
    original, topics = left
    world = copy_of(original)
    for path in files(world, ".idx.cold"):
        cut(world, path, length)
    after = {name: Written(dict(one.records), set(one.deleted)) for name, one in topics.items()}

    async def delete(life: Life) -> None:
        for name, written in after.items():
            await life.engine.deletions.delete_records(name, None, TagMatch("b", prefix=False), Performance())
            written.deleted.update(seq for seq, part in written.records.items() if part[1] == "b")
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        for name in after:
            spans = life.engine.registry.topic(name).log.stored.all()
            assert not any(span.unflagged for span in spans if getattr(span.segment, "tier", "") == "cold")
        await life.compactor.checkpoint()

    async def look(life: Life) -> None:
        assert not any((await check(life, after)).values())

    assert world.live(delete)
    assert world.live(look)


def test_deletions_are_flagged_although_the_records_of_a_cold_segment_were_cut(
    left: tuple[World, dict[str, Written]],
) -> None:
    original, topics = left
    world = copy_of(original)
    paths = [path for path in files(world, ".data") if path.startswith(COLD)]
    for path in paths:
        cut(world, path, len(world.fs.tree()[path] or b"") // 3)

    async def delete(life: Life) -> None:
        for name in topics:
            await life.engine.deletions.delete_records(name, None, TagMatch("b", prefix=False), Performance())
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()

    assert paths
    assert world.live(delete)
