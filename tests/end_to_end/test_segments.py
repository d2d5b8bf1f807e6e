"""Segments, tiers and checkpoints with the real daemon: killed at any moment, copied while it runs, at another number
of shards, with a million records.

As in `test_sigkill`, a seed decides when a kill comes, but not what the operating system makes of it.
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.end_to_end.test_sigkill import Client, Daemon, read_all

TOPICS = ("disk", "fsync")
TAGS = ("a", "b", "c")


@contextmanager
def daemon_in(root: Path, **settings: str) -> Iterator[Daemon]:
    """A daemon with small segments, everything at work all the time, and a cold directory."""
    small = {
        "TOPICS_COLD_DIR": str(root / "cold"),
        "TOPICS_SEGMENT_MAX_EVENTS": "50",
        "TOPICS_CHECKPOINT_MS": "100",
        "TOPICS_RECLAIM_MS": "100",
        "TOPICS_RELOCATE_MS": "100",
        "TOPICS_HOT_RETAIN_SEGMENTS": "1",
        "TOPICS_CACHE_BYTES": "20000",
    }
    daemon = Daemon(root, **(small | settings))
    try:
        daemon.start()
        yield daemon
    finally:
        daemon.end()


class Ledger:
    """What the one client of a topic knows: what was acked with which seq, what was (perhaps) deleted."""

    def __init__(self) -> None:
        self.sent: dict[str, dict[str, Any]] = {}
        """Every record that left, by its id."""
        self.acked: dict[int, dict[str, Any]] = {}
        self.doomed: set[int] = set()
        """Acked seqs that a deletion was asked for."""
        self.unsure: list[tuple[int | None, str | None]] = []
        """Deletions without an answer: below which seq, which tag."""
        self.gone: set[int] = set()
        """Acked seqs of an acked deletion."""
        self.lives = 0

    def selected(self, before: int | None, tag: str | None) -> set[int]:
        return {
            seq
            for seq, record in self.acked.items()
            if (before is None or seq < before) and (tag is None or record["$tag"] == tag)
        }

    def work(self, port: int, topic: str, seed: int) -> None:
        """Append and delete until the daemon is gone."""
        rng, client = random.Random(seed), Client(port)
        self.lives += 1
        for i in range(1_000_000):
            if rng.random() < 0.85 or not self.acked:
                batch = []
                for n in range(rng.randint(1, 12)):
                    name = f"{self.lives}-{i}-{n}"
                    record = {"data": {"id": name, "x": "x" * rng.randrange(200)}, "tag": rng.choice(TAGS)}
                    self.sent[name] = batch_record = {"data": record["data"], "$tag": record["tag"]}
                    batch.append((record, batch_record))
                status, answer = client.call("POST", f"/v0/topics/{topic}", {"records": [sent for sent, _ in batch]})
                if status != 200:
                    return
                for seq, (_, kept) in zip(answer["seqs"], batch, strict=True):
                    assert seq not in self.acked, f"seq {seq} of {topic} was given out twice"
                    self.acked[seq] = kept
                continue
            tag = rng.choice([*TAGS, None])
            before = None if tag is not None and rng.random() < 0.3 else max(self.acked) - rng.randrange(1500)
            body: Any = {} if tag is None else {"match": ["tag", "Eq", tag]}
            if before is not None:
                body["before_seq"] = max(before, 1)
            chosen = self.selected(body.get("before_seq"), tag)
            self.doomed |= chosen
            status, answer = client.call("POST", f"/v0/topics/{topic}/delete", body)
            if status != 200:
                self.unsure.append((body.get("before_seq"), tag))
                return
            self.gone |= chosen

    def check(self, topic: str, client: Client) -> None:
        """Everything acked is there or was deleted, what was deleted stays so, and nothing else is there."""
        records, gaps, head = read_all(client, topic)
        assert gaps == [], f"{topic}: {gaps}"
        for seq, record in records.items():
            name = record["data"]["id"]
            assert name in self.sent, f"{topic}: seq {seq} was never sent"
            wanted = self.acked.get(seq, self.sent[name])
            assert {"data": record["data"], "$tag": record["$tag"]} == wanted, f"{topic}: seq {seq} has changed"
        names = [record["data"]["id"] for record in records.values()]
        assert len(names) == len(set(names)), f"{topic}: a record is there twice"
        missing = self.acked.keys() - records.keys() - self.doomed
        assert not missing, f"{topic}: acked seqs {sorted(missing)[:20]} are missing"
        back = self.gone & records.keys()
        assert not back, f"{topic}: deleted seqs {sorted(back)[:20]} are back"
        assert head >= max(self.acked, default=0)
        # What is there without an ack is there for good; what is not is not in doubt any more either.
        for seq, record in records.items():
            self.acked.setdefault(seq, self.sent[record["data"]["id"]])
        self.gone |= self.doomed - records.keys()
        self.doomed &= self.gone
        status, state = client.call("GET", f"/v0/topics/{topic}")
        assert status == 200
        assert (state["count"], state["earliest_seq"]) == (len(records), min(records, default=head + 1))


def read_on(port: int, topic: str, stop: threading.Event, problems: list[str]) -> None:
    """Read from random positions until the daemon is gone."""
    client, rng = Client(port), random.Random(port)
    position = 0
    while not stop.is_set():
        status, answer = client.call("GET", f"/v0/topics/{topic}/diff?from_seq={position}&limit=500")
        if status == 0:
            return
        if status != 200 or answer["tombstone"] is not None:
            problems.append(f"{topic} from {position}: {status} {answer}"[:600])
            return
        position = answer["next_from_seq"]
        if answer["caught_up"]:
            position = rng.randint(0, position)


def data_files(daemon: Daemon) -> set[str]:
    """The `.data` files in both tiers as a checkpoint names them."""
    hot, cold = daemon.root / "data", daemon.root / "cold"
    return {str(path.relative_to(hot)) for path in hot.rglob("*.data")} | {
        f"cold:{path.relative_to(cold)}" for path in cold.rglob("*.data")
    }


def check_nothing_leaks(daemon: Daemon, client: Client) -> None:
    """Once there is nothing left to do, every segment on disk is one that counts, in one tier; nothing is half made."""
    deadline = time.monotonic() + 60
    while True:
        status, answer = client.call("POST", "/v0/admin/checkpoint?hold_ms=300")
        assert status == 200, answer
        named = {name for name in answer["files"] if name.endswith(".data")}
        found = data_files(daemon)
        odd = [
            path
            for path in daemon.root.rglob("*")
            if path.name.endswith((".tmp", ".deleted", ".cut", ".damaged"))
            and path.name != "next.tmp"  # the next WAL file
        ]
        if (named == found and not odd) or time.monotonic() > deadline:
            break
        time.sleep(0.7)
    assert named == found, f"on disk and not named {sorted(found - named)}, named and not there {sorted(named - found)}"
    assert odd == []


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_leave_nothing_behind(tmp_path: Path) -> None:
    rng = random.Random(11)
    with daemon_in(tmp_path) as daemon:
        client = Client(daemon.port)
        for topic in TOPICS:
            assert client.call("PUT", f"/v0/topics/{topic}", {"durability": topic})[0] == 201
        ledgers = {topic: Ledger() for topic in TOPICS}
        deadline = time.monotonic() + 150
        kills, was_cold = 0, False
        while kills < 8 and time.monotonic() < deadline:
            stop, problems = threading.Event(), list[str]()
            threads = [
                threading.Thread(target=ledger.work, args=(daemon.port, topic, rng.randrange(1 << 30)))
                for topic, ledger in ledgers.items()
            ]
            threads += [threading.Thread(target=read_on, args=(daemon.port, topic, stop, problems)) for topic in TOPICS]
            for thread in threads:
                thread.start()
            time.sleep(rng.uniform(0.3, 2.0))
            daemon.kill()
            kills += 1
            was_cold = was_cold or any((tmp_path / "cold").rglob("*.data"))
            stop.set()
            for thread in threads:
                thread.join(60)
            assert not problems, problems
            daemon.start()
            client = Client(daemon.port)
            for topic, ledger in ledgers.items():
                ledger.check(topic, client)
        assert kills >= 6
        assert sum(len(ledger.acked) for ledger in ledgers.values()) > 500
        assert sum(len(ledger.gone) for ledger in ledgers.values()) > 50
        assert was_cold
        check_nothing_leaks(daemon, client)
        assert daemon.terminate()[0] == 0, daemon.log()
        daemon.start()
        client = Client(daemon.port)
        for topic, ledger in ledgers.items():
            ledger.check(topic, client)
            assert client.call("DELETE", f"/v0/topics/{topic}")[0] == 200
        check_nothing_leaks(daemon, client)
        assert data_files(daemon) == set()


def fill(client: Client, topics: list[str], batches: int, tag: str) -> dict[str, dict[int, Any]]:
    """Append to every topic; what was acked."""
    acked: dict[str, dict[int, Any]] = {topic: {} for topic in topics}
    for i in range(batches):
        for topic in topics:
            batch = [{"data": [tag, i, n]} for n in range(10)]
            status, answer = client.call("POST", f"/v0/topics/{topic}", {"records": batch})
            assert status in (200, 201), answer
            acked[topic].update(zip(answer["seqs"], (record["data"] for record in batch), strict=True))
    return acked


@pytest.mark.slow
def test_another_number_of_shards_loses_nothing(tmp_path: Path) -> None:
    topics = [f"t{i}" for i in range(6)]
    acked: dict[str, dict[int, Any]] = {topic: {} for topic in topics}
    for number, (shards, how) in enumerate([("1", "kill"), ("3", "stop"), ("2", "kill"), ("1", "kill"), ("3", "stop")]):
        with daemon_in(tmp_path, TOPICS_WAL_SHARDS=shards) as daemon:
            daemon.lives = 100 * number  # its port file is another
            client = Client(daemon.port)
            for topic in topics if number else ():
                records, gaps, _ = read_all(client, topic)
                assert ({seq: record["data"] for seq, record in records.items()}, gaps) == (acked[topic], []), shards
            for topic, more in fill(client, topics, 12, shards + how).items():
                acked[topic].update(more)
            if how == "stop":
                assert daemon.terminate()[0] == 0, daemon.log()
            else:
                daemon.kill()
        for path in tmp_path.glob("port.*"):
            path.unlink()


def test_a_checkpoint_answers_with_files_that_exist_and_a_position(tmp_path: Path) -> None:
    with daemon_in(tmp_path, TOPICS_CHECKPOINT_MS="60000") as daemon:
        client = Client(daemon.port)
        fill(client, ["t"], 30, "x")
        status, answer = client.call("POST", "/v0/admin/checkpoint?hold_ms=60000")
        assert status == 200
        assert set(answer) == {"files", "position", "performance"}
        assert answer["performance"]["server_total_ms"] >= 0
        roots = {True: tmp_path / "cold", False: tmp_path / "data"}
        for name in answer["files"]:
            assert (roots[name.startswith("cold:")] / name.removeprefix("cold:")).is_file(), name
        kinds = {Path(name).suffix for name in answer["files"]}
        assert {".log", ".cbor", ".data", ".idx", ".tags"} <= kinds
        assert len(answer["position"]) == 2
        for at in answer["position"]:
            assert set(at) == {"shard", "file", "offset"}
        bodies: tuple[Any, ...] = (None, {})
        for body in bodies:
            assert client.call("POST", "/v0/admin/checkpoint", body)[0] == 200
        for bad in ("x", "-1", "1.5", "", "1e3", "true"):
            status, answer = client.call("POST", f"/v0/admin/checkpoint?hold_ms={bad}")
            assert (status, answer["error"]["code"]) == (400, "invalid_request"), (bad, answer)
            assert "hold_ms" in json.dumps(answer["error"]), answer
        status, answer = client.call("GET", "/v0/admin/checkpoint")
        assert (status, answer["error"]["code"]) == (405, "method_not_allowed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_a_copy_made_during_a_hold_is_a_daemon_of_its_own(tmp_path: Path, seed: int) -> None:
    (tmp_path / "one").mkdir()
    copied = tmp_path / "two"
    with daemon_in(tmp_path / "one") as daemon:
        client = Client(daemon.port)
        for topic in TOPICS:
            assert client.call("PUT", f"/v0/topics/{topic}", {"durability": topic})[0] == 201
        ledgers = {topic: Ledger() for topic in TOPICS}
        threads = [
            threading.Thread(target=ledger.work, args=(daemon.port, topic, seed)) for topic, ledger in ledgers.items()
        ]
        for thread in threads:
            thread.start()
        time.sleep(1.2)
        before = {topic: (dict(ledger.acked), set(ledger.gone)) for topic, ledger in ledgers.items()}
        status, answer = client.call("POST", "/v0/admin/checkpoint?hold_ms=60000")
        assert status == 200
        time.sleep(0.3)
        for name in answer["files"]:
            cold = name.startswith("cold:")
            path = name.removeprefix("cold:")
            target = copied / ("cold" if cold else "data") / path
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(daemon.root / ("cold" if cold else "data") / path, target)
        daemon.kill()
        for thread in threads:
            thread.join(60)
    with daemon_in(copied) as daemon:
        client = Client(daemon.port)
        for topic, ledger in ledgers.items():
            acked, gone = before[topic]
            records, gaps, _ = read_all(client, topic)
            # Another directory: nobody can tell what the original has acked behind the end of the copy.
            assert [reason for _, _, reason in gaps] == ["lost"], topic
            assert gaps[0][0] > max(acked)
            missing = acked.keys() - records.keys() - ledger.doomed
            assert not missing, f"{topic}: {sorted(missing)[:20]}"
            assert not gone & records.keys()
            for seq, record in records.items():
                wanted = ledger.sent[record["data"]["id"]]
                assert {"data": record["data"], "$tag": record["$tag"]} == wanted
                assert ledger.acked.get(seq, wanted) == wanted
        status, answer = client.call("POST", "/v0/topics/disk", {"records": [{"data": 1}]})
        assert status == 200


class Line(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: msgspec.Raw


class Page(msgspec.Struct):
    records: list[Line]
    next_from_seq: int
    caught_up: bool
    tombstone: dict[str, Any] | None = None


@pytest.mark.slow
def test_a_million_records_in_a_hundred_segments_are_the_same_after_a_restart(tmp_path: Path) -> None:
    settings = {
        "TOPICS_SEGMENT_MAX_EVENTS": "10000",
        "TOPICS_WAL_FILE_BYTES": str(16 << 20),
        "TOPICS_HOT_RETAIN_SEGMENTS": "40",
        "TOPICS_CHECKPOINT_MS": "1000",
    }
    written = hashlib.sha256()

    def digest() -> tuple[int, str, list[int]]:
        found, count, gaps = hashlib.sha256(), 0, []
        with closing(http.client.HTTPConnection("127.0.0.1", daemon.port, timeout=60)) as connection:
            page = Page([], 0, False)
            while not page.caught_up:
                connection.request("GET", f"/v0/topics/t/diff?from_seq={page.next_from_seq}&limit=1000")
                page = msgspec.json.decode(connection.getresponse().read(), type=Page)
                if page.tombstone is not None:
                    gaps.append(page.tombstone["gap_from"])
                for record in page.records:
                    count += 1
                    assert record.seq == count
                    found.update(record.data)
        return count, found.hexdigest(), gaps

    with daemon_in(tmp_path, **settings) as daemon:
        client = Client(daemon.port)
        for i in range(100):
            batch = [b'{"i": %d, "n": %d}' % (i, n) for n in range(10_000)]
            records = [{"data": msgspec.Raw(data)} for data in batch]
            status, answer = client.call("POST", "/v0/topics/t?return_seqs=false", {"records": records})
            assert status in (200, 201), answer
            written.update(b"".join(batch))
        assert client.call("POST", "/v0/admin/checkpoint")[0] == 200
        wanted: Any = (1_000_000, written.hexdigest(), [])
        # Some may be between two directories at the moment of a look.
        deadline = time.monotonic() + 120
        while len(data_files(daemon)) < 100:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        assert daemon.terminate()[0] == 0, daemon.log()
        daemon.start()
        assert digest() == wanted
        daemon.kill()
        daemon.start()
        assert digest() == wanted
