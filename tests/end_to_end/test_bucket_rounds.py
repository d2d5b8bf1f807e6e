"""A real daemon with a bucket in a directory: killed and started again, refused and let in, stopped."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bucket.archived import log_in, rounds_in
from tests.bucket.simulated_objects import SimObjects
from tests.end_to_end.test_cold_hangs import metric, until
from tests.end_to_end.test_sigkill import Client, Daemon
from topics.bucket.ownership.owner_format import decode_owner


def objects_in(bucket: Path) -> SimObjects:
    """What is in a bucket that is a directory."""
    objects = SimObjects()
    for path in sorted(bucket.rglob("*")):
        name = str(path.relative_to(bucket))
        if path.is_file() and not name.startswith("."):
            objects.put_new(name, path.read_bytes())
    return objects


def log_on_disk(root: Path) -> dict[tuple[int, int], bytes]:
    return {
        (int(path.parent.name.removeprefix("shard-")), int(path.name[4:24])): path.read_bytes()
        for path in (root / "data" / "wal").glob("shard-*/wal-*.log")
    }


def bucket_of(client: Client) -> dict[str, object]:
    found = client.call("GET", "/v0/ready")[1]["bucket"]
    assert isinstance(found, dict)
    return found


def append(client: Client, count: int) -> None:
    for _ in range(count):
        status, answer = client.call("POST", "/v0/topics/a", {"records": [{"data": "x" * 500}] * 20})
        assert status in (200, 201), answer


def check_rounds(root: Path) -> None:
    there, here = log_in(rounds_in(objects_in(root / "bucket"))), log_on_disk(root)
    assert here.keys() <= there.keys()
    for key, content in here.items():
        assert content.startswith(there[key])
        assert not content[len(there[key]) :].strip(b"\0")


@pytest.mark.slow
def test_the_rounds_of_a_daemon_that_is_killed_again_and_again_have_its_log(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    daemon = Daemon(tmp_path, TOPICS_BUCKET=f"file://{tmp_path}/bucket", TOPICS_BUCKET_ROUND_MS="50")
    for life in range(1, 5):
        daemon.start()
        client = Client(daemon.port)
        append(client, 10 * life)
        assert bucket_of(client)["epoch"] == life
        if life < 4:
            daemon.kill()
    until(lambda: bucket_of(client)["lag_bytes"] == 0, "the log is not archived")
    # A checkpoint of the first base may write to the log in between.
    until(lambda: metric(client, "bucket_lag_bytes") == 0, "the metric does not know that the log is archived")
    until(lambda: bucket_of(client)["has_base"] is True, "there is no base")
    assert bucket_of(client)["state"] == "working"
    assert metric(client, "bucket_epoch") == 4
    code, _ = daemon.terminate()
    assert code == 0
    check_rounds(tmp_path)
    verified = subprocess.run(
        [sys.executable, "-m", "topics", "verify", str(tmp_path / "data")], capture_output=True, timeout=60, check=False
    )
    assert (verified.returncode, b"unknown name" in verified.stdout) == (0, False)
    owner = decode_owner((tmp_path / "bucket" / "owner").read_bytes())
    assert (owner.state, owner.epoch) == ("free", 4)


@pytest.mark.slow
def test_a_second_directory_is_refused_with_exit_code_2_and_may_take(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    (tmp_path / "other").mkdir()
    first = Daemon(tmp_path, TOPICS_BUCKET=f"file://{tmp_path}/bucket", TOPICS_BUCKET_ROUND_MS="50")
    first.start()
    append(Client(first.port), 3)
    until(lambda: bucket_of(Client(first.port))["lag_bytes"] == 0, "the log is not archived")
    first.kill()
    command = [sys.executable, "-m", "topics", "serve", "--port", "0", "--data-dir", str(tmp_path / "other" / "data")]
    command += ["--bucket", f"file://{tmp_path}/bucket"]
    refused = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert refused.returncode == 2
    assert b"owned by another data directory" in refused.stderr + refused.stdout
    assert list((tmp_path / "other" / "data").iterdir()) == [], "a standby, or a restore, makes its own"
    second = Daemon(tmp_path / "other", TOPICS_BUCKET=f"file://{tmp_path}/bucket", TOPICS_BUCKET_TAKE="1")
    second.start()
    assert bucket_of(Client(second.port))["epoch"] == 2
    assert second.terminate()[0] == 0
    assert rounds_in(objects_in(tmp_path / "bucket"))[-1].head.epoch == 2


@pytest.mark.slow
@pytest.mark.parametrize("flag", ["--take", "--take=1", "--bucket-take"])
def test_take_is_a_flag_of_serve(flag: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "topics", "serve", flag, "--bucket", f"file://{tmp_path}/nowhere", "--port", "0"]
    refused = subprocess.run(
        [*command, "--data-dir", str(tmp_path / "data")], capture_output=True, timeout=60, check=False
    )
    assert refused.returncode == 2
    assert b"there is no directory" in refused.stderr + refused.stdout
