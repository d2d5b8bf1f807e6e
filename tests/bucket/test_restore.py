"""A restored directory is what the owner's was at the cut (`docs/spec/bucket.md` section 7, 2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import trio

from tests.bucket.small_bucket import SmallBucket
from tests.everything import slow_after
from tests.simulation.disk import SimFs
from tests.simulation.model import Client, History, View, views_of
from tests.simulation.segment_lives import SMALL, see
from tests.simulation.test_holds import changed, stored
from tests.simulation.world import ROOT, Life, World
from topics.bucket.object_store import ObjectStore
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, Workers
from topics.bucket.offline.restore_target import choose_target
from topics.bucket.ownership.owner_format import decode_owner, encode_owner


def restored(objects: ObjectStore, number: int | None = None, root: str = ROOT) -> SimFs:
    """A disk with a directory that is restored to the end of a round."""
    fs = SimFs(1)
    reader = BucketReader(objects)
    BucketRestore(fs, reader, root, Workers(1)).run(choose_target(reader, number=number))
    return fs


def recovered(world: World, fs: SimFs, now_ms: int) -> dict[str, View]:
    """What a daemon shows that is started on a disk."""
    return see(World(world.seed + 1, config=world.settings, fs=fs, now_ms=now_ms))


@pytest.mark.parametrize("seed", slow_after(1, (2, 0, 1)))  # in 2 the first round has bytes of the log
@pytest.mark.parametrize("shards", [1, 2])
def test_each_round_is_restored_as_the_owner_was(shards: int, seed: int) -> None:
    world = World(seed, config=replace(SMALL, wal_shards=shards))
    bucket = SmallBucket(is_old=seed == 2)
    shown: dict[int, dict[str, View]] = {}

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        bucket.begin(life)
        await stored(life, client)
        bucket.round(life)
        await bucket.base(life)
        for turn in range(4):
            await changed(client, turn)
            await trio.sleep(1)
            views = await views_of(life.engine)
            shown[bucket.round(life, parts=1 + turn % 3)] = views
            if turn == 2:
                await client.delete_topic("memory")
                await bucket.base(life)
            await life.compactor.checkpoint()

    assert world.live(script, end="kill")
    assert len(shown) == 4
    for number, views in shown.items():
        fs = restored(bucket.objects, number)
        found = recovered(world, fs, bucket.now_ms[number])
        assert found == recovered(world, bucket.at[number].after_process_kill(), bucket.now_ms[number])
        for name, view in views.items():
            if view.config.durability != "ephemeral":
                assert found[name].records == view.records
                assert found[name].gaps[: len(view.gaps)] == view.gaps
                assert (found[name].count, found[name].bytes) == (view.count, view.bytes)


@pytest.mark.parametrize("damaged", [False, True])
def test_topics_of_the_restored_directory_get_ids_that_the_owner_gives_to_none(damaged: bool) -> None:
    world, bucket = World(1, config=SMALL), SmallBucket(epoch=3)

    async def script(life: Life) -> None:
        client = Client(life.engine, History())
        bucket.begin(life)
        await client.create("a", durability="fsync")
        await life.compactor.checkpoint()
        bucket.round(life)
        await bucket.base(life)
        bucket.round(life)

    assert world.live(script, end="kill")
    owner = decode_owner(bucket.objects.objects["owner"])
    owner.epoch = 7
    blob = b"{" if damaged else encode_owner(owner)
    bucket.objects.put_if("owner", blob, bucket.objects.head("owner").etag)
    ids: list[int] = []

    async def again(life: Life) -> None:
        ids.append(life.engine.registry.topics["a"].id)
        await Client(life.engine, History()).create("b", durability="fsync")
        ids.append(life.engine.registry.topics["b"].id)

    assert World(2, config=SMALL, fs=restored(bucket.objects)).live(again)
    assert ids[0] < 1 << 32
    assert ids[1] >= (4 if damaged else 8) << 32
