"""Tables while other changes of their topic are on their way."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.tables.table_model import record_in
from tests.simulation.disk import Fault, SimFs
from tests.simulation.offload import InlineOffload
from topics.engine.tables.table_trim import TableTrim
from topics.errors import ApiError
from topics.log.block import Projection
from topics.model import AppendRequest, Performance, TransactionRequest
from topics.runtime.offload import Pool
from topics.storage.wal.frames import FrameType

pytestmark = pytest.mark.trio

T = TypeVar("T")
CONFIG = settings(segment_max_events=8, wal_file_bytes=8 << 10, cache_bytes=0)


async def rows(life: Life, topic: str = "t") -> list[tuple[int, Any]]:
    return [(row["$seq"], row["data"]) for row in (await life.all(topic))[0]]


async def test_an_append_counts_a_deletion_on_its_way() -> None:
    offload = HeldOffload()
    async with living(CONFIG, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", keep_per_tag=2)
        await life.append("t", {"data": 1, "tag": "a"}, {"data": 2, "tag": "a"})
        offload.hold()
        deletion = Called(nursery, partial(life.delete, "t", None, after_seq=1))
        await settle()
        append = Called(nursery, partial(life.append, "t", {"data": 3, "tag": "a"}))
        await settle()
        assert not deletion.done
        offload.let_go()
        await settle()
        assert deletion.done
        assert append.done
        assert await rows(life) == [(1, 1), (3, 3)]


async def test_appends_on_their_way_do_not_wait_for_one_another() -> None:
    offload = HeldOffload()
    async with living(CONFIG, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", keep_per_tag=1, durability="fsync")
        offload.hold()
        calls = [Called(nursery, partial(life.append, "t", {"data": i, "tag": "a"})) for i in range(5)]
        await settle()
        assert life.engine.registry.topics["t"].assigned == 5
        offload.let_go()
        await settle()
        assert all(call.done for call in calls)
        assert len(await rows(life)) == 1
        assert (await rows(life))[0][0] == 5


class LateOffload(InlineOffload):
    """Results of reads can be held back after the disk was read."""

    def __init__(self) -> None:
        super().__init__()
        self.late: trio.Event | None = None

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        result = await super().perform(kind, call)
        if kind == Pool.HOT_READ and self.late is not None:
            await self.late.wait()
        return result


async def test_columns_that_were_read_before_a_flag_was_written_do_not_bring_a_record_back() -> None:
    offload = LateOffload()
    async with living(CONFIG, offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", keep_per_tag=1)
        await life.append("t", *[{"data": i, "tag": f"k{i}"} for i in range(20)])
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        span = topic.log.stored.all()[1]
        for one in topic.log.stored.all():
            if one.loaded:
                life.engine.indexes.forget_columns(one)
                one.detach()
        offload.late = trio.Event()
        read = Called(nursery, partial(life.engine.loader.columns, topic, (span,)))
        await settle()
        await life.append("t", {"data": -1, "tag": "k10"})
        late, offload.late = offload.late, None
        await life.compactor.checkpoint()
        assert span.unflagged is None
        assert not span.loaded
        late.set()
        await settle()
        assert read.done
        assert span.loaded
        assert not topic.log.is_live(11)
        assert topic.log.count == 20
        topic.log.check()


async def test_an_undone_transaction_takes_nothing_away() -> None:
    config = settings(wal_shards=2, wal_file_bytes=64 << 10)
    async with living(config, clean=False) as life:
        for name in "abcd":
            await life.put(name, keep_per_tag=1, durability="fsync")
        topics = life.engine.registry.topics
        other = next(name for name in "bcd" if topics[name].shard != topics["a"].shard)
        await life.append("a", {"data": 1, "tag": "x"}, {"data": 2, "tag": "y"})
        life.fs.inject(Fault(error=errno.EIO, name="fdatasync", path=f"*shard-{topics[other].shard:02d}/wal*"))
        appends = [AppendRequest(records=[record_in("x", 3)]), AppendRequest(records=[record_in("x", 4)])]
        request = TransactionRequest(topics=["a", other], appends=appends)
        assert (await refusal(life.engine.transactions.append(request, Performance()))).code == "read_only"
        await settle()
        assert await rows(life, "a") == [(1, 1), (2, 2)]
        await life.append("a", {"data": 5, "tag": "x"})
        assert await rows(life, "a") == [(2, 2), (4, 5)]
        kept = topics["a"].log.kept
        assert kept is not None
        kept.check({"x": [4], "y": [2]}, 2)


async def test_a_start_takes_away_what_an_interrupted_change_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: Any) -> None:
        """As if a crash came before the first slice."""

    fs = SimFs()
    async with living(CONFIG, fs=fs) as life:
        for i in range(3):
            await life.append("t", {"data": i, "tag": "a"}, {"data": 10 + i, "tag": "b"}, {"data": 20 + i})
        with monkeypatch.context() as patch:
            patch.setattr(TableTrim, "trim", nothing)
            await life.put("t", keep_per_tag=1)
        assert len(await rows(life)) == 9
    for _ in range(2):
        async with living(CONFIG, fs=fs) as life:
            await settle()
            assert [data for _, data in await rows(life)] == [20, 21, 2, 12, 22]


@pytest.mark.parametrize("stored", [False, True])
async def test_what_was_taken_away_is_in_the_log_and_not_found_out_again(
    stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        """A start looks for no surplus."""

    monkeypatch.setattr(TableTrim, "_look_at", nothing)
    fs = SimFs()
    async with living(CONFIG, fs=fs) as life:
        await life.put("t", keep_per_tag=2)
        await life.append("t", *[{"data": i, "tag": f"k{i % 4}"} for i in range(12)])
        if stored:
            await life.compactor.checkpoint()
        await life.append("t", {"data": 12, "tag": "k0"}, {"data": None, "tag": "k1"})
        left = await rows(life)
        killed = fs.after_process_kill()
    assert [data for _, data in left] == [6, 7, 8, 10, 11, 12, None]
    async with living(CONFIG, fs=killed) as life:
        await settle()
        assert await rows(life) == left


async def test_a_start_whose_disk_does_not_answer_shows_no_empty_table(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until the table can be made the topic takes no changes, and reads of tags say that they cannot be answered. Then
    what a crash has interrupted is finished."""
    fs = SimFs()

    async def interrupted(*_: Any) -> None:
        raise ApiError("read_only", "a crash")

    async with living(CONFIG, fs=fs, clean=False) as life:
        await life.put("t", keep_per_tag=3)
        await life.append("t", {"data": -1, "tag": "old"}, *[{"data": i, "tag": f"k{i % 5}"} for i in range(25)])
        with monkeypatch.context() as patch:
            patch.setattr(TableTrim, "trim", interrupted)
            assert (await refusal(life.put("t", keep_per_tag=2))).code == "read_only"
        await life.compactor.checkpoint()
        assert [data for _, data in await rows(life)] == [-1, *range(10, 25)]
    fs.inject(Fault(error=errno.ETIMEDOUT, name="pread", path="*.tags", times=None))
    async with living(CONFIG, fs=fs) as life, trio.open_nursery() as nursery:
        latest = life.engine.latest
        assert b"24" in (await latest.one("t", "k4", Projection(), Performance())).records, "it is in the log"
        assert (await refusal(latest.one("t", "old", Projection(), Performance()))).code == "not_ready"
        append = Called(nursery, partial(life.append, "t", {"data": 25, "tag": "k0"}))
        await settle()
        assert not append.done
        fs.faults.clear()
        await trio.sleep(5)
        assert append.done
        assert [data for _, data in await rows(life)] == [-1, *range(16, 26)]
        assert b"-1" in (await latest.one("t", "old", Projection(), Performance())).records


async def test_nulls_of_a_topic_that_has_to_wait_delay_no_other(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(CONFIG) as life:
        for name in "ab":
            await life.put(name, keep_per_tag=1, null_ttl_ms=60_000)
            await life.append(name, {"data": None, "tag": "x"}, {"data": 1, "tag": "y"})
        is_ready, waits = life.engine.deletions.is_ready, trio.Event()

        async def late(topic: Any) -> bool:
            if topic.name == "a":
                await waits.wait()  # for columns on a slow disk, for instance
            return await is_ready(topic)

        monkeypatch.setattr(life.engine.deletions, "is_ready", late)
        for _ in range(3):
            await trio.sleep(61)
            life.engine.expire_unused()
            await settle()
            assert len(await rows(life, "a")) == 2
            assert len(await rows(life, "b")) == 1
        waits.set()
        await settle()
        assert len(await rows(life, "a")) == 1


@pytest.mark.parametrize("discard", ["old", "reject"])
@pytest.mark.parametrize("ends", ["retried", "crashed"])
async def test_caps_that_were_set_with_a_table_hold_whatever_came_in_between(
    discard: str, ends: str, autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The config is in the log before the surplus of tags goes, and caps come last."""
    fs = SimFs()
    wanted = {"keep_per_tag": 2, "cap_records": 5, "discard": discard}

    async def fails(*_: Any) -> None:
        raise ApiError("not_ready", "the disk does not answer")

    async with living(CONFIG, fs=fs, clean=False) as life:
        await life.put("t", durability="fsync")
        await life.append("t", *[{"data": i, "tag": f"k{i % 5}"} for i in range(25)])
        with monkeypatch.context() as patch:
            patch.setattr(TableTrim, "evict", fails)
            assert (await refusal(life.put("t", **wanted))).code == "not_ready"
        assert len(await rows(life)) == 10
        if ends == "retried":
            await life.put("t", **wanted)
            assert [data for _, data in await rows(life)] == list(range(20, 25))
    async with living(CONFIG, fs=fs) as life:
        await settle()
        assert [data for _, data in await rows(life)] == list(range(20, 25))
        await life.put("t", **wanted)
        assert len(life.frames(FrameType.CONFIG_UPDATE)) == (2 if ends == "retried" else 1)
