"""`max_in_flight_per_key` of queues and groups, over HTTP and through the clients (`docs/spec/consumers.md` 5)."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, body_of, invalid
from tests.conformance.test_groups import LONG_MS, path, put
from topics.client import Client as TopicsClient
from topics.client import Retry, TopicsError

TWO: dict[str, Any] = {"by": "tag", "max": 2}
LEASE_S = 1.0


class Jobs:
    """The jobs of a queue, or of a group of a log."""

    def __init__(self, client: Client, topic: str, kind: str) -> None:
        self.client, self.topic, self.kind = client, topic, kind
        client.put_topic(topic, type="queue" if kind == "queue" else "log")
        if kind == "group":
            put(client, topic)

    def configure(self, **fields: Any) -> Any:
        if self.kind == "queue":
            return body_of(self.client.put(f"/v0/topics/{self.topic}", json=fields))["config"]
        return body_of(self.client.put(path(self.topic), json=fields))

    def refused(self, field: str, **fields: Any) -> None:
        target = f"/v0/topics/{self.topic}" if self.kind == "queue" else path(self.topic)
        invalid(self.client.put(target, json=fields), field)

    def say(self, verb: str, **fields: Any) -> Any:
        where = f"/v0/topics/{self.topic}/{verb}" if self.kind == "queue" else path(self.topic, "g", verb)
        return body_of(self.client.post(where, json={"node": "n", **fields}))

    def claim(self, most: int = 10, **fields: Any) -> list[int]:
        return [job["$seq"] for job in self.say("claim", max=most, **fields)["claimed"]]


@pytest.fixture(params=["queue", "group"])
def jobs(request: pytest.FixtureRequest, client: Client, topic: str) -> Jobs:
    return Jobs(client, topic, request.param)


def test_a_key_at_its_limit_holds_up_only_itself(jobs: Jobs) -> None:
    assert jobs.configure(max_in_flight_per_key=TWO)["max_in_flight_per_key"] == TWO
    jobs.client.append(jobs.topic, records=[{"data": 1, **({"tag": tag} if tag != "-" else {})} for tag in "aaaab-a--"])
    assert jobs.claim() == [1, 2, 5, 6, 8, 9]
    assert jobs.claim() == []
    jobs.say("ack", seqs=[2])
    assert jobs.claim() == [3]
    jobs.say("nack", seqs=[1])
    assert jobs.claim() == [1], "what came back is before what nobody has had"
    jobs.say("nack", seqs=[1], delay_ms=LONG_MS)
    assert jobs.claim() == [4], "a job that is delayed does not count"


def test_a_waiting_claim_gets_the_place_of_a_lease_that_ends(jobs: Jobs) -> None:
    jobs.configure(max_in_flight_per_key={"by": "node", "max": 1})
    jobs.client.append(jobs.topic, records=[{"data": n, "node": "x"} for n in range(3)])
    assert jobs.claim(lease_ms=200) == [1]
    assert jobs.claim(wait_ms=10_000) == [1]
    with TopicsClient(str(jobs.client.base_url)) as own:
        group = "g" if jobs.kind == "group" else None
        timer = threading.Timer(0.1, lambda: own.ack(jobs.topic, "n", [1], group=group))
        timer.start()
        assert jobs.claim(wait_ms=10_000) == [2]
        timer.join()


def test_another_limit_counts_the_leases_there_are(jobs: Jobs) -> None:
    jobs.client.append(jobs.topic, records=[{"data": n, "tag": "a"} for n in range(6)])
    assert jobs.claim(3) == [1, 2, 3]
    jobs.configure(max_in_flight_per_key=TWO)
    assert jobs.claim() == []
    jobs.say("ack", seqs=[1])
    assert jobs.claim() == []
    jobs.say("ack", seqs=[2])
    assert jobs.claim() == [4]
    jobs.configure(max_in_flight_per_key={"by": "tag", "max": 3})
    assert jobs.claim() == [5]
    jobs.configure(max_in_flight_per_key=None)
    assert jobs.claim() == [6]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (1, "max_in_flight_per_key"),
        ("tag", "max_in_flight_per_key"),
        ({"by": "tag"}, "max_in_flight_per_key.max"),
        ({"max": 1}, "max_in_flight_per_key.by"),
        ({"by": "key", "max": 1}, "max_in_flight_per_key.by"),
        ({"by": "tag", "max": 0}, "max_in_flight_per_key.max"),
        ({"by": "tag", "max": 1_000_001}, "max_in_flight_per_key.max"),
        ({"by": "tag", "max": 1.5}, "max_in_flight_per_key.max"),
        ({"by": "tag", "max": 1, "min": 1}, "max_in_flight_per_key.min"),
    ],
)
def test_bad_limits_are_named(jobs: Jobs, value: Any, field: str) -> None:
    jobs.refused(field, max_in_flight_per_key=value)


def test_an_order_and_a_limit_exclude_one_another(jobs: Jobs) -> None:
    jobs.refused("max_in_flight_per_key", max_in_flight_per_key=TWO, order_by="tag")
    jobs.configure(order_by="tag")
    jobs.refused("max_in_flight_per_key", max_in_flight_per_key=TWO)
    jobs.configure(order_by=None, max_in_flight_per_key=TWO)
    jobs.refused("order_by", order_by="tag")
    config = jobs.configure(order_by="node", max_in_flight_per_key=None)
    assert (config["order_by"], config["max_in_flight_per_key"]) == ("node", None)


def test_a_log_has_no_limit_of_its_own(client: Client, topic: str) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"max_in_flight_per_key": TWO}), "max_in_flight_per_key")


def test_the_clients_set_limits(client: Client, topic: str) -> None:
    with TopicsClient(str(client.base_url)) as own:
        made = own.create(f"{topic}.q", type="queue", max_in_flight_per_key=TWO)
        assert made.config.max_in_flight_per_key == TWO
        client.append(topic, 1)
        assert own.create_group(topic, "g", max_in_flight_per_key=TWO).max_in_flight_per_key == TWO
        assert own.create_group(topic, "g").max_in_flight_per_key == TWO
        assert own.create_group(topic, "g", max_in_flight_per_key={}).max_in_flight_per_key is None


class _Held:
    """What the workers were told. A lease holds for sure from the answer of its claim until `LEASE_S` after the claim
    was sent, or until something is said about it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.until: dict[int, tuple[str, float]] = {}
        self.problems: list[str] = []
        self.acked: Counter[int] = Counter()

    def claimed(self, jobs: list[tuple[int, str]], began: float) -> None:
        with self.lock:
            for seq, tag in jobs:
                self.until[seq] = (tag, began + LEASE_S)
            now = time.monotonic()
            count = Counter(tag for tag, until in self.until.values() if until > now)
            self.problems += [f"{n} of {tag}" for tag, n in count.items() if n > TWO["max"]]

    def says(self, seqs: list[int]) -> None:
        with self.lock:
            for seq in seqs:
                self.until.pop(seq, None)


def _work(url: str, node: str, group: str | None, stop: threading.Event, held: _Held) -> None:
    chance = random.Random(node)
    with TopicsClient(url, retry=Retry(give_up_after=0)) as own, suppress(TopicsError):
        while not stop.is_set():
            began = time.monotonic()
            jobs = own.claim("t", node, max=4, wait_ms=100, group=group, lease_ms=int(LEASE_S * 1000)).claimed
            held.claimed([(job.seq, str(job.tag)) for job in jobs], began)
            for job in jobs:
                deed = chance.random()
                if deed < 0.1:
                    continue
                held.says([job.seq])
                if deed < 0.3:
                    own.nack("t", node, [job.seq], group=group, lease_ids=[job.lease_id])
                elif own.ack("t", node, [job.seq], group=group, lease_ids=[job.lease_id]).acked:
                    with held.lock:
                        held.acked[job.seq] += 1


@pytest.mark.parametrize("kind", ["queue", "group"])
def test_over_nacks_expiries_and_kills_no_more_of_a_key_are_leased(kind: str, tmp_path: Path) -> None:
    daemon, held, chance, total = Daemon(tmp_path), _Held(), random.Random(11), 400
    group = "g" if kind == "group" else None
    client = daemon.start()
    try:
        settings: dict[str, Any] = {"lease_ms": 1000, "leases_durable": True, "max_in_flight_per_key": TWO}
        own = settings if kind == "queue" else {}
        client.put_topic("t", durability="fsync", type="queue" if kind == "queue" else "log", **own)
        if kind == "group":
            put(client, "t", **settings)
        client.append("t", records=[{"data": n, "tag": str(n * n % 7)} for n in range(total)])
        for life in range(4):
            stop = threading.Event()
            threads = [
                threading.Thread(target=_work, args=(daemon.url, f"{life}-{i}", group, stop, held)) for i in range(4)
            ]
            for thread in threads:
                thread.start()
            stop.wait(0.1 + 0.3 * chance.random())
            daemon.kill()
            stop.set()
            for thread in threads:
                thread.join()
            client = daemon.start()
        assert not held.problems
        assert held.acked
        assert max(held.acked.values()) == 1
        rest: list[int] = []
        jobs = Jobs.__new__(Jobs)
        jobs.client, jobs.topic, jobs.kind = client, "t", kind
        while len(set(rest) | set(held.acked)) < total:
            seqs = jobs.claim(100, wait_ms=5000)
            if not seqs:
                break
            rest += seqs
            jobs.say("ack", seqs=seqs)
        assert not set(rest) & held.acked.keys()
        # The ack of some may have been carried out and not answered.
        assert jobs.claim(100, wait_ms=1500) == []
    finally:
        daemon.kill()
