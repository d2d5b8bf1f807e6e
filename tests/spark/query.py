"""Programs that write topics, to be run as processes of their own: `python -m tests.spark.query`.

What a test wants to kill, or to run on another master than the session that all tests share, is a step here. Each step
writes into topics of the daemon at `--url`; they run in the order below, those that are asked for.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tests.spark.cluster import ROOT, environ_of_spark
from tests.spark.conftest import settings_of_a_session
from topics.spark import TopicsDataSource

PARTITIONS = 4
FAILING, LINGERING = 1, 2
"""Partitions of the troubled batch: one whose first attempt fails when everything is uploaded, and one whose first
attempt goes on until another has won."""
LINGERS_S = 120.0
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
}
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}


def started(log: Path, **options: object) -> subprocess.Popen[bytes]:
    """This program as a process, leader of a session of its own. Options are those of `main`; it adds to `log`."""
    said = [text for name, value in options.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-m", "tests.spark.query", *said],
            cwd=ROOT,
            env=environ_of_spark(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def troubled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Rows as they are, with trouble behind them in the first attempts of two partitions."""
    yield from batches
    context = TaskContext.get()
    assert context is not None
    if context.attemptNumber() == 0:
        if context.partitionId() == FAILING:
            raise RuntimeError("this attempt fails after its last row")
        if context.partitionId() == LINGERING:
            time.sleep(LINGERS_S)  # Spark ends it when the other attempt has won


def write_troubled_batch(spark: SparkSession, url: str, topic: str, rows: int) -> None:
    """`rows` records `{"n": n, "pad": ...}`, in no order, of a kilobyte each, so that a partition is many uploads."""
    numbers = spark.range(0, rows, 1, PARTITIONS).repartition(PARTITIONS, F.rand())
    records = numbers.select(F.struct(F.col("id").alias("n"), F.repeat(F.lit("x"), 1000).alias("pad")).alias("data"))
    trouble = records.mapInArrow(troubled, records.schema)
    trouble.write.format("topics").options(url=url, topic=topic).mode("append").save()


def stream(rows: DataFrame, url: str, topic: str, checkpoint: Path) -> None:
    """Write a stream, shuffled anew in each attempt, until it has everything that is there now."""
    shuffled = rows.repartition(2, F.rand())
    writer = shuffled.writeStream.format("topics").options(url=url, topic=topic, checkpointLocation=str(checkpoint))
    writer.trigger(availableNow=True).start().awaitTermination()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--master", required=True)
    parser.add_argument("--url", required=True)
    parser.add_argument("--root", required=True, type=Path, help="an empty directory, or that of an earlier life")
    parser.add_argument("--rows", type=int, default=0)
    parser.add_argument("--batch-into")
    parser.add_argument("--from-files", help="a directory with files of lines of JSON, one each epoch")
    parser.add_argument("--from-topic")
    parser.add_argument("--stream-into")
    said = parser.parse_args()
    said.root.mkdir(exist_ok=True)
    builder = SparkSession.builder.master(said.master).appName("query")
    for name, text in (settings_of_a_session(said.root) | SPECULATION | SMALL).items():
        builder = builder.config(name, text)
    spark = builder.getOrCreate()
    spark.dataSource.register(TopicsDataSource)
    if said.batch_into:
        write_troubled_batch(spark, said.url, said.batch_into, said.rows)
    checkpoint = said.root / "checkpoint"
    if said.from_files:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(said.from_files)
        stream(lines.select(F.col("value").alias("data")), said.url, said.stream_into, checkpoint)
    if said.from_topic:
        reader = spark.readStream.format("topics").options(
            url=said.url, topic=said.from_topic, maxRecordsPerTrigger=4000
        )
        stream(reader.load().select("data", "tag", "node", "meta"), said.url, said.stream_into, checkpoint)
    spark.stop()


if __name__ == "__main__":
    main()
