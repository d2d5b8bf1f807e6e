"""`docs/spec/consumers.md` section 2: filters on every way of reading, against the real daemon."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio

from tests.conformance.bulk_client import export, export_arrow
from tests.conformance.client import Client, body_of, checkpoint, error_of, fresh_name, invalid, running, seqs_of, until
from tests.conformance.router_client import put_router, router_of
from tests.conformance.sse import Frame, stream, stream_path, watching
from tests.conformance.websocket import subscribed
from tests.filters import oracle
from tests.filters.oracle import Written
from topics.client import AsyncClient, Record
from topics.client import Client as PythonClient

RECORDS: list[dict[str, Any]] = [
    {"data": {"total": 5, "by": "ann"}, "tag": "eu:1", "node": "a"},
    {"data": {"total": 10.0, "by": "bob"}, "tag": "eu:2", "node": "b", "meta": {"k": "v"}},
    {"data": {"total": "11"}, "tag": "us:1", "meta": {"k": "w"}},
    {"data": [1, {"by": "ann"}]},
    {"data": {"total": 9007199254740993}, "tag": "eu:1"},
    {"data": None, "tag": "eu"},
    {"data": {"total": None, "by": "añn"}, "node": "a"},
]

FILTERS: list[Any] = [
    ["tag", "Eq", "eu:1"],
    ["tag", "Glob", "eu:*"],
    ["tag", "In", ["us:1", "eu"]],
    ["Not", ["tag", "Glob", "eu*"]],
    ["node", "Eq", "a"],
    ["node", "In", ["b", "c"]],
    ["meta", "k", "Eq", "v"],
    ["meta", "k", "Exists", False],
    ["data", "/total", "Ge", 10],
    ["data", "/total", "Ne", 5],
    ["data", "/total", "Eq", 9007199254740992],
    ["data", "/total", "Exists", True],
    ["data", "/1/by", "Eq", "ann"],
    ["data", "/by", "Glob", "añ*"],
    ["data", "", "Eq", None],
    ["Not", ["data", "/total", "Lt", 100]],
    ["And", ["tag", "Glob", "eu:*"], ["data", "/total", "Ge", 10]],
    ["Or", ["tag", "Eq", "eu"], ["data", "/by", "In", ["ann", "bob"]]],
]


@pytest.fixture(scope="module")
def orders(client: Client) -> str:
    """A topic with `RECORDS` under the seqs from 1 on."""
    name = fresh_name("orders")
    client.append(name, records=RECORDS)
    return name


def matching(wanted: Any) -> list[int]:
    """The seqs of `RECORDS` that match."""
    exact = oracle.decoded(json.dumps(wanted))
    return [seq for seq, record in enumerate(RECORDS, 1) if oracle.matches(exact, written(record))]


def written(record: dict[str, Any]) -> Written:
    meta = json.dumps(record["meta"]).encode() if "meta" in record else None
    return Written(json.dumps(record["data"]).encode(), record.get("tag"), record.get("node"), meta)


def in_query(wanted: Any) -> str:
    return "filter=" + quote(json.dumps(wanted))


@pytest.mark.parametrize("wanted", FILTERS, ids=json.dumps)
def test_a_diff_has_what_matches_and_the_cursor_behind_the_rest(client: Client, orders: str, wanted: Any) -> None:
    posted = client.read(orders, filter=wanted)
    assert seqs_of(posted) == matching(wanted)
    assert (posted["next_from_seq"], posted["caught_up"], posted["lag"]) == (len(RECORDS), True, 0)
    gotten = body_of(client.get(f"/v0/topics/{orders}/diff?{in_query(wanted)}"))
    assert gotten["records"] == posted["records"]


def test_a_filter_and_left_out_nodes_both_count(client: Client, orders: str) -> None:
    assert seqs_of(client.read(orders, filter=["data", "/total", "Exists", True], node="a")) == [2, 3, 5]


def test_null_is_no_filter(client: Client, orders: str) -> None:
    assert seqs_of(client.read(orders, filter=None)) == list(range(1, len(RECORDS) + 1))


def test_a_bad_filter_is_named_by_its_place(client: Client, orders: str) -> None:
    bad = ["And", ["tag", "Eq", "a"], ["data", "total", "Eq", 1]]
    refused = client.post(f"/v0/topics/{orders}/diff", json={"filter": bad})
    assert error_of(refused, 400)["detail"]["field"] == "filter[2][1]"
    for query in (in_query(bad), "filter=", "filter=x", in_query(["tag"]) + "&" + in_query(["tag"])):
        assert client.get(f"/v0/topics/{orders}/diff?{query}").status_code == 400


def test_a_diff_ends_where_it_has_looked_at_enough(tmp_path: Path) -> None:
    with running(tmp_path, max_scan=10) as client:
        client.append("t", records=[{"data": n, "tag": "rare" if n == 45 else "often"} for n in range(1, 51)])
        began = time.monotonic()
        answer = client.read("t", filter=["data", "", "Eq", 45], wait_ms=20_000)
        assert time.monotonic() - began < 10
        assert (answer["records"], answer["next_from_seq"], answer["caught_up"], answer["lag"]) == ([], 10, False, 40)
        assert answer["performance"]["records_scanned"] == 10
        answer = client.read("t", 40, filter=["data", "", "Eq", 45])
        assert (seqs_of(answer), answer["next_from_seq"], answer["caught_up"]) == ([45], 50, True)
        # What the tag index skips does not count.
        answer = client.read("t", filter=["tag", "Eq", "rare"])
        assert (seqs_of(answer), answer["next_from_seq"], answer["caught_up"]) == ([45], 50, True)
        assert answer["performance"]["records_scanned"] == 1


def test_a_poll_waits_for_what_matches(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "a"}])
    answer = client.read(topic, 1, filter=["tag", "Eq", "b"], wait_ms=1)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 1, True)


# --- live -------------------------------------------------------------------------------------------------------------


def got(frames: list[Frame], topic: str) -> list[int]:
    """The seqs of a topic, and that the rest moved the cursor without a word."""
    mine = [frame for frame in frames if frame.topic == topic]
    assert {frame.event for frame in mine} <= {"record", "caught-up", "caught_up"}
    return [seq for frame in mine if frame.event == "record" for seq in frame.seqs]


@pytest.mark.parametrize("wanted", FILTERS, ids=json.dumps)
def test_every_way_of_reading_gives_the_same(client: Client, orders: str, wanted: Any) -> None:
    expected = matching(wanted)
    text = json.dumps(wanted)
    assert export(client, orders, filter=text).seqs == expected
    assert export_arrow(client, orders, filter=text).seqs == expected
    with stream(client, orders, filter=text) as events:
        assert got(events.until_caught_up(orders), orders) == expected
    with watching(client, topics={orders: {"filter": wanted}}) as events:
        assert got(events.until_caught_up(orders), orders) == expected
    with watching(client, orders, filter=wanted) as events:
        assert got(events.until_caught_up(orders), orders) == expected
    with subscribed(client, orders, filter=wanted) as socket:
        assert got(socket.until_caught_up(orders), orders) == expected
    with subscribed(client, topics={orders: {"filter": wanted}}) as socket:
        assert got(socket.until_caught_up(orders), orders) == expected


@pytest.mark.parametrize("wanted", FILTERS, ids=json.dumps)
def test_a_router_copies_what_matches(client: Client, wanted: Any) -> None:
    source, dest, router = fresh_name("source"), fresh_name("dest"), fresh_name("router")
    put_router(client, router, source, dest, filter=wanted, **{"from": "earliest"})
    assert router_of(client, router)["filter"] == wanted
    client.append(source, records=RECORDS)
    until(lambda: router_of(client, router)["cursor_seq"] == len(RECORDS))
    copies = client.read(dest)["records"]
    assert [copy["data"] for copy in copies] == [RECORDS[seq - 1]["data"] for seq in matching(wanted)]


def test_live_records_that_do_not_match_are_not_announced(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "no"}])
    wanted = ["tag", "Eq", "yes"]
    with stream(client, topic, filter=json.dumps(wanted)) as one, watching(client, topic, filter=wanted) as other:
        for events in (one, other):
            assert events.expect("caught-up").cursors == {topic: 1}
        client.append(topic, records=[{"data": 2, "tag": "no"}])
        client.append(topic, records=[{"data": 3, "tag": "yes"}, {"data": 4, "tag": "no"}])
        for events in (one, other):
            frame = events.expect("record", from_seq=1, to_seq=4)
            assert frame.seqs == [3]


def test_watchers_with_other_filters_get_other_records(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 0}])
    wishes = [["data", "", "Ge", n] for n in (1, 2, 3, 2)]
    opened = [stream(client, topic, from_seq=1, filter=json.dumps(wish)) for wish in wishes]
    try:
        for events in opened:
            events.expect("caught-up")
        client.append(topic, 1, 2, 3)
        assert [events.expect("record", to_seq=4).seqs for events in opened] == [[2, 3, 4], [3, 4], [4], [3, 4]]
    finally:
        for events in opened:
            events.close()


def test_the_filters_of_a_session_and_of_a_topic_are_both_kept(client: Client, orders: str) -> None:
    both = [["tag", "Glob", "eu:*"], ["data", "/total", "Ge", 10]]
    with watching(client, topics={orders: {"filter": both[0]}}, filter=both[1]) as events:
        assert got(events.until_caught_up(orders), orders) == matching(["And", *both])


def test_an_export_keeps_its_match_beside_the_filter(client: Client, orders: str) -> None:
    found = export(client, orders, match="eu:*", filter=json.dumps(["data", "/total", "Ge", 10]))
    assert found.seqs == matching(["And", ["tag", "Glob", "eu:*"], ["data", "/total", "Ge", 10]])


def test_a_bad_filter_is_refused_everywhere(client: Client, orders: str) -> None:
    bad = ["tag", "Ne", "x"]
    for path in (stream_path(orders, filter=json.dumps(bad)), f"/v0/topics/{orders}/records?{in_query(bad)}"):
        invalid(client.get(path), "filter[1]")
    invalid(client.post("/v0/watch", json={"topics": {orders: {}}, "filter": bad}), "filter[1]")
    invalid(client.post("/v0/watch", json={"topics": {orders: {"filter": bad}}}), f"topics.{orders}.filter[1]")
    invalid(client.put("/v0/routers/bad", json={"source": "a", "dest": "b", "filter": bad}), "filter[1]")
    with subscribed(client, orders) as socket:
        answer = socket.ask("subscribe", topic=orders, filter=bad)
        assert (answer["op"], answer["detail"]["field"]) == ("error", "filter[1]")


def test_numbers_of_a_router_survive_a_restart_exactly(tmp_path: Path) -> None:
    wanted = '["data","/n","Gt",9007199254740992.5]'
    with running(tmp_path) as client:
        content = f'{{"source":"a","dest":"b","from":"earliest","filter":{wanted}}}'
        client.put("/v0/routers/r", content=content, headers={"content-type": "application/json"})
        client.append("a", {"n": 9007199254740992})
    with running(tmp_path) as client:
        client.append("a", {"n": 9007199254740993})
        until(lambda: router_of(client, "r")["cursor_seq"] == 2)
        assert [copy["data"] for copy in client.read("b")["records"]] == [{"n": 9007199254740993}]
        assert wanted in client.get("/v0/routers/r").text


def test_filters_go_on_across_segments_deletions_and_evictions(tmp_path: Path) -> None:
    with running(tmp_path, segment_max_events=50, checkpoint_ms=50, cache_bytes=20_000, max_scan=40) as client:
        client.put_topic("t", cap_records=900)
        for start in range(1, 1201, 100):
            batch = [{"data": {"n": n}, "tag": f"k{n % 100}"} for n in range(start, start + 100)]
            client.append("t", records=batch)
        client.post("/v0/topics/t/delete", json={"match": ["tag", "Eq", "k7"]})
        checkpoint(client)
        alive = [n for n in range(301, 1201) if n % 100 != 7]
        cases: list[tuple[Any, list[int]]] = [
            (["tag", "In", ["k3", "k7"]], [n for n in alive if n % 100 == 3]),
            (["tag", "Glob", "k1*"], [n for n in alive if str(n % 100).startswith("1")]),
            (["data", "/n", "Ge", 1150], [n for n in alive if n >= 1150]),
        ]
        for wanted, expected in cases:
            seqs, gaps, position = [], [], 0
            while True:
                answer = client.read("t", position, filter=wanted)
                seqs += seqs_of(answer)
                gaps += [answer["tombstone"]] if answer["tombstone"] else []
                assert answer["performance"]["records_scanned"] <= 40
                position = answer["next_from_seq"]
                if answer["caught_up"]:
                    break
            assert seqs == expected
            assert [(gap["gap_from"], gap["gap_to"]) for gap in gaps] == [(1, 300)]
            assert export(client, "t", filter=json.dumps(wanted)).seqs == expected
            with stream(client, "t", from_seq=300, filter=json.dumps(wanted)) as events:
                assert got(events.until_caught_up("t"), "t") == expected


# --- clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wanted", FILTERS, ids=json.dumps)
def test_the_python_clients_pass_filters_on(client: Client, orders: str, wanted: Any) -> None:
    expected = matching(wanted)
    with PythonClient(str(client.base_url)) as python:
        for given in (wanted, json.dumps(wanted)):
            assert [record.seq for record in records_of(python.read(orders, filter=given))] == expected
            assert [record.seq for record in records_of(python.export(orders, filter=given))] == expected
        assert [record.seq for record in python.diff(orders, filter=wanted).records] == expected
        with python.tail(orders, filter=wanted, caught_up=True) as following:
            seqs = []
            for value in following:
                if not isinstance(value, Record):
                    break
                seqs.append(value.seq)
            assert seqs == expected

    async def read() -> list[int]:
        async with AsyncClient(str(client.base_url)) as python:
            return [value.seq async for value in python.read(orders, filter=wanted) if isinstance(value, Record)]

    assert trio.run(read) == expected


def records_of(values: Iterable[Any]) -> list[Record]:
    return [value for value in values if isinstance(value, Record)]


def command(client: Client, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "topics", *words, "--url", str(client.base_url)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_command_takes_filters_as_text(client: Client, orders: str) -> None:
    text = 'tag ~ "eu:*" and data./total >= 10'
    for words in (["read", orders], ["tail", orders, "-n", "100"], ["read", orders, "--last", "5"]):
        done = command(client, *words, "--json", "--filter", text)
        assert done.returncode == 0, done.stderr
        assert [json.loads(line)["$seq"] for line in done.stdout.splitlines()] == [2, 5]
    refused = command(client, "read", orders, "--filter", "total >= 10")
    assert refused.returncode == 2
    assert "at character 1 ('total >= 10'): expected tag, node, meta, data" in " ".join(refused.stderr.split())
