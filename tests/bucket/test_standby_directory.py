"""The directory of a standby at a start: nobody else's is touched, and what is lost of it comes from the bucket."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import structs

from tests.bucket.archived import ArchivedLife, archived, bucket_settings, owner_of
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.standby_lives import URL, following, live
from tests.engine.life import refusal
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.world import ROOT
from topics.bucket.local_note import BucketNote, read_note, write_note
from topics.bucket.object_names import round_name
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import UNFINISHED
from topics.bucket.offline.restore_target import NothingToRestore, RestoreTarget, choose_target
from topics.bucket.ownership.owner_format import Owner, encode_owner
from topics.bucket.ownership.owner_object import BucketRefused, LeaseTerms
from topics.bucket.ownership.start_claim import StartClaim
from topics.bucket.place import Place, first_head
from topics.bucket.round_format import encode_round
from topics.bucket.standby.directory import HistoryUnfinished, StandbyRefused, mark_unfinished, prepare_directory
from topics.bucket.standby.handover import set_aside, stays
from topics.engine.engine import Engine
from topics.standby import Standby, prepare
from topics.storage.files.datadir import DIVERGED, DataDir, wal_path
from topics.storage.files.fs import join, write_all
from topics.storage.wal.wal_files import LogPosition

CONFIG = bucket_settings(bucket_takeover=True, bucket_base_ms=1000, segment_max_events=2)
DATADIR = DataDir(ROOT)


async def fill(life: ArchivedLife) -> None:
    """Sealed segments, a base, and a round behind it."""
    for i in range(3):
        await life.append("a", i, i, i)
        await life.engine.compactor.checkpoint()
    await life.archive.vouch_for([writer.synced_position()[0] for writer in life.engine.store.writers])
    await trio.sleep(5)
    await life.append("a", "last")
    await life.archived()


async def filled() -> SimObjects:
    """A bucket that its owner has given up."""
    objects = SimObjects()
    async with archived(objects, CONFIG, clock=SimClock(BASE_MS), bases=True) as life:
        await fill(life)
    return objects


def log_of(fs: SimFs) -> dict[str, bytes]:
    return {path: content for path, content in fs.tree().items() if content is not None and path.endswith(".log")}


def test_the_log_of_a_standby_that_runs_is_not_cut_by_another_start() -> None:
    async def script() -> None:
        objects, fs = SimObjects(), SimFs()
        async with archived(objects, CONFIG, clock=SimClock(BASE_MS), bases=True) as owner:
            await fill(owner)
            async with following(fs, objects, CONFIG) as life:
                await owner.append("a", "more")
                await owner.archived()
                await life.follower.catch_up()
                before = log_of(fs)
                for takes in (False, True):
                    with pytest.raises(StandbyRefused, match="in use"):
                        prepare_directory(fs, ROOT, URL, objects, 1, takes=takes)
                assert log_of(fs) == before
                assert not fs.exists(join(ROOT, UNFINISHED))

    live(script)


def test_the_directory_of_an_owner_that_runs_is_not_set_aside_by_another_start() -> None:
    """It has lost the bucket, and answers reads for some seconds."""

    async def script() -> None:
        objects, fs = SimObjects(), SimFs()
        async with archived(objects, CONFIG, fs=fs, clock=SimClock(BASE_MS), bases=True) as owner:
            await fill(owner)
            objects._set("owner", objects.objects["owner"].replace(owner.archive._noted.note.dir.encode(), b"0" * 32))
            with pytest.raises(StandbyRefused, match="in use"):
                prepare_directory(fs, ROOT, URL, objects, 1, takes=True)
            assert not any(name.startswith(DIVERGED) for name in fs.listdir(ROOT))

    live(script)


def first_file(fs: SimFs, note: BucketNote) -> str:
    assert note.positions is not None
    shard, (ordinal, _) = max(enumerate(note.positions), key=lambda one: one[1][1])
    return wal_path(DATADIR.shard_dir(shard, len(note.positions)), ordinal)


@pytest.mark.parametrize("lost", ["its end", "a file", "a directory"])
def test_a_log_that_has_lost_bytes_is_made_anew_from_the_bucket(lost: str) -> None:
    async def script() -> None:
        objects, fs = await filled(), SimFs()
        note = prepare_directory(fs, ROOT, URL, objects, 1)
        assert note is not None
        path = first_file(fs, note)
        if lost == "its end":
            with fs.open(path) as handle:
                handle.truncate(100)
        else:
            fs.unlink(path)
            if lost == "a directory":
                for name in fs.listdir(path.rpartition("/")[0]):
                    fs.unlink(join(path.rpartition("/")[0], name))
                fs.rmdir(path.rpartition("/")[0])
        again = prepare_directory(fs, ROOT, URL, objects, 1)
        assert again is not None
        assert again.positions == note.positions
        assert again.dir != note.dir
        async with following(fs, objects, CONFIG) as life:
            assert life.engine.registry.topics["a"].log.head_seq == 10

    live(script)


def test_a_log_that_is_damaged_is_made_anew_at_the_next_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        objects, fs, clock = await filled(), SimFs(), SimClock(BASE_MS)
        note = prepare_directory(fs, ROOT, URL, objects, 1)
        assert note is not None
        with fs.open(first_file(fs, note)) as handle:
            for at in range(200, handle.size(), 50):
                write_all(handle, b"\xff", at)
        note = prepare_directory(fs, ROOT, URL, objects, 1)
        assert note is not None
        monkeypatch.setattr("topics.standby.make_objects", lambda *_: objects)
        monkeypatch.setattr("topics.standby.lease_terms", lambda *_: None)
        engine = Engine(CONFIG, fs=fs, clock=clock, offload=InlineOffload())
        engine.store.lock("a standby")
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            assert not await Standby(CONFIG, engine, note, "http://standby").recover()
            nursery.cancel_scope.cancel()
        engine.store.unlock()
        again = prepare_directory(fs, ROOT, URL, objects, 1)
        assert again is not None
        assert again.dir != note.dir
        async with following(fs, objects, CONFIG) as life:
            assert life.engine.registry.topics["a"].log.head_seq == 10

    live(script)


@pytest.mark.parametrize("yields", [True, False])
def test_an_owner_that_is_replaced_while_it_starts_may_follow_the_other(yields: bool) -> None:
    """Its directory was looked at just before, and was the owner's then."""

    async def script() -> None:
        objects, fs, clock = SimObjects(), SimFs(), SimClock(BASE_MS)
        async with archived(objects, CONFIG, fs=fs, clock=clock, bases=True) as life:
            await fill(life)
        note = read_note(fs, DATADIR)
        assert note is not None
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is None
        objects._set("owner", objects.objects["owner"].replace(note.dir.encode(), b"0" * 32))
        told: list[str] = []

        def show(problem: str, owner: str) -> None:
            told.append(problem)
            scope.cancel()  # as the daemon does it, whose next start follows the other

        claim = StartClaim(
            objects,
            LeaseTerms(6000, objects, clock.boottime_ms, lambda keeper: None),
            fs,
            DATADIR,
            clock=clock,
            offload=InlineOffload(),
            url="http://a",
            bucket_url=URL,
            take=False,
            show=show,
            yields=yields,
        )
        with trio.CancelScope() as scope:
            if yields:
                await claim.run(is_empty=False)
            else:
                with pytest.raises(BucketRefused):
                    await claim.run(is_empty=False)
        assert bool(told) == scope.cancelled_caught == yields
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None

    live(script)


def test_with_a_cold_directory_all_segments_are_copied() -> None:
    """Segments in the bucket are not read with one, so a start would be refused."""

    async def script() -> None:
        objects = await filled()
        for copies_all in (True, False):
            fs = SimFs()
            assert prepare_directory(fs, ROOT, URL, objects, 1, copies_all=copies_all) is not None
            assert fs.exists(DATADIR.restore_path) != copies_all
            assert any(path.endswith(".object") for path in fs.tree()) != copies_all
            assert read_note(fs, DATADIR, DATADIR.standby_path) is not None

    live(script)


async def unfinished(fs: SimFs, clock: SimClock, **of_owner: Any) -> SimObjects:
    """A bucket whose owner has written rounds, and was killed before it had made the first base."""
    objects = SimObjects()
    async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
        await life.append("a", 1, 2, 3)
        await life.archived()
    change_owner(objects, lease_ms=3000, **of_owner)
    return objects


def change_owner(objects: SimObjects, **changes: Any) -> None:
    objects._set("owner", encode_owner(structs.replace(owner_of(objects), **changes)))


def claim_of(objects: SimObjects, fs: SimFs, clock: SimClock, told: list[str]) -> StartClaim:
    """A start of a daemon with takeover; `told` gets why it waits."""
    return StartClaim(
        objects,
        LeaseTerms(6000, objects, clock.boottime_ms, lambda keeper: None),
        fs,
        DATADIR,
        clock=clock,
        offload=InlineOffload(),
        url="http://b",
        bucket_url=URL,
        take=False,
        show=lambda problem, owner: told.append(problem),
        copies_all=True,
        workers=1,
    )


def test_a_prefix_that_cannot_be_restored_is_not_taken_from_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has is on the disk of its owner only, which would be refused when it is back."""
    in_threads: list[bool] = []

    def chosen(*args: Any, map_heads: Any = map, **options: Any) -> RestoreTarget:
        in_threads.append(map_heads is not map)
        return choose_target(*args, map_heads=map_heads, **options)

    monkeypatch.setattr("topics.bucket.ownership.start_claim.choose_target", chosen)

    async def script() -> None:
        clock, disk = SimClock(BASE_MS), SimFs()
        objects = await unfinished(disk, clock)
        before = objects.objects["owner"]
        told: list[str] = []
        with trio.move_on_after(30):
            await claim_of(objects, SimFs(), clock, told).run(is_empty=True)
        assert objects.objects["owner"] == before
        assert "no base" in told[-1]
        back = claim_of(objects, disk.after_process_kill(), clock, told)
        await back.run(is_empty=False)
        assert owner_of(objects).dir == back.dir_id
        async with archived(objects, CONFIG, fs=disk.after_process_kill(), clock=clock, bases=True) as life:
            await fill(life)
        empty = claim_of(objects, SimFs(), clock, told)
        await empty.run(is_empty=True)
        assert owner_of(objects).dir == empty.dir_id
        assert all(in_threads), "the rounds since the base are read one after another"

    live(script)


def test_a_directory_that_had_a_log_before_is_not_replaced_before_its_first_round() -> None:
    """A daemon with records got its first bucket, and was killed while it started. An empty directory would give its
    seqs again."""

    async def script() -> None:
        clock, objects, told = SimClock(BASE_MS), SimObjects(), list[str]()
        claim = claim_of(objects, SimFs(), clock, told)
        await claim.run(is_empty=False)
        before = objects.objects["owner"]
        with trio.move_on_after(30):
            await claim_of(objects, SimFs(), clock, told).run(is_empty=True)
        assert objects.objects["owner"] == before
        assert "no base" in told[-1]

    live(script)


@pytest.mark.parametrize("is_late", [True, False])
def test_a_history_that_never_had_a_base_and_began_in_an_empty_directory_is_replaced(is_late: bool) -> None:
    """Its daemon was never ready, so nobody was told of anything in it. Its last round may come when the prefix is
    taken already."""

    async def script() -> None:
        clock, fs = SimClock(BASE_MS), SimFs()
        objects = await unfinished(SimFs(), clock, has_log=False)
        rounds = {name: blob for name, blob in objects.objects.items() if name.startswith("rounds/")}
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is None
        with pytest.raises(NothingToRestore):
            prepare_directory(fs, ROOT, URL, objects, 1)
        assert fs.exists(join(ROOT, UNFINISHED)), "as of a standby that waited for the first base"
        claim = claim_of(objects, fs, clock, [])
        if is_late:
            objects.delete([*rounds])

            def arrive(op: str, name: str) -> None:
                if (op, name) == ("put_if", "owner"):
                    for late, blob in rounds.items():
                        objects._set(late, blob)

            objects.faults = arrive
        with trio.fail_after(30):
            await claim.run(is_empty=True)
        assert owner_of(objects).dir == claim.dir_id
        assert not fs.exists(join(ROOT, UNFINISHED))
        assert {name for name in objects.objects if name.startswith("rounds/")} == rounds.keys()
        change_owner(objects, state="free")  # this life has no part of the claim
        async with archived(objects, CONFIG, fs=fs, clock=clock, bases=True) as life:
            await fill(life)
            assert life.engine.registry.topics["a"].log.head_seq == 10, "nothing of the other history"
        assert prepare_directory(SimFs(), ROOT, URL, objects, 1) is not None

    live(script)


def test_a_bucket_whose_owner_somebody_has_removed_is_no_new_one() -> None:
    """An empty directory begins no history in front of its rounds, and no epoch is given twice."""

    async def script() -> None:
        clock, objects = SimClock(BASE_MS), await filled()
        before = owner_of(objects).epoch
        objects.delete(["owner"])
        fs, began_ms = SimFs(), clock.boottime_ms()
        await claim_of(objects, fs, clock, []).run(is_empty=True)
        assert owner_of(objects).epoch > before
        assert clock.boottime_ms() - began_ms >= 6000, "the owner may not know yet that it is none"
        note = read_note(fs, DATADIR)
        assert note is not None
        assert note.positions is not None, "the history goes on"
        objects.delete(["owner"])
        assert prepare_directory(SimFs(), ROOT, URL, objects, 1, takes=True) is not None, "a standby has it to follow"

    live(script)


def test_a_former_owner_does_not_take_a_bucket_whose_owner_somebody_has_removed() -> None:
    async def script() -> None:
        clock, disk, objects = SimClock(BASE_MS), SimFs(), SimObjects()
        async with archived(objects, CONFIG, fs=disk, clock=clock, clean=False, bases=True) as life:
            await fill(life)
            await life.archived()
        owner = owner_of(objects)
        owner.state = "free"
        objects._set("owner", encode_owner(owner))
        await claim_of(objects, SimFs(), clock, []).run(is_empty=True)
        objects.delete(["owner"])
        with pytest.raises(BucketRefused, match="another data directory has written round"):
            await claim_of(objects, disk.after_process_kill(), clock, []).run(is_empty=False)
        assert "owner" not in objects.objects

    live(script)


def test_a_crash_while_a_directory_is_set_aside_leaves_nothing_without_its_note() -> None:
    """A start would refuse it."""
    fs = SimFs()
    for name in ("", "/meta", "/topics", "/wal"):
        fs.mkdir(ROOT + name)
    write_note(fs, DATADIR, BucketNote(bucket="b", dir="d"))
    fs.open(join(ROOT, "FORMAT"), create=True).close()
    fs.settle()
    wrecks: list[SimFs] = []
    fs.subscribe(lambda op: wrecks.append(fs.after_process_kill()) if op.mutation is not None else None)
    owner = Owner(epoch=2, node="n", dir="e", state="held", nonce="n")
    set_aside(fs, ROOT, BucketNote(bucket="b", dir="d"), owner, BucketReader(SimObjects()))
    assert len(wrecks) > 10
    for wreck in wrecks:
        for seed in range(10):
            left = wreck.after_machine_crash("reorder", seed)
            names = [name for name in left.listdir(ROOT) if not stays(name)]
            assert "meta" in names or not names, names


def test_a_directory_that_has_lost_the_bucket_before_it_had_opened_it_is_set_aside() -> None:
    """Its daemon was paused between the put of `owner` and the first round."""

    async def script() -> None:
        objects, fs = await filled(), SimFs()
        for name in ("", "/meta"):
            fs.mkdir(ROOT + name)
        write_note(fs, DATADIR, BucketNote(bucket="", dir="d"))
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is not None
        assert fs.exists(join(ROOT, f"{DIVERGED}0", "DIVERGED"))

    live(script)


def begin_history(objects: SimObjects) -> None:
    """An owner has begun another history, and was lost with its disk before there was a base."""
    reader = BucketReader(objects)
    last = reader.round([one.number for one in reader.rounds()][-1])
    place = Place(
        bucket=last.head.bucket,
        epoch=last.head.epoch + 1,
        number=last.head.number,
        hash=last.hash,
        wall_ms=last.head.wall_ms,
        positions=None,
    )
    head = first_head(place, [LogPosition(0, 0)] * last.head.shards, "lost", BASE_MS)
    objects._set(round_name(head.number), encode_round(head, []))
    owner = owner_of(objects)
    owner.epoch, owner.dir, owner.state, owner.lease_ms, owner.url = head.epoch, "lost", "held", 3000, "http://lost"
    objects._set("owner", encode_owner(owner))


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_history_without_a_base_is_not_followed_and_its_owner_is_replaced(is_alive: bool) -> None:
    """Otherwise a standby would make its directory again and again, and nobody could take over."""

    async def script() -> None:
        objects, fs, clock = await filled(), SimFs(), SimClock(BASE_MS)
        before = prepare_directory(fs, ROOT, URL, objects, 1, takes=True)
        assert before is not None
        begin_history(objects)
        mark_unfinished(fs, ROOT)  # as the follower does it that meets the round
        with pytest.raises(HistoryUnfinished, match="begins another history"):
            prepare_directory(fs, ROOT, URL, objects, 1)
        assert prepare_directory(fs, ROOT, URL, objects, 1, takes=True) is None
        told: list[str] = []

        def show(problem: str, owner: str) -> None:
            told.append(owner)
            if owner:
                scope.cancel()  # as the daemon does it, which looks again if there is something to follow

        claim = StartClaim(
            objects,
            LeaseTerms(6000, objects, clock.boottime_ms, lambda keeper: None),
            fs,
            DATADIR,
            clock=clock,
            offload=InlineOffload(),
            url="http://a",
            bucket_url=URL,
            take=False,
            show=show,
            yields=True,
            copies_all=True,
            workers=1,
        )

        async def renew() -> None:
            while is_alive:
                await trio.sleep(1)
                owner = owner_of(objects)
                owner.renewals += 1
                objects._set("owner", encode_owner(owner))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(renew)
            with trio.fail_after(30), trio.CancelScope() as scope:
                await claim.run(is_empty=True)
            nursery.cancel_scope.cancel()
        assert scope.cancelled_caught == is_alive
        if not is_alive:
            note = read_note(fs, DATADIR)
            assert note is not None
            assert (note.dir, note.positions) == (owner_of(objects).dir, None), "another history begins"
            assert not fs.exists(join(ROOT, UNFINISHED))

    live(script)


def test_a_standby_waits_for_the_first_base(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script() -> None:
        clock, disk, fs = SimClock(BASE_MS), SimFs(), SimFs()
        objects = await unfinished(disk, clock)
        monkeypatch.setattr("topics.standby.make_objects", lambda *_: objects)
        monkeypatch.setattr("topics.standby.OsFs", lambda: fs)
        notes: list[BucketNote | None] = []

        async def prepared() -> None:
            notes.append(await prepare(replace(CONFIG, data_dir=Path(ROOT)), InlineOffload()))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(prepared)
            await trio.sleep(30)
            assert not notes
            async with archived(objects, CONFIG, fs=disk.after_process_kill(), clock=clock, bases=True) as life:
                await fill(life)
        assert notes[0] is not None

    live(script)


@pytest.mark.parametrize("found_by", ["a read", "a start"])
def test_a_damaged_record_is_no_hole_on_a_standby(found_by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bucket has it: readers are refused it for a moment, and the directory is made anew. Otherwise a standby that
    takes over would have lost what was acked as `remote`."""
    config = replace(CONFIG, segment_compression="off")

    async def script() -> None:
        objects, fs, clock = SimObjects(), SimFs(), SimClock(BASE_MS)
        async with archived(objects, config, clock=clock, bases=True) as owner:
            await fill(owner)
        assert prepare_directory(fs, ROOT, URL, objects, 1, copies_all=True) is not None
        async with following(fs, objects, config) as life:
            await life.compactor.checkpoint()
        paths = [path for path, content in fs.tree().items() if content and path.endswith(".data")]
        assert paths
        for path in paths if found_by == "a read" else [path.replace(".data", ".idx") for path in paths] + paths:
            with fs.open(path) as handle:
                write_all(handle, b"\xff" * (handle.size() // 2), handle.size() // 2)
        monkeypatch.setattr("topics.standby.make_objects", lambda *_: objects)
        monkeypatch.setattr("topics.standby.lease_terms", lambda *_: None)
        note = prepare_directory(fs, ROOT, URL, objects, 1)
        assert note is not None
        follower = ArchivedLife(config, fs, clock, InlineOffload())
        engine = follower.engine
        engine.store.lock("a standby")
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            standby = Standby(config, engine, note, "http://standby")
            if await standby.recover():
                nursery.start_soon(engine.delivery.scheduler.run)
                engine.open_for_business()
                assert (await refusal(follower.all("a"))).code == "not_ready"
                assert engine.registry.topics["a"].log.count == 10
                with trio.fail_after(60):
                    await standby.run()
            nursery.cancel_scope.cancel()
        engine.store.unlock()
        again = prepare_directory(fs, ROOT, URL, objects, 1)
        assert again is not None
        assert again.dir != note.dir

    live(script)
