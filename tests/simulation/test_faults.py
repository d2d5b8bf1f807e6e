"""A disk that fails: EIO, ENOSPC and short writes at every operation of appends, rotation and snapshots
(`docs/spec/storage.md` section 2, "Failure").

The shard goes read-only, waiting appends get 503, what was acked stays readable, the other shard goes on, and no ack
was given before its sync. The restart decides by what is on disk.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache, partial

import pytest
import trio
from msgspec import Raw

from tests.everything import EVERYTHING
from tests.simulation.disk import Fault, Op, SimFs
from tests.simulation.model import Acked, Client, History, Oracle, Refused, Restarted, Sent, views_of
from tests.simulation.monitor import OrderingMonitor
from tests.simulation.test_crash_sweep import see
from tests.simulation.world import Life, World, settings
from topics.engine.topic import Commit, CommitPoint
from topics.errors import ApiError
from topics.model import AppendRequest, AppendResult, Performance, RecordIn, TopicConfigPatch
from topics.storage.files.datadir import DataDirError
from topics.storage.wal.frames import FrameType
from topics.storage.wal.wal_head import WalHead

pytestmark = pytest.mark.slow

TWO_SHARDS = settings(wal_shards=2)
NAMES = [f"{durability}-{i}" for i in range(3) for durability in ("fsync", "disk", "memory")]


async def nine_topics(client: Client) -> None:
    """Three topics of each stored class, spread over both shards."""
    for name in NAMES:
        await client.create(name, durability=name.partition("-")[0])


async def writing(life: Life, client: Client) -> None:
    """Appends that rotate the files of both shards, and a checkpoint. Nothing is deleted."""

    async def writer(name: str) -> None:
        for i in range(6):
            await client.append(name, 1 + i % 2, size=500, key=f"k{i}")

    async with trio.open_nursery() as clients:
        for name in NAMES:
            clients.start_soon(writer, name)
    try:
        await life.compactor.checkpoint()
    except (ApiError, OSError):
        pass
    await trio.sleep(0.1)


@cache
def _first_life() -> tuple[History, World]:
    history, world = History(), World(config=TWO_SHARDS)

    async def scenario(life: Life) -> None:
        await nine_topics(Client(life.engine, history))

    assert world.live(scenario)
    return history, world


def first_life(history: History) -> World:
    """A machine on which the topics are there."""
    told, world = _first_life()
    history.entries += told.entries
    return world.after("kill")


def acked_seqs(history: History, topic: str) -> dict[int, int]:
    """What clients were told of a topic: seq to number of the record."""
    sent = {entry.id: entry for entry in history.entries if isinstance(entry, Sent) and entry.topic == topic}
    found: dict[int, int] = {}
    for entry in history.entries:
        if isinstance(entry, Acked) and entry.id in sent and sent[entry.id].kind == "append":
            found.update(zip(range(entry.first, entry.last + 1), sent[entry.id].numbers, strict=True))
    return found


class Faulty:
    """A life with one fault in it, and what was left of its promises."""

    def __init__(self, make: Callable[[], Fault]) -> None:
        self.history = History()
        self.world = first_life(self.history)
        self.fault = self.world.fs.inject(make())
        self.failed: list[int] = []
        self.mutations = 0
        """How many there were until everything was written."""
        self.started = True

        async def scenario(life: Life) -> None:
            client = Client(life.engine, self.history)
            self.history.entries.append(Restarted("stop", await views_of(life.engine)))
            await writing(life, client)
            self.mutations = life.fs.mutations
            await self.look_after(life, client)
            self.failed = [shard for shard in range(2) if life.store.failed(shard)]

        try:
            assert self.world.live(scenario, end="kill")
        except (OSError, DataDirError):
            self.started = False

    async def look_after(self, life: Life, client: Client) -> None:
        """What was acked is readable; a failed shard refuses everything, one without room the appends at least, the
        other takes everything."""
        for name in NAMES:
            view = await client.look(name)
            assert view is not None
            shown = {seq: record.data for seq, record in view.records.items()}
            assert acked_seqs(self.history, name).items() <= shown.items(), f"{name}: something acked is not readable"
            topic = life.engine.registry.topics[name]
            before = len(self.history)
            stalled = life.store.writers[topic.shard].stall.refusal is not None
            assert (await client.append(name, 1) is None) == (life.store.failed(topic.shard) or stalled)
            assert stalled or await client.delete(name, before=1) != life.store.failed(topic.shard)
            if life.store.failed(topic.shard) or stalled:
                codes = {entry.code for entry in self.history.entries[before:] if isinstance(entry, Refused)}
                assert codes == {"read_only"}
            assert stalled or not topic.pending

    def judge(self) -> None:
        """Restart after a kill of the process, and after crashes of the machine: each time by what is on disk."""
        oracle = Oracle(self.history)
        failed = bool(self.failed) or self.world.fs.has_untold_failures
        for end in ("kill", "drop", "keep", "reorder"):
            world = self.world.after(end, 7)
            views = see(world)
            oracle.judge(views, "kill" if end == "kill" else "machine", now_ms=world.clock.now_ms(), failed=failed)
            assert see(world.after("drop")) == views


def mutations() -> list[Op]:
    """The mutating operations of the life into which the faults are put."""
    run = Faulty(lambda: Fault(error=errno.EIO, times=0))
    return [op for op in run.world.fs.ops if op.mutation is not None and op.mutation < run.mutations]


FAULTS: dict[str, Callable[[int], Fault]] = {
    "eio": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at),
    "eio-in-part": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at, keep_some=True, short=100),
    "eio-but-done": lambda at: Fault(error=errno.EIO, when=lambda op: op.mutation == at, applied=True),
    "enospc-for-good": lambda at: Fault(
        error=errno.ENOSPC,
        times=None,
        when=lambda op: op.mutation is not None and op.mutation >= at and op.name in ("pwrite", "preallocate"),
    ),
    "short": lambda at: Fault(short=7, when=lambda op: op.mutation == at),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_at_a_sample_of_the_operations_breaks_no_promise(kind: str) -> None:
    every_operation(kind, stride=48)


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_at_any_operation_breaks_no_promise(kind: str) -> None:
    every_operation(kind, stride=1 if EVERYTHING else 29)


def every_operation(kind: str, *, stride: int) -> None:
    """One run for each operation that fails, or for a sample, which is another one for each kind of fault."""
    runs = failures = 0
    for op in mutations()[3 * list(FAULTS).index(kind) % stride :: stride]:
        assert op.mutation is not None
        at = op.mutation
        try:
            run = Faulty(partial(FAULTS[kind], at))
            run.judge()
        except Exception as error:
            raise AssertionError(f"{kind} at {op}: {type(error).__name__}: {error}") from error
        runs += 1
        failures += bool(run.failed)
        if kind == "short":
            assert not run.failed
    print(f"{kind}: {runs} faults, {failures} shards went read-only")


def test_an_append_that_waits_when_its_sync_fails_is_refused_as_read_only() -> None:
    run = Faulty(lambda: Fault(error=errno.EIO, name="fdatasync", path="*shard-00/wal*", nth=5))
    codes = [entry.code for entry in run.history.entries if isinstance(entry, Refused)]
    assert run.failed == [0]
    assert set(codes) == {"read_only"}
    run.judge()


def test_a_failed_shard_is_noted_in_meta_and_in_the_other_shard() -> None:
    run = Faulty(lambda: Fault(error=errno.EIO, name="fdatasync", path="*shard-01/wal*", nth=5))
    assert run.failed == [1]
    tree = run.world.fs.tree(durable=True)
    assert b'"shard":1' in (tree["/data/meta/failed-shard-01"] or b"")
    assert any(b"failed" in (content or b"") for path, content in tree.items() if path.startswith("/data/wal/shard-00"))


@pytest.mark.parametrize("lost_notes", [["/data/meta/failed-shard-01*"], ["/data/meta/*"], []])
@pytest.mark.parametrize("told", [False, True])
def test_disk_topics_of_a_shard_that_failed_get_a_hole_up_to_the_ceiling(lost_notes: list[str], told: bool) -> None:
    """The machine stayed up, but what a failed sync has left is known to nobody; one of the notes is enough. While the
    kernel knows of a failed write of which nobody was told, it may be the other shard's."""
    world = first_life(history := History())
    for path in lost_notes:
        for name in ("create", "pwrite"):
            world.fs.inject(Fault(error=errno.EIO, name=name, path=path, times=None))
    world.fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*shard-01/wal*", nth=9))

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await writing(life, client)
        assert life.store.failed(1)

    assert world.live(scenario, end="kill")
    if told:
        world.fs.fail_writeback(told=True)
    every = not told or lost_notes == ["/data/meta/*"]  # where the witness is gone, nothing is proved
    again = world.after("kill")

    async def look(life: Life) -> None:
        for name, view in (await views_of(life.engine)).items():
            shard = life.engine.registry.topics[name].shard
            holes = [gap for gap in view.gaps if gap[2] == "lost"]
            if name.startswith("disk") and view.records:
                assert bool(holes) == (shard == 1 or every), name
            if name.startswith("fsync"):
                assert not holes

    assert again.live(look, end="kill")
    third = again.after("kill")
    views = see(third)
    assert views == see(third.after("drop"))


@pytest.mark.parametrize("nth", range(4, 12, 2))
def test_after_a_failed_sync_nothing_that_was_acked_as_fsync_is_lost_whatever_the_page_cache_shows(nth: int) -> None:
    run = Faulty(lambda: Fault(error=errno.EIO, name="fdatasync", path="*shard-00/wal*", nth=nth))
    first = run.world.after("kill")
    views = see(first)
    last = see(first.after("drop"))
    for name in NAMES:
        if name.startswith("fsync"):
            shown = {seq: record.data for seq, record in last[name].records.items()}
            assert acked_seqs(run.history, name).items() <= shown.items()
    assert last == views


def test_a_rotation_that_fails_at_its_sync_leaves_a_log_that_can_be_read_after_two_restarts() -> None:
    """The page cache shows a complete file then; its end is not on disk, and nothing may vouch for it."""
    history = History()
    world = World(config=settings())

    def is_rotation(op: Op) -> bool:
        if op.name != "fdatasync" or not op.path.endswith("wal-00000000000000000000.log"):
            return False
        writes = [done for done in world.fs.ops if done.name == "pwrite" and done.path == op.path]
        content = world.fs.tree()[op.path] or b""
        return bool(writes) and content[int(writes[-1].detail.partition("+")[0]) + 4] == FrameType.FILE_END

    world.fs.inject(Fault(error=errno.EIO, when=is_rotation))

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await client.create("plain", durability="disk")
        await client.create("safe", durability="fsync")
        for i in range(40):
            await client.append("plain", 1, size=700)
            if i % 4 == 0:
                await client.append("safe", 1)
        assert life.store.failed(0)

    assert world.live(scenario, end="kill")
    first = world.after("kill")
    views = see(first)
    Oracle(history).judge(views, "kill", now_ms=first.clock.now_ms(), failed=True)
    assert see(first.after("drop")) == views


class _Monitor(OrderingMonitor):
    """Lets CURRENT be: it is for people, and nothing relies on it."""

    def _look(self, op: Op) -> None:
        if not op.detail.endswith("/CURRENT"):
            super()._look(op)


def test_no_append_of_an_fsync_topic_is_acked_before_its_bytes_survive_any_crash(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = first_life(history := History())
    monitor = _Monitor(world.fs)
    acks = 0
    publish = Commit.publish

    def watched(self: Commit) -> None:
        nonlocal acks
        publish(self)
        if self.commit_point is CommitPoint.SYNCED and self.end is not None and not self.topic.ephemeral:
            path = paths[self.file]
            monitor.must_be_durable(world.fs, path, self.offset, self.end.offset)
            acks += 1

    paths: dict[int, str] = {}

    async def scenario(life: Life) -> None:
        add = life.store.files.add

        def noting(shard: int, ordinal: int, path: str, head: WalHead) -> object:
            file = add(shard, ordinal, path, head)
            paths[file.file_id] = file.path
            return file

        monkeypatch.setattr(life.store.files, "add", noting)
        paths.update({file.file_id: file.path for shard in range(2) for file in life.store.files.of_shard(shard)})
        await writing(life, Client(life.engine, history))

    monkeypatch.setattr(Commit, "publish", watched)
    assert world.live(scenario)
    monitor.check()
    assert acks > 20


def test_a_full_disk_refuses_appends_and_lets_reads_and_deletions_of_the_other_shard_go_on() -> None:
    run = Faulty(
        lambda: Fault(error=errno.ENOSPC, times=None, path="*shard-00*", when=lambda op: op.name == "preallocate")
    )
    assert run.failed in ([], [0])
    run.judge()


def test_changes_that_wait_when_the_shard_fails_are_refused_and_leave_no_barrier_behind() -> None:
    world = World(config=settings())
    history = History()

    async def scenario(life: Life) -> None:
        client = Client(life.engine, history)
        await client.create("loose", durability="memory")
        life.fs.inject(Fault(error=errno.EIO, name="pwrite", path="*.log"))
        async with trio.open_nursery() as clients:
            clients.start_soon(client.append, "loose", 3)
            clients.start_soon(client.configure, "loose")

            async def change() -> None:
                with pytest.raises(ApiError, match="read_only"):
                    await life.engine.topic_lifecycle.put("loose", TopicConfigPatch(durability="fsync"))

            clients.start_soon(change)
        assert life.engine.registry.topics["loose"].barrier is None
        with pytest.raises(ApiError, match="read_only"):
            await life.engine.appends.append("loose", AppendRequest(records=[]), Performance())
        with pytest.raises(ApiError, match="read_only"):
            await life.engine.topic_lifecycle.delete("loose", if_empty=False)

    assert world.live(scenario)


def test_a_world_leaves_no_file_open_when_its_disk_fails() -> None:
    run = Faulty(lambda: Fault(error=errno.EIO, name="pwrite", path="*shard-00/wal*", nth=3))
    assert isinstance(run.world.fs, SimFs)
    assert run.world.fs.open_files == 0


def test_an_append_that_was_taken_before_the_disk_was_full_is_answered_and_may_still_be_written() -> None:
    world = World(config=settings())

    async def scenario(life: Life) -> None:
        await life.engine.topic_lifecycle.put("a", TopicConfigPatch(durability="fsync"))
        for name in ("preallocate", "create"):
            life.fs.inject(Fault(error=errno.ENOSPC, name=name, times=None))

        async def append() -> AppendResult:
            record = RecordIn(data=Raw(b'"%b"' % (b"x" * 14_000)))
            request = AppendRequest(records=[record], idempotency_key="k")
            return await life.engine.appends.append("a", request, Performance())

        await append()
        record = RecordIn(data=Raw(b'"%b"' % (b"y" * 30_000)))
        waiting = AppendRequest(records=[record], idempotency_key="late")
        with trio.fail_after(20), pytest.raises(ApiError, match="may still be written") as refused:
            await life.engine.appends.append("a", waiting, Performance())
        assert (refused.value.status, refused.value.code) == (503, "read_only")
        with trio.fail_after(1), pytest.raises(ApiError) as again:
            await life.engine.appends.append("a", waiting, Performance())
        assert again.value.code == "read_only"
        life.fs.faults.clear()
        await trio.sleep(5)
        result = await life.engine.appends.append("a", waiting, Performance())
        assert (result.first_seq, result.deduped) == (2, True)

    assert world.live(scenario)
