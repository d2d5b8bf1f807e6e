"""What a queue is after a restart: section 9 of the contract, across lives of the daemon."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, Daemon, body_of, data_of, until
from tests.conformance.work_stream_client import ack, call, claim, counts, nack, queue, seqs

KEPT = ["memory", "disk", "fsync"]
QUEUES = [f"{durability}-{kind}" for durability in KEPT for kind in ("plain", "durable")]
HOUR_MS = 3_600_000
LATER_MS = 6000
"""When short leases end and short delays are over: some time after the daemon has come back."""
SLACK_MS = 20
"""By how much deadlines may differ that were told by one clock and kept by another."""


def now_ms() -> float:
    return time.time() * 1000


class Life:
    """A daemon that has lived once and lives again, and what was done with its queues before.

    Of the jobs of each, three are done, two are held for long, one for some time, one is delayed for long and one for
    some time, one was given back twice, and the others were never touched. Where leases may be forgotten nothing is for
    long.
    """

    def __init__(self, root: Path, ended_by: signal.Signals, checkpoints: str) -> None:
        self.ended_by = ended_by
        self.daemon = Daemon(root)
        self.held: dict[str, dict[int, Any]] = {}
        self.delayed_until: dict[str, float] = {}
        client = self.daemon.start()
        for name in QUEUES:
            queue(client, name, *range(1, 13), durability=name.split("-")[0], leases_durable=name.endswith("durable"))
        queue(client, "ephemeral", *range(1, 6), durability="ephemeral", leases_durable=True)
        self.ephemeral = claim(client, "ephemeral", max=2)
        for name in QUEUES:
            self._work(client, name, long_ms=HOUR_MS if name.endswith("durable") else LATER_MS)
            if checkpoints == "between" and name == QUEUES[2]:
                body_of(client.post("/v0/admin/checkpoint"))
        if checkpoints == "after":
            body_of(client.post("/v0/admin/checkpoint"))
        self.before = {name: client.state(name) for name in QUEUES}
        client.close()
        self.code = self.daemon.end(ended_by)
        self.client = self.daemon.start()

    def _work(self, client: Client, name: str, long_ms: int) -> None:
        jobs = {job["$seq"]: job for job in claim(client, name, max=9, lease_ms=long_ms)}
        assert list(jobs) == list(range(1, 10))
        assert ack(client, name, jobs[1], jobs[2], jobs[3])["acked"] == 3
        deadlines = call(client, name, "extend", seqs=[6], lease_ms=LATER_MS)["deadlines"]
        jobs[6]["deadline"] = deadlines["6"]
        nack(client, name, jobs[7], delay_ms=long_ms)
        nack(client, name, jobs[8], delay_ms=LATER_MS)
        self.delayed_until[name] = now_ms() + LATER_MS
        nack(client, name, jobs[9])
        (again,) = claim(client, name, lease_ms=long_ms)
        assert (again["$seq"], again["deliveries"]) == (9, 2)
        nack(client, name, again)
        self.held[name] = jobs

    def is_certain(self, name: str) -> bool:
        """Whether its jobs and their acks are all there: `memory` may lose some when the daemon is killed."""
        return self.ended_by == signal.SIGTERM or not name.startswith("memory")


LIVES = {
    "SIGTERM": (signal.SIGTERM, "none"),
    "SIGKILL": (signal.SIGKILL, "none"),
    "SIGKILL-checkpoint-between": (signal.SIGKILL, "between"),
    "SIGKILL-checkpoint-after": (signal.SIGKILL, "after"),
    "SIGTERM-checkpoint-between": (signal.SIGTERM, "between"),
}


@pytest.fixture(scope="module", params=LIVES)
def life(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Life]:
    life = Life(tmp_path_factory.mktemp("life"), *LIVES[request.param])
    try:
        yield life
    finally:
        life.daemon.kill()


def test_a_stop_is_clean_with_leases(life: Life) -> None:
    assert life.code == (0 if life.ended_by == signal.SIGTERM else -signal.SIGKILL)


def test_what_was_acked_is_gone_and_what_was_not_is_there(life: Life) -> None:
    for name in QUEUES:
        if life.is_certain(name):
            answer = life.client.read(name)
            assert (answer["tombstone"], data_of(answer)) == (None, list(range(4, 13)))
            state = life.client.state(name)
            for figure in ("head_seq", "earliest_seq", "count", "bytes"):
                assert state[figure] == life.before[name][figure]


def test_counters_add_up(life: Life) -> None:
    for name in QUEUES:
        ready, in_flight, delayed = counts(life.client, name)
        if name.endswith("durable") and life.is_certain(name) and now_ms() < life.delayed_until[name] - 1000:
            assert (ready, in_flight, delayed) == (4, 3, 2)


def test_durable_leases_go_on_until_their_deadlines(life: Life) -> None:
    """Nobody else gets a leased job before its deadline or a delayed one before its time, and deliveries are kept."""
    client = life.client
    for name in [name for name in QUEUES if name.endswith("durable") and life.is_certain(name)]:
        jobs = claim(client, name, "other", max=20, lease_ms=HOUR_MS)
        asked_at = now_ms()
        deliveries = {job["$seq"]: job["deliveries"] for job in jobs}
        expected = {9: 3, 10: 1, 11: 1, 12: 1}
        # What was for some time only may be over by now.
        late = {seq for seq in (6, 8) if asked_at > life.held[name][6]["deadline"] - SLACK_MS}
        assert {seq: number for seq, number in deliveries.items() if seq not in late} == expected
        while sum(seq in deliveries for seq in (6, 8)) < 2:
            for job in claim(client, name, "other", max=20, lease_ms=HOUR_MS, wait_ms=10_000):
                if job["$seq"] == 6:
                    assert now_ms() >= life.held[name][6]["deadline"] - SLACK_MS
                deliveries[job["$seq"]] = job["deliveries"]
            assert now_ms() < life.delayed_until[name] + 20_000
        assert deliveries == expected | {6: 2, 8: 2}
        # The holder of before still holds what it holds, and no more.
        held = life.held[name]
        assert (
            call(client, name, "extend", seqs=[5], lease_ms=HOUR_MS, lease_ids=[held[5]["lease_id"]])["extended"] == 1
        )
        answer = ack(client, name, held[4], held[5], held[6])
        assert (answer["acked"], answer["skipped"]) == (2, [6])
        assert counts(client, name) == (0, 6, 1)
        assert claim(client, name, "third", max=20) == []


@pytest.mark.parametrize("durability", KEPT)
def test_leases_that_may_be_forgotten_end_sooner_or_later(life: Life, durability: str) -> None:
    """Each job that is there comes, to one holder at a time; who held it before cannot end the lease of another."""
    client, name = life.client, f"{durability}-plain"
    there = set(seqs(client.read(name)["records"]))
    found: dict[int, Any] = {}
    deadline = time.monotonic() + 60
    while found.keys() != there:
        assert time.monotonic() < deadline
        for job in claim(client, name, "other", max=20, wait_ms=2000, lease_ms=HOUR_MS):
            assert job["$seq"] not in found
            assert job["deliveries"] >= 1
            found[job["$seq"]] = job
    if life.is_certain(name):
        assert there == set(range(4, 13))
    held = [job for seq, job in life.held[name].items() if seq in there]
    for fenced in (True, False):
        answer = ack(client, name, *held, fenced=fenced)
        assert (answer["acked"], answer["skipped"]) == (0, seqs(held))
    assert ack(client, name, *found.values(), node="other")["acked"] == len(there)
    assert counts(client, name) == (0, 0, 0)


def test_the_jobs_of_an_ephemeral_queue_are_lost_and_it_is_said(life: Life) -> None:
    client = life.client
    state = client.state("ephemeral")
    assert state["type"] == "queue"
    head = state["head_seq"]
    assert head >= 5
    if life.ended_by == signal.SIGTERM:
        assert head == 5
    assert counts(client, "ephemeral") == (0, 0, 0)
    answer = client.read("ephemeral")
    assert (answer["records"], answer["tombstone"]["reason"]) == ([], "lost")
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, head)
    assert claim(client, "ephemeral", max=10) == []
    assert ack(client, "ephemeral", *life.ephemeral)["skipped"] == [1, 2]
    assert client.append("ephemeral", "new")["seqs"] == [head + 1]
    (job,) = claim(client, "ephemeral")
    assert (job["$seq"], job["data"], job["deliveries"]) == (head + 1, "new", 1)
    assert ack(client, "ephemeral", job)["acked"] == 1


def test_configs_are_as_they_were(life: Life) -> None:
    for name in QUEUES:
        after = life.client.state(name)
        assert (after["type"], after["config"]) == ("queue", life.before[name]["config"])


def test_work_goes_on(life: Life) -> None:
    for name in QUEUES:
        head = life.client.state(name)["head_seq"]
        assert life.client.append(name, "after")["seqs"] == [head + 1]
        found: list[Any] = []
        until(lambda name=name, found=found: bool(found.extend(claim(life.client, name)) or found))  # type: ignore[misc]
        assert ack(life.client, name, *found)["acked"] == 1


def test_a_snapshot_holds_leases_and_the_log_goes_on_from_it(tmp_path: Path) -> None:
    """Restart after restart, with checkpoints that leave less and less of it in the log."""
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        queue(client, "a", *range(1, 11), durability="fsync", leases_durable=True, lease_ms=HOUR_MS)
        first = claim(client, "a", max=3)
        for number, (verb, ended_by) in enumerate(
            [("ack", signal.SIGKILL), ("nack", signal.SIGKILL), ("extend", signal.SIGTERM), ("", signal.SIGKILL)]
        ):
            for _ in range(2):
                body_of(client.post("/v0/admin/checkpoint"))
            if verb:
                job = first[number]
                answer = call(client, "a", verb, seqs=[job["$seq"]], lease_ids=[job["lease_id"]], lease_ms=HOUR_MS)
                assert answer["skipped"] == []
            assert len(claim(client, "a", "x", max=1)) == 1
            before = counts(client, "a")
            client = daemon.restart(ended_by)
            assert counts(client, "a") == before
        jobs = claim(client, "a", "y", max=20)
        # Of four claims one took what had been given back.
        assert len(jobs) == 10 - 3 - 3
        assert [job["deliveries"] for job in jobs] == [1] * 4
        assert ack(client, "a", first[2])["acked"] == 1
    finally:
        daemon.kill()


def test_a_clean_stop_after_a_kill_keeps_what_was_recovered(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        queue(client, "a", 1, 2, durability="fsync", leases_durable=True, lease_ms=HOUR_MS)
        (job,) = claim(client, "a")
        for ended_by in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            client = daemon.restart(ended_by)
            assert counts(client, "a") == (1, 1, 0)
        assert ack(client, "a", job)["acked"] == 1
        assert seqs(claim(client, "a", max=5)) == [2]
    finally:
        daemon.kill()


def test_a_lease_runs_out_while_nobody_is_there(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        queue(client, "a", 1, 2, durability="fsync", leases_durable=True, lease_ms=1500)
        (job,) = claim(client, "a")
        (second,) = claim(client, "a", lease_ms=HOUR_MS)
        nack(client, "a", second, delay_ms=200)
        daemon.end(signal.SIGKILL)
        time.sleep(1.7)
        client = daemon.start()
        assert counts(client, "a") == (2, 0, 0)
        assert ack(client, "a", job)["skipped"] == [1]
        assert [(job["$seq"], job["deliveries"]) for job in claim(client, "a", max=5)] == [(1, 2), (2, 2)]
    finally:
        daemon.kill()


@pytest.mark.parametrize("checkpoints", ["none", "before the calls", "after the calls"])
def test_what_a_router_brought_is_as_it_was(tmp_path: Path, checkpoints: str) -> None:
    """The copies are not in the log by themselves, but their leases and acks are."""
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        queue(client, "jobs", durability="fsync", leases_durable=True, lease_ms=HOUR_MS)
        client.put_topic("source", durability="fsync")
        body_of(client.put("/v0/routers/r", json={"source": "source", "dest": "jobs"}), 201)
        client.append("source", *range(1, 11))
        first = claim(client, "jobs", max=6)
        assert data_of({"records": first}) == list(range(1, 7))
        if checkpoints == "before the calls":
            body_of(client.post("/v0/admin/checkpoint"))
        ack(client, "jobs", *first[:2])
        nack(client, "jobs", first[2])
        nack(client, "jobs", first[3], delay_ms=HOUR_MS)
        if checkpoints == "after the calls":
            body_of(client.post("/v0/admin/checkpoint"))
        client.delete_topic("source")
        for _ in range(2):
            client = daemon.restart(signal.SIGKILL)
            assert counts(client, "jobs") == (5, 2, 1)
            assert data_of(client.read("jobs")) == list(range(3, 11))
        jobs = claim(client, "jobs", "x", max=20)
        assert [(job["data"], job["deliveries"]) for job in jobs] == [(3, 2), (7, 1), (8, 1), (9, 1), (10, 1)]
        assert ack(client, "jobs", *first)["acked"] == 2
        assert ack(client, "jobs", *jobs, node="x")["acked"] == 5
        assert counts(client, "jobs") == (0, 0, 1)
    finally:
        daemon.kill()


def test_a_queue_whose_class_was_changed_keeps_what_was_not_acked(tmp_path: Path) -> None:
    names = ("ephemeral", "memory", "disk")
    daemon = Daemon(tmp_path)
    try:
        client = daemon.start()
        for name in names:
            queue(client, name, *range(1, 7), durability=name, lease_ms=3000)
            jobs = claim(client, name, max=3)
            ack(client, name, jobs[0])
            client.put_topic(name, durability="fsync", leases_durable=True)
            assert counts(client, name) == (3, 2, 0)
            assert ack(client, name, jobs[1])["acked"] == 1
        client = daemon.restart(signal.SIGKILL)
        for name in names:
            left: set[int] = set()
            deadline = time.monotonic() + 60
            while len(left) < 4:
                assert time.monotonic() < deadline, left
                left.update(seqs(claim(client, name, "x", max=10, lease_ms=HOUR_MS, wait_ms=3000)))
            assert left == {3, 4, 5, 6}
            assert client.read(name)["tombstone"] is None
    finally:
        daemon.kill()


# Kill after kill, with any work there may be


@dataclass
class Lease:
    node: str
    lease_id: str
    deadline: int
    life: int


@dataclass
class Worked:
    """What the one client of a queue knows of it."""

    name: str
    has_every_answer: bool
    life: int = 0
    appended: set[int] = field(default_factory=set)
    acked: set[int] = field(default_factory=set)
    unsure: set[int] = field(default_factory=set)
    """What an ack was sent for that has had no answer."""
    leases: dict[int, Lease] = field(default_factory=dict)
    deliveries: Counter[int] = field(default_factory=Counter)

    @property
    def is_durable(self) -> bool:
        return self.name.endswith("durable")

    def step(self, client: Client, rng: random.Random) -> None:
        what = rng.choices(["append", "claim", "ack", "nack", "extend", "checkpoint"], [3, 6, 6, 2, 2, 0.3])[0]
        if what == "append":
            self.appended.update(client.append(self.name, *range(rng.randint(1, 6)))["seqs"])
        elif what == "claim":
            node = rng.choice("abc")
            self.take(
                node, claim(client, self.name, node, max=rng.randint(1, 5), lease_ms=rng.choice([150, 1500, 3000]))
            )
        elif what == "checkpoint":
            body_of(client.post("/v0/admin/checkpoint"))
        elif self.leases:
            self.use(client, rng, what)

    def take(self, node: str, jobs: list[Any]) -> None:
        for job in jobs:
            seq = job["$seq"]
            assert seq not in self.acked, f"{seq} was done"
            assert job["data"] is not None
            lease = self.leases.get(seq)
            if lease is not None and (self.is_durable or lease.life == self.life):
                assert now_ms() >= lease.deadline - SLACK_MS, (seq, lease, now_ms())
            if self.is_durable:
                assert job["deliveries"] > self.deliveries[seq]
                assert not self.has_every_answer or job["deliveries"] == self.deliveries[seq] + 1
                self.deliveries[seq] = job["deliveries"]
            self.leases[seq] = Lease(node, job["lease_id"], job["deadline"], self.life)

    def use(self, client: Client, rng: random.Random, what: str) -> None:
        node = rng.choice([lease.node for lease in self.leases.values()])
        own = [seq for seq, lease in self.leases.items() if lease.node == node]
        chosen = sorted(rng.sample(own, rng.randint(1, min(4, len(own)))))
        fields: dict[str, Any] = {"lease_ids": [self.leases[seq].lease_id for seq in chosen]}
        # What is not answered may have been done.
        before = {seq: self.leases.pop(seq) for seq in chosen}
        if what == "ack":
            self.unsure.update(chosen)
        elif what == "extend":
            fields["lease_ms"] = rng.choice([100, 2000])
        else:
            fields["delay_ms"] = rng.choice([0, 0, 300])
        asked_at = now_ms()
        answer = call(client, self.name, what, node, seqs=chosen, **fields)
        done = [seq for seq in chosen if seq not in answer["skipped"]]
        for seq in answer["skipped"]:
            # It was over; or a plain lease had been forgotten.
            lease = before[seq]
            is_kept = self.is_durable or lease.life == self.life
            assert not is_kept or lease.deadline <= now_ms() + SLACK_MS, (what, seq, lease)
        for seq in done:
            assert not self.is_durable or before[seq].deadline >= asked_at - SLACK_MS
        if what == "ack":
            self.unsure.difference_update(chosen)
            self.acked.update(done)
        if what == "extend":
            for seq in done:
                self.leases[seq] = Lease(node, before[seq].lease_id, answer["deadlines"][str(seq)], self.life)

    def there(self, client: Client) -> set[int]:
        found: set[int] = set()
        answer: Any = {"next_from_seq": 0, "caught_up": False}
        while not answer["caught_up"]:
            answer = client.read(self.name, answer["next_from_seq"], limit=1000)
            assert answer["tombstone"] is None
            found.update(seqs(answer["records"]))
        return found

    def check(self, client: Client) -> None:
        there = self.there(client)
        assert not there & self.acked, "what was done is there again"
        # An append that had no answer may be there.
        assert self.appended - self.acked - self.unsure <= there
        state = client.state(self.name)
        figures = state["queue"]
        assert figures["ready"] + figures["in_flight"] + figures["delayed"] == state["count"] == len(there)

    def drain(self, client: Client) -> None:
        """Everything that is there comes in the end, once."""
        left = self.there(client)
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, left
            jobs = claim(client, self.name, "last", max=100, wait_ms=500)
            self.take("last", jobs)
            if jobs:
                assert ack(client, self.name, *jobs, node="last")["skipped"] == []
            left -= set(seqs(jobs))
        assert counts(client, self.name) == (0, 0, 0)


@pytest.mark.parametrize(
    ("seed", "amid"),
    [pytest.param(1, False, marks=pytest.mark.more, id="between calls"), pytest.param(2, True, id="amid a call")],
)
def test_kill_after_kill(tmp_path: Path, seed: int, amid: bool) -> None:
    """The seed decides the calls and the moments, but not what the operating system makes of them."""
    rng = random.Random(seed)
    # Segments are sealed, rewritten and merged all the time, also those whose jobs are leased.
    daemon = Daemon(tmp_path, checkpoint_ms=200, segment_max_events=40, reclaim_ms=200)
    worked = [Worked(name, not amid) for name in QUEUES if not name.startswith("memory")]
    try:
        client = daemon.start()
        for each in worked:
            queue(client, each.name, durability=each.name.split("-")[0], leases_durable=each.is_durable)
        for life in range(5):
            ended_by = signal.SIGTERM if life == 3 else signal.SIGKILL
            if amid and ended_by == signal.SIGKILL:
                work_until_killed(daemon, client, worked, rng)
            else:
                for _ in range(rng.randint(100, 200)):
                    rng.choice(worked).step(client, rng)
                daemon.end(ended_by)
            client = daemon.start()
            for each in worked:
                each.life += 1
                each.check(client)
        for each in worked:
            each.drain(client)
    finally:
        daemon.kill()


def work_until_killed(daemon: Daemon, client: Client, worked: list[Worked], rng: random.Random) -> None:
    timer = threading.Timer(rng.uniform(0.3, 1.2), lambda: daemon.send_signal(signal.SIGKILL))
    timer.start()
    try:
        while True:
            rng.choice(worked).step(client, rng)
    except httpx.TransportError:
        timer.join()
        daemon.wait()
