"""`topics top`: what it shows, on a terminal and elsewhere, and what it leaves behind."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.canned import CannedDaemon, InProcess
from tests.cli.command_line import CommandLine, environment
from tests.cli.terminal import ESCAPES, Terminal
from tests.client.ports import free_port
from tests.conformance.client import Daemon, until
from tests.processes.forked import PROGRAM
from topics.client import Client

WITHIN_S = 30.0
FAST = ("--interval", "200ms")


def metrics(*, uptime_ms: float = 90_061_000, truncated: int = 0, topics: int = 2, **heads: int) -> dict[str, Any]:
    """Of a daemon with these topics, each record of which has ten bytes."""

    def each(label: str, values: dict[str, float]) -> list[dict[str, Any]]:
        return [{"labels": {label: name}, "value": value} for name, value in values.items()]

    named = {
        "uptime_ms": uptime_ms,
        "ready": 1,
        "recovery_progress": 1,
        "pressure": 0.25,
        "connections": 5,
        "sse_connections": 2,
        "ws_connections": 1,
        "wal_read_only": 0,
        "wal_bytes_written_total": 0,
        "wal_fsync_latency_us": each("le", {"1000": 1, "2000": 100, "+Inf": 100}),
        "topics": topics,
        "routers": 1,
        "topic_head_seq": each("topic", dict(heads)),
        "topic_records_live": each("topic", dict(heads)),
        "topic_bytes_live": each("topic", {name: 10 * head for name, head in heads.items()}),
        "topic_queue_ready": each("topic", {"jobs": 3} if "jobs" in heads else {}),
        "topic_queue_in_flight": each("topic", {"jobs": 2} if "jobs" in heads else {}),
        "topic_metrics_truncated": truncated,
        "router_lag": each("router", {"a>b": 12}),
        "router_forwarded_total": each("router", {"a>b": 1234}),
    }
    return {f"topics_{name}": value for name, value in named.items()}


@pytest.fixture
def busy(canned: CannedDaemon) -> CannedDaemon:
    canned.on("GET", "/v0/health", {"status": "ok", "version": "9.9", "uptime_ms": 1})
    canned.refuse("GET", "/v0/figures", 404, "not_found", "an older daemon does not have this call")
    return canned


def test_elsewhere_than_on_a_terminal_a_snapshot_is_text(here: InProcess, busy: CannedDaemon) -> None:
    busy.on("GET", "/v0/metrics", metrics(logs=1000, jobs=5))
    busy.on("GET", "/v0/metrics", metrics(logs=1300, jobs=5, uptime_ms=90_062_000))
    done = here("top", *FAST, "--count", "1")
    assert (done.code, done.err) == (0, "")
    first, second, third, _, *rest = done.out.splitlines()
    assert first == f"topics 9.9 at {busy.url}, up 1d1h1m, ready"
    assert second == "pressure 25%   connections 5, 3 of them streams   sync p99 -   WAL 0 B/s"
    assert re.fullmatch(r"[\d,]+ records/s   topics 2   routers 1", third)
    titles, logs, jobs, blank, routers, router, end = rest
    assert titles.split() == ["topic", "records/s", "bytes/s", "records", "bytes", "head", "ready", "in", "flight"]
    assert logs.split()[0] == "logs"
    assert logs.split()[-4:] == ["1,300", "13.0", "kB", "1,300"]
    assert jobs.split() == ["jobs", "0", "0", "B", "5", "50", "B", "5", "3", "2"]
    assert routers.split() == ["router", "lag", "copies/s", "copies"]
    assert router.split() == ["a>b", "12", "0", "1,234"]
    assert blank == end == ""


def test_as_json_each_snapshot_is_a_line(here: InProcess, busy: CannedDaemon) -> None:
    for head in (10, 20, 20):
        busy.on("GET", "/v0/metrics", metrics(a=head, b=1))
    done = here("top", *FAST, "--count", "2", "--json", "--prefix", "a", "--limit", "1")
    first, second = map(json.loads, done.out.splitlines())
    assert (first["up"], first["version"], first["complete"]) == (True, "9.9", True)
    (line,) = first["topics"]
    assert (line["topic"], line["records"], line["bytes"], line["ready"]) == ("a", 20, 200, None)
    assert 0 < line["records_per_s"] <= 50
    assert line["bytes_per_s"] == pytest.approx(10 * line["records_per_s"])
    assert second["topics"][0]["records_per_s"] == 0


def test_a_daemon_that_does_not_answer_for_a_while_is_told_and_is_not_the_end(
    here: InProcess, busy: CannedDaemon
) -> None:
    busy.on("GET", "/v0/metrics", metrics(a=10))
    busy.refuse("GET", "/v0/metrics", 503, "not_ready", "starting")
    busy.on("GET", "/v0/metrics", metrics(a=4096, uptime_ms=5))
    busy.on("GET", "/v0/metrics", metrics(a=4096, uptime_ms=205))
    done = here("top", *FAST, "--count", "3", "--json")
    assert done.code == 0
    away, back, later = map(json.loads, done.out.splitlines())
    assert (away["up"], away["error"]) == (False, "starting")
    assert (back["up"], back["topics"][0]["records_per_s"]) == (True, None)  # nobody knows over a restart
    assert later["topics"][0]["records_per_s"] == 0


def test_so_it_is_as_text(here: InProcess, busy: CannedDaemon) -> None:
    busy.on("GET", "/v0/metrics", metrics(a=10))
    busy.refuse("GET", "/v0/metrics", 429, "throttled", "too much \x1b[2J")
    done = here("top", *FAST, "--count", "1")
    assert (done.code, done.out) == (0, "no answer: too much \\x1b[2J\n\n")


def test_one_that_was_never_there_is(here: InProcess) -> None:
    done = here("top", "--url", f"http://127.0.0.1:{free_port()}")
    assert (done.code, done.out) == (6, "")


def test_a_key_that_is_withdrawn_is_the_end(here: InProcess, busy: CannedDaemon) -> None:
    busy.on("GET", "/v0/metrics", metrics(a=10))
    busy.refuse("GET", "/v0/metrics", 401, "unauthorized", "unknown key")
    done = here("top", *FAST)
    assert done.code == 4


def test_of_more_topics_than_the_metrics_tell_of_the_pages_of_the_prefix_are_looked_at(
    here: InProcess, busy: CannedDaemon
) -> None:
    def page(first: int, **more: str) -> dict[str, Any]:
        facts = {"epoch": 1, "earliest_seq": 1, "durable": False, "durability": "disk", "effective_priority": 0}
        lines = [{"topic": f"q{first}", "type": "queue", "head_seq": first, "count": first, "bytes": first} | facts]
        return {"topics": lines} | more

    busy.on("GET", "/v0/metrics", metrics(a=10, truncated=1, topics=100_000))
    for number in range(1, 12):
        busy.on("GET", "/v0/topics", page(number % 5 + 1, next_cursor="c"))
    busy.on("GET", "/v0/topics/q5", {"error": {"code": "topic_not_found", "message": "gone"}}, status=404)
    done = here("top", *FAST, "--count", "1", "--json", "--prefix", "q", "--limit", "1", "--sort", "bytes")
    (seen,) = map(json.loads, done.out.splitlines())
    assert (seen["topics_seen"], seen["topics_total"], seen["complete"]) == (5, 100_000, False)
    assert [line["topic"] for line in seen["topics"]] == ["q5"]
    pages = [asked.target for asked in busy.asked if asked.target.startswith("/v0/topics?")]
    assert len(pages) == 10  # two looks of five pages each, and no more
    assert all("prefix=q" in target for target in pages)


@pytest.mark.parametrize("arguments", [("--interval", "100ms"), ("--limit", "0"), ("--count", "0"), ("--sort", "x")])
def test_what_cannot_be_shown_is_refused(here: InProcess, canned: CannedDaemon, arguments: tuple[str, ...]) -> None:
    assert here("top", *arguments).code == 2
    assert canned.asked == []


# --- on a terminal, against a daemon ---

SCREEN, SCREEN_LEFT, CURSOR, HOME = "\x1b[?1049h", "\x1b[?1049l", "\x1b[?25h", "\x1b[H"


@pytest.fixture(scope="module")
def filled(daemon: Daemon) -> Daemon:
    with Client(daemon.url) as client:
        client.create("jobs", type="queue", lease_ms=3_600_000)
        client.append("jobs", [1, 2, 3])
        client.claim("jobs", "n")
        client.create_router("a>b", "a", "b")
        client.append("a", ["x"] * 100)
    return daemon


def surroundings(**variables: str) -> dict[str, str]:
    """An environment that leaves the size of the terminal to the terminal."""
    return {name: text for name, text in environment(**variables).items() if name not in ("COLUMNS", "LINES")}


def restored(terminal: Terminal) -> bool:
    """Whether the screen is the old one, the cursor is there, and what is typed is shown."""
    raw = terminal.raw
    return raw.count(SCREEN) == raw.count(SCREEN_LEFT) == 1 and CURSOR in raw[raw.index(SCREEN) :] and terminal.echoes()


@pytest.mark.slow
@pytest.mark.parametrize(("how", "code"), [("q", 0), ("\x03", 0), (signal.SIGTERM, 143)])
def test_on_a_terminal_it_draws_until_it_is_told_to_end_and_leaves_it_as_it_was(
    filled: Daemon, how: Any, code: int
) -> None:
    with Terminal([*PROGRAM, "top", *FAST], surroundings(TOPICS_URL=filled.url), rows=20, columns=100) as terminal:
        text = terminal.until(lambda text: text.count("in flight") >= 3)
        assert not terminal.echoes()
        assert re.search(r"jobs .* 2 +1\b", text)
        assert re.search(r"a>b +0 +", text)
        drawn = [ESCAPES.sub("", screen).splitlines() for screen in terminal.raw.split(HOME)[1:-1]]
        assert max(map(len, drawn)) <= 20
        assert max(len(line) for screen in drawn for line in screen) <= 100
        terminal.press("xyz\x1a")  # means nothing
        if isinstance(how, str):
            terminal.press(how)
        else:
            terminal.process.send_signal(how)
        try:
            terminal.process.wait(5)
        except subprocess.TimeoutExpired:
            assert how == "\x03"  # Python loses one that comes in a destructor, and people press it again
            terminal.press(how)
        assert terminal.wait() == code
        assert restored(terminal)


@pytest.mark.slow
def test_it_ends_by_itself_after_so_many_intervals(filled: Daemon) -> None:
    with Terminal([*PROGRAM, "top", *FAST, "--count", "2"], surroundings(TOPICS_URL=filled.url)) as terminal:
        assert terminal.wait() == 0
        assert restored(terminal)
        assert terminal.text.count("in flight") == 3  # at once, and after each of them


@pytest.mark.slow
def test_what_cannot_be_reached_from_the_start_is_told_on_the_screen_that_was_there() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with Terminal([*PROGRAM, "top"], surroundings(TOPICS_URL=url)) as terminal:
        assert terminal.wait() == 6
        assert SCREEN not in terminal.raw
        assert terminal.echoes()
        assert f"topics: {url}" in terminal.text


@pytest.mark.slow
def test_a_terminal_that_can_draw_nothing_gets_text(filled: Daemon) -> None:
    line = [*PROGRAM, "top", *FAST, "--count", "1"]
    with Terminal(line, surroundings(TOPICS_URL=filled.url, TERM="dumb")) as terminal:
        assert terminal.wait() == 0
        assert "\x1b" not in terminal.raw
        assert "records/s" in terminal.text


@pytest.mark.slow
def test_a_daemon_that_dies_and_comes_back_is_seen_to(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path, port=free_port())
    try:
        daemon.start().close()
        with Terminal([*PROGRAM, "top", *FAST], surroundings(TOPICS_URL=daemon.url)) as terminal:
            terminal.until("in flight")
            daemon.end(signal.SIGKILL)
            terminal.until("no answer for 0 s")
            daemon.start().close()
            gone = len(terminal.raw)
            until(lambda: "no answer" not in terminal.raw[gone:].rpartition(HOME)[2], within_s=WITHIN_S)
            terminal.until(lambda text: text.rfind("in flight") > text.rfind("no answer"))
            terminal.press("q")
            assert terminal.wait() == 0
            assert restored(terminal)
    finally:
        daemon.kill()


@pytest.mark.slow
def test_a_pipe_whose_reader_goes_ends_it(filled: Daemon) -> None:
    running = CommandLine(TOPICS_URL=filled.url).start("top", *FAST, "--json")
    try:
        assert running.stdout is not None
        assert json.loads(running.stdout.readline())["up"] is True
        running.stdout.close()
        assert running.wait(WITHIN_S) == 141
        assert running.stderr is not None
        assert running.stderr.read() == b""
    finally:
        running.kill()
