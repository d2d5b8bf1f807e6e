"""Semantics 5: a dest that is full, and records that a source loses before they are forwarded."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.conformance.client import Client, data_of, error_of, fresh_name, seqs_of, until
from tests.conformance.router_client import connect_topics, drop_router, metric, router_of
from tests.conformance.router_pairs import (
    Pair,
    becomes,
    blocked,
    check_figures,
    everything,
    has,
    has_head,
    lose_to_a_ttl,
    paired,
)
from tests.conformance.sse import covered, stream
from tests.conformance.websocket import covered as covered_by_pushes
from tests.conformance.websocket import subscribed

# A dest that is full


def test_a_full_dest_makes_a_lag_and_leaves_the_source_writable(client: Client, dest_class: str) -> None:
    pair = blocked(client, dest={"durability": dest_class})
    for number in range(3, 8):
        assert pair.append(number)["seqs"] == [number]
    found = router_of(client, pair.router)
    assert (found["forwarded_total"], found["cursor_seq"], found["lag"]) == (2, 2, 5)
    assert metric(client, "router_lag", router=pair.router) == 5
    assert metric(client, "router_forwarded_total", router=pair.router) == 2
    assert everything(client, pair.source).data == list(range(1, 8))
    # Readers of the dest are answered, and nobody else gets in either.
    for _ in range(3):
        assert data_of(client.read(pair.dest)) == [1, 2]
    error_of(client.send_append(pair.dest, "direct"), 422, "topic_full")
    check_figures(client, pair.dest)


def make_room_by_deleting(client: Client, dest: str) -> None:
    assert client.delete_records(dest, before_seq=3)["deleted"] == 2


def make_room_by_a_wider_cap(client: Client, dest: str) -> None:
    client.put_topic(dest, cap_records=10)


def make_room_by_no_cap(client: Client, dest: str) -> None:
    client.put_topic(dest, cap_records=0)


def make_room_by_discarding(client: Client, dest: str) -> None:
    client.put_topic(dest, discard="old")


ROOM = [
    make_room_by_deleting,
    make_room_by_a_wider_cap,
    make_room_by_no_cap,
    make_room_by_discarding,
]


@pytest.mark.parametrize("make_room", ROOM, ids=lambda how: how.__name__)
def test_forwarding_goes_on_when_there_is_room(client: Client, make_room: Callable[[Client, str], None]) -> None:
    pair = blocked(client, 3, 4)
    make_room(client, pair.dest)
    has_head(client, pair.dest, 4)
    assert everything(client, pair.dest).data[-2:] == [3, 4]
    assert everything(client, pair.dest).seqs[-2:] == [3, 4]
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["forwarded_total"]) == (4, 4)
    check_figures(client, pair.dest)


def test_a_dest_whose_records_expire_is_not_full_for_ever(client: Client) -> None:
    pair = blocked(client, 3, 4)
    client.put_topic(pair.dest, ttl_ms=20)
    has_head(client, pair.dest, 4)
    assert pair.settle()["forwarded_total"] == 4


@pytest.mark.parametrize("durability", ["memory", "fsync"])
def test_everything_passes_through_a_dest_that_is_emptied_again_and_again(client: Client, durability: str) -> None:
    config = {"cap_records": 3, "discard": "reject", "durability": durability}
    pair = paired(client, dest=config)
    pair.append(*range(10))
    pair.append(*range(10, 20))
    seen: list[int] = []

    def take() -> int:
        answer = client.read(pair.dest)
        assert len(answer["records"]) <= 3
        assert answer["tombstone"] is None
        if answer["records"]:
            seen.extend(data_of(answer))
            client.delete_records(pair.dest, before_seq=seqs_of(answer)[-1] + 1)
        return len(seen)

    becomes(take, 20)
    assert seen == list(range(20))
    assert pair.settle()["forwarded_total"] == 20


def test_a_full_dest_has_never_more_than_its_cap(client: Client, pair: Pair) -> None:
    client.put_topic(pair.dest, cap_records=10, discard="reject")

    def write(_: int) -> None:
        for number in range(10):
            assert client.send_append(pair.dest, f"direct {number}").status_code in (200, 422)

    with ThreadPoolExecutor(3) as pool:
        direct = pool.map(write, range(2))
        copied = pool.map(pair.append, range(20))
        until(lambda: bool(client.state(pair.dest)["count"] == 10))
        list(direct), list(copied)
    assert len(check_figures(client, pair.dest).records) == 10
    client.put_topic(pair.dest, cap_records=0)
    becomes(
        lambda: sorted(data for data in everything(client, pair.dest).data if isinstance(data, int)), list(range(20))
    )
    assert everything(client, pair.dest).tombstones == []


def test_a_dest_may_be_full_in_bytes(client: Client) -> None:
    pair = paired(client, dest={"cap_bytes": 25, "discard": "reject"})
    for name in ("one", "two", "three"):
        pair.append(f"{name:10}")
    pair.has("one       ", "two       ")
    assert (pair.cursor, pair.lag) == (2, 1)
    client.delete_records(pair.dest, before_seq=2)
    pair.has("two       ", "three     ")


def test_a_full_dest_holds_up_no_other(client: Client) -> None:
    pair = blocked(client)
    other, far = fresh_name(), fresh_name()
    connect_topics(client, pair.source, other, far)
    for number in range(3, 30):
        pair.append(number)
    for topic in (other, far):
        has(client, topic, *range(3, 30))
    pair.has(1, 2)
    assert pair.lag == 27
    client.put_topic(pair.dest, cap_records=0)
    pair.has(*range(1, 30))


def test_a_full_topic_in_a_chain_holds_up_only_what_comes_after_it(client: Client) -> None:
    pair = blocked(client, 3, 4, 5)
    before, after = fresh_name(), fresh_name()
    connect_topics(client, pair.dest, after, begin="earliest")
    connect_topics(client, before, pair.source)
    client.append(before, 6)
    has(client, after, 1, 2)
    has(client, pair.source, *range(1, 7))
    client.put_topic(pair.dest, cap_records=0)
    has(client, after, *range(1, 7))


def test_a_stream_of_a_full_dest_goes_on_when_there_is_room(client: Client) -> None:
    pair = blocked(client, 3, 4)
    with stream(client, pair.dest) as events:
        frames = events.until_caught_up()
        client.put_topic(pair.dest, cap_records=0)
        frames += events.until_seq(pair.dest, 4)
    assert covered(pair.dest, frames, head=4).data == [1, 2, 3, 4]


def test_a_router_to_a_full_dest_can_be_deleted(client: Client) -> None:
    pair = blocked(client, 3, 4)
    drop_router(client, pair.router)
    client.put_topic(pair.dest, cap_records=0)
    client.append(pair.dest, "direct")
    assert everything(client, pair.dest).data == [1, 2, "direct"]


@pytest.mark.parametrize("end", ["source", "dest"])
def test_a_topic_of_a_blocked_router_can_be_deleted(client: Client, end: str) -> None:
    pair = blocked(client, 3, 4)
    gone, left = (pair.source, pair.dest) if end == "source" else (pair.dest, pair.source)
    assert client.delete_topic(gone)["routers_removed"] == [pair.router]
    client.put_topic(left, cap_records=0)
    client.append(left, 5)
    assert everything(client, left).data == ([1, 2, 5] if end == "source" else [1, 2, 3, 4, 5])


# What a source has lost before it could be forwarded


def lose_to_a_cap(client: Client, source: str) -> None:
    """Of 3 to 7, which were not forwarded yet, and 8 to 10, which come now, the last three stay."""
    client.put_topic(source, cap_records=3)


@pytest.mark.parametrize("lose", [lose_to_a_cap, lose_to_a_ttl], ids=lambda how: how.__name__)
@pytest.mark.parametrize("durability", ["ephemeral", "disk"])
def test_what_a_source_loses_before_it_is_forwarded_is_announced_by_one_seq(
    client: Client, durability: str, lose: Callable[[Client, str], None]
) -> None:
    pair = blocked(client, *range(3, 8), source={"durability": durability})
    lose(client, pair.source)
    pair.append(8, 9, 10)
    becomes(lambda: client.state(pair.source)["earliest_seq"], 8)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 8, 9, 10)
    reading = check_figures(client, pair.dest)
    assert {reason for _, _, reason in reading.gaps} == {"source_trim"}
    if lose is lose_to_a_ttl:
        # They went all at once.
        assert (reading.gaps, reading.seqs) == ([(3, 3, "source_trim")], [1, 2, 4, 5, 6])
    assert pair.settle()["forwarded_total"] == 5
    assert client.read(pair.dest, reading.tombstones[-1]["gap_to"])["tombstone"] is None


def test_what_a_source_has_lost_is_announced_when_everything_before_is_deleted(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    client.delete_records(pair.dest, before_seq=3)
    pair.has(8)
    answer = client.read(pair.dest)
    gap = answer["tombstone"]
    assert (gap["gap_from"], gap["gap_to"], gap["reason"], gap["missed_estimate"]) == (1, 3, "source_trim", 1)
    assert seqs_of(answer) == [4]
    assert client.state(pair.dest)["earliest_seq"] == 4


def test_what_was_deleted_before_it_could_be_forwarded_is_not_announced(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    client.delete_records(pair.source, before_seq=7)
    client.put_topic(pair.dest, cap_records=0)
    pair.has(1, 2, 7)
    assert everything(client, pair.dest).tombstones == []
    assert pair.settle()["forwarded_total"] == 3


def test_streams_tell_what_the_source_has_lost(client: Client) -> None:
    pair = blocked(client, *range(3, 8))
    lose_to_a_ttl(client, pair.source)
    pair.append(8)
    with stream(client, pair.dest) as events, subscribed(client, pair.dest) as socket:
        frames, pushes = events.until_caught_up(), socket.until_caught_up()
        client.put_topic(pair.dest, cap_records=0)
        frames += events.until_seq(pair.dest, 4)
        pushes += socket.until_seq(pair.dest, 4)
    with stream(client, pair.dest) as events:
        later = events.until_caught_up()
    told = [covered(pair.dest, some, head=4) for some in (frames, later)]
    told.append(covered_by_pushes(pair.dest, pushes, head=4))
    for one in told:
        assert (one.data, one.gaps, one.reasons) == ([1, 2, 8], [(3, 3)], ["source_trim"])


@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
def test_a_record_that_can_never_fit_is_skipped_and_announced(client: Client, place: int, together: bool) -> None:
    pair = paired(client, dest={"cap_bytes": 50, "discard": "reject"})
    small = ["a", "b"]
    data = [*small[:place], "x" * 100, *small[place:]]
    if together:
        pair.append(*data)
    else:
        for one in data:
            pair.append(one)
    has_head(client, pair.dest, 3)
    reading = check_figures(client, pair.dest)
    assert (reading.data, reading.gaps) == (small, [(place + 1, place + 1, "source_trim")])
    assert client.read(pair.dest, place)["tombstone"]["missed_estimate"] == 1
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["lag"], settled["forwarded_total"]) == (3, 0, 2)
    pair.append("c")
    pair.has(*small, "c")


def test_what_can_never_fit_goes_to_the_others(client: Client) -> None:
    pair = paired(client, dest={"cap_bytes": 50, "discard": "reject"})
    other = fresh_name()
    connect_topics(client, pair.source, other)
    pair.append("a", "x" * 100, "b")
    has(client, other, "a", "x" * 100, "b")
    pair.has("a", "b")


def test_a_dest_that_discards_takes_everything_and_evicts_the_oldest(client: Client, durability: str) -> None:
    pair = paired(client, dest={"cap_records": 3, "durability": durability})
    pair.append(*range(10))
    pair.append(10)
    pair.has(8, 9, 10)
    reading = check_figures(client, pair.dest)
    assert reading.gaps == [(1, 8, "cap")]
    assert pair.settle()["forwarded_total"] == 11
    assert everything(client, pair.source).data == list(range(11))


def test_copies_expire_by_the_ttl_of_their_dest(client: Client) -> None:
    pair = paired(client, dest={"ttl_ms": 60_000_000})
    pair.append(1, 2)
    pair.has(1, 2)
    time.sleep(0.05)
    client.put_topic(pair.dest, ttl_ms=20)
    client.put_topic(pair.dest, ttl_ms=0)
    pair.append(3)
    pair.has(3)
    assert everything(client, pair.dest).gaps == [(1, 2, "ttl")]
    assert everything(client, pair.source).data == [1, 2, 3]
    check_figures(client, pair.dest)
