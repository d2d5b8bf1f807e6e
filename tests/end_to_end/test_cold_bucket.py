"""The real daemon whose cold segments are in a bucket, which is a directory here: moved, read, killed; and a bucket
whose calls never return (a FIFO, as in `test_cold_hangs`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.command_line import CommandLine
from tests.end_to_end.test_cold_hangs import answer_again, append, hang, metric, until
from tests.end_to_end.test_sigkill import Client, Daemon

pytestmark = pytest.mark.slow

SMALL = {
    "TOPICS_SEGMENT_MAX_EVENTS": "50",
    "TOPICS_CHECKPOINT_MS": "100",
    "TOPICS_RECLAIM_MS": "100",
    "TOPICS_RELOCATE_MS": "100",
    "TOPICS_HOT_RETAIN_SEGMENTS": "1",
    "TOPICS_CACHE_BYTES": "20000",
    "TOPICS_BUCKET_ROUND_MS": "100",
    "TOPICS_BUCKET_BASE_MS": "1000",
    "TOPICS_DRAIN_MS": "10000",
}


@contextmanager
def daemon_with_bucket(root: Path, **settings: str) -> Iterator[Daemon]:
    """A daemon with small segments and a bucket."""
    (root / "bucket").mkdir(exist_ok=True)
    daemon = Daemon(root, **(SMALL | {"TOPICS_BUCKET": f"file://{root}/bucket"} | settings))
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end()


def files(daemon: Daemon, kind: str) -> list[Path]:
    """The files of segments of a kind in the data directory."""
    return sorted((daemon.root / "data").rglob(f"seg-*.{kind}"))


def objects(daemon: Daemon) -> list[Path]:
    """The objects with records of the segments that are in the bucket alone."""
    firsts = {path.name.split(".")[0].removeprefix("seg-") for path in files(daemon, "object")}
    found = sorted((daemon.root / "bucket" / "segments").rglob("*.data"))
    return [path for path in found if path.name.split("-")[0] in firsts]


def make_cold(daemon: Daemon) -> int:
    """A topic whose oldest segments are in the bucket; its head."""
    client = Client(daemon.port)
    assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
    head = append(client, 400)
    until(lambda: len(files(daemon, "object")) >= 5, "no segment goes to the bucket")
    until(lambda: len(files(daemon, "data")) <= 3, "segments are not removed from the data directory")
    return head


def seqs(client: Client) -> list[int]:
    """The seqs of the records of the topic."""
    found: list[int] = []
    while True:
        status, answer = client.call("GET", f"/v0/topics/t/diff?from_seq={found[-1] + 1 if found else 0}&limit=1000")
        assert status == 200, answer
        if not answer["records"]:
            return found
        found += [record["$seq"] for record in answer["records"]]


def test_segments_that_a_base_has_are_read_from_the_bucket_after_a_kill_as_before(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path) as daemon:
        head = make_cold(daemon)
        client = Client(daemon.port)
        assert client.call("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "b"]})[0] == 200
        kept = seqs(client)
        assert len(kept) == head // 2
        daemon.kill()
        daemon.start()
        assert seqs(Client(daemon.port)) == kept
        code, _ = daemon.terminate()
        assert code == 0
        del daemon.settings["TOPICS_BUCKET"]  # what is in the bucket is read all the same
        daemon.start()
        assert seqs(Client(daemon.port)) == kept


def test_while_calls_of_the_bucket_hang_cold_reads_are_503_and_all_else_goes_on(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, TOPICS_COLD_TIMEOUT_MS="300") as daemon:
        make_cold(daemon)
        victim = objects(daemon)[0]
        aside = hang(victim)
        client = Client(daemon.port)
        for _ in range(10):
            status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
            assert (status, answer["error"]["code"]) == (503, "not_ready")
        assert metric(client, "cold_calls_hanging") >= 8
        for _ in range(10):
            head = append(client, 50)
            status, answer = client.call("GET", f"/v0/topics/t/diff?from_seq={head - 5}&limit=10")
            assert (status, len(answer["records"])) == (200, 5)
            assert client.call("POST", "/v0/admin/checkpoint")[0] == 200
        answer_again(victim, aside)
        until(lambda: metric(client, "cold_calls_hanging") == 0, "calls that have returned are counted")
        status, answer = client.call("GET", "/v0/topics/t/diff?from_seq=0&limit=10")
        assert (status, len(answer["records"])) == (200, 10)
        assert daemon.terminate()[0] == 0


def test_a_restore_is_served_at_once_and_needs_the_bucket_no_more_when_the_segments_are_home(tmp_path: Path) -> None:
    first, second, topics = tmp_path / "first", tmp_path / "second", CommandLine()
    first.mkdir()
    second.mkdir()
    with daemon_with_bucket(first, TOPICS_HOT_RETAIN_SEGMENTS="100") as daemon:
        client = Client(daemon.port)
        assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
        append(client, 400)
        assert client.call("POST", "/v0/topics/t/delete", {"match": ["tag", "Eq", "b"]})[0] == 200
        segments, bases = first / "bucket" / "segments", first / "bucket" / "bases"
        until(lambda: len(list(segments.rglob("*.tags"))) >= 7, "the segments are not put")
        put_ns = max(path.stat().st_mtime_ns for path in segments.rglob("*"))
        until(lambda: any(path.stat().st_mtime_ns > put_ns for path in bases.iterdir()), "no base has the segments")
        kept = seqs(client)
        assert daemon.terminate()[0] == 0
    bucket = first / "bucket"
    done = topics("restore", f"file://{bucket}", "--data-dir", str(second / "data"))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert "segments are still in the bucket" in done.stdout
    assert len(list(bucket.glob("pins/*"))) == 1
    assert topics("verify", str(second / "data")).returncode == 0
    restored = Daemon(second, **SMALL)
    try:
        restored.start()
        assert seqs(Client(restored.port)) == kept
        until(lambda: not (second / "data" / "meta" / "restore").exists(), "the segments do not come home")
        assert not files(restored, "object")
        assert not list(bucket.glob("pins/*"))
        bucket.rename(tmp_path / "away")
        assert seqs(Client(restored.port)) == kept
        assert restored.terminate()[0] == 0
        restored.start()
        assert seqs(Client(restored.port)) == kept
    finally:
        restored.end()
