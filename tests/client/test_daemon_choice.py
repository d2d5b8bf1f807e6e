"""Clients of several daemons: who gets a call, what is tried next, and what is said when nobody answers."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from random import Random
from typing import Any

import anyio
import pytest

from tests.client.acts import ACTS, HEALTH, good, outcome_of
from tests.client.ports import free_port
from tests.client.scripted_server import GONE, THROTTLED, Answer, Script, failure
from topics.client import (
    ApiError,
    AsyncClient,
    Client,
    Conflict,
    ConnectionFailed,
    NotFound,
    Retry,
    TopicsError,
    Unavailable,
    calls,
)
from topics.client.daemon_choice import DaemonChoice

QUICK = Retry(give_up_after=20, first_wait=0.001, longest_wait=0.002)
APPEND, READ, CLAIM = ACTS["an append"], ACTS["a read"], ACTS["a claim"]
TOPICS = "http://topics-1:4000", "http://topics-2:4000", "http://topics-3:4000"


def of_standby(answer: Answer) -> Answer:
    return Answer(answer.status, answer.body, answer.headers | {"Topics-Role": "standby"})


def not_owner(owner: str | None, *, refused: bool = True) -> Answer:
    return failure(503, "not_owner", "1", owner=owner, refused=refused)


@pytest.fixture
def scripts() -> Iterator[Callable[..., Script]]:
    with ExitStack() as stack:
        yield lambda *answers: stack.enter_context(Script(*answers))


def tried(tell: Any, act: Any, *places: Any, retry: Retry | None = QUICK, any: bool = False) -> Any:
    """Do it with a client of these daemons. What was returned or raised."""
    urls = [place.url if isinstance(place, Script) else place for place in places]
    return tell(lambda client: outcome_of(act[0], client), urls, retry=retry, any=any)


# ----------------------------------------------------------------- the owner is found


@pytest.mark.parametrize("retry", [QUICK, None], ids=["repeats", "none"])
@pytest.mark.parametrize("act", [APPEND, READ, CLAIM], ids=["append", "read", "claim"])
def test_a_call_goes_on_to_the_next_daemon_where_nobody_listens(
    tell: Any, scripts: Any, act: Any, retry: Retry | None
) -> None:
    owner = scripts(good(act))
    assert not isinstance(tried(tell, act, f"http://127.0.0.1:{free_port()}", owner, retry=retry), TopicsError)
    assert len(owner.sent) == 1


@pytest.mark.parametrize("code", ["not_ready", "shutting_down", "not_owner"])
def test_a_daemon_that_does_not_serve_is_left(tell: Any, scripts: Any, code: str) -> None:
    other, owner = scripts(failure(503, code, "30", owner=None, refused=True)), scripts(good(APPEND))
    began = time.monotonic()
    assert not isinstance(tried(tell, APPEND, other, owner), TopicsError)
    assert time.monotonic() - began < 10, "what one daemon asks for does not count for another one"
    assert (len(other.sent), len(owner.sent)) == (1, 1)


def test_the_owner_that_a_daemon_names_is_next(tell: Any, scripts: Any) -> None:
    third = scripts(good(APPEND))
    first, second = scripts(of_standby(not_owner(third.url))), scripts(GONE)
    assert not isinstance(tried(tell, APPEND, first, second, third), TopicsError)
    assert (len(first.sent), len(second.sent), len(third.sent)) == (1, 0, 1)


def test_an_owner_that_was_not_given_is_never_asked(tell: Any, scripts: Any) -> None:
    stranger, second = scripts(good(APPEND)), scripts(good(APPEND))
    first = scripts(not_owner(stranger.url))
    assert not isinstance(tried(tell, APPEND, first, second), TopicsError)
    assert (len(stranger.sent), len(second.sent)) == (0, 1)


def test_the_owner_is_remembered(tell: Any, scripts: Any) -> None:
    first, second = scripts(not_owner(None)), scripts(good(APPEND))

    async def story(client: Any) -> list[str]:
        found = [client._client.url if hasattr(client, "_client") else client.url]
        for _ in range(3):
            await client.append("a", [1])
        found.append(client._client.url if hasattr(client, "_client") else client.url)
        return found

    assert tell(story, f"{first.url}, {second.url}/") == [first.url, second.url]
    assert (len(first.sent), len(second.sent)) == (1, 3)


@pytest.mark.parametrize(
    ("act", "refused", "is_repeated"), [(CLAIM, True, True), (CLAIM, False, False), (APPEND, False, True)]
)
def test_a_change_that_a_former_owner_may_have_made_is_repeated_only_if_that_does_no_harm(
    tell: Any, scripts: Any, act: Any, refused: bool, is_repeated: bool
) -> None:
    first, second = scripts(not_owner(None, refused=refused)), scripts(good(act))
    outcome = tried(tell, act, first, second)
    assert len(second.sent) == int(is_repeated)
    assert isinstance(outcome, Unavailable) is not is_repeated


def test_a_broken_connection_is_followed_by_the_same_append_elsewhere(tell: Any, scripts: Any) -> None:
    first, second = scripts(GONE), scripts(good(APPEND))
    assert not isinstance(tried(tell, APPEND, first, second), TopicsError)
    assert first.sent[0].body == second.sent[0].body, "the idempotency key is the same"
    assert isinstance(tried(tell, CLAIM, first, second), ConnectionFailed)


@pytest.mark.parametrize("answer", [THROTTLED, failure(404, "topic_not_found"), failure(503, "read_only")])
def test_what_only_the_owner_can_say_is_not_asked_elsewhere(tell: Any, scripts: Any, answer: Answer) -> None:
    first, second = scripts(answer), scripts(good(APPEND))
    assert isinstance(tried(tell, APPEND, first, second, retry=None), ApiError)
    assert not second.sent


def test_a_daemon_that_hangs_is_left_by_a_caller_that_gives_up(scripts: Any, backend: str) -> None:
    """A worker does so: an ack must not take longer than the lease."""
    owner = scripts(good(APPEND))

    async def story() -> list[str]:
        async with AsyncClient([hanging, owner.url]) as client:
            for _ in range(2):
                with anyio.move_on_after(0.3):
                    await client.append("a", [1])
                    pytest.fail("it has answered")
            found = [client.url]
            with anyio.move_on_after(1.3):
                await client.append("a", [1])
            found.append(client.url)
            await client.append("a", [1])
            return found

    with socket.create_server(("127.0.0.1", 0)) as silent:
        hanging = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert anyio.run(story, backend=backend) == [hanging, owner.url], "a short wait says nothing"
    assert len(owner.sent) == 1


# ----------------------------------------------------------------- standbys


@pytest.mark.parametrize("answer", [good(READ), failure(404, "topic_not_found")], ids=["a page", "404"])
def test_a_read_is_not_answered_by_a_standby(tell: Any, scripts: Any, answer: Answer) -> None:
    standby, owner = scripts(of_standby(answer)), scripts(good(READ))
    assert not isinstance(tried(tell, READ, standby, owner, retry=None), TopicsError)
    assert (len(standby.sent), len(owner.sent)) == (1, 1)


def test_one_daemon_alone_may_be_a_standby(tell: Any, scripts: Any) -> None:
    assert not isinstance(tried(tell, READ, scripts(of_standby(good(READ)))), TopicsError)


def test_with_any_reads_go_to_every_daemon_and_changes_to_the_owner(scripts: Any) -> None:
    standby, owner = scripts(of_standby(good(READ))), scripts(good(READ))
    for _ in range(30):
        with Client([standby.url, owner.url], any=True) as client:
            client.diff("a")
    reads = (len(standby.sent), len(owner.sent))
    assert min(reads) > 0, reads
    assert sum(reads) == 30
    standby.answers, owner.answers = [of_standby(not_owner(owner.url))], [good(APPEND)]
    with Client([standby.url, owner.url], any=True) as client:
        client.append("a", [1])
        client.append("a", [1])
    assert (len(standby.sent), len(owner.sent)) == (reads[0] + 1, reads[1] + 2)


@pytest.mark.parametrize(
    ("missing", "kind"),
    [(failure(404, "topic_not_found", topic="a"), NotFound), (failure(409, "no_evidence", topic="a"), Conflict)],
    ids=["404", "no evidence"],
)
def test_with_any_the_owner_says_what_does_not_exist(
    tell: Any, scripts: Any, missing: Answer, kind: type[TopicsError]
) -> None:
    standby, owner = scripts(of_standby(missing)), scripts(good(READ))
    assert not isinstance(tried(tell, READ, standby, owner, any=True, retry=None), TopicsError)
    owner.answers = [missing]
    assert isinstance(tried(tell, READ, standby, owner, any=True, retry=None), kind)


def test_with_any_a_standby_that_is_behind_is_left(tell: Any, scripts: Any) -> None:
    standby, owner = scripts(of_standby(failure(503, "behind", "1"))), scripts(good(READ))
    for _ in range(4):
        assert not isinstance(tried(tell, READ, standby, owner, any=True), TopicsError)


def test_a_watch_with_any_tells_which_instances_it_knows(scripts: Any) -> None:
    session = {"wid": "w", "stream_url": "/v0/watch/w", "topics": {"a": {"from_seq": 3, "head_seq": 3, "epoch": 8}}}
    session["topics"]["a"]["earliest_seq"] = 1  # type: ignore[index]
    for any_of_them, start in ((True, {"from_seq": 3, "epoch": 8}), (False, {"from_seq": 3})):
        server = scripts(Answer(body=json.dumps(session).encode()), THROTTLED)
        with Client([server.url, "http://127.0.0.1:9"], any=any_of_them) as client:
            client._daemons._reads.at = 0
            tail = client.tail("a", (3, 8), give_up_after=0)
            with pytest.raises(TopicsError):
                next(tail)
        assert json.loads(server.sent[0].body)["topics"] == {"a": start}


# ----------------------------------------------------------------- nobody answers


@pytest.mark.parametrize("retry", [QUICK, None], ids=["repeats", "none"])
def test_an_error_tells_of_all_daemons(tell: Any, scripts: Any, retry: Retry | None) -> None:
    away, standby = f"http://127.0.0.1:{free_port()}", scripts(of_standby(not_owner(None)))
    waiting = Retry(give_up_after=0.2, first_wait=0.001, longest_wait=0.01) if retry else None
    for order in ([away, standby.url], [standby.url, away]):
        outcome = tried(tell, APPEND, *order, retry=waiting)
        assert isinstance(outcome, TopicsError)
        assert "no daemon answers as the owner" in str(outcome)
        assert away in str(outcome)
        assert f"{standby.url}: said so" in str(outcome)
    if retry is None:
        assert len(standby.sent) == 2


def test_daemons_that_all_fail_are_asked_in_rounds_with_waits_between(scripts: Any) -> None:
    first, second = scripts(failure(503, "not_ready")), scripts(failure(503, "not_ready"))
    with Client([first.url, second.url], retry=Retry(give_up_after=1, first_wait=0.2, longest_wait=0.4)) as client:
        began = time.monotonic()
        with pytest.raises(Unavailable):
            client.append("a", [1])
        assert time.monotonic() - began < 3
    assert 2 <= len(first.sent) <= 8, "a wait comes after each round"
    assert abs(len(first.sent) - len(second.sent)) <= 1


def test_a_probe_tries_each_daemon_once(tell: Any, scripts: Any) -> None:
    owner = scripts(good(HEALTH))
    away = f"http://127.0.0.1:{free_port()}"
    assert not isinstance(tried(tell, HEALTH, away, owner), TopicsError)
    assert isinstance(tried(tell, HEALTH, away, f"http://127.0.0.1:{free_port()}"), ConnectionFailed)


def test_an_upload_begins_at_the_owner(tell: Any, scripts: Any) -> None:
    ready = good(ACTS["readiness"])
    done = {"topic": "a", "first_seq": 1, "last_seq": 2, "count": 2, "batches": 1, "head_seq": 2, "created": False}
    standby = scripts(of_standby(ready))
    owner = scripts(ready, Answer(body=json.dumps(done | {"deduped_batches": 0}).encode()))

    async def story(client: Any) -> Any:
        return await client.ingest("a", [1, 2])

    tell(story, [standby.url, owner.url])
    assert [one.target.partition("?")[0] for one in standby.sent] == ["/v0/ready"]
    assert [one.method for one in owner.sent] == ["GET", "POST"]


# ----------------------------------------------------------------- the choice alone


def failing(choice: DaemonChoice, owner: str | None = None) -> tuple[str, bool]:
    """Make an attempt that fails: the daemon that was asked, and whether another one is asked at once."""
    attempt = choice.pick(calls.append("a", [1]))
    error = Unavailable(503, "not_owner", "no", {"owner": owner, "refused": True})
    attempt.failure(error)
    return attempt.url, error.elsewhere


def test_a_daemon_that_has_failed_is_not_asked_again_before_all_others() -> None:
    """The first one is gone, the second one still names it: the third one is the owner now."""
    choice = DaemonChoice(TOPICS, any=False, rng=Random(1))
    assert [failing(choice, TOPICS[0]) for _ in range(4)] == [
        (TOPICS[0], True),
        (TOPICS[1], True),
        (TOPICS[2], False),
        (TOPICS[0], True),
    ]


def test_failures_of_calls_that_overlap_move_on_once() -> None:
    choice = DaemonChoice(TOPICS, any=False, rng=Random(1))
    attempts = [choice.pick(calls.append("a", [1])) for _ in range(5)]
    for attempt in attempts:
        attempt.failure(ConnectionFailed("gone", outcome_unknown=False))
    assert choice.url == TOPICS[1]


@pytest.mark.parametrize("urls", ["http://a,", "http://a,ftp://b", ["http://a", ""], ["http://k:v@a"]])
def test_every_address_is_checked(urls: Any) -> None:
    with pytest.raises(ValueError, match="url: "):
        Client(urls)


def test_an_address_that_is_given_twice_counts_once() -> None:
    assert Client("http://a:1/, http://a:1/v0,http://b:1").connection.urls == ("http://a:1", "http://b:1")
