"""A cold store whose calls never return: everything that is hot goes on, the daemon starts and stops, and nothing is
lost (`docs/spec/semantics.md` 8 rule 7, `docs/spec/crash.md` 12 and 17; `docs/design/cold_store.md`).

That no other call than one of the cold kinds ever waits for it is judged by `InlineOffload` itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.disk import Fault, Op
from tests.simulation.model import Client, History, Oracle
from tests.simulation.router_lives import until_idle
from tests.simulation.segment_lives import (
    SMALL,
    SegmentSweep,
    check_files,
    checkpoint,
    exactly,
    fill,
    looked_at,
    maintenance,
    reclaim,
    relocate,
    see,
)
from tests.simulation.world import COLD, Life, World
from topics.config import Settings
from topics.errors import ApiError
from topics.model import Performance, ReadRequest, RouterPatch
from topics.storage.cold.cold_store import START_S, STOP_S

SOON_S = 5.0
"""No work on what is hot takes as long in a world without slow disks."""

CONFIG: Settings = replace(SMALL, wal_file_bytes=4 << 10, cold_timeout_ms=30_000, rewrite_live_ratio=0.7)

Work = Callable[[], Awaitable[object]]


def hang(life: Life, **which: object) -> Fault:
    """From now on no call of the cold store returns, or those that are named."""
    return life.fs.inject(Fault(hangs=True, **{"path": f"{COLD}*", "times": None} | which))  # type: ignore[arg-type]


def client_of(life: Life) -> Client:
    return Client(life.engine, History())


async def make_cold(life: Life, *names: str) -> None:
    """Topics with cold segments and hot ones."""
    for name in names:
        await client_of(life).create(name, durability="fsync")
        await fill(client_of(life), name, 16)
    await life.compactor.checkpoint()
    assert await life.relocator.pass_over()


async def soon(work: Work) -> None:
    """What must not wait for the cold store."""
    with trio.fail_after(SOON_S):
        await work()


async def forever(work: Work) -> None:
    """Do the work again and again as the daemon's tasks do, also after failures."""
    while True:
        try:
            await work()
        except (OSError, ApiError):
            pass
        await trio.sleep(0.1)


def wal_files(life: Life) -> int:
    return sum(path.endswith(".log") for path in life.fs.tree())


# ----------------------------------------------------------------- all that is hot goes on


def test_appends_hot_reads_deletions_checkpoints_and_holds_go_on_while_the_cold_store_hangs() -> None:
    """Reclaiming stood still everywhere, the log grew without end, and a hold waited."""

    async def scenario(life: Life) -> None:
        await make_cold(life, "a", "b")
        hang(life)
        async with trio.open_nursery() as nursery:
            for work in (life.reclaimer.cold_pass, life.relocator.pass_over):
                nursery.start_soon(forever, work)
            client = client_of(life)
            for turn in range(30):
                for name in ("a", "b"):
                    await soon(lambda name=name: fill(client, name, 4))  # type: ignore[misc]
                    await soon(lambda name=name: client.delete(name, match=exactly("a")))  # type: ignore[misc]
                    head = life.engine.registry.topic(name).log.head_seq
                    request = ReadRequest(from_seq=head - 4, limit=10)
                    await soon(lambda name=name, request=request: life.engine.reads.read(name, request, Performance()))  # type: ignore[misc]
                await soon(life.compactor.checkpoint)
                await soon(life.reclaimer.hot_pass)
                if turn == 20:
                    with trio.fail_after(4 * SOON_S):  # the hold is 100 ms; it waits for cold work for a bounded time
                        await life.compactor.name_files(100)
            assert life.engine.store.cold is not None
            assert life.engine.store.cold.hanging
            await trio.sleep(0.1)  # the log stays until the hold is over
            await soon(life.compactor.checkpoint)
            assert wal_files(life) < 8
            nursery.cancel_scope.cancel()

    assert World(config=CONFIG).live(scenario)


def test_a_topic_whose_cold_segment_is_on_its_way_is_appended_to_flagged_rewritten_and_deleted() -> None:
    """The copy held the lock of the topic's files."""

    async def scenario(life: Life) -> None:
        client = client_of(life)
        await client.create("a", durability="fsync")
        await fill(client, "a", 16)
        await life.compactor.checkpoint()
        hang(life, name="pwrite", path=f"{COLD}/*.data.tmp")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(forever, life.relocator.pass_over)
            await trio.sleep(0.01)
            segment_set = life.engine.registry.topic("a").segment_set
            assert segment_set is not None
            assert segment_set.cold_lock.locked()
            await soon(lambda: client.delete("a", match=exactly("b")))
            await soon(life.compactor.checkpoint)
            await soon(life.reclaimer.hot_pass)
            assert segment_set.cold_lock.locked()
            await soon(lambda: client.delete_topic("a"))
            await soon(life.compactor.checkpoint)
            nursery.cancel_scope.cancel()

    assert World(config=CONFIG).live(scenario)


def test_a_read_of_a_cold_record_is_answered_503_within_its_bound_and_hot_ones_beside_it_at_once() -> None:
    async def scenario(life: Life) -> None:
        await make_cold(life, "a")
        hang(life)
        async with trio.open_nursery() as nursery:

            async def cold() -> None:
                with pytest.raises(ApiError) as refused, trio.fail_after(31):
                    await life.engine.reads.read("a", ReadRequest(limit=5), Performance())
                assert (refused.value.code, refused.value.status) == ("not_ready", 503)

            for _ in range(20):
                nursery.start_soon(cold)
            await trio.sleep(1)
            request = ReadRequest(from_seq=life.engine.registry.topic("a").log.head_seq - 2, limit=10)
            await soon(lambda: life.engine.reads.read("a", request, Performance()))

    assert World(config=CONFIG).live(scenario)


def test_columns_whose_hot_copy_is_gone_are_read_by_threads_for_what_is_cold() -> None:
    """They were read by those for hot reads, of which there are eight."""

    async def scenario(life: Life) -> None:
        await make_cold(life, "a")
        for path in life.fs.tree():
            if path.endswith(".cold"):
                life.fs.unlink(path)
        hang(life)
        topic = life.engine.registry.topic("a")
        for span in topic.log.stored.all():
            span.detach()
        with pytest.raises(ApiError) as refused, trio.fail_after(60):
            await life.engine.deletions.delete_records("a", None, exactly("a"), Performance())
        assert refused.value.code == "not_ready"

    assert World(config=CONFIG).live(scenario)


# ----------------------------------------------------------------- start and stop


def test_a_stop_waits_for_no_call_that_hangs() -> None:
    async def scenario(life: Life) -> None:
        await make_cold(life, "a")
        await fill(client_of(life), "a", 8)
        await life.compactor.checkpoint()
        hang(life)
        began = 0.0
        async with trio.open_nursery() as nursery:
            for work in (life.reclaimer.cold_pass, life.relocator.pass_over):
                nursery.start_soon(forever, work)
            await trio.sleep(1)
            began = trio.current_time()
            life.engine.start_draining()
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began <= STOP_S + 0.2

    world = World(config=CONFIG)
    assert world.live(scenario)
    assert world.drain_s < SOON_S


def test_a_start_gets_ready_while_the_cold_store_hangs_and_uses_it_when_it_answers() -> None:
    world = World(config=CONFIG)

    async def before(life: Life) -> None:
        await make_cold(life, "a")
        await client_of(life).create("gone", durability="fsync")
        await fill(client_of(life), "gone", 16)
        await life.compactor.checkpoint()
        await life.relocator.pass_over()
        await client_of(life).delete_topic("gone")  # its cold directory is left to the next start

    fault = Fault(hangs=True, path=f"{COLD}*", times=None)

    async def hanging(life: Life) -> None:
        assert trio.current_time() <= START_S + 0.2
        assert not life.store.cold_dir.is_ours
        await soon(lambda: client_of(life).append("a", 8))
        await soon(life.compactor.checkpoint)
        with pytest.raises(ApiError):
            await life.engine.reads.read("a", ReadRequest(limit=5), Performance())
        with pytest.raises(OSError, match="not used"):
            await life.reclaimer.cold_pass()
        fault.times = fault.hits

    async def answering(life: Life) -> None:
        assert life.store.cold_dir.is_ours
        for _ in range(2):
            await maintenance(life)
        check_files(life)
        assert len((await looked_at(life))["a"].records) == 40

    assert world.live(before)
    world.fs.inject(fault)
    assert world.live(hanging)
    assert world.live(answering)


def test_a_start_gets_ready_though_it_replays_copies_of_what_has_gone_to_the_cold_store_since() -> None:
    """Their topic was deleted, so the segment that they were made of could go; the log still tells of them."""
    world = World(config=replace(CONFIG, hot_retain_segments=0))

    async def before(life: Life) -> None:
        client = client_of(life)
        for name in ("source", "dest"):
            await client.create(name, durability="fsync")
        for _ in range(4):
            await client.append("source", 4)
        await client.append("dest", 1)
        for _ in range(2):
            await life.compactor.checkpoint()
        await life.engine.routers.put("copies", RouterPatch(source="source", dest="dest", start="earliest"))
        await until_idle(life)
        assert life.engine.registry.topics["dest"].log.count == 17
        await client.delete_topic("dest")
        assert await life.relocator.pass_over()

    async def hanging(life: Life) -> None:
        assert trio.current_time() <= START_S + 0.2

    async def answering(life: Life) -> None:
        shown = await looked_at(life)
        assert shown.keys() == {"source"}
        assert len(shown["source"].records) == 16
        assert not shown["source"].gaps

    assert world.live(before, end="kill")
    world = world.after("kill")
    fault = world.fs.inject(Fault(hangs=True, path=f"{COLD}*", times=None))
    assert world.live(hanging, end="kill")
    assert fault.hits
    fault.times = fault.hits
    assert world.after("kill").live(answering)


# ----------------------------------------------------------------- wherever it hangs


async def at_work(life: Life, client: Client) -> None:
    """Everything that has to do with the cold store."""
    for name in ("a", "b"):
        await client.create(name, durability="fsync")
        await fill(client, name, 12)
    await checkpoint(life)
    await relocate(life)
    await client.delete("a", match=exactly("a"))
    await client.delete("b", before=6)
    for _ in range(2):
        await checkpoint(life)
        await reclaim(life)
    await client.delete("a", match=exactly("b"))
    await fill(client, "a", 6)
    await client.delete_topic("b")
    await maintenance(life)
    await maintenance(life)


def cold_operations() -> list[Op]:
    """The operations of the cold store in that."""
    sweep = SegmentSweep(CONFIG)
    found: list[Op] = []

    async def script(life: Life, client: Client) -> None:
        begun = len(life.fs.ops)
        await at_work(life, client)
        found.extend(op for op in life.fs.ops[begun:] if op.path.startswith(COLD))

    sweep.live(script, collect=False)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("times", [1, None])
def test_a_call_that_hangs_at_any_operation_of_the_cold_store_loses_nothing(times: int | None) -> None:
    """One call, or all from there on. What it was about is on the disk half done, and stays so."""
    operations = len(cold_operations())
    assert operations > 200
    stride = 1 if EVERYTHING else 23
    for nth in range(0 if times else 7, operations, stride):
        sweep = SegmentSweep(CONFIG)

        async def script(life: Life, client: Client, nth: int = nth) -> None:
            fault = hang(life, nth=nth, times=times)
            await at_work(life, client)
            assert fault.hits == 1 or times is None
            await soon(lambda: fill(client, "a", 2))
            await soon(life.compactor.checkpoint)

        sweep.live(script, collect=False)
        for end in ("kill", "drop"):
            world = sweep.world.after(end, 7)
            sweep.judge_world(world, Oracle(sweep.history), "kill" if end == "kill" else "machine", "drop")


# ----------------------------------------------------------------- copies without the lock


@pytest.mark.parametrize("at", ["create", "rename", "sync_dir"])
def test_rule_12_flags_that_are_set_while_a_segment_is_copied_are_in_the_copy_before_it_counts(at: str) -> None:
    """Between a copy and its flip a checkpoint flags deletions in the hot files."""
    world = World(config=replace(CONFIG, rewrite_live_ratio=0.0, cold_dir=Path(COLD)))

    async def scenario(life: Life) -> None:
        client = client_of(life)
        await client.create("a", durability="fsync")
        await fill(client, "a", 16)
        await life.compactor.checkpoint()
        async with trio.open_nursery() as nursery:

            async def flag() -> None:
                await client.delete("a", match=exactly("b"))
                await life.compactor.checkpoint()

            copied = trio.Event()
            path = f"{COLD}/*.data" if at == "sync_dir" else f"{COLD}/*.data.tmp"
            which = {"name": at, "path": path} if at != "sync_dir" else {"name": "sync_dir", "path": f"{COLD}/topics/*"}
            life.fs.inject(Fault(hook=lambda _op: copied.set(), **which))  # type: ignore[arg-type]

            async def flag_then() -> None:
                await copied.wait()
                await flag()

            nursery.start_soon(flag_then)
            assert await life.relocator.pass_over()
        for topic_path in list(life.fs.tree()):
            if topic_path.endswith(".cold"):
                life.fs.unlink(topic_path)  # so that only the cold files tell
        life.fs.sync_all("/")

    assert world.live(scenario, end="kill")
    views = see(world.after("drop"))
    assert len(views["a"].records) == 24
    assert not any('"$tag":"b"' in record.body.replace(" ", "") for record in views["a"].records.values())
