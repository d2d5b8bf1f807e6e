"""Files of the log that have lost their end: nobody can tell how long they were. Salvage gives no seq out again that
was in the part that is gone (`docs/spec/semantics.md` section 8, `docs/spec/crash.md` 15).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import pytest
import trio

from tests.simulation.model import Client, History, View, numbered, views_of
from tests.simulation.queue_state import nobody_moves
from tests.simulation.router_lives import until_idle
from tests.simulation.test_damage import wal_files
from tests.simulation.world import ROOT, Life, World, settings
from topics.config import Settings
from topics.model import CheckedAppend, Performance, RecordIn, RouterPatch
from topics.storage.files.datadir import DataDir
from topics.storage.recovery.damage import Damage
from topics.storage.snapshots.snapshot import load_newest

COUNT: Final = 30
"""Records of each topic that are in the part of the file that is lost, and nowhere else."""
HEADER: Final = 32


def cut(world: World, path: str, size: int) -> None:
    """Shorten a file, durably."""
    handle = world.fs.open(path)
    handle.truncate(size)
    handle.fdatasync()
    handle.close()


def _checked(records: Sequence[RecordIn]) -> CheckedAppend:
    datas = [bytes(record.data) for record in records]
    return CheckedAppend(records=list(records), datas=datas, tags=None, nodes=None, metas=None)


async def write(life: Life, *, full: int, behind: bool) -> None:
    """Records in three ways: appended, copied by a router, committed as a stage. In front of them, in the same file,
    records of `full` bytes, which the snapshots have. `behind` them the log goes on in another file, of which none of
    these topics has a record.
    """
    client = Client(life.engine, History())
    for name in ("appended", "copied", "committed", "other"):
        await client.create(name, durability="fsync")
    await life.engine.routers.put("router", RouterPatch(source="appended", dest="copied"))
    if full:
        await client.append("other", 1, size=full)
    await trio.sleep(2)
    for _ in range(2):
        await life.compactor.checkpoint()
    await client.append("appended", COUNT, size=0)
    await until_idle(life)
    await life.engine.stages.append(
        "committed", "stage", _checked(numbered(range(1000, 1000 + COUNT), 0)), Performance()
    )
    await life.engine.stage_commits.commit("committed", ["stage"], "key", Performance())
    await trio.sleep(2)
    while behind and len(wal_files(life.fs)) < 2:
        await client.append("other", 1, size=1000)
    await trio.sleep(2)


def written(*, behind: bool, full: int = 0, config: Settings | None = None) -> World:
    """A machine after `write`."""
    world = World(config=config or settings())

    async def scenario(life: Life) -> None:
        await write(life, full=full, behind=behind)

    assert world.live(scenario, end="kill")
    return world.after("drop")


def begin_of(world: World) -> int:
    """The offset in the first file from which replay begins."""
    snapshot, damaged = load_newest(world.fs, DataDir(ROOT))
    assert snapshot is not None
    assert not damaged
    ordinal, offset, _ = snapshot.positions[0]
    assert wal_files(world.fs)[0].endswith(f"-{ordinal:020}.log")
    return offset


def see(world: World) -> dict[str, View]:
    """What a recovery shows before a router moves anything; then the process is killed."""
    views: dict[str, View] = {}

    async def look(life: Life) -> None:
        with nobody_moves(life):
            views.update(await views_of(life.engine))
            life.engine.status.phase = "draining"

    assert world.live(look, end="kill")
    return views


def judge(world: World, size: int) -> None:
    """Cut the first file. No head is lower after the salvage than it was."""
    whole = see(world.after("kill"))
    assert {name: whole[name].head for name in ("appended", "copied", "committed")} == {
        "appended": COUNT,
        "copied": COUNT,
        "committed": COUNT,
    }
    path = wal_files(world.fs)[0]
    cut(world, path, size)
    with pytest.raises(Damage, match=path):
        see(world.after("kill"))
    world.settings = replace(world.settings, recovery="salvage")
    views = see(world)
    again = world.after("drop")
    again.settings = replace(world.settings, recovery="strict")
    assert see(again) == views, "a strict start after the salvage shows something else"
    for name, view in whole.items():
        assert views[name].head >= view.head, name
        for seq in view.records.keys() - views[name].records.keys():
            assert views[name].gap_of(seq) == "corrupt", (name, seq)


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("size", [0, HEADER - 1, HEADER, 100])
def test_no_seq_is_given_out_again_where_a_file_ends_before_replay_begins(size: int, behind: bool) -> None:
    world = written(behind=behind)
    assert begin_of(world) > 100
    judge(world, size)


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("more", [0, 1, 60, 400])
def test_no_seq_is_given_out_again_where_a_file_ends_behind_the_begin_of_replay(more: int, behind: bool) -> None:
    world = written(behind=behind)
    judge(world, begin_of(world) + more)


@pytest.mark.parametrize("behind", [True, False])
@pytest.mark.parametrize("size", [0, 100, None])
def test_no_seq_is_given_out_again_where_a_file_had_grown_beyond_its_size(size: int | None, behind: bool) -> None:
    """Replay begins behind the size that the setting gives to files; they grow while a next one cannot be made."""
    config = settings()
    world = written(behind=behind, full=config.wal_file_bytes, config=replace(config, wal_file_bytes=32 << 10))
    assert begin_of(world) > config.wal_file_bytes
    world.settings = config
    judge(world, begin_of(world) if size is None else size)
