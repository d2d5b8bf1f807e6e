"""Bases of a real engine on a simulated disk, in a simulated bucket. `PlainArchive` stands in for the archive."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bucket.simulated_objects import SimObjects
from tests.simulation.offload import InlineOffload
from tests.simulation.world import Life
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.object_names import round_name
from topics.storage.wal.wal_files import LogPosition


class PlainArchive:
    """An archive that says that everything is in rounds as soon as it is asked."""

    def __init__(self, objects: SimObjects, epoch: int = 1, number: int = 0) -> None:
        self.objects = objects
        self.epoch = epoch
        self.bucket_id = "b"
        self.number = number
        self.history_begun_at = 1
        self.bases: list[int] = []
        self.asked: list[list[LogPosition]] = []

    @property
    def last_round(self) -> int:
        return self.number

    @property
    def noted_round(self) -> int:
        return self.number

    async def archived_to(self, positions: Sequence[LogPosition]) -> int:
        self.number += 1
        for number in range(1, self.number + 1):
            if round_name(number) not in self.objects.objects:
                self.objects._set(round_name(number), b"")  # no restore reads these rounds
        self.asked.append(list(positions))
        return self.number

    def round_of_file(self, shard: int, ordinal: int) -> int:
        return 1

    async def begin_anew(self, reason: str) -> None:
        """No round is missing here."""
        raise AssertionError(reason)

    async def note_base(self, number: int) -> None:
        self.bases.append(number)


def writer_of(life: Life, archive: PlainArchive) -> BaseWriter:
    """The writer of bases of a life."""
    return BaseWriter(archive, life.compactor, clock=life.clock, offload=InlineOffload(), interval_ms=600_000)
