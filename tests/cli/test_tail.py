"""`topics tail`: the last records, and then new ones, also after a restart of the daemon."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.cli.here import Here
from tests.cli.terminal import Terminal
from tests.conformance.client import Client, Daemon, until
from tests.processes.forked import PROGRAM

pytestmark = pytest.mark.slow


@pytest.fixture
def here(daemon: Daemon, capsysbinary: pytest.CaptureFixture[bytes]) -> Here:
    return Here(daemon.url, capsysbinary)


def data_of(done: subprocess.CompletedProcess[str]) -> list[Any]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line)["data"] for line in done.stdout.splitlines()]


class Tail:
    """A `topics tail -f` that runs, and the lines it has printed."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.lines: list[Any] = []
        self._errors: list[bytes] = []
        self._threads = [threading.Thread(target=self._read), threading.Thread(target=self._read_errors)]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        self._errors.extend(self.process.stderr)

    @property
    def errors(self) -> str:
        return b"".join(self._errors).decode()

    def has_told(self, text: str, times: int) -> bool:
        return self.errors.count(text) >= times

    @property
    def datas(self) -> list[Any]:
        return [line["data"] for line in self.lines if "data" in line]

    def until(self, count: int) -> None:
        """Wait until it has printed so many lines."""
        until(lambda: len(self.lines) >= count or self.process.poll() is not None, within_s=60)
        assert len(self.lines) >= count, self.errors

    def end(self) -> int:
        """Ctrl-C."""
        self.process.send_signal(signal.SIGINT)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(30)
        for thread in self._threads:
            thread.join(30)
        return code


@contextmanager
def tailing(topics: CommandLine, *arguments: str) -> Iterator[Tail]:
    process = topics.start("tail", "-f", *arguments)
    try:
        yield Tail(process)
    finally:
        process.kill()
        process.wait(30)


# ----------------------------------------------------------------- without -f


def test_the_last_records_of_each_topic(here: Here, client: Client, topic: str) -> None:
    other = f"{topic}.other"
    client.append(topic, *range(1, 31))
    client.append(other, "a", "b")
    assert data_of(here("tail", topic)) == list(range(21, 31))
    assert data_of(here("tail", topic, "-n", "2")) == [29, 30]
    assert data_of(here("tail", topic, "-n", "0")) == []
    assert data_of(here("tail", topic, "--from-seq", "28")) == [29, 30]
    assert data_of(here("tail", topic, "--from-start")) == list(range(1, 31))
    several = [json.loads(line) for line in here("tail", other, "--prefix", topic, "-n", "1").stdout.splitlines()]
    assert [(line["topic"], line["data"]) for line in several] == [(other, "b"), (topic, 30)]
    assert here("tail", topic, other, "-n", "1", "--data-only").stdout == '30\n"b"\n'


def test_gaps_are_told_where_they_are_asked_for(here: Here, client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, 1, 2, 3)
    assert data_of(here("tail", topic)) == [2, 3]
    assert "$tombstone" in here("tail", topic, "--from-start").stdout


def test_what_cannot_be_tailed_is_refused(here: Here, topic: str) -> None:
    assert here("tail").returncode == 2
    assert here("tail", topic, "-n", "1", "--from-start").returncode == 2
    assert here("tail", topic, "--json", "--data-only").returncode == 2
    assert here("tail", topic).returncode == 3
    assert here("tail", "-f", topic).returncode == 3
    assert here("tail", "--prefix", f"{topic}.").returncode == 3
    assert here("tail", topic, "--create").returncode == 2


# ----------------------------------------------------------------- with -f


def test_between_the_last_records_and_the_new_ones_nothing_is_missed_or_repeated(
    topics: CommandLine, client: Client, topic: str
) -> None:
    client.append(topic, *range(100))
    stop = threading.Event()

    def write() -> None:
        with Client(client.daemon) as writer:
            n = 100
            while not stop.is_set():
                writer.append(topic, n)
                n += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        with tailing(topics, topic, "-n", "5") as tail:
            tail.until(200)
            stop.set()
            thread.join(30)
            until(lambda: tail.lines[-1]["$seq"] == client.state(topic)["head_seq"], within_s=30)
            assert tail.end() == 0
            assert tail.errors == ""
    finally:
        stop.set()
        thread.join(30)
    first = tail.datas[0]
    assert first >= 95
    assert tail.datas == list(range(first, first + len(tail.datas)))


def test_several_topics_gaps_and_the_end_of_them(topics: CommandLine, client: Client, topic: str) -> None:
    other = f"{topic}.other"
    client.put_topic(topic, cap_records=2)
    client.append(topic, 1, 2, 3)
    client.append(other, records=[{"data": "a", "tag": "t"}, {"data": "b"}])
    with tailing(topics, topic, other, "--from-start", "--json") as tail:
        tail.until(5)
        client.append(other, "c")
        tail.until(6)
        client.delete_topic(topic)
        tail.until(7)
        client.delete_topic(other)
        assert tail.wait() == 3
    mine = [line for line in tail.lines if line["topic"] == topic]
    assert [next(name for name in ("$tombstone", "data", "$deleted") if name in line) for line in mine] == [
        "$tombstone",
        "data",
        "data",
        "$deleted",
    ]
    assert (mine[0]["$tombstone"]["gap_to"], mine[-1]["$deleted"]) == (1, {"head_seq": 3})
    assert [line.get("data") for line in tail.lines if line["topic"] == other] == ["a", "b", "c", None]
    assert tail.errors == "topics: no topic is left to follow\n"


def test_a_topic_that_is_not_there_yet_is_waited_for(topics: CommandLine, client: Client, topic: str) -> None:
    other = f"{topic}.other"
    client.append(topic, 1)
    with tailing(topics, topic, other, "--create", "--json") as tail:
        tail.until(1)
        assert client.get(f"/v0/topics/{other}").status_code == 404
        client.append(other, "a", "b")
        tail.until(3)
        client.delete_topic(topic)
        client.delete_topic(other)
        assert tail.wait() == 3
    assert [line["data"] for line in tail.lines if line["topic"] == other and "data" in line] == ["a", "b"]


def test_topics_that_a_prefix_matches_may_come_later(topics: CommandLine, client: Client, topic: str) -> None:
    prefix = f"{topic}."
    with tailing(topics, "--prefix", prefix, "--json") as tail:
        client.append(f"{prefix}a", *range(20))
        tail.until(10)
        client.append(f"{prefix}b", "x", "y")
        until(lambda: "y" in tail.datas, within_s=30)
        client.delete_topic(f"{prefix}b")
        until(lambda: any("$deleted" in line for line in tail.lines), within_s=30)
        client.append(f"{prefix}b", "z")
        until(lambda: tail.datas[-1] == "z", within_s=30)
        assert tail.end() == 0
    assert [line["data"] for line in tail.lines if line["topic"] == f"{prefix}b" and "data" in line] == ["x", "y", "z"]


def test_only_what_is_selected_is_shown(topics: CommandLine, client: Client, topic: str) -> None:
    client.tagged(topic, "a", *["b"] * 50)
    with tailing(topics, topic, "--tag", "a", "-n", "3", "--node", "me") as tail:
        tail.until(1)
        client.append(topic, records=[{"data": 1, "tag": "a", "node": "me"}, {"data": 2}, {"data": 3, "tag": "a"}])
        tail.until(2)
        assert tail.end() == 0
    assert tail.datas == ["a", 3]


def test_a_daemon_that_is_killed_and_started_again_is_followed_on(
    topics: CommandLine, daemon: Daemon, topic: str
) -> None:
    with Client(daemon) as client:
        client.put_topic(topic, durability="disk")
        client.append(topic, *range(10))
    with tailing(topics, topic, "--from-start") as tail:
        tail.until(10)
        for life in (1, 2):
            daemon.end(signal.SIGKILL)
            until(partial(tail.has_told, "connection is lost", life), within_s=60)
            daemon.start().close()
            with Client(daemon) as client:
                client.append(topic, *range(10 * life, 10 * life + 10))
            tail.until(10 * life + 10)
        assert tail.end() == 0
    assert tail.datas == list(range(30))
    assert tail.errors.count("connected again") == 2


def test_a_reader_that_goes_ends_it_though_nothing_comes(topics: CommandLine, client: Client, topic: str) -> None:
    client.append(topic, 1)
    with topics.start("tail", "-f", topic) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline()
            process.stdout.close()
            assert process.wait(30) == 141
            assert process.stderr is not None
            assert process.stderr.read() == b""
        finally:
            process.kill()


# ----------------------------------------------------------------- on a terminal


def test_on_a_terminal_lines_begin_with_the_topic_and_ctrl_c_ends_it(
    topics: CommandLine, client: Client, topic: str
) -> None:
    other = f"{topic}.other"
    client.append(topic, records=[{"data": "\x9b2J", "tag": "\x1b[2J", "node": "n"}])
    client.append(other, 1)
    with Terminal([*PROGRAM, "tail", "-f", topic, other], topics.environ) as terminal:
        terminal.until('"\\u009b2J"')
        client.append(other, "more")
        terminal.until('"more"')
        client.delete_topic(other)
        text = terminal.until("was deleted")
        terminal.press("\x03")
        assert terminal.wait() == 0
        assert "Traceback" not in terminal.text
    lines = {line.split()[0]: line.split() for line in text.splitlines()}
    assert lines[topic][1] == "1"
    assert lines[topic][4:] == ["\\x1b[2J", "n", '"\\u009b2J"']
    assert lines[other][1] == "2"
    assert f"--- topic '{other}' was deleted" in text
    assert "\x9b" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
