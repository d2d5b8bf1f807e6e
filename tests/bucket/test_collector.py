"""Bases of a daemon with a real archive, and the collector: what is needed stays, over kills, epochs and
histories."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import trio

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.check_bucket import bases_of, check_bucket
from tests.bucket.simulated_objects import SimFault, SimObjects, random_faults
from tests.everything import slow_after
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.bucket.base_format import decode_base, encode_base
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.bucket_look import BucketLook
from topics.bucket.bases.collector import BucketCollector, NotOwner
from topics.bucket.bases.retention import Kept
from topics.bucket.container import BadObject
from topics.bucket.log_reader import divided
from topics.bucket.object_names import base_name, number_of, pin_name, round_name, standby_name
from topics.bucket.object_store import ObjectMissing
from topics.bucket.offline.bucket_check import BucketCheck
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import Workers
from topics.bucket.offline.restore_target import choose_target
from topics.bucket.ownership.owner_format import decode_owner, encode_owner
from topics.bucket.ownership.owner_object import BucketRefused
from topics.bucket.pin_format import Pin, encode_pin
from topics.bucket.round_format import decode_round

pytestmark = pytest.mark.trio

HOUR_S = 20
HOUR_MS = HOUR_S * 1000
"""Shorter than an hour: the archive looks at its log four times a second."""
RETAIN_MS = 10 * HOUR_MS
CONFIG = bucket_settings(segment_max_events=8, segment_max_age_ms=0, bucket_base_ms=30_000)


def bases_for(life: ArchivedLife) -> BaseWriter:
    engine = life.engine
    return BaseWriter(
        life.archive, engine.compactor, clock=life.clock, offload=engine.offload, interval_ms=CONFIG.bucket_base_ms
    )


def collector_for(life: ArchivedLife, bases: BaseWriter, **options: int) -> BucketCollector:
    engine = life.engine
    return BucketCollector(
        life.archive,
        bases,
        clock=life.clock,
        offload=engine.offload,
        **{"retain_ms": RETAIN_MS, "wait_ms": HOUR_MS, **options},
    )


def look_for(life: ArchivedLife, bases: BaseWriter) -> BucketLook:
    return BucketLook(life.archive, bases, collector_for(life, bases))


def check_rounds(objects: SimObjects, number: int) -> None:
    """Every round that a base needs is there, and its files of the log begin where the base says."""
    base = check_bucket(objects, number).base
    there = {n for name in objects.objects if name.startswith("rounds/") and (n := number_of(name)) is not None}
    assert set(range(base.head.first_round, number + 1)) <= there
    for shard, ordinal, first in base.body.files:
        head = decode_round(objects.objects[round_name(first)]).head
        assert any((run.shard, run.ordinal, run.offset) == (shard, ordinal, 0) for run in head.runs)
    ends = decode_round(objects.objects[round_name(number)]).head
    assert ends.ends_cut
    for shard, (ordinal, _) in enumerate(ends.positions):
        assert all(one < ordinal for other, one, _ in base.body.files if other == shard)


async def test_a_base_is_made_at_once_and_its_rounds_have_what_it_needs(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    for epoch in range(1, 4):
        async with archived(objects, CONFIG, fs=fs, clean=epoch % 2 == 0) as life:
            bases = bases_for(life)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bases.run)
                assert not bases.has_base
                with trio.fail_after(60):
                    await bases.ready.wait()
                figures = look_for(life, bases).figures()
                assert (figures.has_base, figures.base) == (True, bases_of(objects)[-1])
                assert figures.state == "working"
                assert bases.made == (epoch == 1), "a directory that goes on has its base already"
                await life.put("a", durability="fsync")
                for i in range(30):
                    await life.append("a", i)
                await trio.sleep(35)
                assert bases.made == 2, "one at once, and one for the records"
                nursery.cancel_scope.cancel()
            for number in bases_of(objects):
                check_rounds(objects, number)
            assert check_bucket(objects).base.head.epoch == epoch


async def test_a_new_history_begins_with_a_base(autojump_clock: Any) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, CONFIG, fs=fs, clean=False) as life:
        await life.put("a", durability="fsync")
        await life.append("a", 1)
        bases = bases_for(life)
        assert await bases.try_take()
        first = bases_of(objects)
        assert bases.has_base
        await life.archive.begin_anew("a test")
        await trio.sleep(60)
        assert life.archive.epoch == 2
        look = look_for(life, bases)
        assert (look.figures().has_base, look.figures().base) == (False, 0)
        await bases.load()
        assert not bases.ready.is_set()
        assert await bases.try_take()
        assert bases.ready.is_set()
        before_ms = look.figures().base_age_ms
        await trio.sleep(5)
        assert look.figures().base_age_ms - before_ms == 5000
        figures = look.figures()
        assert (figures.has_base, figures.base, figures.base_is_due) == (True, bases_of(objects)[-1], False)
        assert (figures.bases, figures.bases_failed) == (2, 0)
        assert figures.objects_put["bases"] == 2
        assert figures.bytes_put["packs"] == sum(
            len(data) for name, data in objects.objects.items() if name.startswith("packs/")
        )
        objects.faults = lambda op, name: SimFault.BEFORE if name.startswith("packs/") else None
        await life.put("b", durability="fsync")
        await life.append("a", *range(50))
        await life.compactor.checkpoint()
        assert not await bases.try_take()
        figures = look.figures()
        assert (figures.has_base, figures.base_is_due, figures.bases, figures.bases_failed) == (True, True, 2, 1)
        objects.faults = lambda op, name: None
    newest = check_bucket(objects).base
    assert newest.head.number > first[-1]
    assert newest.head.epoch == 2
    assert newest.head.first_round >= life.archive.history_begun_at
    check_rounds(objects, newest.head.number)


@pytest.mark.slow
async def test_what_nobody_needs_goes_an_hour_later_and_everything_else_stays(autojump_clock: Any) -> None:
    objects, fs, clock = SimObjects(), SimFs(), SimClock()
    pinned = 0
    for epoch in range(1, 4):
        async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
            bases = bases_for(life)
            collector = collector_for(life, bases)
            if epoch == 1:
                await life.put("a", durability="fsync", cap_records=40)
            for hour in range(16):
                await life.append("a", *range(5))
                await life.delete("a", match="x")
                assert await bases.try_take()
                if epoch == 1 and hour == 3:
                    pinned = bases_of(objects)[-1]
                    objects.put_new(pin_name("p"), encode_pin(Pin(base=pinned, expires=clock.now_ms() + 20 * HOUR_MS)))
                await trio.sleep(HOUR_S)
                await collector.pass_over()
                for number in bases_of(objects)[-3:]:
                    check_rounds(objects, number)
                if hour > 3 and epoch == 1:
                    check_rounds(objects, pinned)
            numbers = bases_of(objects)
            assert collector.deleted
            assert BucketLook(life.archive, bases, collector).figures().objects_deleted == collector.deleted
            walls = [check_bucket(objects, number).base.head.wall_ms for number in numbers if number != pinned]
            assert len([wall for wall in walls if wall <= clock.now_ms() - RETAIN_MS]) <= 3
            assert len([wall for wall in walls if wall > clock.now_ms() - RETAIN_MS]) >= 9
    assert pinned not in bases_of(objects)
    named = set().union(*(check_bucket(objects, number).named for number in bases_of(objects)))
    spare = {name for name in objects.objects if name.startswith(("packs/", "segments/")) and name not in named}
    assert len(spare) <= 6, "what the last passes have found"
    epochs = [decode_round(data).head.epoch for name, data in sorted(objects.objects.items()) if "rounds/" in name]
    assert {1, 2, 3} <= set(epochs), "the first round of each epoch stays"
    assert epochs.count(1) == 1


async def test_the_announcement_of_a_standby_goes_when_it_is_old(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.bucket.bases.collector.FORGET_MS", RETAIN_MS)
    clock = SimClock()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, clock=clock, clean=False) as life:
        bases = bases_for(life)
        collector = collector_for(life, bases)
        await life.put("a", durability="fsync")
        objects.put_new(standby_name("gone"), b"{}")
        for _ in range(RETAIN_MS // HOUR_MS + 3):
            assert standby_name("gone") in objects.objects
            await life.append("a", *range(5))
            assert await bases.try_take()
            await trio.sleep(HOUR_S)
            objects.delete([standby_name("here")])
            objects.put_new(standby_name("here"), b"{}")
            await collector.pass_over()
            if standby_name("gone") not in objects.objects:
                break
        assert standby_name("gone") not in objects.objects
        assert standby_name("here") in objects.objects


@pytest.mark.parametrize("expired_for_ms", [1, RETAIN_MS + HOUR_MS])
async def test_a_pin_that_is_renewed_during_a_pass_keeps_its_base_and_stays(
    expired_for_ms: int, autojump_clock: Any
) -> None:
    objects, clock = SimObjects(), SimClock()
    async with archived(objects, CONFIG, clock=clock, clean=False) as life:
        bases = bases_for(life)
        collector = collector_for(life, bases)
        await life.put("a", durability="fsync")
        await life.append("a", *range(20))
        assert await bases.try_take()
        pinned = bases_of(objects)[0]
        await life.put("a", cap_records=1)
        for _ in range(2):
            await life.append("a", *range(20))
            await life.compactor.checkpoint()
            await trio.sleep(HOUR_S)
            assert await bases.try_take()
        name, expires = pin_name("p"), clock.now_ms() + RETAIN_MS
        objects.put_new(name, encode_pin(Pin(base=pinned, expires=expires)))
        await trio.sleep((RETAIN_MS + expired_for_ms) / 1000)
        await collector.pass_over()
        await trio.sleep(HOUR_S)

        def renew(op: str, prefix: str) -> None:
            if (op, prefix) == ("list", "segments/"):
                renewed = encode_pin(Pin(base=pinned, expires=clock.now_ms() + RETAIN_MS))
                objects.entered = lambda op, name: None
                objects.put_if(name, renewed, objects.head(name).etag)

        objects.entered = renew
        await collector.pass_over()
        assert name in objects.objects
        assert pinned in bases_of(objects)
        for _ in range(3):
            await trio.sleep(HOUR_S)
            await collector.pass_over()
        check_rounds(objects, pinned)
        assert name in objects.objects


async def test_a_clock_that_is_set_forward_makes_nothing_old(autojump_clock: Any) -> None:
    objects, clock = SimObjects(), SimClock()
    retain_ms = 7 * 86_400_000
    async with archived(objects, CONFIG, clock=clock, clean=False) as life:
        bases = bases_for(life)
        collector = collector_for(life, bases, retain_ms=retain_ms)
        await life.put("a", durability="fsync")
        pin = pin_name("p")
        objects.put_new(pin, encode_pin(Pin(base=1, expires=clock.now_ms() + 86_400_000)))
        for turn in range(8):
            await life.append("a", turn)
            assert await bases.try_take()
            await trio.sleep(HOUR_S)
            await collector.pass_over()
            if turn == 3:
                clock.step(365 * 86_400_000)
        assert len(bases_of(objects)) == 8
        assert pin in objects.objects
        clock.step(-365 * 86_400_000)
        clock.advance(8 * 86_400_000)
        for _ in range(3):
            await collector.pass_over()
            await trio.sleep(HOUR_S)
        assert len(bases_of(objects)) < 8


async def test_a_pass_looks_at_a_bounded_number_of_old_rounds(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    async def none(numbers: list[int]) -> set[int]:
        return {min(numbers)}

    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life:
        collector = collector_for(life, bases_for(life))
        for number in range(100, 3600):
            objects.put_new(round_name(number), b"")
        monkeypatch.setattr("topics.bucket.bases.collector.MOST_PER_PASS", 1500)
        monkeypatch.setattr(collector, "_epoch_beginnings", none)
        assert await collector._old_rounds(Kept(frozenset(), 3000, ())) == [], "the next start reads all of them"
        life.archive._noted.round = 5000
        objects.calls.clear()
        found = await collector._old_rounds(Kept(frozenset(), 3000, ((500, 999),)))
        assert sum(op == "list" for op, _ in objects.calls) == 2
        assert set(found) <= {round_name(number) for number in range(3000) if not 500 <= number <= 999}
        assert len(found) == 1499, "all but the first of its epoch"
        life.archive._noted.round = 5000
        assert len(await collector._old_rounds(Kept(frozenset(), 140, ()))) >= 39


@pytest.mark.parametrize("damaged", [False, True])
async def test_a_directory_without_topics_does_not_take_a_bucket_that_has_some(
    damaged: bool, autojump_clock: Any
) -> None:
    objects, other = SimObjects(), SimFs()
    async with archived(objects, CONFIG) as life, trio.open_nursery() as nursery:
        bases = bases_for(life)
        nursery.start_soon(bases.run)
        await trio.sleep(5)  # nothing yet, so that a new directory may come
        nursery.cancel_scope.cancel()
    assert decode_owner(objects.objects["owner"]).state == "free"
    assert any(name.startswith("bases/") for name in objects.objects)
    async with archived(objects, CONFIG, fs=SimFs(1)) as life:
        await life.put("a", durability="fsync")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bases_for(life).run)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
    if damaged:
        objects._set(max(name for name in objects.objects if name.startswith("bases/")), b"damaged")
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="this one has none: is its disk mounted")):
        async with archived(objects, CONFIG, fs=other):
            raise AssertionError("it has started")
    taking = bucket_settings(bucket_take=True)
    async with archived(objects, taking, fs=other.after_process_kill()) as life:
        assert life.archive.epoch == 3


@pytest.mark.parametrize("round_bytes", [None, 100])
@pytest.mark.parametrize("deleted", [False, True])
async def test_a_directory_without_topics_does_not_take_a_bucket_whose_topics_are_in_rounds_only(
    deleted: bool, round_bytes: int | None, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """Also if rounds end inside frames."""
    if round_bytes is not None:
        monkeypatch.setattr(divided, "__defaults__", (round_bytes,))
    objects = SimObjects()
    async with archived(objects, CONFIG) as life:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bases_for(life).run)
            await trio.sleep(5)
            nursery.cancel_scope.cancel()
        await life.put("a", durability="fsync")
        await life.archived()
        if deleted:
            await life.engine.topic_lifecycle.delete("a", if_empty=False)
    (base,) = [name for name in objects.objects if name.startswith("bases/")]
    assert not decode_base(objects.objects[base]).body.pages, "there was no topic yet"
    assert decode_owner(objects.objects["owner"]).state == "free"
    if deleted:
        async with archived(objects, CONFIG, fs=SimFs(1)) as life:
            assert life.archive.epoch == 2
        return
    with pytest.RaisesGroup(pytest.RaisesExc(BucketRefused, match="this one has none: is its disk mounted")):
        async with archived(objects, CONFIG, fs=SimFs(1)):
            raise AssertionError("it has started")


async def test_nothing_is_deleted_by_another_than_the_owner(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life:
        bases = bases_for(life)
        assert await bases.try_take()
        objects.put_new("packs/0000000001-0000000000", b"spare")
        collector = collector_for(life, bases, wait_ms=0)
        owner = decode_owner(objects.objects["owner"])
        owner.epoch += 1
        objects.put_if("owner", encode_owner(owner), objects.head("owner").etag)
        with pytest.raises(NotOwner):
            await collector.pass_over()
        assert "packs/0000000001-0000000000" in objects.objects
        owner.epoch -= 1
        objects.put_if("owner", encode_owner(owner), objects.head("owner").etag)
        await collector.pass_over()
        assert "packs/0000000001-0000000000" not in objects.objects


async def test_a_base_that_cannot_be_read_stops_every_deletion(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life:
        bases = bases_for(life)
        assert await bases.try_take()
        objects.put_new("packs/0000000001-0000000000", b"spare")
        objects.put_new(base_name(1 << 40), b"no base")
        collector = collector_for(life, bases, wait_ms=0)
        with pytest.raises(ValueError, match="does not begin"):
            await collector.pass_over()
        assert "packs/0000000001-0000000000" in objects.objects


@pytest.mark.parametrize("changes", [{"length": 0}, {"offset": -1}, {"epoch": -1}])
async def test_a_base_with_numbers_that_cannot_be_is_damaged_and_another_is_made(
    changes: dict[str, Any], autojump_clock: Any
) -> None:
    objects, fs = SimObjects(), SimFs()
    async with archived(objects, CONFIG, fs=fs, clean=False) as life:
        bases = bases_for(life)
        await life.put("a", durability="fsync")
        assert await bases.try_take()
        base = check_bucket(objects).base
        number, ref = base.body.pages[0]
        base.body.pages[0] = (number, ref._replace(**changes))
        objects.delete([base_name(base.head.number)])
        objects.put_new(base_name(base.head.number), encode_base(base.head, base.body))
        with pytest.raises(BadObject):
            await collector_for(life, bases).pass_over()
    async with archived(objects, CONFIG, fs=fs, clean=False) as life:
        await life.append("a", 1)
        assert await bases_for(life).try_take()
        check_rounds(objects, bases_of(objects)[-1])


async def test_what_a_base_that_is_being_made_has_put_is_no_garbage(autojump_clock: Any) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG, clean=False) as life:
        bases = bases_for(life)
        await life.put("a", durability="fsync")
        assert await bases.try_take()
        await life.append("a", *range(50))
        await life.compactor.checkpoint()
        before = objects.objects.keys()
        objects.faults = lambda op, name: SimFault.BEFORE if name.startswith("bases/") else None
        assert not await bases.try_take()
        put = objects.objects.keys() - before
        assert any(name.startswith("segments/") for name in put)
        assert any(name.startswith("packs/") for name in put)
        objects.faults = lambda op, name: None
        await collector_for(life, bases, wait_ms=0).pass_over()
        assert {name for name in put if not name.startswith("rounds/")} <= objects.objects.keys()
        assert await bases.try_take()
        check_rounds(objects, bases_of(objects)[-1])


async def test_a_round_that_the_bucket_has_lost_is_noticed_by_the_next_base_and_a_history_begins(
    autojump_clock: Any,
) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG) as life:
        await life.put("a", durability="fsync")
        await life.append("a", *range(30))
        bases = bases_for(life)
        assert await bases.try_take()
        before = bases_of(objects)[-1]
        for _ in range(4):
            await life.append("a", *range(5))
            lost = await life.archived()
        await life.append("a", 1)
        await life.archived()
        objects.delete([round_name(lost)])
        assert not await bases.try_take()
        await trio.sleep(60)
        assert life.archive.epoch == 2
        assert await bases.try_take()
        newest = bases_of(objects)[-1]
        assert newest > lost > before
        check_rounds(objects, newest)
        await life.append("a", 2)
        await life.archived()
        assert await bases.try_take()
    assert choose_target(BucketReader(objects)).base > newest
    found = {one.name for one in BucketCheck(BucketReader(objects), Workers(1)).findings()}
    assert found <= {round_name(lost), round_name(lost + 1)}


@pytest.mark.parametrize("kind", ["segments/", "packs/"])
async def test_what_the_bucket_has_lost_is_noticed_by_the_collector_and_put_again(
    kind: str, autojump_clock: Any
) -> None:
    objects = SimObjects()
    async with archived(objects, CONFIG) as life:
        await life.put("a", durability="fsync")
        await life.append("a", *range(100))
        bases = bases_for(life)
        collector = collector_for(life, bases)
        assert await bases.try_take()
        await life.append("a", *range(3))
        assert await bases.try_take()
        named = sorted(name for name in check_bucket(objects, bases_of(objects)[-1]).named if name.startswith(kind))
        victim = named[0]
        objects.delete([victim])
        with suppress(ObjectMissing):  # nothing goes if a page cannot be read
            await collector.pass_over()
        assert victim in bases.lost
        await life.append("a", 4)
        assert await bases.try_take()
        check_bucket(objects)
        assert not bases.lost
        made = bases.made
        with suppress(ObjectMissing):
            await collector.pass_over()
        assert not bases.lost
        assert await bases.try_take()
        assert bases.made == made, "the bases before may lack it still, which makes none due"


async def test_packs_with_deleted_bytes_are_packed_again(autojump_clock: Any) -> None:
    objects, clock = SimObjects(), SimClock()
    async with archived(objects, CONFIG, clock=clock, clean=False) as life:
        bases = bases_for(life)
        collector = collector_for(life, bases)
        for name in ("a", "b"):
            await life.put(name, durability="fsync")
            await life.append(name, 1)
        assert await bases.try_take()
        await life.append("a", 2)
        assert await bases.try_take()
        packs = bases.known.packs()
        for _ in range(5):
            await trio.sleep(HOUR_S)
            await collector.pass_over()
        assert bases.rewritten
        old = bases.rewritten
        assert await bases.try_take()
        assert not bases.rewritten
        assert old <= packs
        assert not old & bases.known.packs()
        check_rounds(objects, bases_of(objects)[-1])


async def test_packs_of_an_earlier_process_are_as_old_as_the_store_says(autojump_clock: Any) -> None:
    clock, fs = SimClock(), SimFs()
    objects = SimObjects(now_ms=clock.now_ms)
    async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
        bases = bases_for(life)
        for name in ("a", "b"):
            await life.put(name, durability="fsync")
            await life.append(name, 1)
        assert await bases.try_take()
        await life.append("a", 2)
        assert await bases.try_take()
        await trio.sleep(5 * HOUR_S)
    async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
        bases = bases_for(life)
        await life.append("a", 3)
        assert await bases.try_take()
        await collector_for(life, bases).pass_over()
        assert bases.rewritten


@pytest.mark.parametrize("seed", slow_after(1, range(3)))
async def test_bases_and_collections_through_faults(seed: int, autojump_clock: Any) -> None:
    objects, clock, fs = SimObjects(seed), SimClock(), SimFs()
    kinds = (SimFault.BEFORE, SimFault.AFTER, SimFault.LATE)
    for _ in range(3):
        objects.faults = lambda op, name: None
        async with archived(objects, CONFIG, fs=fs, clock=clock, clean=False) as life:
            bases = bases_for(life)
            collector = collector_for(life, bases, retain_ms=HOUR_MS)
            await life.put("a", durability="fsync")
            objects.faults = random_faults(seed, 0.1, kinds)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bases.run)
                nursery.start_soon(collector.run)
                for _ in range(20):
                    await life.append("a", *range(3))
                    await trio.sleep(HOUR_S / 2)
                nursery.cancel_scope.cancel()
            objects.faults = lambda op, name: None
            assert await bases.try_take()
            assert bases.made
            check_rounds(objects, bases_of(objects)[-1])
