"""Unique jobs at the level of the engine (`docs/design/unique_jobs.md`): which append is a duplicate of which job, what
commits on their way mean for that, and what a restart leaves."""

from __future__ import annotations

import errno
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.queues.queue_calls import ack, claim, seqs_of
from tests.simulation.disk import Fault, SimFs
from topics.engine.operations import unique_jobs
from topics.job_model import HeldRequest, NackTerms
from topics.model import (
    AppendResult,
    Conditions,
    Fence,
    Performance,
    UniqueIn,
)
from topics.queue.unique_keys import UniqueKeys, digest_of
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

Answer = tuple[int, int, int, Mapping[int, int]]


def job(key: str, scope: str = "unfinished", window_ms: int | None = None, **fields: Any) -> dict[str, Any]:
    return {"data": key, "unique": UniqueIn(key, cast("Any", scope), window_ms), **fields}


def told(answer: AppendResult) -> Answer:
    """First and last seq, what was stored, and the duplicates."""
    return answer.first_seq, answer.last_seq, answer.count, answer.duplicates or {}


async def put(life: Life, *jobs: Any, **options: Any) -> Answer:
    return told(await life.append("q", *jobs, **options))


def keys_of(life: Life) -> int:
    """How many keys count, after checking that the queue's own sum is the same."""
    topic = life.engine.registry.topics["q"]
    assert topic.queue is not None
    topic.queue.leases.check()
    unique = topic.queue.leases.unique
    on_the_way = sum(map(len, topic.queue.keys_on_the_way.values()))
    assert life.engine.unique_jobs.total.count == (len(unique) if unique is not None else 0) + on_the_way
    return life.engine.unique_jobs.total.count


# ----------------------------------------------------------------- scopes


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_a_job_that_is_there_is_not_appended_again(durability: str, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability=durability)
        assert await put(life, job("a"), 2, job("b")) == (1, 3, 3, {})
        assert await put(life, 4, job("b"), job("c"), job("a"), job("c")) == (4, 5, 2, {1: 3, 3: 1, 4: 5})
        assert await put(life, job("a"), job("a")) == (0, 0, 0, {0: 1, 1: 1})
        assert await life.seqs("q") == [1, 2, 3, 4, 5]
        assert keys_of(life) == 3


async def test_an_acked_job_frees_its_key(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a"))
        assert seqs_of(await claim(life)) == [1]
        assert await put(life, job("a")) == (0, 0, 0, {0: 1})
        await ack(life, [1])
        assert keys_of(life) == 0
        assert await put(life, job("a")) == (2, 2, 1, {})


async def test_queued_is_until_the_job_is_claimed_and_again_once_it_waits(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a", delay_ms=1000))
        assert await put(life, job("a", "queued")) == (0, 0, 0, {0: 1})
        await trio.sleep(1.1)
        assert seqs_of(await claim(life, lease_ms=60_000)) == [1]
        assert await put(life, job("a", "queued")) == (2, 2, 1, {})
        assert await put(life, job("a", "queued"), job("a")) == (0, 0, 0, {0: 2, 1: 2})
        assert seqs_of(await claim(life, lease_ms=60_000)) == [2]
        held = HeldRequest(node="a", seqs=[1], lease_ids=None)
        await life.engine.queues.nack("q", held, NackTerms(delay_ms=1000), Performance())
        assert await put(life, job("a", "queued"), job("a")) == (0, 0, 0, {0: 1, 1: 2})
        await ack(life, [2])
        assert await put(life, job("a")) == (0, 0, 0, {0: 1})


async def test_a_lease_that_has_run_out_makes_a_job_queued(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a"))
        await claim(life, lease_ms=1000)
        await trio.sleep(1.1)
        assert await put(life, job("a", "queued")) == (0, 0, 0, {0: 1})


@pytest.mark.parametrize("end", ["ack", "delete", "evict", "dead"])
async def test_a_window_lasts_whatever_becomes_of_the_job(end: str, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", max_deliveries=1, dead_letter="dead")
        await put(life, job("a", "window", 10_000), job("b"))
        if end == "delete":
            await life.delete("q", before_seq=3)
        elif end == "evict":
            await life.put("q", cap_records=1)
            await put(life, 3)
        else:
            await claim(life, most=2)
            if end == "ack":
                await ack(life, [1, 2])
            else:
                held = HeldRequest(node="a", seqs=[1, 2], lease_ids=None)
                await life.engine.queues.nack("q", held, NackTerms(dead=True), Performance())
                await trio.sleep(1)
                assert await life.seqs("dead") == [1, 2]
        head = (await life.read("q")).head_seq
        assert await put(life, job("a", "window", 60_000), job("b", "window", 60_000)) == (
            head + 1,
            head + 1,
            1,
            {0: 1},
        )
        assert await put(life, job("a")) == (head + 2, head + 2, 1, {})
        await life.delete("q", before_seq=head + 9)
        await trio.sleep(11)
        assert keys_of(life) == 1
        assert await put(life, job("a", "window", 60_000)) == (head + 3, head + 3, 1, {})
        await trio.sleep(61)
        assert keys_of(life) == 1


async def test_a_window_counts_from_the_append_by_the_length_that_the_new_record_names(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a", "window", 60_000))
        await trio.sleep(5)
        assert await put(life, job("a", "window", 4000)) == (2, 2, 1, {})
        assert await put(life, job("a", "window", 4000)) == (0, 0, 0, {0: 2})
        assert await put(life, job("a", "window", 5_000_000)) == (0, 0, 0, {0: 2})


async def test_a_deleted_topic_takes_its_keys_with_it(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a", "window", 60_000))
        await life.engine.topic_lifecycle.delete("q", if_empty=False)
        await life.put("q", type="queue")
        assert await put(life, job("a", "window", 60_000)) == (1, 1, 1, {})
        await trio.sleep(1)
        assert keys_of(life) == 1


async def test_a_log_and_a_transaction_have_no_unique_keys(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log")
        for name in ("log", "new"):
            error = await refusal(life.append(name, 1, job("a")))
            assert (error.status, error.detail["field"]) == (400, "records[1].unique")
        assert "new" not in life.engine.registry.topics


# ----------------------------------------------------------------- commits on their way


class Held(NamedTuple):
    """A queue of the class `fsync` whose disk can be held."""

    life: Life
    offload: HeldOffload


@asynccontextmanager
async def held() -> AsyncIterator[Held]:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("q", type="queue", durability="fsync")
        yield Held(life, offload)


async def test_a_job_on_its_way_counts_and_its_duplicate_is_answered_when_it_is_visible(autojump_clock: Any) -> None:
    async with held() as (life, offload), trio.open_nursery() as nursery:
        offload.hold()
        first = Called(nursery, lambda: put(life, job("a")))
        await settle()
        second = Called(nursery, lambda: put(life, job("a"), job("b")))
        await settle()
        third = Called(nursery, lambda: put(life, job("a", "window", 1000), job("b", "queued")))
        await trio.sleep(0.5)
        assert [call.done for call in (first, second, third)] == [False] * 3
        assert keys_of(life) == 2
        offload.let_go()
        await trio.sleep(0.5)
        assert (first.result, second.result, third.result) == (
            (1, 1, 1, {}),
            (2, 2, 1, {0: 1}),
            (0, 0, 0, {0: 1, 1: 2}),
        )
        assert keys_of(life) == 2


async def test_an_ack_on_its_way_has_freed_the_key(autojump_clock: Any) -> None:
    async with held() as (life, offload), trio.open_nursery() as nursery:
        await put(life, job("a"), job("b", "window", 60_000))
        await claim(life, most=2)
        offload.hold()
        Called(nursery, lambda: ack(life, [1, 2]))
        await settle()
        again = Called(nursery, lambda: put(life, job("a"), job("b", "window", 60_000), job("b")))
        await settle()
        offload.let_go()
        await trio.sleep(0.5)
        assert again.result == (3, 4, 2, {1: 2})


async def test_a_nack_on_its_way_is_waited_for(autojump_clock: Any) -> None:
    async with held() as (life, offload), trio.open_nursery() as nursery:
        await life.put("q", leases_durable=True)
        await put(life, job("a"))
        await claim(life)
        offload.hold()
        request = HeldRequest(node="a", seqs=[1], lease_ids=None)
        Called(nursery, lambda: life.engine.queues.nack("q", request, NackTerms(), Performance()))
        await settle()
        again = Called(nursery, lambda: put(life, job("a", "queued")))
        await settle()
        assert not again.done
        offload.let_go()
        await trio.sleep(0.5)
        assert again.result == (0, 0, 0, {0: 1})


async def test_a_duplicate_of_a_job_whose_commit_fails_fails_with_it(autojump_clock: Any) -> None:
    offload, fs = HeldOffload(), SimFs()
    async with living(fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("q", type="queue", durability="fsync")
        offload.hold()
        calls = [Called(nursery, lambda: put(life, job("a"), job("b"))) for _ in range(2)]
        calls.append(Called(nursery, lambda: put(life, job("a"), job("c"), idempotency_key="k")))
        await settle()
        assert life.engine.unique_jobs.total.count in (3, 4)  # which call comes first is open
        fs.inject(Fault(error=errno.EIO, name="fdatasync", path="*.log", times=None))
        offload.let_go()
        await settle()
        assert [call.error is not None and call.error.status for call in calls] == [503, 503, 503]
        assert keys_of(life) == 0


# ----------------------------------------------------------------- idempotency keys, conditions, limits


@pytest.mark.parametrize("durability", ["ephemeral", "fsync"])
@pytest.mark.parametrize("jobs", [("a", "a"), ("a", "b", "a")], ids=["all", "some"])
async def test_a_repeat_gets_the_first_answer(durability: str, jobs: tuple[str, ...], autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability=durability)
        await put(life, job("a"))
        first = await put(life, *map(job, jobs), idempotency_key="k")
        await claim(life)
        await ack(life, [1])
        again = await life.append("q", *map(job, jobs), idempotency_key="k")
        assert again.deduped
        assert told(again) == first
        assert len(first[3]) == 2
        await trio.sleep(125)
        third = await put(life, *map(job, jobs), idempotency_key="k")
        assert third == ((2, 2, 1, {1: 2}) if len(jobs) == 2 else (3, 3, 1, {1: 2, 2: 3}))
        assert keys_of(life) == len(set(jobs)) + len(third[3])
        fourth = await put(life, job("x"), job("y"), idempotency_key="k")
        assert fourth == third
        await trio.sleep(125)
        assert (await put(life, job("x"), job("y"), idempotency_key="k"))[2:] == (2, {})
        assert (await put(life, job("x"), job("y"), idempotency_key="k"))[2:] == (2, {})


async def test_an_append_that_stores_nothing_raises_its_fence_and_logs_nothing_else(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability="fsync")
        await put(life, job("a"))
        before = len(life.frames())
        assert await put(life, job("a")) == (0, 0, 0, {0: 1})
        assert len(life.frames()) == before
        assert await put(life, job("a"), conditions=Conditions(1, {}, Fence("f", 7))) == (0, 0, 0, {0: 1})
        assert [payload for _, payload in life.frames(FrameType.FENCE)] == [{"name": "f", "token": 7}]
        error = await refusal(put(life, job("a"), conditions=Conditions(None, {}, Fence("f", 6))))
        assert error.code == "fenced"


async def test_duplicates_are_left_out_before_the_caps_judge(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", cap_records=2, discard="reject")
        await put(life, job("a"), job("b"))
        assert await put(life, job("a"), job("b"), job("a")) == (0, 0, 0, {0: 1, 1: 2, 2: 1})
        assert (await refusal(put(life, job("a"), job("c")))).code == "topic_full"
        assert keys_of(life) == 2


async def test_there_are_only_so_many_keys(autojump_clock: Any) -> None:
    async with living(settings(max_unique_keys=2)) as life:
        await life.put("q", type="queue")
        await put(life, job("a"), job("b"), 3)
        error = await refusal(put(life, job("a"), job("c")))
        assert (error.status, error.detail) == (429, {"limit": "max_unique_keys", "max": 2})
        assert (await refusal(put(life, job("a"), idempotency_key="k"))).detail["limit"] == "max_unique_keys"
        assert await put(life, job("a"), job("b"), 4) == (4, 4, 1, {0: 1, 1: 2})
        await life.delete("q", before_seq=3)
        assert await put(life, job("c"), job("d")) == (5, 6, 2, {})


async def test_there_are_only_so_many_jobs_with_one_key(monkeypatch: pytest.MonkeyPatch, autojump_clock: Any) -> None:
    monkeypatch.setattr(unique_jobs, "MOST_OF_A_KEY", 2)
    async with living() as life:
        await life.put("q", type="queue")
        for seq in (1, 2):
            await put(life, job("a", "queued"))
            assert seqs_of(await claim(life)) == [seq]
        error = await refusal(put(life, job("a", "queued")))
        assert (error.status, error.detail) == (429, {"limit": "max_jobs_of_a_key", "max": 2})
        await ack(life, [1])
        assert await put(life, job("a", "queued")) == (3, 3, 1, {})


async def test_a_large_batch_has_duplicates_too(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue")
        await put(life, job("a"))
        large = msgspec.Raw(json.dumps("x" * (5 << 20)).encode())
        assert await put(life, job("a"), {**job("b"), "data": large}, job("b")) == (2, 2, 1, {0: 1, 2: 2})


# ----------------------------------------------------------------- restarts


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("checkpoint", [False, True])
async def test_keys_survive_restarts(end: str, checkpoint: bool, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(segment_max_events=2), fs=fs, clean=end == "stop") as life:
        await life.put("q", type="queue", durability="fsync")
        await put(life, job("a"), job("b"), job("w", "window", 60_000), job("x", "window", 1000))
        await claim(life, most=4)
        await ack(life, [1, 3])
        if checkpoint:
            await life.compactor.checkpoint()
        await ack(life, [4])
        await put(life, job("b"), job("c"), idempotency_key="k")
        await put(life, job("b"), idempotency_key="l")
        clock = life.clock
        if end == "kill":
            fs = fs.after_process_kill()
    async with living(fs=fs, clock=clock) as life:
        assert await put(life, idempotency_key="k") == (5, 5, 1, {0: 2})
        assert await put(life, idempotency_key="l") == (0, 0, 0, {0: 2})
        await trio.sleep(2)
        assert keys_of(life) == 5
        window = 50_000
        assert await put(
            life, job("w", "window", window), job("x", "window", window), job("c"), job("b", "window", 1)
        ) == (
            6,
            7,
            2,
            {0: 3, 2: 5},
        )
        assert await put(life, job("a")) == (8, 8, 1, {})
        await trio.sleep(200)
        assert keys_of(life) == 5


async def test_keys_of_lost_records_are_free(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("q", type="queue", durability="memory")
        await put(life, job("a"))
        await life.compactor.checkpoint()
        await put(life, job("b"))
        clock = life.clock
        fs = fs.after_machine_crash("drop", 1)
    async with living(fs=fs, clock=clock) as life:
        live = await life.seqs("q")
        assert (await put(life, job("a"), job("b")))[3] == ({0: 1} if 1 in live else {})
        assert keys_of(life) == 2


async def test_a_checkpoint_while_keys_change_has_those_of_its_moment(autojump_clock: Any) -> None:
    keys = UniqueKeys()
    digests = b"".join(map(digest_of, map(str, range(3000))))
    keys.add(range(1, 3001), digests, [0] * 3000, 5)
    frozen = keys.freeze()
    keys.end(range(1, 2001))
    keys.add([3001], digest_of("x"), [9], 6)
    assert len(keys) == 1001
    loaded = UniqueKeys.load(frozen.dump())
    loaded.check()
    assert (len(loaded), loaded.last_seq) == (3000, 3000)
    assert [entry.seq for entry in loaded.of(digest_of("0"))] == [1]
    assert not list(keys.of(digest_of("0")))
