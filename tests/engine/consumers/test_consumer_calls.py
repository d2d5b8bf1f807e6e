"""Named consumers over several lives of the engine: durability, fencing, and the state after a start."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, records, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.engine.commits import Commits
from topics.engine.consumers import consumer_calls, unused_consumers
from topics.filters.record_filter import Filter, parse_filter
from topics.model import (
    ConsumerMove,
    ConsumerPatch,
    ConsumerRead,
    ConsumerStart,
    Performance,
    ReadRequest,
    RouterPatch,
    WatchRequest,
    WatchStart,
)
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

ANY = ConsumerMove()
CLASSES = ("ephemeral", "memory", "disk", "fsync")


def patch(place: Any = "earliest", value: int = 0, **fields: Any) -> ConsumerPatch:
    return ConsumerPatch(start=ConsumerStart(place=place, value=value), **fields)


async def put(life: Life, consumer: str = "c", place: Any = "earliest", value: int = 0, **fields: Any) -> bool:
    _, created = await life.engine.consumers.put("t", consumer, patch(place, value, **fields), Performance())
    return created


async def commit(life: Life, seq: int, consumer: str = "c", **move: Any) -> bool:
    moved = await life.engine.consumers.commit("t", consumer, seq, ConsumerMove(**move), Performance())
    return moved.moved


async def read(
    life: Life, consumer: str = "c", *, wait_ms: int = 0, limit: int = 256, filter: Filter | None = None, **wish: Any
) -> list[int]:
    request = ReadRequest(consumer=ConsumerRead(consumer=consumer, **wish), wait_ms=wait_ms, limit=limit, filter=filter)
    return [record["$seq"] for record in records(await life.engine.consumer_reads.read("t", request, Performance()))]


async def acquire(life: Life, owner: str, lease_ms: int = 1000, consumer: str = "c") -> int:
    _, generation, _ = await life.engine.consumers.acquire("t", consumer, owner, lease_ms, Performance())
    return generation


def at(life: Life, consumer: str = "c") -> int:
    return life.engine.consumers.state("t", consumer).committed_seq


@pytest.mark.parametrize("durability", CLASSES)
async def test_a_position_survives_a_kill_in_every_class(durability: str, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1, 2, 3)
        assert await put(life)
        assert not await put(life)
        assert await commit(life, 2)
        assert not await commit(life, 1)
        generation = await acquire(life, "x")  # synced behind the commit
    async with living(fs=fs, clean=False) as life:
        state = life.engine.consumers.state("t", "c")
        assert (state.committed_seq, state.owner, state.generation) == (2, "x", generation)
        assert state.last_commit_ts is not None
        if durability == "fsync":
            assert await read(life) == [3]
        await life.compactor.try_checkpoint(marks=False)
    async with living(fs=fs) as life:
        again = life.engine.consumers.state("t", "c")
        assert msgspec.structs.replace(again, deadline=None) == msgspec.structs.replace(state, deadline=None)


@pytest.mark.parametrize(("durability", "syncs"), [("ephemeral", 1), ("memory", 0), ("disk", 0), ("fsync", 1)])
async def test_a_commit_is_as_durable_as_its_class_and_a_put_is_synced(
    durability: str, syncs: int, autojump_clock: Any
) -> None:
    offload = HeldOffload()
    async with living(offload=offload, housekeeping=False) as life:
        await life.put("t", durability=durability)
        await life.append("t", 1, 2, 3)
        await settle()
        before = life.syncs()
        await put(life)
        assert life.syncs() == before + 1
        before = life.syncs()
        await acquire(life, "x")
        await acquire(life, "x")
        assert life.syncs() == before + 2
        before = life.syncs()
        if durability == "memory":
            offload.hold()  # nothing can be written, and nobody waits for it
        await commit(life, 2, generation=1)
        assert life.syncs() == before + syncs
        if durability == "memory":
            offload.let_go()


async def test_until_release_only_the_owner_moves_the_consumer_even_after_its_deadline(autojump_clock: Any) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await life.append("t", 1, 2, 3)
        await put(life)
        assert await commit(life, 1)
        first = await acquire(life, "x", 1000)
        owned = await refusal(acquire(life, "y"))
        assert (owned.code, owned.detail["owner"]) == ("consumer_owned", "x")
        assert (await refusal(commit(life, 2))).code == "fenced"
        assert (await refusal(read(life, before=True))).code == "fenced"
        await trio.sleep(2)
        assert (await refusal(commit(life, 2))).code == "fenced"
        assert await commit(life, 2, generation=first)
        assert await acquire(life, "x", 1000) == first
        await trio.sleep(1.5)
        second = await acquire(life, "y")
        assert second == first + 1
        assert (await refusal(commit(life, 3, generation=first))).code == "fenced"
        assert await read(life, before=True, generation=second) == [3]
        assert not await life.engine.consumers.release("t", "c", first, Performance())
        assert await life.engine.consumers.release("t", "c", second, Performance())
        assert at(life) == 3
        await life.engine.consumers.seek("t", "c", ConsumerStart(place="earliest"), ANY, Performance())
        assert at(life) == 0


async def test_no_commit_is_decided_between_an_acquire_and_its_publication(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.append("t", 1, 2, 3)
        await put(life)
        first = await acquire(life, "x")
        await trio.sleep(2)
        offload.hold()
        outcomes: dict[str, Any] = {}

        async def take_over() -> None:
            outcomes["generation"] = await acquire(life, "y")

        async def move() -> None:
            outcomes["late"] = await refusal(commit(life, 2, generation=first))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_over)
            await settle()
            nursery.start_soon(move)
            await settle()
            assert outcomes == {}
            offload.let_go()
        assert outcomes["generation"] == first + 1
        assert outcomes["late"].code == "fenced"
        assert at(life) == 0


async def test_the_wall_clock_may_jump_and_no_lease_ends_early_or_late(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1)
        await put(life)
        await acquire(life, "x", 60_000)
        clock.step(10 * 86_400_000)
        assert (await refusal(acquire(life, "y"))).code == "consumer_owned"
    async with living(fs=fs, clock=clock) as life:
        assert (await refusal(acquire(life, "y"))).code == "consumer_owned"
        clock.step(-20 * 86_400_000)
        assert (await refusal(acquire(life, "y"))).code == "consumer_owned"
        await trio.sleep(61)
        assert await acquire(life, "y") == 2


@pytest.mark.parametrize("checkpointed", [False, True])
async def test_no_generation_is_given_out_again_after_a_start(checkpointed: bool, autojump_clock: Any) -> None:
    """Also if the last consumer of the topic was deleted, and the next one has had no owner before the start."""
    fs = SimFs()
    async with living(fs=fs, clean=False) as life:
        await life.put("t")
        await put(life)
        taken = await acquire(life, "x")
        await life.engine.consumers.delete("t", "c", Performance())
        if checkpointed:
            await life.compactor.checkpoint()
        await put(life)
    async with living(fs=fs) as life:
        assert await acquire(life, "y") > taken
        assert (await refusal(commit(life, 0, generation=taken))).code == "fenced"


async def test_another_instance_of_the_topic_has_no_consumers_and_old_commits_are_fenced(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 1, 2)
        await put(life)
        epoch = life.engine.registry.topic("t").id
        assert await commit(life, 1, epoch=epoch)
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        assert (await refusal(commit(life, 2))).code == "topic_not_found"
        await life.append("t", 1, 2)
        assert (await refusal(commit(life, 2))).code == "consumer_not_found"
        await put(life)
        assert (await refusal(commit(life, 2, epoch=epoch))).code == "fenced"
        assert at(life) == 0


async def test_a_consumer_starts_and_seeks_to_every_kind_of_place(autojump_clock: Any) -> None:
    clock = SimClock()
    async with living(clock=clock) as life:
        await life.append("t", 1, 2)
        await trio.sleep(1)
        await life.append("t", 3)
        between = clock.now_ms() - 500
        await life.delete("t", before_seq=2)
        places: list[tuple[Any, int, int]] = [
            ("earliest", 0, 1), ("tail", 0, 3), ("seq", 2, 2), ("ts", 0, 1), ("ts", between, 2), ("ts", 2**63, 3)
        ]  # fmt: skip
        for i, (place, value, seq) in enumerate(places):
            await put(life, f"c{i}", place, value)
            assert at(life, f"c{i}") == seq, (place, value)
            await put(life, "moving")
            to = ConsumerStart(place=place, value=value)
            await life.engine.consumers.seek("t", "moving", to, ANY, Performance())
            assert at(life, "moving") == seq
        assert (await refusal(put(life, "beyond", "seq", 4))).code == "invalid_request"
        assert (await refusal(commit(life, 4, "moving"))).code == "invalid_request"


async def test_concurrent_reads_that_ack_before_return_no_record_twice(autojump_clock: Any) -> None:
    async with living(offload=HeldOffload()) as life:
        await life.put("t", durability="fsync")
        await put(life)
        got: list[int] = []

        async def reader() -> None:
            while len(got) < 40:
                got.extend(await read(life, before=True, wait_ms=1000, limit=3))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(reader)
            for number in range(20):
                await life.append("t", number, number)
                if number % 5 == 0:
                    await trio.sleep(0.05)
        assert sorted(got) == list(range(1, 41))


async def test_a_read_that_acks_before_answers_at_the_limit_of_its_scan(autojump_clock: Any) -> None:
    async with living(settings(max_scan=2)) as life:
        await life.append("t", 1, 2, 3, 4, 5)
        await put(life)
        started = trio.current_time()
        for seqs, position in (([], 2), ([], 4), ([5], 5)):
            assert await read(life, before=True, wait_ms=1000, filter=parse_filter('["data","","Eq",5]')) == seqs
            assert at(life) == position
        assert trio.current_time() == started, "nothing has waited for news: there were records left to look at"


async def test_a_read_commits_first_and_then_reads(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 1, 2, 3)
        await put(life)
        assert await read(life, commit_seq=2) == [3]
        assert at(life) == 2
        assert await read(life) == [3]


async def test_a_position_below_the_floor_reads_a_tombstone(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=2)
        await life.append("t", 1, 2, 3)
        await put(life, place="seq", value=0)
        request = ReadRequest(consumer=ConsumerRead(consumer="c"))
        found = await life.engine.consumer_reads.read("t", request, Performance())
        assert found.tombstone is not None
        assert (found.tombstone.gap_from, found.tombstone.gap_to) == (1, 1)


async def test_a_consumer_that_nobody_uses_for_its_ttl_is_gone_for_good(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.append("t", 1, 2)
        for name in ("used", "unused", "kept"):
            await put(life, name, ttl_ms=0 if name == "kept" else 10_000)
        await trio.sleep(8)
        await read(life, "used")
        await trio.sleep(4)
        assert (await refusal(commit(life, 1, "unused"))).code == "consumer_not_found"
        assert await commit(life, 1, "used")
    async with living(fs=fs, clock=clock) as life:
        found, more = life.engine.consumers.page("t", "", None, 10)
        assert ([state.consumer for state in found], more) == (["kept", "used"], False)
        await trio.sleep(11)
        life.engine.expire_unused()
        await settle()
        found, _ = life.engine.consumers.page("t", "", None, 10)
        assert [state.consumer for state in found] == ["kept"]


async def test_consumers_are_limited_and_deleted_ones_do_not_count(autojump_clock: Any) -> None:
    async with living(settings(max_consumers=2)) as life:
        await life.append("t", 1)
        await put(life, "a")
        await put(life, "b")
        error = await refusal(put(life, "c"))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_consumers")
        assert not await put(life, "a")
        await life.engine.consumers.delete("t", "a", Performance())
        assert await put(life, "c")
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.append("t", 1)
        assert await put(life, "c")


async def test_the_filters_of_all_consumers_are_bounded_and_removed_ones_do_not_count(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_calls, "MAX_FILTER_TEXT", 40)
    short, long = parse_filter('["tag","Eq","x"]'), parse_filter('["tag","Eq","xxxxxxxx"]')
    async with living() as life:
        await life.append("t", 1)
        await put(life, "a", filter=short)
        await put(life, "b", filter=short)
        error = await refusal(put(life, "c", filter=short))
        assert (error.code, error.detail["limit"]) == ("throttled", "max_consumer_filters")
        assert await put(life, "c")
        await put(life, "a", filter=long)
        assert (await refusal(put(life, "b", filter=long))).code == "throttled"
        await put(life, "a", filter=None)
        await put(life, "b", filter=long)
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.append("t", 1)
        assert await put(life, "c", filter=long)


async def test_unpublished_filters_count_against_the_bound(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumer_calls, "MAX_FILTER_TEXT", 40)
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", 1)
        await put(life, "b")
        offload.hold()
        created: list[bool] = []

        async def create() -> None:
            created.append(await put(life, "a", filter=parse_filter('["tag","Eq","xxxxxxxxxxxx"]')))

        nursery.start_soon(create)
        await settle()
        assert (await refusal(put(life, "b", filter=parse_filter('["tag","Eq","x"]')))).code == "throttled"
        offload.let_go()
        await settle()
        assert created == [True]
        await put(life, "a", filter=None)
        await put(life, "b", filter=parse_filter('["tag","Eq","x"]'))


async def test_a_read_keeps_the_filter_with_which_it_began(autojump_clock: Any) -> None:
    for wish in ({}, {"before": True}):
        async with living() as life, trio.open_nursery() as nursery:
            await life.append("t", 1)
            await put(life, place="tail", filter=parse_filter('["data","","Ge",5]'))
            found: list[int] = []

            async def wait(life: Life = life, found: list[int] = found, wish: Any = wish) -> None:
                found += await read(life, wait_ms=10_000, **wish)

            nursery.start_soon(wait)
            await settle()
            await put(life, filter=None)
            await life.append("t", 2)
            await settle()
            assert found == []
            await life.append("t", 5)
            await settle()
            assert found == [3]
            position = 3 if wish else 1
            assert at(life) == position
            await life.append("t", 1)
            assert await read(life) == list(range(position + 1, 5))


async def test_a_read_that_looks_several_times_examines_no_more_than_the_limit(autojump_clock: Any) -> None:
    async with living(settings(max_scan=10)) as life, trio.open_nursery() as nursery:
        await life.append("t", 1)
        await put(life, place="tail", filter=parse_filter('["data","","Ge",5]'))
        perf = Performance()
        request = ReadRequest(consumer=ConsumerRead(consumer="c", before=True), wait_ms=60_000)
        found: list[Any] = []

        async def wait() -> None:
            found.append(await life.engine.consumer_reads.read("t", request, perf))

        nursery.start_soon(wait)
        for appended in range(4):
            await settle()
            assert (found, at(life)) == ([], 1 + 3 * appended)
            await life.append("t", 1, 1, 1)
        await settle()
        assert [(page.count, page.next_from_seq, page.caught_up) for page in found] == [(0, 11, False)]
        assert (perf.records_scanned, at(life)) == (10, 11)


async def test_a_record_appended_while_a_read_commits_is_read_at_once(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        await life.append("t", 1)
        await put(life, place="tail", filter=parse_filter('["data","","Ge",5]'))
        found: list[int] = []

        async def wait() -> None:
            found.extend(await read(life, before=True, wait_ms=60_000))

        nursery.start_soon(wait)
        await settle()
        await life.append("t", 2)
        offload.hold()
        await settle()
        assert life.engine.registry.topic("t").consumer_commits, "it does not commit yet"
        nursery.start_soon(life.append, "t", 5)
        await settle()
        offload.let_go()
        await settle()
        assert (found, at(life)) == ([3], 3)


async def test_a_watch_has_the_filters_of_topic_and_consumer(autojump_clock: Any) -> None:
    kept, own = parse_filter('["tag","Eq","x"]'), parse_filter('["node","Eq","n"]')
    async with living() as life:
        await life.append("t", 1, 2)
        await put(life, place="seq", value=1, filter=kept)
        await put(life, "all")
        topics = {"t": WatchStart(consumer="c"), "other": WatchStart()}
        request = WatchRequest(topics=topics, filters={"t": (own,), "other": (own,)})
        placed = life.engine.consumers.placed(request)
        assert placed.filters == {"t": (own, kept), "other": (own,)}
        assert (placed.topics["t"].from_seq, placed.topics["other"]) == (1, WatchStart())
        everything = msgspec.structs.replace(request, topics={"t": WatchStart(consumer="all")}, filters={})
        assert life.engine.consumers.placed(everything).filters == {}


async def test_idle_consumers_cost_no_frames_and_no_part(autojump_clock: Any) -> None:
    async with living(housekeeping=False) as life:
        await life.append("t", 1)
        for number in range(100):
            await put(life, f"c{number}", ttl_ms=60_000)
        await life.compactor.try_checkpoint(marks=False)
        frames = len(life.frames(FrameType.CONSUMER))
        for _ in range(50):
            life.engine.expire_unused()
            await trio.sleep(0.1)
        assert life.engine.registry.changed == set()
        assert len(life.frames(FrameType.CONSUMER)) == frames
        await life.engine.consumers.seek("t", "c7", ConsumerStart(place="tail"), ANY, Performance())
        assert len(life.frames(FrameType.CONSUMER)) == frames + 1


async def consumed(life: Life) -> int:
    """Let a pass over consumed records end. Return the earliest seq."""
    life.engine.expire_unused()
    await trio.sleep(0.2)
    return life.engine.registry.topic("t").log.earliest_seq


@pytest.mark.parametrize("durability", CLASSES)
async def test_records_that_every_consumer_has_passed_are_deleted_without_a_tombstone(
    durability: str, autojump_clock: Any
) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", durability=durability, retention="consumed")
        await life.append("t", *range(10))
        assert await consumed(life) == 1  # there is no consumer
        await put(life, "a")
        await put(life, "b")
        await commit(life, 6, "a")
        assert await consumed(life) == 1
        await commit(life, 4, "b")
        assert await consumed(life) == 5
        found, gaps = await life.all("t")
        assert ([record["$seq"] for record in found], gaps) == (list(range(5, 11)), [])
        await life.engine.consumers.delete("t", "b", Performance())
        assert await consumed(life) == 7
        await life.put("t", retention="limits")
        await commit(life, 9, "a")
        assert await consumed(life) == 7
        await life.put("t", retention="consumed")
        assert await consumed(life) == 10
    async with living(fs=fs) as life:
        assert at(life, "a") == 9
        if durability != "ephemeral":
            assert await life.seqs("t") == [10]


@pytest.mark.parametrize("waits", [False, True])
async def test_consumed_records_stay_when_the_retention_was_changed_before_their_deletion(
    waits: bool, monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """The retention is changed before the pass, and in the second case while the pass syncs the copies of routers."""
    synced = trio.Event()
    sync_all = Commits.sync_all

    async def held(commits: Commits) -> None:
        await synced.wait()
        await sync_all(commits)

    monkeypatch.setattr(Commits, "sync_all", held)
    async with living() as life:
        await life.put("d")
        await life.put("t", retention="consumed")
        await life.engine.routers.put("r", RouterPatch(source="t", dest="d", start="earliest"), create=True)
        await put(life)
        await life.append("t", 1, 2, 3)
        await commit(life, 3)
        await trio.sleep(1)
        if waits:
            assert await consumed(life) == 1
        await life.put("t", retention="limits")
        synced.set()
        assert await consumed(life) == 1
        await life.put("t", retention="consumed")
        assert await consumed(life) == 4


async def test_a_router_that_is_made_again_during_a_pass_finds_all_records(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    """It has the name of the one before, whose copies were being synced."""
    synced = trio.Event()
    sync_all = Commits.sync_all

    async def held(commits: Commits) -> None:
        await synced.wait()
        await sync_all(commits)

    async with living() as life:
        for name in ("d", "e"):
            await life.put(name)
        await life.put("t", retention="consumed")
        await life.append("t", 1, 2, 3)
        await life.engine.routers.put("r", RouterPatch(source="t", dest="d", start="earliest"), create=True)
        await trio.sleep(1)
        await put(life)
        await commit(life, 3)
        with monkeypatch.context() as patched:
            patched.setattr(Commits, "sync_all", held)
            assert await consumed(life) == 1
            await life.engine.routers.delete("r")
            await life.put("e", cap_records=1, discard="reject")
            await life.engine.routers.put("r", RouterPatch(source="t", dest="e", start="earliest"), create=True)
            synced.set()
            await trio.sleep(0.2)
        assert await consumed(life) == 2
        await life.put("e", cap_records=0)
        await trio.sleep(10)
        assert len((await life.all("e"))[0]) == 3
        assert await consumed(life) == 4


async def test_an_unpublished_seek_back_keeps_its_records(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life:
        await life.put("t", durability="fsync", retention="consumed")
        await life.append("t", 1, 2, 3)
        await put(life)
        await commit(life, 3)
        async with trio.open_nursery() as nursery:
            offload.hold()
            to = ConsumerStart(place="seq", value=1)
            nursery.start_soon(life.engine.consumers.seek, "t", "c", to, ANY, Performance())
            await settle()
            life.engine.expire_unused()
            await settle()
            offload.let_go()
        assert await consumed(life) == 2
        assert await read(life) == [2, 3]


async def test_records_that_a_router_has_not_copied_are_not_deleted(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", retention="consumed")
        await life.append("t", 1, 2, 3)
        await put(life)
        await life.put("d", cap_records=1, discard="reject")
        router = RouterPatch(source="t", dest="d", start="earliest")
        await life.engine.routers.put("r", router, create=True)
        await commit(life, 3)
        assert await consumed(life) == 2
        await life.put("d", cap_records=0)
        await trio.sleep(10)
        assert await consumed(life) == 4
        assert len((await life.all("d"))[0]) == 3


async def test_a_queue_has_no_such_retention(autojump_clock: Any) -> None:
    async with living() as life:
        error = await refusal(life.put("t", type="queue", retention="consumed"))
        assert (error.code, error.detail["field"]) == ("invalid_request", "retention")


async def test_the_ttl_of_a_consumer_counts_although_the_client_of_its_put_is_gone(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(settings(max_consumers=1), offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", 1)
        offload.hold()
        called = Called(nursery, lambda: put(life, ttl_ms=10_000))
        await settle()
        called.scope.cancel()
        await settle()
        assert called.cancelled
        assert (await refusal(put(life, "other"))).code == "throttled"  # the first one is still on its way
        offload.let_go()
        await settle()
        assert at(life) == 0
        await trio.sleep(11)
        life.engine.expire_unused()
        await settle()
        assert life.engine.consumers.page("t", "", None, 10) == ([], False)
        assert await put(life, "other")


async def test_the_memory_for_created_and_deleted_consumers_is_bounded(monkeypatch: Any, autojump_clock: Any) -> None:
    """The ttl of each of them ends in a year, so no entry leaves the heap by itself."""
    monkeypatch.setattr(unused_consumers, "SPARE", 10)
    async with living(housekeeping=False) as life:
        await life.append("t", 1)
        await put(life, "kept", ttl_ms=60_000)
        for number in range(60):
            await put(life, f"c{number % 7}", ttl_ms=365 * 86_400_000 + number)
            if number % 3:
                await life.engine.consumers.delete("t", f"c{number % 7}", Performance())
        assert len(life.engine._unused) <= 2 * 8 + 10
        await trio.sleep(61)
        life.engine.expire_unused()
        await settle()
        found, _ = life.engine.consumers.page("t", "", None, 10)
        assert "kept" not in [state.consumer for state in found]
