"""Work streams: their frames, and calls of the workers that read them."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import urlencode

from tests.conformance.client import Client, body_of, until
from tests.conformance.sse import WITHIN_S, Events, Frame, Parser, connect

HOUR_MS = 3_600_000
ALWAYS = {"topic", "$seq", "lease_id", "deadline", "$ts", "deliveries", "data"}


@dataclass(frozen=True)
class JobFrame(Frame):
    """A frame of a work stream."""

    final: ClassVar = frozenset({404, 408, 503})

    def check_kind(self) -> None:
        assert self.event == "job", self
        assert set(self.data) - {"$tag", "$node", "meta"} == ALWAYS, self.data
        assert self.id == str(self.data["$seq"])
        assert re.fullmatch(r"lease_[0-9a-f]+", self.data["lease_id"]), self.data["lease_id"]
        assert all(type(self.data[name]) is int for name in ("$seq", "deadline", "$ts", "deliveries")), self.data
        assert self.data["deliveries"] >= 1


class JobParser(Parser):
    """As strict as its base, for the frames of a work stream."""

    frame = JobFrame
    # Section 8 names the id before the event, section 9 after it.
    orders: ClassVar = [
        list(names)
        for fields in ((b"id", b"event", b"data"), (b"event", b"data"))
        for names in itertools.permutations(fields)
    ]


class Work(Events):
    """An open work stream."""

    parser_class = JobParser

    def job(self, within_s: float = WITHIN_S) -> Any:
        """The next job."""
        frame = self.next(within_s)
        assert frame.event == "job", frame
        return frame.data

    def jobs(self, count: int) -> list[Any]:
        return [self.job() for _ in range(count)]

    def job_if_any(self, within_s: float) -> Any:
        """The next job, or None if none comes in this time."""
        deadline = time.monotonic() + within_s
        while not self.parser.frames:
            if (left := deadline - time.monotonic()) <= 0:
                return None
            self.wait(left)
        return self.job()


def work_path(topic: str, node: str | None = "w", **query: Any) -> str:
    pairs = query if node is None else {"node": node, **query}
    return f"/v0/topics/{topic}/work" + (f"?{urlencode(pairs)}" if pairs else "")


def working(client: Client, topic: str, node: str = "w", *, how: Any = None, **query: Any) -> Work:
    """Open a work stream; `how` holds arguments for `connect`."""
    return Work(connect(client, work_path(topic, node, **query), **(how or {})).transport).opened()


def queue(client: Client, topic: str, *data: Any, **config: Any) -> None:
    """Create a queue and append these jobs."""
    client.put_topic(topic, type="queue", **config)
    if data:
        client.append(topic, *data)


def call(client: Client, topic: str, verb: str, node: str = "w", **fields: Any) -> Any:
    return body_of(client.post(f"/v0/topics/{topic}/{verb}", json={"node": node, **fields}))


def claim(client: Client, topic: str, node: str = "w", **fields: Any) -> list[Any]:
    claimed: list[Any] = call(client, topic, "claim", node, **fields)["claimed"]
    return claimed


def ack(client: Client, topic: str, *jobs: Any, node: str = "w", fenced: bool = True) -> Any:
    """Ack what was claimed, with its lease ids or without."""
    fields = {"lease_ids": [job["lease_id"] for job in jobs]} if fenced else {}
    return call(client, topic, "ack", node, seqs=[job["$seq"] for job in jobs], **fields)


def nack(client: Client, topic: str, *jobs: Any, node: str = "w", **fields: Any) -> Any:
    return call(client, topic, "nack", node, seqs=[job["$seq"] for job in jobs], **fields)


def counts(client: Client, topic: str) -> tuple[int, int, int]:
    """What is ready, in flight and delayed, which is all there is."""
    state = client.state(topic)
    figures = state["queue"]
    assert set(figures) == {"ready", "in_flight", "delayed", "dead_lettered", "paused"}
    assert figures["ready"] + figures["in_flight"] + figures["delayed"] == state["count"]
    return figures["ready"], figures["in_flight"], figures["delayed"]


def seqs(jobs: list[Any]) -> list[int]:
    return [job["$seq"] for job in jobs]


def come_to(client: Client, topic: str, *expected: int, within_s: float = 40) -> None:
    """Wait until this is ready, in flight and delayed."""
    until(lambda: counts(client, topic) == expected, within_s=within_s)
