"""What two looks at a daemon say: rates, the slowest syncs, who comes first."""

from __future__ import annotations

import math
from typing import Any

import pytest

from topics.cli.figures.snapshots import (
    DaemonObservation,
    LineSelection,
    TopicObservation,
    TopSnapshot,
    quantile,
    snapshot,
    standings,
    truncated,
)


def labelled(label: str, values: dict[str, float]) -> list[dict[str, Any]]:
    return [{"labels": {label: name}, "value": value} for name, value in values.items()]


def look(
    at: float,
    topics: dict[str, TopicObservation],
    /,
    *,
    complete: bool = True,
    uptime_ms: float | None = None,
    **metrics: Any,
) -> DaemonObservation:
    named = {f"topics_{name}": value for name, value in metrics.items()}
    named["topics_uptime_ms"] = at * 1000 if uptime_ms is None else uptime_ms
    return DaemonObservation(at, 0, "1", named, topics, complete)


def rates(seen: TopSnapshot) -> dict[str, tuple[float | None, float | None]]:
    return {line.topic: (line.records_per_s, line.bytes_per_s) for line in seen.topics}


def test_a_first_look_has_no_rates() -> None:
    seen = snapshot(None, look(10, {"a": TopicObservation(5, 5, 50)}), LineSelection())
    assert rates(seen) == {"a": (None, None)}
    assert (seen.records_per_s, seen.wal_bytes_per_s) == (None, None)


def test_rates_are_those_between_two_looks() -> None:
    before = look(10, {"a": TopicObservation(5, 5, 50), "b": TopicObservation(1, 1, 10)}, wal_bytes_written_total=100)
    now = look(12, {"a": TopicObservation(25, 25, 450), "b": TopicObservation(1, 1, 10)}, wal_bytes_written_total=500)
    seen = snapshot(before, now, LineSelection())
    assert rates(seen) == {"a": (10, 200), "b": (0, 0)}
    assert (seen.records_per_s, seen.wal_bytes_per_s) == (10, 200)


def test_where_records_went_too_the_bytes_that_came_are_those_of_records_that_are_there() -> None:
    before, now = look(0, {"a": TopicObservation(100, 10, 1000)}), look(1, {"a": TopicObservation(150, 10, 2000)})
    assert rates(snapshot(before, now, LineSelection())) == {"a": (50, 50 * 200)}


def test_what_was_only_deleted_from_has_no_rate_below_zero() -> None:
    before, now = look(0, {"a": TopicObservation(9, 9, 90)}), look(1, {"a": TopicObservation(9, 0, 0)})
    assert rates(snapshot(before, now, LineSelection())) == {"a": (0, 0)}


def test_a_topic_that_was_made_meanwhile_began_at_nothing() -> None:
    before, now = look(0, {}), look(2, {"a": TopicObservation(10, 10, 40)})
    assert rates(snapshot(before, now, LineSelection())) == {"a": (5, 20)}


def test_a_topic_that_was_made_again_began_at_nothing() -> None:
    before, now = look(0, {"a": TopicObservation(50, 50, 500)}), look(1, {"a": TopicObservation(10, 10, 40)})
    assert rates(snapshot(before, now, LineSelection())) == {"a": (10, 40)}


def test_a_topic_that_may_only_not_have_been_seen_before_has_no_rate() -> None:
    before, now = look(0, {}, complete=False), look(1, {"a": TopicObservation(10, 10, 40)})
    assert rates(snapshot(before, now, LineSelection())) == {"a": (None, None)}


def test_there_are_no_rates_over_a_restart() -> None:
    before = look(0, {"a": TopicObservation(5, 5, 5)}, uptime_ms=90_000)
    now = look(1, {"a": TopicObservation(4096, 5, 5)}, uptime_ms=700)
    seen = snapshot(before, now, LineSelection())
    assert rates(seen) == {"a": (None, None)}
    assert seen.records_per_s is None


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("rate", ["busy", "big", "jobs"]),
        ("bytes-rate", ["big", "busy", "jobs"]),
        ("records", ["jobs", "busy", "big"]),
        ("bytes", ["big", "jobs", "busy"]),
        ("ready", ["jobs", "big", "busy"]),
        ("name", ["big", "busy", "jobs"]),
    ],
)
def test_the_topics_with_the_most_come_first(sort: Any, order: list[str]) -> None:
    before = look(
        0, {"busy": TopicObservation(0, 0, 0), "big": TopicObservation(0, 0, 0), "jobs": TopicObservation(9, 99, 500)}
    )
    now = look(
        1,
        {
            "busy": TopicObservation(10, 10, 10),
            "big": TopicObservation(5, 5, 1000),
            "jobs": TopicObservation(9, 99, 500),
        },
        topic_queue_ready=labelled("topic", {"jobs": 7}),
        topic_queue_in_flight=labelled("topic", {"jobs": 2}),
    )
    seen = snapshot(before, now, LineSelection(sort=sort))
    assert [line.topic for line in seen.topics] == order
    jobs = next(line for line in seen.topics if line.topic == "jobs")
    assert (jobs.ready, jobs.in_flight) == (7, 2)


def test_what_is_above_the_limit_is_left_out_but_counted() -> None:
    before, now = look(0, {}), look(1, {name: TopicObservation(2, 2, 2) for name in "cab"}, topics=3)
    seen = snapshot(before, now, LineSelection(limit=2))
    assert [line.topic for line in seen.topics] == ["a", "b"]
    assert (seen.topics_seen, seen.topics_total, seen.records_per_s) == (3, 3, 6)


def test_routers_that_are_behind_come_first() -> None:
    def at(seconds: float, **copies: float) -> DaemonObservation:
        lags = labelled("router", {"slow": 40, "idle": 0, "new": 0})
        return look(seconds, {}, router_lag=lags, router_forwarded_total=labelled("router", copies))

    seen = snapshot(at(0, slow=10, idle=5), at(2, slow=30, idle=5, new=8), LineSelection())
    found = [(line.router, line.lag, line.copies_per_s, line.copies) for line in seen.routers]
    assert found == [("slow", 40, 10, 30), ("idle", 0, 0, 5), ("new", 0, None, 8)]


def test_consumers_and_groups_that_are_behind_come_first() -> None:
    def of(label: str, *values: tuple[str, float]) -> list[dict[str, Any]]:
        return [{"labels": {"topic": "orders", label: name}, "value": value} for name, value in values]

    now = look(
        0,
        {},
        consumers=2,
        consumer_lag=of("consumer", ("even", 0), ("late", 3)),
        groups=3,
        group_lag=of("group", ("even", 1), ("late", 9), ("also-late", 9)),
        group_ready=of("group", ("even", 1), ("late", 4), ("also-late", 5)),
        group_in_flight=of("group", ("even", 0), ("late", 2), ("also-late", 0)),
    )
    seen = snapshot(None, now, LineSelection(limit=2))
    assert [(line.topic, line.consumer, line.lag) for line in seen.consumers] == [
        ("orders", "late", 3),
        ("orders", "even", 0),
    ]
    assert (seen.consumers_total, seen.groups_total) == (2, 3)
    found = [(line.group, line.lag, line.ready, line.in_flight) for line in seen.groups]
    assert found == [("also-late", 9, 5, 0), ("late", 9, 4, 2)]


def test_the_slowest_syncs_are_those_since_the_look_before() -> None:
    def at(seconds: float, **counts: float) -> DaemonObservation:
        return look(seconds, {}, wal_fsync_latency_us=labelled("le", {"+Inf": counts.pop("inf"), **counts}))

    before = at(0, **{"100": 10, "500": 100}, inf=100)
    assert snapshot(None, before, LineSelection()).fsync_p99_us == 500
    assert snapshot(before, at(1, **{"100": 20, "500": 110}, inf=110), LineSelection()).fsync_p99_us == 100
    assert snapshot(before, before, LineSelection()).fsync_p99_us is None


def test_a_quantile_above_all_bounds_is_told_as_the_last() -> None:
    assert quantile([(math.inf, 4), (10, 1), (20, 2)], 0.99) == 20
    assert quantile([(math.inf, 4), (10, 4)], 0.99) == 10
    assert quantile([], 0.5) is None


def test_it_is_read_only_where_a_shard_failed_or_the_daemon_says_so() -> None:
    assert not snapshot(None, look(0, {}, wal_read_only=0), LineSelection()).read_only
    assert snapshot(None, look(0, {}, wal_read_only=1), LineSelection()).read_only
    assert snapshot(None, look(0, {}, wal_read_only=0, read_only=1), LineSelection()).read_only


def test_the_metrics_tell_where_topics_stand() -> None:
    metrics: dict[str, Any] = {
        "topics_topic_head_seq": labelled("topic", {"a": 5, "b": 7}),
        "topics_topic_records_live": labelled("topic", {"a": 4, "b": 6}),
        "topics_topic_bytes_live": labelled("topic", {"a": 40, "b": 60}),
        "topics_topic_metrics_truncated": 0.0,
    }
    assert standings(metrics, "b") == {"b": TopicObservation(7, 6, 60)}
    assert not truncated(metrics)
    assert truncated(metrics | {"topics_topic_metrics_truncated": 1.0})
