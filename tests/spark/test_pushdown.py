"""Filters that an export applies, and those that it leaves to Spark."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringStartsWith,
)

from tests.conformance.client import Client, Daemon, fresh_name
from tests.spark.asked import asked
from topics.spark.pushdown import EVERYTHING, QueryScope, narrowed

SEQ, TS, TOPIC, TAG, DATA = ("seq",), ("ts",), ("topic",), ("tag",), ("data",)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
US = timedelta(microseconds=1)


def scope(*filters: Filter) -> tuple[QueryScope, list[Filter]]:
    return narrowed(filters, exact=True)


def test_seqs_are_narrowed_exactly() -> None:
    found, rest = scope(GreaterThan(SEQ, 10), LessThanOrEqual(SEQ, 50), GreaterThanOrEqual(SEQ, 5))
    assert ((found.first, found.last), rest) == ((11, 50), [])
    found, rest = scope(EqualTo(SEQ, 7), IsNotNull(SEQ))
    assert ((found.first, found.last), rest) == ((7, 7), [])
    assert scope(LessThan(SEQ, 1))[0].is_nothing


def test_a_list_of_seqs_is_narrowed_to_its_ends() -> None:
    apart, together = In(SEQ, (9, 3)), In(SEQ, (4, 3, 5))
    found, rest = scope(apart)
    assert ((found.first, found.last), rest) == ((3, 9), [apart])
    assert scope(together)[1] == []


@pytest.mark.parametrize(
    ("filter_", "bounds"),
    [
        (GreaterThanOrEqual(TS, NOON), (NOON_MS, None)),
        (GreaterThan(TS, NOON), (NOON_MS + 1, None)),
        (GreaterThan(TS, NOON - US), (NOON_MS, None)),
        (GreaterThanOrEqual(TS, NOON + US), (NOON_MS + 1, None)),
        (LessThanOrEqual(TS, NOON), (None, NOON_MS)),
        (LessThanOrEqual(TS, NOON - US), (None, NOON_MS - 1)),
        (LessThan(TS, NOON), (None, NOON_MS - 1)),
        (LessThan(TS, NOON + US), (None, NOON_MS)),
        (EqualTo(TS, NOON), (NOON_MS, NOON_MS)),
    ],
)
def test_a_bound_in_microseconds_is_one_in_milliseconds(filter_: Filter, bounds: tuple[int | None, int | None]) -> None:
    found, rest = scope(filter_)
    assert ((found.from_ts, found.to_ts), rest) == (bounds, [])


def test_no_record_is_between_two_milliseconds() -> None:
    assert scope(EqualTo(TS, NOON + US))[0].is_nothing
    assert scope(LessThan(TS, datetime(1969, 1, 1, tzinfo=UTC)))[0].is_nothing


def test_topics_are_narrowed_by_name() -> None:
    found, rest = scope(In(TOPIC, ("a", "b")), EqualTo(TOPIC, "b"))
    assert (found.topics, rest) == (frozenset({"b"}), [])
    assert scope(EqualTo(TOPIC, "a"), EqualTo(TOPIC, "b"))[0].is_nothing


def test_a_tag_or_its_beginning_is_a_pattern() -> None:
    assert scope(EqualTo(TAG, "eu")) == (QueryScope(match="eu"), [])
    assert scope(StringStartsWith(TAG, "UA:")) == (QueryScope(match="UA:*"), [])
    assert scope(StringStartsWith(TAG, "a*")) == (QueryScope(match="a**"), [])
    assert scope(IsNotNull(TAG)) == (QueryScope(match="*"), [])


def test_a_tag_that_ends_in_a_star_is_asked_for_as_a_prefix_and_looked_at_again() -> None:
    starred = EqualTo(TAG, "a*")
    assert scope(starred) == (QueryScope(match="a*"), [starred])


def test_of_several_filters_on_tags_the_narrowest_is_pushed() -> None:
    wide, narrow, one = StringStartsWith(TAG, "U"), StringStartsWith(TAG, "UA:"), EqualTo(TAG, "UA:1")
    assert scope(wide, IsNotNull(TAG), narrow) == (QueryScope(match="UA:*"), [wide])
    assert scope(wide, one, narrow) == (QueryScope(match="UA:1"), [wide, narrow])


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(DATA, "5"),
        StringContains(TAG, "x"),
        EqualTo(TAG, ""),
        EqualTo(TAG, "x" * 300),
        EqualTo(TAG, "\ud800"),
        EqualTo(SEQ, 5.5),
        EqualTo(SEQ, True),
        Not(EqualTo(SEQ, 5)),
        EqualTo(("meta", "seq"), 5),
        EqualTo(TS, "noon"),
        GreaterThan(TOPIC, "a"),
        IsNotNull(DATA),
    ],
)
def test_what_an_export_cannot_say_is_left_to_spark(filter_: Filter) -> None:
    assert scope(filter_) == (EVERYTHING, [filter_])


def test_rows_of_gaps_are_left_out_by_spark() -> None:
    filters = [GreaterThan(SEQ, 10), EqualTo(TAG, "eu")]
    found, rest = narrowed(filters, exact=False)
    assert (found.first, found.match, rest) == (11, "eu", filters)


# --- with Spark ------------------------------------------------------------------------------------------------------


@pytest.fixture
def pushing(spark: SparkSession) -> Iterator[SparkSession]:
    """Spark with its own setting on."""
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    yield spark
    spark.conf.unset("spark.sql.python.filterPushdown.enabled")


def read(spark: SparkSession, daemon: Daemon, topic: str, **options: Any) -> DataFrame:
    return spark.read.format("topics").options(url=daemon.url, topic=topic, **options).load()


@pytest.mark.slow
def test_the_daemon_is_asked_for_less_and_the_rows_are_the_same(
    pushing: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    tags = ["eu", "us", "us:1", "us*", None]
    http.append(topic, records=[{"data": place, "tag": tags[place % 5]} for place in range(500)])
    stamp = datetime.fromtimestamp(http.read(topic, limit=1)["records"][0]["$ts"] / 1000, UTC).isoformat()
    every = set(range(1, 501))
    for condition, expected, most in (
        ("seq BETWEEN 100 AND 119 AND tag = 'eu'", {101, 106, 111, 116}, 4),
        ("tag LIKE 'us:%'", set(range(3, 501, 5)), 100),
        ("tag = 'us*'", set(range(4, 501, 5)), 300),
        (f"topic = '{topic}' AND seq <= 3 AND data > 0", {2, 3}, 3),
        ("topic = 'another'", set(), 0),
        (f"ts >= TIMESTAMP'{stamp}' AND ts < TIMESTAMP'{stamp}' + INTERVAL 1 DAY", every, 500),
        (f"ts < TIMESTAMP'{stamp}'", set(), 0),
    ):
        with asked(http) as pushed:
            found = read(pushing, daemon, topic, pushdown="true").where(condition)
            assert {row.seq for row in found.collect()} == expected, condition
        assert pushed.records <= most, condition


@pytest.mark.slow
def test_a_reader_that_offers_push_down_is_for_sessions_that_have_it(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    http.append(topic, 1)
    assert read(spark, daemon, topic).where("seq = 1").count() == 1
    with pytest.raises(Exception, match=r"spark\.sql\.python\.filterPushdown\.enabled"):
        read(spark, daemon, topic, pushdown="true").where("seq = 1").count()


@pytest.mark.slow
def test_gaps_do_not_match_filters(pushing: SparkSession, daemon: Daemon, http: Client) -> None:
    topic = fresh_name("gaps")
    http.put_topic(topic, cap_records=2)
    http.append(topic, *range(5))
    options = {"pushdown": "true", "tombstones": "true", "startingSeq": "1"}
    assert [row.seq for row in read(pushing, daemon, topic, **options).where("seq > 1").collect()] == [4, 5]
    assert read(pushing, daemon, topic, **options).where("reason = 'cap'").count() == 1
