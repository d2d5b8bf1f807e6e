"""Blocks against a naive model: what a diff shows of a record, made anew with `json`."""

from __future__ import annotations

import json
from array import array
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.log.block import Block, Projection, RecordParts, encode_block

PROJECTIONS = [Projection(tags, meta) for tags in (False, True) for meta in (False, True)]


class Rec(NamedTuple):
    """A record as the engine hands it over."""

    data: bytes
    node: str = ""
    tag: str | None = None
    meta: bytes = b""

    def text(self, seq: int, ts: int, projection: Projection) -> bytes:
        """What a reader gets."""
        out = b"{"
        if projection.tags and self.tag:
            out += b'"$tag":%b,' % msgspec.json.encode(self.tag)
        out += b'"$seq":%d,"$ts":%d' % (seq, ts)
        if self.node:
            out += b',"$node":%b' % msgspec.json.encode(self.node)
        out += b',"data":%b' % self.data
        if projection.meta and self.meta:
            out += b',"meta":%b' % self.meta
        return out + b"}"


def encode(first: int, ts: int | list[int], recs: list[Rec], *, force: bool = False) -> Block:
    """As the engine does it: columns that nobody uses are None, unless forced."""
    nodes = [rec.node for rec in recs]
    tags = [rec.tag for rec in recs]
    metas = [rec.meta for rec in recs]
    return encode_block(
        first,
        ts,
        [rec.data for rec in recs],
        nodes=nodes if force or any(nodes) else None,
        tags=tags if force or any(tags) else None,
        metas=metas if force or any(metas) else None,
    )


TRICKY = [
    '"',
    ',"data":',
    '},{"$seq":9,"$ts":1,"data":1}',
    "\\",
    ',"meta":{"a":"b"}',
    "\u2028",
    "😀",
    "\x00",
    '"$tag":',
]
texts = st.one_of(st.sampled_from(TRICKY), st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6))
json_values = st.recursive(
    st.one_of(st.none(), st.integers(), texts, st.just(1.5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(texts, inner, max_size=3)),
    max_leaves=5,
)
datas = st.one_of(
    json_values.map(lambda value: json.dumps(value).encode()),
    json_values.map(
        lambda value: json.dumps(value, ensure_ascii=False, indent=None, separators=(" ,", " : ")).encode()
    ),
)
metas = st.one_of(st.just(b""), st.dictionaries(texts, texts, min_size=1, max_size=3).map(msgspec.json.encode))
recs_full = st.builds(Rec, datas, st.one_of(st.just(""), texts), st.one_of(st.none(), texts), metas)
recs_plain = datas.map(Rec)
recs_tagged = st.builds(Rec, datas, st.just(""), st.one_of(st.none(), texts), st.just(b""))
runs = st.one_of(*(st.lists(kind, min_size=1, max_size=6) for kind in (recs_full, recs_plain, recs_tagged)))
firsts = st.one_of(st.sampled_from([1, 8, 9, 10, 98, 997, 999, 99_998, 2**48]), st.integers(1, 2**50))


def check(block: Block, first: int, times: list[int], recs: list[Rec | None]) -> None:
    """Every run of live records, every projection, every piece. None is an empty place."""
    assert (block.first_seq, block.count, block.last_seq) == (first, len(recs), first + len(recs) - 1)
    for i, rec in enumerate(recs):
        if rec is None:
            continue
        assert block.parts_of(first + i) == RecordParts(rec.node.encode(), (rec.tag or "").encode(), rec.meta, rec.data)
        assert block.node_of(first + i) == (rec.node or None)
    for projection in PROJECTIONS:
        shown = [rec and rec.text(first + i, times[i], projection) for i, rec in enumerate(recs)]
        for i in range(len(recs)):
            wanted: list[bytes] = []
            for j in range(i, len(recs)):
                text = shown[j]
                if text is None:
                    break
                wanted.append(text)
                body, last = block.cut(first + i, first + j, 1 << 30, projection, at_least_one=False)
                assert (body, last) == (b",".join(wanted), first + j)
                json.loads(b"[%b]" % body)


@settings(max_examples=50, deadline=None)
@given(first=firsts, ts=st.integers(0, 2**45), recs=runs, force=st.booleans())
def test_a_block_shows_what_json_says(first: int, ts: int, recs: list[Rec], force: bool) -> None:
    times = [ts] * len(recs)
    check(encode(first, ts, recs, force=force), first, times, list(recs))
    later = [ts + i for i in range(len(recs))]
    check(encode(first, later, recs, force=force), first, later, list(recs))


@settings(max_examples=30, deadline=None)
@given(first=firsts, batches=st.lists(runs, min_size=2, max_size=5), gone=st.sets(st.integers(0, 29)), data=st.data())
def test_blocks_that_grow_and_lose_records(first: int, batches: list[list[Rec]], gone: set[int], data: Any) -> None:
    block = encode(first, 5, batches[0])
    recs: list[Rec | None] = list(batches[0])
    times = [5] * len(recs)
    for i, batch in enumerate(batches[1:]):
        if data.draw(st.booleans()):
            block.view(data.draw(st.sampled_from(PROJECTIONS)))
        block.extend(encode(first + len(recs), 6 + i, batch, force=data.draw(st.booleans())))
        recs += batch
        times += [6 + i] * len(batch)
    check(block, first, times, recs)
    missing = sorted(first + i for i in gone if i < len(recs))
    smaller = block.without(missing)
    left = [None if first + i in missing else rec for i, rec in enumerate(recs)]
    check(smaller, first, times, left)
    check(block, first, times, recs)
    assert len(smaller.body) == sum(
        len(rec.text(first + i, times[i], Projection())) + 1 for i, rec in enumerate(left) if rec
    )
    block.close()
    assert isinstance(block.body, bytes)
    check(block, first, times, recs)


@settings(max_examples=40, deadline=None)
@given(recs=runs, budget=st.integers(0, 400), projection=st.sampled_from(PROJECTIONS), at_least_one=st.booleans())
def test_cut_takes_as_much_as_fits(recs: list[Rec], budget: int, projection: Projection, at_least_one: bool) -> None:
    block = encode(7, 5, recs)
    for first in range(7, 7 + len(recs)):
        taken: list[bytes] = []
        for i in range(first - 7, len(recs)):
            text = recs[i].text(7 + i, 5, projection)
            fits = len(b",".join([*taken, text])) <= budget
            if not fits and not (at_least_one and not taken):
                break
            taken.append(text)
        body, last = block.cut(first, block.last_seq, budget, projection, at_least_one=at_least_one)
        assert (body, last) == (b",".join(taken), first + len(taken) - 1)


@pytest.mark.parametrize("first", [1, 9, 99, 995, 999, 9_999])
def test_seqs_that_get_a_digit_more(first: int) -> None:
    recs = [Rec(b"%d" % (10**i)) for i in range(12)]
    check(encode(first, 123, recs), first, [123] * 12, list(recs))
    check(encode(first, 123, recs, force=True), first, [123] * 12, list(recs))


def test_untagged_records_before_the_first_tagged_one_have_no_tag() -> None:
    recs = [Rec(b"1"), Rec(b'"two"'), Rec(b"3", tag="t"), Rec(b"4"), Rec(b"5", tag="u")]
    block = encode(1, 5, recs)
    assert [block.parts_of(seq).tag for seq in range(1, 6)] == [b"", b"", b"t", b"", b"u"]


def test_percent_signs_and_bytes_in_data_are_not_a_template() -> None:
    recs = [Rec(b'"%d%b%%"'), Rec(b'"%s"', node="%d"), Rec(b'"%(x)s"', tag="%b", meta=b'{"%d":"%b"}')]
    check(encode(1, 5, recs), 1, [5] * 3, list(recs))
    check(encode(1, 5, [Rec(rec.data) for rec in recs]), 1, [5] * 3, [Rec(rec.data) for rec in recs])


def test_the_size_covers_what_is_held() -> None:
    recs = [Rec(b'"%b"' % (b"x" * 100), "n", "t", b'{"a":"b"}')] * 50
    block = encode(1, 5, recs)
    size = block.nbytes
    assert size >= len(block.body) + 50 * 4
    for projection in PROJECTIONS:
        block.view(projection)
    assert block.nbytes > 3 * len(block.body)
    assert block.without(range(1, 51)).nbytes < size / 5


def test_a_view_is_the_body_itself_where_nothing_has_to_be_added_or_cut() -> None:
    block = encode(1, 5, [Rec(b"1"), Rec(b"2")])
    for projection in PROJECTIONS:
        assert block.view(projection)[0] is block.body
    assert block.views is None


def test_an_empty_place_takes_nothing() -> None:
    block = Block(1, 0, bytearray(), array("I", [0]))
    block.extend(encode(1, 5, [Rec(b"1", tag="t")]))
    block.extend(Block(2, 1, b"", array("I", [0, 0])))
    block.extend(encode(3, 6, [Rec(b"3", node="n", meta=b'{"a":"b"}')]))
    check(block, 1, [5, 0, 6], [Rec(b"1", tag="t"), None, Rec(b"3", node="n", meta=b'{"a":"b"}')])
    body, last = block.cut(1, 3, 1000, Projection(tags=True), at_least_one=True)
    assert ([record["$seq"] for record in json.loads(b"[%b]" % body)], last) == ([1, 3], 3)
