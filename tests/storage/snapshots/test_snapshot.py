"""The snapshot codec and its files."""

from __future__ import annotations

import random
from array import array
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.disk import SimFs
from topics.log.topic_config import config_to_wire
from topics.log.topic_log import Extent, TopicLog
from topics.model import TopicConfig
from topics.storage.files.datadir import DataDir, open_data_dir
from topics.storage.segments.topic_segments import Segment
from topics.storage.snapshots.snapshot import (
    MANY_TOPICS,
    USUAL_CONFIG,
    USUAL_LOG,
    Snapshot,
    SnapshotDamaged,
    TopicPart,
    decode_manifest,
    decode_part,
    decode_snapshot,
    encode_manifest,
    encode_part,
    encode_snapshot,
    is_large,
    load_newest,
    snapshot_numbers,
    with_large_field,
    write_snapshot,
)


def log() -> TopicLog:
    made = TopicLog()
    made.extend(
        Extent(
            1, 5, 3, array("I", [0, 60, 120]), array("I", [60] * 3), array("I", [5, 6, 7]), b"\1\0\1", ["a", None, "b"]
        )
    )
    made.add_hole(4, 70, "lost")
    made.evict_below(2, "cap")
    made.delete_seqs([2])
    return made


def part(**changes: Any) -> TopicPart:
    fields: dict[str, Any] = {
        "id": 7,
        "name": "t",
        "config": config_to_wire(TopicConfig(cap_records=3)),
        "end": [10, 4711],
        "ceiling": 1024,
        "last_ts": 5,
        "last_write": 5,
        "log": log().dump(),
        "segments": [Segment(7, 1, n=3, data_bytes=180, frames=3, opened_ms=5, tier="cold").to_wire()],
        "keys": [["k", 1, 3, 5]],
    }
    return TopicPart(**{**fields, **changes})


def snapshot(number: int = 1, topics: int = 2) -> Snapshot:
    return Snapshot(
        number=number,
        shards=2,
        next_topic_id=9,
        clock=2**42,
        positions={0: [0, 99, 3], 1: [40, 0, 40]},
        topics=[encode_part(part(id=i + 1)) for i in range(topics)],
    )


def test_what_is_written_is_read() -> None:
    again = decode_snapshot(encode_snapshot(snapshot()))
    assert again == snapshot()
    read = decode_part(again.topics[0])
    assert read == part(id=1)
    assert TopicLog.load(read.log).dump() == log().dump()
    assert decode_manifest(encode_manifest(again.topics[0])) == read


def test_what_is_written_of_many_topics_is_read() -> None:
    many = snapshot(MANY_TOPICS)
    assert decode_snapshot(encode_snapshot(many)) == many


def test_the_form_on_disk() -> None:
    outer = cbor2.loads(encode_snapshot(snapshot()))
    assert outer.keys() == {"snapshot", "xxh3"}
    assert cbor2.loads(outer["snapshot"])["positions"] == {0: [0, 99, 3], 1: [40, 0, 40]}


def test_encoding_is_deterministic() -> None:
    assert encode_snapshot(snapshot()) == encode_snapshot(snapshot())


def test_a_flipped_bit_anywhere_is_found() -> None:
    blob = encode_snapshot(snapshot())
    rng = random.Random(1)
    for at in {*range(80), *range(len(blob) - 40, len(blob)), *rng.sample(range(len(blob)), 300)}:
        broken = bytearray(blob)
        broken[at] ^= 1 << rng.randrange(8)
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(bytes(broken))


def test_a_flipped_bit_anywhere_in_a_manifest_is_found() -> None:
    blob = encode_manifest(encode_part(part()))
    for at in range(len(blob)):
        with pytest.raises(SnapshotDamaged):
            decode_manifest(blob[:at] + bytes([blob[at] ^ 4]) + blob[at + 1 :])
        with pytest.raises(SnapshotDamaged):
            decode_manifest(blob[:at])
    with pytest.raises(SnapshotDamaged, match="not a manifest"):
        decode_manifest(encode_snapshot(snapshot()))


def test_a_truncated_snapshot_is_found() -> None:
    blob = encode_snapshot(snapshot())
    for length in range(0, len(blob), 7):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(blob[:length])


@settings(max_examples=300, deadline=None)
@given(blob=st.binary(max_size=120))
def test_any_bytes_are_damaged_and_nothing_else(blob: bytes) -> None:
    with pytest.raises(SnapshotDamaged):
        decode_snapshot(blob)
    with pytest.raises(SnapshotDamaged):
        decode_manifest(blob)
    with pytest.raises(SnapshotDamaged):
        decode_part(blob)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_part_with_one_wrong_byte_raises_nothing_else(data: Any) -> None:
    blob = bytearray(encode_part(part()))
    blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_part(bytes(blob))
    except SnapshotDamaged:
        pass


def directory() -> tuple[SimFs, DataDir]:
    fs = SimFs()
    open_data_dir(fs, "/data")
    return fs, DataDir("/data")


def test_the_last_two_are_kept() -> None:
    fs, where = directory()
    assert load_newest(fs, where) == (None, [])
    for number in (1, 2, 9, 10):
        assert write_snapshot(fs, where, snapshot(number)) == len(encode_snapshot(snapshot(number)))
    assert snapshot_numbers(fs, where) == [9, 10]
    newest, damaged = load_newest(fs, where)
    assert newest is not None
    assert (newest.number, damaged) == (10, [])


def test_the_older_one_serves_when_the_newest_is_damaged() -> None:
    fs, where = directory()
    for number in (1, 2):
        write_snapshot(fs, where, snapshot(number))
    fs.flip_bit(where.snapshot_path(2), 100, 0)
    newest, damaged = load_newest(fs, where)
    assert newest is not None
    assert newest.number == 1
    assert len(damaged) == 1
    assert damaged[0].startswith(where.snapshot_path(2))
    fs.flip_bit(where.snapshot_path(1), 100, 0)
    newest, damaged = load_newest(fs, where)
    assert newest is None
    assert len(damaged) == 2


@pytest.mark.parametrize("kind", ["drop", "keep", "tear", "reorder", "garble"])
def test_a_crash_at_any_operation_leaves_a_snapshot_that_reads(kind: Any) -> None:
    fs, where = directory()
    write_snapshot(fs, where, snapshot(1))
    write_snapshot(fs, where, snapshot(2))
    states: list[tuple[str, SimFs]] = []
    fs.subscribe(lambda op: states.extend((op.name, fs.after_machine_crash(kind, seed)) for seed in range(4)))
    write_snapshot(fs, where, snapshot(3))
    for _, crashed in states:
        newest, damaged = load_newest(crashed, where)
        assert newest is not None
        assert newest.number in (2, 3)
        assert damaged == []


def test_a_part_leaves_out_what_is_usual_and_an_old_one_is_read_all_the_same() -> None:
    config = config_to_wire(TopicConfig(cap_records=3))
    part = TopicPart(id=5, name="t", config=config, end=[0, 7], log=TopicLog().dump(raw=False))
    blob = encode_part(part)
    assert cbor2.loads(blob) == {"id": 5, "name": "t", "end": [0, 7], "config": {"cap_records": 3}}
    whole = cbor2.dumps(msgspec.structs.asdict(part), canonical=True)
    assert decode_part(blob) == decode_part(whole) == part


def test_the_usual_of_a_part_is_that_of_a_new_topic() -> None:
    """A part with other defaults than these would be larger, not wrong."""
    assert config_to_wire(TopicConfig()) == USUAL_CONFIG
    assert TopicLog().dump(raw=False) == USUAL_LOG


def test_large_parts_and_snapshots_are_read_as_small_ones_are() -> None:
    pages = [bytes([n]) * (1 << 20) for n in range(5)]
    part = TopicPart(id=7, name="t", config=dict(USUAL_CONFIG), end=[1, 2], log=dict(USUAL_LOG), keys=pages)
    blob = encode_part(part)
    assert is_large(part)
    assert decode_part(blob).keys == pages
    assert decode_manifest(encode_manifest(blob)).keys == pages
    snapshot = Snapshot(number=3, shards=1, next_topic_id=8, clock=9, positions={0: [1, 2, 3]}, topics=[blob, b"small"])
    assert decode_snapshot(encode_snapshot(snapshot)) == snapshot


@pytest.mark.parametrize("size", [0, 1, 23, 24, 255, 256, 65_535, 65_536])
def test_a_large_field_is_what_the_cbor_library_reads(size: int) -> None:
    assert cbor2.loads(with_large_field({"a": [1]}, "large", bytes(size))) == {"a": [1], "large": bytes(size)}
    assert cbor2.loads(with_large_field({}, "large", [b"x"] * size)) == {"large": [b"x"] * size}
