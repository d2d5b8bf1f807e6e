"""Rolling up: what can be asked for, and that a stream which was killed and started again says what a batch says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.conformance.client import Client, Daemon, fresh_name, until
from tests.spark.conftest import ROOT
from topics.cli.failures import UsageRefusal
from topics.spark.jobs import rollup
from topics.spark.jobs.rollup import Aggregate, Rollup, Sinks
from topics.spark.session import DaemonAddress


def test_the_columns_of_a_result_are_named_after_what_they_are() -> None:
    asked = Rollup(
        window_ms=1000,
        groups=("tag-prefix", "data.plane.tail"),
        aggregates=(Aggregate.parsed("avg:dep_delay"), Aggregate.parsed("sum:a.b")),
        time_field="at",
    )
    assert asked.columns == [
        *("window_start", "window_end", "tag_prefix", "plane_tail"),
        *("count", "avg_dep_delay", "sum_a_b"),
    ]
    assert asked.fields == ["plane.tail", "dep_delay", "a.b", "at"]


@pytest.mark.parametrize("text", ["avg", "avg:", "median:x", ":x", ""])
def test_an_aggregate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(UsageRefusal, match="--aggregate"):
        Aggregate.parsed(text)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"window_ms": 0}, "--window"),
        ({"groups": ("carrier",)}, "--group carrier: is none of topic, tag, tag-prefix, node and data.FIELD"),
        ({"groups": ("data.",)}, "--group data."),
        ({"groups": ("tag", "tag")}, "would be called tag"),
        ({"groups": ("data.count",)}, "would be called count"),
        ({"separator": ""}, "--separator"),
    ],
)
def test_a_rollup_that_cannot_be_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageRefusal, match=said):
        Rollup(**({"window_ms": 1000} | options))  # type: ignore[arg-type]


def test_a_sink_is_needed() -> None:
    with pytest.raises(UsageRefusal, match="--to-topic"):
        Sinks()


# ----------------------------------------------------------------- with Spark and a daemon

MINUTE = 60_000
START = 1_357_034_400_000
SPEC = Rollup(
    window_ms=10 * MINUTE,
    watermark_ms=5 * MINUTE,
    aggregates=(Aggregate("sum", "distance"), Aggregate("avg", "delay"), Aggregate("count", "delay")),
    time_field="at",
)


def flights(count: int) -> list[dict[str, object]]:
    """A flight a second, of three carriers, now and then a minute late; some without a delay."""
    return [
        {
            "data": {
                "at": START + 1000 * n - (MINUTE if n % 7 == 0 else 0),
                "distance": 100 * (n % 13),
                "delay": None if n % 5 == 0 else n % 11 - 3,
            },
            "tag": f"{('UA', 'B6', 'AA')[n % 3]}:{n}",
        }
        for n in range(count)
    ]


def batch(spark: SparkSession, address: DaemonAddress, topic: str, spec: Rollup = SPEC) -> DataFrame:
    return rollup.windows_of(spark.read.format("topics").options(**address.options(), topic=topic).load(), spec)


def assert_same(found: DataFrame, expected: DataFrame) -> None:
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))


@pytest.mark.slow
def test_killed_and_started_again_a_stream_says_once_what_a_batch_says(
    spark: SparkSession, http: Client, daemon: Daemon, tmp_path: Path, topic: str
) -> None:
    address = DaemonAddress(daemon.url)
    target = fresh_name("windows")
    http.append(topic, records=flights(4000))
    what = {"checkpoint": str(tmp_path / "cp"), "url": daemon.url, "topic": topic, "to": target}
    what["parquet"] = str(tmp_path / "windows")
    driver = subprocess.Popen(
        [sys.executable, "-m", "tests.spark.rollup_driver", msgspec.json.encode(SPEC).decode(), *what.values()],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
    )
    try:
        until(lambda: http.get(f"/v0/topics/{target}").status_code == 200 or driver.poll() is not None, within_s=240)
        driver.send_signal(signal.SIGKILL)
        assert driver.wait(30) == -signal.SIGKILL
    finally:
        driver.kill()
    sinks = Sinks(topic=target, parquet=what["parquet"])
    source = {"topic": topic, "maxRecordsPerTrigger": "2000"}
    rollup.run(spark, SPEC, tmp_path / "cp", address=address, sinks=sinks, source=source, final=True)
    expected = batch(spark, address, topic)
    assert_same(spark.read.parquet(what["parquet"]), expected)
    written = spark.read.format("topics").options(**address.options(), topic=target).load()
    schema = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in expected.schema)
    assert_same(written.selectExpr(f"from_json(data, '{schema}') AS w").select("w.*"), expected)
    assert {row.tag for row in written.select("tag").distinct().collect()} == {"UA", "B6", "AA"}


@pytest.mark.slow
def test_windows_wait_for_the_watermark_what_is_late_is_counted_and_the_end_is_the_end(
    spark: SparkSession, http: Client, daemon: Daemon, tmp_path: Path, topic: str
) -> None:
    address = DaemonAddress(daemon.url)
    parquet = str(tmp_path / "windows")
    sinks, source = Sinks(parquet=parquet), {"topic": topic}
    spec = Rollup(window_ms=MINUTE, groups=("data.kind",), aggregates=(Aggregate("sum", "n"),), time_field="at")

    def append(*records: tuple[object, int]) -> None:
        http.append(topic, *({"kind": "a", "at": at, "n": n} for at, n in records))

    def run(spec: Rollup = spec, *, final: bool = False) -> rollup.RollupResult:
        return rollup.run(
            spark, spec, tmp_path / "cp", address=address, sinks=sinks, source=source, once=True, final=final
        )

    def sums() -> list[float]:
        return [row.sum_n for row in spark.read.parquet(parquet).orderBy("window_start").collect()]

    append((START, 1), ("2013-01-01T10:00:30Z", 2), (START + 5 * MINUTE, 4))
    done = run()
    assert (done.records, done.windows, done.late, sums()) == (3, 1, 0, [3.0])
    append((START, 8), (START + 5 * MINUTE, 16))
    done = run(final=True)
    assert (done.records, done.windows, done.late, sums()) == (2, 1, 1, [3.0, 20.0])

    with pytest.raises(UsageRefusal, match="is final"):
        run()
    assert run(final=True).windows == 0
    with pytest.raises(UsageRefusal, match="another rollup"):
        run(msgspec.structs.replace(spec, window_ms=2 * MINUTE))


@pytest.mark.slow
def test_a_record_without_a_time_fails_the_rollup_and_is_named(
    spark: SparkSession, http: Client, daemon: Daemon, topic: str
) -> None:
    http.append(topic, {"at": START}, {"at": "noon"})
    spec = Rollup(window_ms=MINUTE, groups=("topic",), time_field="at")
    with pytest.raises(Exception, match=f"at of {topic} 2 is no time"):
        batch(spark, DaemonAddress(daemon.url), topic, spec).collect()
