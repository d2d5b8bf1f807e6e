"""Which directories a standby may replace: those in which nothing has ever happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.disk import SimFs
from tests.simulation.world import ROOT, Life, World
from topics.bucket.standby.unused_directory import is_unused
from topics.model import TopicConfigPatch
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import join

DATADIR = DataDir(ROOT)


def begun() -> World:
    """A daemon has started, and its machine has crashed."""

    async def nothing(life: Life) -> None:
        pass

    world = World()
    assert world.live(nothing, end="kill")
    return world.after("kill")


def test_what_a_first_start_leaves_is_unused_at_each_of_its_steps() -> None:
    world, wrecks = World(), list[SimFs]()

    async def nothing(life: Life) -> None:
        pass

    world.fs.subscribe(lambda op: wrecks.append(world.fs.after_process_kill()) if op.mutation is not None else None)
    assert world.live(nothing, end="kill")
    assert len(wrecks) > 20
    for wreck in wrecks:
        if wreck.exists(ROOT):
            assert is_unused(wreck, DATADIR), sorted(wreck.tree())


def test_a_topic_that_is_in_the_log_alone_is_somebodys() -> None:
    async def one_topic(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))

    world = World()
    assert world.live(one_topic, end="kill")
    wreck = world.after("kill").fs
    assert not wreck.listdir(DATADIR.topics_dir)
    assert not is_unused(wreck, DATADIR)


def written(path: str) -> Callable[[SimFs], None]:
    def change(fs: SimFs) -> None:
        with fs.open(path, create=True) as file:
            file.pwrite(b"x", 0)

    return change


def bytes_behind_the_log(fs: SimFs) -> None:
    path = next(path for path in sorted(fs.tree()) if path.endswith(".log"))
    with fs.open(path) as file:
        file.pwrite(b"x", file.size() - 1)


FOREIGN = {
    "a file beside": written(join(ROOT, "notes.txt")),
    "a snapshot": written(DATADIR.snapshot_path(1)),
    "a note of a bucket": written(DATADIR.bucket_path),
    "a key": written(DATADIR.evidence_key_path),
    "a topic": written(join(DATADIR.topics_dir, "1")),
    "a file kept aside": written(join(DATADIR.wal_dir, "kept.log")),
    "bytes that are no frame": bytes_behind_the_log,
}


@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_whatever_else_is_there_is_somebodys(change: Callable[[SimFs], None]) -> None:
    fs = begun().fs
    assert is_unused(fs, DATADIR)
    change(fs)
    assert not is_unused(fs, DATADIR)
