"""A writer that goes on beside the test, also while the daemon is away."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from tests.conformance.client import Client, body_of

GIVE_UP_S = 30.0


@contextmanager
def writing(client: Client, *topics: str, seed: int = 1) -> Iterator[None]:
    """Append to the topics in turn, from another thread, until the end of the block.

    A batch that was not acknowledged is sent again under its key, to the daemon's next life if need be: when the block
    has ended, every batch is in its topic once.
    """
    stop = threading.Event()
    failures: list[BaseException] = []

    def write() -> None:
        rng = random.Random(seed)
        try:
            number = 0
            while not stop.wait(rng.uniform(0.001, 0.02)):
                number += 1
                batch = [{"number": number, "text": "🪵" * rng.randrange(100)} for _ in range(rng.randint(1, 5))]
                append_once(client, rng.choice(topics), batch, f"writer-{seed}-{number}")
        except BaseException as failure:
            failures.append(failure)

    thread = threading.Thread(target=write, name="writer")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(GIVE_UP_S + 5)
    assert not thread.is_alive()
    assert not failures, failures


def append_once(client: Client, topic: str, batch: list[Any], key: str) -> None:
    deadline = time.monotonic() + GIVE_UP_S
    body = {"records": [{"data": data} for data in batch], "idempotency_key": key}
    while time.monotonic() < deadline:
        try:
            # The daemon's port changes with every life.
            answer = client.post(f"{client.daemon.url}/v0/topics/{topic}", json=body)
        except httpx.TransportError:
            time.sleep(0.02)
            continue
        if answer.status_code != 503:
            body_of(answer, 200)
            return
        time.sleep(0.02)
    raise AssertionError(f"not acknowledged within {GIVE_UP_S} s: {key}")


def stored(client: Client, topic: str) -> list[tuple[int, Any]]:
    """Seq and data of every record of the topic, as the daemon running now gives them."""
    found: list[tuple[int, Any]] = []
    position = 0
    while True:
        answer = body_of(client.get(f"{client.daemon.url}/v0/topics/{topic}/diff?from_seq={position}&limit=1000"))
        assert answer["tombstone"] is None
        found += [(record["$seq"], record["data"]) for record in answer["records"]]
        position = answer["next_from_seq"]
        if answer["caught_up"]:
            assert [seq for seq, _ in found] == list(range(1, position + 1))
            return found
