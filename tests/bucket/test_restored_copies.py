"""Copies whose sources are in segments that are younger than the base: a restore has them all
(`docs/design/bucket.md` section 6)."""

from __future__ import annotations

import random
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trio

from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_restore import restored
from tests.everything import EVERYTHING, slow_after
from tests.simulation.disk import SimFs
from tests.simulation.router_lives import Client, History, Shown, nobody_forwards, shown_by, until_idle
from tests.simulation.segment_lives import SMALL, reclaim, relocate
from tests.simulation.world import ROOT, Life, World, settings
from topics.bucket.offline.bucket_reader import BucketDamaged
from topics.bucket.offline.restored_copies import RestoredCopies
from topics.log.copies import PLAIN, CopyKind
from topics.log.tag_match import parse_match
from topics.model import CheckedAppend, Performance, RecordIn
from topics.storage.files.datadir import DataDir, parse_topic_name
from topics.storage.offline.verify import Verification
from topics.storage.recovery import verdicts
from topics.storage.segments import copy_chains
from topics.storage.segments.copy_chains import FrameCopies
from topics.storage.segments.copy_frames import CopyRecipe
from topics.storage.segments.stand_ins import stand_in_id
from topics.storage.snapshots.snapshot import Snapshot

HOT = settings(segment_max_events=8, segment_max_bytes=2048, segment_max_age_ms=0, rewrite_live_ratio=0.8)
SEEDS = range(100 if EVERYTHING else 4)
SKIPPED = 1000
"""How far the first start of a copy raises heads, here."""

Base = Callable[[], Awaitable[None]]
Scenario = Callable[[Life, Client, Base], Awaitable[None]]
"""What an owner does. It makes one base."""


async def fill(client: Client, name: str, count: int = 6) -> None:
    """Records of all looks."""
    for i in range(count):
        tag, node = (None, "a", "b")[i % 3], ("n", None)[i % 2]
        await client.append(name, tag=tag, node=node, meta={"m": str(i)} if i % 4 else None)


async def sources(client: Client, *more: str) -> None:
    """Topics, the first with records."""
    for i, name in enumerate(("source", *more)):
        await client.topic(name, durability=("disk", "fsync", "memory")[i % 3])
    await fill(client, "source")


async def route(life: Life, client: Client, source: str, dest: str, **fields: Any) -> None:
    """Copy everything that there is."""
    await client.router(f"{source}-{dest}", source, dest, start="earliest", **fields)
    await until_idle(life)


# ----------------------------------------------------------------- what an owner does


async def source_in_the_log(life: Life, client: Client, base: Base) -> None:
    """Records that are younger than the base are checkpointed and then copied."""
    await sources(client, "dest")
    await base()
    await fill(client, "source", 20)
    await life.compactor.checkpoint()
    await route(life, client, "source", "dest", preserve_node=False)
    await client.delete("dest", match=parse_match("b"))


async def source_in_another_segment_of_the_base(life: Life, client: Client, base: Base) -> None:
    """Records that the base has are rewritten into another file, and then copied."""
    await sources(client, "dest")
    await fill(client, "source", 30)
    await life.compactor.checkpoint()
    await base()
    await client.delete("source", match=parse_match("a"))
    await life.compactor.checkpoint()
    for _ in range(3):
        await reclaim(life)
    await route(life, client, "source", "dest")


async def deleted_source(life: Life, client: Client, base: Base) -> None:
    """The source is deleted when it has been copied."""
    await source_in_the_log(life, client, base)
    await client.delete("source", before=20)
    await life.compactor.checkpoint()
    await client.delete("dest", before=4)


async def evicted_source(life: Life, client: Client, base: Base) -> None:
    """The source is evicted when it has been copied."""
    await source_in_the_log(life, client, base)
    await client.topic("source", cap_records=2)
    await life.compactor.checkpoint()
    await reclaim(life)


async def deleted_source_topic(life: Life, client: Client, base: Base) -> None:
    """The source topic is deleted when it has been copied, and another gets its name."""
    await source_in_another_segment_of_the_base(life, client, base)
    await client.delete_topic("source")
    await client.topic("source", durability="fsync")
    await fill(client, "source")
    await life.compactor.checkpoint()
    await reclaim(life)


async def chain_of_stored_copies(life: Life, client: Client, base: Base) -> None:
    """Copies are stored, and then copied on: twice, with changes on the way, and all but the last are deleted."""
    await sources(client, "middle", "third", "last")
    await base()
    await fill(client, "source", 5)
    await life.compactor.checkpoint()
    await route(life, client, "source", "middle", guarantee="exactly_once")
    await life.compactor.checkpoint()
    await route(life, client, "middle", "third", preserve_tag=False, filter={"tag": ["a", "b"]})
    await life.compactor.checkpoint()
    await route(life, client, "third", "last", preserve_node=False)
    await client.delete("middle", before=9)
    await client.delete_topic("third")


async def chain_of_copies_in_the_log(life: Life, client: Client, base: Base) -> None:
    """Copies are copied on before they are stored: both point to the source's segment."""
    await sources(client, "middle", "last")
    await base()
    await fill(client, "source", 12)
    await life.compactor.checkpoint()
    await client.router("middle-last", "middle", "last", start="earliest", preserve_tag=False)
    await route(life, client, "source", "middle", guarantee="exactly_once")


async def copies_of_the_base(life: Life, client: Client, base: Base) -> None:
    """Copies that the base has are rewritten into another file, and copied on."""
    await sources(client, "middle", "last")
    await fill(client, "source", 30)
    await route(life, client, "source", "middle", guarantee="exactly_once")
    await life.compactor.checkpoint()
    await base()
    await client.delete("middle", match=parse_match("a"))
    await life.compactor.checkpoint()
    for _ in range(3):
        await reclaim(life)
    await route(life, client, "middle", "last")


def staged(numbers: list[int]) -> CheckedAppend:
    """Records of all looks for a stage."""
    datas = [b'{"n":%d}' % n for n in numbers]
    return CheckedAppend(
        records=[RecordIn(data=msgspec.Raw(data)) for data in datas],
        datas=datas,
        tags=[(None, "a", "b")[n % 3] for n in numbers],
        nodes=["n" if n % 2 else None for n in numbers],
        metas=[b'{"m":"%d"}' % n for n in numbers],
    )


async def stage(life: Life, client: Client, base: Base) -> None:
    """A topic, and a stage with records that the base has not."""
    await client.topic("t", durability="disk")
    await fill(client, "t")
    await base()
    await life.engine.stages.append("t", "s", staged([client.history.number() for _ in range(11)]), Performance())
    await life.compactor.checkpoint()


async def commit_of_a_stage(life: Life, client: Client, base: Base) -> None:
    """The records of a stage are stored, and then committed."""
    await stage(life, client, base)
    await life.engine.stage_commits.commit("t", ["s"], "key", Performance())


async def copies_of_a_commit(life: Life, client: Client, base: Base) -> None:
    """Committed records are stored, and then copied: those are records of the target."""
    await commit_of_a_stage(life, client, base)
    await life.compactor.checkpoint()
    await client.topic("dest", durability="fsync")
    await route(life, client, "t", "dest", guarantee="exactly_once")
    await client.delete("t", before=10)


async def transaction(life: Life, client: Client, base: Base) -> None:
    """From an `ephemeral` topic, and through a checkpoint."""
    await client.topic("source", durability="ephemeral")
    await client.topic("middle", durability="disk")
    await client.topic("dest", durability="fsync", type="queue")
    await base()
    await fill(client, "source", 9)
    await route(life, client, "source", "middle", guarantee="exactly_once")
    await life.compactor.checkpoint()
    await route(life, client, "middle", "dest", guarantee="exactly_once")


async def relocated_source(life: Life, client: Client, base: Base) -> None:
    """The source goes to the cold directory when it has been copied."""
    await source_in_the_log(life, client, base)
    await fill(client, "source", 20)
    await life.compactor.checkpoint()
    await relocate(life)


def random_history(seed: int) -> Scenario:
    """Everything above in any order, behind a base."""
    choose = random.Random(seed)

    async def history(life: Life, client: Client, base: Base) -> None:
        names = [f"t{i}" for i in range(5)]
        for name in names:
            await client.topic(name, durability=choose.choice(("disk", "fsync", "memory", "disk", "ephemeral")))
        for step in range(40):
            if step == 10:
                await life.compactor.checkpoint()
                await base()
            i, j = sorted(choose.sample(range(5), 2))
            source, dest = names[i], names[j]
            match choose.randrange(14):
                case 0 | 1 | 2:
                    await fill(client, source, choose.randrange(1, 15))
                case 3 | 4 | 5:
                    await life.compactor.checkpoint()
                case 6 | 7 | 8:
                    guarantee = choose.choice(("at_least_once", "exactly_once"))
                    looks = {"preserve_tag": choose.random() < 0.7, "preserve_node": choose.random() < 0.7}
                    await client.router(
                        f"{source}-{dest}", source, dest, start="earliest", guarantee=guarantee, **looks
                    )
                    if choose.random() < 0.7:
                        await until_idle(life)
                case 9:
                    await client.delete(source, match=parse_match(choose.choice("ab")))
                case 10:
                    await client.delete(source, before=choose.randrange(1, 20))
                case 11:
                    await reclaim(life)
                case 12:
                    await life.engine.stages.append(
                        dest, f"s{step}", staged([client.history.number() for _ in range(9)]), Performance()
                    )
                    if choose.random() < 0.7:
                        await life.compactor.checkpoint()
                    await life.engine.stage_commits.commit(dest, [f"s{step}"], f"key{step}", Performance())
                case 13:
                    if choose.random() < 0.3:
                        await client.delete_topic(source)
                        await client.topic(source, durability="disk")
        await until_idle(life)

    return history


SCENARIOS: list[Scenario] = [
    source_in_the_log,
    source_in_another_segment_of_the_base,
    deleted_source,
    evicted_source,
    deleted_source_topic,
    chain_of_stored_copies,
    chain_of_copies_in_the_log,
    copies_of_the_base,
    commit_of_a_stage,
    copies_of_a_commit,
    transaction,
    relocated_source,
]

# ----------------------------------------------------------------- and what a restore makes of it


class Owner:
    """A scenario with a bucket. `real`: the daemon's own code makes the base."""

    def __init__(self, scenario: Scenario, *, shards: int, real: bool = False) -> None:
        config = SMALL if scenario is relocated_source else HOT
        self.world = World(7, config=replace(config, wal_shards=shards))
        self.bucket = SmallBucket()
        self.scenario = scenario
        self.real = real
        self.shown: Shown | None = None

    def run(self) -> None:
        """All of it. The last round is the last thing that happens."""
        assert self.world.live(self._life, end="kill")

    async def _life(self, life: Life) -> None:
        self.bucket.begin(life)

        async def base() -> None:
            await (self.bucket.real_base if self.real else self.bucket.base)(life)

        await self.scenario(life, Client(life, History()), base)
        await trio.sleep(2)  # until everything is synced
        with nobody_forwards(life):
            self.shown = await shown_by(life)
        self.bucket.round(life)
        assert not [event for event in self.world.events if event["event"] == "copy_without_bytes"]

    @property
    def now_ms(self) -> int:
        return self.bucket.now_ms[self.bucket.number]


def started_on(owner: Owner, fs: SimFs, *, tidy: bool = False) -> tuple[Shown, World]:
    """What a daemon shows that is started on a disk. Then it is killed; with `tidy` when everything is stored."""
    found: list[Shown] = []

    async def look(life: Life) -> None:
        with nobody_forwards(life):
            found.append(await shown_by(life))
            if tidy:
                await life.compactor.checkpoint()
                await reclaim(life)
                assert await shown_by(life) == found[0]
            life.engine.status.phase = "draining"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "SKIPPED_SEQS", SKIPPED)  # the views count lost seqs one by one
        world = World(owner.world.seed + 1, config=owner.world.settings, fs=fs, now_ms=owner.now_ms)
        assert world.live(look, end="kill")
    return found[0], world


def damage(fs: SimFs) -> list[str]:
    return [one.problem for one in Verification(fs, ROOT).findings() if one.severity == "damage"]


def stand_ins(fs: SimFs) -> set[int]:
    """The ids of the directories of stand-ins."""
    found = map(parse_topic_name, fs.listdir(f"{ROOT}/topics"))
    return {topic_id for topic_id in found if topic_id is not None and topic_id == stand_in_id(topic_id)}


@pytest.mark.parametrize(("shards", "real"), [pytest.param(1, False, marks=pytest.mark.slow), (3, True)])
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda one: one.__name__)
def test_copies_are_restored_whatever_has_become_of_their_sources(scenario: Scenario, shards: int, real: bool) -> None:
    owner = Owner(scenario, shards=shards, real=real)
    owner.run()
    fs = restored(owner.bucket.objects)
    assert stand_ins(fs)
    check_restored(owner, fs)


@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_copies_of_random_histories_are_restored(seed: int) -> None:
    owner = Owner(random_history(seed), shards=1 + seed % 3, real=bool(seed % 2))
    owner.run()
    check_restored(owner, restored(owner.bucket.objects))


def check_restored(owner: Owner, fs: SimFs) -> None:
    """A restored directory is what the owner's was, at its first start and later."""
    assert damage(fs) == []
    theirs, _ = started_on(owner, owner.bucket.at[owner.bucket.number].after_process_kill())
    mine, world = started_on(owner, fs)
    assert mine == theirs
    assert owner.shown is not None
    for name, view in owner.shown.views.items():
        if view.config.durability != "ephemeral":
            assert mine.views[name].records == view.records

    # The second start has no mark of a copy any more, and finds them all the same.
    assert damage(world.fs) == []
    again, world = started_on(owner, world.fs.after_process_kill(), tidy=True)
    assert again == mine
    last, world = started_on(owner, world.fs.after_process_kill())
    assert last == mine
    assert not stand_ins(world.fs), "every copy is in a segment of its own topic"


def test_a_copy_whose_source_is_nowhere_gets_no_stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(source_in_the_log, shards=1)
    owner.run()
    monkeypatch.setattr(RestoredCopies, "_record", lambda *_: None)
    fs = restored(owner.bucket.objects)
    assert not stand_ins(fs)
    assert damage(fs)


def test_a_log_without_copies_is_not_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing_copied(life: Life, client: Client, base: Base) -> None:
        await sources(client)
        await base()
        await fill(client, "source", 20)
        await life.compactor.checkpoint()

    owner = Owner(nothing_copied, shards=2)
    owner.run()
    monkeypatch.setattr(RestoredCopies, "write_stand_ins", lambda _: pytest.fail("it is"))
    assert damage(restored(owner.bucket.objects)) == []


def test_sources_are_looked_for_only_if_any_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def copied_from_the_log(life: Life, client: Client, base: Base) -> None:
        await sources(client, "dest")
        await base()
        await route(life, client, "source", "dest")

    owner = Owner(copied_from_the_log, shards=2)
    owner.run()
    monkeypatch.setattr(RestoredCopies, "_find_sources", lambda _: pytest.fail("they are"))
    fs = restored(owner.bucket.objects)
    assert not stand_ins(fs)
    assert damage(fs) == []


def test_a_frame_that_contradicts_itself_ends_the_restore(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(source_in_the_log, shards=1)
    owner.run()
    monkeypatch.setattr(copy_chains, "decode_chosen", lambda _: ())
    with pytest.raises(BucketDamaged, match=r"bases/\d+: .*chosen another number"):
        restored(owner.bucket.objects)


def test_a_circle_of_copies_has_no_source() -> None:
    fs = SimFs(1)
    datadir = DataDir(ROOT)
    kind = CopyKind(1, 1, PLAIN)
    recipe = CopyRecipe([(1, kind)], [7], array("I", [0]), array("I", [0]), array("I", [64]), array("I", [4]), b"\x20")
    circle = FrameCopies(5, 3, 1, 5, [3], recipe, [kind], staged=False)
    copies = RestoredCopies(
        fs, datadir, "base", Snapshot(number=1, shards=1, clock=0, positions={}, topics=[], next_topic_id=9)
    )
    copies._made[5] = [circle]
    assert copies._from_source(circle, 0, 17) is None
