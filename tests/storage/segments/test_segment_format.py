"""Segment files against an independent reading of `docs/spec/storage.md` section 4: `parse` knows nothing of
`segments`."""

from __future__ import annotations

import random
import struct
from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

import cbor2
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.log.tag_match import TagMatch
from topics.storage.files.datadir import DataDir, parse_segment_file, parse_segment_name, segment_name
from topics.storage.segments import index_format, segment_format, segment_scan, tags_format
from topics.storage.segments.index_format import IDX_DELETED, IDX_HOLE, INDEX_ENTRY_BYTES, decode_index, encode_index
from topics.storage.segments.segment_format import (
    DELETED_FLAG,
    LIVE_FLAG,
    READS_AS_DELETED,
    ConvertedFrames,
    DataScan,
    SegmentDamaged,
    convert_appends,
    decode_records,
    delete_flag_offset,
    flag_is_valid,
    flags_of_data,
    reads_as_deleted,
    scan_data,
    tags_of_data,
)
from topics.storage.segments.tags_format import decode_tags, encode_tags
from topics.storage.wal.frames import AppendFrames, FrameSeeds, StoredRecord, encode_appends, encode_control, offsets_of
from topics.storage.wal.frames import FrameType as WalType


class Seen(NamedTuple):
    """A frame of `.data` as the page describes it."""

    flags: int
    seq: int
    ts: int
    node: bytes
    tag: bytes
    payload: bytes
    delete_flag: int
    length: int


def parse(data: bytes) -> list[Seen]:
    """Every frame of `data`, which must consist of whole ones."""
    found = []
    while data:
        (frame_len,) = struct.unpack("<I", data[:4])
        body, stored = data[4 : 4 + frame_len - 9], data[4 + frame_len - 9 : 4 + frame_len - 1]
        assert struct.unpack("<Q", stored)[0] == xxhash.xxh3_64(body).intdigest()
        flags = body[0]
        seq, ts, node_len, tag_len, data_len = struct.unpack("<QQHHI", body[1:25])
        rest = body[25:]
        assert len(rest) == node_len + tag_len + data_len
        node, tag, payload = rest[:node_len], rest[node_len : node_len + tag_len], rest[node_len + tag_len :]
        found.append(Seen(flags, seq, ts, node, tag, payload, data[3 + frame_len], 4 + frame_len))
        data = data[4 + frame_len :]
    return found


Batch = Sequence[tuple[bytes, bytes, bytes, bytes]]
"""Node, tag, meta and data of each record."""


def wal(batch: Batch, first_seq: int, ts: int, *, durable: bool = False) -> AppendFrames:
    nodes, tags, metas, datas = (list(column) for column in zip(*batch, strict=True))
    return encode_appends(
        3,
        first_seq,
        ts,
        datas,
        nodes=nodes if any(nodes) else None,
        tags=tags if any(tags) else None,
        metas=metas if any(metas) else None,
        durable=durable,
        closes_batch=True,
    )


def converted(batch: Batch, first_seq: int = 1, ts: int = 1_700_000_000_000) -> ConvertedFrames:
    written = wal(batch, first_seq, ts)
    return convert_appends(
        written.data.sealed(None, 0),
        offsets_of(0, written.frame_lens),
        written.frame_lens,
        range(first_seq, first_seq + len(batch)),
    )


def decoded(found: ConvertedFrames, first_seq: int = 1) -> tuple[list[StoredRecord], list[int]]:
    seqs = range(first_seq, first_seq + len(found.frame_lens))
    return decode_records(found.data, offsets_of(0, found.frame_lens), found.frame_lens, seqs)


def with_origin(batch: Batch, seq: int, ts: int) -> bytes:
    """A WAL Append with an origin, made by hand."""
    ((node, tag, meta, data),) = batch
    payload = struct.pack("<QQBI", 9, 77, 2, len(meta)) + meta + data
    flags = 0x20 | 0x04 | (1 if tag else 0) | (2 if node else 0)
    body = struct.pack("<BBQQQHHI", 1, flags, 3, seq, ts, len(node), len(tag), len(payload)) + node + tag + payload
    return struct.pack("<I", len(body) + 8) + body + struct.pack("<Q", xxhash.xxh3_64(body).intdigest())


def flips(blob: bytes) -> list[bytes]:
    """`blob` with each single bit changed."""
    out = []
    for bit in range(8 * len(blob)):
        changed = bytearray(blob)
        changed[bit // 8] ^= 1 << bit % 8
        out.append(bytes(changed))
    return out


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=12).map(str.encode)
datas = st.binary(min_size=1, max_size=40)
metas = st.one_of(st.just(b""), names.map(lambda text: b'{"k":"%b"}' % text))
u32 = st.integers(0, 2**32 - 1)
u48 = st.integers(0, 2**48 - 10)
u64 = st.integers(0, 2**64 - 1)
salts = st.one_of(st.none(), u64)
plain_batches = st.lists(st.tuples(st.just(b""), st.just(b""), st.just(b""), datas), min_size=1, max_size=9)
full_batches = st.lists(st.tuples(names, names, metas, datas), min_size=1, max_size=9)
batches = st.one_of(plain_batches, full_batches)
tag_lists = st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=4), max_size=30)

PLAIN: Batch = [(b"", b"", b"", b'"one"'), (b"", b"", b"", b'"two"'), (b"", b"", b"", b'"three"')]
FULL: Batch = [(b"n", b"t/1", b'{"a":1}', b'"one"'), (b"", b"t/2", b"", b'"two"'), (b"", b"", b"", b'"three"')]


# ----------------------------------------------------------------- .data


@settings(max_examples=200, deadline=None)
@given(batch=batches, first_seq=u48, ts=u64, durable=st.booleans(), gap=st.binary(max_size=9), salt=salts)
def test_converted_frames_are_what_the_page_says(
    batch: Batch, first_seq: int, ts: int, durable: bool, gap: bytes, salt: int | None
) -> None:
    written = wal(batch, first_seq, ts, durable=durable)
    frame_lens = list(written.frame_lens)
    starts = [len(gap) + offset for offset in offsets_of(0, frame_lens)]
    seqs = range(first_seq, first_seq + len(batch))
    found = convert_appends(gap + written.data.sealed(salt, len(gap)), starts, frame_lens, seqs, FrameSeeds(salt, 0))
    assert not found.bad
    frames = parse(found.data)
    assert [frame.length for frame in frames] == list(found.frame_lens)
    for frame, seq, (node, tag, meta, data) in zip(frames, seqs, batch, strict=True):
        assert (frame.seq, frame.ts, frame.node, frame.tag) == (seq, ts, node, tag)
        assert frame.payload == struct.pack("<I", len(meta)) + meta + data
        assert frame.flags == (1 if tag else 0) | (2 if node else 0)
        assert frame.delete_flag == LIVE_FLAG


@settings(max_examples=200, deadline=None)
@given(batch=batches, first_seq=u48, ts=u64)
def test_what_was_converted_reads_as_it_was_appended(batch: Batch, first_seq: int, ts: int) -> None:
    found = converted(batch, first_seq, ts)
    records, bad = decoded(found, first_seq)
    assert not bad
    assert records == [StoredRecord(first_seq + i, ts, *record) for i, record in enumerate(batch)]
    assert all(type(record) is StoredRecord for record in records)
    scan = scan_data(found.data, 0, end=len(found.data))
    assert (scan.stop, scan.reason) == (len(found.data), "end")
    assert list(scan.seq) == [record.seq for record in records]
    assert list(scan.ts) == [ts] * len(batch)
    assert scan.offset.tolist() == offsets_of(0, found.frame_lens)
    assert scan.frame_len == found.frame_lens
    assert list(scan.size) == [len(record.meta) + len(record.data) for record in records]
    assert scan.tag == [tag.decode() or None for _, tag, _, _ in batch] == tags_of_data(found.data, found.frame_lens)
    assert scan.flags == flags_of_data(found.data, found.frame_lens)
    assert scan.delete_flag == bytes(len(batch))


def test_an_origin_goes_along_and_counts_neither_as_meta_nor_as_data() -> None:
    batch = [(b"n", b"t", b'{"a":1}', b'"x"')]
    frame = with_origin(batch, 5, 8)
    found = convert_appends(frame, [0], [len(frame)], [5])
    (seen,) = parse(found.data)
    assert seen.flags == 0x23
    assert seen.payload[:17] == struct.pack("<QQB", 9, 77, 2)
    assert decoded(found, 5) == ([StoredRecord(5, 8, *batch[0])], [])
    assert list(scan_data(found.data, 0, end=len(found.data)).size) == [len(batch[0][2]) + len(batch[0][3])]


def test_no_frames_make_no_bytes() -> None:
    assert convert_appends(b"", [], [], []) == ConvertedFrames(b"", array("I"), [])
    assert decode_records(b"", [], [], []) == ([], [])
    assert tags_of_data(b"", []) == []


@pytest.mark.parametrize("batch", [PLAIN, FULL])
def test_a_wal_frame_with_a_flipped_bit_is_left_out_and_its_neighbours_are_not(batch: Batch) -> None:
    written = wal(batch, 1, 9)
    starts = offsets_of(0, written.frame_lens)
    whole = converted(batch, 1, 9)
    middle = slice(starts[1], starts[2])
    ends = offsets_of(0, [*whole.frame_lens, 0])
    expected = whole.data[: ends[1]] + whole.data[ends[2] :]
    sealed = written.data.sealed(None, 0)
    for changed in flips(sealed[middle]):
        window = sealed[: middle.start] + changed + sealed[middle.stop :]
        found = convert_appends(window, starts, written.frame_lens, range(1, 4))
        assert found.bad == [1]
        assert list(found.frame_lens) == [whole.frame_lens[0], 0, whole.frame_lens[2]]
        assert found.data == expected
        assert tags_of_data(found.data, found.frame_lens)[1] is None


def test_a_frame_that_is_no_append_or_of_another_seq_or_beyond_the_window_is_bad() -> None:
    written = wal(PLAIN, 1, 9)
    starts = offsets_of(0, written.frame_lens)
    control = encode_control(WalType.SYNCED, {"file": 1, "offset": 100}, seq=4, ts=9)
    window = (written.data + control).sealed(None, 0)
    places = [*starts, len(written.data), len(window), starts[2] + 10]
    lens = [*written.frame_lens, len(control), 60, written.frame_lens[2]]
    assert convert_appends(window, places, lens, [1, 3, 3, 4, 5, 6]).bad == [1, 3, 4, 5]
    assert convert_appends(window, starts, [0, 45, written.frame_lens[2]], [1, 2, 3]).bad == [0, 1]


def test_any_set_of_bad_frames_is_found() -> None:
    batch = [(b"", b"", b"", b'"%d"' % i) for i in range(40)]
    written = wal(batch, 1, 9)
    starts = offsets_of(0, written.frame_lens)
    for step in (1, 2, 3, 7, 39):
        spoilt = list(range(0, 40, step))
        window = bytearray(written.data.sealed(None, 0))
        for i in spoilt:
            window[starts[i] + 40] ^= 1
        found = convert_appends(bytes(window), starts, written.frame_lens, range(1, 41))
        assert found.bad == spoilt
        assert [frame.seq for frame in parse(found.data)] == [i + 1 for i in range(40) if i not in spoilt]


@pytest.mark.parametrize("batch", [PLAIN, FULL])
def test_every_flipped_bit_of_a_frame_is_noticed_but_those_of_its_delete_flag(batch: Batch) -> None:
    whole = converted(batch)
    starts = offsets_of(0, whole.frame_lens)
    frame = whole.data[starts[1] : starts[2]]
    for bit, changed in enumerate(flips(frame)):
        data = whole.data[: starts[1]] + changed + whole.data[starts[2] :]
        records, bad = decode_records(data, starts, whole.frame_lens, range(1, 4))
        scan = scan_data(data, 0, end=len(data))
        if bit // 8 == len(frame) - 1:
            assert (len(records), bad) == (3, [])
            assert scan.delete_flag == bytes([0, 1 << bit % 8, 0])
        else:
            assert ([record.seq for record in records], bad) == ([1, 3], [2])
            assert (list(scan.seq), scan.stop, scan.reason) == ([1], starts[1], "bad")


def test_a_frame_of_another_seq_is_not_the_record_asked_for() -> None:
    whole = converted(PLAIN)
    starts = offsets_of(0, whole.frame_lens)
    records, bad = decode_records(whole.data, starts, whole.frame_lens, [1, 9, 3])
    assert ([record.seq for record in records], bad) == ([1, 3], [9])
    lens = [whole.frame_lens[0], 3, whole.frame_lens[2] + 5]
    assert decode_records(whole.data, starts, lens, [1, 2, 3])[1] == [2, 3]


def sealed(flags: int, node_len: int, data_len: int, rest: bytes) -> bytes:
    """A `.data` frame with these fields, and a checksum that holds."""
    body = struct.pack("<BQQHHI", flags, 1, 9, node_len, 0, data_len) + rest
    return struct.pack("<I", len(body) + 9) + body + struct.pack("<QB", xxhash.xxh3_64(body).intdigest(), 0)


@pytest.mark.parametrize(
    "frame",
    [
        sealed(0, 0, 8, struct.pack("<I", 5) + b"data"),
        sealed(0, 0, 8, b"\xff\xff\xff\xffdata"),
        sealed(0, 0, 7, struct.pack("<I", 0) + b"data"),
        sealed(0, 0, 9, struct.pack("<I", 0) + b"data"),
        sealed(0x20, 0, 20, bytes(20)),
        sealed(0x20, 0, 22, bytes(17) + struct.pack("<I", 2) + b"d"),
        sealed(2, 9, 4, b"node" + struct.pack("<I", 0)),
        sealed(2, 8, 0, b"node" + struct.pack("<I", 0)),
    ],
    ids=[
        "meta beyond data",
        "meta huge",
        "data too short",
        "data too long",
        "origin cut",
        "origin and meta beyond data",
        "node beyond payload",
        "no payload",
    ],
)
def test_lengths_that_do_not_add_up_are_noticed_even_under_a_checksum_that_holds(frame: bytes) -> None:
    assert decode_records(frame, [0], [len(frame)], [1]) == ([], [1])
    assert scan_data(frame, 0, end=len(frame)).reason == "bad"


@pytest.mark.parametrize("labelled", [False, True])
def test_large_windows_are_scanned_as_small_ones_are(labelled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The quick way for windows of valid frames, and the way that looks at one frame after another."""
    chance = random.Random(1)
    label = (b"", b"red", "grün".encode()) if labelled else (b"",)
    batch = [
        (
            chance.choice(label),
            chance.choice(label),
            b"{}" if i % 3 and labelled else b"",
            b"x" * chance.randint(1, 300),
        )
        for i in range(200)
    ]
    data = converted(batch).data
    offsets = scan_data(data, 0, end=len(data)).offset
    assert len(offsets) == len(batch)
    for _ in range(600):
        base = chance.choice(offsets[:30])
        window = bytearray(data[base : base + chance.randint(1, 12_000)])
        end = max(base, chance.choice((len(data), base + len(window), base + len(window) - chance.randint(0, 60))))
        if chance.random() < 0.6:
            window[chance.randrange(len(window))] ^= 1 << chance.randrange(8)
        monkeypatch.setattr(segment_format, "_FAST_BYTES", 0)
        quick = scan_data(bytes(window), base, end=end)
        monkeypatch.setattr(segment_format, "_FAST_BYTES", 1 << 40)
        assert quick == scan_data(bytes(window), base, end=end)


def test_a_scan_says_how_it_ended() -> None:
    data = converted(FULL).data
    lens = [frame.length for frame in parse(data)]
    for cut in range(len(data)):
        scan = scan_data(data[:cut], 100, end=100 + len(data))
        whole = sum(1 for behind in (sum(lens[: i + 1]) for i in range(3)) if behind <= cut)
        assert (len(scan.seq), scan.reason) == (whole, "window")
        assert scan.stop == 100 + sum(lens[:whole])
        torn = scan_data(data[:cut], 100, end=100 + cut)
        assert torn.reason == ("end" if cut in (0, lens[0], lens[0] + lens[1]) else "bad")
        # The same if the bytes are there and the file's valid part ends before them.
        assert scan_data(data, 100, end=100 + cut) == torn
    assert list(scan_data(data, 100, end=100 + len(data)).offset) == [100, 100 + lens[0], 100 + lens[0] + lens[1]]


def find_frame(data: bytes, bad: int) -> int:
    """Where frames go on behind bad bytes of a file of version 1; -1 if nowhere."""
    found = FrameSearch(lambda at, n: data[at : at + n], len(data), range(2**48)).find(bad, -1)
    return found if found < len(data) else -1


FrameSearch = partial(segment_scan.SegmentFrameSearch, salt=None)


def resume(data: bytes) -> tuple[DataScan, DataScan | None]:
    """A scan up to damage, and another one behind it."""
    before = scan_data(data, 0, end=len(data))
    at = find_frame(data, before.stop)
    return before, scan_data(data[at:], at, end=len(data)) if at >= 0 else None


def test_frames_are_found_again_behind_damage() -> None:
    whole = converted(FULL)
    starts = offsets_of(0, whole.frame_lens)
    for bit in range(8 * starts[1], 8 * (starts[2] - 1)):
        data = bytearray(whole.data)
        data[bit // 8] ^= 1 << bit % 8
        before, behind = resume(bytes(data))
        assert list(before.seq) == [1]
        assert behind is not None
        assert (list(behind.seq), list(behind.offset)) == ([3], [starts[2]])


@given(junk=st.binary(min_size=1, max_size=60))
def test_frames_are_found_behind_anything(junk: bytes) -> None:
    data = converted(PLAIN).data
    assert find_frame(junk + data, 0) == len(junk)
    assert find_frame(junk, 0) == -1
    assert find_frame(junk + bytes(100) + data[:-1][: len(data) // 3 - 4], 0) == -1


@given(seq=st.integers(1, 2**40), ts=st.integers(0, 2**47))
def test_find_frame_knows_every_flag_seq_and_time_that_occurs(seq: int, ts: int) -> None:
    frame = with_origin([(b"n", b"t", b"", b"1")], seq, ts)
    found = convert_appends(frame, [0], [len(frame)], [seq])
    assert find_frame(b"..." + found.data, 0) == 3


# ----------------------------------------------------------------- delete flags


def test_a_flag_within_two_bits_of_deleted_reads_as_deleted_and_only_two_are_valid() -> None:
    for flag in range(256):
        near = bin(flag ^ 0xD5).count("1") <= 2
        assert reads_as_deleted(flag) == near == bool(READS_AS_DELETED[flag])
        assert flag_is_valid(flag) == (flag in (0x00, 0xD5))
    assert not reads_as_deleted(LIVE_FLAG)
    assert reads_as_deleted(DELETED_FLAG)


def test_setting_the_delete_flag_where_it_is_said_to_lie_changes_nothing_else() -> None:
    whole = converted(PLAIN)
    starts = offsets_of(0, whole.frame_lens)
    data = bytearray(whole.data)
    data[delete_flag_offset(starts[1], whole.frame_lens[1])] = DELETED_FLAG
    assert [frame.delete_flag for frame in parse(bytes(data))] == [0, DELETED_FLAG, 0]
    assert len(decode_records(bytes(data), starts, whole.frame_lens, range(1, 4))[0]) == 3


# ----------------------------------------------------------------- .idx

entries = st.lists(st.tuples(u32, u32, u64, st.integers(0, 255)), max_size=20)


@given(rows=entries, torn=st.binary(max_size=19))
def test_index_entries_are_what_the_page_says(rows: list[tuple[int, int, int, int]], torn: bytes) -> None:
    offsets, lens, ts, flags = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    blob = encode_index(offsets, lens, ts, bytes(flags))
    expected = b""
    for row in rows:
        entry = struct.pack("<IIQB", *row)
        expected += entry + struct.pack("<Q", xxhash.xxh3_64(entry).intdigest())[:3]
    assert blob == expected
    found = decode_index(blob + torn)
    assert (list(found.offset), list(found.frame_len), list(found.ts)) == (offsets, lens, ts)
    assert (found.flags, found.bad) == (bytes(flags), [])


def test_every_flipped_bit_of_an_index_entry_is_noticed_and_no_other_entry_suffers() -> None:
    blob = encode_index([0, 138, 1], [138, 140, 0], [7, 8, 9], [0, 0x23 | IDX_DELETED, IDX_HOLE])
    middle = slice(INDEX_ENTRY_BYTES, 2 * INDEX_ENTRY_BYTES)
    for changed in flips(blob[middle]):
        found = decode_index(blob[: middle.start] + changed + blob[middle.stop :])
        assert found.bad == [1]
        assert (found.offset[0], found.frame_len[0], found.ts[0], found.flags[0]) == (0, 138, 7, 0)
        assert (found.offset[2], found.frame_len[2], found.ts[2], found.flags[2]) == (1, 0, 9, IDX_HOLE)


def test_space_that_was_never_written_is_no_index_entry() -> None:
    assert decode_index(bytes(40)).bad == [0, 1]
    assert decode_index(b"") == index_format.IndexColumns(array("I"), array("I"), array("Q"), b"", [])


# ----------------------------------------------------------------- .tags


@settings(max_examples=200)
@given(tags=tag_lists, first=u64, pattern=st.text(st.characters(exclude_categories=["Cs"]), max_size=2))
def test_tags_are_found_as_a_look_at_every_slot_would_find_them(
    tags: list[str | None], first: int, pattern: str
) -> None:
    sizes = array("I", range(len(tags)))
    found = decode_tags(encode_tags(first, sizes, tags), first, len(tags))
    assert (found.first, found.sizes) == (first, sizes)
    present = [tag for tag in tags if tag is not None]
    for text in {pattern, *present, *(tag[:1] for tag in present)}:
        for match in (TagMatch(text, prefix=False), TagMatch(text, prefix=True)):
            assert list(found.find(match)) == [i for i, tag in enumerate(tags) if match.matches(tag)]
        for marked_names in (1, 2, 5):
            with patch.object(tags_format, "MARKED_NAMES", marked_names):
                slots = decode_tags(encode_tags(first, sizes, tags), first, len(tags)).slots_of(text.encode())
            assert list(slots) == [i for i, tag in enumerate(tags) if tag == text]
    assert len(found) == len(set(present))
    listed = list(found.items())
    assert [name for name, _ in listed] == sorted(set(present), key=str.encode)
    rebuilt: list[str | None] = [None] * len(tags)
    for name, positions in listed:
        for position in positions:
            rebuilt[position] = name
    assert rebuilt == tags


def test_the_tags_file_is_what_the_page_says() -> None:
    blob = encode_tags(7, array("I", (10, 20, 30, 40)), ["b", None, "é", "b"])
    outer = cbor2.loads(blob)
    assert blob == cbor2.dumps(outer, canonical=True)
    assert outer["xxh3"] == xxhash.xxh3_64(outer["tags"]).intdigest()
    assert cbor2.loads(outer["tags"]) == {
        "first": 7,
        "count": 4,
        "sizes": struct.pack("<4I", 10, 20, 30, 40),
        "names": "bé".encode(),
        "name_ends": struct.pack("<2I", 1, 3),
        "counts": struct.pack("<2I", 2, 1),
        "positions": struct.pack("<3I", 0, 3, 2),
    }


def test_every_flipped_bit_of_a_tags_file_is_noticed_and_so_is_every_cut() -> None:
    blob = encode_tags(1, array("I", range(5)), ["a", None, "b", "a", "c/d"])
    for changed in flips(blob):
        with pytest.raises(SegmentDamaged):
            decode_tags(changed, 1, 5)
    for cut in range(len(blob)):
        with pytest.raises(SegmentDamaged):
            decode_tags(blob[:cut], 1, 5)
    with pytest.raises(SegmentDamaged):
        decode_tags(blob + b"\x00", 1, 5)


def test_a_tags_file_of_another_segment_is_not_believed() -> None:
    blob = encode_tags(1, array("I", range(2)), ["a", None])
    for first, count in ((2, 2), (1, 3), (1, 1)):
        with pytest.raises(SegmentDamaged, match="is about 2 slots from 1"):
            decode_tags(blob, first, count)


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": bytes(4)},
        {"sizes": bytes(7)},
        {"names": b"ab"},
        {"names": "a"},
        {"counts": struct.pack("<I", 2)},
        {"counts": b""},
        {"positions": struct.pack("<I", 2)},
        {"positions": None},
    ],
)
def test_columns_that_do_not_fit_together_are_damage_under_any_checksum(change: dict[str, object]) -> None:
    inner = {**cbor2.loads(cbor2.loads(encode_tags(1, array("I", (5, 5)), ["a", None]))["tags"]), **change}
    body = cbor2.dumps(inner, canonical=True)
    blob = cbor2.dumps({"tags": body, "xxh3": xxhash.xxh3_64(body).intdigest()}, canonical=True)
    with pytest.raises(SegmentDamaged):
        decode_tags(blob, 1, 2)


def test_the_memory_of_tags_is_that_of_their_columns() -> None:
    tags = [f"tag/{i:06}" for i in range(1000)]
    found = decode_tags(encode_tags(1, array("I", [100]) * 1000, tags), 1, 1000)
    assert found.nbytes == 10 * 1000 + 4 * 4 * 1000


# ----------------------------------------------------------------- names


@pytest.mark.parametrize("kind", ["data", "idx", "tags", "idx.cold", "tags.cold"])
def test_names_of_segment_files_are_parsed_back_and_only_those(kind: str) -> None:
    name = segment_name(5, kind)
    assert name == f"seg-00000000000000000005.{kind}"
    assert DataDir("/d").segment_path(1, 5, kind) == f"/d/topics/0000000000000001/{name}"
    assert parse_segment_file(name) == (5, kind)
    assert parse_segment_name(name) == (5 if kind == "data" else None)
    for other in (name + ".tmp", "x" + name, name + "\n", "seg-5." + kind, segment_name(5, "data") + ".cold"):
        assert parse_segment_file(other) is None
