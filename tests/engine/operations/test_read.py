"""Reads (`docs/spec/api.md` section 5): delivered records, announced gaps, waking of long polls, and reads from
disk."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, records, refusal, settings, settle
from tests.simulation.disk import SimFs
from topics.model import AppendRequest, Performance, RecordIn
from topics.runtime.offload import Pool
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

ODD: list[Any] = [
    {"data": {"data": ',"data":', "meta": ',"meta":{"a":1}'}, "meta": {"data": '},{"$seq":1,"data":'}, "tag": 'q"\\'},
    {"data": '","data":"', "node": ',"data":', "tag": "ü\u2028", "meta": {}},
    {"data": None},
    {"data": [], "tag": "t", "node": "n\n"},
    {"data": "\\\"'\t", "meta": {"k": "\u0000", "ключ": "значение"}},
    {"data": 10**30, "node": "😀"},
]


def shown(record: Any, seq: int, ts: int, *, tags: bool = False, meta: bool = True) -> dict[str, Any]:
    """Return the record as a reader has to get it."""
    out: dict[str, Any] = {"$seq": seq, "$ts": ts, "data": record["data"]}
    if record.get("node"):
        out["$node"] = record["node"]
    if tags and record.get("tag"):
        out["$tag"] = record["tag"]
    if meta and record.get("meta"):
        out["meta"] = record["meta"]
    return out


@pytest.mark.parametrize("cache_bytes", [0, 1500, 1 << 20])
@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_every_projection_from_memory_and_from_disk(
    durability: Any, cache_bytes: int, autojump_clock: Any
) -> None:
    async with living(settings(cache_bytes=cache_bytes)) as life:
        await life.put("t", durability=durability)
        written: list[Any] = []
        for i in range(12):
            batch = [ODD[(i + k) % len(ODD)] for k in range(i % 4 + 1)] if i % 3 else [{"data": i}] * (i + 1)
            await life.append("t", *batch)
            written += batch
        times = [record["$ts"] for record in (await life.all("t"))[0]]
        bodies = {}
        for tags in (False, True):
            for meta in (False, True):
                options = {"include_tags": tags, "include_meta": meta}
                wanted = [shown(r, i + 1, times[i], tags=tags, meta=meta) for i, r in enumerate(written)]
                whole = await life.read("t", **options)
                assert records(whole) == wanted
                bodies[tags, meta] = whole.records
                for start in range(len(written)):
                    answer = await life.read("t", start, limit=3, **options)
                    assert records(answer) == wanted[start : start + 3]
                    assert answer.next_from_seq == min(start + 3, len(written))
                    assert answer.caught_up == (start + 3 >= len(written))
                    assert answer.lag == len(written) - answer.next_from_seq
        if durability != "ephemeral":
            await trio.sleep(0.1)
            life.engine.registry.topics["t"].blocks.clear()
            for (tags, meta), body in bodies.items():
                assert (await life.read("t", include_tags=tags, include_meta=meta)).records == body


async def test_data_from_disk_is_byte_identical(autojump_clock: Any) -> None:
    """Odd white space, number forms and escapes are the client's; nothing normalises them."""
    raw = [b'{ "a" :1.50e+2 , "a":2}', b'"\\u00e9\\/"', b"[ ]", b"-0.0", '"é"'.encode(), b'"\\u007d,\\"data\\":"']
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life:
        request = AppendRequest(records=[RecordIn(data=msgspec.Raw(data)) for data in raw])
        await life.engine.appends.append("t", request, Performance())
        answer = await life.read("t")
        ts = life.engine.registry.topics["t"].last_ts
        assert answer.records == b",".join(
            b'{"$seq":%d,"$ts":%d,"data":%b}' % (i, ts, data) for i, data in enumerate(raw, 1)
        )
    async with living(settings(cache_bytes=0), fs=fs.after_process_kill()) as life:
        assert (await life.read("t")).records == answer.records


async def test_the_cache_stays_within_its_bound(autojump_clock: Any) -> None:
    async with living(settings(cache_bytes=20_000)) as life:
        for i in range(300):
            await life.append(f"t{i % 5}", {"data": "x" * 500, "tag": "t", "meta": {"a": "b"}})
            await life.read(f"t{i % 3}", max(0, i // 5 - 20), include_tags=i % 2 == 0, include_meta=i % 3 == 0)
            assert life.engine.cache.bytes <= 20_000
        actual = sum(block.nbytes for topic in life.engine.registry.topics.values() for block in topic.blocks.blocks)
        assert actual == life.engine.cache.bytes


async def test_the_node_filter(autojump_clock: Any) -> None:
    async with living() as life:
        batch: list[Any] = [{"data": i, "node": ["a", "b", None][i % 3]} for i in range(30)]
        await life.append("t", *batch, node="d")
        for hidden, wanted in [
            ({"a"}, {"b", "d"}),
            ({"a", "b"}, {"d"}),
            ({"d"}, {"a", "b"}),
            ({"x"}, {"a", "b", "d"}),
            ({"a", "b", "d"}, set()),
        ]:
            answer = await life.read("t", nodes=frozenset(hidden))
            assert {record["$node"] for record in records(answer)} == wanted
            assert (answer.next_from_seq, answer.caught_up) == (30, True)
            position, found = 0, []
            for _ in range(100):
                answer = await life.read("t", position, nodes=frozenset(hidden), limit=2, max_batch_bytes=100)
                found += records(answer)
                position = answer.next_from_seq
                if answer.caught_up:
                    break
            assert [r["data"] for r in found] == [i for i in range(30) if (["a", "b", "d"][i % 3]) not in hidden]
        await life.put("t", dedupe_node=False)
        assert (await life.read("t", nodes=frozenset({"a", "b", "d"}))).count == 30


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_max_batch_bytes(cache_bytes: int, autojump_clock: Any) -> None:
    async with living(settings(cache_bytes=cache_bytes)) as life:
        await life.append("t", *["x" * (i * 37 % 400) for i in range(100)])
        whole = (await life.read("t")).records
        sizes = [len(json.dumps(r, separators=(",", ":"))) for r in json.loads(b"[%b]" % whole)]
        for budget in (1, 100, 450, 1000, 5000, len(whole) - 1, len(whole)):
            position, body = 0, []
            while position < 100:
                answer = await life.read("t", position, max_batch_bytes=budget)
                assert answer.count >= 1
                assert len(answer.records) <= budget or answer.count == 1
                if not answer.caught_up:
                    assert len(answer.records) + 1 + sizes[answer.next_from_seq] > budget, "one more would have fitted"
                body.append(answer.records)
                position = answer.next_from_seq
            assert b",".join(body) == whole


async def test_from_seq_past_the_head_and_another_epoch_are_recreated(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        answer = await life.read("t", 5, wait_ms=1000)
        assert answer.tombstone is not None
        assert (answer.tombstone.reason, answer.tombstone.gap_from, answer.tombstone.gap_to) == ("recreated", 1, 0)
        assert answer.next_from_seq == 0
        await life.append("t", 1, 2, 3)
        for answer in (await life.read("t", 4), await life.read("t", 2, epoch=77)):
            assert answer.tombstone is not None
            assert (answer.tombstone.reason, answer.tombstone.gap_from, answer.tombstone.gap_to) == ("recreated", 1, 3)
            assert answer.count == 3
        answer = await life.read("t", 3, epoch=life.engine.registry.topics["t"].id)
        assert (answer.tombstone, answer.count, answer.caught_up) == (None, 0, True)


async def test_a_hole_behind_records_ends_the_answer_before_it(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *range(10))
        log = life.engine.registry.topics["t"].log
        log.add_hole(4, 6, "corrupt")
        log.add_hole(7, 7, "lost")
        life.engine.registry.account(life.engine.registry.topics["t"])
        first = await life.read("t")
        assert ([r["$seq"] for r in records(first)], first.tombstone, first.caught_up) == ([1, 2, 3], None, False)
        second = await life.read("t", first.next_from_seq)
        assert second.tombstone is not None
        assert (second.tombstone.gap_from, second.tombstone.gap_to, second.tombstone.reason) == (4, 6, "corrupt")
        assert (second.count, second.next_from_seq) == (0, 6)
        third = await life.read("t", second.next_from_seq)
        assert third.tombstone is not None
        assert third.tombstone.reason == "lost"
        assert [r["$seq"] for r in records(third)] == [8, 9, 10]
        inside = await life.read("t", 5)
        assert inside.tombstone is not None
        assert (inside.tombstone.gap_from, inside.tombstone.gap_to, inside.tombstone.missed_estimate) == (6, 6, 1)


async def test_a_read_passes_deleted_records_beside_gaps(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *range(10))
        log = life.engine.registry.topics["t"].log
        log.add_hole(5, 6, "corrupt")
        log.add_hole(9, 9, "lost")
        log.delete_seqs([3, 4, 7, 8])
        life.engine.registry.account(life.engine.registry.topics["t"])
        first = await life.read("t")
        assert ([r["$seq"] for r in records(first)], first.tombstone, first.next_from_seq) == ([1, 2], None, 4)
        second = await life.read("t", first.next_from_seq)
        assert second.tombstone is not None
        assert (second.tombstone.gap_from, second.tombstone.gap_to) == (5, 6)
        assert (second.count, second.next_from_seq) == (0, 8)
        third = await life.read("t", second.next_from_seq)
        assert third.tombstone is not None
        assert (third.tombstone.gap_from, third.tombstone.gap_to) == (9, 9)
        assert ([r["$seq"] for r in records(third)], third.caught_up) == ([10], True)


# -- long polls --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_a_long_poll_wakes_at_the_commit_point(durability: Any, autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", durability=durability)
        started = trio.current_time()
        polls = [Called(nursery, lambda: life.read("t", 0, wait_ms=30_000)) for _ in range(3)]
        filtered = Called(nursery, lambda: life.read("t", 0, wait_ms=7_000, nodes=frozenset({"me"})))
        await trio.sleep(2)
        assert not any(poll.done for poll in polls)
        await life.append("t", 1, node="me")
        await settle()
        assert [poll.result.count for poll in polls] == [1, 1, 1]
        assert trio.current_time() - started == pytest.approx(2, abs=0.1)
        await trio.sleep(1)
        assert not filtered.done
        await trio.sleep(5)
        assert (filtered.result.count, filtered.result.next_from_seq) == (0, 1)
        assert trio.current_time() - started == pytest.approx(8, abs=0.2)


async def test_a_long_poll_wakes_for_a_tombstone(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", 1, 2)
        poll = Called(nursery, lambda: life.read("t", 2, wait_ms=30_000))
        await settle()
        await life.put("t", cap_bytes=5)
        await life.append("t", "x" * 50)
        await settle()
        assert poll.result.tombstone is not None
        assert (poll.result.tombstone.gap_from, poll.result.tombstone.gap_to) == (3, 3)


async def test_a_long_poll_ends_with_503_when_the_daemon_drains(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", 1)
        poll = Called(nursery, lambda: life.read("t", 1, wait_ms=30_000))
        await settle()
        life.engine.start_draining()
        await settle()
        assert poll.error is not None
        assert (poll.error.status, poll.error.code) == (503, "shutting_down")


async def test_reads_touch_and_states_may_not(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", 1)
        state = await life.engine.topic_states.of("t", touch=False)
        assert (state.last_read_ts, state.effective_priority) == (None, 0)
        assert state.last_write_ts is not None
        await life.read("t")
        assert (await life.engine.topic_states.of("t", touch=False)).effective_priority == 500
        await trio.sleep(30)
        assert (await life.engine.topic_states.of("t", touch=False)).effective_priority == 250
        assert (await life.engine.topic_states.of("t", touch=True)).effective_priority == 500
        await trio.sleep(400)
        assert (await life.engine.topic_states.page("", None, 1))[0][0].effective_priority == 0


# -- the disk under a running daemon -----------------------------------------------------------------------------------


def frame_at(life: Life, seq: int) -> Any:
    return next(frame for frame, _ in life.frames(FrameType.APPEND) if frame.seq == seq)


async def test_damaged_bytes_are_a_corrupt_tombstone_and_never_data(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life:
        await life.append("t", *[{"data": f"record {i}", "tag": "a"} for i in range(1, 10)])
        await trio.sleep(0.1)
        expected = {record["$seq"]: record for record in (await life.all("t"))[0]}
        path = life.engine.store.writers[0].file.path
        damaged = [(frame_at(life, seq), where) for seq, where in [(3, 10), (4, 42), (7, -1), (9, 0)]]
        for frame, where in damaged:
            fs.flip_bit(path, frame.offset + where if where >= 0 else frame.end + where, 3)
        for _ in range(2):
            found, gaps = await life.all("t")
            assert gaps == [(3, 4, "corrupt"), (7, 7, "corrupt"), (9, 9, "corrupt")]
            assert found == [expected[seq] for seq in (1, 2, 5, 6, 8)]
        state = await life.engine.topic_states.of("t", touch=False)
        assert (state.count, state.head_seq) == (5, 9)
        assert (await life.append("t", 10)).first_seq == 10
        life.check()


async def test_a_damaged_first_record(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=0), fs=fs) as life:
        await life.append("t", 1, 2, 3)
        await trio.sleep(0.1)
        fs.flip_bit(life.engine.store.writers[0].file.path, frame_at(life, 1).offset + 40, 0)
        assert (await life.all("t"))[1] == [(1, 1, "corrupt")]
        assert await life.seqs("t", 1) == [2, 3]


async def test_eviction_while_a_read_waits_for_the_disk_is_announced(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", cap_records=10)
        await life.append("t", *range(1, 11))
        await trio.sleep(0.1)
        offload.hold(Pool.HOT_READ)
        read = Called(nursery, lambda: life.read("t"))
        await settle()
        await life.append("t", *range(11, 16))
        offload.let_go(Pool.HOT_READ)
        await settle()
        answer = read.result
        seqs = [record["$seq"] for record in records(answer)]
        if answer.tombstone is None:
            assert seqs == list(range(1, answer.next_from_seq + 1))
        else:
            assert (answer.tombstone.gap_from, answer.tombstone.gap_to) == (1, 5)
            assert seqs == list(range(6, answer.next_from_seq + 1))


async def test_a_file_that_is_dropped_while_it_is_about_to_be_read_loses_nothing(autojump_clock: Any) -> None:
    """The daemon used to declare the records damaged because the file was missing, although they were in a segment."""
    fs, offload = SimFs(), HeldOffload()
    config = settings(cache_bytes=0, wal_file_bytes=64 << 10)
    async with living(config, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", *range(10))
        await trio.sleep(0.1)
        offload.hold(Pool.HOT_READ)
        read = Called(nursery, lambda: life.read("t"))
        await settle()
        for _ in range(3):
            await life.append("u", *["x" * 1000] * 60)
            await life.compactor.checkpoint()
        assert not fs.exists("/data/wal/wal-00000000000000000000.log")
        offload.let_go(Pool.HOT_READ)
        await settle()
        assert [record["data"] for record in records(read.result)] == list(range(10))
        assert read.result.tombstone is None


async def test_a_topic_deleted_while_a_read_waits_for_the_disk(autojump_clock: Any) -> None:
    offload = HeldOffload()
    async with living(settings(cache_bytes=0), offload=offload) as life, trio.open_nursery() as nursery:
        await life.append("t", *range(1, 11))
        await trio.sleep(0.1)
        offload.hold(Pool.HOT_READ)
        read = Called(nursery, lambda: life.read("t"))
        await settle()
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        offload.let_go(Pool.HOT_READ)
        await settle()
        assert read.error is not None
        assert read.error.code == "topic_not_found"


async def test_unknown_topics(autojump_clock: Any) -> None:
    async with living() as life:
        for call in (life.read("t"), life.delete("t", before_seq=1)):
            error = await refusal(call)
            assert (error.status, error.detail) == (404, {"topic": "t"})
        assert life.engine.registry.topics == {}


async def test_reads_beside_checkpoints_that_drop_files(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(settings(cache_bytes=5000, wal_file_bytes=64 << 10), fs=fs) as life:
        await life.put("t", cap_records=200)
        files: set[str] = set()

        async def write() -> None:
            for i in range(60):
                await life.append("t", *[f"{i} {k} " + "x" * 300 for k in range(20)])
                files.update(path for path in fs.tree() if path.endswith(".log"))
                await trio.sleep(0.01)

        async def read() -> None:
            position = 0
            while position < 1200:
                answer = await life.read("t", position, limit=50, wait_ms=1000)
                expected = position + 1
                if answer.tombstone is not None:
                    assert answer.tombstone.reason == "cap"
                    assert answer.tombstone.gap_from == expected
                    expected = answer.tombstone.gap_to + 1
                assert [r["$seq"] for r in records(answer)] == list(range(expected, answer.next_from_seq + 1))
                position = answer.next_from_seq

        async def checkpoint() -> None:
            for _ in range(20):
                await trio.sleep(0.03)
                await life.compactor.checkpoint()

        async with trio.open_nursery() as nursery:
            for task in (write, read, read, checkpoint):
                nursery.start_soon(task)
        left = {path for path in fs.tree() if path.endswith(".log")}
        assert len(left) < len(files), "files with nothing in them go"
        found, gaps = await life.all("t")
        assert [r["$seq"] for r in found] == list(range(1001, 1201))
        assert gaps == [(1, 1000, "cap")]
