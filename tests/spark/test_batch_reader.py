"""Batches, with a real Spark and a real daemon."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conformance.client import Client, Daemon, fresh_name
from tests.spark.asked import asked
from topics.spark.schema import SCHEMA

pytestmark = pytest.mark.slow


def read(spark: SparkSession, daemon: Daemon, **options: Any) -> DataFrame:
    return spark.read.format("topics").options(url=daemon.url, **options).load()


def test_spark_finds_the_source_by_itself_and_a_topic_is_a_table(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    http.append(
        topic,
        records=[{"data": {"late": 5}, "tag": "UA:1", "node": "EWR", "meta": {"k": "v"}}, {"data": {"late": 7}}],
    )
    frame = read(spark, daemon, topic=topic)
    assert frame.schema == SCHEMA
    first, second = frame.orderBy("seq").collect()
    expected = http.read(topic, include_tags=True)["records"]
    assert (first.topic, first.seq, first.node, first.tag, first.meta) == (topic, 1, "EWR", "UA:1", {"k": "v"})
    assert [row.ts.timestamp() * 1000 for row in (first, second)] == pytest.approx([row["$ts"] for row in expected])
    assert (second.tag, second.node, second.meta) == (None, None, None)
    total = frame.selectExpr("sum(get_json_object(data, '$.late')) AS total").collect()
    assert total[0].total == 12


def test_topics_are_read_by_name_or_by_prefix_in_partitions_of_so_many_seqs(
    spark: SparkSession, daemon: Daemon, http: Client
) -> None:
    stem = fresh_name("many")
    for place in range(3):
        http.append(f"{stem}.{place}", *range(10))
    by_prefix = read(spark, daemon, topicPrefix=f"{stem}.", recordsPerPartition=4)
    by_name = read(
        spark,
        daemon,
        topics=f"{stem}.2, {stem}.0",
        startingSeq=json.dumps({f"{stem}.0": 9}),
        endingSeq=json.dumps({f"{stem}.2": 2}),
    )
    assert by_prefix.rdd.getNumPartitions() == 9
    assert by_prefix.count() == 30
    assert sorted((row.topic, row.seq) for row in by_name.select("topic", "seq").collect()) == [
        (f"{stem}.0", 9),
        (f"{stem}.0", 10),
        (f"{stem}.2", 1),
        (f"{stem}.2", 2),
    ]


def test_a_query_reads_what_there_was_when_it_was_planned(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    http.append(topic, 1, 2)
    frame = read(spark, daemon, topic=topic)
    assert frame.count() == 2
    http.append(topic, 3)
    assert frame.count() == 2
    assert read(spark, daemon, topic=topic).count() == 3


def test_columns_that_are_not_wanted_are_not_fetched(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    http.append(topic, records=[{"data": "x" * 10_000, "tag": f"t{place}"} for place in range(100)])
    with asked(http) as whole:
        read(spark, daemon, topic=topic).selectExpr("sum(seq)").collect()
    with asked(http) as narrow:
        frame = read(spark, daemon, topic=topic, columns="tag,seq")
        assert frame.columns == ["tag", "seq"]
        assert frame.selectExpr("sum(seq)").collect()[0][0] == 5050
    assert (whole.exports_with_data, whole.exports_without_data) == (1, 0)
    assert (narrow.exports_with_data, narrow.exports_without_data) == (0, 1)
    assert whole.bytes > 1_000_000
    assert narrow.bytes < 50_000


def test_a_schema_that_is_given_narrows_as_columns_do(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    http.append(topic, 1)
    reader = spark.read.format("topics").options(url=daemon.url, topic=topic)
    assert reader.schema("data string, seq bigint").load().collect() == [("1", 1)]
    with pytest.raises(Exception, match="schema: the column 'seq' is bigint, not string"):
        reader.schema("seq string").load().collect()


def test_sql_reads_a_topic_as_a_view(spark: SparkSession, daemon: Daemon, http: Client, topic: str) -> None:
    http.append(topic, 1, 2, 3)
    spark.sql(f"CREATE TEMPORARY VIEW seen USING topics OPTIONS (url '{daemon.url}', topic '{topic}', startingSeq '2')")
    try:
        assert spark.sql("SELECT sum(data) FROM seen").collect()[0][0] == 5
    finally:
        spark.catalog.dropTempView("seen")


def test_mistakes_are_told_when_the_frame_is_loaded(spark: SparkSession, daemon: Daemon) -> None:
    with pytest.raises(Exception, match="recordsPerPartition: takes a whole number from 1 on"):
        read(spark, daemon, topic="t", recordsPerPartition="many")
    with pytest.raises(Exception, match="offset: is no option of topics here"):
        read(spark, daemon, topic="t", offset=5)


def test_a_topic_that_is_not_there_is_named(spark: SparkSession, daemon: Daemon) -> None:
    with pytest.raises(Exception, match="there is no topic 'nowhere' at http://127"):
        read(spark, daemon, topic="nowhere").count()
    assert read(spark, daemon, topicPrefix="nowhere.").count() == 0


def test_retention_that_overtakes_a_query_fails_it_or_is_a_row(
    spark: SparkSession, daemon: Daemon, http: Client, topic: str
) -> None:
    """Planned, but not read yet, when the cap is lowered."""
    http.append(topic, *range(10))
    strict = read(spark, daemon, topic=topic)
    lenient = read(spark, daemon, topic=topic, failOnDataLoss="false")
    told = read(spark, daemon, topic=topic, tombstones="true")
    for frame in (strict, lenient, told):
        frame.rdd.getNumPartitions()  # this plans
    http.put_topic(topic, cap_records=4)
    with pytest.raises(Exception, match=rf"the records 1 to 6 of topic '{topic}' are gone \(reason: cap\)"):
        strict.count()
    assert [row.seq for row in lenient.orderBy("seq").collect()] == [7, 8, 9, 10]
    gaps = told.where("reason is not null").collect()
    assert [(row.topic, row.seq, row.gap_from, row.gap_to, row.reason) for row in gaps] == [(topic, None, 1, 6, "cap")]
    assert told.where("reason is null").count() == 4
    assert read(spark, daemon, topic=topic).count() == 4, "what was gone before is not in the range"
