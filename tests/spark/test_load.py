"""Loading: what a row becomes, in which order, and that a load which is repeated under its id adds nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conformance.client import Client, Daemon
from topics.cli.failures import UsageRefusal
from topics.spark.jobs import load
from topics.spark.jobs.load import LoadSource, base_of, format_of
from topics.spark.jobs.templates import Template
from topics.spark.session import DaemonAddress


@pytest.mark.parametrize(
    ("text", "texts", "columns"),
    [
        ("{carrier}:{flight}", ("", ":", ""), ("carrier", "flight")),
        ("flights", ("flights",), ()),
        ("{{{a}}}", ("{", "}"), ("a",)),
        ("a{ plane.tailnum }b", ("a", "b"), ("plane.tailnum",)),
    ],
)
def test_a_template_is_text_and_columns_by_turns(text: str, texts: tuple[str, ...], columns: tuple[str, ...]) -> None:
    assert Template.parsed(text, "--tag") == Template(texts, columns)


@pytest.mark.parametrize("text", ["{", "a}b", "{a", "{}", "{ }", "{a{b}}"])
def test_a_template_that_is_none_is_refused_by_the_name_of_its_option(text: str) -> None:
    with pytest.raises(UsageRefusal, match="--tag"):
        Template.parsed(text, "--tag")


def test_the_format_is_what_the_extension_says() -> None:
    names = ["a.csv", "b/c.TSV.gz", "d.jsonl", "e.json.bz2", "f.parquet", "hdfs://h/g*.ndjson"]
    assert [format_of(name) for name in names] == ["csv", "csv", "json", "json", "parquet", "json"]
    with pytest.raises(UsageRefusal, match="--format"):
        format_of("data.bin")


def test_the_directory_of_a_partitioned_table_is_known_by_its_names() -> None:
    assert base_of("file:///a/b/day=1/part=2/x.parquet") == {"basePath": "file:///a/b"}
    assert base_of("file:///a/b/x=1.parquet") == {}


# ----------------------------------------------------------------- with Spark and a daemon


@pytest.fixture
def address(daemon: Daemon) -> DaemonAddress:
    return DaemonAddress(daemon.url)


def records_of(http: Client, topic: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = http.read(topic, include_tags=True, limit=1000)["records"]
    return found


@pytest.mark.slow
def test_files_of_csv_in_the_order_of_their_names_become_records(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path, topic: str
) -> None:
    header = "carrier,flight,origin,delay,note\n"
    # The larger file second: Spark would begin with it. Its delays alone say of what type the column is.
    (tmp_path / "1 a.csv").write_text(header + 'UA,1,EWR,NA,"says ""no"", twice"\nUA,,JFK,NA,\n')
    (tmp_path / "2 b.csv").write_text(header + "".join(f"B6,{n},LGA,{n / 2},\n" for n in range(50)))
    source = LoadSource(null="NA")
    paths = [str(tmp_path / "*.csv")]
    options: dict[str, Any] = {"address": address, "source": source, "tag": "{carrier}:{flight}", "node": "{origin}"}
    assert load.run(spark, paths, topic, **options, job_id=topic) == 52
    assert load.run(spark, paths, topic, **options, job_id=topic) == 52

    records = records_of(http, topic)
    assert [record["data"] for record in records[:3]] == [
        {"carrier": "UA", "flight": 1, "origin": "EWR", "note": 'says "no", twice'},
        {"carrier": "UA", "origin": "JFK"},
        {"carrier": "B6", "flight": 0, "origin": "LGA", "delay": 0.0},
    ]
    assert [(record.get("$tag"), record.get("$node")) for record in records[:3]] == [
        ("UA:1", "EWR"),
        (None, "JFK"),
        ("B6:0", "LGA"),
    ]
    assert [record["data"]["flight"] for record in records[2:]] == list(range(50))


@pytest.mark.slow
def test_json_and_parquet_keep_their_types_and_an_order_can_be_asked_for(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path, topic: str
) -> None:
    rows = [{"n": n, "plane": {"tail": f"N{n}"}, "tags": ["x"], "late": None} for n in (2, 3, 1)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    load.run(spark, [str(path)], topic, address=address, tag="{plane.tail}", keep_nulls=True)
    spark.read.json(str(path)).drop("late").write.partitionBy("n").parquet(str(tmp_path / "table"))
    load.run(
        spark, [str(tmp_path / "table")], topic, address=address, order_by=["n"], source=LoadSource(format="parquet")
    )

    records = records_of(http, topic)
    assert [record["data"] for record in records[:3]] == rows
    assert [record["$tag"] for record in records[:3]] == ["N2", "N3", "N1"]
    assert [record["data"] for record in records[3:]] == [
        {"n": n, "plane": {"tail": f"N{n}"}, "tags": ["x"]} for n in (1, 2, 3)
    ]


@pytest.mark.slow
def test_a_column_that_is_not_there_is_named_and_nothing_is_loaded(
    spark: SparkSession, http: Client, address: DaemonAddress, tmp_path: Path, topic: str
) -> None:
    (tmp_path / "a.csv").write_text("carrier,flight\nUA,1\n")
    for options in ({"tag": "{flite}"}, {"node": "{flite}"}, {"order_by": ["flite"]}):
        with pytest.raises(UsageRefusal, match="'flite'; there are carrier, flight"):
            load.run(spark, [str(tmp_path / "a.csv")], topic, address=address, **options)
    assert http.get(f"/v0/topics/{topic}").status_code == 404
