"""Jobs in order for each key (`docs/design/key_order.md`), at the level of the engine: where the keys come from, what
wakes whom, and what a restart or another config leaves."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import ack, at_rest, claim, counters, seqs_of, the_queue
from tests.engine.queues.test_jobs import nack
from tests.simulation.disk import SimFs
from topics.model import KeyLimitConfig
from topics.queue import key_order
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio


async def jobs(life: Life, *keys: str | None, field: str = "tag") -> None:
    await life.append("q", *({"data": i, field: key} if key else i for i, key in enumerate(keys)))


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("field", ["tag", "node"])
async def test_one_job_of_a_key_is_leased_at_a_time(durability: str, field: str, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", order_by=field, durability=durability)
        await jobs(life, "a", "a", None, "b", "a", None, field=field)
        assert seqs_of(await claim(life, most=9)) == [1, 3, 4, 6]
        assert await counters(life) == (2, 4, 0, 0)
        call = Called(nursery, lambda: claim(life, "b", most=9, wait_ms=10_000))
        await trio.sleep(1)
        assert not call.done
        await ack(life, [1])
        await trio.sleep(0.1)
        assert seqs_of(call.result) == [2]
        await ack(life, [2], "b")
        await ack(life, [3, 4, 6])
        assert seqs_of(await claim(life)) == [5]
        await ack(life, [5])
        await at_rest(life)


async def test_a_job_that_fails_keeps_its_place(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", order_by="tag", lease_ms=5000)
        await jobs(life, "a", "a")
        assert seqs_of(await claim(life, most=9)) == [1]
        await nack(life, [1], delay_ms=3000)
        assert seqs_of(await claim(life, most=9)) == []
        assert seqs_of(await claim(life, most=9, wait_ms=4000)) == [1]
        assert seqs_of(await claim(life, "b", most=9, wait_ms=6000)) == [1]  # the lease of the other has ended
        await ack(life, [1], "b")
        assert seqs_of(await claim(life, most=9)) == [2]


async def test_a_job_of_later_holds_up_its_key_and_priorities_are_ignored(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", order_by="tag")
        await life.append(
            "q",
            {"data": 1, "tag": "a", "delay_ms": 5000},
            {"data": 2, "tag": "a"},
            {"data": 3, "tag": "b"},
            {"data": 4, "tag": "c", "priority": 9},
        )
        assert seqs_of(await claim(life, most=9)) == [3, 4]
        assert seqs_of(await claim(life, most=9, wait_ms=8000)) == [1]


async def test_a_dead_letter_frees_the_next_of_its_key(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", order_by="tag", max_deliveries=1, dead_letter="dead")
        await jobs(life, "a", "a", "b")
        assert seqs_of(await claim(life, most=9)) == [1, 3]
        await nack(life, [1])
        call = Called(nursery, lambda: claim(life, "b", most=9, wait_ms=10_000))
        await trio.sleep(5)
        assert seqs_of(call.result) == [2]
        assert await counters(life) == (0, 2, 0, 1)


@pytest.mark.parametrize("how", ["delete", "evict", "expire"])
async def test_a_record_that_goes_frees_the_next_of_its_key(how: str, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        limits = {"evict": {"cap_records": 2}, "expire": {"ttl_ms": 60_000}}.get(how, {})
        await life.put("q", type="queue", order_by="tag", **limits)
        await jobs(life, "a")
        await trio.sleep(10)
        await jobs(life, "a")
        assert seqs_of(await claim(life, most=9, lease_ms=600_000)) == [1]
        call = Called(nursery, lambda: claim(life, "b", most=9, wait_ms=300_000))
        await trio.sleep(1)
        assert not call.done
        if how == "delete":
            await life.delete("q", 2)
        elif how == "evict":
            await jobs(life, None)
        else:
            await trio.sleep(52)
        await trio.sleep(1)
        assert seqs_of(call.result)[0] == 2


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_the_order_is_the_same_after_a_restart(end: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=2), fs=fs, clean=end == "stop") as life:
        await life.put("q", type="queue", order_by="tag", durability="fsync", leases_durable=True)
        await jobs(life, "a", "b", "a", "b", "c", "c", "a")
        assert seqs_of(await claim(life, most=3)) == [1, 2, 5]
        await ack(life, [2])
        await nack(life, [5], delay_ms=60_000)
        if checkpoint:
            await life.compactor.checkpoint()
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert seqs_of(await claim(life, most=9)) == [4]
        await ack(life, [1, 4])
        assert seqs_of(await claim(life, most=9)) == [3]
        await trio.sleep(70)
        assert seqs_of(await claim(life, most=9)) == [3, 5]
        _, queue = the_queue(life)
        queue.leases.check()


async def test_another_order_begins_beside_the_leases_of_the_one_before(autojump_clock: Any) -> None:
    async with living(settings(segment_max_events=2)) as life:
        await life.put("q", type="queue")
        await jobs(life, "a", "a", "a", "b", "b")
        assert seqs_of(await claim(life, most=2)) == [1, 2]
        await nack(life, [1])
        await life.put("q", order_by="tag")
        assert seqs_of(await claim(life, most=9)) == [4]  # 2 is still held, though 1 is before it
        await ack(life, [2])
        assert seqs_of(await claim(life, most=9)) == [1]
        await life.put("q", order_by="node")
        assert seqs_of(await claim(life, most=1)) == [3]
        await life.put("q", order_by=None)
        assert seqs_of(await claim(life, most=9)) == [5]
        await ack(life, [1, 3, 4, 5])
        await at_rest(life)


@pytest.mark.parametrize("jitter", [0, 50])
async def test_keys_of_records_that_are_only_on_disk_are_read(jitter: int, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=50, max_scan=70), fs=fs) as life:
        await life.put("q", type="queue", order_by="tag", durability="fsync", claim_jitter_ms=jitter)
        for _ in range(4):
            await jobs(life, *["a"] * 60)
        await jobs(life, "b", None)
        await life.compactor.checkpoint()
        clock = life.clock
    async with living(settings(max_scan=70), fs=fs, clock=clock) as life:
        found = [seqs_of(await claim(life, most=3)) for _ in range(3)]
        # Without a window a claim is answered with what one look finds, if it finds anything.
        assert found == ([[1, 241, 242], [], []] if jitter else [[1], [241, 242], []])


@pytest.mark.parametrize("terms", [{"order_by": "tag"}, {"max_in_flight_per_key": KeyLimitConfig(by="tag", max=1)}])
async def test_a_look_at_keys_ends_when_its_topic_is_deleted(terms: dict[str, Any], autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, clean=False) as life:
        await life.put("q", type="queue", durability="fsync", **terms)
        await jobs(life, "a", "b")
        clock = life.clock
    async with living(fs=fs, clock=clock, offload=offload) as life, trio.open_nursery() as nursery:
        offload.hold(Pool.HOT_READ)
        calls = [Called(nursery, lambda: claim(life, most=9)) for _ in range(2)]
        waiting = Called(nursery, lambda: claim(life, most=9, wait_ms=10_000))
        await settle()
        await life.engine.topic_lifecycle.delete("q", if_empty=False)
        offload.let_go(Pool.HOT_READ)
        for _ in range(100):  # a look that goes on takes no time
            await trio.lowlevel.checkpoint()
        for call in (*calls, waiting):
            assert call.error is not None
            assert call.error.code == "topic_not_found"


async def test_beyond_so_many_known_jobs_claims_get_nothing_fresh(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    monkeypatch.setattr(key_order, "MOST_KNOWN", 4)
    async with living() as life:
        await life.put("q", type="queue", order_by="tag")
        await jobs(life, *["a"] * 4)
        assert seqs_of(await claim(life, most=1)) == [1]
        assert seqs_of(await claim(life, most=9)) == []
        await jobs(life, "b")
        assert seqs_of(await claim(life, most=9)) == []
        await ack(life, [1])
        assert seqs_of(await claim(life, most=9)) == [2, 5]


async def test_a_log_has_no_order(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log", order_by=None)
        for name in ("log", "new"):
            error = await refusal(life.put(name, order_by="tag"))
            assert (error.code, error.detail) == ("invalid_request", {"field": "order_by"})
        assert "new" not in life.engine.registry.topics
        await life.put("q", type="queue")
        error = await refusal(life.put("q", order_by="key"))
        assert (error.code, error.detail) == ("invalid_request", {"field": "order_by"})
