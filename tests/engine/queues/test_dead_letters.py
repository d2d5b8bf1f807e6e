"""Seqs with an event on its way, and dead letters."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, living, settings, settle
from tests.engine.queues.queue_calls import Disk, Timed, ack, at_rest, claim, counters, exhaust, extend, nack, seqs_of
from tests.simulation.disk import SimFs
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio


# ----------------------------------------------------------------- seqs with an event on its way


async def test_an_ack_behind_an_extension_is_decided_again(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", leases_durable=True, durability="fsync")
        await life.append("q", 1, 2, 3)
        ids = [job.lease_id for job in (await claim(life, most=3)).jobs]
        with offload.held():
            extension = Called(nursery, lambda: extend(life, [1, 2], 5000))
            await settle()
            acked = Called(nursery, lambda: ack(life, [3, 2, 1, 9], ids=[ids[2], ids[1] + 1, ids[0], 5]))
            await settle()
        await settle()
        assert (extension.result.done, list(extension.result.deadlines)) == ([1, 2], ["1", "2"])
        assert (acked.result.done, sorted(acked.result.skipped)) == ([1, 3], [2, 9])
        assert await counters(life) == (0, 1, 0, 0)


async def test_an_extension_behind_an_ack_is_skipped(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        with offload.held():
            acked = Called(nursery, lambda: ack(life, [1]))
            await settle()
            others = [
                Called(nursery, lambda: extend(life, [1, 2], 5000)),
                Called(nursery, lambda: nack(life, [1])),
                Called(nursery, lambda: ack(life, [1])),
            ]
            await settle()
        await settle()
        assert acked.result.done == [1]
        assert [(call.result.done, call.result.skipped) for call in others] == [([2], [1]), ([], [1]), ([], [1])]
        await at_rest(life)


async def test_an_ack_that_was_in_time_counts_though_the_lease_ends_on_its_way(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2, lease_ms=1000)
        with offload.held():
            acked = Called(nursery, lambda: ack(life, [1]))
            await trio.sleep(5)
            late = Called(nursery, lambda: ack(life, [2]))
            again = Called(nursery, lambda: ack(life, [1]))
            await settle()
        await settle()
        assert acked.result.done == [1]
        assert (late.result.skipped, again.result.skipped) == ([2], [1])
        assert seqs_of(await claim(life, "b", 5)) == [2]


async def test_a_delete_ends_the_lease_of_a_job_whose_ack_is_on_its_way(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        await life.append("q", 1, 2)
        await claim(life, most=2)
        with offload.held():
            gone = Called(nursery, lambda: life.delete("q", before_seq=2))
            acked = Called(nursery, lambda: ack(life, [1, 2]))
            await settle()
        await settle()
        assert gone.result.deleted + len(acked.result.done) == 2
        assert sorted([*acked.result.done, *acked.result.skipped]) == [1, 2]
        await at_rest(life)


# ----------------------------------------------------------------- dead letters


async def test_a_job_is_moved_with_its_history(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=2, dead_letter="dlq")
        await life.append("q", {"data": [1], "tag": "t", "meta": {"a": "b"}, "node": "n"}, 2)
        await exhaust(life, 2)
        assert await counters(life) == (2, 0, 0, 0), "nobody has come across them yet"
        assert seqs_of(await claim(life, most=5)) == []
        await settle()
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 0, 2)
        found, _ = await life.all("dlq", include_tags=True)
        assert [record["data"] for record in found] == [[1], 2]
        assert found[0]["$tag"] == "t"
        assert found[0]["meta"] == {
            "a": "b",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": "2",
            "$dead_letter_src_seq": "1",
        }
        await at_rest(life)


async def test_claims_do_not_wait_for_the_dead_letter_topic(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(wal_shards=2), offload=offload) as life:
        await life.put("dlq")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1, 2)
        await exhaust(life, 2)
        await life.append("q", 3)
        with offload.shard_held(life.engine.registry.topics["dlq"].shard):
            assert seqs_of(await claim(life, most=5)) == [3]
            await trio.sleep(10)
            assert await counters(life) == (0, 1, 2, 0)
            assert seqs_of(await claim(life, "b", 5)) == []
        await trio.sleep(60)
        assert await counters(life) == (1, 0, 0, 2)
        assert [record["data"] for record in (await life.all("dlq"))[0]] == [1, 2], "once each"
        await at_rest(life)


async def test_a_full_dead_letter_topic_keeps_them_until_there_is_room(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=3, discard="reject")
        await life.append("dlq", "there")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(5))
        await exhaust(life, 5)
        await claim(life)
        await trio.sleep(100)
        assert await counters(life) == (0, 0, 3, 2)
        assert len(await life.seqs("dlq")) == 3
        assert seqs_of(await claim(life)) == []
        await life.delete("dlq", before_seq=100)
        await trio.sleep(31)
        assert await counters(life) == (0, 0, 0, 5)
        await at_rest(life)


async def test_one_unfit_job_does_not_keep_the_others(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_bytes=200, discard="reject")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", "x" * 300, "a")
        await exhaust(life, 2)
        await claim(life)
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 1, 1)
        await life.put("dlq", cap_bytes=0)
        await trio.sleep(31)
        assert await counters(life) == (0, 0, 0, 2)
        await at_rest(life)


async def test_a_dead_letter_topic_that_is_deleted_meanwhile_is_made_again(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1)
        await exhaust(life, 1)
        await claim(life)
        await trio.sleep(1)
        assert len(await life.seqs("dlq")) == 1
        await life.append("q", 2)
        await exhaust(life, 1)
        with offload.held():
            gone = Called(nursery, lambda: life.engine.topic_lifecycle.delete("dlq", if_empty=False))
            await settle()
            await claim(life)
            await settle()
        await trio.sleep(60)
        assert gone.done
        assert await counters(life) == (0, 0, 0, 2)
        assert [record["data"] for record in (await life.all("dlq"))[0]] == [2]
        await at_rest(life)


@pytest.mark.parametrize("change", [{"dead_letter": None}, {"max_deliveries": 0}])
async def test_parked_jobs_come_back_when_nothing_is_moved_any_more(
    change: dict[str, Any], autojump_clock: Any
) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        call = Timed(nursery, lambda: claim(life, most=10, wait_ms=30_000))
        await trio.sleep(10)
        assert await counters(life) == (0, 0, 4, 0)
        await life.put("q", **change)
        await trio.sleep(1)
        assert call.seqs == [1, 2, 3, 4]
        assert {job.deliveries for job in call.called.result.jobs} == {2}
        assert call.after_ms == 10_000
        await at_rest(life)


async def test_another_dead_letter_topic_takes_them_at_once(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(100)
        await life.put("q", dead_letter="other")
        await trio.sleep(1)
        assert await counters(life) == (0, 0, 0, 4)
        assert len(await life.seqs("other")) == 4


async def test_parked_jobs_are_moved_after_a_restart_and_counted_once(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(10)
        assert await counters(life) == (0, 0, 4, 0)
    async with living(fs=fs) as life:
        assert await counters(life) == (0, 0, 4, 0)
        await life.put("dlq", cap_records=0)
        await trio.sleep(60)
        assert await counters(life) == (0, 0, 0, 4)
        assert len(await life.seqs("dlq")) == 5
    async with living(fs=fs) as life:
        assert await counters(life) == (0, 0, 0, 4)


async def test_parked_jobs_that_are_deleted_are_forgotten(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dlq", cap_records=1, discard="reject")
        await life.append("dlq", 1)
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(4))
        await exhaust(life, 4)
        await claim(life)
        await trio.sleep(10)
        await life.delete("q", before_seq=100)
        assert await counters(life) == (0, 0, 0, 0)
        await trio.sleep(31)
        await at_rest(life)


async def test_a_job_that_goes_while_the_mover_reads_others_is_not_moved(autojump_clock: Any) -> None:
    offload = Disk()
    async with living(settings(cache_bytes=0), offload=offload) as life:
        await life.put("dlq")
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", 1, 2)
        await exhaust(life, 2)
        await trio.sleep(0.1)
        with offload.held(Pool.HOT_READ):
            offload.passes = 1
            await claim(life)
            await settle()
            await life.delete("q", before_seq=2)
        await trio.sleep(1)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == [2]
        assert await counters(life) == (0, 0, 0, 1)


async def test_a_thousand_dead_letters_and_their_order(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dlq")
        await life.append("q", *range(2500))
        for _ in range(3):
            await claim(life, "x", 1000, lease_ms=100)
        await trio.sleep(0.2)
        await life.append("q", "fresh")
        assert seqs_of(await claim(life, most=5)) == [2501]
        await trio.sleep(60)
        assert await counters(life) == (1, 0, 0, 2500)
        found, _ = await life.all("dlq")
        assert [record["data"] for record in found] == list(range(2500))
        await at_rest(life)
