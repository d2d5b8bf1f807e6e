"""Exports (`docs/spec/pipeline.md` section 1): what happens to a topic between two slices, and to the loop."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, refusal, settings
from topics.engine.operations.export import PAY_MOST_S, SLICE_BYTES, SLICE_S, Export, ExportRequest, ExportSlice
from topics.log.tag_match import TagMatch

pytestmark = pytest.mark.trio

LARGE = "x" * 50_000
"""Two of these are a slice."""


def seqs_of(piece: ExportSlice | None) -> list[int]:
    assert piece is not None
    return [json.loads(line)["$seq"] for line in piece.lines.split(b"\n") if line]


def gap_of(piece: ExportSlice) -> tuple[int, int, str] | None:
    tombstone = piece.tombstone
    return None if tombstone is None else (tombstone.gap_from, tombstone.gap_to, tombstone.reason)


async def rest_of(export: Export) -> list[ExportSlice]:
    pieces = []
    while (piece := await export.next_slice()) is not None:
        pieces.append(piece)
    return pieces


async def test_a_slice_is_bounded_and_holds_a_record_at_least(autojump_clock: Any) -> None:
    async with living(settings(cache_bytes=0)) as life:
        await life.append("t", *[LARGE] * 5, "y" * 300_000, *["z"] * 3_000)
        pieces = await rest_of(await life.engine.exports.open("t", ExportRequest()))
        assert [seqs_of(piece) for piece in pieces[:4]] == [[1, 2], [3, 4], [5], [6]]
        assert [seq for piece in pieces for seq in seqs_of(piece)] == list(range(1, 3_007))
        assert all(len(piece.lines) <= SLICE_BYTES for piece in pieces if seqs_of(piece) != [6])


async def test_an_export_announces_evicted_records_and_leaves_out_records_appended_later(
    autojump_clock: Any,
) -> None:
    async with living() as life:
        await life.put("t", cap_records=10)
        await life.append("t", *[LARGE] * 10)
        export = await life.engine.exports.open("t", ExportRequest())
        assert seqs_of(await export.next_slice()) == [1, 2]
        await life.append("t", *[LARGE] * 6)
        piece = await export.next_slice()
        assert piece is not None
        assert (gap_of(piece), seqs_of(piece)) == ((3, 6, "cap"), [7, 8])
        await life.append("t", *[LARGE] * 20)
        (last,) = await rest_of(export)
        assert (gap_of(last), seqs_of(last)) == ((9, 10, "cap"), []), "no further than the range goes"
        assert (export.end.next_from_seq, export.end.head_seq, export.end.earliest_seq) == (10, 36, 27)


@pytest.mark.parametrize("first", [True, False])
async def test_an_export_whose_topic_is_deleted_ends_with_404_and_not_in_another_topic(first: bool) -> None:
    async with living() as life:
        await life.append("t", *[LARGE] * 10)
        export = await life.engine.exports.open("t", ExportRequest())
        if not first:
            await export.next_slice()
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        await life.append("t", *[LARGE] * 10)
        assert (await refusal(export.next_slice())).code == "topic_not_found"
        assert (await refusal(life.engine.exports.open("u", ExportRequest()))).code == "topic_not_found"


async def test_an_export_ends_when_the_daemon_stops(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *[LARGE] * 10)
        export = await life.engine.exports.open("t", ExportRequest())
        await export.next_slice()
        life.engine.start_draining()
        assert (await refusal(export.next_slice())).code == "shutting_down"


async def test_gaps_at_the_ends_of_a_range_of_times_are_in_it(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t", cap_records=4)
        times = []
        for i in range(6):
            await life.append("t", i)
            times.append(life.engine.registry.topic("t").last_ts)
            await trio.sleep(0.01)
        topic = life.engine.registry.topic("t")
        topic.log.add_hole(4, 4, "corrupt")
        life.engine.registry.account(topic)

        async def between(first: int | None, last: int | None) -> list[Any]:
            export = await life.engine.exports.open("t", ExportRequest(from_ts=first, to_ts=last))
            return [item for piece in await rest_of(export) for item in (gap_of(piece), *seqs_of(piece)) if item]

        assert await between(times[0], times[2]) == [(1, 2, "cap"), 3, (4, 4, "corrupt")]
        assert await between(None, times[2] - 1) == [(1, 2, "cap")]
        assert await between(times[4], None) == [(4, 4, "corrupt"), 5, 6], "it may have been as late"
        assert await between(times[4] + 1, times[5]) == [6]
        assert await between(times[5] + 1, None) == []


async def taken(life: Life, export: Export, ms: int, *, lively: bool) -> float:
    """Return how long (s) an export waits after it has used the loop for `ms`."""
    if lively:
        await life.append("other", 1)
    life.clock.advance(ms)
    began = trio.current_time()
    assert await export.next_slice() is not None
    return trio.current_time() - began


async def test_beside_appends_an_export_pauses_for_as_long_as_it_used_the_loop(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *[LARGE] * 100)
        export = await life.engine.exports.open("t", ExportRequest())
        await export.next_slice()
        assert await taken(life, export, 20, lively=True) == pytest.approx(0.02, abs=0.003)
        small = [await taken(life, export, 1, lively=True) for _ in range(10)]
        assert sum(small) == pytest.approx(0.01, abs=0.003), "small debts are gathered, and none is forgiven"
        assert 0.0 in small
        waited = await taken(life, export, 10_000, lively=False)
        assert waited == 0.0, "nobody has appended for long, and nobody wants anything"
        life.clock.advance(10_000)
        await life.append("other", 1)
        began = trio.current_time()
        await export.next_slice()
        assert trio.current_time() - began <= PAY_MOST_S + 0.001


async def test_others_have_their_turns_while_a_rare_tag_is_looked_for(autojump_clock: Any) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", *[{"data": i, "tag": "rare" if i == 49_999 else "often"} for i in range(50_000)])
        export = await life.engine.exports.open("t", ExportRequest(match=TagMatch("rare", prefix=False)))
        nursery.start_soon(count_turns)
        before = turns
        assert seqs_of(await export.next_slice()) == [50_000]
        assert turns - before >= 3
        nursery.cancel_scope.cancel()
    assert export.end.next_from_seq == 50_000


@pytest.mark.parametrize("runs", [False, True])
async def test_a_slice_ends_after_its_time_with_the_records_found_so_far(runs: bool, autojump_clock: Any) -> None:
    """Two of 60,000 records have the tag. Other tasks use up the time of the slice."""
    rare = {20_000, 55_000}

    async with living() as life, trio.open_nursery() as nursery:
        await life.append("t", *[{"data": i, "tag": "rare" if i in rare else "often"} for i in range(1, 60_001)])

        async def take_time() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                life.clock.advance(round(SLICE_S * 1000))

        export = await life.engine.exports.open("t", ExportRequest(match=TagMatch("rare", prefix=False), runs=runs))
        nursery.start_soon(take_time)
        pieces = await rest_of(export)
        nursery.cancel_scope.cancel()
    assert [piece.records for piece in pieces if piece.records] == [1, 1]
    assert pieces[0].records == 0, "nothing was found for so long"
    assert not any(piece.lines or piece.runs for piece in pieces if not piece.records)
    assert sum(piece.examined for piece in pieces) == 60_000
    assert [seq for piece in pieces for seq in seqs_of(piece)] == ([] if runs else sorted(rare))
    assert export.end.next_from_seq == 60_000


async def test_an_export_announces_a_gap_although_no_record_behind_it_matches(autojump_clock: Any) -> None:
    async with living() as life, trio.open_nursery() as nursery:
        await life.put("t", cap_records=40_000)
        for first in range(0, 50_000, 10_000):
            await life.append("t", *[{"data": i, "tag": "often"} for i in range(first, first + 10_000)])

        async def take_time() -> None:
            while True:
                await trio.lowlevel.checkpoint()
                life.clock.advance(round(SLICE_S * 1000))

        export = await life.engine.exports.open("t", ExportRequest(match=TagMatch("rare", prefix=False)))
        nursery.start_soon(take_time)
        pieces = await rest_of(export)
        nursery.cancel_scope.cancel()
    assert len(pieces) > 2
    assert [gap_of(piece) for piece in pieces] == [(1, 10_000, "cap"), *[None] * (len(pieces) - 1)]


async def test_a_stop_ends_an_export_that_finds_nothing(autojump_clock: Any) -> None:
    async with living() as life:
        await life.append("t", *[{"data": i, "tag": "often"} for i in range(50_000)])
        export = await life.engine.exports.open("t", ExportRequest(match=TagMatch("rare", prefix=False)))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("topics.engine.operations.export.SLICE_S", 0.0)
            piece = await export.next_slice()
            assert piece is not None
            assert piece.examined < 50_000
            life.engine.status.phase = "draining"
            assert (await refusal(export.next_slice())).code == "shutting_down"
            life.engine.status.phase = "ready"
