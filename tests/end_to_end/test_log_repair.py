"""The real daemon with a bucket, whose log is damaged between a kill and the next start: the start takes the synced
bytes from the rounds, and is refused only if they do not have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.end_to_end.test_cold_bucket import SMALL, daemon_with_bucket
from tests.end_to_end.test_cold_hangs import append, metric, until
from tests.end_to_end.test_repair import content
from tests.end_to_end.test_sigkill import Client, Daemon

pytestmark = pytest.mark.slow

LOGGED = SMALL | {"TOPICS_CHECKPOINT_MS": "10000000", "TOPICS_BUCKET_BASE_MS": "10000000", "TOPICS_WAL_SHARDS": "1"}


def fill(daemon: Daemon) -> tuple[dict[int, object], Path]:
    """Records of which the rounds have all, and the file of the log that has most of them; killed."""
    client = Client(daemon.port)
    # The first base begins new files of the log, and a checkpoint follows. What that covers, no start reads.
    until(lambda: client.call("GET", "/v0/ready")[1]["bucket"]["has_base"], "there is no base")
    assert client.call("PUT", "/v0/topics/t", {"durability": "fsync"})[0] in (200, 201)
    for _ in range(4):
        append(client, 50)
    until(lambda: is_archived(client), "the bucket has not everything")
    before = content(client)
    daemon.kill()
    logs = [path for path in (daemon.root / "data" / "wal").rglob("*") if path.is_file() and path.suffix != ".damaged"]
    return before, max(logs, key=lambda path: len(written(path)))


def is_archived(client: Client) -> bool:
    state = client.call("GET", "/v0/ready")[1]["bucket"]
    return bool(state["state"] == "working" and state["has_base"] and state["lag_bytes"] == 0)


def written(path: Path) -> bytes:
    return path.read_bytes().rstrip(b"\0")


def overwrite(path: Path, start: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(start)
        file.write(data)


def flip(path: Path) -> None:
    at = len(written(path)) // 2
    overwrite(path, at, bytes([path.read_bytes()[at] ^ 0x55]))


def zeros(path: Path) -> None:
    overwrite(path, len(written(path)) // 3, bytes(4096))


def in_two_places(path: Path) -> None:
    end = len(written(path))
    for at in (end // 4, end * 3 // 4):
        overwrite(path, at, b"\xee" * 50)


def header(path: Path) -> None:
    overwrite(path, 0, bytes(24))


@pytest.mark.parametrize("damage", [flip, zeros, in_two_places, header])
def test_a_start_takes_damaged_bytes_of_the_log_from_the_rounds(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    with daemon_with_bucket(tmp_path, **LOGGED) as daemon:
        before, log = fill(daemon)
        intact = written(log)
        damage(log)
        assert written(log) != intact
        daemon.start()
        client = Client(daemon.port)
        assert content(client) == before
        assert log.read_bytes()[: len(intact)] == intact
        assert metric(client, "bucket_repaired_log_files_total") == 1
        assert metric(client, "bucket_repaired_bytes_total") > 0
        assert len(list(log.parent.glob("*.damaged"))) == 1, "the damaged file is kept aside"
        append(client, 5)
        assert daemon.terminate()[0] == 0
        daemon.start()
        assert len(content(Client(daemon.port))) == len(before) + 5


def test_a_start_is_refused_if_the_rounds_are_damaged_too_or_cannot_be_read(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **LOGGED) as daemon:
        before, log = fill(daemon)
        intact = log.read_bytes()
        flip(log)
        bucket, aside = tmp_path / "bucket", tmp_path / "aside"
        bucket.rename(aside)
        with pytest.raises(AssertionError, match="the log is damaged"):
            daemon.start()
        assert "bucket_not_asked" in daemon.log()
        aside.rename(bucket)
        rounds = {path: path.read_bytes() for path in (bucket / "rounds").iterdir()}
        for path, data in rounds.items():
            path.write_bytes(data[:-40] + bytes(8) + data[-32:])
        with pytest.raises(AssertionError, match="the log is damaged"):
            daemon.start()
        assert "bucket_object_damaged" in daemon.log()
        assert log.read_bytes() != intact
        assert not list(log.parent.glob("*.repaired*"))
        for path, data in rounds.items():
            path.write_bytes(data)
        daemon.start()
        assert content(Client(daemon.port)) == before


def test_salvage_gives_up_only_what_the_rounds_do_not_have(tmp_path: Path) -> None:
    with daemon_with_bucket(tmp_path, **(LOGGED | {"TOPICS_RECOVERY": "salvage"})) as daemon:
        before, log = fill(daemon)
        zeros(log)
        daemon.start()
        assert content(Client(daemon.port)) == before
        assert '"event": "salvaged"' not in daemon.log()
        assert not (daemon.root / "data" / "meta" / "bucket-salvaged").exists()
