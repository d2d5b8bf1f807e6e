"""Several daemons over one bucket: nothing that was acked as `remote` is lost, no seq has two contents, no two of them
act as owners, and standbys show whole cuts, over pauses, partitions, lost answers, drifting clocks and crashes at each
step. And a build that breaks any of this is found out."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from tests.everything import EVERYTHING, slow_after
from tests.simulator.replicas import scripts
from tests.simulator.replicas.attempt import outcome_of, outcome_of_seed
from tests.simulator.replicas.builds import (
    BUILDS,
    CRASH_BUILDS,
    Build,
    lease_from_the_answer,
    rounds_passed_over,
    seven_sixths,
)
from tests.simulator.replicas.crash_points import PHASES, Phase, outcome_at, points, steps_of
from tests.simulator.replicas.history import History, Script, lived
from tests.simulator.replicas.machine import DEATHS
from tests.simulator.replicas.plan import make

SEEDS = range(2000 if EVERYTHING else 24)
QUICK_SEEDS = 4

MOST_SEEDS = 300
"""A broken build is found within so many seeds."""
FINDERS = {
    "no_fencing": 1,
    "late_fencing": 1,
    "seven_sixths": 28,
    "early_taker": 6,
    "replaced_owner_goes_on": 1,
    "no_ceilings": 18,
    "ceilings_not_archived": 18,
    "heads_stay": 18,
    "half_a_cut": 8,
    "batches_passed_over": 7,
    "note_after_apply": 84,
    "log_not_synced": 53,
    "log_uncut": 232,
}
"""The first seeds that have found broken builds; 0 where there is none. If the code changes, others may."""

STRIDE = 1 if EVERYTHING else 48
QUICK_POINTS = 2


@pytest.mark.parametrize("seed", slow_after(QUICK_SEEDS, SEEDS))
def test_what_must_hold_of_several_daemons_holds(seed: int) -> None:
    assert outcome_of_seed(seed).problems == []


def test_histories_have_takeovers_and_whatever_else_is_judged() -> None:
    found = [outcome_of_seed(seed) for seed in range(100, 106)]
    assert sum(one.takeovers for one in found) > 6
    assert sum(one.handovers for one in found) >= 2
    assert sum(one.looks for one in found) > 50
    assert sum(one.answers for one in found) > 50


FOUND = {
    504: "a history has begun, and its owner was lost before it had a base",
    3474: "a daemon that had lost a fresh bucket before it had opened it took it again, and began a history",
    5609: "a lease was lost while a shard synced before a mark, and the writer ended with an IndexError",
    2032: "a first start lost its note in a crash of the machine, and no start accepted the directory",
    7065: "the same, with a file that was never given its name",
    30983: "a look for topics in rounds took a round that ends inside a frame for damage",
    14354: "the first round of a lost owner came when a daemon without anything had just taken the prefix",
    28458: "replay took copies behind a transaction at the end of a file for lost records",
    3778: "a taker that stood still behind its put of `owner` wrote rounds behind those of a later epoch",
}


@pytest.mark.parametrize("seed", FOUND)
def test_a_seed_that_has_found_a_defect_finds_none_any_more(seed: int) -> None:
    assert outcome_of_seed(seed).problems == []


def test_a_seed_determines_a_history() -> None:
    first, second = (lived(make(7)) for _ in range(2))
    assert first.objects.objects == second.objects.objects
    assert first.objects.calls == second.objects.calls


def test_a_history_that_does_not_end_is_told() -> None:
    """Also if it waits out what comes from a disk."""

    async def spins(_: History) -> None:
        while True:
            with suppress(OSError):
                time.process_time()

    outcome = outcome_of(scripts.edge(0), spins, hang_s=0.3)
    assert outcome.problems == ["Hang: it is not over after 0.3 s of the processor"]


@pytest.mark.parametrize("script", [scripts.renewals_end, scripts.renewal_is_confirmed_late])
def test_an_owner_stops_before_another_one_begins(script: Script) -> None:
    outcome = outcome_of(scripts.edge(0), script)
    assert outcome.problems == []
    assert outcome.handovers == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "script"),
    [
        (rounds_passed_over, scripts.renewals_end),
        (lease_from_the_answer, scripts.renewal_is_confirmed_late),
        (seven_sixths, scripts.renewal_is_confirmed_late),
    ],
)
def test_a_build_that_is_broken_at_the_edge_of_a_lease_is_found_out(
    build: Build, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(monkeypatch)
    assert any(outcome_of(scripts.edge(seed), script).problems for seed in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILDS, ids=lambda build: str(build.__name__))
def test_a_broken_build_is_found_out(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed that has found it when this was written comes first."""
    build(monkeypatch)
    first = FINDERS.get(build.__name__, 0)
    assert any(outcome_of_seed(seed).problems for seed in (first, *range(MOST_SEEDS)))


# -- a crash at each step ----------------------------------------------------------------------------------------------


def sampled(phase: Phase, count: int, seed: int) -> list[int]:
    """Some steps of a phase."""
    steps = len(steps_of(phase))
    return [(seed * 37 + i * steps // count) % steps for i in range(count)]


@pytest.mark.parametrize("phase", PHASES)
def test_the_start_after_a_kill_at_some_step_finds_its_way(phase: Phase) -> None:
    chosen = sampled(phase, QUICK_POINTS, 1)
    every = [point for point in points(phase, ("kill", "drop")) if point.step in chosen]
    for point in (every[0], every[-1]):
        assert outcome_at(point).problems == [], str(point)


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("phase", PHASES)
def test_the_start_after_a_kill_at_each_step_finds_its_way(phase: Phase, death: str) -> None:
    for point in points(phase, (death,)):  # type: ignore[arg-type]
        if (point.step + DEATHS.index(point.death)) % STRIDE == 0:
            assert outcome_at(point).problems == [], str(point)


def test_the_story_has_every_change_of_a_directory() -> None:
    """The steps at which something must not be half done are among those that are crashed."""
    take, back = "\n".join(steps_of("take")), "\n".join(steps_of("back"))
    follow = "\n".join(steps_of("follow"))
    for part in (
        "put_if owner",
        "put_new rounds/",
        "truncate /data/wal/",
        "RESTORED",
        "meta/bucket",
        "unlink /data/meta/standby",
    ):
        assert part in take, part
    for part in ("rename /data/wal", "rename /data/meta ", "DIVERGED", "RESTORING", "meta/standby"):
        assert part in back, part
    for part in ("RESTORING", "meta/standby", "fdatasync /data/wal/", "rename /data/meta/snapshot.2"):
        assert part in follow, part


@pytest.mark.slow
@pytest.mark.parametrize("build", CRASH_BUILDS, ids=lambda build: str(build.__name__))
def test_a_build_that_is_broken_between_two_steps_is_found_out(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    build(monkeypatch)
    found = []
    for phase in PHASES[1:]:
        for point in points(phase, ("kill",)):
            if ("/data/meta" in point.what or "/data/wal " in point.what) and "tmp" not in point.what:
                found += outcome_at(point).problems
                if found:
                    return
    pytest.fail("nothing was found")
