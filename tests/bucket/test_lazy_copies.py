"""Copies in a directory that was restored without `--full`: their sources may be in segments that stay in the bucket
(`docs/design/bucket.md` sections 6 and 8)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.bucket.cold_lives import IN_BUCKET
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.test_lazy_restore import PIN, URL
from tests.bucket.test_restore import restored
from tests.bucket.test_restored_copies import (
    SCENARIOS,
    Base,
    Owner,
    Scenario,
    check_restored,
    fill,
    route,
    sources,
    started_on,
)
from tests.simulation.disk import SimFs
from tests.simulation.router_lives import Client
from tests.simulation.segment_lives import reclaim
from tests.simulation.world import ROOT, Life, World
from topics.bucket.bucket_segments import BucketSegments
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import BucketRestore, RestoreSource, Workers
from topics.bucket.offline.restore_target import choose_target
from topics.log.tag_match import parse_match


def left_in_the_bucket(objects: SimObjects) -> SimFs:
    """A disk with a directory whose sealed segments are in the bucket."""
    fs, reader = SimFs(1), BucketReader(objects)
    BucketRestore(fs, reader, ROOT, Workers(1), RestoreSource(URL, PIN)).run(choose_target(reader))
    return fs


async def source_behind_the_log(life: Life, client: Client, base: Base) -> None:
    """Records that only segments of the base have, and not the log, are rewritten into another file, and then
    copied."""
    await sources(client, "dest")
    await fill(client, "source", 30)
    await life.compactor.checkpoint()
    await base()
    await client.append("dest")
    await client.append("source")
    await base()
    await client.delete("source", match=parse_match("a"))
    await life.compactor.checkpoint()
    for _ in range(3):
        await reclaim(life)
    await route(life, client, "source", "dest")


def test_a_full_restore_finds_sources_that_only_segments_have() -> None:
    owner = Owner(source_behind_the_log, shards=1, real=True)
    owner.run()
    check_restored(owner, restored(owner.bucket.objects))


@pytest.mark.parametrize("scenario", [source_behind_the_log, *SCENARIOS], ids=lambda one: one.__name__)
def test_copies_out_of_segments_that_stay_in_the_bucket_are_restored(
    scenario: Scenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(scenario, shards=1, real=scenario is source_behind_the_log)
    owner.run()
    theirs, _ = started_on(owner, owner.bucket.at[owner.bucket.number].after_process_kill())
    objects = owner.bucket.objects
    owner.world.settings = replace(owner.world.settings, cold_dir=IN_BUCKET.cold_dir, hot_retain_segments=1000)
    monkeypatch.setattr(World, "segments", staticmethod(lambda fs: BucketSegments(fs, ROOT, lambda url: objects)))
    mine, world = started_on(owner, left_in_the_bucket(objects))
    assert mine == theirs
    again, world = started_on(owner, world.fs.after_process_kill(), tidy=True)
    assert again == mine
    last, _ = started_on(owner, world.fs.after_process_kill())
    assert last == mine
