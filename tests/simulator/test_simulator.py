"""The simulator: fixed seeds, past failures, and that it says so when something is wrong.

Fresh seeds are for `scripts/simulate`; here nothing is left to chance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from tests.everything import EVERYTHING
from tests.simulation.disk import SimFile
from tests.simulation.model import View, view_of
from tests.simulation.world import Life, World, settings
from tests.simulator import cases, running
from tests.simulator.__main__ import main
from tests.simulator.actors import Actor, Step
from tests.simulator.attempt import kind_of, problem_of
from tests.simulator.clients import Clients
from tests.simulator.known import Broken
from tests.simulator.plan import Plan, decode, encode, make
from tests.simulator.running import run
from tests.simulator.shrinking import shrink
from tests.simulator.truth import Truth
from tests.storage.data_file import rows_of
from topics.consumers.consumers import Consumers
from topics.engine.engine import Engine
from topics.engine.forwarding.forwarders import Forwarders
from topics.engine.record_collector import Collector
from topics.model import AppendRequest, Performance, RecordIn, TopicConfigPatch
from topics.storage.recovery.damage import Damage
from topics.storage.recovery.log_end import LogEnds
from topics.storage.recovery.topic_replay import TopicReplay
from topics.storage.recovery.transaction_replay import TransactionReplay
from topics.storage.wal.frames import NOTHING, UnsealedFrames
from topics.storage.wal.shard_log import ShardLog
from topics.storage.wal.wal_files import WalFile

QUICK = range(12)
SLOW = range(100, 1100 if EVERYTHING else 220)
GROUP = 20


@pytest.mark.parametrize("seed", QUICK)
def test_no_promise_is_broken(seed: int) -> None:
    run(make(seed))


@pytest.mark.slow
@pytest.mark.parametrize("first", SLOW[::GROUP])
def test_no_promise_is_broken_by_many_more_seeds(first: int) -> None:
    for seed in range(first, first + GROUP):
        problem, _ = problem_of(make(seed))
        assert problem is None, f"scripts/simulate --from {seed} --seeds 1: {problem}"


@pytest.mark.parametrize("name", cases.names())
def test_what_was_wrong_once_is_not_again(name: str) -> None:
    problem, _ = problem_of(cases.load(name))
    assert problem is None


@pytest.mark.slow
def test_seeds_reach_everything() -> None:
    """Every kind of end, of check, and of damage is in the seeds that are run here."""
    figures = [run(make(seed)) for seed in range(40)]
    ends = set().union(*(one.ends for one in figures))
    assert ends >= {"stop", "kill", "drop", "keep", "tear", "reorder", "garble"}
    checked = set().union(*(one.checked for one in figures))
    assert checked >= {"records", "topics", "deliveries", "claims", "jobs", "arrivals", "transactions"}
    assert checked >= {"consumers", "consumed", "passages", "finished"}
    assert checked >= {"judged claims", "times", "pauses", "limits", "orders", "priorities", "unique", "duplicates"}
    assert checked >= {"groups", "group claims", "came", "schedules", "firings"}
    assert sum(one.rot for one in figures) > 0
    assert sum(one.faults for one in figures) > 0
    actors = [actor for seed in range(200) for life in make(seed).lives for actor in life.actors]
    steps = {step.do for actor in actors for step in actor.steps}
    assert steps == {name.removeprefix("do_") for name in dir(Clients) if name.startswith("do_")}


# ----------------------------------------------------------------- a seed decides everything


def test_a_plan_is_the_same_every_time_and_survives_being_written_down() -> None:
    for seed in range(20):
        assert make(seed) == make(seed)
        assert decode(encode(make(seed))) == make(seed)


def test_a_run_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    journals: list[list[tuple[str, str, str]]] = []
    original = running._Run._restart

    def restart(self: running._Run, *args: object) -> bool:
        journals[-1] += [(op.name, op.path, op.detail) for op in self.world.fs.ops]
        return original(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(running._Run, "_restart", restart)
    for seed in (3, 7):
        for _ in range(2):
            journals.append([])
            run(make(seed))
        assert journals[-1] == journals[-2]
    assert sum(map(len, journals)) > 500


# ----------------------------------------------------------------- it notices


def failures(seeds: range) -> list[str]:
    return [problem for seed in seeds if (problem := problem_of(make(seed))[0]) is not None]


def is_noticed(seeds: range) -> bool:
    """Whether one of them fails."""
    return any(problem_of(make(seed))[0] is not None for seed in seeds)


def test_a_disk_that_says_synced_and_is_not_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(file: SimFile) -> None:
        with file._operation("fdatasync", mutates=True):
            return

    monkeypatch.setattr(SimFile, "fdatasync", lie)
    assert failures(range(12))


def test_a_log_that_forgets_what_was_acked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second group is acknowledged and not written; zeros stay in its place."""
    original = ShardLog.write
    groups: list[int] = []

    def forget(self: ShardLog, file: WalFile, pieces: Sequence[UnsealedFrames], *args: Any, **named: Any) -> int:
        size = sum(map(len, pieces))
        if size:
            groups.append(size)
            if len(groups) % 2:
                pieces = [NOTHING]
        return original(self, file, pieces, *args, **named)

    monkeypatch.setattr(ShardLog, "write", forget)
    assert failures(range(12))
    assert groups, "nothing was forgotten"


@pytest.mark.slow
def test_a_recovery_that_lets_a_part_of_a_transaction_count_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TransactionReplay.decide

    def decide(self: TransactionReplay, *_: object) -> bool:
        return original(self, lambda topic_id: True, lambda topic_id, last, ts: True)

    monkeypatch.setattr(TransactionReplay, "decide", decide)
    assert failures(range(80, 140))


def test_a_consumer_that_is_left_out_when_what_is_consumed_is_deleted_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    furthest = property(lambda self: max((consumer.seq for consumer in self), default=None))
    monkeypatch.setattr(Consumers, "lowest_seq", furthest)
    assert is_noticed(range(40))


def test_a_restart_that_forgets_how_far_consumers_are_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = TopicReplay._change_consumer

    def change(self: TopicReplay, topic: Any, frame: Any, payload: Any) -> None:
        if payload["op"] != "committed":
            original(self, topic, frame, payload)

    monkeypatch.setattr(TopicReplay, "_change_consumer", change)
    assert is_noticed(range(40))


def test_a_cursor_that_passes_a_record_which_no_filter_was_asked_about_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original = Collector._take

    def take(self: Collector, *args: Any) -> bool:
        whole = original(self, *args)
        if self.filtered and not whole:
            self.position = min(self.position + 1, self.end)
        return whole

    monkeypatch.setattr(Collector, "_take", take)
    assert is_noticed(range(40))


def test_damage_that_is_found_where_there_is_none_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.load("a-damaged-log-file-is-read-again-because-a-snapshot-is-damaged")
    original = LogEnds._damage

    def elsewhere(self: LogEnds, *args: Any, **named: Any) -> Damage:
        damage = original(self, *args, **named)
        return Damage(damage.where._replace(path="/data/wal/shard-00/other"), damage.affected, damage.frames)

    monkeypatch.setattr(LogEnds, "_damage", elsewhere)
    with pytest.raises(Damage, match="shard-00/other"):
        run(plan)


def test_a_topic_that_a_salvage_makes_up_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cases.load("a-topic-for-dead-letters-is-there-after-a-salvage")
    monkeypatch.setattr(Truth, "may_be_made", lambda *_: False)
    with pytest.raises(Broken, match="dead is there, and nobody has made it"):
        run(plan)


def _consumed_source() -> Plan:
    """A router copies the records of a topic, which are deleted when they are consumed; then two restarts."""
    plan = cases.load("a-record-is-deleted-before-a-router-has-copied-it")
    d, consumer = {"topic": "d"}, {"topic": "d", "consumer": "c"}
    owner = Actor(
        "d-owner",
        [
            Step("topic", 0, {**d, "config": {"durability": "fsync", "retention": "consumed"}}),
            Step("put_consumer", 50, {**consumer, "from": "earliest", "share": 0.0}),
            Step("append", 0, {**d, "count": 1, "size": 30, "tag": "x", "node": None, "meta": None, "key": False}),
            Step("commit_consumer", 500, {**consumer, "share": 1.0, "owned": False}),
            Step("expire", 0),
            Step("look", 500, d),
        ],
    )
    first = plan.lives[0]
    actors = [owner if actor.name == "d-owner" else actor for actor in first.actors]
    return replace(plan, lives=[replace(first, actors=actors), *plan.lives[1:]])


def test_a_record_that_was_consumed_and_never_copied_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = _consumed_source()
    assert run(plan).checked["consumed and copied"] == 1
    monkeypatch.setattr(Forwarders, "_choose", lambda *_: [])
    with pytest.raises(Broken, match="was deleted and not copied"):
        run(plan)


def _damaged_in_two_segments() -> World:
    """A stopped daemon with one topic of two sealed segments, of which the neighbouring records 4 and 5 are damaged."""
    world = World(config=settings(segment_max_events=4, segment_max_age_ms=0))

    async def fill(life: Life) -> None:
        await life.engine.topic_lifecycle.put("t", TopicConfigPatch(durability="fsync"))
        for n in range(1, 9):
            record = RecordIn(data=msgspec.Raw(b'{"n":%d}' % n))
            await life.engine.appends.append("t", AppendRequest(records=[record]), Performance())
        await life.compactor.checkpoint()

    assert world.live(fill)
    fs = world.fs
    first, second = sorted(path for path, content in fs.tree().items() if content and path.endswith(".data"))
    for path, at in ((first, -1), (second, 0)):
        content = fs.tree()[path]
        assert content
        fs.flip_bit(path, rows_of(content).offset[at] + 20, 0)
    return world


def test_what_one_reading_shows_and_the_next_does_not_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a daemon would that finds damage and forgets it again."""
    world, readings = _damaged_in_two_segments(), [0]

    async def forget(engine: Engine, name: str) -> View:
        view = await view_of(engine, name)
        readings[0] += 1
        return dataclasses.replace(view, gaps=view.gaps[: readings[0] % 2])

    async def look(life: Life) -> None:
        await running.shown_by(life)

    monkeypatch.setattr(running, "view_of", forget)
    with pytest.raises(Broken, match="the next one"):
        world.live(look)


def test_what_fails_is_cut_down_and_fails_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make(5)
    wanted = next(step.do for life in plan.lives for actor in life.actors for step in actor.steps)

    def fails(smaller: Plan) -> bool:
        return any(step.do == wanted for life in smaller.lives for actor in life.actors for step in actor.steps)

    small = shrink(plan, fails)
    assert fails(small)
    assert small.size() == 2, "one life with one step"
    assert shrink(plan, fails, tries=0) == plan


def test_failures_are_alike_but_for_their_numbers() -> None:
    assert kind_of("Broken: a: seq 4 was promised\n  more") == kind_of("Broken: a: seq 17 was promised")


# ----------------------------------------------------------------- it allows what is right


def test_damage_of_two_segments_is_two_gaps_to_who_finds_it_and_one_to_all_others() -> None:
    world = _damaged_in_two_segments()
    found: list[list[tuple[int, int, str]]] = []
    shown: list[running.Shown] = []

    async def find(life: Life) -> None:
        found.append((await view_of(life.engine, "t")).gaps)

    async def look(life: Life) -> None:
        shown.append(await running.shown_by(life))

    assert World(1, config=world.settings, fs=world.fs.after_process_kill()).live(find)
    assert found == [[(4, 4, "corrupt"), (5, 5, "corrupt")]]
    for _ in range(2):
        world = World(1, config=world.settings, fs=world.fs.after_process_kill())
        assert world.live(look)
    assert [one.views["t"].gaps for one in shown] == [[(4, 5, "corrupt")]] * 2


def test_a_stop_on_a_disk_that_stays_full_comes_to_an_end() -> None:
    plan = make(970289)
    assert problem_of(replace(plan, lives=plan.lives[:1]))[0] is None


# ----------------------------------------------------------------- the command


def test_the_command_runs_a_case_and_shows_a_plan(tmp_path: Path) -> None:
    shown = CliRunner().invoke(main, ["--show", "--from", "3"])
    assert decode(shown.stdout_bytes) == make(3)
    path = tmp_path / "plan.json"
    path.write_bytes(encode(replace(make(3), lives=make(3).lives[:1])))
    ran = CliRunner().invoke(main, ["--case", str(path)])
    assert (ran.exit_code, "nothing is wrong" in ran.output) == (0, True)


def test_the_command_says_what_fails_and_how_to_see_it_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimFile, "fdatasync", lambda file: None)
    path = tmp_path / "plan.json"
    failing = next(plan for seed in range(40) if problem_of(plan := make(seed))[0] is not None)
    path.write_bytes(encode(failing))
    saved = tmp_path / "small.json"
    ran = CliRunner().invoke(main, ["--case", str(path), "--save", str(saved)])
    assert ran.exit_code == 1
    assert "cut down from" in ran.output
    assert decode(saved.read_bytes()).size() < failing.size()
