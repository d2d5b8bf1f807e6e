"""Small requests: one append, one diff, a state, a health check, alone and beside the bulk work of others.

Beside every rate stands the processor time of the daemon for a request, as the operating system counts it: the client
shares the cores, and what the daemon takes of them for a request does not depend on it. Bulk work is done by a process
of its own, and is measured with and without the small requests.
"""

from __future__ import annotations

import multiprocessing
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record
from benchmarks.bulk import export_arrow, filled, upload_for
from benchmarks.client import Answer, Connection, Load, WrongAnswer, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds
from benchmarks.reclaim import CHECKPOINT_MS, DELETED, RECLAIM_MS, segment_bytes, tagged_batches
from benchmarks.redis_streams import SINGLES, redis_figures, single_append_figures
from benchmarks.references import echo_reference, percentiles, sync_reference
from daemon_process import DaemonProcess

CONNECTIONS = (1, 16, 64)


def run(bench: Bench) -> list[Figure]:
    """References, then the requests by themselves, then beside bulk work."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    figures += redis_figures(bench, SINGLES, single_append_figures)
    return [*figures, *_by_themselves(bench), *_beside_bulk(bench)]


# --- by themselves ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SmallRequest:
    """One request, sent again and again. `answered` is in the body of each right answer. An append has the durability
    of a topic that is made for each repetition; the others ask for a topic of 1000 records."""

    name: str
    request: bytes
    answered: bytes
    durability: str | None = None


@dataclass(frozen=True, slots=True)
class Aim:
    """Targets of one case (`docs/spec/speed.md` section 4); None where there is none."""

    rate: float | None = None
    p50: float | None = None
    p99: float | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """One repetition."""

    load: Load
    cpu_us: float
    """Processor time of the daemon for a request."""
    client: float
    """Share of a core that the client took."""


FILLED = "filled"
_APPEND = append_request(TOPIC, [plain_record(0)])
REQUESTS: Mapping[str, SmallRequest] = {
    "append-disk": SmallRequest("append of one record, disk", _APPEND, b'"count":1,', "disk"),
    "append-fsync": SmallRequest("append of one record, fsync", _APPEND, b'"count":1,', "fsync"),
    "diff": SmallRequest(
        "diff of one record",
        request_bytes("POST", f"/v0/topics/{FILLED}/diff", b'{"from_seq":0,"limit":1}'),
        b'"next_from_seq":1,',
    ),
    "state": SmallRequest("state of a topic", request_bytes("GET", f"/v0/topics/{FILLED}"), b'"head_seq":1000,'),
    "health": SmallRequest("health", request_bytes("GET", "/v0/health"), b'"status":"ok"'),
}
AIMS: Mapping[tuple[str, int], Aim] = {
    ("append-disk", 1): Aim(p50=0.25, p99=1),
    ("append-disk", 16): Aim(rate=5_500),
    ("append-fsync", 1): Aim(p50=0.65, p99=2),
    ("append-fsync", 16): Aim(rate=3_500),
    ("diff", 1): Aim(p50=0.17),
    ("diff", 16): Aim(rate=10_000),
}


class CheckAndCount:
    """Checks that every answer has what it should; `total` counts them, those of the warm-up as well."""

    def __init__(self, answered: bytes) -> None:
        self._answered = answered
        self.total = 0

    def __call__(self, _connection: int, answer: Answer) -> int:
        if self._answered not in answer.expect(200).body:
            raise WrongAnswer(f"expected {self._answered!r} in {answer.body[:300]!r}")
        self.total += 1
        return 1


def _by_themselves(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    shares: list[float] = []
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        control.create(FILLED)
        fill(daemon.port, [append_request(FILLED, [plain_record(0)] * BATCH)])
        for key, small in REQUESTS.items():
            for connections in CONNECTIONS:
                name = f"{small.name}, {connections} {'connection' if connections == 1 else 'connections'}"
                bench.say(name)
                samples = bench.repeat(_sample, bench, daemon, control, small, connections)
                figures += request_figures(name, f"{key}-{connections}", samples, AIMS.get((key, connections), Aim()))
                shares += [sample.client for sample in samples]
    name = "share of a core that the client took, of all those requests"
    figures.append(figure(name, "%", [100 * share for share in shares], key="client"))
    return figures


def _sample(bench: Bench, daemon: DaemonProcess, control: Control, small: SmallRequest, connections: int) -> Sample:
    if small.durability is not None:
        control.create(TOPIC, durability=small.durability)
    check = CheckAndCount(small.answered)
    server_s, client_s, began = cpu_seconds(daemon.pid), time.process_time(), time.perf_counter()
    load = run_load(daemon.port, connections, bench.warm_up_s, _measured_s(bench), lambda _: small.request, check)
    seconds, client_s = time.perf_counter() - began, time.process_time() - client_s
    server_s = cpu_seconds(daemon.pid) - server_s
    if small.durability is not None:
        control.expect_count(TOPIC, check.total)
        control.delete(TOPIC)
    return Sample(load, 1e6 * server_s / check.total, client_s / seconds)


def _measured_s(bench: Bench) -> float:
    return 0.5 if bench.quick else 1.0


def request_figures(name: str, key: str, samples: Sequence[Sample], aim: Aim) -> list[Figure]:
    """The rate, its latencies, and what a request took of the processor. What Redis does stands beside appends."""
    loads = [sample.load for sample in samples]
    redis = key.replace("append-disk", "redis-everysec").replace("append-fsync", "redis-always")
    rates, costs = [load.requests_per_s for load in loads], [sample.cpu_us for sample in samples]

    def references(suffix: str) -> tuple[str, ...] | None:
        beside = (f"echo{suffix}",) if suffix and key.endswith("-1") else ()
        return (*beside, *([redis + suffix] if redis != key else [])) or None

    return [
        figure(name, "requests/s", rates, key=key, at_least=aim.rate, references=references("")),
        figure(
            "... p50", "ms", percentiles(loads, 0.5), key="p50", at_most=aim.p50, references=references("-p50") or ()
        ),
        figure(
            "... p99", "ms", percentiles(loads, 0.99), key="p99", at_most=aim.p99, references=references("-p99") or ()
        ),
        figure("... processor time of the daemon", "us/request", costs, key="cpu"),
    ]


# --- beside bulk work ------------------------------------------------------------------------------------------------

BESIDE = "beside"
P99_AIM_MS = 5.0
BATCHES_P50_AIM_MS = {"disk": 1.0, "fsync": 6.0}


@dataclass(frozen=True, slots=True)
class Done:
    """What bulk work did, in its own unit, and in how many seconds from when (on the monotonic clock, which all
    processes of a machine share)."""

    amount: float
    seconds: float
    began: float

    @property
    def rate(self) -> float:
        return self.amount / self.seconds


Work = Callable[[int, float], Done]
"""Port and seconds to what was done; a function that another process can be given."""


@dataclass(frozen=True, slots=True)
class BulkWork:
    """Work of one kind. `durabilities` are those of the appends beside it; `prepare` is called before each repetition,
    `clear` after it."""

    key: str
    name: str
    unit: str
    work: Work
    durabilities: tuple[str, ...] = ("disk",)
    prepare: Callable[[], None] = lambda: None
    clear: Callable[[], None] = lambda: None
    warms_up: bool = True
    """Whether the first of it is slower: the first export loads pyarrow."""


def _beside_bulk(bench: Bench) -> list[Figure]:
    figures: list[Figure] = []
    with _worker() as pool:
        with bench.daemon(cache_bytes="512MiB") as daemon, closing(Control(daemon.port)) as control:
            for durability in ("disk", "fsync"):
                control.create(_beside(durability), durability=durability)
            kinds = [
                BulkWork("batches", "batches of 1000, 4 connections", "records/s", batches_for, ("disk", "fsync")),
                BulkWork("checkpoints", "checkpoints without a pause, 10,000 new records each", "1/s", checkpoints_for),
                BulkWork("upload", "NDJSON upload, 1 connection", "records/s", uploads_for),
            ]
            for kind in kinds:
                figures += _measure(bench, daemon.port, pool, kind)
            with filled(bench, daemon.port):
                kind = BulkWork("export", "Arrow export, 1 connection, from memory", "records/s", exports_for)
                figures += _measure(bench, daemon.port, pool, kind)
        return [*figures, *_beside_reclaim(bench, pool)]


def _beside_reclaim(bench: Bench, pool: ProcessPoolExecutor) -> list[Figure]:
    """The reclaimer works for as long as there are bytes to give back; the time that it is asked to take does not end
    it."""
    batches = tagged_batches(50_000 if bench.quick else 200_000)
    with (
        bench.daemon(reclaim_ms=RECLAIM_MS, checkpoint_ms=CHECKPOINT_MS) as daemon,
        closing(Control(daemon.port)) as control,
    ):
        control.create(_beside("disk"), durability="disk")

        def prepare() -> None:
            control.create(TOPIC)
            fill(daemon.port, batches)
            control.checkpoint()

        kind = BulkWork(
            "reclaim",
            "reclaiming",
            "MiB/s",
            partial(reclaim_for, daemon.data_dir),
            prepare=prepare,
            clear=lambda: control.delete(TOPIC),
            warms_up=False,
        )
        return _measure(bench, daemon.port, pool, kind, times=1 if bench.quick else 2)


def _measure(
    bench: Bench, port: int, pool: ProcessPoolExecutor, kind: BulkWork, times: int | None = None
) -> list[Figure]:
    """The work alone and with each kind of append beside it, in turn."""
    seconds = 0.7 if bench.quick else 2.0
    bench.say(kind.name)
    if kind.warms_up:
        pool.submit(kind.work, port, bench.warm_up_s).result()

    def once(durability: str | None) -> tuple[float, Load | None]:
        kind.prepare()
        future = pool.submit(kind.work, port, seconds)
        appended = None if durability is None else appends_while(port, _beside(durability), lambda: not future.done())
        done = future.result()
        kind.clear()
        return done.rate, None if appended is None else appended.during(done)

    measures = {"alone": partial(once, None)} | {one: partial(once, one) for one in kind.durabilities}
    results = bench.in_turn(measures, times)
    alone = [rate for rate, _ in results.pop("alone")]
    figures = [figure(f"{kind.name}, nothing beside", kind.unit, alone, key=f"{kind.key}-alone")]
    for durability, runs in results.items():
        rates, loads = [rate for rate, _ in runs], [load for _, load in runs if load is not None]
        batches = kind.key == "batches"
        name, key = f"append of one record, {durability}, beside {kind.name}", f"beside-{kind.key}-{durability}"
        figures += [
            figure(
                f"{kind.name}, beside appends of one record, {durability}",
                kind.unit,
                rates,
                key=f"{kind.key}-with-{durability}",
                references=(f"{kind.key}-alone",),
            ),
            figure(
                f"{name}, p50",
                "ms",
                percentiles(loads, 0.5),
                key=f"{key}-p50",
                at_most=BATCHES_P50_AIM_MS[durability] if batches else None,
                references=(f"append-{durability}-1-p50",),
            ),
            figure(
                "... p99",
                "ms",
                percentiles(loads, 0.99),
                at_most=None if batches else P99_AIM_MS,
                references=(f"append-{durability}-1-p99",),
            ),
        ]
    return figures


@dataclass(frozen=True, slots=True)
class Appended:
    """Appends of one record, one after the other."""

    sent_at: list[float]
    """On the monotonic clock."""
    latencies_ms: list[float]

    def during(self, done: Done) -> Load:
        """Those that were sent while the work was done. What comes before and after it, such as making its topic,
        leaves the daemon idle; there would be more of these appends than of the others, which are slower."""
        pairs = zip(self.sent_at, self.latencies_ms, strict=True)
        latencies = [ms for at, ms in pairs if done.began <= at < done.began + done.seconds]
        if not latencies:
            raise WrongAnswer("not a single append was sent while the work was done")
        return Load(requests=len(latencies), latencies_ms=array("d", latencies))


def appends_while(port: int, topic: str, going_on: Callable[[], bool]) -> Appended:
    """Appends over one connection as long as something goes on, but at least one."""
    request, check = append_request(topic, [plain_record(0)]), CountAppended(1)
    appended = Appended([], [])
    with closing(Connection(port)) as connection:
        while True:
            sent_at = time.monotonic()
            answer = connection.call(request)
            appended.latencies_ms.append((time.monotonic() - sent_at) * 1000)
            appended.sent_at.append(sent_at)
            check(0, answer)
            if not going_on():
                return appended


def _beside(durability: str) -> str:
    return f"{BESIDE}-{durability}"


# --- in a process of its own -----------------------------------------------------------------------------------------


@contextmanager
def _worker() -> Iterator[ProcessPoolExecutor]:
    """One process that has loaded this module."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        pool.submit(_nothing).result()
        yield pool


def _nothing() -> None:
    pass


WORKED = "worked"


def batches_for(port: int, seconds: float) -> Done:
    """Appends of 1000 records over 4 connections, to a topic of their own."""
    with closing(Control(port)) as control:
        control.create(WORKED, durability="disk")
        check = CountAppended(BATCH)
        request = append_request(WORKED, [plain_record(0)] * BATCH)
        began = time.monotonic()
        load = run_load(port, 4, 0.0, seconds, lambda _: request, check)
        control.expect_count(WORKED, check.total)
        control.delete(WORKED)
    return Done(load.records, load.seconds, began)


def checkpoints_for(port: int, seconds: float) -> Done:
    """Checkpoints, one after the other, each with 10,000 new records of one topic."""
    taken = 0
    with closing(Control(port)) as control:
        control.create(WORKED, durability="disk")
        batches = [append_request(WORKED, [plain_record(0)] * BATCH)] * 10
        began = time.monotonic()
        while not taken or time.monotonic() - began < seconds:
            fill(port, batches)
            control.checkpoint()
            taken += 1
        took = time.monotonic() - began
        control.expect_count(WORKED, taken * 10 * BATCH)
        control.delete(WORKED)
    return Done(taken, took, began)


def uploads_for(port: int, seconds: float) -> Done:
    """One upload."""
    moved = upload_for(port, WORKED, seconds)
    return Done(moved.records, moved.seconds, moved.began)


def exports_for(port: int, seconds: float) -> Done:
    """Whole exports of the topic that is filled."""
    moved = export_arrow(port, TOPIC, seconds)
    return Done(moved.records, moved.seconds, moved.began)


RECLAIMED = 0.6
"""The share of a topic's segment files that is left when most has been given back. Four records of ten live."""
RECLAIM_MOST_S = 60.0


def reclaim_for(data_dir: Path, port: int, _seconds: float) -> Done:
    """Delete six records of ten. Returns the MiB given back until the segment files have shrunk to `RECLAIMED`."""
    with closing(Control(port)) as control:
        directory = data_dir / "topics" / f"{control.state(TOPIC)['epoch']:016x}"
        size = full = segment_bytes(directory)
        began = time.monotonic()
        for tag in range(DELETED):
            control.call("POST", f"/v0/topics/{TOPIC}/delete", {"match": f"tag-{tag}"})
    while size > RECLAIMED * full:
        if time.monotonic() - began > RECLAIM_MOST_S:
            raise RuntimeError(f"the reclaimer is still at work after {RECLAIM_MOST_S:.0f} s")
        time.sleep(0.02)
        size = segment_bytes(directory)
    return Done((full - size) / (1 << 20), time.monotonic() - began, began)
