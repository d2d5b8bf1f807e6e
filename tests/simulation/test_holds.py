"""Checkpoints go on during a hold, and what the hold has named stays as it is (`docs/spec/crash.md` 13,
`docs/design/holds.md`).

Copies of the named files are recovered, and show the directory as of the answer that named them. That a crash during a
hold loses nothing is asked by the rows `hold` and `checkpoint-in-hold` of the crash table.
"""

from __future__ import annotations

import errno
import posixpath
from contextlib import suppress
from dataclasses import replace

import pytest
import trio

from tests.simulation import router_lives
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.model import Client, History, View, views_of
from tests.simulation.segment_lives import (
    SMALL,
    STORED,
    check_files,
    exactly,
    fill,
    fill_all,
    one_of_each,
    reclaim,
    relocate,
    see,
    unexpected,
)
from tests.simulation.world import COLD, ROOT, Life, World, quiet
from topics.log.span import Span
from topics.storage.offline.findings import Finding
from topics.storage.offline.verify import Verification
from topics.storage.recovery.restored_copy import MARK
from topics.storage.segments.topic_segments import Segment

HOLD_MS = 60_000
SNAPSHOT = "/meta/snapshot."


class Named:
    """What one answer has named, as it was then."""

    def __init__(self, fs: SimFs, names: list[str], views: dict[str, View]) -> None:
        paths = [f"{COLD}/{name[5:]}" if name.startswith("cold:") else f"{ROOT}/{name}" for name in names]
        self.content = {path: fs.read(path) for path in paths}
        self.views = views
        assert len(self.content) == len(names)

    def changed(self, fs: SimFs) -> list[str]:
        """The files that are not what they were, or are not there."""
        tree = fs.tree()
        return [path for path, content in self.content.items() if tree.get(path) != content]

    def copied(self, fs: SimFs) -> SimFs:
        """A disk with copies of these files and nothing else."""
        copy = fs.after_process_kill()
        tree = copy.tree()
        for path, content in tree.items():
            if content is not None and path not in self.content:
                copy.unlink(path)
        for path, content in sorted(tree.items(), reverse=True):
            if content is None and posixpath.basename(posixpath.dirname(path)) == "topics" and not copy.listdir(path):
                copy.rmdir(path)
        copy.open(f"{ROOT}/{MARK}", create=True).close()
        copy.settle()
        return copy

    def check_copy(self, world: World) -> None:
        """Nothing is wrong with a copy, and a daemon that is started on it shows what there was."""
        copy = self.copied(world.fs)
        assert damage_in(copy, world) == []
        views = see(World(world.seed + 1, config=world.settings, fs=copy, now_ms=world.clock.now_ms()))
        assert views.keys() == self.views.keys()
        for name, view in self.views.items():
            if view.config.durability != "ephemeral":
                assert views[name].records == view.records, name
                assert views[name].gaps[: len(view.gaps)] == view.gaps
                assert views[name].count == view.count
                assert views[name].earliest == view.earliest or not view.records


def damage_in(fs: SimFs, world: World) -> list[Finding]:
    cold = None if world.settings.cold_dir is None else str(world.settings.cold_dir)
    with quiet():
        return [finding for finding in Verification(fs, ROOT, cold).findings() if finding.severity == "damage"]


async def named(life: Life, hold_ms: int = HOLD_MS) -> Named:
    names, _ = await life.engine.checkpoint(hold_ms)
    return Named(life.fs, names, await views_of(life.engine))


async def stored(life: Life, client: Client) -> None:
    """Topics of all classes with sealed, active and cold segments; deletions in them, and records in the log."""
    await one_of_each(client)
    await fill_all(client, 6)
    await life.compactor.checkpoint()
    await relocate(life)
    await client.delete("disk", match=exactly("b"))
    await fill_all(client, 2)


async def changed(client: Client, turn: int) -> None:
    """Something of all that clients do."""
    await fill_all(client, 3)
    for name in STORED:
        await client.delete(name, match=exactly(("a", "ab")[turn % 2]))
    await client.delete("fsync", before=3 + turn)
    await client.configure("disk", cap_records=100 - turn)
    await client.create(f"new{turn}", durability="fsync")
    await fill(client, f"new{turn}", 2)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("shards", [1, 2])
def test_checkpoints_go_on_during_a_hold_and_copies_of_what_it_names_are_as_of_its_answers(
    shards: int, seed: int
) -> None:
    world = World(seed, config=replace(SMALL, wal_shards=shards))
    answers: list[Named] = []
    touched: list[str] = []

    def look(op: Op) -> None:
        if op.mutation is not None:
            touched.extend(f"{path} before {op}" for answer in answers for path in answer.changed(world.fs))

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await stored(life, client)
        answers.append(await named(life))
        world.fs.subscribe(look)
        began = (await life.engine.checkpoint(0))[1]
        for turn in range(4):
            await changed(client, turn)
            taken = await life.compactor.checkpoint()
            assert not life.engine.registry.changed, "it has left out some topics"
            assert all(taken.positions[shard] > began[shard] for shard in began), "a start would replay all of it"
            if turn == 1:
                answers.append(await named(life))
            if turn == 2:
                await client.delete_topic("memory")
        async with trio.open_nursery() as beside:
            for work in (reclaim, relocate):
                beside.start_soon(work, life)
            await trio.sleep(1)
            beside.cancel_scope.cancel()
        snapshots = [{path for path in answer.content if SNAPSHOT in path} for answer in answers]
        assert snapshots[0] == snapshots[1], "a tool that copies would think that the hold was over"

    assert world.live(script, end="kill")
    assert touched == []
    for answer in answers:
        assert answer.changed(world.fs) == []
        answer.check_copy(world)
    unexpected(world)
    assert damage_in(world.fs.after_process_kill(), world) == []
    last = see(world.after("drop"))
    assert "memory" not in last
    assert {"new0", "new3"} <= last.keys()


def test_what_a_hold_has_kept_goes_with_the_first_checkpoint_after_it() -> None:
    world = World(config=SMALL)

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("plain", durability="fsync")
        await fill(client, "plain", 1)
        await stored(life, client)
        answer = await named(life)
        for turn in range(3):
            await changed(client, turn)
            await fill(client, "plain", 1)
            await life.compactor.checkpoint()
        before = await views_of(life.engine)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.compactor.run)
            await trio.sleep(HOLD_MS / 1000 - 1)
            assert answer.changed(life.fs) == []
            await trio.sleep(1 + 3 * world.settings.checkpoint_ms / 1000)
            nursery.cancel_scope.cancel()
        gone = set(answer.changed(life.fs))
        assert {path for path in answer.content if path.endswith((".log", "/topic.cbor")) or SNAPSHOT in path} <= gone
        assert not any(span.unflagged for name in STORED for span in hot_spans(life, name)), "flagged by now"
        for _ in range(3):
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            await life.relocator.pass_over()
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
        check_files(life)
        for name, view in (await views_of(life.engine)).items():
            assert view == before[name]

    assert world.live(script)
    unexpected(world)


def hot_spans(life: Life, name: str) -> list[Span]:
    spans = life.engine.registry.topic(name).log.stored.all()
    return [span for span in spans if isinstance(span.segment, Segment) and span.segment.tier == "hot"]


def test_a_hold_is_prolonged_while_a_checkpoint_takes_longer_than_the_hold_still_lasts() -> None:
    """The call that prolongs it waits for that checkpoint, which waits here for the files of a topic."""
    world = World(config=SMALL)
    hold_ms = 500
    answers: list[Named] = []

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await stored(life, client)
        answers.append(await named(life, hold_ms))
        await changed(client, 0)
        segment_set = life.engine.registry.topic("fsync").segment_set
        assert segment_set is not None
        began = trio.current_time()
        async with segment_set.hot_lock, trio.open_nursery() as nursery:
            nursery.start_soon(life.compactor.checkpoint)
            await trio.sleep(hold_ms / 2000)
            answers.append(await named(life, hold_ms))
        assert trio.current_time() - began > hold_ms / 1000
        snapshots = [{path for path in answer.content if SNAPSHOT in path} for answer in answers]
        assert snapshots[0] == snapshots[1]
        assert answers[0].changed(life.fs) == []

    assert world.live(script, end="kill")
    for answer in answers:
        answer.check_copy(world)


@pytest.mark.parametrize("seed", range(2))
def test_copies_between_topics_are_in_a_copy_that_was_asked_for_late_in_a_hold(seed: int) -> None:
    """They are made of records in segments that are younger than the hold, and get their own only behind the answer."""
    world = World(seed, config=router_lives.SMALL)
    answers: list[Named] = []

    async def script(life: Life) -> None:
        client = router_lives.Client(life, router_lives.History())
        for name in ("a", "b", "late"):
            await client.topic(name, durability="disk")
        await client.router("a>b", "a", "b")
        await client.append("a", 3)
        await client.look()
        answers.append(await named(life))
        for _ in range(2):
            await client.append("a", 12)
            await client.look()
            await life.compactor.checkpoint()
        await client.router("a>late", "a", "late", start="earliest")
        await client.look()
        needed = {life.store.files.place_of(file) for file in life.engine.registry.copied_files()}
        assert any(kind == "segment" for kind, _, _ in needed), "nothing is made of a segment"
        answers.append(await named(life))
        await client.delete("a", before=20)
        for _ in range(2):
            await client.append("a", 2)
            await client.look()
            await life.compactor.checkpoint()

    assert world.live(script, end="kill")
    assert [len(answer.views["late"].records) for answer in answers] == [0, 27]
    for answer in answers:
        assert answer.changed(world.fs) == []
        answer.check_copy(world)
    unexpected(world)


def uncertain_manifests(life: Life, times: int) -> Fault:
    """Have the sync behind the rename of a manifest fail so often."""

    def is_behind_one(op: Op) -> bool:
        last = life.fs.ops[-2]
        return last.name == "rename" and last.path.endswith(".cbor.tmp") and "/topics/" in last.path

    fault = Fault(name="sync_dir", path="/data/topics/*", error=errno.EIO, when=is_behind_one, times=times)
    return life.fs.inject(fault)


@pytest.mark.parametrize("end", ["kill", "drop", "reorder", "keep"])
def test_a_manifest_that_is_uncertain_during_a_hold_is_in_no_copy(end: str) -> None:
    """Neither the one that is named nor the doubtful one is replaced; a further answer names the one that was named."""
    world = World(config=replace(SMALL, cold_dir=None))
    answers: list[Named] = []

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await fill(client, "a", 3)
        answers.append(await named(life))
        await fill(client, "a", 1)
        failing = uncertain_manifests(life, 2)
        for _ in range(2):  # the second one cannot put the one from before in its place
            with suppress(OSError):
                await life.compactor.checkpoint()
        assert failing.hits == 2
        answers.append(await named(life))
        await fill(client, "a", 1)
        await life.compactor.checkpoint()
        generation = life.store.manifests.generation(life.engine.registry.topic("a").id)
        assert generation == 3, "a name of which nobody knows whether it is on disk is not used again"
        answers.append(await named(life))
        await fill(client, "a", 1)
        await life.compactor.checkpoint()

    assert world.live(script, end="kill")
    for answer in answers:
        assert answer.changed(world.fs) == []
        answer.check_copy(world)
    assert len(see(world.after(end))["a"].records) == 12  # type: ignore[arg-type]


def test_a_manifest_that_is_uncertain_when_a_hold_ends_does_not_cost_the_one_that_counts() -> None:
    world = World(config=replace(SMALL, cold_dir=None))

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await fill(client, "a", 3)
        answer = await named(life)
        for times in (0, 3):
            await fill(client, "a", 1)
            failing = uncertain_manifests(life, times)
            with suppress(OSError):
                await life.compactor.checkpoint()
            assert failing.hits == min(times, 1)
        await trio.sleep(HOLD_MS / 1000 + 1)
        await life.compactor.checkpoint()
        assert failing.hits == 2, "it is as uncertain as before"
        assert f"{ROOT}/topics/0000000000000001/topic.cbor" in answer.content
        directory = life.fs.listdir(f"{ROOT}/topics/0000000000000001")
        assert "topic.1.cbor" in directory, "the last one that is known to be on disk"

    assert world.live(script, end="kill")
    for end in ("kill", "drop", "reorder", "keep"):
        assert len(see(world.after(end))["a"].records) == 10


def test_a_hold_is_refused_while_nobody_knows_which_manifest_is_on_disk() -> None:
    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        await client.create("a", durability="fsync")
        await fill(client, "a", 3)
        await life.compactor.checkpoint()
        await fill(client, "a", 1)
        failing = uncertain_manifests(life, 2)
        with suppress(OSError):
            await life.compactor.checkpoint()
        with pytest.raises(OSError, match="which manifest"):  # the one from before cannot be put in its place
            await life.compactor.name_files(HOLD_MS)
        assert failing.hits == 2
        await named(life)

    assert World(config=replace(SMALL, cold_dir=None)).live(script, end="kill")
