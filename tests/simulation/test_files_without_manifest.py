"""A manifest that is damaged or missing costs nothing, also if the reclaimer and the relocator have changed the files
since the last snapshot: rewritten, emptied, dropped, merged or moved segments."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.simulation.model import Client, History, View
from tests.simulation.segment_lives import check_files, exactly, looked_at, unexpected
from tests.simulation.world import COLD, ROOT, Life, World, settings
from topics.config import Settings

Script = Callable[[Life, Client], Awaitable[None]]
NAME: Final = "a"
HOT: Final = settings(
    segment_max_events=4,
    segment_max_bytes=1 << 20,
    segment_max_age_ms=0,
    rewrite_live_ratio=0.8,
    hot_retain_segments=100,
    min_free_bytes=0,
)
"""Four records fill a segment, and one that is not full is replaced if a fifth of it is dead."""
MOVING: Final = replace(HOT, cold_dir=Path(COLD), hot_retain_segments=1)


async def stored(life: Life, client: Client, *, records: int = 14) -> None:
    """A topic with segments that a snapshot knows of, every second record with a tag."""
    await client.create(NAME, durability="fsync")
    for i in range(records):
        await client.append(NAME, 1, size=100, tag="x" if i % 2 else None)
    await life.compactor.checkpoint()
    await life.compactor.checkpoint()


async def rewritten_at_the_front(life: Life, client: Client) -> None:
    """Records at the front go by a cap that is lifted again, and their segment is rewritten."""
    await stored(life, client)
    await client.configure(NAME, cap_records=12)
    await client.configure(NAME, cap_records=0)
    await life.reclaimer.pass_over()
    await client.append(NAME, 1)


async def emptied_at_the_front(life: Life, client: Client) -> None:
    """A segment at the front goes by tag and by seq."""
    await stored(life, client)
    await client.delete(NAME, match=exactly("x"))
    await client.delete(NAME, before=4)
    for _ in range(2):
        await life.reclaimer.pass_over()
    await client.append(NAME, 1)


async def rewritten_while_it_grew(life: Life, client: Client) -> None:
    """The snapshot knows a segment that takes more records, is sealed, and is rewritten."""
    await stored(life, client)
    await client.delete(NAME, match=exactly("x"))
    await client.append(NAME, 3)
    for _ in range(2):
        await life.reclaimer.pass_over()


async def rewritten_inside(life: Life, client: Client) -> None:
    """Records with a tag go, by twos of a segment."""
    await stored(life, client)
    await client.delete(NAME, match=exactly("x"))
    await life.reclaimer.pass_over()


async def rewritten_and_evicted(life: Life, client: Client) -> None:
    """The same, and then all that is in front goes by a cap."""
    await rewritten_inside(life, client)
    await client.configure(NAME, cap_records=4)
    await life.reclaimer.pass_over()


async def emptied_by_tag(life: Life, client: Client) -> None:
    """Everything in a segment goes by its tag, and the tag with it."""
    await client.create(NAME, durability="fsync")
    for i in range(14):
        await client.append(NAME, 1, size=100, tag="x" if 4 <= i < 8 else None)
    await life.compactor.checkpoint()
    await life.compactor.checkpoint()
    await client.delete(NAME, match=exactly("x"))
    await life.reclaimer.pass_over()
    await life.reclaimer.pass_over()


async def dropped(life: Life, client: Client) -> None:
    """Whole segments go by a cap, in two steps, the first of which ends inside one."""
    await stored(life, client)
    await client.configure(NAME, cap_records=12)
    await client.configure(NAME, cap_records=5)
    for _ in range(2):
        await life.reclaimer.pass_over()
    await client.append(NAME, 1)


async def small_segments(life: Life, client: Client) -> None:
    """A topic with segments that were sealed for their age, of two records each; a snapshot knows of them."""
    await client.create(NAME, durability="fsync")
    for i in range(8):
        await client.append(NAME, 2, tag="x" if i % 3 == 2 else None)
        await life.compactor.checkpoint()
        await trio.sleep(1)
        life.engine.registry.topic(NAME).mark_changed()
        await life.compactor.checkpoint()


async def merged(life: Life, client: Client) -> None:
    """Small segments become one."""
    await small_segments(life, client)
    for _ in range(2):
        await life.reclaimer.pass_over()


async def merged_without_what_is_gone(life: Life, client: Client) -> None:
    """The same, where some of them are dead: those at the front by a cap, others by their tag."""
    await small_segments(life, client)
    await client.delete(NAME, match=exactly("x"))
    await client.configure(NAME, cap_records=7)
    await client.configure(NAME, cap_records=0)
    for _ in range(3):
        await life.reclaimer.pass_over()
    await client.append(NAME, 1)


async def moved(life: Life, client: Client) -> None:
    """Segments are rewritten, and then they go to the cold directory and are rewritten there."""
    await rewritten_inside(life, client)
    await life.relocator.pass_over()
    await client.delete(NAME, before=3)
    for _ in range(2):
        await life.reclaimer.pass_over()
    await client.configure(NAME, cap_records=3)
    for _ in range(2):
        await life.reclaimer.pass_over()


async def merged_and_moved(life: Life, client: Client) -> None:
    """Small segments become one, and that goes to the cold directory."""
    await merged(life, client)
    await life.relocator.pass_over()


def anything(seed: int) -> Script:
    """A random order of everything."""
    rng = random.Random(seed)

    async def script(life: Life, client: Client) -> None:
        await (stored if seed % 3 else small_segments)(life, client)
        for _ in range(rng.randrange(3, 10)):
            match rng.randrange(7):
                case 0:
                    await client.delete(NAME, match=exactly("x"))
                case 1:
                    view = await client.look(NAME)
                    assert view is not None
                    await client.delete(NAME, before=view.earliest + rng.randrange(1, 4))
                case 2:
                    await client.configure(NAME, cap_records=rng.randrange(2, 14))
                    await client.configure(NAME, cap_records=0)
                case 3:
                    await client.append(NAME, rng.randrange(1, 4), size=100, tag=rng.choice(("x", "y", None)))
                case 4 | 5:
                    await life.reclaimer.pass_over()
                case _:
                    if life.engine.settings.cold_dir is not None:
                        await life.relocator.pass_over()

    return script


AGEING: Final[dict[str, Any]] = {"segment_max_events": 40, "segment_max_age_ms": 100}
SCRIPTS: Final[dict[str, tuple[Script, Settings]]] = {
    "rewritten_at_the_front": (rewritten_at_the_front, HOT),
    "rewritten_inside": (rewritten_inside, HOT),
    "rewritten_and_evicted": (rewritten_and_evicted, HOT),
    "emptied_by_tag": (emptied_by_tag, HOT),
    "emptied_at_the_front": (emptied_at_the_front, HOT),
    "rewritten_while_it_grew": (rewritten_while_it_grew, HOT),
    "dropped": (dropped, HOT),
    "merged": (merged, replace(HOT, **AGEING)),
    "merged_without_what_is_gone": (merged_without_what_is_gone, replace(HOT, **AGEING)),
    "moved": (moved, MOVING),
    "merged_and_moved": (merged_and_moved, replace(MOVING, **AGEING)),
}


def look(world: World) -> View:
    """What a recovery shows; then the process is killed. Nothing but the manifest may be called damaged."""
    views: dict[str, View] = {}

    async def script(life: Life) -> None:
        views.update(await looked_at(life))

    assert world.live(script, end="kill")
    unexpected(world, excused="manifest_damaged")
    return views[NAME]


def check(script: Script, config: Settings, seed: int = 0) -> None:
    """Without the manifest, or with a damaged one, the topic is the same as with it, at each later start too."""
    world = World(seed, config=config)

    async def live(life: Life) -> None:
        await script(life, Client(life.engine, History()))

    world.live(live, end="kill")
    expected = look(world.after("kill"))
    for change in ("bit", "cut", "missing"):
        damaged = world.after("kill")
        (path,) = (path for path in damaged.fs.tree() if path.startswith(f"{ROOT}/topics/") and "/topic." in path)
        if change == "bit":
            damaged.fs.flip_bit(path, 60, 3)
        elif change == "cut":
            handle = damaged.fs.open(path)
            handle.truncate(100)
            handle.fdatasync()
            handle.close()
        else:
            damaged.fs.unlink(path)
        assert look(damaged) == expected, change
        again = damaged.after("kill")
        assert look(again) == expected, change
        assert look(kept(again.after("drop"))) == expected, change


def kept(world: World) -> World:
    """The same after a life in which all of it was stored anew."""

    async def maintenance(life: Life) -> None:
        for _ in range(2):
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
        await life.compactor.checkpoint()  # what was dropped is named until then
        check_files(life)

    assert world.live(maintenance)
    unexpected(world, excused="manifest_damaged")
    return world.after("drop")


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_topic_is_all_there_without_its_manifest(name: str) -> None:
    check(*SCRIPTS[name])


@pytest.mark.parametrize("seed", range(24))
def test_a_topic_is_all_there_without_its_manifest_whatever_was_done(seed: int) -> None:
    config = (HOT, MOVING)[seed % 2]
    check(anything(seed), config if seed % 3 else replace(config, **AGEING), seed)
