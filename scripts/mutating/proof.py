"""The proof that a build has to pass, in stages from the cheapest to the dearest.

A stage is one command in the copy of the checkout, with a time after which a hang is certain: each takes a small part
of it on idle cores. Random choices are made from fixed seeds, so that what is caught once is caught again. Running it,
and what it means that one fails, is `trial`'s business.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from mutating.mutation import Mutation, Subsystem

SEEDS: Final = 40
"""Histories of the simulator; a figure of the table of `docs/design/proof.md`."""

STRIDE: Final = 7
"""Of the crash table: every so manieth operation is crashed."""

TEST_S: Final = 60
"""A test of these that takes so long will never end: the longest takes five seconds."""

HANG: Final = r"Timeout \(\d+:\d\d:\d\d\)!$"
"""What pytest prints when it gives one up."""

TEST: Final = r'File "\S*?(tests/\S+?)", line \d+ in test_\w+'
"""Which that was, where it shows."""

QUICK: Final = "not slow"

ELSEWHERE: Final = (
    "conformance",
    "browser",
    "spark",
    "cli",
    "client",
    "fuzz",
    "benchmarks",
    "crash",
    "test_mutations.py",
)
"""Tests that are about other things, or need daemons and a network."""

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics/appending.py": ("engine/test_commit.py", "simulation/test_recovery_rules.py"),
    "topics/ceilings.py": ("engine/test_commit.py", "simulation/test_recovery_rules.py"),
    "topics/collecting.py": ("engine/test_reading.py", "engine/test_retention.py"),
    "topics/committing.py": ("engine/test_commit.py", "simulation/test_recovery_rules.py"),
    "topics/configuring.py": ("engine/test_topics.py", "simulation/test_recovery_rules.py"),
    "topics/copy_commits.py": (
        "engine/test_routers.py",
        "engine/test_router_lives.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/dead_letters.py": ("engine/test_queues.py",),
    "topics/exporting.py": ("engine/test_exporting.py",),
    "topics/forwarding.py": ("engine/test_routers.py", "engine/test_router_lives.py"),
    "topics/http/connection.py": ("http/test_server.py",),
    "topics/http/server.py": ("http/test_server.py",),
    "topics/idempotency.py": ("engine/test_idempotency.py",),
    "topics/lease_commits.py": ("engine/test_queues.py", "engine/test_queue_lives.py"),
    "topics/log/topic_log.py": ("log/test_topic_log.py",),
    "topics/queue/leases.py": ("queue/test_leases.py", "engine/test_queues.py"),
    "topics/sched/audience.py": ("sched/test_audience.py", "watching/test_delivery.py"),
    "topics/sched/workers.py": ("sched/test_workers.py",),
    "topics/stage_commits.py": ("engine/test_staging.py", "simulation/test_staging_crashes.py"),
    "topics/storage/compactor.py": (
        "simulation/test_damage.py",
        "storage/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/datadir.py": ("storage/test_datadir.py",),
    "topics/storage/frame_search.py": ("storage/test_frame_search.py",),
    "topics/storage/log_end.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/frames.py": ("storage/test_frames.py", "simulation/test_damage.py"),
    "topics/storage/fs.py": ("storage/test_fs.py",),
    "topics/storage/reclaimer.py": (
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/recovery.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/identity.py": ("storage/test_identity.py",),
    "topics/storage/relocator.py": (
        "simulation/test_cold_hangs.py",
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/manifests.py": (
        "storage/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/segment_reader.py": ("simulation/test_shortened_segments.py",),
    "topics/storage/segment_scan.py": ("storage/test_segment_scan.py",),
    "topics/storage/span_loader.py": ("simulation/test_shortened_segments.py",),
    "topics/storage/segment_store.py": ("storage/test_segment_store.py",),
    "topics/storage/snapshot.py": ("storage/test_snapshot.py", "simulation/test_damage.py"),
    "topics/storage/store.py": ("simulation/test_recovery_rules.py", "simulation/test_unguarded_rules.py"),
    "topics/storage/storing.py": (
        "storage/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/unsynced_files.py": (
        "storage/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
        "simulation/test_writeback_errors.py",
    ),
    "topics/storage/witness.py": ("simulation/test_recovery_rules.py", "simulation/test_faults.py"),
    "topics/storage/verdicts.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_staging_crashes.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/wal.py": ("storage/test_wal.py", "storage/test_stall.py", "simulation/test_crash_sweep.py"),
    "topics/taking.py": ("engine/test_routers.py",),
    "topics/topic.py": ("engine/test_commit.py", "engine/test_routers.py"),
    "topics/watching/delivery.py": ("watching/test_delivery.py", "watching/test_interleavings.py"),
    "topics/watching/feed.py": ("watching/test_delivery.py",),
    "topics/watching/outbox.py": ("watching/test_outbox.py",),
    "topics/watching/sessions.py": ("watching/test_sessions.py",),
    "topics/window_clock.py": ("test_window_clock.py",),
}
"""The tests that are nearest to a file, below `tests/`: a few seconds of them."""

NEAR: Final[Mapping[Subsystem, tuple[str, ...]]] = {
    "routers": ("engine/test_routers.py", "engine/test_router_lives.py"),
    "queues": ("engine/test_queues.py", "engine/test_queue_lives.py"),
    "staging": ("engine/test_staging.py", "simulation/test_staging_crashes.py"),
    "idempotency": ("engine/test_idempotency.py",),
}
"""The same of a subsystem whose code is in files of others."""

_LOG: Final = ("test_crash_sweep.py", "test_faults.py", "test_damage.py")
_SEGMENTS: Final = ("test_segment_crashes.py", "test_segment_models.py")
CRASHES: Final[Mapping[Subsystem, tuple[str, ...]]] = {
    "wal": _LOG,
    "directories": (*_LOG, *_SEGMENTS),
    "ceilings": _LOG,
    "eviction": _LOG,
    "checkpoint": (*_SEGMENTS, *_LOG),
    "recovery": (*_LOG, *_SEGMENTS),
    "reclaimer": _SEGMENTS,
    "relocator": _SEGMENTS,
    "routers": ("test_router_crashes.py",),
    "queues": ("test_queue_crashes.py",),
    "staging": ("test_staging_crashes.py",),
    "idempotency": _LOG,
    "classes": (*_LOG, "test_router_crashes.py", "test_queue_crashes.py"),
    "reading": _LOG,
    "delivery": _LOG,
    "pressure": _LOG,
}
"""The crashes that are nearest to a subsystem, below `tests/simulation/`: up to a minute of them."""

_FAILED: Final = r"^(?:FAILED|ERROR) (\S+?::.+?|\S+)(?: - .*)?$"
_SEED: Final = r"^.*\bseed \d+.*$"
_CASE: Final = r"^python -m tests\.crash\.sweep --row (.+)$"
FAILED: Final = 1
"""The exit code that means that something was noticed; others mean that the stage could not be run."""


class Stage(NamedTuple):
    """One part of the proof. `command` says what is run for a mutation (None: for all of them, in a control run),
    `names` is a regular expression that finds in the output what has failed. Without the file `needs` in the checkout
    there is no such stage."""

    name: str
    command: Callable[[Mutation | None], list[str]]
    timeout_s: float
    names: str
    needs: str | None = None


def stages_of(checkout: Path) -> list[Stage]:
    """The stages that this checkout has, the cheapest first."""
    return [stage for stage in STAGES if stage.needs is None or (checkout / stage.needs).exists()]


def _pytest(*arguments: str) -> list[str]:
    flags = ["-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", "--tb=line"]
    ending = ["-o", f"faulthandler_timeout={TEST_S}", "-o", "faulthandler_exit_on_timeout=true"]
    return [sys.executable, "-m", "pytest", *flags, *ending, *arguments]


def _targeted(mutation: Mutation | None) -> list[str]:
    if mutation is not None:
        names = [*TARGETS[mutation.file], *NEAR.get(mutation.subsystem, ())]
    else:
        names = sorted(name for some in (*TARGETS.values(), *NEAR.values()) for name in some)
    return _pytest("-m", "not slow", *(f"tests/{name}" for name in dict.fromkeys(names)))


def _simulator(mutation: Mutation | None) -> list[str]:
    flags = ["--seeds", str(SEEDS), "--from", "0", "--jobs", "1", "--no-shrink"]
    return [sys.executable, "-m", "tests.simulator", *flags]


def _crash_table(mutation: Mutation | None) -> list[str]:
    return [sys.executable, "-m", "tests.crash.sweep", "--stride", str(STRIDE), "--jobs", "1"]


def _crashes(mutation: Mutation | None) -> list[str]:
    if mutation is None:
        names = sorted({name for some in CRASHES.values() for name in some})
    else:
        names = list(CRASHES[mutation.subsystem])
    return _pytest(*(f"tests/simulation/{name}" for name in names))


def _rest(mutation: Mutation | None) -> list[str]:
    return _pytest("-m", QUICK, *(f"--ignore=tests/{name}" for name in ELSEWHERE), "tests")


STAGES: Final = (
    Stage("targeted", _targeted, 240, _FAILED),
    Stage("simulator", _simulator, 240, _SEED, "tests/simulator/__main__.py"),
    Stage("crashes", _crashes, 900, _FAILED),
    Stage("crash table", _crash_table, 900, _CASE, "tests/crash/sweep.py"),
    Stage("rest", _rest, 900, _FAILED),
)
