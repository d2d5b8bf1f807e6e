"""Groups over lives of the engine: what is durable when, what a start brings back, what a filter lets through."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trio

from tests.engine.life import HeldOffload, Life, living, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.filters.record_filter import parse_filter
from topics.job_model import (
    ClaimRequest,
    ClaimResult,
    HeldRequest,
    NackTerms,
)
from topics.model import (
    ConsumerPatch,
    ConsumerStart,
    GroupPatch,
    GroupState,
    Performance,
    RetryPolicy,
    TopicConfigPatch,
)
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

CLASSES = ("memory", "disk", "fsync")
ODD = parse_filter('["tag","Eq","odd"]')


async def put(life: Life, group: str = "g", place: Any = "earliest", value: int = 0, **fields: Any) -> bool:
    own = {name: fields.pop(name) for name in ("filter", "max_unfinished") if name in fields}
    patch = GroupPatch(start=ConsumerStart(place=place, value=value), terms=TopicConfigPatch(**fields), **own)
    _, created = await life.engine.groups.put("t", group, patch, Performance())
    return created


async def take(life: Life, most: int = 100, group: str = "g", wait_ms: int = 0, node: str = "n") -> ClaimResult:
    request = ClaimRequest(node=node, most=most, lease_ms=None, wait_ms=wait_ms)
    return await life.engine.queues.claim("t", request, Performance(), group)


async def claim(life: Life, most: int = 100, group: str = "g", wait_ms: int = 0, node: str = "n") -> list[int]:
    return [job.seq for job in (await take(life, most, group, wait_ms, node)).jobs]


async def ack(life: Life, *seqs: int, group: str = "g", node: str = "n") -> list[int]:
    request = HeldRequest(node=node, seqs=list(seqs), lease_ids=None)
    return (await life.engine.queues.ack("t", request, Performance(), group)).done


async def state(life: Life, group: str = "g") -> GroupState:
    return await life.engine.groups.state("t", group)


def tagged(first: int, last: int) -> list[dict[str, Any]]:
    return [{"data": seq, "tag": "odd" if seq % 2 else "even"} for seq in range(first, last + 1)]


@pytest.mark.parametrize("durability", CLASSES)
async def test_what_is_finished_and_held_survives_a_kill_and_a_checkpoint(durability: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", durability=durability)
        await life.append("t", *range(6))
        assert await put(life, lease_ms=60_000)
        assert not await put(life)
        assert await claim(life, 5) == [1, 2, 3, 4, 5]
        assert await ack(life, 1, 3) == [1, 3]
        await put(life, "other")  # synced behind the ack
        seen = await state(life)
        assert (seen.floor, seen.lag, seen.queue.ready, seen.queue.in_flight) == (1, 5, 1, 3)
    for _ in range(2):
        async with living(fs=fs, clean=False) as life:
            again = await state(life)
            assert (again.floor, again.queue, again.lease_ms) == (seen.floor, seen.queue, 60_000)
            assert await ack(life, 3) == []
            await life.compactor.try_checkpoint()
    async with living(fs=fs) as life:
        assert await claim(life) == [6]
        assert await ack(life, 2, 4, 5, 6) == [2, 4, 5, 6]
        seen = await state(life)
        assert (seen.floor, seen.lag) == (life.engine.registry.topic("t").log.head_seq, 0)
        assert await life.seqs("t") == [1, 2, 3, 4, 5, 6], "an ack deletes nothing"
        assert await claim(life, group="other") == [1, 2, 3, 4, 5, 6]


async def test_after_a_start_the_groups_of_an_ephemeral_topic_begin_behind_what_is_gone(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", durability="ephemeral")
        await life.append("t", 1, 2, 3)
        await put(life)
        assert await claim(life, 2) == [1, 2]
        assert await ack(life, 1) == [1]
        assert (await state(life)).floor == 1
    async with living(fs=fs) as life:
        await life.append("t", 4)
        found = await take(life)
        assert [json.loads(b"{" + job.record)["data"] for job in found.jobs] == [4]
        assert found.missed == 0


async def test_what_a_group_has_finished_is_kept_when_its_topic_stops_being_ephemeral(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", durability="ephemeral")
        await life.append("t", 1, 2, 3)
        await put(life, lease_ms=60_000)
        assert await claim(life, 2) == [1, 2]
        await ack(life, 1)
        await life.put("t", durability="fsync")
        await life.append("t", 4)
    async with living(fs=fs) as life:
        seen = await state(life)
        assert (seen.floor, seen.queue.in_flight, seen.missed) == (1, 1, 0)
        assert await claim(life) == [3, 4]


@pytest.mark.parametrize(("durability", "syncs"), [("memory", 0), ("disk", 0), ("fsync", 1)])
async def test_an_ack_is_as_durable_as_the_class(durability: str, syncs: int, autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload, housekeeping=False) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1, 2, 3)
        await settle()
        before = life.syncs()
        await put(life)
        assert life.syncs() == before + 1
        assert await claim(life, 2) == [1, 2]
        await settle()
        before = life.syncs()
        await ack(life, 1, 2)
        assert life.syncs() == before + syncs


@pytest.mark.parametrize("durable", [False, True])
async def test_leases_are_synced_if_they_are_to_be(durable: bool, autojump_clock: Any) -> None:
    async with living(housekeeping=False) as life:
        await life.put("t")
        await life.append("t", 1)
        await put(life, leases_durable=durable)
        before = life.syncs()
        assert await claim(life) == [1]
        assert (life.syncs() > before) is durable


async def test_a_filter_is_asked_about_a_bounded_number_of_records(autojump_clock: Any) -> None:
    async with living(settings(max_scan=10)) as life:
        await life.append("t", *tagged(1, 30), {"data": 31, "tag": "rare"}, *tagged(32, 33))
        await put(life, filter=parse_filter('["node","Eq","nobody"]'))
        await put(life, "rare", filter=parse_filter('["tag","Eq","rare"]'))
        assert await claim(life, group="rare") == [31], "the tag index leads there"
        for scanned in (10, 10, 10, 3):
            perf = Performance()
            request = ClaimRequest(node="n", most=1, lease_ms=None, wait_ms=200)
            assert not (await life.engine.queues.claim("t", request, perf, "g")).jobs
            assert perf.records_scanned == scanned
        seen = await state(life)
        assert (seen.floor, seen.lag, seen.queue.ready) == (33, 0, 0)


async def test_waiting_claims_get_what_matches_when_it_comes(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *tagged(1, 2))
        await put(life, filter=ODD)
        assert await claim(life) == [1]
        async with trio.open_nursery() as nursery:
            found: list[int] = []

            async def wait() -> None:
                found.extend(await claim(life, wait_ms=30_000))

            nursery.start_soon(wait)
            await settle()
            await life.append("t", {"data": 3, "tag": "even"})
            await settle()
            assert not found
            await life.append("t", {"data": 4, "tag": "odd"})
        assert found == [4]


@pytest.mark.parametrize("jitter", [0, 50])
async def test_a_stream_gets_records_and_gives_them_back(jitter: int, autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *tagged(1, 4))
        await put(life, claim_jitter_ms=jitter, filter=ODD)
        work = await life.engine.queues.open_work("t", "w", 1, None, "g")
        assert [job.seq for job in await life.engine.queues.next_jobs(work)] == [1]
        assert await ack(life, 1, node="w") == [1]
        assert [job.seq for job in await life.engine.queues.next_jobs(work)] == [3]
        life.engine.queues.close_work(work)
        await settle()
        assert await claim(life) == [3]


async def test_records_that_were_evicted_are_missed_and_deleted_ones_are_not(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", cap_records=5)
        await life.append("t", *range(5))
        await put(life)
        assert await claim(life, 2) == [1, 2]
        await ack(life, 1)
        await life.delete("t", before_seq=4)
        assert ((await state(life)).missed, (await state(life)).floor) == (0, 3)
        assert await ack(life, 2) == []
        await life.append("t", *range(5))  # evicts 4 and 5
        assert ((await state(life)).missed, (await state(life)).floor) == (2, 5)
        await life.engine.compactor.try_checkpoint()
        await life.append("t", 0)
        assert (await take(life)).missed == 3
    async with living(fs=fs) as life:
        assert (await state(life)).missed == 3


async def test_what_a_full_log_evicts_is_told_to_streams_at_once_and_to_other_groups_when_they_are_used(
    autojump_clock: Any,
) -> None:
    async with living() as life:
        await life.put("t", cap_records=5)
        await put(life)
        await put(life, "idle")
        groups = life.engine.registry.topics["t"].groups
        assert groups is not None
        await life.append("t", *range(5))
        work = await life.engine.queues.open_work("t", "w", 1, None, "g")
        assert [job.seq for job in await life.engine.queues.next_jobs(work)] == [1]
        await life.append("t", 0)
        assert work.holder.changed.is_set()
        assert work.holder.leases == {}
        assert groups.by_name["idle"].state.finished.floor == 0
        assert groups.lowest_floor(life.engine.registry.topics["t"].log) == 1
        await life.append("t", 0)
        assert ((await state(life, "idle")).missed, (await state(life, "idle")).floor) == (2, 2)
        await life.append("t", 0)
        assert await claim(life, 9, "idle") == [4, 5, 6, 7, 8]
        for _ in range(100):
            await life.append("t", *range(4))
        assert groups.by_name["idle"].state.finished.floor > 200
        life.engine.queues.close_work(work)


async def test_a_deletion_ends_what_is_held_and_costs_other_groups_nothing(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *({"data": i, "tag": "gone" if i in (2, 4) else "stays"} for i in range(1, 6)))
        await put(life)
        await put(life, "idle")
        groups = life.engine.registry.topics["t"].groups
        assert groups is not None
        version = groups.by_name["idle"].state.version
        assert await claim(life, 3) == [1, 2, 3]
        await life.delete("t", match="gone")
        assert groups.by_name["idle"].state.version == version
        assert (await state(life)).queue.in_flight == 2
        assert await ack(life, 1, 2, 3) == [1, 3]
        assert await claim(life, 9) == [5]
        assert await claim(life, 9, "idle") == [1, 3, 5]


async def test_a_record_that_always_fails_goes_to_the_dead_letters_and_stays(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", {"data": 1, "tag": "a"}, 2)
        await put(life, max_deliveries=1, dead_letter="dead", lease_ms=100)
        assert await claim(life, 1) == [1]
        await trio.sleep(1)
        assert await claim(life) == [2]
        await ack(life, 2)
        await trio.sleep(1)
        (letter,), _ = await life.all("dead", include_meta=True)
        assert letter["meta"] == {
            "$dead_letter_from": "t",
            "$dead_letter_group": "g",
            "$dead_letter_deliveries": "1",
            "$dead_letter_src_seq": "1",
        }
        seen = await state(life)
        assert (seen.floor, seen.queue.dead_lettered) == (2, 1)
        assert await life.seqs("t") == [1, 2]


async def test_a_group_that_is_deleted_leaves_nothing_to_one_of_the_same_name(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.append("t", 1, 2, 3)
        await put(life)
        assert await claim(life, 2) == [1, 2]
        await ack(life, 1)
        async with trio.open_nursery() as nursery:

            async def wait() -> None:
                await ack(life, 2)
                found.append(await refusal(claim(life, 1, wait_ms=30_000)))

            found: list[Any] = []
            await claim(life, 1)
            nursery.start_soon(wait)
            await settle()
            assert await life.engine.groups.delete("t", "g", Performance())
        assert found[0].code == "group_not_found"
        assert not await life.engine.groups.delete("t", "g", Performance())
        assert (await refusal(claim(life))).code == "group_not_found"
        assert await put(life)
    async with living(fs=fs) as life:
        assert await claim(life) == [1, 2, 3]


async def test_groups_are_bounded_and_of_logs_only(autojump_clock: Any) -> None:
    async with living(settings(max_groups=1)) as life:
        assert (await refusal(put(life))).code == "topic_not_found"
        await life.append("t", 1)
        assert (await refusal(put(life, place="seq", value=2))).detail["field"] == "from.seq"
        await life.put("gone", durability="ephemeral")
        assert (await refusal(put(life, dead_letter="gone"))).detail["field"] == "dead_letter"
        assert (await refusal(put(life, dead_letter="t"))).detail["field"] == "dead_letter"
        assert await put(life)
        assert (await refusal(put(life, "more"))).detail["limit"] == "max_groups"
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.put("t", type="queue")
        assert (await refusal(put(life))).code == "not_a_log"
        assert (await refusal(claim(life))).code == "not_a_log"
        assert (await refusal(state(life))).code == "not_a_log"
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.append("t", 1)
        assert (await refusal(state(life))).code == "group_not_found"


async def test_a_group_is_paused_limited_and_backs_off_as_a_queue_does(autojump_clock: Any) -> None:
    fs = SimFs()
    retry = RetryPolicy(backoff="fixed", delay_ms=2000)
    async with living(fs=fs, clean=False) as life:
        await life.append("t", *range(5))
        await put(life, max_in_flight=2, retry=retry, dead_letter="dead", lease_ms=60_000)
        assert await claim(life) == [1, 2]
        assert await claim(life) == []
        request = HeldRequest(node="n", seqs=[1], lease_ids=None)
        terms = NackTerms(None, "no luck", counts=False)
        await life.engine.queues.nack("t", request, terms, Performance(), "g")
        await life.engine.queues.nack("t", request, terms, Performance(), "g")
        assert await claim(life) == [1]
        request = HeldRequest(node="n", seqs=[1], lease_ids=None)
        await life.engine.queues.nack("t", request, NackTerms(), Performance(), "g")
        assert (await state(life)).queue.delayed == 1
        assert await claim(life) == [3]
        await life.engine.queues.pause("t", None, Performance(), "g")
    async with living(fs=fs) as life:
        seen = await state(life)
        assert (seen.queue.paused, seen.retry, seen.max_in_flight) == (True, retry, 2)
        assert (await take(life)).paused
        assert await claim(life) == []
        await life.engine.queues.resume("t", Performance(), "g")
        await ack(life, 2, 3)
        await trio.sleep(3)
        assert await claim(life, 1) == [1]
        request = HeldRequest(node="n", seqs=[1], lease_ids=None)
        await life.engine.queues.nack("t", request, NackTerms(error="never", dead=True), Performance(), "g")
        await trio.sleep(1)
        (letter,), _ = await life.all("dead", include_meta=True)
        assert (letter["meta"]["$dead_letter_group"], letter["meta"]["$dead_letter_error"]) == ("g", "never")
        assert (await state(life)).floor == 3


async def test_what_every_group_and_consumer_has_finished_is_deleted(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", retention="consumed")
        await life.append("t", *range(6))
        await put(life)
        await put(life, "other")
        patch = ConsumerPatch(start=ConsumerStart(place="seq", value=5))
        await life.engine.consumers.put("t", "c", patch, Performance())
        for group, last in (("g", 3), ("other", 4)):
            await ack(life, *await claim(life, last, group), group=group)
        life.engine.expire_unused()
        await trio.sleep(0.1)
        assert await life.seqs("t") == [4, 5, 6]
        await life.engine.groups.delete("t", "g", Performance())
        life.engine.expire_unused()
        await trio.sleep(0.1)
        assert await life.seqs("t") == [5, 6]


async def test_a_group_that_stands_still_is_not_encoded_again(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 1, 2)
        await put(life)
        await put(life, "other")
        await life.compactor.try_checkpoint()
        groups = life.engine.registry.topic("t").groups
        assert groups is not None
        await claim(life, 1)
        kinds = {name: type(one) for name, (_, one) in groups.freeze(life.engine.registry.instant()).groups.items()}
        assert kinds["other"] is bytes
        assert kinds["g"] is not bytes


async def test_claims_that_went_wrong_leave_nothing_in_the_log_of_a_group(autojump_clock: Any) -> None:
    """Frames of a group have its name, and those of acks name the records."""
    async with living() as life:
        await life.append("t", 1, 2)
        await put(life)
        await ack(life, *await claim(life))
        await life.engine.groups.delete("t", "g", Performance())
        told = [(payload["op"], payload["group"]) for _, payload in life.frames(FrameType.GROUP)]
        assert told == [("put", "g"), ("claimed", "g"), ("acked", "g"), ("deleted", "g")]


@pytest.mark.parametrize("seed", range(12))
async def test_over_kills_no_record_is_skipped_given_twice_or_given_again_after_its_ack(
    seed: int, autojump_clock: Any
) -> None:
    """Workers claim, ack, nack, and vanish; records are appended and deleted; the daemon is killed and checkpoints are
    taken at any time. With `leases_durable` a record has no second holder before its lease is over."""
    chance = random.Random(seed)
    fs, clock = SimFs(), SimClock()
    durable = bool(seed % 2)
    wanted = ODD if seed % 3 == 0 else None
    finished: set[int] = set()
    dead: set[int] = set()
    held: dict[int, float] = {}
    head = 0
    for life_number in range(6):
        async with living(fs=fs, clock=clock, clean=chance.random() < 0.2) as life:
            if not life_number:
                await life.put("t", durability="fsync" if durable else "disk")
                await life.append("t", *tagged(1, 1))
                head = 1
                await put(life, lease_ms=5000, leases_durable=durable, filter=wanted)
            elif not durable:
                held.clear()  # the kill may have taken leases
            for _ in range(chance.randrange(5, 40)):
                step = chance.random()
                now = trio.current_time()
                held = {seq: until for seq, until in held.items() if until > now}
                if step < 0.25:
                    n = chance.randrange(1, 8)
                    await life.append("t", *tagged(head + 1, head + n))
                    head += n
                elif step < 0.5:
                    got = await claim(life, chance.randrange(1, 6))
                    assert not finished & set(got)
                    assert not dead & set(got)
                    assert not held.keys() & set(got)
                    held |= dict.fromkeys(got, now + 4.9)
                elif step < 0.75 and held:
                    seqs = chance.sample(sorted(held), chance.randrange(1, len(held) + 1))
                    if chance.random() < 0.7:
                        finished |= set(await ack(life, *seqs))
                    else:
                        request = HeldRequest(node="n", seqs=seqs, lease_ids=None)
                        await life.engine.queues.nack("t", request, NackTerms(0), Performance(), "g")
                    for seq in seqs:
                        del held[seq]
                elif step < 0.8:
                    before = chance.randrange(1, head + 1) // 3
                    await life.delete("t", before_seq=before)
                    dead |= set(range(1, before))
                    held = {seq: until for seq, until in held.items() if seq not in dead}
                elif step < 0.85:
                    await life.compactor.try_checkpoint()
                elif step < 0.95:
                    await trio.sleep(chance.random() * 4)
            topic = life.engine.registry.topic("t")
            assert topic.groups is not None
            topic.groups.by_name["g"].state.check()
    async with living(fs=fs, clock=clock) as life:
        await trio.sleep(6)
        rest: set[int] = set()
        while (found := await take(life)).jobs:
            rest |= {job.seq for job in found.jobs}
            await ack(life, *(job.seq for job in found.jobs))
        due = {seq for seq in range(1, head + 1) if seq % 2 or wanted is None}
        assert rest == due - finished - dead
        seen = await state(life)
        assert (seen.floor, seen.lag, seen.missed, seen.queue.ready) == (head, 0, 0, 0)
