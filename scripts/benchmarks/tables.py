"""Topics that keep the newest record of each tag: what a table takes on disk and in memory after it was overwritten ten
times, how fast that goes, and how long a page of it takes."""

from __future__ import annotations

import json
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from benchmarks.bench import PLAIN_DATA, Bench, Control, append_request
from benchmarks.client import Connection, WrongAnswer, request_bytes
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.machine import resident_mib
from benchmarks.reclaim import segment_bytes
from benchmarks.references import echo_reference
from daemon_process import DaemonProcess

ROUNDS: Final = 10
RECLAIM_MS: Final = 500
CHECKPOINT_MS: Final = 1000
REST_S: Final = 8.0
"""The reclaimer rests if no file of a segment has changed for so long: several checkpoints and scans."""
MOST_S: Final = 900.0
PAGE: Final = 100
TAG_BYTES: Final = 12
FRAME_BYTES: Final = 29 + TAG_BYTES + 4 + len(PLAIN_DATA) + 9
INDEX_BYTES: Final = 20


def run(bench: Bench) -> list[Figure]:
    """Figures of a table whose keys are overwritten in rounds, each in another order, and of one whose keys are
    overwritten at random."""
    keys = 50_000 if bench.quick else 1_000_000
    bench = replace(bench, many=True)
    return [*echo_reference(bench), *_in_rounds(bench, keys), *_at_random(bench, keys // 10)]


def _in_rounds(bench: Bench, keys: int) -> list[Figure]:
    chance = random.Random(1)
    with bench.daemon(reclaim_ms=RECLAIM_MS, checkpoint_ms=CHECKPOINT_MS) as daemon:
        control = Control(daemon.port)
        control.create(TOPIC, keep_per_tag=1)
        control.close()  # an idle connection is closed by the daemon
        order = list(range(keys))
        rates = []
        for number in range(ROUNDS + 1):
            bench.say(f"{keys:,} keys, round {number} of {ROUNDS}")
            chance.shuffle(order)
            batches = [_overwrite(order[at : at + BATCH]) for at in range(0, keys, BATCH)]
            began = time.perf_counter()
            fill(daemon.port, batches)
            rates.append(keys / (time.perf_counter() - began))
        control = Control(daemon.port)
        _expect(control, keys)
        control.checkpoint()
        directory = _directory(daemon, control)
        control.close()
        rest_s = _until_rest(bench, directory)
        size = segment_bytes(directory)
        page, one = _pages(bench, daemon.port, keys)
        with_table, start_s = _restarted(daemon)
        control = Control(daemon.port)
        _expect(control, keys)
        control.call("PUT", f"/v0/topics/{TOPIC}", {"keep_per_tag": 0})
        control.close()
        without, _ = _restarted(daemon)
    need = keys * (FRAME_BYTES + INDEX_BYTES)
    each = (with_table - without) * (1 << 20) / keys - TAG_BYTES
    aims = (2.5, 200.0) if not bench.quick else (None, None)
    return [
        figure(f"{keys:,} keys, written once, batches of {BATCH}", "records/s", rates[:1], key="write"),
        figure(f"... then overwritten {ROUNDS} times, each time in another order", "records/s", rates[1:], key="over"),
        figure("segment files when the reclaimer rests", "MiB", [size / (1 << 20)], key="size"),
        figure("... times the frames and index of the live records", "x", [size / need], key="need", at_most=aims[0]),
        figure("... after the last append", "s", [rest_s], key="rest"),
        figure("memory for each key, beside the tag", "bytes", [each], key="memory", at_most=aims[1]),
        figure("start with the table", "s", [start_s], key="start"),
        *_latencies(f"a page of {PAGE} newest records, at random places", "page", page),
        *_latencies("the newest record of a tag", "one", one),
    ]


def _at_random(bench: Bench, keys: int) -> list[Figure]:
    """The same number of overwrites, but each of a key by chance: some live records are as old as the table."""
    chance = random.Random(2)
    with bench.daemon(reclaim_ms=RECLAIM_MS, checkpoint_ms=CHECKPOINT_MS) as daemon:
        control = Control(daemon.port)
        control.create(TOPIC, keep_per_tag=1)
        control.close()
        bench.say(f"{keys:,} keys, overwritten at random")
        fill(daemon.port, [_overwrite(range(at, at + BATCH)) for at in range(0, keys, BATCH)])
        overwrites = [_overwrite([chance.randrange(keys) for _ in range(BATCH)]) for _ in range(ROUNDS * keys // BATCH)]
        began = time.perf_counter()
        fill(daemon.port, overwrites)
        rate = ROUNDS * keys / (time.perf_counter() - began)
        control = Control(daemon.port)
        _expect(control, keys)
        control.checkpoint()
        directory = _directory(daemon, control)
        control.close()
        _until_rest(bench, directory)
        size = segment_bytes(directory)
    need = keys * (FRAME_BYTES + INDEX_BYTES)
    return [
        figure(f"{keys:,} keys, {ROUNDS} times as many overwrites at random", "records/s", [rate], key="random"),
        figure("... files times the frames and index of the live records", "x", [size / need], key="need"),
    ]


def _expect(control: Control, keys: int) -> None:
    count = control.state(TOPIC)["count"]
    if count != keys:
        raise WrongAnswer(f"{count} records for {keys} keys")


def _overwrite(keys: list[int] | range) -> bytes:
    return append_request(TOPIC, [f'{{"data":{PLAIN_DATA},"tag":"{_tag(key)}"}}' for key in keys])


def _tag(key: int) -> str:
    return f"key-{key:08}"


def _directory(daemon: DaemonProcess, control: Control) -> Path:
    return daemon.data_dir / "topics" / f"{control.state(TOPIC)['epoch']:016x}"


def _until_rest(bench: Bench, directory: Path) -> float:
    """Wait until no file of a segment changes any more. Return how long it took until the last change (s)."""
    bench.say("waiting until the reclaimer has nothing left to do")
    began = changed_at = time.perf_counter()
    size = segment_bytes(directory)
    while (now := time.perf_counter()) - changed_at < REST_S:
        if now - began > MOST_S:
            raise RuntimeError(f"the reclaimer is still at work after {MOST_S:.0f} s")
        time.sleep(0.2)
        if (found := segment_bytes(directory)) != size:
            size, changed_at = found, time.perf_counter()
    return changed_at - began


def _restarted(daemon: DaemonProcess) -> tuple[float, float]:
    """Stop the daemon and start it again. Return its resident memory, and how long the start took (s)."""
    daemon.stop()
    began = time.perf_counter()
    daemon.start()
    took = time.perf_counter() - began
    return resident_mib(daemon.pid), took


def _pages(bench: Bench, port: int, keys: int) -> tuple[list[float], list[float]]:
    """Times (ms) of pages at random places, and of single tags."""
    chance = random.Random(3)
    connection = Connection(port)
    times: tuple[list[float], list[float]] = ([], [])
    count = 100 if bench.quick else 1000
    for _ in range(count):
        key = chance.randrange(keys // PAGE) * PAGE
        for found, query in zip(times, (f"prefix={_tag(key)[:-2]}", f"tag={_tag(key)}"), strict=True):
            request = request_bytes("GET", f"/v0/topics/{TOPIC}/latest?{query}")
            began = time.perf_counter()
            answer = connection.call(request)
            found.append(1000 * (time.perf_counter() - began))
            body = json.loads(answer.body)
            if len(body.get("records", [body.get("record")])) != (PAGE if "prefix" in query else 1):
                raise WrongAnswer(f"{query}: {answer.body[:300]!r}")
    connection.close()
    return times


def _latencies(name: str, key: str, times: list[float]) -> list[Figure]:
    cuts = statistics.quantiles(times, n=100)
    return [
        figure(f"{name}, p50", "ms", [cuts[49]], key=f"{key}-p50"),
        figure(f"{name}, p99", "ms", [cuts[98]], key=f"{key}-p99"),
    ]
