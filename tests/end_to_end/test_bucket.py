"""The whole way: a daemon archives, its machine is lost, and another daemon serves what is restored."""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command_line import CommandLine
from tests.client.ports import free_port
from tests.conformance.client import Client, Daemon, until
from topics.storage.recovery.restored_copy import SKIPPED_SEQS

OPERATIONS = Path(__file__).resolve().parents[2] / "docs" / "operations.md"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """The directory of a bucket."""
    path = tmp_path / "bucket"
    path.mkdir()
    return path


@pytest.fixture
def daemon(tmp_path: Path, bucket: Path) -> Iterator[Daemon]:
    """A daemon with a bucket, small segments, and bases that come quickly."""
    root = tmp_path / "first"
    root.mkdir()
    settings: dict[str, Any] = {"bucket": f"file://{bucket}", "bucket_round_ms": 50, "bucket_base_ms": 1000}
    daemon = Daemon(root, port=free_port(), segment_max_events=20, checkpoint_ms=1000, **settings)
    try:
        yield daemon
    finally:
        daemon.kill()


def records_of(client: Client, topic: str) -> list[tuple[int, Any]]:
    """Seq and data of every record."""
    found: list[tuple[int, Any]] = []
    position = 0
    while True:
        answer = client.get(f"/v0/topics/{topic}/diff?from_seq={position}&limit=1000").json()
        found += [(record["$seq"], record["data"]) for record in answer["records"]]
        if answer["caught_up"]:
            return found
        position = answer["next_from_seq"]


def commands() -> list[list[str]]:
    """The commands of the chapter about a lost machine."""
    chapter = OPERATIONS.read_text().partition("\n## 14. ")[2]
    found = [shlex.split(line)[1:] for line in chapter.splitlines() if line.startswith("    topics ")]
    assert [words[0] for words in found] == ["bucket", "bucket", "restore", "verify", "bucket", "restore", "restore"]
    return found


def archived(topics: CommandLine, url: str) -> Any:
    """What the bucket has."""
    done: subprocess.CompletedProcess[str] = topics("bucket", "status", url, "--json")
    return json.loads(done.stdout) if done.returncode == 0 else {}


@pytest.mark.slow
def test_what_was_archived_is_served_after_the_machine_is_lost(daemon: Daemon, bucket: Path, tmp_path: Path) -> None:
    url, topics = f"file://{bucket}", CommandLine()
    with closing(daemon.start()) as client:
        client.put("/v0/topics/orders", json={"durability": "fsync"})
        client.put("/v0/topics/mails", json={"type": "queue", "durability": "fsync"})
        for batch in range(5):
            records = [{"data": {"n": 20 * batch + i}, "tag": f"t{i % 3}"} for i in range(20)]
            client.post("/v0/topics/orders", json={"records": records})
        client.post("/v0/topics/mails", json={"records": [{"data": i} for i in range(3)]})
        until(lambda: archived(topics, url).get("newest_base") is not None, within_s=60)
        client.post("/v0/topics/orders/delete", json={"before_seq": 10})
        client.post("/v0/topics/orders", json={"records": [{"data": {"n": 1000}}]})
        kept = records_of(client, "orders"), records_of(client, "mails")
        assert len(kept[0]) == 92
        before = archived(topics, url)["last_round"]
        client.post("/v0/topics/mails", json={"records": [{"data": "last"}]})
        until(lambda: archived(topics, url)["last_round"] > before + 1, within_s=60)
    daemon.kill()
    verified = topics("bucket", "verify", url)
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stdout
    root = tmp_path / "second"
    root.mkdir()
    places = {"s3://archive/main": url, "/var/lib/topics": str(root / "data")}
    places |= {f"/srv/{name}": str(tmp_path / name) for name in ("before", "orders")}
    cut = archived(topics, url)["last_round_ms"]
    for command in commands():
        done = topics(*(places.get(word, str(cut) if word.startswith("2026") else word) for word in command))
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    second = Daemon(root, port=free_port())
    try:
        with closing(second.start()) as client:
            assert records_of(client, "orders") == kept[0]
            assert [data for _, data in records_of(client, "mails")] == [0, 1, 2, "last"]
            answer = client.post("/v0/topics/orders", json={"records": [{"data": 1}]}).json()
            assert answer["first_seq"] > SKIPPED_SEQS
    finally:
        second.kill()
