"""What two looks at a daemon say: rates, the slowest syncs, who comes first."""

from __future__ import annotations

import math
from typing import Any

import pytest

from topics.cli.snapshots import Look, Snapshot, Standing, Wanted, quantile, snapshot, standings, truncated


def labelled(label: str, values: dict[str, float]) -> list[dict[str, Any]]:
    return [{"labels": {label: name}, "value": value} for name, value in values.items()]


def look(
    at: float, topics: dict[str, Standing], /, *, complete: bool = True, uptime_ms: float | None = None, **metrics: Any
) -> Look:
    named = {f"topics_{name}": value for name, value in metrics.items()}
    named["topics_uptime_ms"] = at * 1000 if uptime_ms is None else uptime_ms
    return Look(at, 0, "1", named, topics, complete)


def rates(seen: Snapshot) -> dict[str, tuple[float | None, float | None]]:
    return {line.topic: (line.records_per_s, line.bytes_per_s) for line in seen.topics}


def test_a_first_look_has_no_rates() -> None:
    seen = snapshot(None, look(10, {"a": Standing(5, 5, 50)}), Wanted())
    assert rates(seen) == {"a": (None, None)}
    assert (seen.records_per_s, seen.wal_bytes_per_s) == (None, None)


def test_rates_are_those_between_two_looks() -> None:
    before = look(10, {"a": Standing(5, 5, 50), "b": Standing(1, 1, 10)}, wal_bytes_written_total=100)
    now = look(12, {"a": Standing(25, 25, 450), "b": Standing(1, 1, 10)}, wal_bytes_written_total=500)
    seen = snapshot(before, now, Wanted())
    assert rates(seen) == {"a": (10, 200), "b": (0, 0)}
    assert (seen.records_per_s, seen.wal_bytes_per_s) == (10, 200)


def test_where_records_went_too_the_bytes_that_came_are_those_of_records_that_are_there() -> None:
    before, now = look(0, {"a": Standing(100, 10, 1000)}), look(1, {"a": Standing(150, 10, 2000)})
    assert rates(snapshot(before, now, Wanted())) == {"a": (50, 50 * 200)}


def test_what_was_only_deleted_from_has_no_rate_below_zero() -> None:
    before, now = look(0, {"a": Standing(9, 9, 90)}), look(1, {"a": Standing(9, 0, 0)})
    assert rates(snapshot(before, now, Wanted())) == {"a": (0, 0)}


def test_a_topic_that_was_made_meanwhile_began_at_nothing() -> None:
    before, now = look(0, {}), look(2, {"a": Standing(10, 10, 40)})
    assert rates(snapshot(before, now, Wanted())) == {"a": (5, 20)}


def test_a_topic_that_was_made_again_began_at_nothing() -> None:
    before, now = look(0, {"a": Standing(50, 50, 500)}), look(1, {"a": Standing(10, 10, 40)})
    assert rates(snapshot(before, now, Wanted())) == {"a": (10, 40)}


def test_a_topic_that_may_only_not_have_been_seen_before_has_no_rate() -> None:
    before, now = look(0, {}, complete=False), look(1, {"a": Standing(10, 10, 40)})
    assert rates(snapshot(before, now, Wanted())) == {"a": (None, None)}


def test_there_are_no_rates_over_a_restart() -> None:
    before = look(0, {"a": Standing(5, 5, 5)}, uptime_ms=90_000)
    now = look(1, {"a": Standing(4096, 5, 5)}, uptime_ms=700)
    seen = snapshot(before, now, Wanted())
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
    before = look(0, {"busy": Standing(0, 0, 0), "big": Standing(0, 0, 0), "jobs": Standing(9, 99, 500)})
    now = look(
        1,
        {"busy": Standing(10, 10, 10), "big": Standing(5, 5, 1000), "jobs": Standing(9, 99, 500)},
        topic_queue_ready=labelled("topic", {"jobs": 7}),
        topic_queue_in_flight=labelled("topic", {"jobs": 2}),
    )
    seen = snapshot(before, now, Wanted(sort=sort))
    assert [line.topic for line in seen.topics] == order
    jobs = next(line for line in seen.topics if line.topic == "jobs")
    assert (jobs.ready, jobs.in_flight) == (7, 2)


def test_what_is_above_the_limit_is_left_out_but_counted() -> None:
    before, now = look(0, {}), look(1, {name: Standing(2, 2, 2) for name in "cab"}, topics=3)
    seen = snapshot(before, now, Wanted(limit=2))
    assert [line.topic for line in seen.topics] == ["a", "b"]
    assert (seen.topics_seen, seen.topics_total, seen.records_per_s) == (3, 3, 6)


def test_routers_that_are_behind_come_first() -> None:
    def at(seconds: float, **copies: float) -> Look:
        lags = labelled("router", {"slow": 40, "idle": 0, "new": 0})
        return look(seconds, {}, router_lag=lags, router_forwarded_total=labelled("router", copies))

    seen = snapshot(at(0, slow=10, idle=5), at(2, slow=30, idle=5, new=8), Wanted())
    found = [(line.router, line.lag, line.copies_per_s, line.copies) for line in seen.routers]
    assert found == [("slow", 40, 10, 30), ("idle", 0, 0, 5), ("new", 0, None, 8)]


def test_the_slowest_syncs_are_those_since_the_look_before() -> None:
    def at(seconds: float, **counts: float) -> Look:
        return look(seconds, {}, wal_fsync_latency_us=labelled("le", {"+Inf": counts.pop("inf"), **counts}))

    before = at(0, **{"100": 10, "500": 100}, inf=100)
    assert snapshot(None, before, Wanted()).fsync_p99_us == 500
    assert snapshot(before, at(1, **{"100": 20, "500": 110}, inf=110), Wanted()).fsync_p99_us == 100
    assert snapshot(before, before, Wanted()).fsync_p99_us is None


def test_a_quantile_above_all_bounds_is_told_as_the_last() -> None:
    assert quantile([(math.inf, 4), (10, 1), (20, 2)], 0.99) == 20
    assert quantile([(math.inf, 4), (10, 4)], 0.99) == 10
    assert quantile([], 0.5) is None


def test_it_is_read_only_where_a_shard_failed_or_the_daemon_says_so() -> None:
    assert not snapshot(None, look(0, {}, wal_read_only=0), Wanted()).read_only
    assert snapshot(None, look(0, {}, wal_read_only=1), Wanted()).read_only
    assert snapshot(None, look(0, {}, wal_read_only=0, read_only=1), Wanted()).read_only


def test_the_metrics_tell_where_topics_stand() -> None:
    metrics: dict[str, Any] = {
        "topics_topic_head_seq": labelled("topic", {"a": 5, "b": 7}),
        "topics_topic_records_live": labelled("topic", {"a": 4, "b": 6}),
        "topics_topic_bytes_live": labelled("topic", {"a": 40, "b": 60}),
        "topics_topic_metrics_truncated": 0.0,
    }
    assert standings(metrics, "b") == {"b": Standing(7, 6, 60)}
    assert not truncated(metrics)
    assert truncated(metrics | {"topics_topic_metrics_truncated": 1.0})
