"""Section 7: what routers carry, from where on, and which records."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.conformance.client import Client, body_of, data_of, error_of, fresh_name, has_data, invalid
from tests.conformance.router_client import connect_topics, put_router
from tests.conformance.router_pairs import (
    RECORDS,
    Pair,
    becomes,
    check_figures,
    everything,
    has,
    has_head,
    paired,
    settle,
)
from tests.conformance.sse import covered, stream
from tests.conformance.test_data import AS_WRITTEN
from tests.conformance.websocket import covered as covered_by_pushes
from tests.conformance.websocket import subscribed

STAMP = "_topics_router"


# What arrives


def test_what_is_appended_arrives_in_order(client: Client, source_class: str, dest_class: str) -> None:
    pair = paired(client, {"durability": source_class}, {"durability": dest_class})
    pair.append("a", "b")
    pair.append("c")
    pair.has("a", "b", "c")
    pair.append("d", "e")
    pair.has("a", "b", "c", "d", "e")
    reading = check_figures(client, pair.dest)
    assert (reading.seqs, reading.tombstones) == ([1, 2, 3, 4, 5], [])
    assert everything(client, pair.source).data == reading.data
    settled = pair.settle()
    assert (settled["forwarded_total"], settled["cursor_seq"], settled["lag"]) == (5, 5, 0)


def test_a_dest_gives_seqs_and_times_of_its_own(client: Client, pair: Pair) -> None:
    client.append(pair.dest, "direct", "direct")
    before = client.state(pair.dest)["last_write_ts"]
    pair.append("a")
    time.sleep(0.02)
    pair.append("b")
    pair.has("direct", "direct", "a", "b")
    originals, copies = everything(client, pair.source).records, everything(client, pair.dest).records[2:]
    assert [copy["$seq"] for copy in copies] == [3, 4]
    assert before <= copies[0]["$ts"] <= copies[1]["$ts"]
    for original, copy in zip(originals, copies, strict=True):
        assert copy["$ts"] >= original["$ts"]
    assert client.state(pair.dest)["last_write_ts"] == copies[1]["$ts"]


def test_data_is_byte_for_byte_what_was_written(client: Client, pair: Pair) -> None:
    for data in AS_WRITTEN:
        body_of(client.append_raw(pair.source, data))
    has_head(client, pair.dest, len(AS_WRITTEN))
    for place, data in enumerate(AS_WRITTEN):
        answer = client.get(f"/v0/topics/{pair.dest}/diff", params={"from_seq": place, "limit": 1})
        assert has_data(answer, data), data
    assert client.state(pair.dest)["bytes"] == client.state(pair.source)["bytes"]


@pytest.mark.parametrize("preserve_node", [True, False], ids=["node", "no-node"])
@pytest.mark.parametrize("preserve_tag", [True, False], ids=["tag", "no-tag"])
def test_node_and_tag_pass_if_they_are_to_and_meta_always_does(
    client: Client, preserve_node: bool, preserve_tag: bool
) -> None:
    pair = paired(client, preserve_node=preserve_node, preserve_tag=preserve_tag)
    pair.append(records=RECORDS)
    has_head(client, pair.dest, len(RECORDS))
    originals, copies = everything(client, pair.source).records, everything(client, pair.dest).records
    for original in originals:
        if not preserve_node:
            original.pop("$node", None)
        if not preserve_tag:
            original.pop("$tag", None)
    assert [without_ts(copy) for copy in copies] == [without_ts(original) for original in originals]
    assert client.state(pair.dest)["bytes"] == client.state(pair.source)["bytes"]


def without_ts(record: Any) -> Any:
    return {name: value for name, value in record.items() if name != "$ts"}


def test_the_node_of_a_batch_passes(client: Client, pair: Pair) -> None:
    pair.append(records=[{"data": 1}, {"data": 2, "node": "own"}], node="batch")
    pair.has(1, 2)
    assert [record["$node"] for record in everything(client, pair.dest).records] == ["batch", "own"]


@pytest.mark.parametrize(("preserve_node", "left"), [(True, ["b"]), (False, ["a", "b", "a"])], ids=["kept", "dropped"])
def test_a_reader_of_a_dest_leaves_out_nodes_that_were_preserved(
    client: Client, preserve_node: bool, left: list[str]
) -> None:
    pair = paired(client, preserve_node=preserve_node)
    pair.append(records=[{"data": node, "node": node} for node in "aba"])
    pair.has("a", "b", "a")
    assert data_of(client.read(pair.dest, node="a")) == left
    with stream(client, pair.dest, node="a") as events:
        assert covered(pair.dest, events.until_caught_up(), head=3, silent=[1, 3]).data == left


def test_a_dest_may_switch_the_node_filter_off(client: Client) -> None:
    pair = paired(client, dest={"dedupe_node": False})
    pair.append(1, node="n")
    pair.has(1)
    assert data_of(client.read(pair.dest, node="n")) == [1]


def test_records_of_the_greatest_size_pass(client: Client, pair: Pair) -> None:
    whole = "x" * ((1 << 20) - 2)
    meta = {f"{number:02}": "v" * 240 for number in range(64)}
    for record in ({"data": whole}, {"data": 1, "meta": meta}, {"data": whole}):
        pair.append(records=[record])
    has_head(client, pair.dest, 3)
    copies = everything(client, pair.dest).records
    assert [copy["data"] == whole for copy in copies] == [True, False, True]
    assert copies[1]["meta"] == meta


def test_thousands_of_records_pass_in_order(client: Client, pair: Pair) -> None:
    pair.append(*range(10_000))
    pair.append(*range(10_000, 12_500))
    pair.has(*range(12_500))
    check_figures(client, pair.dest)
    assert pair.settle()["forwarded_total"] == 12_500


def test_what_many_append_at_once_passes_in_the_order_of_the_source(client: Client) -> None:
    source, dests = fresh_name(), [fresh_name() for _ in range(3)]
    client.put_topic(source)
    for dest in dests:
        connect_topics(client, source, dest)

    def write(writer: int) -> None:
        for number in range(25):
            client.append(source, *[f"{writer}.{number}.{part}" for part in range(writer + 1)])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    expected = everything(client, source).data
    assert len(expected) == 250
    for dest in dests:
        has(client, dest, *expected)
        assert check_figures(client, dest).seqs == list(range(1, 251))


def test_direct_appends_interleave(client: Client, pair: Pair) -> None:
    for number in range(10):
        pair.append(f"copy {number}")
        client.append(pair.dest, f"direct {number}")
    becomes(lambda: client.state(pair.dest)["count"], 20)
    reading = check_figures(client, pair.dest)
    for kind in ("copy", "direct"):
        assert [data for data in reading.data if data.startswith(kind)] == [f"{kind} {number}" for number in range(10)]
    assert everything(client, pair.source).data == [f"copy {number}" for number in range(10)]


@pytest.mark.parametrize("limit", [1, 3, 7])
def test_copies_are_read_in_pages(client: Client, pair: Pair, limit: int) -> None:
    for start in range(0, 20, 5):
        pair.append(*range(start, start + 5))
        pair.has(*range(start + 5))
    found: list[int] = []
    while len(found) < 20:
        answer = client.read(pair.dest, len(found), limit=limit)
        assert len(answer["records"]) == min(limit, 20 - len(found))
        found += data_of(answer)
        assert (answer["next_from_seq"], answer["caught_up"]) == (len(found), len(found) == 20)
    assert found == list(range(20))
    answer = client.read(pair.dest, 7, max_batch_bytes=1)
    assert (data_of(answer), answer["lag"]) == ([7], 12)


def test_an_append_that_was_repeated_has_one_copy(client: Client, pair: Pair) -> None:
    for _ in range(3):
        pair.append("once", idempotency_key="key")
    pair.append("after")
    pair.has("once", "after")
    # The key is the source's: the dest does not know it.
    assert client.append(pair.dest, "own", idempotency_key="key")["deduped"] is False
    pair.has("once", "after", "own")


def test_what_is_published_over_a_socket_passes(client: Client, pair: Pair) -> None:
    with subscribed(client, pair.dest) as socket:
        socket.until_caught_up()
        socket.publish(pair.source, "a", "b")
        assert covered_by_pushes(pair.dest, socket.until_seq(pair.dest, 2), head=2).data == ["a", "b"]


def test_a_failed_append_passes_nothing(client: Client) -> None:
    pair = paired(client, {"cap_records": 2, "discard": "reject"})
    pair.append(1, 2)
    error_of(client.send_append(pair.source, 3), 422, "topic_full")
    invalid(client.send_append(pair.source, records=[{"data": 1, "meta": {STAMP: "x"}}]))
    pair.has(1, 2)
    assert pair.settle()["forwarded_total"] == 2


# Where a router begins


@pytest.mark.parametrize("begin", ["tail", "earliest"])
def test_a_router_begins_where_it_is_told_to(client: Client, source_class: str, begin: str) -> None:
    source, dest, router = fresh_name(), fresh_name(), fresh_name("router")
    client.put_topic(source, durability=source_class)
    client.append(source, *range(300))
    put_router(client, router, source, dest, begin=begin)
    client.append(source, "after")
    has(client, dest, *(range(300) if begin == "earliest" else []), "after")
    check_figures(client, dest)


def test_the_earliest_of_a_source_with_deletions_is_what_is_left(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    client.tagged(source, "a", "b", "c", "b", "d")
    client.delete_records(source, before_seq=2)
    client.delete_records(source, match="b")
    (router,) = connect_topics(client, source, dest, begin="earliest")
    has(client, dest, "c", "d")
    assert everything(client, dest).tombstones == []
    (settled,) = settle(client, router)
    assert (settled["cursor_seq"], settled["forwarded_total"]) == (5, 2)


def test_the_earliest_of_a_source_with_evictions_is_what_is_left(client: Client) -> None:
    source, dest = fresh_name(), fresh_name()
    client.put_topic(source, cap_records=3)
    client.append(source, *range(1, 11))
    connect_topics(client, source, dest, begin="earliest")
    client.append(source, 11)
    has(client, dest, 8, 9, 10, 11)


def test_a_second_router_from_the_earliest_tells_everything_again(client: Client, pair: Pair) -> None:
    pair.append(1, 2)
    pair.has(1, 2)
    put_router(client, fresh_name("router"), pair.source, pair.dest, begin="earliest")
    pair.has(1, 2, 1, 2)


# Filters


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (["tag", "Eq", "a"], ["a", "a"]),
        ("a", ["a", "a"]),
        ("a*", ["a*"]),
        (["tag", "Eq", "a*"], ["a*"]),
        (["tag", "Glob", "a*"], ["a", "a.1", "a*", "a"]),
        (["tag", "Glob", "a**"], ["a*"]),
        (["tag", "Glob", "*"], ["a", "b", "a.1", "a*", "A", "é", "a"]),
        (["tag", "Glob", "é*"], ["é"]),
        ("none", []),
        (None, ["a", "b", None, "a.1", "a*", "A", "é", "a"]),
    ],
    ids=str,
)
def test_a_filter_lets_through_what_it_matches(client: Client, given: Any, passed: list[Any]) -> None:
    pair = paired(client, filter=given)
    client.tagged(pair.source, "a", "b", None, "a.1", "a*", "A", "é", "a")
    pair.has(*passed)
    settled = pair.settle()
    assert (settled["cursor_seq"], settled["lag"], settled["forwarded_total"]) == (8, 0, len(passed))
    reading = everything(client, pair.dest)
    assert (reading.seqs, reading.tombstones) == (list(range(1, len(passed) + 1)), [])


def test_a_filter_sees_tags_that_are_not_preserved(client: Client) -> None:
    first, second, third = fresh_name(), fresh_name(), fresh_name()
    connect_topics(client, first, second, filter="a", preserve_tag=False)
    (router,) = connect_topics(client, second, third, filter=["tag", "Glob", "*"])
    client.tagged(first, "a", "b", "a")
    has(client, second, "a", "a")
    assert all("$tag" not in record for record in everything(client, second).records)
    # They have none for the next one to match.
    assert settle(client, router)[0]["cursor_seq"] == 2
    has(client, third)


def test_filters_part_a_source(client: Client) -> None:
    source = fresh_name()
    dests = {tag: fresh_name() for tag in "abc"}
    for tag, dest in dests.items():
        connect_topics(client, source, dest, filter=tag)
    tags = [tag for number in range(60) for tag in "abc"[: number % 4]]
    client.append(source, records=[{"data": f"{tag}{place}", "tag": tag} for place, tag in enumerate(tags)])
    for tag, dest in dests.items():
        has(client, dest, *[f"{tag}{place}" for place, other in enumerate(tags) if other == tag])


def test_filters_of_a_chain_all_hold(client: Client) -> None:
    first, second, third = fresh_name(), fresh_name(), fresh_name()
    connect_topics(client, first, second, filter=["tag", "Glob", "a*"])
    connect_topics(client, second, third, filter=["tag", "Glob", "ab*"])
    client.tagged(first, "a", "ab", "b", "abc", None)
    has(client, second, "a", "ab", "abc")
    has(client, third, "ab", "abc")


def test_an_update_holds_for_what_comes_after_it(client: Client, pair: Pair) -> None:
    updates: list[dict[str, Any]] = [
        {"filter": "a"},
        {"filter": "b", "preserve_tag": False},
        {"preserve_node": False},
        {"filter": None},
    ]
    for place, fields in enumerate(updates):
        pair.settle()
        put_router(client, pair.router, pair.source, pair.dest, **fields)
        pair.append(records=[{"data": f"{place}{tag}", "tag": tag, "node": "n"} for tag in "ab"])
    pair.has("0a", "1b", "2b", "3a", "3b")
    copies = everything(client, pair.dest).records
    assert [copy.get("$tag") for copy in copies] == ["a", None, None, None, None]
    assert [copy.get("$node") for copy in copies] == ["n", "n", None, None, None]


# Stamps


def test_exactly_once_stamps_one_string_and_leaves_the_rest_of_meta(client: Client) -> None:
    pair = paired(client, guarantee="exactly_once")
    pair.append(records=RECORDS)
    has_head(client, pair.dest, len(RECORDS))
    stamps = []
    for original, copy in zip(RECORDS, everything(client, pair.dest).records, strict=True):
        stamp = copy["meta"].pop(STAMP)
        assert isinstance(stamp, str)
        assert pair.router in stamp
        assert str(copy["$seq"]) in re.findall("[0-9]+", stamp)
        assert copy["meta"] == original.get("meta", {})
        assert copy["data"] == original["data"]
        stamps.append(stamp)
    assert len(set(stamps)) == len(stamps)
    assert "meta" not in everything(client, pair.source).records[0]
    assert "meta" not in everything(client, pair.dest, include_meta=False).records[0]


def test_a_stamp_is_outside_the_limits_of_meta(client: Client) -> None:
    pair = paired(client, guarantee="exactly_once")
    meta = {f"{number:02}": "v" * 240 for number in range(64)}
    whole = "x" * ((1 << 20) - 2)
    pair.append(records=[{"data": 1, "meta": meta}])
    pair.append(whole)
    has_head(client, pair.dest, 2)
    first, second = everything(client, pair.dest).records
    assert isinstance(first["meta"].pop(STAMP), str)
    assert first["meta"] == meta
    assert second["data"] == whole
    assert set(second["meta"]) == {STAMP}


def test_a_stamp_holds_the_longest_name(client: Client) -> None:
    source, dest, router = fresh_name(), fresh_name(), fresh_name("router") + ">"
    router += ">" * (255 - len(router))
    put_router(client, router, source, dest, guarantee="exactly_once")
    client.append(source, 1)
    has(client, dest, 1)
    assert router in everything(client, dest).records[0]["meta"][STAMP]


def test_a_chain_of_exactly_once_has_one_stamp(client: Client) -> None:
    topics = [fresh_name("chain") for _ in range(4)]
    connect_topics(client, *topics, guarantee="exactly_once")
    client.append(topics[0], records=[{"data": 1, "meta": {"k": "v"}}])
    for topic in topics[1:]:
        has(client, topic, 1)
        meta = everything(client, topic).records[0]["meta"]
        assert isinstance(meta.pop(STAMP), str)
        assert meta == {"k": "v"}


def test_at_least_once_stamps_nothing(client: Client, pair: Pair) -> None:
    pair.append(records=[{"data": 1}, {"data": 2, "meta": {"k": "v"}}])
    pair.has(1, 2)
    first, second = everything(client, pair.dest).records
    assert "meta" not in first
    assert second["meta"] == {"k": "v"}


def test_a_guarantee_may_be_changed(client: Client, pair: Pair) -> None:
    for guarantee in ("at_least_once", "exactly_once", "at_least_once"):
        pair.settle()
        put_router(client, pair.router, pair.source, pair.dest, guarantee=guarantee)
        pair.append(guarantee)
    pair.has("at_least_once", "exactly_once", "at_least_once")
    stamped = [STAMP in record.get("meta", {}) for record in everything(client, pair.dest).records]
    assert stamped == [False, True, False]
