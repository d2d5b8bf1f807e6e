"""A million jobs that come later, each at a time of its own: the memory they take, and claims while they become due."""

from __future__ import annotations

import random
import time
from contextlib import closing

from benchmarks.bench import Bench, Control, append_request
from benchmarks.claims import ack_request, claim_request, expect_acked, expect_claimed, timed
from benchmarks.client import Connection, WrongAnswer
from benchmarks.diff import BATCH
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds, ran_seconds, resident_mib, waited_seconds
from benchmarks.routers import both_percentiles

TOPIC = "late"
CACHE = "16MiB"
SPREAD_S = 100
"""They become due over so many seconds: with a million 10,000 in each."""
AHEAD_S = 15
"""The first becomes due so long after the first append."""
MOST_MIB = 150.0
MOST_MS = 5.0


def late_jobs(bench: Bench) -> list[Figure]:
    """Memory after the appends and after a checkpoint; then somebody claims one after the other."""
    jobs = 50_000 if bench.quick else 1_000_000
    ahead_s = 3 if bench.quick else AHEAD_S
    target = None if bench.quick else MOST_MIB
    bench.say(f"{jobs:,} jobs that come later")
    with bench.daemon(cache_bytes=CACHE) as daemon, closing(Control(daemon.port)) as control:
        empty = resident_mib(daemon.pid)
        control.create(TOPIC, type="queue")
        first_ms = int((time.time() + ahead_s) * 1000)
        spent = cpu_seconds(daemon.pid)
        _fill(daemon.port, jobs, first_ms)
        spent = cpu_seconds(daemon.pid) - spent
        filled = resident_mib(daemon.pid)
        control.checkpoint()
        stored = resident_mib(daemon.pid)
        time.sleep(max(0.0, first_ms / 1000 - time.time()))  # until they become due
        claims, spent_ms, acks, share, waited = _claim(bench, daemon.pid, daemon.port)
        state = control.state(TOPIC)
        if state["count"] != jobs - len(acks) or not state["queue"]["delayed"]:
            raise WrongAnswer(f"{jobs} jobs, {len(acks)} acked: {state}")
        busy = resident_mib(daemon.pid)
    name = f"resident, {jobs:,} late jobs of one byte, cache {CACHE}"
    due = f"claim of one of {jobs:,} jobs while {jobs // SPREAD_S:,} a second become due"
    claimed = both_percentiles(due, "late-claim", [claims])
    return [
        figure("resident before there are late jobs", "MiB", [empty], key="late-empty"),
        figure(name, "MiB", [filled], key="late-appended", at_most=target),
        figure(f"{name}, after a checkpoint", "MiB", [stored], key="late-stored", at_most=target),
        figure(f"{name}, while they are claimed", "MiB", [busy], key="late-claimed", at_most=target),
        figure("append of one of them, processor time", "us", [1e6 * spent / jobs], key="late-append"),
        *claimed[:-1],
        figure(f"{due}, p99", "ms", [claimed[-1].median], key="late-claim-p99", at_most=MOST_MS),
        figure(f"{due}, longest", "ms", [max(claims)], key="late-claim-longest"),
        *both_percentiles(f"{due}, processor time of the daemon", "late-claim-cpu", [spent_ms]),
        *both_percentiles("its ack", "late-ack", [acks]),
        figure("share of a core that the daemon takes meanwhile", "%", [100 * share], key="late-share"),
        figure(
            "share of a core for which it waits meanwhile, since others use them",
            "%",
            [100 * waited],
            key="late-waited",
        ),
    ]


def _fill(port: int, jobs: int, first_ms: int) -> None:
    times = random.Random(jobs)
    with closing(Connection(port)) as connection:
        for _ in range(0, jobs, BATCH):
            dues = [first_ms + int(times.random() * SPREAD_S * 1000) for _ in range(BATCH)]
            records = [f'{{"data":1,"not_before":{due}}}' for due in dues]
            connection.call(append_request(TOPIC, records)).expect(200)


def _claim(bench: Bench, pid: int, port: int) -> tuple[list[float], list[float], list[float], float, float]:
    """Milliseconds of claims of one job, of the processor during them, and of acks; then the shares of a core that the
    daemon used and waited for."""
    claims: list[float] = []
    spent_ms: list[float] = []
    acks: list[float] = []
    claim = claim_request(TOPIC, "worker", 1)
    seconds = 2.0 if bench.quick else 6.0
    with closing(Connection(port)) as connection:
        used, waited, began = cpu_seconds(pid), waited_seconds(pid), time.perf_counter()
        while time.perf_counter() < began + seconds:
            ran = ran_seconds(pid)
            seqs = expect_claimed(timed(connection, claim, claims))
            spent_ms.append(1000 * (ran_seconds(pid) - ran))
            if seqs:
                expect_acked(timed(connection, ack_request(TOPIC, "worker", seqs), acks), 1)
        seconds = time.perf_counter() - began
    return claims, spent_ms, acks, (cpu_seconds(pid) - used) / seconds, (waited_seconds(pid) - waited) / seconds
