"""What guardrails cost: keys, rates and the audit log beside a daemon without them; many connections; a scrape.

Daemons that are compared run at the same time and are measured in turn, so that a machine whose speed changes says
nothing for any of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial

from benchmarks.append import TOPIC
from benchmarks.bench import METRICS_REQUEST, Bench, Control, CountAppended, append_request, plain_record
from benchmarks.client import Answer, Connection, Load, request_bytes, run_load
from benchmarks.figures import Figure, figure, slug
from benchmarks.machine import resident_mib
from benchmarks.references import echo_reference, percentiles

KEY = "bench-key-0"
CONNECTIONS = 2000
TOPICS = 1000


def run(bench: Bench) -> list[Figure]:
    """The reference of the server first."""
    bench = replace(bench, many=True)
    return [*echo_reference(bench), *_access(bench), *_audit(bench), *_connections(bench), *_scrape(bench)]


def with_key(request: bytes) -> bytes:
    """The same request, of somebody with a key."""
    return request.replace(b"Host: localhost\r\n", b"Host: localhost\r\nAuthorization: Bearer %b\r\n" % KEY.encode(), 1)


def _access(bench: Bench) -> list[Figure]:
    """One record at a time: without keys, with one, with as many as there may be, with a rate, and prefixes."""
    many = ",".join(f"bench-key-{number}" for number in range(1000))
    cases: list[tuple[str, dict[str, object]]] = [
        ("without keys", {}),
        ("one key", {"api_keys": f"{KEY}:rw+a:{TOPIC}"}),
        ("one key with a rate", {"api_keys": KEY, "rate_per_key": "1000000/1TiB"}),
        ("1000 keys", {"api_keys": many}),
    ]
    bench.say("one record at a time, " + ", ".join(name for name, _ in cases))
    request = with_key(append_request(TOPIC, [plain_record(0)]))
    with ExitStack() as stack:
        ports = {name: stack.enter_context(bench.daemon(**settings)).port for name, settings in cases}
        loads = bench.in_turn({name: partial(_load, bench, port, request) for name, port in ports.items()})
    return [
        figure(
            f"append, one record, one connection, {name}, p50",
            "ms",
            percentiles(found, 0.5),
            key=f"{slug(name)}-p50",
            references=("echo-p50",) if name == "without keys" else ("without-keys-p50",),
        )
        for name, found in loads.items()
    ]


def _load(bench: Bench, port: int, request: bytes) -> Load:
    return run_load(port, 1, bench.warm_up_s, bench.measured_s, lambda _: request, _Created())


class _Created(CountAppended):
    """The first append creates the topic."""

    def __init__(self) -> None:
        super().__init__(1)

    def __call__(self, connection: int, answer: Answer) -> int:
        answer.expect(200, 201)
        return super().__call__(connection, Answer(200, answer.body))


def _audit(bench: Bench) -> list[Figure]:
    """A deletion that finds nothing, with and without a line in the audit log."""
    bench.say("deletions, audited or not")
    request = request_bytes("POST", f"/v0/topics/{TOPIC}/delete", b'{"before_seq":1}')

    def deletions(port: int) -> Load:
        return run_load(port, 1, bench.warm_up_s, bench.measured_s, lambda _: request, _expect_success)

    with ExitStack() as stack:
        scratch = stack.enter_context(bench.scratch())
        ports = {
            "without": stack.enter_context(bench.daemon()).port,
            "with": stack.enter_context(bench.daemon(audit_log=scratch / "audit.log")).port,
        }
        for port in ports.values():
            with closing(Control(port)) as control:
                control.create(TOPIC, durability="ephemeral")
        loads = bench.in_turn({name: partial(deletions, port) for name, port in ports.items()})
    return [
        figure(
            f"deletion of nothing, {name} an audit log, p50",
            "ms",
            percentiles(found, 0.5),
            key=f"deletion-{name}-p50",
            references=("echo-p50",) if name == "without" else ("deletion-without-p50",),
        )
        for name, found in loads.items()
    ]


def _expect_success(_connection: int, answer: Answer) -> int:
    answer.expect(200)
    return 0


def _connections(bench: Bench) -> list[Figure]:
    """An append beside so many idle connections, and what one of them takes."""
    bench.say(f"{CONNECTIONS} connections")
    request = append_request(TOPIC, [plain_record(0)])
    with bench.daemon() as daemon:
        _load(bench, daemon.port, request)
        before = resident_mib(daemon.pid)
        alone = bench.repeat(_load, bench, daemon.port, request)
        with _idle(daemon.port):
            beside = bench.repeat(_load, bench, daemon.port, request)
            taken = 1024 * (resident_mib(daemon.pid) - before) / CONNECTIONS
    return [
        figure("append, one record, one connection, p99", "ms", percentiles(alone, 0.99), key="alone-p99"),
        figure(
            f"append, one record, beside {CONNECTIONS:,} connections that have asked once, p99",
            "ms",
            percentiles(beside, 0.99),
            key="connections-p99",
            references=("alone-p99",),
        ),
        figure("memory of such a connection", "KiB", [taken], key="connection"),
    ]


@contextmanager
def _idle(port: int) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            connection = stack.enter_context(closing(Connection(port)))
            connection.call(request_bytes("GET", "/v0/health")).expect(200)
        yield


def _scrape(bench: Bench) -> list[Figure]:
    """A scrape of so many topics, and the slowest append of those that met one."""
    bench.say(f"a scrape of {TOPICS} topics")
    with bench.daemon() as daemon, closing(Control(daemon.port)) as control:
        for number in range(TOPICS):
            control.create(f"topic-{number}", durability="ephemeral")
        scrape = METRICS_REQUEST.replace(b"application/json", b"text/plain")
        loads = bench.repeat(lambda: run_load(daemon.port, 1, 0.3, bench.measured_s, lambda _: scrape, _expect_success))
        with closing(Connection(daemon.port)) as scraper:
            slowest = bench.repeat(_slowest_append, daemon.port, scraper, scrape, times=20)
    return [
        figure(f"scrape of {TOPICS:,} topics, p50", "ms", percentiles(loads, 0.5), key="scrape-p50"),
        figure("... slowest append that met one", "ms", slowest, key="slowest"),
    ]


def _slowest_append(port: int, scraper: Connection, scrape: bytes) -> float:
    scraper.send(scrape)
    request = append_request("topic-0", [plain_record(0)])
    load = run_load(port, 1, 0.0, 0.02, lambda _: request, CountAppended(1))
    scraper.answer().expect(200)
    return max(load.latencies_ms)
