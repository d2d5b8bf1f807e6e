"""Writes that the kernel could not write back, of which another process was told: every descriptor that was open when
the write failed hears of it all the same, so a checkpoint fails rather than count on bytes that are nowhere."""

from __future__ import annotations

from typing import Final

import pytest

from tests.simulation.disk import Fault, Op
from tests.simulation.model import Client, History, views_of
from tests.simulation.test_crash_sweep import see
from tests.simulation.world import Life, World, settings
from topics.errors import ApiError

WRITTEN: Final = {"*.data": "*.idx", "*.idx": "*.idx", "*topic.cbor.tmp": "*topic.cbor.tmp"}
"""What is lost, and behind which writes."""


@pytest.mark.parametrize("lost", WRITTEN)
@pytest.mark.parametrize("topics", [1, 20], ids=["few-files", "many-files"])
@pytest.mark.parametrize("tries", [1, 3])
def test_a_checkpoint_fails_when_another_process_was_told_that_its_writes_failed(
    lost: str, topics: int, tries: int
) -> None:
    history, world = History(), World(config=settings(wal_file_bytes=64 << 10))
    names = [f"topic{i}" for i in range(topics)]
    struck: list[int] = []
    written = []

    def strike(op: Op) -> None:
        struck.append(world.fs.fail_writeback(lost, told=True))

    def follows(op: Op) -> bool:
        """The first operation behind the writes."""
        if op.name == "pwrite" and Fault(path=WRITTEN[lost])._claims(op):
            written.append(op)
        return len(written) >= topics and op.name in ("open", "fdatasync", "sync_all") and not op.path.endswith(".log")

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        for name in names:
            await client.create(name, durability="fsync")
            await client.append(name, 3)
        life.fs.inject(Fault(hook=strike, when=follows))
        for _ in range(tries):
            try:
                await life.compactor.checkpoint()
            except (OSError, ApiError):
                continue
        assert struck
        assert struck[0] > 0
        before.update(await views_of(life.engine))

    before: dict[str, object] = {}
    assert world.live(scenario, end="kill")
    for end in ("drop", "keep"):
        assert see(world.after(end)) == before


def test_after_such_an_error_no_checkpoint_of_many_files_succeeds_before_a_restart() -> None:
    history, world = History(), World()

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        for i in range(20):
            await client.create(f"topic{i}", durability="fsync")
            await client.append(f"topic{i}", 1)
        life.fs.fail_writeback(told=True)
        life.fs._state.errors.count += 1  # of somebody else's file
        for _ in range(2):
            with pytest.raises(OSError, match="Input/output"):
                await life.compactor.checkpoint()

    assert world.live(scenario, end="kill")
    again = world.after("kill")

    async def checkpoint(life: Life) -> None:
        await life.compactor.checkpoint()

    assert again.live(checkpoint)
