"""The bytes of rounds, bases, packs and names (`docs/design/bucket.md` section 2): decoding gives the encoded values
back, and refuses all other bytes."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.bucket import object_names
from topics.bucket.base_format import (
    BaseBody,
    BaseHead,
    BlobRef,
    PackBuilder,
    SealedFile,
    SegmentEntry,
    TopicEntry,
    check_pack,
    decode_base,
    decode_page,
    encode_base,
    encode_page,
    open_blob,
)
from topics.bucket.container import MANY_BYTES, BadObject, deflated, inflated, open_container, seal
from topics.bucket.object_names import PackName, SegmentName
from topics.bucket.ownership.owner_format import (
    BucketFormat,
    Owner,
    decode_format,
    decode_owner,
    encode_format,
    encode_owner,
)
from topics.bucket.round_format import NO_HASH, RoundHead, Run, decode_round, encode_round

HASH = bytes(range(32))
REF = BlobRef(1, 2, 13, 40, 50, HASH)


def some_round(*, runs: list[tuple[Run, bytes]] | None = None) -> bytes:
    runs = [(Run(0, 7, 32, 5), b"hello"), (Run(1, 0, 0, 3), b"abc")] if runs is None else runs
    head = RoundHead(
        bucket="b",
        epoch=3,
        number=9,
        previous=NO_HASH,
        nonce="n",
        wall_ms=1000,
        shards=2,
        positions=[(7, 37), (0, 3)],
        runs=[run for run, _ in runs],
        body_bytes=sum(len(data) for _, data in runs),
    )
    return encode_round(head, [data for _, data in runs])


def some_base() -> bytes:
    head = BaseHead(bucket="b", epoch=3, number=9, first_round=4, wall_ms=1000, shards=2, body_bytes=0)
    return encode_base(head, BaseBody(snapshot={"number": 7, "clock": 5}, files=[(0, 7, 4)], pages=[(0, REF)]))


def test_a_round_comes_back() -> None:
    found = decode_round(some_round())
    assert found.head.positions == [(7, 37), (0, 3)]
    assert [(run, bytes(data)) for run, data in found.pieces()] == [
        (Run(0, 7, 32, 5), b"hello"),
        (Run(1, 0, 0, 3), b"abc"),
    ]
    assert found.hash == some_round()[-32:]
    assert decode_round(some_round(runs=[])).body == b""


def test_a_base_and_its_pages_come_back() -> None:
    found = decode_base(some_base())
    assert (found.head.number, found.body.pages, found.body.files) == (9, [(0, REF)], [(0, 7, 4)])
    topics = [
        TopicEntry(1, b"part", [SegmentEntry(1, 77, 3, SealedFile(10, HASH), None, None, [], REF)], True),
        TopicEntry(2, REF, [SegmentEntry(5, 0, pieces=[REF, REF])]),
        TopicEntry(3, None),
    ]
    assert decode_page(encode_page(topics)) == topics
    assert encode_page(topics) == encode_page(decode_page(encode_page(topics)))


def test_the_blobs_of_a_pack_are_where_their_references_say() -> None:
    pack = PackBuilder(PackName(3, 1))
    contents = [b"", b"a" * 10_000, bytes(range(256))]
    refs = [pack.add(content) for content in contents]
    blob = pack.finished()
    check_pack(blob)
    assert [open_blob(ref, blob[ref.offset : ref.offset + ref.length]) for ref in refs] == contents
    for ref in refs[1:]:
        with pytest.raises(BadObject):
            open_blob(ref, blob[ref.offset + 1 : ref.offset + ref.length + 1])
    with pytest.raises(BadObject, match="hash of a blob"):
        open_blob(refs[1]._replace(hash=HASH), blob[refs[1].offset : refs[1].offset + refs[1].length])


@pytest.mark.parametrize("kind", ["round", "base", "pack"])
def test_every_flipped_bit_and_every_cut_is_found(kind: str) -> None:
    pack = PackBuilder(PackName(3, 1))
    pack.add(b"content")
    blob = {"round": some_round(), "base": some_base(), "pack": pack.finished()}[kind]
    check = {"round": decode_round, "base": decode_base, "pack": check_pack}[kind]
    check(blob)
    for bit in range(8 * len(blob)):
        changed = bytearray(blob)
        changed[bit >> 3] ^= 1 << (bit & 7)
        with pytest.raises(BadObject):
            check(bytes(changed))
    for size in range(len(blob)):
        with pytest.raises(BadObject):
            check(blob[:size])
    with pytest.raises(BadObject):
        check(blob + b"\0")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.text(max_size=5) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.slow
@given(header=VALUES, body=st.binary(max_size=50) | VALUES.map(lambda value: deflated([cbor2.dumps(value)])))
def test_objects_that_an_adversary_has_sealed_are_refused_in_words(header: object, body: bytes) -> None:
    for magic, decode in ((b"TOPICSR1", decode_round), (b"TOPICSB1", decode_base)):
        with pytest.raises(BadObject):
            decode(seal(magic, header, body))
    with pytest.raises(BadObject):
        decode_page(cbor2.dumps({"no": header}))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("body_bytes", 9),
        ("body_bytes", 7),
        ("body_bytes", 1 << 40),
        ("format", 0),
        ("format", 4),
        ("shards", 3),
        ("runs", [[0, 7, -32, 8]]),
        ("epoch", 1 << 24),
        ("epoch", -1),
        ("number", 1 << 80),
        ("wall_ms", -1),
        ("window_ms", -1),
        ("positions", [[7, 37], [0, 1 << 70]]),
        ("positions", [[7, 37], [-1, 3]]),
        ("runs", [[0, 1 << 70, 32, 8]]),
    ],
)
def test_a_round_that_contradicts_itself_is_refused(field: str, value: object) -> None:
    opened = open_container(b"TOPICSR1", some_round())
    with pytest.raises(BadObject):
        decode_round(seal(b"TOPICSR1", {**opened.header, field: value}, opened.body))


def test_rounds_and_bases_of_the_version_before_are_read_and_those_of_the_next_are_refused() -> None:
    for magic, blob, decode, present in (
        (b"TOPICSR1", some_round(), decode_round, 3),
        (b"TOPICSB1", some_base(), decode_base, 2),
    ):
        opened = open_container(magic, blob)
        assert opened.header["format"] == present
        for older in range(1, present):
            header = {name: value for name, value in opened.header.items() if name != "window_ms"}
            decode(seal(magic, {**header, "format": older}, opened.body))
        with pytest.raises(BadObject, match=f"format {present + 1}, which this version does not know"):
            decode(seal(magic, {**opened.header, "format": present + 1}, opened.body))


@pytest.mark.parametrize("changes", [{"epoch": -1}, {"pack": 10**10}, {"offset": -1}, {"length": 0}, {"size": 1 << 31}])
def test_blobs_that_cannot_be_are_refused_where_they_are_named(changes: dict[str, Any]) -> None:
    ref = REF._replace(**changes)
    head = BaseHead(bucket="b", epoch=3, number=9, first_round=4, wall_ms=1000, shards=2, body_bytes=0)
    with pytest.raises(BadObject, match="cannot be"):
        decode_base(encode_base(head, BaseBody(snapshot={}, files=[], pages=[(0, ref)])))
    for topic in (
        TopicEntry(1, ref),
        TopicEntry(1, b"", [SegmentEntry(1, 2, pieces=[ref])]),
        TopicEntry(1, b"", [SegmentEntry(1, 2, deleted=ref)]),
    ):
        with pytest.raises(BadObject, match="cannot be"):
            decode_page(encode_page([topic]))


@pytest.mark.parametrize(
    "topic",
    [
        TopicEntry(-1, None),
        TopicEntry(1 << 64, None),
        TopicEntry(1, None, [SegmentEntry(-1, 2)]),
        TopicEntry(1, None, [SegmentEntry(1, 1 << 64)]),
        TopicEntry(1, None, [SegmentEntry(1, 2, epoch=1 << 24)]),
        TopicEntry(1, None, [SegmentEntry(1, 2, data=SealedFile(-1, HASH))]),
    ],
)
def test_topics_and_segments_that_cannot_be_are_refused_where_they_are_named(topic: TopicEntry) -> None:
    with pytest.raises(BadObject, match="cannot be"):
        decode_page(encode_page([topic]))


def test_nothing_is_inflated_beyond_its_size() -> None:
    assert inflated(deflated([bytes(1 << 20)]), 1 << 20) == bytes(1 << 20)
    for size in (0, 1, (1 << 20) - 1, (1 << 20) + 1):
        with pytest.raises(BadObject):
            inflated(deflated([bytes(1 << 20)]), size)
    with pytest.raises(BadObject):
        inflated(b"no frame", 3)


def test_names_say_what_they_are_of() -> None:
    segment = SegmentName(0xAB, 12, 3, 0xFEED)
    name = object_names.segment_name(segment, "idx")
    assert name == "segments/00000000000000ab/00000000000000000012-0000000003-000000000000feed.idx"
    assert object_names.parse_segment(name) == (segment, "idx")
    assert object_names.parse_pack(object_names.pack_name(PackName(3, 4))) == PackName(3, 4)
    assert object_names.number_of(object_names.round_name(5)) == 5
    assert object_names.number_of(object_names.base_name(5)) == 5
    assert object_names.round_name(5) < object_names.round_name(10)
    for strange in ("rounds/5", "rounds/", "packs/1-1", "segments/ab/1.data", "owner", name + ".tmp", "x" + name):
        assert object_names.number_of(strange) is None
        assert object_names.parse_pack(strange) is None
        assert object_names.parse_segment(strange) is None


def test_owner_and_format_come_back_and_nothing_else_does() -> None:
    owner = Owner(epoch=2, node="a", dir="d", state="held", nonce="n", round=7)
    assert decode_owner(encode_owner(owner)) == owner
    assert decode_format(encode_format(BucketFormat(bucket=1, id="x"))).id == "x"
    for field in ("epoch", "round"):
        large = encode_owner(owner).replace(f'"{field}": '.encode(), f'"{field}": {"9" * 30}'.encode())
        with pytest.raises(BadObject):
            decode_owner(large)
    for blob in (b"", b"{}", b"[" * 100_000, b'{"epoch":0,"node":"","dir":"","state":"held","nonce":""}', b"\xff"):
        with pytest.raises(BadObject):
            decode_owner(blob)
    for blob in (b"", b"{}", b'{"bucket":2,"id":"x"}'):
        with pytest.raises(BadObject):
            decode_format(blob)


@pytest.mark.parametrize("size", [0, 1, 1000, MANY_BYTES - 1, MANY_BYTES, 2 * MANY_BYTES + 7])
def test_parts_are_compressed_as_one_whatever_their_number_is(size: int) -> None:
    data = random.Random(size).randbytes(1000) * (size // 1000 + 1)
    data = data[:size]
    for parts in ([data], [data[:7], b"", data[7:]], []):
        found = deflated(parts)
        assert inflated(found, size if parts else 0) == (data if parts else b"")
        assert len(found) < 2000 + size // 100
    assert deflated([data]) == deflated([data])
