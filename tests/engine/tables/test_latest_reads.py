"""The newest records of tags under appends: pages and the changes behind the first one's head are complete."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, settings, settle
from topics.engine.tables import kept_records
from topics.model import Conditions, LatestRequest, Performance
from topics.storage.files.fs import write_all
from topics.storage.segments.index_format import IDX_DELETED, IDX_HOLE, decode_index, encode_index

pytestmark = pytest.mark.trio

CONFIG = settings(segment_max_events=8, wal_file_bytes=8 << 10, cache_bytes=0)


async def write(life: Life, rng: random.Random, table: dict[str, int | None], number: int) -> None:
    tags = rng.sample([f"k{i:02}" for i in range(25)], rng.randint(1, 4))
    rows = {tag: None if rng.random() < 0.2 else number for tag in tags}
    await life.append("t", *[{"data": value, "tag": tag} for tag, value in rows.items()])
    table.update(rows)


async def read_table(life: Life, page_size: int) -> tuple[dict[str, Any], int]:
    """All pages, with some time between them; and the head of the first."""
    found: dict[str, Any] = {}
    head = after = None
    while True:
        page = await life.engine.latest.page("t", LatestRequest("", after, page_size, 1 << 20), Performance())
        head = page.head_seq if head is None else head
        found |= {row["$tag"]: row["data"] for row in json.loads(b"[%b]" % page.records)}
        after = page.next_after
        if after is None:
            return found, head
        await trio.sleep(0.001)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 1, 2])
async def test_pages_and_the_changes_behind_the_first_head_are_the_table(keep: int, autojump_clock: Any) -> None:
    rng = random.Random(keep)
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=keep)
        table: dict[str, int | None] = {}
        for number in range(40):
            await write(life, rng, table, number)
        for round_ in range(8):
            await life.compactor.checkpoint()
            found: list[tuple[dict[str, Any], int]] = []

            async def page_through(size: int, found: list[tuple[dict[str, Any], int]] = found) -> None:
                found.append(await read_table(life, size))

            async with trio.open_nursery() as nursery:
                for size in (1, 3, 7):
                    nursery.start_soon(page_through, size)
                for number in range(12):
                    await write(life, rng, table, 1000 * round_ + number)
                    await trio.sleep(0.0007)
                    if number == 6:
                        await life.compactor.checkpoint()
                        await life.engine.reclaimer.pass_over()
            for seen, head in found:
                for row in (await life.all("t", include_tags=True))[0]:
                    if row["$seq"] > head:
                        seen[row["$tag"]] = row["data"]
                assert {tag: data for tag, data in seen.items() if data is not None} == {
                    tag: data for tag, data in table.items() if data is not None
                }


async def test_no_reader_sees_half_of_a_large_removal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kept_records, "TAKEN_SLICE", 3)
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=50)
        for number in range(20):
            await life.append("t", {"data": number, "tag": "a"}, {"data": number, "tag": "b"})
        topic = life.engine.registry.topics["t"]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: life.append("t", {"data": None, "tag": "a"}))
            while topic.working is None:
                await trio.lowlevel.checkpoint()
            assert [row["data"] for row in (await life.all("t"))[0]] == [*range(20), None]
        await settle()
        assert topic.working is None


async def test_only_the_places_of_single_records_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A page loads no columns of segments."""
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=1)
        await life.append("t", *[{"data": i, "tag": f"k{i:03}"} for i in range(200)])
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        topic.blocks.clear()
        for span in topic.log.stored.all():
            if span.loaded:
                life.engine.indexes.forget_columns(span)
                span.detach()

        async def nothing(*_: Any) -> None:
            raise AssertionError("columns were loaded")

        monkeypatch.setattr(life.engine.loader.spans, "load", nothing)
        page = await life.engine.latest.page("t", LatestRequest("k1", None, 1000, 1 << 20), Performance())
        assert [row["data"] for row in json.loads(b"[%b]" % page.records)] == list(range(100, 200))


async def test_an_overwrite_of_stored_records_loads_no_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=1)
        await life.append("t", *[{"data": i, "tag": f"k{i:03}"} for i in range(80)])
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        for span in topic.log.stored.all():
            if span.loaded:
                life.engine.indexes.forget_columns(span)
                span.detach()
        await life.append("t", *[{"data": -i, "tag": f"k{i:03}"} for i in range(3, 80, 7)])
        assert not any(span.loaded for span in topic.log.stored.all())
        found = {row["$tag"]: row["data"] for row in (await life.all("t", include_tags=True))[0]}
        assert found == {f"k{i:03}": -i if i % 7 == 3 else i for i in range(80)}
        assert topic.log.count == 80


@pytest.mark.parametrize("flag", [IDX_DELETED, IDX_HOLE])
async def test_a_table_takes_note_of_what_only_files_know(flag: int) -> None:
    """Columns that are read again say that a record is deleted, or lost, of which memory knew nothing."""
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=2)
        await life.append("t", *[{"data": i, "tag": f"k{i % 4}"} for i in range(8)])
        await life.append("t", {"data": 8, "tag": "k0"})
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        topic.blocks.clear()
        span = topic.log.stored.all()[0]
        if span.loaded:
            life.engine.indexes.forget_columns(span)
            span.detach()
        path = next(path for path in life.fs.tree() if path.endswith(f"{span.first:020d}.idx"))
        index = decode_index(life.fs.tree()[path] or b"")
        flags = bytearray(index.flags)
        flags[6 - span.first] |= flag
        with life.fs.open(path) as file:
            write_all(file, encode_index(index.offset, index.frame_len, index.ts, flags), 0)
        assert [row["data"] for row in (await life.all("t"))[0]] == [1, 2, 3, 4, 6, 7, 8]
        page = await life.engine.latest.page("t", LatestRequest("", None, 100, 1 << 20), Performance())
        assert [row["data"] for row in json.loads(b"[%b]" % page.records)] == [8, 1, 6, 7]
        conditions = Conditions(tag_seqs={"k1": 2})
        await life.append("t", {"data": 9, "tag": "k1"}, conditions=conditions)
        assert [row["data"] for row in (await life.all("t"))[0]] == [1, 2, 3, 4, 6, 7, 8, 9], "k1 has two"


@pytest.mark.parametrize("keep", [0, 1])
async def test_a_page_of_large_records_loads_about_as_many_as_the_answer_may_have(
    keep: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(CONFIG) as life:
        await life.put("t", keep_per_tag=keep)
        for i in range(40):
            await life.append("t", {"data": f"{i:02}" + 20_000 * "x", "tag": f"k{i:02}"})
        await life.append("t", *[{"data": None, "tag": f"k{i:02}"} for i in range(20, 24)])
        await life.compactor.checkpoint()
        life.engine.registry.topics["t"].blocks.clear()
        loaded: list[int] = []
        records = life.engine.latest._records
        load = records.load

        async def counted(topic: Any, seqs: Any, perf: Performance) -> Any:
            loaded.append(len(seqs))
            return await load(topic, seqs, perf)

        monkeypatch.setattr(records, "load", counted)
        found: list[str] = []
        after, pages = None, 0
        while True:
            page = await life.engine.latest.page("t", LatestRequest("", after, 1000, 100_000), Performance())
            found += [row["data"][:2] for row in json.loads(b"[%b]" % page.records)]
            assert sum(loaded) <= 14, "four fit; two, four and eight are loaded"
            loaded.clear()
            after, pages = page.next_after, pages + 1
            if after is None:
                break
        assert found == [f"{i:02}" for i in range(40) if not 20 <= i < 24]
        assert pages <= 12
