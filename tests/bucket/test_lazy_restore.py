"""A restore that leaves segments in the bucket: it shows what a full one shows, and is completed by the daemon
(`docs/design/bucket.md` sections 6 and 8)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from tests.bucket.cold_lives import IN_BUCKET
from tests.bucket.simulated_objects import SimFault, SimObjects
from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_restore import recovered
from tests.bucket.test_restore import restored as fully_restored
from tests.everything import EVERYTHING, slow_after
from tests.simulation.disk import SimFs
from tests.simulation.model import Client, History, View, views_of
from tests.simulation.segment_lives import SMALL, check_files, exactly, looked_at, see
from tests.simulation.test_holds import changed, stored
from tests.simulation.world import ROOT, Life, World, some_ends, wrecks_of
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.object_names import PINS, base_name, pin_name
from topics.bucket.object_store import StoreError, StoreErrorKind
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, RestoreSource, Workers
from topics.bucket.offline.restore_target import choose_target
from topics.bucket.pin_format import decode_pin
from topics.bucket.pins import PIN_MS, pinned, renew_pin
from topics.bucket.repair.pointer_home import PointerHome
from topics.bucket.restored.restore_completion import RestoreCompletion
from topics.bucket.restored.restore_note import BadRestoreNote, read_restore_note
from topics.daemon import Daemon
from topics.storage.files.datadir import DataDir, parse_segment_file
from topics.storage.offline.verify import Verification
from topics.storage.segments.segment_pointer import decode_pointer

URL = "s3://source/prefix"
PIN = "p" * 32
LAZY = replace(IN_BUCKET, hot_retain_segments=1000)


def lazily_restored(objects: SimObjects, number: int | None = None) -> SimFs:
    """A disk with a directory whose sealed segments are in the bucket."""
    fs = SimFs(1)
    reader = BucketReader(objects)
    target = choose_target(reader, number=number)
    figures = BucketRestore(fs, reader, ROOT, Workers(1), RestoreSource(URL, PIN)).run(target)
    assert figures.left == len(kinds(fs, "object")) > 0
    return fs


def kinds(fs: SimFs, kind: str) -> list[str]:
    """The files of segments of a kind."""
    found = ((path, parse_segment_file(path.rpartition("/")[2])) for path in fs.tree())
    return [path for path, one in found if one is not None and one[1] == kind]


def place_of(path: str) -> tuple[int, int]:
    """Topic id and first seq of a file of a segment."""
    *_, topic, name = path.split("/")
    found = parse_segment_file(name)
    assert found is not None
    return int(topic, 16), found[0]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> SmallBucket:
    """A bucket that every machine in the test reads its cold segments from."""
    made = SmallBucket()
    monkeypatch.setattr(World, "segments", staticmethod(lambda fs: BucketSegments(fs, ROOT, lambda url: made.objects)))
    return made


def archived(bucket: SmallBucket, seed: int = 0) -> dict[int, dict[str, View]]:
    """A life that archives: what was shown at each round."""
    world = World(seed, config=replace(SMALL, cold_dir=None))
    shown: dict[int, dict[str, View]] = {}

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        bucket.begin(life)
        await stored(life, client)
        bucket.round(life)
        await bucket.base(life)
        for turn in range(3):
            await changed(client, turn)
            await trio.sleep(1)
            views = await views_of(life.engine)
            shown[bucket.round(life)] = views
            if turn == 1:
                await client.delete("fsync", match=exactly("a"))
                await life.compactor.checkpoint()
                bucket.round(life)
                await bucket.base(life)
            await life.compactor.checkpoint()

    assert world.live(script, end="kill")
    return shown


def completion_of(life: Life, **more: Any) -> RestoreCompletion:
    """What completes the restore of the directory of a life."""
    note = read_restore_note(life.fs, life.store.datadir)
    assert note is not None
    assert isinstance(life.store.tiers.objects, BucketSegments)
    engine = life.engine
    return RestoreCompletion(
        note,
        engine.registry.by_id,
        engine.home_moves,
        life.store.tiers.objects,
        fs=life.fs,
        datadir=life.store.datadir,
        clock=life.clock,
        offload=engine.offload,
        **more,
    )


def live(world: World, script: Callable[[Life], Awaitable[None]], end: Any = "stop") -> None:
    assert world.live(script, end=end)


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
def test_each_round_is_shown_as_by_a_full_restore(bucket: SmallBucket, seed: int) -> None:
    shown = archived(bucket, seed)
    world = World(seed, config=LAZY)
    for number in shown:
        now_ms = bucket.now_ms[number]
        full = recovered(world, fully_restored(bucket.objects, number), now_ms)
        lazy = recovered(world, lazily_restored(bucket.objects, number), now_ms)
        assert lazy == full


def test_deleted_records_stay_deleted_without_the_copies_of_indexes(bucket: SmallBucket) -> None:
    number = list(archived(bucket))[-1]
    fs = lazily_restored(bucket.objects, number)
    world = World(config=LAZY)
    expected = recovered(world, fully_restored(bucket.objects, number), bucket.now_ms[number])
    for path in kinds(fs, "idx.cold") + kinds(fs, "tags.cold"):
        fs.unlink(path)
    assert recovered(world, fs, bucket.now_ms[number]) == expected


def test_verify_knows_a_restore_that_goes_on(bucket: SmallBucket) -> None:
    archived(bucket)
    findings = list(Verification(lazily_restored(bucket.objects), ROOT).findings())
    assert [one for one in findings if one.severity == "damage" or "unknown" in one.problem] == []
    assert any("a restore goes on" in one.problem for one in findings)


@pytest.mark.parametrize("end", ["stop", "kill", "drop"])
def test_segments_come_home_and_then_pin_and_note_go(bucket: SmallBucket, end: Any) -> None:
    number = list(archived(bucket))[-1]
    fs = lazily_restored(bucket.objects, number)
    renew_pin(bucket.objects, PIN, 1, 0)
    world = World(config=LAZY, fs=fs, now_ms=bucket.now_ms[number])
    before: dict[str, View] = {}

    async def script(life: Life) -> None:
        before.update(await looked_at(life))
        completion = completion_of(life)
        await completion.renew()
        pin = decode_pin(bucket.objects.objects[pin_name(PIN)])
        assert pin.expires == life.clock.now_ms() + PIN_MS
        with trio.fail_after(3600):  # it ends, and is not begun again
            await Daemon._restarted(cast("Daemon", SimpleNamespace()), "restore_completion", completion.run)
        assert await completion.finish()  # what is gone already is no failure
        assert completion.brought > 3
        assert not kinds(life.fs, "object")
        for _ in range(2):
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
        bucket.objects.faults = lambda op, name: SimFault.BEFORE
        after = await looked_at(life)
        assert {name: view.records for name, view in after.items()} == {
            name: view.records for name, view in before.items()
        }
        check_files(life)

    live(world, script, "stop" if end == "stop" else "kill")
    assert not [name for name in bucket.objects.objects if name.startswith(PINS)]
    assert not world.fs.exists(DataDir(ROOT).restore_path)
    after = see(world.after("kill" if end == "stop" else end))
    for name, view in before.items():
        if view.config.durability != "ephemeral":
            assert after[name].records == view.records


@pytest.mark.slow
def test_a_crash_on_the_way_home_loses_nothing(bucket: SmallBucket) -> None:
    number = list(archived(bucket))[-1]
    world = World(config=LAZY, fs=lazily_restored(bucket.objects, number), now_ms=bucket.now_ms[number])
    expected: dict[str, View] = {}

    async def begin(life: Life) -> None:
        await life.compactor.checkpoint()
        expected.update(await looked_at(life))

    live(world, begin)
    world = world.after("kill")
    wrecks = wrecks_of(world, lambda: 0, stride=1 if EVERYTHING else 23)

    async def script(life: Life) -> None:
        await completion_of(life).run()
        await life.compactor.checkpoint()

    live(world, script)
    assert len(wrecks) > 10
    for wreck in wrecks:
        for end, seed in some_ends(wreck.point, 2):
            found = see(wreck.world(end, seed, LAZY))
            for name, view in expected.items():
                if view.config.durability != "ephemeral":
                    assert found[name].records == view.records, (str(wreck), end, name)


def test_a_bucket_that_does_not_answer_delays_the_way_home_and_nothing_else(bucket: SmallBucket) -> None:
    number = list(archived(bucket))[-1]
    world = World(config=LAZY, fs=lazily_restored(bucket.objects, number), now_ms=bucket.now_ms[number])

    async def script(life: Life) -> None:
        completion = completion_of(life)
        bucket.objects.faults = lambda op, name: SimFault.BEFORE
        assert not await completion.renew()
        found = await completion.pass_over()
        assert (found.left, completion.brought) == (len(kinds(life.fs, "object")), 0)
        client = Client(life.engine, History())
        assert await client.append("fsync", 3)
        await life.compactor.checkpoint()
        bucket.objects.faults = lambda op, name: None
        assert (await completion.pass_over()).left == 0
        assert world.fs.exists(life.store.datadir.restore_path)

    live(world, script)


def test_a_damaged_pointer_keeps_the_pin_until_it_is_made_anew(bucket: SmallBucket) -> None:
    number = list(archived(bucket))[-1]
    world = World(config=LAZY, fs=lazily_restored(bucket.objects, number), now_ms=bucket.now_ms[number])

    async def script(life: Life) -> None:
        pointers = kinds(life.fs, "object")
        victim = pointers[len(pointers) // 2]
        intact = life.fs.read(victim)
        life.fs.flip_bit(victim, 20, 1)
        store = life.store.tiers.objects
        assert isinstance(store, BucketSegments)
        completion = completion_of(life)
        assert (await completion.pass_over()).left == 1
        assert kinds(life.fs, "object") == [victim]
        store._not_remade.clear()
        home = PointerHome(life.fs, life.store.datadir, None, "", store.store_at)
        store.remake = home.pointer
        found = home.pointer(*place_of(victim))
        assert found == decode_pointer(intact)
        assert (await completion.pass_over()).left == 0
        assert not kinds(life.fs, "object")

    live(world, script)


def test_without_room_nothing_comes_home(bucket: SmallBucket) -> None:
    number = list(archived(bucket))[-1]
    world = World(config=LAZY, fs=lazily_restored(bucket.objects, number), now_ms=bucket.now_ms[number])

    async def script(life: Life) -> None:
        completion = completion_of(life, has_room=lambda: False)
        assert (await completion.pass_over()).left == len(kinds(life.fs, "object"))
        assert completion.brought == 0

    live(world, script)


def test_a_segment_that_is_missing_in_the_bucket_is_named_and_nothing_is_there(bucket: SmallBucket) -> None:
    archived(bucket)
    for name in [name for name in bucket.objects.objects if name.endswith(".data")]:
        bucket.objects.delete([name])
    fs, reader = SimFs(1), BucketReader(bucket.objects, sleep=lambda seconds: None)
    with pytest.raises(BucketDamaged, match=r"segments/.*\.data"):
        BucketRestore(fs, reader, ROOT, Workers(1), RestoreSource(URL, PIN)).run(choose_target(reader))
    assert not fs.exists(ROOT)


@pytest.mark.parametrize("way", ["missing", "changed", "short"])
@pytest.mark.parametrize("kinds_", [["idx"], ["tags"], ["idx", "tags"]])
def test_an_index_that_the_bucket_has_lost_is_made_from_the_records(
    bucket: SmallBucket, kinds_: list[str], way: str
) -> None:
    """The records are there, so nothing is lost but time."""
    shown = archived(bucket)
    world = World(config=LAZY)
    restores = [(restore, number) for restore in (fully_restored, lazily_restored) for number in shown]
    before = [recovered(world, restore(bucket.objects, n), bucket.now_ms[n]) for restore, n in restores]
    for name, blob in bucket.objects.objects.items():
        if name.startswith("segments/") and name.rpartition(".")[2] in kinds_:
            if way == "missing":
                bucket.objects.delete([name])
            else:
                bucket.objects._set(name, blob[:-3] if way == "short" else bytes([blob[0] ^ 1]) + blob[1:])
    after = [recovered(world, restore(bucket.objects, n), bucket.now_ms[n]) for restore, n in restores]
    assert after == before
    again = lazily_restored(bucket.objects, [*shown][-1])
    assert not [path for path in kinds(again, "idx.cold") if path.replace("idx.cold", "data") in again.tree()]


# ----------------------------------------------------------------- pins and notes


def test_a_base_that_goes_during_the_restore_is_named(bucket: SmallBucket) -> None:
    """The owner had decided before the pin came."""
    archived(bucket)
    reader = BucketReader(bucket.objects)
    target = choose_target(reader)
    name = base_name(target.base)

    def collect(op: str, _: str) -> None:
        if ("get", name) in bucket.objects.calls:
            bucket.objects.entered = lambda op, name: None
            bucket.objects.delete([name])

    bucket.objects.entered = collect
    fs = SimFs(1)
    with pytest.raises(BucketDamaged, match=name):
        BucketRestore(fs, reader, ROOT, Workers(1), RestoreSource(URL, PIN)).run(target)
    assert not fs.exists(ROOT)


def test_a_pin_goes_if_what_it_was_made_for_fails() -> None:
    objects = SimObjects()

    def fail() -> None:
        with pinned(objects, 7, 1000) as uuid:
            assert decode_pin(objects.objects[pin_name(uuid)]).base == 7
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not objects.objects


def test_a_pin_that_may_not_be_put_is_told_with_the_way_out() -> None:
    objects = SimObjects(faults=lambda op, name: SimFault.DENIED if op.startswith("put") else None)
    with pytest.raises(StoreError, match="--full") as error, pinned(objects, 7, 1000):
        pass
    assert error.value.kind is StoreErrorKind.DENIED


def test_a_damaged_note_is_told() -> None:
    fs = SimFs(1)
    fs.mkdir(f"{ROOT}/meta")
    with fs.open(f"{ROOT}/meta/restore", create=True) as file:
        file.pwrite(b"{", 0)
    with pytest.raises(BadRestoreNote, match="malformed"):
        read_restore_note(fs, DataDir(ROOT))
