"""Conditions, transactions, filters and consumers: what they cost the append or the read that has them, and what those
who use none of them pay.

A condition is compared with the same append without one, in turn, by the processor time of the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial

import msgspec

from benchmarks.bench import Bench, Control, append_request, full_record
from benchmarks.client import Answer, Connection, Load, WrongAnswer, request_bytes, run_load
from benchmarks.diff import BATCH, TOPIC, fill
from benchmarks.figures import Figure, figure
from benchmarks.machine import cpu_seconds
from benchmarks.references import echo_reference, percentiles, sync_reference
from benchmarks.small import CheckAndCount
from daemon_process import DaemonProcess

MATCHES = 100
"""Records with one tag."""
MAX_SCAN = 10_000
"""Records that one read with a filter looks at: the daemon's default."""


def run(bench: Bench) -> list[Figure]:
    """References, then conditions, transactions, filters and consumers."""
    bench = replace(bench, many=True)
    return [
        *sync_reference(bench),
        *echo_reference(bench),
        *_conditions(bench),
        *_transactions(bench),
        *_tags(bench),
        *_data(bench),
        *_consumers(bench),
    ]


def _loaded(
    bench: Bench, daemon: DaemonProcess, connections: int, request: Callable[[int], bytes], answered: bytes
) -> tuple[Load, float]:
    """A closed loop, and the daemon's processor time for a request (us). `answered` is in every right answer."""
    check = CheckAndCount(answered)
    began_s = cpu_seconds(daemon.pid)
    load = run_load(daemon.port, connections, bench.warm_up_s, bench.measured_s, request, check)
    return load, 1e6 * (cpu_seconds(daemon.pid) - began_s) / check.total


def _load(bench: Bench, daemon: DaemonProcess, connections: int, request: bytes, answered: bytes) -> Load:
    return _loaded(bench, daemon, connections, lambda _: request, answered)[0]


def _post(target: str, body: object) -> bytes:
    return request_bytes("POST", target, msgspec.json.encode(body))


# --- conditions and transactions -------------------------------------------------------------------------------------

CONNECTIONS = 16
CONDITIONS: dict[str, tuple[str, dict[str, object]]] = {
    "none": ("without a condition", {}),
    "tags": ("with a condition on two tags", {"expected_tag_seqs": {"free-1": 0, "free-2": 0}}),
    "fence": ("with a fence", {"fence": {"name": "leader", "token": 7}}),
}


def _append_costs(bench: Bench, daemon: DaemonProcess, condition: dict[str, object]) -> float:
    body = {"records": [{"data": "x" * 98}], **condition}
    request = _post(f"/v0/topics/{TOPIC}", body)
    return _loaded(bench, daemon, CONNECTIONS, lambda _: request, b'"count":1,')[1]


def _conditions(bench: Bench) -> list[Figure]:
    """Appends of one record to a topic that has tagged records already."""
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        control.create(TOPIC)
        fill(daemon.port, [append_request(TOPIC, [full_record(i) for i in range(BATCH)])] * 10)
        bench.say(f"append of one record, disk, {CONNECTIONS} connections, with conditions and without")
        measures = {key: partial(_append_costs, bench, daemon, fields) for key, (_, fields) in CONDITIONS.items()}
        costs = bench.in_turn(measures)
    name = f"append of one record, disk, {CONNECTIONS} connections"
    figures = [
        figure(f"{name}, {what}, processor time of the daemon", "us/request", costs[key], key=f"condition-{key}")
        for key, (what, _) in CONDITIONS.items()
    ]
    for key in ("tags", "fence"):
        times = [with_it / without for with_it, without in zip(costs[key], costs["none"], strict=True)]
        what = f"{CONDITIONS[key][0]}, processor time, times that without"
        figures.append(figure(f"{name}, {what}", "x", times, key=f"condition-{key}-times", at_most=1.05))
    return figures


def _transactions(bench: Bench) -> list[Figure]:
    """One record to each of two topics, beside an append of one record with a sync."""
    figures: list[Figure] = []
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        for topic in ("one", "two"):
            control.create(topic, durability="fsync")
        append = append_request("one", ['{"data":"x"}'])
        appends = [{"topic": topic, "records": [{"data": "x"}]} for topic in ("one", "two")]
        both = _post("/v0/transactions", {"appends": appends})
        for connections in (1, CONNECTIONS):
            of = "one connection" if connections == 1 else f"{connections} connections"
            bench.say(f"transactions over two topics, {of}")
            cases = {"append": (append, b'"count":1,'), "two": (both, b'"appends":[')}
            loads = bench.in_turn(
                {key: partial(_load, bench, daemon, connections, *case) for key, case in cases.items()}
            )
            figures += _rate(f"reference: append of one record, fsync, {of}", f"append-{connections}", loads["append"])
            figures += _rate(
                f"transaction over two topics, one record each, {of}",
                f"transaction-{connections}",
                loads["two"],
                (f"append-{connections}",),
            )
    return figures


def _rate(name: str, key: str, loads: Sequence[Load], references: tuple[str, ...] = ()) -> list[Figure]:
    p50 = tuple(f"{one}-p50" for one in references)
    return [
        figure(name, "requests/s", [load.requests_per_s for load in loads], key=key, references=references or None),
        figure("... p50", "ms", percentiles(loads, 0.5), key="p50", references=p50 or None),
    ]


# --- filters ---------------------------------------------------------------------------------------------------------


TAGGED: dict[str, tuple[str, Callable[[int, int], int]]] = {
    "tag": ("near one another", lambda number, _tags: number // MATCHES),
    "spread": ("spread over all of them", lambda number, tags: number % tags),
}
"""Where the records with one tag are: which tag a record has, by its number and how many tags there are."""


class AskedTags:
    """Each request asks for another tag."""

    def __init__(self, tags: int) -> None:
        self._tags = tags
        self._next = 0

    def request(self, _connection: int) -> bytes:
        self._next = (self._next + 7919) % self._tags
        wanted = ["tag", "Eq", f"tag-{self._next:06}"]
        return _post(f"/v0/topics/{TOPIC}/diff", {"from_seq": 0, "limit": 1000, "filter": wanted})

    def check(self, _connection: int, answer: Answer) -> int:
        body = answer.expect(200).body
        if (found := body.count(b'"$seq"')) != MATCHES or b'"caught_up":true' not in body:
            raise WrongAnswer(f"{found} records match, expected {MATCHES}")
        return found


def _tags(bench: Bench) -> list[Figure]:
    """Reads of all records with one tag, which are one in ten thousand, from segments."""
    records = 100_000 if bench.quick else 1_000_000
    tags = records // MATCHES
    figures: list[Figure] = []
    for key, (where, tag_of) in TAGGED.items():
        with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
            control.create(TOPIC)
            fill(
                daemon.port,
                [
                    append_request(TOPIC, [full_record(tag_of(number, tags)) for number in range(first, first + BATCH)])
                    for first in range(0, records, BATCH)
                ],
            )
            control.checkpoint()
            name = f"diff with a filter on a tag, {MATCHES} of {records:,} records match, {where}, one connection"
            bench.say(name)
            read_once = AskedTags(tags)
            run_load(daemon.port, 1, 0.0, bench.warm_up_s, read_once.request, read_once.check)
            loads = []
            for _ in range(bench.repetitions):
                asked = AskedTags(tags)
                loads.append(run_load(daemon.port, 1, bench.warm_up_s, bench.measured_s, asked.request, asked.check))
        p50 = percentiles(loads, 0.5)
        figures += [
            figure(f"{name}, p50", "ms", p50, key=f"{key}-p50", at_most=5.0, references=("echo-p50",)),
            figure("... p99", "ms", percentiles(loads, 0.99), key="p99"),
        ]
    return figures


DATA_FILTERS = {
    "one": ("one predicate", ["data", "/total", "Lt", 0]),
    "two": ("two predicates", ["And", ["data", "/total", "Ge", 0], ["data", "/city", "Eq", "none"]]),
}


def _data(bench: Bench) -> list[Figure]:
    """Reads that look at the data of every record, none of which matches."""
    records = 20_000 if bench.quick else 100_000
    figures = []
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        control.create(TOPIC)
        datas = [
            f'{{"data":{{"id":{i},"total":{i % 50},"city":"city-{i % 9}","note":"{"x" * 40}"}}}}' for i in range(BATCH)
        ]
        fill(daemon.port, [append_request(TOPIC, datas)] * (records // BATCH))
        for key, (what, wanted) in DATA_FILTERS.items():
            name = f"diff with {what} on data, records looked at, one connection"
            bench.say(name)
            asked = _post(f"/v0/topics/{TOPIC}/diff", {"from_seq": 0, "limit": 1000, "filter": wanted})
            loads = bench.repeat(_load, bench, daemon, 1, asked, b'"records_scanned":%d' % MAX_SCAN)
            rates = [load.requests_per_s * MAX_SCAN for load in loads]
            figures.append(figure(name, "records/s", rates, key=f"data-{key}", at_least=200_000))
    return figures


# --- consumers -------------------------------------------------------------------------------------------------------

IDLE_S = 5.0


def _consumers(bench: Bench) -> list[Figure]:
    """What consumers cost while nobody uses them, and a commit."""
    count = 1_000 if bench.quick else 10_000
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        control.create(TOPIC)
        bench.say(f"{count:,} idle consumers of one topic")
        before = [_idle_share(daemon) for _ in range(bench.few)]
        connection = Connection(daemon.port)
        for i in range(count):
            put = request_bytes("PUT", f"/v0/topics/{TOPIC}/consumers/c-{i}", b'{"from":"earliest"}')
            connection.call(put).expect(201)
        connection.close()
        control.checkpoint()
        beside = [_idle_share(daemon) for _ in range(bench.few)]
        fill(daemon.port, [append_request(TOPIC, ['{"data":"x"}'] * BATCH)] * 20)
        bench.say("commits of a consumer")
        loads = [_commits(bench, daemon) for _ in range(bench.repetitions)]
    return [
        figure("processor while idle, no consumers", "%", before, key="idle-none"),
        figure(f"processor while idle, {count:,} consumers of one topic", "%", beside, key="idle-consumers"),
        *_rate("commit of a consumer, one connection", "commit", loads),
    ]


def _idle_share(daemon: DaemonProcess) -> float:
    """Share of a core that the daemon takes while nobody asks it anything (%)."""
    began_s = cpu_seconds(daemon.pid)
    time.sleep(IDLE_S)  # the interval that is measured
    return 100 * (cpu_seconds(daemon.pid) - began_s) / IDLE_S


def _commits(bench: Bench, daemon: DaemonProcess) -> Load:
    seqs = iter(range(1, 20 * BATCH + 1))
    target = f"/v0/topics/{TOPIC}/consumers/c-0"
    with closing(Control(daemon.port)) as control:
        control.call("POST", f"{target}/seek", {"to": "earliest"})

    def request(_connection: int) -> bytes:
        return _post(f"{target}/commit", {"seq": next(seqs)})

    return _loaded(bench, daemon, 1, request, b'"moved":true')[0]
