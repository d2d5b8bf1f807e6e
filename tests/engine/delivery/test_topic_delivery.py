"""What is due of a topic, made into frames: shared, in order, from memory and from the disk, under pressure."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.engine.delivery.client import Connection, Streams, held_bytes
from tests.engine.life import Called, HeldOffload, Life, living, settings, settle
from tests.simulation.disk import Fault
from topics.engine.delivery.outbox import OUTBOX_BYTES
from topics.engine.topic import Topic
from topics.model import WatchRequest, WatchStart
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio

COLD_READS = settings(cache_bytes=0, segment_max_events=8, segment_max_age_ms=0, hot_retain_segments=0)


async def fill(life: Life, topic: str, records: int, size: int = 0, **options: Any) -> None:
    """Append so many records in batches of a thousand."""
    for first in range(1, records + 1, 1000):
        batch = [{"data": "x" * size} if size else i for i in range(first, min(first + 1000, records + 1))]
        await life.append(topic, *batch, **options)


async def forget_payloads(life: Life, *topics: str) -> None:
    """What is on disk is in memory no more."""
    await trio.sleep(0.1)
    for topic in topics:
        life.engine.registry.topics[topic].blocks.clear()


@contextmanager
def held(disk: HeldOffload, kind: Pool) -> Iterator[None]:
    """Calls of a kind wait; let go however the test ends, as they cannot be cancelled."""
    disk.hold(kind)
    try:
        yield
    finally:
        disk.let_go(kind)


# --- a frame ----------------------------------------------------------------------------------------------------------


async def test_the_past_is_a_frame_and_then_it_is_told_that_that_was_all(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, 2, 3)
    reader = await streams.watch("t")
    await settle()
    assert reader.kinds() == ["record", "caught_up"]
    frame, end = reader.frames
    assert (frame.from_seq, frame.to_seq, frame.head_seq, frame.seqs) == (0, 3, 3, [1, 2, 3])
    assert end.head_seq == 3


async def test_at_the_tail_it_is_caught_up_at_once(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1, 2, 3)
    reader = await streams.watch("t", start=None)
    await settle()
    assert [(frame.kind, frame.head_seq) for frame in reader.frames] == [("caught_up", 3)]
    await life.append("t", 4)
    await settle()
    assert (reader.frames[-1].from_seq, reader.frames[-1].to_seq, reader.seqs("t")) == (3, 4, [4])


async def test_an_append_reaches_a_watcher_without_time_passing(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", durability="memory")
    reader = await streams.watch("t")
    began = trio.current_time()
    for n in range(1, 6):
        await life.append("t", n)
        await settle()
        assert reader.seqs("t") == list(range(1, n + 1))
    assert trio.current_time() == began
    assert reader.kinds().count("caught_up") == 1


async def test_a_frame_ends_at_the_limit_and_says_how_far_it_goes(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await fill(life, "t", 10)
    reader = await streams.watch("t", limit=4)
    await settle()
    spans = [(frame.from_seq, frame.to_seq) for frame in reader.of("t", "record")]
    assert spans == [(0, 4), (4, 8), (8, 10)]
    assert reader.kinds() == ["record"] * 3 + ["caught_up"]


async def test_a_frame_ends_at_its_bytes_but_holds_a_record(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await fill(life, "t", 3, size=500)
    reader = await streams.watch("t", max_batch_bytes=100)
    await settle()
    assert [frame.seqs for frame in reader.of("t", "record")] == [[1], [2], [3]]


async def test_what_was_filtered_or_deleted_is_inside_the_next_frame(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, {"data": 2, "node": "me"}, {"data": 3, "tag": "x"})
    await life.delete("t", match="x")
    reader = await streams.watch("t", nodes=["me"])
    await settle()
    await life.append("t", {"data": 4, "node": "me"})
    await settle()
    assert reader.kinds() == ["record", "caught_up"]
    assert [(frame.from_seq, frame.to_seq, frame.seqs) for frame in reader.of("t", "record")] == [(0, 3, [1])]
    await life.append("t", 5)
    await settle()
    last = reader.frames[-1]
    assert (last.kind, last.from_seq, last.to_seq, last.seqs) == ("record", 3, 5, [5])


async def test_a_change_from_backlog_to_live_is_told_again(life: Life, streams: Streams, autojump_clock: Any) -> None:
    reader = await streams.watch("t0", "t", limit=2) if await life.append("t0", 1) and await life.put("t") else None
    assert reader is not None
    await settle()
    await life.append("t", 1, 2, 3)
    await settle()
    assert reader.kinds("t") == ["caught_up", "record", "record", "caught_up"]


@pytest.mark.parametrize(("include_data", "include_tags"), [(True, True), (False, True), (True, False)])
async def test_a_projection_leaves_out_what_is_not_wanted(
    include_data: bool, include_tags: bool, life: Life, nursery: trio.Nursery, autojump_clock: Any
) -> None:
    await life.append("t", {"data": {"a": 1}, "tag": "x"})
    raw: list[bytes] = []

    class Format(Streams(life, nursery).form.__class__):  # type: ignore[misc]
        def record(self, topic: str, records: bytes, from_seq: int, to_seq: int, head_seq: int) -> bytes:
            raw.append(records)
            return super().record(topic, b"", from_seq, to_seq, head_seq)  # type: ignore[no-any-return]

    streams = Streams(life, nursery)
    streams.form = Format()
    await streams.watch("t", include_data=include_data, include_tags=include_tags)
    await settle()
    assert (b'"data":{"a": 1}' in raw[0] or b'"data":{"a":1}' in raw[0]) == include_data
    assert (b'"$tag":"x"' in raw[0]) == include_tags


# --- gaps -------------------------------------------------------------------------------------------------------------


async def test_who_connects_too_late_is_told_from_seq_too_old(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", cap_records=2)
    await life.append("t", 1)
    await life.append("t", 2, 3, 4)
    reader = await streams.watch("t")
    await settle()
    gap, rest, _ = reader.frames
    assert (gap.reason, gap.gap_from, gap.gap_to, gap.earliest_seq, gap.head_seq) == ("from_seq_too_old", 1, 2, 3, 4)
    assert (rest.from_seq, rest.to_seq, rest.seqs) == (2, 4, [3, 4])


async def test_what_retention_takes_from_a_connected_reader_is_told_with_its_cause(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", cap_records=2)
    reader = await streams.watch("t")
    await settle()
    reader.stop_reading()
    await life.append("t", 1)
    await settle()
    # What is behind the frame in flight is dropped after five seconds, and evicted before it is read again.
    await life.append("t", 2)
    await trio.sleep(6)
    await life.append("t", 3, 4, 5)
    reader.go_on_reading()
    await settle()
    told = [(frame.kind, frame.gap_from or frame.from_seq, frame.gap_to or frame.to_seq) for frame in reader.frames]
    assert told[1:] == [("record", 0, 1), ("tombstone", 2, 3), ("record", 3, 5), ("caught_up", 0, 0)]
    assert reader.of("t", "tombstone")[0].reason == "cap"


async def test_what_has_expired_is_not_delivered_to_anybody(life: Life, streams: Streams, autojump_clock: Any) -> None:
    """A frame that was made for one watcher must not be given to another when its records have expired meanwhile."""
    await life.put("t", ttl_ms=1000)
    early = [await streams.watch("t") for _ in range(2)]
    await settle()
    await life.append("t", 1)
    await settle()
    assert [reader.seqs("t") for reader in early] == [[1], [1]]
    await trio.sleep(10)
    late = await streams.watch("t")
    await settle()
    assert late.seqs("t") == []
    assert [(frame.gap_from, frame.gap_to) for frame in late.of("t", "tombstone")] == [(1, 1)]


# --- shared frames ----------------------------------------------------------------------------------------------------


async def test_a_frame_is_encoded_once_for_all_who_want_the_same(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t")
    readers = [await streams.watch("t") for _ in range(20)]
    await settle()
    streams.form.made.clear()
    for n in range(5):
        await life.append("t", n)
        await settle()
    assert streams.form.made["record"] == 5
    assert all(reader.seqs("t") == [1, 2, 3, 4, 5] for reader in readers)


async def test_watchers_of_different_wishes_get_frames_of_their_own(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t")
    plain = [await streams.watch("t") for _ in range(3)]
    tagged = [await streams.watch("t", include_tags=True) for _ in range(3)]
    others = [await streams.watch("t", nodes=["n"]) for _ in range(3)]
    await settle()
    streams.form.made.clear()
    await life.append("t", {"data": 1, "tag": "x", "node": "n"}, 2)
    await settle()
    assert streams.form.made["record"] == 3
    assert [reader.of("t", "record")[0].records[0].tag for reader in plain + tagged] == [None] * 3 + ["x"] * 3
    assert [reader.seqs("t") for reader in others] == [[2]] * 3


async def test_a_shared_frame_does_not_leave_a_hole_where_something_was_filtered(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    """Two watchers have examined the same, and were not told the same."""
    await life.append("t", 1)
    early = await streams.watch("t", nodes=["me"])
    await settle()
    await life.append("t", {"data": 2, "node": "me"}, {"data": 3, "node": "me"})
    await settle()
    late = [await streams.watch("t", nodes=["me"], start=3) for _ in range(2)]
    await settle()
    await life.append("t", 4)
    await settle()
    spans = [[(frame.from_seq, frame.to_seq) for frame in reader.of("t", "record")][-1] for reader in (early, *late)]
    assert spans == [(1, 4), (3, 4), (3, 4)]


async def test_a_shared_frame_is_made_anew_after_a_deletion(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1, {"data": 2, "tag": "x"}, 3)
    one, other = await streams.watch("t"), await streams.watch("t")
    await settle()
    await life.delete("t", match="x")
    later = await streams.watch("t")
    await settle()
    assert [reader.seqs("t") for reader in (one, other, later)] == [[1, 2, 3], [1, 2, 3], [1, 3]]


async def test_a_shared_frame_is_made_anew_when_node_filtering_changes(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1, {"data": 2, "node": "n"})
    first = [await streams.watch("t", nodes=["n"]) for _ in range(2)]
    await settle()
    await life.put("t", dedupe_node=False)
    second = [await streams.watch("t", nodes=["n"]) for _ in range(2)]
    await settle()
    assert [reader.seqs("t") for reader in first + second] == [[1], [1], [1, 2], [1, 2]]


# --- slow clients -----------------------------------------------------------------------------------------------------


async def test_a_stopped_watcher_does_not_cost_the_others_a_frame(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", durability="memory")
    stopped = await streams.watch("t", stopped=True)
    readers = [await streams.watch("t") for _ in range(3)]
    await settle()
    began = trio.current_time()
    for n in range(1, 201):
        await life.append("t", "x" * 20_000)
        await settle()
        assert all(reader.of("t", "record")[-1].seqs == [n] for reader in readers)
        assert held_bytes(stopped.outbox) <= OUTBOX_BYTES
    assert trio.current_time() == began
    assert all(len(reader.of("t", "record")) == 200 for reader in readers)
    stopped.go_on_reading()
    await settle()
    assert stopped.seqs("t") == list(range(1, 201))


async def test_while_a_connection_is_full_batches_become_larger(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", durability="memory")
    reader = await streams.watch("t", stopped=True)
    for _ in range(300):
        await life.append("t", "x" * 10_000)
        await settle()
    reader.go_on_reading()
    await settle()
    sizes = [len(frame.seqs) for frame in reader.of("t", "record")]
    assert sum(sizes) == 300
    assert max(sizes) > 10
    assert len(sizes) < 200


async def test_many_watchers_with_large_frames_do_not_cost_too_much_for_one_turn(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    """A turn of a topic may not cost more than the ready set takes for one."""
    await fill(life, "t", 1000)
    await life.append("other", 1)
    sessions = [streams.session("t", start=None if n == 0 else 0, limit=1000)[0] for n in range(40)]
    readers = [await streams.connect(session) for session in sessions]
    await settle()
    assert all(len(reader.seqs("t")) == 1000 for reader in readers[1:])


# --- from the disk ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", [1, 7, 256])
async def test_the_past_is_read_from_disk_frame_by_frame(
    limit: int, autojump_clock: Any, nursery: trio.Nursery
) -> None:
    async with living(COLD_READS) as life:
        await fill(life, "t", 50)
        await life.compactor.checkpoint()
        await forget_payloads(life, "t")
        reader = await Streams(life, nursery).watch("t", limit=limit)
        await trio.sleep(1)
        assert reader.seqs("t") == list(range(1, 51))
        assert reader.kinds()[-1] == "caught_up"


@pytest.mark.parametrize("kind", [Pool.HOT_READ, Pool.COLD_READ])
async def test_a_reader_of_the_disk_holds_up_nobody(kind: Pool, autojump_clock: Any, nursery: trio.Nursery) -> None:
    disk = HeldOffload()
    config = replace(COLD_READS, cache_bytes=1 << 20, cold_dir=Path("/cold") if kind is Pool.COLD_READ else None)
    async with living(config, offload=disk) as life:
        streams = Streams(life, nursery)
        await fill(life, "t", 50)
        await life.append("live", 1)
        await life.compactor.checkpoint()
        if kind is Pool.COLD_READ:
            await life.engine.relocator.pass_over()
        await forget_payloads(life, "t")
        tail = await streams.watch("t", "live", start=None)
        await settle()
        with held(disk, kind):
            cold = await streams.watch("t", "live")
            await trio.sleep(1)
            assert cold.of("t") == []
            await life.append("t", 51)
            await life.append("live", 2)
            await settle()
            assert tail.seqs("t") == [51]
            assert tail.seqs("live") == [2]
            assert cold.seqs("live") == [1, 2]  # its own connection is not held up either, where memory will do
        await trio.sleep(3)
        assert cold.seqs("t") == list(range(1, 52))
        assert cold.seqs("live") == [1, 2]


async def test_a_reader_of_the_disk_is_cut_off_in_the_middle_without_a_trace(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    disk = HeldOffload()
    async with living(COLD_READS, offload=disk) as life:
        streams = Streams(life, nursery)
        await fill(life, "t", 20)
        await forget_payloads(life, "t")
        session, _ = streams.session("t", limit=5)
        with held(disk, Pool.HOT_READ):
            first = await streams.connect(session)
            await settle()
            first.cut()
            await settle()
            second = await streams.connect(session)
        await trio.sleep(1)
        assert first.received == []
        assert second.seqs("t") == list(range(1, 21))


async def test_a_topic_that_goes_while_its_records_are_read_is_told_once(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    disk = HeldOffload()
    async with living(COLD_READS, offload=disk) as life:
        streams = Streams(life, nursery)
        await fill(life, "t", 20)
        await life.append("other", 1)
        await forget_payloads(life, "t")
        with held(disk, Pool.HOT_READ):
            reader = await streams.watch("t", "other")
            await settle()
            await life.engine.topic_lifecycle.delete("t", if_empty=False)
            await settle()
        await trio.sleep(2)
        assert reader.kinds("t") == ["topic_deleted"]


async def test_a_disk_that_does_not_answer_is_asked_again(autojump_clock: Any, nursery: trio.Nursery) -> None:
    async with living(COLD_READS) as life:
        await fill(life, "t", 5)
        await forget_payloads(life, "t")
        fault = Fault(name="pread", error=5, times=None)
        life.fs.faults.append(fault)
        reader = await Streams(life, nursery).watch("t")
        await trio.sleep(3.5)
        assert reader.kinds() == ["held_up"]
        assert reader.received[0].frame.topics == ["t"]
        life.fs.faults.remove(fault)
        await trio.sleep(2)
        assert reader.seqs("t") == [1, 2, 3, 4, 5]
        assert "tombstone" not in reader.kinds()


async def test_each_outage_of_the_disk_is_told_once_to_each_connection(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    async with living(COLD_READS) as life:
        streams = Streams(life, nursery)
        for topic in ("t", "u"):
            await fill(life, topic, 5)
            await forget_payloads(life, topic)
        fault = Fault(name="pread", error=5, times=None)
        life.fs.faults.append(fault)
        reader, other = await streams.watch("t", "u"), await streams.watch("t")
        await trio.sleep(10)
        assert sorted(topic for received in reader.received for topic in received.frame.topics) == ["t", "u"]
        assert other.kinds() == ["held_up"]
        life.fs.faults.remove(fault)
        await trio.sleep(5)
        for connection in (reader, other):
            assert connection.seqs("t") == [1, 2, 3, 4, 5]
            assert "tombstone" not in connection.kinds()
        await forget_payloads(life, "t")
        life.fs.faults.append(fault)
        again = await streams.watch("t")
        await trio.sleep(10)
        assert again.kinds() == ["held_up"]
        life.fs.faults.remove(fault)
        await trio.sleep(5)
        assert again.seqs("t") == [1, 2, 3, 4, 5]


# --- strong -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
async def test_strong_waits_for_the_sync(durability: Any, autojump_clock: Any, nursery: trio.Nursery) -> None:
    disk = HeldOffload()
    async with living(offload=disk) as life:
        streams = Streams(life, nursery)
        await life.put("t", durability=durability)
        strong, eventual = await streams.watch("t", consistency="strong"), await streams.watch("t")
        await settle()
        topic = life.engine.registry.topics["t"]
        syncs: list[int] = []
        life.fs.subscribe(lambda op: syncs.append(topic.log.head_seq) if op.name == "fdatasync" else None)
        with held(disk, Pool.WAL):
            append = Called(nursery, lambda: life.append("t", 1))
            await trio.sleep(1)
            assert strong.seqs("t") == []
            assert eventual.seqs("t") == ([1] if durability == "memory" else [])
        await trio.sleep(2)
        assert append.done
        assert syncs
        assert strong.seqs("t") == eventual.seqs("t") == [1]


async def test_strong_is_eventual_on_an_ephemeral_topic(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.put("t", durability="ephemeral")
    reader = await streams.watch("t", consistency="strong")
    await life.append("t", 1)
    await settle()
    assert reader.seqs("t") == [1]


async def test_strong_goes_on_when_a_topic_becomes_ephemeral_and_back(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("t", durability="disk")
    reader = await streams.watch("t", consistency="strong")
    wanted = []
    for n, durability in enumerate(["disk", "ephemeral", "memory", "fsync", "ephemeral", "disk"], 1):
        await life.put("t", durability=durability)
        await life.append("t", n)
        wanted.append(n)
        await trio.sleep(1)
        assert reader.seqs("t") == wanted


# --- pressure ---------------------------------------------------------------------------------------------------------


async def test_the_lowest_band_is_told_that_it_waits_and_loses_nothing(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.put("low", priority=-1)
    await life.put("high", priority=0)
    reader = await streams.watch("low", "high")
    await settle()
    scheduler = life.engine.delivery.scheduler
    scheduler.pause_lowest()
    life.engine.delivery.announce_pause()
    for n in range(3):
        await life.append("low", n)
        await life.append("high", n)
    await trio.sleep(20)
    assert [frame.topics for frame in reader.frames if frame.kind == "paced"] == [["low"]]
    assert reader.seqs("low") == []
    assert reader.seqs("high") == [1, 2, 3]
    scheduler.resume_lowest()
    await settle()
    assert reader.seqs("low") == [1, 2, 3]


async def test_a_paused_topic_on_disk_does_not_hold_up_the_others_of_its_connection(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    disk = HeldOffload()
    async with living(COLD_READS, offload=disk) as life:
        streams, scheduler = Streams(life, nursery), life.engine.delivery.scheduler
        for name in ("low1", "low2", "high"):
            await life.put(name, priority=10 if name == "high" else -10)
            await fill(life, name, 20)
        await forget_payloads(life, "low1", "low2", "high")
        with held(disk, Pool.HOT_READ):
            reader = await streams.watch("low1", "low2", "high", limit=5)
            await settle()
            scheduler.pause_lowest()
        await trio.sleep(20)
        assert reader.seqs("high") == list(range(1, 21))
        scheduler.resume_lowest()
        await trio.sleep(20)
        assert reader.seqs("low1") == reader.seqs("low2") == list(range(1, 21))


@pytest.mark.parametrize("strong", [False, True])
async def test_a_connection_that_ends_while_its_topic_is_paused_leaves_nothing(
    strong: bool, autojump_clock: Any, nursery: trio.Nursery
) -> None:
    disk = HeldOffload()
    async with living(COLD_READS, offload=disk) as life:
        streams, scheduler = Streams(life, nursery), life.engine.delivery.scheduler
        for name in ("low1", "low2"):
            await life.put(name, priority=-10)
            await fill(life, name, 20)
        await forget_payloads(life, "low1", "low2")
        session, _ = streams.session("low1", "low2", limit=5, consistency="strong" if strong else "eventual")
        with held(disk, Pool.HOT_READ):
            first = await streams.connect(session)
            await settle()
            scheduler.pause_lowest()
        await trio.sleep(1)
        first.cut()
        await settle()
        scheduler.resume_lowest()
        await trio.sleep(1)
        second = await streams.connect(session)
        await trio.sleep(1)
        for name in ("low1", "low2"):
            assert first.seqs(name) + second.seqs(name) == list(range(1, 21))


# --- who follows ------------------------------------------------------------------------------------------------------


async def test_a_topic_that_nobody_follows_keeps_nothing_for_it(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    await life.append("t", 1)
    topic = life.engine.registry.topics["t"]
    readers: list[Connection] = [await streams.watch("t") for _ in range(2)]
    poll = Called(streams.nursery, lambda: life.read("t", 1, wait_ms=1000))
    await settle()
    assert topic.audience is not None
    readers[0].cut()
    await settle()
    assert topic.audience is not None
    readers[1].cut()
    await trio.sleep(0.5)
    assert topic.audience is not None
    await life.append("t", 2)
    await settle()
    assert poll.done
    assert topic.audience is None


async def test_a_socket_that_unsubscribes_follows_no_more(life: Life, streams: Streams, autojump_clock: Any) -> None:
    await life.append("t", 1)
    watch_sessions, socket = life.engine.watch_sessions, streams.socket()
    streams.subscribe(socket, streams.resolve(socket, "t"))
    await settle()
    assert socket.seqs("t") == [1]
    assert watch_sessions.unsubscribe(socket.outbox, "t")
    assert not watch_sessions.unsubscribe(socket.outbox, "t")
    assert life.engine.registry.topics["t"].audience is None
    await life.append("t", 2)
    await settle()
    assert socket.seqs("t") == [1]


async def test_nothing_keeps_a_deleted_topic(life: Life, streams: Streams, autojump_clock: Any) -> None:
    """Not the session that goes on with its other topics, and not the scheduler."""
    await life.append("t", 1)
    await life.append("other", 1)
    reader = await streams.watch("t", "other")
    socket = streams.socket()
    streams.subscribe(socket, streams.resolve(socket, "t", "other"))
    await settle()
    gone = life.engine.registry.topics["t"].id
    await life.engine.topic_lifecycle.delete("t", if_empty=False)
    await trio.sleep(1)
    assert reader.kinds("t")[-1] == socket.kinds("t")[-1] == "topic_deleted"
    await life.append("other", 2)
    await trio.sleep(1)
    gc.collect()
    assert not [one for one in gc.get_objects() if isinstance(one, Topic) and one.id == gone]


# --- topics that are not there yet ------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_a_topic_that_is_waited_for_is_delivered_when_it_is_made(
    life: Life, streams: Streams, autojump_clock: Any
) -> None:
    watch_sessions = life.engine.watch_sessions
    wanted = WatchRequest(topics={"t": WatchStart(tail=True)}, create=True)
    waiting, given_up = [
        await streams.connect(watch_sessions.stream_of("t", wanted, last_id)) for last_id in (None, None)
    ]
    await settle()
    assert (waiting.open, waiting.received) == (True, [])
    assert "t" not in life.engine.registry.topics
    given_up.cut()
    await settle()
    await life.append("t", 1, 2)
    await settle()
    assert waiting.seqs("t") == [1, 2]
    assert given_up.seqs("t") == []
