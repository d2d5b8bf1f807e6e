"""With the lane and without it, connections get the same answers: fixed ones. Others are `test_fuzz`'s, and those of
`python -m tests.fuzz.lane_differences`."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.fuzz.connection_bytes import drawn_bytes, drawn_cuts
from tests.fuzz.lane_differences import compare
from tests.fuzz.requests import CORPUS, GET, SECOND
from topics.http.connections import lane
from topics.http.connections.request_heads import Head, read_head

DRAWN = 120


@pytest.mark.slow
@pytest.mark.parametrize("keyed", [False, True], ids=["open", "keyed"])
def test_drawn_connections_get_the_same_answers(keyed: bool) -> None:
    inputs = [(drawn_bytes(Random(seed)), seed) for seed in range(DRAWN)]
    assert compare(inputs, keyed=keyed) > 2 * DRAWN


@pytest.mark.slow
def test_the_corpus_gets_the_same_answers() -> None:
    """Each entry by itself, and between requests for the lane."""
    compare([(data, 0) for data in CORPUS.values()], keyed=False)
    compare([(GET + data + SECOND, number) for number, data in enumerate(CORPUS.values())], keyed=False)


def test_the_same_number_draws_the_same_bytes() -> None:
    data = drawn_bytes(Random(7))
    assert data == drawn_bytes(Random(7))
    cuts = drawn_cuts(Random(1), data)
    assert b"".join(cuts) == data


@pytest.mark.parametrize(
    "other",
    [
        lambda head: replace(head, size=head.size - 1),
        lambda head: replace(head, body_bytes=head.body_bytes + 1),
        lambda head: replace(head, path=head.path + b"x"),
        lambda head: replace(head, headers={**head.headers, b"host": b"stranger"}),
    ],
    ids=["size", "body", "path", "field"],
)
def test_a_difference_is_a_finding(monkeypatch: pytest.MonkeyPatch, other: object) -> None:
    def misread(data: bytes) -> Head | None:
        head = read_head(data)
        return None if head is None else other(head)  # type: ignore[operator]

    monkeypatch.setattr(lane, "read_head", misread)
    with pytest.raises(AssertionError, match="the lane answers"):
        compare([(SECOND * 2, 3)], keyed=False)
