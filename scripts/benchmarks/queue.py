"""Queues: jobs claimed and acked in a second, how long a claim takes, who gets how many, and what many jobs cost.

Every figure stands beside one of the same run without a queue: the append and the diff of the same batch, the delivery
of the same record to a long poll and a stream of a log, the start and the checkpoint with the same records and no
leases. A job that is claimed twice, or that is neither there nor acked at the end, ends the benchmark.
"""

from __future__ import annotations

import itertools
import re
import selectors
import statistics
import threading
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.bench import HOLD_MS, NEVER_MS, Bench, Control, append_request, plain_record
from benchmarks.client import TIMEOUT_S, Answer, Check, Connection, NextRequest, WrongAnswer, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import REFERENCE, Figure, figure
from benchmarks.live import EventWatcher, open_stream, percentile
from benchmarks.machine import cpu_seconds, resident_mib
from benchmarks.recovery import SETTINGS as UNCHECKPOINTED
from benchmarks.redis_streams import CLAIMS, claim_figures, redis_figures
from benchmarks.references import echo_reference, sync_reference
from benchmarks.routers import both_percentiles, numbered_record
from daemon_process import DaemonProcess

DAY_MS = 86_400_000
"""The longest lease there is."""

_SEQ = re.compile(rb'"\$seq":([0-9]+)')
_FIRST_SEQ = re.compile(rb'"first_seq":([0-9]+)')


def run(bench: Bench) -> list[Figure]:
    """The references of disk and server first; then jobs in a second, latency, fairness, and many jobs."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench), *redis_figures(bench, CLAIMS, claim_figures)]
    with bench.daemon(checkpoint_ms=NEVER_MS) as daemon:
        hold_checkpoints(daemon)  # jobs that nobody has claimed yet would be put into segments
        figures += _throughput(bench, daemon)
        figures += _latency(bench, daemon)
        figures += _deliveries(bench, daemon)
        figures += _fairness(bench, daemon)
    figures += _many_jobs(bench)
    return figures


# --- what all of it is made of ---------------------------------------------------------------------------------------


def claim_request(topic: str, node: str, most: int, **fields: int) -> bytes:
    """A claim; `fields` are `lease_ms` and `wait_ms`."""
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


# --- jobs in a second ------------------------------------------------------------------------------------------------

BATCHES = {1: 10_000, 8: 40_000, 32: 100_000, 100: 200_000}
"""And how many jobs a second there are for it: more than can be claimed."""
CONNECTIONS = (1, 4, 8, 16)
TARGETS = {8: 15_000, 32: 30_000}
SYNCED: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("fsync", "fsync", {"durability": "fsync"}),
    ("durable", "disk, leases_durable", {"durability": "disk", "leases_durable": True}),
)
ORDERED = (8, 32)
KEYS = 10_000
WARM_UP_S = 0.3


@dataclass(frozen=True, slots=True)
class Rate:
    """What some connections did in a second, and what that took of the server."""

    jobs_per_s: float
    server_us: float
    """Processor time for a job."""
    client: float
    """Share of a processor that the client took."""


def _throughput(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """By batch and connections on `disk`, each batch beside its reference; then a few with syncs."""
    figures = []
    shares: list[float] = []
    for batch in BATCHES:
        name = f"append and diff, batches of {batch}, 4 connections, disk"
        bench.say(name)
        rates = bench.repeat(_read_rate, bench, daemon, 4, batch, times=bench.few)
        figures += _rates(f"reference: {name}", f"diff-{batch}", rates)
        for connections in CONNECTIONS:
            name = f"claim and ack, {_of(batch, connections)}, disk"
            bench.say(name)
            target = TARGETS.get(batch) if connections > 1 else None
            times = bench.repetitions if target and not bench.quick else bench.few
            rates = bench.repeat(_claim_rate, bench, daemon, connections, batch, {}, times=times)
            references = (f"diff-{batch}", f"redis-{batch}")
            figures += _rates(name, f"claim-{batch}-{connections}", rates, target, references)
            shares += [rate.client for rate in rates]
    name = "share of a core that the client took, of all those claims"
    figures.append(figure(name, "%", [100 * one for one in shares], key="client"))
    for key, name, config in SYNCED:
        for batch, connections in ((1, 1), (8, 4), (32, 4), (32, 16)):
            case = f"claim and ack, {_of(batch, connections)}, {name}"
            bench.say(case)
            rates = bench.repeat(_claim_rate, bench, daemon, connections, batch, config, times=bench.few)
            figures += _rates(case, f"{key}-{batch}-{connections}", rates, None, (f"claim-{batch}-{connections}",))
    for batch in ORDERED:
        for key, order in (("tagged", None), ("ordered", "tag")):
            case = f"claim and ack, {_of(batch, 4)}, {KEYS} tags, {f'order_by {order}' if order else 'no order'}"
            bench.say(case)
            config = {"order_by": order}
            rates = bench.repeat(_claim_rate, bench, daemon, 4, batch, config, KEYS, times=bench.repetitions)
            figures += _rates(case, f"{key}-{batch}", rates, None, (f"tagged-{batch}",) if order else None)
    return figures


def _of(batch: int, connections: int) -> str:
    return f"batches of {batch}, {connections} {'connection' if connections == 1 else 'connections'}"


def _rates(
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


def _claim_rate(
    bench: Bench, daemon: DaemonProcess, connections: int, batch: int, config: Mapping[str, object], keys: int = 0
) -> Rate:
    """One repetition on a queue of its own, which is full enough, is checked, and deleted afterwards."""
    seconds = WARM_UP_S + _measured_s(bench)
    workers = Workers(connections, batch)
    with closing(Control(daemon.port)) as control:
        control.create(TOPIC, type="queue", **config)
        fill_with_jobs(daemon.port, TOPIC, int(BATCHES[batch] * seconds), keys=keys)
        jobs = control.state(TOPIC)["count"]
        rate = _rate(bench, daemon, connections, workers.request, workers.check, lambda: workers.jobs)
        workers.expect(control, jobs)
        control.delete(TOPIC)
    return rate


def _read_rate(bench: Bench, daemon: DaemonProcess, connections: int, batch: int) -> Rate:
    readers = Readers(connections, batch)
    with closing(Control(daemon.port)) as control:
        control.create(TOPIC)
        rate = _rate(bench, daemon, connections, readers.request, readers.check, lambda: readers.jobs)
        control.delete(TOPIC)
    return rate


def _rate(
    bench: Bench,
    daemon: DaemonProcess,
    connections: int,
    request: NextRequest,
    check: Check,
    jobs: Callable[[], int],
) -> Rate:
    server_s, client_s, began = cpu_seconds(daemon.pid), time.process_time(), time.perf_counter()
    load = run_load(daemon.port, connections, WARM_UP_S, _measured_s(bench), request, check)
    seconds, client_s = time.perf_counter() - began, time.process_time() - client_s
    server_s = cpu_seconds(daemon.pid) - server_s
    return Rate(load.records_per_s, 1e6 * server_s / jobs(), client_s / seconds)


def _measured_s(bench: Bench) -> float:
    return 0.4 if bench.quick else 1.0


# --- how long a claim takes ------------------------------------------------------------------------------------------


def _latency(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """A claim of one job and its ack, an append of one record and its diff, in turn over one connection."""
    count = 60 if bench.quick else 400
    bench.say("claims of one job")
    port = daemon.port
    with closing(Control(port)) as control, closing(Connection(port)) as connection:
        control.create("jobs", type="queue")
        control.create(TOPIC)
        fill_with_jobs(port, "jobs", count * bench.repetitions)
        claim, append = claim_request("jobs", "worker", 1), append_request(TOPIC, [plain_record(0)])
        seqs_read = itertools.count()

        def once() -> dict[str, list[float]]:
            taken: dict[str, list[float]] = {"claim": [], "ack": [], "append": [], "diff": []}
            for _ in range(count):
                diff = request_bytes("POST", f"/v0/topics/{TOPIC}/diff", b'{"from_seq":%d}' % next(seqs_read))
                seqs = expect_claimed(_timed(connection, claim, taken["claim"]), 1)
                expect_acked(_timed(connection, ack_request("jobs", "worker", seqs), taken["ack"]), 1)
                _timed(connection, append, taken["append"]).expect(200)
                expect_claimed(_timed(connection, diff, taken["diff"]), 1)
            return taken

        runs = bench.repeat(once)
        control.delete("jobs")
        control.delete(TOPIC)
    samples = {kind: [run[kind] for run in runs] for kind in runs[0]}
    return [
        *both_percentiles("reference: append of one record, one connection", "one-append", samples["append"]),
        *both_percentiles("reference: diff of one record", "one-diff", samples["diff"]),
        *both_percentiles("claim of one job, jobs ready", "one-claim", samples["claim"], "one-diff"),
        *both_percentiles("its ack", "one-ack", samples["ack"], "one-append"),
    ]


def _timed(connection: Connection, request: bytes, latencies: list[float]) -> Answer:
    began = time.perf_counter()
    answer = connection.call(request)
    latencies.append((time.perf_counter() - began) * 1000)
    return answer


PAUSE_S = 0.008
"""Before each append: whoever waits does so by then, and the daemon has nothing to do."""


class Waiter(ABC):
    """Somebody who waits for a record to be appended to a topic."""

    def __init__(self, port: int, topic: str, *, jobs: bool) -> None:
        self.topic = topic
        self.waiting = Connection(port)
        self.calls = Connection(port)
        with closing(Control(port)) as control:
            control.create(topic, type="queue" if jobs else "log")

    def once(self, number: int) -> float:
        """Milliseconds from sending the append of that record to its delivery."""
        self.prepare(number)
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        self.calls.send(append_request(self.topic, [numbered_record(number)]))
        delivered = self.delivered(number)
        self.calls.answer().expect(200)
        self.finish(number)
        return (delivered - began) * 1000

    def prepare(self, number: int) -> None:  # noqa: B027 - streams wait all the time
        """Begin to wait."""

    @abstractmethod
    def delivered(self, number: int) -> float:
        """Wait for that record; when it came."""

    def finish(self, number: int) -> None:  # noqa: B027 - records need no ack
        """Done with it."""

    def close(self) -> None:
        self.waiting.close()
        self.calls.close()


class Poll(Waiter):
    """The reference: a diff that waits."""

    def prepare(self, number: int) -> None:
        body = b'{"from_seq":%d,"wait_ms":10000}' % number
        self.waiting.send(request_bytes("POST", f"/v0/topics/{self.topic}/diff", body))

    def delivered(self, number: int) -> float:
        answer = self.waiting.answer()
        now = time.perf_counter()
        if expect_claimed(answer, 1) != [b"%d" % (number + 1)]:
            raise WrongAnswer(f"not record {number}, but {answer.body[:300]!r}")
        return now


class WaitingClaim(Poll):
    """A claim that waits. The job is acked."""

    def prepare(self, number: int) -> None:
        self.waiting.send(claim_request(self.topic, "worker", 1, wait_ms=10_000))

    def finish(self, number: int) -> None:
        expect_acked(self.calls.call(ack_request(self.topic, "worker", [b"%d" % (number + 1)])), 1)


class WorkStream(EventWatcher):
    """A stream of up to so many jobs."""

    def __init__(self, port: int, topic: str, most: int) -> None:
        super().__init__(port, f"/v0/topics/{topic}/work?node=worker&max={most}")

    def wait_until_live(self) -> None:
        received = b""
        while b"retry:" not in received:
            received += self._receive()
        if b" 200 " not in received.partition(b"\r\n")[0] or not received.endswith(b"\n\n\r\n"):
            raise WrongAnswer(f"a stream was refused: {received[:500]!r}")


class Stream(Waiter):
    """The reference: a stream of records."""

    def __init__(self, port: int, topic: str, *, jobs: bool = False) -> None:
        super().__init__(port, topic, jobs=jobs)
        self.watcher = WorkStream(port, topic, 10) if jobs else open_stream(port, topic)
        self.watcher.wait_until_live()

    def delivered(self, number: int) -> float:
        watcher = self.watcher
        while len(watcher.numbers) <= number:
            watcher.readable()
        if watcher.numbers[number] != number:
            raise WrongAnswer(f"not record {number}, but {watcher.numbers[number]}")
        return watcher.times[number] / 1e9

    def close(self) -> None:
        super().close()
        self.watcher.close()


class Work(Stream):
    """A stream of jobs. They are acked."""

    def finish(self, number: int) -> None:
        expect_acked(self.calls.call(ack_request(self.topic, "worker", [b"%d" % (number + 1)])), 1)


def _deliveries(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """From an append to who waits for it: each kind in turn, so that all have the same conditions."""
    count = 25 if bench.quick else 120
    port = daemon.port
    waiters: dict[str, Waiter] = {
        "to-diff": Poll(port, "polled", jobs=False),
        "to-claim": WaitingClaim(port, "claimed", jobs=True),
        "to-stream": Stream(port, "streamed"),
        "to-work": Work(port, "worked", jobs=True),
    }
    numbers = itertools.count()

    def once() -> dict[str, list[float]]:
        taken: dict[str, list[float]] = {key: [] for key in waiters}
        for number in itertools.islice(numbers, count):
            for key, waiter in waiters.items():
                taken[key].append(waiter.once(number))
        return taken

    bench.say("appends to who waits for them")
    runs = bench.repeat(once)
    with closing(Control(port)) as control:
        for waiter in waiters.values():
            waiter.close()
            control.delete(waiter.topic)
    names = {
        "to-diff": ("reference: append to a diff that waits", None),
        "to-claim": ("append to a claim that waits", "to-diff"),
        "to-stream": ("reference: append to a stream of records", None),
        "to-work": ("append to a /work stream", "to-stream"),
    }
    figures = []
    for key, (name, reference) in names.items():
        figures += both_percentiles(name, key, [run[key] for run in runs], reference)
    return figures


# --- who gets how many -----------------------------------------------------------------------------------------------

CLAIMERS = 10
JOBS = 1000
JITTERS_MS = (0, 20)
PART = 10


def _fairness(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """Ten claimers and 1000 jobs: they want everything, and jobs come before or after them; or parts, many times."""
    cases: tuple[tuple[str, str, Callable[[int], list[int]]], ...] = (
        ("all", "who want all of them, which are there", _all_at_once),
        ("awaited", "who want all of them, and wait for them", _all_awaited),
        ("parts", f"who claim {PART} and ack, until there are none", _in_parts),
    )
    figures = []
    for key, name, claims in cases:
        for jitter_ms in JITTERS_MS:
            case = f"{JOBS} jobs, {CLAIMERS} claimers {name}, claim_jitter_ms {jitter_ms}"
            bench.say(case)
            runs = bench.repeat(_share_out, daemon.port, claims, jitter_ms)
            shares = [share for share, _ in runs]
            place = f"{key}-{jitter_ms}"
            deviations = [statistics.pstdev(share) for share in shares]
            figures += [
                figure(f"{case}, fewest", "jobs", [min(share) for share in shares], key=place),
                figure(f"{case}, most", "jobs", [max(share) for share in shares], key=f"{place}-most"),
                figure(f"{case}, standard deviation", "jobs", deviations, key=f"{place}-deviation"),
            ]
            if claims is _in_parts:
                seconds = [taken for _, taken in runs]
                figures.append(figure(f"{case}, all claimed and acked", "s", seconds, key=f"{place}-seconds"))
    return figures


def _share_out(port: int, claims: Callable[[int], list[int]], jitter_ms: int) -> tuple[list[int], float]:
    """One repetition: what each claimer got, and the seconds that took."""
    with closing(Control(port)) as control:
        control.create(TOPIC, type="queue", claim_jitter_ms=jitter_ms)
        began = time.perf_counter()
        share = claims(port)
        seconds = time.perf_counter() - began
        control.delete(TOPIC)
    if sum(share) != JOBS:
        raise WrongAnswer(f"{share}: not {JOBS} jobs")
    return share, seconds


def _all_at_once(port: int) -> list[int]:
    fill_with_jobs(port, TOPIC, JOBS)
    return _claim_all(port, 0, lambda: None)


def _all_awaited(port: int) -> list[int]:
    def come() -> None:
        time.sleep(0.1)  # the claims arrive; the daemon has no figure of those that wait
        fill_with_jobs(port, TOPIC, JOBS)

    return _claim_all(port, 500, come)


def _claim_all(port: int, wait_ms: int, meanwhile: Callable[[], None]) -> list[int]:
    """What each gets who wants everything; after their claims are sent something else happens."""
    connections = [Connection(port) for _ in range(CLAIMERS)]
    for number, connection in enumerate(connections):
        connection.send(claim_request(TOPIC, f"worker-{number}", JOBS, wait_ms=wait_ms))
    meanwhile()
    shares = [len(expect_claimed(connection.answer())) for connection in connections]
    for connection in connections:
        connection.close()
    return shares


def _in_parts(port: int) -> list[int]:
    """What each gets who claims a part and acks it, until it is given none."""
    fill_with_jobs(port, TOPIC, JOBS)
    shares = [0] * CLAIMERS
    held: list[list[bytes]] = [[] for _ in range(CLAIMERS)]
    connections = [Connection(port) for _ in range(CLAIMERS)]
    with selectors.DefaultSelector() as selector:
        for number, connection in enumerate(connections):
            selector.register(connection.socket, selectors.EVENT_READ, number)
            connection.send(claim_request(TOPIC, f"worker-{number}", PART))
        while selector.get_map():
            ready = selector.select(TIMEOUT_S)
            if not ready:
                raise WrongAnswer(f"no answer for {TIMEOUT_S:.0f} s")
            for key, _ in ready:
                number = key.data
                answer = connections[number].receive()
                if answer is None:
                    continue
                node = f"worker-{number}"
                if held[number]:
                    expect_acked(answer, len(held[number]))
                    shares[number] += len(held[number])
                    held[number] = []
                    connections[number].send(claim_request(TOPIC, node, PART))
                elif seqs := expect_claimed(answer):
                    held[number] = seqs
                    connections[number].send(ack_request(TOPIC, node, seqs))
                else:
                    selector.unregister(connections[number].socket)
    for connection in connections:
        connection.close()
    return shares


# --- many jobs -------------------------------------------------------------------------------------------------------

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
                seqs = expect_claimed(_timed(connection, claim, claims), batch)
                expect_acked(_timed(connection, ack_request(self.topic, "worker", seqs), acks), batch)

    def expect(self) -> None:
        """They must be there, after a crash as well."""
        with closing(Control(self.daemon.port)) as control:
            state = control.state(self.topic)
        found = state["count"], state["queue"]["in_flight"]
        if found != (self.jobs, self.jobs if self.leased else 0):
            raise WrongAnswer(f"{self.topic}: {found[0]} jobs, {found[1]} in flight")


def _many_jobs(bench: Bench) -> list[Figure]:
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
        time.sleep(max(0.0, due - time.perf_counter()))  # the pace of the probes
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
    time.sleep(0.3)  # the daemon has nothing left to do from before: the start is measured after a kill at rest
    crowd.daemon.kill()
    seconds = crowd.daemon.start()
    spent = cpu_seconds(crowd.daemon.pid)
    crowd.expect()
    return seconds, spent


def _snapshots(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "meta").glob("snapshot.*.cbor"))
