"""Groups that give out the records of one key in their order, over HTTP and through the clients
(`docs/spec/consumers.md` section 4)."""

from __future__ import annotations

import random
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, Daemon, body_of, invalid, until
from tests.conformance.test_groups import LONG_MS, claim, path, put, say
from topics.client import Client as TopicsClient
from topics.client import Retry, TopicsError

KEYS = 5


def test_one_record_of_a_key_is_leased_at_a_time(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": n, "tag": tag} for n, tag in enumerate("aabab")])
    state = put(client, topic, order_by="tag")
    assert state["order_by"] == "tag"
    put(client, topic, "free")
    assert claim(client, topic) == [1, 3]
    assert claim(client, topic, "free") == [1, 2, 3, 4, 5]
    body_of(say(client, topic, "nack", seqs=[1], delay_ms=LONG_MS))
    assert claim(client, topic) == []
    body_of(say(client, topic, "ack", seqs=[3]))
    assert claim(client, topic) == [5]
    assert body_of(client.put(path(topic), json={}), 200)["order_by"] == "tag"
    assert body_of(client.put(path(topic), json={"order_by": None}), 200)["order_by"] is None
    assert claim(client, topic) == [2, 4]


def test_only_what_matches_has_a_place(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": n, "node": "x"} for n in range(6)])
    put(client, topic, order_by="node", filter=["data", "", "Ge", 2])
    assert claim(client, topic) == [3]
    body_of(say(client, topic, "ack", seqs=[3]))
    assert claim(client, topic) == [4]


@pytest.mark.parametrize("value", ["", "key", "Tag", 1, True, [], {}])
def test_a_bad_order_is_named(client: Client, topic: str, value: Any) -> None:
    client.append(topic, 1)
    invalid(client.put(path(topic), json={"order_by": value}), "order_by")


def test_the_client_sets_the_order(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with TopicsClient(str(client.base_url)) as other:
        assert other.create_group(topic, "g", order_by="node").order_by == "node"
        assert other.create_group(topic, "g").order_by == "node"
        assert other.create_group(topic, "g", order_by="").order_by is None


def _work(url: str, node: str, stop: threading.Event, seen: list[tuple[str, int]], lock: threading.Lock) -> None:
    """Claim, note and ack until the daemon is gone. Some records are given back, some acks are not sent."""
    chance = random.Random(node)
    with TopicsClient(url, retry=Retry(give_up_after=0)) as own, suppress(TopicsError):
        while not stop.is_set():
            for job in own.claim("t", node, max=3, group="g", wait_ms=50).claimed:
                if chance.random() < 0.2:
                    own.nack("t", node, [job.seq], group="g")
                else:
                    with lock:
                        seen.append((str(job.tag), job.seq))
                    own.ack("t", node, [job.seq], group="g")


def test_over_kills_the_records_of_a_key_are_done_in_their_order(tmp_path: Path) -> None:
    """Workers share a group whose daemon is killed again and again. A record may come again when its ack was lost, but
    never after a later one of its key has begun."""
    daemon, chance, total = Daemon(tmp_path), random.Random(5), 300
    seen: list[tuple[str, int]] = []
    client = daemon.start()
    try:
        client.put_topic("t", durability="fsync")
        client.append("t", records=[{"data": n, "tag": str(n % KEYS)} for n in range(total)])
        put(client, "t", lease_ms=1000, leases_durable=True, order_by="tag")
        for life in range(4):
            stop = threading.Event()
            lock = threading.Lock()
            threads = [
                threading.Thread(target=_work, args=(daemon.url, f"{life}-{i}", stop, seen, lock)) for i in range(3)
            ]
            for thread in threads:
                thread.start()
            stop.wait(0.05 + 0.15 * chance.random())
            daemon.kill()
            stop.set()
            for thread in threads:
                thread.join()
            client = daemon.start()
        while body_of(client.get(path("t")))["lag"]:
            for job in body_of(say(client, "t", "claim", max=100, wait_ms=2000))["claimed"]:
                seen.append((job["$tag"], job["$seq"]))
                body_of(say(client, "t", "ack", seqs=[job["$seq"]]))
        for key in map(str, range(KEYS)):
            seqs = [seq for tag, seq in seen if tag == key]
            assert seqs == sorted(seqs)
            assert len(set(seqs)) == total // KEYS
        until(lambda: body_of(client.get(path("t")))["unfinished"] == 0)
    finally:
        daemon.kill()
