"""Calls that do not begin their answers in `TOPICS_REQUEST_TIMEOUT_MS`: what is told, what is done all the same, and
what is not cut."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import httpx
import pytest
import trio

from tests.engine.life import HeldOffload, Life, living, settings, settle
from tests.http.conftest import SMALL, serving
from topics.http.app import make_app
from topics.http.connections.server import open_listener, port_of, serve
from topics.http.openapi.document import document_bytes
from topics.http.routes import ROUTES
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio

TIMEOUT_MS = 200
LONG_S = 30.0
"""Many times that, on the clock of the test."""


class SlowOffload(HeldOffload):
    """A disk that can be held, and whose writes take `write_s` each."""

    write_s = 0.0

    def let_all_go(self) -> None:
        """Hold nothing any more, so that the engine can stop after a test that has failed."""
        for kind in list(self._held):
            self.let_go(kind)

    async def perform(self, kind: Pool, call: Any) -> Any:
        if kind is Pool.WAL and self.write_s:
            with trio.CancelScope(shield=True):
                await trio.sleep(self.write_s)
        return await super().perform(kind, call)


@dataclass
class Timed:
    """A real engine on a simulated disk, behind a server whose calls have a time limit."""

    life: Life
    disk: SlowOffload
    client: httpx.AsyncClient
    port: int

    async def ask(self, method: str, path: str, body: Any = None) -> httpx.Response:
        return await self.client.request(method, path, json=body)

    async def done(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.ask(method, path, body)
        assert answer.is_success, answer.text
        return answer.json()

    async def found(self, path: str, place: str) -> Any:
        """What an answer has at a place, such as `config.ttl_ms`."""
        return reduce(lambda value, name: value[name], place.split("."), (await self.ask("GET", path)).json())


@pytest.fixture(params=["lane", "hypercorn", "http2"])
async def timed(request: pytest.FixtureRequest) -> AsyncIterator[Timed]:
    disk = SlowOffload()
    config = settings(request_timeout_ms=TIMEOUT_MS, http_lane=request.param == "lane", cache_bytes=64 << 20)
    async with living(config, offload=disk) as life, trio.open_nursery() as nursery:
        gate = make_app(life.engine)
        sockets = open_listener("127.0.0.1", 0)
        await nursery.start(serve, gate, sockets, config, gate.handle if config.http_lane else None)
        is_http2 = request.param == "http2"
        url = f"http://127.0.0.1:{port_of(sockets)}"
        async with httpx.AsyncClient(base_url=url, http1=not is_http2, http2=is_http2, timeout=2 * LONG_S) as client:
            try:
                yield Timed(life, disk, client, port_of(sockets))
            finally:
                disk.let_all_go()
        nursery.cancel_scope.cancel()


def error_of(answer: httpx.Response) -> tuple[int, str, Any]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["detail"]


# ----------------------------------------------------------------- what is cut


class Change(NamedTuple):
    """A call, and how it is seen that it was carried out."""

    method: str
    path: str
    body: Any
    look: str
    place: str
    value: Any


T, Q, C = "/v0/topics/t", "/v0/topics/q", "/v0/topics/t/consumers/c"
S = "/v0/schedules/s"
G = f"{T}/groups/g"
RECORDS = [{"data": 9}]
CHANGES = {
    "append": Change("POST", T, {"records": RECORDS, "idempotency_key": "k"}, T, "head_seq", 4),
    "transaction": Change(
        "POST", "/v0/transactions", {"appends": [{"topic": name, "records": RECORDS} for name in "tu"],
        "idempotency_key": "k"}, "/v0/topics/u", "head_seq", 1,
    ),
    "put_topic": Change("PUT", "/v0/topics/new", {"durability": "fsync"}, "/v0/topics/new", "head_seq", 0),
    "put_topic again": Change("PUT", T, {"cap_records": 77}, T, "config.cap_records", 77),
    "delete_topic": Change("DELETE", "/v0/topics/u", None, "/v0/topics/u", "error.code", "topic_not_found"),
    "delete_records": Change("POST", f"{T}/delete", {"before_seq": 3}, T, "count", 1),
    "put_router": Change("PUT", "/v0/routers/r", {"source": "t", "dest": "u"}, "/v0/routers/r", "dest", "u"),
    "delete_router": Change("DELETE", "/v0/routers/old", None, "/v0/routers/old", "error.code", "router_not_found"),
    "stage": Change("POST", f"{T}?stage=s", {"records": RECORDS, "idempotency_key": "k"}, T, "head_seq", 3),
    "commit": Change("POST", f"{T}/commit", {"stages": ["old"], "idempotency_key": "k"}, T, "head_seq", 4),
    "delete_stage": Change("DELETE", f"{T}/stages/old", None, T, "head_seq", 3),
    "delete_fence": Change("DELETE", f"{T}/fences/f", None, "/v0/topics/t", "count", 3),
    "claim": Change("POST", f"{Q}/claim", {"node": "m", "wait_ms": 100}, Q, "queue.in_flight", 1),
    "ack": Change("POST", f"{Q}/ack", {"node": "n", "seqs": [1]}, Q, "count", 1),
    "nack": Change("POST", f"{Q}/nack", {"node": "n", "seqs": [1]}, Q, "queue.in_flight", 0),
    "extend": Change("POST", f"{Q}/extend", {"node": "n", "seqs": [1], "lease_ms": 9}, Q, "queue.in_flight", 0),
    "pause": Change("POST", f"{Q}/pause", {}, Q, "queue.paused", True),
    "resume": Change("POST", f"{Q}/resume", None, Q, "queue.paused", False),
    "put_group": Change("PUT", f"{G}2", {"from": "earliest"}, f"{G}2", "floor", 0),
    "delete_group": Change("DELETE", G, None, G, "error.code", "group_not_found"),
    "group_claim": Change("POST", f"{G}/claim", {"node": "m", "wait_ms": 100}, G, "queue.in_flight", 1),
    "group_ack": Change("POST", f"{G}/ack", {"node": "n", "seqs": [1]}, G, "floor", 1),
    "group_nack": Change("POST", f"{G}/nack", {"node": "n", "seqs": [1]}, G, "queue.in_flight", 0),
    "group_extend": Change("POST", f"{G}/extend", {"node": "n", "seqs": [1], "lease_ms": 9}, G, "queue.in_flight", 0),
    "group_pause": Change("POST", f"{G}/pause", {}, G, "queue.paused", True),
    "group_resume": Change("POST", f"{G}/resume", None, G, "queue.paused", False),
    "retry_jobs": Change("POST", f"{Q}/jobs/retry", {"seqs": [1]}, Q, "queue.delayed", 0),
    "cancel_jobs": Change("POST", f"{Q}/jobs/cancel", {"seqs": [1]}, Q, "queue.in_flight", 0),
    "retry_group_jobs": Change("POST", f"{G}/jobs/retry", {"seqs": [1]}, G, "queue.delayed", 0),
    "cancel_group_jobs": Change("POST", f"{G}/jobs/cancel", {"seqs": [1]}, G, "floor", 1),
    "put_consumer": Change("PUT", f"{C}2", {"from": "earliest"}, f"{C}2", "committed_seq", 0),
    "commit_consumer": Change("POST", f"{C}/commit", {"seq": 2}, C, "committed_seq", 2),
    "seek_consumer": Change("POST", f"{C}/seek", {"seq": 3}, C, "committed_seq", 3),
    "acquire_consumer": Change("POST", f"{C}/acquire", {"owner": "o", "lease_ms": 9000}, C, "owner", "o"),
    "release_consumer": Change("POST", f"{C}/release", {"generation": 1}, C, "owner", None),
    "delete_consumer": Change("DELETE", C, None, C, "error.code", "consumer_not_found"),
    "put_schedule": Change("PUT", f"{S}2", {"topic": "t", "record": {"data": 1}, "every_ms": 9000}, f"{S}2", "every_ms",
        9000,
    ),
    "pause_schedule": Change("POST", f"{S}/pause", None, S, "paused", True),
    "resume_schedule": Change("POST", f"{S}/resume", None, S, "paused", False),
    "run_schedule": Change("POST", f"{S}/run", None, T, "head_seq", 4),
    "delete_schedule": Change("DELETE", S, None, S, "error.code", "schedule_not_found"),
    "diff_post": Change("POST", f"{T}/diff", {"consumer": "c", "commit_seq": 1}, C, "committed_seq", 1),
}  # fmt: skip


async def prepare(timed: Timed, what: str) -> None:
    """A log with three records, a fence, a stage, a consumer, and a group with a leased record; a schedule; a queue
    with two jobs, one of them leased."""
    await timed.done("PUT", T, {"durability": "fsync"})
    await timed.done("PUT", "/v0/topics/u", {"durability": "fsync"})
    await timed.done("PUT", Q, {"type": "queue", "durability": "fsync", "leases_durable": True})
    await timed.done("POST", T, {"records": RECORDS * 3, "fence": {"name": "f", "token": 1}})
    await timed.done("POST", Q, {"records": RECORDS * 2})
    await timed.done("POST", f"{Q}/claim", {"node": "n", "max": 1, "lease_ms": 600_000})
    await timed.done("POST", f"{T}?stage=old", {"records": RECORDS})
    await timed.done("PUT", "/v0/routers/old", {"source": "u", "dest": "v"})
    await timed.done("PUT", C, {"from": "earliest"})
    paused = what == "resume_schedule"
    await timed.done("PUT", S, {"topic": "t", "record": {"data": 1}, "every_ms": 9_000_000, "paused": paused})
    await timed.done("PUT", G, {"from": "earliest", "leases_durable": True})
    await timed.done("POST", f"{G}/claim", {"node": "n", "max": 1, "lease_ms": 600_000})
    if what in ("resume", "group_resume"):
        await timed.done("POST", f"{Q if what == 'resume' else G}/pause", {})
    if what in ("retry_jobs", "retry_group_jobs"):
        await timed.done(
            "POST", f"{Q if what == 'retry_jobs' else G}/nack", {"node": "n", "seqs": [1], "delay_ms": 600_000}
        )
    if what == "release_consumer":
        await timed.done("POST", f"{C}/acquire", {"owner": "o", "lease_ms": 600_000})


@pytest.mark.parametrize("what", CHANGES)
async def test_a_change_that_is_cut_is_open_and_is_carried_out_when_the_disk_goes_on(
    timed: Timed, what: str, autojump_clock: Any
) -> None:
    method, path, body, look, place, value = CHANGES[what]
    await prepare(timed, what)
    timed.disk.hold()
    answer = await timed.ask(method, path, body)
    assert error_of(answer) == (503, "read_only", {"request_timeout_ms": TIMEOUT_MS})
    assert "may still be carried out" in answer.json()["error"]["message"]
    assert int(answer.headers["retry-after"]) > 0
    timed.disk.let_go()
    await settle()
    await trio.sleep(1)
    assert await timed.found(look, place) == value, "carried out; of the claim, that no job is leased but the first"
    timed.life.check()
    if what.removeprefix("group_") not in ("nack", "extend"):  # of a job that the node does not hold any more
        await timed.done(method, path, body)  # the connection goes on, and a repeat is answered


async def test_every_call_that_changes_something_is_tried() -> None:
    exempt = {
        "checkpoint": "is not cut",
        "seal": "is a checkpoint",
        "work": "is a stream",
        "group_work": "is a stream",
        "redrive": "begins a task, and does not wait for it",
        "stop_redrive": "waits for what that task has begun",
    }
    tried = {what.partition(" ")[0] for what in CHANGES}
    assert {route.name for route in ROUTES if route.changes} - set(exempt) == tried - {"stage", "diff_post"}


async def test_the_description_has_the_code_of_every_call_that_is_cut() -> None:
    paths = json.loads(document_bytes())["paths"]
    for route in ROUTES:
        if route.name == "ws" or route.always_open:
            continue
        told = json.dumps(paths[route.template][route.method.lower()]["responses"]["503"])
        code = "read_only" if route.changes else "not_ready"
        assert code in told, route.label


READS = [
    ("GET", "/v0/topics/t/diff", None),
    ("POST", "/v0/topics/t/diff", {"from_seq": 0}),
    ("GET", "/v0/topics/t/records/1", None),
    ("GET", "/v0/topics/t/records", None),
]


@pytest.mark.parametrize("http2", [False, True])
@pytest.mark.parametrize("lane", [True, False])
async def test_a_read_that_is_cut_may_be_repeated_by_anybody(lane: bool, http2: bool, autojump_clock: Any) -> None:
    config = replace(SMALL, http_lane=lane, request_timeout_ms=TIMEOUT_MS)
    async with serving(config) as served, served.client(http2=http2) as client:
        await client.put("/v0/topics/t")
        served.engine.before = trio.sleep_forever
        for method, path, body in READS:
            answer = await client.request(method, path, json=body)
            assert error_of(answer) == (503, "not_ready", {"request_timeout_ms": TIMEOUT_MS}), path
        assert (await client.get("/v0/ready")).status_code == 200
        served.engine.before = None
        assert (await client.get("/v0/topics/t/diff")).status_code == 200


async def test_a_poll_that_hangs_is_cut_after_its_wait(autojump_clock: Any) -> None:
    async with serving(replace(SMALL, request_timeout_ms=TIMEOUT_MS)) as served, served.client() as client:
        await client.put("/v0/topics/t")
        served.engine.before = trio.sleep_forever
        began = trio.current_time()
        answer = await client.post("/v0/topics/t/diff", json={"wait_ms": 5000})
        assert error_of(answer)[:2] == (503, "not_ready")
        assert trio.current_time() - began >= 5.0


# ----------------------------------------------------------------- what is not cut


@pytest.mark.parametrize("body", [{"wait_ms": 5000}, {"wait_ms": 5000, "consumer": "c", "ack": "before"}])
async def test_a_long_poll_waits_as_long_as_it_asks(timed: Timed, body: Any, autojump_clock: Any) -> None:
    await timed.done("PUT", T)
    await timed.done("PUT", C, {"from": "tail"})
    began = trio.current_time()
    assert (await timed.done("POST", f"{T}/diff", body))["records"] == []
    assert trio.current_time() - began >= 5.0


@pytest.mark.parametrize(("jobs", "config", "body"), [(0, {}, {"wait_ms": 5000}), (1, {"claim_jitter_ms": 5000}, {})])
async def test_a_claim_waits_as_long_as_it_or_its_queue_asks(
    timed: Timed, jobs: int, config: Any, body: Any, autojump_clock: Any
) -> None:
    await timed.done("PUT", Q, {"type": "queue"} | config)
    for _ in range(jobs):
        await timed.done("POST", Q, {"records": RECORDS})
    began = trio.current_time()
    assert (await timed.done("POST", f"{Q}/claim", {"node": "n"} | body))["count"] == jobs
    assert trio.current_time() - began >= 5.0


async def test_the_time_of_a_body_does_not_count(timed: Timed, autojump_clock: Any) -> None:
    body = json.dumps({"records": RECORDS})
    head = f"POST {T} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    async with await trio.open_tcp_stream("127.0.0.1", timed.port) as stream:
        await stream.send_all(f"{head}\r\n\r\n{body[:9]}".encode())
        await trio.sleep(5)
        await stream.send_all(body[9:].encode())
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 201 ")


async def test_an_upload_is_not_cut_while_its_batches_get_on(timed: Timed, autojump_clock: Any) -> None:
    lines = b'{"data": 1}\n' * 5000
    headers = {"content-type": "application/x-ndjson"}
    await timed.done("PUT", T, {"durability": "fsync"})
    timed.disk.write_s = TIMEOUT_MS / 1000 / 4
    began = trio.current_time()
    answer = await timed.client.post(T, content=lines, headers=headers)
    assert (answer.status_code, answer.json()["count"]) == (200, 5000)
    assert trio.current_time() - began > TIMEOUT_MS / 1000, "five batches, each of which has that time"

    timed.disk.write_s = 0.0
    timed.disk.hold()
    answer = await timed.client.post(T, content=lines, headers=headers)
    status, code, detail = error_of(answer)
    assert (status, code, detail["request_timeout_ms"]) == (503, "read_only", TIMEOUT_MS)
    assert (detail["line"], detail["committed"], detail["last_seq"]) == (1, 0, 0)
    timed.disk.let_go()
    await settle()
    await trio.sleep(1)
    assert await timed.found(T, "head_seq") == 6000, "the batch that was cut has its seqs, and is stored"


async def test_an_export_is_not_cut_once_it_has_begun(timed: Timed, autojump_clock: Any) -> None:
    await timed.done("PUT", T)
    for _ in range(20):
        await timed.done("POST", T, {"records": [{"data": "x" * 250_000}] * 4})
    count = 0
    async with timed.client.stream("GET", f"{T}/records") as answer:
        await trio.sleep(5)  # the buffers are full, and the export waits for its reader
        async for line in answer.aiter_lines():
            count += '"data"' in line
            last = line
    assert count == 80
    assert "$end" in last


async def test_a_stream_is_not_cut(timed: Timed, autojump_clock: Any) -> None:
    await timed.done("PUT", T)
    async with timed.client.stream("GET", f"{T}/stream?tail=true") as answer:
        lines = answer.aiter_lines()
        await trio.sleep(5)
        await timed.done("POST", T, {"records": RECORDS})
        async for line in lines:
            if line.startswith("data:") and '"records"' in line:
                break
        else:
            raise AssertionError("the stream has ended")


@pytest.mark.parametrize("path", ["/v0/admin/checkpoint?hold_ms=1000", f"{T}/seal"])
async def test_a_checkpoint_is_not_cut(timed: Timed, path: str, autojump_clock: Any) -> None:
    await timed.done("PUT", T, {"durability": "fsync"})
    await timed.done("POST", T, {"records": RECORDS})
    answers: list[httpx.Response] = []

    async def checkpoint() -> None:
        answers.append(await timed.ask("POST", path))

    async with trio.open_nursery() as nursery:
        timed.disk.hold(Pool.FILES)
        nursery.start_soon(checkpoint)
        await trio.sleep(5)
        assert not answers
        timed.disk.let_go(Pool.FILES)
    assert answers[0].status_code == 200


async def test_without_the_setting_nothing_is_cut(autojump_clock: Any) -> None:
    async def slowly() -> None:
        await trio.sleep(LONG_S)

    async with serving(SMALL) as served, served.client() as client:
        await client.put("/v0/topics/t")
        served.engine.before = slowly
        assert (await client.post("/v0/topics/t", json={"records": RECORDS})).status_code == 200
