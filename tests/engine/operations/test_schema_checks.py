"""Schemas in the engine (`docs/spec/consumers.md` section 6): the order of checks, large batches, crashes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
import trio

from tests.engine.life import Called, Life, living, refusal, settle
from tests.simulation.disk import SimFs
from topics.model import AppendRequest, Performance, RecordIn, RouterPatch, TransactionRequest
from topics.schemas.record_schema import RecordSchema

pytestmark = pytest.mark.trio

NUMBER = msgspec.Raw(b'{"type":"integer"}')


async def transaction(life: Life, values: Mapping[str, Sequence[Any]]) -> None:
    """Append values to several topics."""
    appends = [
        AppendRequest(records=[RecordIn(data=msgspec.Raw(json.dumps(value).encode())) for value in some])
        for some in values.values()
    ]
    await life.engine.transactions.append(TransactionRequest(topics=list(values), appends=appends), Performance())


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
async def test_nothing_of_an_append_with_a_bad_record_is_stored(durability: Any, autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("t", durability=durability, schema=NUMBER)
        await life.append("t", 1, 2)
        error = await refusal(life.append("t", 3, "x", 4))
        assert (error.code, error.detail["record"]) == ("schema_violation", 1)
        assert await life.seqs("t") == [1, 2]
        assert (await life.append("t", 3)).first_seq == 3
        fs = fs.after_machine_crash("drop", 1)
    async with living(fs=fs) as life:
        assert (await refusal(life.append("t", "x"))).code == "schema_violation"
        if durability == "fsync":
            assert await life.seqs("t") == [1, 2, 3]


async def test_a_changed_schema_judges_later_appends(autojump_clock: Any) -> None:
    """Also for a large batch that is judged in turns, if the schema changes between two turns."""
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", schema=NUMBER)
        batch = list(range(5000))
        early = Called(nursery, lambda: life.append("t", *batch))
        await trio.lowlevel.checkpoint()
        await life.put("t", schema=msgspec.Raw(b'{"type":"string"}'))
        await settle()
        changed_first = not life.engine.registry.topics["t"].log.count
        if changed_first:
            assert early.error is not None
        else:
            assert early.result.count == 5000
        assert (await refusal(life.append("t", 1))).code == "schema_violation"
        await life.append("t", "x")


async def test_large_batches_let_others_run(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", schema=NUMBER)
        await life.put("other")
        large = Called(nursery, lambda: life.append("t", *range(10_000)))
        served = 0
        while not large.done:
            await life.append("other", 1)
            served += 1
        assert served > 5
        error = await refusal(life.append("t", *range(9_999), "x"))
        assert error.detail["record"] == 9_999


async def test_copies_that_break_it_are_skipped_across_crashes(autojump_clock: Any) -> None:
    fs = SimFs()
    async with living(fs=fs) as life:
        await life.put("a", durability="fsync")
        await life.put("b", durability="fsync", schema=NUMBER)
        await life.engine.routers.put("r", RouterPatch(source="a", dest="b"), create=True)
        await life.append("a", 1, "x", 2, "y")
        await trio.sleep(1)
        before = await life.all("b")
        assert [record["data"] for record in before[0]] == [1, 2]
        assert before[1] == [(2, 2, "source_trim"), (4, 4, "source_trim")]
        fs = fs.after_machine_crash("drop", 1)
    async with living(fs=fs) as life:
        await trio.sleep(1)
        assert await life.all("b") == before


WIDE = msgspec.Raw(
    json.dumps(
        {
            "items": {"allOf": [{"$ref": "#/$defs/a"}] * 20},
            "$defs": {"a": {"anyOf": [*({"minimum": 10**6 + i} for i in range(1000)), {"minimum": 0}]}},
        }
    ).encode()
)
"""Work of up to 60,000 tokens for each item, about a millisecond."""

ITEMS = [1] * 8


@pytest.mark.parametrize("how", ["append", "transaction", "router"])
async def test_small_records_with_a_high_bound_of_work_are_judged_one_per_step(how: str, monkeypatch: Any) -> None:
    """A body of less than a kilobyte may take as long as one of many megabytes."""
    passes = 0
    judged: list[int] = []
    violation = RecordSchema.violation

    def judge(self: RecordSchema, data: bytes) -> Any:
        judged.append(passes)
        return violation(self, data)

    async def count_passes() -> None:
        nonlocal passes
        while True:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with living() as life, trio.open_nursery() as nursery:
        await life.put("a")
        await life.append("a", *[ITEMS] * 20)
        await life.put("t", schema=WIDE)
        await life.put("u", schema=WIDE)
        monkeypatch.setattr(RecordSchema, "violation", judge)
        nursery.start_soon(count_passes)
        if how == "append":
            await life.append("t", *[ITEMS] * 20)
        elif how == "transaction":
            await transaction(life, {"t": [ITEMS] * 10, "u": [ITEMS] * 10})
        else:
            await life.engine.routers.put("r", RouterPatch(source="a", dest="t", start="earliest"), create=True)
            while life.engine.registry.topics["t"].log.head_seq < 20:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert len(judged) >= 20
    assert len(set(judged)) == len(judged)
