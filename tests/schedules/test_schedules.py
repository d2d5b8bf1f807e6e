"""Due times, late firings and replay: decisions about schedules against a naive model."""

from __future__ import annotations

import random
from typing import Any

import cbor2
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.errors import ApiError
from topics.schedules.schedule_events import Definition, ScheduleDeleted, ScheduleFired, schedule_event_from_wire
from topics.schedules.schedules import GRACE_MS, MAX_CATCH_UP, Schedule, Schedules

MINUTE = 60_000
T0 = 1_767_225_600_000  # 2026-01-01


def definition(**fields: Any) -> Definition:
    every = Definition("s", 1, "t", '{"data":1}', None, 5 * MINUTE, "UTC", "none", False, T0, T0, T0)
    return every._replace(**fields)


def due(schedule: Schedule, now: int) -> list[int]:
    schedule.look(now)
    return list(schedule.backlog)


def test_nothing_is_due_before_its_time() -> None:
    schedule = Schedule(definition())
    assert due(schedule, T0) == []
    assert schedule.due_ts == T0 + 5 * MINUTE
    assert due(schedule, T0 + 5 * MINUTE - 1) == []
    assert due(schedule, T0 + 5 * MINUTE) == [T0 + 5 * MINUTE]
    schedule.fired(T0 + 5 * MINUTE)
    assert due(schedule, T0 + 5 * MINUTE) == []
    assert (schedule.due_ts, schedule.last_ts) == (T0 + 10 * MINUTE, T0 + 5 * MINUTE)


@pytest.mark.parametrize(("late", "fires"), [(0, True), (GRACE_MS, True), (GRACE_MS + 1, False)])
def test_none_fires_what_was_noticed_in_time(late: int, fires: bool) -> None:
    schedule = Schedule(definition(every_ms=10 * MINUTE))
    now = T0 + 30 * MINUTE + late
    assert due(schedule, now) == ([T0 + 30 * MINUTE] if fires else [])
    assert schedule.missed == (2 if fires else 3)
    assert schedule.next_ts == T0 + 40 * MINUTE


def test_none_that_is_refused_is_tried_until_the_next_is_due() -> None:
    schedule = Schedule(definition())
    assert due(schedule, T0 + 5 * MINUTE) == [T0 + 5 * MINUTE]
    assert due(schedule, T0 + 10 * MINUTE - 1) == [T0 + 5 * MINUTE]
    assert schedule.due_ts == T0 + 5 * MINUTE
    assert due(schedule, T0 + 10 * MINUTE) == [T0 + 10 * MINUTE]
    assert schedule.missed == 1


def test_one_fires_the_latest_however_late() -> None:
    schedule = Schedule(definition(catch_up="one"))
    assert due(schedule, T0 + 23 * MINUTE) == [T0 + 20 * MINUTE]
    assert due(schedule, T0 + 26 * MINUTE) == [T0 + 25 * MINUTE]


def test_all_fires_the_newest_thousand_in_their_order() -> None:
    schedule = Schedule(definition(catch_up="all", every_ms=MINUTE))
    found = due(schedule, T0 + 1500 * MINUTE)
    assert found == [T0 + i * MINUTE for i in range(501, 1501)]
    assert len(found) == MAX_CATCH_UP
    schedule.fired(found[0])
    assert due(schedule, T0 + 1502 * MINUTE) == [T0 + i * MINUTE for i in range(503, 1503)]


def test_a_clock_that_was_set_back_fires_nothing_twice() -> None:
    schedule = Schedule(definition(catch_up="all"))
    due(schedule, T0 + 5 * MINUTE)
    schedule.fired(T0 + 5 * MINUTE)
    schedule.rewind()
    assert due(schedule, T0 + MINUTE) == []
    assert schedule.next_ts == T0 + 10 * MINUTE
    assert due(schedule, T0 + 6 * MINUTE) == []


def test_what_was_dropped_while_the_clock_was_ahead_is_due_again() -> None:
    schedule = Schedule(definition())
    assert due(schedule, T0 + 1000 * MINUTE + 2 * GRACE_MS) == []
    schedule.rewind()
    assert due(schedule, T0 + 5 * MINUTE) == [T0 + 5 * MINUTE]


def test_a_zone_that_is_gone_is_told_and_fires_nothing() -> None:
    schedule = Schedule(definition(every_ms=None, cron="* * * * *", time_zone="Gone/Zone"))
    assert due(schedule, T0 + 5 * MINUTE) == []
    assert schedule.due_ts is None
    assert "Gone/Zone" in (schedule.problem or "")


CATCH_UPS = st.sampled_from(["none", "one", "all"])


@given(
    every=st.integers(1, 40),
    catch_up=CATCH_UPS,
    steps=st.lists(st.tuples(st.sampled_from(["look", "refuse", "restart"]), st.integers(0, 60)), max_size=40),
)
def test_against_a_model_that_looks_at_every_time(every: int, catch_up: Any, steps: list[tuple[str, int]]) -> None:
    """Units of 10 s. The model keeps all times, and which of them were noticed within the grace."""
    unit = 10_000
    schedule = Schedule(definition(every_ms=every * unit, catch_up=catch_up))
    now, last, seen = T0, T0, T0
    waiting: list[int] = []
    fired: list[int] = []
    for what, passed in steps:
        now += passed * unit
        if what == "restart":
            again = Schedule(schedule.definition)
            again.last_ts, schedule = schedule.last_ts, again
            waiting, seen = [], last
        new = [ts for ts in range(T0 + every * unit, now + 1, every * unit) if ts > max(seen, last)]
        if new:
            waiting = waiting + new
            if catch_up == "one" or (catch_up == "none" and now - new[-1] <= GRACE_MS):
                waiting = [new[-1]]
            elif catch_up == "none":
                waiting = []
            seen = new[-1]
        assert due(schedule, now) == waiting
        if what != "refuse":
            for ts in list(waiting):
                assert ts > last, "never at or before last_ts"
                schedule.fired(ts)
                fired.append(ts)
                last = ts
            waiting = []
        assert schedule.last_ts == (fired[-1] if fired else None)
        schedule.look(now)
        assert schedule.next_ts is not None
        assert schedule.next_ts > now
    assert fired == sorted(set(fired))
    if catch_up == "all":
        assert fired == [T0 + (i + 1) * every * unit for i in range(len(fired))]


# -- decisions ---------------------------------------------------------------------------------------------------


def put(schedules: Schedules, now: int, *, fresh: int = 7, **fields: Any) -> Definition | None:
    wish: dict[str, Any] = {
        "topic": "t", "record": '{"data":1}', "cron": None, "every_ms": MINUTE, "time_zone": "UTC", "catch_up": "none",
        "paused": None,
    }  # fmt: skip
    event = schedules.decide_put("s", new_id=lambda: fresh, now=now, **(wish | fields))
    if event is not None:
        schedules.apply(event)
    return event


def test_a_put_that_changes_nothing_is_no_event_and_one_of_the_times_begins_anew() -> None:
    schedules = Schedules()
    assert put(schedules, T0) is not None
    assert put(schedules, T0 + 1) is None
    schedule = schedules.get("s")
    schedule.look(T0 + 5 * MINUTE)
    schedules.apply(ScheduleFired(7, T0 + MINUTE))
    renamed = put(schedules, T0 + 5 * MINUTE, topic="other")
    assert renamed is not None
    assert renamed.from_ts == T0
    assert list(schedule.backlog) == [T0 + 5 * MINUTE], "another topic changes no time"
    slower = put(schedules, T0 + 6 * MINUTE + 1, topic="other", every_ms=2 * MINUTE)
    assert slower is not None
    assert (slower.id, slower.anchor_ts, slower.from_ts) == (7, T0 + 6 * MINUTE + 1, T0 + 6 * MINUTE + 1)
    assert schedule.last_ts == T0 + MINUTE
    assert due(schedule, T0 + 7 * MINUTE) == []
    assert schedule.due_ts == T0 + 8 * MINUTE + 1


def test_what_was_due_during_a_pause_is_not_made_up_for() -> None:
    schedules = Schedules()
    put(schedules, T0, catch_up="all")
    schedule = schedules.get("s")
    paused = schedules.decide_pause("s", T0 + MINUTE // 2, paused=True)
    assert paused is not None
    schedules.apply(paused)
    assert schedules.decide_pause("s", T0 + MINUTE, paused=True) is None
    assert due(schedule, T0 + 10 * MINUTE) == []
    assert schedule.due_ts is None
    assert put(schedules, T0 + 9 * MINUTE, catch_up="all") is None, "a PUT without paused leaves it paused"
    resumed = schedules.decide_pause("s", T0 + 10 * MINUTE, paused=False)
    assert resumed is not None
    schedules.apply(resumed)
    assert due(schedule, T0 + 11 * MINUTE) == [T0 + 11 * MINUTE]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"every_ms": None, "cron": "* * *"}, "cron"),
        ({"every_ms": None, "cron": "* * * * *", "time_zone": "No/Where"}, "time_zone"),
    ],
)
def test_times_that_cannot_be_are_refused(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ApiError) as refused:
        put(Schedules(), T0, **fields)
    assert (refused.value.code, refused.value.detail["field"]) == ("invalid_request", field)


def test_a_missing_schedule_is_404() -> None:
    with pytest.raises(ApiError) as refused:
        Schedules().decide_pause("s", T0, paused=True)
    assert refused.value.code == "schedule_not_found"
    assert Schedules().decide_delete("s") is None


# -- replay ------------------------------------------------------------------------------------------------------


@given(seed=st.integers(0, 2**32), count=st.integers(1, 40))
def test_any_order_of_shards_and_any_snapshot_give_the_same(seed: int, count: int) -> None:
    """Definitions are in order in one shard, firings in others. A snapshot may be newer than where replay begins."""
    rng = random.Random(seed)
    live = Schedules()
    home: list[Any] = []
    shards: list[list[Any]] = [[], [], []]
    begin_home, begin_shards = 0, [0, 0, 0]
    snapshot: tuple[list[bytes], list[int]] | None = None
    fresh = 0
    for step in range(count):
        name, now = rng.choice("ab"), T0 + step * MINUTE
        known = live.find(name)
        event: Any
        if known is None or rng.random() < 0.3:
            fresh += known is None
            number = fresh if known is None else known.definition.id
            event = definition(schedule=name, id=number, from_ts=now, record=f'{{"data":{step}}}')
        elif rng.random() < 0.3:
            event = ScheduleDeleted(name, known.definition.id)
        else:
            event = ScheduleFired(known.definition.id, now)
        if isinstance(event, ScheduleFired):
            rng.choice(shards).append(event)
        else:
            home.append(event)
        taken = rng.random() < 0.1
        if taken:  # the positions are taken before the state is
            begin_home, begin_shards = len(home) - 1, [max(len(shard) - 1, 0) for shard in shards]
        live.apply(event)
        live.settle()
        if taken:
            snapshot = live.dump(cbor2.dumps)
    logs = [home[begin_home:] if snapshot else home]
    logs += [shard[begin if snapshot else 0 :] for shard, begin in zip(shards, begin_shards, strict=True)]
    rng.shuffle(logs)
    again = Schedules()
    if snapshot:
        definitions, times = snapshot
        again.load(definitions, times, cbor2.loads)
    for log in logs:
        for event in log:
            again.apply(schedule_event_from_wire(cbor2.loads(cbor2.dumps(event.to_wire()))))
    again.settle()
    assert [(one.definition, one.last_ts) for one in again] == [(one.definition, one.last_ts) for one in live]
    assert again.record_size == live.record_size == sum(len(one.definition.record) for one in live)


@pytest.mark.parametrize(
    "change",
    [
        {"op": "other"},
        {"every_ms": None},
        {"cron": "* * * * *"},
        {"catch_up": "some"},
        {"from_ts": -1},
        {"id": True},
        {"record": b""},
    ],
)
def test_a_malformed_event_is_refused(change: dict[str, Any]) -> None:
    wire = definition().to_wire()
    assert schedule_event_from_wire(wire) == definition()
    with pytest.raises(ValueError, match="schedule event"):
        schedule_event_from_wire(wire | change)


def test_a_dump_encodes_a_definition_once() -> None:
    schedules, encoded = Schedules(), []

    def encode(value: Any) -> bytes:
        encoded.append(value["schedule"])
        return msgspec.msgpack.encode(value)

    put(schedules, T0)
    first = schedules.dump(encode)
    schedules.apply(ScheduleFired(7, T0 + MINUTE))
    assert schedules.dump(encode) == (first[0], [7, T0 + MINUTE])
    assert encoded == ["s"]
    put(schedules, T0, topic="other")
    schedules.dump(encode)
    assert encoded == ["s", "s"]
