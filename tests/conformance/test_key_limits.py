"""Section 12: what one key may have at once, and how fast it may ask; and that others do not notice."""

from __future__ import annotations

import itertools
import json
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conformance.client import JSON_TYPE, Client, RawConnection, body_of, envelope, error_of, running, until
from tests.conformance.keys import BOSS, Callers, bearer, callers_of
from tests.conformance.sse import Events, Http2, Session, connect, gauge, stream, stream_path
from tests.conformance.websocket import WebSocket, raw_frame, shake_hands
from tests.conformance.work_stream_client import work_path, working

BOTH_WAYS = True

STREAMS = 3
INFLIGHT = 2
LONG = {"wait_ms": 30_000}
KEYS = [f"key{number}" for number in range(120)]
_keys = iter(KEYS)


@pytest.fixture(scope="module")
def client(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A client whose key is no test's; the keys of the tests may do everything."""
    settings = {"max_sse_connections_per_key": STREAMS, "max_inflight_per_key": INFLIGHT}
    keys = ",".join([BOSS, *KEYS])
    with running(tmp_path_factory.mktemp("daemon"), api_keys=keys, **settings) as client:
        client.headers.update(bearer(BOSS))
        client.append("log", 1)
        client.put_topic("jobs", type="queue")
        client.append("jobs", *range(30))
        client.put_topic("idle", type="queue")
        client.append("idle-log", 1)
        yield client


@pytest.fixture(scope="module")
def callers(client: Client) -> Iterator[Callers]:
    with callers_of(client) as callers:
        yield callers


@pytest.fixture
def key() -> str:
    """A key that no other test uses."""
    return next(_keys)


def capped(response: httpx.Response, limit: str, most: int) -> None:
    check_cap(error_of(response, 429, "throttled"), limit, most)
    assert int(response.headers["retry-after"]) >= 1


def check_cap(error: Any, limit: str, most: int) -> None:
    assert (error["detail"]["limit"], error["detail"]["max"]) == (limit, most)


# Streams


class Kind:
    """A way to open a stream for a key: an event stream of a topic, of a session or of jobs, or a socket."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def open(self, client: Client, key: str, http2: bool = False) -> Any:
        how: dict[str, Any] = {"headers": bearer(key), "http2": http2}
        if self.name == "stream":
            return stream(client, "log", how=how)
        if self.name == "watch":
            return connect(client, f"/v0/watch/{self._session(client, key).wid}", **how).opened()
        if self.name == "work":
            return working(client, "jobs", how=how)
        return WebSocket(client, headers=bearer(key).items())

    def refused(self, client: Client, key: str) -> None:
        """One more is 429."""
        if self.name == "socket":
            status, headers, body = shake_hands(client, **bearer(key))
            assert status == 429, (status, body[:500])
            check_cap(envelope(json.loads(body), "throttled"), "max_sse_connections_per_key", STREAMS)
        else:
            path = {"stream": stream_path("log"), "work": work_path("jobs")}.get(self.name)
            path = path or f"/v0/watch/{self._session(client, key).wid}"
            with connect(client, path, headers=bearer(key)) as events:
                check_cap(events.refused(429, "throttled"), "max_sse_connections_per_key", STREAMS)
                headers = events.headers
        assert int(headers["retry-after"]) >= 1

    def _session(self, client: Client, key: str) -> Session:
        with Client(client.daemon) as own:
            own.headers.update(bearer(key))
            return Session(own, "log")


STREAM, WATCH, WORK, SOCKET = KINDS = [Kind(name) for name in ("stream", "watch", "work", "socket")]


def has_room(client: Client, key: str, count: int = STREAMS) -> None:
    """Soon this many streams of the key can be open at once, and no more; in the end they are closed."""
    streams: list[Events] = []

    def try_all() -> bool:
        while len(streams) < count:
            events = connect(client, stream_path("log"), headers=bearer(key))
            if events.status != 200:
                events.refused(429)
                events.close()
                return False
            streams.append(events)
        return True

    try:
        until(try_all)
        STREAM.refused(client, key)
    finally:
        for events in streams:
            events.close()
    until(lambda: all_closed(client, STREAMS - count))


def all_closed(client: Client, but: int = 0) -> bool:
    """Whether no more than this many streams are open."""
    return gauge(client, "topics_sse_connections") + gauge(client, "topics_ws_connections") <= but


@pytest.mark.parametrize("kinds", [[STREAM] * 3, [WATCH] * 3, [WORK] * 3, [SOCKET] * 3, [STREAM, WORK, SOCKET],
                                   [WATCH, SOCKET, STREAM]], ids=str)  # fmt: skip
def test_streams_of_all_kinds_are_counted_together(client: Client, key: str, kinds: list[Kind]) -> None:
    with ExitStack() as stack:
        for number, kind in enumerate(kinds):
            stack.enter_context(kind.open(client, key, http2=number == 1))
        for kind in KINDS:
            kind.refused(client, key)
        other = next(_keys)
        for kind in KINDS[:STREAMS]:
            stack.enter_context(kind.open(client, other))
        # Calls that hold no stream are none of it.
        body_of(client.get("/v0/topics", headers=bearer(key)))
    has_room(client, key)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_place_is_free_when_its_client_hangs_up(client: Client, key: str, kind: Kind) -> None:
    for _ in range(2):
        with ExitStack() as stack:
            for _ in range(STREAMS):
                stack.enter_context(kind.open(client, key))
            kind.refused(client, key)
        has_room(client, key)


def test_a_place_is_free_when_a_stream_is_reset_or_its_connection_is_lost(client: Client, key: str) -> None:
    for is_reset in (True, False):
        with Http2(client) as connection:
            streams = [
                connect(client, stream_path("log"), http2=connection, headers=bearer(key)).opened() for _ in range(3)
            ]
            connect(client, stream_path("log"), http2=connection, headers=bearer(key)).refused(429)
            if is_reset:
                for one in streams:
                    one.close()
                has_room(client, key)
        has_room(client, key)


def test_a_place_is_free_when_its_topic_is_deleted(client: Client, callers: Callers, key: str, topic: str) -> None:
    client.append(topic, 1)
    client.put_topic(f"{topic}-q", type="queue")
    with (
        stream(client, topic, how={"headers": bearer(key)}) as first,
        Session(callers[key], topic).open(headers=bearer(key)) as second,
        working(client, f"{topic}-q", how={"headers": bearer(key)}) as third,
    ):
        first.until_caught_up()
        second.until_caught_up()
        STREAM.refused(client, key)
        client.delete_topic(topic)
        client.delete_topic(f"{topic}-q")
        for events in (first, second, third):
            events.rest()
        # All of them are still connected.
        has_room(client, key)


def test_a_place_is_free_when_another_takes_the_session_over(client: Client, callers: Callers, key: str) -> None:
    session = Session(callers[key], "log")
    with session.open(headers=bearer(key)) as first:
        first.until_caught_up()
        with session.open(headers=bearer(key)) as second:
            first.final(409)
            second.until_caught_up()
            has_room(client, key, STREAMS - 1)
    has_room(client, key)


def test_a_place_is_free_however_a_socket_ends(client: Client, key: str) -> None:
    for end in ("close", "breach"):
        sockets = [SOCKET.open(client, key) for _ in range(STREAMS)]
        for ws in sockets:
            if end == "close":
                ws.send_close()
            else:
                ws.send_bytes(raw_frame(1, b"x", mask=False))
            ws.rest()
        has_room(client, key)
        for ws in sockets:
            ws.hang_up()


def test_what_does_not_open_takes_no_place(client: Client, key: str) -> None:
    how: dict[str, Any] = {"headers": bearer(key)}
    for _ in range(STREAMS + 1):
        for path, status in [
            ("/v0/topics/none/stream", 404), ("/v0/topics/log/stream?from_seq=x", 400), ("/v0/watch/wid_none", 404),
            ("/v0/topics/log/work?node=n", 409), ("/v0/topics/jobs/work", 400), ("/v0/topics/none/work?node=n", 404),
        ]:  # fmt: skip
            with connect(client, path, **how) as events:
                events.refused(status)
        with connect(client, stream_path("log"), "not an id", **how) as events:
            events.refused(400)
        with connect(client, stream_path("log"), accept="text/html", **how) as events:
            events.refused(406)
        assert shake_hands(client, sec_websocket_version="12", **bearer(key))[0] in range(400, 500)
    has_room(client, key)
    with ExitStack() as stack:
        for _ in range(STREAMS):
            stack.enter_context(STREAM.open(client, key))
        for _ in range(3):
            for kind in KINDS:
                kind.refused(client, key)
    has_room(client, key)


# Requests


def held(client: Client, key: str, kind: str = "poll", topic: str = "idle-log") -> RawConnection:
    """A request that is on its way until somebody ends it."""
    body = json.dumps({"from_seq": 1, **LONG} if kind == "poll" else {"node": "n", **LONG}).encode()
    path = {"poll": f"/v0/topics/{topic}/diff", "claim": "/v0/topics/idle/claim"}.get(kind, "/v0/topics/log")
    connection = RawConnection(client)
    length = len(body) + (kind == "body")
    connection.send_head("POST", path, content_type=JSON_TYPE, content_length=str(length), **bearer(key))
    connection.send(body)
    return connection


def is_full(client: Client, key: str) -> bool:
    return client.get("/v0/topics", headers=bearer(key)).status_code == 429


@contextmanager
def filled(client: Client, key: str, kind: str = "poll", topic: str = "idle-log") -> Iterator[list[RawConnection]]:
    """While the key has as many requests under way as it may: these."""
    with ExitStack() as stack:
        # As many again are refused, by which one knows that the others have come.
        waiting = [stack.enter_context(held(client, key, kind, topic)) for _ in range(2 * INFLIGHT)]
        deadline = time.monotonic() + 10
        while len(waiting) > INFLIGHT:
            assert time.monotonic() < deadline, "they were not refused"
            answered, _, _ = select.select([connection.socket for connection in waiting], [], [], 0.1)
            for connection in [connection for connection in waiting if connection.socket in answered]:
                connection.receive_error(429, "throttled")
                connection.socket.close()
                waiting.remove(connection)
        yield waiting


@pytest.mark.parametrize("kind", ["poll", "claim", "body"])
def test_requests_of_a_key_are_counted_while_they_last(client: Client, key: str, kind: str) -> None:
    for _ in range(2):
        with filled(client, key, kind):
            headers = bearer(key)
            calls: list[tuple[str, str, Any]] = [
                ("GET", "/v0/topics", None), ("GET", "/v0/topics/log", None), ("PUT", "/v0/topics/no", {}),
                ("POST", "/v0/topics/log", {"records": [{"data": 1}]}), ("GET", "/v0/metrics", None),
                ("POST", "/v0/watch", {"topics": {"log": {}}}),
            ]  # fmt: skip
            for method, path, body in calls:
                answer = client.request(method, path, json=body, headers=headers)
                capped(answer, "max_inflight_per_key", INFLIGHT)
            error_of(client.get("/v0/topics/no"), 404)
            body_of(client.get("/v0/health", headers=headers))
            body_of(client.get("/v0/ready", headers=headers))
            # What is refused for another reason is.
            error_of(client.get("/v0/nothing", headers=headers), 404)
            body_of(client.get("/v0/topics"))
            body_of(client.get("/v0/topics", headers=bearer(next(_keys))))
        until(lambda: not is_full(client, key))


@pytest.mark.parametrize("status", [200, 404])
def test_a_place_is_free_when_a_request_is_answered(client: Client, key: str, topic: str, status: int) -> None:
    client.append(topic, 1)
    with filled(client, key, topic=topic) as connections:
        if status == 200:
            client.append(topic, 2)
        else:
            client.delete_topic(topic)
        assert [connection.receive()[0] for connection in connections] == [status] * INFLIGHT
        # Their clients are still connected.
        for _ in range(INFLIGHT + 1):
            body_of(client.get("/v0/topics", headers=bearer(key)))


@pytest.mark.parametrize("http2", [False, True])
def test_who_waits_for_each_answer_is_never_refused(client: Client, key: str, http2: bool) -> None:
    with (
        held(client, key),
        Client(client.daemon, http2=http2) as one,
        Client(client.daemon, http2=http2) as other,
    ):
        for _ in range(100):
            for either in (one, other):
                body_of(either.get("/v0/topics/log", headers=bearer(key)))


def test_what_is_refused_holds_no_place(client: Client, callers: Callers, key: str) -> None:
    for http2 in (False, True):
        with Client(client.daemon, http2=http2) as own:
            own.headers.update(bearer(key))
            for _ in range(INFLIGHT + 1):
                error_of(own.get("/v0/topics/none"), 404)
                error_of(own.get("/v0/nothing"), 404)
                error_of(own.patch("/v0/topics"), 405)
                error_of(own.put("/v0/topics/-bad", json={}), 400)
                error_of(own.put("/v0/topics/a", content=b"{"), 415)
                error_of(own.put("/v0/topics/a", content=b"{", headers={"content-type": JSON_TYPE}), 400)
                error_of(own.get("/v0/topics/log/work?node=n"), 409)
            body_of(own.get("/v0/topics"))
    with filled(client, key):
        for _ in range(5):
            assert is_full(client, key)
    until(lambda: not is_full(client, key))


def test_an_open_stream_holds_no_place(client: Client, key: str) -> None:
    with ExitStack() as stack:
        for kind in (STREAM, WATCH, SOCKET):
            stack.enter_context(kind.open(client, key))
        body_of(client.get("/v0/topics", headers=bearer(key)))
        stack.enter_context(filled(client, key))
    until(lambda: not is_full(client, key))


def test_a_request_that_is_reset_frees_its_place(client: Client, key: str) -> None:
    with Http2(client) as connection:
        path = "/v0/topics/idle-log/diff?from_seq=1&wait_ms=30000"
        streams = [connection.get(path, bearer(key).items()) for _ in range(3 * INFLIGHT)]
        deadline = time.monotonic() + 10
        while sum(stream.status == 429 for stream in streams) < 2 * INFLIGHT:
            assert connection.pump(deadline), "they were not refused"
        assert is_full(client, key)
        next(stream for stream in streams if not stream.status).close()
        until(lambda: not is_full(client, key))
    until(lambda: not is_full(client, key))


# Settings


def test_caps_of_keys_are_not_for_those_who_have_none(tmp_path: Path) -> None:
    settings = {"max_sse_connections_per_key": 1, "max_inflight_per_key": 1, "rate_per_key": "1/1000"}
    with running(tmp_path, **settings) as client, ExitStack() as stack:
        client.append("log", "x" * 5000)
        for headers in ({}, bearer("same"), bearer("same")):
            stack.enter_context(stream(client, "log", how={"headers": headers}))
            stack.enter_context(WebSocket(client, headers=headers.items()))
            stack.enter_context(held(client, "same", "body"))
        for _ in range(30):
            body_of(client.get("/v0/topics"))


def test_zero_is_off_and_a_rate_may_be_of_bytes_alone(tmp_path: Path) -> None:
    settings = {"max_sse_connections_per_key": 0, "max_inflight_per_key": 0, "rate_per_key": "/2MiB"}
    settings["api_keys"] = f"{BOSS},heavy"
    with running(tmp_path, **settings) as client, ExitStack() as stack:
        client.headers.update(bearer(BOSS))
        client.append("log", 1)
        client.put_topic("jobs", type="queue")
        for _ in range(3):
            for kind in KINDS:
                stack.enter_context(kind.open(client, BOSS))
            stack.enter_context(held(client, BOSS, "body"))
        for _ in range(300):
            body_of(client.get("/v0/topics/log"))
        records = [{"data": "x" * 1_000_000}] * 6
        body_of(client.post("/v0/topics/heavy", json={"records": records}, headers=bearer("heavy")), 201)
        too_fast(client.get("/v0/topics", headers=bearer("heavy")))


# How fast


BYTES = 100_000


@pytest.fixture(scope="module")
def slow(http_lane: bool, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A daemon whose keys may send ten requests and so many bytes in a second."""
    keys = ",".join([BOSS, *KEYS])
    with running(tmp_path_factory.mktemp("slow"), api_keys=keys, rate_per_key=f"10/{BYTES}") as client:
        yield client


def too_fast(response: httpx.Response) -> float:
    """It is refused for its rate; after how many seconds it is not."""
    error = error_of(response, 429, "throttled")
    assert error["detail"]["limit"] == "rate_per_key"
    after_ms = error["detail"]["retry_after_ms"]
    assert type(after_ms) is int
    assert 0 < after_ms <= 60_000
    assert int(response.headers["retry-after"]) * 1000 >= after_ms
    return after_ms / 1000


def make_topic(client: Client, key: str, topic: str) -> None:
    body_of(client.put(f"/v0/topics/{topic}", json={}, headers=bearer(key)), 201)


def test_requests_over_the_rate_are_refused_for_a_while(slow: Client, key: str) -> None:
    answers = []
    for _ in range(200):
        answers.append(slow.get("/v0/topics", headers=bearer(key)))
        if answers[-1].status_code == 429:
            break
    else:
        raise AssertionError("it was never refused")
    # One second's worth may come at once.
    assert len(answers) > 10
    pause = too_fast(answers[-1])
    body_of(slow.get("/v0/topics", headers=bearer(next(_keys))))
    for _ in range(20):
        body_of(slow.get("/v0/health", headers=bearer(key)))
        body_of(slow.get("/v0/ready", headers=bearer(key)))
    time.sleep(pause)
    body_of(slow.get("/v0/topics", headers=bearer(key)))


def test_being_refused_costs_nothing(slow: Client, key: str) -> None:
    refusals: list[httpx.Response] = []
    last_is_refused = False
    while len(refusals) < 100 or not last_is_refused:
        answer = slow.get("/v0/topics", headers=bearer(key))
        if last_is_refused := answer.status_code == 429:
            refusals.append(answer)
    pause = too_fast(refusals[-1])
    # A hundred refusals have not put it off: it is a matter of the tenth of a second that a request takes to come.
    assert pause <= 0.2
    time.sleep(pause)
    body_of(slow.get("/v0/topics", headers=bearer(key)))


def test_bytes_over_the_rate_are_refused_for_a_while(slow: Client, key: str, topic: str) -> None:
    make_topic(slow, key, topic)
    body = {"records": [{"data": "x" * (3 * BYTES)}]}
    # Its size is not known before it has been read.
    body_of(slow.post(f"/v0/topics/{topic}", json=body, headers=bearer(key)))
    pause = too_fast(slow.post(f"/v0/topics/{topic}", json=body, headers=bearer(key)))
    too_fast(slow.get("/v0/topics", headers=bearer(key)))
    reader = next(_keys)
    body_of(slow.get("/v0/topics", headers=bearer(reader)))
    time.sleep(pause)
    state = body_of(slow.get(f"/v0/topics/{topic}", headers=bearer(key)))
    assert state["head_seq"] == 1
    # Answers are charged as well as bodies.
    headers = {"accept-encoding": "identity", **bearer(reader)}
    assert len(body_of(slow.get(f"/v0/topics/{topic}/diff", headers=headers))["records"]) == 1
    pause = too_fast(slow.get("/v0/topics", headers=bearer(reader)))
    time.sleep(pause)
    body_of(slow.get("/v0/topics", headers=bearer(reader)))


def test_commands_are_charged_like_requests(slow: Client, key: str, topic: str) -> None:
    make_topic(slow, next(_keys), topic)
    with WebSocket(slow, headers=bearer(key).items()) as ws:
        for _ in range(200):
            answer = ws.ask("publish", topic=topic, records=[{"data": 1}])
            if answer["op"] == "error":
                break
        assert (answer["op"], answer["code"]) == ("error", "throttled")
        assert answer["detail"]["limit"] == "rate_per_key"
        head = slow.get(f"/v0/topics/{topic}", headers=bearer(next(_keys))).json()["head_seq"]
        time.sleep(answer["detail"]["retry_after_ms"] / 1000)
        # The socket stays, and the refused one has not been carried out.
        assert ws.publish(topic, 1)["first_seq"] == head + 1
    time.sleep(1)
    with WebSocket(slow, headers=bearer(key).items()) as ws:
        ws.publish(topic, "x" * (3 * BYTES))
        answer = ws.ask("publish", topic=topic, records=[{"data": 1}])
        assert (answer["op"], answer["code"], answer["detail"]["limit"]) == ("error", "throttled", "rate_per_key")
        time.sleep(answer["detail"]["retry_after_ms"] / 1000)
        ws.publish(topic, 1)


def test_what_streams_deliver_is_not_charged(slow: Client, key: str, topic: str) -> None:
    writers = [next(_keys) for _ in range(3)]
    make_topic(slow, writers[0], topic)
    for writer in writers:
        body = {"records": [{"data": "x" * BYTES}]}
        body_of(slow.post(f"/v0/topics/{topic}", json=body, headers=bearer(writer)))
    with (
        stream(slow, topic, how={"headers": bearer(key)}) as events,
        WebSocket(slow, headers=bearer(key).items()) as ws,
    ):
        events.until_seq(topic, 3)
        ws.subscribe(topic)
        ws.until_seq(topic, 3)
        ws.works()
        body_of(slow.get("/v0/topics", headers=bearer(key)))


def test_the_limits_are_counted(client: Client, slow: Client, key: str) -> None:
    with filled(client, key):
        pass
    until(lambda: not is_full(client, key))
    with ExitStack() as stack:
        for _ in range(STREAMS):
            stack.enter_context(STREAM.open(client, key))
        STREAM.refused(client, key)
    for _ in itertools.takewhile(lambda _: slow.get("/v0/topics", headers=bearer(key)).status_code != 429, range(200)):
        pass
    for daemon, reasons in (
        (client, {"max_sse_connections_per_key", "max_inflight_per_key"}), (slow, {"rate_per_key"})
    ):  # fmt: skip
        headers = {"accept": "application/json", **bearer(next(_keys))}
        samples = body_of(daemon.get("/v0/metrics", headers=headers))["topics_throttled_total"]
        assert reasons <= {sample["labels"]["reason"] for sample in samples if sample["value"] > 0}
