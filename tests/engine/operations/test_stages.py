"""Stages: private until they are committed, then all records published at once, in order, and only once
(`docs/spec/pipeline.md` section 1)."""

from __future__ import annotations

import errno
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

import topics.engine.operations.stage_commits
from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from tests.simulation.world import quiet
from topics.engine.topic import Topic
from topics.job_model import ClaimRequest
from topics.log.stages import WINDOW_MS
from topics.model import (
    CheckedAppend,
    CommitResult,
    Performance,
    RecordIn,
    RouterPatch,
    StageResult,
)
from topics.runtime.offload import Pool
from topics.storage.segments.topic_segments import SegmentSet
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ["ephemeral", "memory", "disk", "fsync"]


def request(
    *values: Any, key: str | None = None, tags: Sequence[str | None] | None = None, **more: Any
) -> CheckedAppend:
    """An append of these JSON values."""
    datas = [json.dumps(value).encode() for value in values]
    records = [RecordIn(data=msgspec.Raw(data)) for data in datas]
    return CheckedAppend(
        records=records,
        idempotency_key=key,
        datas=datas,
        nodes=None,
        tags=list(tags) if tags is not None else None,
        metas=None,
        **more,
    )


async def stage(life: Life, name: str, *values: Any, topic: str = "t", **options: Any) -> StageResult:
    return await life.engine.stages.append(topic, name, request(*values, **options), Performance())


async def commit(life: Life, key: str, *stages: str, topic: str = "t") -> CommitResult:
    return await life.engine.stage_commits.commit(topic, stages, key, Performance())


async def datas(life: Life, topic: str = "t") -> list[Any]:
    return [record["data"] for record in (await life.all(topic))[0]]


def stages_of(life: Life, topic: str = "t") -> list[str]:
    return sorted(life.engine.registry.topics[topic].stages or {})


# ----------------------------------------------------------------- what is published


@pytest.mark.parametrize("durability", CLASSES)
async def test_staged_records_are_private_until_they_are_committed_in_the_order_of_the_stages(
    durability: Any, autojump_clock: Any
) -> None:
    async with living(settings(wal_shards=2)) as life:
        await life.put("t", durability=durability)
        await life.append("t", "before")
        assert await stage(life, "a", 1, 2) == StageResult(topic="t", stage="a", count=2, created=False, deduped=False)
        assert (await stage(life, "b", 3, tags=["x"])).count == 1
        assert (await stage(life, "a", 4)).count == 3
        await life.append("t", "between")
        assert await datas(life) == ["before", "between"]
        answer = await commit(life, "k", "b", "a")
        assert answer == CommitResult(topic="t", first_seq=3, last_seq=6, count=4, deduped=False)
        await life.append("t", "after")
        found, gaps = await life.all("t", include_tags=True)
        assert [record["data"] for record in found] == ["before", "between", 3, 1, 2, 4, "after"]
        assert [record["$seq"] for record in found] == list(range(1, 8))
        assert found[2]["$tag"] == "x"
        assert gaps == []
        assert (await life.engine.topic_states.of("t", touch=False)).count == 7
        assert not stages_of(life)


async def test_committed_records_keep_their_contents_and_get_the_time_of_the_commit(autojump_clock: Any) -> None:
    async with living() as life:
        whole = request({"a": 1}, {"b": 2}, tags=["red", None], node="n")
        whole.metas = [b"", b'{"m":"1"}']
        await life.engine.stages.append("t", "a", whole, Performance())
        life.clock.advance(5000)
        now = life.engine.registry.now_ms()
        await commit(life, "k", "a")
        assert (await life.all("t", include_tags=True))[0] == [
            {"$seq": 1, "$ts": now, "$node": "n", "$tag": "red", "data": {"a": 1}},
            {"$seq": 2, "$ts": now, "$node": "n", "data": {"b": 2}, "meta": {"m": "1"}},
        ]
        assert (await life.delete("t", match=["tag", "Glob", "r*"])).deleted == 1
        assert await life.seqs("t") == [2]


async def test_a_stage_makes_its_topic_and_nothing_shows_that_it_is_there(autojump_clock: Any) -> None:
    async with living() as life:
        assert (await stage(life, "a", 1, config=None)).created
        assert not (await stage(life, "b", 1)).created
        figures = await life.engine.metrics.figures()
        assert (figures.topics, sum(figures.by_class.values())) == (1, 1)
        assert [one.topic for one in (await life.engine.topic_states.page("", None, 10))[0]] == ["t"]
        assert (await refusal(life.engine.topic_states.of("t?stage=a", touch=False))).code == "topic_not_found"
        assert figures.records_live == 2  # quotas count what is staged


async def test_a_reader_sees_all_of_a_large_commit_or_nothing(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topics.engine.operations.stage_commits, "FRAME_RECORDS", 7)
    monkeypatch.setattr(topics.engine.operations.stage_commits, "SPAN_RECORDS", 20)
    monkeypatch.setattr(topics.engine.operations.stage_commits, "TAG_SLICE", 5)
    seen: set[int] = set()
    async with living() as life:
        await life.append("t", 0)
        for name in ("a", "b"):
            await stage(life, name, *range(50), tags=[f"{name}{n % 30}" if n % 5 else None for n in range(50)])

        async def watch() -> None:
            while True:
                for _ in range(200):
                    seen.add(len(await life.seqs("t")))
                    await trio.lowlevel.checkpoint()
                await trio.sleep(0.001)  # time goes on only when nobody does anything

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            appends = [Called(nursery, lambda: life.append("t", "x")) for _ in range(3)]
            assert (await commit(life, "k", "a", "b")).count == 100
            await trio.sleep(0.05)
            assert all(one.done for one in appends)
            nursery.cancel_scope.cancel()
        assert seen <= {1, 2, 3, 4, 101, 102, 103, 104}
        assert len(life.frames(FrameType.FORWARDED)) == 16
        assert (await life.delete("t", match=["tag", "Glob", "b*"])).deleted == 40
        life.check()


# ----------------------------------------------------------------- once


async def test_a_repeated_commit_gets_the_first_answer_even_if_the_stages_are_gone(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await stage(life, "a", 1, 2)
        first = await commit(life, "q/1", "a")
        clock.advance(WINDOW_MS)
        again = await commit(life, "q/1", "gone", "a")
        assert again == msgspec.structs.replace(first, deduped=True)
    async with living(fs=fs, clock=clock) as life:
        assert (await commit(life, "q/1", "a")).deduped
        clock.advance(1)
        life.engine.expire_unused()
        assert (await refusal(commit(life, "q/1", "a"))).code == "stage_not_found"
        assert (await stage(life, "a", 9)).count == 1  # the name is free again with its key


async def test_two_commits_under_one_key_at_the_same_time_publish_once(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await stage(life, "a", 1, 2)
        offload.hold()
        calls = [Called(nursery, lambda: commit(life, "k", "a")) for _ in range(3)]
        await settle()
        other = Called(nursery, lambda: commit(life, "other", "a"))
        await settle()
        offload.let_go()
        await settle()
        assert sorted(call.result.deduped for call in calls) == [False, True, True]
        assert {call.result.first_seq for call in calls} == {1}
        assert other.error is not None
        assert other.error.code == "stage_not_found"
        assert await datas(life) == [1, 2]


async def test_a_commit_is_carried_out_although_its_client_hangs_up(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await stage(life, "a", 1)
        offload.hold()
        call = Called(nursery, lambda: commit(life, "k", "a"))
        await settle()
        call.scope.cancel()
        await settle()
        offload.let_go()
        await settle()
        assert await datas(life) == [1]
        assert (await commit(life, "k", "a")).deduped


async def test_a_stage_that_goes_while_it_is_read_for_a_commit_ends_the_commit(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await stage(life, "a", *range(20))
        await life.compactor.checkpoint()
        staged = (life.engine.registry.topics["t"].stages or {})["a"]
        for span in staged.log.stored.all():
            life.engine.indexes.forget_columns(span)
            span.detach()
        offload.hold(Pool.HOT_READ)
        call = Called(nursery, lambda: commit(life, "k", "a"))
        await settle()
        assert await life.engine.topic_lifecycle.delete("t", if_empty=False)
        offload.let_go(Pool.HOT_READ)
        await trio.sleep(5)
        assert call.done
        assert call.error is not None
        assert call.error.code in ("stage_not_found", "topic_not_found")
        assert "?" not in call.error.message, "nobody is told how a stage is called inside"


async def test_a_checkpoint_does_not_pass_a_commit_that_is_on_disk_and_not_published_yet(autojump_clock: Any) -> None:
    fs = SimFs()
    with pytest.MonkeyPatch.context() as patch:
        slow = topics.engine.operations.stage_commits.StageCommits._index

        async def index(self: Any, *args: Any) -> None:
            await trio.sleep(1)
            await slow(self, *args)

        patch.setattr(topics.engine.operations.stage_commits.StageCommits, "_index", index)
        async with living(fs=fs) as life, trio.open_nursery() as nursery:
            await stage(life, "a", 1, 2, 3)
            call = Called(nursery, lambda: commit(life, "k", "a"))
            await trio.sleep(0.5)
            assert not call.done
            for _ in range(2):
                await life.compactor.checkpoint()
            await trio.sleep(5)
            assert call.done
            killed = fs.after_process_kill()
    async with living(fs=killed) as life:
        assert await datas(life) == [1, 2, 3]
        assert (await commit(life, "k", "a")).deduped


async def test_a_repeated_append_is_in_the_stage_once_whatever_the_window_of_the_topic(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", idempotency_window_ms=0)
        await stage(life, "a", 1, 2, key="u/0")
        life.clock.advance(3_000_000)
        assert await stage(life, "a", 1, 2, key="u/0") == StageResult(
            topic="t", stage="a", count=2, created=False, deduped=True
        )
        assert (await stage(life, "b", 1, 2, key="u/0")).count == 2  # keys are those of a stage
        assert (await commit(life, "k", "a", "b")).count == 4


# ----------------------------------------------------------------- refusals


async def test_a_missing_stage_is_named_and_nothing_is_published(autojump_clock: Any) -> None:
    async with living() as life:
        assert (await refusal(commit(life, "k", "a"))).code == "topic_not_found"
        await stage(life, "a", 1)
        error = await refusal(commit(life, "k", "a", "b", "c"))
        assert (error.code, error.detail["stages"]) == ("stage_not_found", ["b", "c"])
        for names in ((), ("a", "a")):
            assert (await refusal(commit(life, "k", *names))).code == "invalid_request"
        assert await datas(life) == []
        assert (await commit(life, "k", "a")).count == 1


async def test_a_stage_of_a_finished_commit_is_closed(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await stage(life, "a", 1)
        await commit(life, "k", "a")
        assert (await refusal(stage(life, "a", 2))).code == "stage_closed"
        assert not await life.engine.stages.delete("t", "a")
        assert (await refusal(commit(life, "k2", "a"))).code == "stage_not_found"
    async with living(fs=fs) as life:
        assert (await refusal(stage(life, "a", 2))).code == "stage_closed"
        assert await datas(life) == [1]


async def test_a_commit_contains_earlier_appends_and_later_ones_are_refused(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await stage(life, "a", 1)
        offload.hold()
        on_its_way = Called(nursery, lambda: stage(life, "a", 2))
        await settle()
        committing = Called(nursery, lambda: commit(life, "k", "a"))
        await settle()
        late = Called(nursery, lambda: stage(life, "a", 3))
        dropping = Called(nursery, lambda: life.engine.stages.delete("t", "a"))
        await settle()
        assert not committing.done
        offload.let_go()
        await settle()
        assert on_its_way.result.count == 2
        assert committing.result.count == 2
        assert late.error is not None
        assert late.error.code == "stage_closed"
        assert dropping.result is False
        assert await datas(life) == [1, 2]


async def test_a_commit_that_fails_leaves_its_stages_open(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=3, discard="reject")
        await life.append("t", 0)
        await stage(life, "a", 1, 2, 3)
        assert (await refusal(commit(life, "k", "a"))).code == "topic_full"
        assert await datas(life) == [0]
        await stage(life, "a", 4)
        assert (await refusal(commit(life, "k", "a"))).code == "record_too_large"
        await life.put("t", cap_records=5)
        assert (await commit(life, "k", "a")).count == 4
        assert await datas(life) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("cap", "kept"), [(6, [0, 1, 2, 3, 4, 5]), (4, [2, 3, 4, 5]), (2, [4, 5])])
async def test_a_commit_makes_room_for_itself_as_an_append_does(cap: int, kept: list[int], autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", cap_records=cap)
        await life.append("t", 0, 1)
        await stage(life, "a", 2, 3)
        await stage(life, "b", 4, 5)
        assert (await commit(life, "k", "a", "b")).count == 4
        assert await datas(life) == kept
    async with living(fs=fs.after_process_kill()) as life:
        assert await datas(life) == kept


async def test_the_number_of_stages_and_the_quota_are_limits(autojump_clock: Any) -> None:
    async with living(settings(max_stages=2, max_total_bytes=100)) as life:
        await stage(life, "a", "x" * 40)
        await stage(life, "b", 1)
        error = await refusal(stage(life, "c", 1))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_stages")
        assert (await refusal(stage(life, "a", "x" * 60))).detail["limit"] == "max_total_bytes"
        await life.engine.stages.delete("t", "b")
        await stage(life, "c", 1)
        assert (await commit(life, "k", "a", "c")).count == 2  # no byte is new
        assert life.engine.registry.total_records == 2


async def test_a_stage_without_records_is_committed_under_its_key(autojump_clock: Any) -> None:
    async with living(settings(max_total_bytes=10)) as life:
        await life.append("t", 1)
        assert (await refusal(stage(life, "a", "x" * 40))).code == "throttled"
        assert await commit(life, "k", "a") == CommitResult(topic="t", first_seq=2, last_seq=1, count=0, deduped=False)
        assert (await commit(life, "k", "a")).deduped
        assert await datas(life) == [1]


async def test_a_commit_fails_with_its_shard_and_succeeds_after_a_restart(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", durability="fsync")
        await stage(life, "a", 1, 2)
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log"))
        assert (await refusal(commit(life, "k", "a"))).code == "read_only"
    async with living(fs=fs.after_process_kill()) as life:
        answer = await commit(life, "k", "a")
        assert answer.count == 2
        assert await datas(life) == [1, 2]


# ----------------------------------------------------------------- going


async def test_stages_that_nobody_uses_expire_after_a_restart_too(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    config = settings(stage_ttl_ms=10_000)
    async with living(config, fs=fs, clock=clock) as life:
        await stage(life, "a", 1)
        await stage(life, "b", 1)
        clock.advance(8000)
        await stage(life, "b", 2)
        life.engine.expire_unused()
        await settle()
        assert stages_of(life) == ["a", "b"]
    async with living(config, fs=fs, clock=clock) as life:
        clock.advance(2001)
        life.engine.expire_unused()
        await trio.sleep(0.1)
        assert stages_of(life) == ["b"]
        assert (await commit(life, "k", "b")).count == 2


async def test_a_deleted_stage_is_gone_and_its_name_is_free(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await stage(life, "a", 1, 2)
        assert await life.engine.stages.delete("t", "a")
        assert not await life.engine.stages.delete("t", "a")
        assert not await life.engine.stages.delete("nowhere", "a")
        assert life.engine.registry.total_records == 0
    async with living(fs=fs.after_process_kill()) as life:
        assert not stages_of(life)
        assert (await stage(life, "a", 3)).count == 1


async def test_stages_and_keys_go_with_their_topic(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await stage(life, "a", 1)
        await commit(life, "k", "a")
        await stage(life, "b", 1)
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        assert not life.engine.registry.stages
        assert (await stage(life, "b", 2)).created
    async with living(fs=fs.after_process_kill()) as life:
        assert (await refusal(commit(life, "k", "a"))).code == "stage_not_found"
        assert (await commit(life, "k", "b")).count == 1
        assert await datas(life) == [2]


# ----------------------------------------------------------------- what it is made of


async def test_the_files_of_a_stage_stay_until_its_topic_needs_them_no_more(autojump_clock: Any) -> None:
    fs = SimFs()
    config = settings(wal_file_bytes=4096, cache_bytes=0)
    async with living(config, fs=fs) as life:
        await stage(life, "a", *range(20))
        await life.compactor.checkpoint()  # into segments of the stage
        await commit(life, "k", "a")
        for _ in range(2):
            await life.engine.reclaimer.pass_over()
        assert await datas(life) == list(range(20))
        await life.compactor.checkpoint()
        await life.engine.reclaimer.pass_over()
        assert {int(path.split("/")[3], 16) for path in fs.tree() if path.startswith("/data/topics/0")} == {1}
        assert await datas(life) == list(range(20))


async def test_the_log_of_a_stage_stays_until_its_topic_needs_it_no_more(autojump_clock: Any) -> None:
    config = settings(wal_shards=4, wal_file_bytes=4096, cache_bytes=0)
    async with living(config) as life:
        await life.put("t")
        target: Topic = life.engine.registry.topics["t"]
        names = [f"s{n}" for n in range(8)]
        for name in names:
            await stage(life, name, *([name] * 40))
        shards = {one.shard for one in (target.stages or {}).values()}
        assert shards - {target.shard}, "one of them is in another shard"
        await commit(life, "k", *names)
        target.segment_set = SegmentSet()
        async with trio.open_nursery() as nursery:
            await nursery.start(hold, target.segment_set)  # what checkpoints skip needs its bytes for longer
            for _ in range(3):
                await life.append("other", *(["x" * 100] * 100))
                await life.compactor.checkpoint()
            assert await datas(life) == [name for name in names for _ in range(40)]
            nursery.cancel_scope.cancel()
        before = sum(len(life.engine.store.files.of_shard(shard)) for shard in range(4))
        for _ in range(2):
            await life.append("other", *(["x" * 100] * 100))
            await life.compactor.checkpoint()
        assert sum(len(life.engine.store.files.of_shard(shard)) for shard in range(4)) < before
        assert await datas(life) == [name for name in names for _ in range(40)]


async def hold(segment_set: SegmentSet, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    async with segment_set.hot_lock:
        task_status.started()
        await trio.sleep_forever()


async def test_nobody_sees_where_a_committed_record_comes_from(autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        for name in ("t", "u"):
            await life.put(name)
        for source, dest in (("t", "u"), ("u", "t")):
            patch = RouterPatch(source=source, dest=dest, start="earliest", allow_cycle=True, guarantee="exactly_once")
            await life.engine.routers.put(f"{source}>{dest}", patch)
        await stage(life, "a", 1, 2)
        await commit(life, "k", "a")
        await life.engine.routers.catch_up(("t", "u"))
        await life.compactor.checkpoint()
        await stage(life, "b", 3)
        await commit(life, "k2", "b")
        await life.compactor.checkpoint()
        await life.engine.routers.catch_up(("t", "u"))
        assert await datas(life, "t") == [1, 2, 3]  # what has come from there does not come back
        assert await datas(life, "u") == [1, 2, 3]
        stamps = [record["meta"]["_topics_router"] for record in (await life.all("u"))[0]]
        epoch = life.engine.registry.topics["t"].id
        assert stamps == [f"{epoch}:{seq}:t>u" for seq in (1, 2, 3)]


async def test_committed_records_are_jobs_of_a_queue(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", type="queue")
        await stage(life, "a", 1, 2)
        await commit(life, "k", "a")
        wanted = ClaimRequest(node="n", most=10, lease_ms=None, wait_ms=0)
        assert [job.seq for job in (await life.engine.queues.claim("t", wanted, Performance())).jobs] == [1, 2]


async def test_a_record_that_was_damaged_is_never_published_without_the_rest(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await stage(life, "a", "first")
        await stage(life, "a", ["second", "x" * 300])
        await trio.sleep(0.2)  # it is on disk, and the log says so
    fs = fs.after_process_kill()
    path = next(path for path, content in fs.tree().items() if content and b'"second"' in content)
    fs.flip_bit(path, (fs.tree()[path] or b"").index(b'"second"') + 1, 0)
    async with living(settings(recovery="salvage"), fs=fs) as life:
        assert (await refusal(commit(life, "k", "a"))).code in ("stage_not_found", "topic_not_found")


async def test_damage_that_a_commit_comes_across_keeps_it_from_publishing_the_rest(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t")
        await stage(life, "a", "first", "second", "third")
        await life.compactor.checkpoint()
    fs = fs.after_process_kill()
    path = next(
        path for path, content in fs.tree().items() if content and path.endswith(".data") and b'"second"' in content
    )
    fs.flip_bit(path, (fs.tree()[path] or b"").index(b'"second"') + 1, 0)
    fs.flip_bit(path.removesuffix(".data") + ".idx", 25, 0)
    async with living(fs=fs) as life:
        assert (await refusal(commit(life, "k", "a"))).code == "stage_not_found"
        assert await datas(life, "t") == []
        # The damaged stage was dropped: a client that uploads all records again can commit it.
        await stage(life, "a", "first", "second", "third")
        assert (await commit(life, "k", "a")).count == 3
        assert await datas(life, "t") == ["first", "second", "third"]


# ----------------------------------------------------------------- everything together


Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["stage", "stage", "append", "commit", "repeat", "drop", "checkpoint", "restart", "kill"]),
        st.integers(0, 3),
        st.integers(1, 4),
    ),
    min_size=4,
    max_size=20,
)


class Model:
    """The expected state."""

    def __init__(self) -> None:
        self.topic: list[Any] = []
        self.open: dict[str, list[Any]] = {}
        self.closed: set[str] = set()
        self.answers: dict[str, tuple[int, int]] = {}
        self.number = 0

    def values(self, n: int) -> list[int]:
        self.number += n
        return list(range(self.number - n, self.number))


async def take_step(life: Life, model: Model, step: Step) -> None:
    kind, which, n = step
    name = f"s{which}"
    if kind == "stage":
        values = model.values(n)
        tags = [f"t{value % 3}" if value % 2 else None for value in values]
        call = stage(life, name, *values, key=f"k{values[0]}", tags=tags if any(tags) else None)
        if name in model.closed:
            assert (await refusal(call)).code == "stage_closed"
            return
        answer = await call
        model.open.setdefault(name, []).extend(values)
        assert answer.count == len(model.open[name])
    elif kind == "append":
        values = model.values(n)
        await life.append("t", *values)
        model.topic += values
    elif kind == "commit":
        names = [f"s{(which + i) % 4}" for i in range(n)]
        key = f"q/{len(model.answers)}"
        if not model.open.keys() >= set(names):
            assert (await refusal(commit(life, key, *names))).code == "stage_not_found"
            return
        result = await commit(life, key, *names)
        values = [value for one in names for value in model.open.pop(one)]
        assert (result.first_seq, result.count) == (len(model.topic) + 1, len(values))
        model.closed.update(names)
        model.answers[key] = result.first_seq, result.count
        model.topic += values
    elif kind == "repeat" and model.answers:
        key = list(model.answers)[which % len(model.answers)]
        result = await commit(life, key, "any")
        assert result.deduped
        assert (result.first_seq, result.count) == model.answers[key]
    elif kind == "drop":
        assert await life.engine.stages.delete("t", name) is (model.open.pop(name, None) is not None)
    elif kind == "checkpoint":
        await life.compactor.checkpoint()
        await life.engine.reclaimer.pass_over()


async def check(life: Life, model: Model) -> None:
    assert await datas(life) == model.topic
    target = life.engine.registry.topics["t"]
    assert {name: one.log.count for name, one in (target.stages or {}).items()} == {
        name: len(values) for name, values in model.open.items()
    }
    life.check()


async def walk(steps: Sequence[Step]) -> None:
    model, fs, clock = Model(), SimFs(), SimClock()
    config = settings(wal_shards=2, wal_file_bytes=4096, segment_max_events=3)
    rest = list(steps)
    while True:
        ending = next((i for i, step in enumerate(rest) if step[0] in ("restart", "kill")), len(rest))
        clean = ending == len(rest) or rest[ending][0] == "restart"
        async with living(config, fs=fs, clock=clock, clean=clean) as life:
            if "t" not in life.engine.registry.topics:
                await life.put("t")
            await check(life, model)
            for step in rest[:ending]:
                await take_step(life, model, step)
            await check(life, model)
        if not clean:
            fs = fs.after_process_kill()
        if ending == len(rest):
            return
        rest = rest[ending + 1 :]


@examples(max_examples=20, deadline=None)
@given(steps=STEPS)
async def test_stages_and_commits_agree_with_a_model_in_any_order(steps: list[Step]) -> None:
    with quiet():
        await walk(steps)


# ----------------------------------------------------------------- clocks that are set


@pytest.mark.parametrize("step_ms", [7_200_000, 5 * 365 * 86_400_000])
async def test_a_step_of_the_wall_clock_drops_no_stage(step_ms: int, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await stage(life, "a", 1, 2)
        clock.step(step_ms)
        life.engine.expire_unused()
        await settle()
        clock.step(-step_ms)
    clock.step(step_ms)
    async with living(fs=fs, clock=clock) as life:
        life.engine.expire_unused()
        await settle()
        assert (await commit(life, "k", "a")).count == 2


async def test_a_stage_goes_when_it_was_not_used_for_its_time_restarts_included(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await stage(life, "a", 1)
        clock.advance(1_800_000)
        await life.compactor.checkpoint()
    clock.advance(1_799_000)
    async with living(fs=fs, clock=clock) as life:
        life.engine.expire_unused()
        await settle()
        assert life.engine.registry.stages
        clock.advance(2_000)
        life.engine.expire_unused()
        await settle()
        assert not life.engine.registry.stages
