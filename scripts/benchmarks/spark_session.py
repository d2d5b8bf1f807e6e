"""A Spark session of its own process, for `benchmarks.spark`: one job a line of standard input, one answer a line.

A job is the options of a batch read as JSON; all of its columns go to Spark and then nowhere. The answer is the seconds
from planning to the end and the records of each row count that Spark has observed. The process gives way to others
(nice 10), as jobs beside a daemon should.
"""

from __future__ import annotations

import json
import os
import sys
import time

from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as f

from topics.spark import TopicsDataSource

NICE = 10


def main() -> None:
    """Serve jobs until standard input ends."""
    os.nice(NICE)
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Spark prints is no answer
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    session.dataSource.register(TopicsDataSource)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        seen = Observation()
        frame = session.read.format("topics").options(**json.loads(line)).load()
        frame.observe(seen, f.count(f.lit(1)).alias("records")).write.format("noop").mode("overwrite").save()
        seconds = time.perf_counter() - began
        print(json.dumps({"seconds": seconds, "records": seen.get["records"]}), file=answers, flush=True)
    session.stop()


if __name__ == "__main__":
    main()
