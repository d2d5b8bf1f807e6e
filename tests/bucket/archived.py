"""An engine over a simulated disk with an archive in a simulated store, and readers of what is in the store that are
written from `docs/design/bucket.md`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import trio

from tests.bucket.simulated_objects import SimObjects
from tests.engine.life import Life, settings
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from tests.simulation.offload import InlineOffload
from topics.bucket.archive import Archive
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bounded_objects import BoundedObjects
from topics.bucket.ownership.owner_format import Owner, decode_owner
from topics.bucket.round_format import Round, decode_round
from topics.config import Settings
from topics.storage.files.datadir import FORMAT
from topics.storage.files.fs import write_all


def bucket_settings(**changes: Any) -> Settings:
    """The settings of these tests, with changes."""
    return settings(**{"bucket": "file:///bucket", "bucket_round_ms": 1000, "wal_shards": 2, **changes})


class ArchivedLife(Life):
    """An engine with an archive."""

    archive: Archive
    objects: SimObjects

    async def archived(self) -> int:
        """Have everything so far in the bucket."""
        await self.engine.store.sync_shards()
        ends = [writer.synced_position()[0] for writer in self.engine.store.writers]
        return await self.archive.archived_to(ends)


@asynccontextmanager
async def archived(
    objects: SimObjects,
    config: Settings | None = None,
    *,
    fs: SimFs | None = None,
    clock: SimClock | None = None,
    clean: bool = True,
    settle: bool = True,
    bases: bool = False,
    offload: InlineOffload | None = None,
) -> AsyncIterator[ArchivedLife]:
    """An engine from recovery to its stop, as the daemon does it; `clean=False` ends it as a kill does. With `bases` it
    makes bases, and shows topics of the class `remote` when the bucket has what was recovered."""
    config = config or bucket_settings()
    fs, clock, offload = fs or SimFs(), clock or SimClock(), offload or InlineOffload()
    life = ArchivedLife(config, fs, clock, offload)
    engine = life.engine
    life.objects = objects
    life.archive = archive = Archive(
        config,
        engine.store,
        engine.registry,
        engine.compactor,
        BoundedObjects(objects, offload),
        fs=fs,
        clock=clock,
        offload=offload,
    )
    engine.store.lock("a test")
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(engine.run)
            await engine.recover()
            await archive.prepare()
            engine.compactor.keeper = archive
            for writer in engine.store.writers:
                await nursery.start(writer.run)
            nursery.start_soon(archive.run)
            if settle:
                await archive.settle_start()
            if bases:
                writer_ = BaseWriter(
                    archive, engine.compactor, clock=clock, offload=offload, interval_ms=config.bucket_base_ms
                )
                nursery.start_soon(writer_.run)
                if any(topic.is_remote for topic in engine.registry.by_id.values()):
                    await archive.vouch_for([writer.synced_position()[0] for writer in engine.store.writers])
            nursery.start_soon(engine.store.space.watch)
            nursery.start_soon(engine.delivery.scheduler.run)
            engine.open_for_business()
            yield life
            if clean:
                await life.stop()
                await archive.finish()
            nursery.cancel_scope.cancel()
    finally:
        if not life.fs.dead:
            engine.store.unlock()


def owner_of(objects: SimObjects) -> Owner:
    return decode_owner(objects.objects["owner"])


def rounds_in(objects: SimObjects) -> list[Round]:
    """Every round, in order: numbers without gaps, the chain of hashes, times, places and runs are as they have to
    be."""
    named = sorted((name, data) for name, data in objects.objects.items() if name.startswith("rounds/"))
    rounds: list[Round] = []
    for name, data in named:
        found = decode_round(data)
        head = found.head
        assert name == f"rounds/{head.number:020d}"
        if rounds:
            before = rounds[-1].head
            assert head.number == before.number + 1
            assert head.previous == rounds[-1].hash
            assert head.wall_ms >= before.wall_ms
            assert head.epoch >= before.epoch
            assert not head.begins_history or head.epoch > before.epoch
            assert head.bucket == before.bucket
        else:
            assert (head.number, head.previous, head.begins_history) == (1, b"", True)
        begins_epoch = not rounds or head.epoch > before.epoch
        assert begins_epoch == (not head.runs), "the first round of an epoch is an empty one"
        assert begins_epoch or not head.begins_history
        if head.begins_history:
            assert not head.ends_cut
            assert all(not offset for _, offset in head.positions)
            before = head
        elif begins_epoch:
            assert (head.ends_cut, head.wall_ms) == (before.ends_cut, before.wall_ms)
        at = {shard: tuple(place) for shard, place in enumerate(before.positions)}
        for run in head.runs:
            here = (run.ordinal, run.offset)
            assert at.get(run.shard) == here or (run.offset == 0 and here > at.get(run.shard, (-1, 0)))
            at[run.shard] = (run.ordinal, run.offset + run.length)
        assert at == {shard: tuple(place) for shard, place in enumerate(head.positions)}
        rounds.append(found)
    return rounds


def log_in(rounds: list[Round]) -> dict[tuple[int, int], bytes]:
    """The files of the log that the last history among these rounds has, by shard and ordinal."""
    files: dict[tuple[int, int], bytes] = {}
    for found in rounds:
        if found.head.begins_history:
            files.clear()
        for run, data in found.pieces():
            content = files.setdefault((run.shard, run.ordinal), b"")
            assert len(content) == run.offset
            files[run.shard, run.ordinal] = content + bytes(data)
    return files


def local_log(fs: SimFs) -> dict[tuple[int, int], bytes]:
    """The files of the log as they are visible, by shard and ordinal."""
    found = {}
    for path, content in fs.tree().items():
        if content is not None and path.startswith("/data/wal/") and path.endswith(".log"):
            *_, directory, name = path.split("/")
            shard = int(directory.removeprefix("shard-")) if directory != "wal" else 0
            found[shard, int(name[4:24])] = content
    return found


def check_log(objects: SimObjects, fs: SimFs, *, whole: bool = True) -> None:
    """Assert that the rounds have the files of the log, byte for byte, and with `whole` all that is in them."""
    rounds = rounds_in(objects)
    there, here = log_in(rounds), local_log(fs)
    assert set(here) <= set(there) or not whole
    for key, content in there.items():
        if key in here:
            assert here[key].startswith(content), f"file {key} differs"
            assert not whole or not here[key][len(content) :].strip(b"\0"), f"file {key} has more"
    for shard, end in enumerate(rounds[-1].head.positions):
        assert max((key[1], len(content)) for key, content in there.items() if key[0] == shard) == tuple(end)


def restored(rounds: list[Round], shards: int = 2) -> SimFs:
    """A data directory that has only the log of these rounds."""
    fs = SimFs()
    for path in (
        "/data",
        "/data/meta",
        "/data/topics",
        "/data/wal",
        *(f"/data/wal/shard-{i:02d}" for i in range(shards)),
    ):
        fs.mkdir(path)
    with fs.open("/data/FORMAT", create=True) as handle:
        write_all(handle, msgspec.json.encode(FORMAT) + b"\n", 0)
        handle.fdatasync()
    last = {shard: max(ordinal for s, ordinal in log_in(rounds) if s == shard) for shard in range(shards)}
    for (shard, ordinal), content in log_in(rounds).items():
        with fs.open(f"/data/wal/shard-{shard:02d}/wal-{ordinal:020d}.log", create=True) as handle:
            write_all(handle, content + (bytes(8192) if ordinal == last[shard] else b""), 0)
            handle.fdatasync()
    fs.settle()
    return fs
