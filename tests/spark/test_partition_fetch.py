"""One partition, fetched from a real daemon: without Spark, over networks that break, with gaps in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.client.proxy import Fate, Proxy
from tests.conformance.client import Client, Daemon
from tests.spark.asked import asked
from topics.client import bulk
from topics.spark import partition_fetch
from topics.spark.errors import DaemonError, DataLoss
from topics.spark.options import DaemonAccess as Where
from topics.spark.options import ReadOptions
from topics.spark.partition_fetch import FetchRequest, fetch
from topics.spark.plan import RestPart
from topics.spark.pushdown import QueryScope
from topics.spark.schema import arrow_schema

pytestmark = pytest.mark.slow


@pytest.fixture(params=["arrow", "lines"])
def either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the daemon sends it with pyarrow, and without."""
    if request.param == "lines":
        monkeypatch.setattr(partition_fetch, "ACCEPT", bulk.LINES)


def wanted(**texts: str) -> FetchRequest:
    options = ReadOptions.parsed({"url": "http://127.0.0.1:1", "topic": "t"} | texts)
    return FetchRequest.by(options, QueryScope.of(options))


def whole(http: Client, topic: str) -> RestPart:
    state = http.state(topic)
    return RestPart(topic, 0, state["head_seq"], state["epoch"])


def rows(url: str, part: RestPart, want: FetchRequest) -> list[dict[str, Any]]:
    return [row for batch in fetch(Where(url), part, want) for row in batch.to_pylist()]


def seqs(batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [seq for batch in batches for seq in batch.column("seq").to_pylist()]


def fill(http: Client, topic: str, count: int, size: int = 10) -> None:
    lines = b"".join(b'{"data":{"n":%d,"pad":"%s"}}\n' % (number, b"x" * size) for number in range(1, count + 1))
    answer = http.post(f"/v0/topics/{topic}", content=lines, headers={"content-type": bulk.LINES})
    assert answer.status_code in (200, 201), answer.text


@pytest.mark.usefixtures("either")
def test_a_record_is_a_row_with_all_that_it_has(daemon: Daemon, http: Client, topic: str) -> None:
    http.append(
        topic,
        records=[
            {"data": {"id": 1, "name": "Zoë"}, "tag": "eu", "node": "shop", "meta": {"a": "1", "b": "ü"}},
            {"data": None},
        ],
    )
    first, second = rows(daemon.url, whole(http, topic), wanted())
    expected = http.read(topic, include_tags=True)["records"]
    assert first["topic"] == topic
    assert (first["seq"], first["node"], first["tag"]) == (1, "shop", "eu")
    assert first["ts"].timestamp() * 1000 == pytest.approx(expected[0]["$ts"])
    assert dict(first["meta"]) == {"a": "1", "b": "ü"}
    assert first["data"] == '{"id":1,"name":"Zoë"}'
    assert second == {
        "topic": topic,
        "seq": 2,
        "ts": second["ts"],
        "node": None,
        "tag": None,
        "meta": None,
        "data": "null",
    }


@pytest.mark.usefixtures("either")
def test_a_range_comes_in_batches_of_the_schema_and_of_about_ten_thousand_rows(
    daemon: Daemon, http: Client, topic: str
) -> None:
    fill(http, topic, 25_000)
    part = RestPart(topic, 100, 24_900, whole(http, topic).epoch)
    batches = list(fetch(Where(daemon.url), part, wanted()))
    assert seqs(iter(batches)) == list(range(101, 24_901))
    assert all(batch.schema == arrow_schema(wanted().columns) for batch in batches)
    assert len(batches) <= 5


@pytest.mark.usefixtures("either")
def test_columns_come_in_the_order_asked_for(daemon: Daemon, http: Client, topic: str) -> None:
    http.append(topic, records=[{"data": 5, "tag": "eu"}])
    (batch,) = fetch(Where(daemon.url), whole(http, topic), wanted(columns="tag,topic,seq"))
    assert batch.schema == arrow_schema(["tag", "topic", "seq"])
    assert batch.to_pylist() == [{"tag": "eu", "topic": topic, "seq": 1}]


def test_a_writer_can_be_left_out(daemon: Daemon, http: Client, topic: str) -> None:
    for node in ("me", "you", "us"):
        http.append(topic, records=[{"data": node, "node": node}])
    found = rows(daemon.url, whole(http, topic), wanted(node='["me", "us"]', columns="node"))
    assert found == [{"node": "you"}]


@pytest.mark.usefixtures("either")
def test_what_does_not_match_the_filter_is_left_out(daemon: Daemon, http: Client, topic: str) -> None:
    http.append(topic, records=[{"data": {"n": n}, "tag": f"t{n % 2}"} for n in range(10)])
    part = whole(http, topic)
    found = rows(daemon.url, part, wanted(filter='["And",["data","/n","Ge",4],["tag","Eq","t0"]]', columns="data,tag"))
    assert found == [{"data": f'{{"n":{n}}}', "tag": "t0"} for n in (4, 6, 8)]
    assert rows(daemon.url, part, wanted(filter='tag = "none"')) == []


def test_a_filter_without_an_index_is_asked_in_steps(
    daemon: Daemon, http: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_fetch, "FILTER_STEP", 40)
    http.append(topic, records=[{"data": n, "tag": "t"} for n in range(1, 101)])
    part = RestPart(topic, 5, 99, whole(http, topic).epoch)
    with asked(http) as steps:
        assert seqs(fetch(Where(daemon.url), part, wanted(filter="data in (5, 6, 99, 100)"))) == [6, 99]
    assert (steps.exports_with_data, steps.seqs, steps.records) == (3, 94, 2)
    with asked(http) as whole_range:
        assert len(seqs(fetch(Where(daemon.url), part, wanted(filter='tag = "t"')))) == 94
    assert whole_range.exports_with_data == 1


ONE_STEP = 1500
"""Bytes of answers: more than those of one export without records, less than those of two."""


def test_steps_that_found_nothing_are_not_repeated_when_the_connection_breaks(
    daemon: Daemon, http: Client, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_fetch, "FILTER_STEP", 25)
    monkeypatch.setattr(partition_fetch, "REPEAT_FOR_S", 5.0)
    http.append(topic, *range(1, 101))
    with Proxy(daemon.port, lambda _: Fate(down=ONE_STEP)) as proxy, asked(http) as steps:
        assert seqs(fetch(Where(proxy.url), whole(http, topic), wanted(filter="data = 100"))) == [100]
    assert proxy.accepted > 1
    assert steps.seqs <= 100 + 25 * (proxy.accepted - 1)


@pytest.mark.usefixtures("either")
def test_an_export_that_breaks_goes_on_with_nothing_twice(daemon: Daemon, http: Client, topic: str) -> None:
    fill(http, topic, 8000, size=200)

    def fate(number: int) -> Fate:
        return Fate(down=700_000, reset=number % 2 == 0) if number < 3 else Fate()

    with Proxy(daemon.port, fate) as proxy:
        assert seqs(fetch(Where(proxy.url), whole(http, topic), wanted())) == list(range(1, 8001))
        assert proxy.accepted >= 3


def test_a_daemon_that_is_away_is_waited_for(daemon: Daemon, http: Client, topic: str) -> None:
    fill(http, topic, 100)
    part = whole(http, topic)
    with Proxy(daemon.port, lambda number: Fate(up=0) if number < 3 else Fate()) as proxy:
        assert seqs(fetch(Where(proxy.url), part, wanted())) == list(range(1, 101))
        assert proxy.accepted > 3


def test_a_daemon_that_stays_away_is_one_clear_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_fetch, "REPEAT_FOR_S", 0.2)
    with pytest.raises(DaemonError, match=r"reading topic 't': the daemon cannot be reached: http://127.0.0.1:1: .*"):
        rows("http://127.0.0.1:1", RestPart("t", 0, 5, 1), wanted())


def test_what_the_daemon_refuses_is_said_in_full(daemon: Daemon) -> None:
    with pytest.raises(DaemonError) as failure:
        rows(daemon.url, RestPart("-", 0, 5, 1), wanted())
    assert re.fullmatch(r"reading topic '-': .* \(400 invalid_request\) \{.*\}", str(failure.value))


# --- gaps ------------------------------------------------------------------------------------------------------------


def capped(http: Client, topic: str) -> RestPart:
    """What was there, of which retention has taken the first three of five."""
    http.put_topic(topic)
    http.append(topic, *range(1, 6))
    part = whole(http, topic)
    http.put_topic(topic, cap_records=2)
    return part


@pytest.mark.usefixtures("either")
def test_a_gap_in_the_range_fails_and_is_named(daemon: Daemon, http: Client, topic: str) -> None:
    with pytest.raises(DataLoss) as failure:
        rows(daemon.url, capped(http, topic), wanted())
    assert str(failure.value).startswith(f"data loss: the records 1 to 3 of topic '{topic}' are gone (reason: cap)")


@pytest.mark.usefixtures("either")
def test_a_gap_may_be_passed_over_with_a_warning(
    daemon: Daemon, http: Client, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    found = rows(daemon.url, capped(http, topic), wanted(failOnDataLoss="false"))
    assert [row["seq"] for row in found] == [4, 5]
    assert caplog.messages == [f"topic {topic}: the records 1 to 3 are gone (cap)"]


@pytest.mark.usefixtures("either")
def test_a_gap_may_be_a_row_in_its_place_cut_to_the_partition(daemon: Daemon, http: Client, topic: str) -> None:
    part = capped(http, topic)
    want = wanted(tombstones="true", columns="topic,seq,gap_from,gap_to,reason")
    gap = {"topic": topic, "seq": None, "gap_from": 1, "gap_to": 2, "reason": "cap"}
    assert rows(daemon.url, RestPart(topic, 0, 2, part.epoch), want) == [gap]
    second = rows(daemon.url, RestPart(topic, 2, 5, part.epoch), want)
    assert second[0] == gap | {"gap_from": 3, "gap_to": 3}
    assert [row["seq"] for row in second[1:]] == [4, 5]


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("nothing", ['tag = "none"', "data < 0"])
def test_a_gap_is_met_though_no_record_matches(daemon: Daemon, http: Client, topic: str, nothing: str) -> None:
    part = capped(http, topic)
    with pytest.raises(DataLoss, match="the records 1 to 3 of topic"):
        rows(daemon.url, part, wanted(filter=nothing))
    want = wanted(filter=nothing, tombstones="true", columns="seq,gap_from,gap_to,reason")
    assert rows(daemon.url, part, want) == [{"seq": None, "gap_from": 1, "gap_to": 3, "reason": "cap"}]
    http.delete_topic(topic)
    http.append(topic, -1)
    gone = {"seq": None, "gap_from": 1, "gap_to": 5, "reason": "recreated"}
    assert rows(daemon.url, part, want) == [gone]


@pytest.mark.usefixtures("either")
def test_what_somebody_has_deleted_is_no_gap(daemon: Daemon, http: Client, topic: str) -> None:
    http.append(topic, *range(1, 6))
    http.delete_records(topic, before_seq=4)
    assert [row["seq"] for row in rows(daemon.url, whole(http, topic), wanted())] == [4, 5]


@pytest.mark.usefixtures("either")
def test_nothing_of_another_instance_is_ever_delivered(daemon: Daemon, http: Client, topic: str) -> None:
    http.append(topic, "old", "old")
    part = whole(http, topic)
    http.delete_topic(topic)
    want = wanted(tombstones="true", columns="data,gap_from,gap_to,reason")
    gone = {"data": None, "gap_from": 1, "gap_to": 2}
    assert rows(daemon.url, part, want) == [gone | {"reason": "deleted"}]
    http.append(topic, "new", "new", "new")
    assert rows(daemon.url, part, want) == [gone | {"reason": "recreated"}]
    with pytest.raises(DataLoss, match=r"the records 1 to 2 of topic .* are gone \(reason: recreated\)"):
        rows(daemon.url, part, wanted())


def test_a_topic_that_is_made_anew_between_two_connections_ends_the_partition(
    daemon: Daemon, http: Client, topic: str
) -> None:
    fill(http, topic, 5000, size=400)
    part = whole(http, topic)

    def fate(number: int) -> Fate:
        if number == 1:
            http.delete_topic(topic)
            fill(http, topic, 10)
        return Fate(down=1_000_000) if number == 0 else Fate()

    with Proxy(daemon.port, fate) as proxy:
        found = rows(proxy.url, part, wanted(tombstones="true", columns="seq,data,gap_from,gap_to,reason"))
    *records, gap = found
    read = len(records)
    assert 0 < read < 5000
    assert [row["seq"] for row in records] == list(range(1, read + 1))
    assert gap == {"seq": None, "data": None, "gap_from": read + 1, "gap_to": 5000, "reason": "recreated"}
