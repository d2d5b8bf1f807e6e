"""Large batches are encoded in pieces: the stored and read bytes are the same as if they were encoded in one step, and
other changes of the topic come before or after the batch."""

from __future__ import annotations

import json
from functools import partial
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.life import Called, Life, living, settings, settle
from tests.runtime.test_turns import Passes
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.engine.operations import append, large_batches, transactions
from topics.engine.operations.large_batches import LargeBatch
from topics.engine.record_columns import AppendColumns, columns_of, encode_blocks, utf8
from topics.engine.topic import CommitPoint, Topic
from topics.model import AppendRequest, CheckedAppend, Performance, RecordIn, TransactionRequest, TransactionResult
from topics.storage.wal import frames

WIDE = settings(max_batch_records=10_000, max_record_bytes=1 << 20)
SIZE = 40


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (append, transactions):
        monkeypatch.setattr(module, "LARGE_BATCH_BYTES", 20_000)
        monkeypatch.setattr(module, "COMMIT_TURN_BYTES", 10_000)
    monkeypatch.setattr(large_batches, "PIECE_BYTES", 2_000)
    monkeypatch.setattr(large_batches, "PIECE_RECORDS", 7)


def large(count: int = 200, **parts: Any) -> list[Any]:
    return [{"data": {"n": n, "x": "x" * (n % SIZE)}, **parts} for n in range(count)]


async def values(life: Life, name: str = "t") -> list[Any]:
    found, gaps = await life.all(name)
    assert gaps == []
    return [record["data"] for record in found]


# --- the same as in one step ------------------------------------------------------------------------------------------

some_text = st.one_of(st.none(), st.sampled_from(["a", "bé", '"q"', "x" * 50]))
some_meta = st.one_of(st.none(), st.dictionaries(st.sampled_from("ab"), st.text(max_size=5), max_size=2))
record = st.builds(
    lambda size, tag, node, meta: RecordIn(data=b'"' + b"x" * size + b'"', tag=tag, node=node, meta=meta),
    st.integers(0, 3000),
    some_text,
    some_text,
    some_meta,
)


class Target:
    """The fields of a topic that an encoder reads."""

    def __init__(self, commit_point: CommitPoint) -> None:
        self.id, self.assigned, self.last_ts, self.ephemeral = 7, 98, 1000, False
        self.commit_point = commit_point


def whole(batch: AppendColumns, durable: bool, closes_batch: bool) -> frames.AppendFrames:
    return frames.encode_appends(
        7,
        99,
        1001,
        batch.datas,
        nodes=utf8(batch.nodes),
        tags=utf8(batch.tags),
        metas=batch.metas,
        durable=durable,
        closes_batch=closes_batch,
    )


@given(st.lists(record, min_size=1, max_size=40), st.booleans(), st.booleans(), st.booleans())
def test_the_frames_and_blocks_are_those_of_one_step(
    records: list[RecordIn], durable: bool, closes_batch: bool, in_transaction: bool
) -> None:
    closes_batch = closes_batch and not in_transaction
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(large_batches, "PIECE_BYTES", 2_000)
        patch.setattr(large_batches, "PIECE_RECORDS", 7)
        batch = columns_of(AppendRequest(records=records))
        topic: Any = Target(CommitPoint.SYNCED if durable else CommitPoint.WRITTEN)
        made = LargeBatch(topic, batch, 1001, in_transaction=in_transaction)
        while not made.is_ready:
            assert not made.fits(topic)
            made.encode_piece()
        assert made.fits(topic)
        assert made._encoded == len(made._pieces) - (not in_transaction)
        expected = whole(batch, durable or in_transaction, closes_batch)
        found = made.frames(closes_batch=closes_batch)
    assert list(found.data.bodies) == list(expected.data.bodies)
    assert len(found.data) == len(expected.data)
    assert found[1:] == expected[1:]
    blocks = made.blocks()
    assert [block.first_seq for block in blocks] == [99, *(block.last_seq + 1 for block in blocks[:-1])]
    [one] = encode_blocks(99, 1001, batch.datas, batch.nodes, batch.tags, batch.metas, pinned=False)
    assert b"".join(bytes(block.body) for block in blocks) == bytes(one.body)
    for seq in range(99, 99 + len(records)):
        [block] = [block for block in blocks if block.first_seq <= seq <= block.last_seq]
        assert block.parts_of(seq) == one.parts_of(seq)
    assert max(map(len, (batch.datas[piece] for piece in made._pieces))) <= 7


@pytest.mark.parametrize(
    "change",
    [{"assigned": 99}, {"last_ts": 1002}, {"commit_point": CommitPoint.SYNCED}, {"ephemeral": True}],
    ids=lambda change: next(iter(change)),
)
def test_a_batch_does_not_fit_once_the_topic_has_changed(change: dict[str, Any]) -> None:
    topic: Any = Target(CommitPoint.WRITTEN)
    made = LargeBatch(topic, columns_of(AppendRequest(records=[RecordIn(data=b"1")])), 1001)  # type: ignore[arg-type]
    assert made.fits(topic)
    assert not made.fits(Target(CommitPoint.WRITTEN))  # type: ignore[arg-type]
    for name, value in change.items():
        setattr(topic, name, value)
    assert not made.fits(topic)


# --- in an engine -----------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
async def test_a_large_batch_is_read_back_and_survives_a_restart(durability: str, autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    batch = large(tag="t", node="n", meta={"a": "b"})
    async with living(WIDE, fs=fs, clock=clock) as life:
        await life.put("t", durability=durability)
        passes = Passes()
        trio.lowlevel.add_instrument(passes)
        began = passes.count
        result = await life.append("t", *batch, idempotency_key="k")
        assert passes.count - began > 2 * len(batch) // 7
        assert (result.first_seq, result.last_seq, result.count) == (1, 200, 200)
        assert (await life.append("t", *batch, idempotency_key="k")).deduped
        await life.append("t", "behind")
        assert await values(life) == [one["data"] for one in batch] + ["behind"]
    async with living(WIDE, fs=fs, clock=clock) as life:
        if durability != "ephemeral":
            assert await values(life) == [one["data"] for one in batch] + ["behind"]
            found, _ = await life.all("t", include_tags=True)
            assert {(one["$tag"], one["$node"], one["meta"]["a"]) for one in found[:200]} == {("t", "n", "b")}


async def transact(life: Life, *names: str, key: str | None = None) -> TransactionResult:
    """Append a large batch to each topic, in one transaction."""
    batch = [RecordIn(data=msgspec.Raw(json.dumps(one["data"]).encode())) for one in large()]
    appends = [AppendRequest(records=batch) for _ in names]
    request = TransactionRequest(topics=list(names), appends=appends, idempotency_key=key)
    return await life.engine.transactions.append(request, Performance())


@pytest.mark.trio
async def test_a_large_transaction_is_read_back_and_survives_a_restart(autojump_clock: Any) -> None:
    fs, clock = SimFs(), SimClock()
    expected = [one["data"] for one in large()]
    async with living(WIDE, fs=fs, clock=clock) as life:
        for name, durability in (("a", "disk"), ("b", "fsync")):
            await life.put(name, durability=durability)
        await transact(life, "a", "b", key="k")
        assert (await transact(life, "a", "b", key="k")).deduped
        assert await values(life, "a") == await values(life, "b") == expected
    async with living(WIDE, fs=fs, clock=clock) as life:
        assert await values(life, "a") == await values(life, "b") == expected


@pytest.mark.trio
async def test_large_transactions_over_the_same_topics_come_one_after_the_other_and_others_in_between(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, at = Passes(), list[int]()
    trio.lowlevel.add_instrument(passes)
    encode = LargeBatch.encode_piece

    def noting(batch: LargeBatch) -> None:
        at.append(passes.count)
        encode(batch)

    monkeypatch.setattr(LargeBatch, "encode_piece", noting)
    async with living(WIDE) as life, trio.open_nursery() as nursery:
        for name in ("a", "b", "other"):
            await life.put(name)
        first = Called(nursery, partial(transact, life, "a", "b"))
        second = Called(nursery, partial(transact, life, "b", "a"))
        between = 0
        while not (first.done and second.done):
            await life.append("other", 1)
            between += 1
        assert between > 3
        assert len(at) >= 2 * 2 * 28
        assert all(after - before >= 2 for before, after in pairwise(at))
        for name in ("a", "b"):
            assert await values(life, name) == 2 * [one["data"] for one in large()]


@pytest.mark.trio
async def test_a_large_transaction_that_is_cancelled_while_it_is_encoded_leaves_nothing(autojump_clock: Any) -> None:
    async with living(WIDE) as life:
        for name in ("a", "b"):
            await life.put(name)
        with pytest.MonkeyPatch.context() as patch, trio.CancelScope() as scope:
            patch.setattr(LargeBatch, "encode_piece", lambda _: scope.cancel())
            await transact(life, "a", "b")
        for name in ("a", "b"):
            await life.append(name, "behind")
            assert await values(life, name) == ["behind"]


@pytest.mark.trio
async def test_no_piece_shares_a_pass_and_other_topics_go_on(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes, at = Passes(), list[int]()
    trio.lowlevel.add_instrument(passes)
    encode = LargeBatch.encode_piece

    def noting(batch: LargeBatch) -> None:
        at.append(passes.count)
        encode(batch)

    monkeypatch.setattr(LargeBatch, "encode_piece", noting)
    async with living(WIDE) as life, trio.open_nursery() as nursery:
        await life.append("other", 1)
        called = Called(nursery, partial(life.append, "t", *large()))
        between = 0
        while not called.done:
            await life.append("other", 1)
            between += not called.done
        assert between > 3
        assert len(at) >= 28
        assert all(after - before >= 2 for before, after in pairwise(at))


@pytest.mark.trio
async def test_other_appends_to_the_topic_come_before_or_behind(autojump_clock: Any) -> None:
    async with living(WIDE) as life:
        await life.append("t", "first")
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(partial(life.append, "t", *large()))
            for number in range(10):
                nursery.start_soon(partial(life.append, "t", {"data": number}))
                await trio.lowlevel.checkpoint()
        found = await values(life)
        assert len(found) == 611
        rows = [(one["n"] if isinstance(one, dict) else -1) for one in found]
        starts = [i for i, n in enumerate(rows) if n == 0]
        assert [rows[at : at + 200] for at in starts] == [list(range(200))] * 3
        assert {str(one) for one in found if not isinstance(one, dict)} == {"first", *map(str, range(10))}


def topic_of(life: Life, name: str = "t") -> Topic:
    return life.engine.registry.topics[name]


@pytest.mark.trio
async def test_a_caller_that_is_cancelled_during_the_encoding_leaves_nothing(autojump_clock: Any) -> None:
    async with living(WIDE) as life, trio.open_nursery() as nursery:
        await life.append("t", "first")
        called = Called(nursery, partial(life.append, "t", *large()))
        while topic_of(life).barrier is None:
            await trio.lowlevel.checkpoint()
        called.scope.cancel()
        await settle()
        assert called.cancelled
        assert topic_of(life).barrier is None
        await life.append("t", "last")
        assert await values(life) == ["first", "last"]


@pytest.mark.trio
async def test_a_deletion_of_the_topic_waits_and_then_takes_all(autojump_clock: Any) -> None:
    async with living(WIDE) as life, trio.open_nursery() as nursery:
        await life.append("t", "first")
        called = Called(nursery, partial(life.append, "t", *large()))
        while topic_of(life).barrier is None:
            await trio.lowlevel.checkpoint()
        deleted = Called(nursery, partial(life.engine.topic_lifecycle.delete, "t", if_empty=False))
        await settle()
        assert called.result.last_seq == 201
        assert deleted.done
        assert "t" not in life.engine.registry.topics


def staged(count: int) -> CheckedAppend:
    """A checked batch of `count` records."""
    return CheckedAppend(records=[], datas=[b'"%b"' % (b"x" * 300)] * count, nodes=None, tags=None, metas=None)


@pytest.mark.trio
async def test_a_batch_whose_stage_is_gone_meanwhile_goes_to_a_new_one(autojump_clock: Any) -> None:
    """A stage is deleted with its topic, even if it has a barrier."""
    async with living(WIDE) as life, trio.open_nursery() as nursery:
        await life.append("t", "first")
        perf = Performance()
        await life.engine.stages.append("t", "s", staged(1), perf)
        [stage] = life.engine.registry.stages.values()
        called = Called(nursery, partial(life.engine.stages.append, "t", "s", staged(200), perf))
        while stage.barrier is None:
            await trio.lowlevel.checkpoint()
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await settle()
        assert called.result.created
        [anew] = life.engine.registry.stages.values()
        assert anew is not stage
        assert anew.log.count == 200
