"""Filters of named consumers (`docs/spec/consumers.md` sections 2 and 3), against the real daemon and the clients."""

from __future__ import annotations

import json
import signal
import time
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from tests.conformance.client import Client, body_of, checkpoint, fresh_name, invalid, running, seqs_of, until
from tests.conformance.router_client import metric
from tests.conformance.sse import Session, stream, watching
from tests.conformance.test_consumers import commit, path, put
from tests.conformance.test_filters import FILTERS, RECORDS, got, matching
from tests.conformance.websocket import subscribed
from topics.client import AsyncClient, Record
from topics.client import Client as TopicsClient

BIG = ["data", "/total", "Ge", 10]
ODD = '["data","/n","Gt",9007199254740992.50]'
"""No float is this number, and none is written like this."""


def put_text(client: Client, topic: str, consumer: str, content: str) -> Any:
    where, headers = path(topic, consumer), {"content-type": "application/json"}
    return body_of(client.put(where, content=content, headers=headers), 200, 201)


@pytest.fixture(scope="module")
def orders(client: Client) -> str:
    """A topic with `RECORDS` under the seqs from 1 on, and a consumer for each of `FILTERS`, at the beginning."""
    name = fresh_name("orders")
    client.append(name, records=RECORDS)
    for number, wanted in enumerate(FILTERS):
        put(client, name, f"c{number}", filter=wanted)
    return name


def test_a_filter_is_shown_kept_changed_and_taken_away(client: Client, topic: str) -> None:
    client.append(topic, 1)
    assert put(client, topic, filter=BIG)["filter"] == BIG
    assert put(client, topic, ttl_ms=60_000)["filter"] == BIG
    other = ["tag", "Eq", "x"]
    changed = put(client, topic, filter=other)
    assert (changed["filter"], changed["ttl_ms"]) == (other, 60_000)
    assert body_of(client.get(path(topic)))["filter"] == other
    (listed,) = body_of(client.get(f"/v0/topics/{topic}/consumers"))["consumers"]
    assert listed["filter"] == other
    invalid(client.put(path(topic), json={"filter": ["tag"]}), "filter[1]")
    assert body_of(client.get(path(topic)))["filter"] == other
    assert put(client, topic, filter=None)["filter"] is None


@pytest.mark.parametrize("has_snapshot", [True, False], ids=["snapshot", "log"])
def test_a_filter_survives_kills_as_it_was_written(tmp_path: Path, has_snapshot: bool) -> None:
    with running(tmp_path, checkpoint_ms=3_600_000) as client:
        client.append("t", *[{"n": 9007199254740992 + more} for more in range(2)])
        put_text(client, "t", "c", '{"from": "earliest", "filter": ' + ODD.replace(",", " , ") + "}")
        put(client, "t", "plain", filter=BIG)
        put(client, "t", "plain", filter=None)
        for _ in range(2):
            if has_snapshot:
                checkpoint(client)
            client = client.daemon.restart(signal.SIGKILL)
            assert f'"filter":{ODD}' in client.get(path("t")).text
            assert seqs_of(body_of(client.post("/v0/topics/t/diff", json={"consumer": "c"}))) == [2]
            assert body_of(client.get(path("t", "plain")))["filter"] is None
            assert seqs_of(body_of(client.post("/v0/topics/t/diff", json={"consumer": "plain"}))) == [1, 2]


@pytest.mark.parametrize("number", range(len(FILTERS)), ids=lambda number: json.dumps(FILTERS[number]))
def test_every_way_of_reading_combines_the_filters_by_and(client: Client, orders: str, number: int) -> None:
    consumer = f"c{number}"
    for also in (None, FILTERS[(number + 5) % len(FILTERS)]):
        more = {} if also is None else {"filter": also}
        text = {} if also is None else {"filter": json.dumps(also)}
        expected = matching(["And", FILTERS[number], *more.values()])
        posted = body_of(client.post(f"/v0/topics/{orders}/diff", json={"consumer": consumer, **more}))
        assert (seqs_of(posted), posted["next_from_seq"]) == (expected, len(RECORDS))
        query = f"consumer={consumer}" + "".join(f"&filter={quote(value)}" for value in text.values())
        assert seqs_of(body_of(client.get(f"/v0/topics/{orders}/diff?{query}"))) == expected
        with stream(client, orders, consumer=consumer, **text) as events:
            assert got(events.until_caught_up(orders), orders) == expected
        with watching(client, topics={orders: {"consumer": consumer, **more}}) as events:
            assert got(events.until_caught_up(orders), orders) == expected
        with watching(client, topics={orders: {"consumer": consumer}}, **more) as events:
            assert got(events.until_caught_up(orders), orders) == expected
        with subscribed(client, orders, consumer=consumer, **more) as socket:
            assert got(socket.until_caught_up(orders), orders) == expected


def test_filters_of_session_topic_and_consumer_all_count_also_at_their_limits(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    deep: Any = ["And", *[["data", "", "Ge", 2]] * 57]
    for _ in range(6):
        deep = ["And", deep]
    put(client, topic, filter=deep)
    others = [[*deep[:1], json.loads(json.dumps(deep[1]).replace('"Ge", 2', test))] for test in ('"Le", 7', '"Ne", 5')]
    with watching(client, topics={topic: {"consumer": "c", "filter": others[0]}}, filter=others[1]) as events:
        assert got(events.until_caught_up(topic), topic) == [3, 4, 5, 7, 8]


def test_a_change_counts_for_reads_that_begin_after_it(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}])
    put(client, topic, filter=["tag", "Eq", "a"])
    with (
        stream(client, topic, consumer="c") as streamed,
        watching(client, topics={topic: {"consumer": "c"}}) as watched,
        subscribed(client, topic, consumer="c") as socket,
    ):
        begun = (streamed, watched, socket)
        for events in begun:
            assert got(events.until_caught_up(topic), topic) == [1]
        put(client, topic, filter=["tag", "Eq", "b"])
        client.append(topic, records=[{"data": 3, "tag": "b"}])
        client.append(topic, records=[{"data": 4, "tag": "a"}])
        for events in begun:
            assert events.expect("record").seqs == [4]
    assert seqs_of(body_of(client.post(f"/v0/topics/{topic}/diff", json={"consumer": "c"}))) == [2, 3]
    with stream(client, topic, consumer="c") as again:
        assert got(again.until_caught_up(topic), topic) == [2, 3]


def test_a_session_that_is_resumed_keeps_its_filter_and_a_stream_begins_anew(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "a"}, {"data": 2, "tag": "b"}])
    put(client, topic, filter=["tag", "Eq", "a"])
    session = Session(client, topics={topic: {"consumer": "c"}})
    with session.open() as watched, stream(client, topic, consumer="c") as streamed:
        assert got(watched.until_caught_up(topic), topic) == got(streamed.until_caught_up(topic), topic) == [1]
    put(client, topic, filter=["tag", "Eq", "b"])
    client.append(topic, records=[{"data": 3, "tag": "b"}, {"data": 4, "tag": "a"}])
    with session.open(watched.last_id) as again:
        assert got(again.until_caught_up(topic), topic) == [4]
    with stream(client, topic, streamed.last_id, consumer="c") as anew:
        assert got(anew.until_caught_up(topic), topic) == [3]


def test_lag_commits_and_what_is_consumed_do_not_depend_on_filters(client: Client, topic: str) -> None:
    client.put_topic(topic, retention="consumed")
    client.append(topic, *range(10))
    put(client, topic, filter=["data", "", "Eq", 4])
    assert body_of(client.get(path(topic)))["lag"] == 10
    assert metric(client, "consumer_lag", topic=topic, consumer="c") == 10
    assert body_of(commit(client, topic, 3))["lag"] == 7
    until(lambda: client.state(topic)["earliest_seq"] == 4)
    assert client.state(topic)["count"] == 7
    assert seqs_of(body_of(client.post(f"/v0/topics/{topic}/diff", json={"consumer": "c"}))) == [5]


def test_what_does_not_match_is_passed_by_a_read_that_commits(tmp_path: Path) -> None:
    with running(tmp_path, max_scan=10) as client:
        client.append("t", *range(1, 26))
        put(client, "t", filter=["data", "", "Ge", 21])
        found = []
        for _ in range(3):
            wish = {"consumer": "c", "ack": "before", "wait_ms": 20_000}
            began = time.monotonic()
            page = body_of(client.post("/v0/topics/t/diff", json=wish))
            assert time.monotonic() - began < 10
            assert page["performance"]["records_scanned"] <= 10
            found.append((seqs_of(page), page["caught_up"], body_of(client.get(path("t")))["committed_seq"]))
        assert found == [([], False, 10), ([], False, 20), ([21, 22, 23, 24, 25], True, 25)]


# --- the clients ------------------------------------------------------------------------------------------------------


def test_clients_put_filters_and_consume_with_them(client: Client, topic: str) -> None:
    client.append(topic, *range(10))
    with TopicsClient(str(client.base_url)) as one:
        assert one.create_consumer(topic, "c", from_="earliest", filter=["data", "", "Ge", 4]).filter == [
            "data", "", "Ge", 4,
        ]  # fmt: skip
        assert [record.seq for record in one.read_consumer(topic, "c").records] == [5, 6, 7, 8, 9, 10]
        assert one.create_consumer(topic, "c").filter is not None
        for given, expected in (('["data","","In",[1,6,8]]', [2, 7]), (None, [2, 7]), ("null", [1, 2])):
            one.seek_consumer(topic, "c", "earliest")
            consumed = one.consume(topic, "c", filter=given)
            assert [record.seq for record in islice(consumed, 2) if isinstance(record, Record)] == expected
            consumed.close()  # type: ignore[attr-defined]
        assert one.consumer(topic, "c").filter is None

    async def consume() -> list[int]:
        found: list[int] = []
        async with AsyncClient(str(client.base_url)) as many:
            async for record in many.consume(topic, "d", from_="earliest", filter=["data", "", "In", [1, 6, 8]]):
                assert isinstance(record, Record)
                found.append(record.seq)
                if len(found) == 3:
                    return found
        return found

    assert trio.run(consume) == [2, 7, 9]
    assert body_of(client.get(path(topic, "d")))["filter"] == ["data", "", "In", [1, 6, 8]]
