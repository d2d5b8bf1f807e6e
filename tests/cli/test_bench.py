"""`topics bench`: what it measures, and that nothing of it is left."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from tests.cli.canned import CannedDaemon, InProcess
from tests.cli.command_line import CommandLine
from tests.cli.terminal import Terminal
from tests.conformance.client import Daemon, until
from tests.processes.forked import PROGRAM
from topics.cli.figures.bench import SHARED, _is_loopback
from topics.cli.figures.measurements import MeasuredLoad
from topics.client import Client

WITHIN_S = 30.0


def test_a_percentile_is_a_value_that_so_many_are_not_above() -> None:
    load = MeasuredLoad()
    for latency_ms in range(100, 0, -1):
        load.count(0.0, latency_ms / 1000, 10)
    assert load.percentile_ms(0.5) == pytest.approx(50)
    assert load.percentile_ms(0.99) == pytest.approx(99)
    assert load.percentile_ms(1) == pytest.approx(100)
    assert load.per_s == pytest.approx(10_000)


@pytest.mark.parametrize(
    ("url", "loopback"),
    [
        ("http://127.0.0.1:4000", True),
        ("http://127.9.0.1", True),
        ("http://[::1]:4000", True),
        ("http://localhost:4000", True),
        ("http://10.0.0.1:4000", False),
        ("https://topics.example", False),
    ],
)
def test_whether_the_machine_is_shared_is_seen_by_the_url(url: str, loopback: bool) -> None:
    assert _is_loopback(url) == loopback


@pytest.mark.parametrize("size", ["0", "1.1MB"])
def test_a_record_of_a_size_that_is_not_measured_is_refused(here: InProcess, canned: CannedDaemon, size: str) -> None:
    done = here("bench", "--size", size)
    assert done.code == 2
    assert "--size: must be from 1 byte to 1MB" in done.err
    assert canned.asked == []


def test_a_daemon_that_is_not_ready_is_not_measured(here: InProcess, canned: CannedDaemon) -> None:
    canned.refuse("GET", "/v0/ready", 503, "not_ready", "the log is being replayed")
    done = here("bench")
    assert (done.code, done.err) == (6, "topics: the log is being replayed\n")


# --- against a daemon ---

FIGURES = {
    "append_one_p50": "ms",
    "append_one_p99": "ms",
    "append_100": "records/s",
    "append_100_bytes": "MB/s",
    "append_1000": "records/s",
    "append_1000_bytes": "MB/s",
    "read": "records/s",
    "delivery_p50": "ms",
    "delivery_p99": "ms",
    "claim_ack_one_p50": "ms",
    "claim_ack_one_p99": "ms",
    "claim_ack_100": "jobs/s",
}


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as client:
        yield client


def bench_topics(client: Client) -> list[str]:
    return [topic.topic for topic in client.list_all(prefix="bench-")]


@pytest.mark.slow
def test_every_figure_is_there_and_the_topics_are_not(topics: CommandLine, client: Client) -> None:
    found = topics.json("bench", "--seconds", "0.3", "--durability", "fsync", "--connections", "2")
    assert {figure["name"]: figure["unit"] for figure in found["figures"]} == FIGURES
    assert all(figure["value"] > 0 for figure in found["figures"])
    assert found["same_machine"] is True
    assert found["settings"] == {"durability": "fsync", "seconds": 0.3, "size": 100, "connections": 2}
    assert bench_topics(client) == []


@pytest.mark.slow
def test_large_records_are_measured_in_smaller_batches(topics: CommandLine) -> None:
    done = topics("bench", "--seconds", "0.1", "--size", "1MB", "--durability", "ephemeral", "--connections", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert SHARED in done.stdout
    assert "append, batches of 8, 1 connection " in done.stdout


@pytest.mark.slow
def test_on_a_terminal_there_is_a_bar_and_ctrl_c_removes_the_topics(topics: CommandLine, client: Client) -> None:
    with Terminal([*PROGRAM, "bench", "--seconds", "60"], topics.environ) as terminal:
        terminal.until("0/7 measurements")
        until(lambda: len(bench_topics(client)) == 2, within_s=WITHIN_S)
        until(lambda: client.state(min(bench_topics(client))).count > 0, within_s=WITHIN_S)
        terminal.press("\x03")
        assert terminal.wait() == 130
    assert bench_topics(client) == []


@pytest.mark.slow
def test_so_does_a_request_to_end(topics: CommandLine, client: Client) -> None:
    running = topics.start("bench", "--seconds", "60")
    try:
        until(lambda: len(bench_topics(client)) == 2, within_s=WITHIN_S)
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=WITHIN_S) == (b"", b"")
    finally:
        running.kill()
    assert running.returncode == 128 + signal.SIGTERM
    assert bench_topics(client) == []


@pytest.mark.slow
def test_and_so_does_a_failure(topics: CommandLine, client: Client) -> None:
    running = topics.start("bench", "--seconds", "60")
    try:
        until(lambda: len(bench_topics(client)) == 2, within_s=WITHIN_S)
        client.delete_topic(min(bench_topics(client)))
        _, said = running.communicate(timeout=WITHIN_S)
    finally:
        running.kill()
    assert running.returncode == 3
    assert said.startswith(b"topics: topic 'bench-")
    assert bench_topics(client) == []
