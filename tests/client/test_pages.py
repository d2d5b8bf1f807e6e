"""Lists that are fetched page by page: which page comes next, and where they end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from topics.client import pages
from topics.client.pages import Pages
from topics.client.results import Page, Record, RouterPage, TopicPage, TopicSummary

T = TypeVar("T")


def collected(found: Pages[T], answers: Iterator[Any]) -> tuple[list[dict[str, list[str]]], list[T]]:
    """The queries of the calls that were made, and all values."""
    queries: list[dict[str, list[str]]] = []
    values: list[T] = []
    while (call := found.next_call()) is not None:
        queries.append(parse_qs(urlsplit(call.target).query))
        values.extend(found.values(next(answers)))
    return queries, values


def page(seqs: range, *, caught_up: bool, epoch: int = 3) -> Page:
    records = [Record(seq=seq, ts=1) for seq in seqs]
    last = seqs[-1]
    return Page(
        topic="a",
        epoch=epoch,
        records=records,
        next_from_seq=last,
        head_seq=9,
        earliest_seq=1,
        caught_up=caught_up,
        tombstone=None,
        lag=0,
    )


def test_a_read_goes_on_in_the_epoch_of_its_first_page_until_it_has_caught_up() -> None:
    answers = iter([page(range(1, 5), caught_up=False), page(range(5, 10), caught_up=True)])
    queries, values = collected(pages.read("a", limit=4, node="n"), answers)
    assert [value.seq for value in values if isinstance(value, Record)] == list(range(1, 10))
    assert [(query["from_seq"], query.get("epoch")) for query in queries] == [(["0"], None), (["4"], ["3"])]
    assert all(query["limit"] == ["4"] and query["node"] == ["n"] for query in queries)


def test_a_read_ends_with_the_last_seq_that_was_asked_for() -> None:
    answers = iter([page(range(3, 7), caught_up=False)])
    queries, values = collected(pages.read("a", 2, to_seq=5), answers)
    assert [value.seq for value in values if isinstance(value, Record)] == [3, 4, 5]
    assert len(queries) == 1


def test_a_list_goes_on_from_the_cursor_of_each_page() -> None:
    def summary(name: str) -> TopicSummary:
        return TopicSummary(
            topic=name,
            type="log",
            epoch=1,
            head_seq=0,
            earliest_seq=1,
            count=0,
            bytes=0,
            durable=True,
            durability="disk",
            effective_priority=0,
        )

    answers = iter([TopicPage(topics=[summary("a"), summary("b")], next_cursor="b"), TopicPage(topics=[summary("c")])])
    queries, values = collected(pages.list_all(prefix="x"), answers)
    assert [value.topic for value in values] == ["a", "b", "c"]
    assert [(query["prefix"], query.get("cursor")) for query in queries] == [(["x"], None), (["x"], ["b"])]


def test_routers_are_asked_for_by_their_ends() -> None:
    queries, values = collected(pages.all_routers(source="s", dest="d"), iter([RouterPage(routers=[])]))
    assert values == []
    assert [(query["source"], query["dest"]) for query in queries] == [(["s"], ["d"])]
