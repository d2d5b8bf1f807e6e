"""Calls that fail: each failure has its type, and what is sent again is what does no harm twice. For clients of all
kinds; what is repeated is asked of a server that answers from a script."""

from __future__ import annotations

import json
import random
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest

from tests.client.acts import ACTS, APPENDED, good, outcome_of
from tests.client.ports import free_port
from tests.client.scripted_server import GONE, HALF, HTML, SHUTTING_DOWN, THROTTLED, Answer, Script, Sent, failure
from tests.conformance.client import Daemon
from topics.client import (
    ApiError,
    BadRequest,
    Client,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotFound,
    ProtocolError,
    Retry,
    ServerError,
    Throttled,
    TooLarge,
    TopicFull,
    Unauthorized,
    Unavailable,
)
from topics.client.retry import LASTING_LIMITS, Attempts

TOKEN = "s3cr3t-0123456789"


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


QUICK = Retry(give_up_after=20, first_wait=0.001, longest_wait=0.002)


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
