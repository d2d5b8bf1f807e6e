"""Checkpoints: what they do to appends, how long they take, what one costs with little to do, and what they save."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

from benchmarks.append import append_load
from benchmarks.bench import (
    HOLD_MS,
    NEVER_MS,
    Bench,
    Control,
    CountAppended,
    append_request,
    full_record,
    plain_record,
    quiet,
)
from benchmarks.client import run_load, run_while
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.memory import create_topics, idle_topic
from benchmarks.recovery import start_references
from benchmarks.references import echo_reference, sync_reference
from daemon_process import DaemonProcess

SEVERAL = 3
BESIDE = "beside"


def run(bench: Bench) -> list[Figure]:
    """All figures, references first."""
    bench = replace(bench, many=True)
    return [
        *sync_reference(bench),
        *echo_reference(bench),
        *_appends(bench),
        *_durations(bench),
        *_one_of_many(bench),
        *_restarts(bench),
    ]


# --- appends beside checkpoints by the clock -------------------------------------------------------------------------


def _appends(bench: Bench) -> list[Figure]:
    """The same appends without checkpoints (held off, all else being equal), at every second, and by default."""
    one, batch = append_request(TOPIC, [plain_record(0)]), append_request(TOPIC, [plain_record(0)] * BATCH)
    figures: list[Figure] = []
    for name, settings, hold_ms in (
        ("no checkpoints", {}, HOLD_MS),
        ("a checkpoint every second", {"checkpoint_ms": 1000}, 0),
        ("checkpoints by default", {}, 0),
    ):
        with bench.daemon(**settings) as daemon:
            control = Control(daemon.port)
            if hold_ms:
                control.checkpoint(hold_ms)
            bench.say(f"appends, {name}")
            loads = [append_load(bench, daemon.port, control, "disk", 1, 1, one) for _ in range(bench.repetitions)]
            p50, p99 = ([load.percentile_ms(share) for load in loads] for share in (0.5, 0.99))
            loads = [
                append_load(bench, daemon.port, control, "disk", BATCH, 4, batch) for _ in range(bench.repetitions)
            ]
            control.close()
        figures.append(figure(f"append, one record, one connection, disk, {name}, p50", "ms", p50, at_most=0.8))
        figures.append(figure("... p99", "ms", p99, at_most=2.5))
        rates = [load.records_per_s for load in loads]
        figures.append(figure("... batches of 1000, 4 connections, plain", "records/s", rates, at_least=400_000))
    return figures


# --- how long they take ----------------------------------------------------------------------------------------------


def _durations(bench: Bench) -> list[Figure]:
    """Of new records in one topic; and what a large one does to an append to another topic of the same daemon."""
    records = 20_000 if bench.quick else 100_000
    many = 100_000 if bench.quick else 1_000_000
    figures: list[Figure] = []
    with bench.daemon(checkpoint_ms=NEVER_MS, wal_file_bytes="1GiB") as daemon:
        control = Control(daemon.port)
        for kind, record in (("plain", plain_record), ("full", full_record)):
            bench.say(f"checkpoint of {records:,} {kind} records")
            batches = _batches(record, records)
            seconds = []
            for _ in range(SEVERAL):
                control.create(TOPIC)
                fill(daemon.port, batches)
                seconds.append(control.checkpoint())
                control.expect_count(TOPIC, records)
                control.delete(TOPIC)
            figures.append(figure(f"checkpoint of {records:,} new {kind} records", "s", seconds))
            figures.append(figure("... records", "1/s", [records / taken for taken in seconds]))
        bench.say(f"appends beside a checkpoint of {many:,} records")
        control.create(TOPIC)
        control.create(BESIDE, durability="disk")
        one = append_request(BESIDE, [plain_record(0)])
        alone = run_load(daemon.port, 1, bench.warm_up_s, bench.measured_s, lambda _: one, CountAppended(1))
        fill(daemon.port, _batches(plain_record, many))
        taken: list[float] = []
        checkpoint = threading.Thread(target=lambda: taken.append(control.checkpoint()))
        checkpoint.start()
        beside = run_while(daemon.port, checkpoint.is_alive, one, CountAppended(1))
        checkpoint.join()
        if not taken:
            raise RuntimeError("the checkpoint has failed")
        control.expect_count(TOPIC, many)
        control.close()
    figures.append(figure(f"checkpoint of {many:,} new plain records, beside single appends", "s", taken))
    for name, load in (("none going on", alone), ("during it", beside)):
        figures.append(
            figure(f"append, one record, one connection, disk, {name}, p50", "ms", [load.percentile_ms(0.5)])
        )
        figures.append(figure("... p99", "ms", [load.percentile_ms(0.99)], at_most=2.5))
        figures.append(figure("... longest", "ms", [load.percentile_ms(1)]))
    return figures


def _batches(record: Callable[[int], str], records: int) -> list[bytes]:
    return [
        append_request(TOPIC, [record(number) for number in range(first, first + BATCH)])
        for first in range(0, records, BATCH)
    ]


# --- what follows what is new, and what follows what there is --------------------------------------------------------


def _one_of_many(bench: Bench) -> list[Figure]:
    """A checkpoint in which one topic has changed, among few and among many."""
    few, many = (100, 1000) if bench.quick else (100, 10_000)
    figures: list[Figure] = []
    medians = []
    for count in (few, many):
        bench.say(f"checkpoints with {count:,} topics")
        with bench.daemon(checkpoint_ms=NEVER_MS) as daemon:
            create_topics(daemon.port, count)
            control = Control(daemon.port)
            first = control.checkpoint()
            control.checkpoint()
            none = [1000 * control.checkpoint() for _ in range(2 * SEVERAL)]
            one = []
            for number in range(2 * SEVERAL):
                fill(daemon.port, [append_request(idle_topic(number * count // 7), [plain_record(0)] * BATCH)])
                one.append(1000 * control.checkpoint())
            control.close()
        figures.append(figure(f"checkpoint, all of {count:,} topics are new", "ms", [1000 * first]))
        figures.append(figure("... none has changed, answer with its list of files included", "ms", none))
        figures.append(figure("... 1000 records in one", "ms", one))
        medians.append(figures[-1].median)
    name = f"checkpoint of one topic of {many:,}, times that of one of {few}"
    figures.append(figure(name, "x", [medians[1] / medians[0]]))
    return figures


# --- what they save --------------------------------------------------------------------------------------------------


def _restarts(bench: Bench) -> list[Figure]:
    """With checkpoints by default, and one at the end."""
    records = 100_000 if bench.quick else 1_000_000
    figures = start_references(bench)
    bench.say(f"restarts after a checkpoint of {records:,} records")
    ready = []
    with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({})) as daemon:
        daemon.start()
        control = Control(daemon.port)
        control.create(TOPIC)
        fill(daemon.port, [append_request(TOPIC, [plain_record(0)] * BATCH)] * (records // BATCH))
        control.checkpoint()
        control.close()
        daemon.kill()
        for _ in range(bench.repetitions):
            ready.append(daemon.start())
            control = Control(daemon.port)
            control.expect_count(TOPIC, records, crashed=True)
            control.close()
            daemon.kill()
    figures.append(figure(f"ready after a checkpoint of {records:,} records and SIGKILL", "s", ready, at_most=0.5))
    imports, empty = figures[-3].median, figures[-2].median
    figures.append(figure("... more than interpreter and imports", "s", [figures[-1].median - imports]))
    figures.append(figure("... more than the empty start", "s", [figures[-2].median - empty]))
    return figures
