"""Each row is in the topic once, also if tasks or batches are repeated, on one machine or on several.

What is killed for it is in `test_kills`; here Spark itself repeats, because it was told to or because it does not know
that something was done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.conformance.client import Daemon, fresh_name
from tests.spark.between import Between
from tests.spark.cluster import Cluster, end_group
from tests.spark.query import FAILING, LINGERING, PARTITIONS, started
from topics.client import Client, Record
from topics.spark import TopicsDataSource

pytestmark = pytest.mark.slow

ENDS_WITHIN_S = 400.0


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with Client(daemon.url) as client:
        yield client


@pytest.fixture
def registered(spark: SparkSession) -> None:
    spark.dataSource.register(TopicsDataSource)


@pytest.fixture
def lines(spark: SparkSession, registered: None, tmp_path: Path) -> Callable[[], DataFrame]:
    """A stream of the numbers 0 to 3, two in each epoch."""
    source = tmp_path / "source"
    source.mkdir()
    for number in range(2):
        (source / f"{number}.txt").write_text(f"{2 * number}\n{2 * number + 1}\n")
    return lambda: spark.readStream.option("maxFilesPerTrigger", 1).text(str(source)).withColumnRenamed("value", "data")


def numbers(client: Client, topic: str) -> list[Any]:
    return [item.data for item in client.read(topic) if isinstance(item, Record)]


def forget_the_last_epoch(checkpoint: Path) -> None:
    """What a driver leaves behind that dies after the commit in the sink and before its own."""
    last = max(int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal())
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def test_a_batch_is_added_once_for_each_job_id(spark: SparkSession, daemon: Daemon, client: Client, topic: str) -> None:
    def submit(url: str, **job: str) -> None:
        rows = spark.range(0, 4, 1, 2).selectExpr("id as data")
        rows.write.format("topics").options(url=url, topic=topic, **job).mode("append").save()

    with Between(lambda: daemon.port) as between:
        submit(between.url, jobId="the first / of May")
        submit(between.url, jobId="the first / of May")
        assert numbers(client, topic) == [0, 1, 2, 3]
        assert [one.said["deduped"] for one in between.commits()] == [False, True]
        # Nothing is left behind of what was uploaded in vain.
        assert not any(client.delete_stage(topic, stage).deleted for stage in between.stages())
    submit(daemon.url, jobId="another")
    submit(daemon.url)
    assert len(numbers(client, topic)) == 12


def test_an_epoch_that_spark_repeats_adds_nothing(
    daemon: Daemon, client: Client, topic: str, lines: Callable[[], DataFrame], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        writer = lines().writeStream.format("topics").options(url=daemon.url, topic=topic)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    assert sorted(numbers(client, topic)) == list(range(4))
    forget_the_last_epoch(checkpoint)
    run()
    assert sorted(numbers(client, topic)) == list(range(4))


def test_a_job_id_under_foreach_batch_is_one_of_each_epoch(
    daemon: Daemon, client: Client, topic: str, lines: Callable[[], DataFrame], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def write(rows: DataFrame, epoch: int) -> None:
        rows.write.format("topics").options(url=daemon.url, topic=topic, jobId="mine").mode("append").save()

    def run() -> None:
        writer = lines().writeStream.foreachBatch(write).option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()

    run()
    forget_the_last_epoch(checkpoint)
    run()
    assert sorted(numbers(client, topic)) == list(range(4))


def test_totals_that_replace_each_other_are_those_of_the_last_epoch(
    daemon: Daemon, client: Client, topic: str, lines: Callable[[], DataFrame], tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"

    def run() -> None:
        total = lines().agg(F.sum("data").cast("long").alias("data"))
        writer = total.writeStream.outputMode("complete").format("topics").options(url=daemon.url, topic=topic)
        writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()

    run()
    assert numbers(client, topic) == [6]
    forget_the_last_epoch(checkpoint)
    run()
    assert numbers(client, topic) == [6]


def test_attempts_that_fail_and_attempts_that_are_overtaken_add_nothing_on_a_cluster(
    daemon: Daemon, client: Client, topic: str, cluster: Cluster, tmp_path: Path
) -> None:
    """And a stream from topic to topic, on the same executors."""
    rows, copy = 8000, fresh_name("copy")
    with Between(lambda: daemon.port) as between:
        program = started(
            tmp_path / "log",
            master=cluster.url,
            url=between.url,
            root=tmp_path / "query",
            rows=rows,
            batch_into=topic,
            from_topic=topic,
            stream_into=copy,
        )
        try:
            assert program.wait(ENDS_WITHIN_S) == 0, (tmp_path / "log").read_text(errors="replace")[-5000:]
        finally:
            end_group(program)
        # spark.<writer>.<epoch>.<partition>.<attempt>.<nonce>
        attempts = {tuple(map(int, name.split(".")[3:5])) for name in _stages_of(between, topic)}
    # The first attempt that lingers may be overtaken before it has uploaded anything, and others may be slow as well.
    assert attempts >= {(FAILING, 0), (FAILING, 1), (LINGERING, 1)}
    assert {partition for partition, _ in attempts} == set(range(PARTITIONS))
    assert sorted(record["n"] for record in numbers(client, topic)) == list(range(rows))
    assert sorted(map(json.dumps, numbers(client, copy))) == sorted(map(json.dumps, numbers(client, topic)))


def _stages_of(between: Between, topic: str) -> set[str]:
    uploads = [one.path.partition("?stage=") for one in between.exchanges]
    return {stage for path, _, stage in uploads if stage and path.endswith(f"/{topic}")}
