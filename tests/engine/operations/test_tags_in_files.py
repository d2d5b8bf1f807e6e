"""Searches for tags that only files know: which bytes they read, and that they find all records after the files have
changed."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio

from tests.engine.life import Life, living, refusal, settings
from tests.simulation.disk import Fault, SimFs
from topics.engine import filtered_records
from topics.engine.record_collector import Collector, PauseNeeded, RecordRequest
from topics.filters.record_filter import Filter, parse_filter
from topics.model import Conditions, Performance
from topics.storage.cache import index_cache
from topics.storage.segments import tag_directory

pytestmark = pytest.mark.trio

EACH = 200
"""The number of records of a segment. Each has a different tag; the first one has the last digit of its segment's
number as its tag."""

CONFIG = settings(segment_max_events=EACH)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_directory, "PART_NAMES", 8)


async def fill(life: Life, segments: int) -> None:
    await life.put("t", durability="disk")
    for number in range(segments):
        own = [f"{number:03}-{i:03}" for i in range(1, EACH)]
        await life.append("t", *[{"data": 1, "tag": tag} for tag in ["common", *own]])
        await trio.sleep(0.1)
        await life.compactor.checkpoint()


def of_tag(*tags: str) -> Filter:
    return parse_filter(json.dumps(["tag", "In", list(tags)]))


def begin(life: Life) -> int:
    return len(life.fs.ops)


def evict_tags(life: Life) -> None:
    """Make the cache drop the tags of all segments, as if other topics used the room; the directories stay, and there
    is no room for tags."""
    cache = life.engine.indexes
    for segment in list(cache._tags):
        cache._drop_tags(segment)
    cache._max_bytes = cache.bytes


def tag_bytes(life: Life, since: int) -> int:
    """How many bytes of `.tags` were read."""
    reads = [op for op in life.fs.ops[since:] if op.name == "pread" and ".tags" in op.path]
    return sum(int(op.detail.split("+")[1]) for op in reads)


async def expect(life: Life, **tags: int) -> int:
    """Append under a condition. Return the seq that the refusal names; 0 if the append was accepted."""
    error = await refusal(life.append("t", 1, conditions=Conditions(None, tags, None)))
    assert error.code == "condition_failed"
    return int(error.detail["actual"])


async def test_segments_without_a_tag_are_not_read_for_it(autojump_clock: Any) -> None:
    async with living(CONFIG) as life:
        await fill(life, 6)
        assert await life.seqs("t", filter=of_tag("004-007", "nobody")) == [4 * EACH + 8]
        since = begin(life)
        assert await life.seqs("t", filter=of_tag("nothing", "nowhere")) == []
        assert (await life.delete("t", match="nobody")).deleted == 0
        await life.append("t", 1, conditions=Conditions(None, {"nobody": 0, "nowhere": 0}, None))
        assert tag_bytes(life, since) == 0


@pytest.mark.parametrize("how", ["filter", "prefix", "condition", "delete"])
async def test_only_a_part_is_read_of_a_file_that_was_read_whole_before(how: str, autojump_clock: Any) -> None:
    async with living(CONFIG) as life:
        await fill(life, 6)
        since = begin(life)
        seqs = [number * EACH + 1 for number in range(6)]
        assert await life.seqs("t", filter=of_tag("common")) == seqs
        whole = tag_bytes(life, since)
        evict_tags(life)
        since = begin(life)
        if how == "filter":
            assert await life.seqs("t", filter=of_tag("common")) == seqs
        elif how == "prefix":
            assert await life.seqs("t", filter=parse_filter('["tag","Glob","com*"]')) == seqs
        elif how == "condition":
            assert await expect(life, common=0) == seqs[-1]
        else:
            assert (await life.delete("t", match="common")).deleted == 6
        assert 0 < tag_bytes(life, since) < whole / 4


async def test_a_file_is_read_whole_after_many_of_its_parts_were_read(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    monkeypatch.setattr(index_cache, "WHOLE_AFTER", 3)
    async with living(CONFIG) as life:
        await fill(life, 2)
        assert await life.seqs("t", filter=of_tag("000-001")) == [2]
        evict_tags(life)
        amounts = []
        for _ in range(6):
            since = begin(life)
            assert await life.seqs("t", filter=of_tag("000-001")) == [2]
            amounts.append(tag_bytes(life, since))
        assert amounts[0] == amounts[1] < amounts[2] / 4
        assert amounts[3:] == [0, 0, 0]


@pytest.mark.parametrize("spoilt", ["gone", "flipped", "cut"])
async def test_a_changed_part_is_not_used(spoilt: str, autojump_clock: Any) -> None:
    async with living(CONFIG) as life:
        await fill(life, 2)
        seqs = [1, EACH + 1]
        assert await life.seqs("t", filter=of_tag("common")) == seqs
        path = next(path for path in life.fs.tree() if path.endswith(f"{1:020}.tags"))
        evict_tags(life)
        content = life.fs.read(path)
        at = content.index(b"common")
        if spoilt == "gone":
            life.fs.unlink(path)
        elif spoilt == "flipped":
            life.fs.flip_bit(path, at + 2, 1)
        else:
            with life.fs.open(path) as file:
                file.truncate(at)
        assert await life.seqs("t", filter=of_tag("common")) == seqs
        assert (await life.delete("t", match="common")).deleted == 2


async def test_an_error_of_the_disk_at_a_part_reaches_the_caller(autojump_clock: Any) -> None:
    async with living(CONFIG) as life:
        await fill(life, 2)
        assert await life.seqs("t", filter=of_tag("common")) == [1, EACH + 1]
        for call in (
            lambda: life.seqs("t", filter=of_tag("common")),
            lambda: life.delete("t", match="common"),
            lambda: life.append("t", 1, conditions=Conditions(None, {"common": 0}, None)),
        ):
            evict_tags(life)
            fault = life.fs.inject(Fault(error=5, name="pread", path="*.tags"))
            assert (await refusal(call())).code == "not_ready"
            assert fault.hits == 1
        assert await life.seqs("t", filter=of_tag("common")) == [1, EACH + 1]


async def test_everything_is_found_after_segments_were_written_anew(autojump_clock: Any) -> None:
    """The segments are first rewritten, which leaves few of many tags, and then merged."""
    fs = SimFs()
    async with living(CONFIG, fs=fs) as life:
        await fill(life, 4)
        for number in range(4):
            assert await life.seqs("t", filter=of_tag(f"{number:03}-050")) == [number * EACH + 51]
        for number in range(3):
            await life.delete("t", match=["tag", "Glob", f"{number:03}-1*"])
            await life.delete("t", match=["tag", "Glob", f"{number:03}-00*"])
        await life.compactor.checkpoint()
        before = {span.segment for span in life.engine.registry.topics["t"].log.stored.all()}
        assert await life.engine.reclaimer.pass_over()
        after = {span.segment for span in life.engine.registry.topics["t"].log.stored.all()}
        assert len(after - before) > 0
        assert not any(segment in life.engine.indexes._directories for segment in before - after)
        for _ in range(3):
            evict_tags(life)
            for number in range(4):
                assert await life.seqs("t", filter=of_tag(f"{number:03}-050")) == [number * EACH + 51]
                assert await expect(life, **{f"{number:03}-050": 0}) == number * EACH + 51
                assert await life.seqs("t", filter=of_tag(f"{number:03}-150")) == (
                    [3 * EACH + 151] if number == 3 else []
                )
            assert await expect(life, common=1) == 3 * EACH + 1
        assert (await life.delete("t", match="002-050")).deleted == 1
    async with living(CONFIG, fs=fs) as life:
        assert await life.seqs("t", filter=of_tag("common")) == [number * EACH + 1 for number in range(4)]
        assert await life.seqs("t", filter=of_tag("001-050", "002-050")) == [EACH + 51]


async def test_a_search_over_many_segments_lets_other_tasks_run_and_ends(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: Any
) -> None:
    async with living(settings(segment_max_events=4)) as life:
        await life.put("t", durability="disk")
        for number in range(30):
            await life.append("t", *[{"data": 1, "tag": f"{number}-{i}"} for i in range(4)])
            await trio.sleep(0.1)
            await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        topic.log.add_hole(70, 72, "corrupt")
        life.engine.registry.account(topic)
        wanted = of_tag("29-2", "nobody")
        assert await life.seqs("t", filter=wanted) == [119]
        monkeypatch.setattr(filtered_records, "MOST_PASSED", 1)
        request = RecordRequest(1000, 1 << 20, filter=wanted)
        # A request keeps its collector; a watch makes a new one at the position that it has reached.
        for anew in (False, True):
            found = Collector(life.engine.registry, topic, request, 0)
            positions, gaps = [0], []
            while (need := found.advance()) is not None:
                if isinstance(need, PauseNeeded):
                    assert found.position > positions[-1]
                    positions.append(found.position)
                    gaps += [found.tombstone.gap_from] if found.tombstone is not None else []
                    if anew:
                        found = Collector(life.engine.registry, topic, request, found.position)
                else:
                    await life.engine.loader.provide(found, need, Performance())
            assert len(positions) > 20
            assert 70 in gaps
            assert found.count == 1
