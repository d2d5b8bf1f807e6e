"""Conditions in the bodies of appends and commits, and where there may be none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.http.requests.test_bodies import append, record, refused
from topics.config import Settings
from topics.http.requests import append_requests, topic_requests
from topics.http.requests.condition_requests import conditions_of
from topics.model import MAX_U64, CheckedAppend, Conditions, Fence

WIDE = Settings(wal_shards=1)


def in_steps(
    body: dict[str, Any], *, strict: bool = False, carrier: append_requests.Carrier = "append"
) -> CheckedAppend:
    """A large body, decoded in slices."""
    padding = [{"data": "x" * 1000} for _ in range(300)]
    raw = json.dumps({**body, "records": padding}).encode()
    steps = append_requests.decode_append_in_steps(raw, WIDE, strict=strict, carrier=carrier)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            request: CheckedAppend = end.value
            return request


def both(body: dict[str, Any]) -> Conditions | None:
    """The conditions of a body, however it is decoded."""
    found = append({**record(), **body}, WIDE).conditions
    assert in_steps(body).conditions == found
    assert in_steps({**body, "op": "publish"}, carrier="publish").conditions == found
    commit = topic_requests.decode_commit(json.dumps({"stages": ["s"], "idempotency_key": "k", **body}).encode())
    assert conditions_of(commit, WIDE) == found
    return found


def test_conditions_come_through() -> None:
    assert both({}) is None
    assert both({"expected_head_seq": None, "expected_tag_seqs": None, "fence": None}) is None
    assert both({"expected_tag_seqs": {}}) is None
    assert both({"expected_head_seq": 0}) == Conditions(head_seq=0)
    assert both({"expected_head_seq": MAX_U64}) == Conditions(head_seq=MAX_U64)
    assert both({"expected_tag_seqs": {"a": 1, "ä": 0}}) == Conditions(tag_seqs={"a": 1, "ä": 0})
    assert both({"fence": {"name": "n", "token": 7}}) == Conditions(fence=Fence("n", 7))
    assert both({"expected_head_seq": 3, "expected_tag_seqs": {"a": 1}, "fence": {"name": "x" * 128, "token": 0}})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"expected_head_seq": -1}, "expected_head_seq"),
        ({"expected_head_seq": MAX_U64 + 1}, "expected_head_seq"),
        ({"expected_head_seq": "1"}, "expected_head_seq"),
        ({"expected_head_seq": 1.5}, "expected_head_seq"),
        ({"expected_tag_seqs": []}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {"a": -1}}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {"a": None}}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {"": 1}}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {"x" * 257: 1}}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {str(i): 1 for i in range(101)}}, "expected_tag_seqs"),
        ({"expected_tag_seqs": {str(i): 1 for i in range(20_000)}}, "expected_tag_seqs"),
        ({"fence": {"name": "n"}}, "fence.token"),
        ({"fence": {"token": 1}}, "fence.name"),
        ({"fence": {"name": "", "token": 1}}, "fence.name"),
        ({"fence": {"name": "ä" * 65, "token": 1}}, "fence.name"),
        ({"fence": {"name": "n", "token": -1}}, "fence.token"),
        ({"fence": {"name": "n", "token": MAX_U64 + 1}}, "fence.token"),
        ({"fence": {"name": "n", "token": 1, "tokne": 2}}, "fence.tokne"),
        ({"fence": "n"}, "fence"),
        # Names that look like conditions are refused, strict or not: ignored, they would be promises not kept.
        ({"expected_headseq": 1}, "expected_headseq"),
        ({"expected_": 1}, "expected_"),
        ({"fences": []}, "fences"),
        ({"fence_token": 1}, "fence_token"),
    ],
)
def test_what_is_no_condition_is_refused(body: dict[str, Any], field: str) -> None:
    assert refused(append, {**record(), **body}, WIDE) == field
    assert refused(in_steps, body) == field
    assert refused(in_steps, {**body, "op": "publish"}, carrier="publish") == field
    commit = json.dumps({"stages": ["s"], "idempotency_key": "k", **body}).encode()
    if len(commit) > 100_000:
        field = "stages"  # a commit of so many texts is refused before it is decoded
    assert refused(lambda: conditions_of(topic_requests.decode_commit(commit), WIDE)) == field


def test_names_in_escapes_are_seen() -> None:
    assert refused(append, b'{"records":[{"data":1}],"\\u0065xpected_seq":1}') == "expected_seq"
    assert refused(append, b'{"records":[{"data":1}],"f\\u0065nce":{"name":"n","token":-1}}') == "fence.token"


def test_names_within_records_and_values_are_no_conditions() -> None:
    assert append(b'{"records":[{"data":{"expected_x":1},"fence_x":1}],"other":{"expected_y":1}}').conditions is None
    assert in_steps({"other": {"fence_y": 1}}).conditions is None


@pytest.mark.parametrize("query", [b"expected_head_seq=1", b"fence=n", b"%65xpected_x=1", b"stage=s&fence.name=n"])
def test_uploads_and_queries_have_no_conditions(query: bytes) -> None:
    for decode in (append_requests.decode_append_query, lambda it: append_requests.decode_ingest_query(it, WIDE)):
        assert refused(decode, query).startswith(("expected_", "fence"))
