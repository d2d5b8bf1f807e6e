"""What a bucket costs, and what comes of it: appends beside the archive, how it keeps up, restores, objects and bytes.

Three daemons run at the same time, one without a bucket, one that archives to a directory, and one that archives to a
server that speaks S3. They are measured in turn, and each archive ends its work before the next daemon is measured.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record, quiet
from benchmarks.bucket_reads import cold_read_figures
from benchmarks.bucket_stores import S3, Store, event_data, event_requests, made_stores, wait_until
from benchmarks.client import Load, run_load
from benchmarks.diff import BATCH, fill
from benchmarks.figures import Figure, figure
from benchmarks.recovery import start_references
from benchmarks.references import echo_reference, percentiles, sync_reference
from daemon_process import DaemonProcess

TOPIC: Final = "bench"
CONNECTIONS: Final = 4
TOPICS: Final = 4
"""Of the directory that is restored."""

OFF: Final = "off"

SINGLE_S: Final = 5.0
LOAD_S: Final = 10.0
"""How long single appends and batches are measured (s): several rounds, which are cut every 2 s."""

QUICK_S: Final = 2.5

DISTINCT: Final = 256
"""Batches that differ, so that rounds are as hard to compress as what users write."""

RESTORES: Final[Mapping[str, tuple[str, ...]]] = {"full": ("--full",), "lazy": ()}
"""The kinds of restore, with their options."""

LARGE: Final = 10_000_000
"""Records of the restore that must be ready within 10 s."""


def run(bench: Bench) -> list[Figure]:
    """Figures of appends beside each other, then of cold reads, then of a restore from each store."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.scratch() as scratch, made_stores(scratch) as stores:
        with ExitStack() as stack:
            daemons = {OFF: stack.enter_context(_archiving(scratch / OFF, None))}
            daemons |= {key: stack.enter_context(_archiving(scratch / key, one)) for key, one in stores.items()}
            figures += _singles(bench, daemons)
            figures += _batches(bench, daemons)
        figures += cold_read_figures(bench, scratch, stores[S3])
        figures += start_references(bench)
        for key, store in stores.items():
            figures += _restores(bench, scratch, key, store)
        figures += _large_restore(bench, scratch, stores[S3])
    return figures


# --- daemons ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Archiving:
    """A daemon, with a store or without."""

    port: int
    store: Store | None
    prefix: str

    @property
    def bucket(self) -> str:
        """What the names of figures say of it."""
        return "no bucket" if self.store is None else f"a bucket in {self.store.name}"

    def settle(self) -> float:
        """Wait until the bucket has everything. Returns the seconds that took."""
        began = time.perf_counter()
        if self.store is not None:
            with closing(Control(self.port)) as control:
                wait_until("the bucket has everything", partial(_is_archived, control))
        return time.perf_counter() - began


@contextmanager
def _archiving(directory: Path, store: Store | None, **settings: object) -> Iterator[Archiving]:
    """A daemon that has archived what it found, stopped in order at the end."""
    prefix = directory.name
    if store is not None:
        settings["bucket"] = store.url(prefix)
        if not store.variables:
            Path(store.url(prefix).removeprefix("file://")).mkdir()
    with DaemonProcess(directory, **quiet(settings)) as daemon:
        if store is not None:
            daemon.variables = dict(store.variables)
        daemon.start()
        one = Archiving(daemon.port, store, prefix)
        if store is not None:
            one.settle()
            wait_until("there is a base", lambda: store.kinds(prefix)["bases"][0] > 0)
        yield one
        daemon.stop()


def _is_archived(control: Control) -> bool:
    """True twice in a row: what was acked without a sync is synced by then."""
    for look in range(2):
        state = control.call("GET", "/v0/ready")["bucket"]
        if state["state"] != "working" or state["lag_bytes"]:
            return False
        time.sleep(0.1 if look == 0 else 0.0)
    return True


# --- appends ---------------------------------------------------------------------------------------------------------


def _singles(bench: Bench, daemons: Mapping[str, Archiving]) -> list[Figure]:
    """Appends of one record."""
    request = append_request(TOPIC, [plain_record(0)])
    figures = []
    for durability in ("disk", "fsync"):
        bench.say(f"one record, {CONNECTIONS} connections, {durability}, with and without a bucket")
        loads = bench.in_turn({key: partial(_single, bench, one, durability, request) for key, one in daemons.items()})
        for key, found in loads.items():
            name = f"append, one record, {CONNECTIONS} connections, {durability}, {daemons[key].bucket}"
            figures += single_figures(name, f"one-{durability}-{key}", found, loads[OFF] if key != OFF else None)
    return figures


def single_figures(name: str, key: str, loads: Sequence[Load], without: Sequence[Load] | None) -> list[Figure]:
    """Latencies, and how many times as long they are as those without a bucket, measured in turn with them."""
    figures = [
        figure(f"{name}, p50", "ms", percentiles(loads, 0.5), key=f"{key}-p50"),
        figure("... p99", "ms", percentiles(loads, 0.99)),
    ]
    if without is not None:
        for share, label, aim in ((0.5, "p50", 1.1), (0.99, "p99", 1.3)):
            values = times(percentiles(loads, share), percentiles(without, share))
            figures.append(figure(f"... {label}, times that without", "x", values, key=f"{label}-times", at_most=aim))
    return figures


def times(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """Each of the ones, divided by what was measured in the same turn."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def _single(bench: Bench, one: Archiving, durability: str, request: bytes) -> Load:
    return _load(one, durability, 1, lambda _: request, bench.warm_up_s, QUICK_S if bench.quick else SINGLE_S)


def _load(
    one: Archiving,
    durability: str,
    batch: int,
    request: Callable[[int], bytes],
    warm_up_s: float,
    measured_s: float,
    after: Callable[[Control], None] = lambda _: None,
) -> Load:
    """One repetition on a topic of its own; `after` is called at its end, before the archive has ended its work."""
    with closing(Control(one.port)) as control:
        control.create(TOPIC, durability=durability)
        check = CountAppended(batch)
        load = run_load(one.port, CONNECTIONS, warm_up_s, measured_s, request, check)
        after(control)
        control.expect_count(TOPIC, check.total)
        control.delete(TOPIC)
    one.settle()
    return load


# --- batches, and how the archive keeps up ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogState:
    """How much log there is, and how much of it the bucket lacks."""

    written: float
    lag: float

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> LogState:
        return cls(metrics["topics_wal_bytes_written_total"], metrics.get("topics_bucket_lag_bytes", 0.0))


def archived_share(before: LogState, after: LogState) -> float:
    """How much of the log that was written in between was archived in between, in percent."""
    written = after.written - before.written
    return 100 * (written - (after.lag - before.lag)) / written


@dataclass(frozen=True, slots=True)
class Sample:
    """Batches, and what the archive did beside them."""

    load: Load
    share: float
    """Of the log that was archived meanwhile, in percent."""
    objects: float
    bytes: float
    """Of rounds, for each GB of data."""


def _batches(bench: Bench, daemons: Mapping[str, Archiving]) -> list[Figure]:
    bench.say(f"batches of {BATCH}, {CONNECTIONS} connections, disk, with and without a bucket")
    requests = event_requests(TOPIC, 0, DISTINCT)
    samples = bench.in_turn(
        {key: partial(_batch, bench, one, requests) for key, one in daemons.items()}, times=bench.few
    )
    without = [sample.load.records_per_s for sample in samples[OFF]]
    figures = []
    for key, found in samples.items():
        rates = [sample.load.records_per_s for sample in found]
        name = f"append, batches of {BATCH}, {CONNECTIONS} connections, disk, {daemons[key].bucket}"
        figures.append(figure(name, "records/s", rates, key=f"batches-{key}", references=("echo-1000",)))
        if key == OFF:
            continue
        figures += [
            figure("... times that without", "x", times(rates, without), key="times"),
            figure(
                "... archived meanwhile, of what was appended",
                "%",
                [sample.share for sample in found],
                key="archived",
                at_least=60,
            ),
            figure("... rounds for each GB of data", "1/GB", [one.objects for one in found], key="objects"),
            figure("... bytes of rounds for each byte of data", "x", [one.bytes for one in found], key="bytes"),
        ]
    return figures


def _batch(bench: Bench, one: Archiving, requests: Sequence[bytes]) -> Sample:
    numbers = count()
    before, after = [], []
    with closing(Control(one.port)) as control:
        before.append(control.metrics())
    load = _load(
        one,
        "disk",
        BATCH,
        lambda _: requests[next(numbers) % len(requests)],
        0.0,
        QUICK_S if bench.quick else LOAD_S,
        lambda control: after.append(control.metrics()),
    )
    with closing(Control(one.port)) as control:
        settled = control.metrics()
    gigabytes = load.records * len(event_data(0)) / 1e9
    rounds, stored = (
        settled.get(name, 0.0) - before[0].get(name, 0.0)
        for name in ("topics_bucket_rounds_total", "topics_bucket_round_bytes_total")
    )
    share = archived_share(LogState.of(before[0]), LogState.of(after[0]))
    return Sample(load, share, rounds / gigabytes, stored / 1e9 / gigabytes)


# --- restores --------------------------------------------------------------------------------------------------------


def _restores(bench: Bench, scratch: Path, key: str, store: Store) -> list[Figure]:
    """Each kind of restore."""
    records = 50_000 if bench.quick else 1_000_000
    bench.say(f"restore of {records:,} records from {store.name}")
    prefix = f"restore-{key}"
    based = records * 9 // 10
    kinds = _archived(scratch / prefix, store, based, records)
    gigabytes = based * len(event_data(0)) / 1e9
    put = [kinds[kind] for kind in ("bases", "packs", "segments")]
    name = f"first base of {based:,} records in {store.name}"
    figures = [
        figure(f"{name}, objects for each GB of data", "1/GB", [sum(n for n, _ in put) / gigabytes], key=f"base-{key}"),
        figure(
            f"{name}, bytes for each byte of data",
            "x",
            [sum(size for _, size in put) / 1e9 / gigabytes],
            key=f"base-{key}-bytes",
        ),
    ]
    for kind, options in RESTORES.items():
        found = bench.repeat(partial(_restore, scratch, store, prefix, options, records), times=bench.few)
        what = f"{records:,} records from {store.name}, {kind}"
        figures += [
            figure(f"restore of {what}", "s", [restored for restored, _ in found], key=f"restore-{key}-{kind}"),
            figure("... the start after it", "s", [took for _, took in found], key="start", references=("empty",)),
        ]
    return figures


def _archived(directory: Path, store: Store, based: int, records: int) -> dict[str, tuple[int, int]]:
    """Archive a directory of which some records are in a base and the rest in rounds, and remove it. Returns what the
    base took."""
    with _archiving(directory, None) as one:
        _fill(one.port, 0, based)
    with _archiving(directory, store) as one:
        kinds = store.kinds(directory.name)
        _fill(one.port, based, records)
        one.settle()
    shutil.rmtree(directory)
    return kinds


def _large_restore(bench: Bench, scratch: Path, store: Store) -> list[Figure]:
    """From the command until the daemon is ready, once."""
    records = LARGE // 50 if bench.quick else LARGE
    bench.say(f"restore of {records:,} records from {store.name}, lazy")
    prefix = "restore-large"
    _archived(scratch / prefix, store, records * 99 // 100, records)
    restored, started = _restore(scratch, store, prefix, (), records)
    name = f"restore of {records:,} records from {store.name}, lazy, from the command until ready"
    return [figure(name, "s", [restored + started], key="restore-large", at_most=10, references=("empty",))]


def _fill(port: int, first: int, last: int) -> None:
    with closing(Control(port)) as control:
        names = [f"bench-{number}" for number in range(TOPICS)]
        for name in names:
            if first == 0:
                control.create(name)
    for at in range(first, last, BATCH):
        fill(port, event_requests(names[at // BATCH % TOPICS], at, 1))


def _restore(scratch: Path, store: Store, prefix: str, options: Sequence[str], records: int) -> tuple[float, float]:
    """Seconds of the command, and of the first start on what it makes, which must have all records."""
    directory = scratch / "restored"
    began = time.perf_counter()
    store.command("restore", store.url(prefix), "--data-dir", str(directory), *options)
    restored = time.perf_counter() - began
    with DaemonProcess(directory, **quiet({})) as daemon:
        daemon.variables = dict(store.variables)
        started = daemon.start()
        with closing(Control(daemon.port)) as control:
            found = sum(control.state(f"bench-{number}")["count"] for number in range(TOPICS))
        daemon.kill()
    if found != records:
        raise RuntimeError(f"{found} records came back, {records} were archived")
    shutil.rmtree(directory)
    return restored, started
