"""Unique jobs of the real daemon, under SIGKILL: never two unfinished jobs with one key, and no key is lost."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_sigkill import Client, Daemon

KEYS = [f"key-{i}" for i in range(12)]
QUEUE = "/v0/topics/jobs"


class UniqueHistory:
    """What the clients know: the key of each seq that was acked, and the seqs whose end was asked for."""

    def __init__(self) -> None:
        self.keys: dict[int, str] = {}
        self.ended: set[int] = set()
        self.duplicates = 0
        self.errors: list[str] = []
        self.lock = threading.Lock()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    daemon = Daemon(tmp_path)
    try:
        yield daemon
    finally:
        daemon.end()


def body(key: str, **fields: Any) -> dict[str, Any]:
    return {"records": [{"data": key, "unique": {"key": key}}], **fields}


def produce(port: int, history: UniqueHistory, stop: threading.Event, seed: int) -> None:
    client, rng = Client(port), random.Random(seed)
    while not stop.is_set():
        key = rng.choice(KEYS)
        status, answer = client.call("POST", QUEUE, body(key))
        if status == 200:
            with history.lock:
                seq = answer["seqs"][0]
                if history.keys.setdefault(seq, key) != key:
                    history.errors.append(f"seq {seq} is of {history.keys[seq]}, and was named for {key}")
                history.duplicates += len(answer.get("duplicates", ()))


def work(port: int, history: UniqueHistory, stop: threading.Event) -> None:
    client = Client(port)
    while not stop.is_set():
        status, answer = client.call("POST", f"{QUEUE}/claim", {"node": "w", "max": 3, "lease_ms": 1000, "wait_ms": 50})
        if status == 200 and answer["claimed"]:
            seqs = [job["$seq"] for job in answer["claimed"]]
            with history.lock:
                history.ended.update(seqs)
            client.call("POST", f"{QUEUE}/ack", {"node": "w", "seqs": seqs})


def live_jobs(client: Client) -> dict[int, str]:
    status, answer = client.call("GET", f"{QUEUE}/diff?from_seq=0&limit=1000")
    assert status == 200, answer
    return {record["$seq"]: record["data"] for record in answer["records"]}


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_many_clients_append_the_same_keys_while_the_daemon_is_killed(daemon: Daemon, durability: str) -> None:
    history, rng = UniqueHistory(), random.Random(7)
    daemon.start()
    status, answer = Client(daemon.port).call("PUT", QUEUE, {"type": "queue", "durability": durability})
    assert status == 201, answer
    for life in range(4):
        stop = threading.Event()
        threads = [threading.Thread(target=produce, args=(daemon.port, history, stop, 10 * life + i)) for i in range(4)]
        threads.append(threading.Thread(target=work, args=(daemon.port, history, stop)))
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0.3, 1.2))
        daemon.kill()
        stop.set()
        for thread in threads:
            thread.join(50)
        daemon.start()
        client = Client(daemon.port)
        live = live_jobs(client)
        assert len(set(live.values())) == len(live), f"two unfinished jobs with one key: {live}"
        lost = history.keys.keys() - live.keys() - history.ended
        assert not lost, f"jobs that were acked are gone: {lost}"
        for seq, key in live.items():
            status, answer = client.call("POST", QUEUE, body(key, idempotency_key=f"{life}-{seq}"))
            assert (status, answer["seqs"], answer.get("duplicates")) == (200, [seq], [0]), answer
            again = client.call("POST", QUEUE, body("another", idempotency_key=f"{life}-{seq}"))[1]
            assert (again["seqs"], again["duplicates"], again["deduped"]) == ([seq], [0], True)
    assert not history.errors
    assert history.duplicates
    assert history.ended
