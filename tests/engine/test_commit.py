"""Appends: the four classes' ack moments, ceilings, order and time, cancellation, failure."""

from __future__ import annotations

import errno
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.errors import ApiError
from topics.runtime.offload import Pool
from topics.runtime.withdrawal import CURRENT, Withdrawal
from topics.storage.wal.frames import CONTINUES, MORE, FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


# -- ack moments -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("durability", "writes", "syncs"),
    [("ephemeral", {0}, 0), ("memory", {0, 1}, 0), ("disk", {1}, 0), ("fsync", {1}, 1)],
)
async def test_what_an_ack_has_waited_for(durability: Any, writes: set[int], syncs: int, mock_clock: Any) -> None:
    """Below the ceiling; no time passes, so the background tick cannot be what was waited for. A record of `memory` may
    be written before its client takes its next step."""
    async with living(housekeeping=False) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1)
        mock_clock.jump(1)
        await settle()
        before = life.writes(), life.syncs()
        acked = []

        async def append() -> None:
            await life.append("t", 2)
            acked.append((life.writes() - before[0], life.syncs() - before[1]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(append)
        assert acked in [[(count, syncs)] for count in writes]
        assert await life.seqs("t") == [1, 2]
        mock_clock.autojump_threshold = 0


async def test_an_ack_of_a_held_disk(autojump_clock: Any) -> None:
    """`memory` and `ephemeral` are acked and visible while the disk stands still, the others when it moves on."""
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        for durability in CLASSES:
            await life.put(durability, durability=durability)
            await life.append(durability, 1)
        offload.hold()
        calls = {name: Called(nursery, partial(life.append, name, 2)) for name in CLASSES}
        await trio.sleep(5)
        assert {name: call.done for name, call in calls.items()} == {
            "ephemeral": True,
            "memory": True,
            "disk": False,
            "fsync": False,
        }
        assert [len(await life.seqs(name)) for name in CLASSES] == [2, 2, 1, 1]
        offload.let_go()
        await settle()
        assert all(call.done for call in calls.values())
        assert [await life.seqs(name) for name in CLASSES] == [[1, 2]] * 4


async def test_a_disk_ack_in_a_group_with_fsync_does_not_wait_for_the_sync(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("disk", durability="disk")
        await life.put("fsync", durability="fsync")
        await life.append("disk", 1)
        seen: list[int] = []
        fs.inject(
            Fault(
                name="fdatasync",
                path="*.log",
                when=lambda op: life.engine.registry.topics["disk"].log.head_seq == 2,
                hook=lambda op: seen.append(life.engine.registry.topics["fsync"].log.head_seq),
            )
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(life.append, "fsync", 1)
            nursery.start_soon(life.append, "disk", 2)
        assert seen == [0], "at the sync of their group `disk` is published and `fsync` is not"


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
async def test_the_first_append_waits_for_one_sync_that_covers_its_ceiling(
    durability: Any, autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("t", durability=durability)
        # Created with a block reserved; idle for a second, it gives it back.
        await trio.sleep(3)
        assert life.engine.registry.topics["t"].ceiling.synced == 0
        syncs = life.syncs()
        await life.append("t", 1)
        assert life.syncs() == syncs + 1
        await life.append("t", 2)
        assert life.syncs() == syncs + 1
        ceilings = [payload["ceiling"] for _, payload in life.frames(FrameType.HEAD_WATERMARK)]
        assert ceilings[-2:] == [0, 1 + 1024]


# -- ceilings ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk"])
async def test_no_seq_is_shown_above_a_ceiling_that_is_synced(durability: Any, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", durability=durability)
        topic = life.engine.registry.topics["t"]
        durable = [1024]

        def look(op: Any) -> None:
            assert topic.log.head_seq <= durable[-1], "visible above what a crash would leave reserved"

        fs.subscribe(look)
        for i in range(60):
            await life.append("t", *range(97))
            synced = [payload["ceiling"] for _, payload in life.frames(FrameType.HEAD_WATERMARK)]
            durable.append(max([1024, *synced]))
            assert topic.log.head_seq <= topic.ceiling.synced
            if i % 7 == 0:
                await trio.sleep(0.03)
        assert topic.log.head_seq == 60 * 97


async def test_a_ceiling_block_doubles_under_load_and_falls_back_when_idle(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability="disk")
        for _ in range(40):
            await life.append("t", *range(500))
            await trio.sleep(0.03)
        topic = life.engine.registry.topics["t"]
        assert topic.ceiling.block > 1024
        assert topic.ceiling.synced > topic.log.head_seq
        await trio.sleep(3)
        assert topic.ceiling.synced == topic.log.head_seq == 20_000
        assert life.frames(FrameType.HEAD_WATERMARK)[-1][1] == {"ceiling": 20_000}
        await life.append("t", 1)
        assert life.frames(FrameType.HEAD_WATERMARK)[-1][1] == {"ceiling": 20_001 + 1024}


async def test_a_ceiling_is_not_lowered_while_something_is_not_synced(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("t", durability="memory")
        offload.hold()
        await life.append("t", 1)
        await trio.sleep(5)
        assert life.engine.registry.topics["t"].ceiling.synced == 1024
        offload.let_go()
        await trio.sleep(2)
        assert life.engine.registry.topics["t"].ceiling.synced == 1


async def test_a_topic_under_reconfiguration_keeps_its_ceiling(autojump_clock: Any) -> None:
    """Lowering it between the ConfigUpdate and its sync would leave memory with more than the log has."""
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="disk")
        await life.append("t", 1)
        await trio.sleep(0.2)
        offload.hold()
        call = Called(nursery, lambda: life.put("t", cap_records=5))
        await trio.sleep(5)
        offload.let_go()
        await settle()
        assert call.done
        logged = [payload["ceiling"] for _, payload in life.frames(FrameType.HEAD_WATERMARK)]
        assert life.engine.registry.topics["t"].ceiling.synced == logged[-1]


# -- order, time, atomicity --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", CLASSES)
async def test_concurrent_batches_are_contiguous_in_order_and_whole(durability: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability=durability)
        acks: list[tuple[int, int, int]] = []

        async def write(writer: int) -> None:
            for i in range(20):
                n = (writer * 7 + i) % 5 + 1
                done = await life.append("t", *[{"data": [writer, i, k], "node": f"n{writer}"} for k in range(n)])
                assert done.last_seq - done.first_seq + 1 == done.count == n
                assert done.head_seq >= done.last_seq
                acks.append((done.first_seq, writer, i))

        async with trio.open_nursery() as nursery:
            for writer in range(8):
                nursery.start_soon(write, writer)
        found, gaps = await life.all("t")
        assert gaps == []
        assert [record["$seq"] for record in found] == list(range(1, len(found) + 1))
        for first, writer, i in acks:
            n = (writer * 7 + i) % 5 + 1
            assert [r["data"] for r in found[first - 1 : first - 1 + n]] == [[writer, i, k] for k in range(n)]
            assert len({r["$ts"] for r in found[first - 1 : first - 1 + n]}) == 1


async def test_time_never_decreases_when_the_wall_clock_steps_back(autojump_clock: Any) -> None:
    clock = SimClock()
    fs = SimFs()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1)
        clock.step(-3_600_000)
        await life.append("t", 2)
        await life.append("new", 1)
        clock.step(7_200_000)
        await life.append("t", 3)
        times = [record["$ts"] for record in (await life.all("t"))[0]]
        assert times[0] == times[1] < times[2]
    clock.step(-86_400_000)
    async with living(fs=fs.after_process_kill(), clock=clock) as life:
        await life.append("t", 4)
        assert [record["$ts"] for record in (await life.all("t"))[0]] == [*times, times[2]]


async def test_the_frames_of_a_batch_with_a_key_and_an_eviction_are_one_batch(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability="disk", cap_records=3)
        await life.append("t", 1, 2, 3)
        await life.append("t", 4, 5, idempotency_key="k")
        batch = [(frame, payload) for frame, payload in life.frames() if frame.topic_id == 1][-4:]
        assert [FrameType(frame.type) for frame, _ in batch] == [
            FrameType.APPEND,
            FrameType.APPEND,
            FrameType.IDEMPOTENCY,
            FrameType.EVICT_WATERMARK,
        ]
        assert [frame.flags for frame, _ in batch] == [MORE, MORE | CONTINUES, MORE | CONTINUES, CONTINUES]
        assert batch[2][1] == {"key": "k", "first": 4, "count": 2, "at": life.engine.registry.windows.now_ms()}
        assert batch[3][1] == {"below": 3, "reason": "cap"}


async def test_synced_seq_follows_the_disk(autojump_clock: Any) -> None:
    async with living() as life:
        for durability in CLASSES:
            await life.put(durability, durability=durability)
            await life.append(durability, 1)
            await life.append(durability, 2)
        await trio.sleep(0.1)
        synced = {name: (await life.engine.topic_states.of(name, touch=False)).synced_seq for name in CLASSES}
        assert synced == {"ephemeral": 0, "memory": 2, "disk": 2, "fsync": 2}


# -- cancellation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "fsync"])
async def test_a_request_cancelled_in_the_middle_of_its_commit_changes_only_who_hears_of_it(
    durability: Any, autojump_clock: Any
) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability=durability)
        await life.append("t", 0)
        offload.hold()
        call = Called(nursery, lambda: life.append("t", 1, 2, idempotency_key="k"))
        await settle()
        waiting = Called(nursery, lambda: life.append("t", 9, idempotency_key="k"))
        reader = Called(nursery, lambda: life.read("t", 1, wait_ms=30_000))
        await settle()
        call.scope.cancel()
        await settle()
        assert call.cancelled
        offload.let_go()
        await settle()
        assert reader.result.next_from_seq == 3
        assert (waiting.result.first_seq, waiting.result.count, waiting.result.deduped) == (2, 2, True)
        assert [record["data"] for record in (await life.all("t"))[0]] == [0, 1, 2]


async def test_a_cancelled_create_is_finished(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        offload.hold()
        call = Called(nursery, lambda: life.put("t", durability="fsync"))
        await settle()
        call.scope.cancel()
        await settle()
        offload.let_go()
        await settle()
        assert life.engine.registry.topic("t").config.durability == "fsync"


# -- failure -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["pwrite", "fdatasync"])
async def test_a_failed_shard_is_read_only(operation: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        for durability in CLASSES:
            await life.put(durability, durability=durability)
            await life.append(durability, 1, 2)
        fs.inject(Fault(error=errno.EIO, name=operation, path="*.log", times=None))
        error = await refusal(life.append("fsync", 3))
        assert (error.status, error.code) == (503, "read_only")
        await settle()
        assert life.engine.status.read_only
        for name in CLASSES:
            for call in (
                life.append(name, 4),
                life.put(name, cap_records=7),
                life.delete(name, before_seq=2),
                life.engine.topic_lifecycle.delete(name, if_empty=False),
            ):
                assert (await refusal(call)).code == "read_only"
            assert await life.seqs(name) == [1, 2]
        assert (await refusal(life.put("new"))).code == "read_only"
        assert (await refusal(life.append("new", 1))).code == "read_only"
        assert (await life.engine.metrics.figures()).wal.read_only == 1


@pytest.mark.parametrize("durability", CLASSES)
async def test_everything_without_an_ack_fails_with_the_shard_and_nothing_hangs(
    durability: Any, autojump_clock: Any
) -> None:
    """Also what waits for nothing itself but stands behind a commit that waited for the raise of the ceiling."""
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability=durability)
        await life.append("t", *range(1000))
        await trio.sleep(3)
        head = life.engine.registry.topics["t"].log.head_seq
        raised = durability != "fsync"
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", nth=1 if raised else 0))
        offload.hold()
        calls = [Called(nursery, partial(life.append, "t", i, idempotency_key=f"k{i % 3}")) for i in range(6)]
        config = Called(nursery, lambda: life.put("t", cap_records=3))
        await settle()
        offload.let_go()
        await settle()
        calls += [Called(nursery, partial(life.append, "t", i)) for i in range(3)]
        await trio.sleep(5)
        assert all(call.done for call in calls)
        assert config.done
        acked = [call.result.last_seq for call in calls if call.result is not None and not call.result.deduped]
        topic = life.engine.registry.topics["t"]
        assert topic.log.head_seq == max([head, *acked])
        assert not topic.pending
        assert (topic.pending_records, topic.pending_bytes) == (0, 0)
        assert life.engine.keys.count == len(topic.keys or ())
        assert topic.barrier is None


async def test_an_append_behind_a_failed_one_fails_with_it(autojump_clock: Any) -> None:
    """An `ephemeral` append below the ceiling is not in the writer's queue; the one before it, above it, is."""
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="ephemeral")
        await life.append("t", 0)
        topic = life.engine.registry.topics["t"]
        await trio.sleep(3)
        assert topic.ceiling.synced == 1
        offload.hold()
        first = Called(nursery, lambda: life.append("t", 1))
        await settle()
        topic.ceiling.synced = 1024  # as if the raise, which travels in front of it, were synced by an earlier group
        second = Called(nursery, lambda: life.append("t", 2))
        await settle()
        assert not first.done
        assert not second.done
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        offload.let_go()
        await settle()
        assert first.error is not None
        assert second.error is not None
        assert topic.log.head_seq == 1


async def test_memory_records_stay_readable_when_their_write_fails_and_nobody_waits_for_ever(
    autojump_clock: Any,
) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="memory")
        offload.hold()
        await life.append("t", 1)
        config = Called(nursery, lambda: life.put("t", cap_records=3))
        gone = Called(nursery, lambda: life.engine.topic_lifecycle.delete("t", if_empty=False))
        fs.inject(Fault(error=errno.EIO, name="pwrite", path="*.log", times=None))
        await settle()
        offload.let_go()
        await trio.sleep(5)
        assert config.error is not None
        assert gone.error is not None
        assert await life.seqs("t") == [1]
        assert (await refusal(life.append("t", 2))).code == "read_only"


async def test_little_space_refuses_appends_only(autojump_clock: Any) -> None:
    fs = SimFs(capacity=4 << 20)
    async with living(settings(min_free_bytes=1 << 20), fs=fs) as life:
        await life.append("t", 1, 2, 3)
        ballast = fs.open("/ballast", create=True)
        ballast.truncate(2 << 20)
        ballast.close()
        await trio.sleep(1)
        for name in ("t", "new"):
            error = await refusal(life.append(name, 4))
            assert (error.status, error.code) == (503, "read_only")
            assert error.retry_after_s
        assert (await life.delete("t", before_seq=2)).deleted == 1
        await life.put("t", cap_records=1)
        assert await life.seqs("t") == [3]
        await life.compactor.checkpoint()
        fs.unlink("/ballast")
        await trio.sleep(1)
        assert (await life.append("t", 4)).last_seq == 4


async def test_a_full_queue_is_429_after_the_admission_time_and_no_wait_with_backpressure_off(
    autojump_clock: Any,
) -> None:
    offload = HeldOffload()
    async with living(settings(admission_ms=700), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="memory", idempotency_window_ms=1000)
        await life.put("e", durability="ephemeral")
        await life.append("t", 0)
        offload.hold()
        calls = [Called(nursery, lambda: life.append("t", "x" * 900_000)) for _ in range(40)]
        await settle()
        assert life.engine.store.writers[0].queue.is_full
        patient = Called(nursery, lambda: life.append("t", "patient", disable_backpressure=True))
        gone = Called(nursery, lambda: life.append("t", "gone", disable_backpressure=True))
        started = trio.current_time()
        error = await refusal(life.append("t", "late"))
        assert (error.status, error.detail["limit"], error.retry_after_s) == (429, "wal_queue", 1)
        assert trio.current_time() - started == pytest.approx(0.7)
        assert (await life.append("e", 1)).last_seq == 1, "an `ephemeral` append needs no room"
        gone.scope.cancel()
        await trio.sleep(100)
        assert not patient.done
        offload.let_go()
        await settle()
        assert patient.result.count == 1
        assert gone.cancelled
        stored = [call for call in calls if call.result is not None]
        found = [record["data"] for record in (await life.all("t"))[0]]
        assert len(found) == 1 + len(stored) + 1
        assert "gone" not in found
        assert "late" not in found
        assert sum((await life.engine.metrics.figures()).throttled.values()) == 1 + len(calls) - len(stored)
        assert Pool.WAL in offload.calls


async def test_an_append_that_waits_for_room_ends_when_its_key_is_withdrawn(autojump_clock: Any) -> None:
    offload = HeldOffload()
    withdrawal = Withdrawal()
    errors: list[ApiError] = []
    async with living(settings(), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="memory")
        await life.append("t", 0)
        offload.hold()
        for _ in range(40):
            Called(nursery, lambda: life.append("t", "x" * 900_000, disable_backpressure=True))
        await settle()
        assert life.engine.store.writers[0].queue.is_full

        async def append() -> None:
            CURRENT.set(withdrawal)
            errors.append(await refusal(life.append("t", "gone", disable_backpressure=True)))

        nursery.start_soon(append)
        await trio.sleep(100)
        assert errors == []
        reason = ApiError("unauthorized", "this key is not valid")
        withdrawal.end(reason)
        await settle()
        assert errors == [reason]
        offload.let_go()
        await settle()
        assert "gone" not in [record["data"] for record in (await life.all("t"))[0]]


async def test_a_log_that_checkpoints_do_not_keep_up_with_is_429_until_one_does(autojump_clock: Any) -> None:
    """What no checkpoint has covered is in memory, as an index, and on the disk: it is bounded like any queue."""
    async with living(settings(wal_backlog_bytes=4000, admission_ms=50)) as life:
        appended = 0
        while not life.engine.store.writers[0].queue.is_full:
            appended = (await life.append("t", "x" * 500)).last_seq
        assert 5 <= appended <= 8
        error = await refusal(life.append("t", "x"))
        assert (error.status, error.detail["limit"]) == (429, "wal_backlog_bytes")
        assert error.detail["retry_after_ms"] > 0
        assert (await life.put("t", cap_records=100))[0].cap_records == 100, "what is not admitted goes on"
        await life.compactor.checkpoint()
        assert (await life.append("t", "x")).last_seq == appended + 1


async def test_an_append_that_waits_for_a_checkpoint_goes_on_after_it(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    async with living(settings(wal_backlog_bytes=4000, admission_ms=1000)) as life:
        while not life.engine.store.writers[0].queue.is_full:
            await life.append("t", "x" * 500)
        waiting = Called(nursery, partial(life.append, "t", "y"))
        await trio.sleep(0.5)
        assert not waiting.done
        await life.compactor.checkpoint()
        await settle()
        assert waiting.result is not None
