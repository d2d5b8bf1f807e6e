"""Random histories with everything in them: each round is restored, and shows what the owner's directory shows."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_restore import restored
from tests.everything import EVERYTHING, slow_after
from tests.simulation.disk import SimFs
from tests.simulation.evidence_lives import grown
from tests.simulation.queue_state import nobody_moves
from tests.simulation.world import COLD, Life, World, settings
from tests.simulator.caller import Memory
from tests.simulator.clients import Clients
from tests.simulator.plan import Plan, make
from tests.simulator.running import Shown, shown_by
from tests.simulator.truth import Truth
from topics.bucket.offline.bucket_check import BucketCheck
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import Workers
from topics.config import Settings
from topics.storage.offline.verify import Verification
from topics.storage.recovery import verdicts

SEEDS = [*range(200)] if EVERYTHING else [*range(8), 11]
"""In 11 there are copies of records in segments that are younger than the base."""
ROUND_S = 0.7
"""Between two rounds."""
SKIPPED = 1000
"""How far the first start of a copy raises heads, here."""


class ArchivedRun:
    """The first life of a plan, of which a bucket is made."""

    def __init__(self, plan: Plan, *, real: bool = False) -> None:
        """`real`: the daemon's own code makes the bases."""
        self.plan = plan
        self.real = real
        self.bucket = SmallBucket()
        self.random = random.Random(plan.seed)
        self.bases: list[int] = []
        self.world = World(plan.seed, config=settings_of(plan))

    def run(self) -> None:
        """All of it; then the process is killed, by itself in some plans."""
        self.world.live(self._life, end="kill")

    async def _life(self, life: Life) -> None:
        clients = Clients(life, Truth(self.plan.routers), Memory(), 0)
        self.bucket.begin(life)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.engine.governor.run)
            nursery.start_soon(life.engine.firings.run)
            nursery.start_soon(self._archive, life)
            with trio.move_on_after(60):
                await clients.run(self.plan.lives[0].actors)
            await trio.sleep(2 * ROUND_S)
            nursery.cancel_scope.cancel()
        life.engine.status.phase = "draining"

    async def _archive(self, life: Life) -> None:
        for turn in itertools.count():
            if turn % 4 == 1:
                make_base = self.bucket.real_base if self.real else self.bucket.base
                self.bases.append(await make_base(life))
            self.bucket.round(life, parts=self.random.choice((1, 1, 2)))
            await trio.sleep(ROUND_S)


def settings_of(plan: Plan) -> Settings:
    """As the simulator has them."""
    changes: dict[str, Any] = dict(plan.settings)
    changes |= {"segment_max_age_ms": 0, "rewrite_live_ratio": 0.8, "min_free_bytes": 0, "stage_ttl_ms": 86_400_000}
    changes["segment_compression"] = "zstd" if changes.pop("packs", 0) else "off"
    cold = Path(COLD) if plan.cold else None
    return settings(**changes, max_tag_bytes=4096, cold_dir=cold, wal_shards=plan.lives[0].shards)


def shown_on(world: World, fs: SimFs, now_ms: int) -> tuple[Shown, dict[str, Any]]:
    """What a daemon shows that is started on a disk, and what it would write down of each topic."""
    found: list[tuple[Shown, dict[str, Any]]] = []

    async def look(life: Life) -> None:
        with nobody_moves(life):
            found.append((await shown_by(life), dumped(life)))
            life.engine.status.phase = "draining"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdicts, "SKIPPED_SEQS", SKIPPED)  # the simulator counts lost seqs one by one
        assert World(world.seed + 1, config=world.settings, fs=fs, now_ms=now_ms).live(look, end="kill")
    return found[0]


def dumped(life: Life) -> dict[str, Any]:
    """The parts of all topics, without what says where their records are."""
    found = {}
    for topic in life.engine.registry.by_id.values():
        part = topic.dump_part()
        log = {key: part.log[key] for key in ("head_seq", "earliest_seq", "evict_floor", "last_ts", "holes", "causes")}
        if topic.config.durability == "ephemeral":
            del log["last_ts"], log["causes"]  # only files have them, and a newer checkpoint has newer ones
        found[part.name] = (
            part.id,
            log,
            part.config,
            part.ceiling,
            part.routers,
            part.origins,
            part.stage,
            part.fences,
            grown(topic),
        )
    return found


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("seed", slow_after(1, SEEDS))
def test_every_round_of_a_history_is_restored(seed: int, real: bool) -> None:
    run = ArchivedRun(make(seed), real=real)
    run.run()
    if not run.bases:
        return  # the plan has killed it before
    cuts = [number for number in run.bucket.at if number >= run.bases[0]]
    assert list(BucketCheck(BucketReader(run.bucket.objects), Workers(1)).findings()) == []
    for number in run.random.sample(cuts, min(len(cuts), 6)):
        now_ms = run.bucket.now_ms[number]
        fs = restored(run.bucket.objects, number)
        found = list(Verification(fs, "/data").findings())
        assert [one for one in found if one.severity == "damage" or "no SHA-256" in one.problem] == []
        mine, parts = shown_on(run.world, fs, now_ms)
        theirs, other_parts = shown_on(run.world, run.bucket.at[number].after_process_kill(), now_ms)
        assert mine == theirs
        assert parts == other_parts
        assert all(log["head_seq"] >= SKIPPED for _, log, *_ in parts.values())


@pytest.mark.slow
def test_the_histories_have_everything_in_them() -> None:
    counts: Counter[str] = Counter()
    for seed in SEEDS[:6]:
        run = ArchivedRun(make(seed))
        run.run()
        last = max(run.bucket.at)
        counts["segments"] += sum(name.startswith("segments/") for name in run.bucket.objects.objects)
        counts["bases"] += len(run.bases) - 1
        for number in [*sorted(run.bucket.at)[::3], last]:
            shown, parts = shown_on(run.world, run.bucket.at[number].after_process_kill(), run.bucket.now_ms[number])
            counts["topics"] += len(shown.views)
            counts["queues"] += len(shown.states)
            counts["routers"] += len(shown.routers)
            counts["consumers"] += sum(map(len, shown.consumers.values()))
            counts["groups"] += sum(map(len, shown.groups.values()))
            counts["schedules"] += len(shown.schedules)
            counts["gaps"] += sum(len(view.gaps) for view in shown.views.values())
            counts["fences"] += sum(bool(part[7]) for part in parts.values())
            counts["leaves"] += sum(part[8][1] for part in parts.values() if part[8] is not None)
    assert set(counts) >= {"topics", "queues", "routers", "consumers", "groups", "schedules", "gaps"}
    assert min(counts.values()) > 0, counts
