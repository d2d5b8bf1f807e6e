"""How lines become records, and which of them do not."""

from __future__ import annotations

import csv
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.cli.records import record_input
from topics.cli.records.record_input import BadInput, Line, LineSplitter, Parser
from topics.client.calls import encode_record


def lines_of(*pieces: bytes) -> list[Line]:
    splitter = LineSplitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + list(splitter.end())


def records(text: bytes, **options: Any) -> list[Any]:
    """The records in a text, as the daemon gets them."""
    parsed = Parser(**options).parse(lines_of(text))
    return [msgspec.json.decode(encode_record(record)) for _, record in parsed]


def refusal(text: bytes, **options: Any) -> tuple[int, int, str]:
    """How many records come before the line of which none can be made, its number, and what is wrong with it."""
    parsed: list[Any] = []
    with pytest.raises(BadInput) as caught:
        parsed.extend(Parser(**options).parse(lines_of(text)))
    return len(parsed), caught.value.number, caught.value.problem


# ----------------------------------------------------------------- lines


@given(st.lists(st.sampled_from([b"", b"a", b"\r", b"bc", "ä\u2028".encode()])), st.booleans(), st.data())
def test_lines_are_the_same_wherever_the_stream_is_cut(lines: list[bytes], ended: bool, data: st.DataObject) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    expected = text.split(b"\n")
    if expected[-1] == b"":
        expected.pop()
    assert lines_of(*pieces) == [Line(i, line.removesuffix(b"\r")) for i, line in enumerate(expected, 1)]


def test_a_line_that_does_not_end_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "MAX_LINE_BYTES", 10)
    splitter = LineSplitter()
    assert [line.text for line in splitter.feed(b"one\n1234567890")] == [b"one"]
    with pytest.raises(BadInput, match="longer than 10 bytes") as caught:
        list(splitter.feed(b"1"))
    assert caught.value.number == 2


# ----------------------------------------------------------------- text


def test_each_line_of_text_is_a_string_and_an_empty_one_the_empty_string() -> None:
    assert records(b'a "b"\r\n\n\x1b[1m\x00\n\xc3\xa4') == [
        {"data": 'a "b"'},
        {"data": ""},
        {"data": "\x1b[1m\x00"},
        {"data": "ä"},
    ]


def test_records_get_the_tag_node_and_metadata_that_are_for_all() -> None:
    assert records(b"a", tag="t", node="n", meta={"k": "v"}) == [
        {"data": "a", "tag": "t", "node": "n", "meta": {"k": "v"}}
    ]


@pytest.mark.parametrize("form", ["text", "ndjson", "records", "csv"])
def test_what_is_not_utf_8_is_refused_with_the_number_of_its_line(form: str) -> None:
    first = {"text": b"a", "ndjson": b"1", "records": b'{"data":1}', "csv": b"a\n1"}[form]
    lines = first.count(b"\n") + 1
    assert refusal(first + b'\n"\xff"\n', form=form) == (1, lines + 1, "is not UTF-8 (byte 2)")


# ----------------------------------------------------------------- JSON


def test_a_json_value_stays_as_it_is_written() -> None:
    parsed = Parser(form="ndjson").parse(lines_of(b' {"a":  1.50, "\\u0061": 2}\t\r\n\n  \n[1e999]\n'))
    assert [(number, encode_record(record)) for number, record in parsed] == [
        (1, b'{"data":{"a":  1.50, "\\u0061": 2}}'),
        (4, b'{"data":[1e999]}'),
    ]


@pytest.mark.parametrize("line", [b'{"a":', b"hello", b'"a\x01"', b"1 2", b"[" * 5000 + b"]" * 5000, b"{'a': 1}"])
def test_what_is_not_json_is_refused_and_what_stands_before_it_is_not(line: bytes) -> None:
    before, number, problem = refusal(b"1\n\n" + line + b"\n2", form="ndjson")
    assert (before, number) == (1, 3)
    assert problem.startswith("is not JSON: ")


def test_an_empty_argument_is_no_json() -> None:
    assert refusal(b" \n", form="ndjson", skip_empty=False)[:2] == (0, 1)


def test_a_field_of_the_object_is_the_tag_and_another_the_node() -> None:
    text = b'{"t":"x","n":7.50}\n{"t":null,"n":"y"}\n{"t":""}\n{}'
    found = records(text, form="ndjson", tag="T", node="N", tag_field="t", node_field="n")
    assert [(record["tag"], record["node"]) for record in found] == [("x", "7.50"), ("T", "y"), ("T", "N"), ("T", "N")]


@pytest.mark.parametrize("line", [b'{"t":[1]}', b'{"t":true}', b"7"])
def test_a_field_that_cannot_be_a_tag_is_refused(line: bytes) -> None:
    assert refusal(b'{"t":1}\n' + line, form="ndjson", tag_field="t")[:2] == (1, 2)


# ----------------------------------------------------------------- whole records


def test_whole_records_are_taken_as_they_are_written_and_as_they_are_read() -> None:
    text = (
        b'{"data": {"a":  1}, "tag": "t", "node": "n", "meta": {"k": "v"}}\n'
        b'{"$seq":7,"$ts":1,"$tag":"t","$node":"n","data":null}\n'
        b'{"topic":"x","data":2}\n'
    )
    assert records(text, form="records", tag="T", meta={"m": "1"}) == [
        {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}},
        {"data": None, "tag": "t", "node": "n", "meta": {"m": "1"}},
        {"data": 2, "tag": "T", "meta": {"m": "1"}},
    ]


def test_what_stands_between_records_that_were_read_is_skipped() -> None:
    text = b'{"data":1}\n{"$tombstone":{"gap_from":1}}\n{"topic":"x","$deleted":{}}\n{"$end":{}}\n{"data":2}'
    assert records(text, form="records") == [{"data": 1}, {"data": 2}]


@pytest.mark.parametrize(
    "line",
    [
        b"{}",
        b'{"$seq":1}',
        b'{"data":1,"other":1}',
        b"1",
        b'{"data":1,"tag":2}',
        b'{"data":1,"meta":{"k":1}}',
        b'{"data":1,"meta":[]}',
    ],
)
def test_what_is_json_but_no_record_is_refused(line: bytes) -> None:
    before, number, problem = refusal(b'{"data":1}\n' + line, form="records")
    assert (before, number) == (1, 2)
    assert problem.startswith("is no record: ")


# ----------------------------------------------------------------- CSV


def test_rows_become_objects_with_the_names_of_the_header() -> None:
    text = b'\xef\xbb\xbfid,"the name"\r\n1,ann\r\n\r\n2,"b\r\no\n""b"""\r\n3,'
    assert [record["data"] for record in records(text, form="csv")] == [
        {"id": "1", "the name": "ann"},
        {"id": "2", "the name": 'b\no\n"b"'},
        {"id": "3", "the name": ""},
    ]


def test_columns_are_the_tag_and_the_node_where_they_are_not_empty() -> None:
    found = records(b"t;n;x\na;;1\n;b;2", form="csv", delimiter=";", tag="T", tag_field="t", node_field="n")
    assert found == [
        {"data": {"t": "a", "n": "", "x": "1"}, "tag": "a"},
        {"data": {"t": "", "n": "b", "x": "2"}, "tag": "T", "node": "b"},
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"a,b\n1,2\n1\n", (1, 3, "has 1 fields, and the header line 2")),
        (b"a,b\n1,2\n1,2,3\n", (1, 3, "has 3 fields, and the header line 2")),
        (b'a,b\n1,2\n1,"2\n3\n', (1, 3, "is not CSV: unexpected end of data")),
        (b"a,a\n1,2\n", (0, 1, "names a column twice")),
        (b"b\n1\n", (0, 1, "has no column 'a'")),
    ],
)
def test_a_row_that_does_not_fit_is_refused(text: bytes, expected: tuple[int, int, str]) -> None:
    assert refusal(text, form="csv", tag_field="a") == expected


def test_a_row_that_does_not_end_is_not_held_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_input, "MAX_LINE_BYTES", 20)
    limit_before = csv.field_size_limit()
    assert refusal(b'a\n1\n"' + b"x\n" * 30, form="csv") == (1, 3, "begins a row of more than 20 bytes")
    assert csv.field_size_limit() == limit_before, "the limit of this process stays as it was"
