"""Conditions against a naive oracle: appends, deletions, caps, segments, restarts and kills, one after another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tests.engine.life import Life, living, settings
from tests.simulation.clock import SimClock
from tests.simulation.disk import SimFs
from topics.errors import ApiError
from topics.model import Conditions, Fence, Performance
from topics.storage.cache import index_cache
from topics.storage.segments import tag_directory

pytestmark = pytest.mark.trio

TAGS = ["a", "ab", "b"]
CONFIG = settings(segment_max_events=4, wal_file_bytes=4096, cache_bytes=0)


class Oracle:
    """A topic as a list."""

    def __init__(self, cap: int) -> None:
        self.cap = cap
        self.head = 0
        self.live: list[tuple[int, str | None]] = []
        self.fences: dict[str, int] = {}

    def newest(self, tag: str) -> int:
        return max((seq for seq, its in self.live if its == tag), default=0)

    def append(self, tags: list[str | None], conditions: Conditions) -> tuple[str, dict[str, Any]] | int:
        """The refusal, or the first seq."""
        if conditions.head_seq is not None and conditions.head_seq != self.head:
            return "condition_failed", {"head_seq": self.head}
        for tag, seq in conditions.tag_seqs.items():
            if self.newest(tag) != seq:
                return "condition_failed", {"tag": tag, "expected": seq, "actual": self.newest(tag)}
        fence = conditions.fence
        if fence is not None:
            if fence.token < self.fences.get(fence.name, 0):
                return "fenced", {"name": fence.name, "token": self.fences[fence.name]}
            self.fences[fence.name] = fence.token
        for its in tags:
            self.head += 1
            self.live.append((self.head, its))
        if self.cap:
            self.live = self.live[-self.cap :]
        return self.head - len(tags) + 1


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    tag = st.sampled_from(TAGS)
    near = st.sampled_from([0, 0, 0, 0, 1, -1])
    conditions = st.tuples(
        st.none() | near,
        st.dictionaries(tag, near, max_size=2),
        st.none() | st.tuples(st.sampled_from(["f", "g"]), st.integers(-1, 2)),
    )
    step = st.one_of(
        st.tuples(st.just("append"), st.lists(st.none() | tag, min_size=1, max_size=4), conditions),
        st.tuples(st.just("append"), st.lists(st.none() | tag, min_size=1, max_size=4), conditions),
        st.tuples(st.just("delete"), st.integers(0, 40), st.none() | tag),
        st.tuples(st.just("delete"), st.none(), tag),
        st.tuples(st.just("remove"), st.sampled_from(["f", "g"])),
        st.tuples(st.sampled_from(["checkpoint", "leave", "reclaim", "restart", "kill"])),
    )
    return draw(st.lists(step, min_size=1, max_size=40))


async def carry_out(life: Life, oracle: Oracle, number: int, step: tuple[Any, ...]) -> None:
    match step:
        case ("append", tags, (head, seqs, fence)):
            conditions = Conditions(
                None if head is None else max(0, oracle.head + head),
                {tag: max(0, oracle.newest(tag) + by) for tag, by in seqs.items()},
                None if fence is None else Fence(fence[0], max(0, oracle.fences.get(fence[0], 0) + fence[1])),
            )
            datas = [{"data": number, "tag": tag} for tag in tags]
            found: tuple[str, dict[str, Any]] | int
            try:
                found = (await life.append("t", *datas, conditions=conditions)).first_seq
            except ApiError as error:
                found = error.code, error.detail
            assert found == oracle.append(tags, conditions), json.dumps([number, conditions], default=str)
        case ("delete", before, tag):
            await life.delete("t", before, ["tag", "Eq", tag] if tag is not None else None)
            oracle.live = [
                (seq, its)
                for seq, its in oracle.live
                if (before is not None and seq >= before) or (tag is not None and its != tag)
            ]
        case ("remove", name):
            removed = await life.engine.fence_removals.remove("t", name, Performance())
            assert removed == (oracle.fences.pop(name, None) is not None)
        case ("checkpoint",):
            await life.compactor.checkpoint()
        case ("reclaim",):
            await life.compactor.checkpoint()
            await life.engine.reclaimer.pass_over()
        case ("leave",):
            log = life.engine.registry.topics["t"].log
            if log.stored.last_seq:
                log.drop_tags_below(log.stored.last_seq + 1)


@pytest.fixture(autouse=True)
def _little_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the tags of a segment or two: those of others are read by parts, of one name each."""
    monkeypatch.setattr(index_cache, "LEAST_BYTES", 100)
    monkeypatch.setattr(tag_directory, "PART_NAMES", 1)


@examples(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps(), cap=st.sampled_from([0, 0, 7]), durability=st.sampled_from(["disk", "fsync"]))
async def test_every_condition_is_judged_as_by_a_list(steps: list[tuple[Any, ...]], cap: int, durability: str) -> None:
    fs, clock, oracle = SimFs(), SimClock(), Oracle(cap)
    rest = list(enumerate(steps))
    config: dict[str, Any] = {"cap_records": cap, "durability": durability}
    while True:
        over = "end"
        async with living(CONFIG, fs=fs, clock=clock, housekeeping=False) as life:
            await life.put("t", **config)
            while rest and over == "end":
                number, step = rest.pop(0)
                if step[0] in ("restart", "kill"):
                    over = step[0]
                else:
                    await carry_out(life, oracle, number, step)
            topic = life.engine.registry.topics["t"]
            assert (topic.fences.published if topic.fences is not None else {}) == oracle.fences
            assert topic.fences is None or topic.fences.decided == oracle.fences
            assert await life.seqs("t") == [seq for seq, _ in oracle.live]
            killed = fs.after_process_kill()
        if over == "end":
            return
        if over == "kill":
            fs = killed
