"""What is measured of queues and groups is made of: claims, acks and their checks, connections that work, and rates.

A job that is claimed twice, or that is neither there nor acked at the end, ends the benchmark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass

from benchmarks.bench import HOLD_MS, Bench, Control, append_request, plain_record
from benchmarks.client import Answer, Check, Connection, NextRequest, WrongAnswer, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds
from daemon_process import DaemonProcess

_SEQ = re.compile(rb'"\$seq":([0-9]+)')
_FIRST_SEQ = re.compile(rb'"first_seq":([0-9]+)')


def claim_request(topic: str, node: str, most: int, **fields: int) -> bytes:
    """A claim; `fields` are `lease_ms` and `wait_ms`. `topic` may be that of a group: `TOPIC/groups/GROUP`."""
    more = "".join(f',"{name}":{value}' for name, value in fields.items())
    return request_bytes("POST", f"/v0/topics/{topic}/claim", f'{{"node":"{node}","max":{most}{more}}}'.encode())


def ack_request(topic: str, node: str, seqs: Sequence[bytes]) -> bytes:
    """An ack of what was found in the answer to a claim."""
    body = b'{"node":"%b","seqs":[%b]}' % (node.encode(), b",".join(seqs))
    return request_bytes("POST", f"/v0/topics/{topic}/ack", body)


def expect_claimed(answer: Answer, count: int | None = None) -> list[bytes]:
    """The seqs that a claim was given, which must be so many."""
    seqs = _SEQ.findall(answer.expect(200).body)
    if count is not None and len(seqs) != count:
        raise WrongAnswer(f"{len(seqs)} jobs were claimed, not {count}")
    return seqs


def expect_acked(answer: Answer, count: int) -> None:
    """An ack must have acked everything."""
    if b'"acked":%d,' % count not in answer.expect(200).body:
        raise WrongAnswer(f"not {count} jobs acked, but {answer.body[:300]!r}")


def fill_with_jobs(port: int, topic: str, jobs: int, record: str | None = None, keys: int = 0) -> None:
    """So many jobs, or somewhat more: whole batches of 1000. Each is 100 bytes unless it is said what it is. With
    `keys` they have so many tags in turn, a multiple of 1000."""
    batches = -(-jobs // BATCH)
    requests = [append_request(topic, [record or plain_record(0)] * BATCH)]
    if keys:
        tagged = [f'{{"tag":"customer-{number}",{plain_record(0)[1:]}' for number in range(keys)]
        requests = [append_request(topic, tagged[at : at + BATCH]) for at in range(0, keys, BATCH)]
    fill(port, [requests[number % len(requests)] for number in range(batches)])


def hold_checkpoints(daemon: DaemonProcess) -> None:
    """None is taken from here on, not even when a WAL file is full."""
    with closing(Control(daemon.port)) as control:
        control.checkpoint(HOLD_MS)


class Workers:
    """Connections that claim a batch and ack it in turn, each a node of its own."""

    def __init__(self, connections: int, batch: int) -> None:
        self._batch = batch
        self._nodes = [f"worker-{number}" for number in range(connections)]
        self._claims = [claim_request(TOPIC, node, batch) for node in self._nodes]
        self._held: list[list[bytes]] = [[] for _ in range(connections)]
        self._claimed: list[bytes] = []
        self.jobs = 0
        """Acked, the warm-up included."""

    def request(self, number: int) -> bytes:
        held = self._held[number]
        return ack_request(TOPIC, self._nodes[number], held) if held else self._claims[number]

    def check(self, number: int, answer: Answer) -> int:
        if self._held[number]:
            expect_acked(answer, self._batch)
            self._held[number] = []
            self.jobs += self._batch
            return self._batch
        self._held[number] = expect_claimed(answer, self._batch)
        self._claimed += self._held[number]
        return 0

    def expect(self, control: Control, jobs: int) -> None:
        """Of so many jobs none was claimed twice, those that were acked are gone, and the others are there."""
        if len(set(self._claimed)) != len(self._claimed):
            raise WrongAnswer("a job was claimed twice")
        state = control.state(TOPIC)
        expected = jobs - self.jobs, len(self._claimed) - self.jobs
        if (state["count"], state["queue"]["in_flight"]) != expected:
            raise WrongAnswer(f"{state['count']} jobs, {state['queue']}; expected were {expected[0]}, {expected[1]}")


class Readers:
    """The reference: connections that append a batch and read it in turn."""

    def __init__(self, connections: int, batch: int) -> None:
        self._batch = batch
        self._append = append_request(TOPIC, [plain_record(0)] * batch)
        self._from: list[int | None] = [None] * connections
        self.jobs = 0
        """Read, the warm-up included."""

    def request(self, number: int) -> bytes:
        after = self._from[number]
        if after is None:
            return self._append
        body = b'{"from_seq":%d,"limit":%d}' % (after, self._batch)
        return request_bytes("POST", f"/v0/topics/{TOPIC}/diff", body)

    def check(self, number: int, answer: Answer) -> int:
        body = answer.expect(200).body
        if self._from[number] is None:
            first = _FIRST_SEQ.search(body)
            if first is None:
                raise WrongAnswer(f"no first_seq in {body[:300]!r}")
            self._from[number] = int(first[1]) - 1
            return 0
        expect_claimed(answer, self._batch)
        self._from[number] = None
        self.jobs += self._batch
        return self._batch


# --- rates ----------------------------------------------------------------------------------------------------------

WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Rate:
    """What some connections did in a second, and what that took of the server."""

    jobs_per_s: float
    server_us: float
    """Processor time for a job."""
    client: float
    """Share of a processor that the client took."""


def batches_of(batch: int, connections: int) -> str:
    return f"batches of {batch}, {connections} {'connection' if connections == 1 else 'connections'}"


def rate_figures(
    name: str,
    key: str,
    rates: Sequence[Rate],
    target: float | None = None,
    references: tuple[str, ...] | None = None,
) -> list[Figure]:
    jobs = [rate.jobs_per_s for rate in rates]
    return [
        figure(name, "jobs/s", jobs, key=key, at_least=target, references=references),
        figure("... processor of the server for a job", "us", [rate.server_us for rate in rates], key="cpu"),
    ]


def measured_rate(
    bench: Bench,
    daemon: DaemonProcess,
    connections: int,
    request: NextRequest,
    check: Check,
    jobs: Callable[[], int],
) -> Rate:
    server_s, client_s, began = cpu_seconds(daemon.pid), time.process_time(), time.perf_counter()
    load = run_load(daemon.port, connections, WARM_UP_S, measured_s(bench), request, check)
    seconds, client_s = time.perf_counter() - began, time.process_time() - client_s
    server_s = cpu_seconds(daemon.pid) - server_s
    return Rate(load.records_per_s, 1e6 * server_s / jobs(), client_s / seconds)


def measured_s(bench: Bench) -> float:
    return 0.4 if bench.quick else 1.0


def timed(connection: Connection, request: bytes, latencies: list[float]) -> Answer:
    began = time.perf_counter()
    answer = connection.call(request)
    latencies.append((time.perf_counter() - began) * 1000)
    return answer
