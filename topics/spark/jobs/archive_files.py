"""The directory of an archive: its files, its lock, and how a round of archiving gets into it whole.

    topic=flights/day=2013-01-01/1-0000000000000000001-0000000000000100000-00000.parquet
    _archive/offsets.json     how far each topic is archived: `{"topics": {"flights": {"epoch": 1, "seq": 100000}}}`
    _archive/pending.json     a round that is being published: the files to be moved, and the offsets after it
    _archive/work/            what Spark writes to until then
    _archive/lock             held by the one that archives

A round is written to `work`, synced, and decided by `pending.json`, which appears whole or not at all. Before that file
is there, nothing of the round counts, and the next run removes `work`. Once it is there, this run or the next one moves
the remaining files, to names that `pending.json` fixes, and then writes the offsets. So each step can be repeated, a
kill between any two of them leaves either the old archive or a round that the next run completes, and no file is ever
seen twice. Readers pass over names that begin with an underscore.

Responsible for these steps and their order on a POSIX file system; `topics.spark.jobs.archive` chooses the records.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from topics.cli.failures import CommandFailure
from topics.spark.jobs.locks import held

Content = TypeVar("Content")

OWN: Final = "_archive"
PARTITION: Final = re.compile(r"topic=[^/]+/day=[^/]+/[^/]+\.parquet")


class Offset(msgspec.Struct, frozen=True):
    """How far a topic is archived: up to `seq`, of its instance `epoch`."""

    epoch: int
    seq: int


class Offsets(msgspec.Struct, frozen=True):
    """How far each topic is archived, by name. `archive` identifies the archive, also after a move to another
    directory."""

    topics: dict[str, Offset] = {}
    archive: str = ""


class PendingRound(msgspec.Struct, frozen=True):
    """A round that is decided. `files` are its moves: from below `work` to below the archive."""

    files: dict[str, str]
    offsets: Offsets


class ArchiveFiles:
    """One archive, whose `root` is made if it is not there. Only `offsets` may be looked at without `locked`."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.own = self.root / OWN
        self.work = self.own / "work"
        self._offsets = self.own / "offsets.json"
        self._pending = self.own / "pending.json"

    def offsets(self) -> Offsets:
        """As of the last round that is complete. Raises Failed for a file that is not one of offsets."""
        return self._read(self._offsets, Offsets) or Offsets()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the one that archives during the block; a round that was left undone is completed, or its work removed,
        before it begins. Raises Failed at once if somebody else is."""
        self.own.mkdir(parents=True, exist_ok=True)
        _sync(self.root)
        _sync(self.root.parent)
        with held(self.own / "lock", f"{self.root}: somebody else is archiving to it"):
            self._complete()
            self._remove_work()
            yield

    def begin(self) -> Path:
        """Return a directory that does not exist yet, for the files of a round. Files of a killed round are removed;
        its JVM may live on for a moment, and writes to another name."""
        self._remove_work()
        self.work.mkdir(exist_ok=True)
        return self.work / os.urandom(8).hex()

    def publish(self, written: Path, topics: Mapping[str, tuple[Offset, Offset]]) -> Offsets:
        """Make the written files (`topic=T/day=D/*.parquet`) part of the archive, and with them the new offsets.
        `topics` has for each topic of the round where it began and where it ends. Returns the offsets that hold from
        now on."""
        before = self.offsets()
        # How Spark writes a name of a topic into a path is undone where it is read; here it stays as it is.
        names = {escaped(topic): topic for topic in topics}
        files = {}
        for number, path in enumerate(sorted(written.glob("topic=*/day=*/*.parquet"))):
            place = path.relative_to(written).parent
            begin, end = topics[names[place.parts[0].removeprefix("topic=")]]
            name = f"{end.epoch}-{begin.seq + 1:020}-{end.seq:020}-{number:05}.parquet"
            files[str(path.relative_to(self.work))] = str(place / name)
            _sync(path)
        for directory in (*(path for path in written.rglob("*") if path.is_dir()), written, self.work, self.own):
            _sync(directory)  # or the decision could outlive what it decides about
        ends = {topic: end for topic, (_, end) in topics.items()}
        offsets = Offsets(before.topics | ends, before.archive or os.urandom(8).hex())
        self._write(self._pending, PendingRound(files, offsets))
        self._complete()
        return offsets

    def _complete(self) -> None:
        """Do the remaining steps of the round that is decided, if there is one."""
        pending = self._read(self._pending, PendingRound)
        if pending is None:
            return
        touched = set()
        for source, target in pending.files.items():
            if not PARTITION.fullmatch(target):
                raise CommandFailure(f"{self._pending}: {target!r} is no file of an archive")
            self._move(self.work / source, self.root / target)
            touched |= {self.root / part for part in Path(target).parents}
        for directory in sorted(touched, reverse=True):
            _sync(directory)
        self._write(self._offsets, pending.offsets)
        self._pending.unlink()
        _sync(self.own)
        self._remove_work()

    def _move(self, source: Path, target: Path) -> None:
        """Where `source` is gone, it has been moved before."""
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.replace(target)
        except FileNotFoundError:
            if not target.exists():
                raise CommandFailure(
                    f"{target}: lost while the round was published; the archive is not touched"
                ) from None

    def _write(self, path: Path, content: msgspec.Struct) -> None:
        """`content` at `path`, durable, whole or not at all."""
        new = path.with_suffix(".new")
        with new.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(self.own)

    def _read(self, path: Path, kind: type[Content]) -> Content | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise CommandFailure(f"{path}: {error}") from None

    def _remove_work(self) -> None:
        shutil.rmtree(self.work, ignore_errors=True)


def escaped(topic: str) -> str:
    """The name of a topic as Spark writes it into a path: of what a name may have, only the colon is escaped."""
    return topic.replace(":", "%3A")


def _sync(path: Path) -> None:
    """See that a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
