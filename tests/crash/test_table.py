"""The crash table: a sample of every row, that the table is complete, and that it finds what it is there to find.

All of it, at every operation and with every end, is `python -m tests.crash.sweep`, or TOPICS_TEST_EVERYTHING=1 here.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.crash import sweep
from tests.crash.damages import ALL_WAYS, DAMAGES
from tests.crash.operations import OPERATIONS
from tests.crash.rows import AnySweep, lived
from tests.crash.sweep import DAMAGE, NAMES, VARIANTS, Case, Figures, Task
from tests.everything import EVERYTHING
from tests.simulation.disk import SimFile, SimFs
from tests.simulation.offload import InlineOffload
from tests.simulation.wal_content import scan_of
from tests.simulation.world import Life, World
from topics.config import Settings
from topics.engine.ceilings import Ceilings
from topics.engine.consumers.consumer_calls import ConsumerCalls
from topics.engine.consumers.consumer_reads import ConsumerReads
from topics.engine.delivery.topic_delivery import TopicDelivery
from topics.engine.delivery.watch_sessions import WatchSessions
from topics.engine.engine import Engine
from topics.engine.engine_metrics import EngineMetrics
from topics.engine.evidence.evidence_calls import EvidenceCalls
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.forwarding.router_lifecycle import RouterLifecycle
from topics.engine.groups.group_calls import GroupCalls
from topics.engine.idempotency_keys import IdempotencyKeys
from topics.engine.loader import Loader
from topics.engine.operations.append import Appends
from topics.engine.operations.backward_reads import BackwardReads
from topics.engine.operations.delete import Deletions
from topics.engine.operations.export import Exports
from topics.engine.operations.fence_removal import FenceRemovals
from topics.engine.operations.latest_reads import LatestReads
from topics.engine.operations.read import Reads
from topics.engine.operations.stage_commits import StageCommits
from topics.engine.operations.stage_lifecycle import StageLifecycle
from topics.engine.operations.topic_lifecycle import TopicLifecycle
from topics.engine.operations.topic_seals import TopicSeals
from topics.engine.operations.transactions import Transactions
from topics.engine.operations.unique_jobs import UniqueJobs
from topics.engine.queues.job_changes import JobChanges
from topics.engine.queues.job_lists import JobLists
from topics.engine.queues.queue_calls import QueueCalls
from topics.engine.reach import Reach
from topics.engine.redrives.dead_jobs import DeadJobs
from topics.engine.redrives.letter_moves import LetterMoves
from topics.engine.redrives.redrives import Redrives
from topics.engine.registry import EngineStatus, Registry
from topics.engine.schedules.firings import Firings
from topics.engine.schedules.schedule_calls import ScheduleCalls
from topics.engine.tables.topic_tables import TopicTables
from topics.engine.topic_states import TopicStates
from topics.runtime.held_clock import HeldClock
from topics.runtime.turns import Turns
from topics.sched.governor import Governor
from topics.storage.cache.index_cache import IndexCache
from topics.storage.cache.payload_cache import PayloadCache
from topics.storage.maintenance.compactor import Compactor
from topics.storage.maintenance.file_holds import FileHolds
from topics.storage.maintenance.home_moves import HomeMoves
from topics.storage.maintenance.reclaimer import Reclaimer
from topics.storage.maintenance.relocator import Relocator
from topics.storage.recovery.length_check import LengthCheck
from topics.storage.store import Store
from topics.storage.wal import frames
from topics.storage.wal.frames import FrameType

STRIDE: Final = 1 if EVERYTHING else 29

# ----------------------------------------------------------------- a sample of every row


def assert_whole(figures: Figures) -> None:
    """No promise of a row was broken."""
    said = "\n\n".join(f"{failure.command}\n{failure.problem}" for failure in figures.failures)
    assert not figures.failed, f"{figures.failed} of {figures.crashes} crashes broke a promise:\n\n{said}"


@pytest.mark.sweep
@pytest.mark.parametrize("name", [row.name for row in OPERATIONS])
def test_no_promise_is_broken_by_a_crash_before_a_sample_of_the_operations_of_every_row(name: str) -> None:
    figures = sweep.run(Task(name, STRIDE, every_end=EVERYTHING))
    assert figures.crashes
    assert_whole(figures)


@pytest.mark.sweep
@pytest.mark.parametrize("name", [row.name for row in DAMAGES])
def test_damage_of_every_kind_is_met_as_the_specification_says(name: str) -> None:
    assert_whole(sweep.run(Task(DAMAGE + name, 1 if EVERYTHING else VARIANTS)))


# ----------------------------------------------------------------- the table is complete

WRITES: Final[dict[type, tuple[str, ...]]] = {
    Engine: ("announce_last_checkpoint", "checkpoint", "expire_unused", "recover", "restore"),
    TopicLifecycle: ("delete", "put"),
    Appends: ("append",),
    Deletions: ("delete_records", "trim"),
    FenceRemovals: ("remove",),
    TopicSeals: ("seal",),
    EvidenceCalls: ("key",),
    StageLifecycle: ("append", "delete"),
    StageCommits: ("commit",),
    Transactions: ("append",),
    TopicTables: ("trim", "trim_all"),
    RouterLifecycle: ("catch_up", "delete", "put"),
    QueueCalls: (
        "ack",
        "claim",
        "close_work",
        "extend",
        "give_back",
        "nack",
        "next_jobs",
        "open_work",
        "pause",
        "resume",
    ),
    ConsumerCalls: ("acquire", "commit", "delete", "put", "release", "seek"),
    ScheduleCalls: ("delete", "pause", "put", "run"),
    Firings: ("run",),
    GroupCalls: ("delete", "put"),
    JobChanges: ("cancel", "retry"),
    LetterMoves: ("move",),
    Ceilings: ("lower_all", "lower_bucket_ceilings", "lower_idle", "raise_at_start"),
    Compactor: (
        "announce",
        "capture",
        "change_layout",
        "checkpoint",
        "checkpoint_at_start",
        "name_files",
        "prolong",
        "release",
        "seal",
        "try_checkpoint",
    ),
    Reclaimer: ("cold_pass", "hot_pass", "pass_over", "remove_topic"),
    Relocator: ("pass_over",),
}
"""What has an effect on the disk, or may have."""
READS: Final[dict[type, tuple[str, ...]]] = {
    Engine: ("adopt_replayed", "fence", "open_for_business", "quiesce", "run", "start_draining", "wake_all"),
    RouterLifecycle: ("ends", "page", "state"),
    QueueCalls: ("nothing_claimed", "window_ms"),
    GroupCalls: ("page", "page_of_all", "state"),
    ConsumerCalls: ("page", "page_of_all", "placed", "state"),
    ScheduleCalls: ("page", "state", "topic_of"),
    ConsumerReads: ("read",),
    JobLists: ("dead_letter_of", "has_dead_letter", "letters", "page"),
    DeadJobs: ("retry",),
    Redrives: ("ended", "get", "start", "stop", "stop_all"),
    Deletions: ("count_records", "is_ready"),
    Reads: ("read", "record", "wait_for_news"),
    EvidenceCalls: ("checkpoint", "compare_keys", "consistency", "inclusion"),
    LatestReads: ("one", "page"),
    Exports: ("open",),
    TopicStates: ("of", "of_type", "page", "ranked"),
    EngineMetrics: ("figures", "tiers"),
    IdempotencyKeys: ("expire", "take_stock"),
    UniqueJobs: ("expire", "take_stock"),
    BackwardReads: ("read",),
    Reach: ("wait",),
    Compactor: ("replay_starts", "run"),
    Reclaimer: ("run",),
    Relocator: ("run",),
}
"""What has none, but for what it waits for or calls of the others."""
INNER: Final[dict[type, tuple[str, ...]]] = {
    TopicLifecycle: (
        "adopt",
        "check_targets",
        "check_topics",
        "create",
        "create_missing",
        "creations_ended",
        "forget",
        "replace_config",
    ),
    Appends: (
        "admit",
        "append_to",
        "check_caps",
        "check_quota",
        "create",
        "decided_removals",
        "expire_all",
        "foreseen_watermark",
        "inline_config",
        "is_loaded",
        "quota_left",
        "watermark",
    ),
    StageLifecycle: ("drop_damaged", "ended", "expire", "forget"),
    StageCommits: ("ended", "expire"),
    Transactions: ("expire",),
    TopicTables: ("is_unfinished", "null_frames", "prepare", "restore", "settle"),
    RouterLifecycle: ("adopt", "adopt_replayed", "drop_replayed", "forget_topic", "samples"),
    QueueCalls: ("figures", "look_after", "look_after_one", "state", "sweep"),
    GroupCalls: ("adopt", "adopt_all", "samples"),
    ConsumerCalls: ("adopt", "adopt_all", "advance", "find", "samples"),
    LetterMoves: ("wait_for",),
    Firings: ("decided", "figures", "look", "note_change", "running"),
    Ceilings: ("commit_point", "first_bucket_ceiling", "forget", "watch"),
    IdempotencyKeys: ("adopt", "begin", "check_room", "forget", "in_flight", "known", "remember"),
    UniqueJobs: ("adopt_all", "begin", "judged", "nothing_stored", "publish"),
    HomeMoves: ("bring", "bring_all", "copied", "needed", "pointer"),
}
"""What only the engine and its parts call, on behalf of the others."""
CALLED: Final = sorted({*WRITES, *READS, *INNER}, key=lambda owner: owner.__name__)

RULES_ELSEWHERE: Final[dict[int, tuple[str, ...]]] = {
    3: ("tests.simulation.test_recovery_rules:test_rule_3_a_copied_directory_is_no_excuse",),
    4: ("tests.simulation.test_recovery_rules:test_rule_4_zeros_end_the_log_only_with_nothing_but_zeros_behind_them",),
    5: ("tests.simulation.test_recovery_rules:test_rule_5_an_idle_shard_vouches_once_and_then_is_silent",),
    7: ("tests.simulation.test_recovery_rules:test_rule_7_a_reader_inside_a_hole_is_told_from_where_it_stands",),
    13: (
        "tests.simulation.test_segment_crashes:"
        "test_rule_13_what_a_hold_names_stays_as_it_is_and_a_copy_of_it_is_a_directory",
    ),
    25: ("tests.simulation.test_recovery_rules:test_rule_25_a_full_queue_holds_up_no_control_frame",),
    26: (
        "tests.simulation.test_queue_crashes:"
        "test_rule_26_of_two_calls_that_would_make_a_dead_letter_topic_ephemeral_one_is_refused",
    ),
    27: (
        "tests.simulation.test_recovery_rules:test_rule_27_on_a_failed_shard_every_mutation_is_503_and_reads_go_on",
        "tests.simulation.test_recovery_rules:test_rule_27_below_the_free_minimum_only_appends_are_refused",
    ),
}
"""Where a rule of `docs/spec/crash.md`, or a part of one, is shown that is not about a crash at some operation."""
PROMISES_ELSEWHERE: Final[dict[int, tuple[str, ...]]] = {
    8: ("tests.sched.test_governor:test_the_paused_do_not_keep_up_the_pressure_that_pauses_them",),
}
"""The same for section 8 of `docs/spec/semantics.md`."""


@contextmanager
def calls_written_down() -> Iterator[set[str]]:
    """What of `WRITES` is called meanwhile."""
    called: set[str] = set()

    def watched(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            called.add(name)
            return method(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for owner, names in WRITES.items():
            for name in names:
                patch.setattr(owner, name, watched(f"{owner.__name__}.{name}", getattr(owner, name)))
        yield called


def frame_types_in(fs: SimFs) -> set[int]:
    """The types of all frames in the log."""
    found: set[int] = set()
    for path, content in fs.tree().items():
        if content and path.endswith(".log"):
            found.update(frame.type for frame in scan_of(content).frames)
    return found


def frame_types_of(run: AnySweep) -> set[int]:
    """Those that a row has left in the log at some time."""
    found = frame_types_in(run.world.fs)
    for point in run.points[::12]:
        found |= frame_types_in(point.wreck.fs)
    return found


@pytest.mark.slow
def test_the_rows_write_every_type_of_frame_and_call_everything_that_writes() -> None:
    types: set[int] = set()
    with calls_written_down() as called:
        for operation in OPERATIONS:
            run = lived(operation)
            assert run.points, f"{operation.name} writes nothing"
            types |= frame_types_of(run)
    assert types == set(FrameType)
    assert called == {f"{owner.__name__}.{name}" for owner, names in WRITES.items() for name in names}


@pytest.mark.parametrize("owner", CALLED, ids=lambda owner: owner.__name__)
def test_everything_that_can_be_called_is_said_to_write_or_not_to(owner: type) -> None:
    public = {name for name, _ in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")}
    said = [*WRITES.get(owner, ()), *READS.get(owner, ()), *INNER.get(owner, ())]
    assert sorted(public) == sorted(said)


def test_every_part_of_the_engine_is_in_the_table_or_called_by_its_parts_alone() -> None:
    parts: set[type] = set()

    async def look(life: Life) -> None:
        parts.update(type(part) for name, part in vars(life.engine).items() if not name.startswith("_"))

    world = World()
    world.live(look, end="kill")
    inner = {
        Settings,
        type(world.clock),
        SimFs,
        InlineOffload,
        EngineStatus,
        Registry,
        Store,
        PayloadCache,
        Counter,
        Loader,
        Turns,
        HeldClock,
        IndexCache,
        FileHolds,
    }
    by_itself = {TopicDelivery, WatchSessions, Governor, Forwarders, LengthCheck}
    assert parts == ({*CALLED} - {Engine}) | inner | by_itself


def exists(test: str) -> bool:
    """Whether there is such a test."""
    module, name = test.split(":")
    return callable(getattr(import_module(module), name, None))


def test_every_rule_and_every_promise_is_named_by_a_row_or_shown_by_another_test() -> None:
    rules = {rule for row in OPERATIONS for rule in row.rules}
    promises = {promise for row in OPERATIONS for promise in row.promises}
    assert rules | RULES_ELSEWHERE.keys() == set(range(1, 30))
    assert promises | PROMISES_ELSEWHERE.keys() == set(range(1, 11))
    named = [test for tests in (*RULES_ELSEWHERE.values(), *PROMISES_ELSEWHERE.values()) for test in tests]
    assert [test for test in named if not exists(test)] == []


def test_every_row_has_a_name_of_its_own_and_every_kind_of_file_is_damaged_in_more_ways_than_one() -> None:
    assert len(set(NAMES)) == len(NAMES) == len(OPERATIONS) + len(DAMAGES)
    files: dict[str, set[str]] = {}
    for row in DAMAGES:
        name, _, way = row.name.rpartition("-")
        files.setdefault(name, set()).add(way)
    together = {"data-and-idx", "data-and-idx-active"}
    assert together < files.keys()
    assert len(files) == 24
    assert all(ways <= set(ALL_WAYS) for ways in files.values())
    assert all({"bit", "sector", "truncated"} <= ways for name, ways in files.items() if name not in together)


# ----------------------------------------------------------------- it finds what it is there to find


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "task"),
    [
        pytest.param("/data/wal/*.log", Task("append-fsync"), id="the log"),
        pytest.param("/data/topics/*.data", Task("drop-wal-files", 5, every_end=False), id="records in segments"),
    ],
)
def test_a_sync_that_does_nothing_is_found_and_the_command_shows_it_again(
    pattern: str, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimFile.fdatasync

    def fdatasync(file: SimFile) -> None:
        if not fnmatchcase(file._node.path, pattern):
            original(file)

    monkeypatch.setattr(SimFile, "fdatasync", fdatasync)
    figures = sweep.run(task)
    assert figures.failed, "nobody has noticed"
    failure = figures.failures[0]
    options = sweep.options_of(failure.command.split()[3:])
    assert options.row == [task.row]
    again = sweep.run(task, Case(options.point, options.end, options.end_seed))
    assert (again.crashes, again.failed) == (1, 1)
    assert again.failures[0].command == failure.command


@pytest.mark.slow
def test_a_daemon_that_logs_no_claims_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.queues.lease_commits.encode_control", releasing)
    figures = sweep.run(Task("claim"))
    assert figures.failed
    assert all("AssertionError" in failure.problem for failure in figures.failures)


def releasing(kind: FrameType, payload: dict[str, Any], **fields: Any) -> frames.UnsealedFrames:
    """The frame of a claim says that the jobs are free."""
    if payload.get("op") == "claimed":
        payload = {"op": "released", "seqs": payload["seqs"], "available_at": 0}
    return frames.encode_control(kind, payload, **fields)


# ----------------------------------------------------------------- the command


def test_the_command_prints_a_table_and_writes_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "figures.json"
    assert sweep.main(["--row", "create-topic", "--point", first_point("create-topic"), "--json", str(out)]) == 0
    shown = capsys.readouterr().out
    assert "create-topic" in shown
    assert "1 rows" in shown
    figures = msgspec.json.decode(out.read_bytes())
    assert figures["totals"]["crashes"] == figures["rows"][0]["crashes"] == 7
    assert figures["totals"]["failed"] == 0


def first_point(name: str) -> str:
    """The first point of a row, as an argument."""
    operation = next(row for row in OPERATIONS if row.name == name)
    return str(lived(operation).points[0].wreck.point)


@pytest.mark.slow
def test_the_command_runs_rows_in_processes_and_gives_up_when_the_time_is_over(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = ["--row", "append-fsync", "damage:current-bit", "--stride", "8"]
    assert sweep.main(rows) == 0
    assert "2 rows" in capsys.readouterr().out
    assert sweep.main([*rows, "--minutes", "0"]) == 2
    assert "there is nothing of append-fsync" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--row", "no-such-row"], id="no such row"),
        pytest.param(["--row", "append-*", "--point", "3"], id="a point of several rows"),
        pytest.param(["--end", "kill"], id="an end of no point"),
        pytest.param(["--stride", "0"], id="no stride"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str]) -> None:
    with pytest.raises(SystemExit):
        sweep.main(arguments)
