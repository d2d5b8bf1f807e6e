"""Checkpoints: what they do to appends, how long they take, what one costs with little to do, and what they save."""

from __future__ import annotations

import itertools
import statistics
import threading
from collections.abc import Callable
from dataclasses import replace

from benchmarks.append import append_latencies, append_load, append_singles, single_figures
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
from benchmarks.client import run_while
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.memory import create_topics, idle_topic
from benchmarks.recovery import start_references
from benchmarks.references import echo_reference, sync_reference
from daemon_process import DaemonProcess

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
    for key, name, settings, hold_ms, p99 in (
        ("none", "no checkpoints", {}, HOLD_MS, 1),
        ("second", "a checkpoint every second", {"checkpoint_ms": 1000}, 0, 5),
        ("default", "checkpoints by default", {}, 0, 5),
    ):
        with bench.daemon(**settings) as daemon:
            control = Control(daemon.port)
            if hold_ms:
                control.checkpoint(hold_ms)
            bench.say(f"appends, {name}")
            singles = bench.repeat(append_load, bench, daemon.port, control, "disk", 1, 1, one)
            loads = bench.repeat(append_load, bench, daemon.port, control, "disk", BATCH, 4, batch)
            control.close()
        figures += single_figures(f"append, one record, one connection, disk, {name}", f"one-{key}", singles, 0.25, p99)
        rates = [load.records_per_s for load in loads]
        title = f"append, batches of 1000, 4 connections, disk, plain, {name}"
        references = ("batches-none",) if key != "none" else ("echo-1000",)
        figures.append(figure(title, "records/s", rates, key=f"batches-{key}", at_least=350_000, references=references))
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
            seconds = bench.repeat(_fill_and_store, daemon.port, control, batches)
            figures.append(figure(f"checkpoint of {records:,} new {kind} records", "s", seconds, key=f"new-{kind}"))
            figures.append(figure("... records", "1/s", [records / taken for taken in seconds], key="rate"))
        bench.say(f"appends beside a checkpoint of {many:,} records")
        control.create(TOPIC)
        control.create(BESIDE, durability="disk")
        one = append_request(BESIDE, [plain_record(0)])
        alone = bench.repeat(append_singles, bench, daemon.port, one)
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
    name = f"checkpoint of {many:,} new plain records, beside single appends"
    figures.append(figure(name, "s", taken, key="large"))
    for when, name, loads, p99 in (("alone", "none going on", alone, 1), ("during", "during it", [beside], 5)):
        figures += append_latencies(f"append, one record, one connection, disk, {name}", when, loads, p99)
    return figures


def _fill_and_store(port: int, control: Control, batches: list[bytes]) -> float:
    """One repetition on a topic of its own; seconds of the checkpoint."""
    control.create(TOPIC)
    fill(port, batches)
    seconds = control.checkpoint()
    control.expect_count(TOPIC, BATCH * len(batches))
    control.delete(TOPIC)
    return seconds


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
    samples = []
    for key, count in (("few", few), ("many", many)):
        bench.say(f"checkpoints with {count:,} topics")
        with bench.daemon(checkpoint_ms=NEVER_MS) as daemon:
            create_topics(daemon.port, count)
            control = Control(daemon.port)
            first = control.checkpoint()
            control.checkpoint()
            none = bench.repeat(control.checkpoint)
            topics = (idle_topic(number * count // 7) for number in itertools.count())
            one = bench.repeat(lambda: _change_one(daemon.port, control, next(topics)))  # noqa: B023 - called at once
            control.close()
        name = f"checkpoint with {count:,} topics"
        figures.append(figure(f"{name}, all of them new", "s", [first], key=f"{key}-new"))
        figures.append(
            figure(f"{name}, none has changed, list of files in the answer included", "s", none, key=f"{key}-unchanged")
        )
        figures.append(figure(f"{name}, 1000 records in one", "s", one, key=f"{key}-one"))
        samples.append(one)
    name = f"checkpoint of one topic of {many:,}, times that of one of {few}"
    times = [taken / statistics.median(samples[0]) for taken in samples[1]]
    figures.append(figure(name, "x", times, key="topics-times"))
    return figures


def _change_one(port: int, control: Control, topic: str) -> float:
    fill(port, [append_request(topic, [plain_record(0)] * BATCH)])
    return control.checkpoint()


# --- what they save --------------------------------------------------------------------------------------------------


def _restarts(bench: Bench) -> list[Figure]:
    """With checkpoints by default, and one at the end."""
    records = 100_000 if bench.quick else 1_000_000
    figures = start_references(bench)
    bench.say(f"restarts after a checkpoint of {records:,} records")
    with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet({})) as daemon:
        daemon.start()
        control = Control(daemon.port)
        control.create(TOPIC)
        fill(daemon.port, [append_request(TOPIC, [plain_record(0)] * BATCH)] * (records // BATCH))
        control.checkpoint()
        control.close()
        daemon.kill()
        ready = bench.repeat(_start_and_kill, daemon, records)
    imports, empty = figures[-2].median, figures[-1].median
    name = f"ready after a checkpoint of {records:,} records and SIGKILL"
    return [
        *figures,
        figure(name, "s", ready, key="ready", at_most=0.5, references=("empty",)),
        figure("... more than interpreter and imports", "s", [one - imports for one in ready], key="more-imports"),
        figure("... more than the empty start", "s", [one - empty for one in ready], key="more-empty"),
    ]


def _start_and_kill(daemon: DaemonProcess, records: int) -> float:
    seconds = daemon.start()
    control = Control(daemon.port)
    control.expect_count(TOPIC, records, crashed=True)
    control.close()
    daemon.kill()
    return seconds
