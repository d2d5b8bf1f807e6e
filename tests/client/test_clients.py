"""`Client` and `AsyncClient`: every call against a real daemon, every failure by its type, and what is sent twice.

One tour goes through all calls for the blocking client and for the other on asyncio and trio. What is repeated is asked
of a server that answers from a script, so that it is known what was sent.
"""

from __future__ import annotations

import inspect
import json
import logging
import random
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from typing import Any

import anyio
import msgspec
import pytest

import topics.client
from tests.client.ports import free_port
from tests.conformance.client import Daemon, fresh_name
from topics.client import (
    ApiError,
    AsyncClient,
    BadRequest,
    Client,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NewRecord,
    NotFound,
    ProtocolError,
    Record,
    Retry,
    ServerError,
    Throttled,
    Tombstone,
    TooLarge,
    TopicFull,
    TopicsError,
    Unauthorized,
    Unavailable,
    results,
)
from topics.client.retry import LASTING_LIMITS, Attempts
from topics.config import SETTINGS

TOKEN = "s3cr3t-0123456789"


class Awaited:
    """The blocking client with methods that can be awaited, so that one story does for both."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if inspect.isgeneratorfunction(method):
            return method

        async def called(*args: Any, **kwargs: Any) -> Any:
            return method(*args, **kwargs)

        return called


async def collected(values: Any) -> list[Any]:
    """Everything that an iterator of either kind has."""
    if isinstance(values, AsyncIterator):
        return [value async for value in values]
    return list(values)


@pytest.fixture(params=["blocking", "asyncio", "trio"])
def tell(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """`tell(story, url, ...)` runs `await story(client)` with a client of each kind, and returns what it returns."""

    def told(story: Callable[[Any], Awaitable[Any]], url: str, **options: Any) -> Any:
        async def blocking() -> Any:
            with Client(url, **options) as client:
                return await story(Awaited(client))

        async def concurrent() -> Any:
            async with AsyncClient(url, **options) as client:
                return await story(client)

        if request.param == "blocking":
            return anyio.run(blocking)
        return anyio.run(concurrent, backend=request.param)

    return told


# ----------------------------------------------------------------- every call


async def all_calls(client: Any) -> None:
    """Every method once, and what it returns."""
    log, queue, other, router = fresh_name("log"), fresh_name("queue"), fresh_name("other"), fresh_name("router")

    health = await client.health()
    assert isinstance(health, results.Health)
    assert health.status == "ok"
    ready = await client.ready()
    assert isinstance(ready, results.Ready)
    assert ready.status == "ready"

    made = await client.create(log, durability="fsync", cap_records=100)
    assert isinstance(made, results.TopicChanged)
    assert (made.topic, made.created, made.config.durability, made.config.cap_records) == (log, True, "fsync", 100)
    assert not (await client.create(log)).created
    changed = await client.update(log, cap_records=3)
    assert (changed.created, changed.config.cap_records, changed.config.durability) == (False, 3, "fsync")
    with pytest.raises(NotFound):
        await client.update(fresh_name("none"), cap_records=3)

    await all_appends(client, log, other)
    await all_reads(client, log)

    listed = await client.list(prefix=log, page_size=1)
    assert isinstance(listed, results.TopicPage)
    assert [(summary.topic, summary.head_seq, summary.durable) for summary in listed.topics] == [(log, 4, True)]
    assert log in [summary.topic for summary in await collected(client.list_all(prefix="log"))]

    await all_router_calls(client, log, other, router)
    await all_queue_calls(client, queue)

    gone = await client.delete_records(log, match=["tag", "Eq", "t"])
    assert isinstance(gone, results.RecordsDeletion)
    assert (gone.deleted, gone.count) == (1, 2)
    assert (await client.delete_records(log, before_seq=4)).deleted == 1

    with pytest.raises(Conflict) as refused:
        await client.delete_topic(log, if_empty=True)
    assert refused.value.code == "topic_not_empty"
    deletion = await client.delete_topic(log)
    assert isinstance(deletion, results.TopicDeletion)
    assert (deletion.deleted, deletion.routers_removed) == (True, [])
    assert not (await client.delete_topic(log)).deleted

    metrics = await client.metrics()
    assert metrics["topics_ready"] == 1
    assert {"labels": {"class": "disk"}, "value": 0} not in metrics["topics_topics_by_class"]
    assert "topics_ready 1" in await client.metrics_text()
    assert (await client.openapi())["openapi"].startswith("3.")
    checkpoint = await client.checkpoint(hold_ms=1)
    assert isinstance(checkpoint, results.Checkpoint)
    assert checkpoint.files


async def all_appends(client: Any, log: str, other: str) -> None:
    """Records 1 to 4, into a topic that keeps three."""
    done = await client.append(
        log, [1, NewRecord({"a": [None]}, "t", "n", {"k": "v"}), NewRecord(msgspec.Raw(b"1.50"))]
    )
    assert isinstance(done, results.Appended)
    assert (done.topic, done.first_seq, done.last_seq, done.seqs, done.head_seq) == (log, 1, 3, [1, 2, 3], 3)
    assert (done.count, done.created, done.deduped) == (3, False, False)
    keyed = [await client.append(log, ["once"], idempotency_key="k", return_seqs=False) for _ in range(2)]
    assert [(answer.first_seq, answer.seqs, answer.deduped) for answer in keyed] == [(4, [], False), (4, [], True)]
    with pytest.raises(NotFound):
        await client.append(fresh_name("none"), [1], create=False)
    made_by_append = await client.append(other, [1], config={"type": "log", "ttl_ms": 10**9}, node="n")
    assert made_by_append.created


async def all_reads(client: Any, log: str) -> None:
    """What `all_appends` has left."""
    page = await client.diff(log, 0)
    assert isinstance(page, results.Page)
    assert isinstance(page.tombstone, Tombstone)
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 1, "cap")
    assert [(record.seq, record.tag, record.node, record.meta) for record in page.records] == [
        (2, "t", "n", {"k": "v"}),
        (3, None, None, {}),
        (4, None, None, {}),
    ]
    assert [record.data for record in page.records] == [{"a": [None]}, 1.5, "once"]
    assert bytes(page.records[1].raw) == b"1.50"
    assert page.caught_up
    assert (page.next_from_seq, page.head_seq, page.earliest_seq, page.lag) == (4, 4, 2, 0)
    left_out = await client.diff(log, 1, node="n", include_tags=False, include_meta=False, limit=1)
    assert [(record.seq, record.tag) for record in left_out.records] == [(3, None)]
    assert (await client.diff(log, 4, wait_ms=1)).records == []

    read = await collected(client.read(log))
    assert [type(item) for item in read] == [Tombstone, Record, Record, Record]
    assert {item.topic for item in read} == {log}
    assert [item.seq for item in await collected(client.read(log, 1, to_seq=3, limit=1))] == [2, 3]
    assert [item.seq for item in await collected(client.read(log, 1, node=iter(["n"]), limit=1))] == [3, 4]

    state = await client.state(log, touch=False)
    assert isinstance(state, results.TopicState)
    assert (state.type, state.head_seq, state.next_seq, state.count, state.queue) == ("log", 4, 5, 3, None)
    assert state.epoch == page.epoch
    assert state.synced_seq == 4


async def all_router_calls(client: Any, source: str, dest: str, router: str) -> None:
    made = await client.create_router(router, source, dest, filter=["tag", "Eq", "t"], from_="earliest")
    assert isinstance(made, results.RouterChanged)
    assert (made.router, made.source, made.dest, made.created, made.from_) == (router, source, dest, True, "earliest")
    changed = await client.update_router(router, source, dest, preserve_tag=False)
    assert (changed.created, changed.preserve_tag, changed.filter) == (False, False, ["tag", "Eq", "t"])
    with pytest.raises(NotFound):
        await client.update_router(fresh_name("none"), source, dest)
    await client.state(dest)  # forwards what is due
    state = await client.router(router)
    assert isinstance(state, results.RouterState)
    assert (state.forwarded_total, state.cursor_seq, state.lag) == (1, 4, 0)
    page = await client.routers(source=source, dest=dest, prefix="router", page_size=1)
    assert isinstance(page, results.RouterPage)
    assert page.routers == [state]
    assert await collected(client.all_routers(prefix=router)) == [state]
    deletion = await client.delete_router(router)
    assert isinstance(deletion, results.RouterDeletion)
    assert deletion.deleted
    assert not (await client.delete_router(router)).deleted


async def all_queue_calls(client: Any, queue: str) -> None:
    await client.create(queue, type="queue", lease_ms=60_000)
    await client.append(queue, ["a", "b", "c"])
    claimed = await client.claim(queue, "w", max=3, lease_ms=60_000, wait_ms=10)
    assert isinstance(claimed, results.Claimed)
    assert (claimed.topic, claimed.count, claimed.ready) == (queue, 3, 0)
    jobs = claimed.claimed
    assert all(isinstance(job, results.Job) for job in jobs)
    assert [(job.seq, job.data, job.deliveries) for job in jobs] == [(1, "a", 1), (2, "b", 1), (3, "c", 1)]
    extended = await client.extend(queue, "w", [1, 9], lease_ms=90_000, lease_ids=[jobs[0].lease_id, "lease_0"])
    assert isinstance(extended, results.Extended)
    assert (extended.extended, extended.skipped) == (1, [9])
    assert extended.deadlines[1] > jobs[0].deadline
    acked = await client.ack(queue, "w", [1], lease_ids=[jobs[0].lease_id])
    assert isinstance(acked, results.Acked)
    assert (acked.acked, acked.skipped, acked.ready, acked.in_flight) == (1, [], 0, 2)
    nacked = await client.nack(queue, "w", [2], delay_ms=60_000)
    assert isinstance(nacked, results.Nacked)
    assert (nacked.nacked, nacked.skipped, nacked.in_flight) == (1, [], 1)
    assert (await client.ack(queue, "somebody", [3])).skipped == [3]
    state = await client.state(queue)
    assert state.queue == results.QueueCounts(ready=0, in_flight=1, delayed=1, dead_lettered=0)


@pytest.mark.slow
def test_every_call_returns_what_it_says(shared_daemon: Daemon, tell: Callable[..., Any]) -> None:
    tell(all_calls, shared_daemon.url)


@pytest.mark.slow
def test_many_pages_are_one_list(shared_daemon: Daemon, tell: Callable[..., Any]) -> None:
    stem = fresh_name("many") + "."

    async def story(client: Any) -> None:
        names = sorted(f"{stem}{n}" for n in range(5))
        for name in names:
            await client.create(name)
        first = await client.list(prefix=stem, page_size=2)
        assert [topic.topic for topic in first.topics] == names[:2]
        second = await client.list(prefix=stem, page_size=2, cursor=first.next_cursor)
        assert [topic.topic for topic in second.topics] == names[2:4]
        last = await client.list(prefix=stem, page_size=2, cursor=second.next_cursor)
        assert ([topic.topic for topic in last.topics], last.next_cursor) == (names[4:], None)
        await client.append(names[0], list(range(2500)))
        assert [record.data for record in await collected(client.read(names[0], limit=600))] == list(range(2500))

    tell(story, shared_daemon.url)


@pytest.mark.slow
def test_answers_can_be_compressed(shared_daemon: Daemon, tell: Callable[..., Any]) -> None:
    topic = fresh_name()

    async def story(client: Any) -> None:
        await client.append(topic, ["x" * 100_000])
        assert (await client.diff(topic)).records[0].data == "x" * 100_000

    tell(story, shared_daemon.url, gzip=True)


@pytest.mark.slow
def test_many_threads_share_a_client(shared_daemon: Daemon) -> None:
    topic = fresh_name()
    with Client(shared_daemon.url) as client:
        threads = [
            threading.Thread(target=lambda: [client.append(topic, [n]) for n in range(20)], daemon=True)
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert client.state(topic).count == 160


def test_both_clients_have_the_same_methods() -> None:
    def methods(kind: type) -> dict[str, list[inspect.Parameter]]:
        return {
            name: list(inspect.signature(member).parameters.values())
            for name, member in inspect.getmembers(kind, inspect.isfunction)
            if not name.startswith("_")
        }

    blocking, concurrent = methods(Client), methods(AsyncClient)
    own = {"close", "asynchronous"}, {"aclose"}
    assert blocking.keys() - own[0] == concurrent.keys() - own[1]
    for name in blocking.keys() & concurrent.keys() - {"opened"}:
        said = [(one.name, one.kind, one.default) for one in blocking[name]]
        assert said == [(one.name, one.kind, one.default) for one in concurrent[name]], name
    for name in blocking:
        assert getattr(Client, name).__doc__, name


def test_both_clients_make_their_calls_out_of_the_same_functions() -> None:
    """What is written for each client by itself is I/O only; all else is made of one function, which both show."""

    def made_of(kind: type) -> dict[str, object]:
        members = inspect.getmembers(kind, inspect.isfunction)
        return {name: getattr(member, "__wrapped__", None) for name, member in members if not name.startswith("_")}

    blocking, concurrent = made_of(Client), made_of(AsyncClient)
    shells = {"close", "aclose", "asynchronous", "run", "once", "opened"}
    assert {name for name, function in {**blocking, **concurrent}.items() if function is None} == shells - {"opened"}
    for name in blocking.keys() - shells - {"ingest"}:  # of which one takes asynchronous iterables too
        assert blocking[name] is concurrent[name], name


def test_everything_public_is_documented() -> None:
    def undocumented(kind: type) -> Iterator[str]:
        if not vars(kind).get("__doc__"):
            yield kind.__name__
        for name, member in vars(kind).items():
            function = member.fget if isinstance(member, property) else member
            if not name.startswith("_") and inspect.isfunction(function) and not function.__doc__:
                yield f"{kind.__name__}.{name}"

    public = [getattr(topics.client, name) for name in topics.client.__all__]
    structs = [
        value for value in vars(results).values() if isinstance(value, type) and value.__module__ == results.__name__
    ]
    assert len(structs) > 30
    kinds = {kind for one in (*public, *structs) for kind in one.__mro__ if kind.__module__.startswith("topics.client")}
    assert [name for kind in kinds for name in undocumented(kind)] == []


# ----------------------------------------------------------------- errors by their types


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon with keys and small limits."""
    daemon = Daemon(
        tmp_path_factory.mktemp("guarded"),
        port=free_port(),
        api_keys=f"{TOKEN},reader-0123456789:r:log,other-0123456789:rw",
        max_body_bytes=20_000,
        max_record_bytes=10_000,
        max_topics=4,
    )
    try:
        daemon.start().close()
        with Client(daemon.url, TOKEN) as client:
            client.create("log")
            client.append("log", [1])
            client.create("full", cap_records=1, discard="reject")
            client.append("full", [1])
        yield daemon
    finally:
        daemon.kill()


REFUSALS: dict[str, tuple[Callable[[Any], Awaitable[Any]], type[ApiError], int, str]] = {
    "a bad value": (lambda c: c.create("log", priority="high"), BadRequest, 400, "invalid_request"),
    "a bad name": (lambda c: c.state("a/b"), BadRequest, 400, "invalid_request"),
    "a large record": (lambda c: c.append("log", ["x" * 11_000]), BadRequest, 400, "record_too_large"),
    "no such topic": (lambda c: c.state("none"), NotFound, 404, "topic_not_found"),
    "no such router": (lambda c: c.router("none"), NotFound, 404, "router_not_found"),
    "not a queue": (lambda c: c.claim("log", "n"), Conflict, 409, "not_a_queue"),
    "another type": (lambda c: c.create("log", type="queue"), Conflict, 409, "topic_exists_incompatible"),
    "a large body": (lambda c: c.append("log", ["x" * 9000] * 3), TooLarge, 413, "payload_too_large"),
    "a full topic": (lambda c: c.append("full", [2]), TopicFull, 422, "topic_full"),
}


@pytest.mark.slow
def test_a_refusal_is_raised_as_what_it_is(guarded: Daemon, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        for act, kind, status, code in REFUSALS.values():
            with pytest.raises(kind) as raised:
                await act(client)
            assert type(raised.value) is kind
            assert (raised.value.status, raised.value.code) == (status, code)
            assert raised.value.message
            assert isinstance(raised.value.detail, dict)
            assert raised.value.retry_after is None
            assert code in str(raised.value)

    tell(story, guarded.url, token=TOKEN)


@pytest.mark.slow
def test_detail_says_what_it_was_about(guarded: Daemon, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        with pytest.raises(NotFound) as missing:
            await client.state("none")
        assert missing.value.detail == {"topic": "none"}
        with pytest.raises(BadRequest) as bad:
            await client.create("log", ttl_ms=-1)
        assert bad.value.detail["field"] == "ttl_ms"

    tell(story, guarded.url, token=TOKEN)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "kind", "status"),
    [("", Unauthorized, 401), ("unknown-key", Unauthorized, 401), ("reader-0123456789", Forbidden, 403)],
)
def test_keys_decide(guarded: Daemon, tell: Callable[..., Any], token: str, kind: type[ApiError], status: int) -> None:
    async def story(client: Any) -> None:
        with pytest.raises(kind) as raised:
            await client.append("log", [1])
        assert raised.value.status == status

    tell(story, guarded.url, token=token)


@pytest.mark.slow
def test_a_limit_that_waiting_does_not_lift_is_told_at_once(guarded: Daemon, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        await client.create("third")
        await client.create("fourth")
        with pytest.raises(Throttled) as raised:
            await client.create("fifth")
        assert raised.value.detail["limit"] == "max_topics"
        assert raised.value.detail["max"] == 4
        assert raised.value.retry_after is not None

    # Were it repeated, the test would wait for longer than it is allowed to.
    tell(story, guarded.url, token=TOKEN, retry=Retry(give_up_after=10_000, first_wait=5_000))


@pytest.fixture(scope="module")
def full_disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon that holds its disk to be full."""
    daemon = Daemon(tmp_path_factory.mktemp("full"), port=free_port(), min_free_bytes="1024TiB")
    try:
        daemon.start().close()
        yield daemon
    finally:
        daemon.kill()


@pytest.mark.slow
def test_a_daemon_that_takes_no_appends_says_so(full_disk: Daemon, tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        with pytest.raises(Unavailable) as raised:
            await client.append("a", [1])
        assert (raised.value.status, raised.value.code) == (503, "read_only")
        assert raised.value.retry_after is not None

    tell(story, full_disk.url, retry=None)


def test_where_nobody_listens_nothing_was_carried_out(tell: Callable[..., Any]) -> None:
    async def story(client: Any) -> None:
        with pytest.raises(ConnectionFailed) as raised:
            await client.append("a", [1])
        assert not raised.value.outcome_unknown
        assert raised.value.code == "connection_failed"
        assert client_url in str(raised.value)

    client_url = f"http://127.0.0.1:{free_port()}"
    tell(story, client_url, retry=None)


# ----------------------------------------------------------------- what is sent twice


@dataclass(frozen=True)
class Answer:
    """What the scripted server does with one request."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    """Break the connection after so many bytes of the body; -1: before the head."""


@dataclass(frozen=True)
class Sent:
    """A request as it arrived."""

    method: str
    target: str
    body: bytes
    headers: dict[str, str]


def failure(status: int, code: str, retry_after: str | None = "0", **detail: Any) -> Answer:
    body = json.dumps({"error": {"code": code, "message": "said so", "detail": detail}}).encode()
    return Answer(status, body, {} if retry_after is None else {"Retry-After": retry_after})


GONE = Answer(cut=-1)
HALF = Answer(body=b'{"topic":"a","first', cut=9)
HTML = b"<html><h1>Bad gateway</h1></html>"
SHUTTING_DOWN = failure(503, "shutting_down")
THROTTLED = failure(429, "throttled")


class Script:
    """A server that gives one answer after the other, the last one for ever, and keeps what it was sent."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.sent: list[Sent] = []
        script = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                script.sent.append(Sent(self.command, self.path, body, headers))
                answer = script.answers.pop(0) if len(script.answers) > 1 else script.answers[0]
                if answer.cut is None or answer.cut >= 0:
                    self.send_response(answer.status)
                    for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                        self.send_header(name, value)
                    self.end_headers()
                    self.wfile.write(answer.body[: answer.cut])
                self.close_connection = answer.cut is not None

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Script:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


QUICK = Retry(give_up_after=20, first_wait=0.001, longest_wait=0.002)

APPENDED = json.dumps(
    {"topic": "a", "first_seq": 1, "last_seq": 1, "seqs": [1], "head_seq": 1, "count": 1, "created": False}
    | {"deduped": True, "performance": {"server_total_ms": 0.1}, "something_new": [1]}
).encode()
QUEUED = {"topic": "q", "skipped": [], "ready": 0, "in_flight": 0}
DELETED = {"topic": "a", "deleted": 1, "earliest_seq": 1, "head_seq": 1, "count": 0, "bytes": 0}
PAGE = {"topic": "a", "epoch": 1, "records": [], "next_from_seq": 0, "head_seq": 0, "earliest_seq": 1} | {
    "caught_up": True,
    "tombstone": None,
    "lag": 0,
}
IDS = {"lease_ids": ["lease_1"]}

ACTS: dict[str, tuple[Callable[[Any], Awaitable[Any]], Any, bool]] = {
    "an append": (lambda c: c.append("a", [1]), json.loads(APPENDED), True),
    "an append under a key": (lambda c: c.append("a", [1], idempotency_key="k"), json.loads(APPENDED), True),
    "an append without one": (lambda c: c.append("a", [1], idempotency_key=None), json.loads(APPENDED), False),
    "a read": (lambda c: c.diff("a"), PAGE, True),
    "a router": (lambda c: c.delete_router("r"), {"router": "r", "deleted": True}, False),
    "a topic's end": (lambda c: c.delete_topic("a"), {"topic": "a", "deleted": True, "routers_removed": []}, False),
    "a deletion": (lambda c: c.delete_records("a", match="x"), DELETED, False),
    "a claim": (lambda c: c.claim("q", "n"), {"topic": "q", "claimed": [], "count": 0, "ready": 0}, False),
    "an ack": (lambda c: c.ack("q", "n", [1]), QUEUED | {"acked": 1}, False),
    "a fenced ack": (lambda c: c.ack("q", "n", [1], **IDS), QUEUED | {"acked": 1}, True),
    "a nack": (lambda c: c.nack("q", "n", [1]), QUEUED | {"nacked": 1}, False),
    "a fenced nack": (lambda c: c.nack("q", "n", [1], **IDS), QUEUED | {"nacked": 1}, True),
    "a fenced extension": (
        lambda c: c.extend("q", "n", [1], lease_ms=1, **IDS),
        QUEUED | {"extended": 1, "deadlines": {"1": 5}},
        True,
    ),
    "readiness": (lambda c: c.ready(), {"status": "ready", "wal_replay_complete": True, "topics": 0}, True),
}
"""What is done, the answer to it, and whether it does no harm twice."""

HEALTH: tuple[Callable[[Any], Awaitable[Any]], Any] = (
    lambda c: c.health(),
    {"status": "ok", "version": "1", "uptime_ms": 1},
)


def good(act: Any) -> Answer:
    return Answer(body=json.dumps(act[1]).encode())


async def outcome_of(act: Any, client: Any) -> Any:
    """What it returns, or the error that it raises."""
    try:
        return await act(client)
    except TopicsError as error:
        return error


def tried(tell: Callable[..., Any], act: Any, *answers: Answer, retry: Retry | None = QUICK) -> tuple[list[Sent], Any]:
    """Do it against these answers; what was sent, and what was returned or raised."""
    with Script(*answers) as script:
        outcome = tell(lambda client: outcome_of(act, client), script.url, retry=retry)
    return script.sent, outcome


def all_tried(tell: Callable[..., Any], *answers: Answer) -> Iterator[tuple[str, list[Sent], Any]]:
    """Every act against these answers and then a good one: its name, what was sent, and what came of it."""
    with Script(GONE) as script:

        async def story(client: Any) -> list[tuple[str, list[Sent], Any]]:
            told = []
            for name, act in ACTS.items():
                script.answers, script.sent = [*answers, good(act)], []
                outcome = await outcome_of(act[0], client)
                told.append((name, script.sent, outcome))
            return told

        yield from tell(story, script.url, retry=QUICK)


@pytest.mark.parametrize("refused", [SHUTTING_DOWN, failure(503, "not_ready"), THROTTLED])
def test_what_was_refused_is_always_sent_again(tell: Callable[..., Any], refused: Answer) -> None:
    for name, sent, outcome in all_tried(tell, refused, refused):
        assert not isinstance(outcome, Exception), name
        assert len(sent) == 3, name
        assert len({(one.method, one.target, one.body) for one in sent}) == 1, name


@pytest.mark.parametrize(
    "doubt",
    [
        GONE,
        HALF,
        failure(500, "internal"),
        failure(503, "read_only"),  # it may have turned so with the call in hand
        *(Answer(status, HTML) for status in (500, 502, 503, 504)),
    ],
    ids=["gone", "half", "internal", "read-only", "500", "502", "503", "504"],
)
def test_what_may_have_been_carried_out_is_sent_again_if_that_does_no_harm(
    tell: Callable[..., Any], doubt: Answer
) -> None:
    for name, sent, outcome in all_tried(tell, doubt, doubt):
        if ACTS[name][2]:
            assert not isinstance(outcome, Exception), name
            assert len(sent) == 3, name
            assert len({(one.method, one.target, one.body) for one in sent}) == 1, name
        else:
            assert len(sent) == 1, name
            assert isinstance(outcome, ConnectionFailed | ServerError), name
            assert not isinstance(outcome, ConnectionFailed) or outcome.outcome_unknown, name


@pytest.mark.parametrize("name", ["an append", "an append under a key"])
def test_an_append_keeps_its_key_through_all_repeats(tell: Callable[..., Any], name: str) -> None:
    answers = [GONE, THROTTLED, HALF, Answer(502, HTML), SHUTTING_DOWN, Answer(body=APPENDED)]
    sent, outcome = tried(tell, ACTS[name][0], *answers)
    assert outcome.deduped
    keys = {json.loads(one.body)["idempotency_key"] for one in sent}
    assert (len(sent), len(keys)) == (6, 1)
    assert name == "an append" or keys == {"k"}


def in_turn(tell: Callable[..., Any], act: str, firsts: list[Answer]) -> list[tuple[int, Any]]:
    """One act against each of these answers, with a good one behind it: how often it was sent, and what came of it."""
    with Script(GONE) as script:

        async def story(client: Any) -> list[tuple[int, Any]]:
            told = []
            for first in firsts:
                script.answers, script.sent = [first, good(ACTS[act])], []
                outcome = await outcome_of(ACTS[act][0], client)
                told.append((len(script.sent), outcome))
            return told

        answer: list[tuple[int, Any]] = tell(story, script.url, retry=QUICK)
        return answer


def test_a_refusal_for_good_is_not_sent_again(tell: Callable[..., Any]) -> None:
    statuses = [400, 401, 403, 404, 409, 413, 415, 422]
    told = in_turn(tell, "an append", [failure(status, "no", "7") for status in statuses])
    assert [count for count, _ in told] == [1] * len(statuses)
    assert [(error.status, error.code, error.retry_after) for _, error in told] == [(one, "no", 7) for one in statuses]


def test_an_upload_is_sent_once_because_its_records_may_come_only_once(tell: Callable[..., Any]) -> None:
    refused = Answer(THROTTLED.status, THROTTLED.body, {"Connection": "close"})
    sent, outcome = tried(tell, lambda client: client.ingest("a", iter([1, 2])), refused)
    assert isinstance(outcome, Throttled)
    assert [one.method for one in sent] == ["POST"]


def test_a_cap_is_not_waited_for(tell: Callable[..., Any]) -> None:
    limits = sorted(LASTING_LIMITS)
    told = in_turn(tell, "an append", [failure(429, "throttled", limit=limit) for limit in limits])
    assert [(count, error.detail) for count, error in told] == [(1, {"limit": limit}) for limit in limits]


def test_a_rate_is_waited_for(tell: Callable[..., Any]) -> None:
    limits = ["rate_per_key", "max_inflight_per_key", "max_inflight_bytes"]
    told = in_turn(tell, "an append", [failure(429, "throttled", limit=limit) for limit in limits])
    assert [(count, isinstance(found, Exception)) for count, found in told] == [(2, False)] * len(limits)


def test_what_is_not_of_the_contract_is_told_and_not_repeated(tell: Callable[..., Any]) -> None:
    strange = [
        Answer(200, HTML),
        Answer(200, b""),
        Answer(200, b'{"topic":1}'),
        Answer(200, b"\xff"),
        Answer(404, HTML),
        Answer(400, b'{"error":"no object"}'),
        Answer(302, b"", {"Location": "http://127.0.0.1:1/"}),
    ]
    told = in_turn(tell, "a read", strange)
    assert [(count, type(error)) for count, error in told] == [(1, ProtocolError)] * len(strange)


def test_the_answer_of_a_later_version_is_understood(tell: Callable[..., Any]) -> None:
    _, outcome = tried(tell, ACTS["an append"][0], Answer(body=APPENDED))
    assert outcome.first_seq == 1


def test_without_a_policy_nothing_is_sent_again(tell: Callable[..., Any]) -> None:
    sent, outcome = tried(tell, ACTS["a read"][0], THROTTLED, good(ACTS["a read"]), retry=None)
    assert len(sent) == 1
    assert isinstance(outcome, Throttled)


def test_in_the_end_the_last_failure_is_raised(tell: Callable[..., Any]) -> None:
    # The last one asks for a wait that goes past the end, however fast the first two come.
    last = failure(503, "not_ready", "3600")
    sent, outcome = tried(tell, ACTS["a read"][0], GONE, SHUTTING_DOWN, last)
    assert len(sent) == 3
    assert isinstance(outcome, Unavailable)
    assert outcome.code == "not_ready"


def test_a_wait_that_would_go_past_the_end_is_not_begun(tell: Callable[..., Any]) -> None:
    sent, outcome = tried(tell, ACTS["a read"][0], failure(503, "read_only", "3600"), retry=Retry())
    assert len(sent) == 1
    assert outcome.retry_after == 3600


def test_where_nobody_listens_everything_is_tried_again(tell: Callable[..., Any]) -> None:
    """Also a claim: it has not gone out."""
    port = free_port()
    tries: list[object] = []

    async def story(client: Any) -> None:
        with pytest.raises(ConnectionFailed) as raised:
            await client.claim("q", "n")
        tries.append(raised.value.outcome_unknown)

    began = time.monotonic()
    # Its first try would have to take nearly two seconds for there to be no second one.
    tell(story, f"http://127.0.0.1:{port}", retry=Retry(give_up_after=2.0, first_wait=0.2))
    assert tries == [False]
    assert time.monotonic() - began >= 0.1  # it has waited at least once


def test_silence_is_a_failure(tell: Callable[..., Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:

        async def story(client: Any) -> None:
            with pytest.raises(ConnectionFailed) as raised:
                await client.append("a", [1], idempotency_key=None)
            assert raised.value.outcome_unknown

        tell(story, f"http://127.0.0.1:{deaf.getsockname()[1]}", timeout=1.0)


def test_waits_are_drawn_below_a_bound_that_doubles_and_never_below_what_was_asked_for() -> None:
    retry, rng = Retry(), random.Random(1)
    plain = Unavailable(503, "shutting_down", "", {})
    waits = [[retry.wait(attempt, plain, rng) for _ in range(200)] for attempt in range(1, 12)]
    bounds = [min(5.0, 0.05 * 2**n) for n in range(11)]
    assert all(max(drawn) <= bound for drawn, bound in zip(waits, bounds, strict=True))
    assert all(len(set(drawn)) > 100 for drawn in waits)
    assert all(max(first) < max(then) for first, then in pairwise(waits[:7]))
    asked = Unavailable(503, "shutting_down", "", {}, 3.0)
    assert min(retry.wait(1, asked, rng) for _ in range(50)) >= 3.0


def test_waits_end_with_the_time_that_a_call_has() -> None:
    error = Unavailable(503, "shutting_down", "", {})
    attempts = Attempts(Retry(), repeatable=True, now=100.0, rng=random.Random(1))
    now = 100.0
    with suppress(Unavailable):
        while True:
            now += attempts.after(error, now)
    assert 120 < now <= 130


def test_the_time_of_a_stream_begins_anew_where_it_has_brought_something() -> None:
    error = ConnectionFailed("cut off", outcome_unknown=True)
    retry = Retry(give_up_after=10, first_wait=1, longest_wait=1)
    attempts = Attempts(retry, repeatable=True, now=0.0, rng=random.Random(1))
    for now, position in ((100.0, 1), (108.0, 1), (200.0, 2)):
        assert attempts.after(error, now, position=position) <= 1
    with pytest.raises(ConnectionFailed):
        attempts.after(error, 210.0, position=2)


def test_the_daemon_is_asked_to_say_how_long_in_milliseconds(tell: Callable[..., Any]) -> None:
    _, outcome = tried(tell, ACTS["a read"][0], failure(429, "throttled", "1", retry_after_ms=250), retry=None)
    assert outcome.retry_after == 0.25


# ----------------------------------------------------------------- where the daemon is


def test_the_environment_says_where_and_with_which_key(
    monkeypatch: pytest.MonkeyPatch, tell: Callable[..., Any]
) -> None:
    with Script(good(HEALTH)) as script:
        monkeypatch.setenv("TOPICS_URL", script.url + "/")
        monkeypatch.setenv("TOPICS_TOKEN", TOKEN)

        async def story(client: Any) -> None:
            await client.health()

        tell(story, None)
        tell(story, None, token="another")
        tell(story, script.url + "/v0", token="")
    assert [one.target for one in script.sent] == ["/v0/health"] * 3
    assert [one.headers.get("authorization") for one in script.sent] == [f"Bearer {TOKEN}", "Bearer another", None]


def test_whether_the_daemon_answers_is_asked_once(tell: Callable[..., Any]) -> None:
    """Whoever asks for its health wants to know how it is now, and not half a minute later."""
    refusals = [failure(503, "not_ready", "1")] * 2
    with Script(*refusals) as script:

        async def story(client: Any) -> None:
            with pytest.raises(Unavailable):
                await client.health()

        tell(story, script.url)
    assert len(script.sent) == 1


def test_every_call_asks_for_strictness(tell: Callable[..., Any]) -> None:
    with Script(good(HEALTH)) as script:

        async def story(client: Any) -> None:
            await client.health()

        tell(story, script.url)
    assert [one.headers.get("topics-strict") for one in script.sent] == ["1"]


def test_a_key_does_not_follow_a_redirect(tell: Callable[..., Any]) -> None:
    with Script(good(HEALTH)) as elsewhere, Script(Answer(307, b"", {"Location": elsewhere.url})) as script:

        async def story(client: Any) -> None:
            with pytest.raises(ProtocolError):
                await client.health()

        tell(story, script.url, token=TOKEN)
    assert not elsewhere.sent


@pytest.mark.parametrize(
    "url",
    ["localhost:4000", "ftp://localhost", "http://", f"http://me:{TOKEN}@localhost", "http://a/?x=1", "http://a:port"],
)
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_what_is_no_url_is_refused(kind: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValueError, match="url") as raised:
        kind(url)
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("token", [TOKEN + "\r\nX: y", TOKEN + "\x00", TOKEN + "ä"], ids=["lines", "nul", "umlaut"])
def test_what_is_no_key_is_refused_without_showing_it(token: str) -> None:
    with pytest.raises(ValueError, match="token") as raised:
        Client(token=token)
    assert TOKEN not in "".join(traceback.format_exception(raised.value))


# ----------------------------------------------------------------- secrets and imports


def chain(error: BaseException) -> Iterator[BaseException]:
    """The error and everything that it came from, shown or not."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        found = waiting.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [found.__cause__, found.__context__]


@contextmanager
def all_logs() -> Iterator[list[str]]:
    """Whatever any library logs, however little it matters, with all that it was given."""
    lines: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record) + repr(record.args) + repr(vars(record)))

    root, keeper = logging.getLogger(), Keeper()
    before = root.level
    root.addHandler(keeper)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.setLevel(before)
        root.removeHandler(keeper)


def test_nothing_shows_the_key(tell: Callable[..., Any]) -> None:
    shown: list[str] = []
    answers = [failure(401, "unauthorized"), failure(403, "forbidden"), Answer(200, HTML), GONE, HALF, SHUTTING_DOWN]
    with Script(GONE) as script, all_logs() as lines:

        async def story(client: Any) -> None:
            shown.append(repr(client))
            for answer in answers:
                script.answers = [answer]
                for name in ("an append", "a read", "a claim"):
                    error = await outcome_of(ACTS[name][0], client)
                    assert isinstance(error, TopicsError)
                    for one in chain(error):
                        shown.extend((repr(one), str(one), repr(vars(one)), repr(one.args)))
                    shown.extend(traceback.format_exception(error))

        tell(story, script.url, token=TOKEN, retry=None)
    assert any("httpx" in line or "httpcore" in line for line in lines)
    assert {one.headers["authorization"] for one in script.sent} == {f"Bearer {TOKEN}"}
    assert not [text for text in [*shown, *lines] if TOKEN in text]


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_shows_where_it_goes_and_no_key(kind: type[Client] | type[AsyncClient]) -> None:
    client = kind("http://127.0.0.1:4000", TOKEN)
    assert repr(client) == f"{kind.__name__}('http://127.0.0.1:4000')"
    shown = [repr(client.connection), str(client), repr(vars(client)), repr(client._http.headers)]
    assert not [text for text in shown if TOKEN in text]


ALONE = """
import importlib, pkgutil, sys
import topics.client
modules = [found.name for found in pkgutil.iter_modules(topics.client.__path__)]
for name in modules:
    importlib.import_module(f"topics.client.{name}")
for name in topics.client.__all__:
    getattr(topics.client, name)
print(*sorted(sys.modules))
"""


@pytest.mark.slow
def test_the_client_needs_nothing_of_the_server() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    ours = {name for name in loaded if re.match(r"topics(\.|$)", name)}
    assert {"topics.client.sync", "topics.client.concurrent", "topics.client.calls"} <= ours
    assert {name for name in ours if not re.match(r"topics$|topics\.client(\.|$)", name)} == set()
    assert loaded.isdisjoint({"quart", "hypercorn", "structlog", "prometheus_client", "cbor2"})


def test_the_lasting_limits_are_limits_of_the_daemon() -> None:
    assert set(SETTINGS) >= LASTING_LIMITS
