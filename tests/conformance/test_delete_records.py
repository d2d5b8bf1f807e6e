"""Section 6, and the match forms of section 1."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, invalid, seqs_of

ANSWER = {"topic", "deleted", "earliest_seq", "head_seq", "count", "bytes", "performance"}


def test_everything_below_a_seq_is_deleted(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, 1, 2, 3, 4, 5)
    answer = client.delete_records(topic, before_seq=4)
    assert set(answer) == ANSWER
    assert (answer["topic"], answer["deleted"], answer["earliest_seq"], answer["head_seq"]) == (topic, 3, 4, 5)
    assert (answer["count"], answer["bytes"]) == (2, 2)
    assert data_of(client.read(topic)) == [4, 5]
    assert client.delete_records(topic, before_seq=4)["deleted"] == 0
    assert client.delete_records(topic, before_seq=6)["deleted"] == 2
    assert client.append(topic, 6)["seqs"] == [6]


@pytest.mark.parametrize(
    ("match", "gone"),
    [
        (["tag", "Eq", "ab"], ["ab"]),
        ("ab", ["ab"]),
        ("a*", ["a*"]),
        (["tag", "Eq", "a*"], ["a*"]),
        (["tag", "Glob", "a*"], ["a", "ab", "abc", "a*", "a*b"]),
        (["tag", "Glob", "a**"], ["a*", "a*b"]),
        (["tag", "Glob", "ab*"], ["ab", "abc"]),
        (["tag", "Glob", "*"], ["a", "ab", "abc", "a*", "a*b", "b", "B", "é"]),
        (["tag", "Glob", "é*"], ["é"]),
        (["tag", "Glob", "x*"], []),
        ("x", []),
        ("*", []),
        (["tag", "Eq", "b"], ["b"]),
    ],
    ids=str,
)
def test_a_match_deletes_what_it_matches(
    client: Client, topic: str, durability: str, match: Any, gone: list[str]
) -> None:
    tags = ["a", None, "ab", "abc", "a*", "b", "a*b", "B", None, "é"]
    client.put_topic(topic, durability=durability)
    client.tagged(topic, *tags)
    answer = client.delete_records(topic, match=match)
    assert answer["deleted"] == len(gone)
    assert answer["count"] == len(tags) - len(gone)
    left = [tag for tag in tags if tag not in gone]
    read = client.read(topic, include_tags=True)
    assert [record.get("$tag") for record in read["records"]] == left
    assert read["tombstone"] is None
    assert read["caught_up"] is True
    assert read["next_from_seq"] == read["head_seq"] == len(tags)


@pytest.mark.parametrize(
    "match",
    [
        ["tag", "Glob", "ab"],
        ["tag", "Glob", ""],
        ["tag", "Glob", "*a"],
        ["tag", "Glob", "a*b"],
        ["tag", "Ne", "a"],
        ["tag", "eq", "a"],
        ["tag", "glob", "a*"],
        ["Tag", "Eq", "a"],
        ["node", "Eq", "a"],
        ["$tag", "Eq", "a"],
        ["tag", "Eq"],
        ["tag", "Eq", "a", "b"],
        ["tag", "Eq", 1],
        ["tag", "Eq", None],
        ["tag", ["Eq"], "a"],
        ["tag"],
        [],
        {},
        {"tag": "a"},
        1,
        True,
        [["tag", "Eq", "a"]],
    ],
    ids=str,
)
def test_any_other_match_is_400_and_deletes_nothing(client: Client, match: Any) -> None:
    client.put_topic("matched")
    client.tagged("matched", "a")
    count = client.state("matched")["count"]
    invalid(client.post("/v0/topics/matched/delete", json={"match": match}), "match")
    invalid(client.post("/v0/topics/matched/delete", json={"match": match, "before_seq": 100}), "match")
    assert client.state("matched")["count"] == count


def test_both_delete_what_fulfils_both(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "a", "b", "a", None)
    answer = client.delete_records(topic, match=["tag", "Glob", "a*"], before_seq=4)
    assert (answer["deleted"], answer["earliest_seq"], answer["count"]) == (2, 2, 4)
    assert seqs_of(client.read(topic)) == [2, 4, 5, 6]
    answer = client.delete_records(topic, match="a", before_seq=4)
    assert answer["deleted"] == 0


@pytest.mark.parametrize("body", [{}, {"colour": "red"}])
def test_neither_is_400(client: Client, topic: str, body: Any) -> None:
    client.append(topic, 1)
    error_of(client.post(f"/v0/topics/{topic}/delete", json=body), 400, "invalid_request")
    assert client.state(topic)["count"] == 1


@pytest.mark.parametrize("fields", [{"match": "a"}, {"before_seq": 1000}, {"match": ["tag", "Glob", "*"]}], ids=str)
def test_only_records_present_at_the_call_are_deleted(client: Client, topic: str, fields: dict[str, Any]) -> None:
    client.tagged(topic, "a", "a")
    assert client.delete_records(topic, **fields)["deleted"] == 2
    client.tagged(topic, "a")
    assert seqs_of(client.read(topic)) == [3]
    assert client.delete_records(topic, **fields)["deleted"] == 1


@pytest.mark.parametrize("before", [0, 1])
def test_nothing_is_below_the_first_seq(client: Client, topic: str, before: int) -> None:
    client.append(topic, 1)
    assert client.delete_records(topic, before_seq=before)["deleted"] == 0
    assert client.state(topic)["count"] == 1


def test_deletion_is_silent(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "c", "b", "d")
    client.delete_records(topic, before_seq=2)
    client.delete_records(topic, match="b")
    client.delete_records(topic, match="d")
    for from_seq in range(6):
        answer = client.read(topic, from_seq)
        assert answer["tombstone"] is None
        assert seqs_of(answer) == ([3] if from_seq < 3 else [])
        assert (answer["next_from_seq"], answer["caught_up"]) == (5, True)
    client.delete_records(topic, match="c")
    answer = client.read(topic)
    assert (answer["tombstone"], answer["records"], answer["caught_up"]) == (None, [], True)
    assert (answer["earliest_seq"], answer["head_seq"]) == (6, 5)


def test_a_deletion_at_the_front_moves_the_earliest_over_older_deletions(client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b", "b", "c")
    assert client.delete_records(topic, match="b")["earliest_seq"] == 1
    assert client.delete_records(topic, match="a")["earliest_seq"] == 4


def test_a_large_match_is_applied_at_once(client: Client, topic: str) -> None:
    for _ in range(3):
        body = {"records": [{"data": 1, "tag": f"t{number % 7}"} for number in range(10_000)]}
        body_of(client.post(f"/v0/topics/{topic}?return_seqs=0", json=body), 200, 201)
    answer = client.delete_records(topic, match=["tag", "Glob", "t*"])
    assert (answer["deleted"], answer["count"], answer["bytes"], answer["earliest_seq"]) == (30_000, 0, 0, 30_001)
    assert client.read(topic)["records"] == []
    client.tagged(topic, "t1")
    assert seqs_of(client.read(topic, 29_990)) == [30_001]


def test_the_end_of_a_topic_is_deleted_and_its_numbers_stay_used(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, 1, 2, 3, 4, 5)
    answer = client.delete_records(topic, after_seq=3)
    assert (answer["deleted"], answer["earliest_seq"], answer["head_seq"], answer["count"]) == (2, 1, 5, 3)
    assert client.delete_records(topic, after_seq=5)["deleted"] == 0
    assert client.append(topic, 6)["seqs"] == [6]
    assert seqs_of(client.read(topic)) == [1, 2, 3, 6]
    assert client.read(topic, 3)["tombstone"] is None


def test_one_record_is_deleted_by_its_seq(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, 3)
    assert client.delete_records(topic, after_seq=1, before_seq=3)["deleted"] == 1
    assert client.delete_records(topic, after_seq=2, before_seq=2)["deleted"] == 0
    assert seqs_of(client.read(topic)) == [1, 3]


def test_records_before_a_time_are_deleted(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b")
    time.sleep(0.01)
    client.tagged(topic, "a", "b")
    middle = client.read(topic, 2)["records"][0]["$ts"]
    assert client.delete_records(topic, before_ts=0)["deleted"] == 0
    assert client.delete_records(topic, before_ts=middle, match="a")["deleted"] == 1
    assert client.delete_records(topic, before_ts=middle)["deleted"] == 1
    assert client.delete_records(topic, before_ts=2**64 - 1, after_seq=3)["deleted"] == 1
    assert seqs_of(client.read(topic)) == [3]


@pytest.mark.parametrize("field", ["after_seq", "before_seq", "before_ts"])
@pytest.mark.parametrize("value", [-1, 2**64, "1", 1.5, True, None])
def test_a_bound_is_a_whole_number(client: Client, topic: str, field: str, value: Any) -> None:
    client.append(topic, 1)
    invalid(client.post(f"/v0/topics/{topic}/delete", json={field: value, "match": "x"}), field)
    assert client.state(topic)["count"] == 1
