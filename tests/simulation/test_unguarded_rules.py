"""Rules that every other test would let be broken: each story is here because a build that was wrong in one line
(`scripts/mutate`) has passed all the rest.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from os.path import basename, dirname
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from tests.engine.walks import SlowOffload
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.model import Client, History, view_of
from tests.simulation.router_lives import until_idle
from tests.simulation.segment_lives import exactly
from tests.simulation.test_crash_sweep import see
from tests.simulation.test_damage import appended, corrupt, frames_of, overwrite, salvaged, wal_files
from tests.simulation.test_recovery_rules import lived, lives_on
from tests.simulation.world import End, Life, World, settings
from tests.storage.offline.test_verify import damage
from topics.errors import ApiError
from topics.model import RouterPatch
from topics.runtime.offload import Pool
from topics.storage.maintenance.segment_rewrite import Replacement
from topics.storage.recovery.recovered_state import shard_of
from topics.storage.snapshots.snapshot import decode_part
from topics.storage.wal.frames import FrameType

APPEND, FORWARDED = FrameType.APPEND, FrameType.FORWARDED
ENDS: Final[tuple[End, ...]] = ("kill", "drop", "keep", "reorder")
HOLD_S: Final = 5.0
"""Longer than a checkpoint waits for a topic's files."""
RECOVERY_OPERATIONS: Final = 40
"""More than a start with two topics has operations that change the disk."""
PATH: Final = "/data/wal/shard-00/wal-00000000000000000000.log"


@asynccontextmanager
async def held(life: Life, name: str) -> AsyncIterator[None]:
    """Somebody else is at work on the files of this topic, for so long that a checkpoint passes over it."""
    segment_set = life.engine.registry.topics[name].segment_set
    assert segment_set is not None

    async def hold() -> None:
        async with segment_set.hot_lock:
            await trio.sleep(HOLD_S)

    async with trio.open_nursery() as holder:
        holder.start_soon(hold)
        await trio.testing.wait_all_tasks_blocked()
        yield
        holder.cancel_scope.cancel()


@pytest.mark.parametrize("end", ["kill", "drop"])
def test_rule_8_the_log_of_a_topic_that_a_checkpoint_has_passed_over_is_replayed(end: str) -> None:
    async def script(life: Life, client: Client) -> None:
        for name in ("held", "other"):
            await client.create(name, durability="fsync")
            await client.append(name, 1)
        await life.compactor.checkpoint()
        for name in ("held", "other"):
            await client.append(name, 2)
        async with held(life, "held"):
            await life.compactor.checkpoint()

    views = see(lived(script).after("drop" if end == "drop" else "kill"))
    assert {name: (sorted(view.records), view.gaps) for name, view in views.items()} == {
        "held": ([1, 2, 3], []),
        "other": ([1, 2, 3], []),
    }


@pytest.mark.parametrize("shards", [1, 3])
def test_rule_14_the_older_snapshot_of_a_new_number_of_shards_does_as_well(shards: int) -> None:
    async def script(life: Life, client: Client) -> None:
        for i in range(4):
            await client.create(f"topic-{i}", durability="fsync")
            await client.append(f"topic-{i}", 2)

    async def look(life: Life, client: Client) -> None:
        pass

    world = lived(script, wal_shards=2).after("kill")
    world.settings = settings(wal_shards=shards)
    lives_on(world, look)
    again = world.after("kill")
    newest = max(path for path in again.fs.tree() if path.startswith("/data/meta/snapshot."))
    again.fs.flip_bit(newest, 40, 0)
    views = see(again)
    assert [(view.count, view.gaps) for view in views.values()] == [(2, [])] * 4


def test_rule_6_what_has_expired_stays_so_after_a_kill_though_nobody_has_looked_and_the_clock_is_set_back() -> None:
    """The time of a checkpoint is all that tells."""

    async def script(life: Life, client: Client) -> None:
        await client.create("short", durability="fsync", ttl_ms=1000)
        await client.append("short", 2)
        await trio.sleep(5)
        await life.compactor.checkpoint()

    again = lived(script).after("kill")
    again.clock.step(-1_000_000)
    view = see(again)["short"]
    assert (view.count, view.gaps) == (0, [(1, 2, "ttl")])


def test_rule_15_where_nothing_behind_a_lost_range_tells_how_many_records_it_held_no_seq_of_them_is_used_again() -> (
    None
):
    async def script(life: Life, client: Client) -> None:
        await client.create("safe", durability="fsync")
        await client.append("safe", 3, size=60)
        await client.append("safe", 2, size=60)
        await trio.sleep(0.1)

    world = lived(script).after("drop")
    (path,) = wal_files(world.fs)
    world.fs.flip_bit(path, appended(world.fs, path, 1, 4).offset + 60, 0)
    view = salvaged(world)["safe"]
    ((first, last),) = corrupt(view)
    assert first == 4
    assert last >= 5
    assert view.head == last


def test_rule_15_a_log_that_ends_early_unnoticed_uses_no_seq_again_that_was_copied_from_elsewhere() -> None:
    """The file of a shard is put back as it was before: it vouches for nothing that is missing. Copies do."""

    async def script(life: Life, client: Client) -> None:
        names: dict[int, str] = {}
        for name in ("a", "b", "c", "d", "e", "f"):
            await client.create(name, durability="fsync")
            names.setdefault(shard_of(life.engine.registry.topics[name].id, 2), name)
        source, dest = names[0], names[1]
        await client.append(source, 2)
        await life.engine.routers.put("copies", RouterPatch(source=source, dest=dest, start="earliest"))
        await until_idle(life)
        await trio.sleep(0.1)
        before.update(source=source, dest=dest, file=life.fs.tree()[PATH])
        await client.append(source, 3)
        await until_idle(life)
        await trio.sleep(0.1)

    before: dict[str, Any] = {}
    world = lived(script, wal_shards=2).after("drop")
    world.fs.unlink(PATH)
    handle = world.fs.open(PATH, create=True)
    handle.pwrite(before["file"], 0)
    handle.fdatasync()
    handle.close()
    world.fs.sync_dir(dirname(PATH))
    views = see(world)
    for name in (before["source"], before["dest"]):
        assert (views[name].head, views[name].count, views[name].gaps) == (5, 2, [(3, 5, "lost")])


@pytest.mark.parametrize("operations", range(2, 20))
def test_rule_8_what_a_manifest_names_that_may_be_on_disk_is_not_written_again(operations: int) -> None:
    """The sync behind a rename fails. Had the files been written anew, less of them as a record is deleted, a crash
    would have found the manifest of the first try beside files of the second."""

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await client.append("a", 1)
        await client.append("a", 1, tag="x")
        await client.append("a", 2)
        life.fs.inject(Fault(name="sync_dir", path="/data/topics/*", error=errno.EIO, when=is_behind_a_rename(life.fs)))
        with pytest.raises(OSError, match="Input/output error"):
            await life.compactor.checkpoint()
        await client.delete("a", match=exactly("x"))
        life.fs.crash_at = life.fs.mutations + operations
        with suppress(ApiError):  # the writer of the log may be the first to meet it
            await life.compactor.checkpoint()

    for end in ENDS:
        world = World(config=settings())
        world.live(script, end="kill")
        again = world.after(end)
        view = see(again)["a"]
        assert (sorted(view.records), view.gaps) == ([1, 3, 4], [])
        assert see(again.after("drop"))["a"] == view


@pytest.mark.parametrize("stored_before", [False, True])
def test_rule_8_a_topic_with_an_uncertain_manifest_is_in_the_next_checkpoint(stored_before: bool) -> None:
    """It was in none before a restart, and the log of its shard grew meanwhile."""
    held: dict[str, Any] = {}

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await client.append("a", 2)
        if stored_before:
            await life.compactor.checkpoint()
            await client.append("a", 1)

        def is_behind_one(op: Op) -> bool:
            last = life.fs.ops[-2]
            return last.name == "rename" and last.path.endswith(".cbor.tmp") and "/topics/" in last.path

        failing = Fault(name="sync_dir", path="/data/topics/*", error=errno.EIO, when=is_behind_one, times=2)
        life.fs.inject(failing)
        with pytest.raises(OSError, match="Input/output error"):
            await life.compactor.checkpoint()
        topic = life.engine.registry.topic("a")
        before = topic.on_disk.part
        await client.append("a", 1)
        with suppress(OSError):  # the disk has not recovered
            await life.compactor.checkpoint()
        assert (failing.hits, topic.on_disk.part) == (2, before)
        await life.compactor.checkpoint()
        assert topic.on_disk.part is not None
        held["part"] = decode_part(topic.on_disk.part)
        await life.compactor.checkpoint()
        names = life.fs.listdir(dirname(life.engine.store.manifests.path(topic.id)))
        assert [name for name in names if name.startswith("topic.")] == [
            basename(life.engine.store.manifests.path(topic.id))
        ]
        held["position"] = (await life.compactor.checkpoint()).positions[topic.shard]

    world = World(config=settings())
    world.live(script, end="kill")
    part = held["part"]
    assert part.log["head_seq"] == 3 + stored_before
    assert held["position"] >= part.end
    assert part.generation == (2 if stored_before else 0)
    for end in ENDS:
        view = see(world.after(end))["a"]
        assert (sorted(view.records), view.gaps) == ([*range(1, 4 + stored_before)], [])


def is_behind_a_rename(fs: SimFs) -> Callable[[Op], bool]:
    """Whether a manifest was put in its place before this operation."""
    return lambda op: any(path.endswith("/topic.cbor") for path in fs.tree())


@pytest.mark.parametrize("seed", range(3))
def test_rule_2_names_that_a_start_has_relied_on_are_on_disk_before_it_removes_anything(seed: int) -> None:
    """A daemon dies between the rename of a manifest, which says that a segment has gone cold, and its sync; the next
    one, while it starts or clears away the hot file, and the machine with it."""
    config = settings(segment_max_events=4, hot_retain_segments=0, cold_dir=Path("/cold"))

    async def relocate(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        for _ in range(3):
            await client.append("a", 4)
        for _ in range(2):
            await life.compactor.checkpoint()

        def die_behind(op: Op) -> None:
            if op.name == "rename" and op.detail.endswith("/topic.cbor"):
                assert op.mutation is not None
                life.fs.crash_at = op.mutation + 1

        life.fs.subscribe(die_behind)
        await life.relocator.pass_over()
        raise AssertionError("nothing was relocated")

    async def clear_away(life: Life) -> None:
        await life.reclaimer.cold.pass_over()
        life.fs.crash()

    for operations in range(RECOVERY_OPERATIONS):
        world = World(config=config)
        world.live(relocate, end="kill")
        following = world.after("kill")
        following.fs.crash_at = following.fs.mutations + operations
        following.live(clear_away, end="kill")
        view = see(following.after("reorder", seed))["a"]
        assert (view.count, view.gaps) == (12, []), f"a crash of the start at its operation {operations}"
    assert following.fs.mutations < operations, "a start takes longer than was looked at"


def test_rule_11_cold_files_do_not_know_of_a_deletion_before_the_disk_does() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        for _ in range(3):
            await client.append("a", 2)
            for tag in ("x", "y"):
                await client.append("a", 1, tag=tag)
        for _ in range(2):
            await life.compactor.checkpoint()
        await life.relocator.pass_over()
        await client.delete("a", match=exactly("y"))
        await life.compactor.checkpoint()
        await client.delete("a", match=exactly("x"))
        await life.reclaimer.pass_over()

    config: dict[str, Any] = {
        "segment_max_events": 4,
        "hot_retain_segments": 1,
        "cold_dir": Path("/cold"),
        "rewrite_live_ratio": 0.1,
    }
    view = see(lived(script, **config).after("drop"))["a"]
    assert sorted(view.records) == [1, 2, 3, 5, 6, 7, 9, 10, 11]
    assert view.count == 9


def test_a_segment_that_was_written_anew_says_what_was_deleted_from_it() -> None:
    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="fsync")
        for _ in range(2):
            await client.append("a", 3, tag="x")
            await client.append("a", 1)
        await life.compactor.checkpoint()
        await client.delete("a", match=exactly("x"))
        await life.compactor.checkpoint()
        assert await life.reclaimer.pass_over()
        await life.compactor.checkpoint()

    world = lived(script, segment_max_events=4, rewrite_live_ratio=0.8).after("drop")
    assert damage(world.fs.after_process_kill()) == []
    view = see(world)["a"]
    assert (sorted(view.records), view.gaps) == ([4, 8], [])


def test_rule_12_a_cold_segment_that_is_written_anew_keeps_what_was_deleted_since_its_part_was_made() -> None:
    """A deletion comes right before the reclaimer looks at the segment, and is never synced. For a hot segment the sync
    of the removed names would sync it, because that covers the whole data directory."""

    async def script(life: Life, client: Client) -> None:
        await client.create("a", durability="disk")
        await client.append("a", 2, tag="x")
        await client.append("a", 1, tag="y")
        await client.append("a", 1)
        await client.append("a", 4)
        for _ in range(2):
            await life.compactor.checkpoint()
        await life.relocator.pass_over()
        await client.delete("a", match=exactly("x"))
        await life.compactor.checkpoint()
        prepare = life.reclaimer._prepare

        async def prepared(*args: Any) -> Replacement | None:
            life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*/wal/*", times=None))
            await client.delete("a", match=exactly("y"))
            return await prepare(*args)

        life.reclaimer._prepare = prepared  # type: ignore[assignment, method-assign]
        with pytest.raises(ApiError):  # the log has failed
            await life.reclaimer.pass_over()

    config: dict[str, Any] = {"segment_max_events": 4, "hot_retain_segments": 0, "cold_dir": Path("/cold")}
    view = see(lived(script, **config, rewrite_live_ratio=0.8).after("drop"))["a"]
    assert sorted(view.records) == [3, 4, 5, 6, 7, 8]
    assert not [gap for gap in view.gaps if gap[0] <= 8]


@pytest.mark.parametrize("after", ["relocation", "deletion"])
def test_rule_18_a_segment_that_copies_are_made_of_stays_where_it_is(after: str) -> None:
    async def script(life: Life, client: Client) -> None:
        for name in ("source", "dest"):
            await client.create(name, durability="fsync")
        for name, n in ("source", 4), ("source", 4), ("dest", 1):
            await client.append(name, n, size=1000)
        for _ in range(2):
            await life.compactor.checkpoint()
        await life.engine.routers.put("copies", RouterPatch(source="source", dest="dest", start="earliest"))
        await until_idle(life)
        if after == "relocation":
            await life.relocator.pass_over()
            life.fs.inject(Fault(error=errno.EIO, path="/cold/*", times=None))
        else:
            await client.delete("source", before=9)
            async with held(life, "dest"):
                await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
        assert len((await view_of(life.engine, "dest")).records) == 9

    world = lived(script, segment_max_events=4, hot_retain_segments=0, cold_dir=Path("/cold"), cache_bytes=1024)
    view = see(world.after("drop"))["dest"]
    assert (len(view.records), view.gaps) == (9, [])


def test_rule_18_copies_that_are_written_out_are_there_with_the_cursor_that_has_made_them_or_not_at_all() -> None:
    """The write of a batch of them is torn between the last copy and the cursor."""

    async def script(life: Life, client: Client) -> None:
        await client.create("source", durability="ephemeral")
        await client.create("dest", durability="fsync")
        router = RouterPatch(source="source", dest="dest", start="earliest", guarantee="exactly_once")
        await life.engine.routers.put("copies", router)
        await client.append("source", 2)
        await until_idle(life)

    world = lived(script).after("kill")
    (path,) = wal_files(world.fs)
    first, last, cursor = (frame for frame in frames_of(world.fs, path) if frame.type in (APPEND, FORWARDED))
    assert (first.seq, last.seq, cursor.type) == (1, 2, FORWARDED)
    torn = cursor.offset + 8
    overwrite(world.fs, path, torn, bytes(len(world.fs.tree()[path] or b"") - torn))
    assert see(world)["dest"].count == 0


def test_what_a_checkpoint_makes_useless_is_removed_though_the_reclaimer_has_looked_while_it_was_written() -> None:
    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await client.append("a", 8)
        await life.compactor.checkpoint()
        await client.delete("a", before=5)

        async def look_again_and_again() -> None:
            while True:
                await life.reclaimer.pass_over()
                await trio.sleep(0.01)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look_again_and_again)
            await life.compactor.checkpoint()
            nursery.cancel_scope.cancel()
        for _ in range(2):
            await life.reclaimer.pass_over()
            await life.compactor.checkpoint()
        assert [path for path in life.fs.tree() if path.endswith(".data")] == [
            life.store.datadir.segment_path(1, 5, "data")
        ]

    world = World(config=settings(segment_max_events=4))
    world.offload = partial(SlowOffload, {Pool.FILES: 1.0}, (0.05,))
    world.live(script, end="kill")
