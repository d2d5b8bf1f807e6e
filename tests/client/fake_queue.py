"""A queue that a worker may work for, in the memory and the clock of the test: `once` of an AsyncClient, and no more.

It does what the contract says of claim, ack, nack and extend, and fails as a test tells it to: before a call is carried
out, or after it, when the answer is lost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import anyio
import msgspec

from topics.client.calls import ClientCall
from topics.client.errors import ConnectionFailed, error_of

T = TypeVar("T")

Failure = Callable[[str], Exception | None]


@dataclass
class Lease:
    id: str
    ends: float


@dataclass
class Item:
    """One job: free from `free_at` on, unless it is leased."""

    deliveries: int = 0
    free_at: float = 0.0
    lease: Lease | None = None


@dataclass
class Said:
    """A call as it came in."""

    at: float
    name: str
    body: dict[str, Any]


@dataclass
class FakeQueue:
    """Times are seconds of `anyio.current_time()`."""

    lease_ms: int = 30_000
    items: dict[int, Item] = field(default_factory=dict)
    log: list[Said] = field(default_factory=list)
    refuse: Failure = lambda _: None
    """Asked with the name of each call before it is carried out: the failure to raise instead."""
    lose: Failure = lambda _: None
    """Asked after it was carried out: the failure to raise instead of its answer."""
    takes_s: float = 0.0
    """How long a call takes."""
    wants_results: bool = False
    longest: int = 100
    """Bytes of a result that it takes."""
    most_results: float = math.inf
    """Bytes of the results of an ack that it takes."""
    results: dict[int, Any] = field(default_factory=dict)
    """Of the jobs that were acked with one."""
    _leases: int = 0
    _changed: anyio.Event = field(default_factory=anyio.Event)

    def add(self, *seqs: int) -> None:
        self.items.update({seq: Item() for seq in seqs})
        self._changed.set()

    def calls(self, name: str) -> list[Said]:
        return [said for said in self.log if said.name == name]

    async def once(self, call: ClientCall[T]) -> T:
        name = call.target.partition("?")[0].rpartition("/")[2]
        body = json.loads(call.body or b"{}")
        self.log.append(Said(anyio.current_time(), name, body))
        await anyio.sleep(self.takes_s)
        if failure := self.refuse(name):
            raise failure
        match name:
            case "claim":
                answer = await self._claim(**body)
            case "ack":
                answer = self._ack(**body)
            case "nack":
                answer = self._nack(**body)
            case "extend":
                answer = self._extend(**body)
            case _:
                return cast("T", SimpleNamespace(config=SimpleNamespace(lease_ms=self.lease_ms)))
        if failure := self.lose(name):
            raise failure
        assert call.answer is not None
        return msgspec.json.decode(msgspec.json.encode(answer), type=call.answer)

    async def _claim(self, *, node: str, max: int, lease_ms: int, wait_ms: int) -> dict[str, Any]:
        until = anyio.current_time() + wait_ms / 1000
        while not (free := self._free()) and anyio.current_time() < until:
            await self._look_again(until)
        now = anyio.current_time()
        claimed = []
        for seq in free[:max]:
            item = self.items[seq]
            item.deliveries += 1
            self._leases += 1
            item.lease = Lease(f"lease_{self._leases:x}", now + lease_ms / 1000)
            claimed.append(
                {
                    "$seq": seq,
                    "$ts": 0,
                    "data": seq,
                    "lease_id": item.lease.id,
                    "deadline": int(item.lease.ends * 1000),
                    "deliveries": item.deliveries,
                }
            )
        answer = {"topic": "q", "claimed": claimed, "count": len(claimed), "ready": len(self._free())}
        return answer | ({"wants_results": True} if self.wants_results else {})

    def _ack(
        self, *, node: str, seqs: list[int], lease_ids: list[str], results: list[Any] | None = None
    ) -> dict[str, Any]:
        if results is not None:
            if not self.wants_results:
                raise refused(400, "invalid_request", field="results")
            if sum(len(json.dumps(result)) for result in results) > self.most_results:
                raise refused(413, "payload_too_large")
            for i, result in enumerate(results):
                if len(json.dumps(result)) > self.longest:
                    raise refused(400, "record_too_large", field=f"results[{i}]")
            self.results |= dict(zip(seqs, results, strict=True))
        done, skipped = self._held(seqs, lease_ids)
        for seq in done:
            del self.items[seq]
        return {"topic": "q", "acked": len(done), "skipped": skipped, "ready": 0, "in_flight": 0}

    def _nack(
        self,
        *,
        node: str,
        seqs: list[int],
        lease_ids: list[str],
        delay_ms: int = 0,
        error: str | None = None,
        count: bool = True,
    ) -> dict[str, Any]:
        done, skipped = self._held(seqs, lease_ids)
        for seq in done:
            self.items[seq].lease = None
            self.items[seq].free_at = anyio.current_time() + delay_ms / 1000
        self._changed.set()
        return {"topic": "q", "nacked": len(done), "skipped": skipped, "ready": 0, "in_flight": 0}

    def _extend(self, *, node: str, seqs: list[int], lease_ids: list[str], lease_ms: int) -> dict[str, Any]:
        done, skipped = self._held(seqs, lease_ids)
        ends = anyio.current_time() + lease_ms / 1000
        for seq in done:
            self.items[seq].lease = Lease(lease_ids[seqs.index(seq)], ends)
        deadlines = {seq: int(ends * 1000) for seq in done}
        return {"topic": "q", "extended": len(done), "skipped": skipped, "deadlines": deadlines}

    def _held(self, seqs: list[int], lease_ids: list[str]) -> tuple[list[int], list[int]]:
        assert len(set(seqs)) == len(seqs) == len(lease_ids)
        done = [seq for seq, lease_id in zip(seqs, lease_ids, strict=True) if self._lease(seq) == lease_id]
        return done, [seq for seq in seqs if seq not in done]

    def _lease(self, seq: int) -> str | None:
        item = self.items.get(seq)
        if item is None or item.lease is None or anyio.current_time() > item.lease.ends:
            return None
        return item.lease.id

    async def _look_again(self, until: float) -> None:
        """Wait until jobs may have become free, by a call or by time."""
        self._changed = anyio.Event()
        times = [item.lease.ends + 0.001 if item.lease else item.free_at for item in self.items.values()]
        with anyio.CancelScope(deadline=min([until, *times])):
            await self._changed.wait()

    def _free(self) -> list[int]:
        now = anyio.current_time()
        return sorted(seq for seq, item in self.items.items() if self._lease(seq) is None and item.free_at <= now)


def refused(status: int, code: str, *, retry_after: str | None = None, **detail: object) -> Exception:
    """What the client raises for such an answer."""
    body = {"error": {"code": code, "message": "as the test wants it", "detail": detail}}
    return error_of(status, retry_after, json.dumps(body).encode())


def broken(*, outcome_unknown: bool = True) -> Exception:
    return ConnectionFailed("as the test wants it", outcome_unknown=outcome_unknown)
