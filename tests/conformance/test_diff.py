"""Section 5: reads, filters, sizes and long polls."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, invalid, seqs_of

ANSWER = {
    "topic", "epoch", "records", "next_from_seq", "head_seq", "earliest_seq", "caught_up", "tombstone", "lag",
    "performance",
}  # fmt: skip


@pytest.fixture(scope="module")
def numbers(client: Client) -> str:
    """A topic with the data 1 to 1100 under the same seqs."""
    name = fresh_name("numbers")
    client.append(name, *range(1, 1101))
    return name


def test_a_read_answers_what_comes_after_a_seq(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    client.append(topic, "a", "b", "c")
    answer = client.read(topic, 1)
    assert set(answer) == ANSWER
    assert (answer["topic"], answer["epoch"]) == (topic, client.state(topic)["epoch"])
    assert [(record["$seq"], record["data"]) for record in answer["records"]] == [(2, "b"), (3, "c")]
    assert (answer["next_from_seq"], answer["head_seq"], answer["earliest_seq"]) == (3, 3, 1)
    assert (answer["caught_up"], answer["tombstone"], answer["lag"]) == (True, None, 0)


def test_a_read_of_nothing(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    answer = client.read(topic)
    assert (answer["records"], answer["next_from_seq"], answer["head_seq"]) == ([], 0, 0)
    assert (answer["earliest_seq"], answer["caught_up"], answer["tombstone"], answer["lag"]) == (1, True, None, 0)


def test_a_read_at_the_head_has_no_more(client: Client, numbers: str) -> None:
    answer = client.read(numbers, 1100)
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 1100, True)
    assert (answer["tombstone"], answer["lag"]) == (None, 0)


def test_a_get_takes_the_same_names_in_its_query(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "t", "node": node, "meta": {"k": "v"}} for node in "abcd"])
    url = f"/v0/topics/{topic}/diff"
    assert seqs_of(body_of(client.get(url))) == [1, 2, 3, 4]
    assert seqs_of(body_of(client.get(url + "?from_seq=2&limit=1"))) == [3]
    assert seqs_of(body_of(client.get(url + "?node=a"))) == [2, 3, 4]
    assert seqs_of(body_of(client.get(url + "?node=a&node=c"))) == [2, 4]
    assert seqs_of(body_of(client.get(url + "?max_batch_bytes=1&wait_ms=0"))) == [1]
    (record,) = body_of(client.get(url + "?from_seq=3&include_tags=1&include_meta=0"))["records"]
    assert record["$tag"] == "t"
    assert "meta" not in record
    epoch = client.state(topic)["epoch"]
    assert body_of(client.get(f"{url}?epoch={epoch}"))["tombstone"] is None
    assert body_of(client.get(f"{url}?epoch={epoch + 1}"))["tombstone"]["reason"] == "recreated"


@pytest.mark.parametrize(
    "query",
    [
        "from_seq=x",
        "from_seq=-1",
        "from_seq=1.5",
        "from_seq=18446744073709551616",
        "limit=x",
        "wait_ms=soon",
        "epoch=x",
        "max_batch_bytes=1k",
        "from_seq=0x1",
    ],
)
def test_a_query_that_is_no_number_is_400(client: Client, numbers: str, query: str) -> None:
    invalid(client.get(f"/v0/topics/{numbers}/diff?{query}"), query.split("=", maxsplit=1)[0])


@pytest.mark.parametrize(
    ("limit", "count"), [(None, 256), (0, 256), (1, 1), (256, 256), (1000, 1000), (1001, 1000), (10**12, 1000)]
)
def test_the_limit_is_clamped(client: Client, numbers: str, limit: int | None, count: int) -> None:
    answer = client.read(numbers) if limit is None else client.read(numbers, limit=limit)
    assert seqs_of(answer) == list(range(1, count + 1))
    assert (answer["next_from_seq"], answer["lag"], answer["caught_up"]) == (count, 1100 - count, False)


def test_a_reader_comes_to_the_end_in_steps(client: Client, numbers: str) -> None:
    from_seq, read, caught_up = 0, [], False
    while not caught_up:
        answer = client.read(numbers, from_seq, limit=300)
        read += seqs_of(answer)
        from_seq, caught_up = answer["next_from_seq"], answer["caught_up"]
        assert caught_up == (from_seq == answer["head_seq"])
    assert read == list(range(1, 1101))


@pytest.mark.parametrize(
    ("node", "left"),
    [
        ("a", [2, 3, 4, 6]),
        (["a"], [2, 3, 4, 6]),
        (["a", "b"], [3, 4, 6]),
        ([], [1, 2, 3, 4, 5, 6]),
        ("A", [1, 2, 3, 4, 5, 6]),
        (["a", "b", "c"], [3, 6]),
        (["x", "y"], [1, 2, 3, 4, 5, 6]),
    ],
)
def test_records_of_the_named_nodes_are_dropped(client: Client, topic: str, node: Any, left: list[int]) -> None:
    nodes = ["a", "b", None, "c", "a", None]
    client.append(topic, records=[{"data": 1} if name is None else {"data": 1, "node": name} for name in nodes])
    answer = client.read(topic, node=node)
    assert seqs_of(answer) == left
    assert (answer["next_from_seq"], answer["caught_up"], answer["tombstone"]) == (6, True, None)


def test_filtered_records_move_the_cursor(client: Client, topic: str) -> None:
    client.append(topic, *range(20), node="mine")
    answer = client.read(topic, node="mine")
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 20, True)
    client.append(topic, *range(20), node="theirs")
    read, from_seq = [], 0
    for _ in range(100):
        answer = client.read(topic, from_seq, node="mine", limit=3)
        read += seqs_of(answer)
        assert answer["next_from_seq"] > from_seq
        from_seq = answer["next_from_seq"]
        if answer["caught_up"]:
            break
    assert read == list(range(21, 41))


def test_tags_come_when_asked_for_and_meta_unless_refused(client: Client, topic: str) -> None:
    client.append(topic, records=[{"data": 1, "tag": "t", "meta": {"k": "v"}}, {"data": 2}])
    for tags in (None, False, True):
        for meta in (None, False, True):
            asked: dict[str, Any] = {"include_tags": tags, "include_meta": meta}
            asked = {name: value for name, value in asked.items() if value is not None}
            full, bare = client.read(topic, **asked)["records"]
            assert set(bare) == {"$seq", "$ts", "data"}
            expected = {"$seq", "$ts", "data"} | ({"$tag"} if tags else set()) | (set() if meta is False else {"meta"})
            assert set(full) == expected


@pytest.mark.parametrize(("most", "count"), [(1, 1), (500, 1), (1002, 1), (2500, 2), (6000, 5), (0, 10), (1 << 20, 10)])
def test_a_batch_is_limited_in_bytes(client: Client, topic: str, most: int, count: int) -> None:
    client.append(topic, *(["x" * 998] * 10))
    answer = client.read(topic, max_batch_bytes=most)
    # What a record takes beside its data is not said, so that one less may come; but one always comes.
    assert max(1, count - 1) <= len(answer["records"]) <= count
    assert answer["next_from_seq"] == len(answer["records"])
    assert answer["caught_up"] is (len(answer["records"]) == 10)


def test_the_bytes_of_a_batch_have_a_default_and_a_clamp(client: Client, topic: str) -> None:
    for _ in range(10):
        client.append(topic, "x" * 1_000_000)
    assert seqs_of(client.read(topic)) == [1]
    assert seqs_of(client.read(topic, max_batch_bytes=0)) == [1]
    assert 7 <= len(client.read(topic, max_batch_bytes=8 << 20)["records"]) <= 8
    assert 7 <= len(client.read(topic, max_batch_bytes=10**12)["records"]) <= 8


# Long polls


class Poll:
    """A read that is waiting in another thread."""

    def __init__(self, client: Client, topic: str, **fields: Any) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(client.post, f"/v0/topics/{topic}/diff", json=fields)
        time.sleep(0.15)
        assert not self._future.done(), self._future.result().text

    def result(self, within_s: float = 30) -> Any:
        try:
            return self._future.result(within_s)
        finally:
            self._pool.shutdown(wait=False)

    @property
    def is_waiting(self) -> bool:
        return not self._future.done()


def test_a_long_poll_does_not_wait_for_what_is_there(client: Client, numbers: str) -> None:
    began = time.monotonic()
    assert seqs_of(client.read(numbers, 1099, wait_ms=10**12)) == [1100]
    assert time.monotonic() - began < 20


def test_a_long_poll_wakes_at_a_record(client: Client, topic: str, durability: str) -> None:
    client.put_topic(topic, durability=durability)
    poll = Poll(client, topic, wait_ms=30_000)
    client.append(topic, "wake")
    answer = body_of(poll.result())
    assert data_of(answer) == ["wake"]
    assert (answer["next_from_seq"], answer["caught_up"]) == (1, True)


def test_a_long_poll_ends_after_its_time(client: Client, topic: str) -> None:
    client.append(topic, 1)
    began = time.monotonic()
    answer = client.read(topic, 1, wait_ms=300)
    assert 0.28 <= time.monotonic() - began < 20
    assert (answer["records"], answer["caught_up"], answer["next_from_seq"]) == ([], True, 1)


def test_a_long_poll_waits_on_over_filtered_records(client: Client, topic: str) -> None:
    client.put_topic(topic)
    poll = Poll(client, topic, wait_ms=30_000, node="mine")
    client.append(topic, 1, 2, node="mine")
    time.sleep(0.1)
    assert poll.is_waiting
    client.append(topic, 3, node="theirs")
    assert seqs_of(body_of(poll.result())) == [3]


def test_a_long_poll_over_filtered_records_has_moved_when_it_ends(client: Client, topic: str) -> None:
    client.append(topic, 1, 2, node="mine")
    answer = client.read(topic, wait_ms=200, node="mine")
    assert (answer["records"], answer["next_from_seq"], answer["caught_up"]) == ([], 2, True)


def test_a_long_poll_wakes_at_a_tombstone(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    poll = Poll(client, topic, wait_ms=30_000)
    client.append(topic, "too large to stay")
    answer = body_of(poll.result())
    assert (answer["records"], answer["next_from_seq"]) == ([], 1)
    assert answer["tombstone"]["reason"] == "cap"
    assert (answer["tombstone"]["gap_from"], answer["tombstone"]["gap_to"]) == (1, 1)


def test_a_long_poll_answers_a_tombstone_at_once(client: Client, topic: str) -> None:
    client.put_topic(topic, cap_bytes=5)
    client.append(topic, "too large to stay")
    began = time.monotonic()
    assert client.read(topic, wait_ms=30_000)["tombstone"]["reason"] == "cap"
    assert client.read(topic, 9, wait_ms=30_000)["tombstone"]["reason"] == "recreated"
    assert time.monotonic() - began < 25


def test_a_long_poll_is_404_when_the_topic_goes(client: Client, topic: str) -> None:
    client.put_topic(topic)
    poll = Poll(client, topic, wait_ms=30_000)
    client.delete_topic(topic)
    error_of(poll.result(), 404, "topic_not_found")


def test_a_long_poll_does_not_wake_at_a_deletion(client: Client, topic: str) -> None:
    client.append(topic, 1)
    poll = Poll(client, topic, from_seq=1, wait_ms=700)
    client.delete_records(topic, before_seq=2)
    answer = body_of(poll.result())
    assert (answer["records"], answer["tombstone"], answer["next_from_seq"]) == ([], None, 1)


def test_many_long_polls_wake_together(client: Client, topic: str) -> None:
    client.put_topic(topic)
    polls = [Poll(client, topic, wait_ms=30_000) for _ in range(4)]
    client.append(topic, 1)
    assert [data_of(body_of(poll.result())) for poll in polls] == [[1]] * 4


def test_a_long_poll_over_http2_wakes(client: Client, topic: str) -> None:
    client.put_topic(topic)
    with Client(client.daemon, http2=True) as other:
        poll = Poll(other, topic, wait_ms=30_000)
        other.append(topic, 1)
        assert data_of(body_of(poll.result())) == [1]
