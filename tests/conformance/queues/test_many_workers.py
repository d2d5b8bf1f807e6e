"""Semantics 6: many workers at once."""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conformance.client import Client, error_of
from tests.conformance.queue_client import LONG_MS, SHORT_MS, Counts, Queue, check_answer, new_queue, seqs_of
from tests.conformance.router_pairs import check_figures


@dataclass
class Held:
    """One job in the hands of one worker, between the answer to its claim and what it sent to give it away."""

    seq: int
    deliveries: int
    began: float
    ended: float


@dataclass
class Record:
    """What workers of a queue have seen."""

    held: list[Held] = field(default_factory=list)
    acked: Counter[int] = field(default_factory=Counter)

    def by_seq(self) -> Iterator[list[Held]]:
        """The times that a job was held, in order, for each job."""
        found: dict[int, list[Held]] = defaultdict(list)
        for held in self.held:
            found[held.seq].append(held)
        for one in found.values():
            yield sorted(one, key=lambda held: held.began)

    def check(self, jobs: int) -> None:
        """Every job was acked exactly once, and had never two holders."""
        assert self.acked == Counter(range(1, jobs + 1))
        for times in self.by_seq():
            for before, after in itertools.pairwise(times):
                assert before.ended <= after.began, (before, after)
                assert before.deliveries < after.deliveries, (before, after)


@dataclass
class Sampling:
    """A look at the counters of a queue, again and again while others use it."""

    queue: Queue
    stopped: threading.Event = field(default_factory=threading.Event)
    looks: int = 0

    def run(self) -> None:
        with Client(self.queue.client.daemon) as client:
            before = client.state(self.queue.topic)["count"]
            while not self.stopped.is_set():
                self.queue.seen_by(client).counts()
                count = client.state(self.queue.topic)["count"]
                assert count <= before
                before = count
                self.looks += 1


def work(queue: Queue, record: Record, one: Callable[[Queue, random.Random, str], Record], number: int) -> None:
    """Claim and give away as `one` does until the queue is empty."""
    rng = random.Random(number)
    end = time.monotonic() + 120
    with Client(queue.client.daemon) as client:
        mine = queue.seen_by(client)
        while mine.counts() != Counts():
            assert time.monotonic() < end
            # Two workers each go by the same name.
            seen = one(mine, rng, f"worker-{number // 2}")
            record.held += seen.held
            record.acked.update(seen.acked)
            if not seen.held:
                time.sleep(0.01)


def all_work(queue: Queue, one: Callable[[Queue, random.Random, str], Record], workers: int) -> Record:
    sampling = Sampling(queue)
    records = [Record() for _ in range(workers)]
    with ThreadPoolExecutor(workers + 1) as pool:
        sampled = pool.submit(sampling.run)
        try:
            done = [pool.submit(work, queue, record, one, number) for number, record in enumerate(records)]
            for future in done:
                future.result()
        finally:
            sampling.stopped.set()
        sampled.result()
    assert sampling.looks > 3
    total = Record()
    for record in records:
        total.held += record.held
        total.acked.update(record.acked)
    return total


def handle_carefully(queue: Queue, rng: random.Random, node: str) -> Record:
    """Claim for long; extend some, give some back, ack the rest."""
    jobs = queue.claim(node, rng.randint(1, 25))
    began = time.monotonic()
    if not jobs:
        return Record()
    assert len({job["$seq"] for job in jobs}) == len(jobs)
    back = [job for job in jobs if rng.random() < 0.15]
    done = [job for job in jobs if job not in back]
    record = Record()
    if rng.random() < 0.3:
        assert queue.extend(*seqs_of(jobs), node=node)["extended"] == len(jobs)
    if back:
        record.held += [Held(job["$seq"], job["deliveries"], began, time.monotonic()) for job in back]
        answer = queue.nack(*seqs_of(back), node=node, delay_ms=rng.choice([0, 0, 30]))
        assert (answer["nacked"], answer["skipped"]) == (len(back), [])
    if done:
        record.held += [Held(job["$seq"], job["deliveries"], began, time.monotonic()) for job in done]
        lease_ids = {"lease_ids": [job["lease_id"] for job in done]} if rng.random() < 0.5 else {}
        answer = queue.ack(*seqs_of(done), node=node, **lease_ids)
        assert (answer["acked"], answer["skipped"]) == (len(done), [])
        record.acked.update(seqs_of(done))
    return record


@pytest.mark.parametrize(
    "config", [{}, {"durability": "fsync", "leases_durable": True}, {"claim_jitter_ms": 20}], ids=str
)
def test_of_many_workers_each_job_is_acked_by_one(client: Client, config: dict[str, Any]) -> None:
    count = 2000 if not config else 600
    queue = new_queue(client, *range(count), **config)
    record = all_work(queue, handle_carefully, 8)
    record.check(count)
    # Every delivery was to somebody: none is missing in the count.
    for times in record.by_seq():
        assert [held.deliveries for held in times] == list(range(1, len(times) + 1))
    queue.has_left()


def handle_carelessly(queue: Queue, rng: random.Random, node: str) -> Record:
    """Claim for a moment, and be too late with some of it."""
    jobs = queue.claim(node, rng.randint(1, 10), lease_ms=SHORT_MS)
    began = time.time() * 1000
    time.sleep(rng.choice([0, 0, 0.03, 0.09, 0.11, 0.15]))
    record = Record()
    if not jobs:
        return record
    sent = time.time() * 1000
    answer = queue.ack(*seqs_of(jobs), node=node, lease_ids=[job["lease_id"] for job in jobs])
    acked = set(seqs_of(jobs)) - set(answer["skipped"])
    assert answer["acked"] == len(acked)
    record.acked.update(acked)
    for job in jobs:
        # The lease is on another clock than the deadline: a few milliseconds between them are no second holder.
        ended = min(sent, job["deadline"] - 10)
        if began < ended:
            record.held.append(Held(job["$seq"], job["deliveries"], began, ended))
    return record


def test_of_many_slow_workers_each_job_is_acked_by_one(client: Client) -> None:
    queue = new_queue(client, *range(200))
    all_work(queue, handle_carelessly, 6).check(200)
    queue.has_left()


@dataclass
class Storm:
    """Everything that can become of jobs, at once, by as many as call `rage`."""

    queue: Queue
    until: float

    def rage(self, number: int) -> None:
        rng = random.Random(number)
        with Client(self.queue.client.daemon) as client:
            queue = self.queue.seen_by(client)
            while time.monotonic() < self.until:
                rng.choice([self.append, self.handle, self.handle, self.delete])(queue, rng, f"worker-{number}")

    def append(self, queue: Queue, rng: random.Random, node: str) -> None:
        queue.client.tagged(queue.topic, *[rng.choice("abc") for _ in range(rng.randint(1, 12))])

    def delete(self, queue: Queue, rng: random.Random, node: str) -> None:
        state = queue.client.state(queue.topic)
        if rng.random() < 0.5:
            queue.client.delete_records(queue.topic, before_seq=state["earliest_seq"] + rng.randint(0, 3))
        else:
            queue.client.delete_records(queue.topic, match=rng.choice("abc"))

    def handle(self, queue: Queue, rng: random.Random, node: str) -> None:
        jobs = queue.claim(node, rng.randint(1, 9), lease_ms=rng.choice([SHORT_MS, LONG_MS]), wait_ms=20)
        time.sleep(rng.choice([0, 0, 0.01, 0.12]))
        if jobs:
            some = rng.sample(seqs_of(jobs), rng.randint(1, len(jobs)))
            queue.extend(*some, node=node, lease_ms=rng.choice([SHORT_MS, LONG_MS]))
            queue.nack(*some[:2], node=node, delay_ms=rng.choice([0, 40, LONG_MS]))
            queue.ack(*some[1:] or some, node=node)


@pytest.mark.parametrize(
    "config",
    [
        {"durability": "disk"},
        {"durability": "fsync", "cap_records": 20},
        {"durability": "memory", "ttl_ms": 150},
        {"durability": "ephemeral", "cap_bytes": 90, "ttl_ms": 250},
        {"leases_durable": True, "cap_bytes": 60},
    ],
    ids=str,
)
def test_counters_add_up_whatever_happens(client: Client, config: dict[str, Any]) -> None:
    queue = new_queue(client, **config)
    storm = Storm(queue, time.monotonic() + 0.8)
    with ThreadPoolExecutor(5) as pool, Client(client.daemon) as own:
        done = [pool.submit(storm.rage, number) for number in range(5)]
        while not all(future.done() for future in done):
            queue.seen_by(own).counts()
        for future in done:
            future.result()
    client.put_topic(queue.topic, ttl_ms=0)
    reading = check_figures(client, queue.topic)
    jobs = queue.claim("last", 1000)
    assert set(seqs_of(jobs)) <= set(reading.seqs)
    assert queue.counts().in_flight >= len(jobs)
    client.delete_records(queue.topic, before_seq=10**9)
    assert queue.counts() == Counts()
    assert queue.claim("last", 1000) == []


def test_a_queue_may_go_and_come_while_it_is_used(client: Client, durability: str) -> None:
    """A call that comes too late finds no topic, or none of its leases; nothing else goes wrong."""
    queue = new_queue(client, durability=durability)
    end = time.monotonic() + 0.6

    def use(number: int) -> None:
        rng = random.Random(number)
        node = f"worker-{number}"
        with Client(client.daemon) as own:
            mine = queue.seen_by(own)
            while time.monotonic() < end:
                own.post(f"/v0/topics/{queue.topic}", json={"records": [{"data": 1}] * 3, "create": False})
                answer = mine.send("claim", node=node, max=3, wait_ms=rng.choice([0, 30]))
                if answer.status_code != 200:
                    error_of(answer, 404, "topic_not_found")
                    continue
                jobs = check_answer(queue.topic, "claim", answer.json())["claimed"]
                if jobs:
                    seqs, lease_ids = seqs_of(jobs), [job["lease_id"] for job in jobs]
                    answer = mine.send("ack", node=node, seqs=seqs, lease_ids=lease_ids)
                    assert answer.status_code in (200, 404), answer.text

    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(use, number) for number in range(4)]
        while time.monotonic() < end:
            client.delete_topic(queue.topic)
            client.put_topic(queue.topic, type="queue", durability=durability)
            for _ in range(5):
                queue.counts()
        for future in done:
            future.result()
    left = client.state(queue.topic)["count"]
    queue.append("last")
    time.sleep(0.1)
    assert queue.counts().ready >= 1
    assert client.state(queue.topic)["count"] == left + 1
