"""Frames against an independent reading of `docs/spec/storage.md` section 2: the decoder here knows nothing of
`frames`."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.storage.wal import frames
from topics.storage.wal.frames import (
    UNSEEDED,
    FrameSeeds,
    FrameType,
    LogScan,
    StoredRecord,
    UnknownFrameType,
    encode_appends,
)


class Seen(NamedTuple):
    """A frame as the page describes it."""

    type: int
    flags: int
    topic_id: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    payload: bytes
    length: int


def parse(data: bytes, salt: int | None = None, at: int = 0) -> list[Seen]:
    """Every frame of `data`, which must consist of whole ones, and which begins at `at` of a file with this salt."""
    found = []
    while data:
        (frame_len,) = struct.unpack("<I", data[:4])
        body, stored = data[4 : 4 + frame_len - 8], data[4 + frame_len - 8 : 4 + frame_len]
        assert struct.unpack("<Q", stored)[0] == xxhash.xxh3_64(body, 0 if salt is None else salt ^ at).intdigest()
        at += 4 + frame_len
        kind, flags = body[0], body[1]
        topic_id, seq, ts = struct.unpack("<QQQ", body[2:26])
        node_len, tag_len, data_len = struct.unpack("<HHI", body[26:34])
        rest = body[34:]
        assert len(rest) == node_len + tag_len + data_len
        node, tag, payload = rest[:node_len], rest[node_len : node_len + tag_len], rest[node_len + tag_len :]
        found.append(Seen(kind, flags, topic_id, seq, ts, node, tag, payload, 4 + frame_len))
        data = data[4 + frame_len :]
    return found


def parts_of(payload: bytes) -> tuple[bytes, bytes]:
    """Meta and data of an Append's payload without origin."""
    (meta_len,) = struct.unpack("<I", payload[:4])
    return payload[4 : 4 + meta_len], payload[4 + meta_len :]


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode)
datas = st.one_of(st.binary(min_size=1, max_size=40), st.just(b'{"a":",\\"data\\":"}'))
metas = st.one_of(st.just(b""), names.map(lambda text: b'{"k":"%b"}' % text))
u64 = st.integers(0, 2**64 - 1)
u48 = st.integers(0, 2**48)
batches = st.lists(st.tuples(names, names, metas, datas), min_size=1, max_size=8)


@settings(max_examples=200, deadline=None)
@given(
    topic_id=u64,
    first_seq=u48,
    ts=u48,
    batch=batches,
    plain=st.booleans(),
    durable=st.booleans(),
    closes=st.booleans(),
    given_none=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    salt=st.one_of(st.none(), st.integers(2**49, 2**64 - 1)),  # one that equals the offset has the seed 0
    place=u48,
)
def test_appends_are_what_the_page_says(
    topic_id: int,
    first_seq: int,
    ts: int,
    batch: list[tuple[bytes, bytes, bytes, bytes]],
    plain: bool,
    durable: bool,
    closes: bool,
    given_none: tuple[bool, bool, bool],
    salt: int | None,
    place: int,
) -> None:
    if plain:
        batch = [(b"", b"", b"", data) for *_, data in batch]
        given_none = (True, True, True)
    nodes, tags, metas_, datas_ = (list(column) for column in zip(*batch, strict=True))
    without = [none and not any(column) for none, column in zip(given_none, (nodes, tags, metas_), strict=True)]
    made = encode_appends(
        topic_id,
        first_seq,
        ts,
        datas_,
        nodes=None if without[0] else nodes,
        tags=None if without[1] else tags,
        metas=None if without[2] else metas_,
        durable=durable,
        closes_batch=closes,
    )
    sealed = made.data.sealed(salt, place)
    assert len(made.data) == len(sealed) == sum(made.frame_lens)
    seen = parse(sealed, salt, place)
    assert len(seen) == len(batch)
    last = len(batch) - 1
    for i, (frame, (node, tag, meta, data)) in enumerate(zip(seen, batch, strict=True)):
        flags = (1 if tag else 0) | (2 if node else 0) | (4 if durable else 0)
        flags |= (8 if i < last or not closes else 0) | (16 if i else 0)
        assert frame[:5] == (1, flags, topic_id, first_seq + i, ts)
        assert (frame.node, frame.tag) == (node, tag)
        assert parts_of(frame.payload) == (meta, data)
        assert made.frame_lens[i] == frame.length
        assert made.sizes[i] == len(meta) + len(data)
        assert made.flags[i] == flags & 3
    at = 0
    for i, (node, tag, meta, data) in enumerate(batch):
        record = frames.decode_append(sealed, at, made.frame_lens[i], FrameSeeds(salt, place))
        assert record == (first_seq + i, ts, node, tag, meta, data)
        at += made.frame_lens[i]
    scan = frames.scan_window(sealed, place, file_end=place + len(sealed), salt=salt)
    assert (scan.stop, scan.reason) == (place + len(sealed), "zeros")
    assert [frame.offset - place for frame in scan.frames] == frames.offsets_of(0, made.frame_lens)
    starts = frames.offsets_of(0, made.frame_lens)
    seqs = range(first_seq, first_seq + len(batch))
    assert frames.are_appends(sealed, starts, made.frame_lens, topic_id, seqs, FrameSeeds(salt, place))
    if salt is not None:
        for other in (FrameSeeds(salt ^ 1, place), FrameSeeds(salt, place + 1), FrameSeeds(None, place)):
            assert not frames.are_appends(sealed, starts, made.frame_lens, topic_id, seqs, other)
            assert frames.decode_append(sealed, 0, made.frame_lens[0], other) is None
            assert not frames.scan_window(sealed, other.base, file_end=other.base + len(sealed), salt=other.salt).rows


values = st.recursive(
    st.one_of(st.integers(-(2**63), 2**64 - 1), st.text(max_size=8), st.binary(max_size=8), st.none(), st.booleans()),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from([kind for kind in FrameType if kind != FrameType.APPEND]),
    payload=st.dictionaries(st.one_of(st.text(max_size=8), st.integers(0, 2**40)), values, max_size=4),
    head=st.tuples(u64, u64, u64),
    flags=st.sampled_from([0, 8, 16, 24]),
)
def test_control_frames_are_canonical_cbor_maps(
    kind: FrameType, payload: dict[Any, Any], head: tuple[int, int, int], flags: int
) -> None:
    topic_id, seq, ts = head
    data = frames.encode_control(kind, payload, topic_id=topic_id, seq=seq, ts=ts, flags=flags).sealed(None, 0)
    (seen,) = parse(data)
    assert seen[:7] == (kind, flags, topic_id, seq, ts, b"", b"")
    assert cbor2.loads(seen.payload) == payload
    assert seen.payload == cbor2.dumps(payload, canonical=True)
    scan = frames.scan_window(data, 7, file_end=7 + len(data), salt=None)
    assert frames.control_payload(data, 7, scan.frames[0]) == payload


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_control_frames_close_the_batch(opened: bool, count: int) -> None:
    entries: list[tuple[FrameType, dict[str, Any]]] = [(FrameType.IDEMPOTENCY, {"key": str(i)}) for i in range(count)]
    seen = parse(frames.seal_batch(entries, topic_id=7, ts=9, opened=opened).sealed(None, 0))
    assert [frame.flags & 8 for frame in seen] == [8] * (count - 1) + [0]
    assert [frame.flags & 16 for frame in seen] == [16 if opened else 0] + [16] * (count - 1)
    assert {(frame.topic_id, frame.ts) for frame in seen} == {(7, 9)}


# -- scanning ----------------------------------------------------------------------------------------------------------


def old_scan(window: bytes, base: int, *, file_end: int) -> LogScan:
    """Of a file of version 1."""
    return frames.scan_window(window, base, file_end=file_end, salt=None)


def old_append(window: bytes, at: int, size: int) -> StoredRecord | None:
    """Of a file of version 1."""
    return frames.decode_append(window, at, size, UNSEEDED)


def sample() -> tuple[bytes, list[int]]:
    """A few frames of every form, and where each of them ends."""
    made = encode_appends(
        3,
        10,
        1_700_000_000_000,
        [b"1", b'{"x":2}'],
        nodes=None,
        tags=None,
        metas=None,
        durable=False,
        closes_batch=True,
    ).data
    made += encode_appends(
        3,
        12,
        1_700_000_000_001,
        [b"3"],
        nodes=[b"n"],
        tags=[b"t"],
        metas=[b'{"a":"b"}'],
        durable=True,
        closes_batch=False,
    ).data
    made += frames.encode_control(FrameType.IDEMPOTENCY, {"key": "k"}, topic_id=3, flags=16)
    made += frames.encode_control(FrameType.SYNCED, {"file": 0, "offset": 99})
    data = made.sealed(None, 0)
    ends, at = [], 0
    for frame in parse(data):
        at += frame.length
        ends.append(at)
    return data, ends


def whole(scan: LogScan) -> list[int]:
    return [frame.end for frame in scan.frames]


def test_a_file_cut_at_any_byte_has_the_frames_before_the_cut() -> None:
    data, ends = sample()
    for cut in range(len(data)):
        scan = old_scan(data[:cut], 0, file_end=cut)
        assert whole(scan) == [end for end in ends if end <= cut]
        stop = max([0, *(end for end in ends if end <= cut)])
        assert scan.stop == stop
        assert scan.reason == ("zeros" if not data[stop:cut].strip(b"\0") else "bad")


def test_a_cut_in_preallocated_space_is_a_bad_frame_unless_nothing_of_it_is_there() -> None:
    data, ends = sample()
    for cut in range(len(data) + 1):
        padded = data[:cut] + bytes(200)
        scan = old_scan(padded, 0, file_end=len(padded))
        good = [end for end in ends if end <= cut or padded[:end] == data[:end]]
        assert whole(scan) == good
        rest = padded[scan.stop :]
        assert scan.reason == ("zeros" if rest[:4] == bytes(4) else "bad")


def test_a_window_that_ends_anywhere_stops_at_a_frame_and_asks_for_more() -> None:
    data, ends = sample()
    for end in range(len(data)):
        scan = old_scan(data[:end], 500, file_end=500 + len(data))
        assert [frame - 500 for frame in whole(scan)] == [stop for stop in ends if stop <= end]
        assert scan.reason == "window"
        rest = old_scan(data[scan.stop - 500 :], scan.stop, file_end=500 + len(data))
        assert [frame - 500 for frame in whole(rest)] == [stop for stop in ends if stop > end]


def test_a_flipped_bit_is_never_a_frame_and_never_data() -> None:
    data, ends = sample()
    starts = [0, *ends[:-1]]
    for at in range(len(data)):
        for bit in range(8):
            broken = bytearray(data)
            broken[at] ^= 1 << bit
            hit = next(i for i, end in enumerate(ends) if at < end)
            scan = old_scan(bytes(broken), 0, file_end=len(broken))
            assert whole(scan) == ends[:hit]
            assert scan.reason in ("bad", "zeros")
            for i in range(3):
                record = old_append(bytes(broken), starts[i], ends[i] - starts[i])
                assert (record is None) == (i == hit)


def test_zeros_are_the_end() -> None:
    data, ends = sample()
    for zeros in (0, 1, 3, 4, 37, 38, 39, 1000):
        scan = old_scan(data + bytes(zeros), 0, file_end=len(data) + zeros)
        assert (scan.stop, scan.reason, len(scan.frames)) == (len(data), "zeros", len(ends))


def test_a_length_beyond_the_end_of_the_file_is_bad() -> None:
    data, ends = sample()
    scan = old_scan(data[: ends[1]] + data[ends[1] :][:60], 0, file_end=ends[1] + 60)
    assert (scan.stop, scan.reason) == (ends[1], "bad")


@pytest.mark.parametrize("kind", [0, max(FrameType) + 1, 255])
def test_a_checksummed_frame_of_an_unknown_type_is_named(kind: int) -> None:
    data, _ = sample()
    body = struct.pack("<BBQQQHHI", kind, 0, 1, 2, 3, 0, 0, 3) + b"abc"
    frame = struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    with pytest.raises(UnknownFrameType, match=f"type {kind} at offset {len(data)}"):
        old_scan(data + frame, 0, file_end=len(data) + len(frame))


def test_other_frames_are_no_appends() -> None:
    data, ends = sample()
    assert old_append(data, ends[2], ends[3] - ends[2]) is None
    for at in range(0, 60):
        for size in (ends[0], ends[0] - 1, ends[0] + 1, ends[1], 0, 4, 37, 50):
            record = old_append(data, at, size)
            assert (record is not None) == ((at, size) == (0, ends[0]))


@pytest.mark.parametrize("flags", [0, frames.HAS_ORIGIN])
@pytest.mark.parametrize("length", range(26))
def test_an_append_with_a_payload_that_is_too_short_is_none(flags: int, length: int) -> None:
    """A checksum says that these bytes were written, not that they make sense."""
    body = struct.pack("<BBQQQHHI", 1, flags, 1, 2, 3, 4, 0, length) + b"node" + bytes(length)
    frame = struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    record = old_append(frame, 0, len(frame))
    assert (record is None) == (length < (21 if flags else 4))


def test_the_origin_is_not_data() -> None:
    payload = struct.pack("<QQB", 5, 6, 1) + struct.pack("<I", 2) + b"{}" + b"data"
    body = struct.pack("<BBQQQHHI", 1, frames.HAS_ORIGIN, 1, 2, 3, 0, 0, len(payload)) + payload
    frame = struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    assert old_append(frame, 0, len(frame)) == (2, 3, b"", b"", b"{}", b"data")


@settings(max_examples=300, deadline=None)
@given(window=st.binary(max_size=300), at=st.integers(0, 300), size=st.integers(0, 400), behind=st.integers(0, 100))
def test_any_bytes_are_judged_without_an_exception(window: bytes, at: int, size: int, behind: int) -> None:
    scan = old_scan(window, 0, file_end=len(window) + behind)
    assert scan.reason in ("window", "zeros", "bad")
    assert scan.frames == []
    assert old_append(window, at, size) is None


@settings(max_examples=300, deadline=None)
@given(
    kind=st.integers(0, 255),
    flags=st.integers(0, 255),
    lens=st.tuples(st.integers(0, 30), st.integers(0, 30), st.integers(0, 60)),
    rest=st.binary(max_size=80),
    exact=st.booleans(),
)
def test_any_checksummed_bytes_are_judged_without_another_exception_than_the_documented(
    kind: int, flags: int, lens: tuple[int, int, int], rest: bytes, exact: bool
) -> None:
    if exact:
        rest = rest[: sum(lens)].ljust(sum(lens), b"x")
    body = struct.pack("<BBQQQHHI", kind, flags, 1, 2, 3, *lens) + rest
    frame = struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64_intdigest(body))
    try:
        scan = old_scan(frame, 0, file_end=len(frame))
    except UnknownFrameType:
        assert kind not in set(FrameType)
        return
    assert len(scan.frames) == (len(rest) == sum(lens))
    old_append(frame, 0, len(frame))


def test_offsets() -> None:
    assert frames.offsets_of(7, [10, 20, 5]) == [7, 17, 37]
