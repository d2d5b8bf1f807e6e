"""`BucketCheck` finds every object that is missing or wrong, and a restore that needs one names it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import pytest
import trio

from tests.bucket.simulated_objects import SimObjects
from tests.bucket.small_bucket import SmallBucket
from tests.simulation.disk import SimFs
from tests.simulation.model import Client, History
from tests.simulation.segment_lives import SMALL
from tests.simulation.test_holds import changed, stored
from tests.simulation.world import ROOT, Life, World
from topics.bucket.base_format import decode_base
from topics.bucket.object_names import FORMAT, OWNER, base_name, round_name
from topics.bucket.offline.bucket_check import BucketCheck, BucketDefect
from topics.bucket.offline.bucket_figures import listing_of, status_of
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, Workers
from topics.bucket.offline.restore_target import RestoreRefused, choose_target
from topics.bucket.pin_format import Pin, encode_pin


@cache
def filled() -> SmallBucket:
    """A bucket with two bases, and rounds before, between and after them. Never changed."""
    world = World(5, config=replace(SMALL, wal_shards=2))
    bucket = SmallBucket()

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        bucket.begin(life)
        await stored(life, client)
        for turn in range(3):
            bucket.round(life, parts=2)
            if turn < 2:
                await bucket.base(life)
            await changed(client, turn)
            await trio.sleep(1)
        bucket.round(life)

    assert world.live(script, end="kill")
    return bucket


def holding(objects: dict[str, bytes]) -> SimObjects:
    """A store with these objects."""
    store = SimObjects()
    for name, data in objects.items():
        store.put_new(name, data)
    return store


def check(objects: dict[str, bytes], *, quick: bool = False) -> list[BucketDefect]:
    """What is wrong with these objects."""
    return list(BucketCheck(BucketReader(holding(objects)), Workers(1), quick=quick).findings())


def restore(objects: dict[str, bytes], number: int | None = None) -> SimFs:
    """Restore, and leave nothing if that fails."""
    fs = SimFs(3)
    reader = BucketReader(holding(objects))
    try:
        BucketRestore(fs, reader, ROOT, Workers(1)).run(choose_target(reader, number=number))
    except BaseException:
        assert fs.tree().keys() <= {"/"}
        raise
    return fs


def flips(data: bytes, rng: random.Random) -> Iterator[bytes]:
    """An object with one bit changed, at all places of a small one."""
    places = (
        range(len(data)) if len(data) < 200 else sorted({0, 9, len(data) - 1, *rng.choices(range(len(data)), k=12)})
    )
    for at in places:
        changed_ = bytearray(data)
        changed_[at] ^= 1 << rng.randrange(8)
        yield bytes(changed_)


@pytest.mark.parametrize("quick", [False, True])
def test_nothing_is_wrong_with_a_whole_bucket(quick: bool) -> None:
    objects = filled().objects.objects
    assert {name.partition("/")[0] for name in objects} == {FORMAT, OWNER, "rounds", "bases", "packs", "segments"}
    assert check(objects, quick=quick) == []


def test_each_missing_object_is_found_and_named() -> None:
    objects = with_last_round(filled())
    for name in objects.keys() - {OWNER, round_name(1)}:  # the first round is empty, and no base needs it
        if name.startswith("bases/"):
            continue  # nothing names a base, but that there must be one
        rest = {other: data for other, data in objects.items() if other != name}
        for quick in (False, True):
            assert name in {finding.name for finding in check(rest, quick=quick)}, name


def test_a_bucket_without_a_base_is_of_no_use() -> None:
    objects = filled().objects.objects
    rest = {name: data for name, data in objects.items() if not name.startswith("bases/")}
    assert [finding.name for finding in check(rest)] == ["bases/"]
    with pytest.raises(RestoreRefused, match="no base"):
        restore(rest)


def test_rounds_behind_a_base_that_only_a_pin_keeps_may_be_gone() -> None:
    objects = filled().objects.objects
    bases = sorted(int(name[6:]) for name in objects if name.startswith("bases/"))
    first = decode_base(objects[base_name(bases[1])]).head.first_round
    between = [round_name(number) for number in range(bases[0] + 1, first)]
    rest = {name: data for name, data in objects.items() if name not in between}
    assert bool(between) == bool(check(rest))
    rest["pins/1"] = encode_pin(Pin(base=bases[0], expires=1))
    assert check(rest) == []


@pytest.mark.parametrize("blob", [b"", b"[]", b"{" * 100_000])
def test_a_pin_that_cannot_be_read_is_named_because_nothing_goes_while_it_is_there(blob: bytes) -> None:
    objects = filled().objects.objects
    (found,) = check({**objects, "pins/1": blob})
    assert found.name == "pins/1"
    assert "nothing is deleted" in found.problem


def with_last_round(bucket: SmallBucket) -> dict[str, bytes]:
    """The objects of a bucket whose owner names the last round."""
    objects = bucket.objects.objects
    objects[OWNER] = objects[OWNER].replace(b'"round": 0', b'"round": %d' % bucket.number)
    return objects


@pytest.mark.slow
def test_each_changed_bit_is_found_and_named() -> None:
    rng = random.Random(7)
    objects = filled().objects.objects
    for name, data in objects.items():
        if name == OWNER:
            continue
        for changed_ in flips(data, rng):
            found = {finding.name for finding in check({**objects, name: changed_})}
            assert found & {name, FORMAT} or (name == FORMAT and found), name


def test_a_cut_object_is_found() -> None:
    objects = filled().objects.objects
    for name, data in objects.items():
        for quick in (False, True):
            found = {finding.name for finding in check({**objects, name: data[:-1]}, quick=quick)}
            assert name in found or name in (OWNER, FORMAT), name


def test_what_a_restore_needs_and_is_missing_or_wrong_is_named_and_leaves_nothing() -> None:
    rng = random.Random(8)
    objects = filled().objects.objects
    used = objects_used(objects) - {OWNER}  # which is looked at, and not needed
    assert len({name.partition("/")[0] for name in used}) == 5
    for name in sorted(used):
        for data in (None, rng.choice(list(flips(objects[name], rng)))):
            rest = {other: blob for other, blob in objects.items() if other != name}
            if data is not None:
                rest[name] = data
            if name.startswith("bases/"):
                continue  # without the newest base the one before is used (`test_passed_over_bases`)
            if data is None and name == round_name(filled().number):
                continue  # nobody knows that there was one
            if name.endswith((".idx", ".tags")):
                restore(rest)  # they are made from `.data`
                continue
            with pytest.raises(BucketDamaged) as caught:
                restore(rest)
            assert name in (FORMAT, caught.value.name)


def objects_used(objects: dict[str, bytes]) -> set[str]:
    """The objects that a restore of the last round reads."""
    store = holding(objects)
    del store.calls[:]
    reader = BucketReader(store)
    BucketRestore(SimFs(3), reader, ROOT, Workers(1)).run(choose_target(reader))
    return {name for op, name in store.calls if op.startswith("get")}


def test_two_bases_that_contradict_each_other_and_rounds_that_do_not_follow_are_found() -> None:
    bucket = filled()
    objects = bucket.objects.objects
    first, last = round_name(bucket.number - 1), round_name(bucket.number)
    swapped = {**objects, first: objects[last], last: objects[first]}
    assert {finding.name for finding in check(swapped)} >= {first, last}


def test_status_and_listing_say_what_is_there() -> None:
    bucket = filled()
    reader = BucketReader(bucket.objects)
    status = status_of(reader)
    assert (status.id, status.last_round) == ("small", bucket.number)
    assert status.owner is not None
    assert status.owner.epoch == 1
    kinds = {one.kind: one for one in status.kinds}
    objects = bucket.objects.objects
    assert kinds["rounds"].objects == bucket.number
    assert sum(one.bytes for one in status.kinds) == sum(
        len(data) for name, data in objects.items() if name not in (FORMAT, OWNER)
    )
    listed = listing_of(reader, 1000)
    assert len(listed) == kinds["rounds"].objects + kinds["bases"].objects
    assert [one.number for one in listed] == sorted((one.number for one in listed), reverse=True)
    assert listing_of(reader, 3) == listed[:3]
    assert any("its cut goes on" in one.about for one in listed)
