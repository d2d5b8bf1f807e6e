"""Filters that an export applies, and those that it leaves to Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any, Final
from urllib.parse import quote_plus

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from tests.conformance.client import Client, Daemon, fresh_name
from tests.filters import oracle
from tests.spark.asked import asked
from topics.filters.record_filter import parse_filter
from topics.spark.pushdown import EVERYTHING, MAX_PUSHED_BYTES, QueryScope, narrowed

SEQ, TS, TOPIC, TAG, NODE, META, DATA = ("seq",), ("ts",), ("topic",), ("tag",), ("node",), ("meta",), ("data",)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp() * 1000)
US = timedelta(microseconds=1)


def scope(*filters: Filter) -> tuple[QueryScope, list[Filter]]:
    return narrowed(EVERYTHING, filters, exact=True)


def pushed(*filters: Filter) -> tuple[Any, list[Filter]]:
    """The filter of the daemon, and what is left to Spark."""
    found, rest = scope(*filters)
    return None if found.filter is None else json.loads(found.filter), rest


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


def test_tags_and_nodes_are_filtered_by_the_daemon() -> None:
    assert pushed(EqualTo(TAG, "eu")) == (["tag", "Eq", "eu"], [])
    assert pushed(EqualNullSafe(TAG, "eu")) == (["tag", "Eq", "eu"], [])
    assert pushed(EqualTo(TAG, "a*")) == (["tag", "Eq", "a*"], [])
    assert pushed(StringStartsWith(TAG, "UA:")) == (["tag", "Glob", "UA:*"], [])
    assert pushed(StringStartsWith(TAG, "a*")) == (["tag", "Glob", "a**"], [])
    assert pushed(In(TAG, ("eu", "us"))) == (["tag", "In", ["eu", "us"]], [])
    assert pushed(EqualTo(NODE, "shop")) == (["node", "Eq", "shop"], [])
    assert pushed(In(NODE, ("shop", "üx"))) == (["node", "In", ["shop", "üx"]], [])


def test_that_there_is_a_tag_or_none_is_asked_of_the_daemon() -> None:
    assert pushed(IsNotNull(TAG)) == (["tag", "Glob", "*"], [])
    assert pushed(IsNull(TAG)) == (["Not", ["tag", "Glob", "*"]], [])
    assert pushed(EqualNullSafe(TAG, None)) == (["Not", ["tag", "Glob", "*"]], [])


def test_what_is_negated_comes_with_records_without_a_tag_and_is_looked_at_again() -> None:
    other, elsewhere = Not(EqualTo(TAG, "eu")), Not(In(NODE, ("shop", None)))
    assert pushed(other) == (["Not", ["tag", "Eq", "eu"]], [other])
    assert pushed(elsewhere) == (["Not", ["node", "In", ["shop"]]], [elsewhere])


def test_a_null_in_a_list_is_equal_to_nothing() -> None:
    assert pushed(In(TAG, ("eu", None))) == (["tag", "In", ["eu"]], [])
    nothing = In(TAG, (None,))
    assert pushed(nothing) == (None, [nothing])


def test_conditions_are_joined_with_each_other_and_with_the_option() -> None:
    tag, node, data = EqualTo(TAG, "eu"), EqualTo(NODE, "shop"), StringContains(DATA, "x")
    assert pushed(tag, data, node) == (["And", ["tag", "Eq", "eu"], ["node", "Eq", "shop"]], [data])
    given_filter = '["data","/total","Ge",9007199254740993.0]'
    found, rest = narrowed(QueryScope(conditions=(given_filter,)), [node], exact=True)
    assert (found.filter, rest) == (f'["And",{given_filter},["node","Eq","shop"]]', [])


def test_what_the_daemon_would_refuse_is_left_to_spark() -> None:
    many = [Not(EqualTo(TAG, str(number))) for number in range(40)]
    found, rest = scope(*many)
    assert found.filter is not None
    parse_filter(found.filter)
    assert found.filter.count('["Not"') == 31, "of 64 predicates and operators `And` is one"
    assert rest == many
    long = [In(TAG, tuple(f"{number:02}{'x' * 40}" for number in range(99))), In(TAG, tuple(map(str, range(101))))]
    assert pushed(*long) == (None, long)
    deep, tag = QueryScope(conditions=('["Not",' * 7 + '["tag","Eq","a"]' + "]" * 7,)), EqualTo(TAG, "b")
    assert narrowed(deep, [tag], exact=True) == (deep, [tag])


@pytest.mark.parametrize(
    "filter_",
    [
        EqualTo(DATA, "5"),
        StringContains(TAG, "x"),
        GreaterThan(TAG, "x"),
        EqualTo(TAG, None),
        EqualTo(TAG, 5),
        EqualTo(TAG, "x" * 1025),
        EqualTo(TAG, "\ud800"),
        In(TAG, ()),
        Not(StringContains(TAG, "x")),
        IsNull(NODE),
        IsNotNull(NODE),
        StringStartsWith(NODE, "a"),
        IsNotNull(META),
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
    found, rest = narrowed(EVERYTHING, filters, exact=False)
    assert (found.first, found.filter, rest) == (11, '["tag","Eq","eu"]', filters)


# --- whatever the filters --------------------------------------------------------------------------------------------

_NAMES: Final = ["a", "b", "a*", "ab", "ü", 'q"\\', "*"]
_STRANGE: Final = ["", "\ud800", "x" * 1100, 5]
_TIMES: Final = [NOON + millis * timedelta(milliseconds=1) for millis in range(3)]
_ORDER: Final[Mapping[type[Filter], Callable[[Any, Any], bool]]] = {
    EqualTo: lambda value, operand: value == operand,
    GreaterThan: lambda value, operand: value > operand,
    GreaterThanOrEqual: lambda value, operand: value >= operand,
    LessThan: lambda value, operand: value < operand,
    LessThanOrEqual: lambda value, operand: value <= operand,
    StringStartsWith: lambda value, operand: value.startswith(operand),
    StringEndsWith: lambda value, operand: value.endswith(operand),
    StringContains: lambda value, operand: operand in value,
}


def spark_says(one: Any, row: Mapping[str, Any]) -> bool | None:
    """What a filter of Spark is for a row, None for null."""
    if isinstance(one, Not):
        inner = spark_says(one.child, row)
        return None if inner is None else not inner
    value = row[one.attribute[0]]
    if isinstance(one, IsNull | IsNotNull):
        return (value is None) is isinstance(one, IsNull)
    if isinstance(one, EqualNullSafe):
        return bool(value == one.value)
    if value is None or one.value is None:
        return None
    if isinstance(one, In):
        return True if value in one.value else None if None in one.value else False
    return _ORDER[type(one)](value, one.value)


def lets_through(found: QueryScope, row: Mapping[str, Any]) -> bool:
    """What an export with these conditions does with a row."""
    at_ms = round(row["ts"].timestamp() * 1000)
    return (
        not found.is_nothing
        and found.reads(row["topic"])
        and found.first <= row["seq"] <= found.last
        and (found.from_ts is None or found.from_ts <= at_ms)
        and (found.to_ts is None or at_ms <= found.to_ts)
        and (found.filter is None or matches(found.filter, row))
    )


def matches(text: str, row: Mapping[str, Any]) -> bool:
    parse_filter(text)  # the daemon takes it
    record = oracle.Written(row["data"], row["tag"], row["node"], row["meta"])
    return oracle.matches(oracle.decoded(text), record)


def _filters_on(column: str, operands: st.SearchStrategy[Any], *, texts: bool) -> st.SearchStrategy[Filter]:
    kinds: list[Any] = [EqualTo, EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    kinds += [StringStartsWith, StringStartsWith, StringEndsWith, StringContains] if texts else []
    compared = st.builds(lambda kind, operand: kind((column,), operand), st.sampled_from(kinds), operands)
    lists = st.lists(operands | st.none(), max_size=4).map(lambda found: In((column,), tuple(found)))
    nulls = st.sampled_from([IsNull((column,)), IsNotNull((column,)), EqualTo((column,), None)])
    return compared | lists | nulls | st.just(EqualNullSafe((column,), None))


_names = st.sampled_from(_NAMES)
_plain = st.one_of(
    _filters_on("tag", _names, texts=True),
    _filters_on("node", _names, texts=True),
    _filters_on("topic", st.sampled_from("ab"), texts=True),
    _filters_on("seq", st.integers(-1, 7), texts=False),
    _filters_on(
        "ts", st.builds(lambda at, micros: at + micros * US, st.sampled_from(_TIMES), st.integers(-1, 1)), texts=False
    ),
    st.builds(
        lambda column, value: EqualTo((column,), value), st.sampled_from(["tag", "node"]), st.sampled_from(_STRANGE)
    ),
)
_filters = st.lists(_plain | _plain.map(Not), min_size=1, max_size=3)
_rows = st.builds(
    lambda record, **columns: {**record._asdict(), **columns},
    oracle.records,
    topic=st.sampled_from("ab"),
    seq=st.integers(1, 5),
    ts=st.sampled_from(_TIMES),
)
_ROW: Final = {"topic": "a", "seq": 1, "ts": NOON, "meta": None, "data": b"1"}


@given(_filters, st.none() | oracle.filters, _rows)
@example([Not(EqualTo(TAG, "a")), Not(EqualNullSafe(NODE, "a"))], None, _ROW)
@example([Not(IsNotNull(TAG))], None, _ROW)
@example([Not(In(TAG, ("a", None)))], None, _ROW)
@example([IsNotNull(TAG), StringStartsWith(TAG, "a"), In(NODE, ("a", "b", None))], '["tag","In",["a","ab"]]', _ROW)
def test_what_spark_keeps_of_what_is_pushed_is_what_it_would_keep_of_everything(
    filters: list[Filter], option: str | None, row: Mapping[str, Any]
) -> None:
    before = QueryScope(conditions=() if option is None else (option,))
    found, rest = narrowed(before, filters, exact=True)
    assert all(any(one is each for each in filters) for one in rest)
    assert found.filter == option or len(quote_plus(found.filter or "")) <= MAX_PUSHED_BYTES
    for tag, node in product([None, *_NAMES], repeat=2):
        each = {**row, "tag": tag, "node": node}
        kept = lets_through(found, each) and all(spark_says(one, each) is True for one in rest)
        wanted = lets_through(before, each) and all(spark_says(one, each) is True for one in filters)
        assert kept == wanted, each


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
    tags, nodes = ["eu", "us", "us:1", "us*", None], ["shop", None]
    records = [{"data": place, "tag": tags[place % 5], "node": nodes[place // 5 % 2]} for place in range(500)]
    http.append(topic, records=records)
    stamp = datetime.fromtimestamp(http.read(topic, limit=1)["records"][0]["$ts"] / 1000, UTC).isoformat()
    cases = (
        ("seq BETWEEN 100 AND 119 AND tag = 'eu'", 4, 4),
        ("tag LIKE 'us:%'", 100, 100),
        ("tag IN ('eu', 'us', NULL)", 200, 200),
        ("tag IS NULL AND node = 'shop'", 50, 50),
        ("tag <=> NULL", 100, 100),
        ("tag <> 'eu'", 300, 300),  # with tag IS NOT NULL, which Spark adds
        ("NOT tag <=> 'eu'", 400, 400),
        ("node <> 'shop'", 0, 250),
        ("node IN ('shop', 'bar') AND data < 10", 5, 250),
        ("node IS NULL OR tag = 'eu'", 300, 500),
        (f"topic = '{topic}' AND seq <= 3 AND data > 0", 2, 3),
        ("topic = 'another'", 0, 0),
        (f"ts >= TIMESTAMP'{stamp}' AND ts < TIMESTAMP'{stamp}' + INTERVAL 1 DAY", 500, 500),
        (f"ts < TIMESTAMP'{stamp}'", 0, 0),
    )
    everything = read(pushing, daemon, topic).selectExpr("seq", *(condition for condition, _, _ in cases)).collect()
    for place, (condition, count, most) in enumerate(cases, 1):
        with asked(http) as daemons:
            found = {row.seq for row in read(pushing, daemon, topic, pushdown="true").where(condition).collect()}
        assert found == {row.seq for row in everything if row[place]}, condition
        assert len(found) == count, condition
        assert daemons.records <= most, condition


@pytest.mark.slow
def test_the_option_is_sent_with_every_read_and_joined_with_what_is_pushed(
    pushing: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    records = [{"data": {"n": place}, "tag": f"t{place % 2}", "meta": {"m": str(place % 3)}} for place in range(60)]
    http.append(topic, records=records)
    wanted = {"filter": 'data./n >= 30 and meta.m = "0"', "columns": "seq,tag"}
    with asked(http) as daemons:
        found = {row.seq for row in read(pushing, daemon, topic, **wanted).collect()}
        assert found == {seq for seq in range(31, 61) if seq % 3 == 1}
        narrow = read(pushing, daemon, topic, pushdown="true", **wanted).where("tag = 't1'")
        assert {row.seq for row in narrow.collect()} == {seq for seq in found if seq % 2 == 0}
    assert daemons.records == 15
    assert daemons.exports_with_data == 0


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
