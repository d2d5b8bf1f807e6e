"""Redrives over lives of the engine: where letters go, which stay, and what ends a redrive."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, records, refusal, settings, settle
from tests.simulation.clock import SimClock
from tests.simulation.disk import Fault, SimFs
from topics.engine.redrives.redrives import RedriveProgress, RedriveWish
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.job_model import ClaimRequest, HeldRequest, NackTerms
from topics.model import (
    CheckedAppend,
    ConsumerStart,
    GroupPatch,
    GroupState,
    Performance,
    RecordIn,
    TopicConfigPatch,
)
from topics.storage.wal.frames import FrameType
from topics.telemetry.figures import JobFigures

pytestmark = pytest.mark.trio


def anywhere(name: str) -> bool:
    return True


async def redrive(life: Life, dead: str = "dead", may: Any = anywhere, **wish: Any) -> RedriveProgress:
    """Run a redrive to its end."""
    life.engine.redrives.start(dead, RedriveWish(**wish), may)
    await life.engine.redrives.ended()
    return life.engine.redrives.get(dead)


async def letter(life: Life, n: Any, dead: str = "dead", tag: str | None = None, **markers: str) -> int:
    """Append a record as the daemon appends letters, with these markers."""
    data = json.dumps(n).encode()
    meta = {"own": "x"} | {f"$dead_letter_{key}": value for key, value in markers.items()}
    request = CheckedAppend(
        records=[RecordIn(data=msgspec.Raw(data))],
        datas=[data],
        nodes=None,
        tags=[tag] if tag else None,
        metas=[msgspec.json.encode(meta)],
    )
    return (await life.engine.appends.append(dead, request, Performance())).first_seq


async def claim(life: Life, name: str, group: str | None = None, most: int = 100) -> list[Any]:
    request = ClaimRequest(node="n", most=most, lease_ms=60_000, wait_ms=0)
    return list((await life.engine.queues.claim(name, request, Performance(), group)).jobs)


async def ack(life: Life, name: str, *seqs: int, group: str | None = None) -> None:
    held = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
    await life.engine.queues.ack(name, held, Performance(), group)


async def condemn(life: Life, name: str, *seqs: int, group: str | None = None) -> None:
    """Move held jobs to the dead letters."""
    held = HeldRequest(node="n", seqs=list(seqs), lease_ids=None)
    await life.engine.queues.nack(name, held, NackTerms(None, "broken", True, True), Performance(), group)
    await trio.sleep(0.5)


async def put_group(life: Life, name: str = "log", group: str = "g", **fields: Any) -> None:
    own = {name: fields.pop(name) for name in ("filter", "max_unfinished") if name in fields}
    patch = GroupPatch(start=ConsumerStart(place="earliest"), terms=TopicConfigPatch(**fields), **own)
    await life.engine.groups.put(name, group, patch, Performance())


async def group(life: Life, name: str = "log") -> GroupState:
    return await life.engine.groups.state(name, "g")


async def queue_and_letters(life: Life, n: int = 3) -> None:
    await life.put("dead", durability="disk")
    await life.put("q", type="queue", durability="disk", dead_letter="dead", max_deliveries=1)
    for i in range(n):
        await letter(life, i, **{"from": "q", "src_seq": str(i + 1), "deliveries": "1"})


# --- where letters go ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 2])
async def test_a_dead_job_is_a_new_one_again(shards: int, autojump_clock: Any) -> None:
    config = settings(wal_shards=shards)
    async with living(config) as life:
        await life.put("dead", durability="fsync")
        await life.put("q", type="queue", durability="fsync", dead_letter="dead", max_deliveries=3)
        await life.append("q", {"data": "a", "tag": "t", "meta": {"k": "v"}}, {"data": "b", "priority": 9})
        await claim(life, "q")
        await condemn(life, "q", 1, 2)
        assert [row["data"] for row in records(await life.read("dead"))] == ["a", "b"]
        assert await redrive(life) == RedriveProgress("done", 2, {}, None)
        assert await life.seqs("dead") == []
        rows = records(await life.read("q", include_tags=True))
        assert [(row["$seq"], row["data"], row.get("$tag"), row.get("meta")) for row in rows] == [
            (3, "a", "t", {"k": "v"}),
            (4, "b", None, None),
        ]
        jobs = await claim(life, "q")
        assert [(job.seq, job.deliveries) for job in jobs] == [(3, 1), (4, 1)]
        state = life.engine.queues.state(life.engine.registry.topics["q"])
        assert state is not None
        assert state.dead_lettered == 2


async def test_one_redrive_serves_several_queues_and_groups(autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        await life.put("dead")
        for name in ("q", "p"):
            await life.put(name, type="queue")
        await life.put("log")
        await life.append("log", *range(4))
        await put_group(life, dead_letter="dead", max_deliveries=1)
        await claim(life, "log", "g")
        await condemn(life, "log", 2, group="g")
        await ack(life, "log", 1, 3, 4, group="g")
        for i in range(4):
            await letter(life, i, **{"from": "qp"[i % 2], "src_seq": "7"})
        assert (await group(life)).floor == 4
        assert await redrive(life) == RedriveProgress("done", 5, {}, None)
        assert [row["data"] for row in records(await life.read("q"))] == [0, 2]
        assert [row["data"] for row in records(await life.read("p"))] == [1, 3]
        shown = await group(life)
        assert (shown.floor, shown.queue.ready, shown.missed) == (4, 1, 0), "the floor does not go back"
        assert [(job.seq, job.deliveries) for job in await claim(life, "log", "g")] == [(2, 1)]
        await ack(life, "log", 2, group="g")
        assert not await claim(life, "log", "g")
        assert (await group(life)).queue.ready == 0


async def test_above_the_floor_the_floor_waits_for_a_record_that_a_group_has_again(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock) as life:
        await life.put("dead")
        await life.put("log")
        await life.append("log", *range(5))
        await put_group(life, dead_letter="dead", max_deliveries=9)
        await claim(life, "log", "g")
        await condemn(life, "log", 3, group="g")
        await ack(life, "log", 4, group="g")
        assert (await redrive(life)).moved == 1
        await ack(life, "log", 1, 2, 5, group="g")
        assert ((await group(life)).floor, (await group(life)).lag) == (2, 3)
    async with living(fs=fs, clock=clock, clean=False) as life:
        assert [job.seq for job in await claim(life, "log", "g")] == [3]
        await ack(life, "log", 3, group="g")
        assert (await group(life)).floor == 5


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_an_exception_below_the_floor_survives_a_kill(checkpoints: bool, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await life.put("dead", durability="fsync")
        await life.put("log", durability="fsync")
        await life.append("log", *range(6))
        await put_group(life)
        await claim(life, "log", "g")
        await ack(life, "log", 2, 3, 4, 5, 6, group="g")
        await life.delete("log", 2)  # the floor passes 1 without an event
        assert (await group(life)).floor == 6
        await letter(life, "x", **{"from": "log", "group": "g", "src_seq": "4"})
        assert (await redrive(life)).moved == 1
        if checkpoints:
            await life.compactor.checkpoint()
    async with living(fs=fs, clock=clock) as life:
        assert ((await group(life)).floor, (await group(life)).queue.ready) == (6, 1)
        assert [job.seq for job in await claim(life, "log", "g")] == [4]
        await life.append("log", "new")
        assert [job.seq for job in await claim(life, "log", "g")] == [7]


@pytest.mark.parametrize("checkpoints", [False, True])
async def test_an_exception_below_the_floor_that_a_cap_takes_is_missed_also_after_a_kill(
    checkpoints: bool, autojump_clock: Any
) -> None:
    fs, clock = SimFs(), SimClock()
    async with living(fs=fs, clock=clock, clean=False) as life:
        await life.put("dead", durability="fsync")
        await life.put("log", durability="fsync", cap_records=4)
        await life.append("log", *range(4))
        await put_group(life)
        assert len(await claim(life, "log", "g")) == 4
        await ack(life, "log", 2, 3, 4, group="g")
        await life.append("log", "new")  # evicts 1, which is leased: the floor passes it
        assert ((await group(life)).floor, (await group(life)).missed) == (4, 1)
        for seq in (2, 4):
            await letter(life, "x", **{"from": "log", "group": "g", "src_seq": str(seq)})
        assert (await redrive(life)).moved == 2
        if checkpoints:
            await life.compactor.checkpoint()
        await life.append("log", "new")  # evicts 2
        state = await group(life)
        assert (state.floor, state.missed, state.queue.ready) == (4, 2, 3)
    async with living(fs=fs, clock=clock) as life:
        state = await group(life)
        assert (state.floor, state.missed, state.queue.ready) == (4, 2, 3)


async def test_what_is_consumed_stays_while_a_group_has_it_again(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead")
        await life.put("log", retention="consumed")
        await life.append("log", *range(4))
        await put_group(life)
        await claim(life, "log", "g")
        await letter(life, "x", **{"from": "log", "group": "g", "src_seq": "2"})
        await ack(life, "log", 1, 2, 3, group="g")
        assert (await redrive(life)).moved == 1
        await ack(life, "log", 4, group="g")
        life.engine.expire_unused()
        await trio.sleep(1)
        assert 2 in await life.seqs("log")
        await claim(life, "log", "g")
        await ack(life, "log", 2, group="g")
        life.engine.expire_unused()
        await trio.sleep(1)
        assert await life.seqs("log") == []


async def test_a_record_that_a_group_has_again_keeps_nothing_once_it_is_gone_itself(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead")
        await life.put("log", retention="consumed", cap_records=4)
        await life.append("log", *range(4))
        await put_group(life)
        await claim(life, "log", "g")
        await letter(life, "x", **{"from": "log", "group": "g", "src_seq": "1"})
        await ack(life, "log", 1, group="g")
        assert (await redrive(life)).moved == 1
        await ack(life, "log", 2, 3, 4, group="g")
        assert await life.seqs("log") == [1, 2, 3, 4]
        await life.append("log", *range(2))  # 1 and 2 are evicted, and nobody asks the group
        life.engine.expire_unused()
        await trio.sleep(1)
        assert await life.seqs("log") == [5, 6]


async def test_the_letter_of_a_group_whose_record_is_gone_stays(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead")
        await life.put("log")
        await life.append("log", *range(3))
        await put_group(life)
        await claim(life, "log", "g")
        await ack(life, "log", 1, 2, 3, group="g")
        await life.delete("log", 2)
        for seq in ("1", "9", "nonsense"):
            await letter(life, seq, **{"from": "log", "group": "g", "src_seq": seq})
        await letter(life, "there", **{"from": "log", "group": "g", "src_seq": "2"})
        assert await redrive(life) == RedriveProgress("done", 1, {"gone": 3}, None)
        assert await life.seqs("dead") == [1, 2, 3]


async def test_in_a_topic_that_was_made_again_the_record_of_a_letter_is_gone(autojump_clock: Any) -> None:
    async with living() as life:
        for _ in range(2):
            await life.put("log")
            await life.append("log", "a")
            await put_group(life, dead_letter="dead", max_deliveries=9)
            await claim(life, "log", "g")
            if "dead" not in life.engine.registry.topics:
                await condemn(life, "log", 1, group="g")
                await life.engine.topic_lifecycle.delete("log", if_empty=False)
        assert await redrive(life) == RedriveProgress("done", 0, {"gone": 1}, None)


async def test_a_letter_whose_record_the_group_has_not_finished_only_goes(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead")
        await life.put("log")
        await life.append("log", *range(3))
        await put_group(life)
        await letter(life, "x", **{"from": "log", "group": "g", "src_seq": "2"})
        await letter(life, "y", **{"from": "log", "group": "g", "src_seq": "2"})
        assert (await redrive(life)).moved == 2
        assert [job.seq for job in await claim(life, "log", "g")] == [1, 2, 3]


# --- which letters stay ----------------------------------------------------------------------------------------------


async def test_the_letter_of_a_job_that_is_still_on_its_way_to_the_letters_stays(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("q", type="queue", durability="disk", dead_letter="dead")
        await life.put("dead", durability="disk", cap_records=2, discard="reject")
        await life.append("q", 1, 2)
        await claim(life, "q")
        await letter(life, 1, **{"from": "q", "src_seq": "1"})
        await letter(life, 2, **{"from": "q", "src_seq": "77"})
        await condemn(life, "q", 1)
        # The move has put its letter there, or is about to; then it deletes the job.
        assert await redrive(life) == RedriveProgress("done", 1, {"in_flight": 1}, None)
        await trio.sleep(1)
        assert len(await life.seqs("dead")) == 2
        assert await redrive(life) == RedriveProgress("done", 2, {}, None)
        assert await life.seqs("q") == [2, 3, 4, 5]


async def test_the_letter_of_a_record_that_is_still_on_its_way_to_the_letters_stays(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("log", durability="disk")
        await life.put("dead", durability="disk", cap_records=1, discard="reject")
        await put_group(life, dead_letter="dead")
        await life.append("log", {"data": 1})
        await claim(life, "log", "g")
        await letter(life, 1, **{"from": "log", "group": "g", "src_seq": "1"})
        await condemn(life, "log", 1, group="g")
        assert (await group(life)).queue.delayed == 1
        # The move has put its letter there, or is about to; then it finishes the record.
        assert await redrive(life) == RedriveProgress("done", 0, {"in_flight": 1}, None)
        await life.put("dead", durability="disk", cap_records=0)
        await trio.sleep(1)
        assert len(await life.seqs("dead")) == 2
        assert await redrive(life) == RedriveProgress("done", 2, {}, None)
        assert [job.seq for job in await claim(life, "log", "g")] == [1]


@pytest.mark.parametrize("by", ["a higher cap", "a redrive elsewhere"])
async def test_a_full_dead_letter_topic_and_a_job_that_wait_for_each_other(by: str, autojump_clock: Any) -> None:
    """The letter of the job is there, from a move before a crash. The job cannot be moved again while the topic is
    full, and its letter, which fills the topic, cannot go back while the job is being moved."""
    async with living() as life:
        await life.put("q", type="queue", durability="disk", dead_letter="dead")
        await life.put("dead", durability="disk", cap_records=1, discard="reject")
        await life.put("other", durability="disk")
        await life.append("q", 1)
        await claim(life, "q")
        await letter(life, 1, **{"from": "q", "src_seq": "1"})
        await condemn(life, "q", 1)
        await trio.sleep(100)
        assert await redrive(life) == RedriveProgress("done", 0, {"in_flight": 1}, None)
        shown = {one.name: one.jobs for one in (await life.engine.metrics.figures()).topic_samples}
        assert shown["q"] == JobFigures(0, 0, 1, paused=False, dead_lettered=0), "the metrics show the job as delayed"
        if by == "a higher cap":
            await life.put("dead", cap_records=2)
        else:
            assert (await redrive(life, to="other")).moved == 1
        await trio.sleep(31)
        moved = 2 if by == "a higher cap" else 1
        assert len(await life.seqs("dead")) == moved
        assert await redrive(life) == RedriveProgress("done", moved, {}, None)
        assert len(await claim(life, "q")) == moved


async def test_letters_without_a_place_stay_and_are_counted(autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        await queue_and_letters(life, 1)
        await life.put("soft", type="queue", durability="memory")
        await life.put("air", type="queue", durability="ephemeral")
        await life.put("log")
        await life.put("tenant", type="queue")
        for origin in ("soft", "air", "log", "nowhere", "dead", "tenant"):
            await letter(life, origin, **{"from": origin, "src_seq": "1"})
        await letter(life, "group", **{"from": "log", "group": "g", "src_seq": "1"})
        await life.append("dead", "by hand")
        done = await redrive(life, may=lambda name: name != "tenant")
        assert done == RedriveProgress(
            "done", 1, {"forbidden": 1, "incompatible": 2, "missing": 4, "no_origin": 1}, None
        )
        assert len(await life.seqs("dead")) == 8


async def test_a_full_target_takes_what_it_has_room_for(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead")
        await life.put("q", type="queue", cap_records=5, discard="reject")
        await life.append("q", *range(3))
        for i in range(4):
            await letter(life, i, **{"from": "q", "src_seq": "1"})
        assert await redrive(life) == RedriveProgress("done", 2, {"full": 2}, None)
        assert len(await life.seqs("q")) == 5
        await life.put("log")
        await life.append("log", *range(4))
        await put_group(life, max_unfinished=2)
        for seqs in ((1, 2), (3, 4)):
            assert [job.seq for job in await claim(life, "log", "g")] == list(seqs)
            await ack(life, "log", *seqs, group="g")
        for seq in (1, 2, 3):
            await letter(life, seq, "dead2", **{"from": "log", "group": "g", "src_seq": str(seq)})
        assert await redrive(life, "dead2") == RedriveProgress("done", 2, {"full": 1}, None)
        await life.append("log", "new", "new")
        assert [job.seq for job in await claim(life, "log", "g")] == [1, 2, 5], (
            "nothing fresh but right above the floor"
        )


async def unfinished(life: Life, *seqs: int, most: int) -> Any:
    """A group that has finished these seqs of six, and letters of them."""
    await life.put("dead", durability="fsync")
    await life.put("log", durability="fsync")
    await life.append("log", *range(6))
    await put_group(life, max_unfinished=100)
    assert len(await claim(life, "log", "g")) == 6
    await ack(life, "log", *seqs, group="g")
    for seq in seqs:
        await letter(life, "x", **{"from": "log", "group": "g", "src_seq": str(seq)})
    await put_group(life, max_unfinished=most)
    return life.engine.registry.topic("log").groups.by_name["g"].state  # type: ignore[union-attr]


async def test_a_record_whose_run_becomes_two_needs_room_for_both(autojump_clock: Any) -> None:
    async with living() as life:
        state = await unfinished(life, 2, 3, 4, 5, most=4)  # 1 and 6 are held, and there is one run
        topic = life.engine.registry.topics["dead"]
        assert state.room == 1
        assert (await life.engine.letter_moves.move(topic, [2], may=anywhere)).left == {2: "full"}
        await put_group(life, max_unfinished=5)
        assert (await life.engine.letter_moves.move(topic, [2], may=anywhere)).moved == [2]
        assert (len(state.leases), len(state.finished), state.room, state.reopening) == (3, 2, 0, 0)


async def test_claims_beside_a_redrive_do_not_get_the_room_of_its_records(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        state = await unfinished(life, *range(1, 7), most=2)
        await life.append("log", *range(4))
        await trio.sleep(1)
        offload.hold()
        topic = life.engine.registry.topics["dead"]
        moves = Called(nursery, lambda: life.engine.letter_moves.move(topic, [1, 2], may=anywhere))
        await settle()
        assert (moves.done, state.room) == (False, 0)
        claimed = Called(nursery, lambda: claim(life, "log", "g"))
        await settle()
        offload.let_go()
        await settle()
        assert [job.seq for job in claimed.result] == [7], "it may always have the one above the floor"
        assert (moves.result.moved, state.reopening, len(state.leases)) == ([1, 2], 0, 3)


async def test_all_letters_that_match_go_to_another_topic(autojump_clock: Any) -> None:
    async with living(settings(wal_shards=2)) as life:
        await queue_and_letters(life, 2)
        await letter(life, "eu", tag="eu", **{"from": "gone"})
        await life.append("dead", {"data": "by hand", "tag": "eu"})
        await life.put("archive", schema=msgspec.Raw(b'{"type":"integer"}'))
        wanted = parse_filter('["tag","Eq","eu"]')
        assert await redrive(life, to="archive", filter=wanted) == RedriveProgress("done", 2, {}, None)
        rows = records(await life.read("archive"))
        assert [(row["data"], row.get("meta")) for row in rows] == [("eu", {"own": "x"}), ("by hand", None)]
        assert len(await life.seqs("dead")) == 2


async def test_what_a_worker_of_the_letters_holds_stays(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("dead", type="queue")
        await life.put("q", type="queue")
        for i in range(3):
            await letter(life, i, **{"from": "q", "src_seq": "1"})
        await claim(life, "dead", most=1)
        assert await redrive(life) == RedriveProgress("done", 2, {"in_flight": 1}, None)
        await ack(life, "dead", 1)
        assert await life.seqs("dead") == []
        assert len(await life.seqs("q")) == 2


async def test_a_letter_that_is_being_deleted_is_not_moved(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life, trio.open_nursery() as nursery:
        await life.put("dead", durability="fsync")
        await life.put("q", type="queue")
        for i in range(3):
            await letter(life, i, **{"from": "q", "src_seq": "1"})
        disk.hold()
        nursery.start_soon(life.delete, "dead", 3)
        await settle()
        life.engine.redrives.start("dead", RedriveWish(), anywhere)
        await settle()
        disk.let_go()
        await life.engine.redrives.ended()
        assert life.engine.redrives.get("dead").moved == 1
        assert [row["data"] for row in records(await life.read("q"))] == [2]


async def test_what_is_refused_at_once(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life)
        await life.put("soft", durability="memory")
        start = life.engine.redrives.start

        async def call(dead: str, **wish: Any) -> Any:
            return start(dead, RedriveWish(**wish), anywhere)

        assert (await refusal(call("nowhere"))).code == "topic_not_found"
        assert (await refusal(call("dead", to="nowhere"))).code == "topic_not_found"
        assert (await refusal(call("dead", to="dead"))).code == "invalid_request"
        assert (await refusal(call("dead", to="soft"))).code == "topic_exists_incompatible"
        assert (await refusal(call("soft"))).code == "topic_exists_incompatible"
        assert life.engine.redrives.get("dead").state == "idle"


# --- the task ---------------------------------------------------------------------------------------------------------


async def test_nobody_sees_a_letter_in_both_topics_or_in_neither(autojump_clock: Any) -> None:
    disk = HeldOffload()
    async with living(settings(wal_shards=2), offload=disk) as life:
        await queue_and_letters(life)
        await trio.sleep(0.5)
        disk.hold()
        life.engine.redrives.start("dead", RedriveWish(), anywhere)
        await settle()
        assert (len(await life.seqs("dead")), len(await life.seqs("q"))) == (3, 0)
        disk.let_go()
        await life.engine.redrives.ended()
        assert (len(await life.seqs("dead")), len(await life.seqs("q"))) == (0, 3)


async def test_one_redrive_of_a_topic_runs_at_a_time_and_can_be_stopped(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life, 10)
        redrives = life.engine.redrives
        assert redrives.start("dead", RedriveWish(rate=(2, 1000)), anywhere).state == "running"
        await trio.sleep(0.1)
        assert redrives.start("dead", RedriveWish(), anywhere) == RedriveProgress("running", 2, {}, None)
        assert redrives.running == 1
        assert await redrives.stop("dead") == RedriveProgress("stopped", 2, {}, None)
        assert redrives.running == 0
        assert len(await life.seqs("dead")) == 8
        assert (await redrive(life, most=3)).moved == 3
        assert (await redrive(life)).moved == 5
        assert redrives.letters_moved == 10
        assert (await redrives.stop("dead")).state == "done"


async def test_the_rate_holds_for_every_time_of_its_length(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life, 7)
        life.engine.redrives.start("dead", RedriveWish(rate=(3, 10_000)), anywhere)
        moved = []
        for _ in range(3):
            await trio.sleep(9.5)
            moved.append(life.engine.redrives.get("dead").moved)
        assert moved == [3, 6, 7]
        await life.engine.redrives.ended()
        assert life.engine.redrives.get("dead").moved == 7


async def test_letters_that_come_later_are_not_moved(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life, 1)
        life.engine.redrives.start("dead", RedriveWish(rate=(1, 1000)), anywhere)
        await letter(life, "later", **{"from": "q", "src_seq": "1"})
        await life.engine.redrives.ended()
        assert life.engine.redrives.get("dead") == RedriveProgress("done", 1, {}, None)


async def test_a_redrive_ends_with_its_topic_and_with_the_daemon(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life, 5)
        redrives = life.engine.redrives
        redrives.start("dead", RedriveWish(rate=(1, 60_000)), anywhere)
        await trio.sleep(0.1)
        await life.engine.topic_lifecycle.delete("dead", if_empty=False)
        await redrives.ended()
        assert redrives.running == 0
        await life.put("dead")
        assert redrives.get("dead").state == "idle"
        for i in range(2):
            await letter(life, i, **{"from": "q", "src_seq": "1"})
        redrives.start("dead", RedriveWish(rate=(1, 60_000)), anywhere)
        await trio.sleep(0.1)
    assert redrives.running == 0


async def test_a_failed_shard_ends_a_redrive_and_the_letters_stay(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    config = settings(wal_shards=2)
    async with living(config, fs=fs, clock=clock, clean=False) as life:
        await life.put("dead", durability="fsync")
        await life.put("q", type="queue", durability="fsync")
        registry = life.engine.registry.topics
        if registry["q"].shard == registry["dead"].shard:
            await life.engine.topic_lifecycle.delete("q", if_empty=False)
            await life.put("q", type="queue", durability="fsync")
        assert registry["q"].shard != registry["dead"].shard
        for i in range(3):
            await letter(life, i, **{"from": "q", "src_seq": "1"})
        await trio.sleep(0.5)
        fs.inject(Fault(error=5, name="fdatasync", path=f"*shard-{registry['q'].shard:02d}/wal*", keep_some=True))
        done = await redrive(life)
        assert (done.state, done.moved) == ("failed", 0)
        assert isinstance(done.error, ApiError)
        assert done.error.code == "read_only"
        assert len(await life.seqs("dead")) == 3
        await letter(life, "more", **{"from": "q", "src_seq": "1"})
    async with living(config, fs=fs, clock=clock) as life:
        dead, jobs = await life.seqs("dead"), await life.seqs("q")
        assert len(dead) == 4, "the Undone frame counts"
        assert jobs == []
        assert (await redrive(life)).moved == 4
        assert len(await life.seqs("q")) == 4


async def test_a_call_may_move_some_letters_by_their_seqs_beside_a_redrive(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life, 6)
        topic = life.engine.registry.topics["dead"]
        life.engine.redrives.start("dead", RedriveWish(most=4), anywhere)
        done = await life.engine.letter_moves.move(topic, [2, 3, 5, 99], may=anywhere)
        await life.engine.redrives.ended()
        assert done.left == {}
        assert set(done.moved) <= {2, 3, 5}
        assert sorted(row["data"] for row in records(await life.read("q"))) == [
            n for n in range(6) if n + 1 not in await life.seqs("dead")
        ]
        assert len(await life.seqs("q")) + len(await life.seqs("dead")) == 6


async def test_a_move_is_one_batch_in_each_log_and_a_decision(autojump_clock: Any) -> None:
    async with living() as life:
        await queue_and_letters(life)
        await redrive(life)
        await trio.sleep(0.1)
        members = [payload["members"] for _, payload in life.frames(FrameType.TRANSACTION)]
        assert len(members) == 2
        assert members[0] == members[1]
        (_, token, same), (_, first, last) = members[0]
        assert token == same >= 1 << 63
        assert (first, last) == (1, 3)
        decisions = [payload for _, payload in life.frames(FrameType.TRANSACTION_DECISION)]
        assert [(one["first"], one["undone"]) for one in decisions] == [(token, False), (1, False)]
        assert not life.engine.registry.common.in_doubt
