"""Conditions that are judged while commits are pending, against a simple model; and the cost of a judgement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, TypeVar

import pytest
import trio

from tests.engine.life import Called, HeldOffload, Life, living, refusal, settings, settle
from tests.engine.operations.test_conditions_model import Oracle
from topics.engine.operations import judge as judging
from topics.engine.operations.judge import Judge
from topics.engine.topic import Topic
from topics.log import topic_tags
from topics.model import AppendResult, Conditions, Fence
from topics.runtime.offload import Pool
from topics.storage.cache import index_cache

pytestmark = pytest.mark.trio

T = TypeVar("T")

TAGS = list("abcdefgh")
STORED_TAGS = [*TAGS, *(f"stored{i}" for i in range(16))]


class SteppedOffload(HeldOffload):
    """A disk that carries out calls about the log one by one, when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self._steps = 0

    def step(self) -> None:
        """Carry out the waiting call; if none waits, the next one at once."""
        self._steps += 1
        self.let_go()
        self.hold()

    async def perform(self, kind: Pool, call: Callable[[], T]) -> T:
        with trio.CancelScope(shield=True):
            while kind in self._held and not self._steps:
                await self._held[kind].wait()
        if kind in self._held:
            self._steps -= 1
            return call()
        return await super().perform(kind, call)


def a_walk(chance: Random, cap: int) -> Iterator[tuple[Any, ...]]:
    """Appends with conditions that nearly always hold, and deletions, while the disk mostly waits."""
    held = False
    for _ in range(250):
        kind = chance.choices(["append", "delete", "hold", "step", "let_go"], [10, 2, 1, 6, 0.5])[0]
        if kind == "append":
            seqs = {
                tag: chance.choices([0, 1, -1], [12, 1, 1])[0]
                for tag in chance.sample(STORED_TAGS, chance.randint(1, 2))
            }
            head = chance.choices([None, 0, 1], [8, 2, 1])[0]
            fence = chance.choices([None, ("f", chance.randint(-1, 1))], [3, 1])[0]
            tags = [chance.choice([None, *TAGS]) for _ in range(chance.randint(1, 3))]
            yield "append", tags, chance.choice([None, (head, seqs, fence), (head, seqs, fence), (head, seqs, fence)])
        elif kind != "delete":
            held = kind != "let_go" and (held or kind == "hold")
            yield (kind,)
        elif not (held and cap):  # evictions wait for deletions, and later calls go first then
            yield "delete", chance.randint(0, 300), chance.choice([None, *TAGS])


class Judged:
    """A topic with pending commits, and a model that learns of each call when it is made."""

    def __init__(self, life: Life, offload: SteppedOffload, nursery: trio.Nursery, cap: int) -> None:
        self.oracle = Oracle(cap)
        self.held = False
        self._life = life
        self._offload = offload
        self._nursery = nursery
        self._appends: list[tuple[Called, Any]] = []

    def _topic(self) -> Topic:
        return self._life.engine.registry.topics["t"]

    async def carry_out(self, step: tuple[Any, ...]) -> None:
        match step:
            case ("append", tags, near):
                self._append(tags, near)
            case ("delete", before, tag):
                self._delete(before, tag)
            case ("hold",) if not self.held:
                self._offload.hold()
                self.held = True
            case ("step",) if self.held:
                self._offload.step()
            case ("let_go",):
                self.let_go()
        await settle()
        if step[0] == "append":
            # A refused append has no seqs; any other append gets them at once.
            assert self._topic().assigned == self.oracle.head

    def _append(self, tags: list[str | None], near: Any) -> None:
        oracle, conditions = self.oracle, None
        if near is not None:
            head, seqs, fence = near
            conditions = Conditions(
                None if head is None else max(0, oracle.head + head),
                {tag: max(0, oracle.newest(tag) + by) for tag, by in seqs.items()},
                None if fence is None else Fence(fence[0], max(0, oracle.fences.get(fence[0], 0) + fence[1])),
            )
        records = [{"data": 1, "tag": tag} for tag in tags]
        call = Called(self._nursery, partial(self._life.append, "t", *records, conditions=conditions))
        self._appends.append((call, oracle.append(tags, conditions or Conditions())))

    def _delete(self, before: int, tag: str | None) -> None:
        match = ["tag", "Eq", tag] if tag is not None else None
        Called(self._nursery, partial(self._life.delete, "t", before, match))
        end = min(before, self._topic().log.head_seq + 1)  # what is not published yet stays
        self.oracle.live = [
            (seq, its) for seq, its in self.oracle.live if seq >= end or (tag is not None and its != tag)
        ]

    def let_go(self) -> None:
        """The disk answers again."""
        if self.held:
            self._offload.let_go()
            self.held = False

    async def check(self) -> None:
        """Check that every append had the outcome that the model predicts."""
        self.let_go()
        await settle()
        for call, expected in self._appends:
            assert call.done
            if isinstance(expected, int):
                assert call.error is None, (call.error, expected)
                assert isinstance(call.result, AppendResult)
                assert call.result.first_seq == expected
            else:
                assert call.error is not None, (call.result, expected)
                assert (call.error.code, call.error.detail) == expected
        assert await self._life.seqs("t") == [seq for seq, _ in self.oracle.live]


@pytest.mark.parametrize("roomy", [False, True])
@pytest.mark.parametrize("cap", [0, 3, 30])
@pytest.mark.parametrize("seed", range(8))
async def test_conditions_on_pending_records_agree_with_a_list(
    seed: int, cap: int, roomy: bool, monkeypatch: Any
) -> None:
    """Without `roomy`, the caches of tags keep hardly anything."""
    if not roomy:
        monkeypatch.setattr(judging, "_SPARE_TAGS", -1000)
        monkeypatch.setattr(topic_tags, "_NOTED_TAGS", 1)
        monkeypatch.setattr(index_cache, "LEAST_BYTES", 100)
    chance, offload = Random(seed), SteppedOffload()
    config = settings(segment_max_events=4, cache_bytes=0)
    async with living(config, offload=offload, housekeeping=False) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync", cap_records=cap)
        judged = Judged(life, offload, nursery, cap)
        for tag in STORED_TAGS:
            await judged.carry_out(("append", [tag], None))
        await life.compactor.checkpoint()
        log = life.engine.registry.topics["t"].log
        log.drop_tags_below(log.stored.last_seq + 1)
        try:
            for step in a_walk(chance, cap):
                await judged.carry_out(step)
        finally:
            judged.let_go()
        await judged.check()


# ---------------------------------------------------------------------- what a judgement costs


@pytest.fixture
def judgements(monkeypatch: pytest.MonkeyPatch) -> list[Conditions]:
    """Return a list that gets the conditions of each judgement. A call that has to wait is judged again."""
    judge, judged = Judge.judge, list[Conditions]()

    def noted(self: Judge, topic: Topic, conditions: Conditions, found: Any) -> Any:
        judged.append(conditions)
        return judge(self, topic, conditions, found)

    monkeypatch.setattr(Judge, "judge", noted)
    return judged


async def with_tags_in_files(life: Life) -> Topic:
    """A topic whose tags are in the files of three segments, and nowhere else: `tag1` to `tag12`, one record each."""
    await life.append("t", *({"data": i, "tag": f"tag{i}"} for i in range(1, 13)))
    await life.compactor.checkpoint()
    topic = life.engine.registry.topics["t"]
    topic.log.drop_tags_below(topic.log.stored.last_seq + 1)
    assert len(topic.log.tags.spans_in_files(topic.log.head_seq)) == 3
    return topic


async def test_tags_of_segments_are_judged_at_once_while_their_files_are_in_memory(
    judgements: list[Conditions],
) -> None:
    async with living(settings(segment_max_events=4)) as life:
        topic = await with_tags_in_files(life)
        await life.append("t", 13, conditions=Conditions(tag_seqs={"tag6": 6, "other": 0}))
        assert len(judgements) > 1, "the files had to be read"
        judgements.clear()
        held = Conditions(tag_seqs={"other": 0, "tag2": 2, "tag7": 7, "tag12": 12})
        assert (await life.append("t", 14, conditions=held)).last_seq == 14
        error = await refusal(life.append("t", "no", conditions=Conditions(tag_seqs={"tag3": 0})))
        assert error.detail == {"tag": "tag3", "expected": 0, "actual": 3}
        assert len(judgements) == 2
        await life.delete("t", match=["tag", "Eq", "tag2"])
        await life.delete("t", before_seq=2)
        judgements.clear()
        gone = Conditions(tag_seqs={"tag1": 0, "tag2": 0, "tag3": 3})
        assert (await life.append("t", 15, conditions=gone)).last_seq == 15
        assert len(judgements) == 1
        assert len(topic.log.tags.spans_in_files(topic.log.head_seq)) == 3


async def test_a_judgement_looks_into_few_files_without_letting_others_run(
    judgements: list[Conditions], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with living(settings(segment_max_events=4)) as life:
        await with_tags_in_files(life)
        await life.append("t", 13, conditions=Conditions(tag_seqs={"other": 0}))
        monkeypatch.setattr(judging, "SEARCHED", 5)
        judgements.clear()
        await life.append("t", 14, conditions=Conditions(tag_seqs={"new": 0, "tag7": 7}))
        assert len(judgements) == 1
        judgements.clear()
        await life.append("t", 15, conditions=Conditions(tag_seqs={"newer": 0, "tag2": 2}))
        assert len(judgements) == 2
        error = await refusal(life.append("t", "no", conditions=Conditions(tag_seqs={"newest": 0, "tag3": 4})))
        assert error.detail == {"tag": "tag3", "expected": 4, "actual": 3}


async def test_the_newest_live_record_of_many_with_a_tag_is_found_in_a_file(
    judgements: list[Conditions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "_LOOKED_AT", 2)
    async with living(settings(segment_max_events=12)) as life:
        await life.append("t", *({"data": i, "tag": "x" if i % 4 else "y"} for i in range(1, 13)))
        await life.compactor.checkpoint()
        topic = life.engine.registry.topics["t"]
        topic.log.drop_tags_below(topic.log.stored.last_seq + 1)
        await life.append("t", 13, conditions=Conditions(tag_seqs={"x": 11, "y": 12}))
        judgements.clear()
        for after, newest in ((9, 9), (5, 5), (2, 2), (1, 1), (0, 0)):
            await life.delete("t", match=["tag", "Eq", "x"], after_seq=after)
            await life.append("t", "more", conditions=Conditions(tag_seqs={"x": newest, "y": 12}))
        assert len(judgements) == 5


async def test_the_newest_record_of_a_tag_in_files_is_remembered_until_it_dies_or_more_tags_move_to_files(
    judgements: list[Conditions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_tags, "_NOTED_TAGS", 3)
    async with living(settings(segment_max_events=4)) as life:
        topic = await with_tags_in_files(life)
        long = "x" * 65
        await life.append(
            "t", 13, conditions=Conditions(tag_seqs={"tag1": 1, "tag2": 2, "tag3": 3, "other": 0, long: 0})
        )
        noted = {tag: topic.log.tags.newest_in_files(tag) for tag in ("tag1", "tag2", "tag3", "other", long)}
        assert noted == {"tag1": None, "tag2": 2, "tag3": 3, "other": 0, long: None}

        def none_cached(*_: Any) -> None:
            raise AssertionError("nothing is looked up")

        with monkeypatch.context() as patched:
            patched.setattr(life.engine.loader.spans, "cached_slots", none_cached)
            await life.append("t", 14, conditions=Conditions(tag_seqs={"tag2": 2, "other": 0}))
        await life.delete("t", match=["tag", "Eq", "tag2"])
        judgements.clear()
        await life.append("t", *({"data": i, "tag": "other"} for i in range(4)), conditions=Conditions(14, {"tag2": 0}))
        await life.compactor.checkpoint()
        topic.log.drop_tags_below(topic.log.stored.last_seq + 1)
        error = await refusal(life.append("t", "no", conditions=Conditions(tag_seqs={"other": 0})))
        assert error.detail == {"tag": "other", "expected": 0, "actual": 18}


async def test_each_pending_tag_is_read_once() -> None:
    """Otherwise each of sixteen concurrent conditional appends would read the tags of all others."""
    offload = HeldOffload()
    async with living(offload=offload) as life, trio.open_nursery() as nursery:
        await life.put("t", durability="fsync")
        topic = life.engine.registry.topics["t"]
        offload.hold()
        calls = []
        try:
            for seq in range(1, 6):
                record = {"data": seq, "tag": f"tag{seq}"}
                conditions = Conditions(tag_seqs={f"tag{seq - 1}": seq - 1, "other": 0}) if seq > 1 else None
                calls.append(Called(nursery, partial(life.append, "t", record, conditions=conditions)))
                await settle()
            kept = [commit.foreseen.newest for commit in topic.pending or () if commit.foreseen is not None]
        finally:
            offload.let_go()
        await settle()
        assert kept == [None, None, None, {f"tag{seq}": seq for seq in range(1, 5)}, None]
        assert [call.result.last_seq for call in calls] == [1, 2, 3, 4, 5]
