"""So many jobs of each key at a time (`docs/design/key_order.md` section 7), at the level of the engine: where the keys
come from, what wakes whom, and what a restart or another config leaves."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, Life, living, settings
from tests.engine.queues.queue_calls import ack, at_rest, claim, counters, seqs_of, the_queue
from tests.engine.queues.test_jobs import nack
from tests.simulation.disk import SimFs
from topics.model import KeyLimitConfig
from topics.queue import key_limit

pytestmark = pytest.mark.trio

ONE = KeyLimitConfig(by="tag", max=1)
TWO = KeyLimitConfig(by="tag", max=2)


async def jobs(life: Life, *keys: str | None, field: str = "tag") -> None:
    await life.append("q", *({"data": i, field: key} if key else i for i, key in enumerate(keys)))


@pytest.mark.parametrize("durability", ["ephemeral", "disk", "fsync"])
@pytest.mark.parametrize("field", ["tag", "node"])
async def test_so_many_jobs_of_a_key_are_leased_at_a_time(durability: str, field: Any, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        limit = KeyLimitConfig(by=field, max=2)
        await life.put("q", type="queue", max_in_flight_per_key=limit, durability=durability)
        await jobs(life, "a", "a", "a", "b", None, "a", None, field=field)
        assert seqs_of(await claim(life, most=9)) == [1, 2, 4, 5, 7]
        assert await counters(life) == (2, 5, 0, 0)
        call = Called(nursery, lambda: claim(life, "b", most=9, wait_ms=10_000))
        await trio.sleep(1)
        assert not call.done
        await ack(life, [2])
        await trio.sleep(0.1)
        assert seqs_of(call.result) == [3]
        await ack(life, [3], "b")
        await ack(life, [1, 4, 5, 7])
        assert seqs_of(await claim(life, most=9)) == [6]
        await ack(life, [6])
        await at_rest(life)


async def test_claims_that_run_together_do_not_exceed_it(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", max_in_flight_per_key=TWO, durability="fsync", leases_durable=True)
        await jobs(life, *["a"] * 9)
        calls = [Called(nursery, lambda: claim(life, most=1)) for _ in range(5)]
        await trio.sleep(1)
        assert sorted(seq for call in calls for seq in seqs_of(call.result)) == [1, 2]


async def test_priorities_hold_among_the_keys_with_room(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_in_flight_per_key=ONE)
        await jobs(life, "a", "b")
        await life.append("q", *({"data": 1, "tag": tag, "priority": 7} for tag in "aac"))
        assert seqs_of(await claim(life, most=1)) == [3]
        assert seqs_of(await claim(life, most=9)) == [5, 2]
        await ack(life, [3])
        assert seqs_of(await claim(life, most=9)) == [4]
        await nack(life, [4], delay_ms=2000)
        assert seqs_of(await claim(life, most=9)) == [1]
        assert seqs_of(await claim(life, most=9, wait_ms=4000)) == []
        await ack(life, [1])
        assert seqs_of(await claim(life, most=9)) == [4]


async def test_the_end_of_a_lease_makes_room(autojump_clock: Any) -> None:
    async with living() as life:
        config = {"max_in_flight_per_key": ONE, "max_deliveries": 1, "dead_letter": "dead", "lease_ms": 5000}
        await life.put("q", type="queue", **config)
        await jobs(life, "a", "a", "a")
        assert seqs_of(await claim(life, most=9)) == [1]
        assert seqs_of(await claim(life, most=9, wait_ms=6000)) == [2]  # 1 is on its way to the dead letters
        await nack(life, [2], dead=True)
        assert seqs_of(await claim(life, most=9, wait_ms=1000)) == [3]
        await trio.sleep(1)
        assert await counters(life) == (0, 1, 0, 2)


@pytest.mark.parametrize("how", ["delete", "evict", "expire"])
async def test_a_record_that_goes_makes_room(how: str, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        limits = {"evict": {"cap_records": 2}, "expire": {"ttl_ms": 60_000}}.get(how, {})
        await life.put("q", type="queue", max_in_flight_per_key=ONE, **limits)
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
async def test_the_limit_holds_after_a_restart(end: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=2), fs=fs, clean=end == "stop") as life:
        config = {"max_in_flight_per_key": TWO, "durability": "fsync", "leases_durable": True}
        await life.put("q", type="queue", **config)
        await jobs(life, "a", "a", "a", "b", "a", "a")
        await life.append("q", {"data": 1, "tag": "a", "priority": 9}, {"data": 1, "tag": "b", "priority": 9})
        assert seqs_of(await claim(life, most=3)) == [7, 8, 1]
        await nack(life, [1])
        assert seqs_of(await claim(life, most=9)) == [1, 4]
        if checkpoint:
            await life.compactor.checkpoint()
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert seqs_of(await claim(life, most=9)) == []
        await ack(life, [1])
        assert seqs_of(await claim(life, most=9)) == [2]
        await ack(life, [2, 7])
        assert seqs_of(await claim(life, most=9)) == [3, 5]
        _, queue = the_queue(life)
        queue.leases.check()


@pytest.mark.parametrize("jitter", [0, 50])
async def test_keys_of_records_that_are_only_on_disk_are_read(jitter: int, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=50, max_scan=70), fs=fs) as life:
        await life.put("q", type="queue", max_in_flight_per_key=ONE, durability="fsync", claim_jitter_ms=jitter)
        for _ in range(4):
            await jobs(life, *["a"] * 60)
        await life.append("q", {"data": 1, "tag": "b"}, 2, {"data": 3, "tag": "b", "priority": 8})
        await life.compactor.checkpoint()
        clock = life.clock
    async with living(settings(max_scan=70), fs=fs, clock=clock) as life:
        found = [seqs_of(await claim(life, most=3)) for _ in range(4)]
        assert sorted(seq for seqs in found for seq in seqs) == [1, 242, 243]
        assert found[0][0] == 243
        assert not found[3]


async def test_beyond_so_many_known_jobs_claims_get_only_those(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    monkeypatch.setattr(key_limit, "MOST_KNOWN", 4)
    async with living() as life:
        await life.put("q", type="queue", max_in_flight_per_key=ONE)
        await jobs(life, *["a"] * 4)
        assert seqs_of(await claim(life, most=1)) == [1]
        assert seqs_of(await claim(life, most=9)) == []
        await jobs(life, "b")
        assert seqs_of(await claim(life, most=9)) == []
        await ack(life, [1])
        assert seqs_of(await claim(life, most=9)) == [2, 5]
