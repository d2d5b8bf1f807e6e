"""Rows become records: each type of Spark has one JSON, and what cannot be a record is named."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.spark.records import ColumnError, RecordLines, RowError, check_columns, json_texts, lines

META = pa.map_(pa.string(), pa.string())
MOMENT = datetime.datetime(2024, 1, 31, 23, 59, 58, 5, tzinfo=datetime.UTC)


def written(option: str | None = "t", /, before: int = 0, **columns: Any) -> list[RecordLines]:
    return list(lines(pa.record_batch(columns), before, option))


def records(**columns: Any) -> list[Any]:
    """What the lines of one topic are, decoded."""
    (only,) = written(**columns)
    return [json.loads(line) for line in only.body.splitlines()]


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (pa.null(), None, "null"),
        (pa.bool_(), True, "true"),
        (pa.int64(), -(2**63), "-9223372036854775808"),
        (pa.float64(), 1.0, "1.0"),
        (pa.float64(), 1e300, "1e+300"),
        (pa.float32(), 0.1, "0.1"),
        (pa.float64(), float("nan"), "null"),
        (pa.float64(), float("-inf"), "null"),
        (pa.decimal128(38, 18), Decimal("1234567890123456789.1"), "1234567890123456789.100000000000000000"),
        (pa.string(), 'a "b"\\\n\x01 é', '"a \\"b\\"\\\\\\n\\u0001 é"'),
        (pa.large_string(), "x", '"x"'),
        (pa.binary(), b"\x00\xff", '"AP8="'),
        (pa.date32(), MOMENT.date(), '"2024-01-31"'),
        (pa.timestamp("us", "UTC"), MOMENT, '"2024-01-31T23:59:58.000005Z"'),
        (pa.timestamp("us", "Asia/Tokyo"), MOMENT, '"2024-01-31T23:59:58.000005Z"'),
        (pa.timestamp("us"), MOMENT.replace(tzinfo=None), '"2024-01-31T23:59:58.000005"'),
        (pa.list_(pa.int32()), [1, None], "[1,null]"),
        (pa.list_(pa.int32()), [], "[]"),
        (pa.map_(pa.string(), pa.int8()), [("a", 1), ('"', None)], '{"a":1,"\\"":null}'),
        (pa.map_(pa.int32(), pa.bool_()), [(7, True)], '{"7":true}'),
        (pa.struct([]), {}, "{}"),
        (
            pa.struct([('"', pa.list_(pa.struct([("a", pa.int8())])))]),
            {'"': [{"a": 1}, None]},
            '{"\\"":[{"a":1},null]}',
        ),
        (pa.struct([("a", pa.int8())]), None, "null"),
    ],
)
def test_every_type_has_one_json(kind: pa.DataType, value: Any, text: str) -> None:
    array = pa.array([value, None, value], kind)
    assert json_texts(array).to_pylist() == [text, "null", text]
    assert json_texts(array.slice(1)).to_pylist() == ["null", text]


NESTED = pa.struct(
    [("s", pa.string()), ("l", pa.list_(pa.struct([("n", pa.int64())]))), ("m", pa.map_(pa.string(), pa.string()))]
)
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
_rows = st.none() | st.fixed_dictionaries(
    {
        "s": st.none() | _texts,
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"n": st.none() | st.integers(-9, 9)}), max_size=3),
        "m": st.none() | st.dictionaries(_texts, st.none() | _texts, max_size=3),
    }
)


@given(st.lists(_rows, max_size=8), st.integers(0, 8))
def test_nested_values_come_back_from_their_json_wherever_a_batch_is_cut(rows: list[Any], start: int) -> None:
    # A map of Arrow is made of pairs.
    made = [row and {**row, "m": row["m"] if row["m"] is None else list(row["m"].items())} for row in rows]
    found = json_texts(pa.array(made, NESTED).slice(start)).to_pylist()
    assert [json.loads(text) for text in found] == rows[start:]


def test_a_text_of_json_is_written_as_it_is() -> None:
    (only,) = written(data=['{"a" : 1.50}', ' "é"', "1e400"])
    assert only.body.decode() == '{"data":{"a" : 1.50}}\n{"data": "é"}\n{"data":1e400}\n'
    assert list(only.rows) == [1, 2, 3]


def test_line_ends_between_tokens_become_spaces() -> None:
    assert records(data=["[1,\r\n2]", "3"]) == [{"data": [1, 2]}, {"data": 3}]


def test_tag_node_and_meta_are_there_where_they_are_not_null() -> None:
    assert records(
        data=["1", None, "3"],
        tag=['q"', None, "eu"],
        node=pa.array([None, None, "n"]),
        meta=pa.array([[("a", "b\n")], None, []], META),
    ) == [
        {"data": 1, "tag": 'q"', "meta": {"a": "b\n"}},
        {"data": None},
        {"data": 3, "tag": "eu", "node": "n", "meta": {}},
    ]


def test_what_was_read_from_a_topic_can_be_written_without_selecting_columns() -> None:
    read = {"topic": ["a"], "seq": [7], "ts": pa.array([MOMENT], pa.timestamp("us", "UTC")), "data": ["1"]}
    check_columns(pa.record_batch(read).schema, "copy")
    (only,) = written("copy", **read)
    assert (only.topic, only.body) == ("copy", b'{"data":1}\n')


def test_rows_of_several_topics_are_told_apart_in_order_and_keep_their_positions() -> None:
    found = written(None, before=10, data=["1", "2", "3"], topic=["a", "b", "a"])
    assert [(one.topic, one.body, list(one.rows)) for one in found] == [
        ("a", b'{"data":1}\n{"data":3}\n', [11, 13]),
        ("b", b'{"data":2}\n', [12]),
    ]


def test_large_batches_are_made_into_lines_bit_by_bit() -> None:
    text = json.dumps("x" * 1_000_000)
    found = written(data=[text] * 10)
    assert len(found) > 1
    assert b"".join(one.body for one in found) == f'{{"data":{text}}}\n'.encode() * 10
    assert [row for one in found for row in one.rows] == list(range(1, 11))


@pytest.mark.parametrize(
    "text", ["", "nul", "[1", "NaN", "{'a':1}", "1 2", '1,"tag":"smuggled"', '1}\n{"data":2', "01"]
)
def test_a_text_that_is_not_json_is_named_by_its_row(text: str) -> None:
    with pytest.raises(RowError, match=r"data is a string and has to be JSON, but .*to_json") as failure:
        written(before=100, data=["1", None, text, "also bad"])
    assert failure.value.row == 103


def test_a_text_that_is_not_utf8_is_named_by_its_row() -> None:
    raw = pa.array([b'"a"', b'"\xff"'], pa.binary())
    with pytest.raises(RowError, match="not UTF-8") as failure:
        written(data=pa.Array.from_buffers(pa.string(), 2, raw.buffers()))
    assert failure.value.row == 2


def test_a_row_without_a_topic_is_named() -> None:
    with pytest.raises(RowError, match="topic is null, and there is no option `topic`") as failure:
        written(None, before=5, data=["1", "2"], topic=["a", None])
    assert failure.value.row == 7


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("data", pa.string()), ("colour", pa.string())], "'colour': a record has data, tag, node, meta and topic"),
        ([("tag", pa.string())], "'data': is missing"),
        ([("data", pa.string()), ("data", pa.string())], "'data': is there 2 times"),
        ([("data", pa.string()), ("tag", pa.int64())], "'tag': is to be a string, not int64"),
        ([("data", pa.string()), ("meta", pa.string())], r"'meta': is to be map<string,string>, not string"),
        ([("data", pa.string()), ("gap_from", pa.int64())], "'gap_from': rows of gaps are no records"),
        ([("data", pa.struct([("d", pa.duration("us"))]))], "'data.d': is an interval"),
        ([("data", pa.map_(pa.binary(), pa.string()))], "'data': has keys of binary"),
        (
            [("data", pa.struct([pa.field("metadata", pa.binary(), metadata={"variant": "true"})]))],
            "'data': is a variant; write to_json of it",
        ),
    ],
)
def test_columns_that_a_record_does_not_have_are_named(columns: list[Any], message: str) -> None:
    with pytest.raises(ColumnError, match=message):
        check_columns(pa.schema(columns), "t")


def test_somebody_has_to_say_which_topic() -> None:
    with pytest.raises(ColumnError, match="'topic': is missing, and so is the option `topic`"):
        check_columns(pa.schema([("data", pa.string())]), None)
