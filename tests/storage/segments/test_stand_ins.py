"""Stand-ins are written by topic and seq, and used where the frames of a recipe are missing."""

from __future__ import annotations

from array import array

import pytest

from tests.simulation.disk import SimFs
from topics.log.copies import PLAIN, CopyKind, Origin
from topics.storage.files.datadir import DataDir
from topics.storage.segments import stand_ins
from topics.storage.segments.copy_frames import CopyRecipe, read_recipe
from topics.storage.segments.segment_reader import SegmentTiers
from topics.storage.segments.segment_store import DirectorySegmentStore
from topics.storage.segments.stand_ins import StandIns, StandInWriter, stand_in_id
from topics.storage.wal.frames import StoredRecord
from topics.storage.wal.wal_files import WalFiles

TOPIC, SOURCE, OTHER = 3, 8, 9


def record(seq: int) -> StoredRecord:
    return StoredRecord(seq, 5, b"node", b"tag", b"{}", b"data %d" % seq)


def recipe_of(count: int, topic_id: int = SOURCE) -> CopyRecipe:
    """Copies of seqs 101 and on, none of which has a file."""

    def zeros() -> array[int]:
        return array("I", bytes(4 * count))

    kinds, seqs = [(count, CopyKind(topic_id, 1, PLAIN))], range(101, 101 + count)
    return CopyRecipe(kinds, seqs, zeros(), zeros(), zeros(), zeros(), bytes(count))


class Place:
    """A directory with stand-ins."""

    def __init__(self) -> None:
        self.fs = SimFs(1)
        self.datadir = DataDir("/data")
        self.writer = StandInWriter(self.fs, self.datadir)
        self.tiers = SegmentTiers(DirectorySegmentStore(self.fs, "/data"), None)
        self.files = WalFiles()

    def add(self, *seqs: int, topic_id: int = TOPIC) -> None:
        """Those of copies that begin with seq 1, whose origins begin with seq 101."""
        self.writer.add(topic_id, [record(seq) for seq in seqs], [Origin(SOURCE, 100 + seq, 1) for seq in seqs])

    def data_of(self, recipe: CopyRecipe, topic_id: int = TOPIC) -> list[bytes | None]:
        """What copies from seq 1 on are made of."""
        opened = read_recipe(self.fs, self.tiers, self.files, recipe)
        if StandIns(self.tiers.hot, self.files).use(recipe, topic_id, 1, opened):
            opened = read_recipe(self.fs, self.tiers, self.files, recipe)
        return [one.data if one is not None and one.origin.topic_id == SOURCE else None for one in opened]


def test_each_missing_copy_is_made_from_its_stand_in() -> None:
    place = Place()
    place.add(1, 2)
    place.add(4)
    assert place.data_of(recipe_of(5)) == [b"data 1", b"data 2", None, b"data 4", None]
    assert place.writer.written == 3
    assert place.data_of(recipe_of(5), topic_id=TOPIC + 1) == [None] * 5
    assert place.fs.listdir(f"/data/topics/{stand_in_id(TOPIC):016x}") == ["seg-00000000000000000001.data"]


def test_a_stand_in_of_another_origin_is_not_taken_for_the_copy() -> None:
    place = Place()
    place.add(1)
    recipe = recipe_of(1, OTHER)
    opened = read_recipe(place.fs, place.tiers, place.files, recipe)
    assert StandIns(place.tiers.hot, place.files).use(recipe, TOPIC, 1, opened)
    opened = read_recipe(place.fs, place.tiers, place.files, recipe)
    assert stand_ins.missing_in(recipe, opened) == array("I", [0])


def test_a_frame_that_is_in_its_place_stays() -> None:
    place = Place()
    place.add(1, 2)
    recipe = recipe_of(2)
    place.data_of(recipe)
    before = [recipe.files[:], recipe.offsets[:]]
    place.add(3)
    opened = read_recipe(place.fs, place.tiers, place.files, recipe)
    assert not StandIns(place.tiers.hot, place.files).use(recipe, TOPIC, 1, opened)
    assert [recipe.files, recipe.offsets] == before


def test_a_full_segment_takes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stand_ins, "FULL_BYTES", 100)
    place = Place()
    for seq in range(1, 7):
        place.add(seq)
    assert len(place.fs.listdir(f"/data/topics/{stand_in_id(TOPIC):016x}")) > 2
    assert place.data_of(recipe_of(6)) == [b"data %d" % seq for seq in range(1, 7)]


def test_nothing_is_written_over() -> None:
    place = Place()
    place.add(1)
    with pytest.raises(FileExistsError):
        StandInWriter(place.fs, place.datadir).add(TOPIC, [record(1)], [Origin(SOURCE, 101, 1)])
