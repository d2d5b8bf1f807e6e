"""Records that hold frames (`docs/spec/storage.md` section 6): after a crash that tears such a record nothing in it is
believed.

A frame that is whole is skipped as a whole, so what a client has put into it is never looked at. Of one that was torn
the search for frames sees everything.
"""

from __future__ import annotations

import pytest
import trio

from tests.simulation import forgery
from tests.simulation.disk_state import CRASH_KINDS
from tests.simulation.model import Client, History, View
from tests.simulation.test_crash_sweep import see
from tests.simulation.world import Life, World, settings

SEEDS = 4


def attacked(durability: str, tags: list[str]) -> World:
    """A machine whose last records are not synced yet and hold these tags."""
    world = World(config=settings(wal_file_bytes=1 << 20, max_tag_bytes=4096))

    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("orders", durability="fsync")
        await client.create("events", durability=durability)
        for _ in range(5):
            await client.append("orders", 2, size=60)
            await client.append("events", 1, size=200)
        await trio.sleep(0.1)
        for tag in tags:
            await client.append("events", 1, size=900, tag=tag)
        assert len(tags) == 1 or life.store.writers[0].file.end > 4096

    assert world.live(scenario, end="kill")
    return world


def padded(frames: list[str]) -> str:
    """Frames at many places of a tag that is longer than a sector, so that some of them survive what tears it."""
    text = "".join(frames)
    return (text + "." * 7) * (1400 // len(text.encode()) + 1)


def check(view: View, head: int) -> None:
    """Nothing of what was synced is missing, nothing is there that nobody has written."""
    assert sorted(view.records)[:head] == list(range(1, head + 1))
    assert view.head < 5000, "no seqs of other topics are given up"
    assert not [gap for gap in view.gaps if gap[2] == "corrupt"]


@pytest.mark.parametrize("durability", ["memory", "disk"])
@pytest.mark.parametrize("number", range(7))
def test_a_torn_record_with_frames_in_its_tag_is_a_torn_end_and_nothing_else(number: int, durability: str) -> None:
    world = attacked(durability, [padded([forgery.frames()[number]])])
    for kind in CRASH_KINDS:
        for seed in range(SEEDS):
            for mode in ("strict", "salvage"):
                left = world.after(kind, seed)
                left.settings = settings(wal_file_bytes=1 << 20, max_tag_bytes=4096, recovery=mode)
                views = see(left)
                assert views.keys() == {"orders", "events"}
                check(views["orders"], 10)
                check(views["events"], 5)


def test_all_frames_in_all_of_many_torn_records() -> None:
    tags = [padded([frame]) for frame in forgery.frames()] + [padded(forgery.frames(seed)) for seed in (0, 1)]
    world = attacked("disk", tags)
    for kind in CRASH_KINDS:
        for seed in range(SEEDS):
            views = see(world.after(kind, seed))
            check(views["orders"], 10)
            check(views["events"], 5)
