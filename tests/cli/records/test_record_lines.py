"""What records look like: the bytes that were appended for programs, and nothing that acts on a terminal for people."""

from __future__ import annotations

import json
import unicodedata

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.cli.records.record_lines import inert, json_line, line_of, news
from topics.client.results import Record, Tombstone, TopicDeleted

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\r\n\t\u202e\u2028\x00"


def record(raw: bytes, tag: str | None = None, node: str | None = None, **meta: str) -> Record:
    return Record(topic="t", seq=7, ts=1795296443424, tag=tag, node=node, raw=msgspec.Raw(raw), meta=meta)


GAP = Tombstone(topic="t", gap_from=3, gap_to=5, reason="cap", missed_estimate=3, earliest_seq=6, head_seq=9)


def test_a_record_is_a_line_of_json_with_its_data_as_it_was_appended() -> None:
    assert json_line(record(b'{"a":  1.50}'), named=False) == b'{"$seq":7,"$ts":1795296443424,"data":{"a":  1.50}}'
    full = json_line(record(b'"\xc2\x9b"', "x", "y", k="v"), named=True)
    assert full == (
        b'{"topic":"t","$seq":7,"$ts":1795296443424,"$tag":"x","$node":"y","data":"\xc2\x9b","meta":{"k":"v"}}'
    )


def test_gaps_and_ends_are_lines_of_their_own() -> None:
    assert json.loads(json_line(GAP, named=False)) == {
        "$tombstone": {
            "gap_from": 3,
            "gap_to": 5,
            "reason": "cap",
            "missed_estimate": 3,
            "earliest_seq": 6,
            "head_seq": 9,
        }
    }
    deleted = TopicDeleted(topic="t", head_seq=9)
    assert json.loads(json_line(deleted, named=True)) == {"topic": "t", "$deleted": {"head_seq": 9}}


def test_a_gap_in_words_says_which_records_and_why() -> None:
    assert news(GAP, named=True) == "t: records 3 to 5 are gone (cap)"
    assert news(msgspec.structs.replace(GAP, gap_to=3), named=False) == "record 3 is gone (cap)"
    assert "made again" in news(msgspec.structs.replace(GAP, reason="recreated"), named=False)


@settings(max_examples=40, deadline=None)
@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_for_a_terminal_says_the_same_and_does_nothing(value: object) -> None:
    raw = msgspec.json.encode(value)
    shown = inert(raw)
    assert json.loads(shown) == json.loads(raw)
    assert not any(unicodedata.category(c) in {"Cc", "Zl", "Zp"} for c in shown)


def test_nothing_in_a_record_acts_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    line = line_of(record(json.dumps(HOSTILE, ensure_ascii=False).encode(), HOSTILE, HOSTILE, k=HOSTILE), named=True)
    assert not any(unicodedata.category(c) in {"Cc", "Zl", "Zp"} or c == "\u202e" for c in line)
    assert line.startswith("t  7  2026-11-21 ")
