"""Directories of version 1: read, and replaced file by file (`docs/spec/storage.md` section 6)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
import trio

from tests.simulation.disk import Op
from tests.simulation.disk_state import CRASH_KINDS
from tests.simulation.model import Client, History
from tests.simulation.test_crash_sweep import see
from tests.simulation.test_damage import appended, corrupt, frames_of, salvaged, wal_files
from tests.simulation.wal_content import salt_of
from tests.simulation.world import End, Life, World, settings
from topics.storage import store
from topics.storage.files import datadir
from topics.storage.files.datadir import DataDir
from topics.storage.recovery.damage import Damage
from topics.storage.wal import shard_log, shard_writer
from topics.storage.wal.batches import WalBatch
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_head import HEADLESS, WalHead

FORMAT_PATH = DataDir("/data").format_path
OLD = {"wal": 1, "segment": 1, "snapshot": 1}


@contextmanager
def old_daemon() -> Iterator[None]:
    """Inside, the log is written as version 1 was."""

    def enter(salt: int) -> WalHead:
        return HEADLESS

    def is_full(self: shard_writer.ShardWriter, batch: WalBatch) -> bool:
        return bool(self.file.end) and self.file.end + len(batch.data) > self._file_bytes

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datadir, "FORMAT", OLD)
        patch.setattr(store, "raise_format", lambda fs, layout: None)
        patch.setattr(shard_log, "new_head", enter)
        patch.setattr(shard_log.ShardLog, "_write_header", lambda self, handle, ordinal: None)
        patch.setattr(shard_writer.ShardWriter, "_is_full_for", is_full)
        yield


def written(*, appends: int = 6, checkpoint: bool = False) -> World:
    """A machine with a directory of version 1, after a kill."""
    world = World(config=settings())

    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("orders", durability="fsync")
        await client.create("events", durability="disk")
        for _ in range(appends):
            await client.append("orders", 2, size=60)
            await client.append("events", 1, size=200)
        if checkpoint:
            await life.compactor.checkpoint()
            await client.append("orders", 2, size=60)
        await trio.sleep(0.1)

    with old_daemon():
        assert world.live(scenario, end="kill")
        left = world.after("drop")
        assert msgspec.json.decode(left.fs.read(FORMAT_PATH)) == OLD
        assert {salt_of(left.fs.read(path)) for path in wal_files(left.fs)} == {None}
    return left


def format_of(world: World) -> object:
    return msgspec.json.decode(world.fs.read(FORMAT_PATH))


def salts(world: World) -> list[bool]:
    """Which files of the log have a salt, oldest first."""
    return [salt_of(world.fs.read(path)) is not None for path in wal_files(world.fs)]


@pytest.mark.parametrize("checkpoint", [False, True])
def test_an_old_directory_is_read_and_takes_no_record_of_a_client_in_an_old_file_any_more(checkpoint: bool) -> None:
    world = written(appends=40, checkpoint=checkpoint)
    with old_daemon():
        before = see(world.after("kill"))
    assert see(world.after("kill")) == before

    async def go_on(life: Life) -> None:
        assert format_of(world) == datadir.FORMAT
        old = wal_files(life.fs)
        assert not any(salts(world))
        client = Client(life.engine, History())
        for _ in range(3):
            await client.append("orders", 2, size=60)
            await client.append("events", 1, size=60)
        await trio.sleep(0.1)
        assert salts(world) == [False] * len(old) + [True] * (len(wal_files(life.fs)) - len(old))
        last = frames_of(life.fs, old[-1])
        assert [frame.type for frame in last[-2:]] == [FrameType.SHARD_OPEN, FrameType.FILE_END]

    assert world.live(go_on, end="kill")
    ends: tuple[End, ...] = ("kill", *CRASH_KINDS)
    for end in ends:
        views = see(world.after(end, 1))
        for name, view in views.items():
            assert before[name].records.items() <= view.records.items()
            assert len(view.records) == len(before[name].records) + (6 if name == "orders" else 3)
            assert not corrupt(view)

    async def replace_all(life: Life) -> None:
        client = Client(life.engine, History())
        for _ in range(3):
            await client.append("orders", 1)
            await life.compactor.checkpoint()

    last = world.after("drop")
    assert last.live(replace_all)
    assert all(salts(last)), "the old files went with checkpoints"


def test_a_directory_of_version_2_is_read_and_raised_by_the_first_start_and_its_files_go_on() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(datadir, "FORMAT", {"wal": 2, "segment": 2, "snapshot": 2})
        world = World(config=settings())

        async def fill(life: Life) -> None:
            client = Client(life.engine, History())
            await client.create("orders", durability="fsync")
            await client.append("orders", 2)
            await life.compactor.checkpoint()
            await client.append("orders", 2)

        assert world.live(fill, end="kill")
        before = see(world.after("kill"))
        assert format_of(world) == {"wal": 2, "segment": 2, "snapshot": 2}
    assert see(world.after("drop")) == before

    async def go_on(life: Life) -> None:
        assert format_of(world) == {"wal": 3, "segment": 3, "snapshot": 3}
        await Client(life.engine, History()).append("orders", 2)

    assert world.live(go_on)
    assert len(see(world.after("drop"))["orders"].records) == 6


@pytest.mark.parametrize("step", range(0, 60, 3))
def test_a_crash_at_any_step_of_the_first_start_leaves_a_directory_that_is_read_as_it_was(step: int) -> None:
    world = written(appends=4)
    with old_daemon():
        before = see(world.after("kill"))
    start = world.after("kill")

    async def go_on(life: Life) -> None:
        await Client(life.engine, History()).append("orders", 1)

    start.fs.crash_at = start.fs.mutations + step
    start.live(go_on, end="kill")
    for kind in CRASH_KINDS:
        views = see(start.after(kind, step))
        for name, view in views.items():
            assert before[name].records.items() <= view.records.items()
            assert view.head <= before[name].head + 1
            assert not corrupt(view)


def test_damage_in_an_old_directory_is_bounded_as_it_was() -> None:
    for seq in (1, 4):
        world = written()
        (path,) = wal_files(world.fs)
        frame = appended(world.fs, path, 2, seq)
        world.fs.flip_bit(path, frame.offset + 60, 3)
        with pytest.raises(Damage, match=f"events seqs {seq} to {seq}"):
            see(world.after("kill"))
        assert format_of(world) == OLD, "a start that is refused raises nothing"
        views = salvaged(world)
        assert corrupt(views["events"]) == [(seq, seq)]
        assert format_of(world) == datadir.FORMAT


def test_damage_to_the_very_first_frame_of_an_old_directory_is_bounded() -> None:
    world = written()
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, 20, 3)
    with pytest.raises(Damage, match=f"{path} at offset 0 "):
        see(world.after("kill"))
    assert corrupt(salvaged(world)["orders"]) == []


def test_no_crash_leaves_a_named_file_without_its_header() -> None:
    world = World(config=settings())
    looked = 0

    def look(op: Op) -> None:
        nonlocal looked
        if op.name in ("rename", "sync_dir") and op.path.startswith("/data/wal"):
            looked += 1
            for kind in CRASH_KINDS:
                born = world.fs.after_machine_crash(kind, looked)
                assert all(salt_of(born.read(path)) is not None for path in wal_files(born))

    async def scenario(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("orders", durability="fsync")
        for _ in range(30):
            await client.append("orders", 2, size=200)

    world.fs.subscribe(look)
    assert world.live(scenario, end="kill")
    assert looked > 6


@pytest.mark.parametrize("left", [0, 60, 400])
def test_an_old_file_that_ends_before_replay_begins_is_damage_and_salvage_ends(left: int) -> None:
    world = written(checkpoint=True)
    path = wal_files(world.fs)[-1]
    file = world.fs.open(path)
    file.truncate(left)
    file.fdatasync()
    file.close()
    with pytest.raises(Damage):
        see(world)
    assert msgspec.json.decode(world.fs.read(FORMAT_PATH)) == OLD, "a start that is refused raises no format"
    views = salvaged(world)
    assert any(corrupt(view) for view in views.values())
