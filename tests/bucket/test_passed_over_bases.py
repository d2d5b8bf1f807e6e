"""A base that is damaged, or names a pack that is, costs more rounds and nothing else, if an older one leads to the
same state. If none does, the error says what can be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_bucket_check import filled, holding
from tests.simulation.disk import SimFs
from tests.simulation.model import View
from tests.simulation.segment_lives import SMALL, see
from tests.simulation.world import ROOT, World
from topics.bucket.base_format import decode_base
from topics.bucket.object_names import OWNER, base_name, pack_name, round_name
from topics.bucket.offline.bucket_figures import status_of
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, RestoreFigures, Workers
from topics.bucket.offline.restore_target import RestoreTarget, choose_target, with_whole_base
from topics.bucket.standby.directory import prepare_directory


def restored(objects: dict[str, bytes], number: int | None = None) -> tuple[RestoreTarget, SimFs]:
    """As `topics restore` does it."""
    fs, reader = SimFs(3), BucketReader(holding(objects))

    def make(target: RestoreTarget) -> RestoreFigures:
        return BucketRestore(fs, reader, ROOT, Workers(1)).run(target)

    figures = with_whole_base(lambda damaged: choose_target(reader, number=number, damaged=damaged), make)
    return figures.target, fs


def shown(fs: SimFs) -> dict[str, View]:
    return see(World(6, config=replace(SMALL, wal_shards=2), fs=fs, now_ms=filled().now_ms[filled().number]))


def bases(bucket: SmallBucket) -> list[int]:
    return sorted(int(name[6:]) for name in bucket.objects.objects if name.startswith("bases/"))


def packs(objects: dict[str, bytes], base: int) -> set[str]:
    body = decode_base(objects[base_name(base)]).body
    return {pack_name(ref.pack_name) for _, ref in body.pages}


def damages() -> dict[str, dict[str, bytes]]:
    """The objects, each time with another damage of the newest base."""
    objects = filled().objects.objects
    first, newest = bases(filled())
    name, (pack, *_) = base_name(newest), sorted(packs(objects, newest) - packs(objects, first))
    flipped = bytearray(objects[name])
    flipped[len(flipped) // 2] ^= 1
    return {
        "the base": {**objects, name: bytes(flipped)},
        "its length": {**objects, name: objects[name][:-1]},
        "a pack": {**objects, pack: b""},
        "a missing pack": {other: data for other, data in objects.items() if other != pack},
    }


@pytest.mark.parametrize("damaged", ["the base", "its length", "a pack", "a missing pack"])
def test_an_older_base_gives_the_same_state(damaged: str) -> None:
    whole, as_it_was = restored(filled().objects.objects)
    found, fs = restored(damages()[damaged])
    assert (found.round, found.base) == (whole.round, bases(filled())[0])
    assert found.base < whole.base
    assert found.passed_over
    assert not whole.passed_over
    assert shown(fs) == shown(as_it_was)


def test_a_standby_begins_with_an_older_base() -> None:
    for objects in damages().values():
        note = prepare_directory(SimFs(), ROOT, "s3://bucket/prefix", holding(objects), 1)
        assert note is not None
        assert note.round == choose_target(BucketReader(filled().objects)).round


def test_what_can_be_done_is_said_if_no_older_base_leads_there() -> None:
    objects = damages()["the base"]
    first, newest = bases(filled())
    name = base_name(newest)
    between = decode_base(filled().objects.objects[base_name(first)]).head.first_round
    gone = {other: data for other, data in objects.items() if other != round_name(between)}
    only = {other: data for other, data in objects.items() if other != base_name(first)}
    for rest in (gone, only):
        with pytest.raises(BucketDamaged, match="The next base of the owner") as caught:
            restored(rest)
        assert caught.value.name == name
        assert "--round" not in str(caught.value)


def test_the_status_says_what_it_knows() -> None:
    objects = damages()["the base"]
    status = status_of(BucketReader(holding({**objects, OWNER: b"{"})))
    assert [one.partition(":")[0] for one in status.problems] == [OWNER, base_name(bases(filled())[1])]
    assert (status.owner, status.newest_base_ms) == (None, None)
    assert (status.last_round, status.newest_base) == (filled().number, bases(filled())[1])
    assert status_of(BucketReader(filled().objects)).problems == []


def test_a_round_far_behind_the_others_is_no_reason_to_count_up_to_it() -> None:
    objects = {**filled().objects.objects, round_name(10**20 - 1): b""}
    with pytest.raises(BucketDamaged, match=f"{round_name(filled().number + 1)}: it is missing"):
        choose_target(BucketReader(holding(objects)))
