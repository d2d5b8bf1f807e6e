"""Spark's batch read of a topic, over REST and out of segment files, and an append beside it (`docs/spec/pipeline.md`
section 5).

The start of the session and its first job, which starts Python workers and compiles, are not part of any figure.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import IO

from benchmarks.bench import Bench, Control, CountAppended, append_request, full_record, plain_record
from benchmarks.client import run_load
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure, slug
from benchmarks.machine import resident_mib
from benchmarks.references import echo_reference, sync_reference

TOPIC, BESIDE = "bench", "beside"
WAIT_S = 120


@dataclass
class Session:
    """The process that Spark runs in."""

    jobs: IO[str]
    answers: IO[str]

    def read(self, records: int, **options: object) -> float:
        """Records a second of one batch read. Raises RuntimeError if it did not find as many."""
        self.begin(**options)
        return self.end(records)

    def begin(self, **options: object) -> None:
        self.jobs.write(json.dumps({name: str(value) for name, value in options.items()}) + "\n")
        self.jobs.flush()

    def end(self, records: int) -> float:
        answer = json.loads(self.answers.readline() or "null")
        if answer is None or answer["records"] != records:
            raise RuntimeError(f"Spark should have read {records} records: {answer}")
        return records / float(answer["seconds"])


@contextmanager
def session() -> Iterator[Session]:
    """A session that has started; its process is ended."""
    command = [sys.executable, "-m", "benchmarks.spark_session"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if process.stdout.readline() != "ready\n":
                raise RuntimeError("Spark has not started")
            yield Session(process.stdin, process.stdout)
            process.stdin.close()
            process.wait(WAIT_S)
        finally:
            process.kill()


def run(bench: Bench) -> list[Figure]:
    """Rates of both ways; p99 of an append alone, and while a job reads; the daemon's memory."""
    bench = replace(bench, many=True)
    records = 100_000 if bench.quick else 1_000_000
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control, session() as spark:
        control.create(BESIDE)
        bench.say(f"{records:,} records")
        for make in (plain_record, full_record):
            kind = "plain" if make is plain_record else "full"
            topic = f"{TOPIC}-{kind}"
            control.create(topic)
            requests = [
                append_request(topic, [make(first + place) for place in range(BATCH)])
                for first in range(0, records, BATCH)
            ]
            fill(daemon.port, requests)
            control.checkpoint()
            before = resident_mib(daemon.pid)
            ways: dict[str, dict[str, object]] = {
                "over REST": {"url": daemon.url, "topic": topic},
                "from segments": {"path": daemon.data_dir, "topic": topic},
            }
            for way, options in ways.items():
                bench.say(f"{kind} records {way}")
                rates = bench.repeat(partial(spark.read, records, **options), warm_up=1)
                aim = (200_000 if way == "over REST" else 300_000) if kind == "plain" and not bench.quick else None
                name, key = f"batch read, {kind} records, {way}", f"{kind}-{slug(way).rpartition('-')[2]}"
                figures.append(figure(name, "records/s", rates, key=key, at_least=aim, references=("echo-1000",)))
            peak = resident_mib(daemon.pid, peak=True)
            name = f"memory of the daemon after {records:,} {kind} records were appended"
            figures.append(figure(name, "MiB", [before], key=f"memory-{kind}"))
            figures.append(figure("... its peak by the end of the reads", "MiB", [peak], key="peak"))
        figures += _beside(bench, daemon.port, spark, records, url=daemon.url, topic=f"{TOPIC}-plain")
    return figures


def _beside(bench: Bench, port: int, spark: Session, records: int, **options: object) -> list[Figure]:
    """One record at a time by one client, alone and while one job after the other reads."""
    request = append_request(BESIDE, [plain_record(0)])

    def p99() -> float:
        load = run_load(port, 1, bench.warm_up_s, 2 * bench.measured_s, lambda _: request, CountAppended(1))
        return load.percentile_ms(0.99)

    alone = bench.repeat(p99)
    enough = threading.Event()

    def keep_reading() -> None:
        while not enough.is_set():
            spark.read(records, **options)

    reader = threading.Thread(target=keep_reading)
    reader.start()
    try:
        beside = bench.repeat(p99)
    finally:
        enough.set()
        reader.join()
    return [
        figure("append, one record, p99", "ms", alone, key="alone-p99"),
        figure(
            "append, one record, while Spark reads over REST, p99",
            "ms",
            beside,
            key="beside-p99",
            at_most=15,
            references=("alone-p99",),
        ),
    ]
