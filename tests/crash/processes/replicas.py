"""An owner and its standbys over one bucket, real processes, and clients that know all of them. The owner is killed,
stopped, paused for longer than its lease and cut off from the store, again and again under load.

    scripts/torment --replicas 3 --minutes 5 --seed 7

A *round* is one such event: after it the clients must get an owner again by themselves. Processes that end are started
again, as systemd does it. `replica_ledger` says what must hold. Each daemon reaches the bucket by a symbolic link of
its own, which is taken away to cut it off.

A process that is paused while it holds the lock of the directory (`file_objects`) stops all conditional puts until it
goes on, which an object store does not know. So a pause ends after a while in any case.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.client.ports import free_port
from tests.conformance.client import Daemon
from tests.crash.processes.ledger import Fault, require
from tests.crash.processes.replica_ledger import ReplicaJobs, ReplicaLedger, ReplicaView
from topics.client import Client, Record, Retry, Tombstone, TopicsError
from topics.client.streams.tails import Tail

LEASE_MS: Final = 2500
SERVED_S: Final = 90.0
"""Within which there has to be an owner again after each event. Machines with other things to do are slow."""

JOIN_S: Final = 120.0
WINDOW_MS: Final = 3_600_000
JOB_LEASE_S: Final = 4.0
PATIENT: Final = Retry(give_up_after=600.0, longest_wait=0.5)

EVENTS: Final = {
    "killed": 5,
    "paused": 3,
    "cut off": 3,
    "stopped": 2,
    "cut off for a moment": 1,
    "standby killed": 1,
    "all killed": 1,
}
"""What happens in a round, and how often of 16 times."""


@dataclass
class ReplicaPlan:
    """What was asked for. It is over after so many minutes or rounds, whichever comes first."""

    seed: int
    minutes: float
    replicas: int = 3
    rounds: int | None = None
    is_small: bool = False


class Replica(Daemon):
    """One daemon, with its own way to the bucket."""

    def __init__(self, root: Path, bucket: Path) -> None:
        self.link, self._bucket = root / "bucket", bucket
        self.mend()
        port = free_port()
        super().__init__(
            root,
            port=port,
            bucket=f"file://{self.link}",
            bucket_takeover=1,
            bucket_lease_ms=LEASE_MS,
            bucket_round_ms=200,
            bucket_base_ms=3000,
            bucket_poll_ms=100,
            role="standby",
            advertised_url=f"http://127.0.0.1:{port}",
            wal_file_bytes=256 << 10,
            segment_max_events=200,
            checkpoint_ms=500,
            reclaim_ms=500,
            drain_ms=5000,
        )
        self.port = port
        self.is_paused = False

    @property
    def has_process(self) -> bool:
        return self._process is not None

    @property
    def code(self) -> int | None:
        """How it has ended by itself; None while it runs."""
        return self._process.poll() if self._process is not None else None

    def last_words(self) -> str:
        """The end of its log."""
        return self._end_of_log() if (self.root / "log").exists() else "not started"

    def cut_off(self) -> None:
        """Take its way to the bucket away."""
        self.link.unlink(missing_ok=True)

    def mend(self) -> None:
        """Give it back."""
        if not self.link.is_symlink():
            self.link.symlink_to(self._bucket, target_is_directory=True)

    def pause(self) -> None:
        self.send_signal(signal.SIGSTOP)
        self.is_paused = True

    def go_on(self) -> None:
        if self.is_paused:
            self.is_paused = False
            self.send_signal(signal.SIGCONT)

    def begin(self) -> None:
        """Start it. What it has set aside as a former owner goes, so that the disk does not fill."""
        for aside in (self.root / "data").glob("diverged-*"):
            shutil.rmtree(aside, ignore_errors=True)
        self.launch()


class ReplicaSite:
    """The daemons, their clients, and what these know."""

    def __init__(self, root: Path, plan: ReplicaPlan) -> None:
        self.root, self.plan = root, plan
        self.rng = random.Random(plan.seed)
        (root / "bucket").mkdir()
        self.replicas = []
        for number in range(plan.replicas):
            (root / str(number)).mkdir()
            self.replicas.append(Replica(root / str(number), root / "bucket"))
        self.urls = [replica.url for replica in self.replicas]
        self.ledgers = [ReplicaLedger("safe", "remote"), ReplicaLedger("quick", "disk"), ReplicaLedger("firm", "fsync")]
        self.jobs = ReplicaJobs("jobs", JOB_LEASE_S)
        self.stop = threading.Event()
        self.problems: list[str] = []
        self.events: Counter[str] = Counter()
        self.outages: dict[str, list[float]] = {}
        """The longest time without an ack of the class `remote`, by event (s)."""
        self.judged = self.delivered = self.read = self.restarts = 0
        self.tails: list[Tail] = []
        self.places: dict[str, dict[str, int]] = {}
        """How far each watcher is, by topic."""
        self.last_ack = time.monotonic()
        self.longest_gap = 0.0
        """The longest time between two acks of the class `remote` since the last event (s)."""

    # -- the daemons -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """All at once, as an orchestrator does it: those that do not own the bucket wait for the first base."""
        threads = [threading.Thread(target=replica.begin) for replica in self.replicas]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self._until(lambda: self.owner() is not None, "nobody begins as the owner")
        self._tend_fenced()

    def end(self) -> None:
        """End all processes, also after an error."""
        self.stop.set()
        for tail in self.tails:
            tail.close()
        for replica in self.replicas:
            if replica.has_process:
                with suppress(ProcessLookupError):
                    replica.go_on()
                replica.end(signal.SIGKILL)

    def owner(self) -> Replica | None:
        """The replica that serves as the owner now."""
        for replica in self.replicas:
            if replica.has_process and not replica.is_paused:
                with suppress(TopicsError), Client(replica.url, retry=None, timeout=2) as client:
                    if client.ready().standby is None:
                        return replica
        return None

    def tend(self) -> None:
        """Start what has ended again. Raises Fault if it must not have ended so."""
        self._tend_fenced()
        for replica in self.replicas:
            if not replica.has_process:
                self.restarts += 1
                replica.begin()

    def _tend_fenced(self) -> None:
        """Start again what has ended by itself, because it has lost its lease. Raises Fault for another reason."""
        for replica in self.replicas:
            if replica.has_process and (code := replica.code) is not None:
                require(code == 3, replica.url, "has ended by itself:", code, replica.last_words())
                replica.wait()
                self.restarts += 1
                replica.begin()

    def _until(self, condition: Callable[[], bool], what: str, seconds: float = SERVED_S) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            self._raise_problems()
            if time.monotonic() > deadline:
                raise Fault("\n".join([f"replicas {what}", *(one.last_words()[-800:] for one in self.replicas)]))
            time.sleep(0.05)

    def _raise_problems(self) -> None:
        if self.problems:
            raise Fault("\n".join(self.problems[:3]))

    # -- rounds ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All rounds. Raises Fault."""
        self.start()
        with Client(self.urls, retry=PATIENT, timeout=5) as client:
            for ledger in self.ledgers:
                client.create(ledger.name, durability=ledger.durability, idempotency_window_ms=WINDOW_MS)
            leases: dict[str, Any] = {"lease_ms": int(JOB_LEASE_S * 1000), "leases_durable": True}
            client.create("jobs", type="queue", durability="remote", idempotency_window_ms=WINDOW_MS, **leases)
        deadline = time.monotonic() + self.plan.minutes * 60
        threads = self._start_clients()
        try:
            for number in itertools.count(1):
                self._round()
                if time.monotonic() > deadline or (self.plan.rounds is not None and number >= self.plan.rounds):
                    break
        finally:
            self.stop.set()
        self._finish(threads)

    def _round(self) -> None:
        """Let clients work, let something happen, and wait until they are served again."""
        self._work_for(self.rng.uniform(0.5, 2.0 if self.plan.is_small else 5.0))
        owner = self.owner()
        if owner is None:  # it has just lost its lease, because this machine was busy
            self._until_served(self.last_ack, "lost a lease by itself")
            return
        event = self.rng.choices(list(EVENTS), list(EVENTS.values()))[0]
        began, self.longest_gap = time.monotonic(), 0.0
        with ExitStack() as stack:
            self._happen(event, owner, stack)
            if event not in ("cut off for a moment", "standby killed"):
                self._until_served(began, event)
            self._judge()
        self.outages.setdefault(event, []).append(self.longest_gap)
        self.events[event] += 1
        for replica in self.replicas:
            replica.mend()
        self.tend()

    def _happen(self, event: str, owner: Replica, stack: ExitStack) -> None:
        others = [replica for replica in self.replicas if replica is not owner and replica.has_process]
        if event == "killed":
            owner.end(signal.SIGKILL)
        elif event == "stopped":
            code = owner.end(signal.SIGTERM)
            require(code == 0, owner.url, "did not stop in order:", code, owner.last_words())
        elif event == "paused":
            owner.pause()
            stack.callback(owner.go_on)
            time.sleep(LEASE_MS / 1000 * self.rng.uniform(1.05, 2.0))
            if self.rng.random() < 0.5:
                owner.go_on()  # while another one is taking over, or has just done so
        elif event == "cut off":
            owner.cut_off()
            stack.callback(owner.mend)
        elif event == "cut off for a moment":
            owner.cut_off()
            time.sleep(LEASE_MS / 1000 * self.rng.uniform(0.1, 0.3))
            owner.mend()
        elif event == "standby killed":
            if others:
                self.rng.choice(others).end(signal.SIGKILL)
        else:
            for replica in self.replicas:
                if replica.has_process:
                    replica.end(signal.SIGKILL)
            self.tend()

    def _until_served(self, began: float, event: str) -> None:
        """Wait until an append of the class `remote` that was sent after `began` is acked. A paused process goes on
        after half of the time, because it may hold the lock of the directory."""
        grace = time.monotonic() + SERVED_S / 2

        def is_served() -> bool:
            if time.monotonic() > grace:
                for replica in self.replicas:
                    replica.go_on()
            self._tend_fenced()
            if not any(replica.has_process and not replica.is_paused for replica in self.replicas):
                self.tend()
            return self.last_ack > began + 0.2 and self.owner() is not None

        self._until(is_served, f"nobody serves after: {event}")

    def _work_for(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._raise_problems()
            self.tend()
            time.sleep(0.1)

    # -- clients ---------------------------------------------------------------------------------------------------

    def _start_clients(self) -> list[threading.Thread]:
        most = 1 if self.plan.is_small else 2
        works: list[Callable[[random.Random], None]] = []
        for ledger in self.ledgers:
            works += [lambda rng, ledger=ledger: self._append(ledger, rng)] * most  # type: ignore[misc]
        works += [self._add_jobs]
        works += [lambda rng, name=name: self._do_jobs(f"worker-{name}", rng) for name in range(2)]  # type: ignore[misc]
        works += [lambda _, any=any: self._watch(any=any) for any in (False, True)]  # type: ignore[misc]
        works += [self._read]
        threads = [
            threading.Thread(target=self._guarded, args=(work, random.Random(self.rng.random())), daemon=True)
            for work in works
        ]
        for thread in threads:
            thread.start()
        return threads

    def _guarded(self, work: Callable[[random.Random], None], rng: random.Random) -> None:
        try:
            work(rng)
        except BaseException as error:
            if not self.stop.is_set() or isinstance(error, AssertionError):
                self.problems.append(f"{type(error).__name__}: {error}")

    def _client(self, *, any: bool = False) -> Client:
        return Client(self.urls, retry=PATIENT, timeout=2, any=any)

    def _append(self, ledger: ReplicaLedger, rng: random.Random) -> None:
        with self._client() as client:
            while not self.stop.is_set():
                numbers = ledger.take(rng.randint(1, 4))
                done = client.append(ledger.name, [{"n": n, "x": "x" * (n % 300)} for n in numbers])
                require(done.count == len(numbers), ledger.name, "an append stores another number:", done.count)
                assert done.first_seq is not None
                ledger.acked(done.first_seq, numbers)
                if ledger.is_remote:
                    now = time.monotonic()
                    self.longest_gap, self.last_ack = max(self.longest_gap, now - self.last_ack), now
                self.stop.wait(rng.uniform(0, 0.03))

    def _add_jobs(self, rng: random.Random) -> None:
        with self._client() as client:
            while not self.stop.is_set():
                client.append("jobs", [rng.random() for _ in range(rng.randint(1, 3))])
                self.stop.wait(rng.uniform(0.05, 0.3))

    def _do_jobs(self, name: str, rng: random.Random) -> None:
        with self._client() as client:
            while not self.stop.is_set():
                sent = time.monotonic()
                try:
                    claimed = client.claim("jobs", name, max=3, wait_ms=500).claimed
                except TopicsError:
                    continue  # whether it leased anything is unknown: those leases run out
                came = time.monotonic()
                for job in claimed:
                    self.jobs.claimed(name, job.seq, job.lease_id, sent, came)
                for job in claimed:
                    self.stop.wait(rng.uniform(0, 0.05))
                    if rng.random() < 0.1:
                        continue  # forgotten: somebody else gets it after the lease
                    done = client.ack("jobs", name, [job.seq], lease_ids=[job.lease_id])
                    if not done.skipped:
                        self.jobs.acked(job.seq, name)

    def _watch(self, *, any: bool) -> None:
        """Follow all topics. A record comes once, in order; of `remote` topics there is none without the one before."""
        by = "a watch of any" if any else "a watch"
        at = {ledger.name: 0 for ledger in self.ledgers}
        ledgers = {ledger.name: ledger for ledger in self.ledgers}
        with self._client(any=any) as client, client.watch(list(at), heartbeat_ms=1000) as tail:
            self.tails.append(tail)
            for item in tail:
                require(isinstance(item, Record | Tombstone), by, "gets something else:", item)
                assert isinstance(item, Record | Tombstone)
                name = item.topic
                if isinstance(item, Tombstone):
                    require(not ledgers[name].is_remote, name, "a tombstone in", by, item)
                    require(item.reason == "lost" and item.gap_to > at[name], name, "is told wrongly by", by, item)
                    at[name] = item.gap_to
                    continue
                require(item.seq > at[name], name, "comes twice in", by, item.seq, at[name])
                is_next = not ledgers[name].is_remote or item.seq == at[name] + 1
                require(is_next, name, "is left out by", by, at[name] + 1, item.seq)
                at[name] = item.seq
                ledgers[name].saw(item.seq, item.data["n"], by)
                self.delivered += 1
                self.places.setdefault(by, {})[name] = item.seq

    def _read(self, rng: random.Random) -> None:
        """Read pages behind anything that was seen, of any replica: all of it is there, also at a standby."""
        with self._client(any=True) as client:
            while not self.stop.is_set():
                ledger = rng.choice(self.ledgers)
                head = ledger.head
                at = rng.randint(0, head)
                page = client.diff(ledger.name, at, limit=200)
                if ledger.is_remote:
                    seqs = [record.seq for record in page.records]
                    require(page.tombstone is None, ledger.name, "a tombstone in a read:", page.tombstone)
                    expected = [*range(at + 1, at + 1 + len(seqs))]
                    require(seqs == expected, ledger.name, "a read leaves out:", at, seqs[:3])
                for record in page.records:
                    ledger.saw(record.seq, record.data["n"], "a page")
                self.read += len(page.records)
                self.stop.wait(rng.uniform(0.01, 0.2))

    # -- checks ----------------------------------------------------------------------------------------------------

    def _judge(self, *, is_last: bool = False) -> None:
        with self._client() as client:
            for ledger in self.ledgers:
                acked = ledger.acked_before()
                ledger.judge(self._view(client, ledger.name), acked, is_last=is_last)
                self.judged += 1

    @staticmethod
    def _view(client: Client, topic: str) -> ReplicaView:
        view = ReplicaView({}, [], 0)
        for item in client.read(topic):
            if isinstance(item, Tombstone):
                view.gaps.append((item.gap_from, item.gap_to, item.reason))
                view.head = max(view.head, item.gap_to)
            else:
                view.records[item.seq] = item.data["n"]
                view.head = max(view.head, item.seq)
        return view

    def _finish(self, threads: list[threading.Thread]) -> None:
        """Let watchers catch up, end all clients, and judge it a last time; the bucket is whole."""
        self.tend()
        with self._client() as client:
            heads = {ledger.name: client.state(ledger.name).head_seq for ledger in self.ledgers}
            self._until(lambda: self._has_caught_up(client), "watchers do not catch up")
        for tail in self.tails:
            tail.close()
        for thread in threads:
            thread.join(JOIN_S)
        stuck = [thread for thread in threads if thread.is_alive()]
        require(not stuck, "clients", "hang:", len(stuck), heads)
        self._raise_problems()
        self._judge(is_last=True)
        for replica in self.replicas:
            replica.end(signal.SIGTERM)
        command = [sys.executable, "-m", "topics", "bucket", "verify", f"file://{self.root}/bucket", "--json"]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
        require(done.returncode == 0, "bucket verify", done.stdout[-1000:], done.stderr[-300:])
        require(json.loads(done.stdout.splitlines()[-1])["damage"] == 0, "bucket verify", done.stdout[-1000:])

    def _has_caught_up(self, client: Client) -> bool:
        heads = {ledger.name: client.state(ledger.name).head_seq for ledger in self.ledgers if ledger.is_remote}
        told = list(self.places.values())
        return len(told) == 2 and all(at.get(name) == head for at in told for name, head in heads.items())

    def figures(self) -> dict[str, Any]:
        outages = {
            f"seconds without service, {event}": f"{sum(found) / len(found):.1f}, at most {max(found):.1f}"
            for event, found in sorted(self.outages.items())
        }
        return {
            "seed": self.plan.seed,
            "replicas": self.plan.replicas,
            "rounds": self.events.total(),
            **{f"rounds {event}": count for event, count in sorted(self.events.items())},
            **outages,
            "processes started again": self.restarts,
            **{f"records acked, {ledger.durability}": ledger.count_acked for ledger in self.ledgers},
            **{f"records lost and announced, {one.durability}": one.lost for one in self.ledgers if not one.is_remote},
            "records delivered to watchers": self.delivered,
            "records read of any replica": self.read,
            "jobs claimed": self.jobs.claims,
            "jobs acked": self.jobs.done,
            "complete reads judged": self.judged,
        }


def torment_replicas(plan: ReplicaPlan, root: Path) -> dict[str, Any]:
    """All of it in this directory, which is left as it is; the figures. Raises a Fault (or what it met instead)."""
    site = ReplicaSite(root, plan)
    began = time.monotonic()
    try:
        site.run()
    finally:
        site.end()
    return site.figures() | {"seconds": round(time.monotonic() - began, 1), "faults": 0}
