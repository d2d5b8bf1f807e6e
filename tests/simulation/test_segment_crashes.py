"""Crash everywhere, with segments: checkpoints, flags, drops, rewrites, merges, relocation, removal, changes of class
and of the shard count, holds; and disks that fail meanwhile (`docs/spec/crash.md` 1 to 15 and 24).

As in `test_crash_sweep`, a run takes a sample of the points; with TOPICS_TEST_EVERYTHING=1 in the
environment it takes all of them, which is hours.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.lives import CLASSES
from tests.simulation.model import Client, History, Oracle, Sent
from tests.simulation.segment_lives import (
    SMALL,
    STORED,
    Faulty,
    Script,
    SegmentSweep,
    check_files,
    checkpoint,
    exactly,
    fill,
    fill_all,
    looked_at,
    maintenance,
    one_of_each,
    reclaim,
    relocate,
    see,
    with_shards,
)
from tests.simulation.world import COLD, ROOT, Life, World, all_ends, some_ends
from topics.config import Settings
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.storage.files.datadir import segment_name

pytestmark = pytest.mark.slow

# ----------------------------------------------------------------- scenarios


async def sealing(life: Life, client: Client) -> None:
    """Segments that are full by count and by bytes, beside caps and a ttl."""
    await one_of_each(client)
    await client.create("capped", durability="fsync", cap_records=12)
    await client.create("short", durability="disk", ttl_ms=300)
    for turn in range(3):
        await fill_all(client, 3, names=(*CLASSES, "capped", "short"), size=30 + 300 * turn)
        await client.delete("fsync", before=turn + 2)
        async with trio.open_nursery() as both:
            both.start_soon(checkpoint, life)
            both.start_soon(fill, client, "disk", 2)
            both.start_soon(delete_matching, client, "memory", exactly("b"))
        await trio.sleep(0.2)
    for name in list(life.engine.registry.topics):
        await client.look(name)


async def ageing(life: Life, client: Client) -> None:
    """Segments that are sealed for their age, with and without new records, and merged."""
    await one_of_each(client)
    for turn in range(4):
        await fill_all(client, 1, names=STORED if turn % 2 else CLASSES)
        await checkpoint(life)
        await trio.sleep(0.2)
        await reclaim(life)
        await checkpoint(life)
    await client.delete("disk", match=exactly("a"))
    await maintenance(life)


async def flagging(life: Life, client: Client) -> None:
    """Deletions in sealed and active segments, some of them beside the checkpoint that flags them."""
    await one_of_each(client)
    await fill_all(client, 6)
    await checkpoint(life)
    for name in CLASSES:
        await client.delete(name, match=exactly("a"))
        await client.delete(name, before=3)
    async with trio.open_nursery() as both:
        both.start_soon(checkpoint, life)
        for name in STORED:
            both.start_soon(delete_matching, client, name, TagMatch("ab", prefix=True))
    await fill_all(client, 1)
    await client.delete("disk", before=9)
    await checkpoint(life)


async def delete_matching(client: Client, name: str, match: TagMatch) -> None:
    await client.delete(name, match=match)


async def dropping(life: Life, client: Client) -> None:
    """Segments that the front passes, by caps, by ttl and by deletion."""
    await client.create("capped", durability="fsync", cap_records=10)
    await client.create("capped-disk", durability="disk", cap_bytes=500)
    await client.create("short", durability="memory", ttl_ms=250)
    await client.create("deleted", durability="fsync")
    for turn in range(3):
        await fill_all(client, 5, names=("capped", "capped-disk", "short", "deleted"))
        await client.delete("deleted", before=8 * turn + 3)
        await checkpoint(life)
        await trio.sleep(0.15)
        async with trio.open_nursery() as both:
            both.start_soon(reclaim, life)
            both.start_soon(fill, client, "capped", 2)
        await relocate(life)
    await client.delete("deleted", before=1000)
    await maintenance(life)


async def rewriting(life: Life, client: Client) -> None:
    """Segments with little in them that is live, deleted from and read while they are written anew."""
    await one_of_each(client, STORED)
    await fill_all(client, 8, names=STORED)
    await checkpoint(life)
    for name in STORED:
        await client.delete(name, match=exactly("a"))
        await client.delete(name, match=exactly("b"))
    await client.delete("fsync", before=2)

    async def readers() -> None:
        for name in STORED:
            await client.look(name)
            await client.delete(name, match=exactly("ab"))
            await client.look(name)

    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(readers)
        both.start_soon(fill, client, "disk", 2)
    await maintenance(life)


async def merging(life: Life, client: Client) -> None:
    """Small segments, some half dead, with holes and deletions, become one."""
    await one_of_each(client, STORED)
    await client.create("capped", durability="fsync", cap_records=5)
    names = (*STORED, "capped")
    for turn in range(5):
        for name in names:
            await client.append(name, 2, tag="ab"[turn % 2], meta={"turn": str(turn)})
        await checkpoint(life)
        await trio.sleep(0.02)
    await fill_all(client, 1, names=names)
    await client.delete("fsync", before=4)
    await checkpoint(life)
    async with trio.open_nursery() as both:
        both.start_soon(reclaim, life)
        both.start_soon(delete_matching, client, "disk", exactly("a"))
        both.start_soon(client.append, "memory", 2)
    await client.delete("memory", match=exactly("b"))
    await maintenance(life)


async def emptying(life: Life, client: Client) -> None:
    """A segment in the middle in which everything is deleted; then the front passes it."""
    await one_of_each(client, STORED)
    for name in STORED:
        await fill(client, name, 4)
        for _ in range(4):
            await client.append(name, 2, tag="doomed", node="n")
        await fill(client, name, 3)
    await checkpoint(life)
    for name in STORED:
        await client.delete(name, match=exactly("doomed"))
    await reclaim(life)
    await maintenance(life)
    for name in STORED:
        await client.look(name)
    await client.delete("fsync", before=12)
    await client.delete("disk", before=18)
    await maintenance(life)


async def moving(life: Life, client: Client) -> None:
    """Relocation; then deletions, a rewrite and a drop in the cold tier."""
    await one_of_each(client, STORED)
    await client.create("capped", durability="fsync", cap_records=20)
    names = (*STORED, "capped")
    await fill_all(client, 12, names=names)
    await checkpoint(life)
    async with trio.open_nursery() as both:
        both.start_soon(relocate, life)
        both.start_soon(delete_matching, client, "disk", exactly("ab"))
        both.start_soon(fill, client, "capped", 3)
    for name in names:
        await client.look(name)
        await client.delete(name, match=exactly("a"))
    await checkpoint(life)
    await reclaim(life)
    await client.delete("fsync", match=exactly("b"))
    await client.delete("memory", match=TagMatch("", prefix=True))
    await maintenance(life)
    await client.delete("fsync", before=10)
    await fill(client, "capped", 6)
    await maintenance(life)


async def removing(life: Life, client: Client) -> None:
    """Topics with segments, hot and cold, that are deleted and created again."""
    await one_of_each(client)
    for _turn in range(2):
        await fill_all(client, 12)
        await checkpoint(life)
        await relocate(life)
        await client.delete_topic("disk")
        async with trio.open_nursery() as both:
            both.start_soon(reclaim, life)
            both.start_soon(client.delete_topic, "fsync")
            both.start_soon(client.delete_topic, "memory")
        await one_of_each(client)
        async with trio.open_nursery() as both:
            both.start_soon(checkpoint, life)
            both.start_soon(fill, client, "fsync", 2)
            both.start_soon(client.delete_topic, "ephemeral")
        await one_of_each(client)
        await reclaim(life)
    await client.delete_topic("memory")
    await maintenance(life)


async def changing_class(life: Life, client: Client) -> None:
    """To `ephemeral` and back with records in segments, in the cold tier and in the log; checkpoints in between."""
    await one_of_each(client)
    await client.create("capped", durability="disk", cap_records=12)
    names = (*CLASSES, "capped")
    await fill_all(client, 9, names=names)
    await checkpoint(life)
    await relocate(life)
    await fill_all(client, 2, names=names)
    for name in names:
        await client.delete(name, match=exactly("a"))
    for name in (*STORED, "capped"):
        await client.configure(name, durability="ephemeral")
    await fill_all(client, 3, names=names)
    await client.delete("disk", before=4)
    await checkpoint(life)
    await fill_all(client, 2, names=names)
    await client.delete("memory", match=exactly("b"))
    await reclaim(life)

    async def back(name: str) -> None:
        await client.configure(name, durability="fsync" if name == "ephemeral" else "disk")
        await fill(client, name, 2)

    async with trio.open_nursery() as both:
        for name in names:
            both.start_soon(back, name)
        both.start_soon(checkpoint, life)
        both.start_soon(reclaim, life)
    for name in names:
        await client.look(name)
    await maintenance(life)


async def at_work(life: Life, client: Client) -> None:
    """A life between two starts: all that a topic may have to be taken over."""
    await one_of_each(client)
    await client.create("capped", durability="fsync", cap_records=12)
    await fill_all(client, 4, names=(*CLASSES, "capped"))
    for name in CLASSES:
        await client.delete(name, match=exactly("a"))
    await checkpoint(life)
    await relocate(life)
    await reclaim(life)
    await fill_all(client, 1)
    await client.delete("disk", before=5)


SCENARIOS: dict[str, tuple[Script, Settings]] = {
    "sealing": (sealing, SMALL),
    "ageing": (ageing, replace(SMALL, segment_max_age_ms=150, segment_max_events=20, segment_max_bytes=8192)),
    "flagging": (flagging, SMALL),
    "dropping": (dropping, SMALL),
    "rewriting": (rewriting, replace(SMALL, rewrite_live_ratio=0.7)),
    "merging": (merging, replace(SMALL, segment_max_age_ms=10, segment_max_events=20, segment_max_bytes=8192)),
    "emptying": (emptying, SMALL),
    "moving": (moving, replace(SMALL, rewrite_live_ratio=0.7)),
    "removing": (removing, with_shards(2)),
    "changing-class": (changing_class, SMALL),
}


def swept(name: str, *, stride: int, seed: int = 0) -> SegmentSweep:
    """A scenario that has been run."""
    script, config = SCENARIOS[name]
    sweep = SegmentSweep(config, seed)
    sweep.live(script, stride=stride)
    return sweep


@pytest.mark.parametrize("name", SCENARIOS)
def test_no_segment_work_breaks_a_promise_at_any_operation(name: str) -> None:
    sweep = swept(name, stride=1 if EVERYTHING else 97)
    sweep.judge_all(lambda point: all_ends(point, 1) if EVERYTHING else some_ends(point, 2))
    print(f"{name}: {sweep}")


# ----------------------------------------------------------------- several lives


async def after_a_hole(life: Life, client: Client) -> None:
    """Records behind a hole of a thousand seqs, which no segment may span."""
    await at_work(life, client)
    for name in CLASSES:
        await client.look(name)
    await client.delete("memory", match=exactly("ab"))
    await maintenance(life)


def after_crashes(*, stride: int) -> SegmentSweep:
    """Three lives, the first two of which end with the machine."""
    sweep = SegmentSweep()
    sweep.live(at_work, end="drop", collect=False)
    sweep.live(after_a_hole, end="keep", stride=stride)
    sweep.live(after_a_hole, end="stop", stride=stride)
    return sweep


def test_segments_end_where_a_long_hole_begins_at_any_operation() -> None:
    after_crashes(stride=2 if EVERYTHING else 113).judge_all(lambda point: some_ends(point, 2))


def other_shard_counts(*, stride: int) -> SegmentSweep:
    """One shard, three, two, one; each change is made by a start after one kind of end. What a wreck in a change meets
    is the old number, the new one, or another one again."""
    sweep = SegmentSweep(with_shards(1))
    sweep.live(at_work, end="kill", collect=False)
    for turn, (count, following, end) in enumerate(((3, 3, "drop"), (2, 3, "stop"), (1, 1, "kill"))):
        sweep.live(at_work, config=with_shards(count), following=with_shards(following), stride=stride + turn, end=end)
    return sweep


def test_rule_14_a_change_of_the_shard_count_breaks_no_promise_at_any_operation() -> None:
    other_shard_counts(stride=1 if EVERYTHING else 157).judge_all(lambda point: some_ends(point, 2))


# ----------------------------------------------------------------- damaged snapshots, crashes in recovery


async def back_to_back(life: Life, client: Client) -> None:
    """Two checkpoints in a row, again and again, with work on the files in between that no append explains."""
    await at_work(life, client)
    for _ in range(2):
        await checkpoint(life)
        await fill_all(client, 1)
        await client.delete("fsync", match=exactly("b"))
        await checkpoint(life)
        await checkpoint(life)
        await relocate(life)
        await reclaim(life)


def damage_newest_snapshot(fs: SimFs) -> None:
    """Flip a bit of the newest of two snapshots."""
    names = [name for name in fs.listdir("/data/meta") if name.startswith("snapshot.") and name.endswith(".cbor")]
    if len(names) > 1:
        newest = max(names, key=lambda name: int(name.split(".")[1]))
        fs.flip_bit(f"/data/meta/{newest}", 60, 3)


def snapshots_damaged(*, stride: int) -> SegmentSweep:
    """Back to back checkpoints, after a kill and then again."""
    sweep = SegmentSweep()
    sweep.live(back_to_back, end="kill", stride=stride)
    sweep.live(back_to_back, end="kill", stride=stride)
    return sweep


def test_rule_9_the_older_of_two_snapshots_does_as_well_at_any_operation() -> None:
    snapshots_damaged(stride=1 if EVERYTHING else 113).judge_all(
        lambda point: some_ends(point, 2), hurt=damage_newest_snapshot
    )


@pytest.mark.parametrize("name", SCENARIOS)
def test_rule_2_any_crash_in_the_recovery_from_a_crash_breaks_no_promise(name: str) -> None:
    sweep = swept(name, stride=37 if EVERYTHING else 311, seed=1)
    sweep.judge_recoveries(stride=1 if EVERYTHING else 17)
    print(f"{name}: {sweep}")


# ----------------------------------------------------------------- holds


def content_of(life: Life, name: str) -> bytes | None:
    """A file as `Engine.checkpoint` names it; None if it is gone."""
    path = f"{COLD}/{name.removeprefix('cold:')}" if name.startswith("cold:") else f"{ROOT}/{name}"
    return life.fs.read(path) if life.fs.exists(path) else None


def machine_with(files: dict[str, bytes], *, now_ms: int) -> World:
    """Another machine with a copy of these files and nothing else."""
    fs = SimFs(1)
    for name, content in files.items():
        path = f"{COLD}/{name.removeprefix('cold:')}" if name.startswith("cold:") else f"{ROOT}/{name}"
        fs.mkdir(path.rpartition("/")[0])
        handle = fs.open(path, create=True)
        handle.pwrite(content, 0)
        handle.close()
    fs.settle()
    return World(1, config=SMALL, fs=fs, now_ms=now_ms)


@pytest.mark.parametrize("seed", range(3))
def test_rule_13_what_a_hold_names_stays_as_it_is_and_a_copy_of_it_is_a_directory(seed: int) -> None:
    """The copy is made file by file, while clients and all kinds of work go on; work waits for the end of the hold."""
    sweep = SegmentSweep(SMALL, seed)
    copied: dict[str, bytes] = {}
    known = 0

    async def holding(life: Life, client: Client) -> None:
        nonlocal known
        await at_work(life, client)
        await fill_all(client, 6)
        await maintenance(life)
        await client.create("leaving", durability="fsync")
        await fill(client, "leaving", 6)
        for name in STORED:
            await client.delete(name, match=exactly("ab"))
        names, _ = await life.engine.checkpoint(60_000)
        known = len(sweep.history)
        before = {name: content_of(life, name) for name in names}
        assert None not in before.values()

        async def copy() -> None:
            for name in names:
                await trio.sleep(0.5)
                content = content_of(life, name)
                assert content is not None, f"{name} is gone"
                copied[name] = content

        async def clients() -> None:
            for name in STORED:
                await client.delete(name, match=exactly("b"))
                await client.look(name)
                await fill(client, name, 8)
                await trio.sleep(1)
            await client.delete("fsync", before=12)
            await client.delete_topic("leaving")
            await client.configure("memory", durability="ephemeral")
            await client.configure("ephemeral", durability="fsync")
            await client.create("new", durability="fsync")
            await fill(client, "new", 6)

        async with trio.open_nursery() as both:
            both.start_soon(copy)
            both.start_soon(clients)
            for one in (reclaim, relocate, checkpoint):
                both.start_soon(one, life)
            await trio.sleep(55)
            for name, content in before.items():
                assert content is not None
                now = content_of(life, name)
                assert now is not None, f"{name} is gone"
                if name.startswith("wal/"):
                    written = content.rstrip(b"\0")
                    assert now.startswith(written), f"{name} has changed"
                else:
                    assert now == content, f"{name} has changed"
        await maintenance(life)
        await maintenance(life)
        check_files(life)

    sweep.live(holding, collect=False)
    history = History()
    entries = sweep.history.entries
    # What was asked for after the copy began may be in it or not.
    history.entries += entries[:known] + [entry for entry in entries[known:] if isinstance(entry, Sent)]
    world = machine_with(copied, now_ms=sweep.world.clock.now_ms())
    sweep.judge_world(world, Oracle(history), "machine", "drop")


# ----------------------------------------------------------------- disks that fail


FAULTS: dict[str, Callable[[Op], Fault]] = {
    "eio": lambda op: Fault(error=errno.EIO, at=op.index),
    "eio-in-part": lambda op: Fault(error=errno.EIO, at=op.index, keep_some=True, short=100),
    "eio-but-done": lambda op: Fault(error=errno.EIO, at=op.index, applied=True),
    "enospc-for-a-while": lambda op: Fault(
        error=errno.ENOSPC,
        times=None,
        when=lambda other: other.index >= op.index and other.name in ("pwrite", "create", "mkdir", "preallocate"),
    ),
    "short": lambda op: Fault(short=7, at=op.index),
}


def applies(kind: str, op: Op) -> bool:
    """Whether such a fault at this operation is another one than those of the other kinds."""
    if kind == "eio":
        return op.name not in ("exists", "lock")
    if kind == "short":
        return op.name == "pwrite"
    if kind == "enospc-for-a-while":
        return op.name in ("pwrite", "create")
    return op.mutation is not None


def every_fault(name: str, kind: str, *, stride: int, wal: bool = True) -> None:
    """One run for each operation that fails."""
    script, config = SCENARIOS[name]
    config = replace(config, wal_shards=2)
    runs = failures = stuck = 0
    ops = [op for op in Faulty(script, config).ops if applies(kind, op) and (wal or "/wal/" not in op.path)]
    for op in ops[len(kind) % stride :: stride]:
        try:
            run = Faulty(script, config, partial(FAULTS[kind], op))
            run.judge((("kill", "drop", "reorder")[op.index % 3],))
        except Exception as error:
            raise AssertionError(f"{kind} at {op}: {type(error).__name__}: {error}") from error
        runs += 1
        failures += run.failed
        stuck += run.stuck
        if kind == "short":
            assert not run.failed
            assert not run.stuck
    print(f"{name}, {kind}: {runs} faults, {failures} shards went read-only, {stuck} manifests are uncertain")


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", ["rewriting", "moving", "removing"])
def test_a_fault_at_a_sample_of_the_operations_breaks_no_promise(name: str, kind: str) -> None:
    every_fault(name, kind, stride=701, wal=False)


@pytest.mark.skipif(not EVERYTHING, reason="takes an hour: TOPICS_TEST_EVERYTHING=1")
@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_fault_at_any_operation_breaks_no_promise(name: str, kind: str) -> None:
    every_fault(name, kind, stride=7)


# ----------------------------------------------------------------- what the sweeps have found


async def half_dead(life: Life, client: Client, *, cold: bool) -> None:
    """Two full segments with little in them that is live, and flags for all that is not."""
    await client.create("topic", durability="fsync")
    for i in range(10):
        await client.append("topic", 2, tag="dead" if i % 4 != 3 else None)
    await life.compactor.checkpoint()
    if cold:
        await life.relocator.pass_over()
    await client.look("topic")
    await client.delete("topic", match=exactly("dead"))
    await life.compactor.checkpoint()


@pytest.mark.parametrize("cold", [False, True])
@pytest.mark.parametrize("at", ["create *.data.tmp", "create *.idx.tmp", "create *.tags.tmp", "rename *.tags.tmp"])
def test_rule_12_a_rewrite_that_fails_half_way_loses_nothing_when_it_is_tried_again(at: str, cold: bool) -> None:
    """Found by the faults: the second attempt copied by offsets in the file that the first one had replaced, and wrote
    garbage in the place of live records."""
    sweep = SegmentSweep()

    async def scenario(life: Life, client: Client) -> None:
        await half_dead(life, client, cold=cold)
        name, path = at.split()
        fault = life.fs.inject(Fault(error=errno.EIO, name=name, path=path))
        await maintenance(life)
        assert fault.hits == 1
        await maintenance(life)
        Oracle(sweep.history).judge_live(await looked_at(life), now_ms=life.clock.now_ms())
        check_files(life)

    sweep.live(scenario, collect=False)
    sweep.judge_world(sweep.world, Oracle(sweep.history), "kill", "drop")


def test_what_work_that_failed_has_left_is_cleared_away_while_the_daemon_runs() -> None:
    """Found by the faults: files of an attempt that the next one did not take over stayed until a restart."""

    async def scenario(life: Life, client: Client) -> None:
        await client.create("topic", durability="fsync")
        await fill(client, "topic", 12)
        life.fs.inject(Fault(error=errno.EIO, name="create", path="*topic.cbor.tmp"))
        with pytest.raises(OSError, match="error"):
            await life.compactor.checkpoint()
        await client.delete("topic", before=2)
        await life.compactor.checkpoint()
        life.fs.inject(Fault(error=errno.EIO, name="unlink", path="/data/*.data"))
        with pytest.raises(OSError, match="error"):
            await life.relocator.pass_over()
        await life.reclaimer.pass_over()
        await life.compactor.checkpoint()
        check_files(life)

    SegmentSweep().live(scenario, collect=False)


def test_a_cold_copy_that_a_crash_cut_short_leaves_nothing_behind() -> None:
    """Found by the sweep: temporary files in the cold directory were nobody's."""
    sweep = SegmentSweep()
    sweep.live(moving, stride=1)
    cut = [point for point in sweep.points if point.wreck.op.name == "rename" and "/cold/" in point.wreck.op.path]
    for point in cut[:2]:
        sweep.judge(point, "keep", 0)
        sweep.judge(point, "kill", 1)


def test_one_topic_whose_files_fail_holds_up_no_other() -> None:
    """Found by reading: a scan ended at the first error, and the next one began where it had begun."""

    async def scenario(life: Life, client: Client) -> None:
        names = ("first", "second", "third")
        for name in names:
            await client.create(name, durability="fsync")
            await fill(client, name, 12)
        await life.compactor.checkpoint()
        ids = [life.engine.registry.topics[name].id for name in names]
        bad = life.fs.inject(Fault(error=errno.EIO, path=f"*/{ids[0]:016x}/*", times=None))
        with pytest.raises(OSError, match="error"):
            await life.relocator.pass_over()
        for topic_id in ids[1:]:
            assert life.fs.is_file(f"{COLD}/topics/{topic_id:016x}/{segment_name(1, 'data')}")
        for name in names:
            await client.delete(name, before=10)
        bad.times = bad.hits
        await life.compactor.checkpoint()
        bad.times = None
        with pytest.raises((OSError, ApiError)):
            await life.reclaimer.pass_over()
        for topic_id in ids[1:]:
            assert not life.fs.is_file(f"{COLD}/topics/{topic_id:016x}/{segment_name(1, 'data')}")

    SegmentSweep().live(scenario, collect=False)


@pytest.mark.parametrize("path", ["/data/topics", "/cold/topics", "/cold", f"/data/topics/{1:016x}"])
def test_names_whose_sync_has_failed_are_made_again(path: str) -> None:
    """Found by the faults: the next sync succeeded and said nothing about them, the log went, and so did the records
    with the machine."""
    sweep = SegmentSweep(replace(SMALL, wal_file_bytes=4 << 10))

    async def scenario(life: Life, client: Client) -> None:
        for sync in ("sync_dir", "sync_all")[: 1 if path.startswith("/data") else 2]:
            life.fs.inject(Fault(error=errno.EIO, name=sync, path=path))
        await client.create("topic", durability="fsync")
        await fill(client, "topic", 2)  # a few files are synced one by one
        for _ in range(4):
            await maintenance(life)
            await fill(client, "topic", 12)
        assert not life.fs.is_file(f"/data/wal/wal-{0:020d}.log")

    sweep.live(scenario, end="drop", collect=False)
    sweep.judge_world(sweep.world, Oracle(sweep.history), "machine", "drop")


@pytest.mark.parametrize("stale", ["data", "idx"])
def test_rule_11_a_flag_that_a_crash_has_left_in_one_of_two_files_gets_into_the_other(stale: str) -> None:
    """Found by the sweep: the flag was in `.data` and not in `.idx`; recovery read the one, took the deletion for
    flagged, and records were back when a life after it read the other."""
    sweep = SegmentSweep()
    before: dict[str, bytes] = {}

    def path(kind: str) -> str:
        return f"{ROOT}/topics/{1:016x}/{segment_name(1, kind)}"

    async def scenario(life: Life, client: Client) -> None:
        await client.create("topic", durability="fsync")
        for tag in ("a", "b", "a", "b"):
            await client.append("topic", 1, tag=tag)
        await life.compactor.checkpoint()
        before.update({kind: life.fs.read(path(kind)) for kind in ("data", "idx")})
        await client.delete("topic", match=exactly("b"))
        await life.compactor.checkpoint()

    sweep.live(scenario)
    flagged = [point for point in sweep.points if point.wreck.op.path.endswith("topic.cbor.tmp")][-1]
    world = flagged.wreck.world("keep", 0, SMALL)
    handle = world.fs.open(path(stale))
    handle.pwrite(before[stale], 0)
    handle.fdatasync()
    handle.close()

    async def go_on(life: Life) -> None:
        await fill(Client(life.engine, History()), "topic", 4)
        await life.compactor.checkpoint()

    assert world.live(go_on, end="kill")
    again = world.after("drop")
    for without in ((), ("idx", "tags")):
        for kind in without:
            again.fs.unlink(path(kind))
        again.fs.settle()
        shown = see(again.after("drop"))["topic"]
        assert [seq for seq in range(1, 5) if seq in shown.records] == [1, 3]
