"""Caps, ttl and quotas, as the engine applies them to appends on their way."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.log.frame_ranges import locate
from topics.storage.wal.frames import MORE, FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


@pytest.mark.parametrize("durability", CLASSES)
async def test_old_keeps_the_newest(durability: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability=durability, cap_records=5)
        async with trio.open_nursery() as nursery:
            for i in range(13):
                nursery.start_soon(life.append, "t", *([i] * (i % 3 + 1)))
        head = life.engine.registry.topics["t"].log.head_seq
        found, gaps = await life.all("t")
        assert [record["$seq"] for record in found] == list(range(head - 4, head + 1))
        assert gaps == [(1, head - 5, "cap")]


async def test_old_by_bytes(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_bytes=100)
        for i in range(10):
            await life.append("t", {"data": "x" * (8 + i), "meta": {"k": "v"}})
        state = await life.engine.topic_states.of("t", touch=False)
        assert state.bytes <= 100
        sizes = [len(f'"{record["data"]}"') + len('{"k":"v"}') for record in (await life.all("t"))[0]]
        assert state.bytes == sum(sizes)
        assert state.bytes + 8 + 10 + 9 > 100 - 20


async def test_old_and_a_batch_larger_than_the_cap(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=3)
        await life.append("t", 0)
        done = await life.append("t", *range(8))
        assert (done.first_seq, done.last_seq, done.count) == (2, 9, 8)
        assert await life.seqs("t") == [7, 8, 9]
        await life.put("u", cap_bytes=10)
        done = await life.append("u", "x" * 50)
        assert (done.first_seq, done.count) == (1, 1)
        state = await life.engine.topic_states.of("u", touch=False)
        assert (state.count, state.bytes, state.head_seq, state.earliest_seq) == (0, 0, 1, 2)
        assert await life.all("u") == ([], [(1, 1, "cap")])


async def test_reject_counts_what_is_on_its_way(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", cap_records=3, discard="reject", durability="fsync")
        offload.hold()
        calls = [Called(nursery, lambda: life.append("t", 1, 2)) for _ in range(3)]
        await settle()
        errors = [call.error for call in calls if call.error is not None]
        assert [error.code for error in errors] == ["topic_full"] * 2
        assert errors[0].status == 422
        assert errors[0].detail.items() >= {"cap_records": 3, "cap_bytes": 0, "head_seq": 0, "earliest_seq": 1}.items()
        offload.let_go()
        await settle()
        assert (await life.append("t", 3)).last_seq == 3
        assert (await refusal(life.append("t", 4))).code == "topic_full"
        await life.delete("t", before_seq=2)
        assert (await life.append("t", 4)).last_seq == 4
        life.check()


async def test_reject_what_can_never_fit(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=2, cap_bytes=20, discard="reject")
        for datas in ([1, 2, 3], ["x" * 19]):
            error = await refusal(life.append("t", *datas))
            assert (error.status, error.code) == (400, "record_too_large")
        assert (await life.append("t", "x" * 18)).last_seq == 1


async def test_reject_makes_room_when_records_expire(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=2, discard="reject", ttl_ms=1000)
        await life.append("t", 1, 2)
        assert (await refusal(life.append("t", 3))).code == "topic_full"
        await trio.sleep(1.1)
        assert (await life.append("t", 3)).last_seq == 3
        assert await life.all("t") == ([{**(await life.all("t"))[0][0]}], [(1, 2, "ttl")])


async def test_old_evicts_no_more_than_needed_behind_a_deletion_on_its_way(autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", cap_records=4, durability="fsync")
        await life.append("t", *[{"data": i, "tag": f"t{i % 2}"} for i in range(4)])
        offload.hold()
        gone = Called(nursery, lambda: life.delete("t", match="t0"))
        await settle()
        late = [Called(nursery, lambda: life.append("t", 9)) for _ in range(2)]
        await settle()
        offload.let_go()
        await settle()
        assert gone.result.deleted == 2
        assert all(call.done for call in late)
        assert await life.seqs("t") == [2, 4, 5, 6]
        assert (await life.all("t"))[1] == []
        expected = await life.all("t")
        killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await life.all("t") == expected


@pytest.mark.parametrize("durability", CLASSES)
async def test_ttl(durability: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", ttl_ms=1000, durability=durability)
        await life.append("t", 1)
        await trio.sleep(0.6)
        await life.append("t", 2)
        assert await life.seqs("t") == [1, 2]
        await trio.sleep(0.6)
        assert (await life.engine.topic_states.of("t", touch=False)).count == 1
        assert (await life.all("t"))[1] == [(1, 1, "ttl")]
        assert await life.seqs("t") == [2]
        await trio.sleep(0.6)
        assert await life.all("t") == ([], [(1, 2, "ttl")])
        assert (await life.engine.topic_states.page("", None, 5))[0][0].count == 0


async def test_what_has_expired_is_lost_for_ttl_and_not_for_the_cap(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", ttl_ms=1000, cap_records=3)
        await life.append("t", 1, 2, 3)
        await trio.sleep(2)
        await life.append("t", 4)
        assert (await life.all("t"))[1] == [(1, 3, "ttl")]
        await life.append("t", 5, 6, 7)
        assert (await life.all("t"))[1] == [(1, 4, "mixed")]


async def test_an_expiry_that_a_deletion_has_covered_is_still_announced_after_a_crash(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("t", ttl_ms=1000, durability="fsync")
        await life.append("t", 1, 2)
        await trio.sleep(2)
        await life.append("t", 3, 4)
        assert (await life.delete("t", before_seq=4)).deleted == 1
        expected = await life.all("t")
        assert expected[1] == [(1, 3, "ttl")]
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed, clock=clock) as life:
        assert await life.all("t") == expected
        assert life.engine.registry.topics["t"].log.losses.evict_floor == 3


async def test_retention_never_judges_by_a_clock_that_went_back(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("t", ttl_ms=1000, durability="fsync")
        await life.append("t", 1)
        await trio.sleep(2)
        assert await life.seqs("t") == []
        clock.step(-10_000)
        assert await life.seqs("t") == []
    clock.step(-100_000)
    async with living(fs=fs.after_process_kill(), clock=clock) as life:
        assert await life.seqs("t") == []


async def test_the_quota_of_all_topics(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(settings(max_total_bytes=100), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        await life.append("u", "x" * 28)
        offload.hold()
        calls = [Called(nursery, lambda: life.append("t", "x" * 38)) for _ in range(2)]
        await settle()
        assert [call.error.detail for call in calls if call.error is not None] == [
            {"limit": "max_total_bytes", "max": 100}
        ]
        offload.let_go()
        await settle()
        assert (await life.append("t", "x" * 28)).count == 1
        assert (await refusal(life.append("t", 1))).status == 429
        await life.delete("u", before_seq=2)
        assert (await life.append("t", 1)).count == 1
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        assert life.engine.registry.total_bytes == 0


async def test_what_has_expired_does_not_use_up_the_quota(autojump_clock: Any) -> None:
    async with living(settings(max_total_bytes=100)) as life:
        await life.append("t", "x" * 90, config={"ttl_ms": 1000})
        await trio.sleep(2)
        assert (await life.append("u", "x" * 90)).count == 1


async def test_refusals_do_not_look_at_every_topic_each_time(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(settings(max_total_bytes=100)) as life:
        for i in range(20):
            await life.append(f"t{i}", 1234)
        await life.append("short", "x" * 18, config={"ttl_ms": 3000})
        looks: list[str] = []
        registry = life.engine.registry
        expire = registry.expire

        def counted(topic: Any) -> None:
            looks.append(topic.name)
            expire(topic)

        monkeypatch.setattr(registry, "expire", counted)
        for _ in range(10):
            assert (await refusal(life.append("t0", "x" * 18))).status == 429
        assert sorted(set(looks)) == sorted([*(f"t{i}" for i in range(20)), "short"])
        assert len(looks) == 21
        await trio.sleep(3.5)
        assert (await life.append("t0", "x" * 18)).count == 1
        assert {looks.count(f"t{i}") for i in range(1, 20)} == {looks.count("short")} == {2}


async def test_an_append_that_evicts_logs_first_what_has_expired(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", ttl_ms=1000, cap_records=3)
        await life.append("t", 1, 2)
        await trio.sleep(2)
        await life.append("t", 3, 4, 5)
        assert life.frames(FrameType.EVICT_WATERMARK) == []
        await life.append("t", 6)
        await life.append("t", 7)
        marks = life.frames(FrameType.EVICT_WATERMARK)
        assert [(payload["below"], payload["reason"]) for _, payload in marks] == [(3, "ttl"), (4, "cap"), (5, "cap")]
        ends = [bool(frame.flags & MORE) for frame, _ in marks]
        assert ends == [True, False, False], "one batch with the append that evicts"
        before = await life.all("t")
        assert before[1] == [(1, 4, "mixed")]
        killed = fs.after_process_kill()
    async with living(fs=killed, clock=life.clock) as life:
        assert await life.all("t") == before


async def test_an_ephemeral_record_takes_no_place_in_the_log(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", durability="ephemeral")
        await trio.sleep(3)
        await life.append("t", 1)
        assert locate(life.engine.registry.topics["t"].log.index, 1, 1) == []
        assert life.frames(FrameType.APPEND) == []
