"""A queue as its workers see it: the calls of section 9, and claims that are under way."""

from __future__ import annotations

import json
import re
import select
import time
from dataclasses import dataclass
from typing import Any

import httpx

from tests.conformance.client import JSON_TYPE, Client, RawConnection, body_of, fresh_name

LONG_MS = 60_000
"""A lease that no test outlives."""

SHORT_MS = 100
"""The shortest lease there is."""

ANSWERS = {
    "claim": {"topic", "claimed", "count", "ready", "performance"},
    "ack": {"topic", "acked", "skipped", "ready", "in_flight", "performance"},
    "nack": {"topic", "nacked", "skipped", "ready", "in_flight", "performance"},
    "extend": {"topic", "extended", "skipped", "deadlines", "performance"},
}
JOB = {"$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}
OPTIONAL = {"$tag", "$node", "meta", "last_error"}
TIMES = {"server_total_ms", "wal_append_ms", "fsync_ms", "throttle_wait_ms", "records_scanned", "cold_segments_read"}


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Counts:
    """The queue block of a state."""

    ready: int = 0
    in_flight: int = 0
    delayed: int = 0
    dead_lettered: int = 0
    paused: bool = False


@dataclass(frozen=True)
class Queue:
    """A topic of type queue; each call returns the body of its success, after what holds for all was checked."""

    client: Client
    topic: str

    def seen_by(self, client: Client) -> Queue:
        """The same queue, over another connection."""
        return Queue(client, self.topic)

    def send(self, call: str, **fields: Any) -> httpx.Response:
        return self.client.post(f"/v0/topics/{self.topic}/{call}", json=fields)

    def call(self, name: str, **fields: Any) -> Any:
        return check_answer(self.topic, name, body_of(self.send(name, **fields)))

    def append(self, *data: Any, **fields: Any) -> list[int]:
        seqs: list[int] = self.client.append(self.topic, *data, **fields)["seqs"]
        return seqs

    def claim(self, node: str = "worker", most: int = 1, **fields: Any) -> list[Any]:
        """The jobs that a claim was given, leased for long unless the claim says otherwise."""
        jobs: list[Any] = self.call("claim", node=node, max=most, **{"lease_ms": LONG_MS, **fields})["claimed"]
        return jobs

    def claim_one(self, node: str = "worker", **fields: Any) -> Any:
        (job,) = self.claim(node, **fields)
        return job

    def ack(self, *seqs: int, node: str = "worker", **fields: Any) -> Any:
        return self.call("ack", node=node, seqs=list(seqs), **fields)

    def nack(self, *seqs: int, node: str = "worker", **fields: Any) -> Any:
        return self.call("nack", node=node, seqs=list(seqs), **fields)

    def extend(self, *seqs: int, node: str = "worker", lease_ms: int = LONG_MS, **fields: Any) -> Any:
        return self.call("extend", node=node, seqs=list(seqs), lease_ms=lease_ms, **fields)

    def counts(self) -> Counts:
        """The counters of the queue, which at every moment add up to the count of its records."""
        state = self.client.state(self.topic, touch="false")
        assert set(state["queue"]) == {"ready", "in_flight", "delayed", "dead_lettered", "paused"}
        counts = Counts(**state["queue"])
        assert counts.ready + counts.in_flight + counts.delayed == state["count"], state
        return counts

    def has_left(self, *seqs: int) -> None:
        """Exactly these jobs are still there, leased or not, and nothing is told of those that are gone."""
        answer = self.client.read(self.topic, limit=1000)
        assert [record["$seq"] for record in answer["records"]] == list(seqs)
        assert (answer["caught_up"], answer["tombstone"]) == (True, None)
        state = self.client.state(self.topic)
        head = state["head_seq"]
        assert (state["count"], state["earliest_seq"]) == (len(seqs), min(seqs, default=head + 1))


def new_queue(client: Client, *data: Any, **config: Any) -> Queue:
    """A new queue of this config with a job for each of the data."""
    queue = Queue(client, fresh_name("queue"))
    client.put_topic(queue.topic, type="queue", **config)
    if data:
        queue.append(*data)
    return queue


def check_answer(topic: str, call: str, answer: Any) -> Any:
    """What holds for every success of a call: its fields, their types and how they go together."""
    assert set(answer) == ANSWERS[call]
    assert answer["topic"] == topic
    assert "server_total_ms" in answer["performance"]
    assert set(answer["performance"]) <= TIMES
    for counter in {"count", "ready", "in_flight", "acked", "nacked", "extended"} & set(answer):
        assert type(answer[counter]) is int
        assert answer[counter] >= 0
    if call == "claim":
        check_jobs(answer["claimed"])
        assert answer["count"] == len(answer["claimed"])
    else:
        assert len(set(answer["skipped"])) == len(answer["skipped"])
    if call == "extend":
        assert len(answer["deadlines"]) == answer["extended"]
        assert not {str(seq) for seq in answer["skipped"]} & set(answer["deadlines"])
    return answer


def check_jobs(jobs: Any) -> None:
    assert seqs_of(jobs) == sorted(set(seqs_of(jobs)))
    assert len({job["lease_id"] for job in jobs}) == len(jobs)
    for job in jobs:
        assert set(job) >= JOB
        assert set(job) <= JOB | OPTIONAL
        assert None not in [job.get(name, "") for name in OPTIONAL]
        assert re.fullmatch(r"lease_[0-9a-fA-F]+", job["lease_id"])
        assert type(job["deadline"]) is int
        assert type(job["deliveries"]) is int
        assert job["deliveries"] >= 1


def seqs_of(jobs: Any) -> list[int]:
    return [job["$seq"] for job in jobs]


def data_of(jobs: Any) -> list[Any]:
    return [job["data"] for job in jobs]


def deliveries_of(jobs: Any) -> dict[int, int]:
    return {job["$seq"]: job["deliveries"] for job in jobs}


def check_deadline(deadline: int, lease_ms: int, began: int, ended: int) -> None:
    """It is a lease after some moment between these two."""
    assert began + lease_ms - 10 <= deadline <= ended + lease_ms + 10, (deadline - lease_ms, began, ended)


class Claim:
    """A claim on a connection of its own, which is open when this returns and is sent by `send`."""

    def __init__(self, queue: Queue, node: str = "worker", most: int = 1, **fields: Any) -> None:
        self.topic = queue.topic
        self.connection = RawConnection(queue.client)
        self._body = json.dumps({"node": node, "max": most, "lease_ms": LONG_MS, **fields}).encode()

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self) -> Claim:
        length = str(len(self._body))
        self.connection.send_head(
            "POST", f"/v0/topics/{self.topic}/claim", content_type=JSON_TYPE, content_length=length
        )
        self.connection.send(self._body)
        return self

    def wait(self, seconds: float = 0.15) -> Claim:
        """Give it the time to arrive, and see that it goes on waiting."""
        time.sleep(seconds)  # no figure of the daemon counts the claims that wait
        assert self.is_waiting, self.connection.receive()
        return self

    @property
    def is_waiting(self) -> bool:
        return not select.select([self.connection.socket], [], [], 0)[0]

    def close(self) -> None:
        """Hang up, whether or not there was an answer."""
        self.connection.socket.close()

    def jobs(self, within_s: float = 30) -> list[Any]:
        """What it was given."""
        self.connection.socket.settimeout(within_s)
        status, _, body = self.connection.receive()
        assert status == 200, (status, body[:2000])
        jobs: list[Any] = check_answer(self.topic, "claim", json.loads(body))["claimed"]
        self.close()
        return jobs

    def refused(self, status: int, *codes: str, within_s: float = 30) -> Any:
        self.connection.socket.settimeout(within_s)
        error = self.connection.receive_error(status, *codes)
        self.close()
        return error


def waiting(queue: Queue, node: str = "worker", most: int = 1, *, wait_ms: int = 30_000, **fields: Any) -> Claim:
    """A claim that has found nothing and waits."""
    return Claim(queue, node, most, wait_ms=wait_ms, **fields).send().wait()
