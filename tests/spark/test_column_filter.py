"""A filter says of rows what it says of records."""

from __future__ import annotations

import json

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tests.filters import oracle
from tests.filters.oracle import Written
from topics.filters.record_filter import parse_filter
from topics.raw_bytes import data_of_bytes
from topics.spark.column_filter import columns_asked, matching
from topics.spark.segment_columns import TYPES


def table_of(records: list[Written], columns: set[str]) -> pa.Table:
    """The columns of a file, in two chunks."""
    rows = [
        {
            "tag": record.tag,
            "node": record.node,
            "meta": None if record.meta is None else list(json.loads(record.meta).items()),
            "data": None if record.data is None else record.data.decode(),
        }
        for record in records
    ]
    half = len(rows) // 2
    return pa.table(
        {
            name: pa.chunked_array([[row[name] for row in part] for part in (rows[:half], rows[half:])], TYPES[name])
            for name in columns
        }
    )


@given(oracle.filters, st.lists(oracle.records, min_size=1, max_size=5))
def test_a_row_matches_if_its_record_does(text: str, records: list[Written]) -> None:
    wanted = parse_filter(text)
    found = matching(wanted, table_of(records, columns_asked(wanted)))
    assert found.to_pylist() == [oracle.matches(oracle.decoded(text), record) for record in records]


def test_raw_bytes_have_no_data_as_in_the_daemon() -> None:
    raw = data_of_bytes(b"\0\xff", "image/png").decode()
    table = pa.table({"tag": [None] * 2, "node": [None] * 2, "data": [raw, '{"$bytes":"AP8="}']})
    assert matching(parse_filter('["data","/$bytes","Exists",true]'), table).to_pylist() == [False, True]
    assert matching(parse_filter('["data","","Exists",false]'), table).to_pylist() == [True, False]


def test_only_the_columns_that_are_asked_are_needed() -> None:
    assert columns_asked(parse_filter('["tag","Eq","a"]')) == {"tag", "node"}
    assert columns_asked(parse_filter('["meta","k","Eq","a"]')) == {"tag", "node", "meta"}
    assert columns_asked(parse_filter('["Not",["data","/n","Eq",1]]')) == {"tag", "node", "data"}
