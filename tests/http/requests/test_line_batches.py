"""Lines of an upload and their batches, however they come (`topics.http.requests.line_batches`)."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.config import Settings
from topics.errors import ApiError
from topics.http.requests.append_requests import BadLine, decode_lines, decode_plain
from topics.http.requests.line_batches import LineBatch, LineBatches

SETTINGS = Settings(wal_shards=1)


def told(batch: LineBatch) -> tuple[list[bytes], list[int], int]:
    return batch.lines, list(batch.numbers), batch.size


def batches_of(pieces: list[bytes], records: int = 3, nbytes: int = 20, longest: int = 50) -> list[LineBatch]:
    batches = LineBatches(records, nbytes, longest)
    found = []
    for piece in pieces:
        batches.feed(piece)
        while (batch := batches.next()) is not None:
            found.append(batch)
    while (batch := batches.end()) is not None:
        found.append(batch)
    assert batches.held == 0
    return found


PLAIN = st.sampled_from([b'{"data":%b}' % value for value in (b"1", b'""', b" 2", b"[1", b"2]", b"1,2", b"", b"1}")])
LINES = st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b" ")) | PLAIN, max_size=30)


@given(LINES, st.lists(st.integers(0, 600), max_size=10), st.booleans())
def test_where_a_batch_ends_depends_on_the_lines_alone(lines: list[bytes], cuts: list[int], ended: bool) -> None:
    content = b"\n".join(lines) + (b"\n" if ended else b"")
    places = [0, *sorted(min(cut, len(content)) for cut in cuts), len(content)]
    pieces = [content[a:b] for a, b in pairwise(places)]
    found = batches_of(pieces)
    whole, single = batches_of([content]), batches_of([content[i : i + 1] for i in range(len(content))])
    assert list(map(told, found)) == list(map(told, whole)) == list(map(told, single))
    kept = [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    assert [pair for batch in found for pair in zip(batch.numbers, batch.lines, strict=True)] == kept
    for batch in found:
        assert batch.size == sum(map(len, batch.lines))
        assert len(batch.lines) == 1 or batch.size <= 20
        assert 1 <= len(batch.lines) <= 3
    for batch, following in pairwise(found):
        assert len(batch.lines) == 3 or batch.size + len(following.lines[0]) > 20, "no batch ends too soon"


def test_a_line_that_is_too_long_is_refused_before_it_ends() -> None:
    batches = LineBatches(10, 100, 50)
    batches.feed(b"a\nb\n" + b"c" * 50)
    assert (batches.line, batches.held) == (3, 52)
    with pytest.raises(ApiError, match="record_too_large"):
        batches.feed(b"c")


def test_lines_of_a_batch_become_columns() -> None:
    request = decode_lines(
        [b'{"data": 1 }', b' {"data":"\\n", "tag":"t","x":1}\r', b'{"meta":{},"data":[1,\r2]}'], SETTINGS
    )
    assert request.datas == [b"1", b'"\\n"', b"[1, 2]"]
    assert (request.tags, request.nodes, request.metas) == ([None, "t", None], None, None)


VALUES = [
    b"1", b"null", b'"a"', b'"\\n\xc3\xa9"', b'{"a":[1,{}]}', b"[1,\r2]", b" 1", b"1 ", b"", b"1,2", b"[1", b"2]", b'"',
    b"01", b'1,"tag":"t"', b'1},{"data":2', b'"\xff"', b'"\\ud800"', b"[" * 512 + b"]" * 512, b"[" * 513 + b"]" * 513,
]  # fmt: skip


@given(st.lists(st.sampled_from(VALUES[:6]) | st.sampled_from(VALUES), min_size=1, max_size=6))
def test_plain_lines_are_decoded_together_as_each_by_itself(values: list[bytes]) -> None:
    lines = [b'{"data":%b}' % value for value in values]
    together = decode_plain(values, SETTINGS)
    if together is None:
        assert any(value in VALUES[6:] for value in values)
        return
    each = decode_lines(lines, SETTINGS)
    assert together.datas == each.datas
    assert (each.tags, each.nodes, each.metas) == (None, None, None)


def test_lines_that_are_right_only_together_are_not_taken_for_records() -> None:
    for values in ([b"1,2", b"[3", b"4]"], [b"[1", b"2]"], [b"1", b"", b"1"], [b"1", b" 2"], [b"1,2", b'"', b'"']):
        assert decode_plain(values, SETTINGS) is None, values


@pytest.mark.parametrize(
    ("lines", "index", "field"),
    [
        ([b'{"data":1}', b'{"data":1,"tag":""}'], 1, "tag"), ([b"1"], 0, "body"), ([b'{"tag":"t"}'], 0, "data"),
        ([b'{"data":1}', b'{"data":1,"meta":{"_topics.x":"v"}}'], 1, "meta"), ([b'{"data":"\xff"}'], 0, "body"),
        ([b'{"data":1}', b'{"data":' + b"[" * 600 + b"]" * 600 + b"}"], 1, "data"),
        ([b'{"data":[1', b"2]}"], 0, "body"), ([b'{"data":1},{"data":2}', b'{"data":[1', b"2]}"], 0, "body"),
    ],
)  # fmt: skip
def test_the_first_line_that_is_no_record_is_named(lines: list[bytes], index: int, field: str) -> None:
    with pytest.raises(BadLine) as raised:
        decode_lines(lines, SETTINGS)
    assert (raised.value.index, raised.value.error.detail["field"]) == (index, field)
    assert "records[" not in raised.value.error.message
