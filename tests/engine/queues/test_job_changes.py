"""Retrying and cancelling jobs at the level of the engine: who is told, what survives, and how large calls are cut into
pieces."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import Stream, ack, at_rest, claim, counters, seqs_of, the_queue
from tests.engine.queues.test_job_lists import all_pages, listed, nack, put_group, seq_of, take
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.engine.queues.job_changes import PIECE
from topics.filters.record_filter import parse_filter
from topics.job_model import (
    HeldRequest,
    JobsChanged,
    JobSelection,
    JobStateName,
)
from topics.model import Performance
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

EVERYTHING = '["data","","Exists",true]'
HOUR_MS = 3_600_000


async def cancel(
    life: Life,
    *seqs: int,
    wanted: str | None = None,
    state: JobStateName | None = None,
    name: str = "q",
    group: str | None = None,
) -> JobsChanged:
    found = None if wanted is None else parse_filter(wanted)
    selection = JobSelection(sorted(seqs) if seqs else None, found, state)
    return await life.engine.job_changes.cancel(name, selection, Performance(), group)


async def retry(
    life: Life, *seqs: int, wanted: str | None = None, name: str = "q", group: str | None = None
) -> JobsChanged:
    found = None if wanted is None else parse_filter(wanted)
    selection = JobSelection(sorted(seqs) if seqs else None, found, "delayed")
    return await life.engine.job_changes.retry(name, selection, Performance(), group)


# ----------------------------------------------------------------- cancelling


async def test_the_holder_of_a_cancelled_job_can_do_nothing_about_it(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", 1, 2, 3)
        await claim(life, most=2)
        assert await cancel(life, 1) == (1, 1, 0)
        assert (await ack(life, [1, 2])).skipped == [1]
        assert (await nack(life, [1])).skipped == [1]
        assert await counters(life) == (1, 0, 0, 0)
        assert await cancel(life, 1, 2) == (0, 0, 2)
        await at_rest(life)


async def test_a_stream_is_told_that_its_job_is_cancelled(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", lease_ms=HOUR_MS)
        await life.append("q", 1, 2, 3)
        stream = Stream(nursery, life, 1)
        await settle()
        assert stream.seqs == [1]
        await cancel(life, 1)
        await settle()
        assert stream.seqs == [1, 2], "the place is free"
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("order_by", [None, "tag"])
async def test_the_next_job_of_a_key_can_be_claimed_when_the_first_is_cancelled(
    order_by: str | None, autojump_clock: Any
) -> None:
    async with living() as life:
        await life.put("q", type="queue", order_by=order_by)
        await life.append("q", *({"data": i, "tag": "x"} for i in range(4)))
        assert seqs_of(await claim(life, most=1)) == [1]
        assert seqs_of(await claim(life, most=1)) == ([] if order_by else [2])
        await cancel(life, 1, 2)
        assert seqs_of(await claim(life, most=1)) == [3]
        await cancel(life, 3)
        assert seqs_of(await claim(life, most=1)) == [4]
        await at_rest(life)


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "fsync"])
async def test_fresh_jobs_are_cancelled_whatever_else_is_going_on(durability: str, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability=durability)
        await life.append("q", *range(1, 11))
        assert await cancel(life, 1, 5, 10) == (3, 3, 0)
        assert seqs_of(await claim(life, most=2)) == [2, 3]
        assert await cancel(life, wanted='["data","","In",[2,4]]') == (2, 2, 0)
        assert seqs_of(await claim(life, most=9)) == [6, 7, 8, 9]
        assert await counters(life) == (0, 5, 0, 0)
        await at_rest(life)


async def test_large_cancellations_are_done_in_pieces_and_stop_at_the_head_of_their_beginning(
    autojump_clock: Any,
) -> None:
    async with living(settings(max_scan=100)) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        count = 3 * PIECE + 7
        for _ in range(0, count, PIECE):
            await life.append("q", *({"data": 1, "tag": "old"} for _ in range(PIECE)))
        await claim(life, most=100)
        before = len(life.frames(FrameType.DELETE))
        call = Called(nursery, lambda: cancel(life, wanted='["tag","Eq","old"]'))
        for _ in range(5):
            await trio.lowlevel.checkpoint()
        late = await life.append("q", {"data": 2, "tag": "old"})
        await trio.sleep(0.5)
        assert call.result == (4 * PIECE, 4 * PIECE, 0)
        assert len(life.frames(FrameType.DELETE)) - before == 4
        assert await listed(life) == [late.first_seq]
        await at_rest(life)


async def test_a_job_that_is_being_acked_or_claimed_is_decided_about_afterwards(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", leases_durable=True)
        await life.append("q", 1, 2, 3, 4)
        await claim(life, most=2)
        disk.hold()
        others = [Called(nursery, lambda: ack(life, [1])), Called(nursery, lambda: claim(life, "b", most=1))]
        await settle()
        calls = [Called(nursery, lambda: cancel(life, 1, 2, 3)), Called(nursery, lambda: cancel(life, 3, 4))]
        await settle()
        ended = [call.done for call in (*others, *calls)]
        disk.let_go()
        await trio.sleep(1)
        assert ended == [False] * 4
        assert others[0].result.done == [1]
        assert sorted(call.result.done for call in calls) in ([1, 2], [0, 3])
        assert sum(call.result.done for call in calls) == 3
        assert await listed(life) == []
        await at_rest(life)


async def test_what_was_decided_is_open_again_when_the_shard_fails(autojump_clock: Any) -> None:
    """A failed shard takes no more, but can be shown: nothing is as it would be if that had happened."""
    import errno  # noqa: PLC0415

    from tests.simulation.disk import Fault  # noqa: PLC0415

    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, {"data": 2, "delay_ms": HOUR_MS}, 3)
        await claim(life, most=1)
        await trio.sleep(0.1)
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        assert (await refusal(cancel(life, 1, 3))).code == "read_only"
        assert (await refusal(retry(life, 2))).code == "read_only"
        _, queue = the_queue(life)
        queue.leases.check()
        assert [(seq_of(job), job.state) for job in await all_pages(life)] == [
            (1, "in_flight"),
            (2, "delayed"),
            (3, "ready"),
        ]


async def test_jobs_on_their_way_to_the_dead_letters_are_skipped(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("full", cap_records=1, discard="reject")
        await life.append("full", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="full")
        await life.append("q", 1, 2)
        await claim(life, most=1)
        await nack(life, [1], dead=True)
        await trio.sleep(1)
        (job,) = await all_pages(life, "delayed")
        assert (seq_of(job), job.not_before) == (1, None)
        assert await cancel(life, 1, 2) == (2, 1, 1)
        assert await retry(life, 1) == (1, 0, 1)
        assert await retry(life, wanted=EVERYTHING) == (1, 0, 1)
        await life.put("full", discard="old")
        await trio.sleep(60)
        assert await counters(life) == (0, 0, 0, 1)


# ----------------------------------------------------------------- retrying


async def test_those_who_wait_get_a_job_that_is_retried(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue")
        await life.append(
            "q", {"data": 1, "delay_ms": HOUR_MS}, {"data": 2, "not_before": life.clock.now_ms() + 9 * HOUR_MS}
        )
        call = Called(nursery, lambda: claim(life, most=2, wait_ms=30_000))
        await trio.sleep(1)
        assert await retry(life, 2) == (1, 1, 0)
        await settle()
        assert seqs_of(call.result) == [2]
        assert await counters(life) == (0, 1, 1, 0)
        assert await retry(life, 2) == (0, 0, 1)


async def test_a_retried_job_keeps_its_deliveries_error_and_priority(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await life.append("q", {"data": 1, "priority": 8}, {"data": 2})
        await claim(life, most=2)
        await nack(life, [1, 2], delay_ms=HOUR_MS, error="why")
        assert await retry(life, wanted=EVERYTHING) == (2, 2, 0)
        assert [(job.state, job.deliveries, job.priority, job.last_error) for job in await all_pages(life)] == [
            ("ready", 1, 8, "why"),
            ("ready", 1, 5, "why"),
        ]
        assert seqs_of(await claim(life, most=1)) == [1]
        await at_rest(life)


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("by", ["append", "nack", "backoff"])
async def test_a_retry_and_a_cancellation_outlive_the_daemon(by: str, clean: bool, autojump_clock: Any) -> None:
    """For both causes of the delay: an event of the log, or time alone."""
    from topics.model import RetryPolicy  # noqa: PLC0415

    fs, clock = SimFs(), SimClock()
    backoff = RetryPolicy(backoff="fixed", delay_ms=HOUR_MS, max_delay_ms=HOUR_MS, jitter=0)
    async with living(fs=fs, clock=clock, clean=clean) as life:
        await life.put("q", type="queue", durability="fsync", lease_ms=1000, leases_durable=True, retry=backoff)
        delay = {"delay_ms": HOUR_MS} if by == "append" else {}
        await life.append("q", *({"data": i, **delay} for i in range(4)))
        if by != "append":
            await claim(life, most=4)
        if by == "nack":
            await nack(life, [1, 2, 3, 4])
        await trio.sleep(2)
        assert await listed(life, "delayed") == [1, 2, 3, 4]
        assert await retry(life, 1, 2) == (2, 2, 0)
        assert await cancel(life, 2, 4) == (2, 2, 0)
    async with living(fs=fs, clock=clock) as life:
        assert [(seq_of(job), job.state) for job in await all_pages(life)] == [(1, "ready"), (3, "delayed")]
        assert seqs_of(await claim(life, most=9)) == [1]
        await at_rest(life)
    async with living(fs=fs, clock=clock) as life:
        assert [seq_of(job) for job in await all_pages(life)] == [1, 3]


# ----------------------------------------------------------------- groups


@pytest.mark.parametrize("clean", [True, False])
async def test_a_group_has_finished_what_it_cancelled(clean: bool, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=clean) as life:
        await life.put("t", durability="fsync")
        await life.append("t", *({"data": i, "tag": "odd" if i % 2 else "even"} for i in range(1, 21)))
        await put_group(life, filter=parse_filter('["tag","Eq","odd"]'), lease_ms=HOUR_MS, leases_durable=True)
        assert seqs_of(await take(life, 2)) == [1, 3]
        await nack(life, [3], name="t", group="g", delay_ms=HOUR_MS)
        assert await cancel(life, 1, 2, 3, 7, 9, name="t", group="g") == (4, 4, 1), "2 is not for this group"
        assert await cancel(life, wanted='["data","","Gt",14]', name="t", group="g") == (3, 3, 0)
        assert await listed(life, name="t", group="g") == [5, 11, 13]
        assert seqs_of(await take(life, 1)) == [5]
        queue = life.engine.registry.topics["t"].groups.by_name["g"]  # type: ignore[union-attr]
        queue.state.check()
    async with living(fs=fs, clock=clock) as life:
        assert await listed(life, name="t", group="g") == [5, 11, 13]
        assert seqs_of(await take(life, 9)) == [11, 13]
        request = HeldRequest(node="a", seqs=[5, 11, 13], lease_ids=None)
        assert (await life.engine.queues.ack("t", request, Performance(), "g")).done == [5, 11, 13]
        await take(life, 1)
        state = await life.engine.groups.state("t", "g")
        assert (state.floor, state.lag, state.missed) == (20, 0, 0)
        assert len(await life.seqs("t")) == 20


async def test_a_group_remembers_no_more_of_what_is_cancelled_than_it_may(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", *range(1, 41))
        await put_group(life, max_unfinished=5)
        scattered = [seq for seq in range(2, 41) if seq % 2]
        answer = await cancel(life, *scattered, name="t", group="g")
        assert answer == (19, 5, 14)
        state = await life.engine.groups.state("t", "g")
        assert state.unfinished == 5
        assert await cancel(life, 1, 2, name="t", group="g") == (2, 0, 2)
        await put_group(life, "h", max_unfinished=5)
        assert await cancel(life, wanted=EVERYTHING, name="t", group="h") == (40, 40, 0), "side by side is one run"


async def test_a_group_retries_what_is_delayed(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", 1, 2, 3)
        await put_group(life)
        await take(life, 2)
        await nack(life, [1, 2], name="t", group="g", delay_ms=HOUR_MS)
        assert await listed(life, "delayed", name="t", group="g") == [1, 2]
        assert await retry(life, wanted='["data","","Eq",2]', name="t", group="g") == (1, 1, 0)
        assert seqs_of(await take(life, 9)) == [2, 3]


async def test_a_call_about_a_group_ends_with_it(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(settings(cache_bytes=0), offload=disk) as life, trio.open_nursery() as nursery:
        from topics.runtime.offload import Pool  # noqa: PLC0415

        await life.put("t")
        await life.append("t", 1, 2, 3)
        await put_group(life)
        await trio.sleep(0.1)
        disk.hold(Pool.HOT_READ)
        call = Called(nursery, lambda: cancel(life, wanted=EVERYTHING, name="t", group="g"))
        await settle()
        await life.engine.groups.delete("t", "g", Performance())
        disk.let_go(Pool.HOT_READ)
        await trio.sleep(1)
        assert call.error is not None
        assert call.error.code == "group_not_found"


async def test_a_claim_that_a_cancellation_leaves_no_room_goes_on_when_that_has_ended(autojump_clock: Any) -> None:
    """A job that is being cancelled counts in `max_in_flight` until that is done, as a job on its way to a worker."""
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync", max_in_flight=1)
        await life.append("q", 1, 2)
        offload.hold()
        cancelled = Called(nursery, lambda: cancel(life, 2))
        await settle()
        assert not cancelled.done
        assert seqs_of(await claim(life)) == []
        waiting = Called(nursery, lambda: claim(life, wait_ms=HOUR_MS))
        await settle()
        assert not waiting.done
        offload.let_go()
        await settle()
        assert (cancelled.result, seqs_of(waiting.result)) == ((1, 1, 0), [1])
