"""Idempotency keys (`docs/spec/api.md` section 1)."""

from __future__ import annotations

import errno
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.errors import throttled
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio


async def test_a_repeat_is_answered_with_the_first_calls_seqs(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 0)
        first = await life.append("t", 1, 2, idempotency_key="k")
        await life.append("t", 3)
        again = await life.append("t", "something else", idempotency_key="k", create=False)
        assert (again.first_seq, again.last_seq, again.count) == (first.first_seq, first.last_seq, 2)
        assert (again.deduped, again.created, again.head_seq) == (True, False, 4)
        assert [record["data"] for record in (await life.all("t"))[0]] == [0, 1, 2, 3]


async def test_a_repeat_while_the_first_commits_waits_for_it(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        calls = [Called(nursery, lambda: life.append("t", 1, idempotency_key="k")) for _ in range(4)]
        await trio.sleep(3)
        assert not any(call.done for call in calls)
        offload.let_go()
        await settle()
        assert sorted(call.result.deduped for call in calls) == [False, True, True, True]
        assert {call.result.first_seq for call in calls} == {1}
        assert life.engine.keys.count == 1


async def test_a_repeat_of_a_call_that_created_the_topic(autojump_clock: Any) -> None:
    async with living() as life:
        async with trio.open_nursery() as nursery:
            calls = [Called(nursery, lambda: life.append("t", 1, idempotency_key="k")) for _ in range(4)]
        assert sum(call.result.created and not call.result.deduped for call in calls) <= 1
        assert sum(not call.result.deduped for call in calls) == 1
        assert await life.seqs("t") == [1]


async def test_when_the_first_fails_one_of_those_waiting_becomes_the_first(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nothing but a shard fails commits, and a failed shard takes no others, the failure is made up here."""
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        first = Called(nursery, lambda: life.append("t", "first", idempotency_key="k"))
        await settle()
        others = [Called(nursery, lambda: life.append("t", "other", idempotency_key="k")) for _ in range(3)]
        await settle()
        topic = life.engine.registry.topics["t"]
        assert topic.pending is not None
        commit = topic.pending[0]
        writer = life.engine.store.writers[0]
        offload.let_go()
        monkeypatch.setattr(type(commit), "on_synced", lambda self: None)
        commit.on_failed(throttled("a test", 1))
        topic.assigned -= 1
        monkeypatch.undo()
        await settle()
        assert first.error is not None
        assert sorted(call.result.deduped for call in others) == [False, True, True]
        assert {call.result.first_seq for call in others} == {1}
        assert writer.failed is None
        assert life.engine.keys.count == 1


async def test_on_a_failed_shard_every_repeat_fails(autojump_clock: Any) -> None:
    fs, offload = SimFs(), HeldOffload()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        calls = [Called(nursery, lambda: life.append("t", 1, idempotency_key="k")) for _ in range(3)]
        await settle()
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        offload.let_go(Pool.WAL)
        await settle()
        assert {call.error and call.error.code for call in calls} == {"read_only"}
        assert life.engine.keys.count == 0


async def test_the_window_ends(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", idempotency_window_ms=1000)
        await life.append("t", 1, idempotency_key="k")
        await trio.sleep(0.9)
        assert (await life.append("t", 2, idempotency_key="k")).deduped
        await trio.sleep(0.2)
        assert not (await life.append("t", 3, idempotency_key="k")).deduped
        assert (await life.append("t", 4, idempotency_key="k")).first_seq == 2
        assert life.engine.keys.count == 1
        await trio.sleep(3)
        assert life.engine.keys.count == 0
        assert life.engine.registry.topics["t"].keys is None


async def test_keys_survive_a_crash_and_a_clean_stop(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", 1, 2, idempotency_key="k", config={"durability": "fsync"})
        crashed = fs.after_machine_crash("drop", 1)
    for disk in (crashed, fs.after_process_kill()):
        async with living(fs=disk) as life:
            again = await life.append("t", 9, idempotency_key="k")
            assert (again.deduped, again.first_seq, again.count) == (True, 1, 2)
            assert life.engine.keys.count == 1


async def test_a_repeat_is_answered_although_the_topic_is_full(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=1, discard="reject")
        await life.append("t", 1, idempotency_key="k")
        assert (await refusal(life.append("t", 2, idempotency_key="l"))).code == "topic_full"
        assert (await life.append("t", 1, idempotency_key="k")).deduped


async def test_no_more_keys_than_allowed(autojump_clock: Any) -> None:
    async with living(settings(max_idempotency_keys=2)) as life:
        await life.append("t", 1, idempotency_key="a")
        await life.append("u", 1, idempotency_key="b")
        error = await refusal(life.append("t", 2, idempotency_key="c"))
        assert (error.status, error.detail) == (429, {"limit": "max_idempotency_keys", "max": 2})
        assert (await life.append("t", 1, idempotency_key="a")).deduped
        assert (await life.append("t", 2)).first_seq == 2
        await life.engine.topic_lifecycle.delete("u", if_empty=False)
        assert (await life.append("t", 3, idempotency_key="c")).first_seq == 3


async def test_no_limit_on_keys_when_it_is_off(autojump_clock: Any) -> None:
    async with living(settings(max_idempotency_keys=0)) as life:
        assert (await life.append("t", 1, idempotency_key="a")).first_seq == 1


async def test_a_key_too_many_leaves_no_topic_behind(autojump_clock: Any) -> None:
    async with living(settings(max_idempotency_keys=1)) as life:
        await life.append("t", 1, idempotency_key="first")
        error = await refusal(life.append("new", 1, idempotency_key="second"))
        assert (error.status, error.detail["limit"]) == (429, "max_idempotency_keys")
        assert "new" not in life.engine.registry.topics
        assert (await life.append("new", 1)).created


YEARS_MS = 5 * 365 * 86_400_000


@pytest.mark.parametrize("step_ms", [180_000, YEARS_MS, -180_000])
async def test_a_step_of_the_wall_clock_does_not_end_a_window(step_ms: int, autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 1, idempotency_key="k")
        await trio.sleep(2)
        life.clock.step(step_ms)
        assert (await life.append("t", 2, idempotency_key="k")).deduped
        await trio.sleep(121)
        assert not (await life.append("t", 3, idempotency_key="k")).deduped


async def test_a_glitch_of_years_that_is_corrected_at_once_keeps_no_key_for_ever(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        clock.step(YEARS_MS)
        await life.append("t", 1, idempotency_key="k")
        clock.step(-YEARS_MS)
        await life.append("t", 2, idempotency_key="l")
        await trio.sleep(130)
        assert life.engine.keys.count == 0
        await life.append("t", 3, idempotency_key="m")
    async with living(fs=fs.after_process_kill(), clock=clock) as life:
        assert (await life.append("t", 4, idempotency_key="m")).deduped
        await trio.sleep(130)
        assert life.engine.keys.count == 0


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("step_ms", [-YEARS_MS, -1000, 0, 180_000, YEARS_MS])
async def test_between_two_lives_of_one_boot_a_window_goes_on_whatever_the_wall_clock_says(
    step_ms: int, end: str, autojump_clock: Any
) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=end == "stop") as life:
        await life.append("t", 1, idempotency_key="k")
        await trio.sleep(60)
    clock.step(step_ms)
    clock.advance(59_000)
    async with living(fs=fs.after_process_kill(), clock=clock) as life:
        assert (await life.append("t", 2, idempotency_key="k")).deduped
        await trio.sleep(2)
        assert not (await life.append("t", 3, idempotency_key="k")).deduped


@pytest.mark.parametrize("down_ms", [30_000, 200_000])
async def test_after_another_boot_the_wall_clock_says_how_long_it_was_off(down_ms: int, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.append("t", 1, idempotency_key="k", config={"durability": "fsync"})
        stopped_at = life.clock.now_ms()
    clock = SimClock(stopped_at + down_ms)
    async with living(fs=fs.after_machine_crash("drop", 1), clock=clock) as life:
        assert (await life.append("t", 2, idempotency_key="k")).deduped is (down_ms < 120_000)


async def test_without_its_mark_a_window_goes_by_the_wall_clock(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1, idempotency_key="k")
    left = fs.after_process_kill()
    left.unlink("/data/meta/clock")
    clock.advance(119_000)
    async with living(fs=left, clock=clock) as life:
        assert (await life.append("t", 2, idempotency_key="k")).deduped
        await trio.sleep(2)
        assert not (await life.append("t", 3, idempotency_key="k")).deduped
