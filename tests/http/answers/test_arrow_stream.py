"""Exports as Arrow streams: the columns equal the records, with any content, in every way in which they are
gathered."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pyarrow as pa
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.http.conftest import serving
from topics.engine.operations.export import ExportEnd, ExportRequest, ExportSlice
from topics.engine.record_collector import BlockRun, run_of
from topics.http.answers.arrow_stream import SCHEMA, ArrowStream, load, record_batch
from topics.http.handlers import bulk
from topics.http.requests.body_reader import LINES_TYPE
from topics.log.block import Block, Projection, encode_block
from topics.model import Tombstone

TEXTS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=8) | st.sampled_from(
    [',"data":', '"', "\\", '{"$seq":1,"$ts":2', '},{"', "\n", "a" * 50]
)
DATAS = st.sampled_from([b"1", b"null", b'{ "a":1}', b'"\xc3\xa9"', b'",\\"data\\":"', b'{"$seq":9,"meta":{"k":"v"}}'])
Row = tuple[bytes, str | None, str | None, dict[str, str]]
ROWS = st.tuples(DATAS, st.none() | TEXTS, st.none() | TEXTS, st.just({}) | st.dictionaries(TEXTS, TEXTS, max_size=3))
PLAIN: st.SearchStrategy[Row] = st.tuples(DATAS, st.none(), st.none(), st.just({}))
load()
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def block_of(first_seq: int, ts: list[int], rows: list[Row]) -> Block:
    datas, nodes, tags, metas = (list(column) for column in zip(*rows, strict=True))
    return encode_block(
        first_seq,
        ts,
        datas,
        nodes=nodes if any(nodes) else None,
        tags=tags if any(tags) else None,
        metas=[msgspec.json.encode(meta) if meta else b"" for meta in metas] if any(metas) else None,
    )


def run(block: Block, first: int, last: int) -> BlockRun:
    text, to = block.cut(first, last, sys.maxsize, Projection(), at_least_one=True)
    assert to == last
    return run_of(block, first, last, text)


def shown(seq: int, ts: int, row: Row) -> dict[str, Any]:
    data, node, tag, meta = row
    moment = EPOCH + timedelta(milliseconds=ts)
    return {"seq": seq, "ts": moment, "node": node, "tag": tag, "meta": list(meta.items()) or None,
            "data": data.decode()}  # fmt: skip


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from([1, 7, 95, 12_345]),
    st.sampled_from([0, 8, 999_999_999_999 - 2, 1_700_000_000_000]),
    st.lists(st.lists(ROWS, min_size=1, max_size=6) | st.lists(PLAIN, min_size=1, max_size=12), min_size=1, max_size=4),
    st.data(),
)
def test_columns_are_what_the_records_are(first: int, ts: int, blocks: list[list[Row]], data: st.DataObject) -> None:
    runs, expected, seq = [], [], first
    for rows in blocks:
        times = [ts + i for i in range(len(rows))]
        ts += len(rows)
        block = block_of(seq, times, rows)
        # Some of the records only, as a filter leaves them.
        begin = data.draw(st.integers(0, len(rows) - 1))
        end = data.draw(st.integers(begin, len(rows) - 1))
        runs.append(run(block, seq + begin, seq + end))
        expected += [shown(seq + i, times[i], rows[i]) for i in range(begin, end + 1)]
        seq += len(rows)
    batch = record_batch(runs, ExportRequest())
    batch.validate(full=True)
    assert batch.schema == SCHEMA
    assert batch.to_pylist() == expected
    narrow = record_batch(runs, ExportRequest(include_tags=False, include_meta=False, include_data=False))
    assert narrow.to_pylist() == [{**row, "tag": None, "meta": None, "data": None} for row in expected]


def test_a_stream_tells_gaps_in_their_place_and_ends_with_its_end() -> None:
    stream = ArrowStream(ExportRequest())
    gap = Tombstone(gap_from=1, gap_to=3, reason="cap", missed_estimate=3, earliest_seq=4, head_seq=5)
    records = run(block_of(4, [7, 7], [(b"1", None, None, {}), (b"2", None, "t", {})]), 4, 5)
    body = stream.piece(ExportSlice(gap, b"", [records], 2, 5))
    assert stream.piece(ExportSlice(None, b"", (), 0, 9)) == b""
    body += stream.end(ExportEnd(5, 5, 4, 1))
    reader = pa.ipc.open_stream(body)
    found = [reader.read_next_batch_with_custom_metadata() for _ in range(3)]
    with pytest.raises(StopIteration):
        reader.read_next_batch()
    assert [batch.num_rows for batch, _ in found] == [0, 2, 0]
    said = [dict(metadata or {}) for _, metadata in found]
    assert said == [
        {b"$tombstone": b'{"gap_from":1,"gap_to":3,"reason":"cap","missed_estimate":3,"earliest_seq":4,"head_seq":5}'},
        {},
        {b"$end": b'{"next_from_seq":5,"head_seq":5,"earliest_seq":4,"epoch":1}'},
    ]


@pytest.mark.trio
async def test_without_pyarrow_it_is_406_and_ndjson_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("pyarrow", "pyarrow.compute", "topics.http.answers.arrow_stream"):
        monkeypatch.setitem(sys.modules, name, None)
    async with serving() as served, served.client() as client:
        await client.put("/v0/topics/a", json={})
        for accept in ("application/vnd.apache.arrow.stream", "text/csv"):
            answer = await client.get("/v0/topics/a/records", headers={"accept": accept})
            assert answer.status_code == 406
            assert answer.json()["error"]["detail"] == {"supported": ["application/x-ndjson"]}


@pytest.mark.parametrize(
    ("accept", "kinds"),
    [
        (None, "la"),
        (b" ", "la"),
        (b"*/*", "la"),
        (b"application/*;q=0.5", "la"),
        (b"application/vnd.apache.arrow.stream", "a"),
        (b"application/x-ndjson", "l"),
        (b"application/vnd.apache.arrow.stream, application/x-ndjson", "la"),
        (b"application/vnd.apache.arrow.stream, application/x-ndjson;q=0.9", "al"),
        (b"application/x-ndjson;q=0.2, */*;q=0.3", "al"),
        (b"application/x-ndjson;q=0, */*", "a"),
        (b"application/vnd.apache.arrow.stream;q=0, */*", "l"),
        (b"text/html, application/*;q=0", ""),
    ],
)
def test_what_is_wanted_more_comes_first_and_ndjson_of_equals(accept: bytes | None, kinds: str) -> None:
    named = {"l": LINES_TYPE, "a": bulk.ARROW_TYPE}
    assert bulk.wanted(accept) == [named[kind] for kind in kinds]


def test_loading_pyarrow_is_left_to_who_asks_for_it() -> None:
    async def load_twice() -> list[bool]:
        arrow = bulk.Arrow()
        return [await arrow.is_there() for _ in range(2)]

    assert trio.run(load_twice) == [True, True]
