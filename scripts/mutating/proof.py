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

ROUTER_TESTS: Final = (
    "engine/forwarding/test_routers.py",
    "engine/forwarding/test_router_losses.py",
    "engine/forwarding/test_router_durability.py",
)

QUEUE_TESTS: Final = (
    "engine/queues/test_queues.py",
    "engine/queues/test_waiting.py",
    "engine/queues/test_disk.py",
    "engine/queues/test_dead_letters.py",
    "engine/queues/test_streams.py",
)

SERVER_TESTS: Final = (
    "http/connections/test_server.py",
    "http/connections/test_slow_clients.py",
    "http/connections/test_crowds.py",
)

TABLE_TESTS: Final = (
    "log/tables/test_kept_tags.py",
    "engine/tables/test_tables_in_flight.py",
    "engine/tables/test_latest_reads.py",
    "engine/tables/test_tables_model.py",
)

EVIDENCE_TESTS: Final = (
    "evidence/test_merkle.py",
    "evidence/test_signed_note.py",
    "storage/evidence/test_leaf_files.py",
    "simulation/test_evidence.py",
    "evidence/test_topic_tree.py",
    "simulation/test_evidence_attacks.py",
)

TARGETS: Final[Mapping[str, tuple[str, ...]]] = {
    "topics/evidence/proofs.py": EVIDENCE_TESTS,
    "topics/evidence/record_leaf.py": EVIDENCE_TESTS,
    "topics/storage/evidence/leaf_writer.py": EVIDENCE_TESTS,
    "topics/engine/registry.py": ("bucket/test_transactions_in_rounds.py", "bucket/test_remote.py"),
    "topics/engine/evidence/evidence_calls.py": EVIDENCE_TESTS,
    "topics/storage/offline/verify_trees.py": EVIDENCE_TESTS,
    "topics/engine/engine.py": TABLE_TESTS,
    "topics/engine/tables/kept_records.py": TABLE_TESTS,
    "topics/log/tables/kept_tags.py": TABLE_TESTS,
    "topics/engine/operations/latest_reads.py": TABLE_TESTS,
    "topics/engine/operations/unique_jobs.py": ("engine/queues/test_unique_jobs.py",),
    "topics/queue/unique_keys.py": ("queue/test_unique_keys.py", "engine/queues/test_unique_jobs.py"),
    "topics/engine/operations/append.py": (
        *TABLE_TESTS,
        "engine/queues/test_unique_jobs.py",
        "engine/test_commit.py",
        "engine/operations/test_append_turns.py",
        "simulation/test_recovery_rules.py",
    ),
    "topics/engine/operations/delete.py": (
        "engine/operations/test_delete.py",
        "engine/operations/test_delete_ranges.py",
    ),
    "topics/log/losses.py": ("log/test_topic_log_model.py", "log/test_losses.py"),
    "topics/engine/operations/schema_checks.py": ("engine/operations/test_schema_checks.py",),
    "topics/engine/ceilings.py": (
        "engine/test_commit.py",
        "simulation/test_recovery_rules.py",
        "bucket/test_fencing.py",
    ),
    "topics/engine/reach.py": ("engine/test_reach.py",),
    "topics/engine/standby/live_replay.py": ("bucket/test_standby_windows.py",),
    "topics/bucket/standby/round_follower.py": ("bucket/test_standby_cuts.py",),
    "topics/bucket/standby/handover.py": ("bucket/test_standby_takeover.py", "simulator/replicas/test_replicas.py"),
    "topics/bucket/log_reader.py": ("bucket/test_standby_cuts.py",),
    "topics/bucket/bases/base_writer.py": ("bucket/test_bases.py",),
    "topics/bucket/ownership/takeover.py": (
        "bucket/test_fencing.py",
        "bucket/test_standby_takeover.py",
        "simulator/replicas/test_replicas.py",
    ),
    "topics/bucket/ownership/lease.py": ("bucket/test_leases.py",),
    "topics/bucket/ownership/lease_keeper.py": ("bucket/test_leases.py",),
    "topics/engine/record_collector.py": (
        "engine/operations/test_read.py",
        "engine/test_retention.py",
        "engine/operations/test_filtered_reads.py",
    ),
    "topics/engine/commits.py": ("engine/test_commit.py", "simulation/test_recovery_rules.py"),
    "topics/engine/operations/topic_lifecycle.py": (
        "engine/operations/test_topics.py",
        "simulation/test_recovery_rules.py",
    ),
    "topics/engine/forwarding/copy_commits.py": (
        *ROUTER_TESTS,
        "engine/forwarding/test_router_lives.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/engine/queues/completions.py": ("engine/queues/test_completions.py",),
    "topics/engine/operations/member_commits.py": (
        *TABLE_TESTS,
        "engine/redrives/test_redrives.py",
    ),
    "topics/engine/queues/job_changes.py": ("engine/queues/test_job_changes.py",),
    "topics/queue/key_limit.py": (
        "queue/test_key_limit_cancels.py",
        "queue/test_key_limit_machine.py",
        "engine/queues/test_key_limit.py",
    ),
    "topics/engine/redrives/letter_moves.py": ("engine/redrives/test_redrives.py",),
    "topics/engine/queues/dead_letters.py": ("engine/queues/test_dead_letters.py", "engine/queues/test_jobs.py"),
    "topics/engine/operations/export.py": ("engine/operations/test_export.py",),
    "topics/engine/forwarding/forwarders.py": (
        *ROUTER_TESTS,
        "engine/forwarding/test_router_lives.py",
    ),
    "topics/http/handlers/data_plane.py": ("http/test_time_limit.py",),
    "topics/http/routes.py": ("http/test_time_limit.py",),
    "topics/http/connections/connection.py": SERVER_TESTS,
    "topics/http/connections/lane.py": ("http/connections/test_lane.py",),
    "topics/http/connections/protocols/http1.py": ("http/connections/test_lane.py",),
    "topics/http/connections/request_heads.py": ("http/connections/test_request_heads.py",),
    "topics/http/connections/server.py": ("http/connections/test_lane.py", *SERVER_TESTS),
    "topics/engine/idempotency_keys.py": ("engine/test_idempotency_keys.py",),
    "topics/consumers/consumers.py": ("consumers/test_consumers.py", "engine/consumers/test_consumer_calls.py"),
    "topics/engine/consumers/consumed_records.py": (
        "engine/consumers/test_consumer_calls.py",
        "engine/groups/test_group_calls.py",
    ),
    "topics/engine/consumers/consumer_calls.py": ("engine/consumers/test_consumer_calls.py",),
    "topics/engine/consumers/consumer_commits.py": ("engine/consumers/test_consumer_calls.py",),
    "topics/engine/consumers/consumer_reads.py": ("engine/consumers/test_consumer_calls.py",),
    "topics/engine/queues/lease_commits.py": (
        *QUEUE_TESTS,
        "engine/groups/test_group_calls.py",
        "engine/queues/test_queue_lives.py",
        "engine/queues/test_jobs.py",
    ),
    "topics/engine/queues/looks.py": ("engine/groups/test_group_calls.py",),
    "topics/engine/group_queue.py": ("engine/groups/test_group_calls.py", "engine/queues/test_job_changes.py"),
    "topics/engine/groups/group_calls.py": (
        "engine/groups/test_group_calls.py",
        "engine/groups/test_deleted_groups.py",
    ),
    "topics/groups/group.py": (
        "groups/test_group.py",
        "groups/test_replayed_losses.py",
        "engine/groups/test_group_calls.py",
    ),
    "topics/filters/predicates.py": ("filters/test_record_filter.py",),
    "topics/filters/record_filter.py": ("filters/test_record_filter.py",),
    "topics/raw_bytes.py": ("test_raw_bytes.py",),
    "topics/engine/filtered_records.py": (
        "engine/operations/test_filtered_reads.py",
        "storage/cache/test_tag_loads.py",
        *ROUTER_TESTS,
    ),
    "topics/schemas/record_schema.py": ("schemas/test_record_schema.py",),
    "topics/http/handlers/raw_bytes.py": ("http/handlers/test_raw_bytes.py",),
    "topics/log/retention.py": ("log/test_retention.py",),
    "topics/log/seq_ceiling.py": ("log/test_seq_ceiling.py", "engine/test_commit.py"),
    "topics/log/topic_log.py": ("log/test_topic_log.py", "log/test_losses.py"),
    "topics/engine/job_queue.py": ("engine/queues/test_jobs.py", "engine/queues/test_sweeps.py"),
    "topics/engine/operations/new_jobs.py": ("engine/queues/test_jobs.py",),
    "topics/queue/claim_limits.py": ("queue/test_claim_limits.py", "engine/queues/test_jobs.py"),
    "topics/queue/claim_order.py": ("queue/test_claim_order.py", "engine/queues/test_jobs.py"),
    "topics/queue/job_projection.py": (
        "queue/test_leases.py",
        "engine/queues/test_jobs.py",
        "queue/test_key_order_machine.py",
    ),
    "topics/queue/key_order.py": ("queue/test_key_order_machine.py", "engine/queues/test_key_order.py"),
    "topics/queue/job_table.py": ("queue/test_leases.py", "engine/queues/test_jobs.py"),
    "topics/queue/leases.py": (
        "queue/test_leases.py",
        "queue/test_key_limit_cancels.py",
        *QUEUE_TESTS,
        "queue/test_key_order_machine.py",
        "engine/queues/test_key_order.py",
    ),
    "topics/engine/operations/large_batches.py": ("engine/operations/test_large_batches.py",),
    "topics/runtime/turns.py": ("runtime/test_turns.py",),
    "topics/sched/audience.py": ("sched/test_audience.py", "engine/delivery/test_topic_delivery.py"),
    "topics/sched/workers.py": ("sched/test_workers.py",),
    "topics/engine/operations/stage_commits.py": (
        "engine/operations/test_stages.py",
        "simulation/test_staging_crashes.py",
    ),
    "topics/storage/maintenance/compactor.py": (
        "simulation/test_holds.py",
        "simulation/test_damage.py",
        "simulation/test_sealing.py",
        "storage/maintenance/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/files/datadir.py": ("storage/files/test_datadir.py",),
    "topics/storage/wal/frame_search.py": ("storage/wal/test_frame_search.py",),
    "topics/storage/recovery/log_end.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/wal/frames.py": ("storage/wal/test_frames.py", "simulation/test_damage.py"),
    "topics/storage/files/fs.py": ("storage/files/test_fs.py",),
    "topics/storage/maintenance/cold_flags.py": (
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/maintenance/reclaimer.py": (
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/maintenance/segment_rewrite.py": (
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/recovery/copy_replay.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/recovery/replay.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/recovery/shard_replay.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
        "simulation/test_evidence_attacks.py",
    ),
    "topics/storage/recovery/stored_parts.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/recovery/topic_replay.py": (
        *TABLE_TESTS,
        "engine/operations/test_delete_ranges.py",
        "engine/consumers/test_consumer_calls.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_damage.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/cold/identity.py": ("storage/cold/test_identity.py",),
    "topics/storage/segments/packed_format.py": ("storage/segments/test_packed_format.py",),
    "topics/storage/segments/data_files.py": ("storage/segments/test_data_files.py",),
    "topics/storage/maintenance/deletion_flags.py": ("simulation/test_packed_segments.py",),
    "topics/storage/maintenance/packer.py": ("simulation/test_packed_segments.py",),
    "topics/storage/maintenance/relocator.py": (
        "simulation/test_packed_segments.py",
        "simulation/test_cold_hangs.py",
        "simulation/test_segment_damage.py",
        "simulation/test_segment_models.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/snapshots/manifests.py": (
        "simulation/test_holds.py",
        "storage/maintenance/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/segments/topic_segments.py": ("simulation/test_sealing.py",),
    "topics/storage/segments/segment_reader.py": ("simulation/test_shortened_segments.py",),
    "topics/storage/segments/segment_scan.py": ("storage/segments/test_segment_scan.py",),
    "topics/storage/cache/span_loader.py": (
        *TABLE_TESTS,
        "simulation/test_shortened_segments.py",
        "storage/cache/test_tag_loads.py",
        "engine/operations/test_tags_in_files.py",
    ),
    "topics/storage/segments/tag_directory.py": (
        "storage/segments/test_tag_directory.py",
        "engine/operations/test_tags_in_files.py",
    ),
    "topics/storage/segments/tag_summary.py": ("storage/segments/test_tag_summary.py",),
    "topics/storage/segments/segment_store.py": ("storage/segments/test_segment_store.py",),
    "topics/storage/snapshots/snapshot.py": ("storage/snapshots/test_snapshot.py", "simulation/test_damage.py"),
    "topics/storage/maintenance/topic_capture.py": (
        "simulation/test_holds.py",
        "storage/maintenance/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/maintenance/segment_growth.py": ("simulation/test_sealing.py",),
    "topics/storage/maintenance/topic_checkpoint.py": (
        "simulation/test_holds.py",
        "simulation/test_sealing.py",
        "storage/maintenance/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/files/unsynced_files.py": (
        "storage/maintenance/test_compactor.py",
        "simulation/test_recovery_rules.py",
        "simulation/test_unguarded_rules.py",
        "simulation/test_writeback_errors.py",
    ),
    "topics/storage/files/witness.py": ("simulation/test_recovery_rules.py", "simulation/test_faults.py"),
    "topics/engine/transaction.py": (
        "simulation/test_transactions_in_flight.py",
        "simulation/test_transaction_crashes.py",
    ),
    "topics/storage/recovery/transaction_replay.py": ("storage/recovery/test_transaction_replay.py",),
    "topics/storage/recovery/verdicts.py": (
        "simulation/test_recovery_rules.py",
        "simulation/test_staging_crashes.py",
        "simulation/test_unguarded_rules.py",
    ),
    "topics/storage/wal/shard_log.py": (
        "storage/wal/test_shard_writer.py",
        "storage/wal/test_stall.py",
        "simulation/test_crash_sweep.py",
    ),
    "topics/storage/wal/group_writes.py": (
        "storage/wal/test_group_writes.py",
        "storage/wal/test_shard_writer.py",
        "simulation/test_crash_sweep.py",
    ),
    "topics/storage/wal/shard_writer.py": (
        "storage/wal/test_shard_writer.py",
        "storage/wal/test_stall.py",
        "simulation/test_crash_sweep.py",
    ),
    "topics/storage/wal/write_queue.py": (
        "storage/wal/test_shard_writer.py",
        "storage/wal/test_stall.py",
        "simulation/test_crash_sweep.py",
    ),
    "topics/engine/forwarding/source_columns.py": ROUTER_TESTS,
    "topics/engine/topic.py": (
        "engine/test_commit.py",
        *ROUTER_TESTS,
        "simulation/test_recovery_rules.py",
    ),
    "topics/engine/delivery/topic_delivery.py": (
        "engine/delivery/test_topic_delivery.py",
        "engine/delivery/test_interleavings.py",
        "engine/delivery/test_prefix_watches.py",
    ),
    "topics/engine/delivery/feed.py": ("engine/delivery/test_topic_delivery.py",),
    "topics/engine/delivery/outbox.py": ("engine/delivery/test_outbox.py",),
    "topics/engine/delivery/watch_sessions.py": ("engine/delivery/test_watch_sessions.py",),
    "topics/engine/delivery/watch_session.py": ("engine/delivery/test_watch_sessions.py",),
    "topics/engine/delivery/prefix_session.py": ("engine/delivery/test_prefix_watches.py",),
    "topics/engine/delivery/prefix_watches.py": ("engine/delivery/test_prefix_watches.py",),
    "topics/engine/delivery/prefix_wishes.py": ("engine/delivery/test_prefix_watches.py",),
    "topics/conditions/verdict.py": ("engine/operations/test_conditions.py",),
    "topics/engine/operations/judge.py": (
        "engine/operations/test_conditions.py",
        "engine/operations/test_conditions_model.py",
        "engine/operations/test_conditions_on_the_way.py",
    ),
    "topics/log/topic_tags.py": ("log/test_topic_tags.py", "engine/operations/test_conditions_on_the_way.py"),
    "topics/engine/operations/tag_search.py": (
        "engine/operations/test_conditions.py",
        "engine/operations/test_conditions_model.py",
    ),
    "topics/engine/operations/fence_removal.py": ("engine/operations/test_conditions.py",),
    "topics/engine/schedules/firings.py": ("engine/schedules/test_schedule_lives.py",),
    "topics/schedules/schedules.py": ("schedules/test_schedules.py", "engine/schedules/test_schedule_lives.py"),
    "topics/schedules/timetable.py": ("schedules/test_timetable.py",),
    "topics/storage/recovery/schedule_replay.py": ("engine/schedules/test_schedule_lives.py",),
    "topics/runtime/offload.py": ("runtime/test_offload.py", "storage/wal/test_group_writes.py"),
    "topics/runtime/window_clock.py": ("runtime/test_window_clock.py",),
}
"""The tests that are nearest to a file, below `tests/`: a few seconds of them."""

NEAR: Final[Mapping[Subsystem, tuple[str, ...]]] = {
    "routers": (*ROUTER_TESTS, "engine/forwarding/test_router_lives.py"),
    "queues": (*QUEUE_TESTS, "engine/queues/test_queue_lives.py"),
    "groups": ("groups/test_group.py", "engine/groups/test_group_calls.py"),
    "staging": ("engine/operations/test_stages.py", "simulation/test_staging_crashes.py"),
    "transactions": (
        "storage/recovery/test_transaction_replay.py",
        "simulation/test_transaction_crashes.py",
        "simulation/test_transactions_salvaged.py",
    ),
    "conditions": (
        "engine/operations/test_conditions.py",
        "engine/operations/test_conditions_model.py",
        "engine/operations/test_conditions_on_the_way.py",
    ),
    "schedules": ("engine/schedules/test_schedule_lives.py",),
    "idempotency": ("engine/test_idempotency_keys.py",),
    "evidence": EVIDENCE_TESTS,
}
"""The same of a subsystem whose code is in files of others."""

_LOG: Final = ("test_crash_sweep.py", "test_faults.py", "test_damage.py")
_SEGMENTS: Final = ("test_segment_crashes.py", "test_segment_models.py")
CRASHES: Final[Mapping[Subsystem, tuple[str, ...]]] = {
    "wal": _LOG,
    "directories": (*_LOG, *_SEGMENTS),
    "ceilings": _LOG,
    "eviction": _LOG,
    "filters": _LOG,
    "raw_bytes": _LOG,
    "checkpoint": (*_SEGMENTS, *_LOG),
    "recovery": (*_LOG, *_SEGMENTS),
    "reclaimer": _SEGMENTS,
    "relocator": _SEGMENTS,
    "packing": _SEGMENTS,
    "evidence": (*_LOG, "test_transaction_crashes.py"),
    "routers": ("test_router_crashes.py",),
    "queues": ("test_queue_crashes.py",),
    "groups": ("test_queue_crashes.py",),
    "staging": ("test_staging_crashes.py",),
    "transactions": ("test_transaction_crashes.py",),
    "conditions": _LOG,
    "schedules": _LOG,
    "idempotency": _LOG,
    "classes": (*_LOG, "test_router_crashes.py", "test_queue_crashes.py"),
    "reading": _LOG,
    "delivery": _LOG,
    "pressure": _LOG,
    "takeover": _LOG,
    "standby": _LOG,
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
