"""A directory that is a copy: its first start gives out no seq that the original may have given out since."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conformance.client import CLASSES, Client, Daemon, body_of, data_of
from topics.storage.recovery.recovered_state import RecoveredShard
from topics.storage.recovery.restored_copy import MARK, SKIPPED_SEQS, is_restored
from topics.storage.snapshots.snapshot import ReplayPosition


@pytest.fixture
def daemons() -> Iterator[list[Daemon]]:
    found: list[Daemon] = []
    yield found
    for daemon in found:
        daemon.kill()


def on(root: Path, daemons: list[Daemon]) -> Client:
    root.mkdir(exist_ok=True)
    daemons.append(Daemon(root))
    return daemons[-1].start()


def made(root: Path, daemons: list[Daemon], ending: signal.Signals) -> None:
    """A topic of each class with three records, and a queue."""
    with closing(on(root, daemons)) as client:
        for name in CLASSES:
            client.put_topic(name, durability=name)
            client.send_append(name, 1, 2, 3)
        client.put_topic("empty", durability="fsync")
        client.put_topic("jobs", type="queue", durability="fsync")
        client.send_append("jobs", "a", "b")
        daemons[-1].end(ending)


def copied(root: Path, copy: Path) -> Path:
    copy.mkdir()
    shutil.copytree(root / "data", copy / "data")
    return copy


NAMES = [*CLASSES, "empty", "jobs"]


def check_skipped(client: Client, heads: dict[str, int]) -> dict[str, int]:
    """Every topic goes on above all seqs that may have been given out since, and says so."""
    for name in NAMES:
        before = client.state(name)
        assert before["head_seq"] >= heads[name] + SKIPPED_SEQS
        gap = client.read(name, heads[name])
        assert gap["tombstone"]["reason"] == "lost"
        assert gap["tombstone"]["gap_to"] == before["head_seq"]
        assert gap["caught_up"]
        answer = client.send_append(name, "new").json()
        assert answer["first_seq"] == before["head_seq"] + 1
        assert data_of(client.read(name, before["head_seq"])) == ["new"]
    return {name: client.state(name)["head_seq"] for name in NAMES}


def heads_of(root: Path, daemons: list[Daemon]) -> dict[str, int]:
    return {"empty": 0, "jobs": 2} | dict.fromkeys(CLASSES, 3)


@pytest.mark.slow
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
def test_a_marked_copy_goes_on_above_every_seq_that_was_given_out_since(
    tmp_path: Path, daemons: list[Daemon], ending: signal.Signals
) -> None:
    made(tmp_path / "one", daemons, ending)
    copy = copied(tmp_path / "one", tmp_path / "two")
    (copy / "data" / MARK).touch()
    with closing(on(copy, daemons)) as client:
        heads = check_skipped(client, heads_of(copy, daemons))
        assert not (copy / "data" / MARK).exists()
        claimed = body_of(client.post("/v0/topics/jobs/claim", json={"node": "n", "max": 9}))
        assert [job["data"] for job in claimed["claimed"]] == ["a", "b", "new"]
        assert client.get("/v0/topics/fsync/records").text.count('"$seq"') == 4
        daemons[-1].end(signal.SIGTERM)
    with closing(on(copy, daemons)) as client:  # and once only
        for name in NAMES:
            if name != "ephemeral":
                assert client.state(name)["head_seq"] == heads[name]
        assert data_of(client.read("fsync")) == [1, 2, 3]
        again = client.read("fsync", 3)
        assert (again["tombstone"]["gap_from"], data_of(again)) == (4, ["new"])
        assert data_of(client.read("fsync", heads["fsync"] - 1)) == ["new"]


@pytest.mark.slow
def test_a_copy_of_a_directory_that_was_not_stopped_needs_no_mark(tmp_path: Path, daemons: list[Daemon]) -> None:
    made(tmp_path / "one", daemons, signal.SIGKILL)
    with closing(on(copied(tmp_path / "one", tmp_path / "two"), daemons)) as client:
        check_skipped(client, heads_of(tmp_path, daemons))


@pytest.mark.slow
def test_a_directory_that_was_moved_after_a_clean_stop_goes_on_where_it_was(
    tmp_path: Path, daemons: list[Daemon]
) -> None:
    made(tmp_path / "one", daemons, signal.SIGTERM)
    with closing(on(copied(tmp_path / "one", tmp_path / "two"), daemons)) as client:
        assert client.read("fsync")["tombstone"] is None
        assert client.send_append("fsync", 4).json()["first_seq"] == 4
        assert client.send_append("memory", 4).json()["first_seq"] == 4


@pytest.mark.slow
def test_a_directory_that_stayed_where_it_is_was_not_restored(tmp_path: Path, daemons: list[Daemon]) -> None:
    made(tmp_path / "one", daemons, signal.SIGKILL)
    with closing(on(tmp_path / "one", daemons)) as client:
        assert client.send_append("fsync", 4).json()["first_seq"] == 4


class NoMark:
    def exists(self, path: str) -> bool:
        return False


@pytest.mark.parametrize(
    ("identity", "clean", "frames", "restored"),
    [
        ("8:a", False, 5, False),
        ("9:a", False, 5, False),
        ("8:b", False, 5, True),
        ("8:b", True, 5, False),
        ("8:b", False, 3, False),
        (None, False, 5, False),
    ],
)
def test_a_directory_of_another_inode_that_was_not_stopped_is_a_copy(
    identity: str | None, clean: bool, frames: int, restored: bool
) -> None:
    """The number of a device says nothing: it may be another one after each boot."""
    shard = RecoveredShard(0, "wal")
    shard.identity, shard.clean, shard.frame_count = identity, clean, frames
    recovered = SimpleNamespace(shards=[shard], starts={0: ReplayPosition(1, 0, 3)})
    assert is_restored(NoMark(), "/data", recovered, "8:a") is restored  # type: ignore[arg-type]
