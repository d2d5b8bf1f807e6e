"""Lives in which segments are made, flagged, rewritten, merged, moved and dropped, and the judgement of their wrecks:
what `test_crash_sweep` asks of the log, asked of the segment files too.

A scenario calls the compactor, the reclaimer and the relocator itself (nothing else does), beside clients of topics of
all classes. Each wreck is recovered three times: as it is; again, to go on writing and to have everything stored and
cleared away; and after a crash behind that.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import trio

from tests.simulation.disk import Fault, Op
from tests.simulation.lives import CLASSES, Sweep
from tests.simulation.model import Client, Fate, History, Oracle, Restarted, View, append_everywhere, views_of
from tests.simulation.world import COLD, ROOT, End, Life, World, settings
from topics.config import Settings
from topics.errors import ApiError
from topics.log.tag_match import TagMatch
from topics.storage.files.datadir import segment_name
from topics.storage.snapshots.snapshot import decode_part

STORED: Final = CLASSES[1:]
SMALL: Final = settings(
    segment_max_events=8, segment_max_bytes=2048, segment_max_age_ms=0, hot_retain_segments=1, cold_dir=Path(COLD)
)
"""A dozen records fill a segment, and all but the newest sealed one go to the cold directory."""

UNEXPECTED: Final = frozenset(
    {
        "record_damaged",
        "records_damaged",
        "seqs_missing",
        "seqs_repeated",
        "summary_corrected",
        "manifest_damaged",
        "removal_incomplete",
        "columns_unreadable",
    }
)
"""What the daemon says only where bytes are not what was written; no crash may make it say so."""

UNSYNCED: Final = frozenset({"sync_dir", "sync_all", "unlink"})
"""Operations whose failure leaves it open whether what was unlinked is back after a crash."""

REUSED: Final = frozenset({"next.tmp", "CURRENT.tmp", "reserve.cbor.tmp"})
"""Temporary files that the next rotation, or the next snapshot that is kept in reserve, takes over."""

Script = Callable[[Life, Client], Awaitable[None]]


# ----------------------------------------------------------------- what scenarios are made of


async def checkpoint(life: Life) -> None:
    """A checkpoint, which may fail only as it is documented to."""
    with suppress(ApiError, OSError):
        await life.compactor.checkpoint()


async def reclaim(life: Life) -> None:
    """One scan of the reclaimer, likewise."""
    with suppress(ApiError, OSError):
        await life.reclaimer.pass_over()


async def relocate(life: Life) -> None:
    """One look of the relocator, likewise."""
    with suppress(ApiError, OSError):
        await life.relocator.pass_over()


async def maintenance(life: Life) -> None:
    """All kinds of work, until there should be nothing left to do."""
    for _ in range(2):
        await checkpoint(life)
        await reclaim(life)
        await relocate(life)


async def one_of_each(client: Client, names: Sequence[str] = CLASSES, **config: Any) -> None:
    """A topic of each class."""
    for name in names:
        await client.create(name, durability=name, **config)


async def fill(client: Client, name: str, batches: int, *, each: int = 2, size: int = 30) -> None:
    """Batches with everything that a record can have: tags a, b, ab and none, in turn."""
    for i in range(batches):
        tag = (None, "a", "b", "ab")[i % 4]
        key = f"{name}{len(client.history)}" if i % 3 == 0 else None
        meta = {"m": "x" * i} if i % 5 == 2 else None
        await client.append(name, each, size=size, tag=tag, node="n" if i % 2 else None, meta=meta, key=key)


async def fill_all(client: Client, batches: int, *, names: Sequence[str] = CLASSES, size: int = 30) -> None:
    """The same in each of these topics, side by side."""
    async with trio.open_nursery() as clients:
        for name in names:

            async def writer(name: str = name) -> None:
                await fill(client, name, batches, size=size)

            clients.start_soon(writer)


def exactly(tag: str) -> TagMatch:
    """The records with this tag."""
    return TagMatch(tag, prefix=False)


# ----------------------------------------------------------------- what is on the disk


def part_files(life: Life) -> tuple[set[str], set[str]]:
    """The files that the topics' parts have to have, and those that they may have besides."""
    must: set[str] = set()
    may: set[str] = set()
    for topic in life.engine.registry.by_id.values():
        hot, cold = (f"{root}/topics/{topic.id:016x}/" for root in (ROOT, COLD))
        may |= {life.engine.store.manifests.path(topic.id), cold + "topic.cbor"}
        if topic.on_disk.part is None:
            continue
        for first, _n, _bytes, _frames, _opened, _sealed, tier, *_ in decode_part(topic.on_disk.part).segments:
            if tier == "gone":
                continue
            where = hot if tier == "hot" else cold
            if tier == "cold" and life.store.tiers.objects is not None:
                must.add(hot + segment_name(first, "object"))
                may |= {hot + segment_name(first, f"{kind}.cold") for kind in ("idx", "tags")}
                continue
            must.add(where + segment_name(first, "data"))
            may |= {
                where + segment_name(first, kind) for kind in ("idx", "tags", "del")
            }  # where it is unsealed, of a try to seal
            if tier == "cold":
                may |= {hot + segment_name(first, f"{kind}.cold") for kind in ("idx", "tags")}
    return must, may


def check_files(life: Life) -> None:
    """Nothing is missing and nothing has leaked; to be asked when no work is going on and everything is stored."""
    must, may = part_files(life)
    tree = life.fs.tree()
    found = set()
    for path, content in tree.items():
        assert not path.endswith(".tmp") or posixpath.basename(path) in REUSED, f"{path} is left"
        if not path.startswith((f"{ROOT}/topics/", f"{COLD}/topics/")):
            continue
        if content is not None:
            found.add(path)
            continue
        topic_id = int(posixpath.basename(path), 16)  # what is called .deleted is none, and fails here
        assert topic_id in life.engine.registry.by_id, f"{path} belongs to no topic"
    assert must <= found, f"missing: {sorted(must - found)}"
    assert found <= must | may, f"left over: {sorted(found - must - may)}"
    for topic in life.engine.registry.by_id.values():
        for segment in topic.segment_set.segments if topic.segment_set is not None else ():
            if segment.sealed:
                continue  # a merge that was cut short leaves more than the part knows of
            data = tree[f"{ROOT}/topics/{topic.id:016x}/{segment_name(segment.first, 'data')}"]
            assert data is not None
            assert len(data) == segment.data_bytes, f"{topic.name}: segment {segment.first} has {len(data)} bytes"


def check_logs(life: Life) -> None:
    """Every topic's index is consistent with itself."""
    for topic in life.engine.registry.by_id.values():
        topic.log.check()


# ----------------------------------------------------------------- the sweep


async def looked_at(life: Life) -> dict[str, View]:
    """A full read of everything, with every invariant checked before and after."""
    check_logs(life)
    views = await views_of(life.engine)
    check_logs(life)
    return views


def unexpected(world: World, *, excused: str = "") -> None:
    """Fail if the daemon has complained of damage."""
    found = [event for event in world.events if event["event"] in UNEXPECTED - {excused}]
    assert not found, f"the daemon says {found[0]}"


def see(world: World) -> dict[str, View]:
    """What a recovery shows; then the process is killed."""
    views: dict[str, View] = {}

    async def look(life: Life) -> None:
        views.update(await looked_at(life))

    assert world.live(look, end="kill")
    unexpected(world)
    assert world.fs.open_files == 0
    return views


class SegmentSweep(Sweep[History, Client, Oracle]):
    """See `Sweep`: everything that clients were told is there, and no file too many."""

    def __init__(self, config: Settings = SMALL, seed: int = 0) -> None:
        super().__init__(config, seed, History())

    def client(self, life: Life) -> Client:
        return Client(life.engine, self.history)

    def make_oracle(self, known: int) -> Oracle:
        return Oracle(self.history, known)

    async def begin(self, life: Life, fate: Fate) -> None:
        self.history.entries.append(Restarted(fate, await views_of(life.engine)))

    def check_said(self, world: World) -> None:
        unexpected(world)

    def recover(self, world: World) -> dict[str, View]:
        return see(world)

    def judge_world(
        self, world: World, oracle: Oracle, fate: Fate, second: End, *, failed: bool = False, tidy: bool = True
    ) -> None:
        """The same for a machine as its next start finds it. Without `tidy` there may be files too many."""
        views = see(world)
        oracle.judge(views, fate, now_ms=world.clock.now_ms(), failed=failed)
        again = world.after(second)
        stored: dict[str, View] = {}

        async def go_on(life: Life) -> None:
            seen = await looked_at(life)
            for name in views.keys() | seen.keys():
                assert seen.get(name) == views.get(name), f"{name}: the second recovery shows something else"
            await append_everywhere(life.engine, oracle, views, fate)
            before = await views_of(life.engine)
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            stored.update(await looked_at(life))
            for name, view in before.items():
                assert stored[name] == view or view.config.ttl_ms, f"{name}: maintenance has changed it"
            if tidy:
                check_files(life)

        assert again.live(go_on, end="kill")
        unexpected(again)
        last = see(again.after("drop"))
        assert last.keys() == stored.keys()
        for name, view in stored.items():
            if view.config.durability != "ephemeral" and not view.config.ttl_ms:
                assert last[name].records == view.records, f"{name}: what was stored is not there after a crash"
                assert last[name].gaps[: len(view.gaps)] == view.gaps
                assert (last[name].earliest, last[name].bytes) == (view.earliest, view.bytes) or not view.records
        self.judged += 1


class Faulty:
    """A life of a scenario with a fault in it, and what was left of its promises; without one, what could be hit."""

    def __init__(self, script: Script, config: Settings, fault: Callable[[], Fault] | None = None) -> None:
        self.sweep = SegmentSweep(config)
        self.config = config
        self.ops: list[Op] = []
        """The operations of the scenario."""
        self.failed = self.stuck = self.unsynced = self.unproved = False
        self._script = script
        self._fault = fault
        world = self.sweep.world
        assert world.live(self._scenario, end="kill")
        unexpected(world, excused="columns_unreadable")
        assert world.fs.open_files == 0

    async def _scenario(self, life: Life) -> None:
        world, history = self.sweep.world, self.sweep.history
        begun = len(world.fs.ops)
        fault = None if self._fault is None else world.fs.inject(self._fault())
        await self._script(life, Client(life.engine, history))
        await trio.sleep(0.05)
        self.ops = world.fs.ops[begun:]
        if fault is not None:
            fault.times = fault.hits  # the disk is well again
            self.unsynced = any(op.index == fault.at and op.name in UNSYNCED for op in self.ops)
        self.failed = any(life.store.failed(shard) for shard in range(life.store.shards))
        self.stuck = any(event["event"] == "manifests_uncertain" for event in world.events)
        self.judge_live(life, await looked_at(life))
        if self.failed or self.stuck:
            await maintenance(life)
        else:
            # What was given up is taken up again, and leaves nothing behind.
            for _ in range(3):
                await life.compactor.checkpoint()
                await life.reclaimer.pass_over()
                await life.relocator.pass_over()
            await life.compactor.checkpoint()
            await life.reclaimer.pass_over()
            check_files(life)
        self.judge_live(life, await looked_at(life))
        self.unproved = world.fs.has_untold_failures

    def judge_live(self, life: Life, views: dict[str, View]) -> None:
        """Everything that was acked is there, and can be read."""
        Oracle(self.sweep.history).judge_live(views, now_ms=life.clock.now_ms())

    def judge(self, ends: Iterable[End] = ("kill", "drop", "reorder")) -> None:
        """Restart after a kill of the process, and after crashes of the machine."""
        oracle = Oracle(self.sweep.history)
        for end in ends:
            # What was unlinked before a sync of the directory that failed may be back; nobody knows that it is.
            tidy = not self.unsynced
            world = self.sweep.world.after(end, 7)
            fate: Fate = "kill" if end == "kill" else "machine"
            # A write has failed, and may have been any: nothing proves that the page cache has kept what was acked.
            failed = self.failed or self.unproved
            self.sweep.judge_world(world, oracle, fate, "drop", failed=failed, tidy=tidy)


def with_shards(count: int, config: Settings = SMALL) -> Settings:
    """The same with another number of WAL shards."""
    return replace(config, wal_shards=count)
