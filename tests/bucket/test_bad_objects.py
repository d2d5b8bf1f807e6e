"""Objects that somebody has made to do harm: they are refused, name themselves, and write nothing outside of the
directory. Their hashes are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.bucket.small_bucket import SmallBucket
from tests.bucket.test_bucket_check import check, filled, holding, restore
from topics.bucket.base_format import (
    Base,
    BlobRef,
    PackBuilder,
    SealedFile,
    SegmentEntry,
    TopicEntry,
    decode_base,
    decode_page,
    encode_base,
    encode_page,
    open_blob,
)
from topics.bucket.object_names import PackName, pack_name, round_name
from topics.bucket.offline import base_pages
from topics.bucket.offline.base_pages import BasePages
from topics.bucket.offline.bucket_reader import BucketDamaged, BucketReader
from topics.bucket.offline.restore_target import RestoreRefused, choose_target
from topics.bucket.round_format import Round, Run, decode_round, encode_round
from topics.storage.snapshots.snapshot import decode_part, encode_part

Objects = dict[str, bytes]
OTHER = PackName(9, 9)


def newest_base(bucket: SmallBucket) -> str:
    """The name of the newest base."""
    return max(name for name in bucket.objects.objects if name.startswith("bases/"))


def with_base(change: Callable[[Base], object]) -> Objects:
    """The objects with another newest base, and without the older one, which would be used instead."""
    name = newest_base(filled())
    objects = filled().objects.objects
    objects = {other: data for other, data in objects.items() if not other.startswith("bases/") or other == name}
    base = decode_base(objects[name])
    change(base)
    return {**objects, name: encode_base(base.head, base.body)}


def with_topics(change: Callable[[list[TopicEntry]], object]) -> Objects:
    """The objects with another page in the newest base."""
    objects = filled().objects.objects
    name = newest_base(filled())
    base = decode_base(objects[name])
    number, ref = base.body.pages[0]
    pack = objects[pack_name(ref.pack_name)]
    topics = decode_page(open_blob(ref, pack[ref.offset : ref.offset + ref.length]))
    change(topics)
    builder = PackBuilder(OTHER)
    base.body.pages[0] = (number, builder.add(encode_page(topics)))
    return {**objects, pack_name(OTHER): builder.finished(), name: encode_base(base.head, base.body)}


def with_rounds(change: Callable[[Round], list[bytes]]) -> Objects:
    """The objects with another round behind the newest base: the last one. The change returns the bytes of its runs."""
    objects = filled().objects.objects
    found = decode_round(objects[round_name(filled().number)])
    data = change(found)
    found.head.body_bytes = sum(map(len, data))
    return {**objects, round_name(filled().number): encode_round(found.head, data)}


def refused(objects: Objects, what: str) -> None:
    """A restore refuses, and the check finds it."""
    with pytest.raises(BucketDamaged, match=what):
        restore(objects)
    assert check(objects)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"number": -1}, "snapshot contradicts"),
        ({"number": 1 << 63}, "snapshot contradicts"),
        ({"number": "../../x"}, "snapshot is malformed"),
        ({"shards": 7}, "snapshot contradicts"),
        ({"positions": {}}, "snapshot contradicts"),
        ({"positions": {0: [0, 0], 1: [0, 0]}}, "snapshot contradicts"),
        ({"positions": {0: [0, -1, 0], 1: [0, 0, 0]}}, "snapshot contradicts"),
        ({"clock": None}, "snapshot is malformed"),
        ({"next_topic_id": 1 << 62}, "snapshot contradicts"),
        ({"next_topic_id": -1}, "snapshot contradicts"),
    ],
)
def test_a_snapshot_that_cannot_be_is_refused(fields: dict[str, Any], what: str) -> None:
    refused(with_base(lambda base: base.body.snapshot.update(fields)), what)


@pytest.mark.parametrize(
    "file", [(5, 0, 9), (-1, 0, 9), (0, -1, 9), (0, 1 << 63, 9), (0, 0, 1 << 40), (0, 0, -1), (0, 123456, 9)]
)
def test_a_file_of_the_log_that_cannot_be_is_refused(file: tuple[int, int, int]) -> None:
    objects = with_base(lambda base: base.body.files.append(file))
    with pytest.raises(BucketDamaged):
        restore(objects)
    assert check(objects)


def test_bases_with_shards_or_rounds_that_cannot_be_are_refused() -> None:
    refused(with_base(lambda base: setattr(base.head, "shards", 0)), "has 0 shards|contradicts")
    refused(with_base(lambda base: setattr(base.head, "shards", 1 << 40)), "contradicts|shards")
    refused(with_base(lambda base: setattr(base.head, "first_round", -1)), "negative")
    refused(with_base(lambda base: base.body.files.clear()), "lists no file")
    refused(with_base(lambda base: setattr(base.head, "bucket", "other")), "belongs to the bucket")
    refused(with_base(lambda base: base.body.pages.append(base.body.pages[0])), "not in order")
    refused(with_base(lambda base: base.body.pages.append((-1, base.body.pages[0][1]))), "not in order")


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": -5},
        {"length": -1},
        {"length": 1 << 60},
        {"size": -1},
        {"size": 1 << 60},
        {"epoch": -1},
        {"pack": 1 << 70},
        {"length": 1},
        {"offset": 3},
    ],
)
def test_a_blob_that_cannot_be_is_refused(changes: dict[str, Any]) -> None:
    def change(base: Base) -> None:
        number, ref = base.body.pages[0]
        base.body.pages[0] = (number, ref._replace(**changes))

    try:
        objects = with_base(change)
    except OverflowError:
        return
    with pytest.raises(BucketDamaged):
        restore(objects)
    assert check(objects)


def of_segments(change: Callable[[TopicEntry, SegmentEntry], object], *, sealed: bool) -> Objects:
    """The objects with a segment that is changed."""

    def changed(topics: list[TopicEntry]) -> None:
        topic, entry = next(
            (topic, entry) for topic in topics for entry in topic.segments if (entry.data is not None) == sealed
        )
        change(topic, entry)

    return with_topics(changed)


def test_topics_and_segments_that_cannot_be_are_refused() -> None:
    def renumber(to: int) -> Callable[[list[TopicEntry]], object]:
        return lambda topics: setattr(topics[-1], "id", to)

    for topic_id in (0, -1, 1 << 64, 5000):
        refused(with_topics(renumber(topic_id)), "do not belong there|cannot be")
    refused(with_topics(lambda topics: topics.append(topics[0])), "do not belong there")
    refused(with_topics(lambda topics: setattr(topics[0], "part", topics[1].part)), "that of another one")
    refused(with_topics(lambda topics: setattr(topics[0], "part", b"\x00")), "malformed")
    refused(with_topics(lambda topics: setattr(topics[0], "part", b"")), "malformed")
    for first in (-1, 1 << 70):
        objects = of_segments(lambda _, entry, at=first: setattr(entry, "first", at), sealed=True)  # type: ignore[misc]
        refused(objects, "cannot be|not in its page")
    refused(of_segments(lambda topic, entry: topic.segments.append(entry), sealed=True), "twice")
    refused(of_segments(lambda topic, entry: topic.segments.remove(entry), sealed=True), "not in its page")
    refused(of_segments(lambda _, entry: setattr(entry, "salt", entry.salt ^ 1), sealed=True), "another generation")
    refused(of_segments(lambda _, entry: setattr(entry, "epoch", 77), sealed=True), "is missing")
    refused(of_segments(lambda _, entry: setattr(entry, "data", None), sealed=True), "neither")
    refused(of_segments(lambda _, entry: entry.pieces.pop(), sealed=False), "neither|its part says")
    for size in (-1, 1 << 62, 1 << 61, 5):
        file = SealedFile(size, bytes(32))
        objects = of_segments(lambda _, entry, file=file: setattr(entry, "data", file), sealed=True)  # type: ignore[misc]
        refused(objects, "cannot be|should have|hash|its part says")

    def unpacks_to_2_gib(_topic: TopicEntry, entry: SegmentEntry) -> None:
        assert entry.data is not None
        entry.data = entry.data._replace(unpacked=(2 << 30) - 1)

    refused(of_segments(unpacks_to_2_gib, sealed=True), "unpacked segment .* has 2147483647 bytes, and its part says")


def test_a_part_that_contradicts_its_segments_is_refused() -> None:
    def with_part(change: Callable[[Any], object]) -> Objects:
        def changed(topic: TopicEntry, _entry: SegmentEntry) -> None:
            if isinstance(topic.part, BlobRef):
                pack = filled().objects.objects[pack_name(topic.part.pack_name)]
                at = topic.part.offset
                topic.part = open_blob(topic.part, pack[at : at + topic.part.length])
            assert topic.part is not None
            part = decode_part(topic.part)
            change(part)
            topic.part = encode_part(part)

        return of_segments(changed, sealed=True)

    def many(part: Any) -> None:
        part.segments[0][1] = 1 << 50

    def longer(part: Any) -> None:
        part.segments[0][2] = 1 << 50

    refused(with_part(many), "slots")
    refused(with_part(longer), "its part says")
    refused(with_part(lambda part: setattr(part, "generation", 1 << 40)), "another one")
    refused(with_part(lambda part: setattr(part, "generation", -1)), "another one")
    refused(with_part(lambda part: setattr(part, "segments", [["../x"] * 8])), "malformed|not in its page")


def test_a_bitmap_that_is_longer_than_its_segment_is_refused_before_it_is_spread_out() -> None:
    packs: Objects = {}

    def bomb(topics: list[TopicEntry]) -> None:
        _, entry = next((topic, entry) for topic in topics for entry in topic.segments if entry.data is not None)
        builder = PackBuilder(PackName(9, 8))
        entry.deleted = builder.add(bytes(1 << 20))
        packs[pack_name(builder.name)] = builder.finished()

    objects = {**with_topics(bomb), **packs}
    spread: list[int] = []

    def seqs_of(first: int, deleted: bytes) -> list[int]:
        spread.append(len(deleted))
        return []

    reader = BucketReader(holding(objects))
    base = reader.base(choose_target(reader).base)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base_pages, "_seqs_of", seqs_of)
        with pytest.raises(BucketDamaged, match="slots"):
            BasePages(reader, base, leaves=lambda _: True).load(*base.body.pages[0])
    assert max(spread, default=0) < 1 << 20


def runs_of(found: Round) -> list[bytes]:
    """The bytes of the runs of a round."""
    return [bytes(data) for _, data in found.pieces()]


def test_runs_that_overlap_leave_gaps_or_belong_elsewhere_are_refused() -> None:
    def moved(**changes: int) -> Objects:
        def change(found: Round) -> list[bytes]:
            data = runs_of(found)
            found.head.runs[0] = found.head.runs[0]._replace(**changes)
            return data

        return with_rounds(change)

    first = decode_round(filled().objects.objects[round_name(filled().number)]).head.runs[0]
    refused(moved(offset=first.offset + 1), "do not follow")
    refused(moved(offset=max(first.offset - 1, 0)), "do not follow")
    refused(moved(ordinal=first.ordinal + 1000), "do not follow")
    for changes in ({"shard": 9}, {"ordinal": 1 << 63}):
        with pytest.raises(BucketDamaged, match="cannot be"):
            restore(moved(**changes))

    def twice(found: Round) -> list[bytes]:
        data = runs_of(found)
        found.head.runs.append(found.head.runs[-1])
        return [*data, data[-1]]

    refused(with_rounds(twice), "do not follow")

    def empty(found: Round) -> list[bytes]:
        data = runs_of(found)
        found.head.runs = [*found.head.runs, Run(0, first.ordinal, 5, 0)]
        return [*data, b""]

    with pytest.raises(BucketDamaged, match="cannot be"):
        restore(with_rounds(empty))

    def elsewhere(found: Round) -> list[bytes]:
        found.head.positions[0] = (0, 0)
        return runs_of(found)

    refused(with_rounds(elsewhere), "position")

    def history(found: Round) -> list[bytes]:
        found.head.begins_history = True
        return runs_of(found)

    reader = BucketReader(holding(with_rounds(history)))
    assert choose_target(reader).round < filled().number
    with pytest.raises(RestoreRefused, match="history"):
        choose_target(reader, number=filled().number)


@pytest.mark.parametrize("number", [10_000_000_000, 10**20 - 1])
def test_a_round_far_behind_the_last_one_costs_no_list_of_all_numbers_between(number: int) -> None:
    """Somebody has put it by hand. The list would need more memory than there is."""
    objects = {**filled().objects.objects, f"rounds/{number:020}": b"x"}
    missing = round_name(filled().number + 1)
    with pytest.raises(BucketDamaged, match=f"^{missing}: it is missing, and round {number} is there"):
        choose_target(BucketReader(holding(objects)))
