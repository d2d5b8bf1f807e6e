"""Copies of the directories of a daemon that is hard at work, made while a checkpoint is held (`docs/spec/crash.md`
13): what is started on one is the daemon as it was at one moment after the call, in every topic, router and queue.

All kinds of work go on at once, rotation, checkpoints, reclaim and relocation included, and everything that clients
know is written down beside it. As with kills, the operating system decides what exactly is met.
"""

from __future__ import annotations

import hashlib
import os
import random
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio
import xxhash

from tests.end_to_end.test_segments import Ledger, daemon_in
from tests.end_to_end.test_sigkill import Client, Daemon, read_all
from topics.storage.maintenance.file_holds import MAX_HOLD_MS, FileHolds
from topics.storage.recovery.restored_copy import SKIPPED_SEQS

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

import data_copy  # noqa: E402

CAP = 150
Read = tuple[dict[int, Any], list[tuple[int, int, str]], int]


# ----------------------------------------------------------------- what goes on meanwhile


@dataclass
class Known:
    """What the clients knew at a moment: what was acked, and what became of it."""

    records: dict[str, dict[int, Any]]
    gone: dict[str, set[int]]
    jobs: set[int]
    done: set[int]


@dataclass
class Site:
    """A daemon and its clients. Each thread ends with `stop`, or when there is no answer any more."""

    daemon: Daemon
    names: dict[str, str] = field(default_factory=dict)
    """Of those topics whose shard matters, by what they are for."""
    stop: threading.Event = field(default_factory=threading.Event)
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    sent: dict[str, list[Any]] = field(default_factory=dict)
    acked: dict[str, dict[int, Any]] = field(default_factory=dict)
    jobs: set[int] = field(default_factory=set)
    asked: set[int] = field(default_factory=set)
    """Jobs that somebody was about to ack."""
    done: set[int] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    _threads: list[threading.Thread] = field(default_factory=list)

    def known(self) -> Known:
        """As of now. What was acked by now is in it, for all of it is appended to only."""
        records = {topic: dict(acked) for topic, acked in self.acked.items()}
        gone = {topic: set(ledger.gone) for topic, ledger in self.ledgers.items()}
        records |= {topic: dict(ledger.acked) for topic, ledger in self.ledgers.items()}
        done = set(self.done)
        return Known(records, gone, set(self.jobs), done)

    def is_busy(self) -> bool:
        """There is some of everything by now."""
        known = self.known()
        enough = min(len(records) for records in known.records.values()) > 100
        return enough and len(known.done) > 50 and any((self.daemon.root / "cold").rglob("*.data"))

    def create(self) -> None:
        """Topics and routers. Routers and dead letters lead from one shard to the other, and back."""
        client = Client(self.daemon.port)
        self.names = {
            "source": self._in_shard(client, 0, "source", {"durability": "fsync"}),
            "copies": self._in_shard(client, 1, "copies", {"durability": "fsync"}),
            "back": self._in_shard(client, 0, "back", {"durability": "disk"}),
            "dead": self._in_shard(client, 0, "dead", {"durability": "fsync"}),
        }
        queue = {"type": "queue", "durability": "fsync", "max_deliveries": 1, "dead_letter": self.names["dead"]}
        self.names["jobs"] = self._in_shard(client, 1, "jobs", queue)
        configs: dict[str, dict[str, Any]] = {
            "disk": {"durability": "disk"},
            "fsync": {"durability": "fsync"},
            "memory": {"durability": "memory"},
            "ephemeral": {"durability": "ephemeral", "cap_records": 2000},
            "capped": {"durability": "fsync", "cap_records": CAP},
            "short": {"durability": "disk", "ttl_ms": 600},
        }
        for name, config in configs.items():
            assert client.call("PUT", f"/v0/topics/{name}", config)[0] == 201
        source, copies, back = (self.names[name] for name in ("source", "copies", "back"))
        for router, ends in (("there", (source, copies)), ("on", (copies, back))):
            body = {"source": ends[0], "dest": ends[1], "guarantee": "exactly_once"}
            assert client.call("PUT", f"/v0/routers/{router}", body)[0] == 201

    @staticmethod
    def _in_shard(client: Client, shard: int, stem: str, config: Any) -> str:
        """Create a topic whose log is in this shard of two."""
        for number in range(64):
            name = f"{stem}-{number}"
            assert client.call("PUT", f"/v0/topics/{name}", config)[0] == 201
            epoch = client.call("GET", f"/v0/topics/{name}")[1]["epoch"]
            if xxhash.xxh3_64_intdigest(struct.pack("<Q", epoch)) % 2 == shard:
                return name
            assert client.call("DELETE", f"/v0/topics/{name}")[0] == 200
        raise AssertionError("no id is in that shard")

    def start(self, seed: int) -> None:
        """Let the clients work."""
        for number, topic in enumerate(("disk", "fsync")):
            ledger = self.ledgers[topic] = Ledger()
            self._spawn(lambda ledger=ledger, topic=topic, n=number: ledger.work(self.daemon.port, topic, seed + n))  # type: ignore[misc]
        plain = ["memory", "ephemeral", "capped", "short", self.names["source"]]
        for topic in plain:
            self.sent[topic], self.acked[topic] = [], {}
            self._spawn(lambda topic=topic: self._append(topic, seed))  # type: ignore[misc]
        self._spawn(self._work_off)
        self._spawn(self._come_and_go)

    def _spawn(self, work: Callable[[], None]) -> None:
        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()

    def _append(self, topic: str, seed: int) -> None:
        client, rng = Client(self.daemon.port), random.Random(f"{topic} {seed}")
        sent, acked = self.sent[topic], self.acked[topic]
        while not self.stop.is_set():
            batch = [[len(sent) + n, "x" * rng.randrange(300)] for n in range(rng.randint(1, 8))]
            sent.extend(batch)
            status, answer = client.call("POST", f"/v0/topics/{topic}", {"records": [{"data": data} for data in batch]})
            if status != 200:
                self._note(topic, status, answer)
                return
            acked.update(zip(answer["seqs"], batch, strict=True))
            time.sleep(0.002)

    def _work_off(self) -> None:
        """Append jobs, claim them, ack two of three. The third is given back, and is a dead letter then."""
        client, path = Client(self.daemon.port), f"/v0/topics/{self.names['jobs']}"
        number = 0
        while not self.stop.is_set():
            batch = list(range(number, number + 6))
            number += len(batch)
            status, answer = client.call("POST", path, {"records": [{"data": job} for job in batch]})
            if status != 200:
                self._note("jobs", status, answer)
                return
            self.jobs.update(batch)
            status, answer = client.call("POST", f"{path}/claim", {"node": "worker", "max": 6})
            if status != 200:
                self._note("claim", status, answer)
                return
            claimed = [(job["$seq"], job["data"]) for job in answer["claimed"]]
            done, failed = [job for job in claimed if job[1] % 3], [job for job in claimed if not job[1] % 3]
            for verb, chosen in (("ack", done), ("nack", failed)):
                if not chosen:
                    continue
                if verb == "ack":
                    self.asked.update(job for _, job in chosen)
                body = {"node": "worker", "seqs": [seq for seq, _ in chosen]}
                status, answer = client.call("POST", f"{path}/{verb}", body)
                if status != 200:
                    self._note(verb, status, answer)
                    return
                if verb == "ack" and not answer["skipped"]:
                    self.done.update(job for _, job in chosen)

    def _come_and_go(self) -> None:
        """Topics that live for a moment, as the source of a router some of them."""
        client, number = Client(self.daemon.port), 0
        while not self.stop.is_set():
            number += 1
            name, copies = f"passing-{number}", f"passed-{number % 3}"
            body = {"source": name, "dest": copies}
            calls: list[tuple[str, str, Any]] = [
                ("PUT", f"/v0/topics/{name}", {"durability": "fsync"}),
                ("PUT", f"/v0/routers/r{number}", body),
                ("POST", f"/v0/topics/{name}", {"records": [{"data": number}] * 60}),
                ("DELETE", f"/v0/topics/{name}", None),
            ]
            if number % 3 == 2:
                calls.append(("DELETE", f"/v0/topics/{copies}", None))
            for method, path, content in calls:
                status, answer = client.call(method, path, content)
                # A dest takes a second source only when the router of the first is gone, which it is.
                if status not in (200, 201):
                    self._note(path, status, answer)
                    return
            time.sleep(0.05)

    def _note(self, what: str, status: int, answer: Any) -> None:
        if status != 0 and not self.stop.is_set():
            self.problems.append(f"{what}: {status} {answer}"[:400])

    def end(self) -> None:
        """Stop the clients, the daemon first where ledgers wait for its end."""
        self.stop.set()
        self.daemon.end()
        for thread in self._threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in self._threads)


@contextmanager
def site_in(root: Path, seed: int, **settings: str) -> Iterator[Site]:
    """A daemon at work: small files, so that all that can happen to files happens all the time."""
    root.mkdir(parents=True, exist_ok=True)
    with daemon_in(root, **settings) as daemon:
        site = Site(daemon)
        site.create()
        site.start(seed)
        try:
            yield site
        finally:
            site.end()
    assert site.problems == []


# ----------------------------------------------------------------- what a copy has to be


@contextmanager
def started_on(copy: Path) -> Iterator[Client]:
    """A daemon on a copy; strict, as it is by default."""
    with daemon_in(copy) as daemon:
        yield Client(daemon.port)
    assert not any(copy.rglob("*.damaged")), "something was given up"


def verify(copy: Path) -> None:
    """The command finds nothing wrong with it."""
    command = [sys.executable, "-m", "topics", "verify", str(copy / "data"), "--cold-dir", str(copy / "cold")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout[-3000:]
    assert "0 damages" in done.stdout


def check(site: Site, before: Known, client: Client) -> None:
    """What is served is the site as it was at one moment after `before`."""
    reads = {topic: read_all(client, topic) for topic in (*site.ledgers, *site.acked)}
    for topic, ledger in site.ledgers.items():
        check_ledger(topic, ledger, before, reads[topic])
    for topic in site.acked:
        check_plain(site, topic, before, reads[topic])
    check_routers(site, client, reads[site.names["source"]])
    check_queue(site, before, client)
    for topic in (*site.ledgers, *site.acked):
        head = reads[topic][2]
        status, answer = client.call("POST", f"/v0/topics/{topic}", {"records": [{"data": "later"}]})
        assert (status, answer["first_seq"] > head) == (200, True)


def only_lost_at_the_end(topic: str, read: Read) -> int:
    """The last seq of which something is known. Which seqs behind it were acked since is unknown, so a start skips so
    many that none is given out again, in any class."""
    _, gaps, head = read
    assert head > SKIPPED_SEQS
    lost = [gap for gap in gaps if gap[2] == "lost"]
    if not lost:
        # All of it is gone by now, for more than one reason: it expired or was above the cap, and the rest is lost.
        assert topic in ("short", "ephemeral"), f"{topic}: {gaps}"
        assert gaps[-1][1:] == (head, "mixed")
        return head
    assert len(lost) == 1, f"{topic}: {lost}"
    assert lost[0][1] == head
    return lost[0][0] - 1


def check_ledger(topic: str, ledger: Ledger, before: Known, read: Read) -> None:
    records, gaps, _ = read
    top = only_lost_at_the_end(topic, read)
    assert len(gaps) <= 1, gaps
    acked, gone = before.records[topic], before.gone[topic]
    missing = acked.keys() - records.keys() - ledger.doomed
    assert not missing, f"{topic}: {sorted(missing)[:20]} were acked before the call"
    assert not gone & records.keys(), f"{topic}: deleted before the call and there"
    assert top >= max(acked)
    for seq, record in records.items():
        wanted = ledger.sent[record["data"]["id"]]
        assert {"data": record["data"], "$tag": record["$tag"]} == wanted
        assert ledger.acked.get(seq, wanted) == wanted
    # A prefix: there is no later record with an earlier one missing.
    skipped = {seq for seq in ledger.acked if seq <= top} - records.keys() - ledger.doomed
    assert not skipped, f"{topic}: {sorted(skipped)[:20]} are missing below {top}"


def check_plain(site: Site, topic: str, before: Known, read: Read) -> None:
    """Topics that one client appends to and nobody deletes from."""
    records, gaps, _ = read
    top = only_lost_at_the_end(topic, read)
    assert top >= max(before.records[topic], default=0) or topic == "ephemeral"
    sent, acked = site.sent[topic], site.acked[topic]
    for seq, record in records.items():
        assert record["data"] == sent[seq - 1] == acked.get(seq, sent[seq - 1]), f"{topic}: seq {seq}"
    if topic == "ephemeral":
        assert records == {}
        return
    live = range(min(records, default=top + 1), top + 1)
    assert list(records) == list(live), f"{topic}: what is there is not contiguous"
    causes = {reason for _, _, reason in gaps if reason != "lost"}
    if topic == "capped":
        assert len(records) == min(CAP, top)
        assert causes <= {"cap"}
    elif topic == "short":
        assert causes <= {"ttl", "mixed"}
    else:
        assert live.start == 1
        assert causes == set()


def check_routers(site: Site, client: Client, source: Read) -> None:
    """Every record of the source is in the copies once and in its order, and the cursors say so."""
    wanted = [record["data"] for record in source[0].values()]
    for router, origin, dest in (("there", "source", "copies"), ("on", "copies", "back")):
        # A read of the dest brings what is due; how much that is depends on nothing but what is there.
        records, gaps, _ = read_all(client, site.names[dest])
        status, state = client.call("GET", f"/v0/routers/{router}")
        assert status == 200
        copies = [record["data"] for record in records.values()]
        assert copies == wanted, f"{dest}: {len(copies)} copies of {len(wanted)}"
        # Their own seqs that were skipped, and a sign for each gap of the origin, which nobody can copy.
        assert gaps[0][2] == "lost", gaps
        assert {gap[2] for gap in gaps[1:]} <= {"source_trim"}, gaps
        assert (state["forwarded_total"], state["lag"]) == (len(copies), 0)
        status, state_of_origin = client.call("GET", f"/v0/topics/{site.names[origin]}")
        assert (status, state["cursor_seq"]) == (200, state_of_origin["head_seq"])


def check_queue(site: Site, before: Known, client: Client) -> None:
    """Jobs acked before are gone, and no job is nowhere."""
    path = f"/v0/topics/{site.names['jobs']}"

    def is_counted() -> bool:
        status, state = client.call("GET", path)
        waiting, gaps, _ = read_all(client, site.names["jobs"])
        counts = state["queue"]
        assert (status, [gap[2] for gap in gaps]) == (200, ["lost"])
        return bool(counts["ready"] + counts["in_flight"] + counts["delayed"] == len(waiting))

    until(is_counted, 10, lambda: "the counts of the queue are not those of its jobs")  # some are still being moved
    waiting, _, _ = read_all(client, site.names["jobs"])
    dead, gaps, _ = read_all(client, site.names["dead"])
    assert {gap[2] for gap in gaps} <= {"lost"}
    there = [record["data"] for record in waiting.values()]
    buried = {record["data"] for record in dead.values()}
    assert len(there) == len(set(there))
    assert not before.done & {*there, *buried}, "acked before the call and there"
    nowhere = before.jobs - site.asked - {*there, *buried}
    assert not nowhere, f"jobs {sorted(nowhere)[:20]} are nowhere"
    assert all(job % 3 == 0 for job in buried)
    status, answer = client.call("POST", f"{path}/claim", {"node": "another", "max": 1000})
    assert status == 200
    assert {job["data"] for job in answer["claimed"]} <= {*there}


# ----------------------------------------------------------------- how it is made


def copy_with_the_script(site: Site, dest: Path, *, hold_ms: int = 60_000) -> None:
    data = site.daemon.root / "data"
    environ = os.environ | {"TOPICS_URL": f"http://127.0.0.1:{site.daemon.port}"}
    command = [sys.executable, str(SCRIPTS / "data_copy.py"), "--cold-dir", str(site.daemon.root / "cold")]
    command += ["--hold-ms", str(hold_ms), str(data), str(dest)]
    done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True, timeout=180)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + site.daemon.log()
    assert done.stdout.startswith(f"{dest}: ")
    assert {"data"} <= {path.name for path in dest.iterdir()} <= {"data", "cold"}
    assert not dest.with_name(dest.name + ".partial").exists()


def path_of(daemon: Daemon, name: str) -> Path:
    return daemon.root / ("cold" if name.startswith("cold:") else "data") / name.removeprefix("cold:")


def copy_slowly(daemon: Daemon, dest: Path, names: list[str], seed: int) -> None:
    """In no order, in small pieces, and with pauses: a copy over a bad network."""
    rng = random.Random(seed)
    rng.shuffle(names)
    until = time.monotonic() + 2.5
    for name in names:
        target = dest / ("cold" if name.startswith("cold:") else "data") / name.removeprefix("cold:")
        target.parent.mkdir(parents=True, exist_ok=True)
        with path_of(daemon, name).open("rb", buffering=0) as reader, target.open("wb") as writer:
            while piece := reader.read(16 << 10):
                writer.write(piece)
                if name.endswith(".log") and time.monotonic() < until:
                    time.sleep(rng.choice([0, 0.01, 0.1]))


def hold(daemon: Daemon, ms: int) -> list[str]:
    status, answer = Client(daemon.port).call("POST", f"/v0/admin/checkpoint?hold_ms={ms}")
    assert status == 200, answer
    files: list[str] = answer["files"]
    return files


def digests(daemon: Daemon, names: list[str]) -> dict[str, str]:
    """Of what the files hold; empty for one that is gone."""
    found = {}
    for name in names:
        path = path_of(daemon, name)
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
    return found


def until(condition: Callable[[], bool], seconds: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)


# ----------------------------------------------------------------- the tests


@pytest.mark.slow
def test_a_copy_taken_under_load_starts_and_is_a_consistent_prefix(tmp_path: Path) -> None:
    rng = random.Random(7)
    copies = [tmp_path / f"copy-{number}" for number in range(2)]
    known = []
    with site_in(tmp_path / "one", seed=1) as site:
        until(site.is_busy, 90, lambda: f"nothing much goes on: {site.problems} {site.daemon.log()}")
        for number, copy in enumerate(copies):
            time.sleep(rng.uniform(0.4, 1.5))
            known.append(site.known())
            if number == 1:
                copy_slowly(site.daemon, copy, hold(site.daemon, 120_000), seed=number)
                (copy / "cold").mkdir(exist_ok=True)
            else:
                copy_with_the_script(site, copy, hold_ms=8000)
            assert site.problems == [], "the original is disturbed"
    for before, copy in zip(known, copies, strict=True):
        verify(copy)
        with started_on(copy) as client:
            check(site, before, client)
    # The original was killed; nothing of the copies shows in it.
    with started_on(tmp_path / "one") as client:
        for topic, ledger in site.ledgers.items():
            ledger.check(topic, client)


@pytest.mark.slow
def test_what_a_hold_names_stays_as_it_is_until_the_hold_is_over_and_goes_then(tmp_path: Path) -> None:
    with site_in(tmp_path / "one", seed=2) as site:
        time.sleep(1)
        began = time.monotonic()
        names = hold(site.daemon, 3000)
        first = digests(site.daemon, names)
        assert all(first.values())
        while time.monotonic() - began < 1.5:
            again = digests(site.daemon, names)
            if time.monotonic() - began < 2.9:
                assert again == first, sorted(name for name in names if first[name] != again[name])
            time.sleep(0.1)
        snapshots = [name for name in names if name.startswith("meta/snapshot.")]
        logs = [name for name in names if name.endswith(".log")]
        assert len(snapshots) == 2
        assert len(logs) >= 2

        def left() -> list[str]:
            return [name for name in (*snapshots, *logs) if path_of(site.daemon, name).exists()]

        until(lambda: left() == [], 60, lambda: f"still there: {left()}\n{site.daemon.log()}")

        def worked_off() -> bool:
            changed = digests(site.daemon, names)
            return any(changed[name] != first[name] for name in names if name.endswith(".data"))

        until(worked_off, 60, lambda: f"nothing is worked off\n{site.daemon.log()}")
        assert site.problems == []


@pytest.mark.slow
@pytest.mark.more
def test_of_several_holds_the_longest_counts_and_a_later_one_is_as_of_later(tmp_path: Path) -> None:
    with site_in(tmp_path / "one", seed=3) as site:
        time.sleep(0.8)
        known, copies = [site.known()], [tmp_path / "first", tmp_path / "second"]
        began = time.monotonic()
        names = [hold(site.daemon, 120_000)]
        time.sleep(0.7)
        known.append(site.known())
        names.append(hold(site.daemon, 1))
        names.append(hold(site.daemon, 500))
        first = digests(site.daemon, names[0])
        time.sleep(1)
        for copy, chosen in zip(copies, (names[0], names[2]), strict=True):
            for name in chosen:
                target = copy / ("cold" if name.startswith("cold:") else "data") / name.removeprefix("cold:")
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(path_of(site.daemon, name).read_bytes())
            (copy / "cold").mkdir(exist_ok=True)
        if time.monotonic() - began < 119:
            assert digests(site.daemon, names[0]) == first
            assert {name for name in names[0] if name.startswith("meta/")} == {
                name for name in names[2] if name.startswith("meta/")
            }
    for before, copy in zip(known, copies, strict=True):
        verify(copy)
        with started_on(copy) as client:
            check(site, before, client)


@pytest.mark.slow
def test_a_kill_during_a_hold_leaves_nothing_that_is_held(tmp_path: Path) -> None:
    with site_in(tmp_path / "one", seed=4) as site:
        time.sleep(0.8)
        names = hold(site.daemon, 10**18)  # taken for the longest there is
        time.sleep(0.5)
        status, answer = Client(site.daemon.port).call("POST", f"/v0/admin/checkpoint?hold_ms={1 << 64}")
        assert (status, answer["error"]["code"]) == (400, "invalid_request")
    with daemon_in(tmp_path / "one") as daemon:
        client = Client(daemon.port)
        for topic, ledger in site.ledgers.items():
            ledger.check(topic, client)
        logs = [name for name in names if name.endswith(".log")]

        def all_gone() -> bool:
            status, _ = client.call("POST", "/v0/topics/disk", {"records": [{"data": "x" * 2000}]})
            assert status == 200
            return not any(path_of(daemon, name).exists() for name in logs)

        until(all_gone, 60, lambda: f"WAL files of before the kill are still there: {daemon.log()}")
        assert daemon.terminate()[0] == 0
    verify(tmp_path / "one")


@pytest.mark.slow
def test_a_clean_stop_during_a_hold_ends_it(tmp_path: Path) -> None:
    with daemon_in(tmp_path) as daemon:
        client = Client(daemon.port)
        assert client.call("POST", "/v0/topics/t", {"records": [{"data": 1}]})[0] == 201
        hold(daemon, 600_000)
        assert client.call("POST", "/v0/topics/t", {"records": [{"data": 2}]})[0] == 200
        code, seconds = daemon.terminate()
        assert (code, seconds < 40) == (0, True), "the stop waits for the hold"
        daemon.start()
        records, _, _ = read_all(Client(daemon.port), "t")
        assert [record["data"] for record in records.values()] == [1, 2]


@pytest.mark.slow
def test_the_script_leaves_no_copy_behind_that_is_none(tmp_path: Path) -> None:
    def run(*arguments: str, **environ: str) -> tuple[int, str]:
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("TOPICS_")}
        command = [sys.executable, str(SCRIPTS / "data_copy.py"), *arguments]
        done = subprocess.run(
            command, check=False, env=inherited | environ, capture_output=True, text=True, timeout=180
        )
        assert done.stdout == ""
        return done.returncode, done.stderr

    dest = tmp_path / "dest"
    (tmp_path / "one").mkdir()
    with daemon_in(tmp_path / "one") as daemon:
        url, data = f"http://127.0.0.1:{daemon.port}", str(daemon.root / "data")
        Client(daemon.port).call("POST", "/v0/topics/t", {"records": [{"data": n} for n in range(300)]})
        # until something of it is cold
        until(lambda: any((daemon.root / "cold").rglob("*.data")), 60, daemon.log)
        cold = ["--cold-dir", str(daemon.root / "cold")]
        for arguments, status, why in (
            (["--url", url, data, str(dest)], 1, "has a cold directory"),
            (["--url", url, str(tmp_path / "none"), *cold, str(dest)], 1, "is that the directory"),
            (["--url", "http://127.0.0.1:9", data, str(dest)], 1, "no checkpoint from"),
            (["--url", url, data, str(daemon.root)], 2, "exists"),
            (["--url", url, data, "--hold-ms", "1", str(dest)], 2, "--hold-ms"),
        ):
            code, problem = run(*arguments)
            assert (code, why in problem) == (status, True), (arguments, problem)
            assert not dest.exists()
            assert not dest.with_name("dest.partial").exists()


def test_the_script_prolongs_the_hold_as_long_as_it_copies_and_sees_when_one_was_over(tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "meta").mkdir(parents=True)
    names = ["FORMAT", "meta/snapshot.7.cbor"]
    for name in names:
        (data / name).write_text(name)

    class Holding(data_copy.Daemon):
        """Answers after a while; each call costs the hold half of its time."""

        def __init__(self, *snapshots: int) -> None:
            super().__init__("http://127.0.0.1:9", None)
            self.asked: list[int] = []
            self.snapshots = snapshots

        def checkpoint(self, hold_ms: int) -> data_copy.Held:
            self.asked.append(hold_ms)
            number = self.snapshots[min(len(self.asked), len(self.snapshots)) - 1]
            return data_copy.Held(names, frozenset({f"meta/snapshot.{number}.cbor"}))

    def copy_with(daemon: Holding, name: str, hold_ms: int, max_s: float = 60) -> int:
        (tmp_path / name).mkdir()
        copy = data_copy.Copy(daemon, (data, None), tmp_path / name, hold_ms=hold_ms, max_s=max_s)
        return copy.take()

    lasting = Holding(7)
    assert copy_with(lasting, "one", hold_ms=60_000) == 2
    assert lasting.asked == [60_000, 0]
    assert (tmp_path / "one" / "data" / "meta" / "snapshot.7.cbor").read_text() == "meta/snapshot.7.cbor"
    # half of no time is over at once
    hasty = Holding(7)
    assert copy_with(hasty, "two", hold_ms=0) == 2
    assert len(hasty.asked) > 3
    for name, daemon in (("three", Holding(7, 8)), ("four", Holding(7, 7, 8))):
        with pytest.raises(data_copy.Failure, match="the hold was over"):
            copy_with(daemon, name, hold_ms=0)
    with pytest.raises(data_copy.Failure, match="longer than --max-s"):
        copy_with(Holding(7), "five", hold_ms=0, max_s=-1)
    names.append("../outside")
    with pytest.raises(data_copy.Failure, match="outside"):
        copy_with(Holding(7), "six", hold_ms=60_000)


@pytest.mark.trio
async def test_a_hold_is_never_longer_than_ten_minutes_and_a_shorter_one_shortens_none() -> None:
    class Clock:
        ms = 0

        def monotonic_ms(self) -> int:
            return self.ms

    clock: Any = Clock()
    unused: Any = None
    file_holds = FileHolds(unused, unused, clock)
    with trio.fail_after(5):
        await file_holds.hold(10**18)
        await file_holds.hold(0)
        await file_holds.hold(1)
    clock.ms = MAX_HOLD_MS - 1
    assert MAX_HOLD_MS == 600_000
    assert file_holds.held
    clock.ms = MAX_HOLD_MS
    assert not file_holds.held
