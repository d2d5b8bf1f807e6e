"""Reading segments that are in the bucket, and the same records in local segments."""

from __future__ import annotations

from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.bench import Bench, Control, quiet
from benchmarks.bucket_stores import Store, event_requests, wait_until
from benchmarks.client import Load, run_load
from benchmarks.diff import BATCH, TOPIC, Walk, fill
from benchmarks.figures import Figure, figure
from benchmarks.references import percentiles
from daemon_process import DaemonProcess

LOCAL, COLD = "local", "bucket"
SEGMENT_RECORDS: Final = 10_000
MEASURED_S: Final = 5.0
LIMIT: Final = 1000
"""Records of a page: the default, and the most that a daemon answers with."""


def cold_read_figures(bench: Bench, scratch: Path, store: Store) -> list[Figure]:
    """One reader and four, of records in the bucket and of the same in local segments, in turn. Nothing is cached."""
    segments = 8 if bench.quick else 40
    bench.say(f"{segments} segments of {SEGMENT_RECORDS:,} records in {store.name}")
    in_bucket = {"bucket": store.url("reads"), "bucket_base_ms": 10_000, "hot_retain_segments": 1, "relocate_ms": 200}
    figures = []
    with ExitStack() as stack:
        ports = {}
        for place, settings in ((LOCAL, {}), (COLD, in_bucket)):
            directory = scratch / f"reads-{place}"
            daemon = stack.enter_context(DaemonProcess(directory, **quiet({"cache_bytes": 0, **settings})))
            daemon.variables = dict(store.variables)
            daemon.start()
            ports[place] = daemon.port
            _fill(daemon.port, segments)
        with closing(Control(ports[COLD])) as control:
            wait_until("the segments are in the bucket", lambda: control.segments().get("cold", 0) >= segments - 2)
        records = (segments - 2) * SEGMENT_RECORDS
        for connections in (1, 4):
            measures = {place: partial(_read, bench, port, connections, records) for place, port in ports.items()}
            for place, loads in bench.in_turn(measures).items():
                figures += _figures(store, place, connections, loads)
    return figures


def _figures(store: Store, place: str, connections: int, loads: list[Load]) -> list[Figure]:
    where = f"in {store.name}" if place == COLD else "in local segments"
    readers = "one reader" if connections == 1 else f"{connections} readers"
    rates = [load.records_per_s for load in loads]
    aim = 100_000 if place == COLD and connections > 1 else None
    return [
        figure(
            f"diff, limit {LIMIT}, {readers}, {where}, nothing cached",
            "records/s",
            rates,
            key=f"read-{place}-{connections}",
            at_least=aim,
        ),
        figure("... p50 of an answer", "ms", percentiles(loads, 0.5)),
    ]


def _fill(port: int, segments: int) -> None:
    with closing(Control(port)) as control:
        control.create(TOPIC)
        for number in range(segments):
            fill(port, event_requests(TOPIC, number * SEGMENT_RECORDS, SEGMENT_RECORDS // BATCH))
        control.checkpoint()


def _read(bench: Bench, port: int, connections: int, records: int) -> Load:
    walk = Walk(connections, "POST", LIMIT, records, spread=True)
    return run_load(
        port, connections, bench.warm_up_s, MEASURED_S / (4 if bench.quick else 1), walk.request, walk.check
    )
