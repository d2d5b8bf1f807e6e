"""The real daemon, real HTTP, real SIGKILL: what was acked is there afterwards, and nothing is that was never sent.

The moments of the kills come from a seed. What the operating system makes of them does not, so a failure here names a
history to look at, not one to run again; the simulator (`tests/simulation`) is for those.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.processes.forked import Process, start_daemon

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
WAL_FILE_BYTES = 128 << 10
START_S = 60.0


class Daemon:
    """One data directory and the process that serves it, if one does. `settings` are `TOPICS_*` variables."""

    def __init__(self, root: Path, **settings: str) -> None:
        self.root = root
        self.settings = settings
        self.port = 0
        self.lives = 0
        self._process: Process | None = None

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self.launch()
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self.code is None, f"the daemon has ended: {self.log()}"
            if Client(self.port).call("GET", "/v0/ready")[0] == 200:
                return
            time.sleep(0.02)
        raise AssertionError(f"the daemon is not ready after {START_S} s: {self.log()}")

    def launch(self) -> None:
        """Start it, and wait until it listens."""
        self.lives += 1
        port_file = self.root / f"port.{self.lives}"
        port_file.unlink(missing_ok=True)  # another daemon may have been here
        environ = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        environ |= {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_DATA_DIR": str(self.root / "data"),
            "TOPICS_WAL_FILE_BYTES": str(WAL_FILE_BYTES),
            "TOPICS_WAL_SHARDS": "2",
            "TOPICS_CHECKPOINT_MS": "150",
            "TOPICS_CACHE_BYTES": "200000",
            "TOPICS_MIN_FREE_BYTES": "0",
            "TOPICS_DRAIN_MS": "50000",
        } | self.settings
        with (self.root / "log").open("ab") as log:
            self._process = start_daemon(environ, log)
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"the daemon has ended: {self.log()}"
            if port_file.exists():
                self.port = int(port_file.read_text())
                return
            time.sleep(0.02)
        raise AssertionError(f"the daemon does not listen after {START_S} s: {self.log()}")

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(60)
        self._process = None

    def terminate(self) -> tuple[int, float]:
        """A clean stop: exit code, seconds."""
        assert self._process is not None
        started = time.monotonic()
        self._process.send_signal(signal.SIGTERM)
        code = self._process.wait(60)
        self._process = None
        return code, time.monotonic() - started

    def end(self) -> None:
        if self._process is not None:
            self.kill()

    def log(self) -> str:
        return (self.root / "log").read_text(errors="replace")[-3000:]


class Client:
    """One connection, made again where needed. A failure of the transport is status 0."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=40)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        try:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            content = msgspec.json.encode(body) if body is not None else None
            self._connection.request(method, path, content, headers)
            answer = self._connection.getresponse()
            return answer.status, json.loads(answer.read())
        except (OSError, http.client.HTTPException, json.JSONDecodeError):
            self._connection.close()
            return 0, None


class History:
    """What the writers of one topic know: what was sent, and what was acked with which seqs."""

    def __init__(self) -> None:
        self.sent: dict[str, list[Any]] = {}
        self.acked: dict[int, Any] = {}
        self.unacked: dict[str, list[Any]] = {}
        self.lock = threading.Lock()


def write(port: int, topic: str, writer: int, history: History, stop: threading.Event, seed: int) -> None:
    """Append batches under keys until the daemon is gone."""
    client = Client(port)
    rng = random.Random(seed)
    i = 0
    while not stop.is_set():
        i += 1
        key = f"{seed}-{writer}-{i}"
        batch = [{"k": key, "n": n, "x": "x" * rng.randrange(400)} for n in range(rng.randint(1, 6))]
        body = {
            "records": [{"data": data, "tag": f"t{n % 2}"} for n, data in enumerate(batch)],
            "idempotency_key": key,
        }
        with history.lock:
            history.sent[key] = batch
        status, answer = client.call("POST", f"/v0/topics/{topic}", body)
        with history.lock:
            if status == 200:
                assert answer["count"] == len(batch)
                for seq, data in zip(answer["seqs"], batch, strict=True):
                    assert seq not in history.acked, f"seq {seq} of {topic} was given out twice"
                    history.acked[seq] = data
            else:
                history.unacked[key] = batch
        if status != 200:
            return


def read_all(client: Client, topic: str) -> tuple[dict[int, Any], list[tuple[int, int, str]], int]:
    """Every record by its seq, every tombstone, the head."""
    records: dict[int, Any] = {}
    gaps = []
    position = 0
    while True:
        status, answer = client.call("GET", f"/v0/topics/{topic}/diff?from_seq={position}&limit=1000&include_tags=1")
        assert status == 200, answer
        if (gap := answer["tombstone"]) is not None:
            # What is deleted between a page that was full and a gap belongs to neither.
            assert gap["gap_from"] > position
            gaps.append((gap["gap_from"], gap["gap_to"], gap["reason"]))
        for record in answer["records"]:
            assert record["$seq"] not in records
            records[record["$seq"]] = record
        position = answer["next_from_seq"]
        if answer["caught_up"]:
            return records, gaps, answer["head_seq"]


def under_load(
    daemon: Daemon, histories: dict[str, History], seed: int, during: Callable[[], Any], writers: int
) -> Any:
    """Run `during` while every topic is written to; what it returns."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=write, args=(daemon.port, topic, writer, history, stop, seed))
        for topic, history in histories.items()
        for writer in range(writers)
    ]
    for thread in threads:
        thread.start()
    try:
        return during()
    finally:
        stop.set()
        for thread in threads:
            thread.join(60)


def check(topic: str, history: History, records: dict[int, Any], gaps: list[tuple[int, int, str]], head: int) -> None:
    """What must hold of a topic after a kill whose machine stayed up."""
    found = {seq: record["data"] for seq, record in records.items()}
    assert all(found[seq] == data for seq, data in history.acked.items() if seq in found), "an acked record has changed"
    keys: dict[str, list[int]] = {}
    for seq, data in found.items():
        assert data in history.sent[data["k"]], "a record that nobody sent"
        keys.setdefault(data["k"], []).append(seq)
    for key, seqs in keys.items():
        seqs.sort()
        assert seqs == list(range(seqs[0], seqs[0] + len(history.sent[key]))), "a batch that is not whole or not once"
        assert [found[seq] for seq in seqs] == history.sent[key]
    missing = history.acked.keys() - found.keys()
    if topic in ("disk", "fsync"):
        assert not missing, f"{topic} has lost acked records"
        assert gaps == []
    covered = {seq for first, last, reason in gaps for seq in range(first, last + 1) if reason == "lost"}
    assert missing <= covered, "a loss without a tombstone"
    assert set(range(1, head + 1)) == found.keys() | covered
    assert head >= max(history.acked, default=0)
    times = [records[seq]["$ts"] for seq in sorted(records)]
    assert times == sorted(times)


@contextmanager
def daemon_in(root: Path) -> Iterator[Daemon]:
    daemon = Daemon(root)
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end()


def create(daemon: Daemon) -> dict[str, History]:
    client = Client(daemon.port)
    for name in CLASSES:
        status, _ = client.call("PUT", f"/v0/topics/{name}", {"durability": name, "idempotency_window_ms": 600_000})
        assert status == 201
    return {name: History() for name in CLASSES}


def kill_and_compare(daemon: Daemon, histories: dict[str, History], seed: int) -> None:
    rng = random.Random(seed)

    def kill_at_some_moment() -> None:
        time.sleep(rng.uniform(0.3, 1.2))
        daemon.kill()

    under_load(daemon, histories, seed, kill_at_some_moment, writers=2)
    daemon.start()
    client = Client(daemon.port)
    first = {name: read_all(client, name) for name in CLASSES}
    for name, history in histories.items():
        check(name, history, *first[name])
    # Recovering twice gives what recovering once gave.
    daemon.kill()
    daemon.start()
    client = Client(daemon.port)
    assert {name: read_all(client, name) for name in CLASSES} == first
    for name, history in histories.items():
        records = first[name][0]
        stored = {data["data"]["k"] for data in records.values()}
        for key, batch in history.unacked.items():
            body = {"records": [{"data": data} for data in batch], "idempotency_key": key}
            status, answer = client.call("POST", f"/v0/topics/{name}", body)
            assert status == 200
            assert answer["count"] == len(batch)
            assert answer["deduped"] == (key in stored)
            assert answer["first_seq"] > first[name][2] or answer["deduped"], "a seq was used again"
            for seq, data in zip(answer["seqs"], batch, strict=True):
                history.acked[seq] = data
        history.unacked.clear()
        if name in ("memory", "ephemeral"):
            # What is announced as lost is gone for good.
            left = read_all(client, name)
            history.acked = {seq: data for seq, data in history.acked.items() if seq in left[0] or seq > left[2]}
        check_lost_stays_lost(name, history, client, first[name])


def check_lost_stays_lost(
    name: str, history: History, client: Client, before: tuple[dict[int, Any], list[tuple[int, int, str]], int]
) -> None:
    records, gaps, _ = read_all(client, name)
    assert {seq: records[seq] for seq in before[0]} == before[0]
    assert gaps[: len(before[1])] == before[1]
    in_keys = [record["data"]["k"] + str(record["data"]["n"]) for record in records.values()]
    assert len(in_keys) == len(set(in_keys)), "a record is there twice"


@pytest.mark.slow
def test_kill_after_kill_under_load_loses_nothing_that_was_promised(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        histories = create(daemon)
        for seed in range(1, 5):
            kill_and_compare(daemon, histories, seed)
            assert sum(len(history.acked) for history in histories.values()) > 10
        files = [path.name for path in (tmp_path / "data" / "wal").rglob("*.log")]
        assert any(int(name[4:24]) > 0 for name in files), "no rotation took place"


@pytest.mark.slow
def test_a_clean_stop_under_load_exits_0_and_leaves_no_hole(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        histories = create(daemon)

        def stop() -> tuple[int, float]:
            time.sleep(0.7)
            return daemon.terminate()

        code, seconds = under_load(daemon, histories, 77, stop, writers=2)
        assert code == 0, daemon.log()
        assert seconds < 40, daemon.log()
        daemon.start()
        client = Client(daemon.port)
        for name, history in histories.items():
            records, gaps, head = read_all(client, name)
            check(name, history, records, gaps, head)
            if name == "ephemeral":
                assert (records, gaps) == ({}, [(1, head, "lost")])
                assert head >= max(history.acked)
                continue
            assert gaps == []
            assert history.acked.keys() <= records.keys()
            assert list(records) == list(range(1, head + 1))
            status, answer = client.call("POST", f"/v0/topics/{name}", {"records": [{"data": 1}]})
            assert (status, answer["first_seq"]) == (200, head + 1)
        code, seconds = daemon.terminate()
        assert (code, seconds < 20) == (0, True), "with nothing to wait for"
