"""Tags of segments that change while their files are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, Life, living, settings, settle
from tests.simulation.disk import Fault, SimFs
from tests.simulation.offload import InlineOffload
from topics.engine.filtered_records import TagsNeeded
from topics.engine.record_collector import Collector, RecordRequest
from topics.filters.record_filter import parse_filter
from topics.model import Conditions, Performance
from topics.runtime.offload import Pool

pytestmark = pytest.mark.trio

T = TypeVar("T")

CONFIG = settings(segment_max_events=10)


class LateOffload(InlineOffload):
    """A disk that can delay its answers: a call of the held kind runs at once, and its result comes later."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[Pool, trio.Event] = {}

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        result = await super().perform(kind, call)
        if kind in self.held:
            with trio.CancelScope(shield=True):
                await self.held[kind].wait()
        return result


async def fill(life: Life, tags: list[str]) -> None:
    await life.append("t", *[{"data": tag, "tag": tag} for tag in tags])
    await trio.sleep(0.2)
    await life.compactor.checkpoint()


async def half_a_segment() -> SimFs:
    """A disk with a topic of one segment of seven records, which is not full. Only the segment's file knows the tags of
    the records."""
    fs = SimFs()
    async with living(CONFIG, fs=fs) as life:
        await life.put("t", durability="disk")
        await fill(life, ["a"] * 7)
    return fs


async def test_tags_that_were_read_before_a_segment_was_full_are_not_all_its_tags(autojump_clock: Any) -> None:
    fs, offload = await half_a_segment(), LateOffload()
    async with living(CONFIG, fs=fs, offload=offload) as life, trio.open_nursery() as nursery:
        topic = life.engine.registry.topics["t"]
        assert topic.log.tags.spans_in_files(7)
        offload.held[Pool.HOT_READ] = trio.Event()
        reading = Called(nursery, lambda: life.append("t", 1, conditions=Conditions(None, {"c": 0}, None)))
        await settle()
        held = offload.held.pop(Pool.HOT_READ)
        await fill(life, ["b"] * 3)
        assert topic.log.tags.known_from == 11
        held.set()
        await settle()
        assert reading.done
        await life.append("t", 1, conditions=Conditions(None, {"b": 10}, None))  # not 0
        assert (await life.delete("t", match=["tag", "Glob", "b*"])).deleted == 3
        assert await life.seqs("t") == [1, 2, 3, 4, 5, 6, 7, 11, 12]


async def test_a_read_finds_tags_added_to_a_segment_after_its_tags_were_loaded(autojump_clock: Any) -> None:
    fs = await half_a_segment()
    async with living(CONFIG, fs=fs) as life:
        topic = life.engine.registry.topics["t"]
        request = RecordRequest(1000, 1 << 20, filter=parse_filter(json.dumps(["tag", "Eq", "b"])))
        found = Collector(life.engine.registry, topic, request, 0)
        need = found.advance()
        assert isinstance(need, TagsNeeded)
        await life.engine.loader.provide(found, need, Performance())
        await fill(life, ["b"] * 3)
        assert topic.log.tags.known_from == 11
        while (need := found.advance()) is not None:
            await life.engine.loader.provide(found, need, Performance())
        assert found.count == 3


@pytest.mark.parametrize("stays", [False, True])
@pytest.mark.parametrize("how", ["filter", "delete"])
async def test_a_segment_that_looks_damaged_because_it_is_replaced_is_read_again(
    how: str, stays: bool, autojump_clock: Any
) -> None:
    """After a read of `.tags` and before that of `.data`, the reclaimer may replace both files."""
    fs = SimFs()
    async with living(CONFIG, fs=fs) as life:
        await life.put("t", durability="disk")
        await fill(life, ["a", "b"] * 5)
        await fill(life, ["a", "b"] * 5)
    async with living(CONFIG, fs=fs) as life:
        paths = {
            kind: next(path for path in fs.tree() if path.endswith(f"{1:020}.{kind}")) for kind in ("data", "tags")
        }
        contents = {kind: fs.read(path) for kind, path in paths.items()}
        fs.unlink(paths["tags"])
        fs.flip_bit(paths["data"], 200, 3)

        def back(_: Any) -> None:
            fs.flip_bit(paths["data"], 200, 3)
            assert fs.read(paths["data"]) == contents["data"]

        if not stays:
            # The scan reads the header, then the frames.
            fs.inject(Fault(name="pread", path=paths["data"], nth=2, hook=back))
        if how == "filter":
            seqs, gaps = await life.all("t", filter=parse_filter('["tag","Eq","b"]'))
            assert len(seqs) == (9 if stays else 10)
            assert [reason for _, _, reason in gaps] == ["corrupt"] * stays
        else:
            assert (await life.delete("t", match=["tag", "Eq", "b"])).deleted == (9 if stays else 10)
