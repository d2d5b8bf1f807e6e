"""A million jobs that wait or are leased: what they cost claims of others, checkpoints, starts and memory."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench, Control, append_request, plain_record
from benchmarks.claims import (
    ack_request,
    claim_request,
    expect_acked,
    expect_claimed,
    fill_with_jobs,
    hold_checkpoints,
    timed,
)
from benchmarks.client import Connection, WrongAnswer, request_bytes
from benchmarks.diff import BATCH
from benchmarks.figures import REFERENCE, Figure, figure
from benchmarks.live import percentile
from benchmarks.machine import cpu_seconds, resident_mib
from benchmarks.recovery import SETTINGS as UNCHECKPOINTED
from benchmarks.routers import both_percentiles
from daemon_process import DaemonProcess

DAY_MS = 86_400_000
"""The longest lease there is."""

TINY = '{"data":1}'
FEW, SOME = 10, 10_000
BATCHES_BESIDE = (1, 32)


@dataclass(slots=True)
class Crowd:
    """A queue with so many jobs to which nothing happens while others come and go, one batch at a time.

    With `leased` they are somebody's for a day; else they are waiting.
    """

    daemon: DaemonProcess
    jobs: int
    leased: bool

    @property
    def key(self) -> str:
        """Without a number where it depends on how quick the run is."""
        size = {FEW: "few-", SOME: "some-"}.get(self.jobs, "")
        return f"{size}{'leased' if self.leased else 'waiting'}"

    @property
    def topic(self) -> str:
        return f"{'leased' if self.leased else 'waiting'}.{self.jobs}"

    @property
    def name(self) -> str:
        return f"{self.jobs:,} {'leased' if self.leased else 'waiting'} jobs"

    def fill(self) -> float:
        """Seconds that it took to lease the jobs."""
        port = self.daemon.port
        with closing(Control(port)) as control:
            control.create(self.topic, type="queue")
        if self.jobs < BATCH:
            with closing(Connection(port)) as connection:
                connection.call(append_request(self.topic, [TINY] * self.jobs)).expect(200)
        else:
            fill_with_jobs(port, self.topic, self.jobs, TINY)
        began = time.perf_counter()
        if self.leased:
            claim = claim_request(self.topic, "somebody", BATCH, lease_ms=DAY_MS)
            with closing(Connection(port)) as connection:
                for first in range(0, self.jobs, BATCH):
                    expect_claimed(connection.call(claim), min(BATCH, self.jobs - first))
        seconds = time.perf_counter() - began
        self.expect()
        return seconds

    def measure(self, batch: int, count: int, claims: list[float], acks: list[float]) -> None:
        """Append a batch, claim one and ack it, again and again: so many jobs are there when one begins."""
        append, claim = append_request(self.topic, [TINY] * batch), claim_request(self.topic, "worker", batch)
        with closing(Connection(self.daemon.port)) as connection:
            for _ in range(count):
                connection.call(append).expect(200)
                seqs = expect_claimed(timed(connection, claim, claims), batch)
                expect_acked(timed(connection, ack_request(self.topic, "worker", seqs), acks), batch)

    def expect(self) -> None:
        """They must be there, after a crash as well."""
        with closing(Control(self.daemon.port)) as control:
            state = control.state(self.topic)
        found = state["count"], state["queue"]["in_flight"]
        if found != (self.jobs, self.jobs if self.leased else 0):
            raise WrongAnswer(f"{self.topic}: {found[0]} jobs, {found[1]} in flight")


def many_jobs(bench: Bench) -> list[Figure]:
    """Daemons with few and with many jobs, side by side: what a claim costs them; then checkpoints and starts."""
    many = 50_000 if bench.quick else 1_000_000
    with ExitStack() as stack:
        small, waiting, leased = (stack.enter_context(bench.daemon(**UNCHECKPOINTED)) for _ in range(3))
        crowds = [Crowd(small, jobs, leased=held) for held in (False, True) for jobs in (FEW, SOME)]
        large = [Crowd(waiting, many, leased=False), Crowd(leased, many, leased=True)]
        figures: list[Figure] = []
        for crowd in (*crowds, *large):
            bench.say(f"{crowd.name} are made")
            hold_checkpoints(crowd.daemon)
            resident = resident_mib(crowd.daemon.pid)
            seconds = crowd.fill()
            if crowd.jobs == many:
                more = resident_mib(crowd.daemon.pid) - resident
                name = f"resident, more with {crowd.name} of one byte"
                figures.append(figure(name, "MiB", [more], key=f"{crowd.key}-resident"))
            if crowd.jobs == many and crowd.leased:
                name = f"{many:,} jobs leased by claims of 1000, one connection"
                figures.append(figure(name, "jobs/s", [many / seconds], key="leasing"))
        figures += _cost(bench, [crowds[0], crowds[1], large[0], crowds[2], crowds[3], large[1]])
        figures += _starts(bench, large, "wal", "in the WAL")
        figures += _pauses(bench, large)
        figures += _starts(bench, large, "stored", "after a checkpoint")
    return figures


def _cost(bench: Bench, crowds: Sequence[Crowd]) -> list[Figure]:
    """One after the other again and again, so that what the machine does beside does not look like a cost."""
    bench.say("claims beside many jobs")
    runs = bench.repeat(_cost_once, bench, crowds)
    figures = []
    for batch in BATCHES_BESIDE:
        for leased in (False, True):
            compared = [crowd for crowd in crowds if crowd.leased == leased]
            both: list[list[float]] = []
            for crowd in compared:
                claims, acks = ([run[crowd.key, batch][which] for run in runs] for which in (0, 1))
                name, key = f"claim of {batch} beside {crowd.name}", f"beside-{crowd.key}-{batch}"
                figures += both_percentiles(name, f"{key}-claim", claims)
                figures += both_percentiles(f"{name}, its ack", f"{key}-ack", acks)
                both.append(
                    [percentile(one, 0.5) + percentile(two, 0.5) for one, two in zip(claims, acks, strict=True)]
                )
            times = [much / little for little, much in zip(both[0], both[-1], strict=True)]
            name = f"claim and ack of {batch} beside {compared[-1].name}, times that beside {FEW}, p50"
            figures.append(figure(name, "x", times, key=f"{compared[-1].key}-{batch}-times"))
    return figures


Samples = dict[tuple[str, int], tuple[list[float], list[float]]]
"""Milliseconds of claims and of acks, by a crowd's key and the batch."""


def _cost_once(bench: Bench, crowds: Sequence[Crowd]) -> Samples:
    samples: Samples = {(crowd.key, batch): ([], []) for crowd in crowds for batch in BATCHES_BESIDE}
    for _ in range(3 if bench.quick else 8):
        for batch in BATCHES_BESIDE:
            for crowd in crowds:
                crowd.measure(batch, 10, *samples[crowd.key, batch])
    return samples


PROBE_S = 0.005
BESIDE = "beside"


def _pauses(bench: Bench, crowds: Sequence[Crowd]) -> list[Figure]:
    """What somebody notices of checkpoints who has nothing to do with the jobs: every 5 ms one request."""
    figures = []
    for crowd in crowds:
        bench.say(f"checkpoints with {crowd.name}")
        port, pause = crowd.daemon.port, threading.Timer(bench.measured_s, lambda: None)
        with closing(Control(port)) as control:
            control.create(BESIDE)
            pause.start()
            figures += _probe(f"beside {crowd.name}, no checkpoint", f"{crowd.key}-quiet", port, pause.is_alive)
            name = f"the first checkpoint with {crowd.name}"
            figures += _checkpoint(control, port, name, f"{crowd.key}-first")
            crowd.measure(32, 1, [], [])
            name = f"the next one with {crowd.name}, 32 jobs claimed and acked since"
            figures += _checkpoint(control, port, name, f"{crowd.key}-next")
    return figures


def _checkpoint(control: Control, port: int, name: str, key: str) -> list[Figure]:
    seconds: list[float] = []
    checkpoint = threading.Thread(target=lambda: seconds.append(control.checkpoint()))
    checkpoint.start()
    figures = _probe(f"{name}, meanwhile", key, port, checkpoint.is_alive)
    checkpoint.join()
    if not seconds:
        raise RuntimeError("the checkpoint has failed")
    return [figure(name, "s", seconds, key=key), *figures]


def _probe(name: str, key: str, port: int, going_on: Callable[[], bool]) -> list[Figure]:
    """Health and appends of one record in turn, each over a connection of its own, as long as something goes on."""
    requests = request_bytes("GET", "/v0/health"), append_request(BESIDE, [plain_record(0)])
    latencies = array("d"), array("d")
    connections = Connection(port), Connection(port)
    number, due = 0, time.perf_counter()
    while going_on() or number < 2:
        due = max(due + PROBE_S, time.perf_counter())
        time.sleep(max(0.0, due - time.perf_counter()))
        which = number % 2
        began = time.perf_counter()
        connections[which].call(requests[which]).expect(200)
        latencies[which].append((time.perf_counter() - began) * 1000)
        number += 1
    for connection in connections:
        connection.close()
    figures = []
    for short, what, some in zip(
        ("health", "append"), ("GET /v0/health", "append of one record"), latencies, strict=True
    ):
        figures += both_percentiles(f"{name}, {what}", f"{key}-{short}", [some])
        figures.append(figure(f"{name}, {what}, longest", "ms", [max(some)], key=f"{key}-{short}-longest"))
    return figures


def _starts(bench: Bench, crowds: Sequence[Crowd], key: str, where: str) -> list[Figure]:
    """After SIGKILL. What was sent before is in the log by then; no checkpoint may come between."""
    figures = []
    for crowd in crowds:
        daemon = crowd.daemon
        bench.say(f"start with {crowd.name} {where}")
        snapshots = _snapshots(daemon.data_dir)
        starts = bench.repeat(_kill_and_start, crowd, times=bench.few)
        if _snapshots(daemon.data_dir) != snapshots:
            raise RuntimeError("there is a new snapshot: what was measured is something else")
        prefix = "" if crowd.leased else REFERENCE
        references = (f"start-waiting-{key}",) if crowd.leased else None
        name, start = f"{prefix}ready after SIGKILL, {crowd.name} {where}", f"start-{crowd.key}-{key}"
        figures += [
            figure(name, "s", [seconds for seconds, _ in starts], key=start, references=references),
            figure("... processor of the server until then", "s", [spent for _, spent in starts], key="cpu"),
        ]
    return figures


def _kill_and_start(crowd: Crowd) -> tuple[float, float]:
    """One repetition: seconds until it was ready, and of processor time until then."""
    time.sleep(0.3)
    crowd.daemon.kill()
    seconds = crowd.daemon.start()
    spent = cpu_seconds(crowd.daemon.pid)
    crowd.expect()
    return seconds, spent


def _snapshots(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "meta").glob("snapshot.*.cbor"))
