"""A `.data` file as Arrow columns: each record as it was written, and what is left where bytes are bad."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
import xxhash

from topics.spark import segment_columns
from topics.spark.segment_columns import RUN_FRAMES, TYPES, DecodedColumns, NotDecodable
from topics.storage.segments.segment_format import DELETED_FLAG, LIVE_FLAG
from topics.storage.wal.frames import HAS_NODE, HAS_ORIGIN, HAS_TAG

Record = dict[str, Any]
decode = partial(segment_columns.decode, seqs=range(1, 1 << 40))
NONE_OF_IT: Record = {"node": None, "tag": None, "meta": None, "data": "1", "origin": None, "flag": LIVE_FLAG}

TEXTS = (None, None, "a", "u:1", "\u00fc\U0001f600", "x" * 300)
METAS: tuple[dict[str, str] | None, ...] = (None, None, {}, {"k": "v"}, {"k": "v", "\u00fc": ""}, {"": "\u00df\n"})
FLAGS = (LIVE_FLAG, LIVE_FLAG, DELETED_FLAG, 0xD4, 0x01)


def some_records(chance: random.Random) -> list[Record]:
    """Records with any mixture of what a record can have; of some kinds none at all."""
    kinds = [chance.random() < 0.6 for _ in range(4)]
    return [
        {
            "node": chance.choice(TEXTS) if kinds[0] else None,
            "tag": chance.choice(TEXTS) if kinds[1] else None,
            "meta": chance.choice(METAS) if kinds[2] else None,
            "data": json.dumps(chance.choice(TEXTS)),
            "origin": (chance.getrandbits(64), 7, 15) if kinds[3] and chance.random() < 0.5 else None,
            "flag": chance.choice(FLAGS),
        }
        for _ in range(chance.randint(1, 12))
    ]


def framed(record: Record, seq: int, seed: int = 0) -> bytes:
    """A frame, by the table in `docs/spec/storage.md` section 4."""
    node, tag = (str(record[name] or "").encode() for name in ("node", "tag"))
    meta = json.dumps(record["meta"]).encode() if record["meta"] is not None else b""
    flags = HAS_NODE * bool(node) | HAS_TAG * bool(tag) | HAS_ORIGIN * bool(record["origin"])
    payload = struct.pack("<QQB", *record["origin"]) if record["origin"] else b""
    payload += struct.pack("<I", len(meta)) + meta + str(record["data"]).encode()
    body = struct.pack("<BQQHHI", flags, seq, 1000 + seq, len(node), len(tag), len(payload)) + node + tag + payload
    return (
        struct.pack("<I", len(body) + 9)
        + body
        + struct.pack("<QB", xxhash.xxh3_64_intdigest(body, seed), record["flag"])
    )


def file_of(given: Sequence[Record]) -> list[bytes]:
    return [framed(record, seq) for seq, record in enumerate(given, 1)]


def salted(given: Sequence[Record], salt: int) -> bytes:
    """A file of version 2, by `docs/spec/storage.md` section 6."""
    head = b"TOPICS2\0" + struct.pack("<QQ", salt, 1)
    content = head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head))
    for seq, record in enumerate(given, 1):
        content += framed(record, seq, salt ^ len(content))
    return content


def shown(found: DecodedColumns) -> list[dict[str, Any]]:
    names = list(found.columns)
    return [
        dict(zip(names, row, strict=True)) for row in zip(*[c.to_pylist() for c in found.columns.values()], strict=True)
    ]


@pytest.mark.parametrize("seed", range(40))
def test_each_record_is_what_was_written(seed: int) -> None:
    given = some_records(random.Random(seed))
    content = salted(given, random.Random(seed).getrandbits(64)) if seed % 2 else b"".join(file_of(given))
    found = decode(content, TYPES)
    assert found.bad == []
    assert list(found.seq) == list(range(1, len(given) + 1))
    assert list(found.deleted) == [(record["flag"] ^ DELETED_FLAG).bit_count() <= 2 for record in given]
    for seq, (record, row) in enumerate(zip(given, shown(found), strict=True), 1):
        assert row["seq"] == seq
        assert row["ts"] == datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=1000 + seq)
        assert (row["node"], row["tag"], row["data"]) == (record["node"], record["tag"], record["data"])
        assert (dict(row["meta"]) if row["meta"] is not None else None) == record["meta"]


@pytest.mark.parametrize("seed", range(40))
def test_a_flipped_bit_costs_the_frame_that_it_is_in(seed: int) -> None:
    chance = random.Random(seed)
    given = some_records(chance)
    frames = file_of(given)
    hit = chance.randrange(len(frames))
    broken = bytearray(frames[hit])
    broken[chance.randrange(len(broken) - 1)] ^= 1 << chance.randrange(8)  # the last byte is not checked
    begin = sum(map(len, frames[:hit]))
    found = decode(b"".join([*frames[:hit], bytes(broken), *frames[hit + 1 :]]), TYPES)
    assert list(found.seq) == [seq for seq in range(1, len(frames) + 1) if seq != hit + 1]
    assert found.bad == [(begin, begin + len(frames[hit]), hit)]
    assert [row["data"] for row in shown(found)] == [record["data"] for i, record in enumerate(given) if i != hit]


def test_a_file_that_is_cut_off_ends_in_bad_bytes() -> None:
    frames = file_of([NONE_OF_IT] * 3)
    whole = b"".join(frames)
    for end in range(len(whole) - len(frames[2]) + 1, len(whole)):
        found = decode(whole[:end], ["seq"])
        assert (list(found.seq), found.bad) == ([1, 2], [(len(whole) - len(frames[2]), end, 2)])
    assert decode(b"", TYPES).bad == []


def test_more_frames_than_a_run_has_are_taken_run_by_run() -> None:
    chance = random.Random(1)
    kinds = [NONE_OF_IT, NONE_OF_IT | {"tag": "t"}, NONE_OF_IT | {"meta": {"k": "v"}, "node": "n"}]
    given = [chance.choice(kinds) for _ in range(2 * RUN_FRAMES + 5)]
    given[:RUN_FRAMES] = [NONE_OF_IT] * RUN_FRAMES
    found = decode(b"".join(file_of(given)), ["tag", "node"])
    assert list(found.columns) == ["node", "tag"]
    assert found.columns["tag"].to_pylist() == [record["tag"] for record in given]
    assert found.columns["node"].to_pylist() == [record["node"] for record in given]


@pytest.mark.parametrize(
    ("at", "value", "problem"),
    [(21, 3, "lengths of node"), (25, 2, "lengths of node"), (29, 200, "length of meta")],
)
def test_frames_that_contradict_themselves_are_refused_though_their_checksums_hold(
    at: int, value: int, problem: str
) -> None:
    frame = bytearray(framed(NONE_OF_IT, 1))
    frame[at] = value
    frame[-9:-1] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(frame[4:-9])))
    with pytest.raises(NotDecodable, match=problem):
        decode(bytes(frame), TYPES)


@pytest.mark.parametrize(("meta", "data"), [(b"[1]", b"1"), (b"", b"\xff")])
def test_what_is_no_text_and_no_meta_is_refused(meta: bytes, data: bytes) -> None:
    payload = struct.pack("<I", len(meta)) + meta + data
    body = struct.pack("<BQQHHI", 0, 1, 1, 0, 0, len(payload)) + payload
    frame = struct.pack("<I", len(body) + 9) + body + struct.pack("<QB", xxhash.xxh3_64_intdigest(body), 0)
    assert list(decode(frame, ["seq"]).seq) == [1]
    with pytest.raises(NotDecodable):
        decode(frame, TYPES)
