"""Lives of an engine with everything that writes to a bucket (archive, bases, collector, checkpoints, reclaimer), and
the judgement of what such a life leaves behind.

A `Machine` is a disk and a store. `history` has some of all that clients do, over kills and a stop, with a retention so
short that the collector removes something. `judge` starts what is left once more, has it go on, and asks whether the
bucket verifies and a restore shows what the directory shows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.bucket.archived import ArchivedLife, archived, bucket_settings
from tests.bucket.simulated_objects import SimObjects
from tests.bucket.small_bucket import cut_copy
from tests.bucket.test_restore import restored
from tests.bucket.test_restore_histories import shown_on
from tests.engine.queues.queue_calls import ack, claim, seqs_of
from tests.simulation.clock import BASE_MS, SimClock
from tests.simulation.disk import SimFs
from tests.simulation.packing import tiny_packing
from tests.simulation.world import ROOT, End, World, disk_after, quiet
from topics.bucket.bases.base_writer import BaseWriter
from topics.bucket.bases.collector import BucketCollector
from topics.bucket.local_note import read_note
from topics.bucket.offline.bucket_check import BucketCheck
from topics.bucket.offline.bucket_reader import BucketReader
from topics.bucket.offline.bucket_restore import Workers
from topics.bucket.round_format import RoundHead, decode_round
from topics.config import Settings
from topics.evidence.signed_note import NoteSigner
from topics.model import (
    AppendRequest,
    CheckedAppend,
    ConsumerMove,
    ConsumerPatch,
    ConsumerStart,
    Performance,
    RecordIn,
    RouterPatch,
    TransactionRequest,
)
from topics.storage.files.datadir import DataDir
from topics.storage.files.fs import write_atomic
from topics.storage.offline.verify import Verification

KEY = Path("/keys/evidence.pem")
"""The key of all daemons of the bucket."""
SIGNER = NoteSigner(Ed25519PrivateKey.from_private_bytes(bytes(32)))

CONFIG = bucket_settings(
    wal_file_bytes=16 << 10,
    segment_max_events=8,
    segment_max_age_ms=0,
    rewrite_live_ratio=0.8,
    reclaim_ms=1000,
    checkpoint_ms=1500,
    bucket_round_ms=400,
    bucket_base_ms=2000,
    bucket_retain_ms=4000,
    segment_compression="zstd",
    evidence_key_file=KEY,
)
COLLECTED_MS = 1000
"""What nobody needs goes so long after it was found."""
CLASSES = ("ephemeral", "memory", "disk", "fsync")
PATIENCE_S = 400.0
"""Within this time of the simulation a life must have everything in the bucket, after any faults of its store."""

Script = Callable[["WholeLife"], Awaitable[None]]


@dataclass
class Machine:
    """A disk and a store, and what time it is."""

    fs: SimFs = field(default_factory=SimFs)
    objects: SimObjects = field(default_factory=SimObjects)
    now_ms: int = BASE_MS
    up_ms: int = 0
    clock: SimClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = SimClock(self.now_ms, up_ms=self.up_ms)
        if not self.fs.exists(str(KEY)):
            self.fs.mkdir(str(KEY.parent))
            write_atomic(self.fs, str(KEY), SIGNER.to_pem())

    def left(self) -> Machine:
        """What the process leaves if it is killed now."""
        return Machine(
            self.fs.after_process_kill(), self.objects.copied(), self.clock.now_ms(), self.clock.boottime_ms()
        )

    def after(self, end: End, seed: int = 0) -> Machine:
        """The machine as its next start finds it, with a store that has no faults any more."""
        up_ms = self.clock.boottime_ms() if end in ("kill", "remount") else 0
        return Machine(disk_after(self.fs, end, seed), self.objects.copied(), self.clock.now_ms(), up_ms)


class WholeLife:
    """One life while it runs."""

    def __init__(self, life: ArchivedLife, bases: BaseWriter, collector: BucketCollector) -> None:
        self.life = life
        self.bases = bases
        self.collector = collector

    async def archived_and_based(self) -> None:
        """Have everything in the bucket, and a base of this history."""
        with trio.fail_after(PATIENCE_S):
            while not self.bases.has_base:  # noqa: ASYNC110 (nothing tells of a base)
                await trio.sleep(0.5)
            await self.life.archived()


@asynccontextmanager
async def serving(machine: Machine, *, clean: bool, config: Settings = CONFIG) -> AsyncIterator[WholeLife]:
    """A life from its start to a stop or a kill."""
    async with (
        archived(machine.objects, config, fs=machine.fs, clock=machine.clock, clean=clean) as life,
        trio.open_nursery() as nursery,
    ):
        engine = life.engine
        bases = BaseWriter(
            life.archive, engine.compactor, clock=life.clock, offload=engine.offload, interval_ms=config.bucket_base_ms
        )
        collector = BucketCollector(
            life.archive,
            bases,
            clock=life.clock,
            offload=engine.offload,
            retain_ms=config.bucket_retain_ms,
            wait_ms=COLLECTED_MS,
        )
        for task in (engine.compactor.run, engine.reclaimer.run, bases.run, collector.run, life.housekeep):
            nursery.start_soon(task)
        yield WholeLife(life, bases, collector)
        nursery.cancel_scope.cancel()


def live(machine: Machine, script: Script, *, clean: bool, config: Settings = CONFIG) -> None:
    """Run one life on a machine."""

    async def run() -> None:
        async with serving(machine, clean=clean, config=config) as life:
            await script(life)

    with quiet(), tiny_packing(config):
        trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0), strict_exception_groups=True)


# -- a history ---------------------------------------------------------------------------------------------------------


async def make_topics(whole: WholeLife) -> None:
    """Topics of all classes, a router, a queue, a consumer."""
    life = whole.life
    for name in CLASSES:
        await life.put(name, durability=name, evidence=name == "fsync")
    await life.put("copies", durability="disk", cap_records=20)
    await life.put("q", durability="fsync", type="queue")
    await life.engine.routers.put("r", RouterPatch(source="disk", dest="copies", start="earliest"))
    start = ConsumerStart(place="earliest", value=0)
    await life.engine.consumers.put("fsync", "c", ConsumerPatch(start=start), Performance())


async def some_of_all(whole: WholeLife, turn: int) -> None:
    """Appends, deletions, a transaction, a commit of a stage, jobs, a position of a consumer."""
    life, engine = whole.life, whole.life.engine
    for name in CLASSES:
        await life.append(name, *({"data": {"n": turn, "of": name}, "tag": tag} for tag in (f"t{turn % 2}", None, "b")))
    one = AppendRequest(records=[RecordIn(data=msgspec.Raw(b'{"n":100}'))])
    await engine.transactions.append(TransactionRequest(topics=["disk", "fsync"], appends=[one, one]), Performance())
    staged = CheckedAppend(records=[], datas=[b'{"n":200}'] * 2, nodes=None, tags=None, metas=None)
    await engine.stages.append("memory", f"s{turn}", staged, Performance())
    if turn % 2:
        await engine.stage_commits.commit("memory", (f"s{turn}",), f"k{turn}", Performance())
        await life.delete("disk", match="t0")
        await life.delete("fsync", turn * 2)
    await life.append("q", {"n": 1}, {"n": 2})
    await ack(life, seqs_of(await claim(life, most=2))[:1])
    await engine.consumers.commit("fsync", "c", turn + 1, ConsumerMove(), Performance())


async def first_life(whole: WholeLife) -> None:
    """A fresh prefix, until there are bases."""
    await make_topics(whole)
    for turn in range(4):
        await some_of_all(whole, turn)
        await trio.sleep(0.7)
    await whole.archived_and_based()


async def later_life(whole: WholeLife, turns: int = 5) -> None:
    """More of everything, until the collector has removed what the first bases needed."""
    for turn in range(turns):
        await some_of_all(whole, 10 + turn)
        await trio.sleep(1.5)
    await whole.life.engine.topic_lifecycle.delete("ephemeral", if_empty=False)
    await whole.life.put("ephemeral", durability="ephemeral")
    await whole.archived_and_based()


# -- judgement ---------------------------------------------------------------------------------------------------------


def defects(objects: SimObjects) -> list[Any]:
    """What `topics bucket verify` says."""
    return list(BucketCheck(BucketReader(objects), Workers(1)).findings())


def heads_in(objects: SimObjects) -> list[RoundHead]:
    """The headers of the rounds that are left, ascending."""
    return [decode_round(data).head for name, data in sorted(objects.objects.items()) if name.startswith("rounds/")]


def histories(objects: SimObjects) -> int:
    """How many histories have begun in the rounds that are left. These are empty rounds, which stay."""
    return sum(head.begins_history for head in heads_in(objects))


def may_begin_anew(machine: Machine) -> bool:
    """Return True if the directory does not know of a history: the next start begins one."""
    note = read_note(machine.fs, DataDir(ROOT))
    return note is None or note.positions is None


async def goes_on(whole: WholeLife) -> None:
    """What every start must be able to do, after any earlier life."""
    life = whole.life
    await life.put("after", durability="fsync")
    await life.append("after", {"n": 1})
    await whole.archived_and_based()
    assert life.archive.look().state == "working"
    made = whole.bases.made
    with trio.fail_after(PATIENCE_S):
        while whole.bases.made == made:  # noqa: ASYNC110 (nothing tells of a base)
            await trio.sleep(0.5)


def judge(machine: Machine) -> None:
    """Start a machine, have it go on, stop it. The bucket has to verify, before if it has a base, and a restore of it
    has to show what the directory shows."""
    objects = machine.objects
    if any(name.startswith("bases/") for name in objects.objects):
        assert defects(objects) == []
        check_files(restored(objects.copied()))
    most = histories(objects) + may_begin_anew(machine)
    live(machine, goes_on, clean=True)
    assert histories(objects) <= most
    check_whole(machine)


def check_whole(machine: Machine) -> None:
    """Assert that everything is in the bucket, after a clean stop."""
    objects = machine.objects
    assert defects(objects) == []
    last = heads_in(objects)[-1]
    assert last.ends_cut
    copy = restored(objects)
    check_files(copy)
    theirs = cut_copy(machine.fs, dict(enumerate(last.positions)))
    look = partial(shown_on, World(1, config=CONFIG), now_ms=machine.clock.now_ms())
    assert look(fs=copy) == look(fs=theirs)


def check_files(fs: SimFs) -> None:
    """Nothing is damaged in a directory, and every sealed segment has its SHA-256."""
    with quiet():
        findings = list(Verification(fs, ROOT).findings())
    assert [one for one in findings if one.severity == "damage" or "no SHA-256" in one.problem] == []
