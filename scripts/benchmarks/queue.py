"""Queues: jobs claimed and acked in a second, how long a claim takes, who gets how many, and what an order, many jobs
(`many_jobs`), late ones (`late_jobs`) and groups (`groups`) cost.

Every figure stands beside one of the same run without a queue: the append and the diff of the same batch, the delivery
of the same record to a long poll and a stream of a log, the start and the checkpoint with the same records and no
leases. A job that is claimed twice, or that is neither there nor acked at the end, ends the benchmark.
"""

from __future__ import annotations

import itertools
import selectors
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from benchmarks.bench import NEVER_MS, Bench, Control, append_request, plain_record
from benchmarks.claims import (
    WARM_UP_S,
    Rate,
    Readers,
    Workers,
    ack_request,
    batches_of,
    claim_request,
    expect_acked,
    expect_claimed,
    fill_with_jobs,
    hold_checkpoints,
    measured_rate,
    measured_s,
    rate_figures,
    timed,
)
from benchmarks.client import TIMEOUT_S, Connection, WrongAnswer, request_bytes
from benchmarks.diff import TOPIC
from benchmarks.earlier import earlier_daemon
from benchmarks.figures import Figure, figure
from benchmarks.groups import many_groups
from benchmarks.late_jobs import late_jobs
from benchmarks.live import EventWatcher, open_stream
from benchmarks.many_jobs import many_jobs
from benchmarks.redis_streams import CLAIMS, claim_figures, redis_figures
from benchmarks.references import echo_reference, sync_reference
from benchmarks.routers import both_percentiles, numbered_record
from daemon_process import DaemonProcess


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
        figures += _ordered(bench, daemon)
    return [*figures, *_since(bench), *late_jobs(bench), *many_groups(bench), *many_jobs(bench)]


# --- jobs in a second ------------------------------------------------------------------------------------------------

BATCHES = {1: 10_000, 8: 40_000, 32: 100_000, 100: 200_000}
"""And how many jobs a second there are for it: more than can be claimed."""
CONNECTIONS = (1, 4, 16)
TARGETS = {8: 15_000, 32: 30_000}
SYNCED: tuple[tuple[str, str, dict[str, object]], ...] = (
    ("fsync", "fsync", {"durability": "fsync"}),
    ("durable", "disk, leases_durable", {"durability": "disk", "leases_durable": True}),
)
ORDERED = (8, 32)
KEYS = 10_000


def _throughput(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """By batch and connections on `disk`, each batch beside its reference; then a few with syncs."""
    figures = []
    shares: list[float] = []
    for batch in BATCHES:
        name = f"append and diff, batches of {batch}, 4 connections, disk"
        bench.say(name)
        rates = bench.repeat(_read_rate, bench, daemon, 4, batch, times=bench.few)
        figures += rate_figures(f"reference: {name}", f"diff-{batch}", rates)
        for connections in CONNECTIONS:
            name = f"claim and ack, {batches_of(batch, connections)}, disk"
            bench.say(name)
            target = TARGETS.get(batch) if connections > 1 else None
            times = bench.repetitions if target and not bench.quick else bench.few
            rates = bench.repeat(_claim_rate, bench, daemon, connections, batch, {}, times=times)
            references = (f"diff-{batch}", f"redis-{batch}")
            figures += rate_figures(name, f"claim-{batch}-{connections}", rates, target, references)
            shares += [rate.client for rate in rates]
    name = "share of a core that the client took, of all those claims"
    figures.append(figure(name, "%", [100 * one for one in shares], key="client"))
    for key, name, config in SYNCED:
        for batch, connections in ((1, 1), (8, 4), (32, 4), (32, 16)):
            case = f"claim and ack, {batches_of(batch, connections)}, {name}"
            bench.say(case)
            rates = bench.repeat(_claim_rate, bench, daemon, connections, batch, config, times=bench.few)
            figures += rate_figures(
                case, f"{key}-{batch}-{connections}", rates, None, (f"claim-{batch}-{connections}",)
            )
    return figures


def _claim_rate(
    bench: Bench, daemon: DaemonProcess, connections: int, batch: int, config: Mapping[str, object], keys: int = 0
) -> Rate:
    """One repetition on a queue of its own, which is full enough, is checked, and deleted afterwards."""
    seconds = WARM_UP_S + measured_s(bench)
    workers = Workers(connections, batch)
    with closing(Control(daemon.port)) as control:
        control.create(TOPIC, type="queue", **config)
        fill_with_jobs(daemon.port, TOPIC, int(BATCHES[batch] * seconds), keys=keys)
        jobs = control.state(TOPIC)["count"]
        rate = measured_rate(bench, daemon, connections, workers.request, workers.check, lambda: workers.jobs)
        workers.expect(control, jobs)
        control.delete(TOPIC)
    return rate


def _read_rate(bench: Bench, daemon: DaemonProcess, connections: int, batch: int) -> Rate:
    readers = Readers(connections, batch)
    with closing(Control(daemon.port)) as control:
        control.create(TOPIC)
        rate = measured_rate(bench, daemon, connections, readers.request, readers.check, lambda: readers.jobs)
        control.delete(TOPIC)
    return rate


# --- the cost of what a queue can do ---------------------------------------------------------------------------------

LEAST_SHARE = 70
MOST_TIMES = 1.05
BEFORE_JOBS = "eb5b14b4913f2462a114bc975c0fa48fca62c7e0"
"""The last commit whose queues have no delays, priorities, pauses, limits, unique keys and no order."""


def _ordered(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """The same jobs of many tags with an order for each tag and without, in turn."""
    figures = []
    for batch in ORDERED:
        case = f"claim and ack, {batches_of(batch, 4)}, {KEYS:,} tags"
        bench.say(f"{case}, with and without an order")
        rates = bench.in_turn(
            {
                key: partial(_claim_rate, bench, daemon, 4, batch, {"order_by": order}, KEYS)
                for key, order in (("tagged", None), ("ordered", "tag"))
            }
        )
        figures += rate_figures(f"{case}, no order", f"tagged-{batch}", rates["tagged"])
        figures += rate_figures(
            f"{case}, order_by tag", f"ordered-{batch}", rates["ordered"], None, (f"tagged-{batch}",)
        )
        pairs = list(zip(rates["tagged"], rates["ordered"], strict=True))
        shares = [100 * ordered.jobs_per_s / plain.jobs_per_s for plain, ordered in pairs]
        name = f"{case}, order_by tag, share of the jobs without an order"
        figures.append(figure(name, "%", shares, key=f"ordered-{batch}-share", at_least=LEAST_SHARE))
        times = [ordered.server_us / plain.server_us for plain, ordered in pairs]
        name = f"{case}, order_by tag, processor time, times that without an order"
        figures.append(figure(name, "x", times, key=f"ordered-{batch}-times"))
    return figures


def _since(bench: Bench) -> list[Figure]:
    """A queue that uses nothing new beside the daemon that had nothing of it, in turn, and often: the least processor
    time of each says most where others use the machine. Both daemons are new, because one that has worked for minutes
    takes more."""
    short = replace(bench, quick=True)
    cases = {(batch, 4): f"claim and ack, {batches_of(batch, 4)}, disk" for batch in TARGETS}
    cases[1, 16] = f"claim and ack, {batches_of(1, 16)}, disk"
    keys = {case: f"since-{case[0]}-{case[1]}" for case in cases}
    fresh = {"checkpoint_ms": NEVER_MS}
    with earlier_daemon(bench, BEFORE_JOBS, **fresh) as before, bench.daemon(**fresh) as daemon:
        if before is None:
            why = f"needs the history of the repository, commit {BEFORE_JOBS[:12]}"
            bench.absent.update({key + suffix: why for key in keys.values() for suffix in ("", "-before", "-times")})
            return []
        hold_checkpoints(before)
        hold_checkpoints(daemon)
        figures = []
        for (batch, connections), name in cases.items():
            bench.say(f"{name}, beside an earlier commit")
            rates = bench.in_turn(
                {
                    "before": partial(_claim_rate, short, before, connections, batch, {}),
                    "now": partial(_claim_rate, short, daemon, connections, batch, {}),
                },
                times=2 * bench.repetitions,
            )
            key = keys[batch, connections]
            what = f"reference: {name}, before jobs had delays, priorities, limits and orders"
            figures += rate_figures(what, f"{key}-before", rates["before"])
            figures += rate_figures(f"{name}, in turn with that", key, rates["now"], None, (f"{key}-before",))
            least = {who: min(one.server_us for one in some) for who, some in rates.items()}
            what = f"{name}, least processor time for a job, times that before"
            times = least["now"] / least["before"]
            figures.append(figure(what, "x", [times], key=f"{key}-times", at_most=MOST_TIMES))
    return figures


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
                seqs = expect_claimed(timed(connection, claim, taken["claim"]), 1)
                expect_acked(timed(connection, ack_request("jobs", "worker", seqs), taken["ack"]), 1)
                timed(connection, append, taken["append"]).expect(200)
                expect_claimed(timed(connection, diff, taken["diff"]), 1)
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


PAUSE_S = 0.008
"""A pause before each append (s): after it every claim waits, and the daemon has nothing to do."""


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
