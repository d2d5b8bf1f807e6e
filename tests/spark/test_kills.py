"""A streaming query is killed, its Python workers are, the daemon is: its sink has each record once.

The moments come from a seed; what the machine makes of them does not, so a failure names a history to look at.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.conformance.client import Daemon
from tests.spark.between import Between, Exchange
from tests.spark.conftest import StartDaemon
from tests.spark.query import started
from topics.client import Client, Record

pytestmark = pytest.mark.slow

FILES, LINES = 4, 25
ROUNDS = int(os.environ.get("TOPICS_KILL_ROUNDS", "1"))
"""Lives that end at a random moment, between one that ends with a commit and the last one. Each costs a JVM."""
ENDS_WITHIN_S = 400.0
GONE_WITHIN_S = 60.0
SEED = 23


class Life:
    """One run of the query, from its start to its death."""

    def __init__(self, url: str, source: Path, root: Path, topic: str) -> None:
        self.process = started(
            root.with_name("log"), master="local[2,4]", url=url, root=root, from_files=source, stream_into=topic
        )

    def kill_driver(self) -> None:
        """The JVM, and the Python program that started it. Python workers find out by themselves, if at all."""
        for pid, command in self._members():
            if "java" in command.partition("\0")[0]:
                _kill(pid)
        self.process.kill()

    def kill_a_worker(self) -> None:
        """One of the processes that Python code of tasks and commits runs in, if there is one now."""
        workers = [pid for pid, command in self._members() if "pyspark.daemon" in command]
        _kill(workers[-1]) if workers else None

    def wait(self) -> int:
        """How it ended; then nothing of it is left."""
        try:
            code = self.process.wait(ENDS_WITHIN_S)
        finally:
            self.kill_driver()
            deadline = time.monotonic() + GONE_WITHIN_S
            while left := [pid for pid, _ in self._members()]:
                if time.monotonic() > deadline:
                    for pid in left:
                        _kill(pid)
                time.sleep(0.02)
        return code

    def _members(self) -> Iterator[tuple[int, str]]:
        """The processes of its session, with their command lines."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and os.getsid(int(entry.name)) == self.process.pid:
                    command = (entry / "cmdline").read_text()
                    if command:
                        yield int(entry.name), command


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


class Troubles:
    """What happens to the lives of the query, told by the calls that they make."""

    def __init__(self, between: Between, daemon: Daemon) -> None:
        self._between = between
        self._daemon = daemon
        self._rng = random.Random(SEED)
        self._lock = threading.Lock()

    def in_a_commit(self, life: Life) -> None:
        """The driver dies when its first commit is done, and never hears of it."""

        def kill(exchange: Exchange) -> None:
            if exchange.is_commit and exchange.status == 200:
                life.kill_driver()
                raise ConnectionError

        self._between.answered = kill

    def sometime(self, life: Life) -> None:
        """A Python worker dies, then the daemon does, and within a second after some call the driver: in a task, in a
        commit, or in Spark's own checkpoint."""
        first = self._rng.randrange(1, 4)
        second = first + self._rng.randrange(1, 4)
        third = second + self._rng.randrange(1, 6)
        pause = self._rng.choice([0.0, self._rng.random()])
        end = threading.Timer(pause, life.kill_driver)
        self._after({first: life.kill_a_worker, second: self._restart_daemon, third: end.start})

    def none(self) -> None:
        self._after({})

    def _after(self, deeds: dict[int, Callable[[], object]]) -> None:
        """Do something after the call of that number, counted from now on."""
        left = dict(deeds)
        count = 0

        def answered(exchange: Exchange) -> None:
            nonlocal count
            with self._lock:
                count += 1
                deed = left.pop(count, None)
            if deed is not None:
                deed()

        self._between.answered = answered

    def _restart_daemon(self) -> None:
        self._daemon.end(signal.SIGKILL)
        self._daemon.start().close()


def test_a_query_whose_driver_workers_and_daemon_are_killed_adds_each_record_once(
    tmp_path: Path, start_daemon: StartDaemon, topic: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for file in range(FILES):
        lines = [f'{{"file":{file},"line":{line}}}\n' for line in range(LINES)]
        (source / f"{file:02}.txt").write_text("".join(lines))
    daemon = start_daemon()
    with Between(lambda: daemon.port) as between:
        troubles = Troubles(between, daemon)
        for trouble in (troubles.in_a_commit, *[troubles.sometime] * ROUNDS):
            life = Life(between.url, source, tmp_path / "query", topic)
            trouble(life)
            life.wait()
        troubles.none()
        code = Life(between.url, source, tmp_path / "query", topic).wait()
        assert code == 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        commits = [(one.said["first_seq"], one.said["deduped"]) for one in between.commits()]
    with Client(daemon.url) as client:
        found = [(item.data["file"], item.data["line"]) for item in client.read(topic) if isinstance(item, Record)]
    assert sorted(found) == [(file, line) for file in range(FILES) for line in range(LINES)]
    # The commit that nobody heard of was made again, and was known.
    assert {first for first, deduped in commits if deduped} <= {first for first, deduped in commits if not deduped}
    assert any(deduped for _, deduped in commits)
