"""Crash everywhere, with stages: appends to them, commits, deletions, expiry, beside checkpoints, reclaim and a change
of the shard count (`docs/spec/crash.md` 23, `docs/spec/semantics.md` 8.3).

What has to hold after any crash: a commit is there whole or not at all, once, and says so when it is repeated; a stage
holds all that was acked, in order, or there is no such stage; nothing else of it is ever seen.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import pytest
import trio

from tests.everything import EVERYTHING
from tests.simulation.world import End, Life, World, all_ends, disk_after, settings, some_ends, wrecks_of
from tests.storage.data_file import rows_of
from tests.storage.offline.test_verify import damage
from topics.config import Settings
from topics.errors import ApiError
from topics.model import (
    CheckedAppend,
    CommitResult,
    Performance,
    ReadRequest,
    RecordIn,
    TopicConfigPatch,
)

CONFIG: Final = settings(wal_shards=2, wal_file_bytes=4 << 10, segment_max_events=8, stage_ttl_ms=60_000)
TOPIC: Final = "t"
SIZE: Final = 60


def request(name: str, numbers: Sequence[int], key: str | None = None) -> CheckedAppend:
    """Records that say where they come from: number `n` of stage `name`; some with a tag, a node, a meta."""
    datas = [json.dumps([name, n, "x" * SIZE]).encode() for n in numbers]
    tags = [None if n % 3 else f"tag{n % 2}" for n in numbers]
    nodes = ["n" if n % 4 == 0 else None for n in numbers]
    return CheckedAppend(
        records=[RecordIn(data=msgspec.Raw(data)) for data in datas],
        idempotency_key=key,
        datas=datas,
        tags=tags if any(tags) else None,
        nodes=nodes if any(nodes) else None,
        metas=[b'{"m":"%d"}' % n for n in numbers] if len(numbers) % 2 else None,
    )


class Script:
    """What clients do, and what they know of it: (stage, acked records) and (key, answer), as of each moment."""

    def __init__(self) -> None:
        self.history: list[tuple[str, Any]] = []

    def __len__(self) -> int:
        return len(self.history)

    async def append(self, life: Life, name: str, numbers: Sequence[int]) -> None:
        """Append to the topic itself."""
        await life.engine.appends.append(TOPIC, request(name, numbers), Performance())
        self.history.append(("appended", (name, list(numbers))))

    async def stage(self, life: Life, stage: str, numbers: Sequence[int]) -> None:
        """Append to a stage, and repeat it: it is there once."""
        self.history.append(("staging", (stage, list(numbers))))
        for _ in range(2):
            await life.engine.stages.append(TOPIC, stage, request(stage, numbers, f"k/{numbers[0]}"), Performance())
        self.history.append(("staged", (stage, list(numbers))))

    async def commit(self, life: Life, key: str, *stages: str) -> CommitResult:
        """Commit stages under a key."""
        self.history.append(("committing", (key, stages)))
        result = await life.engine.stage_commits.commit(TOPIC, stages, key, Performance())
        self.history.append(("committed", (key, stages, result)))
        return result

    async def delete(self, life: Life, stage: str) -> None:
        """Drop a stage."""
        self.history.append(("deleting", stage))
        assert await life.engine.stages.delete(TOPIC, stage)
        self.history.append(("deleted", stage))


class Known:
    """What was known when the history was so long."""

    def __init__(self, history: Sequence[tuple[str, Any]]) -> None:
        self.asked: dict[str, list[int]] = {}
        """By stage, the records that may be in it, in order."""
        self.acked: dict[str, list[int]] = {}
        self.keys: dict[str, tuple[str, ...]] = {}
        """Commits that may have happened."""
        self.answers: dict[str, CommitResult] = {}
        self.doomed: set[str] = set()
        """Stages that may have been dropped."""
        for kind, what in history:
            if kind == "staging":
                self.asked.setdefault(what[0], []).extend(what[1])
            elif kind == "staged":
                self.acked.setdefault(what[0], []).extend(what[1])
            elif kind == "committing":
                self.keys[what[0]] = what[1]
                self.doomed.update(what[1])
            elif kind == "committed":
                self.answers[what[0]] = what[2]
            elif kind == "deleting":
                self.doomed.add(what)


async def everything(life: Life) -> list[dict[str, Any]]:
    """All that a reader of the topic gets."""
    found: list[dict[str, Any]] = []
    position = 0
    while True:
        asked = ReadRequest(from_seq=position, limit=1000, include_tags=True, max_batch_bytes=1 << 20)
        answer = await life.engine.reads.read(TOPIC, asked, Performance())
        found += json.loads(b"[%b]" % answer.records)
        position = answer.next_from_seq
        if answer.caught_up:
            return found


def numbers_of(records: Sequence[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(record["data"][0], record["data"][1]) for record in records]


async def judge(life: Life, known: Known, fate: End, durability: str) -> list[tuple[str, int]]:
    """Check everything about a recovered machine; what its topic holds in the end."""
    engine = life.engine
    if TOPIC not in engine.registry.topics:
        assert not known.acked
        assert not engine.registry.stages
        return []
    target = engine.registry.topics[TOPIC]
    may_lose = fate != "kill" and durability != "fsync"
    for name in target.stages or {}:
        assert target.commit_keys is None or not target.commit_keys.has_closed(name), f"{name!r} has come back"
    before = numbers_of(await everything(life))
    for key, stages in known.keys.items():
        wanted = [(stage, n) for stage in stages for n in known.acked.get(stage, [])]
        there = [one for one in before if one[0] in stages]
        remembered = (
            target.commit_keys is not None and target.commit_keys.lookup(key, engine.registry.now_ms()) is not None
        )
        if key in known.answers:
            assert remembered, f"the commit {key!r} was answered and is forgotten"
        if remembered:
            assert there == (wanted if durability != "ephemeral" else []), f"the commit {key!r} is there in part"
        else:
            assert not there, f"the commit {key!r} has published something, and nobody knows of it"
        if not remembered and not set(stages) <= (target.stages or {}).keys():
            with pytest.raises(ApiError, match="stage_not_found"):
                await engine.stage_commits.commit(TOPIC, stages, key, Performance())
            assert may_lose, f"a stage of {key!r} is gone after {fate}"
            continue
        result = await engine.stage_commits.commit(TOPIC, stages, key, Performance())
        assert result.deduped is remembered
        assert result.count == len(wanted)
        if key in known.answers:
            first = known.answers[key]
            assert (result.first_seq, result.last_seq) == (first.first_seq, first.last_seq)
        if not remembered or durability != "ephemeral":
            now = await everything(life)
            run = [record for record in now if result.first_seq <= record["$seq"] <= result.last_seq]
            assert numbers_of(run) == wanted
            for record in run:
                n = record["data"][1]
                assert record.get("$tag") == (None if n % 3 else f"tag{n % 2}")
                assert record.get("$node") == ("n" if n % 4 == 0 else None)
    for name, stage in (target.stages or {}).items():
        assert stage.log.count == stage.log.head_seq
        asked = known.asked[name]
        acked = len(known.acked.get(name, []))
        assert acked <= stage.log.count <= len(asked), f"stage {name!r} holds {stage.log.count} of {acked}"
    for name, acked_numbers in known.acked.items():
        gone = name not in (target.stages or {})
        if gone and name not in known.doomed:
            assert may_lose, f"stage {name!r} is gone after {fate}"
            continue
        if not gone and name not in known.doomed:
            result = await engine.stage_commits.commit(TOPIC, [name], f"late-{name}", Performance())
            assert result.count >= len(acked_numbers)
            late = [record for record in await everything(life) if record["$seq"] >= result.first_seq]
            assert numbers_of(late) == [(name, n) for n in known.asked[name][: result.count]]
    life.engine.registry.topics[TOPIC].log.check()
    return numbers_of(await everything(life))


async def clear_away(life: Life) -> None:
    """Delete everything that the stages have left."""
    for _ in range(3):
        await life.compactor.checkpoint()
        await life.reclaimer.pass_over()
    assert not life.engine.registry.common.copying
    ids = set(life.store.tiers.hot.topics())
    assert ids <= {topic.id for topic in life.engine.registry.by_id.values()}, "the files of a stage are left"


def crash_everywhere(
    scenario: Callable[[Life, Script], Awaitable[None]],
    durability: str,
    *,
    stride: int,
    config: Settings = CONFIG,
    following: Settings | None = None,
) -> int:
    """Run it, crash before every `stride`-th operation, judge what the start after it shows; how many that were."""
    script = Script()
    world = World(7, config=config)
    wrecks = wrecks_of(world, lambda: len(script), stride=1 if EVERYTHING else stride)

    async def live(life: Life) -> None:
        await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(durability=durability))  # type: ignore[arg-type]
        await scenario(life, script)
        life.engine.status.phase = "draining"

    assert world.live(live, end="kill")
    judged = 0
    for wreck in wrecks:
        ends = all_ends(wreck.point, 1) if EVERYTHING else some_ends(wreck.point, 1)
        for end, seed in ends:
            fs = disk_after(wreck.fs, end, seed)
            shown: list[list[tuple[str, int]]] = []

            async def look(life: Life, end: End = end, shown: Any = shown, wreck: Any = wreck) -> None:
                shown.append(await judge(life, Known(script.history[: wreck.known]), end, durability))
                if shown[0]:
                    await clear_away(life)
                life.engine.status.phase = "draining"

            async def again(life: Life, shown: Any = shown) -> None:
                if shown[0] and durability != "ephemeral":
                    assert numbers_of(await everything(life)) == shown[0], "the second recovery shows something else"

            try:
                after = World(seed, config=following or config, fs=fs, now_ms=wreck.now_ms)
                assert after.live(look, end="kill")
                if wreck.point % 3 == 0:
                    assert damage(after.fs.after_process_kill()) == []
                assert after.after("drop").live(again, end="kill")
            except Exception as error:
                raise AssertionError(f"{wreck}, {end}/{seed}: {type(error).__name__}: {error}") from error
            judged += 1
    return judged


async def commits(life: Life, script: Script) -> None:
    """Stages filled beside one another and beside appends, committed together and one by one."""
    await script.append(life, "direct", [0])
    async with trio.open_nursery() as writers:
        writers.start_soon(script.stage, life, "a", [0, 1, 2, 3])
        writers.start_soon(script.stage, life, "b", [10, 11])
    await script.stage(life, "a", [4, 5, 6])
    await script.commit(life, "q/1", "b", "a")
    await script.append(life, "direct", [1, 2])
    await script.stage(life, "c", [20, 21, 22])
    await script.stage(life, "left", [30])
    await script.commit(life, "q/2", "c")


async def stored(life: Life, script: Script) -> None:
    """Checkpoints before, between and behind, so that a stage is in segments, in the log, in both; and reclaim."""
    await script.stage(life, "a", range(10))
    await life.compactor.checkpoint()
    await script.stage(life, "a", range(10, 14))
    await script.stage(life, "b", [20])
    await script.commit(life, "q/1", "a", "b")
    await life.reclaimer.pass_over()
    await script.append(life, "direct", [1])
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    await life.compactor.checkpoint()
    await life.reclaimer.pass_over()
    assert len(await everything(life)) == 16


async def dropped(life: Life, script: Script) -> None:
    """Stages deleted, expired, and gone with their topic."""
    await script.stage(life, "a", [0, 1])
    await script.stage(life, "b", [10])
    await script.delete(life, "a")
    await life.compactor.checkpoint()
    await trio.sleep(61)
    await script.stage(life, "c", [20])
    script.history.append(("deleting", "b"))
    life.engine.expire_unused()
    await trio.sleep(1)
    assert len(life.engine.registry.stages) == 1
    await script.commit(life, "q/1", "c")
    await script.stage(life, "d", [30])


@pytest.mark.parametrize(
    ("scenario", "durability", "stride"),
    [
        (commits, "disk", 2),
        (commits, "fsync", 4),
        (commits, "ephemeral", 5),
        (stored, "disk", 6),
        (dropped, "memory", 4),
    ],
)
def test_a_commit_is_whole_or_not_at_all_after_any_crash(
    scenario: Callable[[Life, Script], Awaitable[None]], durability: str, stride: int
) -> None:
    assert crash_everywhere(scenario, durability, stride=stride) > 5


@pytest.mark.slow
@pytest.mark.parametrize("scenario", [commits, stored, dropped])
@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
def test_the_same_at_more_points(scenario: Callable[[Life, Script], Awaitable[None]], durability: str) -> None:
    assert crash_everywhere(scenario, durability, stride=3) > 5


def test_another_number_of_shards_keeps_stages_and_commits() -> None:
    following = settings(wal_shards=3, wal_file_bytes=4 << 10, segment_max_events=8, stage_ttl_ms=60_000)
    assert crash_everywhere(commits, "disk", stride=9, following=following) > 5


# ----------------------------------------------------------------- damage


@pytest.mark.parametrize("left", ["all but one record", "nothing"])
def test_a_stage_that_has_lost_records_is_dropped_by_the_start_that_finds_it(left: str) -> None:
    """And not by the one after it, when others have staged more and were told how much it holds."""
    world = World(config=settings(segment_max_age_ms=0))
    script = Script()

    async def fill(life: Life) -> None:
        await life.engine.topic_lifecycle.put(TOPIC, TopicConfigPatch(durability="fsync"))
        await script.stage(life, "a", [0, 1, 2])
        await script.stage(life, "b", [10])
        await life.compactor.checkpoint()

    assert world.live(fill)
    path, _ = sorted(name for name, content in world.fs.tree().items() if content and name.endswith(".data"))
    content = world.fs.tree()[path]
    assert content
    handle = world.fs.open(path)
    handle.truncate(rows_of(content).offset[-1] if left == "all but one record" else 0)
    handle.fdatasync()
    handle.close()
    told: list[int] = []

    async def go_on(life: Life) -> None:
        with pytest.raises(ApiError, match="stage_not_found"):
            await life.engine.stage_commits.commit(TOPIC, ["a"], "q/1", Performance())
        result = await life.engine.stages.append(TOPIC, "a", request("a", [3]), Performance())
        told.append(result.count)

    async def commit(life: Life) -> None:
        told.append((await life.engine.stage_commits.commit(TOPIC, ["a", "b"], "q/2", Performance())).count)

    assert world.live(go_on)
    assert world.after("drop").live(commit)
    assert told == [1, 2]
