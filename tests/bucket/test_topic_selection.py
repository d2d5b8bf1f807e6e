"""A restore of some topics: the first start deletes the others, and what is kept is as in a restore of everything
(`docs/design/bucket.md` section 6)."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.bucket.cold_lives import IN_BUCKET, ColdBucket
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.test_lazy_copies import source_behind_the_log
from tests.bucket.test_lazy_restore import PIN, URL, completion_of
from tests.bucket.test_restored_copies import SCENARIOS, SKIPPED, Base, Owner, Scenario, damage, started_on
from tests.everything import EVERYTHING
from tests.simulation.disk import SimFs
from tests.simulation.model import Client as LogClient
from tests.simulation.model import History as LogHistory
from tests.simulation.offload import InlineOffload
from tests.simulation.router_lives import Client, Shown, nobody_forwards, shown_by
from tests.simulation.segment_lives import reclaim
from tests.simulation.world import ROOT, Life, World, some_ends, wrecks_of
from topics.bucket.base_format import PAGE_TOPICS, TopicEntry, decode_page, open_blob
from topics.bucket.bases.base_content import BaseContent, SealedUploads
from topics.bucket.bases.known_base import KnownBase
from topics.bucket.bases.packs import PackNumbers, Packs
from topics.bucket.bases.uploads import Puts, Uploads
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.object_names import SegmentName, pack_name, segment_name
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, RestoreSource, Workers
from topics.bucket.offline.restore_target import RestoreRefused, choose_target
from topics.bucket.restored.topic_selection import BadSelection, TopicSelection, read_selection, remove_selection
from topics.engine.restored_topics import keep_only
from topics.model import Performance, SchedulePatch
from topics.storage.files.datadir import DataDir
from topics.storage.maintenance.base_capture import BaseCapture
from topics.storage.recovery import verdicts

KEPT = ("dest", "last", "t")
"""The last topics of the scenarios; nothing is copied out of them."""


def restored(objects: SimObjects, *patterns: str, lazy: bool = False) -> SimFs:
    """A disk with a directory that is to have the topics of these names; all of them without one."""
    fs, reader = SimFs(1), BucketReader(objects)
    selection = TopicSelection(patterns) if patterns else None
    source = RestoreSource(URL, PIN) if lazy else None
    BucketRestore(fs, reader, ROOT, Workers(1), source, selection=selection).run(choose_target(reader))
    return fs


async def first_start(life: Life) -> None:
    """What the daemon does before it serves anybody."""
    datadir = life.store.datadir
    selection = read_selection(life.fs, datadir)
    if selection is not None:
        engine = life.engine
        await keep_only(
            selection.matches,
            registry=engine.registry,
            topic_lifecycle=engine.topic_lifecycle,
            schedules=engine.schedules,
        )
        remove_selection(life.fs, datadir)


def begun(owner: Owner, fs: SimFs, *, tidy: bool = False) -> tuple[Shown, World]:
    """Return the answers of a daemon after its first start on a disk, and the world in which it was killed then."""
    found: list[Shown] = []
    world = World(owner.world.seed + 2, config=owner.world.settings, fs=fs, now_ms=owner.now_ms)

    async def look(life: Life) -> None:
        with nobody_forwards(life):
            await first_start(life)
            found.append(await shown_by(life))
            if tidy:
                await life.compactor.checkpoint()
                await reclaim(life)
                assert await shown_by(life) == found[0]
            life.engine.status.phase = "draining"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "SKIPPED_SEQS", SKIPPED)
        assert world.live(look, end="kill")
    return found[0], world


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    "scenario",
    [source_behind_the_log, *(pytest.param(one, marks=pytest.mark.slow) for one in SCENARIOS)],
    ids=lambda one: one.__name__,
)
def test_topics_are_kept_with_their_copies_and_the_others_go(
    scenario: Scenario, lazy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(scenario, shards=2, real=True)
    owner.run()
    objects = owner.bucket.objects
    if lazy:
        owner.world.settings = replace(owner.world.settings, cold_dir=IN_BUCKET.cold_dir, hot_retain_segments=1000)
        monkeypatch.setattr(World, "segments", staticmethod(lambda fs: BucketSegments(fs, ROOT, lambda url: objects)))
    everything, _ = started_on(owner, restored(objects, lazy=lazy))
    fs = restored(objects, *KEPT, lazy=lazy)
    assert damage(fs) == []
    mine, world = begun(owner, fs)
    assert mine.views.keys() == everything.views.keys() & set(KEPT)
    assert mine.views == {name: view for name, view in everything.views.items() if name in KEPT}
    assert mine.routers == {
        name: one for name, one in everything.routers.items() if {one.source, one.dest} <= set(KEPT)
    }
    assert not world.fs.exists(DataDir(ROOT).selection_path)
    again, world = begun(owner, world.fs.after_process_kill(), tidy=True)
    assert again == mine
    assert damage(world.fs) == []
    last, world = begun(owner, world.fs.after_process_kill())
    assert last == mine
    assert damage(world.fs) == []
    assert len(world.fs.listdir(f"{ROOT}/topics")) <= len(mine.views)


def test_routers_between_topics_that_are_kept_stay() -> None:
    owner = Owner(next(one for one in SCENARIOS if one.__name__ == "chain_of_copies_in_the_log"), shards=2)
    owner.run()
    everything, _ = started_on(owner, restored(owner.bucket.objects))
    mine, _ = begun(owner, restored(owner.bucket.objects, "mid*", "last"))
    assert set(mine.views) == {"middle", "last"}
    assert mine.routers == {"middle-last": everything.routers["middle-last"]}


def test_a_crash_during_the_first_start_needs_nothing() -> None:
    owner = Owner(source_behind_the_log, shards=2, real=True)
    owner.run()
    fs = restored(owner.bucket.objects, *KEPT)
    expected, _ = begun(owner, fs.after_process_kill())
    world = World(3, config=owner.world.settings, fs=fs, now_ms=owner.now_ms)
    wrecks = wrecks_of(world, lambda: 0, stride=1 if EVERYTHING else 5)

    async def script(life: Life) -> None:
        with nobody_forwards(life):
            await first_start(life)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "SKIPPED_SEQS", SKIPPED)
        assert world.live(script, end="kill")
    assert len(wrecks) > 3
    for wreck in wrecks:
        for end, seed in some_ends(wreck.point, 2):
            found, _ = begun(owner, wreck.world(end, seed, owner.world.settings).fs)
            assert {name: view.records for name, view in found.views.items()} == {
                name: view.records for name, view in expected.views.items()
            }, (str(wreck), end)


def test_schedules_of_the_other_topics_go() -> None:
    async def scheduled(life: Life, client: Client, base: Base) -> None:
        for name in ("kept", "other"):
            await client.topic(name, durability="fsync")
            patch = SchedulePatch(
                topic=name,
                record='{"data":1}',
                cron=None,
                every_ms=60_000,
                time_zone="UTC",
                catch_up="none",
                paused=None,
            )
            await life.engine.schedules.put(f"of-{name}", patch, Performance())
        await base()

    owner = Owner(scheduled, shards=2)
    owner.run()
    fs = restored(owner.bucket.objects, "kept")
    names: list[str] = []

    async def look(life: Life) -> None:
        await first_start(life)
        names.extend(schedule.name for schedule in life.engine.registry.schedules)

    assert World(3, config=owner.world.settings, fs=fs, now_ms=owner.now_ms).live(look)
    assert names == ["of-kept"]


def test_topics_of_the_log_alone_may_be_chosen_and_names_that_nothing_has_are_refused() -> None:
    async def late(life: Life, client: Client, base: Base) -> None:
        await client.topic("early", durability="fsync")
        await base()
        await client.topic("late", durability="fsync")
        await client.append("late", 3)

    owner = Owner(late, shards=2)
    owner.run()
    found, _ = begun(owner, restored(owner.bucket.objects, "l[a]te"))
    assert {name: len(view.records) for name, view in found.views.items()} == {"late": 3}
    with pytest.raises(RestoreRefused, match=r"no topic matches Early, l\?e:"):
        restored(owner.bucket.objects, "Early", "l?e")


def test_the_pin_stays_while_copies_need_segments_of_deleted_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = Owner(source_behind_the_log, shards=1, real=True)
    owner.run()
    objects = owner.bucket.objects
    owner.world.settings = replace(owner.world.settings, cold_dir=IN_BUCKET.cold_dir, hot_retain_segments=1000)
    monkeypatch.setattr(World, "segments", staticmethod(lambda fs: BucketSegments(fs, ROOT, lambda url: objects)))
    world = World(3, config=owner.world.settings, fs=restored(objects, "dest", lazy=True), now_ms=owner.now_ms)
    left: list[int] = []

    async def script(life: Life) -> None:
        with nobody_forwards(life):
            await first_start(life)
            completion = completion_of(life)
            left.append((await completion.pass_over()).left)
            await life.compactor.checkpoint()
            await reclaim(life)
            left.append((await completion.pass_over()).left)

    assert world.live(script)
    assert left[0] > 0
    assert left[1] == 0


@pytest.mark.parametrize("own", [True, False], ids=["in its own bucket", "in another one"])
def test_a_base_has_the_segments_in_a_bucket_that_copies_from_deleted_topics_need(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = ColdBucket()
    monkeypatch.setattr(World, "segments", staticmethod(cold.of))
    world, objects = World(1, config=IN_BUCKET), SimObjects()
    found: list[TopicEntry] = []

    async def script(life: Life) -> None:
        client = LogClient(life.engine, LogHistory())
        await client.create("t", durability="fsync")
        await client.append("t", 30)
        await life.compactor.checkpoint()
        await life.relocator.pass_over()
        topic = life.engine.registry.topics["t"]
        assert topic.segment_set is not None
        place = min((topic.id, one.first) for one in topic.segment_set.segments if one.tier == "cold")
        if not own:
            cold.made[-1].own = lambda: None
        offload = InlineOffload()
        async with trio.open_nursery() as nursery:
            uploads = Uploads(Puts(objects, offload), nursery)
            packs = Packs(PackNumbers(1), uploads, offload)
            capture = BaseCapture(None, {}, [], [], [], [place])
            content = BaseContent(
                capture,
                KnownBase(),
                SealedUploads(1),
                tiers=life.store.tiers,
                packs=packs,
                uploads=uploads,
                offload=offload,
            )
            pages = await content.make()
        for number, ref in pages:
            blob = objects.objects[pack_name(ref.pack_name)]
            assert number == place[0] // PAGE_TOPICS
            found.extend(decode_page(open_blob(ref, blob[ref.offset : ref.offset + ref.length])))

    assert world.live(script)
    [entry] = found
    [segment] = entry.segments
    assert (entry.part, segment.idx, segment.tags) == (None, None, None)
    assert segment.data is not None
    name = segment_name(SegmentName(entry.id, segment.first, segment.epoch, segment.salt), "data")
    there = cold.objects if own else objects
    assert hashlib.sha256(there.objects[name]).digest() == segment.data.hash
    assert any(name.startswith("segments/") for name in objects.objects) != own


# ----------------------------------------------------------------- names


@given(st.text("ab.-", max_size=6), st.text("ab.-", max_size=6))
def test_patterns_are_those_of_a_shell(name: str, other: str) -> None:
    if name:
        assert TopicSelection([name]).matches(name)
        assert TopicSelection([name]).matches(other) == (name == other)
        assert TopicSelection([name + "*"]).matches(name + other)
        assert TopicSelection(["x", "*" + name]).matches(other + name)
    assert TopicSelection(["?" * 7]).matches("abcdefg")
    assert not TopicSelection(["A*"]).matches("a")


def test_a_stage_is_kept_with_its_topic() -> None:
    assert TopicSelection(["t"]).matches("t?stage=x")
    assert not TopicSelection(["x"]).matches("t?stage=x")


@pytest.mark.parametrize("patterns", [[], [""], ["a" * 256], ["a"] * 1001])
def test_patterns_are_bounded(patterns: list[str]) -> None:
    with pytest.raises(BadSelection):
        TopicSelection(patterns)


@pytest.mark.parametrize("blob", [b"", b"{", b'{"keep":[]}', b'{"keep":[1]}', b'{"keep":["a"],"more":1}', b"[" * 9999])
def test_a_damaged_note_is_told(blob: bytes) -> None:
    fs = SimFs(1)
    fs.mkdir(f"{ROOT}/meta")
    with fs.open(f"{ROOT}/meta/restore-topics", create=True) as file:
        file.pwrite(blob, 0)
    with pytest.raises(BadSelection):
        read_selection(fs, DataDir(ROOT))
