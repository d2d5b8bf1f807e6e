"""Conditional appends and fences in the engine (`docs/spec/consumers.md` section 1)."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.operations.test_stages import datas, stage
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.engine.operations.judge import Judge
from topics.job_model import ClaimRequest, HeldRequest
from topics.model import (
    AppendResult,
    CommitResult,
    Conditions,
    Fence,
    Performance,
)
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]
STORED = CLASSES[1:]


def at_head(seq: int) -> Conditions:
    return Conditions(head_seq=seq)


def at_tag(**seqs: int) -> Conditions:
    return Conditions(tag_seqs=seqs)


def fenced(name: str, token: int) -> Conditions:
    return Conditions(fence=Fence(name, token))


def tagged(value: Any, tag: str) -> dict[str, Any]:
    return {"data": value, "tag": tag}


async def commit(life: Life, key: str, *stages: str, conditions: Conditions, topic: str = "t") -> CommitResult:
    return await life.engine.stage_commits.commit(topic, stages, key, Performance(), conditions=conditions)


def shown(life: Life, topic: str = "t") -> dict[str, int]:
    """Return the fences in the state of a topic."""
    fences = life.engine.registry.topics[topic].fences
    return dict(fences.published) if fences is not None else {}


async def remove(life: Life, name: str, topic: str = "t") -> bool:
    return await life.engine.fence_removals.remove(topic, name, Performance())


async def failed(life: Life, conditions: Conditions, topic: str = "t") -> dict[str, Any]:
    """Return the `detail` of a refusal; the condition has to fail."""
    error = await refusal(life.append(topic, "no", conditions=conditions))
    assert error.code == "condition_failed"
    return error.detail


# ---------------------------------------------------------------------- the head


@pytest.mark.parametrize("durability", CLASSES)
async def test_an_append_takes_place_only_at_the_head_that_it_expects(durability: Any) -> None:
    async with living() as life:
        await life.put("t", durability=durability)
        assert (await life.append("t", 1, conditions=at_head(0))).last_seq == 1
        assert await failed(life, at_head(0)) == {"head_seq": 1}
        assert await failed(life, at_head(2)) == {"head_seq": 1}
        assert (await life.append("t", 2, 3, conditions=at_head(1))).last_seq == 3
        await life.delete("t", before_seq=4)
        assert await failed(life, at_head(0)) == {"head_seq": 3}
        assert (await life.append("t", 4, conditions=at_head(3))).last_seq == 4
        assert await datas(life) == [4]


async def test_a_failing_condition_makes_no_topic_and_one_that_holds_does() -> None:
    async with living() as life:
        assert await failed(life, at_head(1)) == {"head_seq": 0}
        assert await failed(life, at_tag(a=0, b=7)) == {"tag": "b", "expected": 7, "actual": 0}
        error = await refusal(life.append("t", 1, conditions=fenced("f", 1), config={"durability": "ephemeral"}))
        assert (error.code, error.detail["field"]) == ("invalid_request", "fence")
        error = await refusal(life.append("t", 1, conditions=at_head(5), create=False))
        assert error.code == "topic_not_found"
        assert "t" not in life.engine.registry.topics
        made = await life.append("t", 1, conditions=Conditions(0, {"a": 0}, Fence("f", 3)))
        assert made.created
        assert shown(life) == {"f": 3}


async def test_nothing_is_remembered_under_the_key_of_a_refused_append_and_a_repeat_is_not_judged() -> None:
    async with living() as life:
        await life.append("t", 1)
        error = await refusal(life.append("t", 2, idempotency_key="k", conditions=at_head(0)))
        assert error.code == "condition_failed"
        done = await life.append("t", 2, idempotency_key="k", conditions=Conditions(1, {}, Fence("f", 1)))
        again = await life.append("t", 2, idempotency_key="k", conditions=Conditions(9, {}, Fence("f", 0)))
        assert again.deduped
        assert again.first_seq == done.first_seq == 2
        assert await datas(life) == [1, 2]
        assert shown(life) == {"f": 1}


# ---------------------------------------------------------------------- what is on its way


async def judged_against_a_pending_append(conditions: Conditions, detail: dict[str, Any]) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        first = Called(nursery, lambda: life.append("t", tagged(1, "x")))
        await settle()
        second = Called(nursery, lambda: life.append("t", 2, conditions=conditions))
        await settle()
        assigned, told = life.engine.registry.topics["t"].assigned, first.done or second.done
        offload.let_go()
        await settle()
        assert assigned == 1
        assert not told, "its numbers cannot be read from yet"
        assert first.result.last_seq == 1
        assert second.error is not None
        assert (second.error.code, second.error.detail) == ("condition_failed", detail)
        assert await life.seqs("t") == [1]


async def test_assigned_and_unpublished_records_count_for_conditions() -> None:
    await judged_against_a_pending_append(at_head(0), {"head_seq": 1})
    await judged_against_a_pending_append(at_tag(x=0), {"tag": "x", "expected": 0, "actual": 1})


async def test_a_condition_that_a_pending_append_fulfils_holds_at_once() -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        calls = []
        for value, conditions in (1, None), (2, Conditions(1, {"x": 1})), (3, Conditions(2, {"x": 2, "y": 0})):
            record = tagged(value, "x")
            calls.append(Called(nursery, partial(life.append, "t", record, conditions=conditions)))
            await settle()
        assigned = life.engine.registry.topics["t"].assigned
        offload.let_go()
        await settle()
        assert assigned == 3
        assert [call.result.last_seq for call in calls] == [1, 2, 3]


@pytest.mark.parametrize("conditions", [at_head(0), at_tag(x=0), fenced("f", 1)])
async def test_a_refusal_fails_with_the_commit_that_it_was_judged_against(conditions: Conditions) -> None:
    offload, fs = HeldOffload(), SimFs()
    async with living(offload=offload, fs=fs, clean=False) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        offload.hold()
        first = Called(nursery, lambda: life.append("t", tagged(1, "x"), conditions=fenced("f", 2)))
        await settle()
        second = Called(nursery, lambda: life.append("t", 2, conditions=conditions))
        await settle()
        told = second.done
        offload.let_go()
        await settle()
        assert not told
        assert first.error is not None
        assert second.error is not None
        assert (first.error.code, second.error.code) == ("read_only", "read_only")
        assert shown(life) == {}


# ---------------------------------------------------------------------- tags


@pytest.mark.parametrize("durability", CLASSES)
async def test_the_newest_live_record_with_a_tag_counts(durability: Any) -> None:
    async with living() as life:
        await life.put("t", durability=durability)
        await life.append("t", tagged(1, "x"), tagged(2, "y"), tagged(3, "x"))
        assert await failed(life, at_tag(x=1)) == {"tag": "x", "expected": 1, "actual": 3}
        assert (await life.append("t", tagged(4, "y"), conditions=at_tag(x=3, y=2, z=0))).last_seq == 4
        await life.delete("t", match=["tag", "Eq", "y"])
        assert await failed(life, at_tag(y=4)) == {"tag": "y", "expected": 4, "actual": 0}
        assert (await life.append("t", tagged(5, "y"), conditions=at_tag(x=3, y=0))).last_seq == 5


async def test_records_that_a_pending_append_evicts_do_not_count() -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync", cap_records=2)
        await life.append("t", tagged(1, "x"), tagged(2, "y"))
        offload.hold()
        evicting = Called(nursery, lambda: life.append("t", 3))
        await settle()
        appended = Called(nursery, lambda: life.append("t", 4, conditions=at_tag(x=0, y=2)))
        await settle()
        offload.let_go()
        await settle()
        assert evicting.result.last_seq == 3
        assert appended.result.last_seq == 4


async def test_the_evictions_that_a_conditional_append_causes_itself_do_not_count() -> None:
    async with living() as life:
        await life.put("t", cap_records=1)
        await life.append("t", tagged(1, "x"))
        assert (await life.append("t", tagged(2, "x"), conditions=at_tag(x=1))).last_seq == 2


async def test_expired_records_do_not_count(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", ttl_ms=1000)
        await life.append("t", tagged(1, "x"))
        await trio.sleep(0.9)
        assert await failed(life, at_tag(x=0)) == {"tag": "x", "expected": 0, "actual": 1}
        await trio.sleep(0.2)
        assert (await life.append("t", tagged(2, "x"), conditions=at_tag(x=0))).last_seq == 2


async def test_records_that_a_pending_deletion_removes_do_not_count() -> None:
    offload = HeldOffload()
    for deletion in ({"before_seq": 2}, {"match": ["tag", "Eq", "x"]}, {"before_seq": 3, "match": ["tag", "Eq", "x"]}):
        async with living(offload=offload) as life, trio.open_nursery() as nursery:
            await life.put("t", durability="fsync")
            await life.append("t", tagged(1, "x"), tagged(2, "y"))
            offload.hold()
            deleting = Called(nursery, lambda: life.delete("t", **deletion))  # noqa: B023
            await settle()
            appended = Called(nursery, lambda: life.append("t", 3, conditions=at_tag(x=0, y=2)))
            await settle()
            assigned = life.engine.registry.topics["t"].assigned
            offload.let_go()
            await settle()
            assert assigned == 3, "nothing is waited for"
            assert deleting.result.deleted == 1
            assert appended.result.last_seq == 3


async def test_acked_jobs_do_not_count() -> None:
    async with living() as life:
        await life.put("t", type="queue")
        await life.append("t", tagged(1, "x"), tagged(2, "x"))
        claimed = await life.engine.queues.claim("t", _claim(), Performance())
        await life.engine.queues.ack("t", _held([claimed.jobs[1].seq]), Performance())
        assert await failed(life, at_tag(x=2)) == {"tag": "x", "expected": 2, "actual": 1}


def _claim() -> ClaimRequest:
    return ClaimRequest(node="n", most=2, lease_ms=None, wait_ms=0)


def _held(seqs: Sequence[int]) -> HeldRequest:
    return HeldRequest(node="n", seqs=list(seqs), lease_ids=None)


async def test_tags_that_only_segment_files_know_are_looked_up_there() -> None:
    fs, clock = SimFs(), SimClock()
    config = settings(segment_max_events=4)
    async with living(config, fs=fs, clock=clock) as life:
        for i in range(1, 41):
            await life.append("t", tagged(i, f"tag{i % 7}"))
        await life.compactor.checkpoint()
        await life.delete("t", match=["tag", "Eq", "tag3"])
    async with living(config, fs=fs, clock=clock) as life:
        topic = life.engine.registry.topics["t"]
        topic.log.drop_tags_below(topic.log.stored.last_seq + 1)
        assert topic.log.tags.spans_in_files(topic.log.head_seq), "the files know more than memory"
        newest = {f"tag{i % 7}": i for i in range(1, 41)}
        newest["tag3"] = 0
        newest["other"] = 0
        assert await failed(life, Conditions(tag_seqs={"tag3": 38})) == {"tag": "tag3", "expected": 38, "actual": 0}
        for tag, seq in newest.items():
            assert (await failed(life, Conditions(tag_seqs={tag: seq + 100})))["actual"] == seq
        assert (await life.append("t", 41, conditions=Conditions(40, newest))).last_seq == 41
        await life.append("t", tagged(42, "tag1"))
        assert (await life.append("t", 43, conditions=Conditions(42, {**newest, "tag1": 42}))).last_seq == 43


# ---------------------------------------------------------------------- fences


@pytest.mark.parametrize("durability", STORED)
async def test_a_fence_keeps_lower_tokens_out_and_survives_restarts(durability: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1, conditions=fenced("lead", 0))
        await life.append("t", 2, conditions=fenced("lead", 7))
        await life.append("t", 3, conditions=fenced("lead", 7))
        await life.append("t", 4, conditions=fenced("other", 2**64 - 1))
        error = await refusal(life.append("t", 5, conditions=fenced("lead", 6)))
        assert (error.code, error.status, error.detail) == ("fenced", 409, {"name": "lead", "token": 7})
        await life.append("t", 5)
        assert len(life.frames(FrameType.FENCE)) == 3, "only a token that raises is logged"
    for _ in range(2):  # from the log, and from the snapshot
        async with living(fs=fs, clock=clock) as life:
            assert shown(life) == {"lead": 7, "other": 2**64 - 1}
            error = await refusal(life.append("t", 6, conditions=fenced("lead", 6)))
            assert error.code == "fenced"
            assert await datas(life) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("clean", [True, False])
async def test_a_removed_fence_stays_removed(clean: bool) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=clean) as life:
        await life.put("t", durability="fsync")
        await life.append("t", 1, conditions=fenced("f", 9))
        await life.append("t", 2, conditions=fenced("g", 1))
        assert await remove(life, "f")
        assert not await remove(life, "f")
        assert not await remove(life, "never")
        assert shown(life) == {"g": 1}
    async with living(fs=fs, clock=clock) as life:
        assert shown(life) == {"g": 1}
        await life.append("t", 3, conditions=fenced("f", 1))
        assert shown(life) == {"f": 1, "g": 1}
        assert (await refusal(remove(life, "f", "other"))).code == "topic_not_found"


async def test_a_refused_append_raises_no_fence() -> None:
    async with living() as life:
        await life.put("t", cap_records=1, discard="reject")
        await life.append("t", 1, conditions=fenced("f", 1))
        for conditions in (Conditions(7, {}, Fence("f", 5)), fenced("f", 6), Conditions(1, {"x": 1}, Fence("f", 7))):
            error = await refusal(life.append("t", 2, conditions=conditions))
            assert error.code in ("condition_failed", "topic_full")
        assert shown(life) == {"f": 1}
        fences = life.engine.registry.topics["t"].fences
        assert fences is not None
        assert fences.decided == {"f": 1}
        await life.delete("t", before_seq=2)
        await life.append("t", 2, conditions=fenced("f", 2))


async def test_a_topic_has_at_most_a_hundred_fences() -> None:
    async with living() as life:
        for i in range(100):
            await life.append("t", i, conditions=fenced(f"f{i}", 1))
        error = await refusal(life.append("t", "no", conditions=fenced("one more", 1)))
        assert (error.code, error.detail) == ("throttled", {"limit": "max_fences", "max": 100})
        assert life.engine.registry.throttled["max_fences"] == 1
        await life.append("t", 100, conditions=fenced("f7", 2))
        await remove(life, "f0")
        await life.append("t", 101, conditions=fenced("one more", 1))
        assert len(shown(life)) == 100


async def test_fences_and_classes() -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1, conditions=fenced("f", 5))
        await life.put("t", durability="ephemeral")
        error = await refusal(life.append("t", 2, conditions=fenced("f", 9)))
        assert (error.code, error.detail["field"]) == ("invalid_request", "fence")
        assert shown(life) == {"f": 5}
    async with living(fs=fs, clock=clock) as life:
        assert shown(life) == {"f": 5}
        await life.put("t", durability="disk")
        assert (await refusal(life.append("t", 2, conditions=fenced("f", 4)))).code == "fenced"
    async with living(fs=fs, clock=clock) as life:
        assert (await refusal(life.append("t", 2, conditions=fenced("f", 4)))).code == "fenced"


async def test_fences_end_with_their_topic() -> None:
    async with living() as life:
        await life.append("t", 1, conditions=fenced("f", 5))
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.append("t", 1, conditions=Conditions(0, {}, Fence("f", 1)))
        assert shown(life) == {"f": 1}


async def test_a_removal_waits_for_its_sync_and_keeps_its_place_between_raises() -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", 1, conditions=fenced("f", 9))
        offload.hold()
        removing = Called(nursery, lambda: remove(life, "f"))
        await settle()
        raising = Called(nursery, lambda: life.append("t", 2, conditions=fenced("f", 3)))
        await settle()
        again = Called(nursery, lambda: remove(life, "f"))
        await settle()
        told, before = removing.done, shown(life)
        offload.let_go()
        await settle()
        assert (told, before) == (False, {"f": 9})
        assert removing.result is True
        assert isinstance(raising.result, AppendResult)
        assert again.result is True
        assert shown(life) == {}


@pytest.mark.parametrize("durability", STORED)
async def test_a_removal_survives_a_crash_of_the_machine_whatever_the_class(durability: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1, conditions=fenced("f", 9))
    async with living(fs=fs, clock=clock) as life:
        assert shown(life) == {"f": 9}
        await remove(life, "f")
        crashed = fs.after_machine_crash("drop", 1)
    async with living(fs=crashed, clock=clock) as life:
        assert shown(life) == {}


async def test_a_part_has_no_fence_of_unpublished_records() -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        offload.hold()
        raising = Called(nursery, lambda: life.append("t", 1, conditions=fenced("f", 1)))
        await settle()
        topic = life.engine.registry.topics["t"]
        before = topic.dump_part().fences
        offload.let_go()
        await settle()
        assert raising.done
        assert (before, topic.dump_part().fences) == ({}, {"f": 1})


# ---------------------------------------------------------------------- commits of stages


async def test_commits_of_stages_are_judged_as_appends_are() -> None:
    async with living() as life:
        await life.append("t", tagged(1, "x"))
        await stage(life, "s", "a", "b", tags=["x", "y"])
        refused: list[tuple[Conditions, str]] = [
            (at_head(0), "condition_failed"),
            (at_tag(x=0), "condition_failed"),
            (Conditions(0, {}, Fence("f", 9)), "condition_failed"),
        ]
        for conditions, code in refused:
            assert (await refusal(commit(life, "k", "s", conditions=conditions))).code == code
        assert shown(life) == {}
        done = await commit(life, "k", "s", conditions=Conditions(1, {"x": 1, "y": 0}, Fence("f", 4)))
        assert (done.first_seq, done.count) == (2, 2)
        assert shown(life) == {"f": 4}
        assert (await commit(life, "k", "s", conditions=Conditions(0, {}, Fence("f", 0)))).deduped
        assert await datas(life) == [1, "a", "b"]
        assert (await life.append("t", 2, conditions=Conditions(3, {"x": 2, "y": 3}))).last_seq == 4
        await stage(life, "s2", "c")
        error = await refusal(commit(life, "k2", "s2", conditions=fenced("f", 3)))
        assert (error.code, error.status, error.detail) == ("fenced", 409, {"name": "f", "token": 4})
        assert (await commit(life, "k2", "s2", conditions=fenced("f", 4))).count == 1


async def test_tags_of_a_pending_commit_of_stages_count() -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", tagged(1, "x"))
        await stage(life, "s", "a", tags=["x"])
        call = Called(nursery, lambda: commit(life, "k", "s", conditions=at_tag(x=1)))
        while life.engine.registry.topics["t"].assigned < 2:
            await trio.lowlevel.checkpoint()
        offload.hold()
        judged = Called(nursery, lambda: life.append("t", 2, conditions=at_tag(x=2)))
        await settle()
        offload.let_go()
        await settle()
        assert call.result.last_seq == 2
        assert judged.result.last_seq == 3


async def test_a_tag_whose_newest_record_is_being_deleted_is_looked_up_further_down(monkeypatch: Any) -> None:
    """Only segment files know both records. A daemon that looked up the newer one again and again would never let the
    deletion end."""
    judged = 0
    judge = Judge.judge

    def counted(*given: Any) -> Any:
        nonlocal judged
        judged += 1
        assert judged < 100, "it goes round without an end"
        return judge(*given)

    monkeypatch.setattr(Judge, "judge", counted)
    offload = HeldOffload()
    config = settings(segment_max_events=2)
    async with living(config, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        for number in range(8):
            await life.append("t", tagged(number, "x" if number in (1, 5) else "y"))
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        topic.log.drop_tags_below(topic.log.stored.last_seq + 1)
        assert not topic.log.tags.newest("x", 1)
        offload.hold()
        deletion = Called(nursery, lambda: life.delete("t", match=["tag", "Eq", "x"], after_seq=3))
        await settle()
        assert not deletion.done
        append = Called(nursery, lambda: life.append("t", "new", conditions=at_tag(x=2)))
        other = Called(nursery, lambda: life.append("t", "no", conditions=at_tag(x=6, y=8)))
        try:
            await settle()
        finally:
            offload.let_go()
        await settle()
        assert deletion.result.deleted == 1
        assert append.result.first_seq == 9
        assert other.error is not None
        assert other.error.detail == {"tag": "x", "expected": 6, "actual": 2}
