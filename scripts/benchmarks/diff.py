"""Reading by diff: what is in memory, and what is in segments and nowhere else."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence

from benchmarks.bench import Bench, Control, CountAppended, append_request, full_record, plain_record
from benchmarks.client import Answer, Connection, Load, WrongAnswer, request_bytes, run_load
from benchmarks.figures import Figure, figure
from benchmarks.redis_streams import READS, read_figures, redis_figures
from benchmarks.references import echo_reference, percentiles

TOPIC = "bench"
BATCH = 1000
_NEXT = re.compile(rb'"next_from_seq": ?([0-9]+)')


def fill(port: int, batches: list[bytes]) -> None:
    """Append batches of 1000 to topics that exist, one after the other, each checked."""
    connection = Connection(port)
    check = CountAppended(BATCH)
    for request in batches:
        check(0, connection.call(request))
    connection.close()


class Walk:
    """Every connection reads the topic from its beginning to its end, again and again.

    With `spread` they begin at different places. If `records` is below the head, what is beyond is not read.
    """

    def __init__(
        self,
        connections: int,
        method: str,
        limit: int,
        records: int,
        *,
        spread: bool = False,
        topic: str = TOPIC,
    ) -> None:
        self._topic = topic
        self._at = [records // limit * i // connections * limit if spread else 0 for i in range(connections)]
        self._post = method == "POST"
        self._limit = limit
        self._records = records

    def request(self, connection: int) -> bytes:
        at = self._at[connection]
        if self._post:
            return request_bytes(
                "POST", f"/v0/topics/{self._topic}/diff", b'{"from_seq":%d,"limit":%d}' % (at, self._limit)
            )
        return request_bytes("GET", f"/v0/topics/{self._topic}/diff?from_seq={at}&limit={self._limit}")

    def check(self, connection: int, answer: Answer) -> int:
        answer.expect(200)
        at = self._at[connection]
        expected = min(self._limit, self._records - at)
        found = answer.body.count(b'"$seq"')
        following = _NEXT.findall(answer.body)
        if found != expected or not following or int(following[-1]) != at + expected:
            raise WrongAnswer(f"from {at}: {found} records, expected {expected}; next {following}")
        self._at[connection] = (at + expected) % self._records
        return found


def read_all(port: int, records: int) -> float:
    """Read the topic once, over one connection. Returns the seconds that took."""
    walk = Walk(1, "POST", 1000, records)
    connection = Connection(port)
    read = 0
    began = time.perf_counter()
    while read < records:
        read += walk.check(0, connection.call(walk.request(0)))
    seconds = time.perf_counter() - began
    connection.close()
    return seconds


def run(bench: Bench) -> list[Figure]:
    """Figures for limits of 1000 and 256, over POST and GET, and from segments."""
    return [
        *echo_reference(bench),
        *redis_figures(bench, READS, read_figures),
        *_from_memory(bench),
        *_from_segments(bench),
    ]


def _from_memory(bench: Bench) -> list[Figure]:
    records = 50_000 if bench.quick else 300_000
    figures: list[Figure] = []
    with bench.daemon() as daemon:
        control = Control(daemon.port)
        control.create(TOPIC)
        request = append_request(TOPIC, [plain_record(0)] * BATCH)
        fill(daemon.port, [request] * (records // BATCH))
        control.expect_count(TOPIC, records)
        control.close()
        for key, method, connections, limit, target, redis in (
            ("memory-1000", "POST", 4, 1000, 800_000.0, "redis-1000"),
            ("memory-256", "POST", 4, 256, 300_000.0, "redis-256"),
            ("memory-get", "GET", 4, 1000, None, "redis-1000"),
            ("memory-one", "POST", 1, 1000, None, "redis-1000"),
        ):
            name = f"diff, {method}, limit {limit}, {_connections(connections)}, from memory"
            bench.say(name)
            loads = _read(bench, daemon.port, method, connections, limit, records, target)
            figures += _figures(name, key, loads, target, (redis,))
    return figures


def _connections(count: int) -> str:
    return "one connection" if count == 1 else f"{count} connections"


def _figures(
    name: str, key: str, loads: Sequence[Load], target: float | None, references: tuple[str, ...]
) -> list[Figure]:
    rates = [load.records_per_s for load in loads]
    return [
        figure(name, "records/s", rates, key=key, at_least=target, references=references),
        figure("... p50 of an answer", "ms", percentiles(loads, 0.5)),
    ]


def _from_segments(bench: Bench) -> list[Figure]:
    """Without a cache for payloads; that of indexes has room for half of them. The files are in the page cache."""
    records = 50_000 if bench.quick else 300_000
    figures: list[Figure] = []
    with bench.daemon(cache_bytes=0) as daemon:
        for kind, record in (("plain", plain_record), ("full", full_record)):
            control = Control(daemon.port)
            control.create(TOPIC)
            fill(
                daemon.port,
                [
                    append_request(TOPIC, [record(number) for number in range(first, first + BATCH)])
                    for first in range(0, records, BATCH)
                ],
            )
            control.expect_count(TOPIC, records)
            control.checkpoint()
            for connections, place in ((4, "segments"), (1, "segments-one")):
                name = f"diff, POST, limit 1000, {_connections(connections)}, {kind}, from segments, nothing cached"
                bench.say(name)
                target = 150_000.0 if kind == "plain" and connections > 1 else None
                loads = _read(bench, daemon.port, "POST", connections, 1000, records, target)
                figures += _figures(name, f"{place}-{kind}", loads, target, ("memory-1000",))
            control.delete(TOPIC)
            control.close()
    return figures


def _read(
    bench: Bench, port: int, method: str, connections: int, limit: int, records: int, target: float | None
) -> list[Load]:
    """What has no target is repeated less often."""

    def once() -> Load:
        walk = Walk(connections, method, limit, records)
        return run_load(port, connections, bench.warm_up_s, bench.measured_s, walk.request, walk.check)

    return bench.repeat(once, times=bench.repetitions if target else bench.few)
