"""The real daemon with a cold directory whose calls never return: opening a FIFO for reading waits until somebody opens
it for writing, in the kernel, as a call to a mount that is gone does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.test_segments import daemon_in
from tests.end_to_end.test_sigkill import Client, Daemon
from topics.runtime.bounded_calls import THREAD_NAME

pytestmark = pytest.mark.slow

BOUND_S = 60.0
"""How long something is waited for that has to come."""

NEVER = {"TOPICS_COLD_TIMEOUT_MS": "3600000", "TOPICS_DRAIN_MS": "10000"}
"""With it only a stop ends a wait."""


def until(is_so: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + BOUND_S
    while time.monotonic() < deadline:
        if is_so():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def append(client: Client, count: int) -> int:
    """Append records, and return the last seq."""
    records = [{"data": {"i": i, "x": "x" * 100}, "tag": "ab"[i % 2]} for i in range(count)]
    status, answer = client.call("POST", "/v0/topics/t", {"records": records})
    assert status == 200, answer
    return int(answer["seqs"][-1])


def cold_data(daemon: Daemon) -> list[Path]:
    return sorted((daemon.root / "cold").rglob("*.data"))


def make_cold(daemon: Daemon) -> int:
    """A topic whose oldest segments are cold; its head."""
    client = Client(daemon.port)
    assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
    head = append(client, 400)
    until(lambda: len(cold_data(daemon)) >= 5, "no segment goes cold")
    return head


def hang(path: Path) -> Path:
    """Make every process that opens this file for reading wait for ever. Returns the path of its content."""
    aside = path.with_name(path.name + ".aside.tmp")
    path.rename(aside)
    os.mkfifo(path, 0o600)
    return aside


def answer_again(path: Path, aside: Path) -> None:
    """Let the processes that wait for this file go on, and give the file its content back."""
    waiting = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # does not wait itself
    aside.rename(path)
    os.close(waiting)


def metric(client: Client, name: str) -> float:
    client._connection.request("GET", "/v0/metrics")
    text = client._connection.getresponse().read().decode()
    found = [line for line in text.splitlines() if line.startswith(f"topics_{name} ")]
    assert len(found) == 1, text[:2000]
    return float(found[0].split()[1])


def calls_in_flight(daemon: Daemon) -> int:
    """Threads that are in a call of the cold store."""
    assert daemon._process is not None
    names = []
    for thread in Path(f"/proc/{daemon._process.pid}/task").iterdir():
        try:
            names.append((thread / "comm").read_text().strip())
        except OSError:
            continue  # it has ended
    return names.count(THREAD_NAME)


def test_while_cold_calls_hang_all_that_is_hot_goes_on_and_cold_reads_are_answered_503(tmp_path: Path) -> None:
    with daemon_in(tmp_path, TOPICS_COLD_TIMEOUT_MS="300", TOPICS_DRAIN_MS="10000") as daemon:
        head = make_cold(daemon)
        victim, identity = cold_data(daemon)[0], tmp_path / "cold" / "IDENTITY"
        hang(victim)
        hang(identity)  # which every change of the cold store looks at first
        client = Client(daemon.port)
        for _ in range(10):
            status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
            assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert metric(client, "cold_calls_hanging") >= 8
        for _ in range(20):
            head = append(client, 50)
            status, answer = client.call("GET", f"/v0/topics/t/diff?from_seq={head - 5}&limit=10")
            assert (status, len(answer["records"])) == (200, 5)
            assert client.call("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "b"]})[0] == 200
            assert client.call("POST", "/v0/admin/checkpoint")[0] == 200
        assert client.call("POST", "/v0/admin/checkpoint?hold_ms=1000")[0] == 200
        code, _ = daemon.terminate()
        assert code == 0
        assert "drain_timed_out" not in (tmp_path / "log").read_text()


def test_a_stop_is_done_within_its_bound_while_reads_and_changes_hang(tmp_path: Path) -> None:
    with daemon_in(tmp_path, **NEVER) as daemon:
        make_cold(daemon)
        victim, identity = cold_data(daemon)[0], tmp_path / "cold" / "IDENTITY"
        hang(victim)
        hang(identity)
        append(Client(daemon.port), 200)  # there is something to be moved
        reader = Client(daemon.port)
        reader._connection.request("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
        until(lambda: calls_in_flight(daemon) >= 2, "the reader and the relocator do not ask the cold store")
        code, _ = daemon.terminate()
        assert code == 0
        said = (tmp_path / "log").read_text()
        assert "cold_call_hangs" in said
        assert "drain_timed_out" not in said


def test_a_start_gets_ready_while_the_cold_directory_hangs_and_uses_it_when_it_answers(tmp_path: Path) -> None:
    identity = tmp_path / "cold" / "IDENTITY"
    with daemon_in(tmp_path, **NEVER) as daemon:
        make_cold(daemon)
        assert daemon.terminate()[0] == 0
        before = {path.name: path.read_bytes() for path in cold_data(daemon)}
        aside = hang(identity)
        daemon.start()  # waits until it is ready
        client = Client(daemon.port)
        assert metric(client, "cold_usable") == 0
        append(client, 200)
        assert client.call("POST", "/v0/admin/checkpoint")[0] == 200
        status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert {path.name: path.read_bytes() for path in cold_data(daemon)} == before
        answer_again(identity, aside)
        until(lambda: metric(client, "cold_usable") == 1, "the cold directory is not used again")
        status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
        assert (status, len(answer["records"])) == (200, 10)
        until(lambda: len(cold_data(daemon)) > len(before), "no segment goes cold any more")
        assert daemon.terminate()[0] == 0


def test_a_second_daemon_on_the_same_cold_directory_is_refused_and_deletes_nothing(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        make_cold(daemon)
        assert daemon.terminate()[0] == 0
        before = {path: path.read_bytes() for path in cold_data(daemon)}
        (tmp_path / "second").mkdir()
        with (
            pytest.raises(AssertionError, match="belongs to the data directory with the id"),
            daemon_in(tmp_path / "second", TOPICS_COLD_DIR=str(tmp_path / "cold")),
        ):
            pass
        assert {path: path.read_bytes() for path in cold_data(daemon)} == before


def test_an_export_whose_beginning_cannot_be_read_is_answered_and_a_router_of_it_waits(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        head = make_cold(daemon)
    with daemon_in(tmp_path, TOPICS_COLD_DIR="") as daemon:
        client = Client(daemon.port)
        status, answer = client.call("GET", "/v0/topics/t/records")
        assert (status, answer["error"]["code"]) == (503, "not_ready")
        wanted = {"source": "t", "dest": "copy", "from": "earliest"}
        assert client.call("PUT", "/v0/routers/r", wanted)[0] == 201
        time.sleep(1.5)  # two attempts and more
        assert client.call("GET", "/v0/routers/r")[1]["cursor_seq"] == 0
        assert "forwarder_failed" not in daemon.log()
    with daemon_in(tmp_path) as daemon:
        client = Client(daemon.port)
        until(lambda: client.call("GET", "/v0/routers/r")[1]["cursor_seq"] == head, "the router does not go on")
