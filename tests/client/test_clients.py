"""`Client` and `AsyncClient`: every call against a real daemon, where they find it, and what they never show.

One tour goes through all calls for the blocking client and for the other on asyncio and trio. `test_failures` has the
calls that fail.
"""

from __future__ import annotations

import inspect
import logging
import re
import subprocess
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest

import topics.client
from tests.client.acts import ACTS, HEALTH, good, outcome_of
from tests.client.scripted_server import GONE, HALF, HTML, SHUTTING_DOWN, Answer, Script, failure
from tests.conformance.client import Daemon, fresh_name
from topics.client import (
    AsyncClient,
    Client,
    Conflict,
    NewRecord,
    NotFound,
    ProtocolError,
    Record,
    Tombstone,
    TopicsError,
    Unavailable,
    results,
)
from topics.client.retry import LASTING_LIMITS
from topics.config import SETTINGS

TOKEN = "s3cr3t-0123456789"


async def collected(values: Any) -> list[Any]:
    """Everything that an iterator of either kind has."""
    if isinstance(values, AsyncIterator):
        return [value async for value in values]
    return list(values)


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
    """A caller that asks for the daemon's health wants the present state, not the one after half a minute of
    retries."""
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
    """All log lines of all libraries, at all levels, with their arguments."""
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
    assert set(SETTINGS) >= LASTING_LIMITS - {"max_consumer_filters", "max_schedule_records"}  # no settings
