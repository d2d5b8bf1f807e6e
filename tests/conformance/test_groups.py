"""Groups over HTTP and through the clients (`docs/spec/consumers.md` section 4)."""

from __future__ import annotations

import random
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import Client, Daemon, body_of, error_of, invalid, until
from tests.conformance.router_client import metric
from topics.client import Client as TopicsClient
from topics.client import Conflict, Job, NotFound, Retry, TopicsError, Worker

LONG_MS = 60_000
LEASE_S = 1.0


def path(topic: str, group: str = "g", *more: str) -> str:
    return "/".join([f"/v0/topics/{topic}/groups", group, *more])


def put(client: Client, topic: str, group: str = "g", **fields: Any) -> Any:
    return body_of(client.put(path(topic, group), json={"from": "earliest", **fields}), 200, 201)


def say(client: Client, topic: str, verb: str, group: str = "g", **fields: Any) -> httpx.Response:
    return client.post(path(topic, group, verb), json={"node": "n", **fields})


def claim(client: Client, topic: str, group: str = "g", most: int = 10, **fields: Any) -> list[int]:
    return [job["$seq"] for job in body_of(say(client, topic, "claim", group, max=most, **fields))["claimed"]]


def test_a_group_from_its_creation_to_its_deletion(client: Client, topic: str) -> None:
    error_of(client.put(path(topic), json={}), 404, "topic_not_found")
    client.append(topic, 1, 2, 3)
    error_of(client.get(path(topic)), 404, "group_not_found")
    error_of(say(client, topic, "claim"), 404, "group_not_found")
    state = body_of(client.put(path(topic), json={"from": {"seq": 1}, "lease_ms": LONG_MS}), 201)
    assert (state["floor"], state["lag"], state["missed"], state["max_unfinished"]) == (1, 2, 0, 100_000)
    assert (state["claim_jitter_ms"], state["max_deliveries"], state["leases_durable"]) == (0, 0, False)
    assert state["queue"] == {"ready": 2, "in_flight": 0, "delayed": 0, "dead_lettered": 0, "paused": False}
    again = body_of(client.put(path(topic), json={"from": "tail", "max_deliveries": 3}), 200)
    assert (again["floor"], again["lease_ms"], again["max_deliveries"]) == (1, LONG_MS, 3)
    claimed = body_of(say(client, topic, "claim", max=5))
    assert [job["$seq"] for job in claimed["claimed"]] == [2, 3]
    assert (claimed["group"], claimed["lag"], claimed["missed"], claimed["ready"]) == ("g", 2, 0, 0)
    extended = body_of(say(client, topic, "extend", seqs=[2], lease_ms=LONG_MS))
    assert (extended["extended"], extended["group"]) == (1, "g")
    assert body_of(say(client, topic, "nack", seqs=[3]))["nacked"] == 1
    acked = body_of(say(client, topic, "ack", seqs=[2, 3]))
    assert (acked["acked"], acked["skipped"], acked["ready"], acked["in_flight"]) == (1, [3], 1, 0)
    assert client.state(topic)["count"] == 3
    assert [one["group"] for one in body_of(client.get(f"/v0/topics/{topic}/groups"))["groups"]] == ["g"]
    assert metric(client, "group_lag", topic=topic, group="g") == 1
    assert body_of(client.delete(path(topic)))["deleted"] is True
    assert body_of(client.delete(path(topic)))["deleted"] is False
    error_of(say(client, topic, "ack", seqs=[3]), 404, "group_not_found")


def test_lists_are_paged(client: Client, topic: str) -> None:
    client.append(topic, 1)
    for name in ("a", "b1", "b2", "b3"):
        put(client, topic, name)
    page = body_of(client.get(f"/v0/topics/{topic}/groups", params={"prefix": "b", "page_size": 2}))
    assert [one["group"] for one in page["groups"]] == ["b1", "b2"]
    where = {"prefix": "b", "page_size": 2, "cursor": page["next_cursor"]}
    rest = body_of(client.get(f"/v0/topics/{topic}/groups", params=where))
    assert [one["group"] for one in rest["groups"]] == ["b3"]
    assert "next_cursor" not in rest


def test_a_paused_group_gives_nothing(client: Client, topic: str) -> None:
    client.append(topic, 1)
    put(client, topic, retry={"backoff": "fixed", "delay_ms": 60_000}, rate={"jobs": 5, "per_ms": 1000})
    paused = body_of(client.post(path(topic, "g", "pause"), json={}))
    assert (paused["group"], paused["queue"]["paused"]) == ("g", True)
    answer = body_of(say(client, topic, "claim"))
    assert (answer["paused"], answer["count"]) == (True, 0)
    assert metric(client, "group_paused", topic=topic, group="g") == 1
    assert body_of(client.post(path(topic, "g", "resume")))["queue"]["paused"] is False
    assert claim(client, topic) == [1]
    body_of(say(client, topic, "nack", seqs=[1], error="later"))
    state = body_of(client.get(path(topic)))
    assert (state["queue"]["delayed"], state["retry"]["delay_ms"], state["rate"]["jobs"]) == (1, 60_000, 5)
    assert metric(client, "group_delayed", topic=topic, group="g") == 1


def test_groups_are_of_logs(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    error_of(client.put(path(topic), json={}), 409, "not_a_log")
    error_of(client.get(path(topic)), 409, "not_a_log")
    error_of(say(client, topic, "claim"), 409, "not_a_log")
    error_of(client.get(f"/v0/topics/{topic}/groups"), 409, "not_a_log")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"from": "middle"}, "from"),
        ({"from": {"seq": 1, "ts": 2}}, "from"),
        ({"from": {"seq": 9}}, "from.seq"),
        ({"max_unfinished": 0}, "max_unfinished"),
        ({"max_unfinished": 100_001}, "max_unfinished"),
        ({"filter": ["tag"]}, "filter"),
        ({"dead_letter": "no such name!"}, "dead_letter"),
        ({"lease": 1}, "lease"),
    ],
)
def test_bad_settings_are_named(client: Client, topic: str, body: dict[str, Any], field: str) -> None:
    client.append(topic, 1)
    invalid(client.put(path(topic), json=body), field)


def test_each_group_has_every_record_and_a_filter_takes_its_own(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(1, 7)])
    put(client, topic, "all")
    put(client, topic, "odd", filter=["tag", "Eq", "odd"])
    assert claim(client, topic, "all") == [1, 2, 3, 4, 5, 6]
    assert claim(client, topic, "odd", most=2) == [1, 3]
    assert claim(client, topic, "odd") == [5]
    body_of(say(client, topic, "ack", "odd", seqs=[1, 3, 5]))
    until(lambda: body_of(say(client, topic, "claim", "odd"))["lag"] == 0)


def test_a_stream_of_a_group(client: Client, topic: str) -> None:
    client.append(topic, {"n": 1})
    put(client, topic)
    with client.stream("GET", path(topic, "g", "work"), params={"node": "w"}) as stream:
        lines = stream.iter_lines()
        data = next(line for line in lines if line.startswith("data: "))
        assert f'"topic":"{topic}","group":"g","lease_id":' in data
        assert body_of(client.get(path(topic)))["queue"]["in_flight"] == 1
    until(lambda: body_of(client.get(path(topic)))["queue"]["in_flight"] == 0)


def test_both_clients_know_groups(client: Client, topic: str) -> None:
    with TopicsClient(client.daemon.url) as own:
        with pytest.raises(NotFound):
            own.create_group(topic, "g")
        own.append(topic, [{"n": n} for n in range(5)])
        state = own.create_group(topic, "g", from_="earliest", lease_ms=LONG_MS, dead_letter=f"{topic}.dead")
        assert (state.lag, state.dead_letter, state.filter) == (5, f"{topic}.dead", None)
        assert own.create_group(topic, "g", dead_letter="").dead_letter is None
        jobs = own.claim(topic, "n", max=2, group="g").claimed
        assert [job.seq for job in jobs] == [1, 2]
        ids = [job.lease_id for job in jobs]
        assert own.ack(topic, "n", [1, 2], lease_ids=ids, group="g").acked == 2
        assert own.ack(topic, "n", [1, 2], lease_ids=ids, group="g").skipped == [1, 2]
        done: list[int] = []

        def handle(job: Job) -> None:
            done.append(job.seq)

        Worker(own, topic, handle, group="g", max_jobs=3).run()
        assert sorted(done) == [3, 4, 5]
        assert own.group(topic, "g").floor == 5
        assert [one.group for one in own.all_groups(topic)] == ["g"]
        assert own.state(topic).count == 5
        own.create(f"{topic}.q", type="queue")
        with pytest.raises(Conflict):
            own.create_group(f"{topic}.q", "g")
        assert own.delete_group(topic, "g").deleted


def _work(url: str, name: str, node: str, stop: threading.Event, told: _Told) -> None:
    """Claim and ack until the daemon is gone. What was answered is told."""
    with TopicsClient(url, retry=Retry(give_up_after=0)) as own, suppress(TopicsError):
        while not stop.is_set():
            began = time.monotonic()
            jobs = own.claim("t", node, max=5, wait_ms=100, group=name).claimed
            seqs = [job.seq for job in jobs]
            told.claimed(name, seqs, began)
            if seqs:
                told.asked(name, seqs)
                skipped = own.ack("t", node, seqs, lease_ids=[job.lease_id for job in jobs], group=name).skipped
                told.acked(name, set(seqs) - set(skipped))


def _is_idle(client: Client, name: str) -> bool:
    return bool(body_of(client.get(path("t", name)))["queue"]["in_flight"] == 0)


class _Told:
    """What the daemon has told the workers of all groups."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.done: dict[str, set[int]] = {"a": set(), "b": set()}
        self.sent: dict[str, set[int]] = {"a": set(), "b": set()}
        self.held: dict[tuple[str, int], float] = {}
        self.problems: list[str] = []

    def claimed(self, name: str, seqs: list[int], began: float) -> None:
        with self.lock:
            for seq in seqs:
                if seq in self.done[name]:
                    self.problems.append(f"{name}: {seq} after its ack")
                if self.held.get((name, seq), 0) > time.monotonic():
                    self.problems.append(f"{name}: {seq} has two holders")
                self.held[name, seq] = began + LEASE_S

    def asked(self, name: str, seqs: list[int]) -> None:
        with self.lock:
            self.sent[name] |= set(seqs)

    def acked(self, name: str, seqs: set[int]) -> None:
        with self.lock:
            self.done[name] |= seqs
            for seq in seqs:
                self.held.pop((name, seq), None)


def test_over_kills_each_record_is_done_and_none_comes_back_after_its_ack(tmp_path: Path) -> None:
    """Workers of two groups share a log of class `fsync` while the daemon is killed again and again. An answered ack is
    for ever, nothing is skipped, and with `leases_durable` no record has two holders while a lease runs."""
    daemon, told, chance, total = Daemon(tmp_path), _Told(), random.Random(7), 300
    client = daemon.start()
    try:
        client.put_topic("t", durability="fsync")
        client.append("t", *range(total))
        for name in told.done:
            put(client, "t", name, lease_ms=int(LEASE_S * 1000), leases_durable=True)
        for _ in range(4):
            stop = threading.Event()
            threads = [
                threading.Thread(target=_work, args=(daemon.url, name, f"{name}{i}", stop, told))
                for name in told.done
                for i in range(2)
            ]
            for thread in threads:
                thread.start()
            stop.wait(0.05 + 0.15 * chance.random())
            daemon.kill()
            stop.set()
            for thread in threads:
                thread.join()
            assert not told.problems
            client = daemon.start()
        for name, done in told.done.items():
            rest: set[int] = set()
            until(partial(_is_idle, client, name))
            while seqs := claim(client, "t", name, most=1000, lease_ms=LONG_MS):
                rest |= set(seqs)
                body_of(say(client, "t", "ack", name, seqs=seqs))
            assert not rest & done
            assert rest | done | told.sent[name] == set(range(1, total + 1))
            state = body_of(client.get(path("t", name)))
            assert (state["floor"], state["missed"]) == (total, 0)
    finally:
        daemon.kill()
