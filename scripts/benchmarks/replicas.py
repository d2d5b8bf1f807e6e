"""Daemons over one bucket in an S3 server: a takeover, topics of class `remote`, how far a standby is behind, and reads
from two standbys."""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final
from unittest.mock import patch

import msgspec

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record, quiet
from benchmarks.bucket import times
from benchmarks.bucket_stores import S3, Store, distant, event_requests, made_stores, wait_until
from benchmarks.client import Connection, Load, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, Walk, fill
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, percentiles, sync_reference
from daemon_process import DaemonProcess
from topics.bucket.bucket_location import open_objects, parse_location

LEASE_MS: Final = 10_000
ROUND_MS: Final = 2000
"""The defaults of the daemon: the lease of an owner, and the interval of rounds."""

CONNECTIONS: Final = 4
MANY: Final = 16
PUTS: Final = 100
PUT_TIMEOUT_S: Final = 30.0
PUT_BYTES: Final = 1500
"""About what a round with one small record has."""

FAR_MS: Final = 20.0
WHERE: Final = {"near": "S3 on this machine", "far": f"S3 whose answers take {FAR_MS:.0f} ms longer"}
"""Stores, by keys."""
BATCHED: Final = {"near": CONNECTIONS, "far": MANY}
"""Connections that append batches. A few that wait for a store far away leave the daemon idle."""

TIMES: Final = "times"
LAG_S: Final = 30.0
LAG_EVERY_S: Final = 0.05
READ_S: Final = 5.0
TAKEN_S: Final = 120.0
LIMIT: Final = 1000

ENOUGH_CORES: Final = 6
"""Two standbys, their owner and the readers: with fewer cores the reads of two have no target."""


def run(bench: Bench) -> list[Figure]:
    """Figures of one owner and its standbys, then of a takeover."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    sync_ms = next(one.median for one in figures if one.key == "sync-p50")
    with bench.scratch() as scratch, made_stores(scratch) as stores:
        store = stores[S3]
        figures += _remote(bench, scratch, store, "near", sync_ms)
        with distant(store, scratch, FAR_MS) as far:
            figures += _remote(bench, scratch, far, "far", sync_ms)
        with _pair(scratch, store, "pair") as (owner, standby):
            figures += _behind(bench, owner, standby)
        figures += _two_standbys(bench, scratch, store)
        figures += _takeover(bench, scratch, store)
    return figures


# --- daemons ---------------------------------------------------------------------------------------------------------


def _daemon(scratch: Path, name: str, store: Store, prefix: str, **settings: object) -> DaemonProcess:
    both = {"bucket": store.url(prefix), "bucket_takeover": 1, "bucket_lease_ms": LEASE_MS}
    daemon = DaemonProcess(scratch / f"{prefix}-{name}", **quiet({**both, **settings}))
    daemon.variables = dict(store.variables)
    return daemon


@contextmanager
def _pair(scratch: Path, store: Store, prefix: str) -> Iterator[tuple[DaemonProcess, DaemonProcess]]:
    """An owner, and a standby that would take over."""
    with (
        _daemon(scratch, "owner", store, prefix) as owner,
        _daemon(scratch, "standby", store, prefix, role="standby") as standby,
    ):
        owner.start()
        standby.start()
        yield owner, standby


def _follow(owner: DaemonProcess, standby: DaemonProcess, topic: str) -> None:
    """Wait until a standby has the head of a topic."""
    with closing(Control(owner.port)) as control:
        head = control.state(topic)["head_seq"]

    def has_it() -> bool:
        with closing(Connection(standby.port)) as connection:
            answer = connection.call(request_bytes("GET", f"/v0/topics/{topic}?touch=false"))
        return answer.status == 200 and msgspec.json.decode(answer.body)["head_seq"] >= head

    wait_until(f"the standby has {topic}", has_it)


# --- class remote ----------------------------------------------------------------------------------------------------


def _remote(bench: Bench, scratch: Path, store: Store, key: str, sync_ms: float) -> list[Figure]:
    """Appends that are acked when the bucket has them, beside puts of the same store and appends that are synced. There
    is no standby, which has a machine of its own: here it would have half of the cores."""
    bench.say(f"class remote in {store.name}")
    one = append_request(TOPIC, [plain_record(0)])
    batches = event_requests(TOPIC, 0, 64)
    numbers = iter(range(1 << 60))
    with _daemon(scratch, "owner", store, key) as owner:
        owner.start()
        singles = bench.in_turn(
            {
                "put": partial(_puts, store, 20 if bench.quick else PUTS),
                "1": partial(_appends, bench, owner, "remote", 1, 1, lambda _: one),
                "16": partial(_appends, bench, owner, "remote", MANY, 1, lambda _: one),
            }
        )
        batch = partial(_appends, bench, owner, connections=BATCHED[key], batch=BATCH)
        rates = bench.in_turn(
            {
                durability: partial(batch, durability, request=lambda _: batches[next(numbers) % len(batches)])
                for durability in ("fsync", "remote")
            }
        )
    puts = percentiles(singles["put"], 0.5)
    lone, loaded = percentiles(singles["1"], 0.5), percentiles(singles["16"], 0.5)
    added = [ack - put - sync_ms for ack, put in zip(lone, puts, strict=True)]
    synced, remote = ([load.records_per_s for load in rates[one]] for one in ("fsync", "remote"))
    shares = [100 * share for share in times(remote, synced)]
    batched = f"append, batches of {BATCH}, {BATCHED[key]} connections"
    return [
        figure(f"one object of {PUT_BYTES} bytes put, {WHERE[key]}, p50", "ms", puts, key=f"{key}-put"),
        figure("append, one record, one connection, remote, p50", "ms", lone, key=f"{key}-1"),
        figure("... beyond a put and a sync", "ms", added, key="added", at_most=3),
        figure(f"append, one record, {MANY} connections, remote, p50", "ms", loaded, key=f"{key}-16"),
        figure("... times a put", "x", times(loaded, puts), key="puts", at_most=2),
        figure(f"{batched}, fsync, {WHERE[key]}", "records/s", synced, key=f"{key}-fsync"),
        figure(f"{batched}, remote", "records/s", remote, key=f"{key}-remote"),
        figure("... of the rate of fsync", "%", shares, key="share", at_least=60),
    ]


def _appends(
    bench: Bench,
    owner: DaemonProcess,
    durability: str,
    connections: int,
    batch: int,
    request: Callable[[int], bytes],
) -> Load:
    """One repetition on a topic of its own."""
    with closing(Control(owner.port)) as control:
        control.create(TOPIC, durability=durability)
        check = CountAppended(batch)
        load = run_load(owner.port, connections, bench.warm_up_s, 2 * bench.measured_s, request, check)
        control.expect_count(TOPIC, check.total)
        control.delete(TOPIC)
    return load


def _puts(store: Store, count: int) -> Load:
    """Puts of new objects by the daemon's own library, with nothing else going on."""
    load = Load()
    with patch.dict(os.environ, store.variables):
        objects = open_objects(parse_location(store.url("puts"), os.environ), PUT_TIMEOUT_S)
    for _ in range(count):
        began = time.perf_counter()
        objects.put_new(f"puts/{uuid.uuid4()}", os.urandom(PUT_BYTES))
        load.latencies_ms.append(1000 * (time.perf_counter() - began))
    return load


# --- a standby -------------------------------------------------------------------------------------------------------


def _behind(bench: Bench, owner: DaemonProcess, standby: DaemonProcess) -> list[Figure]:
    """From the moment at which a record is sent to the owner until a long poll at the standby has it."""
    lasts_s = LAG_S / (6 if bench.quick else 1)
    bench.say("how far a standby is behind")
    load = Load()
    with closing(Control(owner.port)) as control:
        control.create(TIMES)
    _follow(owner, standby, TIMES)
    ended = threading.Event()
    writer = threading.Thread(target=_write_times, args=(owner.port, ended))
    writer.start()
    try:
        with closing(Connection(standby.port)) as connection:
            at, until = 0, time.time() + lasts_s
            while time.time() < until:
                request = request_bytes("GET", f"/v0/topics/{TIMES}/diff?from_seq={at}&limit={LIMIT}&wait_ms=5000")
                page = msgspec.json.decode(connection.call(request).expect(200).body)
                now = time.time()
                load.latencies_ms.extend(1000 * (now - record["data"]) for record in page["records"])
                at = page["next_from_seq"]
    finally:
        ended.set()
        writer.join()
    with closing(Control(owner.port)) as control:
        control.delete(TIMES)
    name = f"append (disk) until a standby has it, rounds every {ROUND_MS} ms, p50"
    return [
        figure(name, "ms", [load.percentile_ms(0.5)], key="behind-p50"),
        figure("... p99", "ms", [load.percentile_ms(0.99)], key="p99", at_most=ROUND_MS + 500),
    ]


def _write_times(port: int, ended: threading.Event) -> None:
    with closing(Connection(port)) as connection:
        while not ended.wait(LAG_EVERY_S):
            connection.call(append_request(TIMES, [f'{{"data":{time.time()}}}'])).expect(200)


# --- reads -----------------------------------------------------------------------------------------------------------


def _two_standbys(bench: Bench, scratch: Path, store: Store) -> list[Figure]:
    """Reads from one standby and from two. Each standby has readers in a process of their own."""
    bench.say("reads from one standby and from two")
    records = 50 * BATCH
    with ExitStack() as stack:
        owner = stack.enter_context(_daemon(scratch, "owner", store, "reads"))
        owner.start()
        with closing(Control(owner.port)) as control:
            control.create(TOPIC)
        fill(owner.port, event_requests(TOPIC, 0, records // BATCH))
        ports = []
        for name in ("first", "second"):
            standby = stack.enter_context(_daemon(scratch, name, store, "reads", role="standby"))
            standby.start()
            _follow(owner, standby, TOPIC)
            ports.append(standby.port)
        pool = stack.enter_context(ProcessPoolExecutor(len(ports)))
        seconds = READ_S / (5 if bench.quick else 1)
        found = bench.in_turn(
            {key: partial(_read_all, pool, ports[:count], records, seconds) for key, count in (("one", 1), ("two", 2))}
        )
    aim = 1.8 if (os.cpu_count() or 1) >= ENOUGH_CORES else None
    return [
        figure(f"diff, limit {LIMIT}, {CONNECTIONS} readers of one standby", "records/s", found["one"], key="reads"),
        figure(f"... {CONNECTIONS} readers of each of two", "records/s", found["two"], key="two"),
        figure("... times one", "x", times(found["two"], found["one"]), key="times", at_least=aim),
    ]


def _read_all(pool: ProcessPoolExecutor, ports: list[int], records: int, seconds: float) -> float:
    return sum(pool.map(_read, ports, [records] * len(ports), [seconds] * len(ports)))


def _read(port: int, records: int, seconds: float) -> float:
    """Records a second that the readers of one daemon get."""
    walk = Walk(CONNECTIONS, "POST", LIMIT, records, spread=True)
    return run_load(port, CONNECTIONS, seconds / 5, seconds, walk.request, walk.check).records_per_s


# --- a takeover ------------------------------------------------------------------------------------------------------


def _takeover(bench: Bench, scratch: Path, store: Store) -> list[Figure]:
    """From SIGKILL of the owner until its standby takes an append."""
    topics, batches = (50, 1) if bench.quick else (1000, 1)
    records = topics * batches * BATCH
    bench.say(f"takeover with {records:,} records in {topics:,} topics")
    with _pair(scratch, store, "takeover") as (owner, standby):
        with closing(Control(owner.port)) as control:
            for number in range(topics):
                control.create(f"{TOPIC}-{number}")
        for number in range(topics):
            fill(owner.port, event_requests(f"{TOPIC}-{number}", number * BATCH, batches))
        _follow(owner, standby, f"{TOPIC}-{topics - 1}")
        owner.kill()
        began = time.perf_counter()
        request = append_request(f"{TOPIC}-0", [plain_record(0)])
        while not _takes(standby.port, request):
            if time.perf_counter() - began > TAKEN_S:
                raise RuntimeError(f"nobody has taken over after {TAKEN_S:.0f} s")
            time.sleep(0.02)
        took = time.perf_counter() - began
    name = f"takeover, {records:,} records in {topics:,} topics, lease {LEASE_MS // 1000} s, kill until an append"
    return [figure(name, "s", [took], key="takeover", at_most=LEASE_MS / 1000 + 2)]


def _takes(port: int, request: bytes) -> bool:
    """Return True if a daemon takes an append. While it begins again, there may be no answer."""
    try:
        with closing(Connection(port)) as connection:
            return connection.call(request).status == 200
    except (OSError, EOFError):
        return False
