"""Sections 5 and semantics 3: involuntary loss is announced, exactly, and nothing else is."""

from __future__ import annotations

import time
from typing import Any

from tests.conformance.client import Client, data_of, seqs_of

FIELDS = {"gap_from", "gap_to", "reason", "missed_estimate", "earliest_seq", "head_seq"}


def gap_of(answer: Any) -> tuple[int, int, str, int]:
    tombstone = answer["tombstone"]
    assert set(tombstone) == FIELDS
    assert (tombstone["earliest_seq"], tombstone["head_seq"]) == (answer["earliest_seq"], answer["head_seq"])
    return tombstone["gap_from"], tombstone["gap_to"], tombstone["reason"], tombstone["missed_estimate"]


def test_what_a_cap_evicted_is_announced(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=2)
    client.append(topic, *range(1, 6))
    answer = client.read(topic)
    assert gap_of(answer) == (1, 3, "cap", 3)
    assert (seqs_of(answer), answer["caught_up"], answer["next_from_seq"]) == ([4, 5], True, 5)
    assert gap_of(client.read(topic, 1)) == (2, 3, "cap", 2)
    assert gap_of(client.read(topic, 2)) == (3, 3, "cap", 1)
    assert client.read(topic, 3)["tombstone"] is None
    assert client.read(topic, 5)["tombstone"] is None


def test_what_expired_is_announced(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=60)
    client.append(topic, 1, 2)
    time.sleep(0.1)
    answer = client.read(topic)
    assert gap_of(answer) == (1, 2, "ttl", 2)
    assert (answer["records"], answer["caught_up"], answer["next_from_seq"]) == ([], True, 2)
    assert (answer["earliest_seq"], answer["head_seq"]) == (3, 2)
    assert client.read(topic, 2)["tombstone"] is None


def test_more_than_one_cause_is_mixed(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=3)
    client.append(topic, *range(1, 6))
    time.sleep(1.05)
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 6)
    answer = client.read(topic)
    assert gap_of(answer) == (1, 5, "mixed", 5)


def test_deleted_records_are_not_missed(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, *range(1, 6))
    client.delete_records(topic, before_seq=3)
    client.put_topic(topic, cap_records=2)
    answer = client.read(topic)
    assert gap_of(answer) == (1, 3, "cap", 1)
    assert seqs_of(answer) == [4, 5]


def test_a_deletion_after_the_evicted_ones_is_silent_for_who_is_past_them(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=4)
    client.append(topic, *range(1, 7))
    client.delete_records(topic, before_seq=5)
    answer = client.read(topic)
    assert gap_of(answer) == (1, 4, "cap", 2)
    assert seqs_of(answer) == [5, 6]
    for from_seq in (2, 3, 4):
        answer = client.read(topic, from_seq)
        assert answer["tombstone"] is None
        assert seqs_of(answer) == [5, 6]


def test_eviction_after_a_deletion_in_the_middle(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.tagged(topic, "a", "b", "a")
    client.delete_records(topic, match="b")
    client.tagged(topic, "c", "d")
    answer = client.read(topic)
    assert gap_of(answer) == (1, 2, "cap", 1) or gap_of(answer) == (1, 1, "cap", 1)
    assert seqs_of(answer) == [3, 4, 5]


def test_the_front_is_announced_also_when_the_node_is_filtered(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=1)
    client.append(topic, 1, 2, node="n")
    answer = client.read(topic, node="n")
    assert gap_of(answer)[:3] == (1, 1, "cap")
    assert (answer["records"], answer["next_from_seq"]) == ([], 2)


def test_a_reader_beyond_the_head_knows_another_instance(client: Client, topic: str) -> None:
    client.append(topic, "a", "b")
    for from_seq in (3, 1000, 2**64 - 1):
        answer = client.read(topic, from_seq)
        assert gap_of(answer)[:3] == (1, 2, "recreated")
        assert data_of(answer) == ["a", "b"]
        assert (answer["next_from_seq"], answer["caught_up"]) == (2, True)


def test_a_reader_of_an_empty_topic_that_knows_another_instance(client: Client, topic: str) -> None:
    client.put_topic(topic)
    answer = client.read(topic, 5)
    assert gap_of(answer)[:3] == (1, 0, "recreated")
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 0, True)


def test_a_reader_with_another_epoch_starts_anew(client: Client, topic: str) -> None:
    client.append(topic, "a", "b")
    epoch = client.state(topic)["epoch"]
    for from_seq in (0, 1, 2, 7):
        answer = client.read(topic, from_seq, epoch=epoch + 1)
        assert gap_of(answer)[:3] == (1, 2, "recreated")
        assert data_of(answer) == ["a", "b"]
    assert client.read(topic, 1, epoch=epoch)["tombstone"] is None


def test_recreated_describes_the_new_instance_whatever_it_has_evicted(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    answer = client.read(topic, 77)
    assert gap_of(answer)[:3] == (1, 5, "recreated")
    assert seqs_of(answer) == [4, 5]
    answer = client.read(topic, 5, epoch=client.state(topic)["epoch"] + 1)
    assert gap_of(answer)[:3] == (1, 5, "recreated")
    assert seqs_of(answer) == [4, 5]


def test_a_tombstone_comes_with_as_many_records_as_asked_for(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    answer = client.read(topic, limit=1)
    assert gap_of(answer) == (1, 2, "cap", 2)
    assert len(answer["records"]) <= 1
    again = client.read(topic, answer["next_from_seq"])
    assert again["tombstone"] is None
    assert seqs_of(answer) + seqs_of(again) == [3, 4, 5]
