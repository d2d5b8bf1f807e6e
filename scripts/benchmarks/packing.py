"""Packed segments: what they save, what reading them costs, and what packing does to appends."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
from demonstration import load_flights

from benchmarks.append import append_latencies, append_singles
from benchmarks.bench import Bench, Control, CountAppended, append_request, plain_record
from benchmarks.client import Answer, Load, request_bytes, run_load, run_while
from benchmarks.diff import BATCH, Walk, fill
from benchmarks.figures import Figure, figure
from benchmarks.references import echo_reference, percentiles, sync_reference

KINDS = ("flights", "events")
PLAIN, PACKED, OTHER = "plain", "packed", "other"

RECLAIM_MS = 500
SEGMENT_RECORDS = 10_000
MOST_S = 300.0

MOST_RATIO = {"flights": 0.25, "events": None}
"""The share of the bytes that packed segments may have."""

LEAST_READ = 0.7
"""How fast packed segments have to be read, as a share of the rate of plain ones."""


def run(bench: Bench) -> list[Figure]:
    """Figures of flights, then of events, then of appends beside packing."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    records = 20_000 if bench.quick else 200_000
    for kind, datas in (("flights", _flights(records)), ("events", _events(records // 4))):
        figures += _of_kind(bench, kind, datas)
    return [*figures, *_beside(bench, _flights(records))]


def _flights(records: int) -> list[bytes]:
    """Return flights as JSON, 300 bytes each."""
    flights = load_flights()
    return [flight.data for flight in flights[:records]]


def _events(records: int) -> list[bytes]:
    """Return events of 1 KB: ids and numbers by chance, and a text of words."""
    chance = random.Random(1)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(chance.choices(letters, k=chance.randint(3, 9))) for _ in range(2000)]
    events = []
    for i in range(records):
        event = {
            "event": chance.choice(("order.created", "order.paid", "order.shipped")),
            "id": f"{chance.getrandbits(128):032x}",
            "user": chance.randrange(100_000),
            "at": 1_700_000_000_000 + 17 * i,
            "total": round(chance.random() * 1000, 2),
            "note": " ".join(chance.choices(words, k=120)),
        }
        events.append(msgspec.json.encode(event))
    return events


def _batches(topic: str, datas: list[bytes]) -> list[bytes]:
    records = [f'{{"data":{data.decode()}}}' for data in datas]
    return [append_request(topic, records[at : at + BATCH]) for at in range(0, len(records), BATCH)]


def _of_kind(bench: Bench, kind: str, datas: list[bytes]) -> list[Figure]:
    """Figures of a plain and a packed topic with the same records, with no cache for payloads."""
    bench.say(f"{len(datas):,} {kind}")
    settings = {"cache_bytes": 0, "reclaim_ms": RECLAIM_MS, "segment_max_events": SEGMENT_RECORDS}
    with bench.daemon(**settings) as daemon:
        control = Control(daemon.port)
        directories = {}
        for topic, compression in ((PLAIN, "off"), (PACKED, "zstd")):
            control.create(topic, compression=compression)
            directories[topic] = daemon.data_dir / "topics" / f"{control.state(topic)['epoch']:016x}"
            fill(daemon.port, _batches(topic, datas))
        control.call("POST", f"/v0/topics/{PLAIN}/seal", {})
        plain = data_bytes(directories[PLAIN])
        began = time.perf_counter()
        control.call("POST", f"/v0/topics/{PACKED}/seal", {})
        packing_s = _until_packed(directories[PACKED], plain) - began
        stored = data_bytes(directories[PACKED])
        bench.say(f"reading {kind}")
        rates = bench.in_turn(
            {topic: partial(_read, bench, daemon.port, topic, len(datas)) for topic in (PLAIN, PACKED)}
        )
        singles = bench.in_turn(
            {topic: partial(_read_ones, bench, daemon.port, topic, len(datas)) for topic in (PLAIN, PACKED)}
        )
        control.close()
    mib = 1 << 20
    name = "flights as JSON" if kind == "flights" else "events of 1 KB"
    plain_rates = [load.records_per_s for load in rates[PLAIN]]
    packed_rates = [load.records_per_s for load in rates[PACKED]]
    slower = [a / b for a, b in zip(packed_rates, plain_rates, strict=True)]
    plain_p50, packed_p50 = (percentiles(singles[topic], 0.5) for topic in (PLAIN, PACKED))
    longer = [a / b for a, b in zip(packed_p50, plain_p50, strict=True)]
    return [
        figure(f"`.data` of {len(datas):,} {name}", "MiB", [plain / mib], key=kind),
        figure("... packed, share of it", "x", [stored / plain], key="ratio", at_most=MOST_RATIO[kind]),
        figure("... packed in the background at", "MiB/s", [plain / mib / packing_s], key="pack-rate"),
        figure(f"diff, limit 1000, {name}, plain, nothing cached", "records/s", plain_rates, key=f"{kind}-read"),
        figure("... packed", "records/s", packed_rates, key="packed"),
        figure("... packed / plain", "x", slower, key="times", at_least=LEAST_READ),
        figure(f"one record by seq, {name}, plain, p50", "ms", plain_p50, key=f"{kind}-one"),
        figure("... packed", "ms", packed_p50, key="packed"),
        figure("... packed / plain", "x", longer, key="times"),
    ]


def _read(bench: Bench, port: int, topic: str, records: int) -> Load:
    """Two connections read a topic from front to back, again and again."""
    walk = Walk(2, "POST", 1000, records // 1000 * 1000, spread=True, topic=topic)
    return run_load(port, 2, bench.warm_up_s, bench.measured_s, walk.request, walk.check)


def _read_ones(bench: Bench, port: int, topic: str, records: int) -> Load:
    """One connection reads single records, at any place."""
    chance = random.Random(3)

    def request(_connection: int) -> bytes:
        return request_bytes("GET", f"/v0/topics/{topic}/records/{chance.randrange(records) + 1}")

    def check(_connection: int, answer: Answer) -> int:
        answer.expect(200)
        return 1

    return run_load(port, 1, bench.warm_up_s, bench.measured_s, request, check)


def _beside(bench: Bench, datas: list[bytes]) -> list[Figure]:
    """Appends of single records before packing, and while it goes on."""
    settings = {"reclaim_ms": RECLAIM_MS, "segment_max_events": SEGMENT_RECORDS}
    with bench.daemon(**settings) as daemon:
        control = Control(daemon.port)
        control.create(PACKED, compression="off")
        control.create(OTHER, durability="disk", compression="off")
        fill(daemon.port, _batches(PACKED, datas))
        control.call("POST", f"/v0/topics/{PACKED}/seal", {})
        directory = daemon.data_dir / "topics" / f"{control.state(PACKED)['epoch']:016x}"
        plain = data_bytes(directory)
        bench.say("appends beside packing")
        request = append_request(OTHER, [plain_record(0)])
        before = bench.repeat(append_singles, bench, daemon.port, request)
        control.call("PUT", f"/v0/topics/{PACKED}", {"compression": "zstd"})
        control.checkpoint()
        beside = run_while(daemon.port, _is_packing(directory, plain), request, CountAppended(1))
        control.close()
    figures: list[Figure] = []
    for when, loads, p99 in (("before", before, 1), ("beside", [beside], 2)):
        text = "before packing" if when == "before" else "while segments are packed"
        figures += append_latencies(f"append, one record, one connection, disk, {text}", f"append-{when}", loads, p99)
    return figures


def data_bytes(directory: Path) -> int:
    """Bytes of all `.data` of a topic."""
    total = 0
    for path in directory.glob("seg-*.data"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue
    return total


def packed_share(directory: Path) -> float:
    """The share of the `.data` of a topic that are packed."""
    heads = []
    for path in directory.glob("seg-*.data"):
        with path.open("rb") as file:
            heads.append(file.read(8) == b"TOPICSZ1")
    return sum(heads) / max(len(heads), 1)


def _is_packing(directory: Path, plain: int) -> Callable[[], bool]:
    """Whether there are plain files left; asked as often as one likes."""
    began = looked_at = time.perf_counter()

    def look() -> bool:
        nonlocal looked_at
        now = time.perf_counter()
        if now - looked_at < 0.1:
            return True
        looked_at = now
        if now - began > MOST_S:
            raise RuntimeError(f"{data_bytes(directory):,} of {plain:,} bytes are left after {MOST_S:.0f} s")
        return packed_share(directory) < 1

    return look


def _until_packed(directory: Path, plain: int) -> float:
    """Wait until all files are packed. Returns when that was."""
    is_packing = _is_packing(directory, plain)
    while is_packing():
        time.sleep(0.02)
    return time.perf_counter()
