"""Reading backwards (`docs/spec/api.md` section 5): what a read forwards finds, in the other order, page by page."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, settings
from tests.simulation.disk import SimFs
from topics.engine.operations.backward_reads import BackwardRead, BackwardResult
from topics.errors import ApiError
from topics.filters.record_filter import parse_filter
from topics.model import Performance

pytestmark = pytest.mark.trio

FILTERS = (None, ["tag", "Eq", "a"], ["data", "/n", "Lt", 7], ["Or", ["tag", "Eq", "b"], ["data", "/n", "Eq", 3]])


async def page(life: Life, before_seq: int, **options: Any) -> BackwardResult:
    request = BackwardRead(before_seq=before_seq, **{"limit": 1000, "max_batch_bytes": 8 << 20, **options})
    return await life.engine.backward_reads.read("t", request, Performance())


async def backwards(life: Life, before_seq: int = 1 << 60, **options: Any) -> tuple[list[Any], set[int]]:
    """All records, the newest first, and the seqs of all gaps; each page is what it says it is."""
    found: list[Any] = []
    gone: set[int] = set()
    while True:
        answer = await page(life, before_seq, **options)
        records = [json.loads(bytes(record)) for record in answer.records]
        seqs = [record["$seq"] for record in records]
        assert seqs == sorted(seqs, reverse=True)
        assert len(records) <= options.get("limit", 1000)
        assert all(answer.next_before_seq <= seq < before_seq for seq in seqs)
        if answer.tombstone is not None:
            gap = range(answer.tombstone.gap_from, answer.tombstone.gap_to + 1)
            assert gone.isdisjoint(gap), "a gap is told of once"
            assert not seqs or gap.stop <= seqs[-1], "it comes after the records"
            gone |= set(gap)
        found += records
        if answer.is_over:
            return found, gone
        assert answer.next_before_seq < min(before_seq, answer.head_seq + 1), "it gets somewhere"
        before_seq = answer.next_before_seq


async def check(life: Life, rng: random.Random) -> None:
    for wanted in FILTERS:
        options: dict[str, Any] = {"include_tags": True}
        if wanted is not None:
            options["filter"] = parse_filter(json.dumps(wanted))
        forwards, gaps = await life.all("t", **options)
        limit, size = rng.choice((1, 2, 7, 1000)), rng.choice((1, 200, 8 << 20))
        found, gone = await backwards(life, limit=limit, max_batch_bytes=size, **options)
        assert found == forwards[::-1], wanted
        assert gone == {seq for first, last, _ in gaps for seq in range(first, last + 1)}


@pytest.mark.parametrize("seed", range(8))
async def test_it_finds_what_a_read_forwards_finds(seed: int, autojump_clock: Any) -> None:
    rng, fs = random.Random(seed), SimFs()
    config = settings(cache_bytes=rng.choice((0, 1 << 20)), max_scan=rng.choice((5, 10_000)))
    caps = rng.choice(({}, {"cap_records": 60}, {"ttl_ms": 3_000}))
    for _ in range(2):
        async with living(config, fs=fs) as life:
            await life.put("t", durability="memory", **caps)
            for _ in range(12):
                kind, head = rng.random(), life.engine.registry.topics["t"].log.head_seq
                if kind < 0.6:
                    tags = [rng.choice((None, "a", "b")) for _ in range(rng.randrange(1, 30))]
                    datas = [{"n": rng.randrange(20), "x": "x" * rng.randrange(100)} for _ in tags]
                    batch = [{"data": data, "tag": tag} for data, tag in zip(datas, tags, strict=True)]
                    await life.append("t", *batch)
                elif kind < 0.75:
                    await life.delete("t", rng.randrange(head + 2), rng.choice((None, "a")))
                elif kind < 0.85:
                    await life.compactor.checkpoint()
                await trio.sleep(rng.choice((0, 0.3)))
            await check(life, rng)
            fs = fs.after_machine_crash("drop", seed)  # leaves a hole at the end


async def test_a_page_begins_below_its_seq_and_ends_above_another(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", *range(100))
        answer = await page(life, 51, limit=3)
        assert [json.loads(bytes(record))["$seq"] for record in answer.records] == [50, 49, 48]
        assert (answer.next_before_seq, answer.next_from_seq, answer.is_over) == (48, 50, False)
        answer = await page(life, 5, from_seq=2)
        assert [json.loads(bytes(record))["$seq"] for record in answer.records] == [4, 3]
        assert answer.is_over
        for nothing in (0, 1):
            answer = await page(life, nothing)
            assert (answer.records, answer.is_over) == ([], True)


async def test_a_reader_of_another_instance_is_told_so(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", 1, 2, 3)
        epoch = (await page(life, 9)).epoch
        await life.engine.topic_lifecycle.delete("t", if_empty=False)
        with pytest.raises(ApiError, match="does not exist"):
            await page(life, 9)
        await life.append("t", 4)
        answer = await page(life, 9, epoch=epoch)
        assert answer.tombstone is not None
        assert (answer.tombstone.reason, answer.records, answer.next_before_seq) == ("recreated", [], 2)
        answer = await page(life, answer.next_before_seq, epoch=answer.epoch)
        assert [json.loads(bytes(record))["data"] for record in answer.records] == [4]


async def test_looking_without_touching_raises_no_priority(autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", 1)
        topic = life.engine.registry.topics["t"]
        await page(life, 9, touch=False)
        await life.read("t", touch=False)
        assert topic.touched_ms is None
        await page(life, 9)
        assert topic.touched_ms is not None


async def test_large_records_are_not_gathered_far_beyond_the_answer(autojump_clock: Any) -> None:
    async with living(settings(cache_bytes=0)) as life:
        await life.put("t", durability="disk")
        for _ in range(30):
            await life.append("t", *["x" * 20_000] * 5)
        perf = Performance()
        request = BackwardRead(before_seq=1 << 60, limit=100, max_batch_bytes=50_000)
        answer = await life.engine.backward_reads.read("t", request, perf)
        assert len(answer.records) == 2
        assert isinstance(perf.records_scanned, int)
        assert perf.records_scanned < 60
