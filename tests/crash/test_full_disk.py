"""A disk that is really full: a small tmpfs, a daemon on it, and the kernel's own "no space left on device".

All acked records stay readable and are there after a SIGKILL, with a reserve (`TOPICS_MIN_FREE_BYTES`) and without;
below the reserve only appends are refused (`docs/spec/crash.md` 27); a checkpoint that finds no room harms nothing. Who
may not mount a file system skips these tests.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import Daemon
from tests.crash.processes.ledger import Batch, Numbering, TopicLedger, number_in
from tests.end_to_end.test_sigkill import Client, read_all

MIB = 1 << 20
MOST_BATCHES = 400
WITHIN_S = 30.0
PAD = "p" * 3000
CLASSES = ("memory", "disk", "fsync")

pytestmark = pytest.mark.slow


class Disk:
    """A file system of so many MiB."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def free(self) -> int:
        return shutil.disk_usage(self.path).free

    def fill(self, leave: int) -> Path:
        """Take all of it but so many bytes with a file, which is returned. The daemon may take some meanwhile."""
        ballast = self.path / "ballast"
        with ballast.open("wb") as file:
            while (free := self.free) > leave:
                try:
                    os.posix_fallocate(file.fileno(), 0, free - leave)
                    break
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    file.truncate(0)
        return ballast

    def take_inodes(self) -> list[Path]:
        """Take all of them with empty files, which are returned."""
        files = [self.path / f"empty{i}" for i in range(1000)]
        for made, file in enumerate(files):
            try:
                file.touch()
            except OSError:
                return files[:made]
        raise AssertionError("there is no end of inodes")

    def resize(self, mib: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={mib}m", str(self.path)], check=True, timeout=20)


@contextmanager
def mounted(path: Path, mib: int, inodes: int = 0) -> Iterator[Disk]:
    """A small disk; `inodes` 0 are as many as there is room for."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m,mode=0700,nr_inodes={inodes}", "tmpfs", str(path)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=20)
        problem = done.stderr.strip() if done.returncode else ""
    except OSError as error:
        problem = str(error)
    if problem:
        pytest.skip(f"no file system can be mounted here: {problem}")
    try:
        yield Disk(path)
    finally:
        # Lazily if something still has a file open: it is gone as soon as nobody has.
        if subprocess.run(["umount", str(path)], check=False, capture_output=True, timeout=20).returncode:
            subprocess.run(["umount", "-l", str(path)], check=True, timeout=20)


class Site:
    """A daemon whose data are on the small disk, and its log elsewhere."""

    def __init__(self, root: Path, disk: Disk, **settings: object) -> None:
        small: dict[str, object] = {
            "data_dir": disk.path / "data",
            "wal_file_bytes": MIB,
            "wal_shards": 2,
            "segment_max_events": 50,
            "cache_bytes": 200_000,
            "checkpoint_ms": 200,
            "reclaim_ms": 200,
            "segment_compression": "off",  # what fills the disk here compresses well
        }
        self.disk = disk
        self.daemon = Daemon(root, **(small | settings))
        self.ledgers = {name: TopicLedger(name, name, Numbering()) for name in CLASSES}
        self.acked: dict[str, dict[int, int]] = {name: {} for name in CLASSES}
        self.sent: dict[str, list[Batch]] = {name: [] for name in CLASSES}

    def start(self) -> None:
        self.daemon.start().close()

    def kill(self) -> None:
        assert self.daemon.end(signal.SIGKILL) == -signal.SIGKILL

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        return Client(self.daemon.port).call(method, f"/v0{path}", body)

    def create(self) -> None:
        for name in CLASSES:
            assert self.call("PUT", f"/topics/{name}", {"durability": name})[0] == 201

    def append(self, name: str, count: int = 50) -> tuple[int, Any]:
        """A batch of about 160 KiB; what was answered."""
        batch = self.ledgers[name].send(count)
        self.sent[name].append(batch)
        records = batch.records()
        for record in records:
            # It only takes room.
            record.setdefault("meta", {})["_pad"] = PAD
        status, answer = self.call("POST", f"/topics/{name}", {"records": records})
        if status == 200:
            self.acked[name].update(zip(answer["seqs"], batch.numbers, strict=True))
        return status, answer

    def fill(self, pause: float = 0.0) -> dict[str, Any]:
        """Append to every topic until each has been refused; how. The daemon looks at what is free now and then: who is
        faster than its reserve meets the end of the disk."""
        refused: dict[str, Any] = {}
        for _ in range(MOST_BATCHES):
            time.sleep(pause)
            for name in sorted(set(CLASSES) - refused.keys()):
                status, answer = self.append(name)
                if status != 200:
                    assert (status, answer["error"]["code"]) == (503, "read_only"), answer
                    refused[name] = answer
            if len(refused) == len(CLASSES):
                return refused
        raise AssertionError(f"the disk does not get full: {self.disk.free} bytes are free")

    def read(self, name: str) -> tuple[dict[int, int], list[tuple[int, int, str]]]:
        """Numbers by seq, and gaps; every record is as it was sent."""
        records, gaps, _ = read_all(Client(self.daemon.port), name)
        found = {}
        for seq, record in records.items():
            assert record["meta"].pop("_pad") == PAD
            found[seq] = number_in(name, record)
        return found, gaps

    def check(self, deleted_before: int = 0) -> None:
        """All that was acked is there, but for what was deleted from `fsync`; nothing else is, but whole batches that
        had no good answer. Only `memory` may have lost something, and says so."""
        for name in CLASSES:
            found, gaps = self.read(name)
            wanted = {
                seq: number for seq, number in self.acked[name].items() if name != "fsync" or seq >= deleted_before
            }
            lost = {seq for first, last, reason in gaps if reason == "lost" for seq in range(first, last + 1)}
            assert {reason for _, _, reason in gaps} <= ({"lost"} if name != "fsync" else set()), gaps
            missing = wanted.keys() - found.keys()
            assert missing <= lost if name == "memory" else not missing, f"{name} has lost {sorted(missing)[:10]}"
            assert all(found[seq] == wanted[seq] for seq in wanted.keys() & found.keys())
            there = set(found.values()) - set(wanted.values())
            for batch in self.sent[name]:
                assert there.isdisjoint(batch.numbers) or there.issuperset(batch.numbers), "half a batch"
                there.difference_update(batch.numbers)
            assert not there, "records that nobody sent"
            self.acked[name].update(found)

    def until_appends_go_on(self) -> None:
        """Deletions are worked off in the background."""
        deadline = time.monotonic() + WITHIN_S
        while self.append("fsync", 1)[0] != 200:
            assert time.monotonic() < deadline, f"{self.disk.free} bytes are free, and appends are refused"
            time.sleep(0.1)

    def end(self) -> None:
        self.daemon.kill()


@contextmanager
def site_on(tmp_path: Path, mib: int, *, inodes: int = 0, **settings: object) -> Iterator[Site]:
    root = tmp_path / "daemon"
    root.mkdir()
    with mounted(tmp_path / "disk", mib, inodes) as disk:
        site = Site(root, disk, **settings)
        try:
            site.start()
            site.create()
            yield site
        finally:
            site.end()


def test_without_a_reserve_a_full_disk_takes_nothing_that_was_acked(tmp_path: Path) -> None:
    with site_on(tmp_path, 24, min_free_bytes=0) as site:
        refused = site.fill()
        assert all("No space left" in answer["error"]["message"] for answer in refused.values()), refused
        site.check()
        assert site.call("GET", "/ready")[0] == 200
        # What is left of the log's files takes what makes room, and appends go on by themselves when there is some.
        assert site.call("POST", "/topics/fsync/delete", {"before_seq": 5})[0] == 200
        site.check(deleted_before=5)
        site.disk.resize(40)
        site.until_appends_go_on()
        site.fill()
        site.check(deleted_before=5)
        site.kill()
        site.disk.fill(leave=0)
        restart_where_nothing_is_left(site)
        site.disk.resize(80)
        site.start()
        site.check(deleted_before=5)
        for name in CLASSES:
            assert site.append(name)[0] == 200
        site.kill()
        site.start()
        site.check(deleted_before=5)


@pytest.mark.parametrize("least", [0, 20])
def test_without_inodes_appends_wait_for_some_and_nothing_fails(tmp_path: Path, least: int) -> None:
    """Found by attack: with a GiB free every shard was read-only until a restart, over a file that is for people."""
    with site_on(tmp_path, 64, inodes=300, min_free_bytes=0, min_free_inodes=least) as site:
        for name in CLASSES:
            assert site.append(name)[0] == 200
        files = site.disk.take_inodes()
        refused = site.fill(pause=0.1 if least else 0)
        messages = [answer["error"]["message"] for answer in refused.values()]
        assert all("inodes" in message or "No space left" in message for message in messages), refused
        assert least or not any("inodes" in message for message in messages), refused
        assert site.disk.free > 8 * MIB
        assert site.call("POST", "/topics/fsync/delete", {"before_seq": 5})[0] == 200
        site.check(deleted_before=5)
        for file in files:
            file.unlink()
        site.until_appends_go_on()
        site.kill()
        site.start()
        site.check(deleted_before=5)


def restart_where_nothing_is_left(site: Site) -> None:
    """A start that needs room it has not got ends by itself; one that goes well shows everything."""
    for _ in range(2):
        try:
            site.start()
        except (RuntimeError, httpx.TransportError):
            # It has ended, whenever it was that it noticed.
            assert site.daemon.wait() not in (0, -signal.SIGKILL)
        else:
            site.check(deleted_before=5)
            site.kill()


def test_below_the_reserve_only_appends_are_refused_and_deleting_makes_room(tmp_path: Path) -> None:
    with site_on(tmp_path, 32, min_free_bytes=8 * MIB) as site:
        queue = {"type": "queue", "durability": "fsync", "leases_durable": True}
        assert site.call("PUT", "/topics/jobs", queue)[0] == 201
        assert site.call("POST", "/topics/jobs", {"records": [{"data": n} for n in range(20)]})[0] == 200
        refused = site.fill(pause=0.1)
        assert all("are free" in answer["error"]["message"] for answer in refused.values()), refused
        check_that_the_rest_goes_on(site, 300)
        assert site.call("POST", "/topics/jobs", {"records": [{"data": 1}]})[0] == 503
        ingested = site.call("POST", "/topics/disk?stage=one", {"records": [{"data": 1}]})
        assert ingested[0] == 503
        ballast = site.disk.fill(leave=4 * MIB)
        site.kill()
        site.start()
        site.check(deleted_before=300)
        assert site.append("fsync")[0] == 503
        check_that_the_rest_goes_on(site, 400)
        site.kill()
        site.start()
        site.check(deleted_before=400)
        assert site.call("GET", "/topics/jobs")[1]["count"] == 10
        ballast.unlink()
        # Deleting makes room without a restart.
        head = max(site.acked["fsync"])
        assert site.call("POST", "/topics/fsync/delete", {"before_seq": head})[0] == 200
        site.until_appends_go_on()
        site.kill()
        site.start()
        site.check(deleted_before=head)


def check_that_the_rest_goes_on(site: Site, before: int) -> None:
    """Deletions, claims, acks, configs and checkpoints."""
    status, answer = site.call("POST", "/topics/fsync/delete", {"before_seq": before})
    assert (status, answer["earliest_seq"]) == (200, before)
    status, answer = site.call("POST", "/topics/jobs/claim", {"node": "worker", "max": 5, "lease_ms": 60_000})
    assert (status, answer["count"]) == (200, 5)
    seqs = [job["$seq"] for job in answer["claimed"]]
    status, answer = site.call("POST", "/topics/jobs/ack", {"node": "worker", "seqs": seqs})
    assert (status, answer["acked"]) == (200, 5)
    assert site.call("PUT", "/topics/disk", {"cap_records": 1_000_000 + before})[0] == 200
    assert site.call("POST", "/admin/checkpoint")[0] == 200


@pytest.mark.parametrize("reserve", [0, 8 * MIB])
def test_when_the_log_is_used_up_every_change_is_answered_and_goes_on_by_itself(tmp_path: Path, reserve: int) -> None:
    """Found by attack: they got no answer, nor did the appends behind them, and were carried out long after."""
    with site_on(tmp_path, 32, min_free_bytes=reserve, wal_shards=1, wal_file_bytes=64 << 10) as site:
        ballast = site.disk.fill(leave=0)
        statuses: list[int] = []
        while not statuses or statuses[-1] == 200:
            statuses.append(site.call("PUT", "/topics/fsync", {"ttl_ms": 1_000_000_000 + len(statuses)})[0])
        assert statuses[-1] == 503
        assert len(statuses) > 10, "what is left of the log takes some"
        record = {"records": [{"data": 1}]}
        calls: list[tuple[str, str, Any]] = [
            ("PUT", "/topics/fsync", {"ttl_ms": 1_000_000_000}),
            ("PUT", "/topics/new", {}),
            ("POST", "/topics/another", record),
            ("POST", "/topics/fsync", record),
            ("POST", "/topics/disk?stage=one", record),
            ("DELETE", "/topics/disk", None),
            ("PUT", "/routers/new", {"source": "disk", "dest": "fsync"}),
        ]
        for method, path, body in calls:
            status, answer = site.call(method, path, body)
            assert (status, answer["error"]["code"]) == (503, "read_only"), (method, path, answer)
        assert site.call("GET", "/topics/fsync")[0] == 200
        ballast.unlink()
        site.until_appends_go_on()
        config = site.call("GET", "/topics/fsync")[1]["config"]
        assert config["ttl_ms"] == 1_000_000_000 + len(statuses) - 1, "the one that was queued, and none behind it"
        assert [topic["topic"] for topic in site.call("GET", "/topics")[1]["topics"]] == sorted(CLASSES)
        for method, path, body in calls:
            assert site.call(method, path, body)[0] in (200, 201), (method, path)


def test_a_checkpoint_that_finds_no_room_harms_nothing(tmp_path: Path) -> None:
    seldom = 3_600_000
    with site_on(tmp_path, 40, min_free_bytes=0, wal_file_bytes=4 * MIB, checkpoint_ms=seldom) as site:
        for name in CLASSES:
            assert site.append(name)[0] == 200
        ballast = site.disk.fill(leave=64 << 10)
        for _ in range(3):
            status, answer = site.call("POST", "/admin/checkpoint")
            assert status >= 500, answer
            site.check()
            # There is room in the log, which was allocated before.
            assert site.append("fsync")[0] == 200
            assert site.append("disk")[0] == 200
        ballast.unlink()
        site.kill()
        site.start()
        site.check()
        ballast = site.disk.fill(leave=64 << 10)
        assert site.call("POST", "/admin/checkpoint")[0] >= 500
        site.check()
        ballast.unlink()
        assert site.call("POST", "/admin/checkpoint")[0] == 200
        site.kill()
        site.start()
        site.check()
