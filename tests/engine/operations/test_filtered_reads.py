"""Reads with a filter return the records that a simple filter over a full read keeps, wherever the records are."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
import trio
from hypothesis import HealthCheck, assume, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from tests.engine.life import Life, living, records, settings
from tests.filters import oracle
from tests.filters.oracle import Written
from tests.simulation.disk import SimFs
from topics.engine import filtered_records
from topics.filters.filter_error import FilterError
from topics.filters.record_filter import Filter, parse_filter
from topics.model import AppendRequest, Performance, ReadRequest, RecordIn
from topics.raw_bytes import data_of_bytes
from topics.storage.cache import index_cache
from topics.storage.segments import tag_directory

pytestmark = pytest.mark.trio

SMALL: dict[str, Any] = {"segment_max_events": 7, "cache_bytes": 3000}


def a_filter(*wanted: Any) -> Filter:
    return parse_filter(json.dumps(wanted))


async def write(life: Life, topic: str, batch: list[Written]) -> None:
    """Append records whose data is these bytes."""
    made = [
        RecordIn(
            data=msgspec.Raw(record.data or b"null"),
            tag=record.tag,
            node=record.node,
            meta=json.loads(record.meta) if record.meta else None,
        )
        for record in batch
    ]
    await life.engine.appends.append(topic, AppendRequest(records=made), Performance())


async def everything(life: Life, topic: str, **options: Any) -> tuple[list[int], list[tuple[int, int, str]]]:
    """Read the whole topic page by page. Return the seqs and the gaps. Check that every page moves the cursor."""
    seqs: list[int] = []
    gaps: list[tuple[int, int, str]] = []
    position = 0
    while True:
        answer = await life.read(topic, position, **options)
        if answer.tombstone is not None:
            gaps.append((answer.tombstone.gap_from, answer.tombstone.gap_to, answer.tombstone.reason))
        seqs += [record["$seq"] for record in records(answer)]
        assert answer.next_from_seq > position or answer.caught_up
        position = answer.next_from_seq
        if answer.caught_up:
            return seqs, gaps


async def kept(life: Life, topic: str, text: str) -> list[int]:
    """Return the seqs of all records of the topic that match according to the oracle."""
    found, _ = await life.all(topic, include_tags=True)
    wanted = oracle.decoded(text)
    raw: list[int] = []
    for record in found:
        data = life.written[record["$seq"]].data  # type: ignore[attr-defined]
        meta = json.dumps(record["meta"]).encode() if "meta" in record else None
        if oracle.matches(wanted, Written(data, record.get("$tag"), record.get("$node"), meta)):
            raw.append(record["$seq"])
    return raw


steps = st.lists(
    st.one_of(
        st.lists(oracle.records, min_size=1, max_size=6),
        st.lists(oracle.records, min_size=8, max_size=12),
        st.sampled_from(["checkpoint", "restart", "trim", "delete tag", "delete tag", "reclaim", "forget blocks"]),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.slow
@hypothesis_settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    steps=steps,
    texts=st.lists(oracle.filters | oracle.tag_filters, min_size=1, max_size=3),
    limit=st.sampled_from([1, 2, 1000]),
    scan=st.sampled_from([1, 3, 10_000]),
    few=st.sampled_from([0, 64]),
    whole=st.sampled_from([0, 1, 32]),
)
async def test_a_read_with_a_filter_returns_matching_records_and_every_gap(
    steps: list[Any], texts: list[str], limit: int, scan: int, few: int, whole: int, autojump_clock: Any
) -> None:
    try:
        filters = [parse_filter(text) for text in texts]
    except FilterError:
        assume(False)
    written: dict[int, Written] = {}
    fs = SimFs()
    config = settings(max_scan=scan, **SMALL)
    at = 0
    patch = pytest.MonkeyPatch()
    patch.setattr(filtered_records, "FEW_TAGS", few)
    patch.setattr(filtered_records, "_MOST_SEQS", 2)
    patch.setattr(filtered_records, "MOST_PASSED", 20)
    patch.setattr(index_cache, "LEAST_BYTES", 600)
    patch.setattr(index_cache, "WHOLE_AFTER", whole)
    patch.setattr(tag_directory, "PART_NAMES", 2)
    try:
        while at < len(steps):
            async with living(config, fs=fs) as life:
                life.written = written  # type: ignore[attr-defined]
                if "t" not in life.engine.registry.topics:
                    await life.put("t", cap_records=40)
                while at < len(steps):
                    step = steps[at]
                    at += 1
                    if step == "restart":
                        break
                    await take(life, step)
                    if isinstance(step, list):
                        head = life.engine.registry.topics["t"].log.head_seq
                        written.update(zip(range(head - len(step) + 1, head + 1), step, strict=True))
                _, gaps = await everything(life, "t")
                for text, wanted in zip(texts, filters, strict=True):
                    assert await everything(life, "t", filter=wanted, limit=limit) == (
                        await kept(life, "t", text),
                        gaps,
                    )
    finally:
        patch.undo()


async def take(life: Life, step: Any) -> None:
    topic = life.engine.registry.topics["t"]
    if isinstance(step, list):
        await write(life, "t", step)
    elif step == "checkpoint":
        await trio.sleep(0.1)
        await life.compactor.checkpoint()
    elif step == "trim":
        await life.delete("t", before_seq=topic.log.head_seq // 2)
    elif step == "delete tag":
        await life.delete("t", match=["tag", "Glob", "eu:*"])
    elif step == "reclaim":
        await trio.sleep(0.1)
        await life.compactor.checkpoint()
        await life.engine.reclaimer.pass_over()
    elif step == "forget blocks":
        await trio.sleep(0.1)
        topic.blocks.clear()


async def test_matches_far_apart_in_segments(autojump_clock: Any) -> None:
    """A read used to go back to the segment that it came from, without end."""
    async with living(settings(segment_max_events=10, cache_bytes=3000)) as life:
        await life.put("t")
        for start in range(1, 200, 10):
            await life.append(
                "t", *[{"data": n, "tag": f"k{n}" if n % 50 == 3 else "x"} for n in range(start, start + 10)]
            )
            await trio.sleep(0.2)
            await life.compactor.checkpoint()
        with trio.fail_after(60):
            answer = await life.read("t", filter=a_filter("tag", "Glob", "k*"))
        assert [record["$seq"] for record in records(answer)] == [3, 53, 103, 153]
        assert answer.caught_up


@pytest.mark.parametrize(
    "wanted", [["tag", "Eq", "a"], ["tag", "Glob", "*"], ["data", "", "Ge", 0], ["tag", "Eq", "b"]]
)
async def test_a_hole_between_two_matches_is_announced(wanted: Any, autojump_clock: Any) -> None:
    async with living() as life:
        await life.put("t")
        await life.append("t", *[{"data": n, "tag": "b" if n == 9 else "a"} for n in range(1, 11)])
        log = life.engine.registry.topics["t"].log
        log.add_hole(4, 6, "corrupt")
        life.engine.registry.account(life.engine.registry.topics["t"])
        seqs, gaps = await everything(life, "t", filter=a_filter(*wanted))
        assert gaps == [(4, 6, "corrupt")]
        assert seqs == ([9] if wanted[2] == "b" else [n for n in (1, 2, 3, 7, 8, 9, 10) if n != 9 or wanted[1] != "Eq"])


async def test_a_filter_finds_no_data_in_raw_bytes_in_memory_and_in_files(autojump_clock: Any) -> None:
    raw = data_of_bytes(b"\0\xff", "image/png")
    async with living() as life:
        await life.append("t", msgspec.Raw(raw), json.loads(raw), msgspec.Raw(raw.replace(b"8=", b"9=")), None)
        for _ in range(2):  # from memory, and from a segment
            for wanted, seqs in (
                (("data", "", "Exists", False), [1]),
                (("data", "/$bytes", "Exists", True), [2, 3]),
                (("Not", ["data", "/$bytes", "Eq", "AP8="]), [1, 3, 4]),
            ):
                assert (await everything(life, "t", filter=a_filter(*wanted)))[0] == seqs
            await life.compactor.checkpoint()


@pytest.mark.parametrize("scan", [1, 4, 7])
async def test_a_read_examines_at_most_the_limit(scan: int, autojump_clock: Any) -> None:
    async with living(settings(max_scan=scan)) as life:
        await life.put("t")
        await life.append("t", *range(1, 101))
        perf = Performance()
        request = ReadRequest(filter=a_filter("data", "", "Eq", 100), wait_ms=30_000)
        began = trio.current_time()
        answer = await life.engine.reads.read("t", request, perf)
        assert (answer.next_from_seq, perf.records_scanned, answer.caught_up) == (scan, scan, False)
        assert trio.current_time() - began < 30


async def test_the_limit_of_a_poll_counts_all_its_waits_together(autojump_clock: Any) -> None:
    async with living(settings(max_scan=5)) as life, trio.open_nursery() as nursery:
        await life.put("t")
        await life.append("t", 1, 1, 1)
        request = ReadRequest(filter=a_filter("data", "", "Eq", 2), wait_ms=30_000)
        perf = Performance()
        answers: list[Any] = []

        async def poll() -> None:
            answers.append(await life.engine.reads.read("t", request, perf))

        nursery.start_soon(poll)
        await trio.sleep(1)
        assert not answers
        await life.append("t", 1, 1, 2)
        await trio.sleep(1)
        assert [answer.next_from_seq for answer in answers] == [5]
        assert perf.records_scanned == 5
