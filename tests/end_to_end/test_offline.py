"""`inspect` and `verify` as an operator meets them: on a directory of a daemon that runs, is killed, is stopped."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.test_command_line import topics
from tests.processes.forked import Process, start_daemon

SMALL = {
    "TOPICS_WAL_FILE_BYTES": "1048576",
    "TOPICS_WAL_SHARDS": "2",
    "TOPICS_SEGMENT_MAX_EVENTS": "200",
    "TOPICS_HOT_RETAIN_SEGMENTS": "2",
    "TOPICS_RELOCATE_MS": "50",
    "TOPICS_RECLAIM_MS": "50",
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory that was served and has nothing in it."""
    root: Path = tmp_path_factory.mktemp("empty")
    with daemon(root) as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 0
    return root


@contextmanager
def daemon(root: Path) -> Iterator[tuple[Process, httpx.Client]]:
    """A daemon on `root`/data and `root`/cold, ready; killed at the end if it still runs."""
    port_file = root / "port"
    port_file.unlink(missing_ok=True)
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
    places = {"TOPICS_DATA_DIR": str(root / "data"), "TOPICS_COLD_DIR": str(root / "cold")}
    listener = {"TOPICS_PORT": "0", "TOPICS_PORT_FILE": str(port_file)}
    with (root / "log").open("ab") as log:
        process = start_daemon(inherited | SMALL | places | listener, log)
    try:
        deadline = time.monotonic() + 30
        while not port_file.exists():
            assert process.poll() is None, (root / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        with httpx.Client(base_url=f"http://127.0.0.1:{port_file.read_text().strip()}", timeout=60) as client:
            while client.get("/v0/ready").status_code != 200:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            yield process, client
    finally:
        process.kill()
        process.wait()


def load(client: httpx.Client, batches: int) -> None:
    """Records with tags, some deleted, with checkpoints in between."""
    for i in range(batches):
        records = [{"data": {"i": i, "text": "x" * 100}, "tag": f"tag-{k % 3}"} for k in range(100)]
        assert client.post("/v0/topics/orders", json={"records": records}).is_success
        if i % 4 == 3:
            assert client.post("/v0/topics/orders/delete", json={"match": "tag-1"}).is_success
            assert client.post("/v0/admin/checkpoint").is_success


# ----------------------------------------------------------------- without a daemon


@pytest.mark.parametrize("command", ["inspect", "verify"])
def test_a_directory_that_is_not_there_or_none_of_ours_is_refused(tmp_path: Path, command: str) -> None:
    for place, why in ((tmp_path / "none", "does not exist"), (tmp_path, "is no data directory")):
        done = topics(command, str(place), cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert why in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_help_names_the_options_of_both(tmp_path: Path) -> None:
    for command in ("inspect", "verify"):
        done = topics(command, "--help", cwd=tmp_path)
        assert done.returncode == 0
        assert all(option in done.stdout for option in ("--cold-dir", "TOPICS_COLD_DIR", "--in-use", "--json"))


# ----------------------------------------------------------------- with one


@pytest.mark.slow
def test_a_clean_directory_is_clean_and_nothing_in_it_has_changed(empty: Path) -> None:
    before = _stamps(empty)
    done = topics("verify", str(empty / "data"), cwd=empty)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("0 damages, 0 notes")
    done = topics("inspect", str(empty / "data"), cwd=empty)
    assert (done.returncode, done.stderr) == (0, "")
    assert "topics (0)" in done.stdout
    assert _stamps(empty) == before


def _stamps(root: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in root.rglob("*")}


@pytest.mark.slow
def test_a_directory_in_use_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    with daemon(tmp_path) as (process, client):
        load(client, 6)
        for command in ("verify", "inspect"):
            done = topics(command, str(tmp_path / "data"), cwd=tmp_path)
            assert (done.returncode, done.stdout) == (2, "")
            assert f"in use (lock held by pid {process.pid})" in done.stderr
        for _ in range(3):
            load(client, 4)
            done = topics(
                "verify", "--in-use", str(tmp_path / "data"), cwd=tmp_path, TOPICS_COLD_DIR=f"{tmp_path}/cold"
            )
            assert done.returncode == 0, done.stdout
        done = topics("inspect", "--in-use", str(tmp_path / "data"), cwd=tmp_path)
        assert done.returncode == 0
        assert f"in use by pid {process.pid}" in done.stdout
        load(client, 1)  # the lock is what it was


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_directory_is_clean_however_the_daemon_ended_and_damage_is_found(tmp_path: Path, how: int) -> None:
    data, cold = tmp_path / "data", tmp_path / "cold"
    with daemon(tmp_path) as (process, client):
        load(client, 22)
        time.sleep(0.5)
        process.send_signal(how)
        process.wait(timeout=60)
    done = topics("verify", str(data), "--cold-dir", str(cold), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "0 damages" in done.stdout

    done = topics("inspect", str(data), "--json", cwd=tmp_path, TOPICS_COLD_DIR=str(cold))
    facts = json.loads(done.stdout)
    (topic,) = facts["topics"]
    assert (topic["name"], topic["head_seq"]) == ("orders", 2200)
    assert {segment["tier"] for segment in topic["segments"]} == {"hot", "cold"}

    done = topics("inspect", str(data), "--frames", "--limit", "7", cwd=tmp_path)
    assert len(done.stdout.splitlines()) == 7
    done = topics(
        "inspect", str(data), "--frames", "--topic", "orders", "--json", cwd=tmp_path, TOPICS_COLD_DIR=str(cold)
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {line["topic"] for line in lines} == {"orders"}

    done = topics("verify", str(data), cwd=tmp_path)
    assert done.returncode == 1
    assert "no cold directory is given" in done.stdout

    victim = next(cold.rglob("*.data"))
    content = bytearray(victim.read_bytes())
    content[len(content) // 2] ^= 4
    victim.write_bytes(content)
    done = topics("verify", str(data), "--json", cwd=tmp_path, TOPICS_COLD_DIR=str(cold))
    *findings, last = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 1
    assert {finding["path"] for finding in findings} >= {str(victim)}
    assert last["damage"] == sum(finding["severity"] == "damage" for finding in findings)
