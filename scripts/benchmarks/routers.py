"""Routers: what a hop adds to a delivery, how many copies there are in a second, and what they cost on disk and later.

Every figure stands beside one of the same run without a router: the delivery of the same record at the source, the
append of the same batch to a topic that nobody forwards from, the start with the same records and no copies. Records
carry their numbers; what arrives in a dest must be what was appended to the source, once and in its order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec

from benchmarks.bench import (
    HOLD_MS,
    NEVER_MS,
    PLAIN_DATA,
    Bench,
    Control,
    CountAppended,
    append_request,
    plain_record,
    quiet,
)
from benchmarks.client import Connection, WrongAnswer, request_bytes, run_while
from benchmarks.diff import BATCH, TOPIC, fill, read_all
from benchmarks.figures import REFERENCE, Figure, figure, slug
from benchmarks.live import EventWatcher, Run, open_stream, percentile, run_once
from benchmarks.machine import cpu_seconds
from benchmarks.recovery import SETTINGS as UNCHECKPOINTED
from benchmarks.references import echo_reference, sync_reference
from benchmarks.watch import wait_until_left
from daemon_process import DaemonProcess
from topics.storage.recovery.recovered_state import shard_of

SHARDS = 2
"""So that there is another one on every machine."""

INTERVAL_S = 0.02
FAN_OUTS = (1, 10, 100)
CHAIN = 5
PATIENCE_S = 60.0
"""How long copies may take that are merely waited for."""

_NUMBERED = re.compile(rb'"\$seq":([0-9]+),"\$ts":[0-9]+,"data":"#([0-9]{8})')
_STAMP = b'"_topics_router":'


def run(bench: Bench) -> list[Figure]:
    """The reference of the disk first; then deliveries, throughput, bytes, catching up and starting."""
    bench = replace(bench, many=True)
    figures = [*sync_reference(bench), *echo_reference(bench)]
    with bench.daemon(wal_shards=SHARDS) as daemon:
        figures += _hops(bench, daemon)
        figures += _fan_outs(bench, daemon)
        figures += _reads_after_appends(bench, daemon)
    with bench.daemon(checkpoint_ms=NEVER_MS, wal_file_bytes="512MiB") as daemon:
        figures += _log_bytes(bench, daemon)  # first: topics that are deleted leave frames for later
        figures += _throughput(bench, daemon)
    figures += _catching_up(bench)
    figures += _starting(bench)
    return figures


# --- what all of it is made of ---------------------------------------------------------------------------------------


def numbered_record(number: int, tag: str | None = None) -> str:
    """100 bytes, of which the first tell the number."""
    data = f'"#{number:08}{PLAIN_DATA[10:]}'
    return f'{{"data":{data},"tag":"{tag}"}}' if tag else f'{{"data":{data}}}'


def batches_of(topic: str, records: int, batch: int = BATCH, tag: Callable[[int], str] | None = None) -> list[bytes]:
    """Requests that append records 0, 1, 2..."""
    return [
        append_request(
            topic, [numbered_record(number, tag(number) if tag else None) for number in range(first, first + batch)]
        )
        for first in range(0, records, batch)
    ]


def route(control: Control, name: str, source: str, dest: str, **fields: object) -> None:
    """A router that was not there before."""
    body = {"source": source, "dest": dest, **fields}
    control.call("PUT", f"/v0/routers/{name}", body, expect=(201,))


def is_done(control: Control, name: str) -> bool:
    """Whether the router has looked at everything."""
    return not control.call("GET", f"/v0/routers/{name}", expect=(200,))["lag"]


def wait_until_copied(control: Control, source: str, last: str, copies: int) -> None:
    """All routers of the source have looked at everything, and each has made so many copies. `last` is one of them,
    the one to be asked again and again."""
    end = time.perf_counter() + PATIENCE_S
    while True:
        if is_done(control, last):
            routers = control.call("GET", f"/v0/routers?source={source}&page_size=1000", expect=(200,))["routers"]
            if not any(router["lag"] for router in routers):
                break
        if time.perf_counter() > end:
            raise WrongAnswer(f"{source}: not everything was copied in {PATIENCE_S:.0f} s")
        time.sleep(0.005)
    made = {router["forwarded_total"] for router in routers}
    if made != {copies}:
        raise WrongAnswer(f"{source}: routers have made {made} copies, not {copies} each")


def expect_copies(port: int, topic: str, numbers: Sequence[int], *, stamped: bool = False) -> None:
    """The topic must have these records and no others, in this order and with seqs from 1 on."""
    connection = Connection(port)
    at = 0
    while True:
        request = request_bytes("POST", f"/v0/topics/{topic}/diff", b'{"from_seq":%d,"limit":1000}' % at)
        body = connection.call(request).expect(200).body
        found = _NUMBERED.findall(body)
        following = msgspec.json.decode(body)["next_from_seq"]
        if not found:
            break
        expected = list(zip(range(at + 1, at + 1 + len(found)), numbers[at : at + len(found)], strict=False))
        if [(int(seq), int(number)) for seq, number in found] != expected:
            raise WrongAnswer(f"{topic}: other records than those of the source after {at}")
        if body.count(_STAMP) != (len(found) if stamped else 0):
            raise WrongAnswer(f"{topic}: {body.count(_STAMP)} stamps on {len(found)} copies after {at}")
        at = following
    connection.close()
    if at < len(numbers):
        raise WrongAnswer(f"{topic}: {at} records, expected were {len(numbers)}")


# --- append to delivery ----------------------------------------------------------------------------------------------


class Streams:
    """Opens a stream of each of these topics, one after the other."""

    def __init__(self, topics: Sequence[str]) -> None:
        self._left = iter(topics)

    def __call__(self, port: int, _topic: str) -> EventWatcher:
        return open_stream(port, next(self._left))


def paced(bench: Bench, daemon: DaemonProcess, watched: Sequence[str]) -> list[Run]:
    """Append to the first of these topics every `INTERVAL_S`, and watch all of them. Everybody must get everything in
    one order."""

    def once() -> Run:
        one = run_once(
            daemon.pid,
            daemon.port,
            watched[0],
            Streams(watched),
            len(watched),
            interval_s=INTERVAL_S,
            seconds=0.6 if bench.quick else 2.0,
        )
        orders = [numbers for numbers, _ in one.journal.delivered]
        if any(order != orders[0] for order in orders):
            raise WrongAnswer(f"{watched}: the order of the copies is not that of the source")
        with closing(Control(daemon.port)) as control:
            wait_until_left(control)
        return one

    return bench.repeat(once, times=bench.few)


def at_watcher(one: Run, place: int) -> list[float]:
    """Milliseconds from sending to delivery at one of the watchers."""
    numbers, times = one.journal.delivered[place]
    return [(at - one.journal.sent[number]) / 1e6 for number, at in zip(numbers, times, strict=True)]


def between(one: Run, place: int) -> list[float]:
    """Milliseconds from the delivery at the first watcher, the source's, to that at another, of each record."""
    pairs = zip(one.journal.delivered[0][1], one.journal.delivered[place][1], strict=True)
    return [(later - earlier) / 1e6 for earlier, later in pairs]


def both_percentiles(
    name: str, key: str, samples: Sequence[Sequence[float]], reference: str | None = None, p50: float | None = None
) -> list[Figure]:
    """`reference` is the key of the same without what is measured, as is `key` without `-p50`; `p50` is the target."""
    figures = []
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        values = [percentile(some, share) for some in samples]
        references = None if reference is None else (f"{reference}-{label}",)
        aim = p50 if label == "p50" else None
        figures.append(
            figure(f"{name}, {label}", "ms", values, key=f"{key}-{label}", at_most=aim, references=references)
        )
    return figures


def place(control: Control, prefix: str, places: Sequence[tuple[int, str]]) -> list[str]:
    """A topic in each of these shards, of these classes: as many are made as it takes until one falls there."""
    names: list[str] = []
    made = 0
    for shard, durability in places:
        while True:
            made += 1
            name = f"{prefix}.{made}"
            control.create(name, durability=durability)
            if shard_of(control.state(name)["epoch"], SHARDS) == shard:
                names.append(name)
                break
            control.delete(name)
    return names


def chained(control: Control, topics: Sequence[str]) -> None:
    """A router from each of them to the next."""
    for source, dest in pairwise(topics):
        route(control, dest, source, dest)


DISK, ELSEWHERE = (0, "disk"), (1, "disk")
ALTERNATING = [(hop % SHARDS, "disk") for hop in range(CHAIN + 1)]


def _hops(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """Two watchers, one of the source and one of the dest, and as a reference both of one topic."""
    cases: list[tuple[str, str, list[tuple[int, str]]]] = [
        ("none-disk", "reference: no router, disk", [DISK]),
        ("hop-within", "one hop, disk, within a shard", [DISK, DISK]),
        ("hop-across", "one hop, disk, into another shard", [DISK, ELSEWHERE]),
        ("hops", f"{CHAIN} hops, disk, each into another shard", ALTERNATING),
        ("none-fsync", "reference: no router, fsync", [(0, "fsync")]),
        ("hop-fsync", "one hop, fsync into fsync, another shard", [(0, "fsync"), (1, "fsync")]),
        ("hop-mixed-within", "one hop, disk into fsync, within a shard", [DISK, (0, "fsync")]),
        ("hop-mixed", "one hop, disk into fsync, another shard", [DISK, (1, "fsync")]),
    ]
    figures = []
    for key, name, places in cases:
        bench.say(name)
        with closing(Control(daemon.port)) as control:
            topics = place(control, "hop", places)
            chained(control, topics)
        runs = paced(bench, daemon, [topics[0], topics[-1]])
        delete(daemon, topics)
        first, second = ("the source", "the dest") if len(topics) > 1 else ("a watcher", "another one")
        reference = None if len(topics) == 1 else f"none-{places[0][1]}"
        at = None if reference is None else f"{reference}-source"
        name = f"{name}, append to delivery at"
        figures += both_percentiles(f"{name} {first}", f"{key}-source", [at_watcher(one, 0) for one in runs], at)
        figures += both_percentiles(f"{name} {second}", f"{key}-dest", [at_watcher(one, 1) for one in runs], at)
        name = f"{name} {second}, after that at {first}"
        aim = 0.4 if key in {"hop-within", "hop-across"} else None
        figures += both_percentiles(name, f"{key}-added", [between(one, 1) for one in runs], p50=aim)
    return figures


def _fan_outs(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """Three watchers: of the source, and of the dests of the routers made first and last, which are served so."""
    figures = []
    for fan_out in FAN_OUTS:
        name = f"{fan_out} {'router' if fan_out == 1 else 'routers'} of one source"
        bench.say(name)
        dests = fan(daemon, fan_out)
        runs = paced(bench, daemon, [TOPIC, dests[0], dests[-1]])
        with closing(Control(daemon.port)) as control:
            wait_until_copied(control, TOPIC, dests[-1], control.state(TOPIC)["head_seq"])
        delete(daemon, [TOPIC, *dests])
        key, at = f"fan-{fan_out}", "none-disk-source"
        for watcher, where in enumerate(("source", "first", "last")):
            samples = [at_watcher(one, watcher) for one in runs]
            place = "the source" if where == "source" else f"the {where} dest"
            figures += both_percentiles(f"{name}, append to delivery at {place}", f"{key}-{where}", samples, at)
        figures += both_percentiles(f"{name}, the ack itself", f"{key}-ack", [one.journal.ack_ms() for one in runs])
        spent = [1e6 * one.server_s / (len(one.journal.sent) * fan_out) for one in runs]
        busy = [100 * one.server_s / one.seconds for one in runs]
        figures += [
            figure(f"{name}, processor of the server for a copy, append and deliveries included", "us", spent),
            figure(f"{name}, processor of the server", "%", busy, key=f"{key}-busy"),
        ]
    return figures


def fan(daemon: DaemonProcess, fan_out: int) -> list[str]:
    """A source, and routers of it; their names and their dests'."""
    with closing(Control(daemon.port)) as control:
        control.create(TOPIC, durability="disk")
        dests = [f"dest.{number}" for number in range(fan_out)]
        for dest in dests:
            route(control, dest, TOPIC, dest)
    return dests


def delete(daemon: DaemonProcess, topics: Sequence[str]) -> None:
    """The topics, and with them their routers."""
    with closing(Control(daemon.port)) as control:
        for topic in topics:
            control.delete(topic)


# --- a read after an append ------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Pair:
    """A topic that is appended to and one that is read, which must have the record by then."""

    key: str
    name: str
    appended: str
    read: str
    records: int = 0

    def measure(self, port: int, count: int) -> list[float]:
        """Milliseconds of so many diffs."""
        connection = Connection(port)
        latencies = []
        for number in range(self.records, self.records + count):
            append = append_request(self.appended, [numbered_record(number)])
            diff = request_bytes("POST", f"/v0/topics/{self.read}/diff", b'{"from_seq":%d}' % number)
            connection.call(append).expect(200)
            began = time.perf_counter()
            body = connection.call(diff).expect(200).body
            latencies.append((time.perf_counter() - began) * 1000)
            if [int(found) for _, found in _NUMBERED.findall(body)] != [number]:
                raise WrongAnswer(f"{self.name}: not record {number}, but {body[:300]!r}")
        connection.close()
        self.records += count
        return latencies


def _reads_after_appends(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """A record, its ack, and a diff of the dest: how long that takes, and how much longer than of any topic."""
    pairs = []
    what = "diff of the dest right after an append to the source"
    for number, (key, name, places) in enumerate(
        (
            ("read-none", "reference: diff right after an append, any topic", [DISK]),
            ("read-within", f"{what}, within a shard", [DISK, DISK]),
            ("read-across", f"{what}, another shard", [DISK, ELSEWHERE]),
            ("read-hops", f"{what}, {CHAIN} hops, each into another shard", ALTERNATING),
            ("read-mixed", f"{what}, disk into fsync, another shard", [DISK, (1, "fsync")]),
        )
    ):
        with closing(Control(daemon.port)) as control:
            topics = place(control, f"read.{number}", places)
            chained(control, topics)
        pairs.append(Pair(key, name, topics[0], topics[-1]))
    bench.say("diffs right after appends")
    count = 25 if bench.quick else 60
    samples = bench.in_turn({pair.key: partial(pair.measure, daemon.port, count) for pair in pairs})
    figures = []
    for pair in pairs:
        reference = None if pair is pairs[0] else pairs[0].key
        figures += both_percentiles(pair.name, pair.key, samples[pair.key], reference)
    return figures


# --- throughput ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Burst:
    """Batches that were appended as fast as they were answered, and then copied to the end."""

    appended_s: float
    copied_s: float
    """From the first append too."""
    server_s: float
    ack_ms: list[float]


def _throughput(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """Batches of 1000 over one connection. Nothing but copying goes on beside: no checkpoint is due."""
    cases = {0: 300_000, 1: 200_000, 10: 100_000, 100: 20_000}
    if bench.quick:
        cases = {0: 30_000, 1: 30_000, 10: 10_000, 100: 2_000}
    figures = []
    for fan_out, records in cases.items():
        bench.say(f"{records:,} records, {fan_out} routers")
        requests = batches_of(TOPIC, records)
        times = 1 if fan_out == FAN_OUTS[-1] else bench.few
        figures += _burst_figures(fan_out, records, bench.repeat(_burst, daemon, fan_out, requests, times=times))
    return figures


def _burst_figures(fan_out: int, records: int, bursts: Sequence[Burst]) -> list[Figure]:
    prefix = "" if fan_out else REFERENCE
    name = f"{prefix}{records:,} records in batches of {BATCH}, {fan_out} {'router' if fan_out == 1 else 'routers'}"
    key, base = f"burst-{fan_out}", "burst-0" if fan_out else None
    appended = [records / burst.appended_s for burst in bursts]
    spent = [1e6 * burst.server_s / records for burst in bursts]
    references = (base,) if base else None
    figures = [
        figure(f"{name}, appended", "records/s", appended, key=key, references=references),
        *both_percentiles(
            f"{name}, the ack of a batch", f"{key}-ack", [burst.ack_ms for burst in bursts], base and f"{base}-ack"
        ),
        figure(f"{name}, processor of the server for a record", "us", spent, key=f"{key}-record"),
    ]
    if not fan_out:
        return figures
    rates = [records / burst.copied_s for burst in bursts]
    left = [burst.copied_s - burst.appended_s for burst in bursts]
    return [
        *figures,
        figure(f"{name}, appended and copied to all dests", "records/s", rates, key=f"{key}-done"),
        figure(f"{name}, copies in all", "copies/s", [fan_out * rate for rate in rates], key=f"{key}-copies"),
        figure(f"{name}, all copied after the last ack", "s", left, key=f"{key}-left"),
        figure(
            f"{name}, processor of the server for a copy", "us", [one / fan_out for one in spent], key=f"{key}-copy"
        ),
    ]


def _burst(daemon: DaemonProcess, fan_out: int, requests: list[bytes]) -> Burst:
    records = len(requests) * BATCH
    dests = fan(daemon, fan_out)
    connection, check = Connection(daemon.port), CountAppended(BATCH)
    latencies: list[float] = []
    server_s, began = cpu_seconds(daemon.pid), time.perf_counter()
    for request in requests:
        sent = time.perf_counter()
        check(0, connection.call(request))
        latencies.append((time.perf_counter() - sent) * 1000)
    appended_s = time.perf_counter() - began
    connection.close()
    with closing(Control(daemon.port)) as control:
        if dests:
            wait_until_copied(control, TOPIC, dests[-1], records)
        copied_s = time.perf_counter() - began
        server_s = cpu_seconds(daemon.pid) - server_s
        for topic in [TOPIC, *dests]:
            control.expect_count(topic, records)
    if dests:
        expect_copies(daemon.port, dests[-1], range(records))
    delete(daemon, [TOPIC, *dests])
    return Burst(appended_s, copied_s, server_s, latencies)


# --- bytes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Written:
    """What came into the log."""

    bytes: int
    frames: int


def _written(control: Control) -> Written:
    metrics = control.metrics()
    return Written(metrics["topics_wal_bytes_written_total"], metrics["topics_wal_frames_total"])


def _log_bytes(bench: Bench, daemon: DaemonProcess) -> list[Figure]:
    """Each load once without a router and once with it; the rest is the copies'."""
    many, few = (10_000, 200) if bench.quick else (50_000, 1000)
    pick = ["tag", "Eq", "one"]

    def tag(number: int) -> str:
        return "ten" if number % 10 else "one"

    cases: list[tuple[str, str, int, int, dict[str, object], Callable[[int], str] | None]] = [
        ("log-1000", "batches of 1000", many, BATCH, {}, None),
        ("log-1", "batches of 1", few, 1, {}, None),
        ("log-tagged", "batches of 1000, tagged", many, BATCH, {}, tag),
        ("log-filter", "batches of 1000, tagged, a filter lets through 1 of 10", many, BATCH, {"filter": pick}, tag),
        ("log-once", "batches of 1000, exactly_once", many, BATCH, {"guarantee": "exactly_once"}, None),
        ("log-once-1", "batches of 1, exactly_once", few, 1, {"guarantee": "exactly_once"}, None),
    ]
    figures = []
    for key, name, records, batch, fields, tagged in cases:
        bench.say(f"bytes in the log, {name}")
        numbers = range(0, records, 10) if "filter" in fields else range(records)
        requests = batches_of(TOPIC, records, batch, tagged)
        without = _load_log(daemon, requests, batch)
        beside = _load_log(daemon, requests, batch, numbers, fields)
        more, frames = beside.bytes - without.bytes, beside.frames - without.frames
        figures += [
            figure(f"log for records of 100 bytes, {name}", "bytes/record", [without.bytes / records], key=key),
            figure("... more with a router", "bytes/copy", [more / len(numbers)], key="copy", references=(key,)),
            figure("... copies for each frame more", "", [len(numbers) / max(frames, 1)], key="frames"),
        ]
    return figures


def _load_log(
    daemon: DaemonProcess,
    requests: Sequence[bytes],
    batch: int,
    copied: Sequence[int] = (),
    fields: dict[str, object] | None = None,
) -> Written:
    """Append it all, have it copied if there are `fields` of a router, and see what that has written."""
    control = Control(daemon.port)
    control.create(TOPIC)
    control.create("dest")
    if fields is not None:
        route(control, "dest", TOPIC, "dest", **fields)
    before = _written(control)
    connection, check = Connection(daemon.port), CountAppended(batch)
    for request in requests:
        check(0, connection.call(request))
    connection.close()
    if fields is not None:
        wait_until_copied(control, TOPIC, "dest", len(copied))
    after = _written(control)
    stamped = fields is not None and fields.get("guarantee") == "exactly_once"
    expect_copies(daemon.port, "dest", copied, stamped=stamped)
    control.expect_count(TOPIC, check.total)
    control.close()
    delete(daemon, [TOPIC, "dest"])
    return Written(after.bytes - before.bytes, after.frames - before.frames)


# --- catching up -----------------------------------------------------------------------------------------------------

MEMORY, SEGMENTS, LOG = "memory", "segments", "log"
PLACES = {MEMORY: "memory", SEGMENTS: "segments", LOG: "the log, nothing cached"}
"""Where a source's records are: in keys, and in names."""
GUARANTEES = ("at_least_once", "exactly_once")
AT_ONCE = 10
"""Routers that catch up side by side."""


def _catching_up(bench: Bench) -> list[Figure]:
    """Routers that begin with the first of many records, wherever those are."""
    records = 10_000 if bench.quick else 100_000
    requests = batches_of(TOPIC, records)
    figures = []
    with bench.daemon(checkpoint_ms=NEVER_MS) as daemon:
        figures += _filled(daemon, requests, records, MEMORY)
        figures += _from_earliest(bench, daemon, records, MEMORY, bench.repetitions)
        figures += _side_by_side(bench, daemon, records)
        with closing(Control(daemon.port)) as control:
            alone_s = control.checkpoint()
        figures += _from_earliest(bench, daemon, records, SEGMENTS, 1)
    with bench.daemon(checkpoint_ms=NEVER_MS, cache_bytes=0) as daemon:
        figures += _filled(daemon, requests, records, LOG)
        figures += _from_earliest(bench, daemon, records, LOG, 1)
        with closing(Control(daemon.port)) as control:
            control.create("dest")
            route(control, "dest", TOPIC, "dest", **{"from": "earliest"})
            wait_until_copied(control, TOPIC, "dest", records)
            both_s = control.checkpoint()
        expect_copies(daemon.port, "dest", range(records))
    name = f"checkpoint that puts {records:,} records into segments"
    return [
        *figures,
        figure(f"reference: {name}", "s", [alone_s], key="checkpoint-none"),
        figure(f"{name}, and a router's copies", "s", [both_s], key="checkpoint", references=("checkpoint-none",)),
    ]


def _filled(daemon: DaemonProcess, requests: list[bytes], records: int, where: str) -> list[Figure]:
    """The source, and what else one may do with it over one connection."""
    control = Control(daemon.port)
    control.create(TOPIC)
    control.close()
    began = time.perf_counter()
    fill(daemon.port, requests)
    appended_s = time.perf_counter() - began
    rate, place = records / read_all(daemon.port, records), PLACES[where]
    name = f"reference: append of {records:,} records in batches of {BATCH}, before they are read from {place}"
    diff = f"reference: diff of {records:,} records, limit 1000, from {place}"
    return [
        figure(name, "records/s", [records / appended_s], key=f"{where}-append"),
        figure(diff, "records/s", [rate], key=f"{where}-diff"),
    ]


def _from_earliest(bench: Bench, daemon: DaemonProcess, records: int, where: str, times: int) -> list[Figure]:
    figures = []
    for guarantee in GUARANTEES:
        name = f"{guarantee}, from earliest of {records:,} records in {PLACES[where]}"
        bench.say(name)
        rates = bench.repeat(_copy_all, daemon, records, guarantee, times=times)
        # Of the same daemon: a diff that reads segments is not measured here.
        diff = "log-diff" if where == LOG else "memory-diff"
        figures.append(figure(name, "copies/s", rates, key=f"{where}-{slug(guarantee)}", references=(diff,)))
    return figures


def _copy_all(daemon: DaemonProcess, records: int, guarantee: str) -> float:
    """One repetition: copies a second into a topic of its own, which must then have everything."""
    with closing(Control(daemon.port)) as control:
        control.create("dest")
        began = time.perf_counter()
        route(control, "dest", TOPIC, "dest", **{"from": "earliest", "guarantee": guarantee})
        wait_until_copied(control, TOPIC, "dest", records)
        rate = records / (time.perf_counter() - began)
        control.expect_count("dest", records)
        expect_copies(daemon.port, "dest", range(records), stamped=guarantee == "exactly_once")
        control.delete("dest")
    return rate


def _side_by_side(bench: Bench, daemon: DaemonProcess, records: int) -> list[Figure]:
    """Many at once, and what somebody notices who has nothing to do with them."""
    bench.say(f"{AT_ONCE} routers catch up side by side")
    control = Control(daemon.port)
    control.create("other")
    request, check = append_request("other", [plain_record(0)]), CountAppended(1)
    quiet_until = time.perf_counter() + bench.measured_s
    before = run_while(daemon.port, lambda: time.perf_counter() < quiet_until, request, check)
    dests = [f"dest.{number}" for number in range(AT_ONCE)]
    for dest in dests:
        control.create(dest)
    began = time.perf_counter()
    for dest in dests:
        route(control, dest, TOPIC, dest, **{"from": "earliest"})
    beside = run_while(daemon.port, lambda: not is_done(control, dests[-1]), request, check)
    wait_until_copied(control, TOPIC, dests[-1], records)
    seconds = time.perf_counter() - began
    for dest in dests:
        control.expect_count(dest, records)
    expect_copies(daemon.port, dests[-1], range(records))
    control.expect_count("other", check.total)
    control.close()
    delete(daemon, [*dests, "other"])
    name = "append of one record to another topic"
    return [
        figure(
            f"{AT_ONCE} routers, from earliest of {records:,} records from memory",
            "copies/s",
            [AT_ONCE * records / seconds],
            key="side-by-side",
            references=("memory-diff",),
        ),
        *both_percentiles(f"reference: {name}, no router at work", "other-alone", [before.latencies_ms]),
        *both_percentiles(
            f"{name}, beside those {AT_ONCE} routers", "other-beside", [beside.latencies_ms], "other-alone"
        ),
    ]


# --- starting --------------------------------------------------------------------------------------------------------


def _starting(bench: Bench) -> list[Figure]:
    """After SIGKILL, with copies that are in no segment yet, and with the same records and no copies."""
    records = 10_000 if bench.quick else 100_000
    figures: list[Figure] = []
    requests = batches_of(TOPIC, records)
    for copies in (0, records):
        bench.say(f"start with {records:,} records and {copies:,} copies")
        with bench.scratch() as scratch, DaemonProcess(scratch / "data", **quiet(UNCHECKPOINTED)) as daemon:
            daemon.start()
            control = Control(daemon.port)
            control.create(TOPIC)
            control.create("dest")
            if copies:
                route(control, "dest", TOPIC, "dest")
            control.checkpoint(HOLD_MS)
            fill(daemon.port, requests)
            if copies:
                wait_until_copied(control, TOPIC, "dest", copies)
            control.close()
            daemon.kill()
            snapshots = _snapshots(daemon.data_dir)
            starts = bench.repeat(_start_and_kill, daemon, records, copies)
            if _snapshots(daemon.data_dir) != snapshots:
                raise RuntimeError("there is a new snapshot: what was measured is not the WAL")
        what = f"{records:,} records and a router's copies of them" if copies else f"{records:,} records, no router"
        key, references = ("start", ("start-none",)) if copies else ("start-none", None)
        name = f"{'' if copies else REFERENCE}ready after SIGKILL, {what}"
        figures += [
            figure(name, "s", [seconds for seconds, _ in starts], key=key, references=references),
            figure("... processor of the server until then", "s", [spent for _, spent in starts], key="cpu"),
        ]
    return figures


def _start_and_kill(daemon: DaemonProcess, records: int, copies: int) -> tuple[float, float]:
    """One repetition: seconds until it was ready, and of processor time until then. Everything must be there."""
    seconds = daemon.start()
    spent = cpu_seconds(daemon.pid)
    with closing(Control(daemon.port)) as control:
        control.expect_count(TOPIC, records, crashed=True)
        control.expect_count("dest", copies, crashed=True)
        if copies:
            wait_until_copied(control, TOPIC, "dest", copies)
    expect_copies(daemon.port, "dest", range(copies))
    daemon.kill()
    return seconds, spent


def _snapshots(data_dir: Path) -> list[Path]:
    return sorted((data_dir / "meta").glob("snapshot.*.cbor"))
