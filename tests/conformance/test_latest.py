"""The latest of each tag (`docs/spec/evidence.md` section 3): `keep_per_tag`, nulls, and `GET .../latest`."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.client import Client, error_of, invalid, running


def latest(client: Client, topic: str, **query: Any) -> dict[str, Any]:
    answer = client.get(f"/v0/topics/{topic}/latest", params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def table(client: Client, topic: str, prefix: str = "", **query: Any) -> dict[str, Any]:
    """All pages: the data by tag."""
    found: dict[str, Any] = {}
    cursor = None
    while True:
        page = latest(client, topic, prefix=prefix, **query, **({"cursor": cursor} if cursor else {}))
        tags = [record["$tag"] for record in page["records"]]
        assert tags == sorted(tags)
        assert found.keys().isdisjoint(tags)
        found |= {record["$tag"]: record["data"] for record in page["records"]}
        cursor = page.get("next_cursor")
        if cursor is None:
            return found


def tagged(client: Client, topic: str, **values: Any) -> dict[str, Any]:
    answer: dict[str, Any] = client.append(topic, records=[{"tag": tag, "data": data} for tag, data in values.items()])
    return answer


def left(client: Client, topic: str) -> list[tuple[int, Any]]:
    """The seqs and data that a diff shows; the figures say the same."""
    records = client.read(topic)["records"]
    state = client.state(topic)
    assert state["count"] == len(records)
    assert state["earliest_seq"] == (records[0]["$seq"] if records else state["head_seq"] + 1)
    return [(record["$seq"], record["data"]) for record in records]


def test_an_append_takes_older_records_of_its_tags_away(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, keep_per_tag=1)
    tagged(client, topic, a=1, b=2)
    tagged(client, topic, a=3)
    client.append(topic, records=[{"data": 4}, {"tag": "b", "data": 5}, {"tag": "b", "data": 6}, {"data": 7}])
    assert left(client, topic) == [(3, 3), (4, 4), (6, 6), (7, 7)]
    read = client.read(topic)
    assert read["tombstone"] is None
    assert read["head_seq"] == 7


def test_more_than_one_record_of_a_tag_can_be_kept(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, keep_per_tag=2)
    for i in range(5):
        tagged(client, topic, a=i, b=10 + i)
    assert [data for _, data in left(client, topic)] == [3, 13, 4, 14]
    assert table(client, topic) == {"a": 4, "b": 14}


def test_a_null_takes_all_earlier_records_of_its_tag_away_and_goes_itself(client: Client, topic: str) -> None:
    client.put_topic(topic, keep_per_tag=3)
    tagged(client, topic, a=1, b=2)
    tagged(client, topic, a=3)
    tagged(client, topic, a=None)
    assert left(client, topic) == [(2, 2), (4, None)]
    tagged(client, topic, a=5)
    assert left(client, topic) == [(2, 2), (4, None), (5, 5)]
    tagged(client, topic, b=None)
    assert table(client, topic) == {"a": 5}
    client.put_topic(topic, null_ttl_ms=1)
    deadline = time.monotonic() + 20
    while left(client, topic) != [(5, 5)]:
        assert time.monotonic() < deadline, left(client, topic)
        time.sleep(0.05)
    assert client.read(topic)["tombstone"] is None


def test_setting_it_applies_to_what_is_there(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    for i in range(4):
        tagged(client, topic, a=i, b=None if i == 2 else 10 + i)
    client.append(topic, 99)
    assert client.put_topic(topic, keep_per_tag=2)["config"]["keep_per_tag"] == 2
    assert [data for _, data in left(client, topic)] == [2, None, 3, 13, 99]
    client.put_topic(topic, keep_per_tag=1)
    assert [data for _, data in left(client, topic)] == [3, 13, 99]
    client.put_topic(topic, keep_per_tag=0)
    tagged(client, topic, a=4)
    assert [data for _, data in left(client, topic)] == [3, 13, 99, 4]


def test_a_queue_has_no_such_setting(client: Client, topic: str) -> None:
    invalid(client.put(f"/v0/topics/{topic}", json={"type": "queue", "keep_per_tag": 1}), "keep_per_tag")
    client.put_topic(topic, type="queue", keep_per_tag=0, null_ttl_ms=5)


@pytest.mark.parametrize("keep", [0, 1, 2])
def test_the_newest_record_of_a_tag(client: Client, topic: str, keep: int) -> None:
    client.put_topic(topic, keep_per_tag=keep)
    client.append(topic, records=[{"tag": "a", "data": {"x": 1}, "meta": {"k": "v"}}, {"tag": "b", "data": 2}])
    tagged(client, topic, a=3, c=None)
    found = latest(client, topic, tag="a")
    assert found.keys() == {"topic", "epoch", "record", "head_seq"}
    assert (found["record"]["$seq"], found["record"]["$tag"], found["record"]["data"]) == (3, "a", 3)
    assert found["head_seq"] == 4
    assert "$tag" not in latest(client, topic, tag="a", include_tags="0")["record"]
    for tag, reason in (("c", "null"), ("z", "none")):
        answer = client.get(f"/v0/topics/{topic}/latest", params={"tag": tag})
        detail = error_of(answer, 404, "record_not_found")["detail"]
        assert detail == {"topic": topic, "tag": tag, "reason": reason}
    client.delete_records(topic, match="a")
    error_of(client.get(f"/v0/topics/{topic}/latest", params={"tag": "a"}), 404, "record_not_found")


@pytest.mark.parametrize("keep", [0, 1])
def test_a_table_comes_in_pages_in_the_order_of_its_tags(client: Client, topic: str, keep: int) -> None:
    client.put_topic(topic, keep_per_tag=keep)
    tags = ["b", "a", "ä", "a.x", "a.y", "€", "z"]
    client.append(topic, records=[{"tag": tag, "data": i} for i, tag in enumerate(tags)])
    client.append(topic, records=[{"tag": tag, "data": -i} for i, tag in enumerate(tags)])
    tagged(client, topic, z=None)
    expected = {tag: -i for i, tag in enumerate(tags) if tag != "z"}
    for size in (1, 2, 3, 100):
        assert table(client, topic, page_size=size) == expected
    assert table(client, topic, "a") == {tag: data for tag, data in expected.items() if tag.startswith("a")}
    assert table(client, topic, "a.", page_size=1) == {"a.x": -3, "a.y": -4}
    assert table(client, topic, "nothing") == {}
    page = latest(client, topic, prefix="", page_size=2)
    assert page["head_seq"] == 15
    assert page.keys() == {"topic", "epoch", "records", "head_seq", "next_cursor", "performance"}
    assert len(latest(client, topic, prefix="", max_batch_bytes=1)["records"]) == 1
    assert table(client, topic, max_batch_bytes=1) == expected
    assert all("$tag" not in record for record in latest(client, topic, prefix="", include_tags="0")["records"])


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "prefix"),
        ("tag=a&prefix=b", "prefix"),
        ("tag=", "tag"),
        ("tag=a&cursor=bDpi", "cursor"),
        ("prefix=&cursor=nonsense", "cursor"),
        ("prefix=&cursor=dDph", "cursor"),
        ("prefix=&page_size=x", "page_size"),
        ("prefix=&max_batch_bytes=-1", "max_batch_bytes"),
        ("tag=a&tag=b", "tag"),
        ("prefix=&include_tags=maybe", "include_tags"),
    ],
)
def test_bad_queries_are_refused(client: Client, topic: str, query: str, field: str) -> None:
    client.append(topic, 1)
    invalid(client.get(f"/v0/topics/{topic}/latest?{query}"), field)


def test_a_topic_that_does_not_exist(client: Client, topic: str) -> None:
    for query in ("tag=a", "prefix="):
        error_of(client.get(f"/v0/topics/{topic}/latest?{query}"), 404, "topic_not_found")


def test_routers_copy_what_is_left_and_copies_take_away_too(client: Client, topic: str) -> None:
    source, dest = f"{topic}-in", f"{topic}-out"
    client.put_topic(source, keep_per_tag=1)
    tagged(client, source, a=1, b=2)
    tagged(client, source, a=3)
    client.put_topic(dest, keep_per_tag=1)
    client.put(f"/v0/routers/{topic}", json={"source": source, "dest": dest, "from": "earliest"})
    assert table(client, dest) == {"a": 3, "b": 2}
    assert client.read(dest)["tombstone"] is None
    tagged(client, source, b=4)
    assert table(client, dest) == {"a": 3, "b": 4}
    assert client.state(dest)["count"] == 2


def test_reject_counts_what_is_there_before_an_append(client: Client, topic: str) -> None:
    client.put_topic(topic, keep_per_tag=1, cap_records=2, discard="reject")
    tagged(client, topic, a=1, b=2)
    answer = client.post(f"/v0/topics/{topic}", json={"records": [{"tag": "a", "data": 3}]})
    error_of(answer, 422, "topic_full")
    assert table(client, topic) == {"a": 1, "b": 2}


def test_superseded_records_make_room_before_a_cap_evicts(client: Client, topic: str) -> None:
    client.put_topic(topic, keep_per_tag=1, cap_records=3)
    tagged(client, topic, a=1, b=2, c=3)
    for i in range(4, 8):
        tagged(client, topic, b=i)
    assert table(client, topic) == {"a": 1, "b": 7, "c": 3}
    assert client.read(topic)["tombstone"] is None
    tagged(client, topic, d=8)
    assert table(client, topic) == {"b": 7, "c": 3, "d": 8}


def test_groups_miss_nothing_that_a_newer_record_has_taken_away(client: Client, topic: str) -> None:
    client.put_topic(topic, keep_per_tag=1)
    assert client.put(f"/v0/topics/{topic}/groups/g", json={"from": "earliest"}).status_code in (200, 201)
    tagged(client, topic, a=1, b=2)
    claimed = client.post(f"/v0/topics/{topic}/groups/g/claim", json={"node": "n", "max": 1}).json()["claimed"]
    assert [job["record"]["data"] if "record" in job else job["data"] for job in claimed] == [1]
    tagged(client, topic, a=3)
    state = client.get(f"/v0/topics/{topic}/groups/g").json()
    assert (state["missed"], state["queue"]["in_flight"], state["queue"]["ready"]) == (0, 0, 2)


@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.slow
def test_a_table_survives_a_kill(tmp_path: Path, durability: str) -> None:
    expected: dict[str, Any] = {}
    for life in range(3):
        with running(tmp_path) as client:
            client.put_topic("t", durability=durability, keep_per_tag=1)
            assert table(client, "t", page_size=7) == {tag: data for tag, data in expected.items() if data is not None}
            for i in range(30):
                tag = f"k{i * (life + 3) % 23}"
                expected[tag] = None if i % 11 == 5 else [life, i]
                tagged(client, "t", **{tag: expected[tag]})
                if i % 10 == 9:
                    assert client.post("/v0/admin/checkpoint").status_code == 200
            assert client.state("t")["count"] == len(expected)
