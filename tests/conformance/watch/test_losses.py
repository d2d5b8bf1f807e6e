"""Section 6: tombstones, deletions, and topics that go."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.conformance.client import Client, fresh_name, until
from tests.conformance.sse import Covered, Session, all_open, covered, gauge, watching

# Tombstones


def test_what_was_evicted_before_is_too_old(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topic) as events:
        values = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 3, "earliest_seq": 4, "head_seq": 5}
        assert events.expect("tombstone", topic=topic, **values).cursors == {topic: 3}
        frame = events.expect("record", from_seq=3, to_seq=5, head_seq=5)
        assert frame.seqs == [4, 5]
        events.expect("caught-up", head_seq=5)


@pytest.mark.parametrize(("from_seq", "gap"), [(0, (1, 3)), (1, (2, 3)), (2, (3, 3)), (3, None), (4, None), (5, None)])
def test_a_gap_begins_where_the_reader_is(client: Client, topic: str, from_seq: int, gap: Any) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topics={topic: {"from_seq": from_seq}}) as events:
        found = covered(topic, events.until_caught_up(), from_seq, head=5)
    assert found.gaps == ([] if gap is None else [gap])
    assert set(found.reasons) <= {"from_seq_too_old"}


def test_what_expired_before_is_too_old(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, ttl_ms=60)
    client.append(topic, 1, 2)
    until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
    with watching(client, topic) as events:
        values = {"reason": "from_seq_too_old", "gap_from": 1, "gap_to": 2, "earliest_seq": 3, "head_seq": 2}
        events.expect("tombstone", topic=topic, **values)
        events.expect("caught-up", topic=topic, head_seq=2)


def test_what_went_for_more_than_one_cause_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, *range(1, 6))
    time.sleep(1.05)
    client.put_topic(topic, ttl_ms=1000)
    client.append(topic, 6)
    client.put_topic(topic, ttl_ms=0)
    assert client.read(topic)["tombstone"]["reason"] == "mixed"
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=6)
    assert (found.gaps, found.reasons, found.seqs) == ([(1, 5)], ["from_seq_too_old"], [6])


def test_what_expires_after_its_delivery_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, ttl_ms=1500)
    client.append(topic, 1, 2)
    with watching(client, topic) as events:
        events.until_caught_up()
        until(lambda: bool(client.state(topic)["earliest_seq"] == 3))
        events.quiet()
        client.append(topic, 3)
        events.expect("record", from_seq=2, to_seq=3)


def test_what_is_evicted_after_its_delivery_is_not_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        for number in range(1, 8):
            client.append(topic, number)
            accumulated.take(events.until_seq(topic, number))
    accumulated.check(7)
    assert (accumulated.seqs, accumulated.tombstones) == (list(range(1, 8)), [])


def test_what_is_evicted_as_it_comes_is_announced(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability, cap_records=3)
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.append(topic, *range(1, 11))
        accumulated.take(events.until_seq(topic, 10))
    accumulated.check(10)
    # On a connection that stands it is not too old but evicted.
    assert (accumulated.gaps, accumulated.reasons, accumulated.seqs) == ([(1, 7)], ["cap"], [8, 9, 10])


def test_the_jobs_of_a_queue_are_seen_like_a_log(client: Client, topic: str) -> None:
    client.put_topic(topic, type="queue")
    client.append(topic, 1, 2)
    with watching(client, topic) as events:
        found = Covered(topic).take(events.until_caught_up())
        client.append(topic, 3)
        found.take(events.until_seq(topic, 3))
    found.check(3)
    assert found.data == [1, 2, 3]


def test_a_record_that_never_fits_is_announced(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    with watching(client, topic) as events:
        events.until_caught_up()
        client.append(topic, "too large to stay")
        events.expect("tombstone", topic=topic, reason="cap", gap_from=1, gap_to=1, earliest_seq=2, head_seq=1)


def test_retention_that_passes_a_session_without_a_stream_is_too_old(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=3)
    client.append(topic, 1, 2)
    session = Session(client, topic)
    with session.open() as events:
        accumulated = Covered(topic).take(events.until_caught_up())
    until(lambda: gauge(client, "topics_sse_connections") == 0)
    client.append(topic, *range(3, 11))
    with session.open() as events:
        accumulated.take(events.until_caught_up())
    accumulated.check(10)
    assert (accumulated.gaps, accumulated.reasons) == ([(3, 7)], ["from_seq_too_old"])
    assert accumulated.seqs == [1, 2, 8, 9, 10]


@pytest.mark.parametrize("from_seq", [3, 1000, 2**64 - 1])
def test_who_is_beyond_the_head_knows_another_instance(client: Client, topic: str, from_seq: int) -> None:
    client.append(topic, "a", "b")
    with watching(client, topics={topic: {"from_seq": from_seq}}) as events:
        frames = events.until_caught_up()
        values = {"reason": "recreated", "gap_from": 1, "gap_to": 2, "earliest_seq": 1, "head_seq": 2}
        assert (frames[0].event, frames[0].data) == ("tombstone", {"topic": topic} | values)
        found = covered(topic, frames, from_seq, head=2)
        assert (found.data, found.caught_up, found.reasons) == (["a", "b"], [2], ["recreated"])
        client.append(topic, "c")
        events.expect("record", from_seq=2, to_seq=3)


def test_who_is_beyond_the_head_of_nothing(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with watching(client, topics={topic: {"from_seq": 5}}) as events:
        events.expect("tombstone", reason="recreated", gap_from=1, gap_to=0, earliest_seq=1, head_seq=0)
        events.expect("caught-up", head_seq=0)
        client.append(topic, "a")
        assert events.expect("record", from_seq=0, to_seq=1).seqs == [1]


def test_recreated_describes_the_new_instance_whatever_it_has_evicted(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=2)
    client.append(topic, *range(1, 6))
    with watching(client, topics={topic: {"from_seq": 77}}) as events:
        found = covered(topic, events.until_caught_up(), 77, head=5)
    assert (found.reasons, found.gaps, found.data) == (["recreated"], [(1, 5)], [4, 5])


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("has_id", [False, True])
def test_a_topic_that_was_made_anew_meanwhile_is_recreated(
    client: Client, topic: str, has_id: bool, count: int
) -> None:
    client.append(topic, "old", "older")
    session = Session(client, topic)
    with session.open() as events:
        old_id = events.until_caught_up()[0].id
    client.delete_topic(topic)
    client.put_topic(topic)
    if count:
        client.append(topic, *range(count))
    with session.open(old_id if has_id else None) as events:
        found = covered(topic, events.until_caught_up(), 2, head=count)
        assert (found.reasons, found.data) == (["recreated"], list(range(count)))
        events.quiet(0.1)


def test_a_topic_that_was_made_anew_before_the_first_connection_is_recreated(client: Client, topic: str) -> None:
    client.append(topic, "old", "older", "oldest")
    session = Session(client, topics={topic: {"from_seq": 1}})
    client.delete_topic(topic)
    client.append(topic, *range(6))
    with session.open() as events:
        found = covered(topic, events.until_caught_up(), 1, head=6)
    assert (found.reasons, found.data) == (["recreated"], list(range(6)))


def test_after_recreated_a_session_is_of_the_new_instance(client: Client, topic: str) -> None:
    client.append(topic, "old", "older")
    session = Session(client, topics={topic: {"tail": True}})
    client.delete_topic(topic)
    client.append(topic, "new", "newer", "newest")
    with session.open() as events:
        tombstone = events.expect("tombstone", reason="recreated")
        assert covered(topic, [tombstone, *events.until_caught_up()], 2, head=3).data == ["new", "newer", "newest"]
    with session.open() as events:
        events.expect("caught-up", head_seq=3)
        events.quiet(0.1)
    with session.open(tombstone.id) as events:
        found = covered(topic, events.until_caught_up(), head=3)
        assert (found.tombstones, found.data) == ([], ["new", "newer", "newest"])


# Deletions


def test_deletions_before_are_silent(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.tagged(topic, "a", "b", "a", "c", "b")
    client.delete_records(topic, match="b")
    client.delete_records(topic, before_seq=2)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=5, silent=[1, 2, 5])
    assert (found.seqs, found.tombstones) == ([3, 4], [])


def test_deletions_after_are_silent(client: Client, topic: str) -> None:
    client.tagged(topic, "a", "b", "a")
    with watching(client, topic) as events:
        accumulated = Covered(topic).take(events.until_caught_up())
        client.delete_records(topic, match="b")
        client.delete_records(topic, before_seq=10)
        events.quiet()
        client.append(topic, "after")
        accumulated.take(events.until_seq(topic, 4))
    accumulated.check(4)
    assert (accumulated.seqs, accumulated.tombstones) == ([1, 2, 3, 4], [])


def test_a_topic_of_deleted_records_is_caught_up_with(client: Client, topic: str) -> None:
    client.append(topic, *range(600))
    client.delete_records(topic, before_seq=601)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=600, silent=range(1, 601))
        assert (found.seqs, found.tombstones, found.caught_up) == ([], [], [600])
        client.append(topic, "after")
        found.take(events.until_seq(topic, 601))
        found.check(601, silent=range(1, 601))


def test_a_gap_of_evicted_and_deleted_records_is_the_one_of_a_read(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_records=4)
    client.append(topic, *range(1, 7))
    client.delete_records(topic, before_seq=5)
    with watching(client, topic) as events:
        found = covered(topic, events.until_caught_up(), head=6)
    assert (found.gaps, found.seqs) == ([(1, 4)], [5, 6])
    with watching(client, topics={topic: {"from_seq": 2}}) as events:
        found = covered(topic, events.until_caught_up(), 2, head=6, silent=[3, 4])
    assert (found.gaps, found.seqs) == ([], [5, 6])


# Topics that go


def test_a_deleted_topic_ends_the_stream_and_frees_the_session(client: Client, topic: str, http2: bool) -> None:
    client.append(topic, 1, 2)
    session = Session(client, topic)
    with session.open(http2=http2) as events:
        events.until_caught_up()
        client.delete_topic(topic)
        events.expect("topic-deleted", topic=topic, head_seq=2, reason="deleted")
        events.ended()
    with session.connect() as events:
        events.refused(404, "not_found")


def test_the_other_topics_go_on(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, 1)
    client.append(other, 1)
    session = Session(client, topic, other)
    with session.open() as events:
        old_id = events.until_caught_up(topic, other)[-1].id
        client.delete_topic(topic)
        deleted = events.expect("topic-deleted", topic=topic, head_seq=1)
        assert deleted.cursors[other] == 1
        client.append(other, 2)
        events.expect("record", topic=other, from_seq=1, to_seq=2)
        # One of the same name is another topic.
        client.append(topic, "new")
        events.quiet()
    client.append(other, 3)
    for last_id, ended in ((old_id, [1]), (deleted.id, [])):
        with session.open(last_id) as events:
            frames = events.until_caught_up(other)
            # To an id from before, the end is told again, and nothing of the topic that has the name now.
            assert [frame.data["head_seq"] for frame in frames if frame.topic == topic] == ended
            covered(other, [frame for frame in frames if frame.topic == other], 1, head=3)
    with session.open() as events:
        events.expect("caught-up", topic=other, head_seq=3)
        client.delete_topic(other)
        events.expect("topic-deleted", topic=other)
        events.ended()
    with session.connect() as events:
        events.refused(404, "not_found")


def test_a_topic_that_went_while_nobody_was_connected_is_announced(client: Client, topic: str) -> None:
    other = fresh_name()
    client.append(topic, 1)
    client.append(other, 1)
    session = Session(client, topic, other)
    with session.open() as events:
        events.until_caught_up(topic, other)
    client.delete_topic(topic)
    client.append(other, 2)
    with session.open() as events:
        frames = events.until_caught_up(other)
        if not [frame for frame in frames if frame.topic == topic]:
            frames.append(events.next())
        (deleted,) = [frame for frame in frames if frame.topic == topic]
        assert (deleted.event, deleted.data["reason"]) == ("topic-deleted", "deleted")
        covered(other, frames, 1, head=2)


def test_a_session_whose_last_topic_went_while_nobody_was_connected_is_over(client: Client, topic: str) -> None:
    client.append(topic, 1)
    session = Session(client, topic)
    client.delete_topic(topic)
    with session.connect() as events:
        # Whether it is freed at once or when it has been said is open.
        if events.status == 200:
            events.expect("topic-deleted", topic=topic)
            events.ended()
        else:
            events.refused(404, "not_found")
    with session.connect() as events:
        events.refused(404, "not_found")


def test_many_watchers_hear_that_a_topic_is_deleted(client: Client, topic: str) -> None:
    client.append(topic, 1)
    with all_open(watching(client, topic) for _ in range(10)) as streams:
        for events in streams:
            events.until_caught_up()
        client.delete_topic(topic)
        for events in streams:
            events.expect("topic-deleted", topic=topic)
            events.ended()
